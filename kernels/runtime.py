"""What this machine runs on: the device, the versions, the backends; and how the CUDA backend's extensions are built.

Importing this module calls no CUDA and imports neither torch nor Triton.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import platform
import re
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from kernels import doctor

if TYPE_CHECKING:
    import torch

KERNELS = Path(__file__).resolve().parent
EXTENSIONS = KERNELS.parent / "build" / "extensions"
BACKENDS = ("eager", "triton", "cuda")
CUDA_FLAGS = ("-O3",)


def has_nvidia_driver() -> bool:
    """Whether an NVIDIA driver is here and CUDA_VISIBLE_DEVICES does not hide every GPU. Makes no CUDA call."""
    return os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() not in {"", "-1"} and doctor.has_nvidia_device()


def device() -> torch.device:
    """The current CUDA device if this torch has kernels for it, else the CPU."""
    import torch

    if not (has_nvidia_driver() and torch.cuda.is_available()):
        return torch.device("cpu")
    # A GPU older than every architecture of the build is "available" and then fails at the first kernel.
    built_for = [int(arch.removeprefix("sm_").rstrip("af")) for arch in torch.cuda.get_arch_list() if "sm_" in arch]
    major, minor = torch.cuda.get_device_capability()
    return torch.device("cuda" if 10 * major + minor >= min(built_for, default=0) else "cpu")


def versions() -> dict[str, str]:
    """Versions of Python, torch, triton, CUDA and driver, the GPU's name, and the platform (no host name)."""
    import torch

    gpu, driver = doctor.gpu_and_driver()
    return {
        "Python": platform.python_version(),
        "torch": torch.__version__,
        "triton": _package("triton"),
        "CUDA": torch.version.cuda or "none (CPU build of torch)",
        "GPU": torch.cuda.get_device_name() if device().type == "cuda" else gpu or "none",
        "driver": driver or "none",
        "platform": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPU cores",
    }


def triton_mode() -> str:
    """'compiled', 'interpreted' or 'missing': how a Triton kernel that is decorated now will run."""
    if _package("triton") == "none":
        return "missing"
    interpret = os.environ.get("TRITON_INTERPRET", "").strip().lower() in {"1", "true", "on", "yes", "y"}
    return "interpreted" if interpret else "compiled"


def at_trace_time(function: Callable) -> Callable:
    """Cache a function of hashable arguments that returns a constant, and have torch.compile call it while tracing.

    The attribute is what torch.compiler.assume_constant_result sets; that function imports torch._dynamo, which takes
    over a second, and with it Triton.
    """
    results = {}

    @functools.wraps(function)
    def cached(*args):
        if args not in results:
            results[args] = function(*args)
        return results[args]

    cached._dynamo_marked_constant = True
    return cached


@at_trace_time
def why_not(backend: str, device_type: str) -> str:
    """Why this machine's `backend` does not run tensors of a 'cpu' or 'cuda' device, and what to do; '' if it does."""
    import torch

    if backend == "triton":
        mode = triton_mode()
        if mode == "missing":
            return "Triton is not installed: pip install triton, in the version that requirements.txt names"
        if device_type == "cpu" and (mode != "interpreted" or _triton_compiles()):
            return (
                "Triton runs CPU tensors in its interpreter only, and that is off: set TRITON_INTERPRET=1, or where "
                "there is no GPU import kernels before anything that imports Triton (torch.optim, torch.compile)"
            )
    if backend == "cuda":
        if device_type != "cuda":
            return "the CUDA kernels run CUDA tensors: move them there with .cuda(), on a machine with a GPU"
        if torch.version.cuda is None:
            return "this is a CPU build of torch: install a CUDA build (see pytorch.org)"
        if nvcc() is None:
            return "nvcc is missing: install the CUDA toolkit, or set CUDA_HOME to where it is (make doctor)"
    return ""


def choose(backend: str, x: torch.Tensor) -> str:
    """The backend to run x on: "auto" is Triton for a CUDA tensor, else eager.

    Raises:
        ValueError: an unknown backend. RuntimeError: one that this machine lacks, with why_not's reason.
    """
    if backend == "auto":
        backend = "triton" if x.is_cuda else "eager"
    elif backend not in BACKENDS:
        raise ValueError(f"backend must be one of auto, {', '.join(BACKENDS)}; got {backend!r}")
    reason = why_not(backend, "cuda" if x.is_cuda else "cpu")
    if reason:
        raise RuntimeError(f'backend="{backend}" does not run here: {reason}')
    return backend


def backends(on: torch.device | str | None = None) -> dict[str, str]:
    """{backend: ''} for what runs tensors of this device (default: `device()`) here, {backend: why not} for the rest."""
    import torch

    device_type = torch.device(on or device()).type
    return {backend: why_not(backend, device_type) for backend in BACKENDS}


def nvcc() -> Path | None:
    """The CUDA compiler: in CUDA_HOME, on PATH, or in /usr/local/cuda."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    found = shutil.which("nvcc", path=f"{home}/bin" if home else None) or shutil.which("/usr/local/cuda/bin/nvcc")
    return Path(found) if found else None


# ------------------------------------------------------------------------------------------------------------------
# The CUDA backend's extensions.

_building = threading.Lock()
_loaded: set[Path] = set()


def load_extension(op: str) -> None:
    """Load kernels/<op>/binding.cu as dispatcher ops, built on first use into build/extensions/.

    Raises:
        RuntimeError: with the compiler's output, if the build fails; the next call tries again.
    """
    import torch

    binding = KERNELS / op / "binding.cu"
    include = (binding.parent, KERNELS)
    major, minor = torch.cuda.get_device_capability()
    architecture = f"{major}.{minor}"
    load_library(
        op,
        cuda_source=binding,
        include=include,
        flags=CUDA_FLAGS,
        environment={"TORCH_CUDA_ARCH_LIST": architecture},
    )


def load_library(
    name: str,
    *,
    cuda_source: Path | None = None,
    cpp_source: Path | None = None,
    include: tuple[Path, ...] = (),
    flags: tuple[str, ...] = (),
    environment: dict[str, str] | None = None,
    cache: Path | None = None,
) -> Path:
    """Build one source file with load_inline, unless the cache has it, and load it; returns the library's path.

    The cache's key is everything the build depends on: the file and what it includes from `include`, flags and
    environment, torch and its CUDA. A build has a folder of its own and the finished library is moved into place, so
    nothing half-built is ever loaded. One process builds at a time; the others wait for an flock, which the system
    releases however its holder ends.
    """
    import torch

    cache = cache or EXTENSIONS
    source = cuda_source or cpp_source
    key = hashlib.sha256(repr((torch.__version__, torch.version.cuda, flags, environment)).encode())
    for file in included_files(source, include):
        key.update(file.read_bytes())
    library = cache / f"{name}-{key.hexdigest()[:16]}.so"
    with _building, _locked(cache / f"{name}.lock"):
        if library not in _loaded:
            if library.exists():
                torch.ops.load_library(str(library))
            else:
                _build(name, library, cuda_source, cpp_source, include, flags, environment or {})
            _loaded.add(library)
    return library


def included_files(source: Path, include: tuple[Path, ...]) -> list[Path]:
    """A C++ file and, in order of first mention, every file in `include` that it reaches by #include "…"."""
    found, waiting = [], [source]
    while waiting:
        file = waiting.pop(0)
        if file in found:
            continue
        found.append(file)
        for named in re.findall(r'^\s*#\s*include\s*"([^"]+)"', file.read_text(), re.MULTILINE):
            folders = (file.parent, *include)
            waiting += [folder / named for folder in folders if (folder / named).is_file()][:1]
    return found


def _build(
    name: str,
    library: Path,
    cuda_source: Path | None,
    cpp_source: Path | None,
    include: tuple[Path, ...],
    flags: tuple[str, ...],
    environment: dict[str, str],
) -> None:
    from torch.utils.cpp_extension import load_inline

    for left_over in library.parent.glob(f"{name}-*.partial"):  # by builds that were killed
        shutil.rmtree(left_over, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{library.stem}-", suffix=".partial", dir=library.parent))
    print(f"Building the extension {name} (once) …", file=sys.stderr, flush=True)
    start = time.monotonic()
    # ninja may be beside this Python and not on PATH.
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))
    try:
        with _environment({"PATH": path, **environment}):
            load_inline(
                name,
                cpp_sources=cpp_source.read_text() if cpp_source else "",
                cuda_sources=cuda_source.read_text() if cuda_source else None,
                extra_include_paths=[str(path) for path in include],
                extra_cflags=None if cuda_source else list(flags),
                extra_cuda_cflags=list(flags) if cuda_source else None,
                build_directory=str(folder),
                is_python_module=False,
                no_implicit_headers=True,
            )
        (built,) = folder.glob("*.so")
        built.replace(library)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"Built {name} in {time.monotonic() - start:.1f} s", file=sys.stderr, flush=True)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def _environment(changes: dict[str, str]) -> Iterator[None]:
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


def _triton_compiles() -> bool:
    """Whether Triton was imported before TRITON_INTERPRET was set: its own functions are then compiled ones."""
    triton = sys.modules.get("triton")
    return triton is not None and isinstance(triton.language.softmax, triton.runtime.JITFunction)


def report() -> str:
    """What a notebook's first cell prints: the versions, and what runs where."""
    found = versions()
    lines = [f"{name:<9} {value}" for name, value in found.items()]
    if device().type == "cuda":
        lines.append(f"Runs on the GPU, {found['GPU']}: what is timed below is timed on it.")
    elif found["GPU"] == "none":
        lines.append("Runs on the CPU, for want of a GPU: no time below says anything about a GPU.")
    else:
        lines.append("Runs on the CPU, although there is a GPU: this torch cannot use it, or it is hidden.")
    lines.append(
        {
            "compiled": "Triton kernels are compiled, which takes a GPU.",
            "interpreted": "Triton kernels are interpreted on the CPU: the results count, the times do not.",
            "missing": "Triton is not installed: its kernels do not run.",
        }[triton_mode()]
    )
    return "\n".join(lines)


def _package(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "none"
