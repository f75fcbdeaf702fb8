"""What pytest reports: the outcome of each test, recorded for each op."""

from __future__ import annotations

import ast
import json
import re
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from .. import runtime
from ..measure import records, sources

OUTCOMES = ("passed", "failed", "skipped")


@dataclass
class Suite:
    """What pytest's junit files say: (test, its op or '', passed | failed | skipped, reason) for each test; a file that
    was not collected is one."""

    tests: list[tuple[str, str, str, str]] = field(default_factory=list)

    def counts(self, op: str | None = None) -> dict[str, int]:
        """{passed, failed, skipped}; op: of its own tests, those in kernels/ops/<op>/."""
        numbers = Counter(outcome for _, own, outcome, _ in self.tests if op in (None, own))
        return {outcome: numbers[outcome] for outcome in OUTCOMES}

    def failed(self) -> list[str]:
        """A line for each test that failed."""
        return [f"{name}: {why.partition(chr(10))[0]}" for name, _, how, why in self.tests if how == "failed"]

    def skipped(self) -> list[str]:
        """A line for each reason for which tests were skipped."""
        reasons = Counter(why for _, _, how, why in self.tests if how == "skipped")
        return [f"{count} tests: {why}" for why, count in reasons.items()]

    def without_gpu(self, op: str) -> bool:
        """Whether a test of the op was skipped for want of a GPU: then none of them ran on one."""
        return any(own == op and how == "skipped" and "no CUDA device" in why for _, own, how, why in self.tests)


def read(paths: Iterable[Path]) -> Suite:
    """The Suite of pytest's --junitxml files: of processes that share the tests, or collect all and run some."""
    suite = Suite()
    for path in paths:
        for case in ElementTree.parse(path).iter("testcase"):
            _add(suite, case)
    # What is not collected, every process says.
    return Suite([*dict.fromkeys(suite.tests)])


def _add(suite: Suite, case: ElementTree.Element) -> None:
    name = f"{case.get('classname')}.{case.get('name')}".strip(".")
    outcome, reason = "passed", ""
    for tag, means in (("skipped", "skipped"), ("failure", "failed"), ("error", "failed")):
        if (element := case.find(tag)) is not None:
            outcome, reason = means, element.get("message") or ""
            if reason == "collection skipped":
                _file, _line, reason = ast.literal_eval(element.text)
                reason = reason.removeprefix("Skipped: ")
    op = re.match(r"kernels\.ops\.(\w+)\.test_", name)
    suite.tests.append((name, op[1] if op else "", outcome, reason))


def record(suite: Suite, results: Path = records.RESULTS) -> list[str]:
    """Write results/<gpu>/tests.json: for each op its counts, and what they were counted on.

    Returns a line for each op that keeps the entry that it had: nothing passed, its tests were skipped for want of a
    GPU, or some failed and the entry is good.
    """
    versions = runtime.versions()
    path = results / records.slug(versions["GPU"]) / "tests.json"
    entries, kept = json.loads(path.read_text()) if path.exists() else {}, []
    for op in sources.ops():
        counts, before = suite.counts(op), entries.get(op)
        if not counts["passed"] or suite.without_gpu(op) or (counts["failed"] and before and not before["failed"]):
            if before:
                now = ", ".join(f"{count} {word}" for word, count in counts.items())
                kept.append(f"{op}: the counts of {before['date']} are kept; now {now}")
            continue
        entries[op] = {
            **counts,
            **{name: versions[name] for name in ("GPU", "driver", "torch", "triton", "CUDA", "Python")},
            "date": datetime.now(UTC).strftime("%Y-%m-%d"),
            **sources.hashes(op, "sources", "dispatch", "tests"),
        }
    records.write(path, json.dumps(entries, indent=1) + "\n")
    return kept
