"""backend="fused_kernels" and models of other people's making: true sentences, no crash, and eager's outputs."""

from __future__ import annotations

import copy

import pytest
import torch
from compiled import check, results_of
from compiled_others import OTHERS

import kernels

pytestmark = pytest.mark.usefixtures("one_thread")
BETWEEN = "stands between two layers: fused_mlp has relu, sigmoid and gelu (of erf)"
LAYER_ALONE = "fused_mlp: one layer by itself: there is nothing between layers to keep on the chip"
LOOK_UPS_ALONE = "embedding_bags_apart: a look-up by itself, which its own operator does in one launch: 2 look-ups"

# What is replaced, and all that is said of the rest, with the call of which it is said.
SAID = {
    "mlp": (["fused_mlp"], []),
    "encoder": (["fused_mlp"], []),
    "decoder": (["fused_mlp"], []),
    "residual_block": ([], []),
    # Its two look-ups are of another number of ids each.
    "two_tower": (["fused_mlp"] * 2, [(LOOK_UPS_ALONE, "embedding, users")]),
    "deep_fm": (["fused_mlp"], [("embedding_bags_apart: ids of 2 dimensions: 2 look-ups", "v, table")]),
    # Two cross layers with x₀ ⊙ … + x between, and the last layer behind what joins both branches.
    "dcn_v2": (
        ["embedding_bags_apart", "fused_mlp"],
        [(f"fused_mlp: aten.add.Tensor {BETWEEN}", "x"), (f"fused_mlp: aten.cat.default {BETWEEN}", "cat_1"),
         (LAYER_ALONE, "sigmoid")],
    ),
    # The third table is wider, and the crossed ids' has bags.
    "wide_and_deep": (["embedding_bags_apart", "fused_mlp"], [(LOOK_UPS_ALONE, "embedding_2, tables.2")]),
    "lstm": ([], []),  # of which torch.compile makes no graph
    "gru": ([], []),
    # The mean and the variance are two layers of one hidden value; the decoder reads what is drawn by both.
    "vae": (
        ["fused_mlp"],
        [("fused_mlp: what lies between two layers is read by others too", "hidden"), (LAYER_ALONE, "hidden"),
         (f"fused_mlp: aten.add.Tensor {BETWEEN}", "z")],
    ),
    "mixer_block": (["fused_mlp"] * 2, [(f"fused_mlp: aten.layer_norm.default {BETWEEN}", "layer_norm_1, norm2")]),
    "mmoe": (["fused_mlp"] * 5, []),
    "control_flow": (["fused_mlp"] * 2, []),  # in graphs of their own
}  # fmt: skip


def made(name: str):
    torch._dynamo.reset()
    torch.manual_seed(0)
    make, inputs = OTHERS[name]
    return make(), inputs()


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_said_is_all_there_is_to_say(name):
    model, inputs = made(name)
    explanation = kernels.explain(model, *inputs)
    ops, said = SAID[name]
    assert [each.op for each in explanation.replaced] == ops
    sentences = [f"{reason} (at {place}" for reason, place in said]
    found = [sentence.rpartition(", compiled_others.py:")[0] for sentence in explanation.declined]
    assert sorted(found) == sorted(sentences)
    assert explanation.graphs == {"lstm": 0, "gru": 0, "control_flow": 4}.get(name, 1)


@pytest.mark.parametrize("name", OTHERS)
def test_outputs_and_gradients_are_eagers(name):
    model, inputs = made(name)
    assert check(model, inputs).ops == SAID[name][0]


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_outputs_are_eagers_through_inductor(name):
    model, inputs = made(name)
    model.eval()
    compiled = torch.compile(copy.deepcopy(model), backend="fused_kernels")
    want, got = (results_of(function, model, inputs, gradients=False) for function in (model, compiled))
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
