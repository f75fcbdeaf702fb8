"""Batches of rows without labels from raw text, as it is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import torch

from data.ahead import one_ahead
from data.parse import parse
from data.raw import blocks, check_file
from data.rows import empty_arrays, fill_arrays, lists_of, tensors
from data.schema import CRITEO, Schema


class TextBatches:
    """What `CriteoBatches` gives with labelled=False of the same rows in Parquet: the same batches of the same numbers.

    path: a file of text (data.raw), with labels or without; an empty one has no rows.
    form: the schema of the text; without one it has one of Criteo's forms. used: the schema whose columns are given.
    batch_size: rows a batch; the last holds the rest.

    Memory is bounded by a few blocks of text. Raises UserError, naming file, line and field: no file, a line that is
    not of the format.
    """

    num_rows = None  # nobody knows how many before they are read

    def __init__(
        self, path: str | Path, batch_size: int, *, form: Schema | None = None, used: Schema | None = None
    ):
        self.path, self.batch_size, self.form = Path(path), batch_size, form
        self.schema = used or form or CRITEO
        check_file(self.path)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, ...]]:
        rest = None
        for table in one_ahead(parse(block) for block in blocks(self.path, labelled=False, schema=self.form)):
            rows = table if rest is None else pa.concat_tables([rest, table])
            whole = len(rows) - len(rows) % self.batch_size
            for start in range(0, whole, self.batch_size):
                yield self._tensors(rows.slice(start, self.batch_size))
            rest = rows.slice(whole)
        if rest is not None and len(rest):
            yield self._tensors(rest)

    def _tensors(self, rows: pa.Table) -> tuple[torch.Tensor, ...]:
        arrays = empty_arrays(len(rows), self.schema)
        fill_arrays(arrays, rows, self.schema)
        return tensors((*arrays, lists_of(rows, self.schema)), self.schema)
