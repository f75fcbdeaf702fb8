"""13: softmax's record, and that of the steps before the cells measured them."""

from __future__ import annotations

from lessons.n13_softmax_to_matrix_product.product_kernels import MORE, STEPS
from lessons.shared.claim import claim, quotes
from lessons.shared.records import BF16, FLOAT32, Record, apart, copy_us, l2_tb_per_s

NOTEBOOK = "13"
PRODUCTS, SOFTMAX = Record("products"), Record("softmax")
quotes(NOTEBOOK)


def _softmax(name: str, rows: int, columns: int) -> float:
    labels = {"implementation": name, "rows": rows, "columns": columns, "dtype": "float32", "form": "functional"}
    return SOFTMAX.rows(**labels).query("part in ('bandwidth', 'grid')").iloc[0]["us_p50"]


def _step(name: str) -> float:
    return PRODUCTS.one("step", name=name, rows=4096)["us_p50"]


def _odd_width() -> tuple:
    eager, cuda, triton = (_softmax(name, 512, 50257) for name in ("eager", "cuda", "triton"))
    assert cuda < eager < triton
    return eager, cuda, triton


def _aligned() -> tuple:
    return _softmax("triton", 2048, 20000), _softmax("cuda", 2048, 20000)


def _tensor_cores() -> tuple:
    tiles, cores = _step("tiles"), _step("tensor cores")
    library = Record("step_time").us("product", rows=4096, precision="fp32")
    return cores, tiles / cores, library, library / cores, 100 * 2e6 * 4096**3 / tiles / FLOAT32


def _launches() -> tuple:
    return tuple(map(_step, ("tensor cores", "stages", "larger tiles")))


def _groups() -> tuple:
    assert not apart(*(PRODUCTS.one("order", group=group) for group in (1, 8)))
    assert _step("grouped") > 0.97 * _step("larger tiles")
    return ()


def _gb(name: str, size: int = 4096) -> float:
    step = (STEPS | MORE)[name]
    rows, columns = step.get("ROWS", 64), step.get("COLUMNS", 64)
    return 2e-9 * size**3 * (rows + columns) / rows / columns


def _law() -> tuple:
    rates = [1e3 * _gb(name) / _step(name) for name in (*list(STEPS)[1:], "descriptors", "wider tiles", "persistent")]
    rates.append(1e3 * _gb("descriptors") / _step("descriptors, in 2 parts"))
    return min(rates), max(rates)


def _large() -> tuple:
    gb = _gb("grouped", 8192)
    return gb, gb / l2_tb_per_s(), PRODUCTS.one("order", group=1)["us_p50"] / 1e3


def _descriptors() -> tuple:
    return tuple(map(_step, ("descriptors", "grouped", "wider tiles", "persistent")))


def _relu_apart() -> tuple:
    return (_step("addmm, relu") - _step("fused"),)


def _filled_up() -> tuple:
    def pair(name: str) -> list[float]:
        return [PRODUCTS.one("layer", layer=name, name=which, rows=65536)["us_p50"] for which in ("tuned", "fused")]

    plain, padded, filled = map(pair, ("top 1", "top 1 padded", "top 1 filled up"))
    assert padded[0] < 1.03 * filled[0] < plain[0]
    assert filled[1] < plain[1] < padded[1]
    return ()


def _no_overlap() -> tuple:
    row = PRODUCTS.one("layer", layer="top 1 padded", name="tuned", rows=65536)
    moving, multiplying = copy_us(row["bytes"]), 1e6 * row["flops"] / BF16
    assert 0.9 * row["us_p50"] < moving + multiplying < row["us_p50"]
    return moving, multiplying


def said(sentence: str, values=tuple) -> None:
    claim(NOTEBOOK, sentence, values)


said(
    "Eager's three passes take {:.1f} µs on the H200, little more than their floor, and the library's CUDA kernel "
    "{:.1f} µs for two. But two passes of the library's Triton kernel take {:.1f} µs",
    _odd_width,
)
said("Of 2048 rows of 20,000 columns, all aligned, Triton takes {:.1f} µs and CUDA {:.1f} µs.", _aligned)
said(
    "The tiles in bfloat16 take {:.0f} µs, those in float32 {:.1f} times as long. Is it the tensor cores? cuBLAS in "
    "float32 takes {:,.0f} µs, so they give a factor of {:.1f}. The rest is a slow product in float32: the tiles reach "
    "{:.0f} % of what the float32 units can do.",
    _tensor_cores,
)
said("Three buffers take {:.0f} µs to {:.0f} µs, and larger tiles to {:.0f} µs.", _launches)
said("Groups gain nothing, not at 8192³ either.", _groups)
said("From `stages` on, what the tiles load, divided by the time, is {:.1f} to {:.1f} TB/s: the rate of the L2.", _law)
said("At 8192³ the tiles load {:.1f} GB, which takes {:.2f} ms at the L2's rate; the product takes {:.2f} ms.", _large)
said(
    "Descriptors lose at first: {:.1f} µs, where pointers took {:.1f} µs. A descriptor's store takes shared memory for "
    "the tile of out, so that an SM has room for one program only: while it stores, nothing multiplies. The wider tile "
    "has room for one program, too, but loads three quarters of the bytes: {:.1f} µs. A program an SM takes {:.1f} µs",
    _descriptors,
)
said("As a kernel of its own, relu costs cuBLAS {:.1f} µs.", _relu_apart)
said("rows 368 apart help our kernel as much as a 368th column. cuBLAS needs the column", _filled_up)
said("bytes, {:.0f} µs, and products, {:.0f} µs, which hardly overlap", _no_overlap)
