"""A training step on several GPUs: what each wire carries, each GPU looks up and holds, and the parts of its time.

Each of W GPUs has b rows of the batch, and the pieces of the tables that `place` gives it. In a step
    ids         of a row go to every piece's owner, int32, those of bags after the bags' lengths: blocks of columns
                cost ids, and so do runs of rows,
    vectors     come back, a piece's width of numbers for each bag: runs of rows cost vectors (all but one are zeros),
    gradients   go the way of the ids, as large as the vectors,
    all-reduce  sums up the dense part's gradients, in a node, then over the network, then in the node again.
GPUs of a node send to each other by NVLink, to others each by its network card; both work at the same time. The busiest
GPU's wire says how long an exchange takes. A step is the sum of its parts: nothing overlaps.

A GPU's own work is the dense part of b rows and the look-ups and updates of W b rows in its pieces. Ids are taken to be
equally frequent: of a run of rows its share is looked up.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from data.cli import UserError
from model.bench.scale.cases import Case
from model.bench.scale.rates import NODE, Rates
from model.config import TableOptimizer
from model.sharding.pieces import Piece, pieces
from model.sharding.placement import place, work

# Numbers of an optimizer's state for each number of a weight; of row-wise Adagrad's tables one for each row.
STATE = {TableOptimizer.SGD: 0, TableOptimizer.ADAGRAD: 1}
PLACED = ("work", "rows")  # by which sizes the pieces are placed: their rows, or model.sharding.placement.work
EXCHANGES = ("ids", "vectors", "gradients", "all-reduce")
PARTS = ("dense", "tables", *EXCHANGES, "latency")


class Bytes(NamedTuple):
    """What each GPU sends and receives, int64 [W]: within its node by NVLink, and past it over the network."""

    sent_near: np.ndarray
    received_near: np.ndarray
    sent_far: np.ndarray
    received_far: np.ndarray

    def near(self) -> np.ndarray:
        """Through a GPU's NVLink, in the direction that has more: [W]."""
        return np.maximum(self.sent_near, self.received_near)

    def far(self) -> np.ndarray:
        """Through a GPU's network card, in the direction that has more: [W]."""
        return np.maximum(self.sent_far, self.received_far)

    def back(self) -> Bytes:
        """The same the other way."""
        return Bytes(self.received_near, self.sent_near, self.received_far, self.sent_far)


@dataclass(frozen=True)
class Layout:
    """A case on so many GPUs.

    columns: blocks of columns of each table; piece_rows: most rows of a piece, 0: all; vector_bytes: of a number on
    the wire, 4 or 2; placed_by: one of PLACED. Training places by work, with one id a piece: of bags it knows no more.

    Raises:
        UserError, naming the setting: it cannot be.
    """

    case: Case
    gpus: int
    columns: int = 1
    piece_rows: int = 0
    vector_bytes: int = 4
    placed_by: str = "work"

    def __post_init__(self):
        if self.gpus < 1 or (self.gpus > NODE and self.gpus % NODE):
            raise UserError(f"gpus: expected 1 to {NODE}, or a multiple of {NODE}, got {self.gpus}")
        if self.piece_rows < 0:
            raise UserError(f"piece_rows: expected a number from 0, got {self.piece_rows}")
        if self.columns < 1 or self.case.dim % self.columns:
            raise UserError(f"columns: expected a divisor of {self.case.dim}, an embedding's width, got {self.columns}")
        if self.columns > 1 and self.case.table_optimizer is TableOptimizer.ROWWISE_ADAGRAD:
            raise UserError("columns: rowwise_adagrad keeps one sum for a whole row; expected 1, sgd or adagrad")
        if self.vector_bytes not in (2, 4):
            raise UserError(f"vector_bytes: expected 2 or 4, got {self.vector_bytes}")
        if self.placed_by not in PLACED:
            raise UserError(f"placed_by: expected {' or '.join(PLACED)}, got {self.placed_by!r}")
        _ = self.rows  # raises what it has to say

    @property
    def width(self) -> int:
        """Numbers of a piece's row."""
        return self.case.dim // self.columns

    @cached_property
    def rows(self) -> int:
        """Of the batch, on a GPU."""
        return self.case.rows_per_gpu(self.gpus)

    @cached_property
    def pieces(self) -> list[Piece]:
        return pieces(self.case.rows, self)

    @cached_property
    def placed(self) -> list[list[Piece]]:
        """What each GPU holds."""
        sizes = [piece.rows for piece in self.pieces]
        if self.placed_by == "work":
            sizes = work(sizes, [self.case.ids[piece.table] for piece in self.pieces])
        return [[self.pieces[index] for index in own] for own in place(sizes, self.gpus)]

    def bytes(self) -> dict[str, Bytes]:
        """Of each exchange of a step."""
        length = 4 * self.case.has_bags  # of a bag, which goes before its ids
        ids = self._sum(lambda piece: length + 4 * self.case.ids[piece.table])
        vectors = self._sum(lambda piece: self.vector_bytes * self.width)
        there, here = self._to_owners(ids), self._to_owners(vectors)
        return {"ids": there, "vectors": here.back(), "gradients": here, "all-reduce": self._all_reduce()}

    def look_ups(self) -> np.ndarray:
        """Ids that each GPU looks up in a step, and whose rows it updates: float64 [W]."""
        rows, ids = self.case.rows, self.case.ids
        shares = self._sum(lambda piece: ids[piece.table] * piece.rows / rows[piece.table])
        return self.gpus * self.rows * shares

    def held(self) -> np.ndarray:
        """Bytes that each GPU's memory holds, float64 [W]: its pieces, the dense part with its gradients, both
        optimizers' state, and what arrives by the exchanges; without activations. The dense part is trained by the
        tables' rule, by Adagrad where that is row-wise."""
        rule = self.case.table_optimizer
        state = STATE.get(rule, 1 / self.width)
        tables = self._sum(lambda piece: 4 * piece.rows * self.width * (1 + state))
        arriving = sum(part.received_near + part.received_far for name, part in self.bytes().items()
                       if name != "all-reduce")
        return tables + 4 * self.case.parameters * (2 + STATE.get(rule, 1)) + arriving

    def _sum(self, of) -> np.ndarray:
        """The sum over each GPU's pieces: [W]."""
        return np.array([sum(map(of, own)) for own in self.placed])

    def _to_owners(self, each: np.ndarray) -> Bytes:
        """What goes from all to all, if a row of the batch has each[g] bytes for GPU g: [W]."""
        node = np.arange(self.gpus) // NODE
        in_node = np.bincount(node, each).astype(np.int64)[node]
        peers = np.bincount(node)[node] - 1
        return Bytes(*(
            self.rows * count
            for count in (in_node - each, peers * each, each.sum() - in_node, (self.gpus - 1 - peers) * each)
        ))

    def _all_reduce(self) -> Bytes:
        """Each GPU of a node adds up its share of the gradients, over the nodes too, and all get all shares."""
        size, near = 4 * self.case.parameters, min(self.gpus, NODE)
        nodes = self.gpus // near
        inside, outside = 2 * size * (near - 1) // near, 2 * size * (nodes - 1) // (nodes * near)
        inside, outside = (np.full(self.gpus, count) for count in (inside, outside))
        return Bytes(inside, inside, outside, outside)


@dataclass(frozen=True)
class Estimate:
    """What a step of a layout costs.

    parts: seconds by PARTS. near, far: bytes through NVLink and network of the busiest GPU, all exchanges together;
    near_mean, far_mean: of the mean one. busiest: look-ups of the busiest GPU over the mean. fullest: bytes that the
    fullest GPU's memory holds; fits: it can. origin: "record", this step was measured; "records", its figures were;
    "paper", those of the wires were not, or tables are cut; "least", the dense part is not recorded, may take longer.
    """

    layout: Layout
    parts: dict[str, float]
    near: float
    near_mean: float
    far: float
    far_mean: float
    busiest: float
    fullest: float
    fits: bool
    origin: str

    @property
    def idle(self) -> int:
        """GPUs that hold no piece."""
        return sum(not own for own in self.layout.placed)

    @property
    def seconds(self) -> float:
        return sum(self.parts.values())

    @property
    def rows_per_second(self) -> float:
        return self.layout.gpus * self.layout.rows / self.seconds

    @property
    def wires(self) -> float:
        """The exchanges' share of a step."""
        return sum(self.parts[name] for name in (*EXCHANGES, "latency")) / self.seconds


def estimate(layout: Layout, rates: Rates) -> Estimate:
    """What a step costs at these rates."""
    case, gpus, wires = layout.case, layout.gpus, rates.wires
    sent, look_ups, held = layout.bytes(), layout.look_ups(), layout.held()
    dense, recorded = _dense(case, layout.rows, rates, gpus)
    busiest = look_ups.max()
    parts = {"dense": dense, "tables": rates.tables(busiest, layout.width, case.table_optimizer)}
    for name in EXCHANGES:
        near, far = sent[name].near() / wires.nvlink.value, sent[name].far() / wires.network.value
        parts[name] = float((near + far if name == "all-reduce" else np.maximum(near, far)).max())
    parts["latency"] = (len(EXCHANGES) + case.has_bags) * wires.collective(gpus)
    near, far = (sum(getattr(part, wire)() for part in sent.values()) for wire in ("near", "far"))
    if not recorded:
        origin = "least"
    elif layout.columns > 1 or layout.piece_rows or gpus > max(wires.gpus, 1):  # whole tables are what was recorded
        origin = "paper"
    else:
        origin = "record" if gpus == 1 else "records"
    return Estimate(
        layout, parts, near.max(), near.mean(), far.max(), far.mean(), busiest / look_ups.mean(), held.max(),
        bool(held.max() <= rates.memory.value), origin,
    )


def _dense(case: Case, rows: int, rates: Rates, gpus: int) -> tuple[float, bool]:
    """(Seconds of all but look-ups, their updates and exchanges, for so many rows on a GPU; whether it is recorded).

    Of a step that is recorded, for several GPUs by a single rank: what it takes beyond its look-ups and updates. Else
    the least: products, forward and twice backward, at the rate of a large one; but no less than reading the weights
    twice and writing their gradients takes; and the update, which reads both and writes the weights.
    """
    key = case.table_optimizer, case.precision, rows
    step = (rates.ranks.get(key) if gpus > 1 else None) or rates.steps.get(key) if case.recorded else None
    if step:
        return step.value - rates.tables(rows * sum(case.ids), case.dim, case.table_optimizer), True
    weights = 3 * 4 * case.parameters / rates.copy.value
    products = 3 * 2 * case.multiply_adds * rows / rates.products[case.precision].value
    return max(products, weights) + weights, False
