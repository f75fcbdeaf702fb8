"""Notebook 03: its cells are one text with the room's program, cuts are what they say, and what the record says."""

from __future__ import annotations

import ast
import json
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from lessons.n03_paper_cuts import arithmetic, experiment, pictures, program, puzzles, recorded
from lessons.n03_paper_cuts.agreement import disagreement
from lessons.n03_paper_cuts.growing_table import GREY, Cuts
from lessons.n03_paper_cuts.recorded import Effect
from lessons.shared import dlrm

CPU = torch.device("cpu")
NOTEBOOK = Path(__file__).resolve().parents[2] / "03_paper_cuts.ipynb"
A, B = [0.25] * 6, [0.25] * 4 + [6.0] * 2


def source() -> str:
    """The code cells that are no puzzles."""
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    return "\n\n\n".join(
        "".join(cell["source"]) for cell in cells
        if cell["cell_type"] == "code" and "puzzle" not in cell["metadata"].get("tags", [])
    )


def definitions(text: str) -> dict[str, str]:
    lines = text.splitlines()
    nodes = [node for node in ast.parse(text).body if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
    return {node.name: "\n".join(lines[node.lineno - 1 : node.end_lineno]) for node in nodes}


@pytest.fixture(autouse=True)
def closed():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the tensors are small
    yield
    torch.set_num_threads(threads)
    if plt := sys.modules.get("matplotlib.pyplot"):
        plt.close("all")


# ------------------------------------------------------------------------------------------------------- the program


def test_the_program_s_text_is_the_cells():
    ours, theirs = definitions(Path(program.__file__).read_text()), definitions(source())
    assert len(ours) >= 10
    assert {name: theirs.get(name) for name in ours} == ours


def test_the_notebook_s_cuts_are_the_record_s():
    calls = [node for node in ast.walk(ast.parse(source())) if isinstance(node, ast.Call)]
    added = [ast.unparse(call.args[0]).strip("'") for call in calls if ast.unparse(call.func) == "cuts.add"]
    assert {name for name in added if name not in recorded.CUTS} == {"nothing"}
    assert set(recorded.CUTS) <= set(added)


@pytest.fixture(scope="module")
def batch() -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(-1, 40, (12, 3), generator=generator)
    return torch.randint(2, (12,), generator=generator).float(), torch.randn(12, 13, generator=generator), ids


def test_the_list_and_the_buffer_give_the_same_rows(batch):
    known = torch.arange(3, 30, 4)
    hashes = [kind(known) for kind in (program.ListHash, program.BufferHash)]
    expected = [known.tolist().index(one) + 1 if one in known else 0 for one in batch[2][:, 0].tolist()]
    assert [kind(batch[2][:, 0]).tolist() for kind in hashes] == [expected] * 2
    assert "known" in dict(hashes[1].named_buffers())


@pytest.mark.parametrize("sparse", [False, True])
def test_one_table_trains_as_26_do(batch, sparse):
    """With their weights, SGD and Adagrad, dense and sparse gradients."""
    sizes = [5, 9, 40]
    look_up = partial(experiment._looked_up, sparse=sparse)
    for optimizer in (experiment.sgd, program.adagrad):
        losses = []
        for make in (partial(dlrm.DLRM, sizes), partial(program.OneTable, sizes, look_up)):
            torch.manual_seed(0)
            model = make()
            optim = optimizer(model)
            losses.append([dlrm.step(model, optim, *batch).item() for _ in range(4)])
        assert losses[0] == pytest.approx(losses[1], rel=1e-6)
        assert losses[0][0] != losses[0][-1]


def test_adagrad_has_the_tables_in_a_group_of_their_own():
    for model in (dlrm.DLRM([3, 4]), program.OneTable([3, 4], puzzles.sparse_look_up)):
        tables, others = (group["params"] for group in program.adagrad(model).param_groups)
        assert {tuple(weight.shape) for weight in tables} <= {(4, 16), (5, 16), (9, 16)}
        assert len(tables) + len(others) == len(list(model.parameters()))


def test_a_wait_costs_the_time_for_which_it_stops_who_sets_the_pace():
    for kernels in (A, B):
        free, waiting = (program.step_time(kernels, waits) for waits in (False, True))
        assert free == max(len(kernels), sum(kernels))  # whoever is slower
        assert free < waiting <= len(kernels) + sum(kernels)
    assert program.step_time(A, True) - program.step_time(A, False) == 0.25
    assert program.step_time(B, True) - sum(B) == 4


@pytest.mark.parametrize(
    ("line", "waits"),
    [(lambda x: x.cpu(), True), (lambda x: x[x > 0], True), (lambda x: x.relu(), False), (lambda x: x[:3], False)],
)
def test_a_wait_is_found_and_said(line, waits):
    assert bool(puzzles.why_it_waits(line, torch.randn(9))) == waits


@pytest.mark.parametrize("puzzle", ["metric", "sparse_look_up", "update"])
def test_a_puzzle_is_the_reader_s_to_write(puzzle, capsys):
    """The lecture's own function is turned down, and the notebook goes on with it all the same."""
    assert not puzzles.attempt(puzzle, puzzles.OURS[puzzle])
    assert "was called: this is what you are to write" in capsys.readouterr().out
    assert puzzles.passed(puzzle) is puzzles.OURS[puzzle]


# ----------------------------------------------------------------------------------------------------- the experiment


def hold_rows(rows: list[dict]) -> None:
    """Every variant is measured in every round: for tests/test_lessons.py, which runs the experiment in small."""
    labels = ("part", "step", "size", "rule", "variant", "n")
    keys = {tuple(row.get(name, "") for name in labels) for row in rows}
    assert len(keys) == len(rows) == 4 + 2 * 6 + 4 * 4 + 2 * 2 + (8 + 6) + 3 * 4
    assert all(len(row["ms"]) == 2 and min(row["ms"]) > 0 for row in rows)


def four_batches() -> list[list[torch.Tensor]]:
    random = torch.Generator().manual_seed(0)
    return [
        [torch.randint(2, (96,), generator=random).float(), torch.randn(96, 13, generator=random),
         torch.randint(-1, 40, (96, 3), generator=random)] for _ in range(4)
    ]


def three_tables():
    return dlrm.DLRM([5, 9, 40])


def trained(optimizer=program.adagrad, batches=None, work=dlrm.step, make=three_tables):
    """A program of three tables, its optimizer and its step."""
    torch.manual_seed(0)
    model = make()
    return experiment._program("", model, optimizer(model), batches or four_batches(), work)


def kept(model, optimizer, labels, dense, ids):
    """A step that adds to the gradient of the step before."""
    loss = torch.nn.functional.binary_cross_entropy_with_logits(model(dense, ids), labels)
    loss.backward()
    optimizer.step()
    return loss.detach()


def spoiled(spoil):
    """A step whose gradients are spoiled before the update."""

    def step(model, optimizer, labels, dense, ids):
        optimizer.zero_grad()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(model(dense, ids), labels)
        loss.backward()
        spoil(model)
        optimizer.step()
        return loss.detach()

    return step


def forgets_an_id(model):
    named = model.tables[2].weight.grad
    named[named.abs().sum(1).nonzero()[-1]] = 0


def with_sums(change):
    """A step of Adagrad whose sums of squares are changed behind it."""

    def step(model, optimizer, *batch):
        loss = dlrm.step(model, optimizer, *batch)
        for state in optimizer.state.values():
            change(state["sum"])
        return loss

    return step


def moved(model, optimizer, *batch):
    loss = dlrm.step(model, optimizer, *batch)
    with torch.no_grad():
        model.top[0].weight[0, 0] += 1e-5
    return loss


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"work": kept}, "step 2: the gradient of tensor 0"),
        ({"work": spoiled(forgets_an_id)}, "step 1: the gradient of tensor 10"),
        ({"work": spoiled(lambda model: model.top[0].weight.grad.mul_(1.01))}, "step 1: the gradient of tensor 4"),
        ({"work": with_sums(lambda total: total.mul_(1.001))}, "step 1: the update of tensor 0"),
        ({"work": with_sums(torch.Tensor.zero_)}, "step 1: the update of tensor 0"),
        ({"work": moved}, "step 1: the update of tensor 4"),
        ({"batches": [[labels, dense, ids + 1] for labels, dense, ids in four_batches()]}, "step 1: the loss differs"),
        ({"batches": [[labels, dense * torch.nan, ids] for labels, dense, ids in four_batches()]}, "the loss is nan"),
    ],
    ids=["added", "an id", "1 %", "sums", "no sums", "moved", "other rows", "nan"],
)
def test_a_wrong_program_does_not_agree(wrong, message):
    assert message in disagreement(trained(), trained(**wrong))


@pytest.mark.parametrize("optimizer", [experiment.sgd, program.adagrad])
def test_rows_in_another_order_agree(optimizer):
    """Their gradients differ by roundings, by which Adagrad's weights are lr apart."""
    torch.manual_seed(1)
    orders = [torch.randperm(96) for _ in range(4)]
    mixed = [[part[order] for part in batch] for batch, order in zip(four_batches(), orders, strict=True)]
    for make in (three_tables, partial(program.OneTable, [5, 9, 40], puzzles.sparse_look_up)):
        assert disagreement(trained(optimizer), trained(optimizer, mixed, make=make)) == ""


def test_sgd_with_another_rate_does_not_agree():
    def faster(model, optimizer, *batch):
        optimizer.param_groups[0]["lr"] = 0.00301
        loss = dlrm.step(model, optimizer, *batch)
        optimizer.param_groups[0]["lr"] = 0.003
        return loss

    assert "the update" in disagreement(trained(experiment.sgd), trained(experiment.sgd, work=faster))


def test_an_update_is_judged_where_the_programs_need_not_agree():
    first = trained()
    other = experiment.replace(trained(work=moved), same=False)
    assert "the update of tensor 4" in disagreement(first, other)
    assert disagreement(first, experiment.replace(trained(make=partial(dlrm.DLRM, [4, 9, 40])), same=False)) == ""
    assert "the update of tensor 4" in disagreement(other, other)


def test_another_gradient_is_a_failure():
    right, wrong = trained(), experiment.replace(trained(work=spoiled(forgets_an_id)), name="wrong")
    first, second = experiment.measure([right, wrong], CPU, rounds=1, block=1)
    assert first["match"] == "ok"
    assert len(first["ms"]) == 1
    assert second["match"].startswith("FAILED: step 1: the gradient")
    assert "ms" not in second


def test_layouts_are_what_they_say():
    chosen = experiment.replace(experiment.BY_NUMBER["08"], batch_size=4, batches=1, largest_table=20, weight_decay=0.0)
    for (name, sparse, one), layout in zip(experiment.LAYOUTS, experiment.tables(chosen, CPU), strict=True):
        assert name == layout.name
        layout.step()
        gradients = [table.grad for table in layout.model.sparse_arch.tables.parameters()]
        assert len(gradients) == (1 if one else 26)
        assert {gradient.is_sparse for gradient in gradients} == {sparse}


def test_the_ladder_begins_with_the_list_and_ends_with_a_sparse_gradient():
    names = [one.name for one in experiment.small_ladder(4, 20, CPU) if one.step() is not None]
    assert [names[0], names[2], names[-1]] == ["the list", "(id + 1) mod n", "a sparse gradient"]
    losses = [one.step().item() for one in experiment.kaggle_ladder(4, 20, CPU) if one.same]
    assert losses == pytest.approx([losses[0]] * 6, rel=1e-5)


# ---------------------------------------------------------------------------------------------------------- the record


def test_an_effect_below_the_spread_or_under_3_percent_is_none():
    assert Effect(5.0, 4.9, -0.1, 0.1, 0.3).none
    assert Effect(5.0, 4.9, 0.05, 0.1, 0.15).none
    assert not Effect(5.0, 4.0, 0.8, 1.0, 1.2).none
    assert not Effect(4.0, 5.0, -1.2, -1.0, -0.8).none
    assert Effect(5.0, 4.9, -0.1, 0.1, 0.3).saved == "0.10 (−0.10 to 0.30): none"
    assert str(Effect(5.0, 4.9, -0.1, 0.1, 0.3)) == "A step takes 4.90 ms instead of 5.00."


def test_an_effect_is_of_the_rounds():
    a, b = (recorded.times("hash", name, step="04") for name in ("index", "modulus"))
    effect = recorded.cut("compare → mod n")
    assert effect.low <= effect.middle <= effect.high
    assert (effect.before, effect.middle) == (np.median(a), np.quantile(a - b, 0.5))


def test_what_is_not_recorded_is_said(monkeypatch, capsys, tmp_path):
    def lost(*arguments, **labels):
        raise LookupError("no such row")

    monkeypatch.setattr(recorded.Record, "rows", lost)
    assert all(recorded.cut(name) is None for name in recorded.CUTS)
    recorded.ladder()
    assert "No record yet" in capsys.readouterr().out
    assert repr(Cuts().add("list → buffer")).splitlines()[1].split()[4:7] == ["no", "record", "yet"]


def test_a_recorded_ladder_is_printed(monkeypatch, capsys):
    rows = [
        {"size": "small", "variant": "as it was", "ms": [4.0, 4.2], "launches": 240.0, "kernel_us": 2000.0},
        {"size": "small", "variant": "one table", "ms": [3.0, 3.1], "launches": 120.0, "kernel_us": 900.0},
    ]
    monkeypatch.setattr(recorded.Record, "rows", lambda self, part: pd.DataFrame(rows))
    recorded.ladder()
    head, first, last = capsys.readouterr().out.splitlines()
    assert head.startswith("RECORDED on an NVIDIA H200, small")
    assert first.split() == ["the", "first", "program", "4.10", "240", "2.00"]
    assert last.split() == ["one", "table", "3.05", "120", "0.90", "saves", "1.05", "(1.01", "to", "1.09)"]


def test_the_table_grows_and_greys():
    cuts = Cuts()
    noisy = pd.DataFrame({"before": [5.0, 4.0, 5.0], "after": [4.0, 5.0, 5.0]})
    assert cuts.add("nothing", noisy) is cuts
    cuts.add("ordinary → pinned", pd.DataFrame({"before": [5.0, 5.1], "after": [4.0, 4.1]}))
    head, first, second = repr(cuts).splitlines()
    assert head.startswith("cut ")
    assert first.endswith(": none")
    assert "none" in second
    assert second.endswith("1.00 (1.00 to 1.00)")
    assert cuts._repr_html_().count(GREY) == 2 + 4
    assert len(repr(cuts.add("nothing")).splitlines()) == 3


def test_a_verdict_has_the_spread(capsys):
    recorded.judge("list → buffer", 1.0)
    output = capsys.readouterr().out
    assert output.startswith("list → buffer: predicted 1 ms saved, recorded ")
    assert "The spread of the saving is " in output


def test_what_costs_time_saves_nothing(capsys):
    recorded.judge("26 tables: dense → sparse", 1.0)
    assert capsys.readouterr().out.startswith(
        "26 tables: dense → sparse: predicted 1 ms saved, recorded: it costs 2.10 ms ("
    )


def test_pictures():
    assert len(pictures.queues(program.simulate, {"A": A, "B": B}).axes) == 4
    assert len(pictures.steps().axes[0].patches) == 5 * len(recorded.STEPS)
    assert len(pictures.steps(last=2).axes[0].patches) == 5 * 2


def test_what_the_traces_say():
    conversions = recorded.conversions()
    assert list(conversions["ids"]) == list(arithmetic.SMALL)
    assert (conversions["all"] >= conversions["walk"]).all()
    for _, step in recorded.steps():
        assert sum(ms for kind, ms in step.items() if kind != "step") == pytest.approx(step["step"])
        assert min(step.values()) >= 0
