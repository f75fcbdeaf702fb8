"""Lesson 04: what the notebook's cells have is what the modules have; the records are read and drawn."""

from __future__ import annotations

import ast
import json
import re
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch

from kernels import inductor
from lessons.n04_torch_compile import dynamo_graphs, experiment, look_ups, pictures, recorded

NOTEBOOK = Path(__file__).resolve().parents[2] / "04_torch_compile.ipynb"


@pytest.fixture(autouse=True)
def closed():
    yield
    if plt := sys.modules.get("matplotlib.pyplot"):
        plt.close("all")
    torch._dynamo.reset()


def definitions(source: str) -> dict[str, str]:
    """The text of each class at the top level, and of each constant."""
    lines, texts = source.splitlines(), {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef | ast.Assign):
            name = node.name if isinstance(node, ast.ClassDef) else ast.unparse(node.targets[0])
            texts[name] = "\n".join(lines[node.lineno - 1 : node.end_lineno]).partition("  # ")[0]
    return texts


@pytest.mark.parametrize(
    ("module", "name"),
    [(look_ups, "LookUps"), (look_ups, "RAISED"), (look_ups, "FORCED")],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_module_s_text_is_the_cell_s(module, name):
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    theirs = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            theirs |= definitions("".join(cell["source"]))
    assert definitions(Path(module.__file__).read_text())[name] == theirs[name]


def test_a_line_that_breaks_the_graph_is_named():
    def reads(x):
        if x.max().item() > 1:
            x = x + 1
        return x

    assert dynamo_graphs.stops_at(reads, torch.ones(3)).endswith("if x.max().item() > 1:")
    assert dynamo_graphs.stops_at(torch.relu, torch.ones(3)) == ""


def test_graphs_and_calls_are_counted():
    backend, model = dynamo_graphs.Counting(), experiment.small_model(3)
    compiled = torch.compile(model, backend=backend)
    for rows in (8, 6, 8):
        batch = experiment.batch_of(rows, 3)
        assert torch.equal(compiled(*batch), model(*batch))
    assert (backend.rows, backend.ran) == ([8, "any"], [0, 1, 1])


@pytest.mark.parametrize(("of_the_module", "graphs"), [(False, 2), (True, 4)])
def test_a_number_that_changes(of_the_module, graphs):
    class Scaled(torch.nn.Module):
        factor = 1

        def forward(self, x, factor):
            return x * (self.factor if of_the_module else factor)

    captured, model = [], Scaled()

    def backend(graph, inputs):
        captured.append(graph)
        return graph.forward

    compiled = torch.compile(model, backend=backend)
    for factor in (2, 3, 4, 5):
        model.factor = factor
        compiled(torch.ones(3), None if of_the_module else factor)
    assert len(captured) == graphs


def test_one_tensor_looks_up_what_the_tables_do():
    apart = look_ups.LookUps([3, 7, 2])
    together = look_ups.OneTensor(apart)
    ids = torch.randint(-1, 2**32, (20, 3))
    assert torch.equal(together(ids), apart(ids))
    out = experiment.passes(together, together, (ids,), training=True)()
    expected = experiment.passes(apart, apart, (ids,), training=True)()
    torch.testing.assert_close(out[1], torch.cat(expected[1:]))
    elsewhere = look_ups.OneTensor(apart.to("meta"))
    assert {tensor.device.type for tensor in (*elsewhere.parameters(), *elsewhere.buffers())} == {"meta"}


@pytest.mark.slow
def test_one_tensor_of_8_tables_or_9_has_one_kernel():
    """Its text, sizes aside."""
    texts = []
    for tables in (8, 9):
        model, ids = look_ups.OneTensor(look_ups.LookUps([500] * tables)), torch.zeros(2048, tables, dtype=torch.int64)
        with torch.no_grad():
            (source,) = inductor.triton_source(model, ids)
        (kernel,) = inductor.split(source)
        texts.append(re.sub(r"\d+(?=[^\w.])", "n", kernel.source.partition("@triton.jit")[2]))
    assert texts[0] == texts[1]


@pytest.mark.slow
@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="the limit is that of torch 2.13")
def test_the_limit_is_eight():
    def kernels(tables: int, **options) -> int:
        model, ids = look_ups.LookUps([50 + f for f in range(tables)]), torch.zeros(64, tables, dtype=torch.int64)
        with torch.no_grad():
            return sum(inductor.count(inductor.triton_source(model, ids, options=options)).values())

    assert [kernels(8), kernels(9)] == [1, 9]
    settings = look_ups.RAISED, {"max_complex_pointwise_cat_inputs": 32}, look_ups.FORCED
    assert [kernels(9, **options) for options in settings] == [9, 1, 1]


@pytest.mark.slow
def test_launches_are_recorded_in_small(monkeypatch, tmp_path):
    monkeypatch.setattr(experiment, "FOLDER", tmp_path)
    monkeypatch.setattr(experiment, "OPTIONS", {"default": {}, "not there": {"no_such_option": True}})
    rows = experiment.launches(rows=64, tables=10, backward=False)
    assert "saved" in experiment.write_launches(rows)
    (path,) = tmp_path.iterdir()
    assert json.loads(path.read_text())["rows"] == rows
    assert rows[0]["tables_a_launch"] == [1] * 10
    assert rows[0]["look_ups"] == 10
    assert "no such option" in rows[1]["match"]


def test_what_is_saved_pays():
    payoff = recorded.pays("main")
    assert payoff.cold > payoff.warm > 0
    assert payoff.steps(payoff.cold) == pytest.approx(1e3 * payoff.cold / payoff.saved, abs=1)
    assert len(pictures.pays("main").axes[0].lines) == 5


def test_pictures_of_the_records():
    assert len(pictures.look_ups().axes) == 4
    assert len(pictures.steps().axes) == 3
    assert len(pictures.served([8, 6, 6], {"default": ([8, "any"], [0, 1, None])}).axes[0].patches) == 2


@pytest.mark.slow
def test_look_ups_are_shown(monkeypatch, capsys):
    small = experiment.CompileTimes(torch.device("cpu"), experiment.Sizes(tables=(2,), rows=8, settings=()))
    small.look_ups()
    table = pd.DataFrame(small.rows)
    table["launches"] = table.get("launches", float("nan"))
    table.attrs |= {"GPU": "a GPU", "torch": "2.13"}
    monkeypatch.setattr(type(recorded.COMPILE_TIMES), "table", lambda self: table)
    capsys.readouterr()
    recorded.show_look_ups()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "RECORDED, µs of a CUDA graph's replay (launches): a GPU, torch 2.13"
    assert len(lines) == 2 + len(table.groupby(["model", "tables", "what"]))
    assert lines[2].startswith("look-ups, 2 tables, inference")
    assert lines[1].split() == ["eager", "one", "tensor"]
