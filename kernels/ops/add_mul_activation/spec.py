"""What `kernels.check` takes add_mul_activation through: every activation with a multiplier of either sign."""

import torch

from ...check import Call, Pointwise, Spec, calls
from .eager import DERIVATIVE_READS, FUNCTIONS, add_mul_activation

# The multipliers are exact in float32, as which a compiled Triton kernel takes them.
OPTIONS = [(multiplier, activation) for activation in FUNCTIONS for multiplier in (0.5, -1.25)]
OPTIONS += [(0.0, "silu"), (torch.tensor(-0.75), "sigmoid"), (torch.tensor(2.0, dtype=torch.float64), "gelu")]


def _calls(case, device):
    return calls(case, device, {"x": case.shape, "bias": case.shape[-1:], "y": case.shape}, OPTIONS)


def _of_output(call: Call) -> bool:
    """Relu's derivative reads the output's sign alone, which rounding leaves as it is."""
    activation = call.options[1]
    return DERIVATIVE_READS[activation] == "output" and activation != "relu"


SPEC = Spec(add_mul_activation, _calls, scale=Pointwise(of_output=_of_output))
