"""Lesson 09: its kernels are the cells' and the answers', what is counted in machine code, its pictures and tables, its
default of chunks."""

import ast
import json
import re
from pathlib import Path

import pytest
import torch

pytest.importorskip("matplotlib")

from kernels import runtime
from kernels.device.column_sum_launch import row_chunks, tile_shape
from lessons.n09_a_backward import (
    arithmetic,
    inductor_lines,
    machine_code,
    pictures,
    puzzles,
    recorded,
    sum_kernels,
    sum_launch,
)
from lessons.n09_a_backward.sum_launch import launch
from lessons.shared import answers
from lessons.shared.records import ADD_MUL_ACTIVATION, apart

interpreted = pytest.mark.skipif(runtime.triton_mode() != "interpreted", reason="Triton is not interpreted here")
ROOM = Path(__file__).resolve().parent
NOTEBOOK = ROOM.parents[1] / f"{ROOM.name.removeprefix('n')}.ipynb"


def cells() -> list[str]:
    """The notebook's code."""
    entries = json.loads(NOTEBOOK.read_text())["cells"]
    return ["".join(cell["source"]) for cell in entries if cell["cell_type"] == "code"]


def kernels(source: str) -> dict[str, str]:
    """The text of each kernel, its decorator with it."""
    lines = source.splitlines()
    functions = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef) and node.decorator_list]
    return {node.name: "\n".join(lines[node.decorator_list[0].lineno - 1 : node.end_lineno]) for node in functions}


def test_the_record_s_kernels_are_those_of_the_cells_and_the_answers():
    ours, theirs = kernels(Path(sum_kernels.__file__).read_text()), {}
    for text in [*cells(), *(answer.source for answer in answers.solutions(ROOM).values())]:  # answers last
        theirs |= kernels(text)
    assert set(ours) == {"sum_rows", "sum_tiles", "two_stage", "sum_atomic", "whole_backward"}
    assert {name: theirs.get(name) for name in ours} == ours


@interpreted
@pytest.mark.parametrize("step", [*sum_launch.STEPS, "sum_atomic", "sum_chunk"])
@pytest.mark.parametrize(("shape", "chunks"), [((37, 40), 3), ((5, 33), 5)])
def test_each_step_sums(step, shape, chunks):
    x = torch.randint(-3, 4, shape).float()
    assert torch.equal(launch(step, x, chunks, rows=4), x.sum(0))


def waits():
    """The cell's function."""
    (cell,) = (source for source in cells() if "def waits_of(" in source)
    namespace = {"re": re}
    exec(cell[: cell.index("def show_loop(")], namespace)
    return namespace["waits_of"]


def test_a_loop_waits_once_for_what_it_loads_at_once():
    load, other, use = "LDG.E R4, desc[UR4][R2.64] ;", "LDG.E.128 R8, desc[UR4][R2.64] ;", "FADD R1, R1, {} ;"
    waits_of = waits()
    assert waits_of([load, other, use.format("R4"), use.format("R11")]) == 1
    assert waits_of([load, use.format("R4"), other, use.format("R11")]) == 2
    assert waits_of([use.format("R5")]) == waits_of(["BAR.SYNC ;"]) == 0


@pytest.mark.parametrize(
    ("kernel", "warps", "count"),
    [("sum_rows", 1, 1), ("sum_tiles", 1, 2), ("sum_tiles", 4, 3), ("two_stage", 4, 3), ("sum_atomic", 4, 5)],
)
def test_the_waits_that_the_lesson_counts(kernel, warps, count):
    assert waits()(machine_code.loop_of(kernel, warps)) == count


def test_machine_code_of_what_is_no_step():
    with pytest.raises(ValueError, match=r"expected one of sum_rows, .*; got 'sum'"):
        machine_code.sass_of("sum", 4)


def test_the_lesson_s_number_of_chunks_is_the_best_of_its_record():
    """None is faster beyond the spread and 3 %, of either way; and of the op's none at all."""
    for step in recorded.WAYS.values():
        rows = recorded.BACKWARD.rows("chunks", step=step)
        best = rows.loc[rows["us_p50"].idxmin()]
        assert not apart(best, recorded.BACKWARD.one("chunks", step=step, chunks=sum_launch.CHUNKS))
    for activation in ("relu", "gelu"):
        rows = recorded.BACKWARD.rows("op", activation=activation, sums=True)
        assert rows.loc[rows["us_p50"].idxmin()]["chunks"] == recorded.OP_CHUNKS
    rows, columns = arithmetic.ROWS, arithmetic.COLUMNS
    assert row_chunks(rows, columns, tile_shape(columns, 4)[1])[0] == recorded.OP_CHUNKS


def test_the_cells_take_these_numbers_of_chunks():
    text = "\n".join(cells())
    assert f'show("two stages", partial(in_two_stages, {sum_launch.CHUNKS}), chunks={sum_launch.CHUNKS})' in text
    assert f"{recorded.OP_CHUNKS} if on_gpu else" in text


def test_pictures():
    for draw in (pictures.draw_two_stage, pictures.draw_chunks, pictures.draw_op):
        draw().canvas.draw()


def test_what_is_printed(capsys):
    recorded.show_sum("sum_rows", guess=7, mine=12.34)
    recorded.show_sum("two stages", chunks=7)
    recorded.show_sum("sum_tiles", warps=3)
    first, second, third = capsys.readouterr().out.splitlines()
    us = f"{recorded.sum_row('sum_rows')['us_p50']:,.1f}"
    assert first.split() == ["sum_rows", "H200", us, "µs,", "here", "12.3", "µs;", "your", "prediction:", "7"]
    assert second.startswith("two stages, chunks: 7  ")
    assert second.endswith(third.rpartition("   ")[2])
    assert third.endswith(recorded.NO_RECORD)
    recorded.show_backward({"relu": "me"})
    lines = capsys.readouterr().out.splitlines()
    by_turns = "backward" in set(recorded.BACKWARD.table()["part"])
    others = [line for line in lines if line.startswith("These times come from several runs")]
    assert len(others) == (not by_turns)
    assert [line.split()[0] for line in lines if line not in others] == ["relu", "sigmoid", "gelu"]
    assert lines[0].endswith("your prediction: me")
    assert f"torch.compile {recorded.backward('torch.compile', 'relu')['us_p50']:.1f} µs (17 bytes)" in lines[0]
    assert lines[0].startswith("relu    H200: ")
    recorded.show_training({("gelu", "triton"): 5.0})
    assert capsys.readouterr().out.splitlines()[-1].split()[-3:] == ["5.0", "0", "MB"]


def test_what_the_part_backward_will_have_goes_before_what_stands_in_for_it(monkeypatch):
    import pandas

    def with_it(name: str, **labels):
        if name == "backward":
            return pandas.Series(labels | {"us_p50": 1.0})
        raise LookupError

    assert recorded.backward("triton", "relu")["us_p50"] > 10
    monkeypatch.setattr(recorded.BACKWARD.__class__, "one", lambda self, name, **labels: with_it(name, **labels))
    for name in ("triton", "cuda", "the lesson's"):
        assert recorded.backward(name, "relu")["us_p50"] == 1


def test_what_the_ops_own_count_says():
    for activation in arithmetic.KEPT:
        row = ADD_MUL_ACTIVATION.one("backward", implementation="triton", activation=activation, dtype="float32")
        moved = arithmetic.ELEMENTS * arithmetic.backward_bytes("triton", activation)
        assert row["bytes"] == pytest.approx(moved, rel=1e-4)


@pytest.mark.slow
def test_the_compiler_keeps_what_the_lesson_says():
    forward, backward = (inductor_lines.lines_of(module) for module in inductor_lines.modules("relu"))
    assert forward[0].endswith("out_ptr1 i1")
    assert "in_ptr0 i1" in backward[0]
    assert sum(not line.startswith(" ") for line in backward) == 3


def test_what_is_no_answer(capsys):
    assert not puzzles.attempt("kept_traffic", lambda *numbers: 0)
    for name in ("two_stage", "whole_backward"):
        assert not puzzles.attempt(name, lambda *tensors: None)
        assert puzzles.passed(name) is getattr(sum_kernels, name)
    assert capsys.readouterr().out.count("not yet") == 3
