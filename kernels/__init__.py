"""How the model gets fused: one folder an op.

Importing this package chooses Triton's interpreter where there is no NVIDIA driver. Triton reads TRITON_INTERPRET when
it is imported, so import kernels before anything that imports Triton (torch.optim and torch._dynamo do).
"""

import os
import sys

from kernels.runtime import has_nvidia_driver

if "triton" not in sys.modules and not has_nvidia_driver():
    os.environ.setdefault("TRITON_INTERPRET", "1")
