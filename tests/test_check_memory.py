"""Guard zones, poison, and the interpreter's checked loads and stores."""

from __future__ import annotations

import pytest
import torch

from kernels import runtime
from kernels.check import Case, OutOfBounds, check, guarded, poisoned, watched
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
        tensors = [allocation.empty(shape, dtype, DEVICE), torch.empty(shape, dtype=dtype, device=DEVICE)]
    for tensor in tensors:
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


# ------------------------------------------------------------------------------------------------------------------
# Descriptors and block pointers.


@triton.jit
def described(x, out, rows, columns, first, ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDE: tl.constexpr):
    """out = x by descriptors of (rows, columns); x and out are WIDE columns wide."""
    read = tl.make_tensor_descriptor(x, [rows, columns], [WIDE, 1], [ROWS, COLUMNS])
    written = tl.make_tensor_descriptor(out, [rows, columns], [WIDE, 1], [ROWS, COLUMNS])
    row = first + tl.program_id(0) * ROWS
    written.store([row, 0], read.load([row, 0]))


@triton.jit
def given_described(read, written, ROWS: tl.constexpr):
    row = tl.program_id(0) * ROWS
    written.store([row, 0], read.load([row, 0]))


@triton.jit
def by_block_pointers(
    x, out, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr, READ: tl.constexpr, WRITTEN: tl.constexpr
):
    size, strides, block = (rows, columns), (columns, 1), (ROWS, COLUMNS)
    read = tl.make_block_ptr(x, size, strides, (0, 0), block, (1, 0))
    written = tl.make_block_ptr(out, size, strides, (0, 0), block, (1, 0))
    for _ in range(0, tl.cdiv(rows, ROWS)):
        tl.store(written, tl.load(read, boundary_check=READ, padding_option="zero"), boundary_check=WRITTEN)
        read, written = tl.advance(read, (ROWS, 0)), tl.advance(written, (ROWS, 0))


@triton.jit
def gathered(x, out, ids, rows, WIDE: tl.constexpr):
    read = tl.make_tensor_descriptor(x, [rows, WIDE], [WIDE, 1], [1, WIDE])
    written = tl.make_tensor_descriptor(out, [rows, WIDE], [WIDE, 1], [1, WIDE])
    id = tl.load(ids + tl.arange(0, 8))
    written.scatter(read.gather(id, 0), id, 0)


@triton.jit
def summed(x, out, N: tl.constexpr):
    """The sum of a descriptor's block that reaches beyond it, where it gives NaN."""
    read = tl.make_tensor_descriptor(x, [4], [1], [N], padding_option="nan")
    tl.store(out, tl.sum(read.load([0])))


def descriptor(tensor, shape, block):
    from triton.tools.tensor_descriptor import TensorDescriptor

    return TensorDescriptor(tensor, list(shape), [tensor.shape[1], 1], list(block))


def run_described(rows=6, columns=8, first=0, block=(4, 8), programs=2):
    x, out = torch.randn(6, 8), torch.full((6, 8), -1.0)
    described[(programs,)](x, out, rows, columns, first, *block, WIDE=8)
    return x, out


def run_given(read=(6, 8), written=(6, 8)):
    x, out = torch.randn(6, 8), torch.full((6, 8), -1.0)
    given_described[(2,)](descriptor(x, read, (4, 8)), descriptor(out, written, (4, 8)), ROWS=4)
    return x, out


def run_blocks(rows=6, columns=8, block=(4, 8), read=(0, 1), written=(0, 1)):
    x, out = torch.randn(6, 8), torch.full((6, 8), -1.0)
    by_block_pointers[(1,)](x, out, rows, columns, *block, READ=read, WRITTEN=written)
    return x, out


def run_gathered(rows=6, last=7):
    x, out = torch.randn(6, 8), torch.full((6, 8), -1.0)
    gathered[(1,)](x, out, torch.tensor([5, 3, 1, 0, 2, 4, 6, last], dtype=torch.int32), rows, WIDE=8)
    return x, out


@interpreted
@pytest.mark.filterwarnings("ignore:tl.make_block_ptr is deprecated")
@pytest.mark.parametrize(
    "run", [run_described, lambda: run_described(block=(4, 16)), lambda: run_described(first=-2, programs=3), run_given,
            run_blocks, lambda: run_blocks(block=(2, 8), read=(), written=()), lambda: run_blocks(block=(4, 16)),
            lambda: run_blocks(read=(0,), written=(0,)), run_gathered, lambda: run_gathered(last=-1)]
)
def test_descriptors_and_block_pointers_end_at_their_shape(run):
    for backwards in (False, True):
        with watched(backwards=backwards):
            x, out = run()
        assert torch.equal(x, out)


X, OUT, OFFSET = "a load from x is out of bounds", "a store to out is out of bounds", "the first is at offset"


@interpreted
@pytest.mark.filterwarnings("ignore:tl.make_block_ptr is deprecated")
@pytest.mark.parametrize(
    ("run", "message"),
    [
        (lambda: run_described(rows=7), rf"{X} in 8 lanes: {OFFSET} 48, 1 beyond its last \(it spans 48\); descri"),
        (lambda: run_described(columns=9, block=(2, 16), programs=3), f"{X} in 1 lane: {OFFSET} 48, 1 beyond its last"),
        (lambda: run_described(rows=1 << 30, first=1 << 29), f"{X} in 32 lanes: {OFFSET} {1 << 32}, "),
        (lambda: run_given(read=(7, 8)), f"a load from read is out of bounds in 8 lanes: {OFFSET} 48"),
        (lambda: run_given(written=(7, 8)), f"a store to written is out of bounds in 8 lanes: {OFFSET} 48"),
        (lambda: run_blocks(read=()), f"{X} in 16 lanes: {OFFSET} 48, .*; by_block_pointers, line .*: tl.store"),
        (lambda: run_blocks(written=()), f"{OUT} in 16 lanes: {OFFSET} 48"),
        (lambda: run_blocks(read=(1,)), f"{X} in 16 lanes: {OFFSET} 48"),
        (lambda: run_blocks(block=(2, 16), read=(0,)), f"{X} in 8 lanes: {OFFSET} 48"),
        (lambda: run_blocks(rows=7), f"{X} in 8 lanes: {OFFSET} 48"),
        (lambda: run_gathered(rows=7), f"{X} in 8 lanes: {OFFSET} 48, .*; gathered, line"),
    ],
)
def test_what_they_access_outside_is_named(run, message):
    with watched() as watch, pytest.raises(Exception, match="out of bounds"):
        run()
    with pytest.raises(OutOfBounds, match=f"^{message}"):
        raise watch.error


@interpreted
def test_a_descriptor_may_not_reach_into_another_tensor():
    """An address of a pointer's does not say whose it was to be; a descriptor's does."""
    memory = torch.zeros(100, 8)
    x, out = memory[:6], memory[50:56]
    with watched() as watch, pytest.raises(Exception, match="out of bounds"):
        described[(1,)](x, out, 99, 8, 52, ROWS=4, COLUMNS=8, WIDE=8)
    assert f"{X} in 32 lanes: {OFFSET} 416" in str(watch.error)
    with watched(guard := Guard()):
        a, b = (guard.like(tensor, written=True) for tensor in (x, out))
        apart = (b.data_ptr() - a.data_ptr()) // 32
        near, far = (a, b) if apart > 0 else (b, a)
        with pytest.raises(Exception, match="a load from x is out of bounds"):
            described[(1,)](near, far, 1 << 30, 8, abs(apart), ROWS=2, COLUMNS=8, WIDE=8)


@interpreted
def test_what_a_descriptor_pads_with():
    x, out = torch.ones(4), torch.zeros(1)
    with watched():
        summed[(1,)](x, out, N=4)
        assert out.item() == 4
        summed[(1,)](x, out, N=8)
        assert out.isnan().all()


@interpreted
def test_check_takes_descriptors_and_hints_at_them():
    def add_relu(x, bias, wider=0):
        out = torch.empty_like(x)
        biased[(3,)](descriptor(x, x.shape, (2, 8)), bias, out, x.shape[0] + wider, ROWS=2, COLUMNS=8)
        return out

    cases = [Case((5, 8))]
    check("add_relu", add_relu, cases=cases)
    with pytest.raises(AssertionError, match=f"{OUT} in 8 lanes: {OFFSET} 40, .*\nHint: descriptor: .*the shape"):
        check("add_relu", lambda x, bias: add_relu(x, bias, 1), cases=cases)
    with pytest.raises(AssertionError, match=r"strides must be 16-byte aligned\nHint: .*with float32 in fours"):
        check("add_relu", add_relu, cases=[Case((5, 7))])


@triton.jit
def biased(read, bias, out, rows, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    written = tl.make_tensor_descriptor(out, [rows, COLUMNS], [COLUMNS, 1], [ROWS, COLUMNS])
    row = tl.program_id(0) * ROWS
    z = read.load([row, 0]) + tl.load(bias + tl.arange(0, COLUMNS))
    written.store([row, 0], tl.where(z < 0, 0.0, z))


@triton.jit
def added_up(out, COLUMNS: tl.constexpr):
    tl.make_tensor_descriptor(out, [1, COLUMNS], [COLUMNS, 1], [1, COLUMNS]).atomic_add(
        [0, 0], tl.full((1, COLUMNS), 1.0, tl.float32)
    )


@interpreted
def test_an_atomic_through_a_descriptor_is_refused_by_name():
    def add_relu(x, bias):
        added_up[(1,)](out := torch.zeros_like(x), COLUMNS=4)
        return out

    with pytest.raises(AssertionError, match="Hint: Triton's interpreter has no atomics through a descriptor"):
        check("add_relu", add_relu, cases=[Case((1, 4))])
