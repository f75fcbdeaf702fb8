"""What an implementation must give for one set of a cell's inputs, within the error that the op's spec allows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..check import spec
from ..check.cases import Call
from ..check.comparison import as_tuple, compare
from .cells import OURS, Calls, Cell, Lengths


class Match:
    """The exact results of the op on these tensors, and what each element may be off by; computed once, in float64.

    tensors: a cell's inputs, which may be written to and come back by `restore`. shared: those of them that all sets
    hold, of which no copy is kept unless they are mutated; redraw() gives them again.
    """

    def __init__(
        self, cell: Cell | Calls | Lengths, tensors: tuple[Tensor, ...], shared: Sequence[Tensor] = (),
        redraw: Callable = tuple,
    ) -> None:
        self.spec = getattr(cell, "spec", None) or spec.spec_of(cell.op + "_" * (cell.form == "in place"))
        self.call = Call("", tensors, cell.options)
        named = zip(self.spec.arguments, tensors, strict=False)
        self._mutated = {id(tensor) for name, tensor in named if name in self.spec.mutated}
        self._shared, self._redraw = shared, redraw
        self.writes_to_shared = any(id(tensor) in self._mutated for tensor in shared)
        only_read = {id(tensor) for tensor in shared} - self._mutated
        leaves = self.call.leaves()
        self._kept = [(tensor, tensor.clone()) for tensor in leaves if id(tensor) not in only_read]
        self._prints = [(tensor, fingerprint(tensor)) for tensor in leaves if id(tensor) in only_read]
        eager = spec.eager_results(self.spec, self.call)
        exact = spec.exact_results(self.spec, self.call)
        floats = [name for name, result in exact.items() if result.is_floating_point()]
        self._errors = {}
        if floats:
            errors = self.spec.scale.errors(self.spec.reference, self.call, [exact[name] for name in floats])
            self._errors = dict(zip(floats, (error.float() for error in errors), strict=True))
        self.expected = {name: exact[name].to(eager[name].dtype) for name in exact}
        # What a call allocates.
        self.output_bytes = sum(self.expected[o].nbytes for o in self.spec.outputs if o not in self.spec.mutated)

    def restore(self) -> None:
        """Give the tensors their values again."""
        if any(fingerprint(tensor) != before for tensor, before in self._prints):
            for tensor, again in zip(self._shared, self._redraw(), strict=True):
                tensor.copy_(again)
        for tensor, kept in self._kept:
            tensor.copy_(kept)

    def check(self, returned, *, rounds: bool = False) -> None:
        """Raise AssertionError unless `returned`, and the tensors that are mutated, match, and no other has changed.

        rounds: of an implementation that rounds to the dtype after each operation, as eager PyTorch does.
        """
        if returned is not None:
            # A compiled function may give another tensor of an argument's very memory.
            arguments = {(t.data_ptr(), t.shape): t for t in self.call.leaves() if id(t) in self._mutated}
            returned = tuple(arguments.get((t.data_ptr(), t.shape), t) for t in as_tuple(returned))
        for name, got in self.spec.results(lambda *_: returned, self.call).items():
            error = self._errors.get(name)
            if rounds and error is not None:
                error = error + self._rounding(name)
            compare(got, self.expected[name], error=error)
        self.check_inputs()

    def check_inputs(self) -> None:
        """Raise AssertionError if a tensor that is not mutated has changed."""
        changed = [not torch.equal(tensor, kept) for tensor, kept in self._kept if id(tensor) not in self._mutated]
        changed += [fingerprint(tensor) != before for tensor, before in self._prints]
        if any(changed):
            raise AssertionError("an input was changed")

    def _rounding(self, name: str) -> Tensor | float:
        """Up to three operations round values that grow to the inputs' size and beyond, each time by half an epsilon,
        where a fused kernel rounds once; of float32 and float64 the spec's own tolerance covers that."""
        expected = self.expected[name]
        if expected.dtype.itemsize >= 4:
            return 0.0
        largest = max(tensor.abs().max().item() for tensor in self.call.leaves() if tensor.is_floating_point())
        return 2 * torch.finfo(expected.dtype).eps * (largest + expected.abs().float())


class GradientMatch:
    """The same for the gradients of all floating-point inputs, against the gradients `grads` that come in."""

    def __init__(self, cell: Cell, tensors: tuple[Tensor, ...], grads: Sequence[Tensor]) -> None:
        of_op, call = cell.spec or spec.spec_of(cell.op), Call("", tensors, cell.options)
        needed = [leaf.is_floating_point() for leaf in call.leaves()]
        reference = of_op.reference
        self._names = [name for name, need in zip(of_op.leaf_names(call), needed, strict=True) if need]
        self._dtypes = [leaf.dtype for leaf in call.leaves() if leaf.is_floating_point()]
        self._compute: Callable = lambda rounds: of_op.scale.gradients(reference, call, needed, grads, rounds)
        self._computed: dict[bool, list] = {}

    def check(self, gradients: Sequence[Tensor], *, rounds: bool = False) -> None:
        """Raise AssertionError, naming the input, unless the gradients match."""
        if rounds not in self._computed:
            pairs = (pair for pair in self._compute(rounds) if pair is not None)
            self._computed[rounds] = [
                (exact.to(dtype), error.float()) for (exact, error), dtype in zip(pairs, self._dtypes, strict=True)
            ]
        for name, got, (expected, error) in zip(self._names, gradients, self._computed[rounds], strict=True):
            try:
                compare(got, expected, error=error)
            except AssertionError as failure:
                raise AssertionError(f"the gradient of {name}: {failure}") from failure


def fused(implementation: str) -> bool:
    """Whether it is one of ours: these round once."""
    return implementation in ("auto", *OURS)


def fingerprint(tensor: Tensor) -> int:
    """The sum of a tensor's bits, element by element as integers: changes if one element does."""
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.contiguous().view(integers[tensor.element_size()]).sum(dtype=torch.int64).item()
