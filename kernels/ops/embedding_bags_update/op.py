"""embedding_bags_sgd_, embedding_bags_adagrad_, embedding_bags_rowwise_adagrad_: the public functions."""

import torch
from torch import Tensor

from kernels.ops.embedding_bags_update import eager


@torch.no_grad()
def embedding_bags_sgd_(
    tables: Tensor, row_offsets: Tensor, indices: Tensor, grad: Tensor, learning_rate: float | Tensor,
    offsets: Tensor | None = None, mode: str = "sum", per_sample_weights: Tensor | None = None,
    padding_idx: int | None = None, *, backend: str = "auto",
) -> Tensor:  # fmt: skip
    """tables[r] -= lr · (the gradient of row r), for the rows that occur."""
    if mode not in ("sum", "mean"):
        raise ValueError(f"embedding_bags_sgd_: mode must be one of sum, mean; got {mode!r}")
    return eager.embedding_bags_sgd_(
        tables, row_offsets, indices, grad, learning_rate, offsets, mode, per_sample_weights, padding_idx
    )


@torch.no_grad()
def embedding_bags_adagrad_(
    tables: Tensor, state: Tensor, row_offsets: Tensor, indices: Tensor, grad: Tensor, learning_rate: float | Tensor,
    offsets: Tensor | None = None, mode: str = "sum", per_sample_weights: Tensor | None = None,
    padding_idx: int | None = None, eps: float = 1e-10, *, backend: str = "auto",
) -> Tensor:  # fmt: skip
    """The same by Adagrad; state [R, D] float32 is updated too."""
    if mode not in ("sum", "mean"):
        raise ValueError(f"embedding_bags_adagrad_: mode must be one of sum, mean; got {mode!r}")
    return eager.embedding_bags_adagrad_(
        tables, state, row_offsets, indices, grad, learning_rate, offsets, mode, per_sample_weights, padding_idx, eps
    )


@torch.no_grad()
def embedding_bags_rowwise_adagrad_(
    tables: Tensor, state: Tensor, row_offsets: Tensor, indices: Tensor, grad: Tensor, learning_rate: float | Tensor,
    offsets: Tensor | None = None, mode: str = "sum", per_sample_weights: Tensor | None = None,
    padding_idx: int | None = None, eps: float = 1e-10, *, backend: str = "auto",
) -> Tensor:  # fmt: skip
    """The same by Adagrad with one number of state a row: state [R] float32."""
    if mode not in ("sum", "mean"):
        raise ValueError(f"embedding_bags_rowwise_adagrad_: mode must be one of sum, mean; got {mode!r}")
    return eager.embedding_bags_rowwise_adagrad_(
        tables, state, row_offsets, indices, grad, learning_rate, offsets, mode, per_sample_weights, padding_idx, eps
    )
