"""What a paper cut costs: its recorder, what is read of the record and the traces, the arithmetic of a wait."""

from __future__ import annotations

import re
import sys

import numpy as np
import pytest
import torch

from model.paper_cuts import drawing, facts, record, two_queues
from model.paper_cuts.facts import Effect

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def rows():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record, "GPU_BOUND", "08")  # 06 multiplies matrices of 700 MB
        patch.setattr(record, "WARM_UP", 2)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        yield record.run(CPU, batch=8, largest=50, rounds=2, block=1, most=6)
        torch.set_num_threads(threads)


def test_every_variant_is_measured_in_every_round(rows):
    found = {(row["part"], row["step"], row.get("rule", ""), row["variant"], row.get("n", "")) for row in rows}
    assert len(found) == len(rows) == 4 + 2 * 6 + 4 * 4 + 3 * 4
    assert all(len(row["ms"]) == 2 and min(row["ms"]) > 0 for row in rows)


def test_what_computes_the_same_gives_the_same(rows):
    same = {row["variant"] for row in rows if row["match"] == "ok"}
    assert same == {"index_naive", "index", *(name for name, _, _ in record.LAYOUTS)}


def test_another_loss_is_a_failure():
    steps = [("a", lambda: torch.tensor(1.0), True), ("b", lambda: torch.tensor(1.1), True)]
    first, second = record.measure(iter(steps), CPU, rounds=1, block=1)
    assert first["match"] == "ok"
    assert len(first["ms"]) == 1
    assert second["match"].startswith("FAILED: a loss differs by 0.1")
    assert "ms" not in second


def test_layouts_are_what_they_say():
    chosen = record.replace(record.BY_NUMBER["08"], batch_size=4, batches=1, largest_table=20, weight_decay=0.0)
    for (name, sparse, one), (variant, step, _) in zip(record.LAYOUTS, record.tables(chosen, CPU), strict=True):
        assert name == variant
        step()
        found = step.__defaults__[0].args[0].sparse_arch.tables
        gradients = [table.grad for table in found.parameters()]
        assert len(gradients) == (1 if one else 26)
        assert {gradient.is_sparse for gradient in gradients} == {sparse}


@pytest.mark.parametrize(
    "arguments", [["--only", "nothing"], ["--save", "--only", "hash"], ["--save", "--device", "cpu"]]
)
def test_a_mistake_is_named(arguments, capsys):
    with pytest.raises(SystemExit):
        record.main(arguments)
    assert arguments[0] in capsys.readouterr().err


def test_without_a_gpu_nothing_is_recorded(capsys):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(SystemExit):
        record.main([])
    assert "there is none here" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------------------------
# What is read of the record and of the traces.


@pytest.fixture
def recorded(rows, monkeypatch):
    """The rows as a record, those of the second step's waits as 06's."""
    import pandas as pd

    def of(row):
        return row | {"step": "06"} if row["part"] == "waits" and row["step"] == "08" else row

    monkeypatch.setattr(facts.records, "recorded", lambda name: pd.DataFrame([of(row) for row in rows]))


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


def test_an_effect_is_of_the_rounds(recorded):
    found = facts.effect("hash", "index", "modulus", step="04")
    a, b = (facts.times("hash", name, step="04") for name in ("index", "modulus"))
    assert found.low <= found.middle <= found.high
    assert (found.before, found.middle) == (np.median(a), np.quantile(b - a, 0.5))


def test_a_verdict_needs_a_record(monkeypatch, capsys):
    def nothing(name):
        raise FileNotFoundError(name)

    monkeypatch.setattr(facts.records, "recorded", nothing)
    facts.judge("list", 1.0, "hash", "index_naive", "index", "Why.", step="04")
    assert drawing.sizes() is None
    assert drawing.effects() is None
    facts.layouts()
    assert capsys.readouterr().out.count("no record yet; `python -m model.paper_cuts --save`") == 4


def test_layouts_are_printed(recorded, capsys):
    facts.layouts()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["sgd"] * 4 + ["adagrad"] * 4


def test_a_verdict_has_the_spread(recorded, capsys):
    facts.judge("list", 1.0, "hash", "index_naive", "index", "Why.", step="04")
    said = capsys.readouterr().out
    assert re.search(r"^list: predicted 1 ms, recorded \S+ ms: .*Why\. .* → .* ms, saved by turns .* to ", said)


def test_pictures_of_the_record(recorded):
    (sizes,), (effects,) = drawing.sizes().axes, drawing.effects().axes
    assert len(sizes.get_legend().get_texts()) == 4
    assert [label.get_text() for label in effects.get_yticklabels()] == [change[0] for change in drawing.CHANGES]


def test_pictures_of_the_traces():
    assert len(drawing.conversions().axes[0].lines) == 4
    assert len(drawing.hash_kernels().axes[0].lines) == 2 * 4 + 1
    assert len(drawing.queues().axes) == 4
    assert len(drawing.steps().axes[0].patches) == 5 * 5


def test_what_the_traces_say():
    conversions, kernels = facts.conversions(), facts.hash_kernels()
    assert list(conversions["ids"]) == list(kernels["ids"]) == list(facts.SMALL)
    assert (conversions["all"] >= conversions["walk"] + conversions["copy and wait"]).all()
    assert kernels[list(facts.INDEX_KERNELS)].min().min() > 0
    for name in drawing.STEPS:
        step = facts.story_step(name)
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
