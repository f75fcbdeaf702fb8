"""What generated.json has of the lesson's kernel: its times by config and by what is known of the sizes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kernels.inductor import split
from kernels.inductor.parse import function_of
from lessons.n07_read_the_generated_triton.experiment import Sizes
from lessons.n07_read_the_generated_triton.layer_variants import VARIANTS
from lessons.shared.records import LANES, Record

if TYPE_CHECKING:
    import pandas

GENERATED = Record("generated")


def kept(variant: str = "literal", record: Record = GENERATED) -> pandas.Series:
    """The config that Inductor's autotuner kept of a variant."""
    return _config(variant, True, record)


def other(variant: str, record: Record = GENERATED) -> pandas.Series:
    """The config that it did not keep."""
    return _config(variant, False, record)


def _config(variant: str, was_kept: bool, record: Record) -> pandas.Series:
    rows = VARIANTS[variant].shape(Sizes.rows)[0]
    return record.one("candidate", variant=variant, rows=rows, kept=was_kept)


def way(name: str) -> pandas.Series:
    """"eager", "torch.compile", or "copy", of as many bytes as the generated kernel moves."""
    labels = {"variant": "literal"} if name == "torch.compile" else {}
    return GENERATED.one(name, rows=Sizes.rows, **labels)


def scalar() -> pandas.Series:
    """The kept config of literal, with accesses of 4 bytes."""
    chosen = kept()
    return GENERATED.one("scalar", rows=Sizes.rows, XBLOCK=chosen["XBLOCK"], num_warps=chosen["num_warps"])


def an_element(row: pandas.Series) -> float:
    """Instructions in the code, whether they run or not, for each of a lane's elements."""
    return row["instructions"] * LANES * row["num_warps"] / row["XBLOCK"]


def widths(row: pandas.Series) -> str:
    """Bytes of a lane's reads, "16" or, the bias apart, "16, bias 4"."""
    sizes = sorted((int(size) for size in row["accesses"]["ld"]), reverse=True)
    return f"{sizes[0]}" if len(sizes) == 1 else f"{sizes[0]}, bias {sizes[-1]}"


def causes(variant: str) -> tuple[bool, str]:
    """What the recorded source shows: whether accesses have a mask, and the remainder's divisor."""
    (kernel,) = split(GENERATED.head("sources")[variant])
    function = function_of(kernel.source)
    text = "\n".join(kernel.source.splitlines()[function.lineno - 1 : function.end_lineno])
    return "xmask)" in text, re.search(r"xindex % (\w+)", text)[1]


def sizes(predicted: dict[str, float | None]) -> pandas.DataFrame:
    """A row a variant: both configs' times, what the kept one's source shows, and what its machine code is like."""
    import pandas

    rows = {}
    for variant in VARIANTS:
        row, (mask, divisor) = kept(variant), causes(variant)
        name = variant.replace("open", "dynamic")  # the lesson's word
        rows[name] = {
            "predicted": predicted.get(name) or "", "kept": f"({row['XBLOCK']:.0f}, {row['num_warps']:.0f})",
            "its time": _time(row), "the other's": _time(other(variant)), "mask": "yes" if mask else "no",
            "xindex %": divisor, "bytes per read": widths(row), "instructions": f"{an_element(row):.1f}",
        }
    return pandas.DataFrame.from_dict(rows, orient="index")


def _time(row: pandas.Series) -> str:
    return f"{row['us_p50']:.1f} µs ({row['us_p20']:.1f} to {row['us_p80']:.1f})"
