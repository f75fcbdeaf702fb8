"""Everything that takes a GPU, one step after the other: `make gpu`. Logs go to build/gpu/.

pytest      the whole test suite; what a missing package keeps from being collected is said
ctest       make kernels: the CMake tests
sanitizer   compute-sanitizer, where it is: the CMake tests' binaries, and the tests marked `sanitizer`
bench       python -m kernels.measure bench --save

Each step runs whatever came of those before it. The test counts of each op go to traces/results/<gpu>/tests.json, and
the tables of the READMEs are written anew.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from kernels import runtime
from kernels.measure import status

ROOT = status.KERNELS.parent
LOGS = ROOT / "build" / "gpu"
JUNIT = LOGS / "pytest.xml"
STEPS = ("pytest", "ctest", "sanitizer", "bench")
STEP_SECONDS = 1800  # a step that hangs is ended after this
TOOLS = ("memcheck", "racecheck", "initcheck")


@dataclass
class Outcome:
    """What came of a command: its counts in words, what failed, what was skipped and why."""

    name: str
    counts: str = ""
    failed: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def __str__(self) -> str:
        state = "FAILED" if self.failed else "skipped" if self.skipped and not self.counts else "ok"
        lines = [f"{self.name:<28} {state:<8} {self.seconds:5.0f} s  {self.counts}"]
        lines += [f"    failed   {line}" for line in self.failed]
        return "\n".join(lines + [f"    skipped  {line}" for line in self.skipped])


def command(name: str, arguments: Iterable[str | Path], **environment: str) -> tuple[Outcome, str]:
    """Run a command, its output into build/gpu/<name>.log; returns (outcome, output). Failed unless it exits with 0."""
    outcome, start = Outcome(name), time.monotonic()
    log = LOGS / f"{name.replace(' ', '-')}.log"
    print(f"== {name}: {log.relative_to(ROOT)}", flush=True)
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
        try:
            code = process.wait(STEP_SECONDS)
        except subprocess.TimeoutExpired:
            code = f"none: ended after {STEP_SECONDS} s"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    outcome.seconds = time.monotonic() - start
    output = log.read_text(errors="replace")
    if code:
        outcome.failed.append(f"exit status {code}; the log ends: {' | '.join(output.splitlines()[-3:])[:300]}")
    return outcome, output


# ------------------------------------------------------------------------------------------------------------------
# pytest.


@dataclass
class Suite:
    """pytest's junit file: (test, its op or '', passed | failed | skipped, reason) of each test, and what was not
    collected for want of a package."""

    tests: list[tuple[str, str, str, str]] = field(default_factory=list)
    not_collected: list[str] = field(default_factory=list)

    def counts(self, op: str | None = None) -> dict[str, int]:
        """{passed, failed, skipped}; op: of its own tests, those in kernels/ops/<op>/."""
        found = Counter(outcome for _, of, outcome, _ in self.tests if op in (None, of))
        return {outcome: found[outcome] for outcome in ("passed", "failed", "skipped")}

    def without_gpu(self, op: str) -> bool:
        """Whether a test of the op was skipped for want of a GPU: then none of them ran on one."""
        return any(of == op and how == "skipped" and "no CUDA device" in why for _, of, how, why in self.tests)


def read_junit(path: Path) -> Suite:
    """A Suite of pytest's --junitxml file."""
    suite = Suite()
    for case in ElementTree.parse(path).iter("testcase"):
        name = f"{case.get('classname')}.{case.get('name')}".strip(".")
        outcome, reason = "passed", ""
        for tag, means in (("skipped", "skipped"), ("failure", "failed"), ("error", "failed")):
            if (found := case.find(tag)) is not None:
                outcome, reason = means, found.get("message") or ""
                text = f"{reason} {found.text or ''}"
                missing = re.search(r"ModuleNotFoundError: No module named '([\w.]+)'", text)
                if missing and missing[1].split(".")[0] not in ("data", "kernels", "model") and "collect" in text:
                    outcome = "not collected"
                    suite.not_collected.append(f"{name}: the package {missing[1]} is missing")
        if outcome != "not collected":
            op = re.match(r"kernels\.ops\.(\w+)\.test_", name)
            suite.tests.append((name, op[1] if op else "", outcome, reason))
    return suite


def run_pytest(tests: Iterable[str] = ()) -> list[Outcome]:
    JUNIT.unlink(missing_ok=True)
    outcome, _ = command(
        "pytest",
        [sys.executable, "-m", "pytest", "-q", "--continue-on-collection-errors", f"--junitxml={JUNIT}", *tests],
    )
    if not JUNIT.exists():
        outcome.failed.append("pytest wrote no report")
        return [outcome]
    suite = read_junit(JUNIT)
    outcome.counts = ", ".join(f"{count} {word}" for word, count in suite.counts().items())
    failed = [f"{name}: {reason.partition(chr(10))[0]}" for name, _, how, reason in suite.tests if how == "failed"]
    # Of what could not be collected for want of a package, pytest makes exit status 1.
    only_that = suite.not_collected and outcome.failed and outcome.failed[0].startswith("exit status 1;")
    outcome.failed = failed or ([] if only_that else outcome.failed)
    for op in status.ops():
        if not suite.counts(op)["passed"]:
            outcome.failed.append(f"no test of {op} passed")
        elif suite.without_gpu(op):
            outcome.failed.append(f"the tests of {op} found no GPU")
    reasons = Counter(reason for _, _, how, reason in suite.tests if how == "skipped")
    outcome.skipped = [f"{count} tests: {reason}" for reason, count in reasons.items()] + suite.not_collected
    record_tests(suite)
    return [outcome]


def record_tests(suite: Suite, results: Path = status.RESULTS) -> Path:
    """Write results/<gpu>/tests.json: for each op its counts, and what they were counted on.

    An op of which nothing passed, or whose tests were skipped for want of a GPU, keeps the entry that it had.
    """
    versions = runtime.versions()
    path = results / status.slug(versions["GPU"]) / "tests.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    entries = json.loads(path.read_text()) if path.exists() else {}
    entries |= {
        op: suite.counts(op)
        | {name: versions[name] for name in ("GPU", "driver", "torch", "triton", "CUDA", "Python")}
        | {"date": datetime.now(UTC).strftime("%Y-%m-%d"), "sources_sha256": status.sources_sha256(op)}
        for op in status.ops()
        if suite.counts(op)["passed"] and not suite.without_gpu(op)
    }
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(entries, indent=1) + "\n")
    partial.replace(path)
    return path


# ------------------------------------------------------------------------------------------------------------------
# The other steps.


def run_ctest() -> list[Outcome]:
    if missing := [tool for tool in ("cmake", "ctest", "ninja") if shutil.which(tool) is None]:
        return [Outcome("ctest", skipped=[f"not on PATH: {', '.join(missing)}; pip install cmake ninja"])]
    # Unless this is .venv's Python, which make would choose too.
    python = [] if Path(sys.prefix) == ROOT / ".venv" else [f"PYTHON={sys.executable}"]
    outcome, output = command("ctest", ["make", "--no-print-directory", "kernels", "ARGS=", *python])
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
    return [outcome]


def compute_sanitizer() -> str | None:
    """compute-sanitizer: on PATH, or beside nvcc."""
    beside = str(nvcc.parent) if (nvcc := runtime.nvcc()) else ""
    return shutil.which("compute-sanitizer", path=os.pathsep.join((os.environ.get("PATH", os.defpath), beside)))


def run_sanitizer() -> list[Outcome]:
    sanitizer = compute_sanitizer()
    if sanitizer is None:
        return [Outcome("sanitizer", skipped=["compute-sanitizer is not installed; it comes with the CUDA toolkit"])]
    binaries = sorted(path for path in (ROOT / "build" / "cmake").glob("*_test") if os.access(path, os.X_OK))
    runs = [(tool, binary.name, [binary, "--quick"], []) for binary in binaries for tool in TOOLS]
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "sanitizer", "kernels"]
    # PyTorch asks the driver for things that some do not have, on purpose: those errors are not the kernels'.
    runs.append(("memcheck", "pytest", tests, ["--report-api-errors", "no"]))
    outcomes = []
    if not binaries:
        outcomes.append(Outcome("sanitizer", failed=["no binaries in build/cmake: ctest comes first"]))
    for tool, name, arguments, options in runs:
        # Without PyTorch's cache each tensor is an allocation of its own, so that an access beyond its end shows.
        outcome, output = command(
            f"{tool} {name}",
            [sanitizer, "--tool", tool, "--error-exitcode", "86", *options, *arguments],
            PYTORCH_NO_CUDA_MEMORY_CACHING="1",
        )
        found = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: (.*)", output)
        passed = re.findall(r"^\d+ passed.*", output, re.MULTILINE)
        outcome.counts = "; ".join(found + passed)
        if not found:
            outcome.failed.append("compute-sanitizer printed no summary")
        outcomes.append(outcome)
    return outcomes


def run_bench() -> list[Outcome]:
    outcome, output = command("bench", [sys.executable, "-m", "kernels.measure", "bench", "--save"])
    print(output, flush=True)
    missed = len(re.findall(r"^\w+ \w+: MISSED", output, re.MULTILINE))
    met = len(re.findall(r"^\w+ \w+: met", output, re.MULTILINE))
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
    outcomes = []
    for step in STEPS:
        if step in chosen:
            try:
                outcomes += steps[step]()
            except Exception as error:
                outcomes.append(Outcome(step, failed=[f"{type(error).__name__}: {error}"]))
    status.write()
    print("\nmake gpu:", *outcomes, "", status.table(), sep="\n")
    return int(any(outcome.failed for outcome in outcomes))
