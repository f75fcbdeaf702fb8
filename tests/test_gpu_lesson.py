"""model.gpu: the lesson's arithmetic, its pictures with and without a record, and what Triton's compiler says."""

import json

import pytest

pytest.importorskip("matplotlib")

from kernels.measure import records
from model.gpu import compiled, drawing, machine, record


@pytest.fixture
def results(tmp_path, monkeypatch):
    """Where records are looked for: empty but for add_relu's."""
    real = records.load("add_relu")
    folder = tmp_path / records.README_GPU
    folder.mkdir()
    (folder / "add_relu.json").write_text(json.dumps(real))
    monkeypatch.setattr(machine, "load", lambda name: records.load(name, results=tmp_path))
    monkeypatch.setattr(machine, "recorded", lambda name: records.recorded(name, results=tmp_path))
    return folder


def made_up():
    """A record in which every copy runs as Little's law says, and every product at its roof."""
    sizes, rows = record.Sizes(), []
    us = lambda value: {"us_p20": value, "us_p50": value, "us_p80": value, "match": "ok"}  # noqa: E731
    for stride in sizes.strides:
        rows.append({"part": "stride", "stride": stride, "bytes": 4e6, **us(1.0 * min(stride, 8))})
    for (size, _, _), ns in zip(sizes.latency, (20.0, 200.0, 600.0), strict=True):
        rows.append({"part": "latency", "size": size, "ns_p50": ns, "match": "ok"})
    for block, registers in ((128, 16), (8192, 90)):
        for programs in (0, 1, 16):
            there = min(programs or 99, machine.programs_an_sm(128, registers))
            rate = machine.copy_rate(there, block, 600.0, 4000.0)
            labels = {"block": block, "programs": programs, "threads": 128, "registers": registers, "bytes": 8e6}
            rows.append({"part": "flight", **labels, **us(8e6 / rate / 1e3)})
    for size in sizes.reread:
        rows += [{"part": "reread", "size": size, "cache": cache, "bytes": 4e6, **us(1.0)} for cache in record.CACHES]
    for name, count, depth, columns in record.products(sizes):
        for precision, roof in (("fp32", 50e6), ("tf32", 400e6), ("bf16", 800e6)):
            flops = 2 * count * depth * columns
            labels = {"name": name, "rows": count, "depth": depth, "columns": columns, "precision": precision}
            rows.append({"part": "product", **labels, "bytes": 4 * count * depth, "flops": flops, **us(flops / roof)})
    return {"op": record.NAME, "ncu": {"lines": [], "why": "no counters"}, "rows": rows}


@pytest.mark.parametrize("with_record", [False, True])
def test_pictures(results, with_record):
    if with_record:
        (results / f"{record.NAME}.json").write_text(json.dumps(made_up()))
    figures = [
        drawing.draw_lanes(), drawing.draw_chip(), drawing.draw_reread(), drawing.draw_sectors(1, 8),
        drawing.draw_stride(lambda stride: 4000 / min(stride, 8)), drawing.draw_waiting(600, 1, 4),
        drawing.draw_flight(lambda programs, block: machine.copy_rate(programs, block, 600, 4000)),
        drawing.draw_roofline(),
    ]  # fmt: skip
    for figure in figures:
        figure.canvas.draw()
    dots = sum(line.get_marker() == "o" for ax in figures[-1].axes for line in ax.lines)
    assert dots == (4 if with_record else 0)  # three precisions, and add_relu


def test_what_is_read_of_a_record(results, capsys):
    (results / f"{record.NAME}.json").write_text(json.dumps(made_up()))
    assert [machine.latency_ns(level) for level in ("L1", "L2", "HBM")] == [20, 200, 600]
    assert machine.roof("bf16") == pytest.approx(800)
    large = machine.one("flight", block=8192, programs=0)
    assert machine.resident(large) == 5
    assert machine.occupancy(large) == pytest.approx(31.25)
    assert machine.in_flight(large) == pytest.approx(5 * 8192 * 4 / 1e3)
    machine.print_programs()
    machine.print_ncu("anything")
    out = capsys.readouterr().out.splitlines()
    assert out[-1] == "no counters"
    assert out[-2].split()[:8] == ["8192", "122", "90", "5", "31", "%", "163.8", "4,000"]


def test_the_compiler_spreads_a_tile_over_lanes_as_drawn():
    small, large = compiled.copies(512, 8192)
    assert (small.neighbours, small.loads) == (4, 1)
    assert large.loads == 16
    assert small.registers < large.registers
