"""out = [t_0, t_i · t_j for j < i, zeros] in plain PyTorch: the reference.

t_0 is a row's dense vector, t_1 … t_F are its sparse ones:

    dense [B, D], sparse [B, F, D] → [B, W], W = D + F (F + 1) / 2, rounded up to a multiple of pad_to

The pairs go row by row through the strictly lower triangle of T Tᵀ, T = [dense; sparse]: (1, 0), (2, 0), (2, 1), …, the
order of facebookresearch/dlrm's interact_features.

Bytes, with V = F + 1 vectors of D elements of `size` bytes in each of B rows:

    T = cat(dense, sparse)      reads B V D size, writes as much
    P = T Tᵀ                    reads B V D size (twice if a cache is too small), writes B V² size
    P[:, i, j]                  reads B V (V - 1) / 2 size, writes as much
    cat(dense, pairs)           reads B W size, writes B W size

A kernel that keeps a row's T on chip reads B V D size and writes B W size. FLOPs: 2 D for each of V (V - 1) / 2 pairs;
T Tᵀ computes 2 V / (V - 1) times as many.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def dot_interaction(dense: Tensor, sparse: Tensor, pad_to: int = 1) -> Tensor:
    """dense [B, D] and sparse [B, F, D] of one dtype → [B, W], contiguous."""
    return interact(dense, sparse, pairs(sparse.shape[1], sparse.device), pad_to)


def interact(dense: Tensor, sparse: Tensor, pairs: Tensor, pad_to: int = 1) -> Tensor:
    """The same with the pairs' indices given, as a module keeps them in a buffer."""
    vectors = torch.cat([dense.unsqueeze(1), sparse], dim=1)  # [B, F + 1, D]
    i, j = pairs
    products = vectors @ vectors.transpose(1, 2)  # [B, F + 1, F + 1]
    out = torch.cat([dense, products[:, i, j]], dim=1)
    missing = -out.shape[1] % pad_to
    return F.pad(out, (0, missing)) if missing else out


def pairs(features: int, device: torch.device) -> Tensor:
    """int64 [2, F (F + 1) / 2]: i and j of each product, in order."""
    return torch.tril_indices(features + 1, features + 1, offset=-1, device=device)


def width(features: int, columns: int, pad_to: int = 1) -> int:
    """W, the width of a row of the output."""
    wide = columns + features * (features + 1) // 2
    return (wide + pad_to - 1) // pad_to * pad_to


def forward_bytes(rows: int, features: int, columns: int, dtype: torch.dtype, pad_to: int = 1) -> int:
    """Bytes that a forward must move: every vector once in, the output once out."""
    return rows * ((features + 1) * columns + width(features, columns, pad_to)) * dtype.itemsize


def backward_bytes(rows: int, features: int, columns: int, dtype: torch.dtype, pad_to: int = 1) -> int:
    """Bytes that a backward must move: the output's gradient and every vector in, the vectors' gradients out."""
    return rows * (2 * (features + 1) * columns + width(features, columns, pad_to)) * dtype.itemsize


def forward_flops(rows: int, features: int, columns: int) -> int:
    """FLOPs of the pairs' products. A backward needs twice as many."""
    return rows * features * (features + 1) * columns
