"""fused_mlp against eager, on every backend that this machine has."""

from __future__ import annotations

import copy
import functools
import importlib
import itertools
import math
from pathlib import Path

import pytest
import torch

from ... import FusedMLPError, fused_mlp, pack_mlp, runtime
from ...check import Call, Case, check, check_gradients
from ...check.contract import DEVICE, Dispatch, Gradients, OnGpu, Values, every_backend, kernel_backend
from ...check.tf32 import RoundedProducts, assert_rounds, rounded
from ...dispatch import cubin, plan
from . import packing
from .budget import Tile
from .choice import cuda_rows, is_full_float32
from .eager import fused_mlp as reference
from .op import OP
from .spec import draw_mlp

INTERPRETED = pytest.mark.skipif(runtime.triton_mode() != "interpreted", reason="Triton is not interpreted here")
SLOW_INTERPRETED = (
    "test_compile_keeps_one_graph[False",
    "test_generated_cases",
    "test_gradcheck",
    "test_gradients_of_every_shape[torch.bfloat16",
    "test_gradients_of_every_shape[torch.float16",
    "test_gradients_of_every_shape[torch.float64",
    "test_gradients_of_every_option[torch.float16",
    "test_gradients_of_every_option[torch.bfloat16",
    "test_gradients_of_every_option[torch.float64",
    "test_gradients_of_several_chunks",
    "test_widths[511",
    "test_widths[513",
)
SMALL = Tile(rows=16, columns=16, stages=1, budget=2048, warps=4)


def mlp_call(widths, rows, dtype=torch.float32, options=("relu", "identity", "ieee"), **case):
    tensors = draw_mlp(Case((rows, widths[0]), dtype, **case), widths, DEVICE)
    return Call(f"{rows} rows of {widths}", tensors, options)


class TestFusedMLP(Values, Gradients, Dispatch, OnGpu):
    op = "fused_mlp"

    def faster(self, call):
        x, packed, widths, _, _, precision, _ = self.overload_arguments(call)
        if is_full_float32(x.dtype, precision):
            return "eager"
        return "cuda" if 0 < len(x) <= cuda_rows(widths, x.dtype, precision, packed.device) else "triton"

    def needed(self, call):
        return (True,) * len(call.leaves())

    def subsets(self, call):
        """The backward's gradients are two: x's, and that of all weights and biases."""
        count = len(call.leaves())
        return [[i in asked for i in range(count)] for asked in ((0,), (2,), (count - 1,), (0, 1), range(1, count))]

    def backward_arguments(self, call, needs=None):
        arguments = (*self.overload_arguments(call)[:-1], True)
        outputs = OP.overload("triton")(*arguments)
        return OP.backward_arguments(arguments, outputs, self.grads(call), needs or (True, True))

    def no_tensors(self, call):
        x, weights, biases = call.tensors
        return [
            ((None, weights, biases), TypeError, "x must be a tensor; got NoneType"),
            ((x, weights[0], biases), TypeError, "weights must be a sequence of tensors; got Tensor"),
            ((x, weights, None), TypeError, "biases must be a sequence of tensors; got NoneType"),
            ((x, (weights[0], None, weights[2]), biases), TypeError, r"weights\[1\] must be a tensor; got NoneType"),
            ((x, weights, (*biases[:-1], "2")), TypeError, r"biases\[2\] must be a tensor; got str"),
        ]

    def other_tensors(self, call):
        x, weights, biases = call.tensors
        first, second, third = weights
        return [
            ((x, (first, second.double(), third), biases), TypeError, r"weights\[1\] must have weights\[0\]'s dtype"),
            ((x, [w.double() for w in weights], [b.double() for b in biases]), TypeError, "weights must have x's"),
            ((x, weights, (biases[0].half(), *biases[1:])), TypeError, r"biases\[0\] must have weights\[0\]'s dtype"),
            ((x, weights, (*biases[:2], biases[2][:-1])), ValueError, r"biases\[2\] must have shape \[5\]"),
            ((x, weights, biases[:2]), ValueError, "biases must have 3 entries, one for each of weights; got 2"),
            ((x, (first, second[:, 1:], third), biases), ValueError, r"weights\[1\] must have shape \[33, 17\]"),
            ((x, (first, second.to("meta"), third), biases), ValueError, r"weights\[1\] must be on weights\[0\]'s dev"),
            ((x, [w.to("meta") for w in weights], [b.to("meta") for b in biases]), ValueError, "weights must be on x"),
        ]

    def wrong_input(self, call):
        x, weights, biases = call.tensors
        return [
            ((x.int(), weights, biases), TypeError, "x must be float32, .*; got int32"),
            ((x[0, 0], weights, biases), ValueError, r"x must have shape \[B, K\]; got \[\]"),
            ((x[:, :21], weights, biases), ValueError, r"x must have shape \[B, 22\] or be wider.*got \[5, 21\]"),
            ((x, (), ()), ValueError, "weights must have at least one layer; got none"),
            ((x, (weights[0][:0],), (biases[0][:0],)), ValueError, r"weights\[0\] must have shape \[out, in\]"),
            ((x, weights, biases, "elu"), ValueError, "activation must be one of identity, relu, leaky_relu, sigmoid"),
            ((x, weights, biases, "relu", 3), ValueError, "final_activation must be one of"),
            ((x, weights, biases, "relu", "relu", "bf16"), ValueError, "precision must be one of ieee, tf32"),
        ]

    @kernel_backend
    def test_twelve_layers(self, backend):
        call = mlp_call((13, *(5 + i for i in range(12))), 7)
        self.check_gradients(backend, call)

    @kernel_backend
    @pytest.mark.parametrize("width", [1, 3, 13, 367, 511, 513])
    def test_widths(self, backend, width):
        self.check_gradients(backend, mlp_call((width, width, width), 7 if width < 100 else 3))

    @INTERPRETED
    @pytest.mark.parametrize(
        ("activation", "narrow"),
        [
            ("relu", 64),
            *(pytest.param(*case, marks=pytest.mark.slow) for case in (("relu", 0), ("gelu", 0), ("gelu", 64))),
        ],
    )
    def test_several_chunks_and_tiles(self, monkeypatch, narrow, activation):
        """Columns in chunks, loops of several steps, programs with several tiles, the rows' parts: on small sizes."""
        launcher = importlib.import_module("kernels.ops.fused_mlp.triton_launch")
        forward = functools.partial(launcher.forward, tile=SMALL, programs=2, narrow=narrow)
        backward = functools.partial(launcher.backward, tile=SMALL, weight_tile=16, step=16, parts=3)
        monkeypatch.setattr(launcher, "forward", forward)
        monkeypatch.setattr(launcher, "backward", backward)
        for dtype in (torch.float32, torch.bfloat16):
            call = mlp_call((21, 35, 49, 18), 37, dtype, (activation, activation, "ieee"))
            spec = copy.copy(self.spec)
            object.__setattr__(spec, "calls", lambda case, device, call=call: [call])
            check(self.op, self.function("triton"), spec=spec, cases=[Case((1, 1))])
            check_gradients(self.op, self.function("triton"), call, self.needed(call), self.grads(call))

    @pytest.mark.skipif(bool(runtime.why_not("triton", DEVICE.type)), reason="Triton runs neither here nor on a GPU")
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
    @pytest.mark.parametrize(
        ("widths", "options"),
        [
            ((13, 40, 24, 9, 5), ("relu", "relu", "tf32")),
            ((16, 32, 16), ("identity", "gelu", "tf32")),
            ((3, 20, 33, 1), ("relu", "sigmoid", "tf32")),
            ((21, 35, 18, 1, 7), ("leaky_relu", "silu", "tf32")),
            ((13, 20, 250, 130), ("relu", "identity", "tf32")),  # the last weight in parts
            ((64, 50, 7, 1), ("relu", "tanh", "tf32")),
        ],
        ids=str,
    )
    def test_layers_that_stay_on_the_chip(self, monkeypatch, widths, options, dtype):
        """The tile of many rows, with few: one, and what does not fill the last tile."""
        launcher = importlib.import_module("kernels.ops.fused_mlp.triton_launch")
        own, taken = launcher.forward_tile, []

        def forward_tile(rows, *arguments, **changed):
            found = own(rows, *arguments, **{**changed, "least": 0})
            taken.append(found[0].on_chip)
            return found

        monkeypatch.setattr(launcher, "forward_tile", forward_tile)
        monkeypatch.setattr(launcher, "interpreted_tile", lambda rows, on_chip: Tile(16, 256, 1, 2048, 4, on_chip))
        for rows in (1, 37):
            call = mlp_call(widths, rows, dtype, options)
            spec = copy.copy(self.spec)
            object.__setattr__(spec, "calls", lambda case, device, call=call: [call])
            with torch.no_grad():
                check(self.op, self.function("triton"), spec=spec, cases=[Case((1, 1))])
        assert taken == [True] * len(taken) != []

    @INTERPRETED
    def test_on_the_chip_or_through_the_workspace(self, monkeypatch):
        """The same numbers, where no sum is cut into other steps; NaN and Inf stay in their rows; x may be wider."""
        launcher = importlib.import_module("kernels.ops.fused_mlp.triton_launch")
        x, weights, biases = mlp_call((13, 40, 24, 9, 5), 37).tensors
        x = torch.nn.functional.pad(x, (0, 3), value=math.nan)
        x[5, 2], x[20, 7], x[30, 4] = math.nan, math.inf, math.inf
        weights[0][:, 4] = -1.0  # of row 30 relu makes zeros, but not of the padding, where Inf · 0 is NaN
        results = []
        for least in (0, None):
            monkeypatch.setattr(launcher, "forward", functools.partial(launcher.forward, least=least))
            with torch.no_grad():
                results.append(self.function("triton")(x, weights, biases, "relu", "identity", "tf32"))
        on_chip, through = results
        assert (~on_chip.isfinite()).any(1).nonzero().flatten().tolist() == [5, 20]
        torch.testing.assert_close(on_chip, through, equal_nan=True)

    @every_backend
    @pytest.mark.parametrize(("inputs", "dtype"), [(15, torch.float32), (79, torch.bfloat16)])
    def test_rows_beyond_k_count_for_nothing(self, backend, inputs, dtype):
        x, weights, biases = mlp_call((inputs, 20, 4), 9, dtype).tensors
        columns = packing.padded(inputs)
        wide = torch.full((9, columns), math.nan, dtype=dtype, device=DEVICE)
        wide[:, :inputs] = x
        want = self.function(backend)(x, weights, biases)
        assert torch.equal(self.function(backend)(wide, weights, biases), want)
        leaf = wide.requires_grad_()
        (grad,) = torch.autograd.grad(self.function(backend)(leaf, weights, biases).sum(), leaf)
        assert torch.equal(grad[:, inputs:], torch.zeros(9, columns - inputs, dtype=dtype, device=DEVICE))
        assert grad[:, :inputs].isfinite().all()

    @every_backend
    def test_leading_dimensions_are_rows(self, backend):
        x, weights, biases = mlp_call((13, 20, 4), 12).tensors
        want = self.function(backend)(x, weights, biases)
        (grad,) = torch.autograd.grad(self.function(backend)(leaf := x.requires_grad_(), weights, biases).sum(), leaf)
        for leading in ((2, 3, 2), (12, 1), (2, 0)):
            many = x.detach()[: math.prod(leading)].view(*leading, 13)
            leaf = many.transpose(0, 1).contiguous().transpose(0, 1).requires_grad_()  # not contiguous
            out = self.function(backend)(leaf, weights, biases)
            assert out.shape == (*leading, 4)
            assert out.is_contiguous()
            torch.testing.assert_close(out.flatten(0, -2), want[: out[..., 0].numel()], rtol=0, atol=0)
            (of_many,) = torch.autograd.grad(out.sum(), leaf)
            torch.testing.assert_close(of_many.flatten(0, -2), grad[: out[..., 0].numel()], rtol=0, atol=0)
        alone = self.function(backend)(x[0], weights, biases)
        assert torch.equal(alone, self.function(backend)(x[:1], weights, biases)[0])

    def check_without_bias(self, function, run, absent):
        """`run` without these biases is `function` with zeros in their place; recorded or not."""
        x, weights, biases = mlp_call((13, 20, 9, 4), 5).tensors
        some = [None if i in absent else bias for i, bias in enumerate(biases)]
        zeros = [torch.zeros_like(bias) if i in absent else bias for i, bias in enumerate(biases)]
        with torch.no_grad():
            want = function(x, weights, zeros)
            assert torch.equal(run(x, weights, some), want)
        leaves = [tensor.clone().requires_grad_() for tensor in (x, *weights)]
        grads, want = (torch.autograd.grad(f(leaves[0], leaves[1:], bias_set).sum(), leaves)
                       for f, bias_set in ((run, some), (function, zeros)))
        assert all(torch.equal(a, b) for a, b in zip(grads, want, strict=True))

    @every_backend
    def test_layers_without_bias(self, backend):
        function = self.function(backend)
        for absent in ((0,), (1, 2), (0, 1, 2)):
            self.check_without_bias(function, function, absent)

    @kernel_backend
    def test_layers_without_bias_compiled(self, backend):
        function = self.function(backend)
        self.check_without_bias(function, torch.compile(function, fullgraph=True, backend="eager"), (0, 2))

    def test_a_bias_that_is_taken_away(self):
        """Weights lie in one buffer with biases that are not given: what lies there is no zero."""
        mlp = pack_mlp(torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 3)).to(DEVICE))
        x, weights = torch.randn(5, 8, device=DEVICE), [layer.weight for layer in mlp]
        with torch.no_grad():
            want = fused_mlp(x, weights, [torch.zeros(16, device=DEVICE), mlp[1].bias])
            assert torch.equal(fused_mlp(x, weights, [None, mlp[1].bias]), want)

    @INTERPRETED
    def test_the_padding_of_halves_is_put_aside(self, monkeypatch):
        """Where the loop has steps before the last one."""
        launcher = importlib.import_module("kernels.ops.fused_mlp.triton_launch")
        monkeypatch.setattr(launcher, "forward", functools.partial(launcher.forward, tile=SMALL, narrow=0))
        for inputs in (37, 48):
            x, weights, biases = mlp_call((inputs, 20, 4), 9, torch.bfloat16).tensors
            wide = torch.full((9, 64), math.nan, dtype=x.dtype)
            wide[:, :inputs] = x
            want = self.function("triton")(x, weights, biases)
            assert want.isfinite().all()
            assert torch.equal(self.function("triton")(wide, weights, biases), want)

    @kernel_backend
    @pytest.mark.parametrize("bad", [math.nan, math.inf])
    def test_a_bad_row_stays_alone(self, backend, bad):
        for activation in ("relu", "sigmoid"):
            x, weights, biases = mlp_call((13, 19, 21, 5), 40).tensors
            weights = [weight.abs() for weight in weights]  # with relu what is Inf stays so in every layer
            want = self.function(backend)(x, weights, biases, activation)
            x[7, 3] = bad
            out = self.function(backend)(x, weights, biases, activation)
            others = torch.arange(40, device=DEVICE) != 7
            assert torch.equal(out[others], want[others])
            exact = self.function("eager")(x, weights, biases, activation)
            torch.testing.assert_close(out[7], exact[7], equal_nan=True)

    @kernel_backend
    def test_an_infinite_weight_or_bias_stays_with_its_output(self, backend):
        """Where a row's weights end the next row's begin, and behind the last one the biases: the zeros that a step is
        filled up with must not meet them."""
        x, weights, biases = mlp_call((33, 35, 37), 20).tensors
        grad = torch.randn(20, 37, device=DEVICE)

        def run():
            leaf = x.clone().requires_grad_()
            out = self.function(backend)(leaf, weights, biases)
            return out, torch.autograd.grad(out, leaf, grad)[0]

        want, want_grad = run()
        biases[-1][0] = math.inf
        out, grad_x = run()
        assert torch.equal(out[:, 1:], want[:, 1:])
        assert torch.equal(grad_x, want_grad)
        weights[-1][2, 0] = math.inf
        out, _ = run()
        others = [column for column in range(37) if column not in (0, 2)]
        assert torch.equal(out[:, others], want[:, others])

    @kernel_backend
    def test_the_gradient_of_the_padding_is_zero(self, backend):
        """Whatever is infinite: a buffer that learns keeps its zeros."""
        call = mlp_call((13, 19, 5), 9, options=("sigmoid", "identity", "ieee"))
        x, packed, widths, *options, _ = self.overload_arguments(call)
        x[3, 3] = math.inf
        packed = packed.detach().requires_grad_()
        out, _ = OP.overload(backend)(x, packed, widths, *options, True)
        grad = torch.ones_like(out)
        grad[6, 2] = math.inf
        (found,) = torch.autograd.grad(out, packed, grad)
        assert found.isnan().any()
        for weight, bias in packing.views(found, widths):
            weight.zero_()
            bias.zero_()
        assert not found.any()

    @kernel_backend
    def test_frozen_weights_that_change_before_the_backward(self, backend):
        """x's gradient is that of the weights that the forward saw. Eager has no copy: PyTorch refuses the change."""
        mlp = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 3)).requires_grad_(False).to(DEVICE)
        pack_mlp(mlp)
        weights, biases = [layer.weight for layer in mlp], [layer.bias for layer in mlp]
        x = torch.randn(5, 8, device=DEVICE, requires_grad=True)

        (want,) = torch.autograd.grad(self.function(backend)(x, weights, biases).sum(), x)
        out = self.function(backend)(x, weights, biases)
        weights[1].mul_(5)
        assert torch.equal(torch.autograd.grad(out.sum(), x)[0], want)

    @kernel_backend
    def test_a_forward_that_kept_nothing_has_no_backward(self, backend):
        """As a program has it that was exported under no_grad and is trained."""
        call = mlp_call((13, 19, 5), 7)
        overload = OP.overload(backend)
        message = r"fused_mlp_backward: hidden must have shape \[7, 32\]; got \[0\].*keep=True"
        x, packed, *options, _ = self.overload_arguments(call)
        for needed in ((True, False), (False, True)):
            tensors = [t.clone().requires_grad_(need) for t, need in zip((x, packed), needed, strict=True)]
            out, _ = overload(*tensors, *options, False)
            with pytest.raises(ValueError, match=message):
                out.sum().backward()

        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.weights, self.biases = (torch.nn.ParameterList(part) for part in call.tensors[1:])

            def forward(self, x):
                return fused_mlp(x, [*self.weights], [*self.biases], backend=backend)

        with torch.no_grad():
            program = torch.export.export(Model(), (x,)).module()
        out = program(x)
        assert out.requires_grad
        with pytest.raises(ValueError, match=message):
            out.sum().backward()

    @kernel_backend
    def test_one_layer_keeps_nothing_for_its_backward(self, backend):
        call = mlp_call((13, 5), 7)
        x, packed, *options, _ = self.overload_arguments(call)
        grads = []
        for keep in (False, True):
            out, _ = OP.overload(backend)(x.requires_grad_(), packed, *options, keep)
            grads.append(torch.autograd.grad(out.sum(), x)[0])
        assert torch.equal(*grads)

    @kernel_backend
    def test_full_precision_is_as_exact_as_eager(self, backend):
        call = mlp_call((367, 64, 33, 5), 60)
        exact = fused_mlp(*call.map(torch.Tensor.double).arguments(), backend="eager")
        actual, eager = (self.function(b)(*call.arguments()).double() for b in (backend, "eager"))
        # All are sums in another order: Triton's is one long one, whose error is about twice that of short ones.
        ours, theirs = (float((values - exact).abs().max()) for values in (actual, eager))
        assert ours <= (3.0 if backend == "triton" else 1.5) * theirs

    @kernel_backend
    @pytest.mark.parametrize(
        ("widths", "rows", "activation"),
        [
            ((200, 90), 30, "relu"),
            ((200, 90), 150, "relu"),
            ((13, 160, 96, 40), 30, "relu"),
            ((13, 160, 96, 40), 150, "gelu"),
            ((100, 160, 96, 40), 150, "sigmoid"),
            ((13, 160, 96, 1), 30, "sigmoid"),
            ((100, 160, 1), 150, "gelu"),
        ],
        ids=str,
    )
    def test_tf32_rounds(self, backend, widths, rows, activation):
        """Forward and gradients, with weights that are rounded when they are read and, of many rows, before."""
        function = functools.partial(self.function(backend), activation=activation)
        x, weights, biases = mlp_call(widths, rows).tensors
        grad = torch.randn(rows, widths[-1], device=DEVICE)

        def run(function, dtype):
            leaves = [tensor.to(dtype, copy=True).requires_grad_() for tensor in (x, *weights, *biases)]
            parts = leaves[0], leaves[1 : 1 + len(weights)], leaves[1 + len(weights) :]
            out = function(*parts)
            # A derivative of relu at 0 may be the other one, which is no rounding's error.
            wanted = leaves[: 1 + len(weights)] if activation != "relu" or len(weights) == 1 else leaves[:0]
            return out, *(torch.autograd.grad(out, wanted, grad.to(dtype)) if wanted else ())

        eager = functools.partial(reference, activation=activation)
        actual, exact = run(functools.partial(function, precision="tf32"), torch.float32), run(eager, torch.float64)
        with RoundedProducts():
            like = run(eager, torch.float64)
        for triple in zip(actual, exact, like, strict=True):
            assert_rounds(*triple)

    @kernel_backend
    @pytest.mark.parametrize("rows", [20, 150])
    def test_tf32_takes_what_one_output_is_made_of_as_it_is(self, backend, rows):
        """It is no product of matrices. Sums of products are exact for whole numbers that tf32 has no bits for."""
        draw = functools.partial(torch.randint, dtype=torch.float32, device=DEVICE)
        x, same = draw(-512, 512, (rows, 40)).requires_grad_(), torch.eye(40, device=DEVICE)
        weight, bias = 2 * draw(1024, 1152, (1, 40)) + 1, draw(2560, 2568, (40,))
        weight[:, 1:-1] = 0
        one, two = ([weight], [bias[:1]], weight), ([same, weight], [bias, bias[:1]], rounded(weight))
        for weights, biases, of_x in (one, two):  # x's gradient by the first of two layers is a product
            out = self.function(backend)(x, weights, biases, "relu", precision="tf32")
            operand = x.double() + (bias if len(weights) > 1 else 0)
            assert torch.equal(out.double(), operand @ weight.double().T + bias[0])
            (grad_x,) = torch.autograd.grad(out, x, torch.ones_like(out))
            assert torch.equal(grad_x, of_x.expand(rows, -1))

    @kernel_backend
    @pytest.mark.parametrize("rows", [20, 150])
    def test_tf32_takes_what_a_narrow_first_layer_of_one_output_is_made_of_as_it_is(self, backend, rows):
        """It is not computed within the second one's loop, which rounds what it computes."""
        draw = functools.partial(torch.randint, dtype=torch.float32, device=DEVICE)
        x, weight, bias = draw(-512, 512, (rows, 40)), 2 * draw(1024, 1152, (1, 40)) + 1, draw(2560, 2568, (1,))
        weight[:, 1:-1] = 0
        ones, zeros = torch.ones(3, 1, device=DEVICE), torch.zeros(3, device=DEVICE)
        out = self.function(backend)(x, [weight, ones], [bias, zeros], "relu", precision="tf32")
        hidden = (x.double() @ weight.double().T + bias).relu().float()
        assert torch.equal(out, rounded(hidden).expand(-1, 3))

    @pytest.mark.slow
    def test_code_of_one_output_is_as_long_however_many_columns_it_is_made_of(self, monkeypatch, tmp_path):
        """A step written out for each 256 columns takes minutes to compile, and all registers."""
        asked = []

        def note(kernel, device):
            asked.append(kernel)
            return 0, cubin.Compiled("", "", 0, 0, 0, cubin.PLAIN)

        monkeypatch.setattr(plan, "_function", note)

        def length(widths):
            packed = torch.empty(packing.elements(widths), device="meta")
            x = torch.empty(5000, packing.layers(widths)[0].inputs, device="meta")
            arguments = x, packed, widths, "relu", "identity", "ieee", False
            plan.record(OP, "", arguments, OP.allocations("", arguments), 90)
            return Path(cubin.compiled(asked[-1], tmp_path).path).stat().st_size

        assert length("8192-1") < 1.1 * length("1024-1")

    @kernel_backend
    def test_tf32_gradient_of_a_bias_is_a_sum(self, backend):
        """The last layer's: no product is in it, and nothing is rounded to tf32."""
        x, weights, biases = mlp_call((24, 40, 33), 50).tensors
        biases[-1].requires_grad_()
        grad = torch.randn(50, 33, device=DEVICE)
        out = self.function(backend)(x, weights, biases, precision="tf32")
        (bias_grad,) = torch.autograd.grad(out, biases[-1], grad)
        torch.testing.assert_close(bias_grad, grad.sum(0))

    def test_tf32_rounds_weights_before_kernels_or_in_them(self, monkeypatch):
        """Before, for tiles that take them from shared memory and where they are many. What has no tf32 rounds none."""
        asked = {}

        def note(kernel, device):
            if isinstance(kernel, cubin.Kernel):
                asked[kernel.name] = dict(kernel.constants)
            return 0, cubin.Compiled("", "", 0, 0, 0, cubin.PLAIN)

        monkeypatch.setattr(plan, "_function", note)

        def rounding(rows, widths, arch=90):
            """How the forward and the backward's rows round: the products' precision, the weights', a launch before."""
            packed = torch.empty(packing.elements(widths), device="meta")
            x = torch.empty(rows, packing.layers(widths)[0].inputs, device="meta")
            arguments = x, packed, widths, "relu", "identity", "tf32", True
            outputs = [torch.empty(shape, device="meta") for shape, _ in OP.allocations("", arguments)]
            backward = OP.backward_arguments(arguments, outputs, OP.differentiable(outputs), [True, True])
            ways = []
            for form, inputs, name in (("", arguments, "forward_kernel"), ("backward", backward, "chain_kernel")):
                asked.clear()
                plan.record(OP, form, inputs, OP.allocations(form, inputs), arch)
                ways.append((asked[name]["PRECISION"], asked[name]["OF_WEIGHTS"], "rounding_kernel" in asked))
            return tuple(ways)

        within, before, none = ("tf32", "tf32", False), ("tf32", "ieee", True), ("ieee", "ieee", False)
        assert rounding(2048, "367-512-256-1") == (within, within)
        assert rounding(5000, "367-512-256-1") == (before, within)
        assert rounding(2048, "367-512-256-1", 75) == (none, none)
        assert rounding(128, "479-1024-1024-512-256-1") == (before, before)
        assert rounding(128, "479-1024-1024-512-256-1", 75) == (none, none)

    @INTERPRETED
    def test_tf32_rounds_wherever_it_does(self, monkeypatch):
        """Before the kernels or in them: the very same numbers."""
        launcher = importlib.import_module("kernels.ops.fused_mlp.triton_launch")
        x, weights, biases = mlp_call((40, 33, 21), 20).tensors
        grad, results = torch.randn(20, 21), []
        for least in (0, 2**30):
            monkeypatch.setattr(launcher, "ROUNDED_BEFORE", least)
            leaves = [tensor.clone().requires_grad_() for tensor in (x, *weights)]
            out = self.function("triton")(leaves[0], leaves[1:], biases, "gelu", precision="tf32")
            results.append((out, *torch.autograd.grad(out, leaves, grad)))
        assert all(torch.equal(*pair) for pair in zip(*results, strict=True))

    @INTERPRETED
    def test_tf32_rounds_weights_to_a_copy_that_products_take(self):
        _, weights, biases = mlp_call((13, 33, 1, 16, 16), 3).tensors
        buffer, widths = packing.pack(weights, biases)
        launcher = importlib.import_module("kernels.ops.fused_mlp.triton_launch")
        copied = packing.views(launcher._rounded(buffer, widths), widths)
        for (weight, bias), (of_weight, of_bias) in zip(packing.views(buffer, widths), copied, strict=True):
            assert torch.equal(of_weight, rounded(weight) if len(weight) > 1 else weight)
            assert torch.equal(of_bias, bias)

    @kernel_backend
    def test_tf32_of_numbers_that_it_has(self, backend):
        """Products of whole numbers below 2^10 are exact, whichever way they are summed up."""
        draw = functools.partial(torch.randint, dtype=torch.float32, device=DEVICE)
        for rows in (9, 150):
            x, weight, bias = draw(-63, 64, (rows, 40)), draw(-63, 64, (21, 40)), draw(-63, 64, (21,))
            out = self.function(backend)(x, [weight], [bias], precision="tf32")
            assert torch.equal(out, x @ weight.T + bias)

    # ------------------------------------------------------------------------------------------------- on the chip

    @kernel_backend
    @pytest.mark.parametrize("compiled", [False, True])
    def test_too_wide_for_the_chip(self, backend, compiled):
        """The error says what is needed; the launch is planned as for a GPU, whatever runs it."""
        widths = (64, 65536, 1)
        weights = [torch.empty(b, a, device=DEVICE) for a, b in itertools.pairwise(widths)]
        biases = [torch.empty(b, device=DEVICE) for b in widths[1:]]
        function = self.function(backend)
        if compiled:
            function = torch.compile(function, fullgraph=True, backend="eager")
        pattern = r"registers .* L2" if backend == "triton" else r"shared memory \d+ of \d+$"
        with pytest.raises(FusedMLPError, match=f"of widths 64-65536-1 does not fit on the chip: {pattern}"):
            function(torch.empty(132 * 16, 64, device=DEVICE), weights, biases)
