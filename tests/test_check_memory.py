"""Guard zones, poison, and the interpreter's checked loads and stores."""

from __future__ import annotations

import pytest
import torch

from kernels import runtime
from kernels.check import OutOfBounds, guarded, poisoned, watched
from kernels.check.memory import Guard
from kernels.dispatch import allocation

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")

DEVICE = runtime.device()
DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.uint8]
interpreted = pytest.mark.skipif(runtime.triton_mode() != "interpreted", reason="Triton is not interpreted here")


# ------------------------------------------------------------------------------------------------------------------
# Guard zones.


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (5,), (3, 7), (0, 4)], ids=str)
def test_allocations_are_poison_between_zones(dtype, shape):
    with guarded() as guard:
        made = [allocation.empty(shape, dtype, DEVICE), torch.empty(shape, dtype=dtype, device=DEVICE)]
    for tensor in made:
        assert (tensor.shape, tensor.dtype, tensor.device.type) == (shape, dtype, DEVICE.type)
        assert tensor.is_contiguous()
        assert tensor.data_ptr() % 16 == 0
        if dtype.is_floating_point:
            assert tensor.isnan().all()
        if dtype.itemsize > 1:
            assert guard.unwritten(tensor).all()
    guard.verify()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("index", "message"),
    [
        (15, "3 elements were written after its last, the first 1 beyond it"),
        (18, "3 elements were written after its last, the first 4 beyond it"),
        (-3, "3 elements were written before its first, the nearest 1 ahead of it"),
    ],
)
def test_a_write_beside_is_named(dtype, index, message):
    with guarded() as guard:
        tensor = guard.named(torch.empty(3, 5, dtype=dtype, device=DEVICE), "out")
    memory = torch.tensor([], dtype=dtype, device=DEVICE).set_(tensor.untyped_storage())
    memory[tensor.storage_offset() + index :][:3] = 1
    with pytest.raises(AssertionError, match=f"^the memory beside out was changed: {message}$"):
        guard.verify()


def test_a_copy_has_the_layout_and_nan_around_it():
    tensor = torch.randn(6, 8, device=DEVICE)[1:5, ::2]
    copy = (guard := Guard()).like(tensor, written=True)
    assert torch.equal(copy, tensor)
    assert (copy.stride(), copy.data_ptr() % 16) == (tensor.stride(), tensor.data_ptr() % 16)
    beyond = copy.as_strided((1,), (1,), copy.storage_offset() - 8 + 6 * 8)
    assert beyond.isnan().all()
    copy.zero_()
    assert not torch.equal(copy, tensor)
    guard.verify()


def test_zeros_are_zeros_and_gradients_flow():
    with guarded() as guard:
        zeros = torch.zeros(3, 4, device=DEVICE, requires_grad=True)
        assert torch.equal(zeros + 1, torch.ones(3, 4, device=DEVICE))
        (zeros * 2).sum().backward()
    assert torch.equal(zeros.grad, torch.full((3, 4), 2.0, device=DEVICE))
    assert len(guard.regions) == 2


def test_poison_is_nan_and_ends():
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    with poisoned():
        assert torch.empty(100, device=DEVICE).isnan().all()
    after = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    assert after == before


# ------------------------------------------------------------------------------------------------------------------
# The interpreter.


@triton.jit
def read(x_ptr, offsets, mask):
    return tl.load(x_ptr + offsets, mask)


@triton.jit
def copy_kernel(x_ptr, out_ptr, first, elements, readable, BLOCK: tl.constexpr):
    lanes = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = read(x_ptr, first + lanes, lanes < readable)
    tl.store(out_ptr + first + lanes, x, lanes < elements)


@triton.jit
def add_kernel(out_ptr, offset):
    tl.atomic_add(out_ptr + offset, 1.0)


@triton.jit
def row_kernel(x_ptr, out_ptr, row, rows, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    tl.store(out_ptr + lanes, tl.load(x_ptr + row * BLOCK + lanes, (row >= 0) & (row < rows), other=0.0))


@triton.jit
def lane_kernel(ids_ptr, out_ptr, count):
    lane = tl.arange(0, 1)
    given, undefined = tl.load(ids_ptr + lane, lane < count, other=0), tl.load(ids_ptr + lane, lane < count)
    tl.store(out_ptr + lane, given)
    tl.store(out_ptr + 1 + lane, undefined)


def run(first=0, elements=12, readable=12, size=12):
    x, out = torch.randn(size), torch.full((size,), -1.0)
    copy_kernel[(triton.cdiv(max(elements, readable), 16),)](x, out, first, elements, readable, BLOCK=16)
    return x, out


@interpreted
def test_a_lane_that_is_masked_may_point_anywhere():
    with watched() as watch:
        x, out = run()
        assert torch.equal(x, out)
        run(first=1 << 40, elements=0, readable=0)
    assert watch.programs == 1


@interpreted
def test_one_mask_for_all_lanes():
    x, out = torch.randn(3, 8), torch.empty(8)
    with watched():
        for row in (-2, 0, 2, 3):
            row_kernel[(1,)](x, out, row, 3, BLOCK=8)
            assert torch.equal(out, x[row] if 0 <= row < 3 else torch.zeros(8))
        with pytest.raises(Exception, match="a load from x_ptr is out of bounds in 8 lanes: the first is at offset 24"):
            row_kernel[(1,)](x, out, 3, 4, BLOCK=8)


@interpreted
def test_what_one_masked_lane_is_given_is_defined():
    out = torch.full((2,), 5)
    with watched(backwards=True):
        lane_kernel[(1,)](torch.tensor([7]), out, 0)
    assert out[0] == 0
    assert abs(int(out[1])) > 2**20, "nothing was given, and 0 would hide it"


@interpreted
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"readable": 13}, "a load from x_ptr is out of bounds in 1 lane: the first is at offset 12, 1 beyond its"),
        ({"elements": 16}, "a store to out_ptr is out of bounds in 4 lanes: the first is at offset 12, 1 beyond its"),
        ({"first": -2}, "a load from x_ptr is out of bounds in 2 lanes: the first is at offset -2, 2 before its"),
        ({"first": 12, "elements": 0, "readable": 1}, r"a load from x_ptr .*, 1 beyond its last \(it spans 12\)"),
    ],
)
def test_an_access_outside_is_named_and_does_not_happen(arguments, message):
    with watched() as watch, pytest.raises(Exception, match="out of bounds"):
        run(**arguments)
    assert isinstance(watch.error, OutOfBounds)
    line = "read, line [0-9]+: return tl.load" if "load" in message else "copy_kernel, line [0-9]+: tl.store"
    with pytest.raises(OutOfBounds, match=f"^{message}.*; {line}"):
        raise watch.error


@interpreted
def test_an_atomic_outside_is_named():
    out = torch.zeros(3)
    with watched() as watch:
        add_kernel[(1,)](out, 2)
        with pytest.raises(Exception, match="out of bounds"):
            add_kernel[(1,)](out, 3)
    assert "a atomic" not in str(watch.error)
    assert str(watch.error).startswith("an atomic to out_ptr is out of bounds in 1 lane: the first is at offset 3")
    assert out.tolist() == [0, 0, 1]


@interpreted
def test_memory_between_two_tensors_belongs_to_neither():
    """What lies between two arguments of one storage is live memory, but not theirs."""
    memory = torch.zeros(100)
    with watched(), pytest.raises(Exception, match=r"x_ptr is out of bounds in 2 lanes: the first is at offset 10"):
        copy_kernel[(1,)](memory[:10], memory[50:], 0, 12, 12, BLOCK=16)


@interpreted
def test_programs_run_backwards():
    order = []

    def kernel(backwards):
        out = torch.zeros(4)
        with watched(backwards=backwards):
            last_wins[(4,)](out)
        return out[0].item()

    order = [kernel(False), kernel(True)]
    assert order == [3.0, 0.0]


@triton.jit
def last_wins(out_ptr):
    tl.store(out_ptr, tl.program_id(0).to(tl.float32))


@interpreted
def test_the_interpreter_is_as_it_was():
    from triton.runtime import interpreter

    before = vars(interpreter.InterpreterBuilder).copy(), vars(interpreter.GridExecutor).copy()
    with watched(), watched():
        assert vars(interpreter.InterpreterBuilder) != before[0]
    assert (vars(interpreter.InterpreterBuilder), vars(interpreter.GridExecutor)) == before


@triton.jit
def squares(x, out, N, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    value = tl.load(x + i, i < N).to(tl.float32)
    tl.store(out, tl.sum(value * value).to(out.dtype.element_ty))


@interpreted
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_a_lane_that_a_load_leaves_out_is_no_number(dtype):
    x, out = torch.ones(3, dtype=dtype), torch.zeros(1, dtype=torch.float64)
    with watched():
        squares[(1,)](x, out, 3, BLOCK=4)
        assert out.isnan().all()
        squares[(1,)](x[:2], out, 2, BLOCK=2)  # none is left out
        assert out.item() == 2
