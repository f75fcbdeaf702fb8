"""A training step of all ranks: each on its own rows, with one all_reduce for the MLPs and what all must agree on."""

from collections import deque
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from model.config import Precision
from model.device import to
from model.optimizers import Optimizers
from model.sharding.ranks import SharedSignals
from model.step import GraphedStep, on_the_device
from model.tables import sorting_ahead

LAG = 8  # steps after which a GPU's host reads whether a signal came: by then it need not wait for it
WARM_UP = 12  # full batches before a capture: NCCL makes its channels in the first ones


class Agreed:
    """The sum over the ranks of the MLPs' gradients, of the loss, and of the signals that came: one all_reduce.

    A loss that is not finite on one rank is so on all; a signal that one rank got stops all after the same step: this
    one where the device is a CPU, else LAG steps later.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], signals: SharedSignals, device: torch.device):
        self.parameters, self.signals = list(parameters), signals
        self.own = torch.zeros(len(signals.NUMBERS), device=device)  # 1 for a signal that this rank got
        self.came = self.own.clone()  # how many ranks got it
        self.is_noted = False
        self.on_their_way: deque[tuple[Tensor, torch.cuda.Event]] = deque()

    def begin(self) -> None:
        """The host's part before a step."""
        if self.signals.own is not None and not self.is_noted:
            self.own[self.signals.NUMBERS.index(self.signals.own)] = 1
            self.is_noted = True

    def __call__(self, loss: Tensor) -> Tensor:
        """The loss of all ranks, of this rank's part; gradients and `came` become all ranks'."""
        gradients = [parameter.grad for parameter in self.parameters]
        flat = torch.cat([*(gradient.flatten() for gradient in gradients), loss.detach().view(1), self.own])
        dist.all_reduce(flat)
        *sums, loss, came = flat.split([*(gradient.numel() for gradient in gradients), 1, len(self.own)])
        torch._foreach_copy_(
            gradients, [part.view_as(gradient) for part, gradient in zip(sums, gradients, strict=True)]
        )
        self.came.copy_(came)
        return loss[0]

    def end(self) -> None:
        """The host's part after a step: whether all stop here."""
        if not self.came.is_cuda:
            self.signals.agreed(self.came.tolist())
            return
        event = torch.cuda.Event()
        host = torch.empty(self.came.shape, pin_memory=True)
        host.copy_(self.came, non_blocking=True)
        event.record()
        self.on_their_way.append((host, event))
        if len(self.on_their_way) > LAG:
            host, event = self.on_their_way.popleft()
            self.signals.ranks.wait_for(event)
            self.signals.agreed(host.tolist())


def loss_and_gradient_of(rows: int, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """This rank's part of the mean binary cross-entropy over so many rows of all ranks, and its gradient: as
    `model.step.loss_and_gradient` has both of a process's own rows, of which there may be none here."""
    loss = F.binary_cross_entropy_with_logits(logits, labels, reduction="sum") / rows
    logits = logits.to(torch.promote_types(logits.dtype, loss.dtype))
    return loss, (torch.sigmoid(logits) - labels).div_(rows)


class ShardedStep:
    """(counts, batch) as `ShardedBatches` gives them → the loss of a step of all ranks, the same on each.

    full: the counts of a full step, which cuda_graph captures with its exchange and its all_reduce.
    """

    def __init__(
        self, model: nn.Module, optimizer: Optimizers, signals: SharedSignals, full: Sequence[int],
        precision: Precision = Precision.FP32, cuda_graph: bool = False,
    ):
        self.model, self.optimizer, self.ranks = model, optimizer, signals.ranks
        self.exchange = exchange = model.sparse_arch.exchange
        self.device = device = self.ranks.device
        tables = {id(parameter) for parameter in model.sparse_arch.tables.parameters()}
        mlps = [parameter for parameter in model.parameters() if id(parameter) not in tables]
        self.agreed = Agreed(mlps, signals, device)
        self.precision, self.graph = precision, None
        if cuda_graph:
            # Of this thread alone: NCCL's watchdog asks for events in one of its own meanwhile.
            self.graph = GraphedStep(
                self._work, optimizer.advance, full[exchange.rank], device, tuple(model.parameters()),
                is_full=lambda: exchange.counts == list(full), mode="thread_local",
            )
            self.graph.warm_up = WARM_UP

    def __call__(self, counts: Sequence[int], batch: Sequence[Tensor]) -> Tensor:
        self.ranks.doing = f"in step {self.optimizer.steps + 1:,}"
        self.exchange.counts = list(counts)
        self.agreed.begin()
        if self.graph:
            loss = self.graph(*batch)
        else:
            self.optimizer.advance()
            loss = self._work(*to(self.device, *batch))
        self.agreed.end()
        self.ranks.doing = f"between steps {self.optimizer.steps:,} and {self.optimizer.steps + 1:,}"
        return loss

    def close(self) -> None:
        if self.graph:
            self.graph.close()

    def _work(self, labels: Tensor, dense: Tensor, sparse: Tensor, offsets: Tensor | None = None) -> Tensor:
        of_loss = partial(loss_and_gradient_of, sum(self.exchange.counts))
        with sorting_ahead(self.model) if self.graph else nullcontext():
            return on_the_device(
                self.model, self.optimizer, labels, dense, sparse, self.precision, offsets, of_loss, self.agreed
            )
