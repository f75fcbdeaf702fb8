"""add_mul_activation's Triton kernels: grids and constants."""

from torch import Tensor

from ...device.column_sum_launch import add_chunks, row_chunks, sum_target, tile_shape
from ...device.launch import cdiv, triton_functions
from ...device.pointwise_launch import pointwise_block
from .eager import DERIVATIVE_READS

functions = triton_functions(f"{__package__}.triton_kernel")


def forward(
    x: Tensor, bias: Tensor, y: Tensor, multiplier: float | Tensor, activation: str, out: Tensor,
    *, wide: bool | None = None,
) -> None:
    """out = act(x + multiplier · y + bias); all contiguous, of one dtype; out may be x.

    wide: 64-bit offsets (default: by the size).
    """
    elements = x.numel()
    if elements == 0:
        return
    block = pointwise_block(elements, x.itemsize)
    wide = elements + block > 2**31 if wide is None else wide
    functions.general[(cdiv(elements, block),)](
        x, bias, y, out, multiplier, elements,
        COLUMNS=len(bias), ACTIVATION=activation, WIDE=wide, BLOCK=block, num_warps=4,
    )


def backward(
    grad: Tensor, out: Tensor | None, x: Tensor | None, bias: Tensor | None, y: Tensor | None,
    multiplier: float | Tensor, activation: str, grad_x: Tensor | None, grad_bias: Tensor | None,
    grad_y: Tensor | None, *, chunks: int | None = None,
) -> None:
    """The gradients that are not None, grad_x and grad_y like grad, grad_bias [N]; all contiguous, of one dtype.

    Only those of out, x, bias and y are read that DERIVATIVE_READS names. chunks: of the rows, for the sum (default: by
    the shape).
    """
    columns = grad.shape[-1]
    if columns == 0:
        return
    rows = grad.numel() // columns
    row_block, column_block = tile_shape(columns, grad.itemsize)
    chunks, chunk_rows = row_chunks(rows, columns, column_block, chunks)
    sums = None if grad_bias is None else sum_target(grad_bias, chunks)
    functions.backward_kernel[(cdiv(columns, column_block), chunks)](
        grad, out, x, bias, y, grad_x, grad_y, sums, multiplier, rows, chunk_rows,
        COLUMNS=columns, ACTIVATION=activation, READS=DERIVATIVE_READS[activation],
        ROW_BLOCK=row_block, COLUMN_BLOCK=column_block, num_warps=4,
    )
    if grad_bias is not None:
        add_chunks(sums, grad_bias)
