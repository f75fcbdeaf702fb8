"""A clock, the time of a launch, and TF32: `python -m lessons.n02_where_the_time_goes`, on a GPU.

    clock     ms after which a product's call has returned, and after which the product is done
    launch    in one process, by turns: `x + 1`, the reader's own step (notebook 01), and two of the recorded steps
    product   a cuBLAS product in float32 and in TF32: µs, and its largest error over the largest number of the result
    step      ms of the recorded steps in float32 and in TF32, by turns

TF32 rounds the numbers that are multiplied to 10 bits of the fraction, keeps float32's 23 in the sums, and takes the
tensor cores (https://docs.pytorch.org/docs/stable/notes/cuda.html#tf32-on-ampere).
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from data.synthetic import SyntheticConfig
from kernels import runtime
from lessons.shared import dlrm
from lessons.shared.experiment import Experiment, Way, kernels_of
from model.config import Precision
from model.device import settings
from model.profiling.recording import WARM_UP, step_times
from model.profiling.traced_steps import TRACED_STEPS, training_step

PRECISIONS = (Precision.FP32, Precision.TF32)
CALLS = 5  # of a product, captured together
ADDITIONS = 200  # timed together


@dataclass(frozen=True)
class Sizes:
    """side: of the clock's matrix. rows: of the reader's batch. products: (rows, depth, columns) of DLRM's forward with
    a batch of 2048, `outer`'s the last; then squares. smaller: fields of the recorded steps that are replaced."""

    side: int = 4096
    rows: int = 2048
    products: tuple[tuple[int, int, int], ...] = (
        (2048, 512, 256), (2048, 367, 512), (2048, 186624, 512), (4096, 4096, 4096), (8192, 8192, 8192),
    )
    steps: tuple[str, ...] = ("06_main_outer", "08_main_dot")
    smaller: dict[str, int] = field(default_factory=dict)


class StepTime(Experiment):
    """What step_time.json has."""

    NAME = "step_time"
    PARTS = ("clock", "launch", "product", "step")
    FULL = Sizes()
    SMALL = Sizes(8, 4, ((4, 5, 6),), ("08_main_dot",), {"batch_size": 2, "batches": 1, "largest_table": 10})

    def clock(self) -> None:
        x = self.normal(self.sizes.side, self.sizes.side)
        returned, done = [], []
        for _ in range(12):
            self.synchronize()
            start = time.perf_counter()
            x @ x
            returned.append(1e3 * (time.perf_counter() - start))
            self.synchronize()
            done.append(1e3 * (time.perf_counter() - start))
        for name, times in (("returned", returned), ("done", done)):
            self.add("clock", times[2:], True, "ms", name=name, side=self.sizes.side)  # the first two load libraries

    def launch(self) -> None:
        """The host counts, so the record says which it is."""
        self.extra["platform"] = runtime.versions()["platform"]
        x = torch.ones(64, 64, device=self.device)

        def additions() -> Tensor:
            return [x + 1 for _ in range(ADDITIONS)][-1]

        steps = {"the reader's step": self._own_step(), **dict(self._recorded_steps())}
        for step in itertools.islice(itertools.cycle([additions, *steps.values()]), WARM_UP * (len(steps) + 1)):
            step()
        times = step_times({"x + 1": additions, **steps})
        self.add("launch", 1e3 * times["x + 1"] / ADDITIONS, bool((additions() == 2).all()), name="x + 1", launches=1)
        for name, step in steps.items():
            counted = kernels_of(step) if self.gpu else {}
            self.add("launch", times[name], bool(step().isfinite()), "ms", name=name, **counted)

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
        for name, step in self._recorded_steps():
            both = {precision: in_precision(step, precision) for precision in PRECISIONS}
            for function in itertools.islice(itertools.cycle(both.values()), 2 * WARM_UP):
                function()
            times = step_times(both)
            for precision, function in both.items():
                right = bool(function().isfinite())
                self.add("step", times[precision], right, "ms", step=name, precision=str(precision))

    def _recorded_steps(self):
        for chosen in (replace(step, **self.sizes.smaller) for step in TRACED_STEPS if step.name in self.sizes.steps):
            yield chosen.name, training_step(chosen, self.device)[0]

    def _own_step(self) -> Callable[[], Tensor]:
        """Notebook 01's model and step, on random rows."""
        sizes = SyntheticConfig(2000).cardinalities
        torch.manual_seed(0)
        model = dlrm.DLRM(sizes).to(self.device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        rows = self.sizes.rows
        ids = torch.randint(1 << 32, (rows, len(sizes)), device=self.device)
        batch = torch.randint(2, (rows,), device=self.device).float(), self.normal(rows, 13), ids
        return lambda: dlrm.step(model, optimizer, *batch)


def in_precision(step: Callable[[], Tensor], precision: Precision) -> Callable[[], Tensor]:
    """The step, with this precision of float32 products."""

    def run() -> Tensor:
        with settings(0, precision):
            return step()

    return run


main = StepTime.main
