"""embedding_bags_apart against eager, on every backend of this machine, and against PyTorch's modules."""

from __future__ import annotations

import functools
from collections import deque

import pytest
import torch
from torch import nn

import kernels

from ... import runtime
from ...check import Case, check, check_gradients
from ...check.contract import DEVICE, GPU, Dispatch, Gradients, OnGpu, Values, every_backend, kernel_backend
from ...dispatch import input_errors
from ..embedding_bags import choice
from .op import OP
from .spec import HEIGHTS, SPEC, draw_bags

INDEX = DEVICE.index if DEVICE.index is not None else (0 if DEVICE.type == "cuda" else -1)
HOSTILE = (-1, 37, 2**31 - 1, -(2**31), 2**32 + 5, 2**63 - 1, -(2**63))


class TestEmbeddingBagsApart(Values, Gradients, Dispatch, OnGpu):
    op = "embedding_bags_apart"

    def kinds(self, case=None):
        """Bags, and one id a bag: offsets that are no tensors are another path."""
        return self.calls(case)[:2]

    def backward_arguments(self, call, needs=None):
        return super().backward_arguments(call, (True,) * len(HEIGHTS) if needs is None else needs)

    def test_gradients_in_batches_are_refused(self):
        ids, backward = torch.tensor([0, 1]), torch.ops.fused_kernels.embedding_bags_apart_backward.cuda

        def gradients(grad_out):
            return backward(grad_out, [ids], [ids], [3, 4], "sum", False, [True])

        with pytest.raises(RuntimeError, match=r'^embedding_bags_apart has no gradients in batches.*backend="eager"'):
            torch.func.vmap(gradients)(torch.ones(2, 3, 1, 4))

    @pytest.fixture(autouse=True)
    def _nothing_is_reported(self):
        yield
        if DEVICE.type == "cuda":
            torch.cuda.synchronize()
        left = input_errors.found(INDEX)
        input_errors.clear(INDEX)
        assert left is None

    # ------------------------------------------------------------------------------------------------- wrong input

    def no_tensors(self, call):
        tables, indices, offsets = call.tensors
        cases = []
        for i, name in enumerate(("tables", "indices", "offsets")):
            for wrong in ("2", call.tensors[i][0], 7):
                arguments = (*call.tensors[:i], wrong, *call.tensors[i + 1 :])
                # The op wants to know where the first lies before it looks at the rest.
                message = f"{name} must be a " + ("(list of )?tensors?" if i == 0 else "list of tensors")
                cases.append((arguments, TypeError, message + f"; got {type(wrong).__name__}"))
        with_none = [tables[0], None, tables[2]], indices, offsets
        return [*cases, (with_none, TypeError, r"tables\[1\] must be a tensor; got NoneType")]

    def other_tensors(self, call):
        cases = []
        for i, name in enumerate(("tables", "indices", "offsets")):
            for wrong, error, message in (
                (lambda t: t.to(torch.float64 if t.is_floating_point() else torch.int32), TypeError,
                 rf"{name}\[1\] must have {name}\[0\]'s dtype, float32|int64; got float64|int32"),
                (lambda t: t.to("meta"), ValueError, rf"{name}\[1\] must be on tables\[0\]'s device, .*; got meta"),
                (lambda t: t[None], ValueError, rf"{name}\[1\] must have shape .*; got \[1, "),
            ):
                tensors = list(call.tensors[i])
                tensors[1] = wrong(tensors[1])
                cases.append(((*call.tensors[:i], tensors, *call.tensors[i + 1 :]), error, message))
            fewer = (*call.tensors[:i], call.tensors[i][:-1], *call.tensors[i + 1 :])
            cases.append((fewer, ValueError, "(indices|offsets) must be as many as tables, [23]; got [23]"))
        return cases

    def wrong_input(self, call):
        tables, indices, offsets = call.tensors
        return [
            (([t.int() for t in tables], indices, offsets), TypeError, r"tables\[0\] must be float32, .*; got int32"),
            ((tables, [i.float() for i in indices]), TypeError, r"indices\[0\] must be int32 or int64; got float32"),
            (([tables[0], tables[1][:, :3], tables[2]], indices, offsets), ValueError,
             r"tables\[1\] must have shape \[R, D\], of one D; got \[1, 3\]"),
            ((tables, indices, [offsets[0], offsets[1][1:], offsets[2]]), ValueError,
             r"offsets\[1\] must have shape \[B\], of one B; got \[4\]"),
            ((tables, [offsets[0], offsets[1][1:], offsets[2]]), ValueError, r"indices\[1\] must have shape \[B\], of"),
            ((tables, indices, offsets, "max"), ValueError, "mode must be one of sum, mean; got 'max'"),
            ((tables, offsets, None, "sum", True), ValueError, "offsets must be given, since there is include_last"),
            ((tables, indices, [o[:0] for o in offsets], "sum", True), ValueError,
             r"offsets\[0\] must have shape \[B \+ 1\], since there is include_last_offset; got \[0\]"),
        ]

    @every_backend
    def test_any_sequence_of_tensors_will_do(self, backend):
        tables, indices, offsets = self.call().tensors
        want = self.function(backend)(tables, indices, offsets)
        inputs = nn.ParameterList(tables), tuple(indices), deque(offsets)
        assert torch.equal(self.function(backend)(*inputs), want)
        empty = nn.ParameterList()
        with pytest.raises(ValueError, match="tables must have one tensor at least; got none"):
            self.function(backend)(empty, [], [])

    @every_backend
    def test_no_tables_at_all(self, backend):
        with pytest.raises(ValueError, match="embedding_bags_apart: tables must have one tensor at least; got none"):
            self.function(backend)([], [])

    # ----------------------------------------------------------------------------------------------- ids and offsets

    @every_backend
    @pytest.mark.parametrize("bags", [False, True])
    def test_an_id_of_no_row_is_told(self, backend, bags):
        call = self.calls()[1 - bags]
        for value in HOSTILE:
            tables, indices, offsets = call.tensors
            position = 1 if bags else 3
            indices = [indices[0], indices[1], indices[2].clone()]
            indices[2][position] = value
            with pytest.raises(IndexError, match=rf"id {value}, at position {position} of indices\[2\], is out"):
                self.run(self.function(backend), tables, indices, offsets)

    def run(self, function, *arguments):
        """The call, and what its kernels report, at once."""
        out = function(*arguments)
        kernels.check_ids(DEVICE, wait=True)
        return out

    @every_backend
    @pytest.mark.parametrize("last", [False, True])
    def test_offsets_that_cannot_be_are_told(self, backend, last):
        indices, offsets = draw_bags(5, 1)
        tables, *_ = self.call().tensors
        # Behind the last id lies one of no row: whoever reads it tells of that first.
        indices = [nn.functional.pad(tensor, (0, 1), value=2**20).to(DEVICE)[:-1] for tensor in indices]
        count = len(indices[1])
        for position, value in ((0, 1), (3, -1), (2, count + 1), (4, 0), *(((5, count - 1),) if last else ())):
            spoiled = [tensor.clone().to(DEVICE) for tensor in offsets]
            if value == 0 and int(spoiled[1][3]) == 0:
                continue
            spoiled[1][position] = value
            spoiled = spoiled if last else [tensor[:-1] for tensor in spoiled]
            with pytest.raises(ValueError, match=r"offsets\[1\] must begin with 0, .*; offsets\[1\]\[\d\] is -?\d+"):
                self.run(self.function(backend), tables, indices, spoiled, "sum", last)

    @kernel_backend
    def test_the_rest_is_right_beside_a_bad_id(self, backend):
        """The kernel goes on: the bad id's row counts as zeros, in a gradient too."""
        (tables, indices, offsets), grad = self.call().tensors, self.grads(self.call())[0]
        bad = [indices[0].clone(), *indices[1:]]
        bad[0][0] = 37
        leaves = [table.clone().requires_grad_() for table in tables]
        out = OP.overload("cuda")(leaves, bad, offsets, "sum", False)
        grads = torch.autograd.grad(out, leaves, grad)
        with pytest.raises(IndexError, match="id 37, at position 0"):
            kernels.check_ids(DEVICE, wait=True)
        bag = int((offsets[0] <= 0).sum()) - 1
        row = tables[0][indices[0][0]]
        want = OP.eager(leaves, indices, offsets)
        without = want.detach().clone()
        without[bag, 0] -= row
        torch.testing.assert_close(out.detach(), without)
        of_good = torch.autograd.grad(want, leaves, grad)
        of_good[0][indices[0][0]] -= grad[bag, 0]
        torch.testing.assert_close(grads, of_good)

    # ------------------------------------------------------------------------------------------------------ the rest

    @kernel_backend
    def test_more_tables_than_a_launch_takes(self, backend):
        """150 tables: three launches, of the forward and of the gradient. Each table's last row is named."""
        tables = [torch.randn(3 + k % 5, 8, device=DEVICE) for k in range(150)]
        indices = [torch.randint(len(table), (6,), device=DEVICE) for table in tables]
        for table, ids in zip(tables, indices, strict=True):
            ids[0] = len(table) - 1
        offsets = [torch.tensor([0, 1, 1, 4], device=DEVICE)] * 150
        for inputs in ((indices, None), (indices, offsets)):
            leaves = [table.clone().requires_grad_(k != 70) for k, table in enumerate(tables)]
            out, want = self.function(backend)(leaves, *inputs), OP.eager(leaves, *inputs)
            assert torch.equal(out, want) if inputs[1] is None else torch.allclose(out, want)
            grad, wanted = torch.randn_like(out), [leaf for leaf in leaves if leaf.requires_grad]
            grads, exact = (torch.autograd.grad(output, wanted, grad) for output in (out, want))
            torch.testing.assert_close(grads, exact)

    @kernel_backend
    def test_a_table_of_no_rows_and_ids_of_no_memory_order(self, backend):
        tables = [torch.randn(4, 8, device=DEVICE), torch.randn(0, 8, device=DEVICE)]
        indices = [torch.tensor([3, 1], device=DEVICE), torch.empty(0, dtype=torch.long, device=DEVICE)]
        offsets = [torch.tensor([0, 1], device=DEVICE), torch.tensor([0, 0], device=DEVICE)]
        leaves = [table.requires_grad_() for table in tables]
        out = self.function(backend)(leaves, indices, offsets)
        assert torch.equal(out, OP.eager(leaves, indices, offsets))
        assert torch.equal(out[:, 1], torch.zeros(2, 8, device=DEVICE))
        grads = torch.autograd.grad(out.sum(), leaves)
        assert [tuple(grad.shape) for grad in grads] == [(4, 8), (0, 8)]
        reversed_ = [table.flip(0).detach() for table in (tables[0], tables[0] * 2, tables[0] - 1)]
        columns = torch.tensor([[1, 2, 3], [0, 1, 3]], device=DEVICE)
        assert torch.equal(self.function(backend)(reversed_, list(columns.unbind(1))),
                           OP.eager(reversed_, list(columns.unbind(1))))

    @kernel_backend
    @pytest.mark.parametrize("mode", ["sum", "mean"])
    def test_it_is_nn_embedding_bag_a_table(self, backend, mode):
        (tables, indices, offsets) = self.call(Case((40, 12))).tensors
        bags = [nn.EmbeddingBag(len(table), 12, mode=mode, _weight=table.clone()) for table in tables]
        want = torch.stack([bag(*inputs) for bag, *inputs in zip(bags, indices, offsets, strict=True)], 1)
        out = self.function(backend)([bag.weight for bag in bags], indices, offsets, mode)
        torch.testing.assert_close(out, want)
        grad = torch.randn_like(out)
        weights = [bag.weight for bag in bags]
        one, other = (torch.autograd.grad(output, weights, grad) for output in (out, want))
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)  # sums of some hundred terms in another order

    @kernel_backend
    def test_several_chunks_of_one_row(self, backend):
        """Hundreds of ids name one row, so that its sum goes through several chunks."""
        indices, offsets = draw_bags(400, 3)
        tables = [torch.randn(height, 5, device=DEVICE) for height in HEIGHTS]
        call = self.call()
        lists = tuple([tensor.to(DEVICE) for tensor in one] for one in (indices, offsets))
        for mode in ("sum", "mean"):
            chunked = type(call)("chunks", (tables, *lists), (mode, True))
            check_gradients(self.op, self.function(backend), chunked, self.needed(chunked), self.grads(chunked))

    def test_auto_is_cuda_where_it_can_run(self, monkeypatch):
        for reason, chosen in (("", "cuda"), ("no nvcc", "eager")):
            monkeypatch.setattr(runtime, "why_not", lambda *_, reason=reason: reason)
            choice.cuda_runs.cache_clear()
            assert OP.auto([]) == chosen
        choice.cuda_runs.cache_clear()

    @GPU
    def test_a_captured_gradient_waits_for_a_call_before(self):
        call = self.call()
        leaves, run = self.with_gradients(call)
        function, (grad,) = self.function("cuda"), self.grads(call)
        wanted = leaves[: len(HEIGHTS)]
        want = torch.autograd.grad(run(function, *leaves), wanted, grad)
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            grads = torch.autograd.grad(run(function, *leaves), wanted, grad)
        graph.replay()
        assert all(map(torch.equal, grads, want))

    @every_backend
    @pytest.mark.parametrize("tables", [{"a": torch.ones(2, 2)}, "abc", iter([torch.ones(2, 2)])])
    def test_what_is_no_sequence_is_called_so(self, backend, tables):
        with pytest.raises(TypeError, match="tables must be a list of tensors; got"):
            self.function(backend)(tables, [torch.zeros(1, dtype=torch.int64)])

    @kernel_backend
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"grad_out": torch.ones(1, 2, 4)}, r"grad_out must have shape \[2, 2, 4\]"),
            ({"grad_out": torch.ones(2, 1, 4)}, "grad_out must have shape"),
            ({"grad_out": torch.ones(2, 2, 5)}, "grad_out must have shape"),
            ({"shapes": [2, 5, 3, 2, 7, 3]}, r"grad_out must have shape \[2, 2, 3\]"),
            ({"shapes": [2, 5, 4, 2, 7, 8]}, "tables_shape must be 2, R and one D"),
            ({"shapes": [2, 5, 4]}, "tables_shape must be|needs must have"),
            ({"shapes": [1, 5, 2, 7, 4]}, "tables_shape must be|needs must have"),
            ({"mode": "max"}, "mode must be"),
            ({"last": True}, r"grad_out must have shape \[1, 2, 4\]"),
        ],
    )
    def test_a_backward_of_what_does_not_belong_together_is_refused(self, backend, change, message):
        """The overload itself: the public function cannot be called so."""
        ids = [torch.tensor([0, 1, 2], device=DEVICE) for _ in range(2)]
        ends = [torch.tensor([0, 1], device=DEVICE) for _ in range(2)]
        kwargs = {"grad_out": torch.ones(2, 2, 4), "shapes": [2, 5, 4, 2, 7, 4], "mode": "sum", "last": False} | change
        overload = getattr(torch.ops.fused_kernels.embedding_bags_apart_backward, backend)
        with pytest.raises((ValueError, RuntimeError), match=message):
            overload(
                kwargs["grad_out"].to(DEVICE), ids, ends, kwargs["shapes"], kwargs["mode"], kwargs["last"], [True, True]
            )

    @kernel_backend
    def test_ids_of_two_dtypes_with_offsets_of_another(self, backend):
        tables, indices, offsets = self.call().tensors
        function = functools.partial(self.function(backend), tables)
        want = function(indices, offsets)
        assert torch.equal(function([tensor.int() for tensor in indices], offsets), want)
        assert torch.equal(function(indices, [tensor.int() for tensor in offsets]), want)

    @kernel_backend
    def test_long_bags_go_by_turns(self, backend):
        """So many bags that a group of lanes takes several of them."""
        check(self.op, self.function(backend), cases=[Case((3000, 132), every_option=False)], spec=SPEC)
