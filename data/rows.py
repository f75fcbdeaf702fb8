"""Rows of Parquet or of text as arrays, and arrays as the tensors of a batch.

Rows that are held are (labels float32 [n], dense float32 [n, D], sparse int64 [n, S], lists): S is the number of the
categories with one id a row, and lists is a table of those with any number, None if the schema has none.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute
import torch

from data.schema import IDS, LABEL, MISSING, Schema

Arrays = tuple[np.ndarray, np.ndarray, np.ndarray]
Held = tuple[np.ndarray, np.ndarray, np.ndarray, pa.Table | None]


def empty_arrays(rows: int, schema: Schema) -> Arrays:
    """What `fill_arrays` fills."""
    dense = np.zeros if not schema.dense else np.empty
    return (
        np.empty(rows, np.float32), dense((rows, schema.width), np.float32),
        np.empty((rows, len(schema.singles)), np.int64),
    )


def fill_arrays(
    arrays: Arrays, part: pa.RecordBatch | pa.Table, schema: Schema, transform: bool = True, fill: float = 0.0
) -> None:
    """Write n rows into arrays: labels, dense and sparse, but not the lists.

    Labels are NaN if the part has none; transform and fill are those of `data.criteo.CriteoBatches`. What is wrong in
    the part stays wrong in the arrays, though it may be another number there: a label that is neither 0 nor 1, an id
    outside [-1, 2^32).
    """

    def floats(name: str) -> np.ndarray:  # a null becomes NaN
        return part.column(name).cast(pa.float32(), safe=False).to_numpy(zero_copy_only=False)

    labels, dense, sparse = arrays
    labels[:] = floats(LABEL) if LABEL in part.schema.names else np.nan
    if LABEL in part.schema.names and part.schema.field(LABEL).type == pa.float64():  # 1 - 1e-9 is 1 in float32
        exact = part.column(LABEL).to_numpy(zero_copy_only=False)
        labels[labels != exact] = np.nan
    for i, name in enumerate(schema.dense):
        dense[:, i] = floats(name)
    np.copyto(dense, fill, where=np.isnan(dense))
    if transform:
        np.log1p(np.maximum(dense, 0, out=dense), out=dense)
    for i, name in enumerate(schema.singles):
        sparse[:, i] = _ids(part.column(name)).to_numpy()


def _ids(values: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """int64; a null is missing. Unsigned ones of 2^63 and more, which would wrap, become IDS, which is no id either."""
    if values.type == pa.uint64():
        values = pa.compute.min_element_wise(values, pa.scalar(IDS, pa.uint64()), skip_nulls=False)
    if values.type != pa.int64():
        values = values.cast(pa.int64())
    return values.fill_null(MISSING) if values.null_count else values


def lists_of(part: pa.RecordBatch | pa.Table, schema: Schema) -> pa.Table | None:
    """The part's lists; one that is null is empty, and an entry that is null is missing."""
    if not schema.lists:
        return None
    if isinstance(part, pa.RecordBatch):
        part = pa.Table.from_batches([part])
    columns = []
    for name in schema.lists:
        column = part.column(name).combine_chunks()
        lengths = column.value_lengths().fill_null(0).to_numpy()
        offsets = pa.array(_offsets(lengths).astype(np.int32))
        columns.append(pa.ListArray.from_arrays(offsets, _ids(column.flatten())))  # without what is behind nulls
    return pa.table(columns, names=list(schema.lists))


def take(held: Held, rows: np.ndarray) -> Held:
    """These rows of those that are held."""
    *arrays, lists = held
    return *(array.take(rows, axis=0) for array in arrays), None if lists is None else lists.take(rows)


def joined(first: Held, second: Held) -> Held:
    """The rows of both."""
    lists = None if first[3] is None else pa.concat_tables([first[3], second[3]])
    return *(np.concatenate(pair) for pair in zip(first[:3], second[:3], strict=True)), lists


def tensors(held: Held, schema: Schema) -> tuple[torch.Tensor, ...]:
    """labels, dense and sparse; with lists labels, dense, ids int64 [N] and offsets int64 [F B + 1]: the bags of
    `model.dlrm.DLRM`, feature by feature, one id in each bag of a category that has one a row."""
    *arrays, lists = held
    if lists is None:
        return tuple(map(torch.from_numpy, arrays))
    labels, dense, sparse = arrays
    ids, lengths, single = [], [], iter(sparse.T)
    for name in schema.sparse:
        if name in schema.lists:
            bags = [chunk for chunk in lists.column(name).chunks if len(chunk)]
            ids += [chunk.flatten().to_numpy() for chunk in bags]
            lengths += [chunk.value_lengths().to_numpy() for chunk in bags]
        else:
            ids.append(next(single))
            lengths.append(np.ones(len(labels), np.int64))
    offsets = _offsets(np.concatenate(lengths))
    bags = np.concatenate(ids), offsets
    return tuple(map(torch.from_numpy, (labels, dense, *bags)))


def _offsets(lengths: np.ndarray) -> np.ndarray:
    """int64: where each begins, and the end."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets
