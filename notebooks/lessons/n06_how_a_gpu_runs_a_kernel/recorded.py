"""What gpu.json has of latencies, copies, products and counters, and roofs made of it, printed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from lessons.n06_how_a_gpu_runs_a_kernel.experiment import LAUNCHED
from lessons.shared.occupancy import THREADS, programs_an_sm
from lessons.shared.records import ADD_RELU, GPU, gb_per_s, yardstick

if TYPE_CHECKING:
    import pandas


def latency_ns(level: str) -> float:
    """Of a read that hangs on the one before: level L1, L2 or HBM."""
    sizes = sorted(GPU.rows("latency")["size"])
    return GPU.one("latency", size=dict(zip(("L1", "L2", "HBM"), sizes, strict=True))[level])["ns_p50"]


def in_flight(row: pandas.Series) -> float:
    """KB that an SM's programs read at a time, of a row of the part flight: as many programs as were asked for, or, of
    one for each tile, as there is room for."""
    return resident(row) * 4 * row["block"] / 1e3


def resident(row: pandas.Series) -> int:
    room = programs_an_sm(int(row["threads"]), int(row["registers"]))
    return min(int(row["programs"]) or room, room)


def occupancy(row: pandas.Series) -> float:
    """Percent of the warps that an SM has room for."""
    return 100 * resident(row) * row["threads"] / THREADS


def pointwise() -> pandas.Series:
    """add_relu in float32, our Triton kernel's: an addition and a comparison a number."""
    return ADD_RELU.one("bandwidth", implementation="triton", form="functional", dtype="float32", rows=65536)


def roof(precision: str) -> float:
    """TFLOP/s of the fastest product, as the fastest fifth of its runs has it."""
    return max(row["flops"] / row["us_p20"] / 1e6 for _, row in GPU.rows("product", precision=precision).iterrows())


def bound(row: pandas.Series) -> float:
    """TFLOP/s that the roofline allows a product."""
    return min(intensity(row) * yardstick(), roof(row["precision"]))


def ridge(precision: str) -> float:
    """FLOP a byte from which on a kernel can reach the roof."""
    return roof(precision) / yardstick()


def intensity(row: pandas.Series) -> float:
    return row["flops"] / row["bytes"]


def print_programs(predicted: int | None = None) -> None:
    """A line a BLOCK, of copies with a program for each tile: registers, programs, warps, bytes in flight, GB/s; the
    fastest is marked, and the one that was said to be it."""
    print("BLOCK  programs  registers  programs an SM  occupancy  KB in flight, at most  GB/s")
    found = [row for _, row in GPU.rows("flight", programs=0).sort_values("block").iterrows()]
    fastest = max(found, key=gb_per_s)
    for row in found:
        marks = ["  you said"] * (row["block"] == predicted) + ["  the fastest"] * (row is fastest)
        print(
            f"{row['block']:5.0f}  {row['bytes'] / 8 / row['block']:8,.0f}"
            f"  {row['registers']:9.0f}  {resident(row):14}  {occupancy(row):7.0f} %"
            f"  {in_flight(row):21.1f}  {gb_per_s(row):5,.0f}" + "".join(marks)
        )


def print_ncu(*wanted: str) -> None:
    """Of what ncu printed: the first line of each kernel, and those that hold one of these words."""
    found = GPU.head("ncu")
    names = iter(LAUNCHED)
    for line in found["lines"]:
        if "_kernel (" in line:
            print(f"{line.strip().partition(', Context')[0]}, {next(names)}")
        elif any(word in line for word in wanted):
            print(re.sub(" {4,}", "    ", line))


def ncu_read(launched: str) -> float:
    """GB that the memory read, by ncu, in the launch of this name."""
    found = [line.split() for line in GPU.head("ncu", "lines") if "dram__bytes_read.sum " in line]
    _, unit, value = found[LAUNCHED.index(launched)]
    return float(value) * {"Kbyte": 1e-6, "Mbyte": 1e-3, "Gbyte": 1.0}[unit]
