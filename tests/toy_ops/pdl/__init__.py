"""add_relu whose kernel may begin before the one before it in the stream has ended (device/launch.cuh says how).

The same bytes; what is saved is the launch's ramp, in a row of kernels that all begin early. It is measured beside
add_relu (bench.py), and is no public op.
"""

from __future__ import annotations

import functools

from torch import Tensor

from kernels.dispatch.op import Op, like
from kernels.ops.add_relu import eager


@functools.cache
def declared() -> Op:
    """The op fused_kernels::add_relu_early; forward only."""
    return Op(
        "add_relu_early",
        "(Tensor x, Tensor bias) -> Tensor out",
        eager=eager.add_relu,
        shapes="x [..., N]: floating; bias [N]: x",
        outputs={"out": like("x")},
        elementwise=True,
        package=__name__,
    )


def add_relu_early(x: Tensor, bias: Tensor, *, backend: str) -> Tensor:
    """relu(x + bias), as add_relu."""
    return declared().call(backend, x, bias)
