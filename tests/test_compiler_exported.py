"""The replacements in an exported program: saved, loaded, run with another batch and trained, it is the model."""

from __future__ import annotations

import io

import pytest
import torch
from compiled import Of
from compiled_styles import Facebook
from test_compiler_styles import OPS, Ours
from torch import nn
from torch.export import Dim

from kernels import dispatch, runtime
from kernels.compiler.exported import replace_in

pytestmark = pytest.mark.usefixtures("one_thread")
interpreted = pytest.mark.skipif(runtime.triton_mode() != "interpreted", reason="Triton is not interpreted here")
BATCH = Dim.DYNAMIC
STYLES = {
    "facebook": (Facebook, ({0: BATCH}, {1: BATCH}, {1: BATCH})),
    "ours": (lambda: Ours(sparse_gradients=True), ({0: BATCH}, {0: BATCH})),
}


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("kernel", ["eager", pytest.param("triton", marks=interpreted)])
def test_an_exported_dlrm(monkeypatch, style, kernel):
    for op in set(OPS):
        monkeypatch.setattr(dispatch.find(op), "auto_on_cpu", kernel)
    torch.manual_seed(0)
    make, shapes = STYLES[style]
    model = make()
    program = torch.export.export(model, model.inputs(4), dynamic_shapes=shapes)
    assert [each.op for each in replace_in(program).replaced] == OPS
    targets = [str(node.target) for node in program.graph.nodes if "fused_kernels" in str(node.target)]
    assert targets == ([f"fused_kernels.{op}.triton" for op in OPS] if kernel == "triton" else [])
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

    given = torch.randn(5, 8), torch.randn(5, 3, 8)
    explanation = replace_in(torch.export.export(Of(function, pairs=pairs), given))
    assert explanation.replaced == []
    assert "the pairs' indices are not known when compiling" in explanation.declined[0]


def test_a_tanh_is_declined_and_the_program_stays():
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))
    x = torch.randn(3, 8)
    program = torch.export.export(model, (x,))
    explanation = replace_in(program)
    assert explanation.replaced == []
    assert "aten.tanh.default stands between two layers" in str(explanation)
    torch.testing.assert_close(program.module()(x), model(x))
