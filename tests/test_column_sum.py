"""How kernels/device/column_sum_launch.py cuts rows into chunks."""

import json

import pytest
import torch

from kernels import runtime
from kernels.device import column_sum_launch
from kernels.device.column_sum_launch import add_chunks, chunk_tile, row_chunks, tile_shape
from kernels.measure.records import README_GPU, RESULTS


def chunks_of(rows, columns, itemsize):
    return row_chunks(rows, columns, tile_shape(columns, itemsize)[1])


@pytest.mark.parametrize(
    ("rows", "columns", "itemsize", "chunks"),
    [
        (65536, 512, 4, 256),  # four tiles
        (65536, 512, 8, 256),  # eight: never fewer than 256
        (65536, 4096, 4, 256),
        (65536, 384, 4, 341),  # three
        (65536, 512, 2, 512),  # two: a half's tile is twice as wide
        (1 << 20, 128, 4, 512),  # one: never more than 512
        (1 << 20, 1, 4, 64),  # 16384 elements each
        (2048, 4096, 4, 128),  # 16 rows each
        (3, 5, 4, 1),
    ],
)
def test_a_matrix_of_many_tiles_is_cut_into_fewer_chunks(rows, columns, itemsize, chunks):
    assert chunks_of(rows, columns, itemsize) == (chunks, -(-rows // chunks))


def test_so_many_chunks_are_taken_if_they_are_given():
    assert row_chunks(100, 512, 128, 7) == (7, 15)


@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_the_recorded_shape_is_cut_as_was_fastest(activation):
    rows = json.loads((RESULTS / README_GPU / "backward.json").read_text())["rows"]
    times = {
        row["chunks"]: row["us_p50"] for row in rows
        if row["part"] == "op" and row["activation"] == activation and row["sums"]
    }
    assert chunks_of(65536, 512, 4)[0] == min(times, key=times.get)


@pytest.mark.parametrize(
    ("chunks", "columns"),
    [(7, 1024), (9, 1535), (2, 1023), (33, 31), (31, 33), (512, 64), (5, 1)],
)
def test_chunks_are_added_by_every_tile(chunks, columns, monkeypatch):
    if reason := runtime.why_not("triton", runtime.device().type):
        pytest.skip(reason)
    monkeypatch.setattr(column_sum_launch, "interpreted", lambda: False)  # the tiles of a GPU
    monkeypatch.setattr(column_sum_launch, "MANY_COLUMNS", 1024)
    torch.manual_seed(chunks)
    target = torch.randn(chunks, columns, device=runtime.device())
    result = torch.full((columns,), torch.nan, device=runtime.device())
    rows, block, _ = chunk_tile(chunks, columns)
    assert (rows, block) == ((min(rows, 8), 512) if columns >= 1024 else (rows, 32))
    assert rows == 32 or rows == 8 < chunks or chunks <= rows < 2 * chunks
    add_chunks(target, result)
    error = (result - target.double().sum(0)).abs()
    assert (error <= chunks * torch.finfo(torch.float32).eps * target.double().abs().sum(0)).all()
