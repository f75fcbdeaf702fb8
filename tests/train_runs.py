"""Training runs of a few hundred rows, for the tests of model.train: data, config, the command, what is compared."""

import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

import model.step
from data.criteo import DENSE, LABEL, MISSING, SCHEMA, SPARSE
from model import Hash, Preset, preset
from model import train as training
from model.checkpoints import load_checkpoint
from model.config import Kernels
from model.train import main, train

EPOCHS = 3


def table(rows: int, seed: int = 0, labels: tuple[int, ...] = (0, 1)) -> pa.Table:
    """Rows whose label leans on two features."""
    rng = np.random.default_rng(seed)
    ids = {name: rng.integers(MISSING, 5 + i, rows) for i, name in enumerate(SPARSE)}
    dense = {name: pa.array(rng.geometric(0.1, rows), pa.int64(), mask=rng.random(rows) < 0.2) for name in DENSE}
    chance = np.where(ids["SPARSE_0"] > 1, 0.7, 0.2) + np.where(ids["SPARSE_1"] > 2, 0.2, 0.0)
    drawn = np.where(rng.random(rows) < chance, labels[-1], labels[0]).astype(np.int8)
    return pa.table({LABEL: drawn, **dense, **ids}, schema=SCHEMA)


def mini(hash: Hash = Hash.MODULUS, kernels: Kernels = Kernels.EAGER, **settings):
    """13-8-4, three tables; 600 rows in batches of 32 are 19 steps an epoch."""
    base = preset("mini")
    settings = {"batch_size": 32, "epochs": EPOCHS, "patience": 0, **settings}
    return Preset(replace(base.model, hash=hash, kernels=kernels), replace(base.train, **settings))


def run(folder: Path, data: Path, config=None, device: str = "cpu", **options):
    return train(config or mini(), data, device=device, checkpoints=folder, logs=folder / "logs", **options)


def command(folder: Path, data: Path, *options: str) -> list[str]:
    where = ["--data", data, "--checkpoints", folder, "--logs", folder / "logs", "--device", "cpu"]
    return [str(part) for part in ("--preset", "mini", "--hash", "modulus", "--batch-size", 32, *where, *options)]


def status(arguments: list[str]) -> int:
    """The command's exit status, whether it is returned or raised."""
    try:
        return main(arguments)
    except SystemExit as exit_:
        return exit_.code


def assert_same(a, b) -> None:
    """Two checkpoints, or parts of them, are equal to the bit."""
    assert type(a) is type(b)
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            assert_same(a[key], b[key])
    elif isinstance(a, list | tuple):
        assert len(a) == len(b)
        for pair in zip(a, b, strict=True):
            assert_same(*pair)
    elif isinstance(a, torch.Tensor):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
    else:
        assert a == b


def assert_same_end(folder: Path, result, other: Path, expected) -> None:
    for name in ("best.pt", "last.pt"):
        assert_same(load_checkpoint(folder / name), load_checkpoint(other / name))
    assert_same(result.metrics, expected.metrics)
    assert_same(result.history, expected.history)
    np.testing.assert_array_equal(result.losses, expected.losses)
    assert_same(result.model.state_dict(), expected.model.state_dict())


def interrupt(monkeypatch, owner: object, name: str, step: int, number: int = signal.SIGINT) -> None:
    """Send this process a signal in the step-th call of owner.name from now."""
    plain, count = getattr(owner, name), 0

    def function(*args, **options):
        nonlocal count
        count += 1
        if count == step:
            signal.raise_signal(number)
        return plain(*args, **options)

    monkeypatch.setattr(owner, name, function)


def interrupt_after(monkeypatch, step: int, number: int = signal.SIGINT) -> None:
    interrupt(monkeypatch, model.step, "train_step", step, number)


def interrupted(folder: Path, data: Path, config=None) -> str:
    with pytest.raises(training.Interrupted) as caught:
        run(folder, data, config)
    return str(caught.value)
