"""A hosted notebook's first cell: what it installs, and that the checkout is then on the path."""

import os
import re
import sys
from pathlib import Path

import hosted  # of notebooks/
import pytest


@pytest.mark.parametrize(
    ("installed", "lacks"),
    [
        ({}, {*hosted.PACKAGES}),
        ({"torch": "+cpu", "triton": ".1", "numpy": ".1"}, {*hosted.PACKAGES} - {"torch", "numpy"}),
        (dict.fromkeys(hosted.PACKAGES, ""), set()),
    ],
)
def test_a_hosted_machine_gets_what_it_lacks(monkeypatch, tmp_path, installed, lacks):
    pins = dict(re.findall(r"^([\w-]+)==(\S+)", (hosted.ROOT / "requirements.txt").read_text(encoding="utf-8"), re.M))

    def version(name):
        if name not in installed:
            raise hosted.PackageNotFoundError(name)
        return pins[name] + installed[name]

    commands = []
    monkeypatch.setattr(hosted, "version", version)
    monkeypatch.setattr(hosted.subprocess, "run", lambda command, check: commands.append(command))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", "/before")
    monkeypatch.chdir(tmp_path)
    hosted.prepare()
    assert {word for command in commands for word in command if "==" in word} == {f"{n}=={pins[n]}" for n in lacks}
    assert Path.cwd() == hosted.NOTEBOOKS
    assert sys.path[:2] == [str(hosted.ROOT), str(hosted.NOTEBOOKS)]
    assert os.environ["PYTHONPATH"] == os.pathsep.join([*sys.path[:2], "/before"])
