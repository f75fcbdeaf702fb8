"""kernels/measure/lengths.py: calls with another N each time, beside calls of one N, without a GPU."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from fake_clock import Clock

from kernels.check import Spec, Sums
from kernels.dispatch.core import on_host
from kernels.measure import bench, judge, lengths
from kernels.measure.cells import ANOTHER_LENGTH, Lengths
from kernels.ops.embedding_bags import bench as bags
from kernels.ops.embedding_bags_update import bench as update
from kernels.ops.id_table import bench as table

SPEC = Spec(lambda x, ids: x[ids], lambda case, device: iter(()), scale=Sums())
STEADY = {"before": 4.0, "after": 4.0, "limit": 4.0}


def cell(**implementations):
    def inputs(draw, ids, n, x):
        return x, ids(n, below=8)

    return Lengths(
        "toy", {"rows": 8, "dtype": "float32"}, inputs,
        {name: (lambda function=function: function) for name, function in implementations.items()},
        fixed=30, count=40, shared=lambda draw: (draw(8),), spec=SPEC,
    )


def measured(timed_cell):
    return {row.implementation: row for row in bench.measure(timed_cell, Clock())}


def test_every_length_of_the_pass_is_new_and_met_once():
    seen = {"a": [], "b": []}

    def noting(name):
        return lambda x, ids: seen[name].append(len(ids)) or x[ids]

    rows = measured(cell(a=noting("a"), b=noting("b")))
    assert list(rows) == ["a", "a" + ANOTHER_LENGTH, "b", "b" + ANOTHER_LENGTH]
    assert {row.match for row in rows.values()} == {"ok"}
    new = {}
    for name, calls in seen.items():
        warm_up, timed, last = calls[:5], calls[5:-1], calls[-1]
        fixed = [n for n in timed if n == 30]
        new[name] = [n for n in timed if n != 30]
        assert len(fixed) == len(new[name]) == len({*new[name]}) == 40
        assert {*new[name]}.isdisjoint(warm_up)
        assert last == new[name][-1]
        # By turns, batch by batch.
        assert [n == 30 for n in timed] == 4 * (10 * [True] + 10 * [False])
        assert new[name] != sorted(new[name])
        assert min(new[name]) > 0
    assert {*new["a"]}.isdisjoint(new["b"]), "what one has planned would serve the other"


def test_the_lengths_lie_around_the_one_that_is_fixed():
    sizes = [n for own in lengths._lengths(replace(cell(a=None, b=None), fixed=1000)) for n in own[lengths.WARM_UP :]]
    assert abs(sum(sizes) / len(sizes) - 1000) < 40
    assert 1000 not in sizes


@pytest.fixture
def spend(monkeypatch):
    """spend(seconds) by a clock that nothing else moves."""
    now = [0.0]
    monkeypatch.setattr(lengths, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    def spend(seconds):
        now[0] += seconds

    return spend


def test_what_hangs_on_the_length_is_seen(spend):
    """A plan made for each N that is new takes five milliseconds here; and one that is kept costs nothing again."""
    planned = set()

    def planning(x, ids):
        spend(10e-6)
        if len(ids) not in planned:
            planned.add(len(ids))
            spend(5e-3)
        return x[ids]

    rows = measured(cell(cuda=planning, triton=lambda x, ids: spend(10e-6) or x[ids]))
    assert rows["cuda" + ANOTHER_LENGTH].call_us == pytest.approx(5010)
    assert [rows[name].call_us for name in ("cuda", "triton")] == pytest.approx([10, 10])
    verdict = judge.AnyLength().judge([*rows.values()], STEADY)
    assert any(miss.startswith("cuda: ") and miss.endswith(", 1.2 asked") for miss in verdict.misses)
    assert not verdict.met


def test_one_slow_call_counts_with_its_share(spend):
    """The mean, not the median: what happens to one length in forty is part of what a call costs."""
    calls = []

    def slow_once(x, ids):
        calls.append(len(ids))
        spend(0.04 if len(calls) == 5 + 15 else 10e-6)
        return x[ids]

    row = measured(cell(cuda=slow_once))["cuda" + ANOTHER_LENGTH]
    assert row.call_us == pytest.approx((40_000 + 39 * 10) / 40)
    assert row.call_us_low == pytest.approx(10)


@pytest.mark.parametrize("when", ["always", "later"])
def test_what_does_not_match_has_no_time(when):
    def wrong(x, ids):
        return x[ids] + (1.0 if when == "always" or len(ids) != 30 else 0.0)

    rows = measured(cell(cuda=wrong, eager=lambda x, ids: x[ids]))
    for name in ("cuda", "cuda" + ANOTHER_LENGTH):
        assert rows[name].failed
        assert rows[name].call_us is None
    assert rows["eager"].match == rows["eager" + ANOTHER_LENGTH].match == "ok"


def test_the_verdict():
    def verdict(another, who=("cuda",)):
        labels = {"rows": 8}
        times = {"cuda": 10.0, "cuda" + ANOTHER_LENGTH: another}
        rows = [judge.Row("toy", "lengths", "functional", name, labels, call_us=us) for name, us in times.items()]
        return judge.AnyLength(who=who).judge(rows, STEADY)

    assert verdict(12.0).met
    assert verdict(12.0).figure == "cuda 1.20 × one N's; limit 1.2"
    assert verdict(12.1).misses == ["cuda: 1.21, 1.2 asked"]
    assert not verdict(None).met
    assert not verdict(12.0, ("cuda", "triton")).met
    assert not judge.AnyLength().judge([], STEADY).met


def test_of_several_cells_the_worst_counts():
    rows = [
        judge.Row("toy", "lengths", "functional", name, {"rows": count}, call_us=us)
        for count, another in ((8, 15.0), (16, 11.0))
        for name, us in (("cuda", 10.0), ("cuda" + ANOTHER_LENGTH, another))
    ]
    verdict = judge.AnyLength(who=("cuda",)).judge(rows, STEADY)
    assert (verdict.met, verdict.figure) == (False, "cuda 1.50 × one N's; limit 1.2")


@pytest.mark.parametrize("module", [bags, update, table], ids=["bags", "update", "table"])
def test_the_ops_cuda_kernels_take_any_length_on_the_host(module):
    (lengths_cell,) = (c for c in module.cells() if isinstance(c, Lengths))
    names = [name for name in ("eager", "cuda") if name in lengths_cell.implementations]
    small = {name: lengths_cell.implementations[name] for name in names}
    with on_host():
        rows = measured(replace(lengths_cell, implementations=small, fixed=50, count=10))
    assert {row.match for row in rows.values()} == {"ok"}
    assert len(rows) == 4
    assert sum(isinstance(target, judge.AnyLength) for target in module.TARGETS) == 1
    assert lengths_cell.count == 200
