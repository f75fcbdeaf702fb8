"""backend="fused_kernels" and whole small DLRMs: one op where nothing else is computed, and what only looks like it."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import re
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from compiled import check, recording
from compiled_styles import Facebook
from test_compiler_styles import Ours
from torch import Tensor, nn

import kernels
from kernels.compiler import whole
from kernels.dispatch.core import on_host
from model import DLRM, Hash, preset

pytestmark = pytest.mark.usefixtures("one_thread", "as_on_gpu")
OP, ROWS, WIDTH = "dlrm_forward", (10, 20, 30), 4
PARTS = {"fused_mlp", "dot_interaction", "embedding_bags_apart"}


class Model(nn.Module):
    """A DLRM each part of which may be replaced; a part is called with the model and what it is given."""

    def __init__(self, **parts):
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, WIDTH, mode="sum") for rows in ROWS)
        self.one, self.two = nn.Linear(13, 8), nn.Linear(8, WIDTH)
        self.three, self.four = nn.Linear(WIDTH + 6, 8), nn.Linear(8, 1)
        self.parts = parts
        if "prepare" in parts:
            parts["prepare"](self)

    def part(self, name: str, *arguments):
        return self.parts.get(name, DEFAULTS[name])(self, *arguments)

    def forward(self, dense: Tensor, ids: Tensor, offsets: Tensor):
        x = self.part("bottom", dense)
        looked_up = [self.part("look_up", k, ids[k], offsets[k]) for k in range(len(ROWS))]
        z = self.part("interact", x, looked_up)
        return self.part("end", self.part("top", z), x, looked_up, z)


def pairs_of(m: Model, x: Tensor, looked_up: list[Tensor], indices=lambda n, _: torch.tril_indices(n, n, -1)) -> Tensor:
    t = torch.stack([x, *looked_up], 1)
    i, j = indices(t.shape[1], m)
    return torch.bmm(t, t.transpose(1, 2))[:, i, j]


def interact(m: Model, x: Tensor, looked_up: list[Tensor], **named) -> Tensor:
    return torch.cat([x, pairs_of(m, x, looked_up, **named)], 1)


DEFAULTS = {
    "bottom": lambda m, dense: F.relu(m.two(F.relu(m.one(dense)))),
    "look_up": lambda m, k, ids, offsets: m.tables[k](ids, offsets),
    "interact": interact,
    "top": lambda m, z: torch.sigmoid(m.four(F.relu(m.three(z)))),
    "end": lambda m, out, x, looked_up, z: out,
}


def inputs(rows: int = 5) -> tuple[Tensor, ...]:
    """Two ids a bag."""
    generator = torch.Generator().manual_seed(rows)
    ids = torch.randint(10, (3, 2 * rows), generator=generator)
    return torch.rand(rows, 13, generator=generator), ids, torch.arange(rows).mul(2).repeat(3, 1)


def with_bags(**options):
    def prepare(m: Model) -> None:
        m.tables = nn.ModuleList(nn.EmbeddingBag(rows, WIDTH, **{"mode": "sum", **options}) for rows in ROWS)

    return prepare


def as_rows(m: Model, k: int, ids: Tensor, offsets: Tensor) -> Tensor:
    return F.embedding(ids[: offsets.shape[0]], m.tables[k].weight)


def zeroed(m: Model, dense: Tensor) -> Tensor:
    x = F.relu(m.one(dense))
    dense.zero_()
    return F.relu(m.two(x))


def under_autocast(m: Model, z: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return m.four(F.relu(m.three(z))).float()


def wide(m: Model) -> None:
    m.tables = nn.ModuleList(nn.EmbeddingBag(rows, 128, mode="sum") for rows in ROWS)
    m.two, m.three = nn.Linear(8, 128), nn.Linear(134, 8)


def without_bias(m: Model) -> None:
    m.three = nn.Linear(WIDTH + 6, 8, bias=False)


def normed(m: Model) -> None:
    m.norm = nn.LayerNorm(8)


def one_narrow_layer(m: Model) -> None:
    m.two = nn.Linear(13, WIDTH)


EXACT = "the model is smaller, and exact"
LOOK_ALIKES = {
    "no_relu_in_the_bottom": ({"bottom": lambda m, d: F.relu(m.two(m.one(d)))}, EXACT),
    "elu_in_the_bottom": ({"bottom": lambda m, d: F.relu(m.two(F.elu(m.one(d))))}, EXACT),
    "elu_behind_the_bottom": ({"bottom": lambda m, d: F.elu(m.two(F.relu(m.one(d))))}, "not come from an MLP"),
    "clamp_in_the_top": ({"top": lambda m, z: m.four(m.three(z).clamp(min=0))}, EXACT),
    "relu6_in_the_top": ({"top": lambda m, z: m.four(F.relu6(m.three(z)))}, EXACT),
    "no_relu_in_the_top": ({"top": lambda m, z: m.four(m.three(z))}, EXACT),
    "two_activations": (
        {"prepare": lambda m: setattr(m, "five", nn.Linear(8, 8)),
         "top": lambda m, z: m.four(torch.sigmoid(m.five(F.relu(m.three(z)))))}, EXACT),
    "norm_in_the_top": ({"prepare": normed, "top": lambda m, z: m.four(F.relu(m.norm(m.three(z))))}, EXACT),
    "norm_behind_the_interaction": (
        {"top": lambda m, z: m.four(F.relu(m.three(F.layer_norm(z, (10,)))))}, "does not go to an MLP"),
    "a_pair_twice": (
        {"interact": functools.partial(interact, indices=lambda n, _: torch.tensor([[1, 2, 2, 3, 3, 1],
                                                                                    [0, 1, 0, 0, 1, 0]]))},
        "not each two of 4 vectors once"),
    "pairs_before_the_vector": (
        {"interact": lambda m, x, ly: torch.cat([pairs_of(m, x, ly), x], 1)}, "cat has other parts"),
    "pairs_halved": ({"interact": lambda m, x, ly: torch.cat([x, pairs_of(m, x, ly) * 0.5], 1)}, "aten.mul.Tensor"),
    "another_vector_before_the_pairs": (
        {"interact": lambda m, x, ly: torch.cat([ly[0], pairs_of(m, x, ly)], 1)}, "is not the first of the vectors"),
    "a_vector_that_is_no_look_up": (
        {"look_up": lambda m, k, i, o: m.tables[k](i, o) + 1}, "comes from aten.add.Tensor, not from a look-up"),
    "normalised_vectors": (
        {"look_up": lambda m, k, i, o: F.normalize(m.tables[k](i, o))}, "not from a look-up"),
    "dense_without_an_mlp": (
        {"bottom": lambda m, d: d[:, :WIDTH].contiguous()}, "the dense vector does not come from an MLP"),
    "mean": ({"prepare": with_bags(mode="mean")}, "mode mean"),
    "maximum": ({"prepare": with_bags(mode="max")}, "mode max"),
    "padding_idx": ({"prepare": with_bags(padding_idx=1)}, "padding_idx"),
    "max_norm": ({"prepare": with_bags(max_norm=0.5)}, "max_norm"),
    "weighted": (
        {"look_up": lambda m, k, i, o: m.tables[k](i, o, per_sample_weights=torch.full(i.shape, 0.5))},
        "per_sample_weights"),
    "ids_of_two_dimensions": (
        {"look_up": lambda m, k, i, o: m.tables[k](i.view(-1, 2))}, "ids of two dimensions"),
    "one_without_offsets": (
        {"look_up": lambda m, k, i, o: as_rows(m, k, i, o) if k == 1 else m.tables[k](i, o)}, "some look-ups have"),
    "ids_of_two_dtypes": (
        {"look_up": lambda m, k, i, o: m.tables[k](i.int() if k else i, o.int() if k else o)}, "differ in dtype"),
    "no_bias": ({"prepare": without_bias}, "a layer has no bias"),
    "too_wide": ({"prepare": wide}, "too large for one kernel: "),
    "double": ({"prepare": lambda m: m.double(), "bottom": lambda m, d: DEFAULTS["bottom"](m, d.double())}, "float32"),
    "returns_the_interaction": ({"end": lambda m, out, x, ly, z: (out, z)}, "read by others"),
    "returns_the_vector": ({"end": lambda m, out, x, ly, z: (out, x)}, "read by others"),
    "returns_a_look_up": ({"end": lambda m, out, x, ly, z: (out, ly[1])}, "a look-up is read by others too"),
    "leaks_a_hidden_layer": (
        {"top": lambda m, z: [h := F.relu(m.three(z)), m.four(h) + h.sum()][1]}, EXACT),
    "writes_in_between": ({"bottom": zeroed}, "writes in place between the parts"),
    "autocast_in_the_top": ({"top": under_autocast}, "what comes of it torch.bfloat16"),
}


@pytest.mark.parametrize("name", LOOK_ALIKES)
def test_what_is_no_such_model_is_left_to_its_parts(name):
    torch.manual_seed(0)
    parts, condition = LOOK_ALIKES[name]
    recorded = check(Model(**parts), inputs(), gradients=False, inner="eager")
    assert (OP in recorded.ops) is (condition is EXACT)
    assert condition is EXACT or any(condition in sentence for sentence in recorded.declined), recorded.declined


def by_einsum(m: Model, x: Tensor, looked_up: list[Tensor]) -> Tensor:
    t = torch.cat([x.unsqueeze(1), torch.stack(looked_up, 1)], 1)
    i, j = torch.tril_indices(4, 4, -1)
    return torch.cat([x, torch.einsum("bid,bjd->bij", t, t)[:, i, j]], 1)


def as_torchrec(m: Model, x: Tensor, looked_up: list[Tensor]) -> Tensor:
    """The vectors are put together, taken apart and put together again, and the pairs are the upper triangle's."""
    together = torch.cat([vector.float() for vector in looked_up], dim=1)
    sparse = torch.cat(together.split([WIDTH] * len(ROWS), dim=1), dim=1).reshape(-1, len(ROWS), WIDTH)
    t = torch.cat((x.unsqueeze(1), sparse), dim=1)
    i, j = torch.triu_indices(4, 4, 1)
    return torch.cat((x, torch.bmm(t, t.transpose(1, 2))[:, i, j]), dim=1)


def in_order(i: list[int], j: list[int]) -> Callable:
    return functools.partial(interact, indices=lambda n, _: torch.tensor([i, j]))


def with_last(m: Model, k: int, ids: Tensor, offsets: Tensor) -> Tensor:
    return m.tables[k](ids, torch.cat([offsets, offsets.new_full((1,), ids.shape[0])]))


def in_one_tensor(ids: Callable, **options) -> dict[str, Callable]:
    """Parts of a model whose tables are one parameter: ids(rows [B, 3], starts [3]) are the ids in it."""

    def prepare(m: Model) -> None:
        m.tables = nn.ParameterList([torch.randn(sum(ROWS), WIDTH)])
        m.register_buffer("starts", torch.tensor([0, ROWS[0], ROWS[0] + ROWS[1]]))

    def interact(m: Model, x: Tensor, looked_up: list[Tensor]) -> Tensor:
        rows = F.embedding(ids(torch.stack(looked_up, 1), m.starts), m.tables[0], **options)
        t = torch.cat([x.unsqueeze(1), rows], 1)
        i, j = torch.tril_indices(4, 4, -1)
        return torch.cat([x, torch.bmm(t, t.transpose(1, 2))[:, i, j]], 1)

    return {"prepare": prepare, "look_up": lambda m, k, i, o: i[: len(o)], "interact": interact}


def columns_joined(m: Model, x: Tensor, looked_up: list[Tensor]) -> Tensor:
    t = torch.cat([x.unsqueeze(1), torch.cat(looked_up, 1)], 1)
    i, j = torch.tril_indices(4, 4, -1)
    return torch.cat([x, torch.bmm(t, t.transpose(1, 2))[:, i, j]], 1)


def filled_up(m: Model) -> None:
    m.three = nn.Linear(WIDTH + 6 + 6, 8)


def with_zeros(**named) -> Callable:
    """As NVIDIA's, whose rows are filled up to a multiple of 8."""

    def interact(m: Model, x: Tensor, looked_up: list[Tensor]) -> Tensor:
        return torch.cat([x, pairs_of(m, x, looked_up, **named), x.new_zeros(x.shape[0], 6)], 1)

    return interact


def vector_seen_otherwise(m: Model, x: Tensor, looked_up: list[Tensor]) -> Tensor:
    t = torch.cat([x.view(-1, 1, WIDTH), torch.stack(looked_up, 1)], 1)
    i, j = torch.tril_indices(4, 4, -1)
    return torch.cat([x, torch.bmm(t, t.transpose(1, 2))[:, i, j]], 1)


def some_in_one_tensor(m: Model, x: Tensor, looked_up: list[Tensor]) -> Tensor:
    """The first two are looked up together in the first table, and the last by itself, as [B, 1]."""
    first, second, last = looked_up
    rows = [F.embedding(torch.stack([first, second], 1), m.tables[0].weight), F.embedding(last[:, None],
            m.tables[2].weight)]  # fmt: skip
    t = torch.cat([x.unsqueeze(1), *rows], 1)
    i, j = torch.tril_indices(4, 4, -1)
    return torch.cat([x, torch.bmm(t, t.transpose(1, 2))[:, i, j]], 1)


SPELLINGS = {
    "plain": {},
    "one_id": {"look_up": as_rows},
    "no_final": {"top": lambda m, z: m.four(F.relu(m.three(z)))},
    "gelu": {"top": lambda m, z: m.four(F.gelu(m.three(z)))},
    "tanh_and_silu": {"bottom": lambda m, d: torch.tanh(m.two(torch.tanh(m.one(d)))),
                      "top": lambda m, z: m.four(F.silu(m.three(z)))},
    "sigmoid_bottom": {"bottom": lambda m, d: m.two(torch.sigmoid(m.one(d)))},
    "addmm": {"top": lambda m, z: torch.addmm(m.four.bias, (z @ m.three.weight.t() + m.three.bias).relu(),
                                               m.four.weight.t())},
    "one_layer_each": {"prepare": one_narrow_layer, "bottom": lambda m, d: F.relu(m.two(d)),
                       "top": lambda m, z: m.three(z)},
    "one_table_for_all": {"look_up": lambda m, k, i, o: m.tables[0](i, o)},
    "more_behind": {"end": lambda m, out, x, ly, z: (out.squeeze(1) * 2, out + 1)},
    "int32": {"look_up": lambda m, k, i, o: m.tables[k](i.int(), o.int())},
    "einsum": {"interact": by_einsum},
    "torchrec": {"interact": as_torchrec},
    "upper_triangle": {"interact": functools.partial(interact, indices=lambda n, _: torch.triu_indices(n, n, 1))},
    "pairs_from_the_last": {
        "interact": functools.partial(interact, indices=lambda n, _: torch.tril_indices(n, n, -1).flip(1))},
    "literal_pairs_in_another_order": {"interact": in_order([1, 2, 2, 3, 3, 3], [0, 1, 0, 0, 1, 2])},
    "negative_pairs": {"interact": in_order([-1, 0, 0, 1, 1, -2], [0, 2, -3, 2, 3, 3])},
    "in_one_tensor": in_one_tensor(lambda rows, starts: rows + starts),
    "in_one_tensor_by_modulus": in_one_tensor(lambda rows, starts: (rows + 1) % 7 + starts, sparse=True),
    "in_one_tensor_int32": in_one_tensor(lambda rows, starts: (rows + starts).int()),
    "some_in_one_tensor": {"look_up": lambda m, k, i, o: i[: len(o)], "interact": some_in_one_tensor},
    "ids_in_columns": {"look_up": lambda m, k, i, o: F.embedding(i[: len(o), None], m.tables[k].weight),
                       "interact": columns_joined},
    "filled_up": {"prepare": filled_up, "interact": with_zeros()},
    "filled_up_in_another_order": {
        "prepare": filled_up, "interact": with_zeros(indices=lambda n, _: torch.triu_indices(n, n, 1))},
    "vector_seen_otherwise": {"interact": vector_seen_otherwise},
    "last_offset": {"prepare": with_bags(include_last_offset=True), "look_up": with_last},
}  # fmt: skip


@pytest.mark.parametrize("name", SPELLINGS)
def test_a_whole_model_is_one_op(name):
    torch.manual_seed(0)
    recorded = check(Model(**SPELLINGS[name]), inputs(), gradients=False)
    assert recorded.ops == [OP]
    assert recorded.declined == []


# The parts' own tests have each spelling's gradients; these are a model's look-ups, interactions and ends.
@pytest.mark.parametrize("name", ["plain", "one_id", "more_behind", "torchrec", "in_one_tensor", "filled_up"])
def test_where_a_gradient_is_wanted_the_parts_have_it(name):
    """And nothing is said."""
    torch.manual_seed(0)
    recorded = check(Model(**SPELLINGS[name]), inputs())
    assert OP not in recorded.ops
    assert PARTS & {*recorded.ops}
    assert not any(sentence.startswith(OP) for sentence in recorded.declined)


STYLES = [
    Facebook, lambda: Facebook(sparse=True), lambda: Ours(sparse_gradients=False), lambda: Ours(sparse_gradients=True),
]


@pytest.mark.parametrize("make", STYLES)
def test_models_of_other_styles(make):
    torch.manual_seed(0)
    model = make()
    assert check(model, model.inputs(4), gradients=False).ops == [OP]


@pytest.mark.parametrize("gradients", [False, True])
def test_before_torch_2_13_nothing_says_that_the_ops_are_traced(gradients, monkeypatch):
    """There is_compiling() is False while AOTAutograd runs Dynamo's graph, whose tensors have no values."""
    monkeypatch.setattr(torch.compiler, "_compile_session_context", contextlib.nullcontext, raising=False)
    recorded = check(Model(), inputs(), gradients)
    assert recorded.graphs == 1
    assert (OP in recorded.ops) == (not gradients)


def test_one_compilation_serves_all_batches_and_weights_are_read_at_the_call():
    model = Model()
    backend, recorded = recording()
    compiled = torch.compile(model, backend=backend, dynamic=True)
    with torch.no_grad():
        compiled(*inputs(4))
        graphs = recorded.graphs  # Dynamo begins again where it meets a number that it takes for a constant
        for rows in (7, 33, 5):
            torch.testing.assert_close(compiled(*inputs(rows)), model(*inputs(rows)))
        model.load_state_dict({name: torch.randn_like(value) for name, value in model.state_dict().items()})
        model.four.weight = nn.Parameter(torch.randn(1, 8))
        torch.testing.assert_close(compiled(*inputs(9)), model(*inputs(9)))
    assert {*recorded.ops} == {OP}
    assert recorded.graphs == graphs


@pytest.mark.parametrize("kind", Hash)
def test_our_own_model_with_its_hash_before_it(kind):
    """As model.predict loads what model.train made: the tables are one tensor, and ids become rows of it."""
    torch.manual_seed(0)
    known = [torch.arange(1, rows + 1) * 7 for rows in ROWS]
    config = dataclasses.replace(preset("mini").model, hash=kind)
    model = DLRM(config, None if kind is Hash.MODULUS else known).eval().requires_grad_(False)
    recorded = check(model, (torch.rand(5, 13), torch.randint(-1, 100, (5, 3))), gradients=False)
    assert recorded.ops == [OP]
    assert recorded.declined == []


def test_the_kernel_runs_in_the_compiled_graph(monkeypatch):
    """As on a GPU: with parameters that would want a gradient, in a graph that is compiled where none is recorded."""
    monkeypatch.setattr(whole, "backend_of", lambda form, device: {"backend": form})
    torchrec = Model(prepare=with_bags(include_last_offset=True), look_up=with_last, interact=as_torchrec)
    for model in (Model(), Model(look_up=as_rows), torchrec):
        torch._dynamo.reset()
        backend, recorded = recording()
        compiled = torch.compile(model, backend=backend)
        for context in (torch.no_grad, torch.inference_mode):
            with on_host(), context():
                torch.testing.assert_close(compiled(*inputs(40)), model(*inputs(40)))
        assert {*recorded.ops} == {OP}


def test_a_gradient_that_is_recorded_later_compiles_the_parts():
    model = Model()
    backend, recorded = recording()
    compiled = torch.compile(model, backend=backend)
    with torch.no_grad():
        compiled(*inputs())
    compiled(*inputs()).sum().backward()
    assert recorded.ops[0] == OP
    assert OP not in recorded.ops[1:]
    assert model.one.weight.grad is not None


def test_an_exported_program_has_one_op_where_nothing_wants_a_gradient():
    from kernels.compiler.exported import replace_in

    for trains in (False, True):
        model = copy.deepcopy(Model()).requires_grad_(trains)
        program = torch.export.export(model, inputs())
        explanation = replace_in(program)
        assert any(text.startswith(OP) for text in map(str, explanation.replaced)) is not trains
        torch.testing.assert_close(program.module()(*inputs()), model(*inputs()))


def test_it_finds_the_model_of_the_benchmark():
    from kernels.ops.dlrm import bench

    backend, recorded = recording("eager")
    cell, generator = bench._latency(bench.MINI, 40, quick=True), torch.Generator().manual_seed(0)
    assert bench.FOUND in cell.implementations

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    tensors = cell.inputs(draw, lambda n, below: torch.randint(below, (n,)), *cell.shared(draw))
    with torch.no_grad():
        got = bench._peer(bench.MINI, backend=backend)(*tensors)
        torch.testing.assert_close(got, cell.spec.reference(*tensors))
    assert recorded.ops == [OP]


def test_explain_says_so():
    with torch.no_grad():
        text = str(kernels.explain(Model(), *inputs()))
    assert "dlrm_forward: 3 tables of width 4, bottom 13-8-4, top 10-8-1" in text
    assert "top 10-8-1, ieee, cuda (for" in text


def as_large(m: Model) -> None:
    """A row of it does not fit into registers; a tile does."""
    m.tables = nn.ModuleList(nn.EmbeddingBag(rows, 64, mode="sum") for rows in ROWS)
    m.two, m.three = nn.Linear(8, 64), nn.Linear(70, 8)


@pytest.mark.parametrize(("dtype", "precision"), [(torch.float32, "tf32"), (torch.bfloat16, "ieee")])
def test_larger_models_are_for_tensor_cores(dtype, precision, monkeypatch):
    torch.manual_seed(0)
    model, (dense, *ids) = Model(prepare=as_large).to(dtype), inputs(40)
    if dtype == torch.float32:
        declined = check(model, inputs(), gradients=False).declined
        assert any("; larger ones take tf32 or halves" in sentence for sentence in declined)
    monkeypatch.setattr(whole.mlp, "precision", lambda result: precision)
    monkeypatch.setattr(whole, "backend_of", lambda form, device: {"backend": form})
    torch._dynamo.reset()
    backend, recorded = recording()
    with on_host(), torch.no_grad():
        actual = torch.compile(model, backend=backend)(dense.to(dtype), *ids)
    assert recorded.ops == [OP]
    near = 0.05 if dtype == torch.bfloat16 else 0.005
    torch.testing.assert_close(actual, model(dense.to(dtype), *ids), rtol=near, atol=near)


@torch.library.custom_op("test_compiler_whole::whole", mutates_args=())
def opaque(dense: Tensor, ids: list[Tensor]) -> Tensor:
    """In dlrm_forward's place, which on a CPU is operators that the compiler looks into."""
    return dense[:, :1] + torch.stack(ids, 1).sum(1, keepdim=True)


@opaque.register_fake
def _(dense, ids):
    return dense.new_empty((dense.shape[0], 1))


def taken(dense, tables, ids, *rest, **options):
    return opaque(dense, ids)


@pytest.mark.parametrize("dynamic", [False, True])
def test_ids_that_are_computed_together_are_one_result(monkeypatch, dynamic):
    """A column each would be a kernel each: 26 of main."""
    from torch._inductor.utils import run_and_get_code

    monkeypatch.setattr(whole, "dlrm_forward", taken)
    torch.manual_seed(0)
    model = Model(**in_one_tensor(lambda rows, starts: (rows + 1) % 7 + starts)).eval()
    inputs = torch.randn(6, 13), torch.randint(7, (3, 6)), torch.arange(6).expand(3, 6)
    with torch.no_grad():
        out, codes = run_and_get_code(
            torch.compile(model, backend="fused_kernels", fullgraph=True, dynamic=dynamic), *inputs
        )
    starts = torch.tensor([0, ROWS[0], ROWS[0] + ROWS[1]])
    torch.testing.assert_close(out, inputs[0][:, :1] + ((inputs[1].t() + 1) % 7 + starts).sum(1, keepdim=True))
    results = re.findall(r"= empty_strided\w*\(.*torch.int64\)", "\n".join(codes))
    assert len(results) == 2, "the stack of the ids, and what is computed of it"
