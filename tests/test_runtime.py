"""kernels.runtime: what a backend lacks and how to get it, which GPUs are visible, and what an import does."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest
import torch

from kernels import doctor, nvrtc_library, runtime
from kernels.check import fresh


def python(code, **environment):
    """What `code` prints where only torch has been imported."""
    ended = fresh.run(code, environment=os.environ | environment)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


def test_the_cuda_backend_says_what_is_missing(monkeypatch, tmp_path):
    for name in ("CC", "CXX", "CUDAHOSTCXX"):
        monkeypatch.delenv(name, raising=False)
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
    monkeypatch.setattr(nvrtc_library, "library", no_nvrtc)
    assert runtime.why_not("cuda", "cuda") == runtime.why_not("nvrtc", "cuda") == "NVRTC is missing: pip install it"
    assert "nvcc is missing" in runtime.why_not("nvcc", "cuda")
    of_another = executable(tmp_path / "bin" / "nvcc", "echo Cuda compilation tools, release 12.4, V12.4.131")
    assert runtime.nvcc() == of_another
    assert f"{of_another} is of CUDA 12.4: install the toolkit of CUDA 13.0" in runtime.why_not("nvcc", "cuda")
    monkeypatch.setattr(nvrtc_library, "library", lambda _: None)
    assert runtime.why_not("nvrtc", "cuda") == ""
    executable(tmp_path / "bin" / "nvcc", "echo Cuda compilation tools, release 13.2, V13.2.1")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "venv" / "python"))
    for backend in ("cuda", "nvcc"):
        (tmp_path / "venv" / "g++").unlink(missing_ok=True)
        (tmp_path / "venv" / "ninja").unlink(missing_ok=True)
        assert "ninja is missing" in runtime.why_not(backend, "cuda")
        executable(tmp_path / "venv" / "ninja", "")
        assert "the C++ compiler g++ is missing: apt install g++, or set CXX" in runtime.why_not(backend, "cuda")
        executable(tmp_path / "venv" / "g++", "")
        assert runtime.why_not(backend, "cuda") == ""
        assert ".cuda()" in runtime.why_not(backend, "cpu")
    monkeypatch.setenv("CC", "ccache gcc")
    assert runtime.why_not("cuda", "cuda") == ""
    assert "ccache is missing (CC is 'ccache gcc'): set CC to one that is there" in runtime.why_not("nvcc", "cuda")


def no_nvrtc(nvcc):
    raise RuntimeError("NVRTC is missing: pip install it")


def test_an_installed_package_names_no_file_of_the_repository(monkeypatch, tmp_path):
    monkeypatch.setattr(nvrtc_library, "library", lambda _: None)
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


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """A folder that is all of PATH: a compiler, ninja, a cache of compilations that calls one, and a script whose
    interpreter has moved."""
    folder = tmp_path / "my tools"
    for name, command in (("g++", "echo g++ 12.2"), ("ninja", "echo 1.13"), ("ccache", 'exec "$@"')):
        executable(folder / name, command)
    executable(folder / "moved", "").write_text("#!/nowhere/python\n")
    for name in ("env", "false"):
        (folder / name).symlink_to(shutil.which(name))
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    for variable in ("CXX", "CC", "CUDAHOSTCXX", "NVCC_CCBIN"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(runtime, "CACHE", tmp_path / "cache")
    runtime._compilers_folder.cache_clear()
    yield folder
    runtime._compilers_folder.cache_clear()


@pytest.mark.parametrize(
    "compiler", ["", "g++", "ccache g++", "g++ -m64", "env LANG=C ccache g++ -m64", "./g++", "{}/g++",
              "'{}/ccache' '{}/g++'"],
)
def test_a_compiler_is_what_cxx_says_in_one_word_or_several(tools, monkeypatch, compiler):
    monkeypatch.setenv("CXX", compiler.format(tools, tools))
    assert runtime.why_not("cpp", "cpu") == runtime.why_no_build("cpu") == ""
    program = runtime.compiler_program()
    assert " " not in program
    assert program.endswith("g++")  # what it is named, Inductor takes it for
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=True, cwd="/")
    assert done.stdout == "g++ 12.2\n"
    (row,) = doctor.compilers()
    assert row.ok
    assert row.found.startswith("12.2 (")


@pytest.mark.parametrize(
    ("compiler", "why"),
    [
        ("nothere", "the C++ compiler nothere is missing: set CXX to one that is there, or unset it"),
        ("nothere g++", "the C++ compiler nothere is missing (CXX is 'nothere g++'): set CXX to one that is there"),
        ("'g++", "the C++ compiler 'g++ is missing: set CXX"),
        ("ccache nothere", "the C++ compiler ccache nothere does not run (exit status 127"),
        ("moved", "the C++ compiler moved does not run (No such file or directory): set CXX to one that does"),
        ("false", "the C++ compiler false does not run (exit status 1): set CXX to one that does"),
    ],
)
def test_a_compiler_that_cannot_be_called_is_named(tools, monkeypatch, compiler, why):
    monkeypatch.setenv("CXX", compiler)
    assert why in runtime.why_no_build("cpu")
    (row,) = doctor.compilers()
    assert row.required
    assert "g++: missing\n" in doctor.complaints([row])
    assert why in row.get


def test_programs_that_do_not_run_are_missing(tools, monkeypatch):
    """A checkout's environment that was moved leaves scripts in it whose first lines lead nowhere."""
    for name in ("cmake", "ctest", "ninja"):
        shutil.copy(tools / "moved", tools / name)
    rows = {check.name: check for check in doctor.checks(tools / "python", system=("Linux", "x86_64"))}
    for name in ("cmake", "ctest", "ninja"):
        complaint = doctor.complaints([rows[name]])
        assert complaint.startswith(f"{name}: missing\n")
        assert f"{tools / name} does not run (No such file or directory)" in complaint
    assert runtime.why_no_build("cpu").startswith(f"{tools / 'ninja'} does not run (No such file or directory): pip ")
    (tools / "ninja").unlink()
    assert runtime.why_no_build("cpu").startswith("ninja is missing: pip install ninja")


@pytest.mark.parametrize("variable", ["CC", "CUDAHOSTCXX", "NVCC_CCBIN"])
def test_compilers_of_cudas_host_code_are_looked_for_too(tools, monkeypatch, variable):
    def row(value):
        monkeypatch.setenv(variable, value)
        return next(check for check in doctor.compilers() if check.name == variable)

    assert row("g++").ok
    assert f"the compiler that {variable} names, nothere is missing" in row("nothere").get
    assert "does not run" in row("moved").get
    assert f"{variable} is 'ccache g++': name one program" in row("ccache g++").get


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
    monkeypatch.setattr(runtime.machine, "has_nvidia_device", lambda: True)
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
