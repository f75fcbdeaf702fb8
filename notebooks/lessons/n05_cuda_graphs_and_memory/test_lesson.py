"""CUDA graphs: the cells are one text with the room's program, the model of a graph, the last puzzle's cases."""

from __future__ import annotations

import ast
import gc
import json
import re
from pathlib import Path

import pytest
import torch

from lessons.n05_cuda_graphs_and_memory import experiment, pictures, program, puzzles, recorded
from lessons.n05_cuda_graphs_and_memory.experiment import BYTES, KERNELS
from lessons.n05_cuda_graphs_and_memory.graph_capture import capture
from lessons.shared import answers, dlrm
from lessons.shared.records import Record

ROOM = Path(__file__).resolve().parent
NOTEBOOK = ROOM.parents[1] / "05_cuda_graphs_and_memory.ipynb"


def definitions(text: str) -> dict[str, str]:
    lines = text.splitlines()
    nodes = [node for node in ast.parse(text).body if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
    return {node.name: "\n".join(lines[node.lineno - 1 : node.end_lineno]) for node in nodes}


def cells() -> dict[str, str]:
    """The functions and classes of the code cells, the puzzles answered."""
    theirs = {}
    for cell in json.loads(NOTEBOOK.read_text())["cells"]:
        if cell["cell_type"] == "code" and "puzzle" not in cell["metadata"].get("tags", []):
            theirs |= definitions("".join(cell["source"]))
    for answer in answers.solutions(ROOM).values():
        theirs |= definitions(answer.source)
    return theirs


def test_the_program_s_text_is_the_cells():
    ours, theirs = definitions(Path(program.__file__).read_text()), cells()
    assert set(ours) == {"capture", "call", "graphed", "late", "last_forward", "held"}
    assert {name: theirs.get(name) for name in ours} == ours


# --------------------------------------------------------------------------------------------------------- the model


def test_a_replay_reads_what_lies_at_the_addresses_now():
    buffer, weight = torch.zeros(3), torch.ones(3)

    def work(x):
        weight.add_(x)
        return (2 * x + 1)[:2].relu()

    graph, out = capture(work, buffer)
    assert out.isnan().all()
    assert weight.tolist() == [1, 1, 1]  # capturing computes nothing
    buffer.copy_(torch.tensor([1.0, -2, 3]))
    graph.replay()
    assert out.tolist() == [3, 0]
    assert weight.tolist() == [2, -1, 4]
    buffer.data = torch.zeros(3)  # other memory, which the graph does not know
    graph.replay()
    assert weight.tolist() == [3, -3, 7]
    assert graph.replays == 2


def test_a_number_of_python_is_the_one_that_was_captured():
    rate, buffer = [2.0], torch.ones(2)
    graph, out = capture(lambda x: rate[0] * x, buffer)
    rate[0] = 7.0
    graph.replay()
    assert out.tolist() == [2, 2]


def test_an_index_of_numbers_is_captured():
    buffer, places = torch.zeros(3), torch.tensor([2, 0])
    graph, out = capture(lambda x: x[places], buffer)
    buffer.copy_(torch.tensor([1.0, 2, 3]))
    graph.replay()
    assert out.tolist() == [3, 1]


@pytest.mark.parametrize("read", [lambda x: x * x.sum().item(), lambda x: x[x > 0], lambda x: x if x.any() else -x])
def test_the_host_reads_nothing_while_capturing(read):
    with pytest.raises(RuntimeError, match="the host reads a value"):
        capture(read, torch.ones(2))


def small_batch(seed: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(-1, 40, (12, 3), generator=generator)
    return torch.randint(2, (12,), generator=generator).float(), torch.randn(12, 13, generator=generator), ids


def small_model() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = dlrm.DLRM([20, 30, 40])
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def test_a_step_as_a_graph_trains_as_eager_does(monkeypatch):
    monkeypatch.setattr(program, "capture", capture)
    data = [small_batch(seed) for seed in range(3)]
    model, optimizer = small_model()
    eager = [dlrm.step(model, optimizer, *batch).item() for batch in data]
    twin, own = small_model()
    replayed = program.graphed(twin, own, data[0])
    assert [replayed(*batch).item() for batch in data] == eager
    for mine, theirs in zip(twin.parameters(), model.parameters(), strict=True):
        assert torch.equal(mine, theirs)


# ------------------------------------------------------------------------------------------------------------ memory


def alive() -> type:
    names: dict = {}
    text = "import weakref\nimport torch\nfrom torch.utils._python_dispatch import TorchDispatchMode\n"
    exec(f"{text}from torch.utils._pytree import tree_leaves\n{cells()['Alive']}", names)
    return names["Alive"]


def test_bytes_are_counted_while_a_tensor_lives():
    x = torch.ones(100)
    with alive()() as seen:
        y = x + 1  # 400 bytes
        y.add_(x)  # none
        z = y[:50].relu()  # a view, and 200 more
        del y
        z = z * 2  # 200 more, while the first 400 are gone
    assert [size for _, size in seen.history] == [400, 400, 400, 600, 400]
    assert seen.made == 800
    assert z.tolist() == [6] * 50


def test_the_gradients_are_what_a_step_leaves():
    model, optimizer = small_model()
    with alive()() as seen:
        loss = dlrm.step(model, optimizer, *small_batch(0))
    parameters = sum(p.numel() * p.element_size() for p in model.parameters())
    gc.collect()  # what lies in a circle of references dies late
    assert sum(seen.alive.values()) == parameters + loss.element_size() <= seen.history[-1][1]
    figure = pictures.alive(seen.history, seen.made)
    assert any("backward begins" in text.get_text() for text in figure.axes[0].texts)
    pytest.importorskip("matplotlib.pyplot").close(figure)


# ------------------------------------------------------------------------------------------------------ the formula


def test_the_first_case_of_the_last_puzzle_is_a_recorded_step():
    (launches, launch_us, kernels_us, replay_us, copy_us), _ = next(iter(puzzles.SITUATIONS.values()))
    before, after = recorded.step(recorded.FUSED), recorded.step(recorded.GRAPHED)
    assert launches == before["launches"]
    assert launch_us == pytest.approx(1e3 * before["ms"] / launches, abs=0.05)
    assert kernels_us == pytest.approx(1e3 * before["busy_ms"], abs=1)
    assert replay_us == pytest.approx(recorded.replay_us(), abs=0.05)
    assert copy_us == pytest.approx(after["copy_us"], abs=0.5)


def test_a_hint_of_the_last_puzzle_says_what_either_side_takes():
    for values, hint in puzzles.SITUATIONS.values():
        eager, graph = (float(µs) for µs in re.findall(r"(\d+) µs", hint)[:2])
        assert eager - graph == pytest.approx(puzzles.saved(*values), abs=1)


def test_the_picture_has_the_record_s_dots_and_the_reader_s_line():
    plt = pytest.importorskip("matplotlib.pyplot")
    figure = pictures.pays(lambda *_: 7.0)
    for ax, kernels in zip(figure.axes, KERNELS, strict=True):
        assert set(ax.lines[0].get_ydata()) == {7.0}
        dots = ax.collections[-1].get_offsets()[:, 1]
        assert dots.tolist() == pytest.approx([recorded.saved_us(kernels, size)[1] for size in BYTES])
    plt.close(figure)


# ------------------------------------------------------------------------------------------------------- the records


def test_the_reader_s_step_is_shown_once_it_is_recorded(capsys, monkeypatch):
    recorded.show_own_step()
    assert capsys.readouterr().out.startswith(("This step as a graph has not been recorded", "RECORDED"))
    lesson = experiment.Graphs(torch.device("cpu"))
    lesson.measure(["own_step"])
    pd = pytest.importorskip("pandas")
    table = pd.DataFrame([row for row in lesson.rows if row["part"] == "own_step"])
    table.attrs = {"GPU": "a GPU"}
    monkeypatch.setattr(Record, "table", lambda self: table)
    capsys.readouterr()
    recorded.show_own_step()
    assert re.match(r"RECORDED, a GPU: eager +[\d,]+ µs \(", capsys.readouterr().out)


@pytest.mark.parametrize("puzzle", puzzles.OURS)
def test_a_puzzle_is_the_reader_s_to_write(puzzle, capsys):
    """The lecture's own function is turned down, and the notebook goes on with it all the same."""
    assert not puzzles.attempt(puzzle, puzzles.OURS[puzzle])
    assert "was called: this is what you are to write" in capsys.readouterr().out
    assert puzzles.passed(puzzle) is puzzles.OURS[puzzle]
