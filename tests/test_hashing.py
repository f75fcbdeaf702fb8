"""The hashes: what each id's row must be, and that the two index hashes are one function."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from model.hashing import Hash, make_hash

IDS = st.integers(-1, (1 << 32) - 1)


@settings(max_examples=150, deadline=None)
@given(known=st.lists(st.integers(0, (1 << 32) - 1), unique=True, max_size=20), ids=st.lists(IDS, max_size=40))
def test_rows(known, ids):
    ids = [*ids, *known, -1]
    position = {value: row for row, value in enumerate(known, start=1)}
    tensor = torch.tensor(ids)
    for kind in (Hash.INDEX, Hash.INDEX_NAIVE, Hash.TABLE):
        rows = make_hash(kind, len(known), known)(tensor)
        assert rows.dtype == torch.int64
        assert rows.tolist() == [position.get(value, 0) for value in ids]
    position = {value: row for row, value in enumerate(sorted(known), start=1)}
    exact = make_hash(Hash.SORTED, len(known), known)
    assert exact(tensor).tolist() == exact.of_column(tensor.numpy()).tolist() == [position.get(id, 0) for id in ids]
    modulus = make_hash(Hash.MODULUS, len(known))(tensor)
    assert modulus.tolist() == [(value + 1) % len(known) if known else 0 for value in ids]
    assert int(modulus.max()) < len(known) + 1  # within the table's cardinality + 1 rows


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 4), (2, 3)])
@pytest.mark.parametrize("kind", Hash)
def test_any_shape(kind, shape):
    ids = torch.randint(-1, 9, shape)
    rows = make_hash(kind, 4, [8, 2, 5, 0])(ids)
    assert rows.shape == ids.shape
    assert rows.dtype == torch.int64


@pytest.mark.parametrize("saved", [Hash.INDEX, Hash.INDEX_NAIVE, Hash.TABLE])
@pytest.mark.parametrize("loaded", [Hash.INDEX, Hash.INDEX_NAIVE, Hash.TABLE])
def test_hashes_of_the_same_rows_load_each_others_checkpoints(saved, loaded):
    trained, other = make_hash(saved, 3, [7, 5, 6]), make_hash(loaded, 3, [1, 2, 3])
    other.load_state_dict(trained.state_dict())
    assert other.state_dict()["known"].tolist() == [7, 5, 6]
    ids = torch.tensor([1, 7, 5, 6, -1])
    assert trained(ids).tolist() == other(ids).tolist() == [0, 1, 2, 3, 0]


@pytest.mark.parametrize("kind", [Hash.INDEX, Hash.TABLE])
def test_a_checkpoint_of_another_cardinality_is_refused(kind):
    with pytest.raises(RuntimeError, match="known"):
        make_hash(kind, 2, [1, 2]).load_state_dict(make_hash(Hash.INDEX, 3, [5, 6, 7]).state_dict())


def test_a_checkpoint_that_is_no_vocabulary_is_refused():
    module = make_hash(Hash.TABLE, 3, [7, 5, 6])
    for known, message in (([5, 6, 5], "id 5 is given twice"), ([-1, 5, 6], "-1 stands for a missing value")):
        with pytest.raises(RuntimeError, match=message):
            module.load_state_dict({"known": torch.tensor(known)})
        assert module(torch.tensor([7, 5, 6, -1])).tolist() == [1, 2, 3, 0]


def test_a_table_takes_more_ids():
    module = make_hash(Hash.TABLE, 3, [7, 5, 6])
    assert module.insert(torch.arange(100)).tolist() == [4, 5, 6, 7, 8, 2, 3, 1, *range(9, 101)]


@pytest.mark.parametrize("kind", Hash)
def test_compiles_into_one_graph(kind):
    module = make_hash(kind, 4, [8, 2, 5, 0])
    ids = torch.randint(-1, 9, (7,))
    torch._dynamo.reset()
    assert torch.equal(torch.compile(module, fullgraph=True, backend="aot_eager")(ids), module(ids))


def test_sorted_takes_a_column_of_a_batch_without_a_warning(recwarn):
    ids = torch.tensor([[3, 1], [7, 2], [-1, 9]])
    assert make_hash(Hash.SORTED, 2, [7, 3])(ids[:, 0]).tolist() == [1, 2, 0]
    assert not recwarn.list


def test_a_checkpoint_brings_its_ids_back():
    trained, other = make_hash(Hash.SORTED, 3, [5, 7, 6]), make_hash(Hash.SORTED, 3, [1, 2, 3])
    other.load_state_dict(trained.state_dict())
    assert other(torch.tensor([1, 5, 6, 7, -1])).tolist() == [0, 1, 2, 3, 0]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("kind", Hash)
def test_the_same_rows_on_a_gpu(kind):
    vocabulary = torch.randperm(1 << 16)[:999]
    module, ids = make_hash(kind, 999, vocabulary), torch.randint(-1, 1 << 16, (2048,))
    expected = module(ids)
    assert torch.equal(module.cuda()(ids.cuda()).cpu(), expected)


def test_errors():
    with pytest.raises(ValueError, match="hash index needs the known ids, got none"):
        make_hash(Hash.INDEX, 3)
    with pytest.raises(ValueError, match=r"expected 3 ids .* got 2"):
        make_hash(Hash.INDEX, 3, [1, 2])
    with pytest.raises(ValueError, match="2 ids, of which only 1 are different"):
        make_hash(Hash.INDEX, 2, [1, 1])
    with pytest.raises(ValueError, match="3 ids, of which only 2 are different"):
        make_hash(Hash.SORTED, 3, [1, 2, 1])
    with pytest.raises(ValueError, match="-1 stands for a missing value"):
        make_hash(Hash.INDEX_NAIVE, 2, [1, -1])
