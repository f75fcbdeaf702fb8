"""How a weight over all pairs (i, j) is kept as one over unordered pairs: the folded weight's layout.

c_i c_j = c_j c_i, so that of weight[h, i C + j] and weight[h, j C + i] only the sum counts. The C columns of c are cut
into blocks of 16, the last one filled up with zeros. The folded weight keeps 16 × 16 numbers of two blocks I <= J:

    folded[h, 256 (J (J + 1) / 2 + I) + 16 a + b] = weight[h, i C + j] + weight[h, j C + i],  i = 16 I + a, j = 16 J + b

and weight[h, i C + j] alone where I = J, for there both pairs are kept.

Bytes, of C = 432 and H = 512 in float32: 382 MB read, 198 MB written (the strict triangle would be 192).
"""

import torch
from torch import Tensor
from torch.nn import functional as F

BLOCK = 16


def blocks(columns: int) -> int:
    """How many blocks so many columns of c have."""
    return -(-columns // BLOCK)


def pairs(count: int) -> int:
    """The pairs I <= J of so many blocks."""
    return count * (count + 1) // 2


def folded_width(columns: int) -> int:
    """Columns of the folded weight, for c of so many columns."""
    return BLOCK * BLOCK * pairs(blocks(columns))


def pair_blocks(count: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """I and J of every pair of blocks, in the folded weight's order."""
    j, i = torch.tril_indices(count, count, device=device)
    return i, j


def columns_of(width: int) -> int:
    """C of a weight with C · C columns; of another width the next smaller one's."""
    root = int(width**0.5)
    while root * root > width:
        root -= 1
    while (root + 1) ** 2 <= width:
        root += 1
    return root


def fold(weight: Tensor) -> Tensor:
    """weight [H, C·C] → [H, folded_width(C)]."""
    columns = columns_of(weight.shape[1])
    count = blocks(columns)
    padding = count * BLOCK - columns
    square = F.pad(weight.view(len(weight), columns, columns), (0, padding, 0, padding))
    tiles = square.view(len(weight), count, BLOCK, count, BLOCK).transpose(2, 3)
    i, j = pair_blocks(count, weight.device)
    mirrored = torch.where((i == j)[:, None, None], 0.0, tiles[:, j, i].transpose(-1, -2))
    return (tiles[:, i, j] + mirrored).flatten(1)


def unfolded_products(c: Tensor) -> Tensor:
    """The products c_i c_j that go with the columns of a folded weight: c [B, C] → [B, folded_width(C)]."""
    count = blocks(c.shape[1])
    tiles = F.pad(c, (0, count * BLOCK - c.shape[1])).view(len(c), count, BLOCK)
    i, j = pair_blocks(count, c.device)
    products = tiles[:, i, :, None] * tiles[:, j, None, :]
    # A product with a column that only fills up must be 0, where c is infinite too.
    real = torch.arange(count * BLOCK, device=c.device).view(count, BLOCK) < c.shape[1]
    return torch.where(real[i][:, :, None] & real[j][:, None, :], products, 0.0).flatten(1)
