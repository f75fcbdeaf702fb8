"""The launcher of toy_sgd_."""

from kernels.device.launch import cdiv, triton_functions

functions = triton_functions("toy_ops.triton_kernel")


def forward(weights, gradient, lr):
    functions.sgd_kernel[(cdiv(weights.numel(), 64),)](weights, gradient, lr, weights.numel(), BLOCK=64)
