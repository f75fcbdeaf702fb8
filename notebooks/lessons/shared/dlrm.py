"""The program of notebook 01: rows of Criteo, a DLRM and its training, as the notebook's cells have it.

One import gives it to who starts later: `from lessons.shared.dlrm import DLRM, batches, read, step`. Each function is
the text of its cell, or of the answer to its puzzle; a test compares them.
"""

from itertools import islice, pairwise

import pandas as pd
import torch
from torch import nn
from torch.nn import functional as F

DENSE = [f"DENSE_{i}" for i in range(13)]
SPARSE = [f"SPARSE_{i}" for i in range(26)]


def read(path):  # a Parquet file, or a folder of them -> labels [N], dense [N, 13], ids [N, 26]
    table = pd.read_parquet(path, columns=["labels", *DENSE, *SPARSE])
    labels = torch.from_numpy(table["labels"].to_numpy("float32"))
    counts = torch.from_numpy(table[DENSE].fillna(0).to_numpy("float32"))
    return labels, counts.clamp(min=0).log1p(), torch.tensor(table[SPARSE].to_numpy())


def batches(data, rows, seed=None):  # tuples of (labels [B], dense [B, 13], ids [B, 26]); a seed shuffles the rows
    order = torch.arange(len(data[0]))
    if seed is not None:
        order = torch.randperm(len(order), generator=torch.Generator().manual_seed(seed))
    for chosen in order.split(rows):
        yield tuple(column[chosen] for column in data)


def mlp(*widths):  # 13, 32, 16: two layers, and a relu after each
    layers = []
    for inputs, outputs in pairwise(widths):
        linear = nn.Linear(inputs, outputs)
        nn.init.normal_(linear.weight, std=(2 / (inputs + outputs)) ** 0.5)
        nn.init.normal_(linear.bias, std=(1 / outputs) ** 0.5)
        layers += [linear, nn.ReLU()]
    return nn.Sequential(*layers)


def embedding(rows, width):
    table = nn.Embedding(rows, width)
    nn.init.uniform_(table.weight, -(rows**-0.5), rows**-0.5)
    return table


def look_up(tables, sizes, ids):  # F tables of n + 1 rows, the F numbers n, ids [B, F] -> [B, F, D]
    vectors = []
    for f, (table, n) in enumerate(zip(tables, sizes, strict=True)):
        rows = (ids[:, f] + 1) % n
        vectors.append(table(rows))
    return torch.stack(vectors, dim=1)


def interact(x, vectors, pairs):  # v0 [B, D], v1 to vF [B, F, D], the pairs' numbers i and j [2, P] -> [B, D + P]
    both = torch.cat([x.unsqueeze(1), vectors], dim=1)  # [B, F + 1, D]
    products = both @ both.mT  # [B, F + 1, F + 1]
    i, j = pairs
    return torch.cat([x, products[:, i, j]], dim=1)


class DLRM(nn.Module):
    def __init__(self, sizes, bottom=(13, 32, 16), top=(32, 1)):
        super().__init__()
        width, vectors = bottom[-1], len(sizes) + 1
        pairs = torch.tril_indices(vectors, vectors, offset=-1)  # (1, 0), (2, 0), (2, 1), …
        self.register_buffer("pairs", pairs, persistent=False)
        self.sizes = sizes
        self.bottom = mlp(*bottom)
        self.tables = nn.ModuleList(embedding(n + 1, width) for n in sizes)
        self.top = mlp(width + pairs.shape[1], *top)[:-1]  # no relu after the logit

    def forward(self, dense, ids):  # [B, 13], [B, F] -> logits [B]
        x = self.bottom(dense)
        vectors = look_up(self.tables, self.sizes, ids)
        return self.top(interact(x, vectors, self.pairs)).squeeze(1)


def step(model, optimizer, labels, dense, ids):  # -> the loss, without its graph
    loss = F.binary_cross_entropy_with_logits(model(dense, ids), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


def train(model, optimizer, data, steps=120, rows=1024):  # -> the loss of each step
    return [step(model, optimizer, *batch).item() for batch in islice(batches(data, rows, seed=0), steps)]


@torch.no_grad()
def predict(model, data):  # -> probabilities [N]
    return torch.cat([model(dense, ids).sigmoid() for _, dense, ids in batches(data, 4096)])


def auc(labels, scores):
    assert scores.isfinite().all(), "the training has diverged: try a smaller learning rate"
    clicked, others = scores[labels == 1], scores[labels == 0].sort().values
    below, to = (torch.searchsorted(others, clicked, right=right).double() for right in (False, True))
    return ((below + to) / 2 / len(others)).mean().item()  # an equal score counts half
