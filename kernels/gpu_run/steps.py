"""Everything that takes a GPU, in fifteen minutes: `make gpu`. Logs go to build/gpu/.

pytest      the test suite in several processes, but for the heavy tests, those that the sanitizer runs, and those that
            ask nothing of a GPU
build       the CMake tests, beside pytest
ctest       the CMake tests, beside pytest and the sanitizer
sanitizer   compute-sanitizer, where it is: the CMake tests' binaries, and the tests marked `sanitizer`
heavy       the tests marked `heavy`, which take most of the GPU's memory, or read how much of it is taken: nothing else
            runs beside them
record      each op's counts of tests, into traces/results/<gpu>/tests.json, if every test was run
bench       python -m kernels.measure bench --quick, alone: a few cells an op, and none is recorded

Each step runs whatever came of those before it. A command that does not end within its limit is ended, and has failed;
nothing of it is recorded. A missing package is a skip with its name. The tables of kernels/README.md are written anew.

The processes share what is compiled: PyTorch's, Triton's and our own caches each take a file whole or not at all.
What tests of several of them use, as an exported model, the first one builds for all, in a folder of this run.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

from .. import runtime
from ..measure import sources, status
from . import commands, results, sanitizer, which_tests
from .commands import Outcome, command, cores

STEPS = ("pytest", "build", "ctest", "sanitizer", "heavy", "record", "bench")
# The seconds that one command of a step may take on a machine of LIMITS_CORES cores; with fewer, as many times more.
LIMITS = {"pytest": 600, "build": 300, "ctest": 420, "sanitizer": 240, "heavy": 300, "bench": 420}
LIMITS_CORES = 16
BUILT = "FUSED_KERNELS_BUILT"  # tells tests/conftest.py where they build what they share
PROCESS_BYTES = 6 * 2**30  # of the GPU's memory, for each process that tests


def limit(step: str) -> float:
    """The seconds that one command of the step may take on this machine."""
    few = _most_processes() / processes() if step == "pytest" else 1
    return LIMITS[step] * max(1, LIMITS_CORES / cores()) * few


def processes() -> int:
    """How many pytest processes run at a time: on three quarters of the cores, each with PROCESS_BYTES of the GPU's.

    They wait for the GPU and for one another's builds, and what runs beside them ends before they do.
    """
    import torch

    memory = torch.cuda.get_device_properties(runtime.device()).total_memory
    return max(1, min(_most_processes(), memory // PROCESS_BYTES))


def _most_processes() -> int:
    return max(1, cores() * 3 // 4)


def beside_pytest() -> tuple[int, int]:
    """(tests of ctest, commands of the sanitizer) that run at a time beside pytest.

    More than the other cores: ctest runs the host's tests first, and then the GPU's one by one.
    """
    return max(2, cores() // 4), max(1, min(processes(), cores() // 2 - 2))


# ------------------------------------------------------------------------------------------------------------------
# The steps.


def run_pytest(tests: Iterable[str] = (), sanitized: bool = False) -> list[Outcome]:
    """All tests but the heavy ones, or of these those in `tests`: each process takes a part whenever it has time.

    sanitized: whether the tests marked `sanitizer` run beside, under its eyes.
    """
    count = processes()
    folder = commands.LOGS / "parts"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    options = ["-p", which_tests.__name__, "-m", f"not heavy{' and not sanitizer' * sanitized}", *tests]
    # Else each process starts as many threads, and as many compilers, as there are cores.
    alone = {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1", which_tests.PARTS: str(folder)}

    def job(number: int) -> Callable[[], Outcome]:
        return lambda: _pytest(f"pytest {number} of {count}", options, limit("pytest"), **alone)

    return _together("pytest", commands.at_once([job(number) for number in range(1, count + 1)], count))


def run_heavy(tests: Iterable[str] = ()) -> list[Outcome]:
    """The tests that take most of the GPU's memory, or read how much is taken, one by one."""
    return _together("heavy", [_pytest("pytest heavy", ["-m", "heavy", *tests], limit("heavy"))])


def _report(name: str) -> Path:
    """Where pytest, as a command of this name, writes what came of each test."""
    return commands.LOGS / f"{name.replace(' ', '-')}.xml"


def _built() -> Path:
    """The folder of what the tests of this run build once: another run's children may still write into theirs."""
    return commands.LOGS / f"built-{os.getpid()}"


def _pytest(name: str, options: list[str], seconds: float, **environment: str) -> Outcome:
    report = _report(name)
    report.unlink(missing_ok=True)
    options = ["-q", "-p", "no:cacheprovider", "--continue-on-collection-errors", f"--junitxml={report}", *options]
    options += ["-o", f"faulthandler_timeout={0.4 * seconds:.0f}"]  # the log then says where a test stands still
    environment |= {BUILT: str(_built())}
    outcome, _ = command(name, [sys.executable, "-m", "pytest", *options], seconds, **environment)
    if outcome.ended and report.exists():
        own = results.read([report])
        # Exit status 1 is for tests that failed; 5 is for no test at all.
        if outcome.code == 5 or (outcome.code == 1 and own.failed()):
            outcome.failed = []
    else:
        report.unlink(missing_ok=True)
        outcome.failed.append("pytest wrote no report: its tests count as not run")
    return outcome


def _together(name: str, outcomes: list[Outcome]) -> list[Outcome]:
    """One Outcome of pytest processes that share tests: the counts and reasons of all their reports."""
    everything = results.read(filter(Path.exists, (_report(outcome.name) for outcome in outcomes)))
    return [Outcome(
        name,
        counts=", ".join(f"{number} {word}" for word, number in everything.counts().items()),
        failed=[f"{outcome.name}: {line}" for outcome in outcomes for line in outcome.failed] + everything.failed(),
        skipped=everything.skipped(),
        seconds=max(outcome.seconds for outcome in outcomes),
        ended=all(_report(outcome.name).exists() for outcome in outcomes),
    )]


def run_record(outcomes: Iterable[Outcome]) -> list[Outcome]:
    """Write each op's counts of tests into tests.json, if all of pytest's processes ended. outcomes: theirs."""
    recorded = Outcome("record")
    if not all(outcome.ended for outcome in outcomes):
        recorded.skipped = ["a pytest process did not end: nothing is recorded"]
        return [recorded]
    everything = results.read(commands.LOGS.glob("pytest-*.xml"))
    for op in sources.ops():
        if not everything.counts(op)["passed"]:
            recorded.failed.append(f"no test of {op} passed")
        elif everything.without_gpu(op):
            recorded.failed.append(f"the tests of {op} found no GPU")
    kept = results.record(everything)
    recorded.counts = "; ".join(["recorded", *kept])
    return [recorded]


def run_build() -> list[Outcome]:
    """Build the CMake tests, on half of the cores."""
    if missing := [tool for tool in ("cmake", "ctest", "ninja") if shutil.which(tool) is None]:
        return [Outcome("build", skipped=[f"not on PATH: {', '.join(missing)}; pip install cmake ninja"])]
    folder, many = "build/cmake", str(max(2, cores() // 2))
    outcomes = []
    for name, arguments in (
        ("cmake configure", ["cmake", "-S", "kernels", "-B", folder, "-G", "Ninja"]),
        ("cmake build", ["cmake", "--build", folder, "--parallel", many]),
    ):
        outcome, _ = command(name, arguments, limit("build"))
        outcomes.append(outcome)
        if outcome.failed:
            return outcomes
    outcomes[-1].counts = "built"
    return outcomes


def run_ctest() -> list[Outcome]:
    """Run the CMake tests."""
    if shutil.which("ctest") is None:
        return [Outcome("ctest", skipped=["not on PATH: ctest; pip install cmake"])]
    arguments = ["ctest", "--test-dir", "build/cmake", "--parallel", str(beside_pytest()[0]), "--output-on-failure"]
    outcome, output = command("ctest", arguments, limit("ctest"))
    totals = re.findall(r"tests passed(?:, (\d+) tests? failed)? out of (\d+)", output)
    skipped = re.findall(r"Test +#\d+: (\S+) \.*\*\*\*Skipped", output)
    if totals:
        failed, total = (sum(int(count or 0) for count in column) for column in zip(*totals, strict=True))
        counts = {"passed": total - failed - len(skipped), "failed": failed, "skipped": len(skipped)}
        outcome.counts = ", ".join(f"{count} {word}" for word, count in counts.items())
    elif not outcome.failed:
        outcome.failed.append("ctest printed no result")
    outcome.failed += re.findall(r"Test +#\d+: (\S+) \.*\*\*\*(?:Failed|Timeout|Exception|Not Run).*", output)
    outcome.skipped = skipped
    return [outcome]


def run_sanitizer() -> list[Outcome]:
    return sanitizer.run(beside_pytest()[1], limit("sanitizer"))


def run_bench() -> list[Outcome]:
    """A few cells of each op's benchmark: whether all match, and stand to their peers as they should. `make bench`
    measures all cells and records them; compiling by max-autotune alone takes it minutes."""
    options = ["--quick", "--without", "max-autotune"]
    outcome, output = command("bench", [sys.executable, "-m", "kernels.measure", "bench", *options], limit("bench"))
    print(output, flush=True)
    missed = len(re.findall(r"^\w+ [\w -]+: MISSED", output, re.MULTILINE))
    met = len(re.findall(r"^\w+ [\w -]+: met", output, re.MULTILINE))
    outcome.counts = f"{met} targets met, {missed} missed"
    return [outcome]


# ------------------------------------------------------------------------------------------------------------------


class Run:
    """The chosen steps: what came of each, and its seconds."""

    def __init__(self, steps: Iterable[str]) -> None:
        self.steps = steps
        self.outcomes: dict[str, list[Outcome]] = {}
        self.seconds: dict[str, float] = {}

    def step(self, name: str, run: Callable[[], list[Outcome]]) -> None:
        if name not in self.steps:
            return
        start = time.monotonic()
        try:
            self.outcomes[name] = run()
        except Exception as error:
            self.outcomes[name] = [Outcome(name, failed=[f"{type(error).__name__}: {error}"], ended=False)]
        self.seconds[name] = time.monotonic() - start
        print(f"== {name}: {self.seconds[name]:.0f} s", flush=True)

    def failed(self) -> bool:
        return any(outcome.failed for outcomes in self.outcomes.values() for outcome in outcomes)


def _wait_for(*lanes: Future) -> None:
    """What starts commands runs in threads: Ctrl-C comes to this one, which can then end them all."""
    for lane in lanes:
        while wait([lane], timeout=1).not_done:
            pass  # a signal that comes just before a wait does not end it: Python sees it after the wait
        lane.result()


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
    commands.LOGS.mkdir(parents=True, exist_ok=True)
    for report in commands.LOGS.glob("pytest-*.xml"):
        report.unlink()
    shutil.rmtree(_built(), ignore_errors=True)  # of a run whose number this one has got
    run, start = Run(chosen), time.monotonic()
    with ThreadPoolExecutor(3) as pool:

        def cmake() -> None:
            run.step("build", run_build)
            if any(outcome.failed for outcome in run.outcomes.get("build", ())):
                return  # what was not built fails no second time
            ctest = pool.submit(run.step, "ctest", run_ctest)
            run.step("sanitizer", run_sanitizer)
            ctest.result()

        # Its own step runs the marked tests of every op, whatever --tests names.
        sanitized = "sanitizer" in chosen and sanitizer.compute_sanitizer() is not None
        try:
            pytest = pool.submit(run.step, "pytest", lambda: run_pytest(arguments.tests, sanitized))
            _wait_for(pytest, pool.submit(cmake))
            _wait_for(pool.submit(run.step, "heavy", lambda: run_heavy(arguments.tests)))
            if {"pytest", "heavy"} <= {*chosen} and not arguments.tests:
                run.step("record", lambda: run_record([*run.outcomes["pytest"], *run.outcomes["heavy"]]))
            _wait_for(pool.submit(run.step, "bench", run_bench))
        except BaseException:  # Ctrl-C
            commands.end_all()
            raise
        finally:
            shutil.rmtree(_built(), ignore_errors=True)
    status.write()
    durations = "; ".join(f"{step} {run.seconds[step]:.0f} s" for step in STEPS if step in run.seconds)
    outcomes = [outcome for step in STEPS for outcome in run.outcomes.get(step, ())]
    durations += f"; in all {time.monotonic() - start:.0f} s"
    print("\nmake gpu:", *outcomes, "", durations, "", status.table(), sep="\n")
    return int(run.failed())
