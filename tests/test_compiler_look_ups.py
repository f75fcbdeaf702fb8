"""backend="fused_kernels" and look-ups in tables that lie apart: what becomes one call, and what is left alone and why.

Each module is compiled, and its outputs and gradients are eager's, whatever became of it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from compiled import Of, check, recording
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

import kernels
from kernels import dispatch, runtime
from kernels.compiler import forms, look_ups, replace
from kernels.compiler.columns import column_of
from kernels.compiler.exported import replace_in
from kernels.dispatch.core import on_host
from kernels.ops.embedding_bags_apart.op import embedding_bags_apart

pytestmark = pytest.mark.usefixtures("one_thread", "as_on_gpu")
B, N, ROWS = 5, 8, (10, 12, 14)
OP = "embedding_bags_apart"


class Bags(nn.Module):
    """Three tables as `make(rows, width)` gives them, looked up by `look(table, ids, offsets)` and put together."""

    def __init__(self, make: Callable = nn.EmbeddingBag, look: Callable | None = None, join=None, **options):
        super().__init__()
        options = {"mode": "sum"} | options if make is nn.EmbeddingBag else options
        self.tables = nn.ModuleList(make(rows, N, **options) for rows in ROWS)
        self.look = look or (lambda table, ids, offsets: table(ids, offsets))
        self.join = join or (lambda dense, looked_up: torch.cat([dense, *looked_up], 1))

    def forward(self, dense, ids, offsets):
        return self.join(dense, [self.look(t, ids[k], offsets[k]) for k, t in enumerate(self.tables)])


def inputs(rows: int = B):
    """Two ids a bag. The padded rows are among the first ids."""
    dense, ids = torch.randn(rows, N), torch.randint(10, (3, 2 * rows))
    ids[:, :4] = torch.arange(min(4, 2 * rows))
    return dense, ids, torch.arange(rows).mul(2).repeat(3, 1)


def one_id(table, ids, offsets):
    return table(ids[: offsets.shape[0]])


def weighted(table, ids, offsets):
    return F.embedding_bag(ids, table.weight, offsets, mode="sum", per_sample_weights=torch.ones(ids.shape[0]))


def with_last(table, ids, offsets):
    return table(ids, torch.cat([offsets, offsets.new_full((1,), ids.shape[0])]))


def frozen(bags: Bags) -> Bags:
    bags.tables[1].requires_grad_(False)
    return bags


def changed(k: int, table: nn.Module, make: Callable = Bags, **options) -> Bags:
    bags = make(**options)
    bags.tables[k] = table
    return bags


def padded(*paddings: int | None, look: Callable = one_id, **options) -> Callable:
    """One id each; the row of a table's padding_idx has no gradient, and is looked up."""

    def make() -> Bags:
        bags = Bags(nn.Embedding, look, **options)
        for k, padding in enumerate(paddings):
            bags.tables[k] = nn.Embedding(ROWS[k], N, padding_idx=padding)
            nn.init.normal_(bags.tables[k].weight)
        return bags

    return make


def of_two_widths(is_tied: bool) -> Of:
    """Two tables of each width by turns, or one table twice."""
    tables = nn.ModuleList(nn.Embedding(10, width) for width in (8, 4, 8, 4))
    if is_tied:
        tables[2].weight, tables[3].weight = tables[0].weight, tables[1].weight
    return Of(lambda m, dense, ids, o: torch.cat([t(ids[k % 3]) for k, t in enumerate(m.tables)], 1), tables=tables)


def written_whole(m, dense, ids, offsets):
    """The gradient of the first comes back by a write in place."""
    first, second, third = (table(ids[k], offsets[k]) for k, table in enumerate(m.tables))
    out = torch.zeros(first.shape)
    out.add_(first * 2)
    return out, second * third


def written_in_parts(m, dense, ids, offsets):
    out = dense.new_zeros(dense.shape[0], 3 * N)
    for k, table in enumerate(m.tables):
        out[:, k * N : (k + 1) * N] = table(ids[k], offsets[k])
    return out


def tied(bags: Bags) -> Bags:
    bags.tables[2].weight = bags.tables[0].weight
    return bags


def read_at_once(m, dense, ids, offsets):
    """Each result is read before the next look-up is made, of ids that are there already."""
    total = dense
    for k, table in enumerate(m.tables):
        total = total + table(ids[k], offsets[k]) * (k + 2)
    return total


def of_each_other(m, dense, ids, offsets):
    """The second table's ids come from what was looked up in the first."""
    first = m.tables[0](ids[0], offsets[0])
    more = (first.sum(1) > 0).long().repeat_interleave(2)
    return first + m.tables[1](more, offsets[1]) + m.tables[2](ids[2], offsets[2])


def written_between(m, dense, ids, offsets):
    first = m.tables[0](ids[0], offsets[0])
    m.tables[1].weight.detach().mul_(2)
    return first + m.tables[1](ids[1], offsets[1])


def random_between(m, dense, ids, offsets):
    """Whether the mask or the ids are drawn first is seen."""
    first = F.dropout(m.tables[0](ids[0], offsets[0]), 0.5)
    return first + m.tables[1](torch.randint(10, ids[1].shape), offsets[1])


def one_late(m, dense, ids, offsets):
    """The last one's ids are computed of floats behind what reads the others; the others go together."""
    first = m.tables[0](ids[0], offsets[0]) * m.tables[1](ids[1], offsets[1])
    return first + m.tables[2]((ids[2] / 4).long(), offsets[2])


def of_computed_numbers(m, dense, ids, offsets):
    first, second = (table(dense[:, k].abs().long()) for k, table in enumerate(m.tables[:2]))
    return first * second + m.tables[2]((first[:, 0] * 0).long())


def made_between(m, dense, ids, offsets):
    """A module that is made within the forward says so to PyTorch's log of what is used."""
    looked_up = []
    for table, of_table, start in zip(m.tables, ids, offsets, strict=True):
        looked_up.append(nn.Identity()(table(of_table, start)))
    return torch.cat(looked_up, 1)


def two_late(m, dense, ids, offsets):
    first = m.tables[0](ids[0], offsets[0]) * 2
    second = m.tables[1]((ids[1] / 4).long(), offsets[1]) * 2
    return first + second + m.tables[2]((ids[2] / 4).long(), offsets[2])


def in_sequence(joined: Callable) -> Callable:
    """Look-ups of ids [B, 2], as a model of sequences has them, and what it makes of the results [B, 2, D]."""
    return lambda: Bags(nn.Embedding, lambda t, i, o: t(i.view(-1, 2)), join=lambda dense, rows: joined(*rows))


def in_columns(dim: int) -> Callable:
    """Look-ups of ids [B, 1], as deepctr-torch and rec-pangu have them."""
    return lambda: Bags(nn.Embedding, lambda t, i, o: t(i[: len(o), None]), join=lambda dense, e: torch.cat(e, dim))


def weight_between(m, dense, ids, offsets):
    first = m.tables[0](ids[0], offsets[0]) * 2
    return first + F.embedding_bag(ids[1], m.tables[1].weight * 2, offsets[1], mode="sum")


def not_read(m, dense, ids, offsets):
    """A look-up that nobody reads, of which the table gets no gradient."""
    first, _, third = (table(ids[k], offsets[k]) for k, table in enumerate(m.tables))
    return first + third


def unbound(m, dense, ids, offsets):
    """Columns of one matrix, as a model that is given [B, F] takes them."""
    columns = (ids[:, : offsets.shape[1]].t() % 10).unbind(1)
    return torch.stack([table(column) for table, column in zip(m.tables, columns, strict=True)], 1)


def no_grad_between(m, dense, ids, offsets):
    first = m.tables[0](ids[0], offsets[0])
    with torch.no_grad():
        second = m.tables[1](ids[1], offsets[1])
    return first + second + m.tables[2](ids[2], offsets[2])


def as_torchrec(dense, bags):
    """Its EmbeddingBagCollection puts the results together, and its DLRM takes them apart by their features."""
    together = torch.cat([one.float() for one in bags], 1)
    return torch.cat(together.split([N] * len(bags), dim=1), 1)


class OfTheFirst(torch.autograd.Function):
    """A sum whose second term gets no gradient."""

    @staticmethod
    def forward(ctx, one, another):
        return one + another

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


def detached(one, another):
    return one + another.detach()


def joined_without_gradients(dense, bags):
    """And written to with them, which a view is not."""
    with torch.no_grad():
        together = torch.cat(bags, 1)
    return together.mul_(dense[:, :1])


def looked_up_without_gradients(m, dense, ids, offsets):
    with torch.no_grad():
        first, second = (m.tables[k](ids[k], offsets[k]) for k in range(2))
    return first.mul_(dense) + second


# How the third of three look-ups is read where no gradient comes back to it, as its table's None says.
WITHOUT_GRADIENT = {
    "shape": lambda one, another: one.view_as(another) + one.mean(0).expand_as(another),
    "dtype": lambda one, another: one.double().type_as(another) + one.double().to(another),
    "written_later": lambda one, another: another.detach().mul_(one),
    "filled_later": lambda one, another: torch.zeros_like(another).add_(one) + another.new_zeros(B, N).add_(one),
    "cut_in_place": lambda one, another: one + another.float().detach_(),
    "of_a_function": OfTheFirst.apply,
    "within_a_checkpoint": lambda one, another: checkpoint(detached, one, another, use_reentrant=False),
}


def of(function: Callable, make: Callable = Bags) -> Of:
    return Of(function, tables=make().tables)


# module, how many calls of the op
REPLACED = {
    "bags": (Bags, 1),
    "mean": (lambda: Bags(mode="mean"), 1),
    "include_last_offset": (lambda: Bags(include_last_offset=True, look=with_last), 1),
    "include_last_offset_mean": (lambda: Bags(include_last_offset=True, look=with_last, mode="mean"), 1),
    "scaled": (lambda: Bags(look=lambda t, i, o: t(i, o) * 2), 1),
    "ids_2d": (lambda: Bags(look=lambda t, i, o: t(i.view(-1, 2))), 1),
    "ids_2d_of_one": (lambda: Bags(look=lambda t, i, o: t(i[: len(o)].unsqueeze(1))), 1),  # whose offsets step by 1
    "ids_int32": (lambda: Bags(look=lambda t, i, o: t(i.int(), o.int())), 1),
    "embedding": (lambda: Bags(nn.Embedding, one_id), 1),
    "embedding_int32": (lambda: Bags(nn.Embedding, lambda t, i, o: one_id(t, i.int(), o)), 1),
    "columns_of_a_matrix": (lambda: of(unbound, lambda: Bags(nn.Embedding)), 1),
    "float64": (lambda: Bags(join=lambda dense, bags: torch.stack(bags, 1)).double(), 1),
    "frozen": (lambda: frozen(Bags()), 1),
    "one_table_twice": (lambda: tied(Bags()), 1),
    "read_at_once": (lambda: of(read_at_once), 1),
    "of_each_other": (lambda: of(of_each_other), 1),
    "not_read": (lambda: of(not_read), 1),
    "two_of_one_width": (lambda: changed(1, nn.EmbeddingBag(9, 3, mode="sum")), 1),
    "two_of_one_mode": (lambda: changed(1, nn.EmbeddingBag(12, N, mode="max")), 1),
    "two_of_one_kind": (lambda: Bags(look=lambda t, i, o: t(i, o) if t.num_embeddings > 10 else t(i.view(-1, 2))), 1),
    "stacked": (lambda: Bags(join=lambda dense, bags: torch.stack(bags, 1)), 1),
    "stacked_otherwise": (lambda: Bags(join=lambda dense, bags: torch.stack(bags[::-1], dim=1)), 1),
    "stacked_in_front": (lambda: Bags(join=lambda dense, bags: torch.stack(bags, 0)), 1),
    "stacked_behind_dense": (lambda: Bags(join=lambda dense, bags: torch.stack([dense, *bags], 1)), 1),
    "stacked_and_written": (lambda: Bags(join=lambda dense, bags: torch.stack(bags, -2).mul_(2) + dense[:, None]), 1),
    "two_together": (lambda: Bags(join=lambda dense, e: (torch.cat([e[0], e[1]], 1), e[2])), 1),
    "joined_twice": (lambda: Bags(join=lambda dense, e: (torch.cat(e, 1), torch.cat([dense, *e], dim=-1).relu_())), 1),
    "joined_and_read": (lambda: Bags(join=lambda dense, bags: (torch.cat(bags, 1).mul_(3), bags[0])), 1),
    "rows_joined": (lambda: Bags(join=lambda dense, bags: torch.cat(bags)), 1),
    "one_repeated": (lambda: Bags(join=lambda dense, bags: torch.cat([*bags, bags[0]], 1)), 1),
    "seen_flat": (lambda: Bags(join=lambda dense, bags: [one.view(-1) for one in bags]), 1),
    "one_detached": (lambda: Bags(join=lambda dense, bags: bags[0] + bags[1] * 2 + bags[2].detach()), 1),
    "one_compared": (lambda: Bags(join=lambda dense, bags: (bags[0] + bags[1]) * (bags[2] > 0)), 1),
    "split_again": (lambda: Bags(join=as_torchrec), 1),
    "of_several_operators": (lambda: Bags(join=lambda dense, bags: sum(F.normalize(one) for one in bags)), 1),
    "frozen_joined_without_gradients": (lambda: Bags(join=joined_without_gradients).requires_grad_(False), 1),
    "looked_up_without_gradients": (lambda: of(looked_up_without_gradients), 1),
    "returned": (lambda: Bags(join=lambda dense, bags: bags), 1),
    "one_late": (lambda: of(one_late), 1),
    "of_computed_numbers": (lambda: of(of_computed_numbers, lambda: Bags(nn.Embedding)), 1),
    "made_between": (lambda: of(made_between), 1),
    "ids_in_columns": (in_columns(1), 1),
    "ids_in_columns_side_by_side": (in_columns(-1), 1),
    "ids_in_columns_in_front": (in_columns(0), 1),
    "sequences": (in_sequence(lambda a, b, c: a.sum(1) + b.sum(1) * c.sum(1)), 1),
    "sequences_side_by_side": (in_sequence(lambda *rows: torch.cat(rows, 2)), 1),
    "sequences_joined": (in_sequence(lambda *rows: torch.cat(rows, 1)), 1),
    "sequences_stacked": (in_sequence(lambda *rows: torch.stack(rows, 1)), 1),
    "one_number": (lambda: Bags(nn.Embedding, lambda t, i, o: t(i[0])[None], join=lambda dense, e: torch.cat(e, 1)), 1),
    "padded": (padded(1, 2, 0), 1),
    "one_padded": (padded(None, 2, None), 1),
    "padded_and_stacked": (padded(1, None, 1, join=lambda dense, rows: torch.stack(rows, 1)), 1),
    "padded_in_columns": (padded(1, 2, 3, look=lambda t, i, o: t(i[: len(o), None]), join=lambda d, r: sum(r)), 1),
    "padded_sequences": (padded(1, 2, 3, look=lambda t, i, o: t(i.view(-1, 2)), join=lambda d, r: torch.cat(r, 2)), 1),
    "padded_table_twice": (lambda: tied(padded(1, None, 2)()), 1),  # another row each time
    "padded_frozen": (lambda: frozen(padded(1, 2, 3)()), 1),
    "widths_by_turns": (lambda: of_two_widths(False), 2),
    "widths_by_turns_tied": (lambda: of_two_widths(True), 2),
    "one_written_whole": (lambda: of(written_whole), 1),
    "in_inference": (lambda: Bags(nn.Embedding, one_id, padding_idx=1).requires_grad_(False), 1),
}
# module, the condition that fails
DECLINED = {
    "max": (lambda: Bags(mode="max"), "mode max, where the op has sum and mean: 3 look-ups"),
    "padding_idx": (lambda: Bags(padding_idx=1), "padding_idx of bags"),
    "written_in_parts": (lambda: of(written_in_parts), "no gradient is followed from there: 3 look-ups"),
    "max_norm": (lambda: Bags(max_norm=0.5), "max_norm"),
    "scale_grad_by_freq": (lambda: Bags(scale_grad_by_freq=True), "scale_grad_by_freq"),
    "sparse": (lambda: Bags(sparse=True), "sparse gradients"),
    "weighted": (lambda: Bags(look=weighted), "per_sample_weights"),
    "embedding_max_norm": (lambda: Bags(nn.Embedding, one_id, max_norm=0.5), "max_norm"),
    "embedding_scaled": (lambda: Bags(nn.Embedding, one_id, scale_grad_by_freq=True), "scale_grad_by_freq"),
    "two_late": (lambda: of(two_late), "a result is read before an input of another look-up is computed"),
    "alone": (lambda: Of(lambda m, dense, ids, o: m.table(ids[0]), table=nn.Embedding(10, N)), "a look-up by itself"),
    "widths": (
        lambda: changed(1, nn.EmbeddingBag(9, 3, mode="sum"), lambda: changed(2, nn.EmbeddingBag(9, 5, mode="sum"))),
        "a look-up by itself, which its own operator does in one launch: 3 look-ups",
    ),
    "written_between": (lambda: of(written_between), "aten.mul_.Tensor writes in place between"),
    "random_between": (lambda: of(random_between), "random numbers are drawn between the parts"),
    "weight_between": (lambda: of(weight_between), "a result is read before an input of another look-up is computed"),
    "joined_without_gradients": (lambda: Bags(join=joined_without_gradients), "no gradient comes back"),
    "no_grad_between": (lambda: of(no_grad_between), "_set_grad_enabled stands between the parts"),
    "table_is_transposed": (
        lambda: Of(
            lambda m, dense, ids, o: F.embedding(ids[0], m.a.t()) + F.embedding(ids[1], m.b.t()),
            a=nn.Parameter(torch.randn(N, 10)), b=nn.Parameter(torch.randn(N, 10)),
        ),
        "a table that is not contiguous",
    ),
}  # fmt: skip


def test_ids_may_be_columns_of_floats():
    """As deepctr-torch has them: each is computed behind what reads the look-ups before."""

    def function(m, x):
        total = 0
        for k, table in enumerate(m.tables):
            total = total + table(x[:, k : k + 1].long()) * (k + 2)
        return total

    model = Of(function, tables=nn.ModuleList(nn.Embedding(rows, N) for rows in ROWS))
    assert check(model, (torch.randint(10, (B, 4)).float(),)).ops == [OP]


@pytest.mark.parametrize("name", REPLACED)
def test_look_ups_become_one_call(name):
    make, calls = REPLACED[name]
    torch.manual_seed(0)
    recorded = check(make(), as_module(inputs(), name), gradients=name != "in_inference")
    assert recorded.ops == [OP] * calls, recorded.declined


@pytest.mark.parametrize("name", DECLINED)
def test_look_ups_are_left_alone_and_it_says_why(name):
    make, condition = DECLINED[name]
    torch.manual_seed(0)
    check(make(), inputs(), inner="eager").expect_declined(OP, condition)


@pytest.mark.parametrize("name", WITHOUT_GRADIENT)
def test_a_table_that_gets_no_gradient_gets_none(name):
    torch.manual_seed(0)
    join = WITHOUT_GRADIENT[name]
    recorded = check(Bags(join=lambda dense, bags: bags[0] * join(bags[1], bags[2])), inputs())
    assert recorded.ops == [OP]
    assert any("no gradient comes back to it" in sentence for sentence in recorded.declined)


def test_one_bag_without_gradients_may_be_written_to():
    torch.manual_seed(0)
    assert check(of(looked_up_without_gradients), inputs(1)).ops == [OP]


# What of a table only its gradient knows.
OF_GRADIENTS = {
    "sparse": lambda: Bags(sparse=True),
    "scale_grad_by_freq": lambda: Bags(scale_grad_by_freq=True),
    "embedding_sparse": lambda: Bags(nn.Embedding, one_id, sparse=True),
    "embedding_padding_idx": lambda: Bags(nn.Embedding, one_id, padding_idx=1),
}


@pytest.mark.parametrize("name", OF_GRADIENTS)
def test_what_is_of_gradients_alone_is_nothing_where_none_is_recorded(name):
    """And its parameters require one, as they do in a model that was trained."""
    assert check(OF_GRADIENTS[name](), inputs(), gradients=False).ops == [OP]


# What becomes of one look-up by itself with sparse=True, which Inductor would leave to PyTorch's slow operator.
SPARSE_ALONE = {
    "rows": lambda t, ids: t(ids[0]),
    "in_columns": lambda t, ids: t(ids),
    "sequences_of_sequences": lambda t, ids: t(ids.view(3, -1, 2)).sum(2),
    "one_number": lambda t, ids: t(ids[0, 0]),
    "int32": lambda t, ids: t(ids.int()),
    "of_computed_ids": lambda t, ids: t((ids + 1) % 7 + torch.tensor([[0], [1], [2]])),
    "written_to": lambda t, ids: t(ids).mul_(2),
    "read_twice": lambda t, ids: (t(ids).flatten(1), t(ids[0])),
}


@pytest.mark.parametrize("name", SPARSE_ALONE)
def test_a_sparse_look_up_by_itself_is_one_call_where_no_gradient_is_recorded(name):
    torch.manual_seed(0)
    model = Of(lambda m, dense, ids, o: SPARSE_ALONE[name](m.table, ids), table=nn.Embedding(10, N, sparse=True))
    calls = 2 if name == "read_twice" else 1  # of ids of other shapes
    assert check(model, inputs(), gradients=False).ops == [OP] * calls


@pytest.mark.parametrize("look", [lambda t, ids: t(ids[0]), lambda t, ids: t(ids)], ids=["rows", "in_columns"])
def test_what_is_looked_up_by_itself_without_gradients_may_be_written_to_with_them(look):
    """Within the graph, and by who called it: autograd refuses that of a view."""

    def forward(m, dense, ids, o):
        with torch.no_grad():
            rows = look(m.table, ids)
        return rows.mul_(dense[0])

    table = nn.Embedding(10, N, sparse=True).requires_grad_(False)
    assert check(Of(forward, table=table), inputs()).ops == [OP]
    torch._dynamo.reset()
    backend, recorded = recording()
    dense, ids, _ = inputs()
    with torch.no_grad():
        rows = torch.compile(look, backend=backend)(table, ids)
    assert recorded.ops == [OP]
    rows.mul_(dense.requires_grad_()[0]).sum().backward()
    assert dense.grad is not None


def test_a_sparse_look_up_by_itself_keeps_its_sparse_gradient():
    model = Of(lambda m, dense, ids, o: m.table(ids), table=nn.Embedding(10, N, sparse=True))
    recorded = check(model, inputs())
    assert recorded.ops == []
    recorded.expect_declined(OP, "sparse gradients")


def test_ids_behind_the_last_offset_are_what_they_are_for_eager():
    """In no bag; on a GPU the kernel reports them. Eager's gradient reads what nobody wrote."""

    def forward(m, dense, ids, offsets):
        ends = [torch.cat([one, one.new_tensor([2 * B - 1])]) for one in offsets]
        return sum(table(ids[k], ends[k]) for k, table in enumerate(m.tables))

    torch.manual_seed(0)
    model = of(forward, lambda: Bags(include_last_offset=True))
    assert check(model, inputs(), gradients=False).ops == [OP]


def test_an_exported_programs_padding_is_left_alone_in_training():
    program = torch.export.export(padded(1, 2, 3)(), inputs())
    explanation = replace_in(program)
    assert explanation.replaced == []
    assert "which an exported program does not keep: 3 look-ups" in explanation.declined[0]


def test_a_gradient_that_is_recorded_within_no_grad_counts():
    def forward(m, dense, ids, offsets):
        with torch.enable_grad():
            return sum(table(ids[k], offsets[k]) for k, table in enumerate(m.tables))

    model = of(forward, lambda: Bags(sparse=True))
    backend, recorded = recording("eager")
    with torch.no_grad():
        out = torch.compile(model, backend=backend)(*inputs())
    recorded.expect_declined(OP, "sparse gradients")
    out.sum().backward()
    assert model.tables[0].weight.grad.is_sparse


def as_module(arguments: tuple, name: str) -> tuple:
    return (arguments[0].double(), *arguments[1:]) if name == "float64" else arguments


@pytest.fixture
def on_kernels(monkeypatch):
    """As on a GPU: "auto" is the kernel, here its host build."""
    if shutil.which("g++") is None:
        pytest.skip("g++ is missing")
    monkeypatch.setattr(dispatch.find(OP), "auto_on_cpu", "cuda")
    with on_host():
        yield


KINDS = ["bags", "include_last_offset_mean", "ids_2d", "columns_of_a_matrix", "frozen", "one_table_twice"]


@pytest.mark.parametrize("name", KINDS)
def test_the_kernels_run_within_a_compiled_model(on_kernels, name):
    make, _ = REPLACED[name]
    torch.manual_seed(0)
    assert check(make(), inputs(), atol=1e-5, rtol=1e-4).ops == [OP]


@pytest.mark.parametrize("make", [Bags, lambda: Bags(nn.Embedding, one_id)], ids=["bags", "embedding"])
def test_one_compilation_serves_batches_from_two_on_and_sees_new_weights(on_kernels, make):
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, (backend, recorded) = make(), recording()
    compiled = torch.compile(model, backend=backend, dynamic=True)
    for rows in (6, 7, 33, 2):
        arguments = inputs(rows)
        torch.testing.assert_close(compiled(*arguments), model(*arguments))
        with torch.no_grad():
            model.tables[0].weight.add_(1)
        model.tables[1].weight.data = torch.randn_like(model.tables[1].weight)
    # Dynamo starts over with a graph whose floats a backend asks for: norm_type of an embedding.
    assert recorded.graphs in (1, 2)
    assert recorded.ops == [OP] * recorded.graphs


def test_offsets_are_checked_where_they_were_assumed(on_kernels):
    """Ids behind the last offset, of which PyTorch's own gradient is undefined; and offsets that fall."""
    torch._dynamo.reset()
    model = Bags(include_last_offset=True, look=lambda t, i, o: t(i, o))
    compiled = torch.compile(model, backend=recording()[0])
    dense, ids, _ = inputs()
    offsets = torch.arange(B + 1).mul(2).repeat(3, 1)
    torch.testing.assert_close(compiled(dense, ids, offsets), model(dense, ids, offsets))
    kernels.check_ids("cpu")
    for bad in (torch.tensor([0, 2, 4, 6, 8, 9]), torch.tensor([0, 4, 2, 6, 8, 10])):
        offsets[1] = bad
        compiled(dense, ids, offsets)
        with pytest.raises(ValueError, match=r"embedding_bags_apart: offsets\[1\] must begin with 0, never fall"):
            kernels.check_ids("cpu")
    compiled(dense, ids + 5, torch.arange(B + 1).mul(2).repeat(3, 1))
    with pytest.raises(IndexError, match=r"id 1\d, at position \d of indices\[[01]\], is out of range"):
        kernels.check_ids("cpu")


def rewritten(module: nn.Module) -> torch.fx.Graph:
    """The graph that the backend leaves to Inductor."""
    torch._dynamo.reset()
    graphs = []

    def backend(gm, example_inputs):
        replace.rewrite(gm, {})
        graphs.append(gm)
        return gm.forward

    torch.compile(module, backend=backend)(*inputs())
    return graphs[-1].graph


@pytest.mark.parametrize(
    ("name", "columns"),
    [
        ("padded_and_stacked", 0), ("padded", 0),
        ("bags", 0), ("stacked", 0), ("columns_of_a_matrix", 0), ("stacked_and_written", 0), ("stacked_otherwise", 3),
        ("stacked_behind_dense", 3), ("two_together", 3), ("joined_twice", 3), ("joined_and_read", 3), ("returned", 3),
        ("one_repeated", 1), ("rows_joined", 3), ("ids_in_columns", 0), ("ids_in_columns_side_by_side", 0),
        ("sequences_side_by_side", 0), ("ids_in_columns_in_front", 3), ("sequences_joined", 3),
    ],
)  # fmt: skip
def test_what_goes_together_is_not_taken_apart(name, columns):
    targets = [node.target for node in rewritten(REPLACED[name][0]()).nodes]
    assert targets.count(embedding_bags_apart) + targets.count(look_ups.padded) == 1
    assert targets.count(column_of) == columns
    whole = ("stacked", "columns_of_a_matrix", "stacked_and_written", "ids_in_columns", "ids_in_columns_side_by_side",
             "sequences_side_by_side", "padded_and_stacked")  # fmt: skip
    assert (torch.cat in targets or torch.stack in targets) == (name not in (*whole, "returned"))


def test_without_a_cuda_compiler_a_gpus_look_ups_are_left_alone(monkeypatch):
    """The op has no other kernel, and its eager form is what the model has."""
    monkeypatch.setattr(runtime, "why_not", lambda backend, device: "nvcc is missing")
    monkeypatch.setattr(look_ups, "only_form", lambda op, node: forms.runs("cuda", as_on_cuda(node)))
    torch.manual_seed(0)
    check(Bags(), inputs(), inner="eager").expect_declined(OP, "does not run here: nvcc is missing")


def as_on_cuda(node):
    """A node whose value lies on a GPU."""
    with FakeTensorMode():
        return mock.Mock(meta={"val": torch.empty(node.meta["val"].shape, device="cuda")})


def test_what_is_said_of_it():
    explanation = kernels.explain(Bags(), *inputs())
    (replaced,) = explanation.replaced
    assert replaced.op == OP
    assert replaced.note == "3 tables of width 8, 36 rows, bags, sum"
    assert replaced.form == "cuda"
    assert explanation.declined == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bags", "columns_of_a_matrix"])
def test_the_kernels_run_within_what_inductor_makes(on_kernels, name):
    make, _ = REPLACED[name]
    torch.manual_seed(0)
    assert check(make(), inputs(), inner="inductor", atol=1e-5, rtol=1e-4).ops == [OP]
