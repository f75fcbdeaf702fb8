"""How a C++ or CUDA file becomes a library that is loaded: the core (core.py), an op's cuda.cu, a reader's own file.

Built on first use with load_inline into extensions/ of the cache (runtime.CACHE: build/ of a checkout), and loaded from
there ever after.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import signal
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from types import MappingProxyType

from .. import machine, runtime
from ..runtime import CACHE
from .included_files import included_files

EXTENSIONS = CACHE / "extensions"

class BuildError(RuntimeError):
    """A library that cannot be built: what is missing, or what the compiler said."""


_building = threading.Lock()
_loaded: set[Path] = set()


def load_library(
    name: str,
    source: Path,
    *,
    cache: Path,
    include: tuple[Path, ...] = (),
    flags: tuple[str, ...] = (),
    environment: Mapping[str, str] = MappingProxyType({}),
    as_cpp: bool = False,
) -> Path:
    """Build one .cu or C++ file with load_inline, unless the cache has it, and load it; returns the library's path.

    as_cpp: a .cu file for the C++ compiler. The cache's key is everything the build depends on: the file and what
    it includes from `include`, flags and environment, the compilers and what the environment tells them, torch and
    CUDA. A build has a folder of its own, load_inline's lock file in it, and the finished library is moved into
    place, so that nothing half-built is ever loaded. One process builds at a time; the others wait for an flock,
    which the system releases however its holder ends.

    Raises:
        BuildError: with the compiler's errors, if the build fails. OSError: the library does not load. The next call
            tries again.
    """
    is_cuda = source.suffix == ".cu" and not as_cpp
    library = library_path(
        name, source, cache=cache, include=include, flags=flags, environment=environment, as_cpp=as_cpp
    )
    with _building:
        if library not in _loaded:
            with nullcontext() if library.exists() else _locked(cache / f"{name}.lock", name):
                if library.exists():
                    import torch

                    torch.ops.load_library(str(library))
                else:
                    _build_and_load(name, library, source, is_cuda, include, flags, environment)
            _loaded.add(library)
    return library


def library_path(
    name: str,
    source: Path,
    *,
    cache: Path,
    include: tuple[Path, ...],
    flags: tuple[str, ...],
    environment: Mapping[str, str],
    as_cpp: bool = False,
) -> Path:
    """Where a build of `load_library` goes: named by everything that it depends on."""
    import torch

    # Python's own part: the core is compiled against its headers where they are there.
    python = sys.implementation.cache_tag, Path(sysconfig.get_path("include"), "Python.h").exists()
    depends = (torch.__version__, torch.version.cuda, python, flags, sorted(environment.items()))
    key = hashlib.sha256(repr(depends).encode())
    for file in included_files(source, include):
        key.update(repr((file.name, file.read_bytes())).encode())
    stem = f"{name}-{key.hexdigest()[:16]}"
    compilers = _compilers(source.suffix == ".cu" and not as_cpp)
    if compilers is None:  # then any compiler's will do
        built = sorted(cache.glob(f"{stem}-*.so"))
        return built[0] if built else cache / f"{stem}.so"
    return cache / f"{stem}-{hashlib.sha256(repr(compilers).encode()).hexdigest()[:8]}.so"


def _build_and_load(
    name: str,
    library: Path,
    source: Path,
    is_cuda: bool,
    include: tuple[Path, ...],
    flags: tuple[str, ...],
    environment: Mapping[str, str],
) -> None:
    from torch.utils.cpp_extension import load_inline

    if _compilers(is_cuda) is None:
        why = machine.compiler(runtime.path_with_python())[1] or "nvcc is missing (developer.nvidia.com/cuda-downloads)"
        raise BuildError(f"the extension {name} cannot be built: {why}")
    compilers = {"CXX": runtime.compiler_program()}
    if is_cuda and os.environ.get("CC"):  # which load_inline gives nvcc
        compilers["CC"] = runtime.compiler_program("CC")
    for left_over in library.parent.glob(f"{name}-*.partial"):  # by builds that were killed
        _remove(left_over)
    folder = Path(tempfile.mkdtemp(prefix=f"{library.stem}-", suffix=".partial", dir=library.parent))
    text = source.read_text()
    print(f"Building the extension {name}, once …", file=sys.stderr, flush=True)
    start = time.monotonic()
    try:
        with _environment({"PATH": runtime.path_with_python(), **compilers, **environment}):
            load_inline(
                name,
                cpp_sources="" if is_cuda else text,
                cuda_sources=text if is_cuda else None,
                extra_cflags=list(flags),
                extra_cuda_cflags=list(flags),
                extra_include_paths=[str(path) for path in include],
                build_directory=str(folder),
                is_python_module=False,
                no_implicit_headers=True,
            )
        (built,) = folder.glob("*.so")
        built.replace(library)
    except RuntimeError as error:
        compiled = folder / ("cuda.cu" if is_cuda else "main.cpp")  # load_inline's copy, line by line the same
        errors = _without_commands(str(error)).replace(str(compiled), str(source))
        raise BuildError(f"building the extension {name} from {source} failed:\n{errors}") from None
    finally:
        _remove(folder)
    print(f"Built {name} in {time.monotonic() - start:.1f} s", file=sys.stderr, flush=True)


def _compilers(is_cuda: bool) -> tuple | None:
    """Which compilers a build uses, and what the environment gives them beside our flags; None if one is missing."""
    words, why = machine.compiler(path := runtime.path_with_python())
    nvcc = runtime.nvcc() if is_cuda else None
    if why or (is_cuda and nvcc is None):
        return None
    programs = [program for word in words if (program := shutil.which(word, path=path))]
    programs += [nvcc] if is_cuda else []
    names = (
        "CXX", "CC", "CXXFLAGS", "CUDAHOSTCXX", "NVCC_CCBIN", "PYTORCH_NVCC", "NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS",
        "CPATH", "CPLUS_INCLUDE_PATH",
    )
    return [_identity(Path(program)) for program in programs], [os.environ.get(name) for name in names]


def _identity(compiler: Path) -> tuple[str, int, int]:
    """What changes with its version; asking the compiler itself would cost a process at every start."""
    status = compiler.resolve().stat()
    return str(compiler.resolve()), status.st_size, status.st_mtime_ns


def _remove(folder: Path) -> None:
    """Remove a build's folder, and end what still works in it: a ninja that is killed leaves its compilers running."""
    start = time.monotonic()
    while working := [process for process in Path("/proc").iterdir() if _works_in(folder, process)]:
        waited = time.monotonic() - start
        if waited > 4:
            break
        for process in working:
            with suppress(ProcessLookupError):  # SIGINT first: nvcc and g++ then remove their temporary files
                os.kill(int(process.name), signal.SIGINT if waited < 2 else signal.SIGKILL)
        time.sleep(0.05)
    shutil.rmtree(folder, ignore_errors=True)


def _works_in(folder: Path, process: Path) -> bool:
    try:
        return process.name.isdigit() and (process / "cwd").samefile(folder)
    except OSError:  # it has ended, or is another user's
        return False


def _without_commands(output: str) -> str:
    """Ninja's output without the commands it shows, each of them longer than a compiler's message."""
    # "[1/2] command", the first time after load_inline's own words; after "FAILED: …" the command stands again, alone.
    step = re.compile(r"^(Error building extension '\w+': )?\[\d+/\d+\] ")
    lines = output.splitlines()
    commands = {step.sub("", line) for line in lines if step.match(line)}
    return "\n".join(line for line in lines if step.sub("", line) not in commands)


@contextmanager
def _locked(path: Path, name: str) -> Iterator[None]:
    with (runtime.made(path.parent) / path.name).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"Waiting for another process, which builds {name} …", file=sys.stderr, flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:  # closing the file does not release it while a forked process has it open too
            fcntl.flock(file, fcntl.LOCK_UN)


@contextmanager
def _environment(changes: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
