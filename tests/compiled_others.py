"""Models that are no DLRM, small, as their papers and PyTorch's own modules have them: what backend="fused_kernels" may
replace parts of, and must leave right."""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def mlp(*widths: int, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Linear layers with an activation between them, and none behind."""
    layers = [part for a, b in itertools.pairwise(widths) for part in (nn.Linear(a, b), activation())]
    return nn.Sequential(*layers[:-1])


class TwoTower(nn.Module):
    """users [U], items [I] → [U, I], the cosines of each with each."""

    def __init__(self):
        super().__init__()
        self.users, self.items = nn.Embedding(100, 32), nn.Embedding(50, 32)
        self.query, self.item = mlp(32, 64, 16), mlp(32, 64, 16)

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        query, item = self.query(self.users(users)), self.item(self.items(items))
        return F.normalize(query) @ F.normalize(item).t()


class ResidualBlock(nn.Module):
    """ResNet's basic block (He et al. 2016), with a projection beside it, and a classifier: [B, 3, H, W] → [B, 10]."""

    def __init__(self, channels: int = 8):
        super().__init__()
        self.one = nn.Conv2d(3, channels, 3, stride=2, padding=1, bias=False)
        self.two = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)
        self.beside = nn.Sequential(nn.Conv2d(3, channels, 1, stride=2, bias=False), nn.BatchNorm2d(channels))
        self.fc = nn.Linear(channels, 10)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.norm1(self.one(x)), inplace=True)
        out = F.relu(self.norm2(self.two(out)) + self.beside(x))
        return self.fc(torch.flatten(F.adaptive_avg_pool2d(out, 1), 1))


class DeepFM(nn.Module):
    """Guo et al. 2017: a linear term, the pairs of a factorization machine, and an MLP, of one table for all fields.
    ids [B, F] → [B]."""

    def __init__(self, heights: tuple[int, ...] = (10, 20, 30), width: int = 4):
        super().__init__()
        self.register_buffer("starts", torch.tensor([0, *itertools.accumulate(heights)][:-1]))
        self.first, self.table = nn.Embedding(sum(heights), 1), nn.Embedding(sum(heights), width)
        self.bias = nn.Parameter(torch.zeros(1))
        self.deep = mlp(len(heights) * width, 16, 16, 1)

    def forward(self, ids: Tensor) -> Tensor:
        ids = ids + self.starts
        v = self.table(ids)
        pairs = 0.5 * (v.sum(1).square() - v.square().sum(1)).sum(1)
        return torch.sigmoid(self.first(ids).sum((1, 2)) + self.bias + pairs + self.deep(v.flatten(1)).squeeze(1))


class DCN(nn.Module):
    """DCN-v2 (Wang et al. 2021), parallel: cross layers x₀ ⊙ (W x + b) + x beside an MLP. dense [B, 5], ids [F, B]."""

    def __init__(self, heights: tuple[int, ...] = (10, 20, 30), width: int = 4):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(height, width) for height in heights)
        columns = 5 + len(heights) * width
        self.cross = nn.ModuleList(nn.Linear(columns, columns) for _ in range(2))
        self.deep = nn.Sequential(mlp(columns, 16, 8), nn.ReLU())
        self.out = nn.Linear(columns + 8, 1)

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        x0 = torch.cat([dense, *(table(ids[k]) for k, table in enumerate(self.tables))], 1)
        x = x0
        for layer in self.cross:
            x = x0 * layer(x) + x
        return torch.sigmoid(self.out(torch.cat([x, self.deep(x0)], 1)))


class WideAndDeep(nn.Module):
    """Cheng et al. 2016: crossed ids as one weight each, beside an MLP of tables of two widths. dense [B, 5], ids
    [3, B], bags of crossed ids [B, 2]."""

    def __init__(self):
        super().__init__()
        self.wide = nn.EmbeddingBag(100, 1, mode="sum")
        self.tables = nn.ModuleList(nn.Embedding(height, width) for height, width in ((10, 4), (20, 4), (30, 8)))
        self.deep = mlp(5 + 16, 32, 16, 1)

    def forward(self, dense: Tensor, ids: Tensor, crossed: Tensor) -> Tensor:
        looked_up = [table(ids[k]) for k, table in enumerate(self.tables)]
        return torch.sigmoid(self.wide(crossed) + self.deep(torch.cat([dense, *looked_up], 1)))


class Recurrent(nn.Module):
    """A classifier of sequences, words [B, T]: a GRU or an LSTM, and layers on what is last."""

    def __init__(self, cell: type[nn.RNNBase]):
        super().__init__()
        self.words, self.cell, self.head = nn.Embedding(50, 8), cell(8, 16, batch_first=True), mlp(16, 16, 3)

    def forward(self, words: Tensor) -> Tensor:
        out, _ = self.cell(self.words(words))
        return self.head(out[:, -1])


class VAE(nn.Module):
    """Kingma and Welling 2014; the noise [B, 4] is given. x [B, 12] → reconstruction, and the divergence [B]."""

    def __init__(self):
        super().__init__()
        self.hidden, self.mean, self.log_variance = nn.Linear(12, 16), nn.Linear(16, 4), nn.Linear(16, 4)
        self.decoder = nn.Sequential(mlp(4, 16, 12), nn.Sigmoid())

    def forward(self, x: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        hidden = F.relu(self.hidden(x))
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        z = mean + torch.exp(0.5 * log_variance) * noise
        return self.decoder(z), -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(1)


class MixerBlock(nn.Module):
    """MLP-Mixer (Tolstikhin et al. 2021): an MLP across the patches, then one across the channels. x [B, 6, 8]."""

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(8), nn.LayerNorm(8)
        self.tokens, self.channels = mlp(6, 12, 6, activation=nn.GELU), mlp(8, 32, 8, activation=nn.GELU)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norm2(x))


class MMoE(nn.Module):
    """Ma et al. 2018: experts that all tasks share, a softmax gate and a tower a task. x [B, 10] → [B, 2]."""

    def __init__(self, experts: int = 3, tasks: int = 2):
        super().__init__()
        self.experts = nn.ModuleList(nn.Sequential(mlp(10, 16, 8), nn.ReLU()) for _ in range(experts))
        self.gates = nn.ModuleList(nn.Linear(10, experts, bias=False) for _ in range(tasks))
        self.towers = nn.ModuleList(mlp(8, 8, 1) for _ in range(tasks))

    def forward(self, x: Tensor) -> Tensor:
        of_experts = torch.stack([expert(x) for expert in self.experts], 1)
        tasks = []
        for gate, tower in zip(self.gates, self.towers, strict=True):
            mixed = (torch.softmax(gate(x), 1).unsqueeze(2) * of_experts).sum(1)
            tasks.append(tower(mixed))
        return torch.sigmoid(torch.cat(tasks, 1))


class Deciding(nn.Module):
    """Control flow that hangs on the data, for which torch.compile cuts the graph: x [B, 8]."""

    def __init__(self):
        super().__init__()
        self.first, self.small, self.large = mlp(8, 8, 8), mlp(8, 16, 2), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if x.abs().max() > 1:
            x = x / 2
        return self.small(x) if x.sum() > 0 else self.large(x)


class Decoder(nn.Module):
    """PyTorch's own decoder layer, target [B, T, 16] and memory [B, S, 16]."""

    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerDecoderLayer(16, 2, 32, dropout=0.0, batch_first=True, activation="gelu")

    def forward(self, target: Tensor, memory: Tensor) -> Tensor:
        return self.layer(target, memory, tgt_is_causal=False)


def ids(below: int, *shape: int) -> Tensor:
    return torch.randint(below, shape)


# By name: the model, and how its inputs are made.
OTHERS = {
    "mlp": (lambda: mlp(13, 64, 16, 1), lambda: (torch.randn(5, 13),)),
    "encoder": (
        lambda: nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True), lambda: (torch.randn(2, 5, 16),)
    ),
    "decoder": (Decoder, lambda: (torch.randn(2, 5, 16), torch.randn(2, 3, 16))),
    "residual_block": (ResidualBlock, lambda: (torch.randn(4, 3, 8, 8),)),
    "two_tower": (TwoTower, lambda: (ids(100, 4), ids(50, 5))),
    "deep_fm": (DeepFM, lambda: (ids(10, 5, 3),)),
    "dcn_v2": (DCN, lambda: (torch.randn(5, 5), ids(10, 3, 5))),
    "wide_and_deep": (WideAndDeep, lambda: (torch.randn(5, 5), ids(10, 3, 5), ids(100, 5, 2))),
    "lstm": (lambda: Recurrent(nn.LSTM), lambda: (ids(50, 3, 6),)),
    "gru": (lambda: Recurrent(nn.GRU), lambda: (ids(50, 3, 6),)),
    "vae": (VAE, lambda: (torch.randn(5, 12), torch.randn(5, 4))),
    "mixer_block": (MixerBlock, lambda: (torch.randn(3, 6, 8),)),
    "mmoe": (MMoE, lambda: (torch.randn(5, 10),)),
    "control_flow": (Deciding, lambda: (torch.randn(5, 8),)),
}
