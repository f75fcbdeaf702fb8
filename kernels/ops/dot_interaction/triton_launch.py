"""With which grid and constants triton_kernel.py's kernels compute the interaction or its gradients."""

from torch import Tensor

from ...device.launch import cdiv, interpreted, next_power_of_2, triton_functions

functions = triton_functions(f"{__package__}.triton_kernel")


def forward(
    dense: Tensor, sparse: Tensor, pad_to: int, out: Tensor, by_row: bool | None = None, **cut: int
) -> None:
    """out [B, W] of dense [B, D] and sparse [B, F, D]. by_row: by row_kernel; None: in float32, where there are at most
    32 vectors of at most 64 columns, and not interpreted, which takes its time by the program.

    That is by what an H200 recorded of 26 features in traces/results/h200/dot_interaction.json, in µs by forward_kernel
    (on 2026-11-29) and by row_kernel (on 2026-11-30):

        columns                  16                  64                 128
         2,048 rows      13.8,   7.9       46.7,    46.1       88.2,   131.8
        65,536 rows     354.5, 165.7    1,365.5, 1,275.7    2,645.6, 3,857.9
    """
    if out.numel() == 0:
        return
    rows, features, columns = sparse.shape
    vectors, depth = next_power_of_2(features + 1), next_power_of_2(columns)
    if by_row is None:
        by_row = dense.itemsize == 4 and vectors <= 32 and depth <= 64 and not interpreted()
    if by_row:
        functions.row_kernel[(rows,)](
            dense, sparse, out, rows, features, FEATURES=features, COLUMNS=columns, WIDTH=out.shape[1], VECTORS=vectors,
            DEPTH=depth, COPIES=max(1, min(4, 2048 // (vectors * depth))), num_warps=max(1, vectors * depth // 2048),
        )
        return
    constants = _constants(dense, sparse, out, 16 if dense.itemsize >= 4 else 32, **cut)
    blocks = cdiv(sparse.shape[1] + 1, constants["VECTORS"])
    grid = (cdiv(dense.shape[0], constants["ROWS"]), blocks * (blocks + 1) // 2)
    functions.forward_kernel[grid](dense, sparse, out, dense.shape[0], **constants)


def backward(
    grad: Tensor, dense: Tensor, sparse: Tensor, pad_to: int, grad_dense: Tensor | None, grad_sparse: Tensor | None,
    **cut: int,
) -> None:
    """The gradients of dense and sparse, from grad [B, W]."""
    if dense.numel() == 0 and sparse.numel() == 0:
        return
    constants = _constants(dense, sparse, grad, 64, **cut)
    blocks, slices = cdiv(sparse.shape[1] + 1, constants["VECTORS"]), cdiv(dense.shape[1], constants["DEPTH"])
    if grad_sparse is None:
        blocks = 1  # the dense vector is in the first
    functions.backward_kernel[cdiv(dense.shape[0], constants["ROWS"]), blocks, slices](
        grad, dense, sparse, grad_dense, grad_sparse, dense.shape[0], **constants
    )


def _constants(
    dense: Tensor, sparse: Tensor, out: Tensor, most_depth: int, rows: int = 0, vectors: int = 0, depth: int = 0,
    warps: int = 4,
) -> dict[str, int]:
    """The constants of a launch: `rows` of the batch a program, `vectors` on a side of a block of pairs, `depth`
    columns at once; 0: chosen here. tl.dot takes 16 or more of each.

    Four rows of 32 by 32 pairs are 32 sums a thread. In the forward it holds its vectors' columns beside them, of
    float32 16 at most (most_depth), where several blocks' vectors differ those of two rows; else registers spill.
    """
    features, columns = sparse.shape[1:]
    vectors = vectors or min(max(next_power_of_2(features + 1), 16), 32)
    depth = depth or min(max(next_power_of_2(columns), 16), most_depth)
    if not rows:
        rows = 2 if features >= vectors else 4096 // vectors**2
        if dense.itemsize == 8:
            rows = 1
        if interpreted():  # its time goes by the program, and by the row
            rows = min(64, next_power_of_2(dense.shape[0]))
    return dict(
        FEATURES=features, COLUMNS=columns, WIDTH=out.shape[1], ROWS=rows, VECTORS=vectors, DEPTH=depth,
        num_warps=warps,
    )
