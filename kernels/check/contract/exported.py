"""An exported program, stored, and loaded where nothing but `import kernels` has run."""

from __future__ import annotations

from pathlib import Path

import torch

from ...dispatch import core
from .. import fresh

# With what torch.export.load imports, which knows nothing of an op.
IMPORTED = "kernels, torch, torch._export.serde.serialize"
LOAD = """
import contextlib, sys, torch
from kernels.dispatch import core
program, arguments, result, on_host = sys.argv[1:]
with core.on_host() if on_host == "True" else contextlib.nullcontext():
    torch.save(torch.export.load(program).module()(*torch.load(arguments)), result)
"""


def result_in_a_fresh_process(program: torch.export.ExportedProgram, arguments: tuple, folder: Path):
    """What the program gives for these arguments in a process of its own; both are stored in this folder."""
    paths = [folder / name for name in ("program.pt2", "arguments.pt", "result.pt")]
    torch.export.save(program, paths[0])
    torch.save(arguments, paths[1])
    ended = fresh.run(LOAD, *paths, str(core.runs_on_host()), imported=IMPORTED)
    assert ended.returncode == 0, ended.stderr
    return torch.load(paths[2])
