"""Lesson 11: its pictures, its ops."""

import pytest
import torch

import kernels

pytest.importorskip("matplotlib")

from kernels import runtime
from lessons.n11_make_it_an_op import declarations, inspection, on_your_machine, pictures


def test_pictures():
    x, bias = torch.randn(4, 6), torch.randn(6)
    graphs = {"formula": inspection.graph_of(lambda x, bias: torch.relu(x + bias), x, bias)}
    assert pictures.nodes(graphs["formula"]) == ["add", "relu"]
    figures = pictures.draw_path(), pictures.draw_places({"x": x, "x.T": x.T}), pictures.draw_graphs(graphs)
    for figure in (*figures, pictures.draw_rungs(8.0)):
        figure.canvas.draw()


@pytest.mark.parametrize("declare", [declarations.by_decorator, declarations.by_define])
def test_the_ops_pass_opcheck(declare):
    device = runtime.device()
    x, bias = (torch.randn(shape, device=device, requires_grad=True) for shape in ((3, 5), (5,)))
    torch.library.opcheck(declare("torch"), (x, bias))
    out = declare("torch")(x, bias)
    assert torch.equal(out, torch.relu(x + bias))
    assert torch.equal(kernels.add_relu(x.detach(), bias.detach()), out)


def test_on_your_machine(capsys):
    on_your_machine.calls(2, 3)
    assert len(capsys.readouterr().out.splitlines()) == 4
