"""TableEmbedding against sums over Python lists."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from ... import IdTable, runtime
from ...check.contract import DEVICE
from .conftest import tensor
from .module import TableEmbedding


def pooled(ids: list[list[int]], known: dict[int, int], weights: torch.Tensor, mode: str) -> torch.Tensor:
    """The bags' sums or means, one id after the other."""
    out = []
    for bag in ids:
        rows = [weights[known[i]].double() for i in bag if i in known]
        total = sum(rows, torch.zeros(weights.shape[1], dtype=torch.float64, device=weights.device))
        out.append(total / max(1, len(rows)) if mode == "mean" else total)
    return torch.stack(out)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("feature_tables", [[0, 1, 2], [0, 0, 1, 2], [2, 0, 1, 0]], ids=str)
@pytest.mark.parametrize("mode", ["none", "sum", "mean"])
def test_table_embedding(mode, feature_tables, dtype):
    """Features that share a table, in any order; misses, empty bags, and a NaN in the row that stands for no id."""
    vocabularies = [[5, -1, 0], [2**63 - 1, 5], [7]]
    table = IdTable(vocabularies, device=DEVICE)
    weights = [torch.randn(len(v) + 1, 5, device=DEVICE).to(dtype) for v in vocabularies]
    for w in weights:
        w[0] = torch.nan
    table.insert(tensor([123], "eager"), tensor([2], "eager"))  # whose row lies beyond the weights
    module = TableEmbedding(table, weights, feature_tables=feature_tables, mode=mode)
    choice = [0, 5, -1, 7, 123, 2**63 - 1]
    generator, batch = random.Random(3), 4
    lengths = [generator.randint(0, 5) for _ in range(batch * len(feature_tables))]
    bags = [[generator.choice(choice) for _ in range(length)] for length in lengths]
    bags[1] = [99, 99]
    known = [{i: row for row, i in enumerate(v, 1)} for v in vocabularies]
    keys = tensor([i for bag in bags for i in bag], "eager")
    offsets = torch.tensor([0, *np.cumsum([len(bag) for bag in bags])], device=DEVICE)
    for bounds in (offsets, offsets.int()):
        got = module(keys, bounds)
        assert got.dtype == dtype
        if mode == "none":
            owners = [feature_tables[n // batch] for n, bag in enumerate(bags) for _ in bag]
            rows = zip(keys.tolist(), owners, strict=True)
            want = torch.cat([pooled([[i]], known[t], weights[t], mode) for i, t in rows])
        else:
            want = torch.stack([pooled(bags[f * batch : (f + 1) * batch], known[t], weights[t], mode)
                                for f, t in enumerate(feature_tables)], dim=1)
        torch.testing.assert_close(got, want.to(dtype))
    if mode == "none":
        one = tensor([[generator.choice(choice) for _ in feature_tables] for _ in range(6)], "eager")
        want = torch.stack([pooled([[int(i)] for i in one[:, f]], known[t], weights[t], mode)
                            for f, t in enumerate(feature_tables)], dim=1)
        torch.testing.assert_close(module(one), want.to(dtype))


def test_table_embedding_of_nothing():
    module = TableEmbedding(IdTable([[1], []]), [torch.ones(2, 3), torch.ones(1, 3)], mode="mean")
    none = torch.empty(0, dtype=torch.int64)
    assert module(none, torch.tensor([0])).shape == (0, 2, 3)
    assert module(none, torch.zeros(9, dtype=torch.int64)).tolist() == [[[0.0] * 3] * 2] * 4


def test_weights_without_a_row():
    """Whose ids are misses, all of them."""
    module = TableEmbedding(IdTable([[1], [2]]), [torch.ones(0, 3)] * 2, mode="sum")
    assert module(torch.tensor([1, 2]), torch.tensor([0, 1, 2])).tolist() == [[[0.0] * 3] * 2]
    module = TableEmbedding(IdTable([[1], [2]]), [torch.ones(0, 3), torch.ones(3, 3)])
    assert module(torch.tensor([[1, 2]])).tolist() == [[[0.0] * 3, [1.0] * 3]]


def test_errors_of_table_embedding():
    table = IdTable([[1], [2]])
    weights = [torch.ones(2, 3)] * 2
    with pytest.raises(ValueError, match="mode must be one of none, sum, mean; got 'max'"):
        TableEmbedding(table, weights, mode="max")
    with pytest.raises(ValueError, match="weights must be 2 tensors, one a table; got 1"):
        TableEmbedding(table, weights[:1])
    with pytest.raises(ValueError, match="feature_tables must be from 0 to 1; got 2"):
        TableEmbedding(table, weights, feature_tables=[0, 2])
    with pytest.raises(ValueError, match="weights must be some tensors, one a table; got 0"):
        TableEmbedding(IdTable([]), [])
    with pytest.raises(TypeError, match=r"weights\[1\] must be a tensor; got list"):
        TableEmbedding(table, [weights[0], [[1.0, 2.0, 3.0]]])
    with pytest.raises(TypeError, match=r"weights\[0\] must be float32, .*; got int64"):
        TableEmbedding(table, [weights[0].long()] * 2)
    for wrong in (torch.ones(2, 4), torch.ones(6), torch.ones(2, 3, dtype=torch.float64)):
        with pytest.raises(ValueError, match=r"weights\[1\] must be \[n, D\], of one D and dtype for all"):
            TableEmbedding(table, [weights[0], wrong])
    module = TableEmbedding(table, weights, mode="sum")
    for arguments, message in (
        (([1, 2], torch.tensor([0, 1, 2])), "keys must be a tensor; got list"),
        ((torch.tensor([1, 2]), [0, 1, 2]), "offsets must be a tensor; got list"),
        ((torch.tensor([1.0, 2.0]), torch.tensor([0, 1, 2])), "keys must be int32 or int64; got float32"),
        ((torch.tensor([1, 2]), torch.tensor([0.0, 1.0, 2.0])), "offsets must be int32 or int64; got float32"),
    ):
        with pytest.raises(TypeError, match=f"TableEmbedding: {message}"):
            module(*arguments)
    keys = torch.tensor([1, 2, 3, 4])
    with pytest.raises(ValueError, match='mode "sum" needs offsets'):
        module(keys.view(2, 2))
    for offsets, message in (
        ([0, 2, 4, 4], r"offsets \[2 · B \+ 1\]; got \[4\] and \[4\]"),
        ([1, 2, 2, 3, 4], r"offsets\[0\] must be 0; got 1"),
        ([0, 3, 2, 3, 4], r"offsets\[2\] = 2 is below offsets\[1\] = 3"),
        ([0, -3, 2, 3, 4], r"offsets\[1\] = -3 is below offsets\[0\] = 0"),
        ([0, 1, 2, 3, 5], r"offsets\[4\] must be the number of keys, 4; got 5"),
    ):
        with pytest.raises(ValueError, match=message):
            module(keys, torch.tensor(offsets))
    with pytest.raises(ValueError, match=r"keys must be \[B, 2\] without offsets; got \[4\]"):
        TableEmbedding(table, weights)(keys)


WHY_NOT_AUTO = runtime.why_not("cuda" if DEVICE.type == "cuda" else "cpp", DEVICE.type)


@pytest.mark.skipif(bool(WHY_NOT_AUTO), reason=WHY_NOT_AUTO or "it runs here")
def test_table_embedding_compiles_and_exports():
    module = TableEmbedding(IdTable([[1, 5], [2]], device=DEVICE), [torch.randn(3, 4), torch.randn(2, 4)], mode="mean")
    keys, offsets = (torch.tensor(values, device=DEVICE) for values in ([1, 9, 5, 2, 2], [0, 2, 3, 4, 5]))
    want = module(keys, offsets)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(keys, offsets), want)
    program = torch.export.export(module, (keys, offsets))
    assert torch.equal(program.module()(keys, offsets), want)


def test_it_is_made_on_the_device_meta():
    weights = [torch.randn(3, 2), torch.randn(2, 2)]
    want = TableEmbedding(IdTable([[5, 6], [7]]), weights, feature_tables=[1, 0])
    with torch.device("meta"):
        module = TableEmbedding(IdTable([[5, 6], [7]]), [w.to("meta") for w in weights], feature_tables=[1, 0])
        assert module(torch.empty(4, 2, dtype=torch.int64)).shape == (4, 2, 2)
    keys = torch.tensor([[7, 6], [6, 7]])
    module.to_empty(device="cpu").load_state_dict(want.state_dict())
    assert torch.equal(module(keys), want(keys))
    with torch.device("meta"):
        module = TableEmbedding(IdTable([[], []]), [w.to("meta") for w in weights], feature_tables=[1, 0])
    module.load_state_dict(want.state_dict(), assign=True)
    assert torch.equal(module(keys), want(keys))
