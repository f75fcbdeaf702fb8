"""BROKEN ON PURPOSE: what lies beyond K is multiplied by zero in place of not being read, and a NaN there stays one."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.device.activations import activate


@triton.jit
def layer_kernel(
    x_ptr, weight_ptr, bias_ptr, out_ptr, rows, x_columns, K, N,
    ACTIVATION: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr,
):
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None, None]
    output = (tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS))[None, :, None]
    accumulator: tl.constexpr = tl.float64 if x_ptr.dtype.element_ty == tl.float64 else tl.float32
    sums = tl.zeros([ROWS, COLUMNS], accumulator)
    for k in range(0, K, STEP):
        column = (k + tl.arange(0, STEP))[None, None, :]
        x_at = x_ptr + row * x_columns + column
        x = tl.load(x_at, (row < rows) & (column < x_columns), other=0.0) * (column < K)  # the wrong line
        weight = tl.load(weight_ptr + output * K + column, (output < N) & (column < K), other=0.0)
        sums += tl.sum(x.to(accumulator) * weight.to(accumulator), axis=2)
    row, output = tl.reshape(row, [ROWS, 1]), tl.reshape(output, [1, COLUMNS])
    sums += tl.load(bias_ptr + output, output < N, other=0.0).to(accumulator)
    value = activate(sums, ACTIVATION).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + row * N + output, value, (row < rows) & (output < N))


def fused_mlp(x: Tensor, weights, biases, activation="relu", final_activation="identity", precision="ieee") -> Tensor:
    for i, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        x, weight, bias = x.contiguous(), weight.contiguous(), bias.contiguous()
        (rows, columns), (outputs, inputs) = x.shape, weight.shape
        out = torch.empty(rows, outputs, dtype=x.dtype, device=x.device)
        chosen = final_activation if i == len(weights) - 1 else activation
        if rows:
            layer_kernel[(triton.cdiv(rows, 32), triton.cdiv(outputs, 16))](
                x, weight, bias, out, rows, columns, inputs, outputs, chosen, ROWS=32, COLUMNS=16, STEP=16
            )
        x = out
    return x
