"""26 look-ups as a module: a table a column of ids, as the notebook's cell has it, and all tables in one tensor."""

import torch
from torch import Tensor, nn

from lessons.shared.dlrm import embedding

RAISED = {"max_pointwise_cat_inputs": 32}  # inputs of a stack or a cat; 8 by default
FORCED = {"force_pointwise_cat": True}  # however many there are


class LookUps(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.sizes = sizes
        self.tables = nn.ModuleList(embedding(n + 1, 16) for n in sizes)

    def forward(self, ids):  # [B, F] -> [B, F, 16]
        rows = [(ids[:, f] + 1) % n for f, n in enumerate(self.sizes)]
        return torch.stack([table(r) for table, r in zip(self.tables, rows, strict=True)], dim=1)


class OneTensor(nn.Module):
    """The same tables, one behind the other in one tensor."""

    def __init__(self, apart: LookUps):
        super().__init__()
        self.weight = nn.Parameter(torch.cat([table.weight.detach() for table in apart.tables]))
        sizes = torch.tensor(apart.sizes, device=self.weight.device)
        self.register_buffer("sizes", sizes)
        self.register_buffer("starts", (sizes + 1).cumsum(0) - sizes - 1)

    def forward(self, ids: Tensor) -> Tensor:
        return self.weight[(ids + 1) % self.sizes + self.starts]
