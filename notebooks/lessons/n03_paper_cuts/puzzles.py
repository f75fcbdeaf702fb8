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


RATED = "rows names one row three times: is each of its three gradients subtracted, times the rate?"
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
