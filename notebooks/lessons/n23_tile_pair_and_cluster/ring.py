"""Kernels that read weights into an SM: as sources, and run on the host in a process of their own."""

from __future__ import annotations

import subprocess
import sys

import torch
from torch import Tensor

from kernels.check.host import run_source
from kernels.device.source_launch import Source

PANEL, THREADS = 1024, 512  # float4s that one bulk copy moves, 16 KB; of a block
SECONDS = 10
AROUND = """\
#include "device/bulk_copy.cuh"
constexpr int STAGES = {stages}, PANEL = {panel};
struct Arguments {{
    const float4* weights;
    float* out;
    long long count;
}};
"""
# On the host each copy is looked at, also one that nobody waits for.
LOOKED_AT = """\
extern "C" {
const char *weights_begin, *weights_end;
}
struct alignas(16) LookedAt : BulkLoads {
    void copy(void* to, const void* from, unsigned bytes) {
        const char *ring = dynamic_shared<char>(), *slot = (const char*)to, *panel = (const char*)from;
        if (slot < ring || slot + bytes > ring + 16 * STAGES * PANEL) stop("a copy to a place outside of the ring");
        if (panel < weights_begin || panel + bytes > weights_end) stop("a copy from a place outside of the weights");
        BulkLoads::copy(to, from, bytes);
    }
    static void stop(const char* why) { cuda_on_host::fail("%s", why), cuda_on_host::stop(); }
};
#define BulkLoads LookedAt
"""
# It needs no torch, so it begins at once; what a kernel does there ends no other process.
RUN = """
import ctypes, sys
blocks, count, backwards = map(int, sys.argv[2:])
raw = ctypes.create_string_buffer(16 * count + 16)
place = ctypes.addressof(raw) + -ctypes.addressof(raw) % 16
ctypes.memmove(place, sys.stdin.buffer.read(), 16 * count)
out = (ctypes.c_float * (512 * blocks))(*[float("nan")] * 512 * blocks)
numbers = (ctypes.c_int64 * 3)(place, ctypes.addressof(out), count)
library = ctypes.CDLL(sys.argv[1])
ctypes.c_void_p.in_dll(library, "weights_begin").value = place
ctypes.c_void_p.in_dll(library, "weights_end").value = place + 16 * count
launch = library.launch
launch.restype, launch.argtypes = ctypes.c_char_p, [ctypes.c_uint] * 3 + [ctypes.c_void_p, ctypes.c_bool]
error = launch(blocks, 1, 1, numbers, bool(backwards))
if error:
    sys.exit(error.decode())
sys.stdout.buffer.write(bytes(out))
"""


def source(kernel: str, stages: int = 1, before: str = "") -> Source:
    """A text with the kernel `read_weights`, which takes `Arguments given`, and a ring of so many stages."""
    text = f"{AROUND.format(stages=stages, panel=PANEL)}{before}{kernel.strip()}\n"
    return Source("read_weights", text, THREADS, stages * (16 * PANEL + 16))


def on_host(
    kernel: str, stages: int, weights: Tensor, blocks: int, backwards: bool = False
) -> tuple[Tensor | None, str]:
    """(out, what went wrong) of a launch on the CPU; "endless": it does not end. RuntimeError: it does not compile."""
    library = run_source._library(source(kernel, stages, LOOKED_AT), ())._name
    command = [sys.executable, "-c", RUN, library, str(blocks), str(weights.numel() // 4), str(int(backwards))]
    try:
        given = weights.numpy().tobytes()
        done = subprocess.run(command, input=given, capture_output=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return None, "endless"
    if done.returncode:
        said = done.stderr.decode().strip().splitlines() or [f"the process ended with {done.returncode}"]
        return None, next((line for line in said if "cuda_on_host" in line), said[-1]).removeprefix("cuda_on_host: ")
    return torch.frombuffer(bytearray(done.stdout), dtype=torch.float32), ""


def sums(weights: Tensor) -> Tensor:
    """What each thread of a block adds up: the float4 t, t + THREADS, …"""
    return weights.view(-1, THREADS, 4).sum((0, 2))
