"""What backward.json and the ops' own records have of sums over rows and of backwards, printed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from lessons.n09_a_backward.arithmetic import COMPILER, backward_bytes
from lessons.n09_a_backward.sum_launch import STEPS
from lessons.shared.records import ADD_MUL_ACTIVATION, ADD_RELU, Record

if TYPE_CHECKING:
    import pandas

BACKWARD = Record("backward")
SAID = {"sum_rows": "a row at a time", "sum_tiles": "32 rows at a time", "sum_atomic": "512 chunks, atomics",
        "sum_chunk": "512 chunks, two stages", "torch": "PyTorch's x.sum(0)"}


def backward(name: str, activation: str, dtype: str = "float32") -> pandas.Series:
    """The recorded backward of add_mul_activation at 65536 × 512. name: eager, torch.compile, triton or cuda."""
    return ADD_MUL_ACTIVATION.one("backward", implementation=name, activation=activation, dtype=dtype)


def add_relu_backward(name: str, dtype: str = "float32") -> pandas.Series:
    """The same of add_relu."""
    return ADD_RELU.one("backward", implementation=name, dtype=dtype)


def print_steps(predicted: Mapping[str, float] | None = None) -> None:
    """A line a step: µs, and the prediction beside it."""
    for step in STEPS:
        row = BACKWARD.one("step", step=step)
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
