"""01, DLRM from scratch: what is counted of the model, and the records that its roofline shows."""

from __future__ import annotations

import json

from data import population
from kernels.measure.records import RESULTS, load
from kernels.ops.dot_interaction import eager as dot
from lessons.n01_dlrm_from_scratch import arithmetic, training
from lessons.shared.claim import claim
from lessons.shared.op_times import cell_us, look_ups
from lessons.shared.records import yardstick

ROWS = 2048  # of the batch that is counted
ONE_ID = {"rows": 2048, "width": 16, "ids": "uniform", "part": "bandwidth", "form": "functional"}
WIDE = {"rows": 65536, "features": 26, "columns": 16}  # the recorded interaction


def _blocks(rows: int = ROWS) -> dict[str, arithmetic.Cost]:
    return arithmetic.blocks(training.shape("small"), rows)


def _criteo() -> tuple:
    rows = sum(category.cardinality for category in population.CATEGORIES.values())
    return rows / 1e6, rows * 16 * 4 / 1e9


def _auc() -> tuple:
    """The share of what is possible above chance, on average over the seeds, with as many rows as ids."""
    rows = json.loads((RESULTS / "hash_auc.json").read_text())["rows"]
    (best,) = (row["auc"] for row in rows if row["hash"] == "the true probability")
    found = []
    for name in ("sorted", "modulus"):
        aucs = [row["auc"] for row in rows if row["hash"] == name and row["share"] == 1.0]
        found.append(100 * (sum(aucs) / len(aucs) - 0.5) / (best - 0.5))
    assert found[0] > found[1]
    return tuple(found)


def _bottom() -> tuple:
    """Without the weights, as good as nothing of a batch of a million rows."""
    cost, rows = _blocks(1 << 20)["bottom MLP"], 1 << 20
    return cost.flops / rows, cost.fused / rows, cost.eager / rows


def _whole() -> tuple:
    """How many times fewer bytes than eager four kernels move, one a block, and one kernel; the model's intensity."""
    found = _blocks()
    cost = found.pop("whole model")
    four = sum(block.fused for block in found.values())
    assert len(found) == 4
    return cost.eager / four, cost.eager / cost.fused, cost.intensity(fused=False), cost.intensity(fused=True)


def _bound() -> tuple:
    """Eager is below the ridge with every block; as one kernel the MLPs are at it, the whole model is beyond it, and
    in tf32 all are below."""
    found, ridge = _blocks(), arithmetic.ridge()
    assert all(cost.intensity(fused=False) < ridge for cost in found.values())
    bottom, top, whole = (found[name].intensity(fused=True) for name in ("bottom MLP", "top MLP", "whole model"))
    assert abs(bottom / ridge - 1) < 0.02
    assert abs(top / ridge - 1) < 0.02
    assert 1.1 * ridge < whole < arithmetic.TF32_TFLOPS / yardstick()
    return whole, ridge


def _tf32() -> tuple:
    return arithmetic.TF32_TFLOPS, arithmetic.TF32_TFLOPS / yardstick()


def _wide() -> tuple:
    """The preset main as one kernel: beyond both ridges."""
    cost = arithmetic.blocks(training.shape("main"), ROWS)["whole model"]
    assert cost.intensity(fused=True) > _tf32()[1] > arithmetic.ridge()
    return (cost.intensity(fused=True),)


def _fewest() -> tuple:
    cost, ridge = _blocks()["interaction"], arithmetic.ridge()
    before, after = (cost.intensity(fused) for fused in (False, True))
    assert after < ridge / 4
    return before, after


def _interaction() -> tuple:
    """Eager, a copy of eager's bytes, the compiler, one kernel, a copy of its bytes; µs."""
    slow, compiled, ours = (arithmetic.interaction_recorded(name) for name in ("eager", "torch.compile", "cuda"))
    assert ours["us_p50"] < compiled["us_p50"] < slow["us_p50"]
    assert ours["flops"] == dot.forward_flops(**WIDE)
    cost, rate = _blocks(WIDE["rows"])["interaction"], 1e6 * yardstick()
    assert cost.fused == ours["bytes"]
    return slow["us_p50"], cost.eager / rate, compiled["us_p50"], ours["us_p50"], cost.fused / rate


def _faster() -> tuple:
    """How much faster, with how much fewer bytes; which part of a copy's rate each reaches, in per cent."""
    slow, slow_copy, _, ours, copy = _interaction()
    assert ours / copy < slow / slow_copy
    return slow / ours, slow_copy / copy, 100 * slow_copy / slow, 100 * copy / ours


def _launches() -> tuple:
    needed, eager, compiled, ours = look_ups(2048)
    combo = cell_us("embedding_bags", "torch.compile, combo_kernels", **ONE_ID)
    assert eager > 3 * compiled
    assert compiled > 20 * needed
    assert ours < combo < compiled
    each_time = _blocks()["look-ups"].fused / (1e6 * yardstick())
    assert each_time > needed
    return needed, each_time, eager, compiled, combo, ours


def _no_guarantee() -> tuple:
    """The interaction as one kernel in Triton: of as many bytes, far from a copy's rate."""
    triton, ours = (arithmetic.interaction_recorded(name) for name in ("triton", "cuda"))
    assert triton["bytes"] == ours["bytes"]
    assert triton["us_p50"] > 5 * ours["us_p50"]
    return (triton["us_p50"],)


def _main() -> tuple:
    """With everything fused: the wide model's inference with 2048 rows in tf32."""
    labels = {"part": "inference", "rows": 2048, "precision": "tf32"}
    rows = [row for row in load("whole_model")["rows"] if labels.items() <= row.items()]
    us = {row["implementation"]: row["us"] for row in rows}
    compiled = min(us[name] for name in us if name.startswith("torch.compile"))
    assert us["fused"] < compiled < us["eager"]
    return us["eager"], compiled, us["fused"]


claim(
    "01",
    "why the same interaction takes an H200 {:.0f} µs in one form and {:.1f} in another.",
    lambda: (_interaction()[0], _interaction()[3]),
)
claim("01", "The tables for Criteo's own file have {:.1f} million rows of 16 numbers: {:.1f} GB.", _criteo)
claim(
    "01",
    "With as many rows as ids, a small DLRM with a row for each id reaches {:.0f} % of the AUC that is possible above "
    "chance, and one with this hash {:.0f} %.",
    _auc,
)
claim(
    "01",
    "{:,.0f} FLOPs. As one kernel it moves 4 · (13 + 16) = {:.0f} bytes a row, as four it moves {:.0f}.",
    _bottom,
)
claim(
    "01",
    "The picture's four blocks, one kernel each, move {:.1f} times fewer bytes than eager. One kernel for the whole "
    "model, which writes nothing between the blocks, moves {:.1f} times fewer, and the intensity goes from {:.1f} to "
    "{:.1f}.",
    _whole,
)
claim(
    "01",
    "this lecture's yardstick: {:.2f} TB/s on an H200. For FLOPs, whose rate hangs on a product's shape, the limit is "
    "the datasheet's: {:.0f} TFLOP/s in float32 without tensor cores.",
    lambda: (yardstick(), arithmetic.FP32_TFLOPS),
)
claim("01", "the whole model, with {:.1f} FLOPs a byte, is beyond {:.1f}:", _bound)
claim("01", "raise the roof to {:.1f} TFLOP/s, the limits meet at {:.1f},", _tf32)
claim(
    "01",
    "The preset `main`, with wider MLPs, has {:.0f} FLOPs a byte as one kernel: compute-bound under both.",
    _wide,
)
claim("01", "The interaction goes from {:.1f} to {:.1f}:", _fewest)
claim(
    "01",
    "Eager takes {:.0f} µs, where a copy of its bytes takes {:.0f}; `torch.compile`, which fuses a "
    "part, {:.0f}. One kernel, ours in CUDA, takes {:.1f}, where a copy of its bytes takes {:.1f}.",
    _interaction,
)
claim(
    "01",
    "That is {:.1f} times as fast with {:.1f} times fewer bytes: eager's kernels reach {:.0f} % of a copy's rate, ours "
    "{:.0f} %.",
    _faster,
)
claim(
    "01",
    "Of 2048 rows the 26 look-ups, of ids hashed before, need {:.1f} µs for their bytes, if a row that several "
    "ids share is read once; once for each id, as in section 7, {:.1f}. Eager takes {:.0f} µs, `torch.compile` {:.1f} "
    "({:.1f} with an option that notebook 04 shows), one kernel {:.1f}.",
    _launches,
)
claim(
    "01",
    "a prediction for 2048 rows takes eager {:.0f} µs, `torch.compile` at its best {:.0f}, and our kernels {:.0f}.",
    _main,
)
claim(
    "01",
    "One kernel alone is no guarantee: ours in Triton, of the same bytes, takes {:.0f} µs",
    _no_guarantee,
)
