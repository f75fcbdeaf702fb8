"""What a paper cut costs: its recorder, what is read of the record and the traces, the arithmetic of a wait."""

from __future__ import annotations

import re
import sys

import numpy as np
import pytest
import torch

from lessons.n03_paper_cuts import arithmetic, experiment, pictures, recorded, two_queues
from lessons.n03_paper_cuts.recorded import Effect

CPU = torch.device("cpu")


@pytest.mark.slow
def test_every_variant_is_measured_in_every_round():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    rows = experiment.PaperCuts(CPU).measure()
    torch.set_num_threads(threads)
    found = {(row["part"], row["step"], row.get("rule", ""), row["variant"], row.get("n", "")) for row in rows}
    assert len(found) == len(rows) == 4 + 2 * 6 + 4 * 4 + 3 * 4
    assert all(len(row["ms"]) == 2 and min(row["ms"]) > 0 for row in rows)


def test_another_loss_is_a_failure():
    steps = [("a", lambda: torch.tensor(1.0), True), ("b", lambda: torch.tensor(1.1), True)]
    first, second = experiment.measure(iter(steps), CPU, rounds=1, block=1)
    assert first["match"] == "ok"
    assert len(first["ms"]) == 1
    assert second["match"].startswith("FAILED: a loss differs by 0.1")
    assert "ms" not in second


def test_layouts_are_what_they_say():
    chosen = experiment.replace(experiment.BY_NUMBER["08"], batch_size=4, batches=1, largest_table=20, weight_decay=0.0)
    for (name, sparse, one), (variant, step, _) in zip(experiment.LAYOUTS, experiment.tables(chosen, CPU), strict=True):
        assert name == variant
        step()
        found = step.__defaults__[0].args[0].sparse_arch.tables
        gradients = [table.grad for table in found.parameters()]
        assert len(gradients) == (1 if one else 26)
        assert {gradient.is_sparse for gradient in gradients} == {sparse}


@pytest.fixture(autouse=True)
def closed():
    yield
    if plt := sys.modules.get("matplotlib.pyplot"):
        plt.close("all")


def test_an_effect_below_the_spread_is_none():
    assert Effect(5.0, 4.9, -0.3, -0.1, 0.1).none
    assert str(Effect(5.0, 4.9, -0.3, -0.1, 0.1)).endswith("saved by turns +0.100 ms (-0.100 to +0.300): none")
    assert not Effect(5.0, 4.0, -1.2, -1.0, -0.8).none
    assert not Effect(4.0, 5.0, 0.8, 1.0, 1.2).none


def test_an_effect_is_of_the_rounds():
    found = recorded.effect("hash", "index", "modulus", step="04")
    a, b = (recorded.times("hash", name, step="04") for name in ("index", "modulus"))
    assert found.low <= found.middle <= found.high
    assert (found.before, found.middle) == (np.median(a), np.quantile(b - a, 0.5))


def test_layouts_are_printed(capsys):
    recorded.layouts()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["sgd"] * 4 + ["adagrad"] * 4


def test_a_verdict_has_the_spread(capsys):
    recorded.judge("list", 1.0, "hash", "index_naive", "index", "Why.", step="04")
    said = capsys.readouterr().out
    assert re.search(r"^list: predicted 1 ms, recorded \S+ ms: .*Why\. .* → .* ms, saved by turns .* to ", said)


def test_pictures_of_the_record():
    (sizes,), (effects,) = pictures.sizes().axes, pictures.effects().axes
    assert len(sizes.get_legend().get_texts()) == 4
    assert [label.get_text() for label in effects.get_yticklabels()] == [change[0] for change in pictures.CHANGES]


def test_pictures_of_the_traces():
    assert len(pictures.conversions().axes[0].lines) == 4
    assert len(pictures.hash_kernels().axes[0].lines) == 2 * 4 + 1
    assert len(pictures.queues().axes) == 4
    assert len(pictures.steps().axes[0].patches) == 5 * 5


def test_what_the_traces_say():
    conversions, kernels = recorded.conversions(), recorded.hash_kernels()
    assert list(conversions["ids"]) == list(kernels["ids"]) == list(arithmetic.SMALL)
    assert (conversions["all"] >= conversions["walk"] + conversions["copy and wait"]).all()
    assert kernels[list(recorded.INDEX_KERNELS)].min().min() > 0
    for name in pictures.STEPS:
        step = recorded.story_step(name)
        assert sum(ms for kind, ms in step.items() if kind != "step") == pytest.approx(step["step"])
        assert min(step.values()) >= 0


# ------------------------------------------------------------------------------------------------------------------
# The arithmetic of a wait.


def test_a_wait_costs_the_time_for_which_it_stops_who_sets_the_pace():
    for kernels in (two_queues.LAUNCH_BOUND, two_queues.GPU_BOUND):
        free, waiting = (two_queues.simulate(kernels, waits) for waits in (False, True))
        assert free.step == max(len(kernels), sum(kernels))  # whoever is slower
        assert free.step < waiting.step <= len(kernels) + sum(kernels)
    host, gpu = (two_queues.simulate(kernels, True) for kernels in (two_queues.LAUNCH_BOUND, two_queues.GPU_BOUND))
    assert {end - begin for begin, end in host.waits} == {0.25}
    assert gpu.step - sum(two_queues.GPU_BOUND) == 4
    cheap, dear = (
        two_queues.simulate(kernels, True).step - two_queues.simulate(kernels, False).step
        for kernels in (two_queues.LAUNCH_BOUND, two_queues.GPU_BOUND)
    )
    assert cheap == 0.25
    assert dear > 10 * cheap
