"""backend="fused_kernels" and look-ups in one tensor of tables before an interaction: one call, or a sentence that says
why there are two; and either way outputs and gradients are eager's."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable, Sequence

import pytest
import torch
import torch.nn.functional as F
from compiled import Of, check, recording
from torch import Tensor, nn

import kernels
from kernels import dispatch
from kernels.compiler.exported import replace_in
from kernels.dispatch.core import on_host
from kernels.ops.lookup_interact import choice

pytestmark = pytest.mark.usefixtures("one_thread", "as_on_gpu", "few_rows_are_many")
B, D = 6, 16
HEIGHTS = [10, 4, 30]
V = len(HEIGHTS) + 1
TRIL = torch.tril_indices(V, V, -1)
OP, APART, PAIRS = "lookup_interact", "embedding_bags_apart", "dot_interaction"


@pytest.fixture
def few_rows_are_many(monkeypatch):
    """And products are on tensor cores, by which one kernel is faster in training, too."""
    measured = choice.measured_least
    monkeypatch.setattr(choice, "measured_least", lambda *of: 4 if (found := measured(*of)) == 2048 else found)
    monkeypatch.setattr("kernels.compiler.mlp.choice.float32_products", lambda: "tf32")


def columns(ids: Tensor) -> list[Tensor]:
    return [ids[:, f] for f in range(len(HEIGHTS))]


def look_up(parts: Sequence[Tensor], ids: Sequence[Tensor], **options) -> list[Tensor]:
    return [F.embedding(one, part, **options) for one, part in zip(ids, parts, strict=True)]


def of_split(weight: Tensor, ids: Tensor) -> list[Tensor]:
    return look_up(weight.split(HEIGHTS), columns(ids))


def of_slices(weight: Tensor, ids: Tensor) -> list[Tensor]:
    return look_up([weight[:10], weight[10:14], weight[14:44]], columns(ids))


def stacked(m, dense: Tensor, vectors: list[Tensor], *behind: Tensor) -> Tensor:
    return taken(m, dense, torch.cat([dense.unsqueeze(1), torch.stack(vectors, 1)], 1), *behind)


def taken(m, dense: Tensor, t: Tensor, *behind: Tensor) -> Tensor:
    return torch.cat([dense, torch.bmm(t, t.transpose(1, 2))[:, *m.pairs], *behind], 1)


def viewed(m, dense: Tensor, vectors: list[Tensor]) -> Tensor:
    return taken(m, dense, torch.cat([dense, *vectors], 1).view(-1, V, D))


def filled_up(m, dense: Tensor, vectors: list[Tensor]) -> Tensor:
    return stacked(m, dense, vectors, dense.new_zeros(dense.shape[0], 2))


def under_a_layer(m, dense: Tensor, vectors: list[Tensor]) -> Tensor:
    return m.top(stacked(m, dense, vectors))


def of(
    vectors: Callable = of_split, then: Callable = stacked, rows: int = sum(HEIGHTS), pairs: Tensor = TRIL, **held
) -> nn.Module:
    """A model of dense [B, D] and ids [B, F]: `then` of the vectors of the tables, which lie in one tensor."""
    torch.manual_seed(0)
    held |= {"weight": nn.Parameter(torch.randn(rows, D)), "pairs": pairs.clone()}
    return Of(lambda m, dense, ids: then(m, dense, vectors(m.weight, ids)), **held)


def inputs(rows: int = B) -> tuple[Tensor, Tensor]:
    torch.manual_seed(2)
    return torch.randn(rows, D), torch.stack([torch.randint(height, (rows,)) for height in HEIGHTS], 1)


REPLACED = {
    "split": of,
    "slices": lambda: of(of_slices),
    "ids_by_themselves": lambda: of(lambda w, ids: look_up(w.split(HEIGHTS), [one + 0 for one in columns(ids)])),
    "first_columns": lambda: of(lambda w, ids: of_split(w, torch.cat([ids, ids], 1))),
    "rows_behind": lambda: of(of_slices, rows=50),
    "frozen": lambda: of().requires_grad_(False),
    "cat_and_view": lambda: of(then=viewed),
    "in_another_order": lambda: of(pairs=torch.triu_indices(V, V, 1)),
    "filled_up": lambda: of(then=filled_up),
    "under_a_layer": lambda: of(then=under_a_layer, top=nn.Linear(D + V * (V - 1) // 2, 5)),
}


def of_own_tables(w: Tensor, ids: Tensor) -> list[Tensor]:
    return look_up([part * 1 for part in w.split(HEIGHTS)], columns(ids))


# What becomes of them; and a condition, where it is told.
IN_TWO = {
    "tables_apart": (lambda: of(of_own_tables), [APART, PAIRS], ""),
    "with_a_gap": (lambda: of(lambda w, i: look_up([w[:10], w[11:15], w[15:45]], columns(i)), rows=45), [APART, PAIRS],
                   ""),
    "by_turns": (lambda: of(lambda w, i: look_up([w[10:14], w[:10], w[14:44]], [i[:, 1], i[:, 0], i[:, 2]])),
                 [APART, PAIRS], ""),
    "one_table": (lambda: of(lambda w, ids: list(F.embedding(ids, w).unbind(1))), [PAIRS], ""),
    "padding": (lambda: of(lambda w, ids: look_up(w.split(HEIGHTS), columns(ids), padding_idx=2)), [APART, PAIRS],
                "padding_idx, whose row has no gradient"),
    "vectors_read_too": (lambda: of(then=lambda m, d, v: stacked(m, d, v) + v[0].sum()), [APART, PAIRS], ""),
    "float64": (lambda: of().double(), [APART, PAIRS], "a warp does not hold"),
}  # fmt: skip


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("name", REPLACED)
def test_look_ups_and_interaction_become_one_call(name, gradients):
    recorded = check(REPLACED[name](), inputs(), gradients, atol=1e-4, rtol=1e-4)
    assert recorded.ops == [OP], recorded.declined


@pytest.mark.parametrize("name", IN_TWO)
def test_what_stays_two(name):
    make, ops, condition = IN_TWO[name]
    dense, ids = inputs()
    recorded = check(make(), (dense.double() if name == "float64" else dense, ids), atol=1e-4, rtol=1e-4)
    assert recorded.ops == ops
    told = [sentence for sentence in recorded.declined if sentence.startswith(f"{OP}: ")]
    assert any(condition in sentence for sentence in told) if condition else not told, recorded.declined


@pytest.mark.parametrize(("gradients", "ops"), [(True, [APART, PAIRS]), (False, [OP])])
def test_full_float32_is_two_in_training(monkeypatch, gradients, ops):
    monkeypatch.setattr("kernels.compiler.mlp.choice.float32_products", lambda: "ieee")
    assert check(of(), inputs(), gradients, atol=1e-4, rtol=1e-4).ops == ops


def test_autocast_is_two():
    """Which would have the whole of the tables cast."""
    model = of(then=lambda m, dense, vectors: stacked(m, m.bottom(dense), vectors), bottom=nn.Linear(D, D))
    with torch.autocast("cpu", torch.bfloat16):
        recorded = check(model, inputs(), atol=1e-1, rtol=1e-1)
    assert recorded.ops == [APART, PAIRS]
    assert any(sentence.startswith(f"{OP}: torch.float32 beside torch.bfloat16") for sentence in recorded.declined)


def test_few_rows_are_two_and_a_graph_knows_which():
    torch._dynamo.reset()
    model, (backend, recorded) = of(), recording()
    compiled = torch.compile(model, backend=backend)
    for rows in (6, 3, 2, 9, 3, 6):
        torch.testing.assert_close(compiled(*inputs(rows)), model(*inputs(rows)))
    assert recorded.ops == [OP, APART, PAIRS, OP]  # six rows; any number up to three; any from four on
    assert any("for 4 rows and more" in sentence for sentence in recorded.declined)


@pytest.mark.parametrize("rows", [2, 6])
def test_in_a_whole_model_nothing_is_told_of_it(rows):
    bottom, top = nn.Sequential(nn.Linear(D, D), nn.ReLU()), nn.Linear(D + V * (V - 1) // 2, 1)
    model = of(then=lambda m, dense, v: under_a_layer(m, m.bottom(dense), v), bottom=bottom, top=top)
    explained = kernels.explain(model.requires_grad_(False), *inputs(rows))
    assert [one.op for one in explained.replaced] == ["dlrm_forward"]
    assert not explained.declined


def test_rows_are_filled_up_for_the_layer_behind():
    (replaced, *_) = kernels.explain(REPLACED["under_a_layer"](), *inputs()).replaced
    assert replaced.note == "3 tables of width 16, one id each, tf32, rows filled up to 24 columns"
    assert (replaced.op, replaced.form) == (OP, "cuda")


# By kernels, which alone are calls of ops in a graph


@pytest.fixture
def on_kernels(monkeypatch):
    """As on a GPU: "auto" is the kernel, here its host build, which rounds to tf32."""
    if shutil.which("g++") is None:
        pytest.skip("g++ is missing")
    for op in ("lookup_interact", "embedding_bags", "dot_interaction"):
        monkeypatch.setattr(dispatch.find(op), "auto_on_cpu", "cuda")
    with on_host():
        yield


@pytest.mark.parametrize(("rows", "ops"), [(None, [OP]), (torch.export.Dim.DYNAMIC, [APART, PAIRS])])
def test_an_exported_program(on_kernels, rows, ops):
    model = of().requires_grad_(False)
    model.register_buffer("pairs", TRIL, persistent=False)
    with torch.no_grad():
        program = torch.export.export(model, inputs(), dynamic_shapes=(({0: rows}, {0: rows}),))
    assert sorted(one.op for one in replace_in(program).replaced) == sorted(ops)
    torch.export.save(program, file := io.BytesIO())
    file.seek(0)
    torch.testing.assert_close(torch.export.load(file).module()(*inputs()), model(*inputs()), atol=2e-2, rtol=1e-2)


def of_bags(then: Callable, **options) -> nn.Module:
    torch.manual_seed(0)
    return Of(
        lambda m, dense, ids, *offsets: then(m, dense, m.bags(ids, *offsets)),
        bags=kernels.EmbeddingBags(HEIGHTS, D, **options), pairs=TRIL.clone(),
    )


def by_operators(m, dense: Tensor, vectors: Tensor) -> Tensor:
    return taken(m, dense, torch.cat([dense.unsqueeze(1), vectors], 1))


def by_the_op(m, dense: Tensor, vectors: Tensor) -> Tensor:
    return kernels.dot_interaction(dense, vectors, 8)


@pytest.mark.parametrize("with_offsets", [False, True])
@pytest.mark.parametrize("then", [by_operators, by_the_op])
def test_embedding_bags_and_an_interaction(on_kernels, then, with_offsets):
    dense, ids = inputs()
    given = (dense, ids % 4)
    if with_offsets:
        lengths = torch.randint(3, (len(HEIGHTS) * B,))
        given = dense, torch.randint(4, (int(lengths.sum()),)), torch.cat([torch.zeros(1), lengths.cumsum(0)]).long()
    for gradients in (True, False):
        recorded = check(of_bags(then), given, gradients, atol=2e-2, rtol=1e-2)
        is_one = not (with_offsets and gradients)
        assert recorded.ops == ([OP] if is_one else [PAIRS] if then is by_operators else [])
        assert is_one or any("bags of vectors of 16 numbers" in sentence for sentence in recorded.declined)


@pytest.mark.parametrize("options", [{"mode": "mean"}, {"padding_idx": 1}, {"out_of_range": "zero"}], ids=str)
def test_other_bags_stay_two(on_kernels, options):
    recorded = check(of_bags(by_operators, **options), inputs(), atol=2e-2, rtol=1e-2)
    assert recorded.ops == [PAIRS]


def test_a_bad_id_is_told_as_ever(on_kernels):
    torch._dynamo.reset()
    compiled = torch.compile(of_bags(by_operators), backend=recording()[0])
    dense, ids = inputs()
    ids[2, 1] = 4
    compiled(dense, ids)
    with pytest.raises(IndexError, match="embedding_bags: id 4 of feature 1, at position 7 of indices, is out of"):
        kernels.check_ids("cpu")


# Kinds whose columns do not meet, which are looked for where they were measured


def flat(m, dense: Tensor, vectors: list[Tensor]) -> Tensor:
    return torch.cat([dense.unsqueeze(1), torch.stack(vectors, 1)], 1).flatten(1)


def flat_parts(m, dense: Tensor, vectors: list[Tensor]) -> Tensor:
    return torch.cat([dense, *vectors], 1)


def flat_sparse(m, dense: Tensor, vectors: list[Tensor]) -> Tensor:
    return torch.cat([dense, torch.stack(vectors, 1).view(-1, (V - 1) * D)], 1)


def fm(m, dense: Tensor, vectors: list[Tensor]) -> Tensor:
    t = torch.cat([dense.unsqueeze(1), torch.stack(vectors, 1)], 1)
    return torch.cat([dense, (t.sum(1).square() - t.square().sum(1)) / 2], 1)


def fm_by_powers(m, dense: Tensor, vectors: list[Tensor]) -> Tensor:
    t = torch.stack([dense, *vectors], dim=1)
    return torch.cat([dense, 0.5 * (t.sum(dim=1) ** 2 - (t * t).sum(dim=-2))], dim=-1)


COLUMNS = {"flat": flat, "flat_parts": flat_parts, "flat_sparse": flat_sparse, "fm": fm, "fm_by_powers": fm_by_powers}


@pytest.fixture
def columns_were_measured(monkeypatch, few_rows_are_many):
    of_dot = choice.measured_least
    monkeypatch.setattr(choice, "measured_least", lambda *of: 4 if of[-1] in ("fm", "flat") else of_dot(*of))
    monkeypatch.setattr(choice, "MEASURED_BY_COLUMNS", {(kind, True): {} for kind in ("fm", "flat")})


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("name", COLUMNS)
def test_columns_that_do_not_meet_become_one_call(columns_were_measured, name, gradients):
    def under_a_layer(m, *given):
        return m.top(COLUMNS[name](m, *given))

    columns = COLUMNS[name](None, torch.zeros(1, D), [torch.zeros(1, D)] * (V - 1)).shape[1]
    for model in (of(then=COLUMNS[name]), of(then=under_a_layer, top=nn.Linear(columns, 5))):
        recorded = check(model, inputs(), gradients, atol=1e-4, rtol=1e-4)
        assert recorded.ops == [OP], recorded.declined
    assert kernels.explain(model, *inputs()).replaced[0].note.endswith(name.partition("_")[0])


@pytest.mark.parametrize("name", COLUMNS)
def test_columns_stay_in_parts_where_they_were_not_measured(monkeypatch, name):
    monkeypatch.setattr(choice, "MEASURED_BY_COLUMNS", {})
    recorded = check(of(then=COLUMNS[name]), inputs())
    assert recorded.ops == [APART]
    assert not any(sentence.startswith(f"{OP}: ") for sentence in recorded.declined)


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("name", COLUMNS)
def test_columns_become_one_call_by_the_times_that_were_measured(name, gradients):
    assert check(of(then=COLUMNS[name]), inputs(), gradients, atol=1e-4, rtol=1e-4).ops == [OP]


NO_COLUMNS = {
    "a_third": lambda m, d, v: (lambda t: torch.cat([d, (t.sum(1).square() - t.square().sum(1)) / 3], 1))(
        torch.stack([d, *v], 1)),
    "sum_and_squares": lambda m, d, v: (lambda t: torch.cat([d, (t.sum(1).square() + t.square().sum(1)) / 2], 1))(
        torch.stack([d, *v], 1)),
    "columns_together": lambda m, d, v: (lambda t: torch.cat([d, (t.sum(2).square() - t.square().sum(2)) / 2], 1))(
        torch.stack([d, *v], 1)),
    "read_too": lambda m, d, v: (lambda t: torch.cat([d, (t.sum(1).square() - t.square().sum(1)) / 2], 1) + t.sum())(
        torch.stack([d, *v], 1)),
    "dense_elsewhere": lambda m, d, v: (lambda t: torch.cat([d, (t.sum(1).square() - t.square().sum(1)) / 2], 1))(
        torch.stack([*v, d], 1)),
    "dense_last": lambda m, d, v: torch.cat([*v, d], 1),
    "more_behind": lambda m, d, v: torch.cat([d, *v, d], 1),
    "another_width": lambda m, d, v: torch.cat([d[:, :8], *v], 1),
    "another_width_before_all": lambda m, d, v: torch.cat([d[:, :8], torch.stack(v, 1).flatten(1)], 1),
    "twice_the_squares": lambda m, d, v: (
        lambda t: torch.cat([d, torch.sub(t.sum(1).square(), t.square().sum(1), alpha=2) / 2], 1))(
        torch.stack([d, *v], 1)),
}  # fmt: skip


@pytest.mark.parametrize("name", NO_COLUMNS)
def test_what_is_no_such_kind(columns_were_measured, name):
    recorded = check(of(then=NO_COLUMNS[name]), inputs(), atol=1e-4, rtol=1e-4)
    assert OP not in recorded.ops


@pytest.mark.parametrize("dim", [0, 1])
def test_flat_vectors_are_beside_each_other(columns_were_measured, dim):
    """That of one table could be below the dense one, too."""

    def below(m, dense: Tensor, ids: Tensor) -> Tensor:
        vectors = torch.stack([F.embedding(ids[:, 0], m.weight[:10])], 1)
        return torch.cat([dense, vectors.flatten(1)], dim)

    recorded = check(Of(below, weight=nn.Parameter(torch.randn(12, D))), inputs(), atol=1e-4, rtol=1e-4)
    assert recorded.ops == ([OP] if dim else [])


@pytest.mark.parametrize("name", COLUMNS)
def test_columns_where_sizes_are_open(columns_were_measured, name):
    """A width that no layer of the graph fixes is a symbol."""
    recorded = check(of(then=COLUMNS[name]), inputs(), dynamic=True, atol=1e-4, rtol=1e-4)
    assert recorded.ops == ([APART] if name in ("flat_parts", "flat_sparse") else [OP])


def fm_in(narrow: torch.dtype | None = torch.bfloat16, wide: torch.dtype = torch.float32, read=lambda t, wide: 0):
    def then(m, dense: Tensor, vectors: list[Tensor]) -> Tensor:
        t = torch.stack([dense, *vectors], 1)
        own = t.to(wide)
        half = (own.sum(1).square() - own.square().sum(1)) / 2
        return torch.cat([dense, half.to(narrow) if narrow else half], 1) + read(t, own)

    return then


@pytest.mark.parametrize("gradients", [True, False])
def test_columns_of_halves_meet_in_float32(columns_were_measured, gradients):
    dense, ids = inputs()
    recorded = check(of(then=fm_in()).bfloat16(), (dense.bfloat16(), ids), gradients, atol=0.1, rtol=2e-2)
    assert recorded.ops == [OP], recorded.declined


OTHER_CASTS = {
    "wide_result": fm_in(None),
    "read_wide": fm_in(read=lambda t, own: own.sum().bfloat16()),
    "read_narrow": fm_in(read=lambda t, own: t.sum()),
    "other_halves": fm_in(torch.float16),
    "float64": fm_in(wide=torch.float64),
}


@pytest.mark.parametrize("name", OTHER_CASTS)
def test_columns_of_other_casts_are_in_parts(columns_were_measured, name):
    dense, ids = inputs()
    model = of(then=OTHER_CASTS[name]).bfloat16()
    recorded = check(model, (dense.bfloat16(), ids), False, atol=0.1, rtol=2e-2)
    assert OP not in recorded.ops


@pytest.mark.parametrize("then", [viewed, stacked])
def test_pairs_come_before_flat_vectors(columns_were_measured, then):
    assert check(of(then=then), inputs(), atol=1e-4, rtol=1e-4).ops == [OP]
    (replaced,) = kernels.explain(of(then=then), *inputs()).replaced
    assert replaced.note == "3 tables of width 16, one id each, tf32"


@pytest.mark.parametrize("rows", [3, 6])
def test_columns_of_bags(on_kernels, columns_were_measured, rows):
    dense, ids = inputs(rows)
    recorded = check(of_bags(lambda m, d, v: torch.cat([d, v.flatten(1)], 1)), (dense, ids % 4), atol=2e-2, rtol=1e-2)
    assert recorded.ops == ([OP] if rows == 6 else [])
    assert rows == 6 or any("for 4 rows and more" in sentence for sentence in recorded.declined)
