"""Lesson 06: its pictures, what is read of its record, what Triton's compiler says, what ncu prints."""

import pytest

pytest.importorskip("matplotlib")

from lessons.n06_how_a_gpu_runs_a_kernel import arithmetic, compiled, experiment, pictures, recorded
from lessons.shared import occupancy, records
from lessons.shared.ncu import ncu_lines
from lessons.shared.occupancy import programs_an_sm


def test_pictures():
    figures = [
        pictures.draw_lanes(), pictures.draw_chip(), pictures.draw_reread(), pictures.draw_sectors(1, 8),
        pictures.draw_stride(lambda stride: 4000 / min(stride, 8)), pictures.draw_waiting(600, 1, 4),
        pictures.draw_flight(lambda programs, block: arithmetic.copy_rate(programs, block, 600, 4000)),
        pictures.draw_roofline(),
    ]
    for figure in figures:
        figure.canvas.draw()
    dots = sum(line.get_marker() == "o" for ax in figures[-1].axes for line in ax.lines)
    assert dots == 4  # three precisions, and add_relu


def test_what_is_read_of_the_record(capsys):
    latencies = [recorded.latency_ns(level) for level in ("L1", "L2", "HBM")]
    assert latencies == sorted(latencies)
    large = records.GPU.one("flight", block=8192, programs=0)
    room = recorded.resident(large)
    assert room == programs_an_sm(128, int(large["registers"]))
    assert recorded.in_flight(large) == pytest.approx(room * 8192 * 4 / 1e3)
    recorded.print_programs()
    assert len(capsys.readouterr().out.splitlines()) == 1 + len(experiment.Sizes().blocks)
    recorded.print_ncu("dram__bytes_read")
    out = capsys.readouterr().out
    assert out.count("dram__bytes_read") == out.count("_kernel (") == len(experiment.LAUNCHED)


def test_the_limits_are_those_of_the_record():
    names = "max_threads_per_multi_processor", "regs_per_multiprocessor", "warp_size"
    assert [records.device(name) for name in names] == [occupancy.THREADS, occupancy.REGISTERS, records.LANES]


def test_the_compiler_spreads_a_tile_over_lanes_as_drawn():
    small, large = compiled.copy(512), compiled.copy(8192)
    assert (small.neighbours, small.loads) == (4, 1)
    assert large.loads == 16
    assert small.registers < large.registers


def test_what_ncu_prints():
    printed = """==PROF== Connected to process 7 (/usr/bin/python3.12)
==PROF== Profiling "strided_kernel": 0%....100% - 9 passes
[7] python3.12@127.0.0.1
  strided_kernel (32768, 1, 1)x(128, 1, 1), Context 1, Stream 7, Device 0, CC 9.0
    dram__bytes_read.sum     Mbyte     134.2
"""
    found = ncu_lines(printed)
    assert found["why"] == ""
    assert found["lines"][0] == "python"
    assert len(found["lines"]) == 3
    refused = ncu_lines("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission\n")
    assert refused == {"lines": [], "why": "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission"}
    assert ncu_lines("")["why"] == "no metric came"
