"""What look-ups read, counted against loops; the three kernels of the lesson; the table of a record."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from kernels import runtime
from kernels.measure import records
from lessons.n15_embeddings import arithmetic
from lessons.n15_embeddings import look_up_kernels as lesson
from lessons.shared import record_table
from lessons.shared.records import SECTOR

DEVICE = runtime.device()


@pytest.mark.parametrize("row_bytes", [4, 12, 20, 32, 36, 64, 512])
def test_sectors_are_those_of_a_loop(row_bytes):
    rows = np.random.default_rng(0).integers(0, 300, 150)
    touched = {byte // SECTOR for row in rows for byte in range(row * row_bytes, (row + 1) * row_bytes)}
    assert arithmetic.sectors(rows, row_bytes) == len(touched)


def test_what_a_row_costs():
    assert [arithmetic.bytes_a_read(width) for width in (1, 16, 128)] == [64, 64, 512]
    assert arithmetic.bytes_a_read(5) == pytest.approx(80, rel=1e-3)


def test_the_ids_of_a_batch():
    for zipf in (0.0, arithmetic.ZIPF):
        ids = arithmetic.draw(500, zipf)
        assert (ids >= 0).all()
        assert (ids < np.array(arithmetic.CARDINALITIES)).all()
        assert np.array_equal(ids, arithmetic.draw(500, zipf))
        rows = arithmetic.rows_of(ids)
        assert arithmetic.percent_distinct(ids) == 100 * len(set(rows.flatten().tolist())) / ids.size
        assert arithmetic.needed_bytes(ids, 64) == ids.size * 72 + 64 * len(np.unique(rows))


@pytest.mark.parametrize("kernel", [lesson.one_id, lesson.an_id_a_program, lesson.a_block_of_ids])
@pytest.mark.parametrize("count", [1, 33])
def test_the_lessons_kernels(kernel, count):
    table, ids = torch.randn(50, 8, device=DEVICE), torch.randint(50, (count,), device=DEVICE)
    out = lesson.look_up(kernel, table, ids)
    done = 1 if kernel is lesson.one_id else count
    assert torch.equal(out[:done], table[ids][:done])


def test_the_compiler_can_put_look_ups_together():
    """Eight at most; for a few tables torch.compile writes one kernel anyway."""
    assert len(arithmetic.compiled_look_ups(tables=9)) == 9
    assert len(arithmetic.compiled_look_ups(tables=9, combo_kernels=True)) == 2


def test_a_record_is_shown(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(records.recorded, "__defaults__", ("h200", tmp_path))
    row = {"op": "softmax", "part": "bandwidth", "form": "functional", "columns": 16, "us_p50": 1.25}
    rows = [row | {"rows": r, "implementation": i} for r in (8, 9) for i in ("triton", "eager")]
    record = {"op": "softmax", "GPU": "a GPU", "date": "today", "rows": [*rows, row | {"part": "grid", "rows": 1}]}
    (tmp_path / "h200").mkdir()
    (tmp_path / "h200" / "softmax.json").write_text(json.dumps(record))
    record_table.show_record("softmax", part="bandwidth")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "RECORDED, µs of a graph's replay: a GPU, today, softmax part bandwidth"
    assert [line.split() for line in lines[1:]] == [
        ["implementation", "eager", "triton"], ["rows"], ["8", "1.2", "1.2"], ["9", "1.2", "1.2"],
    ]
