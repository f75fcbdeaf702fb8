"""model.bench.choices: each way is the one that is forced, and what the rules say is noted. Kernels run on the host."""

from __future__ import annotations

import pytest
import torch
from test_fused_model import batch
from test_whole_training import CONFIG, ROWS, in_tf32, training  # noqa: F401  (a fixture)

from kernels.measure import records
from kernels.ops.dlrm.choice import CAPTURED
from model import fused
from model.bench import choices
from model.bench.choices import ONE, PARTS, WITHIN
from model.config import Precision
from model.optimizers import fusing_gradients
from model.step import train_step

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


def test_the_rules_have_the_times_of_the_record():
    """In which a graph has two predictions."""
    times: dict[tuple, dict[int, list[float]]] = {}
    for row in records.load("choices")["rows"]:
        if not row["trains"]:
            rows = times.setdefault((row["model"], row["precision"]), {}).setdefault(row["rows"], {})
            rows[row["way"]] = row["us"] / choices.BATCHES
    recorded = [
        {count: pytest.approx((min(ways[PARTS], ways[WITHIN]), ways[ONE]), rel=2e-3) for count, ways in rows.items()}
        for rows in times.values() if all(ONE in ways for ways in rows.values())
    ]
    known = [of_rows for of_design in CAPTURED.values() for of_rows in of_design.values()]
    assert len(known) == len(recorded) == 6
    for rows in recorded:
        assert rows in known


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
    (row,) = choices.cell("small", choices.shape_of("small", 50), 16, Precision.FP32, False, torch.device("cpu"))
    assert (row["way"], row["match"], row["is_chosen"]) == (PARTS, "ok", True)
