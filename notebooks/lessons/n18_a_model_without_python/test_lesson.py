"""Lesson 18: the puzzles' answers are what serving does; what cannot be built or started is said."""

from __future__ import annotations

import pandas as pd
import pytest
import torch

from lessons.n18_a_model_without_python import commands, puzzles
from lessons.shared.dlrm import DENSE, SPARSE, read
from model.serving.manifest import ExportError, Manifest, Tensors


def test_a_count_is_what_training_saw(tmp_path):
    counts = torch.tensor([[0.0, 1.0, -3.0, torch.nan, 3e9, torch.inf] * 3])[:, : len(DENSE)]
    table = pd.DataFrame(counts.numpy(), columns=DENSE)
    table[[*SPARSE]] = 1
    table["labels"] = 0
    table.to_parquet(tmp_path / "rows.parquet")
    _, dense, _ = read(tmp_path / "rows.parquet")
    torch.testing.assert_close(puzzles.as_trained(counts), dense)


@pytest.mark.parametrize("case", puzzles._SHAPES, ids=lambda case: case[0])
def test_a_shape_fits_where_the_manifest_says_so(case):
    _, declared, shapes, want, _ = case
    assert puzzles.is_declared(declared, shapes) == want
    if declared.keys() != shapes.keys():
        return  # a manifest's inputs have no names when they come
    inputs = tuple(Tensors(name, torch.int64, sizes) for name, sizes in declared.items())
    manifest = Manifest("", "", inputs, (), ())
    given = [torch.zeros(shapes[name], dtype=torch.int64) for name in declared]
    if want:
        manifest.check(given)
    else:
        with pytest.raises(ExportError):
            manifest.check(given)


def test_what_cannot_be_built_is_left_out(capsys, tmp_path, monkeypatch):
    (commands.ROOT / commands.FOLDER).mkdir(parents=True, exist_ok=True)
    assert not commands.build_runner("echo 'Could NOT find OpenSSL, try'; exit 1")
    assert capsys.readouterr().out == "Not built, for want of OpenSSL; its part below is left out.\n"
    monkeypatch.setattr(commands, "environment", lambda: {"PATH": str(tmp_path)})
    assert not commands.build_runner("true")
    assert "cmake is not here" in capsys.readouterr().out


def test_a_server_that_does_not_start():
    with pytest.raises(commands.CommandFailed, match="ls ended with status 2"):
        commands.started("ls nowhere")
