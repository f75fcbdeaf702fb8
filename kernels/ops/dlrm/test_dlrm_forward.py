"""dlrm_forward against eager: the generated CUDA on the host and under sanitizers, by NVRTC, and among torch's ops."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import random
import shutil
import subprocess
import sys
from collections import deque
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import kernels

from ... import runtime
from ...check import Call, Case, check
from ...check.comparison import double
from ...check.contract import DEVICE, GPU, Dispatch, OnGpu, Values, every_backend, kernel_backend
from ...check.host import run_source as host
from ...check.tf32 import AllRounded, assert_rounds
from ...device.launch import architecture
from ...dispatch import nvrtc, plan
from ...dispatch.core import on_host
from ...inductor.machine_code import opcodes, registers, sass
from . import cluster, cuda_launch
from . import op as declared
from .cluster import Clusters, clusters_for, clusters_source
from .cuda_launch import source
from .pair import pairs_for
from .shape import DLRMError, Shape
from .source import source_of
from .spec import BAGS, VARIANTS, draw_model, draw_tiled
from .tile import TYPES, Tiles, fragments_source, tiles_for, tiles_source

MINI = Shape((13, 8, 4), (10, 8, 1), 3, ("relu", "relu", "relu", "sigmoid"))
SIXTEEN = replace(MINI, features=16, top=(140, 8, 1))
MAIN = Shape((13, 512, 256, 64, 16), (367, 512, 256, 1), 26)
H100 = 227 * 1024  # bytes of shared memory a block
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is missing")
needs_nvrtc = pytest.mark.skipif(nvrtc.why_not() != "", reason=f"no NVRTC: {nvrtc.why_not()}")
# Loads what g++ has built with a sanitizer, whose library must be there before Python's own.
UNDER_ASAN = """
import random, sys, torch, kernels
from kernels import runtime
from kernels.check import Case
from kernels.check.host import run_source as host
from kernels.dispatch.core import on_host
from kernels.ops.dlrm import cuda_launch
from kernels.ops.dlrm.eager import dlrm_forward
from kernels.ops.dlrm.source import source_of
from kernels.ops.dlrm.spec import BAGS, VARIANTS, draw_model
host.extra_flags = ("-fsanitize=address,undefined", "-fsanitize=bounds-strict",
                    "-fno-sanitize-recover=all", "-g1")
if sys.argv[1:]:
    old, new = sys.argv[1:]
    parts = (runtime.KERNELS / "ops/dlrm/parts.cuh").read_text().replace("#pragma once", "")
    made = cuda_launch.source_of
    cuda_launch.source_of = lambda shape: made(shape).replace('#include "ops/dlrm/parts.cuh"', parts).replace(old, new)
numbers = random.Random(1)
for _ in range(6):
    variant, bags = numbers.choice(VARIANTS), numbers.choice(BAGS)
    width, features = numbers.choice([(1, 26), (2, 9), (3, 5), (4, 16), (16, 2), (16, 3), (5, 1)])
    inputs, layout = numbers.randint(1, 20), numbers.choice(["contiguous", "strided", "misaligned"])
    ids = numbers.choice([torch.int32, torch.int64])
    for rows in (1, 31, numbers.randint(2, 99), 2048 if features < 4 else 64):
        call = draw_model(Case((1,), layout=layout), rows, inputs, width, features, variant, bags, "cpu", ids)
        # Every tensor in memory of its own, with nothing behind it that the kernel may read.
        call = call.map(lambda tensor: tensor.clone() if tensor.is_contiguous() else tensor)
        with on_host():
            found = kernels.dlrm_forward(*call.arguments(), backend="cuda")
        torch.testing.assert_close(found, dlrm_forward(*call.arguments()), rtol=1e-4, atol=1e-4)
# A layer of one input and one output: the only number that a round of all threads moves.
call = draw_model(Case((1,)), 40, 1, 4, 3, ((1,), (1, 1), VARIANTS[0][2]), "", "cpu", torch.int64)
with on_host():
    found = kernels.dlrm_forward(*call.arguments(), backend="cuda")
torch.testing.assert_close(found, dlrm_forward(*call.arguments()), rtol=1e-4, atol=1e-4)
# Ids and offsets one beside what there is, and offsets that fall by one: each is told, and nothing is read outside.
for bags in BAGS:
    call = draw_model(Case((1,)), 40, 13, 4, 3, VARIANTS[0], bags, "cpu", torch.int64)
    call = call.map(lambda tensor: tensor.clone())
    ids, height = call.tensors[2][1], len(call.tensors[1][1])
    wrong = [(ids, 21, -1), (ids, 21, height), (ids, 21, height + 1)]
    if bags:
        offsets = call.tensors[3][1]
        wrong += [(offsets, 21, value) for value in (-1, len(ids) + 1, int(offsets[20]) - 1)] + [(offsets, 0, 1)]
        wrong += [(offsets, 40, len(ids) + more) for more in (-1, 1) if bags == "closed"]
    for tensor, position, value in wrong:
        right, tensor[position] = int(tensor[position]), value
        try:
            with on_host():
                kernels.dlrm_forward(*call.arguments(), backend="cuda")
            kernels.check_ids()
        except (IndexError, ValueError) as error:
            assert f"is {value}" in str(error) or f"id {value}" in str(error), (bags, position, value, error)
        else:
            raise AssertionError(f"{value} at {position} of {bags} is told by nobody")
        tensor[position] = right
print("done")
"""


def model(rows=37, bags="", variant=0, width=4, features=3, inputs=13, device=DEVICE, **case):
    """The arguments of a call."""
    case = Case((1,), **case)
    return draw_model(case, rows, inputs, width, features, VARIANTS[variant], bags, device, torch.int64).arguments()


def tiled(rows=37, number=0, taller=0, **case):
    """The arguments of a call that is computed in tiles; table 0 has so many rows more."""
    arguments = draw_tiled(Case((1,), **case), rows, number, DEVICE).arguments()
    first, *tables = arguments[1]
    return changed(arguments, 1, [torch.cat([first, first[:1].expand(taller, -1)]) if taller else first, *tables])


def changed(arguments: tuple, position: int, value) -> tuple:
    return (*arguments[:position], value, *arguments[position + 1 :])


@pytest.fixture(params=[15, 132], ids=["tiles", "clusters"])
def multiprocessors(request, monkeypatch):
    """How many there seem to be: a block takes a tile, and where there are enough of them a cluster does. On a GPU a
    signature's first plan is kept: a test's calls are its own by their rows, and those with another number of
    multiprocessors by what they are `taller`."""
    program, taken = cuda_launch._program, set()
    monkeypatch.setattr(cuda_launch, "multiprocessors", lambda: request.param)
    monkeypatch.setattr(
        cuda_launch, "_program", lambda design, blocks: taken.add(type(design)) or program(design, blocks)
    )
    yield request.param
    assert taken == {Clusters if request.param == 132 and architecture() == 90 else Tiles}


class TestDLRMForward(Values, Dispatch, OnGpu):
    op = "dlrm_forward"

    def kinds(self, case=None):
        """Of small models and of tiles, an id a bag and bags: to torch their activations are alike."""
        found = self.variants(case)
        return [found[0], found[-1]]

    def no_tensors(self, call):
        return []

    def other_tensors(self, call):
        return []

    def wrong_input(self, call):
        arguments = call.arguments()
        dense, tables, indices, _, weights, biases, top_weights, top_biases, *_ = arguments
        rows, features = dense.shape[0], len(tables)
        open_offsets = [torch.zeros(rows, dtype=torch.int64, device=DEVICE)] * features
        return [
            (changed(arguments, 0, None), TypeError, "dense must be a tensor; got NoneType"),
            (changed(arguments, 0, dense.long()), TypeError, "dense must be .*; got int64"),
            (changed(arguments, 0, dense[0]), ValueError, r"dense must have shape \[B, K\]; got \["),
            (changed(arguments, 0, dense[:, :-1]), ValueError, r"bottom_weights\[0\] must have shape"),
            (changed(arguments, 1, 3), TypeError, "tables must be a list of tensors; got int"),
            (changed(arguments, 1, []), ValueError, "tables and indices must be one or more, as many; got 0 and"),
            (changed(arguments, 1, tables[:-1]), ValueError, "tables and indices must be one or more, as many"),
            (changed(arguments, 1, [t.double() for t in tables]), TypeError, r"tables\[0\] must have dense's dtype"),
            (changed(arguments, 1, [t[:, 1:] for t in tables]), ValueError, r"tables\[0\] must have shape"),
            (changed(arguments, 1, [t[0] for t in tables]), ValueError, r"tables\[0\] must have shape"),
            (changed(arguments, 1, [t.to("meta") for t in tables]), ValueError, r"tables\[0\] must be on dense's"),
            (changed(arguments, 2, [i.float() for i in indices]), TypeError, r"indices\[0\] must be int32 or int64"),
            (changed(arguments, 2, [*indices[:-1], indices[-1].int()]), TypeError, r"indices\[\d\] must be int64"),
            (changed(arguments, 2, [i[None] for i in indices]), ValueError, r"indices\[0\] must have one dimension"),
            (changed(arguments, 2, indices[0]), ValueError, r"indices must be a list, or of shape \[B, F\]"),
            (changed(arguments, 2, [i[1:] for i in indices]), ValueError, f"indices must be of {rows} ids each"),
            (changed(arguments, 3, open_offsets[1:]), ValueError, f"offsets must be as many as tables, {features}, or"),
            (changed(arguments, 3, [o[1:] for o in open_offsets]), ValueError, r"offsets\[0\] must have shape"),
            (changed(arguments, 3, [o.double() for o in open_offsets]), TypeError, r"offsets\[0\] must be int32 or"),
            (changed(arguments, 4, []), ValueError, "bottom_weights and bottom_biases must be one or more"),
            (changed(arguments, 5, biases[:-1]), ValueError, "bottom_weights and bottom_biases must be one or more"),
            (changed(arguments, 4, [w[0] for w in weights]), ValueError, r"bottom_weights\[0\] must have shape"),
            (changed(arguments, 5, [b[1:] for b in biases]), ValueError, r"bottom_biases\[0\] must have shape"),
            (changed(arguments, 6, [w[:, 1:] for w in top_weights]), ValueError, r"top_weights\[0\] must have shape"),
            (changed(arguments, 7, [b[None] for b in top_biases]), ValueError, r"top_biases\[0\] must have shape"),
            (changed(arguments, 8, "elu"), ValueError, "bottom_activation must be one of identity, relu"),
            (changed(arguments, 11, "Relu"), ValueError, "top_final must be one of identity, relu"),
            (changed(arguments, 12, "fp32"), ValueError, "precision must be one of ieee, tf32"),
        ]

    @kernel_backend
    @pytest.mark.parametrize("bags", ["", "open"])
    def test_generated_cases(self, backend, bags):
        """Threads and blocks in the opposite order: what one leaves for another without a barrier comes too late."""
        host.backwards = True
        try:
            for features, width in ((3, 4), (16, 4)):
                arguments = model(50, bags, features=features, width=width)
                out = kernels.dlrm_forward(*arguments, backend=backend)
                torch.testing.assert_close(out, kernels.dlrm_forward(*arguments, backend="eager"), rtol=0, atol=1e-6)
        finally:
            host.backwards = False

    @every_backend
    def test_autocast_casts_mixed_dtypes(self, backend):
        arguments = model(width=8)
        mixed = changed(arguments, 0, arguments[0].bfloat16())
        with torch.autocast(DEVICE.type, torch.bfloat16):
            assert kernels.dlrm_forward(*mixed, backend=backend).dtype == torch.bfloat16
            assert kernels.dlrm_forward(*arguments, backend=backend).dtype == torch.float32

    @kernel_backend
    def test_float64_is_refused(self, backend):
        with pytest.raises(TypeError, match='dense must be float32, float16 or bfloat16 for backend="cuda"'):
            kernels.dlrm_forward(*model(dtype=torch.float64), backend=backend)

    @GPU
    @pytest.mark.sanitizer
    @kernel_backend
    def test_under_the_sanitizer(self, backend):
        check(self.op, self.function(backend), cases=[Case((40, 12)), Case((33, 24), layout="misaligned")])

    @kernel_backend
    def test_mini_differs_from_eager_by_rounding(self, backend):
        """With weights as nn.Linear draws them, and one id a row."""
        torch.manual_seed(0)
        layers = [torch.nn.Linear(a, b).to(DEVICE).requires_grad_(False) for a, b in MINI.layers]
        weights, biases = [layer.weight for layer in layers], [layer.bias for layer in layers]
        arguments = *model(2048)[:4], weights[:2], biases[:2], weights[2:], biases[2:], *MINI.activations
        out = kernels.dlrm_forward(*arguments, backend=backend)
        assert (out - kernels.dlrm_forward(*arguments, backend="eager")).abs().max() <= 2e-7

    @kernel_backend
    def test_ids_in_columns_and_tables_that_are_not_aligned(self, backend):
        dense, tables, indices, *others = model(50, layout="misaligned")
        wanted = kernels.dlrm_forward(dense, tables, indices, *others, backend="eager")
        for ids in (torch.stack(indices, 1), torch.stack(indices, 1).unbind(1), [i.int() for i in indices]):
            out = kernels.dlrm_forward(dense, tables, ids, *others, backend=backend)
            torch.testing.assert_close(out, wanted, rtol=0, atol=1e-6)

    @every_backend
    def test_any_sequence_of_tensors_will_do(self, backend):
        dense, tables, indices, offsets, *layers = model(20)
        parameters = [torch.nn.ParameterList(tensors) for tensors in (tables, *layers[:4])]
        arguments = dense, parameters[0], deque(indices), offsets, *parameters[1:], *layers[4:]
        with torch.no_grad():
            wanted = kernels.dlrm_forward(dense, tables, indices, offsets, *layers, backend=backend)
            assert torch.equal(kernels.dlrm_forward(*arguments, backend=backend), wanted)

    @every_backend
    @pytest.mark.parametrize("bags", BAGS)
    def test_bad_ids_are_reported_and_count_as_zeros(self, backend, bags):
        arguments = model(40, bags)
        indices, tables = arguments[2], arguments[1]
        call = functools.partial(told_at_once, backend)
        for value in (len(tables[1]), -1, 2**40, -(2**63), 2**63 - 1):
            wrong = [ids.clone() for ids in indices]
            wrong[1][3] = value
            message = rf"dlrm_forward: id {value}, at position 3 of indices\[1\], is out of range for tables\[1\]"
            with pytest.raises(IndexError, match=message):
                call(changed(arguments, 2, wrong))
        assert torch.equal(call(arguments), call(arguments))

    @kernel_backend
    def test_the_row_of_a_bad_id_is_zeros(self, backend):
        arguments = model(40)
        wrong = [ids.clone() for ids in arguments[2]]
        wrong[1][3] = 1000
        grown = [torch.cat([table, torch.zeros(1, 4, device=DEVICE)]) for table in arguments[1]]
        padded = [ids.clone() for ids in arguments[2]]
        padded[1][3] = len(arguments[1][1])
        wanted = kernels.dlrm_forward(arguments[0], grown, padded, *arguments[3:], backend="eager")
        outs = []
        overload = torch.ops.fused_kernels.dlrm_forward
        outs.append(getattr(overload, backend)(*changed(arguments, 2, wrong)))
        with pytest.raises(IndexError, match=r"dlrm_forward: id 1000, at position 3 of indices\[1\]"):
            kernels.check_ids(wait=True)
        torch.testing.assert_close(outs[0], wanted, rtol=0, atol=1e-6)

    @every_backend
    @pytest.mark.parametrize("bags", ["open", "closed"])
    def test_bad_offsets_are_reported(self, backend, bags):
        arguments = model(40, bags)
        count = arguments[2][2].shape[0]
        cases = [(5, -1), (5, count + 1), (0, 1), (7, 10**12)] + [(40, count - 1)] * (bags == "closed")
        for position, value in cases:
            wrong = [offsets.clone() for offsets in arguments[3]]
            wrong[2][position] = value
            message = r"dlrm_forward: offsets\[2\] must begin with 0, .*; offsets\[2\]\[\d+\] is -?\d+"
            with pytest.raises(ValueError, match=message):
                told_at_once(backend, changed(arguments, 3, wrong))

    @kernel_backend
    @pytest.mark.parametrize(("dtype", "number"), [(torch.float32, 0), (torch.float32, 1), (torch.float16, 0),
                                                   (torch.bfloat16, 1)], ids=str)  # fmt: skip
    def test_tiles_of_any_batch(self, backend, dtype, number, multiprocessors):
        for rows in (0, 1, 7, 8, 16, 17, 100):
            arguments = tiled(rows, number, multiprocessors, dtype=dtype)
            out, wanted = (kernels.dlrm_forward(*arguments, backend=name) for name in (backend, "eager"))
            near = 0.02 if dtype == torch.bfloat16 else 0.002
            torch.testing.assert_close(out, wanted, rtol=near, atol=near * float(wanted.abs().max()) if rows else 0.0)

    @kernel_backend
    def test_tiles_of_tables_and_dense_that_are_not_aligned_and_ids_that_are_apart(self, backend, multiprocessors):
        arguments = tiled(taller=multiprocessors)
        wanted = kernels.dlrm_forward(*arguments, backend=backend)
        apart = changed(arguments, 2, [torch.stack([ids, -ids - 1], 1)[:, 0] for ids in arguments[2]])
        for position, tensors in ((0, arguments[:1]), (1, arguments[1])):
            moved = [torch.cat([tensor.new_empty(1), tensor.flatten()])[1:].view(tensor.shape) for tensor in tensors]
            apart = changed(apart, position, moved if position else moved[0])
        assert apart[0].data_ptr() % 16 == apart[1][0].data_ptr() % 16 == 4
        assert torch.equal(kernels.dlrm_forward(*apart, backend=backend), wanted)
        bags = tiled(number=1, taller=multiprocessors)
        moved = [torch.cat([table.new_empty(1), table.flatten()])[1:].view(table.shape) for table in bags[1]]
        wanted = kernels.dlrm_forward(*bags, backend=backend)
        assert torch.equal(kernels.dlrm_forward(*changed(bags, 1, moved), backend=backend), wanted)

    @kernel_backend
    def test_tiles_report_bad_ids_and_offsets(self, backend, multiprocessors):
        arguments = tiled(41, taller=multiprocessors)
        for value in (len(arguments[1][1]), -1, -(2**63)):
            wrong = [ids.clone() for ids in arguments[2]]
            wrong[1][3] = value
            message = rf"dlrm_forward: id {value}, at position 3 of indices\[1\], is out of range for tables\[1\]"
            with pytest.raises(IndexError, match=message):
                told_at_once(backend, changed(arguments, 2, wrong))
        arguments = tiled(41, 1, multiprocessors)
        wrong = [offsets.clone() for offsets in arguments[3]]
        wrong[2][5] = -1
        with pytest.raises(ValueError, match=r"dlrm_forward: offsets\[2\] must begin with 0, .*; offsets\[2\]\[5\] is"):
            told_at_once(backend, changed(arguments, 3, wrong))
        told_at_once(backend, arguments)

    @kernel_backend
    def test_tiles_round_to_the_nearest(self, backend, multiprocessors):
        arguments = tiled(101, 1, multiprocessors)
        exact = Call("", arguments[:8], arguments[8:]).map(double).arguments()
        with AllRounded():
            like = kernels.dlrm_forward(*exact, backend="eager")
        out = kernels.dlrm_forward(*arguments, backend=backend)
        assert_rounds(out, kernels.dlrm_forward(*exact, backend="eager"), like)

    @kernel_backend
    def test_a_gradient_takes_eager(self, backend):
        arguments = model(20)
        leaves = changed(arguments, 4, [weight.clone().requires_grad_() for weight in arguments[4]])
        out = kernels.dlrm_forward(*leaves)
        out.sum().backward()
        assert all(weight.grad is not None for weight in leaves[4])
        assert declared.auto(*leaves) == "eager"
        with pytest.raises(RuntimeError, match=r"dlrm_forward has no gradient: call it under torch.no_grad\(\)"):
            kernels.dlrm_forward(*leaves, backend=backend)
        with torch.no_grad():
            torch.testing.assert_close(kernels.dlrm_forward(*leaves, backend=backend), out.detach(), rtol=0, atol=1e-6)


# --------------------------------------------------------------------------------------------------------- the kernel


def told_at_once(backend: str, arguments: tuple) -> torch.Tensor:
    """The result; raises what the kernel reported of this call."""
    out = kernels.dlrm_forward(*arguments, backend=backend)
    kernels.check_ids(wait=True)
    return out


def under_asan(*edits: str) -> subprocess.CompletedProcess:
    """Random models in a process of its own; edits: what of the source is replaced, and by what."""
    libraries = [
        subprocess.run(["g++", f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout.strip()
        for name in ("libasan.so", "libstdc++.so")
    ]
    environment = os.environ | {
        "LD_PRELOAD": " ".join(libraries), "ASAN_OPTIONS": "detect_leaks=0", "PYTHONPATH": os.pathsep.join(sys.path)
    }
    command = [sys.executable, "-c", UNDER_ASAN, *edits]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.host
@needs_compiler
def test_the_sanitizers_find_nothing():
    done = under_asan()
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    assert done.stdout.endswith("done\n")


@pytest.mark.slow
@pytest.mark.host
@needs_compiler
@pytest.mark.parametrize(("old", "new"), [("e = begin + thread; e < count", "e = begin + thread; true"),
                                          ("given.batch - 1;", "given.batch;")])
def test_the_sanitizers_find_what_is_read_beyond_a_tensor(old, new):
    done = under_asan(old, new)
    assert "AddressSanitizer: heap-buffer-overflow" in done.stderr


# In parts.cuh or the generated text: each gives another result, or none.
MUTATIONS = (
    ("z < 0.0f ? 0.0f : z", "z"),
    ("1.0f / (1.0f + expf(-z))", "1.0f / (1.0f + expf(z))"),
    ("layer[inputs * outputs + n];", "0.0f;"),
    ("e % inputs * outputs + e / inputs", "e"),
    ("e / width * stride_of_dense<width> + e % width", "e"),
    ("id >= 0 && id < height", "id > 0 && id < height"),
    ("table + id * width + d", "table + id * width"),
    ("for (int j = 0; j < i; ++j)", "for (int j = 0; j <= i; ++j)"),
    ("v[i][d] * v[j][d]", "v[i][d] * v[i][d]"),
    ("layer, width + pair, product", "layer, pair, product"),
    ("pair >= end", "pair > end"),
    ("(long long)offsets[row + 1] : ids", "(long long)offsets[row + 1] + 1 : ids"),
    ("sums[d] += values[d]", "sums[d] = values[d]"),
    ("row + 1 < given.batch", "row + 2 < given.batch"),
    ("bags[i].begin + step < bags[i].end", "bags[i].begin + step + 1 < bags[i].end"),
    ("if (warp == 0) dlrm::linear", "if (warp <= 1) dlrm::linear"),
    ("int other = 1; other < warps", "int other = 2; other < warps"),
    ("* given.strides[f]", ""),
    ("copies.wait(0);", ""),
    ("rows_of_all, f, lane, sums[i]);\n    __syncthreads();", "rows_of_all, f, lane, sums[i]);"),
    ("sums_of_all, warp, lane, y1);\n    __syncthreads();", "sums_of_all, warp, lane, y1);"),
)


@pytest.mark.slow
@pytest.mark.host
@needs_compiler
def test_mutations_die(monkeypatch):
    parts = (runtime.KERNELS / "ops" / "dlrm" / "parts.cuh").read_text()
    calls = [model(50, "open", device="cpu", layout="strided"), model(33, "", features=16, inputs=12, device="cpu")]
    calls += [model(33, "open", features=16, width=3, variant=2, device="cpu")]
    calls[0] = changed(calls[0], 2, [torch.stack([ids, ids], 1)[:, 0] for ids in calls[0][2]])
    wanted = [kernels.dlrm_forward(*call, backend="eager") for call in calls]
    for old, new in MUTATIONS:
        applied = 0

        def mutated(shape, old=old, new=new):
            nonlocal applied
            text = source_of(shape).replace('#include "ops/dlrm/parts.cuh"', parts.replace("#pragma once", ""))
            applied += old in text
            return text.replace(old, new)

        monkeypatch.setattr(cuda_launch, "source_of", mutated)
        died = False
        for call, want in zip(calls, wanted, strict=True):
            source.cache_clear()
            for host.backwards in (False, True):
                with on_host():
                    out = torch.ops.fused_kernels.dlrm_forward.cuda(*map(as_list, call))
                died = died or not torch.allclose(out, want, rtol=0, atol=1e-5)
            if died:  # each call is a program to compile
                break
        host.backwards = False
        with contextlib.suppress(IndexError, ValueError):
            kernels.check_ids()
        assert applied, f"{old!r} is not in the source"
        assert died, f"{old!r} → {new!r} lives"
    source.cache_clear()


def as_list(value):
    return list(value) if isinstance(value, tuple) else value


# --------------------------------------------------------------------------------------------------------- compilation


@needs_nvrtc
@pytest.mark.parametrize("shape", [
    MINI, SIXTEEN, replace(MINI, bags="open", id_bytes=4), replace(SIXTEEN, bags="closed", offset_bytes=4),
    replace(SIXTEEN, bottom=(13, 16, 8), top=(144, 16, 1), aligned=False),
    Shape((13, 4), (355, 8, 1), 26, bags="open"), Shape((13, 16), (37, 3), 6),
    Shape((13, 8, 32), (60, 8, 1), 7, bags="closed"), Shape((13, 8, 16), (152, 8, 1), 16),
], ids=str)  # fmt: skip
def test_nothing_is_spilled(shape, tmp_path):
    assert shape.why_not() == ""
    image = Path(nvrtc.compiled(nvrtc.Kernel(source(shape), 90), tmp_path).path).read_bytes()
    if (lines := sass(image)) is None:
        pytest.skip("no nvdisasm beside Triton")
    counts = opcodes(lines)
    assert not {"STL", "LDL"} & counts.keys(), "an array lies in memory, or a number was spilled"
    assert registers(image) <= 255
    assert counts["FFMA"] <= shape.products + 64, "no multiply-add is computed twice"
    wide = sum("LDS.128" in line for line in lines)
    assert wide >= shape.products / 8, "weights are read by fours"


@needs_nvrtc
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize(
    ("shape", "rows"), [(MAIN, 8), (MAIN, 16), (MAIN, 32), (replace(MAIN, bags="open", id_bytes=4, aligned=False), 16)],
    ids=str,
)  # fmt: skip
def test_tiles_compile(shape, rows, dtype, tmp_path):
    """The compiler checks what tile.py computes against tile.cuh."""
    tiles = Tiles(shape, dtype, rows)
    for program in (tiles_source(tiles), fragments_source(dtype)):
        image = Path(nvrtc.compiled(nvrtc.Kernel(program, 90), tmp_path).path).read_bytes()
        assert registers(image) * program.threads <= 65536
        if (lines := sass(image)) is not None:
            counts = opcodes(lines)  # some of what a tile needs again and again is kept in memory, and read once a tile
            assert counts.get("STL", 0) + counts.get("LDL", 0) <= (130 if rows == 32 else 40)


@needs_nvrtc
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("rows", cluster.ROWS)
@pytest.mark.parametrize(("changes", "laid_out"), [
    ({}, False), ({}, True), ({"bags": "open", "id_bytes": 4, "aligned": False}, False),
], ids=str)  # fmt: skip
def test_clusters_compile(changes, laid_out, rows, dtype, tmp_path):
    """The compiler checks what cluster.py computes against cluster.cuh. A weight on its way that is spilled is one that
    is waited for."""
    design = Clusters.of(replace(MAIN, **changes), dtype, rows, H100)
    program = clusters_source(replace(design, laid_out=laid_out))
    image = Path(nvrtc.compiled(nvrtc.Kernel(program, 90), tmp_path).path).read_bytes()
    assert registers(image) <= 128
    if (lines := sass(image)) is not None:
        assert not {"STL", "LDL"} & opcodes(lines).keys()


def test_how_layers_are_cut():
    def cuts(*model):
        return " ".join(layer.cut for layer in Clusters.of(*model, H100).layers)

    for dtype, rows in itertools.product(TYPES, cluster.ROWS):
        design = Clusters.of(MAIN, dtype, rows, H100)
        assert cuts(MAIN, dtype, rows) == "whole outputs inputs rows outputs inputs rows"
        assert (design.resident, design.why_not(H100)) == (4, "")
        assert Clusters.of(MAIN, dtype, rows, 99 * 1024).resident in (-1, 1, 4)
    assert cuts(replace(MAIN, bottom=(13, 16), top=(367, 1)), torch.float32, 8) == "rows rows"
    assert cuts(replace(MAIN, bottom=(600, 800, 16), top=(367, 700)), torch.float32, 16) == "outputs inputs outputs"
    alone = replace(MAIN, bottom=(13, 512, 1, 16), top=(367, 512, 1, 300, 300, 1))
    assert cuts(alone, torch.bfloat16, 16).split()[1::3] == ["rows", "rows", "rows"], "one output is of rows"
    for model in RANDOM_MODELS:
        for dtype, rows in itertools.product(TYPES, cluster.ROWS):
            check_plan(Clusters.of(model, dtype, rows, H100))


def random_models(count):
    numbers = random.Random(3)
    for _ in range(count):
        bottom, top = ([numbers.choice((1, 3, 8, 24, 40, 130, 300, 600)) for _ in range(numbers.randint(0, 4))]
                       for _ in range(2))  # fmt: skip
        features, width = numbers.randint(1, 31), numbers.choice((8, 16, 24, 64, 128))
        inputs = width + features * (features + 1) // 2
        yield Shape((numbers.choice((1, 13, 100, 700)), *bottom, width), (inputs, *top, numbers.choice((1, 5, 300))),
                    features)  # fmt: skip


RANDOM_MODELS = [*random_models(30)]


def check_plan(design):
    """Each layer finds what it reads, in the state in which it takes it."""
    bottom = len(design.shape.bottom) - 1
    state = None
    for i, layer in enumerate(design.layers):
        if i in (0, bottom):
            assert i == 0 or state == "rows", "the vectors are of rows"
            assert layer.cut != "inputs"
        else:
            assert layer.cut != "inputs" or state == "columns"
        assert layer.outputs > 1 or layer.cut == "rows"
        state = {"whole": "full", "outputs": "columns"}.get(layer.cut, "rows")
    assert state != "full", "the last layer's outputs are written once"
    assert design.resident < 0 or design.layers[design.resident].cut == "outputs"
    assert design.resident < 0 or design.shared_bytes <= H100


@pytest.mark.host
@needs_compiler
def test_what_cluster_py_computes_is_what_cluster_cuh_does(tmp_path):
    """The compiler compares them, for models of all sorts."""
    text = '#include "ops/dlrm/cluster.cuh"\n'
    for number, model in enumerate(RANDOM_MODELS):
        for dtype, rows in itertools.product((torch.float32, torch.bfloat16), cluster.ROWS):
            source = clusters_source(Clusters.of(model, dtype, rows, H100)).text
            own = source[source.index("using T =") : source.index('extern "C"')]
            text += f"namespace model_{number}_{dtype.itemsize}_{rows} {{\n{own}\n}}\n"
    file = tmp_path / "models.cpp"
    file.write_text(text)
    command = ["g++", "-std=c++20", "-fsyntax-only", "-w", f"-I{runtime.KERNELS}", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:3000]


def test_clusters_are_for_batches_whose_tiles_run_at_once():
    batches = {0: 8, 1: 8, 120: 8, 121: 16, 240: 16, 241: None}  # 15 clusters run at once
    for dtype in TYPES:
        designs = {batch: clusters_for(MAIN, dtype, H100, batch, 132) for batch in batches}
        assert {batch: design and design.rows for batch, design in designs.items()} == batches
    assert clusters_for(MAIN, torch.float32, H100, 1, 15) is None
    assert clusters_for(MAIN, torch.float32, 40_000, 1, 132) is None
    design = functools.partial(cuda_launch.design_of, MAIN, torch.float32, "tf32", shared_bytes=H100, blocks=132)
    assert design(arch=90, batch=128) == Clusters.of(MAIN, torch.float32, 16, H100)
    assert design(arch=80, batch=128) == Tiles(MAIN, torch.float32, 8)
    assert design(arch=90, batch=241) == pairs_for(MAIN, torch.float32, H100, 132)
    other = replace(MAIN, bottom=(13, 512, 16))  # of two layers, which pairs do not take
    assert cuda_launch.design_of(other, torch.float32, "tf32", 90, H100, 241, 132) == Tiles(other, torch.float32, 8)


def test_a_model_that_is_too_large_is_refused_with_the_budget():
    main = Shape((13, 32, 16), (16 + 27 * 13, 32, 1), 26)
    assert main.why_not().startswith("464 numbers of a row per thread, but the budget is 280; 18,320")
    assert "products per row, but the generated code writes out at most 6,144; 138,832 bytes" in main.why_not()
    arguments = model(5, width=16, features=26)
    with on_host(), pytest.raises(DLRMError, match="dlrm_forward: the model is too large for one kernel: 440 numbers"):
        kernels.dlrm_forward(*arguments, backend="cuda")
    assert Shape((13, 3000, 4), (10, 1), 3).why_not().count(";") == 2


def test_more_numbers_are_for_models_whose_vectors_lie_in_shared_memory():
    def numbers(features: int, width: int, bottom: int = 8) -> tuple[int, int, str]:
        shape = Shape((13, bottom, width), (width + features * (features + 1) // 2, 8, 1), features)
        return shape.warps, shape.numbers, shape.why_not().partition(";")[0]

    assert numbers(16, 16) == (8, 280, "")
    assert numbers(8, 31) == (4, 287, "287 numbers of a row per thread, but the budget is 280")
    assert numbers(7, 32) == (4, 264, "")
    assert numbers(6, 32) == (2, 232, "232 numbers of a row per thread, but the budget is 160")
    assert numbers(12, 8, 150) == (4, 187, "187 numbers of a row per thread, but the budget is 160"), "its layers'"
    arguments = model(40, width=32, features=7)
    with on_host():
        torch.testing.assert_close(
            kernels.dlrm_forward(*arguments, backend="cuda"), kernels.dlrm_forward(*arguments, backend="eager")
        )


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_a_model_without_dense_features_is_refused(dtype):
    for shape in (MINI, MAIN):
        why = cuda_launch.design_of(replace(shape, bottom=(0, *shape.bottom[1:])), dtype, "tf32", 90, H100, 2048, 132)
        assert "no dense features" in why


def test_what_fits_into_tiles():
    batches = {0: 8, 1: 8, 1056: 8, 1057: 16, 2112: 16, 2113: 32, 65536: 32}  # 132 tiles run at once
    for dtype in TYPES:
        assert {batch: tiles_for(MAIN, dtype, H100, batch, 132).rows for batch in batches} == batches
    wide = replace(MAIN, bottom=(13, 512, 128), top=(479, 1024, 1024, 512, 256, 1))  # facebookresearch's for MLPerf
    assert [tiles_for(wide, dtype, H100, 65536, 132).rows for dtype in (torch.float32, torch.bfloat16)] == [8, 16]
    why = tiles_for(replace(MAIN, bottom=(13, 10), features=32), torch.bfloat16, 10_000, 1, 132).why_not(10_000)
    assert "32 tables, and a tile takes at most 31; " in why
    assert " bytes on chip for 8 rows, and a block has 10,000; vectors of 20 bytes, and a tile takes multiples" in why
    deep = tiles_for(replace(MAIN, top=(367, *[8] * 15)), torch.float32, H100, 1, 132)
    assert deep.why_not(H100) == "19 layers, and a tile takes at most 16"


def test_the_design_of_a_call():
    design = functools.partial(cuda_launch.design_of, arch=90, shared_bytes=H100)
    assert design(MINI, torch.float32, "ieee") is MINI
    assert design(MINI, torch.float32, "tf32") is MINI, "full float32 is as fast there"
    assert design(MAIN, torch.float32, "tf32") == Tiles(MAIN, torch.float32, 8)
    assert design(MAIN, torch.bfloat16, "ieee", batch=2048, blocks=132) == pairs_for(MAIN, torch.bfloat16, H100, 132)
    assert design(MAIN, torch.bfloat16, "ieee", arch=80, batch=2048, blocks=132) == Tiles(MAIN, torch.bfloat16, 16)
    assert design(MAIN, torch.float32, "ieee").endswith("; larger ones take tf32 or halves")
    assert design(MINI, torch.float16, "ieee") == (
        "the model does not fit into one kernel: vectors of 8 bytes, and a tile takes multiples of 16"
    )
    assert design(MAIN, torch.float32, "tf32", arch=75).endswith("the tensor cores of sm_80 or later; this is sm_75")


def test_pairs_are_shared_by_warps_where_there_are_many():
    assert (MINI.warps, SIXTEEN.warps, Shape((13, 4), (355, 8, 1), 26).warps) == (1, 4, 8)
    text = source(SIXTEEN).text
    assert "add_pairs<0, 34>" in text
    assert "add_pairs<102, 136>" in text


def test_the_batch_and_the_tables_heights_are_no_part_of_the_source():
    sources, recorder = set(), []
    for rows in (3, 2048):
        arguments = model(rows, "open", device="cpu")
        grown = changed(arguments, 1, [torch.cat([table] * rows) for table in arguments[1]])
        for variant in (arguments, grown):
            recorder.append(recorded(variant))
            sources.add(recorder[-1][0])
    assert len(sources) == 1
    assert [launch[1] for launch in recorder] == [(1,), (1,), (64,), (64,)]


def test_tiles_take_two_launches_and_as_many_blocks_as_there_are_multiprocessors():
    sources = set()
    for rows, blocks in ((241, 31), (1056, 132), (2112, 132), (9000, 132)):
        (fragments, *_), (tiles, grid, arguments) = launches_of(tiled(rows))
        sources.add((fragments, tiles))
        assert grid == (blocks,)
        assert (fragments.waits, tiles.waits, tiles.threads) == (True, True, 512)
        assert arguments[3:6] == (rows, 13, blocks)
        assert len(arguments) == 7 + 6 * 17
    assert len(sources) == 3, "tiles of 8, 16 and 32 rows"
    for rows, clusters in ((3, 1), (120, 15), (121, 8), (240, 15)):
        (fragments, *_), (program, grid, arguments) = launches_of(tiled(rows))
        sources.add((fragments, program))
        assert grid == (8 * clusters,)
        assert (program.waits, program.threads, program.cluster) == (True, 512, 8)
        assert arguments[3:6] == (rows, 13, clusters)
    assert len(sources) == 5, "and of 8 and 16 rows, a cluster each"
    assert launches_of(tiled(0)) == []


def recorded(arguments: tuple) -> tuple:
    """(source, grid, arguments) of a call's only launch."""
    (launch,) = launches_of(arguments)
    return launch


def launches_of(arguments: tuple) -> list[tuple]:
    """(source, grid, arguments) of each launch of a call."""
    launches = []

    class Recorder(plan.Recorder):
        def launch_source(self, *launch):
            launches.append(launch)

    allocations = declared.OP.allocations("", arguments)
    plan.record(declared.OP, "", arguments, allocations, backend="cuda", recorder=Recorder)
    return launches


# ----------------------------------------------------------------------------------------------------------- gradients


def test_auto_takes_what_the_kernel_can(monkeypatch):
    monkeypatch.setattr(declared, "nvrtc_runs", lambda: True)
    arguments = model(20)
    assert declared.auto(*arguments) == "cuda"
    assert declared.auto(*model(20, width=16, features=26)) == "eager"
    assert declared.auto(*model(20, width=16, features=26)[:-1], "tf32") == "cuda"
    assert declared.auto(*model(20, width=16, features=26, dtype=torch.float16)) == "cuda"
    assert declared.auto(*model(20, width=4, dtype=torch.float16)) == "eager"
    assert declared.auto(arguments[0].double(), *arguments[1:]) == "eager"
    monkeypatch.setattr(declared, "nvrtc_runs", lambda: False)
    assert declared.auto(*arguments) == "eager"
