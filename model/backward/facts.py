"""What a backward moves, what the order of a float32 sum changes, and what the records have of both.

backward.json is `python -m model.backward --save`; the backward of each activation is in add_mul_activation.json.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from kernels.measure.records import load, recorded

if TYPE_CHECKING:
    import pandas

NAME = "backward"
MISSING = "not recorded yet: python -m model.backward --save"
ROWS, COLUMNS = 65536, 512
NUMBERS = ROWS * COLUMNS
WAYS = ("out", "x and y", "the derivative", "a mask")  # what is kept for the backward
STEPS = ("sum_rows", "sum_tiles", "sum_atomic", "sum_chunk", "torch")
SAID = {"sum_rows": "a row at a time", "sum_tiles": "32 rows at a time", "sum_atomic": "512 chunks, atomics",
        "sum_chunk": "512 chunks, two stages", "torch": "PyTorch's x.sum(0)"}  # fmt: skip
KEPT = {"relu": "out", "sigmoid": "out", "gelu": "x and y"}  # by our kernels
COMPILER = {"relu": "a mask", "sigmoid": "out", "gelu": "the derivative"}  # by torch.compile


def traffic(way: int, itemsize: int) -> tuple[int, int]:
    """Bytes a number that the forward moves, and the backward; way: which of WAYS is kept."""
    written = (0, 0, itemsize, 1)[way]
    read = (itemsize, 2 * itemsize, itemsize, 1)[way]
    return 3 * itemsize + written, 3 * itemsize + read


def backward_bytes(name: str, activation: str, itemsize: int) -> int:
    """Bytes a number that the backward moves: ours, or torch.compile's, whose sum reads grad_x again."""
    if name == "torch.compile":
        return traffic(WAYS.index(COMPILER[activation]), itemsize)[1] + itemsize
    return traffic(WAYS.index(KEPT[activation]), itemsize)[1]


# ---------------------------------------------------------------------------------------------------- order of a sum


def ones(rows: int, programs: int) -> int:
    """What float32 makes of so many ones: each program adds its share one after the other, then the programs' sums are
    added; both are powers of two."""
    return programs * min(rows // programs, 2**24)


def draw(rows: int = ROWS, columns: int = 64) -> np.ndarray:
    """Normal float32 numbers, the same on every machine."""
    return np.random.default_rng(0).standard_normal((rows, columns), dtype=np.float32)


def one_after_another(x: np.ndarray) -> np.ndarray:
    """Sums over the rows in float32, in their order."""
    return np.cumsum(x, axis=0, dtype=np.float32)[-1]


def in_chunks(x: np.ndarray, chunk: int = 128) -> np.ndarray:
    """The same, first those of each chunk of rows."""
    return one_after_another(np.cumsum(x.reshape(-1, chunk, x.shape[1]), axis=1, dtype=np.float32)[:, -1])


def orders(count: int, chunk: int = 128) -> list[float]:
    """One column's sum, count times: its chunks' sums added in an order that is drawn anew each time."""
    x = draw(columns=1).reshape(-1, chunk)
    sums, generator = np.cumsum(x, axis=1, dtype=np.float32)[:, -1], np.random.default_rng(1)
    return [float(np.cumsum(generator.permutation(sums), dtype=np.float32)[-1]) for _ in range(count)]


# ------------------------------------------------------------------------------------------------- from the records


def backward(name: str, activation: str, dtype: str = "float32") -> pandas.Series:
    """The recorded backward of add_mul_activation at 65536 × 512. name: eager, torch.compile, triton or cuda."""
    found = recorded("add_mul_activation")
    labels = {"part": "backward", "implementation": name, "activation": activation, "dtype": dtype}
    return _one(found, labels)


def of_add_relu(name: str, dtype: str = "float32") -> pandas.Series:
    return _one(recorded("add_relu"), {"part": "backward", "implementation": name, "dtype": dtype})


def one(part: str, **labels) -> pandas.Series:
    """The row of backward.json that has these labels. FileNotFoundError: nothing is recorded."""
    return _one(recorded(NAME), {"part": part, **labels})


def rows(part: str) -> list[pandas.Series]:
    found = recorded(NAME)
    return [row for _, row in found[found["part"] == part].iterrows() if row["match"] == "ok"]


def _one(found: pandas.DataFrame, labels: Mapping) -> pandas.Series:
    for name, value in labels.items():
        found = found[found[name] == value] if name in found else found[:0]
    if len(found) != 1 or found.iloc[0]["match"] != "ok":
        raise FileNotFoundError(f"{labels}: no row that matches")
    return found.iloc[0]


def there() -> bool:
    try:
        load(NAME)
    except FileNotFoundError:
        return False
    return True


def copy_us(bytes_a_number: float) -> float:
    """µs in which PyTorch's copy moves so many bytes for each number of 65536 × 512."""
    return NUMBERS * bytes_a_number / load("add_relu")["copy_tb_per_s"]["limit"] / 1e6


def print_steps(predicted: Mapping[str, float] | None = None) -> None:
    """A line a step: µs, and the prediction beside it."""
    if not there():
        print(MISSING)
    for step in STEPS if there() else ():
        row = one("step", step=step)
        said = f", you said {predicted[step]:g}" if predicted and step in predicted else ""
        print(f"{SAID[step]:24} {row['us_p50']:8.1f} µs ({row['us_p20']:.1f} to {row['us_p80']:.1f}){said}")


def print_backward(faster: Mapping[str, str] | None = None) -> None:
    """µs of each backward, and bytes a number; faster: who was said to be."""
    print("activation  dtype       ours, Triton   torch.compile   faster          you said        B: bytes a number")
    for activation in COMPILER:
        for dtype, itemsize in (("float32", 4), ("bfloat16", 2)):
            shown, us = [], {}
            for name in ("triton", "torch.compile"):
                us[name] = backward(name, activation, dtype)["us_p50"]
                size = backward_bytes(name, activation, itemsize)
                shown.append(f"{us[name]:5.1f} µs, {size:2} B")
            first = min(us, key=us.get)
            said = (faster or {}).get(activation, "")
            print(f"{activation:10}  {dtype:8}  {shown[0]:>14}  {shown[1]:>14}   {first:14}  {said}")
