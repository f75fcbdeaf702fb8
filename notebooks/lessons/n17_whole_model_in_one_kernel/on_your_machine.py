"""mini on this machine: the reader's kernel beside the others, and registers as a compiler reports them."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

import kernels
from kernels import runtime
from kernels.measure.clock import Gpu, percentiles
from kernels.ops.dlrm.shape import Shape
from kernels.ops.dlrm.source import source_of
from kernels.runtime import KERNELS
from lessons.n17_whole_model_in_one_kernel import mini_kernel
from lessons.shared.timing import print_times

CALLS = 20  # of a captured graph
NO_GPU = "There is no GPU to time it on. Built by g++, it gives the same results as eager."


def parts_of(model: nn.Module) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """(tables, weights, biases) of a Mini, the bottom's layers first."""
    linears = [layer for layer in (*model.bottom, *model.top) if isinstance(layer, nn.Linear)]
    return [t.weight for t in model.tables], [layer.weight for layer in linears], [layer.bias for layer in linears]


@torch.no_grad()
def race(kernel: str, model: nn.Module, dense: Tensor, ids: Tensor) -> None:
    """Print µs of the reader's kernel, called from Python and on the GPU alone, beside the library's op and eager's.
    Without a GPU: whether the kernel, built by g++, gives what eager gives."""
    if mini_kernel.has_launch(kernel):
        print("A launch() of your own is not timed. Give the kernel alone.")
        return
    mine = mini_kernel.inline(kernel)
    tables, weights, biases = parts_of(model)
    ways = {
        "yours": lambda: mine(dense, ids, tables, weights, biases),
        "kernels.dlrm_forward": lambda: kernels.dlrm_forward(
            dense, tables, ids, None, weights[:2], biases[:2], weights[2:], biases[2:], top_final="sigmoid"
        ),
        "eager": lambda: model(dense, ids),
    }
    if not dense.is_cuda:
        torch.testing.assert_close(ways["yours"](), ways["eager"]())
        print(NO_GPU)
        return
    print_times(ways, tolerance=1e-5)
    print_replays(ways)


def print_replays(ways: Mapping[str, Callable[[], Tensor]]) -> None:
    """µs of a call on the GPU alone: a CUDA graph of CALLS calls, replayed by turns."""
    gpu = Gpu()
    replays = {}
    for name, call in ways.items():
        gpu.on_side_stream(call)
        replays[name], _ = gpu.capture(lambda call=call: tuple(call() for _ in range(CALLS)))
    print("µs on the GPU, as a CUDA graph (20th to 80th percentile)")
    for name, times in gpu.times(replays).items():
        p20, p50, p80 = (value / CALLS for value in percentiles(times))
        print(f"  {name:<32} {p50:10.2f}  ({p20:.2f} to {p80:.2f})")


def shape(tables: int, width: int) -> Shape:
    """The small MLPs, 13-8-width and …-8-1, around so many tables of that width."""
    pairs = tables * (tables + 1) // 2
    return Shape((13, 8, width), (width + pairs, 8, 1), tables, ("relu", "relu", "relu", "sigmoid"))


def compiler_report(shape: Shape, arch: str = "sm_90") -> str:
    """Registers a thread and bytes that it spills, of the kernel that is generated for this shape even where the op
    refuses it: as ptxas reports them to nvcc, which needs no GPU."""
    if not runtime.nvcc():
        return "nvcc is not here"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cu"
        file.write_text(source_of(shape))
        return report_of(compile_log(file, f"-arch={arch}", f"-I{KERNELS}"))


def compile_log(file: Path, *options: str) -> str:
    """What nvcc and ptxas say of a file of kernels."""
    command: Sequence = [runtime.nvcc(), "-cubin", "-std=c++17", "-Xptxas", "-v", *options, "-o", f"{file}.cubin", file]
    return subprocess.run(command, capture_output=True, text=True, check=True).stderr


def report_of(log: str) -> str:
    """ptxas' lines of one kernel, in short."""
    spilled = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", log)
    registers = re.search(r"Used (\d+) registers", log)
    return f"{registers[1]:>3} registers, {spilled[1]:>5} bytes spilled, {spilled[2]:>5} read back"
