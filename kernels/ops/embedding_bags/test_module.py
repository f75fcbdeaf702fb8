"""EmbeddingBags beside a module nn.EmbeddingBag a table."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import kernels

from ... import runtime
from .test_embedding_bags import ragged_ids

DEVICE, HEIGHTS = runtime.device(), [37, 1, 8]


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("padding", [None, 0, 5])
def test_it_is_a_module_a_table(mode, padding):
    torch.manual_seed(0)
    bags = kernels.EmbeddingBags(HEIGHTS, 6, mode, padding_idx=padding, device=DEVICE)
    ids, offsets = ragged_ids(10)
    modules = [
        nn.EmbeddingBag.from_pretrained(
            table.clone(), freeze=False, mode=mode, include_last_offset=True,
            padding_idx=padding if padding is not None and padding < len(table) else None,
        )
        for table in bags.weight.detach().split(HEIGHTS)
    ]
    starts = offsets[::10].tolist()
    want = torch.stack([
        module(ids[starts[f] : starts[f + 1]], offsets[10 * f : 10 * f + 11] - starts[f])
        for f, module in enumerate(modules)
    ], dim=1)
    out = bags(ids, offsets)
    torch.testing.assert_close(out, want)
    grad = torch.randn_like(out)
    out.backward(grad)
    want.backward(grad)
    torch.testing.assert_close(bags.weight.grad, torch.cat([module.weight.grad for module in modules]))
    for module, table in zip(modules, bags.weight.detach().split(HEIGHTS), strict=True):
        if module.padding_idx is not None:
            assert not table[padding].any()


def test_its_state_is_its_weight_and_autocast_leaves_that_alone():
    bags, other = (kernels.EmbeddingBags(HEIGHTS, 6, "sum", device=DEVICE) for _ in range(2))
    assert list(bags.state_dict()) == ["weight"]
    other.load_state_dict(bags.state_dict())
    ids = torch.zeros(4, 3, dtype=torch.long, device=DEVICE)
    weights = torch.ones(4, 3, device=DEVICE)
    with torch.autocast(DEVICE.type, torch.bfloat16):
        for dtype in (torch.float32, torch.bfloat16):
            out = other(ids, None, weights.to(dtype))
            assert out.dtype == torch.float32
            assert torch.equal(out, bags(ids))
    assert "[37, 1, 8], 6, mode='sum'" in repr(bags)
    on_meta = kernels.EmbeddingBags(HEIGHTS, 6, device="meta")
    assert on_meta(ids.to("meta")).shape == (4, 3, 6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([], 6), "num_embeddings must be the rows of each table"),
        (([3, -1], 6), r"num_embeddings must be .*; got \[3, -1\]"),
        (([3], -1), "embedding_dim must not be negative; got -1"),
        (([3], 6, "median"), "mode must be one of sum, mean, max; got 'median'"),
        ((nn.ModuleList([nn.Embedding(3, 6)]), 6), r"num_embeddings must .*; got a module, .*from_tables\(…\)"),
        ((5, 6), "num_embeddings must be a sequence of integers; got int"),
        ((["3"], 6), r"num_embeddings\[0\] must be an integer; got str"),
        (([3, 4], [8, 4]), r"embedding_dim must be one integer, of all tables; got \[8, 4\]"),
        (([3], 6.0), "embedding_dim must be an integer; got float"),
        (([3], 6, ["sum"]), r"mode must be one of sum, mean, max; got \['sum'\]"),
        (([3], 6, "sum", {"padding_idx": [0, None]}), r"padding_idx must be one id, .*; got \[0, None\]"),
        (([3], 6, "sum", {"padding_idx": -2}), "padding_idx must be an id, or -1 or None for none; got -2"),
        (([3], 6, "sum", {"dtype": torch.int8}), "dtype must be one of float32, .*; got int8"),
        (([3], 6, "sum", {"dtype": "float32"}), "dtype must be one of float32, .*; got float32"),
        (([3], 6, "sum", {"device": "gpu"}), "device must be a device; got 'gpu'"),
        (([3], 6, "sum", {"out_of_range": None}), "out_of_range must be one of error, zero, count; got None"),
        (([3], 6, "sum", {"backend": "gpu"}), "backend must be one of auto, eager, triton, cuda; got 'gpu'"),
    ],
)
def test_wrong_arguments_are_named(arguments, message):
    *arguments, named = arguments if isinstance(arguments[-1], dict) else (*arguments, {})
    with pytest.raises((TypeError, ValueError), match=f"^EmbeddingBags: {message}"):
        kernels.EmbeddingBags(*arguments, **named)


def _within_meta(make):
    with torch.device("meta"):
        return make()


def _loaded_on_meta(state):
    bags = _within_meta(lambda: kernels.EmbeddingBags(HEIGHTS, 6))
    bags.load_state_dict(state, assign=True)
    assert torch.equal(bags.weight, torch.cat([*state.values()]))
    return bags


@pytest.mark.parametrize("make", [
    lambda: nn.utils.skip_init(kernels.EmbeddingBags, HEIGHTS, 6, device=DEVICE),
    lambda: kernels.EmbeddingBags(HEIGHTS, 6, device="meta").to_empty(device=DEVICE),
    lambda: _within_meta(lambda: kernels.EmbeddingBags(HEIGHTS, 6).to_empty(device=DEVICE)),
    lambda: _within_meta(lambda: kernels.EmbeddingBags(HEIGHTS, 6, device=DEVICE).to(torch.float64)),
    lambda: _loaded_on_meta(kernels.EmbeddingBags(HEIGHTS, 6, device=DEVICE).state_dict()),
    lambda: _loaded_on_meta(kernels.EmbeddingBags(HEIGHTS, 6, device=DEVICE).state_dict_of_tables()),
])
def test_memory_that_is_not_written_leaves_no_offsets_unwritten(make):
    bags = make()
    assert bags.row_offsets.tolist() == [0, 37, 38, 46]
    assert bags.row_offsets.device == bags.weight.device


# ----------------------------------------------------------------------------------------------- a model's own tables


class Model(torch.nn.Module):
    """One id a feature, or bags, as a model has its tables in a list."""

    def __init__(self, tables):
        super().__init__()
        self.emb_l = nn.ModuleList(tables)

    def forward(self, ids):
        if isinstance(self.emb_l, kernels.EmbeddingBags):
            return self.emb_l(ids)
        columns = zip(self.emb_l, ids.unbind(1), strict=True)
        return torch.stack([
            table(column) if isinstance(table, nn.Embedding) else table(column[:, None]) for table, column in columns
        ], 1)


def tables(make=nn.EmbeddingBag, **options):
    return [make(rows, 6, device=DEVICE, **options) for rows in HEIGHTS]


@pytest.mark.parametrize("given", [
    lambda: tables(mode="sum"), lambda: tables(mode="mean", padding_idx=0), lambda: tables(mode="max"),
    lambda: tables(nn.Embedding, padding_idx=0), lambda: tables(nn.Embedding, dtype=torch.float16),
    lambda: [nn.Embedding(4, 6, device=DEVICE), *tables(mode="mean")[:2]],
], ids=["sum", "mean padding", "max", "nn.Embedding padding", "halves", "both"])
def test_a_models_tables_become_one_and_its_checkpoint_loads_there_and_back(given):
    model, other, fresh = Model(given()), Model(given()), Model(given())
    ids = torch.stack([torch.arange(5, device=DEVICE) % len(table.weight) for table in model.emb_l], 1)
    want, checkpoint = model(ids), model.state_dict()
    module = kernels.EmbeddingBags.from_tables(model.emb_l, backend="eager")
    assert module.mode == getattr(model.emb_l[-1], "mode", "sum")
    assert module.padding_idx == model.emb_l[-1].padding_idx
    assert module.weight.dtype == want.dtype
    assert module.weight.requires_grad
    model.emb_l = module
    torch.testing.assert_close(model(ids), want)
    own = other.emb_l[0].weight.detach().clone()
    other.emb_l = kernels.EmbeddingBags.from_tables(other.emb_l)
    for assign in (False, True):
        other.load_state_dict(checkpoint, assign=assign)
        torch.testing.assert_close(other(ids), want)
    back = other.emb_l.state_dict_of_tables("emb_l.")
    assert [*back] == [*checkpoint]
    fresh.load_state_dict(back)
    assert torch.equal(fresh(ids), want)
    wrong = {**checkpoint, "emb_l.1.weight": own.new_zeros(2, 6)}
    before = other.emb_l.weight.detach().clone()
    del checkpoint["emb_l.0.weight"]
    for state, message in (
        (checkpoint, r'Missing key.*"emb_l\.0\.weight"'),
        (wrong, r"size mismatch for emb_l\.1\.weight: the checkpoint has a tensor of shape \[2, 6\]"),
        ({**back, "emb_l.9.weight": own}, r'Unexpected key.*"emb_l\.9\.weight"'),
    ):
        with pytest.raises(RuntimeError, match=message):
            other.load_state_dict(state)
        assert torch.equal(other.emb_l.weight, before)


def test_some_of_the_tables_are_loaded_where_a_load_is_not_strict():
    tables = [torch.randn(rows, 6, device=DEVICE) for rows in HEIGHTS]
    module = kernels.EmbeddingBags(HEIGHTS, 6, device=DEVICE)
    before = module.weight.detach().clone()
    checkpoint = {"1.weight": tables[1], "2.weight": tables[2]}
    assert module.load_state_dict(checkpoint, strict=False).missing_keys == ["0.weight"]
    assert torch.equal(module.weight, torch.cat([before[:37], *tables[1:]]))
    with pytest.raises(RuntimeError, match=r"weight is on the device meta, or to be assigned: all its tables must be"):
        kernels.EmbeddingBags(HEIGHTS, 6, device="meta").load_state_dict(checkpoint, strict=False, assign=True)
    checkpoint["0.weight"] = tables[0].cpu().numpy()
    with pytest.raises(RuntimeError, match=r"size mismatch for 0\.weight: the checkpoint has a ndarray, this table of"):
        module.load_state_dict(checkpoint)


def test_one_of_inference_mode_is_converted_and_its_offsets_stay_integers():
    ids = torch.zeros(2, 3, dtype=torch.int64, device=DEVICE)
    with torch.inference_mode():
        module = kernels.EmbeddingBags(HEIGHTS, 6, device=DEVICE)
        want = module(ids).double().cpu().numpy()
    for converted in (module.double(), module.type(torch.float32)):
        got = converted(ids).detach().double().cpu()
        torch.testing.assert_close(got, torch.from_numpy(want))
        assert converted.row_offsets.tolist() == [0, 37, 38, 46]


def with_weight_norm():
    return torch.nn.utils.weight_norm(nn.Embedding(3, 6))


def with_own_forward():
    table = nn.Embedding(3, 6)
    table.forward = lambda ids: ids
    return table


def hooked(register):
    table = nn.Embedding(3, 6)
    register(table)
    return table


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated")
@pytest.mark.parametrize("table", [
    with_weight_norm, with_own_forward,
    lambda: hooked(lambda table: table.register_forward_hook(lambda module, inputs, out: out + 1)),
    lambda: hooked(lambda table: table.register_forward_pre_hook(lambda module, inputs: inputs)),
    lambda: hooked(lambda table: table.register_full_backward_hook(lambda module, inputs, out: None)),
    lambda: hooked(lambda table: table.weight.register_hook(lambda gradient: 0 * gradient)),
])
def test_what_tables_do_beside_looking_up_is_not_lost(table):
    with pytest.raises(ValueError, match=r"from_tables: tables\[1\] must not have hooks, a forward of its own or"):
        kernels.EmbeddingBags.from_tables([nn.Embedding(4, 6), table()])


def test_tables_that_are_tensors_are_copied():
    tensors = [torch.randn(rows, 6, device=DEVICE) for rows in HEIGHTS]
    with torch.device("meta"):
        module = kernels.EmbeddingBags.from_tables(tuple(tensors), mode="mean", padding_idx=0)
    assert (module.mode, module.padding_idx, module.num_embeddings) == ("mean", 0, HEIGHTS)
    assert torch.equal(module.weight, torch.cat(tensors))
    tensors[0].zero_()
    assert module.weight[:37].any()
    frozen = [nn.Embedding.from_pretrained(table) for table in tensors]
    assert not kernels.EmbeddingBags.from_tables(frozen).weight.requires_grad
    on_meta = kernels.EmbeddingBags.from_tables([nn.Embedding(3, 6, device="meta")])
    assert on_meta.weight.is_meta
    assert on_meta.row_offsets.is_meta


shared = nn.Embedding(3, 6)


@pytest.mark.parametrize(("given", "named", "message"), [
    (lambda: [], {}, "tables must be one or more; got none"),
    (lambda: torch.randn(3, 6), {}, "tables must be a sequence of nn.Embedding, .*; got Tensor"),
    (lambda: nn.Embedding(3, 6), {}, "tables must be a sequence of nn.Embedding, .*; got Embedding"),
    (lambda: {"a": shared}, {}, "tables must be a sequence of nn.Embedding, .*; got dict"),
    (lambda: None, {}, "tables must be a sequence .*; got NoneType"),
    (lambda: "ab", {}, "tables must be a sequence .*; got str"),
    (lambda: [shared, None], {}, r"tables\[1\] must be an nn.Embedding, .*; got NoneType"),
    (lambda: [nn.Linear(3, 6)], {}, r"tables\[0\] must be an nn.Embedding, .*; got Linear"),
    (lambda: [type("Scaled", (nn.Embedding,), {})(3, 6)], {}, r"tables\[0\] must be .*; got Scaled, a subclass"),
    (lambda: [torch.ones(3, 6, dtype=torch.int8)], {}, r"tables\[0\] must be float32, .*; got int8"),
    (lambda: [torch.ones(6)], {}, r"tables\[0\] must have shape \[R, D\]; got \[6\]"),
    (lambda: [shared, nn.Embedding(3, 4)], {}, r"tables\[1\] must have shape \[R, 6\], .*; got \[3, 4\]"),
    (lambda: [shared, nn.Embedding(3, 6, dtype=torch.float64)], {}, r"tables\[1\] must have tables\[0\]'s dtype"),
    (lambda: [shared, nn.Embedding(3, 6, device="meta")], {}, r"tables\[1\] must be on tables\[0\]'s device"),
    (lambda: [nn.Embedding(3, 6), shared, shared], {}, r"tables\[2\] must not be tables\[1\] again"),
    (lambda: [nn.Embedding(3, 6, sparse=True)], {}, r"tables\[0\] must not have sparse=True, .*bags_sgd_"),
    (lambda: [nn.EmbeddingBag(3, 6, max_norm=1.0)], {}, r"tables\[0\] must not have max_norm=1\.0"),
    (lambda: [nn.EmbeddingBag(3, 6, scale_grad_by_freq=True)], {}, r"tables\[0\] must not have scale_grad_by_f"),
    (lambda: [nn.EmbeddingBag(3, 6, mode="sum"), nn.EmbeddingBag(3, 6, mode="max")], {},
     r"all tables must have one mode; tables\[0\] has 'sum', tables\[1\] has 'max'"),
    (lambda: [nn.EmbeddingBag(3, 6, mode="sum")], {"mode": "max"}, "all tables must have one mode; the argument mode"),
    (lambda: [nn.Embedding(3, 6, padding_idx=0), nn.Embedding(3, 6)], {}, "all tables must have one padding_idx; "),
    (lambda: [nn.Embedding.from_pretrained(torch.ones(3, 6), padding_idx=1)], {},
     r"tables\[0\] is an nn.Embedding, .*row 1"),
    (lambda: [shared, nn.Embedding.from_pretrained(torch.ones(3, 6))], {}, "all tables must have one requires_grad; "),
    (lambda: [torch.ones(3, 6)], {"mode": "median"}, "mode must be one of sum, mean, max; got 'median'"),
    (lambda: [torch.ones(3, 6)], {"padding_idx": [0]}, "padding_idx must be an integer; got list"),
])
def test_tables_that_cannot_become_one_are_refused_by_name(given, named, message):
    with pytest.raises((TypeError, ValueError), match=rf"^EmbeddingBags\.from_tables: {message}"):
        kernels.EmbeddingBags.from_tables(given(), **named)
