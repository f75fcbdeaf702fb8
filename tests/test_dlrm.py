"""DLRM against formulas written out in loops, and against itself where two ways must agree."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import matplotlib
import pytest
import torch
from torch import nn

from kernels import runtime
from model import DLRM, PRESETS, DLRMConfig, Interaction
from model.describe import draw, summarize
from model.hashing import Hash

CARDINALITIES = (10, 3, 0, 7)
IDS = [torch.randperm(100, generator=torch.Generator().manual_seed(n))[:n].numpy() for n in CARDINALITIES]


def config(**fields) -> DLRMConfig:
    return replace(DLRMConfig((13, 8, 4), embedding_dim=4, top=(8, 1), cardinalities=CARDINALITIES), **fields)


def make(seed: int = 0, **fields) -> DLRM:
    torch.manual_seed(seed)
    return DLRM(config(**fields), IDS)


def batch(rows: int, features: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(rows)
    return torch.randn(rows, 13, generator=draw), torch.randint(-1, 100, (rows, features), generator=draw)


def test_dot_is_the_interaction_of_the_papers_code():
    """facebookresearch/dlrm, interact_features with arch_interaction_itself=False: with x_0 the dense vector and
    x_1 … x_F the embeddings, the output is x_0, then x_1·x_0, x_2·x_0, x_2·x_1, x_3·x_0, …: the strictly lower triangle
    of the products, row by row. On the same weights, layer by layer, it gives the same logits.
    """
    model = make(hash=Hash.MODULUS).double()
    dense, sparse = batch(9)
    dense = dense.double()

    def linear(layer: nn.Linear, x: torch.Tensor) -> torch.Tensor:
        return x @ layer.weight.T + layer.bias

    layers = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    x = dense
    for name, layer in layers.items():
        if name.startswith("dense_arch"):
            x = linear(layer, x).clamp(min=0)
    vectors = [x]
    for f, n in enumerate(CARDINALITIES):
        rows = [(int(v) + 1) % n if n else 0 for v in sparse[:, f]]
        vectors.append(torch.stack([model.sparse_arch.table(f)[row] for row in rows]))
    features = [x]
    for i in range(1, len(vectors)):
        for j in range(i):
            features.append((vectors[i] * vectors[j]).sum(1, keepdim=True))
    x = torch.cat(features, 1)
    *hidden, logit = (layer for name, layer in layers.items() if name.startswith("over_arch"))
    for layer in hidden:
        x = linear(layer, x).clamp(min=0)
    torch.testing.assert_close(model(dense, sparse), linear(logit, x).squeeze(1))


def test_fm_cat_and_outer():
    dense, sparse = torch.randn(3, 4), torch.randn(3, 2, 4)
    from model.dlrm import InteractionArch

    first, second = sparse.unbind(1)
    pairs = torch.cat([dense, dense * first + dense * second + first * second], 1)
    torch.testing.assert_close(InteractionArch(Interaction.FM, 2, 4)(dense, sparse), pairs)

    flat = torch.cat([dense, sparse[:, 0], sparse[:, 1]], 1)
    assert torch.equal(InteractionArch(Interaction.CAT, 2, 4)(dense, sparse), flat)
    outer = InteractionArch(Interaction.OUTER, 2, 4)(dense, sparse)
    assert torch.equal(outer, torch.stack([torch.outer(row, row).flatten() for row in flat]))


@pytest.mark.parametrize(("features", "columns"), [(1, 3), (26, 16), (27, 5)])
def test_the_fused_interaction_has_the_models_order(features, columns):
    """kernels.dot_interaction, whose reference is a formula of its own, gives what the model's interaction gives."""
    from kernels import dot_interaction
    from model.dlrm import InteractionArch

    dense, sparse = torch.randn(6, columns), torch.randn(6, features, columns)
    expected = InteractionArch(Interaction.DOT, features, columns)(dense, sparse)
    backends = ["eager"] if runtime.why_not("triton", "cpu") else ["eager", "triton"]
    for backend in backends:
        torch.testing.assert_close(dot_interaction(dense, sparse, backend=backend), expected)
        padded = dot_interaction(dense, sparse, 16, backend=backend)
        torch.testing.assert_close(padded[:, : expected.shape[1]], expected)
        assert padded.shape[1] % 16 == 0
        assert not padded[:, expected.shape[1] :].any()


@pytest.mark.parametrize(("interaction", "kind"), [(Interaction.FM, "fm"), (Interaction.CAT, "flat")])
def test_kinds_of_lookup_interact_are_the_models(interaction, kind):
    from kernels.ops.lookup_interact.eager import interact
    from model.dlrm import InteractionArch

    dense, sparse = torch.randn(6, 5), torch.randn(6, 27, 5)
    expected = InteractionArch(interaction, 27, 5)(dense, sparse)
    torch.testing.assert_close(interact(dense, sparse, kind=kind), expected)


def test_fm_of_halves_is_not_what_is_left_of_a_difference():
    from model.dlrm import InteractionArch

    torch.manual_seed(0)
    dense, sparse = torch.randn(64, 4).bfloat16(), torch.randn(64, 26, 4).bfloat16()
    arch = InteractionArch(Interaction.FM, 26, 4)
    ours, exact = arch(dense, sparse), arch(dense.double(), sparse.double())
    assert ours.dtype == torch.bfloat16
    torch.testing.assert_close(ours.double(), exact, rtol=2**-8, atol=1e-4)


def test_widths_at_criteo_size():
    from model.dlrm import InteractionArch

    widths = {kind: InteractionArch(kind, 26, 16).out_features for kind in Interaction}
    assert widths == {"dot": 16 + 351, "fm": 32, "cat": 432, "outer": 186_624}


@pytest.mark.parametrize("interaction", Interaction)
@pytest.mark.parametrize("kind", Hash)
@pytest.mark.parametrize("rows", [0, 1, 7])
def test_shapes(interaction, kind, rows):
    model = make(interaction=interaction, hash=kind)
    logits = model(*batch(rows))
    assert logits.shape == (rows,)
    assert logits.dtype == torch.float32
    probabilities = model.predict(*batch(rows))
    torch.testing.assert_close(probabilities, torch.sigmoid(logits))
    assert not probabilities.requires_grad


def test_naive_index_is_index():
    naive, index = make(hash=Hash.INDEX_NAIVE), make(hash=Hash.INDEX)
    assert naive.state_dict().keys() == index.state_dict().keys()
    dense, sparse = batch(33)
    assert torch.equal(naive(dense, sparse), index(dense, sparse))
    for model in (naive, index):
        model(dense, sparse).sum().backward()
    for a, b in zip(naive.parameters(), index.parameters(), strict=True):
        assert torch.equal(a.grad.to_dense(), b.grad.to_dense())


@pytest.mark.parametrize("kind", Hash)
def test_a_bag_of_one_is_one_id(kind):
    model = make(hash=kind)
    dense, sparse = batch(11)
    bags, offsets = sparse.T.reshape(-1), torch.arange(4 * 11 + 1)
    assert torch.equal(model(dense, bags, offsets), model(dense, sparse))


def test_multi_hot_sums_each_bag():
    model = make()
    lengths = torch.randint(0, 4, (4 * 6,), generator=torch.Generator().manual_seed(3))
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    values = torch.randint(-1, 100, (int(offsets[-1]),))
    got = model.sparse_arch(values, offsets, 6)
    assert (lengths == 0).any()
    for f in range(4):
        for b in range(6):
            bag = values[offsets[f * 6 + b] : offsets[f * 6 + b + 1]]
            rows = model.sparse_arch.hashes[f](bag)
            expected = model.sparse_arch.table(f)[rows].sum(0)
            torch.testing.assert_close(got[b, f], expected)


def test_more_columns_than_tables_are_left_alone():
    model = make()
    dense, sparse = batch(5, 26)
    assert torch.equal(model(dense, sparse), model(dense, sparse[:, :4]))


def test_every_table_has_cardinality_plus_one_rows():
    for kind in Hash:
        for sparse in (False, True):
            arch = make(hash=kind, sparse_gradients=sparse).sparse_arch
            assert [len(arch.table(f)) for f in range(len(arch.tables))] == [n + 1 for n in CARDINALITIES]


@pytest.mark.parametrize("name", PRESETS)
def test_parameters_of_the_presets(name):
    shape = PRESETS[name].model
    shape = replace(shape, hash=Hash.MODULUS, cardinalities=shape.cardinalities or (5,) * 26)
    model, d, f = DLRM(shape), shape.embedding_dim, len(shape.cardinalities)
    top = (d + (f + 1) * f // 2, *shape.top)
    expected = sum(i * o + o for widths in (shape.bottom, top) for i, o in pairwise(widths))
    expected += sum((n + 1) * d for n in shape.cardinalities)
    assert sum(p.numel() for p in model.parameters()) == expected


def test_relu_after_every_layer_but_the_logit():
    model = make()
    dense, sparse = batch(200)
    assert (model.dense_arch(dense) >= 0).all()
    assert (model(dense, sparse) < 0).any()


@pytest.mark.parametrize("kind", Hash)
@pytest.mark.parametrize("interaction", Interaction)
def test_compiles_into_one_graph_forward_and_backward(kind, interaction):
    model = make(hash=kind, interaction=interaction)
    dense, sparse = batch(6)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(dense, sparse), model(dense, sparse))
    compiled(dense, sparse).sum().backward()


@pytest.mark.parametrize("kind", Hash)
def test_batched_tables_are_the_separate_ones(kind):
    """One tensor with sparse gradients, or one a table with dense ones: the same weights, results and gradients."""
    separate, batched = models = [make(hash=kind, sparse_gradients=flag) for flag in (False, True)]
    dense, sparse = batch(20)
    bags, offsets = torch.randint(-1, 100, (90,)), torch.tensor([*sorted(torch.randint(0, 91, (79,)).tolist()), 90])
    for inputs in ((dense, sparse), (dense, bags, torch.cat([torch.zeros(1, dtype=torch.int64), offsets]))):
        logits = [model(*inputs) for model in models]
        torch.testing.assert_close(*logits)
        for model, out in zip(models, logits, strict=True):
            model.zero_grad()
            out.square().sum().backward()
        gradient = batched.sparse_arch.tables.weight.grad
        assert gradient.is_sparse
        torch.testing.assert_close(torch.cat([t.weight.grad for t in separate.sparse_arch.tables]), gradient.to_dense())
    for f in range(4):
        assert torch.equal(separate.sparse_arch.table(f), batched.sparse_arch.table(f))


def ids(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int64)


@pytest.mark.parametrize(
    ("dense", "sparse", "offsets", "message"),
    [
        (torch.zeros(2, 12), ids(2, 4), None, r"dense: expected torch.float32 \[B, 13\], got"),
        (torch.zeros(2, 13).double(), ids(2, 4), None, "dense: expected torch.float32"),
        (torch.zeros(2, 13), ids(2, 3), None, r"sparse: expected torch.int64 \[2, 4 or more\]"),
        (torch.zeros(2, 13), torch.zeros(2, 4), None, "sparse: expected torch.int64"),
        (torch.zeros(2, 13), ids(3, 4), None, "sparse: expected"),
        (torch.zeros(2, 13), ids(8), torch.arange(8), r"offsets: expected torch.int64 \[9\]"),
        (torch.zeros(1, 13), ids(4), torch.tensor([0, 2, 1, 3, 4]), "offsets: .*never falling"),
        (torch.zeros(1, 13), ids(5), torch.arange(5), "offsets: expected 0 … 5"),
    ],
)
def test_wrong_inputs(dense, sparse, offsets, message):
    with pytest.raises(ValueError, match=message):
        make()(dense, sparse, offsets)


def test_wrong_vocabularies():
    with pytest.raises(ValueError, match="vocabularies: hash index needs the known ids of every table, got None"):
        DLRM(config(hash=Hash.INDEX))
    with pytest.raises(ValueError, match=r"vocabularies: expected lengths \(10, 3, 0, 7\)"):
        DLRM(config(hash=Hash.INDEX), IDS[:3])
    with pytest.raises(ValueError, match="cardinalities: expected one number a sparse feature"):
        DLRM(config(cardinalities=(), hash=Hash.MODULUS))


def test_summary_counts():
    model = make()
    table = summarize(model, 100)
    assert table["parameters"].sum() == sum(p.numel() for p in model.parameters())
    first = table.set_index("name").loc[table["name"].iloc[0]]
    assert first["FLOPs"] == 2 * 100 * 13 * 8
    assert first["bytes read"] == 4 * (100 * 13 + 13 * 8 + 8)
    assert first["bytes written"] == 4 * 100 * 8
    look_up = table[table["kind"].str.contains("Embedding")].iloc[0]
    assert look_up["bytes written"] == 4 * 100 * 4
    assert look_up["FLOPs"] == 0


def test_picture_shows_the_models_own_numbers():
    matplotlib.use("Agg")
    model = make()
    texts = " ".join(text.get_text() for text in draw(model).texts)
    parameters = sum(p.numel() for p in model.parameters())
    for expected in ("13 → 8", "8 → 4", "11 × 4", "4 × 4", f"{parameters:,} parameters"):
        assert expected in texts
