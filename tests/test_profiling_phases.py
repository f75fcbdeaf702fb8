"""Phases, floors, launches and pictures of a recorded step: what they count agrees with the trace and the model."""

from dataclasses import replace

import matplotlib
import pytest
import torch

matplotlib.use("agg")
from data.cli import UserError
from lessons.n02_where_the_time_goes import on_your_machine, pictures, puzzles
from lessons.n02_where_the_time_goes.floors import draw_floors, floors, needed, recorded_floors, slowest
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


F, L = "float", "long int"
NEEDED = {
    "pointwise": ("clamp_min", [[8, 4], []], [F, "Scalar"], (2 * 8 * 4 * 4, 0)),
    "broadcast": ("mul", [[8, 4, 1], [8, 1, 4]], [F, F], (4 * (32 + 32 + 128), 0)),
    "integers": ("add", [[8], [], []], [L, L, "Scalar"], (2 * 64, 0)),
    "with a bias": (
        "addmm",
        [[5], [8, 4], [4, 5], [], []],
        [F, F, F, "Scalar", "Scalar"],
        (4 * (5 + 32 + 20 + 40), 320),
    ),
    "a batch of products": ("bmm", [[3, 8, 4], [3, 4, 5]], [F, F], (4 * 3 * (32 + 20 + 40), 3 * 320)),
    "concatenation": ("cat", [[[8, 4], [8, 1]], []], ["TensorList", "Scalar"], (2 * 4 * 40, 0)),
    "look-up": ("gather", [[100, 4], [], [8, 4], [], [8, 4]], [F, "Scalar", L, "Scalar", F], (8 * 8 + 2 * 128, 0)),
    "look-up in few rows": ("gather", [[2, 4], [], [8, 4], [], [8, 4]], [F, "", L, "", F], (8 * 8 + 32 + 128, 0)),
    "copy": ("copy_", [[8, 4], [8, 4], []], [F, F, "Scalar"], (2 * 128, 0)),
    "sum": ("sum", [[8, 4], [], [], []], [F, "ScalarList", "Scalar", ""], (128, 0)),
    "update": ("_fused_sgd_", [[], []], ["TensorList", "TensorList"], (12 * 7, 0)),
    "nothing known": ("arange", [[], []], ["Scalar", "Scalar"], (0, 0)),
}


@pytest.mark.parametrize("case", NEEDED)
def test_needed(case):
    name, shapes, types, expected = NEEDED[case]
    assert needed(name, shapes, types, parameters=7) == expected


def test_a_steps_floor_is_the_sum_of_its_operators():
    table = recorded_floors("06_main_outer")
    assert table["us"].sum() == pytest.approx(work_by_phase(OUTER)["dur"].sum())
    assert (table["floor_us"] == table[["memory_us", "compute_us"]].max(axis=1)).all()
    assert table["floor_us"].sum() > max(table["memory_us"].sum(), table["compute_us"].sum())
    # Three products of 2048 × 186624 × 512, forward and backward.
    assert (table["FLOPs"] == 2 * 2048 * 186624 * 512).sum() == 3
    twice = floors(OUTER, bandwidth=1e12, peak=1e30)
    assert (twice["bound"] == "memory").all()


def test_launches():
    assert launches.busy_percent("08_main_dot") < 60 < 95 < launches.busy_percent("06_main_outer")
    assert 0.3 < launches.between_us(TRACES / launches.GRAPH) < launches.between_us(OUTER) < 2
    table = launches.prices()
    assert list(table["who pays"]) == ["host", "host", "GPU", "GPU", "GPU"]
    assert (table["µs"] > 0).all()


def test_one_call():
    events = pictures.one_call(DOT, "aten::embedding", 10)
    by_depth = events.set_index("depth")
    assert by_depth.loc[0, "name"] == "aten::embedding"
    assert by_depth.loc[-1, "name"] == "cudaLaunchKernel"
    assert "gather" in by_depth.loc[-2, "name"]
    assert events["ts"].min() == 0


def test_pictures():
    assert len(pictures.draw_steps(DOT, OUTER).axes) == 2
    shown = pictures.draw_phases(DOT)
    assert {text.get_text() for text in shown.legends[0].get_texts()} == {*PHASES, "another step"}
    (ax,) = shown.axes
    grey = matplotlib.colors.to_rgba(pictures.OTHER)
    own = [bar for bar in ax.patches if bar.get_y() == 0 and bar.get_facecolor() != grey]
    drawn = sum(bar.get_height() * bar.get_width() for bar in own)
    assert drawn == pytest.approx(work_by_phase(DOT)["dur"].sum() / 1e3, rel=0.01)  # ms: the area is the busy time
    labels = [text.get_text() for text in pictures.draw_call(pictures.one_call(DOT, "aten::embedding", 10)).texts]
    assert any(text.startswith("the kernel, ") for text in labels)
    table = recorded_floors("08_main_dot")
    names = [text.get_text() for text in draw_floors(table, titles=("08",), named=("_index_put_impl_",)).axes[0].texts]
    assert names == ["_index_put_impl_"]
    matplotlib.pyplot.close("all")


def test_slowest():
    table = recorded_floors("06_main_outer")
    shown = slowest(table, rows=len(table))
    assert shown["ms"].is_monotonic_decreasing
    assert (shown["calls"].sum(), shown["ms"].sum()) == (len(table), pytest.approx(table["us"].sum() / 1e3))
    assert shown.loc["mm", "floor, ms"] < shown.loc["mm", "ms"]


def test_here(capsys, monkeypatch):
    monkeypatch.setattr(on_your_machine.runtime, "device", lambda: torch.device("cpu"))
    fewer = replace(on_your_machine.TRACED_STEPS[3], largest_table=10, batches=1)
    monkeypatch.setattr(on_your_machine, "TRACED_STEPS", [None] * 3 + [fewer])
    on_your_machine.step()
    on_your_machine.call()
    on_your_machine.clocks()
    on_your_machine.precisions()
    out = capsys.readouterr().out
    assert "ms a step without the profiler" in out
    assert all(phase in out for phase in PHASES)
    assert "has returned after" in out
    assert "it has no TF32" in out


def test_the_puzzles_own_answers_are_no_answers(capsys):
    for name in puzzles.PUZZLES:
        assert not puzzles.attempt(name, getattr(puzzles, name))
    assert capsys.readouterr().out.count("was called: this is what you are to write") == 3


def test_the_columns_of_a_trace_that_has_no_shapes():
    events = read(DOT).events
    assert events.loc[events["cat"] == "kernel", "shapes"].isna().all()
    assert (
        events.loc[events["cat"] == "kernel", "external"].isin(events.loc[events["cat"] == "cpu_op", "external"]).all()
    )
