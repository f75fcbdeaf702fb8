"""13: what the prose says beyond its outputs, from what the cells recorded."""

from __future__ import annotations

from lessons.n13_softmax_to_matrix_product.product_kernels import LARGE, MORE, STEPS
from lessons.shared.claim import claim, quotes
from lessons.shared.records import BF16, FLOAT32, Record, copy_us

NOTEBOOK = "13"
CELLS = Record("lecture_13")
quotes(NOTEBOOK)


def time_of(part: str, name: str, size: str) -> float:
    return CELLS.us(part, name=name, size=size)


def _tensor_cores() -> tuple:
    gains = [time_of("dtypes", name, "float32") / time_of("dtypes", name, "bfloat16") for name in ("tiles", "cuBLAS")]
    assert min(gains) > BF16 / FLOAT32
    assert abs(gains[0] / gains[1] - 1) < 0.05
    return *gains, BF16 / FLOAT32, time_of("dtypes", "tiles", "float32") / time_of("dtypes", "cuBLAS", "float32")


def buffers_kb(step: dict) -> float:
    """KB of shared memory that a step's tiles of x and of the weight take, in bfloat16."""
    step = LARGE | step
    return step["num_stages"] * (step["ROWS"] + step["COLUMNS"]) * step["STEP"] * 2 / 1024


def _store() -> tuple:
    """KB of the tile of out, and of the buffers."""
    out, buffers = LARGE["ROWS"] * LARGE["COLUMNS"] * 2 / 1024, buffers_kb(MORE["descriptors"])
    room = 228  # of an SM; a program takes one more
    assert 2 * (out + buffers + 1) > room >= 2 * (out + buffers_kb(MORE["two stages"]) + 1)
    assert 2 * (buffers + 1) <= room < 2 * (buffers_kb(STEPS["wider tiles"]) + 1)
    return out, buffers


def _in_spread() -> tuple:
    """Of the persistent kernel, whose median is above cuBLAS's; of relu apart, whose 20th percentile is above all."""
    at = {"size": "4096³"}
    persistent, cublas, apart = (
        CELLS.one("descriptors", name=name, **at) for name in ("persistent", "cuBLAS", "cuBLAS, then relu")
    )
    assert cublas["us_p20"] < persistent["us_p50"] < cublas["us_p80"] < apart["us_p20"]
    return persistent["us_p50"], cublas["us_p50"]


def _layer() -> tuple:
    cublas, own = (CELLS.us("layer", name=name, size=2048) for name in ("cuBLAS", "small tiles"))
    assert 1.03 < own / cublas < 1.1
    return ()


def _sum() -> tuple:
    """µs of the bytes and of the products, which together are nearly the time."""
    rows, columns, depth = 65536, 512, 367
    moving = copy_us(2 * (rows * (depth + columns) + columns * depth))
    multiplying = 2e6 * rows * columns * depth / BF16
    assert 0.9 < (moving + multiplying) / time_of("aligned rows", "persistent", "367 of 368") < 1
    return moving, multiplying


def said(sentence: str, values=tuple) -> None:
    claim(NOTEBOOK, sentence, values)


said(
    "The tensor cores make the tiles {:.1f} times as fast, and cuBLAS {:.1f} times. The data sheet's rates differ by a "
    "factor of {:.1f}, and bfloat16 has half of the bytes. So the tiles stay about as far from cuBLAS as they "
    "were, {:.2f} × in float32.",
    _tensor_cores,
)
said("A program an SM takes {:.1f} µs and cuBLAS {:.1f}, within the spread.", _in_spread)
said("with a small tile for nearly every SM; cuBLAS stays a little faster.", _layer)
said("{:.0f} KB for the tile of out, beside {:.0f} KB for three buffers.", _store)
said("An SM has room for one program of {:.0f} KB", lambda: (buffers_kb(STEPS["wider tiles"]),))
said("little more than bytes, {:.0f} µs, plus products, {:.0f} µs", _sum)
