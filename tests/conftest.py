"""Shared by all tests: real rows where $CRITEO_TSV names them, and a count of what was skipped."""

from __future__ import annotations

import fcntl
import gc
import logging
import os
import shutil
import signal
import sys
from collections import Counter
from pathlib import Path

import missing_packages
import pytest

pytest.register_assert_rewrite("train_runs", "exported_models")

# Test processes run beside each other on few cores: processes of Inductor's own would cost their start and no more.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
# jsonschema, which nbformat imports, has it for addresses in JSON: it compiles a grammar for seconds.
sys.modules.setdefault("rfc3987_syntax", None)
# A shell's background jobs ignore Ctrl-C, and would hand that on to the processes that the tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config):
    if not missing_packages.are_all_installed():
        config.pluginmanager.register(missing_packages)


def pytest_collection():
    gc.disable()


def pytest_collection_finish():
    """What all tests share is not searched for garbage again and again."""
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)
    gc.enable()
    # pytest hands its handlers to loggers that do not propagate, and where this one has a handler, torch.compile writes
    # each of its steps down for it.
    logging.getLogger("torch.__trace").addHandler = lambda handler: None
    _no_guard_times()


def pytest_runtest_setup():
    if "triton.runtime.interpreter" in sys.modules:
        from kernels.check import faster

        faster.install()
    _no_guard_times()


def _no_guard_times():
    """At each compilation torch would tell a log how long its guards take, and empties the processor's caches first:
    half of the time that a small graph takes."""
    if guards := sys.modules.get("torch._dynamo.guards"):
        guards.profile_guard_manager = lambda *_: 0.0


@pytest.fixture(scope="session")
def criteo_tsv() -> Path:
    """The first 7,200 rows of the Kaggle training file, in its raw format."""
    if not os.environ.get("CRITEO_TSV"):
        pytest.skip("CRITEO_TSV is not set: it names real rows in Kaggle's raw format")
    return Path(os.environ["CRITEO_TSV"])


@pytest.fixture(scope="session")
def built_once(tmp_path_factory):
    """built_once(name, build): the path that build(path) wrote. The first process that asks builds it, and the others
    wait; if that fails, the next one tries. xdist's workers share it, and so do pytest's processes of `make gpu`, which
    find the folder in the environment (kernels.gpu_run.steps.BUILT)."""
    base = tmp_path_factory.getbasetemp()
    default = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    shared = Path(os.environ.get("FUSED_KERNELS_BUILT", default))
    shared.mkdir(exist_ok=True)

    def built(name, build):
        path, done = shared / name, shared / f"{name}.done"
        with (shared / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not done.exists():
                shutil.rmtree(path, ignore_errors=True)
                build(path)
                done.touch()
        return path

    return built


@pytest.fixture(scope="session", params=["none", "sum"])
def exported_folder(request, built_once) -> Path:
    """exported_models.trained(), exported with this pooling. Not to be changed."""
    import exported_models

    return built_once(request.param, lambda path: exported_models.write(path, request.param))


@pytest.fixture(scope="session", params=["none", "sum"])
def exported_for_gpu(request, built_once) -> Path:
    """The same for the GPU that is here."""
    import exported_models

    return built_once(f"{request.param}-gpu", lambda path: exported_models.write(path, request.param, "cuda"))


@pytest.fixture(scope="session")
def serving_programs(built_once) -> Path:
    """The folder of run_exported and, if its libraries are here, serve_exported."""
    import exported_models

    built_once("serving", lambda path: exported_models.build())
    return exported_models.PROGRAMS


@pytest.fixture
def one_thread():
    """For tiny operations: sharing them among threads costs more than it saves."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def as_on_gpu(monkeypatch):
    """backend="fused_kernels" replaces what it does on a GPU, and the ops' eager forms run. So does fused_mlp in full
    float32, which the tests compute in, though on a GPU it would be left alone."""
    from kernels.compiler import as_on_gpu
    from kernels.ops.fused_mlp import choice

    monkeypatch.setattr(choice, "is_full_float32", lambda *_: False)
    with as_on_gpu():
        yield


def pytest_terminal_summary(terminalreporter):
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in terminalreporter.getreports("skipped"))
    for reason, count in reasons.items():
        tests = ("GPU " if "CUDA device" in reason else "") + ("test" if count == 1 else "tests")
        terminalreporter.write_line(f"{count} {tests} skipped: {reason}")
