"""data.cli: how a command ends, whenever the signal comes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from data.cli import signals_wait

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize(
    ("command", "importing", "number", "status", "said"),
    [
        ("data.preprocess", "polars", signal.SIGINT, 130, "data.preprocess: interrupted"),
        ("data.preprocess", "torch", signal.SIGTERM, 143, "data.preprocess: terminated"),
        ("data.synthetic", "torch", signal.SIGINT, 130, "data.synthetic: interrupted"),
        ("model.train", "torch", signal.SIGINT, 130, "model: interrupted"),  # in the package, before the command
        ("model.train", "loguru", signal.SIGINT, 130, "model.train: interrupted"),
        ("model.profiling", "pandas", signal.SIGINT, 130, "model.profiling: interrupted"),
    ],
)
def test_a_signal_while_modules_are_imported(tmp_path, command, importing, number, status, said):
    if command == "data.preprocess":
        pytest.importorskip("polars")
    (tmp_path / f"{importing}.py").write_text(
        f"import os, time\nos.kill(os.getpid(), {int(number)})\ntime.sleep(60)\nraise ImportError('no signal came')\n"
    )
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    done = subprocess.run(
        [sys.executable, "-m", command], capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=60
    )
    assert (done.returncode, done.stderr, done.stdout) == (status, f"{said}\n", "")


def test_a_signal_waits_for_the_end_of_the_block():
    steps = []

    def work():
        with signals_wait():
            signal.raise_signal(signal.SIGINT)
            steps.append("in the block")
        steps.append("behind it")

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        work()
    assert steps == ["in the block"]
    assert signal.getsignal(signal.SIGTERM) == before
