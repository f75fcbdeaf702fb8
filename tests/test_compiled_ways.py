"""model.bench.compiled_ways: torch.compile as it is set best gives eager's numbers, and saves what it is there for."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from kernels.inductor import count, lower, split, together, triton_source
from model.bench import steps, whole_model
from model.bench.compiled_ways import COMPILED, Compiled
from model.bench.trainer import IMPLEMENTATIONS, Trainer
from model.config import DLRMConfig, Interaction, Precision, TableOptimizer, preset
from model.dlrm import DLRM

CPU = torch.device("cpu")
PLAIN, PADDED, COMBO, COMBO_PADDED, TOGETHER, BOTH = COMPILED
APART = [name for name, how in COMPILED.items() if how.look_ups in together()]  # a tensor a table
MAIN = preset("main").model
KAGGLE = replace(MAIN, cardinalities=(1_300_000,) * 26)
SMALL = replace(preset("mini").model, embedding_dim=4, bottom=(13, 8, 4), cardinalities=(3, 50, 7))  # 10 columns
pytestmark = pytest.mark.usefixtures("one_thread")


def built(name: str, shape: DLRMConfig) -> tuple[DLRM, Compiled]:
    """The peer's model, as all of them are drawn, and how it is compiled."""
    changes, how, _ = IMPLEMENTATIONS[name]
    torch.manual_seed(0)
    model = DLRM(replace(shape, **changes))
    how.prepare(model)
    return model, how


def batch(rows: int, shape: DLRMConfig) -> list[torch.Tensor]:
    """labels, dense, sparse"""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(2**31, (rows, len(shape.cardinalities)), generator=generator)
    return [torch.rand(rows, generator=generator).round(), torch.randn(rows, 13, generator=generator), ids]


def names(shape, rows, precision, training) -> list[str]:
    return [name for name, how in COMPILED.items() if how.may_win(shape, rows, precision, training)]


def test_what_is_measured_where():
    tf32, fp32 = Precision.TF32, Precision.FP32
    assert names(KAGGLE, 2048, tf32, training=False) == [PLAIN, PADDED, *APART]
    assert names(KAGGLE, 2048, Precision.BF16, training=False) == [PLAIN, PADDED, *APART]
    not_padded = [name for name in APART if not COMPILED[name].padded]
    assert names(KAGGLE, 2048, fp32, training=False) == [PLAIN, *not_padded]  # no tensor core reads the rows
    # Dense gradients of 33.8 million rows, where a batch has 53 thousand ids.
    assert names(KAGGLE, 2048, tf32, training=True) == [PLAIN, PADDED]
    small = replace(KAGGLE, cardinalities=(1000,) * 26)
    assert names(small, 2048, tf32, training=True) == [PLAIN, PADDED, *APART]
    outer = replace(small, interaction=Interaction.OUTER)  # 186,624 columns
    assert names(outer, 2048, tf32, training=True) == [PLAIN, *not_padded]


def test_a_setting_that_this_torch_lacks_is_not_measured(monkeypatch):
    """Else plain torch.compile would stand under its name."""
    options = {"combo_kernels"}
    monkeypatch.setattr(lower, "has_option", lambda name: name in options)
    assert names(KAGGLE, 2048, Precision.TF32, training=False) == [PLAIN, PADDED, COMBO, COMBO_PADDED]
    options |= {"max_pointwise_cat_inputs"}  # one of two does not lift the limit
    assert names(KAGGLE, 2048, Precision.TF32, training=False) == [PLAIN, PADDED, COMBO, COMBO_PADDED]
    options |= {"max_complex_pointwise_cat_inputs"}
    assert names(KAGGLE, 2048, Precision.TF32, training=False) == [*COMPILED]


@pytest.mark.parametrize("name", COMPILED)
def test_a_peer_is_eager_in_other_words(name):
    """The same in float64, before its compiler."""
    _, dense, sparse = batch(64, SMALL)
    torch.manual_seed(0)
    expected = DLRM(SMALL).double().predict(dense.double(), sparse)
    model, how = built(name, SMALL)
    assert model.over_arch.mlp[0].weight.shape[1] == (16 if how.padded else 10)
    torch.testing.assert_close(model.double().predict(dense.double(), sparse), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("rule", [TableOptimizer.SGD, TableOptimizer.ADAGRAD])
@pytest.mark.parametrize("name", [PADDED, BOTH])
def test_a_step_leaves_what_is_filled_up(rule, name, monkeypatch):
    """And moves all else; whether it moves rightly test_shadow.py tests."""
    monkeypatch.setattr(Compiled, "compile", lambda how, model: model)
    trainer = Trainer(name, rule, SMALL, 64, CPU)
    weight = trainer.model.over_arch.mlp[0].weight
    before = weight.detach().clone()
    for _ in range(3):
        trainer.step(*batch(64, SMALL))
    moved = (weight != before).any(0)
    assert moved.tolist() == [True] * 10 + [False] * 6


@pytest.mark.skipif(TOGETHER not in APART, reason="this torch has no options for 32 look-ups a kernel")
def test_look_ups_are_one_kernel_and_filling_up_is_none():
    """What Inductor writes for a GPU."""
    shape, launches = replace(MAIN, cardinalities=tuple(100 + 7 * i for i in range(26))), {}
    for name in (PLAIN, TOGETHER, BOTH):
        model, how = built(name, shape)
        source = triton_source(model, *batch(8, shape)[1:], options=how.options)
        launches[name] = sum(count(source).values())
        (looks_up,) = (kernel for kernel in split(source[0]) if "aten.embedding" in kernel.fused)
        assert (looks_up.kind, looks_up.launches) == ("pointwise" if how.look_ups else "extern", 1)
    assert launches[BOTH] <= launches[TOGETHER] < launches[PLAIN]


@pytest.mark.slow
def test_compiled_they_predict_as_eager_does(monkeypatch):
    """By Inductor, for this CPU."""
    monkeypatch.setattr(whole_model, "ROUNDS", 1)
    names = ["eager", PLAIN, PADDED, *APART]
    rows = whole_model.bench_inference(SMALL, batch(6, SMALL)[1:], CPU, Precision.TF32, names)
    assert [row["implementation"] for row in rows] == names
    for row in rows:
        assert (row["match"], row["error"] <= 1e-6, row["us"] > 0) == ("ok", True, True), row


@pytest.mark.slow
def test_compiled_they_train_as_eager_does(monkeypatch):
    monkeypatch.setattr(steps, "step_times", partial(steps.step_times, block=1, rounds=1))
    names = [PLAIN, PADDED, *APART, "fused"]
    rows = steps.bench_steps(TableOptimizer.SGD, SMALL, [batch(64, SMALL)], CPU, names, Precision.TF32)
    assert [(row["implementation"], row["match"]) for row in rows] == [(name, "ok") for name in names]
    assert max(row["stray"] for row in rows) <= steps.MOST_STRAY[Precision.FP32]
    assert rows[-1]["factor"] == min(row["ms"] for row in rows[:-1]) / rows[-1]["ms"]
