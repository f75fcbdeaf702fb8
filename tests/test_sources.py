"""What ages a record: changes of what was measured, and of nothing else."""

import shutil
from contextlib import contextmanager

import pytest

from kernels.dispatch import included_files
from kernels.measure import reached, sources
from kernels.measure.reached import Name

WHATS = ("sources", "dispatch", "tests", "bench")
ADD_RELU = "ops/add_relu"


@pytest.fixture(scope="module")
def copied(tmp_path_factory):
    """A copy of kernels/ whose files may be changed."""
    folder = tmp_path_factory.mktemp("copied") / "kernels"
    shutil.copytree(sources.KERNELS, folder, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@contextmanager
def at(folder):
    with pytest.MonkeyPatch.context() as patch:
        for module in (sources, reached, included_files):
            patch.setattr(module, "KERNELS", folder)
        yield


def changed(folder, op, file, old, new):
    """What a change of the file's text changes of the op; old: "" for its end."""
    original = (folder / file).read_text()
    assert old in original
    with at(folder):
        before = sources.hashes(op, *WHATS)
        (folder / file).write_text(original.replace(old, new, 1) if old else original + new)
        try:
            return sources.changed(op, before, *WHATS).removesuffix(" changed since")
        finally:
            (folder / file).write_text(original)


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        # Comments, docstrings, formatting.
        (f"{ADD_RELU}/triton_kernel.py", "", "\n# a comment\n\n"),
        (f"{ADD_RELU}/kernel.cuh", "", "\n// a comment\n/* and\n another */\n\n"),
        (f"{ADD_RELU}/op.py", '"""relu(x + bias), contiguous.', '"""Contiguous.'),
        (f"{ADD_RELU}/triton_launch.py", "block = pointwise_block(elements, x.itemsize)",
         "block = pointwise_block(\n        elements, x.itemsize,\n    )"),
        (f"{ADD_RELU}/kernel.cuh", "Tile tile(lanes, width,", "Tile tile(\n        lanes,\n        width,"),
        ("measure/clock.py", '"""The memory that tensors may still take."""', ""),
        # What prints, stores and judges; what an error says; the command line.
        ("measure/bench.py", "print(HEADER)", 'print("a table:", HEADER, sep="\\n")'),
        ("measure/bench.py", '"TB/s", "% copy",', '"TB/s", "% copy", "new",'),
        ("measure/bench.py", "number(row.tb_per_s), ", "number(row.tb_per_s), number(row.us_p50), "),
        ("measure/bench.py", '"date": datetime', '"more": 1, "date": datetime'),
        ("measure/bench.py", '"--quick", action', '"--fast", action'),
        ("measure/runs.py", "two sets of inputs", "2 sets of inputs"),
        (f"{ADD_RELU}/op.py", "    OP.call_in_place", "    x = checks.real(OP.name, 'x', x)\n    OP.call_in_place"),
        *((f"measure/{name}.py", "", "x = 1\n") for name in ("judge", "records", "status", "sources")),
        ("gpu_run/steps.py", "", "x = 1\n"),
        (f"{ADD_RELU}/bench.py", "(1.03 if", "(1.5 if"),
        (f"{ADD_RELU}/bench.py", 'SHOWN = {"rows": 65536', 'SHOWN = {"rows": 262144'),
        # What is compiled for a host alone.
        ("device/vector.cuh", "elements *= 1 << 12;", "elements *= 1 << 13;"),
        # What finds out about the machine; how cells of a kind that the op has none of are measured.
        ("runtime.py", "", "x = 1\n"),
        ("measure/lengths.py", "BATCH = 10", "BATCH = 20"),
        # Other ops.
        ("ops/add_mul_activation/kernel.cuh", "", "int x;\n"),
        ("ops/softmax/triton_launch.py", "", "x = 1\n"),
        ("ops/softmax/op.py", "", "x = 1\n"),
        ("ops/softmax/bench.py", "", "cells = None\n"),
    ],
)
def test_what_nothing_measured_hangs_on_ages_nothing(copied, file, old, new):
    assert changed(copied, "add_relu", file, old, new) == ""


@pytest.mark.parametrize(
    ("file", "old", "new", "what"),
    [
        # A kernel, what it includes and imports, its launch, the compiler's options.
        (f"{ADD_RELU}/kernel.cuh", "#pragma unroll 4", "#pragma unroll 8", "sources"),
        (f"{ADD_RELU}/cuda.cu", "", "int x;\n", "sources"),
        (f"{ADD_RELU}/triton_kernel.py", "start = start * BLOCK", "start = start * BLOCK + 1", "sources"),
        (f"{ADD_RELU}/triton_kernel.py", "COLUMNS: tl.constexpr, WIDE", "COLUMNS, WIDE", "sources"),
        (f"{ADD_RELU}/op.py", "elementwise=True", "elementwise=False", "sources"),
        (f"{ADD_RELU}/triton_launch.py", "num_warps=4", "num_warps=8", "sources"),
        ("device/vector.cuh", "pointwise_threads = 256", "pointwise_threads = 512", "sources"),
        ("device/vector.cuh", "", 'const char* x = "// a string";\n', "sources"),
        ("device/launch.cuh", "", "int x;\n", "sources"),
        ("device/activations.py", "", "_exp = None\n", "sources"),
        ("device/column_sum.py", "tile * BLOCK", "tile * BLOCK + 1", "sources"),
        ("device/pointwise_launch.py", "return 256 if", "return 512 if", "sources"),
        ("dispatch/core.py", '"-O3"', '"-O2"', "sources and dispatch"),
        # The way to it.
        ("dispatch/op.py", "", "x = 1\n", "dispatch"),
        ("dispatch/core.cpp", "", "int x;\n", "dispatch"),
        # The tests.
        (f"{ADD_RELU}/test_add_relu.py", "", "x = 1\n", "tests"),
        (f"{ADD_RELU}/test_add_relu.cu", "", "int x;\n", "tests"),
        (f"{ADD_RELU}/spec.py", "", "x = 1\n", "tests"),
        ("check/host/cuda_on_host.h", "", "int x;\n", "tests"),
        ("check/host/testing.cuh", "", "int x;\n", "tests"),
        # The cells: shapes, dtypes, inputs, implementations, bytes.
        (f"{ADD_RELU}/bench.py", "(262144, 1024)", "(131072, 1024)", "bench"),
        (f"{ADD_RELU}/bench.py", '("float32", "bfloat16")', '("float32", "float16")', "bench"),
        (f"{ADD_RELU}/bench.py", "(draw(rows, columns), draw(columns))", "(draw(rows, columns),) * 2", "bench"),
        (f"{ADD_RELU}/bench.py", '"eager", "torch.compile", "triton"', '"eager", "triton"', "bench"),
        (f"{ADD_RELU}/eager.py", "def forward_bytes", "forward_bytes = None\n\n\ndef forward_bytes", "bench"),
        ("measure/cells.py", 'mode="max-autotune-no-cudagraphs"', 'mode="max-autotune"', "bench"),
        # Timing, and the match.
        ("measure/clock.py", "self._other.amax()", "self._other.sum()", "bench"),
        ("measure/clock.py", "REPLAYS = 25", "REPLAYS = 5", "bench"),
        ("measure/runs.py", "INPUT_BYTES = 2e9", "INPUT_BYTES = 1e9", "bench"),
        ("measure/bench.py", "CELLS_A_COPY = 8", "CELLS_A_COPY = 9", "bench"),
        ("measure/bench.py", "time.sleep(COPY_PAUSE)", "pass", "bench"),
        ("measure/judge.py", "COPIES_AGREE = ", "COPIES_AGREE = 1 + ", "bench"),
        ("measure/measuring.py", "donated_buffer=False", "donated_buffer=True", "bench"),
        ("measure/first_call.py", "core.load_core()", "pass", "bench"),
        ("measure/match.py", "return 2 * torch.finfo", "return 9 * torch.finfo", "bench"),
        ("check/comparison.py", "", "def compare(*_, **__): pass\n", "tests and bench"),
    ],
)
def test_what_is_measured_and_how_ages_a_record(copied, file, old, new, what):
    assert changed(copied, "add_relu", file, old, new) == what


@pytest.mark.parametrize(
    ("op", "file", "old", "new", "what"),
    [
        # A kernel that its launcher asks for by name, headers of generated source, an op that another is made of.
        ("embedding_bags", "ops/embedding_bags/triton_backward.py", "", "x = 1\n", "sources"),
        ("dlrm", "ops/dlrm/parts.cuh", "", "int x;\n", "sources"),
        ("dlrm", "device/tensor_core.cuh", "", "int x;\n", "sources"),
        ("dlrm", "dispatch/nvrtc.py", '"--std=c++17"', '"--std=c++20"', "sources and dispatch"),
        ("embedding_bags", "ops/embedding_bags_sort/op.py", "", "def beside(*_): pass\n", "sources"),
        ("embedding_bags", "ops/embedding_bags_sort/kernel.cuh", "", "int x;\n", ""),
        ("id_table", "measure/lengths.py", "BATCH = 10", "BATCH = 20", "bench"),
        ("dlrm", "measure/latency.py", "CALLS, REPEATS, WARM_UP = 200", "CALLS, REPEATS, WARM_UP = 100", "bench"),
    ],
)
def test_what_an_op_alone_hangs_on(copied, op, file, old, new, what):
    assert changed(copied, op, file, old, new) == what


def test_every_name_that_code_is_looked_for_at_exists():
    """One that is gone would count for nothing, and say nothing."""
    files = [*sources.COMPILER_OPTIONS, *sources.OF_THE_MACHINE]
    files += [("measure/bench.py", "measured"), ("measure/clock.py", "")]
    files += [(f"measure/{file}", name) for file, *names in sources.KINDS.values() for name in names]
    files += [("measure/cells.py", kind) for kind in sources.KINDS]
    for file, name in files:
        assert reached.reached([Name(sources.KERNELS / file, name)], (sources.KERNELS,)), (file, name)


def test_what_was_not_hashed_has_changed():
    entry = sources.hashes("add_relu", "sources")
    assert sources.changed("add_relu", entry, *WHATS) == "dispatch and tests and bench changed since"


def test_python_without_comments():
    source = '"""Doc\nstring."""\nx = "# no"  # yes\n\n\ndef f():\n    """Doc."""\n    return """kept"""\n'
    assert reached.python(source) == reached.python('x="# no"\ndef f(): return ("kept")')
    assert reached.python(source) != reached.python('x="# no"\ndef f(): return "Kept"')
    assert reached.python("print(x)\nassert a, b\nraise E(c)") == reached.python("assert a\nraise E")
    assert reached.python("checks.is_tensor('x', x)\nx = checks.real('x', x)") == reached.python("")
    assert reached.python("x = checks.real('x', y)") != reached.python("")


def test_cpp_without_comments():
    source = 'int a; // yes\nchar c = \'"\', d = \'/\';\n/* yes\n*/ const char* s = "// \\" /* no */";\n'
    source += "#define F(x) \\\n  x // yes\n  int e = f(\n    1'000); // yes"
    expected = 'int a;char c = \'"\',d = \'/\';const char* s = "// \\" /* no */";\n#define F(x)x\nint e = f(1\'000);'
    assert reached.cpp(source) == expected
    assert reached.cpp("int f() {\n#ifdef CUDA_ON_HOST  // yes\n    a();\n#endif\n    b();\n}") == "int f(){b();}"


def test_an_unknown_op_has_no_hash():
    with pytest.raises(ValueError, match="unknown op 'relu': expected one of add_mul_activation, add_relu"):
        sources.sha256("relu", "sources")
