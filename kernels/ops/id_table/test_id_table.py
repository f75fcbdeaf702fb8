"""The id table's look-ups, as ops, beside eager, on every backend that this machine has."""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
import sys

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import kernels

from ... import dispatch, expand_table_ids, get_table_range, runtime, table_lookup
from ...check import Case, calls_of, cases_of, check
from ...check.contract.exported import result_in_a_fresh_process
from ...check.edges import edges_of
from ...runtime import KERNELS
from .conftest import device_of, every_backend, kernel_backend, table, tensor
from .op import OPS
from .spec import EXTREMES

LOOKUPS = ("table_lookup", "expand_table_ids", "get_table_range")


@kernel_backend
@pytest.mark.parametrize("name", LOOKUPS)
def test_equal_to_eager(name, backend):
    """With guard zones around the outputs and poison in them, on every shape and layout, twice."""
    function, device = functools.partial(getattr(kernels, name), backend=backend), device_of(backend)
    check(name, function, device=device, cases=cases_of(name, device, edges_of(name, function, backend, device)))


@kernel_backend
@pytest.mark.parametrize("name", LOOKUPS)
def test_opcheck(name, backend):
    for call in calls_of(name, Case((5, 24)), device_of(backend)):
        torch.library.opcheck(dispatch.find(name).overload(backend), call.arguments())


@kernel_backend
@pytest.mark.parametrize("name", ["table_claim_", "table_erase_"])
def test_opcheck_of_what_writes(name, backend):
    call = calls_of(name, Case((1, 1)), device_of(backend))[0]
    torch.library.opcheck(dispatch.find(name).overload(backend), call.arguments())


@kernel_backend
@pytest.mark.parametrize("dynamic", [False, True])
def test_compile_keeps_one_graph(backend, dynamic):
    t = table([range(100), EXTREMES], backend)
    offsets = tensor([0, 3, 4, 8, 9], backend)

    def step(keys, offsets):
        tables = expand_table_ids(offsets, None, 2, 2, len(keys), backend=backend)
        found, rows = t(keys, tables, backend=backend)
        return found, rows + 1, get_table_range(offsets, offsets.new_tensor([0, 1, 2]), backend=backend)

    compiled = torch.compile(step, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for count in (9, 12, 15):
        keys = torch.arange(-4, count - 4, device=offsets.device)
        for got, want in zip(compiled(keys, offsets), step(keys, offsets), strict=True):
            assert torch.equal(got, want)


@kernel_backend
def test_an_exported_program_loads_in_a_fresh_process(backend, tmp_path):
    t = table([range(100), EXTREMES], backend)

    class Module(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table = t

        def forward(self, keys, table_ids):
            return self.table(keys, table_ids, backend=backend)[1]

    arguments = tensor([5, 99, 100, -1, 0], backend), tensor([0, 0, 0, 1, 1], backend)
    program = torch.export.export(Module(), arguments)
    assert any(f"table_lookup.{backend}" in str(node.target) for node in program.graph.nodes)
    result = result_in_a_fresh_process(program, arguments, tmp_path)
    assert result.tolist() == [6, 100, 0, 2, 1]


@pytest.mark.parametrize("where", ["meta", "fake"])
@pytest.mark.parametrize("named", ["auto", "eager", "cuda", "cpp"])
@pytest.mark.parametrize("name", [op.name for op in OPS])
def test_shapes_without_values(name, named, where):
    """Nothing runs on "meta", so no backend is missing there; a fake tensor is of a device, whose backends are."""
    op, device = dispatch.find(name), device_of(named)
    if where == "fake" and runtime.why_not(named, device.type):
        pytest.skip(runtime.why_not(named, device.type))
    mode = FakeTensorMode() if where == "fake" else contextlib.nullcontext()
    for call in calls_of(name, Case((5, 24)), device):
        with mode:
            inputs = [mode.from_tensor(tensor) if where == "fake" else tensor.to("meta") for tensor in call.tensors]
            results = op.call(named, *inputs, *call.options)
        expected = op.eager(*call.arguments())
        for got, want in zip(*(r if isinstance(r, tuple) else (r,) for r in (results, expected)), strict=True):
            assert (got.shape, got.dtype, got.device) == (want.shape, want.dtype, inputs[0].device)


@every_backend
def test_wrong_input_is_named(backend):
    t = table([range(5)], backend)
    keys = tensor([1, 2], backend)
    lookup = t.storage()
    for arguments, error, message in (
        ((*lookup, keys.float(), keys), TypeError, "keys must be int32 or int64; got float32"),
        ((*lookup, keys, keys[:1]), ValueError, r"table_ids must have shape \[2\], for keys of shape \[2\]; got \[1\]"),
        ((*lookup, keys, keys.to("meta")), ValueError, "table_ids must be on tags's device, (cpu|cuda:0); got meta"),
        ((lookup[0].int(), *lookup[1:], keys, keys), TypeError, "tags must be uint8; got int32"),
        ((lookup[0][:-1], *lookup[1:], keys, keys), ValueError, r"tags must have shape \[16 · buckets\]; got"),
        ((*lookup[:2], lookup[2][:1], lookup[3], keys, keys), ValueError, r"seeds must have shape \[0\], for bucket"),
    ):
        with pytest.raises(error, match=f"table_lookup: {message}"):
            table_lookup(*arguments, backend=backend)
    offsets = tensor([0, 1, 2], backend)
    for arguments, error, message in (
        ((offsets.float(), None, 2, 1, 2), TypeError, "offsets must be int32 or int64; got float32"),
        ((offsets, None, 2, 2, 2), ValueError, r"offsets must have shape \[5\], for num_tables = 2; got"),
        ((offsets, offsets, 3, 1, 2), ValueError, r"table_offsets must have shape \[4\]"),
        ((offsets, None, 2, 1, -2), ValueError, "num_elements must not be negative; got -2"),
    ):
        with pytest.raises(error, match=f"expand_table_ids: {message}"):
            expand_table_ids(*arguments, backend=backend)
    with pytest.raises(ValueError, match=r"get_table_range: feature_offsets must have shape \[T \+ 1\]; got"):
        get_table_range(offsets, offsets[:0], backend=backend)


@kernel_backend
def test_misaligned_storage_is_refused(backend):
    tags, slots, *rest = table([range(40)], backend).storage()
    tags = torch.cat([tags[:1], tags])[1:]
    with pytest.raises((RuntimeError, ValueError), match=r"table_lookup: .*invalid argument"):
        table_lookup(tags, slots, *rest, tensor([1], backend), tensor([0], backend), backend=backend)


@every_backend
def test_hostile_offsets_and_storage_read_nothing_outside(backend):
    for offsets in ([0, 9, 3, -5, 7], [2**62, -(2**62), 5, 5, 5], [-3, -2, -1, 0, 1], [7, 7, 7, 7, 7]):
        hostile = tensor(offsets, backend)
        for tables in ([0, 1, 2], [0, 2**62, 4], [5, -7, 2], [0, 0, 0]):
            got = expand_table_ids(hostile, tensor(tables, backend), 2, 2, 12, backend=backend)
            assert got.shape == (12,)
            assert -1 <= int(got.min()) <= int(got.max()) <= 1
            got = get_table_range(hostile, tensor(tables, backend), backend=backend)
            assert set(got.tolist()) <= set(offsets)
    tags, slots, _, seeds = table([range(40)], backend).storage()
    for bounds in ([0, 4], [-1, 3], [2, 1], [2**62, 2**62 + 1], [-(2**63), 2**63 - 1]):
        found, rows = table_lookup(tags, slots, tensor(bounds, backend), seeds, tensor([1, 2], backend),
                                   tensor([0, 0], backend), backend=backend)
        assert not found.any()
        assert not rows.any()


@every_backend
def test_which_table_a_key_belongs_to(backend):
    """Three features of two bags; the first table has two of them, the second none."""
    offsets = torch.tensor([0, 1, 3, 3, 6, 6, 8], dtype=torch.int32, device=device_of(backend))
    tables = tensor([0, 2, 2, 3], backend)
    assert expand_table_ids(offsets, tables, 3, 2, 9, backend=backend).tolist() == [0] * 6 + [2] * 2 + [-1]
    assert expand_table_ids(offsets, None, 3, 2, 8, backend=backend).tolist() == [0] * 3 + [1] * 3 + [2] * 2
    assert get_table_range(offsets, tables, backend=backend).tolist() == [0, 6, 6, 8]
    assert expand_table_ids(offsets[:1], tensor([0], backend), 0, 2, 1, backend=backend).tolist() == [-1]
    one = tensor([1, 4, 6], backend)  # of one table alone, what lies before its bags and behind them is in none
    for tables in (None, tensor([0, 1], backend)):
        table_ids = expand_table_ids(one, tables, 1, 2, 8, backend=backend)
        assert table_ids.tolist() == [-1] + [0] * 5 + [-1] * 2


# pthread_create that has nothing to give, once `no_threads` is set.
NO_THREADS = r"""
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
int no_threads, refused;
int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*start)(void*), void* argument) {
    if (no_threads) return ++refused, EAGAIN;
    int (*create)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
    *(void**)&create = dlsym(RTLD_NEXT, "pthread_create");
    return create(thread, attributes, start, argument);
}
"""
LOOK_UP_WITHOUT_THREADS = """
import ctypes, os, sys, torch
from kernels import IdTable
t, ids = IdTable([range(300_000)], backend="cpp"), torch.arange(-5, 300_005)
library = ctypes.CDLL(sys.argv[1])
ctypes.c_int.in_dll(library, "no_threads").value = 1
found, rows = t(ids, backend="cpp")
t.insert(torch.arange(300_000, 400_000))
assert torch.equal(found, rows > 0) and torch.equal(rows, torch.where((ids >= 0) & (ids < 300_000), ids + 1, 0))
assert t.sizes == [400_000]
print(ctypes.c_int.in_dll(library, "refused").value)
"""


@pytest.mark.skipif(bool(runtime.why_not("cpp", "cpu")), reason=runtime.why_not("cpp", "cpu") or "it runs here")
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one core: no thread is asked for")
def test_cpp_does_with_fewer_threads(tmp_path):
    source, library = tmp_path / "no_threads.c", tmp_path / "no_threads.so"
    source.write_text(NO_THREADS)
    compiler = os.environ.get("CXX", "c++")
    flags = ["-x", "c", "-D_GNU_SOURCE", "-shared", "-fPIC"]
    subprocess.run([compiler, *flags, str(source), "-o", str(library), "-ldl"], check=True, capture_output=True)
    command, environment = [sys.executable, "-c", LOOK_UP_WITHOUT_THREADS, str(library)], {"LD_PRELOAD": str(library)}
    ended = subprocess.run(
        command, cwd=KERNELS.parent, env=os.environ | environment, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout) > 0
