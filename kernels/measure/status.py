"""Which op was tested and measured on which GPU, and what changed since: `python -m kernels.measure status`.

--write puts tables into kernels/README.md: those of one GPU's records, whatever others are there. An op that it has no
record of, or one without a peer that another GPU's has, is shown as that GPU measured it, and its line then bears that
GPU's name. A peer is shown as it is fastest, and how that is stands in brackets.
"""

from __future__ import annotations

import argparse
import importlib
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import torch

from . import sources
from .cells import OURS, Row
from .judge import NEVER_SLOWER, best_set, is_variant, steady
from .records import README_GPU, RESULTS, failed, read, recorded_files, slug

KERNELS = sources.KERNELS
README = KERNELS / "README.md"
AUTOTUNED = "max-autotune"
# PyTorch's other ways to do what a column's peer does, by their names in the records.
OTHER_WAYS = {"eager": ("indexed", "searchsorted"), "torch.compile": (AUTOTUNED,)}
# Labels that are written otherwise in prose.
WORDS = {"sgd": "SGD", "tf32": "TF32"}
BEGIN, END = "<!-- begin: python -m kernels.measure status --write -->", "<!-- end -->"


def test_counts(op: str, results: Path, gpu: str | None) -> list[dict]:
    """The test counts of an op, one dict a GPU; gpu: of this one only."""
    entries = (json.loads(path.read_text()).get(op) for path in recorded_files("tests.json", results, gpu))
    return [entry for entry in entries if entry]


def records_of(op: str, results: Path, gpu: str | None = None) -> list[dict]:
    """The records of an op, one dict a GPU; gpu: of this one only."""
    return [read(path) for path in recorded_files(f"{op}.json", results, gpu)]


def for_readmes(op: str, results: Path) -> list[dict]:
    """The records that the READMEs show of an op: one whose peers are all there before one that lacks some."""
    records = records_of(op, results)
    own = [record for record in records if slug(record["GPU"]) == README_GPU]
    for record in own:
        more = [other for other in records if peers(op, other) > peers(op, record)]
        if more:
            return more
    return own or records


def peers(op: str, record: dict) -> set[str]:
    """The implementations that the op's kernels are shown beside."""
    return {row.implementation for row in shown(op, record)} - {*OURS}


def _elsewhere(record: dict) -> str:
    """", on H100 80GB HBM3" where the record is not of the READMEs' GPU."""
    return "" if slug(record["GPU"]) == README_GPU else f", on {record['GPU'].removeprefix('NVIDIA ')}"


def describe_tests(entries: Iterable[dict], op: str) -> str:
    """"H200 2026-01-31: 41 passed, sources changed since" of each entry, or "never"."""

    def counts(entry: dict) -> str:
        shown = (key for key in ("passed", "failed", "skipped") if entry[key] or key == "passed")
        return ": " + ", ".join(f"{entry[key]} {key}" for key in shown)

    return _describe(entries, op, counts, "sources", "tests")


def describe_measurements(entries: Iterable[dict], op: str) -> str:
    """The same of records: "H200 2026-01-31, without max-autotune, 2 rows of eager FAILED, bench changed since"."""

    def lacks(entry: dict) -> str:
        count, without = failed(entry), entry.get("without")
        whose = {row["implementation"] for row in entry["rows"] if row["match"].startswith("FAILED")}
        notes = ["--quick"] * entry["quick"]
        notes += [f"without {' and '.join(without)}"] if without else []
        notes += [f"{count} row{'s' * (count > 1)} of {' and '.join(sorted(whose))} FAILED"] if count else []
        return "".join(f", {note}" for note in notes)

    return _describe(entries, op, lacks, "sources", "bench")


def _describe(entries: Iterable[dict], op: str, what: Callable[[dict], str], *parts: str) -> str:
    runs = []
    for entry in entries:
        changed = sources.changed(op, entry, *parts)
        gpu = entry["GPU"].removeprefix("NVIDIA ")
        runs.append(f"{gpu} {entry['date']}{what(entry)}{f', {changed}' if changed else ''}")
    return "; ".join(runs) or "never"


def table(results: Path = RESULTS) -> str:
    """What `python -m kernels.measure status` prints: of every GPU."""
    lines = []
    for op in sources.ops():
        lines.append(op)
        lines.append(f"    tested    {describe_tests(test_counts(op, results, None), op)}")
        lines.append(f"    measured  {describe_measurements(records_of(op, results), op)}")
    return "\n".join([*lines, f"dispatch\n    {describe_dispatch(results)}"])


def describe_dispatch(results: Path) -> str:
    """How many runs came to the kernels by another way than today's: what a call cost in them is of that one."""
    runs = [
        (op, entry) for op in sources.ops() for entry in (*test_counts(op, results, None), *records_of(op, results))
    ]
    older = sum(sources.changed(op, entry, "dispatch") != "" for op, entry in runs)
    return f"in {older} of these {len(runs)} runs a call took another way from Python to the kernel than today's"


# ------------------------------------------------------------------------------------------------------------------
# The READMEs.


def readme_table(results: Path = RESULTS) -> str:
    """kernels/README.md's tables: the times; and what was tested and measured."""
    lines = ["| op | tested | measured |", "|---|---|---|"]
    for op in sources.ops():
        tests = test_counts(op, results, README_GPU) or test_counts(op, results, None)
        measured = describe_measurements(for_readmes(op, results), op)
        lines.append(f"| [{op}](ops/{op}/) | {describe_tests(tests, op)} | {measured} |")
    return "\n".join([result_table(results), "", *lines])


def result_table(results: Path = RESULTS) -> str:
    """The time of each op and dtype beside its peers; once an op, where the compiler stops."""
    names = {"eager": "eager", "torch.compile": "`torch.compile`", "triton": "our Triton", "cuda": "our CUDA"}
    lines, machines, notes = [], {}, []
    for op in sources.ops():
        stops = importlib.import_module(f"kernels.ops.{op}").STOPS
        for record in for_readmes(op, results)[:1]:
            copies = record["copy_tb_per_s"]
            if not steady(copies):
                notes.append(f"The copies of {op}'s run differ by more than 5 %: they are no yardstick.")
            cells: dict[tuple, dict[str, Row]] = {}
            for row in shown(op, record):
                cells.setdefault(tuple(row.labels.items()), {})[row.implementation] = row
            for rows in cells.values():
                what = case(op, next(iter(rows.values())))
                moved = next((row.bytes for row in rows.values() if row.bytes), None)
                limit = f"{moved / copies['limit'] / 1e6:.1f}" if moved and steady(copies) else "–"
                times = " | ".join(fastest_times(rows, names))
                lines.append(f"| [{op}](ops/{op}/): {what}{_elsewhere(record)} | {limit} | {times} | {stops} |")
                stops = "″"
                machine = f"{record['GPU']}, torch {record['torch']}, triton {record['triton']}"
                machines.setdefault(machine, set()).add(record["date"])
    head = ["µs on the GPU", "the bytes, at a copy's bandwidth", *names.values(), "where the compiler stops"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|", *lines]
    recorded = "; ".join(f"{machine}, {', '.join(sorted(dates))}" for machine, dates in sorted(machines.items()))
    return "\n".join([*lines, "", f"Recorded on {recorded or 'no GPU yet'}.", *notes])


def fastest_times(rows: Mapping[str, Row], names: Iterable[str]) -> list[str]:
    """The µs of these implementations; of a peer the fastest way, which is named, or the plain one, if that is not
    slower by more than NEVER_SLOWER."""

    def fastest(name: str) -> str:
        ways = [rows.get(name)] if name in OURS else [best_set(rows, way) for way in (name, *OTHER_WAYS.get(name, ()))]
        row = min((row for row in ways if row), key=lambda row: row.us_p50, default=None)
        if row is None:
            return "–"
        if (plain := rows.get(name)) and plain.us_p50 <= NEVER_SLOWER * row.us_p50:
            row = plain
        how = row.implementation.removeprefix(name).removeprefix(", ")
        return f"{row.us_p50:,.1f}" + f" ({how})" * bool(how)

    return [fastest(name) for name in names]


def case(op: str, row: Row) -> str:
    """The row's labels in words: CASE of the op's __init__.py. Beside the labels it may name {numbers}, what the
    products are of: TF32, or else the dtype."""
    words = {name: WORDS.get(value, value) for name, value in row.labels.items()}
    tf32 = row.dtype == torch.float32 and row.labels.get("precision") == "tf32"
    numbers = words["precision"] if tf32 else words.get("dtype")
    return importlib.import_module(f"kernels.ops.{op}").CASE.format(**words, numbers=numbers)


def shown(op: str, record: dict) -> list[Row]:
    """The functional forwards of the cells that have the labels SHOWN of the op's bench.py; those with a time. Where
    max-autotune is measured in a part of its own, it alone is taken from there."""
    wanted = importlib.import_module(f"kernels.ops.{op}.bench").SHOWN
    rows = (Row.of(flat) for flat in record["rows"])
    return [
        row
        for row in rows
        if row.part in ("bandwidth", "grid", "main")
        or ("autotune" in row.part and is_variant(row.implementation, AUTOTUNED))
        if row.form == "functional" and row.us_p50 and not row.failed
        if all(row.labels.get(name) == value for name, value in wanted.items())
    ]


def with_table(text: str, table: str) -> str:
    """A README's text with the table between its markers."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"the README must have the lines {BEGIN} and {END}")
    return f"{before}{begin}\n\n{table}\n\n{end}{after}"


def pages() -> dict[Path, str]:
    """The READMEs, each with its table of now."""
    return {README: with_table(README.read_text(), readme_table())}


def write() -> None:
    """Bring the READMEs' tables up to date."""
    for path, text in pages().items():
        path.write_text(text)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m kernels.measure status", description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="write the tables of kernels/README.md")
    if parser.parse_args(argv).write:
        write()
    print(table())
    return 0
