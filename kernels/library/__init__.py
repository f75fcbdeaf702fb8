"""The ops without Python: a library that an exported program's process loads, over PyTorch's stable ABI.

    python -m kernels.library            writes ops.cpp anew from the declarations

ops.cpp has of each op with code for the CPU its schema, what it allocates, and a call of its cpu.cpp, the same that
backend="cpp" runs from Python. `build` makes the library. For a GPU it has the same ops' cuda.cu, which backend="cuda"
runs. Ops of one model (ops/dlrm/packaged.py) bring their own C++.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from .. import dispatch
from ..dispatch.op import Op
from ..runtime import KERNELS, compiler_program, nvcc

FOLDER = Path(__file__).resolve().parent
GENERATED = FOLDER / "ops.cpp"

PARAMETERS = {
    "Tensor": "const Tensor&", "Tensor?": "std::optional<Tensor>", "int": "int64_t", "float": "double", "bool": "bool",
    "str": "std::string",
}  # fmt: skip
# A schema's types that are another one's to torch, and so to C++.
AS_TORCH = {
    "Tensor(a!)": "Tensor", "Ragged": "Tensor", "Ragged?": "Tensor?", "SymInt": "int", "Length": "int",
}  # fmt: skip


class LibraryError(RuntimeError):
    """An op that the library cannot have, or a build that failed."""


class Expression:
    """An integer of C++, of a call's arguments."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __add__(self, other: Expression | int) -> Expression:
        return Expression(f"({self.text} + {_text(other)})")

    def __sub__(self, other: Expression | int) -> Expression:
        return Expression(f"({self.text} - {_text(other)})")

    def __mul__(self, other: Expression | int) -> Expression:
        return Expression(f"({self.text} * {_text(other)})")

    __radd__, __rmul__ = __add__, __mul__

    def __bool__(self) -> bool:
        raise LibraryError(f"a shape that hangs on whether {self.text} holds")

    def __index__(self) -> int:
        raise LibraryError(f"a shape that needs the value of {self.text}")


class Shape:
    """The shape of an argument, of any number of dimensions: as a whole, or one size of it."""

    def __init__(self, tensor: str) -> None:
        self.tensor = tensor

    def __getitem__(self, i: int) -> Expression:
        if not isinstance(i, int):
            raise LibraryError(f"a part of {self.tensor}'s shape")
        return Expression(f"{self.tensor}.size({i})")

    def __iter__(self) -> Iterator:
        raise LibraryError(f"a shape that takes {self.tensor}'s apart")

    def __len__(self) -> int:
        raise LibraryError(f"a shape that needs {self.tensor}'s number of dimensions")


class StandIn:
    """A tensor of a call, of which a declaration's `outputs` may ask shape and dtype."""

    def __init__(self, name: str) -> None:
        self.shape, self.dtype, self._name = Shape(name), Expression(f"{name}.scalar_type()"), name

    def __getattr__(self, what: str) -> None:
        raise LibraryError(f"a shape that needs {self._name}.{what}")

    def __getitem__(self, i: object) -> None:
        raise LibraryError(f"a shape that needs values of {self._name}")


def _text(value: Expression | int) -> str:
    if isinstance(value, Expression):
        return value.text
    if type(value) is not int:
        raise LibraryError(f"{value!r} as a size")
    return str(value)


def _sizes(shape: Shape | Sequence) -> str:
    if isinstance(shape, Shape):
        return f"{shape.tensor}.sizes()"
    if not isinstance(shape, tuple | list):  # a string could be taken apart, too
        raise LibraryError(f"{shape!r} as a shape")
    return "{" + ", ".join(map(_text, shape)) + "}"


def _dtype(dtype: Expression | torch.dtype) -> str:
    if isinstance(dtype, Expression):
        return dtype.text
    names = {torch.bool: "Bool", torch.int32: "Int", torch.int64: "Long", torch.float32: "Float"}
    if dtype not in names:
        raise LibraryError(f"{dtype} as a dtype")
    return f"ScalarType::{names[dtype]}"


def function(op: Op) -> str:
    """The op as a function of C++. LibraryError: a type or an output shape that it cannot express."""
    form = op.forms[""]
    kinds = [AS_TORCH.get(argument.type, argument.type) for argument in form.arguments]
    for argument, kind in zip(form.arguments, kinds, strict=True):
        if kind not in PARAMETERS:
            raise LibraryError(f"{op.name}: {argument.name} is a {argument.type}")
    if op.reports:
        raise LibraryError(f"{op.name}: it reports to Python")
    names = {a.name: StandIn(a.name) if a.is_tensor else Expression(a.name) for a in form.arguments}
    try:
        outputs = [(name, *op._output_shapes[name](names)) for name in op.outputs]
        outputs = [(f"made_{name}", _sizes(shape), _dtype(dtype)) for name, shape, dtype in outputs]
    except LibraryError as error:
        raise LibraryError(f"{op.name}: {error}") from None
    first = next(a.name for a, kind in zip(form.arguments, kinds, strict=True) if kind == "Tensor")
    results = ", ".join(["Tensor"] * len(outputs))
    result = "void" if not outputs else "Tensor" if len(outputs) == 1 else f"std::tuple<{results}>"
    parameters = ", ".join(f"{PARAMETERS[k]} {a.name}" for a, k in zip(form.arguments, kinds, strict=True))
    lines = [f"{result} {op.name}({parameters}) {{", f'    Call call("{op.name}", fused_op_{op.name}.forward);']
    lines += [
        f"    call.give({a.name}, Use::{'written' if i in form.mutated else 'read'});"
        if a.is_tensor
        else f"    call.give({a.name});"
        for i, a in enumerate(form.arguments)
    ]
    for name, sizes, dtype in outputs:
        lines += [f"    Tensor {name} = new_empty({first}, {sizes}, {dtype});", f"    call.give({name}, Use::written);"]
    returned = ", ".join(name for name, _, _ in outputs)
    back = [] if not outputs else [f"    return {returned};" if len(outputs) == 1 else f"    return {{{returned}}};"]
    return "\n".join([*lines, "    call.run();", *back, "}"])


def ops() -> list[Op]:
    """Those with code for the CPU."""
    return [op for op in map(dispatch.find, dispatch.names()) if "cpp" in op.backends]


def generated() -> str:
    """What ops.cpp is to say."""
    every = ops()
    tables = ", ".join(f"fused_op_{op.name}" for op in every)
    lines = [
        "// Written by python -m kernels.library from the ops' declarations.", '#include "stable_call.h"', "",
        f'extern "C" fused::Table {tables};', "", "namespace {", "", "\n\n".join(map(function, every)), "",
        "}  // namespace", "", "STABLE_TORCH_LIBRARY_FRAGMENT(fused_kernels, library) {", "    Registration ours;",
        *(f'    ours.add("{op.forms[""].name}." BACKEND, "{op.forms[""].schema}", TORCH_BOX(&{op.name}));'
          for op in every),
        "}", "",
    ]  # fmt: skip
    return "\n".join(lines)


def sources(gpu: str | None = None) -> list[Path]:
    """What the library is compiled from. LibraryError: an op that takes a workspace."""
    folders = dict.fromkeys(op.folder for op in ops())
    return [GENERATED, *(_without_workspace(KERNELS / "ops" / f / ("cuda.cu" if gpu else "cpu.cpp")) for f in folders)]


def _without_workspace(source: Path) -> Path:
    """The source. LibraryError: its forward takes a Workspace, which stable_call.h has none of."""
    if re.search(r"\bforward\([^()]*\bWorkspace\b", source.read_text()):
        raise LibraryError(f"{source.parent.name}: forward in {source.name} takes a workspace")
    return source


def build(to: Path, gpu: str | None = None, more: Sequence[Path] = ()) -> None:
    """Compile the library for this torch and x86-64-v3, or for a GPU (sm_90, say), whose CUDA's runtime is inside.

    more: C++ files that are part of it too, with ops of one model.

    LibraryError: there is no compiler, or what it said.
    """
    torch_folder, own = Path(torch.__file__).parent, [*sources(gpu), *more]
    include = [FOLDER, KERNELS, *dict.fromkeys(source.parent for source in own), torch_folder / "include"]
    try:
        compiler, libraries = compiler_program(), ["-ltorch_cpu"]
    except RuntimeError as error:
        raise LibraryError(str(error)) from None
    host = ["-march=x86-64-v3", "-fPIC", "-fvisibility=hidden", "-Wno-unknown-pragmas"]
    command = [compiler, "-std=c++20", *host, "-Wl,--no-as-needed"]
    if gpu:
        if (cuda := nvcc()) is None:
            raise LibraryError("nvcc is missing, which compiles for a GPU")
        command = [str(cuda), "-std=c++20", "-ccbin", compiler, f"-arch={gpu}", "-DUSE_CUDA"]
        command += [f"-Xcompiler={','.join(host)}", "-Xlinker=--no-as-needed"]
        libraries.append("-ltorch_cuda")
    command += [
        "-O3", "-shared", *map(str, own), *(f"-I{folder}" for folder in include), f"-L{torch_folder / 'lib'}",
        *libraries, "-ldl", "-o", str(to),
    ]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        raise LibraryError(f"{command[0]}: {error.strerror}") from None
    if done.returncode:
        raise LibraryError(f"{command[0]} ended with exit status {done.returncode}:\n{done.stderr[-4000:]}")
