"""The judge: an answer that does not end is wrong in each path, nothing leaves attempt(), what is printed is true."""
# ruff: noqa: I001 kernels comes before Triton, whose interpreter it chooses where there is no GPU

from __future__ import annotations

import contextlib
import importlib
import sys
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from kernels import runtime
from kernels.check import Call, Case, Spec
from kernels.check.host import programs
from kernels.check.isolated import Ended, run_apart
from lessons.shared.puzzle import InPyTorch, InTriton, Judge, OfNumbers, Own, Quiet, limits, reader

import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

LESSONS = Path(__file__).resolve().parents[1]
SOON = 1.0  # seconds of an attempt here
TEXT = """__global__ void f(float* x, int n) { while (n) x[0] = 1; }
void launch(float* x, int n) { f<<<1, 1>>>(x, n); }"""


def calls(case: Case, device: torch.device):
    yield Call("5 numbers", (torch.arange(5.0),), hint="add one.")


SPEC = Spec(lambda x: x + 1, calls, cases=lambda names: [Case((5,))])


def launch(kernel, x):
    out = torch.empty_like(x)
    kernel[(1,)](TensorDescriptor.from_tensor(x, [8]), out, len(x), BLOCK=8)
    return out


JUDGE = Judge({
    "number": OfNumbers(lambda n: n + 1, [("three", (3,), "one more.")]),
    "whole": OfNumbers(lambda n: 2.5 * n, [("three", (3,), "more.")]),
    "tensor": InPyTorch(SPEC, rules=Quiet()),
    "kernel": InTriton(SPEC, launch, __name__),
    "own": Own(lambda answer: answer()),
})


def endless(*arguments):
    while True:
        pass


@triton.jit
def endless_kernel(x, out, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    while n > 0:
        tl.store(out + i, x.load([0]), i < n)


@triton.jit
def plus_one(x, out, n, BLOCK: tl.constexpr):
    tl.make_tensor_descriptor(out, [n], [1], [BLOCK]).store([0], x.load([0]) + 1)


def ends(*arguments):
    sys.exit()


def fails(*arguments):
    return [][1]


@pytest.mark.parametrize("name", ["number", "tensor", "own", "kernel"])
def test_an_endless_loop_is_a_wrong_answer(name, capsys):
    if name == "kernel" and runtime.triton_mode() != "interpreted":
        pytest.skip("compiled, the kernel runs in another process")
    answer = endless_kernel if name == "kernel" else endless
    begin = time.monotonic()
    assert not JUDGE.attempt(name, answer, seconds=SOON)
    assert time.monotonic() - begin < SOON + 60  # torch's compiler is imported in it
    output = capsys.readouterr().out
    assert f"not yet: {name}: it does not end: stopped after 1 s, in line " in output
    assert "Hint: Does each loop come to its end?" in output


def test_the_calls_seconds_count_or_the_puzzles_or_the_judges(capsys):
    judge = Judge({"own": Own(lambda answer: answer(), seconds=0.2), "plain": Own(lambda answer: answer())}, 0.3)
    for name, named, stopped in (("own", {}, 0.2), ("plain", {}, 0.3), ("own", {"seconds": 0.1}, 0.1)):
        assert not judge.attempt(name, endless, **named)
        assert f": stopped after {stopped} s" in capsys.readouterr().out


def test_an_endless_loop_in_another_process_and_in_cuda(monkeypatch):
    with pytest.raises(Ended, match="it does not end: stopped after 5 s"):
        run_apart(endless, "lessons.shared.test_judge:call", seconds=5)
    monkeypatch.setattr(programs, "SECONDS", 2)
    assert programs.run(programs.build(TEXT), [np.zeros(4, np.float32)], (4,)).status == "endless"


def call(function) -> None:
    """In the other process."""
    function()


@pytest.mark.parametrize("name", ["number", "tensor", "own"])
def test_nothing_leaves_an_attempt(name, capsys):
    assert not JUDGE.attempt(name, ends)
    assert not JUDGE.attempt(name, fails)
    assert not JUDGE.attempt(name, 3)
    output = capsys.readouterr().out
    assert "it ends the process, in line " in output
    assert "IndexError: list index out of range, in line " in output
    assert output.count("not yet: ") == 3


def test_what_is_printed_of_numbers(capsys):
    assert not JUDGE.attempt("number", lambda n: n)
    assert not JUDGE.attempt("whole", lambda n: 2 * n)
    assert JUDGE.attempt("number", lambda n: n + 1.0)
    output = capsys.readouterr().out.splitlines()
    assert output[0] == "not yet: number, case three: expected 4, got 3"
    assert output[2] == "not yet: whole, case three: expected 7.5, got 6 (tolerance 7.5e-06)"
    assert output[4] == "number: 1 cases passed on paper"


@pytest.mark.skipif(runtime.triton_mode() != "interpreted", reason="compiled, a kernel says so itself")
def test_a_right_kernel_is_compiled_too(capsys):
    assert JUDGE.attempt("kernel", plus_one)
    assert "kernel: 1 cases passed on cpu" in capsys.readouterr().out


def test_a_puzzle_has_a_name_of_its_own():
    rooms = sorted(LESSONS.glob("n[0-9]*/puzzles.py"))
    names = [name for room in rooms for name in importlib.import_module(f"lessons.{room.parent.name}.puzzles").PUZZLES]
    assert len(names) > 60
    assert [name for name, count in Counter(names).items() if count > 1] == []


LIBRARY = """
def work():
    inside.append(time.monotonic())
    while time.monotonic() < inside[0] + 0.05:
        pass
    inside.clear()
"""


def calls_without_end(function):
    while True:
        function()


def test_the_stop_leaves_no_library_in_its_middle():
    """Nearly all the time the library runs: it is waited for until the answer has its turn."""
    library = {"time": time, "inside": []}
    exec(compile(LIBRARY, torch.__file__, "exec"), library)
    for _ in range(10):
        with pytest.raises(limits.TooLong), limits.seconds(0.01, {__file__}):
            calls_without_end(library["work"])
        assert library["inside"] == []


def test_a_debugger_that_comes_later_finds_no_end():
    with pytest.raises(limits.TooLong), limits.seconds(0.01, {__file__}):
        endless()
    before = sys.gettrace()
    sys.settrace(lambda *_: None)
    sys.settrace(before)  # before each line of this function whoever traces it is asked


def sleeps(*arguments):
    time.sleep(3600)


def all_in_one_line(*arguments):
    while True: pass  # noqa: E701


def catches_all(*arguments):
    for _ in range(2):
        with contextlib.suppress(BaseException):
            endless()
    endless()


def tries_for_ever(*arguments):
    while True:
        try:
            time.sleep(0.001)
        except:  # noqa: E722
            continue


def is_right_when_cut_off(n):
    try:
        endless()
    except BaseException:
        return n + 1


class InTheEnd:
    def __del__(self):
        endless()


def where_nothing_is_raised(n):
    InTheEnd()
    return n + 1


def takes_the_trace_back(*arguments):
    while True:
        sys.settrace(None)


def recurses_again_and_again(*arguments):
    for _ in range(2):
        with contextlib.suppress(RecursionError):
            recurses_again_and_again()


def generates(*arguments):
    return sum(1 for _ in iter(int, 1))


ENDLESS = (
    sleeps, all_in_one_line, catches_all, tries_for_ever, is_right_when_cut_off, where_nothing_is_raised,
    takes_the_trace_back, recurses_again_and_again, generates,
)  # fmt: skip


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("answer", ENDLESS, ids=lambda answer: answer.__name__)
def test_each_endless_answer_is_stopped(answer, monkeypatch, capsys):
    monkeypatch.setattr(limits, "PATIENCE", 0.2)
    monkeypatch.setattr(limits, "AGAIN", 0.005)  # of its requests, few find room at the end of the stack
    assert not JUDGE.attempt("number", answer, seconds=0.1)
    assert "not yet: number: it does not end: stopped after 0.1 s, in line " in capsys.readouterr().out
    assert sys.gettrace() is None


@pytest.mark.parametrize("number", [None, -1])
def test_an_instruction_of_no_line_is_the_functions(number):
    """Where a loop of frames that unwind is stopped, Python knows no line."""
    frame = SimpleNamespace(f_code=endless.__code__, f_lineno=number, f_back=None)
    first = endless.__code__.co_firstlineno
    assert reader.line_that_runs(frame, {__file__}) == f", in line {first}: `def endless(*arguments):`"


def broken_by_the_stop():
    try:
        endless()
    except limits.TooLong:
        raise RuntimeError("broken in its middle") from None


def test_an_error_of_what_was_cut_off_is_no_other_mistake():
    with pytest.raises(limits.TooLong), limits.seconds(0.1, {__file__}):
        broken_by_the_stop()
