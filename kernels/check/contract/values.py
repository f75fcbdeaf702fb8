"""The op's values on every backend, and what it says to wrong input."""

from __future__ import annotations

import hypothesis
import pytest
import torch
from hypothesis import strategies as st

from .. import Case, check
from ..cases import LAYOUTS
from .base import DEVICE, Contract, every_backend, kernel_backend


class Values(Contract):
    @every_backend
    def test_adversarial_cases(self, backend):
        check(self.op, self.function(backend), cases=self.cases(backend))

    @kernel_backend
    @hypothesis.settings(
        max_examples=25, deadline=None, derandomize=True, database=None,
        suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
    )
    @hypothesis.given(
        shape=st.lists(st.integers(0, 40), min_size=1, max_size=3).map(tuple),
        dtype=st.sampled_from([torch.float32, torch.float64]),
        layout=st.sampled_from(LAYOUTS),
        values=st.sampled_from(["normal", "special"]),
    )
    def test_generated_cases(self, backend, shape, dtype, layout, values):
        case = Case(shape, dtype, layout, values, every_option=False)
        check(self.op, self.function(backend), cases=[case])

    def faster(self, call):
        """What backend="auto" is for the call on a GPU."""
        auto = self.declaration.auto
        return auto(*self.overload_arguments(call)) if callable(auto) else auto

    def test_auto_is_eager_on_a_cpu_and_the_faster_kernel_on_a_gpu(self):
        call = self.call()
        chosen = self.faster(call) if DEVICE.type == "cuda" else "eager"
        assert torch.equal(self.function("auto")(*call.arguments()), self.function(chosen)(*call.arguments()))

    # ------------------------------------------------------------------------------------------------ wrong input

    @every_backend
    def test_wrong_input(self, backend):
        call = self.call()
        for arguments, error, message in [*self.no_tensors(call), *self.other_tensors(call), *self.wrong_input(call)]:
            with pytest.raises(error, match=f"^{self.op}: {message}"):
                self.function(backend)(*arguments)

    def no_tensors(self, call) -> list[tuple]:
        """(arguments, error, message): each tensor in turn is none."""
        cases = []
        for i, name in enumerate(self.declaration.tensors):
            for wrong in (None, "2", call.tensors[i].cpu().numpy()):
                arguments = (*call.arguments()[:i], wrong, *call.arguments()[i + 1 :])
                cases.append((arguments, TypeError, f"{name} must be a tensor; got {type(wrong).__name__}"))
        return cases

    def other_tensors(self, call) -> list[tuple]:
        """(arguments, error, message): each tensor behind the first in turn has another dtype, device or shape."""
        cases = []
        first, *others = self.declaration.tensors
        for i, name in enumerate(others, 1):
            tensor = call.tensors[i]
            other = torch.float64 if tensor.is_floating_point() else torch.int8
            for wrong, error, message in (
                (tensor.to(other), TypeError, f"{name} must .*; got {str(other).removeprefix('torch.')}"),
                (tensor.to("meta"), ValueError, f"{name} must be on {first}'s device, (cpu|cuda:0); got meta"),
                (tensor[None], ValueError, f"{name} must have shape .*; got \\[1, "),
                (tensor[:-1], ValueError, f"{name} must have shape .*; got "),
            ):
                cases.append(((*call.arguments()[:i], wrong, *call.arguments()[i + 1 :]), error, message))
        return cases

    def wrong_input(self, call) -> list[tuple]:
        """(arguments, error, message) of the op's own."""
        return []

    def test_unknown_and_missing_backends(self):
        call = self.call()
        with pytest.raises(ValueError, match="backend must be one of auto, eager, triton, cuda; got 'cudnn'"):
            self.function("cudnn")(*call.arguments())
        for backend in {"triton", "cuda"} - {*self.declaration.backends}:
            with pytest.raises(RuntimeError, match=f'backend="{backend}" does not run here: {self.op} has no such'):
                self.function(backend)(*call.arguments())
        if DEVICE.type == "cpu" and "cuda" in self.declaration.backends:
            with pytest.raises(RuntimeError, match=r'backend="cuda" does not run here: .*CUDA'):
                self.function("cuda")(*call.arguments())
