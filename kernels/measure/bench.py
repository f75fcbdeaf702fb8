"""What the ops cost on this GPU, beside their peers: `python -m kernels.measure bench [op …] [--save] [--quick]`.

GPU time: CUDA graphs of many calls on different inputs, each replay with a cold L2, divided by the calls (measuring.py,
clock.py). Time per call: calls from Python, or calls one by one between two events (latency.py). The limit: what a copy
on this GPU reaches in the same run, measured among the cells; if its copies differ by more than 5 %, the run says so
and is no yardstick.

A row is timed only if its output matches float64 eager before and after. What is measured stands in each op's bench.py,
as cells(quick), and what it must show as TARGETS. Without a GPU the recorded results are printed.

With --save an op's record is written once all of it is measured. A peer's row that FAILED is in it, without a time. If
one of ours FAILED, an older record in which none did stays, and what was measured stands beside it: <op>.failed.json.
After each part what there is stands in <op>.partial.json. A run that is stopped loses the part that it was at; with
--resume the next one takes the others from there, if machine, versions, options and code are the same
(partial_record.py). Git ignores both files.

An op may have a sweep besides, over more sizes: sweep() and SWEEP_TARGETS of its bench.py. `--sweep` measures it alone,
and its record is <op>_sweep.json.
"""

from __future__ import annotations

import argparse
import importlib
import math
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from itertools import groupby
from operator import attrgetter
from pathlib import Path

from .. import runtime
from . import sources
from .cells import OURS, Calls, Cell, FirstCall, Row, implementations, label
from .clock import Gpu
from .judge import COPIES_AGREE, steady, summary
from .measuring import measure, measure_calls
from .partial_record import PartialRecord
from .records import README_GPU, RESULTS, frame, load, of_cells, recorded, recorded_files, save

# What notebooks use stands here too.
__all__ = [
    "Calls", "Cell", "FirstCall", "Gpu", "Row", "frame", "implementations", "load", "main", "measure",
    "measure_calls", "of_cells", "ops", "recorded", "run", "save", "show", "with_rates",
]

CELLS_A_COPY = 8  # so many cells are measured between two copies
# An H200 copies in one of two states, in which it stays for seconds: at 4.28 or at 3.84 TB/s; kernels that move as many
# bytes do not know the slower one. So the first copy is the fastest of three, and one that is slower than the fastest
# so far is measured again, so many times; the record counts these.
FIRST_COPIES, COPY_TRIES, COPY_PAUSE = 3, 10, 0.3


def ops() -> list[str]:
    """The ops that have a benchmark."""
    return sorted(path.parent.name for path in sources.KERNELS.glob("ops/*/bench.py"))


def of(op: str):
    """The op's bench.py."""
    return importlib.import_module(f"kernels.ops.{op}.bench")


def record_of(op: str, sweep: bool) -> str:
    """The name of the record."""
    return f"{op}_sweep" if sweep else op


def targets(op: str, sweep: bool):
    return of(op).SWEEP_TARGETS if sweep else of(op).TARGETS


def measured(
    op: str, cells: Iterable[Cell | Calls | FirstCall], gpu: Gpu
) -> tuple[list[Row], list[float], int]:
    """(the cells' rows and their copies', the copies' TB/s, how many were measured again), printing as it goes."""
    rows, copies, slower = [], [], 0

    def copy() -> None:
        nonlocal slower
        tried = []
        for _ in range(COPY_TRIES if copies else FIRST_COPIES):
            if tried:
                time.sleep(COPY_PAUSE)
            tried.append(gpu.copy(op))
            print(line(tried[-1]), flush=True)
            if copies and not _rate(tried[-1]) * COPIES_AGREE < max(copies):
                break
        row = max(tried, key=_rate)
        slower += sum(_rate(each) * COPIES_AGREE < _rate(row) for each in tried)
        rows.append(row)
        copies.append(_rate(row))

    print(HEADER)
    part, start = None, time.monotonic()
    for index, cell in enumerate(cells):
        if index % CELLS_A_COPY == 0:
            copy()
        if part is not None and cell.part != part:
            print(f"# {op} {part}: {time.monotonic() - start:.0f} s", flush=True)
            start = time.monotonic()
        part = cell.part
        for row in measure(cell, gpu):
            rows.append(row)
            print(line(with_rates(row, copies[0])), flush=True)
        gpu.clear()
    print(f"# {op} {part}: {time.monotonic() - start:.0f} s", flush=True)
    copy()
    return rows, copies, slower


def run(
    op: str, gpu: Gpu, *, quick: bool = False, without: Collection[str] = (), sweep: bool = False,
    partial: PartialRecord | None = None,
) -> dict:
    """Measure one op, or its sweep, printing as it goes; returns the record that --save writes. without: these
    implementations. partial: where each part is kept once it is measured."""
    cells, skipped, parts = of(op).sweep() if sweep else of(op).cells(quick), {}, []
    versions, hashes = runtime.versions(), sources.hashes(op, "sources", "dispatch", "bench")
    for index, (part, of_part) in enumerate(groupby(_installed(_without(cells, without), skipped), attrgetter("part"))):
        of_part = [*of_part]

        def measure_part(cells: list = of_part) -> dict:
            steady = _Steady(gpu, max((copy for part in parts for copy in part["copies"]), default=0.0))
            rows, copies, slower = measured(op, cells, steady)
            return {"rows": [row.flat() for row in rows], "copies": copies, "slower": slower + steady.slower}

        parts.append(partial.part(f"{part} {index}", measure_part) if partial else measure_part())
    for text in skips_in_words(skipped):
        print(f"# {op}: {text}")
    copies = [copy for part in parts for copy in part["copies"]]
    limit = max(copies)
    return {
        "op": record_of(op, sweep),
        **{name: versions[name] for name in ("GPU", "driver", "torch", "triton", "CUDA", "Python")},
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "quick": quick,
        **({"without": sorted(without)} if without else {}),
        **hashes,
        "copy_tb_per_s": {
            "before": copies[0], "after": copies[-1], "limit": limit, "all": copies,
            "measured_again": sum(part["slower"] for part in parts),
        },
        "rows": [with_rates(Row.of(flat), limit).flat() for part in parts for flat in part["rows"]],
    }


class _Steady:
    """The GPU, whose copies are measured again where they are slower than the fastest of the parts before, in TB/s."""

    def __init__(self, gpu: Gpu, fastest: float) -> None:
        self._gpu, self._fastest, self.slower = gpu, fastest, 0

    def __getattr__(self, name: str):
        return getattr(self._gpu, name)

    def copy(self, op: str) -> Row:
        for left in reversed(range(COPY_TRIES)):
            row = self._gpu.copy(op)
            if not left or not _rate(row) * COPIES_AGREE < self._fastest:
                return row
            self.slower += 1
            time.sleep(COPY_PAUSE)


def is_ours(row: Mapping) -> bool:
    """Whether a row is of a kernel of ours, however it is called, or of the copy that all are held against."""
    return row["implementation"].partition(", ")[0] in (*OURS, "auto") or row["part"] == "copy"


def _without(cells: Iterable[Cell | Calls | FirstCall], names: Collection[str]) -> Iterator[Cell | Calls | FirstCall]:
    """The cells without these implementations, whatever stands behind their names; not those where ours are left alone
    that were to be compared."""
    for cell in cells:
        if isinstance(cell, Cell):
            out = [who for who in cell.implementations if any(f"{who}, ".startswith(f"{name}, ") for name in names)]
            less = cell.without(out)
            if len(less.implementations) < len(cell.implementations) and {*less.implementations} <= {*OURS, "auto"}:
                continue
            cell = less
        yield cell


def _installed(
    cells: Iterable[Cell | Calls | FirstCall], skipped: dict[str, str]
) -> Iterator[Cell | Calls | FirstCall]:
    """The cells without the implementations whose package is not installed, which are put into `skipped`."""
    for cell in cells:
        if isinstance(cell, Cell) and (missing := cell.missing()):
            skipped.update(missing)
            cell = cell.without(missing)
        yield cell


def skips_in_words(skipped: Mapping[str, str]) -> list[str]:
    """A line for each package that is missing: how many peers need it; skipped: implementation → package."""
    counts = Counter(skipped.values())
    return [f"{n} peer{'s' * (n > 1)} skipped: {package} is not installed" for package, n in counts.items()]


def _rate(row: Row) -> float:
    return row.bytes / row.us_p50 / 1e6 if row.us_p50 else math.nan


def with_rates(row: Row, copy: float) -> Row:
    """The row with TB/s, and % of the copy bandwidth `copy` in TB/s, where it has a time on the GPU."""
    if row.us_p50 is None or row.bytes is None:
        return row
    return replace(row, tb_per_s=_rate(row), percent_of_copy=100 * _rate(row) / copy)


def _columns(*values: str) -> str:
    widths = (18, 15, 13, 28, 8, 17, 8, 17, 10, 9, 6, 6)
    return " ".join(f"{v:<{w}}" if i < 4 else f"{v:>{w}}" for i, (v, w) in enumerate(zip(values, widths, strict=True)))


HEADER = (
    _columns(
        "op", "form", "implement.", "cell",
        "µs p50", "p20 – p80", "µs call", "low – high", "MB", "MFLOP", "TB/s", "% copy",
    )
    + "  match"
)


def line(row: Row) -> str:
    """The row as a line of the printed table."""

    def number(value: float | None) -> str:
        return "" if value is None else f"{value:.4g}"

    def between(low: float | None, high: float | None) -> str:
        return "" if low is None else f"{number(low)} – {number(high)}"

    text = _columns(
        row.op, row.form, row.implementation, label(row),
        number(row.us_p50), between(row.us_p20, row.us_p80),
        number(row.call_us), between(row.call_us_low, row.call_us_high),
        number(row.bytes and row.bytes / 1e6), number(row.flops and row.flops / 1e6),
        number(row.tb_per_s), number(row.percent_of_copy),
    )
    notes = [f"mean {row.call_us_mean:.4g}, p99 {row.call_us_p99:.4g} µs a call"] if row.call_us_p99 else []
    note = "; ".join([*notes, *filter(None, [row.note])])
    return f"{text}  {row.match}{f' ({note})' if note else ''}"


def copies_in_words(record: dict) -> str:
    """What the run's copies reached, and whether they agree."""
    copy = record["copy_tb_per_s"]
    bandwidths = copy.get("all", [copy["before"], copy["after"]])
    text = f"{record['op']}: {len(bandwidths)} copies, {min(bandwidths):.3f} to {max(bandwidths):.3f} TB/s"
    apart = max(bandwidths) / min(bandwidths) - 1
    return text if steady(copy) else f"{text}: they differ by {apart:.1%} and are no yardstick"


def show(op: str, gpu: str = README_GPU, results: Path = RESULTS, sweep: bool = False) -> None:
    """Print the recorded table, labelled as recorded."""
    try:
        record = load(record_of(op, sweep), gpu, results)
    except FileNotFoundError as error:
        print(error)
        return
    versions = ", ".join(f"{name} {record[name]}" for name in ("driver", "CUDA", "torch", "triton", "Python"))
    quick = ", --quick" if record["quick"] else ""
    print(f"{record['op']}, recorded on {record['GPU']}, {record['date']}{quick} ({versions});")
    print(f"{sources.changed(op, record, 'sources', 'dispatch', 'bench') or 'nothing has changed since'}.")
    print(HEADER)
    for row in record["rows"]:
        print(line(Row.of(row)))
    print(copies_in_words(record), *summary(record, targets(op, sweep)), sep="\n")


def main(argv: list[str] | None = None) -> int:
    prog, description = "python -m kernels.measure bench", "What the ops cost on this GPU."
    parser = argparse.ArgumentParser(prog=prog, description=description)
    parser.add_argument("op", nargs="*", help=f"default: all ({', '.join(ops())})")
    parser.add_argument("--save", action="store_true", help="record in traces/results/<gpu>/<op>.json")
    parser.add_argument("--resume", action="store_true", help="with --save: take the parts of a run that was stopped")
    parser.add_argument("--quick", action="store_true", help="a few cells, in under a minute")
    parser.add_argument("--sweep", action="store_true", help="the sweeps of ops in place of their cells")
    parser.add_argument("--without", metavar="NAME,…", default="", help="implementations to leave out: max-autotune")
    parser.add_argument("--recorded", metavar="GPU", help="measure nothing, print what was recorded on this GPU")
    arguments = parser.parse_args(argv)
    if arguments.save and arguments.quick:
        parser.error("--quick measures a part of the cells: it is not saved over the record of all")
    if arguments.resume and not arguments.save:
        parser.error("--resume: a run without --save leaves nothing, and takes nothing")
    unknown = [op for op in arguments.op if op not in ops()]
    if unknown:
        parser.error(f"unknown op {', '.join(unknown)}: expected one of {', '.join(ops())}")
    chosen = arguments.op or ops()
    if arguments.sweep:
        if arguments.quick:
            parser.error("--quick is of an op's cells, which --sweep leaves out")
        if none := [op for op in arguments.op if not hasattr(of(op), "sweep")]:
            parser.error(f"{', '.join(none)}: no sweep; without --sweep the cells are measured")
        chosen = [op for op in chosen if hasattr(of(op), "sweep")]
    if arguments.recorded or runtime.device().type != "cuda":
        if not arguments.recorded:
            files = (file for op in chosen for file in recorded_files(f"{record_of(op, arguments.sweep)}.json"))
            where = ", ".join(sorted({file.parent.name for file in files}))
            print(f"No GPU here: nothing is measured. What was recorded (--recorded: {where}):\n")
        for op in chosen:
            show(op, arguments.recorded or README_GPU, sweep=arguments.sweep)
        return 0
    gpu, records, start = Gpu(), [], time.monotonic()
    without = [*filter(None, arguments.without.split(","))]
    for op in chosen:
        options, partial = {"without": without, "sweep": arguments.sweep}, None
        if arguments.save:
            name = record_of(op, arguments.sweep)
            partial = PartialRecord(name, [sources.KERNELS], resume=arguments.resume, **options)
        records.append(run(op, gpu, quick=arguments.quick, **options, partial=partial))
        if arguments.save:
            print(save(records[-1], is_ours=is_ours), flush=True)
    print(f"\n{records[0]['GPU']}, torch {records[0]['torch']}; {time.monotonic() - start:.0f} s in all")
    for op, record in zip(chosen, records, strict=True):
        print(copies_in_words(record), *summary(record, targets(op, arguments.sweep)), sep="\n")
    return int(any(row["match"].startswith("FAILED") for record in records for row in record["rows"]))
