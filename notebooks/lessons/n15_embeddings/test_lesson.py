"""The ids of a batch, and the kernel that a cell times."""

from __future__ import annotations

import torch

from kernels import runtime
from lessons.n15_embeddings import puzzles
from lessons.shared import bags


def test_the_ids_of_a_batch():
    for zipf in (0.0, 1.05):
        torch.manual_seed(0)
        ids = bags.draw(500, bags.CRITEO, zipf=zipf)
        assert ids.shape == (500, len(bags.CRITEO))
        assert (ids >= 0).all()
        assert (ids < torch.tensor(bags.CRITEO)).all()
        assert not torch.equal(ids, bags.draw(500, bags.CRITEO, zipf=zipf))
        torch.manual_seed(0)
        assert torch.equal(ids, bags.draw(500, bags.CRITEO, zipf=zipf))


def test_bags_are_of_their_tables():
    ids, offsets = bags.draw_bags(40, (3, 9), "cpu")
    assert (len(offsets), offsets[0], offsets[-1]) == (81, 0, len(ids))
    assert int(ids[: offsets[40]].max()) < 3
    assert 3 <= int(ids[offsets[40] :].max()) < 9
    assert torch.equal((offsets[1:] - offsets[:-1])[:40].sort().values, bags.lengths(40).sort().values)


def test_what_is_timed_is_the_readers_kernel_or_else_the_lessons():
    device = runtime.device()
    tables, row_offsets = torch.randn(30, 4, device=device), torch.tensor([0, 10, 30], device=device)
    ids = torch.tensor([[3, 19], [0, 0]], device=device)
    found = puzzles.look_up(puzzles.solution("row"), tables, row_offsets, ids)
    assert torch.equal(found, tables[ids + row_offsets[:-1]])
    puzzles.JUDGE.solved["row"] = mine = object()
    assert puzzles.solution("row") is mine
    del puzzles.JUDGE.solved["row"]
