"""What pointwise.json and the op's own record have of the lesson's kernels, printed; and the arithmetic beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernels.inductor.machine_code import opcodes, sass
from lessons.n08_triton_kernels.experiment import DTYPES, SHAPES
from lessons.shared.records import LANES, NO_RECORD, Record, copy_us, device, sms

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas

POINTWISE = Record("pointwise")
# What an SM of compute capability 9.0 computes in a clock, in lanes, by the CUDA C++ Programming Guide's table of
# arithmetic instructions. Whatever is not in the table, four schedulers issue it.
RATES = {"float32": 128, "integers": 64, "exp, 1/x": 16, "all, issued": 128}
KINDS = {name: "float32" for name in ("FFMA", "FMUL", "FADD")} | {"MUFU": "exp, 1/x"}
KINDS |= dict.fromkeys(("SHF", "PRMT", "LOP3", "FSETP", "FSEL", "ISETP", "IADD3", "LEA", "F2FP"), "integers")


def find(part: str, **labels) -> pandas.Series | None:
    """The one row of pointwise.json with these labels; None if it was not recorded yet."""
    try:
        return POINTWISE.one(part, **labels)
    except LookupError:
        return None


def show(what: str, part: str, here: tuple[float, float] | None = None, /, **labels) -> None:
    """A line: a launch's recorded µs, with an empty L2 and in a replay, and beside them those of this machine."""
    row = find(part, **labels)
    beside = "six lines" if labels.get("name") == "eager" else "eager"
    text = f"recorded {_shown(row)}" if row is not None else POINTWISE.elsewhere(part, beside=beside, **labels)
    print(f"{what:32} {text}" + (f"; here {here[0]:.1f} µs, replayed {here[1]:.1f}" if here else ""))


def _shown(row: pandas.Series) -> str:
    replayed = row.get("replay_us")
    known = replayed is not None and replayed == replayed  # rows without it have NaN there
    return f"{row['us_p50']:6.1f} µs" + (f", replayed {replayed:.1f}" if known else "")


def show_relu(name: str, shape: str, here: tuple[float, float] | None = None) -> None:
    """relu(x + bias) in float32."""
    show(name, "add_relu", here, name=name, shape=shape, dtype="float32")


def show_relus(shape: str, here: tuple[float, float] | None = None) -> None:
    """The six lines, with the times of this machine, and beside them those that are only recorded."""
    show_relu("six lines", shape, here)
    for name in ("eager", "torch.compile", "the op"):
        show_relu(name, shape)


def show_block(block: int, warps: int, here: tuple[float, float] | None = None) -> None:
    """The six lines with such a config."""
    what = f"BLOCK {block:4}, {warps} warp{'s' * (warps > 1)}, {block // (LANES * warps):2} a lane"
    show(what, "block", here, block=block, warps=warps)


def show_autotune() -> None:
    """What the first call and a later one cost, with one config and with all."""
    for name in ("one config", "autotuned"):
        try:
            record = POINTWISE.with_part("autotune", name=name)
        except LookupError:
            print(f"{name}: {NO_RECORD}")
            continue
        row, gpu = record.one("autotune", name=name), str(record.head("GPU")).removeprefix("NVIDIA ")
        origin = "recorded" if record is POINTWISE else f"not recorded on an H200; on an {gpu} it takes"
        kept = "" if name == "one config" else f"; kept: BLOCK {row['block']:.0f}, {row['warps']:.0f} warps"
        times = f"{row['ms_p50']:,.0f} ms for the first call, {row['call_us']:.1f} µs of Python for a later one"
        print(f"{name}: {origin} {times}{kept}")


def show_offsets() -> None:
    """The library's kernel with offsets in 32 bits and in 64: µs, and its instructions."""
    print(f"{'':24}" + "".join(f"{bits} bits: µs, instructions".rjust(28) for bits in (32, 64)))
    for shape, (rows, columns) in SHAPES.items():
        for dtype in DTYPES:
            steps = [find("step", name=name, shape=shape, dtype=dtype) for name in ("16 bytes a lane", "64-bit places")]
            cells = "".join(f"{row['us_p50']:14.1f}{row['instructions']:14.0f}" for row in steps)
            print(f"{rows} × {columns} {dtype:9}" + cells)


def bytes_us(dtype: str = "float32", shape: str = "even", tensors: int = 3) -> float:
    """µs of the bytes of so many tensors and a bias, at the rate of the copy."""
    rows, columns = SHAPES[shape]
    return copy_us((tensors * rows * columns + columns) * DTYPES[dtype].itemsize)


# ----------------------------------------------------------------------------------------------- instructions, by kind


def kinds(cubin: bytes, elements: int) -> dict[str, float]:
    """Instructions an element, by kind; elements: that a lane computes. {}: there is no nvdisasm here."""
    counts = dict.fromkeys(RATES, 0.0)
    lines = sass(cubin)
    for name, count in opcodes(lines).items() if lines else ():
        counts["all, issued"] += count / elements
        if name in KINDS:
            counts[KINDS[name]] += count / elements
    return counts if lines else {}


def kind_us(kind: str, an_element: float) -> float:
    """µs in which an H200, at its highest clock, computes so many instructions for each element of 65536 × 512."""
    rows, columns = SHAPES["even"]
    return an_element * rows * columns / (RATES[kind] * sms()) / device("max_sm_mhz")


def show_limits(cubins: Mapping[tuple[str, str], bytes], elements: int) -> None:
    """A line a form of gelu and dtype: µs as recorded, of its bytes, of each kind of instruction by itself, and where
    all programs take the same elements, on the GPU that has it. elements: that a lane computes."""
    same = POINTWISE.with_part("same")
    heads = "recorded", "bytes", *RATES, f"without the bytes, {same.head('GPU').split()[1]}"
    print(f"{'µs':24}" + "".join(f"{head:>{len(head) + 3}}" for head in heads))
    for (name, dtype), cubin in cubins.items():
        label, counts = {"name": name, "dtype": dtype}, kinds(cubin, elements)
        limits = [kind_us(kind, count) for kind, count in counts.items()] or [float("nan")] * len(RATES)
        us = POINTWISE.us("gelu", **label), bytes_us(dtype), *limits, same.us("same", **label)
        cells = "".join(f"{value:{len(head) + 3}.1f}" for head, value in zip(heads, us, strict=True))
        print(f"{name + ', ' + dtype:24}" + cells)
