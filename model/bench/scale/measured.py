"""What a run on several GPUs measured beside what was predicted for it.

A record of traces/results/<gpu>/ with rows of two parts, each with its match:
    exchange  see model.bench.scale.rates.measured_wires
    step      case, gpus, rows (on a GPU), precision, optimizer (of the tables), ms (of a step); and where they differ
              from these: columns 1, piece_rows 0, exchange "fp32" (or "bf16": of the vectors), placed_by "work",
              graph true; sharded true: by ranks, false: by a process without torchrun
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from data.cli import UserError
from kernels.measure import records
from model.bench.scale.cases import case
from model.bench.scale.cost import PLACED, Layout, estimate
from model.bench.scale.rates import Rates, is_of_one_rank
from model.config import Precision, TableOptimizer
from model.sharding.pieces import Wire

WITHIN = 0.2  # of what was measured
VECTOR_BYTES = {Wire.FP32: 4, Wire.BF16: 2}
EXCHANGE = {"gpus", "collectives", "bytes", "us"}
STEP = {"case", "gpus", "rows", "precision", "optimizer", "ms"}


@dataclass(frozen=True)
class Comparison:
    """A recorded step and the ms predicted for it."""

    what: str
    predicted: float
    measured: float

    @property
    def ratio(self) -> float:
        return self.predicted / self.measured

    @property
    def met(self) -> bool:
        return abs(self.ratio - 1) <= WITHIN


def read(path: Path) -> dict:
    """The record in the file; UserError says where it is none."""
    try:
        record = records.read(path)
        rows = record["rows"]
        record["GPU"]
    except (ValueError, KeyError, TypeError) as error:
        what = f"no {error}" if isinstance(error, KeyError) else str(error).splitlines()[0]
        raise UserError(f"{path}: expected a record of traces/results, found {what}") from None
    for number, row in enumerate(rows, 1):
        needed = {"exchange": EXCHANGE, "step": STEP}.get(row.get("part"), set())
        if missing := sorted((needed | {"match"} if needed else set()) - row.keys()):
            raise UserError(f"{path}: row {number}: expected {', '.join(missing)}")
    return record


def compare(rows: list[Mapping], rates: Rates) -> tuple[list[Comparison], list[str]]:
    """(The right steps that ran as one CUDA graph, beside their predictions; the other steps, each with why not.)

    Raises:
        UserError: a row is of no case, or of settings that cannot be.
    """
    compared, left_out = [], []
    for row in (row for row in rows if row["part"] == "step"):
        layout = layout_of(row)
        what = words(layout)
        if row["match"] != "ok":
            left_out.append(f"{what}: {row['match']}")
        elif not row.get("graph", True):
            left_out.append(f"{what}: no CUDA graph: what the host takes is not modelled")
        elif is_of_one_rank(row):
            left_out.append(f"{what}: of one rank: the steps of several are predicted from it")
        else:
            compared.append(Comparison(what, 1e3 * estimate(layout, rates).seconds, row["ms"]))
    return compared, left_out


def layout_of(row: Mapping) -> Layout:
    """What a recorded step ran."""
    exchange = row.get("exchange", "fp32")
    if exchange not in VECTOR_BYTES:
        raise UserError(f"exchange: expected {' or '.join(VECTOR_BYTES)}, got {exchange!r}")
    try:
        precision, rule = Precision(row["precision"]), TableOptimizer(row["optimizer"])
    except ValueError as error:
        raise UserError(f"a recorded step: {error}") from None
    model = replace(case(row["case"]), batch=row["rows"], per_gpu=True, precision=precision, table_optimizer=rule)
    return Layout(
        model, row["gpus"], row.get("columns", 1), row.get("piece_rows", 0), VECTOR_BYTES[exchange],
        row.get("placed_by", PLACED[0]),
    )


def words(layout: Layout) -> str:
    """A layout in a line: "main, 2 GPUs, 2,048 rows a GPU, tf32, adagrad"."""
    model, several = layout.case, "s" * (layout.gpus != 1)
    parts = [
        model.name, f"{layout.gpus} GPU{several}", f"{layout.rows:,} rows a GPU", model.precision,
        model.table_optimizer,
    ]
    parts += [f"{layout.columns} blocks of columns"] * (layout.columns > 1)
    parts += [f"pieces of {layout.piece_rows:,} rows"] if layout.piece_rows else []
    parts += ["bf16 vectors"] * (layout.vector_bytes == 2) + ["placed by rows"] * (layout.placed_by == "rows")
    return ", ".join(parts)


def lines(compared: list[Comparison], left_out: list[str]) -> list[str]:
    """Predicted, measured and their ratio, a line a step."""
    return [
        f"{'met' if one.met else 'MISSED'}: {one.what}: predicted {one.predicted:.3f} ms, measured {one.measured:.3f}, "
        f"ratio {one.ratio:.2f}; limit {1 - WITHIN:g} to {1 + WITHIN:g}"
        for one in compared
    ] + [f"not compared: {text}" for text in left_out]
