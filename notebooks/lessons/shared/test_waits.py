"""A puzzle that PyTorch solves: waits in disguise, large tensors and lost gradients are named, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.check import Call, Case, Spec
from lessons.shared.puzzle import InPyTorch, Judge, Quiet, gradient_of

TABLE = torch.arange(40.0).view(10, 4)


def reference(x: Tensor, ids: Tensor) -> Tensor:
    return torch.where(x > 0, x, 0.0) + ids


def calls(case: Case, device):
    x, ids = case.tensor(1, device), case.integers(2, 9, device)
    yield Call(str(case), (x, ids))


RULES = Quiet(largest=lambda call: 2 * call.tensors[0].numel() + 3)
SPEC = InPyTorch(Spec(reference, calls, cases=lambda names: [Case((6,)), Case((1,))]), rules=RULES)
attempt = Judge({"clamped": SPEC}).attempt


def by_mask(x, ids):
    out = x.clone()
    out[x <= 0] = torch.zeros_like(x[x <= 0])
    return out + ids


def by_nonzero(x, ids):
    out = x.clone()
    out[(x <= 0).nonzero(as_tuple=True)] = 0.0
    return out + ids


def by_list(x, ids):
    return torch.tensor([max(v, 0.0) for v in x.tolist()]) + ids


def by_item(x, ids):
    return torch.stack([v * (v.item() > 0) for v in x]) + ids


def by_if(x, ids):
    return torch.stack([v if v > 0 else 0 * v for v in x]) + ids


def by_float(x, ids):
    return x.clamp(min=0) * (float(x.sum()) + 1) / (float(x.sum()) + 1) + ids


def by_numpy(x, ids):
    return torch.from_numpy(np.maximum(x.numpy(), 0)) + ids


def by_asarray(x, ids):
    return torch.from_numpy(np.maximum(np.asarray(x), 0)) + ids


def by_cpu(x, ids):
    return x.cpu().clamp(min=0).to(x.device) + ids


def by_to(x, ids):
    return x.to("cpu").clamp(min=0).to(x.device) + ids


def by_any(x, ids):
    return (x.clamp(min=0) if (x <= 0).any() else x) + ids


def by_unique(x, ids):
    values, at = x.unique(return_inverse=True)
    return values.clamp(min=0)[at] + ids


def by_select(x, ids):
    return torch.zeros_like(x).masked_scatter(x > 0, x.masked_select(x > 0)) + ids


def by_equal(x, ids):
    return (x if torch.equal(x, x.abs()) else x.clamp(min=0)) + ids


def by_print(x, ids):
    repr(x)
    return reference(x, ids)


def by_format(x, ids):
    print(f"{x.sum():.3f}")
    return reference(x, ids)


def by_constant_list(x, ids):
    return x.clamp(min=torch.tensor([0.0], device=x.device)) + ids


def by_list_of_numbers(x, ids):
    return torch.tensor([*x.clamp(min=0)]) + ids


def by_new_tensor(x, ids):
    return torch.maximum(x, x.new_tensor(0.0)) + ids


def by_copy(x, ids):
    return torch.where(x > 0, x, torch.zeros(len(x)).to(x.device)) + ids


def by_list_index(x, ids):
    out = torch.where(x > 0, x, 0.0)
    return out[list(range(len(x)))] + ids


def by_synchronize(x, ids):
    if x.is_cuda:  # it raises where there is no GPU
        torch.cuda.synchronize()
    return reference(x, ids)


WAITS = [
    (by_mask, "index: a boolean mask"),
    (by_nonzero, "nonzero: only the GPU knows how large"),
    (by_list, "Tensor.tolist reads"),
    (by_item, "Tensor.item reads"),
    (by_if, "(__bool__|_local_scalar_dense)"),
    (by_float, "Tensor.__float__ reads"),
    (by_numpy, "Tensor.numpy reads"),
    (by_asarray, "Tensor.__array__ reads"),
    (by_cpu, "_to_copy: the copy to the host"),
    (by_to, "_to_copy: the copy to the host"),
    (by_any, "(__bool__|_local_scalar_dense)"),
    (by_unique, "_unique2: only the GPU knows how large"),
    (by_select, "masked_select: only the GPU knows how large"),
    (by_equal, "equal: it reads"),
    (by_print, "printing reads"),
    (by_format, "printing reads"),
    (by_constant_list, "tensor copies from the host"),
    (by_list_of_numbers, "tensor reads each number"),
    (by_new_tensor, "new_tensor copies from the host"),
    (by_copy, "_to_copy: a copy to the GPU"),
    (by_list_index, "an index that is a list"),
    (by_synchronize, "torch.cuda.synchronize waits"),
]


@pytest.mark.parametrize(("answer", "message"), WAITS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_wait_in_disguise_is_named(answer, message):
    with pytest.raises(AssertionError, match=f"case 6 float32: right, but .*{message}"):
        SPEC.judge("clamped", answer)


def test_the_line_is_named(capsys):
    assert not attempt("clamped", by_cpu)
    assert "`return x.cpu().clamp(min=0).to(x.device) + ids`\n" in capsys.readouterr().out


def fills_a_mask(x, ids):
    out = x.clone()
    out[x <= 0] = 0.0  # one number: masked_fill, which asks for no number of elements
    return out + ids


def host_numbers(x, ids):
    zero = torch.zeros(3).sum().item()  # of a tensor that lies on the host
    return x.clamp(min=zero) + torch.tensor(0.0) + ids


def rows_of_a_loop(x, ids):
    return torch.stack([v.clamp(min=0) for v in x]) + ids


def made_on_the_device(x, ids):
    return torch.maximum(x, torch.full_like(x, 0.0)) + ids + 0 * torch.arange(len(x), device=x.device)


@pytest.mark.parametrize("answer", [reference, fills_a_mask, host_numbers, rows_of_a_loop, made_on_the_device])
def test_what_does_not_wait_passes(answer, capsys):
    assert attempt("clamped", answer)
    assert "clamped: 2 cases passed on cpu" in capsys.readouterr().out


def test_a_large_tensor_is_named(capsys):
    def all_pairs(x, ids):
        return torch.where((x[:, None] == x).any(1) & (x > 0), x, 0.0) + ids

    assert not attempt("clamped", all_pairs)
    assert "right, but eq makes a tensor of [6, 6], in line " in capsys.readouterr().out


def test_wrong_values_come_first():
    with pytest.raises(AssertionError, match="expected"):
        SPEC.judge("clamped", lambda x, ids: (x + ids).cpu())


def test_a_tensor_of_the_cpu_is_turned_down_and_a_number_is_not():
    def of_the_host(x, ids):
        return reference(x, ids) + torch.zeros(len(x))

    def index_of_the_host(x, ids):
        return reference(x, ids)[torch.arange(len(x))]

    def number(x, ids):
        return reference(x, ids) + torch.tensor(0.0)

    for answer, name in ((of_the_host, "add"), (index_of_the_host, "index")):
        with pytest.raises(AssertionError, match=f"on a GPU {name} has a tensor that was made on the CPU"):
            SPEC.judge("clamped", answer)
    SPEC.judge("clamped", number)


def test_what_fails_on_shapes_alone_is_turned_down():
    def only_with_values(x, ids):
        if x.is_cuda:
            raise RuntimeError("no values")
        return reference(x, ids)

    with pytest.raises(AssertionError, match="whose values the host does not have, it fails: no values"):
        SPEC.judge("clamped", only_with_values)


# ------------------------------------------------------------------------------------------------------------------
# Gradients.


def look_up(table: Tensor, ids: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    return table[ids], torch.zeros_like(table).index_add_(0, ids, grad)


def with_gradient(answer, table, ids, grad):
    leaf = table.detach().requires_grad_()
    out = answer(leaf, ids)
    gradient = gradient_of(out, leaf, grad, "the table")
    return out.detach(), gradient.to_dense() if gradient.is_sparse else gradient


def traced(answer, table, ids, grad):
    leaf = table.detach().requires_grad_()
    gradient_of(answer(leaf, ids), leaf, grad, "the table")


def table_calls(case, device):
    yield Call("a table", (case.tensor(1, device), case.integers(2, 9, device, (5,)), case.tensor(3, device, (5, 4))))


TABLES = InPyTorch(
    Spec(look_up, table_calls, outputs=("out", "gradient"), cases=lambda names: [Case((9, 4))]),
    with_gradient,
    Quiet(lambda call: 30, traced),
)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda table, ids: table.detach()[ids], "no gradient reaches the table: detach"),
        (lambda table, ids: table.detach()[ids].requires_grad_(), "no gradient reaches the table: detach"),
        (lambda table, ids: torch.no_grad()(F.embedding)(ids, table, sparse=True), "no gradient reaches the table"),
        (lambda table, ids: F.embedding(ids, table), r"embedding_dense_backward makes a tensor of \[9, 4\]"),
        (lambda table, ids: table[ids], r"new_zeros makes a tensor of \[9, 4\]"),
        (lambda table, ids: F.embedding(ids % 4, table, sparse=True), "out: .*expected"),
        (lambda table, ids: F.embedding(ids, 2 * table, sparse=True) / 2, r"mul makes a tensor of \[9, 4\]"),
    ],
)
def test_a_gradient_that_is_lost_or_dense(answer, message):
    with pytest.raises(AssertionError, match=message):
        TABLES.judge("look_up", answer)


def test_a_sparse_gradient_passes():
    TABLES.judge("look_up", lambda table, ids: F.embedding(ids, table, sparse=True))
