"""What a training step with fused kernels launches: what is listed here, and nothing more that is a kernel on a GPU.

Counted on a CPU, with CUDA's kernels on the host, so that the C++ core records and computes what it does on a GPU; an
MLP's gradient is Triton's, which is not run. An operation is more than one kernel for the loss (5), the gradient of an
MLP (3), those of all MLPs, with their update or without (2), and the tables' update (2).
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import kernels
from kernels import runtime
from kernels.dispatch import core, plan
from kernels.ops.fused_mlp import update
from model import DLRM, Preset, fused, preset
from model.config import Kernels, Optimizer, Precision, TableOptimizer, TrainConfig
from model.fused import Fused
from model.optimizers import fusing_gradients, make_optimizer
from model.step import train_step

FORWARD = [
    "add", "remainder",  # the hash
    "embedding_bags", "fused_mlp", "dot_interaction", "fused_mlp",
    "binary_cross_entropy_with_logits",
]
BACKWARD = ["sigmoid", "sub", "div_", "fused_mlp_backward", "dot_interaction_backward", "fused_mlp_backward"]
CHAINS = [name.replace("mlp_backward", "mlp_chain") for name in BACKWARD]  # where gradients are fused
UPDATE = ["embedding_bags_sort", "embedding_bags_update"]
STEPS = {
    (TableOptimizer.SGD, False): [*FORWARD, *BACKWARD, "_fused_sgd_", *UPDATE],
    (TableOptimizer.SGD, True): [*FORWARD, *CHAINS, "fused_mlp_step", *UPDATE],
    (TableOptimizer.ADAGRAD, True): [
        *FORWARD, *CHAINS, "fused_mlp_step", "_foreach_add_",
        "add_",  # the count of the tables' steps, as before it that of the MLPs'
        *UPDATE,
    ],
}


def looked_up_within(names: list[str]) -> list[str]:
    """The names where the interaction looks the tables up itself: a launch fewer."""
    within = {"dot_interaction": "lookup_interact", "dot_interaction_backward": "lookup_interact_gradients"}
    return [within.get(name, name) for name in names if name != "embedding_bags"]


# They compute nothing, or nothing on the device.
NO_KERNEL = ("empty", "detach", "alias", "profiler", "promote_types")


class Launches(TorchDispatchMode):
    """names: of the operations that a GPU would have launched, in their order."""

    def __init__(self):
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        name = function._schema.name
        if not function.is_view and not any(word in name for word in NO_KERNEL):
            self.names.append(name.split("::")[1])
        return function(*arguments, **(options or {}))


def zeros(declaration, form, arguments, outputs, backend):
    """In place of a Triton launcher: what it writes."""
    for output in outputs:
        output.zero_()


@pytest.mark.parametrize("in_one", [False, True])
@pytest.mark.parametrize(("rule", "capturable"), STEPS)
def test_a_fused_step_launches_this_and_no_more(monkeypatch, rule, capturable, in_one):
    if runtime.why_not("triton", "cpu"):
        pytest.skip("Triton's interpreter is off")
    monkeypatch.setattr(plan, "launch", zeros)
    monkeypatch.setattr(update, "runs", lambda *_: True)  # as in tf32 on a GPU
    if not in_one:
        monkeypatch.setattr(fused, "looks_up", lambda *_: False)
    look_up = kernels.embedding_bags
    monkeypatch.setattr(kernels, "embedding_bags", partial(look_up, backend="cuda"))
    config = replace(preset("main").model, cardinalities=(7,) * 26, kernels=Kernels.FUSED)
    mlps = Optimizer(rule)
    model = DLRM(config)
    for part in model.modules():
        if isinstance(part, Fused):
            part.backend = "cuda"
    settings = TrainConfig(mlps, 0.1, rule, 0.1, weight_decay=0.0, precision=Precision.TF32)
    optimizer = make_optimizer(model, Preset(config, settings), capturable)
    optimizer.parts["tables"].backend = "cuda"
    batch = torch.randint(0, 2, (8,)).float(), torch.randn(8, 13), torch.randint(0, 40, (8, 26))
    with core.on_host(), fusing_gradients(optimizer) if capturable else nullcontext():
        train_step(model, optimizer, *batch)  # what is made once: the first step's state
        with Launches() as launches:
            train_step(model, optimizer, *batch)
    assert launches.names == (looked_up_within(STEPS[rule, capturable]) if in_one else STEPS[rule, capturable])
