"""Lesson 10: accesses that are named, sectors, instructions that execute, pictures, the recorder in small."""


import numpy as np
import pytest
import torch

from kernels.check.host import programs
from lessons.n10_cuda_kernels import counting, experiment, on_your_machine, pictures, puzzles, recorded, texts
from lessons.n10_cuda_kernels.counting import STEPS

matplotlib = pytest.importorskip("matplotlib")
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def scalar():
    return programs.build(texts.launching("scalar"))


def run(source: str, n: int = 1000, **options) -> programs.Outcome:
    x = np.arange(n, dtype=np.float32)
    return programs.run(programs.build(source), [x, x[:10].copy(), np.zeros_like(x)], (10, n), **options)


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
    found = programs.run(scalar, [x, np.ones(10, np.float32), np.full_like(x, np.nan)], (10, 1000))
    assert found.status == "ok"
    assert np.array_equal(found.buffers[2][0], np.maximum(x + 1, 0))
    assert found.counts[0] == [32, 125, 0, 0]  # warps, sectors of 8 numbers
    assert found.counts[2] == [0, 0, 32, 125]
    assert (found.threads, found.launched) == (1000, 1024)


@pytest.mark.parametrize(("name", "sectors"), [("strided", 32), ("coalesced", 4), ("wide", 16)])
def test_the_steps_touch_what_the_lesson_says(name, sectors):
    assert on_your_machine.sectors(name) == (sectors, sectors)
    first, each = pictures.FIRST[name]
    assert len({(first(lane) + k) // 8 for lane in range(32) for k in range(each)}) == sectors


def test_what_is_wrong_is_named():
    kernel = texts.launching("scalar")
    found = run(experiment.off_by_one())
    assert (found.status, found.text) == ("outside", "0|1000|thread 232 of block 3|reads")
    misaligned = texts.launching("wide", 16).replace("(x + i)", "(x + i + 1)")
    assert run(misaligned).status == "misaligned"
    assert run(kernel.replace("(n + 255) / 256", "0")).status == "launch"
    shared = [np.ones(256, np.float32), np.zeros(256, np.float32)]
    assert programs.run(programs.build(experiment.NO_BARRIER), shared, (256,)).status == "unset"
    barrier = experiment.NO_BARRIER.replace("    out[", "    __syncthreads();\n    out[")
    assert programs.run(programs.build(barrier), shared, (256,)).status == "ok"
    beyond = programs.run(programs.build(barrier.replace("[255", "[256")), shared, (256,))
    assert (beyond.status, beyond.text) == ("shared", "thread 0 of block 0 reads shared number 256, and there are 256")
    again = barrier.replace("part[255 - threadIdx.x];", "part[255 - threadIdx.x]; part[threadIdx.x] = 0;")
    found = programs.run(programs.build(again), shared, (256,))
    assert found.status == "race", found
    assert "no __syncthreads() in between" in found.text


def test_a_buffer_may_be_larger_than_the_memory():
    kernel = "__global__ void f(float* x, long long n) { x[n - 1] = 3; }"
    source = kernel + "\nvoid launch(float* x, long long n) { f<<<1, 1>>>(x, n); }"
    n = 2**33
    sparse = programs.Sparse(n, {0: np.zeros(4, np.float32), n - 4: np.zeros(4, np.float32)})
    found = programs.run(programs.build(source), [sparse], (n,))
    assert [part.tolist() for part in found.buffers[0]] == [[0, 0, 0, 0], [0, 0, 0, 3]]


def test_the_shortest_way_that_stores():
    lines = ["S2R R0, SR_TID.X", "@P0 EXIT", "@P1 BRA 0x50", "CALL.REL 0x70", "BRA 0x60", "MUFU.RCP R1, R1",
             "@!P2 STG.E [R2], R1", "EXIT"]
    numbered = [(16 * number, line) for number, line in enumerate(lines)]
    assert counting.executed(numbered) == [*lines[:3], *lines[5:]]
    with pytest.raises(ValueError, match="no way"):
        counting.executed(numbered, stores=2)
    assert counting.plain("_Z4widePKfS0_Pfii") == "wide"
    assert counting.plain("base_float32") == "base_float32"


def test_what_is_counted_is_saved_whole():
    kernels = recorded.compiled()["kernels"]
    expected = {*STEPS} | {f"{name}_{dtype}" for dtype in counting.WIDTH for name in (*counting.VARIANTS, "triton")}
    assert set(kernels) == expected
    for name, found in kernels.items():
        assert found["executed"] <= found["standing"], name
        assert sum(found["kinds"].values()) == found["executed"], name
        assert "other" not in found["kinds"], name


def test_pictures_and_tables(capsys):
    matplotlib.use("Agg")
    for draw in (pictures.draw_blocks, pictures.draw_reads, pictures.draw_sum, pictures.draw_instructions):
        assert draw().axes
    recorded.print_steps()
    recorded.print_variants()
    recorded.print_sanitizer()
    assert pictures.draw_steps({"wide": 3.0}).axes
    printed = capsys.readouterr().out
    assert printed.count("µs by threads a block  64: ") == len(experiment.DTYPES)
    assert "memcheck" in printed
    matplotlib.pyplot.close("all")


def test_what_ncu_prints():
    lines = ["  base_float32 (32768, 1, 1)x(256, 1, 1), Context 1, Stream 7, Device 0, CC 9.0",
             "    smsp__inst_executed.sum     inst     14,417,920", "    dram__bytes_read.sum     Mbyte     134.2",
             "  wide(const float *, int) (2048, 1, 1)x(256, 1, 1), Context 1",
             "    smsp__inst_executed.sum     inst     7",
             "    l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum                    2,097,152"]
    found = experiment.counted(lines)
    expected = {"smsp__inst_executed.sum": 14417920, "dram__bytes_read.sum": 134.2e6}
    assert found["base_float32"] == pytest.approx(expected)
    requests = "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum"
    assert found["wide"] == {"smsp__inst_executed.sum": 7, requests: 2097152}


def test_a_kernel_that_runs_only_on_the_host_compiles_for_a_gpu_too(tmp_path):
    from kernels import runtime

    if not runtime.nvcc():
        pytest.skip("nvcc is not here")
    import subprocess

    source = texts.launching("scalar") + programs._calling(texts.launching("scalar"))
    (tmp_path / "kernel.cu").write_text(source)
    for file in (tmp_path / "kernel.cu", programs.HERE / "on_gpu.cu"):
        subprocess.run([runtime.nvcc(), "-std=c++17", "-arch=sm_90", "-c", file, "-o", tmp_path / "o"], check=True)


def test_on_a_gpu_the_repaired_kernel_is_timed(monkeypatch, capsys):
    monkeypatch.setattr(puzzles.programs, "build", lambda source, gpu: "program")
    source = texts.launching("scalar")
    for us, status, said in ((60.0, "ok", ""), (200.0, "ok", "side by side"), (0.0, "launch", "the launch fails")):
        outcome = programs.Outcome(status, us=us, copy_us=50.0)
        monkeypatch.setattr(puzzles.programs, "run", lambda *a, outcome=outcome, **b: outcome)
        if said:
            with pytest.raises(puzzles.Wrong, match=said):
                puzzles._time(source, (4, 8))
        else:
            assert "GB/s, a copy" in puzzles._time(source, (4, 8))


def test_a_puzzle_prints_and_does_not_raise(capsys):
    assert not puzzles.attempt("guard", "void launch(")
    assert not puzzles.attempt("guard", texts.launching("scalar").replace("i < n", "true"))
    assert puzzles.attempt("guard", texts.launching("scalar"))
    printed = capsys.readouterr().out
    assert printed.count("not yet: guard") == 2
    assert "7 cases passed on the host" in printed
