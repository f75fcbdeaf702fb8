"""Lesson 14: what an output hangs on, the kernel that the cells time, the library's designs, and the record's lines."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("matplotlib")

import kernels
from kernels import runtime
from kernels.ops.dlrm import cuda_launch
from kernels.ops.dlrm.cluster import Clusters
from kernels.ops.dlrm.pair import Pairs
from kernels.ops.dlrm.tile import Tiles
from lessons.n14_whole_mlp import designs, pictures, puzzles, recorded
from lessons.shared.records import Unsaved

H200 = 90, 232_448, 2048, 132  # sm_90, bytes of shared memory a block, rows, SMs


def test_an_output_hangs_on_one_row_and_all_of_it():
    for needed in pictures.dependency(row=3, column=2):
        assert needed[3].all()
        needed[3] = False
        assert not needed.any()


def test_what_is_timed_is_the_readers_kernel_or_else_the_lessons():
    puzzles.PUZZLES["mlp"].hold("mlp", puzzles.solution("mlp"), runtime.device())
    puzzles.JUDGE.solved["mlp"] = mine = object()
    assert puzzles.solution("mlp") is mine
    del puzzles.JUDGE.solved["mlp"]


@pytest.mark.parametrize(("name", "kind"), [("tiles", Tiles), ("clusters", Clusters), ("pairs", Pairs)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_design_that_is_asked_for_is_taken_and_fits(name, kind, dtype):
    _, tables, ids, _, bottom, _, top, _ = designs.arguments(*designs.draw((3, dtype)))
    shape = cuda_launch.shape_of(tables, ids.unbind(1), (), bottom, top)
    with designs.by(name):
        design = cuda_launch.design_of(shape, dtype, "tf32", *H200)
    assert type(design) is kind
    assert not design.why_not(H200[1])


def test_the_model_that_they_compute():
    arguments = designs.arguments(*designs.draw((5, torch.float32)))
    assert kernels.dlrm_forward(*arguments, backend="eager").shape == (5, 1)


def test_the_best_of_ours_stands_beside_the_best_peer(monkeypatch, capsys):
    label = {"part": "curve", "widths": "367-512-256-1", "dtype": "float32", "rows": 8, "match": "ok"}
    us = {"triton": 20.0, "cuda": 10.0, "eager": 40.0, "max-autotune": 15.0, "auto": 1.0}
    rows = [
        label | {"precision": precision, "implementation": name, **dict.fromkeys(("us_p20", "us_p50", "us_p80"), value)}
        for precision in ("tf32", "ieee")
        for name, value in us.items()
        if (precision, name) != ("ieee", "max-autotune")
    ]
    monkeypatch.setattr(recorded, "Record", lambda name: Unsaved(name, measured=rows))
    recorded.show_best()
    _, tf32, ieee = (line.split() for line in capsys.readouterr().out.splitlines())
    assert tf32 == ["top", "tf32", "8", "rows", "10.0", "cuda", "15.0", "max-autotune", "1.50", "×"]
    assert ieee == ["top", "float32", "8", "rows", "10.0", "cuda", "40.0", "eager", "4.00", "×"]
