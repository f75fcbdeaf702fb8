"""Runs of model.train on several ranks, for tests/test_sharded.py: forks of one process that has imported it.

A run is a dict: "world" (0: one process, without ranks), "out" (where its losses go), and what `train` takes. Its ranks
are forks of this process; torchrun's part, the environment, is played here.
"""

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist

from data.cli import user_errors
from kernels.check import fresh
from model import preset
from model.config import Kernels, Preset
from model.interrupts import Interrupted
from model.sharding import step
from model.sharding.pieces import Sharding
from model.sharding.ranks import Ranks
from model.train import train


def run_all(runs: Iterable[dict], folder: Path) -> list[list[int]]:
    """Make the runs, one after another, in a fresh process; returns the exit status of each one's ranks."""
    code = "import sys, sharded_runs; sharded_runs.main(*sys.argv[1:])"
    (folder / "runs.json").write_text(json.dumps(list(runs)))
    done = fresh.run(code, folder / "runs.json", folder / "statuses.json", imported="sharded_runs", seconds=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((folder / "statuses.json").read_text())


def main(runs: str, statuses: str) -> None:
    torch.set_num_threads(1)
    done = []
    for run in json.loads(Path(runs).read_text()):
        with open(f"{run['out']}.err", "w") as err:
            os.dup2(err.fileno(), 2)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        children = [forked(lambda rank=rank, run=run, port=port: one(run, rank, port)) for rank in range(run["world"] or 1)]
        done.append([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children])
    Path(statuses).write_text(json.dumps(done))


def forked(work: Callable[[], None]) -> int:
    if child := os.fork():
        return child
    status = 1
    try:
        with user_errors("model.train"):
            work()
        status = 0
    except SystemExit as end:
        status = end.code or 0
    except Interrupted as error:
        status = 128 + error.number
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        os._exit(status)


def config_of(settings: dict) -> Preset:
    base = preset("mini")
    model = replace(base.model, kernels=Kernels.FUSED, **settings.pop("model", {}))
    return Preset(model, replace(base.train, **{"epochs": 1, "patience": 0, **settings}))


def one(run: dict, rank: int, port: int) -> None:
    run = dict(run)
    out, world = Path(run.pop("out")), run.pop("world")
    sharding, timeout = Sharding(**run.pop("sharding", {})), run.pop("timeout", 30)
    happens = {**run.pop("happens", {})}
    config = config_of({"batch_size": 12, **run.pop("settings", {})})
    options = {"device": "cpu", "checkpoints": out, "logs": out / "logs", **run}
    if not world:
        losses = train(config, **options).losses
    else:
        environment = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1"}
        os.environ.update({name: str(value) for name, value in environment.items()}, MASTER_PORT=str(port))
        if happens.get("rank") == rank:
            make_happen(**happens)
        ranks = Ranks(torch.device("cpu"), timeout)
        with ranks.one_message():
            losses = train(config, ranks=ranks, sharding=sharding, **options).losses
    if rank == 0:
        torch.save(torch.from_numpy(losses), f"{out}.losses")


def make_happen(rank: int, what: str, at: int) -> None:
    """Before its at-th step this rank does so."""
    plain, count = step.ShardedStep.__call__, 0

    def call(self, *batch):
        nonlocal count
        count += 1
        if count == at:
            HAPPENINGS[what](self)
        return plain(self, *batch)

    step.ShardedStep.__call__ = call


HAPPENINGS = {
    "kill": lambda _: os.kill(os.getpid(), signal.SIGKILL),
    "hang": lambda _: time.sleep(1000),
    "terminate": lambda _: os.kill(os.getpid(), signal.SIGTERM),
    "nan": lambda step: step.model.over_arch.logit.bias.data.fill_(float("nan")),
}
