"""09, A backward: `python -m lessons.n09_a_backward --save`, and the ops' recorded backwards."""

from __future__ import annotations

import re

from kernels.device.column_sum_launch import row_chunks, tile_shape
from lessons.n09_a_backward import arithmetic, sum_launch
from lessons.n09_a_backward.arithmetic import COLUMNS, NUMBERS, ROWS
from lessons.n09_a_backward.recorded import BACKWARD, add_relu_backward, backward
from lessons.shared.claim import claim
from lessons.shared.records import LEAST, apart, copy_us

NOTEBOOK = "09"
one = BACKWARD.one


def faster(fast, slow, least: float = LEAST) -> tuple:
    """µs of both; the first is faster, and not by chance."""
    assert apart(fast, slow, least)
    assert fast["us_p50"] < slow["us_p50"]
    return fast["us_p50"], slow["us_p50"]


def _bytes() -> tuple:
    return 4 * NUMBERS / 1e6, copy_us(4 * NUMBERS)


def _slow_steps() -> tuple:
    """µs of both, the rows of a turn of the second's loop, and how much longer than one of the first's it takes."""
    first, second = (one("step", step=step)["us_p50"] for step in ("sum_rows", "sum_tiles"))
    assert second < first / 2
    return first, second, sum_launch.ROWS, sum_launch.ROWS * second / first


def _chunked_steps() -> tuple:
    atomics, staged, torch = (one("step", step=step) for step in ("sum_atomic", "sum_chunk", "torch"))
    faster(staged, torch)
    assert staged["us_p50"] < one("step", step="sum_tiles")["us_p50"] / 2
    return atomics["us_p50"], staged["us_p50"], torch["us_p50"]


def _chunks() -> tuple:
    few, some, many = (one("chunks", step="sum_chunk", chunks=count) for count in (1, 64, 16384))
    faster(some, few)
    faster(some, many)
    return few["us_p50"], some["us_p50"], many["us_p50"]


def _one_chunk() -> tuple:
    """In Triton 3.6's SASS for sm_90 both loops have 8 loads of 16 bytes in 4 turns, all needed within them: in
    sum_chunk's, as in sum_tiles', their first uses wait 3 times, in sum_atomic's 5 times."""
    staged, atomics = faster(*(one("chunks", step=step, chunks=1) for step in ("sum_chunk", "sum_atomic")))
    assert 1.4 < atomics / staged < 5 / 3
    return (atomics / staged,)


def _many_chunks() -> tuple:
    """Programs of 4 rows cost both ways; what two stages take beyond atomics is what the second launch should."""
    few, many = one("chunks", step="sum_chunk", chunks=1), one("chunks", step="sum_chunk", chunks=16384)
    atomics = one("chunks", step="sum_atomic", chunks=16384)
    second = few["us_p50"] * 16384 / ROWS  # at the rate of 16 programs
    assert 0.9 < (many["us_p50"] - atomics["us_p50"]) / second < 1.1
    return ROWS // 16384, atomics["us_p50"], sum_launch.programs("sum_tiles", 16384, COLUMNS)


def _fixed_order() -> tuple:
    """What it costs with 512 chunks; then the least µs of each way."""
    atomics, staged = faster(*(one("step", step=step) for step in ("sum_atomic", "sum_chunk")))
    best = []
    for step in ("sum_atomic", "sum_chunk"):
        found = BACKWARD.rows("chunks", step=step)
        best.append(found.loc[found["us_p50"].idxmin()])
    assert best[1]["us_p20"] < best[0]["us_p80"]
    assert best[1]["chunks"] == 64
    return staged - atomics, *(row["us_p50"] for row in best)


def _errors() -> tuple:
    found = tuple(one("order", step=step)["error"] for step in ("sum_rows", "sum_atomic", "sum_chunk"))
    assert found[0] > found[1] > found[2]
    return found


def _different() -> tuple:
    atomics, staged = (one("order", step=step) for step in ("sum_atomic", "sum_chunk"))
    assert atomics["runs"] == staged["runs"] == 50
    assert atomics["columns"] == COLUMNS
    assert atomics["differing"] > 0
    assert staged["differing"] == 0
    return (atomics["differing"],)


def _lost() -> tuple:
    """In float32; in bfloat16 and with add_relu as well."""
    for activation in ("relu", "gelu"):
        faster(*(backward(name, activation, "bfloat16") for name in ("torch.compile", "triton")))
    for dtype in ("float32", "bfloat16"):
        faster(*(add_relu_backward(name, dtype) for name in ("torch.compile", "triton")), least=1.02)
    relu = faster(backward("torch.compile", "relu"), backward("triton", "relu"))
    gelu = faster(backward("torch.compile", "gelu"), backward("triton", "gelu"))
    return relu + gelu


def _won() -> tuple:
    faster(backward("triton", "sigmoid", "bfloat16"), backward("torch.compile", "sigmoid", "bfloat16"))
    return faster(backward("triton", "sigmoid"), backward("torch.compile", "sigmoid"))


def _rate(name: str, activation: str) -> float:
    """Percent of the copy's rate at which the counted bytes go."""
    size = arithmetic.backward_bytes(name, activation, 4)
    return 100 * copy_us(size * NUMBERS) / backward(name, activation)["us_p50"]


def _written(activation: str, kind: str) -> None:
    """The recorded compiler keeps what the lesson says."""
    head = BACKWARD.head("generated")[activation]["backward"][0]
    assert ("i1" in head) == (kind == "a mask"), head
    assert arithmetic.COMPILER[activation] == kind


def _relu_bytes() -> tuple:
    _written("relu", "a mask")
    found = [arithmetic.backward_bytes(name, "relu", 4) for name in ("torch.compile", "triton")]
    return (*found, _rate("torch.compile", "relu"), _rate("triton", "relu"))


def _gelu_bytes() -> tuple:
    _written("gelu", "the derivative")
    found = {arithmetic.backward_bytes(name, "gelu", 4) for name in ("torch.compile", "triton")}
    assert len(found) == 1
    return (*found, _rate("torch.compile", "gelu"), _rate("triton", "gelu"))


def _sigmoid_bytes() -> tuple:
    return tuple(arithmetic.backward_bytes(name, "sigmoid", 4) for name in ("torch.compile", "triton"))


def _compiled_chunks() -> tuple:
    """Chunks of the compiler's sum, and the numbers from one to the next, from its address."""
    lines = BACKWARD.head("generated")["relu"]["backward"]
    (step,) = {int(found) for line in lines for found in re.findall(r"r0_\d \+ (\d+)\*x1", line)}
    return NUMBERS // step, step


def _cuda() -> tuple:
    found = [backward("cuda", activation) for activation in ("relu", "gelu")]
    for row, activation in zip(found, ("relu", "gelu"), strict=True):
        faster(row, backward("triton", activation))
    faster(found[0], backward("torch.compile", "relu"), least=1)
    faster(backward("torch.compile", "gelu"), found[1], least=1)
    return tuple(row["us_p50"] for row in found)


def _op(chunks: int, sums: bool, activation: str = "relu"):
    return one("op", activation=activation, chunks=chunks, sums=sums)


def _without_sums() -> tuple:
    """With 512 chunks; the sum is less than half of what is beyond the bytes' µs."""
    without, with_sums = faster(_op(512, False), _op(512, True))
    assert with_sums - without < (with_sums - copy_us(NUMBERS * arithmetic.backward_bytes("triton", "relu", 4))) / 2
    return without, with_sums


def _many() -> tuple:
    """µs without the sum, its percent of the copy's rate, µs with it: 4096 chunks."""
    faster(_op(4096, False), _op(512, False))
    without, with_sums = faster(_op(4096, False), _op(4096, True))
    rate = 100 * copy_us(NUMBERS * arithmetic.backward_bytes("triton", "relu", 4)) / without
    assert abs(rate - _rate("torch.compile", "relu")) < 1
    second = one("chunks", step="sum_chunk", chunks=1)["us_p50"] * 4096 / ROWS  # so many rows by 16 programs
    assert 0.75 < (with_sums - without) / second < 1.25
    return without, rate, with_sums


def _best() -> tuple:
    found = BACKWARD.rows("op", activation="relu", sums=True)
    assert found.loc[found["us_p50"].idxmin()]["chunks"] == 256
    assert row_chunks(ROWS, COLUMNS, tile_shape(COLUMNS, 4)[1])[0] == 256
    for chunks in (384, 768):
        faster(_op(chunks, False), _op(512, False))  # it stands out
    return faster(_op(256, True), _op(512, True), least=1)[:1]


def _in_all() -> tuple:
    """Bytes a number, forward and backward, of the compiler's and of ours: relu, gelu."""
    found = []
    for activation in ("relu", "gelu"):
        for name, kept in (("torch.compile", arithmetic.COMPILER), ("triton", arithmetic.KEPT)):
            forward, _ = arithmetic.traffic(arithmetic.WAYS.index(kept[activation]), 4)
            found.append(forward + arithmetic.backward_bytes(name, activation, 4))
    return tuple(found)


def _kept() -> tuple:
    found = ROWS * COLUMNS / 1e6, 4 * ROWS * COLUMNS / 1e6
    for activation, mb in zip(("relu", "gelu"), found, strict=True):
        rows = {name: one("training", what="both", activation=activation, dtype="float32", implementation=name)
                for name in ("torch.compile", "triton")}
        assert abs(rows["torch.compile"]["kept"] / 1e6 - mb) < 0.1
        assert rows["triton"]["kept"] < 1e5
    return found


def _together() -> tuple:
    """Ours is faster, in the forward alone, too."""
    found = []
    for activation in ("relu", "gelu"):
        for what in ("forward", "both"):
            ours, theirs = (one("training", what=what, activation=activation, dtype="float32", implementation=name)
                            for name in ("triton", "torch.compile"))
            us = faster(ours, theirs, least=1)
        found += reversed(us)
    return tuple(found)


def _orders() -> tuple:
    assert len(set(arithmetic.orders(1000))) > 2
    return ()


claim(NOTEBOOK, "At the copy's rate its {:.1f} MB take {:.1f} µs.", _bytes)
claim(NOTEBOOK, "A row at a time takes {:.0f} µs, 32 rows at a time {:.0f} µs: a turn of the loop reads {} times as "
      "much, and takes {:.1f} times as long.", _slow_steps)
claim(NOTEBOOK, "With 512 chunks atomics take {:.1f} µs, and two stages {:.1f} µs; PyTorch's own sum takes {:.1f} µs.",
      _chunked_steps)
claim(NOTEBOOK, "with one chunk two stages take {:.0f} µs, with 64 they take {:.1f} µs, with 16384 they take {:.0f} "
      "µs.", _chunks)
claim(NOTEBOOK, "with one, atomics take {:.1f} times as long, because their loop's SASS has fewer loads under way.",
      _one_chunk)
claim(NOTEBOOK, "With 16384 a program has {} rows, and atomics take {:.0f} µs; in two stages {} programs also sum a "
      "large workspace.", _many_chunks)
claim(NOTEBOOK, "With 512 chunks {:.1f} µs; with the best number for each way nothing: {:.1f} µs and {:.1f} µs, within "
      "the spread.", _fixed_order)
claim(NOTEBOOK, "On the H200 the median error is {:.1e} a row at a time, {:.1e} with atomics, and {:.1e} in two "
      "stages.", _errors)
claim(NOTEBOOK, "in 50 runs of the atomics on the same x, {:.0f} of 512 columns came out in several ways; in 50 runs "
      "of the two stages none did.", _different)
claim(NOTEBOOK, "(a + b) + c` and `a + (b + c)` may differ", _orders)
claim(NOTEBOOK, "For relu torch.compile takes {:.1f} µs and our Triton kernel {:.1f} µs, for gelu {:.1f} and {:.1f} "
      "µs: we lose, in bfloat16 and with `add_relu` as well.", _lost)
claim(NOTEBOOK, "Only for sigmoid our Triton kernel is faster, {:.1f} µs against {:.1f} µs.", _won)
claim(NOTEBOOK, "sums chunks into a workspace ({} chunks: `{}*x1` is where one begins)", _compiled_chunks)
claim(NOTEBOOK, "for relu it moves {} bytes a number to our {}, and is faster: they go at {:.0f} % of the copy's rate, "
      "ours at {:.0f} %.", _relu_bytes)
claim(NOTEBOOK, "but its sum reads one more: {} bytes each, at {:.0f} and {:.0f} %.", _gelu_bytes)
claim(NOTEBOOK, "For sigmoid it reads `out`, {} bytes to our {}.", _sigmoid_bytes)
claim(NOTEBOOK, "These times are with 512 chunks. The sum explains the smaller part: {:.1f} µs without "
      "`grad_bias`, {:.1f} µs with it.", _without_sums)
claim(NOTEBOOK, "Without it 4096 chunks take {:.1f} µs, at the compiler's {:.0f} %; with it they take {:.1f} µs, "
      "for the second launch has more to add.", _many)
claim(NOTEBOOK, "512 is not the best: with 256 it takes {:.1f} µs, and our op has 256 here. Why 512 stands out", _best)
claim(NOTEBOOK, "Our CUDA kernel takes {:.1f} µs for relu, less than the compiler, and {:.1f} µs for gelu, "
      "more.", _cuda)
claim(NOTEBOOK, "in all it moves {} bytes a number to our {} for relu, {} to {} for gelu.", _in_all)
claim(NOTEBOOK, "it keeps {:.1f} MB for relu and {:.1f} MB for gelu, ours nothing.", _kept)
claim(NOTEBOOK, "Both directions together take {:.1f} µs with torch.compile and {:.1f} µs with ours for relu, "
      "{:.1f} µs and {:.1f} µs for gelu: our kernel loses the backward, and wins the step.", _together)
