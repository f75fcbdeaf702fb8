"""embedding_bags against eager, on every backend of this machine, and table by table against PyTorch's modules."""

from __future__ import annotations

import contextlib
import functools
import importlib
import re
import weakref
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode

import kernels

from ... import runtime
from ...check import Call, Case, check, check_gradients
from ...check.contract import DEVICE, GPU, Dispatch, Gradients, OnGpu, Values, every_backend, kernel_backend
from ...check.interpreter import watched
from ...check.memory import Guard, guarded
from ...dispatch import cubin, input_errors, plan
from ...inductor.machine_code import opcodes, registers, sass
from . import eager
from .choice import auto, cuda_runs, triton_runs
from .op import OP
from .spec import HEIGHTS, HOSTILE_64, draw_bags, draw_ids

SLOW_INTERPRETED = (
    *(f"test_gradients_of_every_option[torch.{dtype}" for dtype in ("float16", "bfloat16", "float64")),
    *(f"test_gradients_of_every_shape[torch.{dtype}" for dtype in ("float16", "float64")),
    "test_gradients_of_several_chunks[torch.bfloat16", "test_gradcheck", "test_compile_keeps_one_graph",
    "test_opcheck", "test_generated_cases", "test_an_exported_program",
)
INTERPRETED = pytest.mark.skipif(runtime.triton_mode() != "interpreted", reason="Triton is not interpreted here")
INDEX = DEVICE.index if DEVICE.index is not None else (0 if DEVICE.type == "cuda" else -1)
ROW_OFFSETS = torch.tensor([0, *HEIGHTS]).cumsum(0).to(DEVICE)


def tables_of(width: int, dtype=torch.float32, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(sum(HEIGHTS), width, generator=generator, dtype=torch.float64).to(dtype).to(DEVICE)


def single_ids(rows: int, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return draw_ids(generator, torch.arange(len(HEIGHTS)).expand(rows, -1)).to(DEVICE)


def ragged_ids(rows: int, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    features, offsets = draw_bags(generator, rows, len(HEIGHTS))
    return draw_ids(generator, features).to(DEVICE), offsets.to(DEVICE)


@pytest.mark.slow
def test_a_step_of_tritons_bags_waits_for_rows_alone(monkeypatch, tmp_path):
    """Of sm_90's instructions: a step asks for a row four times and for an id once, before it adds anything."""
    images = []

    def function(kernel, device):
        images.append(cubin.compiled(kernel, tmp_path))
        return 0, images[-1]

    monkeypatch.setattr(plan, "_function", function)
    ids, offsets = ragged_ids(32)
    arguments = tables_of(16), ROW_OFFSETS, ids, offsets, "sum", None, -1, "error"
    plan.record(OP, "", arguments, OP.allocations("", arguments), arch=90)
    image = Path(images[0].path).read_bytes()
    if (lines := sass(image)) is None:
        pytest.skip("Triton has no nvdisasm here")
    rows = [i for i, line in enumerate(lines) if "LDG.E.128" in line]
    assert len(rows) == 4
    end = next(i for i in range(rows[-1], len(lines)) if "BRA" in lines[i])
    step = [opcode for line in lines[rows[0] : end] for opcode in re.findall("LDG.E.64|LDG.E.128|FADD", line)]
    assert step == ["LDG.E.128"] * 4 + ["LDG.E.64"] + ["FADD"] * 16
    assert "STL" not in opcodes(lines)
    assert registers(image) <= 64


class TestEmbeddingBags(Values, Gradients, Dispatch, OnGpu):
    op = "embedding_bags"

    def kinds(self, case=None):
        """Weighted bags, and one id a bag; weighted ids, and bags without weights, have a slow test."""
        return super().kinds(case)[:2]

    @pytest.mark.slow
    @kernel_backend
    def test_among_torchs_ops_with_other_tensors(self, backend, monkeypatch):
        monkeypatch.setattr(type(self), "kinds", lambda self, case=None: Dispatch.kinds(self, case)[2:])
        self.test_opcheck(backend)
        self.test_compile_keeps_one_graph(backend, False)

    def test_auto_is_eager_on_a_cpu_and_the_faster_kernel_on_a_gpu(self):
        for call in self.kinds():
            chosen = self.faster(call) if DEVICE.type == "cuda" else "eager"
            assert torch.equal(self.function("auto")(*call.arguments()), self.function(chosen)(*call.arguments()))

    def test_auto_is_triton_where_it_runs(self, monkeypatch):
        ids, offsets = torch.zeros(2, 3), torch.zeros(1)
        for missing, chosen in (
            ((), "triton"), (("cuda",), "triton"), (("triton",), "cuda"), (("triton", "cuda"), "eager")
        ):
            monkeypatch.setattr(runtime, "why_not", lambda backend, _, missing=missing: "x" * (backend in missing))
            cuda_runs.cache_clear()
            triton_runs.cache_clear()
            assert [auto(None, None, ids, None), auto(None, None, ids, offsets)] == [chosen] * 2
        cuda_runs.cache_clear()
        triton_runs.cache_clear()
        assert auto(None, None, torch.empty(2**31, 1, device="meta"), None) == "eager"

    @pytest.fixture(autouse=True)
    def _nothing_is_reported(self):
        yield
        if DEVICE.type == "cuda":
            torch.cuda.synchronize()
        left = input_errors.found(INDEX)
        input_errors.clear(INDEX)
        assert left is None

    def no_tensors(self, call):
        """Each tensor in turn is none."""
        cases = []
        for i, name in ((0, "tables"), (1, "row_offsets"), (2, "indices")):
            for wrong in (None, "2", call.tensors[i].cpu().numpy()):
                arguments = (*call.arguments()[:i], wrong, *call.arguments()[i + 1 :])
                cases.append((arguments, TypeError, f"{name} must be a tensor; got {type(wrong).__name__}"))
        return cases

    def other_tensors(self, call):
        return []

    def wrong_input(self, call):
        tables, row_offsets, ids, offsets, mode, weights = call.tensors
        on_meta = "must be on tables's device, (cpu|cuda:0); got meta"
        one = (tables, row_offsets)
        return [
            ((tables.int(), *call.arguments()[1:]), TypeError, "tables must be float32, .*; got int32"),
            ((tables[0], *call.arguments()[1:]), ValueError, r"tables must have shape \[R, D\]; got \[24\]"),
            ((tables, row_offsets.int(), ids, offsets), TypeError, "row_offsets must be int64; got int32"),
            ((tables, row_offsets[None], ids, offsets), ValueError, r"row_offsets must have shape \[F \+ 1\]; got"),
            ((*one, ids.float(), offsets), TypeError, "indices must be int32 or int64; got float32"),
            ((*one, ids.to("meta"), offsets), ValueError, f"indices {on_meta}"),
            ((*one, ids), ValueError, r"indices must have shape \[B, 3\], for row_offsets of shape \[4\]; got"),
            ((*one, ids[None], offsets), ValueError, r"indices must have shape \[N\], since there are offsets; got"),
            ((*one, ids, offsets.to("meta")), ValueError, f"offsets {on_meta}"),
            ((*one, ids, offsets.tolist()), TypeError, "offsets must be a tensor; got list"),
            ((*one, ids, offsets[:-1]), ValueError, r"offsets must have shape \[3 · B \+ 1\], for row_offsets.*; got \["
             r"\d+\]; the number of ids comes last, as in nn.EmbeddingBag's with include_last_offset=True"),
            ((*one, ids, offsets[:-2]), ValueError, r"offsets must have shape \[3 · B \+ 1\], for row_offsets.*; got"),
            ((*one, ids, offsets[:1]), ValueError, "offsets must end at .*, the number of ids"),
            ((*one, ids, offsets, "median"), ValueError, "mode must be one of sum, mean, max; got 'median'"),
            ((*one, ids, offsets, "mean", weights), ValueError, "mode must be sum, since there are per_sample_weights"),
            ((*one, ids, offsets, mode, weights.double()), TypeError, "per_sample_weights must have tables's dtype"),
            ((*one, ids, offsets, mode, weights[:-1]), ValueError, "per_sample_weights must have shape"),
            ((*one, ids, offsets, mode, weights, -2), ValueError, "padding_idx must be an id, or -1 or None"),
            ((*one, ids, offsets, mode, weights, 0, "ignore"), ValueError, "out_of_range must be one of error, zero"),
        ]

    # ------------------------------------------------------------------------------------------- PyTorch's modules

    @every_backend
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
    @pytest.mark.parametrize("ids", [torch.int32, torch.int64], ids=str)
    @pytest.mark.parametrize("width", [4, 7, 16])
    def test_one_id_a_bag_is_nn_embedding_bit_for_bit(self, backend, dtype, ids, width):
        """With the gradients of small integers, whose sums are exact in any order."""
        tables, indices = tables_of(width, dtype).requires_grad_(), single_ids(50)
        out = self.function(backend)(tables, ROW_OFFSETS, indices.to(ids))
        modules = self.modules(nn.Embedding, tables)
        want = torch.stack([module(indices[:, f]) for f, module in enumerate(modules)], dim=1)
        grad = torch.randint(-2, 3, out.shape, device=DEVICE).to(dtype)
        out.backward(grad)
        want.backward(grad)
        assert torch.equal(out, want)
        assert torch.equal(tables.grad, torch.cat([module.weight.grad for module in modules]))

    @every_backend
    @pytest.mark.parametrize("mode", ["sum", "mean", "max"])
    @pytest.mark.parametrize("padding", [None, 0])
    def test_bags_are_nn_embedding_bag(self, backend, mode, padding):
        tables, (ids, offsets) = tables_of(9).requires_grad_(), ragged_ids(20)
        out = self.function(backend)(tables, ROW_OFFSETS, ids, offsets, mode, None, padding)
        modules = self.modules(nn.EmbeddingBag, tables, mode=mode, include_last_offset=True, padding_idx=padding)
        bounds, pooled = offsets[:: len(offsets) // len(HEIGHTS)].tolist(), []
        for f, module in enumerate(modules):
            own = offsets[f * 20 : (f + 1) * 20 + 1] - bounds[f]
            pooled.append(module(ids[bounds[f] : bounds[f + 1]], own))
        want = torch.stack(pooled, dim=1)
        grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(2)).to(DEVICE)
        out.backward(grad)
        want.backward(grad)
        torch.testing.assert_close(out, want)
        torch.testing.assert_close(tables.grad, torch.cat([module.weight.grad for module in modules]))

    def modules(self, kind, tables, **options):
        """A module a table, with its rows."""
        parts = tables.detach().split(HEIGHTS)
        return [kind.from_pretrained(part.clone(), freeze=False, **options) for part in parts]

    # ------------------------------------------------------------------------------------------------ hostile ids

    def fails(self, function, error, message):
        """The call raises; on a GPU the kernels' own report of it, once they have finished, or the call behind it."""


        def call():
            function()
            kernels.check_ids(DEVICE, wait=True)

        with pytest.raises(error, match=message):
            call()

    @every_backend
    @pytest.mark.parametrize("bad", HOSTILE_64)
    @pytest.mark.parametrize("ragged", [False, True])
    def test_a_bad_id_is_named(self, backend, bad, ragged):
        tables = tables_of(5)
        ids, offsets = ragged_ids(10) if ragged else (single_ids(10), None)
        position = int(offsets[19]) if ragged else 28  # of feature 1, which has one row
        ids.view(-1)[position] = bad
        message = f"embedding_bags: id {bad} of feature 1, at position {position} of indices, is out of range"
        self.fails(lambda: self.function(backend)(tables, ROW_OFFSETS, ids, offsets), IndexError, message)
        before = kernels.out_of_range_count(DEVICE)
        out = self.function(backend)(tables, ROW_OFFSETS, ids, offsets, out_of_range="count")
        kernels.check_ids(DEVICE, wait=True)
        assert kernels.out_of_range_count(DEVICE) == before + 1
        if not ragged:
            assert not out[9, 1].any()
            assert out[8].any(dim=1).all()

    @every_backend
    def test_negative_numbers_of_32_bits_are_named(self, backend):
        ids, offsets = (tensor.int() for tensor in ragged_ids(10))
        call = functools.partial(self.function(backend), tables_of(5), ROW_OFFSETS, ids, offsets)
        ids[3] = -2
        self.fails(call, IndexError, "id -2 of feature")
        ids[3], offsets[5] = 0, -7
        self.fails(call, ValueError, r"offsets\[5\] is -7")

    @kernel_backend
    def test_a_bad_id_is_reported_once(self, backend):
        ids = single_ids(10)
        ids[:, 0] = -1
        self.fails(lambda: self.function(backend)(tables_of(5), ROW_OFFSETS, ids), IndexError, "id -1 of feature 0")
        self.function(backend)(tables_of(5), ROW_OFFSETS, single_ids(10))

    @kernel_backend
    def test_once_a_bad_id_is_told_no_other_is(self, backend):
        """An atomic operation on the host's memory for each bad id would take a batch of them milliseconds."""
        ids, (ragged, offsets) = single_ids(50) - 100, ragged_ids(30)
        numbers = input_errors.tensor(DEVICE)
        numbers[input_errors.CLAIMS] = 1
        self.function(backend)(tables_of(5), ROW_OFFSETS, ids)
        self.function(backend)(tables_of(5), ROW_OFFSETS, ragged - 100, offsets)
        if DEVICE.type == "cuda":
            torch.cuda.synchronize()
        assert numbers[input_errors.CLAIMS] == 1
        input_errors.clear(INDEX)
        before = kernels.out_of_range_count(DEVICE)
        self.function(backend)(tables_of(5), ROW_OFFSETS, ids, out_of_range="count")
        self.function(backend)(tables_of(5), ROW_OFFSETS, ragged - 100, offsets, out_of_range="count")
        kernels.check_ids(DEVICE, wait=True)
        assert kernels.out_of_range_count(DEVICE) == before + ids.numel() + len(ragged)

    @every_backend
    @pytest.mark.parametrize("ragged", [False, True])
    def test_a_padding_is_not_counted_as_missing(self, backend, ragged):
        ids, offsets = ragged_ids(10) if ragged else (single_ids(10), None)
        ids.view(-1)[:3] = torch.tensor([99, -1, 99], device=DEVICE)  # which no table has
        before = kernels.out_of_range_count(DEVICE)
        self.function(backend)(tables_of(5), ROW_OFFSETS, ids, offsets, "sum", None, 99, "count")
        kernels.check_ids(DEVICE, wait=True)
        assert kernels.out_of_range_count(DEVICE) == before + 1

    @GPU
    @kernel_backend
    def test_the_next_call_raises_and_no_call_waits(self, backend):
        tables, ids = tables_of(5), single_ids(10)
        wrong = ids.clone()
        wrong[3, 2] = 8
        self.function(backend)(tables, ROW_OFFSETS, wrong)
        torch.cuda.synchronize()
        with pytest.raises(IndexError, match=r"id 8 of feature 2, at position 11 .*in an earlier call"):
            self.function(backend)(tables, ROW_OFFSETS, ids)
        torch.cuda._sleep(500_000_000)
        self.function(backend)(tables, ROW_OFFSETS, wrong)
        kernels.check_ids()  # the kernel has not begun
        with pytest.raises(IndexError):
            kernels.check_ids(wait=True)

    @GPU
    @kernel_backend
    def test_a_captured_call_reports_when_it_is_replayed(self, backend):
        tables, ids = tables_of(5), single_ids(10)
        self.function(backend)(tables, ROW_OFFSETS, ids)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.function(backend)(tables, ROW_OFFSETS, ids)
        ids[0, 1] = 77
        graph.replay()
        with pytest.raises(IndexError, match="id 77 of feature 1, at position 1"):
            kernels.check_ids(wait=True)

    @GPU
    @kernel_backend
    @pytest.mark.parametrize("ragged", [False, True])
    def test_a_captured_gradient_follows_the_ids(self, backend, ragged):
        tables, (ids, offsets) = tables_of(5).requires_grad_(), ragged_ids(50) if ragged else (single_ids(50), None)
        grad = torch.randn(50, 3, 5, device=DEVICE)

        def gradient():
            out = self.function(backend)(tables, ROW_OFFSETS, ids, offsets, "mean")
            return torch.autograd.grad(out, tables, grad)[0]

        gradient()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = gradient()
        ids.zero_()
        graph.replay()
        assert torch.equal(captured, gradient())

    @every_backend
    @pytest.mark.parametrize(
        ("change", "position", "value"),
        [({5: 3}, 5, 3), ({5: 20}, 5, 20), ({5: -1}, 5, -1), ({0: 1}, 0, 1), ({5: 2**40}, 5, 2**40),
         ({5: -(2**63)}, 5, -(2**63)), ({5: 999}, 5, 999)],  # the bag before begins at 21
    )
    def test_bad_offsets_are_named(self, backend, change, position, value):
        ids, offsets = ragged_ids(10)
        for i, wrong in change.items():
            offsets[i] = wrong
        message = rf"embedding_bags: offsets must go from 0 .*; offsets\[{position}\] is {value}"
        guard = Guard()
        inputs = [guard.like(tensor, written=True) for tensor in (tables_of(5), ROW_OFFSETS, ids, offsets)]
        with guarded(guard), watched(guard):  # nothing is read outside, wherever they point
            self.fails(lambda: self.function(backend)(*inputs), ValueError, message)
        guard.verify()

    @every_backend
    @pytest.mark.parametrize("less", [1, -1])
    def test_offsets_that_end_elsewhere(self, backend, less):
        ids, offsets = ragged_ids(10)
        ids = ids[:-1] if less > 0 else torch.cat([ids, ids[:1]])
        message = rf"to the number of ids \(include_last_offset\) and .* offsets\[30\] is {len(ids) + less}"
        self.fails(lambda: self.function(backend)(tables_of(5), ROW_OFFSETS, ids, offsets), ValueError, message)

    @every_backend
    def test_row_offsets_that_lie_read_nothing_outside(self, backend):
        tables, ids = tables_of(5), torch.tensor([[0, 3], [1, 5]], device=DEVICE)
        lying = torch.tensor([0, 40, 400], device=DEVICE)
        if backend == "eager" and DEVICE.type == "cpu":
            with pytest.raises(ValueError, match=r"row_offsets must rise from 0 to at most 46 .*\[2\] is 400"):
                self.function(backend)(tables, lying, ids)
            return
        for offsets in (lying, lying - 1, lying + 1, lying.flip(0), lying - 40, -lying):  # ± 1: a row beside the tables
            guard = Guard()
            inputs = [guard.like(tensor, written=True) for tensor in (tables, offsets, ids)]
            with guarded(guard), watched(guard):
                self.function(backend)(*inputs, out_of_range="zero")
            guard.verify()
            if backend == "triton" and DEVICE.type == "cpu":  # whose ids torch.sort sorts, behind a check
                continue
            guard = Guard()
            leaf, *inputs = (guard.like(tensor, written=True) for tensor in (tables, offsets, ids))
            with guarded(guard), watched(guard):
                self.function(backend)(leaf.requires_grad_(), *inputs, out_of_range="zero").sum().backward()
            guard.verify()
        out = self.function(backend)(tables, lying, ids + 4, out_of_range="zero")
        assert not out[1, 1].any()
        falling = torch.tensor([20, 5, 46], device=DEVICE)  # the first table has no rows, but its first is one
        assert not self.function(backend)(tables, falling, ids, out_of_range="zero")[:, 0].any()

    @kernel_backend
    def test_too_many_ids_to_sort(self, backend):
        ids = torch.zeros(1, 1, dtype=torch.long, device=DEVICE).expand(2**31, 1)
        tables = tables_of(1)
        grad, shape = tables[:1, None].expand(2**31, 1, 1), list(tables.shape)
        arguments = (grad, ROW_OFFSETS[:2], ids, None, None, None, shape, "sum", -1, "zero")
        with pytest.raises(ValueError, match=r"embedding_bags_sort: indices must have less than 2\^31 elements; got"):
            self.declaration.overload(backend, "backward")(*arguments, [True, False])

    @pytest.mark.skipif(DEVICE.type != "cpu", reason="for the CPU")
    @pytest.mark.parametrize("mode", ["sum", "mean", "max", "weighted"])
    @pytest.mark.parametrize("ragged", [False, True])
    def test_eager_on_a_cpu_is_torchs_look_up_where_that_gives_the_same(self, ragged, mode, monkeypatch):
        """And with ids that are none it is the reference's own, whose results and errors are those of every backend."""
        asked, torchs = [], eager.looked_up_by_torch
        tables, (ids, offsets) = tables_of(9).requires_grad_(), ragged_ids(20) if ragged else (single_ids(20), None)
        tables.data[3] = torch.nan
        weights = torch.randn(ids.shape).requires_grad_() if mode == "weighted" else None
        inputs = ids, offsets, "sum" if weights is not None else mode, weights
        results = []
        for way in (torchs, lambda *arguments: None):
            look_up = lambda *arguments, way=way: asked.append(way(*arguments)) or asked[-1]  # noqa: E731
            monkeypatch.setattr(eager, "looked_up_by_torch", look_up)
            out = self.function("eager")(tables, ROW_OFFSETS, *inputs)
            grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(2))
            leaves = [tables] if weights is None else [tables, weights]
            results.append((out, *torch.autograd.grad(out, leaves, grad)))
        assert [result is not None for result in asked] == [True, False]
        torch.testing.assert_close(*results, equal_nan=True)
        ids.view(-1)[2] = 99
        with pytest.raises(IndexError, match="id 99 of feature"):
            self.function("eager")(tables, ROW_OFFSETS, *inputs)

    # ------------------------------------------------------------------------------------------------ shapes alone

    @kernel_backend
    def test_batches_of_any_size_are_one_compilation(self, backend):
        """With bags, forward and backward. Eager's pooling is F.embedding_bag, of which each N is a graph."""
        counter = importlib.import_module("torch._dynamo.testing").CompileCounterWithBackend("aot_eager")
        compiled = torch.compile(self.function(backend), backend=counter, dynamic=True)
        tables = tables_of(5).requires_grad_()
        for batch in (4, 7, 33):
            ids, offsets = ragged_ids(batch)
            out = compiled(tables, ROW_OFFSETS, ids, offsets, "mean")
            want = kernels.embedding_bags(tables, ROW_OFFSETS, ids, offsets, "mean", backend="eager")
            torch.testing.assert_close(out, want)
            grads = [torch.autograd.grad(result.square().sum(), tables)[0] for result in (out, want)]
            torch.testing.assert_close(*grads)
        assert counter.frame_count == 1

    @pytest.mark.parametrize("ragged", [False, True])
    @pytest.mark.parametrize("fake", [False, True])
    def test_tensors_without_values_have_shapes_and_gradients(self, ragged, fake):
        """As FLOP counters, and modules that are made on the device meta, ask for them."""
        ids, offsets = ragged_ids(10) if ragged else (single_ids(10), None)
        weights = torch.randn(ids.shape, device=DEVICE)
        with FakeTensorMode() if fake else contextlib.nullcontext() as mode:
            def shapes(tensor):
                return mode.from_tensor(tensor) if fake else tensor.to("meta")

            inputs = [tensor if tensor is None else shapes(tensor) for tensor in (ROW_OFFSETS, ids, offsets)]
            tables = shapes(tables_of(5)).requires_grad_()
            for mode_, more in (("sum", shapes(weights)), ("sum", None), ("mean", None), ("max", None)):
                out = kernels.embedding_bags(tables, *inputs, mode_, more, 2)
                assert (out.shape, out.dtype, out.device) == ((10, 3, 5), torch.float32, tables.device)
                (grad,) = torch.autograd.grad(out.sum(), tables)
                assert grad.shape == tables.shape

    # ------------------------------------------------------------------------------------------ what a gradient reads

    @every_backend
    @pytest.mark.parametrize(("mode", "weighted"), [("sum", False), ("mean", False), ("sum", True)])
    def test_tables_may_change_and_go_where_no_gradient_reads_them(self, backend, mode, weighted):
        """An optimizer's step between forward and backward; the gradient needs the tables' shape alone."""
        ids, offsets = ragged_ids(10)
        weights = torch.randn(len(ids), device=DEVICE) if weighted else None
        grads = []
        for changes in (False, True):
            leaf = tables_of(5).requires_grad_()
            tables = leaf * 1
            alive = weakref.ref(tables)
            out = self.function(backend)(tables, ROW_OFFSETS, ids, offsets, mode, weights)
            if changes:
                with torch.no_grad():
                    tables.mul_(100)
            del tables
            assert alive() is None
            grads += torch.autograd.grad(out.square().sum(), leaf)
        assert torch.equal(*grads)

    @kernel_backend
    @pytest.mark.parametrize("mode", ["sum", "max"])
    def test_tables_that_a_gradient_reads_must_not_change(self, backend, mode):
        ids, offsets = ragged_ids(10)
        tables, weights = tables_of(5).requires_grad_(), None
        if mode == "sum":
            weights = torch.randn(len(ids), device=DEVICE, requires_grad=True)
        out = self.function(backend)(tables, ROW_OFFSETS, ids, offsets, mode, weights)
        with torch.no_grad():
            tables.mul_(100)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward()

    # -------------------------------------------------------------------------------------------------- few of it

    @every_backend
    def test_a_nan_row_beside_a_miss_stays_where_it_is(self, backend):
        tables = tables_of(6)
        tables[2] = torch.nan
        ids = torch.tensor([[2, 0, 0], [99, 0, 0], [2, 9, 0]], device=DEVICE)
        out = self.function(backend)(tables, ROW_OFFSETS, ids, out_of_range="zero")
        assert out.isnan().any(dim=2).tolist() == [[True, False, False], [False, False, False], [True, False, False]]
        leaf, grad = tables_of(6).requires_grad_(), torch.zeros(3, 3, 6, device=DEVICE)
        grad[1, 0] = torch.nan  # of the miss
        grad[2, 1] = torch.nan
        self.function(backend)(leaf, ROW_OFFSETS, ids, out_of_range="zero").backward(grad)
        assert not leaf.grad.any()
        weights = torch.full((3, 3), torch.inf, device=DEVICE)
        out = self.function(backend)(tables, ROW_OFFSETS, ids, None, "sum", weights, out_of_range="zero")
        assert not out[1, 0].any()

    @every_backend
    @pytest.mark.parametrize("mode", ["sum", "mean", "max"])
    def test_empty_bags_and_batches(self, backend, mode):
        tables, none = tables_of(5).requires_grad_(), torch.zeros(0, dtype=torch.long, device=DEVICE)
        for rows in (0, 4):
            offsets = torch.zeros(3 * rows + 1, dtype=torch.long, device=DEVICE)
            out = self.function(backend)(tables, ROW_OFFSETS, none, offsets, mode)
            assert out.shape == (rows, 3, 5)
            assert not out.any()
            (grad,) = torch.autograd.grad(out, tables, torch.ones_like(out))
            assert not grad.any()

    @every_backend
    def test_tables_of_no_rows(self, backend):
        row_offsets = torch.tensor([0, 0, 4, 4], device=DEVICE)
        ids = torch.tensor([[0, 3, 0]], device=DEVICE)
        for tables in (torch.randn(4, 3, device=DEVICE), torch.zeros(0, 3, device=DEVICE)):
            rows = row_offsets.clamp(max=len(tables))
            leaf = tables.requires_grad_()
            out = self.function(backend)(leaf, rows, ids, out_of_range="zero")
            assert out.any(dim=2).tolist() == [[False, len(tables) > 0, False]]
            out.sum().backward()
            assert leaf.grad.sum() == (3 if len(tables) else 0)

    @every_backend
    def test_no_tables_and_no_columns(self, backend):
        tables, ids = tables_of(5).requires_grad_(), single_ids(4)
        for inputs, shape in (((tables, ROW_OFFSETS[:1], ids[:, :0]), (4, 0, 5)),
                              ((tables[:, :0], ROW_OFFSETS, ids), (4, 3, 0))):
            out = self.function(backend)(*inputs)
            assert out.shape == shape
            out.sum().backward()
        assert not tables.grad.any()

    @kernel_backend
    @pytest.mark.parametrize("ragged", [False, True])
    def test_every_id_is_the_same(self, backend, ragged):
        """A run of equal rows then goes through many chunks of the sorted ids."""
        ids, offsets = ragged_ids(120) if ragged else (single_ids(200), None)
        ids.zero_()
        for mode in ("sum", "mean", "max") if ragged else ("sum",):
            tensors = (tables_of(4), ROW_OFFSETS, ids, offsets, mode, None)
            grads = [Case((200 - 80 * ragged, 3, 4)).tensor(9, DEVICE)]
            check_gradients(self.op, self.function(backend), Call(mode, tensors, (-1, "error")),
                            (True, False, False) + (False,) * ragged, grads)

    @kernel_backend
    def test_a_run_that_begins_at_a_chunk(self, backend):
        """And is longer than one; with gradients of small integers, whose sums are exact in any order."""
        ids = torch.tensor([0, 3, 5], device=DEVICE).repeat_interleave(torch.tensor([64, 200, 7], device=DEVICE))
        grads, grad = [], torch.randint(-3, 4, (len(ids), 1, 5), generator=torch.Generator().manual_seed(3)).float()
        for way in (backend, "eager"):
            tables = tables_of(5).requires_grad_()
            self.function(way)(tables, ROW_OFFSETS[:2], ids[:, None]).backward(grad.to(DEVICE))
            grads.append(tables.grad)
        assert torch.equal(*grads)

    @kernel_backend
    def test_a_run_that_ends_with_the_ids(self, backend):
        """Which fill their chunks, or of which the last is alone in its chunk."""
        for count in (192, 193):
            ids = torch.arange(count, device=DEVICE)[:, None] // 100 * 5
            call = Call(f"{count} ids", (tables_of(4), ROW_OFFSETS[:2], ids, None, "sum", None), (-1, "error"))
            grads = [Case((count, 1, 4)).tensor(9, DEVICE)]
            check_gradients(self.op, self.function(backend), call, (True, False, False), grads)

    # --------------------------------------------------------------------------------------------- paths, by limits

    @kernel_backend
    def test_keys_of_64_bits(self, backend):
        """As tables of 2^30 rows and more have them."""
        gradients = self.declaration.overload(backend, "prepared")
        position = self.declaration.forms["prepared"].names.index("row_keys")
        for call in self.kinds():
            arguments = [*self.declaration.with_prepared(backend, self.backward_arguments(call))]
            want = gradients(*arguments)
            assert arguments[position].dtype == torch.int32
            arguments[position] = arguments[position].long()
            for actual, same in zip(gradients(*arguments), want, strict=True):
                assert torch.equal(actual, same)

    @INTERPRETED
    def test_as_many_ids_ahead_as_on_a_gpu(self, monkeypatch):
        launcher = importlib.import_module("kernels.ops.embedding_bags.triton_launch")
        monkeypatch.setattr(launcher, "INTERPRETED", launcher.Limits())
        cases = Case((7, 16), every_option=False), Case((9, 3), torch.bfloat16, every_option=False)
        check(self.op, self.function("triton"), cases=cases)

    @INTERPRETED
    @pytest.mark.parametrize("ragged", [False, True])
    def test_rows_of_several_tiles_count_a_miss_once(self, monkeypatch, ragged):
        launcher = importlib.import_module("kernels.ops.embedding_bags.triton_launch")
        monkeypatch.setattr(launcher, "INTERPRETED", launcher.Limits(bytes_of_a_thread=1, bags_bytes=1))
        ids, offsets = ragged_ids(10) if ragged else (single_ids(10), None)
        ids.view(-1)[:3] = torch.tensor([99, -1, 2**40])  # which no table has
        arguments = tables_of(41), ROW_OFFSETS, ids, offsets, "sum", None, -1
        before = kernels.out_of_range_count(DEVICE)
        got = self.function("triton")(*arguments, "count")
        assert kernels.out_of_range_count(DEVICE) == before + 3
        torch.testing.assert_close(got, self.function("eager")(*arguments, "zero"))

    @INTERPRETED
    def test_64_bit_offsets_and_small_chunks(self, monkeypatch):
        launcher = importlib.import_module("kernels.ops.embedding_bags.triton_launch")
        # 65 columns in five blocks; of a weight's gradient in one, and one column.
        limits = launcher.Limits(wide_size=0, chunk=4, ahead=1, block=32, sums=16)
        for name in ("forward", "backward"):
            monkeypatch.setattr(launcher, name, functools.partial(getattr(launcher, name), limits=limits))
        cases = [Case((5, 65)), Case((7, 5), torch.bfloat16, every_option=False), Case((3, 520), every_option=False)]
        check(self.op, self.function("triton"), cases=cases)
        for call in self.calls(cases[0])[:4]:
            check_gradients(self.op, self.function("triton"), call, self.needed(call), self.grads(call))

    @GPU
    @kernel_backend
    @pytest.mark.heavy
    def test_more_than_2_31_elements(self, backend):
        """In the tables, and in the output."""
        free = torch.cuda.mem_get_info()[0]
        if free < 30e9:
            pytest.skip("less than 30 GB of GPU memory are free")
        rows = 2**31 // 64 + 1000
        tables = torch.empty(rows, 64, dtype=torch.float16, device=DEVICE)
        for part in tables.split(1 << 20):
            part.copy_(torch.randn(part.shape, device=DEVICE))
        row_offsets = torch.tensor([0, 10, rows], device=DEVICE)
        ids = torch.randint(rows - 10, (2**24 + 1000, 2), device=DEVICE)
        ids[:, 0] %= 10
        ids[-1, 1] = rows - 11
        out = self.function(backend)(tables, row_offsets, ids)
        for sample in (slice(0, 1000), slice(2**24 - 1000, None)):
            assert torch.equal(out[sample], tables[ids[sample] + row_offsets[:2]])
