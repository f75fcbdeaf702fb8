"""What notebook 01 counts, and what its puzzles hold an answer against."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lessons.n01_dlrm_from_scratch import arithmetic, puzzles, training
from model import PRESETS, DLRMConfig

CONFIG = DLRMConfig((13, 8, 4), 4, (6, 1), cardinalities=(5, 9, 2), sparse_gradients=False)


def test_bytes_and_flops_are_those_of_the_formulas():
    rows, features, width = 10, 3, 4
    found = arithmetic.blocks(CONFIG, rows)
    pairs = 6
    assert found["bottom MLP"].flops == 2 * rows * (13 * 8 + 8 * 4)
    assert found["interaction"].flops == 2 * rows * pairs * width
    assert found["look-ups"].flops == 0
    weights = {"bottom": 13 * 8 + 8 + 8 * 4 + 4, "top": 10 * 6 + 6 + 6 + 1}
    assert found["bottom MLP"].eager == 4 * (weights["bottom"] + rows * (13 + 3 * 8 + 8 + 3 * 4))
    assert found["top MLP"].eager == 4 * (weights["top"] + rows * (10 + 3 * 6 + 6 + 1))
    ids, vectors, met = 8 * rows * features, 4 * rows * features * width, 4 * rows * (width + pairs)
    assert found["look-ups"].eager == 4 * ids + ids + 4 * vectors  # (id + 1) % n; take a row; stack the rows
    t, products, indices = 4 * rows * 4 * width, 4 * rows * 16, 2 * 8 * pairs
    assert found["interaction"].eager == 2 * t + t + products + indices + 2 * 4 * rows * pairs + 2 * met
    fused = {name: cost.fused for name, cost in found.items()}
    assert fused == {
        "bottom MLP": 4 * (weights["bottom"] + rows * (13 + 4)),
        "look-ups": ids + 2 * vectors,
        "interaction": t + met,
        "top MLP": 4 * (weights["top"] + rows * (10 + 1)),
        "whole model": 4 * sum(weights.values()) + rows * 4 * (13 + 1) + ids + vectors,
    }
    assert found["whole model"].eager == sum(cost.eager for name, cost in found.items() if name != "whole model")


def test_what_cannot_be_counted_is_refused():
    with pytest.raises(ValueError, match="a table a feature"):
        arithmetic.blocks(PRESETS["small"].model, 10)


@pytest.mark.parametrize("puzzle", ["mlp", "look_up", "interaction"])
def test_a_puzzle_is_the_model_s_part(puzzle, capsys):
    """The reference calls the model, which an answer may not: it is turned down for that alone."""
    assert not puzzles.attempt(puzzle, getattr(puzzles, puzzle))
    assert "was called: this is what you are to write" in capsys.readouterr().out
    assert puzzle not in puzzles.SOLVED


def test_a_part_of_the_reader_s_is_trained():
    def interaction(dense, sparse):
        called.append(1)
        return puzzles.interaction(dense, sparse)

    called = []
    torch.manual_seed(0)
    ours, theirs = (training.ByHand(CONFIG, parts) for parts in ({}, {"interaction": interaction}))
    theirs.load_state_dict(ours.state_dict())
    batch = torch.rand(6, 13), torch.randint(1 << 32, (6, 3))
    torch.testing.assert_close(theirs(*batch), ours(*batch))
    assert called
    with_functions = training.ByHand(CONFIG, {"mlp": puzzles.mlp, "look_up": puzzles.look_up})
    with_functions.load_state_dict(ours.state_dict())
    torch.testing.assert_close(with_functions(*batch), ours(*batch))
    assert all(isinstance(weight, nn.Parameter) for weight in with_functions.parameters())


def test_the_loss_of_a_constant():
    assert training.entropy(0.5) == pytest.approx(0.6931, abs=1e-4)
    assert training.entropy(0.25622) == pytest.approx(0.5690, abs=1e-3)


def test_a_sparse_gradient_is_trained_with_adam():
    """F.embedding(sparse=True) is a right answer, and Adam takes no sparse gradient."""

    def look_up(tables, ids):
        rows = [(ids[:, f] + 1) % (len(table) - 1) for f, table in enumerate(tables)]
        return torch.stack([F.embedding(r, t, sparse=True) for r, t in zip(rows, tables, strict=True)], dim=1)

    assert puzzles.attempt("look_up", look_up)
    torch.manual_seed(0)
    ours, theirs = (training.ByHand(CONFIG, parts) for parts in ({}, {"look_up": puzzles.SOLVED.pop("look_up")}))
    theirs.load_state_dict(ours.state_dict())
    batch = torch.rand(6, 13), torch.randint(1 << 32, (6, 3))
    for model in (ours, theirs):
        model(*batch).sum().backward()
        torch.optim.Adam(model.parameters(), lr=0.1).step()
    torch.testing.assert_close(theirs.state_dict(), ours.state_dict())
