"""Which tile a forward takes, and that of many rows as it is compiled: no number is spilled, and it fits."""

from __future__ import annotations

import functools

import pytest
import torch

from ...device.launch import SHARED_MEMORY
from ...dispatch import cubin, plan
from ...inductor.machine_code import opcodes, sass
from . import budget, packing, tiles
from .budget import PROCESSORS
from .op import OP
from .tiles import backward_tile, forward_tile, is_on_chip, many, on_chip_tile, tile_of

HALF, FULL = torch.bfloat16, torch.float32
BOTTOM, MLPERF = "13-512-256-64-16", "13-512-256-128"


@pytest.mark.parametrize(("dtype", "waves"), [(FULL, 64), (HALF, 32), (torch.float16, 32)])
def test_layers_stay_on_the_chip_from_so_many_rows_on(dtype, waves):
    for widths in (BOTTOM, MLPERF):
        below, above = (forward_tile(waves * PROCESSORS + more, widths, dtype, "tf32") for more in (0, 1))
        assert below[0] == tile_of(waves * PROCESSORS, dtype, "tf32")
        assert above[0] == on_chip_tile(dtype)
        assert above[1].fits
    assert forward_tile(3, BOTTOM, dtype, "tf32", least=2)[0].on_chip
    assert not forward_tile(2, BOTTOM, dtype, "tf32", least=2)[0].on_chip
    assert many(dtype) in tiles.MOST_ROWS  # what holds for any number of rows is asked on both sides of it


@pytest.mark.parametrize("available", [SHARED_MEMORY[arch] for arch in (80, 89, 90)])
def test_the_warps_of_a_backward(available):
    """Of few rows in tf32 eight, but for those that a caller asks for; the tile fits."""
    for dtype, precision, of_few in ((FULL, "tf32", 8), (FULL, "ieee", 4), (HALF, "ieee", 4), (HALF, "tf32", 4)):
        for rows in (1, 256, 16 * PROCESSORS):
            take = functools.partial(backward_tile, rows, BOTTOM, dtype, precision, available=available)
            tile, needed = take()
            assert (tile.warps, needed.fits) == (of_few, True)
            assert take(warps=2)[0].warps == 2


@pytest.mark.parametrize(
    ("widths", "dtype", "fits"),
    [
        ("64-512-256-1", FULL, True),
        ("32-512-256-64-16", FULL, False),  # a kilobyte of registers a warp more than the bottom MLP
        ("32-512-256-64-16", HALF, True),
        ("64-512-256-128", HALF, False),
        ("65-512-256-64-16", HALF, False),  # its first layer is not computed within the second's loop
        ("13-512", HALF, False),
        ("13-512-256", HALF, True),
        ("13-512-257-64", HALF, False),  # not all columns at once
        ("13-512-256-257", HALF, False),
        ("13-512-256-128-64", FULL, False),  # a weight of 128 KB before the last
        ("13-512-256-128-64", HALF, True),
        ("13-512-1-64", HALF, False),
        ("13-512-64-1-64", HALF, True),
    ],
)
def test_which_layers_stay_on_the_chip(widths, dtype, fits):
    assert is_on_chip(1 << 20, widths, dtype, "tf32") == fits
    assert budget.stays_on_chip(packing.layers(widths), on_chip_tile(dtype), dtype) == fits


def test_what_keeps_layers_off_the_chip(monkeypatch):
    take = functools.partial(is_on_chip, 1 << 20, BOTTOM)
    assert take(FULL, "tf32")
    assert take(HALF, "ieee")
    assert not take(FULL, "ieee")
    assert not take(torch.float64, "ieee")
    assert not take(FULL, "tf32", keep=True)
    assert not take(FULL, "tf32", narrow=12)
    assert not take(FULL, "tf32", "gelu")
    assert not forward_tile(1 << 20, BOTTOM, FULL, "tf32", available=SHARED_MEMORY[86])[0].on_chip
    for arch in (75, 80, 89, 100, 120):
        monkeypatch.setattr(tiles.launch, "architecture", lambda device=None, arch=arch: arch)
        assert not take(FULL, "tf32")


def asked(monkeypatch, rows, widths, dtype):
    """The forward kernel that a launch of so many rows asks for, without a gradient, and its blocks."""
    kernels = []

    def note(kernel, device):
        kernels.append(kernel)
        return 0, cubin.Compiled("", "", 0, 0, 0, cubin.PLAIN)

    monkeypatch.setattr(plan, "_function", note)
    first = packing.layers(widths)[0].inputs
    x = torch.empty(rows, first, dtype=dtype, device="meta")
    packed = torch.empty(packing.elements(widths), dtype=dtype, device="meta")
    arguments = x, packed, widths, "relu", "sigmoid", "tf32", False
    plan.record(OP, "", arguments, OP.allocations("", arguments), 90)
    return kernels[-1]


def test_no_workspace_on_the_chip(monkeypatch):
    for rows, types in ((65536, "none"), (2048, "*fp32:16")):
        kernel = asked(monkeypatch, rows, BOTTOM, FULL)
        assert kernel.types[2] == types
        assert dict(kernel.constants)["ON_CHIP"] == (types == "none")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [FULL, HALF], ids=str)
@pytest.mark.parametrize(
    "widths", [BOTTOM, "16-512-256-64-16", MLPERF, "13-512-256-256", "64-512-256-1", "13-512-256-48-7"]
)
def test_nothing_is_spilled_on_the_chip(monkeypatch, tmp_path, widths, dtype):
    kernel = asked(monkeypatch, 65536, widths, dtype)
    assert dict(kernel.constants)["ON_CHIP"]
    compiled = cubin.compiled(kernel, tmp_path)
    with open(compiled.path, "rb") as file:
        lines = sass(file.read())
    needed = forward_tile(65536, widths, dtype, "tf32", available=SHARED_MEMORY[90])[1]
    assert compiled.shared <= needed.shared <= needed.available
    if lines is None:
        pytest.skip("no nvdisasm beside Triton")
    assert not {"STL", "LDL"} & opcodes(lines).keys()
    assert sum("HGMMA.64x256x" in line for line in lines) == dtype.itemsize  # a step of 32 columns
