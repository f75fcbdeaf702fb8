"""Lesson 24: the puzzles' answers are what Triton and its cubins do; what cannot be checked is said."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
from matplotlib.colors import to_rgba

from lessons.n24_a_kernel_without_triton import pictures, puzzles, recorded
from lessons.n24_a_kernel_without_triton.cubin_file import section
from lessons.shared.commands import ROOT


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """(the cubin, its description) of a small kernel of Triton's."""
    folder = tmp_path_factory.mktemp("cubin")
    command = [
        sys.executable, "-m", "kernels.cubin", "compile", "triton", "kernels.cubin.bench_kernel:add_one", "--name", "a",
        "--out", folder, "--arch", "90", "--argument", "x_ptr=*fp32", "n=i32", "--constant", "BLOCK=256",
    ]  # fmt: skip
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run([str(word) for word in command], check=True, capture_output=True, env=environment)
    return (folder / "a.sm_90.cubin").read_bytes(), json.loads((folder / "a.sm_90.json").read_text())


def test_parameters_are_those_of_a_cubin(compiled):
    image, description = compiled
    sizes = [parameter["bytes"] for parameter in description["parameters"]] + [8] * description["hidden"]
    assert sizes[:2] == [8, 4]
    assert puzzles.parameters(section(image, ".nv.info.add_one")) == sizes
    with pytest.raises(LookupError, match=r"no section \.nv\.info\.other: it has .*\.nv\.info\.add_one"):
        section(image, ".nv.info.other")


def test_an_argument_is_specialised_as_by_triton():
    libtriton = pytest.importorskip("triton._C.libtriton")
    if not hasattr(libtriton, "native_specialize_impl"):
        pytest.skip("this Triton specialises elsewhere")
    from triton.backends.nvidia.compiler import CUDABackend

    for argument in [*puzzles._tensors().values(), *(number for number, _ in puzzles._NUMBERS)]:
        type_, key = libtriton.native_specialize_impl(CUDABackend, argument, False, True, True)
        assert puzzles.specialised(argument) == type_ + ":16" * (key == "D"), argument


def test_without_images_the_launch_is_not_judged(tmp_path, monkeypatch):
    monkeypatch.setattr(puzzles, "FOLDER", tmp_path)
    with pytest.raises(AssertionError, match="run the cells above first"):
        puzzles._check_launch("void launch() {}")


def by_16(blocks: int = 1, n: int = 16, stream: int = 1, shared: int = 0) -> str:
    return f"launched 1 by_16 {blocks} 1 1 {shared} {stream} {0x10000} {0x40000} {n}"


@pytest.mark.parametrize(
    ("case", "line", "message"),
    [
        (puzzles._CASES[0], by_16(), ""),
        (puzzles._CASES[0], by_16(stream=0), "not in `stream`"),
        (puzzles._CASES[0], by_16(shared=16), "no shared memory, got 16 bytes"),
        (puzzles._CASES[0], by_16(n=15), "expected n to be 16, got 15"),
        (puzzles._CASES[0], by_16().replace("1 1 1", "1 2 1"), "expected 1 block along x, got 1×2×1"),
        (puzzles._CASES[0], "thrown 0 what is no std::exception", "your function threw what is no std::exception"),
        (puzzles._Case("", 2**28, stride=13), "thrown 0 too far", ""),
        (puzzles._Case("", 2**28, stride=13), "error 0 too far", ""),
        (puzzles._Case("", 2**28, stride=13), "thrown 1 too late", "expected an exception and no launch"),
        (puzzles._Case("", 3, stride=2**30), by_16(n=3), "(n - 1) * stride is 2 · 1073741824"),
        (puzzles._Case("", 0), "launched 0", ""),
        (puzzles._Case("", 0), by_16(), "expected no launch"),
    ],
)
def test_what_a_recorded_launch_is_told(case, line, message):
    assert bool(puzzles._wrong(case, line)) == bool(message)
    assert message in puzzles._wrong(case, line)


def test_each_case_has_the_kernel_that_its_reason_says():
    assert {case.is_by_16 for case in puzzles._CASES} == {True, False}
    for case in puzzles._CASES:
        assert not (case.why and case.is_by_16), case.name


def test_what_a_run_on_the_gpu_is_told(monkeypatch):
    monkeypatch.setattr(puzzles, "_built", lambda text: "program")
    monkeypatch.setattr(puzzles.runtime, "device", lambda: SimpleNamespace(type="cuda"))
    monkeypatch.setattr(puzzles, "_wrong", lambda case, line: "")
    answers = {True: "launched", False: "right"}
    monkeypatch.setattr(puzzles, "_lines", lambda program, driver, cases: [answers[bool(driver)]] * len(cases))
    assert re.fullmatch(r"\d+ cases passed on a driver that records, 20 on the GPU", puzzles._check_launch(""))
    answers[False] = "wrong 17 -7 1.5"
    with pytest.raises(AssertionError, match=r"on the GPU: out\[17\]: expected -7, got 1.5\nHint"):
        puzzles._check_launch("")


def test_the_recorded_launches_name_their_gpu(capsys):
    recorded.launches().show()
    head, size, *rows = capsys.readouterr().out.splitlines()
    assert head.startswith(f"RECORDED on: {recorded.LAUNCHES.with_part('launch').head('GPU')}, ")
    assert size == "1,024 numbers"
    assert re.fullmatch(r"  kernels.cubin, from C\+\+ +\d+\.\d µs \(\d+\.\d to \d+\.\d\)", rows[-1])


def test_the_pictures_show_what_is_written_and_what_is_mistaken():
    colours = [patch.get_facecolor() for patch in pictures.draw_mask(17).axes[0].patches]
    assert colours.count(to_rgba(pictures.RED)) == 3
    given, taken = ("a", "stride", "n"), (("a", 8), ("n", 4), ("hidden", 8), ("hidden", 8))
    ax = pictures.draw_addresses(given, taken).axes[0]
    assert [patch.get_facecolor() for patch in ax.patches[1::2]].count(to_rgba(pictures.RED)) == 3
    assert [text.get_text() for text in ax.texts if text.get_text() == "?"] == ["?"]


def test_the_bench_records_each_way(tmp_path):
    from kernels.cubin import bench
    from kernels.measure import records

    record = bench.record_of({"x + 1": [3.0, 1.0, 2.0], "kernels.cubin, from C++": [0.5]})
    assert record["rows"][0] == {"part": "launch", "name": "x + 1", "us": 2.0, "low": 1.0, "high": 3.0, "match": "ok"}
    assert records.save(record | {"GPU": "NVIDIA X1"}, tmp_path / "results").startswith("saved ")
    assert len(records.read(tmp_path / "results" / "x1" / "launches.json")["rows"]) == 2
