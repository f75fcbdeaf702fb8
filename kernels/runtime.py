"""What this machine runs on: the device, the versions, and whether Triton kernels are compiled or interpreted.

Importing this module calls no CUDA and imports neither torch nor Triton.
"""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from kernels import doctor

if TYPE_CHECKING:
    import torch


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
