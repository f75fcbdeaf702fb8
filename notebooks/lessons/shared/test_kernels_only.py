"""In a puzzle only kernels compute: what torch and the host may do beside them."""
# ruff: noqa: I001 kernels comes before Triton, whose interpreter it chooses where there is no GPU

from __future__ import annotations

from kernels import runtime
from kernels.check import Case, check
from kernels.check.interpreter import watched
from kernels.check.spec import spec_of
from lessons.shared.puzzle import InTriton
from lessons.shared.puzzle.kernels_only import Computes, kernels_only
from kernels.ops.add_relu.eager import add_relu

import pytest
import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

CASES = [Case((3, 7)), Case((4, 40), layout="strided")]


@triton.jit
def kernel(x_ptr, bias_ptr, out_ptr, elements, COLUMNS: tl.constexpr, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < elements
    z = tl.load(x_ptr + offsets, mask) + tl.load(bias_ptr + offsets % COLUMNS, mask)
    tl.store(out_ptr + offsets, tl.where(z < 0, 0.0, z), mask)


@triton.jit
def nothing(x_ptr):
    tl.load(x_ptr)


def right(x, bias):
    x, bias = x.contiguous(), bias.contiguous()
    out = torch.empty_like(x.view(-1)).view(x.shape)
    kernel[(triton.cdiv(x.numel(), 1024),)](x, bias, out, x.numel(), COLUMNS=len(bias), BLOCK=1024)
    return out


def eager_behind_a_launch(x, bias):
    nothing[(1,)](x)
    return add_relu(x, bias)


def half_in_torch(x, bias):
    return right(x + 0, bias)


def by_numpy(x, bias):
    return torch.from_numpy((x.numpy() + bias.numpy()).clip(0))


def by_lists(x, bias):
    return torch.tensor([[max(0, v + b) for v, b in zip(row, bias.tolist(), strict=True)] for row in x.tolist()])


def by_a_mask(x, bias):
    out = right(x, bias)
    return out[out >= 0].view(x.shape)


def only(function):
    def alone(*arguments):
        with kernels_only():
            return function(*arguments)

    return alone


def no_launch(x, bias):
    return torch.empty_like(x)


def test_a_kernel_passes(capsys):
    check("add_relu", only(right), cases=CASES)
    assert "2 cases passed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("cheat", "message"),
    [
        (eager_behind_a_launch, "torch's add was called"),
        (half_in_torch, "torch's add was called"),
        (by_numpy, "Tensor.numpy reads values on the host"),
        (by_lists, "Tensor.tolist reads values on the host"),
        (by_a_mask, "torch's (ge|nonzero|index) was called"),
        (no_launch, "never written"),
    ],
)
def test_a_cheat_is_named(cheat, message):
    with pytest.raises(AssertionError, match=message):
        check("add_relu", only(cheat), cases=CASES)


@pytest.mark.parametrize("wait", [torch.Tensor.item, bool, int, float, lambda x: x.nonzero(), lambda x: x.sum().cpu()])
def test_a_wait_in_disguise_is_refused(wait):
    x = torch.ones(1)
    with kernels_only(), pytest.raises(Computes):
        wait(x)


def test_operators_may_be_allowed_by_name():
    x = torch.randn(4)
    with kernels_only(["sort"]):
        x.sort()
        with pytest.raises(Computes, match="torch's add was called"):
            x + 1


def test_an_ops_own_reference_is_no_answer():
    puzzle = InTriton(spec_of("add_relu"), None, __name__, operators=())
    with pytest.raises(AssertionError, match="was called: this is what you are to write"):
        puzzle.hold("add_relu", add_relu, runtime.device())


@triton.jit
def undefined_lanes(numbers_ptr, out_ptr, count, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.load(numbers_ptr + i, i < count))


@pytest.mark.skipif(runtime.triton_mode() != "interpreted", reason="compiled, it is 0")
def test_an_undefined_integer_is_0_or_large():
    numbers, out = torch.ones(2, 8, dtype=torch.int64)
    with watched():
        undefined_lanes[(1,)](numbers, out, 3, BLOCK=8)
    assert out.tolist() == [1, 1, 1, 0, 0, 0, 0, 0]
    with watched(backwards=True):
        undefined_lanes[(1,)](numbers, out, 3, BLOCK=8)
    assert out[3:].abs().min() > 2**40


def test_views_and_allocations_are_free():
    x = torch.randn(4, 6)
    with kernels_only():
        views = x.T, x[1:3, ::2], x.view(2, -1), x.reshape(24), x.unsqueeze(0).expand(3, 4, 6), x.narrow(0, 1, 2)
        TensorDescriptor.from_tensor(x[:, :4].contiguous(), [2, 4])
        tensors = (
            torch.empty(3), torch.empty_like(x), x.new_zeros(2), torch.zeros(5, dtype=torch.int64), x.T.contiguous(),
        )
    assert all(view.untyped_storage().data_ptr() == x.untyped_storage().data_ptr() for view in views)
    assert tensors[-1].is_contiguous()
