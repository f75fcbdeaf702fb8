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
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import MappingProxyType
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
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()  # what is no device hides those after it
    return first.lower() not in {"", "-1", "none", "void", "nodevfiles"} and doctor.has_nvidia_device()


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
    """Cache a function of hashable positional arguments; torch.compile calls it while tracing and keeps the result.

    For work that is done once, such as loading an extension, and must be done before a graph that depends on it runs.
    Threads that call at once wait for the first. An exception is not cached: the next call tries again.
    """
    results = {}
    lock = threading.RLock()

    # Neither functools.cache, which lets two threads in, and through which torch.compile traces into the function.
    @functools.wraps(function)
    def cached(*args):
        try:
            return results[args]
        except KeyError:
            with lock:
                if args not in results:
                    results[args] = function(*args)
        return results[args]

    # What torch.compiler.assume_constant_result sets. Calling that would import torch._dynamo, which takes over a
    # second, and with it Triton.
    cached._dynamo_marked_constant = True
    return cached


def why_not(backend: str, device_type: str) -> str:
    """Why this machine's `backend` does not run tensors of a 'cpu' or 'cuda' device, and what to do; '' if it does."""
    if backend == "triton":
        return _why_not_triton(device_type)
    return _why_not_cuda(device_type) if backend == "cuda" else ""


def _why_not_triton(device_type: str) -> str:
    mode = triton_mode()
    if mode == "missing":
        return "Triton is not installed: pip install triton, in the version that requirements.txt names"
    if device_type != "cuda" and (mode != "interpreted" or _triton_compiles()):
        return (
            "Triton runs CPU tensors in its interpreter only, and that is off: set TRITON_INTERPRET=1 before Python "
            "starts, or where there is no GPU import kernels before what imports Triton (torch.optim, torch.compile)"
        )
    return ""


def _why_not_cuda(device_type: str) -> str:
    import torch

    if not has_nvidia_driver():
        return (
            "it needs a CUDA device, and no NVIDIA GPU with a driver is visible: use a machine that has one "
            '(make doctor shows what is there), or backend="triton", which is interpreted on the CPU'
        )
    if torch.version.cuda is None:
        return "this is a CPU build of torch: install a CUDA build (requirements.txt, with PIP_EXTRA_INDEX_URL unset)"
    if device().type != "cuda":
        return "this torch cannot use the GPU: update the driver, or install a build for its architecture (pytorch.org)"
    toolkit = (
        f"install the toolkit of CUDA {torch.version.cuda}, which this torch is built for "
        "(developer.nvidia.com/cuda-toolkit-archive), or set CUDA_HOME to the folder whose bin/ holds its nvcc"
    )
    if (compiler := nvcc()) is None:
        return f"nvcc is missing: {toolkit}"
    # torch compares the two for setup.py only, not for load_inline.
    release = re.search(r"release (\d+)\.\d+", doctor.output(str(compiler), "--version"))
    if release and release[1] != torch.version.cuda.split(".")[0]:
        return f"{compiler} is of CUDA {release[0].removeprefix('release ')}: {toolkit}"
    if shutil.which("ninja", path=_path()) is None:
        return "ninja is missing: pip install ninja, in the version that requirements.txt names"
    if device_type != "cuda":
        return "it runs CUDA tensors: move the tensors to the GPU with .cuda()"
    return ""


def choose(backend: str, x: torch.Tensor) -> str:
    """The backend to run x on: "auto" is Triton for a CUDA tensor, else eager. torch.compile traces through it.

    Raises:
        TypeError: x is no tensor. ValueError: an unknown backend. RuntimeError: one that this machine lacks, with
            why_not's reason.
    """
    try:
        on_cuda = x.is_cuda
    except AttributeError:
        raise TypeError(f"x must be a tensor; got {type(x).__name__}") from None
    return _choose(backend, on_cuda)


@at_trace_time
def _choose(backend: str, on_cuda: bool) -> str:
    if backend == "auto":
        backend = "triton" if on_cuda else "eager"
    elif backend not in BACKENDS:
        raise ValueError(f"backend must be one of auto, {', '.join(BACKENDS)}; got {backend!r}")
    if reason := why_not(backend, "cuda" if on_cuda else "cpu"):
        raise RuntimeError(f'backend="{backend}" does not run here: {reason}')
    return backend


def backends(on: torch.device | str | None = None) -> dict[str, str]:
    """For each backend '' if it runs tensors of this device (default: `device()`) here, else why_not's reason."""
    import torch

    device_type = torch.device(on or device()).type
    if device_type == "cuda" and device().type != "cuda":  # then nothing runs them; the CUDA backend knows why
        return dict.fromkeys(BACKENDS, _why_not_cuda(device_type))
    return {backend: why_not(backend, device_type) for backend in BACKENDS}


def nvcc() -> Path | None:
    """The CUDA compiler, looked for where torch does: in CUDA_HOME if that is set, else on PATH, in /usr/local/cuda."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    found = shutil.which("nvcc", path=f"{home}/bin" if home else None)
    if found is None and not home:
        found = shutil.which("nvcc", path="/usr/local/cuda/bin")
    return Path(found) if found else None


# ------------------------------------------------------------------------------------------------------------------
# The CUDA backend's extensions.

_building = threading.Lock()
_loaded: set[Path] = set()


@at_trace_time
def load_extension(op: str) -> bool:
    """Load kernels/<op>/binding.cu as dispatcher ops, built on first use into build/extensions/. Returns True.

    Raises:
        RuntimeError: with the compiler's errors, if the build fails; the next call tries again.
    """
    import torch

    binding = KERNELS / op / "binding.cu"
    capabilities = {torch.cuda.get_device_capability(gpu) for gpu in range(torch.cuda.device_count())}
    architectures = ";".join(f"{major}.{minor}" for major, minor in sorted(capabilities))
    load_library(
        op,
        binding,
        cache=EXTENSIONS,
        include=(binding.parent, KERNELS),
        flags=CUDA_FLAGS,
        environment={"TORCH_CUDA_ARCH_LIST": architectures},
    )
    return True


def load_library(
    name: str,
    source: Path,
    *,
    cache: Path,
    include: tuple[Path, ...] = (),
    flags: tuple[str, ...] = (),
    environment: Mapping[str, str] = MappingProxyType({}),
) -> Path:
    """Build one .cu or C++ file with load_inline, unless the cache has it, and load it; returns the library's path.

    The cache's key is everything the build depends on: the file and what it includes from `include`, flags and
    environment, torch and its CUDA. A build has a folder of its own, load_inline's lock file in it, and the finished
    library is moved into place, so that nothing half-built is ever loaded. One process builds at a time; the others
    wait for an flock, which the system releases however its holder ends.

    Raises:
        RuntimeError: with the compiler's errors, if the build fails. OSError: the library does not load. The next call
            tries again.
    """
    import torch

    key = hashlib.sha256(repr((torch.__version__, torch.version.cuda, flags, sorted(environment.items()))).encode())
    for file in included_files(source, include):
        key.update(repr((file.name, file.read_bytes())).encode())
    library = cache / f"{name}-{key.hexdigest()[:16]}.so"
    with _building:
        if library not in _loaded:
            with nullcontext() if library.exists() else _locked(cache / f"{name}.lock", name):
                if library.exists():
                    torch.ops.load_library(str(library))
                else:
                    _build_and_load(name, library, source, include, flags, environment)
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


def _build_and_load(
    name: str,
    library: Path,
    source: Path,
    include: tuple[Path, ...],
    flags: tuple[str, ...],
    environment: Mapping[str, str],
) -> None:
    from torch.utils.cpp_extension import load_inline

    for left_over in library.parent.glob(f"{name}-*.partial"):  # by builds that were killed
        _remove(left_over)
    folder = Path(tempfile.mkdtemp(prefix=f"{library.stem}-", suffix=".partial", dir=library.parent))
    text, is_cuda = source.read_text(), source.suffix == ".cu"
    print(f"Building the extension {name}, once …", file=sys.stderr, flush=True)
    start = time.monotonic()
    try:
        with _environment({"PATH": _path(), **environment}):
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
        raise RuntimeError(f"building the extension {name} from {source} failed:\n{errors}") from None
    finally:
        _remove(folder)
    print(f"Built {name} in {time.monotonic() - start:.1f} s", file=sys.stderr, flush=True)


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


def _path() -> str:
    """PATH, and the folder of this Python: ninja may be beside it."""
    return os.pathsep.join((os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent)))


@contextmanager
def _locked(path: Path, name: str) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
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


@functools.cache  # an op's call asks, and reading a package's metadata takes 0.2 ms
def _package(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "none"
