"""python -m model.bench scale: bytes that add up, what cuts change, records beside predictions; the placement; and what
measures several GPUs, on a CPU."""

import json
import sys
import time
from dataclasses import asdict, replace
from itertools import pairwise

import numpy as np
import pytest

from data.cli import UserError
from kernels.measure import records
from model.bench.scale import cases, command, measuring
from model.bench.scale.cells import FULL, TINY, Cell, Sizes, exchanges, large, references, steps
from model.bench.scale.cost import EXCHANGES, Layout, estimate
from model.bench.scale.rates import Wires, measured_wires, recorded, with_measured
from model.config import Precision, TableOptimizer
from model.profiling.trace import read
from model.sharding.pieces import Piece, Wire, pieces
from model.sharding.placement import place, work

MAIN, DCN = cases.of_preset("main", precision=Precision.TF32), cases.dcnv2()
SMALL = replace(DCN, rows=(7, 50, 3, 1000), ids=(1, 2, 1, 5), dim=8, batch=32)
RATES = recorded()


def test_the_largest_piece_goes_to_the_emptiest_rank():
    assert place([5, 9, 4, 4], 2) == [[1, 3], [0, 2]]
    assert place([3, 3, 3], 2) == [[0, 2], [1]]
    assert place([0, 0, 1], 2) == [[2], [0, 1]]
    assert place([0, 0, 0], 2) == [[0, 2], [1]]  # none is emptier: the one with fewer pieces
    assert place([2, 1], 4) == [[0], [1], [], []]
    with pytest.raises(UserError, match="ranks: expected a number from 1, got 0"):
        place([1], 0)


def test_pieces_are_all_of_the_tables_whatever_the_number_of_gpus():
    layout = Layout(SMALL, 8, columns=2, piece_rows=400)
    assert layout.pieces[-3:] == [Piece(3, 400, 800, 1), Piece(3, 800, 1000, 0), Piece(3, 800, 1000, 1)]
    assert sum(piece.rows for piece in layout.pieces) == 2 * sum(SMALL.rows)
    assert sorted(piece for own in layout.placed for piece in own) == layout.pieces
    assert replace(layout, gpus=2).pieces == layout.pieces == pieces(SMALL.rows, layout)


def test_by_work_small_tables_do_not_gather_on_one_gpu():
    by_rows, by_work = (Layout(MAIN, 8, placed_by=name) for name in ("rows", "work"))
    assert max(map(len, by_rows.placed)) > 15
    assert max(map(len, by_work.placed)) <= 6
    assert by_work.held().max() <= 1.01 * by_rows.held().max()
    assert work((30, 10), (1, 3)) == [30 * 4 + 1 * 40, 10 * 4 + 3 * 40]


@pytest.mark.parametrize("gpus", [1, 2, 8, 16])
@pytest.mark.parametrize(("columns", "piece_rows"), [(1, 0), (4, 0), (2, 300)])
def test_bytes_add_up(gpus, columns, piece_rows):
    """Beside every pair of GPUs, one by one."""
    layout = Layout(SMALL, gpus, columns, piece_rows)
    sent = layout.bytes()
    numbers = {"ids": lambda piece: 1 + SMALL.ids[piece.table], "gradients": lambda _: SMALL.dim // columns}
    for name, each in numbers.items():
        pairs = np.array([[4 * layout.rows * sum(map(each, own)) for own in layout.placed]] * gpus)
        np.fill_diagonal(pairs, 0)
        near = np.equal.outer(np.arange(gpus) // 8, np.arange(gpus) // 8)
        expected = [np.where(mask, pairs, 0).sum(axis) for mask in (near, ~near) for axis in (1, 0)]
        np.testing.assert_array_equal(sent[name], expected)
    np.testing.assert_array_equal(sent["vectors"].back(), sent["gradients"])
    for part in sent.values():
        assert (part.sent_near.sum(), part.sent_far.sum()) == (part.received_near.sum(), part.received_far.sum())
    # Summed up, a gradient is sent out of all but one GPU, and its sum to all but one.
    total = sent["all-reduce"].sent_near.sum() + sent["all-reduce"].sent_far.sum()
    assert total == pytest.approx(2 * (gpus - 1) * 4 * SMALL.parameters)


def test_one_gpu_has_no_wire_and_takes_what_is_recorded():
    row = next(row for row in records.load("training")["rows"] if row["part"] == "steps" and row["rows"] == 2048
               and (row["implementation"], row["optimizer"], row["precision"]) == ("fused graph", "adagrad", "tf32"))
    one = estimate(Layout(MAIN, 1), RATES)
    assert (one.near, one.far, one.wires, one.busiest, one.origin) == (0, 0, 0, 1, "record")
    assert one.seconds == pytest.approx(1e-3 * row["ms"])
    assert one.rows_per_second == pytest.approx(2048e3 / row["ms"])
    assert estimate(Layout(replace(MAIN, batch=2000), 1), RATES).origin == "least"
    measured = replace(RATES, wires=Wires(gpus=2))
    layouts = Layout(MAIN, 2), Layout(MAIN, 4), Layout(MAIN, 2, columns=2), Layout(MAIN, 1, piece_rows=1_000_000)
    assert [estimate(layout, RATES).origin for layout in layouts] == ["paper"] * 4
    assert [estimate(layout, measured).origin for layout in layouts] == ["records", "paper", "paper", "paper"]


def test_the_parts_of_a_step():
    """By hand: 64 GPUs, of which 26 have a whole table each, the busiest the one of 100 ids a row."""
    one, rows, network = estimate(Layout(DCN, 64), RATES), 65536 // 64, 50e9
    weights = 3 * 4 * DCN.parameters / RATES.copy.value
    products = 3 * 2 * DCN.multiply_adds * rows / RATES.products[Precision.TF32].value
    others = 64 - 8
    vectors = others * rows * 4 * 128 / network
    nodes = 2 * 4 * DCN.parameters * 7 / 8 / 450e9 + 2 * 4 * DCN.parameters / 8 * 7 / 8 / network
    assert one.parts == pytest.approx({
        "dense": max(products, weights) + weights, "tables": RATES.tables(100 * 65536, 128, TableOptimizer.ADAGRAD),
        "ids": others * rows * 4 * (1 + 100) / network, "vectors": vectors, "gradients": vectors, "all-reduce": nodes,
        "latency": 5 * (30e-6 + 64 * 0.1e-6),
    })
    assert one.busiest == pytest.approx(100 / (214 / 64))
    assert (one.idle, one.origin) == (64 - 26, "least")


@pytest.mark.parametrize("case", [MAIN, DCN], ids=lambda case: case.name)
@pytest.mark.parametrize("gpus", [2, 64])
def test_what_halves_and_what_grows(case, gpus):
    whole, half, blocks = (Layout(case, gpus), Layout(case, gpus, vector_bytes=2), Layout(case, gpus, columns=4))
    for name in EXCHANGES:
        factor = 1 if name in ("ids", "all-reduce") else 2
        np.testing.assert_array_equal(np.array(whole.bytes()[name]), factor * np.array(half.bytes()[name]))
    # Blocks of columns send ids to each block's owner, and vectors once.
    assert _sent(blocks, "ids") == 4 * _sent(whole, "ids")
    assert _sent(blocks, "vectors") == _sent(whole, "vectors")
    assert blocks.look_ups().sum() == pytest.approx(4 * whole.look_ups().sum())
    # Runs of rows send vectors of each run, and look no more rows up.
    runs = Layout(case, gpus, piece_rows=5_000_000)
    grown = len(runs.pieces) / len(whole.pieces)
    assert _sent(runs, "vectors") == pytest.approx(grown * _sent(whole, "vectors"))
    assert runs.look_ups().sum() == pytest.approx(whole.look_ups().sum())
    for layout in (whole, blocks, runs):
        one = estimate(layout, RATES)
        assert one.busiest >= 1
        assert one.seconds == sum(one.parts.values()) > 0
        assert one.near >= one.near_mean
        assert one.far >= one.far_mean


def _sent(layout, name):
    return layout.bytes()[name].sent_near.sum() + layout.bytes()[name].sent_far.sum()


def test_mlperfs_sizes():
    assert (sum(DCN.rows), sum(DCN.ids), len(DCN.rows), len(DCN.ids)) == (204_184_588, 214, 26, 26)
    assert f"{DCN.table_bytes / 1e9:.0f} GB" == "105 GB"
    one = estimate(Layout(DCN, 1), RATES)
    assert not one.fits
    assert one.fullest == 2 * DCN.table_bytes + 3 * 4 * DCN.parameters  # Adagrad's sums, and the dense part's gradients
    assert estimate(Layout(DCN, 8), RATES).fits


def test_a_preset_is_the_model_that_it_names():
    assert MAIN.rows[2] == 10_131_228  # Kaggle's C3, and a row for the unknown
    widths = (13, 512, 256, 64, 16), (16 + 27 * 26 // 2, 512, 256, 1)
    pairs = [pair for own in widths for pair in pairwise(own)]
    assert MAIN.parameters == sum((a + 1) * b for a, b in pairs)
    assert MAIN.multiply_adds == sum(a * b for a, b in pairs) + 27 * 27 * 16


def test_recorded_times_are_given_back():
    rows = records.load("embedding_bags_update")["rows"]
    least = min(row["us_p50"] for row in rows if row["part"] == "bandwidth" and row["ids"] == "uniform"
                and (row["rule"], row["rows"], row["width"]) == ("sgd", 16384, 128) and row["implementation"] in
                ("cuda", "triton"))
    cells = RATES.updates[TableOptimizer.SGD]
    assert dict(cells[128])[26 * 16384] == pytest.approx(1e-6 * least)
    seconds = [RATES.tables(ids, 64, TableOptimizer.SGD) for ids in (0, 1, 1e5, 1e6, 1e7)]
    assert seconds[0] == 0 < seconds[1] == pytest.approx(RATES.tables(100, 64, TableOptimizer.SGD))
    assert seconds == sorted(seconds)
    assert RATES.tables(2e7, 256, TableOptimizer.SGD) == pytest.approx(4 * RATES.tables(1e7, 128, TableOptimizer.SGD))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gpus": 12}, "gpus: expected 1 to 8, or a multiple of 8, got 12"),
        ({"columns": 3}, "columns: expected a divisor of 128, an embedding's width, got 3"),
        ({"piece_rows": -1}, "piece_rows: expected a number from 0, got -1"),
        ({"vector_bytes": 1}, "vector_bytes: expected 2 or 4, got 1"),
        ({"placed_by": "luck"}, "placed_by: expected work or rows, got 'luck'"),
        ({"case": replace(DCN, table_optimizer=TableOptimizer.ROWWISE_ADAGRAD), "columns": 2}, "columns: rowwise_ada"),
        ({"case": replace(DCN, batch=100)}, "batch: expected a multiple of 8, the number of GPUs, got 100"),
    ],
)
def test_what_cannot_be_is_named(changes, message):
    with pytest.raises(UserError, match=message):
        replace(Layout(DCN, 8), **changes)


# ------------------------------------------------------------------------------------------------------------------
# A record beside the predictions; the one here is made up.


def made_up(step_ms=None, **changes):
    exchanges = [
        {"part": "exchange", "gpus": 2, "collectives": 4, "bytes": count, "us": 4 * 12 + count / 300e3, "match": "ok"}
        for count in (1_000_000, 8_000_000, 50_000_000)
    ]
    step = {"part": "step", "case": "main", "gpus": 2, "rows": 2048, "precision": "tf32", "optimizer": "adagrad",
            "ms": step_ms, "match": "ok"}
    return {"op": "made up", "GPU": "NVIDIA H200", "rows": [*exchanges, step | changes]}


def test_wires_are_those_of_a_record():
    wires = measured_wires(made_up()["rows"], "made up")
    assert (wires.nvlink.value, wires.latency.value) == pytest.approx((300e9, 12e-6))
    assert (wires.gpus, wires.nvlink.origin, wires.network) == (2, "made up", Wires().network)
    assert measured_wires([{"part": "step"}], "made up") is None
    with pytest.raises(UserError, match="made up: expected exchanges of several sizes, within a node, found 1"):
        measured_wires(made_up()["rows"][:1], "made up")


def test_predictions_beside_a_record(tmp_path, capsys):
    file = tmp_path / "record.json"

    def compared(record):
        file.write_text(json.dumps(record))
        status = command.main(["--measured", str(file)])
        return status, capsys.readouterr().out

    predicted = 1e3 * estimate(Layout(MAIN, 2), recorded(measured_wires(made_up()["rows"], "made up"))).seconds
    status, out = compared(made_up(predicted / 1.1))
    what = "main, 2 GPUs, 2,048 rows a GPU, tf32, adagrad"
    line = f"{what}: predicted {predicted:.3f} ms, measured {predicted / 1.1:.3f}, ratio 1.10; limit 0.8 to 1.2\n"
    assert (status, out) == (0, f"met: {line}")
    assert compared(made_up(predicted / 1.3))[0] == 1
    record = made_up(predicted)
    eager, wrong = record["rows"][-1] | {"graph": False}, record["rows"][-1] | {"match": "FAILED: x", "columns": 2}
    status, out = compared(record | {"rows": [*record["rows"], eager, wrong]})
    assert (status, out.count("met: "), out.count("not compared: ")) == (0, 1, 2)
    assert out.endswith(f"{what}, 2 blocks of columns: FAILED: x\n")


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ("{", "expected a record of traces/results, found Expecting"),
        ({"rows": []}, "expected a record of traces/results, found no 'GPU'"),
        ({"GPU": "NVIDIA H200", "rows": [{"part": "step", "gpus": 2}]}, "row 1: expected case, match, ms, optimizer"),
        ({"GPU": "NVIDIA H200", "rows": []}, "expected steps to compare with, found none"),
        (made_up(1.0) | {"GPU": "NVIDIA A100"}, "expected a record of NVIDIA H200, whose figures the model has, found"),
        (made_up(1.0, case="other"), "case: expected one of small, main, mini, mlperf, dcnv2, got 'other'"),
        (made_up(1.0, exchange="int8"), "exchange: expected fp32 or bf16, got 'int8'"),
        (made_up(1.0, precision="tf33"), "'tf33' is not a valid Precision"),
    ],
)
def test_a_file_that_is_no_record_is_named(tmp_path, capsys, record, message):
    file = tmp_path / "record.json"
    file.write_text(record if isinstance(record, str) else json.dumps(record))
    with pytest.raises(SystemExit):
        command.main(["--measured", str(file)])
    assert message in capsys.readouterr().err


def test_steps_of_several_gpus_are_predicted_from_that_of_one_rank(tmp_path, capsys):
    record = made_up(1.0)
    one = record["rows"][-1] | {"gpus": 1, "ms": 0.5}
    rows = [*record["rows"], one, one | {"sharded": False, "ms": 0.4}, one | {"graph": False, "ms": 9.0}]
    rates = with_measured(RATES, rows, "made up")
    assert [1e3 * step.value for step in rates.ranks.values()] == [pytest.approx(0.5)]
    two, alone = (estimate(Layout(MAIN, gpus), rates) for gpus in (2, 1))
    parts = two.parts["dense"] + RATES.tables(26 * 2048, 16, TableOptimizer.ADAGRAD)
    assert (parts, alone.seconds) == (pytest.approx(0.5e-3), estimate(Layout(MAIN, 1), RATES).seconds)
    file = tmp_path / "record.json"
    file.write_text(json.dumps(record | {"rows": rows}))
    command.main(["--measured", str(file)])
    out = capsys.readouterr().out
    assert "not compared: main, 1 GPU, 2,048 rows a GPU, tf32, adagrad: of one rank: " in out
    assert out.count("met: ") + out.count("MISSED: ") == 2  # two GPUs', and the one of a process without ranks


# ------------------------------------------------------------------------------------------------------------------
# What measures: the cells, what becomes of one that fails, and all of it on a CPU.


def test_every_cell_once_and_as_it_was_told():
    for sizes, graphs in ((FULL, True), (TINY, False)):
        cells = [cell for of in (steps, exchanges, large) for cell in of(sizes, 2, graphs)]
        assert len(set(map(str, cells))) == len(cells)
        held = set(references(sizes, 2, graphs))
        assert {cell.of_reference for cell in [*steps(sizes, 1, graphs), *steps(sizes, 2, graphs)]} == held
        assert [Cell.read(json.loads(json.dumps(asdict(cell)))) for cell in cells] == cells
        layouts = [measuring_layout(cell) for cell in steps(sizes, 2, graphs)]
        assert all(layout.case.name == "main" for layout in layouts)


def measuring_layout(cell):
    from model.bench.scale.measured import layout_of

    return layout_of(cell.row() | {"ms": 1.0, "match": "ok", "sharded": True})


RANKS = """
import json, sys, time
from pathlib import Path
todo, done = map(Path, sys.argv[1:])
for cell in json.loads(todo.read_text())["cells"]:
    if cell["rows"] == 2:
        sys.exit("python -m model.bench scale: rank 1: out of memory")
    if cell["rows"] == 3:
        time.sleep(600)
    with done.open("a") as lines:
        print(json.dumps([{"rows": cell["rows"], "match": "ok"}]), file=lines)
"""


def test_a_cell_that_fails_or_hangs_is_named_and_the_others_are_measured(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(measuring, "_torchrun", lambda *arguments: [sys.executable, "-c", RANKS, *arguments[2:]])
    cells = [Cell("step", 2, rows, seconds=1 if rows == 3 else 60) for rows in (1, 2, 4, 3, 5)]
    rows = [row for _, row in measuring._measured(cells, 2, {}, tmp_path, time.monotonic() + 600)]
    assert [(row["rows"], row["match"]) for row in rows] == [
        (1, "ok"), (2, "FAILED: rank 1: out of memory"), (4, "ok"), (3, "FAILED: does not end within 1 s"), (5, "ok")
    ]
    assert "rank 1: out of memory" in capsys.readouterr().err
    (row,) = (row for _, row in measuring._measured(cells[:1], 2, {}, tmp_path / ".", time.monotonic()))
    assert row["match"] == "FAILED: no time was left"


def test_steps_are_held_to_one_process_and_to_what_one_gpu_reaches():
    cell = Cell("step", 2, 16384)
    timed = {"ms": 1.0, "ms_low": 1.0, "ms_high": 1.0, "rows_per_s": 32.0, "sharded": True}
    expected = {cell.of_reference: {"losses": [0.5, 0.6], "reordered": [[0.5, 0.6001]]}}
    row = cell.row() | timed
    good = measuring.judged(row | {"losses": [0.5, 0.60005]}, cell, expected)
    assert (good["match"], good["ms"], "losses" in good) == ("ok", 1.0, False)
    assert good["loss_apart_most"] == pytest.approx(2e-4)  # four times what another order makes of it
    for losses, match in (([0.5, 0.61], "FAILED: losses 0.005 from"), ([0.5, float("nan")], "FAILED: losses nan from")):
        bad = measuring.judged(row | {"losses": losses}, cell, expected)
        assert bad["match"].startswith(match)
        assert "ms" not in bad
    half = replace(cell, exchange=Wire.BF16)
    assert measuring.judged(row | {"losses": [0.5, 0.603]}, half, expected)["match"] == "ok"
    why = measuring.judged(row | {"losses": [0.5]}, cell, {cell.of_reference: {"match": "FAILED: x"}})["match"]
    assert why == "FAILED: there is no reference: FAILED: x"

    alone = replace(cell, gpus=1).row() | timed | {"match": "ok"}
    faster = alone | {"sharded": False, "rows_per_s": 20.5}
    (verdict,) = measuring.verdicts([good, alone | {"rows_per_s": 15.0}, faster])
    assert verdict == "MISSED: step, 2 GPUs, 16,384, fp32, sgd, graph: 1.56 times the rows/s of one GPU; limit 1.6"
    assert measuring.verdicts([good, alone | {"rows_per_s": 20.0}])[0].startswith("met: ")
    assert measuring.verdicts([bad, alone]) == ["MISSED: step, 2 GPUs, 16,384, fp32, sgd, graph: not measured"]


@pytest.mark.slow
def test_all_of_it_by_two_ranks_of_a_cpu(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(measuring, "TINY", Sizes((32,), (16, 64), (64,), 2048, 2, 1, 1e-6, 4))
    plain = measuring.measure
    monkeypatch.setattr(measuring, "measure", lambda *arguments: plain(*arguments[:-1], tmp_path))
    assert command.main(["--measure", "--device", "cpu", "--largest-table", "100"]) == 0
    lines = capsys.readouterr().out.splitlines()
    parts = [line.split(", ")[0] for line in lines[:-1]]
    assert {part: parts.count(part) for part in parts} == {"step": 7, "exchange": 10, "large": 1, "epoch": 2}
    assert all(line.endswith("  ok") for line in lines[:-1])
    # An exchange of 16 rows with ids in 26 tables, in 13 of them here: four times, int32; and vectors of 16 numbers.
    (ids, vectors) = (next(line for line in lines if f", 64, {what} " in line) for what in ("ids", "vectors"))
    assert "0.01 MB out of a GPU" in ids
    assert "0.21 MB out of a GPU" in vectors
    traces = [read(path) for path in sorted(tmp_path.iterdir())]
    assert [trace.name for trace in traces] == [f"2{1 + rank}_full_sgd_eager_fp32_rank{rank}" for rank in range(2)]
    assert all("alltoall" in "".join(trace.of("cpu_op")["name"]) for trace in traces)


def test_it_is_said_what_cannot_be_measured(capsys):
    with pytest.raises(SystemExit):
        command.main(["--save"])
    assert "--save: with --measure" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------------------------
# The command.


def test_a_table_and_a_picture(tmp_path, capsys):
    picture = tmp_path / "scale.png"
    assert command.main(["--case", "mini", "--gpus", "1,2", "--columns", "1,2", "--picture", str(picture)]) == 0
    out = capsys.readouterr().out
    lines = [line.split("|") for line in out.splitlines() if line.startswith("|")]
    assert len(lines) == 2 + 4
    assert {len(line) for line in lines} == {len(command.HEAD) + 2}
    assert [line[-2].strip() for line in lines[2:]] == ["least"] * 4
    assert "a collective in a node: 10 µs: assumed\n" in out
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_options_change_the_cases(capsys):
    def chosen(*options):
        return command._chosen(command._arguments().parse_args(options))

    (main,) = chosen("--case", "main", "--precision", "tf32")
    assert main == MAIN
    (other,) = chosen("--case", "main", "--table-rows", "5,6", "--ids", "2,3", "--dim", "4", "--batch", "10")
    assert (other.rows, other.ids, other.dim, other.batch, other.per_gpu) == ((5, 6), (2, 3), 4, 10, False)
    assert not other.recorded
    assert chosen("--case", "dcnv2", "--ids", "1", "--rows", "64")[0].ids == (1,) * 26
    with pytest.raises(UserError, match="ids: expected one number, or one for each of 26 tables, got 2"):
        chosen("--case", "main", "--ids", "2,3")
    with pytest.raises(SystemExit):
        chosen("--gpus", "2,x")
    assert "argument --gpus: expected numbers from 1, joined by commas, got '2,x'" in capsys.readouterr().err
    assert [case.name for case in chosen()] == ["main", "main", "dcnv2", "dcnv2"]
