"""Which programs, compiler and driver this process really uses, each asked whether it runs.

Standard library only, and syntax that Python 3.8 reads: the doctor is run by a Python that may be too old. CUDA is
never called and torch never imported.
"""

from __future__ import annotations

import ctypes
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

COMPILERS = ("g++", "c++")  # where CXX names none


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
    message = done.stderr.decode(errors="replace").strip().split("\n")[0]
    if done.returncode:
        return "", f"exit status {done.returncode}" + (f": {message}" if message else "")
    return done.stdout.decode(errors="replace"), ""


def compiler(path: str | None = None, variable: str = "CXX") -> tuple[list[str], str]:
    """The words of the C++ compiler's command, and why there is no such program ('' if there is one).

    The variable may hold several: `ccache g++`, `env g++`, `g++ -m64`. Programs are looked for in path, or in PATH.
    """
    command = os.environ.get(variable, "").strip()
    if command:
        words = [command] if shutil.which(command, path=path) else _words(command)
    else:
        words = [next((name for name in COMPILERS if shutil.which(name, path=path)), COMPILERS[0])]
    if program := shutil.which(words[0], path=path):
        if os.sep in words[0]:  # a build has another working directory
            words[0] = os.path.abspath(program)
        return words, ""
    named = f" ({variable} is {command!r})" if command and command != words[0] else ""
    get = f"set {variable} to one that is there, or unset it" if command else f"apt install g++, or set {variable}"
    return words, f"the {_kind(variable)} {words[0]} is missing{named}: {get}"


def _kind(variable: str) -> str:
    return "C++ compiler" if variable == "CXX" else f"compiler that {variable} names,"


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:  # a quotation that does not end
        return [command]


def why_no_compiler(path: str | None = None, variable: str = "CXX") -> str:
    """Why the C++ compiler cannot be called, asked of itself; '' if it can."""
    return compiler_and_why_not(path, variable)[1]


def compiler_and_why_not(path: str | None = None, variable: str = "CXX") -> tuple[str, str]:
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
