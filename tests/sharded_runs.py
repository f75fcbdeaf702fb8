"""Runs of model.train on several ranks, for tests/test_sharded.py: forks of one process that has imported it.

A run is a dict: "world" (0: one process, without ranks), "out" (where its losses go), and what `train` takes. Its ranks
are forks of this process; torchrun's part, the environment, is played here.
"""

import json
import os
import resource
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from loguru import logger
from torch.distributed import TCPStore

from data.cli import user_errors
from kernels.check import fresh
from model import preset
from model.config import Kernels, Preset
from model.interrupts import Interrupted
from model.sharding import evaluation, step
from model.sharding import run as of_run
from model.sharding.pieces import Sharding
from model.sharding.ranks import Ranks
from model.train import main as main_of_train
from model.train import train

SECONDS = 100  # that a process may take


def run_all(runs: Iterable[dict], folder: Path) -> list[list[int]]:
    """Make the runs, one after another, in a fresh process; returns the exit status of each one's ranks."""
    code = "import sys, sharded_runs; sharded_runs.main(*sys.argv[1:])"
    (folder / "runs.json").write_text(json.dumps(list(runs)))
    files = folder / "runs.json", folder / "statuses.json"
    done = fresh.run(code, *files, imported="sharded_runs", seconds=5 * SECONDS)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((folder / "statuses.json").read_text())


def main(runs: str, statuses: str) -> None:
    torch.set_num_threads(1)
    logger.remove()
    done = []
    for run in json.loads(Path(runs).read_text()):
        with open(f"{run['out']}.err", "w") as err:
            os.dup2(err.fileno(), 2)
        if original := run.pop("copy_of", None):
            shutil.copytree(original, run["out"])
        with store() as port:
            children = [forked(partial(one, run, rank, port)) for rank in range(run["world"] or 1)]
            done.append([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children])
    Path(statuses).write_text(json.dumps(done))


@contextmanager
def store() -> Iterator[int]:
    """The port of a store, as torchrun has one. It is a process of its own: what is forked beside a store's threads may
    wait for ever for a lock that one of them held."""
    here, there = socket.socketpair()
    child = forked(partial(host_store, there))
    there.close()
    with here:
        yield int(here.recv(16))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def host_store(connection: socket.socket) -> None:
    """Until the other end of the connection is closed."""
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    connection.send(str(server.port).encode())
    connection.recv(1)


def forked(work: Callable[[], None]) -> int:
    if child := os.fork():
        return child
    signal.alarm(SECONDS)
    status = 1
    try:
        with user_errors("model.train"), stopped():
            work()
        status = 0
    except SystemExit as end:
        status = end.code or 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        os._exit(status)


@contextmanager
def stopped() -> Iterator[None]:
    try:
        yield
    except Interrupted as error:
        sys.exit(128 + error.number)


def config_of(settings: dict) -> Preset:
    base = preset("mini")
    model = replace(base.model, kernels=Kernels.FUSED, **settings.pop("model", {}))
    return Preset(model, replace(base.train, **{"epochs": 1, "patience": 0, **settings}))


def one(run: dict, rank: int, port: int) -> None:
    run = dict(run)
    out, world = Path(run.pop("out")), run.pop("world")
    sharding, timeout = Sharding(**run.pop("sharding", {})), run.pop("timeout", 30)
    happens, command = run.pop("happens", {}), run.pop("command", None)
    os.environ.update(run.pop("environment", {}))
    config = config_of({"batch_size": 12, **run.pop("settings", {})})
    options = {"device": "cpu", "checkpoints": out, "logs": out / "logs", **run}
    if not world:
        losses = train(config, **options).losses
    else:
        environment = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1"}
        os.environ.update({name: str(value) for name, value in environment.items()}, MASTER_PORT=str(port))
        os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"
        if happens.get("rank") == rank:
            make_happen(**happens)
        if command:
            with open(f"{out}.{rank}.out", "w") as printed, redirect_stdout(printed):
                sys.exit(main_of_train(command))
        ranks = Ranks(torch.device("cpu"), timeout)
        with ranks.one_message():
            losses = train(config, ranks=ranks, sharding=sharding, **options).losses
    if rank == 0:
        torch.save(torch.from_numpy(losses), f"{out}.losses")


def make_happen(rank: int, what: str, at: int, before: str = "step") -> None:
    """Before its at-th step, or call of another of PLACES, this rank does so."""
    owner, name = PLACES[before]
    plain, count = getattr(owner, name), 0

    def call(*arguments, **options):
        nonlocal count
        count += 1
        if count == at:
            HAPPENINGS[what](*arguments)
        return plain(*arguments, **options)

    setattr(owner, name, call)


PLACES = {
    "step": (step.ShardedStep, "__call__"), "pieces": (of_run, "write_pieces"), "save": (of_run, "save_checkpoint"),
    "evaluation": (evaluation, "predict"),
}
HAPPENINGS = {
    "kill": lambda *_: os.kill(os.getpid(), signal.SIGKILL),
    "hang": lambda *_: time.sleep(6),
    "terminate": lambda *_: os.kill(os.getpid(), signal.SIGTERM),
    "full": lambda *_: resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)),
    "nan": lambda step, *_: step.model.over_arch.logit.bias.data.fill_(float("nan")),
}
