"""Lesson 09: its sums, its pictures and tables, its arithmetic."""

import numpy as np
import pytest
import torch

pytest.importorskip("matplotlib")

from kernels import runtime
from lessons.n09_a_backward import arithmetic, on_your_machine, pictures, puzzles, recorded, sum_launch
from lessons.n09_a_backward.sum_launch import launch

interpreted = pytest.mark.skipif(runtime.triton_mode() != "interpreted", reason="Triton is not interpreted here")


@interpreted
@pytest.mark.parametrize("step", sum_launch.STEPS)
@pytest.mark.parametrize(("shape", "chunks"), [((37, 40), 3), ((5, 33), 5)])
def test_each_step_sums(step, shape, chunks):
    x = torch.randint(-3, 4, shape).float()
    assert torch.equal(launch(step, x, chunks, rows=4), x.sum(0))


def test_pictures_and_tables(capsys):
    for draw in (
        pictures.draw_kept, pictures.draw_tile, pictures.draw_two_stage, pictures.draw_steps, pictures.draw_errors,
        pictures.draw_backward, pictures.draw_op,
    ):
        draw().canvas.draw()
    recorded.print_steps({"sum_rows": 7})
    recorded.print_backward({"relu": "me"})
    out = capsys.readouterr().out
    assert "you said 7" in out
    assert len(out.splitlines()) == len(sum_launch.STEPS) + 7


def test_what_the_ops_own_count_says():
    for activation in arithmetic.KEPT:
        for name, size in (("float32", 4), ("bfloat16", 2)):
            moved = arithmetic.NUMBERS * arithmetic.backward_bytes("triton", activation, size)
            assert recorded.backward("triton", activation, name)["bytes"] == pytest.approx(moved, rel=1e-4)


@pytest.mark.parametrize(("rows", "programs"), [(2**10, 1), (2**24, 4), (2**25, 1), (2**25, 2)])
def test_ones_stop_where_float32_says(rows, programs):
    sums = np.cumsum(np.ones(rows // programs, np.float32), dtype=np.float32)[-1]
    assert np.float32(programs) * sums == arithmetic.ones(rows, programs)


def test_chunks_are_more_exact():
    x = arithmetic.draw(rows=8192)
    exact = x.sum(0, dtype=np.float64)
    errors = [np.median(np.abs(sums - exact)) for sums in (arithmetic.one_after_another(x), arithmetic.in_chunks(x))]
    assert errors[1] < errors[0] / 2


@pytest.mark.slow
def test_the_compiler_keeps_what_the_lesson_says():
    forward, backward = (on_your_machine.lines_of(module) for module in on_your_machine.modules("relu"))
    assert forward[0].endswith("out_ptr1 i1")
    assert "in_ptr0 i1" in backward[0]
    assert sum(not line.startswith(" ") for line in backward) == 3


def test_what_is_no_answer(capsys):
    for name in ("kept_traffic", "ones"):
        assert not puzzles.attempt(name, lambda *numbers: 0)
    assert not puzzles.attempt("bias_gradient", lambda *tensors: None)
    assert capsys.readouterr().out.count("not yet") == 3
