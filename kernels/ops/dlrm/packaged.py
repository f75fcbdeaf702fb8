"""dlrm_forward for a process without Python: one model's kernels, its weights laid out once, and C++ that launches.

    program = Program.of(bottom, top, heights, dtype, precision, arch, shared_bytes)    or why there is none
    laid_out = program.lay_out(weights, biases)                                         once
    op, sources = program.build(folder)                                                 for kernels.library.build
    declare(op, program)                                                                the library is loaded
    op(dense, tables, rows, laid_out)                                                   → [B, N]

dlrm_forward itself is for any model: it finds the kernel by the call's arguments, in Python, and lays the weights out
in each call. Here model and GPU are known, so that the kernels are images in the library, and the weights are data.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from ...cubin import compile as cubins
from ...cubin.embed import embed
from ...device.source_launch import Source
from ...dispatch.cubin_files import EARLY, PLAIN
from .cluster import BLOCKS, Clusters, clusters_source
from .cuda_launch import design_of, source, write_fragments
from .pair import Pairs, pairs_source
from .shape import ROWS_OF_A_BLOCK, Shape
from .tile import ROWS, Tiles, tiles_source

NAME = "dlrm_forward_laid_out"
SCHEMA = "(Tensor dense, Tensor tables, Tensor rows, Tensor laid_out) -> Tensor out"
IMAGES = "dlrm_images"  # a namespace of C++
SCALAR_TYPES = {torch.float32: "Float", torch.float16: "Half", torch.bfloat16: "BFloat16"}
PIECE = 4  # elements of float32 that a small model's kernel reads at a time


@dataclass(frozen=True)
class Program:
    """The kernels of a model on GPUs of sm_<arch>, an id a feature and row.

    designs: Clusters, and then Pairs, whose weights are laid out, or Tiles; of each by their rows, fewest first; or one
    Shape.
    heights: the tables' rows; they lie one behind the other.
    """

    designs: tuple[Shape | Tiles, ...]
    heights: tuple[int, ...]
    dtype: torch.dtype
    arch: int

    @classmethod
    def of(
        cls, bottom: Sequence[int], top: Sequence[int], heights: Sequence[int], dtype: torch.dtype, precision: str,
        arch: int, shared_bytes: int,
    ) -> Program | str:
        """By dlrm_forward's own rule; or why it takes no such model.

        Args:
            bottom, top: widths of the MLPs, inputs first; ReLU behind each layer but the top's last.
            precision: of float32 products, "ieee" or "tf32". shared_bytes: that a block may have.
        """
        starts = itertools.accumulate(heights[:-1], initial=0)
        is_aligned = not any(start * bottom[-1] * dtype.itemsize % 16 for start in starts)
        shape = Shape(tuple(bottom), tuple(top), len(heights), aligned=is_aligned)
        # Where one cluster runs at once, and where one block does, these batches have a kernel for each number of rows
        # that fits.
        designs = [
            design_of(shape, dtype, precision, arch, shared_bytes, rows, multiprocessors)
            for multiprocessors in (2 * BLOCKS, 1) for rows in ROWS
        ]  # fmt: skip
        if isinstance(designs[0], str):
            return designs[0]
        if any(isinstance(each, Pairs) for each in designs):  # then Tiles are for no GPU that there is
            designs = [each for each in designs if type(each) is not Tiles]
        laid_out = (replace(each, laid_out=True) if isinstance(each, Clusters | Pairs) else each for each in designs)
        return cls(tuple(dict.fromkeys(laid_out)), tuple(heights), dtype, arch)

    @property
    def shape(self) -> Shape:
        design = self.designs[0]
        return design.shape if isinstance(design, Tiles) else design

    @property
    def places(self) -> list[int]:
        """Where a small model's weights, and then its biases, begin among what is laid out; behind them the end."""
        sizes = [inputs * outputs for inputs, outputs in self.shape.layers]
        sizes += [outputs for _, outputs in self.shape.layers]
        return [*itertools.accumulate((-(-size // PIECE) * PIECE for size in sizes), initial=0)]

    @property
    def layouts(self) -> dict[type, Tiles]:
        """A design for each order in which tiles take the weights, in that in which they lie one behind the other."""
        tiles = [design for design in self.designs if isinstance(design, Tiles)]
        return {_order(design): design for design in tiles}

    def begin_of(self, design: Shape | Tiles) -> int:
        """Where its weights begin among what is laid out, in elements."""
        layouts = itertools.takewhile(lambda order: order is not _order(design), self.layouts)
        return sum(self.layouts[order].fragments for order in layouts)

    @property
    def elements(self) -> int:
        """Of what is laid out."""
        return sum(design.fragments for design in self.layouts.values()) or self.places[-1]

    def lay_out(self, weights: Sequence[Tensor], biases: Sequence[Tensor]) -> Tensor:
        """All layers' weights and biases as the kernels take them: [elements] of dtype, on the CPU.

        The fragments of tiles are written by the kernel that writes them on a GPU, compiled for this CPU. On a GPU they
        must not be what the launch before a call writes: clusters and pairs read them before it ends.
        """
        of_all = [tensor.detach().to("cpu", self.dtype).contiguous() for tensor in (*weights, *biases)]
        weights, biases = of_all[: len(weights)], of_all[len(weights) :]
        if self.layouts:
            layouts = self.layouts.values()
            return torch.cat([write_fragments(design, weights[0], weights, biases) for design in layouts])
        laid_out = torch.zeros(self.elements, dtype=self.dtype, device="cpu")
        for begin, tensor in zip(self.places, of_all, strict=False):
            laid_out[begin : begin + tensor.numel()] = tensor.flatten()
        return laid_out

    def build(self, folder: Path) -> tuple[str, list[Path]]:
        """(name of the op, C++ files that register and launch it, for kernels.library.build), written into the folder.

        The name holds a hash of all that the op does, so that a process may load the libraries of several models.

        Raises CubinError: no nvcc, or what it said.
        """
        with ThreadPoolExecutor() as pool:  # nvcc takes some ten seconds for a kernel
            images = [*pool.map(lambda design: self._image(design, folder), self.designs)]
        header, bytes_ = embed(IMAGES, images, folder, array=True)
        digest = hashlib.sha256(repr([self._text("", "")] + [image.read_bytes() for image in images]).encode())
        digest.update(Path(__file__).with_name("packaged.h").read_bytes())
        overload = f"m{digest.hexdigest()[:16]}"
        code = folder / "dlrm_packaged.cpp"
        code.write_text(self._text(overload, header.name))
        return f"{NAME}.{overload}", [code, bytes_]

    def _image(self, design: Shape | Tiles, folder: Path) -> Path:
        name, program = name_of(design), source_of(design)
        text = folder / f"{name}.cu"
        text.write_text(program.text)
        image = cubins.by_nvcc(text, self.arch, ["-std=c++17"], specific=program.specific)
        numbers = 7 + 6 * self.shape.features
        if isinstance(design, Shape):
            numbers = 4 + 4 * self.shape.features + 2 * len(self.shape.layers)
        # The launch before may be what writes x and the ids. Tiles read both before they wait for it, so that they may
        # not begin early; Clusters and Pairs whose weights are laid out read nothing but these before they wait.
        kind = EARLY if self.arch >= 90 and type(design) is not Tiles else PLAIN
        described = {
            "name": name, "entry": program.name, "threads": program.threads, "shared": program.shared,
            "kind": kind, "hidden": 0,
            "parameters": [{"name": "given", "type": "s", "bytes": 8 * numbers, "multiple": 1}],
        }  # fmt: skip
        return cubins.write(folder, name, self.arch, image, described)

    def _text(self, overload: str, images: str) -> str:
        shape, design = self.shape, self.designs[0]
        starts = itertools.accumulate(self.heights[:-1], initial=0)
        names = (f'"{name_of(each)}"' for each in self.designs)
        rows, clusters = map(_rows, self.designs), (source_of(each).cluster for each in self.designs)
        begins = map(self.begin_of, self.designs)
        places = "nullptr" if isinstance(design, Tiles) else "places"
        return f"""\
// Written by kernels/ops/dlrm/packaged.py: dlrm_forward of one model, for GPUs of sm_{self.arch}.
#include "ops/dlrm/packaged.h"

#include "{images}"

namespace {{

const int64_t starts[] = {{{_numbers(starts)}}}, heights[] = {{{_numbers(self.heights)}}};
const int64_t places[] = {{{_numbers(self.places)}}};
const int64_t rows_of_kernel[] = {{{_numbers(rows)}}}, cluster_of_kernel[] = {{{_numbers(clusters)}}};
const int64_t weights_of_kernel[] = {{{_numbers(begins)}}};
const char* const kernels[] = {{{", ".join(names)}}};
const dlrm::Packaged model = {{
    "{NAME}", ScalarType::{SCALAR_TYPES[self.dtype]}, {shape.bottom[0]}, {shape.top[-1]}, {shape.width}, \
{shape.features}, {len(shape.layers)}, starts, heights,
    {sum(self.heights)}, {self.elements}, {places}, kernels, rows_of_kernel, cluster_of_kernel, weights_of_kernel,
    {len(self.designs)},
}};

const char* run(const fused::Argument* given, const fused::Context* context) {{
    // Never unloaded: where a process ends, the driver may have ended before.
    static cubin::Program& program = *new cubin::Program({IMAGES}::images);
    return dlrm::told([&] {{ dlrm::launch(model, program, given, context->stream); }});
}}

Tensor forward(const Tensor& dense, const Tensor& tables, const Tensor& rows, const Tensor& laid_out) {{
    return dlrm::forward(model, fused::Entry{{run, 6}}, dense, tables, rows, laid_out);
}}

}}  // namespace

STABLE_TORCH_LIBRARY_FRAGMENT(fused_kernels, packaged) {{
    Registration ours;
    ours.add("{NAME}.{overload}", "{SCHEMA}", TORCH_BOX(&forward));
}}
"""


def declare(op: str, program: Program) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """The op of `build`, whose library is loaded, for torch.export: dense [B, K], tables [all rows, D], rows int64
    [B, F], each of its own table, laid_out → [B, N]."""
    name, _, overload = op.partition(".")

    def fake(dense: Tensor, tables: Tensor, rows: Tensor, laid_out: Tensor) -> Tensor:
        return dense.new_empty(dense.shape[0], program.shape.top[-1])

    if op not in _declared:
        torch.library.register_fake(f"fused_kernels::{op}", fake)
        _declared.add(op)
    return getattr(getattr(torch.ops.fused_kernels, name), overload)


_declared: set[str] = set()


def source_of(design: Shape | Tiles) -> Source:
    """What is compiled for a design."""
    if isinstance(design, Clusters):
        return clusters_source(design)
    if isinstance(design, Pairs):
        return pairs_source(design)
    return tiles_source(design) if isinstance(design, Tiles) else source(design)


def name_of(design: Shape | Tiles) -> str:
    if isinstance(design, Clusters):
        return f"clusters_{design.rows}"
    if isinstance(design, Pairs):
        return "pairs"
    return f"tiles_{design.rows}" if isinstance(design, Tiles) else "lanes"


def _order(design: Shape | Tiles) -> type:
    """Of weights: Pairs, or that of all other tiles."""
    return Pairs if isinstance(design, Pairs) else Tiles


def _rows(design: Shape | Tiles) -> int:
    return design.rows if isinstance(design, Tiles) else ROWS_OF_A_BLOCK


def _numbers(values: Iterable[int]) -> str:
    return ", ".join(map(str, values))
