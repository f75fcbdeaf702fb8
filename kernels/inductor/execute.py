"""One generated kernel run on tensors: compiled on a GPU, in Triton's interpreter elsewhere.

The interpreter lacks libdevice, the library of CUDA's math functions. STAND_INS takes its place.
"""

from __future__ import annotations

import ast
import functools
import re
import warnings
from collections.abc import Callable
from itertools import zip_longest
from types import SimpleNamespace
from typing import Any

from torch import Tensor

from .. import runtime
from .compile import define
from .fake_gpu import private
from .parse import function_of, kind_of, metadata


def run_kernel(source: str, *arguments: Tensor | int) -> None:
    """Run one pointwise kernel on what `call` gives it: tensors, then numbers of elements. On a GPU it is compiled.

    CPU tensors run in Triton's interpreter. It rounds to float16 and bfloat16 in a way of its own, so kernels with
    tensors of these dtypes are refused.

    As on a GPU, a tensor with fewer elements than the kernel writes is written beyond its end.

    Raises:
        TypeError: the arguments' number or types. NotImplementedError: naming the kernel and what does not run: its
            kind, a dtype, its grid, a function of libdevice, what else Triton's interpreter lacks. RuntimeError: that
            is off.
    """
    function = function_of(source)
    if (kind := kind_of(function.name)) != "pointwise":
        raise NotImplementedError(f"{function.name}: expected a pointwise kernel, got a {kind}")
    expected = [kind for kind in metadata(function, "triton_meta", "signature").values() if kind != "constexpr"]
    if halves := {"*fp16", "*bf16"}.intersection(expected):
        raise NotImplementedError(f"{function.name}: expected no halves, got {', '.join(sorted(halves))}")
    if (types := [_type_of(argument, kind) for argument, kind in zip_longest(arguments, expected)]) != expected:
        raise TypeError(f"{function.name}: expected {', '.join(expected)}; got {', '.join(filter(None, types))}")
    launch(source, *arguments)


def launch(source: str, *arguments: Tensor | int) -> None:
    """Run a kernel of any kind, with arguments that fit its signature: what run_kernel does after its checks."""
    import triton
    from triton.runtime.errors import InterpreterError

    function = function_of(source)
    if reason := runtime.why_not("triton", arguments[0].device.type):
        raise RuntimeError(f"{function.name} does not run here: {reason}")
    grid = metadata(function, "inductor_meta", "grid_type")
    if grid not in ("Grid1D", "Grid2D"):
        raise NotImplementedError(f"{function.name}: expected a Grid1D or Grid2D, got a {grid}")
    names = [argument.arg for argument in function.args.args]
    numbers = dict(zip(names, arguments, strict=False))
    # Inductor leaves out a mask where its largest block divides the number of elements. These blocks are no larger, so
    # they divide it too. The interpreter's time goes by the program, so they are not small either.
    plain = grid == "Grid1D" and kind_of(function.name) == "pointwise"
    sizes = {"XBLOCK": 2048 if plain else 32, "YBLOCK": 32, "R0_BLOCK": 32}
    blocks = {name: size for name, size in sizes.items() if name in names}
    programs = (
        triton.cdiv(numbers[f"{axis}numel"], blocks.get(f"{axis.upper()}BLOCK", 1)) for axis in "xy"[: int(grid[4])]
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the interpreter's NumPy, of every Inf and NaN
        try:
            jit(source)[tuple(programs)](*arguments, **blocks)
        except InterpreterError as error:
            raise NotImplementedError(f"{function.name}: Triton's interpreter: {error}") from error


def _type_of(argument: Tensor | int | None, expected: str | None) -> str:
    """The type of a kernel's argument as Triton's signatures have it; '' for none."""
    if isinstance(argument, Tensor):
        return private("torch._inductor.utils", "_type_of")._type_of(argument.dtype)
    if isinstance(argument, int) and expected in ("i32", "i64"):
        return expected
    return "" if argument is None else type(argument).__name__


def aligned_arguments(source: str) -> tuple[str, ...]:
    """The arguments that Inductor has compiled as multiples of 16: addresses and numbers."""
    function = function_of(source)
    (config,) = metadata(function, "triton_meta", "configs")
    names = [argument.arg for argument in function.args.args]
    return tuple(names[place] for (place,), facts in config.items() if ["tt.divisibility", 16] in facts)


@functools.cache
def jit(source: str, aligned: tuple[str, ...] | None = None) -> Any:
    """The kernel with Triton's own decorator in place of Inductor's, with stand-ins if it is to be interpreted.

    aligned: the arguments that it may be compiled for as multiples of 16, where they are so; by default all.
    """
    import triton
    import triton.language as tl
    from torch._inductor.runtime import triton_helpers as helpers

    function = function_of(source)
    types = metadata(function, "triton_meta", "signature")
    libraries = {"libdevice": helpers.libdevice, "tl_math": helpers.math}
    if runtime.triton_mode() == "interpreted":
        attributes = (node for node in ast.walk(function) if isinstance(node, ast.Attribute))
        called = {node.attr for node in attributes if ast.unparse(node.value) in libraries}
        if missing := sorted(called - STAND_INS.keys()):
            raise NotImplementedError(f"{function.name}: no stand-in for libdevice's {', '.join(missing)}")
        libraries = dict.fromkeys(libraries, SimpleNamespace(**STAND_INS))
    function.decorator_list = [ast.Name("jit", ast.Load())]
    for argument in function.args.args:  # a number would be 32 bits wide wherever it fits
        if (kind := types.get(argument.arg)) in ("i32", "i64"):
            argument.annotation = ast.Attribute(ast.Name("tl", ast.Load()), f"int{kind[1:]}", ast.Load())
    text = ast.unparse(function)
    if runtime.triton_mode() == "interpreted":
        # The interpreter makes a tensor of a plain literal, and in triton 3.6 a loop up to a tensor never ends.
        text = re.sub(r"^( +r0_numel) = (\d+)$", r"\1: tl.constexpr = \2", text, flags=re.MULTILINE)
    names = [name for name, kind in types.items() if kind != "constexpr"]
    decorator = triton.jit(
        do_not_specialize_on_alignment=[name for name in names if aligned is not None and name not in aligned]
    )
    namespace = {"jit": decorator, "tl": tl, "triton_helpers": helpers, **libraries}
    return define(text, function.name, namespace)


def _of_triton(name: str) -> Callable:
    def stand_in(*arguments):
        import triton.language as tl

        return getattr(tl, name)(*arguments)  # looked up now: while a kernel runs the interpreter replaces it

    return stand_in


def _signbit(x):
    import triton.language as tl

    return x.to(tl.core.get_int_dtype(x.dtype.primitive_bitwidth, signed=True), bitcast=True) < 0


# libdevice's functions in terms that the interpreter knows; error 1e-7, absolute for the last three.
_SAME = ("abs", "ceil", "cos", "erf", "exp", "exp2", "floor", "log", "log2", "rsqrt", "sin", "sqrt")
STAND_INS: dict[str, Callable] = {name: _of_triton(name) for name in _SAME}
STAND_INS["signbit"] = _signbit
STAND_INS["isnan"] = lambda x: x != x
STAND_INS["tanh"] = lambda x: 1.0 - 2.0 / (STAND_INS["exp"](2.0 * x) + 1.0)
STAND_INS["expm1"] = lambda x: STAND_INS["exp"](x) - 1.0
STAND_INS["log1p"] = lambda x: STAND_INS["log"](x + 1.0)
