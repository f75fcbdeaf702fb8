"""backend="fused_kernels" and whole DLRMs, as three repositories write them."""

from __future__ import annotations

import importlib
import shutil

import pytest
import torch
from compiled import check, recording
from compiled_styles import FEATURES, ROWS, Facebook, Torchrec

import kernels
from kernels import dispatch, runtime
from kernels.dispatch.core import on_host
from model.config import DLRMConfig
from model.dlrm import DLRM

pytestmark = pytest.mark.usefixtures("one_thread", "as_on_gpu")


class Ours(DLRM):
    """This repository's, one id a feature; the tables are one parameter, or each a module."""

    def __init__(self, sparse_gradients: bool):
        shape = {"bottom": (13, 16, 8), "embedding_dim": 8, "top": (16, 1), "cardinalities": ROWS}
        super().__init__(DLRMConfig(**shape, sparse_gradients=sparse_gradients))

    @staticmethod
    def inputs(rows: int):
        return torch.rand(rows, 13), torch.randint(1000, (rows, FEATURES))


LOOK_UPS = "embedding_bags_apart"
# And the ops that they become, in the order of the calls.
STYLES = {
    "facebook": (Facebook, ["fused_mlp", LOOK_UPS, "dot_interaction", "fused_mlp"]),
    "torchrec": (Torchrec, ["fused_mlp", LOOK_UPS, "dot_interaction", "fused_mlp"]),
    "ours": (lambda: Ours(sparse_gradients=True), ["fused_mlp", "dot_interaction", "fused_mlp"]),
    "ours_apart": (lambda: Ours(sparse_gradients=False), [LOOK_UPS, "fused_mlp", "dot_interaction", "fused_mlp"]),
}
OPS = {op for _, ops in STYLES.values() for op in ops}


@pytest.mark.parametrize("style", STYLES)
def test_a_dlrm_is_replaced(style):
    torch.manual_seed(0)
    make, ops = STYLES[style]
    model = make()
    recorded = check(model, model.inputs(4))
    assert recorded.ops == ops
    if LOOK_UPS in ops:
        assert recorded.declined == []
    else:
        (sentence,) = recorded.declined
        assert sentence.startswith(f"{LOOK_UPS}: sparse gradients, where the op's are dense")


def test_bags_of_this_repository():
    torch.manual_seed(0)
    rows, (make, ops) = 4, STYLES["ours_apart"]
    dense, ids, offsets = Torchrec.inputs(rows)
    assert check(make(), (dense, ids, offsets)).ops == ops


@pytest.mark.parametrize(
    "style", ["facebook", *(pytest.param(style, marks=pytest.mark.slow) for style in ("ours", "ours_apart"))]
)
def test_one_compilation_serves_batches_from_two_on(style):
    torch._dynamo.reset()
    torch.manual_seed(0)
    (make, ops), (backend, recorded) = STYLES[style], recording()
    model = make()
    compiled, graphs = torch.compile(model, backend=backend, dynamic=True), []
    for rows in (4, 7, 33, 2):
        inputs = model.inputs(rows)
        torch.testing.assert_close(compiled(*inputs), model(*inputs))
        graphs.append(recorded.graphs)
    # Dynamo starts over with a graph whose floats a backend asks for, plain aot_eager, too: norm_type of an embedding.
    assert graphs in ([1] * 4, [2] * 4)
    assert recorded.ops == ops * graphs[0]


@pytest.mark.slow
@pytest.mark.parametrize("style", STYLES)
def test_through_inductor(style):
    torch.manual_seed(0)
    make, ops = STYLES[style]
    model = make()
    assert check(model, model.inputs(4), inner="inductor").ops == ops


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("inner", ["aot_eager", "inductor"])
@pytest.mark.parametrize("style", STYLES)
def test_on_a_gpu(style, inner):
    torch.manual_seed(0)
    make, ops = STYLES[style]
    model = make()
    inputs = [value.cuda() for value in model.inputs(33)]
    assert check(model.cuda(), inputs, inner=inner, atol=1e-5, rtol=1e-4).ops == ops


@pytest.fixture
def on_kernels(monkeypatch):
    """As on a GPU: "auto" is a kernel, here Triton's in the interpreter, or CUDA's host build of an op without one; and
    AOTAutograd sees the dispatcher's ops."""
    if runtime.triton_mode() != "interpreted":
        pytest.skip("Triton is not interpreted here")
    if shutil.which("g++") is None:
        pytest.skip("g++ is missing")
    for op in map(dispatch.find, OPS):
        monkeypatch.setattr(op, "auto_on_cpu", op.backends[0])
    with on_host():
        yield


@pytest.mark.parametrize("style", ["facebook", "torchrec"])
def test_the_kernels_run_within_a_compiled_model(on_kernels, style):
    torch.manual_seed(0)
    make, ops = STYLES[style]
    model = make()
    assert check(model, model.inputs(4), atol=1e-5, rtol=1e-4).ops == ops


def test_the_kernels_are_compiled_once_for_batches_from_two_on(on_kernels):
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, graphs = Facebook(), []

    def forward_compiler(gm, example_inputs):
        graphs.append(gm)
        return importlib.import_module("functorch.compile").make_boxed_func(gm.forward)

    def inner(gm, example_inputs):
        return torch._dynamo.backends.common.aot_autograd(fw_compiler=forward_compiler)(gm, example_inputs)

    compiled = torch.compile(model, backend=lambda gm, args: kernels.compiler.compiled(gm, args, inner), dynamic=True)
    for rows in (4, 7, 2):
        inputs = model.inputs(rows)
        torch.testing.assert_close(compiled(*inputs), model(*inputs), atol=1e-5, rtol=1e-4)
    forward, backward = ([str(node.target) for node in gm.graph.nodes] for gm in graphs)  # and no third graph
    kernels_of = {op: dispatch.find(op).backends[0] for op in OPS}
    ops = STYLES["facebook"][1]
    assert [target for target in forward if "fused" in target] == [f"fused_kernels.{op}.{kernels_of[op]}" for op in ops]
    # What comes last has its gradient first; the look-ups have theirs behind the products, and the ids need none.
    gradients = [target for target in backward if "fused" in target]
    assert sorted(gradients) == sorted(f"fused_kernels.{op}_backward.{kernels_of[op]}" for op in ops)
