"""model.train: figures, checkpoints, resuming bit by bit, and what a user sees of mistakes."""

import errno
import gzip
import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from sklearn.metrics import log_loss, roc_auc_score
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

pytest.importorskip("loguru")
from train_runs import (
    EPOCHS,
    assert_same,
    assert_same_end,
    command,
    interrupt_after,
    interrupted,
    mini,
    run,
    status,
    table,
)

from data.cli import UserError
from data.criteo import LABEL, CriteoBatches
from data.dataset import write_dataset
from data.metadata import read_metadata
from model import DLRM, Hash, evaluation, preset
from model import train as training
from model.checkpoints import load_checkpoint, save_checkpoint
from model.config import WIDEST, Optimizer
from model.device import to
from model.evaluation import predict, score
from model.optimizers import make_optimizer
from model.step import train_step


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("train") / "data"
    write_dataset([lambda: table(700)], out)  # 600, 50 and 50 rows
    return out


@pytest.fixture
def own_data(data, tmp_path) -> Path:
    """A copy to spoil."""
    return Path(shutil.copytree(data, tmp_path / "data"))


# Resuming


@pytest.mark.parametrize("optimizer", list(Optimizer))
@pytest.mark.parametrize("hash", [Hash.INDEX, Hash.MODULUS])
def test_resume_in_mid_epoch_ends_bit_identical(data, tmp_path, monkeypatch, hash, optimizer):
    config = mini(hash, optimizer=optimizer)
    expected = run(tmp_path / "whole", data, config)
    interrupt_after(monkeypatch, 19 + 7)
    assert interrupted(tmp_path / "parts", data, config) == "in epoch 2, after step 7 of 19"
    assert load_checkpoint(tmp_path / "parts" / "last.pt")["step"] == 7
    torch.manual_seed(1234)  # whatever happened since
    result = run(tmp_path / "parts", data, config, resume=True)
    assert_same_end(tmp_path / "parts", result, tmp_path / "whole", expected)


@pytest.mark.parametrize(
    ("step", "number"), [(1, signal.SIGINT), (18, signal.SIGTERM), (19, signal.SIGINT), (20, signal.SIGTERM)]
)
def test_resume_around_the_end_of_an_epoch(data, tmp_path, monkeypatch, step, number):
    expected = run(tmp_path / "whole", data)
    interrupt_after(monkeypatch, step, number)
    interrupted(tmp_path / "parts", data)
    last = tmp_path / "parts" / "last.pt"
    assert_same_end(tmp_path / "parts", run(tmp_path / "parts", data, resume=last), tmp_path / "whole", expected)


def test_signal_during_validation_ends_it_and_is_said_at_once(data, tmp_path, monkeypatch, capfd):
    expected = run(tmp_path / "whole", data)
    plain = training.evaluate

    def evaluate(*args, **options):
        signal.raise_signal(signal.SIGINT)
        return plain(*args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(training, "evaluate", evaluate)
        assert interrupted(tmp_path / "parts", data) == "in epoch 1, before its validation"
    assert "SIGINT: waiting for the batch that is being evaluated" in capfd.readouterr().err
    assert_same_end(tmp_path / "parts", run(tmp_path / "parts", data, resume=True), tmp_path / "whole", expected)


def test_a_shorter_run_goes_on_to_the_same_end(data, tmp_path):
    expected = run(tmp_path / "whole", data)
    run(tmp_path / "parts", data, mini(epochs=1))
    result = run(tmp_path / "parts", data, resume=True)
    assert_same(result.metrics, expected.metrics)
    ours, theirs = (load_checkpoint(tmp_path / folder / "last.pt") for folder in ("parts", "whole"))
    assert_same(ours, theirs)


def test_resuming_a_finished_run_only_evaluates(data, tmp_path):
    expected = run(tmp_path, data)
    before = (tmp_path / "last.pt").read_bytes()
    assert_same(run(tmp_path, data, resume=True).metrics, expected.metrics)
    assert (tmp_path / "last.pt").read_bytes() == before


@pytest.mark.slow
def test_a_killed_run_resumes_bit_identical(data, tmp_path):
    """kill -9 in the middle of an epoch: the run goes on from the last of its regular checkpoints."""
    options = ["--epochs", "30", "--patience", "0", "--checkpoint-every", "7", "--warmup-steps", "250"]
    assert status(command(tmp_path / "whole", data, *options)) == 0
    arguments = command(tmp_path / "parts", data, *options)
    process = subprocess.Popen([sys.executable, "-m", "model.train", *arguments], stderr=subprocess.DEVNULL)
    last, deadline = tmp_path / "parts" / "last.pt", time.monotonic() + 300
    while time.monotonic() < deadline:
        if last.exists() and load_checkpoint(last)["step"]:  # written within an epoch
            break
    process.kill()
    process.wait()
    state = load_checkpoint(last)
    assert state["epoch"] < 30
    assert status([*arguments, "--resume"]) == 0
    for name in ("best.pt", "last.pt"):
        ours, theirs = (load_checkpoint(tmp_path / folder / name) for folder in ("parts", "whole"))
        assert_same(ours, theirs)


@pytest.mark.parametrize("resume_at", [5, 19 + 5, 2 * 19])
def test_regular_checkpoints_and_evaluations_change_nothing(data, tmp_path, monkeypatch, resume_at):
    """Neither the random state nor the order of the rows; and what they write is gone on from to the same end."""
    expected = run(tmp_path / "whole", data)
    often = mini(checkpoint_every=5, eval_every=3, eval_batch_size=7)
    result = run(tmp_path / "often", data, often)
    np.testing.assert_array_equal(result.losses, expected.losses)
    assert_same(result.model.state_dict(), expected.model.state_dict())

    def killed(path: Path, state: dict) -> None:
        save_checkpoint(path, state)
        if path.name == "last.pt" and state["epoch"] * 19 + state["step"] == resume_at:
            raise ConnectionAbortedError

    with monkeypatch.context() as patch:
        patch.setattr("model.run.save_checkpoint", killed)
        with pytest.raises(ConnectionAbortedError):
            run(tmp_path / "parts", data, often)
    resumed = run(tmp_path / "parts", data, often, resume=True)
    assert_same_end(tmp_path / "parts", resumed, tmp_path / "often", result)


def test_evaluations_within_an_epoch_are_logged(data, tmp_path):
    result = run(tmp_path, data, mini(epochs=1, eval_every=6))
    events = EventAccumulator(str(tmp_path / "logs"))
    events.Reload()
    validation = events.Scalars("log_loss/validation")
    assert [event.step for event in validation] == [6, 12, 18, 19]
    assert validation[-1].value == pytest.approx(result.metrics["validation"].log_loss)


@pytest.mark.slow
def test_ctrl_c_then_resume_prints_the_same(data, tmp_path, capsys):
    options = ["--epochs", "20", "--patience", "0"]
    arguments = command(tmp_path / "parts", data, *options)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, "-m", "model.train", *arguments], **pipes)
    last = tmp_path / "parts" / "last.pt"
    deadline = time.monotonic() + 300
    while not last.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.002)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 130, err
    assert out == ""
    assert "--resume" in err.splitlines()[-1]
    assert "Traceback" not in err

    assert status([*arguments, "--resume"]) == 0
    resumed = capsys.readouterr().out
    assert status(command(tmp_path / "whole", data, *options)) == 0
    assert resumed == capsys.readouterr().out != ""
    for name in ("best.pt", "last.pt"):
        assert_same(*(load_checkpoint(tmp_path / folder / name) for folder in ("whole", "parts")))


def test_resume_refuses_two_folders(data, tmp_path):
    with pytest.raises(UserError, match="--checkpoints names another"):
        run(tmp_path / "b", data, resume=tmp_path / "a" / "last.pt")


# Checkpoints


def test_checkpoint_holds_what_it_says(data, tmp_path):
    run(tmp_path, data, mini(Hash.INDEX))
    state = load_checkpoint(tmp_path / "last.pt")
    assert state["config"]["model"]["hash"] == "index"
    assert state["config"]["model"]["top"] == (8, 1)
    assert (state["epoch"], state["step"]) == (EPOCHS, 0)
    assert state["losses"].shape == (19 * EPOCHS,)
    assert len(state["history"]) == EPOCHS
    best = load_checkpoint(tmp_path / "best.pt")
    assert best["best"] == min(epoch["log_loss"] for epoch in state["history"]) == state["best"]


def fail_like_a_full_disk(monkeypatch) -> None:
    def fsync(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fsync)


def test_failing_write_keeps_the_old_checkpoint(data, tmp_path, monkeypatch, capsys):
    run(tmp_path, data, mini(epochs=1))
    before = {path.name: path.read_bytes() for path in tmp_path.glob("*.pt")}
    fail_like_a_full_disk(monkeypatch)
    assert status(command(tmp_path, data, "--epochs", "1", "--overwrite")) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert "No space left on device" in error
    assert str(tmp_path / "best.pt") in error
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before


def test_write_cut_short_keeps_the_old_checkpoint(tmp_path):
    path = tmp_path / "last.pt"
    save_checkpoint(path, {"old": torch.arange(3)})
    before = path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, limits[1]))
    try:
        with pytest.raises(UserError, match="File too large"):
            save_checkpoint(path, {"new": torch.zeros(1 << 18)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_kill_9_left_half_written_is_removed_by_the_next_run(data, tmp_path):
    """But not what a living process is writing."""
    code = (
        "import os, sys, time; from pathlib import Path; from model.checkpoints import save_checkpoint\n"
        "os.fsync = lambda _: (os.write(1, b'%d\\n' % os.getpid()), time.sleep(600))\n"  # two processes, a line each
        "name = 'last.pt' if os.fork() else 'best.pt'\n"
        "save_checkpoint(Path(sys.argv[1], name), {})"
    )
    process = subprocess.Popen([sys.executable, "-c", code, tmp_path], stdout=subprocess.PIPE, text=True)
    parent = process.pid
    (child,) = {int(process.stdout.readline()) for _ in range(2)} - {parent}
    process.kill()
    process.wait()
    half = {path.name for path in tmp_path.iterdir()}
    assert half == {f".last.pt.{parent}", f".best.pt.{child}"}
    run(tmp_path, data, mini(epochs=1))
    assert {path.name for path in tmp_path.glob(".*")} == {f".best.pt.{child}"}
    os.kill(child, signal.SIGKILL)
    process.communicate()  # until no process holds its output any more
    run(tmp_path, data, mini(epochs=1), resume=True)
    assert not list(tmp_path.glob(".*"))


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs g++")
def test_compiled_training_leaves_plain_checkpoints(data, tmp_path, monkeypatch):
    compilers = []

    def compiled(model):
        compilers.append(torch._inductor.config.cpp.cxx[1])
        # The wrapper is the same with every backend, and this one takes a second instead of half a minute.
        return plain(model, backend="aot_eager")

    plain, config = torch.compile, mini(epochs=1)
    monkeypatch.setattr(torch, "compile", compiled)
    monkeypatch.setenv("CXX", "no-such-cache g++")
    with pytest.raises(UserError, match=r"^--compile: the C\+\+ compiler no-such-cache is missing \(CXX is 'no-such"):
        run(tmp_path, data, config, compile=True)
    assert not list(tmp_path.iterdir())
    monkeypatch.setenv("CXX", "env g++ -m64")  # of which Inductor is given one program
    result = run(tmp_path, data, config, compile=True)
    assert "g++" in subprocess.run([*compilers, "--version"], capture_output=True, text=True, check=True).stdout
    for name in ("best.pt", "last.pt"):
        state = load_checkpoint(tmp_path / name)["parameters"]
        assert state.keys() == result.model.state_dict().keys()
        assert not any("_orig_mod" in key for key in state)
    eager = run(tmp_path / "eager", data, config)
    np.testing.assert_allclose(result.losses, eager.losses, rtol=1e-4)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-500])


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    weights = load_checkpoint(path)["parameters"]["sparse_arch.tables.weight"].numpy().tobytes()
    content[content.index(weights)] ^= 1
    path.write_bytes(content)


def without_format_and_steps(path: Path) -> None:
    """As the first checkpoints were: the optimizer's state knew no steps."""
    state = load_checkpoint(path)
    del state["format"], state["optimizer"]["steps"]
    torch.save(state, path)


def without_hash(path: Path) -> None:
    state = load_checkpoint(path)
    del state["config"]["model"]["hash"]
    torch.save(state, path)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (Path.unlink, "no such checkpoint"),
        (lambda path: path.write_bytes(b""), "not a checkpoint, or a damaged one"),
        (lambda path: path.write_bytes(bytes(range(256)) * 9), "not a checkpoint, or a damaged one"),
        (truncate, "not a checkpoint, or a damaged one"),
        (flip_a_bit, "not a checkpoint, or a damaged one"),
        (lambda path: torch.save([1, 2], path), "not a checkpoint of model.train: config is missing"),
        (lambda path: torch.save(DLRM, path), "not a checkpoint, or a damaged one"),
        (lambda path: torch.save({**load_checkpoint(path), "format": 2}, path), "written by a later version"),
        (without_format_and_steps, "written by an earlier version of model.train (format 0, this is 1)"),
        (without_hash, "hash: the checkpoint does not say it, this run has modulus"),
        (lambda path: torch.save(load_checkpoint(path) | {"optimizer": {}}, path), "not a usable checkpoint"),
        (lambda path: torch.save(load_checkpoint(path) | {"step": None}, path), "not a usable checkpoint"),
    ],
)
def test_damaged_checkpoint(data, tmp_path, capsys, spoil, says):
    run(tmp_path, data, mini(epochs=1))
    spoil(tmp_path / "last.pt")
    assert status(command(tmp_path, data, "--resume")) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert f"{tmp_path / 'last.pt'}: {says}" in error


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--top", "32-1"], "top: checkpoint has (8, 1), this run (32, 1)"),
        (["--hash", "modulus"], "hash: checkpoint has index, this run modulus"),
        (["--interaction", "cat"], "interaction: checkpoint has dot, this run cat"),
        (["--cardinalities", "5-6-6"], "SPARSE_2: checkpoint has 7, this run 6"),
        (["--cardinalities", "5-6"], "cardinalities: checkpoint has (5, 6, 7), this run (5, 6)"),
        (["--seed", "7"], "seed: checkpoint has 0, this run 7"),
        (["--learning-rate", "1"], "learning_rate: checkpoint has 0.003, this run 1.0"),
    ],
)
def test_checkpoint_of_another_run(data, tmp_path, capsys, options, says):
    run(tmp_path, data, mini(Hash.INDEX, epochs=1))
    assert status(command(tmp_path, data, "--resume", "--hash", "index", *options)) == 2
    assert f"{tmp_path / 'last.pt'}: {says}" in capsys.readouterr().err.splitlines()[-1]


def test_checkpoint_of_other_data(own_data, tmp_path):
    run(tmp_path, own_data, mini(Hash.INDEX, epochs=1))
    file = own_data / "ids" / "SPARSE_1.parquet"
    known = pq.read_table(file)
    ids = known["id"].to_numpy().copy()
    ids[2] = 99
    pq.write_table(known.set_column(0, known.schema.field("id"), pa.array(ids, known.schema.field("id").type)), file)
    with pytest.raises(UserError, match=r"last\.pt: sparse_arch\.hashes\.1\.known: the checkpoint has other ids"):
        run(tmp_path, own_data, mini(Hash.INDEX), resume=True)


def test_resume_needs_the_best_checkpoint_too(data, tmp_path):
    run(tmp_path, data, mini(epochs=1))
    (tmp_path / "best.pt").unlink()
    with pytest.raises(UserError, match=r"best\.pt: no such checkpoint: .*; copy it beside .*last\.pt"):
        run(tmp_path, data, resume=True)


# Figures


def test_printed_figures_are_those_of_sklearn(data, tmp_path, capsys):
    assert status(command(tmp_path, data, "--hash", "index")) == 0
    lines = capsys.readouterr().out.splitlines()
    config = mini(Hash.INDEX).model.with_metadata(read_metadata(data))
    model = DLRM(config, config.vocabularies(read_metadata(data)))
    model.load_state_dict(load_checkpoint(tmp_path / "best.pt")["parameters"])
    seen = {}
    for split in ("validation", "test"):
        labels, dense, sparse = next(iter(CriteoBatches(data / split, 50)))
        seen[split] = labels.numpy(), model.predict(dense, sparse).double().numpy()
    assert len(lines) == 2
    for line, (split, (labels, p)) in zip(lines, seen.items(), strict=True):
        figure = r"(\d\.\d{4})"
        match = re.fullmatch(rf"{split}: rows (\d+), log loss {figure}, ROC AUC {figure}, calibration {figure}", line)
        assert int(match[1]) == len(labels) == 50
        assert float(match[2]) == pytest.approx(log_loss(labels, p), abs=6e-5)
        assert float(match[3]) == pytest.approx(roc_auc_score(labels, p), abs=6e-5)
        assert float(match[4]) == pytest.approx(p.mean() / labels.mean(), abs=6e-5)


def test_a_checkpoint_is_evaluated_by_itself(data, tmp_path, capsys):
    result = run(tmp_path, data, mini(Hash.SORTED))
    for split in ("validation", "test"):
        evaluation.main([str(tmp_path / "best.pt"), str(data), "--split", split, "--device", "cpu"])
        assert capsys.readouterr().out == f"{split}: {result.metrics[split]}\n"
    with pytest.raises(UserError, match="nowhere/test: no such file or directory"):
        evaluation.main([str(tmp_path / "best.pt"), str(tmp_path / "nowhere")])


def test_the_best_epoch_is_the_one_evaluated(data, tmp_path):
    result = run(tmp_path, data, mini(learning_rate=0.1, epochs=6))
    log_losses = [epoch.log_loss for epoch in result.history]
    assert np.argmin(log_losses) < 5  # else this test shows nothing
    assert result.metrics["validation"].log_loss == min(log_losses)


@pytest.mark.parametrize("epochs", [30, 10**20])
def test_patience_ends_training(data, tmp_path, epochs):
    """However many epochs were asked for: memory is taken for those that were trained."""
    result = run(tmp_path, data, mini(learning_rate=0.1, epochs=epochs, patience=2))
    best = np.argmin([epoch.log_loss for epoch in result.history])
    assert len(result.history) == best + 3 < 30
    assert len(result.losses) == 19 * len(result.history)


@pytest.mark.parametrize("rows", [0, 20])
def test_split_without_both_classes_has_no_auc(own_data, tmp_path, capsys, rows):
    shutil.rmtree(own_data / "test")
    (own_data / "test").mkdir()
    pq.write_table(table(rows, labels=(0, 0)), own_data / "test" / "part.parquet")
    assert status(command(tmp_path, own_data, "--epochs", "1")) == 0
    _, test = capsys.readouterr().out.splitlines()
    assert re.fullmatch(rf"test: rows {rows}, log loss {'0.*' if rows else 'n/a'}, ROC AUC n/a, calibration n/a", test)


def test_without_validation_rows_the_last_epoch_is_kept(own_data, tmp_path):
    for file in (own_data / "validation").iterdir():
        pq.write_table(table(0), file)
    result = run(tmp_path, own_data)
    assert result.metrics["validation"].log_loss is None
    assert load_checkpoint(tmp_path / "best.pt")["epoch"] == EPOCHS


def test_nan_predictions_say_what_happened():
    with pytest.raises(UserError, match="diverged"):
        score(np.array([0, 1]), np.array([0.5, np.nan]))


def test_predict_gives_every_row_once(data):
    config = mini().model.with_metadata(read_metadata(data))
    labels, probabilities = predict(DLRM(config), CriteoBatches(data / "train", 64), torch.device("cpu"))
    assert labels.shape == probabilities.shape == (600,)
    assert probabilities.dtype == np.float64


def test_sync_metrics_changes_no_parameter(data, tmp_path):
    expected = run(tmp_path / "a", data)
    result = run(tmp_path / "b", data, sync_metrics=True)
    assert_same_end(tmp_path / "b", result, tmp_path / "a", expected)


def test_step_sizes_fall_as_the_square_of_what_is_left():
    config = mini(warmup_steps=2, decay_start_step=3, decay_steps=4, learning_rate=1.0, table_learning_rate=2.0)
    optimizer, rates = make_optimizer(DLRM(config.model), config), []
    for _ in range(9):
        optimizer.advance()
        rates.append([part.param_groups[0]["lr"] for part in optimizer.parts.values()])
    of_mlps = [0.5, 1, 1, (3 / 4) ** 2, (2 / 4) ** 2, (1 / 4) ** 2, (1 / 4) ** 2, (1 / 4) ** 2, (1 / 4) ** 2]
    np.testing.assert_allclose(rates, [[rate, 2 * rate] for rate in of_mlps])
    with pytest.raises(UserError, match="decay_start_step: expected a step from warmup_steps on, 9, got 3"):
        mini(warmup_steps=9, decay_start_step=3, decay_steps=4)


def test_warm_up_rises_linearly_and_decays_no_table():
    config = mini(warmup_steps=4, learning_rate=0.1, table_learning_rate=0.2, weight_decay=0.5)
    model = DLRM(config.model)
    optimizer = make_optimizer(model, config)
    rates = []
    for _ in range(5):
        train_step(model, optimizer, torch.ones(2), torch.randn(2, 13), torch.randint(9, (2, 3)))
        rates.append([part.param_groups[0]["lr"] for part in optimizer.parts.values()])
    np.testing.assert_allclose(rates, [[0.025, 0.05], [0.05, 0.1], [0.075, 0.15], [0.1, 0.2], [0.1, 0.2]])
    decays = {name: part.param_groups[0]["weight_decay"] for name, part in optimizer.parts.items()}
    assert decays == {"mlps": 0.5, "tables": 0}
    parameters = [p for part in optimizer.parts.values() for p in part.param_groups[0]["params"]]
    assert sorted(map(id, parameters)) == sorted(map(id, model.parameters()))


def test_bf16_is_close_to_fp32_and_its_parameters_are_float32(data, tmp_path):
    fp32, bf16 = (run(tmp_path / name, data, mini(precision=name)) for name in ("fp32", "bf16"))
    np.testing.assert_allclose(bf16.losses, fp32.losses, rtol=0.05)
    assert (bf16.losses != fp32.losses).any()
    assert {p.dtype for p in bf16.model.parameters()} == {torch.float32}


def test_a_hash_that_compares_too_much_names_the_larger_batch():
    shape = replace(preset("small").model, hash=Hash.INDEX, cardinalities=(10, 1 << 20))
    with pytest.raises(UserError, match=r"4,096 rows at a time × 1,048,576 ids of SPARSE_1 .* --hash sorted"):
        training.check_comparisons(shape, preset("small").train)
    training.check_comparisons(replace(shape, hash=Hash.SORTED), preset("small").train)


def test_threads_are_put_back(data, tmp_path):
    before = torch.get_num_threads()
    run(tmp_path, data, mini(epochs=1, threads=before + 1))
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("hash", [Hash.INDEX, Hash.MODULUS])
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_step_does_not_wait_for_the_gpu(data, hash):
    features = read_metadata(data)
    config = mini(hash).model.with_metadata(features)
    device = torch.device("cuda")
    model = DLRM(config, config.vocabularies(features)).to(device)
    optimizer = make_optimizer(model, mini(hash))
    losses = torch.zeros(19, device=device)
    for step, batch in enumerate(CriteoBatches(data / "train", 32)):
        torch.cuda.set_sync_debug_mode("error" if step else "default")  # the first sets libraries up
        try:
            losses[step] = train_step(model, optimizer, *to(device, *batch))
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert losses.isfinite().all()


# Logs and traces


def test_tensorboard_reads_the_scalars(data, tmp_path):
    result = run(tmp_path, data)
    run(tmp_path, data, mini(epochs=EPOCHS + 1), resume=True)
    events = EventAccumulator(str(tmp_path / "logs"))
    events.Reload()
    tags = {f"{metric}/{split}" for metric in ("log_loss", "auc") for split in ("validation", "test")}
    assert {"loss/train", "rows_per_second/train", *tags} <= set(events.Tags()["scalars"])
    losses = events.Scalars("loss/train")
    assert [event.step for event in losses] == [19, 38, 57, 76]
    assert losses[1].value == pytest.approx(result.losses[19:38].mean(), rel=1e-5)
    validation = [event.value for event in events.Scalars("log_loss/validation")]
    assert validation[:EPOCHS] == pytest.approx([epoch.log_loss for epoch in result.history])


def test_profile_writes_a_trace_without_the_host_name(data, tmp_path):
    run(tmp_path, data, mini(epochs=1), profile=tmp_path / "trace", name="mini")
    (trace,) = (tmp_path / "trace").iterdir()
    assert re.fullmatch(r"mini\.\d+\.pt\.trace\.json\.gz", trace.name)
    text = gzip.decompress(trace.read_bytes()).decode()
    assert "ProfilerStep#" in text
    assert "aten::addmm" in text
    assert f'"{socket.gethostname()}"' not in text
    assert str(tmp_path) not in text


def test_profile_of_too_few_steps(data, tmp_path):
    with pytest.raises(UserError, match="--profile: needs 11 steps, this run has only 1"):
        run(tmp_path, data, mini(epochs=1, batch_size=1000), profile=tmp_path / "trace")


# A user's mistakes


def without_a_feature(data: Path) -> None:
    metadata = json.loads((data / "metadata.json").read_text())
    del metadata["SPARSE_7"]
    (data / "metadata.json").write_text(json.dumps(metadata))


def with_train(labels: tuple[int, int], rows: int):
    def spoil(data: Path) -> None:
        for file in (data / "train").iterdir():
            pq.write_table(table(rows, labels=labels), file)

    return spoil


def with_null_labels(data: Path) -> None:
    for file in (data / "train").iterdir():
        nulls = pa.nulls(40, pa.int8())
        pq.write_table(table(40).set_column(0, pa.field(LABEL, pa.int8()), nulls), file)


@pytest.mark.parametrize(
    ("spoil", "options", "says"),
    [
        (None, ["--data", "somewhere/metadata.json"], "expected the directory that holds it, somewhere"),
        (with_null_labels, [], "row 0, column labels: expected 0 or 1, found nan"),
        (shutil.rmtree, [], "data: not found; data.preprocess and data.synthetic write it"),
        (without_a_feature, [], "feature SPARSE_7 is missing"),
        (lambda data: shutil.rmtree(data / "validation"), [], "validation: no such file or directory"),
        (with_train((1, 1), 40), [], "train: column labels: expected both 0 and 1, found only 1"),
        (with_train((0, 1), 0), [], "train: no rows to train on"),
        (None, ["--device", "cuda:99"], "--device cuda:99: this machine has"),
        (None, ["--precision", "tf32"], "--precision tf32: needs an NVIDIA GPU, this is the cpu; use fp32, or bf16"),
        (None, ["--device", "abacus"], "--device: expected cpu, cuda or cuda:N, got 'abacus'"),
        (None, ["--preset", "tiny"], "expected one of small, main, mini, mlperf, got 'tiny'"),
        (None, ["--hash", "md5"], "expected one of index_naive, index, sorted, table, modulus, got 'md5'"),
        (None, ["--bottom", "12-4"], "bottom: expected to begin with 13, the dense features, got 12"),
        (None, ["--cardinalities", "-".join(["3"] * 27)], "cardinalities: expected at most 26 numbers"),
        (None, ["--hash", "index", "--batch-size", "999999999"], "ids of SPARSE_2 is too much; use --hash sorted"),
        (None, ["--resume"], "last.pt: no such checkpoint"),
        (None, ["--checkpoints", "/dev/null/here"], "/dev/null/here: Not a directory"),
        (None, ["--logs", "/dev/null/here"], "Not a directory"),
        (None, ["--learning-rate", "1e30"], "diverged"),
        # Tensors that are too large behind small ones, which are allocated.
        (None, ["--top", f"{2**21}-{WIDEST}-1"], "DefaultCPUAllocator: can't allocate memory: you tried to allocate"),
        (None, ["--interaction", "outer", "--bottom", f"13-{2**18}", "--embedding-dim", str(2**18), "--top",
                f"{WIDEST}-1"], "Storage size calculation overflowed"),
        (None, ["--top", "99999999999-1"], "top: expected widths from 1 to 16,777,216, got 99999999999-1"),
        (None, ["--threads", "99999999999"], "threads: expected a number below 32,768"),
    ],
)
def test_mistakes_are_one_line_and_status_2(own_data, tmp_path, capsys, spoil, options, says):
    if spoil:
        spoil(own_data)
    assert status(command(tmp_path / "run", own_data, "--epochs", "1", *options)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert says in err.splitlines()[-1]
    assert "Traceback" not in err


# The whole way


@pytest.mark.slow
def test_real_rows(criteo_tsv, tmp_path):
    def python(*arguments) -> str:
        return subprocess.run([sys.executable, *map(str, arguments)], check=True, capture_output=True, text=True).stdout

    python("-m", "data.preprocess", criteo_tsv, "--out", tmp_path / "data")
    out = python(
        "-m", "model.train", "--preset", "small", "--data", tmp_path / "data", "--device", "cpu",
        "--checkpoints", tmp_path, "--logs", tmp_path / "logs",
    )
    test = re.search(r"test: rows (\d+), log loss \S+, ROC AUC ([\d.]+)", out)
    assert int(test[1]) == 515
    assert float(test[2]) >= 0.68  # one seed; the mean of ten is 0.70 or more
