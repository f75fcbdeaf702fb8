"""What a training step costs, and an epoch from Parquet: eager beside fused, `python -m model.bench`, on a GPU.

`main` with `dot`, Kaggle's cardinalities (33.8 million ids, 2.2 GB of tables), the modulus hash, float32, but where
it says otherwise. By parts, which --only chooses:

    steps   ms a step, the batch being on the device, by turns; and the most memory that it takes; of 2048 rows in TF32
            too
    epoch   rows/s of one epoch from Parquet, read and shuffled as model.train does, without checkpoints and evaluation;
            by turns, and the losses of its steps beside eager's
    outer, dot, inference    a step and a prediction with everything fused, as model.bench.whole_model has it

`python -m model.bench scale` estimates what a step costs on several GPUs, and with --measure measures it.

torch.compile is measured as it comes and as somebody sets it who knows it (model.bench.compiled_ways): where a setting
may save time, as a row of its own. What is compared with it is compared with the fastest.

With --save a record is written once all of its parts are measured. Where a row of ours FAILED, an older record in which
none did stays, and what was measured stands beside it, in <record>.failed.json; a peer's failure is recorded. After
each cell what there is stands in <record>.partial.json. A run that is stopped loses the cell that it was at; with
--resume the next one takes the others from there, if machine, versions and code are the same.

A row that is not right is FAILED and has no time. A step is right if it changes what the same step changes in float64
from the same weights and optimizer's state: model.bench.shadow holds eight steps of each implementation to that, each
from where it began. An epoch's losses are held to the reference's. Two right ones part by rounding, by Adagrad more
than by SGD, as traces/README.md says. How far, the reference itself shows, in epochs that have the rows of each batch
in another order: on the mean over the steps, losses may be REORDERED_TIMES as far from the reference's as the farthest
of these. The reference is eager training with sparse gradients; for row-wise Adagrad, which eager has not, the fused
look-up with the update in eager operations. The MLPs are trained by the tables' rule, and with row-wise Adagrad by
Adagrad.
"""

import argparse
import gc
import itertools
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import torch
from torch import Tensor

import kernels
from data.cli import Parser, user_errors
from data.criteo import CriteoBatches
from data.synthetic import FULL, SyntheticConfig, generate
from kernels import runtime
from kernels.measure import records, sources
from kernels.measure.judge import is_variant
from kernels.measure.partial_record import PartialRecord
from model.bench import pages, recorded
from model.bench import whole_model as whole_model
from model.bench.compiled_ways import COMPILED
from model.bench.shadow import ROUNDING
from model.bench.steps import OURS, bench_steps
from model.bench.trainer import IMPLEMENTATIONS, Trainer, no_reference, noting
from model.config import DLRMConfig, Precision, TableOptimizer, preset
from model.device import choose, settings
from model.profiling.recording import today

PROG = "python -m model.bench"
_EMBEDDINGS = ("embedding_bags", "embedding_bags_update")
# The files that are saved: their parts, and the ops that these hang on.
RECORDS = {
    "training": (("epoch", "steps"), _EMBEDDINGS),
    whole_model.RECORD: (whole_model.PARTS, (*_EMBEDDINGS, "dot_interaction", "fused_mlp", "outer_linear")),
}
PARTS = tuple(part for parts, _ in RECORDS.values() for part in parts)
RULES = (TableOptimizer.SGD, TableOptimizer.ADAGRAD, TableOptimizer.ROWWISE_ADAGRAD)
ROWS = (2048, 16384)  # of a step
EPOCH_ROWS, EPOCH_STEPS, REPORT = 2048, 500, 100
# Epochs of the reference with the rows of its batches in another order; how many times as far as the farthest of these
# an implementation's losses may be: one rounds more than another, and what rounding does to a curve is in the order of
# the rounding.
REORDERED, REORDERED_TIMES = 2, 4
PEERS = ("eager sparse", "eager dense", *COMPILED)
# Most ms of a step as a graph, by (rule, rows) and (rule, rows, precision); least factor by which a step without one
# beats the best peer; most memory over tables and state.
MOST_MS = {(rule, rows): (0.8 if rule == "sgd" else 0.9) if rows == 2048 else 3.0 for rule in RULES for rows in ROWS}
MOST_MS |= {(TableOptimizer.SGD, *cell): limits["ms"] for (part, *cell), limits in whole_model.LIMITS.items()
            if part == "dot"}
LEAST_FACTOR, MOST_MEMORY = 2.0, 1.2


def names_of(rule: TableOptimizer, device: torch.device, names: Iterable[str]) -> list[str]:
    """Those of the implementations that there are for the rule on the device, the reference first."""
    peers = ("fused, eager update",) if rule is TableOptimizer.ROWWISE_ADAGRAD else PEERS
    there = (*peers, "fused", *(("fused graph",) if device.type == "cuda" else ()))
    return [name for name in there if name in names]


def bench_epoch(
    rule: TableOptimizer, shape: DLRMConfig, folder: Path, device: torch.device, names: Iterable[str]
) -> list[dict]:
    """A row for each implementation: its epoch over the folder's rows, twice by turns, of which the faster counts. The
    first is the reference, and if it fails all do."""
    rows, trainers, expected, most = {}, {}, None, 0.0
    chosen = [name for name in names_of(rule, device, names) if name not in PEERS[1:]]
    for turn in range(2):
        for name in chosen:
            row = rows.setdefault(
                name, {"part": "epoch", "optimizer": str(rule), "rows": EPOCH_ROWS, "implementation": name}
            )
            if expected is None and name != chosen[0]:
                row["match"] = no_reference(rows[chosen[0]])
            if row.get("match", "ok") != "ok":
                continue
            with noting(row):
                if not turn:
                    trainers[name] = Trainer(name, rule, shape, EPOCH_ROWS, device)
                losses, rate = _epoch(trainers[name].step, folder, device)
                if not turn:
                    if expected is None:
                        expected, most = losses, _most_apart(name, rule, shape, folder, device, losses)
                    compare(row, losses, expected, most)
                    row |= {"steps": len(losses), "loss_first": losses[0].item(), "loss_last": losses[-1].item()}
                row["rows_per_s"] = max(rate, row.get("rows_per_s", 0.0))
    for row in rows.values():
        if row["match"] != "ok":
            row.pop("rows_per_s", None)
    return list(rows.values())


def compare(row: dict, losses: Tensor, expected: Tensor, most: float) -> None:
    """Say in the row whether the losses are, on the mean over the steps, as near to those expected as they must be."""
    apart = (losses - expected).abs().mean().item()
    row |= {"loss_apart": apart, "loss_apart_most": most}
    row["match"] = "ok" if apart <= most else f"FAILED: losses {apart:.2g} from the reference's, limit {most:.2g}"


def _most_apart(
    name: str, rule: TableOptimizer, shape: DLRMConfig, folder: Path, device: torch.device, losses: Tensor
) -> float:
    """How far losses may be from these of the reference, by those of its epochs with reordered batches."""
    farthest = ROUNDING
    for seed in range(REORDERED):
        again, _ = _epoch(Trainer(name, rule, shape, EPOCH_ROWS, device).step, folder, device, seed)
        farthest = max(farthest, (again - losses).abs().mean().item())
    return REORDERED_TIMES * farthest


def _epoch(
    step: Callable[..., Tensor], folder: Path, device: torch.device, order: int | None = None
) -> tuple[Tensor, float]:
    """The losses of an epoch's steps, and its rows/s; order: seed of another order of each batch's rows."""
    batches = CriteoBatches(folder, EPOCH_ROWS, shuffle=True)
    losses = torch.zeros(batches.num_batches, device=device)
    generator = None if order is None else torch.Generator().manual_seed(order)
    begin = time.perf_counter()
    for index, batch in enumerate(batches):
        if generator:
            rows = torch.randperm(len(batch[0]), generator=generator)
            batch = [tensor[rows] for tensor in batch]
        losses[index] = step(*batch)
        if index % REPORT == REPORT - 1:
            losses[index + 1 - REPORT : index + 1].mean().item()  # waits for the device, as model.train's report does
            kernels.check_ids()
    losses = losses.cpu()
    return losses, batches.num_rows / (time.perf_counter() - begin)


def write_rows(folder: Path, rows: int, config: SyntheticConfig) -> None:
    """Rows as data.synthetic draws them, a file a chunk."""
    folder.mkdir(parents=True, exist_ok=True)
    for index, table in enumerate(generate(rows, 0, config)):
        pq.write_table(table, folder / f"part-{index:05d}.parquet", compression="none", write_statistics=False)


def run(
    device: torch.device, parts: Iterable[str], names: Iterable[str], largest: int, left: PartialRecord | None = None
) -> list[dict]:
    """Measure, and print each row as it comes. left: where each cell is kept once it is measured."""
    config = SyntheticConfig(largest)
    shape = replace(preset("main").model, cardinalities=config.cardinalities)
    measured = []

    def cell(name: str, measure: Callable[[], list[dict]]) -> None:
        for row in left.part(name, measure) if left else measure():
            measured.append(row)
            print(line(row), flush=True)
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for of_cell in whole_model.run(parts, config, write_rows, folder, device, names):
            cell(*of_cell)
        folder /= "epoch"
        if {"epoch", "steps"} & set(parts):
            write_rows(folder, EPOCH_STEPS * EPOCH_ROWS, config)
        if "epoch" in parts:
            for rule in RULES:
                cell(f"epoch {rule}", partial(bench_epoch, rule, shape, folder, device, names))
        if "steps" in parts:
            for count in ROWS:
                drawn = itertools.islice(CriteoBatches(folder, count), 4)
                batches = [[tensor.to(device) for tensor in batch] for batch in drawn]
                for rule, precision in itertools.product(RULES, precisions(count, device)):
                    chosen = names_of(rule, device, names)
                    step = partial(bench_steps, rule, shape, batches, device, chosen, precision)
                    torch._dynamo.reset()
                    with settings(torch.get_num_threads(), precision):
                        cell(f"steps {rule} {count} {precision}", step)
    return measured


def precisions(rows: int, device: torch.device) -> tuple[Precision, ...]:
    """What steps of so many rows compute in: small batches, whose tables' update weighs less, in TF32 too."""
    both = (whole_model.tf32_on(device), Precision.FP32) if rows == min(ROWS) else (Precision.FP32,)
    return tuple(dict.fromkeys(both))


def line(row: Mapping) -> str:
    """The row as a line of the printed table."""
    if row["part"] == "inference":
        return whole_model.line(row)
    text = f"{row['part']:6} {row['optimizer']:16} {row.get('precision', 'fp32')} {row['rows']:6}  "
    text += f"{row['implementation']:{whole_model.NAME}}"
    if row.get("ms"):
        text += f" {row['ms']:8.3f} ms ({row['ms_low']:.3f} – {row['ms_high']:.3f})"
        text += f", {row['factor']:.2f} times as fast as the best peer" if row.get("factor") else ""
        text += f", peak {row['peak_mb']:,.0f} MB of {row['floor_mb']:,.0f}" if row["peak_mb"] else ""
    if row.get("rows_per_s"):
        text += f" {row['rows_per_s']:12,.0f} rows/s, loss {row['loss_first']:.4f} to {row['loss_last']:.4f}"
    forms = {"loss_error": "loss within {:.1e}", "stray": "update within {:.1e}", "loss_apart": "losses {:.1e} apart"}
    errors = [form.format(row[name]) for name, form in forms.items() if row["match"] == "ok" and name in row]
    return ", ".join([f"{text}  {row['match']}", *errors])


def verdicts(rows: list[dict]) -> list[str]:
    """What the figures must show, and whether they do; of the cells that were measured."""
    cells: dict[tuple, dict[str, dict]] = {}
    for row in (row for row in rows if row["part"] not in whole_model.PARTS):
        precision = row.get("precision", "fp32")
        cells.setdefault((row["part"], row["optimizer"], row["rows"], precision), {})[row["implementation"]] = row
    lines = []

    def judge(what: str, value: float | None, limit: float, met: bool) -> None:
        figure = "not measured" if value is None else f"{value:.3g}"
        lines.append(f"{'met' if met else 'MISSED'}: {what}: {figure}; limit {limit:g}")

    for (part, rule, count, precision), cell in cells.items():
        where = f"{part} {rule} {count} {precision}"
        if part == "epoch":
            lines += [_of_losses(f"{where}: {name}", cell[name]) for name in ("fused", "fused graph") if name in cell]
            continue
        ours, graph = (cell.get(name, {}) for name in ("fused", "fused graph"))
        if graph:
            limit = MOST_MS.get((rule, count, precision), MOST_MS.get((rule, count)))
            ms = graph.get("ms")
            if limit:
                judge(f"{where}: ms as a graph", ms, limit, bool(ms) and ms <= limit)
            if graph.get("peak_mb"):
                share = graph["peak_mb"] / graph["floor_mb"]
                judge(f"{where}: memory over tables and state", share, MOST_MEMORY, share <= MOST_MEMORY)
        peers = [cell[name]["ms"] for name in PEERS if cell.get(name, {}).get("ms")]
        if peers and ours:
            factor = min(peers) / ours["ms"] if ours.get("ms") else None
            judge(f"{where}: times as fast as the best peer, without a graph", factor, LEAST_FACTOR,
                  factor is not None and factor >= LEAST_FACTOR)
    return lines + whole_model.verdicts(rows)


def _of_losses(where: str, row: Mapping) -> str:
    """The verdict on an epoch; of one that says no limit, as older records, by what it says."""
    steps = f" of {row['steps']} steps" if "steps" in row else ""
    if "loss_apart" in row:
        apart, most = row["loss_apart"], row["loss_apart_most"]
        met, figures = apart <= most, f"{apart:.3g}; limit {most:g}"
    else:
        met, figures = row["match"] == "ok", f"{row['match']}; no limit recorded"
    return f"{'met' if met else 'MISSED'}: {where}: losses{steps} beside the reference's: {figures}"


def _record(name: str, rows: list[dict], **more) -> dict:
    """What is saved of the rows of a record's parts, in traces/results/<gpu>/<name>.json."""
    versions = runtime.versions()
    parts, ops = RECORDS[name]
    return {
        "op": name,
        **{name: versions[name] for name in ("GPU", "driver", "torch", "triton", "CUDA", "Python")},
        "date": today(),
        "sources_sha256": {op: sources.sha256(op, "sources") for op in ops},
        **more,
        "rows": [row for row in rows if row["part"] in parts],
    }


def is_ours(row: Mapping) -> bool:
    """Whether a row is of an implementation of ours; the others are peers, and references."""
    return row["implementation"] in OURS


def show(results: Path = records.RESULTS) -> None:
    """Print the records, labelled as recorded."""
    for name, (parts, _) in RECORDS.items():
        try:
            _show(records.load(name, results=results))
        except FileNotFoundError:
            print(f"nothing is recorded of {', '.join(parts)}: {PROG} --save, on a GPU")


def _show(record: dict) -> None:
    print(f"Recorded on {record['GPU']}, {record['date']} (torch {record['torch']}, CUDA {record['CUDA']}):")
    print(*map(line, record["rows"]), *verdicts(record["rows"]), sep="\n")


def _arguments() -> argparse.ArgumentParser:
    parser = Parser(prog=PROG, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--save", action="store_true",
                        help="record in traces/results/<gpu>/: training, then whole_model, each once it is measured")
    parser.add_argument("--resume", action="store_true", help="with --save: take the cells of a run that was stopped")
    parser.add_argument("--write", action="store_true",
                        help="write the records into README.md, model/README.md and traces/step.svg, and do no more")
    parser.add_argument("--only", type=_parts, default=PARTS, metavar="PART,…", help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--without", action="append", default=[], choices=list(IMPLEMENTATIONS),
                        help="leave it out, however it is set")
    parser.add_argument("--device", help="default: the GPU; cpu only tries it out")
    parser.add_argument("--largest-table", type=int, default=FULL, metavar="IDS", help="smaller tables, to try it out")
    return parser


def _parts(text: str) -> tuple[str, ...]:
    parts = tuple(text.split(","))
    for part in parts:
        if part not in PARTS:
            raise argparse.ArgumentTypeError(f"expected some of {', '.join(PARTS)}, joined by commas, got {part!r}")
    return parts


def main(arguments: list[str] | None = None) -> int:
    """The command; 1 if a row failed."""
    parser = _arguments()
    args = parser.parse_args(arguments)
    if args.write:
        pages.write()
        return 0
    whole = [name for name, (parts, _) in RECORDS.items() if set(parts) & set(args.only)]
    partial_run = any(set(RECORDS[name][0]) - set(args.only) for name in whole)
    if args.save and (partial_run or args.without or args.device or args.largest_table != FULL):
        parser.error("--save: a part of the cells, or another size, is not saved over the record of all")
    if args.resume and not args.save:
        parser.error("--resume: a run without --save leaves nothing, and takes nothing")
    with user_errors(PROG):
        if args.device is None and runtime.device().type != "cuda":
            print("No GPU here: nothing is measured.")
            show()
            return 0
        device, begin = choose(args.device), time.monotonic()
        if device.type == "cpu":
            torch.set_num_threads(1)  # tiny steps: sharing their operations costs more than it saves
        names = [name for name in IMPLEMENTATIONS if not any(is_variant(name, out) for out in args.without)]
        rows = []
        for name in whole:
            left = PartialRecord(name, recorded.CODE, resume=args.resume) if args.save else None
            parts = [part for part in RECORDS[name][0] if part in args.only]
            rows += run(device, parts, names, args.largest_table, left)
            if args.save:
                copy = {"copy_tb_per_s": whole_model.copy_tb_per_s(device)} if name == whole_model.RECORD else {}
                print(records.save(_record(name, rows, **copy), is_ours=is_ours), flush=True)
        print(*verdicts(rows), f"{time.monotonic() - begin:.0f} s in all", sep="\n")
        return int(any(row["match"] != "ok" for row in rows))

