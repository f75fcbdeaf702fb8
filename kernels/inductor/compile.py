"""One generated kernel compiled for a named architecture, without a GPU: in each of Inductor's candidates, or one."""

from __future__ import annotations

import linecache
from dataclasses import dataclass
from typing import Any

from . import fake_gpu
from .machine_code import registers
from .parse import function_of


@dataclass(frozen=True)
class Compiled:
    """A kernel compiled in one of the configurations that Inductor would try; registers: of a thread, None if the
    tool that tells them is not there."""

    name: str
    arch: int
    blocks: dict[str, int]
    num_warps: int
    num_stages: int
    ptx: str
    cubin: bytes
    registers: int | None


def compile_kernel(source: str, arch: int = 90) -> Compiled:
    """PTX and cubin of one kernel's source (`Kernel.source`) for sm_<arch>, without a GPU, in the first of Inductor's
    candidates, which need not be the one that it keeps. Raises Triton's errors."""
    (compiled,) = fake_gpu.ask(_compile, source, arch, 1, True)
    return compiled


def compile_candidates(source: str, arch: int = 90, aligned: bool = True) -> list[Compiled]:
    """The same in all of its candidates, in its order. Which of them it keeps, it measures on a GPU.

    aligned: what Inductor says of the arguments, which are divisible by 16, is said to Triton; if not, that of none.
    """
    return fake_gpu.ask(_compile, source, arch, None, aligned)


def define(text: str, name: str, namespace: dict[str, Any]) -> Any:
    """What the text defines under this name. Triton asks inspect for its source, so the text goes to linecache too."""
    file = f"<{name}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    exec(compile(text, file, "exec"), namespace)
    return namespace[name]


def _compile(source: str, arch: int, first: int | None, aligned: bool) -> list[Compiled]:
    """In the second process, where Inductor's decorator finds a GPU."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    name, results = function_of(source).name, []
    tuner = define(source, name, {"__file__": f"<{name}>", "__name__": name})
    meta = tuner.triton_meta
    for config in tuner.configs[:first]:
        compiled = triton.compile(
            ASTSource(
                tuner.fn,
                meta["signature"],
                {**meta["constants"], **config.kwargs},
                meta["configs"][0] if aligned else {},
            ),
            target=GPUTarget("cuda", arch, 32),
            options={"num_warps": config.num_warps, "num_stages": config.num_stages},
        )
        ptx, cubin = compiled.asm["ptx"], compiled.asm["cubin"]
        blocks = dict(config.kwargs), config.num_warps, config.num_stages
        results.append(Compiled(name, arch, *blocks, ptx, cubin, registers(cubin)))
    return results
