"""CUDA source that is written at run time → cubin, by NVRTC: no nvcc and no compiler of the machine's.

NVRTC is a library that comes with a torch for CUDA (pip's nvidia-cuda-nvrtc), or else with the toolkit. It is called
through ctypes, and only where the cache (cubin_files.py) has no such cubin. Its key is all that the cubin hangs on: the
source with the headers that it includes, the architecture, the version, the options. An entry that is damaged is
compiled again.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from .. import runtime
from . import cubin_files
from .cubin_files import CUBINS, EARLY, PLAIN, Compiled, Damaged
from .cuda_source import Source, headers_of

FORMAT = 1  # of the key
# The headers' functions that are not marked are for the host elsewhere, and constexpr ones among them for both.
OPTIONS = ("--std=c++17", "--device-as-default-execution-space")
# Without a CUDA build of torch any of these will do: what it compiles is looked at, and not run.
MAJORS = ("13", "12")


@dataclass(frozen=True)
class Kernel:
    """Source for an architecture, 90 for sm_90."""

    source: Source
    arch: int

    def __str__(self) -> str:
        return f"{self.source.name} for sm_{self.arch}"


def compiled(kernel: Kernel, cache: Path | None = None) -> Compiled:
    """The kernel's cubin, from the cache or compiled into it.

    Raises:
        RuntimeError: there is no NVRTC, or none of torch's version; or with the compiler's log, if it does not compile.
    """
    source = kernel.source
    headers = headers_of(source.text)
    depends = (FORMAT, kernel, headers, version(), OPTIONS)
    key = hashlib.sha256(repr(depends).encode()).hexdigest()
    stem = (cache or CUBINS) / f"{source.name}-{key[:20]}"
    if cubin_files.description_of(stem).is_file():
        with suppress(Damaged):
            return cubin_files.read(stem, kernel.arch)
    image = compile_to_cubin(kernel, headers)
    cubin_files.write(
        stem, image, kernel.arch, {"nvrtc": version(), "source": source.text}, name=source.name,
        threads=source.threads, shared=source.shared, parameters=1,
        kind=EARLY if source.waits and kernel.arch >= 90 else PLAIN,
    )
    return cubin_files.read(stem, kernel.arch)


def why_not() -> str:
    """Why NVRTC is not here and how to get it; '' if it is."""
    try:
        library()
    except RuntimeError as error:
        return str(error)
    return ""


def why_not_run(device_type: str) -> str:
    """Why what it compiles does not run for tensors on such devices here; '' if it does."""
    return runtime.why_not("gpu", device_type) or why_not()


def version() -> str:
    """NVRTC's, "13.0". It is the CUDA version that torch is built for, so that a full cache needs no NVRTC."""
    return wanted() or version_of(library())


def wanted() -> str:
    """The version that torch is built for; "" of a CPU build. The driver that runs torch loads cubins of that one; a
    newer one's it may refuse."""
    return ".".join((torch.version.cuda or "").split(".")[:2])


@functools.cache
def library() -> ctypes.CDLL:
    """NVRTC, loaded. Raises RuntimeError: there is none, or none of torch's version."""
    release, others = wanted(), []
    for file in places():
        with suppress(OSError):
            candidate = ctypes.CDLL(file)
            if release in ("", version_of(candidate)):
                return candidate
            others.append(f"{file} is of CUDA {version_of(candidate)}")
    major = release.split(".")[0]
    package = "nvidia-cuda-nvrtc" + (f"-cu{major}" if major == "12" else "") + (f"=={release}.*" if release else "")
    what = f"torch is built for CUDA {release}, and {'; '.join(others)}" if others else "NVRTC is missing"
    raise RuntimeError(f"{what}: pip install '{package}'")


def places() -> Iterator[str]:
    """Where NVRTC may be, in the order in which torch looks: pip's package, torch's own folder, the toolkit, the
    loader's path."""
    for major in (wanted().split(".")[0],) if wanted() else MAJORS:
        folders = [Path(path) / "nvidia" / name / "lib" for path in sys.path for name in (f"cu{major}", "cuda_nvrtc")]
        folders.append(Path(torch.__file__).parent / "lib")
        if nvcc := runtime.nvcc():
            folders.append(nvcc.resolve().parent.parent / "lib64")
        name = f"libnvrtc.so.{major}"
        yield from (str(folder / name) for folder in folders if (folder / name).is_file())
        yield name


def version_of(library: ctypes.CDLL) -> str:
    major, minor = ctypes.c_int(), ctypes.c_int()
    library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return f"{major.value}.{minor.value}"


def compile_to_cubin(kernel: Kernel, headers: Sequence[tuple[str, str]], more: Sequence[str] = ()) -> bytes:
    """By NVRTC, with no cache. more: options. Raises RuntimeError with its log."""
    nvrtc, source = library(), kernel.source
    nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
    program, size = ctypes.c_void_p(), ctypes.c_size_t()

    def check(result: int, log: str = "") -> None:
        if result:
            what = nvrtc.nvrtcGetErrorString(result).decode()
            raise RuntimeError(f"NVRTC does not compile {kernel}: {what}{log}")

    def read(name: str) -> bytes:
        check(getattr(nvrtc, f"nvrtcGet{name}Size")(program, ctypes.byref(size)))
        text = ctypes.create_string_buffer(size.value)
        check(getattr(nvrtc, f"nvrtcGet{name}")(program, text))
        return text.raw

    def strings(values: Iterable[str]) -> ctypes.Array:
        encoded = [value.encode() for value in values]
        return (ctypes.c_char_p * len(encoded))(*encoded)

    names, texts = strings(name for name, _ in headers), strings(text for _, text in headers)
    file = f"{source.name}.cu".encode()
    check(nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.text.encode(), file, len(names), texts, names))
    try:
        options = strings([f"--gpu-architecture=sm_{kernel.arch}", *OPTIONS, *more])
        result = nvrtc.nvrtcCompileProgram(program, len(options), options)
        if result:
            check(result, "\n" + read("ProgramLog").rstrip(b"\0").decode())
        return read("CUBIN")
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
