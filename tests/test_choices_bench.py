"""model.bench.choices: each way is the one that is forced, and what the rules say is noted. Kernels run on the host."""

from __future__ import annotations

import itertools

import pytest
import torch
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
from model.dlrm import InteractionArch
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


def described(model: str, precision: str) -> tuple[tuple, tuple, tuple]:
    """Widths of the MLPs; what `is_faster` takes but for the rows, of an H200 where none is asked; what `why_in_two`
    takes behind the rows."""
    shape = choices.shape_of(model, 50)
    features, width = len(shape.cardinalities), shape.embedding_dim
    widths = shape.bottom, (InteractionArch(shape.interaction, features, width).out_features, *shape.top)
    computed = (torch.bfloat16, "ieee") if precision == "bf16" else (torch.float32, "tf32")
    shapes = [tuple(torch.Size((b, a)) for a, b in itertools.pairwise(of_mlp)) for of_mlp in widths]
    return widths, (*shapes, features, False, *computed, CPU), (features, width, *computed, False)


def test_the_rules_choose_what_was_fastest_in_the_record():
    for trains in (False, True):
        for (model, precision), times in recorded(trains).items():
            widths, asked, looked_up = described(model, precision)
            for rows, us in times.items():
                kept = "-".join(map(str, widths[0])), "-".join(map(str, widths[1])), asked[2], rows, CPU
                way = WITHIN if not of_look_ups.why_in_two(rows, *looked_up, trains, CPU) else PARTS
                way = ONE if (of_dlrm.is_faster_kept(*kept) if trains else of_dlrm.is_faster(*asked, rows)) else way
                assert us[way] <= choices.SLOWER * min(us.values()), (model, precision, rows, trains, way)


def test_the_rules_have_the_times_of_the_record():
    """In which a graph has two predictions: under the design, and the bytes of weights, of the model that was timed."""
    found = {}
    for model, times in recorded(trains=False).items():
        if all(ONE in ways for ways in times.values()):
            design = of_dlrm.design_for(*described(*model)[1], 2048)
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


@pytest.mark.parametrize("times", [{PARTS: 2.0, WITHIN: 1.0, ONE: 1.5}])
def test_a_wrong_rule_is_told(times):
    def rows(rule: str) -> list[dict]:
        cell = {"model": "main", "rows": 1, "precision": "tf32", "trains": True, "match": "ok"}
        return [cell | {"way": way, "us": us, "is_chosen": way == rule} for way, us in times.items()]

    assert choices.verdict([rows(WITHIN)]).startswith("met: the chosen way at worst 1.000")
    assert "SLOWER" not in choices.line(rows(WITHIN))
    assert choices.line(rows(ONE)).endswith("SLOWER: 1.500")
    said = choices.verdict([rows(WITHIN), rows(PARTS)])
    assert said.endswith("at worst 2.000 times the fastest; limit 1.03; 1 of 2 cells beyond it")


def test_cells_are_tried_out_on_a_cpu():
    (row,) = choices.cell("small", choices.shape_of("small", 50), 16, Precision.FP32, False, CPU)
    assert (row["way"], row["match"], row["is_chosen"]) == (PARTS, "ok", True)
