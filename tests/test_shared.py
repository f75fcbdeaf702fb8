"""What is shared knows no op: nothing in kernels/ outside ops/ names one, or holds a line of one's plumbing.

Counted are words of code. In Python: names, attributes and keywords, what is imported, and the words of strings, but no
docstring and no comment; torch's and Triton's own functions (torch.softmax) are not ours. In C++ and CMake: everything
outside comments. A word is an op's if it is its name, or its name and an ending ("_", "_backward", "_kernel").
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from kernels import dispatch
from kernels.runtime import KERNELS

FOLDERS = ("check", "cubin", "device", "dispatch", "editable", "gpu_run", "inductor", "measure")
SUFFIXES = {".py", ".h", ".cuh", ".cpp", ".cu", ".txt", ".cmake"}
FILES = [
    path
    for path in (*(p for folder in FOLDERS for p in sorted(KERNELS.glob(f"{folder}/**/*"))), *sorted(KERNELS.glob("*")))
    if path.suffix in SUFFIXES
]
LIBRARIES = {"torch", "triton", "tl", "F"}
# The core's own words too: an op's table of functions, a cubin's image, the mode that gradients are recorded in, a
# tensor's dense layout, torch.func's batching rule.
COMMON = {"table", "image", "mode", "kind", "keys", "slots", "dense", "rule"}


def words_of_python(source: str) -> list[tuple[int, str]]:
    """(line, word) of Python code."""
    tree = ast.parse(source)
    pairs, docstrings = [], set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            docstrings.add(node.value)
    for node in ast.walk(tree):
        texts = []
        if isinstance(node, ast.Attribute) and root(node) not in LIBRARIES:
            texts = [node.attr]
        elif isinstance(node, ast.Name):
            texts = [node.id]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in docstrings:
            texts = [node.value]
        elif isinstance(node, ast.alias):
            texts = [node.name, node.asname or ""]
        elif isinstance(node, ast.ImportFrom):
            texts = [node.module or ""]
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            texts = [node.name]
        elif isinstance(node, ast.arg | ast.keyword):
            texts = [node.arg or ""]
        line = getattr(node, "lineno", 0)
        pairs += [(line, word) for text in texts for word in re.findall(r"\w+", text)]
    return pairs


def root(node: ast.expr) -> str:
    """The name that a chain of attributes begins with."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def words_of_text(source: str, comment: str) -> list[tuple[int, str]]:
    """(line, word) outside comments, each of which gives way to as many line ends as it had."""
    code = re.sub(comment, lambda match: "\n" * match[0].count("\n"), source, flags=re.DOTALL)
    return [(n, word) for n, line in enumerate(code.splitlines(), 1) for word in re.findall(r"\w+", line)]


def words(path: Path) -> list[tuple[int, str]]:
    source = path.read_text()
    if path.suffix == ".py":
        return words_of_python(source)
    return words_of_text(source, r"#[^\n]*" if path.suffix in (".txt", ".cmake") else r"//[^\n]*|/\*.*?\*/")


def named(pairs: list[tuple[int, str]], names: list[str], endings: str = r"(_\w*)?") -> list[tuple[int, str]]:
    pattern = re.compile(f"({'|'.join(map(re.escape, names))}){endings}")
    return [(line, word) for line, word in pairs if pattern.fullmatch(word)]


def test_the_rule_finds_what_it_is_for():
    python = '''"""add_relu in a docstring."""
import torch
from kernels.ops.add_relu import eager  # add_relu
from kernels import softmax_
def f(softmax_limits=None, *, x=("launch", "run add_relu now")):
    "softmax"
    torch.softmax(x), kernels.softmax(x), unsoftmax, triton_poi_fused_add_relu_0
'''
    lines = [line for line, _ in named(words_of_python(python), ["add_relu", "softmax"])]
    assert sorted(lines) == [3, 4, 5, 5, 7]
    cpp = """// add_relu
#include "ops/add_relu/kernel.cuh"
/* add_relu
   add_relu */ add_relu_backward(); my_add_relu();
"""
    assert named(words_of_text(cpp, r"//[^\n]*|/\*.*?\*/"), ["add_relu"]) == [(2, "add_relu"), (4, "add_relu_backward")]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(KERNELS)))
def test_no_shared_file_names_an_op(path):
    assert named(words(path), sorted({*dispatch.ops(), *dispatch.names()})) == []


def test_every_shared_folder_is_looked_at():
    files = [path.relative_to(KERNELS).parts for path in KERNELS.rglob("*") if path.is_file()]
    # What moved elsewhere leaves a folder behind that holds only __pycache__.
    folders = {parts[0] for parts in files if len(parts) > 1 and "__pycache__" not in parts}
    # compiler is a composite, whose patterns name their ops; library's code is written from the ops' declarations.
    assert folders == {*FOLDERS, "ops", "compiler", "library"}
    assert {path.suffix for path in KERNELS.glob("*/*") if path.parent.name in FOLDERS} - {""} <= SUFFIXES


def test_dispatch_knows_no_argument_of_an_op():
    """Nor an activation: what is checked, saved or differentiated under such a name is an op's own plumbing."""
    arguments = {a.name for op in dispatch.names() for a in dispatch.find(op).forms[""].arguments}
    own = sorted(name for name in arguments - COMMON if len(name) > 2)  # x and y are anyone's
    assert own
    for path in FILES:
        if path.parent.name == "dispatch":
            assert (path.name, named(words(path), own, "")) == (path.name, [])


def plumbing(op: str) -> set[str]:
    """The lines of code of an op's declaration and of its cuda.cu, but imports and what is too short to be a copy."""
    lines = set()
    folder = KERNELS / "ops" / op
    for path in (folder / "op.py", *folder.glob("cuda.cu")):
        for line in path.read_text().splitlines():
            code = re.sub(r"\s*(//|#\s).*", "", line).strip()
            if len(code) >= 30 and not code.startswith(("from ", "import ", "#include", '"""')):
                lines.add(code)
    return lines


@pytest.mark.parametrize("op", dispatch.ops())
def test_no_line_of_an_ops_plumbing_stands_in_a_shared_file(op):
    lines = plumbing(op)
    assert lines
    for path in FILES:
        shared = {line.strip() for line in path.read_text().splitlines()}
        assert (path.name, lines & shared) == (path.name, set())
