"""Lesson 12: what is read of its record, its ways, the rounding of merged weights, the pictures."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import nn

from kernels import runtime
from lessons.n12_lora import formulations, merging, on_your_machine, pictures, recorded
from lessons.shared.records import copy_us
from model.lora import LinearWithLoRA
from model.profiling.operators import Operators


@pytest.fixture(autouse=True)
def closed():
    yield
    if plt := sys.modules.get("matplotlib.pyplot"):
        plt.close("all")


def test_many_adapters_give_the_same_by_every_way():
    x, A, B = torch.randn(9, 8), torch.randn(3, 8, 2), torch.randn(3, 2, 5)
    adapter = torch.tensor([0, 2, 2, 0, 0, 2, 0, 2, 2])  # one is nobody's
    wanted = torch.stack([x[row] @ A[number] @ B[number] for row, number in enumerate(adapter.tolist())])
    for name, way in formulations.MANY.items():
        if name != formulations.GROUPED:
            torch.testing.assert_close(way(x, A, B, adapter), wanted)


def test_groups_give_the_same():
    x, A, B = torch.randn(20, 16), torch.randn(3, 16, 16), torch.randn(3, 16, 32)
    adapter = torch.randint(0, 2, (20,)) * 2
    x, A, B = (tensor.bfloat16() for tensor in (x, A, B))
    try:
        found = formulations.grouped(x, A, B, adapter)
    except (AttributeError, RuntimeError, NotImplementedError) as error:
        pytest.skip(f"no product of groups here: {error}")
    torch.testing.assert_close(found, formulations.one_by_one(x, A, B, adapter), rtol=0.03, atol=0.5)


def test_one_product_is_the_layer():
    layer = LinearWithLoRA(nn.Linear(6, 9), 2, alpha=3, activation="tanh")
    layer.lora.reset_parameters(b_std=0.5)
    x = torch.randn(4, 6)
    torch.testing.assert_close(formulations.OneProduct(layer)(x), layer(x))


def test_what_merging_keeps():
    found = [merging.kept_of(std) for std in merging.STDS]
    for way in merging.WAYS:
        assert found[0].error[way] < 1
        assert found[0].projection[way] == pytest.approx(1, abs=1e-3)
        assert found[-1].error[way] > 250
    assert found[-1].projection["merged"] < found[-1].projection["beside"] < 0.5
    assert found[-1].projection["one product"] > 0.95
    assert merging.rounded(torch.tensor([1.001], dtype=torch.float64)).item() == 1


def test_merging_rounds_as_bfloat16_layers_do():
    """The same by PyTorch in bfloat16: a product's float32 sums may round to the neighbour now and then."""
    *drawn, unit = merging.drawn()
    x, W, A, B = (tensor.bfloat16() for tensor in (*drawn, 1e-3 * unit))
    _, _, found = merging.outputs(1e-3)
    layer = x @ W.T + merging.MULTIPLIER * ((x @ A) @ B)
    merged = x @ (W.double() + merging.MULTIPLIER * (A.double() @ B.double()).T).bfloat16().T
    assert (layer.double() == found["beside"]).double().mean() > 0.97
    assert (merged.double() == found["merged"]).double().mean() > 0.97


def test_passes_are_those_of_the_layer():
    layer = LinearWithLoRA(nn.Linear(64, 64), 2, alpha=3, activation="relu")
    x = torch.randn(1024, 64)
    with torch.no_grad(), Operators() as found:
        layer(x)
    assert found.seen == on_your_machine.operators(layer, x)
    moved = [round((operator.read + operator.written) / x.nbytes) for operator in found.seen]
    assert moved == [2, 1, 1, 2, 3, 2]
    assert copy_us(sum(moved[3:]) * x.nbytes) == recorded.saved_us(1024, 64, passes=7, size=4)
    pictures.draw_passes({"eager": found.seen}, x.nbytes)


@pytest.mark.parametrize(("fused", "passes"), [(False, {"threshold_backward": 3, "mul": 2}), (True, {})])
def test_passes_of_the_backward(fused, passes):
    """act and scale: 5 E in eager, 4 E in the epilogue's backward; both sum x's two gradients."""
    where = runtime.device()
    layer = LinearWithLoRA(nn.Linear(64, 64, device=where), 2, 3, activation="relu", fused=fused, backend="triton")
    x = torch.randn(1024, 64, device=where, requires_grad=True)
    out = layer(x)
    grad = torch.ones_like(out)
    with Operators() as found:
        torch.autograd.grad(out, (x, layer.lora.A, layer.lora.B), grad)
    moved = {each.name: round((each.read + each.written) / x.nbytes) for each in found.seen if each.name != "mm"}
    assert moved == (passes or {"add_mul_activation_backward": 4}) | {"add": 3}
    assert sum(each.name == "mm" for each in found.seen) == 5


# ------------------------------------------------------------------------------------------------------------------


def test_the_record_is_printed_and_drawn(capsys):
    recorded.print_training({recorded.SHAPES[0]: "eager"})
    recorded.print_model()
    recorded.print_adapters()
    recorded.judge_saving(62.7)
    recorded.judge("eager, 64 rows", 50, "Why.", "layer", "eager", "host_us", rows=64)
    assert len(pictures.draw_times().axes) == len(pictures.draw_times("training").axes) == 4
    printed = capsys.readouterr().out
    assert printed.count("; eager: ") == 1
    assert f"eager, 64 rows: predicted 50 µs, recorded {recorded.host_us('layer', 'eager', rows=64):.3g} µs" in printed


def test_pictures_need_no_record():
    pictures.draw_matrices()
    pictures.draw_kept()
    pictures.draw_blocks()


def test_on_your_machine(capsys):
    on_your_machine.layers(8, 16, 2)
    on_your_machine.adapters(8, 16, 3, 2)
    assert capsys.readouterr().out.count("µs a call") == 2
