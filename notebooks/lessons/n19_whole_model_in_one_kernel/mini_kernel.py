"""The reader's kernel as a program to be judged, and as a source that is launched."""

from __future__ import annotations

import re
from pathlib import Path

from torch import Tensor, nn

from kernels.device.source_launch import Source
from kernels.ops.dlrm.shape import Shape

HEIGHTS, WIDTH = (10, 20, 30), 4
LAYERS = ((13, 8), (8, WIDTH), (10, 8), (8, 1))  # (inputs, outputs): the bottom's, then the top's
ROOM = Path(__file__).resolve().parent
AROUND = (ROOM / "around.cu").read_text()
HOLE = "// <kernel>\n"
LINE_OF = {name: f'#line 1 "{name}"\n' for name in ("kernel", "launch")}
BOUNDS = r"(?:__launch_bounds__\s*\([^)]*\)\s*)?"
GLOBAL = re.compile(rf"__global__\s+{BOUNDS}(?:static\s+)?void\s+{BOUNDS}(?=forward\b)")
BLOCKS = "(batch + 127) / 128, 128"  # of around.cu's launch
# What calls the kernel's text where Python launches it.
ENTRY = """
struct Arguments {
    const float* dense;
    const long long* ids;
    const float* table[3];
    long long height[3];
    const float *weight[4], *bias[4];
    float* out;
    long long batch;
};
extern "C" __global__ void __launch_bounds__(THREADS) mini(const __grid_constant__ Arguments given) {
    Model model;
    for (int f = 0; f < 3; ++f) model.table[f] = given.table[f], model.height[f] = int(given.height[f]);
    for (int l = 0; l < 4; ++l) model.weight[l] = given.weight[l], model.bias[l] = given.bias[l];
    forward(given.dense, given.ids, model, given.out, given.batch);
}
"""


def has_launch(kernel: str) -> bool:
    """Whether the text has a launch() of its own; a comment that speaks of one, or __launch_bounds__, is none."""
    without_comments = re.sub(r"//[^\n]*|/\*.*?\*/", " ", kernel, flags=re.S)
    return bool(re.search(r"\bvoid\s+launch\s*\(", without_comments))


def whole(kernel: str, threads: int = 128) -> str:
    """The text with the struct before it and launch() behind it, in blocks of so many threads, where it has no launch()
    of its own. Of an error the compiler names the line in the reader's text."""
    before, after = AROUND.replace(BLOCKS, f"(batch + {threads - 1}) / {threads}, {threads}").split(HOLE)
    return f"{before}{LINE_OF['kernel']}{kernel.strip()}\n" + ("" if has_launch(kernel) else LINE_OF["launch"] + after)


def source(kernel: str, threads: int = 128) -> Source:
    """The text for a launch in blocks of so many threads: of dense, ids, the tables, their heights, the weights and
    biases, out, and how many rows there are."""
    before, _ = AROUND.split(HOLE)
    text = "__device__ void ".join(GLOBAL.split(kernel.strip()))
    entry = ENTRY.replace("THREADS", str(threads))
    return Source("mini", f'#include "device/launch.cuh"\n{before}{text}\n{entry}', threads)


def parts_of(model: nn.Module) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """(tables, weights, biases) of a Mini, the bottom's layers first."""
    linears = [layer for layer in (*model.bottom, *model.top) if isinstance(layer, nn.Linear)]
    return [t.weight for t in model.tables], [layer.weight for layer in linears], [layer.bias for layer in linears]


def shape(tables: int, width: int) -> Shape:
    """A Mini's MLPs, 13-8-width and …-8-1, around so many tables of that width."""
    pairs = tables * (tables + 1) // 2
    return Shape((13, 8, width), (width + pairs, 8, 1), tables, ("relu", "relu", "relu", "sigmoid"))
