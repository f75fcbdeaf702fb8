"""The program of notebook 03, as its cells have it: two hashes, a step that waits, tables in one tensor, two queues.

Each function is the text of its cell; a test compares them.
"""

from itertools import cycle

import torch
from torch import nn

from lessons.shared.dlrm import DLRM, interact, step


def loop(model, optimizer, batches, move, work):  # -> a function that makes a step with the next batch
    turns = cycle(batches)
    return lambda: work(model, optimizer, *map(move, next(turns)))


def compare(ids, known, rows):  # [B], [n], [n] -> [B]: the row of each known id, and 0 for any other
    return ((ids[:, None] == known) * rows).sum(1, dtype=torch.int32).long()


class ListHash(nn.Module):
    def __init__(self, known):
        super().__init__()
        self.known = known.tolist()

    def forward(self, ids):
        known = torch.tensor(self.known, device=ids.device)
        rows = torch.arange(1, len(known) + 1, dtype=torch.int32, device=ids.device)
        return compare(ids, known, rows)


class Exact(DLRM):
    def __init__(self, known, kind):
        super().__init__([len(ids) for ids in known])
        self.hashes = nn.ModuleList(kind(ids) for ids in known)

    def forward(self, dense, ids):
        parts = enumerate(zip(self.tables, self.hashes, strict=True))
        vectors = torch.stack([table(rows_of(ids[:, f])) for f, (table, rows_of) in parts], dim=1)
        return self.top(interact(self.bottom(dense), vectors, self.pairs)).squeeze(1)


class BufferHash(nn.Module):
    def __init__(self, known):
        super().__init__()
        self.register_buffer("known", known)
        self.register_buffer("rows", torch.arange(1, len(known) + 1, dtype=torch.int32))

    def forward(self, ids):
        return compare(ids, self.known, self.rows)


def simulate(kernels, waits, steps=3):  # -> the launches, waits and kernels of some steps, each as (begin, end)
    launches, waited, ran = [], [], []
    host = gpu = 0.0  # until when each of them is busy
    for _ in range(steps):
        for time in kernels:
            launches.append((host, host + 1))  # the unit is the time of a launch
            host += 1
            begin = max(host, gpu)  # when it is launched and the kernel before it is done
            gpu = begin + time
            ran.append((begin, gpu))
        if waits:
            waited.append((host, gpu))
            host = gpu
    return launches, waited, ran


def step_time(kernels, waits):  # the mean of the two steps after the first
    *_, ran = simulate(kernels, waits)
    return (ran[-1][1] - ran[len(kernels) - 1][1]) / 2


def reading(model, optimizer, *batch):
    loss = step(model, optimizer, *batch)
    loss.item()
    return loss


class OneTable(DLRM):
    def __init__(self, sizes, look_up, **shape):
        super().__init__(sizes, **shape)
        heights = torch.tensor([n + 1 for n in sizes])
        self.register_buffer("heights", heights)
        self.register_buffer("starts", heights.cumsum(0) - heights)  # where each table begins in the tensor
        self.table = nn.Parameter(torch.cat([table.weight.detach() for table in self.tables]))
        self.tables, self.look_up = None, look_up

    def forward(self, dense, ids):
        rows = (ids + 1) % (self.heights - 1) + self.starts
        vectors = self.look_up(self.table, rows.flatten()).view(*rows.shape, -1)
        return self.top(interact(self.bottom(dense), vectors, self.pairs)).squeeze(1)


def adagrad(model):  # a group for the tables alone: a sparse gradient keeps its whole group from the fast kernels
    tables = [weight for name, weight in model.named_parameters() if name.startswith("table")]
    others = [weight for name, weight in model.named_parameters() if not name.startswith("table")]
    return torch.optim.Adagrad([{"params": tables}, {"params": others}], lr=0.001)
