"""The pages for readers: their commands and links exist, and traces/README.md has a line for each record."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pytest

from kernels.measure import sources
from kernels.measure.records import FAILED, PARTIAL

ROOT = Path(__file__).resolve().parent.parent
TRACES = ROOT / "traces"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("[a-z]*/README.md")])


def test_there_are_pages():
    assert {path.relative_to(ROOT).as_posix() for path in PAGES} >= {"README.md", "CONTRIBUTING.md", "traces/README.md"}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_commands_and_links_of_a_page_exist(page):
    text = page.read_text()
    prose = re.sub(r"```.*?```", "", text, flags=re.S)
    links = [link for link in re.findall(r"\]\(([^)#]+)[^)]*\)", prose) if not link.startswith("http")]
    assert [link for link in links if not (page.parent / link).exists()] == []
    modules = set(re.findall(r"python3? -m ([\w.]+)", text))
    assert [name for name in modules if not importlib.util.find_spec(name)] == []
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    assert set(re.findall(r"(?:^\$ |`)make ([a-z-]+)", text, re.M)) <= targets


def test_the_front_page_is_short():
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 130
    assert [line for line in lines if len(line) > 122 and not line.startswith(("|", "!["))] == []


def lines_of_traces() -> dict[str, tuple[str, str]]:
    """{file, as traces/README.md names it: (its command, its notebook's stem or "")}."""
    line = r"^\| `((?:results|compiled)/[^`]+)` \| `([^`]+)` \| (?:–|\[\d\d\]\(\.\./notebooks/(\w+)\.ipynb\)) \|"
    return {file: rest for file, *rest in re.findall(line, (TRACES / "README.md").read_text(), re.M)}


def name_of(path: Path) -> str:
    """As the lines name a file: the GPU's folder, an op and a version of torch stand for all of their kind."""
    is_of_op = path.stem.removesuffix("_sweep") in sources.ops()
    stem = "OP" if is_of_op else re.sub(r"^torch-[\d.]+$", "torch-VERSION", path.stem)
    folder = path.parent.relative_to(TRACES).as_posix()
    return f"{re.sub('^results/.+', 'results/<gpu>', folder)}/{stem}.json"


def test_every_record_has_its_command_and_notebook_in_the_table():
    lines = lines_of_traces()
    records = sorted([*TRACES.glob("results/**/*.json"), *TRACES.glob("compiled/*.json")])
    records = [path for path in records if Path(path.stem).suffix not in (FAILED, PARTIAL)]  # which git ignores
    assert {name_of(path) for path in records} == set(lines)
    for path in records:
        command, notebook = lines[name_of(path)]
        assert command == json.loads(path.read_text()).get("command", command), path.name
        lesson = re.search(r"(?:lessons\.n|lecture\.py )(\d\d)", command)
        assert notebook[:2] == (lesson[1] if lesson else ""), path.name
