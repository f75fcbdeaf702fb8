"""outer_linear against eager, on every backend that this machine has; and the folded form against it."""

import functools
import importlib
import itertools
import math
from dataclasses import replace

import pytest
import torch

import kernels

from ... import runtime
from ...check import Call, Case, check, check_gradients
from ...check.contract import DEVICE, Dispatch, Gradients, OnGpu, Values, every_backend, kernel_backend
from ...check.tf32 import RoundedProducts, assert_rounds
from ...device import launch
from . import eager, folding, triton_tiles
from .op import OP

INTERPRETS = runtime.triton_mode() == "interpreted"
INTERPRETED = pytest.mark.skipif(not INTERPRETS, reason="Triton is not interpreted here")
SLOW_INTERPRETED = ("test_gradcheck",)


def launcher():
    return importlib.import_module("kernels.ops.outer_linear.triton_launch")


class TestOuterLinear(Values, Gradients, Dispatch, OnGpu):
    op = "outer_linear"

    def wrong_input(self, call):
        c, weight, bias = call.tensors
        return [
            ((c.int(), weight, bias), TypeError, "c must be float32, .*; got int32"),
            ((c[0], weight, bias), ValueError, r"c must have shape \[B, C\]; got \[24\]"),
            ((c, weight[:, :-1], bias), ValueError, r"weight must have shape \[.*, 576\], for c .*; got \[.*, 575\]"),
            ((c[:, :-1], weight, bias), ValueError, r"weight must have shape \[.*, 529\], for c .*; got \[.*, 576\]"),
            ((c, weight[:-1], bias), ValueError, "bias must have shape .*, for weight of shape"),
            ((c, weight, bias, "gelu"), ValueError, "activation must be one of identity, relu; got 'gelu'"),
            ((c, weight, bias, "relu", "fp8"), ValueError, "precision must be one of ieee, tf32; got 'fp8'"),
        ]

    def other_tensors(self, call):
        # A weight of fewer outputs is as good a weight: what does not fit it is the bias.
        cases = super().other_tensors(call)
        return [case for case in cases if case[0][1].shape != call.tensors[1][:-1].shape]

    # ------------------------------------------------------------------------------------- the ways of computing it

    @INTERPRETED
    def test_folded_first(self, monkeypatch):
        """The weight is folded first for many rows; limits of its own make that so with few."""
        limits = launcher().Limits(fold_from=0, fold_share=math.inf)
        monkeypatch.setattr(launcher(), "forward", functools.partial(launcher().forward, limits=limits))
        cases = [Case((rows, columns)) for rows, columns in ((1, 1), (7, 17), (3, 33), (300, 5))]
        cases += [Case((7, 33), torch.float64), Case((6, 17), layout="misaligned"), Case((6, 17), values="tiny")]
        check(self.op, self.function("triton"), cases=[replace(case, every_option=False) for case in cases])

    @INTERPRETED
    def test_folded_first_and_added_up(self, monkeypatch):
        """Steps so short that the sum has several parts."""
        limits = launcher().Limits(fold_from=0, fold_share=math.inf)
        forward = functools.partial(launcher().forward, limits=limits, group=4)
        monkeypatch.setattr(launcher(), "forward", forward)
        case = Case((6, 33), every_option=False)
        assert len(self.call(case).tensors[2]) == 40
        check(self.op, self.function("triton"), cases=[case])

    @INTERPRETED
    @pytest.mark.parametrize("changed", [{"rows": 16, "outputs": 16, "width": 16}, {"width": 32}], ids=str)
    def test_other_tiles(self, monkeypatch, changed):
        """Several tiles of rows and of outputs, several blocks of columns with and without a last one that is not full,
        and more parts of the sum than there are tiles."""
        monkeypatch.setattr(launcher(), "forward", functools.partial(launcher().forward, **changed))
        monkeypatch.setattr(triton_tiles, "INTERPRETED", 24)
        cases = [Case((33, 17)), Case((20, 32)), Case((7, 33), torch.bfloat16)]
        check(self.op, self.function("triton"), cases=[replace(case, every_option=False) for case in cases])

    @INTERPRETED
    @pytest.mark.parametrize("limits", [{"least_pairs": 2, "least": 0}, {"least_pairs": 5}], ids=str)
    def test_grad_c_of_some_pairs_at_a_time(self, monkeypatch, limits):
        """Ten pairs of blocks, folded in five or in two parts; the sums of one program, and of several."""
        limits = launcher().Limits(share=0.0, **limits)
        monkeypatch.setattr(launcher(), "backward", functools.partial(launcher().backward, limits=limits))
        c, weight, bias = (torch.randn(*shape, dtype=torch.float64) for shape in ((20, 50), (5, 2500), (5,)))
        for activation in ("identity", "relu"):
            call = Call("", (c, weight, bias), (activation, "ieee"))
            check_gradients(self.op, self.function("triton"), call, (True, False, False), self.grads(call))

    @kernel_backend
    @pytest.mark.parametrize(("activation", "dtype"), [("identity", torch.float32), ("relu", torch.bfloat16)], ids=str)
    def test_tf32_and_halves(self, backend, dtype, activation):
        """relu in tf32 is test_few_rows's."""
        for case in (Case((40, 33), dtype), Case((129, 16), dtype)):
            call = replace(self.call(case), options=(activation, "tf32"))
            spec = replace(self.spec, calls=lambda case, device, call=call: [call])
            check(self.op, self.function(backend), spec=spec, cases=[case])
            check_gradients(self.op, self.function(backend), call, (True,) * 3, self.grads(call))

    @kernel_backend
    def test_rows_that_fill_their_steps(self, backend):
        """Then the incoming gradient's copy has no room behind its last number."""
        call = replace(self.call(Case((64, 20))), options=("relu", "ieee"))
        check_gradients(self.op, self.function(backend), call, (True,) * 3, self.grads(call))

    @kernel_backend
    @pytest.mark.parametrize(("rows", "outputs"), [(20, 32), (150, 32), (150, 2), (600, 32)])
    def test_tf32_rounds(self, backend, rows, outputs):
        """Forward and gradients by every way of computing them: of few rows, of a weight as given, and folded; with a
        bias's gradient and without. The last output, if it alone were not rounded, would be lost in the means."""
        columns = 40 if INTERPRETS else 96
        tensors = [torch.randn(*shape, device=DEVICE) for shape in ((rows, columns), (outputs, columns**2), (outputs,))]
        grad = torch.randn(rows, outputs, device=DEVICE)

        def run(function, dtype):
            c, weight, bias = (tensor.to(dtype, copy=True).requires_grad_() for tensor in tensors)
            out = function(c, weight, bias.requires_grad_(rows > 20))
            return out, *torch.autograd.grad(out, (c, weight), grad.to(dtype))

        actual = run(functools.partial(self.function(backend), precision="tf32"), torch.float32)
        exact = run(eager.outer_linear, torch.float64)
        with RoundedProducts():
            like = run(eager.outer_linear, torch.float64)
        same = False, rows <= triton_tiles.Limits().few_rows, True  # else c_j, or a folded weight, is rounded
        for *triple, same_operands in zip(actual, exact, like, same, strict=True):
            assert_rounds(*triple, same_operands=same_operands)
        folded = kernels.fold_outer_weight(tensors[1])
        out = kernels.outer_linear_folded(tensors[0], folded, tensors[2], "identity", "tf32", backend=backend)
        assert_rounds(out, exact[0], like[0], same_operands=False)

    @kernel_backend
    def test_a_folded_weight_is_rounded_first(self, backend):
        """A launch before the product's rounds it for many rows, and leaves the weight as it is."""
        rows = triton_tiles.Limits().round_from
        c, weight, bias = (torch.randn(*shape, device=DEVICE) for shape in ((rows, 20), (40, 400), (40,)))
        folded = kernels.fold_outer_weight(weight)
        before = folded.clone()
        out = kernels.outer_linear_folded(c, folded, bias, "identity", "tf32", backend=backend)
        exact = eager.outer_linear_folded(c.double(), folded.double(), bias.double())
        with RoundedProducts():
            like = eager.outer_linear_folded(c.double(), folded.double(), bias.double())
        assert_rounds(out, exact, like)
        assert torch.equal(folded, before)

    @kernel_backend
    def test_tf32_gradient_of_the_bias_is_a_sum(self, backend):
        """No product is in it, and nothing is rounded to tf32."""
        c, weight, bias = (torch.randn(*shape, device=DEVICE) for shape in ((50, 17), (21, 289), (21,)))
        grad = torch.randn(50, 21, device=DEVICE)
        for needs_weight in (False, True):
            leaves = c, weight.requires_grad_(needs_weight), bias.requires_grad_()
            out = self.function(backend)(*leaves, "identity", "tf32")
            torch.testing.assert_close(torch.autograd.grad(out, bias, grad)[0], grad.sum(0))

    @kernel_backend
    @pytest.mark.parametrize("shape", [(20, 44, 48), (3, 17, 16), (5, 16, 144)], ids=str)
    def test_few_rows(self, backend, shape, monkeypatch):
        """Kernels of their own in tf32: blocks that overlap, several splits of the columns, several output tiles."""
        monkeypatch.setattr(triton_tiles, "INTERPRETED", 8)
        rows, columns, outputs = shape if DEVICE.type == "cpu" else (3 * shape[0], 4 * shape[1], 2 * shape[2])
        shapes = (rows, columns), (outputs, columns**2), (outputs,)
        c, weight, bias = (torch.randn(*shape, device=DEVICE) for shape in shapes)
        for part in ("few_rows", "direct_c"):
            wanted = triton_tiles.suits_few_rows(c, weight, "tf32", part, triton_tiles.Limits())
            assert wanted == (launch.architecture() == 90)
        for activation in ("relu", "identity")[: 1 + (shape == (20, 44, 48))]:  # which hangs on no shape
            call = Call("", (c, weight, bias), (activation, "tf32"))
            spec = replace(self.spec, calls=lambda case, device, call=call: [call])
            check(self.op, self.function(backend), spec=spec, cases=[Case((rows, columns))])
            check_gradients(self.op, self.function(backend), call, (True,) * 3, self.grads(call))

    @kernel_backend
    @pytest.mark.parametrize("beyond", ["columns", "outputs", "rows"])
    def test_what_the_kernels_of_few_rows_do_not_take(self, backend, beyond):
        """One column less than their block has, an output more than whole steps are, one row too many: all in tf32."""
        width, depth = (16, 16) if INTERPRETS else (64, 32)
        rows = 129 if beyond == "rows" else 5
        columns, outputs = width - (beyond == "columns"), depth + (beyond == "outputs")
        c, weight, bias = (
            torch.randn(*shape, device=DEVICE) for shape in ((rows, columns), (outputs, columns**2), (outputs,))
        )
        assert not triton_tiles.suits_few_rows(c, weight, "tf32", "direct_c", triton_tiles.Limits())
        call = Call("", (c, weight, bias), ("identity", "tf32"))
        spec = replace(self.spec, calls=lambda case, device: [call])
        check(self.op, self.function(backend), spec=spec, cases=[Case((rows, columns))])
        check_gradients(self.op, self.function(backend), call, (True,) * 3, self.grads(call))

    # -------------------------------------------------------------------------------------------------- NaN and Inf

    @kernel_backend
    @pytest.mark.parametrize("value", [math.nan, math.inf])
    def test_few_rows_that_are_not_finite(self, backend, value):
        """Columns that two blocks have are the first one's alone, and columns beyond the last are none: the zeros in
        place of their products meet the Inf."""
        columns = 17 if INTERPRETS else 68
        shapes = (7, columns), (32, columns**2), (32,)
        c, weight, bias = (torch.rand(*shape, device=DEVICE) + 0.1 for shape in shapes)
        grad = torch.ones(7, 32, device=DEVICE)
        rest = [row for row in range(7) if row != 3]
        results = []
        for place in (1.0, value):
            c = c.detach().clone()
            c[3, columns - 1] = place
            c.requires_grad_()
            out = self.function(backend)(c, weight, bias, "identity", "tf32")
            results.append((out, *torch.autograd.grad(out, c, grad)))
        for want, got in zip(*results, strict=True):
            assert torch.equal(got[rest], want[rest])
            assert (got[3].isnan() if math.isnan(value) else got[3].isposinf()).all()

    @kernel_backend
    def test_few_rows_and_a_weight_that_is_infinite(self, backend):
        """In columns that two blocks have, of which the second leaves out the products: they must not meet the Inf."""
        columns = 17 if INTERPRETS else 68
        c, bias = torch.rand(7, columns, device=DEVICE) + 0.1, torch.zeros(32, device=DEVICE)
        weight = torch.rand(32, columns**2, device=DEVICE)
        weight[5] = math.inf
        out = self.function(backend)(c, weight, bias, "identity", "tf32")
        assert out[:, 5].isposinf().all()
        assert out[:, 6:].isfinite().all()

    @every_backend
    @pytest.mark.parametrize("value", [math.nan, math.inf])
    @pytest.mark.parametrize("folded", [False, True])
    def test_a_row_that_is_not_finite_stays_alone(self, backend, value, folded):
        """Columns 17 to 32 do not exist, rows 7 to 15 neither: zeros there meet the Inf."""
        c, weight, bias = self.call(Case((7, 17))).tensors
        function = functools.partial(kernels.outer_linear_folded if folded else kernels.outer_linear, backend=backend)
        weight = kernels.fold_outer_weight(weight.abs()) if folded else weight.abs()
        want = function(c.abs(), weight, bias)
        c = c.abs()
        c[3, 16] = value
        out = function(c, weight, bias)
        rest = [row for row in range(7) if row != 3]
        assert torch.equal(out[rest], want[rest])
        assert (out[3].isnan() if math.isnan(value) else out[3].isposinf()).all()

    @kernel_backend
    def test_gradients_of_a_row_that_is_not_finite(self, backend):
        c, weight, bias = (tensor.abs() for tensor in self.call(Case((7, 17))).tensors)
        c[3, 16] = math.inf
        c.requires_grad_()
        grad = torch.ones(7, len(bias), device=DEVICE)
        (grad_c,) = torch.autograd.grad(self.function(backend)(c, weight, bias), c, grad)
        (want,) = torch.autograd.grad(eager.outer_linear(c, weight, bias), c, grad)
        torch.testing.assert_close(grad_c, want)
        assert grad_c[3].isposinf().sum() == 17
        assert grad_c[[0, 1, 2, 4, 5, 6]].isfinite().all()

    @kernel_backend
    def test_gradients_where_what_comes_in_is_infinite(self, backend):
        """Columns 17 to 32 do not exist: the zeros of their weights make NaN of the Inf, which is to be left out."""
        c, weight, bias = (tensor.abs() + 0.1 for tensor in self.call(Case((7, 17))).tensors)
        grad = torch.ones(7, len(bias), device=DEVICE)
        grad[3, 2] = math.inf
        (grad_c,) = torch.autograd.grad(self.function(backend)(c.requires_grad_(), weight, bias), c, grad)
        assert grad_c[3].isposinf().all()
        assert grad_c[[0, 1, 2, 4, 5, 6]].isfinite().all()

    # --------------------------------------------------------------------------------------------- the folded weight

    @pytest.mark.parametrize("columns", [0, 1, 3, 16, 17, 33])
    def test_folding(self, columns):
        """Each pair of columns once: the sums over a folded weight and over the weight are the same."""
        weight = torch.randn(5, columns**2, dtype=torch.float64, device=DEVICE)
        folded = kernels.fold_outer_weight(weight)
        count = -(-columns // 16)
        assert folded.shape == (5, 256 * count * (count + 1) // 2) == (5, folding.folded_width(columns))
        c = torch.randn(7, columns, dtype=torch.float64, device=DEVICE)
        bias = torch.randn(5, dtype=torch.float64, device=DEVICE)
        torch.testing.assert_close(
            eager.outer_linear_folded(c, folded, bias), eager.outer_linear(c, weight, bias), rtol=1e-12, atol=1e-12
        )
        ones = eager.outer_linear_folded(torch.ones_like(c), folded, bias)  # no pair is there twice
        torch.testing.assert_close(ones, (weight.sum(1) + bias).expand_as(ones), rtol=1e-12, atol=1e-12)

    @pytest.mark.parametrize("columns", [1, 16, 33])
    @pytest.mark.parametrize("turned", [False, True])
    def test_the_kernel_that_folds(self, columns, turned):
        """It gives folding.fold's bits, of all outputs and pairs or of some; turned, with zeros behind the outputs."""
        weight = torch.randn(21, columns**2, device=DEVICE)
        want, pairs = folding.fold(weight), folding.pairs(folding.blocks(columns))
        if not turned:
            folded = torch.full_like(want, math.nan)
            launcher().fold(weight, columns, folded)
            assert torch.equal(folded, want)
            assert torch.equal(kernels.fold_outer_weight(weight), want)
            return
        first = pairs // 2
        folded = torch.full((pairs - first, 256, 32), math.nan, device=DEVICE)
        launcher()._fold(weight, folded, columns, pairs=(first, pairs - first), length=32)
        assert torch.equal(folded[:, :, :21].flatten(0, 1).T, want[:, 256 * first :])
        assert (folded[:, :, 21:] == 0).all()

    @kernel_backend
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
    def test_folded_form(self, backend, dtype):
        def calls(case, device):
            for call in self.calls(case, device):
                c, weight, bias = call.tensors
                yield replace(call, tensors=(c, kernels.fold_outer_weight(weight), bias))

        # The folded form's reference is its own eager function, on a folded weight.
        scale = replace(self.spec.scale, reference=eager.outer_linear_folded)
        spec = replace(self.spec, reference=eager.outer_linear_folded, calls=calls, scale=scale)
        cases = [Case((0, 5), dtype), Case((1, 1), dtype), Case((7, 33), dtype), Case((129, 16), dtype)]
        cases += [Case((13, 17), dtype, values="special"), Case((6, 17), dtype, "misaligned")]
        function = functools.partial(kernels.outer_linear_folded, backend=backend)
        check(self.op, function, spec=spec, cases=[replace(case, every_option=False) for case in cases])

    def test_folded_form_has_no_gradient(self):
        c, weight, bias = self.call().tensors
        folded = kernels.fold_outer_weight(weight)
        with pytest.raises(RuntimeError, match="outer_linear_folded has no gradient: call outer_linear"):
            kernels.outer_linear_folded(c.requires_grad_(), folded, bias)
        with torch.no_grad():
            kernels.outer_linear_folded(c, folded, bias)

    @every_backend
    def test_a_weight_of_the_other_form_is_refused(self, backend):
        c, weight, bias = self.call().tensors
        folded = kernels.fold_outer_weight(weight)
        with pytest.raises(ValueError, match=r"^outer_linear_folded: weight must have shape \[.*, 768\].*, 576\]"):
            kernels.outer_linear_folded(c, weight, bias, backend=backend)
        with pytest.raises(ValueError, match=r"^outer_linear: weight must have shape \[.*, 576\].*, 768\]"):
            kernels.outer_linear(c, folded, bias, backend=backend)

    def test_what_cannot_be_folded(self):
        with pytest.raises(ValueError, match=r"^fold_outer_weight: weight must have shape \[H, C·C\]; got \[5, 17\]"):
            kernels.fold_outer_weight(torch.zeros(5, 17))
        with pytest.raises(TypeError, match=r"^fold_outer_weight: weight must be float32, .*; got int64"):
            kernels.fold_outer_weight(torch.zeros(5, 16, dtype=torch.long))


def workspace_bytes(rows: int, columns: int, outputs: int, precision: str, monkeypatch) -> tuple[int, int]:
    """Bytes of the workspaces of a forward and of a backward, as on a GPU, without one."""
    sizes = []
    module = launcher()

    class Shape:
        dtype, itemsize = torch.float32, 4

        def __init__(self, *shape):
            self.shape = torch.Size(shape)

        def numel(self):
            return self.shape.numel()

    def empty(shape, dtype, like):
        sizes.append(math.prod(shape) * dtype.itemsize)
        return Shape(*shape)

    class Kernels:
        def __getattr__(self, name):
            return self

        def __getitem__(self, grid):
            return lambda *arguments, **constants: None

    monkeypatch.setattr(module.launch, "empty", empty)
    monkeypatch.setattr(module.launch, "interpreted", lambda: False)
    monkeypatch.setattr(module, "kernels", Kernels())
    monkeypatch.setattr(module, "backwards", Kernels())
    c, weight, bias = Shape(rows, columns), Shape(outputs, columns**2), Shape(outputs)
    out = Shape(rows, outputs)
    module.forward(c, weight, bias, "relu", precision, False, out)
    forward = sum(sizes)
    sizes.clear()
    module.backward(out, c, weight, out, "relu", precision, False, c, weight, bias)
    return forward, sum(sizes)


@pytest.mark.parametrize("rows", [128, 2048, 16384])
def test_workspaces_are_small_beside_the_weight(rows, monkeypatch):
    """At most a tenth of the weight, the input and the output, and in the backward of the weight's gradient; beside the
    folded weight that a forward of many rows makes."""
    columns, outputs = 432, 512
    forward, backward = workspace_bytes(rows, columns, outputs, "tf32", monkeypatch)
    weight, others = 4 * outputs * columns**2, 4 * rows * (columns + outputs)
    folded = 4 * outputs * folding.folded_width(columns) if rows > 128 else 0
    assert forward > 0
    assert folded <= forward <= folded + 0.1 * (weight + others)
    assert 0 < backward <= 0.1 * (2 * weight + 2 * others)


@pytest.mark.parametrize("rows", [127, 128])
def test_a_weight_is_folded_first_from_128_rows_on(rows, monkeypatch):
    columns, outputs = 432, 512
    forward, _ = workspace_bytes(rows, columns, outputs, "ieee", monkeypatch)
    assert (forward >= 4 * outputs * folding.folded_width(columns)) == (rows == 128)


def test_which_weights_are_folded():
    """Not those of few columns, of which blocks of 16 would make more; nor of more outputs than a grid is high."""
    folds = triton_tiles.Limits().folds
    tried = (0, 1, 16, 17, 32, 33, 45, 46, 48, 49, 64, 97, 98, 432)
    assert [columns for columns in tried if folds(128, columns, 512)] == [32, 46, 48, 64, 98, 432]
    assert folds(128, 32, 16 * 65535)
    assert not folds(128, 32, 16 * 65535 + 1)
    assert not folds(127, 32, 512)


@pytest.mark.parametrize("products", ["ieee", "tf32"])
def test_full_float32_is_eager_by_default(products, monkeypatch):
    """By lecture_14.json, where this op is Triton's; a folded weight was not measured. Eager computes what PyTorch is
    set to."""
    monkeypatch.setattr(torch.backends.cuda.matmul, "fp32_precision", products)
    for dtype, precision, folded in itertools.product((torch.float32, torch.bfloat16), ("ieee", "tf32"), (False, True)):
        is_full = (dtype, precision, folded, products) == (torch.float32, "ieee", False, "ieee")
        chosen = "eager" if is_full else "triton"
        assert OP.auto(torch.empty(0, dtype=dtype), None, None, "relu", precision, folded) == chosen
