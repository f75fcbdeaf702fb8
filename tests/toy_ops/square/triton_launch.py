"""The launcher of toy_square."""

from kernels.device.launch import cdiv, triton_functions

functions = triton_functions("toy_ops.triton_kernel")


def forward(x, out):
    functions.square_kernel[(cdiv(x.numel(), 64),)](x, out, x.numel(), BLOCK=64)


def backward(grad_out, x, slope, grad_x):
    functions.cube_backward_kernel[(cdiv(slope.numel(), 64),)](grad_out, slope, grad_x, slope.numel(), BLOCK=64)
