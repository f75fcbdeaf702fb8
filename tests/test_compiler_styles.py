"""backend="fused_kernels" and whole DLRMs, as three repositories write them."""

from __future__ import annotations

import copy
import importlib

import pytest
import torch
from compiled import check, recording
from compiled_styles import FEATURES, ROWS, Facebook, Torchrec
from torch import nn

import kernels
from kernels import dispatch, runtime
from model.config import DLRMConfig
from model.dlrm import DLRM

pytestmark = pytest.mark.usefixtures("one_thread")


class Ours(DLRM):
    """This repository's, one id a feature; the tables are one parameter, or each a module."""

    def __init__(self, sparse_gradients: bool):
        shape = {"bottom": (13, 16, 8), "embedding_dim": 8, "top": (16, 1), "cardinalities": ROWS}
        super().__init__(DLRMConfig(**shape, sparse_gradients=sparse_gradients))

    @staticmethod
    def inputs(rows: int):
        return torch.rand(rows, 13), torch.randint(1000, (rows, FEATURES))


STYLES = {
    "facebook": (Facebook, "the tables lie apart"),
    "torchrec": (Torchrec, "include_last_offset"),
    "ours": (lambda: Ours(sparse_gradients=True), "sparse gradients"),
    "ours_apart": (lambda: Ours(sparse_gradients=False), "the tables lie apart"),
}
OPS = ["fused_mlp", "dot_interaction", "fused_mlp"]


@pytest.mark.parametrize("style", STYLES)
def test_a_dlrm_is_replaced_but_for_its_look_ups(style):
    torch.manual_seed(0)
    make, condition = STYLES[style]
    model = make()
    recorded = check(model, model.inputs(4))
    assert recorded.ops == OPS
    assert len(recorded.declined) == 1
    assert recorded.declined[0].startswith("embedding_bags: ")
    assert condition in recorded.declined[0]


def test_bags_of_this_repository():
    torch.manual_seed(0)
    rows, model = 4, Ours(sparse_gradients=False)
    dense, ids, offsets = Torchrec.inputs(rows)
    assert check(model, (dense, ids, offsets)).ops == OPS


@pytest.mark.parametrize(
    "style", ["facebook", *(pytest.param(style, marks=pytest.mark.slow) for style in ("ours", "ours_apart"))]
)
def test_one_compilation_serves_batches_from_two_on(style):
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, (backend, recorded) = STYLES[style][0](), recording()
    compiled, graphs = torch.compile(model, backend=backend, dynamic=True), []
    for rows in (4, 7, 33, 2):
        inputs = model.inputs(rows)
        torch.testing.assert_close(compiled(*inputs), model(*inputs))
        graphs.append(recorded.graphs)
    # Dynamo starts over with a graph whose floats a backend asks for, plain aot_eager, too: norm_type of an embedding.
    assert graphs in ([1] * 4, [2] * 4)
    assert recorded.ops == OPS * graphs[0]


def test_training_is_eagers():
    """Twenty steps of SGD: the same losses, so weights are read at the call."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, (backend, recorded) = Facebook(), recording()
    other = copy.deepcopy(model)
    compiled = torch.compile(other, backend=backend)
    inputs, target = Facebook.inputs(16), torch.rand(16, 1)

    def losses(call, module: nn.Module) -> list[float]:
        optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
        found = []
        for _ in range(20):
            loss = nn.functional.mse_loss(call(*inputs), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return found

    want, got = losses(model, model), losses(compiled, other)
    assert want[0] > want[-1]
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6)
    assert recorded.ops == OPS
    assert recorded.graphs == 1


@pytest.mark.slow
@pytest.mark.parametrize("style", STYLES)
def test_through_inductor(style):
    torch.manual_seed(0)
    model = STYLES[style][0]()
    assert check(model, model.inputs(4), inner="inductor").ops == OPS


@pytest.fixture
def on_triton(monkeypatch):
    """As on a GPU: "auto" is a kernel, here Triton's in the interpreter, and AOTAutograd sees the dispatcher's ops."""
    if runtime.triton_mode() != "interpreted":
        pytest.skip("Triton is not interpreted here")
    for op in set(OPS):
        monkeypatch.setattr(dispatch.find(op), "auto_on_cpu", "triton")


@pytest.mark.parametrize("style", ["facebook", "torchrec"])
def test_the_kernels_run_within_a_compiled_model(on_triton, style):
    torch.manual_seed(0)
    model = STYLES[style][0]()
    assert check(model, model.inputs(4), atol=1e-5, rtol=1e-4).ops == OPS


def test_the_kernels_are_compiled_once_for_batches_from_two_on(on_triton):
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, graphs = Facebook(), []

    def forward_compiler(gm, example_inputs):
        graphs.append(gm)
        return importlib.import_module("functorch.compile").make_boxed_func(gm.forward)

    def inner(gm, example_inputs):
        return torch._dynamo.backends.common.aot_autograd(fw_compiler=forward_compiler)(gm, example_inputs)

    compiled = torch.compile(model, backend=lambda gm, given: kernels.compiler.compiled(gm, given, inner), dynamic=True)
    for rows in (4, 7, 2):
        inputs = model.inputs(rows)
        torch.testing.assert_close(compiled(*inputs), model(*inputs), atol=1e-5, rtol=1e-4)
    forward, backward = ([str(node.target) for node in gm.graph.nodes] for gm in graphs)  # and no third graph
    assert [target for target in forward if "fused" in target] == [f"fused_kernels.{op}.triton" for op in OPS]
    assert [target for target in backward if "fused" in target] == [f"fused_kernels.{op}_backward.triton" for op in OPS]
