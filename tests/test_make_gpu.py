"""make gpu without a GPU: its steps, what it counts, what it says."""

import _thread
import itertools
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
from types import SimpleNamespace

import missing_packages
import pytest
import torch

from kernels import runtime
from kernels.gpu_run import commands, results, sanitizer, steps, which_tests
from kernels.measure import sources, status

ROOT = Path(__file__).resolve().parent.parent
without_gpu = pytest.mark.skipif(runtime.device().type == "cuda", reason="there is a GPU")


@without_gpu
def test_make_gpu_refuses_without_a_gpu():
    done = subprocess.run(
        [shutil.which("make"), "-C", ROOT, "--no-print-directory", "gpu", f"PYTHON={sys.executable}"],
        capture_output=True, text=True, timeout=300, check=False,
    )
    assert done.returncode == 2
    assert "make gpu needs an NVIDIA GPU" in done.stderr


def test_make_gpu_names_its_steps(capsys):
    with pytest.raises(SystemExit, match="2"):
        steps.main(["--only", "pytest,cmake"])
    named = "unknown step cmake: expected some of pytest, build, ctest, sanitizer, heavy, record, bench"
    assert named in capsys.readouterr().err


@pytest.fixture
def order(tmp_path, monkeypatch):
    """make gpu's steps, none of which does anything; their order."""
    monkeypatch.setattr(commands, "LOGS", tmp_path / "gpu")
    monkeypatch.setattr(commands, "ROOT", tmp_path)
    monkeypatch.setattr(commands, "_stopped", threading.Event())
    monkeypatch.setattr(runtime, "device", lambda: torch.device("cuda"))
    ran = []
    monkeypatch.setattr(status, "write", lambda: ran.append("the READMEs"))
    monkeypatch.setattr(status, "table", lambda: "what was recorded")
    for step in steps.STEPS:

        def run(*_, step=step):
            ran.append(step)
            time.sleep(0.05)
            if step == "sanitizer":
                raise OSError("no GPU")
            ran.append(f"{step} ends")
            return [steps.Outcome(step, "3 passed", failed=["test_x: boom"] if step == "pytest" else [])]

        monkeypatch.setattr(steps, f"run_{step}", run)
    return ran


def test_every_step_runs_whatever_came_before_and_the_last_ones_alone(order, capsys):
    assert steps.main([]) == 1
    assert order.index("build ends") < min(order.index("ctest"), order.index("sanitizer"))
    assert max(order.index("build"), order.index("pytest")) < min(order.index("build ends"), order.index("pytest ends"))
    assert order[-7:-4] == ["heavy", "heavy ends", "record"]
    assert order[-4:] == ["record ends", "bench", "bench ends", "the READMEs"]
    shown = capsys.readouterr().out
    assert re.search(r"pytest +FAILED .*3 passed\n    failed   test_x: boom\n", shown)
    assert re.search(r"sanitizer +FAILED .*\n    failed   OSError: no GPU\n", shown)
    assert re.search(r"bench +ok ", shown)
    times = "; ".join(rf"{step} \d s" for step in steps.STEPS)
    assert re.search(rf"\n{times}; in all \d+ s\n\nwhat was recorded\n", shown)


def test_a_part_of_the_steps(order):
    assert steps.main(["--only", "bench,heavy,build"]) == 0
    assert order == ["build", "build ends", "heavy", "heavy ends", "bench", "bench ends", "the READMEs"]
    order.clear()
    assert steps.main(["--only", "pytest,heavy,record", "--tests", "tests"]) == 1
    assert "record" not in order  # a part of the tests


@pytest.mark.parametrize("when", ["before", "by this run"])
def test_what_tests_built_is_gone_before_the_steps_and_after_them(order, tmp_path, monkeypatch, when):
    built = tmp_path / "gpu" / f"built-{os.getpid()}"

    def bench():
        assert not built.exists()
        if when == "by this run":
            built.mkdir()
        return [steps.Outcome("bench")]

    if when == "before":
        built.mkdir(parents=True)
    monkeypatch.setattr(steps, "run_bench", bench)
    assert steps.main(["--only", "bench"]) == 0
    assert not built.exists()


def test_without_a_build_the_binaries_fail_no_second_time(order, monkeypatch):
    monkeypatch.setattr(steps, "run_build", lambda: [steps.Outcome("cmake build", failed=["exit status 1"])])
    assert steps.main(["--only", "build,ctest,sanitizer"]) == 1
    assert order == ["the READMEs"]


@pytest.mark.parametrize("tool", ["/usr/bin/compute-sanitizer", None])
def test_what_the_sanitizer_runs_is_left_out_of_pytest(order, monkeypatch, tool):
    flags = []
    monkeypatch.setattr(sanitizer, "compute_sanitizer", lambda: tool)
    monkeypatch.setattr(steps, "run_pytest", lambda _, sanitized: flags.append(sanitized) or [])
    steps.main(["--only", "pytest,build,sanitizer"])
    steps.main(["--only", "pytest"])
    assert flags == [tool is not None, False]


def test_the_marks_that_pytest_is_given(pytest_processes, monkeypatch):
    marks = []

    def run(name, options, *_, **__):
        marks.append(options[options.index("-m") + 1])
        return steps.Outcome(name)

    monkeypatch.setattr(steps, "_pytest", run)
    steps.run_pytest()
    steps.run_pytest(sanitized=True)
    assert {*marks} == {"not heavy", "not heavy and not sanitizer"}


@pytest.mark.parametrize(
    "interrupt",
    [lambda: signal.pthread_kill(threading.main_thread().ident, signal.SIGINT), _thread.interrupt_main],
    ids=["a signal", "a signal that ends no wait"],
)
def test_ctrl_c_ends_what_was_started(order, monkeypatch, tmp_path, interrupt):
    def run(*_):
        return [commands.command(name, ["sleep", "60"], 60)[0] for name in ("sleeps", "again")]

    monkeypatch.setattr(steps, "run_pytest", run)
    timer = threading.Timer(0.5, interrupt)
    timer.start()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        steps.main(["--only", "pytest"])
    assert time.monotonic() - start < 20
    assert not commands._running
    assert not (tmp_path / "gpu" / "again.log").exists()


@pytest.mark.parametrize("step", ["pytest", "build", "heavy", "bench"])
def test_ctrl_c_while_a_command_is_being_started(order, monkeypatch, tmp_path, step):
    monkeypatch.setattr(steps, f"run_{step}", lambda *_: [commands.command("sleeps", ["sleep", "20"], 30)[0]])
    start, processes = subprocess.Popen, []

    def interrupted(*arguments, **options):
        processes.append(start(*arguments, **options))
        _thread.interrupt_main()
        return processes[-1]

    monkeypatch.setattr(subprocess, "Popen", interrupted)
    with pytest.raises(KeyboardInterrupt):
        steps.main(["--only", step])
    assert [process.poll() for process in processes] == [-signal.SIGKILL]


def test_a_command_that_starts_while_all_are_ended_is_ended_too(tmp_path, monkeypatch):
    monkeypatch.setattr(commands, "LOGS", tmp_path)
    monkeypatch.setattr(commands, "ROOT", tmp_path)
    monkeypatch.setattr(commands, "_stopped", threading.Event())
    start = subprocess.Popen

    def started(*arguments, **options):
        process = start(*arguments, **options)
        commands.end_all()
        return process

    monkeypatch.setattr(subprocess, "Popen", started)
    before = time.monotonic()
    outcome, _ = commands.command("sleeps", ["sleep", "30"], 30)
    assert time.monotonic() - before < 20
    assert outcome.failed
    assert not commands._running


def test_two_threads_may_end_one_command(monkeypatch):
    process = subprocess.Popen(["sleep", "30"], start_new_session=True)
    kill = os.killpg

    def killed_before(group, number):
        kill(group, number)
        process.wait()
        kill(group, number)  # as the slower thread finds it

    monkeypatch.setattr(os, "killpg", killed_before)
    commands.end(process)
    assert process.returncode == -signal.SIGKILL


def write_tests(folder):
    tests = {
        "kernels/ops/add_relu/test_add_relu.py": "import pytest\ndef test_a(): pass\ndef test_b(): assert 0\n"
        "@pytest.mark.skip(reason='no CUDA')\ndef test_c(): pass\n",
        "test_d.py": "import nbval_is_not_here\n",
        "test_e.py": "import data.nowhere\n",
        "test_f.py": "def test_f(): import nbval_is_not_here\n",
        "test_h.py": "import pytest\npytest.importorskip('nbval_is_not_here')\n",
        "test_g.py": "def test_g(): import json.nowhere\n",
        "test_i.py": "import subprocess, sys\ndef test_i():\n"
        "    done = subprocess.run([sys.executable, '-c', 'import nbval_is_not_here'], stderr=-1, text=True)\n"
        "    assert (done.returncode, done.stderr) == (0, '')\n",
    }
    for name, text in tests.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def share(folder, count):
    """(reports, outputs) of `count` pytest processes that share the tests of a folder."""
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n    slow\n    host\n")
    parts = folder / "taken"
    parts.mkdir()
    # Other plugins take seconds to import, and so does the package kernels.
    shutil.copy(which_tests.__file__, parts / "parts_alone.py")
    environment = os.environ | {which_tests.PARTS: str(parts), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(parts), str(ROOT / "tests")])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "parts_alone", "-c", "pytest.ini"]
    command += ["-p", "missing_packages", "--rootdir=.", "--continue-on-collection-errors"]
    reports = [folder / f"junit{number}.xml" for number in range(count)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    processes = [
        subprocess.Popen([*command, f"--junitxml={report}"], cwd=folder, env=environment, **pipes) for report in reports
    ]
    return reports, [process.communicate()[0] for process in processes]


def test_processes_that_share_the_tests_run_each_once(tmp_path):
    for name, count, scope in (("ops/a/test_a.py", 30, "function"), ("ops/b/test_b.py", 13, "function"),
                               ("test_c.py", 20, "module"), ("test_d.py", 3, "session")):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"import pytest, time\n@pytest.fixture(scope='{scope}')\ndef one(): print('made')\n"
                        f"@pytest.mark.parametrize('i', range({count}))\ndef test(i, one): time.sleep(0.01)\n"
                        "@pytest.mark.slow\ndef test_slow(): pass\n"
                        "@pytest.mark.slow\n@pytest.mark.host\ndef test_slow_of_the_host(): pass\n")
    reports, printed = share(tmp_path, 3)
    cases = [f"{case.get('classname')} {case.get('name')}" for report in reports
             for case in results.ElementTree.parse(report).iter("testcase")]
    assert len(cases) == len({*cases}) == 68, printed
    assert sorted(case for case in cases if "slow" in case) == [f"ops.{op}.test_{op} test_slow" for op in "ab"]
    assert results.read(reports).counts() == {"passed": 68, "failed": 0, "skipped": 0}
    where = {case.get("classname"): report for report in reports[::-1]
             for case in results.ElementTree.parse(report).iter("testcase")}
    for whole in ("test_c", "test_d"):  # in one process
        assert sum(case.startswith(whole) for case in cases) == sum(
            case.get("classname") == whole for case in results.ElementTree.parse(where[whole]).iter("testcase")
        )


def test_processes_build_once_what_their_tests_share(tmp_path):
    shutil.copy(Path(__file__).with_name("conftest.py"), tmp_path)
    (tmp_path / "test_a.py").write_text("import os, time\ndef build(path):\n    time.sleep(0.5)\n    path.mkdir()\n"
                                        "    (path.parent / f'by-{os.getpid()}').touch()\n"
                                        "def test(built_once): assert built_once('it', build).is_dir()\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir=."]
    environment = os.environ | {steps.BUILT: str(tmp_path / "built"), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    environment["PYTHONPATH"] = str(ROOT / "tests")
    for _ in range(2):  # two at once, and two after them, as the heavy tests come after the others
        pair = [subprocess.Popen(command, cwd=tmp_path, env=environment) for _ in range(2)]
        assert [process.wait() for process in pair] == [0, 0]
    assert len([*(tmp_path / "built").glob("by-*")]) == 1


def test_processes_that_collect_different_tests_say_so(tmp_path):
    (tmp_path / "test_a.py").write_text("import os, pytest\n"
                                        "@pytest.mark.parametrize('i', [os.getpid()])\ndef test(i): pass\n")
    _, printed = share(tmp_path, 2)
    assert any("have collected different ones: ('test_a.py::test[" in text for text in printed)


def test_the_parts_of_a_suite():
    counts = {"tests/test_a.py": 5, "tests/test_b.py": 50, "tests/test_e.py": 15, "kernels/ops/c/test_c.py": 30,
              "kernels/ops/d/test_d.py": 12}
    scopes = {path: ["session", "function"] for path in counts} | {"tests/test_b.py": ["function", "module"]}
    tests = [
        SimpleNamespace(path=Path(path), nodeid=f"{path}::{number}", _fixtureinfo=SimpleNamespace(
            name2fixturedefs={scope: [SimpleNamespace(scope=scope)] for scope in scopes[path]}
        ))
        for path, count in counts.items() for number in range(count)
    ]  # fmt: skip
    cut = which_tests.parts(tests)
    assert sorted(test.nodeid for part in cut for test in part) == sorted(test.nodeid for test in tests)
    assert [(part[0].path.stem, len(part)) for part in cut] == [
        ("test_b", 50), ("test_c", 6), ("test_d", 6), ("test_a", 5), ("test_e", 6), ("test_c", 6), ("test_d", 6),
        ("test_e", 6), ("test_c", 6), ("test_e", 3), ("test_c", 6), ("test_c", 6),
    ]


def test_the_counts_of_reports(tmp_path, monkeypatch):
    write_tests(tmp_path)
    reports, printed = share(tmp_path, 2)
    assert all("data.nowhere" in text for text in printed)
    outcomes = results.read(reports)
    assert outcomes.counts("add_relu") == {"passed": 1, "failed": 1, "skipped": 1}
    assert outcomes.counts() == {"passed": 1, "failed": 3, "skipped": 5}
    assert sorted(outcomes.skipped()) == [
        "1 tests: could not import 'nbval_is_not_here': No module named 'nbval_is_not_here'",
        "1 tests: no CUDA",
        "3 tests: the package nbval_is_not_here is missing",
    ]
    versions = runtime.versions() | {"GPU": "NVIDIA H200"}
    monkeypatch.setattr(runtime, "versions", lambda: versions)
    assert results.record(outcomes, tmp_path) == []
    path = tmp_path / "h200" / "tests.json"
    entries = json.loads(path.read_text())
    assert list(entries) == ["add_relu"]  # of the other ops nothing ran
    assert entries["add_relu"]["failed"] == 1
    assert entries["add_relu"] | sources.hashes("add_relu", "sources", "tests") == entries["add_relu"]


def test_a_missing_package_is_a_failure_where_all_are_installed(tmp_path, monkeypatch):
    """It is then a name that nobody has: in make test, say."""
    monkeypatch.setattr(missing_packages, "REQUIREMENTS", tmp_path / "requirements.txt")
    missing_packages.REQUIREMENTS.write_text("pytest==9.2.0  # make test\n")
    assert missing_packages.are_all_installed()
    missing_packages.REQUIREMENTS.write_text("pytest==9.2.0  # make test\nnbval-is-not-here==1.0  # notebooks\n")
    assert not missing_packages.are_all_installed()


def test_counts_are_only_replaced_by_good_ones(tmp_path, monkeypatch):
    versions = runtime.versions() | {"GPU": "NVIDIA H200"}
    monkeypatch.setattr(runtime, "versions", lambda: versions)
    path = tmp_path / "h200" / "tests.json"

    def record(*outcomes, why=""):
        kept = results.record(results.Suite([(how, "add_relu", how, why) for how in outcomes]), tmp_path)
        entry = json.loads(path.read_text())["add_relu"]
        return kept, [entry[outcome] for outcome in results.OUTCOMES]

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
    """<testcase classname="" name="tests.test_d"><skipped message="collection skipped">"""
    """('tests/test_d.py', 1, 'Skipped: the package nbval_is_not_here is missing')</skipped></testcase>"""
)


@pytest.fixture
def pytest_processes(tmp_path, monkeypatch):
    """Two pytest processes and the heavy one, which only write reports: process(name, code=0, cases="", ended=True)."""
    monkeypatch.setattr(commands, "LOGS", tmp_path)
    monkeypatch.setattr(steps, "processes", lambda: 2)
    come = {"pytest 1 of 2": (0, "".join(PASSED.format(op=op) for op in sources.ops()), True)}

    def command(name, arguments, limit, **environment):
        assert ("-p", which_tests.__name__) in itertools.pairwise(arguments) or name == "pytest heavy"
        assert environment[steps.BUILT] == str(tmp_path / f"built-{os.getpid()}")
        assert environment.get(which_tests.PARTS, "") == ("" if name == "pytest heavy" else str(tmp_path / "parts"))
        chosen = "heavy" if name == "pytest heavy" else "not heavy"
        assert arguments[len(arguments) - 1 - arguments[::-1].index("-m") + 1] == chosen
        code, cases, ended = come.get(name, (0, "", True))
        (report,) = (option.partition("=")[2] for option in arguments if str(option).startswith("--junitxml"))
        if ended:
            Path(report).write_text(REPORT.format(cases))
        failed = [f"exit status {code}"] if code else [] if ended else [f"did not end within {limit} s"]
        return steps.Outcome(name, code=code, failed=failed, ended=ended), ""

    monkeypatch.setattr(steps, "command", command)

    def process(name, code=0, cases="", ended=True):
        come[name] = code, cases, ended

    return process


@pytest.mark.parametrize(
    ("cases", "code", "failed"),
    [
        ("", 0, []),
        (NOT_COLLECTED, 0, []),
        ("", 1, ["pytest 2 of 2: exit status 1"]),  # nothing explains it
        (NOT_COLLECTED, 3, ["pytest 2 of 2: exit status 3"]),
        ('<testcase classname="a" name="b"><failure message="boom">x</failure></testcase>', 1, ["a.b: boom"]),
    ],
)
def test_what_came_of_pytests_processes(pytest_processes, cases, code, failed):
    pytest_processes("pytest 2 of 2", code, cases)
    pytest_processes("pytest heavy", 5)  # no test is heavy
    (tests,), (heavy,) = steps.run_pytest(), steps.run_heavy()
    assert tests.failed == failed
    missing = cases == NOT_COLLECTED
    assert tests.skipped == ["1 tests: the package nbval_is_not_here is missing"] * missing
    passed = len(sources.ops())
    assert tests.counts == f"{passed} passed, {int(failed == ['a.b: boom'])} failed, {int(missing)} skipped"
    assert (heavy.failed, heavy.skipped) == ([], [])


def test_tests_are_recorded_if_every_process_ended(pytest_processes, monkeypatch):
    recorded = []
    monkeypatch.setattr(results, "record", lambda tests: recorded.append(tests) or ["add_relu: kept"])

    def record():
        return steps.run_record([*steps.run_pytest(), *steps.run_heavy()])[0]

    assert record().counts == "recorded; add_relu: kept"
    assert len(recorded) == 1
    pytest_processes("pytest 1 of 2")
    assert f"no test of {sources.ops()[0]} passed" in record().failed
    for name in ("pytest heavy", "pytest 2 of 2"):
        pytest_processes(name, ended=False)
        assert record().skipped == ["a pytest process did not end: nothing is recorded"]
    (tests,) = steps.run_pytest()
    seconds = steps.limit("pytest")
    assert tests.failed == [
        f"pytest 2 of 2: did not end within {seconds} s",
        "pytest 2 of 2: pytest wrote no report: its tests count as not run",
    ]
    assert len(recorded) == 2


def test_a_command_that_fails_or_hangs_says_so_and_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(commands, "LOGS", tmp_path)
    monkeypatch.setattr(commands, "ROOT", tmp_path)
    outcome, output = commands.command("a b", [sys.executable, "-c", "print('x'); raise SystemExit(3)"], 60)
    assert output == "x\n" == (tmp_path / "a-b.log").read_text()
    assert outcome.failed == ["exit status 3; the log ends: x"]
    assert outcome.ended
    # It starts another process, which does not end by itself either.
    hangs = ["bash", "-c", "sleep 60 & echo $!; wait"]
    outcome, output = commands.command("hangs", hangs, 0.5)
    assert not outcome.ended
    assert outcome.failed[0].startswith("did not end within 0.5 s; the log ends: ")
    for _ in range(100):
        if not Path(f"/proc/{output.strip()}").exists() or "Z" in Path(f"/proc/{output.strip()}/stat").read_text():
            break
        time.sleep(0.05)
    else:
        raise AssertionError("what the command started goes on")


def test_what_hangs_fails_the_run_by_name_and_saves_nothing(order, monkeypatch, capsys):
    def heavy(*_):
        outcome, _ = commands.command("pytest heavy", ["sleep", "60"], 0.2)
        return [outcome]

    monkeypatch.setattr(steps, "run_heavy", heavy)
    assert steps.main(["--only", "heavy,bench"]) == 1
    assert re.search(r"pytest heavy +FAILED .*\n    failed   did not end within 0.2 s", capsys.readouterr().out)
    assert order == ["bench", "bench ends", "the READMEs"]


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
)
def test_ctest_counts(monkeypatch, printed, code, counts, failed, skipped):
    outcome = steps.Outcome("ctest", failed=["exit status 2"] if code else [])
    monkeypatch.setattr(shutil, "which", lambda name, **k: f"/bin/{name}")
    monkeypatch.setattr(steps, "beside_pytest", lambda: (2, 3))
    monkeypatch.setattr(steps, "command", lambda name, *a: (outcome, printed))
    assert steps.run_ctest() == [outcome]
    assert outcome.counts == counts
    assert [line.split(" ")[0] if line.startswith("exit") else line for line in outcome.failed] == failed
    assert outcome.skipped == skipped


def test_a_configuration_that_fails_is_not_built(monkeypatch):
    def command(name, arguments, limit):
        return steps.Outcome(name, failed=["exit status 1"] if name == "cmake configure" else []), ""

    monkeypatch.setattr(steps, "command", command)
    monkeypatch.setattr(shutil, "which", lambda name, **k: f"/bin/{name}")
    assert [outcome.name for outcome in steps.run_build()] == ["cmake configure"]
    monkeypatch.setattr(shutil, "which", lambda name, **k: None)
    assert steps.run_build()[0].skipped == ["not on PATH: cmake, ctest, ninja; pip install cmake ninja"]
    assert steps.run_ctest()[0].skipped == ["not on PATH: ctest; pip install cmake"]


def test_sanitizer_runs_every_tool_on_every_binary(tmp_path, monkeypatch):
    (tmp_path / "build" / "cmake").mkdir(parents=True)
    for name in ("add_relu_test", "add_relu_test_host_asan", "broken_x"):
        (tmp_path / "build" / "cmake" / name).touch(0o755)
    monkeypatch.setattr(commands, "ROOT", tmp_path)
    monkeypatch.setattr(sanitizer, "compute_sanitizer", lambda: "compute-sanitizer")
    monkeypatch.setattr(sources, "ops", lambda: ["add_relu", "softmax"])

    def command(name, arguments, limit, **environment):
        assert "--error-exitcode" in arguments
        assert limit == 7
        summary = "========= ERROR SUMMARY: 0 errors"
        if name == "memcheck pytest softmax":  # no test of it is marked
            return steps.Outcome(name, failed=["exit status 5"], code=5), f"9 deselected in 1 s\n{summary}"
        if name == "racecheck add_relu_test":
            return steps.Outcome(name, failed=["did not end within 7 s"], ended=False), ""
        return steps.Outcome(name), "" if name == "initcheck add_relu_test" else f"{summary}\n4 passed in 2 s"

    monkeypatch.setattr(commands, "command", command)
    outcomes = {outcome.name: outcome for outcome in sanitizer.run(2, 7)}
    tests = [f"memcheck pytest {op}" for op in ("add_relu", "softmax")]
    assert list(outcomes) == [*tests, *(f"{tool} add_relu_test" for tool in sanitizer.TOOLS)]
    assert {name: outcome.failed for name, outcome in outcomes.items() if outcome.failed} == {
        "initcheck add_relu_test": ["compute-sanitizer printed no summary"],
        "racecheck add_relu_test": ["did not end within 7 s"],
    }
    assert outcomes["memcheck pytest add_relu"].counts == "0 errors; 4 passed in 2 s"
    assert outcomes["memcheck pytest softmax"].skipped == ["none of its tests is marked `sanitizer`"]
    monkeypatch.setattr(sanitizer, "compute_sanitizer", lambda: None)
    assert "not installed" in sanitizer.run(2, 7)[0].skipped[0]


def test_how_much_runs_at_a_time(monkeypatch):
    class Properties:
        total_memory, major, minor = 140 * 2**30, 9, 0

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Properties)
    shares = {}
    for cores in (2, 4, 16):
        monkeypatch.setattr(steps, "cores", lambda cores=cores: cores)
        shares[cores] = (steps.processes(), *steps.beside_pytest(), steps.limit("heavy"))
    assert shares == {2: (1, 2, 1, 2400), 4: (3, 2, 1, 1200), 16: (12, 4, 6, 300)}
    Properties.total_memory = 79 * 2**30
    assert (steps.processes(), steps.limit("pytest")) == (12, 600)
    Properties.total_memory = 24 * 2**30
    assert (steps.processes(), steps.limit("pytest"), steps.limit("ctest")) == (4, 1800, 420)


def test_jobs_run_some_at_a_time():
    running, most = set(), []

    def job(i):
        running.add(i)
        most.append(len(running))
        time.sleep(0.02)
        running.remove(i)
        return i

    assert commands.at_once([lambda i=i: job(i) for i in range(6)], 3) == list(range(6))
    assert max(most) == 3


def test_bench_counts_its_targets(monkeypatch):
    printed = "add_relu bandwidth: met: x\nadd_relu first call: MISSED: y\n    z: met: no\n"
    ran = []

    def command(name, arguments, limit):
        ran.append(arguments[1:])
        return steps.Outcome(name), printed

    monkeypatch.setattr(steps, "command", command)
    assert steps.run_bench()[0].counts == "1 targets met, 1 missed"
    assert ran == [["-m", "kernels.measure", "bench", "--quick", "--without", "max-autotune"]]
