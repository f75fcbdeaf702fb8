"""What a training step costs on 1 to 512 GPUs, by arithmetic: `python -m model.bench scale`.

For each model a table: the bytes through a GPU's NVLink (in a node of 8) and its network card (past it), of the busiest
GPU and of the mean one; the look-ups of the busiest GPU over the mean; the memory of the fullest; the parts of a step,
which add up, as nothing overlaps; and the wires' share of it. The last column says what a line is worth:

    record   this step was measured, on one GPU
    records  the GPU's and the wires' figures were measured, and the step is their sum
    paper    the wires are as their makers describe them, with assumed latencies; or tables are cut, which no record is
    least    and no step of this model and batch is recorded: products take what large ones do, so the dense part is the
             least that it can be. A small model takes many times as long.

The figures and where they come from stand below the tables.

The models are this repository's presets, and dcnv2, MLPerf's DLRM-DCNv2 as its training reference has it. Without
options: `main` and dcnv2, each with a small and a large batch. dcnv2's own batch is of all GPUs, a preset's of each.

--measure runs the steps and their exchanges on the GPUs of this host: on one, by a process and by a single rank, and
on all. --measured compares with its record, whose exchanges replace the wires' figures, and whose single rank's steps
those of a process.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from data.cli import Parser, UserError, user_errors
from data.synthetic import FULL as ALL_IDS
from kernels import runtime
from kernels.measure import records
from model.bench.scale import measured, measuring, picture
from model.bench.scale.cases import NAMES, Case, case, shown
from model.bench.scale.cost import PLACED, Estimate, Layout, estimate
from model.bench.scale.measured import VECTOR_BYTES
from model.bench.scale.measuring import RECORD
from model.bench.scale.rates import Figure, Rates, recorded, with_measured
from model.config import Precision, TableOptimizer
from model.device import choose
from model.profiling.tables import TRACES
from model.sharding.pieces import Wire

PROG = "python -m model.bench scale"
GPUS, COLUMNS = (1, 2, 8, 64, 512), (1, 4)
HEAD = ("GPUs", "blocks", "rows a GPU", "NVLink MB", "network MB", "look-ups", "GB", "dense", "tables", "ids",
        "vectors", "all-reduce", "latency", "step µs", "M rows/s", "wires", "from")


def title(model: Case) -> str:
    """What a model's table is of."""
    batch = f"{model.batch:,} rows a step, of {'each GPU' if model.per_gpu else 'all GPUs'}"
    return (
        f"{model.name}: {len(model.rows)} tables, {sum(model.rows):,} rows of {model.dim} numbers, "
        f"{model.table_bytes / 1e9:.1f} GB in float32; {sum(model.ids)} ids a row; {model.parameters:,} "
        f"parameters beside them; {batch}, {model.precision}, {model.table_optimizer}"
    )


def table(estimates: Sequence[Estimate]) -> str:
    """A line an estimate, in Markdown; µs where nothing else is said. vectors: there and, as gradients, back."""
    lines = [[_cell(name, one) for name in HEAD] for one in estimates]
    widths = [max(map(len, column)) for column in zip(HEAD, *lines, strict=True)]
    rows = [HEAD, ["-" * width for width in widths], *lines]
    return "\n".join(
        "| " + " | ".join(text.rjust(width) for text, width in zip(row, widths, strict=True)) + " |" for row in rows
    )


def _cell(name: str, one: Estimate) -> str:
    parts, layout = one.parts, one.layout
    match name:
        case "GPUs":
            return f"{layout.gpus}" + "†" * bool(one.idle)
        case "blocks":
            return f"{layout.columns}"
        case "rows a GPU":
            return f"{layout.rows:,}"
        case "NVLink MB":
            return _busiest(one.near, one.near_mean)
        case "network MB":
            return _busiest(one.far, one.far_mean)
        case "look-ups":
            return f"{one.busiest:.1f}×"
        case "GB":
            return f"{one.fullest / 1e9:,.1f}" + "!" * (not one.fits)
        case "vectors":
            return f"{1e6 * (parts['vectors'] + parts['gradients']):,.0f}"
        case "step µs":
            return f"{1e6 * one.seconds:,.0f}"
        case "M rows/s":
            return f"{one.rows_per_second / 1e6:,.1f}"
        case "wires":
            return f"{one.wires:.0%}"
        case "from":
            return one.origin
    return f"{1e6 * parts[name]:,.0f}"


def _busiest(most: float, mean: float) -> str:
    return f"{most / 1e6:,.1f} ({mean / 1e6:,.1f})" if most else "–"


def origins(models: Sequence[Case], rates: Rates) -> list[str]:
    """The figures behind the models' estimates, a line each, and where they come from."""
    wires = rates.wires
    figures: list[tuple[str, Figure]] = [
        ("NVLink, one way", wires.nvlink), ("network, one way", wires.network),
        ("a collective in a node", wires.latency), ("a collective past it", wires.far_latency),
        ("and for each GPU", wires.per_peer), ("copy", rates.copy), ("memory", rates.memory),
    ]
    figures += [(f"{precision} products", rates.products[precision])
                for precision in dict.fromkeys(model.precision for model in models)]
    keys = {(model.table_optimizer, model.precision, model.batch) for model in models if model.recorded}
    figures += [("a step", step) for steps in (rates.steps, rates.ranks) for key, step in steps.items() if key in keys]
    return [f"{name}: {_amount(figure)}: {figure.origin}" for name, figure in figures] + [
        f"look-ups and updates: {rates.look_ups_origin}"
    ]


def _amount(figure: Figure) -> str:
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n")):
        if figure.value >= factor:
            return f"{figure.value / factor:.4g} {prefix}{figure.unit}"
    return f"{figure.value:.4g} {figure.unit}"


def _numbers(text: str) -> tuple[int, ...]:
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        numbers = ()
    if min(numbers, default=0) < 1:
        raise argparse.ArgumentTypeError(f"expected numbers from 1, joined by commas, got {text!r}")
    return numbers


def _number(text: str) -> int:
    numbers = _numbers(text)
    if len(numbers) > 1:
        raise argparse.ArgumentTypeError(f"expected one number, got {text!r}")
    return numbers[0]


def _arguments() -> argparse.ArgumentParser:
    parser = Parser(prog=PROG, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", action="append", metavar="NAME", help=f"{', '.join(NAMES)}; may be given again")
    parser.add_argument("--gpus", type=_numbers, default=GPUS, metavar="N,…", help="up to 8, or multiples of 8")
    parser.add_argument("--columns", type=_numbers, default=COLUMNS, metavar="N,…",
                        help="blocks of columns of each table; default: 1,4")
    parser.add_argument("--piece-rows", type=_number, default=0, metavar="N",
                        help="most rows of a piece; default: whole tables")
    batch = parser.add_mutually_exclusive_group()
    batch.add_argument("--rows", type=_number, metavar="N", help="rows a step of each GPU")
    batch.add_argument("--batch", type=_number, metavar="N", help="rows a step of all GPUs")
    parser.add_argument("--table-rows", type=_numbers, metavar="N,…", help="rows of each table, instead of the model's")
    parser.add_argument("--ids", type=_numbers, metavar="N,…", help="ids that a row brings to each table, or to all")
    parser.add_argument("--dim", type=_number, metavar="N", help="numbers of an embedding; the dense part stays")
    parser.add_argument("--precision", choices=[str(precision) for precision in Precision], help="of products")
    parser.add_argument("--table-optimizer", help="update rule of the tables",
                        choices=[str(rule) for rule in TableOptimizer if rule is not TableOptimizer.ADAM])
    parser.add_argument("--exchange", choices=[str(wire) for wire in Wire], default=Wire.FP32,
                        help="what the vectors are on the wire")
    parser.add_argument("--placed-by", choices=PLACED, default=PLACED[0], help="a piece's size: its rows, or its work, "
                        "which is its share of the rows and of the ids that are sent")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw the estimates too, .png or .svg")
    measures = parser.add_argument_group("On GPUs of one host, two or more")
    measures.add_argument("--measure", action="store_true", help="measure steps and exchanges, and do no more")
    measures.add_argument("--save", action="store_true", help=f"record them in traces/results/<gpu>/{RECORD}.json, "
                          "and a trace of a step of each rank in traces/")
    measures.add_argument("--seconds", type=_number, default=600, metavar="N", help="begin no cell after so many")
    measures.add_argument("--device", help="default: the GPUs; cpu only tries it out, by gloo and with tiny batches")
    measures.add_argument("--largest-table", type=_number, default=ALL_IDS, metavar="IDS", help="to try it out")
    parser.add_argument("--measured", type=Path, metavar="FILE", help="compare with this record, and do no more")
    return parser


def _chosen(args: argparse.Namespace) -> list[Case]:
    """The cases that were asked for; UserError: there are not as many ids as tables."""
    changes = {
        "batch": args.rows or args.batch, "per_gpu": bool(args.rows) if args.rows or args.batch else None,
        "precision": args.precision and Precision(args.precision), "dim": args.dim, "rows": args.table_rows,
        "table_optimizer": args.table_optimizer and TableOptimizer(args.table_optimizer),
    }
    changes = {name: value for name, value in changes.items() if value is not None}
    cases = []
    for one in map(case, args.case) if args.case else shown():
        new = replace(one, **changes)
        ids = args.ids or (one.ids if new.rows == one.rows else (1,))
        ids = ids * len(new.rows) if len(ids) == 1 else ids
        if len(ids) != len(new.rows):
            raise UserError(f"ids: expected one number, or one for each of {len(new.rows)} tables, got {len(ids)}")
        same = (new.rows, ids, new.dim) == (one.rows, one.ids, one.dim)
        cases.append(replace(new, ids=ids, recorded=one.recorded and same))
    return list(dict.fromkeys(cases))


def main(arguments: list[str] | None = None) -> int:
    """The command; 1 if what was measured is farther from its prediction than it may be."""
    parser = _arguments()
    args = parser.parse_args(sys.argv[2:] if arguments is None else arguments)
    if args.save and (not args.measure or args.device or args.largest_table != ALL_IDS):
        parser.error("--save: with --measure, and all cells as they are")
    with user_errors(PROG):
        if args.measure:
            return _measure(args)
        if args.measured:
            return _compare(args.measured)
        rates, groups = _rates(), {}
        for model in _chosen(args):
            groups[title(model)] = [
                estimate(Layout(model, gpus, columns, args.piece_rows, VECTOR_BYTES[args.exchange], args.placed_by),
                         rates)
                for gpus in args.gpus for columns in args.columns
            ]
        models = [estimates[0].layout.case for estimates in groups.values()]
        for name, estimates in groups.items():
            print(f"{name}\n\n{table(estimates)}\n")
        print("MB: of the busiest GPU, in brackets of the mean one. †: some GPUs hold no piece. "
              f"!: more than the memory of one {rates.gpu}.")
        print(*origins(models, rates), sep="\n")
        if args.picture:
            picture.draw({_short(model): estimates for model, estimates in zip(models, groups.values(), strict=True)},
                         rates, args.picture)
            print(args.picture)
    return 0


def _short(model: Case) -> str:
    return f"{model.name}, {model.batch:,} rows {'a GPU' if model.per_gpu else 'in all'}, {model.precision}"


def _rates() -> Rates:
    """What is recorded, of several GPUs too, if that is."""
    rates = recorded()
    try:
        rows = records.load(RECORD)["rows"]
    except FileNotFoundError:
        return rates
    return with_measured(rates, rows, f"traces/results/{records.README_GPU}/{RECORD}.json")


def _measure(args: argparse.Namespace) -> int:
    if args.device is None and runtime.device().type != "cuda":
        print("No GPU here: nothing is measured.")
        measuring.show()
        return 0
    begin, device = time.monotonic(), choose(args.device)

    def done(row: dict) -> None:
        print(measuring.line(row), flush=True)

    rows = measuring.measure(device, args.largest_table, args.seconds, done, TRACES if args.save else None)
    if args.save:
        print(records.save(measuring.record(rows)))
    print(*measuring.verdicts(rows), f"{time.monotonic() - begin:.0f} s in all", sep="\n")
    return int(any(row["match"] != "ok" for row in rows))


def _compare(path: Path) -> int:
    record = measured.read(path)
    rates = with_measured(recorded(), record["rows"], str(path))
    if record["GPU"] != rates.gpu:
        raise UserError(f"{path}: expected a record of {rates.gpu}, whose figures the model has, found {record['GPU']}")
    compared, left_out = measured.compare(record["rows"], rates)
    if not compared:
        raise UserError(f"{path}: expected steps to compare with, found " + ("; ".join(left_out) or "none"))
    print(*measured.lines(compared, left_out), sep="\n")
    return int(not all(one.met for one in compared))
