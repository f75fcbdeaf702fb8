"""add_relu's early Triton kernel: grid and constants."""

from torch import Tensor

from kernels.device.launch import begins_early, cdiv, triton_functions
from kernels.device.pointwise_launch import pointwise_block

functions = triton_functions("toy_ops.pdl.triton_kernel")


def forward(x: Tensor, bias: Tensor, out: Tensor, *, early: bool | None = None) -> None:
    """out = relu(x + bias); all contiguous, of one dtype. early: may begin early (default: where the GPU can)."""
    elements = x.numel()
    if elements == 0:
        return
    block = pointwise_block(elements, x.itemsize)
    early = begins_early() if early is None else early
    functions.early_kernel[(cdiv(elements, block),)](
        x, bias, out, elements, COLUMNS=len(bias), WIDE=elements + block > 2**31, EARLY=early, BLOCK=block, num_warps=4,
        **({"launch_pdl": True} if early else {}),
    )
