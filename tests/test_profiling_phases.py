"""Phases and launches of a recorded step: what they count agrees with the trace and the model."""

import pytest

from data.cli import UserError
from lessons.shared import launches
from model.config import preset
from model.profiling import TRACES, step_facts, summarize
from model.profiling.phases import PHASES, by_phase, phases, work_by_phase
from model.profiling.trace import read

DOT, OUTER = TRACES / "08_main_dot", TRACES / "06_main_outer"
EAGER = ["01_index_naive", "03_index", "04_modulus", "06_main_outer", "08_main_dot"]


@pytest.mark.parametrize("name", EAGER)
def test_each_launch_is_in_one_phase(name):
    facts, table = step_facts(TRACES / name), by_phase(TRACES / name)
    assert list(table.index) == [*PHASES, "total"]
    assert table.loc["total", "launches"] == facts.launches
    assert table.loc["total", "kernels µs"] == pytest.approx(summarize(TRACES / name)["us"].sum(), rel=0.01)
    spans = phases(TRACES / name)
    assert (spans["end"] > spans["begin"]).all()
    assert (spans["begin"].iloc[1:].to_numpy() == spans["end"].iloc[:-1].to_numpy()).all()


def test_the_hash_and_the_look_up_have_a_launch_a_table():
    tables = len(preset("main").model.cardinalities) or 26
    work = work_by_phase(DOT).groupby("phase")["name"]
    assert len(work.get_group("hash")) == 2 * tables  # + 1, %
    assert work.get_group("look-up").str.contains("gather").sum() == tables


def test_a_compiled_step_has_other_phases():
    with pytest.raises(UserError, match="step 1 has no aten::embedding: phases are those of an eager DLRM"):
        phases(TRACES / "09_main_dot_compiled")


def test_launches():
    assert launches.busy_percent("08_main_dot") < 60 < 95 < launches.busy_percent("06_main_outer")
    assert 0.3 < launches.between_us(TRACES / launches.GRAPH) < launches.between_us(OUTER) < 2
    table = launches.prices()
    assert list(table["who pays"]) == ["host", "host", "GPU", "GPU", "GPU"]
    assert (table["µs"] > 0).all()


def test_the_columns_of_a_trace_that_has_no_shapes():
    events = read(DOT).events
    assert events.loc[events["cat"] == "kernel", "shapes"].isna().all()
    assert (
        events.loc[events["cat"] == "kernel", "external"].isin(events.loc[events["cat"] == "cpu_op", "external"]).all()
    )
