"""check() in a process of its own: the function goes there by its source, and may end it."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import itertools
import linecache
import os
import subprocess
import sys
import time
import types
from math import isfinite
from pathlib import Path
from typing import final

import pytest
import torch

from kernels.check import Case, check, isolated
from kernels.check.isolated import source_of
from kernels.ops.add_relu.eager import add_relu

ROOT = Path(__file__).resolve().parent.parent

# A notebook's cells: nothing of it can be imported.
CELLS = '''
import kernels
import signal, os
import torch
import triton
import triton.language as tl
from kernels.check import Case, check
from kernels.ops.add_relu.eager import add_relu

BLOCK = 1024
CASES = [Case((1, 7)), Case((3, 8))]

@triton.jit
def positive(z):
    return tl.where(z < 0, 0.0, z)

@triton.jit
def kernel(x_ptr, bias_ptr, out_ptr, elements, COLUMNS: tl.constexpr, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < elements
    z = tl.load(x_ptr + offsets, mask) + tl.load(bias_ptr + offsets % COLUMNS, mask)
    tl.store(out_ptr + offsets, positive(z), mask)

def right(x, bias):
    out = torch.empty_like(x)
    kernel[(triton.cdiv(x.numel(), BLOCK),)](x, bias, out, x.numel(), COLUMNS=len(bias), BLOCK=BLOCK)
    return out

def wrong(x, bias):
    return right(x, bias) + 1

def ends(x, bias):
    os.kill(os.getpid(), signal.SIGSEGV)

for function in (right, wrong, ends):
    try:
        check("add_relu", function, cases=CASES, isolated=True)
    except AssertionError as error:
        print(str(error).splitlines()[0])
'''


@pytest.mark.slow
def test_a_notebooks_functions_go_to_a_process_of_their_own(tmp_path):
    (tmp_path / "cells.py").write_text(CELLS)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    printed = subprocess.run([sys.executable, tmp_path / "cells.py"], capture_output=True, text=True, env=environment)
    right, wrong, ends = printed.stdout.splitlines()
    assert right.startswith("add_relu: 2 cases passed on ")
    assert wrong.startswith("add_relu, case 1×7 float32: ")
    assert ends.startswith("add_relu: the process ended by SIGSEGV: ")


# In place of the program that imports torch: a process that starts another one, with a file that only these two hold.
LEAVES_ANOTHER = """
import fcntl, subprocess, sys
folder, _, _, locked = sys.argv[1:]
held = open(locked, "w")
fcntl.flock(held, fcntl.LOCK_EX)
subprocess.Popen(["sleep", "30"], pass_fds=[held.fileno()])
print("said", flush=True)
open(folder + "/result", "w").write("null")
"""


def a_function():
    pass


def is_free(locked: Path) -> bool:
    """Whether nobody holds the file, within five seconds: a process that is killed needs a moment to end."""
    with open(locked, "a") as file:
        for _ in range(100):
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            time.sleep(0.05)
    return False


def test_what_a_process_leaves_behind_ends_with_it(monkeypatch, tmp_path):
    monkeypatch.setattr(isolated, "CHILD", LEAVES_ANOTHER)
    assert isolated.run_apart(a_function, "", str(tmp_path / "locked"), seconds=10) == "said\n"
    assert is_free(tmp_path / "locked")


def test_a_process_that_is_stopped_says_so_and_leaves_nothing_behind(monkeypatch, tmp_path):
    monkeypatch.setattr(isolated, "CHILD", LEAVES_ANOTHER + "import time; time.sleep(30)")
    with pytest.raises(isolated.Ended, match=r"^it does not end: stopped after 1 s, which is for all cases together\n"):
        isolated.run_apart(a_function, "", str(tmp_path / "locked"), seconds=1)
    assert is_free(tmp_path / "locked")


def test_what_cannot_be_carried_is_named():
    def inner(x, bias):
        return add_relu(x, bias) + offset

    offset = 1
    with pytest.raises(ValueError, match="takes a function defined with def; got"):
        check("add_relu", lambda x, bias: x, cases=[Case((1, 7))], isolated=True)
    with pytest.raises(ValueError, match="takes a function defined with def; got"):
        check("add_relu", functools.partial(add_relu), cases=[Case((1, 7))], isolated=True)
    inner.__module__ = "__main__"
    with pytest.raises(ValueError, match="cannot carry inner: it uses variables of a function around it"):
        source_of(inner)


def test_a_modules_function_is_imported():
    name, source = source_of(add_relu)
    assert (name, source) == ("add_relu", "from kernels.ops.add_relu.eager import add_relu as add_relu\n")
    assert source_of(itertools.accumulate)[1] == "from itertools import accumulate as accumulate\n"


def uses_a_function_of_c(x):
    return isfinite(x)


def test_a_function_of_c_is_imported(monkeypatch):
    monkeypatch.setattr(uses_a_function_of_c, "__module__", "__main__")
    assert source_of(uses_a_function_of_c)[1].startswith("from math import isfinite as isfinite\n")


def test_a_parameter_is_not_the_global_of_its_name(tmp_path):
    text = CELLS.partition("for function in")[0]
    text += "\nx = torch.zeros(3)\n\ndef doubled(x):\n    return kernels.add_relu(x, BIAS) + BLOCK\n\nBIAS = 1\n"
    text += "\nfrom kernels.check.isolated import source_of\nprint(source_of(doubled)[1])"
    (tmp_path / "cells.py").write_text(text)
    done = subprocess.run([sys.executable, tmp_path / "cells.py"], capture_output=True, text=True, cwd=ROOT,
                          env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    assert "BIAS = 1" in done.stdout
    assert "BLOCK = 1024" in done.stdout
    assert "zeros" not in done.stdout


NOTEBOOK_CLASS = """
class Other:
    def scale(self): return 1

@final
class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * SCALE

    @staticmethod
    def backward(ctx, grad):
        return SCALE * grad
"""


def test_a_notebooks_class_is_carried_by_the_text_of_its_cell(monkeypatch):
    """inspect knows no file of it: its module, __main__, has none."""
    main = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setitem(linecache.cache, "<cell>", (0, None, NOTEBOOK_CLASS.splitlines(keepends=True), "<cell>"))
    vars(main).update(torch=torch, SCALE=2, final=final)
    exec(compile(NOTEBOOK_CLASS, "<cell>", "exec"), vars(main))
    name, source = source_of(main.Doubled)
    assert name == "Doubled"
    assert "SCALE = 2\n" in source
    assert "\n@final\nclass Doubled(torch.autograd.Function):\n" in source
    assert source.endswith("return SCALE * grad\n\n")
    assert "Other" not in source
    monkeypatch.setitem(linecache.cache, "<cell>", (0, None, [], "<cell>"))
    with pytest.raises(ValueError, match="cannot carry Doubled: its text is not known"):
        source_of(main.Doubled)
