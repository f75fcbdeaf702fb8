"""Which form computes a replacement: the op, its module and the backend decide alike, and where it is eager nothing is
replaced and a sentence says why."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from compiled import recording
from test_compiler_whole import Model, inputs
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import kernels
from kernels import runtime
from kernels.compiler import as_on_gpu, forms, replace
from kernels.compiler.exported import replace_in
from kernels.compiler.match import Miss
from kernels.ops.fused_mlp import choice, module
from model import DLRM, Hash, preset

pytestmark = pytest.mark.usefixtures("one_thread")
CPU = torch.device("cpu")  # whose limits are an H200's


@pytest.fixture(autouse=True)
def _fresh_dynamo():
    torch._dynamo.reset()


@pytest.fixture
def products_in():
    """A function that sets what torch computes float32 products in, on a GPU."""
    before = torch.backends.cuda.matmul.fp32_precision

    def products_in(precision: str) -> None:
        torch.backends.cuda.matmul.fp32_precision = precision

    yield products_in
    torch.backends.cuda.matmul.fp32_precision = before


def layers(*widths: int) -> nn.Sequential:
    parts = [part for pair in pairwise(widths) for part in (nn.Linear(*pair), nn.ReLU())]
    return nn.Sequential(*parts[:-1])


def test_on_a_cpu_nothing_is_replaced():
    """The graph is Dynamo's own, and a sentence says so of each match."""
    text = str(kernels.explain(Model(), *inputs()))
    assert "nothing is replaced" in text
    for op in ("fused_mlp", "embedding_bags_apart", "dot_interaction"):
        assert f"\n  {op}: " in text
    assert text.count(forms.ON_CPU) == 4
    assert text.splitlines()[-1].startswith("what it is on a GPU: with kernels.compiler.as_on_gpu()")
    with torch.no_grad():
        (sentence,) = kernels.explain(Model(), *inputs()).declined
    shape = "3 tables of width 4, bottom 13-8-4, top 10-8-1, ieee"
    assert sentence.startswith(f"dlrm_forward: {shape}: {forms.ON_CPU} (at")
    backend, recorded = recording()
    torch.compile(Model(), backend=backend)(*inputs())
    assert recorded.ops == []


def test_an_op_whose_form_on_a_cpu_is_a_kernel_is_put_in_place(monkeypatch):
    monkeypatch.setattr(forms.declaration("fused_mlp"), "auto_on_cpu", "triton")
    (replaced,) = kernels.explain(layers(8, 8, 8), torch.randn(5, 8)).replaced
    assert replaced.op == "fused_mlp"


@pytest.mark.parametrize(
    ("widths", "dtype", "precision", "form"),
    [
        ("13-512-256-64-16", torch.float32, "ieee", "eager"),
        ("13-512-256-64-16", torch.float32, "tf32", "triton"),
        ("13-512-256-64-16", torch.bfloat16, "ieee", "triton"),
        ("64-65536-1", torch.bfloat16, "ieee", "eager"),
        ("479-1024-1024-512-256-1", torch.float32, "tf32", "eager"),
    ],
)
def test_op_module_and_backend_decide_alike(widths, dtype, precision, form, monkeypatch, products_in):
    monkeypatch.setattr(choice, "is_compiling", lambda: True)
    gpu = mock.Mock(type="cuda")
    with mock.patch.object(choice.launch, "shared_memory", return_value=232448):
        assert choice.auto_of(2048, widths, dtype, precision, False, gpu) == form
        assert module.is_chosen(2048, widths, dtype, precision, False, gpu, "auto") is (form != "eager")
    model = layers(*map(int, widths.split("-"))).to(dtype)
    x = torch.randn(4, model[0].in_features, dtype=dtype)
    products_in(precision)
    with as_on_gpu():
        explanation = kernels.explain(model, x)
    assert [(found.op, found.form) for found in explanation.replaced] == [("fused_mlp", form)] * (form != "eager")
    if form == "eager":
        why = "too wide for one kernel" if precision == "tf32" or dtype != torch.float32 else "in full float32"
        assert f"fused_mlp: {widths}: " in explanation.declined[0]
        assert why in explanation.declined[0]


def test_a_call_in_full_float32_is_eager_too():
    gpu = mock.Mock(type="cuda")
    assert choice.auto_of(2048, "13-512-256-64-16", torch.float32, "ieee", False, gpu) == "eager"
    assert not module.is_chosen(2048, "13-512-256-64-16", torch.float32, "ieee", False, gpu, "auto")


def test_few_rows_may_have_another_form_than_many(monkeypatch):
    """Whether they are few is a guard of torch.compile: a compilation for few and one for many serve all batches."""
    monkeypatch.setattr(choice, "cuda_rows", lambda *arguments: 16)
    monkeypatch.setattr(choice, "is_full_float32", lambda *_: False)
    chosen = []
    monkeypatch.setattr(forms, "runs", lambda form, node: chosen.append(form) or form)
    monkeypatch.setattr("kernels.compiler.mlp.runs", forms.runs)
    model = layers(8, 8, 8)
    backend, recorded = recording()
    compiled = torch.compile(model, backend=backend, dynamic=True)
    with as_on_gpu():
        for rows in (5, 7, 16, 300, 17, 40, 3):
            x = torch.randn(rows, 8)
            torch.testing.assert_close(compiled(x), model(x))
    assert chosen == ["cuda", "triton"]
    assert recorded.graphs == 2
    with as_on_gpu():
        program = torch.export.export(model, (torch.randn(5, 8),), dynamic_shapes=({0: torch.export.Dim("rows")},))
        (replaced,) = replace_in(program).replaced
    assert replaced.form == "triton"
    torch.testing.assert_close(program.module()(x), model(x))


def test_on_a_cuda_device_each_call_names_its_form(monkeypatch, products_in):
    """A graph of fake tensors of a GPU, whose limits are an H200's."""

    def model(dense, first, bias, second, ids, a, b, c):
        x = F.relu(F.linear(F.relu(F.linear(dense, first, bias)), second))
        t = torch.stack([x, *map(F.embedding, ids.unbind(0), (a, b, c))], 1)
        i, j = torch.tril_indices(4, 4, -1, device="cuda").unbind(0)
        pairs = torch.ops.aten.index.Tensor(torch.bmm(t, t.transpose(1, 2)), [None, i, j])  # [:, i, j], without CUDA
        return torch.cat([x, pairs], 1), F.relu(dense + bias)

    shapes = (5, 8), (8, 8), (8,), (8, 8), (7, 8), (8, 8), (9, 8)
    properties = mock.Mock(shared_memory_per_block_optin=232448, multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device=None: properties)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    monkeypatch.setattr(runtime, "why_not", lambda form, device: "")
    products_in("tf32")
    with FakeTensorMode():
        dense, first, bias, second, *tables = (torch.empty(shape, device="cuda") for shape in shapes)
        ids = torch.empty(3, 5, dtype=torch.long, device="cuda")
        graph = make_fx(model, pre_dispatch=True)(dense, first, bias, second, ids, *tables)
    with torch.enable_grad():
        done = replace.rewrite(graph, {})
    assert {(site.found.op, site.found.form) for site in done.sites} == {
        ("fused_mlp", "triton"), ("embedding_bags_apart", "cuda"), ("dot_interaction", "cuda"), ("add_relu", "triton"),
    }
    calls = {node.target.__name__: node.kwargs for node in graph.graph.nodes if node.op == "call_function"}
    for site in done.sites:
        assert calls[site.found.op]["backend"] == site.found.form


def test_a_form_that_does_not_run_here_is_not_put_in_place(monkeypatch):
    """On a CUDA device, whose form a call names."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        node = mock.Mock(meta={"val": torch.empty(5, 8, device="cuda")})
    assert forms.backend_of("cuda", node.meta["val"].device) == {"backend": "cuda"}
    assert forms.backend_of("cuda", CPU) == {}
    monkeypatch.setattr(runtime, "why_not", lambda form, device: "")
    assert forms.only_form("dot_interaction", node) == "cuda"
    assert forms.only_form("add_relu", node) == "triton"
    monkeypatch.setattr(runtime, "why_not", lambda form, device: "no compiler")
    with pytest.raises(Miss, match="its form cuda does not run here: no compiler"):
        forms.only_form("dot_interaction", node)


@pytest.mark.parametrize(
    ("widths", "dtype", "most"),
    [
        ((8, 8, 8), torch.float32, 4096),
        ((8, 8, 8), torch.bfloat16, None),
        ((8, 400, 400, 1), torch.bfloat16, None),  # some 50 thousand weights a layer
        ((8, 600, 600, 1), torch.bfloat16, 4096),
        ((8, 600, 600, 1), torch.float32, 0),
    ],
)
def test_in_training_many_rows_are_left_to_cublas(widths, dtype, most, products_in):
    products_in("tf32")
    model = layers(*widths).to(dtype)

    def replaced(rows: int) -> bool:
        with as_on_gpu():
            explanation = kernels.explain(model, torch.randn(rows, 8, dtype=dtype))
        why = "in training cuBLAS is faster" + (f" beyond {most:,} rows" if most else "")
        assert explanation.replaced or why in explanation.declined[0]
        return bool(explanation.replaced)

    assert [rows for rows in (2, 4096, 4097) if replaced(rows)] == [
        rows for rows in (2, 4096, 4097) if most is None or rows <= most
    ]


@pytest.mark.parametrize(
    ("widths", "dtype", "least"),
    [
        ((8, 8, 8), torch.float32, 2),
        ((8, 600, 600, 1), torch.bfloat16, 2),
        ((8, 600, 600, 1), torch.float32, 4096),  # some 120 thousand weights a layer
        ((8, 300, 300, 300), torch.float32, 2),
        ((256, 256, 256), torch.float32, 16384),  # two layers of some 60 thousand
        ((256, 256, 256), torch.bfloat16, 16384),
        ((200, 250, 200), torch.bfloat16, 2),
    ],
)
def test_in_inference_few_rows_of_wide_layers_are_left_to_cublas(widths, dtype, least, products_in):
    products_in("tf32")
    model = layers(*widths).to(dtype)
    for rows in (1, least - 1, least):
        with as_on_gpu(), torch.no_grad():
            explanation = kernels.explain(model, torch.zeros(rows, widths[0], dtype=dtype))
        why = f"of fewer than {least:,} rows a kernel gains nothing" if least > 2 else "of one row"
        assert bool(explanation.replaced) == (rows >= least), rows
        assert explanation.replaced or why in explanation.declined[0]


@pytest.mark.parametrize(("name", "dtype", "rows", "is_whole"), [
    ("main", torch.float32, 64, True), ("mlperf", torch.float32, 64, False), ("mlperf", torch.float32, 2048, False),
    ("mlperf", torch.bfloat16, 240, True), ("mlperf", torch.bfloat16, 241, False),
])  # fmt: skip
def test_a_model_with_many_weights_goes_in_parts(name, dtype, rows, is_whole, products_in):
    """But for few rows of fewer weights, which clusters of multiprocessors share."""
    products_in("tf32")
    model = DLRM(dataclasses.replace(preset(name).model, cardinalities=(10,) * 26, hash=Hash.MODULUS)).eval().to(dtype)
    with as_on_gpu(), torch.no_grad():
        explanation = kernels.explain(model, torch.randn(rows, 13, dtype=dtype), torch.randint(100, (rows, 26)))
    ops = {found.op for found in explanation.replaced}
    assert ops == ({"dlrm_forward"} if is_whole else {"fused_mlp", "dot_interaction", "embedding_bags_apart"})
    reasons = [sentence for sentence in explanation.declined if sentence.startswith("dlrm_forward: ")]
    assert reasons == [] if is_whole else "its parts are faster" in reasons[0]


@pytest.mark.parametrize(("most", "ops"), [(8192, []), (4000, ["fused_mlp"])])
def test_a_range_of_rows_is_kept(most, ops, products_in):
    """mark_dynamic's, of which a guard may leave nothing out."""
    products_in("tf32")
    x, (backend, recorded) = torch.randn(40, 8), recording()
    torch._dynamo.mark_dynamic(x, 0, min=2, max=most)
    with as_on_gpu():
        torch.compile(layers(8, 8, 8), backend=backend)(x)
    assert recorded.ops == ops
