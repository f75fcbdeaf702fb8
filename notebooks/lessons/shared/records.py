"""What is recorded in traces/results/h200/: its rows, its times, the yardstick, and what an H200 is made of.

Which file a room's experiment writes:

    02 step_time.json    03 paper_cuts.json   04 compile_times.json  05 cuda_graphs.json   06 gpu.json
    07 generated.json    08 pointwise.json    09 backward.json       10 cuda_steps.json    12 lora.json
    13 products.json

What the cells of notebook NN measure by themselves is lecture_NN.json (shared/measure.py). The records of the ops
(add_relu.json, …) are those of `python -m kernels.measure bench`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from kernels.measure import records

if TYPE_CHECKING:
    import pandas

# FLOPs a second of an H200 SXM, dense, by https://www.nvidia.com/en-us/data-center/h200/: without tensor cores, and in
# TF32 and bfloat16 with them (its page counts sparse matrices there, which is twice as many).
FLOAT32, TF32, BF16 = 67e12, 494.5e12, 989.5e12
LANES = 32  # of a warp
SECTOR = 32  # bytes: the least that a GPU's caches move
LEAST = 1.03  # times that differ by less are called the same
NO_RECORD = "no record yet"
IMPLEMENTATION = ("name", "variant", "implementation")  # the label that says which of a part's ways a row is of


@dataclass(frozen=True)
class Record:
    """The record of this name, as it was measured on the H200, or on the GPU of this folder."""

    name: str
    gpu: str = field(default=records.README_GPU, kw_only=True)

    def table(self) -> pandas.DataFrame:
        """All rows, labels and times among the columns; attrs: what stands above them. Not to be written to."""
        return _table(self.name, self.gpu)

    def head(self, *names: str) -> object:
        """What stands above the rows, by its name or by the names on the way to it. LookupError: it does not."""
        value = self.table().attrs
        for name in names:
            value = value[name]
        return value

    def rows(self, part: str | None = None, /, **labels) -> pandas.DataFrame:
        """The rows of a part that have these labels and did not fail. LookupError: there is none."""
        rows = self.table().copy(deep=False)
        rows.attrs = {}  # each selection would copy them in depth
        rows = rows[~rows["match"].str.startswith("FAILED")]
        for name, value in (labels if part is None else {"part": part} | labels).items():
            rows = rows[rows[name] == value] if name in rows else rows[:0]
        if not len(rows):
            raise LookupError(f"{self.name}.json: no row of {_shown(part, labels)}")
        return rows

    def one(self, part: str | None = None, /, **labels) -> pandas.Series:
        """The only such row. LookupError: there is none, or more than one."""
        rows = self.rows(part, **labels)
        if len(rows) != 1:
            raise LookupError(f"{self.name}.json: {len(rows)} rows of {_shown(part, labels)}")
        return rows.iloc[0]

    def us(self, part: str | None = None, /, **labels) -> float:
        """The median µs of that row, on the GPU; of a row that has a number for each round, the rounds' median."""
        row = self.one(part, **labels)
        return float(np.median(row["us"]) if "us_p50" not in row else row["us_p50"])

    def elsewhere(
        self, part: str, /, shown: Callable[[pandas.Series], str] | None = None, beside: str | Mapping = "eager",
        called: str | None = None, **labels,
    ) -> str:
        """What is said where the H200 has no such row: the µs of another GPU that has one, or NO_RECORD. shown: what
        is said of that row in place of its µs.

        Times of two GPUs are not to be compared: what eager, or another way, takes in the other's run stands beside it.
        beside: that way, or the labels in which its row differs. called: the lesson's name of it.
        """
        shown = shown or (lambda row: f"{row['us_p50']:.1f} µs")
        for record in self._others():
            try:
                value = shown(record.one(part, **labels))
            except LookupError:
                continue
            text = f"not recorded on an H200; on an {record.head('GPU').removeprefix('NVIDIA ')} {value}"
            ways = {name: beside for name in IMPLEMENTATION if name in labels}
            peer = labels | (dict(beside) if isinstance(beside, Mapping) else ways)
            try:
                return f"{text}, {called or beside} there {shown(record.one(part, **peer))}" if peer != labels else text
            except LookupError:
                return text
        return NO_RECORD

    def with_part(self, part: str, /, **labels) -> Record:
        """This record if it has rows of the part, with these labels, that did not fail, or else another GPU's that has,
        whose head names it. LookupError: none has."""
        for record in (self, *self._others()):
            with suppress(LookupError, FileNotFoundError):
                record.rows(part, **labels)
                return record
        raise LookupError(f"{self.name}.json: no row of {_shown(part, labels)}, on any GPU")

    def _others(self) -> list[Record]:
        files = records.recorded_files(f"{self.name}.json")
        return [Record(self.name, gpu=file.parent.name) for file in files if file.parent.name != self.gpu]


@dataclass(frozen=True)
class Unsaved(Record):
    """Rows as if they were recorded: for tests of what a lesson shows once they are."""

    measured: Sequence[Mapping]

    def table(self) -> pandas.DataFrame:
        import pandas

        table = pandas.DataFrame(self.measured)
        table.attrs = {"GPU": "NVIDIA X1", "torch": "2.13.0", "date": "2026-11-26"}
        return table

    def _others(self) -> list[Record]:
        return []


@functools.cache
def _table(name: str, gpu: str) -> pandas.DataFrame:
    return records.recorded(name, gpu)


def _shown(part: str | None, labels: dict) -> str:
    return ", ".join([*filter(None, [part]), *(f"{name} {value}" for name, value in labels.items())])


GPU = Record("gpu")
ADD_RELU, ADD_MUL_ACTIVATION = Record("add_relu"), Record("add_mul_activation")


# ------------------------------------------------------------------------------------------------------------- times


def spread(row: pandas.Series, width: int = 0) -> str:
    """The median µs, in so many places at least, and the 20th and 80th percentile."""
    return f"{row['us_p50']:{width},.1f} ({row['us_p20']:,.1f} to {row['us_p80']:,.1f})"


def apart(a: pandas.Series, b: pandas.Series, least: float = LEAST) -> bool:
    """Whether two rows' times differ: by more than their spreads, 20th to 80th percentile, and by more than 3 %."""
    low, high = sorted((a, b), key=lambda row: row["us_p50"])
    return bool(low["us_p80"] < high["us_p20"] and high["us_p50"] > least * low["us_p50"])


def gb_per_s(row: pandas.Series) -> float:
    """The row's bytes over its time."""
    return row["bytes"] / row["us_p50"] / 1e3


def tflop_per_s(row: pandas.Series) -> float:
    """The row's FLOPs over its time."""
    return row["flops"] / row["us_p50"] / 1e6


def yardstick() -> float:
    """TB/s of PyTorch's copy of 1 GiB, its reads and its writes: the lecture's yardstick, from one record."""
    return ADD_RELU.head("copy_tb_per_s", "limit")


def copy_us(moved: float) -> float:
    """µs in which that copy moves so many bytes, read or written."""
    return moved / yardstick() / 1e6


# ----------------------------------------------------------------------------------------------------------- the H200


def device(name: str) -> int:
    """What CUDA says of the H200: L2_cache_size, max_threads_per_multi_processor, … LookupError: not that."""
    return GPU.head("device", name)


def sms() -> int:
    """Streaming multiprocessors."""
    return device("multi_processor_count")


def l2_tb_per_s(size: int = 2**25) -> float:
    """TB/s at which all SMs together read a buffer of `size` bytes again and again, past the L1. In a smaller one the
    programs stand on the same tiles, and ask for them together: that is faster than the L2."""
    return gb_per_s(GPU.one("reread", size=size, cache="L2")) / 1e3


def memory_tb_per_s() -> float:
    """TB/s at which they read the largest buffer, which no cache holds."""
    rows = GPU.rows("reread")
    return gb_per_s(rows.loc[rows["size"].idxmax()]) / 1e3


def sm_gb_per_s() -> float:
    """GB/s that an SM reads from the L2 at most: of a buffer that all SMs share, where the L2 itself limits least."""
    return max(gb_per_s(row) for _, row in GPU.rows("reread", cache="L2").iterrows()) / sms()
