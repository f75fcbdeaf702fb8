"""The host build of CUDA: what it runs right, and what its sanitizers, its launch and its scheduler must catch.

The kernels are in tests/cuda_on_host/*.cu, a case each. CMake builds the same files for a GPU.
"""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "tests" / "cuda_on_host"
SANITIZERS = {"asan": "-fsanitize=address,undefined", "tsan": "-fsanitize=thread"}
RACE = "ThreadSanitizer: data race"

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is missing")


def _build(program: Path, source: Path, *flags: str) -> Path:
    command = ["g++", "-std=c++20", "-pthread", *flags, f"-I{ROOT / 'kernels'}", "-x", "c++", source, "-o", program]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return program


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """run("warps", "asan", *cases) runs these cases of warps.cu (none: all that are right) built with a sanitizer."""
    folder = tmp_path_factory.mktemp("cuda_on_host")

    def build_once_and_run(name: str, sanitizer: str, *cases: str) -> subprocess.CompletedProcess:
        program = folder / f"{name}_{sanitizer}"
        if not program.exists():
            _build(program, SOURCES / f"{name}.cu", "-Og", SANITIZERS[sanitizer], "-fno-sanitize-recover=undefined")
        fixed = ["setarch", "-R"] if sanitizer == "tsan" and _fixed_addresses() else []
        return subprocess.run([*fixed, program, *cases], capture_output=True, text=True, timeout=300)

    return build_once_and_run


def _fixed_addresses() -> bool:
    return shutil.which("setarch") is not None and subprocess.run(["setarch", "-R", "true"]).returncode == 0


@pytest.mark.parametrize("sanitizer", SANITIZERS)
@pytest.mark.parametrize("name", sorted(path.stem for path in SOURCES.glob("*.cu")))
def test_what_is_right_passes(run, name, sanitizer):
    done = run(name, sanitizer)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert set(re.findall(": (.*)", done.stdout)) == {"right"}


# What is wrong on purpose: the sanitizer that finds it (both: the launch itself fails), and what is said.
MISUSES = [
    ("blocks", "a_barrier_is_missing", "tsan", RACE),
    ("blocks", "the_second_barrier_is_missing", "tsan", RACE),
    ("blocks", "a_write_out_of_bounds", "asan", "AddressSanitizer: heap-buffer-overflow"),
    ("blocks", "shared_memory_out_of_bounds", "asan", "index 8 out of bounds for type 'int [8]'"),
    ("blocks", "shared_memory_out_of_bounds_by_pointer", "asan", "AddressSanitizer: global-buffer-overflow"),
    ("blocks", "dynamic_shared_memory_out_of_bounds", "asan", "AddressSanitizer: heap-buffer-overflow"),
    ("blocks", "a_misaligned_pack", "asan", "misaligned address"),
    ("warps", "a_warp_barrier_is_missing", "tsan", RACE),
    ("warps", "the_second_warp_barrier_is_missing", "tsan", RACE),
    ("warps", "a_shuffle_orders_nothing", "tsan", RACE),
    ("warps", "a_plain_read_beside_an_atomic", "tsan", RACE),
    (
        "warps",
        "a_lane_does_not_reach_the_shuffle",
        "both",
        "block (0, 0, 0): thread (32, 0, 0) waits in __shfl_xor_sync(0xffffffff) for thread (37, 0, 0), "
        "which waits in __syncthreads",
    ),
    (
        "warps",
        "lanes_give_different_masks",
        "both",
        "block (0, 0, 0): thread (0, 0, 0) waits in __ballot_sync(0xffffffff) for thread (16, 0, 0), "
        "which waits in __syncthreads",
    ),
    ("warps", "a_lane_is_not_in_its_mask", "both", "__shfl_sync: lane 16 calls it and is not in its mask 0x0000ffff"),
    ("warps", "a_width_that_is_no_power_of_two", "both", "__shfl_sync: the width is 5"),
    ("cooperative", "a_grid_barrier_is_missing", "tsan", RACE),
    ("cooperative", "dynamic_shared_memory_out_of_bounds", "asan", "AddressSanitizer: heap-buffer-overflow"),
    ("cooperative", "a_block_does_not_reach_the_grid_barrier", "both", "3 of 4 blocks wait in grid_barrier"),
    ("cooperative", "a_thread_does_not_reach_the_grid_barrier", "both", "31 of its 32 threads wait in grid_barrier"),
    ("cooperative", "a_thread_waits_for_its_block_instead", "both", "16 of its 32 threads wait in grid_barrier"),
    ("cooperative", "a_grid_barrier_in_a_plain_launch", "both", "a kernel that was not launched cooperatively"),
    ("tensor_cores", "a_copy_is_read_by_another_thread_without_a_barrier", "tsan", RACE),
    ("tensor_cores", "a_cluster_barrier_is_missing", "tsan", RACE),
    ("tensor_cores", "a_matrix_row_is_not_aligned", "both", "ldmatrix: lane 0 gives an address that is no multiple"),
    ("bulk_copies", "a_bulk_copy_of_an_odd_size", "both", "a bulk copy of 248 bytes"),
    ("bulk_copies", "a_bulk_copy_to_an_odd_place", "both", "all must be multiples of 16"),
    ("bulk_copies", "bulk_loads_of_other_bytes_than_promised", "both", "bytes are not those that begin() was told"),
    ("bulk_copies", "a_wait_for_bulk_loads_that_none_began", "both", "that not all threads have begun"),
    ("bulk_copies", "a_bulk_load_over_what_is_still_written", "tsan", RACE),
    ("bulk_copies", "a_bulk_store_of_what_is_overwritten", "tsan", RACE),
    ("bulk_copies", "a_bulk_store_of_what_a_thread_has_not_ordered", "both", "not all threads have put in order"),
]


@pytest.mark.parametrize(("name", "case", "by", "message"), MISUSES, ids=[misuse[1] for misuse in MISUSES])
def test_what_is_wrong_is_found(run, name, case, by, message):
    for sanitizer in SANITIZERS if by == "both" else [by]:
        done = run(name, sanitizer, f"misuse_{case}")
        assert done.returncode != 0
        assert message in done.stderr
        if by == "both":  # the launch's own error, and nothing else: the sanitizers are content
            assert done.stderr == f"cuda_on_host: {done.stderr.removeprefix('cuda_on_host: ').splitlines()[0]}\n"
            assert (done.returncode, done.stdout) == (1, f"misuse_{case}: WRONG\n")


def test_every_misuse_is_listed():
    listed = {(name, f"misuse_{case}") for name, case, _, _ in MISUSES}
    written = {
        (path.stem, line.split("CASE(")[1].split(")")[0])
        for path in SOURCES.glob("*.cu")
        for line in path.read_text().splitlines()
        if line.startswith("CASE(misuse_")
    }
    assert written == listed


def test_columns_divide_as_the_language_does(tmp_path):
    """Columns<unsigned> against %, 19 million checks: all small divisors, those around powers of two, and others."""
    (tmp_path / "columns.cpp").write_text("""
        #include <cstdio>
        #include <random>
        #include "device/vector.cuh"
        int main() {
            std::mt19937 bits(1);
            long long checks = 0, wrong = 0;
            auto check = [&](unsigned divisor, unsigned index) {
                ++checks;
                wrong += Columns<unsigned>(divisor).of(index) != index % divisor;
            };
            constexpr unsigned most = (1u << 31) - 1;
            auto check_divisor = [&](unsigned divisor, int draws) {
                for (unsigned near : {0u, divisor, most / 2, most / divisor * divisor, most})
                    for (long long index = near - 2ll; index <= near + 2ll; ++index)
                        if (index >= 0 && index <= most) check(divisor, unsigned(index));
                for (int i = 0; i < draws; ++i) {
                    check(divisor, bits() & most);
                    // The last of a row and the first of the next: where a quotient that is one off shows.
                    unsigned start = (bits() & most) / divisor * divisor;
                    check(divisor, start);
                    if (start) check(divisor, start - 1);
                }
            };
            for (unsigned divisor = 1; divisor <= 5000; ++divisor) check_divisor(divisor, 300);
            for (int power = 1; power < 32; ++power)
                for (long long divisor = (1ll << power) - 50; divisor <= (1ll << power) + 50; ++divisor)
                    if (divisor >= 1 && divisor <= most) check_divisor(unsigned(divisor), 600);
            for (int i = 0; i < 20000; ++i) check_divisor((bits() & most) % (most >> i % 20) + 1, 150);
            std::printf("%lld checks, %lld wrong\\n", checks, wrong);
        }
    """)
    program = _build(tmp_path / "columns", tmp_path / "columns.cpp", "-O2")
    assert subprocess.run([program], capture_output=True, text=True).stdout == "19040799 checks, 0 wrong\n"
