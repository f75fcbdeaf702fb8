"""Triton kernels compiled ahead of their calls, and kept on disk: a warm cache needs no Triton at all.

A cubin's key is everything that it is specialised on: the source (with all that it imports from kernels/), the
arguments' types and which of them are divisible by 16, the constants, the architecture, Triton's version. Each is two
files in build/cubins/: the cubin, and a JSON file with what a launch must know and how the cubin came about.

`python -m kernels.dispatch.cubin` compiles one for another process, in which Triton interprets.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

from kernels import runtime
from kernels.dispatch.included_files import imported_files
from kernels.runtime import KERNELS

CUBINS = KERNELS.parent / "build" / "cubins"
FORMAT = 2  # of the files in the cache
OPTIONS = ("num_warps", "num_stages", "maxnreg", "launch_cooperative_grid", "launch_pdl")
PLAIN, COOPERATIVE, EARLY = range(3)  # driver.h's Kind

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


@dataclass(frozen=True)
class Compiled:
    """A compiled kernel: its file and what a launch of it must know.

    threads: a block; shared: bytes of shared memory a block; parameters: how many the kernel takes, Triton's hidden
    ones at the end included; kind: PLAIN, COOPERATIVE if all blocks must be resident at once, or EARLY if the kernel
    may begin before the one before it in the stream has ended (launch_pdl).
    """

    path: str
    name: str
    threads: int
    shared: int
    parameters: int
    kind: int


def compiled(kernel: Kernel, cache: Path | None = None) -> Compiled:
    """The kernel's cubin, from the cache or compiled into it.

    Raises:
        RuntimeError: Triton's error; a kernel that takes more than the launch can give (scratch memory, clusters); a
            file of the cache that is damaged or for another architecture, named.
    """
    stem = (cache or CUBINS) / f"{kernel.name}-{_key(kernel)}"
    description = stem.with_suffix(".json")
    if not description.is_file():
        with _compiling:
            if not description.is_file():
                _compile_here_or_there(kernel, stem)
    return _read(description, kernel)


def _read(description: Path, kernel: Kernel) -> Compiled:
    again = f"remove {description} and it is compiled again"
    try:
        found = json.loads(description.read_text())
        cubin = description.with_name(found["cubin"])
        image = cubin.read_bytes()
        launch = {name: found[name] for name in ("name", "threads", "shared", "parameters", "kind")}
        size, digest, arch = found["bytes"], found["sha256"], found["arch"]
    except (OSError, ValueError, KeyError) as error:
        raise RuntimeError(f"the cached kernel {description.stem} cannot be read ({error}): {again}") from None
    if len(image) != size:
        raise RuntimeError(f"the cached kernel {cubin} is truncated, {len(image)} of {size} bytes: {again}")
    if hashlib.sha256(image).hexdigest() != digest:
        raise RuntimeError(f"the cached kernel {cubin} was changed: {again}")
    if arch != kernel.arch:
        raise RuntimeError(f"the cached kernel {cubin} is for sm_{arch}, this GPU is sm_{kernel.arch}: {again}")
    return Compiled(str(cubin), **launch)


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
        [sys.executable, "-m", "kernels.dispatch.cubin", str(stem)],
        input=repr(asdict(kernel)),
        env=os.environ | {"TRITON_INTERPRET": "0", "PYTHONPATH": os.pathsep.join([str(KERNELS.parent), *sys.path])},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"compiling {kernel} failed:\n{done.stderr[-2000:]}")


def compile_into(kernel: Kernel, stem: Path) -> None:
    """Compile with Triton, and write stem.cubin and stem.json, whole or not at all."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    function = getattr(importlib.import_module(kernel.module), kernel.name)
    constants = dict(kernel.constants)
    options = {name: constants.pop(name) for name in OPTIONS if name in constants}
    given = [name for name in function.arg_names if name not in constants]
    if len(given) != len(kernel.types):
        raise RuntimeError(f"{kernel.module}.{kernel.name} takes {len(given)} arguments ({', '.join(given)}), the "
                           f"launch gives {len(kernel.types)}")
    types = dict(zip(given, kernel.types, strict=True))
    signature, attributes = {}, {}
    for index, name in enumerate(function.arg_names):
        type_, _, divisible = types.get(name, "constexpr").partition(":")
        signature[name] = "constexpr" if type_ == "none" else type_
        if type_ == "none":
            constants[name] = None
        if divisible:
            attributes[(index,)] = [["tt.divisibility", 16]]
    source = ASTSource(fn=function, signature=signature, constexprs=constants, attrs=attributes)
    made = triton.compile(source, target=GPUTarget("cuda", kernel.arch, 32), options=options)
    metadata = made.metadata
    for scratch in ("global_scratch_size", "profile_scratch_size"):
        if getattr(metadata, scratch, 0):
            raise RuntimeError(f"{kernel} needs {scratch}, which a launch from C++ does not give")
    if getattr(metadata, "num_ctas", 1) != 1:
        raise RuntimeError(f"{kernel} is for clusters of blocks, which a launch from C++ does not make")
    parameters = len(re.findall(r"^\s*\.param ", _entry(made.asm["ptx"], metadata.name), re.MULTILINE))
    own = sum(type_ != "none" for type_ in kernel.types)
    if not own <= parameters <= own + 2:
        raise RuntimeError(f"{kernel} takes {parameters} parameters: expected {own}, and at most two of Triton's own")
    threads = re.search(r"\.(?:req|max)ntid\s+(\d+)", made.asm["ptx"])
    image = made.asm["cubin"]
    digest = hashlib.sha256(image).hexdigest()
    description = {
        # Named by its contents, so that processes that compile at once cannot mix theirs.
        "cubin": f"{stem.name}-{digest[:8]}.cubin",
        "name": metadata.name,
        "threads": int(threads[1]) if threads else 32 * metadata.num_warps,
        "shared": metadata.shared,
        "parameters": parameters,
        "kind": _kind(options, made.asm["ptx"], kernel),
        "arch": kernel.arch,
        "bytes": len(image),
        "sha256": digest,
        "triton": triton.__version__,
        "kernel": str(kernel),
    }
    _write(stem.with_name(description["cubin"]), image)
    _write(stem.with_suffix(".json"), json.dumps(description, indent=1).encode())  # last: by it the cubin is found


def _kind(options: dict, ptx: str, kernel: Kernel) -> int:
    early, cooperative = options.get("launch_pdl", False), options.get("launch_cooperative_grid", False)
    if early and cooperative:
        raise RuntimeError(f"{kernel} cannot be both cooperative and early")
    if early and "griddepcontrol.wait" not in ptx:
        raise RuntimeError(f"{kernel} is to begin before its predecessor has ended, and never waits for it (gdc_wait)")
    return EARLY if early else COOPERATIVE if cooperative else PLAIN


def _entry(ptx: str, name: str) -> str:
    """The parameter list of a kernel in PTX."""
    return re.search(rf"\.entry {re.escape(name)}\((.*?)\)", ptx, re.DOTALL)[1]


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(data)
    Path(file.name).chmod(0o644)
    Path(file.name).replace(path)


if __name__ == "__main__":
    given = ast.literal_eval(sys.stdin.read())
    compile_into(Kernel(**given), Path(sys.argv[1]))
