"""The replacements in an exported program: saved, loaded, run with another batch and trained, it is the model."""

from __future__ import annotations

import contextlib
import io
import itertools
import shutil

import pytest
import torch
from compiled import Of
from test_compiler_look_ups import REPLACED, inputs
from test_compiler_styles import STYLES as ALL
from torch import nn
from torch.export import Dim

import kernels
from kernels import dispatch, runtime
from kernels.compiler.exported import replace_in
from kernels.dispatch.core import on_host

pytestmark = pytest.mark.usefixtures("one_thread", "as_on_gpu")
interpreted = pytest.mark.skipif(runtime.triton_mode() != "interpreted", reason="Triton is not interpreted here")
BATCH = Dim.DYNAMIC
STYLES = {"facebook": ({0: BATCH}, {1: BATCH}, {1: BATCH}), "ours": ({0: BATCH}, {0: BATCH})}


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("on_kernels", [False, pytest.param(True, marks=interpreted)])
def test_an_exported_dlrm(monkeypatch, style, on_kernels):
    (make, ops), shapes = ALL[style], STYLES[style]
    if on_kernels and shutil.which("g++") is None:
        pytest.skip("g++ is missing")
    kernels = {op: dispatch.find(op).backends[0] for op in ops} if on_kernels else dict.fromkeys(ops, "eager")
    for op, kernel in kernels.items():
        monkeypatch.setattr(dispatch.find(op), "auto_on_cpu", kernel)
    with on_host() if on_kernels else contextlib.nullcontext():
        check_exported(make, ops, shapes, kernels)


@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh])
def test_an_exported_mlp_with_a_batch_norm(activation):
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), activation(), nn.Linear(16, 8)).eval()
    with torch.no_grad():
        program = torch.export.export(model, (torch.randn(6, 8),), dynamic_shapes=({0: BATCH},))
    assert [replacement.op for replacement in replace_in(program).replaced] == ["fused_mlp"]
    file, x = io.BytesIO(), torch.randn(9, 8)
    torch.export.save(program, file)
    file.seek(0)
    torch.testing.assert_close(torch.export.load(file).module()(x), model(x))


@pytest.mark.parametrize(("least", "count"), [(2, 0), (4096, 1), (5000, 1)])
def test_a_program_for_many_rows_takes_the_kernel(least, count):
    """One for any number is taken for few, of which cuBLAS is as fast in wide layers."""
    widths = 8, 600, 600, 1
    layers = [nn.Sequential(nn.Linear(a, b), nn.ReLU()) for a, b in itertools.pairwise(widths)]
    model, rows = nn.Sequential(*layers).requires_grad_(False), {0: Dim("rows", min=least, max=9000)}
    program = torch.export.export(model, (torch.randn(6000, 8),), dynamic_shapes=(rows,))
    assert len(replace_in(program).replaced) == count


def check_exported(make, ops, shapes, kernels):
    torch.manual_seed(0)
    model = make()
    program = torch.export.export(model, model.inputs(4), dynamic_shapes=shapes)
    assert [replacement.op for replacement in replace_in(program).replaced] == ops
    targets = [str(node.target) for node in program.graph.nodes if "fused_kernels" in str(node.target)]
    if kernels.get("embedding_bags_apart") == "cuda":  # whose result is what the products want
        assert not any(node.target is torch.ops.aten.stack.default for node in program.graph.nodes)
    assert targets == [f"fused_kernels.{op}.{kernels[op]}" for op in ops if kernels[op] != "eager"]
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    loaded, inputs = torch.export.load(file).module(), model.inputs(9)
    got, want = loaded(*inputs), model(*inputs)
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-4)
    got.square().sum().backward()
    want.square().sum().backward()
    gradients = {name: parameter.grad for name, parameter in loaded.named_parameters()}
    for name, parameter in model.named_parameters():
        one, another = gradients[name].to_dense(), parameter.grad.to_dense()
        torch.testing.assert_close(one, another, atol=1e-5, rtol=1e-4)


def test_pairs_that_a_state_dict_may_change_are_no_constants():
    pairs = torch.tril_indices(4, 4, -1)

    def function(m, dense, sparse):
        vectors = torch.cat([dense.unsqueeze(1), sparse], 1)
        return torch.cat([dense, (vectors @ vectors.mT)[:, m.pairs[0], m.pairs[1]]], 1)

    arguments = torch.randn(5, 8), torch.randn(5, 3, 8)
    explanation = replace_in(torch.export.export(Of(function, pairs=pairs), arguments))
    assert explanation.replaced == []
    assert "the pairs' indices are not known when compiling" in explanation.declined[0]


def test_an_elu_is_declined_and_the_program_stays():
    model = nn.Sequential(nn.Linear(8, 8), nn.ELU(), nn.Linear(8, 4))
    x = torch.randn(3, 8)
    program = torch.export.export(model, (x,))
    explanation = replace_in(program)
    assert explanation.replaced == []
    assert "aten.elu.default stands between two layers" in str(explanation)
    torch.testing.assert_close(program.module()(x), model(x))


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is missing")
@pytest.mark.parametrize("name", ["bags", "stacked_otherwise", "ids_2d", "joined_twice", "returned"])
def test_exported_look_ups(monkeypatch, name):
    """And what is joined of all of them, once, is not taken apart before."""
    monkeypatch.setattr(dispatch.find("embedding_bags_apart"), "auto_on_cpu", "cuda")
    torch.manual_seed(0)
    model, arguments = REPLACED[name][0](), inputs()
    with on_host():
        program = torch.export.export(model, arguments)
        assert [replacement.op for replacement in replace_in(program).replaced] == ["embedding_bags_apart"]
        torch.testing.assert_close(program.module()(*arguments), model(*arguments))
    selects = [node for node in program.graph.nodes if node.target is torch.ops.aten.clone.default]
    assert len(selects) == (0 if name in ("bags", "ids_2d") else 3)


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is missing")
@pytest.mark.parametrize(
    "take",
    [
        lambda o: torch.cat([o[:, -1], o[:, 0], o[:, 1]], 1),
        lambda o: torch.cat([o[:, 0], o[:, 2]], 1),
        lambda o: torch.stack([o[:, 0], o[:, 1]], 1),
        lambda o: torch.cat([o[:, 0], o.flatten(1)], 1),
        lambda o: torch.cat([o[:, 0], o.view(5, 12)], 1),
        lambda o: torch.cat([o[:, 0], o.permute(0, 2, 1).reshape(5, 12)], 1),
        lambda o: torch.cat([o[:, 0], o[:, 1], o[:, 2]], 1),
    ],
)
def test_what_a_program_takes_of_the_ops_own_result_stays(take):
    tables = [torch.randn(rows, 4) for rows in (7, 8, 9)]

    def function(m, *ids):
        return take(kernels.embedding_bags_apart([m.a, m.b, m.c], list(ids), backend="cuda"))

    module, arguments = Of(function, **dict(zip("abc", tables, strict=True))), [torch.randint(7, (5,)) for _ in tables]
    with on_host():
        program = torch.export.export(module, tuple(arguments))
        want = program.module()(*arguments)
        replace_in(program)
        torch.testing.assert_close(program.module()(*arguments), want)


@pytest.mark.parametrize("decomposed", [False, True])
def test_what_export_asserts_of_a_look_up_is_no_reader_of_it(decomposed):
    """torchrec's look-ups are cast to the type that they have; what is asserted of an input stays."""

    def function(m, dense, *ids):
        bags = [table(indices.flatten(), m.offsets) for table, indices in zip(m.tables, ids, strict=True)]
        vectors = [bag.to(torch.float32) for bag in bags]
        return torch.cat([dense.to(torch.float32), *vectors], 1)

    tables = nn.ModuleList(nn.EmbeddingBag(20 + k, 8, mode="sum") for k in range(3))
    model = Of(function, tables=tables, offsets=torch.arange(0, 12, 3))
    arguments = torch.rand(4, 5), *(torch.randint(20, (4, 3)) for _ in range(3))
    program = torch.export.export(model, arguments)
    if decomposed:
        program = program.run_decompositions({})
    asserted = torch.ops.aten._assert_tensor_metadata.default
    assert len(program.graph.find_nodes(op="call_function", target=asserted)) == 4
    assert [replacement.op for replacement in replace_in(program).replaced] == ["embedding_bags_apart"]
    (left,) = program.graph.find_nodes(op="call_function", target=asserted)
    assert left.args[0].op == "placeholder"
    torch.testing.assert_close(program.module()(*arguments), model(*arguments))
    with pytest.raises(RuntimeError, match="dtype"):
        program.module()(arguments[0].double(), *arguments[1:])


def test_what_export_asserts_of_a_value_that_is_still_computed_stays():
    program = torch.export.export(Of(lambda m, x: (2 * x).float() + 1), (torch.rand(4),))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="Tensor dtype mismatch! Expected: Float, Got: double"):
            program.module()(torch.rand(4).double())
        replace_in(program)
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    torch.testing.assert_close(torch.export.load(file).module()(torch.ones(4)), torch.full((4,), 3.0))


def test_an_operator_between_the_parts_that_writes_nothing_is_no_hindrance():
    """Ids that are split by sizes which the GPU computes, as torchrec's are: that call cannot be traced by itself."""

    def function(m, dense, values, lengths, offsets):
        dense = m.bottom(dense)
        ids = torch.split(values, lengths.tolist())
        bags = [table(indices, start) for table, indices, start in zip(m.tables, ids, offsets.unbind(), strict=True)]
        vectors = torch.stack([dense, *bags], 1)
        i, j = torch.tril_indices(3, 3, -1).unbind()
        return m.top(torch.cat([dense, (vectors @ vectors.mT)[:, i, j]], 1))

    model = Of(
        function, bottom=nn.Sequential(nn.Linear(5, 8), nn.ReLU()), top=nn.Sequential(nn.Linear(11, 1)),
        tables=nn.ModuleList(nn.EmbeddingBag(20 + k, 8, mode="sum", include_last_offset=True) for k in range(2)),
    ).requires_grad_(False)
    values, lengths = torch.randint(20, (9,)), torch.tensor([4, 5])
    offsets = torch.tensor([[0, 1, 3, 3, 4], [0, 0, 2, 5, 5]])
    arguments = torch.rand(4, 5), values, lengths, offsets
    with torch.no_grad():
        program = torch.export.export(model, arguments)
        assert [replacement.op for replacement in replace_in(program).replaced] == ["dlrm_forward"]
    torch.testing.assert_close(program.module()(*arguments), model(*arguments))
