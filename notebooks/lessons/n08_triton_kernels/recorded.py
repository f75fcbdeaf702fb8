"""What pointwise.json has of the lesson's kernels, printed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lessons.n08_triton_kernels.experiment import DTYPES, SHAPES
from lessons.shared.records import Record, copy_us

if TYPE_CHECKING:
    import pandas

POINTWISE = Record("pointwise")


def find(part: str, **labels) -> pandas.Series | None:
    """The one row of pointwise.json with these labels; None if it was not recorded yet."""
    try:
        return POINTWISE.one(part, **labels)
    except LookupError:
        return None


def show_relu(name: str, shape: str, here: tuple[float, float] | None = None) -> None:
    """A line on relu(x + bias) in float32: the launch's recorded µs, with an empty L2 and in a replay, and beside them
    those of this machine."""
    labels = {"name": name, "shape": shape, "dtype": "float32"}
    if (row := find("add_relu", **labels)) is not None:
        replayed = row.get("replay_us")
        known = replayed is not None and replayed == replayed  # rows without it have NaN there
        text = f"recorded {row['us_p50']:6.1f} µs" + (f", replayed {replayed:.1f}" if known else "")
    else:
        text = POINTWISE.elsewhere("add_relu", beside="six lines" if name == "eager" else "eager", **labels)
    print(f"{name:32} {text}" + (f"; here {here[0]:.1f} µs, replayed {here[1]:.1f}" if here else ""))


def show_relus(shape: str, here: tuple[float, float] | None = None) -> None:
    """The six lines, with the times of this machine, and beside them those that are only recorded."""
    show_relu("six lines", shape, here)
    for name in ("eager", "torch.compile", "the op"):
        show_relu(name, shape)


def show_offsets() -> None:
    """The library's kernel with offsets in 32 bits and in 64: µs, and its instructions."""
    print(f"{'':24}" + "".join(f"{bits} bits: µs, instructions".rjust(28) for bits in (32, 64)))
    for shape, (rows, columns) in SHAPES.items():
        for dtype in DTYPES:
            steps = [find("step", name=name, shape=shape, dtype=dtype) for name in ("16 bytes a lane", "64-bit places")]
            cells = "".join(f"{row['us_p50']:14.1f}{row['instructions']:14.0f}" for row in steps)
            print(f"{rows} × {columns} {dtype:9}" + cells)


def bytes_us(tensors: int = 3) -> float:
    """µs of the bytes of so many float32 tensors of the even size and a bias, at the copy's rate."""
    rows, columns = SHAPES["even"]
    return copy_us((tensors * rows * columns + columns) * 4)
