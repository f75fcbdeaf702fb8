"""What a caller waits for: ways that are right, wrong, stale or fail, a program that times itself; kept, and shown."""

from __future__ import annotations

import torch

from kernels import runtime
from kernels.measure import records
from lessons.shared.experiment import VERSIONS as NAMES
from lessons.shared.measure import FOLDER
from lessons.shared.waited import waited

VERSIONS = {name: "1" for name in NAMES} | {"GPU": "NVIDIA X1"}
RIGHT = {"eager": lambda x: 2 * x, "yours": lambda x: x + x}


class Program:
    """A way that times its calls itself."""

    def __init__(self, factor):
        self.factor, self.calls = factor, 0

    def __call__(self, x):
        self.calls += 1
        return self.factor * x

    def us(self):
        return 1.0, 2.0, 3.0


def test_what_a_caller_waits_for(monkeypatch, tmp_path, capsys):
    program, kept = Program(2), []

    def stale(x):  # what a graph that does not read its inputs gives
        kept.append(2 * x)
        return kept[0]

    def ask(ways):
        new = torch.Generator().manual_seed(0)
        return waited(
            "99", "calls", [8], lambda n: (torch.rand(n, generator=new),), ways, RIGHT["eager"], off=1e-6, calls=20
        )

    monkeypatch.setattr(runtime, "device", lambda: torch.device("cuda"))
    monkeypatch.setattr(runtime, "versions", lambda: VERSIONS)
    monkeypatch.setattr(records.recorded_files, "__defaults__", (tmp_path, None))
    monkeypatch.setenv(FOLDER, str(tmp_path))
    times = ask(RIGHT | {"program": program, "wrong": Program(3), "stale": stale, "fails": lambda x: x.none})
    assert [row["match"][:6] for row in times.rows] == ["ok", "ok", "ok", "FAILED", "FAILED", "FAILED"]
    assert "us_p50" not in times.rows[4]
    assert times.one("yours", 8)["us_p20"] <= times.one("yours", 8)["us_p50"] <= times.one("yours", 8)["us_p80"]
    assert program.calls == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("µs that the caller waits: median (20th to 80th percentile)")
    assert "  program  2.0 µs (1.0 to 3.0)" in lines
    assert "  fails    FAILED: AttributeError: 'Tensor' object has no attribute 'none'" in lines
    monkeypatch.setattr(runtime, "device", lambda: torch.device("cpu"))
    ask({"program": program})
    assert capsys.readouterr().out.splitlines()[1:] == [
        "8 rows", "  program  2.0 µs (1.0 to 3.0)",
    ]
    assert program.calls == 1
