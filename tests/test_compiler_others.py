"""backend="fused_kernels" and models of other people's making: true sentences, no crash, and eager's outputs."""

from __future__ import annotations

import copy
import re
from pathlib import Path

import compiled_others
import pytest
import torch
from compiled import check, results_of
from compiled_others import OTHERS

import kernels

pytestmark = pytest.mark.usefixtures("one_thread", "as_on_gpu")
LAYER_ALONE = "fused_mlp: one layer by itself: there is nothing between layers to keep on the chip"
LOOK_UPS_ALONE = "embedding_bags_apart: a look-up by itself, which its own operator does in one launch: 2 look-ups"

# What is replaced, and all that is said of the rest, in order, with what stands in the line of which it is said.
SAID = {
    "mlp": (["fused_mlp"], []),
    "encoder": (["fused_mlp"], []),
    "decoder": (["fused_mlp"], []),
    "residual_block": ([], []),
    # Its two look-ups are of another number of ids each.
    "two_tower": (["fused_mlp"] * 2, [(LOOK_UPS_ALONE, "self.query(self.users(users))")]),
    "deep_fm": (["fused_mlp"], [(LOOK_UPS_ALONE, "v = self.table(ids)")]),
    # Two cross layers with x₀ ⊙ … + x between, and the last layer behind what joins both branches.
    "dcn_v2": (
        ["embedding_bags_apart", "fused_mlp"],
        [(LAYER_ALONE, "torch.sigmoid(self.out(")],
    ),
    # The third table is wider, and the crossed ids' has bags.
    "wide_and_deep": (["embedding_bags_apart", "fused_mlp"], [(LOOK_UPS_ALONE, "looked_up = [")]),
    "lstm": ([], []),  # of which torch.compile makes no graph
    "gru": ([], []),
    # The mean and the variance are two layers of one hidden value; the decoder reads what is drawn by both.
    "vae": (
        ["fused_mlp"],
        [("fused_mlp: what lies between two layers is read by others too", "hidden = F.relu("),
         (LAYER_ALONE, "hidden = F.relu(")],
    ),
    "mixer_block": (["fused_mlp"] * 2, []),  # what stands between them joins two branches, and is no activation
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
    ops, declined = SAID[name]
    assert [replacement.op for replacement in explanation.replaced] == ops
    assert [sentence.rpartition(" (at ")[0] for sentence in explanation.declined] == [reason for reason, _ in declined]
    lines = Path(compiled_others.__file__).read_text().splitlines()
    for sentence, (_, written) in zip(explanation.declined, declined, strict=True):
        assert written in lines[int(re.search(r"compiled_others.py:(\d+)\)$", sentence)[1]) - 1]
    assert explanation.graphs == {"lstm": 0, "gru": 0, "control_flow": 3}.get(name, 1)


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
