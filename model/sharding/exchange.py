"""What ranks give each other in a step: the ids of rows to whoever holds them, and vectors back.

Each rank tells how much it gives to each other one and takes from it. For one id a feature both follow from numbers
that every host knows, so that nothing is read back from the device and a CUDA graph can hold the exchange.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from model.sharding.pieces import Wire


class Exchange:
    """counts: the rows of the batch at hand, by ranks; to be set before each forward. wire: what vectors travel in."""

    def __init__(self, rank: int, world: int, wire: Wire = Wire.FP32):
        self.rank, self.world, self.wire = rank, world, wire
        self.counts: list[int] = [0] * world

    def ids(self, x: Tensor, give: Sequence[int], take: Sequence[int]) -> Tensor:
        """x [sum of give], integers, of which give[r] go to rank r → [sum of take], of which take[r] are of rank r."""
        return _all_to_all(x, give, take)

    def vectors(self, x: Tensor, give: Sequence[int], take: Sequence[int]) -> Tensor:
        """The same of float32 [sum of give, D] → [sum of take, D]; their gradients go the way back."""
        return _Vectors.apply(x, give, take, self.wire)


def _all_to_all(x: Tensor, give: Sequence[int], take: Sequence[int]) -> Tensor:
    out = x.new_empty(sum(take), *x.shape[1:])
    dist.all_to_all_single(out, x.contiguous(), list(take), list(give))
    return out


class _Vectors(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, give: Sequence[int], take: Sequence[int], wire: Wire) -> Tensor:
        ctx.way = give, take, wire
        return _sent(x, give, take, wire)

    @staticmethod
    def backward(ctx, gradient: Tensor):
        give, take, wire = ctx.way
        return _sent(gradient, take, give, wire), None, None, None


def _sent(x: Tensor, give: Sequence[int], take: Sequence[int], wire: Wire) -> Tensor:
    if wire is Wire.FP32:
        return _all_to_all(x, give, take)
    # Under the name of a type of the same size that every backend moves; nothing computes with it.
    arrived = _all_to_all(x.to(torch.bfloat16).view(torch.float16), give, take)
    return arrived.view(torch.bfloat16).to(x.dtype)
