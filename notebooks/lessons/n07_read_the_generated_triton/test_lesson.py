"""Lesson 07: what the lesson shows, from the record, and its arithmetic against Triton's compiler."""

import pytest
import torch

pytest.importorskip("matplotlib")

from kernels import runtime
from kernels.inductor import run_kernel, split, triton_source
from kernels.inductor.machine_code import accesses
from lessons.n07_read_the_generated_triton import arithmetic, experiment, layer_variants, pictures, puzzles, recorded

interpreted = pytest.mark.skipif(runtime.triton_mode() != "interpreted", reason="Triton is not interpreted here")


def test_pictures_and_tables(capsys):
    for draw in (pictures.draw_traffic, pictures.draw_index, pictures.draw_accesses, pictures.draw_sizes):
        draw().canvas.draw()
    recorded.print_candidates((512, 8))
    recorded.print_sizes({"literal": 94})
    recorded.print_changes("both open")
    out = capsys.readouterr().out
    assert "kept" in out
    assert "+ x0 = (xindex % ks0)" in out


@pytest.mark.parametrize("known", [0, 1])
def test_the_compiler_reads_as_wide_as_the_lesson_says(known):
    for made in layer_variants.candidates("literal", 65536, bool(known)):
        wide = arithmetic.width(made.blocks["XBLOCK"], made.num_warps, known)
        assert set(accesses(made.ptx)["ld"]) == {wide}


@interpreted
def test_the_puzzles_kernel_is_what_it_says():
    x, w, out = torch.randn(6, 24), torch.randn(5), torch.empty(6, 5, 24)
    (module,) = triton_source(puzzles.relu_of_difference, x, w)
    (kernel,) = split(module)
    run_kernel(kernel.source, x, w, out, out.numel())
    torch.testing.assert_close(out, puzzles.relu_of_difference(x, w))
    if torch.__version__.startswith("2.13"):
        assert kernel.source.split("xnumel = ")[1].strip() == puzzles.KERNEL.split("xnumel = ")[1].strip()


@interpreted
@pytest.mark.slow  # seven kernels through Inductor and the assembler
def test_what_is_known_of_the_sizes_shows_in_the_code():
    lesson = experiment.Candidates(torch.device("cpu"))
    lesson.measure(["large"])
    kept = {row["variant"]: row for row in lesson.rows if row["part"] == "candidate" and row["kept"]}
    scalar = next(row for row in lesson.rows if row["part"] == "scalar" and row["kept"])
    assert max(kept["literal"]["accesses"]["ld"]) > max(scalar["accesses"]["ld"]) == 4
    assert kept["columns open"]["instructions"] > 2 * kept["literal"]["instructions"]
    assert "ks0" in lesson.extra["sources"]["columns open"]
    assert "ks0" not in lesson.extra["sources"]["literal"]
    assert any("LDG" in line for line in lesson.extra["sass"])
    assert "ld.global" in lesson.extra["ptx"]
