"""The host build of the CUDA kernels: what its sanitizers and its launch must catch, and its half and bfloat16."""

import shutil
import subprocess
from pathlib import Path

import pytest

KERNELS = Path(__file__).resolve().parent.parent / "kernels"
SANITIZERS = {"asan": "-fsanitize=address,undefined", "tsan": "-fsanitize=thread"}

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is missing")


@pytest.fixture
def run(tmp_path):
    """run(source, sanitizer) compiles a program over launch.cuh for the host and runs it."""

    def compile_and_run(source: str, sanitizer: str) -> subprocess.CompletedProcess:
        (tmp_path / "program.cpp").write_text('#include "device/launch.cuh"\n#include <cstdio>\n' + source)
        flags = ["-std=c++20", "-O1", "-g", SANITIZERS[sanitizer], "-fno-sanitize-recover=undefined", f"-I{KERNELS}"]
        command = ["g++", *flags, str(tmp_path / "program.cpp"), "-o", str(tmp_path / "program")]
        built = subprocess.run(command, capture_output=True, text=True)
        assert built.returncode == 0, built.stderr
        fixed = ["setarch", "-R"] if sanitizer == "tsan" and _fixed_addresses() else []
        return subprocess.run([*fixed, str(tmp_path / "program")], capture_output=True, text=True, timeout=60)

    return compile_and_run


def _fixed_addresses() -> bool:
    return shutil.which("setarch") is not None and subprocess.run(["setarch", "-R", "true"]).returncode == 0


# Each thread writes its place and reads its neighbour's, over several blocks; some threads return before the barrier.
NEIGHBOUR = """
__global__ void kernel(int* out, int last) {
    __shared__ int tile[64];
    if (int(threadIdx.x) > last) return;
    tile[threadIdx.x] = int(threadIdx.x + 100 * blockIdx.x);
    BARRIER
    int value = tile[(threadIdx.x + 1) % (last + 1)];
    out[blockIdx.x * 64 + threadIdx.x] = value;
}
int main() {
    int out[4 * 64] = {};
    for (int last : {63, 40}) {
        if (launch_kernel(kernel, dim3(4), dim3(64), 0, nullptr, out, last) != cudaSuccess) return 2;
        for (int b = 0; b < 4; ++b)
            for (int t = 0; t <= last; ++t)
                if (out[b * 64 + t] != (t + 1) % (last + 1) + 100 * b) return 3;
    }
    std::puts("right");
}
"""


@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_a_barrier_lets_returned_threads_drop_out(run, sanitizer):
    done = run(NEIGHBOUR.replace("BARRIER", "__syncthreads();"), sanitizer)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "right\n"


def test_thread_sanitizer_finds_a_missing_barrier(run):
    done = run(NEIGHBOUR.replace("BARRIER", ""), "tsan")
    assert done.returncode != 0
    assert "ThreadSanitizer: data race" in done.stderr


def test_thread_sanitizer_finds_a_missing_second_barrier(run):
    """Read, then overwritten for the next turn by a thread that did not wait for the readers."""
    source = """
    __global__ void kernel(int* out) {
        __shared__ int tile[32];
        int sum = 0;
        for (int turn = 0; turn < 3; ++turn) {
            tile[threadIdx.x] = turn;
            __syncthreads();
            sum += tile[31 - threadIdx.x];
            BARRIER
        }
        out[threadIdx.x] = sum;
    }
    int main() {
        int out[32];
        return launch_kernel(kernel, dim3(1), dim3(32), 0, nullptr, out);
    }
    """
    assert run(source.replace("BARRIER", "__syncthreads();"), "tsan").returncode == 0
    assert "ThreadSanitizer: data race" in run(source.replace("BARRIER", ""), "tsan").stderr


def test_address_sanitizer_finds_writes_out_of_bounds(run):
    source = """
    __global__ void kernel(float* out) { out[threadIdx.x] = 1; }
    int main() {
        float* out;
        cudaMalloc(&out, 31 * sizeof(float));
        return launch_kernel(kernel, dim3(1), dim3(THREADS), 0, nullptr, out) || cudaFree(out);
    }
    """
    assert run(source.replace("THREADS", "31"), "asan").returncode == 0
    assert "AddressSanitizer: heap-buffer-overflow" in run(source.replace("THREADS", "32"), "asan").stderr


def test_address_sanitizer_finds_shared_memory_out_of_bounds(run):
    source = """
    __global__ void kernel(int* out) {
        __shared__ int tile[8];
        tile[threadIdx.x] = 1;
        __syncthreads();
        *out = tile[0];
    }
    int main() { int out; return launch_kernel(kernel, dim3(1), dim3(9), 0, nullptr, &out); }
    """
    # UBSan knows the array's bounds and speaks first.
    assert "out of bounds" in run(source, "asan").stderr


def test_undefined_behaviour_sanitizer_finds_misaligned_packs(run):
    source = """
    struct alignas(16) Pack { float element[4]; };
    __global__ void kernel(float* out) { *reinterpret_cast<Pack*>(out) = Pack{}; }
    int main() {
        alignas(16) float out[8];
        return launch_kernel(kernel, dim3(1), dim3(1), 0, nullptr, out + OFFSET);
    }
    """
    assert run(source.replace("OFFSET", "4"), "asan").returncode == 0
    assert "misaligned address" in run(source.replace("OFFSET", "1"), "asan").stderr


def test_limits_are_launch_errors_and_indices_cover_three_dimensions(run):
    source = """
    __global__ void kernel(int* hits) {
        unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
        unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
        ++hits[block * blockDim.x * blockDim.y * blockDim.z + thread];
    }
    int launch(dim3 grid, dim3 block, size_t shared, int* hits) {
        return launch_kernel(kernel, grid, block, shared, nullptr, hits);
    }
    int main() {
        int hits[2 * 3 * 4 * 5 * 6 * 7] = {};
        if (launch({2, 3, 4}, {5, 6, 7}, 0, hits)) return 1;
        for (int hit : hits)
            if (hit != 1) return 2;
        dim3 wrong_grids[] = {{0}, {1, 0}, {1, 1, 0}, {1, 65536}, {1, 1, 65536}, {0x80000000u}};
        for (dim3 grid : wrong_grids)
            if (launch(grid, {1}, 0, hits) != cudaErrorInvalidConfiguration) return 3;
        dim3 wrong_blocks[] = {{0}, {1, 0}, {1, 1, 0}, {1025}, {32, 33}, {1, 1, 65}, {65536, 65536}};
        for (dim3 block : wrong_blocks)
            if (launch({1}, block, 0, hits) != cudaErrorInvalidConfiguration) return 4;
        std::puts(cudaGetErrorString(cudaErrorInvalidConfiguration));
    }
    """
    done = run(source, "asan")
    assert (done.returncode, done.stdout) == (0, "invalid configuration argument\n"), done.stderr


def test_half_and_bfloat16_round_to_nearest_even(run):
    """Every value there and back; and between two neighbours, the middle and the floats on either side of it."""
    source = """
    template <class T, class To, class From>
    int check(unsigned infinity, To to, From from) {
        for (unsigned sign : {0u, 0x8000u})
            for (unsigned bits = 0; bits <= 0x7fff; ++bits) {
                float value = to(T{uint16_t(sign | bits)});
                if (isnan(value) != (bits > infinity)) return 1;
                if (isnan(value)) {
                    if (!isnan(to(from(value)))) return 2;
                    continue;
                }
                if (from(value).bits != (sign | bits)) return 3;
                if (bits >= infinity) continue;
                // Beyond the largest number the neighbour is what would follow it, and stands for Inf.
                double next = bits + 1 < infinity ? to(T{uint16_t(sign | (bits + 1))})
                                                  : 2.0 * value - to(T{uint16_t(sign | (bits - 1))});
                float middle = float((double(value) + next) / 2), zero = 0 * value;
                if (from(middle).bits != (sign | (bits + (bits & 1)))) return 4;
                if (from(nextafterf(middle, zero)).bits != (sign | bits)) return 5;
                if (from(nextafterf(middle, 2 * value + copysignf(1, value))).bits != (sign | (bits + 1))) return 6;
            }
        return 0;
    }
    int main() {
        int half = check<__half>(0x7c00, __half2float, [](float f) { return __float2half(f); });
        int bf16 = check<__nv_bfloat16>(0x7f80, __bfloat162float, [](float f) { return __float2bfloat16(f); });
        __half2 halves = __floats2half2_rn(1, -2);
        __nv_bfloat162 bf16s = __floats2bfloat162_rn(1, -2);
        std::printf("%d %d %x %x %x %x %x\\n", half, bf16, halves.x.bits, halves.y.bits, bf16s.x.bits, bf16s.y.bits,
                    __umulhi(0xffffffffu, 0xfffffff0u));
    }
    """
    done = run(source, "asan")
    assert (done.returncode, done.stdout) == (0, "0 0 3c00 c000 3f80 c000 ffffffef\n"), done.stderr
