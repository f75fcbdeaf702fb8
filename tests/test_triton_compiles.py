"""The Triton kernels compile for a GPU, in every dtype: where there is none, the other tests interpret them only."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# In a process of its own, without the interpreter: for each kernel, the constants of its calls.
COMPILE = """
import importlib, json, sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

op, name, pointers, numbers, calls = json.loads(sys.argv[1])
kernel = getattr(importlib.import_module(f"kernels.{op}"), name)
failed = {}
for dtype in ("fp32", "fp16", "bf16", "fp64"):
    for constants in calls:
        types = {pointer: f"*{dtype}" for pointer in pointers} | numbers
        workspace = "*fp64" if dtype == "fp64" else "*fp32"
        types = {name: workspace if type_ == "workspace" else type_ for name, type_ in types.items()}
        signature = {name: types.get(name, "constexpr") for name in kernel.arg_names}
        try:
            triton.compile(ASTSource(kernel, signature, constants), target=GPUTarget("cuda", 90, 32))
        except Exception as error:
            failed[f"{dtype} {constants}"] = str(error)[-500:]
print(json.dumps(failed))
"""
ACTIVATIONS = ("relu", "sigmoid", "tanh", "gelu", "silu", "identity")
READS = {"gelu": "inputs", "silu": "inputs", "identity": "nothing"}
TILE = {"COLUMNS": 512, "ROW_BLOCK": 4, "COLUMN_BLOCK": 128}
BACKWARD = {"sums_ptr": "workspace", "rows": "i64", "chunk_rows": "i64"}
KERNELS = {
    "add_relu forward": [
        "add_relu.triton_kernel", "forward_kernel", ["x_ptr", "bias_ptr", "out_ptr"], {"elements": "i64"},
        [{"COLUMNS": 1023, "WIDE": wide, "BLOCK": 256} for wide in (False, True)],
    ],
    "add_relu backward": [
        "add_relu.triton_kernel", "_backward_kernel", ["grad_ptr", "out_ptr", "grad_x_ptr"], BACKWARD,
        [TILE, TILE | {"COLUMNS": 2**31 + 8}],
    ],
    "add_mul_activation forward": [
        "add_mul_activation.triton_kernel", "general", ["x_ptr", "bias_ptr", "y_ptr", "out_ptr"],
        {"multiplier": "fp32", "elements": "i32"},
        [{"COLUMNS": 1023, "ACTIVATION": name, "WIDE": False, "BLOCK": 256} for name in ACTIVATIONS],
    ],
    "add_mul_activation backward": [
        "add_mul_activation.triton_kernel", "_backward_kernel",
        ["grad_ptr", "out_ptr", "x_ptr", "bias_ptr", "y_ptr", "grad_x_ptr", "grad_y_ptr"],
        BACKWARD | {"multiplier": "fp32"},
        [TILE | {"ACTIVATION": name, "READS": READS.get(name, "output")} for name in ACTIVATIONS],
    ],
    "column_sum": [
        "column_sum", "_add_chunks_kernel", ["result_ptr"], {"workspace_ptr": "workspace", "chunks": "i32"},
        [{"COLUMNS": 512, "ROWS": 32, "BLOCK": 32}],
    ],
}  # fmt: skip


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_kernel_compiles_in_every_dtype(kernel):
    done = subprocess.run(
        [sys.executable, "-c", COMPILE, json.dumps(KERNELS[kernel])],
        env=os.environ | {"TRITON_INTERPRET": "0"}, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {}
