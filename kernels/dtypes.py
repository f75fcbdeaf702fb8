"""The dtypes that the kernels know. dispatch/call.h has the same list for C++."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Dtype:
    """What is known of one.

    triton: its name in the type of a Triton kernel's argument. tolerances: (rtol, atol) of a pointwise op's result,
    those of torch.testing.assert_close; None where results are compared exactly.
    """

    triton: str
    tolerances: tuple[float, float] | None = None


DTYPES = {
    torch.float32: Dtype("fp32", (1.3e-6, 1e-5)),
    torch.float16: Dtype("fp16", (1e-3, 1e-5)),
    torch.bfloat16: Dtype("bf16", (1.6e-2, 1e-5)),
    torch.float64: Dtype("fp64", (1e-7, 1e-7)),
    torch.int64: Dtype("i64"),
    torch.int32: Dtype("i32"),
    torch.int16: Dtype("i16"),
    torch.int8: Dtype("i8"),
    torch.uint8: Dtype("u8"),
    torch.bool: Dtype("i1"),
}
FLOATING = (torch.float32, torch.float16, torch.bfloat16, torch.float64)  # what an op takes that says no less or more
INTEGERS = (torch.int32, torch.int64)  # what ids and offsets may be
