"""What Triton's interpreter allows and its compiler does not, or does otherwise.

A kernel that passed is compiled, as far as Triton's own instructions, for an H200 that need not be here, by another
process and in half a second.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from torch import Tensor

from kernels import runtime
from kernels.check.isolated import source_of
from kernels.runtime import KERNELS
from lessons.shared.puzzle.reader import plain

SECONDS = 40
KINDS = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "float64": "fp64", "bool": "i1"}
PRODUCT = re.compile(r"tt\.dot .*inputPrecision = tf32 : tensor<[\dx]+xf32>")
TF32 = """right here, but tl.dot without input_precision="ieee" cuts float32 to tf32 on a GPU: 10 bits of the fraction
Hint: tl.dot(…, input_precision="ieee")"""
OTHER = re.compile(r"tt\.dot (?!.*inputPrecision = tf32 :).* : tensor<[\dx]+xf32>")
NOT_ASKED = """right here, but with PRECISION="tf32" it does not multiply float32 in tf32
Hint: give each tl.dot input_precision=PRECISION"""
CHILD = """
import importlib.util, json, sys
import triton  # before anything that has it interpret
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.compiler.errors import CompilationError
folder, name = sys.argv[1:]
spec = importlib.util.spec_from_file_location("solution", folder + "/solution.py")
solution = importlib.util.module_from_spec(spec)
spec.loader.exec_module(solution)
with open(folder + "/launches") as file:
    launches = json.load(file)
target = GPUTarget("cuda", 90, 32)
backend = make_backend(target)
options, context = backend.parse_options({}), ir.context()
ir.load_dialects(context)
backend.load_dialects(context)
results = []
for signature, constants in launches:
    source = ASTSource(getattr(solution, name), signature, constants)
    error = code = ""
    try:
        implementation, modules = backend.get_codegen_implementation(options), backend.get_module_map()
        code = str(source.make_ir(target, options, implementation, modules, context))
    except CompilationError as wrong:
        error = str(wrong)
    results.append([error, code])
with open(folder + "/results", "w") as file:
    json.dump(results, file)
"""


@contextmanager
def launches() -> Iterator[list[tuple[dict, dict]]]:
    """The interpreter's launches in here, one of each kind: ({argument: its type}, {constexpr: its value})."""
    seen: list[tuple[dict, dict]] = []
    if runtime.triton_mode() != "interpreted":
        yield seen
        return
    from triton.runtime import interpreter

    launch = interpreter.GridExecutor.__call__

    def noted(self, *arguments, **named):
        signature, constants = _signature(self.fn, arguments, named)
        if not any(signature == kinds for kinds, _ in seen):
            seen.append((signature, constants))
        return launch(self, *arguments, **named)

    with mock.patch.object(interpreter.GridExecutor, "__call__", noted):
        yield seen


def _signature(kernel: object, arguments: tuple, named: dict) -> tuple[dict[str, str], dict]:
    function = plain(kernel)
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    known = {name for name in names if "constexpr" in str(function.__annotations__.get(name, ""))}
    values = dict(zip(names, arguments, strict=False)) | {name: named[name] for name in names if name in named}
    signature = {name: "constexpr" if name in known else _kind(value) for name, value in values.items()}
    return signature, {name: values[name] for name in known if name in values}


def _kind(value: object) -> str:
    if isinstance(value, Tensor):
        name = str(value.dtype).removeprefix("torch.")
        return "*" + KINDS.get(name, name.replace("uint", "u").replace("int", "i"))
    if isinstance(value, bool):
        return "i1"
    if isinstance(getattr(value, "base", None), Tensor):  # a descriptor
        block = ", ".join(map(str, value.block_shape))
        return f"tensordesc<{_kind(value.base)[1:]}[{block}]>"
    if isinstance(value, int):
        return "i32" if -(2**31) <= value < 2**31 else "i64"
    return "fp32" if isinstance(value, float) else "constexpr"


@contextmanager
def wide_counters() -> Iterator[None]:
    """In here a number that 32 bits do not hold is an int64. A loop between bounds of int64 counts in int64 where it is
    compiled; the interpreter counts in Python's numbers, and refuses a large one beside a block of int32. What the
    compiler refuses, such a number written out, must_compile does."""
    if runtime.triton_mode() != "interpreted":
        yield
        return
    from triton import language as tl
    from triton.language.semantic import TritonSemantic

    convert = TritonSemantic.binary_op_type_checking_impl

    def widened(self, left, right, *rest, **named):
        left, right = (
            self.scalar_constant(side, tl.int64) if isinstance(side, int) and 31 < (side ^ side >> 63).bit_length() < 64
            else side for side in (left, right)
        )
        return convert(self, left, right, *rest, **named)

    with mock.patch.object(TritonSemantic, "binary_op_type_checking_impl", widened):
        yield


def must_compile(name: str, kernel: object, seen: list[tuple[dict, dict]]) -> None:
    """AssertionError if the compiler refuses one of the kernel's launches, or multiplies float32 in tf32; or if it does
    not where the kernel's PRECISION says so."""
    asked = [(kinds, values | {"PRECISION": "tf32"}) for kinds, values in seen if values.get("PRECISION") == "ieee"]
    made = _compiled(kernel, seen + asked) if seen else []
    for error, code in made[: len(seen)]:
        if error:
            *_, cause = [line.strip() for line in error.splitlines() if line.strip()]
            line = re.search(r"\bat (\d+):\d+:", error)
            place = f", in line {line[1]} of {plain(kernel).__name__}" if line else ""
            raise AssertionError(f"{name}: right here, but Triton does not compile it for a GPU: {cause[:300]}{place}")
        if PRODUCT.search(code):
            raise AssertionError(f"{name}: {TF32}")
    if any(OTHER.search(code) for _, code in made[len(seen) :]):
        raise AssertionError(f"{name}: {NOT_ASKED}")


def _compiled(kernel: object, seen: list[tuple[dict, dict]]) -> list[tuple[str, str]]:
    """(the compiler's error, the code) of each launch. RuntimeError: it could not be asked."""
    name, source = source_of(kernel)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "solution.py").write_text(source)
        (Path(folder) / "launches").write_text(json.dumps(seen))
        path = os.pathsep.join([str(KERNELS.parent), *filter(None, sys.path)])
        environment = {**os.environ, "PYTHONPATH": path, "TRITON_INTERPRET": "0", "CUDA_VISIBLE_DEVICES": ""}
        command = [sys.executable, "-c", CHILD, folder, name]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, env=environment)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"right here, but the compiler was stopped after {SECONDS} s") from None
        result = Path(folder) / "results"
        if not result.exists():
            raise RuntimeError(f"the compiler could not be asked: {done.stderr.strip().splitlines()[-1][:300]}")
        return json.loads(result.read_text())
