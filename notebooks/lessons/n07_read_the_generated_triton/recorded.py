"""What generated.json has of the lesson's kernel: its text, machine code and times, printed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kernels.inductor import split
from kernels.inductor.parse import function_of
from lessons.n07_read_the_generated_triton.experiment import Sizes
from lessons.n07_read_the_generated_triton.layer_variants import VARIANTS
from lessons.shared.records import LANES, Record, spread

if TYPE_CHECKING:
    import pandas

GENERATED = Record("generated")
SHOWN = ("literal", "rows open", "columns open", "both open", "511 columns", "an odd size")


def rows_of(variant: str = "literal", large: bool = True) -> int:
    """The rows of a variant's tensors, in the large size or the small one."""
    return VARIANTS[variant].shape(Sizes.large if large else Sizes.small)[0]


def candidates(large: bool = True) -> pandas.DataFrame:
    """Those of literal."""
    return GENERATED.rows("candidate", variant="literal", rows=rows_of(large=large))


def kept(variant: str = "literal", large: bool = True) -> pandas.Series:
    """The candidate that Inductor kept."""
    return GENERATED.one("candidate", variant=variant, rows=rows_of(variant, large), kept=True)


def scalar() -> pandas.Series:
    """The kept candidate of literal, with accesses of 4 bytes."""
    chosen = kept()
    return GENERATED.one("scalar", rows=rows_of(), XBLOCK=chosen["XBLOCK"], num_warps=chosen["num_warps"])


def a_number(row: pandas.Series) -> float:
    """Instructions for each number of the result."""
    return row["instructions"] * LANES * row["num_warps"] / row["XBLOCK"]


def widths(row: pandas.Series) -> str:
    """Bytes of a lane's reads, "16" or, the bias apart, "16, bias 4"."""
    found = sorted((int(each) for each in row["accesses"]["ld"]), reverse=True)
    return f"{found[0]}" if len(found) == 1 else f"{found[0]}, bias {found[-1]}"


def where() -> str:
    """Which machine and versions wrote what is shown."""
    found = GENERATED.table().attrs
    return f"recorded on {found['GPU']}, torch {found['torch']}, triton {found['triton']}"


def body(variant: str = "literal") -> list[str]:
    """The lines of the recorded kernel's function."""
    (kernel,) = split(GENERATED.head("sources")[variant])
    function = function_of(kernel.source)
    return kernel.source.splitlines()[function.lineno - 1 : function.end_lineno]


def print_kernel(variant: str = "literal") -> None:
    print(f"# {where()}", *body(variant), sep="\n")


def print_call() -> None:
    """What `call` does: it allocates, and launches."""
    lines = GENERATED.head("sources")["literal"].splitlines()
    for line in lines:
        if re.match(r"\s+(buf0 = |triton_poi\w+\.run)", line):
            print(line.strip())


def print_changes(*variants: str) -> None:
    """The lines of each that `literal` does not have (- and +), without the function's head; of the loads the first."""
    known = _lines("literal")
    for variant in variants:
        lines = _lines(variant)
        print(f"{variant}:")
        print(*(f"  - {line}" for line in known if line not in lines), sep="\n")
        print(*(f"  + {line}" for line in lines if line not in known), sep="\n")


def _lines(variant: str) -> list[str]:
    """The lines of its function, without the head, the loads after the first, and the store."""
    return [line.strip() for line in body(variant)[1:] if not re.search(r"in_ptr[12] |tl\.store", line)]


def print_candidates(predicted: tuple[int, int]) -> None:
    """A line a candidate of literal; the kept one is marked, and the one that was said to be it."""
    print("XBLOCK  warps  numbers a lane  bytes a read  registers  Inductor's µs  ours, µs")
    for _, row in candidates().iterrows():
        block, warps = row["XBLOCK"], row["num_warps"]
        marks = ["  you said"] * ((block, warps) == predicted) + ["  kept"] * bool(row["kept"])
        print(
            f"{block:6.0f}  {warps:5.0f}  {block / LANES / warps:14.0f}  {widths(row):>12}  {row['registers']:9.0f}"
            f"  {row['inductor_us']:13.1f}  {spread(row, 7)}" + "".join(marks)
        )


def print_code() -> None:
    """Of the kept kernel: PTX's accesses to memory, and how many of each SASS instruction there are."""
    print("PTX:")
    for line in GENERATED.head("ptx").splitlines():
        if re.search(r"\b(ld|st)\.global", line):
            print("  " + re.sub(r"\s+", " ", line).strip())
    print("SASS:")
    for line in GENERATED.head("sass"):
        if re.search(r"\b(LDG|STG)\b", line):
            print("  " + line)
    print("all:", ", ".join(f"{count} {name}" for name, count in kept()["opcodes"].items() if count > 1))


def print_sizes(predicted: dict[str, float]) -> None:
    """A line a variant: what was said, the autotuner's time of what it kept, ours, and what the code is like."""
    print(f"{'':14}  you said  autotuner's µs  ours, µs              bytes a read  instructions a number")
    for variant in SHOWN:
        row = kept(variant)
        guess = f"{predicted[variant]:8.0f}" if variant in predicted else " " * 8
        code = f"{widths(row):>12}  {a_number(row):6.1f}"
        print(f"{variant:14}  {guess}  {row['inductor_us']:14.1f}  {spread(row, 7):22}  {code}")
