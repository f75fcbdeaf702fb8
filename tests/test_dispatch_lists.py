"""kernels/dispatch: arguments that are lists of tensors, Tensor[] and Ragged[], and a gradient that is one.

CUDA through the host build of the kernels, without a GPU.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from toy_ops import SUMS

from kernels import runtime
from kernels.dispatch import build, plan
from kernels.dispatch.core import load_core, on_host
from kernels.dispatch.op import KeptShapes, Op, like
from kernels.dispatch.varying import Varying

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is missing")
FACTOR = 0.5


@pytest.fixture(autouse=True)
def _dynamo_forgets():
    yield
    torch._dynamo.reset()


@pytest.fixture
def core():
    load_core()
    source = Path(__file__).resolve().parent / "toy_ops" / "sums" / "cuda.cu"
    library = build.load_library(
        SUMS.name, source, cache=build.EXTENSIONS, include=(runtime.KERNELS,), flags=("-std=c++20", "-O1"), as_cpp=True
    )
    SUMS.loader.declare("cuda", "cpu", str(library))


def call(*arguments, backend="cuda"):
    with on_host():
        return SUMS.call(backend, *arguments)


def lists(counts=(5, 1, 0), width=3, dtype=torch.float32):
    tables = [torch.randn(rows, width, dtype=dtype) for rows in (4, 7, 2)]
    ids = [torch.randint(len(table), (count,)) for table, count in zip(tables, counts, strict=True)]
    return tables, ids


@needs_compiler
def test_values_and_gradients(core):
    tables, ids = lists(dtype=torch.float64)
    torch.testing.assert_close(call(tables, ids, FACTOR), SUMS.eager(tables, ids, FACTOR))
    leaves = [table.requires_grad_() for table in tables]
    assert torch.autograd.gradcheck(lambda *tables: call(list(tables), ids, FACTOR), leaves)
    # Those of a frozen table are not computed, and the tables may be written to in between.
    leaves[1].requires_grad_(False)
    out = call(leaves, ids, FACTOR)
    with torch.no_grad():
        leaves[0].zero_()
    out.sum().backward()
    assert leaves[1].grad is None
    for table, of_table in ((leaves[0], ids[0]), (leaves[2], ids[2])):
        want = FACTOR * torch.bincount(of_table, minlength=len(table))[:, None].expand(-1, 3).double()
        torch.testing.assert_close(table.grad, want)
    storages = {leaves[k].grad.untyped_storage().data_ptr() for k in (0, 2)}
    assert len(storages) == 2


@needs_compiler
def test_what_lies_apart_in_memory(core):
    """Columns of a matrix are read where they are; tables that are not contiguous are copied."""
    tables, _ = lists()
    ids = list(torch.tensor([[3, 6, 1], [0, 2, 0]]).unbind(1))
    assert not ids[0].is_contiguous()
    torch.testing.assert_close(call(tables, ids, FACTOR), SUMS.eager(tables, ids, FACTOR))
    strided = [torch.randn(3, rows).t() for rows in (4, 7, 2)]
    torch.testing.assert_close(call(strided, ids, FACTOR), SUMS.eager(strided, ids, FACTOR))
    expanded = [torch.tensor(1).expand(6)] * 3
    torch.testing.assert_close(call(strided, expanded, FACTOR), SUMS.eager(strided, expanded, FACTOR))


@needs_compiler
def test_opcheck(core):
    tables, ids = lists()
    factor = torch.tensor(FACTOR)
    with on_host():
        for requires in (False, True):
            leaves = [table.clone().requires_grad_(requires) for table in tables]
            torch.library.opcheck(SUMS.overload("cuda"), (leaves, ids, factor))
        grad = torch.randn(3, 3)
        grads = SUMS.backward_arguments((tables, ids, factor), (grad,), (grad,), [True, False, True])
        assert SUMS.forms["backward"].names == ["grad_out", "ids", "tables_shape", "factor", "needs"]
        torch.library.opcheck(SUMS.overload("cuda", "backward"), grads)
        gradients = SUMS.overload("cuda", "backward")(*grads)
        assert [tuple(grad.shape) for grad in gradients] == [(4, 3), (0,), (2, 3)]


@needs_compiler
def test_without_the_core_autograd_is_pythons(monkeypatch):
    """A FakeTensor goes through the overload's autograd in Python wherever the core is not declared: on meta, here."""
    tables, ids = ([tensor.to("meta") for tensor in tensors] for tensors in lists())
    leaves = [tables[0].requires_grad_(), tables[1], tables[2].requires_grad_()]
    out = SUMS.overload("cuda")(leaves, ids, torch.tensor(FACTOR))
    assert out.shape == (3, 3)
    out.sum().backward()
    assert [leaf.grad is None for leaf in leaves] == [False, True, False]
    assert leaves[2].grad.shape == (2, 3)
    (grad,) = torch.autograd.grad(SUMS.call("auto", leaves, ids, FACTOR).sum(), leaves[0], create_graph=True)
    assert grad.shape == (4, 3)


@needs_compiler
def test_plans_hang_neither_on_lengths_nor_on_pointers(core, monkeypatch):
    asked, check = [], SUMS.forms[""]._check
    monkeypatch.setattr(SUMS.forms[""], "_check", lambda *arguments: (asked.append(1), check(*arguments)))
    overload, factor = SUMS.overload("cuda"), torch.tensor(FACTOR)
    for counts in ((6, 2, 9), (17, 8, 4), (3, 1, 5), (1, 2, 9), (6, 6, 9), (0, 1, 2), (4, 7, 7)):
        for _ in range(2):
            tables, ids = lists(counts, width=11)
            torch.testing.assert_close(overload(tables, ids, factor), SUMS.eager(tables, ids, FACTOR))
    assert len(asked) == 1
    for length in (5, 12):  # whether all are of one length a check may ask; of which one is no new plan
        tables, ids = lists((length,) * 3, width=11)
        overload(tables, ids, factor)
    overload(*lists((0, 0, 0), width=11), factor)  # as for any op, no id at all is a case of its own
    overload([torch.randn(9, 11), *tables[1:]], ids, factor)
    overload(tables[:2], ids[:2], factor)
    overload(tables, ids, factor)
    assert len(asked) == 5


def test_a_plan_cannot_ask_for_a_length_that_it_does_not_hang_on():
    form, factor = SUMS.forms[""], torch.tensor(FACTOR)
    for counts, known in (((5, 1, 0), False), ((5, 5, 5), True)):
        arguments = (*lists(counts), factor)
        length = plan.length_of(form, arguments)
        assert (length is not None) == known
        of_first = plan.varied(form, arguments, length)[1][0]
        if known:
            assert isinstance(of_first.numel(), Varying)
            continue
        for asked in (of_first.numel, lambda of=of_first: of.size(0), lambda of=of_first: len(of)):
            with pytest.raises(TypeError, match="a plan must not hang on how long a list's tensors are"):
                asked()


@needs_compiler
def test_torch_compile_and_export(core):
    from torch._dynamo.testing import CompileCounterWithBackend

    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(
        lambda tables, ids: SUMS.call("cuda", tables, ids, FACTOR) * 2, fullgraph=True, backend=counter, dynamic=True
    )
    with on_host():
        for counts in ((50, 41, 33), (90, 61, 29), (22, 31, 45)):
            tables, ids = lists(counts)
            leaves = [table.clone().requires_grad_() for table in tables]
            out = compiled(leaves, ids)
            torch.testing.assert_close(out, 2 * SUMS.eager(tables, ids, FACTOR))
            grads = torch.autograd.grad(out.sum(), leaves)
            want = torch.autograd.grad(2 * SUMS.eager(leaves, ids, FACTOR).sum(), leaves)
            torch.testing.assert_close(grads, want)
        assert counter.frame_count == 1

        class Model(torch.nn.Module):
            def forward(self, tables, ids):
                return SUMS.call("cuda", tables, ids, FACTOR)

        counts = [torch.export.Dim(f"n{k}", min=2, max=2**20) for k in range(3)]
        shapes = ([{}] * 3, [{0: count} for count in counts])
        program = torch.export.export(Model(), lists((5, 4, 3)), dynamic_shapes=shapes)
        assert "fused_kernels.toy_sums.cuda" in str(program.graph)
        tables, ids = lists((3, 8, 2))
        torch.testing.assert_close(program.module()(tables, ids), SUMS.eager(tables, ids, FACTOR))


@needs_compiler
def test_autocast_casts_what_is_in_a_list(core):
    tables, ids = lists()
    mixed = [tables[0].bfloat16(), *tables[1:]]
    for backend in ("cuda", "eager"):
        with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(TypeError, match="got bfloat16"):
            call(mixed, ids, FACTOR, backend=backend)  # all became bfloat16, which the op does not take
    wide = [table.double() for table in tables]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(call(wide, ids, FACTOR), SUMS.eager(wide, ids, FACTOR))


@needs_compiler
def test_what_is_refused(core):
    tables, ids = lists()
    for backend in ("cuda", "eager"):
        with pytest.raises(TypeError, match="toy_sums: tables must be a list of tensors; got Tensor"):
            call(torch.randn(3, 4, 3), ids, FACTOR, backend=backend)
        with pytest.raises(TypeError, match=r"toy_sums: tables\[1\] must be a tensor; got int"):
            call([tables[0], 2, tables[2]], ids, FACTOR, backend=backend)
        with pytest.raises(ValueError, match="toy_sums: tables must have one tensor at least; got none"):
            call([], [], FACTOR, backend=backend)
        with pytest.raises(ValueError, match=r"toy_sums: ids\[2\] must be on tables\[0\]'s device, cpu; got meta"):
            call(tables, [*ids[:2], ids[2].to("meta")], FACTOR, backend=backend)
        with pytest.raises(TypeError, match=r"toy_sums: tables\[2\] must be a dense tensor; got one of"):
            call([*tables[:2], tables[2].to_sparse()], ids, FACTOR, backend=backend)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(tables[1], torch.ones_like(tables[1]))
        with pytest.raises(RuntimeError, match="toy_sums has no forward-mode derivative"):
            call([tables[0], dual, tables[2]], ids, FACTOR)
    leaf = tables[0].clone().requires_grad_()
    (grad,) = torch.autograd.grad(call([leaf, *tables[1:]], ids, FACTOR).sum(), leaf, create_graph=True)
    assert not grad.requires_grad  # of a sum it is a constant
    out = call([leaf, *tables[1:]], ids, FACTOR)
    (grad,) = torch.autograd.grad(out.square().sum(), leaf, create_graph=True)
    with pytest.raises(RuntimeError, match="toy_sums has no second derivative"):
        grad.sum().backward()
    bad = SUMS.backward_arguments((tables, ids, torch.tensor(1.0)), (out,), (torch.randn(3, 3),), [True])
    with pytest.raises(ValueError, match="toy_sums_backward: needs must have 3 values, for tables"), on_host():
        SUMS.overload("cuda", "backward")(*bad)


@needs_compiler
def test_ids_that_changed_since_the_forward_are_refused(core):
    tables, ids = lists((2, 2, 2))
    out = call([table.requires_grad_() for table in tables], ids, FACTOR)
    ids[1].zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


ADD = """
#include "dispatch/op.cuh"
cudaError_t forward(fused::Tensors parts, fused::Tensor x, fused::Tensor out, fused::Stream) {
    for (long long i = 0; i < x.elements; ++i) {
        float total = x.as<float>()[i];
        for (int k = 0; k < parts.count; ++k) total += parts[k].as<float>()[i];
        out.as<float>()[i] = total;
    }
    return cudaSuccess;
}
FUSED_OP(forward)
"""


@needs_compiler
def test_what_is_written_behind_a_list_and_what_overlaps_one_in_it(core, tmp_path):
    source = tmp_path / "cuda.cu"
    source.write_text(ADD)
    library = build.load_library(
        "toy_add", source, cache=tmp_path, include=(runtime.KERNELS,), flags=("-std=c++20", "-O0"), as_cpp=True
    )
    op = Op(
        "toy_add", "(Tensor[] parts, Tensor x) -> Tensor out",
        eager=lambda parts, x: x + sum(parts), eager_in_place=lambda parts, x: x.add_(sum(parts)),
        outputs={"out": like("x")}, in_place="x", backends=("cuda",),
    )  # fmt: skip
    op.loader.declare("cuda", "cpu", str(library))
    parts, x = [torch.randn(4, 3), torch.randn(3, 4).t()], torch.randn(4, 3)
    want = op.eager(parts, x)
    with on_host():
        torch.testing.assert_close(op.call("cuda", parts, x), want)
        version = x._version
        op.call_in_place("cuda", parts, x)
        torch.testing.assert_close(x, want)
        assert x._version > version
        for backend in ("cuda", "eager"):  # a part as it was before the call
            memory = torch.randn(15)
            x, part = memory[3:].view(4, 3), memory[:12].view(4, 3)
            want = x + parts[0] + part
            op.call_in_place(backend, [parts[0], part], x)
            torch.testing.assert_close(x, want)


def test_no_kernel_in_triton_takes_a_list():
    with pytest.raises(ValueError, match="op 'toy_listed' takes lists of tensors"):
        Op("toy_listed", "(Tensor[] x) -> Tensor out", eager=None, check=None,
           gradients={"x": KeptShapes("x", dtype_of="grad_out")})
