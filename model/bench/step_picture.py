"""traces/step.svg: a training step of `main` on one time axis, drawn from the records: `python -m model.bench --write`.

The first four bars are rows of one run, whole_model.json. A step of PyTorch's own that has CUDA graphs is recorded on
small tables in float32 alone, as a traced step: it has the same axis, apart from the others and hatched.

The file is text, the same bytes for the same records. It brings its own background and the colours of both modes, so it
can be read on a light page and on a dark one. What is ours differs from the peers in lightness too, and by its words.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path

from data.synthetic import FULL, SyntheticConfig
from kernels.measure.judge import NEVER_SLOWER, is_variant
from kernels.measure.records import RESULTS, load
from model.bench.whole_model import PEER, RECORD, WORDS

TRACES = RESULTS.parent
PICTURE = TRACES / "step.svg"
CELL = ("dot", 2048, "tf32")
# Traced steps: PyTorch's own with graphs; and the eager one on CELL's tables, whose profile says what the GPU does.
GRAPHED_PEER, PROFILED = "10_main_dot_cuda_graphs", "12_full_sgd_sparse"
OURS_TRACED, OURS_GRAPHED = "15_full_sgd_fused", "18_full_sgd_graph"  # as PROFILED

WIDTH, LEFT, BAR, PITCH = 680, 20, 26, 66
PLOT = WIDTH - 2 * LEFT
TOP = 116  # of the first bar's words
STYLE = """
  svg { font-family: system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; font-size: 20px }
  .page { fill: #ffffff; stroke: #d0d7de }
  text { fill: #1f2328; stroke: #ffffff; stroke-width: 6px; stroke-linejoin: round; paint-order: stroke }
  .less { fill: #59636e; font-size: 16.5px }
  .title { font-size: 24px; font-weight: 600 } .ms { font-weight: 600 }
  .grid { stroke: #d0d7de } .peer { fill: #8c959f } .ours { fill: #0b5cad }
  .stripes { stroke: #8c959f; stroke-width: 5 } .other { stroke: #8c959f }
  @media (prefers-color-scheme: dark) {
    .page { fill: #0d1117; stroke: #3d444d } text { fill: #f0f6fc; stroke: #0d1117 } .less { fill: #9198a1 }
    .grid { stroke: #3d444d } .peer { fill: #6e7681 } .ours { fill: #58b0ff }
    .stripes { stroke: #6e7681 } .other { stroke: #6e7681 }
  }
"""


@dataclass(frozen=True)
class Bar:
    """ms: None of a peer whose step was not right. kind: peer | ours | other, the class of its colour."""

    words: str
    ms: float | None
    kind: str

    @property
    def time(self) -> str:
        return "– (FAILED)" if self.ms is None else f"{self.ms:.2f} ms"


def step_rows(results: Path = RESULTS) -> tuple[dict, dict[str, Mapping]]:
    """(the record, {implementation: its row} of CELL), of the rows that were right.

    Raises:
        FileNotFoundError: there is no record.
    """
    record = load(RECORD, results=results)
    return record, {row["implementation"]: row for row in record["rows"]
                    if (row["part"], row["rows"], row["precision"]) == CELL and row["match"] == "ok"}


def bars(rows: Mapping[str, Mapping]) -> list[Bar]:
    """What was measured by turns in one run; torch.compile as it is set best, if that is faster than the plain one by
    more than NEVER_SLOWER.

    Raises:
        ValueError: one of ours was not measured, or was not right.
    """
    best = min((name for name in rows if is_variant(name, PEER)), key=lambda name: rows[name]["ms"], default=PEER)
    if PEER in rows and rows[PEER]["ms"] <= NEVER_SLOWER * rows[best]["ms"]:
        best = PEER
    how = best.removeprefix(PEER).removeprefix(", ")
    words = {
        "eager sparse": ("PyTorch, eager", "peer"),
        best: (f"PyTorch, {PEER}" + f" (set best: {how})" * bool(how), "peer"),
        "fused": ("Our kernels, launched from Python", "ours"),
        "fused graph": ("Our kernels, as one CUDA graph", "ours"),
    }
    if missing := [name for name, (_, kind) in words.items() if kind == "ours" and name not in rows]:
        raise ValueError(f"{RECORD}: no time of a step by {', '.join(missing)}")
    return [Bar(text, rows[name]["ms"] if name in rows else None, kind) for name, (text, kind) in words.items()]


def traced(name: str, traces: Path = TRACES) -> dict:
    """The run.json of a traced step."""
    return json.loads((traces / name / "run.json").read_text())


def words(results: Path = RESULTS, traces: Path = TRACES) -> str:
    """The picture for those who do not see it, from the records."""
    record, rows = step_rows(results)
    times = "; ".join(f"{bar.words}: {bar.time}" for bar in bars(rows))
    graphed = traced(GRAPHED_PEER, traces)
    apart = f"Apart, in float32 on smaller tables, torch.compile with its own graphs: {graphed['step_ms']:.2f} ms"
    return f"A training step of DLRM with {CELL[1]:,} rows on one {record['GPU']}. {times}. {apart}."


def svg(results: Path = RESULTS, traces: Path = TRACES) -> str:
    """The file's text.

    Raises:
        FileNotFoundError: there is no record. ValueError: see bars.
    """
    record, rows = step_rows(results)
    graphed, profiled = traced(GRAPHED_PEER, traces), traced(PROFILED, traces)
    shown = bars(rows)
    other = Bar('PyTorch, torch.compile(mode="reduce-overhead")', graphed["step_ms"], "other")
    longest = max(bar.ms or 0.0 for bar in [*shown, other])
    most = 0.5 * int(1 + longest * 1.12 / 0.5)  # leaves room for the time behind a bar
    per_ms = PLOT / most
    apart = TOP + len(shown) * PITCH + 6  # where the other record begins
    bottom = apart + 26 + PITCH + 22
    ids, rule = sum(SyntheticConfig(FULL).cardinalities), rows["fused"]["optimizer"].upper()
    ours, ours_graphed = (traced(name, traces) for name in (OURS_TRACED, OURS_GRAPHED))
    others = sorted({_source(run) for run in (graphed, profiled, ours, ours_graphed)})
    notes = [
        f"The first three wait for Python. In float32: eager {profiled['step_ms']:.2f} ms, whose",
        f"kernels take {1e-3 * profiled['facts']['busy_us']:.2f}; ours launched {ours['step_ms']:.2f}, as a graph "
        f"{ours_graphed['step_ms']:.2f}.",
        f"Bars 1 to {len(shown)}: {_source(record)}",
        *(f"Float32: {source}" for source in others),
    ]
    graphed_ids = graphed["config"]["ids"]
    height = bottom + 34 + 24 * len(notes)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        f'role="img">',
        f"<title>{escape(words(results, traces))}</title>",
        f"<style>{STYLE}</style>",
        '<defs><pattern id="stripes" width="10" height="10" patternUnits="userSpaceOnUse" '
        'patternTransform="rotate(45)"><path class="stripes" d="M2.5 0V10"/></pattern></defs>',
        f'<rect class="page" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8"/>',
        _text(LEFT, 42, f"A training step of DLRM, {CELL[1]:,} rows", "title"),
        _text(LEFT, 70, f"{record['GPU']}, {WORDS[CELL[2]]}, {rule}, tables of {ids / 1e6:.1f} million ids", "less"),
    ]
    ticks = [0.5 * i for i in range(int(most / 0.5) + 1)]
    lines += [f'<path class="grid" d="M{LEFT + per_ms * tick:.1f} {TOP - 24}V{bottom - 14}"/>' for tick in ticks]
    lines += [_text(LEFT + per_ms * tick, bottom + 6, f"{tick:g}" + " ms" * (tick == ticks[-1]), "less",
                    "middle" if 0 < tick < ticks[-1] else "end" if tick else "start") for tick in ticks]
    for number, bar in enumerate(shown):
        lines += _drawn(bar, TOP + number * PITCH, per_ms)
    lines += [
        f'<path class="grid" stroke-dasharray="4 4" d="M{LEFT} {apart - 12}H{WIDTH - LEFT}"/>',
        _text(LEFT, apart + 12, f"With PyTorch's own graphs, another record: float32, {graphed_ids:,} ids", "less"),
        *_drawn(other, apart + 38, per_ms),
        *(_text(LEFT, bottom + 40 + 24 * number, note, "less") for number, note in enumerate(notes)),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _source(record: Mapping) -> str:
    return f"{record['GPU']}, torch {record['torch']}, triton {record['triton']}, {record['date']}"


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y}" class="{kind}" text-anchor="{anchor}">{escape(text, quote=False)}</text>'


def _drawn(bar: Bar, y: int, per_ms: float) -> list[str]:
    """The bar below its words, of which y is the base line; its time behind it."""
    fill = ' fill="url(#stripes)"' if bar.kind == "other" else ""
    length = per_ms * (bar.ms or 0.0)
    return [
        _text(LEFT, y, bar.words),
        f'<rect class="{bar.kind}" x="{LEFT}" y="{y + 8}" width="{length:.1f}" height="{BAR}"{fill}/>',
        _text(LEFT + length + 8, y + 28, bar.time, "ms"),
    ]
