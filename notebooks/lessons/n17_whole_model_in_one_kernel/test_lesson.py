"""Lesson 17: the reader's kernel called and counted, what a compiler reports; with a record, and without one."""

from __future__ import annotations

import pytest
import torch

from kernels import runtime
from kernels.measure import records
from lessons.n17_whole_model_in_one_kernel import mini_kernel, on_your_machine, pictures, puzzles, recorded
from lessons.shared import answers
from lessons.shared.records import LANES, Unsaved

matplotlib = pytest.importorskip("matplotlib")
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def kernel():
    source = answers.solutions(mini_kernel.ROOM)["whole_model"].source
    return source.split('"""')[1]


def test_the_kernel_is_called_from_python_and_gives_what_eager_gives(kernel, capsys):
    function = mini_kernel.inline(kernel)
    (call,) = puzzles._calls(puzzles.Case((300 % 128, 13)), runtime.device())
    torch.testing.assert_close(function(*call.tensors), puzzles.mini(*call.tensors))
    assert "built by " in capsys.readouterr().out
    with pytest.raises(RuntimeError, match="without launch"):
        mini_kernel.inline(mini_kernel.whole(kernel))


def test_what_the_kernel_touches_is_what_the_lesson_says(kernel):
    touched = puzzles.touched(kernel)
    assert touched["dense"] == (13, 13 * LANES, 52)
    assert touched["out"] == (1, 4, 4)
    for name, (accesses, sectors, _) in touched.items():
        if name.startswith(("weight", "bias")):
            assert accesses == sectors, name


def test_a_launch_of_the_readers_own_takes_the_lessons_place(kernel):
    whole = mini_kernel.whole(kernel)
    before, after = mini_kernel.AROUND.split(mini_kernel.HOLE)
    assert whole.endswith(after)
    assert mini_kernel.whole(kernel + after) == before + mini_kernel.LINE_OF["kernel"] + (kernel + after).strip() + "\n"


def test_each_mistake_is_told_from_the_others():
    """None of them gives what another, or the reference, gives for 128 rows."""
    (call,) = puzzles._calls(puzzles.Case((128, 13)), CPU)
    right = puzzles.mini(*call.tensors)
    assert puzzles.recognised(right, call.tensors) == ""
    hints = [hint for _, hint in puzzles.MISTAKES]
    assert len({*hints}) == len(hints)
    for function, hint in puzzles.MISTAKES:
        assert puzzles.recognised(function(*call.tensors), call.tensors) == hint


@pytest.mark.skipif(not runtime.nvcc(), reason="nvcc is not here")
def test_the_kernel_compiles_for_a_gpu_as_it_is_launched_there(kernel, tmp_path):
    for name, text in {"whole": mini_kernel.whole(kernel), "inline": mini_kernel.with_launcher(kernel)}.items():
        file = tmp_path / f"{name}.cu"
        file.write_text(text)
        log = on_your_machine.compile_log(file, "-arch=sm_90", f"-I{runtime.KERNELS}")
        assert "0 bytes stack frame, 0 bytes spill stores" in log  # the arrays are in registers


@pytest.mark.skipif(not runtime.nvcc(), reason="nvcc is not here")
def test_what_fits_spills_nothing_and_neither_does_what_the_budget_refuses():
    fits, refused = on_your_machine.shape(8, 16), on_your_machine.shape(16, 16)
    assert not fits.why_not()
    assert refused.why_not() == "280 numbers of a row per thread, but the budget is 160"
    for shape in (fits, refused):
        assert "    0 bytes spilled" in on_your_machine.compiler_report(shape)


@pytest.mark.slow
@pytest.mark.skipif(not runtime.nvcc(), reason="nvcc is not here")
def test_26_tables_of_width_16_would_spill():
    report = on_your_machine.compiler_report(on_your_machine.shape(26, 16))
    assert report.startswith("255 registers")
    assert "     0 bytes spilled" not in report


def test_a_launch_of_the_readers_own_is_told_from_words_that_look_like_it(kernel):
    assert mini_kernel.has_launch(mini_kernel.whole(kernel))
    bounds = kernel.replace("void forward", "void __launch_bounds__(128) forward")
    for text in (kernel, bounds, "// void launch()\n" + kernel, "/* void launch() */" + kernel):
        assert not mini_kernel.has_launch(text)


def test_what_the_compiler_reports_is_read():
    log = "    656 bytes stack frame, 2028 bytes spill stores, 2640 bytes spill loads\nptxas info : Used 255 registers"
    assert on_your_machine.report_of(log) == "255 registers,  2028 bytes spilled,  2640 read back"


def test_the_budget_of_the_puzzle_is_the_ops():
    """Where a warp looks up all tables, and the bottom MLP is the smaller one."""
    for width, tables in ((16, 8), (16, 9)):
        assert (tables <= puzzles.fits(width, 8, 160)) == (not on_your_machine.shape(tables, width).why_not())


# ---------------------------------------------------------------------------------------------------------- the record


def row(part: str, implementation: str, us: float, **labels) -> dict:
    times = {"us_p20": us, "us_p50": us, "us_p80": us, "call_us": us, "call_us_low": us, "call_us_high": us}
    return {"op": "dlrm_forward", "part": part, "form": "functional", "implementation": implementation, **labels,
            **times, "match": "ok"}


@pytest.fixture
def small_record(monkeypatch, tmp_path):
    """Two cells, of which ours wins one and none the other, and two rows of calls."""
    cells = [("3 tables", 256, 2.0, 9.0), ("26 tables", 65536, 50.0, 50.5)]
    rows = [
        row("grid", who, us, model=model, rows=batch)
        for model, batch, *times in cells for who, us in zip(("cuda", "torch.compile"), times, strict=True)
    ]
    rows += [row("latency", who, us, model="mini", rows=2048) for who, us in (("eager", 300.0), ("cuda", 9.0))]
    failed = row("grid", "eager", 1.0, model="3 tables", rows=256) | {"match": "FAILED: wrong"}
    records.save({"op": "dlrm", "GPU": "a GPU", "date": "2026-11-25", "rows": [*rows, failed]}, tmp_path)
    table = records.recorded("dlrm", records.slug("a GPU"), tmp_path)
    monkeypatch.setattr(recorded.Record, "table", lambda self: table)


def test_the_winners_of_a_record(small_record, capsys):
    assert {at: recorded.winner(cell) for at, cell in recorded.cells(recorded.sweep()).items()} == {
        (3, 256): "cuda", (26, 65536): recorded.NOBODY,
    }
    recorded.print_ranking()
    recorded.print_calls()
    printed = capsys.readouterr().out
    first = "The fastest in each of 2 cells, by the GPU's time (a GPU, 2026-11-25): cuda in 1, no difference in 1."
    assert first in printed
    assert "no difference: 26 × 65,536 (tables × rows)" in printed
    assert printed.index("  cuda ") < printed.index("  eager ")
    drawn = pictures.draw_ranking().axes[0]
    assert "cuda\n2.0 µs, a peer 9.0" in [text.get_text() for text in drawn.texts]
    assert drawn.get_title("left").endswith("recorded, a GPU")
    matplotlib.pyplot.close("all")


def test_without_a_record_one_sentence_says_so(monkeypatch, capsys):
    def table(self):
        raise FileNotFoundError

    monkeypatch.setattr(recorded.Record, "table", table)
    recorded.print_ranking()
    recorded.print_calls()
    assert capsys.readouterr().out.count("This has not been recorded yet") == 2
    assert pictures.draw_ranking() is None


def test_where_the_h200_has_no_record_another_gpus_is_shown(monkeypatch, capsys):
    others = {
        recorded.RECORD: Unsaved("dlrm", measured=[row("latency", "cuda", 9.0, model="mini", rows=2048)]),
        recorded.SWEEP: Unsaved("dlrm_sweep", measured=[row("grid", "cuda", 2.0, model="3 tables", rows=256)]),
    }
    monkeypatch.setattr(recorded.Record, "rows", none_but(others.values()))
    monkeypatch.setattr(recorded.Record, "_others", lambda self: [others[self]])
    recorded.print_calls()
    recorded.print_ranking()
    assert capsys.readouterr().out.count("NVIDIA X1, 2026-11-26") == 2
    assert pictures.draw_ranking().axes[0].get_title("left").endswith("recorded, X1")
    matplotlib.pyplot.close("all")


def none_but(records):
    """Record.rows that has none of the records but these."""
    rows, ids = recorded.Record.rows, {*map(id, records)}

    def found(self, *arguments, **labels):
        if id(self) not in ids:
            raise LookupError
        return rows(self, *arguments, **labels)

    return found
