"""Lesson 12: the cells' texts are those that are timed, its ways agree, what it counts, its record and pictures."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path

import pytest
import torch

from kernels import runtime
from lessons.n12_lora import experiment, lora_kernel, merging, pictures, program, recorded, ways
from lessons.shared import answers
from lessons.shared.records import Unsaved
from model.profiling.operators import Operator, Operators

ROOM = Path(__file__).resolve().parent
NOTEBOOK = ROOM.parents[1] / f"{ROOM.name.removeprefix('n')}.ipynb"
interpreted = pytest.mark.skipif(runtime.triton_mode() != "interpreted", reason="Triton is not interpreted here")


@pytest.fixture(autouse=True)
def closed():
    yield
    if plt := sys.modules.get("matplotlib.pyplot"):
        plt.close("all")


def functions(source: str) -> dict[str, str]:
    """The text of each function and class, its decorators and the comment behind its head with it."""
    lines, texts = source.splitlines(), {}
    for node in ast.parse(source).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            texts[node.name] = "\n".join(lines[first - 1 : node.end_lineno])
    return texts


def test_what_is_timed_and_tested_is_the_notebook_s_text():
    """Each function of these modules stands in a cell, or is the answer to a puzzle."""
    theirs = {}
    for cell in json.loads(NOTEBOOK.read_text())["cells"]:
        if cell["cell_type"] == "code":
            theirs |= functions("".join(cell["source"]))
    for answer in answers.solutions(ROOM).values():
        theirs |= functions(answer.source)
    for module in (program, lora_kernel, ways, merging):
        ours = functions(Path(module.__file__).read_text())
        ours.pop("projections", None)  # which the claims ask for
        assert ours
        assert {name: theirs.get(name) for name in ours} == ours, module.__name__


def test_the_puzzles_holes_have_the_answers_heads():
    for cell in json.loads(NOTEBOOK.read_text())["cells"]:
        if cell["id"] in answers.solutions(ROOM):
            right = answers.solutions(ROOM)[cell["id"]].source
            mine, right = functions("".join(cell["source"])), functions(right)
            assert {name: text.split("\n")[0] for name, text in mine.items()} == {
                name: text.split("\n")[0] for name, text in right.items()
            }


def _layer(rows: int = 1024, width: int = 128, rank: int = 16) -> tuple:
    random = torch.Generator().manual_seed(1)
    shapes = (rows, width), (width, width), (width,), (width, rank), (rank, width)
    return *(torch.randn(shape, generator=random) / 8 for shape in shapes), 1.5


def _seen(function, *arguments) -> list[Operator]:
    with torch.no_grad(), Operators() as operators:
        function(*arguments)
    return operators.seen


def _calls(x, W, bias, A, B, multiplier) -> dict:
    both = torch.cat([W, B.T], 1)
    merged = ways.merge(W, A, B, multiplier)
    return {
        "in place": lambda: ways.in_place(x, W, bias, A, B, multiplier),
        "one product": lambda: ways.one_product(x, both, bias, A, multiplier),
        "relu inside": lambda: ways.relu_inside(x, both, bias, A, multiplier),
        "merged": lambda: torch.relu(torch.nn.functional.linear(x, merged, bias)),
    }


def test_all_ways_give_the_layer_and_move_what_the_lesson_counts():
    layer = _layer()
    wanted, unit = ways.eager(*layer), layer[0].nbytes
    operators = {"eager": _seen(ways.eager, *layer)}
    for name, call in _calls(*layer).items():
        torch.testing.assert_close(call(), wanted, rtol=1e-4, atol=1e-4)
        operators[name] = _seen(call)
    moved = {name: sum(round((o.read + o.written) / unit) for o in seen) for name, seen in operators.items()}
    assert moved == {"eager": 11, "in place": 7, "one product": 7, "relu inside": 5, "merged": 4}
    pictures.draw_passes(operators | {"LoRA kernel": [Operator("lora_kernel", unit, unit)]}, unit)


@interpreted
def test_the_kernel_gives_the_layer():
    layer = _layer(70, 24)
    torch.testing.assert_close(ways.by_kernel(*layer), ways.eager(*layer), rtol=1e-4, atol=1e-4)


def test_what_bfloat16_keeps():
    projections = [merging.projections(std) for std in merging.STDS]
    assert all(abs(kept - 1) < 1e-3 for kept in projections[0].values())
    assert max(projections[-1]["eager"], projections[-1]["merged"]) < 0.5 < 0.95 < projections[-1]["one product"]
    assert merging.bf16(torch.tensor([1.001], dtype=torch.float64)).item() == 1


def test_rounding_by_hand_is_that_of_bfloat16_layers(monkeypatch):
    """The same by PyTorch in bfloat16: a product's float32 sums may round to the neighbour now and then."""
    drawn = []
    monkeypatch.setattr(merging, "bf16", lambda values: drawn.append(values.bfloat16().double()) or drawn[-1])
    _, arrived = merging.applied(1e-2)
    x, W, A, B = (tensor.bfloat16() for tensor in drawn[:4])
    linear = drawn[0] @ drawn[1].T
    eager = x @ W.T + merging.MULTIPLIER * ((x @ A) @ B)
    merged = x @ ways.merge(W, A, B, merging.MULTIPLIER).T
    assert (eager.double() == arrived["eager"] + linear).double().mean() > 0.97
    assert (merged.double() == arrived["merged"] + linear).double().mean() > 0.97


# ------------------------------------------------------------------------------------------------------- the record


def test_the_record_is_printed_and_what_is_not_recorded_says_so(capsys):
    recorded.show_layer({"eager": 500, "LoRA kernel": None, "none such": 3})
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split()[:2] == ["eager", f"{recorded.time_us('layer', 'eager'):.1f}"] for line in lines)
    (missing,) = (line for line in lines if "none such" in line)
    assert " ".join(missing.split()) == "none such no record yet, your prediction: 3"
    with pytest.raises(LookupError, match=r"lora\.json: no none such in layer"):
        recorded.time_us("layer", "none such")


@interpreted
def test_what_the_experiment_measures_is_what_is_shown(monkeypatch, capsys):
    """In small: no row of the cells' is missing but the one that only a GPU has."""
    lesson = experiment.Lora(torch.device("cpu"))
    lesson.measure(["layer"])
    assert {row["match"] for row in lesson.rows} == {"ok"}

    monkeypatch.setattr(recorded, "LORA", Unsaved("lora", lesson.rows))
    monkeypatch.setattr(recorded, "ROWS", 4)
    monkeypatch.setattr(recorded, "WIDTH", 16)
    capsys.readouterr()
    cell = next(
        "".join(cell["source"]) for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["id"] == "layer-times"
    )
    named = ast.literal_eval(cell.split("names = ")[1].split(", *calls")[0])
    calls = experiment.IN_PLACE, experiment.ONE_PRODUCT, experiment.RELU_INSIDE, experiment.MERGED
    recorded.show_layer(dict.fromkeys([*named, *calls]))
    missing = [line.split()[0] for line in capsys.readouterr().out.splitlines() if "no record yet" in line]
    assert missing == ["max-autotune", *["the"] * ("triton" not in lesson.backends)]


def test_pictures_need_no_record():
    pictures.draw_matrices()
    pictures.draw_kept()
