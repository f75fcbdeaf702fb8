"""Source → an image for each architecture, without a GPU: by Triton, nvcc or NVRTC.

`<name>.sm_90.cubin` is what the compiler wrote. Triton's has beside it `<name>.sm_90.json`, what a launch must know and
no cubin says: threads, shared memory, the parameters with their types, and what their values must be divisible by.

Triton is told everything. A kernel compiled by a call of it is specialised on that call's arguments, silently: on
pointers and integers that 16 divides, and on integers equal to 1, which are then no parameters any more. Here an
argument is known to be divisible if its type says so ("*fp32:16", "i32:16"), and the launcher refuses another value; an
integer of 1 is known only where it is given among the constants.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from .. import runtime
from ..dispatch import cubin, nvrtc
from ..dispatch.cubin_files import put
from ..dispatch.cuda_source import Source
from ..dispatch.included_files import included_files
from ..runtime import KERNELS
from .python_files import python_files

# Triton's types: the letter of launcher.h's Parameter, and bytes.
TYPES = {
    **{f"{letter}{8 * size}": (letter, size) for letter in "iu" for size in (1, 2, 4, 8)},
    "fp32": ("f", 4),
    "fp64": ("f", 8),
}
DIVISOR = 16  # what Triton knows how to use


class CubinError(RuntimeError):
    """Source, a description or a file that cannot become an image of a program."""


def by_triton(
    function: str, name: str, arch: int, arguments: Mapping[str, str], constants: Mapping[str, object],
    files: set[Path] | None = None,
) -> tuple[bytes, dict]:
    """(cubin, its description) of "module:function". arguments: types by name; constants: num_warps … among them.

    files: here and below, gets what the image is made of. When one of these changes, it must be compiled again.
    """
    module, _, attribute = function.partition(":")
    try:
        jit_function = getattr(importlib.import_module(module), attribute)
        names = jit_function.arg_names
    except (ImportError, AttributeError, ValueError) as error:
        raise CubinError(f"{function} is no Triton function of a module that can be imported: {error}") from None
    known = {*names, *cubin.OPTIONS}
    for key in (*arguments, *constants):
        if key not in known:
            raise CubinError(f"{function} has no argument {key}: it takes {', '.join(names)}")
    for wanted in names:
        if (wanted in arguments) == (wanted in constants):
            how = "both an argument and a constant" if wanted in arguments else "neither an argument nor a constant"
            raise CubinError(f"{function}: {wanted} is {how}")
    ordered = {argument: arguments[argument] for argument in names if argument in arguments}
    parameters = [_parameter(function, *item) for item in ordered.items() if item[1] != "none"]
    kernel = cubin.Kernel(module, attribute, tuple(ordered.values()), tuple(sorted(constants.items())), arch)
    from triton.errors import TritonError

    try:
        image, ptx, launch = cubin.compile_to_cubin(kernel)
    except TritonError as error:
        raise CubinError(f"Triton does not compile {kernel}:\n{error}") from None
    if files is not None:
        files |= python_files(jit_function)
    return image, {
        "name": name,
        "entry": launch["name"],
        "threads": launch["threads"],
        "shared": launch["shared"],
        "kind": cubin.kind_of(kernel, ptx),
        "parameters": parameters,
        "hidden": launch["parameters"] - len(parameters),
    }


def _parameter(function: str, name: str, type_: str) -> dict:
    plain, _, divisor = type_.partition(":")
    if divisor not in ("", str(DIVISOR)):
        raise CubinError(f"{function}: {name} is {type_}; Triton knows divisibility by {DIVISOR} alone")
    if not plain.startswith("*") and plain not in TYPES:
        raise CubinError(f"{function}: {name} is {type_}; a type is *T, {', '.join(TYPES)}, or none")
    if divisor and plain.startswith("fp"):
        raise CubinError(f"{function}: {name} is {type_}; only pointers and integers are divisible")
    letter, size = ("p", 8) if plain.startswith("*") else TYPES[plain]
    return {"name": name, "type": letter, "bytes": size, "multiple": int(divisor or 1)}


def by_nvcc(
    source: Path, arch: int, flags: Sequence[str] = (), files: set[Path] | None = None, *, specific: bool = False
) -> bytes:
    """specific: with the instructions that this architecture alone has, as Source.specific says."""
    nvcc = runtime.nvcc()
    if nvcc is None:
        raise CubinError("nvcc is missing: install the CUDA toolkit, or compile by NVRTC")
    with tempfile.TemporaryDirectory() as folder:
        out, rule = Path(folder) / "image.cubin", Path(folder) / "image.d"
        command = [nvcc, "-cubin", f"-arch=sm_{arch}{'a' * specific}", "-O3", f"-I{KERNELS}", *flags, source, "-o", out]
        command += ["-MD", "-MF", rule]
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
        if done.returncode:
            raise CubinError(f"nvcc does not compile {source} for sm_{arch}:\n{done.stderr or done.stdout}")
        if files is not None:
            files |= {Path(name).absolute() for name in _prerequisites(rule.read_text())}
        return out.read_bytes()


def by_nvrtc(source: Path, arch: int, files: set[Path] | None = None) -> bytes:
    """NVRTC does not say which files it read: `files` gets those that #include names, and none that a macro names."""
    source = source.absolute()
    kernel = nvrtc.Kernel(Source(str(source.with_suffix("")), source.read_text(), threads=0), arch)
    try:
        image = nvrtc.compile_to_cubin(kernel, (), [f"--include-path={KERNELS}"])
    except RuntimeError as error:
        raise CubinError(str(error)) from None
    if files is not None:
        files |= {*included_files(source, (KERNELS,))}
    return image


def depfile(target: Path, files: Sequence[Path]) -> str:
    """A rule of make's: the target is made of these files."""
    escaped = (re.sub(r"([ #])", r"\\\1", str(path)).replace("$", "$$") for path in (target, *sorted(files)))
    return f"{next(escaped)}: {' '.join(escaped)}\n"


def _prerequisites(rule: str) -> list[str]:
    _, _, names = rule.replace("\\\n", " ").partition(": ")
    return [re.sub(r"\\([ #])", r"\1", name).replace("$$", "$") for name in re.findall(r"(?:\\.|\S)+", names)]


def write(folder: Path, name: str, arch: int, image: bytes, description: dict | None = None) -> Path:
    """The image, and before it its description: what finds the image finds both."""
    path = folder / f"{name}.sm_{arch}.cubin"
    if description is not None:
        about = {"arch": arch, "bytes": len(image), "sha256": hashlib.sha256(image).hexdigest()}
        put(path.with_suffix(".json"), json.dumps({**description, **about}, indent=1).encode())
    put(path, image)
    if description is None:  # of the image that was there before
        path.with_suffix(".json").unlink(missing_ok=True)
    return path


def description_of(path: Path) -> dict | None:
    """What `write` wrote beside an image; None if nothing did. Raises CubinError: it is another image's, or damaged."""
    file = path.with_suffix(".json")
    if not file.is_file():
        return None
    try:
        description = json.loads(file.read_text())
        digest = description["sha256"]
        for key in ("name", "entry", "threads", "shared", "kind", "parameters", "hidden"):
            description[key]
    except (ValueError, KeyError, TypeError) as error:
        raise CubinError(f"{file} is no description of a kernel ({type(error).__name__}: {error})") from None
    if hashlib.sha256(path.read_bytes()).hexdigest() != digest:
        raise CubinError(f"{path} is not the image that {file} describes: compile it again")
    return description
