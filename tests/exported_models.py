"""A small model, its checkpoint, its export, and the C++ programs that run it."""

import shlex
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from lessons.shared.commands import ROOT, environment
from lessons.shared.cpp_programs import BUILD
from model import export
from model.checkpoints import plain, save_checkpoint
from model.config import PRESETS, Precision
from model.dlrm import DLRM
from model.hashing import Hash
from model.serving.manifest import MANIFEST
from model.serving.served import Served

CARDINALITIES = (10, 1, 0, 300)


def trained(hash_=Hash.SORTED, **changes):
    """Not trained, but with weights of its own, and ids at both ends of what there is."""
    torch.manual_seed(0)
    config = replace(PRESETS["small"].model, cardinalities=CARDINALITIES, hash=hash_, **changes)
    known = [torch.arange(n).flip(0) * 14316557 for n in CARDINALITIES]
    return DLRM(config, known).eval().requires_grad_(False)


def checkpoint(path, dlrm):
    fields = ("optimizer", "random", "epoch", "step", "stale", "best", "history", "losses")
    state = {"format": 1, "config": {"model": plain(dlrm.config), "train": {}}, "parameters": dlrm.state_dict()}
    save_checkpoint(path, state | dict.fromkeys(fields))
    return path


def write(folder, pooling, device="cpu", precision=Precision.FP32, **changes):
    folder.mkdir()
    with torch.no_grad():
        export.write(Served(trained(**changes), pooling).eval().to(device), folder, precision)
    return folder


def for_gpu(folder, architecture="sm_90"):
    """A folder for the CPU made to say that it is for a GPU."""
    (folder / "package").rename(folder / f"package_{architecture}")
    text = (folder / MANIFEST).read_text().replace("\tpackage/", f"\tpackage_{architecture}/")
    (folder / MANIFEST).write_text(text.replace("\ninput", f"\ngpu\t{architecture}\ninput", 1))
    return folder


PROGRAMS = ROOT / "build" / "serving"


def build():
    """PROGRAMS: run_exported and serve_exported; without the libraries of the second one, the first alone. By the
    command of the notebooks, which then find them built."""
    cache = PROGRAMS / "CMakeCache.txt"
    if cache.exists() and f"{torch.utils.cmake_prefix_path}/Torch\n" not in cache.read_text():
        shutil.rmtree(PROGRAMS)  # it is for another torch
    command = BUILD.replace("$(python", f"$({shlex.quote(sys.executable)}")
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, env=environment(), capture_output=True, text=True)
    if done.returncode and "OpenSSL" in done.stderr:
        pytest.skip("OpenSSL's headers are missing (Debian: apt install libssl-dev)")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
