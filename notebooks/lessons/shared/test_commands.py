"""lessons/shared/commands.py: commands print no path of this machine."""

from __future__ import annotations

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
