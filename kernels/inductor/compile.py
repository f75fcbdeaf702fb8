"""One generated kernel compiled for a named architecture, without a GPU."""

from __future__ import annotations

import linecache
from dataclasses import dataclass
from typing import Any

from kernels.inductor import fake_gpu
from kernels.inductor.parse import function_of


@dataclass(frozen=True)
class Compiled:
    """A kernel compiled in the first of the configurations that Inductor would try."""

    name: str
    arch: int
    blocks: dict[str, int]
    num_warps: int
    ptx: str
    cubin: bytes


def compile_kernel(source: str, arch: int = 90) -> Compiled:
    """PTX and cubin of one kernel's source (`Kernel.source`) for sm_<arch>, without a GPU. Raises Triton's errors."""
    return fake_gpu.ask(_compile, source, arch)


def define(text: str, name: str, namespace: dict[str, Any]) -> Any:
    """What the text defines under this name. Triton asks inspect for its source, so the text goes to linecache too."""
    file = f"<{name}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    exec(compile(text, file, "exec"), namespace)
    return namespace[name]


def _compile(source: str, arch: int) -> Compiled:
    """In the second process, where Inductor's decorator finds a GPU."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    name = function_of(source).name
    tuner = define(source, name, {"__file__": f"<{name}>", "__name__": name})
    config, meta = tuner.configs[0], tuner.triton_meta
    compiled = triton.compile(
        ASTSource(tuner.fn, meta["signature"], {**meta["constants"], **config.kwargs}, meta["configs"][0]),
        target=GPUTarget("cuda", arch, 32),
        options={"num_warps": config.num_warps, "num_stages": config.num_stages},
    )
    return Compiled(name, arch, dict(config.kwargs), config.num_warps, compiled.asm["ptx"], compiled.asm["cubin"])
