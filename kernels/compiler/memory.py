"""Weights that lie in one buffer, as `pack_mlp` lays them out: a graph without gradients reads them there.

    fused_mlp(x, [w1, …], [b1, …])   copies them into a buffer at each call       first.as_strided(…): copies nothing

The buffer is the parameters' own memory, so it has every change of them, whoever made it. What may change is where they
lie, and that is looked at in each call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import unset_fake_temporarily

from ..ops.fused_mlp import packing
from ..ops.fused_mlp.op import OP, rows_of
from .guarded import Guarded


def are_laid_out(parameters: Mapping[fx.Node, Tensor], weights: list[fx.Node], biases: list[fx.Node | None]) -> bool:
    """Whether these are parameters of the model's that lie in one buffer."""
    if any(node not in parameters for node in (*weights, *biases)):
        return False
    tensors = [[parameters[node] for node in nodes] for nodes in (weights, biases)]
    with unset_fake_temporarily(), torch.no_grad():
        return packing.buffer_behind(*tensors, Tensor.data_ptr) is not None


def fused_mlp_in_place(x: Tensor, first: Tensor, widths: str, *options: str, backend: str = "auto") -> Tensor:
    """`fused_mlp` without gradients, of parameters in one buffer, of which `first` is the first weight: [..., K] →
    [..., N]. options: its activation, final_activation and precision."""
    packed = first.detach().as_strided((packing.elements(widths),), (1,))
    out, _ = OP.call(backend, rows_of(x), packed, widths, *options, False)
    return out if x.dim() == 2 else out.view(*x.shape[:-1], out.shape[-1])


class InPlace(Guarded):
    """A compiled graph that holds while some of its inputs lie where they lay.

    positions: of these inputs. inputs: all.
    """

    def __init__(
        self, compiled: Callable, original: fx.GraphModule, backend: Callable, positions: Sequence[int],
        inputs: Sequence,
    ) -> None:
        super().__init__(compiled, original, backend)
        self._positions = tuple(positions)
        self._kept = [inputs[position].detach() for position in positions]  # so that no other tensor has its address
        self._addresses = [tensor.data_ptr() for tensor in self._kept]

    def holds(self, inputs: Sequence) -> bool:
        return [inputs[position].data_ptr() for position in self._positions] == self._addresses
