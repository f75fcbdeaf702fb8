"""kernels/cubin: compiled without a GPU, put into a program, launched over a driver that records.

tests/cubin_program/ has the programs: cases.cpp with what the launcher does and refuses, and the example.
"""

from __future__ import annotations

import gc
import json
import os
import re
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import fake_driver
import pytest
import torch

from kernels import cubin, runtime
from kernels.cubin import compile as compiling
from kernels.cubin.compile import CubinError
from kernels.cubin.embed import embed
from kernels.dispatch import nvrtc
from kernels.dispatch.core import load_core

TESTS = Path(__file__).resolve().parent
PROGRAMS = TESTS / "cubin_program"
ARCHS = (80, 90, 100, 120)
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is missing")
on_cpu = pytest.mark.skipif(runtime.device().type == "cuda", reason="for a machine without a GPU")
# 1: the number of elements is known to be 1, and no parameter. Compiled in a process without the interpreter.
COMPILE = """
import sys
from pathlib import Path
from kernels.cubin import compile as compiling
pointers = {f"{name}_ptr": "*fp32:16" for name in ("x", "bias", "y", "out")} | {"multiplier": "fp32"}
constants = {"COLUMNS": 512, "ACTIVATION": "sigmoid", "BLOCK": 1024, "num_warps": 4}
for name, elements, wide in (("act", "i32", False), ("act_by_16", "i32:16", False), ("act_wide", "i64", True),
                             ("act_of_1", 1, False)):
    given = {"elements": elements}
    types, known = (pointers, given) if elements == 1 else (pointers | given, {})
    for arch in (80, 90):
        made = compiling.by_triton("kernels.ops.add_mul_activation.triton_kernel:general", name, arch, types,
                                   constants | known | {"WIDE": wide})
        compiling.write(Path(sys.argv[1]), name, arch, *made)
"""
CUDA = """extern "C" __global__ void scale(float* x, long long n, float by, short more, double last) {
    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) x[i] = x[i] * by + more + last;
}
"""
FATBIN = struct.pack("<IHHQ", 0xBA55ED50, 1, 16, 16) + bytes(16)  # of 16 bytes, in which the driver looks for code
PTX = "//\n.version 8.0\n.target sm_90\n.visible .entry general(\n.param .u64 a) {\n ret; }\n"


def environment() -> dict[str, str]:
    return os.environ | {"TRITON_INTERPRET": "0", "PYTHONPATH": os.pathsep.join([str(TESTS.parent), *sys.path])}


def run(*words: str | Path, check: bool = True) -> subprocess.CompletedProcess:
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, env=environment())
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="session")
def images(tmp_path_factory):
    """A folder with Triton's images for sm_80 and sm_90, and what was damaged of one."""
    folder = tmp_path_factory.mktemp("images")
    run(sys.executable, "-c", COMPILE, folder)
    image = (folder / "act.sm_90.cubin").read_bytes()
    damaged = {
        "empty": b"", "few": b"\x7fELF", "text": b"no image at all\n" * 3, "elf": image[:18] + b"\x3e\0" + image[20:],
        "truncated": image[:-10], "half": image[: len(image) // 2], "act.ptx": PTX.encode(),
        "one.fatbin": FATBIN, "two.fatbin": FATBIN,
        "half.ptx": PTX[:-3].encode(), "target.ptx": PTX.replace(".target sm_90", "").encode(),
    }  # fmt: skip
    for name, contents in damaged.items():
        (folder / name).write_bytes(contents)
    return folder


@pytest.fixture(scope="session")
def drivers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("drivers")
    return (fake_driver.build(folder / "libcuda.so.1"),
            fake_driver.build(folder / "libcuda_old.so.1", "-DBEFORE_CUDA_12_4"))


# ------------------------------------------------------------------------------------------------------------------
# The launcher in C++.

NAMES = r"\(x_ptr, bias_ptr, y_ptr, out_ptr, multiplier, elements\)"
GIVEN = "1 launched, {}x1x1 blocks of 128, shared {}, kind {}, cluster {}, parameters 4096 4096 4096 4096 0 {} 0 0, "
GIVEN += "1 loaded, 1 unloaded"


def given(elements: int = 16, blocks: int = 1, shared: int = 0, kind: int = 0, cluster: int = 0) -> str:
    return GIVEN.format(blocks, shared, kind, cluster, elements)


BY_BOTH_DRIVERS = {
    "act of 0": "nothing launched, 1 loaded, 1 unloaded",
    "act of 1": given(1),
    "act of 16": given(16),
    "act of 17": given(17),
    "fewer arguments": f"error 0: act takes 6 arguments {NAMES}, and is given 5",
    "more arguments": f"error 0: act takes 6 arguments {NAMES}, and is given 7",
    "hidden ones given": f"error 0: act takes 6 arguments {NAMES}, and is given 8",
    "a double": r"error 0: .* argument 4 \(multiplier\) is a floating-point number of 4 bytes, and is given .* of 8",
    "an int for a float": r"error 0: .*\(multiplier\) is a floating-point number of 4 .*given an integer of 4",
    "64 bits for 32": r"error 0: .* argument 5 \(elements\) is an integer of 4 .*, and is given an integer of 8",
    "an unsigned": given(),
    "an unsigned that is too large": r"error 0: .*\(elements\) is an integer of 4 bytes, which does not hold it",
    "a number for a pointer": r"error 0: .* argument 3 \(out_ptr\) is a pointer of 8 .*, and is given an integer of 8",
    "a device pointer": given(),
    "misaligned": r"error 0: act: argument 2 \(y_ptr\) is at an address that 16 does not divide; the kernel was .*",
}
CASES = {
    "wide": ".*; " + given(2**31 + 17, 2**21 + 1),
    "32 bits for 64": r"error 0: .* argument 5 \(elements\) is an integer of 8 .*, and is given an integer of 4",
    "a multiple of 16": given(2**32 - 32),
    "no multiple of 16": r"error 0: act_by_16: argument 5 \(elements\) is 17, which 16 does not divide; .*",
    "one as a constant": "1 launched, .* parameters 4096 4096 4096 4096 0 0 0, 1 loaded, 1 unloaded",
    "one as a constant and given": r"error 0: act_of_1 takes 5 arguments \(.*multiplier\), and is given 6",
    "PTX and an old driver": "error 0: general: a driver before CUDA 12.4 does not say .* nor does .*/act.ptx, .*",
    "a grid too large": r"error 0: act: a grid of 2147483648 blocks along x is beyond .* \(0 to 2147483647\)",
    "a grid too high": "error 0: act: a grid of 65536 blocks along y is beyond .*",
    "a negative grid": "error 0: act: a grid of -1 blocks along x is beyond .*",
    "another block": "error 0: act was compiled for blocks of 128 threads, and is launched with 256",
    "a block too large": "error 0: general: a block of 2048 threads; 1024 is the most",
    "no block": "error 0: general: a block of 0 threads along x is beyond .*",
    "a cluster": given(blocks=6, cluster=2),
    "half a cluster": "error 0: act: a grid of 6 blocks along x has no whole number of clusters of 4",
    "a cluster too large": "error 0: act: a cluster of 16 blocks along x; 8 is the most that every GPU takes",
    "a cluster too large in all": "error 0: act: a cluster of 16 blocks; 8 is the most that every GPU takes",
    "a cluster beyond numbers": "error 0: act: a cluster of 1099511627776 blocks along x; 8 is the most .*",
    "a block beyond numbers": r"error 0: act: a block of 1099511627776 threads along x is beyond .* \(1 to 1024\)",
    "a cluster on sm_80": "error 0: act: clusters need sm_90 or later; this GPU is sm_80",
    "cooperative": given(blocks=6, kind=1),
    "a cooperative cluster": given(blocks=6, kind=1, cluster=2),
    "early": given(blocks=6, kind=2),
    "cooperative, of a plain one": "error 0: act was compiled for a plain launch, and this is a cooperative launch",
    "early, of a plain one": "error 0: act was compiled for a plain launch, and this is an early launch",
    "plain, of a cooperative one": "error 0: act was compiled for a cooperative launch, and this is a plain launch",
    "as described": given(blocks=6, kind=2, shared=1000),
    "plain, of an early one": given(blocks=6, shared=1000),
    "less shared memory": "error 0: act was compiled for 1000 bytes of shared memory a block, and is launched with 999",
    "shared memory beside static": given(blocks=6, shared=1001),
    "its attribute": "8 1001",
    "shared memory that fits": given(blocks=6, shared=49152),
    "no attribute": "0",
    "more shared memory": given(blocks=6, shared=100000),
    "attribute": "8 100000",
    "too much shared memory": "error 1: the kernel act needs 300000 bytes of shared memory a block, more than .*FAKE.*",
    "a launch that fails": "error 719: act: launching a kernel of 6×1×1 blocks of 128 threads .* failed: .*_FAKE",
    "no context": r"error 0: act: this thread has no CUDA context: call cubin::use_device\(0\)",
    "another architecture": "error 0: act was compiled for sm_80, sm_90a; this GPU is sm_75",
    "a later minor version": given(blocks=6),
    "the driver's refusal": r"error 209: act: no image of it is for this GPU, sm_90: image . \(act\): .*_BINARY_.*",
    "damaged for the driver": r"error 200: the driver does not load image . \(act\): it may be damaged: .*_IMAGE",
    "not in the image": r"error 500: act: no image of it is .*: image . \(act\) has no kernel general: .*_NOT_FOUND",
    "the driver's error": r"error 999: the kernel general of image . \(act\): CUDA_ERROR_FAKE",
    "in the second fatbin": given().replace("1 loaded, 1 un", "2 loaded, 2 un"),
    "in no fatbin": "error 500: general: no image of it is for this GPU, sm_90: .*/one.fatbin has no kernel general: "
                    "CUDA_ERROR_NOT_FOUND; .*/two.fatbin has no kernel general: CUDA_ERROR_NOT_FOUND",
    **{f"by the next image {result}": given().replace("1 loaded", "2 loaded") for result in (209, 221, 222, 223)},
    "by no image": "error 222: general: no image of it is .*act.sm_90.cubin: .*_PTX_VERSION; .*/act.ptx: .*VERSION",
    "another number of parameters": "error 0: act takes 9 parameters, and is described with 6 and 2 hidden ones",
    "no such kernel": "error 0: the program has no kernel nothing: it has act, act_by_16, act_of_1, act_wide",
    "no driver": "error 0: the CUDA driver is not here: /nowhere/libcuda.so.1: cannot open .*",
    "act.sm_90.cubin": given(),
    "missing": "error 0: .*/missing is missing or empty",
    "empty": "error 0: .*/empty is missing or empty",
    "few": "error 0: .*/few has 4 bytes: too few for a cubin, a fatbin or PTX",
    "text": "error 0: .*/text is neither a cubin .* nor PTX.*",
    "elf": r"error 0: .*/elf is an ELF file for machine 62, not for a GPU \(190\)",
    "truncated": r"error 0: .*/truncated is truncated: it has \d+ bytes, and what it holds ends at byte \d+",
    "half": "error 0: .*/half is truncated: .*",
    "another name": "error 0: the program has no kernel act: it has general",
    "act.ptx": given(),
    "half.ptx": "error 0: .*/half.ptx is truncated: PTX in which a brace is not closed",
    "target.ptx": "error 0: .*/target.ptx is PTX without a .target: .*",
    "PTX for a later GPU": "error 0: general was compiled for sm_90; this GPU is sm_80",
    "several devices": "0 unloaded before the end; 6 launched, .* 2 loaded, 2 unloaded",
    "a context made anew": "4 launched, .* 2 loaded, 1 unloaded",
    "threads": "nothing launched, 1 loaded, 1 unloaded",
}


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_what_the_launcher_does_and_refuses(tmp_path, images, drivers, sanitizer):
    header, bytes_ = embed("act_images", sorted(images.glob("*.cubin")), tmp_path)
    program = tmp_path / "cases"
    run("g++", "-std=c++17", "-g1", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-pthread", f"-fsanitize={sanitizer}",
        f"-I{runtime.KERNELS}", f"-I{tmp_path}", PROGRAMS / "cases.cpp", bytes_, "-o", program)
    fixed = ["setarch", "-R"] if sanitizer == "thread" and shutil.which("setarch") else []
    new, old = run(*fixed, program, *drivers, images).stdout.removeprefix("== new\n").split("== old\n")
    lines = [line.split(": ", 1) for line in (new + old).splitlines()]
    expected = [*BY_BOTH_DRIVERS.items(), *BY_BOTH_DRIVERS.items(), *CASES.items()]
    assert [name for name, _ in lines] == [name for name, _ in expected]
    wrong = [(name, line) for (name, line), (_, pattern) in zip(lines, expected, strict=True)
             if not re.fullmatch(pattern, line)]
    assert wrong == []
    assert header.read_text().count("cubin::Description description_") == 8


# ------------------------------------------------------------------------------------------------------------------
# The launcher in Python.


@pytest.fixture
def driver(drivers):
    load_core()
    torch.ops.fused_kernels._use_driver(str(drivers[0]))
    fake = fake_driver.Driver(drivers[0])
    fake.set(launch_count=0, load_count=0, unload_count=0, load_result=0, function_result=0, launch_result=0,
             attribute_result=0, capability=90, context=1)
    fake.set_parameters(8, 8, 8, 8, 4, 4, 8, 8)
    return fake


@pytest.mark.slow
@needs_compiler
@on_cpu
class TestLoad:
    def test_tensors_and_numbers_arrive_as_the_kernel_takes_them(self, driver, images):
        program = cubin.load(images / "act.sm_80.cubin", images / "act.sm_90.cubin", device="cpu")
        act = program["act"]
        assert program["act"] is act
        x, bias, y, out = (torch.zeros(512) for _ in range(4))
        act(3, None, x, bias, y, out, 0.25, 512)
        act((3, 2), 128, x, bias, None, out, 2, 512, cluster=(3, 2))  # 2: known to be a float
        act((3,), (128, 1), x, bias, y, out, -2.5, 512, shared=100)
        first, second, third = driver.launches()
        assert list(first.parameters[:4]) == [tensor.data_ptr() for tensor in (x, bias, y, out)]
        assert [struct.pack("<q", launch.parameters[4])[:4] for launch in driver.launches()] == [
            struct.pack("<f", value) for value in (0.25, 2, -2.5)]
        assert list(first.parameters[5:8]) == [512, 0, 0]
        assert (tuple(first.grid), tuple(first.block), first.kind, first.shared) == ((3, 1, 1), (128, 1, 1), 0, 0)
        assert (tuple(second.grid), tuple(second.cluster), second.kind) == ((3, 2, 1), (3, 2, 1), 0)
        assert second.parameters[2] == 0
        assert third.shared == 100
        assert (driver.load_count, driver.unload_count) == (1, 0)
        del program
        act(1, None, x, bias, y, out, 0.25, 512)  # the kernel keeps what it needs
        del act
        gc.collect()
        assert driver.unload_count == 1

    def test_what_a_graph_has_captured_stays_loaded(self, driver, images):
        x = torch.zeros(512)
        for capturing, unloaded in ((1, 0), (0, 1)):
            act = cubin.load(images / "act.sm_90.cubin", device="cpu")["act"]
            driver.set(capturing=capturing)
            act(1, None, x, x, x, x, 0.25, 512)
            driver.set(capturing=0)
            act(1, None, x, x, x, x, 0.25, 512)
            del act
            gc.collect()
            assert driver.unload_count == unloaded

    @pytest.mark.parametrize(
        ("change", "error", "message"),
        [
            ({5: 0.5}, TypeError, "argument 5 is an integer; got a float"),
            ({5: 2**31 + 17}, ValueError, "argument 5 is an integer of 32 bits; got 2147483665"),
            ({5: 2**32}, ValueError, "argument 5 is an integer of 32 bits; got 4294967296"),
            ({5: -(2**70)}, ValueError, "argument 5 is an integer of 32 bits; got -1180591620717411303424"),
            ({0: -16}, ValueError, "argument 0 is an integer of 64 bits; got -16"),
            ({5: "16"}, TypeError, "argument 5 is a tensor, a number or None; got str"),
            ({5: None}, RuntimeError, r"act: argument 5 \(elements\) is an integer of 4 bytes, and is given a pointer"),
            ({6: 1}, RuntimeError, "act takes 6 arguments .*, and is given 7"),
            ({0: torch.zeros(4, device="meta")}, ValueError, "argument 0 is on meta; the kernel runs on cpu"),
            ({1: torch._neg_view(torch.zeros(16))}, ValueError, r"argument 1 is a negative .* view .*: clone\(\) it"),
            ({0: torch._efficientzerotensor((16,))}, ValueError, "argument 0 is a .* zero tensor"),
            ({1: torch.zeros(17)[1:]}, RuntimeError, r"argument 1 \(bias_ptr\) is at an address that 16"),
            ({0: 64.0}, TypeError, "argument 0 is a pointer; got a float"),
            ({-2: 2**31}, RuntimeError, "a grid of 2147483648 blocks along x"),
            ({-2: "a"}, TypeError, "the grid is an int or a tuple of up to three; got str"),
            ({-2: (1, 1, 1, 1)}, TypeError, "the grid is an int or a tuple of up to three; got 4"),
            ({-1: 64}, RuntimeError, "act was compiled for blocks of 128 threads, and is launched with 64"),
        ],
    )
    def test_what_is_wrong_is_named(self, driver, images, change, error, message):
        values = {-2: 1, -1: None, **dict.fromkeys(range(4), torch.zeros(16)), 4: 0.5, 5: 16} | change
        act = cubin.load(images / "act.sm_90.cubin", device="cpu")["act"]
        with pytest.raises(error, match=message):
            act(*(value for _, value in sorted(values.items())))
        assert driver.launch_count == 0

    def test_files_and_names_that_are_not_there(self, driver, images, tmp_path):
        x = torch.zeros(16)
        with pytest.raises(RuntimeError, match="missing is missing or empty"):
            cubin.load(images / "missing", device="cpu")
        with pytest.raises(RuntimeError, match="truncated is truncated"):
            cubin.load(images / "truncated", device="cpu")
        program = cubin.load(images / "act.sm_90.cubin", device="cpu")
        with pytest.raises(RuntimeError, match="has no kernel general: it has act"):
            program["general"]
        with pytest.raises(TypeError, match="called with a grid, a block, and its arguments"):
            program["act"](1)
        with pytest.raises(TypeError, match="a launch has no option stream: shared, cluster"):
            program["act"](1, None, x, x, x, x, 0.5, 16, stream=1)
        with pytest.raises(RuntimeError, match="compiled for a plain launch, and this is an early launch"):
            program["act"](1, None, x, x, x, x, 0.5, 16, early=True)
        # Without its description it is the image's kernel, with all of its parameters, and a block is to be given.
        shutil.copy(images / "act.sm_90.cubin", tmp_path)
        bare = cubin.load(tmp_path / "act.sm_90.cubin", device="cpu")["general"]
        bare(1, 128, x, x, x, x, 0.5, 16, None, None)
        bare(1, 128, x, x, x, x, 0.5, 16, None, None, cooperative=True)
        bare(1, 128, x, x, x, x, 0.5, 16, None, None, early=True)
        assert [launch.kind for launch in driver.launches()] == [0, 1, 2]
        with pytest.raises(RuntimeError, match="general takes 8 arguments, and is given 6"):
            bare(1, 128, x, x, x, x, 0.5, 16)
        with pytest.raises(RuntimeError, match="a block of 0 threads"):
            bare(1, None, x, x, x, x, 0.5, 16, None, None)
        driver.set(capability=80)
        with pytest.raises(RuntimeError, match="act was compiled for sm_90a; this GPU is sm_80"):
            cubin.load(images / "act.sm_90.cubin", device="cpu")["act"](1, None, x, x, x, x, 0.5, 16)


# ------------------------------------------------------------------------------------------------------------------
# Compiling and embedding.


@pytest.mark.slow
@pytest.mark.parametrize("by", ["nvcc", "nvrtc"])
@pytest.mark.parametrize("arch", ARCHS)
def test_the_architecture_and_the_parameters_are_read_of_every_compilers_cubin(tmp_path, drivers, by, arch):
    missing = {"nvcc": "" if runtime.nvcc() else "nvcc is missing", "nvrtc": nvrtc.why_not()}[by]
    if missing:
        pytest.skip(missing)
    source = tmp_path / "scale.cu"
    source.write_text(CUDA)
    image = compiling.by_nvcc(source, arch) if by == "nvcc" else compiling.by_nvrtc(source, arch)
    path = compiling.write(tmp_path, "scale", arch, image)
    program = tmp_path / "show"
    (tmp_path / "show.cpp").write_text("""
#include <cstdio>
#include "cubin/image.h"
int main(int, char** words) {
    std::FILE* file = std::fopen(words[1], "rb");
    std::vector<char> bytes(1 << 20);
    bytes.resize(std::fread(bytes.data(), 1, bytes.size(), file));
    const cubin::Contents contents = cubin::contents_of(bytes.data(), bytes.size(), words[1]);
    std::printf("%d", contents.arch);
    for (const auto& [name, sizes] : contents.kernels) {
        std::printf(" %s", name.c_str());
        for (size_t size : sizes) std::printf(" %zu", size);
    }
}""")
    run("g++", "-std=c++17", f"-I{runtime.KERNELS}", tmp_path / "show.cpp", "-o", program)
    assert run(program, path).stdout == f"{arch} scale 8 8 4 2 8"


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("array", [False, True], ids=["assembler", "array"])
@pytest.mark.parametrize("lto", [False, True], ids=["", "lto"])
def test_two_copies_of_a_bundle_and_another_link_into_one_program(tmp_path, images, array, lto):
    files = sorted(images.glob("act.*.cubin"))
    sources = [tmp_path / "main.cpp"]
    for folder, name in (("a", "one"), ("b", "one"), ("c", "two")):  # "one" twice
        place = tmp_path / folder
        place.mkdir()
        _, bytes_ = embed(name, files, place, array)
        use = place / "use.cpp"
        use.write_text(f'#include "{name}.h"\nconst void* of_{folder}() {{ return {name}::images[1].bytes; }}\n')
        sources += [use, bytes_]
    sources[0].write_text("""#include <cstdint>
const void *of_a(), *of_b(), *of_c();
int main() { return of_a() != of_b() || of_a() == of_c() || reinterpret_cast<uintptr_t>(of_c()) % 64; }
""")
    run("g++", "-std=c++17", "-Wall", "-Werror", *["-flto"] * lto, f"-I{runtime.KERNELS}", *sources,
        "-o", tmp_path / "program")
    run(tmp_path / "program")
    symbols = [line.split()[1:] for line in run("nm", tmp_path / "program").stdout.splitlines() if " cubin_" in line]
    _assert_local(symbols, [] if array else [*files, *files], bundles=2)
    assert "cubin_" not in run("nm", "-D", tmp_path / "program").stdout


@needs_compiler
@pytest.mark.parametrize("size", [80, 120])
def test_an_image_of_another_size_than_was_embedded_does_not_assemble(tmp_path, size):
    image = tmp_path / "a.cubin"
    image.write_bytes(b"\x7fELF" + bytes(96))
    _, bytes_ = embed("one", [image], tmp_path)
    run("g++", "-c", bytes_, "-o", tmp_path / "one.o")
    image.write_bytes(b"\x7fELF" + bytes(size - 4))
    done = run("g++", "-c", bytes_, "-o", tmp_path / "one.o", check=False)
    assert (done.returncode, "a.cubin has another size than when it was embedded" in done.stderr) == (1, True)


@pytest.mark.slow
@needs_compiler
@on_cpu
@pytest.mark.skipif(shutil.which("cmake") is None or shutil.which("ninja") is None, reason="cmake or ninja is missing")
def test_a_program_without_python_triton_or_torch(tmp_path, drivers):
    # With link-time optimisation; both bundles hold the kernel act.
    run("cmake", "-S", PROGRAMS, "-B", tmp_path, "-G", "Ninja", f"-DFUSED_KERNELS_PYTHON={sys.executable}", "-DLTO=ON")
    run("cmake", "--build", tmp_path)
    program = tmp_path / "cubin_program"
    libraries = run("ldd", program).stdout
    assert "libc.so" in libraries
    assert not re.search("python|torch|triton|cuda", libraries)
    assert {len(list(tmp_path.glob(f"{name}.sm_*.cubin"))) for name in ("act", "act_by_16", "act_wide", "mlp")} == {4}
    symbols = [line.split()[1:] for line in run("nm", program).stdout.splitlines() if " cubin_" in line]
    _assert_local(symbols, [*tmp_path.glob("*.cubin"), *tmp_path.glob("act.*.cubin")], bundles=2)
    for name, count in (("x", 40 * 32), ("packed", 4096), ("out", 40)):
        torch.zeros(count).numpy().tofile(tmp_path / name)
    done = run("env", "-i", program, "--record", drivers[1], "--mlp", tmp_path)
    assert done.stdout.splitlines() == [*(f"act: {n} elements" for n in (1, 16, 17, 1_000_003)), "mlp: 40 rows"]
    # Nothing is made again unless what it is made of has changed.
    assert "no work to do" in run("cmake", "--build", tmp_path).stdout
    missing = run("env", "-i", program, check=False)
    assert (missing.returncode, "the CUDA driver is not here" in missing.stderr) == (1, True)


HELPED = {
    "mine/__init__.py": "",
    "mine/kernel.py": """import triton
import triton.language as tl
from .helper import shift

@triton.constexpr_function
def factor():
    from mine import factors
    return factors.FACTOR

@triton.jit
def act(x_ptr):
    tl.store(x_ptr, shift(tl.load(x_ptr)) * factor())
""",
    "mine/helper.py": """import triton

@triton.jit
def shift(x):
    return x + 1.0
""",
    "mine/factors.py": "FACTOR = 3.0\n",
    "scale.cu": """#include <by.h>
extern "C" __global__ void scale(float* x) { *x *= BY; }
""",
    "include/by.h": """#include "number.h"
#define BY NUMBER
""",
    "include/number.h": "#define NUMBER 3\n",
    "CMakeLists.txt": """cmake_minimum_required(VERSION 3.25)
project(own LANGUAGES CXX)
include(${CUBIN_CMAKE})
fused_kernels_cubin(act TRITON mine.kernel:act ARCHITECTURES 90 ARGUMENTS x_ptr=*fp32)
fused_kernels_cubin(scale NVCC scale.cu ARCHITECTURES 90 FLAGS -I${CMAKE_CURRENT_SOURCE_DIR}/include)
add_custom_target(all_images ALL DEPENDS ${act_CUBINS} ${scale_CUBINS})
""",
}


@pytest.mark.slow
@needs_compiler
@pytest.mark.skipif(shutil.which("cmake") is None or shutil.which("ninja") is None, reason="cmake or ninja is missing")
@pytest.mark.skipif(runtime.nvcc() is None, reason="nvcc is missing")
def test_an_image_is_made_again_when_a_helper_of_ones_own_changes(tmp_path):
    source, built = tmp_path / "own code", tmp_path / "own build"
    for name, text in HELPED.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(text)
    path = os.pathsep.join([str(source), environment()["PYTHONPATH"]])
    cmake = ["env", f"PYTHONPATH={path}", "cmake"]
    run(*cmake, "-S", source, "-B", built, "-G", "Ninja", f"-DFUSED_KERNELS_PYTHON={sys.executable}",
        f"-DCUBIN_CMAKE={runtime.KERNELS / 'cubin' / 'cubin.cmake'}")
    run(*cmake, "--build", built)
    assert "no work to do" in run(*cmake, "--build", built).stdout
    for edits, images in (({"mine/helper.py": ("1.0", "2.0"), "include/number.h": ("3", "4")}, ["act", "scale"]),
                          ({"mine/factors.py": ("3.0", "4.0")}, ["act"])):
        before = {path.name: path.read_bytes() for path in built.glob("*.cubin")}
        for name, (old, new) in edits.items():
            (source / name).write_text(HELPED[name].replace(old, new))
        run(*cmake, "--build", built)
        changed = [path.name for path in built.glob("*.cubin") if path.read_bytes() != before[path.name]]
        assert sorted(changed) == [f"{image}.sm_90.cubin" for image in images]


def test_a_depfile_holds_any_name(tmp_path):
    names = [tmp_path / name for name in ("a b.h", "a#b.h", "a$b.h", "plain.h")]
    rule = compiling.depfile(tmp_path / "the target.cubin", names)
    assert rule.startswith(f"{tmp_path}/the\\ target.cubin: ")
    assert {*map(Path, compiling._prerequisites(rule))} == {*names}
    assert compiling._prerequisites("out : a.cu \\\n    b\\ c.h \\\n    d.h\n") == ["a.cu", "b c.h", "d.h"]


@pytest.mark.skipif(bool(nvrtc.why_not()), reason=nvrtc.why_not())
def test_what_nvrtc_reads_of_ones_own(tmp_path):
    for name in ("scale.cu", "include/by.h", "include/number.h"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(HELPED[name].replace("<by.h>", '"include/by.h"'))
    files: set[Path] = set()
    assert compiling.by_nvrtc(tmp_path / "scale.cu", 90, files).startswith(b"\x7fELF")
    assert files == {tmp_path / "scale.cu", tmp_path / "include/by.h", tmp_path / "include/number.h"}
    (tmp_path / "include/number.h").write_text("#error of ours")
    with pytest.raises(CubinError, match="of ours"):
        compiling.by_nvrtc(tmp_path / "scale.cu", 90)


def _assert_local(symbols: list[list[str]], files: list[Path], bundles: int = 1) -> None:
    """Each image's symbol is local and in read-only memory; a bundle has one more, hidden."""
    of_images = [kind for kind, name in symbols if "_sm_" in name]
    assert of_images == ["r"] * len(files)
    assert len(symbols) - len(of_images) == bundles
    assert {kind for kind, _ in symbols} <= {"r", "R", "V"}


def cli(*words: str) -> subprocess.CompletedProcess:
    return run(sys.executable, "-m", "kernels.cubin", *words, check=False)


@pytest.mark.slow
def test_what_triton_is_told_is_checked(tmp_path):
    kernel = "kernels.ops.add_relu.triton_kernel:forward_kernel"
    base = ["compile", "triton", kernel, "--name", "a", "--out", str(tmp_path), "--arch", "90"]
    refused = {
        "no.such.module:f": ([], "no.such.module:f is no Triton function"),
        "unknown": (["--argument", "nothing=i32"], "has no argument nothing: it takes x_ptr"),
        "left out": (["--argument", "x_ptr=*fp32"], "bias_ptr is neither an argument nor a constant"),
        "not a pair": (["--argument", "x_ptr"], "the argument x_ptr: it has the form name="),
    }
    for name, (words, message) in refused.items():
        changed = [name if word == kernel and ":" in name else word for word in base]
        done = cli(*changed, *words)
        assert (done.returncode, message in done.stderr) == (1, True), done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("type_", "message"),
    [
        ("fp32:16", "only pointers and integers are divisible"),
        ("i32:8", "divisibility by 16 alone"),
        ("f32", r"x is f32; a type is \*T, i8"),
        ("fp16", "a type is"),
    ],
)
def test_a_type_that_is_none_is_refused(type_, message):
    with pytest.raises(CubinError, match=message):
        compiling._parameter("f", "x", type_)


def test_what_cannot_be_embedded_is_refused(tmp_path):
    image, text = tmp_path / "a.cubin", tmp_path / "b.cubin"
    image.write_bytes(b"\x7fELF" + bytes(100))
    text.write_text("no image")
    for name, files, message in (
        ("a-b", [image], "a-b becomes a namespace"), ("a", [], "is given no image"), ("a", [text], "neither a cubin"),
        ("a", [tmp_path / "c"], "c cannot be read: No such file"),
    ):  # fmt: skip
        with pytest.raises(CubinError, match=message):
            embed(name, files, tmp_path)
    described = {"name": "a", "entry": "a", "threads": 1, "shared": 0, "kind": 0, "parameters": [], "hidden": 0}
    path = compiling.write(tmp_path, "a", 90, b"\x7fELF" + bytes(60), described)
    assert compiling.description_of(path)["arch"] == 90
    path.write_bytes(b"\x7fELF" + bytes(61))
    with pytest.raises(CubinError, match=r"a.sm_90.cubin is not the image that .*a.sm_90.json describes"):
        embed("a", [path], tmp_path)
    path.with_suffix(".json").write_text(json.dumps({"name": "a"}))
    with pytest.raises(CubinError, match=r"a.sm_90.json is no description of a kernel \(KeyError"):
        embed("a", [path], tmp_path)
    assert not list(tmp_path.glob("*.h"))
