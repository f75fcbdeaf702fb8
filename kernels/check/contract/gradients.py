"""The op's gradients, against float64 eager's: every shape, every subset; and what autograd may not ask for."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Sequence

import pytest
import torch

from .. import FLOAT_DTYPES, Case, check_gradients
from .base import DEVICE, Contract, kernel_backend

SHAPES = [(0, 5), (5, 0), (1, 7), (3, 257), (70, 9), (600, 4), (7,), (2, 3, 8)]
CHUNKED = (1100, 64)  # a sum over these rows is cut into several chunks
LARGE_SHAPES = [(600, 1024), (4096, 512), (2049, 1023), (65536, 8)]  # on a GPU


class Gradients(Contract):
    def check_gradients(self, backend, call, needed=None, layout="contiguous"):
        grads = self.grads(call, layout)
        check_gradients(self.op, self.function(backend), call, needed or self.needed(call), grads)

    @kernel_backend
    @pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
    def test_gradients_of_every_shape(self, backend, dtype):
        cases = [Case(shape, dtype) for shape in (*SHAPES, *(LARGE_SHAPES if DEVICE.type == "cuda" else ()))]
        cases += [Case((17, 24), dtype, layout) for layout in ("transposed", "expanded", "misaligned")]
        if dtype is torch.float32:
            cases += self.edges(backend, backward=True)
        elif backend == "triton" and DEVICE.type == "cpu":
            cases = cases[1::2]  # interpreted they take long, and float32 has them all
        for case in cases:
            self.check_gradients(backend, self.call(case), layout=case.layout)

    @kernel_backend
    @pytest.mark.parametrize("dtype", FLOAT_DTYPES, ids=str)
    def test_gradients_of_every_option(self, backend, dtype):
        # Beyond every bend of the activations: where a derivative is a difference of large numbers it may not be NaN.
        # One argument alone is huge: a sum of two would cancel, to an error of float32's rounding of them.
        first = self.declaration.tensors[0]
        beyond = [Case((13, 40), dtype, values="large"), Case((13, 40), dtype, values="huge", only=first)]
        for call in (*self.calls(Case((33, 40), dtype)), *(call for case in beyond for call in self.variants(case))):
            self.check_gradients(backend, call)

    @kernel_backend
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
    def test_gradients_of_several_chunks(self, backend, dtype):
        self.check_gradients(backend, self.call(Case(CHUNKED, dtype)))

    def subsets(self, call) -> Iterable[Sequence[bool]]:
        """For each leaf whether its gradient is asked for: all subsets of those that have one."""
        return itertools.product(*((False, True) if needed else (False,) for needed in self.needed(call)))

    @kernel_backend
    def test_gradients_of_every_subset(self, backend):
        for call in self.kinds(Case((33, 40))):
            for needed in self.subsets(call):
                if any(needed):
                    self.check_gradients(backend, call, needed, layout="transposed")

    @kernel_backend
    def test_gradient_of_a_sum_is_expanded(self, backend):
        call = self.call(Case((33, 40)))
        grads = [torch.ones((), device=DEVICE, dtype=grad.dtype).expand(grad.shape) for grad in self.grads(call)]
        check_gradients(self.op, self.function(backend), call, self.needed(call), grads)

    def with_gradients(self, call):
        """The call, its tensors requiring gradients, and a function of these tensors."""
        flags = self.needed(call)
        leaves = [leaf.clone().requires_grad_(need) for leaf, need in zip(call.leaves(), flags, strict=True)]
        return leaves, lambda function, *leaves: function(*call.with_leaves(leaves).arguments())

    @kernel_backend
    def test_gradcheck(self, backend):
        for call in self.kinds(Case((3, 5), torch.float64)):
            leaves, run = self.with_gradients(call)
            # gradcheck's step is 1e-6, and a kink within it would not do: no |z| of these inputs is below 1e-3.
            # Where a call is interpreted it asks for products of the Jacobian with random vectors, and not for each of
            # its elements, by two calls each; every element of a gradient is check_gradients' above.
            interpreted = backend == "triton" and DEVICE.type == "cpu"
            function = functools.partial(run, self.function(backend))
            assert torch.autograd.gradcheck(function, leaves, fast_mode=interpreted)

    @kernel_backend
    def test_second_derivative_is_refused(self, backend):
        leaves, run = self.with_gradients(self.call())
        out = run(self.function(backend), *leaves)
        asked = next(leaf for leaf in leaves if leaf.requires_grad)
        (grad,) = torch.autograd.grad((out * out).sum(), asked, create_graph=True)
        with pytest.raises(RuntimeError, match=f"{self.op} has no second derivative"):
            grad.sum().backward()

    @kernel_backend
    @pytest.mark.parametrize("in_place", [False, True])
    def test_forward_mode_is_refused(self, backend, in_place):
        if in_place and not self.has_in_place:
            return
        call, function = self.call(), self.function(backend, in_place)
        leaves = call.leaves()
        floating = [i for i, leaf in enumerate(leaves) if leaf.is_floating_point()]

        def with_one(index, tensor):
            return call.with_leaves([*leaves[:index], tensor, *leaves[index + 1 :]]).arguments()

        for index in floating:
            with torch.no_grad(), torch.autograd.forward_ad.dual_level():
                dual = torch.autograd.forward_ad.make_dual(leaves[index], torch.ones_like(leaves[index]))
                with pytest.raises(RuntimeError, match=f"{self.op}_? has no forward-mode derivative"):
                    function(*with_one(index, dual))
                function(*call.arguments())  # of which none has a tangent
        if not in_place:
            x = leaves[floating[0]]
            with pytest.raises(RuntimeError, match=f"{self.op} has no forward-mode derivative"):
                torch.func.jvp(lambda x: function(*with_one(floating[0], x)), (x,), (x,))
