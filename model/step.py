"""A training step, and the same step as one CUDA graph."""

from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from data.ahead import one_ahead
from kernels import machine, runtime
from model.config import Precision
from model.device import autocast, pinned, to
from model.dlrm import hashing_by, modulus_rows
from model.optimizers import Optimizers, fusing_gradients
from model.tables import sorting_ahead

Batch = tuple[Tensor, ...]  # labels, dense, sparse, and with bags their offsets
WARM_UP = 3  # full batches before the capture: libraries, compilation, the allocator, the optimizers' state


def train_step(
    model: nn.Module,
    optimizer: Optimizers,
    labels: Tensor,
    dense: Tensor,
    sparse: Tensor,
    precision: Precision = Precision.FP32,
    offsets: Tensor | None = None,
) -> Tensor:
    """One step; its loss, a scalar on the device. Nothing here waits for the device."""
    optimizer.advance()
    return on_the_device(model, optimizer, labels, dense, sparse, precision, offsets)


def on_the_device(
    model: nn.Module,
    optimizer: Optimizers,
    labels: Tensor,
    dense: Tensor,
    sparse: Tensor,
    precision: Precision = Precision.FP32,
    offsets: Tensor | None = None,
    of_loss: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None = None,
    agree: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """What a CUDA graph holds of a step: all of it but the rates' change. of_loss: in `loss_and_gradient`'s place.
    agree: called with the loss between backward and update, where several processes sum gradients; what it returns is
    the step's loss."""
    optimizer.zero_grad(set_to_none=True)
    with autocast(dense.device, precision):
        logits = model(dense, sparse) if offsets is None else model(dense, sparse, offsets)
        loss, gradient = (of_loss or loss_and_gradient)(logits.detach(), labels)
    logits.backward(gradient)
    if agree:
        loss = agree(loss)
    optimizer.step()
    return loss


def loss_and_gradient(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The mean binary cross-entropy, and its gradient (sigmoid(logits) - labels) / B: by the operations that autograd
    takes, without the ones that it begins with and the product with them. Eager launches nine kernels for both."""
    loss = F.binary_cross_entropy_with_logits(logits, labels)
    # The loss's dtype is what autocast has it computed in.
    logits = logits.to(torch.promote_types(logits.dtype, loss.dtype))
    return loss, (torch.sigmoid(logits) - labels).div_(logits.numel())


def why_not_compiled() -> str:
    """Why torch.compile does not run on this machine's GPU; "" if it does."""
    return runtime.why_not("triton", "cuda") or machine.why_no_compiler(runtime.path_with_python())


def make_step(
    model: nn.Module,
    optimizer: Optimizers,
    rows: int,
    device: torch.device,
    precision: Precision = Precision.FP32,
    cuda_graph: bool = False,
) -> Callable[..., Tensor]:
    """(labels, dense, sparse), on the host or the device → the loss of a step on them; rows: of a full batch. Without a
    CUDA graph there may be a fourth, the offsets of bags.

    A captured step sorts the tables' ids on a branch of its graph, updates the tables on another, beside the bottom
    MLP's backward and the MLPs' updates, and computes all MLPs' gradients at its end (`fusing_gradients`), its forward
    in one kernel where that takes the model (`fused.trains_whole`). Where torch.compile runs it has loss and gradient
    from one kernel, and the ids' rows by their moduli from another, made at the first step, in some seconds; a batch of
    another size has them from eager's.
    """
    if cuda_graph:
        functions = loss_and_gradient, modulus_rows
        of_full = functions if why_not_compiled() else tuple(torch.compile(function) for function in functions)

        def work(labels: Tensor, dense: Tensor, sparse: Tensor) -> Tensor:
            of_loss, of_rows = of_full if len(labels) == rows else functions
            with sorting_ahead(model, updates_beside=True), fusing_gradients(optimizer), hashing_by(model, of_rows):
                return on_the_device(model, optimizer, labels, dense, sparse, precision, of_loss=of_loss)

        return GraphedStep(work, optimizer.advance, rows, device, tuple(model.parameters()))

    def step(*batch: Tensor) -> Tensor:
        labels, dense, sparse, *offsets = to(device, *batch)
        return train_step(model, optimizer, labels, dense, sparse, precision, *offsets)

    return step


def rows_ahead(batches: Iterable[Batch], model: nn.Module) -> Iterator[Batch]:
    """The batches with the rows of the tables in place of the ids, for a step of `model.of_rows`.

    The next batch is read, and its rows are found, in a thread while the step on this one runs: on a CPU that is an
    eighth of what a step of `small` takes.
    """
    return one_ahead((labels, dense, model.sparse_arch.rows_on_cpu(sparse)) for labels, dense, sparse in batches)


class GraphedStep:
    """Training steps of `rows` rows as replays of one CUDA graph; a batch of another size runs uncaptured.

    The first WARM_UP full batches are trained on uncaptured, on the stream that is captured then: capturing computes
    nothing, so each batch is trained on once, whichever way it goes.

    Args:
        work: `on_the_device` with its model and optimizer bound: (labels, dense, sparse) → loss. It must find its
            rates on the device (`make_optimizer(…, capturable=True)`).
        advance: called before each step; the optimizer's.
        written: what a step writes in place. A replay writes unseen, so that their versions are counted here: what
            autograd saved of a weight is known by them to be out of date.
        is_full: whether a batch of so many rows is a full one, where that does not follow from their number.
        mode: of the capture, as torch.cuda.graph's capture_error_mode.
    """

    def __init__(
        self, work: Callable[..., Tensor], advance: Callable[[], None], rows: int, device: torch.device,
        written: Sequence[Tensor] = (), is_full: Callable[[], bool] = lambda: True, mode: str = "global",
    ):
        self.work, self.advance, self.rows, self.device, self.written = work, advance, rows, device, written
        self.is_full, self.mode = is_full, mode
        self.warm_up = WARM_UP  # full batches that still run uncaptured
        self.stream = torch.cuda.Stream(device, priority=-1)  # before what is captured on branches
        self.graph: torch.cuda.CUDAGraph | None = None
        self.buffers: Batch
        self.loss: Tensor

    def __call__(self, *batch: Tensor) -> Tensor:
        """A step on a batch of the host's or the device's; its loss, which the next call overwrites."""
        self.advance()
        is_full = len(batch[0]) == self.rows and self.is_full()
        if not is_full or self.warm_up:
            self.warm_up -= is_full
            return self._uncaptured(batch)
        if self.graph is None:
            self._capture(batch)
        for buffer, tensor in zip(self.buffers, batch, strict=True):
            buffer.copy_(pinned(tensor), non_blocking=True)
        self.graph.replay()
        torch.autograd.graph.increment_version(self.written)
        return self.loss

    def close(self) -> None:
        """Let go of the graph: before the process group that it has collectives of is destroyed."""
        if self.graph is not None:
            torch.cuda.synchronize(self.device)
            self.graph = None

    def _uncaptured(self, batch: Batch) -> Tensor:
        current = torch.cuda.current_stream(self.device)
        # As the captured buffers are: what is compiled is not to be compiled anew in the capture.
        batch = [tensor.contiguous() for tensor in to(self.device, *batch)]
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            loss = self.work(*batch)
        current.wait_stream(self.stream)
        return loss

    def _capture(self, batch: Batch) -> None:
        layout = torch.contiguous_format
        self.buffers = tuple(torch.empty_like(tensor, device=self.device, memory_format=layout) for tensor in batch)
        for buffer, tensor in zip(self.buffers, batch, strict=True):
            buffer.copy_(tensor)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self.stream, capture_error_mode=self.mode):
            self.loss = self.work(*self.buffers)
        self.graph = graph
