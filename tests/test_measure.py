"""The benchmark harness, the status and make gpu, without a GPU: everything but the clock."""

import importlib
import json
import re
import shutil
import subprocess
import sys
import weakref
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

import kernels
from kernels import runtime
from kernels.measure import bench, gpu, status
from kernels.measure.bench import Calls, Cell, Row

ROOT = Path(__file__).resolve().parent.parent
without_gpu = pytest.mark.skipif(runtime.device().type == "cuda", reason="there is a GPU")


# ------------------------------------------------------------------------------------------------------------------
# The hash of the sources.


@pytest.fixture
def copied(tmp_path, monkeypatch):
    """A copy of kernels/ whose files may be changed."""
    folder = tmp_path / "kernels"
    shutil.copytree(status.KERNELS, folder, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(status, "KERNELS", folder)
    return folder


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("ops/add_relu/eager.py", '\n# a comment\n\n'),
        ("ops/add_relu/kernel.cuh", "\n// a comment\n/* and\n another */\n\n"),
        ("ops/add_relu/bench.py", "x = 1\n"),
        ("ops/add_relu/test_add_relu.py", "x = 1\n"),
        ("ops/add_mul_activation/kernel.cuh", "int x;\n"),
        ("check/cuda_on_host.h", "int x;\n"),
        ("runtime.py", "x = 1\n"),
    ],
)
def test_the_hash_ignores_comments_and_what_the_op_is_not_built_from(copied, file, text):
    before = status.sources_sha256("add_relu")
    with (copied / file).open("a") as opened:
        opened.write(text)
    assert status.sources_sha256("add_relu") == before


@pytest.mark.parametrize(
    ("file", "text"),
    [
        *((f"ops/add_relu/{name}", "x = 1\n") for name in ("eager.py", "triton_kernel.py", "op.py")),
        *((f"ops/add_relu/{name}", "int x;\n") for name in ("kernel.cuh", "binding.cu")),
        ("dispatch/pointwise.py", "x = 1\n"),
        ("device/column_sum.py", "x = '#'\n"),
        ("device/vector.cuh", 'const char* x = "// a string";\n'),
        ("device/launch.cuh", "int x;\n"),
    ],
)
def test_the_hash_sees_every_change_of_code(copied, file, text):
    before = status.sources_sha256("add_relu")
    with (copied / file).open("a") as opened:
        opened.write(text)
    assert status.sources_sha256("add_relu") != before


def test_the_hash_sees_the_compiler_flags(monkeypatch):
    before = status.sources_sha256("add_relu")
    monkeypatch.setattr(runtime, "CUDA_FLAGS", ("-O0",))
    assert status.sources_sha256("add_relu") != before


def test_python_without_comments():
    source = '"""Doc\nstring."""\nx = "# no"  # yes\n\n\ndef f():\n    """Doc."""\n    return """kept"""\n'
    assert status.without_comments_python(source) == 'x = "# no"\ndef f():\n    return """kept"""'


def test_cpp_without_comments():
    source = 'int a; // yes\nchar c = \'"\', d = \'/\';\n/* yes\n*/ const char* s = "// \\" /* no */";\n'
    source += "int e = 1'000; // yes"
    expected = 'int a;\nchar c = \'"\', d = \'/\';\n  const char* s = "// \\" /* no */";\nint e = 1\'000;'
    assert status.without_comments_cpp(source) == expected


def test_an_unknown_op_has_no_hash():
    with pytest.raises(ValueError, match="unknown op 'relu': expected one of add_mul_activation, add_relu"):
        status.sources_sha256("relu")


# ------------------------------------------------------------------------------------------------------------------
# Measuring, with a clock that is told what to say.


class Clock:
    """Replays by calling again; every replay takes `times` µs."""

    device = torch.device("cpu")

    def __init__(self, times=(30.0, 10.0, 20.0)):
        self.given, self.spoil = list(times), lambda: None

    def on_side_stream(self, work):
        return work()

    def capture(self, work):
        outputs = work()

        def replay():
            for output, new in zip(outputs, work(), strict=True):
                if output is not new:
                    output.copy_(new)

        return replay, outputs

    def times(self, replays):
        for replay in replays.values():
            replay()
        self.spoil()
        return dict.fromkeys(replays, self.given)

    def synchronize(self):
        pass

    def clear(self):
        pass

    def copy(self, op):
        row = Row(op, "copy", "copy", "b.copy_(a)", 1, 2**30, "uint8", "", bytes=2**31)
        return replace(row, us_p20=499.0, us_p50=500.0, us_p80=501.0)


@pytest.fixture(autouse=True)
def _small_sets(monkeypatch):
    monkeypatch.setattr(bench, "INPUT_BYTES", 5000)


def cell(form="functional", dtype=torch.float32, **implementations):
    functions = {
        "eager": lambda: kernels.add_relu_ if form == "in place" else kernels.add_relu,
        **{name: (lambda f=function: f) for name, function in implementations.items()},
    }
    return Cell("bandwidth", "add_relu", form, (4, 8), dtype, (), inputs, functions, 256, 64)


def inputs(draw):
    return draw(4, 8), draw(8)


def rows_of(measured):
    return {row.implementation: row for row in measured}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("form", ["functional", "in place", "backward"])
def test_a_match_is_timed_and_divided_by_the_calls(form, dtype):
    found = cell(form, dtype)
    sets = len(bench._draw_sets(found, Clock.device))
    assert 4 < sets < 100
    row = rows_of(bench.measure(found, Clock()))["eager"]
    assert row.match == "ok"
    assert (row.us_p20, row.us_p50, row.us_p80) == pytest.approx([t / sets for t in (14, 20, 26)])
    assert row.call_us > 0
    assert bench.with_rates(row, 1e-4).percent_of_copy == pytest.approx(100 * 256 / row.us_p50 / 1e6 / 1e-4)


@pytest.mark.parametrize(
    ("form", "wrong"),
    [
        ("functional", lambda x, bias: torch.relu(x + bias) + 1e-3),
        ("functional", lambda x, bias: torch.relu(x + bias)[:2]),
        ("functional", lambda x, bias: x),
        ("functional", lambda x, bias: x.add_(bias).relu_().clone()),
        ("functional", lambda x, bias: torch.relu(x + bias).bfloat16()),
        ("in place", lambda x, bias: torch.relu(x + bias)),  # not in place
        ("in place", lambda x, bias: x.add_(bias)),
        ("backward", lambda x, bias: torch.relu(x + 1.001 * bias)),
        ("backward", lambda x, bias: torch.relu(x + bias.detach())),
    ],
)
def test_what_does_not_match_gets_no_time(form, wrong):
    rows = rows_of(bench.measure(cell(form, wrong=wrong), Clock()))
    assert rows["eager"].match == "ok"
    assert rows["wrong"].match.startswith("FAILED: ")
    assert (rows["wrong"].us_p50, rows["wrong"].call_us) == (None, None)
    assert "µs" not in bench.line(rows["wrong"])


def test_what_raises_fails_alone_and_shows_no_path():
    def raising(x, bias):
        raise RuntimeError("no such file: /home/someone/secret/kernel.cuh\nmore")

    rows = rows_of(bench.measure(cell(raising=raising), Clock()))
    assert rows["eager"].match == "ok"
    assert rows["raising"].match == "FAILED: RuntimeError: no such file: kernel.cuh more"
    nothing = replace(cell(), inputs=lambda draw: draw(-1))
    assert bench.measure(nothing, Clock())[0].match.startswith("FAILED: RuntimeError")


def test_what_goes_wrong_while_timed_gets_no_time():
    state = {"error": 0.0}
    clock = Clock()
    clock.spoil = lambda: state.update(error=1.0)
    rows = rows_of(bench.measure(cell(later=lambda x, b: torch.relu(x + b) + state["error"]), clock))
    assert rows["eager"].match == "ok"
    assert rows["later"].match.startswith("FAILED: AssertionError")


def test_eager_in_half_precision_is_held_against_what_rounding_allows():
    clock, bf16 = Clock(), torch.bfloat16

    def measured(name, function):
        found = replace(cell(dtype=bf16), implementations={name: lambda: function})
        return bench.measure(found, clock)[0].match

    assert measured("eager", lambda x, bias: torch.relu(x + bias + 0.2)).startswith("FAILED")
    assert measured("triton", lambda x, bias: torch.relu(x + bias + 0.02)).startswith("FAILED")


def test_calls_are_timed_and_held_against_the_op():
    statements = {"x + 1": "x + 1", "eager": "eager(x, bias)", "wrong": "x + bias", "raising": "add_relu(x)"}
    names = ("x", "bias")
    calls = Calls("add_relu", "functional", (4, 8), torch.float32, (), inputs, names, "x + 1", statements)
    rows = rows_of(bench.measure_calls(calls, Clock(), batch=3, batches=2))
    assert [rows[name].match.split(":")[0] for name in statements] == ["baseline", "ok", "FAILED", "FAILED"]
    assert [rows[name].call_us is not None for name in statements] == [True, True, False, False]


def test_call_times_are_medians_of_batches_by_turns():
    order = []
    functions = {name: (lambda name=name: order.append(name)) for name in "ab"}
    times = bench.call_times(functions, 2, 3, lambda: order.append("|"))
    assert "".join(order) == "|aa|bb" * 4 + "|"  # the first batches warm up
    assert set(times) == {"a", "b"}
    seconds = iter([9.0, 1.0, 2.0, 4.0])
    assert bench._batches({"a": lambda calls: next(seconds)}, 2, 3, lambda: None) == {"a": 1e6}


def test_no_call_of_a_graph_writes_to_anothers_output():
    outputs = []

    def function(x, bias):
        outputs.append(weakref.ref(output := torch.relu(x + bias)))
        alive.append(sum(other() is not None for other in outputs))
        return output

    class Watching(Clock):
        def capture(self, work):
            outputs.clear()
            alive.clear()
            captured = super().capture(work)
            assert alive == [*range(1, len(outputs) + 1)]
            return captured

    alive = []
    found = replace(cell(), implementations={"eager": lambda: function})
    assert bench.measure(found, Watching())[0].match == "ok"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_eager_relu_gradients_match_at_the_size_that_is_measured(dtype):
    """Of 33 million z near 0 rounding puts some on relu's other side: the inputs must stay away from it."""
    module = importlib.import_module("kernels.ops.add_mul_activation.bench")
    x, bias, y = module._off_the_kink(4096, 512)(bench._generator(dtype, Clock.device))
    rounded = x + module.MULTIPLIER * y + bias
    assert torch.equal(rounded > 0, x.double() + module.MULTIPLIER * y.double() + bias.double() > 0)
    assert rounded.abs().min() > 0.25


def test_percentiles():
    assert bench.percentiles([5.0, 1.0, 3.0, 2.0, 4.0, 6.0]) == pytest.approx((2.0, 3.5, 5.0))


@pytest.mark.parametrize("op", bench.ops())
@pytest.mark.parametrize("quick", [False, True])
def test_every_op_measures_what_the_summary_judges(op, quick):
    found = list(importlib.import_module(f"kernels.ops.{op}.bench").cells(quick))
    assert {"bandwidth", "calls", "backward"} <= {c.part for c in found}
    for c in found:
        if isinstance(c, Cell):
            assert set(bench.OURS) <= set(c.implementations)
            assert c.bytes >= c.shape[0] * c.shape[1] * c.dtype.itemsize
        else:
            assert {c.baseline, *bench.OURS} <= set(c.statements)
    if op == "add_mul_activation" and not quick:
        grid = [c for c in found if c.part == "grid"]
        assert len(grid) == 71  # 9 × 8 without 2^18 × 4097, more than 2 GiB
        assert all(set(bench.PEERS) <= set(c.implementations) for c in grid)


# ------------------------------------------------------------------------------------------------------------------
# The verdicts.


def row(implementation, us=None, call=None, *, form="functional", shape=(100, 10), dtype="float32", match="ok"):
    times = (us, us, us, call)
    return Row("add_relu", "bandwidth", form, implementation, *shape, dtype, "", *times, 4_000_000, 2000, match=match)


def test_bandwidth_verdict():
    # 4 MB at 4 TB/s: 1 µs.
    good = [row("triton", 1.02), row("cuda", 1.0), row("cuda", 1.04, dtype="bfloat16"), row("eager", 9.0)]
    met, figure, misses = bench.judge_bandwidth(good, 4.0)
    assert (met, misses) == (True, [])
    assert figure.startswith("triton at worst 1.020 of 1, cuda at worst 1.040 of 2 ×")
    met, _, misses = bench.judge_bandwidth([*good, row("triton", 1.04)], 4.0)
    assert (met, misses) == (False, ["triton functional 100×10 float32: 1.040"])
    assert not bench.judge_bandwidth([*good, row("triton", match="FAILED: x")], 4.0)[0]
    assert not bench.judge_bandwidth(good[:1], 4.0)[0]


def test_grid_verdict():
    def cells(count, triton, cuda, peer=100.0):
        return [
            row(name, us, shape=(peer, i))
            for i in range(count)
            for name, us in (("eager", 3 * peer), ("jit", peer), ("triton", triton * peer), ("cuda", cuda * peer))
        ]

    met, figure, misses = bench.judge_grid([*cells(19, 1.04, 1.05), *cells(1, 1.3, 1.2, peer=50.0)])
    assert met
    assert "triton within the limit in 95.0%; cuda within the limit in 95.0% of 20 cells" in figure
    assert misses == ["50.0×0: triton 1.300, cuda 1.200; limit 1.05, jit 50.00 µs; better 1.200"]
    assert not bench.judge_grid(cells(19, 1.04, 1.05) + cells(1, 1.3, 1.26, peer=50.0))[0]
    assert not bench.judge_grid(cells(18, 1.0, 1.0) + cells(2, 1.0, 1.1, peer=50.0))[0]
    assert bench.judge_grid(cells(20, 1.14, 1.15, peer=8.0))[0]
    assert not bench.judge_grid(cells(20, 1.0, 1.16, peer=8.0))[0]
    assert not bench.judge_grid([row("jit", 1.0), row("cuda", 1.0), row("triton", match="FAILED: x")])[0]


def test_calls_verdict():
    def rows(cuda, form):
        return [
            row("x + 1", call=10.0, form=form, match="baseline"), row("eager", call=9.0, form=form),
            row("triton", call=20.0, form=form), row("cuda", call=cuda, form=form),
        ]  # fmt: skip

    met, figure, _ = bench.judge_calls(rows(12.0, "in place") + rows(11.0, "functional"))
    assert met
    assert "in place: eager 0.90, triton 2.00, cuda 1.20 × x + 1 (10.00 µs)" in figure
    assert not bench.judge_calls(rows(12.0, "in place") + rows(12.1, "functional"))[0]
    assert not bench.judge_calls(rows(None, "in place"))[0]


def test_backward_verdict():
    rows = [row("torch.compile", 10.0), row("triton", 11.0), row("cuda", 9.0)]
    assert bench.judge_backward(rows)[0]
    rows += [row("torch.compile", 5.0, dtype="bfloat16"), row("cuda", 6.0, dtype="bfloat16")]
    met, _, misses = bench.judge_backward(rows)
    assert (met, misses) == (False, ["cuda functional 100×10 bfloat16: 1.200"])
    assert not bench.judge_backward([row("triton", 11.0), row("cuda", 9.0)])[0]


# ------------------------------------------------------------------------------------------------------------------
# Records.


@pytest.fixture
def record(monkeypatch):
    """What a run of two small cells gives, as on an H200."""
    module = importlib.import_module("kernels.ops.add_relu.bench")
    broken = cell(broken=lambda x, bias: x)
    dtypes = (torch.float32, torch.float64)
    monkeypatch.setattr(module, "cells", lambda quick: [replace(broken, dtype=dtype) for dtype in dtypes])
    versions = runtime.versions() | {"GPU": "NVIDIA H200", "driver": "580.1"}
    monkeypatch.setattr(runtime, "versions", lambda: versions)
    return bench.run("add_relu", Clock())


def test_saved_is_complete_and_read_back(record, tmp_path, capsys):
    path = bench.save(record, tmp_path)
    assert path == tmp_path / "h200" / "add_relu.json"
    assert [p.name for p in path.parent.iterdir()] == ["add_relu.json"]
    saved = json.loads(path.read_text())
    assert {"GPU", "driver", "torch", "triton", "CUDA", "Python", "date", "copy_tb_per_s"} <= set(saved)
    assert saved["sources_sha256"] == status.sources_sha256("add_relu")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", saved["date"])
    assert saved["copy_tb_per_s"]["before"] == pytest.approx(2**31 / 500e6, rel=1e-4)
    assert len(saved["rows"]) == 6
    assert all(set(r) == set(Row.__dataclass_fields__) for r in saved["rows"])
    good = next(r for r in saved["rows"] if r["implementation"] == "eager")
    assert good["tb_per_s"] == pytest.approx(256 / good["us_p50"] / 1e6, rel=1e-3)
    assert good["percent_of_copy"] == pytest.approx(100 * good["tb_per_s"] / (2**31 / 500e6), rel=1e-3)
    text = path.read_text()
    assert str(ROOT) not in text
    assert not re.search(r'"/|/home|/root|/tmp', text)

    frame = bench.recorded("add_relu", results=tmp_path)
    assert len(frame) == 6
    assert frame.attrs["GPU"] == "NVIDIA H200"
    assert bench.recorded("add_relu", "h200", tmp_path).attrs == frame.attrs
    with pytest.raises(FileNotFoundError, match="add_relu: nothing recorded on a100"):
        bench.recorded("add_relu", "a100", tmp_path)

    capsys.readouterr()
    bench.show("add_relu", tmp_path)
    shown = capsys.readouterr().out
    assert shown.startswith("add_relu, recorded on NVIDIA H200, ")
    assert "its sources have not changed since." in shown
    assert shown.count("\nadd_relu  ") == 6
    assert "FAILED: broken functional 4×8 float64: FAILED: AssertionError" in shown
    bench.save(record | {"sources_sha256": "0"}, tmp_path)
    bench.show("add_relu", tmp_path)
    assert "its sources have changed since." in capsys.readouterr().out


def test_a_save_that_fails_leaves_the_old_record(record, tmp_path, monkeypatch):
    before = bench.save(record, tmp_path).read_bytes()

    def fails(self, *arguments):
        self.write_bytes(b"{")
        raise OSError("disk full")

    monkeypatch.setattr(Path, "write_text", fails)
    with pytest.raises(OSError, match="disk full"):
        bench.save(record | {"date": "2100-01-01"}, tmp_path)
    assert [p.read_bytes() for p in (tmp_path / "h200").iterdir()] == [before]


@pytest.mark.parametrize(
    ("name", "folder"), [("NVIDIA H200", "h200"), ("NVIDIA H100 80GB HBM3", "h100-80gb-hbm3"), ("Tesla T4", "tesla-t4")]
)
def test_slug(name, folder):
    assert status.slug(name) == folder


@without_gpu
def test_bench_without_a_gpu_shows_the_record_and_measures_nothing(capsys):
    assert bench.main(["add_relu", "--save"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("No GPU here: nothing is measured.")
    assert "add_relu" in shown
    assert ("recorded on" in shown) == bool(status.recorded_files("add_relu.json"))


def test_bench_does_not_save_a_part(capsys):
    with pytest.raises(SystemExit, match="2"):
        bench.main(["--quick", "--save"])
    assert "--quick measures a part" in capsys.readouterr().err


def test_bench_names_its_ops(capsys):
    with pytest.raises(SystemExit, match="2"):
        bench.main(["add_rely"])
    assert "unknown op add_rely: expected one of add_mul_activation, add_relu" in capsys.readouterr().err


def test_status_says_what_changed_since(record, tmp_path):
    bench.save(record, tmp_path)
    counts = {"passed": 41, "failed": 0, "skipped": 2}
    entry = counts | {"GPU": "NVIDIA H200", "date": "2026-01-31", "sources_sha256": "0"}
    (tmp_path / "h200" / "tests.json").write_text(json.dumps({"add_relu": entry}))
    table = status.table(tmp_path)
    assert "tested    H200 2026-01-31: 41 passed, 2 skipped, sources changed since\n" in table
    assert re.search(r"add_relu\n.*\n    measured  H200 \d{4}-\d\d-\d\d$", table)
    assert table.startswith("add_mul_activation\n    tested    never\n    measured  never\n")
    assert "| H200 2026-01-31: 41 passed, 2 skipped, sources changed since |" in status.readme_table(tmp_path)


def test_the_readmes_show_the_records_and_their_links_exist(record, tmp_path):
    for path, text in status.pages().items():
        assert path.read_text() == text, f"{path.name} is not up to date: python -m kernels.measure status --write"
        links = re.findall(r"\]\(([\w./]+)\)", text)
        assert len(links) > 3
        assert all((path.parent / link).exists() for link in links)
    rows = [asdict(replace(row(name, us), rows=65536, columns=512)) for name, us in (("eager", 9.04), ("cuda", 3.0))]
    bench.save(record | {"rows": rows}, tmp_path)
    shown = "[eager.py](ops/add_relu/eager.py) 9.0 µs | – | [triton_kernel.py](ops/add_relu/triton_kernel.py) |"
    assert shown in status.readme_table(tmp_path)
    with pytest.raises(ValueError, match="must have the lines"):
        status.with_table("# kernels", "")


# ------------------------------------------------------------------------------------------------------------------
# make gpu.


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


def test_every_step_runs_whatever_came_before(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(gpu, "LOGS", tmp_path / "gpu")
    for name in ("README", "FRONT_PAGE"):
        monkeypatch.setattr(status, name, tmp_path / name)
        getattr(status, name).write_text(f"# kernels\n{status.BEGIN}\n{status.END}\n")
    monkeypatch.setattr(runtime, "device", lambda: torch.device("cuda"))
    ran = []
    for step in gpu.STEPS:

        def run(*_, step=step):
            ran.append(step)
            if step == "ctest":
                raise OSError("no make")
            return [gpu.Outcome(step, "3 passed", failed=["test_x: boom"] if step == "pytest" else [])]

        monkeypatch.setattr(gpu, f"run_{step}", run)
    assert gpu.main([]) == 1
    assert tuple(ran) == gpu.STEPS
    shown = capsys.readouterr().out
    assert re.search(r"pytest +FAILED .*3 passed\n    failed   test_x: boom\n", shown)
    assert re.search(r"ctest +FAILED .*\n    failed   OSError: no make\n", shown)
    assert re.search(r"bench +ok ", shown)
    assert status.readme_table() in status.README.read_text()
    assert status.result_table() in status.FRONT_PAGE.read_text()
    assert gpu.main(["--only", "bench,sanitizer"]) == 0


def test_the_counts_of_a_junit_file(tmp_path, monkeypatch):
    (tmp_path / "kernels" / "ops" / "add_relu").mkdir(parents=True)
    (tmp_path / "kernels" / "ops" / "add_relu" / "test_add_relu.py").write_text(
        "import pytest\ndef test_a(): pass\ndef test_b(): assert 0\n"
        "@pytest.mark.skip(reason='no CUDA')\ndef test_c(): pass\n"
    )
    (tmp_path / "test_d.py").write_text("import nbval_is_not_here\n")
    (tmp_path / "test_e.py").write_text("import kernels.nowhere\n")
    (tmp_path / "test_f.py").write_text("def test_f(): import nbval_is_not_here\n")
    options = ["--continue-on-collection-errors", "--junitxml=junit.xml", "-c", "/dev/null", "--rootdir=."]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout
    suite = gpu.read_junit(tmp_path / "junit.xml")
    assert suite.not_collected == ["test_d: the package nbval_is_not_here is missing"]
    assert suite.counts("add_relu") == {"passed": 1, "failed": 1, "skipped": 1}
    assert suite.counts() == {"passed": 1, "failed": 3, "skipped": 1}
    versions = runtime.versions() | {"GPU": "NVIDIA H200"}
    monkeypatch.setattr(runtime, "versions", lambda: versions)
    entries = json.loads(gpu.record_tests(suite, tmp_path).read_text())
    assert list(entries) == ["add_relu"]  # of the other op nothing ran
    assert entries["add_relu"]["failed"] == 1
    assert entries["add_relu"]["sources_sha256"] == status.sources_sha256("add_relu")
    without = gpu.Suite([("a", "add_relu", "passed", ""), ("b", "add_relu", "skipped", "no CUDA device")])
    assert json.loads(gpu.record_tests(without, tmp_path).read_text()) == entries


def test_a_command_that_fails_or_hangs_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "LOGS", tmp_path)
    monkeypatch.setattr(gpu, "ROOT", tmp_path)
    outcome, output = gpu.command("a b", [sys.executable, "-c", "print('x'); raise SystemExit(3)"])
    assert output == "x\n" == (tmp_path / "a-b.log").read_text()
    assert outcome.failed == ["exit status 3; the log ends: x"]
    monkeypatch.setattr(gpu, "STEP_SECONDS", 0.5)
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
    monkeypatch.setattr(gpu, "command", lambda *a, **k: (outcome, printed))
    monkeypatch.setattr(shutil, "which", lambda name, **k: f"/bin/{name}")
    assert gpu.run_ctest() == [outcome]
    assert outcome.counts == counts
    assert [line.split(" ")[0] if line.startswith("exit") else line for line in outcome.failed] == failed
    assert outcome.skipped == skipped


def test_sanitizer_runs_every_tool_on_every_binary(tmp_path, monkeypatch):
    (tmp_path / "build" / "cmake").mkdir(parents=True)
    for name in ("add_relu_test", "add_relu_test_host_asan"):
        (tmp_path / "build" / "cmake" / name).touch(0o755)
    monkeypatch.setattr(gpu, "ROOT", tmp_path)
    monkeypatch.setattr(gpu, "compute_sanitizer", lambda: "compute-sanitizer")
    ran = []

    def command(name, arguments, **environment):
        ran.append(name)
        assert "--error-exitcode" in arguments
        printed = "========= ERROR SUMMARY: 0 errors\n4 passed in 2 s"
        return gpu.Outcome(name), "" if name == "initcheck add_relu_test" else printed

    monkeypatch.setattr(gpu, "command", command)
    outcomes = gpu.run_sanitizer()
    assert ran == [*(f"{tool} add_relu_test" for tool in gpu.TOOLS), "memcheck pytest"]
    assert [bool(outcome.failed) for outcome in outcomes] == [False, False, True, False]
    assert outcomes[-1].counts == "0 errors; 4 passed in 2 s"
    monkeypatch.setattr(gpu, "compute_sanitizer", lambda: None)
    assert "not installed" in gpu.run_sanitizer()[0].skipped[0]
