"""Puzzles whose answer is a Triton kernel, or a function that launches the reader's kernels."""

from __future__ import annotations

import importlib
import io
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass

import torch

from kernels import check, runtime
from kernels.check.isolated import run_apart
from kernels.check.spec import Spec
from lessons.shared.puzzle import compiler_rules, reader
from lessons.shared.puzzle.kernels_only import kernels_only

SECONDS = 45  # of the process that a GPU's kernel runs in


@dataclass(frozen=True)
class InTriton:
    """spec: what must come out. launch: launch(kernel, *the call's arguments) → the outputs, if it returns them.

    lesson: the module that has this puzzle, by name, in PUZZLES: on a GPU another process looks it up there, which a
        wrong kernel may end.
    allowed: the lecture's kernels that the reader's may call; where the answer is a function, its functions.
    operators: torch's operators that an answer may call that is a function and launches kernels itself; None: a kernel.
    """

    spec: Spec
    launch: Callable | None
    lesson: str
    allowed: Sequence[Callable] = ()
    operators: Sequence[str] | None = None

    def judge(self, name: str, answer: object) -> str:
        if self.operators is None:
            _must_be_a_kernel(answer)
            reader.written_by_hand(answer, self.allowed)
        elif not callable(answer):
            raise AssertionError(f"give the function itself; got {type(answer).__name__}")
        device = runtime.device()
        if device.type == "cuda":
            return run_apart(answer, f"{__name__}:hold_apart", self.lesson, name, device.type, seconds=SECONDS).strip()
        with compiler_rules.launches() as seen:
            text = self.hold(name, answer, device)
        if self.operators is None:
            compiler_rules.must_compile(name, answer, seen)
        return text

    def hold(self, name: str, answer: Callable, device: torch.device) -> str:
        """The answer against the reference, in this process; what to print if it is right."""
        if self.operators is None:
            return checked(name, lambda *arguments: self.launch(answer, *arguments), self.spec, device)
        function = reader.alone(answer, self.allowed)

        def run(*arguments):
            with kernels_only(self.operators):
                return function(*arguments)

        return checked(name, run, self.spec, device)


def hold_apart(answer: Callable, lesson: str, name: str, device: str) -> None:
    """In the other process. A descriptor that a kernel makes lies in memory that Triton asks an allocator for."""
    import triton

    triton.set_allocator(lambda size, alignment, stream: torch.empty(size, dtype=torch.int8, device=device))
    print(importlib.import_module(lesson).PUZZLES[name].hold(name, answer, torch.device(device)))


def checked(name: str, function: Callable, spec: Spec, device: torch.device | str) -> str:
    """check(), and what it prints."""
    printed = io.StringIO()
    with redirect_stdout(printed), check.maximum_as_compiled(), compiler_rules.wide_counters():
        check.check(name, function, spec=spec, device=device)
    return printed.getvalue().strip()


def _must_be_a_kernel(answer: object) -> None:
    """AssertionError for what only looks like one: an object may compute as it likes behind a launch."""
    from triton.runtime.autotuner import Autotuner, Heuristics
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITFunction

    while type(answer) in (Autotuner, Heuristics):
        answer = answer.fn
    if type(answer) not in (JITFunction, InterpretedFunction):
        raise AssertionError("give the kernel itself, a @triton.jit function: it is launched for you")
