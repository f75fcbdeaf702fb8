"""How fast a GPU and its wires are: each figure with where it comes from.

A figure is of a record of this repository, of a source, or assumed. A source gives a wire's rate at its best, so times
over wires are then the least.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from data.cli import UserError
from kernels.measure import records
from kernels.measure.cells import OURS
from model.config import Precision, TableOptimizer

# An H200's node as it was described to MLPerf: 8 GPUs, of each "18x 4th Gen NVLink, 900GB/s" (both ways), and network
# cards of 400 Gb/s, of which eight serve a GPU each.
NODE = 8
FEATURES = 26  # of the recorded look-ups and updates: Criteo's tables, with one id a feature
DESCRIBED = ("https://github.com/mlcommons/inference_results_v4.1/blob/main/closed/NVIDIA/systems/"
             "H200-SXM-141GBx8_TRT_MaxQ.json")


@dataclass(frozen=True)
class Figure:
    """A number with its unit and its origin: a record, a source, or "assumed"."""

    value: float
    unit: str
    origin: str


@dataclass(frozen=True)
class Wires:
    """What a byte and a collective cost. nvlink, network: bytes/s out of a GPU, and as many into it at the same time.

    latency: seconds that a collective takes whatever it carries, in a node; far_latency: past it; per_peer: what each
    GPU more adds there. gpus: on how many they were measured; 0: on none.
    """

    nvlink: Figure = Figure(450e9, "B/s", f"half of 900 GB/s, {DESCRIBED}")
    network: Figure = Figure(50e9, "B/s", f"a card of 400 Gb/s, {DESCRIBED}")
    latency: Figure = Figure(10e-6, "s", "assumed")
    far_latency: Figure = Figure(30e-6, "s", "assumed")
    per_peer: Figure = Figure(0.1e-6, "s", "assumed")
    gpus: int = 0

    def collective(self, gpus: int) -> float:
        """Seconds of a collective that carries nothing."""
        if gpus <= 1:
            return 0.0
        return self.latency.value if gpus <= NODE else self.far_latency.value + gpus * self.per_peer.value


@dataclass(frozen=True)
class Rates:
    """A GPU's and the wires' figures.

    products: FLOP/s of a large matrix product in each precision; copy: bytes/s read and written; memory: bytes.
    look_ups, updates: by width of a row the times of so many ids, [(ids, seconds)], updates by rule too.
    steps: seconds of a recorded step of `main` on one GPU, as a CUDA graph, by rule, precision and rows; ranks: of one
    by a single rank, which does what each of several does, but for what they send.
    look_ups_origin: of look_ups and updates.
    """

    gpu: str
    wires: Wires
    products: Mapping[Precision, Figure]
    copy: Figure
    memory: Figure
    look_ups: Mapping[int, list[tuple[int, float]]]
    updates: Mapping[TableOptimizer, Mapping[int, list[tuple[int, float]]]]
    steps: Mapping[tuple[TableOptimizer, Precision, int], Figure]
    look_ups_origin: str
    ranks: Mapping[tuple[TableOptimizer, Precision, int], Figure] = field(default_factory=dict)

    def tables(self, ids: float, width: int, rule: TableOptimizer) -> float:
        """Seconds in which one GPU looks so many ids up in rows of this width, and updates them."""
        if not ids:
            return 0.0
        return _at(self.look_ups, ids, width) + _at(self.updates[rule], ids, width)


def recorded(wires: Wires | None = None, gpu: str = records.README_GPU, results: Path = records.RESULTS) -> Rates:
    """The figures of a GPU that the records name.

    Raises:
        FileNotFoundError: a record is not there.
    """
    machine = records.load("gpu", gpu, results)
    origin = f"traces/results/{gpu}/gpu.json"
    copies = [row["bytes"] / row["us_p50"] * 1e6 for row in machine["rows"] if row["part"] == "copy"]
    products = {
        Precision(row["precision"]): Figure(
            row["flops"] / row["us_p50"] * 1e6, "FLOP/s",
            f"{origin}, {row['precision']} product {row['rows']} × {row['depth']} × {row['columns']}",
        )
        for row in machine["rows"] if row["part"] == "product" and row["name"] == "square"
    }
    training = records.load("training", gpu, results)["rows"]
    steps = {
        (TableOptimizer(row["optimizer"]), Precision(row["precision"]), row["rows"]): Figure(
            1e-3 * row["ms"], "s", f"traces/results/{gpu}/training.json, {row['implementation']}, {row['optimizer']}, "
            f"{row['precision']}, {row['rows']} rows",
        )
        for row in training
        if row["part"] == "steps" and row["implementation"] == "fused graph" and row["match"] == "ok"
    }
    updates = records.load("embedding_bags_update", gpu, results)["rows"]
    rules = dict.fromkeys(row["rule"] for row in updates if row.get("rule"))
    return Rates(
        machine["GPU"], wires or Wires(), products, Figure(max(copies), "B/s", f"{origin}, copy"),
        Figure(machine["device"]["total_memory"], "B", f"{origin}, total_memory"),
        _cells(records.load("embedding_bags", gpu, results)["rows"]),
        {TableOptimizer(rule): _cells(row for row in updates if row.get("rule") == rule) for rule in rules}, steps,
        f"traces/results/{gpu}/embedding_bags.json and embedding_bags_update.json, the faster of our kernels",
    )


def with_measured(rates: Rates, rows: Sequence[Mapping], origin: str) -> Rates:
    """The same with what a record of several GPUs measured, whose rows these are: the wires, and steps of one rank.
    Raises what measured_wires does."""
    ranks = {
        (TableOptimizer(row["optimizer"]), Precision(row["precision"]), row["rows"]): Figure(
            1e-3 * row["ms"], "s", f"{origin}, one rank, {row['optimizer']}, {row['precision']}, {row['rows']} rows"
        )
        for row in rows if row["part"] == "step" and row["match"] == "ok" and is_of_one_rank(row)
    }
    return replace(rates, wires=measured_wires(rows, origin) or rates.wires, ranks=ranks)


def is_of_one_rank(row: Mapping) -> bool:
    """Whether a recorded step is the captured one of `main` by a single rank."""
    return row["gpus"] == 1 and row["case"] == "main" and row.get("graph", True) and row.get("sharded", True)


def _cells(rows: Iterable[Mapping]) -> dict[int, list[tuple[int, float]]]:
    """{width: [(ids, seconds)]}, ascending: the faster of our kernels, ids equally frequent, rows in float32."""
    cells: dict[tuple[int, int], float] = {}
    for row in rows:
        ours = row["part"] == "bandwidth" and row["implementation"] in OURS and row["match"] == "ok"
        if ours and row["ids"] == "uniform" and row.get("dtype", "float32") == "float32":
            cell = row["width"], FEATURES * row["rows"]
            cells[cell] = min(cells.get(cell, np.inf), 1e-6 * row["us_p50"])
    widths = sorted({width for width, _ in cells})
    return {own: [(ids, cells[width, ids]) for width, ids in sorted(cells) if width == own] for own in widths}


def _at(cells: Mapping[int, list[tuple[int, float]]], ids: float, width: int) -> float:
    """Seconds of so many ids in rows of so many numbers, between recorded cells by straight lines.

    Fewer ids than recorded take as long as the fewest, which are a handful of launches; more take longer in proportion.
    Narrower rows take as long as the narrowest, whose 64 bytes are what memory reads at once; wider ones longer in
    proportion.
    """
    widths = sorted(cells)
    times = []
    for own in widths:
        counts, seconds = zip(*cells[own], strict=True)
        times.append(np.interp(ids, counts, seconds) * max(ids / counts[-1], 1))
    return float(np.interp(width, widths, times) * max(width / widths[-1], 1))


def measured_wires(rows: Iterable[Mapping], origin: str) -> Wires | None:
    """The wires as a record's exchanges were; None: it has none.

    Rows of part "exchange": gpus, of one node; collectives, how many a replay does; bytes, what all of them send out of
    a GPU; us, of a replay. The line us = latency · collectives + bytes / rate goes through them, each error counted as
    a share of its time. Those of bf16 vectors, which are rounded on the way, are left out.

    Raises:
        UserError: there are too few rows for a line, or it gives no rate.
    """
    exchanges = [row for row in rows if row["part"] == "exchange" and row["match"] == "ok"]
    if not exchanges:
        return None
    near = [row for row in exchanges if 1 < row["gpus"] <= NODE and row.get("exchange", "fp32") == "fp32"]
    factors = np.array([[row["collectives"] / row["us"], row["bytes"] / row["us"]] for row in near]).reshape(-1, 2)
    if np.linalg.matrix_rank(factors) < 2:
        raise UserError(f"{origin}: expected exchanges of several sizes, within a node, found {len(near)}")
    (latency, per_byte), *_ = np.linalg.lstsq(factors, np.ones(len(near)), rcond=None)
    if latency < 0 or per_byte <= 0:
        raise UserError(f"{origin}: its exchanges take no longer with more bytes, or less than no time without any")
    gpus = max(row["gpus"] for row in near)
    return Wires(
        Figure(1e6 / per_byte, "B/s", origin), latency=Figure(1e-6 * latency, "s", origin),
        gpus=gpus,
    )
