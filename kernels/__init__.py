"""How the model gets fused: one folder an op.

Importing this package chooses Triton's interpreter where there is no NVIDIA driver. Triton reads TRITON_INTERPRET when
it is imported, so import kernels before anything that imports Triton (torch.optim and torch._dynamo do).
"""

import os
import sys

from kernels.runtime import has_nvidia_driver

if "triton" not in sys.modules and not has_nvidia_driver():
    os.environ.setdefault("TRITON_INTERPRET", "1")

from kernels.ops.add_mul_activation.op import add_mul_activation, add_mul_activation_
from kernels.ops.add_relu.op import add_relu, add_relu_

__all__ = ["add_mul_activation", "add_mul_activation_", "add_relu", "add_relu_"]
