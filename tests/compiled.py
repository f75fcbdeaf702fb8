"""What the tests of kernels.compiler share: a model compiled and beside it eager, and small modules to compile.

torch._dynamo, which imports Triton, is not imported before kernels has chosen Triton's interpreter.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from unittest import mock

import torch
from torch import Tensor, nn

import kernels
from kernels.compiler import compiled, explanation, look_ups, replace
from kernels.compiler.memory import fused_mlp_in_place

NAMES = (
    "fused_mlp", "dot_interaction", "add_relu", "add_mul_activation", "embedding_bags_apart", "dlrm_forward",
    "outer_linear", "lookup_interact",
)  # fmt: skip
FUZZ = int(os.environ.get("FUZZ", "1"))  # how much more the slow tests try at random: FUZZ=4 takes ten minutes
OPS = {getattr(kernels, name): name for name in NAMES}
OPS |= {fused_mlp_in_place: "fused_mlp in place", look_ups.padded: "embedding_bags_apart"}


class Of(nn.Module):
    """A module that computes function(self, *inputs) and holds modules, parameters and buffers by their names."""

    def __init__(self, function: Callable, **held):
        super().__init__()
        self.function = function
        for name, value in held.items():
            if isinstance(value, nn.Module | nn.Parameter):
                setattr(self, name, value)
            else:
                self.register_buffer(name, value)

    def forward(self, *inputs):
        return self.function(self, *inputs)


def two_layers(function: Callable) -> Of:
    """A model of two linear layers of 8, `a` and `b`."""
    return Of(function, a=nn.Linear(8, 8), b=nn.Linear(8, 8))


@dataclass
class Recorded:
    """What the backend made of a model's graphs: our ops in each, in order, and the sentences of what it declined."""

    ops: list[str] = field(default_factory=list)
    declined: list[str] = field(default_factory=list)
    graphs: int = 0

    def expect_declined(self, op: str, *conditions: str) -> None:
        """Fail unless nothing was replaced, and a sentence about this op, or about all of them, names a condition:
        one of several, where Dynamo's graph is another one in another version of torch."""
        assert self.ops == []
        sentences = [sentence for sentence in self.declined if sentence.startswith((f"{op}: ", "every op: "))]
        assert any(condition in sentence for sentence in sentences for condition in conditions), self.declined


def recording(inner: str = "aot_eager") -> tuple[Callable, Recorded]:
    """The backend with another one than Inductor within, and what it records."""
    recorded, rewrite = Recorded(), replace.rewrite

    def inner_backend(gm, example_inputs):
        recorded.graphs += 1
        recorded.ops += [OPS[node.target] for node in gm.graph.nodes if node.target in OPS]
        return torch._dynamo.lookup_backend(inner)(gm, example_inputs)

    def recorded_rewrite(gm, values):
        done = rewrite(gm, values)
        recorded.declined += [explanation.sentence(declined) for declined in done.declined]
        return done

    def backend(gm, example_inputs):
        with mock.patch.object(replace, "rewrite", recorded_rewrite):
            return compiled(gm, example_inputs, inner_backend)

    return backend, recorded


def results_of(function: Callable, module: nn.Module, inputs: Sequence, gradients: bool) -> list[Tensor | None]:
    """What a function of the inputs returns, and the gradients of the inputs and of the module's parameters."""
    inputs = [
        value.detach().clone().requires_grad_(gradients and value.is_floating_point())
        if isinstance(value, Tensor) else value
        for value in inputs
    ]
    torch.manual_seed(1)
    with torch.set_grad_enabled(gradients):
        outputs = function(*inputs)
    outputs = list(outputs) if isinstance(outputs, tuple | list) else [outputs]
    if not gradients:
        return outputs
    sum(output.float().square().sum() for output in outputs).backward()
    leaves = [*inputs, *module.parameters()]
    grads = [leaf.grad for leaf in leaves if isinstance(leaf, Tensor) and leaf.requires_grad]
    return [*(output.detach() for output in outputs), *(None if g is None else g.to_dense() for g in grads)]


def check(
    module: nn.Module, inputs: Sequence, gradients: bool = True, inner: str = "aot_eager", dynamic: bool | None = None,
    **tolerance: float,
) -> Recorded:
    """Compile a copy of the module, and see that outputs and gradients are eager's. Returns what became of it.

    inner: what compiles the rewritten graph; "eager" is enough where the graph stays as it was. dynamic: as in
    torch.compile.
    """
    torch._dynamo.reset()
    backend, recorded = recording(inner)
    module, other = copy.deepcopy(module), copy.deepcopy(module)
    want = results_of(module, module, inputs, gradients)
    got = results_of(torch.compile(other, backend=backend, dynamic=dynamic), other, inputs, gradients)
    assert len(want) == len(got)
    for one, another in zip(got, want, strict=True):
        assert (one is None) == (another is None)
        if one is not None:
            torch.testing.assert_close(one, another, **tolerance)
    for one, another in zip(other.state_dict().values(), module.state_dict().values(), strict=True):
        torch.testing.assert_close(one, another)
    return recorded
