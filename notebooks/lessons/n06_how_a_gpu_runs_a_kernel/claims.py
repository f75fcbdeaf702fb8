"""06, How a GPU runs a kernel: what `python -m lessons.n06_how_a_gpu_runs_a_kernel --save` recorded."""

from __future__ import annotations

import math
import re
from collections import Counter
from functools import partial

from lessons.n06_how_a_gpu_runs_a_kernel import recorded
from lessons.n06_how_a_gpu_runs_a_kernel.experiment import PER_SM, TILE, Sizes
from lessons.n06_how_a_gpu_runs_a_kernel.recorded import ROOFS, copy_gb, in_flight, latency_ns, product, stride_gb
from lessons.shared.claim import claim, printed
from lessons.shared.occupancy import PROGRAMS, REGISTERS, THREADS
from lessons.shared.records import (
    GPU,
    LANES,
    LEAST,
    Record,
    apart,
    device,
    gb_per_s,
    l2_tb_per_s,
    memory_tb_per_s,
    sms,
    tflop_per_s,
    yardstick,
)

NOTEBOOK = "06"
KIB, MIB = 2**10, 2**20


def pytorch() -> float:
    """GB/s of PyTorch's copy."""
    return 1e3 * yardstick()


def said(sentence: str, values=tuple) -> None:
    claim(NOTEBOOK, sentence, values)


def _smaller_copy() -> tuple:
    """MB that are copied, GB/s, both ways counted."""
    row = Record("cuda_steps").one("copy", of="step")
    assert gb_per_s(row) < 0.97 * pytorch()
    return row["bytes"] / 2e6, gb_per_s(row)


def law(programs: int, block: int) -> float:
    """GB/s of a copy by Little's law, with the latency of an idle memory."""
    return min(pytorch(), 2 * sms() * programs * 4 * block / latency_ns("HBM"))


# ------------------------------------------------------------------------------------- where data lies, and sectors


def _latencies() -> tuple:
    latencies = [latency_ns(level) for level in ("L1", "L2", "HBM")]
    assert latencies[0] < latencies[1] / 2
    assert latencies[1] < latencies[2] / 2
    return tuple(latencies)


def _strides() -> tuple:
    rates = {n: stride_gb(n) for n in (1, 2, 8)}
    for n, rate in rates.items():
        assert 0.75 < rate * n / rates[1] < 1.25, f"stride {n} is not what its sectors say"
    return ()


def _beyond_8() -> tuple:
    assert 0.45 < stride_gb(16) / stride_gb(8) < 0.55
    return ()


def _requests() -> tuple:
    metric = "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio"
    assert round(recorded.ncu("stride 32", metric)) == LANES
    return ()


def _bytes_an_element() -> tuple:
    size = 1e9 * recorded.ncu("stride 32", "dram__bytes_read.sum") / Sizes().reads
    assert round(size) == 64
    return (size,)


def _moved() -> tuple:
    """TB/s of the bytes that HBM gives, at the slowest stride."""
    return (min(stride_gb(n) * min(4 * n, 64) / 4e3 for n in Sizes().strides),)


said(
    "you take a four-line copy kernel from {:.0f} GB/s to {:.0f} GB/s.", lambda: (copy_gb(128, 1), copy_gb(512, 0))
)
said("An H200 has {} of them.", lambda: (sms(),))
said(
    "An SM has {0:.0f} KiB of registers, and another {0:.0f} KiB for *shared memory* and *L1* together.",
    lambda: (4 * device("regs_per_multiprocessor") / KIB,),
)
said("All SMs share the *L2*, a cache of {:.0f} MiB.", lambda: (device("L2_cache_size") / MIB,))
said("A read takes {:.0f} ns from L1, {:.0f} ns from the L2 and {:.0f} ns from HBM", _latencies)
said("Caches move *sectors* of 32 bytes.")
said("Up to stride 8 the rate falls nearly to an eighth, as the sectors predict.", _strides)
said("But stride 16 is half as fast as stride 8.", _beyond_8)
said("**Predict** how many GB come from HBM for {:,} elements at stride 32.", lambda: (Sizes().reads,))
said("At stride 32 each lane needs a sector of its own.", _requests)
said("But {:.0f} bytes per element came from HBM: it gives two sectors at a time.", _bytes_an_element)
said("Measured by these bytes, each stride runs at {:.1f} TB/s or more,", _moved)


# -------------------------------------------------------------------------------------------------------- the climb


def _step_4() -> tuple:
    rates = {block: copy_gb(block, 0) for block in (128, 256, 512)}
    assert rates[512] > LEAST * copy_gb(512, 16)
    assert rates[512] == max(copy_gb(block, 0) for block in Sizes().blocks)
    assert recorded.in_flight(GPU.one("flight", block=512, programs=0)) == 4 * 512 * 16 / 1e3, "then not as many bytes"
    return 100 * rates[512] / pytorch(), 100 * (rates[512] / copy_gb(512, 16) - 1)


def _dealt_out() -> tuple:
    """More programs than there is room for do not make the loop faster; a program a tile is."""
    record = GPU.with_part("queued")
    rows = {programs: record.one("queued", block=512, programs=programs) for programs in (0, 16, 64)}
    assert not apart(rows[64], rows[16])
    assert apart(rows[0], rows[16])
    return 64, 16, 100 * (rows[64]["us_p50"] / rows[0]["us_p50"] - 1)


def _last_round() -> tuple:
    """Programs on an SM, SMs, tiles of a looping program on average and at most, and per cent that these are more."""
    tiles, most = 2**26 / 512 / (16 * sms()), math.ceil(2**26 / 512 / (16 * sms()))
    return 16, sms(), tiles, most, 100 * (most / tiles - 1)


def _begins() -> tuple:
    """Programs per ns: as many where each moves twice as much, so the bytes are not what limits them. And how many µs
    each holds one of an SM's 16 places, if all are taken."""
    small, large = (copy_gb(block, 0) / (8 * block) for block in (128, 256))
    assert abs(small / large - 1) < LEAST - 1
    assert copy_gb(512, 0) / (8 * 512) < 0.8 * large
    assert f"{small:.1f}" == f"{large:.1f}"
    return (large,)


def _half() -> tuple:
    assert 0.5 < copy_gb(128, 0) / copy_gb(128, 16) < 0.6
    return _begins()


def _begin_no_faster() -> tuple:
    """Programs that copy nothing begin as those that copy 128 numbers do, on the same GPU; and as those of the H200."""
    record = GPU.with_part("idle")
    assert record.head("GPU").startswith("NVIDIA H100")
    idle, copies = record.us("idle", programs=2**19), record.us("flight", block=128, programs=0)
    assert abs(idle / copies - 1) < LEAST - 1
    assert f"{2**19 / idle / 1e3:.1f}" == f"{_begins()[0]:.1f}"
    return ()


def _here(cell_id: str, what: str) -> float:
    """What a cell of the stored run printed behind `Here`, in the line that begins so."""
    output = printed(NOTEBOOK, cell_id, on="NVIDIA H200")
    return float(re.search(rf"^{what} .*Here: ([\d,.]+)\.$", output, re.M)[1].replace(",", ""))


def _agrees() -> tuple:
    """Waiting programs do not make the loop faster, one program per tile does; idle ones begin as those that copy."""
    loop = _here("cell-33", "BLOCK 512, 16 programs on each SM")
    waiting, tiles = (_here("cell-35", f"BLOCK 512, {how}") for how in ("64 programs on each SM", "a program for each"))
    assert abs(waiting / loop - 1) < LEAST - 1
    assert tiles > LEAST * max(waiting, loop)
    copies = _here("cell-35", "BLOCK 128, a program for each tile") / (8 * 128)
    assert f"{_here('cell-35', '524,288 programs that copy nothing'):.1f}" == f"{copies:.1f}"
    return ()


def _step_3() -> tuple:
    four, eight = copy_gb(512, 16), copy_gb(1024, 16)
    assert eight < LEAST * four, "then eight bring something more"
    return (four,)


def _same_bytes() -> tuple:
    """(BLOCK, programs) with as many bytes in flight, from 64 warps to 4."""
    cases = ((128, 16), (256, 8), (512, 4), (1024, 2), (2048, 1))
    assert {4 * block * programs for block, programs in cases} == {8192}
    return 4 * cases[0][1], 4 * cases[-1][1]


def _loops() -> list:
    rows = GPU.rows("flight")
    return [row for _, row in rows[rows["programs"] > 0].iterrows()]


def _loops_with(elements: int) -> tuple:
    """The loops with so many elements in flight on an SM: KB; µs that a read took, by the law turned round, least
    and most; how far, in percent, they are below the best loop, least and most."""
    rows = _loops()
    best = max(map(gb_per_s, rows))
    rates = [gb_per_s(row) for row in rows if round(in_flight(row) * 1e3) == 4 * elements]
    waits = [sms() * 4 * elements / (rate / 2) / 1e3 for rate in rates]
    below = [100 * (1 - rate / best) for rate in rates]
    return 4 * elements / 1e3, min(waits), max(waits), min(below), max(below)


def _enough_in_flight() -> tuple:
    kb, least, most, _, below = _loops_with(8192)
    idle = latency_ns("HBM") / 1e3
    assert round(least / idle) == round(most / idle) == 6
    return kb, math.ceil(below)  # "within" rounds up


def _beyond() -> tuple:
    """The best of the loops has no more than 33 KB in flight, or is as fast as one that has."""
    rows = _loops()
    most = max(gb_per_s(row) for row in rows if in_flight(row) > 4 * 8192 / 1e3)
    assert most < LEAST * max(gb_per_s(row) for row in rows if round(in_flight(row) * 1e3) == 4 * 8192)
    return ()


def _of_the_law() -> tuple:
    return copy_gb(128, 1), 100 * copy_gb(128, 1) / law(1, 128)


def _full() -> tuple:
    assert copy_gb(128, 2) > 1.8 * copy_gb(128, 1)
    return THREADS // 32, copy_gb(128, 16)


def _idle_and_busy() -> tuple:
    idle = pytorch() / 2 * latency_ns("HBM") / sms() / 1e3
    assert _loops_with(8192)[-1] < 5
    return idle, 4 * 4096 / 1e3, 4 * 8192 / 1e3


said("Now copy {:.0f} MB.", lambda: (4 * Sizes().copied / 1e6,))
said(
    "One program of 128 elements has {} bytes in flight on its SM, for {:.0f} ns.", lambda: (4 * 128, latency_ns("HBM"))
)
said("The recorded {:.0f} GB/s are {:.0f} % of this", _of_the_law)
said("An SM has room for {} warps, and so for 16 of these programs. They reach {:.0f} GB/s.", _full)
said("Four elements per thread reach {:.0f} GB/s. Eight gain nothing.", _step_3)
said(
    "With `BLOCK` 512 the copy reaches {:.0f} % of PyTorch's rate. It is {:.0f} % faster than the loop with as many "
    "bytes in flight",
    _step_4,
)
said(
    "{} looping programs on each SM are as fast as the {} that fit. Both take {:.0f} % longer than one program per "
    "tile.",
    _dealt_out,
)
said(
    "With `BLOCK` 128 the copy is little more than half as fast as the loop: only {:.1f} programs begin per ns.", _half
)
said(
    "Each of the {} · {} programs has {:.2f} tiles on average, so some take {:.0f} while the rest are done. That is "
    "{:.1f} % at most.",
    _last_round,
)
said("With `BLOCK` 256 programs begin at the same rate, although each moves twice the bytes.", lambda: _begins()[:0])
said("On the H100, programs that copy nothing begin no faster.", _begin_no_faster)
said("In all of this the stored run, on an H200, agrees with the H100.", _agrees)
said("On an SM, the warps go from {} down to {}.", _same_bytes)
said(
    "With a sixteenth of the warps, the copy still reaches {:.0f} % of the rate.",
    lambda: (100 * copy_gb(2048, 1) / copy_gb(128, 16),),
)
said(
    "With {:.0f} KB in flight it is six times the idle latency, and the copies are within {:.0f} % of the best loop.",
    _enough_in_flight,
)
said("More bytes only wait longer.", _beyond)


# ------------------------------------------------------------------------------------------- registers, and the L2


def _limits() -> tuple:
    assert device("regs_per_multiprocessor") == REGISTERS
    assert device("max_threads_per_multi_processor") == THREADS
    return (REGISTERS,)


def _registers() -> tuple:
    row = GPU.one("flight", block=8192, programs=0)
    room = recorded.resident(row)
    return 100 * room * row["threads"] / THREADS, 100 * copy_gb(8192, 0) / pytorch()


def _falls() -> tuple:
    rates = [recorded.reread_tb(size, "in step") for size in (2 * MIB, 8 * MIB, 32 * MIB)]
    assert rates == sorted(rates, reverse=True)
    assert rates[0] > 1.5 * rates[-1]
    return ()


def _on_a_tile() -> tuple:
    programs, tiles = PER_SM * sms(), 2 * MIB // (4 * TILE)
    assert round(programs / tiles) == 4
    return ()


def _walk_together(size: int) -> list:
    """How many programs there are on each walk, where each has an order of its own (reread_kernel, OWN)."""
    tiles = size // (4 * TILE)
    walks = Counter((7919 * program % tiles, (2 * program + 1) % tiles) for program in range(PER_SM * sms()))
    return list(walks.values())


def _own_order() -> tuple:
    assert min(_walk_together(2 * MIB)) == 4
    assert sum(count for count in _walk_together(8 * MIB) if count > 1) < 0.1 * PER_SM * sms()
    assert max(_walk_together(32 * MIB)) == 1
    return ()


def _orders() -> tuple:
    """Percent by which the rate falls from 8 to 32 MiB."""
    record = GPU.with_part("order")
    cases = [(order, size) for order in ("own", "in step") for size in (8, 32)]
    us = {(order, size): record.us("order", order=order, size=size * MIB) for order, size in cases}
    falls = tuple(100 * (1 - us[order, 8] / us[order, 32]) for order in ("own", "in step"))
    for order, fall in zip(("own", "in step"), falls, strict=True):
        small, large = (_here("cell-44", f"{size} MiB, {order}") for size in (8, 32))
        assert abs(100 * (1 - large / small) - fall) < 2
    return falls


def _shared() -> tuple:
    """By ncu: what all SMs got of what the L2 served."""
    record = GPU.with_part("order")
    got, served = "l1tex__m_xbar2l1tex_read_sectors.sum", "lts__t_sectors_srcunit_tex_op_read.sum"
    times = {
        name: recorded.ncu(name, got, record) / recorded.ncu(name, served, record)
        for name in (f"{size} MiB, {order}" for size in (2, 8) for order in ("in step", "own"))
    }
    assert min(times.values()) > LEAST
    assert round(times["2 MiB, in step"]) == round(times["2 MiB, own"]) == 2
    return ()


def _tiles_apart() -> tuple:
    assert round(32 * MIB / (4 * TILE) / (PER_SM * sms())) == 4
    assert l2_tb_per_s() == recorded.reread_tb(32 * MIB, "in step")
    return l2_tb_per_s(), memory_tb_per_s()


said("Bytes in flight cost registers: one for each 4 bytes.")
said("- {} registers, in four equal quarters; a warp lives in one quarter", _limits)
said("- {} threads and {} programs", lambda: (THREADS, PROGRAMS))
said(
    "With `BLOCK` 8192 the occupancy is only {:.0f} %. The copy still reaches {:.0f} % of PyTorch's rate: occupancy is "
    "not the goal.",
    _registers,
)
said("In step, the rate falls as the buffer grows", _falls)
said("In the smallest, four programs begin on each tile.", _on_a_tile)
said(
    "In the largest, the programs are four tiles apart, too far to share replies, and still get {:.1f} TB/s. So the L2 "
    "gives at least this. Reads alone get {:.1f} TB/s from HBM.",
    _tiles_apart,
)
said(
    "In 8 MiB they leave almost nothing to share, so a larger buffer should hardly be slower.",
    _own_order,
)
said(
    "On the H100 the rate falls by {:.0f} %, in step by {:.0f} %, and on the stored run's H200 by as much.", _orders
)
said(
    "In 2 MiB, where programs read together in either order, the SMs got twice as many sectors as the L2 served:",
    _shared,
)


# ----------------------------------------------------------------------------------------- the roofline, and the law


def _roof(precision: str):
    return lambda: (ROOFS[precision], recorded.ridge(precision))


def intensity(name: str, precision: str) -> float:
    return product(name, precision)["flops"] / product(name, precision)["bytes"]


def _all_left() -> tuple:
    layers = [f"bottom {k}" for k in (1, 2, 3, 4)] + [f"top {k}" for k in (1, 2, 3)]
    assert all(intensity(name, "bf16") < recorded.ridge("bf16") for name in layers)
    return ()


def _layer(name: str) -> tuple:
    return product(name)["depth"], product(name)["columns"]


def _thirteenth() -> tuple:
    assert round(pytorch() / copy_gb(128, 1)) == 13
    return ()


def _padded() -> tuple:
    """The part of its bound that `top 1` reaches, in percent, and how many times as fast it is with one column more."""
    odd, even = product("top 1"), product("top 1 padded")
    assert even["depth"] == odd["depth"] + 1
    return 100 * tflop_per_s(odd) / recorded.bound(odd), odd["us_p50"] / even["us_p50"]


said("| float32 | {:.0f} | {:.1f} |", _roof("fp32"))
said("| bfloat16 | {:.1f} | {:.0f} |", _roof("bf16"))
said("compute-bound in bfloat16, with {:,} rows:", lambda: (int(product("top 1")["rows"]),))
for layer in ("bottom 1", "bottom 2", "top 1 padded", "top 1"):
    said(f"| `{layer}` | {{:.0f}} | {{:.0f}} |", partial(_layer, layer))
said("In bfloat16 every DLRM layer is memory-bound.", _all_left)
said("`top 1` (367 to 512) reaches only {:.0f} % of its bound:", lambda: _padded()[:1])
said("With one column more the layer is {:.1f} times as fast.", lambda: _padded()[1:])
said(
    "| 1 | one program on each SM, an element per thread | {:.1f} | {:.0f} |", lambda: (4 * 128 / 1e3, copy_gb(128, 1))
)
said("| 2 | 16 programs | {:.1f} | {:.0f} |", lambda: (4 * 128 * 16 / 1e3, copy_gb(128, 16)))
said("| 3 | four elements per thread | {:.1f} | {:.0f} |", lambda: (4 * 512 * 16 / 1e3, copy_gb(512, 16)))
said(
    "| 4 | a program for each tile | {:.1f} | {:.0f} |",
    lambda: (in_flight(GPU.one("flight", block=512, programs=0)), copy_gb(512, 0)),
)
said("| | PyTorch's copy | | {:.0f} |", lambda: (pytorch(),))
said("We began with a thirteenth of PyTorch's rate", _thirteenth)
said("Its newest record, of 1 GiB, is {:.0f} GB/s:", lambda: (pytorch(),))
said("Smaller copies are slower, as one of {:.0f} MB at {:.0f} GB/s,", _smaller_copy)
said("reads alone reach {:.1f} TB/s.", lambda: (memory_tb_per_s(),))
said("and have {:.0f} % of it,", lambda: (100 * copy_gb(512, 0) / pytorch(),))
said(
    "At the idle latency, {:.1f} KB in flight on each SM would do for PyTorch's rate. Under load it takes {:.0f} to "
    "{:.0f} KB,",
    _idle_and_busy,
)
