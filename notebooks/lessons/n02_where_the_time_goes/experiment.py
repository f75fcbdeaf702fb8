"""What TF32 brings, and what it costs in accuracy: `python -m lessons.n02_where_the_time_goes`, on a GPU.

    product   a cuBLAS product in float32 and in TF32: µs, and its largest error over the largest number of the result
    step      ms of a training step of the lecture's story in float32 and in TF32, by turns

TF32 rounds the numbers that are multiplied to 10 bits of the fraction, keeps float32's 23 in the sums, and takes the
tensor cores (https://docs.pytorch.org/docs/stable/notes/cuda.html#tf32-on-ampere).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from torch import Tensor

from lessons.shared.experiment import Experiment, Way
from model.config import Precision
from model.device import settings
from model.profiling.recording import WARM_UP, step_times
from model.profiling.traced_steps import TRACED_STEPS, training_step

PRECISIONS = (Precision.FP32, Precision.TF32)
CALLS = 5  # of a product, captured together


@dataclass(frozen=True)
class Sizes:
    """products: (rows, depth, columns) of DLRM's forward with a batch of 2048, `outer`'s the last; then squares. steps:
    the story's; smaller: fields of them that are replaced."""

    products: tuple[tuple[int, int, int], ...] = (
        (2048, 512, 256), (2048, 367, 512), (2048, 186624, 512), (4096, 4096, 4096), (8192, 8192, 8192),
    )
    steps: tuple[str, ...] = ("06_main_outer", "08_main_dot")
    smaller: dict[str, int] = field(default_factory=dict)


class Tf32(Experiment):
    """What tf32.json has."""

    NAME = "tf32"
    PARTS = ("product", "step")
    FULL = Sizes()
    SMALL = Sizes(((4, 5, 6),), ("08_main_dot",), {"batch_size": 2, "batches": 1, "largest_table": 10})

    def product(self) -> None:
        for count, depth, columns in self.sizes.products:
            a, b = self.normal(count, depth), self.normal(depth, columns)
            exact = a.double() @ b.double()
            errors = {}

            def way(precision: Precision, a: Tensor = a, b: Tensor = b, exact: Tensor = exact, errors: dict = errors):
                def call() -> Tensor:
                    with settings(0, precision):
                        return a @ b

                def right(out: Tensor) -> bool:
                    errors[precision] = float((out.double() - exact).abs().max() / exact.abs().max())
                    return errors[precision] <= 0.01

                return Way({"precision": str(precision)}, [call] * CALLS, right, lambda: {"error": errors[precision]})

            self.compare(
                "product", [way(precision) for precision in PRECISIONS], rows=count, depth=depth, columns=columns,
                flops=2 * count * depth * columns,
            )

    def step(self) -> None:
        for chosen in (replace(step, **self.sizes.smaller) for step in TRACED_STEPS if step.name in self.sizes.steps):
            step, _ = training_step(chosen, self.device)
            both = {precision: in_precision(step, precision) for precision in PRECISIONS}
            for function in itertools.islice(itertools.cycle(both.values()), 2 * WARM_UP):
                function()
            times = step_times(both)
            for precision, function in both.items():
                right = bool(function().isfinite())
                self.add("step", times[precision], right, "ms", step=chosen.name, precision=str(precision))


def in_precision(step: Callable[[], Tensor], precision: Precision) -> Callable[[], Tensor]:
    """The step, with this precision of float32 products."""

    def run() -> Tensor:
        with settings(0, precision):
            return step()

    return run


main = Tf32.main
