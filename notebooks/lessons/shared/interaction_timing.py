"""DLRM's interaction on this machine, whatever it is: as the model computes it, and by the op."""

from __future__ import annotations

import torch

import kernels
from kernels import runtime
from lessons.shared.timing import print_times
from model.arches import InteractionArch
from model.config import Interaction

TOLERANCE = 1e-5  # of the largest number: float32 sums, added up in another order


def time_interaction(batch: int = 2048, features: int = 26, width: int = 16) -> None:
    """Print the times of the model's interaction, and of the op."""
    arch = InteractionArch(Interaction.DOT, features, width).to(runtime.device())
    dense, sparse = (torch.randn(batch, *shape, device=runtime.device()) for shape in ((width,), (features, width)))
    print_times(
        {
            "InteractionArch": lambda: arch(dense, sparse),
            "dot_interaction": lambda: kernels.dot_interaction(dense, sparse),
        },
        TOLERANCE,
    )
