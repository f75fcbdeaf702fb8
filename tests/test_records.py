"""What measured figures are held against, and how they are recorded and shown."""

import json
import math
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from fake_clock import Clock, cell

from kernels import runtime
from kernels.measure import bench, judge, records, sources, status
from kernels.measure.cells import Cell, Row

ROOT = Path(__file__).resolve().parent.parent
without_gpu = pytest.mark.skipif(runtime.device().type == "cuda", reason="there is a GPU")


# ------------------------------------------------------------------------------------------------------------------
# The verdicts.

STEADY = {"before": 4.0, "after": 3.9, "limit": 4.0}


def row(implementation, us=None, call=None, *, form="functional", shape=(100, 10), dtype="float32", **more):
    labels = {"rows": shape[0], "columns": shape[1], "dtype": dtype}
    times = us, us, us, call
    return Row("add_relu", "bandwidth", form, implementation, labels, *times, bytes=4_000_000, flops=2000, **more)


def test_bandwidth_verdict():
    # 4 MB at 4 TB/s: 1 µs.
    target = judge.CopyShare(lambda labels: 97 if labels["dtype"] == "float32" else 95)
    good = [row("triton", 1.02), row("cuda", 1.0), row("cuda", 1.04, dtype="bfloat16"), row("eager", 9.0)]
    verdict = target.judge(good, STEADY)
    assert (verdict.met, verdict.misses) == (True, [])
    assert verdict.figure.startswith("triton at least 98.0 % in 1, cuda at least 96.2 % in 2 cells")
    verdict = target.judge([*good, row("triton", 1.04)], STEADY)
    assert (verdict.met, verdict.misses) == (False, ["triton functional 100×10 float32: 96.2 %, 97.0 asked"])
    failed = target.judge([*good, row("triton", match="FAILED: x")], STEADY)
    assert (failed.met, failed.misses) == (False, ["triton functional 100×10 float32: 0.0 %, 97.0 asked"])
    assert not target.judge(good[:1], STEADY).met  # of one of ours nothing was measured
    apart = target.judge(good, STEADY | {"after": 3.8})
    assert (apart.met, apart.figure) == (False, "the run's copies differ by more than 5 %: there is no yardstick")
    assert not target.judge(good, STEADY | {"all": [4.0, 3.7, 4.0]}).met


def test_grid_verdict():
    def cells(count, triton, cuda, peer=100.0):
        return [
            row(name, us, shape=(int(peer), i))
            for i in range(count)
            for name, us in (("eager", 3 * peer), ("jit", peer), ("triton", triton * peer), ("cuda", cuda * peer))
        ]

    def met(rows):
        return judge.NearTheFastest().judge(rows, STEADY).met

    verdict = judge.NearTheFastest().judge([*cells(19, 1.04, 1.05), *cells(1, 1.3, 1.2, peer=50.0)], STEADY)
    assert verdict.met
    assert "triton within the limit in 95.0%; cuda within the limit in 95.0% of 20 cells" in verdict.figure
    assert verdict.misses == ["50×0 float32: triton 1.300, cuda 1.200; limit 1.05, jit 50.00 µs; better 1.200"]
    assert not met(cells(19, 1.04, 1.05) + cells(1, 1.3, 1.26, peer=50.0))
    assert not met(cells(18, 1.0, 1.0) + cells(2, 1.0, 1.1, peer=50.0))
    assert met(cells(20, 1.14, 1.15, peer=8.0))
    assert not met(cells(20, 1.0, 1.16, peer=8.0))
    assert not met([row("jit", 1.0), row("cuda", 1.0), row("triton", match="FAILED: x")])


def test_calls_verdict():
    def met(cuda, eager=9.0, form="functional", triton=11.0):
        rows = [row(name, call=us, form=form) for name, us in (("eager", eager), ("triton", triton), ("cuda", cuda))]
        if form != "with a gradient":
            rows.append(row("x + 1", call=10.0, form=form, match="baseline", call_us_low=9.5, call_us_high=10.5))
        return judge.CallCost().judge(rows, STEADY)

    assert met(11.0).met
    expected = "functional: eager 0.90, triton 1.10, cuda 1.10 × x + 1 (10.00 µs, 9.50 to 10.50); limit 1.1"
    assert met(11.0).figure == expected
    assert met(11.1).misses == ["cuda functional: 1.11, 1.1 asked"]
    assert met(11.0, triton=11.1).misses == ["triton functional: 1.11, 1.1 asked"]
    assert not met(None).met
    gradient = met(5.0, 10.0, "with a gradient", 6.0)
    assert (gradient.met, gradient.figure[:40]) == (True, "with a gradient: triton 0.60, cuda 0.50 ")
    assert not met(6.1, 10.0, "with a gradient", 6.0).met
    assert not judge.CallCost().judge([], STEADY).met


def test_ratio_verdict():
    target = judge.AtMost(1.1, "torch.compile")
    rows = [row("torch.compile", 10.0), row("triton", 11.0), row("cuda", 9.0)]
    assert target.judge(rows, STEADY).met
    rows += [row("torch.compile", 5.0, dtype="bfloat16"), row("cuda", 6.0, dtype="bfloat16")]
    verdict = target.judge(rows, STEADY)
    assert (verdict.met, verdict.misses) == (False, ["cuda functional 100×10 bfloat16: 1.200"])
    assert not target.judge([row("triton", 11.0), row("cuda", 9.0)], STEADY).met


@pytest.mark.parametrize("target", [judge.AtMost(1.0, "torch.compile"), judge.NeverSlower("torch.compile")])
def test_a_peer_is_judged_as_it_is_set_best(target):
    def verdict(**others):
        rows = [row("torch.compile", 10.0), row("triton", 9.0), row("cuda", 8.0)]
        rows += [row(name, us) for name, us in others.items()]
        rows = [replace(one, us_p20=one.us_p50, us_p80=one.us_p50, part=target.part) for one in rows]
        return target.judge(rows, STEADY)

    assert verdict().met
    assert "× torch.compile; " in verdict().figure
    judged = verdict(**{"torch.compile, padded": 8.5, "torch.compile, combo_kernels": 12.0})
    assert judged.misses == ["triton functional 100×10 float32: 1.059 of torch.compile, padded"]
    assert "triton at worst 1.059 of 1, cuda at worst 0.941 of 1 × torch.compile, as it is set best; " in judged.figure
    # Another peer, whose name merely begins so; and a way that has no time, since it failed.
    assert verdict(**{"torch.compiled": 1.0, "torch.compile, padded": None}).met
    # A part of whose work was done before is no peer's setting.
    assert verdict(**{"torch.compile, sorted before": 1.0}).met
    assert judge.best_set({}, "eager") is None


@pytest.mark.parametrize(
    ("implementation", "name", "whether"),
    [
        ("eager", "eager", True),
        ("eager, padded", "eager", True),
        ("torch.compile, 32 look-ups a kernel, padded", "torch.compile", True),
        ("eager, sorted before", "eager", False),
        ("eager, padded, sorted before", "eager", False),
        ("triton, folded before", "triton", False),
        ("fused, eager update", "fused", False),
        ("eager sparse", "eager", False),
        ("eager, ", "eager", False),
        ("cuda, sorted before", "cuda, sorted before", True),
        ("eager", "eager, padded", False),
    ],
)
def test_a_variant_is_the_same_by_settings_that_are_known(implementation, name, whether):
    assert judge.is_variant(implementation, name) is whether


def test_the_settings_of_every_ops_peers_are_known():
    """Else a peer that is set better than another would not count."""
    implementations = {
        name for op in bench.ops() for one in bench.of(op).cells() if isinstance(one, Cell)
        for name in one.implementations
    }
    ways = [name for name in implementations if name.startswith(("eager, ", "torch.compile, ", "max-autotune, "))]
    assert "torch.compile, combo_kernels" in ways
    assert [name for name in ways if not judge.is_variant(name, name.partition(", ")[0])] == []


def test_never_slower_is_within_three_percent_and_the_spreads_touch():
    def verdict(ours, low, peer=100.0, high=103.0):
        rows = [replace(row("eager", peer), us_p80=high), replace(row("auto", ours), us_p20=low)]
        return judge.NeverSlower("eager", ("auto",)).judge(rows, STEADY)

    assert verdict(102.9, 102.0).met
    assert verdict(90.0, 89.0, high=100.5).met
    assert verdict(103.1, 102.0).misses == ["auto functional 100×10 float32: 1.031"]
    assert verdict(101.0, 100.8, high=100.5).misses == [
        "auto functional 100×10 float32: 1.010, and 100.8 µs is beyond 100.5"
    ]
    waits = [
        row("eager", call=10.0, call_us_low=9.0, call_us_high=11.0),
        row("auto", call=10.2, call_us_low=9.9, call_us_high=10.3),
    ]
    target = judge.NeverSlower("eager", ("auto",))
    assert target.judge(waits, STEADY).met
    assert not target.judge([waits[0], replace(waits[1], call_us=10.4)], STEADY).met
    assert not target.judge([waits[0], row("auto", match="FAILED: x")], STEADY).met
    assert not target.judge(waits[:1], STEADY).met


def test_calls_are_within_a_time():
    def verdict(triton, cuda):
        rows = [row("x + 1", call=20.0), row("triton", call=triton), row("cuda", call=cuda)]
        return judge.CallWithin(12.0, "bandwidth").judge(rows, STEADY)

    assert verdict(11.9, 12.0).met
    assert verdict(11.9, 12.1).misses == ["cuda functional 100×10 float32: 12.1 µs"]
    assert not verdict(None, 5.0).met
    assert not judge.CallWithin(12.0).judge([row("triton", call=1.0)], STEADY).met


def test_first_call_verdict():
    def met(*rows):
        return judge.FirstCallWithin(50).judge([row(name, call=us) for name, us in rows], STEADY).met

    assert met(("triton", 4.9e4), ("cuda", 1e4))
    assert not met(("triton", 5.1e4), ("cuda", 1e4))
    assert not met(("cuda", 1e4))
    assert not met(("triton", None), ("cuda", 1e4))


def test_first_calls_of_several_models_are_judged_each():
    """Whichever comes last."""
    good, slow = row("cuda", call=1e4), row("cuda", call=6e4, shape=(7, 3))
    failed = row("cuda", shape=(7, 3), match="FAILED: x")
    for rows, shown in (((good, slow), "60.0 ms"), ((good, failed), "not measured")):
        for order in (rows, rows[::-1]):
            verdict = judge.FirstCallWithin(50, who=("cuda",)).judge([*order], STEADY)
            assert (verdict.met, verdict.misses) == (False, [f"7×3 float32: cuda: {shown}"])
            assert "100×10 float32: cuda 10.0 ms" in verdict.figure
            assert f"7×3 float32: cuda {shown}" in verdict.figure
    one = judge.FirstCallWithin(50).judge([good], STEADY)
    assert one.lines("op") == ["op first call: MISSED: triton not measured, cuda 10.0 ms; limit 50 ms",
                               "    triton: not measured"]


def test_calls_by_events_are_judged_in_their_own_cell():
    target = bench.of("dlrm").ByEvents((("a", 15.0),), {"rows": 100})
    mini, main = row("a", call=14.0), row("a", call=99.0, shape=(7, 3))
    assert target.judge([mini, main], STEADY).met
    assert target.judge([main, mini], STEADY).met
    assert not target.judge([main], STEADY).met
    assert target.judge([replace(mini, call_us=16.0)], STEADY).misses == ["a: 16.0 µs, 15.0 asked"]


def test_what_folding_takes_is_told_where_it_is_more_than_the_calls_vary():
    module = bench.of("outer_linear")

    def cell(rows, before, within, spread=1.0):
        times = ((module.FOLDED, before), (module.FOLDING, within))
        pair = (row(who, us, shape=(rows, 432)) for who, us in times)
        return [replace(one, us_p20=one.us_p50 - spread, us_p80=one.us_p50 + spread) for one in pair]

    told = module.FoldTime().judge([*cell(128, 75.0, 230.0), *cell(2048, 700.0, 866.0)], STEADY)
    assert (told.met, told.figure) == (True, "folding a weight takes 155 µs at 128 rows, 166 µs at 2048 rows")
    for before, within, spread in ((5354.0, 5143.0, 1.0), (5000.0, 5150.0, 80.0)):
        some = module.FoldTime().judge([*cell(128, 75.0, 230.0), *cell(16384, before, within, spread)], STEADY)
        not_told = f"what folding takes is not told at 16384 rows: {within:.0f} µs with it, {before:.0f} without"
        assert (some.met, some.figure) == (True, f"folding a weight takes 155 µs at 128 rows; {not_told}")
        none = module.FoldTime().judge(cell(16384, before, within, spread), STEADY)
        assert (none.met, none.figure) == (False, not_told)
    assert not module.FoldTime().judge([], STEADY).met


def test_a_summary_names_what_was_not_measured_and_what_failed():
    targets = (judge.CopyShare(lambda labels: 95), judge.NearTheFastest())
    rows = [row("triton", 1.0), row("cuda", match="FAILED: Mismatch: x")]
    entry = {"op": "add_relu", "quick": False, "copy_tb_per_s": STEADY, "rows": [one.flat() for one in rows]}
    lines = judge.summary(entry, targets)
    assert "add_relu grid: MISSED: not measured" in lines
    assert lines[-1] == "FAILED: bandwidth: cuda functional 100×10 float32: Mismatch: x"
    assert not any("grid" in line for line in judge.summary(entry | {"quick": True}, targets))
    # A quick run may leave out a slow peer; what no kernel of ours was measured for is missed in any run.
    beside = (judge.NeverSlower(),)
    (text, _) = judge.summary(entry, beside)
    assert "MISSED" in text
    assert len(judge.summary(entry | {"quick": True}, beside)) == 1


# ------------------------------------------------------------------------------------------------------------------
# Records.


@pytest.fixture
def record(monkeypatch):
    """What a run of two small cells gives, as on an H200; one of their implementations is wrong."""
    module = bench.of("add_relu")
    broken = cell(broken=lambda x, bias: x)
    other = replace(broken, labels=broken.labels | {"dtype": "float64"})
    monkeypatch.setattr(module, "cells", lambda quick: [broken, other])
    versions = runtime.versions() | {"GPU": "NVIDIA H200", "driver": "580.1"}
    monkeypatch.setattr(runtime, "versions", lambda: versions)
    return bench.run("add_relu", Clock())


def test_saved_is_complete_and_read_back(record, tmp_path, capsys):
    assert bench.save(record, tmp_path).startswith("saved ")
    path = tmp_path / "h200" / "add_relu.json"
    assert [p.name for p in path.parent.iterdir()] == ["add_relu.json"]
    saved = json.loads(path.read_text())
    assert {"GPU", "driver", "torch", "triton", "CUDA", "Python", "date", "copy_tb_per_s"} <= set(saved)
    assert saved["sources_sha256"] == sources.sha256("add_relu", "sources")
    assert saved["bench_sha256"] == sources.sha256("add_relu", "bench")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", saved["date"])
    assert saved["copy_tb_per_s"]["limit"] == pytest.approx(2**31 / 500e6, rel=1e-4)
    assert len(saved["rows"]) == 6
    assert {"op", "part", "form", "rows", "columns", "dtype", "us_p50", "note"} <= set(saved["rows"][0])
    good = next(r for r in saved["rows"] if r["implementation"] == "eager")
    assert good["tb_per_s"] == pytest.approx(256 / good["us_p50"] / 1e6, rel=1e-3)
    assert good["percent_of_copy"] == pytest.approx(100 * good["tb_per_s"] / (2**31 / 500e6), rel=1e-3)
    text = path.read_text()
    assert str(ROOT) not in text
    assert not re.search(r'"/|/home|/root|/tmp', text)

    frame = bench.recorded("add_relu", results=tmp_path)
    assert len(frame) == 6
    assert frame.attrs["GPU"] == "NVIDIA H200"
    assert len(bench.of_cells(frame, [cell()])) == 2
    assert len(bench.of_cells(frame, [cell("in place"), replace(cell(), labels={"nothing": 3})])) == 0
    assert list(bench.frame([Row.of(r) for r in saved["rows"]]).columns) == list(frame.columns)
    with pytest.raises(FileNotFoundError, match="add_relu: nothing recorded on a100, but on h200"):
        bench.recorded("add_relu", "a100", tmp_path)

    capsys.readouterr()
    bench.show("add_relu", results=tmp_path)
    shown = capsys.readouterr().out
    assert shown.startswith("add_relu, recorded on NVIDIA H200, ")
    assert "nothing has changed since." in shown
    assert shown.count("\nadd_relu  ") == 6
    assert "FAILED: bandwidth: broken functional 4×8 float64: Mismatch" in shown
    bench.save(record | {"sources_sha256": "0", "bench_sha256": "0"}, tmp_path)
    bench.show("add_relu", results=tmp_path)
    assert "sources and bench changed since." in capsys.readouterr().out


def test_a_record_is_valid_json_whatever_was_measured_and_is_read_as_it_was(record, tmp_path):
    """A faulty row may hold NaN or Inf, for which JSON has no number."""
    faulty = {"a": math.nan, "b": math.inf, "c": [1.0, -math.inf], "d": {"e": math.nan}, "f": None}
    rows = [faulty | {"match": "FAILED: nan"}]
    bench.save(record | {"copy_tb_per_s": {"limit": math.nan}, "rows": rows}, tmp_path)

    def refuse(literal):
        raise AssertionError(f"{literal} is not JSON")

    path = tmp_path / "h200" / "add_relu.json"
    json.loads(path.read_text(), parse_constant=refuse)
    for loaded in (bench.load("add_relu", results=tmp_path), *status.records_of("add_relu", tmp_path)):
        assert math.isnan(loaded["copy_tb_per_s"]["limit"])
        (row,) = loaded["rows"]
        assert (row["b"], row["c"], row["match"], row["f"]) == (math.inf, [1.0, -math.inf], "FAILED: nan", None)
        assert math.isnan(row["a"])
        assert math.isnan(row["d"]["e"])
    frame = bench.recorded("add_relu", results=tmp_path)
    assert frame["b"].dtype == "float64"


def test_a_record_without_a_failure_of_ours_is_only_replaced_by_another(record, tmp_path):
    """What was measured is not lost: it stands beside the record that stays, until one is saved."""
    folder, wrong = tmp_path / "h200", [r | {"implementation": "cuda, by x"} for r in record["rows"]]
    good = record | {"date": "2026-01-31", "rows": [r for r in record["rows"] if r["match"] == "ok"]}
    records.save(good, tmp_path, bench.is_ours)
    before = (folder / "add_relu.json").read_bytes()
    done = records.save(record | {"rows": wrong}, tmp_path, bench.is_ours)
    assert re.fullmatch(
        r"KEPT .*/h200/add_relu.json of 2026-01-31: of what was measured now, 2 rows of ours FAILED \(Mismatch: .*\); "
        r"all of it is in .*/h200/add_relu.failed.json", done
    )
    assert (folder / "add_relu.json").read_bytes() == before
    beside = records.read(folder / "add_relu.failed.json")
    assert [r["match"] for r in beside["rows"]] == [r["match"] for r in wrong]
    assert beside["sources_sha256"] == record["sources_sha256"]
    assert [len(status.records_of("add_relu", tmp_path)), len(records.recorded_files("*.json", tmp_path))] == [1, 2]
    elsewhere = records.save(record | {"GPU": "Tesla T4", "rows": wrong}, tmp_path, bench.is_ours)
    assert elsewhere.endswith("tesla-t4/add_relu.json; 2 rows of ours FAILED, and there was no record without")
    assert records.save(good | {"date": "2026-02-01"}, tmp_path, bench.is_ours).endswith("/h200/add_relu.json")
    assert bench.load("add_relu", results=tmp_path)["date"] == "2026-02-01"
    assert bench.load("add_relu", "tesla-t4", tmp_path)["GPU"] == "Tesla T4"
    assert [path.name for path in folder.iterdir()] == ["add_relu.json"]


def test_a_peers_failure_keeps_none_of_our_times(record, tmp_path):
    """The peer is in the record, without a time; where nobody says whose a row is, it is ours."""
    good = record | {"rows": [r for r in record["rows"] if r["match"] == "ok"]}
    peers = record | {"date": "2100-01-01"}
    assert {r["implementation"] for r in record["rows"] if r["match"] != "ok"} == {"broken"}
    records.save(good, tmp_path)
    assert records.save(peers, tmp_path).startswith("KEPT ")
    assert records.save(peers, tmp_path, bench.is_ours).endswith("/h200/add_relu.json; 2 rows of peers FAILED")
    saved = bench.load("add_relu", results=tmp_path)
    assert saved["date"] == "2100-01-01"
    assert [r["us_p50"] for r in saved["rows"] if r["match"] != "ok"] == [None, None]
    for who, ours in (("cuda", True), ("triton, sorted before", True), ("auto", True), ("eager", False),
                      ("torch.compile, padded", False), ("b.copy_(a)", True)):
        assert bench.is_ours({"implementation": who, "part": "copy" if "copy" in who else "main"}) is ours


def test_a_save_that_fails_leaves_the_old_record(record, tmp_path, monkeypatch):
    bench.save(record, tmp_path)
    before = (tmp_path / "h200" / "add_relu.json").read_bytes()

    def fails(self, *arguments):
        self.write_bytes(b"{")
        raise OSError("disk full")

    monkeypatch.setattr(Path, "write_text", fails)
    with pytest.raises(OSError, match="disk full"):
        bench.save(record | {"date": "2100-01-01"}, tmp_path)
    assert [p.read_bytes() for p in (tmp_path / "h200").iterdir()] == [before]


def test_copies_stand_among_the_cells_and_must_agree(monkeypatch, capsys):
    monkeypatch.setattr(bench.of("add_relu"), "cells", lambda quick: [cell()] * 20)
    steady = bench.run("add_relu", Clock(copies=(500, 500, 500, 510, 500)))
    kinds = "".join("c" if r["part"] == "copy" else "." for r in steady["rows"])
    assert kinds == "c........c........c....c"
    assert len(steady["copy_tb_per_s"]["all"]) == 4
    assert steady["copy_tb_per_s"]["limit"] == pytest.approx(2**31 / 500e6)
    assert judge.steady(steady["copy_tb_per_s"])
    monkeypatch.setattr(bench, "COPY_PAUSE", 0)
    once_slow = bench.run("add_relu", Clock(copies=(530, 500, 500, 530, 501)))
    assert [r["us_p50"] for r in once_slow["rows"] if r["part"] == "copy"] == [500, 501, 500, 500]
    assert once_slow["copy_tb_per_s"]["measured_again"] == 3
    apart = bench.run("add_relu", Clock(copies=(500, *[530] * 100)))
    assert not judge.steady(apart["copy_tb_per_s"])
    assert bench.copies_in_words(apart).endswith("they differ by 6.0% and are no yardstick")


@pytest.mark.parametrize(
    ("name", "folder"), [("NVIDIA H200", "h200"), ("NVIDIA H100 80GB HBM3", "h100-80gb-hbm3"), ("Tesla T4", "tesla-t4")]
)
def test_slug(name, folder):
    assert records.slug(name) == folder


@without_gpu
def test_bench_without_a_gpu_shows_the_record_and_measures_nothing(capsys):
    assert bench.main(["add_relu", "--save"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("No GPU here: nothing is measured.")
    assert "add_relu, recorded on NVIDIA H200" in shown
    assert bench.main(["add_relu", "--recorded", "t4"]) == 0
    assert "add_relu: nothing recorded on t4, but on h200" in capsys.readouterr().out


def test_bench_does_not_save_a_part(capsys):
    with pytest.raises(SystemExit, match="2"):
        bench.main(["--quick", "--save"])
    assert "--quick measures a part" in capsys.readouterr().err


@without_gpu
def test_bench_shows_the_record_of_a_sweep(capsys):
    assert bench.main(["dlrm", "--sweep"]) == 0
    assert "dlrm_sweep" in capsys.readouterr().out


def test_bench_sweeps_what_has_a_sweep(capsys):
    refused = {"softmax: no sweep": ["softmax", "--sweep"], "which --sweep leaves out": ["--sweep", "--quick"]}
    for why, arguments in refused.items():
        with pytest.raises(SystemExit):
            bench.main(arguments)
        assert why in capsys.readouterr().err


def test_bench_names_its_ops(capsys):
    with pytest.raises(SystemExit, match="2"):
        bench.main(["add_rely"])
    assert "unknown op add_rely: expected one of add_mul_activation, add_relu" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------------------------
# The status and the READMEs.


def test_status_says_what_changed_since(record, tmp_path):
    bench.save(record | {"bench_sha256": "0"}, tmp_path)
    counts = {"passed": 41, "failed": 0, "skipped": 2}
    now = sources.hashes("add_relu", "sources", "tests")
    entry = counts | {"GPU": "NVIDIA H200", "date": "2026-01-31"} | now
    tests = tmp_path / "h200" / "tests.json"
    tests.write_text(json.dumps({"add_relu": entry}))
    assert "tested    H200 2026-01-31: 41 passed, 2 skipped\n" in status.table(tmp_path)
    tests.write_text(json.dumps({"add_relu": entry | {"tests_sha256": "0"}}))
    table = status.table(tmp_path)
    assert "tested    H200 2026-01-31: 41 passed, 2 skipped, tests changed since\n" in table
    measured = r"H200 \d{4}-\d\d-\d\d, 2 rows of broken FAILED, bench changed since"
    assert re.search(rf"add_relu\n.*\n    measured  {measured}(\n|$)", table)
    assert table.startswith("add_mul_activation\n    tested    never\n    measured  never\n")
    assert "\ndispatch\n    in 1 of these 2 runs a call took another way " in table
    assert "| H200 2026-01-31: 41 passed, 2 skipped, tests changed since |" in status.readme_table(tmp_path)


def test_the_readmes_show_one_gpu_whatever_others_measured(record, tmp_path):
    times = (("eager", 9.04), ("cuda", 3.0))
    rows = [row(name, us, shape=(65536, 512)).flat() for name, us in times]
    bench.save(record | {"rows": rows}, tmp_path)
    tables = status.readme_table(tmp_path)
    assert "| [add_relu](ops/add_relu/) | never | H200 " in tables
    shown = "(ops/add_relu/): 65,536 rows of 512, float32 | 0.9 | 9.0 | – | – | 3.0 | nowhere: one kernel |"
    assert shown in tables
    assert "Recorded on NVIDIA H200, torch" in tables
    bench.save(record | {"rows": rows, "GPU": "Tesla T4", "date": "2100-01-01"}, tmp_path)
    assert status.readme_table(tmp_path) == tables
    assert "T4 2100-01-01" in status.table(tmp_path)
    copies = record["copy_tb_per_s"] | {"all": [4.0, 3.0]}
    bench.save(record | {"rows": rows, "copy_tb_per_s": copies}, tmp_path)
    table = status.result_table(tmp_path)
    assert "65,536 rows of 512, float32 | – | 9.0 |" in table
    assert table.endswith("The copies of add_relu's run differ by more than 5 %: they are no yardstick.")


def test_the_readmes_show_another_gpus_record_where_theirs_has_none(record, tmp_path):
    rows = [row("cuda", 3.0, shape=(65536, 512)).flat()]
    bench.save(record | {"rows": rows, "GPU": "Tesla T4", "date": "2100-01-01"}, tmp_path)
    assert "): 65,536 rows of 512, float32, on Tesla T4 | " in status.result_table(tmp_path)
    assert "| [add_relu](ops/add_relu/) | never | Tesla T4 2100-01-01" in status.readme_table(tmp_path)
    bench.save(record | {"rows": rows}, tmp_path)
    assert "T4" not in status.readme_table(tmp_path)


def test_the_readmes_show_another_gpus_record_where_theirs_lacks_a_peer(record, tmp_path):
    old, new = ("cuda", "torch.compile"), ("cuda", "torch.compile", "torch.compile, combo_kernels")
    rows = {names: [row(name, 3.0, shape=(65536, 512)).flat() for name in names] for names in (old, new)}
    bench.save(record | {"rows": rows[old]}, tmp_path)
    bench.save(record | {"rows": rows[new], "GPU": "Tesla T4"}, tmp_path)
    assert "float32, on Tesla T4 | " in status.result_table(tmp_path)
    bench.save(record | {"rows": rows[new]}, tmp_path)
    assert "T4" not in status.result_table(tmp_path)


@pytest.mark.parametrize(
    ("best", "shown"),
    [
        ("torch.compile", "5.5"),
        ("torch.compile, 32 look-ups a kernel", "5.5 (32 look-ups a kernel)"),
        ("max-autotune", "5.5 (max-autotune)"),
        ("max-autotune, padded", "5.5 (max-autotune, padded)"),
    ],
)
def test_the_compiler_is_shown_as_it_is_set_best(record, tmp_path, best, shown):
    times = {"torch.compile": 8.0, "torch.compile, 32 look-ups a kernel": 7.0, "triton": 9.0, best: 5.5}
    rows = [row(name, us, shape=(65536, 512)).flat() for name, us in times.items()]
    bench.save(record | {"rows": rows}, tmp_path)
    assert f"65,536 rows of 512, float32 | 0.9 | – | {shown} | 9.0 | – |" in status.result_table(tmp_path)


@pytest.mark.parametrize("part", ["bandwidth autotuned", "max-autotune"])
def test_of_a_part_that_is_autotuned_max_autotune_alone_is_shown(record, tmp_path, part):
    times = {"bandwidth": {"torch.compile": 8.0, "triton": 9.0}, part: {"torch.compile": 1.0, "triton": 2.0}}
    times[part]["max-autotune"] = 7.5
    rows = [replace(row(name, us, shape=(65536, 512)), part=of) for of in times for name, us in times[of].items()]
    bench.save(record | {"rows": [one.flat() for one in rows]}, tmp_path)
    assert "65,536 rows of 512, float32 | 0.9 | – | 7.5 (max-autotune) | 9.0 | – |" in status.result_table(tmp_path)


@pytest.mark.parametrize(
    ("best", "shown"),
    [("eager", "5.5"), ("eager, padded", "5.5 (padded)"), ("indexed", "5.5 (indexed)")],
)
def test_eager_is_shown_as_it_is_set_best_and_ours_as_they_are(record, tmp_path, best, shown):
    times = {"eager": 8.0, "eager, padded": 7.0, "eagerly": 1.0, "cuda": 9.0, "cuda, sorted before": 2.0, best: 5.5}
    rows = [row(name, us, shape=(65536, 512)).flat() for name, us in times.items()]
    bench.save(record | {"rows": rows}, tmp_path)
    assert f"65,536 rows of 512, float32 | 0.9 | {shown} | – | – | 9.0 |" in status.result_table(tmp_path)


def test_the_readmes_show_no_time_of_what_failed_and_say_that_it_did(record, tmp_path):
    rows = [
        row("eager", 8.0, shape=(65536, 512)),
        row("cuda", 9.0, shape=(65536, 512), match="FAILED: x"),
        row("triton", shape=(65536, 512), match="FAILED: y"),
    ]
    bench.save(record | {"rows": [one.flat() for one in rows], "without": ["a", "b"]}, tmp_path)
    assert "65,536 rows of 512, float32 | 0.9 | 8.0 | – | – | – |" in status.result_table(tmp_path)
    measured = rf"H200 {record['date']}, without a and b, 2 rows of cuda and triton FAILED"
    assert f"| [add_relu](ops/add_relu/) | never | {measured} |" in status.readme_table(tmp_path)
    assert f"    measured  {measured}\n" in status.table(tmp_path)
    bench.save(record | {"rows": [one.flat() for one in rows[:2]]}, tmp_path)
    assert f"H200 {record['date']}, 1 row of cuda FAILED |" in status.readme_table(tmp_path)


def test_each_row_of_the_table_has_words_of_its_own():
    rows = [line for line in status.result_table().splitlines() if line.startswith("| [")]
    cases = [line.split(" | ")[0] for line in rows]
    assert len(cases) == len(set(cases)) >= len(sources.ops())
    labels = {"rows": 2048, "dtype": "float32", "precision": "tf32", "widths": "3-1", "floor": "floor 1 µs"}
    row = Row("fused_mlp", "bandwidth", "functional", "cuda", labels)
    assert status.case("fused_mlp", row).startswith("2,048 rows through 3-1, TF32 (")
    half = replace(row, labels=labels | {"dtype": "bfloat16"})
    assert status.case("fused_mlp", half).startswith("2,048 rows through 3-1, bfloat16 (")


def test_the_readmes_are_up_to_date_and_their_links_exist():
    for path, text in status.pages().items():
        assert path.read_text() == text, f"{path.name} is not up to date: python -m kernels.measure status --write"
        links = re.findall(r"\]\(([\w./]+)\)", text)
        assert len(links) > 3
        assert all((path.parent / link).exists() for link in links)
    with pytest.raises(ValueError, match="must have the lines"):
        status.with_table("# kernels", "")


def test_the_commands():
    command = [sys.executable, "-m", "kernels.measure", "x"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("usage: python -m kernels.measure bench|status [options]")
