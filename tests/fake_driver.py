"""fake_libcuda.c, built, and what it recorded, for tests in Python."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("fake_libcuda.c")


class Launch(ctypes.Structure):
    _fields_ = (
        ("function", ctypes.c_void_p), ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint), ("kind", ctypes.c_uint), ("stream", ctypes.c_void_p),
        ("parameters", ctypes.c_int64 * 32), ("cluster", ctypes.c_uint * 3),
    )  # fmt: skip


class Driver:
    """The recording driver: its globals by name."""

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))

    def __getattr__(self, name: str) -> int:
        return ctypes.c_int.in_dll(self._library, f"fake_{name}").value

    def set(self, **values: int) -> None:
        for name, value in values.items():
            ctypes.c_int.in_dll(self._library, f"fake_{name}").value = value

    def launches(self) -> list[Launch]:
        count = self.launch_count
        return list((Launch * 64).in_dll(self._library, "fake_launches")[:count])

    def set_parameters(self, *sizes: int) -> None:
        """How many bytes each parameter of every kernel has."""
        self.set(parameters=len(sizes))
        (ctypes.c_int * 32).in_dll(self._library, "fake_parameter_bytes")[:] = [*sizes, *[0] * (32 - len(sizes))]


def build(path: Path, *flags: str) -> Path:
    subprocess.run(["gcc", "-shared", "-fPIC", *flags, "-o", str(path), str(SOURCE)], check=True)
    return path
