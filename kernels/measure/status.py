"""Which op was tested and measured on which GPU, and whether its sources changed since: `python -m kernels.measure status`.

--write puts tables into README.md and kernels/README.md. Everything is read from traces/results/<gpu>/: <op>.json,
which `python -m kernels.measure bench --save` writes, and tests.json, which `make gpu` writes.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import io
import json
import re
import tokenize
from pathlib import Path

from kernels import runtime

KERNELS = runtime.KERNELS
RESULTS = KERNELS.parent / "traces" / "results"
README, FRONT_PAGE = KERNELS / "README.md", KERNELS.parent / "README.md"
BEGIN, END = "<!-- begin: python -m kernels.measure status --write -->", "<!-- end -->"
PYTHON_SOURCES = ("eager.py", "triton_kernel.py", "triton_launch.py", "op.py")
# Not what a kernel is built from: the choice of the backend and of the machine (the compiler's flags are counted), and
# the build for machines without a GPU.
NOT_BUILT_IN = {"runtime.py", "doctor.py", "cuda_on_host.h"}
# The times in the READMEs are those of the functional forward in this cell.
SHAPE, ACTIVATIONS = (65536, 512), ("", "sigmoid")


# ------------------------------------------------------------------------------------------------------------------
# What an op is built from.


def ops() -> list[str]:
    """All ops: the folders that have an eager.py."""
    return sorted(path.parent.name for path in KERNELS.glob("ops/*/eager.py"))


def sources(op: str) -> list[Path]:
    """The files an op is built from: its own, and the shared ones that they import or include."""
    folder = KERNELS / "ops" / op
    if not folder.is_dir():
        raise ValueError(f"unknown op {op!r}: expected one of {', '.join(ops())}")
    found, waiting = set(), [folder / name for name in PYTHON_SOURCES if (folder / name).is_file()]
    while waiting:
        file = waiting.pop()
        if file not in found and file.name not in NOT_BUILT_IN:
            found.add(file)
            waiting += _imported(file.read_text())
    for name in ("binding.cu", "cuda.cu", "kernel.cuh"):
        if (folder / name).is_file():
            found |= {f for f in runtime.included_files(folder / name, (folder, KERNELS)) if f.name not in NOT_BUILT_IN}
    return sorted(found)


def sources_sha256(op: str) -> str:
    """SHA-256 of what the op is built from; comments, docstrings and blank lines do not count."""
    digest = hashlib.sha256(repr(runtime.CUDA_FLAGS).encode())
    for file in sources(op):
        strip = without_comments_python if file.suffix == ".py" else without_comments_cpp
        digest.update(f"\0{file.relative_to(KERNELS).as_posix()}\0{strip(file.read_text())}".encode())
    return digest.hexdigest()


def _imported(source: str) -> list[Path]:
    """The files in kernels/ that a Python source imports, packages' __init__.py aside."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    paths = (KERNELS.parent / f"{name.replace('.', '/')}.py" for name in sorted(names) if name.startswith("kernels."))
    return [path for path in paths if path.is_file()]


def without_comments_python(source: str) -> str:
    """Python code without comments, docstrings, blank lines and trailing spaces; the same on every Python version."""
    lines = source.splitlines(keepends=True)
    cut = []
    tokens = [
        token
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type not in (tokenize.NL, tokenize.INDENT, tokenize.DEDENT)
    ]
    code = [token for token in tokens if token.type != tokenize.COMMENT]
    cut += [token for token in tokens if token.type == tokenize.COMMENT]
    for i, token in enumerate(code):
        starts = i == 0 or code[i - 1].type == tokenize.NEWLINE
        if token.type == tokenize.STRING and starts and code[i + 1].type == tokenize.NEWLINE:
            cut.append(token)
    for token in sorted(cut, key=lambda token: token.start, reverse=True):
        (first, start), (last, end) = token.start, token.end
        lines[first - 1 : last] = [lines[first - 1][:start] + lines[last - 1][end:]]
    return _without_blank_lines("".join(lines))


_CPP = re.compile(
    r"""(?P<keep>R"(?P<mark>[^()\\\s]*)\(.*?\)(?P=mark)"|"(?:\\.|[^"\\\n])*"|(?<!\w)'(?:\\.|[^'\\\n])+')"""
    r"|//(?:\\\n|[^\n])*|/\*.*?\*/",
    re.DOTALL,
)


def without_comments_cpp(source: str) -> str:
    """C++ code without comments, blank lines and trailing spaces; strings are left alone."""
    return _without_blank_lines(_CPP.sub(lambda match: match["keep"] or " ", source))


def _without_blank_lines(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.splitlines() if line.strip())


# ------------------------------------------------------------------------------------------------------------------
# What was recorded.


def slug(gpu: str) -> str:
    """The folder of a GPU's results: "NVIDIA H200" → "h200"."""
    return re.sub(r"[^a-z0-9]+", "-", gpu.lower().removeprefix("nvidia")).strip("-")


def recorded_files(name: str, results: Path = RESULTS, gpu: str | None = None) -> list[Path]:
    """The files of this name, one a GPU; gpu: of this folder only."""
    return sorted(results.glob(f"{gpu or '*'}/{name}"))


def test_counts(op: str, results: Path) -> list[dict]:
    """The test counts of an op, one dict a GPU."""
    found = (json.loads(path.read_text()).get(op) for path in recorded_files("tests.json", results))
    return [entry for entry in found if entry]


def measurements(op: str, results: Path) -> list[dict]:
    """The measurements of an op, one dict a GPU."""
    return [json.loads(path.read_text()) for path in recorded_files(f"{op}.json", results)]


def describe(entries: list[dict], op: str, what) -> str:
    """"H200 2026-01-31: 41 passed, sources changed since" for each entry, or "never"; what: the middle part."""
    now = sources_sha256(op)
    return "; ".join(
        f"{entry['GPU'].removeprefix('NVIDIA ')} {entry['date']}{what(entry)}"
        + (", sources changed since" if entry["sources_sha256"] != now else "")
        for entry in entries
    ) or "never"  # fmt: skip


def _counts(entry: dict) -> str:
    shown = (key for key in ("passed", "failed", "skipped") if entry[key] or key == "passed")
    return ": " + ", ".join(f"{entry[key]} {key}" for key in shown)


def _quick(entry: dict) -> str:
    return ", --quick" if entry["quick"] else ""


def table(results: Path = RESULTS) -> str:
    """What `python -m kernels.measure status` prints."""
    lines = []
    for op in ops():
        lines.append(op)
        lines.append(f"    tested    {describe(test_counts(op, results), op, _counts)}")
        lines.append(f"    measured  {describe(measurements(op, results), op, _quick)}")
    return "\n".join(lines)


# ------------------------------------------------------------------------------------------------------------------
# The READMEs.


def readme_table(results: Path = RESULTS) -> str:
    """The table of ops in Markdown: links, times from the latest record, what was tested and measured where."""
    lines = [
        "| op | eager | generated | triton | cuda | tested | measured |",
        "|---|---|---|---|---|---|---|",
    ]
    for op in ops():
        times = _times(_latest(op, results))
        cells = [
            _link(op, "eager.py", "eager", times),
            _link(op, "triton_kernel.py", "as generated", times, containing="def as_generated("),
            _link(op, "triton_kernel.py", "triton", times),
            _link(op, "kernel.cuh", "cuda", times),
            describe(test_counts(op, results), op, _counts),
            describe(measurements(op, results), op, _quick),
        ]
        lines.append(f"| [{op}](ops/{op}/) | {' | '.join(cells)} |")
    return "\n".join(lines)


def result_table(results: Path = RESULTS) -> str:
    """README.md's table in Markdown: the time of each op and dtype beside its peers, from the latest records."""
    shown = {"eager": "eager", "torch.compile": "`torch.compile`", "triton": "our Triton", "cuda": "our CUDA"}
    lines, machines = [], set()
    for op in ops():
        record = _latest(op, results)
        for dtype in dict.fromkeys(row["dtype"] for row in record["rows"] if row["part"] == "bandwidth"):
            times = _times(record, dtype)
            limit = _necessary_us(record, dtype)
            cells = [f"{times[name]:.1f}" if name in times else "–" for name in shown]
            lines.append(f"| [{op}](kernels/ops/{op}/), {dtype} | {limit:.1f} | {' | '.join(cells)} |")
            machines.add(f"{record['GPU']}, torch {record['torch']}, triton {record['triton']}, {record['date']}")
    shape = "×".join(map(str, SHAPE))
    head = ["µs on the GPU, " + shape, "the bytes, at a copy's bandwidth", *shown.values()]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|", *lines]
    return "\n".join([*lines, "", f"Recorded on {'; '.join(sorted(machines)) or 'no GPU yet'}."])


def _latest(op: str, results: Path) -> dict:
    """The latest record of an op; of an op that has none, one without rows."""
    return max(measurements(op, results), key=lambda record: record["date"], default={"rows": []})


def _forwards(record: dict, dtype: str) -> list[dict]:
    """The measured rows of the functional forward at SHAPE."""
    return [
        row
        for row in record["rows"]
        if (row["rows"], row["columns"]) == SHAPE
        and (row["form"], row["dtype"]) == ("functional", dtype)
        and row["activation"] in ACTIVATIONS
        and row["part"] in ("bandwidth", "grid")
        and row["us_p50"] is not None
    ]


def _times(record: dict, dtype: str = "float32") -> dict[str, float]:
    """{implementation: µs}."""
    return {row["implementation"]: row["us_p50"] for row in _forwards(record, dtype)}


def _necessary_us(record: dict, dtype: str) -> float:
    """What the necessary bytes take at the bandwidth of the copy."""
    return next((row["bytes"] for row in _forwards(record, dtype)), 0) / record["copy_tb_per_s"]["limit"] / 1e6


def _link(op: str, file: str, implementation: str, times: dict[str, float], containing: str = "") -> str:
    path = KERNELS / "ops" / op / file
    if not path.is_file() or containing not in path.read_text():
        return "–"
    time = f" {times[implementation]:.1f} µs" if implementation in times else ""
    return f"[{file}](ops/{op}/{file}){time}"


def with_table(text: str, table: str) -> str:
    """A README's text with the table between its markers."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"the README must have the lines {BEGIN} and {END}")
    return f"{before}{begin}\n\n{table}\n\n{end}{after}"


def pages() -> dict[Path, str]:
    """The READMEs, each with its table of now."""
    tables = {README: readme_table(), FRONT_PAGE: result_table()}
    return {path: with_table(path.read_text(), table) for path, table in tables.items()}


def write() -> None:
    """Bring the READMEs' tables up to date."""
    for path, text in pages().items():
        path.write_text(text)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m kernels.measure status", description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="write the tables of README.md and kernels/README.md")
    if parser.parse_args(argv).write:
        write()
    print(table())
    return 0
