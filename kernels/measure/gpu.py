"""Everything that takes a GPU, in ten minutes: `make gpu`. Logs go to build/gpu/.

pytest      the whole test suite, in several processes; tests marked `heavy`, which take much memory, by themselves
ctest       the CMake tests
sanitizer   compute-sanitizer, where it is: the CMake tests' binaries, and the tests marked `sanitizer`
bench       python -m kernels.measure bench --save

pytest runs beside ctest and the sanitizer, the benchmarks run last and alone. Each step runs whatever came of those
before it; a missing package is a skip with its name. The test counts of each op go to traces/results/<gpu>/tests.json,
and the tables of the READMEs are written anew.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from kernels import runtime
from kernels.measure import sources, status, suite

ROOT = sources.KERNELS.parent
LOGS = ROOT / "build" / "gpu"
# The seconds that each step may take; one that takes more is not failed, but said.
BUDGET = {"pytest": 240, "ctest": 120, "sanitizer": 150, "bench": 180}
STEPS = tuple(BUDGET)
COMMAND_SECONDS = 900  # a command that hangs is ended after this
TOOLS = ("memcheck", "racecheck", "initcheck")
PROCESS_BYTES = 12 * 2**30  # of the GPU's memory, for each process that tests
_running: set[subprocess.Popen] = set()
_stopped = threading.Event()


@dataclass
class Outcome:
    """What came of a command: its counts in words, what failed, what was skipped and why."""

    name: str
    counts: str = ""
    failed: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    seconds: float = 0.0
    code: int | str = 0

    def __str__(self) -> str:
        state = "FAILED" if self.failed else "skipped" if self.skipped and not self.counts else "ok"
        lines = [f"{self.name:<36} {state:<8} {self.seconds:5.0f} s  {self.counts}"]
        lines += [f"    failed   {line}" for line in self.failed]
        return "\n".join(lines + [f"    skipped  {line}" for line in self.skipped])


def command(name: str, arguments: Iterable[str | Path], **environment: str) -> tuple[Outcome, str]:
    """Run a command, its output into build/gpu/<name>.log; returns (outcome, output). Failed unless it exits with 0."""
    outcome, start = Outcome(name), time.monotonic()
    if _stopped.is_set():
        raise RuntimeError("make gpu was interrupted")
    log = LOGS / f"{name.replace(' ', '-')}.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*map(str, arguments)],
            cwd=ROOT,
            stdout=file,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=os.environ | environment,
            start_new_session=True,
        )
        _running.add(process)
        try:
            outcome.code = process.wait(COMMAND_SECONDS)
        except subprocess.TimeoutExpired:
            outcome.code = f"none: ended after {COMMAND_SECONDS} s"
        finally:
            _end(process)
    outcome.seconds = time.monotonic() - start
    output = log.read_text(errors="replace")
    if outcome.code:
        last = " | ".join(output.splitlines()[-3:])[:300]
        outcome.failed.append(f"exit status {outcome.code}; the log ends: {last}")
    print(f"{name:<36} {outcome.seconds:5.0f} s  exit status {outcome.code}  {log.relative_to(ROOT)}", flush=True)
    return outcome, output


def _end(process: subprocess.Popen) -> None:
    """End a process that we started, and what it started in its turn."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    _running.discard(process)


def cores() -> int:
    """The CPU cores that this process may use."""
    return len(os.sched_getaffinity(0))


def processes() -> int:
    """How many processes test at a time: each has two cores and PROCESS_BYTES of the GPU's memory."""
    import torch

    memory = torch.cuda.get_device_properties(runtime.device()).total_memory
    return max(1, min(cores() // 2, memory // PROCESS_BYTES))


def at_once(jobs: list[Callable[[], Outcome]], count: int) -> list[Outcome]:
    """The outcomes of the jobs, `count` of them at a time."""
    with ThreadPoolExecutor(max(1, count)) as pool:
        return [future.result() for future in [pool.submit(job) for job in jobs]]


# ------------------------------------------------------------------------------------------------------------------
# The steps.


def run_pytest(tests: Iterable[str] = ()) -> list[Outcome]:
    """All tests but the heavy ones in several processes, a file in one of them; then the heavy ones, one by one.

    tests: only these, and nothing is recorded.
    """
    count = processes()
    # Else each process starts as many threads, and as many compilers, as there are cores.
    threads = {"OMP_NUM_THREADS": str(max(1, cores() // count)), "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    several, skipped = [], []
    if count > 1 and importlib.util.find_spec("xdist") is None:
        skipped.append("running in several processes: the package pytest-xdist is missing")
    elif count > 1:
        several = ["-n", str(count), "--dist", "loadfile"]
    outcomes, reports = [], []
    for name, options in (("pytest", ["-m", "not heavy", *several]), ("pytest heavy", ["-m", "heavy"])):
        report = LOGS / f"{name.replace(' ', '-')}.xml"
        report.unlink(missing_ok=True)
        options += ["-q", "--continue-on-collection-errors", f"--junitxml={report}"]
        outcome, _ = command(name, [sys.executable, "-m", "pytest", *options, *tests], **threads)
        outcomes.append(outcome)
        if not report.exists():
            outcome.failed.append("pytest wrote no report")
            continue
        reports.append(report)
        found = suite.read([report])
        outcome.counts = ", ".join(f"{number} {word}" for word, number in found.counts().items())
        # Of what a missing package kept from running, pytest makes exit status 1; 5 is that of no test.
        explained = outcome.code == 5 or (outcome.code == 1 and found.skipped())
        outcome.failed = found.failed() or ([] if explained else outcome.failed)
        outcome.skipped = found.skipped() if name == "pytest" else [
            line for line in found.skipped() if line not in found.not_collected
        ]  # fmt: skip
    outcomes[0].skipped += skipped
    if tests:
        return outcomes
    everything = suite.read(reports)
    for op in sources.ops():
        if not everything.counts(op)["passed"]:
            outcomes[0].failed.append(f"no test of {op} passed")
        elif everything.without_gpu(op):
            outcomes[0].failed.append(f"the tests of {op} found no GPU")
    print(*suite.record(everything), sep="\n", flush=True)
    return outcomes


def run_ctest() -> list[Outcome]:
    """Build the CMake tests and run them, half of the cores' number at a time."""
    if missing := [tool for tool in ("cmake", "ctest", "ninja") if shutil.which(tool) is None]:
        return [Outcome("ctest", skipped=[f"not on PATH: {', '.join(missing)}; pip install cmake ninja"])]
    folder, many = "build/cmake", str(max(2, cores() // 2))
    outcomes = []
    for name, arguments in (
        ("cmake configure", ["cmake", "-S", "kernels", "-B", folder, "-G", "Ninja"]),
        ("cmake build", ["cmake", "--build", folder, "--parallel", many]),
    ):
        outcome, _ = command(name, arguments)
        outcome.counts = "built" if name.endswith("build") and not outcome.failed else ""
        outcomes.append(outcome)
        if outcome.failed:
            return outcomes
    outcome, output = command("ctest", ["ctest", "--test-dir", folder, "--parallel", many, "--output-on-failure"])
    totals = re.findall(r"tests passed(?:, (\d+) tests? failed)? out of (\d+)", output)
    skipped = re.findall(r"Test +#\d+: (\S+) \.*\*\*\*Skipped", output)
    if totals:
        failed, total = (sum(int(count or 0) for count in column) for column in zip(*totals, strict=True))
        counts = {"passed": total - failed - len(skipped), "failed": failed, "skipped": len(skipped)}
        outcome.counts = ", ".join(f"{count} {word}" for word, count in counts.items())
    elif not outcome.failed:
        outcome.failed.append("ctest printed no result")
    outcome.failed += re.findall(r"Test +#\d+: (\S+) \.*\*\*\*(?:Failed|Timeout|Exception).*", output)
    outcome.skipped = skipped
    return [*outcomes, outcome]


def compute_sanitizer() -> str | None:
    """compute-sanitizer: on PATH, or beside nvcc."""
    beside = str(nvcc.parent) if (nvcc := runtime.nvcc()) else ""
    return shutil.which("compute-sanitizer", path=os.pathsep.join((os.environ.get("PATH", os.defpath), beside)))


def run_sanitizer() -> list[Outcome]:
    """Every tool on every binary of the CMake tests, and memcheck on each op's tests marked `sanitizer`."""
    sanitizer = compute_sanitizer()
    if sanitizer is None:
        return [Outcome("sanitizer", skipped=["compute-sanitizer is not installed; it comes with the CUDA toolkit"])]
    found = (ROOT / "build" / "cmake").glob("*_test")
    binaries = sorted(path for path in found if os.access(path, os.X_OK) and not path.name.startswith("broken_"))

    def job(tool: str, name: str, arguments: list[str | Path], *options: str) -> Callable[[], Outcome]:
        return lambda: _sanitize(sanitizer, tool, name, arguments, options)

    jobs = []
    for op in sources.ops():
        tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "sanitizer", f"kernels/ops/{op}"]
        # PyTorch asks the driver for things that some do not have, on purpose: those errors are not the kernels'.
        jobs.append(job("memcheck", f"pytest {op}", tests, "--report-api-errors", "no"))
    jobs += [job(tool, binary.name, [binary, "--quick"]) for binary in binaries for tool in TOOLS]
    outcomes = at_once(jobs, processes())
    if not binaries:
        outcomes.append(Outcome("sanitizer", failed=["no binaries in build/cmake: ctest comes first"]))
    return outcomes


def _sanitize(sanitizer: str, tool: str, name: str, arguments: list[str | Path], options: tuple[str, ...]) -> Outcome:
    # Without PyTorch's cache each tensor is an allocation of its own, so that an access beyond its end shows.
    outcome, output = command(
        f"{tool} {name}",
        [sanitizer, "--tool", tool, "--error-exitcode", "86", *options, *arguments],
        PYTORCH_NO_CUDA_MEMORY_CACHING="1",
    )
    found = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: (.*)", output)
    passed = re.findall(r"^\d+ passed.*", output, re.MULTILINE)
    outcome.counts = "; ".join(found + passed)
    if outcome.code == 5 and not re.search("[1-9][0-9]* error", outcome.counts):  # pytest's, of no test
        outcome.counts, outcome.failed, outcome.skipped = "", [], ["none of its tests is marked `sanitizer`"]
    elif not found:
        outcome.failed.append("compute-sanitizer printed no summary")
    return outcome


def run_bench() -> list[Outcome]:
    outcome, output = command("bench", [sys.executable, "-m", "kernels.measure", "bench", "--save"])
    print(output, flush=True)
    missed = len(re.findall(r"^\w+ [\w -]+: MISSED", output, re.MULTILINE))
    met = len(re.findall(r"^\w+ [\w -]+: met", output, re.MULTILINE))
    outcome.counts = f"{met} targets met, {missed} missed"
    return [outcome]


# ------------------------------------------------------------------------------------------------------------------


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make gpu", description=__doc__.partition("\n")[0])
    parser.add_argument("--only", metavar="STEP,…", default=",".join(STEPS), help=f"of {', '.join(STEPS)}")
    parser.add_argument("--tests", metavar="PATH", nargs="+", default=(), help="what pytest runs (default: every test)")
    arguments = parser.parse_args(argv)
    chosen = arguments.only.split(",")
    if unknown := [step for step in chosen if step not in STEPS]:
        parser.error(f"unknown step {', '.join(unknown)}: expected some of {', '.join(STEPS)}")
    if runtime.device().type != "cuda":
        print("make gpu needs an NVIDIA GPU that this torch can use: there is none (make doctor)", file=sys.stderr)
        return 2
    LOGS.mkdir(parents=True, exist_ok=True)
    steps = {
        "pytest": lambda: run_pytest(arguments.tests),
        "ctest": run_ctest,
        "sanitizer": run_sanitizer,
        "bench": run_bench,
    }
    outcomes, seconds, start = {}, {}, time.monotonic()

    def run(*names: str) -> None:
        for name in names:
            if name in chosen:
                before = time.monotonic()
                try:
                    outcomes[name] = steps[name]()
                except Exception as error:
                    outcomes[name] = [Outcome(name, failed=[f"{type(error).__name__}: {error}"])]
                seconds[name] = time.monotonic() - before

    with ThreadPoolExecutor(2) as pool:
        try:
            for future in [pool.submit(run, "pytest"), pool.submit(run, "ctest", "sanitizer")]:
                future.result()
        except BaseException:  # Ctrl-C: the commands are no children of the terminal, and go on without us
            _stopped.set()
            for process in list(_running):
                _end(process)
            raise
    run("bench")
    status.write()
    found = [outcome for step in STEPS for outcome in outcomes.get(step, ())]
    taken = "; ".join(
        f"{step} {seconds[step]:.0f} s{f' (more than {BUDGET[step]})' if seconds[step] > BUDGET[step] else ''}"
        for step in STEPS if step in seconds
    )  # fmt: skip
    print("\nmake gpu:", *found, "", f"{taken}; in all {time.monotonic() - start:.0f} s", "", status.table(), sep="\n")
    return int(any(outcome.failed for outcome in found))
