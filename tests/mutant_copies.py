"""Runs of an op's tests in copies of kernels/, for mutate.py."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

SECONDS = 900  # for a build, for number 0, and at least for what waits and takes no time of the processor
SPARE_SECONDS = 30  # of the processor, beside three times what number 0 takes
# Tests of torch's view of an op, and of other backends, do not go by what stands in a kernel.
TORCH_TESTS = "eager or opcheck or compile or exported or autocast or wrong_input"
# What says most comes first; an address is another one in each run.
FAILURE = [
    re.compile(pattern, re.M)
    for pattern in (r".*\bFAIL: .*", r"(?<=^SUMMARY: )(?:Address|Thread)Sanitizer: .*", r".*runtime error: .*",
                    r"^E  .*|.*(?:ERROR: |cuda_on_host: ).*")
]


class Broken(Exception):
    """What stands in the way of a result."""


class Processes:
    """Commands that run, of several threads; stop() ends them all."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen] = set()
        self._lock, self._stopped = threading.Lock(), False

    def run(self, command: list, seconds: float, cpu_seconds: float = 0, **options) -> tuple[int | None, str]:
        """(exit status, or None if it was ended for its time, and all that it printed).

        `cpu_seconds` are a process's own, however busy the machine is; 0: any. A row that fails ends a run.
        """
        words = [str(word) for word in command]
        if cpu_seconds:
            words = ["sh", "-c", f'ulimit -S -t {math.ceil(cpu_seconds)}; exec "$@"', "sh", *words]
        options |= dict(stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        process = self.started(words, **options)
        too_long = threading.Event()

        def is_too_long() -> None:
            if process.poll() is None:
                too_long.set()
            self._end(process)

        timer = threading.Timer(seconds, is_too_long)
        timer.start()
        printed = []
        try:
            for line in process.stdout:
                printed.append(line)
                if "  FAIL: " in line:
                    self._end(process)
            status = process.wait()
        finally:
            timer.cancel()
            with self._lock:
                self._running.discard(process)
        if self._stopped:
            raise Broken("stopped")
        return None if too_long.is_set() or status == -signal.SIGXCPU else status, "".join(printed)

    def started(self, words: list, **options) -> subprocess.Popen:
        """A process that stop() ends."""
        with self._lock:
            if self._stopped:
                raise Broken("stopped")
            process = subprocess.Popen(words, text=True, errors="replace", start_new_session=True, **options)
            self._running.add(process)
            return process

    @staticmethod
    def _end(process: subprocess.Popen) -> None:
        """With its children, which may outlive it and hold its output open."""
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            for process in self._running:
                self._end(process)


@dataclass
class Stage:
    """One run of an op's tests in a copy of kernels/."""

    name: str
    command: list
    build: list = field(default_factory=list)
    environment: dict = field(default_factory=dict)
    forks: bool = False  # whether it is a pytest, whose runs are forks of one process
    forks_of: dict[Path, Forks] = field(default_factory=dict)
    there: bool = True  # whether there are such tests
    seconds: float = 0  # of number 0
    reached: set[int] = field(default_factory=set)  # the mutants that number 0 comes to

    def leave(self, copy: Path) -> None:
        """End what runs in this copy."""
        if copy in self.forks_of:
            self.forks_of.pop(copy).end()


class Forks:
    """Runs of a stage in one copy, each a fork of a pytest that has imported and collected once (mutant_forks.py)."""

    def __init__(self, processes: Processes, stage: Stage, copy: Path, environment: dict) -> None:
        paths = os.pathsep.join((environment["PYTHONPATH"], str(Path(__file__).parent)))
        self._process = processes.started(
            [*stage.command, "-s", "-p", "mutant_forks"], cwd=copy, env=environment | {"PYTHONPATH": paths},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )
        self._answers = copy / f"{stage.name.replace(' ', '_')}.txt"

    def run(self, variables: dict, seconds: float, cpu_seconds: float) -> tuple[int | None, str]:
        """As Processes.run. pytest's own exit status, where it found no test to run."""
        before = []
        with suppress(BrokenPipeError):
            job = json.dumps([variables, math.ceil(seconds), math.ceil(cpu_seconds), str(self._answers)])
            self._process.stdin.write(job + "\n")
            self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("ended: "):
                status = int(line.removeprefix("ended: "))
                late = status in (-signal.SIGALRM, -signal.SIGXCPU)
                return None if late else status, self._answers.read_text(errors="replace")
            before.append(line)
        return self._process.wait(), "".join(before)

    def end(self) -> None:
        self._process.stdin.close()
        self._process.wait()


class Copies:
    """Copies of kernels/ in a temporary folder."""

    def __init__(self, folder: Path, root: Path) -> None:
        self._folder, self._root, self.processes = folder, root, Processes()
        (folder / "extensions").mkdir(parents=True)
        for core in (root / "build" / "extensions").glob("core-*.so"):  # named by all that they are built from
            (folder / "extensions" / core.name).symlink_to(core)

    def new(self, name: str) -> Path:
        copy = self._folder / name
        shutil.copytree(self._root / "kernels", copy / "kernels", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(self._root / "pyproject.toml", copy)
        shutil.copy(self._root / "tests" / "mutants.h", copy / "kernels" / "check" / "host")
        header = copy / "kernels" / "check" / "host" / "cuda_on_host.h"
        header.write_text('#include "check/host/mutants.h"\n' + header.read_text())
        if (records := self._root / "traces").exists():  # which an op's page is held to
            (copy / "traces").symlink_to(records)
        (copy / "build").mkdir()
        (copy / "build" / "extensions").symlink_to(self._folder / "extensions")
        return copy

    def run(self, stage: Stage, copy: Path, number: int) -> tuple[int | None, str]:
        """(exit status, output) of the copy's tests as this mutant."""
        variables = {"MUTANT": str(number)}
        limits = (max(SECONDS, 20 * stage.seconds), SPARE_SECONDS + 3 * stage.seconds) if number else (SECONDS, 0)
        file = copy / "reached"
        if not number:
            variables["MUTANTS_REACHED"] = str(file)
            file.write_bytes(b"")
        environment = {**os.environ, **stage.environment, "PYTHONPATH": str(copy)}
        start = time.monotonic()
        if stage.forks:
            forks = stage.forks_of.get(copy)
            if forks is None:
                forks = stage.forks_of[copy] = Forks(self.processes, stage, copy, environment)
            status, printed = forks.run(variables, *limits)
        else:
            status, printed = self.processes.run(stage.command, *limits, cwd=copy, env=environment | variables)
        if not number:
            stage.seconds = time.monotonic() - start
            stage.reached = set(memoryview(file.read_bytes()).cast("i"))
        return status, printed.replace(f"{copy}/", "")

    def compile(self, command: list, copy: Path) -> str:
        """What the compiler says against it; "" if nothing."""
        status, output = self.processes.run(command, SECONDS, cwd=copy)
        return "" if status == 0 else output or f"exit status {status}"

    def unchanged(self, stage: Stage, copy: Path) -> None:
        """Build, and run as number 0, which must pass."""
        if stage.build and (errors := self.compile(stage.build, copy)):
            raise Broken(f"{stage.name} does not compile:\n{errors[:2000]}")
        status, printed = self.run(stage, copy, 0)
        stage.there = status != 5  # pytest's word for "no tests"
        if stage.there and status != 0:
            raise Broken(f"{stage.name} fails without any mutant:\n{said_by(status, printed, stage)}")


def said_by(status: int | None, printed: str, stage: Stage) -> str:
    if status is None:
        return f"a time limit: {stage.seconds:.0f} s without it"
    first = next(filter(None, (pattern.search(printed) for pattern in FAILURE)), None)
    test = re.search(r"^(?:FAILED|ERROR) \S*::(\S+)", printed, re.M)
    message = " ".join(first[0].split()) if first else f"exit status {status}"
    return f"{test[1] + ': ' if test else ''}{message}"[:300]


def pytest_stage(op: str, slow: bool, without: str) -> Stage:
    marker = "slow" if slow else "not slow"
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", f"kernels/ops/{op}"]
    return Stage(
        "slow pytest" if slow else "pytest", [*command, "-m", marker, "-k", f"not ({without} or {TORCH_TESTS})"],
        environment={"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONDONTWRITEBYTECODE": "1"}, forks=True,
    )
