"""An op's cuda.cu for g++ alone: what launches, without the code of its kernels, which NVRTC compiles one by one.

The files are copied into the cache without the bodies of what runs on a GPU, and compiled over cuda_runtime/, CUDA's
runtime as far as a launch takes it. A kernel's first launch asks Python for its cubin (compile_kernels_of).
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import re
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from .. import runtime
from ..runtime import KERNELS
from . import build, nvrtc
from .included_files import included_files

HEADERS = KERNELS / "dispatch" / "cuda_runtime"
FLAGS = ("-std=c++17", "-O1", "-w", "-D__CUDACC__")

# Comments, strings and characters: what stands in them is no code.
_NO_CODE = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|(?<!\w)\'(?:\\.|[^\'\\\n])+\'', re.DOTALL)
_MARK = re.compile(r"\b__(?:global|device)__\b")
_NO_PARAMETERS = re.compile(r"\b(?:__launch_bounds__|__align__|alignas|__attribute__|decltype|operator)\s*$")
_OPENED, _CLOSED = "([{", ")]}"

_callbacks = []  # C++ calls them for as long as the process lives


def op_files(cuda: Path) -> list[Path]:
    """A cuda.cu and what it includes of this project: the host's CUDA aside, which it is not compiled over."""
    host = KERNELS / "check"
    return [file for file in included_files(cuda, (cuda.parent, KERNELS)) if not file.is_relative_to(host)]


def without_device_code(text: str) -> str:
    """The source without the bodies of functions that are for a GPU alone. Of a kernel an empty one is left, so that it
    has an address; lines keep their numbers."""
    code = _code(text)
    parts, kept_to = [], 0
    for mark in _MARK.finditer(code):
        if mark.start() < kept_to or (body := _body(code, mark)) is None:
            continue
        start, end = body
        left = " {}" if "global" in mark[0] else ";"
        parts += [text[kept_to:start].rstrip(" "), left, "\n" * code.count("\n", start, end)]
        kept_to = end
    return "".join(parts) + text[kept_to:]


def _code(text: str) -> str:
    """The text with blanks for what is no code."""
    return _NO_CODE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


def _body(code: str, mark: re.Match) -> tuple[int, int] | None:
    """From where to where the body of the function lies that the mark begins, a constructor's initializers included;
    None if that is no definition, or one that the host calls too."""
    at = mark.end()
    while code[at] != "(" or _NO_PARAMETERS.search(code, max(0, at - 40), at):
        if code[at] in ";{=":
            return None
        at = _after(code, at) if code[at] == "(" else at + 1
    line = max(code.rfind(end, 0, mark.start()) for end in ";{}\n")
    if re.search(r"\b(?:__host__|constexpr)\b", code[line + 1 : at]):
        return None
    at = _after(code, at)
    while code[at] not in ";:{=":
        at += 1
    if code[at] in ";=":
        return None
    start = at
    if code[at] == ":":  # a(b), c{d}, and then the body
        while code[at] != "{" or code[:at].rstrip()[-1].isalnum() or code[:at].rstrip()[-1] in "_>":
            at = _after(code, at) if code[at] in "({" else at + 1
    return start, _after(code, at)


def _after(code: str, at: int) -> int:
    """Behind the bracket that closes the one at this place."""
    depth = 0
    for end in range(at, len(code)):
        depth += (code[end] in _OPENED) - (code[end] in _CLOSED)
        if not depth:
            return end + 1
    raise ValueError(f"a bracket is not closed: {code[at : at + 60]!r}")


def copied(cuda: Path) -> tuple[Path, Path]:
    """(cuda.cu's copy, the folder that stands for kernels/) without device code, in the cache; the same place for the
    same files.

    Raises:
        RuntimeError: a kernel stands in the cuda.cu itself.
    """
    if "__global__" in _code(cuda.read_text()):
        raise RuntimeError(f"{cuda}: NVRTC compiles kernels that stand in a .cuh that it includes: move them there, or "
                           "declare the op with by_nvcc=True")
    files = op_files(cuda)
    key = hashlib.sha256(Path(__file__).read_bytes())
    for file in files:
        key.update(repr((file.name, file.read_bytes())).encode())
    folder = build.EXTENSIONS / "host_side" / f"{cuda.parent.name}-{key.hexdigest()[:16]}"

    def place(file: Path) -> Path:
        inside = file.is_relative_to(KERNELS)
        return file.relative_to(KERNELS) if inside else Path("op", file.relative_to(cuda.parent))

    if not folder.is_dir():
        partial = Path(tempfile.mkdtemp(prefix=f"{folder.name}-", dir=runtime.made(folder.parent)))
        try:
            for file in files:
                copy = partial / place(file)
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_text(without_device_code(file.read_text()))
            with suppress(OSError):  # another process was faster
                partial.rename(folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return folder / place(cuda), folder


def compile_kernels_of(library: Path, cuda: Path) -> None:
    """Have the kernels of an op's library compiled at their first launches, from its cuda.cu."""
    callback = _COMPILE(functools.partial(_compile, cuda))
    _callbacks.append(callback)
    ctypes.CDLL(str(library)).fused_compile_by(callback)


_COMPILE = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t
)


def _compile(cuda: Path, symbol: bytes, demangled: bytes, arch: int, answer: int, size: int) -> int:
    """host_side::Compile of cuda_runtime.h."""
    try:
        kernel = nvrtc.OpKernel(cuda, expression_of(demangled.decode()), symbol.decode(), arch)
        text, failed = nvrtc.compiled_of_op(kernel).path, 0
    except BaseException as error:  # ctypes would print it, and C++ go on
        text, failed = str(error) or type(error).__name__, 1
    encoded = text.encode()[: size - 1] + b"\0"
    ctypes.memmove(answer, encoded, len(encoded))
    return failed


def expression_of(demangled: str) -> str:
    """The kernel of "void a::kernel<float, (b::Mode)1>(float const*)": its name and template arguments."""
    depth, name = 0, demangled.removeprefix("void ")
    for at, character in enumerate(name):
        depth += (character == "<") - (character == ">")
        if character == "(" and not depth:
            return name[:at]
    return name
