"""Lesson 21: its rewrites and its shadow are the notebook's text, the record's cells, and the rungs of a call."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import pytest
import torch
from torch import nn

pytest.importorskip("matplotlib")

from lessons.n21_a_compiler_that_says_why_not import calls, patterns, puzzles, recorded
from lessons.shared import answers
from lessons.shared.measure import Times

ROOM = Path(__file__).parent


def test_the_lessons_functions_are_the_notebooks():
    notebook = json.loads((ROOM.parents[1] / f"{ROOM.name[1:]}.ipynb").read_text())
    cells = "\n\n".join("".join(cell["source"]) for cell in notebook["cells"])
    for function in (patterns.value, patterns.naive, patterns.by, patterns.close):
        assert inspect.getsource(function).strip() in cells
    right = answers.solutions(ROOM)
    for name in ("rewrite", "shadow"):
        assert inspect.getsource(getattr(patterns, name)).strip() in right[name].source


def test_what_is_not_solved_yet_is_the_lessons():
    assert puzzles.solution("rewrite") is patterns.rewrite
    puzzles.JUDGE.solved["rewrite"] = mine = object()
    assert puzzles.solution("rewrite") is mine
    del puzzles.JUDGE.solved["rewrite"]


def test_a_case_is_one_graph_whatever_it_is():
    """In each the naive rewrite is judged, and in more than half it is wrong."""
    wrong = 0
    for case in puzzles.CASES:
        gm, inputs = puzzles.graph_of(case)
        right = puzzles.ran(gm.forward, inputs)
        assert not puzzles.ran(gm.forward, inputs).unlike(right), case.name
        try:
            patterns.naive(gm.graph)
            gm.recompile()
            wrong += bool(puzzles.ran(gm.forward, inputs).unlike(right))
        except Exception:
            wrong += 1
    assert wrong > len(puzzles.CASES) / 2


def times(*medians: float) -> dict[str, list[float]]:
    names = "inductor", "combo_kernels", recorded.OURS
    return {name: [us - 0.1, us, us + 0.1] for name, us in zip(names, medians, strict=True)}


def test_the_cells_of_a_record(monkeypatch, capsys):
    labels = {"preset": "main", "precision": "tf32", "trains": False, "match": "ok"}
    rows = [
        labels | {"rows": 1, "replay": times(9, 8, 4), "call": times(50, 60, 50.05)},
        labels | {"rows": 2048, "replay": times(9, 8, 10), "call": times(50, 60, 51)},
        labels | {"rows": 8, "replay": times(1, 1, 9), "call": times(1, 1, 9), "match": "FAILED: wrong"},
    ]
    found = list(recorded.cells(rows, "replay"))
    assert [(cell.verdict, cell.peer) for cell in found] == [
        (recorded.WINS, "combo_kernels"), (recorded.LOSES, "combo_kernels"),
    ]
    assert [cell.verdict for cell in recorded.cells(rows, "call")] == [recorded.NEITHER] * 2  # 2 % are none
    assert not list(recorded.cells(rows, "graphs"))
    record = {"GPU": "an X1", "date": "2026-11-30", "rows": rows}
    monkeypatch.setattr(recorded.records, "load", lambda name: record)
    recorded.print_cells("replay")
    assert capsys.readouterr().out.splitlines() == [
        "a replay, an X1, 2026-11-30: of 2 cells faster in 1, no difference in 0, slower in 1",
        "  main, 2,048 rows, tf32, inference: 10.0 µs, combo_kernels 8.0 µs, 1.25 ×",
    ]


def test_what_each_rung_adds(capsys):
    us = dict(zip(calls.RUNGS, (4.0, 9.0, 15.0, 40.0), strict=True))
    rows = [{"name": name, "size": 8, "us_p50": us[name]} for name in us]
    calls.print_rungs({"few": Times(rows, "", "rows"), "many": Times(rows[:3], "", "rows")}, 8)
    assert capsys.readouterr().out.splitlines() == [
        "few: the op 4.0 µs, to enter its graph 5.0 µs more, guards 6.0 µs, wrappers 25.0 µs",
        "many: not timed yet",
    ]


class Model(nn.Module):
    """What `calls.direct` asks of a model."""

    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(9, 4) for _ in range(3))
        self.bottom = nn.Sequential(nn.Linear(13, 8), nn.ReLU(), nn.Linear(8, 4), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(10, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, dense, ids):
        v = torch.stack([self.bottom(dense), *(table(ids[:, f]) for f, table in enumerate(self.tables))], 1)
        i, j = torch.tril_indices(4, 4, -1)
        return self.top(torch.cat([v[:, 0], (v @ v.mT)[:, i, j]], 1)).squeeze(1)


@torch.no_grad()
def test_the_op_called_by_hand_is_the_model():
    model, inputs = Model(), (torch.randn(5, 13), torch.randint(9, (5, 3)))
    torch.testing.assert_close(calls.direct(model)(*inputs), model(*inputs))
    assert torch.equal(calls.captured(model)(*inputs), model(*inputs))
