"""What backward.json and the ops' own records have of sums over rows and of backwards; None where there is no record
yet. What is printed has the reader's own time beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lessons.n09_a_backward.arithmetic import KEPT, backward_bytes
from lessons.n09_a_backward.sum_launch import CHUNKS
from lessons.shared.records import ADD_MUL_ACTIVATION, GPU, NO_RECORD, Record

if TYPE_CHECKING:
    import pandas

BACKWARD = Record("backward")
OP_CHUNKS = 256  # of add_mul_activation's Triton backward at 65536 × 512 float32, by row_chunks
WAYS = {"atomics": "sum_atomic", "two stages": "sum_chunk"}  # as the lesson calls them, as the record does


def sum_row(way: str, chunks: int = CHUNKS, warps: int = 4) -> pandas.Series:
    """The sum by "sum_rows", "sum_tiles" (with so many warps a program), "torch", or one of WAYS. LookupError: it was
    not measured."""
    part, labels = _sum(way, chunks, warps)
    return BACKWARD.one(part, **labels)


def _sum(way: str, chunks: int, warps: int) -> tuple[str, dict]:
    """The part and the labels of that row."""
    if way in WAYS:
        return "chunks", {"step": WAYS[way], "chunks": chunks}
    if way == "sum_tiles" and warps != 4:
        return "warps", {"step": way, "warps": warps}
    return "step", {"step": way}


def backward(name: str, activation: str) -> pandas.Series:
    """add_mul_activation's backward at 65536 × 512 float32; name: eager, torch.compile, triton, cuda, or the lesson's.

    What the part `backward` has not is taken from `op`, or from the op's own record. LookupError: it was not measured.
    """
    try:
        return BACKWARD.one("backward", implementation=name, activation=activation)
    except LookupError:
        if activation not in ("relu", "gelu") or name == "the lesson's":
            raise
    if name == "triton":
        return BACKWARD.one("op", activation=activation, chunks=OP_CHUNKS, sums=True)
    return ADD_MUL_ACTIVATION.one("backward", implementation=name, activation=activation, dtype="float32")


def _by_turns() -> bool:
    """Whether the implementations of a backward were measured in one run."""
    return "backward" in set(BACKWARD.table()["part"])


def whole_backward() -> pandas.Series | None:
    """The puzzle's answer and two_stage, with the chunks of the op."""
    return _or_none(backward, "the lesson's", "relu")


def training(what: str, name: str, activation: str) -> pandas.Series:
    """Forward with gradients, or both directions; kept: bytes between them."""
    return BACKWARD.one("training", what=what, implementation=name, activation=activation, dtype="float32")


def begin_per_ns() -> float:
    """Programs that the GPU begins in a ns at most, from notebook 06's copy in the smallest programs."""
    row = GPU.one("flight", block=128, programs=0)
    return row["bytes"] / (8 * 128) / (1e3 * row["us_p50"])


# ------------------------------------------------------------------------------------------------------------ printed


def show(
    what: str, row: pandas.Series | None, mine: float | None = None, guess: float | None = None,
    instead: str = NO_RECORD,
) -> None:
    """Print a line: the recorded µs, what was predicted, and what was measured here. instead: of the recorded µs."""
    text = instead if row is None else f"{gpu_of(BACKWARD)} {row['us_p50']:7,.1f} µs"
    here = "" if mine is None else f", here {mine:,.1f} µs"
    prediction = "" if guess is None else f"; your prediction: {guess:g}"
    print(f"{what:36} {text}{here}{prediction}")


def _us(row: pandas.Series) -> str:
    return f"{row['us_p50']:,.1f} µs"


def gpu_of(record: Record) -> str:
    return record.head("GPU").removeprefix("NVIDIA ")


def show_sum(
    way: str, mine: float | None = None, guess: float | None = None, chunks: int = CHUNKS, warps: int = 4
) -> None:
    """As show, of a sum."""
    about = f", chunks: {chunks}" if way in WAYS else f", warps: {warps}" if way == "sum_tiles" else ""
    part, labels = _sum(way, chunks, warps)
    show(way + about, _or_none(sum_row, way, chunks, warps), mine, guess, BACKWARD.elsewhere(part, _us, **labels))


def show_whole_backward(mine: float | None = None) -> None:
    """As show, of the puzzle's answer and two_stage."""
    labels = {"implementation": "the lesson's", "activation": "relu"}
    show("relu, this kernel and two_stage", whole_backward(), mine, None, BACKWARD.elsewhere("backward", _us, **labels))


def show_backward(faster: dict[str, str | None] | None = None) -> None:
    """A line for each activation: µs and bytes an element by each implementation; faster: who was said to be."""
    for activation in KEPT:
        cells, gpu = [], f"{gpu_of(BACKWARD)}: "
        for name in ("torch.compile", "triton", "cuda"):
            row = _or_none(backward, name, activation)
            if row is None:
                row, gpu = _elsewhere(name, activation)
            us = NO_RECORD if row is None else f"{row['us_p50']:.1f} µs"
            cells.append(f"{name} {us} ({backward_bytes(name, activation)} bytes)")
        guess = (faster or {}).get(activation)
        print(f"{activation:8}{gpu}" + ", ".join(cells) + (f"; your prediction: {guess}" if guess else ""))
    if not _by_turns():
        command = "`python -m lessons.n09_a_backward --save` measures them all by turns."
        print(f"These times come from several runs; {command}")


def show_training(mine: dict[tuple[str, str], float] | None = None) -> None:
    """A line for each activation and implementation: µs of both directions, and the MB that are kept between them;
    mine: µs here by activation and implementation."""
    print(f"{'both directions, µs':26} {gpu_of(BACKWARD):>6}" + f"{'here':>9}" * bool(mine) + "   kept")
    for activation in ("relu", "gelu"):
        for name in ("eager", "torch.compile", "triton"):
            row, here = training("both", name, activation), (mine or {}).get((activation, name))
            text = "" if here is None else f"{here:9.1f}"
            print(f"{activation:8} {name:17} {row['us_p50']:6.1f}{text}{row['kept'] / 1e6:7.0f} MB")


def _elsewhere(name: str, activation: str) -> tuple[pandas.Series | None, str]:
    """Another GPU's row, of a run that has all implementations by turns, and its name."""
    try:
        record = BACKWARD.with_part("backward")
        row = record.one("backward", implementation=name, activation=activation)
    except LookupError:
        return None, ""
    return row, f"not recorded on an H200; on an {gpu_of(record)}: "


def _or_none(read, *labels) -> pandas.Series | None:
    try:
        return read(*labels)
    except LookupError:
        return None
