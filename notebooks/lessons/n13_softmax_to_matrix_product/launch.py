"""How a step's kernel is launched: its configuration, and the steps from naive to tuned, one change each."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lessons.n13_softmax_to_matrix_product.product_kernels import naive_kernel, persistent_kernel, tiled_kernel

ALIGNED = 16  # bytes: a descriptor's rows begin at multiples of it


@dataclass(frozen=True)
class Config:
    """kernel: naive, tiled, descriptors (a program a tile) or persistent (a program an SM). rows, columns: of a tile of
    out; step: of K. group: rows of tiles that are taken together. units: which multiply. parts: pieces of a store."""

    kernel: str
    rows: int = 64
    columns: int = 64
    step: int = 32
    warps: int = 4
    stages: int = 1
    group: int = 1
    units: str = "tensor"
    parts: int = 1

    def __str__(self) -> str:
        if self.kernel == "naive":
            return "naive"
        tile = f"{self.rows}×{self.columns}×{self.step}"
        return f"{self.kernel} {tile}, {self.warps} warps, {self.stages} stages" + f", {self.parts} parts" * (
            self.parts > 1
        )


TILES = Config("tiled", units="ordinary")
TENSOR = replace(TILES, units="tensor")
STAGED = replace(TENSOR, stages=3)
LARGE = replace(STAGED, rows=128, columns=128, step=64, warps=8)
GROUPED = replace(LARGE, group=8)
DESCRIPTORS = replace(GROUPED, kernel="descriptors")
WIDE = replace(DESCRIPTORS, columns=256)
PERSISTENT = replace(WIDE, kernel="persistent")
STEPS = {
    "naive": Config("naive", step=512),
    "tiles": TILES,
    "tensor cores": TENSOR,
    "stages": STAGED,
    "larger tiles": LARGE,
    "grouped": GROUPED,
    "descriptors": DESCRIPTORS,
    "wider tiles": WIDE,
    "persistent": PERSISTENT,
}
TUNED, IN_PARTS = "tuned", "descriptors, in 2 parts"
# What the recorder times for each shape, to keep the fastest: few, since each is compiled.
CANDIDATES = (
    PERSISTENT,
    replace(PERSISTENT, stages=4, parts=2),
    replace(PERSISTENT, columns=128, stages=4),
    replace(PERSISTENT, rows=64, columns=64, warps=4, stages=4),
    WIDE,
    replace(DESCRIPTORS, rows=64, warps=4, stages=4),
    replace(DESCRIPTORS, columns=64, warps=4, stages=4),
    replace(DESCRIPTORS, rows=64, columns=64, warps=4, stages=4),
    replace(DESCRIPTORS, rows=64, columns=64, step=128, warps=4, stages=3),
    replace(DESCRIPTORS, rows=64, columns=32, step=128, warps=4, stages=4),
    GROUPED,
    replace(GROUPED, rows=64, columns=64, step=32, warps=4, stages=4),
    replace(GROUPED, rows=128, columns=16, step=64, warps=4, stages=4),
)


def fits(config: Config, x: Tensor, weight: Tensor, out: Tensor) -> bool:
    """Whether the kernel can take these tensors. Descriptors want rows at multiples of 16 bytes; the others, rows
    without a gap. A tile much wider than out is nobody's choice."""
    if config.kernel in ("descriptors", "persistent"):
        aligned = all(tensor.stride(0) * tensor.element_size() % ALIGNED == 0 for tensor in (x, weight, out))
        return aligned and config.columns <= 2 * out.shape[1]
    return all(tensor.is_contiguous() for tensor in (x, weight, out)) and config.columns <= 2 * max(64, out.shape[1])


def programs(config: Config, rows: int, columns: int) -> int:
    """How many are launched for such an out."""
    if config.kernel == "naive":
        return rows * columns
    tiles = -(-rows // config.rows) * -(-columns // config.columns)
    return min(tiles, _sms()) if config.kernel == "persistent" else tiles


def launch(config: Config, x: Tensor, weight: Tensor, bias: Tensor, out: Tensor, epilogue: bool = True):
    """out = relu(x weightᵀ + bias), or x weightᵀ alone; what was compiled (None in the interpreter)."""
    (M, K), N = x.shape, len(weight)
    grid = (programs(config, M, N),)
    if config.kernel == "naive":
        return naive_kernel[grid](x, weight, bias, out, M, N, K, STEP=config.step, num_warps=config.warps)
    tile = {"ROWS": config.rows, "COLUMNS": config.columns, "STEP": config.step, "GROUP": config.group,
            "EPILOGUE": epilogue, "num_warps": config.warps, "num_stages": config.stages}
    if config.kernel == "tiled":
        return tiled_kernel[grid](x, weight, bias, out, M, N, K, UNITS=config.units, **tile)
    from triton.tools.tensor_descriptor import TensorDescriptor

    described = [
        TensorDescriptor.from_tensor(tensor, [rows, columns])
        for tensor, rows, columns in ((x, config.rows, config.step), (weight, config.columns, config.step),
                                      (out, config.rows, config.columns // config.parts))
    ]
    a, b, c = described
    return persistent_kernel[grid](
        a, b, bias, c, M, N, K, PARTS=config.parts, FLATTEN=config.kernel == "persistent", **tile
    )


def _sms() -> int:
    if torch.cuda.is_available():
        return torch.cuda.get_device_properties(0).multi_processor_count
    return 4
