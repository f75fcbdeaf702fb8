"""05, CUDA graphs and memory: the story's steps, the whole model's, and the record of graphs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from lessons.n05_cuda_graphs_and_memory import recorded
from lessons.n05_cuda_graphs_and_memory.experiment import BYTES, FORWARDS, KERNELS, MARKED, NO_GRAD, ONE, OWN, PLAIN
from lessons.n05_cuda_graphs_and_memory.recorded import GRAPHS, step, whole
from lessons.shared import launches
from lessons.shared.claim import claim
from lessons.shared.records import GPU
from model.dlrm import DLRM
from model.profiling.traced_steps import TRACED_STEPS, shape_of

NOTEBOOK = "05"
WAYS = ("eager", "copy and replay", "replay")


def _fused() -> tuple:
    before = step("15_full_sgd_fused")
    assert before["launches"] == before["kernels"]
    assert before["busy_ms"] < 0.3 * before["ms"]
    return before["launches"], before["ms"], before["busy_ms"]


def _graphed() -> tuple:
    after = step("18_full_sgd_graph")
    return after["launches"], after["ms"]


def _near() -> tuple:
    after = step("18_full_sgd_graph")
    assert after["busy_ms"] > 0.9 * after["ms"]
    return after["kernels"], after["busy_ms"]


def _compiled() -> tuple:
    before, after = step("09_main_dot_compiled"), step("10_main_dot_cuda_graphs")
    assert abs(after["busy_ms"] / before["busy_ms"] - 1) < 0.05
    assert abs(after["kernels"] - before["kernels"]) < 5
    return before["ms"], before["launches"], after["ms"], after["launches"], before["busy_ms"], after["busy_ms"]


def _books() -> tuple:
    found = step("09_main_dot_compiled")["peak_mb"], step("10_main_dot_cuda_graphs")["peak_mb"]
    assert found[1] < found[0] / 10
    return found


def _prices() -> tuple:
    _, _, between, graph, _ = launches.prices()["µs"]
    assert graph < between
    return recorded.launch_us("15_full_sgd_fused"), recorded.launch_us(), between, graph


def _whole() -> tuple:
    ms = [whole(part, how)["ms"] for part in ("dot", "outer") for how in ("fused", "fused graph")]
    assert ms[0] > 3 * ms[1]
    assert ms[2] < 1.2 * ms[3]
    return tuple(ms)


def _larger() -> tuple:
    ms = [whole("dot", how, rows=16384)["ms"] for how in ("fused", "fused graph")]
    assert ms[1] < ms[0] < 2 * ms[1]
    return tuple(ms)


def _peaks() -> tuple:
    mb = [recorded.above_tables_mb("dot", how) for how in ("fused", "fused graph")]
    assert abs(mb[1] - mb[0]) < 2
    return *mb, _batch_mb(2048)


def _larger_peaks() -> tuple:
    mb = [recorded.above_tables_mb("dot", how, 16384) for how in ("fused", "fused graph")]
    assert mb[1] - mb[0] > 10 * _batch_mb(16384), "its buffers are most of the difference"
    return *mb, _batch_mb(16384)


def _modes() -> tuple:
    found = [GRAPHS.us("modes", variant=name) for name in ("eager", "default", "reduce-overhead", "max-autotune")]
    return tuple(found)


def _products() -> tuple:
    """µs of the top MLP's three products in float32, by notebook 06's record."""
    ms = sum(GPU.one("product", name=f"top {k}", rows=2048, precision="fp32")["us_p50"] for k in (1, 2, 3))
    eager, default, reduced, _ = _modes()
    assert ms > eager / 2
    assert default > 1.3 * eager
    assert abs(reduced / eager - 1) < 0.1
    return (ms,)


def _first() -> tuple:
    found = GRAPHS.one("modes", variant="default")["first_s"], GRAPHS.one("modes", variant="max-autotune")["first_s"]
    return found


def _late() -> tuple:
    found = [GRAPHS.one("late", variant="reduce-overhead", before=before)["found"] for before in range(4)]
    assert found[:2] == ["RuntimeError"] * 2
    assert found[2:] == ["the next run's"] * 2
    return tuple(found)


def _pending() -> tuple:
    found = [GRAPHS.one("pending", variant=name)["last_ms"] for name in (PLAIN, MARKED, NO_GRAD)]
    assert found[0] > 2 * max(found[1:])
    return FORWARDS, *found


def _phases() -> tuple:
    warm, captured, gone = (GRAPHS.one("memory", variant=phase) for phase in ("warmed up", "captured", "graph deleted"))
    model = DLRM(shape_of(replace(next(each for each in TRACED_STEPS if each.number == "18"), largest_table=2000)))
    dense = sum(p.numel() for name, p in model.named_parameters() if "tables" not in name)
    assert np.isclose(captured["graph_allocated_mb"], 4 * dense / 1e6, atol=0.01), "it is not the MLPs' gradients"
    return (
        warm["reserved_mb"], captured["reserved_mb"], captured["graph_reserved_mb"], captured["graph_allocated_mb"],
        gone["graph_reserved_mb"],
    )


def _pools() -> tuple:
    own, one_pool = GRAPHS.one("pools", variant=OWN), GRAPHS.one("pools", variant=ONE)
    assert one_pool["graph_reserved_mb"] < own["graph_reserved_mb"]
    workspace, results = (1 << 25) / 1e6, 4 * (2048 + 1024) * (512 + 256) / 1e6
    assert all(workspace < each["graph_allocated_mb"] < 1.05 * workspace for each in (own, one_pool))
    return own["graph_reserved_mb"], one_pool["graph_reserved_mb"], workspace, results


def _replay() -> tuple:
    """µs of 64 kernels on 4 KiB, eagerly and as copy and replay."""
    ways = ("eager", "copy and replay")
    small = [GRAPHS.us("replay", variant=way, kernels=64, bytes=1 << 12) for way in ways]
    assert small[1] < small[0]
    for size in BYTES:
        eager, replay = (GRAPHS.us("replay", variant=way, kernels=1, bytes=size) for way in ways)
        assert eager < replay
    return tuple(small)


def _lost() -> tuple:
    """On 256 MiB: MB, then for each number of kernels µs eagerly and as copy and replay; µs of the replays alone."""
    found, alone = [], []
    for count in KERNELS:
        eager, copied, replayed = (GRAPHS.one("replay", variant=w, kernels=count, bytes=BYTES[-1])["us"] for w in WAYS)
        # A loss beyond the spread, which the replay alone does not have: it is the copy's.
        assert np.quantile(eager, 0.8) < np.quantile(copied, 0.2)
        assert np.median(replayed) < np.median(eager)
        found += [float(np.median(eager)), float(np.median(copied))]
        alone.append(float(np.median(replayed)))
    return BYTES[-1] / 1e6, *found, *alone


def _batch_mb(rows: int) -> float:
    """The size of a graph's buffers: labels and numbers take 4 bytes, ids 8."""
    return rows * (4 + 13 * 4 + 26 * 8) / 1e6


claim(
    NOTEBOOK,
    "the host launches {:.0f} kernels, and a step takes {:.2f} ms, of which kernels run for {:.2f}.",
    _fused,
)
claim(NOTEBOOK, "As one graph the host calls {:.0f} times, and the step takes {:.2f} ms.", _graphed)
claim(NOTEBOOK, "The {:.0f} kernels still take {:.2f} ms: they are the floor, and a graph does not move it.", _near)
claim(
    NOTEBOOK,
    "Step 09, `default`, takes {:.2f} ms with {:.0f} launches; step 10, `reduce-overhead`, {:.2f} ms with {:.0f}. Its "
    "kernels take {:.2f} and {:.2f} ms.",
    _compiled,
)
claim(
    NOTEBOOK,
    "A launch costs the host {:.1f} µs in step 15 and {:.1f} in step 08, Python and PyTorch included. On the GPU "
    "{:.1f} µs lie between two kernels of a full queue, and {:.1f} between two of a graph.",
    _prices,
)
claim(
    NOTEBOOK,
    "With everything fused, in TF32, `dot` takes {:.2f} ms without a graph and {:.2f} with one; `outer`, whose kernels "
    "take longest, {:.2f} and {:.2f}.",
    _whole,
)
claim(
    NOTEBOOK,
    "With 16,384 rows, in float32, `dot` takes {:.2f} ms and {:.2f}: the longer the kernels, the less a graph saves.",
    _larger,
)
claim(NOTEBOOK, "the allocator counts {:.0f} MB at the peak of step 09, and {:.0f} at that of step 10", _books)
claim(
    NOTEBOOK,
    "Beyond its tables, `dot` fused takes {:.1f} MB at the peak, and {:.1f} with a graph, whose buffers hold a batch "
    "of {:.2f} MB.",
    _peaks,
)
claim(
    NOTEBOOK,
    "With 16,384 rows it takes {:.0f} MB and {:.0f}; of the difference {:.1f} are buffers;",
    _larger_peaks,
)
claim(
    NOTEBOOK,
    "On 2048 rows the top MLP takes {:.0f} µs eagerly, {:.0f} with `default`, {:.0f} with `reduce-overhead`, {:.0f} "
    "with `max-autotune`.",
    _modes,
)
claim(NOTEBOOK, "Its three products alone take {:.0f} µs", _products)
claim(
    NOTEBOOK,
    "The first call takes {:.1f} s with `default` and {:.0f} with `max-autotune`, with empty caches.",
    _first,
)
claim(
    NOTEBOOK,
    "In the record, the first two late reads are errors, and the others give the next run's numbers.",
    _late,
)
claim(
    NOTEBOOK,
    "Of {:.0f} forwards whose backward never ran, the last takes {:.2f} ms; with the mark it takes {:.2f}, with "
    "`no_grad` {:.2f}.",
    _pending,
)
claim(
    NOTEBOOK,
    "after the warm-up PyTorch holds {:.0f} MB. `torch.cuda.graph` empties the cache before it captures, to {:.0f} MB, "
    "and then takes a pool of {:.0f}, which nothing else can use while the graph lives. The books count {:.1f} MB of "
    "it as allocated: the MLPs' gradients, which were made while capturing. They outlive the graph, so when it is "
    "deleted, {:.0f} MB of its pool are left.",
    _phases,
)
claim(
    NOTEBOOK,
    "With a pool each the two graphs hold {:.1f} MB, with one pool {:.1f}. Of either {:.1f} MB are cuBLAS's workspace, "
    "and most of the rest is empty: the allocator takes memory in pieces of 20 and 2 MiB, where these layers' results "
    "need {:.1f} MB.",
    _pools,
)
claim(
    NOTEBOOK,
    "64 kernels on 1024 numbers take {:.0f} µs eagerly and {:.0f} as copy and replay.",
    _replay,
)
claim(
    NOTEBOOK,
    "On {:.0f} MB every graph loses by its copy: one kernel takes {:,.0f} and {:,.0f} µs, 8 kernels {:,.0f} and "
    "{:,.0f}, 64 kernels {:,.0f} and {:,.0f}. The replays alone take {:,.0f}, {:,.0f} and {:,.0f}.",
    _lost,
)
claim(NOTEBOOK, "without a model around it a launch costs {:.1f} µs.", lambda: (recorded.chain_us(),))
