"""Whatever ends a run, what stands in its output is complete or does not look so: complete_directory, complete_file."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from raw import raw_fields, tsv

pytest.importorskip("polars")
from data.cli import UserError
from data.criteo import SPLITS
from data.metadata import read_metadata
from data.output import PARTIAL, complete_directory, complete_file, locked
from data.preprocess import main, preprocess

HERE = os.pathsep.join([str(Path(__file__).parent.parent), *sys.path])  # for a process that starts elsewhere
COMPLETE = {*SPLITS, "ids", "metadata.json"}


@pytest.fixture
def source(tmp_path) -> Path:
    (tmp_path / "train.txt").write_bytes(tsv(raw_fields(60)))
    return tmp_path / "train.txt"


@pytest.fixture
def mount(tmp_path):
    """An empty file system of its own."""
    place = tmp_path / "mount"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "tmpfs", place], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"mounting a tmpfs is not allowed here: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


def test_into_a_mount_point(source, mount):
    assert os.path.ismount(mount)
    (mount / "lost+found").mkdir()  # as in the root of a fresh ext4
    preprocess([source], mount)
    assert set(os.listdir(mount)) == COMPLETE | {"lost+found"}
    assert os.path.ismount(mount)


def test_a_failure_leaves_a_mount_point_empty(source, mount):
    source.write_bytes(tsv(raw_fields(60)) + b"bad\n")
    with pytest.raises(UserError, match=r"train.txt:61: expected 40"):
        preprocess([source], mount)
    assert os.listdir(mount) == []


@pytest.mark.parametrize("target", ["an empty directory", "nothing yet"])
def test_through_a_symbolic_link(source, tmp_path, target):
    if target == "an empty directory":
        (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    preprocess([source], tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert set(os.listdir(tmp_path / "real")) == COMPLETE


def test_into_an_empty_directory_and_into_one_that_is_not_there(source, tmp_path):
    (tmp_path / "empty").mkdir()
    for out in (tmp_path / "empty", tmp_path / "not" / "there"):
        preprocess([source], out)
        assert set(os.listdir(out)) == COMPLETE


@pytest.mark.parametrize("exists", ["a file", "a full directory", "a dead link"])
def test_output_that_cannot_be_used_is_refused_before_anything_is_read(source, tmp_path, monkeypatch, exists):
    monkeypatch.setattr("data.preprocess.blocks", lambda file: pytest.fail("the input was read"))
    out = tmp_path / "out"
    message = "already exists and is not"
    if exists == "a file":
        out.write_text("mine")
    elif exists == "a full directory":
        out.mkdir()
        (out / "mine").write_text("mine")
    else:
        (tmp_path / "file").write_text("mine")
        out.symlink_to("file/below")
        with pytest.raises(OSError, match="Not a directory"):
            preprocess([source], out)
        return
    with pytest.raises(UserError, match=message):
        preprocess([source], out)
    assert (out if exists == "a file" else out / "mine").read_text() == "mine"


def test_metadata_comes_last(tmp_path, monkeypatch):
    moved = []
    rename = Path.rename
    monkeypatch.setattr(Path, "rename", lambda path, to: moved.append(path.name) or rename(path, to))
    with complete_directory(tmp_path / "out") as directory:
        for name in ("a", "metadata.json", "z"):
            (directory / name).write_text(name)
    assert set(moved[:2]) == {"a", "z"}
    assert moved[2] == "metadata.json"


def test_killed_while_the_content_moves_up(tmp_path):
    """Part of it has moved: the next run cannot tell it from a user's own files, and names it."""
    out = tmp_path / "out"
    (out / PARTIAL).mkdir(parents=True)
    (out / "train").mkdir()
    message = r"not empty: it holds train \(a run that was killed at its end left .partial there\); remove"
    with pytest.raises(UserError, match=message), complete_directory(out):
        pass
    with pytest.raises(UserError, match=r"metadata.json: not found"):
        read_metadata(out)


def test_what_makes_a_directory_not_empty_is_named(tmp_path):
    (tmp_path / ".DS_Store").touch()
    with pytest.raises(UserError, match=r"not empty: it holds .DS_Store; remove it"), complete_directory(tmp_path):
        pass
    for name in ("b", "c", PARTIAL):  # a file of that name is none of ours
        (tmp_path / name).touch()
    with pytest.raises(UserError, match=r"not empty: it holds .DS_Store, .partial, b, …; remove"):
        complete_directory(tmp_path).__enter__()


def test_a_failure_while_the_content_moves_up_undoes_it(tmp_path, monkeypatch):
    rename = Path.rename

    def fails(path, to):
        if path.parent.name == PARTIAL and path.name == "metadata.json":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return rename(path, to)

    monkeypatch.setattr(Path, "rename", fails)

    def write():
        with complete_directory(tmp_path / "out") as directory:
            for name in ("train", "metadata.json"):
                (directory / name).touch()

    with pytest.raises(OSError, match="Input/output error"):
        write()
    assert not os.listdir(tmp_path)


def test_a_full_disk_is_named_and_what_was_written_is_removed(source, mount, capsys):
    subprocess.run(["mount", "-o", "remount,size=64k", mount], check=True)
    source.write_bytes(tsv(raw_fields(7000, ids=5000)))
    with pytest.raises(SystemExit) as exit_:
        main([str(source), "--out", str(mount)])
    assert exit_.value.code == 2
    assert f"{mount}: No space left on device; what was written there is removed\n" in capsys.readouterr().err
    assert os.listdir(mount) == []


def test_two_runs_at_once(tmp_path):
    with complete_directory(tmp_path / "out") as directory:
        (directory / "mine").write_text("mine")
        with pytest.raises(UserError, match=r"another run is writing in .*/out;"), complete_directory(tmp_path / "out"):
            pass
    assert os.listdir(tmp_path / "out") == ["mine"]


def test_the_lock_of_a_killed_run_is_gone(tmp_path):
    ready, told = os.pipe()
    if not (child := os.fork()):
        with locked(tmp_path / "out"):
            os.write(told, b"1")
            signal.pause()
        os._exit(1)
    os.read(ready, 1)
    with pytest.raises(UserError, match="another run is writing in"), locked(tmp_path / "out"):
        pass
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with locked(tmp_path / "out"):
        pass


def flock_fails(monkeypatch, number: int) -> None:
    """For a directory, with this errno, as a network file system may."""
    plain = fcntl.flock

    def flock(file, how):
        if stat.S_ISDIR(os.stat(file).st_mode):
            raise OSError(number, os.strerror(number))
        plain(file, how)

    monkeypatch.setattr(fcntl, "flock", flock)


def test_where_only_what_is_open_for_writing_is_locked(tmp_path, monkeypatch):
    """On NFS."""
    flock_fails(monkeypatch, errno.EBADF)
    with complete_directory(tmp_path / "out") as directory:
        (directory / "mine").touch()
        with pytest.raises(UserError, match="another run is writing in"), complete_directory(tmp_path / "out"):
            pass
    assert os.listdir(tmp_path / "out") == ["mine"]
    with pytest.raises(KeyError), locked(tmp_path / "none"):
        raise KeyError
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_where_there_are_no_locks_it_is_said(tmp_path, monkeypatch, capsys, number):
    flock_fails(monkeypatch, number)
    with complete_directory(tmp_path / "out") as directory:
        (directory / "mine").touch()
    assert capsys.readouterr().err.startswith(f"{tmp_path / 'out'}: no locks on this file system: ")
    assert os.listdir(tmp_path / "out") == ["mine"]


def test_a_lock_knows_its_directory(tmp_path):
    """Not one that has come in its place, and removes none but its own."""
    with locked(tmp_path / "out") as check:
        check()
        (tmp_path / "out").rename(tmp_path / "moved")
        (tmp_path / "out").mkdir()
        with pytest.raises(UserError, match="out: is no longer the folder"):
            check()
    assert {path.name for path in tmp_path.iterdir()} == {"out", "moved"}


def start(tmp_path: Path, out: Path) -> subprocess.Popen:
    """data.preprocess, in the middle of its work: it waits for the rest of its input."""
    first = tmp_path / "first.txt"
    first.write_bytes(tsv(raw_fields(2000)) * 10)
    code = (
        "import sys, time; from data import preprocess as p; whole = p.blocks\n"
        "def blocks(file, **more):\n"
        "    yield from whole(file, **more); print('half', flush=True)\n"
        "    for _ in range(6000): time.sleep(0.1)\n"
        "p.blocks = blocks; p.main(sys.argv[1:])"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, first, "--out", out, "--workers", "1"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=Path(__file__).parent.parent,
    )
    assert process.stdout.readline() == "half\n", process.stderr.read()
    return process


@pytest.mark.parametrize(
    ("number", "status", "message"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
def test_a_signal_leaves_nothing(tmp_path, number, status, message):
    process = start(tmp_path, tmp_path / "out")
    process.send_signal(number)
    _, stderr = process.communicate(timeout=300)
    assert process.returncode == status, stderr
    assert f"data.preprocess: {message}" in stderr
    assert "Traceback" not in stderr
    assert os.listdir(tmp_path) == ["first.txt"]


def test_kill_9_leaves_nothing_that_looks_finished_and_the_next_run_is_clean(tmp_path):
    out = tmp_path / "out"
    process = start(tmp_path, out)
    deadline = time.monotonic() + 300
    while not list(out.glob(f"{PARTIAL}/parts/*.parquet")) and time.monotonic() < deadline:
        time.sleep(0.01)
    with pytest.raises(UserError, match=r"another run is writing in .*/out;"):
        preprocess([tmp_path / "first.txt"], out)
    process.kill()
    process.communicate(timeout=300)
    assert os.listdir(out) == [PARTIAL]
    assert list(out.glob(f"{PARTIAL}/parts/*.parquet"))
    with pytest.raises(UserError, match=r"metadata.json: not found"):
        read_metadata(out)
    rows, _ = preprocess([tmp_path / "first.txt"], out)
    assert sum(rows.values()) == 20_000
    assert set(os.listdir(out)) == COMPLETE


@pytest.mark.parametrize("before", [None, b"of an earlier run"])
def test_a_file_is_complete_or_as_it_was(tmp_path, before):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real" / "file")
    if before is not None:
        (tmp_path / "link").write_bytes(before)

    def stopped():
        with complete_file(tmp_path / "link") as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()
    names = [path.name for path in (tmp_path / "real").iterdir()]
    assert names == ([] if before is None else ["file"])
    assert before is None or (tmp_path / "link").read_bytes() == before
    with complete_file(tmp_path / "link") as file:
        file.write(b"whole")
    assert (tmp_path / "link").is_symlink()
    assert [path.name for path in (tmp_path / "real").iterdir()] == ["file"]
    assert (tmp_path / "link").read_bytes() == b"whole"


def test_a_file_half_written_by_a_killed_run_goes_and_a_running_ones_stays(tmp_path):
    left, other = tmp_path / ".[a].csv.1.partial", tmp_path / ".b.csv.1.partial"
    for path in (left, other):
        path.write_text("half")
    with complete_file(tmp_path / "[a].csv") as first:
        assert not left.exists()
        running = Path(first.name)
        running.rename(left)  # as of another process
        with complete_file(tmp_path / "[a].csv") as second:
            second.write(b"whole")
        assert left.exists()
        left.rename(running)
    assert sorted(tmp_path.iterdir()) == [other, tmp_path / "[a].csv"]


def test_a_file_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="is a directory; name a file"), complete_file(tmp_path):
        pytest.fail("entered")
    with pytest.raises(OSError, match="file"), complete_file(tmp_path / "file" / "below"):
        pytest.fail("entered")


@pytest.mark.parametrize("out", ["loop", b"not\xe9utf8"])
def test_a_path_that_is_none_is_one_line(tmp_path, out):
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    first = tmp_path / "first.txt"
    first.write_bytes(tsv(raw_fields(30)))
    done = subprocess.run(
        [sys.executable, "-m", "data.preprocess", first, "--out", out],
        capture_output=True, cwd=tmp_path, env=os.environ | {"PYTHONPATH": HERE},
    )
    expected = b"Too many levels of symbolic links" if out == "loop" else rb"not\udce9utf8"
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, b"", 1), done.stderr
    assert expected in done.stderr


def test_ascii_takes_what_a_command_prints(tmp_path):
    first = tmp_path / "first.txt"
    first.write_bytes(tsv(raw_fields(30)))
    done = subprocess.run(
        [sys.executable, "-m", "data.preprocess", first, "--out", "out"], capture_output=True, cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": HERE, "PYTHONIOENCODING": "ascii"},
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.endswith(rb"\u2192 out" + b"\n")


def test_what_is_added_while_it_is_removed_goes_too(tmp_path, monkeypatch):
    plain, removals = shutil.rmtree, []

    def rmtree(path, **options):
        plain(path, **options)
        if len(removals) < 2:  # as a thread would that is not done yet
            (path / "parts").mkdir(parents=True)
        removals.append(path)

    def stopped():
        with complete_directory(tmp_path / "out") as directory:
            (directory / "file").write_text("half")
            raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", rmtree)
    with pytest.raises(KeyboardInterrupt):
        stopped()
    assert len(removals) == 3
    assert os.listdir(tmp_path) == []
