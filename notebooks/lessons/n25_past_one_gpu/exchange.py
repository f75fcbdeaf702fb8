"""The lecture's answers to the puzzles that need several processes: the exchange, its backward, and one all_reduce."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor


def exchange(x: Tensor, send: Sequence[int], receive: Sequence[int]) -> Tensor:
    """The first send[0] of x to rank 0, the next send[1] to rank 1, …; what comes, in the order of the ranks."""
    out = x.new_empty(sum(receive), *x.shape[1:])
    dist.all_to_all_single(out, x.contiguous(), [*receive], [*send])
    return out


class Exchange(torch.autograd.Function):
    """exchange, whose gradients go back the same way; a rank's loss is the mean of its own rows."""

    @staticmethod
    def forward(ctx, x: Tensor, send: Sequence[int], receive: Sequence[int]) -> Tensor:
        ctx.splits = send, receive
        return exchange(x, send, receive)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None, None]:
        send, receive = ctx.splits
        return exchange(grad, receive, send) / dist.get_world_size(), None, None


def agree(parameters: Sequence[Tensor], loss: Tensor, stop: bool) -> tuple[float, bool]:
    """Every rank's mean gradients in .grad; the mean loss, and whether to stop: a rank was told to, or it is not
    finite."""
    parts = [p.grad.flatten() for p in parameters]
    flat = torch.cat([*parts, torch.stack([loss.detach(), torch.tensor(float(stop))])])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    *means, mean, told = flat.split([*map(len, parts), 1, 1])
    for p, grad in zip(parameters, means, strict=True):
        p.grad.copy_(grad.view_as(p))
    return mean.item(), told.item() > 0 or not mean.isfinite().item()
