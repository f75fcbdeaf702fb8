"""Notebook 01: its program is one text with the modules', runs alone, and computes what the repository's model does."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pandas as pd
import pytest
import torch
from torch.nn import functional as F

from data import synthetic
from kernels.ops.dot_interaction import eager as dot
from kernels.ops.fused_mlp import eager as mlp
from lessons.n01_dlrm_from_scratch import counting, puzzles, recorded
from lessons.shared import answers, dlrm
from model import DLRM, PRESETS, DLRMConfig
from model.profiling.operators import Operators

ROOM = Path(__file__).resolve().parent
NOTEBOOK = ROOM.parents[1] / "01_dlrm_from_scratch.ipynb"
CONFIG = DLRMConfig((13, 8, 4), 4, (6, 1), cardinalities=(5, 9, 2), sparse_gradients=False)
ROWS = 10


def cells() -> list[str]:
    """The code cells, the puzzles answered, without the lines that ask the checker."""
    sources = []
    for cell in json.loads(NOTEBOOK.read_text())["cells"]:
        source, tags = "".join(cell["source"]), cell["metadata"].get("tags", [])
        if "puzzle" in tags:
            source = answers.solutions(ROOM)[cell["id"]].source
            source, tags = source[: source.index("\n\n\nsolved = ")], [*tags, "program"]
        if cell["cell_type"] == "code":
            sources.append((source, "program" in tags))
    return sources


def definitions(source: str) -> dict[str, str]:
    """The text of each function, class and constant of a module's top level, but imports."""
    lines = source.splitlines()
    texts = {}
    for node in ast.parse(source).body:
        name = getattr(node, "name", None) or (ast.unparse(node.targets[0]) if isinstance(node, ast.Assign) else "")
        start = min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", []))])
        texts[name] = "\n".join(lines[start - 1 : node.end_lineno])
    return texts


@pytest.mark.parametrize("module", [dlrm, counting])
def test_a_module_s_text_is_the_cells(module):
    ours = {
        name: text
        for name, text in definitions(Path(module.__file__).read_text()).items()
        if name and not text.startswith(("import", "from"))
    }
    theirs = {}
    for source, _ in cells():
        theirs |= definitions(source)
    assert len(ours) >= 4
    assert {name: theirs.get(name) for name in ours} == ours


def test_the_program_runs_in_an_empty_folder(tmp_path):
    """With the cells of the program, torch, pandas and two files of rows alone."""
    for split in ("train", "validation"):
        rows = pd.read_parquet(synthetic.sample() / split, columns=["labels", *dlrm.DENSE, *dlrm.SPARSE])
        (tmp_path / "sample").mkdir(exist_ok=True)
        rows.head(20_000).to_parquet(tmp_path / "sample" / split)
    program = "\n\n".join(source for source, belongs in cells() if belongs)
    text = f'from pathlib import Path\n\nsample = Path("sample")\n\n{program}\n'
    assert not any(name in text for name in ("kernels", "lessons", "puzzles", "verdict"))
    (tmp_path / "program.py").write_text(text)
    command = [sys.executable, "-S", "-c", _ALONE, *map(str, dict.fromkeys(p for p in sys.path if "-packages" in p))]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    assert [line.split()[0] for line in lines[-2:]] == ["SGD", "Adagrad"]
    aucs = [float(line.split()[-1]) for line in lines[-2:]]
    assert 0.5 < aucs[0] < aucs[1] < 0.8


# Only what is installed can be imported: no .pth file of an environment leads to the repository.
_ALONE = """
import runpy, sys
sys.path[:] = [path for path in sys.path if path and "-packages" not in path] + sys.argv[1:]
runpy.run_path("program.py")
"""


@pytest.fixture(scope="module")
def batch() -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(2, (ROWS,), generator=generator).float()
    ids = torch.randint(-1, 1 << 32, (ROWS, 3), generator=generator)
    return labels, torch.randn(ROWS, 13, generator=generator), ids


def pair() -> tuple[dlrm.DLRM, DLRM]:
    """The notebook's model and the repository's, with the same weights."""
    torch.manual_seed(0)
    mine, theirs = dlrm.DLRM(CONFIG.cardinalities, CONFIG.bottom, CONFIG.top), DLRM(CONFIG)
    theirs.load_state_dict(dict(zip(theirs.state_dict(), mine.state_dict().values(), strict=True)))
    return mine, theirs


def test_the_model_is_the_repository_s(batch):
    mine, theirs = pair()
    pairs = [(model, torch.optim.Adagrad(model.parameters(), lr=0.1)) for model in (mine, theirs)]
    for _ in range(3):
        losses = [dlrm.step(*one, *batch) for one in pairs]
        assert losses[0] == losses[1]


def test_weights_are_drawn_as_the_repository_draws_them():
    torch.manual_seed(0)
    mine = dlrm.DLRM([3000] * 3, (13, 400, 16), (300, 1))
    theirs = DLRM(replace(CONFIG, bottom=(13, 400, 16), embedding_dim=16, top=(300, 1), cardinalities=(3000,) * 3))
    for ours, other in zip(mine.parameters(), theirs.parameters(), strict=True):
        if ours.numel() > 300:
            torch.testing.assert_close(ours.std(), other.std(), rtol=0.1, atol=0)
            assert abs(ours.mean()) < 0.2 * ours.std()


def test_what_is_counted_is_what_the_operators_of_the_repository_s_model_move(batch):
    mine, theirs = pair()
    with torch.no_grad():
        with counting.Count() as count:
            mine(*batch[1:])
        with Operators(least=True) as operators:
            theirs(*batch[1:])
    assert sorted(count.calls) == sorted((one.name, one.read + one.written) for one in operators.seen)


def test_what_is_needed_is_the_ops_own_count():
    rows, bottom, tables, top = 2048, (13, 32, 16), 26, (367, 32, 1)
    flops, moved = counting.needed(rows, bottom, tables, top)
    assert flops == sum(mlp.forward_flops(rows, w) for w in (bottom, top)) + dot.forward_flops(rows, tables, 16)
    weights = sum(mlp.parameters(widths) for widths in (bottom, top))
    assert moved == 4 * (weights + rows * (13 + 26 * 16 + 1)) + 8 * rows * 26


@pytest.mark.parametrize(("name", "shape"), [("small", recorded.SMALL), ("main", recorded.MAIN)])
def test_the_shapes_are_the_presets(name, shape):
    chosen = PRESETS[name].model
    assert shape == (chosen.bottom, 26, (dot.width(26, chosen.embedding_dim), *chosen.top))


def test_the_sample_gives_the_parameters_that_the_notebook_names():
    ids = dlrm.read(synthetic.sample() / "train")[2]
    model = dlrm.DLRM([column[column >= 0].unique().numel() for column in ids.T])
    assert sum(parameter.numel() for parameter in model.parameters()) == 228_049


def test_batches_give_each_row_once_and_a_seed_gives_one_order():
    data = torch.arange(10.0), torch.arange(20).view(10, 2), torch.arange(10)
    for seed in (None, 1):
        tensors = [torch.cat(parts) for parts in zip(*dlrm.batches(data, 4, seed), strict=True)]
        assert torch.equal(tensors[0].sort().values, data[0])
        assert torch.equal(tensors[1][:, 0] // 2, tensors[2])
    orders = [next(dlrm.batches(data, 10, seed))[2].tolist() for seed in (None, 1, 1, 2)]
    assert orders[0] == list(range(10))
    assert orders[1] == orders[2] != orders[3]


def test_auc_counts_pairs():
    labels = torch.tensor([0.0, 1, 0, 1, 1])
    scores = torch.tensor([0.1, 0.4, 0.4, 0.9, 0.05])
    assert dlrm.auc(labels, scores) == pytest.approx((1 + 0.5 + 2 + 0 + 0) / 6)
    assert dlrm.auc(labels, torch.ones(5)) == 0.5
    with pytest.raises(AssertionError, match="diverged"):
        dlrm.auc(labels, torch.tensor([0.1, torch.nan, 0, 0, 0]))


@pytest.mark.parametrize("puzzle", ["look_up", "interact", "step"])
def test_a_puzzle_is_the_reader_s_to_write(puzzle, capsys):
    """The lecture's own function is turned down, and the program goes on with it all the same."""
    assert not puzzles.attempt(puzzle, puzzles.OURS[puzzle])
    assert f"dlrm.{puzzle} was called: this is what you are to write" in capsys.readouterr().out
    assert puzzles.passed(puzzle) is getattr(dlrm, puzzle)


def test_a_sparse_gradient_is_trained_by_the_notebook_s_optimizers(monkeypatch, batch):
    """F.embedding(sparse=True) is a right answer."""

    def look_up(tables, sizes, ids):
        rows = [(ids[:, f] + 1) % n for f, n in enumerate(sizes)]
        return torch.stack([F.embedding(r, t.weight, sparse=True) for r, t in zip(rows, tables, strict=True)], dim=1)

    assert puzzles.attempt("look_up", look_up)
    assert puzzles.passed("look_up") is puzzles.SOLVED.pop("look_up") is look_up
    for optimizer in (torch.optim.SGD, torch.optim.Adagrad):
        losses = []
        for function in (dlrm.look_up, look_up):
            monkeypatch.setattr(dlrm, "look_up", function)
            model = pair()[0]
            data = tuple(part.repeat(4, *[1] * (part.dim() - 1)) for part in batch)
            losses.append(dlrm.train(model, optimizer(model.parameters(), lr=0.1), data, steps=3, rows=ROWS))
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)
        monkeypatch.undo()
    assert len(list(islice(dlrm.batches(batch, 4), 9))) == 3
