"""How the model gets fused: one folder an op, in ops/; its public functions are importable from here.

Importing this package chooses Triton's interpreter where there is no NVIDIA driver. Triton reads TRITON_INTERPRET when
it is imported, so import kernels before anything that imports Triton (torch.optim and torch._dynamo do).
"""

import importlib
import os
import sys

from kernels.runtime import has_nvidia_driver

if "triton" not in sys.modules and not has_nvidia_driver():
    os.environ.setdefault("TRITON_INTERPRET", "1")

from kernels.dispatch import ops

__all__ = []
for _name in ops():
    for _function in importlib.import_module(f"kernels.ops.{_name}").__all__:
        globals()[_function] = getattr(importlib.import_module(f"kernels.ops.{_name}.op"), _function)
        __all__.append(_function)
