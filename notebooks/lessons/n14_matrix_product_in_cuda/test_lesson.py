"""Lesson 14: each file's kernel on the host, the reads of shared memory that the floors count, the banks."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch

pytest.importorskip("matplotlib")

from kernels import runtime
from kernels.inductor import machine_code
from lessons.n14_matrix_product_in_cuda import banks, product
from lessons.shared import answers

FILES = ("naive", "tile", "registers", "larger")


@pytest.mark.parametrize("name", FILES)
def test_each_kernel_multiplies(name):
    torch.manual_seed(0)
    for M, N, K in ((70, 37, 44), (3, 2, 4)):
        x, weight = torch.randn(M, K), torch.randn(N, K)
        outcome = product.read(name, PAD=1).on_host(x, weight)
        assert outcome.status == "ok", outcome.text
        torch.testing.assert_close(torch.from_numpy(outcome.buffers[-1][0]).view(M, N), x @ weight.T)


def test_the_answers_are_the_files():
    right = answers.solutions(Path(__file__).parent)
    for puzzle, name in (("barriers", "tile"), ("registers", "registers")):
        file = product.read(name, PAD=1).text
        for comment in ("  // now the tiles are complete", "  // now nobody reads them any more"):
            file = file.replace(comment, "")
        assert file in right[puzzle].source


def test_wavefronts():
    assert [banks.ways(apart) for apart in (32, 33, 48, 1)] == [32, 1, 16, 1]


@pytest.mark.skipif(runtime.nvcc() is None, reason="no nvcc")
@pytest.mark.parametrize(
    ("name", "pad", "reads"),
    [
        ("tile", 0, (0, 16, 32)),  # of 32 products: a's and b's are four floats at once
        ("tile", 1, (32, 8, 32)),
        ("registers", 0, (0, 2, 16)),
        ("larger", 0, (0, 4, 64)),
    ],
)
def test_what_is_read_from_shared_memory(name, pad, reads, tmp_path):
    """Reads of a float, reads of four, products: in this ratio, as often as the compiler unrolls the loop."""
    (tmp_path / "product.cu").write_text(product.read(name, PAD=pad).text)
    command = [runtime.nvcc(), "-arch=sm_90", "-cubin", "-o", tmp_path / "cubin", tmp_path / "product.cu"]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    lines = machine_code.sass((tmp_path / "cubin").read_bytes())
    if lines is None:
        pytest.skip("no nvdisasm")
    *loads, products = (sum(f"{word} " in line for line in lines) for word in ("LDS", "LDS.128", "FFMA"))
    unrolled = products // reads[-1]
    assert (*loads, products) == tuple(unrolled * count for count in reads)


def test_what_a_warp_reads(capsys):
    product.count("naive")
    product.count("tile")
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "naive, 64³: warps read weight 8,192 times, 32.0 sectors each"
    assert lines[3] == "tile, 64³: warps read weight 256 times, 4.0 sectors each"


def test_the_operand_that_the_notebook_makes():
    """Its cell's kernel, for vectors of six elements."""
    (path,) = Path(__file__).parents[2].glob("14_*.ipynb")
    cells = {cell["id"]: "".join(cell["source"]) for cell in json.loads(path.read_text())["cells"]}
    names = {"steps": {"4×4 a thread": product.read("registers")}, "replace": replace}
    exec(cells["outer"].replace("C, OUTPUTS = 27 * 16, 512", "C, OUTPUTS = 6, 40"), names)
    c, weight = torch.randn(70, 6), torch.randn(40, 36)
    outcome = names["outer"].on_host(c, weight)
    assert outcome.status == "ok", outcome.text
    expected = (c[:, :, None] * c[:, None]).flatten(1) @ weight.T
    torch.testing.assert_close(torch.from_numpy(outcome.buffers[-1][0]).view(70, 40), expected)
