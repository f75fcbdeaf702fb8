"""The notebook's table of paper cuts: a row per cut, with what the record says and what this machine measures."""

from __future__ import annotations

import html

import pandas as pd

from lessons.n03_paper_cuts.recorded import CUTS, SMALL_STEP, Effect, cut, effect_of, elsewhere

GREY = "color: #999"
HEADS = "cut", "step", "recorded, H200: ms per step", "saves", "here: ms per step", "saves"


class Cuts:
    """Shown as a table; grey is what lies inside the spread or under 3 %."""

    def __init__(self) -> None:
        self.rows: dict[str, Effect | None] = {}

    def add(self, name: str, ms: pd.DataFrame | None = None) -> Cuts:
        """A row; ms: columns before and after, by turns, measured here. A cut that is there already is replaced."""
        self.rows[name] = None if ms is None else effect_of(ms["before"], ms["after"])
        return self

    def _lines(self) -> list[list[tuple[str, bool]]]:
        """Each row's cells: (text, whether it is grey)."""
        lines = []
        for name, here in self.rows.items():
            effect = cut(name)
            missing = "no record yet" if name in CUTS else "–"
            grey = effect is not None and effect.none
            step = CUTS[name][0] if name in CUTS else SMALL_STEP
            gpu = elsewhere(name) if effect else ""
            lines.append([(name, grey), (step, grey), *_cells(effect, missing, gpu), *_cells(here, "–")])
        return lines

    def __repr__(self) -> str:
        texts = [list(HEADS), *([text for text, _ in line] for line in self._lines())]
        widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
        return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in texts)

    def _repr_html_(self) -> str:
        head = "".join(f'<th style="text-align: left">{html.escape(text)}</th>' for text in HEADS)
        body = "".join(
            "<tr>" + "".join(
                f'<td style="text-align: left{"; " + GREY if grey else ""}">{html.escape(text)}</td>'
                for text, grey in line
            ) + "</tr>"
            for line in self._lines()
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cells(effect: Effect | None, missing: str, gpu: str = "") -> list[tuple[str, bool]]:
    if effect is None:
        return [(missing, False), ("", False)]
    ms = f"{effect.before:.2f} → {effect.after:.2f}" + (f" ({gpu})" if gpu else "")
    return [(ms, effect.none), (effect.saved, effect.none)]
