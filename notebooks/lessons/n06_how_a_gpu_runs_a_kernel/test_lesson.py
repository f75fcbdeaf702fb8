"""Lesson 06: its kernels are the cells', its pictures, what is read of its record, what Triton's compiler says."""

import ast
import json
from pathlib import Path

import pytest
import torch

pytest.importorskip("matplotlib")

from kernels import runtime
from lessons.n06_how_a_gpu_runs_a_kernel import experiment, memory_kernels, pictures, puzzles, recorded, thread_layout
from lessons.shared import ncu, occupancy, records
from lessons.shared.occupancy import programs_an_sm
from lessons.shared.records import Unsaved

ROOM = Path(__file__).resolve().parent
NOTEBOOK = ROOM.parents[1] / f"{ROOM.name.removeprefix('n')}.ipynb"


def kernels(source: str) -> dict[str, str]:
    """The text of each kernel, its decorator with it."""
    lines = source.splitlines()
    functions = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef) and node.decorator_list]
    return {node.name: "\n".join(lines[node.decorator_list[0].lineno - 1 : node.end_lineno]) for node in functions}


def test_the_record_s_kernels_are_those_of_the_cells():
    ours, theirs = kernels(Path(memory_kernels.__file__).read_text()), {}
    for cell in json.loads(NOTEBOOK.read_text())["cells"]:
        if cell["cell_type"] == "code":
            theirs |= kernels("".join(cell["source"]))
    assert set(ours) == {"chase_kernel", "reread_kernel", "strided_kernel", "copy_kernel"}
    assert {name: theirs.get(name) for name in ours} == ours


def test_pictures():
    figures = [
        pictures.draw_lanes(), pictures.draw_chip(), pictures.draw_sectors(1, 8), pictures.draw_waiting(600, 1, 4),
        pictures.draw_stride({1: 4000, 8: None}), pictures.draw_flight(lambda programs, block: float(programs * block)),
        pictures.draw_roofline("bottom 1", "square"),
    ]
    for figure in figures:
        figure.canvas.draw()
    dots = sum(line.get_marker() == "o" for ax in figures[-1].axes for line in ax.lines)
    assert dots == 2 * 3 + 1  # two products in three precisions, and add_relu


def test_what_is_read_of_the_record():
    latencies = [recorded.latency_ns(level) for level in ("L1", "L2", "HBM")]
    assert latencies == sorted(latencies)
    large = records.GPU.one("flight", block=8192, programs=0)
    room = recorded.resident(large)
    assert room == programs_an_sm(128, int(large["registers"]))
    assert recorded.in_flight(large) == pytest.approx(room * 8192 * 4 / 1e3)
    assert recorded.copy_gb(8192, 0) == pytest.approx(records.gb_per_s(large))
    assert recorded.product("top 1")["rows"] == 65536
    assert 1e9 * recorded.ncu("stride 32", "dram__bytes_read.sum") == pytest.approx(64 * 2**25, rel=0.01)
    assert recorded.ncu("BLOCK 128", "launch__registers_per_thread") == 16


def test_what_has_no_record_says_so_and_what_is_measured_here_stands_beside(capsys):
    assert recorded.copy_gb(7, 0) is None
    assert recorded.copy_gb(512, 7) is None
    assert recorded.reread_tb(7, "own") is None
    recorded.show_copy(7, 0, mine=None)
    recorded.show_copy(512, 0, mine=12.34)
    nothing, both = capsys.readouterr().out.splitlines()
    assert nothing.startswith("BLOCK 7, a program for each tile  ")
    assert nothing.endswith(f"  {recorded.NO_RECORD}")
    assert both.endswith(f"recorded {recorded.copy_gb(512, 0):,.0f} GB/s  Here: 12.3.")


def test_what_tests_the_gain_of_step_4_runs_and_is_shown(monkeypatch):
    """Loops of more programs than there is room for, and programs that copy nothing."""
    assert {512} == {block for block, _ in experiment.Sizes().queued}
    assert {programs for _, programs in experiment.Sizes().queued} >= {16, 64}
    if runtime.triton_mode() != "interpreted":
        pytest.skip("the small sizes are for the interpreter")
    lesson = experiment.Gpu(torch.device("cpu"))
    lesson.measure(["queued", "idle"])
    assert {row["match"] for row in lesson.rows} == {"ok"}
    row = {"part": "idle", "match": "ok", "us_p20": 200.0, "us_p50": 200.0, "us_p80": 200.0}
    rows = [row | {"programs": 10}, row | {"programs": 400_000}]
    monkeypatch.setattr(recorded, "GPU", Unsaved("gpu", rows))
    assert recorded.idle_per_ns() == pytest.approx(2)


def test_the_counters_of_a_launch_are_its_own(capsys, monkeypatch):
    """The record may have fewer launches than there are today: those at the end are missing."""
    lines = ["  reread_kernel", "    dram__bytes_read.sum   Mbyte  2,000.5"]
    lines += ["  reread_kernel (1, 1, 1)", "    SM Frequency  Ghz  1.5", "    dram__bytes_read.sum   byte  7"]
    monkeypatch.setattr(recorded.GPU.__class__, "head", lambda *names: lines)
    first, second, third = experiment.LAUNCHED[:3]
    assert recorded.ncu(first, "dram__bytes_read.sum") == pytest.approx(2.0005)
    assert recorded.ncu(second, "dram__bytes_read.sum") == pytest.approx(7e-9)
    assert recorded.ncu(second, "SM Frequency") == 1.5
    assert recorded.ncu(third, "dram__bytes_read.sum") is None
    recorded.show_ncu({"dram__bytes_read.sum": "GB"}, first, third)
    head, row = capsys.readouterr().out.splitlines()
    assert head.split() == [*first.split(), *third.split()]
    assert row.split() == ["GB", "2.00", *recorded.NO_RECORD.split()]


def test_the_limits_are_those_of_the_record():
    names = "max_threads_per_multi_processor", "regs_per_multiprocessor", "warp_size"
    assert [records.device(name) for name in names] == [occupancy.THREADS, occupancy.REGISTERS, records.LANES]


@pytest.mark.parametrize(
    ("threads", "registers", "programs"), [(32, 176, 8), (32, 96, 20), (64, 104, 8), (128, 90, 5), (1024, 128, 0)]
)
def test_room_is_by_quarters_of_an_sm(threads, registers, programs):
    """As NVIDIA's cuda_occupancy.h has it for capability 9.0."""
    assert programs_an_sm(threads, registers) == puzzles.passed("room")(threads, registers) == programs


def test_the_compiler_spreads_a_tile_over_lanes_as_drawn():
    one, small, large = thread_layout.copy(128), thread_layout.copy(512), thread_layout.copy(8192)
    assert (one.elements, small.elements, small.loads) == (1, 4, 1)
    assert "sizePerThread = [4], threadsPerWarp = [32], warpsPerCTA = [4]" in small.layout
    assert large.loads == 16
    assert small.registers < large.registers


def test_what_ncu_prints(monkeypatch):
    printed = """==PROF== Connected to process 7 (/usr/bin/python3.12)
==PROF== Profiling "strided_kernel": 0%....100% - 9 passes
[7] python3.12@127.0.0.1
  strided_kernel (32768, 1, 1)x(128, 1, 1), Context 1, Stream 7, Device 0, CC 9.0
    dram__bytes_read.sum     Mbyte     134.2
"""
    report = ncu.ncu_lines(printed)
    assert report["why"] == ""
    assert report["lines"][0] == "python"
    assert len(report["lines"]) == 3
    refused = ncu.ncu_lines("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission\n")
    assert refused == {"lines": [], "why": "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission"}
    assert ncu.ncu_lines("")["why"] == "no metric came"
    monkeypatch.setattr(ncu, "find_ncu", lambda: None)
    assert "neither on PATH" in ncu.run(["ncu"])["why"]
    monkeypatch.setattr(ncu, "find_ncu", lambda: "echo")
    assert ncu.run(["ncu", "dram__bytes_read.sum"])["lines"] == ["dram__bytes_read.sum"]


def test_ncu_is_given_each_launch_once(monkeypatch):
    """In the order of LAUNCHED, by which the record is read."""
    launched = []
    for name in ("strided_kernel", "copy_kernel", "reread_kernel"):
        monkeypatch.setattr(experiment, name, Launches(name, launched))
    experiment.Gpu(experiment.torch.device("cpu")).launch_once()
    assert len(launched) == len(experiment.LAUNCHED) == 10
    assert launched == sorted(launched, key=["strided_kernel", "copy_kernel", "reread_kernel"].index)


class Launches:
    """Takes a kernel's place, and only notes that it is launched."""

    def __init__(self, name: str, launched: list):
        self.name, self.launched = name, launched

    def __getitem__(self, grid):
        return lambda *arguments, **options: self.launched.append(self.name)
