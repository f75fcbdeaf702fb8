"""What `kernels.check` takes add_relu through."""

from ...check import Spec, calls
from .eager import add_relu

SPEC = Spec(add_relu, lambda case, device: calls(case, device, {"x": case.shape, "bias": case.shape[-1:]}))
