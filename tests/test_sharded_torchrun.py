"""model.train by torchrun itself: signals, a killed rank and what torchrun makes of it, hosts that end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from train_runs import table

from data.dataset import write_dataset
from model.checkpoints import load_checkpoint
from model.sharding.checkpoints import RUN, named

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parent.parent
# Restarted ranks would find the addresses of the dead ones in a store that torchrun shares with them.
RESTARTS = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("torchrun") / "data"
    write_dataset([lambda: table(5000)], out)
    return out


class Torchrun:
    """A process of torchrun with its ranks, and what they print in a file."""

    def __init__(
        self, folder: Path, data: Path, *options: str, of_torchrun: tuple[str, ...] = ("--standalone",),
        name: str = "torchrun", **environment: str,
    ):
        self.folder, self.printed = folder, folder.with_name(f"{name}.log")
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", *of_torchrun, "-m", "--"]
        command += ["model.train", "--preset", "mini", "--kernels", "fused", "--batch-size", "12", "--epochs", "1"]
        command += ["--device", "cpu", "--data", data, "--checkpoints", folder, "--logs", folder, "--piece-rows", "9"]
        command += options
        with self.printed.open("a") as printed:
            self.process = subprocess.Popen(
                [str(word) for word in command], cwd=ROOT, stdout=printed, stderr=printed,
                env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
            )

    def ranks(self) -> dict[int, int]:
        """The processes of its ranks."""
        found = {}
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                variables = dict(one.partition("=")[::2] for one in (entry / "environ").read_text().split("\0"))
            except OSError:
                continue
            if parent == self.process.pid and "RANK" in variables:
                found[int(variables["RANK"])] = int(entry.name)
        return found

    def until(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 120
        while not holds():
            assert self.process.poll() is None, self.said()
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.01)

    def until_saved(self, but: str = "") -> None:
        """last names a checkpoint, another one than that."""
        self.until(lambda: (self.folder / "last").exists() and named(self.folder / "last").name != but)

    def said(self) -> str:
        return self.printed.read_text()

    def end(self) -> int:
        return self.process.wait(120)

    def messages(self) -> list[str]:
        return [line for line in self.said().splitlines() if line.startswith("python -m model.train: ")]


def losses(folder: Path) -> torch.Tensor:
    return load_checkpoint(named(folder / "last") / RUN)["losses"]


@pytest.fixture(scope="module")
def unbroken(data, tmp_path_factory) -> torch.Tensor:
    run = Torchrun(tmp_path_factory.mktemp("unbroken") / "run", data)
    assert run.end() == 0, run.said()
    assert (run.folder / "best.pt").exists()
    return losses(run.folder)


def test_terminated_again_and_again_and_resumed(data, tmp_path, unbroken):
    """Each time all ranks stop after the same step, with one checkpoint and one message."""
    saved = ""
    for number in range(3):  # a start of torchrun takes ten seconds
        run = Torchrun(tmp_path / "run", data, "--checkpoint-every", "5", *(["--resume"] if number else []))
        run.until_saved(but=saved)
        time.sleep(0.1 * number)
        run.process.terminate()
        assert run.end() != 0
        assert len(run.messages()) == number + 1, run.said()
        message = r"python -m model.train: interrupted in epoch 1, after step (\d+) of \d+; add --resume to .*"
        (step,) = re.fullmatch(message, run.messages()[-1]).groups()
        saved = named(run.folder / "last").name
        assert saved == f"step-{int(step):06d}"
        assert [path.name for path in run.folder.glob("step-*")] == [saved]
    run = Torchrun(tmp_path / "run", data, "--resume")
    assert run.end() == 0, run.said()
    torch.testing.assert_close(losses(run.folder), unbroken, rtol=0, atol=1e-6)


def test_ranks_end_with_a_torchrun_that_is_killed(data, tmp_path):
    """At one step, with one checkpoint: though the store has ended with it, by which ranks speak of each other."""
    run = Torchrun(tmp_path / "run", data, "--checkpoint-every", "5")
    run.until_saved()
    ranks = run.ranks()
    run.process.kill()
    run.process.wait()
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{rank}").exists() for rank in ranks.values()):
        assert time.monotonic() < deadline, run.said()
        time.sleep(0.1)
    assert run.said().count(f"torchrun, process {run.process.pid} of ") == 1
    message = r"python -m model.train: interrupted in epoch 1, after step (\d+) of \d+; add --resume to .*"
    (step,) = re.fullmatch(message, "\n".join(run.messages())).groups()
    assert [path.name for path in run.folder.glob("step-*")] == [f"step-{int(step):06d}"]


def test_wrong_arguments_are_said_although_the_first_rank_starts_late(data, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "import os, time\nif os.environ.get('RANK') == '0':\n    time.sleep(3)\n"
    )
    run = Torchrun(tmp_path / "run", data, "--columns", "3", PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}")
    assert run.end() != 0
    said = "python -m model.train: error: --columns 3: expected a divisor of embedding_dim, 4"
    assert re.findall(r"^(?:python -m )?model.*: .*", run.said(), re.M) == [said]


def test_ctrl_c_before_the_first_step_is_said_once(data, tmp_path):
    """It comes to torchrun and its ranks, here while modules are imported."""
    (tmp_path / "loguru.py").write_text("import time\nprint('importing')\ntime.sleep(60)\n")
    run = Torchrun(tmp_path / "run", data, PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}", PYTHONUNBUFFERED="1")
    run.until(lambda: run.said().count("importing") == 2)
    for process in (*run.ranks().values(), run.process.pid):
        os.kill(process, signal.SIGINT)
    assert run.end() != 0
    assert re.findall(r"^(?:python -m )?model.*: .*", run.said(), re.M) == ["model.train: interrupted"]


def test_killed_ranks_are_restarted_and_go_on(data, tmp_path, unbroken):
    restarts = "--standalone", "--max-restarts", "2"
    run = Torchrun(tmp_path / "run", data, "--checkpoint-every", "20", of_torchrun=restarts, **RESTARTS)
    saved = ""
    for rank in (1, 0):  # the last one with the store
        run.until_saved(but=saved)
        saved = named(run.folder / "last").name
        os.kill(killed := run.ranks()[rank], signal.SIGKILL)
        run.until(lambda killed=killed: re.search(rf"exitcode: -9\) .*pid: {killed}\)", run.said()))
    assert run.end() == 0, run.said()
    first, second = run.messages()
    assert re.search(r"rank 1 \(.*\) answers no more, .*: killed, or stopped", first)
    assert "rank 0, or its torchrun, has ended, with the store that all share" in second
    torch.testing.assert_close(losses(run.folder), unbroken, rtol=0, atol=1e-6)


def test_a_stopped_rank_is_named_within_the_timeout(data, tmp_path):
    run = Torchrun(tmp_path / "run", data, "--checkpoint-every", "20", "--timeout", "3")
    run.until_saved()
    os.kill(stopped := run.ranks()[1], signal.SIGSTOP)
    began = time.monotonic()
    run.until(lambda: bool(run.messages()))
    assert time.monotonic() - began < 30
    os.kill(stopped, signal.SIGKILL)  # torchrun would do so 30 s later
    assert run.end() != 0
    (message,) = run.messages()
    assert re.search(rf"rank 1 \(.*, process {stopped}\) answers no more, .*: killed, or stopped", message)
    assert (run.folder / "last").exists()


def test_of_two_hosts_one_ends_and_the_other_goes_on_alone(data, tmp_path, unbroken):
    """Two torchruns stand for two hosts; the one that is left makes a world of its own, from the last checkpoint."""
    hosts = (
        "--nproc-per-node", "1", "--nnodes", "1:2", "--max-restarts", "3", "--rdzv-backend", "c10d", "--rdzv-id", "a",
        "--rdzv-endpoint", f"127.0.0.1:{29000 + os.getpid() % 1000}", "--rdzv-conf", "last_call_timeout=10",
    )
    options = {"of_torchrun": hosts, **RESTARTS}
    first = Torchrun(tmp_path / "run", data, "--checkpoint-every", "20", **options)
    time.sleep(2)  # it is the rendezvous
    second = Torchrun(tmp_path / "run", data, "--checkpoint-every", "20", name="second", **options)
    first.until_saved()
    for process in (second.process.pid, *second.ranks().values()):
        os.kill(process, signal.SIGKILL)
    second.process.wait()
    assert first.end() == 0, first.said()
    assert len(first.messages()) == 1, first.said()
    torch.testing.assert_close(losses(first.folder), unbroken, rtol=0, atol=1e-6)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than 2 CUDA devices")
@pytest.mark.parametrize("graph", [(), ("--cuda-graph",)])
def test_two_gpus_train_what_two_ranks_of_a_cpu_do(data, tmp_path, unbroken, graph):
    run = Torchrun(tmp_path / "run", data, "--device", "cuda", *graph)
    assert run.end() == 0, run.said()
    # Products and sums of a GPU are in other orders; Adam makes more of that from step to step.
    torch.testing.assert_close(losses(run.folder)[:50], unbroken[:50], rtol=0, atol=1e-4)
