"""The designs of kernels/ops/dlrm, chosen by hand: the weights laid out for one, its kernel, and clusters cut anew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.device.source_launch import Source
from kernels.dispatch.intercept import recording
from kernels.ops.dlrm import cluster, cuda_launch
from kernels.ops.dlrm.cluster import Clusters, Layer, cycles_to_give
from kernels.ops.dlrm.shape import Shape
from kernels.ops.dlrm.tile import Tiles
from kernels.runtime import KERNELS
from lessons.shared.launcher import launcher

BOTTOM, TOP = (13, 512, 256, 64, 16), (367, 512, 256, 1)
MAIN = Shape(BOTTOM, TOP, 26, ("relu", "relu", "relu", "sigmoid"))
SMS, SHARED = 132, 232_448  # of an H200; bytes of shared memory that a block may have there


class _Now:
    """What cuda_launch.py's launches go to: each is launched at once."""

    interpreted, arch = False, 90

    def __init__(self, device: torch.device) -> None:
        self.device, self.on_gpu = device, device.type == "cuda"

    def workspace(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=self.device)

    def launch_source(self, source: Source, grid: tuple[int, ...], arguments: tuple) -> None:
        with recording(None):
            launcher(source)(grid, *arguments)


def lay_out(design: Tiles, weights: Sequence[Tensor], biases: Sequence[Tensor]) -> Tensor:
    """The weights and biases as the design's kernel takes them, by a launch of the op's own."""
    with recording(_Now(weights[0].device)):
        return cuda_launch.write_fragments(design, weights[0], weights, biases)


def program(design: Tiles) -> tuple[Source, int]:
    """The kernel of a design, and how many of its tiles an H200 computes at once."""
    return cuda_launch._program(design, SMS)


@dataclass(frozen=True)
class Cut(Clusters):
    """Clusters whose layers are cut by hand. cuts: "whole", "outputs", "inputs" or "rows", a layer each."""

    cuts: tuple[str, ...] = ()

    @property
    def layers(self) -> tuple[Layer, ...]:
        size = self.dtype.itemsize
        both = zip(self.shape.layers, self.cuts, strict=True)
        return tuple(Layer(inputs, outputs, cut, size, self.rows) for (inputs, outputs), cut in both)


def cut(cuts: Sequence[str], rows: int = 16, dtype: torch.dtype = torch.float32) -> Cut:
    """main by clusters whose layers are cut so, with the largest layer on chip for which there is room."""
    plain = Cut(MAIN, dtype, rows, cuts=tuple(cuts))
    sizes = [(layer.slots_bytes, i) for i, layer in enumerate(plain.layers) if layer.cut == "outputs"]
    room = SHARED - plain.shared_bytes
    _, resident = max(((bytes_, i) for bytes_, i in sizes if bytes_ <= room), default=(0, -1))
    return Cut(MAIN, dtype, rows, resident, cuts=tuple(cuts))


@dataclass(frozen=True)
class Step:
    """What one block of a cluster does for a layer. weights, given: bytes that come from the L2, and that it gives to
    the other blocks before the layer and behind it; cycles: estimated, of all of it."""

    cut: str
    weights: int
    given: int
    cycles: float


def steps(cuts: Sequence[str], rows: int = 16) -> list[Step]:
    """A layer each. ValueError: a layer that never has what it reads, by its number."""
    found, state, size, own_rows = [], "full", 4, rows // cluster.BLOCKS
    layers = Cut(MAIN, torch.float32, rows, cuts=tuple(cuts)).layers
    bottom, last = len(BOTTOM) - 1, len(MAIN.layers) - 1
    for i, layer in enumerate(layers):
        allowed = cluster._cuts(layer.outputs, i in (bottom - 1, last), i < bottom)
        if layer.cut not in allowed:
            raise ValueError(f"layer {i} cannot be cut by {layer.cut!r}: {' or '.join(allowed)}")
        given, weights = 0, layer.block_jobs * layer.block_halves * cluster.JOB_BYTES
        cycles = layer.cycles
        if i == bottom:  # the pairs of the own rows
            state = "rows"
        before = cluster._given(state, layer.cut, layers[:i], own_rows, i == 0)
        if before is None and i == bottom:
            columns = -(-layer.inputs * size // cluster.HALF_BYTES) * cluster.HALF_BYTES // size
            given, before = own_rows * columns * size * 7, cycles_to_give(own_rows * columns, size)
        elif before is None:
            why = "it reads a slice of the inputs, and the layer before is not cut by outputs"
            raise ValueError(f"layer {i} is cut by {layer.cut}: {why}")
        elif before:
            numbers = rows * layers[i - 1].block_jobs * 16 if state == "columns" else own_rows * layers[i - 1].covered
            given = numbers * size * 7
        if layer.cut == "inputs":
            given += 4 * rows * layer.covered * 7 // 8
        state = {"whole": "full", "outputs": "columns"}.get(layer.cut, "rows")
        found.append(Step(layer.cut, weights, given, cycles + before))
    return found


def weight_bytes(dtype: torch.dtype) -> int:
    """Of all layers and biases as tiles read them."""
    return Tiles(MAIN, dtype, 8).fragments * dtype.itemsize


def show(file: str, start: str) -> None:
    """Print a function of kernels/ops/dlrm/<file>: from the line with `start` to the brace that closes it."""
    lines = (KERNELS / "ops" / "dlrm" / file).read_text().splitlines()
    first = next(i for i, line in enumerate(lines) if start in line)
    indent = len(lines[first]) - len(lines[first].lstrip())
    last = next(i for i in range(first, len(lines)) if lines[i] == " " * indent + "}")
    print("\n".join(line.removeprefix(" " * indent) for line in lines[first : last + 1]))
