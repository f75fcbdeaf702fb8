"""What `make tensorboard` serves: every recorded run answers in the profiler's tab, beside the training scalars."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from contextlib import contextmanager

import pytest
import torch

from model.profiling import ROOT, TRACED_STEPS, TRACES, record

psutil = pytest.importorskip("psutil")
pytest.importorskip("tensorboard")
pytest.importorskip("torch_tb_profiler")  # the profiler's tab, which answers 404 without it
pytestmark = pytest.mark.slow
PLUGIN = "data/plugin/pytorch_profiler"
directly = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # no proxy knows this machine's 127.0.0.1


@contextmanager
def serving(folder):
    """TensorBoard over this folder, as `make tensorboard` starts it; gives get(path, **query) → the answer's text."""
    process = subprocess.Popen(
        ["make", "--no-print-directory", "-C", ROOT, "tensorboard", f"PYTHON={sys.executable}",
         f"ARGS=--logdir {folder} --port 0"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )
    try:
        lines = []
        for line in process.stdout:
            lines.append(line)
            if address := re.search(r"http://127\.0\.0\.1:\d+/", line):
                break
        else:
            raise AssertionError("".join(lines))

        def get(path, **query):
            url = f"{address[0]}{path}?{urllib.parse.urlencode(query)}"
            with directly.open(url, timeout=300) as answer:
                body = answer.read()
            return (gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body).decode()

        get.port = urllib.parse.urlsplit(address[0]).port
        yield get
    finally:
        subprocess.run(["pkill", "-TERM", "-s", str(process.pid)], check=False)
        process.communicate(timeout=300)


def runs(get, expected, seconds=120):
    """The runs that the profiler's tab lists, once it has read them all."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        answer = json.loads(get(f"{PLUGIN}/runs"))
        if not answer["loading"] and set(answer["runs"]) >= expected:
            return answer["runs"]
        time.sleep(0.5)
    raise AssertionError(f"after {seconds} s: {answer}")


def check_run(get, run, on_gpu):
    views = json.loads(get(f"{PLUGIN}/views", run=run))
    assert {"Overview", "Operator", "Trace"} <= set(views)
    assert ("Kernel" in views) == on_gpu
    (worker,) = json.loads(get(f"{PLUGIN}/workers", run=run, view="Overview"))
    (span,) = json.loads(get(f"{PLUGIN}/spans", run=run, worker=worker))
    where = {"run": run, "worker": worker, "span": span}
    overview = json.loads(get(f"{PLUGIN}/overview", **where))
    assert overview["steps"]["rows"]
    if on_gpu:
        assert json.loads(get(f"{PLUGIN}/kernel/table", **where))["data"]["rows"]
    trace = json.loads(get(f"{PLUGIN}/trace", **where))
    assert trace["traceEvents"]


def test_runs_and_scalars_are_served(tmp_path, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    from torch.utils.tensorboard import SummaryWriter

    weight = torch.randn(64, 64, requires_grad=True)
    record(lambda: (torch.randn(8, 64) @ weight).relu().sum().backward(), tmp_path / "a_step", device="cpu")
    with SummaryWriter(tmp_path / "training") as writer:
        writer.add_scalar("loss/train", 0.5, 1)
    with serving(tmp_path) as get:
        assert runs(get, {"a_step"}) == ["a_step"]
        check_run(get, "a_step", on_gpu=False)
        assert "loss/train" in get("data/plugin/scalars/tags")
        with pytest.raises(urllib.error.HTTPError):
            get(f"{PLUGIN}/no_such_thing")
        sockets = [s for s in psutil.net_connections("tcp") if s.status == "LISTEN" and s.laddr.port == get.port]
        assert {socket.laddr.ip for socket in sockets} == {"127.0.0.1"}


def test_the_recorded_runs_are_served():
    recorded = {step.name for step in TRACED_STEPS if (TRACES / step.name).is_dir()}
    assert len(recorded) in (10, 14, 19, len(TRACED_STEPS))
    with serving(TRACES) as get:
        assert recorded <= set(runs(get, recorded))
        for run in sorted(recorded):
            check_run(get, run, on_gpu=True)
