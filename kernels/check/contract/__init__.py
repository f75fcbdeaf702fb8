"""The op contract as pytest classes, by subject; an op's test file derives a class from those that it must keep.

    class TestAddRelu(PointwiseContract):
        op = "add_relu"

What is called, compared and how exactly comes from the op's spec.py and its declaration.
"""

from .base import DEVICE, GPU, Contract, every_backend, kernel_backend, running
from .dispatch import Dispatch
from .gradients import Gradients
from .in_place import InPlace
from .on_gpu import OnGpu
from .pointwise import Pointwise
from .values import Values


class PointwiseContract(Values, InPlace, Gradients, Pointwise, Dispatch, OnGpu):
    """All of it, for an op of one output whose every element hangs on one element of each input."""


__all__ = [
    "DEVICE",
    "GPU",
    "Contract",
    "Dispatch",
    "Gradients",
    "InPlace",
    "OnGpu",
    "Pointwise",
    "PointwiseContract",
    "Values",
    "every_backend",
    "kernel_backend",
    "running",
]
