"""The commands: what each says it does; data.cli: how one ends, whenever the signal comes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from data.cli import signals_wait
from kernels.check import fresh

ROOT = Path(__file__).resolve().parent.parent
MAIN = 'if __name__ == "__main__":'
# No commands for a reader, one with commands of its own, and a script with a test of its own.
WITHOUT_HELP = {"kernels.dispatch.cubin", "kernels.measure", "kernels.doctor"}


def commands() -> list:
    """The modules that `python -m` runs, as pytest parameters: slow ones those of the lessons."""
    names = set()
    for root, folder in ((ROOT, "data"), (ROOT, "model"), (ROOT, "kernels"), (ROOT / "notebooks", "lessons")):
        for path in (root / folder).rglob("*.py"):
            if MAIN in path.read_text():
                names.add(".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__main__"))
    return [
        pytest.param(name, marks=pytest.mark.slow if name.startswith("lessons.") else ())
        for name in sorted(names - WITHOUT_HELP)
    ]


@pytest.mark.parametrize("command", commands())
def test_a_command_says_what_it_does(command):
    code = f"import runpy, sys\nsys.argv = ['x', '--help']\nrunpy.run_module({command!r}, run_name='__main__')"
    done = fresh.run(code)
    if "No module named 'polars'" in done.stderr:
        pytest.skip("could not import 'polars'")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: python -m " + command)


@pytest.mark.parametrize(
    ("command", "importing", "number", "status", "message"),
    [
        ("data.preprocess", "polars", signal.SIGINT, 130, "data.preprocess: interrupted"),
        ("data.preprocess", "pyarrow", signal.SIGTERM, 143, "data.preprocess: terminated"),
        ("data.synthetic", "torch", signal.SIGINT, 130, "data.synthetic: interrupted"),
        ("model.train", "torch", signal.SIGINT, 130, "model: interrupted"),  # in the package, before the command
        ("model.train", "loguru", signal.SIGINT, 130, "model.train: interrupted"),
        ("model.profiling", "pandas", signal.SIGINT, 130, "model.profiling: interrupted"),
    ],
)
def test_a_signal_while_modules_are_imported(tmp_path, command, importing, number, status, message):
    if command == "data.preprocess":
        pytest.importorskip("polars")
    (tmp_path / f"{importing}.py").write_text(
        f"import os, time\nos.kill(os.getpid(), {int(number)})\ntime.sleep(60)\nraise ImportError('no signal came')\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT), *sys.path])}
    done = subprocess.run(
        [sys.executable, "-m", command], capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=300
    )
    assert (done.returncode, done.stderr, done.stdout) == (status, f"{message}\n", "")


def test_of_torchruns_processes_the_first_one_says_that_a_signal_came(tmp_path):
    (tmp_path / "torch.py").write_text("import os\nos.kill(os.getpid(), 15)\n")
    for rank, said in (("0", "model: terminated\n"), ("1", "")):
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT), *sys.path])}
        environment |= {"TORCHELASTIC_RUN_ID": "a test", "RANK": rank}
        command = [sys.executable, "-m", "model.train"]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=300)
        assert (done.returncode, done.stderr) == (143, said)


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
