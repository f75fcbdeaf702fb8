"""What backward.json has of sums over rows and of backwards, printed with the reader's own time beside it."""

from __future__ import annotations

import itertools
from contextlib import suppress
from typing import TYPE_CHECKING

from lessons.shared.records import Record

if TYPE_CHECKING:
    import pandas

BACKWARD = Record("backward")
ROWS, COLUMNS = 65536, 512
CHUNKS = 128  # of the sum alone: the best of the record for atomics, and as good as 64 in two stages
WAYS = {"atomics": "sum_atomic", "two stages": "sum_chunk"}  # as the lesson calls them, as the record does


def sum_row(way: str, chunks: int = CHUNKS) -> pandas.Series:
    """The sum by "sum_rows", "sum_tiles", "torch", or one of WAYS. LookupError: it was not measured."""
    part, labels = _sum(way, chunks)
    return BACKWARD.one(part, **labels)


def _sum(way: str, chunks: int, warps: int = 4) -> tuple[str, dict]:
    """The part and the labels of that row."""
    if way in WAYS:
        return "chunks", {"step": WAYS[way], "chunks": chunks}
    return ("step", {"step": way}) if warps == 4 else ("warps", {"step": way, "warps": warps})


def gpu() -> str:
    return BACKWARD.head("GPU").removeprefix("NVIDIA ")


def _show(what: str, mine: float | None, guess: float | None, part: str, labels: dict) -> None:
    """Print a line: the recorded µs, or another GPU's, what was measured here, and what was predicted."""
    text = BACKWARD.elsewhere(part, lambda row: f"{row['us_p50']:,.1f} µs", **labels)
    with suppress(LookupError):
        text = f"{gpu()} {BACKWARD.us(part, **labels):7,.1f} µs"
    here = "" if mine is None else f", here {mine:,.1f} µs"
    print(f"{what:36} {text}{here}" + ("" if guess is None else f"; your prediction: {guess:g}"))


def show_sum(
    way: str, mine: float | None = None, guess: float | None = None, chunks: int = CHUNKS, warps: int = 4
) -> None:
    """The line of a sum, as sum_row names it; warps: of a program of sum_tiles."""
    about = f", chunks: {chunks}" if way in WAYS else f", warps: {warps}" if way == "sum_tiles" else ""
    _show(way + about, mine, guess, *_sum(way, chunks, warps))


def show_whole_backward(mine: float | None = None) -> None:
    """The line of the puzzle's answer and two_stage."""
    labels = {"implementation": "the lesson's", "activation": "relu"}
    _show("relu, this kernel and two_stage", mine, None, "backward", labels)


def show_training(mine: dict[tuple[str, str], float]) -> None:
    """A line for each activation and implementation: µs of both directions, and the MB that are kept between them;
    mine: µs here by activation and implementation."""
    print(f"{'both directions, µs':26} {gpu():>6}" + f"{'here':>9}" * bool(mine) + "   kept")
    for activation, name in itertools.product(("relu", "gelu"), ("eager", "torch.compile", "triton")):
        row = BACKWARD.one("training", implementation=name, activation=activation)
        here = f"{mine[activation, name]:9.1f}" if mine else ""
        print(f"{activation:8} {name:17} {row['us_p50']:6.1f}{here}{row['kept'] / 1e6:7.0f} MB")
