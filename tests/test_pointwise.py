"""model.pointwise: the recorder in small, the pictures with and without a record, what the compiler says."""

import json

import pytest
import torch

pytest.importorskip("matplotlib")

from kernels import runtime
from kernels.check import OutOfBounds
from kernels.measure import records
from kernels.ops.add_relu import triton_puzzles
from model.pointwise import __main__ as command
from model.pointwise import compiled, drawing, facts, here, record, steps

triton = pytest.importorskip("triton")  # after kernels, which chooses the interpreter
tl = triton.language
CPU = torch.device("cpu")
interpreted = pytest.mark.skipif(runtime.triton_mode() != "interpreted", reason="Triton is not interpreted here")
TINY = {"even": (2, 512), "odd": (1, 511)}


@triton.jit
def unmasked_loads(x, bias, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i) + tl.load(bias + i), i < n)


@pytest.fixture(scope="module")
def rows():
    return record.Recorder(CPU, TINY).measure()


@pytest.fixture
def results(tmp_path, monkeypatch):
    """Where the lesson's record is looked for: an empty folder."""
    folder = tmp_path / records.README_GPU
    folder.mkdir()
    real = facts.recorded
    found = lambda name: records.recorded(name, results=tmp_path) if name == record.NAME else real(name)  # noqa: E731
    monkeypatch.setattr(facts, "recorded", found)
    return folder


def as_on_a_gpu(rows):
    """The rows with what the interpreter lacks: code, and torch.compile's times."""
    added = {"registers": 32, "instructions": 320, "branches": 0}
    rows = [row | added if "name" in row and row["part"] != "values" else row for row in rows]
    theirs = [row | {"name": "torch.compile"} for row in rows if row.get("name") == "the op"]
    return {"op": record.NAME, "GPU": "NVIDIA H200", "rows": rows + theirs}


@interpreted
def test_everything_is_measured_in_small(rows):
    assert {row["match"] for row in rows} == {"ok"}
    assert all(row["us_p50"] > 0 for row in rows if row["part"] != "values")
    measured = {(row["name"], row["shape"], row["dtype"]) for row in rows if row["part"] == "step"}
    for each in steps.STEPS:
        for shape in steps.SHAPES:
            assert (each.name, shape, "float32") in measured
            assert ((each.name, shape, "bfloat16") in measured) == each.in_half
    values = {row["name"]: row["values"] for row in rows if row["part"] == "values"}
    assert [values[form][0] for form in steps.RELUS] == ["0.0", "nan", "nan"]
    assert values["maximum"][4] == "0.0"
    assert values["where"][4] == "-0.0"


@interpreted
def test_a_wrong_result_has_no_time(monkeypatch):
    monkeypatch.setattr(steps.Step, "launch", lambda self, x, bias, y, out: None)
    recorder = record.Recorder(CPU, TINY)
    recorder.gelu()
    found = {row["name"]: row for row in recorder.rows if row.get("name")}
    assert found["gelu by erf"]["match"] == "FAILED: the result is wrong"
    assert "us_p50" not in found["gelu by erf"]
    assert found["the op"]["match"] == "ok"


@interpreted
def test_one_that_raises_does_not_take_the_others_along(monkeypatch, capsys):
    def launch(self, *arguments):
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(steps.Step, "launch", launch)
    recorder = record.Recorder(CPU, TINY)
    recorder.gelu()
    found = [row["match"] for row in recorder.rows if row.get("dtype") == "float32"]
    assert found.count("FAILED: RuntimeError: no such kernel") == 2
    assert found.count("ok") == 2  # the op and the copy


def test_the_command_asks_for_a_gpu_and_saves_nothing_less(monkeypatch):
    monkeypatch.setattr("kernels.runtime.device", lambda: CPU)
    for arguments in ([], ["--save", "--device", "cpu"], ["--only", "nothing"]):
        with pytest.raises(SystemExit, match="2"):
            command.main(arguments)


@interpreted
@pytest.mark.parametrize("with_record", [False, True])
def test_pictures_and_tables(results, rows, with_record, capsys):
    if with_record:
        (results / f"{record.NAME}.json").write_text(json.dumps(as_on_a_gpu(rows)))
    figures = [drawing.draw_steps()]
    if with_record:
        figures += [drawing.draw_edge(48, 46), drawing.draw_gelu(), drawing.draw_duels()]
    for figure in figures:
        figure.canvas.draw()
    facts.print_steps({"two ways": 94})
    facts.print_relus()
    facts.print_gelus()
    out = capsys.readouterr().out
    assert ("not recorded yet" in out) == (not with_record)
    assert out.count("written for float32") == 10
    if with_record:
        assert facts.a_number(facts.one("gelu", name="gelu by erf", dtype="float32")) == 40


def test_arithmetic():
    assert facts.issue_us(1) == pytest.approx(65536 * 512 / 32 / (4 * 132) / 1980, rel=1e-3)
    assert facts.bytes_us() == pytest.approx(2 * facts.bytes_us("bfloat16"))
    found = facts.duels()
    assert len(found) == 41
    assert not (found["won"] & found["lost"]).any()


def test_a_step_changes_the_lines_that_it_says(capsys):
    facts.print_change("two ways", "float32 inside")
    lines = capsys.readouterr().out.splitlines()[1:]
    assert len(lines) == 6
    assert all("to(tl.float32)" in line for line in lines if line.startswith("  +"))


def test_what_the_compiler_makes_of_the_steps():
    jobs = [(name, "float32", "even") for name in ("as generated", "names", "maximum", "where")]
    odd = [(name, "float32", "odd") for name in ("any multiplier", "two ways")]
    half = [(name, "bfloat16", "even") for name in ("names", "gelu by erf")]
    generated, names, maximum, where, masked, split, literal, erf = compiled.made(*jobs, *odd, *half)
    assert "bf16" in literal.error
    assert generated.instructions == names.instructions
    assert erf.a_number > 30
    assert (maximum.chosen_by, where.chosen_by) == (("max.f32",), ("setp.lt.f32", "selp.f32"))
    assert set(masked.loads) == {"4"}
    assert "16" in split.loads


def test_relu_here(capsys):
    here.relus()
    lines = {line.split()[0]: line.split()[1:] for line in capsys.readouterr().out.splitlines()}
    assert lines["maximum"][0] == "0.0"
    assert lines["propagate_nan"][0] == lines["where"][0] == "nan"


def test_a_load_beside_a_tensor_is_seen_where_it_leaves_no_trace():
    with pytest.raises(OutOfBounds, match="load from x is out of bounds: the first is at offset 40"):
        triton_puzzles.look_beside(unmasked_loads, 40)
