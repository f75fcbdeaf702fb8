"""Lesson 13: the steps' kernels in the interpreter, the recorder in small, pictures, a race that is found."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace

import pytest
import torch

pytest.importorskip("matplotlib")

from kernels import runtime
from kernels.inductor import machine_code
from lessons.n13_softmax_to_matrix_product import arithmetic, on_your_machine, pictures, recorded, tiled_cuda
from lessons.n13_softmax_to_matrix_product.launch import CANDIDATES, PERSISTENT, STEPS, fits, launch
from lessons.n13_softmax_to_matrix_product.product_kernels import softmax_rows
from lessons.shared.occupancy import programs_an_sm
from lessons.shared.records import sms

WIDE = "wider tiles"
EDGES = (40, 24, 40)  # M, N, K: no multiple of a tile


@pytest.mark.parametrize(
    ("name", "dtype"), [*((name, torch.float32) for name in STEPS), ("grouped", torch.bfloat16), (WIDE, torch.bfloat16)]
)
def test_each_step_computes_the_layer(name, dtype):
    M, N, K = (9, 8, 40) if name == "naive" else EDGES
    generator, device = torch.Generator().manual_seed(0), runtime.device()
    x, weight, bias = (torch.randn(shape, generator=generator).to(device, dtype) for shape in ((M, K), (N, K), (N,)))
    out = torch.full((M, N), float("nan"), device=device, dtype=dtype)
    sides = {side: min(getattr(STEPS[name], side), 32) for side in ("rows", "columns", "step")}
    config = replace(STEPS[name], **sides, group=min(STEPS[name].group, 2))
    x[7] = float("nan")
    launch(config, x, weight, bias, out)
    expected = torch.relu(x.double() @ weight.double().T + bias.double())
    rounded = dtype == torch.bfloat16 or device.type == "cuda"  # there float32 is rounded to tf32
    tolerance = {"rtol": 0.01, "atol": 0.02} if rounded else {"rtol": 1e-5, "atol": 1e-4}
    torch.testing.assert_close(out.double(), expected, **tolerance, equal_nan=True)


def test_a_store_in_parts():
    device = runtime.device()
    x, weight, bias = (torch.randn(shape, device=device) for shape in ((33, 16), (40, 16), (40,)))
    out = torch.full((33, 40), float("nan"), device=device)
    launch(replace(PERSISTENT, rows=16, columns=32, step=16, parts=2), x, weight, bias, out, epilogue=False)
    torch.testing.assert_close(out.double(), x.double() @ weight.double().T, rtol=0.01, atol=0.02)


def test_descriptors_are_not_asked_of_rows_that_begin_anywhere():
    x, weight, out = (torch.empty(shape, dtype=torch.bfloat16) for shape in ((64, 367), (512, 367), (64, 512)))
    assert {config.kernel for config in CANDIDATES if fits(config, x, weight, out)} == {"tiled"}
    x, weight = (torch.empty(rows, 368, dtype=torch.bfloat16)[:, :367] for rows in (64, 512))
    assert {config.kernel for config in CANDIDATES if fits(config, x, weight, out)} == {"descriptors", "persistent"}


def test_softmax_of_a_tile_with_strides():
    x, out = (torch.randn(shape, device=runtime.device()) for shape in ((3, 10), (3, 7)))
    softmax_rows[(2,)](x, out, 3, 7, 10, ROWS=2, BLOCK=8)
    torch.testing.assert_close(out, torch.softmax(x[:, :7], 1))


def test_arithmetic():
    assert arithmetic.read_gb(1, 1) == pytest.approx(274.9, abs=0.1)
    assert arithmetic.read_gb(64, 64) == pytest.approx(arithmetic.read_gb(1, 1) / 64)
    assert (arithmetic.ways(32), arithmetic.ways(33), arithmetic.ways(48), arithmetic.ways(1)) == (32, 1, 16, 1)
    assert arithmetic.sum_of_ones(300, torch.bfloat16) == 256
    assert arithmetic.strips(arithmetic.place, 64, 64, 1) == (5, 64)
    assert len(CANDIDATES) == 13  # so the notebook says
    for rows, columns, group in ((5, 4, 2), (8, 7, 3), (2, 9, 8), (4, 4, 1)):
        tiles = [arithmetic.place(program, rows, columns, group) for program in range(rows * columns)]
        assert sorted(tiles) == [(row, column) for row in range(rows) for column in range(columns)]


def test_pictures_and_tables(capsys):
    figures = [pictures.draw_online(), pictures.draw_tiles(), pictures.draw_order(arithmetic.place),
               pictures.draw_banks(32, 33), pictures.draw_steps()]
    for figure in figures:
        figure.canvas.draw()
    recorded.print_steps("stages")
    recorded.print_layers()
    recorded.print_exact()
    recorded.print_racecheck()
    output = capsys.readouterr().out
    assert "you said" in output
    assert output.count("gains most") == 1


# ------------------------------------------------------------------------------------------- compiled, and on the host


def test_the_compiler_makes_of_the_steps_what_the_lesson_says():
    tensor, staged, grouped, persistent = map(
        on_your_machine.compiled, ("tensor cores", "stages", "grouped", "persistent")
    )
    room = min(228 * 1024 // (grouped.shared + 1024), programs_an_sm(256, grouped.registers))
    assert room * sms() == arithmetic.resident()
    assert tensor.tensor > 0
    assert (tensor.ahead, tensor.by_tma) == (0, 0)
    assert staged.ahead > 0
    assert staged.shared == 3 * tensor.shared
    assert persistent.by_tma > 0
    assert persistent.registers >= 128 + 16
    assert persistent.shared < 227 * 1024


@pytest.mark.skipif(runtime.nvcc() is None, reason="no nvcc")
def test_without_the_pad_the_compiler_reads_four_numbers_at_once(tmp_path):
    counts = []
    for pad in (0, 1):
        (tmp_path / "tiled.cu").write_text(tiled_cuda.SOURCE.read_text())
        cubin = tmp_path / f"{pad}.cubin"
        command = [runtime.nvcc(), "-arch=sm_90", f"-DPAD={pad}", "-cubin", "-o", cubin, tmp_path / "tiled.cu"]
        subprocess.run(command, check=True, capture_output=True, timeout=tiled_cuda.SECONDS)
        lines = machine_code.sass(cubin.read_bytes())
        if lines is None:
            pytest.skip("no nvdisasm")
        counts.append(tuple(sum(f"{word} " in line for line in lines) for word in ("LDS", "LDS.128")))
    assert counts == [(0, 8 + 8), (32, 8)]  # of 32 steps: a's are four at once in both, as all lanes read the same


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
def test_a_missing_barrier_is_found(capsys):
    on_your_machine.race(barrier=False)
    lines = capsys.readouterr().out.splitlines()
    if lines[0].startswith(("not run here: ThreadSanitizer", "ThreadSanitizer reports nothing")):
        pytest.skip(lines[0])
    assert lines[0] == "data race:"
    assert "read by thread" in lines[1]
    assert "a[down][i] * b[across][i]" in lines[1]
    assert "previous write by thread" in lines[2]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
def test_with_both_barriers_there_is_no_race(capsys):
    on_your_machine.race(barrier=True)
    assert capsys.readouterr().out.splitlines() == ["no data race", "  0 of 1600 numbers are wrong"]


def test_a_program_that_did_not_run_is_no_verdict(monkeypatch, capsys):
    monkeypatch.setattr(tiled_cuda, "_fixed_addresses", lambda: ["false"])
    on_your_machine.race(barrier=False)
    assert capsys.readouterr().out.startswith("not run here: ThreadSanitizer: ")


def test_silence_is_no_verdict_where_the_result_is_wrong():
    assert tiled_cuda.race(["3 of 1600 numbers are wrong"])[0].startswith("ThreadSanitizer reports nothing")
    assert tiled_cuda.race(["0 of 1600 numbers are wrong"])[0] == "no data race"


def test_the_debugger_stops_in_the_interpreter(capsys):
    on_your_machine.stop("p start, z", "c", "p start, z")
    out = capsys.readouterr().out
    assert "stopped before: total += tl.sum(z)" in out
    assert "[4., 5., 1., 1.]" in out
    assert "/" not in out


def test_the_cuda_text_begins_as_pytorch_wants_it(capsys):
    tiled_cuda.show()
    shown = capsys.readouterr().out
    assert shown.startswith('extern "C" __global__ void tiled(')
    assert len(tiled_cuda.LAST.findall(tiled_cuda.SOURCE.read_text())) == 1
