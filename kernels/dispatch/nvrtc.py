"""CUDA source → cubin, by NVRTC: no nvcc and no compiler of the machine's. A Kernel's source is written at run time; an
OpKernel's is the op's kernel.cuh, of whose templates it is an instance.

NVRTC (nvrtc_library.py) is called through ctypes, and only where the cache (cubin_files.py) has no such cubin. Its key
is all that the cubin hangs on: the source with the headers that it includes, the architecture, the version, the
options. An entry that is damaged is compiled again.
"""

from __future__ import annotations

import ctypes
import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from .. import nvrtc_library, runtime
from ..runtime import KERNELS
from . import cubin_files
from .cubin_files import CUBINS, EARLY, PLAIN, Compiled, Damaged
from .cuda_source import INCLUDE, Source, headers_of
from .included_files import included_files

FORMAT = 1  # of the key
# The headers' functions that are not marked are for the host elsewhere, and constexpr ones among them for both.
OPTIONS = ("--std=c++17", "--device-as-default-execution-space")
CURES = {
    "cannot determine which instance": "Kernels of one name differ in their template arguments: rename one.",
    "is undefined": "What a kernel needs, its types too, stands in a .cuh that cuda.cu includes.",
}


@dataclass(frozen=True)
class Kernel:
    """Source for an architecture, 90 for sm_90."""

    source: Source
    arch: int

    def __str__(self) -> str:
        return f"{self.source.name} for sm_{self.arch}"


@dataclass(frozen=True)
class OpKernel:
    """A kernel of an op's cuda.cu, for an architecture.

    expression: its name in C++, "add_relu::forward_kernel<float, 1, unsigned int>"; symbol: the same as compilers name
    it, by which the cubin has it.
    """

    file: Path
    expression: str
    symbol: str
    arch: int

    def __str__(self) -> str:
        return f"{self.expression} for sm_{self.arch}"


def compiled(kernel: Kernel, cache: Path | None = None) -> Compiled:
    """The kernel's cubin, from the cache or compiled into it.

    Raises:
        RuntimeError: there is no NVRTC, or none of torch's version; or with the compiler's log, if it does not compile.
    """
    source = kernel.source
    headers = headers_of(source.text)
    return _cached(
        source.name, (kernel, headers), kernel.arch, lambda: compile_to_cubin(kernel, headers), cache,
        {"source": source.text}, name=source.name, threads=source.threads, shared=source.shared, parameters=1,
        kind=EARLY if source.waits and kernel.arch >= 90 else PLAIN,
    )


def compiled_of_op(kernel: OpKernel, cache: Path | None = None) -> Compiled:
    """The same of an op's kernel. Who launches it knows its threads, its shared memory and its parameters."""
    depends = (kernel.expression, kernel.symbol, kernel.arch, text_of(kernel.file))
    return _cached(
        re.match(r"(?:\w+::)*(\w+)", kernel.expression)[1], depends, kernel.arch, lambda: _compile_op_kernel(kernel),
        cache, {"kernel": kernel.expression}, name=kernel.symbol, threads=0, shared=0, parameters=0, kind=PLAIN,
    )


def _cached(
    stem: str, depends: tuple, arch: int, compile_it: Callable[[], bytes], cache: Path | None, about: dict[str, str],
    **launch,
) -> Compiled:
    key = hashlib.sha256(repr((FORMAT, *depends, version(), OPTIONS)).encode()).hexdigest()
    path = (cache or CUBINS) / f"{stem}-{key[:20]}"
    if cubin_files.description_of(path).is_file():
        with suppress(Damaged):
            return cubin_files.read(path, arch)
    cubin_files.write(path, compile_it(), arch, {"nvrtc": version(), **about}, **launch)
    return cubin_files.read(path, arch)


def why_not() -> str:
    """Why NVRTC is not here and how to get it; '' if it is."""
    return nvrtc_library.why_not(runtime.nvcc())


def version() -> str:
    """NVRTC's, "13.0". It is the CUDA version that torch is built for, so that a full cache needs no NVRTC."""
    return nvrtc_library.wanted() or nvrtc_library.version_of(nvrtc_library.library(runtime.nvcc()))


def compile_to_cubin(kernel: Kernel, headers: Sequence[tuple[str, str]], more: Sequence[str] = ()) -> bytes:
    """By NVRTC, with no cache. more: options. Raises RuntimeError with its log."""
    source = kernel.source
    arch = f"{kernel.arch}{'a' * source.specific}"
    return _compile(str(kernel), source.name, source.text, arch, headers, more)[0]


def _compile_op_kernel(kernel: OpKernel) -> bytes:
    include = [f"--include-path={folder}" for folder in (kernel.file.parent, KERNELS)]
    text, name = _kernels_of(kernel.file), kernel.file.parent.name
    try:
        image, symbol = _compile(str(kernel), name, text, str(kernel.arch), (), include, kernel.expression)
    except RuntimeError as error:
        cures = (cure for what, cure in CURES.items() if what in str(error))
        raise RuntimeError("\n".join((str(error), *cures))) from None
    if symbol != kernel.symbol:
        raise RuntimeError(f"{kernel}: NVRTC names it {symbol}, the host's compiler {kernel.symbol}")
    return image


def _kernels_of(file: Path) -> str:
    """The headers with kernels that a cuda.cu includes: .cuh, but for what it is called by."""
    names = [name for name in INCLUDE.findall(file.read_text()) if name.endswith(".cuh")]
    return "".join(f'#include "{name}"\n' for name in names if not name.startswith("dispatch/"))


def text_of(file: Path) -> str:
    """A hash of a cuda.cu and of all that its kernels include."""
    text = hashlib.sha256()
    for part in included_files(file, (file.parent, KERNELS)):
        text.update(repr((part.name, part.read_bytes())).encode())
    return text.hexdigest()


def _compile(
    what: str, name: str, text: str, arch: str, headers: Sequence[tuple[str, str]], more: Sequence[str],
    expression: str = "",
) -> tuple[bytes, str]:
    """(the cubin, the symbol of the kernel that the expression names in it)."""
    nvrtc = nvrtc_library.library(runtime.nvcc())
    nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
    program, size, symbol = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_char_p()

    def check(result: int, log: str = "") -> None:
        if result:
            why = nvrtc.nvrtcGetErrorString(result).decode()
            raise RuntimeError(f"NVRTC does not compile {what}: {why}{log}")

    def read(part: str) -> bytes:
        check(getattr(nvrtc, f"nvrtcGet{part}Size")(program, ctypes.byref(size)))
        content = ctypes.create_string_buffer(size.value)
        check(getattr(nvrtc, f"nvrtcGet{part}")(program, content))
        return content.raw

    def strings(values: Iterable[str]) -> ctypes.Array:
        encoded = [value.encode() for value in values]
        return (ctypes.c_char_p * len(encoded))(*encoded)

    names, texts = strings(header for header, _ in headers), strings(content for _, content in headers)
    file = f"{name}.cu".encode()
    check(nvrtc.nvrtcCreateProgram(ctypes.byref(program), text.encode(), file, len(names), texts, names))
    try:
        if expression:
            check(nvrtc.nvrtcAddNameExpression(program, expression.encode()))
        options = strings([f"--gpu-architecture=sm_{arch}", *OPTIONS, *more])
        result = nvrtc.nvrtcCompileProgram(program, len(options), options)
        if result:
            check(result, "\n" + read("ProgramLog").rstrip(b"\0").decode())
        if expression:
            check(nvrtc.nvrtcGetLoweredName(program, expression.encode(), ctypes.byref(symbol)))
        return read("CUBIN"), (symbol.value or b"").decode()
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
