"""mutate.py: its switches are the mutants, its draw is repeatable, and what it says of a toy op is so."""

import os
import random
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import mutant_copies
import mutants
import mutate
import pytest

TESTS = Path(__file__).resolve().parent

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is missing")

# Each kind, one within another, and a comment that looks like one.
EXPRESSIONS = """
int barriers = 0, marks = 0;
int pick(int a, int b, int c) { return a % b + c - 3 + (2 - a - b); }
long long wide(unsigned a) { return 1LL << a; }
bool within(int a, int n) { return a >= 0 && a <= n - 1; }
int guarded(int a, int n) {
    if (a >= n || n == 7) return -1;
    if (a > 2) marks += 10;
    return a < n ? a : n;  // not 4 < 5
}
int capped(int a, int n) { return min(a + n, n); }
int sum(const int* x, int n) {
    unsigned total = 0;
    for (int i = 0; i < n; ++i) total += x[i];
    __syncthreads();
    return total + int(blockIdx.x - threadIdx.y);
}
"""
AROUND = """
#include <stdio.h>
#include <stdlib.h>
struct { int x = 11, y = 5; } threadIdx, blockIdx;
int min(int a, int b) { return a < b ? a : b; }
#define __syncthreads() void(++barriers)
"""
RUN = """
void run() {
    int x[] = {5, -3, 8, 1, 2, 9}, y = 0;
    marks = barriers = 0;
    for (int a = -2; a < 6; ++a) {
        y = y * 31 + guarded(a, 4) + 2 * guarded(a, 7) + 4 * within(a, 3) + pick(9, a + 5, 4) + 8 * capped(a, 3);
    }
    printf("%d %lld %d %d %d\\n", y, wide(3), sum(x, 4), marks, barriers);
}
"""


def _printed(folder: Path, text: str, *numbers: int) -> list[str]:
    """What the program prints, line by line, as each of these mutants."""
    (folder / "text.cpp").write_text(text)
    command = ["g++", "-std=c++20", "-w", f"-I{TESTS}", folder / "text.cpp", "-o", folder / "program"]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    runs = (
        subprocess.run([folder / "program"], env={"MUTANT": str(number)}, capture_output=True, text=True, check=True)
        for number in numbers
    )
    return "".join(run.stdout for run in runs).splitlines()


@pytest.mark.parametrize(
    ("drawn", "kinds"),
    [(mutants.of_cuda, {"constant", "comparison", "dropped barrier", "dropped mask", "swapped"}),
     (mutants.of_bounds, {"bound"})],
    ids=["others", "bounds"],
)
def test_a_switch_is_the_mutant_built_alone(tmp_path, drawn, kinds):
    path = tmp_path / "expressions.cuh"
    path.write_text(EXPRESSIONS)
    kept = []
    for mutant in drawn(path):
        if all(mutant.goes_with(other) for other in kept):
            kept.append(mutant)
    assert {mutant.kind for mutant in kept} == kinds

    texts = [EXPRESSIONS, *(mutant.alone() for mutant in kept)]
    spaces = "".join(f"namespace n{i} {{ {text} {RUN} }}\n" for i, text in enumerate(texts))
    calls = "".join(f"n{i}::run();" for i in range(len(texts)))
    alone = _printed(tmp_path, f"{AROUND} {spaces} int main() {{ {calls} }}", 0)
    switched = mutants.switched(path, enumerate(kept, 1))
    program = f'#include "mutants.h"\n{AROUND} {switched} {RUN} int main() {{ run(); }}'
    one = _printed(tmp_path, program, *range(len(texts)))
    assert one == alone
    told_apart = sum(line != alone[0] for line in alone)
    assert told_apart > len(kept) * 3 / 4
    assert switched.count("\n") == EXPRESSIONS.count("\n")


@pytest.mark.parametrize(("a", "reached"), [(0, []), (4, [2]), (5, [1])])
def test_a_bound_is_reached_where_it_differs(tmp_path, a, reached):
    """a < b with b = 5: mutant 1 is a < b + 1, mutant 2 is a < b - 1."""
    program = f"""
        #include "mutants.h"
        int main() {{
            int a = {a}, b = 4;
            return a < mutants::Bound<1, 1>() + mutants::Bound<2, -1>() + b + 1 ? 0 : 1;
        }}
    """
    (tmp_path / "text.cpp").write_text(program)
    subprocess.run(["g++", "-std=c++20", f"-I{TESTS}", tmp_path / "text.cpp", "-o", tmp_path / "program"], check=True)
    file = tmp_path / "reached"
    file.write_bytes(b"")
    subprocess.run([tmp_path / "program"], env={"MUTANTS_REACHED": str(file)}, check=False)
    assert list(memoryview(file.read_bytes()).cast("i")) == reached


def test_comments_are_not_drawn(tmp_path):
    path = tmp_path / "kernel.cuh"
    path.write_text('// 1 < 2\n#define FOUR 4\n/* 3 */ const char* text = "5 < 6 // 7";  // 8\nint a = 9;\n')
    assert {(mutant.line, mutant.new) for mutant in mutants.of_cuda(path)} == {(4, "10"), (4, "8")}
    path = tmp_path / "triton_kernel.py"
    path.write_text('"""1 < 2"""\ndef f(a, mask, b):  # 3\n    return g(a, mask, b)\n')
    assert [mutant.lines[1] for mutant in mutants.of_triton(path)] == ["return g(a, mask == mask, b)"]


def test_bounds_of_loops_masks_and_minima(tmp_path):
    path = tmp_path / "triton_kernel.py"
    path.write_text("""def f(x, n):
    for i in tl.range(0, n, 4, num_stages=3):
        g(i + tl.arange(0, 4) < n)
    for i in tl.static_range(h(n, 2)):
        return tl.minimum(i, g("n"))
""")
    assert [mutant.lines[1] for mutant in mutants.of_bounds(path)] == [
        "g(i + tl.arange(0, 4) < 1 + n)", "g(i + tl.arange(0, 4) < -1 + n)",
        "for i in tl.range(0, (n) + 1, 4, num_stages=3):", "for i in tl.range(0, (n) - 1, 4, num_stages=3):",
        "for i in tl.static_range((h(n, 2)) + 1):", "for i in tl.static_range((h(n, 2)) - 1):",
        'return tl.minimum((i) + 1, g("n"))', 'return tl.minimum((i) - 1, g("n"))',
        'return tl.minimum(i, (g("n")) + 1)', 'return tl.minimum(i, (g("n")) - 1)',
    ]


def test_a_seed_draws_the_same_mutants():
    paths = sorted((mutate.ROOT / "kernels" / "ops" / "softmax").glob("*.cuh"))

    def first(seed: str) -> list[mutants.Mutant]:
        return [mutant for _, mutant in zip(range(20), mutants.drawn(paths, random.Random(seed)), strict=False)]

    assert first("1") == first("1")
    assert first("1") != first("2")
    assert len(set(first("1"))) == 20


KERNEL = """#include "check/host/cuda_on_host.h"
constexpr int size = 3;
#ifdef __CUDACC__
inline int of_a_gpu() { return 7; }
#endif
inline int sum(const int* x, int n) {
    unsigned total = 0;
    for (int i = n; i > 0; i -= 1) total += x[i - 1];
    return total;
}
#include "fast/unused.cuh"
"""
UNUSED = "inline int unused(int a) { return a > 5; }\n"
TEST = """#include "kernel.cuh"
#include <stdio.h>
#include <unistd.h>
int main() {
    if (FILE* started = getenv("STARTED") ? fopen(getenv("STARTED"), "w") : nullptr) pause();
    int* x = new int[3]{40, 20, 9};
    int got = sum(x, size);
    delete[] x;
    printf("row  %s\\n", got == WANTED ? "PASS" : "FAIL: of the sum");
    return got != WANTED;
}
"""


@pytest.fixture
def toy(tmp_path):
    """toy(wanted) makes a repository of one op, whose test wants this sum, and returns its folder."""

    def make(wanted: int = 69) -> Path:
        root = tmp_path / "toy"
        op = root / "kernels" / "ops" / "toy"
        (op / "fast").mkdir(parents=True)
        (op / "kernel.cuh").write_text(KERNEL)
        (op / "fast" / "unused.cuh").write_text(UNUSED)
        (op / "test_toy.cu").write_text(TEST.replace("WANTED", str(wanted)))
        header = root / "kernels" / "check" / "host" / "cuda_on_host.h"
        header.parent.mkdir(parents=True)
        header.write_text("#pragma once\n")
        (root / "pyproject.toml").write_text("")
        (root / "tests").mkdir()
        (root / "tests" / "mutants.h").write_text((TESTS / "mutants.h").read_text())
        return root

    return make


def _texts(root: Path) -> dict[Path, str]:
    return {path.relative_to(root): path.read_text() for path in root.rglob("*") if path.is_file()}


def _mutate(monkeypatch, root: Path, *arguments: str) -> int:
    monkeypatch.setattr(mutate, "ROOT", root)
    monkeypatch.setattr(mutant_copies, "SPARE_SECONDS", 1)
    monkeypatch.setattr(sys, "argv", ["mutate.py", *arguments])
    return mutate.main()


@pytest.mark.slow  # three builds with AddressSanitizer, and pytest starts twice
def test_a_toy_op(toy, monkeypatch, capsys):
    root = toy()
    before = _texts(root)
    monkeypatch.setenv("ASAN_OPTIONS", "detect_leaks=0")
    status = _mutate(monkeypatch, root, "--kind", "others", "--count", "12")
    printed = capsys.readouterr().out
    print(printed)
    blocks = re.findall(r"^(\S+?), (.*)\n    (.*)\n    (.*)\n    (.*)$", printed, re.M)
    results = {(place.rpartition(":")[2], new): (how, end) for place, how, _, new, end in blocks}

    def of(line: int, new: str) -> tuple[str, str]:
        return results.pop((str(line), new))

    for value in (2, 4):
        how, end = of(2, f"constexpr int size = {value};")
        assert how == "constant, built alone"
        assert end.startswith("killed by test_toy.cu (asan): ")
    assert of(7, "unsigned total = 1;")[1] == "killed by test_toy.cu (asan): row FAIL: of the sum"
    loop = "for (int i = n; i {}; i -= {}) total += x[i - {}];"
    assert "AddressSanitizer: heap-buffer-overflow" in of(8, loop.format(">= 0", 1, 1))[1]
    assert "killed by test_toy.cu (asan): a time limit: " in of(8, loop.format("> 0", 0, 1))[1]
    for steps in (("> 1", 1, 1), ("> 0", 2, 1), ("> 0", 1, 0), ("> 0", 1, 2)):
        assert of(8, loop.format(*steps))[1].startswith("killed by test_toy.cu (asan): ")
    for new in ("a > 6", "a > 4", "a >= 5"):
        assert of(1, f"inline int unused(int a) {{ return {new}; }}") == (
            "comparison" if "=" in new else "constant", "ALIVE, no test comes to where it differs")
    assert not results
    assert printed.splitlines()[-1] == (
        "12 mutants: 9 killed (8 by asan, 1 by time limits), 3 alive (3 that no test comes to); 2 built alone"
    )
    assert status == 1
    assert _texts(root) == before

    assert _mutate(monkeypatch, root, "--kind", "bounds", "--all") == 1
    printed = capsys.readouterr().out
    print(printed)
    assert len(re.findall(r"kernel.cuh:8, bound\n.*\n.*\n    killed by test_toy.cu", printed)) == 2
    assert len(re.findall(r"unused.cuh:1, bound\n.*\n.*\n    ALIVE, no test comes to where it differs", printed)) == 2
    assert printed.splitlines()[-1].startswith("4 mutants: 2 killed (2 by asan), 2 alive ")


def test_shares_are_all_there_is(toy, monkeypatch):
    root, drawn = toy(), []
    monkeypatch.setattr(mutate, "of_an_op_in_cuda", lambda op, sequence, count, copies: drawn.append([*sequence]) or [])
    arguments = "--kind", "bounds", "--all"
    for share in ("1/1", "1/3", "2/3", "3/3"):
        assert _mutate(monkeypatch, root, *arguments, "--share", share) == 0
    whole, *shares = drawn
    assert len(whole) == 4
    assert sorted(map(len, shares)) == [1, 1, 2]
    assert {*whole} == {mutant for share in shares for mutant in share}
    for wrong in ("4/3", "0/3", "a third"):
        with pytest.raises(SystemExit):
            _mutate(monkeypatch, root, *arguments, "--share", wrong)


def test_it_must_pass_without_a_mutant(toy, monkeypatch, capsys):
    assert _mutate(monkeypatch, toy(wanted=70), "--count", "1") == 2
    assert "fails without any mutant:\nrow FAIL: of the sum" in capsys.readouterr().err


TRITON = """import triton
import triton.language as tl

@triton.jit
def kernel(x_ptr, out_ptr, elements, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    mask = offsets < elements
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask), mask)
"""
TRITON_TEST = """import torch
from triton_kernel import kernel

def test_three_of_four():
    x, out = torch.arange(1.0, 5), torch.full((4,), -1.0)
    kernel[(1,)](x, out, 3, BLOCK=4)
    assert out.tolist() == [1, 2, 3, -1]
"""


@pytest.mark.slow  # torch and Triton are imported once a mutant
def test_a_toy_op_in_triton(toy, monkeypatch, capsys):
    root = toy()
    op = root / "kernels" / "ops" / "toy"
    for path in op.rglob("*.cuh"):
        path.unlink()
    (op / "triton_kernel.py").write_text(TRITON)
    (op / "test_toy.py").write_text(TRITON_TEST)
    assert _mutate(monkeypatch, root, "--kind", "bounds", "--all") == 0
    assert capsys.readouterr().out.splitlines()[-1] == "2 mutants: 2 killed (2 by pytest), 0 alive; 0 built alone"
    assert _mutate(monkeypatch, root, "--kind", "others", "--count", "3", "toy") == 1
    printed = capsys.readouterr().out
    results = dict(re.findall(r"\n    .*\n    (.*)\n    ([\w ]+)", printed))
    store = "tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, {}), {})"
    assert results == {  # arange(1, 4) is no mutant: Triton turns it down
        "mask = offsets <= elements": "killed by pytest",
        store.format("mask", "mask == mask"): "killed by pytest",
        store.format("mask == mask", "mask"): "ALIVE",
    }


def test_an_op_that_is_none(toy, monkeypatch, capsys):
    assert _mutate(monkeypatch, toy(), "toy", "top") == 2
    assert capsys.readouterr().err == "no op with kernels: top\n"


def test_stopped_it_leaves_nothing(toy, tmp_path):
    root, temporary, started = toy(), tmp_path / "temporary", tmp_path / "started"
    temporary.mkdir()
    os.mkfifo(started)  # opens for reading when the op's test has begun
    code = f"import mutate, pathlib, sys; mutate.ROOT = pathlib.Path({str(root)!r}); sys.exit(mutate.main())"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "--count", "1"],
        env={**os.environ, "PYTHONPATH": str(TESTS), "TMPDIR": str(temporary), "STARTED": str(started)},
    )
    with started.open():
        assert list(temporary.iterdir())
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=300) == 130
    assert not list(temporary.iterdir())
