"""DLRM's forward in one kernel, by the design that is asked for: the library chooses it by the number of rows."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from unittest.mock import patch

import torch
from torch import Tensor, nn

from kernels import runtime
from kernels.ops.dlrm import cuda_launch
from kernels.ops.dlrm.cluster import Clusters
from kernels.ops.dlrm.pair import pairs_for
from kernels.ops.dlrm.tile import tiles_for

BOTTOM, TOP = (13, 512, 256, 64, 16), (367, 512, 256, 1)
TABLES, HEIGHT = 26, 10_000


@functools.cache
def _held(dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Tables, then weights and biases of both MLPs, one after the other."""
    options = {"dtype": dtype, "device": runtime.device()}
    layers = [nn.Linear(a, b, **options) for widths in (BOTTOM, TOP) for a, b in itertools.pairwise(widths)]
    parameters = [parameter.detach() for layer in layers for parameter in (layer.weight, layer.bias)]
    return *torch.randn(TABLES, HEIGHT, BOTTOM[-1], **options).unbind(), *parameters


def draw(given: tuple[int, torch.dtype]) -> tuple[Tensor, ...]:
    """Dense features and ids of so many rows, and what the model holds."""
    rows, dtype = given
    device = runtime.device()
    dense = torch.randn(rows, BOTTOM[0], device=device).to(dtype)
    return dense, torch.randint(HEIGHT, (rows, TABLES), device=device), *_held(dtype)


def arguments(dense: Tensor, ids: Tensor, *held: Tensor) -> Sequence:
    """These as dlrm_forward takes them, up to the biases of the top MLP."""
    tables, parameters = held[:TABLES], held[TABLES:]
    bottom, top = parameters[: 2 * len(BOTTOM) - 2], parameters[2 * len(BOTTOM) - 2 :]
    return dense, tables, ids, None, bottom[::2], bottom[1::2], top[::2], top[1::2]


@contextmanager
def by(name: str) -> Iterator[None]:
    """In here a CUDA kernel is of this design: "tiles", "clusters" of eight blocks, or "pairs" of two."""

    def design_of(shape, dtype, precision, arch, shared_bytes, batch=1, blocks=1):
        if name == "clusters":
            return Clusters.of(shape, dtype, 16, shared_bytes)
        if name == "pairs":
            return pairs_for(shape, dtype, shared_bytes, blocks)
        return tiles_for(shape, dtype, shared_bytes, batch, blocks)

    with patch.object(cuda_launch, "design_of", design_of):
        yield
