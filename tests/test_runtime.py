"""kernels.runtime: what a backend lacks and how to get it, and extensions, really built with g++ from a small op."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
import timeit
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
import torch

from kernels import runtime

ROOT = Path(__file__).resolve().parent.parent
WHY_NOT_CUDA = runtime.backends("cuda")["cuda"] if runtime.device().type == "cuda" else "no CUDA device"
HEADER = "#define FACTOR 3\n"
SOURCE = """#include <torch/library.h>
#include "factor.h"
static at::Tensor scaled(const at::Tensor& x) { return x.mul(FACTOR); }
TORCH_LIBRARY_FRAGMENT(runtime_test, library) { library.def("OP(Tensor x) -> Tensor"); }
TORCH_LIBRARY_IMPL(runtime_test, CPU, library) { library.impl("OP", scaled); }
"""
# load_library in a process of its own; prints what the op makes of 5.
LOAD = """
import sys, torch
from pathlib import Path
from kernels import runtime
name, folder = sys.argv[1], Path(sys.argv[2])
runtime.load_library(name, folder / "op.cpp", include=(folder / "include",), flags=("-O0",), cache=folder / "cache")
print(getattr(torch.ops.runtime_test, name)(torch.tensor(5)).item())
"""

# The same for the CUDA backend of an op; prints what it makes of [[-1, 1]] and the bias [0, 2].
LOAD_EXTENSION = """
import sys, torch
from pathlib import Path
from kernels import runtime
name, folder = sys.argv[1], Path(sys.argv[2])
runtime.EXTENSIONS = folder / "cache"
runtime.load_extension(name)
op = getattr(torch.ops.fused_kernels, name + "_cuda")
print(op(torch.tensor([[-1.0, 1.0]]).cuda(), torch.tensor([0.0, 2.0]).cuda()).tolist())
"""


def write_op(folder, name):
    """An op that multiplies by the FACTOR of a header in another folder."""
    (folder / "include").mkdir()
    (folder / "include" / "factor.h").write_text(HEADER)
    (folder / "op.cpp").write_text(SOURCE.replace("OP", name))
    return folder / "op.cpp"


def load(folder, name, **options):
    include, cache = (folder / "include",), folder / "cache"
    options = {"include": include, "cache": cache, "flags": ("-O0",), **options}
    return runtime.load_library(name, folder / "op.cpp", **options)


def python(code, *arguments, **environment):
    """A new Python that runs `code`."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
    )


def finish(process, timeout=120):
    """(stdout, stderr) of a process that must succeed."""
    stdout, stderr = process.communicate(timeout=timeout)
    assert process.returncode == 0, stderr
    return stdout.strip(), stderr


def files(folder, pattern="*"):
    return sorted(path.name for path in (folder / "cache").glob(pattern))


# ------------------------------------------------------------------------------------------------------------------
# Building.


def test_two_processes_at_once_build_once_and_a_third_needs_no_compiler(tmp_path):
    write_op(tmp_path, "together")
    both = [finish(process) for process in [python(LOAD, "together", tmp_path) for _ in range(2)]]
    assert [stdout for stdout, _ in both] == ["15", "15"]
    said = "".join(stderr for _, stderr in both)
    assert said.count("Building the extension together") == 1
    assert said.count("Built together in ") == 1
    assert len(files(tmp_path, "*.so")) == 1
    assert files(tmp_path, "*.partial") == []
    (tmp_path / "bin").mkdir()
    no_compiler = {"CXX": str(tmp_path / "bin" / "none"), "PATH": str(tmp_path / "bin")}
    stdout, stderr = finish(python(LOAD, "together", tmp_path, **no_compiler))
    assert stdout == "15"
    assert "together" not in stderr


def test_a_failed_build_shows_the_compilers_line_and_can_be_repaired(tmp_path, monkeypatch):
    source = write_op(tmp_path, "repaired")
    good = source.read_text()
    source.write_text("int broken = ;\n" + good)
    monkeypatch.setenv("RUNTIME_TEST", "before")
    before = dict(os.environ)
    options = {"flags": ("-O0", "-Wfatal-errors"), "environment": {"RUNTIME_TEST": "during"}}
    with pytest.raises(RuntimeError) as raised:
        load(tmp_path, "repaired", **options)
    message = str(raised.value)
    assert message.startswith("building the extension repaired ")
    assert f"{source}:1:14: error: expected primary-expression" in message
    assert "int broken = ;" in message
    assert "-isystem" not in message  # nor the command, which is longer than all of this
    assert dict(os.environ) == before
    assert files(tmp_path) == ["repaired.lock"]
    with pytest.raises(RuntimeError, match="error: "):  # the same again: built again, not taken for done
        load(tmp_path, "repaired", **options)
    source.write_text(good)
    load(tmp_path, "repaired", **options)
    assert torch.ops.runtime_test.repaired(torch.tensor(5)).item() == 15


@contextmanager
def mid_build(code, name, folder, compilers):
    """A Python that builds in this folder, once one of these compilers works there; nothing of it outlives this."""
    process = python(code, name, folder)
    try:
        deadline = time.monotonic() + 60
        while not any(worker.info["name"] in compilers for worker in workers(folder)):
            assert process.poll() is None, process.stderr.read()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        yield process
    finally:
        for running in (process, *workers(folder)):
            with suppress(psutil.NoSuchProcess):
                running.kill()
        process.communicate()


def workers(folder):
    """The processes whose working directory is under this folder, removed or not."""
    processes = psutil.process_iter(["name", "cwd"])
    return [process for process in processes if (process.info["cwd"] or "").startswith(str(folder.resolve()))]


def end(process, how):
    """Send a signal to this Python alone, not to its compiler."""
    process.send_signal(how)
    assert process.wait(timeout=30) == -how


def test_a_build_that_was_killed_does_not_block_the_next(tmp_path):
    write_op(tmp_path, "killed")
    with mid_build(LOAD, "killed", tmp_path, {"cc1plus"}) as process:
        end(process, signal.SIGKILL)
        assert workers(tmp_path)
        (left_over,) = (tmp_path / "cache").glob("*.partial")
        assert (left_over / "lock").exists()  # for which load_inline would wait for ever
        (tmp_path / "cache" / "lock").touch()
        start = time.monotonic()
        stdout, stderr = finish(python(LOAD, "killed", tmp_path))
        assert time.monotonic() - start < 60
        assert workers(tmp_path) == []
    assert stdout == "15"
    assert "Built killed in " in stderr
    assert files(tmp_path, "*.partial") == []


def test_an_interrupted_build_leaves_no_compiler_running(tmp_path):
    write_op(tmp_path, "interrupted")
    with mid_build(LOAD, "interrupted", tmp_path, {"cc1plus"}) as process:
        end(process, signal.SIGINT)
        assert workers(tmp_path) == []
    assert files(tmp_path) == ["interrupted.lock"]


def test_a_forked_process_does_not_keep_the_lock(tmp_path):
    lock = tmp_path / "x.lock"
    with runtime._locked(lock, "x"):
        child = os.fork()
        if child == 0:  # has the lock's file open, as a DataLoader's worker has
            signal.pause()
    try:
        with lock.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_what_ignores_an_interrupt_is_killed(tmp_path):
    folder = tmp_path / "x.partial"
    folder.mkdir()
    beside = subprocess.Popen(["sleep", "60"], cwd=tmp_path)
    stubborn = subprocess.Popen(["sh", "-c", "trap '' INT; echo; exec sleep 60"], cwd=folder, stdout=subprocess.PIPE)
    with stubborn, beside:
        stubborn.stdout.readline()
        runtime._remove(folder)
        assert stubborn.wait() == -signal.SIGKILL
        assert beside.poll() is None
        beside.kill()
    assert not folder.exists()


@pytest.mark.skipif(bool(WHY_NOT_CUDA), reason=WHY_NOT_CUDA)
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_cuda_build_that_was_ended_does_not_block_the_next(tmp_path, how):
    with mid_build(LOAD_EXTENSION, "add_relu", tmp_path, {"cudafe++", "cicc", "ptxas"}) as process:
        end(process, how)
        assert how != signal.SIGINT or workers(tmp_path) == []
        stdout, stderr = finish(python(LOAD_EXTENSION, "add_relu", tmp_path), timeout=400)
        assert workers(tmp_path) == []
    assert stdout == "[[0.0, 3.0]]"
    assert "Built add_relu in " in stderr
    assert files(tmp_path, "*.partial") == []


@pytest.fixture
def built(monkeypatch):
    """The libraries that would have been built: the build itself is left out."""
    libraries = []

    def build(name, library, *others):
        time.sleep(0.05)
        libraries.append(library)

    monkeypatch.setattr(runtime, "_build_and_load", build)
    return libraries


def test_the_key_is_all_that_a_build_depends_on(tmp_path, built, monkeypatch):
    source = write_op(tmp_path, "keyed")
    header = tmp_path / "include" / "factor.h"
    deeper = tmp_path / "include" / "deeper.h"
    deeper.write_text("")
    assert runtime.included_files(source, (header.parent,)) == [source, header]
    keys = [load(tmp_path, "keyed")]
    header.write_text('#include "deeper.h"\n' + HEADER)
    keys.append(load(tmp_path, "keyed"))
    deeper.write_text("// changed\n")
    keys.append(load(tmp_path, "keyed"))
    source.write_text(source.read_text() + "\n")
    keys.append(load(tmp_path, "keyed"))
    keys.append(load(tmp_path, "keyed", flags=("-O3",)))
    keys.append(load(tmp_path, "keyed", environment={"TORCH_CUDA_ARCH_LIST": "9.0"}))
    monkeypatch.setattr(torch, "__version__", "0.0")
    keys.append(load(tmp_path, "keyed"))
    monkeypatch.setattr(torch.version, "cuda", "0.0")
    keys.append(load(tmp_path, "keyed"))
    assert len(set(keys)) == len(keys)
    assert built == keys
    (header.parent / "unrelated.h").write_text("not included")
    assert load(tmp_path, "keyed") == keys[-1]
    assert built == keys


def test_two_threads_build_once(tmp_path, built):
    write_op(tmp_path, "threads")
    in_threads(lambda: load(tmp_path, "threads"))
    assert len(built) == 1


def in_threads(function):
    threads = [threading.Thread(target=function) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_load_extension_gives_load_inline_the_binding_as_it_is(tmp_path, monkeypatch):
    given = {}

    def load_inline(name, **arguments):
        given.update(arguments, name=name, architectures=os.environ["TORCH_CUDA_ARCH_LIST"])
        (Path(arguments["build_directory"]) / f"{name}.so").touch()

    capabilities = [(9, 0), (8, 0), (9, 0)]
    monkeypatch.setattr("torch.utils.cpp_extension.load_inline", load_inline)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(capabilities))
    monkeypatch.setattr(torch.cuda, "get_device_capability", capabilities.__getitem__)
    monkeypatch.setattr(runtime, "KERNELS", tmp_path)
    monkeypatch.setattr(runtime, "EXTENSIONS", tmp_path / "cache")
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "7.5")
    (tmp_path / "some_op").mkdir()
    (tmp_path / "some_op" / "binding.cu").write_text('#include "kernel.cuh"\n')
    assert runtime.load_extension("some_op") is True
    assert given["name"] == "some_op"
    assert given["cuda_sources"] == '#include "kernel.cuh"\n'
    assert given["extra_include_paths"] == [str(tmp_path / "some_op"), str(tmp_path)]
    assert given["extra_cuda_cflags"] == ["-O3"]
    assert given["architectures"] == "8.0;9.0"
    assert os.environ["TORCH_CUDA_ARCH_LIST"] == "7.5"


# ------------------------------------------------------------------------------------------------------------------
# While torch.compile traces.


def test_what_is_first_needed_inside_a_trace_is_loaded_there_once(tmp_path, capfd):
    write_op(tmp_path, "traced")
    loads = []

    @runtime.at_trace_time
    def load_op():
        load(tmp_path, "traced")
        torch.library.register_fake("runtime_test::traced", torch.empty_like)
        loads.append(1)
        return True

    def double(x):
        if runtime.choose("auto", x) == "eager":
            load_op()
            x = torch.ops.runtime_test.traced(x)
        return 2 * x

    assert not hasattr(torch.ops.runtime_test, "traced")
    compiled = torch.compile(double, fullgraph=True, backend="eager")
    assert compiled(torch.tensor([1.0, 2.0])).tolist() == [6.0, 12.0]
    assert double(torch.tensor([1.0])).tolist() == [6.0]
    assert loads == [1]
    assert capfd.readouterr().err.count("Built traced in ") == 1


def test_at_trace_time_runs_once_in_threads_and_again_after_an_error():
    calls = []

    @runtime.at_trace_time
    def work(argument):
        calls.append(argument)
        time.sleep(0.05)
        if len(calls) == 1:
            raise OSError("not yet")
        return len(calls)

    with pytest.raises(OSError, match="not yet"):
        work("a")
    in_threads(lambda: work("a"))
    assert calls == ["a", "a"]
    assert [work("a"), work("b")] == [2, 3]
    assert runtime.load_extension._dynamo_marked_constant is True


# ------------------------------------------------------------------------------------------------------------------
# Backends.


def test_choose_takes_less_than_a_microsecond():
    x = torch.ones(1)
    calls = 10_000
    seconds = min(timeit.repeat(lambda: runtime.choose("eager", x), number=calls, repeat=20)) / calls
    assert seconds < 1e-6


def test_choose_refuses_what_it_does_not_know_or_have(monkeypatch):
    x = torch.ones(1)
    with pytest.raises(ValueError, match=r"one of auto, eager, triton, cuda; got 'cutlass'"):
        runtime.choose("cutlass", x)
    assert runtime.choose("auto", x) == runtime.choose("eager", x) == "eager"
    with pytest.raises(RuntimeError, match='backend="cuda" does not run here: '):
        runtime.choose("cuda", x)
    with pytest.raises(RuntimeError, match='backend="cuda" does not run here: '):
        torch.compile(lambda x: runtime.choose("cuda", x) and x, fullgraph=True, backend="eager")(x)


def test_a_backend_that_was_missing_is_found_once_it_is_there(monkeypatch):
    lacking = {"cuda": "nvcc is missing"}
    monkeypatch.setattr(runtime, "why_not", lambda backend, device_type: lacking.get(backend, ""))
    monkeypatch.setattr(runtime, "_choose", runtime.at_trace_time(runtime._choose.__wrapped__))
    with pytest.raises(RuntimeError, match="nvcc is missing"):
        runtime.choose("cuda", torch.ones(1))
    lacking.clear()
    assert runtime.choose("cuda", torch.ones(1)) == "cuda"


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
    stdout, _ = finish(python(f"{code}print(json.dumps(kernels.runtime.why_not('triton', 'cpu')))", **environment))
    assert (json.loads(stdout) == "") == runs


@pytest.mark.parametrize(
    ("visible", "there"), [("0", True), ("1,0", True), ("", False), ("-1,0", False), ("NoDevFiles", False)]
)
def test_gpus_may_be_hidden(visible, there, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(runtime.doctor, "has_nvidia_device", lambda: True)
    assert runtime.has_nvidia_driver() == there


def test_importing_kernels_imports_neither_triton_nor_the_compiler():
    stdout, _ = finish(python("import sys, kernels; print({'triton', 'torch._dynamo'} & {*sys.modules})"))
    assert stdout == "set()"
