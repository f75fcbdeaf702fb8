"""09: what the prose compares, and numbers of other lessons; each other number in it stands in an output."""

from __future__ import annotations

from lessons.n09_a_backward.puzzles import traffic
from lessons.n09_a_backward.recorded import BACKWARD, CHUNKS, COLUMNS, KEPT, ROWS, WAYS, sum_row
from lessons.shared.claim import claim, quotes
from lessons.shared.records import ADD_MUL_ACTIVATION, GPU, LEAST, apart, copy_us, sms

NOTEBOOK = "09"
MANY = 16384  # chunks, the most of the record
quotes(NOTEBOOK)


def faster(*rows) -> tuple:
    """µs of all; each is faster than the last, and not by chance."""
    assert all(apart(row, rows[-1]) and row["us_p50"] < rows[-1]["us_p50"] for row in rows[:-1])
    return tuple(row["us_p50"] for row in rows)


def same(*rows) -> tuple:
    """Nothing: their differences are none."""
    assert not any(apart(a, b) for a in rows for b in rows)
    return ()


def _needed() -> tuple:
    """KB in flight on an SM with which notebook 06's copy first comes near its best: 16 programs of 256 elements."""
    us = {block: GPU.one("flight", block=block, programs=16)["us_p50"] for block in (128, 256, 512)}
    best = GPU.rows("flight", programs=16)["us_p50"].min()
    assert us[128] > 1.25 * best
    assert us[512] < us[256] < 1.1 * best
    return (16 * 4 * 256 / 1e3,)


def _wait() -> tuple:
    """ns of a wait of sum_rows, whose loop has four rows a wait, and of an idle read."""
    idle, ns = GPU.rows("latency"), 1e3 * sum_row("sum_rows")["us_p50"] / (ROWS / 4)
    latency = idle.loc[idle["size"].idxmax()]["ns_p50"]
    assert 0.7 < latency / ns < 1
    return ns, latency


def _tiles() -> tuple:
    """ns of a wait; the µs that sum_tiles' waits with four warps would take, 3 for 128 rows; its µs."""
    (ns, _), us = _wait(), sum_row("sum_tiles")["us_p50"]
    expected = ROWS / 128 * 3 * ns / 1e3
    assert 0.8 < expected / us < 1
    return ns, expected, us


def _best() -> tuple:
    same(*map(sum_row, WAYS))
    for way, step in WAYS.items():
        assert LEAST * BACKWARD.rows("chunks", step=step)["us_p50"].min() > sum_row(way)["us_p50"]
    assert sum_row("torch")["us_p50"] > 2 * sum_row("two stages")["us_p50"]
    return CHUNKS, sum_row("two stages")["us_p50"], 100 * (LEAST - 1)


def _one_chunk() -> tuple:
    faster(*(sum_row(way, chunks=1) for way in ("two stages", "atomics")))
    return same(sum_row("two stages", chunks=1), sum_row("sum_tiles"))


def _many_chunks() -> tuple:
    """Chunks, programs, rows of each; µs in which they begin, at the rate of notebook 06's copy in such programs."""
    programs = MANY * COLUMNS // 32
    copy = GPU.one("flight", block=128, programs=0)  # a program for each tile
    begin = programs / (copy["bytes"] / (8 * 128)) * copy["us_p50"]
    assert 0.5 < begin / sum_row("atomics", MANY)["us_p50"] < 1
    return MANY, programs, ROWS // MANY, begin


def _second_launch() -> tuple:
    """Rows of the workspace. What two stages take more than atomics is the second launch, at the rate of one chunk."""
    staged, atomics = (sum_row(way, MANY)["us_p50"] for way in ("two stages", "atomics"))
    assert 0.9 < (staged - atomics) / (sum_row("two stages", 1)["us_p50"] * MANY / ROWS) < 1.1
    return (MANY,)


def _order_chunks() -> tuple:
    """Chunks of the runs. A record that does not say has them in the rows of its steps, of the same command."""
    rows = BACKWARD.one("order", step="sum_chunk"), BACKWARD.one("step", step="sum_rows")
    return (next(row["chunks"] for row in rows if row.get("chunks", 0) > 0),)


def _differing() -> tuple:
    atomics, staged = (BACKWARD.one("order", step=WAYS[way])["differing"] for way in ("atomics", "two stages"))
    assert (atomics, staged) == (COLUMNS, 0)
    return ()


def backward(activation: str) -> list:
    """The rows of torch.compile, and of ours in Triton and in CUDA."""
    labels = {"activation": activation, "dtype": "float32"}
    names = ("torch.compile", "triton", "cuda")
    return [ADD_MUL_ACTIVATION.one("backward", implementation=name, **labels) for name in names]


def _shares() -> tuple:
    """The least share of the copy's rate; the compiler's least, and its most."""
    shares = []
    for activation, (theirs, ours) in KEPT.items():
        moved = traffic(theirs, 4)[1] + 4, *[traffic(ours, 4)[1]] * 2  # as in the cell
        least = [100 * copy_us(ROWS * COLUMNS * bytes) for bytes in moved]
        shares.append([us / row["us_p50"] for us, row in zip(least, backward(activation), strict=True)])
    theirs = [share for share, *_ in shares]
    return min(map(min, shares)), min(theirs), max(theirs)


def _gelu() -> tuple:
    theirs, triton, cuda = backward("gelu")
    return faster(theirs, triton) + same(theirs, cuda)


def _both() -> tuple:
    ours, theirs = (
        {how: BACKWARD.one("training", implementation=name, activation=how) for how in ("gelu", "relu")}
        for name in ("triton", "torch.compile")
    )
    return faster(ours["gelu"], theirs["gelu"])[::-1] + same(ours["relu"], theirs["relu"])


claim(NOTEBOOK, "there are 16 programs for {} SMs", lambda: (sms(),))
claim(NOTEBOOK, "To come near the copy's rate, an SM needs at least {:.0f} KB (notebook 06).", _needed)
claim(NOTEBOOK, "The recorded time is {:.0f} ns a wait. A read from an idle HBM takes {:.0f} ns,", _wait)
claim(NOTEBOOK, "At {:.0f} ns a wait, four warps would take {:.0f} µs. They take {:.0f} µs.", _tiles)
claim(NOTEBOOK, "On the H200, with {} chunks, two stages take {:.1f} µs, and atomics are neither faster nor slower. No "
      "other recorded number of chunks makes either faster by {:.0f} %.", _best)
claim(NOTEBOOK, "two stages take as long as step 2. Atomics take longer,", _one_chunk)
claim(NOTEBOOK, "With {} chunks there are {:,} programs, each for {:.0f} rows. To begin them takes {:.0f} µs, most of "
      "the atomics' time (notebook 06).", _many_chunks)
claim(NOTEBOOK, "In two stages, the second launch then adds up {} rows, again by 16 programs.", _second_launch)
claim(NOTEBOOK, "There, atomics and two stages have {:.0f} chunks:", _order_chunks)
claim(NOTEBOOK, "With atomics, every column differed between runs. With two stages none did.", _differing)
claim(NOTEBOOK, "Float32 keeps 24 bits,")
claim(NOTEBOOK, "All move their bytes at {:.0f} % of the copy's rate or more, and the compiler at {:.0f} to {:.0f} %.",
      _shares)
claim(NOTEBOOK, "there is no difference in time.", lambda: same(*backward("relu")))
claim(NOTEBOOK, "Ours are faster, in Triton and in CUDA.", lambda: faster(*reversed(backward("sigmoid"))))
claim(NOTEBOOK, "we lose in Triton: `torch.compile` takes {:.1f} µs, and our kernel {:.1f} µs. In CUDA there is no "
      "difference.", _gelu)
claim(NOTEBOOK, "For gelu on the H200, both directions take {:.1f} µs with `torch.compile` and {:.1f} µs with ours. So "
      "we lose the backward, but win both together. For relu there is no difference.", _both)
