"""What is loaded behind the ops' overloads: the C++ core, and the libraries of the ops' cuda.cu and cpu.cpp."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch._ops import OpOverload

from ..runtime import KERNELS
from . import allocation, build, host_side
from .build import load_library

NVCC_FLAGS = ("-O3",)
CORE = KERNELS / "dispatch" / "core.cpp"

_core: list[Path] = []
_on_host = False


def load_core() -> None:
    """Load what stands behind every op's overloads (core.cpp), built with g++ alone: no CUDA toolkit is needed.

    Raises:
        RuntimeError: no C++ compiler; or with its errors, if the build fails. The next call tries again.
    """
    if not _core:
        include = (KERNELS, CORE.parent)
        _core.append(load_library("core", CORE, cache=build.EXTENSIONS, include=include, flags=("-O2",)))
        # The core allocates by itself unless it is told to call allocation.empty, as fused_kernels::_allocate.
        allocation.tell(lambda replaced: torch.ops.fused_kernels._replace_allocations(replaced))


@functools.cache
def from_python(overload: OpOverload) -> Callable[..., object]:
    """The overload of an op that returns tensors, as Python is to call it once the core is loaded: the same, for less
    than torch.ops takes; where Python's headers were not there when the core was built, the overload itself."""
    bind = getattr(ctypes.PyDLL(str(_core[0])), "fused_kernels_from_python", None)
    if bind is None:
        return overload
    bind.restype, bind.argtypes = ctypes.py_object, [ctypes.py_object, ctypes.c_char_p, ctypes.c_char_p]
    return bind(overload, overload._schema.name.encode(), overload._schema.overload_name.encode())


def core_library() -> Path:
    """The core's library, loaded. Raises as load_core does."""
    load_core()
    return _core[0]


def core_is_loaded() -> bool:
    """Whether load_core has been called and succeeded."""
    return bool(_core)


def load_op(op: str, *, by_nvcc: bool = False) -> Path:
    """The library of kernels/ops/<op>/cuda.cu: by g++, and its kernels by NVRTC at their first launches; or by nvcc
    with all its kernels, for every GPU of this machine."""
    library = load_library(_name(op), **_build_of(op, by_nvcc))
    if not by_nvcc:
        host_side.compile_kernels_of(library, _cuda(op))
    return library


def op_is_built(op: str, *, by_nvcc: bool = False) -> bool:
    """Whether `load_op` finds the library in the cache, so that it needs no compiler."""
    try:
        return build.library_path(_name(op), **_build_of(op, by_nvcc)).exists()
    except RuntimeError:  # nothing can be written there, so nothing can be built there either
        return False


def _name(op: str) -> str:
    """The library's: the op's, or the last part of a folder elsewhere."""
    return Path(op).name


def _cuda(op: str) -> Path:
    return KERNELS / "ops" / op / "cuda.cu"


def _build_of(op: str, by_nvcc: bool) -> dict:
    if not by_nvcc:
        source, root = host_side.copied(_cuda(op))
        include, flags = (source.parent, root, host_side.HEADERS, KERNELS), host_side.FLAGS
        about = {"cache": build.EXTENSIONS, "include": include, "flags": flags, "environment": {}, "as_cpp": True}
        return {"source": source, **about}
    capabilities = {torch.cuda.get_device_capability(gpu) for gpu in range(torch.cuda.device_count())}
    architectures = ";".join(f"{major}.{minor}" for major, minor in sorted(capabilities))
    source = _cuda(op)
    return {
        "source": source,
        "cache": build.EXTENSIONS,
        "include": (source.parent, KERNELS),
        "flags": NVCC_FLAGS,
        "environment": {"TORCH_CUDA_ARCH_LIST": architectures},
    }


def load_op_for_host(op: str) -> Path:
    """The same by g++ over check/host/cuda_on_host.h: the library then runs CPU tensors. Slow; for tests."""
    source = _cuda(op)
    flags = ("-std=c++20", "-O1", "-Wno-unknown-pragmas")
    include = (source.parent, KERNELS)
    return load_library(f"{_name(op)}_host", source, cache=build.EXTENSIONS, include=include, flags=flags, as_cpp=True)


def load_op_for_cpu(op: str) -> Path:
    """The library of kernels/ops/<op>/cpu.cpp: what backend="cpp" runs for CPU tensors."""
    source = KERNELS / "ops" / op / "cpu.cpp"
    flags = ("-std=c++20", "-O3", "-Wno-unknown-pragmas")
    include = (source.parent, KERNELS)
    return load_library(f"{_name(op)}_cpu", source, cache=build.EXTENSIONS, include=include, flags=flags)


@contextmanager
def on_host() -> Iterator[None]:
    """In here backend="cuda" runs CPU tensors, through the host build of the CUDA kernels: for tests without a GPU."""
    global _on_host
    before, _on_host = _on_host, True
    try:
        yield
    finally:
        _on_host = before


def runs_on_host() -> bool:
    """Whether this is inside `on_host`."""
    return _on_host
