"""On a CPU the tables' rows of the next batch are found in a thread while a step runs: nothing else changes."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch

pytest.importorskip("loguru")
from train_runs import assert_same_end, mini, run, table

from data.dataset import write_dataset
from model import Hash
from model import train as training
from model.config import Kernels
from model.hashing import SortedHash


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("rows_ahead") / "data"
    write_dataset([lambda: table(700)], out)  # 600, 50 and 50 rows
    return out


@pytest.fixture
def threads(monkeypatch) -> set[bool]:
    """Whether the hashes were asked on the main thread, but for evaluation, which has no gradients."""
    answers = set()

    def watch(name):
        plain = getattr(SortedHash, name)

        def function(self, ids):
            if torch.is_grad_enabled():
                answers.add(threading.current_thread() is threading.main_thread())
            return plain(self, ids)

        monkeypatch.setattr(SortedHash, name, function)

    watch("forward")
    watch("of_column")
    return answers


@pytest.mark.parametrize("kernels", list(Kernels))
@pytest.mark.parametrize("hash", list(Hash))
def test_it_changes_no_bit(data, tmp_path, monkeypatch, hash, kernels):
    config = mini(hash, kernels)
    result = run(tmp_path / "ahead", data, config)
    monkeypatch.setattr(training, "BatchedTables", type(None))  # of which no tables are: the step finds the rows
    monkeypatch.setattr(training, "rows_ahead", None)
    expected = run(tmp_path / "within", data, config)
    assert_same_end(tmp_path / "ahead", result, tmp_path / "within", expected)


def test_the_step_has_no_part_of_it(data, tmp_path, threads):
    run(tmp_path, data, mini(Hash.SORTED))
    assert threads == {False}


def test_a_profile_shows_the_whole_step(data, tmp_path, threads):
    run(tmp_path / "run", data, mini(Hash.SORTED), profile=tmp_path / "profile")
    assert threads == {True}
