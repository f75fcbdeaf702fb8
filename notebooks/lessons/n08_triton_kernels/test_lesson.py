"""Lesson 08: what is measured of which step, its pictures and tables, what the compiler says."""

import pytest
import torch

pytest.importorskip("matplotlib")

from kernels import runtime
from kernels.check import OutOfBounds
from lessons.n08_triton_kernels import compiled, experiment, on_your_machine, pictures, recorded, steps
from lessons.n08_triton_kernels import puzzles as triton_puzzles

triton = pytest.importorskip("triton")  # after kernels, which chooses the interpreter
tl = triton.language
interpreted = pytest.mark.skipif(runtime.triton_mode() != "interpreted", reason="Triton is not interpreted here")


@triton.jit
def unmasked_loads(x, bias, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i) + tl.load(bias + i), i < n)


@interpreted
def test_each_step_is_measured_where_it_is_written_for_the_type():
    lesson = experiment.Pointwise(torch.device("cpu"))
    lesson.measure(["step", "relu"])
    measured = {(row["name"], row["shape"], row["dtype"]) for row in lesson.rows if row["part"] == "step"}
    for step in steps.STEPS:
        for shape in steps.SHAPES:
            assert (step.name, shape, "float32") in measured
            assert ((step.name, shape, "bfloat16") in measured) == step.in_half
    values = {row["name"]: row["values"] for row in lesson.rows if row["part"] == "values"}
    assert [values[form][0] for form in steps.RELUS] == ["0.0", "nan", "nan"]
    assert values["maximum"][4] == "0.0"
    assert values["where"][4] == "-0.0"


def test_pictures_and_tables(capsys):
    for figure in (pictures.draw_steps(), pictures.draw_edge(48, 46), pictures.draw_gelu(), pictures.draw_duels()):
        figure.canvas.draw()
    recorded.print_steps({"two ways": 94})
    recorded.print_gelus()
    assert capsys.readouterr().out.count("written for float32") == 10


def test_arithmetic():
    assert recorded.issue_us(1) == pytest.approx(65536 * 512 / 32 / (4 * 132) / 1980, rel=1e-3)
    assert recorded.bytes_us() == pytest.approx(2 * recorded.bytes_us("bfloat16"))
    found = recorded.duels()
    assert len(found) == 41
    assert not (found["won"] & found["lost"]).any()


def test_a_step_changes_the_lines_that_it_says(capsys):
    steps.print_change("two ways", "float32 inside")
    lines = capsys.readouterr().out.splitlines()[1:]
    assert len(lines) == 6
    assert all("to(tl.float32)" in line for line in lines if line.startswith("  +"))


def test_what_the_compiler_makes_of_the_steps():
    jobs = [(name, "float32", "even") for name in ("as generated", "names", "maximum", "where")]
    odd = [(name, "float32", "odd") for name in ("any multiplier", "two ways")]
    half = [(name, "bfloat16", "even") for name in ("names", "gelu by erf")]
    generated, names, maximum, where, masked, split, literal, erf = (
        compiled.made(*job) for job in jobs + odd + half
    )
    assert "bf16" in literal.error
    assert generated.instructions == names.instructions
    assert erf.a_number > 30
    assert (maximum.chosen_by, where.chosen_by) == (("max.f32",), ("setp.lt.f32", "selp.f32"))
    assert set(masked.loads) == {4}
    assert 16 in split.loads


def test_relu_here(capsys):
    on_your_machine.relus()
    lines = {line.split()[0]: line.split()[1:] for line in capsys.readouterr().out.splitlines()}
    assert lines["maximum"][0] == "0.0"
    assert lines["propagate_nan"][0] == lines["where"][0] == "nan"


def test_a_load_beside_a_tensor_is_seen_where_it_leaves_no_trace():
    with pytest.raises(OutOfBounds, match="load from x is out of bounds: the first is at offset 40"):
        triton_puzzles.look_beside(unmasked_loads, 40)
