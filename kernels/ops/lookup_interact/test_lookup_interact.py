"""lookup_interact against eager, on every backend that this machine has."""

import math
from dataclasses import replace

import pytest
import torch

import kernels

from ...check import Case, check, gradients
from ...check.comparison import double
from ...check.contract import DEVICE, GPU, Dispatch, Gradients, OnGpu, Values, every_backend, kernel_backend
from ...dispatch import input_errors
from . import choice
from .eager import width
from .op import GRADIENTS, OP
from .spec import draw

INDEX = DEVICE.index if DEVICE.index is not None else (0 if DEVICE.type == "cuda" else -1)


def of_shape(rows, features, columns, bags=False, dtype=torch.float32, layout="contiguous", **how):
    return draw(Case((rows, columns), dtype, layout), rows, features, columns, bags, DEVICE, **how)


def told(function, call):
    """Call the function, and look at what it reported."""
    function(*call.arguments())
    kernels.check_ids(DEVICE, wait=True)


class LookUps:
    """What both ops' tests share."""

    @pytest.fixture(autouse=True)
    def _nothing_is_reported(self):
        yield
        if DEVICE.type == "cuda":
            torch.cuda.synchronize()
        left = input_errors.found(INDEX)
        input_errors.clear(INDEX)
        assert left is None

    def kinds(self, case=None):
        """Bags, and one id a bag: offsets that are no tensors are another path. And the kinds, by turns."""
        calls = self.calls(case)
        return [*calls[:2], *calls[5::3]]

    def no_tensors(self, call):
        return [case for case in super().no_tensors(call) if case[2] != "offsets must be a tensor; got NoneType"]

    def other_tensors(self, call):
        """Of tables, fewer rows are other tables; of row_offsets, offsets and indices, fewer are another batch."""
        return [case for case in super().other_tensors(call) if not case[2].endswith("got ")]

    @every_backend
    def test_autocast_casts_mixed_dtypes(self, backend):
        """To the tables' dtype: tables are not rounded."""
        call = self.call()
        at = self.spec.arguments.index("tables")
        tensors = [tensor.bfloat16() if i < at else tensor for i, tensor in enumerate(call.tensors)]
        wide = [tensor.float() if i < at else tensor for i, tensor in enumerate(tensors)]
        function = self.function(backend)
        compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
        want = function(*wide, *call.options)
        with torch.autocast(DEVICE.type, torch.bfloat16):
            for either in (function, compiled):
                torch.testing.assert_close(either(*tensors, *call.options), want, rtol=0, atol=0)


class TestLookupInteract(LookUps, Values, Gradients, Dispatch, OnGpu):
    op = "lookup_interact"

    def wrong_input(self, call):
        dense, tables, row_offsets, indices, offsets = call.tensors
        return [
            ((dense.int(), tables, *call.tensors[2:]), TypeError, "dense must be float32, .*; got int32"),
            ((dense[0], *call.tensors[1:]), ValueError, "dense must have shape \\[B, D\\]; got \\[24\\]"),
            ((dense, tables[:, :3], *call.tensors[2:]), ValueError, "tables must have shape \\[R, 24\\], for dense"),
            ((dense, tables, row_offsets, indices), ValueError, "indices must have shape \\[5, 3\\]"),
            ((dense, tables, row_offsets, indices, offsets, 0), ValueError, "pad_to must be a positive integer; got 0"),
            ((dense, tables, row_offsets, indices, offsets, 1, "fp8"), ValueError, "precision must be one of ieee"),
        ]

    def hold(self, backend, calls):
        """The values of these calls, and their gradients."""
        for call in calls:
            spec = replace(self.spec, calls=lambda case, device, call=call: [call])
            check(self.op, self.function(backend), cases=[Case(tuple(call.tensors[0].shape))], spec=spec)
            self.check_gradients(backend, call)

    @kernel_backend
    @pytest.mark.parametrize("features", [0, 1, 15, 16, 26, 27, 28, 31, 32, 40])
    @pytest.mark.parametrize("precision", ["ieee", "tf32"])
    def test_every_number_of_features(self, backend, features, precision):
        """A warp takes 31, in full float32 27; tensor cores take 16 vectors at a time. Rows aligned and not."""
        self.hold(backend, [of_shape(7, features, 16, bags, pad_to=pad_to, precision=precision)
                            for bags, pad_to in ((False, 1), (False, 8), (True, 4), (False, 1024))])

    @kernel_backend
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
    def test_every_width(self, backend, dtype):
        for precision in ("ieee", "tf32") if dtype == torch.float32 else ("ieee",):
            self.hold(backend, [of_shape(5, 26, columns, dtype=dtype, pad_to=8, precision=precision)
                                for columns in (1, 4, 8, 12, 16, 24, 32, 48, 64, 128, 256, 1024)])

    @kernel_backend
    def test_more_rows_than_warps(self, backend):
        self.hold(backend, [of_shape(rows, 5, 16, bags, precision="tf32", pad_to=8)
                            for rows in (1, 4, 5, 300) for bags in (False, True)])

    @every_backend
    @pytest.mark.parametrize("columns", [16, 5])
    def test_it_is_the_two_ops(self, backend, columns):
        for bags in (False, True):
            dense, *look_up = of_shape(9, 26, columns, bags).tensors
            want = kernels.dot_interaction(dense, kernels.embedding_bags(*look_up), 4)
            rounding = 2e-6 * want.abs().max().item()  # sums of another order: of a bag's rows, and of a product
            torch.testing.assert_close(self.function(backend)(dense, *look_up, 4), want, rtol=0, atol=rounding)

    @every_backend
    @pytest.mark.parametrize("value", [math.nan, math.inf], ids=str)
    @pytest.mark.parametrize("precision", ["ieee", "tf32"])
    def test_a_row_keeps_its_nan_to_itself(self, backend, value, precision):
        """Rows beside it are as without it; in its own, what hangs on it is not finite."""
        call = of_shape(9, 26, 16, precision=precision)
        dense, tables, row_offsets, indices, _ = call.tensors
        tables[row_offsets[3] + 99, 3], dense[6, 0] = value, value
        indices[:, 3], indices[4, 3] = 5, 99
        clean = self.function(backend)(dense.nan_to_num(0, 0), *call.arguments()[1:])
        got = self.function(backend)(*call.arguments())
        want = self.function("eager")(*call.arguments())
        others = [row for row in range(9) if row not in (4, 6)]
        assert torch.equal(clean[others], got[others])
        assert torch.equal(got.isnan(), want.isnan())
        assert torch.equal(got.isfinite(), want.isfinite())

    @every_backend
    def test_order_of_the_pairs(self, backend):
        """Row by row below the diagonal, the columns of the dense vector first, zeros last."""
        dense, tables = torch.tensor([[1.0]], device=DEVICE), torch.tensor([[7.0], [2.0], [3.0], [5.0]], device=DEVICE)
        row_offsets, indices = (torch.tensor(x, device=DEVICE) for x in ([0, 2, 3, 4], [[1, 0, 0]]))
        out = self.function(backend)(dense, tables, row_offsets, indices, None, 4)
        assert out.tolist() == [[1, 2 * 1, 3 * 1, 3 * 2, 5 * 1, 5 * 2, 5 * 3, 0]]

    # ----------------------------------------------------------------------------------------------- ids and offsets

    @every_backend
    @pytest.mark.parametrize("bags", [False, True])
    @pytest.mark.parametrize(("columns", "precision"), [(16, "tf32"), (16, "ieee"), (5, "ieee")])
    @pytest.mark.parametrize("bad", [-1, 37, 2**31 - 1, 2**32 + 5, 2**63 - 1, -(2**63)])
    def test_an_id_of_no_row_is_told_and_counts_as_zeros(self, backend, bags, columns, precision, bad):
        call = of_shape(6, 5, columns, bags, precision=precision)
        call.tensors[3].view(-1)[0] = bad
        message = f"^embedding_bags: id {bad} of feature 0, at position 0 of indices, is out of range for its table"
        with pytest.raises(IndexError, match=message):
            told(self.function(backend), call)
        if backend == "eager":
            return
        out = OP.overload(backend)(*self.overload_arguments(call))  # the function raises at once for a CPU's tensors
        with pytest.raises(IndexError, match=message):
            kernels.check_ids(DEVICE, wait=True)
        dense, *look_up = call.tensors
        zeros = kernels.embedding_bags(*look_up, out_of_range="zero")
        torch.testing.assert_close(out, kernels.dot_interaction(dense, zeros), rtol=1e-2, atol=1e-2)

    @every_backend
    @pytest.mark.parametrize("columns", [16, 5])
    def test_bad_offsets_are_told_and_nothing_is_read_outside(self, backend, columns):
        for position, value in ((0, 1), (3, -7), (5, 10**9), (7, 2)):
            call = of_shape(6, 5, columns, True)
            call.tensors[4][position] = value
            with pytest.raises(ValueError, match=r"^embedding_bags: offsets must go from 0"):
                told(self.function(backend), call)

    @pytest.mark.parametrize(
        ("features", "columns", "dtype", "precision", "expected"),
        [(26, 16, torch.float32, "ieee", "cuda"), (28, 16, torch.float32, "ieee", "eager"),
         (28, 16, torch.float32, "tf32", "cuda"), (31, 256, torch.bfloat16, "ieee", "cuda"),
         (32, 16, torch.bfloat16, "ieee", "eager"), (26, 17, torch.float32, "tf32", "eager"),
         (26, 256, torch.float32, "tf32", "eager"), (26, 16, torch.float64, "ieee", "eager"),
         (0, 16, torch.float32, "tf32", "eager"), (26, 0, torch.float32, "tf32", "eager")],
    )  # fmt: skip
    def test_auto_is_eager_where_no_warp_holds_a_row(self, features, columns, dtype, precision, expected):
        call = of_shape(2, features, columns, dtype=dtype, precision=precision)
        assert OP.auto(*call.arguments()) == expected
        assert GRADIENTS.auto(call.tensors[0], *call.tensors, precision, "dot") == expected

    @pytest.mark.parametrize("kind", ["fm", "flat"])
    def test_auto_of_columns_is_cuda_but_for_float64(self, kind):
        for features, columns, dtype, expected in (
            (26, 16, torch.float32, "cuda"), (40, 17, torch.float16, "cuda"), (0, 16, torch.float32, "cuda"),
            (26, 16, torch.float64, "eager"), (26, 0, torch.float32, "eager"),
        ):
            call = of_shape(2, features, columns, dtype=dtype, kind=kind)
            assert OP.auto(*call.arguments()) == expected
            assert GRADIENTS.auto(call.tensors[0], *call.tensors, "ieee", kind) == expected

    @pytest.mark.parametrize(
        ("features", "dtype", "precision", "expected"),
        [(26, torch.float32, "ieee", "cuda"), (26, torch.float32, "tf32", "cuda"), (28, torch.float32, "tf32", "eager"),
         (26, torch.float16, "ieee", "eager")],
    )  # fmt: skip
    def test_auto_without_such_tensor_cores(self, monkeypatch, features, dtype, precision, expected):
        monkeypatch.setattr(choice, "architecture", lambda device: 75)
        assert OP.auto(*of_shape(2, features, 16, dtype=dtype, precision=precision).arguments()) == expected

    @pytest.mark.parametrize(
        ("rows", "columns", "dtype", "precision", "trains", "why"),
        [(65536, 16, torch.float32, "tf32", True, ""), (65536, 128, torch.float32, "tf32", True, ""),
         (65536, 16, torch.float32, "ieee", False, ""), (65536, 128, torch.bfloat16, "ieee", True, ""),
         (65536, 16, torch.float32, "ieee", True, "16 numbers in full float32, with gradients, is not known"),
         (65536, 64, torch.float32, "ieee", False, "64 numbers in full float32 is not known"),
         (65536, 8, torch.float32, "tf32", False, "8 numbers by tensor cores is not known"),
         (65536, 256, torch.bfloat16, "ieee", False, "256 numbers by tensor cores is not known"),
         (2048, 16, torch.float32, "tf32", True, ""), (2048, 128, torch.float32, "tf32", False, ""),
         (2047, 16, torch.float32, "tf32", False, "for 2,048 rows and more"),
         (2047, 20, torch.float32, "tf32", True, "for 2,048 rows and more"),
         (65536, 16, torch.float64, "ieee", False, "a warp does not hold 26 vectors of 16 numbers, of torch.float64")],
    )  # fmt: skip
    def test_where_one_kernel_is_faster_than_two(self, rows, columns, dtype, precision, trains, why):
        told = choice.why_in_two(rows, 26, columns, dtype, precision, False, trains, torch.device("cpu"))
        assert why in told
        assert bool(why) == bool(told)
        of_bags = choice.why_in_two(rows, 26, columns, dtype, precision, True, trains, torch.device("cpu"))
        assert bool(of_bags) == (bool(why) or trains)

    def test_the_times_that_were_measured_decide(self, monkeypatch):
        choice.measured_least.cache_clear()
        slower, faster = ((1.0, 2.0),), ((2.0, 1.0),)
        of = {16: {100: faster, 1000: faster, 500: slower}, 32: {1000: faster}, 64: {1000: (*faster, *slower)}}
        monkeypatch.setitem(choice.MEASURED, (True, True), of)
        least = [choice.measured_least(columns, True, True) for columns in (8, 16, 20, 32, 40, 64, 65)]
        assert least == [0, 1000, 1000, 1000, 0, 0, 0]
        choice.measured_least.cache_clear()

    @pytest.mark.parametrize("kind", ["fm", "flat"])
    @pytest.mark.parametrize("trains", [False, True])
    def test_columns_stay_in_parts_until_they_are_measured(self, monkeypatch, kind, trains):
        """And go by what was measured then; bags with gradients never."""
        choice.measured_least.cache_clear()

        def why(rows: int, bags: bool = False, columns: int = 16, dtype: torch.dtype = torch.float32) -> str:
            return choice.why_in_two(rows, 26, columns, dtype, "ieee", bags, trains, torch.device("cpu"), kind)

        monkeypatch.setattr(choice, "MEASURED_BY_COLUMNS", {})
        assert f"16 numbers ({kind})" in why(65536)
        of = {16: {100: ((2.0, 1.0),), 10: ((1.0, 2.0),)}}
        monkeypatch.setattr(choice, "MEASURED_BY_COLUMNS", {(kind, trains): of})
        choice.measured_least.cache_clear()
        assert not why(100)
        assert "for 100 rows and more" in why(99)
        assert bool(why(100, bags=True)) is trains
        assert why(100, columns=17)
        assert why(100, dtype=torch.float64)
        choice.measured_least.cache_clear()
        monkeypatch.setattr(choice, "MEASURED_BY_COLUMNS", {(kind, trains): of | {32: of[16]}})
        for dtype, whole in ((torch.float32, 4), (torch.bfloat16, 8)):
            for columns in range(16, 33):
                assert bool(why(100, columns=columns, dtype=dtype)) is (columns % whole > 0)
        choice.measured_least.cache_clear()

    @kernel_backend
    @pytest.mark.parametrize("kind", ["fm", "flat"])
    @pytest.mark.parametrize("features", [0, 1, 31, 32, 33, 70])
    def test_columns_of_every_number_of_features(self, backend, kind, features):
        self.hold(backend, [of_shape(7, features, columns, bags, pad_to=pad_to, kind=kind)
                            for columns, bags, pad_to in ((16, False, 1), (16, True, 8), (4, False, 1), (5, False, 4))])

    @kernel_backend
    @pytest.mark.parametrize("kind", ["fm", "flat"])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
    def test_columns_of_every_width(self, backend, kind, dtype):
        self.hold(backend, [of_shape(5, 26, columns, dtype=dtype, pad_to=8, kind=kind)
                            for columns in (1, 2, 4, 8, 12, 16, 24, 64, 128, 136, 256, 1032)])

    @every_backend
    @pytest.mark.parametrize("kind", ["fm", "flat"])
    def test_columns_are_what_the_formulas_say(self, backend, kind):
        dense, tables = torch.tensor([[1.0, 2.0]], device=DEVICE), torch.arange(8.0, device=DEVICE).view(4, 2)
        row_offsets, indices = (torch.tensor(x, device=DEVICE) for x in ([0, 2, 3, 4], [[1, 0, 0]]))
        out = self.function(backend)(dense, tables, row_offsets, indices, None, 3, "ieee", kind)
        of_first = 1 * 2 + 1 * 4 + 1 * 6 + 2 * 4 + 2 * 6 + 4 * 6
        of_second = 2 * 3 + 2 * 5 + 2 * 7 + 3 * 5 + 3 * 7 + 5 * 7
        want = {"fm": [1, 2, of_first, of_second, 0, 0], "flat": [1, 2, 2, 3, 4, 5, 6, 7, 0]}
        assert out.tolist() == [want[kind]]

    @kernel_backend
    @pytest.mark.parametrize("bags", [False, True])
    def test_fm_loses_nothing_to_a_difference(self, backend, bags):
        """Where one vector is large: the pairs' own magnitude bounds the error, the squares' does not count."""
        call = of_shape(50, 26, 16, bags, kind="fm")
        call.tensors[0].mul_(1e4)
        exact, sizes = (self.spec.reference(*call.map(of).arguments()) for of in (double, lambda t: double(t).abs()))
        allowed = 8 * torch.finfo(torch.float32).eps * sizes
        assert bool(((self.function(backend)(*call.arguments()) - exact).abs() <= allowed).all())
        assert not bool(((self.function("eager")(*call.arguments()) - exact).abs() <= allowed).all())

    @kernel_backend
    def test_rows_that_are_not_there(self, backend):
        for rows, features, columns in ((0, 26, 16), (3, 0, 16), (3, 26, 0), (0, 0, 1)):
            call = of_shape(rows, features, columns)
            out = self.function(backend)(*call.arguments())
            assert out.shape == (rows, width(features, columns))
            assert torch.equal(out[:, :columns], call.tensors[0])
            assert not out[:, columns:].any() or columns

    @GPU
    @pytest.mark.heavy
    def test_more_than_2_31_elements(self):
        rows = 6_000_000
        call = of_shape(rows, 26, 16, pad_to=8, precision="tf32")
        out = self.function("cuda")(*call.arguments())
        dense, tables, row_offsets, indices, _ = call.tensors
        want = self.function("eager")(dense[-100:], tables, row_offsets, indices[-100:], None, 8)
        torch.testing.assert_close(out[-100:], want, rtol=1e-2, atol=2e-2)

    @kernel_backend
    def test_gradients_of_a_row_with_nan_stay_in_it(self, backend):
        call = of_shape(9, 26, 16, precision="tf32")
        (grad,) = self.grads(call)
        dense = call.tensors[0]
        clean = [g for g in gradients(self.function(backend), call, self.needed(call), [grad]) if g is not None]
        dense[6, 3] = math.nan
        got = [g for g in gradients(self.function(backend), call, self.needed(call), [grad]) if g is not None]
        others = [row for row in range(9) if row != 6]
        assert torch.equal(got[0][others], clean[0][others])
        assert got[0][6].isnan().nonzero().flatten().tolist() == [3]

    @kernel_backend
    def test_the_tables_may_not_be_written_to_before_the_backward(self, backend):
        call = of_shape(5, 3, 16)
        dense, tables, *others = call.tensors
        out = self.function(backend)(dense.requires_grad_(), tables, *others)
        tables.zero_()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward()


class TestLookupInteractGradients(LookUps, Values):
    """Of two outputs, which the contract's other tests know nothing of."""

    op = "lookup_interact_gradients"
    opcheck, test_opcheck = Dispatch.opcheck, Dispatch.test_opcheck
    test_under_the_sanitizer = OnGpu.test_under_the_sanitizer

    def test_auto_is_eager_on_a_cpu_and_the_faster_kernel_on_a_gpu(self):
        call = self.call()
        chosen = self.faster(call) if DEVICE.type == "cuda" else "eager"
        got, want = (self.function(backend)(*call.arguments()) for backend in ("auto", chosen))
        assert all(map(torch.equal, got, want))

    @every_backend
    def test_it_has_no_gradient(self, backend):
        call = self.call()
        for i, tensor in enumerate(call.tensors[:3]):
            tensors = [*call.tensors]
            tensors[i] = tensor.clone().requires_grad_()
            message = r"^lookup_interact_gradients has no gradient: call it under torch.no_grad\(\)"
            with pytest.raises(RuntimeError, match=message):
                self.function(backend)(*tensors, *call.options)
            with torch.no_grad():
                self.function(backend)(*tensors, *call.options)

    @kernel_backend
    @pytest.mark.parametrize("dynamic", [False, True])
    def test_compile_keeps_one_graph(self, backend, dynamic):
        compiler = "inductor" if DEVICE.type == "cuda" else "aot_eager"
        compiled = torch.compile(self.function(backend), fullgraph=True, dynamic=dynamic, backend=compiler)
        for call in self.kinds():
            assert all(map(torch.equal, compiled(*call.arguments()), self.function(backend)(*call.arguments())))

    @GPU
    @kernel_backend
    def test_capture_in_a_cuda_graph(self, backend):
        call = self.call(Case((300, 16)))
        want = self.function(backend)(*call.arguments())
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            got = self.function(backend)(*call.arguments())
        for out in got:
            out.fill_(math.nan)
        graph.replay()
        assert all(map(torch.equal, got, want))

    def wrong_input(self, call):
        grad, dense, tables, row_offsets, indices, _ = call.tensors
        return [
            ((grad.int(), *call.tensors[1:]), TypeError, "grad_out must be float32, .*; got int32"),
            ((grad[:, 1:], *call.tensors[1:]), ValueError, r"grad_out must have shape \[B, 30\] or be wider, for"),
            ((grad, dense[:, :3], *call.tensors[2:]), ValueError, r"tables must have shape \[R, 3\], for dense"),
            ((grad, dense, tables, row_offsets, indices), ValueError, r"indices must have shape \[5, 3\]"),
            ((*call.tensors, "fp8"), ValueError, "precision must be one of ieee"),
        ]

    @kernel_backend
    @pytest.mark.parametrize("rule", ["sgd", "adagrad"])
    @pytest.mark.parametrize("bags", [False, True])
    def test_an_update_takes_the_vectors_gradients(self, backend, rule, bags):
        """The same step as by a dense gradient of the tables."""
        call = of_shape(40, 5, 16, bags, pad_to=4)
        dense, tables, row_offsets, indices, offsets = call.tensors
        out = kernels.lookup_interact(dense, tables.requires_grad_(), row_offsets, indices, offsets, 4)
        grad = torch.randn_like(out)
        (want,) = torch.autograd.grad(out, tables, grad)
        updated = tables.detach()
        _, vectors = self.function(backend)(grad, dense, updated, row_offsets, indices, offsets)
        optimizer = (torch.optim.SGD if rule == "sgd" else torch.optim.Adagrad)([tables], lr=0.25)
        update = updated.clone()
        state = [torch.zeros_like(update)] if rule == "adagrad" else []
        apply = getattr(kernels, f"embedding_bags_{rule}_")
        apply(update, *state, row_offsets, indices, vectors, 0.25, offsets)
        tables.grad = want
        optimizer.step()
        torch.testing.assert_close(update, tables.detach(), rtol=1e-4, atol=1e-5)
