"""The peers of what is fused: torch.compile with default settings, and tuned by an expert.

    torch.compile             the tables in one tensor, whose look-up Inductor leaves to PyTorch's own kernel, since its
                              gradient is sparse
    …, combo_kernels          a tensor a table, with dense gradients: Inductor writes the look-ups, and puts up to eight
                              kernels that need nothing of each other into one
    …, 32 look-ups a kernel   as before, in one kernel for up to 32 tables, where its defaults stop at 8; torch 2.11 has
                              no option for it
    …, padded                 the rows that the top MLP reads, and its first weight's, are filled up with zeros to a
                              multiple of 8 columns, since cuBLAS is slow on rows that are no multiple of 16 bytes

The weight is filled up once, before. A step leaves these columns as they are: they are multiplied by zeros, so their
gradient is zero, and neither SGD nor Adagrad moves them. To fill up the weight in each step would cost a copy more. The
rows are filled up in the kernel that picks the interaction's pairs.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kernels.inductor import together
from model.arches import InteractionArch
from model.config import DLRMConfig, Interaction, Precision
from model.dlrm import DLRM

COLUMNS = 8  # 16 bytes in half precision, 32 in float32


@dataclass(frozen=True)
class Compiled:
    """A way to compile a DLRM of eager kernels.

    look_ups: the name of Inductor's setting for a tensor a table. padded: with rows that are filled up. See above.
    """

    look_ups: str = ""
    padded: bool = False

    @property
    def name(self) -> str:
        return ", ".join(["torch.compile", *filter(None, [self.look_ups]), *["padded"] * self.padded])

    def may_win(self, shape: DLRMConfig, rows: int, precision: Precision, training: bool) -> bool:
        """Whether this torch has its settings, they change what is computed, and they may save time.

        Rows that are aligned need no filling up, nor do rows that no tensor core reads. In training a dense gradient
        has a row for each row of the tables, and a sparse one a row for each id of the batch. So a tensor a table does
        not pay where the tables have more rows than the batch has ids.
        """
        features = len(shape.cardinalities)
        inputs = InteractionArch(shape.interaction, features, shape.embedding_dim).out_features
        unaligned = shape.interaction is Interaction.DOT and bool(_fill(inputs))
        fits_padding = not self.padded or (unaligned and precision is not Precision.FP32)
        fits_dense = not self.look_ups or not training or sum(shape.cardinalities) <= rows * features
        return fits_padding and fits_dense and (not self.look_ups or self.look_ups in together())

    def prepare(self, model: DLRM) -> None:
        """Fill up what the model reads and its weight, if asked for; before there is an optimizer."""
        if self.padded:
            plain, first = model.interaction_arch, model.over_arch.mlp[0]
            model.interaction_arch = PaddedDot(plain.num_features, plain.embedding_dim).to(first.weight.device)
            first.weight = nn.Parameter(F.pad(first.weight.detach(), (0, _fill(first.in_features))))

    @property
    def options(self) -> dict[str, int]:
        """Inductor's options."""
        return together()[self.look_ups] if self.look_ups else {}

    def compile(self, function: Callable) -> Callable:
        """The function, a model or its method, compiled."""
        return torch.compile(function, dynamic=False, options=self.options)


LOOK_UPS = "", "combo_kernels", "32 look-ups a kernel"
COMPILED = {way.name: way for way in (Compiled(look_ups, padded) for look_ups in LOOK_UPS for padded in (False, True))}


class PaddedDot(InteractionArch):
    """The dot interaction, with columns of zeros behind: dense [B, D], sparse [B, F, D] → [B, a multiple of 8]."""

    def __init__(self, num_features: int, embedding_dim: int):
        super().__init__(Interaction.DOT, num_features, embedding_dim)
        self.fill = _fill(self.out_features)

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        vectors = torch.cat([dense.unsqueeze(1), sparse], dim=1)
        i, j = self.pairs
        pairs = (vectors @ vectors.transpose(1, 2))[:, i, j]
        # Inductor fuses the filling up of the pairs into their kernel; of the whole row it makes one more.
        return torch.cat([dense, F.pad(pairs, (0, self.fill))], dim=1)


def _fill(columns: int) -> int:
    return -columns % COLUMNS
