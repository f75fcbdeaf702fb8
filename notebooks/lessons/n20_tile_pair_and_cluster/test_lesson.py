"""Lesson 20: designs chosen by hand compute what the reference does, the estimate, excerpts, the ring compiled."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

pytest.importorskip("matplotlib")

from kernels import runtime
from kernels.ops.dlrm.cluster import Clusters, layers_of
from kernels.ops.dlrm.eager import dlrm_forward
from kernels.ops.dlrm.tile import Tiles
from lessons.n20_tile_pair_and_cluster import designs, puzzles, ring
from lessons.n20_tile_pair_and_cluster.designs import MAIN, cut
from lessons.shared.launcher import launcher, registers

PLANS = {
    "best": ["whole", "outputs", "inputs", "rows", "outputs", "inputs", "rows"],
    "by outputs": ["outputs", "outputs", "outputs", "rows", "outputs", "outputs", "rows"],
    "rows alone": ["rows"] * 7,
}


def launched(design: Tiles, rows: int = 20) -> tuple[torch.Tensor, torch.Tensor]:
    """(what the design's kernel gives, what the reference does) of a model with small tables."""
    generator, device = torch.Generator().manual_seed(0), runtime.device()

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(device)

    tables = [draw(50, 16) for _ in range(26)]
    weights, biases = [draw(n, k) * k**-0.5 for k, n in MAIN.layers], [0.1 * draw(n) for _, n in MAIN.layers]
    dense, ids = draw(rows, 13), torch.randint(50, (26, rows), generator=generator).to(device)
    out, report = torch.full((rows, 1), float("nan"), device=device), torch.zeros(6, dtype=torch.int64, device=device)
    source, at_once = designs.program(design)
    groups = min(-(-rows // design.rows), at_once)
    lists = *tables, *map(len, tables), *ids, *[1] * 26, *[0] * 52
    fragments = designs.lay_out(design, weights, biases)
    launcher(source)(groups * source.cluster, dense, out, fragments, rows, 13, groups, *lists, report)
    layers = weights[:4], biases[:4], weights[4:], biases[4:]
    return out, dlrm_forward(dense, tables, list(ids), [], *layers, *MAIN.activations)


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_clusters_cut_by_hand_compute_the_model(plan):
    design = cut(plan, rows=8)
    if runtime.device().type != "cuda":  # whose SMs have room for two of these blocks
        design = replace(design, resident=-1)
    out, right = launched(design)
    torch.testing.assert_close(out, right, rtol=0, atol=2e-3)


def test_the_estimate_is_that_of_the_op_and_its_plan_is_the_best():
    for rows in (8, 16):
        own = layers_of(MAIN, torch.float32, rows)
        assert [layer.cut for layer in own] == PLANS["best"] == puzzles.solution("cuts")
    assert cut(PLANS["best"]).resident == Clusters.of(MAIN, torch.float32, 16, designs.SHARED).resident
    assert cut(PLANS["best"]).shared_bytes <= designs.SHARED
    best = sum(step.cycles for step in designs.steps(PLANS["best"]))
    for i in range(7):
        for other in ("whole", "outputs", "inputs", "rows"):
            plan = [*PLANS["best"][:i], other, *PLANS["best"][i + 1 :]]
            try:
                steps = designs.steps(plan)
            except ValueError:
                continue
            assert plan == PLANS["best"] or sum(step.cycles for step in steps) > best


def test_the_ring_is_compiled_for_a_gpu_without_spilling():
    if (found := registers(ring.source(puzzles.solution("ring"), 4))) is None:
        pytest.skip("no compiler, or no cuobjdump")
    assert found[1] == 0


def test_excerpts_end_where_they_should(capsys):
    for file, start in (("tile.cuh", "__device__ void run() {"), ("cluster.cuh", "__device__ void run_inputs("),
                        ("pair.cuh", "for (int i = 0; i < product.steps; ++i) {")):  # fmt: skip
        designs.show(file, start)
        text = capsys.readouterr().out
        assert text.count("{") == text.count("}")
        assert 10 < text.count("\n") < 30
