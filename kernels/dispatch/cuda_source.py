"""CUDA source that is written at run time, and the headers that it includes."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..runtime import KERNELS
from .included_files import included_files

INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)


@dataclass(frozen=True)
class Source:
    """A kernel's text, of device code alone; headers of this project it includes by their paths in kernels/.

    name: of the kernel, which is extern "C". threads: a block; shared: bytes of dynamic shared memory a block. waits:
    whether it calls wait_for_predecessor before it touches what the launch before it writes, so that it may be launched
    early. cluster: blocks of a cluster, of which the text says it too (__cluster_dims__), so that a launch need not.
    specific: whether it takes instructions that one architecture alone has, as wgmma: those of sm_90a, not sm_90.
    """

    name: str
    text: str
    threads: int
    shared: int = 0
    waits: bool = False
    cluster: int = 1
    specific: bool = False


def headers_of(text: str) -> tuple[tuple[str, str], ...]:
    """(name, text) of each of this project's headers that the source reaches by #include "…"."""
    files = dict.fromkeys(
        file for name in INCLUDE.findall(text) for file in included_files(KERNELS / name, (KERNELS,))
    )
    return tuple((str(file.relative_to(KERNELS)), file.read_text()) for file in files)
