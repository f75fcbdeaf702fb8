"""What look-ups read, counted against loops; the ids of a batch; the kernel that a cell times."""

from __future__ import annotations

import pytest
import torch

from kernels import runtime
from lessons.n15_embeddings import arithmetic, puzzles


@pytest.mark.parametrize("row_bytes", [4, 12, 20, 32, 36, 64, 512])
def test_pairs_are_those_of_a_loop(row_bytes):
    rows = torch.randint(300, (150,), generator=torch.Generator().manual_seed(0))
    touched = {byte // 64 for row in rows.tolist() for byte in range(row * row_bytes, (row + 1) * row_bytes)}
    assert arithmetic.pairs(rows, row_bytes) == len(touched)


def test_what_a_row_costs():
    assert [arithmetic.bytes_a_read(width) for width in (1, 16, 128)] == [64, 64, 512]
    assert arithmetic.bytes_a_read(5) == pytest.approx(80, rel=1e-3)


def test_the_ids_of_a_batch():
    for zipf in (0.0, 1.05):
        torch.manual_seed(0)
        ids = arithmetic.draw(500, zipf)
        assert ids.shape == (500, len(arithmetic.CRITEO))
        assert (ids >= 0).all()
        assert (ids < torch.tensor(arithmetic.CRITEO)).all()
        assert not torch.equal(ids, arithmetic.draw(500, zipf))
        torch.manual_seed(0)
        assert torch.equal(ids, arithmetic.draw(500, zipf))


def test_bags_are_of_their_tables():
    ids, offsets = arithmetic.draw_bags(40, (3, 9), "cpu")
    assert (len(offsets), offsets[0], offsets[-1]) == (81, 0, len(ids))
    assert int(ids[: offsets[40]].max()) < 3
    assert 3 <= int(ids[offsets[40] :].max()) < 9
    assert torch.equal((offsets[1:] - offsets[:-1])[:40].sort().values, arithmetic.lengths(40).sort().values)


def test_what_is_timed_is_the_readers_kernel_or_else_the_lessons():
    device = runtime.device()
    tables, row_offsets = torch.randn(30, 4, device=device), torch.tensor([0, 10, 30], device=device)
    ids = torch.tensor([[3, 19], [0, 0]], device=device)
    found = puzzles.look_up(puzzles.solution("row"), tables, row_offsets, ids)
    assert torch.equal(found, tables[ids + row_offsets[:-1]])
    puzzles.JUDGE.solved["row"] = mine = object()
    assert puzzles.solution("row") is mine
    del puzzles.JUDGE.solved["row"]
