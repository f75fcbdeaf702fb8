"""Small mistakes, made by a seeded generator in the ops' kernels: does a test that runs on a CPU alone see each?

    python tests/mutate.py --count 20 --seed 0

A mistake is a constant one off, `<` for `<=` or the reverse, a barrier or a mask dropped, or two axes or operands
swapped, in kernel.cuh or triton_kernel.py of an op. Each is made in a copy of kernels/ in a temporary folder, and the
copy's tests are run: of a .cuh the op's host test with AddressSanitizer and UBSan, for a dropped barrier also with
ThreadSanitizer; of a .py the op's Triton tests in the interpreter. What does not compile needs no test, and another is
drawn. Before that the unchanged copies must pass. Printed: where, what, and the first line of the failure or SURVIVED;
a survivor is a hole in the tests or changes nothing that they could see, which only a reader can tell.
"""

from __future__ import annotations

import argparse
import io
import itertools
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import tokenize
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SECONDS = 300  # for a build, or a run of tests: what takes longer hangs
SANITIZERS = {"asan": ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"], "tsan": ["-fsanitize=thread"]}
HOST = ["-std=c++20", "-Og", "-pthread", "-Ikernels", "-include", "check/host/cuda_on_host.h", "-x", "c++"]
# Tests of torch's view of an op, and of other backends, do not go by what stands in a kernel.
TRITON_TESTS = "not (cuda or eager or opcheck or compile or exported or autocast or wrong_input)"
FAILURE = re.compile(r"^E  .*|.*(?:\bFAIL\b|runtime error:|ERROR: |WARNING: ThreadSanitizer|cuda_on_host: ).*", re.M)

# Blanked before anything is drawn: comments, the preprocessor's lines, and numbers that change the speed alone.
NO_CODE = {".cuh": r"//[^\n]*|/\*.*?\*/|^[ \t]*#[^\n]*|__launch_bounds__\([^)]*\)", ".py": r"\bnum_warps=[^,)]*"}
NUMBER = r"(?<![\w.])(\d+)(?=LL\b|\.0\b|(?![\w.]))"
OPERANDS = r"(?<![\w.])([A-Za-z_][\w.]*)( [-/%] )([A-Za-z_][\w.]*)(?![\w.(\[<])"
PROGRAM = r"((?:program_id\(|num_programs\(|axis=))([01])"
INDEX = r"((?:threadIdx|blockIdx|blockDim)\.)([xy])"
# What is changed in which files, and what stands there then. A comparison has spaces around it, a template has not.
KINDS = {
    "constant": {"both": [(NUMBER, lambda m: str(int(m[1]) + 1)), (NUMBER, lambda m: str(abs(int(m[1]) - 1)))]},
    "comparison": {"both": [(r"(?<= )([<>])(=?)(?= )", lambda m: m[1] + "=" * (not m[2]))]},
    "dropped barrier": {".cuh": [(r"__syncthreads\(\);", lambda m: "")]},
    "dropped mask": {
        ".cuh": [(r"\bif \([^()]* <=? [^()]*\)", lambda m: "if (true)"), (r"\b\w+ <=? [\w.]+ \?", lambda m: "true ?")],
        ".py": [
            (r"(?<=, )(mask|xmask|exists|in_columns)(?=[,)])", lambda m: f"{m[1]} == {m[1]}"),
            (r"\(row < end_row\) & |in_rows & | & in_columns", lambda m: ""),
        ],
    },
    "swapped": {
        ".cuh": [(INDEX, lambda m: m[1] + ("y" if m[2] == "x" else "x"))],
        ".py": [
            (PROGRAM, lambda m: m[1] + str(1 - int(m[2]))),
            (r"\[:, None\]", lambda m: "[None, :]"),
            (r"\[None, :\]", lambda m: "[:, None]"),
        ],
        "both": [(OPERANDS, lambda m: m[3] + m[2] + m[1])],
    },
}


@dataclass(frozen=True)
class Mutation:
    """text[start:end] of a file of the repository becomes `new`."""

    path: Path
    kind: str
    start: int
    end: int
    new: str

    def __str__(self) -> str:
        text = self.path.read_text()
        line = text.count("\n", 0, self.start) + 1
        from_, to = text.rfind("\n", 0, self.start) + 1, text.find("\n", self.end)
        old = text[from_:to].strip()
        new = (text[from_ : self.start] + self.new + text[self.end : to]).strip()
        return f"{self.path.relative_to(ROOT)}:{line}, {self.kind}\n    {old}\n    {new}"


def code(path: Path) -> str:
    """The file's text, blanks in place of all that is no code or cannot matter."""
    text = path.read_text()
    spans = [m.span() for m in re.finditer(NO_CODE[path.suffix], text, re.M | re.S)]
    if path.suffix == ".py":
        starts = [0]
        for line in text.splitlines(keepends=True):
            starts.append(starts[-1] + len(line))
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type in (tokenize.STRING, tokenize.COMMENT):
                spans.append(tuple(starts[row - 1] + column for row, column in (token.start, token.end)))
    for start, end in spans:
        text = text[:start] + re.sub(r"[^\n]", " ", text[start:end]) + text[end:]
    return text


def drawn(path: Path, generator: random.Random) -> Iterator[Mutation]:
    """All of the file's mutations in random order, the kinds in turn; a 0 becomes 1, up or down."""
    text, by_kind = code(path), {}
    for kind, patterns in KINDS.items():
        found = [
            Mutation(path, kind, *match.span(), new)
            for pattern, replacement in [*patterns.get(path.suffix, ()), *patterns.get("both", ())]
            for match in re.finditer(pattern, text)
            if (new := replacement(match)) != match[0]
        ]
        generator.shuffle(found)
        if found:
            by_kind[kind] = found
    kinds = sorted(by_kind)
    generator.shuffle(kinds)
    for kind in itertools.cycle(kinds):
        if by_kind[kind]:
            yield by_kind[kind].pop()
        elif not any(by_kind.values()):
            return


def run(command: list, **options) -> tuple[int | None, str]:
    """(exit status, or None if it was still running after SECONDS, and all that it printed)."""
    process = subprocess.Popen(
        [str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        start_new_session=True, **options,
    )
    try:
        printed, _ = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return None, process.communicate()[0]
    return process.returncode, printed


def failure(path: Path, mutation: Mutation | None) -> str | None:
    """What the tests say first of the file with this mutation: "" if they pass, None if it does not compile."""
    op = path.parent.name
    with tempfile.TemporaryDirectory(prefix="mutate_") as name:
        copy = Path(name)
        shutil.copytree(ROOT / "kernels", copy / "kernels", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", copy)
        if mutation:
            text = path.read_text()
            (copy / path.relative_to(ROOT)).write_text(text[: mutation.start] + mutation.new + text[mutation.end :])
        if path.suffix == ".py":
            command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", f"kernels/ops/{op}"]
            environment = {**os.environ, "PYTHONPATH": name, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
            status, printed = run([*command, "-k", TRITON_TESTS], cwd=copy, env=environment)
        else:
            for sanitizer in SANITIZERS if mutation and mutation.kind == "dropped barrier" else ["asan"]:
                build = ["g++", *HOST, *SANITIZERS[sanitizer], f"kernels/ops/{op}/test_{op}.cu", "-o", sanitizer]
                if run(build, cwd=copy)[0] != 0:
                    return None
                status, printed = run([*(["setarch", "-R"] if sanitizer == "tsan" else []), copy / sanitizer])
                if status != 0:
                    break
    if status == 0:
        return ""
    first = FAILURE.search(printed.replace(name + "/", ""))
    test = re.search(r"^FAILED \S*::(\S+)", printed, re.M)
    said = " ".join(first[0].split()) if first else f"exit status {status}" if status else f"{SECONDS} seconds"
    return f"{test[1] + ': ' if test else ''}{said}"[:300]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--trust", action="store_true", help="do not run the unchanged copies first")
    options = parser.parse_args()
    ops = ROOT / "kernels" / "ops"
    paths = [path for name in ("kernel.cuh", "triton_kernel.py") for path in sorted(ops.glob(f"*/{name}"))]
    draws = {path: drawn(path, random.Random(f"{options.seed} {path.relative_to(ROOT)}")) for path in paths}

    def kill(path: Path) -> str:
        while True:
            mutation = next(draws[path])
            found = failure(path, mutation)
            if found is not None:
                print(f"{mutation}\n    {'killed by ' + found if found else 'SURVIVED'}", flush=True)
                return found

    with ThreadPoolExecutor(2) as pool:
        unchanged = [] if options.trust else paths
        for path, found in zip(unchanged, pool.map(failure, unchanged, [None] * len(unchanged)), strict=True):
            assert found == "", f"{path} unchanged: {found}"
        results = list(pool.map(kill, [paths[i % len(paths)] for i in range(options.count)]))
    print(f"{len(results)} mutations: {sum(map(bool, results))} killed, {results.count('')} survived")


if __name__ == "__main__":
    main()
