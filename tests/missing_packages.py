"""A pytest plugin for where a package of requirements.txt is not installed: what fails for want of a package is a skip
that names it. Where all are installed a module that is missing is a failure, for then its name is wrong."""

from __future__ import annotations

import importlib.util
import re
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

REQUIREMENTS = Path(__file__).parent.parent / "requirements.txt"
OURS = ("data", "kernels", "lessons", "model")


def are_all_installed() -> bool:
    for line in REQUIREMENTS.read_text().splitlines():
        try:
            version(line.split("==")[0])
        except PackageNotFoundError:
            return False
    return True


def missing_package(text: str) -> str:
    """The package of others for want of which what printed the text failed, or ""."""
    names = re.findall(r"No module named '([\w.]+)'", text)
    packages = [name.split(".")[0] for name in names]
    # What this Python has is not missing, however the test came to look for it.
    missing = [name for name in packages if name not in OURS and importlib.util.find_spec(name) is None]
    return missing[-1] if missing else ""


def _skip(report: pytest.CollectReport | pytest.TestReport, text: str, path: Path, line: int) -> None:
    if report.failed and (package := missing_package(text)):
        report.outcome = "skipped"
        report.longrepr = (str(path), line, f"Skipped: the package {package} is missing")


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector):
    report = yield
    _skip(report, str(report.longrepr), collector.path, 1)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo):
    report = yield
    frames = [entry.frame for entry in call.excinfo.traceback] if call.excinfo else []
    values = [value for frame in frames for value in frame.f_locals.values()]
    # A report shortens what a process printed.
    printed = [f"{value.stdout}{value.stderr}" for value in values if isinstance(value, subprocess.CompletedProcess)]
    _skip(report, "\n".join([*printed, str(report.longrepr)]), item.path, (item.location[1] or 0) + 1)
    return report
