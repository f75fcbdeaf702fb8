"""Kernels that may begin before the one before them in the stream has ended: programmatic dependent launch.

What the driver is given is in test_dispatch; here that such a kernel waits before it touches memory, and, on a GPU,
that a row of them computes what a row of waiting launches does, uncaptured and captured.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from toy_ops.pdl import add_relu_early, triton_launch

from kernels import runtime
from kernels.dispatch import core, cubin
from kernels.ops.add_relu.eager import add_relu

ROOT = Path(__file__).resolve().parent.parent
PTX = """
import ast, sys, triton
from triton.backends.compiler import GPUTarget
from kernels.dispatch import cubin

made = []
compile = triton.compile
triton.compile = lambda *a, **k: made.append(compile(*a, **k)) or made[-1]
cubin.compile_into(cubin.Kernel(**ast.literal_eval(sys.stdin.read())), cubin.Path(sys.argv[1], "kernel"))
print(made[0].asm["ptx"])
"""
on_gpu = pytest.mark.skipif(runtime.device().type != "cuda", reason="no CUDA device")
both = pytest.mark.parametrize("backend", ["triton", "cuda"])


def kernel(module="toy_ops.pdl.triton_kernel", name="early_kernel", early=True) -> cubin.Kernel:
    constants = {"COLUMNS": 64, "WIDE": False, "BLOCK": 256, "launch_pdl": True} | ({"EARLY": early} if early else {})
    return cubin.Kernel(module, name, ("*fp32:16",) * 3 + ("i32:16",), tuple(sorted(constants.items())), 90)


def test_the_triton_kernel_waits_before_it_touches_memory(tmp_path):
    environment = os.environ | {"TRITON_INTERPRET": "0", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", PTX, tmp_path], input=repr(asdict(kernel())), env=environment,
        cwd=ROOT, capture_output=True, text=True, check=False,
    )
    assert done.returncode == 0, done.stderr
    instructions = re.findall(r"griddepcontrol\.\w+|(?:ld|st)\.global", done.stdout)
    assert instructions[:2] == ["griddepcontrol.launch_dependents", "griddepcontrol.wait"]
    assert {"ld.global", "st.global"} == set(instructions[2:])
    assert cubin.read(tmp_path / "kernel", 90).kind == cubin.EARLY


def test_a_kernel_that_never_waits_is_not_launched_early(tmp_path):
    plain = kernel("kernels.ops.add_relu.triton_kernel", "forward_kernel", early=False)
    with pytest.raises(RuntimeError, match=r"forward_kernel.* never waits for it \(gdc_wait\)"):
        cubin.compiled(plain, tmp_path)
    assert not list(tmp_path.iterdir())


# CUDA kernels that may begin early: the file, and an instance.
CUDA_KERNELS = {
    "add_relu": (
        "toy_ops/pdl/kernel.cuh",
        "add_relu_early::early_kernel<float, 4, unsigned>(const float*, const float*, float*, unsigned, "
        "Columns<unsigned>, bool)",
    ),
    "embedding_bags": (
        "ops/embedding_bags/kernel.cuh",
        "embedding_bags::rows_kernel<uint4, long long>(embedding_bags::Tables, const uint4*, const long long*, uint4*, "
        "long long, int, Columns<unsigned>, Columns<unsigned>, bool)",
    ),
    "dot_interaction": (
        "ops/dot_interaction/kernel.cuh",
        "dot_interaction::bulk_forward<16, 2, false>(const float*, const float*, float*, dot_interaction::BulkShape)",
    ),
    "dot_interaction_backward": (
        "ops/dot_interaction/kernel.cuh",
        "dot_interaction::half_backward<__half, 16>(const __half*, const __half*, const __half*, __half*, __half*, "
        "dot_interaction::RowShape)",
    ),
    "lookup_interact": (
        "ops/lookup_interact/kernel.cuh",
        "lookup_interact::forward_kernel<float, true, 16, false>(const __grid_constant__ lookup_interact::Call<float>, "
        "const __grid_constant__ lookup_interact::Layout, float*)",
    ),
    "lookup_interact_gradients": (
        "ops/lookup_interact/backward.cuh",
        "lookup_interact::backward_kernel<float, true, 16, false>(const __grid_constant__ lookup_interact::Call<float>,"
        " const __grid_constant__ lookup_interact::Layout, const float*, float*, float*)",
    ),
    "lookup_interact, by column": (
        "ops/lookup_interact/columns.cuh",
        "lookup_interact::columns_kernel<float, 4, lookup_interact::Kind::fm, false>"
        "(const __grid_constant__ lookup_interact::Call<float>, int, float*)",
    ),
    "its gradients": (
        "ops/lookup_interact/columns.cuh",
        "lookup_interact::columns_backward_kernel<float, 4, lookup_interact::Kind::flat, false>"
        "(const __grid_constant__ lookup_interact::Call<float>, int, const float*, float*, float*)",
    ),
}


@pytest.mark.skipif(runtime.nvcc() is None, reason="nvcc is missing")
@pytest.mark.parametrize(
    ("op", "architecture", "waits"),
    [("add_relu", "sm_80", False)] + [(op, "sm_90", True) for op in CUDA_KERNELS],
)
def test_the_cuda_kernel_waits_before_it_touches_memory(tmp_path, op, architecture, waits):
    nvidia = pytest.importorskip("triton.backends.nvidia")
    source, cubin_file = tmp_path / "early.cu", tmp_path / "early.cubin"
    file, instance = CUDA_KERNELS[op]
    source.write_text(f'#include "{file}"\ntemplate __global__ void {instance};\n')
    include = (f"-I{runtime.KERNELS}", f"-I{Path(__file__).parent}")
    options = ("-std=c++20", f"-arch={architecture}", *include, "-cubin", "-o")
    subprocess.run([runtime.nvcc(), *options, cubin_file, source], check=True)
    cuobjdump = Path(nvidia.__file__).with_name("bin") / "cuobjdump"  # Triton's
    sass = subprocess.run([cuobjdump, "-sass", cubin_file], capture_output=True, text=True, check=True).stdout
    name = instance.partition("<")[0].rpartition("::")[2]
    (body,) = [part for part in sass.split("Function : ")[1:] if name in part.partition("\n")[0]]
    instructions = re.findall(r"\b(ACQBULK|LDG|STG|UBLKCP|ATOMG?|REDG?)\b", body)
    assert instructions.count("ACQBULK") == waits
    assert len(instructions) > 1 + waits
    assert (instructions[0] == "ACQBULK") == waits


@pytest.mark.parametrize("rows", [0, 1, 7, 300])
def test_it_computes_what_add_relu_does(rows):
    x, bias = torch.randn(rows, 65), torch.randn(65)
    if runtime.why_not("triton", "cpu"):
        pytest.skip("Triton's interpreter is off")
    assert torch.equal(add_relu_early(x, bias, backend="triton"), add_relu(x, bias))
    if shutil.which("g++"):
        with core.on_host():
            assert torch.equal(add_relu_early(x, bias, backend="cuda"), add_relu(x, bias))


def test_before_sm_90_it_is_launched_as_usual(monkeypatch):
    asked = []

    class Function:
        def __getitem__(self, grid):
            return lambda *arguments, **constants: asked.append(constants)

    monkeypatch.setattr(triton_launch.functions, "early_kernel", Function(), raising=False)
    for capability in ((8, 9), (9, 0), (10, 0)):
        monkeypatch.setattr(triton_launch, "begins_early", lambda capability=capability: capability >= (9, 0))
        triton_launch.forward(torch.ones(4, 4), torch.ones(4), torch.ones(4, 4))
    assert [constants["EARLY"] for constants in asked] == [False, True, True]
    assert ["launch_pdl" in constants for constants in asked] == [False, True, True]


@on_gpu
@both
@pytest.mark.parametrize("rows", [1, 130, 5000, 65536])
def test_a_row_of_them_is_a_row_of_waiting_launches(backend, rows):
    bias = torch.randn(512, device="cuda")
    first = torch.randn(rows, 512, device="cuda")
    want = first
    for _ in range(50):
        want = add_relu(want, bias)

    def run():
        out = first
        for i in range(50):
            out = add_relu_early(out, bias, backend=backend)
            if i % 7 == 0:  # among launches of others: a kernel of PyTorch's that reads and writes in place
                out.add_(0.0)
        return out

    for _ in range(3):
        assert torch.equal(run(), want)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = run()
    for _ in range(3):
        out.fill_(float("nan"))
        graph.replay()
        assert torch.equal(out, want)
