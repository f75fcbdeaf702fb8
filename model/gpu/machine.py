"""The arithmetic of a GPU's memory: sectors, programs an SM, bytes in flight, roofs; and what gpu.json has of each.

The limits are those of compute capability 9.0 (H100, H200):
https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/compute-capabilities.html
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kernels.measure.records import load, recorded
from model.gpu.record import LAUNCHED, NAME, PER_SM, TILE, WARPS  # noqa: F401
from model.lookups.reads import SECTOR

if TYPE_CHECKING:
    import pandas

SMS = 132  # of an H200
LANES = 32  # of a warp
THREADS, REGISTERS, PROGRAMS = 2048, 65536, 32  # that an SM has room for
GRANULE = 8  # a thread's registers are given out by eights


def sectors(addresses: list[int]) -> int:
    """How many sectors a warp's reads of four bytes each touch; an address is a byte's, and a multiple of four."""
    return len({address // SECTOR for address in addresses})


def programs_an_sm(threads: int, registers: int) -> int:
    """How many programs of so many threads, each with so many registers, an SM has room for."""
    taken = -(-registers // GRANULE) * GRANULE
    return min(THREADS // threads, REGISTERS // (threads * taken), PROGRAMS)


def copy_rate(programs: int, block: int, latency_ns: float, limit: float) -> float:
    """GB/s of a copy by Little's law, at most `limit`: SMS · programs · block float32 are read in each latency, and as
    many bytes are written."""
    return min(limit, 2 * SMS * programs * 4 * block / latency_ns)


# ------------------------------------------------------------------------------------------------- from the record


def rows(part: str, **labels) -> pandas.DataFrame:
    """The recorded rows of a part that have these labels. FileNotFoundError: there is none."""
    found = recorded(NAME)
    found = found[found["part"] == part]
    for name, value in labels.items():
        found = found[found[name] == value] if name in found else found[:0]
    if not len(found):
        raise FileNotFoundError(f"{part}, {labels}: no row")
    return found


def one(part: str, **labels) -> pandas.Series:
    found = rows(part, **labels)
    assert len(found) == 1, f"{part}, {labels}: {len(found)} rows"
    return found.iloc[0]


def gb_per_s(row: pandas.Series) -> float:
    return row["bytes"] / row["us_p50"] / 1e3


def tflop_per_s(row: pandas.Series) -> float:
    return row["flops"] / row["us_p50"] / 1e6


def copy_limit() -> float:
    """GB/s of the copy that is the lecture's yardstick."""
    return 1e3 * load("add_relu")["copy_tb_per_s"]["limit"]


def read_limit() -> float:
    """GB/s at which a buffer that no cache holds is read."""
    return gb_per_s(max((row for _, row in rows("reread").iterrows()), key=lambda row: row["size"]))


def from_l2(size: int = 2**23) -> float:
    """TB/s of a buffer of this size, read again and again past the L1; NaN: not recorded."""
    try:
        return gb_per_s(one("reread", size=size, cache="L2")) / 1e3
    except FileNotFoundError:
        return float("nan")


def latency_ns(level: str) -> float:
    """Of a read that hangs on the one before: level L1, L2 or HBM."""
    sizes = sorted(rows("latency")["size"])
    return one("latency", size=dict(zip(("L1", "L2", "HBM"), sizes, strict=True))[level])["ns_p50"]


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
    found = recorded("add_relu")
    labels = {"implementation": "triton", "part": "bandwidth", "form": "functional", "dtype": "float32"}
    for name, value in labels.items():
        found = found[found[name] == value]
    return found.iloc[0]


def roof(precision: str) -> float:
    """TFLOP/s of the fastest product, as the fastest fifth of its runs has it."""
    return max(row["flops"] / row["us_p20"] / 1e6 for _, row in rows("product", precision=precision).iterrows())


def bound(row: pandas.Series) -> float:
    """TFLOP/s that the roofline allows a product."""
    return min(intensity(row) * copy_limit() / 1e3, roof(row["precision"]))


def ridge(precision: str) -> float:
    """FLOP a byte from which on a kernel can reach the roof."""
    return 1e3 * roof(precision) / copy_limit()


def intensity(row: pandas.Series) -> float:
    return row["flops"] / row["bytes"]


def print_programs(predicted: int | None = None) -> None:
    """A line a BLOCK, of copies with a program for each tile: registers, programs, warps, bytes in flight, GB/s; the
    fastest is marked, and the one that was said to be it."""
    print("BLOCK  programs  registers  programs an SM  occupancy  KB in flight, at most  GB/s")
    found = [row for _, row in rows("flight", programs=0).sort_values("block").iterrows()]
    fastest = max(found, key=gb_per_s)
    for row in found:
        marks = ["  you said"] * (row["block"] == predicted) + ["  the fastest"] * (row is fastest)
        print(
            f"{row['block']:5.0f}  {row['bytes'] / 8 / row['block']:8,.0f}"
            f"  {row['registers']:9.0f}  {resident(row):14}  {occupancy(row):7.0f} %"
            f"  {in_flight(row):21.1f}  {gb_per_s(row):5,.0f}" + "".join(marks)
        )


def device(name: str) -> int:
    """What CUDA says of the device: L2_cache_size, total_memory, … FileNotFoundError: nothing is recorded."""
    return load(NAME)["device"][name]


def print_ncu(*wanted: str) -> None:
    """Of what ncu printed: the first line of each kernel, and those that hold one of these words."""
    found = load(NAME)["ncu"]
    names = iter(LAUNCHED)
    for line in found["lines"] or [found["why"]]:
        if "_kernel (" in line:
            print(f"{line.strip().partition(', Context')[0]}, {next(names)}")
        elif any(word in line for word in wanted) or not found["lines"]:
            print(re.sub(" {4,}", "    ", line))


def ncu_read(launched: str) -> float:
    """GB that the memory read, by ncu, in the launch of this name; NaN: it measured nothing."""
    found = [line.split() for line in load(NAME)["ncu"]["lines"] if "dram__bytes_read.sum " in line]
    if not found:
        return float("nan")
    _, unit, value = found[LAUNCHED.index(launched)]
    return float(value) * {"Kbyte": 1e-6, "Mbyte": 1e-3, "Gbyte": 1.0}[unit]
