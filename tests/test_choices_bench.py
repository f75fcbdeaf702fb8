"""model.bench.choices: each way is the one that is forced, and what the rules say is noted. Kernels run on the host."""

from __future__ import annotations

import pytest
import torch
from compiled import recording
from test_fused_model import batch
from test_whole_training import CONFIG, ROWS, in_tf32, training  # noqa: F401  (a fixture)

from kernels.device.launch import cdiv
from kernels.measure import records
from kernels.ops.dlrm import choice as of_dlrm
from kernels.ops.dlrm.pair import ROWS as PAIR_ROWS
from kernels.ops.dlrm.pair import resident_pairs
from kernels.ops.lookup_interact import choice as of_look_ups
from model import fused
from model.bench import choices
from model.bench.choices import ONE, PARTS, WITHIN
from model.config import Precision
from model.optimizers import fusing_gradients
from model.step import train_step

CPU = torch.device("cpu")
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("way", choices.WAYS)
def test_a_step_goes_the_way_that_is_forced(way):
    model, optimizers = training()
    with choices.forced(way) as said, fusing_gradients(optimizers):
        train_step(model, optimizers, *batch(ROWS, CONFIG, 1), Precision.TF32)
    assert said == {"rule": ONE, "taken": way}
    assert fused.trains_whole.__module__ == "model.fused"


@pytest.mark.parametrize("way", choices.WAYS)
def test_a_prediction_goes_the_way_that_is_forced(way):
    model, _ = training()
    _, dense, sparse = batch(ROWS, CONFIG, 1)
    with choices.forced(way) as said, torch.no_grad():
        model.eval()(dense, sparse)
    assert said == {"rule": ONE, "taken": way}


def recorded(trains: bool) -> dict[tuple[str, str], dict[int, dict[str, float]]]:
    """µs of the ways in the record, by model and precision, and rows."""
    times: dict = {}
    for row in records.load("choices")["rows"]:
        if row["trains"] is trains:
            of_rows = times.setdefault((row["model"], row["precision"]), {})
            of_rows.setdefault(row["rows"], {})[row["way"]] = row["us"]
    return times


def asked(model: str, precision: str) -> tuple:
    """What `design_for` and `is_faster` take but for the rows, of an H200 where none is asked."""
    _, shapes, features, _, *computed = choices._described(choices.shape_of(model, 50), Precision(precision))
    return *shapes, features, False, *computed, CPU


def test_the_rules_choose_what_was_fastest_in_the_record():
    for rows in choices.recorded_cells():
        assert choices.over_the_fastest(rows, CPU) <= choices.SLOWER, choices.line(rows, CPU)


def test_a_verdict_is_of_the_rules_as_they_are(monkeypatch, capsys):
    """A record with one would show what rules chose that are no more."""
    cells = choices.recorded_cells()
    assert {name for rows in cells for row in rows for name in row} == {
        "model", "rows", "precision", "trains", "way", "match", "apart", "us_low", "us", "us_high"
    }
    assert choices.main([]) == 2
    (last,) = cells[-1]
    assert capsys.readouterr().out.endswith(f"*parts {last['us']:8.1f} µs\n{choices.verdict(cells, CPU)}\n")
    monkeypatch.setattr(of_dlrm, "CAPTURED", {"Pairs": {1_054_400: {2048: (2.0, 1.0), 65536: (2.0, 1.0)}}})
    of_dlrm.is_faster.cache_clear()
    try:
        assert choices.verdict(cells, CPU).startswith("MISSED: ")
    finally:
        of_dlrm.is_faster.cache_clear()


def test_the_rules_have_the_times_of_the_record():
    """In which a graph has two predictions: under the design, and the bytes of weights, of the model that was timed."""
    found = {}
    for model, times in recorded(trains=False).items():
        if all(ONE in ways for ways in times.values()):
            design = of_dlrm.design_for(*asked(*model), 2048)
            of_design = found.setdefault(type(design).__name__, {})
            of_design[design.fragments * design.dtype.itemsize] = {
                rows: tuple(us / choices.BATCHES for us in (min(ways[PARTS], ways[WITHIN]), ways[ONE]))
                for rows, ways in times.items()
            }
    assert {design: {*of_design} for design, of_design in of_dlrm.CAPTURED.items()} == {
        design: {*of_design} for design, of_design in found.items()
    }
    for design, of_design in found.items():
        for weights, times in of_design.items():
            known = of_dlrm.CAPTURED[design][weights]
            assert {rows: pytest.approx(us, rel=2e-3) for rows, us in times.items()} == known


def test_no_other_form_of_a_package_is_faster_than_its_one_kernel():
    """What Inductor makes of the parts: in bfloat16 `InHalf`; of tf32, in which there is none, `Served` in float32."""
    inductors, ours = {}, {}
    for row in records.load("backend")["rows"]:
        if not row["trains"]:
            us, case = row["replay"], (row["preset"], row["rows"], row["precision"])
            inductors[case] = min(us[name][1] for name in us.keys() - {"fused_kernels"})
            if row["replaced"] == ["dlrm_forward.cuda"]:
                ours[case] = us["fused_kernels"][1]
    for (model, precision), times in recorded(trains=False).items():
        ours |= {(model, rows, precision): ways[ONE] / choices.BATCHES for rows, ways in times.items() if ONE in ways}
    assert {rows for _, rows, _ in ours} == {1, 128, 2048, 16384, 65536}
    for (model, rows, precision), us in ours.items():
        form = "bf16" if precision == "bf16" else "fp32"
        assert us < inductors[model, rows, form], (model, rows, precision)
    times = of_dlrm.CAPTURED["Pairs"][1_977_728]
    assert 65536 // 2048 * times[2048][1] > times[65536][1], "a large batch is not cut"


def test_the_rules_of_steps_have_the_times_of_the_record():
    steps = {model: times for (model, _), times in recorded(trains=True).items()}
    kept, at_once = {}, PAIR_ROWS * resident_pairs(132)
    for rows, ways in steps["main"].items():
        kept[cdiv(rows, at_once)] = pytest.approx((min(ways[PARTS], ways[WITHIN]), ways[ONE]), rel=2e-3)
    assert kept == {tiles: times[0] for tiles, times in of_dlrm.KEPT.items()}
    of_width = of_look_ups.MEASURED[True, True][128]
    for rows in (2048, 16384):
        ways = steps["mlperf"][rows]
        assert of_width[rows] == (pytest.approx((ways[PARTS], ways[WITHIN]), rel=2e-3),)


def test_the_rules_of_look_ups_have_the_times_of_the_record():
    """With gradients forward and gradients together; tf32, and then bfloat16."""
    us: dict = {}
    for row in records.load("lookup_interact")["rows"]:
        if row["part"] in ("bandwidth", "wide", "gradients", "columns", "columns gradients"):
            case = "gradients" in row["part"], row["dtype"], row["precision"], row["columns"], row["rows"]
            us.setdefault((row.get("kind", "dot"), *case), {})[row["implementation"]] = row["us_p50"]
    tables = [("dot", *key, of_widths) for key, of_widths in of_look_ups.MEASURED.items()]
    tables += [(kind, False, trains, of) for (kind, trains), of in of_look_ups.MEASURED_BY_COLUMNS.items()]
    for kind, products, trains, of_widths in tables:
        for width, of_rows in of_widths.items():
            for rows, times in of_rows.items() if kind != "dot" or not trains or width < 128 else ():
                dtypes = [("float32", "tf32" if products else "ieee")]
                dtypes += [("bfloat16", "ieee")] if products or kind != "dot" else []
                for dtype, known in zip(dtypes, times, strict=False):
                    of_both = [us[kind, backward, *dtype, width, rows] for backward in (False, True)[: 1 + trains]]
                    sums = [sum(own[name] for own in of_both) for name in ("our two kernels", "cuda")]
                    assert known == pytest.approx(sums, rel=5e-3), (kind, products, trains, width, rows, dtype)


def test_a_wrong_rule_is_told(monkeypatch):
    cell = {"model": "main", "rows": 1, "precision": "tf32", "trains": True, "match": "ok"}
    rows = [cell | {"way": way, "us": us} for way, us in {PARTS: 2.0, WITHIN: 1.0, ONE: 1.5}.items()]
    rule = iter((WITHIN, WITHIN, WITHIN, ONE, ONE, WITHIN, PARTS))
    monkeypatch.setattr(choices, "chosen_way", lambda *_: next(rule))
    assert choices.verdict([rows], CPU).startswith("met: the chosen way at worst 1.000")
    assert "SLOWER" not in choices.line(rows, CPU)
    assert choices.line(rows, CPU).endswith("SLOWER: 1.500")
    said = choices.verdict([rows, rows], CPU)
    assert said.endswith("at worst 2.000 times the fastest; limit 1.03; 1 of 2 cells beyond it")


def test_cells_are_tried_out_on_a_cpu():
    (row,) = choices.cell("small", choices.shape_of("small", 50), 16, Precision.FP32, False, CPU)
    assert (row["way"], row["match"]) == (PARTS, "ok")
    assert choices.chosen_way("small", 16, Precision.FP32, False, CPU) == PARTS


@pytest.mark.parametrize("rows", ["0", "5,-1", "1,,2", "a"])
def test_rows_that_are_none(capsys, rows):
    with pytest.raises(SystemExit):
        choices.main(["--device", "cpu", "--rows", rows])
    assert f"numbers of rows, each at least 1, with commas between them; got {rows}\n" in capsys.readouterr().err


def test_the_backend_goes_the_way_that_is_forced(monkeypatch, as_on_gpu):
    """Chosen is what the rule says, not what is taken."""
    backend, recorded_ = recording("eager")
    monkeypatch.setattr(choices, "BACKEND", backend)
    arguments = "small", choices.shape_of("small", 50), 128, Precision.BF16, False, CPU
    rows = choices.cell(*arguments, compiled=True)
    assert [(row["way"], row["match"]) for row in rows] == [(PARTS, "ok"), (ONE, "ok")]
    assert [recorded_.ops.count("dlrm_forward"), recorded_.ops[-1]] == [1, "dlrm_forward"]
    assert choices.chosen_of(rows, CPU) == ONE
    assert choices.chosen_of([row | {"rows": 2048} for row in rows], CPU) == PARTS, "of which a part is the look-ups"
