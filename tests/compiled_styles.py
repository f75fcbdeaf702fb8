"""DLRMs as others write them, small: in the style of facebookresearch/dlrm, and of torchrec."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn

ROWS, WIDTH, FEATURES = (10, 20, 30), 8, 3


class Facebook(nn.Module):
    """As dlrm_s_pytorch.py: an EmbeddingBag with offsets a table; the pairs' indices are made by Python in forward."""

    def __init__(self, sparse: bool = False):
        super().__init__()
        self.emb_l = nn.ModuleList(nn.EmbeddingBag(rows, WIDTH, mode="sum", sparse=sparse) for rows in ROWS)
        self.bot_l = self.mlp((13, 16, WIDTH), -1)
        self.top_l = self.mlp((WIDTH + (FEATURES + 1) * FEATURES // 2, 16, 1), 1)

    @staticmethod
    def mlp(widths: tuple[int, ...], sigmoid_layer: int) -> nn.Sequential:
        layers = nn.ModuleList()
        for i, (inputs, outputs) in enumerate(itertools.pairwise(widths)):
            layers += [nn.Linear(inputs, outputs), nn.Sigmoid() if i == sigmoid_layer else nn.ReLU()]
        return nn.Sequential(*layers)

    def forward(self, dense: Tensor, offsets: Tensor, ids: Tensor) -> Tensor:
        x = self.bot_l(dense)
        ly = [table(ids[k], offsets[k]) for k, table in enumerate(self.emb_l)]
        return self.top_l(self.interact(x, ly))

    def interact(self, x: Tensor, ly: list[Tensor]) -> Tensor:
        batch_size, d = x.shape
        t = torch.cat([x, *ly], dim=1).view((batch_size, -1, d))
        z = torch.bmm(t, torch.transpose(t, 1, 2))
        _, ni, nj = z.shape
        li = torch.tensor([i for i in range(ni) for j in range(i)])
        lj = torch.tensor([j for i in range(nj) for j in range(i)])
        return torch.cat([x, z[:, li, lj]], dim=1)

    @staticmethod
    def inputs(rows: int) -> tuple[Tensor, ...]:
        """Two ids a bag."""
        offsets = torch.arange(rows).mul(2).repeat(FEATURES, 1)
        return torch.rand(rows, 13), offsets, torch.randint(10, (FEATURES, 2 * rows))


class Perceptron(nn.Module):
    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self._linear, self._activation_fn = nn.Linear(inputs, outputs), torch.relu

    def forward(self, x: Tensor) -> Tensor:
        return self._activation_fn(self._linear(x))


class Torchrec(nn.Module):
    """As torchrec.models.dlrm: perceptrons, values with offsets for all features, the upper triangle's pairs."""

    def __init__(self):
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(r, WIDTH, mode="sum", include_last_offset=True) for r in ROWS)
        self.dense_arch = nn.Sequential(Perceptron(13, 16), Perceptron(16, WIDTH))
        self.triu_indices = torch.triu_indices(FEATURES + 1, FEATURES + 1, offset=1)
        self.over = nn.Sequential(Perceptron(WIDTH + (FEATURES + 1) * FEATURES // 2, 16), nn.Linear(16, 1))

    def forward(self, dense: Tensor, values: Tensor, offsets: Tensor) -> Tensor:
        d = self.dense_arch(dense)
        sparse = self.pooled(values, offsets, d.shape[0])
        combined = torch.cat((d.unsqueeze(1), sparse), dim=1)
        products = torch.bmm(combined, torch.transpose(combined, 1, 2))
        flat = products[:, self.triu_indices[0], self.triu_indices[1]]
        return self.over(torch.cat((d, flat), dim=1))

    def pooled(self, values: Tensor, offsets: Tensor, rows: int) -> Tensor:
        bounds = offsets[::rows].tolist()  # which the host waits for: torch.compile cuts the graph here
        pooled = []
        for k, bag in enumerate(self.bags):
            low, high = bounds[k], bounds[k + 1]
            pooled.append(bag(values[low:high], offsets[k * rows : (k + 1) * rows + 1] - low))
        return torch.cat(pooled, dim=1).reshape(-1, FEATURES, WIDTH)

    @staticmethod
    def inputs(rows: int) -> tuple[Tensor, ...]:
        """Up to three ids a bag."""
        offsets = torch.cat([torch.zeros(1, dtype=torch.long), torch.randint(0, 4, (FEATURES * rows,)).cumsum(0)])
        return torch.rand(rows, 13), torch.randint(10, (int(offsets[-1]),)), offsets
