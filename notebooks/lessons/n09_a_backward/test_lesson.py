"""Lesson 09: what its kernels compute, what is counted in machine code and in bytes, numbers of chunks."""

import re

import pytest
import torch

pytest.importorskip("matplotlib")

from kernels import inductor, runtime
from kernels.device.column_sum_launch import row_chunks, tile_shape
from kernels.ops.add_mul_activation import eager
from lessons.n09_a_backward import experiment, machine_code, puzzles, recorded
from lessons.shared.records import ADD_MUL_ACTIVATION

interpreted = pytest.mark.skipif(runtime.triton_mode() != "interpreted", reason="Triton is not interpreted here")


@interpreted
@pytest.mark.parametrize("step", [*experiment.STEPS, "sum_atomic", "sum_chunk"])
@pytest.mark.parametrize(("shape", "chunks"), [((37, 40), 3), ((5, 33), 5)])
def test_each_step_sums(step, shape, chunks):
    x = torch.randint(-3, 4, shape).float()
    assert torch.equal(experiment.launch(step, x, chunks), x.sum(0))


def waits():
    """The cell's function."""
    (cell,) = (source for source in puzzles.cells() if "def waits_of(" in source)
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


def test_the_numbers_of_chunks():
    """The cells take the record's, and the op's."""
    (rows, columns), text = (recorded.ROWS, recorded.COLUMNS), "\n".join(puzzles.cells())
    assert f'show("two stages", partial(in_two_stages, {recorded.CHUNKS}), chunks={recorded.CHUNKS})' in text
    assert f"{row_chunks(rows, columns, tile_shape(columns, 4)[1])[0]} if on_gpu else" in text


def test_what_the_ops_own_count_says():
    for activation, (_, ours) in recorded.KEPT.items():
        row = ADD_MUL_ACTIVATION.one("backward", implementation="triton", activation=activation, dtype="float32")
        assert row["bytes"] == pytest.approx(recorded.ROWS * recorded.COLUMNS * puzzles.traffic(ours, 4)[1], rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("activation", recorded.KEPT)
def test_the_compiler_keeps_what_the_lesson_says(activation):
    """Bytes an element that the forward moves, and the backward's first kernel; the second reads grad_x again."""
    inputs = [torch.empty(shape, requires_grad=True) for shape in ((65536, 512), (512,), (65536, 512))]
    modules = inductor.triton_source(
        lambda x, bias, y: eager.add_mul_activation(x, bias, y, 0.5, activation), *inputs, backward=True
    )
    (forward,), (first, second, _) = map(inductor.split, modules)
    moved = []
    for kernel in (forward, first):
        types = dict(re.findall(r"'(\w*ptr\d+)': '\*(\w+)'", kernel.source))
        pointers = re.findall(r"tl\.(?:load|store)\((\w+)", kernel.source)
        moved.append(sum({"fp32": 4, "i1": 1}[types[pointer]] for pointer in pointers))
    assert (moved[0] - 4, moved[1]) == puzzles.traffic(recorded.KEPT[activation][0], 4)  # the forward reads bias, too
    assert second.source.count("tl.load(") == 1
