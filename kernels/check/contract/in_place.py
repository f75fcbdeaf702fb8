"""The in-place form: its values, what it refuses, and what it tells autograd."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from .. import check
from .base import DEVICE, Contract, every_backend, kernel_backend


class InPlace(Contract):
    """For an op with an in-place form, <op>_, which writes its first argument."""

    @every_backend
    def test_adversarial_cases_in_place(self, backend):
        # The values are computed as in the functional form: one of the options is enough.
        cases = [replace(case, every_option=False) for case in self.cases(backend)]
        check(self.op + "_", self.function(backend, in_place=True), cases=cases)

    @every_backend
    def test_in_place_refuses_gradients_and_names_the_functional_form(self, backend):
        function = self.function(backend, in_place=True)
        for index in range(len(self.call().tensors)):
            call = self.call()
            call.tensors[index].requires_grad_()
            with pytest.raises(RuntimeError, match=f"{self.op}_ has no gradient: call {self.op},"):
                function(*call.arguments())
            with torch.no_grad():
                function(*call.arguments())
            with torch.inference_mode():
                function(*call.arguments())

    @every_backend
    @pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
    def test_in_place_is_seen_by_autograd(self, backend, mode):
        call = self.call()
        weight = torch.ones_like(call.tensors[0], requires_grad=True)
        product = weight * call.tensors[0]  # saves the argument that is then written
        with mode():
            self.function(backend, in_place=True)(*call.arguments())
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            product.sum().backward()

    @every_backend
    def test_in_place_of_what_overlaps(self, backend):
        """What is read counts as it was before the call; what is expanded is refused."""
        call, function = self.call(), self.function(backend, in_place=True)
        written, *others = self.declaration.tensors
        expanded = call.tensors[0][:1].expand(call.tensors[0].shape)
        with pytest.raises(ValueError, match=f"{written} must not be expanded"):
            function(expanded, *call.arguments()[1:])
        for index in range(1, len(others) + 1):
            # Both lie in one piece of memory, the argument a row behind the start of what is written.
            x, other = call.tensors[0], call.tensors[index]
            memory = torch.randn(2 * x.numel(), device=DEVICE, dtype=x.dtype)
            start = x.shape[-1]
            x, overlapping = memory[: x.numel()].view(x.shape), memory[start : start + other.numel()].view(other.shape)
            arguments = x, *call.arguments()[1:index], overlapping, *call.arguments()[index + 1 :]
            want = self.function(backend)(*arguments)
            assert function(*arguments) is x
            assert torch.equal(x, want)

    @every_backend
    def test_wrong_input_in_place_leaves_everything_as_it_is(self, backend):
        call = self.call()
        before = call.tensors[0].clone()
        for arguments, error, message in [*self.no_tensors(call), *self.other_tensors(call), *self.wrong_input(call)]:
            with pytest.raises(error, match=f"^{self.op}_: {message}"):
                self.function(backend, in_place=True)(*arguments)
        assert torch.equal(call.tensors[0], before)

    @every_backend
    def test_autocast_in_place_casts_all_but_what_is_written(self, backend):
        call = self.call()
        x, *others = call.tensors
        x = x.bfloat16()
        same = self.function(backend)(x, *(t.bfloat16() for t in others), *call.options)
        with torch.autocast(DEVICE.type, torch.bfloat16):
            assert self.function(backend, in_place=True)(x, *others, *call.options) is x
        assert torch.equal(x, same)

    @kernel_backend
    def test_opcheck_in_place(self, backend):
        torch.library.opcheck(self.declaration.overload(backend, "_"), self.overload_arguments(self.call()))

    @kernel_backend
    def test_compile_in_place(self, backend):
        call = self.call()

        def step(*tensors):
            return self.function(backend, in_place=True)(2 * tensors[0], *tensors[1:], *call.options)

        compiler = "inductor" if DEVICE.type == "cuda" else "aot_eager"
        compiled = torch.compile(step, fullgraph=True, backend=compiler)
        assert torch.equal(compiled(*call.tensors), step(*call.tensors))
