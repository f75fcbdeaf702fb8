"""What an op was built from, tested with and measured by, as hashes: a record keeps them, and so knows its age.

Comments, docstrings and blank lines do not count.
"""

from __future__ import annotations

import functools
import hashlib
import io
import re
import tokenize
from collections.abc import Iterable
from pathlib import Path

from ..dispatch.included_files import imported_files, included_files
from ..runtime import KERNELS

BUILT_FROM = ("eager.py", "op.py", "triton_kernel.py", "triton_launch.py", "kernel.cuh", "cuda.cu", "cpu.cpp")
# What finds out about the machine, and the build for one without a GPU.
NOT_BUILT_IN = ("runtime.py", "machine.py", "doctor.py", "cuda_on_host")
# What decides how a row comes about; the rest of measure/ stores, judges and prints it.
MEASURED_BY = ("cells", "clock", "match", "measuring", "runs", "first_call", "latency", "lengths")


def ops() -> list[str]:
    """All ops: the folders that have an op.py."""
    return sorted(path.parent.name for path in KERNELS.glob("ops/*/op.py"))


def files(op: str, what: str) -> list[Path]:
    """The files of an op. what: "sources", all it is built from, the core and what its files import or include too;
    "tests", its tests, its spec and the checker; "bench", its benchmark and how a row is measured.

    Raises:
        ValueError: an unknown op.
    """
    folder = KERNELS / "ops" / op
    if not folder.is_dir():
        raise ValueError(f"unknown op {op!r}: expected one of {', '.join(ops())}")
    if what == "tests":
        checker = [*_code(KERNELS / "check"), *_code(KERNELS / "check" / "host")]
        return sorted([*folder.glob("test_*"), *folder.glob("spec.py"), *checker])
    if what == "bench":
        return sorted([*folder.glob("bench.py"), *(KERNELS / "measure" / f"{name}.py" for name in MEASURED_BY)])
    found = set()
    own = (path for name in BUILT_FROM for path in (folder / name, *folder.glob(f"*/{name}")))
    for file in (*own, *_code(KERNELS / "dispatch")):
        if file.is_file() and file not in found:
            found |= {*(imported_files(file) if file.suffix == ".py" else included_files(file, (KERNELS,)))}
    return sorted(file for file in found if not file.name.startswith(NOT_BUILT_IN))


def sha256(op: str, what: str) -> str:
    """SHA-256 of the code in `files`."""
    digest = hashlib.sha256()
    for file in files(op, what):
        strip = without_comments_python if file.suffix == ".py" else without_comments_cpp
        digest.update(f"\0{file.relative_to(KERNELS).as_posix()}\0{strip(file.read_text())}".encode())
    return digest.hexdigest()


def hashes(op: str, *whats: str) -> dict[str, str]:
    """{"sources_sha256": …, …}: what a record keeps."""
    return {f"{what}_sha256": sha256(op, what) for what in whats}


def changed(op: str, entry: dict, *whats: str) -> str:
    """"sources and tests changed since" the entry was recorded, or "". A hash that the entry lacks has changed."""
    names = [what for what in whats if entry.get(f"{what}_sha256") != sha256(op, what)]
    return f"{' and '.join(names)} changed since" if names else ""


def _code(folder: Path) -> Iterable[Path]:
    return (path for path in folder.iterdir() if path.suffix in (".py", ".cpp", ".cu", ".cuh", ".h"))


@functools.cache
def without_comments_python(source: str) -> str:
    """Python code without comments, docstrings, blank lines and trailing spaces; the same on every Python version."""
    lines = source.splitlines(keepends=True)
    ignored = (tokenize.NL, tokenize.INDENT, tokenize.DEDENT)
    tokens = [t for t in tokenize.generate_tokens(io.StringIO(source).readline) if t.type not in ignored]
    code = [token for token in tokens if token.type != tokenize.COMMENT]
    cut = [token for token in tokens if token.type == tokenize.COMMENT]
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


@functools.cache
def without_comments_cpp(source: str) -> str:
    """C++ code without comments, blank lines and trailing spaces; strings are left alone."""
    return _without_blank_lines(_CPP.sub(lambda match: match["keep"] or " ", source))


def _without_blank_lines(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.splitlines() if line.strip())
