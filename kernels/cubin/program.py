"""Compiled kernels launched from Python, without Triton and past torch's dispatcher."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

from ..dispatch.core import core_library
from .compile import description_of


class Program:
    """The kernels of some images, by name; they are loaded at their first launch, and unloaded with the last of these;
    those that a CUDA graph has captured stay, as it launches them when it is replayed.

    program["name"](grid, block, *arguments, shared=…, cluster=…, cooperative=…, early=…): grid, block and cluster are
    an int or a tuple; block is None where the kernel's description says it. An argument is a tensor (its address), None
    (a null pointer), an int or a float. Where there is a description, a number gets the type that it says. Without one
    an int is an integer and a float a floating-point number, each of as many bytes as the kernel takes there: where it
    takes a float, write 1.0. The launch is on the tensors' device and its current stream, and records no gradient.

    Raises:
        RuntimeError, TypeError or ValueError: what is wrong, by the kernel and the argument's number. A name that is
            not there is a RuntimeError with those that are.
    """

    def __init__(self, images: object) -> None:
        self._images = images
        self._kernels: dict[str, Callable[..., None]] = {}

    def __getitem__(self, name: str) -> Callable[..., None]:
        if name not in self._kernels:
            self._kernels[name] = _function("kernel", ctypes.py_object, ctypes.c_char_p)(self._images, name.encode())
        return self._kernels[name]


def load(*paths: str | Path, device: str = "cuda") -> Program:
    """The kernels of these cubins, fatbins or PTX files, of one architecture or several.

    device: the type that tensors are on; "cpu" where a driver of a test's stands in for CUDA's.

    Raises:
        RuntimeError: a file that is missing, truncated, or is no image, or another than the one described beside it.
    """
    files = [(str(path), description_of(Path(path)) if Path(path).is_file() else None) for path in paths]
    return Program(_function("program", ctypes.py_object, ctypes.c_char_p)(files, device.encode()))


def _function(name: str, *types: type) -> Callable[..., object]:
    function = getattr(ctypes.PyDLL(str(core_library())), f"fused_kernels_cubin_{name}", None)
    if function is None:
        raise RuntimeError("the core was built without Python's headers, which kernels.cubin.load needs: "
                           "apt install python3-dev, and remove build/extensions")
    function.restype, function.argtypes = ctypes.py_object, list(types)
    return function
