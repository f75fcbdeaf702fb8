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

from kernels.compiler import explain
from kernels.dispatch import ops

__all__ = ["explain"]
for _name in ops():
    _package = importlib.import_module(f"kernels.ops.{_name}")
    for _public in _package.__all__:
        _module = getattr(_package, "MODULES", {}).get(_public, "op")  # what is no function has a module of its own
        globals()[_public] = getattr(importlib.import_module(f"kernels.ops.{_name}.{_module}"), _public)
        __all__.append(_public)
