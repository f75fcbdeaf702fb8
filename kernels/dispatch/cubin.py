"""Triton kernels compiled ahead of their calls, and kept on disk: a warm cache needs no Triton at all.

A cubin's key is everything that it is specialised on: the source (with all that it imports from kernels/), the
arguments' types and which of them are divisible by 16, the constants, the architecture, Triton's version.

`python -m kernels.dispatch.cubin` compiles one for another process, in which Triton interprets.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import os
import re
import subprocess
import sys
import threading
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

from .. import runtime
from ..runtime import KERNELS
from .cubin_files import COOPERATIVE, CUBINS, EARLY, PLAIN, Compiled, description_of, read, write
from .included_files import imported_files

FORMAT = 2  # of the files in the cache
OPTIONS = ("num_warps", "num_stages", "maxnreg", "launch_cooperative_grid", "launch_pdl")

_compiling = threading.Lock()


@dataclass(frozen=True, eq=False)
class Kernel:
    """A specialisation of a Triton function.

    types: of the arguments without the constants, in order: "*fp32", "i32", "fp32", …; "none" for None; those divisible
        by 16 end in ":16". constants: (name, value) of the constexprs, num_warps and num_stages. arch: 90 for sm_90.
    """

    module: str
    name: str
    types: tuple[str, ...]
    constants: tuple[tuple[str, object], ...]
    arch: int

    def __eq__(self, other: object) -> bool:
        return repr(self) == repr(other)  # 1, 1.0 and True are equal, and are other constants

    def __hash__(self) -> int:
        return hash(repr(self))

    def __str__(self) -> str:
        constants = ", ".join(f"{name}={value!r}" for name, value in self.constants)
        return f"{self.module}.{self.name}({', '.join(self.types)}; {constants}) for sm_{self.arch}"


def compiled(kernel: Kernel, cache: Path | None = None) -> Compiled:
    """The kernel's cubin, from the cache or compiled into it.

    Raises:
        RuntimeError: Triton's error; a kernel that takes more than the launch can give (scratch memory, clusters); a
            file of the cache that is damaged or for another architecture, named.
    """
    stem = (cache or CUBINS) / f"{kernel.name}-{_key(kernel)}"
    description = description_of(stem)
    if not description.is_file():
        with _compiling:
            if not description.is_file():
                _compile_here_or_there(kernel, stem)
    return read(stem, kernel.arch)


@functools.cache
def _source_sha256(module: str) -> str:
    digest = hashlib.sha256()
    for file in imported_files(Path(importlib.util.find_spec(module).origin)):
        digest.update(repr((file.name, file.read_bytes())).encode())
    return digest.hexdigest()


@functools.cache
def _triton_version() -> str:
    return version("triton")


def _key(kernel: Kernel) -> str:
    depends = (FORMAT, _source_sha256(kernel.module), _triton_version(), kernel)
    return hashlib.sha256(repr(depends).encode()).hexdigest()[:20]


def _compile_here_or_there(kernel: Kernel, stem: Path) -> None:
    """With the interpreter on, @triton.jit gives nothing that compiles: then in a process without it."""
    if runtime.triton_mode() != "interpreted":
        return compile_into(kernel, stem)
    done = subprocess.run(
        [sys.executable, "-m", f"{__package__}.cubin", str(stem)],
        input=repr(asdict(kernel)),
        env=os.environ | {"TRITON_INTERPRET": "0", "PYTHONPATH": os.pathsep.join([str(KERNELS.parent), *sys.path])},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"compiling {kernel} failed:\n{done.stderr[-2000:]}")


def compile_into(kernel: Kernel, stem: Path) -> None:
    """Compile with Triton, and write it as `stem`."""
    image, ptx, launch = compile_to_cubin(kernel)
    about = {"triton": _triton_version(), "kernel": str(kernel)}
    write(stem, image, kernel.arch, about, kind=kind_of(kernel, ptx), **launch)


def compile_to_cubin(kernel: Kernel) -> tuple[bytes, str, dict]:
    """(cubin, PTX, Compiled's fields but path and kind) by Triton, with no cache."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    function = getattr(importlib.import_module(kernel.module), kernel.name)
    constants = dict(kernel.constants)
    options = {name: constants.pop(name) for name in OPTIONS if name in constants}
    names = [name for name in function.arg_names if name not in constants]
    if len(names) != len(kernel.types):
        raise RuntimeError(f"{kernel.module}.{kernel.name} takes {len(names)} arguments ({', '.join(names)}), the "
                           f"launch gives {len(kernel.types)}")
    types = dict(zip(names, kernel.types, strict=True))
    signature, attributes = {}, {}
    for index, name in enumerate(function.arg_names):
        type_, _, divisible = types.get(name, "constexpr").partition(":")
        signature[name] = "constexpr" if type_ == "none" else type_
        if type_ == "none":
            constants[name] = None
        if divisible:
            attributes[(index,)] = [["tt.divisibility", 16]]
    source = ASTSource(fn=function, signature=signature, constexprs=constants, attrs=attributes)
    compiled_kernel = triton.compile(source, target=GPUTarget("cuda", kernel.arch, 32), options=options)
    metadata = compiled_kernel.metadata
    for scratch in ("global_scratch_size", "profile_scratch_size"):
        if getattr(metadata, scratch, 0):
            raise RuntimeError(f"{kernel} needs {scratch}, which a launch from C++ does not give")
    if getattr(metadata, "num_ctas", 1) != 1:
        raise RuntimeError(f"{kernel} is for clusters of blocks, which a launch from C++ does not make")
    parameters = len(re.findall(r"^\s*\.param ", _entry(compiled_kernel.asm["ptx"], metadata.name), re.MULTILINE))
    own = sum(type_ != "none" for type_ in kernel.types)
    if not own <= parameters <= own + 2:
        raise RuntimeError(f"{kernel} takes {parameters} parameters: expected {own}, and at most two of Triton's own")
    threads = re.search(r"\.(?:req|max)ntid\s+(\d+)", compiled_kernel.asm["ptx"])
    return compiled_kernel.asm["cubin"], compiled_kernel.asm["ptx"], {
        "name": metadata.name,
        "threads": int(threads[1]) if threads else 32 * metadata.num_warps,
        "shared": metadata.shared,
        "parameters": parameters,
    }


def kind_of(kernel: Kernel, ptx: str) -> int:
    """PLAIN, COOPERATIVE or EARLY, by the constants that it was compiled with."""
    options = dict(kernel.constants)
    early, cooperative = options.get("launch_pdl", False), options.get("launch_cooperative_grid", False)
    if early and cooperative:
        raise RuntimeError(f"{kernel} cannot be both cooperative and early")
    if early and "griddepcontrol.wait" not in ptx:
        raise RuntimeError(f"{kernel} is to begin before its predecessor has ended, and never waits for it (gdc_wait)")
    return EARLY if early else COOPERATIVE if cooperative else PLAIN


def _entry(ptx: str, name: str) -> str:
    """The parameter list of a kernel in PTX."""
    return re.search(rf"\.entry {re.escape(name)}\((.*?)\)", ptx, re.DOTALL)[1]


if __name__ == "__main__":
    fields = ast.literal_eval(sys.stdin.read())
    compile_into(Kernel(**fields), Path(sys.argv[1]))
