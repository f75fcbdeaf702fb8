"""01, DLRM from scratch: what is counted of the model, and the records that its roof is held against."""

from __future__ import annotations

import json
import re
from functools import cache

import torch

from data import population
from kernels.measure.records import RESULTS
from kernels.ops.dot_interaction import eager as dot
from lessons.n01_dlrm_from_scratch import counting, recorded
from lessons.n01_dlrm_from_scratch.recorded import MAIN, ROWS, SMALL, WIDE
from lessons.shared import dlrm
from lessons.shared.claim import claim, printed
from lessons.shared.records import FLOAT32, TF32, yardstick


@cache
def _calls() -> list[tuple[str, int]]:
    """The operators of a prediction of small, and their bytes; how large its tables are makes no difference."""
    bottom, tables, (_, *top) = SMALL
    model = dlrm.DLRM([100] * tables, bottom, top)
    with torch.no_grad(), counting.Count() as count:
        model(torch.ones(ROWS, bottom[0]), torch.zeros(ROWS, tables, dtype=torch.int64))
    return count.calls


def _first() -> tuple:
    """By the roof, and in eager; in thousands of rows the notebook says 2,048."""
    us = recorded.prediction()
    assert ROWS == 2048
    return us["the roof"], us["eager"]


def _criteo() -> tuple:
    rows = sum(category.cardinality for category in population.CATEGORIES.values())
    return rows / 1e6, rows * 16 * 4 / 1e9


def _auc() -> tuple:
    """The share of what is possible above chance, on average over the seeds, with as many rows as ids."""
    rows = json.loads((RESULTS / "hash_auc.json").read_text())["rows"]
    (best,) = (row["auc"] for row in rows if row["hash"] == "the true probability")
    shares = []
    for name in ("sorted", "modulus"):
        aucs = [row["auc"] for row in rows if row["hash"] == name and row["share"] == 1.0]
        shares.append(100 * (sum(aucs) / len(aucs) - 0.5) / (best - 0.5))
    assert shares[0] > shares[1]
    return tuple(shares)


def _peaks() -> tuple:
    return yardstick(), FLOAT32 / 1e12, TF32 / 1e12


def _main() -> tuple:
    """The FLOPs take longer than the bytes."""
    flops, moved = counting.needed(ROWS, *MAIN)
    roof = recorded.prediction()["the roof"]
    assert flops / TF32 * 1e6 == roof
    assert recorded.roof_us(0, moved, TF32) < roof
    return (roof,)


def _times() -> tuple:
    """Eager and ours beside the roof; the compiler is in between."""
    us = recorded.prediction()
    assert us["ours"] < us["torch.compile"] < us["eager"]
    return us["eager"] / us["the roof"], us["ours"] / us["the roof"]


def _cats() -> tuple:
    """They move more bytes than the calls of any other operator, and there are two."""
    moved: dict[str, int] = {}
    for name, size in _calls():
        moved[name] = moved.get(name, 0) + size
    assert max(moved, key=moved.get) == "cat"
    assert sum(name == "cat" for name, _ in _calls()) == 2
    return ()


def _interaction() -> tuple:
    """How many times fewer bytes one kernel moves, and how many times as fast it was, in CUDA and in Triton."""
    us = recorded.interaction()
    names = [name for name, _ in _calls()]
    first = names.index("stack") + 1  # the bottom MLP comes before the look-ups, the top MLP behind the interaction
    calls = [size for name, size in _calls()[first:] if name in ("cat", "bmm", "index")]
    assert len(calls) == 4
    vectors, width = WIDE["features"] + 1, WIDE["columns"]
    least = 4 * ROWS * (vectors * width + width + vectors * (vectors - 1) // 2)
    assert dot.width(WIDE["features"], width) == width + vectors * (vectors - 1) // 2
    assert us["eager"] / us["ours"] > 1.5 * sum(calls) / least  # so eager moves its bytes more slowly
    assert us["ours"] < us["triton"] < us["torch.compile"]
    return us["eager"] / us["ours"], sum(calls) / least, us["eager"] / us["triton"]


def _called() -> tuple:
    """More than a thousand µs, as the cell that times the reader's model has stored them."""
    us = float(re.search(r"([\d,]+) µs", printed("01", "cell-52", on="H200"))[1].replace(",", ""))
    assert us > 1000
    return ()


def _launches() -> tuple:
    """A look-up for each table, and the stack; their bytes are not what takes eager's time."""
    names = [name for name, _ in _calls()]
    us = recorded.tables()
    assert us["eager"] > 50 * us["the roof"]
    return (sum(name in ("embedding", "stack") for name in names),)


def _small() -> tuple:
    flops, moved = counting.needed(ROWS, *SMALL)
    return (recorded.roof_us(flops, moved, FLOAT32),)


def _row(us: dict[str, float]) -> tuple:
    """In the table's order: the roof, ours, the compiler, eager."""
    times = tuple(us[name] for name in recorded.ORDER)
    assert list(times) == sorted(times)
    return times


claim(
    "01",
    "With one such model, a prediction for 2,048 rows needs at least {:.0f} µs on an H200 GPU. PyTorch's kernels "
    "take {:.0f}, even when they are replayed without Python.",
    _first,
)
claim("01", "The tables for Criteo's own file have {:.1f} million rows of 16 numbers: {:.1f} GB.", _criteo)
claim(
    "01",
    "In a longer training with larger tables, a small DLRM with a row for each id covers {:.0f} % of the way from "
    "guessing to the limit. With our hash and as many rows, it covers {:.0f} %.",
    _auc,
)
claim(
    "01",
    "PyTorch copies 1 GiB on an H200 at {:.2f} TB/s, reads and writes counted. This *copy's rate* is the lecture's "
    "yardstick for memory. The datasheet gives {:.0f} TFLOP/s in float32. The *tensor cores*, units for matrix "
    "products, reach {:.1f} TFLOP/s in TF32,",
    _peaks,
)
claim("01", "For `main` in TF32 the FLOPs take longer, and the roof is {:.1f} µs.", _main)
claim(
    "01",
    "PyTorch takes {:.0f} times as long as the roof allows. Our kernels take {:.0f} times as long.",
    _times,
)
claim("01", "The two `cat`s move the most bytes, and they compute nothing.", _cats)
claim(
    "01",
    "Our CUDA kernel is {:.1f} times as fast as eager. Fewer bytes give a factor of {:.1f}. The rest is the rate: "
    "eager's kernels move their bytes more slowly. But bytes are not all: our Triton kernel moves as few, and is only "
    "{:.1f} times as fast as eager.",
    _interaction,
)
claim("01", "Called from Python, as you would call it, even a smaller model takes more than a thousand.", _called)
claim("01", "But even without the hash, eager launches {} kernels for them,", _launches)
claim("01", "On an H200 in float32, its roof is {:.1f} µs.", _small)
claim(
    "01",
    "| interaction, 65,536 rows, float32 | {:.1f} | {:.1f} | {:.1f} | {:.1f} |",
    lambda: _row(recorded.interaction()),
)
claim("01", "| 26 look-ups, 2,048 rows | {:.1f} | {:.1f} | {:.1f} | {:.1f} |", lambda: _row(recorded.tables()))
claim(
    "01",
    "| prediction of `main`, 2,048 rows, TF32 | {:.1f} | {:.1f} | {:.1f} | {:.1f} |",
    lambda: _row(recorded.prediction()),
)
