"""Generated CUDA source (device/source_launch.py), by g++ for the host: called with addresses of CPU tensors."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ...dispatch.cuda_source import INCLUDE, Source, headers_of
from ...runtime import KERNELS
from .programs import BUILD, compiler

FLAGS = ("-std=c++20", "-O1", "-fPIC", "-shared", "-w", f"-I{KERNELS}")
# It returns the GPU's errors; what a kernel does wrong is also said on stderr.
LAUNCH = """
extern "C" const char* launch(unsigned x, unsigned y, unsigned z, const void* arguments, bool backwards) {{
    cuda_on_host::backwards = backwards;
    cudaError_t error = set_shared_memory_limit({name}, {shared});
    if (error == cudaSuccess)
        error = {launch}, dim3({threads}), {shared}, nullptr, *static_cast<const Arguments*>(arguments));
    return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}}
"""
# What tests set: a sanitizer's flags, and whether threads and blocks run in the opposite order.
extra_flags: tuple[str, ...] = ()
backwards = False


def run(source: Source, grid: Sequence[int], numbers: Sequence[int]) -> None:
    """Run the kernel to its end. Raises RuntimeError: it does not compile, or what it did wrong."""
    blocks = (*grid, 1, 1)[:3]
    if 0 in blocks:
        return
    error = _library(source, extra_flags).launch(*blocks, (ctypes.c_int64 * len(numbers))(*numbers), backwards)
    if error:
        raise RuntimeError(f"{source.name} on the host: {error.decode()}")


@functools.lru_cache(maxsize=64)
def _library(source: Source, extra: tuple[str, ...]) -> ctypes.CDLL:
    launch = f"launch_kernel({source.name}, dim3(x, y, z)"
    if source.cluster > 1:
        launch = f"launch_clusters({source.name}, int(x) / {source.cluster}, {source.cluster}"
    text = source.text + LAUNCH.format(name=source.name, shared=source.shared, threads=source.threads, launch=launch)
    library = BUILD / f"{source.name}-{_key(text, extra)}.so"
    if not library.exists():
        # Most of a compilation reads the headers, which are the same for every shape.
        headers = "".join(f'#include "{name}"\n' for name in INCLUDE.findall(text))
        header = BUILD / f"headers-{_key(headers, extra)}.h"
        compiled = header.with_suffix(".h.gch")
        if not compiled.exists():
            BUILD.mkdir(parents=True, exist_ok=True)
            header.write_text(headers)  # first: another process takes it once `compiled` is there
            _compile(source.name, headers, (*extra, "-x", "c++-header"), compiled)
        _compile(source.name, text, (*extra, "-include", str(header)), library)
    dll = ctypes.CDLL(str(library))
    dll.launch.restype = ctypes.c_char_p
    return dll


def _key(text: str, extra: tuple[str, ...]) -> str:
    return hashlib.sha256(repr((text, headers_of(text), FLAGS, extra)).encode()).hexdigest()[:20]


def _compile(name: str, text: str, flags: tuple[str, ...], built: Path) -> None:
    BUILD.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=BUILD) as folder:
        file, out = Path(folder) / "kernel.cpp", Path(folder) / "out"
        file.write_text(text)
        done = subprocess.run(
            [compiler(), *FLAGS, *flags, str(file), "-o", str(out)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{name} does not compile for the host:\n{done.stderr[-2000:]}")
        out.replace(built)
