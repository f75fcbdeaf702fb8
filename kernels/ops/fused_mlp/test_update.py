"""update.py's ops: by their specs, and against the backward of fused_mlp, autograd and torch.optim."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest
import torch
from torch import nn

from ... import runtime
from ...check import Case, check
from ...check.contract import DEVICE, Contract, every_backend, kernel_backend
from ...dispatch.core import on_host
from . import cuda_launch, eager
from .op import OP
from .packing import copied, elements, hidden_parts, padded, views
from .update import CHAIN, GRADIENTS, STEP


@pytest.mark.parametrize(("rule", "decay"), [("sgd", 0.0), ("sgd", 0.1), ("adagrad", 0.1)])
def test_the_references_are_autograds_and_torch_optims(rule, decay):
    """In float64: a gelu, which keeps what it is applied to, and a relu."""
    torch.manual_seed(0)
    widths, names, x = "5-7-4-3", ("gelu", "relu"), torch.randn(9, 6, dtype=torch.float64)
    linears = [nn.Linear(5, 7), nn.Linear(7, 4), nn.Linear(4, 3)]
    for linear in linears:
        linear.double()
    parameters = [linear.weight for linear in linears], [linear.bias for linear in linears]
    packed, h, z = copied(*parameters), [x[:, :5].clone().requires_grad_()], []
    for linear, act in zip(linears, ("gelu", "gelu", "relu"), strict=True):
        z.append(linear(h[-1]))
        h.append(eager.ACTIVATIONS[act](z[-1]))
    grad_out, out = torch.randn(9, 3, dtype=torch.float64), h[-1]
    out.backward(grad_out)
    make = {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad}[rule]
    make([*parameters[0], *parameters[1]], lr=0.3, weight_decay=decay).step()

    outputs, inputs, columns = hidden_parts(widths, *names)
    layer_values = torch.zeros(9, columns, dtype=torch.float64)
    for i in range(2):
        for column, value in ((outputs[i], h[i + 1]), (inputs[i], z[i])):
            layer_values[:, column : column + value.shape[1]] = value.detach()
    grad_x, grads = eager.chain(grad_out, packed, layer_values, out.detach(), widths, *names, "ieee", 6)
    torch.testing.assert_close(grad_x, nn.functional.pad(h[0].grad, (0, 1)))
    assert grads.shape == (9, sum(map(padded, (7, 4, 3))))
    rate, state = torch.tensor(0.3, dtype=torch.float64), torch.zeros_like(packed)
    eager.step(packed, state, [x], [layer_values], [grads], rate, rule, decay, 1e-10, widths)
    for (weight, bias), linear in zip(views(packed, widths), linears, strict=True):
        torch.testing.assert_close(weight, linear.weight.detach())
        torch.testing.assert_close(bias, linear.bias.detach())


class Undifferentiable(Contract):
    def function(self, backend, in_place=False):
        return functools.partial(self.declaration.call, backend)

    @every_backend
    def test_adversarial_cases(self, backend):
        check(self.op, self.function(backend), cases=self.cases(backend))

    @kernel_backend
    def test_opcheck(self, backend):
        for call in self.calls(Case((9, 5)))[:2]:
            torch.library.opcheck(self.declaration.overload(backend), self.overload_arguments(call))

    @every_backend
    def test_wrong_input(self, backend):
        call = self.call()
        for name, wrong, error, message in self.wrong_input(call):
            arguments = list(call.arguments())
            arguments[self.spec.arguments.index(name)] = wrong
            with pytest.raises(error, match=f"^{self.op}: {message}"):
                self.function(backend)(*arguments)


class TestChain(Undifferentiable):
    op = CHAIN.name

    def wrong_input(self, call):
        grad_out, packed, hidden, out = call.tensors
        return (
            ("grad_out", None, TypeError, "grad_out must be a tensor; got NoneType"),
            ("grad_out", grad_out[0], ValueError, r"grad_out must have shape \[B, N\]"),
            ("packed", packed[:-1], ValueError, r"packed must have shape"),
            ("packed", packed.double(), TypeError, "packed must have grad_out's dtype, float32; got float64"),
            ("layer_values", hidden[1:], ValueError, "layer_values must have shape"),
            ("out", out.to("meta"), ValueError, "out must be on grad_out's device"),
            ("activation", "elu", ValueError, "activation must be one of"),
            ("x_columns", 7, ValueError, "x_columns must be 0, or 13 or more; got 7"),
        )

    @kernel_backend
    def test_it_is_what_the_backward_begins_with(self, backend):
        """grad_x to the bit; with eager's products the weights' gradients."""
        for call in self.calls(Case((33, 3))):
            grad_out, packed, hidden, out = call.tensors
            widths, *names, precision, columns = call.options
            x = torch.randn(33, columns or 3, device=DEVICE)
            options = widths, *names, precision, True
            grad_x, _ = OP.overload(backend, "backward")(grad_out, x, packed, hidden, out, *options, [True, True])
            found, _ = CHAIN.call(backend, *call.tensors, widths, *names, precision, x.shape[1])
            assert torch.equal(found, grad_x)


class TestGradients(Undifferentiable):
    op = GRADIENTS.name

    def wrong_input(self, call):
        x, values, grads = call.tensors
        one_each = "x, layer_values and layer_grads must have a tensor for each MLP of widths"
        return (
            ("x", [], ValueError, "x must have one tensor at least; got none"),
            ("x", x[:1], ValueError, f"{one_each}, 2; got 1, 2 and 2"),
            ("x", [x[0].double(), x[1]], TypeError, r"x\[0\] must be float32; got float64"),
            ("x", [x[0], x[1][1:]], ValueError, r"x\[1\] must have shape \[5, 16\] or be wider; got \[4, 17\]"),
            ("layer_values", [values[0][:, 16:], values[1]], ValueError, r"layer_values\[0\] must have shape .* wider"),
            ("layer_grads", [grads[0].half(), grads[1]], TypeError, r"layer_grads\[0\] must have x\[0\]'s dtype"),
            ("layer_grads", [grads[0], grads[1].to("meta")], ValueError, r"layer_grads\[1\] must be on x\[0\]'s"),
            ("widths", "", ValueError, f"{one_each}, 0; got 2, 2 and 2"),
        )


class TestStep(Undifferentiable):
    op = STEP.name

    def wrong_input(self, call):
        packed, _, x, *_, rate = call.tensors
        return (
            ("packed", packed.double(), TypeError, "packed must be float32; got float64"),
            ("packed", packed[:-1], ValueError, r"packed must have shape \[\d+\]; got"),
            ("state", packed[:-1], ValueError, r"state must have shape \[\d+\]; got"),
            ("rule", "adam", ValueError, "rule must be one of sgd, adagrad; got 'adam'"),
            ("rule", "sgd", ValueError, r"state must have shape \[0\]; got"),
            ("x", [], ValueError, "x must have one tensor at least; got none"),
            ("x", x[:1], ValueError, "x, layer_values and layer_grads must have a tensor for each MLP of widths, 2"),
            ("x", [x[0].to("meta"), x[1]], ValueError, r"x\[0\] must be on packed's device"),
            ("learning_rate", rate.double(), TypeError, "learning_rate must be float32; got float64"),
            ("learning_rate", rate[None], ValueError, r"learning_rate must have shape \[\]"),
            ("learning_rate", 0.1, TypeError, "learning_rate must be a tensor; got float"),
        )

    @kernel_backend
    def test_mlps_at_once_have_the_bits_of_each_alone(self, backend):
        """Where as many parts are added up; and their gradient is what a step takes."""
        for call in self.calls(Case((70, 3)))[:2]:
            packed, state, x, values, grads, rate = call.tensors
            *options, widths = call.options
            sizes, apart, plain = [*map(elements, widths.split())], packed.clone(), packed.clone()
            states = state.clone().split(sizes if len(state) else 0)
            states = states * len(sizes) if len(states) == 1 else states
            STEP.call(backend, packed, state, x, values, grads, rate, *options, widths)
            for part, own, of_mlp, *tensors in zip(
                apart.split(sizes), states, widths.split(), x, values, grads, strict=True
            ):
                STEP.call(backend, part, own, *([tensor] for tensor in tensors), rate, *options, of_mlp)
            assert torch.equal(packed, apart)
            assert torch.equal(state, states[0] if not len(state) else torch.cat(states))
        plain -= rate * GRADIENTS.call(backend, x, values, grads, widths)  # the last call is SGD's, without decay
        torch.testing.assert_close(packed, plain)


# Each is a line of step.cuh, and what a slip makes of it.
MUTANTS = [
    ("part < call.parts", "part < call.parts - 1"),
    ("long long part = 1; part", "long long part = 0; part"),
    ("part * call.elements + first", "part * call.elements"),
    ("decay != 0.0f", "decay == 0.0f"),
    ("step[e] * step[e];", "step[e];"),
    ("sqrtf(state[e])", "sqrtf(before.element[e])"),
    ("(call.state + first, state)", "(call.state + first, before.element)"),
    ("weights.element[e] - (adagrad", "weights.element[e] + (adagrad"),
    ("step<adagrad, 1>(call, first + e)", "step<adagrad, 1>(call, first)"),
]


@pytest.mark.slow
@pytest.mark.skipif(DEVICE.type == "cuda", reason="on the host")
@pytest.mark.parametrize(("old", "new"), MUTANTS, ids=lambda text: text[:30])
def test_a_mutant_of_the_step_dies(monkeypatch, old, new):
    header = (runtime.KERNELS / "ops/fused_mlp/step.cuh").read_text().replace("#pragma once", "")
    assert header.count(old) == 1, "the mutant is of one line"
    whole = cuda_launch.source

    def source(rule):
        own = whole(rule)
        return replace(own, text=own.text.replace('#include "ops/fused_mlp/step.cuh"', header.replace(old, new)))

    monkeypatch.setattr(cuda_launch, "source", source)
    with on_host(), pytest.raises(AssertionError):
        check(STEP.name, functools.partial(STEP.call, "cuda"))
