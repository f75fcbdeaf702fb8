"""09, A backward: `python -m lessons.n09_a_backward --save`, and the ops' recorded backwards."""

from __future__ import annotations

import re

from kernels.device.column_sum_launch import row_chunks, tile_shape
from lessons.n09_a_backward import arithmetic, machine_code, sum_launch
from lessons.n09_a_backward.arithmetic import COLUMNS, ELEMENTS, ROWS
from lessons.n09_a_backward.recorded import BACKWARD, OP_CHUNKS, WAYS, backward, begin_per_ns, sum_row, training
from lessons.shared.claim import claim
from lessons.shared.records import GPU, LEAST, apart, copy_us, device, sms

NOTEBOOK = "09"
# By the SASS (test_lesson.py): rows a wait of sum_rows; waits for 128 rows of sum_tiles with four warps.
UNROLLED, WAITS = 4, 3
one = BACKWARD.one


def faster(fast, slow, least: float = LEAST) -> tuple:
    """µs of both; the first is faster, and not by chance."""
    assert apart(fast, slow, least)
    assert fast["us_p50"] < slow["us_p50"]
    return fast["us_p50"], slow["us_p50"]


def same(*rows) -> tuple:
    """µs of all, whose differences are none."""
    assert not any(apart(a, b) for a in rows for b in rows)
    return tuple(row["us_p50"] for row in rows)


def _whole_way() -> tuple:
    return faster(sum_row("two stages"), sum_row("sum_rows"))[::-1]


def _bytes() -> tuple:
    return 4 * ELEMENTS / 1e6, copy_us(4 * ELEMENTS)


def _wait_ns() -> float:
    return 1e3 * sum_row("sum_rows")["us_p50"] / (ROWS / UNROLLED)


def _wait() -> tuple:
    idle = GPU.rows("latency")
    return _wait_ns(), idle.loc[idle["size"].idxmax()]["ns_p50"]


def _instructions() -> tuple:
    """ns of sum_rows' loop without its wait; what is left is the latency, and not half as much again."""
    ns, latency = 1e3 * machine_code.clocks_of_loop("sum_rows", 1) / device("max_sm_mhz"), _wait()[-1]
    assert 0 < _wait_ns() - ns - latency < 0.5 * latency
    return (ns,)


def _in_flight() -> tuple:
    """KB that all programs have in flight together."""
    programs = COLUMNS // sum_launch.BLOCK
    return (programs * sum_launch.BLOCK * 4 * UNROLLED / 1024,)


def _needed() -> tuple:
    """KB in flight on an SM with which notebook 06's copy first comes near its best: 16 programs of 256 elements."""
    us = {block: GPU.one("flight", block=block, programs=16)["us_p50"] for block in (128, 256, 512)}
    best = GPU.rows("flight", programs=16)["us_p50"].min()
    assert us[128] > 1.25 * best
    assert us[512] < us[256] < 1.1 * best
    return (16 * 4 * 256 / 1e3,)


def _tiles() -> tuple:
    """ns of a wait, the µs that sum_tiles' waits with four warps would take, and its µs."""
    us, expected = sum_row("sum_tiles")["us_p50"], ROWS / 128 * WAITS * _wait_ns() / 1e3
    assert 0.8 < us / expected < 1.25
    return _wait_ns(), expected, us


def _best() -> tuple:
    _, staged = same(sum_row("atomics"), sum_row("two stages"))
    for way, step in WAYS.items():
        rows = BACKWARD.rows("chunks", step=step)
        assert LEAST * rows["us_p50"].min() > sum_row(way)["us_p50"]
    return sum_launch.CHUNKS, staged, 100 * (LEAST - 1)


def _torch() -> tuple:
    staged, theirs = faster(sum_row("two stages"), sum_row("torch"))
    assert theirs > 2 * staged
    return ()


def _one_chunk() -> tuple:
    """As many times as the waits of its loop say, 5 for 3, or fewer."""
    staged, atomics = faster(*(sum_row(way, chunks=1) for way in ("two stages", "atomics")))
    assert 1.4 < atomics / staged < 5 / WAITS
    return (atomics / staged,)


def _many_chunks() -> tuple:
    """Chunks, the rows of one, and of a tile, most of which are masked; µs of atomics, those in which its
    programs begin, and the programs; what two stages take more, and the second launch's µs at the rate of one
    chunk."""
    chunks, tiles = 16384, COLUMNS // sum_launch.BLOCK
    staged, atomics = (sum_row(way, chunks)["us_p50"] for way in ("two stages", "atomics"))
    second = sum_row("two stages", chunks=1)["us_p50"] * chunks / ROWS
    assert 0.9 < (staged - atomics) / second < 1.1
    begin = chunks * tiles / begin_per_ns() / 1e3
    assert begin < atomics
    rows, tile = ROWS // chunks, sum_launch.ROWS
    assert rows < tile / 2
    return chunks, rows, tile, atomics, begin, chunks * tiles, staged - atomics, second


def _different() -> tuple:
    atomics, staged = (one("order", step=step) for step in ("sum_atomic", "sum_chunk"))
    assert atomics["runs"] == staged["runs"]
    assert atomics["differing"] == atomics["columns"]
    assert staged["differing"] == 0
    chunks = atomics.get("chunks")
    chunks = 512 if chunks is None or chunks != chunks else chunks  # what the record without this label was made with
    return atomics["runs"], chunks


def _errors() -> tuple:
    """How many times as large in one sum."""
    one_sum, staged = (one("order", step=step)["error"] for step in ("sum_rows", "sum_chunk"))
    return (one_sum / staged,)


def _op(chunks: int, sums: bool, activation: str = "relu"):
    return one("op", activation=activation, chunks=chunks, sums=sums)


def _many() -> tuple:
    """µs without the sum, µs with it: 4096 chunks."""
    without, with_sums = faster(_op(4096, False), _op(4096, True))
    second = sum_row("two stages", chunks=1)["us_p50"] * 4096 / ROWS  # so many rows by 16 programs
    assert 0.75 < (with_sums - without) / second < 1.25
    return without, with_sums


def _default() -> tuple:
    for activation in ("relu", "gelu"):
        rows = BACKWARD.rows("op", activation=activation, sums=True)
        assert rows.loc[rows["us_p50"].idxmin()]["chunks"] == OP_CHUNKS
    assert row_chunks(ROWS, COLUMNS, tile_shape(COLUMNS, 4)[1])[0] == OP_CHUNKS
    return (OP_CHUNKS,)


def _compiled_chunks() -> tuple:
    """Chunks of the compiler's sum, and the elements from one to the next, from its address; it reads a mask."""
    lines = BACKWARD.head("generated", "relu", "backward")
    assert "i1" in lines[0]
    (step,) = {int(number) for line in lines for number in re.findall(r"r0_\d \+ (\d+)\*x1", line)}
    return ELEMENTS // step, step


def _relu() -> tuple:
    return same(*(backward(name, "relu") for name in ("torch.compile", "triton", "cuda")))


def _gelu() -> tuple:
    return faster(backward("torch.compile", "gelu"), backward("triton", "gelu"))


def _gelu_bytes() -> tuple:
    (size,) = {arithmetic.backward_bytes(name, "gelu") for name in ("torch.compile", "triton")}
    assert "i1" not in BACKWARD.head("generated", "gelu", "backward")[0]
    return (size,)


def _sigmoid() -> tuple:
    """On a GPU that has it on record: both of ours are faster than the compiler's."""
    record = BACKWARD.with_part("backward")
    assert record.head("GPU").startswith("NVIDIA H100")
    names = ("torch.compile", "triton", "cuda")
    theirs, *ours = (record.one("backward", implementation=name, activation="sigmoid") for name in names)
    for row in ours:
        faster(row, theirs)
    return ()


def _gelu_sum() -> tuple:
    compiled = backward("torch.compile", "gelu")
    for row in (_op(OP_CHUNKS, False, "gelu"), backward("cuda", "gelu")):
        assert row["us_p50"] < LEAST * compiled["us_p50"]
    return ()


def _step() -> tuple:
    gelu, relu = ([training("both", name, how) for name in ("torch.compile", "triton")] for how in ("gelu", "relu"))
    faster(*gelu[::-1])
    same(*relu)
    return tuple(row["us_p50"] for row in gelu)


def _kept() -> tuple:
    sizes = []
    for activation, itemsize in (("relu", 1), ("gelu", 4)):
        rows = {name: training("both", name, activation) for name in ("torch.compile", "triton")}
        assert abs(rows["torch.compile"]["kept"] - itemsize * ELEMENTS) < 1e5
        assert rows["triton"]["kept"] < 1e5
        sizes.append(itemsize * ELEMENTS / 1e6)
    return tuple(sizes)


def _table(way: str, waits: int) -> tuple:
    return waits, sum_row(way)["us_p50"]


def _limited() -> tuple:
    us, moved = _relu()[1], 4 * 4 * ELEMENTS
    assert 0.85 < copy_us(moved) / us < 1
    return moved // ELEMENTS, copy_us(moved), us


def _ends() -> tuple:
    return tuple(sum_row(way)["us_p50"] / copy_us(4 * ELEMENTS) for way in ("sum_rows", "two stages"))


claim(NOTEBOOK, "On an H200, you take this sum from {:.0f} µs to {:.1f} µs", _whole_way)
claim(NOTEBOOK, "At the copy's rate, its bytes take {:.1f} µs.", lambda: _bytes()[1:])
claim(NOTEBOOK, "there are 16 programs for {} SMs", lambda: (sms(),))
claim(NOTEBOOK, "So all programs together have {:.0f} KB in flight.", _in_flight)
claim(NOTEBOOK, "Each SM alone needs at least {:.0f} KB (notebook 06).", _needed)
claim(NOTEBOOK, "The recorded time divided by the number of waits is {:.0f} ns. A read from an idle HBM takes "
      "{:.0f} ns,", _wait)
claim(NOTEBOOK, "the loop's own instructions {:.0f} ns.", _instructions)
claim(NOTEBOOK, "For 128 rows, `sum_rows` waits {} times. `sum_tiles` with four warps waits only {} times.",
      lambda: (128 // UNROLLED, WAITS))
claim(NOTEBOOK, "At {:.0f} ns a wait, four warps would take {:.0f} µs. They take {:.0f} µs, because "
      "a wait for more loads ends later.", _tiles)
claim(NOTEBOOK, "On the H200, with {} chunks, two stages take {:.1f} µs, and atomics are neither faster nor slower. No "
      "other number of chunks makes either faster by {:.0f} %.", _best)
claim(NOTEBOOK, "PyTorch's own sum takes more than twice as long.", _torch)
claim(NOTEBOOK, "atomics take {:.1f} times as long as two stages.", _one_chunk)
claim(NOTEBOOK, "**{} chunks:** a chunk has {} rows, so most of a tile's {} rows are masked.",
      lambda: _many_chunks()[:3])
claim(NOTEBOOK, "| atomics | {:.0f} | {:.0f}, to begin {:,} programs (06) | | two stages take longer by | "
      "{:.0f} | {:.0f}, for the second launch at the rate of one chunk |", lambda: _many_chunks()[3:])
claim(NOTEBOOK, "On the H200, each way ran {:.0f} times on the same x, in {:.0f} chunks. With atomics, every "
      "column differed between runs. With two stages none did.", _different)
claim(NOTEBOOK, "the median error of a column is {:.0f} times as large in one sum as in two stages.", _errors)
claim(NOTEBOOK, "for relu, 4096 chunks take {:.1f} µs without `grad_bias` and {:.1f} µs with it.", _many)
claim(NOTEBOOK, "The op's default here is {}, the fastest on record with `grad_bias`.", _default)
claim(NOTEBOOK, "sums {} chunks into a workspace (chunk `x1` begins at `{}*x1`)", _compiled_chunks)
claim(NOTEBOOK, "On the H200, `torch.compile` takes {:.1f} µs for relu, and our kernels {:.1f} µs in Triton and {:.1f} "
      "µs in CUDA: no difference.", _relu)
claim(NOTEBOOK, "For sigmoid, on the H100, ours are faster.", _sigmoid)
claim(NOTEBOOK, "For gelu we lose in Triton: `torch.compile` takes {:.1f} µs, and our kernel {:.1f} µs.", _gelu)
claim(NOTEBOOK, "Both move {} bytes per element", _gelu_bytes)
claim(NOTEBOOK, "without it, our Triton kernel is within 3 % of the compiler's backward. Our CUDA kernel "
      "is within 3 % even with its sum.",
      _gelu_sum)
claim(NOTEBOOK, "For gelu on the H200, both directions take {:.1f} µs with `torch.compile` and {:.1f} µs with ours. So "
      "we lose the backward, but win both together. For relu there is no difference.", _step)
claim(NOTEBOOK, "the compiler keeps {:.1f} MB for relu and {:.1f} MB for gelu. Our op keeps nothing.", _kept)
claim(NOTEBOOK, "| the sum of {:.1f} MB |", lambda: _bytes()[:1])
claim(NOTEBOOK, "| the bytes at the copy's rate | | {:.1f} |", lambda: _bytes()[1:])
claim(NOTEBOOK, "| a row at a time, 16 programs | {} | {:.0f} |", lambda: _table("sum_rows", 128 // UNROLLED))
claim(NOTEBOOK, "| 32 rows at a time, 4 warps | {} | {:.0f} |", lambda: _table("sum_tiles", WAITS))
claim(NOTEBOOK, "| 128 chunks, two stages | {} | {:.1f} |", lambda: _table("two stages", WAITS))
claim(NOTEBOOK, "The whole backward of relu moves {} bytes per element. At the copy's rate they take {:.1f} of its "
      "{:.1f} µs, so memory limits it.", _limited)
claim(NOTEBOOK, "We began at {:.0f} times the bytes' time, and are at {:.1f} times.", _ends)
