"""The lessons' rooms: notebooks/lessons/nNN_name/ holds all that notebook NN_name alone needs."""

from __future__ import annotations

import ast
import importlib
import inspect
import io
import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from fake_clock import Clock

from kernels import runtime
from kernels.measure import records
from lessons.shared import experiment
from lessons.shared.experiment import Experiment, Way
from lessons.shared.measure import Times
from lessons.shared.records import Record
from model.profiling import TRACES
from model.profiling.operators import Operator

pytest.importorskip("matplotlib").use("agg")
pyplot = pytest.importorskip("matplotlib.pyplot")

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = ROOT / "notebooks"
ROOMS = sorted(path for path in (NOTEBOOKS / "lessons").iterdir() if path.is_dir() and path.name != "__pycache__")


def test_a_room_for_each_notebook_and_none_without():
    stems = sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb"))
    assert [room.name for room in ROOMS] == sorted([*(f"n{stem}" for stem in stems), "shared"])
    for room in ROOMS:
        if room.name != "shared":
            assert {"solutions.py", "puzzles.py", "claims.py"} <= {path.name for path in room.iterdir()}, room.name


@pytest.mark.parametrize("folder", ["model", "kernels", "data"])
def test_what_the_lessons_use_knows_no_lesson(folder):
    files = [path for path in (ROOT / folder).rglob("*") if path.suffix in {".py", ".cu", ".cuh", ".cpp", ".h", ".txt"}]
    assert files
    assert [str(path) for path in files if "lessons" in path.read_text()] == []


def test_a_lesson_has_one_name():
    """As notebooks.lessons a module would be loaded a second time."""
    files = [path for folder in ("notebooks", "tests") for path in (ROOT / folder).rglob("*.py")]
    imported = re.compile(r"^\s*(?:from|import) notebooks\b", re.M)
    assert [str(path) for path in files if imported.search(path.read_text())] == []


def _module(room: str, name: str):
    """A module of the room whose name begins with `room`: n01, n02, …"""
    (path,) = (path for path in ROOMS if path.name.startswith(room))
    return import_module(f"lessons.{path.name}.{name}")


# What a picture is handed that has required arguments, by room and function.
ARGUMENTS: dict[str, Callable[[], tuple]] = {
    "n01.looked_up": lambda: (range(26), [4] * 26),
    "n02.draw_call": lambda: (_module("n02", "test_lesson").one_look_up(),),
    "n03.queues": lambda: (_module("n03", "program").simulate, {"A": [0.25] * 6}),
    "n04.served": lambda: ([8, 6], {"default": (["8", "any"], [0, 1])}),
    "n05.alive": lambda: ([("relu", 8), ("binary_cross_entropy_with_logits", 12), ("mm", 4)], 20),
    "n05.pays": lambda: (_module("n05", "puzzles").saved,),
    "n06.draw_stride": lambda: ({1: 4000, 8: None},),
    "n06.draw_waiting": lambda: (600, 1, 4),
    "n06.draw_flight": lambda: (lambda programs, block: float(programs * block),),
    "n11.draw_places": lambda: ({"x": torch.empty(4, 6), "x.T": torch.empty(4, 6).T},),
    "n12.draw_passes": lambda: ({"eager": [Operator("mm", 32, 32), Operator("relu", 32, 32)]}, 32),
    "n15.draw_dependency": lambda: (3, 2),
    "n17.bags": lambda: ([4, 1, 7], [0, 2, 2, 2, 3], 2),
    "n18.draw_walk": lambda: ([7, 2, 7, 0],),
    "n19.draw_touched": lambda: ({"dense": (13, 416, 52), "weight0": (4, 4, 0), "weight1": (2, 2, 0)},),
    "n19.draw_budget": lambda: ({8: (163, 0), 16: (168, 0), 26: (255, 512)},),
    "n20.draw_tile": lambda: (1_924_160,),
}
ARGUMENTS |= {"n25.draw_exchange": lambda: ([0, 1, 1], 2, 2)}
ARGUMENTS |= {"n16.draw_steps": lambda: ({"cat t": 3.0, "cat out": 4.0}, 2.0)}
ARGUMENTS |= {"n22.waits": lambda: (Times([{"name": "eager", "size": 1, "us_p50": 2.0}], "", "rows"), [1])}
ARGUMENTS |= {"n24.draw_mask": lambda: (17,), "n24.draw_addresses": lambda: (("x", "n"), (("x", 8), ("hidden", 8)))}
# Those take as many as one likes, and need one at least.
ARGUMENTS |= dict.fromkeys(("n02.draw_steps", "n02.draw_phases"), lambda: (TRACES / "08_main_dot",))
ARGUMENTS |= {"n04.pays": lambda: ("main", "outer"), "n06.draw_sectors": lambda: (1, 8)}
ARGUMENTS |= {"n06.draw_roofline": lambda: ("square",)}
ARGUMENTS |= {"n08.draw_edge": lambda: (48, 46)}


def _pictures(room: Path) -> dict[str, Callable]:
    """{nNN.name: function} of all functions of the room's pictures.py that return a picture."""
    module = import_module(f"lessons.{room.name}.pictures")
    functions = dict(inspect.getmembers(module, inspect.isfunction))
    drawing = {
        name: str(inspect.signature(function).return_annotation).strip("'") in ("Figure", "Axes")
        for name, function in functions.items()
        if function.__module__ == module.__name__ and not name.startswith("_")
    }
    return {f"{room.name[:3]}.{name}": functions[name] for name, draws in drawing.items() if draws}


WITH_PICTURES = [room for room in ROOMS if (room / "pictures.py").is_file()]


@pytest.mark.parametrize("room", WITH_PICTURES, ids=lambda room: room.name)
def test_every_picture_is_drawn(room):
    functions = _pictures(room)
    assert functions
    pyplot.close("all")  # what a test before this one left open
    for name, function in functions.items():
        figure = function(*ARGUMENTS.get(name, tuple)()).figure
        assert any(ax.has_data() or ax.texts for ax in figure.axes), name
        figure.canvas.draw()
        pyplot.close(figure)
    assert pyplot.get_fignums() == []


def test_each_argument_is_a_pictures():
    assert set(ARGUMENTS) <= {name for room in WITH_PICTURES for name in _pictures(room)}


def _by_constants(room: Path) -> Iterator[tuple[str, list, dict, list[np.ndarray]]]:
    """(name, arguments, named ones, what is stored) of each picture that a cell asks for by constants, so that it shows
    nothing but records. Those of cells that print the same everywhere are test_puzzles.py's."""
    from test_puzzles import drawn, is_tagged

    nbformat = pytest.importorskip("nbformat")
    for cell in nbformat.read(NOTEBOOKS / f"{room.name[1:]}.ipynb", 4).cells:
        if cell.cell_type != "code" or is_tagged(cell, "nbval-check-output"):
            continue
        for line in ast.parse(cell.source).body if "pictures." in cell.source else ():
            if re.match(r"pictures\.\w+\(", ast.unparse(line)):
                with suppress(ValueError):  # an argument is a variable
                    named = {word.arg: ast.literal_eval(word.value) for word in line.value.keywords}
                    yield line.value.func.attr, [*map(ast.literal_eval, line.value.args)], named, drawn(cell)[:1]


@pytest.mark.slow
@pytest.mark.parametrize("room", WITH_PICTURES, ids=lambda room: room.name)
def test_a_stored_picture_shows_what_the_records_say(room):
    """The text beside it is held to the records: a picture of older ones would contradict it."""
    from test_puzzles import are_alike

    for name, arguments, named, stored in _by_constants(room):
        png, figure = io.BytesIO(), _pictures(room)[f"{room.name[:3]}.{name}"](*arguments, **named).figure
        figure.savefig(png, format="png", bbox_inches="tight", dpi=100)  # as a notebook has it
        pyplot.close(figure)
        png.seek(0)
        assert are_alike(stored, [pyplot.imread(png)]), f"{name}: execute its cell again"


# ------------------------------------------------------------------------------------------------------- experiments

CPU = torch.device("cpu")
WITH_EXPERIMENT = [room.name for room in ROOMS if room.name != "shared" and (room / "experiment.py").exists()]
interpreted = pytest.mark.skipif(runtime.triton_mode() != "interpreted", reason="Triton is not interpreted here")
# They compile by Inductor: training steps for a CPU, or kernels as far as machine code.
HEAVY = {"n04_torch_compile", "n07_read_the_generated_triton"}


def experiment_of(room: str) -> type[Experiment]:
    """The room's one subclass of Experiment."""
    module = importlib.import_module(f"lessons.{room}.experiment")
    (experiment,) = (
        value for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Experiment) and value is not Experiment
    )
    return experiment


@interpreted
@pytest.mark.parametrize(
    "room", [pytest.param(room, marks=[pytest.mark.slow] * (room in HEAVY)) for room in WITH_EXPERIMENT]
)
def test_every_experiment_runs_in_small_and_what_it_saves_is_read(room, tmp_path, capsys):
    lesson = experiment_of(room)(CPU)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # tiny steps: sharing their operations costs more than it saves
    rows = lesson.measure()
    torch.set_num_threads(threads)
    assert rows
    assert {row["match"] for row in rows} - {"ok"} == set()
    of_room = importlib.import_module(f"lessons.{room}.test_lesson")
    if hasattr(of_room, "hold_rows"):
        of_room.hold_rows(rows)
    units = {"us", "ms", *(f"{unit}_p50" for unit in ("us", "ms", "ns"))}
    assert any(units & set(row) for row in rows)
    printed = capsys.readouterr().out
    assert sum(line.endswith("  ok") for line in printed.splitlines()) == len(rows)
    records.save(lesson.record(f"python -m lessons.{room}") | {"GPU": "a GPU"}, tmp_path)
    assert len(records.recorded(lesson.NAME, records.slug("a GPU"), tmp_path)) == len(rows)


@pytest.mark.parametrize("room", WITH_EXPERIMENT)
def test_the_command_asks_for_a_gpu_and_saves_nothing_less(room, capsys, monkeypatch):
    monkeypatch.setattr("kernels.runtime.device", lambda: CPU)
    lesson = experiment_of(room)
    main = importlib.import_module(f"lessons.{room}.experiment").main
    first = lesson.PARTS[0]
    refused = {"there is none here": [], "expected some of": ["--only", "nothing"]}
    refused["not saved over"] = ["--save", "--device", "cpu"]
    if len(lesson.PARTS) > 1:
        refused["not saved over the"] = ["--save", "--only", first]
    for reason, arguments in refused.items():
        with pytest.raises(SystemExit, match="2"):
            main(arguments)
        assert reason in capsys.readouterr().err


@pytest.mark.parametrize("room", WITH_EXPERIMENT)
def test_every_row_of_a_record_is_found_by_its_labels(room):
    lesson = experiment_of(room)
    record = Record(lesson.NAME)
    assert set(record.table().attrs) >= {"GPU", "torch", "date"}
    for part in record.table()["part"].unique() if "part" in record.table() else ():
        assert len(record.rows(part))
    with pytest.raises(LookupError, match=f"{lesson.NAME}.json: no row of nothing, here 1"):
        record.rows("nothing", here=1)
    with pytest.raises(LookupError, match=f"{lesson.NAME}.json: .* rows of"):
        record.one()


class Doubles(Experiment):
    """Ways to 2 x, of which some are wrong or fail."""

    NAME = "doubles"
    PARTS = ("broken", "double")

    def broken(self) -> None:
        raise RuntimeError("no such part")

    def double(self) -> None:
        x, out = torch.arange(4.0), torch.empty(4)
        flaky = iter([2 * x, 2 * x, 2 * x])  # right when it is looked at, and wrong after it was timed

        def fails() -> torch.Tensor:
            raise ValueError("no such kernel")

        calls = {
            "right": lambda: 2 * x, "into out": lambda: torch.mul(x, 2, out=out), "wrong": lambda: x + 1,
            "fails": fails, "nothing is written": lambda: out, "later": lambda: next(flaky, x),
        }
        right = lambda result: torch.equal(result, 2 * x)  # noqa: E731
        self.compare("double", [Way({"name": name}, [call], right) for name, call in calls.items()], bytes=32)


def test_a_wrong_result_has_no_time_and_an_error_loses_no_other_row():
    rows = {row.get("name", row["part"]): row for row in Doubles(CPU).measure()}
    failed = {name: row["match"] for name, row in rows.items() if row["match"] != "ok"}
    wrong = "FAILED: the result is wrong"
    assert failed == {
        "broken": "FAILED: RuntimeError: no such part", "wrong": wrong, "fails": "FAILED: ValueError: no such kernel",
        "nothing is written": wrong, "later": wrong,
    }
    assert {name for name, row in rows.items() if "us_p50" in row} == {"right", "into out"}


def test_on_a_gpu_what_is_captured_is_timed_and_judged_again(monkeypatch):
    """By a clock that is told what to say: three replays of two calls each; the outputs are spoiled while it times."""
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    scale, x = [1.0], torch.ones(3)
    for spoiled in (False, True):
        lesson = Doubles(CPU)
        lesson.gpu = Clock(times=(30.0, 10.0, 20.0))
        if spoiled:
            lesson.gpu.spoil = lambda: scale.__setitem__(0, 2.0)
        way = Way({}, [lambda: scale[0] * x] * 2, lambda result: torch.equal(result, torch.ones(3)))
        lesson.compare("scaled", [way])
        (row,) = lesson.rows
        assert (row["match"] == "ok") == (not spoiled)
        assert row.get("us_p50") == (None if spoiled else 10.0)


@pytest.mark.parametrize("spoils", [False, True])
def test_outputs_that_a_later_call_wrote_over_are_asked_for_again(monkeypatch, spoils):
    """As those of mode="reduce-overhead": who touches them gets an error, and only the last call's may be touched."""
    given, kept = [], experiment.poison

    def poison(outputs):
        if outputs[0] is not given[-1]:
            raise RuntimeError("accessing tensor output of CUDAGraphs that has been overwritten by a subsequent run")
        kept(outputs)

    def call():
        given.append(torch.full((3,), 2.0 if spoils and len(given) > 3 else 1.0))
        return given[-1]

    def clock(functions):
        for function in functions.values():
            function()
        return {number: [9.0] for number in functions}

    monkeypatch.setattr(experiment, "poison", poison)
    lesson, way = Doubles(CPU), Way({}, [call], lambda out: torch.equal(out, torch.ones(3)))
    lesson.compare("scaled", [way], captured=False, clock=clock)
    (row,) = lesson.rows
    assert row["match"] == ("FAILED: the result is wrong" if spoils else "ok")
    assert row.get("us_p50") == (None if spoils else 9.0)


@pytest.mark.parametrize("fails", [1, 3])
def test_a_way_that_fails_when_it_is_judged_leaves_the_others_their_rows(fails):
    runs = []

    def call():
        runs.append(1)
        if len(runs) == fails:
            raise ValueError("no more")
        return torch.ones(3)

    lesson, right = Doubles(CPU), lambda out: torch.equal(out, torch.ones(3))
    ways = [Way({"name": "fails"}, [call], right), Way({"name": "ones"}, [lambda: torch.ones(3)], right)]
    lesson.compare("scaled", ways, captured=False, clock=lambda functions: {n: [9.0] for n in functions})
    assert [row["match"] for row in lesson.rows] == ["FAILED: ValueError: no more", "ok"]


# ------------------------------------------------------------------------------------------------------- one of each

ONE = {
    "class": {"Experiment", "Record", "Way", "Trial"},
    "def": {
        "rows", "one", "us", "spread", "apart", "yardstick", "copy_us", "sms", "gb_per_s", "tflop_per_s", "line",
        "kernels_of",
    },
    "=": {"LANES", "SECTOR"},
}
NONE = {"Recorder", "spread_apart", "copy_limit", "copy_tb_per_s", "unrecorded", "MISSING", "NOT_YET", "there"}


def definitions() -> dict[str, list[str]]:
    """name → the files that define it: a class, a function, or a constant of a module. Answers of puzzles are not
    asked: they are the reader's."""
    places: dict[str, list[str]] = {}
    for path in sorted((NOTEBOOKS / "lessons").rglob("*.py")):
        if path.stem in {"solutions", "wrong_answers"} or path.stem.startswith("test_"):
            continue
        tree = ast.parse(path.read_text())
        names = [node.name for node in tree.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))]
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and node.name in ONE["class"]:
                names += [inner.name for inner in node.body if isinstance(inner, ast.FunctionDef)]
            for target in node.targets if isinstance(node, ast.Assign) else ():
                parts = target.elts if isinstance(target, ast.Tuple) else [target]
                constants = (part.id for part in parts if isinstance(part, ast.Name))
                names += [name for name in constants if name in ONE["="] | NONE]
        for name in names:
            places.setdefault(name, []).append(str(path.relative_to(NOTEBOOKS)))
    return places


def test_there_is_one_of_each():
    places = definitions()
    one = set().union(*ONE.values())
    assert {name: places.get(name) for name in one if len(places.get(name, ())) != 1} == {}
    assert {name: places[name] for name in NONE if name in places} == {}


def _python(path: Path) -> str:
    """A module's text, or that of a notebook's code cells."""
    if path.suffix == ".py":
        return path.read_text()
    cells = json.loads(path.read_text())["cells"]
    return "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")


@pytest.mark.parametrize("room", [room for room in ROOMS if room.name != "shared"], ids=lambda room: room.name)
def test_a_room_knows_no_other(room):
    """Nor does its notebook. What several lessons need is in shared/, which knows no room."""
    files = [*room.rglob("*.py"), NOTEBOOKS / f"{room.name.removeprefix('n')}.ipynb"]
    others = [(path.name, name) for path in files for name in re.findall(r"\blessons\.(n\d\d_\w+)", _python(path))]
    assert [(file, name) for file, name in others if name != room.name] == []


def test_what_is_shared_knows_no_room():
    files = (NOTEBOOKS / "lessons" / "shared").rglob("*.py")
    imports = re.compile(r"^\s*(?:from|import) lessons\.n\d", re.M)
    assert [path.name for path in files if imports.search(path.read_text()) and not path.name.startswith("test_")] == []


def test_there_is_one_judge():
    """Whose method every lesson's attempt is."""
    judging = re.compile(r"^\s*def attempt\b", re.M)
    files = [path.name for path in (NOTEBOOKS / "lessons").rglob("*.py") if judging.search(path.read_text())]
    assert files == ["judge.py"]
