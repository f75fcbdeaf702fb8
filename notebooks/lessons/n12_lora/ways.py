"""Ways to compute a layer with LoRA. The text of each is that of the notebook's cell: a test compares them.
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
