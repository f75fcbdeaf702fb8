"""tl.maximum, tl.minimum and tl.clamp in Triton's interpreter, as they are where they are compiled."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest import mock

import numpy as np

from .. import runtime


@contextmanager
def maximum_as_compiled() -> Iterator[None]:
    """In here the interpreter's tl.maximum, tl.minimum and tl.clamp do what PTX's instructions do: `max` and `min` give
    the number where the other is NaN, `max.NaN` and `min.NaN` (propagate_nan=ALL) give NaN, and of two zeros `max`
    gives +0, `min` −0. By itself the interpreter has NumPy's functions for all, which give NaN. Where kernels are
    compiled, nothing changes.

    https://docs.nvidia.com/cuda/parallel-thread-execution/#floating-point-instructions-max
    """
    if runtime.triton_mode() != "interpreted":
        yield
        return
    from triton import language as tl
    from triton.runtime import interpreter

    builder = interpreter.InterpreterBuilder

    def larger(a, b):
        return np.where((a == b) & np.signbit(a), b, np.maximum(a, b))

    def smaller(a, b):
        return -larger(-a, -b)

    def number(choose):
        return lambda a, b: np.where(np.isnan(a), b, np.where(np.isnan(b), a, choose(a, b)))

    def clamp(self, arg, lo, hi, propagate_nan):
        told = propagate_nan == tl.PropagateNan.ALL
        at_least, at_most = (larger, smaller) if told else (number(larger), number(smaller))
        return self.ternary_op(arg, lo, hi, lambda a, low, high: at_most(at_least(a, low), high))

    replacements = {"create_maxnumf": number(larger), "create_maximumf": larger,
                    "create_minnumf": number(smaller), "create_minimumf": smaller}
    with ExitStack() as stack:
        for name, function in replacements.items():
            operation = lambda self, a, b, function=function: self.binary_op(a, b, function)  # noqa: E731
            stack.enter_context(mock.patch.object(builder, name, operation))
        stack.enter_context(mock.patch.object(builder, "create_clampf", clamp))
        yield
