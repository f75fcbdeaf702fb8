"""model.profiling: traces with known answers, damaged ones, recorded ones; what a recording must not say."""

import getpass
import gzip
import itertools
import json
import os
import re
import shutil
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

from data.cli import UserError
from data.synthetic import CATEGORIES, FULL, SyntheticConfig
from kernels.check import fresh
from lessons.shared.timeline import timeline
from model import profiling
from model.config import Interaction, Kernels, Optimizer, Precision
from model.dlrm import DLRM
from model.hashing import Hash
from model.profiling import (
    ROOT,
    TRACED_STEPS,
    TRACES,
    compare,
    read,
    record,
    recording,
    step_facts,
    summarize,
    tables,
    trace_file,
    traced_steps,
    training_step,
)
from model.profiling.__main__ import main
from model.profiling.facts import length, union

RECORDED = [step.name for step in TRACED_STEPS if (TRACES / step.name).is_dir()]
COPY = "Memcpy DtoH (Device -> Pageable)"


def event(cat: str, name: str, start: float, end: float, tid: int = 1, **arguments) -> dict:
    return {"ph": "X", "cat": cat, "name": name, "pid": 5, "tid": tid, "ts": 7e12 + start, "dur": end - start} | (
        {"args": arguments} if arguments else {}
    )


def gpu_step(number: int) -> list[dict]:
    """1000 µs: kernels A and B overlap on two streams, a graph of two kernels G, and loss.item()."""
    base, own = 1000 * number, 10 * number
    at = lambda cat, name, start, end, tid=1, **arguments: event(cat, name, base + start, base + end, tid, **arguments)  # noqa: E731
    return [
        at("user_annotation", f"ProfilerStep#{number + 3}", 0, 1000),
        at("gpu_user_annotation", f"ProfilerStep#{number + 3}", 150, 710, tid=70),
        at("cpu_op", "aten::addmm", 90, 115),
        at("cuda_runtime", "cudaLaunchKernel", 100, 110, correlation=own + 1),
        at("kernel", "A", 150, 250, tid=70, correlation=own + 1, stream=7),
        at("cuda_driver", "cuLaunchKernelEx", 120, 130, tid=2, correlation=own + 2),  # the backward's thread
        at("kernel", "B", 200, 400, tid=90, correlation=own + 2, stream=9),
        at("cuda_runtime", "cudaGraphLaunch", 500, 520, correlation=own + 3),
        at("kernel", "G", 550, 580, tid=70, correlation=own + 3, stream=7),
        at("kernel", "G", 582, 600, tid=70, correlation=own + 3, stream=7),
        at("cpu_op", "aten::item", 600, 900),
        at("cpu_op", "aten::_local_scalar_dense", 610, 890),
        at("cuda_runtime", "cudaMemcpyAsync", 620, 640, correlation=own + 4),
        at("gpu_memcpy", COPY, 700, 710, tid=70, correlation=own + 4, stream=7, bytes=4),
        at("cuda_runtime", "cudaStreamSynchronize", 650, 850, correlation=own + 5),
    ]


def memory(allocated: int, device: int) -> dict:
    arguments = {"Total Allocated": allocated, "Device Type": device, "Bytes": 1, "Addr": 1}
    return {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "ts": 7e12, "args": arguments}


def gpu_events() -> list[dict]:
    return [
        {"ph": "M", "name": "process_name", "pid": 5, "tid": 0, "ts": 7e12, "args": {"name": "python"}},
        *(part for number in (1, 0, 2) for part in gpu_step(number)),
        event("kernel", "before", 300, 420, tid=90, correlation=7777, stream=9),  # launched before the recording
        event("cuda_runtime", "cudaLaunchKernel", 1900, 1910, correlation=99),
        event("kernel", "late", 2050, 2100, tid=70, correlation=99, stream=7),  # while the host is in the next step
        *(memory(*pair) for pair in ((500, 1), (900, 1), (700, 1), (10**6, 0))),
    ]


def write(folder: Path, events: list[dict], name: str = "run") -> Path:
    path = folder / f"{name}.1.pt.trace.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"schemaVersion": 1, "traceEvents": events}).encode()))
    return path


@pytest.fixture
def gpu_trace(tmp_path) -> Path:
    return write(tmp_path, gpu_events())


SMALLER = ["--device", "cpu", "--batch-size", "64", "--largest-table", "500", "--repeats", "2", "--steps", "2"]


@pytest.fixture(scope="module")
def told(tmp_path_factory) -> Path:
    """Steps 04 and 14 as the command records them, on the CPU and smaller; the folder of all steps."""
    folder = tmp_path_factory.mktemp("story")
    assert main(["story", "--only", "04,14", "--out", str(folder), *SMALLER]) == 0
    return folder


@pytest.fixture(scope="module")
def with_stacks(tmp_path_factory) -> tuple[Path, dict]:
    """Step 01 in this process, with Python's calls."""
    folder = tmp_path_factory.mktemp("stacks") / "01"
    step, config = training_step(replace(TRACED_STEPS[0], batch_size=16), "cpu")
    return folder, record(step, folder, config=config, device="cpu", timed=5)


# A GPU's trace, with known answers


def test_facts_of_a_gpu_trace(gpu_trace):
    facts = step_facts(gpu_trace)
    assert (facts.device, facts.steps, facts.peak_bytes) == ("cuda", 3, 900)
    assert facts.kernels == pytest.approx(16 / 3)
    assert facts.launches == pytest.approx(13 / 3)  # the two of a graph are one launch
    # From 150, where step 0's first kernel begins, to 2150, where step 2's does: two periods.
    assert facts.step_us == pytest.approx(1000)
    assert facts.busy_us == pytest.approx((270 + 48 + 10 + 250 + 48 + 10 + 50) / 2)
    assert facts.busy_percent == pytest.approx(34.3)
    pauses = [130, 100, 440, 150, 100, 340, 50]  # those of 2 µs within the graph are none
    assert (facts.gaps, facts.gap_us) == pytest.approx((len(pauses) / 2, sum(pauses) / 2))
    assert facts.longest_gap_us == pytest.approx(440)
    assert facts.launch_us == pytest.approx((3 * 40 + 10) / 3)
    assert (facts.copy_us, facts.item_us, facts.synchronize_us) == pytest.approx((20, 300, 200))


def test_facts_of_a_single_step(tmp_path):
    facts = step_facts(write(tmp_path, gpu_step(0)))
    assert facts.step_us == pytest.approx(1000)
    assert facts.busy_us == pytest.approx(308)
    assert facts.longest_gap_us == pytest.approx(290)  # until the host, too, is done


@pytest.mark.parametrize("idle", [{1}, {0}, {2}, {0, 1}, {1, 2}])
def test_steps_without_gpu_work(tmp_path, idle):
    events = [e for n in range(3) for e in gpu_step(n) if n not in idle or e["name"].startswith("ProfilerStep#")]
    facts = step_facts(write(tmp_path, events))
    assert (facts.steps, facts.step_us) == (3, pytest.approx(1000))
    assert facts.kernels == pytest.approx(5 * (3 - len(idle)) / 3)


def test_a_gpu_that_lags_behind_the_host(tmp_path):
    """Three steps are issued in 30 µs; the GPU takes 300 for each, and is never idle."""
    events = []
    for number in range(3):
        start = 10 * number
        events.append(event("user_annotation", f"ProfilerStep#{number}", start, start + 10))
        events.append(event("cuda_runtime", "cudaLaunchKernel", start + 2, start + 4, correlation=number))
        ran = 50 + 300 * number
        events.append(event("kernel", "k", ran, ran + 300, tid=70, correlation=number))
    path = write(tmp_path, events)
    facts = step_facts(path)
    assert (facts.step_us, facts.busy_percent, facts.kernels, facts.gaps) == pytest.approx((300, 100, 1, 0))
    assert summarize(path).loc["k", ["count", "us", "share"]].tolist() == pytest.approx([1, 300, 1])


def test_kernels_belong_to_the_step_that_launched_them(gpu_trace):
    work = read(gpu_trace).of("kernel")
    assert work.loc[work["name"] == "late", "step"].tolist() == [1]
    assert "before" not in set(work["name"])
    assert sorted(work.loc[work["name"] == "B", "step"]) == [0, 1, 2]


def test_summary_of_a_gpu_trace(gpu_trace):
    table = summarize(gpu_trace)
    assert list(table.index) == ["B", "A", "G", "late", COPY]
    assert table["count"].tolist() == pytest.approx([1, 1, 2, 1 / 3, 1])
    assert table["us"].tolist() == pytest.approx([200, 100, 48, 50 / 3, 10])
    assert table["share"].tolist() == pytest.approx(np.array([600, 300, 144, 50, 30]) / (3 * 308 + 50))
    assert table.loc[COPY, "bytes"] == pytest.approx(4)
    assert table["bytes"].isna().sum() == 4


def test_a_clock_that_counts_from_1970(tmp_path):
    """Its floats are 0.25 µs apart; durations are told in ns."""
    events = [e | {"ts": 1.7e15 + (e["ts"] - 7e12)} for e in gpu_step(0)]
    for changed in events:
        changed["dur"] = {"A": 0.083, "B": 0.091}.get(changed["name"], changed["dur"])
    table = summarize(write(tmp_path, events))
    assert table.loc[["A", "B"], "us"].tolist() == pytest.approx([0.083, 0.091])


def test_compare(gpu_trace, tmp_path):
    events = [e for e in gpu_events() if e["name"] != "late"]
    for changed in events:
        if changed["cat" if "cat" in changed else "name"] == "kernel":
            changed["dur"] *= {"A": 0.5, "B": 1.05}.get(changed["name"], 1)
            changed["name"] = changed["name"].replace("G", "fused")
    table = compare(gpu_trace, write(tmp_path, events, "other"))
    assert table["change"].drop("total").to_dict() == {
        "A": "faster", "B": "same", "G": "disappeared", "fused": "appeared", "late": "disappeared", COPY: "same",
    }
    assert table.loc["A", ["count a", "us a", "count b", "us b", "change us"]].tolist() == [1, 100, 1, 50, -50]
    assert table.loc["total", "change us"] == pytest.approx(-50 + 10 - 50 / 3)
    assert table.index[0] == "A"
    back = compare(tmp_path / "other.1.pt.trace.json.gz", gpu_trace)
    assert back.loc[["A", "late"], "change"].tolist() == ["slower", "appeared"]
    (once, *_) = (e for e in events if e["name"] == "A")
    fewer = write(tmp_path, [e for e in events if e is not once], "fewer")
    assert compare(gpu_trace, fewer).loc["A", "change"] == "fewer"
    assert compare(fewer, gpu_trace).loc["A", "change"] == "more"


def test_timeline(gpu_trace, tmp_path):
    import matplotlib

    matplotlib.use("Agg")
    other = write(tmp_path, gpu_step(0), "single")
    figure = timeline(gpu_trace, other, step=2, labels=["^A$", "^no kernel$"])
    above, below = figure.axes
    assert [text.get_text() for text in above.texts] == ["^A$"]
    assert above.get_xlim() == below.get_xlim() == (0, 1)
    assert above.get_title(loc="left") == "run: 1.00 ms a step while profiled, 5 kernels, GPU busy 34 %"

    def bars(ax) -> dict[str, list[tuple[float, float]]]:
        spans = {}
        for collection in ax.collections:
            corners = [path.vertices[:, 0] for path in collection.get_paths()]
            spans.setdefault(collection.get_label(), []).extend((x.min(), x.max()) for x in corners)
        return spans

    shown = bars(above)
    # Step 2: A and B in one, the graph's two; what step 1 left to do is another colour.
    assert np.array(shown["kernel"]) == pytest.approx(np.array([[0.15, 0.4], [0.55, 0.58], [0.582, 0.6]]))
    assert np.array(shown["another step's"]) == pytest.approx(np.array([[0.05, 0.1]]))
    assert np.array(shown["item"]) == pytest.approx(np.array([[0.6, 0.9]]))
    assert len(shown["launch"]) == 3
    assert "another step's" not in bars(below)
    figure.savefig(tmp_path / "timeline.png")
    matplotlib.pyplot.close(figure)


def test_union_against_a_grid():
    rng = np.random.default_rng(0)
    for count in (0, 1, 2, 5, 40):
        start = rng.integers(0, 100, count)
        end = start + rng.integers(1, 20, count)
        covered = np.zeros(200, bool)
        for a, b in zip(start, end, strict=True):
            covered[a:b] = True
        merged = union(pd.DataFrame({"ts": start, "end": end}))
        assert length(merged) == covered.sum()
        assert (merged[1:, 0] > merged[:-1, 1]).all()


# A CPU's trace


def test_operators_own_time(tmp_path):
    events = [
        event("user_annotation", "ProfilerStep#0", 0, 100),
        event("cpu_op", "outer", 10, 60),
        event("python_function", "f.py(1): f", 20, 50),
        event("cpu_op", "same", 25, 45),
        event("cpu_op", "same", 30, 40),  # as aten::remainder calls itself for another overload
        event("cpu_op", "outer", 15, 35, tid=2),  # another thread's
        event("cpu_op", "after", 100, 110),  # no longer in the step
    ]
    path = write(tmp_path, events)
    table = summarize(path)
    assert table["us"].to_dict() == pytest.approx({"outer": 40, "same": 20})
    assert table["count"].to_dict() == {"outer": 2, "same": 1}
    assert table.loc["same", "share"] == pytest.approx(0.2)
    facts = step_facts(path)
    assert (facts.device, facts.step_us, facts.busy_percent, facts.launches) == ("cpu", 100, None, None)


def test_a_call_that_ends_after_its_caller_by_rounding(tmp_path):
    events = [
        event("user_annotation", "ProfilerStep#0", 0, 100),
        event("cpu_op", "caller", 10, 20),
        event("cpu_op", "callee", 15, 20.125),
        event("cpu_op", "next", 20, 30),
    ]
    assert summarize(write(tmp_path, events))["us"].to_dict() == {"next": 10, "callee": 5.125, "caller": 4.875}


# What is no trace


def _cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def _with(**changed) -> bytes:
    *others, copy, last = gpu_step(0)
    copy["args"] |= {field: changed.pop(field) for field in ("correlation", "bytes") if field in changed}
    return json.dumps({"traceEvents": [*others, copy | changed, last]}).encode()


WHOLE = json.dumps({"traceEvents": gpu_step(0)}).encode()
BAD = {
    "gzip cut": (_cut(gzip.compress(WHOLE)), "truncated"),
    "gzip damaged": (gzip.compress(WHOLE)[:-8] + bytes(8), "damaged"),
    "json cut": (_cut(WHOLE), "truncated"),
    "json cut, then packed": (gzip.compress(_cut(WHOLE)), "truncated"),
    "empty": (b"", "empty"),
    "packed nothing": (gzip.compress(b""), "empty"),
    "binary": (bytes(range(128, 256)), "not JSON"),
    "a list": (b"[1, 2]", "not a trace"),
    "other json": (b'{"nbformat": 4, "cells": []}', "not a trace"),
    "events of another kind": (b'{"traceEvents": [{"ph": "X", "name": "x"}]}', "event 0, 'x': dur: .* no such field"),
    "events that are numbers": (b'{"traceEvents": [1]}', "event 0: expected an object, found 1"),
    "an event without a phase": (b'{"traceEvents": [{"name": "x"}]}', "event 0, 'x': ph: expected a string"),
    "memory of no device": (b'{"traceEvents": [{"ph": "i", "name": "[memory]", "args": {}}]}', "Device Type: expected"),
    "no events": (b'{"traceEvents": []}', "no step markers"),
    "no launches": (WHOLE.replace(b"cuda_runtime", b"").replace(b"cuda_driver", b""), "GPU work, but no launch"),
    "a number for a name": (_with(name=5), "event 13: name: expected a string, found 5"),
    "a list for a category": (_with(cat=[]), r"event 13, .*: cat: expected a string, found \[\]"),
    "a string for a time": (_with(ts="7e12"), "ts: expected a finite number, found '7e12'"),
    "a string for a duration": (_with(dur="10"), "dur: expected a finite number, found '10'"),
    "a time and a duration that are strings": (_with(ts="7e12", dur="10"), "dur: expected a finite number"),
    "no number for a time": (_with(ts=float("nan")), r"ts: expected a number below 2\^63, found nan"),
    "a time that is too large": (_with(ts=10**400), r"ts: expected a number below 2\^63, found 1000"),
    "a time before all times": (_with(ts=-1e308), r"ts: expected a number below 2\^63, found -1e\+308"),
    "a duration that is too large": (_with(dur=1e308), r"dur: expected a number below 2\^63, found 1e\+308"),
    "an infinite duration": (_with(dur=float("inf")), r"dur: expected a number below 2\^63, found inf"),
    "a negative duration": (_with(dur=-1), r"event 13, 'Memcpy DtoH .*': dur: expected µs from 0, found -1$"),
    "a string for a correlation": (_with(correlation="4"), "correlation: expected a finite number, found '4'"),
    "a list for bytes": (_with(bytes=[4]), r"bytes: expected a finite number, found \[4\]"),
    "no steps": (json.dumps({"traceEvents": gpu_step(0)[1:]}).encode(), "no step markers"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_trace_says_so(tmp_path, kind):
    content, message = BAD[kind]
    path = tmp_path / "bad.pt.trace.json.gz"
    path.write_bytes(content)
    for function in (step_facts, summarize, timeline):
        with pytest.raises(UserError, match=message) as caught:
            function(path)
        text = str(caught.value)
        assert text.startswith(f"{path}: ")
        assert text.count(str(path)) == 1
        assert "Error" not in text
        assert "\n" not in text
        assert len(text) < len(str(path)) + 160


def test_names_that_no_terminal_shows_are_escaped(tmp_path, capsysbinary):
    events = gpu_step(0)
    kernel = next(e for e in events if e.get("cat") == "kernel")
    kernel["name"] = "a\nb\ud800\x1b[31mγ"
    assert main(["summarize", "--names", "whole", str(write(tmp_path, events))]) == 0
    assert r"a\nb\ud800\x1b[31mγ".encode() in capsysbinary.readouterr().out


def test_a_folder_must_hold_one_trace(tmp_path):
    with pytest.raises(UserError, match=r"expected one file .*, found 0"):
        read(tmp_path)
    write(tmp_path, gpu_events())
    assert read(tmp_path).name == "run"
    write(tmp_path, gpu_events(), "second")
    with pytest.raises(UserError, match="found 2"):
        read(tmp_path)


# Recording


def assert_agrees(folder: Path) -> None:
    """What record stored beside the trace: the profiler's own totals within 1 %, the facts but for rounding."""
    run = json.loads((folder / "run.json").read_text())
    table, totals = summarize(folder), pd.DataFrame(run["key_averages"]).set_index("name")
    assert set(table.index) == set(totals.index)
    table = table.loc[totals.index]
    count = (table["count"] * run["active_steps"]).to_numpy()
    if run["facts"]["device"] == "cuda":
        assert count == pytest.approx(totals["count"].to_numpy())
    else:  # key_averages counts some operators that call themselves for another overload twice
        assert (count < totals["count"] + 0.5).all()
    assert (table["us"] * run["active_steps"]).to_numpy() == pytest.approx(totals["us"].to_numpy(), rel=0.01, abs=0.1)
    assert table["us"].sum() * run["active_steps"] == pytest.approx(totals["us"].sum(), rel=0.01)
    facts, stored = asdict(step_facts(folder)), run["facts"]
    assert facts.pop("device") == stored.pop("device")
    pd.testing.assert_series_equal(pd.Series(facts, dtype=float), pd.Series(stored, dtype=float), rtol=1e-4)
    assert facts["steps"] == run["active_steps"]


def assert_anonymous(folder: Path) -> None:
    """No file's name or content holds this machine's name, this user's, or an absolute path."""
    secrets = [re.escape(str(path)) for path in (ROOT, sys.prefix, sys.base_prefix, Path.home(), "/tmp")]
    secrets += [rf"\b{re.escape(name)}\b" for name in (os.uname().nodename, getpass.getuser())]
    secrets.append(r"(?<![\w./])/(home|root|tmp|usr|opt|var|Users|work)\b")
    for path in folder.iterdir():
        text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text()
        assert not re.search("|".join(secrets), text + path.name), re.search("|".join(secrets), text + path.name)


def test_which_steps_are_recorded():
    """Those with small tables; those with Kaggle's, too, or none of them; and so with those of the fused kernels."""
    names = [step.name for step in TRACED_STEPS]
    assert RECORDED in (names[:10], names[:14], names[:19], names)


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_steps(name):
    assert_agrees(TRACES / name)
    assert read(TRACES / name).name == name


def test_what_is_recorded_is_small_and_names_no_machine():
    folders = [*(TRACES / name for name in RECORDED), TRACES / "generated"]
    for folder in folders:
        assert_anonymous(folder)
    sizes = [path.stat().st_size for folder in folders for path in folder.iterdir()]
    assert max(sizes) <= trace_file.MAX_BYTES
    assert sum(sizes) <= 6 * trace_file.MAX_BYTES


@pytest.mark.slow
@pytest.mark.parametrize("name", ["04_modulus", "14_full_adagrad_sparse"])
def test_what_the_command_records(told, name):
    folder, number = told / name, name[:2]
    assert_agrees(folder)
    assert_anonymous(folder)
    assert sorted(path.name for path in folder.iterdir()) == [f"{name}.1.pt.trace.json.gz", "run.json"]
    assert max(path.stat().st_size for path in folder.iterdir()) < trace_file.MAX_BYTES / 4
    run = json.loads((folder / "run.json").read_text())
    options = "--steps 2 --batch-size 64 --largest-table 500 --repeats 2 --device cpu"
    assert run["command"] == f"python -m model.profiling story --only {number} {options}"
    assert run["config"]["ids"] == sum(run["config"]["model"]["cardinalities"])
    assert max(run["config"]["model"]["cardinalities"]) == 500
    expected = replace(TRACED_STEPS[int(number) - 1], batch_size=64, largest_table=500)
    assert run["config"]["run"] == json.loads(json.dumps(asdict(expected)))
    assert (run["active_steps"], run["GPU"], run["torch"]) == (2, "none", torch.__version__)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", run["date"])
    table = summarize(folder)
    assert table.loc["aten::embedding", "count"] == (1 if number == "14" else 26)  # sparse gradients: all tables in one
    assert ("aten::embedding_sparse_backward" in table.index) == (number == "14")
    assert ("aten::embedding_dense_backward" in table.index) == (number == "04")
    assert 0 < table["share"].sum() <= 1


@pytest.mark.slow
def test_steps_are_timed_again_and_their_traces_stay(told, tmp_path, capsys):
    for name in ("04_modulus", "14_full_adagrad_sparse"):
        assert_spread(told / name, 2)
    shutil.copytree(told, tmp_path / "out")
    out = tmp_path / "out"
    smaller = [replace(TRACED_STEPS[i], batch_size=64, largest_table=500) for i in (3, 13)]
    before = {path: path.read_bytes() for path in sorted(out.glob("*/*"))}
    assert traced_steps.time_steps(smaller, out, "cpu", repeats=3) == 0
    for path, content in before.items():
        assert (path.read_bytes() == content) == (path.suffix == ".gz")
    for step in smaller:
        file = out / step.name / "run.json"
        run, old = json.loads(file.read_text()), json.loads(before[file])
        assert_spread(out / step.name, 3)
        changed = {name for name in run if run[name] != old.get(name)}
        assert changed <= {"step_ms", "step_ms_low", "step_ms_high", "repeats", "timed"}
    assert "04_modulus: " in capsys.readouterr().out
    # Not of what is recorded there: 64 rows a step, and this torch.
    with pytest.raises(SystemExit, match="2"):
        main(["times", "--only", "04", "--device", "cpu", "--out", str(out)])
    assert "recorded with" in capsys.readouterr().err


def assert_spread(folder: Path, repeats: int) -> None:
    run = json.loads((folder / "run.json").read_text())
    assert run["repeats"] == repeats
    assert 0 < run["step_ms_low"] <= run["step_ms"] <= run["step_ms_high"]


def test_times_are_of_the_recorded_step(tmp_path):
    step = replace(TRACED_STEPS[3], batch_size=16)
    with pytest.raises(UserError, match=r"04_modulus: no run\.json: record it first, with story --only 04"):
        traced_steps.time_steps([step], tmp_path, "cpu")
    here = recording.versions(torch.device("cpu"))
    for changed, message in (
        ({"GPU": "NVIDIA H200"}, "GPU: recorded with NVIDIA H200, here is none"),
        ({"torch": "1.0"}, "torch: recorded with 1.0, here is"),
        ({"config": {"run": {"batch_size": 2048}}}, "batch_size: recorded with 2048, asked for 16"),
    ):
        (tmp_path / "04_modulus").mkdir(exist_ok=True)
        run = {**here, "config": {"run": asdict(step)}} | changed
        (tmp_path / "04_modulus" / "run.json").write_text(json.dumps(run))
        with pytest.raises(UserError, match=message):
            traced_steps.time_steps([step], tmp_path, "cpu")


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_time_lies_in_its_spread(name):
    run = json.loads((TRACES / name / "run.json").read_text())
    assert run["step_ms_low"] <= run["step_ms"] <= run["step_ms_high"] if "repeats" in run else run["step_ms"] > 0


def test_steps_are_timed_by_turns():
    called = []
    steps = {"a": lambda: called.append("a"), "b": lambda: called.append("b") or time.sleep(0.01)}
    times = recording.step_times(steps, block=4, rounds=3)
    assert times.shape == (3, 2)
    assert (times["a"] > 0).all()
    assert times["b"].between(10, 1000).all()  # ms
    blocks = ["".join(block) for _, block in itertools.groupby(called)]
    assert [block[0] for block in blocks] == ["a", "b"] * 3
    assert min(map(len, blocks)) >= 4


def test_operators_are_those_that_compute():
    x, y = torch.ones(4, 3, requires_grad=True), torch.ones(3)
    with profiling.Operators() as forward:
        out = (2 * x[1:] + y).relu_().view(-1)
    assert forward.seen == [("mul", 36, 36), ("add", 36 + 12, 36), ("relu", 36, 36)]
    with profiling.Operators() as backward:
        out.sum().backward()
    computed = ["sum", "threshold_backward", "mul"]  # in this order, with what autograd does besides
    assert [operator.name for operator in backward.seen if operator.name in computed] == computed
    assert all(operator.written > 0 for operator in backward.seen)
    torch.relu(x)
    assert len(forward.seen) == 3


def test_what_takes_and_gives_no_tensor_is_no_operator():
    library = torch.library.Library("lecture_operators", "DEF")
    library.define("declare(str name) -> ()")
    library.impl("declare", lambda name: None, "CompositeExplicitAutograd")
    with profiling.Operators() as operators:
        torch.ops.lecture_operators.declare("relu")
        torch.ones(3)
    assert operators.seen == [("ones", 0, 12)]


def test_operators_may_count_the_least_that_must_be_read():
    table, rows, t = torch.ones(100, 3), torch.tensor([7, 7]), torch.ones(2, 4)
    with profiling.Operators(least=True) as operators:
        torch.nn.functional.embedding(rows, table)
        table[rows]
        torch.mm(t, t.T)
    assert operators.seen == [("embedding", 16 + 24, 24), ("index", 16 + 24, 24), ("mm", 32, 16)]


@pytest.mark.slow
def test_stacks_and_sync_metrics(with_stacks):
    folder, run = with_stacks
    assert_agrees(folder)
    assert_anonymous(folder)
    assert json.loads((folder / "run.json").read_text()) == run
    events = read(folder).events
    calls = set(events.loc[events["cat"] == "python_function", "name"])
    assert any(re.match(r"model/hashing\.py\(\d+\): forward", name) for name in calls)
    assert summarize(folder).loc["aten::item", "count"] == 1
    assert step_facts(folder).item_us > 0


def test_a_trace_that_is_too_large_loses_python_s_calls_first(tmp_path, monkeypatch):
    x = torch.ones(3)

    def step():
        for _ in range(100):
            (lambda: x + 1)()

    def recorded(name: str, **options) -> tuple[int, set]:
        record(step, tmp_path / name, device="cpu", timed=1, active=1, **options)
        (path,) = (tmp_path / name).glob("*.gz")
        return path.stat().st_size, set(read(path).events["cat"])

    large, kinds = recorded("with")
    small, _ = recorded("without", stacks=False)
    assert "python_function" in kinds
    monkeypatch.setattr(trace_file, "MAX_BYTES", (small + large) // 2)
    size, kinds = recorded("trimmed")
    assert size < (small + large) // 2
    assert "python_function" not in kinds
    monkeypatch.setattr(trace_file, "MAX_BYTES", 1000)
    with pytest.raises(ValueError, match=r"trimmed.1.pt.trace.json.gz: .* bytes, more than 1,000: record fewer"):
        recorded("trimmed")


def test_a_recording_in_this_folder_has_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = record(lambda: torch.ones(3) + 1, ".", device="cpu", timed=1, active=1, stacks=False)
    assert run["name"] == read(".").name == tmp_path.name
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.json", f"{tmp_path.name}.1.pt.trace.json.gz"]


@pytest.mark.parametrize(
    ("path", "left"),
    [
        (f"{ROOT}/model/dlrm.py(3): forward", "model/dlrm.py(3): forward"),
        (f"{Path(torch.__file__).parent}/nn/modules/module.py", "torch/nn/modules/module.py"),
        (json.__file__, "json/__init__.py"),
        ("/tmp/torchinductor_jane/ab/cabc.py", "torchinductor/ab/cabc.py"),
        ("/scratch/jane.doe/x/triton_poi.py", "triton_poi.py"),
        ("torchinductor_jane.doe/ab/cabc.py", "torchinductor/ab/cabc.py"),
        ("see /data/users/jane/run.py:3", "see run.py:3"),
        ("/mnt/andré/proj/x.py(3): f", "x.py(3): f"),
        ("/mnt/John Doe/proj/x.py(3): f", "x.py(3): f"),
        ('File "/mnt/John Doe/x.py", line 3', 'File "x.py", line 3'),
        ("see /home/John Doe/my proj.py:3", "see my proj.py:3"),
        ("see /Users/andré/proj/x.py", "see x.py"),
        ("file:///home/jane/x.py", "x.py"),
        (f"file://{ROOT}/model/dlrm.py", "model/dlrm.py"),
        ("first\n/home/jane/x.py", "first\nx.py"),
        ("/opt/bin/train --data /data/criteo --out traces/x", "train --data criteo --out traces/x"),
        ("train /data/criteo traces/x", "train criteo traces/x"),
        ("torch/nn/functional.py", "torch/nn/functional.py"),
        ("a / b / c, a /b, 2/3", "a / b / c, a /b, 2/3"),
        ("void at::native::(anonymous namespace)::f<128 / 4>", "void at::native::(anonymous namespace)::f<128 / 4>"),
        ("https://pytorch.org/docs/stable", "https://pytorch.org/docs/stable"),
    ],
)
def test_paths_become_relative(path, left):
    assert json.loads(trace_file.anonymous(json.dumps({"name": path})))["name"] == left


@pytest.mark.parametrize("name", RECORDED)
def test_what_is_recorded_stays_as_it_is(name):
    for path in (TRACES / name).iterdir():
        text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text()
        assert trace_file.anonymous(text) == text


def test_totals_of_a_gpu_are_of_its_kernels_and_copies(gpu_trace):
    cpu, cuda = torch.autograd.DeviceType.CPU, torch.autograd.DeviceType.CUDA
    averages = [
        SimpleNamespace(key=key, count=2, device_type=device, self_device_time_total=3.0, self_cpu_time_total=4.0)
        for key, device in (("A", cuda), ("A", cpu), (COPY, cuda), ("ProfilerStep*", cuda), ("aten::addmm", cpu))
    ]
    profiler = SimpleNamespace(key_averages=lambda: averages)
    totals = recording._totals(profiler, read(gpu_trace), cuda=True)
    assert totals == [{"name": name, "count": 2, "us": 3.0} for name in ("A", COPY)]


# The traced steps and their table


def test_the_traced_steps_are_the_lectures():
    assert [step.number for step in TRACED_STEPS] == [f"{number:02}" for number in range(1, 21)]
    assert [step.preset for step in TRACED_STEPS] == ["small"] * 5 + ["main"] * 15
    assert [step.hash for step in TRACED_STEPS[:5]] == [Hash.INDEX_NAIVE] * 2 + [Hash.INDEX] + [Hash.MODULUS] * 2
    assert {step.hash for step in TRACED_STEPS[5:]} == {Hash.MODULUS}
    assert [step.interaction for step in TRACED_STEPS[5:]] == [Interaction.OUTER] * 2 + [Interaction.DOT] * 13
    assert [step.compile for step in TRACED_STEPS[:5]] == ["", "", "", "", "default"]
    assert [step.compile for step in TRACED_STEPS[5:]] == ["", "default", "", "default", "reduce-overhead", *[""] * 10]
    assert [step.sync_metrics for step in TRACED_STEPS] == [True, True] + [False] * 18
    assert [step.blocking for step in TRACED_STEPS] == [False, True] + [False] * 18
    assert [step.optimizer for step in TRACED_STEPS[:14]] == [Optimizer.SGD] * 12 + [Optimizer.ADAGRAD] * 2
    assert [step.sparse_gradients for step in TRACED_STEPS[10:]] == [False, True, False, True, *[True] * 6]
    assert [step.kernels for step in TRACED_STEPS] == [Kernels.EAGER] * 14 + [Kernels.FUSED] * 6
    rules = ["sgd", "adagrad", "rowwise_adagrad", "sgd", "adagrad", "sgd"]
    assert [step.table_optimizer or step.optimizer for step in TRACED_STEPS[14:]] == rules
    assert [step.cuda_graph for step in TRACED_STEPS[14:]] == [False] * 3 + [True] * 3
    assert [step.precision for step in TRACED_STEPS] == [Precision.FP32] * 19 + [Precision.TF32]
    assert not any(step.cuda_graph for step in TRACED_STEPS[:14])
    assert not any(step.sparse_gradients for step in TRACED_STEPS[:10])
    assert {step.batch_size for step in TRACED_STEPS} == {2048}


def test_the_last_steps_have_kaggles_tables():
    kaggle = tuple(category.cardinality for category in CATEGORIES.values())
    for step in TRACED_STEPS[10:]:
        assert SyntheticConfig(step.largest_table).cardinalities == kaggle
        assert step.largest_table == FULL
    assert 16 * 4 * sum(kaggle) == pytest.approx(2.2e9, rel=0.02)  # bytes of the tables


@pytest.mark.parametrize("name", RECORDED)
def test_a_step_is_what_was_recorded_as_it(name):
    """The presets' defaults may change; what a trace is of does not."""
    (step,) = (step for step in TRACED_STEPS if step.name == name)
    config = json.loads((TRACES / name / "run.json").read_text())["config"]
    now = json.loads(json.dumps(asdict(step)))
    assert {field: now[field] for field in config["run"]} == config["run"]
    trained = config["train"] if "train" in config else config["run"]  # older records say it there
    for field in ("optimizer", "learning_rate", "weight_decay", "batch_size"):
        assert trained[field] == now[field]
    ours = json.loads(json.dumps(asdict(traced_steps.shape_of(step))))
    assert {field: ours[field] for field in config["model"]} == config["model"]


@pytest.mark.parametrize("step", [TRACED_STEPS[3], TRACED_STEPS[7], *TRACED_STEPS[10:14]], ids=lambda step: step.name)
def test_a_step_trains_every_parameter(step):
    """One group of parameters, or two: no parameter is left out, none is in both; sparse gradients stay sparse."""
    small = replace(step, batch_size=8, batches=1, largest_table=50)
    function, _ = training_step(small, "cpu")
    model, optimizer = variables(function)["work"].args
    assert isinstance(model, DLRM)
    trained = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    assert sorted(map(id, trained)) == sorted(map(id, model.parameters()))
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for _ in range(3):
        function()
    for name, parameter in model.named_parameters():
        assert parameter.grad.is_sparse == (step.sparse_gradients and "tables" in name)
        assert not torch.equal(parameter, before[name]), name
    decays = {group["weight_decay"] for group in optimizer.param_groups}
    assert decays == {step.weight_decay} | ({0.0} if step.sparse_gradients else set())


def variables(function) -> dict:
    """What a function that was made in another one has from there."""
    return dict(zip(function.__code__.co_freevars, (cell.cell_contents for cell in function.__closure__), strict=True))


@pytest.mark.parametrize("step", TRACED_STEPS[14:17], ids=lambda step: step.name)
def test_a_fused_step_trains_as_its_eager_one(step):
    """Every parameter moves, none of a table has a gradient; the losses are those of eager's rule, where it has one."""
    small = replace(step, batch_size=8, batches=2, largest_table=50)
    function, config = training_step(small, "cpu")
    assert config["run"]["kernels"] == "fused"
    model, _ = variables(function)["work"].args
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    losses = [function() for _ in range(6)]
    for name, parameter in model.named_parameters():
        assert (parameter.grad is None) == ("tables" in name)
        assert not torch.equal(parameter, before[name]), name
    if not step.table_optimizer:
        eager, _ = training_step(replace(small, kernels=Kernels.EAGER), "cpu")
        torch.testing.assert_close(torch.stack(losses), torch.stack([eager() for _ in range(6)]))


def test_a_graph_needs_a_gpu():
    with pytest.raises(UserError, match="18_full_sgd_graph: a CUDA graph needs an NVIDIA GPU, this is the cpu"):
        training_step(replace(TRACED_STEPS[17], batch_size=8, batches=1, largest_table=50), "cpu")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("step", TRACED_STEPS[17:], ids=lambda step: step.name)
def test_a_graphed_step_is_the_uncaptured_one(step):
    small = replace(step, batch_size=64, largest_table=500)
    losses = []
    for chosen in (small, replace(small, cuda_graph=False)):
        function, _ = training_step(chosen, "cuda")
        losses.append(torch.stack([function().clone() for _ in range(12)]))
    torch.testing.assert_close(*losses, rtol=0, atol=1e-4)


def test_a_preset_with_tables_of_its_own_keeps_them():
    for kind in (Hash.MODULUS, Hash.INDEX):
        step, config = training_step(traced_steps.TracedStep("few", "mini", hash=kind, batch_size=8, batches=1), "cpu")
        assert config["model"]["cardinalities"] == (10, 20, 30)
        step()


def test_a_step_without_a_recorded_optimizer_is_refused():
    with pytest.raises(ValueError, match="optimizer: expected sgd or adagrad, got adam"):
        training_step(replace(TRACED_STEPS[3], optimizer=Optimizer.ADAM, batch_size=8, batches=1), "cpu")


def test_every_comparing_step_is_within_the_hashes_limit():
    pytest.importorskip("loguru")
    from model.train import MAX_COMPARISONS

    for step in TRACED_STEPS:
        if step.hash is not Hash.MODULUS:
            assert (max(SyntheticConfig(step.largest_table).cardinalities) + 1) * step.batch_size < MAX_COMPARISONS


def test_the_steps_batches_are_data_as_training_reads_them():
    step, config = training_step(replace(TRACED_STEPS[7], batch_size=8, batches=2), "cpu")
    assert config["model"]["bottom"] == (13, 512, 256, 64, 16)
    turns = variables(step)["turns"]
    first, second, third = (next(turns) for _ in range(3))
    labels, dense, sparse = first
    assert (labels.shape, dense.shape, sparse.shape) == ((8,), (8, 13), (8, 26))
    assert not torch.equal(sparse, second[2])
    assert third is first


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without a GPU")
def test_traced_steps_need_a_gpu(capsys, tmp_path):
    with pytest.raises(SystemExit) as caught:
        main(["story", "--out", str(tmp_path)])
    assert caught.value.code == 2
    assert "there is none here" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_unknown_runs_are_named(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["story", "--only", "04,99"])
    assert "--only 99: expected some of 01,02," in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--batch-size", "--steps"])
@pytest.mark.parametrize("value", ["0", "-1"])
def test_a_number_below_one_is_named(tmp_path, capsys, option, value):
    with pytest.raises(SystemExit, match="2"):
        main(["story", "--device", "cpu", "--only", "04", "--out", str(tmp_path), option, value])
    assert f"argument {option}: expected a whole number from 1, got {value}" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_step_that_fails_is_counted(tmp_path, capfd):
    assert traced_steps.record_steps([replace(TRACED_STEPS[3], batch_size=0)], tmp_path, "cpu", repeats=1) == 1
    shown = capfd.readouterr()
    assert "04_modulus: FAILED: UserError: " in shown.out
    assert "in training_step" in shown.err


@pytest.mark.slow
def test_table(told, tmp_path, capsys):
    shutil.copytree(told, tmp_path / "out")
    told = tmp_path / "out"
    readme = told / "README.md"
    readme.write_text("# traces\n")
    with pytest.raises(SystemExit, match="2"):
        main(["table", "--out", str(told)])
    assert "must have the lines" in capsys.readouterr().err
    readme.write_text(f"# traces\n\n{tables.BEGIN}\nold\n{tables.END}\n\nmore\n")
    assert main(["table", "--out", str(told)]) == 0
    text = readme.read_text()
    row = r"\| \[04_modulus\]\(04_modulus/\) \| `python .* cpu` \| none \| \S+ \| \S+ to \S+ (\| – ){4}\|\n"
    assert re.search(row, text)
    assert text.startswith("# traces\n\n<!-- begin")
    assert text.endswith("<!-- end -->\n\nmore\n")
    assert "old" not in text
    assert main(["table", "--out", str(told)]) == 0
    assert readme.read_text() == text


def test_a_row_of_the_table(tmp_path):
    assert tables.readme_table(tmp_path).startswith("None is recorded yet")
    assert list(profiling.recorded_steps(tmp_path)) == tables.COLUMNS
    run = {
        "command": "python -m x", "GPU": "NVIDIA H200", "step_ms": 1.23456, "peak_bytes": 10_900_000_000,
        "facts": {"launches": 3.0, "kernels": 120.0, "busy_percent": 87.6},
    }
    for name, more in (("10_x", {}), ("11_y", {"step_ms_low": 1.2, "step_ms_high": 1.3, "repeats": 5})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(json.dumps(run | more))
    _, _, once, five_times = tables.readme_table(tmp_path).splitlines()
    assert once == "| [10_x](10_x/) | `python -m x` | NVIDIA H200 | 1.23 | – | 3 | 120 | 88 | 10,900 |"
    assert "| 1.23 | 1.2 to 1.3 | 3 |" in five_times
    table = profiling.recorded_steps(tmp_path)
    assert table["repeats"].tolist() == [1, 5]
    assert table.loc["11_y", ["step ms", "lowest", "highest", "peak MB"]].tolist() == [1.23456, 1.2, 1.3, 10900]


def test_the_readme_shows_the_recorded_steps():
    assert tables.readme_table() in (TRACES / "README.md").read_text()


# In a terminal


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_a_terminal_shows_the_table_whole(gpu_trace, columns, monkeypatch, capsys):
    monkeypatch.setattr(shutil, "get_terminal_size", lambda *_, **__: os.terminal_size((columns, 24)))
    for command in (["summarize", str(gpu_trace)], ["compare", str(gpu_trace), str(gpu_trace)]):
        assert main([*command, "--names", "fit"]) == 0
        header, *rows = capsys.readouterr().out.splitlines()[len(command) - 1 :]
        numbers = ["count", "us", "share", "bytes"] if command[0] == "summarize" else ["change"]
        assert all(name in header for name in [*numbers, "name"])
        rows = [row for row in rows if "names that are cut" not in row]
        assert len(rows) == 5 + (command[0] == "compare")
        if columns >= 80:
            assert max(map(len, [header, *rows])) <= columns
        assert "Memcpy DtoH" in rows[4] or "Memcpy" in "".join(rows)


def test_names_that_are_cut_are_counted():
    name = "void at::native::(anonymous namespace)::" + "long_" * 40
    table = pd.DataFrame({"count": [1.0, 2.0], "us": [1234.5, 2.0]}, index=[name, "short"])
    header, long, short, note = tables.as_text(table, 60).splitlines()
    assert (len(long), long[-1]) == (60, "…")
    assert long.split()[:3] == ["1.0", "1,234.5", long.split()[2]]
    assert long.split()[2].startswith("long_long_")
    assert short.split() == ["2.0", "2.0", "short"]
    assert header.split() == ["count", "us", "name"]
    assert note.startswith("names that are cut, at …: 1 ")
    whole = tables.as_text(table)
    assert name in whole
    assert len(whole.splitlines()) == 3


def test_the_commands_output_in_a_pipe_is_whole(gpu_trace):
    """And it needs neither the package that logs nor those for notebooks and TensorBoard, which a machine may lack."""
    code = f"import runpy, sys\nsys.argv[1:] = ['summarize', *2 * [{str(gpu_trace)!r}]]\n"
    code += "try:\n    runpy.run_module('model.profiling', run_name='__main__')\nexcept SystemExit as end:\n"
    code += "    print(end.code, {'loguru', 'nbformat', 'tensorboard'} & set(sys.modules))"
    done = fresh.run(code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("run: 3 steps, 1.00 ms each while profiled; 4 launches, 5 kernels, GPU busy 34 %") == 2
    rows = [line for line in done.stdout.splitlines() if line.endswith(COPY)]
    assert [row.split()[:4] for row in rows] == [["1.0", "10.0", "3.1%", "4"]] * 2
    assert done.stdout.endswith("\n0 set()\n")


@pytest.mark.parametrize("command", ["summarize", "compare"])
def test_a_bad_trace_is_one_line(gpu_trace, capsys, command):
    bad = gpu_trace.with_name("bad.json")
    bad.write_bytes(_with(dur=-1))
    for path, message in ((bad, "dur: expected µs from 0, found -1"), ("no_such_trace", "No such file or directory")):
        with pytest.raises(SystemExit, match="2"):
            main([command, str(path), str(path)])
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        assert err.startswith(f"python -m model.profiling {command}: error: {path}: ")
        assert message in err


# Memory


def test_a_memory_history_of_the_users_is_kept(monkeypatch):
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch._C, "_cuda_isHistoryEnabled", lambda: True, raising=False)
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", lambda **_: pytest.fail("it was touched"))
    with pytest.raises(RuntimeError, match="recorded already"):
        profiling.memory_snapshot(lambda: pytest.fail("it ran"))


def test_allocated_over_time():
    def entry(action: str, size: int, us: int) -> dict:
        return {"action": action, "addr": 1, "size": size, "stream": 0, "time_us": us, "frames": []}

    history = [
        entry("segment_alloc", 4096, 90), entry("alloc", 1000, 100), entry("alloc", 500, 110),
        entry("free_requested", 1000, 130), entry("free_completed", 1000, 140), entry("alloc", 200, 160),
    ]
    segments = [
        {"device": 0, "allocated_size": 700}, {"device": 0, "allocated_size": 300}, {"device": 1, "allocated_size": 9},
    ]
    snapshot = {"device_traces": [history, []], "segments": segments}
    frame = profiling.allocated_over_time(snapshot)
    assert frame["us"].tolist() == [0, 10, 30, 60]
    assert frame["bytes"].tolist() == [1300, 1800, 800, 1000]  # 300 were there before, 1000 are at the end
    assert profiling.allocated_over_time(snapshot, device=1).empty
