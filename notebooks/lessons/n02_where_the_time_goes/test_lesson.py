"""Notebook 02: its program is one text with the module's, runs behind 01's alone, and reads a trace as the tool."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import matplotlib
import pandas as pd
import pytest
import torch

matplotlib.use("agg")
from data import synthetic
from kernels.measure import records
from lessons.n02_where_the_time_goes import floors, pictures, puzzles, recorded
from lessons.n02_where_the_time_goes.experiment import StepTime
from lessons.shared import answers, dlrm, step_profile
from lessons.shared.records import FLOAT32, Unsaved, yardstick
from model.profiling import TRACES, step_facts
from model.profiling.phases import PHASES, work_by_phase
from model.profiling.trace import GPU, read

ROOM = Path(__file__).resolve().parent
NOTEBOOKS = ROOM.parents[1]
DOT, OUTER = TRACES / recorded.DOT, TRACES / recorded.OUTER


def program(number: str) -> list[str]:
    """The code cells that belong to the reader's program, the puzzles answered, without the lines that ask the
    checker."""
    (path,) = NOTEBOOKS.glob(f"{number}_*.ipynb")
    right, sources = answers.solutions(ROOM.parent / f"n{path.stem}"), []
    for cell in json.loads(path.read_text())["cells"]:
        source, tags = "".join(cell["source"]), cell["metadata"].get("tags", [])
        if "puzzle" in tags:
            source = right[cell["id"]].source
            source = source[: source.index("\n\n\nsolved = ")]
        if {"puzzle", "program"} & set(tags):
            sources.append(source)
    return sources


def definitions(source: str) -> dict[str, str]:
    """The text of each function and constant of the top level."""
    named = {}
    for node in ast.parse(source).body:
        name = getattr(node, "name", None) or (ast.unparse(node.targets[0]) if isinstance(node, ast.Assign) else "")
        named[name] = ast.get_source_segment(source, node)
    return {name: text for name, text in named.items() if name and not text.startswith(("import", "from"))}


def test_the_module_s_text_is_the_cells():
    ours = definitions(Path(step_profile.__file__).read_text())
    theirs = {}
    for source in program("02"):
        theirs |= definitions(source)
    assert set(ours) == {"clock", "marked_step", "events_of", "launches_of"}
    assert {name: theirs.get(name) for name in ours} == ours


# Only what is installed can be imported: no .pth file of an environment leads to the repository.
_ALONE = """
import runpy, sys
sys.path[:] = [path for path in sys.path if path and "-packages" not in path] + sys.argv[1:]
runpy.run_path("program.py")
"""


def test_who_has_the_cells_of_01_and_02_alone_trains_and_profiles_a_model(tmp_path):
    """In an empty folder, with torch, pandas and two files of rows."""
    for split in ("train", "validation"):
        rows = pd.read_parquet(synthetic.sample() / split, columns=["labels", *dlrm.DENSE, *dlrm.SPARSE])
        (tmp_path / "sample").mkdir(exist_ok=True)
        rows.head(8_000).to_parquet(tmp_path / "sample" / split)
    cells = [*program("01"), 'runs = Path("runs")', *program("02")]
    text = "\n\n".join(['from pathlib import Path\n\nsample = Path("sample")', *cells]) + "\n"
    assert not any(name in text for name in ("kernels.", "lessons", "puzzles", "verdict", "recorded"))
    (tmp_path / "program.py").write_text(text.replace("rows=2048", "rows=64").replace("steps=120", "steps=3"))
    command = [sys.executable, "-S", "-c", _ALONE, *map(str, dict.fromkeys(p for p in sys.path if "-packages" in p))]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert "AUC of the validation rows" in run.stdout
    assert "a step takes" in run.stdout
    (trace,) = (tmp_path / "runs").rglob("*.pt.trace.json.gz")
    assert len(read(trace).steps) == 3
    assert step_facts(trace).step_us > 0


# ------------------------------------------------------------------------------------------------------------- traces


def launches(folder: Path) -> pd.DataFrame:
    return step_profile.launches_of(step_profile.events_of(next(folder.glob("*.gz"))))


@pytest.mark.parametrize("folder", [DOT, OUTER], ids=lambda folder: folder.name)
def test_the_reader_s_launches_are_the_tool_s(folder):
    mine, theirs = launches(folder), read(folder).of(*GPU).sort_values("ts")
    assert len(mine) == len(theirs)
    assert mine["begins"].to_numpy() == pytest.approx(theirs["ts"].to_numpy(), abs=0.01)
    assert mine["runs"].sum() == pytest.approx(theirs["dur"].sum())
    assert (mine["waits"] > 0).all()


def one_look_up() -> pd.DataFrame:
    """As the notebook's cell chooses it."""
    dot = step_profile.events_of(next(DOT.glob("*.gz")))
    calls = dot[dot["name"] == "aten::embedding"].sort_values("dur")
    call = calls.iloc[len(calls) // 2]
    inside = dot[(dot["tid"] == call["tid"]) & dot["ts"].between(call["ts"], call["ts"] + call["dur"])]
    kernel = dot[(dot["cat"] == "kernel") & dot["correlation"].isin(inside["correlation"].dropna())]
    return pd.concat([inside, kernel])


def test_a_look_up_is_what_the_prose_says():
    events = one_look_up().sort_values(["ts", "dur"], ascending=[True, False])
    names = [name.removeprefix("aten::") for name in events["name"]]
    shown = ["embedding", "index_select", "empty", "gather", "cudaLaunchKernel"]
    assert [name for name in names if name in shown] == shown
    assert "gather" in names[-1]
    labels = [text.get_text() for text in pictures.draw_call(events).texts]
    assert any(text.startswith("the kernel, ") for text in labels)
    matplotlib.pyplot.close("all")


def test_the_area_of_phases_is_the_busy_time():
    shown = pictures.draw_phases(DOT)
    assert {text.get_text() for text in shown.legends[0].get_texts()} == {*PHASES, "another step's work"}
    (ax,) = shown.axes
    grey = matplotlib.colors.to_rgba(pictures.OTHER)
    own = [bar for bar in ax.patches if bar.get_y() == 0 and bar.get_facecolor() != grey]
    drawn = sum(bar.get_height() * bar.get_width() for bar in own)
    assert drawn == pytest.approx(work_by_phase(DOT)["dur"].sum() / 1e3, rel=0.01)  # ms
    matplotlib.pyplot.close("all")


# ------------------------------------------------------------------------------------------------------------- floors

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
    assert floors.needed(name, shapes, types, parameters=7) == expected


def test_a_steps_floor_is_the_sum_of_its_operators():
    """Each is bound by one of the two; the notebook computes the same."""
    seen = floors.recorded_operators(recorded.OUTER)
    table = floors.floors(seen)
    assert table["us"].sum() == pytest.approx(work_by_phase(OUTER)["dur"].sum())
    memory, compute = 1e6 * table["bytes"] / (1e12 * yardstick()), 1e6 * table["FLOPs"] / FLOAT32
    assert table["floor_us"].to_numpy() == pytest.approx(pd.concat([memory, compute], axis=1).max(axis=1).to_numpy())
    assert ((table["bound"] == "compute") == (compute > memory)).all()
    # Three products of 2048 × 186624 × 512, forward and backward.
    assert (table["FLOPs"] == 2 * 2048 * 186624 * 512).sum() == 3
    assert set(floors.floors(seen, peak=1e30)["bound"]) == {"memory"}
    (ax, _) = floors.draw_floors(dot=floors.floors(floors.recorded_operators(recorded.DOT)), outer=table).axes
    assert {text.get_text().partition(" ")[0] for text in ax.texts} == {
        "86", "_index_put_impl_", "embedding_dense_backward"
    }
    matplotlib.pyplot.close("all")


# ------------------------------------------------------------------------------------------------------------ records


def test_what_is_not_recorded_is_said_and_what_is_comes_with_its_host(capsys, monkeypatch):
    with monkeypatch.context() as alone:
        alone.setattr(recorded, "STEP_TIME", Unsaved("step_time", [{"part": "product", "match": "ok"}]))
        recorded.show("clock")
        recorded.show("launch")
    assert capsys.readouterr().out.count("No record of this yet") == 2
    lesson = StepTime(torch.device("cpu"))
    rows = [row for row in lesson.measure(["clock", "launch"]) if row["match"] == "ok"]
    next(row for row in rows if row["name"] == "the reader's step")["launches"] = 240
    table = pd.DataFrame(rows)
    table.attrs = {"GPU": "a GPU", "torch": "2", "date": "today"} | lesson.extra
    monkeypatch.setattr("lessons.shared.records._table", lambda name, gpu: table)
    recorded.show("clock")
    recorded.show("launch")
    out = capsys.readouterr().out
    assert "Recorded, a GPU, torch 2, today:\n  returned: " in out
    assert "CPU cores:\n  x + 1: " in out
    assert "µs per launch" in out.splitlines()[-1]
    assert records.README_GPU not in out


@pytest.mark.parametrize("puzzle", puzzles.PUZZLES)
def test_a_puzzle_is_the_reader_s_to_write(puzzle, capsys):
    """The lecture's own function is turned down, and the program goes on with it all the same."""
    assert not puzzles.attempt(puzzle, puzzles.OURS[puzzle])
    assert "was called: this is what you are to write" in capsys.readouterr().out
    assert puzzles.passed(puzzle) is puzzles.OURS[puzzle]
