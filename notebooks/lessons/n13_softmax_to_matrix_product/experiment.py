"""What the notebook's cells do not measure: `python -m lessons.n13_softmax_to_matrix_product --save`, on a GPU.

    step    relu(x weightᵀ + bias) of a square in bfloat16 by each of the notebook's steps: µs, and what `ncu` counts of
            one launch, bytes that the SMs got from the L2, and how busy both were
"""

from __future__ import annotations

import sys
from functools import partial

import torch
from torch import Tensor

from lessons.n13_softmax_to_matrix_product.product_kernels import MORE, STEPS, describe, launch, layer_kernel
from lessons.shared import ncu
from lessons.shared.experiment import Experiment, Way

LAYER = {name: partial(launch, layer_kernel, **step) for name, step in STEPS.items()}
LAYER |= {name: partial(describe, **step) for name, step in MORE.items()}
SECTOR_BYTES = 32  # what ncu counts the L2's reads in
# ncu's names → the record's, and how many of the record's unit one of them is.
METRICS = {
    "l1tex__m_xbar2l1tex_read_sectors.sum": ("to_sms", SECTOR_BYTES),
    "lts__t_sectors_srcunit_tex_op_read.sum": ("from_l2", SECTOR_BYTES),
    "dram__bytes_read.sum": ("from_memory", 1),
    "gpu__time_duration.sum": ("ncu_us", 1),
    "L2 Cache Throughput": ("l2_percent", 1),
    "Compute (SM) Throughput": ("sm_percent", 1),
}


class Products(Experiment):
    """What products.json has; ncu: its command, and why it counted nothing ("" if it did). to_sms, from_l2,
    from_memory: bytes that the SMs got, that the L2 read for them, and that came from memory; ncu_us: meanwhile;
    l2_percent, sm_percent: of what each can do."""

    NAME = "products"
    PARTS = ("step",)
    COMMANDS = ("launch_once",)
    FULL, SMALL = 4096, 16

    def operands(self) -> tuple[Tensor, Tensor, Tensor]:
        dtype = torch.bfloat16 if self.device.type == "cuda" else torch.float32
        n = self.sizes
        return tuple(self.normal(*shape, dtype=dtype) for shape in ((n, n), (n, n), (n,)))

    def step(self) -> None:
        x, weight, bias = self.operands()
        exact = (x.double() @ weight.double().T + bias.double()).relu()
        bound = (0.01 if self.gpu else 1e-5) * exact.max()

        def right(out: Tensor) -> bool:
            return bool(((out.double() - exact).abs() <= bound).all())

        counted = self.counted()
        ways = [
            Way({"name": name}, [partial(layer, x, weight, bias)], right, partial(counted.get, name, {}))
            for name, layer in LAYER.items()
        ]
        self.compare("step", ways, rows=self.sizes, flops=2 * self.sizes**3)

    def counted(self) -> dict[str, dict[str, float]]:
        """What ncu counts of each step's launch; {} without it."""
        report = ncu.run(ncu_command("ncu", sys.executable)) if self.gpu else {"lines": [], "why": "not run"}
        self.extra["ncu"] = {"command": " ".join(ncu_command()), "why": report["why"]}
        print(f"ncu       {len(report['lines'])} lines {report['why']}", flush=True)
        return {
            name: {own: value[metric] * unit for metric, (own, unit) in METRICS.items() if metric in value}
            for name, (_, value) in zip(LAYER, ncu.launches(report["lines"]), strict=False)
        }

    def launch_once(self) -> None:
        """only start each step, once, in order: what ncu is given"""
        operands = self.operands()
        for layer in LAYER.values():
            layer(*operands)
        self.synchronize()


def ncu_command(program: str = "ncu", python: str = "python") -> list[str]:
    """The launches of launch_once, counted; at the GPU's own clock, as they are timed."""
    kernels = ["--kernel-name-base", "function", "--kernel-name", "regex:^(layer|descriptor)_kernel$"]
    metrics = ",".join(name for name in METRICS if "__" in name)
    counted = ["--clock-control", "none", "--section", "SpeedOfLight", "--metrics", metrics]
    module = "lessons.n13_softmax_to_matrix_product"
    return [program, *kernels, *counted, python, "-m", module, "launch_once"]


main = Products.main
