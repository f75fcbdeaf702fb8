"""How the model gets fused: one folder an op, in ops/; its public functions are importable from here.

In a checkout of the repository this package is `kernels`, installed by pip it is `fused_kernels`; a process imports one
of the two. Importing `kernels` chooses Triton's interpreter where there is no NVIDIA driver. Triton reads
TRITON_INTERPRET when it is imported, so import kernels before anything that imports Triton (torch.optim and
torch._dynamo do). Importing `fused_kernels` leaves that to the program.
"""

import importlib
import os
import sys

from .runtime import CHECKOUT, has_nvidia_driver, other_copy

if _other := other_copy():
    raise ImportError(f"{__name__} is {_other} by another name, and a process can have its ops once: import only one")
if CHECKOUT and "triton" not in sys.modules and not has_nvidia_driver():
    os.environ.setdefault("TRITON_INTERPRET", "1")

from .compiler import explain
from .dispatch import ops

__all__ = ["explain"]
for _name in ops():
    _package = importlib.import_module(f".ops.{_name}", __name__)
    for _public in _package.__all__:
        _module = getattr(_package, "MODULES", {}).get(_public, "op")  # what is no function has a module of its own
        globals()[_public] = getattr(importlib.import_module(f"{_package.__name__}.{_module}"), _public)
        __all__.append(_public)
