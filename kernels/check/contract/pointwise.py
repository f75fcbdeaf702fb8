"""What pointwise ops of one output promise beyond the rest: gradients that are not finite, and every size."""

from __future__ import annotations

import functools
import gc
import importlib
import math
from dataclasses import replace

import pytest
import torch

from ... import runtime
from .. import Call, Case, check, check_gradients, compare, expected, gradients
from .base import DEVICE, GPU, Contract, kernel_backend

INTERPRETED = pytest.mark.skipif(runtime.triton_mode() != "interpreted", reason="Triton is not interpreted here")


class Pointwise(Contract):
    @INTERPRETED
    def test_64_bit_offsets(self, monkeypatch):
        """The path of more than 2^31 elements, on few: the launcher takes it as an argument."""
        launcher = importlib.import_module(f"{runtime.PACKAGE}.ops.{self.op}.triton_launch")
        monkeypatch.setattr(launcher, "forward", functools.partial(launcher.forward, wide=True))
        cases = [Case((3, 1025)), Case((64, 512), torch.bfloat16), Case((1000, 4), torch.float64)]
        check(self.op, self.function("triton"), cases=[replace(case, every_option=False) for case in cases])

    @INTERPRETED
    @pytest.mark.parametrize("chunks", [2, 33, 70])  # chunks are added up 32 at a time
    def test_gradients_of_many_chunks(self, monkeypatch, chunks):
        launcher = importlib.import_module(f"{runtime.PACKAGE}.ops.{self.op}.triton_launch")
        monkeypatch.setattr(launcher, "backward", functools.partial(launcher.backward, chunks=chunks))
        call = self.call(Case((141, 40)))
        check_gradients(self.op, self.function("triton"), call, self.needed(call), self.grads(call))

    @kernel_backend
    def test_gradients_that_are_not_finite(self, backend):
        """What comes in stops where the derivative is 0 in eager, and passes where it is not: NaN and Inf too."""
        incoming = torch.tensor([math.inf, math.nan, 2.0, -math.inf], device=DEVICE).repeat(30).view(5, 24)
        for variant in self.variants():
            first, *others = variant.tensors
            first = torch.tensor([-1.0, 1.0, math.nan], device=DEVICE).repeat(40).view(5, 24)
            call = Call("", (first, *map(torch.zeros_like, others)), variant.options)
            needed = (True,) + (False,) * len(others)
            actual, want = (gradients(self.function(b), call, needed, incoming)[0] for b in (backend, "eager"))
            torch.testing.assert_close(actual, want, equal_nan=True, msg=lambda text, v=variant: f"{v.name}: {text}")

    @GPU
    @kernel_backend
    @pytest.mark.heavy
    @pytest.mark.parametrize("shape", [(2**21 + 3, 1025), (3, 2**30 + 8), (2**31 + 8,)], ids=str)
    def test_more_than_2_to_the_31_elements(self, backend, shape):
        elements, columns = math.prod(shape), shape[-1]
        assert elements > 2**31
        options = self.call().options
        small = self.call().tensors
        gc.collect()
        torch.cuda.empty_cache()  # the memory that other tests left is not free to the driver
        # In float16: the inputs, the output, the gradient that comes in, that of x, and what it should be.
        needed = 2 * elements * (len(small) + 4)
        if torch.cuda.mem_get_info()[0] < 1.2 * needed:
            pytest.skip(f"needs {1.2 * needed / 2**30:.0f} GiB of free GPU memory")
        generator = torch.Generator(DEVICE).manual_seed(0)
        draw = functools.partial(torch.randn, device=DEVICE, dtype=torch.float16, generator=generator)
        tensors = tuple(draw(shape if tensor.dim() > 1 else columns) for tensor in small)
        flags = (True,) + (False,) * (len(tensors) - 1)

        def pieces(*full):
            """The elements of the full tensors and of all arguments, a slice at a time: float64 of all does not fit."""
            for start in range(0, elements, 2**28):
                end = min(start + 2**28, elements)
                column = torch.arange(start, end, device=DEVICE) % columns
                arguments = (t.view(-1)[start:end] if t.numel() == elements else t[column] for t in tensors)
                yield *(t.view(-1)[start:end] for t in full), Call("", tuple(arguments), options)

        out = self.function(backend)(*tensors, *options)
        for piece, call in pieces(out):
            compare(piece, expected(self.op, call))
        grad = draw(shape)
        (grad_x, *_) = gradients(self.function(backend), Call("", tensors, options), flags, grad)
        for piece, incoming, call in pieces(grad_x, grad):
            # Against the same kernel on 2^28 elements at a time, which other tests hold against float64: eager in
            # float16 rounds in between, and where z is near 0 it takes the other side of a kink.
            compare(piece, gradients(self.function(backend), call, flags, incoming)[0])
        del grad, grad_x, piece, incoming, call
        if self.has_in_place:
            self.function(backend, in_place=True)(*tensors, *options)
            assert torch.equal(tensors[0], out)
