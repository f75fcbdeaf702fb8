"""What look-ups read, counted against loops; the three kernels of the lesson; the table of a record."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from kernels import runtime
from kernels.measure import records
from kernels.ops.embedding_bags import lesson
from kernels.ops.embedding_bags_update import lesson as update_lesson
from model import record_table
from model.lookups import drawing, reads

DEVICE = runtime.device()


@pytest.mark.parametrize("row_bytes", [4, 12, 20, 32, 36, 64, 512])
def test_sectors_are_those_of_a_loop(row_bytes):
    rows = np.random.default_rng(0).integers(0, 300, 150)
    touched = {byte // reads.SECTOR for row in rows for byte in range(row * row_bytes, (row + 1) * row_bytes)}
    assert reads.sectors(rows, row_bytes) == len(touched)


def test_what_a_row_costs():
    assert [reads.bytes_a_read(width) for width in (1, 16, 128)] == [32, 64, 512]
    assert reads.bytes_a_read(5) == pytest.approx(48, rel=1e-3)


def test_the_ids_of_a_batch():
    for zipf in (0.0, reads.ZIPF):
        ids = reads.draw(500, zipf)
        assert (ids >= 0).all()
        assert (ids < np.array(reads.CARDINALITIES)).all()
        assert np.array_equal(ids, reads.draw(500, zipf))
        rows = reads.rows_of(ids)
        assert reads.percent_distinct(ids) == 100 * len(set(rows.flatten().tolist())) / ids.size
        assert reads.needed_bytes(ids, 64) == ids.size * 72 + 64 * len(np.unique(rows))


@pytest.mark.parametrize("kernel", [lesson.one_id, lesson.an_id_a_program, lesson.a_block_of_ids])
@pytest.mark.parametrize("count", [1, 33])
def test_the_lessons_kernels(kernel, count):
    table, ids = torch.randn(50, 8, device=DEVICE), torch.randint(50, (count,), device=DEVICE)
    out = lesson.look_up(kernel, table, ids)
    done = 1 if kernel is lesson.one_id else count
    assert torch.equal(out[:done], table[ids][:done])


def test_the_pictures_are_drawn():
    plt = pytest.importorskip("matplotlib.pyplot")
    drawn = {name: reads.draw(64, zipf) for name, zipf in (("uniform", 0.0), ("Zipf", reads.ZIPF))}
    figures = [
        drawing.build_up([3, 0, 1], rows=4, width=2, block=2),
        drawing.buffer((2, 1), (1, 0), 4),
        drawing.sector_map((1, 16)),
        drawing.frequencies(drawn, 2, 64, reads.L2_BYTES),
        drawing.bags([4, 1, 7], [0, 2, 2, 2, 3], 2),
    ]
    assert [len(figure.axes) for figure in figures] == [3, 2, 1, 2, 1]
    plt.close("all")


def test_a_record_is_shown(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(records.recorded, "__defaults__", ("h200", tmp_path))
    record_table.show_record("softmax")
    assert capsys.readouterr().out == "softmax: no record yet; `make gpu`, on a GPU, makes one\n"
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
    ]  # fmt: skip


def test_segments_are_those_of_a_batch():
    lengths = reads.segments(1000)
    assert list(lengths)[:2] == ["C1", "C2"]
    assert {int(found.sum()) for found in lengths.values()} == {1000}
    assert lengths["C9"].max() / 1000 == pytest.approx(0.885, abs=0.03)


def test_the_compiler_can_put_look_ups_together():
    """Eight at most; for a few tables torch.compile writes one kernel anyway."""
    assert len(reads.compiled_look_ups(tables=9)) == 9
    assert len(reads.compiled_look_ups(tables=9, combo_kernels=True)) == 2


def test_a_capture_keeps_a_number_and_follows_a_tensor():
    kept, followed = torch.zeros(2, device=DEVICE).unbind()
    rate = torch.ones((), device=DEVICE)
    steps = [update_lesson.captured(torch.Tensor.add_, *given) for given in ((kept, 1.0), (followed, rate))]
    kept.zero_(), followed.zero_()
    rate.fill_(0.25)
    for step in steps:
        step()
    assert (kept.item(), followed.item()) == (1.0, 0.25)


def test_orders_give_different_sums():
    assert len(update_lesson.sums_in_orders(1000, orders=4)) > 1
    assert len(update_lesson.sums_in_orders(1, orders=4)) == 1
