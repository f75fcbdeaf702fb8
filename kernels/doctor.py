"""What this machine has, what will not run without what is missing, and how to get it: `python3 kernels/doctor.py`.

Standard library only, and syntax that Python 3.8 reads: a Python that is too old gets a message, not a SyntaxError.
CUDA is never called and torch never imported: the packages' versions are asked of the Python that holds them.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV_PYTHON = ROOT / ".venv" / "bin" / "python"
IN_CHECKOUT = (ROOT / "Makefile").is_file()  # else pip has put the package there, and its Python holds the others
OF_THE_CHECKOUT = ("venv", "make", "cmake", "ctest")  # what they are for is not in the package
OLDEST_PYTHON = (3, 11)
COMPILERS = ("g++", "c++")  # where CXX names none
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


def output(*command: str) -> str:
    """What a command prints, or '' if there is no such command, it fails or takes over 20 s."""
    return _asked(command)[0].strip()


def why_not_run(words: Sequence[str]) -> str:
    """Why a program that is there cannot be called (a script whose interpreter has moved), asked of itself; or ''."""
    return _asked((*words, "--version"))[1]


def _asked(command: Sequence[str]) -> tuple[str, str]:
    """(what the command prints, why it failed), either ''."""
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=20, check=False)
    except OSError as error:
        return "", error.strerror or str(error)
    except subprocess.TimeoutExpired:
        return "", "no answer within 20 s"
    said = done.stderr.decode(errors="replace").strip().split("\n")[0]
    if done.returncode:
        return "", f"exit status {done.returncode}" + (f": {said}" if said else "")
    return done.stdout.decode(errors="replace"), ""


def compiler(path: str | None = None, variable: str = "CXX") -> tuple[list[str], str]:
    """The words of the C++ compiler's command, and why there is no such program ('' if there is one).

    The variable may hold several: `ccache g++`, `env g++`, `g++ -m64`. Programs are looked for in path, or in PATH.
    """
    given = os.environ.get(variable, "").strip()
    if given:
        words = [given] if shutil.which(given, path=path) else _words(given)
    else:
        words = [next((name for name in COMPILERS if shutil.which(name, path=path)), COMPILERS[0])]
    if program := shutil.which(words[0], path=path):
        if os.sep in words[0]:  # a build has another working directory
            words[0] = os.path.abspath(program)
        return words, ""
    named = f" ({variable} is {given!r})" if given and given != words[0] else ""
    get = f"set {variable} to one that is there, or unset it" if given else f"apt install g++, or set {variable}"
    return words, f"the {_kind(variable)} {words[0]} is missing{named}: {get}"


def _kind(variable: str) -> str:
    return "C++ compiler" if variable == "CXX" else f"compiler that {variable} names,"


def _words(given: str) -> list[str]:
    try:
        return shlex.split(given)
    except ValueError:  # a quotation that does not end
        return [given]


def why_no_compiler(path: str | None = None, variable: str = "CXX") -> str:
    """Why the C++ compiler cannot be called, asked of itself; '' if it can."""
    return _compiler_and_why_not(path, variable)[1]


def _compiler_and_why_not(path: str | None = None, variable: str = "CXX") -> tuple[str, str]:
    """('version (command)', why it cannot be called), either ''."""
    words, why = compiler(path, variable)
    if why:
        return "", why
    text, failed = _asked((*words, "--version"))
    if failed:
        return "", f"the {_kind(variable)} {shlex.join(words)} does not run ({failed}): set {variable} to one that does"
    place = f"{variable}: {shlex.join(words)}" if os.environ.get(variable) else shutil.which(words[0], path=path)
    return f"{_version(text)} ({place})", ""


def tool(name: str, folder: str = "") -> tuple[str, str]:
    """('version (path)' of a program in `folder` or PATH, why it is missing), either ''."""
    path = shutil.which(name, path=os.pathsep.join(filter(None, [folder, os.environ.get("PATH", os.defpath)])))
    if path is None:
        return "", f"{name} is not on PATH"
    text, why = _asked((path, "--version"))
    return ("", f"{path} does not run ({why})") if why else (f"{_version(text)} ({path})", "")


def _version(text: str) -> str:
    version = re.search(r"\d+\.\d+(\.\d+)*", re.sub(r"\(.*?\)", "", text))
    return version.group() if version else "version unknown"


def package_version(python: str | Path, name: str) -> str:
    """The version of an installed package, asked of the Python `python`; '' if either is not there."""
    return output(str(python), "-c", f"from importlib.metadata import version; print(version({name!r}))")


def has_nvidia_device() -> bool:
    """Whether an NVIDIA driver and its library are here (a device file, WSL's included), found without a CUDA call.

    /proc/driver/nvidia does not count: a container without the GPU shows the host's.
    """
    if not any(map(os.path.exists, ("/dev/nvidiactl", "/dev/dxg"))):
        return False
    try:
        ctypes.CDLL("libcuda.so.1")  # loads the library, initialises nothing
    except OSError:
        return False
    return True


def gpu_and_driver() -> tuple[str, str]:
    """(name of the first GPU, driver version), each '' if there is none, from nvidia-smi or else /proc."""
    smi = output("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader").split("\n")[0]
    name, _, driver = smi.rpartition(", ")
    if name:
        return name, driver
    if not has_nvidia_device():
        return "", ""
    try:
        version = re.search(r"\d+\.\d+(\.\d+)?", Path("/proc/driver/nvidia/version").read_text())
    except OSError:
        version = None
    return "NVIDIA, name unknown (nvidia-smi does not answer)", version.group() if version else "version unknown"


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
    torch, triton = package_version(packages, "torch"), package_version(packages, "triton")
    installs = python is None and not torch
    include = sysconfig.get_path("include") if include is None else include
    ensurepip = ensurepip_version() if ensurepip is None else ensurepip
    disk = free_gb(ROOT) if disk is None else disk
    disk_needed = DISK_CPU if "/whl/cpu" in os.environ.get("PIP_EXTRA_INDEX_URL", "") else DISK_CUDA
    gpu, driver = gpu_and_driver()
    new_enough = tuple(version[:2]) >= OLDEST_PYTHON
    python3 = "python" + ".".join(map(str, OLDEST_PYTHON))
    headers = str(Path(include) / "Python.h")
    has_headers = Path(headers).is_file()
    bin_folder = str(Path(packages).parent)
    cuda_folder = os.path.join(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "bin")
    make, nvcc = tool("make")[0], tool("nvcc", cuda_folder)[0]
    by_pip = "make lecture installs it" if python is None else f"{python} -m pip install"
    by_pip += ", as requirements.txt pins it" if python is not None and IN_CHECKOUT else ""

    found = [
        Check(
            "platform",
            " ".join(system),
            system in {("Linux", "x86_64"), ("Linux", "amd64")},
            "anything: the pinned torch and triton are for Linux on x86-64",
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
            "compiled kernels and timings; on the CPU kernels are interpreted and GPU results shown from record",
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
            "the CUDA kernels on a GPU (the Triton kernels do without)",
            "developer.nvidia.com/cuda-downloads (cuda-toolkit; Debian: nvidia-cuda-toolkit)",
        ),
    ]
    for name, without in (
        ("cmake", "the CMake tests"),
        ("ctest", "the CMake tests"),
        ("ninja", "the CMake tests, the C++ core and the CUDA extension, model.export"),
    ):
        program, why = tool(name, bin_folder)
        moved = IN_CHECKOUT and os.path.exists(os.path.join(bin_folder, name))
        get = "was the checkout moved? make venv mends it" if python is None and moved else by_pip
        found.append(Check(name, program, not why, without, f"{get} ({why})"))
    if installs:
        found.append(
            Check(
                "free disk",
                f"{disk:.1f} GB in {ROOT}" + ("" if disk >= disk_needed else f", too little ({disk_needed} GB needed)"),
                disk >= disk_needed,
                "installing the packages",
                "free some space; without a GPU set PIP_EXTRA_INDEX_URL to PyTorch's CPU builds (see pytorch.org)",
                required=True,
            )
        )
    return found


def compilers() -> list[Check]:
    """The C++ compiler, and those of CUDA's host code that the environment names."""
    text, why = _compiler_and_why_not()
    without = "torch.compile, the CUDA extension, the CMake tests"
    get = why if os.environ.get("CXX") else "apt install g++ (Fedora: gcc-c++)"
    found = [Check("g++", text, not why, without, get, required=True)]
    for variable in ("CC", "CUDAHOSTCXX", "NVCC_CCBIN"):
        if os.environ.get(variable, "").strip():
            text, why = _compiler_and_why_not(variable=variable)
            if not why and len(words := compiler(variable=variable)[0]) > 1:  # nvcc and Triton take no arguments
                text, why = "", f"{variable} is {shlex.join(words)!r}: name one program, a script that calls these"
            found.append(Check(variable, text, not why, "CUDA's host code, and Triton on a GPU", why))
    return found


def table(found: list[Check]) -> str:
    """One line a check: its name and what was found."""
    return "\n".join(f"{check.name:<15} {check.found or 'missing'}" for check in found)


def complaints(found: list[Check]) -> str:
    """Three lines for each check that is not ok: what is wrong, what will not run, how to get it."""
    return "\n".join(
        f"{check.name}: {check.found or 'missing'}\n"
        f"    will not run without it: {check.without}\n"
        f"    how to get it: {check.get}"
        for check in found
        if not check.ok
    )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="What this machine has, and what it lacks for what.")
    parser.add_argument("--python", metavar="PATH", help="the Python with the packages (default: .venv/bin/python)")
    parser.add_argument("--require", action="store_true", help="say only what make lecture cannot do without, exit 1")
    args = parser.parse_args(argv)
    found = checks(args.python or (None if IN_CHECKOUT else sys.executable))
    if not IN_CHECKOUT:
        found = [check for check in found if check.name not in OF_THE_CHECKOUT]
    if not args.require:
        print(table(found) + "\n")
        print(complaints(found) or "Nothing is missing.")
        return 0
    fatal = [check for check in found if check.required and not check.ok]
    if fatal:
        print(complaints(fatal), file=sys.stderr)
    return 1 if fatal else 0


if __name__ == "__main__":
    sys.exit(main())
