"""What fits on a chip, by Python's count and the CUDA kernel's plan, and which backend "auto" therefore is."""

from __future__ import annotations

import functools
import math
import shutil
import subprocess

import pytest
import torch

from ... import on_chip_bytes, runtime
from ...device.launch import SHARED_MEMORY
from . import budget, choice, packing
from .budget import Tile
from .choice import cuda_rows
from .op import OP
from .tiles import forward_tile

# For each of CASES, on an H200 and on a GPU without clusters whose blocks have 99 KB: whether choose() finds a plan,
# and the shared memory that 16 rows at once would do with.
FITS = """
#include <cstdio>
#include "ops/fused_mlp/plan.cuh"
void print(const char* text, int size, fused_mlp::Device gpu) {
    fused_mlp::Widths widths;
    fused_mlp::parse(text, widths);
    fused_mlp::Device large = gpu;
    large.shared_bytes = 1LL << 40;
    long long least = large.shared_bytes;
    for (int cluster = 1; gpu.clusters(cluster); cluster *= 2)
        for (int buffers = 1; buffers <= 2; ++buffers) {
            fused_mlp::Plan wanted;
            wanted.rows = 16, wanted.cluster = cluster, wanted.buffers = buffers;
            fused_mlp::Plan plan = fused_mlp::choose(128, widths, size, size < 8, large, wanted);
            if (fused_mlp::possible(plan, widths, size, large)) least = std::min(least, plan.shared_bytes);
        }
    fused_mlp::Plan plan = fused_mlp::choose(128, widths, size, size < 8, gpu);
    std::printf("%d %lld\\n", int(fused_mlp::possible(plan, widths, size, gpu)), least);
}
void print(const char* text, int size) {
    fused_mlp::Device small = {{84, 0, 0, 0, 0}, 99 * 1024};
    print(text, size, {});
    print(text, size, small);
}
// On part of a GPU, a MIG slice say: a plan of no more clusters than run at once, or none.
void print_slice(int multiprocessors, int largest) {
    fused_mlp::Device slice;
    for (int i = 0; i < 5; ++i) slice.resident[i] = 1 << i <= largest ? multiprocessors >> i : 0;
    fused_mlp::Widths widths;
    int found = 0, runs = 1;
    for (const char* text : {"13-512-256-64-16", "367-512-256-1", "1024-96-8"})
        for (long long rows : {1, 128, 2048, 100000})
            for (int size : {2, 4, 8}) {
                fused_mlp::parse(text, widths);
                fused_mlp::Plan plan = fused_mlp::choose(rows, widths, size, size < 8, slice);
                if (!fused_mlp::possible(plan, widths, size, slice)) continue;
                ++found, runs &= 0 < plan.clusters && plan.clusters <= slice.clusters(plan.cluster);
            }
    std::printf("%d %d\\n", found, runs);
}
int main() {
CASES}
"""


def printed_by(folder, cases) -> list[tuple[int, int]]:
    """What FITS prints for these cases, two numbers a line."""
    (folder / "fits.cpp").write_text(FITS.replace("CASES", cases))
    command = ["g++", "-std=c++20", "-O0", "-I", str(runtime.KERNELS), "fits.cpp", "-o", "fits"]
    subprocess.run([*command, "-Wno-unknown-pragmas", "-pthread"], cwd=folder, check=True)
    printed = subprocess.run([folder / "fits"], capture_output=True, text=True, check=True).stdout
    return [tuple(map(int, line.split())) for line in printed.splitlines()]


def test_a_constant_in_a_graph_is_marked_as_torch_marks_it():
    ours, theirs = (lambda: 1), (lambda: 1)
    assert vars(choice.constant_in_a_graph(ours)) == vars(torch.compiler.assume_constant_result(theirs)) != {}


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is missing")
def test_python_and_the_cuda_kernel_agree_on_what_fits(tmp_path):
    """budget.cuda_bytes, that is, and plan.cuh: where the kernel has a plan, and what its fewest rows take."""
    cases = [
        (widths, dtype)
        for dtype in (torch.bfloat16, torch.float32, torch.float64)
        for widths in ("13-512-256-64-16", "367-512-256-1", "1-1", "4096-8", "8-5000-8", "513-6000-33-512-1",
                       "1025-512", "12000-40-3", "512-513-512", "2000-2000-2000", "3100-3300-20", "40-6700-40",
                       "2032-512-1024")
    ]
    statements = "".join(f'print("{widths}", {dtype.itemsize});\n' for widths, dtype in cases)
    printed = printed_by(tmp_path, statements)
    for i, (arch, cluster) in enumerate(((90, 8), (86, 1))):
        needed = [budget.cuda_bytes(*case, cluster) for case in cases]
        fits = [size <= SHARED_MEMORY[arch] for size in needed]
        assert [possible != 0 for possible, _ in printed[i::2]] == fits
        assert 4 < sum(fits) < len(fits) - 4
        assert [least for _, least in printed[i::2]] == needed


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is missing")
def test_the_cuda_plan_on_part_of_a_gpu(tmp_path):
    slices = [(132, 8), (60, 8), (32, 8), (16, 4), (14, 2), (1, 1), (0, 0)]
    printed = printed_by(tmp_path, "".join(f"print_slice({count}, {most});\n" for count, most in slices))
    assert [runs for _, runs in printed] == [1] * len(slices)
    assert [plans for plans, _ in printed] == [36] * (len(slices) - 1) + [0]


def test_auto_is_cuda_up_to_so_many_rows(monkeypatch):
    cpu = torch.device("cpu")  # whose limits are an H200's
    rows = functools.partial(cuda_rows.__wrapped__, device=cpu)
    monkeypatch.setattr(runtime, "why_not", lambda backend, device: "no compiler")
    assert rows("13-8", torch.float32, "ieee") == rows("512-512", torch.float32, "tf32") == 0
    monkeypatch.setattr(runtime, "why_not", lambda backend, device: "")
    assert rows("13-8", torch.float32, "ieee") == math.inf
    assert rows("64-65536-1", torch.float32, "ieee") == 0  # which does not fit
    assert rows("512-512", torch.float64, "ieee") == 0
    for dtype, many in ((torch.float32, 256), (torch.bfloat16, 512)):
        limits = [rows(widths, dtype, "tf32") for widths in ("13-512-256-64-16", "1024-256-64-1", "367-512-256-1",
                                                             "512-512-512", "1024-1024")]
        assert limits == [0, 0, 128, many, many]


def auto(rows, widths, dtype=torch.float32, keep=False):
    """What "auto" is for a CUDA tensor of so many rows, by an H200's limits."""
    packed = torch.empty(packing.elements(widths), dtype=dtype, device="meta")
    x = torch.empty(rows, packing.layers(widths)[0].inputs, dtype=dtype)
    return OP.auto(x, packed, widths, "relu", "identity", "tf32", keep)


def test_auto_is_eager_where_no_kernel_takes_the_layers(monkeypatch):
    monkeypatch.setattr(choice, "cuda_rows", lambda *arguments: 0)
    for keep in (False, True):
        assert auto(128, "64-65536-1", keep=keep) == "eager"
        assert auto(1 << 20, "13-512-256-64-16", keep=keep) == "triton"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("keep", [False, True])
def test_auto_of_wide_layers_is_a_product_each_from_so_many_rows_on(monkeypatch, dtype, keep):
    """Without a gradient; with one where no kernel takes the rows. In full float32 it is so anyway."""
    for most in (0, 512):
        monkeypatch.setattr(choice, "cuda_rows", lambda *arguments, most=most: most)
        backends = [auto(rows, "479-1024-1024-512-256-1", dtype, keep) for rows in (128, 255, 256, 512, 16384)]
        kernel = "cuda" if most else "triton"
        assert backends == [kernel, kernel, *[kernel if keep else "eager"] * 2, "eager"]
        assert auto(2048, "1024-1024", dtype, keep) == "triton"
        assert auto(2048, "13-2048-16", dtype, keep) == "triton", "of few weights, wide as a layer may be"
        assert auto(2048, "367-512-256-1", torch.float64, keep) == "triton", "of float64 nothing was measured"
    wide = "479-1024-1024-512-256-1", torch.float32, "ieee", keep, torch.device("cpu")
    assert choice.kernel_of(512, *wide) == "cuda", "of an MLP that a step launched from Python takes anyway"


def test_a_number_of_rows_that_is_new_is_not_remembered(monkeypatch):
    """Where any number fits; else the last ones are, no more than that."""
    monkeypatch.setattr(choice, "cuda_rows", lambda *arguments: 0)
    auto(1, "13-512-64")
    before = choice.takes.cache_info()
    for rows in range(2, 40):
        auto(rows, "13-512-64")
    assert choice.takes.cache_info() == before
    assert before.maxsize is not None


def test_auto_of_no_rows_is_a_backend_that_is_here(monkeypatch):
    monkeypatch.setattr(choice, "cuda_rows", lambda *arguments: 0)  # as where nvcc is missing
    assert auto(0, "13-8") == "triton"


def test_a_graph_for_any_number_of_rows_has_a_backend_that_takes_them():
    def step(x, packed, widths):
        return x + ["triton", "eager"].index(OP.auto(x, packed, widths, "relu", "identity", "tf32", False))

    for widths, expected in (("13-512-256-64-16", 0), ("479-1024-1024-512-256-1", 1)):
        packed, x = torch.empty(packing.elements(widths)), torch.zeros(3, packing.layers(widths)[0].inputs)
        out = torch.compile(step, fullgraph=True, dynamic=True, backend="eager")(x, packed, widths)
        assert out.unique() == expected


class Chosen(torch.nn.Module):
    """x + 0 where "auto" takes one kernel in a graph, x + 1 where it leaves the layers to Inductor."""

    def __init__(self, widths: str, trains: bool):
        super().__init__()
        self.arguments = torch.empty(packing.elements(widths)), widths, "relu", "identity", "tf32", trains

    def forward(self, x):
        return x + ["triton", "eager"].index(OP.auto(x, *self.arguments))


@pytest.mark.parametrize(
    ("widths", "trains", "taken"),
    [
        ("13-512-256-64-16", True, (2, 4095, 4096)), ("13-512-256-64-16", False, (2, 4095, 4096, 4097)),
        ("367-512-256-1", True, ()), ("367-512-256-1", False, (4096, 4097)),
    ],
)
def test_a_graph_leaves_to_inductor_the_rows_of_which_that_is_faster(widths, trains, taken):
    module, columns = Chosen(widths, trains), packing.layers(widths)[0].inputs
    for rows in (1, 2, 4095, 4096, 4097):
        torch._dynamo.reset()
        compiled = torch.compile(module, fullgraph=True, backend="eager", dynamic=False)
        assert compiled(torch.zeros(rows, columns)).unique() == (rows not in taken)


def test_a_graph_whose_rows_are_open_takes_the_kernel():
    """In one compilation, and for all of a range that mark_dynamic promised."""
    torch._dynamo.reset()
    x, graphs = torch.zeros(40, 13), []
    torch._dynamo.mark_dynamic(x, 0, min=2, max=8192)
    compiled = torch.compile(Chosen("13-8", True), fullgraph=True, backend=lambda gm, _: graphs.append(gm) or gm)
    for rows in (40, 8000, 2):
        assert compiled(x if rows == 40 else torch.zeros(rows, 13)).unique() == 0
    assert len(graphs) == 1


def test_rows_that_the_program_counts():
    torch._dynamo.reset()
    module = Chosen("13-8", True)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(lambda x, taken: module(x[taken]), fullgraph=True, backend="eager")
        out = compiled(torch.zeros(5, 13), torch.tensor([True, False, True, True, False]))
    assert out.shape == (3, 13)
    assert out.unique() == 0


@pytest.mark.parametrize("strict", [False, True])
def test_an_exported_program_is_for_any_number_of_rows(strict):
    module, shapes = Chosen("13-8", True), ({0: torch.export.Dim("rows")},)
    program = torch.export.export(module, (torch.zeros(7, 13),), dynamic_shapes=shapes, strict=strict)
    assert program.module()(torch.zeros(5000, 13)).unique() == 0


def test_bytes_on_chip():
    tile = Tile(rows=32, columns=256, stages=2, budget=64 * 1024, warps=8)
    usage = on_chip_bytes((13, 512, 256, 64, 16), tile, torch.float32, programs=132)
    assert usage.registers == 32 * 256 * 4
    assert usage.shared == 2 * (32 + 64) * 128 * 4  # of the third layer: few columns, deep steps
    assert usage.l2 == (132 * 32 * (512 + 256 + 64) + packing.elements("13-512-256-64-16")) * 4
    assert usage.fits
    for rows in (128, 2048, 16384):
        for dtype in (torch.float32, torch.bfloat16):
            for widths in ("13-512-256-64-16", "367-512-256-1"):
                assert forward_tile(rows, widths, dtype, "tf32")[1].fits
