"""Puzzles on what makes a kernel an op, checked by running the op, torch.library.opcheck and torch.compile.

fake       x [R, C] of any strides and dtype → what the op on pairs of columns returns, without its numbers
cpp        a CUDA text: notebook 10's kernel as an op, relu(x + multiplier * y + bias), by TORCH_LIBRARY
op         (fake, setup_context, backward) of that op

An op is registered under a new name at each attempt and removed after it; nothing of an answer stays behind. A text is
built by g++ and runs CPU tensors, with or without a GPU; its first run is in a process of its own.
"""

from __future__ import annotations

import faulthandler
import functools
import itertools
import os
import re
import select
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from numpy.lib.stride_tricks import as_strided
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves

from kernels.check.host.programs import cut_at_commas
from lessons.n11_make_it_an_op import cpp_texts, host_build
from lessons.shared import answers
from lessons.shared.puzzle import Judge, Own
from lessons.shared.puzzle.kernels_only import Computes, kernels_only

_attempts = itertools.count()


class Wrong(AssertionError):
    """What is wrong with an answer, and the hint that it gets."""

    def __init__(self, what: str, hint: str):
        super().__init__(f"{what}\nHint: {hint}")


@contextmanager
def _op(schema: str, implementation: Callable, fake: Callable | None) -> Iterator[tuple]:
    """(the library, the op) of this schema and implementation, under a name of its own."""
    library = torch.library.Library(f"lecture_puzzle_{next(_attempts)}", "DEF")
    try:
        library.define("op" + schema)
        library.impl("op", implementation, "CompositeExplicitAutograd")
        if fake is not None:
            torch.library.register_fake(f"{library.ns}::op", fake, lib=library)
        yield library, getattr(torch.ops, library.ns).op.default
    finally:
        library._destroy()


def said(error: BaseException) -> str:
    """The sentence of an error that says what happened, in one line."""
    text = re.sub(r"^opcheck\(.*?\): \w+ failed with ", "", str(error)).split("(scroll up")[0]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines)[:200]}" if lines else type(error).__name__


def passes(check: Callable, *arguments: object) -> bool | str:
    """Whether check(*arguments) raises nothing; if it does, the line of the error that says what is wrong."""
    try:
        check(*arguments)
    except Exception as error:
        return (str(error).partition("metadata: ")[2] or str(error)).split("\n")[0]
    return True


def _opcheck(op, arguments: tuple, what: str, hint: str, tests: tuple[str, ...]) -> None:
    for test in tests:
        try:
            torch.library.opcheck(op, arguments, test_utils=test)
        except Exception as error:
            raise Wrong(f"{what}: opcheck's {test}: {said(error)}", hint) from error


# -------------------------------------------------------------------------------------------------------------- fake


_answering = [False]  # while a reader's fake runs


def pair_sums(x: Tensor) -> Tensor:
    """x [R, C] → [R, C // 2], float32 and contiguous: the sums of columns 0 and 1, 2 and 3, …; an odd last one is
    left out."""
    if _answering[0]:
        raise Wrong("case the op itself: your fake calls it", "A fake describes the result without computing it.")
    pairs = x[:, : x.shape[1] // 2 * 2].float().unflatten(1, (x.shape[1] // 2, 2))
    return (pairs[..., 0] + pairs[..., 1]).contiguous().clone()


_PROPERTIES = {
    "shape": "The result of the op has the expected shape: compute it from x.shape.",
    "dtype": "The result of the op is float32, whatever the dtype of x.",
    "strides": "The op makes a new contiguous tensor. empty_like keeps the strides of x; torch.empty does not.",
    "device": "The result is on the device of x. torch.empty takes device=, and x.new_empty uses that of x.",
}


def _properties(tensor: Tensor) -> dict[str, object]:
    return {"shape": tuple(tensor.shape), "dtype": tensor.dtype, "strides": tensor.stride(), "device": tensor.device}


def _fake_cases() -> Iterator[tuple[str, Tensor]]:
    yield "4×6", torch.randn(4, 6)
    yield "3×7", torch.randn(3, 7)
    yield "4×6 bfloat16", torch.randn(4, 6).bfloat16()
    yield "4×6 float64", torch.randn(4, 6).double()
    yield "4×6 transposed", torch.randn(6, 4).T
    yield "every second row of 8×6", torch.randn(8, 6)[::2]
    yield "2×300", torch.randn(2, 300)
    yield "no rows", torch.randn(0, 6)
    yield "one column", torch.randn(4, 1)


def _fake(answer: object) -> str:
    if not callable(answer):
        raise Wrong(f"case a function: got {type(answer).__name__}", "Pass the function itself.")
    with _op("(Tensor x) -> Tensor", pair_sums, answer) as (_, op):
        for what, x in _fake_cases():
            _same_properties(what, answer, x, reference=pair_sums)
        _elsewhere(answer)
        for what, x in _fake_cases():
            hint = "A size may be unknown when the graph is made: compute with x.shape itself, not with int() of it."
            _opcheck(op, (x,), f"case {what}", hint, ("test_faketensor", "test_aot_dispatch_dynamic"))
        _stays_open(op)
    return "your fake and the op agree in shape, dtype, strides and device, for every size"


def _same_properties(what: str, answer: Callable, *arguments: object, reference: Callable) -> None:
    mode = FakeTensorMode()
    given = [mode.from_tensor(value) if isinstance(value, Tensor) else value for value in arguments]
    tensors = [value for value in given if isinstance(value, Tensor)]
    versions = [tensor._version for tensor in tensors]
    try:
        with mode:
            _answering[0] = True
            got = answer(*given)
    except Wrong:
        raise
    except Exception as error:
        hint = "A fake computes with the shape, whatever it is: there are no values to read."
        raise Wrong(f"case {what}: {said(error)}", hint) from error
    finally:
        _answering[0] = False
    if not isinstance(got, Tensor):
        raise Wrong(f"case {what}: expected a tensor, got {type(got).__name__}", "Return an empty tensor.")
    wanted, properties = _properties(reference(*arguments).contiguous()), _properties(got)
    for name, value in wanted.items():
        if properties[name] != value and (name != "strides" or got.numel()):
            raise Wrong(f"case {what}: the fake's {name}: expected {value}, got {properties[name]}", _PROPERTIES[name])
    if [tensor._version for tensor in tensors] != versions:
        raise Wrong(f"case {what}: the fake writes to an argument", "A fake describes the result, and changes nothing.")
    if any(torch._C._is_alias_of(got, tensor) for tensor in tensors):
        raise Wrong(f"case {what}: the fake returns an argument's memory", "The op makes a new tensor: torch.empty.")


def _elsewhere(answer: Callable) -> None:
    """On other devices, and in a program whose default dtype is another."""
    x, default = torch.empty(4, 6, device="meta"), torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        got = answer(x)
    finally:
        torch.set_default_dtype(default)
    with FakeTensorMode():
        second = torch.empty(4, 6, device="cpu:1")  # as cuda:1 would be: there are fake tensors of a device without it
        of_second = answer(second)
    for given, result in ((x, got), (second, of_second)):
        if result.device != given.device:
            what = f"case another device: the fake's device: expected {given.device}, got {result.device}"
            raise Wrong(what, _PROPERTIES["device"])
    if got.dtype != x.dtype:
        hint = "torch.empty takes the default dtype, which a program may set to another: give it the dtype."
        raise Wrong(f"case another default dtype: the fake's dtype: expected {x.dtype}, got {got.dtype}", hint)


def _stays_open(op) -> None:
    torch._dynamo.reset()
    counted = []

    def backend(graph, inputs):
        counted.append(graph)
        return graph

    function = torch.compile(lambda x: op(x) + 1, backend=backend, dynamic=True, fullgraph=True)
    for rows, columns in ((4, 6), (5, 10), (7, 8)):
        function(torch.randn(rows, columns))
    if len(counted) > 1:
        raise Wrong(
            f"case 4×6, 5×10, 7×8: expected one graph, got {len(counted)}",
            "The fake asked for the value of a size, so the graph is valid for this value alone.",
        )


# --------------------------------------------------------------------------------------------------------------- cpp

NAME = "add_mul_relu"
FAILS, ELEMENTS = "LECTURE_LAUNCH_FAILS", "LECTURE_ELEMENTS"  # what on_host.h reads
SECONDS, BUILDING = 30, 300  # of a text's run, and of its build on a busy machine
_ARGUMENTS = {"x": "Tensor", "bias": "Tensor", "y": "Tensor", "multiplier": "float"}
_FORM = 'TORCH_LIBRARY(mine, m) { m.def("add_mul_relu(Tensor x, …) -> Tensor"); }'


def add_mul_relu(x: Tensor, bias: Tensor, y: Tensor, multiplier: float) -> Tensor:
    """relu(x + multiplier * y + bias), x and y [..., N], bias [N]."""
    return torch.relu(x + multiplier * y + bias)


def _cpp(answer: object) -> str:
    _as_text(answer)
    library = on_host(answer)
    _apart(lambda: _as_function(getattr(library, NAME).default))
    return "the op computes, refuses what it cannot compute, and is registered for CUDA"


def _as_text(text: object) -> None:
    """What a text says without being compiled: its schema, its registrations, how it launches."""
    if not isinstance(text, str):
        raise Wrong(f"case the CUDA text: got {type(text).__name__}", "Pass the CUDA text: KERNEL_10 and yours.")
    text = re.sub(r"//[^\n]*|/\*.*?\*/|^\s*#[^\n]*", "", text, flags=re.S | re.M)  # without comments and includes
    library = re.search(r"TORCH_LIBRARY(?:_FRAGMENT)?\(\s*(\w+)", text)
    schemas = re.findall(r'\bdef\(\s*(?:TORCH_SELECTIVE_SCHEMA\()?"([^"]*)"\s*(,?)', text)
    if not library or not schemas:
        raise Wrong("case the CUDA text: it defines no schema", f"The op is defined by {_FORM}")
    _as_schema(*schemas[0])
    implementations = re.findall(r"TORCH_LIBRARY_IMPL\(\s*(\w+)\s*,\s*(\w+)\s*,", text)
    if not implementations:
        hint = "TORCH_LIBRARY_IMPL(mine, CUDA, m) names the function for CUDA tensors."
        raise Wrong("case the CUDA text: the op has a schema, but no function", hint)
    for namespace, key in implementations:
        if namespace != library[1]:
            hint = "Both macros begin with the namespace of the op."
            raise Wrong(f"case TORCH_LIBRARY_IMPL: expected {library[1]}, got {namespace}", hint)
        if key != "CUDA":
            hint = "The function launches a kernel on a GPU, so it is for CUDA tensors only."
            raise Wrong(f"case the dispatch key: expected CUDA, got {key}", hint)
    names = re.findall(r'\bimpl\(\s*"([^"]*)"', text)
    if NAME not in names:
        listed = ", ".join(names) or "no m.impl at all"
        raise Wrong(f"case m.impl: expected {NAME}, got {listed}", "The names in m.impl and m.def must be the same.")
    function = text.partition("TORCH_LIBRARY")[0]
    if re.search(r"\bTensor\s+\w+\s*\([^)]*\b(?:float|int|int64_t|long|double\s*&)\s+\w+[^)]*\)\s*\{", function):
        hint = "A float in the schema is a double in C++, and an int is an int64_t. The kernel may still take a float."
        raise Wrong("case the function: the dispatcher passes a double, and the function takes another type", hint)
    for needed, what, hint in _NEEDED:
        if not re.search(needed, function):
            raise Wrong(f"case {what}", hint)
    for name in ("bias", "y"):
        if name not in _on_device_of_x(function):
            hint = ("A kernel cannot read another device's memory, and is_cuda() is true of every GPU: "
                    f"TORCH_CHECK({name}.device() == x.device(), …);")
            raise Wrong(f"case {name} on another device than x: the function does not check that", hint)
    for body in re.split(r"^}", function, flags=re.M):
        pointers = "".join(rf"|\b{name}\s*" for name in re.findall(r"\bfloat\s*\*\s*(\w+)\s*=", body))
        is_host = not re.search("__(?:global|device)__", body)
        if is_host and re.search(rf"(?:data_ptr<float>\(\){pointers})\[", body):
            hint = "The tensors are in the GPU's memory, which the host can neither read nor write: launch the kernel."
            raise Wrong("case the function: it computes on the host", hint)
        if launch := re.search(r"<<<(.*?)>>>\s*\((.*?)\)\s*;", body, re.S):
            before, after = body[: launch.start()], body[launch.end() :]
            _as_launch(before, cut_at_commas(launch[1]), cut_at_commas(launch[2])[-1], after)


_OF_TENSOR = r"\b(\w+)\s*\.\s*(?:get_)?device\(\s*\)(?:\s*\.\s*index\(\s*\))?"


def _on_device_of_x(function: str) -> set[str]:
    """bias and y, if their device is compared with x's: at once, by way of another, in a loop over a list, or in a call
    that takes the tensor."""
    pairs = re.findall(rf"{_OF_TENSOR}\s*[=!]=\s*(\w+)\b(?!\s*::)", function)
    pairs += re.findall(rf"(\w+)\s*[=!]?=\s*{_OF_TENSOR}", function)
    compared = {name for pair in pairs for name in pair}
    loops = re.compile(r"\b(\w+)\s*:\s*\{([^}]*)\}")
    for each, names in loops.findall(function):
        pairs += [(each, name) for name in re.findall(r"\w+", names) if each in compared and name != "x"]
    reached = {"x"}
    for _ in pairs:
        reached |= {name for pair in pairs if reached & {*pair} for name in pair}
    calls = loops.sub("", function)
    return reached | {name for name in ("bias", "y") if re.search(rf"[{{(,]\s*&?{name}\s*[,)}}]", calls)}


def _as_launch(before: str, configuration: list[str], number: str, after: str) -> None:
    """A launch by what stands before it in its function, its <<<…>>>, its last argument, and what stands after it."""
    stream = configuration[3] if configuration[3:] else ""
    name = re.match(r"\w*", stream)[0]
    if not re.search(_STREAM, stream) and not (name and re.search(rf"\b{name}\b[^;]*{_STREAM}", before)):
        raise Wrong("case the stream: expected PyTorch's current stream, got the default stream", _ON_STREAM)
    if re.search(r"(?:\)|\belse)\s*(?:const\s+)?(?:\w+::)*\w*Guard\b", before):
        hint = "What is declared behind an if ends with it: declare the guard for the whole function."
        raise Wrong("case the device: the guard belongs to an if alone, and has ended before the launch", hint)
    if re.search(r"[;{}]\s*(?:\w+::)*\w*Guard\s*[({]", before):
        hint = "An object without a name ends with its statement: c10::cuda::CUDAGuard guard(x.device());"
        raise Wrong("case the device: the guard has no name, so it has ended before the launch", hint)
    behind = re.split(r"\w*Guard\b", before)[-1]
    depths = itertools.accumulate((letter == "{") - (letter == "}") for letter in behind)
    if behind != before and min(depths, default=0) < 0:
        hint = "A guard sets the device back where its block ends: launch before that."
        raise Wrong("case the device: the block of the guard ends before the launch", hint)
    if re.search(r"getCurrentCUDAStream\(\s*\).*Guard\b", before, re.S):
        hint = "The current stream is one of the current device: ask for it after the guard."
        raise Wrong("case the stream: the function asks for it before the guard has set the device", hint)
    if "Guard" in after:
        raise Wrong("case the device: the guard comes after the launch", "Set x's device first, and then launch.")
    if re.search(r"TORCH_CHECK\((?![^;]*(?:cuda|err))", after):
        hint = "By then the kernel may have read beyond the end of a tensor."
        raise Wrong("case a check: it comes after the launch", hint)
    cast = rf"\({_INT}\)|\b{_INT}\(|static_cast<\s*{_INT}\s*>"
    declared = rf"\b(?<!long ){_INT}\s+{re.escape(number)}\s*[=({{]|\bauto\s+{re.escape(number)}\s*=\s*(?:{cast})"
    if re.match(cast, number) or re.search(declared, before):
        hint = "numel() is an int64_t, and the kernel takes a long long. Use no int in between."
        raise Wrong("case 4,294,967,296 elements: an int of 32 bits cannot hold this number", hint)


_INT = r"(?:int|int32_t|uint32_t|unsigned(?:\s+int)?)"
_STREAM = r"[gG]etCurrentCUDAStream\((?!\s*\d)"
_ON_STREAM = (
    "On another stream, a kernel may run before its inputs are written: <<<…, 0, at::cuda::getCurrentCUDAStream()>>>."
)
_GUARDED = r"(?:(?:CUDA|Device)Guard(?:\s+\w+)?\s*[({]|\.set_(?:device|index)\()"
_NEEDED = (
    ("<<<", "the launch: the function has none", "A launch is add_mul_relu_kernel<<<blocks, threads, 0, …>>>(…)."),
    (rf"(?s)\b(\w+)\s*=[^;]*{_OF_TENSOR}.*{_GUARDED}[^;]*\b\1\b|{_GUARDED}[^;]*(?:{_OF_TENSOR}|device_of\(|\.device\(\))",
     "the device: a launch goes to the current device, and x may be on another one",
     "With two GPUs, x may be on the second: c10::cuda::CUDAGuard guard(x.device());"),
)


def _as_schema(schema: str, function: str) -> None:
    try:
        parsed = torch._C.parse_schema(schema)
    except RuntimeError as error:
        hint = 'The form is "name(type name, type name) -> type".'
        raise Wrong(f"case the schema: {said(error)}", hint) from error
    arguments = {argument.name: str(argument.type) for argument in parsed.arguments}
    if parsed.name != NAME or arguments != _ARGUMENTS:
        hint = "The schema lists the function's parameters in order. Its types are Tensor, float, int, bool and str."
        raise Wrong(f"case the schema: expected {NAME} of {_ARGUMENTS}, got {parsed.name} of {arguments}", hint)
    if [str(result.type) for result in parsed.returns] != ["Tensor"]:
        raise Wrong(f"case the schema: expected -> Tensor, got {len(parsed.returns)} results", "Return one tensor.")
    if any(value.alias_info for value in (*parsed.arguments, *parsed.returns)):
        raise Wrong("case the schema: Tensor(a) shares memory", "The result is new, and no argument is written.")
    if function:
        raise Wrong(
            "case m.def: it gets the function too, which is then used for all devices",
            "PyTorch assumes that such a function is made of other ops, and takes the gradient from them. "
            "TORCH_LIBRARY_IMPL(mine, CUDA, m) registers a function for CUDA alone.",
        )


namespace = host_build.namespace


def on_host(text: str) -> torch._ops._OpNamespace:
    """The ops of a CUDA text, for CPU tensors: built by g++, together with the texts that the lecture knows. Wrong: it
    cannot be built, or its registration ends the process, which is tried in another one."""
    if text not in _known_texts():
        with host_build.no_alarm():
            _apart(lambda: _built(text), "the registration", _TYPES, BUILDING)
    return _built(text)


def _built(text: str) -> torch._ops._OpNamespace:
    try:
        return host_build.load(text, _known_texts())
    except RuntimeError as error:
        first = re.search(r"error: ([^\n]*)", str(error))
        line = re.search(r"(?:^|\n)text:(\d+)", str(error))
        lines = text.splitlines()
        place = f", in `{lines[int(line[1]) - 1].strip()}`" if line and int(line[1]) <= len(lines) else ""
        header = re.search("‘(\\w+)’ is not a member of ‘at’", str(error))
        hint = f"Functions of at have a header each: #include <ATen/ops/{header[1]}.h>." if header else (
            "In C++ each name and type must be declared before it is used."
        )
        raise Wrong(f"case the compiler: {first[1] if first else said(error)}{place}", hint) from error


@functools.cache
def _known_texts() -> tuple[str, ...]:
    """The lecture's texts, and the answers that are kept beside it: all are built at once."""
    room = Path(__file__).resolve().parent
    texts = [cpp_texts.KERNEL + cpp_texts.OP]
    for answer in (answers.solutions(room)["cpp"], *answers.others(room)):
        if answer.puzzle == "cpp" and (text := re.search(r'r"""(.*?)"""', answer.source, re.S)):
            try:
                _as_text(cpp_texts.KERNEL_10 + text[1])
            except Wrong:
                continue
            texts.append(cpp_texts.KERNEL_10 + text[1])
    return tuple(dict.fromkeys(texts))


def _lectures_text() -> str:
    return _known_texts()[1]


_POINTERS = "A pointer of the kernel points to too few elements: check the shapes by TORCH_CHECK before the launch."
_TYPES = "The function's types are those of the schema: a Tensor is a const at::Tensor&, a float a double."


def _apart(check: Callable[[], object], what: str = "a run", hint: str = _POINTERS, seconds: float = SECONDS) -> None:
    """check() in a process of its own, which may end as it likes. Wrong: what it raised, or how it ended, while doing
    `what`, with the hint."""
    reading, writing = os.pipe()
    with tempfile.TemporaryFile() as errors, os.fdopen(reading) as pipe:
        child = os.fork()
        if not child:
            faulthandler.disable()
            os.dup2(errors.fileno(), 2)
            text = "ok"
            try:
                check()
            except BaseException as error:
                text = str(error) if isinstance(error, Wrong) else said(error)
            finally:
                os.write(writing, text.encode())
                os._exit(0)
        os.close(writing)
        ready, _, _ = select.select([pipe], [], [], seconds)
        if not ready:
            os.kill(child, signal.SIGKILL)
        text = pipe.read()
        _, status = os.waitpid(child, 0)
        errors.seek(0)
        printed = errors.read().decode()
    if not ready:
        raise Wrong(f"case {what}: it does not end: stopped after {seconds} s", "Does each loop come to its end?")
    if not text:
        ended = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else f"status {status}"
        reason = re.search(r"^ *reason: (.*)", printed, re.M) or re.search(r"^ *what\(\): +(.*)", printed, re.M)
        raise Wrong(f"case {what}: the process ended with {ended}{f': {reason[1]}' if reason else ''}", hint)
    if text != "ok":
        what, _, hint = text.partition("\nHint: ")
        raise Wrong(what, hint or "The function must return a tensor in each case of the puzzle.")


def _operands(*shape: int, special: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """x, bias and y of whole numbers and halves: every sum is exact."""
    generator = torch.Generator().manual_seed(len(shape))
    x, bias, y = (torch.randint(-8, 9, s, generator=generator) / 2 for s in (shape, shape[-1:], shape))
    if special:
        x[0, 0], x[0, 1], x[1, 2] = torch.nan, torch.inf, -torch.inf
    return x, bias, y


def _cpp_cases() -> Iterator[tuple[str, tuple, str]]:
    """(what, arguments, hint)"""
    order = "The kernel reads memory row by row: pass it x.contiguous(), and the same for y and bias."
    yield "4×6", (*_operands(4, 6), 0.5), (
        "Which arguments does the kernel take, and in which order? columns is the length of bias. "
        "The grid has (n + 255) / 256 blocks of 256 threads: at least one block, and one thread per element."
    )
    yield "70×37, 11 blocks", (*_operands(70, 37), -2.0), "One thread per element: (n + 255) / 256 blocks of 256."
    dimensions = "The op takes an x with any number of dimensions, also with one. The last is as long as bias."
    yield "2×3×4", (*_operands(2, 3, 4), 0.3), dimensions
    yield "6 elements of one dimension", (*_operands(6), 0.5), dimensions
    x, bias, y = _operands(6, 6)
    yield "x transposed", (x.T, bias, y, 0.5), order
    yield "y transposed", (x, bias, y.T, 0.5), order
    yield "every second element of bias", (x, _operands(2, 12)[1][::2], y, 0.5), order
    yield "no rows", (*_operands(0, 6), 0.5), "A grid of 0 blocks is an error: launch only if there are elements."
    yield "NaN and Inf", (*_operands(4, 6, special=True), 0.5), "The kernel handles them correctly: launch it as it is."


def _refused() -> Iterator[tuple[str, tuple, str]]:
    hint = "The kernel would read beyond the end of a tensor: TORCH_CHECK(…) before the launch."
    x, bias, y = _operands(4, 6)
    yield "a bias of 5 for 6 columns", (x, bias[:5], y, 0.5), hint
    yield "a bias of 12 for 6 columns", (x, torch.zeros(12), y, 0.5), hint
    yield "a bias of 1 for 6 columns", (x, bias[:1], y, 0.5), hint
    yield "a y of 2 rows for 4", (x, bias, y[:2], 0.5), hint
    same = "As many elements are not the same shape: sizes()."
    yield "a y of 6 rows for 4", (x, bias, torch.zeros(6, 6), 0.5), "x and y have one shape: compare their sizes()."
    yield "a y [6, 4] for x [4, 6]", (x, bias, y.view(6, 4), 0.5), same
    yield "a y [2, 2, 6] for x [4, 6]", (x, bias, y.view(2, 2, 6), 0.5), same
    yield "a y [4, 1, 6] for x [2, 2, 6]", (x.view(2, 2, 6), bias, y.view(4, 1, 6), 0.5), same
    for shape in ((1, 6), (6, 2)):
        what = f"a bias {list(shape)}"
        yield what, (x, torch.zeros(shape), y, 0.5), "The bias has the shape [N]: check bias.dim() too."
    dtypes = "The kernel reads float32: check scalar_type() of each tensor."
    yield "x in float64", (x.double(), bias, y, 0.5), dtypes
    yield "y in float64", (x, bias, y.double(), 0.5), dtypes
    yield "bias in float64", (x, bias.double(), y, 0.5), dtypes


def _as_function(op: Callable) -> None:
    for what, arguments, hint in _cpp_cases():
        before = [argument.clone() for argument in arguments[:3]]
        wanted = add_mul_relu(*arguments)
        try:
            got = op(*arguments)
        except RuntimeError as error:
            raise Wrong(f"case {what}: {said(error)}", hint) from error
        if any(not torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(arguments[:3], before, strict=True)):
            raise Wrong(f"case {what}: an argument was overwritten", "The result must be a new tensor: at::empty(…).")
        if any(got is argument for argument in arguments):
            raise Wrong(f"case {what}: an argument is returned", "The result must be a new tensor, an empty one too.")
        if got.numel() and got.data_ptr() == op(*arguments).data_ptr():
            hint = "A caller may still need the result of the call before: allocate with at::empty in each call."
            raise Wrong(f"case {what}: two calls return the same memory", hint)
        if got.shape != wanted.shape or not got.is_contiguous() or got.dtype != wanted.dtype:
            properties = f"expected {list(wanted.shape)}, contiguous, got {list(got.shape)}, strides {got.stride()}"
            raise Wrong(f"case {what}: {properties}", "The tensor at::empty(x.sizes(), x.options()) is contiguous.")
        _same(what, "", got, wanted, hint)
        try:
            with kernels_only({"copy_"}):  # which sees the operators that the function for the device calls
                op.redispatch(torch._C.DispatchKeySet(torch._C.DispatchKey.CPU), *arguments)
        except Computes as error:
            raise Wrong(f"case {what}: {error}", "The values are the kernel's: launch it, and return out.") from error
    for what, arguments, hint in _refused():
        try:
            op(*arguments)
        except RuntimeError:
            continue
        raise Wrong(f"case {what}: expected an error, got a result", hint)
    _as_launcher(op)


def _as_launcher(op: Callable) -> None:
    """A launch that fails, and one of more elements than 32 bits count, which on_host.h looks at and does not run."""
    os.environ[FAILS] = "1"
    try:
        op(*_operands(4, 6), 0.5)
    except RuntimeError:
        del os.environ[FAILS]
    else:
        hint = "A launch that fails reports nothing by itself and leaves out as it was: C10_CUDA_KERNEL_LAUNCH_CHECK();"
        raise Wrong("case the launch's error: the function does not check it", hint)
    x = torch.from_numpy(as_strided(np.zeros(6, np.float32), (2**31 // 6 + 1, 6), (24, 4)))  # its memory is six numbers
    os.environ[ELEMENTS] = str(x.numel())
    try:
        op(x, x[0], x, 0.5)
    except RuntimeError as error:
        if "CUDA error" in str(error):  # and not of a machine whose memory cannot hold the result
            hint = "The grid has a thread for each element, and the kernel gets n: use no int, and limit neither."
            raise Wrong(f"case {x.numel():,} elements: there are fewer threads, or another n", hint) from error


def _same(what: str, of: str, got: Tensor, wanted: Tensor, hint: str) -> None:
    wrong = ~torch.isclose(got, wanted, equal_nan=True)
    if wrong.any():
        at = tuple(wrong.nonzero()[0].tolist())
        raise Wrong(f"case {what}: {of}at {list(at)} expected {wanted[at]:g}, got {got[at]:g}", hint)


# ---------------------------------------------------------------------------------------------------------------- op

_FORMS = (
    "The function setup_context(ctx, inputs, output) keeps tensors with ctx.save_for_backward(…). "
    "backward(ctx, grad) returns one value for each of the four arguments, in the order of the schema: a gradient for "
    "each tensor, and None for the multiplier."
)
_OF = {
    "x": "The gradient of x is grad where relu let it through, and 0 elsewhere.",
    "bias": "Every row uses bias: its gradient is that of x, summed over all dimensions but the last. If x has one "
    "dimension, nothing is summed: sum(()) would sum everything, but sum_to_size does not.",
    "y": "The op multiplies y, so its gradient is multiplier times that of x. The multiplier is inputs[3].",
}
_SPECIAL = {
    "an infinite gradient": "0 · Inf is NaN: choose with torch.where instead of multiplying by a mask.",
    "NaN as the gradient": "Where relu let a value through, its gradient passes as it is, and NaN is one.",
    "NaN among the results": "PyTorch lets the gradient of a NaN pass. Stop a gradient only where out <= 0, which is "
    "false for NaN.",
}


def _op_puzzle(fake: object, setup_context: object, backward: object) -> str:
    for what, answer in {"fake": fake, "setup_context": setup_context, "backward": backward}.items():
        if not callable(answer):
            raise Wrong(f"case {what}: got {type(answer).__name__}", "Pass the three functions themselves.")
    implementation = getattr(on_host(passed("cpp")), NAME).default
    returned: list[object] = []

    def watched_setup(ctx, inputs, output) -> None:
        setup_context(ctx, inputs, output)
        for name, value in vars(ctx).items():
            if any(isinstance(leaf, Tensor) for leaf in tree_leaves(value)):
                hint = "Autograd frees and watches the tensors of ctx.save_for_backward. A float may be an attribute."
                raise Wrong(f"case setup_context: ctx.{name} holds a tensor", hint)

    def watched(ctx, grad: Tensor) -> object:
        result = backward(ctx, grad)
        returned[:] = result if isinstance(result, tuple | list) else [result]
        return result

    with _op("(Tensor x, Tensor bias, Tensor y, float multiplier) -> Tensor", implementation, fake) as (library, op):
        torch.library.register_autograd(f"{library.ns}::op", watched, setup_context=watched_setup, lib=library)
        for what, arguments, _ in _cpp_cases():
            _same_properties(what, fake, *arguments, reference=add_mul_relu)
        _elsewhere(lambda x: fake(x, x[0], x, 0.5))
        _stays_open(lambda x: op(x, x[0], x, 0.5))
        for shape in ((1, 3), (4, 3), (2, 3, 4), (3,), (0, 3)):
            what = "×".join(map(str, shape)) if shape[1:] else f"{shape[0]} elements of one dimension"
            _same_gradients(what, op, _leaves(*shape), returned)
        _same_transposed(op)
        _same_alone(op)
        _same_where_it_is_special(op)
        _sees_changes(op)
        _keeps_calls_apart(op)
        _same_again(op)
        hint = "In a graph, backward must do what it does in eager mode: compute with tensors only, and write to none."
        tests = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
        _opcheck(op, (*_leaves(4, 3), 0.5), "case 4×3", hint, tests)
        _same_compiled(op)
    return "opcheck passes, and the gradients are autograd's, with Inf and NaN too, compiled or not"


def _leaves(*shape: int) -> list[Tensor]:
    return [operand.add(0.25).requires_grad_() for operand in _operands(*shape)]  # no result is 0: relu's corner


def _incoming(shape: torch.Size) -> Tensor:
    """A gradient of the result, of both signs, and another number at each element."""
    grad = torch.arange(2.0, shape.numel() + 2)
    grad[1::2] *= -1
    return grad.view(shape)


def _gradients(function: Callable, leaves: list[Tensor], multiplier: float, grad: Tensor | None = None) -> tuple:
    out = function(*leaves, multiplier)
    grad = _incoming(out.shape) if grad is None else grad
    return torch.autograd.grad(out, leaves, grad, allow_unused=True)


def _same_gradients(what: str, op: Callable, leaves: list[Tensor], returned: list[object]) -> None:
    for multiplier in (0.5, -2.0, 0.3, 0.0):
        wanted = _gradients(add_mul_relu, leaves, multiplier)
        grad = _incoming(leaves[0].shape)
        before = grad.clone()
        try:
            gradients = _gradients(op, leaves, multiplier, grad)
        except Wrong:
            raise
        except Exception as error:
            raise Wrong(f"case {what}: {said(error)}", _OF["bias"] if len(leaves[0].shape) == 1 else _FORMS) from error
        if not torch.equal(grad, before):
            raise Wrong(f"case {what}: backward wrote into grad", "Other ops read grad too: write to no argument.")
        if len(returned) != 4:
            raise Wrong(f"case {what}: expected 4 gradients, got {len(returned)}", _FORMS)
        if returned[3] is not None:
            raise Wrong(f"case {what}: the multiplier's gradient: expected None", "A float has no gradient.")
        for name, a, b, gradient in zip(_OF, wanted, gradients, returned, strict=False):
            if b is None:
                raise Wrong(f"case {what}: {name}'s gradient: expected a tensor, got None", _OF[name])
            if gradient.shape != a.shape:  # of b autograd has seen to it
                shapes = f"expected {list(a.shape)}, got {list(gradient.shape)}"
                raise Wrong(f"case {what}: {name}'s gradient: {shapes}", _OF[name])
            _same(f"{what}, multiplier {multiplier:g}", f"{name}'s gradient: ", b, a, _OF[name])


def _same_transposed(op: Callable) -> None:
    """The op's result is transposed before the loss, so its gradient has other strides."""
    leaves, hint = _leaves(2, 3, 4), "grad may have any strides, and view() takes few of them. reshape() takes all."
    turned = [lambda *given, function=function: function(*given).transpose(0, 2) for function in (add_mul_relu, op)]
    try:
        wanted, gradients = (_gradients(function, leaves, 0.5) for function in turned)
    except RuntimeError as error:
        raise Wrong(f"case a transposed grad: {said(error)}", hint) from error
    for name, a, b in zip(_OF, wanted, gradients, strict=True):
        _same("a transposed grad", f"{name}'s gradient: ", b, a, hint)


def _same_alone(op: Callable) -> None:
    hint = "Inputs of a model need no gradient, and a frozen bias needs none: compute each gradient without the others."
    for names in (*itertools.combinations(_OF, 1), *itertools.combinations(_OF, 2)):
        leaves = [leaf.detach().requires_grad_(name in names) for name, leaf in zip(_OF, _leaves(4, 3), strict=True)]
        needing = [leaf for leaf in leaves if leaf.requires_grad]
        what = f"only {' and '.join(names)} {'need' if names[1:] else 'needs'} a gradient"
        try:
            wanted, gradients = (
                torch.autograd.grad(function(*leaves, 0.5).sum(), needing, allow_unused=True)
                for function in (add_mul_relu, op)
            )
        except Exception as error:
            raise Wrong(f"case {what}: {said(error)}", hint) from error
        for a, b in zip(wanted, gradients, strict=True):
            if b is None:
                raise Wrong(f"case {what}: expected a tensor, got None", hint)
            _same(what, "", b, a, hint)


def _same_where_it_is_special(op: Callable) -> None:
    leaves = _leaves(4, 6)
    stopped = add_mul_relu(*leaves, 0.5) <= 0
    infinite = torch.where(stopped, torch.inf, -torch.inf)
    with_nan = [operand.requires_grad_() for operand in _operands(4, 6, special=True)]
    grads = infinite, torch.full_like(infinite, torch.nan), torch.ones(4, 6)
    for what, operands, grad in zip(_SPECIAL, (leaves, leaves, with_nan), grads, strict=True):
        wanted, gradients = (_gradients(function, operands, 0.5, grad) for function in (add_mul_relu, op))
        for name, a, b in zip(_OF, wanted, gradients, strict=True):
            _same(f"4×6 with {what}", f"{name}'s gradient: ", b, a, _SPECIAL[what])


def _sees_changes(op: Callable) -> None:
    for n, name in enumerate(("x", "bias", "y", "the result")):
        leaves = _leaves(4, 3)
        wanted = torch.autograd.grad(add_mul_relu(*leaves, 0.5).sum(), leaves)
        out = op(*leaves, 0.5)
        loss = out.sum()
        with torch.no_grad():
            (*leaves, out)[n].neg_()
        try:
            gradients = torch.autograd.grad(loss, leaves)
        except RuntimeError:
            continue
        if not all(torch.allclose(a, b) for a, b in zip(wanted, gradients, strict=True)):
            raise Wrong(
                f"case {name} changed after the forward: expected autograd's error, got another gradient",
                "Autograd watches tensors that ctx.save_for_backward keeps. It does not watch attributes of ctx. "
                "A float may be an attribute.",
            )


def _keeps_calls_apart(op: Callable) -> None:
    leaves = _leaves(4, 3)
    first, _ = op(*leaves, 0.5), op(*leaves, -2.0)
    wanted = _gradients(add_mul_relu, leaves, 0.5)
    gradients = torch.autograd.grad(first, leaves, _incoming(first.shape))
    for name, a, b in zip(_OF, wanted, gradients, strict=True):
        hint = "Each call needs its own multiplier and result in its backward: keep them on ctx."
        _same("two calls before the first backward", f"{name}'s gradient: ", b, a, hint)


def _same_again(op: Callable) -> None:
    """The result, what a second backward gives, and what is left of the result."""
    leaves, hint = _leaves(4, 3), "A graph may be walked twice, and others read the result: backward changes nothing."
    out = op(*leaves, 0.5)
    before = out.detach().clone()
    try:
        first, second = (torch.autograd.grad(out, leaves, _incoming(out.shape), retain_graph=True) for _ in range(2))
    except RuntimeError as error:
        raise Wrong(f"case a second backward: {said(error)}", hint) from error
    _same("a second backward", "the result: ", out.detach(), before, hint)
    for name, a, b in zip(_OF, first, second, strict=True):
        _same("a second backward", f"{name}'s gradient: ", b, a, hint)


def _same_compiled(op: Callable) -> None:
    leaves = _leaves(4, 3)
    torch._dynamo.reset()
    compiled = torch.compile(lambda *arguments: op(*arguments) * 1, backend="aot_eager", fullgraph=True)
    for name, a, b in zip(_OF, _gradients(op, leaves, 0.5), _gradients(compiled, leaves, 0.5), strict=True):
        hint = "The function must do the same compiled and eager: it may not ask whether it is being compiled."
        _same("4×3, compiled", f"{name}'s gradient: ", b, a, hint)


PUZZLES = {"fake": Own(_fake), "cpp": Own(_cpp), "op": Own(_op_puzzle)}
JUDGE = Judge(PUZZLES)
attempt = JUDGE.attempt


def passed(name: str) -> str:
    """The reader's text, if it passed when it was last tried; else the lecture's."""
    return JUDGE.solved.get(name, _lectures_text())
