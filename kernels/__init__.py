"""How the model gets fused: one folder an op, in ops/; its public functions are importable from here.

This package is `fused_kernels` where pip installs it, and in a checkout of the repository `kernels` too; there the name
that a process imports second is another name of the same modules. Importing `kernels` chooses Triton's interpreter
where there is no NVIDIA driver. Triton reads TRITON_INTERPRET when it is imported, so import kernels before anything
that imports Triton (torch.optim and torch._dynamo do). Importing `fused_kernels` leaves that to the program.
"""

import importlib
import os
import sys

from .runtime import PACKAGE, has_nvidia_driver, is_same_folder, other_copy

__version__ = "0.1.0"

if PACKAGE == "kernels" and "triton" not in sys.modules and not has_nvidia_driver():
    os.environ.setdefault("TRITON_INTERPRET", "1")

if _other := other_copy():
    if not is_same_folder(_other):
        once = "a process can have its ops once: import only one"
        raise ImportError(f"{__name__} is {_other} by another name, and {once}")
    from .alias import make_alias

    make_alias(__name__, _other)
else:
    from .compiler import explain
    from .dispatch import ops

    __all__ = ["explain"]
    for _name in ops():
        _package = importlib.import_module(f".ops.{_name}", __name__)
        for _public in _package.__all__:
            _module = getattr(_package, "MODULES", {}).get(_public, "op")  # what is no function has a module of its own
            globals()[_public] = getattr(importlib.import_module(f"{_package.__name__}.{_module}"), _public)
            __all__.append(_public)
