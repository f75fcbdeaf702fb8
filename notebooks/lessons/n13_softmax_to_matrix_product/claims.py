"""13: softmax's record, and that of `python -m lessons.n13_softmax_to_matrix_product --save`."""

from __future__ import annotations

import itertools

import torch

from lessons.n13_softmax_to_matrix_product import arithmetic, recorded
from lessons.n13_softmax_to_matrix_product.experiment import LAYERS, Sizes
from lessons.n13_softmax_to_matrix_product.launch import GROUPED, IN_PARTS, STEPS, TUNED
from lessons.shared.claim import claim
from lessons.shared.records import BF16, FLOAT32, Record, apart, copy_us, device, l2_tb_per_s, tflop_per_s, yardstick

NOTEBOOK = "13"
BATCH = 65536


def p50(row) -> float:
    return row["us_p50"]


def _softmax() -> tuple:
    """µs of eager in float32; in bfloat16 of Triton, eager and torch.compile."""
    (eager, triton), halves = (
        [p50(recorded.softmax(name, 65536, 512, dtype)) for name in ("eager", "triton")]
        for dtype in ("float32", "bfloat16")
    )
    assert triton < eager < 1.1 * triton
    assert halves[1] < halves[0] / 1.5
    compiled = p50(recorded.softmax("torch.compile", 65536, 512, "bfloat16"))
    assert 1.03 * halves[1] < compiled < halves[0] / 1.4
    return eager, *reversed(halves), compiled


def _we_lose() -> tuple:
    names = "triton", "torch.compile", "eager", "cuda"
    triton, compiled, eager, cuda = (p50(recorded.softmax(name, 512, 50257)) for name in names)
    assert cuda < eager < min(triton, compiled)
    return triton, compiled, eager, cuda


def _two_passes() -> tuple:
    """µs that a copy takes for two reads and a write of 512 rows of 50257."""
    copied = copy_us(3 * 512 * 50257 * 4)
    triton, _, _, cuda = _we_lose()
    assert copied < cuda < 1.05 * copied < triton / 1.4
    return (copied,)


def _matrices() -> tuple:
    return (2 * arithmetic.SQUARE**2 * 2 / 1e6,)


def _strips() -> tuple:
    grouped, plain = (sum(arithmetic.strips(arithmetic.place, 64, 64, group)) for group in (8, 1))
    return grouped, plain


def _epilogue() -> tuple:
    both = [recorded.PRODUCTS.one("epilogue", name="grouped", with_epilogue=which) for which in (True, False)]
    assert not apart(*both)
    return tuple(map(p50, both))


def _relu_apart() -> tuple:
    return (p50(recorded.step("addmm, relu")) - p50(recorded.step("fused")),)


def _epilogues_registers() -> tuple:
    registers = {
        which: recorded.PRODUCTS.one("epilogue", name="persistent", with_epilogue=which)["registers"]
        for which in (True, False)
    }
    return (registers[True] - registers[False],)


def _exact() -> tuple:
    fp32, tf32, bf16 = (recorded.PRODUCTS.one("exact", precision=name)["error"] for name in ("fp32", "tf32", "bf16"))
    assert fp32 < tf32 < bf16
    return ()


def _first_steps() -> tuple:
    times = [p50(recorded.step(name)) for name in ("naive", "tiles", "tensor cores", "stages")]
    assert all(later < before for before, later in itertools.pairwise(times)), times
    library = Record("step_time").us("product", rows=arithmetic.SQUARE, precision="fp32")
    every = [p50(recorded.step(name)) for name in (*STEPS, TUNED)]
    gains = [before / later for before, later in itertools.pairwise(every)]
    assert max(gains) == times[1] / times[2]
    reached = 2 * arithmetic.SQUARE**3 / (1e-6 * times[1]) / FLOAT32
    return times[1], times[2], library, library / times[2], 100 * reached


def _caches() -> tuple:
    gb, takes = arithmetic.read_gb(1, 1), p50(recorded.step("naive")) / 1e3  # GB and ms
    at_copy = copy_us(1e9 * gb) / 1e3
    assert takes < at_copy / 2  # memory can have given less than half
    return gb, at_copy, takes


def _larger() -> tuple:
    assert p50(recorded.step("larger tiles")) < p50(recorded.step("stages"))
    assert p50(recorded.step("grouped")) > 0.99 * p50(recorded.step("larger tiles"))
    tiles = arithmetic.SQUARE // GROUPED.rows
    return tuple(sum(arithmetic.strips(arithmetic.place, tiles, tiles, group)) for group in (8, 1))


def _order() -> tuple:
    plain, grouped = (recorded.PRODUCTS.one("order", group=group) for group in (1, 8))
    assert not apart(plain, grouped)
    size = 8192
    tiles = (size // GROUPED.rows) ** 2
    strip = GROUPED.rows * size * 2  # bytes, in bfloat16
    gb = sum(arithmetic.strips(arithmetic.place, 64, 64, 1)) * strip * tiles / arithmetic.resident() / 1e9
    ms = copy_us(1e9 * gb) / 1e3
    assert ms * 1e3 < p50(grouped) / 3
    return p50(plain) / 1e3, ms


def _from_the_l2() -> tuple:
    """GB that the programs load at 8192³, the L2's TB/s, and the ms that this takes: the product's."""
    gb, rate = arithmetic.read_gb(GROUPED.rows, GROUPED.columns, size=8192), l2_tb_per_s()
    assert abs(1e3 * gb / rate / p50(recorded.PRODUCTS.one("order", group=1)) - 1) < 0.03
    return gb, rate, gb / rate


def _law() -> tuple:
    """The least and the most TB/s that the tiles of a step load, from `stages` on."""
    names = list(STEPS)
    steps = {name: STEPS[name] for name in names[names.index("stages") :]} | {IN_PARTS: STEPS["descriptors"]}
    loads = {name: arithmetic.read_gb(step.rows, step.columns) for name, step in steps.items()}
    rates = [1e3 * gb / p50(recorded.step(name)) for name, gb in loads.items()]
    assert abs(loads["wider tiles"] / loads["descriptors"] - 0.75) < 1e-9
    return min(rates), max(rates)


def _descriptors() -> tuple:
    descriptors, grouped, parts = (recorded.step(name) for name in ("descriptors", "grouped", IN_PARTS))
    assert p50(descriptors) > p50(grouped) > p50(parts)
    later = [p50(recorded.step(name)) for name in ("wider tiles", "persistent")]
    assert p50(grouped) > later[0] > later[1]
    room, own = 228 * 1024, 1024  # of an SM; what the system takes of it for each program
    assert 2 * (max(grouped["shared"], parts["shared"]) + own) <= room < 2 * (descriptors["shared"] + own)
    assert room < 2 * (recorded.step("wider tiles")["shared"] + own)
    return p50(parts), p50(descriptors)


def _tuned() -> tuple:
    return (p50(recorded.step(TUNED)) / p50(recorded.step("fused")),)


def _pair(name: str) -> tuple:
    return p50(recorded.layer(name, TUNED, BATCH)), p50(recorded.layer(name, "fused", BATCH))


def _filled_up() -> tuple:
    plain, padded, filled = (_pair(name) for name in ("top 1", "top 1 padded", "top 1 filled up"))
    assert padded[0] < 1.03 * filled[0] < plain[0]
    assert filled[1] < plain[1] < padded[1]
    return ()


def _flattered() -> tuple:
    """How much longer ours takes than cuBLAS does of rows that are filled up, at most."""
    ratios = [
        p50(recorded.layer("top 1", TUNED, batch)) / p50(recorded.layer("top 1 filled up", "fused", batch))
        for batch in Sizes().batches
    ]
    assert min(ratios) > 2
    return (max(ratios),)


def _of_the_data_sheet() -> tuple:
    return (100 * tflop_per_s(recorded.step(TUNED)) * 1e12 / BF16,)


def _no_overlap() -> tuple:
    """µs of the bytes and of the products, which together are nearly the time."""
    row = recorded.layer("top 1 padded", TUNED, BATCH)
    moving, multiplying = copy_us(row["bytes"]), 1e6 * row["flops"] / BF16
    assert 0.9 * row["us_p50"] < moving + multiplying < row["us_p50"]
    return moving, multiplying


def _nothing_ahead() -> tuple:
    """Shared memory has one place for the two tiles of a step, where copies ahead would need one a stage."""
    for batch in Sizes().batches:
        row, config = recorded.layer("top 1", TUNED, batch), GROUPED
        assert row["config"] == str(config)
        assert config.stages > 1
        assert row["shared"] == (config.rows + config.columns) * config.step * torch.bfloat16.itemsize
    return ()


def _range() -> tuple:
    ratios = [
        p50(recorded.layer(name, TUNED, batch)) / p50(recorded.layer(name, "fused", batch))
        for name in LAYERS
        if name != "top 1 padded"  # where cuBLAS is slow by its rows' number of columns
        for batch in Sizes().batches
    ]
    return min(ratios), max(ratios)


def _banks() -> tuple:
    unpadded, padded = (p50(recorded.PRODUCTS.one("banks", apart=distance)) for distance in (32, 33))
    return (unpadded / padded,)


def said(sentence: str, values=tuple) -> None:
    claim(NOTEBOOK, sentence, values)


said("a copy moves {:.2f} TB/s, reads and writes together.", lambda: (yardstick(),))
said(
    "Eager takes {:.1f} µs, only a little longer than our kernel. In bfloat16 our kernel takes {:.1f} µs, eager "
    "{:.1f} µs and `torch.compile` {:.1f} µs: there a fused kernel pays, whoever writes it.",
    _softmax,
)
said(
    "| 512 rows of 50257, float32 | µs | |---|---| | our Triton kernel | {:.1f} | | `torch.compile` | {:.1f} | "
    "| eager | {:.1f} | | our CUDA kernel | {:.1f} |",
    _we_lose,
)
said("A copy of so many bytes takes {:.1f} µs. So memory limits the CUDA kernel,", _two_passes)
said("x and the weight together are {:.0f} MB.", _matrices)
said(
    "each of the {:.0f} SMs has room for two programs, so {:.0f} run at first.",
    lambda: (device("multi_processor_count"), arithmetic.resident()),
)
said("In groups, the first programs at 8192³ need {:.0f} strips instead of {:.0f}.", _strips)
said(
    "At 4096³ the kernel `grouped` of section 6 takes {:.1f} µs with it and {:.1f} µs without. The difference is too "
    "small to count",
    _epilogue,
)
said("In a kernel of its own, as in `addmm, relu` below, relu costs cuBLAS {:.1f} µs.", _relu_apart)
said("tf32 and bf16 round the inputs, and bf16 rounds the stored result too.", _exact)
said(
    "Tensor cores gain most: {:,.0f} µs become {:.0f} µs. But without them, in float32, cuBLAS takes {:,.0f} "
    "µs. So tensor cores give a factor of {:.1f}, and the rest of the gain is that `tiles` is slow: it reaches {:.0f} "
    "% of what the float32 units can do.",
    _first_steps,
)
said(
    "`naive` loads {:.0f} GB. From memory, at the copy's rate, that would take {:.0f} ms. `naive` takes {:.0f} ms, so "
    "most of these bytes come from the caches.",
    _caches,
)
said(
    "At 4096³ groups gain nothing. There the first programs even need more strips: {:.0f} in groups, {:.0f} row by "
    "row.",
    _larger,
)
said(
    "At 8192³ groups need fewer strips, and still gain nothing. The product takes {:.2f} ms row by row, and a copy "
    "would move all its strips in {:.2f} ms. So the memory behind the L2 is not what limits it.",
    _order,
)
said(
    "its programs load {:.1f} GB in all. At the {:.1f} TB/s that notebook 06 got from the L2, this takes {:.2f} ms: as "
    "long as the product.",
    _from_the_l2,
)
said(
    "From `stages` on, what the tiles load, divided by the time, is {:.1f} to {:.1f} TB/s at 4096³.",
    _law,
)
said(
    "Descriptors lose at first. They take extra shared memory for the tile of out, so an SM has room for only one "
    "program. If the tile is stored in two parts, two programs fit again, and the product takes {:.1f} µs instead of "
    "{:.1f} µs. `wider tiles` has room for only one program, too, but its tiles load three quarters of the bytes.",
    _descriptors,
)
said(
    "Bias and relu add {:.0f}.",
    _epilogues_registers,
)
said(
    "The tuned kernel takes {:.2f} times as long as `cuBLAS fused`, which also has bias and relu in its kernel.",
    _tuned,
)
said(
    "our kernel gains as much from `padded` as from `filled up`. cuBLAS needs the extra column, and gains nothing from "
    "`padded`.",
    _filled_up,
)
said("no descriptor can be made, each number is loaded alone, and nothing is copied ahead.", _nothing_ahead)
said("In all lines but `padded`, our kernel takes {:.2f} to {:.2f} times as long as `cuBLAS fused`.", _range)
said(
    "On `top 1` our 0.63 is no win: give cuBLAS the extra column, and it is up to {:.1f} times as fast as our kernel "
    "without it.",
    _flattered,
)
said("tensor cores, at {:.0f} % of the data sheet's rate", _of_the_data_sheet)
said("its bytes, {:.0f} µs, and its products, {:.0f} µs, which hardly overlap", _no_overlap)
said(
    "At 2048³ the kernel is then {:.1f} times as fast. Why not 32 times?",
    _banks,
)
