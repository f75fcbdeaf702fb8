"""Lesson 22: the puzzles' answers are what serving does; ways to answer that fail are told."""

from __future__ import annotations

import pandas as pd
import pytest
import torch

from lessons.n22_a_model_without_python import pictures, puzzles, ways
from lessons.shared.dlrm import DENSE, SPARSE, read
from lessons.shared.measure import Times
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
    manifest = Manifest("", "", "", inputs, (), ())
    tensors = [torch.zeros(shapes[name], dtype=torch.int64) for name in declared]
    if want:
        manifest.check(tensors)
    else:
        with pytest.raises(ExportError):
            manifest.check(tensors)


PRINTED = """printf '0.25\n0.5\nbatch     2, 1 threads: p50 0.0400 ms, p99 0.1 ms, 9 calls and 18 rows a second; \
p20 0.0390 ms, p80 0.0410 ms\n'"""


@pytest.mark.parametrize("says", [PRINTED, "echo a CUDA graph failed >&2;" + PRINTED, "exit 2", "echo nothing"])
def test_the_program_says_what_its_calls_took(tmp_path, says):
    program = tmp_path / "run_exported"
    program.write_text(f"#!/bin/bash\n{says}\n")
    program.chmod(0o755)
    call = ways.InCpp(tmp_path / "served")
    call._command[0] = str(program)
    if says != PRINTED:
        with pytest.raises(RuntimeError):
            call(torch.zeros(2, 13))
        return
    assert call(torch.zeros(2, 13)).tolist() == [0.25, 0.5]
    assert call.us() == pytest.approx((39.0, 40.0, 41.0))


def test_kernels_that_cannot_be_counted():
    assert ways.kernels_of(lambda: 1 / 0, []) == "FAILED: ZeroDivisionError: division by zero"


def test_the_picture_has_a_bar_for_each_time(monkeypatch):
    us = {"us_p20": 1.0, "us_p50": 2.0, "us_p80": 3.0}
    names = ("eager", "eager in a graph", "package")
    rows = [{"name": name, "size": size, "match": "ok"} | us for name in names for size in (1, 2048)]
    rows.append({"name": "fails", "size": 1, "match": "FAILED: no"})
    figure = pictures.waits(Times(rows, "", "rows"), [1, 2048])
    assert [len(ax.patches) for ax in figure.axes] == [3, 3]
    drawn = []
    monkeypatch.setattr(pictures, "waits", lambda *given: drawn.append(given))
    for known in (rows, rows[-1:], ()):
        pictures.draw_waits(Times(known, "", "rows"), [1, 2048])
    assert len(drawn) == 1
