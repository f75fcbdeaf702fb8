"""Which backend takes which MLP, and which is faster: what backend="auto" goes by."""

from __future__ import annotations

import functools
import itertools
import math

import torch
from torch import Tensor
from torch.compiler import is_compiling

from ... import runtime
from ...device import launch
from ...tracing import constant_in_a_graph
from . import budget, packing, tiles

FEW = 100_000  # weights a layer, on average: an MLP of fewer is Triton's
BY_LAYERS = 256  # rows: from so many on an MLP of more weights, too wide for one kernel, predicts layer by layer


@functools.lru_cache(maxsize=1024)
def cuda_rows(widths: str, dtype: torch.dtype, precision: str, device: torch.device) -> float:
    """Up to so many rows backend="auto" is "cuda" for CUDA tensors, above it "triton".

    In Triton's kernel a program reads all weights for its 16 rows; in the CUDA kernel eight blocks share them, and wait
    for one another after every layer. That pays where weights are many and rows so few that every tile has eight
    multiprocessors. On an H200, µs, Triton / CUDA, tf32; bfloat16 goes the same ways:

                                  a layer    128 rows       256            512             1024
        13-512-256-64-16           39 000   13.6 / 16.5   13.7 / 17.9    13.8 / 21.6     13.9 / 25.9
        1024-256-64-1              93 000   17.3 / 18.3   17.3 / 18.5    17.5 / 27.9     17.6 / 28.7
        367-512-256-1             106 000   24.7 / 17.4   26.0 / 25.0    25.2 / 25.1     24.9 / 34.7
        512-512-512               262 000   28.6 / 14.7   28.6 / 23.8    28.7 / 23.9     28.9 / 41.5
        479-1024-1024-512-256-1   439 000    137 / 55      137 / 90       139 / 163       144 / 168
        1024-1024               1 049 000   51.7 / 22.0   51.7 / 39.7    51.9 / 62.8     52.1 / 75.8

    (One run. Since then Triton loads 367 and 479 columns some 5 % faster. At 128 rows the record has 13.4 / 17.3, and
    23.4 / 18.3 for 367-512-256-1.) In bfloat16 a tile may have 32 rows: at 512 rows 479-… takes 106 / 72, 512-512-512
    21.7 / 16.4. Full float32 products go without tensor cores: at 2048 rows Triton's take four times as long as CUDA's.
    """
    if dtype == torch.float64 or runtime.why_not("cuda", "cuda"):
        return 0
    try:
        budget.check_cuda("fused_mlp", widths, dtype, device)
    except budget.FusedMLPError:
        return 0
    if dtype == torch.float32 and precision == "ieee":
        return math.inf
    of_layer = weights_of_a_layer(widths)
    if of_layer < FEW:
        return 0
    return 128 if of_layer < 2 * FEW else 1024 // dtype.itemsize


@functools.lru_cache(maxsize=1024)
def takes(
    backend: str, rows: int, widths: str, dtype: torch.dtype, precision: str, keep: bool, device: torch.device
) -> bool:
    """Whether the backend's kernels take such a call: a forward, and with `keep` the backward, of triton_launch.py."""
    available = launch.shared_memory(device)
    if backend == "eager":
        return True
    if keep and not tiles.backward_tile(rows, widths, dtype, precision, available=available)[1].fits:
        return False
    if backend == "triton":
        # By the tile through the workspace: which one a launch takes hangs on the activation too.
        return tiles.forward_tile(rows, widths, dtype, precision, keep=keep, available=available, least=rows)[1].fits
    try:
        budget.check_cuda("fused_mlp", widths, dtype, device)
    except budget.FusedMLPError:
        return False
    return True


@functools.lru_cache(maxsize=256)
def takes_any_rows(backend: str, widths: str, dtype: torch.dtype, precision: str, device: torch.device) -> bool:
    """The same of any number of rows, with and without a backward, as a compiled graph has them."""
    kinds = itertools.product(tiles.MOST_ROWS, (False, True))
    return all(takes(backend, rows, widths, dtype, precision, keep, device) for rows, keep in kinds)


@constant_in_a_graph
def graph_takes(*arguments) -> bool:
    """`takes_any_rows` while torch.compile traces."""
    return takes_any_rows(*arguments)


@constant_in_a_graph  # whose change compiles anew
def float32_products() -> str:
    """What a GPU's float32 products are set to: "tf32" or "ieee". (torch.get_float32_matmul_precision raises where the
    newer settings are used.)"""
    return "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "ieee"


def is_full_float32(dtype: torch.dtype, precision: str) -> bool:
    """Whether products go without tensor cores. There a kernel for all layers gains nothing over cuBLAS: on an H200,
    2048 rows, µs, eager / CUDA / Triton: 13-512-256-64-16 44.3 / 43.0 / 175, 367-512-256-1 54.7 / 67.8 / 261."""
    return dtype == torch.float32 and precision == "ieee"


@constant_in_a_graph
def why_eager_in_a_graph(widths: str, dtype: torch.dtype, precision: str, device: torch.device) -> str:
    """Why "auto" is eager in a compiled graph, which is for any number of rows; "" where a kernel computes it."""
    if is_full_float32(dtype, precision):
        return "in full float32 its form is eager, cuBLAS being as fast"
    if not takes_any_rows("triton", widths, dtype, precision, device):
        return "the layers are too wide for one kernel"
    return ""


@constant_in_a_graph
def graph_rows(widths: str, dtype: torch.dtype, trains: bool) -> tuple[float, float]:
    """(from, to) how many rows a compiled graph takes one kernel for the layers; for others Inductor is as fast.

    For one row it makes no matrix products. On an H200, µs by replay, the weights copied in the graph, Inductor / ours:

        inference            a layer    128 rows       512            2,048          8,192          32,768
        tf32                 (k weights)
        64-512-256-1          55    15.0 / 14.5    17.4 / 14.6    20.6 / 14.8    38.4 / 27.3    122.6 / 92.1
        13-512-256-128        57    17.2 / 15.3    22.6 / 15.4    21.9 / 16.2    43.4 / 25.8    134.6 / 84.7
        256-256-256           66    11.7 / 11.9    11.8 / 11.9    13.2 / 12.7    23.7 / 19.3     64.8 / 63.6
        429-400-400-1        111    20.5 / 22.3    25.9 / 42.0    39.2 / 42.7    77.0 / 53.2    228.6 / 192.0
        bfloat16
        13-512-256-128        57    12.5 /  9.8    14.3 / 10.1    16.4 / 10.3    29.2 / 20.0     83.0 / 39.2
        256-256-256           66     7.2 /  7.7     7.5 /  7.9     8.6 /  8.3    13.7 / 14.6     37.5 / 30.1
        429-400-400-1        111    17.7 / 16.7    26.2 / 22.2    38.8 / 22.5    67.5 / 54.4    123.2 / 113.4

    and a step of `main`, its MLPs left to Inductor / the bottom one ours / the top one ours:

        rows       128                2,048              8,192              16,384               65,536
        tf32       149 / 128 / 160    280 / 254 / 281    567 / 585 / 627    972 / 1044 / 1129    3205 / 3556 / 4145
        bfloat16   –                  250 / 216 / 214    –                  660 / 620 / 708      2220 / 2163 / 2523
    """
    count, of_layer, is_half = len(packing.layers(widths)), weights_of_a_layer(widths), dtype.itemsize == 2
    if trains:
        most = math.inf if is_half else 4096
        return 2, most if of_layer < FEW else 4096 * is_half
    if count == 2 and of_layer > FEW / 2:  # there is little between the two that could be saved
        return 16384, math.inf
    return 2 if is_half or of_layer < FEW else 4096, math.inf


def is_outside(rows: int | torch.SymInt, widths: str, dtype: torch.dtype, trains: bool) -> bool:
    """Whether a compiled graph leaves so many rows to Inductor. One whose rows are open takes the kernel: a guard would
    compile it twice, and refuse a range that mark_dynamic promised."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    least, most = graph_rows(widths, dtype, trains)
    return statically_known_true(rows < least) or statically_known_true(rows > most)


def weights_of_a_layer(widths: str) -> float:
    """How many a layer has on average."""
    parts = packing.layers(widths)
    return sum(layer.inputs * layer.outputs for layer in parts) / len(parts)


def auto_of(
    rows: int | torch.SymInt, widths: str, dtype: torch.dtype, precision: str, keep: bool, device: torch.device
) -> str:
    """"cuda" for few rows, "triton" for more and where torch.compile traces, whose graph may be for any number; "eager"
    where these do not take them, in full float32, and in a graph outside of `graph_rows`."""
    if is_compiling():
        is_eager = why_eager_in_a_graph(widths, dtype, precision, device) or is_outside(rows, widths, dtype, keep)
        return "eager" if is_eager else "triton"
    if is_full_float32(dtype, precision):
        return "eager"
    return kernel_of(rows, widths, dtype, precision, keep, device)


def kernel_of(
    rows: int, widths: str, dtype: torch.dtype, precision: str, keep: bool, device: torch.device
) -> str:
    """The faster of "cuda" and "triton"; "eager", a product a layer, where that does not take the layers.

    Without a gradient, in tf32 and halves, it is "eager" from BY_LAYERS rows on, too, where a layer has FEW weights or
    more on average and Triton's kernel does not take every number of rows: each tile of rows would read all weights
    once more. With a gradient no step was measured. On an H200, 479-1024-1024-512-256-1, µs by replay, a product a
    layer / one kernel (and with the weights' gradients):

        rows         256            512                            1,024           2,048
        tf32         35.3 / 98.5    41.0 / 122 (148 / 272)         51.1 / 121      70.7 / 128 (251 / 376)
        bfloat16     34.7 / 40.6    36.3 / 70.5 (95.3 / 144)       47.8 / 122
    """
    by_layers = not keep and rows >= BY_LAYERS and dtype != torch.float64 and not is_full_float32(dtype, precision)
    is_wide = by_layers and not takes_any_rows("triton", widths, dtype, precision, device)
    if is_wide and weights_of_a_layer(widths) >= FEW:
        return "eager"
    backend = "cuda" if 0 < rows <= cuda_rows(widths, dtype, precision, device) else "triton"
    # First without the rows: of a batch size that is new nothing then is to be found out.
    if takes_any_rows(backend, widths, dtype, precision, device):
        return backend
    return backend if takes(backend, rows, widths, dtype, precision, keep, device) else "eager"


def auto(x: Tensor, packed: Tensor, widths: str, activation: str, final_activation: str, precision: str, keep: bool):
    """`auto_of` a call's arguments."""
    return auto_of(x.shape[0], widths, x.dtype, precision, keep, x.device) if x.dim() else "triton"
