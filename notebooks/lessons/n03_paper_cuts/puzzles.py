"""The lecture's puzzles in PyTorch: a metric, a look-up and an update that neither wait nor sweep a table.

    metric            total [3] += the sum of the losses, the number of right predictions, the number of rows
    sparse_look_up    table [R, D], rows [B] → [B, D], its gradient without a tensor of R rows
    update            table[r] -= rate · the sum of grad over all b with rows[b] = r, without a tensor of R rows
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.check import Call, Case, Spec
from lessons.shared.puzzle import InPyTorch, Judge, Quiet, Waits, gradient_of
from lessons.shared.puzzle.waits import look

RATE = 0.5


def add_up(total: Tensor, logits: Tensor, labels: Tensor) -> None:
    loss = F.binary_cross_entropy_with_logits(logits, labels, reduction="sum")
    right = ((logits > 0) == (labels > 0.5)).sum()
    total += torch.stack([loss, right.to(loss.dtype), torch.full_like(loss, len(labels))])


def _keeps_nothing(answer, total: Tensor, logits: Tensor, labels: Tensor) -> None:
    answer(total, logits.detach().requires_grad_(), labels)
    if total.requires_grad:
        raise AssertionError("total requires a gradient now, so it keeps the tensors of every step in memory")


def _metric_calls(case: Case, device: torch.device) -> Iterator[Call]:
    rows = case.shape[0]
    total, logits = Case((3,)).tensor(1, device).abs(), case.tensor(2, device, (rows,))
    labels = case.integers(3, 2, device, (rows,)).to(torch.float32)
    yield Call(
        f"{rows} rows", (total, logits, labels),
        hint="Add in place: to total[0] the sum of the rows' losses, to total[1] the number of right predictions, to "
        "total[2] the number of rows. A prediction is right if its logit is above 0 exactly when its label is 1.",
    )
    none = logits.clone()
    none[0] = 0
    yield Call(f"{rows} rows, a logit of 0", (total, none, labels), hint="A logit of 0 is not above 0.")
    high, no = logits.clone(), labels.clone()
    high[-1], no[-1] = 200, 0
    yield Call(
        f"{rows} rows, a logit of 200 whose label is 0", (total, high, no),
        hint="The loss of that row is 200. The sigmoid of 200 rounds to 1 in float32, and the logarithm of 1 - 1 is "
        "infinite. The loss with_logits needs no sigmoid.",
    )


METRIC = InPyTorch(
    Spec(add_up, _metric_calls, (), ("total",), cases=lambda names: [Case((4,)), Case((1,)), Case((300,))]),
    _keeps_nothing,
    Quiet(),
)


def look_up(table: Tensor, rows: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    return table[rows], torch.zeros_like(table).index_add_(0, rows, grad)


def _with_gradient(answer, table: Tensor, rows: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    leaf = table.detach().requires_grad_()
    out = answer(leaf, rows)
    gradient = gradient_of(out, leaf, grad, "the table")
    return out.detach(), gradient.to_dense() if gradient.is_sparse else gradient


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
        yield Call(name, (table, first, grad), options, hint="Row 0 is a row like any other here: no id is missing.")

    return calls


def _few(call: Call) -> int:
    """More than the batch's rows, or each of them with each; less than the table."""
    _, rows, grad = call.tensors
    return max(2 * grad.numel(), rows.numel() ** 2)


LOOK_UP = InPyTorch(
    Spec(
        look_up,
        _table_calls("Row out[b] is table[rows[b]]. The gradient of a row that is looked up three times is a sum.", ()),
        outputs=("out", "gradient"),
        cases=lambda names: [Case((90, 4)), Case((200, 16))],
    ),
    _with_gradient,
    Quiet(
        _few,
        _forward_and_backward,
        "This tensor grows with the table. Which argument of F.embedding makes the gradient a sparse one?",
    ),
)


def update(table: Tensor, rows: Tensor, grad: Tensor, rate: float) -> None:
    table -= rate * torch.zeros_like(table).index_add_(0, rows, grad)


def _in_place(answer, table: Tensor, rows: Tensor, grad: Tensor, rate: float) -> None:
    answer(table, rows, grad, rate)  # index_add_ returns the table, which is as good as nothing


RATED = "One row occurs three times in `rows`. Is each of its three gradients subtracted, times the rate?"
UPDATE = InPyTorch(
    Spec(
        update,
        _table_calls(RATED, (RATE,)),
        outputs=(),
        mutated=("table",),
        cases=lambda names: [Case((90, 4)), Case((200, 16))],
    ),
    _in_place,
    Quiet(_few, hint="This tensor grows with the table. Which operator adds to some rows in place?"),
)

PUZZLES = {"metric": METRIC, "sparse_look_up": LOOK_UP, "update": UPDATE}
JUDGE = Judge(PUZZLES)
SOLVED, attempt = JUDGE.solved, JUDGE.attempt  # solved: the reader's functions that passed, by puzzle


def sparse_look_up(table: Tensor, rows: Tensor) -> Tensor:
    return F.embedding(rows, table, sparse=True)


def update_rows(table: Tensor, rows: Tensor, grad: Tensor, rate: float) -> None:
    table.index_add_(0, rows, grad, alpha=-rate)


OURS = {"metric": add_up, "sparse_look_up": sparse_look_up, "update": update_rows}


def passed(name: str) -> Callable:
    """The reader's function, if it passed when it was last tried; else the lecture's."""
    return SOLVED.get(name, OURS[name])


def why_it_waits(line: Callable, *tensors: Tensor) -> str:
    """Why the host would wait in this line on a GPU, found with tensors that have no values; "" if it would not."""
    try:
        look(Quiet(), line, Call("", tensors))
    except Waits as wait:
        return str(wait).removeprefix("right, but ").partition("\nHint")[0]
    return ""
