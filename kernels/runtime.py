"""What this machine runs on: the device, the versions, the backends.

Importing this module calls no CUDA and imports neither torch nor Triton.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import os
import platform
import re
import shlex
import shutil
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from . import machine, nvrtc_library

if TYPE_CHECKING:
    import torch

KERNELS = Path(__file__).resolve().parent
BACKENDS = ("eager", "triton", "cuda")
PACKAGE = __package__  # "fused_kernels" where it is installed, and in a checkout of the repository "kernels", or either
CHECKOUT = KERNELS.parent if KERNELS.name == "kernels" else None  # the repository's root; None where it is installed


def _cache() -> Path:
    if path := os.environ.get("FUSED_KERNELS_CACHE"):
        return Path(path).absolute()
    if CHECKOUT:
        return CHECKOUT / "build"
    home = os.path.expanduser("~").replace("~", "/")  # a user without a home
    return Path(os.environ.get("XDG_CACHE_HOME") or f"{home}/.cache").absolute() / "fused_kernels"


def other_copy() -> str:
    """The name under which this package has been imported beside this one; "" if it has not."""
    ending = ".dispatch.op"  # the module that defines the ops
    for name, module in list(sys.modules.items()):
        package = name.removesuffix(ending)
        if package not in (name, PACKAGE) and getattr(module, "NAMESPACE", None) == "fused_kernels":
            return package
    return ""


def is_same_folder(package: str) -> bool:
    """Whether an imported package is this folder, under another name."""
    return Path(sys.modules[package].__file__).resolve().parent == KERNELS


CACHE = _cache()  # where the libraries and kernels are kept that were built


def made(folder: Path) -> Path:
    """The folder, which is made if it is not there. RuntimeError: nothing can be written to it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(None, "Permission denied")
    except OSError as error:
        raise RuntimeError(
            f"{folder}: what is built cannot be kept there ({error.strerror}): "
            "set FUSED_KERNELS_CACHE to another folder"
        ) from None
    return folder
def has_nvidia_driver() -> bool:
    """Whether an NVIDIA driver is here and CUDA_VISIBLE_DEVICES does not hide every GPU. Makes no CUDA call."""
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()  # what is no device hides those after it
    return first.lower() not in {"", "-1", "none", "void", "nodevfiles"} and machine.has_nvidia_device()


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

    gpu, driver = machine.gpu_and_driver()
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


def why_not(backend: str, device_type: str) -> str:
    """Why this machine's `backend` does not run tensors of a 'cpu' or 'cuda' device, and what to do; '' if it does.

    backend: also "nvrtc", what is CUDA source alone, and "nvcc", what that must compile.
    """
    if backend == "triton":
        return _why_not_triton(device_type)
    if backend == "cpp":
        return _why_not_cpp(device_type)
    missing = {"cuda": _why_no_nvrtc_or_compiler, "nvrtc": _why_no_nvrtc, "nvcc": _why_no_toolkit}.get(backend)
    return (_why_no_gpu() or missing() or _why_not_of_gpu(device_type)) if missing else ""


def _by_pip(package: str) -> str:
    """How to install it: a checkout has the version that it was tested with, the package asks for none."""
    return f"pip install {package}" + ", in the version that requirements.txt names" * bool(CHECKOUT)


def _why_not_cpp(device_type: str) -> str:
    if device_type != "cpu":
        return "it runs CPU tensors: move the tensors with .cpu()"
    return machine.compiler(path_with_python())[1] or _why_no_ninja()


def _why_no_ninja() -> str:
    return f"ninja is missing: {_by_pip('ninja')}" if shutil.which("ninja", path=path_with_python()) is None else ""


def why_no_build(device_type: str) -> str:
    """Why what runs tensors of a 'cpu' or 'cuda' device cannot be built here, and what to do; '' if it can.

    As `why_not` says it of "cpp" and "nvcc", and the programs are asked whether they run, which takes a process each.
    """
    backend = "cpp" if device_type == "cpu" else "nvcc"
    if missing := why_not(backend, device_type) or machine.why_no_compiler(path_with_python()):
        return missing
    ninja = shutil.which("ninja", path=path_with_python())
    failed = machine.why_not_run([ninja])
    return f"{ninja} does not run ({failed}): {_by_pip('ninja')}" if failed else ""


def compiler_program(variable: str = "CXX") -> str:
    """The compiler as one program, for who takes no other: where the variable holds several words, a script that calls
    them. Raises RuntimeError if there is no such program."""
    words, why = machine.compiler(path_with_python(), variable)
    if why:
        raise RuntimeError(why)
    if len(words) == 1 and shlex.quote(words[0]) == words[0]:
        return words[0]
    programs = [word for word in words if not word.startswith("-") and shutil.which(word, path=path_with_python())]
    name = re.sub(r"[^\w.+-]", "_", Path(programs[-1]).name)  # from which Inductor reads whether it is g++ or clang
    text = f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n'
    script = _compilers_folder() / hashlib.sha256(text.encode()).hexdigest()[:16] / name
    if not script.exists():
        partial = made(script.parent) / f".{name}.{os.getpid()}"
        partial.write_text(text)
        partial.chmod(0o755)
        partial.replace(script)
    return str(script)


@functools.cache
def _compilers_folder() -> Path:
    """Where a path without spaces leads: Inductor splits the command that it calls the compiler by."""
    folder = CACHE / "compilers"
    if shlex.quote(str(folder)) == str(folder):
        return folder
    folder = tempfile.mkdtemp(prefix="compilers-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _why_not_triton(device_type: str) -> str:
    mode = triton_mode()
    if mode == "missing":
        return f"Triton is not installed: {_by_pip('triton')}"
    if device_type != "cuda" and (mode != "interpreted" or _triton_compiles()):
        return (
            "Triton runs CPU tensors in its interpreter only, and that is off: set TRITON_INTERPRET=1 before Python "
            "starts" + (", or where there is no GPU import kernels before what imports Triton (torch.optim, "
                        "torch.compile)" if CHECKOUT else "")
        )
    return ""


def _why_not_of_gpu(device_type: str) -> str:
    return "" if device_type == "cuda" else "it runs CUDA tensors: move the tensors to the GPU with .cuda()"


def _why_no_gpu() -> str:
    import torch

    if not has_nvidia_driver():
        return (
            "it needs a CUDA device, and no NVIDIA GPU with a driver is visible: use a machine that has one "
            + "(make doctor shows what is there), " * bool(CHECKOUT)
            + 'or backend="triton", which is interpreted on the CPU'
        )
    if torch.version.cuda is None:
        where = "requirements.txt, with PIP_EXTRA_INDEX_URL unset" if CHECKOUT else "pytorch.org"
        return f"this is a CPU build of torch: install a CUDA build ({where})"
    if device().type != "cuda":
        return "this torch cannot use the GPU: update the driver, or install a build for its architecture (pytorch.org)"
    return ""


def _why_no_nvrtc() -> str:
    return nvrtc_library.why_not(nvcc())


def _why_no_nvrtc_or_compiler() -> str:
    return _why_no_nvrtc() or _why_no_ninja() or machine.compiler(path_with_python())[1]


def _why_no_toolkit() -> str:
    import torch

    toolkit = (
        f"install the toolkit of CUDA {torch.version.cuda}, which this torch is built for "
        "(developer.nvidia.com/cuda-toolkit-archive), or set CUDA_HOME to the folder whose bin/ holds its nvcc"
    )
    if (compiler := nvcc()) is None:
        return f"nvcc is missing: {toolkit}"
    # torch compares the two for setup.py only, not for load_inline.
    release = re.search(r"release (\d+)\.\d+", machine.output(str(compiler), "--version"))
    if release and release[1] != torch.version.cuda.split(".")[0]:
        return f"{compiler} is of CUDA {release[0].removeprefix('release ')}: {toolkit}"
    host = os.environ.get("CC") and machine.compiler(path_with_python(), "CC")[1]
    return _why_no_ninja() or machine.compiler(path_with_python())[1] or host or ""


def backends(on: torch.device | str | None = None) -> dict[str, str]:
    """For each backend '' if it runs tensors of this device (default: `device()`) here, else why_not's reason."""
    import torch

    device_type = torch.device(on or device()).type
    if device_type == "cuda" and device().type != "cuda":  # then nothing runs them; the CUDA backend knows why
        return dict.fromkeys(BACKENDS, why_not("cuda", device_type))
    return {backend: why_not(backend, device_type) for backend in BACKENDS}


def nvcc() -> Path | None:
    """The CUDA compiler, looked for where torch does: in CUDA_HOME if that is set, else on PATH, in /usr/local/cuda."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    path = shutil.which("nvcc", path=f"{home}/bin" if home else None)
    if path is None and not home:
        path = shutil.which("nvcc", path="/usr/local/cuda/bin")
    return Path(path) if path else None


def path_with_python() -> str:
    """PATH, and the folder of this Python: ninja may be beside it."""
    return os.pathsep.join((os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent)))


def _triton_compiles() -> bool:
    """Whether Triton was imported before TRITON_INTERPRET was set: its own functions are then compiled ones."""
    triton = sys.modules.get("triton")
    return triton is not None and isinstance(triton.language.softmax, triton.runtime.JITFunction)


def report() -> str:
    """What a notebook's first cell prints: the versions, and what runs where."""
    facts = versions()
    lines = [f"{name:<9} {value}" for name, value in facts.items()]
    if device().type == "cuda":
        lines.append(f"Runs on the GPU, {facts['GPU']}: what is timed below is timed on it.")
    elif facts["GPU"] == "none":
        lines.append("There is no GPU here, so this runs on the CPU. A time measured here says nothing about a GPU.")
    else:
        lines.append("Runs on the CPU, although there is a GPU: this torch cannot use it, or it is hidden.")
    lines.append(
        {
            "compiled": "Triton kernels are compiled, and run on a GPU alone.",
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
