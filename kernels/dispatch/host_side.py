"""An op's cuda.cu for g++ alone: what launches, without the code of its kernels, which NVRTC compiles one by one.

The files are copied into the cache without the bodies of what runs on a GPU, and compiled over cuda_runtime/, CUDA's
runtime as far as a launch takes it. A kernel's first launch asks Python for its cubin (compile_kernels_of).
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import re
from pathlib import Path

from ..runtime import KERNELS
from . import build, cubin_files, nvrtc
from .included_files import included_files

HEADERS = KERNELS / "dispatch" / "cuda_runtime"
FLAGS = ("-std=c++17", "-O1", "-Werror=return-type", "-D__CUDACC__")

# Comments, strings and characters: what stands in them is no code.
_NO_CODE = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|(?<!\w)\'(?:\\.|[^\'\\\n])+\'', re.DOTALL)
_DIRECTIVE = re.compile(r"^[ \t]*#[ \t]*(\w*)(?:\\\n|[^\n])*", re.MULTILINE)
_OPERATOR = re.compile(r"\boperator\s*(?:\(\s*\)|\[\s*\]|[^\w\s(]+)")
_BEHIND_PARAMETERS = re.compile(
    r"(?:\s|const\b|volatile\b|noexcept\b(?:\s*\(.*\))?|override\b|final\b|&|\[\[.*\]\])*(?:->.*)?", re.DOTALL
)
_OF_NO_KERNEL = re.compile(r"\bconst(?:expr)?\b|\b(?:struct|class|union|enum)\b")
_MARK = re.compile(r"\b__(?:global|device)__\b")
_NO_PARAMETERS = re.compile(r"\b(?:__launch_bounds__|__align__|alignas|__attribute__|decltype)\s*$")
_OPENED, _CLOSED = "([{", ")]}"

_callbacks = []  # C++ calls them for as long as the process lives
INTERRUPTED = 2  # host_side::interrupted


def op_files(cuda: Path) -> list[Path]:
    """A cuda.cu and what it includes of this project: the host's CUDA aside, which it is not compiled over."""
    host = KERNELS / "check"
    return [file for file in included_files(cuda, (cuda.parent, KERNELS)) if not file.is_relative_to(host)]


def without_device_code(text: str) -> str:
    """The source without the bodies of functions that are for a GPU alone. A kernel leaves an empty one, so that it
    has an address; lines keep their numbers.

    Raises:
        ValueError: a body that cannot be told from what is around it (a macro in its place, an #if across its
            brackets), or a variable of the GPU's.
    """
    code = _code(text)
    if constant := re.search(r"\b__constant__\b[^;{=]*", code):
        raise ValueError(f"a variable, of which each kernel would have its own: {constant[0].strip()!r}")
    parts, kept_to = [], 0
    for mark in _MARK.finditer(code):
        if mark.start() < kept_to or (body := _body(code, mark)) is None:
            continue
        start, end = body
        _check_branches(text, code, start, end)
        left = " {}" if "global" in mark[0] else ";"
        parts += [text[kept_to:start].rstrip(" "), left, "\n" * code.count("\n", start, end)]
        kept_to = end
    return "".join(parts) + text[kept_to:]


def _blank(match: re.Match) -> str:
    return re.sub(r"[^\n]", " ", match[0])


def _code(text: str) -> str:
    """The text with blanks for what is no code."""
    return _DIRECTIVE.sub(_blank, _NO_CODE.sub(_blank, text))


def _body(code: str, mark: re.Match) -> tuple[int, int] | None:
    """From where to where the body of the function lies that the mark begins, a constructor's initializers included;
    None if that is no definition, or one that the host calls too."""
    at = mark.end()
    while code[at] != "(" or _NO_PARAMETERS.search(code, max(0, at - 40), at):
        if code[at] in ";{" or re.match(r"[^=<>!]=[^=]", code[at - 1 : at + 2]):
            if not _OF_NO_KERNEL.search(code, code.rfind("\n", 0, mark.start()) + 1, at):
                raise ValueError(f"a variable, of which each kernel would have its own: {code[mark.start() : at]!r}")
            return None
        name = _OPERATOR.match(code, at)
        at = name.end() if name else _after(code, at) if code[at] == "(" else at + 1
    line = max(code.rfind(end, 0, mark.start()) for end in ";{}")
    if re.search(r"\b(?:__host__|constexpr)\b", code[line + 1 : at]):
        return None
    at = behind = _after(code, at)
    while code[at] not in ";{=" and not (code[at] == ":" and ":" not in (code[at - 1], code[at + 1])):
        at = _after(code, at) if code[at] in "([" else at + 1
    if code[at] in ";=":
        return None
    if not _BEHIND_PARAMETERS.fullmatch(code, behind, at):
        raise ValueError(f"{code[behind:at].strip()!r} between a function's parameters and its body")
    start = at
    if code[at] == ":":  # a(b), c{d}, and then the body
        while code[at] != "{" or code[:at].rstrip()[-1].isalnum() or code[:at].rstrip()[-1] in "_>":
            at = _after(code, at) if code[at] in "({" else at + 1
    return start, _after(code, at)


def _check_branches(text: str, code: str, start: int, end: int) -> None:
    """ValueError if a body's brackets hang on an #if: which of its branches is compiled is not known here."""
    depths = []
    for directive in _DIRECTIVE.finditer(_NO_CODE.sub(_blank, text), start, end):
        inside = code[start : directive.start()]
        depth = sum(map(inside.count, _OPENED)) - sum(map(inside.count, _CLOSED))
        if directive[1].startswith("if"):
            depths.append(depth)
        elif directive[1] in ("else", "elif", "endif") and (not depths or depths[-1] != depth):
            where = directive[0].strip()
            raise ValueError(f"brackets that are opened in a branch of an #if and closed outside: {where!r}")
        if directive[1] == "endif":
            depths.pop()
    if depths:
        raise ValueError("an #if in a body of device code that ends outside of it")


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
        RuntimeError: a kernel stands in the cuda.cu itself; a file, named, in which device code cannot be told from the
            host's; nothing can be written to the cache.
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

    for file in files:
        if not (copy := folder / place(file)).is_file():
            try:
                cubin_files.put(copy, without_device_code(file.read_text()).encode())
            except (ValueError, IndexError) as error:
                raise RuntimeError(f"{file}: what is for a GPU cannot be told from what is not: {error}") from None
    return folder / place(cuda), folder


def compile_kernels_of(library: Path, cuda: Path) -> None:
    """Have the kernels of an op's library compiled at their first launches, from its cuda.cu."""
    callback = _COMPILE(functools.partial(_compile, cuda, nvrtc.text_of(cuda)))
    _callbacks.append(callback)
    ctypes.CDLL(str(library)).fused_compile_by(callback)


_COMPILE = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t
)


def _compile(cuda: Path, loaded: str, symbol: bytes, demangled: bytes, arch: int, answer: int, size: int) -> int:
    """host_side::Compile of cuda_runtime.h."""
    try:
        if nvrtc.text_of(cuda) != loaded:
            raise RuntimeError(f"{cuda}, or what it includes, was changed since this process loaded it: start it anew")
        kernel = nvrtc.OpKernel(cuda, expression_of(demangled.decode()), symbol.decode(), arch)
        text, failed = nvrtc.compiled_of_op(kernel).path, 0
    except BaseException as error:  # ctypes would print it, and C++ go on
        text, failed = str(error) or type(error).__name__, INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
    encoded = text.encode()[: size - 1].decode(errors="ignore").encode() + b"\0"
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
