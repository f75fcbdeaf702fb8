"""Look-ups on this machine, whatever it is: what the notebook's cells headed "On your machine" print."""

from __future__ import annotations

import torch

import kernels
from kernels import runtime
from lessons.n15_embeddings.arithmetic import SeparateTables
from lessons.shared.timing import print_times


def tables(batch: int = 2048, features: int = 26, rows: int = 1000, width: int = 16) -> None:
    """Print the times of one look-up a table, and of all in one call."""
    device = runtime.device()
    separate = SeparateTables((rows,) * features, width).to(device)
    buffer = torch.cat([table.weight.detach() for table in separate.tables])
    row_offsets = rows * torch.arange(features + 1, device=device)
    ids = torch.randint(rows, (batch, features), device=device)
    print_times(
        {
            f"{features} nn.Embedding": lambda: separate(ids),
            "embedding_bags": lambda: kernels.embedding_bags(buffer, row_offsets, ids),
        }
    )


def text_or_image(count: int = 1024, rows: int = 1000, width: int = 256, token: int = 7) -> None:
    """Print the times of two gathers and a `where`, and of one look-up that chooses."""
    device = runtime.device()
    table, image = (torch.randn(size, width, device=device) for size in (rows, 64))
    ids, indices = (torch.randint(size, (count,), device=device) for size in (rows, 64))
    print_times(
        {
            "where": lambda: torch.where((ids == token)[:, None], image[indices], table[ids]),
            "embedding_lookup_multimodal": lambda: kernels.embedding_lookup_multimodal(
                ids, table, indices, image, image_token_id=token
            ),
        }
    )
