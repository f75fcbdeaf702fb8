"""lessons/shared/commands.py: commands print no path of this machine."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from lessons.shared import commands


def test_a_command_prints_what_it_says_without_paths(capsys):
    assert commands.shell(f"echo {commands.ROOT}/build/x; echo {commands.ROOT}; echo /a/b/site-packages/torch/y") > 0
    assert capsys.readouterr().out == "build/x\n.\n…/torch/y\n"


def test_a_command_that_fails(capsys):
    with pytest.raises(commands.CommandFailed, match=r"ls ended with status 2: .*no such folder"):
        commands.shell("ls 'no such folder'")
    commands.shell("echo 0; exit 1", fails=True)
    assert capsys.readouterr().out == "0\nexit status 1\n"


def test_a_command_in_the_background(capsys, tmp_path):
    """It begins at once, or when another one has ended, and prints when it is waited for."""
    first = commands.Started(f"sleep 0.3; echo {commands.ROOT}/one | tee {tmp_path}/file")
    second = commands.Started(f"cat {tmp_path}/file; exit 3", after=first)
    assert capsys.readouterr().out == ""
    first.wait()
    assert capsys.readouterr().out == "one\n"
    with pytest.raises(commands.CommandFailed, match="cat ended with status 3: one"):
        second.wait()
    second.wait(fails=True)
    assert capsys.readouterr().out == "one\nexit status 3\n"


def test_a_command_in_the_background_ends_with_its_process(tmp_path):
    program = f"""
import time
from lessons.shared.commands import Started
Started("echo begun > {tmp_path}/file; sleep 600 & wait; echo ended > {tmp_path}/file")
while not (open("{tmp_path}/file", "a+").tell()):
    time.sleep(0.05)
"""
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", program], check=True, env=commands.environment())
    while subprocess.run(["pgrep", "-f", f"echo begun > {tmp_path}/file"], capture_output=True).stdout:
        assert time.perf_counter() - begin < 300, "the command goes on"
        time.sleep(0.1)
    assert (tmp_path / "file").read_text() == "begun\n"
