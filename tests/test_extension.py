"""kernels.dispatch.build, core: libraries really built by g++ from a small file, or, where only the key counts, not."""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import torch

from kernels import runtime
from kernels.dispatch import allocation, build, core, ops

ROOT = Path(__file__).resolve().parent.parent
WHY_NOT_NVCC = runtime.why_not("nvcc", "cuda") if runtime.device().type == "cuda" else "no CUDA device"
HEADER = "#define FACTOR 3\n"
SOURCE = '#include "factor.h"\nextern "C" int scaled(int x) { return x * FACTOR; }\n'
# Loads the library in a process of its own; prints what its function makes of 5.
LOAD = """
import ctypes, sys
from pathlib import Path
from kernels.dispatch import build
name, folder = sys.argv[1], Path(sys.argv[2])
options = {"include": (folder / "include",), "flags": ("-O0",), "cache": folder / "cache"}
print(ctypes.CDLL(build.load_library(name, folder / "small.cpp", **options)).scaled(5))
"""
# The same for an op's cuda.cu; prints whether the core finds in it what it looks for.
LOAD_OP = """
import ctypes, sys
from pathlib import Path
from kernels.dispatch import build, core
name, build.EXTENSIONS = sys.argv[1], Path(sys.argv[2]) / "cache"
print(hasattr(ctypes.CDLL(core.load_op(name, by_nvcc=True)), "fused_op"))
"""


def write_source(folder, suffix=".cpp"):
    """A function that multiplies by the FACTOR of a header in another folder."""
    (folder / "include").mkdir(exist_ok=True)
    (folder / "include" / "factor.h").write_text(HEADER)
    source = folder / f"small{suffix}"
    source.write_text(SOURCE)
    return source


def load(folder, name, suffix=".cpp", **options):
    include, cache = (folder / "include",), folder / "cache"
    options = {"include": include, "cache": cache, "flags": ("-O0",), **options}
    return build.load_library(name, folder / f"small{suffix}", **options)


def python(code, *arguments, stderr=subprocess.PIPE, **environment):
    """A new Python that runs `code`."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | {name: str(value) for name, value in environment.items()}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=environment)


def finish(process, timeout=300):
    """(stdout, stderr) of a process that must succeed."""
    stdout, stderr = process.communicate(timeout=timeout)
    assert process.returncode == 0, stderr
    return stdout.strip(), stderr


def files(folder, pattern="*"):
    return sorted(path.name for path in (folder / "cache").glob(pattern))


def executable(path, command):
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{command}\n")
    path.chmod(0o755)
    return path


# ------------------------------------------------------------------------------------------------------------- building


def test_two_processes_at_once_build_once_and_a_third_compiles_nothing(tmp_path):
    write_source(tmp_path)
    log, ran = tmp_path / "said", tmp_path / "ran"
    waiting = f"timeout 60 sh -c 'until grep -q Waiting {log}; do sleep 0.1; done'"
    compiler = f'case "$*" in *" -c "*) echo >> {ran}; {waiting};; esac\nexec c++ "$@"'
    with log.open("w") as stderr:
        both = [python(LOAD, "together", tmp_path, stderr=stderr, CXX=executable(tmp_path / "bin" / "g++", compiler))
                for _ in range(2)]
        assert [finish(process)[0] for process in both] == ["15", "15"]
    assert log.read_text().count("Building the extension together") == 1
    assert log.read_text().count("Waiting for another process, which builds together") == 1
    assert log.read_text().count("Built together in ") == 1
    assert len(files(tmp_path, "*.so")) == 1
    assert files(tmp_path, "*.partial") == []
    stdout, stderr = finish(python(LOAD, "together", tmp_path, CXX=tmp_path / "bin" / "g++"))
    assert stdout == "15"
    assert "together" not in stderr
    assert ran.read_text() == "\n"


def test_a_failed_build_shows_the_compilers_line_and_can_be_repaired(tmp_path, monkeypatch):
    source = write_source(tmp_path)
    source.write_text("int broken = ;\n" + SOURCE)
    monkeypatch.setenv("EXTENSION_TEST", "before")
    before = dict(os.environ)
    options = {"flags": ("-O0", "-Wfatal-errors"), "environment": {"EXTENSION_TEST": "during"}}
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
    source.write_text(SOURCE)
    assert ctypes.CDLL(load(tmp_path, "repaired", **options)).scaled(5) == 15


def test_a_compiler_of_several_words_builds(tmp_path, monkeypatch):
    """As a cache of compilations is put before one, in a folder with a space."""
    write_source(tmp_path)
    ran = tmp_path / "ran"
    executable(tmp_path / "my tools" / "ccache", f'echo >> "{ran}"\nexec "$@"')
    monkeypatch.setenv("CXX", f"'{tmp_path}/my tools/ccache' c++ -m64")
    monkeypatch.setattr(runtime, "CACHE", tmp_path / "with a space")
    runtime._compilers_folder.cache_clear()
    assert ctypes.CDLL(load(tmp_path, "worded")).scaled(5) == 15
    assert ran.exists()
    runtime._compilers_folder.cache_clear()


def test_a_cuda_file_can_be_built_as_cpp(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "none"))  # nvcc is not looked for
    source = write_source(tmp_path, ".cu")
    source.write_text("#ifdef __CUDACC__\n#error nvcc\n#endif\n" + SOURCE)
    assert ctypes.CDLL(load(tmp_path, "as_cpp", ".cu", as_cpp=True)).scaled(5) == 15


# -------------------------------------------------------------------------------------------- builds that are cut short


@contextmanager
def mid_build(code, name, folder, compilers):
    """A Python that builds in this folder, once one of these compilers works there; nothing of it outlives this."""
    psutil = pytest.importorskip("psutil")
    process = python(code, name, folder)
    try:
        deadline = time.monotonic() + 300
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
    processes = pytest.importorskip("psutil").process_iter(["name", "cwd"])
    return [process for process in processes if (process.info["cwd"] or "").startswith(str(folder.resolve()))]


def end(process, how):
    """Send a signal to this Python alone, not to its compiler."""
    process.send_signal(how)
    assert process.wait(timeout=300) == -how


def write_long_source(folder):
    """One that takes the compiler long enough to be caught at it."""
    source = write_source(folder)
    source.write_text("#include <torch/library.h>\n" + SOURCE)


@pytest.mark.slow
def test_a_build_that_was_killed_does_not_block_the_next(tmp_path):
    write_long_source(tmp_path)
    with mid_build(LOAD, "killed", tmp_path, {"cc1plus"}) as process:
        end(process, signal.SIGKILL)
        assert workers(tmp_path)
        (left_over,) = (tmp_path / "cache").glob("*.partial")
        assert (left_over / "lock").exists()  # for which load_inline would wait for ever
        (tmp_path / "cache" / "lock").touch()
        stdout, stderr = finish(python(LOAD, "killed", tmp_path))
        assert workers(tmp_path) == []
    assert stdout == "15"
    assert "Built killed in " in stderr
    assert files(tmp_path, "*.partial") == []


@pytest.mark.slow
def test_an_interrupted_build_leaves_no_compiler_running(tmp_path):
    write_long_source(tmp_path)
    with mid_build(LOAD, "interrupted", tmp_path, {"cc1plus"}) as process:
        end(process, signal.SIGINT)
        assert workers(tmp_path) == []
    assert files(tmp_path) == ["interrupted.lock"]


@pytest.mark.slow
@pytest.mark.skipif(bool(WHY_NOT_NVCC), reason=WHY_NOT_NVCC)
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_cuda_build_that_was_ended_does_not_block_the_next(tmp_path, how):
    op = ops()[0]
    with mid_build(LOAD_OP, op, tmp_path, {"cudafe++", "cicc", "ptxas"}) as process:
        end(process, how)
        assert how != signal.SIGINT or workers(tmp_path) == []
        stdout, stderr = finish(python(LOAD_OP, op, tmp_path), timeout=400)
        assert workers(tmp_path) == []
    assert stdout == "True"
    assert f"Built {op} in " in stderr
    assert files(tmp_path, "*.partial") == []


def test_a_forked_process_does_not_keep_the_lock(tmp_path):
    lock = tmp_path / "x.lock"
    with build._locked(lock, "x"):
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
        build._remove(folder)
        assert stubborn.wait() == -signal.SIGKILL
        assert beside.poll() is None
        beside.kill()
    assert not folder.exists()


# -------------------------------------------------------------------------------------------------------------- the key


@pytest.fixture
def built(monkeypatch):
    """The libraries that would have been built: the build itself is left out."""
    libraries = []

    def build_nothing(name, library, *others):
        time.sleep(0.05)
        libraries.append(library)

    monkeypatch.setattr(build, "_build_and_load", build_nothing)
    return libraries


def test_the_key_is_all_that_a_build_depends_on(tmp_path, built, monkeypatch):
    source = write_source(tmp_path)
    header = tmp_path / "include" / "factor.h"
    deeper = tmp_path / "include" / "deeper.h"
    deeper.write_text("")
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


@pytest.mark.parametrize(
    "name",
    ["CXXFLAGS", "CUDAHOSTCXX", "NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "CPATH", "CPLUS_INCLUDE_PATH"],
)
def test_the_key_holds_what_the_environment_tells_the_compilers(tmp_path, built, monkeypatch, name):
    write_source(tmp_path, ".cu")
    monkeypatch.delenv(name, raising=False)
    unset = load(tmp_path, "told", ".cu")
    monkeypatch.setenv(name, "/one")
    one = load(tmp_path, "told", ".cu")
    monkeypatch.setenv(name, "/two")
    assert built == [unset, one, load(tmp_path, "told", ".cu")]
    assert len(set(built)) == 3


def test_the_key_holds_the_compilers(tmp_path, built, monkeypatch):
    write_source(tmp_path)
    write_source(tmp_path, ".cu")

    def keys():
        return load(tmp_path, "x"), load(tmp_path, "x", ".cu"), load(tmp_path, "x", ".cu", as_cpp=True)

    one = executable(tmp_path / "bin" / "g++-1", "exec c++")
    monkeypatch.setenv("CXX", str(one))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    first = keys()
    nvcc = executable(tmp_path / "bin" / "nvcc", "exec true")
    with_nvcc = keys()
    assert [a == b for a, b in zip(first, with_nvcc, strict=True)] == [True, False, True]
    nvcc.write_text("another version")
    nvcc.chmod(0o755)
    with_another = keys()
    assert [a == b for a, b in zip(with_nvcc, with_another, strict=True)] == [True, False, True]
    monkeypatch.setenv("CXX", str(executable(tmp_path / "bin" / "g++-2", "exec c++")))
    with_another_cxx = keys()
    assert not {*with_another} & {*with_another_cxx}
    os.utime(tmp_path / "bin" / "g++-2", (1, 1))  # an update in place
    assert not {*with_another_cxx} & {*keys()}


def test_two_threads_build_once(tmp_path, built):
    write_source(tmp_path)
    threads = [threading.Thread(target=load, args=(tmp_path, "threads")) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(built) == 1


# ------------------------------------------------------------------------------------------------- the core and the ops


def test_load_op_by_nvcc_gives_load_inline_the_file_as_it_is(tmp_path, monkeypatch):
    recorded = {}

    def load_inline(name, **arguments):
        recorded.update(arguments, name=name, architectures=os.environ["TORCH_CUDA_ARCH_LIST"])
        (Path(arguments["build_directory"]) / f"{name}.so").touch()

    capabilities = [(9, 0), (8, 0), (9, 0)]
    monkeypatch.setattr("torch.utils.cpp_extension.load_inline", load_inline)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(capabilities))
    monkeypatch.setattr(torch.cuda, "get_device_capability", capabilities.__getitem__)
    monkeypatch.setattr(core, "KERNELS", tmp_path)
    monkeypatch.setattr(build, "EXTENSIONS", tmp_path / "cache")
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "7.5")
    folder = tmp_path / "ops" / "some_op"
    folder.mkdir(parents=True)
    (folder / "cuda.cu").write_text('#include "kernel.cuh"\n')
    assert not core.op_is_built("some_op", by_nvcc=True)
    library = core.load_op("some_op", by_nvcc=True)
    assert library.parent == tmp_path / "cache"
    assert core.op_is_built("some_op", by_nvcc=True)
    assert recorded["name"] == "some_op"
    assert recorded["cuda_sources"] == '#include "kernel.cuh"\n'
    assert recorded["extra_include_paths"] == [str(folder), str(tmp_path)]
    assert recorded["extra_cuda_cflags"] == ["-O3"]
    assert recorded["architectures"] == "8.0;9.0"
    assert os.environ["TORCH_CUDA_ARCH_LIST"] == "7.5"
    capabilities[:] = [(8, 0)]
    assert not core.op_is_built("some_op", by_nvcc=True)


@pytest.fixture
def no_core(tmp_path, monkeypatch):
    """As a process begins that has an empty cache."""
    monkeypatch.setattr(core, "_core", [])
    monkeypatch.setattr(allocation, "_listeners", [])
    monkeypatch.setattr(build, "_loaded", set())
    monkeypatch.setattr(build, "EXTENSIONS", tmp_path / "cache")


@pytest.mark.usefixtures("no_core")
def test_the_core_needs_a_compiler_and_is_built_once_there_is_one(tmp_path, monkeypatch):
    names = []

    def load_inline(name, **arguments):
        names.append(name)
        (Path(arguments["build_directory"]) / f"{name}.so").touch()

    monkeypatch.setattr("torch.utils.cpp_extension.load_inline", load_inline)
    monkeypatch.setenv("CXX", "/nonexistent")
    for _ in range(2):
        with pytest.raises(RuntimeError) as raised:
            core.load_core()
        assert str(raised.value) == (
            "the extension core cannot be built: the C++ compiler /nonexistent is missing: set CXX to one that is "
            "there, or unset it"
        )
    assert not core.core_is_loaded()
    assert files(tmp_path) == ["core.lock"]
    monkeypatch.delenv("CXX")
    core.load_core()
    core.load_core()
    assert core.core_is_loaded()
    assert names == ["core"]
    assert len(files(tmp_path, "core-*.so")) == 1


def test_what_needs_nvcc_names_it(tmp_path, monkeypatch):
    write_source(tmp_path, ".cu")
    monkeypatch.setattr(runtime, "nvcc", lambda: None)
    with pytest.raises(RuntimeError, match=r"^the extension small cannot be built: nvcc is missing"):
        load(tmp_path, "small", ".cu")


def test_without_its_compiler_a_library_is_loaded_all_the_same(tmp_path, monkeypatch):
    write_source(tmp_path)
    monkeypatch.setenv("CXX", str(executable(tmp_path / "bin" / "g++", 'exec c++ "$@"')))
    built = load(tmp_path, "kept")
    monkeypatch.setattr(build, "_loaded", set())  # as the next process begins
    (tmp_path / "bin" / "g++").unlink()
    assert load(tmp_path, "kept") == built
    assert ctypes.CDLL(built).scaled(5) == 15
    monkeypatch.delenv("CXX")  # another compiler builds its own
    assert load(tmp_path, "kept") != built
    monkeypatch.setenv("CXX", "/nonexistent")
    (tmp_path / "include" / "factor.h").write_text("#define FACTOR 4\n")  # of which there is no build
    with pytest.raises(RuntimeError, match=r"^the extension kept cannot be built: the C\+\+ compiler /none"):
        load(tmp_path, "kept")


def test_on_host_ends_with_its_block():
    with suppress(KeyError), core.on_host():
        with core.on_host():
            pass
        assert core.runs_on_host()
        raise KeyError
    assert not core.runs_on_host()
