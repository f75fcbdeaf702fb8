"""Batches of rows without labels from Criteo's text, as it is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

from data.ahead import one_ahead
from data.criteo import DENSE, SPARSE, fill_arrays
from data.parse import parse
from data.raw import blocks, check_file


class TextBatches:
    """What `CriteoBatches` gives with labelled=False of the same rows in Parquet: the same batches of the same numbers.

    path: a file of Criteo's text (data.raw), with labels or without; an empty one has no rows.
    batch_size: rows a batch; the last holds the rest.

    Memory is bounded by a few blocks of text. Raises UserError, naming file, line and field: no file, a line that is
    not of the format.
    """

    num_rows = None  # nobody knows how many before they are read

    def __init__(self, path: str | Path, batch_size: int):
        self.path, self.batch_size = Path(path), batch_size
        check_file(self.path)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        rest = None
        for table in one_ahead(parse(block) for block in blocks(self.path, labelled=False)):
            rows = table if rest is None else pa.concat_tables([rest, table])
            whole = len(rows) - len(rows) % self.batch_size
            for start in range(0, whole, self.batch_size):
                yield _tensors(rows.slice(start, self.batch_size))
            rest = rows.slice(whole)
        if rest is not None and len(rest):
            yield _tensors(rest)


def _tensors(rows: pa.Table) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    n = len(rows)
    arrays = np.empty(n, np.float32), np.empty((n, len(DENSE)), np.float32), np.empty((n, len(SPARSE)), np.int64)
    fill_arrays(arrays, rows)
    labels, dense, sparse = map(torch.from_numpy, arrays)
    return labels, dense, sparse
