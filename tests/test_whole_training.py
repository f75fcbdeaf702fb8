"""A step that computes its MLPs' gradients at its end, with the forward in one kernel: the losses, weights and states
of the same step with a kernel a part, and where it is taken. Without a GPU kernels run on the host, or interpreted."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from test_fused_model import DEVICE, Called, batch, made, needs, shape

from kernels.device.launch import architecture, multiprocessors
from kernels.dispatch.core import on_host
from kernels.ops.fused_mlp import choice, module, update
from model import Preset, fused, preset
from model.config import Kernels, Optimizer, Precision, TableOptimizer
from model.lora import apply_lora
from model.optimizers import fusing_gradients, make_optimizer
from model.step import train_step
from model.tables import FusedTables

CONFIG = replace(shape(), bottom=(13, 256, 128, 64, 16), embedding_dim=16, top=(128, 64, 1), kernels=Kernels.FUSED)
ROWS = 250  # more than clusters take
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def in_tf32(monkeypatch):
    needs("triton")
    if DEVICE.type == "cuda" and architecture() != 90:
        pytest.skip("values are kept by the instructions of sm_90")
    for place in (update, choice):
        monkeypatch.setattr(place, "runs" if place is update else "float32_products", lambda *_: "tf32")
    monkeypatch.setattr(module, "_has_tf32", lambda x: True)
    with on_host() if DEVICE.type == "cpu" else nullcontext():
        yield


def training(optimizer=Optimizer.SGD, rule=TableOptimizer.SGD, config=CONFIG, backend="cuda"):
    model = made(config, backend)
    settings = replace(
        preset("mini").train, optimizer=optimizer, table_optimizer=rule, learning_rate=0.1, table_learning_rate=0.1,
        precision=Precision.TF32, batch_size=ROWS,
    )
    return model, make_optimizer(model, Preset(config, settings), capturable=True)


@pytest.mark.parametrize(
    ("optimizer", "rule"),
    [(Optimizer.SGD, TableOptimizer.SGD), (Optimizer.ADAGRAD, TableOptimizer.ADAGRAD)],
)
def test_the_steps_are_those_of_a_kernel_a_part(monkeypatch, optimizer, rule):
    losses, changes, ops = [], [], []
    for whole in (False, True):
        with monkeypatch.context() as patch:
            if not whole:
                patch.setattr(fused, "trains_whole", lambda *_: False)
            model, optimizers = training(optimizer, rule)
            before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
            for part in optimizers.parts.values():  # by default the sign of a gradient counts, however small that is
                part.param_groups[0]["eps"] = 0.1
            with fusing_gradients(optimizers), Called() as called:
                steps = [train_step(model, optimizers, *batch(ROWS, CONFIG, seed), Precision.TF32) for seed in (1, 2)]
        ops.append([op.split(".")[1] for op in called.ops])
        losses.append(torch.stack(steps))
        changes.append({name: weight.detach() - before[name] for name, weight in model.named_parameters()})
        for part, own in optimizers.parts.items():
            for i, state in own.state_dict()["state"].items():
                changes[-1] |= {f"{part} {i} {name}": value for name, value in state.items()}
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-4, atol=0)
    for name, theirs in changes[0].items():  # steps are short: beside the weights themselves they would not be seen
        assert (changes[1][name] - theirs).norm() <= 0.1 * theirs.norm(), name
    assert {"dlrm_forward_kept", "lookup_interact_gradients", "fused_mlp_step"} <= {*ops[1]}
    assert not {"fused_mlp", "dot_interaction", "embedding_bags", "lookup_interact"} & {*ops[1]}
    assert "dlrm_forward_kept" not in ops[0]


@pytest.mark.parametrize(
    ("changed", "taken"),
    [("nothing", True), ("few rows", False), ("many rows", False), ("not fusing", False), ("in eval", False),
     ("out of range", False), ("hook", False), ("hook of a parameter", False), ("hook of a buffer", False),
     ("lora", False), ("triton", False), ("interaction in triton", False), ("top in triton", False), ("widths", False),
     ("vectors", False), ("tables", False), ("full float32", False), ("x has a gradient", False)],
)  # fmt: skip
def test_where_it_is_taken(monkeypatch, changed, taken):
    config = replace(CONFIG, bottom=(13, 256, 120, 64, 16)) if changed == "widths" else CONFIG
    if changed == "vectors":  # wider than lookup_interact's, whose gradients are taken
        config = replace(CONFIG, bottom=(13, 256, 128, 64, 132), embedding_dim=132)
    model, optimizers = training(config=config, backend="triton" if changed == "triton" else "cuda")
    most = 32 * (multiprocessors() // 2)  # a tile for each pair of multiprocessors
    dense = torch.zeros({"few rows": 240, "many rows": most + 1}.get(changed, most), 13, device=DEVICE)
    if changed in ("interaction in triton", "top in triton"):
        (model.over_arch if changed == "top in triton" else model.interaction_arch).backend = "triton"
    if changed == "tables":
        model.sparse_arch.tables.__class__ = type("Tables", (FusedTables,), {})
    if changed == "full float32":
        monkeypatch.setattr(choice, "float32_products", lambda: "ieee")
    if changed == "hook of a buffer":
        optimizers.parts["mlps"].packed[0].buffer.register_hook(lambda _: None)
    if changed == "in eval":
        model.eval()
    if changed == "out of range":
        model.sparse_arch.tables.out_of_range = "zero"
    if changed == "hook":
        model.interaction_arch.register_forward_hook(lambda *_: None)
    if changed == "hook of a parameter":
        model.dense_arch.linears()[0].bias.register_hook(lambda _: None)
    if changed == "lora":
        apply_lora(model, rank=2, alpha=1.0)
    with nullcontext() if changed == "not fusing" else fusing_gradients(optimizers):
        assert not fused.trains_whole(model, dense)  # before zero_grad
        optimizers.zero_grad()
        assert fused.trains_whole(model, dense.requires_grad_(changed == "x has a gradient")) is taken
