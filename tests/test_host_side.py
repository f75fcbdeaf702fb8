"""kernels/dispatch/host_side.py: an op's launches by g++, its kernels by NVRTC, when each is first launched.

A driver that records stands in for libcuda, and PTX with a kernel's name for what NVRTC compiles: without a GPU, then.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import threading
from contextlib import suppress
from pathlib import Path

import fake_driver
import pytest
import torch

from kernels import runtime
from kernels.dispatch import build, core, declared, host_side, nvrtc, ops
from kernels.dispatch.op import Op

on_cpu = pytest.mark.skipif(runtime.device().type == "cuda", reason="for a machine without a GPU")
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is missing")
needs_nvrtc = pytest.mark.skipif(nvrtc.why_not() != "", reason=f"no NVRTC: {nvrtc.why_not()}")


def cuda_of(folder: str) -> Path:
    return runtime.KERNELS / "ops" / folder / "cuda.cu"


BY_NVRTC = [
    folder for folder in ops()
    if cuda_of(folder).exists() and not any(op.by_nvcc for op in declared(folder))
]


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("__global__ void k(int n) { if (n) { } }", "__global__ void k(int n) {}"),
        ("template <class T>\n__global__ void __launch_bounds__(f(8), 1)\n    k(T* x) {\n    x[0] = 1;\n}\nint y;",
         "template <class T>\n__global__ void __launch_bounds__(f(8), 1)\n    k(T* x) {}\n\n\nint y;"),
        ("__device__ inline int f(int (*g)(int)) { return g(1); } int h() { return 2; }",
         "__device__ inline int f(int (*g)(int)); int h() { return 2; }"),
        ("__host__ __device__ int f() { return 1; }", "__host__ __device__ int f() { return 1; }"),
        ("__device__ constexpr int f() { return 1; }", "__device__ constexpr int f() { return 1; }"),
        ("struct S { int a; __device__ S(int b) : a{b}, c(d()) { e(); } int c; };",
         "struct S { int a; __device__ S(int b); int c; };"),
        ("struct S { __device__ int f() const { return 1; } };", "struct S { __device__ int f() const; };"),
        ("struct S { __device__ bool operator()(int i) const { return i; } };",
         "struct S { __device__ bool operator()(int i) const; };"),
        ("__device__ int f();\n__device__ int g(int) { return 1; }", "__device__ int f();\n__device__ int g(int);"),
        ("__device__ const int table[2] = {1, 2};", "__device__ const int table[2] = {1, 2};"),
        ("__device__ auto f(int x) -> S::T { return x; }\ntemplate <> struct R<double> { int i; };",
         "__device__ auto f(int x) -> S::T;\ntemplate <> struct R<double> { int i; };"),
        ("__device__ bool operator==(S a, S b) noexcept(N == 1) { return 0; } int h() { return 1; }",
         "__device__ bool operator==(S a, S b) noexcept(N == 1); int h() { return 1; }"),
        ("#define DEVICE __device__ inline\nint h() { return 1; }",
         "#define DEVICE __device__ inline\nint h() { return 1; }"),
        ("template <class T>\nconstexpr\n__device__ T f() { return 1; }",
         "template <class T>\nconstexpr\n__device__ T f() { return 1; }"),
        ("__device__ int f() {\n#if A\n  return 1;\n#else\n  return 2;\n#endif\n}\nint h;",
         "__device__ int f();\n\n\n\n\n\n\nint h;"),
        ("__device__ void f() { char c = '}'; /* } */ s = \"}\"; }  // {", "__device__ void f();  // {"),
        ("// __global__ void k() {}\nint f() { return 1; }", "// __global__ void k() {}\nint f() { return 1; }"),
    ],
)
def test_what_is_left_of_device_code(text, left):
    assert host_side.without_device_code(text) == left


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("__global__ void k(float* x) BODY\ninline int f(int n) { return n + 7; }", "'BODY.*' between a function's"),
        ("namespace n {\n__device__ int f() {\n#if A\n  if (a) {\n#else\n  {\n#endif\n  }\n}\n}",
         "brackets that are opened in a branch"),
        ("__device__ int counter;", "a variable, of which each kernel would have its own: '__device__ int counter'"),
        ("__constant__ float rates[3];", "a variable, of which each kernel would have its own: '__const"),
        ("__device__ int f() { {", "a bracket is not closed"),
    ],
)
def test_what_cannot_be_cut_out_is_refused_by_its_file(text, why, tmp_path, monkeypatch):
    monkeypatch.setattr(build, "EXTENSIONS", tmp_path / "cache")
    (tmp_path / "kernel.cuh").write_text(text)
    (tmp_path / "cuda.cu").write_text('#include "kernel.cuh"\n')
    message = f"kernel.cuh: what is for a GPU cannot be told from what is not: (.|\\n)*{why}"
    with pytest.raises(RuntimeError, match=message):
        host_side.copied(tmp_path / "cuda.cu")


def test_a_copy_that_is_lost_is_made_again(tmp_path, monkeypatch):
    monkeypatch.setattr(build, "EXTENSIONS", tmp_path)
    cuda, folder = host_side.copied(cuda_of("add_relu"))
    before = {path: path.read_text() for path in folder.rglob("*") if path.is_file()}
    (folder / "ops" / "add_relu" / "kernel.cuh").unlink()
    assert host_side.copied(cuda_of("add_relu")) == (cuda, folder)
    assert {path: path.read_text() for path in folder.rglob("*") if path.is_file()} == before


def test_where_nothing_can_be_written_nothing_is_built(tmp_path, monkeypatch):
    monkeypatch.setattr(build, "EXTENSIONS", tmp_path / "file")
    (tmp_path / "file").write_text("")
    assert not core.op_is_built("add_relu")


def test_names_of_kernels():
    for demangled, expression in (
        ("void add_relu::forward<float, 1, unsigned int>(float const*, Columns<unsigned int>)",
         "add_relu::forward<float, 1, unsigned int>"),
        ("void bags<__half, (embedding_bags::Mode)1, Tables<(A)2> >(Tables<(A)2>)",
         "bags<__half, (embedding_bags::Mode)1, Tables<(A)2> >"),
        ("weights_kernel(float*)", "weights_kernel"),
    ):
        assert host_side.expression_of(demangled) == expression


def test_a_kernel_in_cuda_cu_is_refused(tmp_path):
    (tmp_path / "cuda.cu").write_text("__global__ void k() {}\n")
    with pytest.raises(RuntimeError, match=r"cuda.cu: NVRTC compiles kernels that stand in a .cuh .*by_nvcc=True"):
        host_side.copied(tmp_path / "cuda.cu")


def test_lines_keep_their_numbers():
    for file in {file for folder in BY_NVRTC for file in host_side.op_files(cuda_of(folder))}:
        text = file.read_text()
        left = host_side.without_device_code(text)
        assert left.count("\n") == text.count("\n"), file
        assert "threadIdx" not in host_side._code(left), f"{file}: a body of device code is left"


@pytest.fixture(scope="module")
def driver_library(tmp_path_factory):
    core.load_core()
    return fake_driver.build(tmp_path_factory.mktemp("driver") / "libcuda.so.1")


@pytest.fixture
def driver(driver_library, monkeypatch, tmp_path):
    """The driver; its `compiled` are the kernels that were asked for."""
    torch.ops.fused_kernels._use_driver(str(driver_library))
    recording = fake_driver.Driver(driver_library)
    recording.set(launch_count=0, load_count=0, parameters=0, load_result=0, function_result=0, launch_result=0,
                  attribute=0, attribute_value=0, attribute_result=0, capability=90)
    recording.compiled = []

    def compiled(kernel):
        recording.compiled.append(kernel)
        path = tmp_path / f"{len(recording.compiled)}.ptx"
        path.write_text(f".version 8.0\n.target sm_80\n.entry {kernel.symbol}(\n)\n{{\n}}\n")
        return type("Compiled", (), {"path": str(path)})

    monkeypatch.setattr(nvrtc, "compiled_of_op", compiled)
    return recording


@pytest.fixture(scope="module")
def overloads(driver_library):
    """add_relu's and softmax's, declared anew for CPU tensors whose launches the driver records."""
    made = {}
    for folder in ("add_relu", "softmax"):
        (op,) = declared(folder)
        again = Op(f"recorded_{folder}", FORWARD[folder], eager=None, outputs=op._output_shapes, package=op.package)
        again.loader.declare("cuda", "cpu", str(core.load_op(folder)))
        made[folder] = again.overload("cuda")
    return made


FORWARD = {"add_relu": "(Tensor x, Tensor bias) -> Tensor out", "softmax": "(Tensor x) -> Tensor out"}


@needs_compiler
@on_cpu
def test_what_the_driver_is_given(driver, overloads):
    x, bias = torch.randn(1000, 64), torch.randn(64)
    driver.set_parameters(8, 8, 8, 4, 12, 1)  # x, bias, out, elements, columns, whole_bias
    out = overloads["add_relu"](x, bias)
    overloads["add_relu"](x, bias)
    assert [kernel.expression for kernel in driver.compiled] == ["add_relu::forward_kernel<float, 1, unsigned int>"]
    (kernel,) = driver.compiled
    assert (kernel.file, kernel.arch) == (cuda_of("add_relu"), 90)
    first, second = driver.launches()
    assert (tuple(first.grid), tuple(first.block), first.shared) == ((250, 1, 1), (256, 1, 1), 0)
    assert list(first.parameters[:3]) == [x.data_ptr(), bias.data_ptr(), out.data_ptr()]
    assert first.parameters[3] % 2**32 == 64000
    assert first.function == second.function
    assert driver.load_count == 1


@needs_compiler
@on_cpu
def test_each_library_compiles_its_own_kernels(driver, overloads):
    driver.set_parameters(8, 8, 8, 4)
    overloads["softmax"](torch.randn(3, 40))
    driver.set_parameters(8, 8, 8, 4, 12, 1)
    overloads["add_relu"](torch.randn(3, 40).double(), torch.randn(40).double())
    assert [(kernel.file, kernel.expression.partition(":")[0]) for kernel in driver.compiled] == [
        (cuda_of("softmax"), "softmax"), (cuda_of("add_relu"), "add_relu")
    ]


@needs_compiler
@on_cpu
def test_errors_come_in_words_and_the_next_launch_tries_again(driver, overloads, monkeypatch):
    driver.set_parameters(8, 8, 8, 4, 12, 1)
    x, bias = torch.randn(4, 8).half(), torch.randn(8).half()

    def fails(kernel):
        raise RuntimeError("NVRTC is missing: pip install 'nvidia-cuda-nvrtc'")

    with monkeypatch.context() as patch:
        patch.setattr(nvrtc, "compiled_of_op", fails)
        with pytest.raises(RuntimeError, match="the launch failed: NVRTC is missing: pip install 'nvidia-cuda-nvrtc'"):
            overloads["add_relu"](x, bias)
    driver.set(load_result=209)
    with pytest.raises(RuntimeError, match=r"no image of it is for this GPU, sm_90.*NO_BINARY_FOR_GPU"):
        overloads["add_relu"](x, bias)
    driver.set(load_result=0, launch_result=719)
    with pytest.raises(RuntimeError, match="a launch of 1 blocks of 256 threads with 0 bytes of shared memory: CUDA_E"):
        overloads["add_relu"](x, bias)
    driver.set(launch_result=0)
    overloads["add_relu"](x, bias)
    assert driver.launch_count == 1


@needs_compiler
@on_cpu
def test_devices_of_two_kinds(driver, overloads):
    """Each launch asks for the architecture of the device that it is on, first or later ones alike."""
    driver.set_parameters(8, 8, 8, 4, 12, 1)
    x, bias = torch.randn(4, 40), torch.randn(40)
    try:
        for context, capability in ((3, 80), (4, 90), (3, 80)):
            driver.set(context=context, capability=capability)
            overloads["add_relu"](x, bias)
    finally:
        driver.set(context=1, capability=90)
    assert driver.launch_count == 3
    assert len({launch.function for launch in driver.launches()}) == 2
    assert {kernel.arch for kernel in driver.compiled} <= {80, 90}


@needs_compiler
@on_cpu
def test_a_struct_that_host_and_device_see_otherwise_is_no_launch(driver, overloads):
    for sizes in ((8, 8, 8, 4, 16, 1), (8, 8, 8, 4, 12), (8, 8, 8, 4, 12, 1, 8)):
        driver.set_parameters(*sizes)
        with pytest.raises(RuntimeError, match="its parameters have other sizes than what it is launched with"):
            overloads["add_relu"](torch.randn(3, 5).double(), torch.randn(5).double())
    assert driver.launch_count == 0


@needs_compiler
@on_cpu
def test_ctrl_c_while_a_kernel_is_compiled(driver, overloads, monkeypatch):
    driver.set_parameters(8, 8, 8, 4, 12, 1)

    def interrupted(kernel):
        raise KeyboardInterrupt

    def call():
        with suppress(RuntimeError):  # that the launch failed; the signal comes behind it
            overloads["add_relu"](torch.randn(300_000).half(), torch.randn(300_000).half())
        for _ in range(100):
            pass

    monkeypatch.setattr(nvrtc, "compiled_of_op", interrupted)
    with pytest.raises(KeyboardInterrupt):
        call()


@needs_compiler
@on_cpu
def test_a_header_that_was_changed_since_is_not_compiled(driver, overloads, monkeypatch):
    driver.set_parameters(8, 8, 8, 4, 12, 1)
    monkeypatch.setattr(nvrtc, "text_of", lambda cuda: "another")
    with pytest.raises(RuntimeError, match=r"cuda\.cu, or what it includes, was changed since this process loaded it"):
        overloads["add_relu"](torch.randn(300_000).bfloat16(), torch.randn(300_000).bfloat16())


@needs_compiler
@on_cpu
def test_first_launches_at_once(driver, overloads):
    """Whoever compiles takes Python's lock, which another thread may hold that waits for a kernel."""
    driver.set_parameters(8, 8, 8, 4, 12, 1)
    x, bias = torch.randn(64, 64, dtype=torch.bfloat16), torch.randn(64, dtype=torch.bfloat16)
    failed = []

    def run():
        try:
            for _ in range(20):
                overloads["add_relu"](x, bias)
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert not failed
    assert driver.launch_count == 160
    assert len({launch.function for launch in driver.launches()}) == 1


@needs_nvrtc
@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("folder", BY_NVRTC)
def test_nvrtc_compiles_each_kernel_under_the_name_that_the_host_has(folder, tmp_path):
    """One instance of each template, and one with each type of halves, for the oldest architecture and sm_90."""
    library = core.load_op(folder)
    listed = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout
    symbols = [line.split()[-1] for line in listed.splitlines()]
    names = subprocess.run(["c++filt"], input="\n".join(symbols), capture_output=True, text=True, check=True).stdout
    code = "".join(host_side._code(file.read_text()) for file in host_side.op_files(cuda_of(folder)))
    kernels = set(re.findall(r"__global__[^;{]*?(\w+)\((?![^()]*\)\s*\w+\()", code))
    instances = {}
    for symbol, name in zip(symbols, names.splitlines(), strict=True):
        expression = host_side.expression_of(name)
        if (plain := re.match(r"(?:\w+::)*(\w+)", expression)) and plain[1] in kernels and name.startswith("void "):
            halves = re.search(r"<.*(__half|__nv_bfloat16)", expression)
            instances[plain[1], halves and halves[1]] = (expression, symbol)
    assert instances
    for expression, symbol in instances.values():
        for arch in (75, 90):
            path = nvrtc.compiled_of_op(nvrtc.OpKernel(cuda_of(folder), expression, symbol, arch), tmp_path).path
            assert symbol.encode() in Path(path).read_bytes()
