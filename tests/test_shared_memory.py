"""The Triton kernels of products take no more shared memory than a block may have, on every GPU that they may run on.

How much is allocated is known once Triton has pipelined the loops, before LLVM and the assembler, so a hundred kernels
take half a minute.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, fields
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from kernels.device import launch
from kernels.device.launch import SHARED_MEMORY
from kernels.dispatch import cubin, find, plan
from kernels.dispatch.intercept import recording
from kernels.dtypes import DTYPES
from kernels.ops.fused_mlp import budget, packing
from kernels.ops.fused_mlp import tiles as fused_mlp
from kernels.ops.fused_mlp.budget import Tile
from kernels.ops.outer_linear import triton_tiles as outer_linear
from kernels.ops.outer_linear.folding import folded_width

ROOT = Path(__file__).resolve().parent.parent
KINDS = {
    "ieee": (torch.float32, "ieee"), "tf32": (torch.float32, "tf32"), "half": (torch.float16, "ieee"),
    "bfloat16": (torch.bfloat16, "ieee"), "float64": (torch.float64, "ieee"),
}
ROWS = (1, 128, 300, 4200, 4300)
WIDTHS = ("13-512-256-64-16", "367-512-256-1", "64-512-64-1", "64-128-512-16", "40-1024-32", "1-1")
PRODUCTS = ((432, 512), (432, 64), (33, 40))  # c's columns, outputs
# In a process of its own, without the interpreter: [a kernel's shared memory, …].
ALLOCATE = """
import ast, importlib, json, sys
from triton._C.libtriton import ir, nvidia, passes
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler.compiler import make_backend
from kernels.dispatch.cubin import OPTIONS

def shared(module, name, types, constants, arch):
    function, constants = getattr(importlib.import_module(module), name), dict(constants)
    options = {option: constants.pop(option) for option in OPTIONS if option in constants}
    types, signature, attributes = iter(types), {}, {}
    for index, argument in enumerate(function.arg_names):
        type_, _, divisible = ("constexpr" if argument in constants else next(types)).partition(":")
        signature[argument] = "constexpr" if type_ == "none" else type_
        if type_ == "none":
            constants[argument] = None
        if divisible:
            attributes[(index,)] = [["tt.divisibility", 16]]
    source = ASTSource(fn=function, signature=signature, constexprs=constants, attrs=attributes)
    target = GPUTarget("cuda", arch, 32)
    backend = make_backend(target)
    options, stages, context = backend.parse_options(options), {}, ir.context()
    backend.add_stages(stages, options, source.language)
    ir.load_dialects(context)
    backend.load_dialects(context)
    made = source.make_ir(
        target, options, backend.get_codegen_implementation(options), backend.get_module_map(), context
    )
    metadata = {"target": target, **options.__dict__}
    for stage in ("ttir", "ttgir"):
        made = stages[stage](made, metadata)
    manager = ir.pass_manager(made.context)
    passes.ttgpuir.add_combine_tensor_select_and_if(manager)
    passes.ttgpuir.add_allocate_warp_groups(manager)
    passes.convert.add_scf_to_cf(manager)
    nvidia.passes.ttgpuir.add_allocate_shared_memory_nv(manager, arch, 80)
    manager.run(made, "allocate")
    return made.get_int_attr("ttg.shared")

print(json.dumps([shared(**fields) for fields in ast.literal_eval(sys.stdin.read())]))
"""


def _meta(*shape, dtype):
    return torch.empty(shape, dtype=dtype, device="meta")


def _arguments(op, rows, size, dtype, precision):
    """The overload's arguments of an MLP of such widths, or of (columns, outputs)."""
    if op == "fused_mlp":
        first = packing.padded(packing.layers(size)[0].inputs)
        return (_meta(rows, first, dtype=dtype), _meta(packing.elements(size), dtype=dtype), size,
                "relu", "identity", precision, True)
    columns, outputs = size
    weight = _meta(outputs, columns**2, dtype=dtype)
    return _meta(rows, columns, dtype=dtype), weight, _meta(outputs, dtype=dtype), "relu", precision, False


def _recorded(monkeypatch, arch, kinds, rows, all_widths=WIDTHS):
    """Triton's kernels that the launchers ask for on that GPU, forward and backward."""
    recorded = {}

    def note(kernel, device):
        if isinstance(kernel, cubin.Kernel):
            recorded[kernel] = None
        return 0, cubin.Compiled("", "", 0, 0, 0, cubin.PLAIN)

    monkeypatch.setattr(plan, "_function", note)
    for op, sizes in (("fused_mlp", all_widths), ("outer_linear", PRODUCTS)):
        declared = find(op)
        for kind in kinds:
            for count in rows:
                for size in sizes:
                    arguments = declared.with_tensors(_arguments(op, count, size, *KINDS[kind]))
                    allocations = declared.allocations("", arguments)
                    plan.record(declared, "", arguments, allocations, arch)
                    outputs = [torch.empty(shape, dtype=dtype, device="meta") for shape, dtype in allocations]
                    backward = declared.backward_arguments(
                        arguments, outputs, declared.differentiable(outputs), [True] * len(declared.gradients)
                    )
                    plan.record(declared, "backward", backward, declared.allocations("backward", backward), arch)
                    if op == "outer_linear":
                        c, weight, *others = arguments
                        weight = _meta(size[1], folded_width(size[0]), dtype=c.dtype)
                        plan.record(declared, "", (c, weight, *others[:-1], True), allocations, arch)
    return list(recorded)


def _said(kernel, available):
    """What the launcher says that a kernel needs at most; None of those that no tile is chosen for."""
    constants = dict(kernel.constants)
    (dtype,) = {dtype for dtype, known in DTYPES.items() if known.triton == kernel.types[0][1:].partition(":")[0]}
    if "fused_mlp" in kernel.module:
        names = {"rows": "ROWS", "columns": "COLUMNS", "stages": "STAGES", "budget": "BUDGET", "warps": "num_warps"}
        needed = {"forward_kernel": budget.on_chip_bytes, "chain_kernel": budget.backward_on_chip_bytes}
        if kernel.name not in needed:
            return None
        tile = Tile(**{field: constants[name] for field, name in names.items()})
        keep = {"keep": constants["KEEP"]} if "KEEP" in constants else {}
        return needed[kernel.name](constants["WIDTHS"], tile, dtype, available=available, **keep).shared
    parts = {"weight_kernel": "grad_weight", "c_kernel": "grad_c", "direct_c_kernel": "direct_c",
             "few_rows_kernel": "few_rows",
             "forward_kernel": "folded" if constants.get("FOLDED") else "forward"}
    if kernel.name not in parts:
        return None
    sizes = {field.name: constants[field.name.upper()] for field in fields(outer_linear.Tiles)
             if field.name.upper() in constants}
    return outer_linear.shared_bytes(parts[kernel.name], outer_linear.Tiles(**sizes), dtype.itemsize, kernel.arch)


@pytest.mark.parametrize("arch", SHARED_MEMORY)
def test_what_a_tile_is_said_to_need_is_there(arch, monkeypatch):
    """For every GPU, of every dtype and precision, and few rows and many."""
    available = SHARED_MEMORY[arch]
    needs = [_said(kernel, available) for kernel in _recorded(monkeypatch, arch, KINDS, ROWS)]
    needs = [need for need in needs if need is not None]
    assert len(needs) > 100
    assert max(needs) <= available


def test_tiles_of_an_h200_are_whole():
    """Its shared memory is what tiles were chosen for; with less they are smaller, and still compute all columns."""
    for kind in ("tf32", "bfloat16"):
        dtype, precision = KINDS[kind]
        for rows in ROWS:
            for widths in WIDTHS:
                whole = fused_mlp.tile_of(rows, dtype, precision)
                if fused_mlp.is_on_chip(rows, widths, dtype, precision):
                    whole = fused_mlp.on_chip_tile(dtype)
                assert fused_mlp.forward_tile(rows, widths, dtype, precision, available=SHARED_MEMORY[90])[0] == whole
    small, needed = fused_mlp.forward_tile(128, "13-512-256-64-16", *KINDS["tf32"], available=SHARED_MEMORY[86])
    assert small.budget < fused_mlp.tile_of(128, *KINDS["tf32"]).budget
    assert needed.available == SHARED_MEMORY[86]
    assert f"of {SHARED_MEMORY[86]}" in str(needed)


def test_a_budget_that_no_tile_keeps(monkeypatch):
    """Forward and backward say what they need and what there is."""
    monkeypatch.setitem(SHARED_MEMORY, 90, 1000)
    declared = find("fused_mlp")
    arguments = _arguments("fused_mlp", 128, "3-4", *KINDS["ieee"])
    allocations = declared.allocations("", arguments)
    with pytest.raises(budget.FusedMLPError, match=r"widths 3-4 does not fit .* shared memory \d+ of 1000,"):
        plan.record(declared, "", arguments, allocations)
    outputs = [torch.empty(shape, dtype=dtype, device="meta") for shape, dtype in allocations]
    backward = declared.backward_arguments(arguments, outputs, declared.differentiable(outputs), [True, True])
    with pytest.raises(budget.FusedMLPError, match=r"widths 3-4 does not fit .* shared memory \d+ of 1000,"):
        plan.record(declared, "backward", backward, declared.allocations("backward", backward))
    with pytest.raises(budget.FusedMLPError, match=r"shared memory \d+ of 1000$"):
        budget.check_cuda("fused_mlp", "3-4", torch.float32, torch.device("cpu"))


def test_a_gpu_is_asked(monkeypatch):
    """It may give less than the table says, as in a MIG slice or a virtual machine; or not say."""
    gpu, properties = torch.device("cuda"), SimpleNamespace(shared_memory_per_block_optin=12345)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (8, 9))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device=None: properties)
    assert (launch.architecture(gpu), launch.shared_memory(gpu)) == (89, 12345)
    with recording(plan.Recorder(0, gpu, 89)):
        assert (launch.architecture(), launch.shared_memory()) == (89, 12345)
    with recording(plan.Recorder(0, torch.device("cpu"), 80)):
        assert (launch.architecture(), launch.shared_memory()) == (80, SHARED_MEMORY[80])
    del properties.shared_memory_per_block_optin
    assert launch.shared_memory(gpu) == SHARED_MEMORY[89]
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (99, 0))
    assert launch.shared_memory(gpu) == min(SHARED_MEMORY.values())


@pytest.mark.slow
@pytest.mark.parametrize("arch", [80, 86, 90, 120])
def test_what_the_compiled_kernels_take(arch, monkeypatch):
    """At most what the launchers say, and at most what a block may have."""
    kernels = _recorded(monkeypatch, arch, [kind for kind in KINDS if kind != "half"], (128, 4300), WIDTHS[:3])
    done = subprocess.run(
        [sys.executable, "-c", ALLOCATE], input=repr([asdict(kernel) for kernel in kernels]),
        env=os.environ | {"TRITON_INTERPRET": "0"}, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    available = SHARED_MEMORY[arch]
    actual = dict(zip(kernels, json.loads(done.stdout), strict=True))
    predicted = {kernel: _said(kernel, available) for kernel in kernels}
    assert {str(kernel): bytes_ for kernel, bytes_ in actual.items() if bytes_ > available} == {}
    assert {
        str(kernel): (bytes_, predicted[kernel])
        for kernel, bytes_ in actual.items()
        if predicted[kernel] is not None and bytes_ > predicted[kernel]
    } == {}
    assert max(actual.values()) > available / 2  # the tiles are not needlessly small
