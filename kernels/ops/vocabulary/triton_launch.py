"""With which grid and constants triton_kernel.py's kernels compute a look-up or its gradients."""

import torch
from torch import Tensor

from ...device.launch import cdiv, empty, interpreted, next_power_of_2, triton_functions

functions = triton_functions(f"{__package__}.triton_kernel")

PROGRAM_BYTES = 8192  # that a program moves: four times 16 bytes for each of 128 threads
PIECE = 64


def _block(columns: int, itemsize: int) -> tuple[int, int]:
    """Columns that a program takes at once, and its warps: at most four, with 16 bytes or more for each thread."""
    block = min(next_power_of_2(columns), PROGRAM_BYTES // itemsize)
    return block, max(1, min(4, block * itemsize // 512))


def forward(
    ids: Tensor, table: Tensor | None, image: Tensor | None, audio: Tensor | None, indices: Tensor | None,
    mode: str, vocab_size: int, image_token: int, audio_token: int, out: Tensor,
) -> None:
    """out [..., H]: the rows that the ids [...] name."""
    if out.numel() == 0:
        return
    columns = out.shape[-1]
    count = out.numel() // columns
    block, _ = _block(columns, out.itemsize)
    # The interpreter's time goes by the program.
    rows = (2**16 if interpreted() else PROGRAM_BYTES // out.itemsize) // block
    table_rows, image_rows, audio_rows = (0 if source is None else source.shape[0] for source in (table, image, audio))
    functions.forward_kernel[(cdiv(count, rows), cdiv(columns, block))](
        ids, table, image, audio, indices, out, count, table_rows, image_rows, audio_rows,
        vocab_size if table is None else table_rows, image_token, audio_token,
        COLUMNS=columns, ROWS=rows, BLOCK=block, num_warps=4,
    )


def backward(
    grad: Tensor, ids: Tensor, table: Tensor | None, image: Tensor | None, audio: Tensor | None,
    indices: Tensor | None, mode: str, vocab_size: int, image_token: int, audio_token: int,
    sorted_rows: Tensor, order: Tensor, starts: Tensor,
    grad_table: Tensor | None, grad_image: Tensor | None, grad_audio: Tensor | None,
    piece: int = PIECE,
) -> None:
    """The dense gradients of table, image and audio, from grad [..., H] and the ids' positions by row."""
    columns = grad.shape[-1]
    if columns == 0:
        return
    block, warps = _block(columns, grad.itemsize)
    constants = dict(COLUMNS=columns, PIECE=piece, BLOCK=block, num_warps=warps)
    chunks = cdiv(columns, block)
    sums, pieces = None, order.numel() // piece
    if pieces:
        dtype = torch.float64 if grad.dtype == torch.float64 else torch.float32
        sums = empty((pieces, columns), dtype, grad)
        functions.piece_kernel[(pieces, chunks)](grad, sorted_rows, order, sums, starts.numel() - 1, **constants)
    first_row = 0
    for source, grad_source in ((table, grad_table), (image, grad_image), (audio, grad_audio)):
        if source is None:
            continue
        if grad_source is not None and source.shape[0]:
            functions.backward_kernel[(source.shape[0], chunks)](
                grad, order, starts, sums, grad_source, first_row, **constants
            )
        first_row += source.shape[0]
