"""Ways to compute a layer with LoRA, and y = (x A) B where each row has an adapter of its own.

The text of each is that of the notebook's cell: a test compares them.
"""

import torch
from torch.nn import functional as F

from lessons.n12_lora.lora_kernel import launch, lora_kernel

# x [rows, in], W [out, in], bias [out], A [in, r], B [r, out] -> [rows, out]


def eager(x, W, bias, A, B, multiplier):
    return torch.relu(F.linear(x, W, bias) + multiplier * ((x @ A) @ B))


def by_kernel(x, W, bias, A, B, multiplier):
    return launch(lora_kernel, x @ W.T, x @ A, B, bias, multiplier)


def in_place(x, W, bias, A, B, multiplier):
    return F.linear(x, W, bias).addmm_(x @ A, B, alpha=multiplier).relu_()


def one_product(x, both, bias, A, multiplier):  # both: [W, Bᵀ], made once
    wide = torch.cat([x, multiplier * (x @ A)], dim=1)
    return torch.relu(F.linear(wide, both, bias))


def relu_inside(x, both, bias, A, multiplier):
    wide = torch.cat([x, multiplier * (x @ A)], dim=1)
    return torch._addmm_activation(bias, wide, both.T)  # cuBLAS adds the bias and takes relu, then stores


def merge(W, A, B, multiplier):  # in float64, and rounded once
    return (W.double() + multiplier * (A.double() @ B.double()).T).to(W)


def gathered(x, A, B, adapter):  # x [rows, in], A [n, in, r], B [n, r, out], adapter [rows]
    return torch.bmm(torch.bmm(x[:, None], A[adapter]), B[adapter])[:, 0]


def masked(x, A, B, adapter):
    thin = (x @ A.transpose(0, 1).flatten(1)).view(len(x), len(A), -1)  # [rows, n, r]
    own = adapter[:, None] == torch.arange(len(A), device=x.device)
    return (thin * own[:, :, None]).flatten(1) @ B.flatten(0, 1)


def grouped(x, A, B, adapter):
    chosen, order = adapter.sort(stable=True)
    ends = torch.searchsorted(chosen, torch.arange(len(A), device=x.device), right=True).int()
    y = F.grouped_mm(F.grouped_mm(x[order], A, offs=ends), B, offs=ends)
    return torch.empty_like(y).index_copy_(0, order, y)
