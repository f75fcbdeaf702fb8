"""Lesson 19: the reader's kernel launched and counted, each mistake told from the others, what a compiler reports."""

from __future__ import annotations

import re

import pytest
import torch

from kernels import runtime
from kernels.device.source_launch import Source
from kernels.measure.records import load
from kernels.ops.dlrm.shape import MOST_SHARED_NUMBERS
from kernels.ops.dlrm.source import NAME, source_of
from lessons.n19_whole_model_in_one_kernel import mini_kernel, pictures, puzzles
from lessons.shared import answers
from lessons.shared.launcher import launcher, registers
from lessons.shared.records import LANES

matplotlib = pytest.importorskip("matplotlib")
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def kernel():
    return answers.solutions(mini_kernel.ROOM)["whole_model"].source.split('"""')[1]


@pytest.mark.parametrize(("name", "threads"), [("whole_model", 128), ("staged", 32)])
def test_the_kernel_is_launched_from_python_and_gives_what_eager_gives(name, threads):
    device = runtime.device()
    (call,) = puzzles._calls(puzzles.Case((100, 13)), device)
    dense, ids, tables, weights, biases = call.tensors
    out = torch.full((len(dense), 1), float("nan"), device=device)
    launch = launcher(mini_kernel.source(puzzles.solution(name), threads))
    launch(-(-len(dense) // threads), dense, ids, *tables, *map(len, tables), *weights, *biases, out, len(dense))
    torch.testing.assert_close(out, puzzles.mini(*call.tensors))


def test_what_the_kernel_touches_is_what_the_lesson_says(kernel):
    touched = puzzles.touched(kernel)
    assert touched["dense"] == (13, 13 * LANES, 52)
    assert touched["out"] == (1, 4, 4)
    for name, (accesses, sectors, _) in touched.items():
        if name.startswith(("weight", "bias")):
            assert accesses == sectors, name


def test_a_launch_of_the_readers_own_takes_the_lessons_place(kernel):
    whole = mini_kernel.whole(kernel)
    before, after = mini_kernel.AROUND.split(mini_kernel.HOLE)
    assert whole.endswith(after)
    assert mini_kernel.whole(kernel + after) == before + mini_kernel.LINE_OF["kernel"] + (kernel + after).strip() + "\n"
    bounds = "void __launch_bounds__(128) forward", "__launch_bounds__(128) void forward"
    for is_launched in (kernel, *(kernel.replace("void forward", text) for text in bounds)):
        assert "__device__ void forward(" in mini_kernel.source(is_launched).text


def test_each_mistake_is_told_from_the_others():
    """None of them gives what another, or the reference, gives for 128 rows."""
    (call,) = puzzles._calls(puzzles.Case((128, 13)), CPU)
    right = puzzles.mini(*call.tensors)
    assert puzzles.recognised(right, call.tensors) == ""
    hints = [hint for _, hint in puzzles.MISTAKES]
    assert len({*hints}) == len(hints)
    for function, hint in puzzles.MISTAKES:
        assert puzzles.recognised(function(*call.tensors), call.tensors) == hint


def of_shape(tables: int, width: int) -> Source:
    shape = mini_kernel.shape(tables, width)
    return Source(NAME, source_of(shape), 32 * shape.warps, shape.shared_bytes)


def test_the_budget_is_the_most_numbers_that_were_measured_faster_and_that_do_not_spill():
    us: dict = {}
    for row in load("lecture_19")["rows"]:
        if row["part"] == "budget":
            tables, width = map(int, re.findall(r"\d+", row["size"]))
            us.setdefault(mini_kernel.shape(tables, width), {})[row["name"]] = row["us_p50"]
    faster = [shape for shape, ours in us.items() if 2 * ours["a row a thread"] < ours["torch.compile, combo_kernels"]]
    spills = mini_kernel.shape(26, 16)
    assert spills in faster
    assert spills.why_not().count(";") == 2, "its numbers are not its only budget"
    assert max(shape.numbers for shape in faster if shape != spills) == MOST_SHARED_NUMBERS
    assert not any(shape.why_not() for shape in faster if shape != spills)
    for tables in (8, 16):
        if (found := registers(of_shape(tables, 16))) is None:
            pytest.skip("no compiler, or no cuobjdump")
        assert found[1] == 0
    pictures.draw_budget({16: found})
    matplotlib.pyplot.close("all")


def test_the_readers_kernel_holds_a_row_in_registers(kernel):
    if (found := registers(mini_kernel.source(kernel))) is None:
        pytest.skip("no compiler, or no cuobjdump")
    assert found[1] == 0


@pytest.mark.slow
def test_26_tables_of_width_16_spill():
    if (found := registers(of_shape(26, 16))) is None:
        pytest.skip("no compiler, or no cuobjdump")
    assert found[0] == 255
    assert found[1] > 0


def test_a_launch_of_the_readers_own_is_told_from_words_that_look_like_it(kernel):
    assert mini_kernel.has_launch(mini_kernel.whole(kernel))
    bounds = kernel.replace("void forward", "void __launch_bounds__(128) forward")
    for text in (kernel, bounds, "// void launch()\n" + kernel, "/* void launch() */" + kernel):
        assert not mini_kernel.has_launch(text)
