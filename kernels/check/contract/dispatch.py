"""The op among torch's: opcheck, torch.compile, torch.export, autocast."""

from __future__ import annotations

import pytest
import torch

from .. import Case, gradients
from .base import DEVICE, Contract, every_backend, kernel_backend
from .exported import result_in_a_fresh_process

QUICK = ("test_schema", "test_autograd_registration", "test_faketensor")


class Dispatch(Contract):
    def opcheck(self, backend, suffix, arguments, quick=False):
        """torch.library.opcheck of an overload; its test_aot_dispatch_dynamic, some seconds, for one call and backend
        an op. What that one asks, test_compile_keeps_one_graph asks of every kind and backend, forward and backward.
        """
        everything = backend == self.declaration.backends[-1] and not quick
        overload = self.declaration.overload(backend, suffix)
        torch.library.opcheck(overload, arguments, **{} if everything else {"test_utils": QUICK})

    @kernel_backend
    def test_opcheck(self, backend):
        for index, call in enumerate(self.kinds()):
            differentiable, later = bool(self.declaration.gradients), index > 0
            # Where a gradient is needed, it is the same forward and more that is dispatched.
            self.opcheck(backend, "", self.overload_arguments(call), quick=differentiable or later)
            if differentiable:
                self.opcheck(backend, "backward", self.backward_arguments(call), quick=later)
                leaves = zip(call.leaves(), self.needed(call), strict=True)
                call = call.with_leaves(leaf.clone().requires_grad_(need) for leaf, need in leaves)
                self.opcheck(backend, "", self.overload_arguments(call), quick=later)

    @kernel_backend
    @pytest.mark.parametrize("dynamic", [False, True])
    def test_compile_keeps_one_graph(self, backend, dynamic):
        compiler = "inductor" if DEVICE.type == "cuda" else "aot_eager"
        for index in range(len(self.kinds())):
            torch._dynamo.reset()
            options = self.kinds()[index].options

            def step(*tensors, options=options):
                return 2 * self.function(backend)(*tensors, *options)

            compiled = torch.compile(step, fullgraph=True, dynamic=dynamic, backend=compiler)
            for case in (Case((6, 40)), Case((7, 40))):
                call = self.kinds(case)[index]
                needed, grads = self.needed(call), self.grads(call)
                call = type(call)("", call.tensors)
                assert torch.equal(compiled(*call.tensors), step(*call.tensors))
                if any(needed):
                    actual, want = (gradients(f, call, needed, grads) for f in (compiled, step))
                    for a, b, need in zip(actual, want, needed, strict=True):
                        assert not need or torch.equal(a, b)

    @kernel_backend
    def test_a_number_that_changes_compiles_at_most_twice(self, backend):
        """Learning rates, say: as plain numbers, as a training loop has them."""
        call, scalars = self.call(), self.declaration.scalars
        positions = [i for i, name in enumerate(self.spec.arguments) if name in scalars]
        compilations = []

        def count(graph, inputs):
            compilations.append(graph)
            return graph

        compiled = torch.compile(self.function(backend), fullgraph=True, backend=count)
        with torch.no_grad():
            for step in range(8 if positions else 0):
                arguments = [step / 16 - 1 if i in positions else value for i, value in enumerate(call.arguments())]
                assert torch.equal(compiled(*arguments), self.function(backend)(*arguments))
        assert len(compilations) <= 2

    @kernel_backend
    def test_an_exported_program_loads_in_a_fresh_process(self, backend, tmp_path):
        call, function = self.call(), self.function(backend)

        class Module(torch.nn.Module):
            def forward(self, *tensors):
                return function(*tensors, *call.options)

        program = torch.export.export(Module(), call.tensors)
        names = [str(node.target) for node in program.graph.nodes]
        assert any(f"{self.op}.{backend}" in name for name in names)
        result = result_in_a_fresh_process(program, call.tensors, tmp_path)
        assert torch.equal(result, function(*call.arguments()))

    @every_backend
    def test_autocast_casts_mixed_dtypes(self, backend):
        call = self.call()
        first = next(i for i, leaf in enumerate(call.leaves()) if leaf.is_floating_point())
        leaves = [(leaf.bfloat16() if i == first else leaf).requires_grad_(need)
                  for i, (leaf, need) in enumerate(zip(call.leaves(), self.needed(call), strict=True))]
        arguments = call.with_leaves(leaves).arguments()
        halves = call.with_leaves(leaf.bfloat16() if leaf.is_floating_point() else leaf for leaf in leaves).arguments()
        function = self.function(backend)
        with torch.autocast(DEVICE.type, torch.bfloat16):
            out = function(*arguments)
        same = function(*halves)
        assert out.dtype == torch.bfloat16
        assert torch.equal(out, same)
        if any(self.needed(call)):
            out.float().sum().backward()
            assert [leaf.grad.dtype for leaf in leaves if leaf.requires_grad] == [
                leaf.dtype for leaf in leaves if leaf.requires_grad
            ]
        with torch.autocast(DEVICE.type, torch.bfloat16), torch.no_grad():
            compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
            assert torch.equal(compiled(*arguments), same)
            assert function(*self.call().arguments()).dtype == torch.float32
