"""backend="fused_kernels" and what looks like DLRM's interaction: replaced, or declined by a sentence that names the
condition; and either way outputs and gradients are eager's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from compiled import Of, check, recording
from torch import Tensor, nn

from kernels.compiler.constants import Checked

pytestmark = pytest.mark.usefixtures("one_thread", "as_on_gpu")
B, V, D = 5, 4, 8
TRIL = torch.tril_indices(V, V, -1)
SHUFFLED = [4, 0, 5, 2, 1, 3]


def stacked(dense: Tensor, sparse: Tensor) -> Tensor:
    return torch.cat([dense.unsqueeze(1), sparse], 1)


def products(vectors: Tensor) -> Tensor:
    return torch.bmm(vectors, vectors.transpose(1, 2))


def interaction(
    pairs: Tensor = TRIL, vectors: Callable = stacked, gram: Callable = products,
    out: Callable = lambda dense, z, i, j: torch.cat([dense, z[:, i, j]], 1),
) -> nn.Module:
    """DLRM's interaction with a step changed: the pairs, how vectors are put together, their products, the output."""

    def function(m, dense, sparse):
        i, j = m.pairs
        return out(dense, gram(vectors(dense, sparse)), i, j)

    return Of(function, pairs=pairs.clone())


def literal_pairs(m, dense, sparse):
    i = torch.tensor([i for i in range(V) for j in range(i)])
    j = torch.tensor([j for i in range(V) for j in range(i)])
    return torch.cat([dense, products(stacked(dense, sparse))[:, i, j]], 1)


def made_pairs(m, dense, sparse):
    i, j = torch.tril_indices(V, V, offset=-1)
    return torch.cat([dense, products(stacked(dense, sparse))[:, i, j]], 1)


def computed_pairs(m, dense, sparse):
    return torch.cat([dense, products(stacked(dense, sparse))[:, m.pairs[0] % V, m.pairs[1]]], 1)


def random_pairs(m, dense, sparse):
    i, j = torch.randperm(V)[:2] * 0 + 1, torch.zeros(2, dtype=torch.long)
    return torch.cat([dense, products(stacked(dense, sparse))[:, i, j]], 1)


def written_pairs(m, dense, sparse):
    m.pairs.copy_(m.pairs.flip(0))
    return torch.cat([dense, products(stacked(dense, sparse))[:, m.pairs[0], m.pairs[1]]], 1)


def swap_two_pairs(j):
    """Swap two of the pairs in dot_interaction's order: (3, 0) and (3, 2)."""
    j[3], j[5] = 2, 0


def pairs_written_by_a_view(m, dense, sparse):
    for row in m.pairs[1:]:
        swap_two_pairs(row)
    return torch.cat([dense, products(stacked(dense, sparse))[:, m.pairs[0], m.pairs[1]]], 1)


def literals_written(m, dense, sparse):
    i, j = torch.tensor([[1, 2, 2, 3, 3, 3], [0, 0, 1, 0, 1, 2]])
    swap_two_pairs(j)
    return torch.cat([dense, products(stacked(dense, sparse))[:, i, j]], 1)


def literals_written_as_they_are(m, dense, sparse):
    i, j = torch.tensor([[1, 2, 2, 3, 3, 3], [0, 0, 1, 0, 1, 2]])
    j.long().copy_(torch.tensor([0, 0, 1, 2, 1, 0]))
    return torch.cat([dense, products(stacked(dense, sparse))[:, i, j]], 1)


def dense_written(m, dense, sparse):
    dense, sparse = dense * 1, sparse * 1
    z = products(stacked(dense, sparse))
    sparse.mul_(2)
    return torch.cat([dense, z[:, m.pairs[0], m.pairs[1]]], 1)


def filled_up(m, dense, sparse):
    """As NVIDIA's, whose rows are filled up for the product behind it."""
    pairs = products(stacked(dense, sparse))[:, *m.pairs]
    return torch.cat([dense, pairs, torch.zeros(dense.shape[0], 2, dtype=dense.dtype, device=dense.device)], 1)


def of(function: Callable) -> nn.Module:
    return Of(function, pairs=TRIL.clone())


# Where the pairs are in another order than the op's, its columns are put into theirs.
REPLACED = {
    "tril": interaction,
    "triu": lambda: interaction(torch.triu_indices(V, V, 1)),
    "flipped": lambda: interaction(TRIL.flip(0)),
    "permuted": lambda: interaction(TRIL[:, SHUFFLED]),
    "negative": lambda: interaction(TRIL - V),
    "negative_permuted": lambda: interaction(TRIL[:, SHUFFLED] - V),
    "literals": lambda: of(literal_pairs),
    "made_in_the_graph": lambda: of(made_pairs),
    "computed_of_a_buffer": lambda: of(computed_pairs),
    "matmul": lambda: interaction(gram=lambda t: t @ t.transpose(-1, -2)),
    "mT": lambda: interaction(gram=lambda t: t @ t.mT),
    "permute": lambda: interaction(gram=lambda t: t.bmm(t.permute(0, 2, 1))),
    "einsum": lambda: interaction(gram=lambda t: torch.einsum("bid, bjd -> bij", t, t)),
    "stack": lambda: interaction(vectors=lambda d, s: torch.stack([d, *s.unbind(1)], 1)),
    "cat_and_view": lambda: interaction(vectors=lambda d, s: torch.cat([d, *s.unbind(1)], 1).view(-1, V, D)),
    "cat_of_several": lambda: interaction(vectors=lambda d, s: torch.cat([d[:, None], s[:, :1], s[:, 1:]], 1)),
    "view_of_the_vector": lambda: interaction(vectors=lambda d, s: torch.cat([d.view(-1, 1, D), s], 1)),
    "filled_up": lambda: of(filled_up),
    "filled_up_permuted": lambda: Of(filled_up, pairs=TRIL[:, SHUFFLED]),
    "filled_up_by_new_zeros": lambda: interaction(
        out=lambda d, z, i, j: torch.cat([d, z[:, i, j], d.new_zeros(B, 2)], 1)
    ),
}

# The pairs alone are the op's: what else is before them, or reads the vectors, stays as it is.
ALONE = {
    "alone": lambda: interaction(out=lambda d, z, i, j: z[:, i, j]),
    "alone_permuted": lambda: interaction(TRIL[:, SHUFFLED], out=lambda d, z, i, j: z[:, i, j]),
    "with_the_diagonal": lambda: interaction(torch.tril_indices(V, V, 0)),
    "with_the_diagonal_permuted": lambda: interaction(torch.triu_indices(V, V, 0).flip(1)),
    "halved": lambda: interaction(out=lambda d, z, i, j: torch.cat([d, z[:, i, j] * 0.5], 1)),
    "relu_of_pairs": lambda: interaction(out=lambda d, z, i, j: torch.cat([d, torch.relu(z[:, i, j])], 1)),
    "pairs_first": lambda: interaction(out=lambda d, z, i, j: torch.cat([z[:, i, j], d], 1)),
    "dense_twice": lambda: interaction(out=lambda d, z, i, j: torch.cat([d, z[:, i, j], d], 1)),
    "ones_behind": lambda: interaction(out=lambda d, z, i, j: torch.cat([d, z[:, i, j], torch.ones(B, 2)], 1)),
    "zeros_before": lambda: interaction(out=lambda d, z, i, j: torch.cat([d, torch.zeros(B, 2), z[:, i, j]], 1)),
    "cat_of_rows": lambda: interaction(out=lambda d, z, i, j: torch.cat([d[:, :6], z[:, i, j]], 0)),
    "pairs_read_too": lambda: interaction(out=lambda d, z, i, j: (torch.cat([d, p := z[:, i, j]], 1), p)),
    "other_dense": lambda: interaction(out=lambda d, z, i, j: torch.cat([torch.relu(d), z[:, i, j]], 1)),
    "dense_last": lambda: interaction(vectors=lambda d, s: torch.cat([s, d.unsqueeze(1)], 1)),
    "normalised": lambda: interaction(vectors=lambda d, s: F.normalize(stacked(d, s), dim=2)),
    "view_other_axes": lambda: interaction(vectors=lambda d, s: stacked(d, s).view(-1, 8, 4).transpose(1, 2)),
    "vectors_read_too": lambda: of(
        lambda m, d, s: torch.cat([d, products(t := stacked(d, s))[:, *m.pairs]], 1) + t.sum()
    ),
    "vectors_behind": lambda: of(
        lambda m, d, s: torch.cat([products(t := stacked(d, s))[:, *m.pairs], t.flatten(1)], 1)
    ),
    "flat_index": lambda: interaction(out=lambda d, z, i, j: z.flatten(1)[:, i * V + j]),
    "flat_view": lambda: interaction(TRIL[:, SHUFFLED], out=lambda d, z, i, j: z.view(-1, V * V)[:, i * V + j]),
    "index_select": lambda: interaction(out=lambda d, z, i, j: z.view(-1, V * V).index_select(1, i * V + j)),
    "empty_part": lambda: interaction(vectors=lambda d, s: torch.cat([d[:, None], d.new_empty(0), s], 1)),
    "empty_part_before_the_view": lambda: interaction(
        vectors=lambda d, s: torch.cat([d, d.new_empty(0), *s.unbind(1)], 1).view(-1, V, D)
    ),
}

DECLINED = {
    "one_pair_twice": (lambda: interaction(TRIL[:, [0, 1, 2, 3, 4, 4]]), "not each two of 4 vectors once"),
    "one_pair_missing": (lambda: interaction(TRIL[:, :5]), "not each two of 4 vectors once"),
    "products_scaled": (lambda: interaction(gram=lambda t: products(t) * 2), "of the products aten.mul.Tensor"),
    "rows_are_indexed": (
        lambda: interaction(out=lambda d, z, i, j: torch.cat([d[:4], z[i[:4], :, j[:4]]], 1)),
        "not indexed by [:, i, j]",
    ),
    "products_read_too": (
        lambda: interaction(out=lambda d, z, i, j: (torch.cat([d, z[:, i, j]], 1), z)), "read by others too",
    ),
    "two_matrices": (
        lambda: interaction(gram=lambda t: torch.bmm(t, (t * 1.5).transpose(1, 2))), "the product is of two tensors",
    ),
    "gram_of_columns": (
        lambda: interaction(gram=lambda t: torch.bmm(t.transpose(1, 2), t)), "TᵀT, of columns",
    ),
    "view_that_mixes": (
        lambda: interaction(vectors=lambda d, s: torch.cat([d, s.reshape(-1, 24)], 1).view(-1, 8, 4)),
        "the pairs are not each two of 8 vectors once",
    ),
    "mask": (
        lambda: interaction(out=lambda d, z, i, j: torch.cat([d, z.masked_fill(z > 0, 1)[:, i, j]], 1)),
        "read by others too",
    ),
    "flat_beyond": (
        lambda: interaction(out=lambda d, z, i, j: z.flatten(1)[:, i * V + j - 16]), "a pair's index is out of range",
    ),
    "flat_of_rows": (
        lambda: interaction(out=lambda d, z, i, j: z.flatten(1)[i]), "the products are not indexed by [:, i, j]",
    ),
    "flattened_otherwise": (
        lambda: interaction(out=lambda d, z, i, j: z.flatten(0, 1)[:, i % V]), "of the products aten.",
    ),
    "random_pairs": (lambda: of(random_pairs), "the pairs' indices are random"),
    "written_pairs": (lambda: of(written_pairs), "the pairs' indices are written to"),
    "pairs_written_by_a_view": (lambda: of(pairs_written_by_a_view), "the pairs' indices are written to"),
    "literals_written": (lambda: of(literals_written), "the pairs' indices are written to"),
    "literals_written_as_they_are": (
        lambda: of(literals_written_as_they_are), "the pairs' indices are written to",
    ),
    "sparse_written": (lambda: of(dense_written), "aten.mul_.Tensor writes in place"),
}
OPTIONS = {"sparse_written": {"gradients": False}}  # which eager refuses


def inputs(rows: int = B) -> tuple[Tensor, Tensor]:
    torch.manual_seed(2)
    return torch.randn(rows, D), torch.randn(rows, V - 1, D)


@pytest.mark.parametrize("name", REPLACED)
def test_an_interaction_is_replaced(name):
    assert check(REPLACED[name](), inputs()).ops == ["dot_interaction"]


@pytest.mark.parametrize("name", ALONE)
def test_pairs_alone_are_replaced(name):
    recorded = check(ALONE[name](), inputs())
    assert recorded.ops == ["dot_interaction"]
    assert recorded.declined == []


@pytest.mark.parametrize("make", [REPLACED["filled_up"], ALONE["with_the_diagonal"]])
def test_any_number_of_rows(make):
    torch._dynamo.reset()
    module, (backend, recorded) = make(), recording()
    compiled = torch.compile(module, backend=backend)
    for rows in (5, 3, 9):
        torch.testing.assert_close(compiled(*inputs(rows)), module(*inputs(rows)))
    assert recorded.ops == ["dot_interaction"] * 2  # the first number of rows, and any


@pytest.mark.parametrize("name", DECLINED)
def test_a_look_alike_is_declined_with_its_condition(name):
    make, condition = DECLINED[name]
    recorded = check(make(), inputs(), inner="eager", **OPTIONS.get(name, {}))
    recorded.expect_declined("dot_interaction", condition)


def test_pairs_that_are_an_input_are_not_known():
    module = Of(lambda m, d, s, p: torch.cat([d, products(stacked(d, s))[:, p[0], p[1]]], 1))
    recorded = check(module, (*inputs(), TRIL.clone()), inner="eager")
    recorded.expect_declined("dot_interaction", "the pairs' indices are not known when compiling")


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_dtypes(dtype):
    assert check(interaction(), [x.to(dtype) for x in inputs()]).ops == ["dot_interaction"]


def test_a_buffer_that_changes_after_compilation_is_seen():
    """The pairs are what they are at the call: written in place, loaded, assigned, or by what PyTorch counts not."""
    torch._dynamo.reset()
    module, (dense, sparse) = interaction(), inputs()
    backend, recorded = recording()
    compiled = torch.compile(module, backend=backend)

    def agrees() -> bool:
        return torch.allclose(compiled(dense, sparse), module(dense, sparse), atol=1e-6)

    assert agrees()
    module.pairs.copy_(TRIL[:, SHUFFLED])
    assert agrees()
    module.pairs.copy_(TRIL)
    assert agrees()
    module.pairs = torch.triu_indices(V, V, 1)
    assert agrees()
    module.load_state_dict({"pairs": TRIL[:, SHUFFLED]})
    assert agrees()
    module.pairs.data = TRIL.flip(0)
    assert agrees()
    module.pairs = TRIL[:, [0] * 6]  # not every pair
    assert agrees()
    module.pairs = TRIL.clone()
    assert agrees()
    for alias in (module.pairs.data, torch.from_dlpack(module.pairs), torch.from_numpy(module.pairs.numpy())):
        for pairs in (TRIL[:, SHUFFLED], TRIL):
            alias.copy_(pairs)
            assert agrees()
    assert recorded.ops == ["dot_interaction"]


def test_a_buffer_at_the_address_of_one_that_is_gone():
    """Memory that was freed is given out again, with another version 0: so what was seen is not let go."""
    original = torch.fx.symbolic_trace(lambda pairs: pairs + 1)
    checked, others = Checked(lambda pairs: None, original, "eager", {0: torch.ones(1 << 22, dtype=torch.long)}), []
    for _ in range(5):  # the system gives out so much memory at the same address again
        others.append(torch.zeros(1 << 22, dtype=torch.long))
        assert torch.equal(checked(others[-1]), others[-1] + 1)


def test_a_buffer_that_changes_has_its_gradients():
    torch._dynamo.reset()
    module = interaction()
    compiled = torch.compile(module, backend=recording()[0])
    compiled(*inputs())
    module.pairs.copy_(TRIL[:, SHUFFLED])
    dense, sparse = (x.requires_grad_() for x in inputs())
    weights = torch.randn(B, D + V * (V - 1) // 2)
    want = torch.autograd.grad((module(dense, sparse) * weights).sum(), (dense, sparse))
    got = torch.autograd.grad((compiled(dense, sparse) * weights).sum(), (dense, sparse))
    torch.testing.assert_close(got, want)


def test_a_buffer_that_two_interactions_read_is_checked_for_the_one_that_is_replaced():
    torch._dynamo.reset()

    def function(m, dense, sparse):
        (i, j), z = m.pairs, products(stacked(dense, sparse))
        others = products(stacked(dense, -sparse))
        return torch.cat([dense, (z * 2)[:, i, j]], 1), torch.cat([dense, others[:, i, j]], 1)

    module, (backend, recorded) = of(function), recording()
    compiled = torch.compile(module, backend=backend)
    compiled(*inputs())
    assert recorded.ops == ["dot_interaction"]
    module.pairs.copy_(TRIL[:, SHUFFLED])
    torch.testing.assert_close(compiled(*inputs()), module(*inputs()))


def test_a_buffer_that_is_an_inference_tensor():
    """What is written to it is counted by nobody, so its values are compared at each call."""
    torch._dynamo.reset()
    module, (backend, recorded) = interaction(), recording()
    with torch.inference_mode():
        module.pairs = TRIL.clone()
        compiled = torch.compile(module, backend=backend)
        torch.testing.assert_close(compiled(*inputs()), module(*inputs()))
        module.pairs.copy_(TRIL[:, SHUFFLED])
        torch.testing.assert_close(compiled(*inputs()), module(*inputs()))
    assert recorded.ops == ["dot_interaction"]


@pytest.mark.parametrize("written", ["counter", "pairs"])
def test_a_counter_beside_the_pairs_may_be_written(written):
    """As BatchNorm in training counts its batches; a write to the pairs themselves makes them unknown."""

    def function(m, dense, sparse):
        m.counter.add_(1)
        if written == "pairs":
            m.pairs.add_(0)
        vectors = stacked(m.norm(dense), sparse)
        return torch.cat([dense, products(vectors)[:, m.pairs[0], m.pairs[1]]], 1)

    module = Of(function, pairs=TRIL.clone(), counter=torch.tensor(0), norm=nn.BatchNorm1d(D).eval())
    recorded = check(module, (torch.randn(B, D), torch.randn(B, V - 1, D)))
    if written == "counter":
        assert recorded.ops == ["dot_interaction"]
    else:
        recorded.expect_declined("dot_interaction", "the pairs' indices are written to")
