"""What is measured on several GPUs, cell by cell, and the sizes that it is measured at."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import product

from model.config import Precision, TableOptimizer
from model.sharding.pieces import Wire

CASE = "main"  # the preset
COLLECTIVES = ("ids", "vectors", "gradients", "all_reduce", "step")  # "step": one of each, as a step has them
RULES = (TableOptimizer.SGD, TableOptimizer.ADAGRAD)


@dataclass(frozen=True)
class Sizes:
    """rows: of a step, on a GPU. exchanged: the same, of exchanges. summed: numbers that an all_reduce sums up.
    epoch_rows: of the Parquet files. rounds, block: how often so many steps are timed. share: of a
    GPU's memory, which a piece fills where no GPU holds all tables; width: of its rows."""

    rows: tuple[int, ...] = (16384, 2048)
    exchanged: tuple[int, ...] = (512, 2048, 8192, 16384, 65536)
    summed: tuple[int, ...] = (1 << 18, 1 << 20, 1 << 22, 1 << 24)
    epoch_rows: int = 1 << 20
    rounds: int = 10
    block: int = 20
    share: float = 0.55
    width: int = 128


FULL = Sizes()
TINY = Sizes((64, 32), (16, 64, 256), (1 << 10,), 4096, 3, 2, 1e-5, 4)  # to try it out


@dataclass(frozen=True)
class Cell:
    """Something that the ranks of one torchrun measure together.

    part: "reference", the losses of one process on the rows of all `gpus`; "exchange"; "step"; "trace", of a step on
        each rank; "large", tables that no GPU holds.
    rows: of a step, or of the look-ups that are exchanged, on a GPU; of an all_reduce alone: the numbers that it sums.
    exchange: what vectors travel in. collective: one of COLLECTIVES.
    seconds: after which it is ended, and has failed.
    """

    part: str
    gpus: int
    rows: int
    precision: Precision = Precision.FP32
    optimizer: TableOptimizer = TableOptimizer.SGD
    graph: bool = True
    exchange: Wire = Wire.FP32
    collective: str = ""
    seconds: float = 40

    @classmethod
    def read(cls, told: dict) -> Cell:
        """Of what `asdict` makes of it, after JSON."""
        names = {"precision": Precision, "optimizer": TableOptimizer, "exchange": Wire}
        return cls(**told | {name: kind(told[name]) for name, kind in names.items()})

    def row(self) -> dict:
        """What a record says of it, beside what was measured."""
        told = asdict(self)
        del told["seconds"]
        if self.part == "exchange":
            for name in ("precision", "optimizer", "graph"):
                del told[name]
            return told
        del told["collective"]
        return told | {"case": CASE} if self.part == "step" else told

    @property
    def is_counted(self) -> bool:
        """Whether NVLink's own counters are read beside it, which takes a second."""
        if self.exchange is not Wire.FP32 or self.gpus == 1 or not self.graph:
            return False
        what = {"step": self.precision is Precision.TF32, "exchange": self.collective in ("step", "vectors")}
        return self.rows == max(FULL.rows) and what.get(self.part, False)

    @property
    def of_reference(self) -> Cell:
        """The one whose losses it is held to."""
        return replace(self, part="reference", graph=False, exchange=Wire.FP32)

    def __str__(self) -> str:
        what = [self.part, f"{self.gpus} GPU" + "s" * (self.gpus > 1), f"{self.rows:,} rows a GPU"]
        if self.part == "exchange":
            what[-1] = f"{self.rows:,} {'numbers' if self.collective == 'all_reduce' else 'rows a GPU'}"
            what.append(self.collective)
        else:
            what += [self.precision, self.optimizer, "graph" if self.graph else "eager"]
        return ", ".join(what + ["bf16 vectors"] * (self.exchange is Wire.BF16))


def steps(sizes: Sizes, gpus: int, graphs: bool) -> Iterator[Cell]:
    """The steps of so many GPUs, those that matter most first; graphs: whether there are any."""
    ways = [(Precision.TF32, True), (Precision.FP32, True), (Precision.TF32, False)] if graphs else [
        (Precision.FP32, False)
    ]
    for (precision, graph), rows, rule in product(ways, sizes.rows, RULES):
        yield Cell("step", gpus, rows, precision, rule, graph)
        if gpus > 1 and rule is TableOptimizer.SGD and (precision, graph) == ways[0]:
            yield Cell("step", gpus, rows, precision, rule, graph, Wire.BF16)


def references(sizes: Sizes, gpus: int, graphs: bool) -> Iterator[Cell]:
    """What the steps of one GPU and of so many are held to."""
    yield from dict.fromkeys(cell.of_reference for count in (1, gpus) for cell in steps(sizes, count, graphs))


def exchanges(sizes: Sizes, gpus: int, graphs: bool) -> Iterator[Cell]:
    """Each collective by itself, by the bytes; and those of a step together."""
    for collective in reversed(COLLECTIVES):
        numbers = sizes.summed if collective == "all_reduce" else sizes.exchanged
        for rows in numbers:
            yield Cell("exchange", gpus, rows, graph=graphs, collective=collective)
    yield Cell("exchange", gpus, sizes.rows[0], graph=graphs, exchange=Wire.BF16, collective="vectors")


def traced(sizes: Sizes, gpus: int, graphs: bool) -> Iterator[Cell]:
    """The step that traces/20_full_sgd_graph_tf32 is of on one GPU."""
    yield Cell("trace", gpus, sizes.rows[-1], Precision.TF32 if graphs else Precision.FP32, graph=graphs)


def large(sizes: Sizes, gpus: int, graphs: bool) -> Iterator[Cell]:
    """A table a GPU, of which no two fit one."""
    yield Cell("large", gpus, sizes.rows[-1], Precision.TF32 if graphs else Precision.FP32, graph=graphs, seconds=90)
