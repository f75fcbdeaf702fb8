"""kernels.runtime: what a backend lacks and how to get it, which GPUs are visible, and what an import does."""

from __future__ import annotations

import json
import os
import sys

import pytest
import torch

from kernels import runtime
from kernels.check import fresh


def python(code, **environment):
    """What `code` prints where only torch has been imported."""
    ended = fresh.run(code, environment=os.environ | environment)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


def test_the_cuda_backend_says_what_is_missing(monkeypatch, tmp_path):
    monkeypatch.setattr(runtime, "has_nvidia_driver", lambda: False)
    assert "no NVIDIA GPU" in runtime.why_not("cuda", "cuda")
    assert all("no NVIDIA GPU" in reason for reason in runtime.backends("cuda").values())
    monkeypatch.setattr(runtime, "has_nvidia_driver", lambda: True)
    monkeypatch.setattr(torch.version, "cuda", None)
    assert "CPU build of torch" in runtime.why_not("cuda", "cuda")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(runtime, "device", lambda: torch.device("cpu"))
    assert "update the driver" in runtime.why_not("cuda", "cuda")
    monkeypatch.setattr(runtime, "device", lambda: torch.device("cuda"))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))  # torch looks nowhere else then
    assert "nvcc is missing" in runtime.why_not("cuda", "cuda")
    of_another = executable(tmp_path / "bin" / "nvcc", "echo Cuda compilation tools, release 12.4, V12.4.131")
    assert runtime.nvcc() == of_another
    assert f"{of_another} is of CUDA 12.4: install the toolkit of CUDA 13.0" in runtime.why_not("cuda", "cuda")
    executable(tmp_path / "bin" / "nvcc", "echo Cuda compilation tools, release 13.2, V13.2.1")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "venv" / "python"))
    assert "ninja is missing" in runtime.why_not("cuda", "cuda")
    executable(tmp_path / "venv" / "ninja", "")
    assert runtime.why_not("cuda", "cuda") == ""
    assert ".cuda()" in runtime.why_not("cuda", "cpu")


def test_an_installed_package_names_no_file_of_the_repository(monkeypatch, tmp_path):
    monkeypatch.setattr(runtime, "has_nvidia_driver", lambda: True)
    monkeypatch.setattr(runtime, "triton_mode", lambda: "missing")
    monkeypatch.setattr(runtime, "nvcc", lambda: executable(tmp_path / "nvcc", "echo release 13.0, V13.0.88"))
    monkeypatch.setattr(runtime, "path_with_python", lambda: str(tmp_path))
    monkeypatch.setenv("CXX", str(executable(tmp_path / "c++", "")))
    for checkout, named in ((runtime.CHECKOUT, True), (None, False)):
        monkeypatch.setattr(runtime, "CHECKOUT", checkout)
        reasons = [runtime.why_not("triton", "cuda"), runtime.why_not("cpp", "cpu")]
        for cuda, device in ((None, "cpu"), ("13.0", "cuda")):
            monkeypatch.setattr(torch.version, "cuda", cuda)
            monkeypatch.setattr(runtime, "device", lambda device=device: torch.device(device))
            reasons.append(runtime.why_not("cuda", "cuda"))
        assert ["requirements.txt" in reason for reason in reasons] == [named] * 4, reasons
        with monkeypatch.context() as patch:
            patch.setattr(runtime, "has_nvidia_driver", lambda: False)
            assert ("make doctor" in runtime.why_not("cuda", "cuda")) == named


def executable(path, command):
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{command}\n")
    path.chmod(0o755)
    return path


def test_triton_runs_cpu_tensors_in_its_interpreter_only(monkeypatch):
    assert runtime.backends("cpu")["eager"] == ""
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    assert "TRITON_INTERPRET=1" in runtime.backends("cpu")["triton"]
    assert runtime.why_not("triton", "cuda") == ""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert runtime.why_not("triton", "cuda") == ""
    monkeypatch.setattr(runtime, "_package", lambda name: "none")
    assert "not installed" in runtime.why_not("triton", "cpu")


@pytest.mark.parametrize(("first", "runs"), [("triton", False), ("kernels", True)])
def test_triton_must_be_imported_after_the_interpreter_was_chosen(first, runs):
    code = f"import json, {first}, os; os.environ['TRITON_INTERPRET'] = '1'; import kernels.runtime, triton.language\n"
    environment = {"CUDA_VISIBLE_DEVICES": "", "TRITON_INTERPRET": ""}
    stdout = python(f"{code}print(json.dumps(kernels.runtime.why_not('triton', 'cpu')))", **environment)
    assert (json.loads(stdout) == "") == runs


@pytest.mark.parametrize(
    ("visible", "there"), [("0", True), ("1,0", True), ("", False), ("-1,0", False), ("NoDevFiles", False)]
)
def test_gpus_may_be_hidden(visible, there, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(runtime.doctor, "has_nvidia_device", lambda: True)
    assert runtime.has_nvidia_driver() == there


def test_where_torch_cannot_use_the_gpu_every_backend_gives_that_reason(monkeypatch):
    monkeypatch.setattr(runtime, "has_nvidia_driver", lambda: True)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(runtime, "device", lambda: torch.device("cpu"))
    reasons = runtime.backends("cuda")
    assert list(reasons) == list(runtime.BACKENDS)
    assert all("this torch cannot use the GPU" in reason for reason in reasons.values())


def test_importing_kernels_does_nothing():
    """No Triton, no compiler, no launcher is imported; CUDA is not touched; nothing is built or loaded."""
    code = """
import sys, kernels, torch
from kernels.dispatch import core, ops
lazy = {"triton", "torch._dynamo", "torch.utils.cpp_extension", *(f"kernels.ops.{op}.triton_launch" for op in ops())}
print(lazy & {*sys.modules}, torch.cuda.is_initialized(), core.core_is_loaded())
"""
    assert python(code) == "set() False False"
