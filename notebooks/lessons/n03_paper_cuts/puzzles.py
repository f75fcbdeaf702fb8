"""The lecture's puzzles in PyTorch: a hash, a metric, a look-up and an update that neither wait nor sweep a table.

    sorted            ids [B], known [n], ascending → rows [B]: k + 1 of the k-th known id, 0 of any other
    metric            total [3] += the sum of the losses, the number of right predictions, the number of rows
    sparse_look_up    table [R, D], rows [B] → [B, D], its gradient without a tensor of R rows
    update            table[r] -= rate · the sum of grad over all b with rows[b] = r, without a tensor of R rows
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from kernels.check import Call, Case, Spec
from lessons.shared.puzzle import InPyTorch, Judge, Quiet, TooLarge, Waits, gradient_of

RATE = 0.5


def sorted_rows(ids: Tensor, known: Tensor) -> Tensor:
    found = ids.unsqueeze(-1) == known
    return (found * torch.arange(1, len(known) + 1, device=ids.device)).sum(-1)


def _sorted_calls(case: Case, device: torch.device) -> Iterator[Call]:
    count, size = case.shape
    random = torch.Generator().manual_seed(count)
    # Ids have 32 bits: neither float32 nor int32 holds them, and float32 cannot tell neighbours apart.
    known = (torch.randperm(10 * size, generator=random)[:size] + 5).sort().values * (2**32 // (10 * size + 15))
    if size > 1:
        known[-1] = known[-2] + 1
    chosen = known[torch.randint(size, (count,), generator=random)]
    yield Call(
        f"{count} known ids of {size}", (chosen.to(device), known.to(device)),
        hint="torch.searchsorted(known, ids) counts the known ids that are smaller; row 0 is nobody's, so the first "
        "known id has row 1. Ids reach 2^32: leave them in int64.",
    )
    other = torch.where(torch.arange(count) % 3 == 0, chosen, chosen + 1)
    other = torch.where(torch.isin(other, known[-1:]), known[0], other)
    between = torch.where(other > known[-1], -1, other)
    yield Call(
        f"{count} ids, not all of {size} known", (between.to(device), known.to(device)),
        hint="an unknown id has a position too: is the id that lies there the one you look for?",
    )
    above = torch.where(torch.arange(count) % 2 == 0, known[-1] + 7, chosen)
    yield Call(
        f"{count} ids, some above all of {size}", (above.to(device), known.to(device)),
        hint=f"the position of an id above all known ones is {size}, and known[{size}] does not exist.",
    )


class _Operators(TorchDispatchMode):
    """Names those that run, and stops where they are too many."""

    def __init__(self, most: int):
        super().__init__()
        self.names, self.most = [], most

    def __torch_dispatch__(self, operator, types, arguments=(), named=None):
        self.names.append(operator._schema.name)
        if self.names[-1] in ("aten::scalar_tensor", "aten::lift_fresh"):
            self.names[-1] = "a number"  # of Python: on meta it is made in another way
        if self.names[-1] == "aten::isin":
            raise TooLarge(
                "right, but isin compares each with each where there are few known ids, and else sorts them all at "
                "every call, and waits in a unique of its own"
            )
        if len(self.names) > self.most:
            raise TooLarge(f"right, but it needs more than {self.most} operators")
        return operator(*arguments, **(named or {}))


def _few_and_the_same(answer, ids: Tensor, known: Tensor) -> None:
    """Some operators for each halving of n, and no others on meta than for values, some of them above all known."""
    most = 20 * (1 + len(known).bit_length())
    with _Operators(most) as on_meta:
        answer(ids, known)
    ids, known = torch.arange(len(known), len(known) + len(ids)), torch.arange(len(known))
    try:
        with _Operators(most) as on_cpu:
            answer(ids, known)
    except IndexError:
        return  # of the ids above all known: a case of their own says so
    if on_meta.names != on_cpu.names:
        raise Waits("right, but on a GPU it would not do the same: no exception comes from there")


SORTED = InPyTorch(
    Spec(sorted_rows, _sorted_calls, cases=lambda names: [Case((6, 4)), Case((1, 1)), Case((40, 7)), Case((257, 100))]),
    rules=Quiet(
        lambda call: 2 * max(tensor.numel() for tensor in call.tensors),
        _few_and_the_same,
        "that is each with each. In order, an id's place is found with log2(n) comparisons: torch.searchsorted.",
    ),
)


def add_up(total: Tensor, logits: Tensor, labels: Tensor) -> None:
    loss = F.binary_cross_entropy_with_logits(logits, labels, reduction="sum")
    right = ((logits > 0) == (labels > 0.5)).sum()
    total += torch.stack([loss, right.to(loss.dtype), torch.full_like(loss, len(labels))])


def _keeps_nothing(answer, total: Tensor, logits: Tensor, labels: Tensor) -> None:
    answer(total, logits.detach().requires_grad_(), labels)
    if total.requires_grad:
        raise AssertionError("total requires a gradient now: it holds on to the activations of every step it has seen")


def _metric_calls(case: Case, device: torch.device) -> Iterator[Call]:
    rows = case.shape[0]
    total, logits = Case((3,)).tensor(1, device).abs(), case.tensor(2, device, (rows,))
    labels = case.integers(3, 2, device, (rows,)).to(torch.float32)
    yield Call(
        f"{rows} rows", (total, logits, labels),
        hint="total[0] grows by the sum of the rows' losses, total[1] by the rows whose logit is above 0 exactly "
        "where the label is 1, total[2] by the number of rows; all in place.",
    )
    none = logits.clone()
    none[0] = 0
    yield Call(f"{rows} rows, a logit of 0", (total, none, labels), hint="0 is not above 0.")
    high, no = logits.clone(), labels.clone()
    high[-1], no[-1] = 200, 0
    yield Call(
        f"{rows} rows, a logit of 200 whose label is 0", (total, high, no),
        hint="that row's loss is 200. A sigmoid of 200 is 1 in float32, and the logarithm of 1 - 1 is lost: the loss "
        "with_logits needs no sigmoid.",
    )


METRIC = InPyTorch(
    Spec(add_up, _metric_calls, (), ("total",), cases=lambda names: [Case((4,)), Case((1,)), Case((50,))]),
    _keeps_nothing,
    Quiet(),
)


def look_up(table: Tensor, rows: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    return table[rows], torch.zeros_like(table).index_add_(0, rows, grad)


def _with_gradient(answer, table: Tensor, rows: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    leaf = table.detach().requires_grad_()
    out = answer(leaf, rows)
    found = gradient_of(out, leaf, grad, "the table")
    return out.detach(), found.to_dense() if found.is_sparse else found


def _forward_and_backward(answer, table: Tensor, rows: Tensor, grad: Tensor) -> None:
    leaf = table.detach().requires_grad_()
    gradient_of(answer(leaf, rows), leaf, grad, "the table")


def _table_calls(hint: str, options: tuple):
    def calls(case: Case, device: torch.device) -> Iterator[Call]:
        height, width = case.shape
        rows, grad = case.integers(2, height, device, (9,)), case.tensor(3, device, (9, width))
        rows[:3] = rows[0]  # three times the same
        table = case.tensor(1, device)
        yield Call(f"9 of {height} rows", (table, rows, grad), options, hint=hint)
        first = rows.clone()
        first[-2:] = 0
        name = f"9 of {height} rows, row 0 among them"
        yield Call(name, (table, first, grad), options, hint="row 0 is a row like any other here: no id is missing.")

    return calls


def _few(call: Call) -> int:
    """More than the batch's rows, or each of them with each; less than the table."""
    _, rows, grad = call.tensors
    return max(2 * grad.numel(), rows.numel() ** 2)


LOOK_UP = InPyTorch(
    Spec(
        look_up,
        _table_calls("out[b] is table[rows[b]]; a row that is looked up three times has three gradients, summed.", ()),
        outputs=("out", "gradient"),
        cases=lambda names: [Case((90, 4)), Case((200, 16))],
    ),
    _with_gradient,
    Quiet(
        _few,
        _forward_and_backward,
        "that is the whole table, or its gradient: which argument of F.embedding makes that a sparse one?",
    ),
)


def update(table: Tensor, rows: Tensor, grad: Tensor, rate: float) -> None:
    table -= rate * torch.zeros_like(table).index_add_(0, rows, grad)


def _in_place(answer, table: Tensor, rows: Tensor, grad: Tensor, rate: float) -> None:
    answer(table, rows, grad, rate)  # index_add_ returns the table, which is as good as nothing


RATED = "rows names one row three times: does each of its three gradients count, times the rate?"
UPDATE = InPyTorch(
    Spec(
        update,
        _table_calls(RATED, (RATE,)),
        outputs=(),
        mutated=("table",),
        cases=lambda names: [Case((90, 4)), Case((200, 16))],
    ),
    _in_place,
    Quiet(_few, hint="that is the whole table: which operator adds to some rows, where they lie?"),
)

PUZZLES = {"sorted": SORTED, "metric": METRIC, "sparse_look_up": LOOK_UP, "update": UPDATE}
attempt = Judge(PUZZLES).attempt
