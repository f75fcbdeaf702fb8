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
    ],
)
def test_wrong_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=f"^EmbeddingBags: {message}"):
        kernels.EmbeddingBags(*arguments)


@pytest.mark.parametrize("make", [
    lambda: nn.utils.skip_init(kernels.EmbeddingBags, HEIGHTS, 6, device=DEVICE),
    lambda: kernels.EmbeddingBags(HEIGHTS, 6, device="meta").to_empty(device=DEVICE),
])
def test_memory_that_is_not_written_leaves_no_offsets_unwritten(make):
    assert make().row_offsets.tolist() == [0, 37, 38, 46]
