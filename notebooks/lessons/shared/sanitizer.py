"""compute-sanitizer of NVIDIA, where it is: what one of its tools prints of a program."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from kernels.gpu_run.sanitizer import compute_sanitizer

SECONDS = 90


def printed(
    tool: str, command: Sequence[str | Path], *options: str, environment: Mapping[str, str] | None = None
) -> str:
    """What memcheck, racecheck, … print when they run a command. RuntimeError: why nothing was printed."""
    program = compute_sanitizer()
    if program is None:
        raise RuntimeError("compute-sanitizer is not here")
    try:
        done = subprocess.run(
            [program, "--tool", tool, *options, *command], capture_output=True, text=True, errors="replace",
            timeout=SECONDS, check=False, env=os.environ | (environment or {}),
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RuntimeError(f"compute-sanitizer did not end: {type(error).__name__}") from error
    return done.stdout + done.stderr
