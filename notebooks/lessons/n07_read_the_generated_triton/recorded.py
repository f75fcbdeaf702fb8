"""What generated.json has of the lesson's kernel, printed: its times by configs and by what is known of the sizes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kernels.inductor import split
from kernels.inductor.parse import function_of
from lessons.n07_read_the_generated_triton.experiment import Sizes
from lessons.n07_read_the_generated_triton.layer_variants import VARIANTS
from lessons.shared.records import LANES, Record, gb_per_s, spread

if TYPE_CHECKING:
    import pandas

GENERATED = Record("generated")
NO_RECORD = "No record of this yet: on a GPU `python -m lessons.n07_read_the_generated_triton --save` makes it."


def rows_of(variant: str = "literal", large: bool = True) -> int:
    """The rows of a variant's tensors, in the large size or the small one."""
    return VARIANTS[variant].shape(Sizes.large if large else Sizes.small)[0]


def configs(variant: str = "literal", large: bool = True) -> pandas.DataFrame:
    """Those that Inductor tried of a variant."""
    return GENERATED.rows("candidate", variant=variant, rows=rows_of(variant, large))


def kept(variant: str = "literal", large: bool = True) -> pandas.Series:
    """The config that Inductor's autotuner kept."""
    return GENERATED.one("candidate", variant=variant, rows=rows_of(variant, large), kept=True)


def way(name: str) -> pandas.Series:
    """The large size by "eager", "torch.compile" or "copy"."""
    labels = {"variant": "literal"} if name == "torch.compile" else {}
    return GENERATED.one(name, rows=rows_of(), **labels)


def scalar() -> pandas.Series:
    """The kept config of literal, with accesses of 4 bytes."""
    chosen = kept()
    return GENERATED.one("scalar", rows=rows_of(), XBLOCK=chosen["XBLOCK"], num_warps=chosen["num_warps"])


def an_element(row: pandas.Series) -> float:
    """Instructions for each element of the result."""
    return row["instructions"] * LANES * row["num_warps"] / row["XBLOCK"]


def widths(row: pandas.Series) -> str:
    """Bytes of a lane's reads, "16" or, the bias apart, "16, bias 4"."""
    sizes = sorted((int(size) for size in row["accesses"]["ld"]), reverse=True)
    return f"{sizes[0]}" if len(sizes) == 1 else f"{sizes[0]}, bias {sizes[-1]}"


def body(variant: str = "literal") -> list[str]:
    """The lines of the recorded kernel's function."""
    (kernel,) = split(GENERATED.head("sources")[variant])
    function = function_of(kernel.source)
    return kernel.source.splitlines()[function.lineno - 1 : function.end_lineno]


def causes(variant: str) -> tuple[bool, str, bool]:
    """What the recorded text shows: whether accesses have a mask, the remainder's divisor, whether x and y have
    `evict_last`."""
    text = "\n".join(body(variant))
    return "xmask)" in text, re.search(r"xindex % (\w+)", text)[1], text.count("evict_last") == 3


def shown(variant: str) -> str:
    """A variant's name, as the lesson has it."""
    return variant.replace("open", "dynamic")


def _head(record: Record) -> str:
    return f"Recorded, {record.head('GPU')}, torch {record.head('torch')}, {record.head('date')}:"


def show_times() -> None:
    """The large size by turns: eager, compiled, and PyTorch's copy of as many bytes. Then eager's operators."""
    print(_head(GENERATED))
    for name in ("eager", "torch.compile", "copy"):
        print(f"  {name:14}{spread(way(name), 6)} µs")
    show_operators()


def show_operators() -> None:
    """µs of each of eager's kernels by itself, and its rate; or that there is no record."""
    try:
        record = GENERATED.with_part("operators")
    except LookupError:
        print("  eager's operators: no record yet")
        return
    print(_head(record))
    for _, row in record.rows("operators").iterrows():
        print(f"  {row['name']:14}{spread(row, 6)} µs, {gb_per_s(row):,.0f} GB/s")


def show_configs(predicted: tuple[int, int] | None) -> None:
    """A line a config of literal; the kept one is marked, and the one that was predicted."""
    print(_head(GENERATED))
    print("  XBLOCK  warps  elements per lane  bytes per read  registers  autotuner's µs  µs by turns")
    for _, row in configs().iterrows():
        block, warps = row["XBLOCK"], row["num_warps"]
        marks = ["  your prediction"] * ((block, warps) == predicted) + ["  kept"] * bool(row["kept"])
        print(
            f"  {block:6.0f}  {warps:5.0f}  {block / LANES / warps:17.0f}  {widths(row):>14}  {row['registers']:9.0f}"
            f"  {row['inductor_us']:14.1f}  {spread(row)}" + "".join(marks)
        )


def show_sweep(predicted: tuple[int, int] | None = None) -> None:
    """µs by config, a line for each number of elements a lane, and a copy of as many bytes; or that there are none."""
    try:
        record = GENERATED.with_part("sweep")
    except LookupError:
        print(NO_RECORD)
        return
    print(_head(record))
    sweep = record.rows("sweep")
    for lane, rows in sweep[sweep["name"] == "fused"].groupby("elements_a_lane"):
        cells = []
        for _, row in rows.sort_values("num_warps").iterrows():
            mark = " (your prediction)" if (row["XBLOCK"], row["num_warps"]) == predicted else ""
            cells.append(f"{row['num_warps']:.0f} warps {row['us_p50']:,.1f} µs{mark}")
        print(f"  {lane:.0f} elements per lane: {', '.join(cells)}")
    print(f"  copy: {spread(sweep[sweep['name'] == 'copy'].iloc[0])} µs")


def show_mix() -> None:
    """GB/s of PyTorch's kernels by what they read and write, as many bytes each; or that there are none. They stand
    behind the operators, of the same record."""
    try:
        record = GENERATED.with_part("mix")
    except LookupError:
        print(NO_RECORD)
        return
    mix = record.rows("mix")
    print(f"  PyTorch's kernels that move {mix['bytes'].iloc[0] / 1e6:.0f} MB each:")
    for _, row in mix.iterrows():
        what = f"{row['reads']:.0f} tensor{'s' * (row['reads'] != 1)} read, {row['writes']:.0f} written"
        print(f"  {what:26}{spread(row, 6)} µs, {gb_per_s(row):,.0f} GB/s")


def show_sizes(predicted: dict[str, float | None]) -> None:
    """A line a variant: what was predicted, our time of the kept config, what its text shows, what its code is like."""
    print(_head(GENERATED))
    print(f"{'':18}predicted  {'µs':24}  mask  xindex %  evict_last  bytes per read  instructions")
    print(f"{'':71}{'of x and y':28}per element")
    for variant in VARIANTS:
        row, (mask, divisor, hint) = kept(variant), causes(variant)
        guess = predicted.get(shown(variant))
        yes = {True: "yes", False: "no"}
        print(
            f"  {shown(variant):15} {'' if guess is None else guess:>9}  {spread(row):24}  {yes[mask]:4}  {divisor:8}"
            f"  {yes[hint]:10}  {widths(row):14}  {an_element(row):.1f}"
        )
