"""Lesson 11: the texts that are measured are the notebook's; its pictures; its ops; what a text is built into."""

import inspect
import os
import re
from pathlib import Path

import pytest
import torch

import kernels
from kernels import runtime
from lessons.n11_make_it_an_op import by_hand, cpp_texts, host_build, pictures, puzzles, recorded
from lessons.shared.records import NO_RECORD, Record

nbformat = pytest.importorskip("nbformat")
pytest.importorskip("matplotlib")

NOTEBOOK = Path(__file__).resolve().parents[2] / "11_make_it_an_op.ipynb"
CELLS = [c.source for c in nbformat.read(NOTEBOOK, as_version=4).cells if c.cell_type == "code"]


@pytest.mark.parametrize(
    "function",
    [by_hand.add_relu_kernel, by_hand.launch, by_hand.launch_add_relu, by_hand.fake, by_hand.setup_context,
     by_hand.backward, by_hand.by_define],
    ids=lambda function: getattr(function, "fn", function).__name__,
)
def test_what_is_measured_is_what_the_notebook_says(function):
    text = inspect.getsource(getattr(function, "fn", function)).rstrip()
    assert any(text in cell for cell in CELLS), text


@pytest.mark.parametrize(("cell", "name"), [("KERNEL", "KERNEL"), ("OP", "OP"), ("KERNEL_10", "OF_10")])
def test_the_cuda_texts_are_the_notebooks(cell, name):
    start = rf'^{cell} = (?:KERNEL \+ )?r"""(.*?)"""'
    (text,) = (match for source in CELLS for match in re.findall(start, source, re.S | re.M))
    assert text == getattr(cpp_texts, name)


def test_the_lectures_texts_are_among_those_that_are_built_together():
    texts = puzzles._known_texts()
    assert len(texts) >= 4
    assert puzzles.passed("cpp") == texts[1]
    assert "add_mul_relu" in texts[1]


def test_a_text_is_compiled_as_it_stands_but_for_cuda():
    text = cpp_texts.KERNEL + cpp_texts.OP
    whole = host_build._whole([text])
    assert "<<<" not in whole
    assert "lecture::launch(add_relu_kernel, dim3((n + 255) / 256), dim3(256), \n" in whole
    assert re.search(r"TORCH_LIBRARY_IMPL\(lecture_cpp_\w{12}, CPU, m\)", whole)
    assert not re.search(r"include <(ATen|c10)/cuda", whole)
    assert whole.count("TORCH_CHECK") == text.count("TORCH_CHECK")


def test_the_gradient_in_cpp_is_pytorchs():
    op = host_build.load(cpp_texts.with_gradient(), puzzles._known_texts()).add_relu.default
    torch.library.register_fake(op, by_hand.fake)
    x, bias = (torch.randn(shape, requires_grad=True) for shape in ((4, 6), (6,)))
    torch.library.opcheck(op, (x, bias))
    with torch.no_grad():
        x[0, :3] = torch.tensor([-9.0, torch.nan, 9.0])
    grad = torch.full((4, 6), torch.inf)
    ours, theirs = (torch.autograd.grad(way(x, bias), (x, bias), grad) for way in (op, by_hand.formula))
    torch.testing.assert_close(ours, theirs, equal_nan=True)


def test_what_the_compiler_says_is_the_answer(monkeypatch):
    def fails(*arguments, **named):
        raise RuntimeError("building the extension failed:\ntext:7:5: error: ‘thread’ was not declared in this scope")

    monkeypatch.setattr(host_build, "load_library", fails)
    message = "compiler: ‘thread’ was not declared in this scope, in `#include <torch/library.h>`\nHint"
    with pytest.raises(puzzles.Wrong, match=message):
        puzzles._built(puzzles.passed("cpp") + "// another text")


@pytest.mark.parametrize(
    ("check", "why"),
    [
        (lambda: None, ""),
        (lambda: os.kill(os.getpid(), 9), "the process ended with SIGKILL"),
        (lambda: puzzles._same("a", "", torch.zeros(2), torch.ones(2), "think"), r"case a: at \[0\] expected 1, got 0"),
        (lambda: [1][1], "IndexError"),
    ],
    ids=["right", "a crash", "wrong", "an error"],
)
def test_a_text_runs_in_a_process_that_may_end(check, why):
    if not why:
        puzzles._apart(check)
        return
    with pytest.raises(puzzles.Wrong, match=why):
        puzzles._apart(check)


def test_a_run_without_an_end_is_stopped(monkeypatch):
    monkeypatch.setattr(puzzles, "SECONDS", 0.2)
    with pytest.raises(puzzles.Wrong, match="does not end"):
        puzzles._apart(lambda: [None for _ in iter(int, 1)])


@pytest.mark.parametrize("declare", [by_hand.by_custom_op, by_hand.by_define])
def test_the_ops_pass_opcheck(declare):
    device = runtime.device()
    x, bias = (torch.randn(shape, device=device, requires_grad=True) for shape in ((3, 5), (5,)))
    op = declare(f"lecture::tested_{declare.__name__}", by_hand.formula)
    for operand in (x, x[0], x[None]):
        torch.library.opcheck(op, (operand, bias))
        torch.testing.assert_close(
            torch.autograd.grad(op(operand, bias).sum(), (x, bias)),
            torch.autograd.grad(by_hand.formula(operand, bias).sum(), (x, bias)),
        )
    assert torch.equal(op(x, bias), kernels.add_relu(x.detach(), bias.detach()))


def test_a_rung_without_a_record_says_so(monkeypatch, capsys):
    whole = recorded.times

    def times(part, name):
        if name == "C++":
            raise LookupError(name)
        return whole(part, name)

    monkeypatch.setattr(recorded, "times", times)
    monkeypatch.setattr(Record, "_others", lambda self: [])
    recorded.show_rungs()
    head, *lines = capsys.readouterr().out.splitlines()
    assert head == "recorded on an NVIDIA H200:"
    assert len(lines) == len(recorded.RUNGS)
    assert [NO_RECORD in line for line in lines] == [name == "C++" for name in recorded.RUNGS]
    recorded.show_rungs("gradient")
    assert "graph" not in capsys.readouterr().out
    pictures.draw_rungs(8.0).canvas.draw()
