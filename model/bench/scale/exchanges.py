"""What an exchange takes: the collectives of a step by themselves, with the splits that the case's pieces make."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor

from kernels.measure.clock import percentiles
from model.bench.scale.cells import COLLECTIVES, Cell, Sizes
from model.config import DLRMConfig
from model.sharding.exchange import Exchange
from model.sharding.ranks import Ranks
from model.sharding.sparse_arch import ShardedSparseArch
from model.sharding.step import WARM_UP


class Rank(Protocol):
    """What is needed of model.bench.scale.rank's."""

    ranks: Ranks
    device: torch.device
    sizes: Sizes
    shape: DLRMConfig
    arch: ShardedSparseArch
    dense: int

    def nvlink(self, cell: Cell) -> int | None: ...

    def wait(self) -> None: ...


def measure(rank: Rank, cell: Cell) -> list[dict]:
    """A row: four collectives of a kind, or a step's, as one CUDA graph."""
    calls, inputs, expected = _collectives(rank, cell)
    kinds = COLLECTIVES[:-1] if cell.collective == "step" else [cell.collective] * 4
    with traffic(rank.ranks) as sent:
        for kind in kinds:
            calls[kind]()
    busiest = sent.busiest()
    with captured(lambda: [calls[kind]() for kind in kinds], cell.graph, rank.device) as (again, arrived):
        for fill in inputs.values():
            fill(True)
        again()
        is_right = all(torch.equal(one, expected[kind]()) for kind, one in zip(kinds, arrived(), strict=True))
        wrong = [number for number, right in enumerate(rank.ranks.of_all(is_right)) if not right]
        for fill in inputs.values():
            fill(False)
        dist.barrier(group=rank.ranks.host)
        before = rank.nvlink(cell)
        times = [_us(rank, again) for _ in range(rank.sizes.rounds)]
        after = rank.nvlink(cell)
    low, middle, high = percentiles([max(of_round) for of_round in zip(*rank.ranks.of_all(times), strict=True)])
    row = cell.row() | {"collectives": len(kinds), "bytes": busiest}
    row["match"] = f"FAILED: what arrives at rank {wrong[0]} is not what was sent" if wrong else "ok"
    if not wrong:
        row |= {"us": middle, "us_low": low, "us_high": high, "gb_per_s": busiest / middle / 1e3}
    if before is not None and after is not None:
        row["nvlink_bytes"] = (after - before) / (rank.sizes.block * rank.sizes.rounds)
    return [row]


def _collectives(rank: Rank, cell: Cell) -> tuple[dict, dict, dict]:
    """By kinds: the call, what fills its input with a pattern or with zeros, and what must arrive."""
    own, world, width = rank.ranks.rank, rank.ranks.world, rank.shape.embedding_dim
    exchange, pieces = Exchange(own, world, cell.exchange), rank.arch.pieces_of
    asked = [cell.rows * count for count in pieces]  # to each rank, of this one's rows
    held = [cell.rows * pieces[own]] * world  # from each rank, of this one's pieces

    def pattern(of: int, count: int, like: Tensor) -> Tensor:
        """Whole numbers that bfloat16 has."""
        numbers = torch.arange(count, device=rank.device).mul_(7).add_(13 * of).remainder_(251)
        return (numbers if like.dim() == 1 else numbers[:, None].expand(-1, like.shape[1])).to(like.dtype)

    ids = torch.zeros(sum(asked), dtype=torch.int32, device=rank.device)
    vectors = torch.zeros(sum(held), width, device=rank.device)
    gradients = torch.zeros(sum(asked), width, device=rank.device)
    flat = torch.zeros(cell.rows if cell.collective == "all_reduce" else rank.dense, device=rank.device)
    calls = {
        "ids": lambda: exchange.ids(ids, asked, held), "vectors": lambda: exchange.vectors(vectors, held, asked),
        "gradients": lambda: exchange.vectors(gradients, asked, held), "all_reduce": lambda: _summed(flat),
    }

    def filler(x: Tensor) -> Callable[[bool], None]:
        return lambda fills: x.copy_(pattern(own, len(x), x)) if fills else x.zero_()

    inputs = {"ids": filler(ids), "vectors": filler(vectors), "gradients": filler(gradients)}
    inputs["all_reduce"] = lambda fills: flat.fill_(float(own + 1) if fills else 0.0)

    def arriving(like: Tensor, of: Callable[[int], Sequence[int]]) -> Tensor:
        parts = [pattern(other, sum(of(other)), like).split(list(of(other)))[own] for other in range(world)]
        return torch.cat(parts)

    def holds(other: int) -> list[int]:
        return [cell.rows * pieces[other]] * world

    times = world ** 3 if cell.collective == "all_reduce" else 1  # four sums, one of the other
    expected = {
        "ids": lambda: arriving(ids, lambda _: asked), "vectors": lambda: arriving(vectors, holds),
        "gradients": lambda: arriving(gradients, lambda _: asked),
        "all_reduce": lambda: torch.full_like(flat, times * world * (world + 1) / 2),
    }
    return calls, inputs, expected


def _us(rank: Rank, again: Callable[[], None]) -> float:
    """µs of one of a block of replays."""
    dist.barrier(group=rank.ranks.host)
    rank.wait()
    begin = time.perf_counter()
    for _ in range(rank.sizes.block):
        again()
    rank.wait()
    return 1e6 * (time.perf_counter() - begin) / rank.sizes.block


def _summed(flat: Tensor) -> Tensor:
    dist.all_reduce(flat)
    return flat


class Sent:
    """bytes that this rank sends to others, and gets from them."""

    def __init__(self, ranks: Ranks):
        self.ranks, self.out, self.into = ranks, 0, 0

    def busiest(self) -> int:
        """Of the rank with the most, in the direction that has more."""
        return max(max(pair) for pair in self.ranks.of_all((self.out, self.into)))


@contextmanager
def traffic(ranks: Ranks) -> Iterator[Sent]:
    """Within it counts, by their arguments, what the collectives of a step carry between ranks."""
    sent, world = Sent(ranks), ranks.world
    all_to_all, all_reduce = dist.all_to_all_single, dist.all_reduce

    def others(splits: Sequence[int]) -> int:
        return sum(splits) - splits[ranks.rank]

    def counted_all_to_all(out: Tensor, x: Tensor, take: list[int], give: list[int], **options):
        row = x[:1].nbytes or x.element_size()
        sent.out, sent.into = sent.out + row * others(give), sent.into + row * others(take)
        return all_to_all(out, x, take, give, **options)

    def counted_all_reduce(x: Tensor, *arguments, **options):
        parts = 2 * (world - 1) * x.nbytes // world  # each rank's part is summed on its way around, and goes around
        sent.out, sent.into = sent.out + parts, sent.into + parts
        return all_reduce(x, *arguments, **options)

    with mock.patch.multiple(dist, all_to_all_single=counted_all_to_all, all_reduce=counted_all_reduce):
        yield sent


@contextmanager
def captured(
    work: Callable[[], list[Tensor]], graph: bool, device: torch.device
) -> Iterator[tuple[Callable[[], None], Callable[[], list[Tensor]]]]:
    """(Do the work again, as one CUDA graph if so; what it returned the last time)."""
    if not graph:
        results = []

        def again() -> None:
            results[:] = work()

        yield again, lambda: results
        return
    stream, replayed = torch.cuda.Stream(device), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP):
            work()
    torch.cuda.synchronize(device)
    with torch.cuda.graph(replayed, stream=stream, capture_error_mode="thread_local"):
        results = work()
    try:
        yield replayed.replay, lambda: results
    finally:
        torch.cuda.synchronize(device)
        replayed.reset()
