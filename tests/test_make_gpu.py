"""make gpu without a GPU: its steps, what it counts, what it says."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from kernels import runtime
from kernels.measure import gpu, sources, status, suite

ROOT = Path(__file__).resolve().parent.parent
without_gpu = pytest.mark.skipif(runtime.device().type == "cuda", reason="there is a GPU")


@without_gpu
def test_make_gpu_refuses_without_a_gpu():
    done = subprocess.run(
        [shutil.which("make"), "-C", ROOT, "--no-print-directory", "gpu", f"PYTHON={sys.executable}"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "make gpu needs an NVIDIA GPU" in done.stderr


def test_gpu_names_its_steps(capsys):
    with pytest.raises(SystemExit, match="2"):
        gpu.main(["--only", "pytest,cmake"])
    assert "unknown step cmake: expected some of pytest, ctest, sanitizer, bench" in capsys.readouterr().err


@pytest.fixture
def steps(tmp_path, monkeypatch):
    """make gpu's steps, none of which does anything; their order."""
    monkeypatch.setattr(gpu, "LOGS", tmp_path / "gpu")
    for name in ("README", "FRONT_PAGE"):
        monkeypatch.setattr(status, name, tmp_path / name)
        getattr(status, name).write_text(f"# kernels\n{status.BEGIN}\n{status.END}\n")
    monkeypatch.setattr(runtime, "device", lambda: torch.device("cuda"))
    ran = []
    for step in gpu.STEPS:

        def run(*_, step=step):
            ran.append(step)
            time.sleep(0.05)
            if step == "ctest":
                raise OSError("no cmake")
            ran.append(f"{step} ends")
            return [gpu.Outcome(step, "3 passed", failed=["test_x: boom"] if step == "pytest" else [])]

        monkeypatch.setattr(gpu, f"run_{step}", run)
    return ran


def test_every_step_runs_whatever_came_before_and_bench_alone(steps, monkeypatch, capsys):
    monkeypatch.setitem(gpu.BUDGET, "sanitizer", 0.01)
    assert gpu.main([]) == 1
    assert steps.index("sanitizer") > steps.index("ctest")
    assert steps.index("ctest") < steps.index("pytest ends")  # beside it
    assert steps[-2:] == ["bench", "bench ends"]
    shown = capsys.readouterr().out
    assert re.search(r"pytest +FAILED .*3 passed\n    failed   test_x: boom\n", shown)
    assert re.search(r"ctest +FAILED .*\n    failed   OSError: no cmake\n", shown)
    assert re.search(r"bench +ok ", shown)
    seconds = r"\npytest \d s; ctest \d s; sanitizer \d s \(more than 0.01\); bench \d s; in all \d+ s\n"
    assert re.search(seconds, shown)
    assert status.readme_table() in status.README.read_text()
    assert status.result_table() in status.FRONT_PAGE.read_text()
    assert gpu.main(["--only", "bench,sanitizer"]) == 0


def test_ctrl_c_ends_what_was_started(steps, monkeypatch, tmp_path):
    monkeypatch.setattr(gpu, "ROOT", tmp_path)
    monkeypatch.setattr(gpu, "_stopped", threading.Event())

    def run(*_):
        signal.raise_signal(signal.SIGINT) if threading.current_thread() is threading.main_thread() else None
        return [gpu.command("sleeps", ["sleep", "60"])[0], gpu.command("again", ["sleep", "60"])[0]]

    monkeypatch.setattr(gpu, "run_pytest", run)
    timer = threading.Timer(0.5, lambda: signal.pthread_kill(threading.main_thread().ident, signal.SIGINT))
    timer.start()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        gpu.main(["--only", "pytest"])
    assert time.monotonic() - start < 20
    assert not gpu._running
    assert not (tmp_path / "gpu" / "again.log").exists()


def write_tests(folder):
    tests = {
        "kernels/ops/add_relu/test_add_relu.py": "import pytest\ndef test_a(): pass\ndef test_b(): assert 0\n"
        "@pytest.mark.skip(reason='no CUDA')\ndef test_c(): pass\n",
        "test_d.py": "import nbval_is_not_here\n",
        "test_e.py": "import data.nowhere\n",
        "test_f.py": "def test_f(): import nbval_is_not_here\n",
        "test_h.py": "import pytest\npytest.importorskip('nbval_is_not_here')\n",
        "test_g.py": "def test_g(): import json.nowhere\n",
    }
    for name, text in tests.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


@pytest.mark.parametrize("several", [[], ["-p", "xdist", "-n", "2", "--dist", "loadfile"]], ids=["one process", "two"])
def test_the_counts_of_a_junit_file(tmp_path, monkeypatch, several):
    if several:
        pytest.importorskip("xdist")
    write_tests(tmp_path)
    options = ["--continue-on-collection-errors", "--junitxml=junit.xml", "-c", "/dev/null", "--rootdir=.", *several]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
    # Other plugins take seconds to import.
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout
    found = suite.read([tmp_path / "junit.xml"])
    assert found.not_collected == ["test_d: the package nbval_is_not_here is missing"]
    assert found.counts("add_relu") == {"passed": 1, "failed": 1, "skipped": 1}
    assert found.counts() == {"passed": 1, "failed": 3, "skipped": 3}
    assert sorted(found.skipped()) == [
        "1 tests: could not import 'nbval_is_not_here': No module named 'nbval_is_not_here'",
        "1 tests: no CUDA",
        "1 tests: the package nbval_is_not_here is missing",
        *found.not_collected,
    ]
    versions = runtime.versions() | {"GPU": "NVIDIA H200"}
    monkeypatch.setattr(runtime, "versions", lambda: versions)
    assert suite.record(found, tmp_path) == []
    path = tmp_path / "h200" / "tests.json"
    entries = json.loads(path.read_text())
    assert list(entries) == ["add_relu"]  # of the other ops nothing ran
    assert entries["add_relu"]["failed"] == 1
    assert entries["add_relu"] | sources.hashes("add_relu", "sources", "tests") == entries["add_relu"]


def test_counts_are_only_replaced_by_good_ones(tmp_path, monkeypatch):
    versions = runtime.versions() | {"GPU": "NVIDIA H200"}
    monkeypatch.setattr(runtime, "versions", lambda: versions)
    path = tmp_path / "h200" / "tests.json"

    def record(*outcomes, why=""):
        kept = suite.record(suite.Suite([(how, "add_relu", how, why) for how in outcomes]), tmp_path)
        entry = json.loads(path.read_text())["add_relu"]
        return kept, [entry[outcome] for outcome in suite.OUTCOMES]

    assert record("passed", "failed") == ([], [1, 1, 0])
    assert record("passed", "skipped") == ([], [1, 0, 1])
    for outcomes, why in ((("passed", "failed"), ""), (("skipped",), ""), (("passed", "skipped"), "no CUDA device")):
        (line,), counts = record(*outcomes, why=why)
        assert re.match(r"add_relu: the counts of \d{4}-\d\d-\d\d are kept; now \d passed, \d failed, \d skipped", line)
        assert counts == [1, 0, 1]
    assert record("passed", "passed") == ([], [2, 0, 0])


REPORT = """<testsuites><testsuite>{}</testsuite></testsuites>"""
PASSED = '<testcase classname="kernels.ops.{op}.test_{op}" name="test_a"/>'
NOT_COLLECTED = (
    '<testcase classname="" name="tests.test_d"><error message="collection failure">'
    "E   ModuleNotFoundError: No module named 'nbval_is_not_here'</error></testcase>"
)


@pytest.mark.parametrize(
    ("cases", "code", "failed"),
    [
        ("", 0, []),
        (NOT_COLLECTED, 1, []),  # which is what pytest's exit status 1 is for
        ("", 1, ["exit status 1"]),  # nothing explains it
        (NOT_COLLECTED, 3, ["exit status 3"]),
        ('<testcase classname="a" name="b"><failure message="boom">x</failure></testcase>', 1, ["a.b: boom"]),
    ],
)
def test_pytest_counts(tmp_path, monkeypatch, cases, code, failed):
    monkeypatch.setattr(gpu, "LOGS", tmp_path)
    monkeypatch.setattr(gpu, "processes", lambda: 3)
    recorded = []
    monkeypatch.setattr(suite, "record", lambda found: recorded.append(found) or [])
    monkeypatch.setattr(gpu.importlib.util, "find_spec", lambda name: None if name == "nbval_is_not_here" else True)
    ran = []

    def command(name, arguments, **environment):
        assert environment["TORCHINDUCTOR_COMPILE_THREADS"] == "1"
        heavy = name == "pytest heavy"
        ran.append(arguments)
        (report,) = (each.partition("=")[2] for each in arguments if each.startswith("--junitxml"))
        good = "" if heavy else "".join(PASSED.format(op=op) for op in sources.ops())
        Path(report).write_text(REPORT.format(good + ("" if heavy else cases)))
        status = 5 if heavy else code
        return gpu.Outcome(name, code=status, failed=[f"exit status {status}"] if status else []), ""

    monkeypatch.setattr(gpu, "command", command)
    tests, heavy = gpu.run_pytest()
    assert len(recorded) == 1
    assert tests.failed == failed
    named = ["tests.test_d: the package nbval_is_not_here is missing"]
    assert tests.skipped == (named if cases == NOT_COLLECTED else [])
    assert (heavy.failed, heavy.skipped) == ([], [])
    assert [ran[0][i + 1] for i, option in enumerate(ran[0]) if option in ("-m", "-n", "--dist")] == [
        "pytest", "not heavy", "3", "loadfile",
    ]  # fmt: skip
    assert "-n" not in ran[1]
    monkeypatch.setattr(gpu.importlib.util, "find_spec", lambda name: None)
    assert gpu.run_pytest(["tests"])[0].skipped[-1].endswith("the package pytest-xdist is missing")
    assert "-n" not in ran[2]
    assert ran[2][-1] == "tests"
    assert len(recorded) == 1  # a part of the tests is not


def test_a_command_that_fails_or_hangs_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "LOGS", tmp_path)
    monkeypatch.setattr(gpu, "ROOT", tmp_path)
    outcome, output = gpu.command("a b", [sys.executable, "-c", "print('x'); raise SystemExit(3)"])
    assert output == "x\n" == (tmp_path / "a-b.log").read_text()
    assert outcome.failed == ["exit status 3; the log ends: x"]
    monkeypatch.setattr(gpu, "COMMAND_SECONDS", 0.5)
    outcome, _ = gpu.command("hangs", [sys.executable, "-c", "import time; time.sleep(60)"])
    assert "ended after 0.5 s" in outcome.failed[0]


@pytest.mark.parametrize(
    ("printed", "code", "counts", "failed", "skipped"),
    [
        ("100% tests passed, 0 tests failed out of 4", 0, "4 passed, 0 failed, 0 skipped", [], []),
        (
            "1/2 Test #1: a_test ......***Skipped  0.0 sec\n2/2 Test #2: b_host_asan ...***Failed  1.0 sec\n"
            "50% tests passed, 1 tests failed out of 2",
            2, "0 passed, 1 failed, 1 skipped", ["exit", "b_host_asan"], ["a_test"],
        ),
        ("", 0, "", ["ctest printed no result"], []),
    ],
)  # fmt: skip
def test_ctest_counts(monkeypatch, printed, code, counts, failed, skipped):
    outcome = gpu.Outcome("ctest", failed=["exit status 2"] if code else [])
    monkeypatch.setattr(shutil, "which", lambda name, **k: f"/bin/{name}")
    monkeypatch.setattr(gpu, "command", lambda name, *a: (outcome if name == "ctest" else gpu.Outcome(name), printed))
    assert gpu.run_ctest()[2:] == [outcome]
    assert outcome.counts == counts
    assert [line.split(" ")[0] if line.startswith("exit") else line for line in outcome.failed] == failed
    assert outcome.skipped == skipped


def test_a_build_that_fails_ends_ctest(monkeypatch):
    def command(name, arguments):
        return gpu.Outcome(name, failed=["exit status 1"] if name == "cmake build" else []), ""

    monkeypatch.setattr(gpu, "command", command)
    monkeypatch.setattr(shutil, "which", lambda name, **k: f"/bin/{name}")
    assert [outcome.name for outcome in gpu.run_ctest()] == ["cmake configure", "cmake build"]
    monkeypatch.setattr(shutil, "which", lambda name, **k: None)
    assert gpu.run_ctest()[0].skipped == ["not on PATH: cmake, ctest, ninja; pip install cmake ninja"]


def test_sanitizer_runs_every_tool_on_every_binary(tmp_path, monkeypatch):
    (tmp_path / "build" / "cmake").mkdir(parents=True)
    for name in ("add_relu_test", "add_relu_test_host_asan", "broken_x"):
        (tmp_path / "build" / "cmake" / name).touch(0o755)
    monkeypatch.setattr(gpu, "ROOT", tmp_path)
    monkeypatch.setattr(gpu, "compute_sanitizer", lambda: "compute-sanitizer")
    monkeypatch.setattr(gpu, "processes", lambda: 2)
    monkeypatch.setattr(sources, "ops", lambda: ["add_relu", "softmax"])

    def command(name, arguments, **environment):
        assert "--error-exitcode" in arguments
        summary = "========= ERROR SUMMARY: 0 errors"
        if name == "memcheck pytest softmax":  # no test of it is marked
            return gpu.Outcome(name, failed=["exit status 5"], code=5), f"9 deselected in 1 s\n{summary}"
        return gpu.Outcome(name), "" if name == "initcheck add_relu_test" else f"{summary}\n4 passed in 2 s"

    monkeypatch.setattr(gpu, "command", command)
    outcomes = {outcome.name: outcome for outcome in gpu.run_sanitizer()}
    tests = [f"memcheck pytest {op}" for op in ("add_relu", "softmax")]
    assert list(outcomes) == [*tests, *(f"{tool} add_relu_test" for tool in gpu.TOOLS)]
    assert [name for name, outcome in outcomes.items() if outcome.failed] == ["initcheck add_relu_test"]
    assert outcomes["memcheck pytest add_relu"].counts == "0 errors; 4 passed in 2 s"
    assert outcomes["memcheck pytest softmax"].skipped == ["none of its tests is marked `sanitizer`"]
    monkeypatch.setattr(gpu, "compute_sanitizer", lambda: None)
    assert "not installed" in gpu.run_sanitizer()[0].skipped[0]


def test_jobs_run_some_at_a_time():
    running, most = set(), []

    def job(i):
        running.add(i)
        most.append(len(running))
        time.sleep(0.02)
        running.remove(i)
        return i

    assert gpu.at_once([lambda i=i: job(i) for i in range(6)], 3) == list(range(6))
    assert max(most) == 3


def test_bench_counts_its_targets(monkeypatch):
    printed = "add_relu bandwidth: met: x\nadd_relu first call: MISSED: y\n    z: met: no\n"
    monkeypatch.setattr(gpu, "command", lambda name, arguments: (gpu.Outcome(name), printed))
    assert gpu.run_bench()[0].counts == "1 targets met, 1 missed"
