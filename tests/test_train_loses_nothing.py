"""model.train: no run replaces or spoils what an earlier one, or it itself, has learned."""

import math
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
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

import model.run
import model.step
from data.cli import UserError
from data.dataset import write_dataset
from model import progress, run_folders
from model import train as training
from model.checkpoints import load_checkpoint
from model.train import PRESETS, from_arguments


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("train") / "data"
    write_dataset([lambda: table(700)], out)  # 600, 50 and 50 rows: 19 steps an epoch
    return out


def checkpoints(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.pt"))}


# A loss that is not finite


def test_a_run_that_diverges_leaves_no_checkpoint(data, tmp_path, capsys):
    options = ("--learning-rate", "1e30", "--checkpoint-every", "1")
    assert status(command(tmp_path, data, *options)) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert "training has diverged: " in error
    assert "try a smaller --learning-rate" in error
    for name in checkpoints(tmp_path):
        parameters = load_checkpoint(tmp_path / name)["parameters"]
        assert all(value.isfinite().all() for value in parameters.values())


def test_a_run_that_diverges_keeps_what_was_learned(data, tmp_path):
    run(tmp_path, data, mini(epochs=1))
    before = checkpoints(tmp_path)
    wild = mini(learning_rate=1e30)
    with pytest.raises(UserError, match=r"diverged: .* step 2\d.*last\.pt, of step 19, is kept"):
        run(tmp_path, data, wild, resume=True, resume_changed=["learning_rate"])
    assert checkpoints(tmp_path) == before


def test_a_loss_that_is_not_finite_ends_the_run_at_the_next_report(data, tmp_path, monkeypatch):
    monkeypatch.setattr(progress, "STEPS_PER_REPORT", 5)
    plain, steps = training.make_step, 0

    def make_step(*arguments):
        step = plain(*arguments)

        def spoilt(*batch):
            nonlocal steps
            steps += 1
            return step(*batch) * (math.nan if steps == 7 else 1)

        return spoilt

    monkeypatch.setattr(training, "make_step", make_step)
    with pytest.raises(UserError, match=r"diverged: the loss is nan in step 7; .*No checkpoint was written"):
        run(tmp_path, data)
    assert steps == 10
    assert checkpoints(tmp_path) == {}


# No room


def test_scalars_that_cannot_be_written_are_a_warning(data, tmp_path, monkeypatch, capsys):
    expected = run(tmp_path / "whole", data)
    folder = tmp_path / "full" / "logs"
    folder.mkdir(parents=True)
    (folder / "events.out.tfevents.7").symlink_to("/dev/full")
    monkeypatch.setattr(progress, "time", SimpleNamespace(**vars(progress.time) | {"time_ns": lambda: 7}))
    arguments = command(tmp_path / "full", data, "--patience", "0", "--epochs", "3", "--overwrite")
    # --overwrite would remove the link
    monkeypatch.setattr(run_folders, "EVENTS", "no such file")
    assert status(arguments) == 0
    err = capsys.readouterr().err
    assert err.count(f"{folder / 'events.out.tfevents.7'}: No space left on device: no scalars from here on") == 1
    assert "Traceback" not in err
    np.testing.assert_array_equal(load_checkpoint(tmp_path / "full" / "last.pt")["losses"], expected.losses)


def test_logs_that_cannot_be_begun_are_said_before_training(data, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"--logs .*file/logs: Not a directory"):
        training.train(mini(), data, device="cpu", checkpoints=tmp_path, logs=tmp_path / "file" / "logs")
    assert checkpoints(tmp_path) == {}


def test_room_for_the_checkpoints_is_asked_for_first(data, tmp_path, monkeypatch):
    run(tmp_path / "a", data, mini(epochs=1))
    size = (tmp_path / "a" / "last.pt").stat().st_size

    def with_free(free):
        monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))

    with_free(1000)
    with pytest.raises(UserError, match=r"b: 0\.0 MiB of room, and best\.pt, last\.pt and the one that is being writ"):
        run(tmp_path / "b", data)
    assert not (tmp_path / "b" / "logs").exists()
    with_free(3 * size)
    run(tmp_path / "b", data, mini(epochs=1))
    with_free(size)  # what is replaced makes room
    run(tmp_path / "b", data, mini(epochs=2), resume=True)


# A folder that holds a run


def test_an_earlier_run_is_left_alone(data, tmp_path, capsys):
    run(tmp_path, data, mini(epochs=1))
    before, logs = checkpoints(tmp_path), sorted((tmp_path / "logs").iterdir())
    assert status(command(tmp_path, data)) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert f"{tmp_path / 'last.pt'} is of an earlier run: --resume goes on with it, --overwrite replaces it" in error
    assert status(["--preset", "mini", "--data", str(data), "--checkpoints", str(tmp_path / "new"), "--device", "cpu",
                   "--logs", str(tmp_path / "logs")]) == 2
    assert "tfevents" in capsys.readouterr().err.splitlines()[-1]
    assert checkpoints(tmp_path) == before
    # A mistake is found before anything is removed.
    assert status(command(tmp_path, data / "nowhere", "--overwrite")) == 2
    assert (checkpoints(tmp_path), sorted((tmp_path / "logs").iterdir())) == (before, logs)


def test_overwrite_replaces_it(data, tmp_path):
    run(tmp_path / "a", data, mini(seed=1))
    result = run(tmp_path / "a", data, overwrite=True)
    assert_same_end(tmp_path / "a", result, tmp_path / "b", run(tmp_path / "b", data))
    events = EventAccumulator(str(tmp_path / "a" / "logs"))
    events.Reload()
    assert [event.step for event in events.Scalars("loss/train")] == [19, 38, 57]
    assert len([*(tmp_path / "a" / "logs").iterdir()]) == 1


# A folder whose run is alive


def at_step(monkeypatch, step: int, act) -> None:
    """Call act in the step-th training step from now, and in no other."""
    plain, steps = model.step.train_step, 0

    def train_step(*args, **options):
        nonlocal steps
        steps += 1
        if steps == step:
            act()
        return plain(*args, **options)

    monkeypatch.setattr(model.step, "train_step", train_step)


def content(*folders: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for folder in folders for path in folder.rglob("*") if path.is_file()}


def test_nothing_is_done_to_folders_whose_run_is_alive(data, tmp_path, monkeypatch, capsys):
    """Whatever the second run says, and however it names them."""
    config = mini(checkpoint_every=1)
    expected = run(tmp_path / "undisturbed", data, config)
    ck, logs, other = tmp_path / "ck", tmp_path / "lg", tmp_path / "other"
    (tmp_path / "link").symlink_to(ck)
    monkeypatch.chdir(tmp_path)
    begins = {"init_from": tmp_path / "undisturbed" / "best.pt"}
    seconds = [
        {}, {"overwrite": True}, {"resume": True}, {"resume": ck / "last.pt", "checkpoints": None}, begins,
        begins | {"overwrite": True}, {"checkpoints": "link", "overwrite": True}, {"checkpoints": "other/../ck"},
        {"logs": other}, {"logs": other, "overwrite": True}, {"logs": other, "resume": True},
        {"checkpoints": other}, {"checkpoints": other, "overwrite": True}, {"checkpoints": other, "logs": ck},
    ]
    refused = []

    def second_runs():
        before = content(ck, logs)
        assert ck / "last.pt" in before
        for options in seconds:
            at_both = {"checkpoints": ck, "logs": logs}
            with pytest.raises(UserError, match=r"another run is writing in .*(ck|lg|link)\b") as error:
                training.train(mini(seed=7), data, device="cpu", **at_both | options)
            refused.append(str(error.value))
        assert status(["--preset", "mini", "--data", str(data), "--checkpoints", str(ck), "--logs", "lg"]) == 2
        assert content(ck, logs) == before
        assert not list(other.iterdir())

    other.mkdir()
    at_step(monkeypatch, 19 + 3, second_runs)
    result = training.train(config, data, device="cpu", checkpoints=ck, logs=logs)
    assert len(refused) == len(seconds)
    assert not [line for line in refused if "\n" in line]
    assert "another run is writing in" in capsys.readouterr().err
    assert_same_end(ck, result, tmp_path / "undisturbed", expected)
    training.train(config, data, device="cpu", checkpoints=ck, logs=ck, resume=True)  # it has ended; both are one


def test_two_runs_that_start_at_once_are_one_too_many(data, tmp_path, monkeypatch):
    """Before the first has written anything."""
    prepare, refused = training._prepare, []

    def prepared(*args):
        monkeypatch.setattr(training, "_prepare", prepare)
        with pytest.raises(UserError, match="another run is writing in"):
            run(tmp_path, data, mini(seed=7))
        refused.append(True)
        return prepare(*args)

    monkeypatch.setattr(training, "_prepare", prepared)
    run(tmp_path, data, mini(epochs=1))
    assert refused


@pytest.mark.parametrize("theirs", [{"seed": 7}, {"init_from": "last.pt"}, {"learning_rate": 0.01}], ids=" ".join)
def test_a_best_checkpoint_that_is_not_the_runs_is_not_called_so(data, tmp_path, monkeypatch, theirs):
    """It has other settings, or the same ones but began elsewhere: its figures would be another model's."""
    ours = tmp_path / "a"
    run(ours, data, mini(epochs=1))
    begin = {name: ours / theirs[name] for name in theirs if name == "init_from"}
    run(tmp_path / "b", data, mini(**{name: theirs[name] for name in theirs.keys() - begin.keys()}), **begin)
    save = model.run.save_checkpoint

    def then_replace_the_best(path, state):
        save(path, state)
        if (path.name, state["epoch"]) == ("last.pt", EPOCHS):
            shutil.copy(tmp_path / "b" / "best.pt", ours / "best.pt")

    monkeypatch.setattr("model.run.save_checkpoint", then_replace_the_best)
    with pytest.raises(UserError, match=r"a/best\.pt: is not what this run wrote there after epoch \d"):
        run(ours, data, resume=True)
    with pytest.raises(UserError, match=r"a/best\.pt: is not of the run of .*last\.pt"):  # nor is it gone on with
        run(ours, data, mini(epochs=9), resume=True)


def test_a_run_that_was_killed_between_its_two_checkpoints_goes_on(data, tmp_path):
    """best.pt is then of the epoch whose end last.pt has not seen."""
    expected = run(tmp_path / "whole", data, mini(epochs=2))
    run(tmp_path / "parts", data, mini(epochs=1))
    shutil.copy(tmp_path / "whole" / "best.pt", tmp_path / "parts" / "best.pt")
    assert load_checkpoint(tmp_path / "parts" / "best.pt")["epoch"] == 2
    result = run(tmp_path / "parts", data, mini(epochs=2), resume=True)
    assert_same_end(tmp_path / "parts", result, tmp_path / "whole", expected)


def test_a_folder_that_was_replaced_is_not_written_in(data, tmp_path, monkeypatch):
    """Removed or moved, and there again: it may be another run's by now."""

    def replace():
        (tmp_path / "ck").rename(tmp_path / "old")
        (tmp_path / "ck").mkdir()

    at_step(monkeypatch, 7, replace)
    with pytest.raises(UserError, match=r"ck: is no longer the folder that this run began in"):
        run(tmp_path / "ck", data)
    assert not list((tmp_path / "ck").iterdir())


def test_a_finished_or_refused_run_holds_nothing(data, tmp_path):
    with pytest.raises(UserError, match="no such checkpoint"):
        run(tmp_path, data, init_from=tmp_path / "nowhere.pt")
    assert not list(tmp_path.iterdir())
    run(tmp_path, data, mini(epochs=1))
    run(tmp_path, data, mini(epochs=1), overwrite=True)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ([], "small-modulus-dot"),
        (["--learning-rate", "0.003", "--epochs", "9", "--kernels", "fused", "--threads", "2"], "small-modulus-dot"),
        (["--learning-rate", "1e-5", "--seed", "3", "--hash", "sorted"],
         "small-sorted-dot-learning_rate=1e-05-seed=3"),
        (["--bottom", "13-8-16"], "small-modulus-dot-bottom=13-8-16"),
    ],
)
def test_names_tell_settings_apart(options, name):
    arguments = training._parser().parse_args(["--data", "DIR", *options])
    assert training._default_name(arguments.preset, from_arguments(arguments)) == name


def test_a_long_name_is_cut():
    def named(*cardinalities):
        base = PRESETS["small"]
        return training._default_name("small", mini_of(base, cardinalities))

    def mini_of(base, cardinalities):
        return type(base)(type(base.model)(cardinalities=cardinalities), base.train)

    assert len(named(*range(26))) < 120
    assert named(*range(26)) != named(*range(25), 99)


# Going on with other data or other settings


def test_other_rows_are_noticed(data, tmp_path):
    own = Path(shutil.copytree(data, tmp_path / "data"))
    run(tmp_path, own, mini(epochs=1))
    (file,) = (own / "train").iterdir()
    rows = pq.read_table(file)
    pq.write_table(rows.take(np.random.default_rng(0).permutation(len(rows))), file)
    with pytest.raises(UserError, match="--data has other rows than the checkpoint's, or in another order"):
        run(tmp_path, own, mini(epochs=2), resume=True)
    assert len(run(tmp_path, own, mini(epochs=2), resume=True, resume_changed=["data"]).losses) == 38


def test_rows_elsewhere_are_the_same(data, tmp_path):
    expected = run(tmp_path / "a", data)
    run(tmp_path / "b", data, mini(epochs=1))
    moved = shutil.copytree(data, tmp_path / "data")
    assert_same_end(tmp_path / "b", run(tmp_path / "b", moved, resume=True), tmp_path / "a", expected)


def test_a_checkpoint_from_before_goes_on(data, tmp_path):
    """It says nothing of the data, of decay, and of steps beyond the warm-up."""
    expected = run(tmp_path / "a", data)
    run(tmp_path / "b", data, mini(epochs=1))
    state = load_checkpoint(tmp_path / "b" / "last.pt")
    del state["config"]["data"], state["config"]["train"]["decay_steps"], state["config"]["train"]["decay_start_step"]
    state["optimizer"]["steps"] = 0
    for metrics in state["history"]:
        del metrics["calibration"]
    torch.save(state, tmp_path / "b" / "last.pt")
    result = run(tmp_path / "b", data, resume=True)
    np.testing.assert_array_equal(result.losses, expected.losses)
    assert_same(result.model.state_dict(), expected.model.state_dict())


def test_settings_change_when_it_is_said(data, tmp_path):
    run(tmp_path, data, mini(epochs=1))
    slow = mini(epochs=2, learning_rate=1e-30, table_learning_rate=1e-30, threads=2)
    with pytest.raises(UserError, match=r"learning_rate: checkpoint has 0\.003, this run 1e-30 \(--resume-changed"):
        run(tmp_path, data, slow, resume=True)
    with pytest.raises(UserError, match="--resume-changed seed: expected fields of learning_rate, "):
        run(tmp_path, data, slow, resume=True, resume_changed=["seed"])
    with pytest.raises(UserError, match="--resume-changed: only with --resume"):
        run(tmp_path / "other", data, slow, resume_changed=["threads"])
    before = load_checkpoint(tmp_path / "last.pt")["parameters"]
    changed = ["learning_rate", "table_learning_rate", "threads"]
    result = run(tmp_path, data, slow, resume=True, resume_changed=changed)
    after = load_checkpoint(tmp_path / "last.pt")
    assert_same(dict(after["parameters"]), dict(before))  # the rate is the new one
    assert after["config"]["train"]["learning_rate"] == 1e-30
    assert len(result.losses) == 38


def test_batch_size_changes_between_epochs(data, tmp_path, monkeypatch):
    interrupt_after(monkeypatch, 7)
    interrupted(tmp_path, data)
    monkeypatch.undo()
    larger = mini(epochs=2, batch_size=100)
    with pytest.raises(UserError, match=r"batch_size can change between two epochs alone, and this is after step 7 of"):
        run(tmp_path, data, larger, resume=True, resume_changed=["batch_size"])
    run(tmp_path, data, mini(epochs=1), resume=True)
    result = run(tmp_path, data, larger, resume=True, resume_changed=["batch_size"])
    assert len(result.losses) == 19 + 6
    resumed = run(tmp_path, data, mini(epochs=3, batch_size=100), resume=True)
    np.testing.assert_array_equal(resumed.losses[:25], result.losses)
    assert len(resumed.losses) == 19 + 2 * 6


def test_a_run_begins_with_the_parameters_of_another(data, tmp_path):
    learned = run(tmp_path / "a", data)
    still = mini(epochs=1, learning_rate=1e-30, table_learning_rate=1e-30)
    result = run(tmp_path / "b", data, still, init_from=tmp_path / "a" / "best.pt")
    assert_same(dict(result.model.state_dict()), dict(learned.model.state_dict()))
    assert len(result.losses) == 19
    with pytest.raises(UserError, match="--init-from begins a run, and --resume goes on with one"):
        run(tmp_path / "b", data, init_from=tmp_path / "a" / "best.pt", resume=True)
    with pytest.raises(UserError, match=r"best\.pt: hash: checkpoint has modulus, this run index"):
        run(tmp_path / "c", data, mini("index"), init_from=tmp_path / "a" / "best.pt")
    with pytest.raises(UserError, match="no such checkpoint"):
        run(tmp_path / "d", data, init_from=tmp_path / "nowhere.pt")


# What is said meanwhile


def test_without_a_terminal_lines_tell_how_it_goes(data, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(progress, "STEPS_PER_REPORT", 5)
    monkeypatch.setattr(progress, "SECONDS_PER_LINE", 0)
    assert status(command(tmp_path, data, "--epochs", "1")) == 0
    lines = re.findall(r"epoch 1, step (\d+) of 19: loss 0\.\d{4}, [\d,]+ rows/s", capsys.readouterr().err)
    assert lines == ["5", "10", "15"]


def test_early_stopping_is_said(data, tmp_path, capsys):
    assert status(command(tmp_path, data, "--epochs", "30", "--patience", "2", "--learning-rate", "0.1")) == 0
    pattern = r"stopped after epoch \d+ of 30: 2 epochs without a better validation \(--patience 2\)"
    assert re.search(pattern, capsys.readouterr().err)
