"""13: softmax's record, and that of `python -m lessons.n13_softmax_to_matrix_product --save`."""

from __future__ import annotations

import itertools

import torch

from lessons.n13_softmax_to_matrix_product import arithmetic, recorded
from lessons.n13_softmax_to_matrix_product.experiment import LAYERS, Sizes
from lessons.n13_softmax_to_matrix_product.launch import GROUPED, IN_PARTS, STEPS, TUNED
from lessons.shared.claim import claim
from lessons.shared.records import BF16, LEAST, Record, apart, copy_us, tflop_per_s, yardstick

NOTEBOOK = "13"
BATCH = 65536


def p50(row) -> float:
    return row["us_p50"]


def _bytes() -> tuple:
    return 65536 * 512 * 4 / 1e6, yardstick()


def _softmax() -> tuple:
    found = [p50(recorded.softmax(name, 65536, 512)) for name in ("eager", "triton")]
    assert found[1] < found[0]
    return tuple(found)


def _halves() -> tuple:
    return tuple(p50(recorded.softmax(name, 65536, 512, "bfloat16")) for name in ("eager", "triton"))


def _we_lose() -> tuple:
    names = "triton", "torch.compile", "eager", "cuda"
    triton, compiled, eager, cuda = (p50(recorded.softmax(name, 512, 50257)) for name in names)
    assert cuda < eager < min(triton, compiled)
    return triton, compiled, eager, cuda


def _matrices() -> tuple:
    return (2 * arithmetic.SQUARE**2 * 2 / 1e6,)


def _strips() -> tuple:
    grouped, plain = (sum(arithmetic.strips(arithmetic.place, 64, 64, group)) for group in (8, 1))
    return grouped, plain


def _epilogue() -> tuple:
    both = [recorded.PRODUCTS.one("epilogue", name="grouped", with_epilogue=which) for which in (True, False)]
    assert not apart(*both)
    return *map(p50, both), 100 * (LEAST - 1)


def _exact() -> tuple:
    fp32, tf32, bf16 = (recorded.PRODUCTS.one("exact", precision=name)["error"] for name in ("fp32", "tf32", "bf16"))
    assert fp32 < tf32 < bf16
    return tf32, bf16, fp32


def _first_steps() -> tuple:
    found = [p50(recorded.step(name)) for name in ("naive", "tiles", "tensor cores", "stages")]
    assert all(later < before for before, later in itertools.pairwise(found)), found
    library = Record("step_time").us("product", rows=arithmetic.SQUARE, precision="fp32")
    every = [p50(recorded.step(name)) for name in (*STEPS, TUNED)]
    gains = [before / later for before, later in itertools.pairwise(every)]
    assert max(gains) == found[1] / found[2]
    return found[1], found[2], library


def _caches() -> tuple:
    gb, takes = arithmetic.read_gb(1, 1), p50(recorded.step("naive")) / 1e3  # GB and ms
    at_copy = copy_us(1e9 * gb) / 1e3
    assert takes < at_copy / 2  # memory can have given less than half
    return gb, at_copy, takes


def _larger() -> tuple:
    assert p50(recorded.step("larger tiles")) < p50(recorded.step("stages"))
    assert p50(recorded.step("grouped")) > 0.99 * p50(recorded.step("larger tiles"))
    tiles = arithmetic.SQUARE // GROUPED.rows
    strips = (sum(arithmetic.strips(arithmetic.place, tiles, tiles, group)) for group in (8, 1))
    return p50(recorded.step("larger tiles")), p50(recorded.step("grouped")), *strips


def _order() -> tuple:
    plain, grouped = (recorded.PRODUCTS.one("order", group=group) for group in (1, 8))
    assert not apart(plain, grouped)
    size = 8192
    tiles = (size // GROUPED.rows) ** 2
    strip = GROUPED.rows * size * 2  # bytes, in bfloat16
    gb = sum(arithmetic.strips(arithmetic.place, 64, 64, 1)) * strip * tiles / arithmetic.resident() / 1e9
    ms = copy_us(1e9 * gb) / 1e3
    assert ms * 1e3 < p50(grouped) / 3
    return p50(plain), p50(grouped), gb, ms, p50(plain) / 1e3


def _descriptors() -> tuple:
    descriptors, grouped, parts = (recorded.step(name) for name in ("descriptors", "grouped", IN_PARTS))
    assert p50(descriptors) > p50(grouped) > p50(parts)
    later = [p50(recorded.step(name)) for name in ("wider tiles", "persistent")]
    assert p50(grouped) > later[0] > later[1]
    room, own = 228 * 1024, 1024  # of an SM; what the system takes of it for each program
    assert 2 * (max(grouped["shared"], parts["shared"]) + own) <= room < 2 * (descriptors["shared"] + own)
    return p50(descriptors), *(row["shared"] / 1024 for row in (descriptors, grouped, parts)), p50(parts)


def _tuned() -> tuple:
    return (p50(recorded.step(TUNED)) / p50(recorded.step("fused")),)


def _pair(name: str) -> tuple:
    return p50(recorded.layer(name, TUNED, BATCH)), p50(recorded.layer(name, "fused", BATCH))


def _filled_up() -> tuple:
    plain, padded, filled = (_pair(name) for name in ("top 1", "top 1 padded", "top 1 filled up"))
    assert padded[0] < 1.1 * filled[0]
    assert filled[1] < padded[1] / 3
    return plain[0], padded[0], plain[1], padded[1], filled[1]


def _flattered() -> tuple:
    """How much longer ours takes than cuBLAS does of rows that are filled up."""
    return (p50(recorded.layer("top 1", TUNED, BATCH)) / p50(recorded.layer("top 1 filled up", "fused", BATCH)),)


def _of_the_data_sheet() -> tuple:
    return (100 * tflop_per_s(recorded.step(TUNED)) * 1e12 / BF16,)


def _neither() -> tuple:
    row = recorded.layer("top 1 padded", TUNED, BATCH)
    assert copy_us(row["bytes"]) < row["us_p50"] / 2
    assert 1e6 * row["flops"] / BF16 < row["us_p50"] / 2
    return ()


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
    found = [p50(recorded.PRODUCTS.one("banks", apart=distance)) for distance in (32, 33)]
    return *found, found[0] / found[1]


def said(sentence: str, values=tuple) -> None:
    claim(NOTEBOOK, sentence, values)


said("{:.0f} MB are read, as many written, and the copy runs at {:.2f} TB/s.", _bytes)
said("Eager takes {:.1f} µs, and our Triton kernel {:.1f} µs.", _softmax)
said("In bfloat16 they take {:.1f} µs and {:.1f} µs.", _halves)
said(
    "With 512 rows of 50257 in float32 our Triton kernel takes {:.1f} µs, and `torch.compile` {:.1f} µs. Eager takes "
    "{:.1f} µs, and our CUDA kernel {:.1f} µs.",
    _we_lose,
)
said("x and the weight together are {:.0f} MB.", _matrices)
said("the first 264 then need {:.0f} strips, not {:.0f}.", _strips)
said(
    "At 4096³ the `grouped` step (below) takes {:.1f} µs with the epilogue and {:.1f} µs without: under "
    "{:.0f} %, which this lecture calls no difference.",
    _epilogue,
)
said("cuBLAS is off by {:.0e} and {:.0e}, in fp32 by {:.0e}.", _exact)
said(
    "Tensor cores gain most: {:,.0f} µs become {:.0f} µs. cuBLAS without them, in float32, takes {:,.0f} µs.",
    _first_steps,
)
said(
    "At the copy's rate the {:.0f} GB that naive reads would take {:.0f} ms. It takes {:.0f}, so most of them come "
    "from the caches.",
    _caches,
)
said(
    "Larger tiles take {:.1f} µs and grouped ones {:.1f} µs: no gain. Here the first 264 programs need "
    "{:.0f} strips in groups, and only {:.0f} row by row.",
    _larger,
)
said(
    "At 8192³ groups need fewer, yet row by row takes {:,.0f} µs and groups of eight take {:,.0f} µs, within the "
    "spread. Even row by row the strips are only {:.1f} GB, which a copy moves in {:.2f} of the {:.2f} ms.",
    _order,
)
said(
    "Descriptors take {:.1f} µs. Now out's tile has shared memory of its own, so a program needs {:.0f} KB in place of "
    "{:.0f}, and an SM has room for one, not two. If the tile is stored in two parts, a program needs {:.0f} KB, and "
    "the product takes {:.1f} µs.",
    _descriptors,
)
said(
    "Bias and relu make {:.0f} registers {:.0f}.",
    lambda: [
        recorded.PRODUCTS.one("epilogue", name="persistent", with_epilogue=which)["registers"]
        for which in (False, True)
    ],
)
said(
    "Tuned, ours takes {:.2f} times as long as `cuBLAS fused`, which has bias and relu in its kernel.",
    _tuned,
)
said(
    "With 65536 rows of `top 1` our kernel takes {:.1f} µs, padded {:.1f} µs: to descriptors the distance is enough. "
    "cuBLAS takes {:.1f} µs, padded {:.1f} µs, filled up {:.1f} µs: it wants the column too.",
    _filled_up,
)
said("no descriptor can be made, each number is loaded alone, and nothing is copied ahead.", _nothing_ahead)
said("Without `padded`, ours takes {:.2f} to {:.2f} times as long as cuBLAS.", _range)
said("That flatters us in `top 1`: filled up, cuBLAS is {:.1f} times as fast.", _flattered)
said("tensor cores, at {:.0f} % of the data sheet's rate", _of_the_data_sheet)
said("its bytes and its products would each take less than half of the time", _neither)
said(
    "At 2048³ it takes {:,.0f} µs without the pad and {:,.0f} µs with it: {:.1f} times, not 32.",
    _banks,
)
