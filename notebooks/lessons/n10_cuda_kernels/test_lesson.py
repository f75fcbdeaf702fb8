"""Lesson 10: accesses that are named, sectors, load_inline's text on the host, what nvcc makes of it, the table."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from kernels import runtime
from kernels.check.host import inline, programs
from lessons.n10_cuda_kernels import (
    counting,
    forms,
    on_your_machine,
    op_puzzles,
    pictures,
    puzzles,
    recorded,
    texts,
)
from lessons.n10_cuda_kernels.counting import STEPS
from lessons.n10_cuda_kernels.sanitizers import address_sanitizer
from lessons.shared import answers, ncu
from lessons.shared.claim import printed
from lessons.shared.records import copy_us

matplotlib = pytest.importorskip("matplotlib")
ROOM = Path(__file__).resolve().parent
NOTEBOOK = ROOM.parents[1] / "10_cuda_kernels.ipynb"
SCALAR = texts.launching(texts.text_of("scalar"))
NO_BARRIER = """
__global__ void reversed(const float* x, float* out, int n) {
    __shared__ float part[256];
    part[threadIdx.x] = x[threadIdx.x];
    out[threadIdx.x] = part[255 - threadIdx.x];
}
void launch(const float* x, float* out, int n) { reversed<<<1, 256>>>(x, out, n); }
"""


def cells() -> dict[str, str]:
    """The notebook's code, by the cells' ids."""
    entries = json.loads(NOTEBOOK.read_text())["cells"]
    return {cell["id"]: "".join(cell["source"]) for cell in entries if cell["cell_type"] == "code"}


@pytest.fixture(scope="module")
def scalar():
    return programs.build(SCALAR)


def test_a_kernel_that_is_timed_stands_in_a_cell():
    code = "\n".join(cells().values())
    kernels = re.findall(r"__global__ void (\w+)\(", (ROOM / "steps.cu").read_text())
    shown = [name for name in kernels if name != "coalesced"]  # the reader's
    assert len(shown) == 4
    for name in shown:
        assert texts.text_of(name).strip() in code, name


@pytest.mark.parametrize("name", ["one element", "32-bit index", "four elements"])  # g++ has no fast functions
def test_a_form_of_the_answer_computes_the_same(name):
    text = forms.FORMS[name]
    grid = f"(n + {256 * forms.elements(text) - 1}) / {256 * forms.elements(text)}"
    launch = "void launch(const float* x, const float* bias, const float* y, float* out, int columns, int n)"
    text += f"\n{launch} {{ form<<<{grid}, 256>>>(x, bias, y, 0.5f, out, columns, n); }}"
    x, y, bias = torch.randn(9, 512), torch.randn(9, 512), torch.randn(512)
    buffers = [tensor.numpy() for tensor in (x, bias, y, torch.zeros_like(x))]
    outcome = programs.run(programs.build(text), buffers, (512, x.numel()))
    assert outcome.status == "ok", outcome.text
    expected = torch.sigmoid(x + 0.5 * y + bias)
    torch.testing.assert_close(torch.from_numpy(outcome.buffers[3][0]).view_as(x), expected)


def test_the_forms_are_launched_as_they_are():
    text = forms.together(forms.FORMS)
    assert text.count("<<<(n + 255) / 256, 256, 0, stream>>>") == len(forms.FORMS) - 1
    assert "form_3<<<(n + 1023) / 1024, 256, 0, stream>>>(x, bias, y, m, out, columns, n)" in text


def test_the_answer_that_is_timed_is_the_ladders():
    """The solution of the second puzzle takes the elements that `coalesced` takes."""
    ours, theirs = (on_your_machine.watch(texts.text_of(name)) for name in ("coalesced", "early"))
    assert ours == theirs == (4, 4)
    alone = texts.capstone_alone()
    assert "__global__ void add_mul_activation" in alone
    assert "torch" not in alone
    assert "#include" not in alone


def test_what_the_reader_writes_is_enough():
    """Lines of the solutions that are not in the cells: 30 of kernels and their launches at least."""
    mine = 0
    for name, answer in answers.solutions(ROOM).items():
        cell_lines = {line.strip() for line in cells()[name].splitlines()}
        mine += sum(bool(line.strip("} ")) and line.strip() not in cell_lines for line in answer.source.splitlines())
    assert mine >= 30


def run(source: str, n: int = 1000, **options) -> programs.Outcome:
    x = np.arange(n, dtype=np.float32)
    return programs.run(programs.build(source), [x, x[:10].copy(), np.zeros_like(x)], (10, n), **options)


def test_what_is_coalesced_is_far_from_the_puzzles_limit():
    """All but strided, far enough for another run and another GPU."""
    rows = recorded.CUDA_STEPS.rows("step").set_index("name")
    limit = puzzles.FAST * copy_us(rows["bytes"].iloc[0])
    assert rows["us_p50"]["strided"] > 1.5 * limit
    assert max(rows["us_p50"].drop("strided")) < limit / 1.5


def test_either_reason_keeps_a_store_before_the_next_load():
    if not runtime.nvcc():
        pytest.skip("nvcc is not here")
    text = texts.text_of("coalesced")
    apart = re.sub(r"\* (x|bias|out)\b", r"* __restrict__ \1", text)
    forms_of = {"apart": apart, "unguarded": text, "both": apart}
    for name in ("unguarded", "both"):
        forms_of[name] = forms_of[name].replace("if (i < n) {", "{")
    named = "\n".join(source.replace("coalesced", name) for name, source in forms_of.items())
    order = counting.orders(counting.tool("cuobjdump", ["-sass"], counting.cubin_of(named)))
    assert order["apart"] == order["unguarded"] == "LLS" * 16
    assert order["both"].startswith("LLLLLLLL")


def test_a_launch_is_rewritten_for_the_host():
    text = programs.on_host("f<int><<<dim3((n + 1) / 2, 2), 256>>>(x, n); g<<<a[1, 2], 1>>>();")
    assert "launch_on_host(f<int>, dim3(dim3((n + 1) / 2, 2)), dim3(256), x, n)" in text
    assert "launch_on_host(g, dim3(a[1, 2]), dim3(1))" in text
    for wrong in ("f<<<1>>>(x)", "f<<<1, 2, 3>>>(x)", "f<<<1, 2, 0, 0, 0>>>(x)"):
        with pytest.raises(programs.DoesNotCompile, match=r"argument|they are 0"):
            programs.on_host(wrong)
    with pytest.raises(programs.DoesNotCompile, match="is not there"):
        programs.build("void start() {}")


def test_a_kernel_runs_and_its_sectors_are_counted(scalar):
    x = np.arange(-500, 500, dtype=np.float32)
    outcome = programs.run(scalar, [x, np.ones(10, np.float32), np.full_like(x, np.nan)], (10, 1000))
    assert outcome.status == "ok"
    assert np.array_equal(outcome.buffers[2][0], np.maximum(x + 1, 0))
    assert outcome.counts[0] == [32, 125, 0, 0]  # warps, sectors of 8 numbers
    assert outcome.counts[2] == [0, 0, 32, 125]
    assert (outcome.threads, outcome.launched) == (1000, 1024)


@pytest.mark.parametrize(("name", "sectors"), [("strided", 32), ("coalesced", 4), ("wide", 16)])
def test_the_steps_touch_what_the_lesson_says(name, sectors):
    assert on_your_machine.watch(texts.text_of(name)) == (sectors, sectors)
    first, width, _ = pictures.FIRST[name]
    assert len({(first(lane) + k) // 8 for lane in range(32) for k in range(width)}) == sectors


def test_what_is_wrong_is_named():
    kernel = SCALAR
    outcome = run(kernel.replace("i < n", "i <= n"))
    assert (outcome.status, outcome.text) == ("outside", "0|1000|thread 232 of block 3|reads")
    misaligned = texts.launching(texts.text_of("wide"), 16).replace("(x + i)", "(x + i + 1)")
    assert run(misaligned).status == "misaligned"
    assert run(kernel.replace("(n + 255) / 256", "0")).status == "launch"


def test_what_is_wrong_with_shared_memory_is_named():
    shared = [np.ones(256, np.float32), np.zeros(256, np.float32)]
    assert programs.run(programs.build(NO_BARRIER), shared, (256,)).status == "unset"
    barrier = NO_BARRIER.replace("    out[", "    __syncthreads();\n    out[")
    assert programs.run(programs.build(barrier), shared, (256,)).status == "ok"
    beyond = programs.run(programs.build(barrier.replace("[255", "[256")), shared, (256,))
    assert beyond.status == "array"
    assert beyond.text.startswith("thread 0 of block 0|256|float [256]|")
    again = barrier.replace("part[255 - threadIdx.x];", "part[255 - threadIdx.x]; part[threadIdx.x] = 0;")
    outcome = programs.run(programs.build(again), shared, (256,))
    assert outcome.status == "race", outcome
    assert "no __syncthreads() in between" in outcome.text


def test_a_buffer_may_be_larger_than_the_memory():
    kernel = "__global__ void f(float* x, long long n) { x[n - 1] = 3; }"
    source = kernel + "\nvoid launch(float* x, long long n) { f<<<1, 1>>>(x, n); }"
    n = 2**33
    sparse = programs.Sparse(n, {0: np.zeros(4, np.float32), n - 4: np.zeros(4, np.float32)})
    outcome = programs.run(programs.build(source), [sparse], (n,))
    assert [part.tolist() for part in outcome.buffers[0]] == [[0, 0, 0, 0], [0, 0, 0, 3]]


def test_the_order_of_accesses():
    lines = ["Function : _Z4widePKfS0_Pfii", "@P0 LDG.E R0, [R2] ;", "FADD R0, R0, R1 ;", "STG.E [R2], R0 ;"]
    assert counting.orders("\n".join([*lines, "Function : base", "LDG.E.128 R4 ;", *lines[1:]])) == {
        "wide": "LS", "base": "LLS",
    }


def test_what_is_counted_is_saved_whole():
    kernels = recorded.compiled()["kernels"]
    assert set(kernels) == {*STEPS}
    for name, kernel in kernels.items():
        assert counting.STORES[name] % kernel["order"].count("S") == 0, name
        assert kernel["order"].count("L") % 2 == 0, name


def test_what_is_recorded_is_of_these_kernels():
    if not runtime.nvcc():
        pytest.skip("nvcc is not here")
    counts, saved = counting.count(), recorded.compiled()
    if counts["nvcc"] == saved["nvcc"]:
        assert counts == saved


def test_the_table_of_the_steps(capsys):
    recorded.show_steps({"wide": 60, "early": None}, {"scalar": 100.0})
    _, head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["sectors", "a", "request", "in", "flight", "on", "an", "SM", "µs", "here"]
    assert [row.split()[0] for row in rows] == [*STEPS, "a"]
    us = recorded.CUDA_STEPS.us("step", name="wide")
    assert re.fullmatch(rf"wide +LLSLLSLLSLLS +16 +32 KB +{us:.1f}   your prediction: 60", rows[4])
    assert rows[0].endswith("    100.0")


def test_the_stored_table_is_the_records(capsys):
    recorded.show_steps({})
    assert printed("10", "cell-22") == capsys.readouterr().out


def test_load_inlines_text_runs_on_the_host_and_says_what_is_wrong():
    (source,) = re.findall(r'source = r"""(.*?)"""', cells()["inline"], re.S)
    x, bias = torch.randn(7, 30), torch.randn(30)
    for view in (x, x[2:5], torch.randn(9 * 30 + 1)[1:].view(9, 30), x[:0]):
        forward = inline.load_inline("scalar", "", source).forward
        if view.numel():
            assert torch.equal(forward(view, bias, 256), torch.relu(view + bias))
        else:
            with pytest.raises(inline.Refused, match="launch: 0 blocks of 256 threads"):
                forward(view, bias, 256)
    for old, new, message in (
        ("i < n", "i <= n", "outside: 0|210|thread 210 of block 0"),
        ("    C10_CUDA_KERNEL_LAUNCH_CHECK();", "", "unchecked"),
        (", 0, c10::cuda::getCurrentCUDAStream()", "", "stream"),
        ("c10::cuda::getCurrentCUDAStream()", "nullptr", "stream"),
        ("return out;", "return x;", "shape: the result is no contiguous tensor"),
        ("auto out", "TORCH_CHECK(threads == 1); auto out", "raised: threads == 1"),
        ("empty_like(x)", "empty_like(bias)", "outside|shape: the result has the shape"),
    ):
        with pytest.raises(inline.Refused, match=message.replace("|", r"\|") if "outside|" not in message else message):
            inline.load_inline("scalar", "", source.replace(old, new)).forward(x, bias, 256)
    with pytest.raises(ValueError, match="functions: expected"):
        inline.load_inline("scalar", "", source, functions=["backward"])


def fails(number: int) -> None:
    """At the module's level: on a GPU another process imports it."""
    raise RuntimeError(f"CUDA error: {number}\nmore")


def test_a_function_runs_apart_and_its_error_is_a_line(capsys):
    on_your_machine.call_apart(fails, 9)
    assert capsys.readouterr().out == "RuntimeError: CUDA error: 9\n"


def test_on_a_gpu_the_cells_texts_are_timed(monkeypatch, capsys):
    monkeypatch.setattr(on_your_machine.runtime, "device", lambda: torch.device("cuda"))
    monkeypatch.setattr(on_your_machine.runtime, "nvcc", lambda: Path("nvcc"))
    asked = []
    monkeypatch.setattr(on_your_machine, "launch_us", lambda text: asked.append(text) or 90.0)
    mine = texts.text_of("early").replace("4", "2")
    assert on_your_machine.steps_us(mine) == dict.fromkeys(STEPS, 90.0)
    assert asked[list(STEPS).index("early")] == texts.launching(mine, 16)


def test_on_a_gpu_an_op_is_held_too(monkeypatch, capsys):
    """hold_on_gpu, with the library's own op and few elements in the GPU's place."""
    import kernels

    forward = lambda x, bias, y, multiplier, activation: kernels.add_mul_activation(  # noqa: E731
        x, bias, y, multiplier, op_puzzles.ACTIVATIONS[activation], backend="eager"
    )
    op_puzzles.hold_on_gpu(lambda path: forward, "", device="cpu", elements=5000)
    assert "5,000 elements: right" in capsys.readouterr().out
    with pytest.raises(AssertionError, match="64 bits"):
        op_puzzles.hold_many(lambda *arguments: torch.zeros_like(arguments[0]), "cpu", 5000)


def test_the_sanitizer_finds_the_wrong_guard():
    text = address_sanitizer(texts.text_of("scalar").replace("i < n", "i <= n"))
    assert re.match("heap-buffer-overflow: READ of size 4, 0 bytes .*, line 4 of scalar|AddressSanitizer is not", text)


def test_what_ncu_prints():
    lines = ["  base_float32 (32768, 1, 1)x(256, 1, 1), Context 1, Stream 7, Device 0, CC 9.0",
             "    smsp__inst_executed.sum     inst     14,417,920", "    dram__bytes_read.sum     Mbyte     134.2",
             "  wide(const float *, int) (2048, 1, 1)x(256, 1, 1), Context 1",
             "    smsp__inst_executed.sum     inst     7",
             "    l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum                    2,097,152"]
    metrics = dict(ncu.launches(lines))
    expected = {"smsp__inst_executed.sum": 14417920, "dram__bytes_read.sum": 134.2e6}
    assert metrics["base_float32"] == pytest.approx(expected)
    requests = "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum"
    assert metrics["wide"] == {"smsp__inst_executed.sum": 7, requests: 2097152}


def test_a_kernel_that_runs_only_on_the_host_compiles_for_a_gpu_too(tmp_path):
    if not runtime.nvcc():
        pytest.skip("nvcc is not here")
    import subprocess

    source = SCALAR + programs._calling(SCALAR, gpu=True)
    (tmp_path / "kernel.cu").write_text(source)
    for file in (tmp_path / "kernel.cu", programs.HERE / "on_gpu.cu"):
        subprocess.run([runtime.nvcc(), "-std=c++17", "-arch=sm_90", "-c", file, "-o", tmp_path / "o"], check=True)


def test_on_a_gpu_the_repaired_kernel_is_timed(monkeypatch, capsys):
    monkeypatch.setattr(puzzles.programs, "build", lambda source, gpu: "program")
    source = SCALAR
    for us, status, message in ((60.0, "ok", ""), (200.0, "ok", "neighbouring"), (0.0, "launch", "the launch fails")):
        outcome = programs.Outcome(status, us=us, copy_us=50.0)
        monkeypatch.setattr(puzzles.programs, "run", lambda *a, outcome=outcome, **b: outcome)
        if message:
            with pytest.raises(puzzles.Wrong, match=message):
                puzzles._time(source, (4, 8))
        else:
            assert "GB/s; a copy" in puzzles._time(source, (4, 8))


def test_a_puzzle_prints_and_does_not_raise(capsys):
    assert not puzzles.attempt("guard", "void launch(")
    assert not puzzles.attempt("guard", SCALAR.replace("i < n", "true"))
    assert puzzles.attempt("guard", SCALAR)
    printed = capsys.readouterr().out
    assert printed.count("not yet: guard") == 2
    assert "7 cases passed on the host" in printed
