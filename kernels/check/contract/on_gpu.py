"""What can only be seen on a GPU: streams, graphs, several devices, and a few shapes for compute-sanitizer."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from .. import Case, check, check_gradients, gradients
from .base import GPU, Contract, kernel_backend


class OnGpu(Contract):
    @GPU
    @pytest.mark.sanitizer
    @kernel_backend
    def test_under_the_sanitizer(self, backend):
        """A few shapes, for compute-sanitizer: every path of the kernels, forward, in place and backward."""
        # Beyond 2^18 elements a kernel may take several of them a thread.
        first = [Case((257, 1025), every_option=False), Case((520, 8), torch.bfloat16, every_option=False)]
        misaligned = Case((17, 24), layout="misaligned")
        check(self.op, self.function(backend), cases=[*first, misaligned])
        if self.has_in_place:
            cases = [*first, replace(misaligned, every_option=False)]
            check(self.op + "_", self.function(backend, in_place=True), cases=cases)
        if self.declaration.gradients:
            for call in (call for case in first for call in self.kinds(case)):
                check_gradients(self.op, self.function(backend), call, self.needed(call), self.grads(call))

    @GPU
    @kernel_backend
    def test_capture_in_a_cuda_graph(self, backend):
        call = self.call(Case((300, 1023)))
        function = self.function(backend)
        with torch.no_grad():
            function(*call.arguments())
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                out = function(*call.arguments())
        first = call.leaves()[0]
        first.copy_(_others(first))
        out.fill_(math.nan)
        graph.replay()
        assert torch.equal(out, function(*call.arguments()))

    @GPU
    @kernel_backend
    def test_side_stream_with_a_delayed_producer(self, backend):
        """Launched on any other stream, the op would read what was there before the producer wrote."""
        call = self.call(Case((1000, 1024)))
        first, *others = call.leaves()
        fresh = _others(first)
        ready = call.with_leaves([fresh, *others])
        want = self.function(backend)(*ready.arguments())
        grads, needed = self.grads(call), self.needed(call)
        want_grads = gradients(self.function(backend), ready, needed, grads) if any(needed) else []
        stream = torch.cuda.Stream()
        torch.cuda.synchronize()
        found_grads = []
        with torch.cuda.stream(stream):
            torch.cuda._sleep(50_000_000)
            first.copy_(fresh)
            out = self.function(backend)(*call.arguments())
            if any(needed):
                found_grads = gradients(self.function(backend), call, needed, grads)
        stream.synchronize()
        assert torch.equal(out, want)
        assert all(a is b or torch.equal(a, b) for a, b in zip(found_grads, want_grads, strict=True))

    @GPU
    @kernel_backend
    @pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two CUDA devices")
    def test_a_device_that_is_not_current(self, backend):
        call = self.call(device="cuda:1")
        assert torch.equal(
            self.function(backend)(*call.arguments()).cpu(), self.function(backend)(*self.call().arguments()).cpu()
        )


def _others(tensor: torch.Tensor) -> torch.Tensor:
    """Other values in a tensor's place: random numbers, or its integers, which may be indices, from the last on."""
    return torch.randn_like(tensor) if tensor.is_floating_point() else tensor.flip(0)
