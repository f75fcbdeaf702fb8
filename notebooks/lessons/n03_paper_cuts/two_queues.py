"""What a wait of the host costs, by arithmetic: a host that launches, and a GPU that runs what was launched.

The unit is the time of a launch. A kernel begins when it has been launched and the one before it is done.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

LAUNCH_BOUND = (0.25, 0.25, 0.25, 0.25, 0.25, 0.25)  # kernels' times, in launches
GPU_BOUND = (0.25, 0.25, 0.25, 0.25, 6.0, 6.0)


@dataclass(frozen=True)
class Steps:
    """Intervals (begin, end): the host's launches, its waits, the GPU's kernels; ends: when the GPU has done a step."""

    launches: list[tuple[float, float]]
    waits: list[tuple[float, float]]
    kernels: list[tuple[float, float]]
    ends: list[float]

    @property
    def step(self) -> float:
        """How long a step takes, the first left out."""
        return (self.ends[-1] - self.ends[0]) / (len(self.ends) - 1)


def simulate(kernels: Sequence[float], waits: bool, steps: int = 3) -> Steps:
    """So many steps; waits: whether the host reads a number of the GPU behind each."""
    done = Steps([], [], [], [])
    host = free = 0.0
    for _ in range(steps):
        for time in kernels:
            done.launches.append((host, host + 1))
            host += 1
            begin = max(host, free)
            free = begin + time
            done.kernels.append((begin, free))
        done.ends.append(free)
        if waits:
            done.waits.append((host, free))
            host = free
    return done
