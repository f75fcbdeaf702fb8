"""Lesson 11: the texts that are built are the notebook's, what they are built into; what the checks of an op miss."""

import os
import re
import sys
from pathlib import Path

import pytest
import torch

from lessons.n11_make_it_an_op import cpp_texts, host_build, puzzles

nbformat = pytest.importorskip("nbformat")

NOTEBOOK = Path(__file__).resolve().parents[2] / "11_make_it_an_op.ipynb"
CELLS = [c.source for c in nbformat.read(NOTEBOOK, as_version=4).cells if c.cell_type == "code"]


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


def test_a_text_may_ask_whether_a_tensor_is_on_cuda():
    asks = "x.is_cuda(); x.device().type() == at::kCUDA; at::DeviceType::CUDA; CUDAGuard guard; my_is_cuda();"
    whole = host_build._whole([f"{asks} TORCH_LIBRARY(mine, m)"])
    says = "x.is_cpu(); x.device().type() == at::kCPU; at::DeviceType::CPU; CUDAGuard guard; my_is_cuda();"
    assert says in whole


@pytest.mark.slow
@pytest.mark.parametrize(
    ("right", "wrong", "why"),
    [
        ("at::Tensor& y, double multiplier", "at::Tensor& y, bool multiplier", "SIGABRT: Type mismatch in argument 4"),
        ("xs.const_data_ptr<float>()", "xs.const_data_ptr()", "compiler: invalid conversion from ‘const void"),
        ("at::empty(x.sizes(), x.options())", "at::empty_like(xs)", "Hint: .*#include <ATen/ops/empty_like.h>"),
        ("(n + 255) / 256, 256, 0, at::cuda::getCurrentCUDAStream()>>>", "n>>>", "a launch is <<<grid, block, …>>>"),
    ],
    ids=["a type that is not the schema's", "a pointer to nothing", "a function without its header", "a launch of one"],
)
def test_a_text_that_cannot_be_loaded_ends_nothing(right, wrong, why):
    text = puzzles.passed("cpp")
    assert right in text
    with pytest.raises(puzzles.Wrong, match=why):
        puzzles.on_host(text.replace(right, wrong))


def test_what_the_compiler_says_is_the_answer(monkeypatch):
    def fails(*arguments, **named):
        raise RuntimeError("building the extension failed:\ntext:7:5: error: ‘thread’ was not declared in this scope")

    monkeypatch.setattr(host_build, "load_library", fails)
    message = "compiler: ‘thread’ was not declared in this scope, in `#include <torch/library.h>`\nHint"
    with pytest.raises(puzzles.Wrong, match=message):
        puzzles.on_host(puzzles.passed("cpp") + "// another text")


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


def test_a_gradient_as_a_product_passes_the_checks_and_is_wrong():
    """As the notebook says, of a gradient of Inf or NaN, and of a result that is NaN."""
    op = torch.library.custom_op(
        "lecture_test::product", lambda x: torch.relu(x).clone(), mutates_args=(), schema="(Tensor x) -> Tensor"
    )
    op.register_fake(torch.empty_like)
    op.register_autograd(
        lambda ctx, grad: grad * (ctx.saved_tensors[0] > 0),
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(output),
    )
    assert torch.autograd.gradcheck(op, torch.randn(3, 4).double().requires_grad_())
    torch.library.opcheck(op, (torch.randn(3, 4, requires_grad=True),))
    x = torch.tensor([-1.0, -1.0, 2.0, torch.nan], requires_grad=True)
    grad = torch.tensor([torch.inf, torch.nan, 1.0, 1.0])
    got, wanted = (torch.autograd.grad(function(x), x, grad)[0] for function in (op, torch.relu))
    assert wanted.tolist() == [0, 0, 1, 1]
    assert got.isnan().tolist() == [True, True, False, False]
    assert got[2:].tolist() == [1, 0]


@pytest.mark.slow
def test_what_inductor_makes_looks_at_the_strides_of_an_ops_result():
    op = torch.library.custom_op(
        "lecture_test::rows", lambda x: x.relu().contiguous().clone(), mutates_args=(), schema="(Tensor x) -> Tensor"
    )
    op.register_fake(torch.empty_like)
    compiled = torch.compile(lambda x: op(x) * 2)
    assert torch.equal(compiled(torch.ones(4, 6)), torch.full((4, 6), 2.0))
    with pytest.raises(AssertionError, match="stride 6==1"):
        compiled(torch.ones(6, 4).T)


def test_a_gradient_of_register_autograd_is_python_in_each_call_but_for_inference_mode():
    op = torch.library.custom_op(
        "lecture_test::called", lambda x: torch.relu(x).clone(), mutates_args=(), schema="(Tensor x) -> Tensor"
    )
    op.register_autograd(lambda ctx, grad: grad, setup_context=lambda ctx, inputs, output: None)
    called = []

    def watch(frame, event, argument):
        if event == "call" and frame.f_code.co_filename.endswith("_library/autograd.py"):
            called.append(frame.f_code.co_name)

    for mode, runs in ((torch.no_grad, True), (torch.inference_mode, False)):
        called.clear()
        with mode():
            sys.setprofile(watch)
            try:
                torch.ops.lecture_test.called(torch.ones(3))
            finally:
                sys.setprofile(None)
        assert bool(called) == runs, called
