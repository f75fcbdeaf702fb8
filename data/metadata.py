"""metadata.json, beside click logs in Parquet: their features, their schema, and what their ids were hashed by."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from data.cli import UserError
from data.schema import CRITEO, IDS, SPARSE, Schema, schema_of


@dataclass(frozen=True)
class Feature:
    """What training knows of one sparse feature.

    cardinality: number of distinct ids in the training split, missing not among them; 0 if it is never present.
    source: the ids, or the Parquet file that holds them.
    """

    cardinality: int
    source: np.ndarray | Path

    @cached_property
    def tokenizer_values(self) -> np.ndarray:
        """int64 [cardinality]: the ids, most frequent first; read when first asked for.

        Raises UserError if its file is not there or contradicts the metadata.
        """
        if isinstance(self.source, np.ndarray):
            return self.source
        try:
            ids = pq.read_table(self.source, columns=["id"])["id"].to_numpy()
        except FileNotFoundError:
            raise UserError(f"{self.source}: not found; it lists the feature's ids beside metadata.json") from None
        except (pa.ArrowException, KeyError, OSError) as error:
            raise UserError(f"{self.source}: cannot be read as a list of ids: {error}") from None
        return _checked_ids(str(self.source), ids, self.cardinality)


def read_metadata(path: str | Path) -> dict[str, Feature]:
    """Read `metadata.json` (or the one in directory `path`): `SPARSE_0 … SPARSE_25` → `Feature`, in that order; of
    another schema its categories.

    The ids are in files beside it (data.vocabulary describes them) or, as the lecture first had it, in the JSON as
    lists `tokenizer_values`.

    Raises UserError, naming file and feature, if the file is not there, is not JSON, or a feature is missing or
    contradicts itself.
    """
    file, raw = _read(Path(path))
    own = raw.get("schema")
    if own is None:
        return {name: _feature(file, name, raw) for name in SPARSE}
    features = raw.get("features")
    if not isinstance(features, dict):
        raise UserError(f"{file}: features: expected an object, found {str(features)[:40]}")
    return {name: _feature(file, name, features) for name in schema_of(own, file).sparse}


def read_own_schema(path: str | Path) -> Schema:
    """The schema that the rows were preprocessed by, from the same file; `CRITEO` for Criteo's. UserError as above."""
    file, raw = _read(Path(path))
    return CRITEO if raw.get("schema") is None else schema_of(raw["schema"], file)


def read_hash_size(path: str | Path) -> int:
    """What `data.preprocess --hash-size` took the ids modulo, from the same file; 0: nothing. UserError as above."""
    file, raw = _read(Path(path))
    size = raw.get("hash_size", 0)
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= IDS:
        raise UserError(f"{file}: hash_size: expected 1 to {IDS}, found {size!r}")
    return size


def _read(path: Path) -> tuple[Path, dict]:
    """The metadata's file, and what is in it."""
    file = path / "metadata.json" if path.is_dir() else path
    try:
        with file.open("rb") as content:
            # Somebody's raw data may be larger than memory.
            if path == file and not content.peek(64)[:64].lstrip().startswith((b"{", b"[")):
                raise UserError(f"{file}: not metadata; run data.preprocess on it first and name its --out")
            text = content.read()
    except (FileNotFoundError, NotADirectoryError):
        above = path.parent if path.is_dir() and (path.parent / "metadata.json").exists() else None
        hint = f"name {above}, which holds it" if above else "data.preprocess and data.synthetic write it"
        raise UserError(f"{file}: not found; {hint}") from None
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file}: not JSON: {error}") from None
    if not isinstance(raw, dict):
        raise UserError(f"{file}: expected an object of features, found {type(raw).__name__}")
    return file, raw


def _feature(file: Path, name: str, raw: dict) -> Feature:
    if name not in raw:
        expected = f"; expected {SPARSE[0]} to {SPARSE[-1]}" if name in SPARSE else ""
        raise UserError(f"{file}: feature {name} is missing{expected}")
    entry = raw[name]
    cardinality = entry.get("cardinality") if isinstance(entry, dict) else None
    if type(cardinality) is not int or not 0 <= cardinality <= IDS:
        raise UserError(f"{file}: {name}: expected the field cardinality, from 0 to 2^32; found {str(entry)[:40]}")
    if "tokenizer_values" not in entry:
        return Feature(cardinality, file.parent / "ids" / f"{name}.parquet")
    values = entry["tokenizer_values"]
    if not isinstance(values, list) or not all(type(v) is int and 0 <= v < IDS for v in values):
        raise UserError(f"{file}: {name}: tokenizer_values: expected a list of ids in [0, 2^32)")
    return Feature(cardinality, _checked_ids(f"{file}: {name}", np.array(values, dtype=np.int64), cardinality))


def _checked_ids(where: str, ids: np.ndarray, cardinality: int) -> np.ndarray:
    if not np.issubdtype(ids.dtype, np.integer):  # nulls make numbers of floating point of them
        raise UserError(f"{where}: expected ids of an integer type and no null, found {ids.dtype}")
    if (wrong := (ids < 0) | (ids >= IDS)).any():
        raise UserError(f"{where}: expected ids in [0, 2^32), found {ids[wrong.argmax()]}")
    if cardinality != len(ids):
        raise UserError(f"{where}: cardinality is {cardinality}, but there are {len(ids)} ids")
    ordered = np.sort(ids.astype(np.uint32))  # np.unique's hash table takes minutes for ten million ids
    if (ordered[1:] == ordered[:-1]).any():
        raise UserError(f"{where}: holds an id twice")
    return ids.astype(np.int64, copy=False)
