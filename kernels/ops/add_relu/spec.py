"""What `kernels.check` takes add_relu through."""

from kernels.check import Spec, calls
from kernels.ops.add_relu.eager import add_relu

SPEC = Spec(add_relu, lambda case, device: calls(case, device, {"x": case.shape, "bias": case.shape[-1:]}))
