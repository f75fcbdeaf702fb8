"""Lesson 15: what an output hangs on, the kernel that the cells time, and the records' lines."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

from kernels import runtime
from lessons.n15_whole_mlp import pictures, puzzles, recorded
from lessons.shared import answers
from lessons.shared.records import Unsaved


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


COMPILED = """
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


{kernel}


types = dict.fromkeys(mlp_kernel.arg_names[:10], "*bf16") | {{"M": "i32"}}
constants = {{"K": 16, "N1": 512, "N2": 256, "N3": 64, "N4": 16, "ROWS": 16, "CHUNK": {chunk}, "PRECISION": "tf32"}}
aligned = {{(i,): [["tt.divisibility", 16]] for i in range(10)}}
source = ASTSource(mlp_kernel, types | dict.fromkeys(constants, "constexpr"), constants, aligned)
print(triton.compile(source, target=GPUTarget("cuda", 90, 32), options={{"num_stages": {stages}}}).asm["ttgir"])
"""


@pytest.mark.parametrize(("chunk", "stages", "waiting"), [(32, 6, 5), (64, 3, 2), (32, 1, 0)])
def test_chunks_that_wait_in_shared_memory(tmp_path, chunk, stages, waiting):
    """In low tiles as many as iterations are asked for ahead."""
    kernel = answers.solutions(Path(puzzles.__file__).parent)["mlp"].source.partition("\n\n\n")[0]
    (tmp_path / "compiled.py").write_text(COMPILED.format(kernel=kernel, chunk=chunk, stages=stages))
    how = {"cwd": tmp_path, "env": os.environ | {"TRITON_INTERPRET": "0"}, "capture_output": True, "text": True}
    done = subprocess.run([sys.executable, "compiled.py"], **how, check=False)
    assert done.returncode == 0, done.stderr
    rings = re.findall(rf"local_alloc : \(\) -> !ttg\.memdesc<(\d)x{chunk}x256xbf16", done.stdout)
    assert rings == [str(waiting)] * (waiting > 0)


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


def test_the_best_tile_alone_stands_beside_the_best_that_is_shared(monkeypatch, capsys):
    us = {"8 rows a tile": 40.0, "16 rows a tile": 30.0, "yours": 10.0, "by outputs": 12.0}
    rows = [
        {"part": part, "size": 128, "name": name, "match": "ok", **dict.fromkeys(("us_p20", "us_p50", "us_p80"), value)}
        for part, *_ in recorded.SHARED
        for name, value in us.items()
    ]
    monkeypatch.setattr(recorded, "Record", lambda name: Unsaved(name, measured=rows))
    recorded.show_shared()
    _, *lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(recorded.SHARED)
    assert " ".join(lines[0].split()) == "tf32 128 rows a tile an SM 30.0 eight SMs a tile 10.0 3.00 ×"
