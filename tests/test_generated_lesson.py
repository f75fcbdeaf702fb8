"""model.generated: what the lesson shows, from the record, and its arithmetic against Triton's compiler."""

import pytest
import torch

pytest.importorskip("matplotlib")

from kernels.inductor import run_kernel, split, triton_source
from kernels.inductor.machine_code import accesses
from model.generated import drawing, facts, puzzles, variants


@pytest.fixture
def _recorded():
    try:
        facts.kept()
    except FileNotFoundError as error:
        pytest.skip(str(error))


@pytest.mark.usefixtures("_recorded")
def test_pictures_and_tables(capsys):
    for draw in (drawing.draw_traffic, drawing.draw_index, drawing.draw_accesses, drawing.draw_sizes):
        draw().canvas.draw()
    facts.print_candidates((512, 8))
    facts.print_sizes({"literal": 94})
    facts.print_changes("both open")
    out = capsys.readouterr().out
    assert "kept" in out
    assert "+ x0 = (xindex % ks0)" in out


@pytest.mark.parametrize("known", [0, 1])
def test_the_compiler_reads_as_wide_as_the_lesson_says(known):
    for made in variants.candidates("literal", 65536, bool(known)):
        wide = facts.width(made.blocks["XBLOCK"], made.num_warps, known)
        assert set(accesses(made.ptx)["ld"]) == {wide}


def test_the_puzzles_kernel_is_what_it_says():
    x, w, out = torch.randn(6, 24), torch.randn(5), torch.empty(6, 5, 24)
    (module,) = triton_source(puzzles.relu_of_difference, x, w)
    (kernel,) = split(module)
    run_kernel(kernel.source, x, w, out, out.numel())
    torch.testing.assert_close(out, puzzles.relu_of_difference(x, w))
    if torch.__version__.startswith("2.13"):
        assert kernel.source.split("xnumel = ")[1].strip() == puzzles.KERNEL.split("xnumel = ")[1].strip()
