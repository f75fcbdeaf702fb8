"""Every notebook prints and draws what is stored; every puzzle's answer passes, and each wrong answer is turned down
with the words that it deserves. lessons/shared/answers.py says where the answers are and how they are written.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest

from kernels.check import fresh
from lessons.shared import answers

for package in ("nbformat", "nbclient", "ipykernel"):
    pytest.importorskip(package)
image = pytest.importorskip("matplotlib.image")

ROOT = Path(__file__).resolve().parent.parent
ROOMS = sorted((ROOT / "notebooks" / "lessons").glob("n[0-9]*"))
ENOUGH = 5  # wrong answers a puzzle

# What notebooks import: one process does so, and forks for each.
IMPORTED = "kernels, torch, triton, matplotlib.pyplot, pandas, torch._inductor.compile_fx, ipykernel.kernelapp"
KERNEL = """import gc, os, sys
from ipykernel import kernelapp
os.chdir("notebooks")
gc.freeze()
gc.set_threshold(20_000, 10, 10)  # nor is what stays searched for garbage again and again
kernelapp.launch_new_instance(argv=["-f", sys.argv[1], "--HistoryManager.hist_file=:memory:", "--matplotlib=inline"])
"""


@contextmanager
def forked_kernel(client, folder: Path, first_cell: str) -> Iterator[None]:
    """In here the client executes cells in a kernel of the notebook's own, which has imported what notebooks import, in
    the environment that the first cell sets."""
    # What a reader's kernel, where nothing is imported, would miss.
    assert re.findall(r"^(?:from|import) (?!os\b)(\w+)", first_cell, flags=re.M)[0] == "kernels"
    from jupyter_client import AsyncKernelClient
    from jupyter_client.connect import write_connection_file
    from jupyter_client.utils import run_sync

    file, _ = write_connection_file(str(folder / "kernel.json"))
    kernel = client.kc = AsyncKernelClient(connection_file=file)
    kernel.allow_stdin = False
    kernel.load_connection_file()
    forks = {
        "imported": IMPORTED,
        "started": dict(re.findall(r'^os\.environ\["(\w+)"\] = "(\w+)"', first_cell, flags=re.M)),
    }
    fresh.run("", **forks)  # a kernel that is not there yet has no heartbeat, and counts as dead
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(fresh.run, KERNEL, file, **forks)
        kernel.start_channels()
        try:
            run_sync(kernel.wait_for_ready)(timeout=120)
            yield
        finally:
            kernel.shutdown()
            ended = ended.result()
            kernel.stop_channels()
    assert ended.returncode == 0, ended.stderr


def printed(cell) -> str:
    outputs = cell.get("outputs", [])
    return "".join(output.get("text", "") for output in outputs if output.output_type == "stream")


def drawn(cell) -> list[np.ndarray]:
    """A cell's pictures: [height, width, 4], from 0 to 1."""
    pictures = [output.data["image/png"] for output in cell.get("outputs", []) if "image/png" in output.get("data", {})]
    return [image.imread(BytesIO(b64decode(picture))) for picture in pictures]


def are_alike(one: list[np.ndarray], other: list[np.ndarray]) -> bool:
    """Whether these are the same pictures, but for what machines round differently at the edges of a letter."""
    return [a.shape for a in one] == [b.shape for b in other] and all(
        (abs(a - b) > 0.1).mean() < 1e-3 for a, b in zip(one, other, strict=True)
    )


def is_tagged(cell, tag: str) -> bool:
    return tag in cell.metadata.get("tags", [])


def using_answers(cells: list) -> set[str]:
    """The ids of the cells that name what a puzzle's cell defines, the puzzles' own not among them."""
    text = "\n".join(cell.source for cell in cells if is_tagged(cell, "puzzle"))
    names = {name for pair in re.findall(r"^def (\w+)|^(\w+) = ", text, flags=re.M) for name in pair if name}
    return {cell.id for cell in cells if names & {*re.findall(r"\w+", cell.source)} and not is_tagged(cell, "puzzle")}


@pytest.mark.slow
@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.name)
def test_a_notebook_and_its_answers(room, tmp_path, request):
    """The notebook runs once, as a reader has it who solves nothing: cells tagged nbval-check-output print and draw
    what is stored. Then each puzzle is tried with all wrong answers and answered, and the cells that use answers run
    again."""
    from lecture import client_of  # of notebooks/

    client = client_of(ROOT / "notebooks" / f"{room.name[1:]}.ipynb")
    cells = [cell for cell in client.nb.cells if cell.cell_type == "code"]
    right, wrong = answers.solutions(room), answers.others(room)
    puzzles = {cell.id for cell in cells if is_tagged(cell, "puzzle")}
    assert right.keys() == puzzles
    assert {answer.puzzle for answer in wrong} == puzzles
    complaints = []
    if any("build_runner(" in cell.source for cell in cells):  # not while another test builds them
        with suppress(pytest.skip.Exception):
            request.getfixturevalue("serving_programs")

    def execute(cell) -> str:
        client.execute_cell(cell, client.nb.cells.index(cell))
        return printed(cell)

    with forked_kernel(client, tmp_path, cells[0].source):
        for cell in cells:
            stored, pictures, got = printed(cell), drawn(cell), execute(cell)
            if is_tagged(cell, "nbval-check-output") and got != stored:
                complaints.append(f"{cell.id}: stored is {stored[:500]!r}, printed {got[:500]!r}")
            if is_tagged(cell, "nbval-check-output") and not are_alike(pictures, drawn(cell)):
                complaints.append(f"{cell.id}: it draws another picture than is stored")
            if cell.id in puzzles and not re.search("^not yet: ", got, flags=re.M):
                complaints.append(f"{cell.id}, as it stands: {got[:500]}")
        with_answers = using_answers(cells)
        for cell in cells:
            for answer in [*(answer for answer in wrong if answer.puzzle == cell.id), right.get(cell.id)]:
                if answer:
                    cell.source = answer.source
                    if not re.search(answer.pattern, got := execute(cell), flags=re.M):
                        complaints.append(
                            f"{cell.id}, {answer.what}: expected {answer.pattern!r}, got: {got[:500]}"
                        )
            if cell.id in with_answers and "not yet: " in (got := execute(cell)):
                complaints.append(f"{cell.id}, with all puzzles before it answered: {got[:500]}")
    assert not complaints, "\n".join(complaints)


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.name)
def test_there_are_enough_wrong_answers(room):
    others = answers.others(room)
    for puzzle in answers.solutions(room):
        mine = [answer for answer in others if answer.puzzle == puzzle]
        wrong = [answer for answer in mine if answer.pattern != answers.PASSED]
        assert len(wrong) >= ENOUGH, f"{puzzle}: {len(wrong)} wrong answers"
        assert len(mine) > len(wrong), f"{puzzle}: no unusual right answer"


def test_a_picture_of_older_code_is_told():
    picture = np.ones((100, 200, 4), np.float32)
    edge, moved = picture.copy(), picture.copy()
    edge[0, :3] -= 0.5
    moved[:, 50], moved[:, 60] = 0.0, 0.0
    assert are_alike([picture], [edge])
    assert not are_alike([picture], [moved])
    assert not are_alike([picture], [picture[:, 1:]])
    assert not are_alike([picture], [])


TEXT = "def f(x):\n    a = x\n\n    return a"


@pytest.mark.parametrize(
    ("edits", "becomes"),
    [
        ("-    a = x\n+    a = x + 1", "def f(x):\n    a = x + 1\n\n    return a"),
        ("-    a = x\n-\n\n-    return a\n+    return x", "def f(x):\n    return x"),
        (" def f(x):\n+    # first", "def f(x):\n    # first\n    a = x\n\n    return a"),
        ("~ a = x ⇒ a = x + 1", "def f(x):\n    a = x + 1\n\n    return a"),
        ("~ x ⇒ y\n~ x ⇒ y\n\n-    return a\n+    return y", "def f(y):\n    a = y\n\n    return y"),
    ],
)
def test_an_edit_is_made_where_its_lines_stand(edits, becomes):
    assert answers.edited(TEXT, edits) == becomes


@pytest.mark.parametrize(
    "edits",
    [
        "-    b = x\n+    b = 1",
        "-    return a\n+    return 1\n\n-    a = x",
        "~ b = x ⇒ b = 1",
        "~ return a ⇒ return 1\n~ a = x ⇒ a = 1",
    ],
)
def test_an_edit_that_fits_nowhere_is_named(edits):
    with pytest.raises(ValueError, match=r"these lines do not stand there:\n[-~]"):
        answers.edited(TEXT, edits)
