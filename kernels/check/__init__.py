"""Is the kernel right? check() holds a function against an op's eager reference on every case that it must survive.

    cases.py        what an op is called with: shapes, dtypes, layouts, special values
    spec.py         what an op must do: its ops/<op>/spec.py holds a Spec
    edges.py        the sizes at which the blocks of its kernels end
    comparison.py   how far from the exact result it may be
    memory.py       guard zones and poison
    interpreter.py  Triton's interpreter, with every load and store checked
    faster.py       the interpreter without what it computes again and again
    maximum.py      tl.maximum of NaN, as it is compiled
    accesses.py     what a kernel reads and writes, program by program, drawn
    hints.py        a guess at the cause
    isolated.py     check() in a process of its own
    run.py          check() and check_gradients()
    contract/       the op contract as pytest classes (needs pytest, which nothing else in here does)
"""

from .accesses import accesses_of, draw_accesses, late_accesses
from .cases import FLOAT_DTYPES, Call, Case, calls, pointwise_cases, wide_cases
from .comparison import TOLERANCES, Pointwise, Sums, compare, gradients
from .edges import cases_of
from .interpreter import OutOfBounds, watched
from .maximum import maximum_as_compiled
from .memory import guarded, poisoned
from .run import check, check_gradients
from .spec import Dimension, Spec, calls_of, eager_results, expected, reference, spec_of

__all__ = [
    "FLOAT_DTYPES",
    "TOLERANCES",
    "Call",
    "Case",
    "Dimension",
    "OutOfBounds",
    "Pointwise",
    "Spec",
    "Sums",
    "accesses_of",
    "calls",
    "calls_of",
    "cases_of",
    "check",
    "check_gradients",
    "compare",
    "draw_accesses",
    "eager_results",
    "expected",
    "gradients",
    "guarded",
    "late_accesses",
    "maximum_as_compiled",
    "pointwise_cases",
    "poisoned",
    "reference",
    "spec_of",
    "watched",
    "wide_cases",
]
