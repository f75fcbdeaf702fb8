"""The sets of inputs of a cell, and one implementation's run on them: what is captured, replayed and compared."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch
from torch import Tensor

from ..check.comparison import as_tuple
from .cells import Cell, reference
from .clock import Gpu
from .match import GradientMatch, Match, fused

INPUT_BYTES = 2e9  # what the sets of inputs of a cell take together, unless four of them take more
MOST_CALLS = 256  # in a graph: of the smallest cells, some 400 µs


def generators(dtype: torch.dtype, device: torch.device, seed: int = 0) -> tuple[Callable, Callable]:
    """(draw, ids), as Cell.inputs takes them: the next values of one seeded generator on the device."""
    generator = torch.Generator(device).manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=dtype, device=device, generator=generator)

    def ids(*shape: int, below: int, zipf: float = 0.0) -> Tensor:
        """With zipf = a > 0 the inverse of the bounded Pareto distribution of exponent a on [1, below + 1), floored."""
        if not zipf:
            return torch.randint(below, shape, device=device, generator=generator)
        uniform = torch.rand(shape, dtype=torch.float64, device=device, generator=generator)
        top = float(below + 1)
        power = 1.0 - zipf
        ranks = top**uniform if power == 0 else (1.0 + uniform * (top**power - 1.0)) ** (1.0 / power)
        return (ranks.long() - 1).clamp_(0, below - 1)

    return draw, ids


class Sets:
    """The cell's sets of inputs, as many as fit; `match`, what the first of them must give; of a backward `grads`, the
    gradients that come in, a list for each set."""

    def __init__(self, cell: Cell, gpu: Gpu) -> None:
        self.cell, self._gpu = cell, gpu
        self._draw, self._ids = generators(cell.dtype, gpu.device)
        # Apart from the inputs, so that these are the same with a gradient or without.
        self._draw_grads = generators(cell.dtype, gpu.device, seed=1)[0]
        # Drawn first, so that a generator of the same seed draws them again.
        self._shared = self._draw_shared(self._draw)
        self.all, self.grads, self.note = [], [], ""
        self._add()
        first = self.all[0]
        present = [tensor for tensor in first if tensor is not None]
        own = sum(tensor.nbytes for tensor in present if not any(tensor is other for other in self._shared))
        if cell.form == "backward":
            self.match = GradientMatch(cell, first, self.grads[0])
            # Each implementation keeps its forwards' outputs, or as much again, and gives gradients.
            size = own + 3 * len(cell.implementations) * sum(grad.nbytes for grad in self.grads[0])
        else:
            with torch.no_grad():
                self.match = Match(cell, first, self._shared, self._draw_shared_again)
            size = own + self.match.output_bytes
        if not cell.waits:
            self._add_others(own, size)
        if self._shared:
            size = sum(tensor.nbytes for tensor in self._shared)
            where = "stay in the L2" if size <= gpu.l2_bytes else "do not fit into the L2"
            self.note += f"; all calls share {size / 1e6:.4g} MB, which {where}"
        self.note = self.note.removeprefix("; ")

    def _add_others(self, own: int, size: int) -> None:
        """More sets; own, size: what one takes, and what it takes with all that is kept for it."""
        wanted = max(4, min(MOST_CALLS, int(INPUT_BYTES / max(own, 1))))
        # The other half is for the comparison, in float64, and for what the implementations put aside.
        fits = min(wanted, int(0.5 * self._gpu.free_bytes() / size))
        if fits < 2:
            raise torch.OutOfMemoryError(f"two sets of inputs and outputs take {2e-9 * size:.1f} GB")
        for _ in range(1, fits):
            self._add()
        if fits < wanted:
            self.note += f"; {fits} sets of inputs in place of {wanted}, for which the GPU's memory is too small"

    def _draw_shared(self, draw: Callable) -> tuple[Tensor, ...]:
        return self.cell.shared(draw) if self.cell.shared else ()

    def _draw_shared_again(self) -> tuple[Tensor, ...]:
        return self._draw_shared(generators(self.cell.dtype, self._gpu.device)[0])

    def _add(self) -> None:
        self.all.append(tensors := self.cell.inputs(self._draw, self._ids, *self._shared))
        if self.cell.form == "backward":
            with torch.no_grad():
                function = self.cell.spec.reference if self.cell.spec else reference(self.cell.op)
                outputs = as_tuple(function(*tensors, *self.cell.options))
            self.grads.append([self._draw_grads(*o.shape) for o in outputs if o.is_floating_point()])


class ForwardRun:
    """One implementation, captured on all sets; check() replays, and compares what the first call gave.

    Calls that write to what they share would undo that, one after the other: there check() calls once.
    """

    def __init__(self, sets: Sets, gpu: Gpu, name: str, function: Callable) -> None:
        self._match, self._rounds = sets.match, not fused(name)
        self.call = functools.partial(function, *sets.all[0])

        def work():
            # All outputs live to the end, so that no call writes to memory that another one left in the L2.
            return [function(*tensors) for tensors in sets.all][:1]

        gpu.on_side_stream(lambda: [self.call() for _ in range(3)])
        self.replay, (self._output,) = gpu.capture(work)

    def check(self) -> None:
        if self._match.writes_to_shared:
            self._match.restore()
            self._match.check(self.call(), rounds=self._rounds)
            return
        # First the outputs, then the inputs: an output that is an input keeps the input's values.
        for output in as_tuple(self._output):
            poison(output)
        self._match.restore()
        self.replay()
        self._match.check(self._output, rounds=self._rounds)


class WaitedRun:
    """One implementation as it is called."""

    def __init__(self, sets: Sets, gpu: Gpu, name: str, function: Callable) -> None:
        self._match, self._rounds = sets.match, not fused(name)
        self.call = functools.partial(function, *sets.all[0])

    def check(self) -> None:
        self._match.restore()
        self._match.check(self.call(), rounds=self._rounds)


class BackwardRun:
    """The gradients of all floating-point inputs, of forwards that ran once."""

    def __init__(self, sets: Sets, gpu: Gpu, name: str, function: Callable) -> None:
        self._match, self._rounds = sets.match, not fused(name)
        leaves = [tuple(t if t is None else t.detach().requires_grad_(t.is_floating_point()) for t in tensors)
                  for tensors in sets.all]
        wanted = [[leaf for leaf in tensors if leaf is not None and leaf.requires_grad] for tensors in leaves]
        outputs = gpu.on_side_stream(lambda: [as_tuple(function(*tensors)) for tensors in leaves])
        outputs = [[output for output in tensors if output.is_floating_point()] for tensors in outputs]
        self._given = {tensor.data_ptr() for tensor in (*sets.all[0], *sets.grads[0]) if tensor is not None}

        def backward(i: int):
            return torch.autograd.grad(outputs[i], wanted[i], sets.grads[i], retain_graph=True)

        def work():
            gradients = [backward(i) for i in range(len(leaves))]
            return gradients[0]

        self.call = functools.partial(backward, 0)
        gpu.on_side_stream(lambda: [self.call() for _ in range(3)])
        self.replay, self._gradients = gpu.capture(work)

    def check(self) -> None:
        for gradient in self._gradients:
            if gradient.data_ptr() not in self._given:  # the gradient of a sum may be the one that came in
                poison(gradient)
        self.replay()
        self._match.check(self._gradients, rounds=self._rounds)


def poison(tensor: Tensor) -> None:
    """What is not written shows: NaN, and of integers their largest value. A truth value has no value to spare."""
    if tensor.dtype != torch.bool:
        tensor.fill_(math.nan if tensor.is_floating_point() else torch.iinfo(tensor.dtype).max)
