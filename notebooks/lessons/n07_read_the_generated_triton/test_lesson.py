"""Lesson 07: what the lesson shows, from the record, and its pictures and puzzles against Triton's compiler."""

import re
from pathlib import Path

import pytest
import torch

pytest.importorskip("matplotlib")

from kernels import runtime  # before anything that imports Triton
from kernels.check import OutOfBounds
from kernels.inductor import compile_candidates, run_kernel, split, triton_source
from kernels.inductor.machine_code import accesses, sass
from lessons.n07_read_the_generated_triton import (
    experiment,
    kernel_puzzles,
    layer_variants,
    pictures,
    puzzles,
    recorded,
)
from lessons.shared import answers, h200
from lessons.shared.puzzle import look_beside

triton = pytest.importorskip("triton")  # after kernels, which chooses the interpreter
tl = triton.language
interpreted = pytest.mark.skipif(runtime.triton_mode() != "interpreted", reason="Triton is not interpreted here")
ROOM = Path(__file__).resolve().parent


def test_pictures_and_tables():
    for draw in (pictures.draw_index, pictures.draw_accesses):
        draw().canvas.draw()
    with pytest.raises(ValueError, match="element: expected 0 to 33,554,431, the elements of x; got 33554432"):
        pictures.draw_index(2**25)
    rows = recorded.sizes({"rows dynamic": 94})
    assert [*rows.index] == ["literal", "rows dynamic", "columns dynamic", "both dynamic", "511 columns", "an odd size"]
    assert [*rows["predicted"]] == ["", 94, "", "", "", ""]
    both = "(1024, 4)", "104.6 µs (104.2 to 105.1)", "108.6 µs (108.3 to 108.7)", "yes", "ks0", "4", "77.2"
    assert tuple(rows.loc["both dynamic"])[1:] == both


@triton.jit
def unmasked_loads(in_ptr0, in_ptr1, in_ptr2, out_ptr0, multiplier, ks0, xnumel, XBLOCK: tl.constexpr):
    xindex = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)
    tmp3 = tl.load(in_ptr0 + xindex) + tl.load(in_ptr1 + xindex) * multiplier + tl.load(in_ptr2 + xindex % ks0)
    tl.store(out_ptr0 + xindex, tl.sigmoid(tmp3), xindex < xnumel)


def test_a_load_beside_a_tensor_is_seen_where_it_leaves_no_trace():
    assert kernel_puzzles.BESIDE in kernel_puzzles.SHAPES
    tensors = [torch.zeros(shape) for shape in ((5, 7), (5, 7), (7,), (5, 7))]
    with pytest.raises(OutOfBounds, match="load from in_ptr0 is out of bounds in 29 lanes: the first is at offset 35"):
        look_beside(unmasked_loads, (1,), *tensors, 0.5, 7, 35, XBLOCK=64)


def module() -> str:
    x, y, bias = torch.empty(65536, 512), torch.empty(65536, 512), torch.empty(512)
    (source,) = triton_source(layer_variants.layer, x, y, bias)
    return source


def offsets(code: list[str] | None) -> set[int]:
    """Bytes from a lane's first element to its others, in loads and stores that share a register; code: sass()."""
    found = (re.search(r"\+0x([0-9a-f]+)\]", line) for line in code or () if re.search(r"LDG|STG", line))
    return {int(match[1], 16) for match in found if match}


@pytest.mark.parametrize("known", [False, True])
def test_the_compiler_reads_as_wide_as_the_lesson_says(known):
    (kernel,) = split(module())
    for compiled in compile_candidates(kernel.source, aligned=known):
        wide = pictures.width(compiled.blocks["XBLOCK"], compiled.num_warps) if known else 4
        assert set(accesses(compiled.ptx)["ld"]) == {wide}
        apart = 4 * 32 * compiled.num_warps if not known else 0x800  # bytes from one access of a lane to its next
        assert not any(offset % apart for offset in offsets(sass(compiled.cubin)))
        assert sorted(puzzles.widths(compiled.ptx)) == sorted(
            width for width, times in accesses(compiled.ptx)["ld"].items() for _ in range(times)
        )


def that_run(code: list[str]) -> int:
    """The instructions that run where all numbers fit into 32 bits: a division jumps over its branch for others, and
    what this branch calls stands behind the kernel's end."""
    count, jumped = 0, False
    for line in code:
        jumped = jumped and not line.startswith("BSYNC")
        count += not jumped
        if line.startswith("EXIT"):
            return count
        jumped = jumped or line.startswith("BRA")
    raise AssertionError("the kernel has no end")


@pytest.mark.slow  # two kernels through Inductor and the assembler
def test_what_runs_with_dynamic_columns_and_what_is_read_at_an_odd_size():
    """With dynamic columns more instructions run than at an odd size, in either config, though not all that the code
    has: a division has a branch for numbers beyond 32 bits. At an odd size a lane's elements are neighbours."""
    run, all_of_them = {}, {}
    for variant in ("columns open", "an odd size"):
        shape = layer_variants.VARIANTS[variant].shape(65536)
        inputs = torch.empty(shape), torch.empty(shape), torch.empty(shape[1])
        generated = experiment.lower_here(variant, *inputs)
        for compiled in compile_candidates(generated.source):
            if sass(compiled.cubin) is None:
                pytest.skip("there is no nvdisasm here")
            lane = variant, compiled.num_warps
            code, elements = sass(compiled.cubin), compiled.blocks["XBLOCK"] // (32 * compiled.num_warps)
            run[lane], all_of_them[lane] = that_run(code) / elements, len(code) / elements
            if variant == "an odd size":  # a lane's elements are neighbours; (512, 8) loads all before it computes
                assert {*range(4, 4 * min(elements, 4), 4)} <= offsets(code)
                first = next(number for number, line in enumerate(code) if "MUFU.EX2" in line)
                assert any("LDG" in line for line in code[first:]) == (compiled.num_warps == 4)
    assert all(run["columns open", warps] > all_of_them["an odd size", warps] for warps in (4, 8))
    assert all(run["columns open", warps] < all_of_them["columns open", warps] for warps in (4, 8))
    # So what is in the code does not tell the configs apart.
    assert run["columns open", 8] < all_of_them["columns open", 4]


def test_a_kernel_for_any_sizes_has_wide_accesses_where_triton_sees_multiples_of_16(tmp_path):
    """Triton sees at the launch that 16 divides the sizes, as the lesson says of it."""
    source = answers.solutions(ROOM)["open"].source.partition("\n\n\n")[0]
    file = tmp_path / "written_by_the_reader.py"
    file.write_text(f"import triton\nimport triton.language as tl\n\n\n{source}\n")
    namespace = {"__name__": "written_by_the_reader", "__file__": str(file)}
    exec(compile(file.read_text(), str(file), "exec"), namespace)
    compiled = h200.compiled(namespace["open_kernel"], 4, XBLOCK=512)
    assert set(puzzles.widths(compiled.ptx)) == {16}


def test_what_is_compiled_must_be_told_its_constants():
    with pytest.raises(TypeError, match="unmasked_loads: expected XBLOCK; got none"):
        h200.compiled(unmasked_loads, 4)
    with pytest.raises(TypeError, match="unmasked_loads: expected XBLOCK; got BLOCK"):
        h200.compiled(unmasked_loads, 4, BLOCK=512)


@interpreted
def test_the_puzzles_kernel_is_what_it_says():
    x, w, out = torch.randn(6, 24), torch.randn(5), torch.empty(6, 5, 24)
    (text,) = triton_source(puzzles.relu_of_difference, x, w)
    (kernel,) = split(text)
    run_kernel(kernel.source, x, w, out, out.numel())
    torch.testing.assert_close(out, puzzles.relu_of_difference(x, w))
    if torch.__version__.startswith("2.13"):
        assert kernel.source.split("xnumel = ")[1].strip() == puzzles.KERNEL.split("xnumel = ")[1].strip()


@interpreted
@pytest.mark.slow  # seven kernels through Inductor and the assembler
def test_what_is_known_of_the_sizes_shows_in_the_code():
    lesson = experiment.Candidates(torch.device("cpu"))
    lesson.measure()
    kept = {row["variant"]: row for row in lesson.rows if row["part"] == "candidate" and row["kept"]}
    scalar = next(row for row in lesson.rows if row["part"] == "scalar" and row["kept"])
    assert max(kept["literal"]["accesses"]["ld"]) > max(scalar["accesses"]["ld"]) == 4
    assert kept["columns open"]["instructions"] > 2 * kept["literal"]["instructions"]
    assert "ks0" in lesson.extra["sources"]["columns open"]
    assert "ks0" not in lesson.extra["sources"]["literal"]
