"""NVRTC, the library that compiles CUDA source: where it is.

It comes with a torch for CUDA (pip's nvidia-cuda-nvrtc), or else with the toolkit.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

# Without a CUDA build of torch any of these will do: what it compiles is looked at, and not run.
MAJORS = ("13", "12")


def wanted() -> str:
    """The version that torch is built for, "13.0"; "" of a CPU build. The driver that runs torch loads cubins of that
    one; a newer one's it may refuse."""
    import torch

    return ".".join((torch.version.cuda or "").split(".")[:2])


@functools.cache
def library(nvcc: Path | None) -> ctypes.CDLL:
    """NVRTC, loaded. nvcc: the toolkit's compiler, if there is one.

    Raises:
        RuntimeError: no NVRTC, or none of torch's version.
    """
    release, others = wanted(), []
    for file in places(nvcc):
        with suppress(OSError):
            candidate = ctypes.CDLL(file)
            version = version_of(candidate)
            if release in ("", version):
                # NVRTC opens it by its bare name, for which the loader does not look beside NVRTC.
                with suppress(OSError):
                    ctypes.CDLL(str(Path(file).parent / f"libnvrtc-builtins.so.{version}"))
                return candidate
            others.append(f"{file} is of CUDA {version}")
    major = release.split(".")[0]
    package = "nvidia-cuda-nvrtc" + (f"-cu{major}" if major == "12" else "") + (f"=={release}.*" if release else "")
    what = f"torch is built for CUDA {release}, and {'; '.join(others)}" if others else "NVRTC is missing"
    raise RuntimeError(f"{what}: pip install '{package}'")


def why_not(nvcc: Path | None) -> str:
    """Why NVRTC is not here and how to get it; '' if it is."""
    try:
        library(nvcc)
    except RuntimeError as error:
        return str(error)
    return ""


def places(nvcc: Path | None) -> Iterator[str]:
    """Where NVRTC may be, in the order in which torch looks: pip's package, torch's own folder, the toolkit, the
    loader's path."""
    import torch

    for major in (wanted().split(".")[0],) if wanted() else MAJORS:
        folders = [Path(path) / "nvidia" / name / "lib" for path in sys.path for name in (f"cu{major}", "cuda_nvrtc")]
        folders.append(Path(torch.__file__).parent / "lib")
        if nvcc:
            folders.append(nvcc.resolve().parent.parent / "lib64")
        name = f"libnvrtc.so.{major}"
        yield from (str(folder / name) for folder in folders if (folder / name).is_file())
        yield name


def version_of(library: ctypes.CDLL) -> str:
    """ "13.0"."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return f"{major.value}.{minor.value}"
