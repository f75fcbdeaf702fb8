"""What this machine has, what will not run without what is missing, and how to get it: `python3 kernels/doctor.py`.

Standard library only, and syntax that Python 3.8 reads: a Python that is too old gets a message, not a SyntaxError.
The packages' versions are asked of the Python that holds them.
"""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import shutil
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

if __package__:
    from . import machine
else:  # run as a file, by a Python that has no packages
    import machine

ROOT = Path(__file__).resolve().parent.parent
VENV_PYTHON = ROOT / ".venv" / "bin" / "python"
# Else pip has installed the package, as a copy or with -e, and the Python that runs this holds the others.
IN_CHECKOUT = (ROOT / "Makefile").is_file() and __package__ != "fused_kernels"
OF_THE_CHECKOUT = ("venv", "make", "cmake", "ctest")  # what they are for is not in the package
OLDEST_PYTHON = (3, 11)
# Free disk in GB that installing takes: the packages as the index ships them, once packed and once unpacked.
DISK_CUDA, DISK_CPU = 10, 4


@dataclass(frozen=True)
class Check:
    """One thing looked for: `found` is its version or place ('' if missing), and with `ok` it is enough."""

    name: str
    found: str
    ok: bool
    without: str  # what will not run without it
    get: str  # how to get it
    required: bool = False  # `make lecture` cannot do without it


def ensurepip_version() -> str:
    """The pip that `python -m venv` would install, '' if it cannot (Debian has venv but no ensurepip in python3)."""
    try:
        import ensurepip
        import venv  # noqa: F401

        return f"pip {ensurepip.version()}"
    except Exception:  # a damaged ensurepip fails in ways of its own
        return ""


def free_gb(folder: Path) -> float:
    return shutil.disk_usage(folder).free / 1e9


def checks(
    python: str | Path | None = None,
    *,
    version: tuple[int, ...] = tuple(sys.version_info[:3]),
    include: str | None = None,
    ensurepip: str | None = None,
    system: tuple[str, str] = (platform.system(), platform.machine()),
    disk: float | None = None,
) -> list[Check]:
    """Look for everything, in the order in which it is printed.

    Args:
        python: the Python that holds the packages already, so nothing is going to be installed. None: the checkout's
            .venv, which need not exist yet.
        version, include, ensurepip, system, disk: this Python's version, header folder and bundled pip, (system,
            machine), free GB; read from the machine unless given.
    """
    packages = python or VENV_PYTHON
    torch, triton = machine.package_version(packages, "torch"), machine.package_version(packages, "triton")
    installs = python is None and not torch
    include = sysconfig.get_path("include") if include is None else include
    ensurepip = ensurepip_version() if ensurepip is None else ensurepip
    disk = free_gb(ROOT) if disk is None else disk
    disk_needed = DISK_CPU if "/whl/cpu" in os.environ.get("PIP_EXTRA_INDEX_URL", "") else DISK_CUDA
    gpu, driver = machine.gpu_and_driver()
    new_enough = tuple(version[:2]) >= OLDEST_PYTHON
    python3 = "python" + ".".join(map(str, OLDEST_PYTHON))
    headers = str(Path(include) / "Python.h")
    has_headers = Path(headers).is_file()
    bin_folder = str(Path(packages).parent)
    cuda_folder = os.path.join(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "bin")
    make, nvcc = machine.tool("make")[0], machine.tool("nvcc", cuda_folder)[0]
    by_pip = "make lecture installs it" if python is None else f"{python} -m pip install"
    by_pip += ", as requirements.txt pins it" if python is not None and IN_CHECKOUT else ""

    results = [
        Check(
            "platform",
            " ".join(system),
            system in {("Linux", "x86_64"), ("Linux", "amd64")},
            "anything: CUDA's builds of torch and triton are for Linux on x86-64",
            "use Linux on x86-64, or WSL 2 on Windows",
            required=True,
        ),
        Check(
            "Python",
            ".".join(map(str, version)) + ("" if new_enough else f", too old ({sys.executable})"),
            new_enough,
            f"anything: {python3} or newer is needed",
            f"apt install {python3} {python3}-venv {python3}-dev, then make lecture PYTHON3={python3}",
            required=True,
        ),
        Check(
            "venv",
            ensurepip,
            bool(ensurepip),
            "making .venv (ensurepip is not there)",
            "apt install python3-venv",
            required=installs,
        ),
        Check(
            "Python headers",
            headers if has_headers else "",
            has_headers,
            "torch.compile, and Triton on a GPU: both compile against Python.h",
            "apt install python3-dev (Fedora: python3-devel)",
            required=True,
        ),
        Check("make", make, bool(make), "the targets of the Makefile", "apt install make"),
        *compilers(),
        Check("torch", torch, bool(torch), "everything", by_pip, required=python is not None),
        Check("triton", triton, bool(triton), "the Triton kernels", by_pip),
        Check(
            "GPU",
            gpu,
            bool(gpu),
            "compiled kernels and timings; on the CPU "
            + (
                "kernels are interpreted and GPU results shown from record" if IN_CHECKOUT
                else "the ops run as eager PyTorch (TRITON_INTERPRET=1: the Triton kernels, interpreted)"
            ),
            "a machine with an NVIDIA GPU",
        ),
        Check(
            "driver",
            driver,
            bool(driver),
            "the GPU, if there is one",
            "nvidia.com/drivers, or your distribution's package (Debian: nvidia-driver); on WSL the Windows driver",
        ),
        Check(
            "nvcc",
            nvcc,
            bool(nvcc),
            "the CMake tests on a GPU, sorting in CUDA (all other kernels do without)",
            "developer.nvidia.com/cuda-downloads (cuda-toolkit; Debian: nvidia-cuda-toolkit)",
        ),
    ]
    for name, without in (
        ("cmake", "the CMake tests"),
        ("ctest", "the CMake tests"),
        ("ninja", "the C++ core, the CUDA extension" + ", the CMake tests" * IN_CHECKOUT),
    ):
        program, why = machine.tool(name, bin_folder)
        moved = IN_CHECKOUT and os.path.exists(os.path.join(bin_folder, name))
        get = "was the checkout moved? make venv mends it" if python is None and moved else by_pip
        results.append(Check(name, program, not why, without, f"{get} ({why})"))
    if installs:
        results.append(
            Check(
                "free disk",
                f"{disk:.1f} GB in {ROOT}" + ("" if disk >= disk_needed else f", too little ({disk_needed} GB needed)"),
                disk >= disk_needed,
                "installing the packages",
                "free some space; without a GPU set PIP_EXTRA_INDEX_URL to PyTorch's CPU builds (see pytorch.org)",
                required=True,
            )
        )
    return results


def compilers() -> list[Check]:
    """The C++ compiler, and those of CUDA's host code that the environment names."""
    text, why = machine.compiler_and_why_not()
    without = "torch.compile, the C++ core, the CUDA extension" + ", the CMake tests" * IN_CHECKOUT
    get = why if os.environ.get("CXX") else "apt install g++ (Fedora: gcc-c++)"
    results = [Check("g++", text, not why, without, get, required=True)]
    for variable in ("CC", "CUDAHOSTCXX", "NVCC_CCBIN"):
        if os.environ.get(variable, "").strip():
            text, why = machine.compiler_and_why_not(variable=variable)
            words, _ = machine.compiler(variable=variable)
            if not why and len(words) > 1:  # nvcc and Triton take no arguments
                text, why = "", f"{variable} is {shlex.join(words)!r}: name one program, a script that calls these"
            results.append(Check(variable, text, not why, "CUDA's host code, and Triton on a GPU", why))
    return results


def table(results: list[Check]) -> str:
    """One line a check: its name and what was found."""
    return "\n".join(f"{check.name:<15} {check.found or 'missing'}" for check in results)


def complaints(results: list[Check]) -> str:
    """Three lines for each check that is not ok: what is wrong, what will not run, how to get it."""
    return "\n".join(
        f"{check.name}: {check.found or 'missing'}\n"
        f"    will not run without it: {check.without}\n"
        f"    how to get it: {check.get}"
        for check in results
        if not check.ok
    )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="What this machine has, and what it lacks for what.")
    parser.add_argument("--python", metavar="PATH", help="the Python with the packages (default: .venv/bin/python)")
    parser.add_argument("--require", action="store_true", help="say only what make lecture cannot do without, exit 1")
    args = parser.parse_args(argv)
    results = checks(args.python or (None if IN_CHECKOUT else sys.executable))
    if not IN_CHECKOUT:
        results = [check for check in results if check.name not in OF_THE_CHECKOUT]
    if not args.require:
        print(table(results) + "\n")
        print(complaints(results) or "Nothing is missing.")
        return 0
    fatal = [check for check in results if check.required and not check.ok]
    if fatal:
        print(complaints(fatal), file=sys.stderr)
    return 1 if fatal else 0


if __name__ == "__main__":
    sys.exit(main())
