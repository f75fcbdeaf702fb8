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
KEPT = {"relu": (3, 0), "sigmoid": (0, 0), "gelu": (2, 1)}  # ways of puzzles.traffic: the compiler's, ours
WHOLE = "relu, this kernel and two_stage"  # the whole backward by the answer to puzzle 3


def sum_row(way: str, chunks: int = CHUNKS) -> pandas.Series:
    """The sum by "sum_rows", "sum_tiles", "torch", or one of WAYS. LookupError: it was not measured."""
    part, labels = _part(way, chunks)
    return BACKWARD.one(part, **labels)


def _part(way: str, chunks: int, warps: int = 4) -> tuple[str, dict]:
    """The part and the labels of that row."""
    if way in WAYS:
        return "chunks", {"step": WAYS[way], "chunks": chunks}
    if way == WHOLE:
        return "backward", {"implementation": "the lesson's", "activation": "relu"}
    return ("step", {"step": way}) if warps == 4 else ("warps", {"step": way, "warps": warps})


def gpu() -> str:
    return BACKWARD.head("GPU").removeprefix("NVIDIA ")


def show(
    way: str, mine: float | None = None, guess: float | None = None, chunks: int = CHUNKS, warps: int = 4
) -> None:
    """Print a line: the recorded µs of a way as sum_row names it, or of WHOLE, or another GPU's, what was measured
    here, and what was predicted. warps: of a program of sum_tiles."""
    what = way + (f", chunks: {chunks}" if way in WAYS else f", warps: {warps}" if way == "sum_tiles" else "")
    part, labels = _part(way, chunks, warps)
    text = BACKWARD.elsewhere(part, lambda row: f"{row['us_p50']:,.1f} µs", **labels)
    with suppress(LookupError):
        text = f"{gpu()} {BACKWARD.us(part, **labels):7,.1f} µs"
    here = "" if mine is None else f", here {mine:,.1f} µs"
    print(f"{what:36} {text}{here}" + ("" if guess is None else f"; your prediction: {guess:g}"))


def show_training(mine: dict[tuple[str, str], float]) -> None:
    """A line for each activation and implementation: µs of both directions, and the MB that are kept between them;
    mine: µs here by activation and implementation."""
    print(f"{'both directions, µs':26} {gpu():>6}" + f"{'here':>9}" * bool(mine) + "   kept")
    for activation, name in itertools.product(("relu", "gelu"), ("eager", "torch.compile", "triton")):
        row = BACKWARD.one("training", implementation=name, activation=activation)
        here = f"{mine[activation, name]:9.1f}" if mine else ""
        print(f"{activation:8} {name:17} {row['us_p50']:6.1f}{here}{row['kept'] / 1e6:7.0f} MB")
