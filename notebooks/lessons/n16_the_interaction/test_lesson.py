"""The answers at the sizes that the cells launch, and what the pictures draw."""

from __future__ import annotations

import pytest
import torch

from kernels import check, runtime
from lessons.n16_the_interaction import pictures, puzzles

pytest.importorskip("matplotlib").use("agg")


def test_the_triangle_of_a_row():
    """Written out: (1, 0), (2, 0), (2, 1)."""
    dense, sparse = torch.tensor([[1.0, 2.0]]), torch.tensor([[[3.0, 4.0], [5.0, 6.0]]])
    expected = torch.tensor([[1.0, 2.0, 11.0, 17.0, 39.0]])
    device = runtime.device()
    for name, launch in (("triangle", puzzles.launch_row), ("rows", puzzles.launch_rows)):
        out = launch(puzzles.solution(name), dense.to(device), sparse.to(device))
        assert torch.equal(out.cpu(), expected), name


def test_look_ups_of_tables_of_their_own():
    device = runtime.device()
    dense, tables = torch.randn(5, 16, device=device), torch.randn(9, 16, device=device)
    row_offsets, ids = torch.tensor([0, 4, 9], device=device), torch.tensor([[3, 0], [0, 4]], device=device)[:1]
    ids = ids.expand(5, 2).contiguous()
    out = puzzles.launch_ids(puzzles.solution("ids"), dense, tables, row_offsets, ids)
    sparse = tables[ids + row_offsets[:-1]]
    torch.testing.assert_close(out, puzzles.launch_rows(puzzles.solution("rows"), dense, sparse))


def test_what_is_timed_is_the_readers_kernel_or_else_the_lessons():
    puzzles.JUDGE.solved["triangle"] = mine = object()
    assert puzzles.solution("triangle") is mine
    del puzzles.JUDGE.solved["triangle"]


def test_the_pictures_of_a_right_answer_are_drawn():
    constants = {"VECTORS": 4, "COLUMNS": 2}
    assert check.draw_accesses(puzzles.solution("triangle"), (2,), *puzzles.SMALL, 3, 2, 8, **constants).axes
    constants = {"ROWS": 4, "VECTORS": 16, "COLUMNS": 16, "PRECISION": "ieee"}
    assert check.draw_accesses(puzzles.solution("ids"), (1,), *puzzles.SMALL_IDS, 4, 3, 2, 8, **constants).axes
    assert pictures.draw_steps({"a": 3.0, "b": 4.0}, 2.0).axes
