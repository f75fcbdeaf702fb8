"""A pytest plugin: which tests run on a GPU, and in which of several processes.

-p kernels.gpu_run.which_tests; PARTS names a folder.

Left out are tests that ask nothing of a GPU and that make test or make test-slow runs: those marked `slow` that belong
to no op, and those of an op that are marked `host`. What is heavy, and what the sanitizer runs, steps.py leaves to its
other steps.

Every process collects all tests and cuts them into the same parts. It runs a part if it is the first to take it, by
making the part's file in the folder; so a process that is done takes the next part, and each test runs once. Needs no
package beside pytest.
"""

from __future__ import annotations

import gc
import hashlib
import os
import sys
from itertools import chain, zip_longest
from pathlib import Path

import pytest

PARTS = "FUSED_KERNELS_PARTS"
TESTS_A_PART = 6


def parts(tests: list[pytest.Item]) -> list[list[pytest.Item]]:
    """The tests in parts, in the order in which they are to be taken.

    A file is cut into parts of TESTS_A_PART, but for one whose tests share a fixture: that is one part. First come
    these whole files, those of most tests first: one of them takes longest. Then comes the first part of each op's
    file, which builds the op's libraries: another part would wait for them. What is left comes last, by turns: small
    parts, with which the processes end together.
    """
    files: dict[Path, list[pytest.Item]] = {}
    for test in tests:
        files.setdefault(test.path, []).append(test)
    whole = sorted(filter(_share_a_fixture, files.values()), key=len, reverse=True)
    cut = [
        [tests[i : i + TESTS_A_PART] for i in range(0, len(tests), TESTS_A_PART)]
        for tests in files.values() if not _share_a_fixture(tests)
    ]  # fmt: skip
    first = [pieces.pop(0) for pieces in cut if _is_of_an_op(pieces[0][0])]
    return [*whole, *first, *filter(None, chain(*zip_longest(*cut)))]


def _share_a_fixture(tests: list[pytest.Item]) -> bool:
    """Whether these, of one file, have a fixture that is made once for several of them, but for a session's."""
    fixtures = chain.from_iterable(test._fixtureinfo.name2fixturedefs.values() for test in tests)
    return any(fixture.scope in ("class", "module", "package") for fixture in chain.from_iterable(fixtures))


def _is_of_an_op(test: pytest.Item) -> bool:
    return "ops" in test.path.parts


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    out = [test for test in items if _asks_nothing_of_a_gpu(test)]
    config.hook.pytest_deselected(items=out)
    items[:] = [test for test in items if test not in out]


def _asks_nothing_of_a_gpu(test: pytest.Item) -> bool:
    return bool(test.get_closest_marker("host" if _is_of_an_op(test) else "slow"))


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """pytest's own loop, over the parts that this process takes."""
    if session.config.option.collectonly:
        return None
    folder = Path(os.environ[PARTS])
    _expect_the_same_tests(session.items, folder)
    for number, tests in enumerate(parts(session.items)):
        if not _make(folder / f"{number:03}"):
            continue
        for test, following in zip(tests, [*tests[1:], None], strict=True):
            test.config.hook.pytest_runtest_protocol(item=test, nextitem=following)
            if session.shouldstop or session.shouldfail:
                raise session.Interrupted(session.shouldstop or session.shouldfail)
        _give_memory_back()
    return True


def _expect_the_same_tests(tests: list[pytest.Item], folder: Path) -> None:
    """Else the processes' parts differ, and a test could be in none of those that are taken."""
    names = "\n".join(test.nodeid for test in tests)
    file = folder / f"collected-{hashlib.sha256(names.encode()).hexdigest()}"
    own = folder / f"{file.name}.{os.getpid()}"
    own.write_text(names)
    own.rename(file)
    for other in sorted(folder.glob("collected-" + "?" * 64)):
        if other != file:
            mine, theirs = names.split("\n"), other.read_text().split("\n")
            first = next((pair for pair in zip_longest(mine, theirs) if pair[0] != pair[1]), "")
            raise pytest.UsageError(f"the processes that share the tests have collected different ones: {first}")


def _make(path: Path) -> bool:
    """Whether this process made the file."""
    try:
        path.open("x").close()
    except FileExistsError:
        return False
    return True


def _give_memory_back() -> None:
    """The other processes need the GPU's memory that PyTorch keeps."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
