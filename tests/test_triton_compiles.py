"""Every op's Triton kernels compile for a GPU: where there is none, the other tests interpret them only."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from kernels import check
from kernels.check import Case
from kernels.dispatch import cubin, find, names, plan
from kernels.dtypes import DTYPES

ROOT = Path(__file__).resolve().parent.parent
# In a process of its own, without the interpreter.
COMPILE = """
import ast, json, sys
from pathlib import Path
from kernels.dispatch.cubin import Kernel, compile_into

failed = {}
for number, fields in enumerate(ast.literal_eval(sys.stdin.read())):
    kernel = Kernel(**fields)
    try:
        compile_into(kernel, Path(sys.argv[1], str(number)))
    except Exception as error:
        failed[str(kernel)] = str(error)[-500:]
print(json.dumps(failed))
"""
SHAPE = (64, 512)
OTHER_SHAPES = ((64, 1023), (3, 100_000))
MANY_ROWS = 2**23  # in place of 64: 2^32 elements


def _without_memory(tensor, rows):
    first = rows if rows and tensor.shape[0] == 64 else tensor.shape[0]
    return torch.empty((first, *tensor.shape[1:]), dtype=tensor.dtype, device="meta")


def calls(op, everything=True):
    """Calls that need different kernels, on tensors without memory: every dtype, every option, wide and huge shapes;
    or the first call in bfloat16, of which a kernel has casts that float32's has not."""

    def made(case, rows=None):
        for call in check.spec_of(op).calls(case, torch.device("cpu")):
            tensors = [_without_memory(t, rows) if isinstance(t, torch.Tensor) else t for t in call.tensors]
            yield replace(call, tensors=tuple(tensors))

    if not everything:
        yield next(made(Case(SHAPE, torch.bfloat16)))
        return
    yield from made(Case(SHAPE))
    for dtype in sorted({case.dtype for case in check.cases_of(op)} - {torch.float32}, key=str):
        yield next(made(Case(SHAPE, dtype)))
    for shape in OTHER_SHAPES:
        yield next(made(Case(shape)))
    yield next(made(Case(SHAPE), MANY_ROWS))


def kernels_of(op, monkeypatch, everything=True):
    """The specialisations that the op's launchers ask for in these calls, forward and backward."""
    declared, recorded = find(op), {}

    def note(kernel, device):
        recorded[kernel] = None
        return 0, cubin.Compiled("", "", 0, 0, 0, cubin.PLAIN)

    monkeypatch.setattr(plan, "_function", note)
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: False)  # which knows nothing of meta tensors
    for number, call in enumerate(calls(op, everything)):
        for _ in range(1 + bool(declared.gradients)):
            arguments = declared.with_tensors(check.spec_of(op).overload(call.arguments()))
            allocations = declared.allocations("", arguments)
            plan.record(declared, "", arguments, allocations)
            for tensor in call.tensors:  # then a forward may keep more
                if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
                    tensor.requires_grad_()
        if not declared.gradients:
            continue
        outputs = [torch.empty(shape, dtype=dtype, device="meta") for shape, dtype in allocations]
        count = len(declared.gradients)
        alone = [[i == j for i in range(count)] for j in range(count)] if number == 0 else []
        for needs in ([True] * count, *alone):
            backward = declared.backward_arguments(arguments, outputs, declared.differentiable(outputs), needs)
            form, prepared = declared.backward_form, declared.with_prepared("triton", backward)
            plan.record(declared, form, prepared, declared.allocations(form, prepared))
    return list(recorded)


OPS = [op for op in names() if "triton" in find(op).backends]


def must_compile(kernels, folder):
    done = subprocess.run(
        [sys.executable, "-c", COMPILE, folder], input=repr([asdict(kernel) for kernel in kernels]),
        env=os.environ | {"TRITON_INTERPRET": "0"}, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {}
    assert len(list(folder.glob("*.cubin"))) == len(kernels)


def test_a_kernel_of_each_op_compiles(monkeypatch, tmp_path):
    kernels = [kernel for op in OPS for kernel in kernels_of(op, monkeypatch, everything=False)]
    assert len({kernel.module for kernel in kernels}) >= len(OPS)
    must_compile(kernels, tmp_path)


# Products, of which full float32's are unrolled, take the assembler minutes.
@pytest.mark.slow
@pytest.mark.parametrize("op", OPS)
def test_every_kernel_compiles_in_every_dtype(op, monkeypatch, tmp_path):
    kernels = kernels_of(op, monkeypatch)
    assert len(kernels) >= 4  # a forward in four dtypes
    dtypes = {f"*{DTYPES[case.dtype].triton}:16" for case in check.cases_of(op)}
    assert dtypes <= {type_ for kernel in kernels for type_ in kernel.types}
    must_compile(kernels, tmp_path)
