"""Ways to compute LoRA: its epilogue by a backend, the whole layer as one product, and many adapters at once."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kernels import add_mul_activation
from kernels.ops.add_mul_activation.eager import FUNCTIONS
from model.lora import LinearWithLoRA
from model.profiling.traced_steps import TracedStep

GROUPED = "sorted, groups"


def epilogue(x: Tensor, bias: Tensor, y: Tensor, multiplier: float, backend: str) -> Tensor:
    return add_mul_activation(x, bias, y, multiplier, "relu", backend=backend)


class OneProduct(nn.Module):
    """act([x, multiplier · x A] · [W, Bᵀ]ᵀ + bias): both products add up in one accumulator, which is rounded once.

    For inference: [W, Bᵀ] is a copy that is made once. [x, multiplier · x A] is a copy of x, made at each call.
    """

    def __init__(self, layer: LinearWithLoRA):
        super().__init__()
        self.A, self.multiplier = layer.lora.A.detach(), layer.lora.multiplier
        self.bias, self.activate = layer.linear.bias, FUNCTIONS[layer.activation]
        self.weight = torch.cat([layer.linear.weight, layer.lora.B.T], dim=1).detach()

    def forward(self, x: Tensor) -> Tensor:
        thin = self.multiplier * (x @ self.A)
        return self.activate(F.linear(torch.cat([x, thin], dim=-1), self.weight, self.bias))


# ------------------------------------------------------------------------------------------------------------------
# x [rows, K], A [n, K, r], B [n, r, N], adapter [rows] → [rows, N]


def gathered(x: Tensor, A: Tensor, B: Tensor, adapter: Tensor) -> Tensor:
    """A[adapter] is [rows, K, r]: an A for each row."""
    return torch.bmm(torch.bmm(x[:, None], A[adapter]), B[adapter])[:, 0]


def masked(x: Tensor, A: Tensor, B: Tensor, adapter: Tensor) -> Tensor:
    """x meets all adapters' A, and of the result each row keeps its own r numbers."""
    count, depth, rank = A.shape
    thin = (x @ A.transpose(0, 1).reshape(depth, count * rank)).view(-1, count, rank)
    own = adapter[:, None] == torch.arange(count, device=x.device)
    return (thin * own[:, :, None]).view(-1, count * rank) @ B.reshape(count * rank, -1)


def one_by_one(x: Tensor, A: Tensor, B: Tensor, adapter: Tensor) -> Tensor:
    """Two products for each adapter, of all rows: n times the work."""
    out = x.new_zeros(len(x), B.shape[2])
    for number in range(len(A)):
        out += ((x @ A[number]) * (adapter == number)[:, None]) @ B[number]
    return out


def grouped(x: Tensor, A: Tensor, B: Tensor, adapter: Tensor) -> Tensor:
    """Rows in the order of their adapters; then PyTorch's product of groups, which reads on the device where each
    ends."""
    chosen, order = adapter.sort(stable=True)
    ends = torch.searchsorted(chosen, torch.arange(len(A), device=x.device), right=True).int()
    product = getattr(F, "grouped_mm", None) or torch._grouped_mm  # its name before it was public
    y = product(product(x[order], A, offs=ends), B, offs=ends)
    return torch.empty_like(y).index_copy_(0, order, y)


MANY = {"gathered": gathered, "all, masked": masked, "one by one": one_by_one, GROUPED: grouped}


def changed(step: TracedStep, rows: int, table: int | None) -> TracedStep:
    """The story's step with so many rows, and tables of at most so many ids."""
    return replace(step, batch_size=rows, largest_table=min(step.largest_table, table or step.largest_table))
