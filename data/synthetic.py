"""Synthetic Criteo: any number of rows that look like the Kaggle file, with clicks whose true probabilities are known.

    python -m data.synthetic --rows 1000000 --out DIR --seed 0 --check

What the features look like, and what of the real rows is not imitated, says ``data.population``; the labels are drawn
by ``data.click_model``.
"""

if __name__ == "__main__":
    from data.cli import run

    run("data.synthetic")

import argparse
import math
import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.csv
import pyarrow.dataset
from tqdm import tqdm

from data.ahead import in_order
from data.cli import Parser, UserError, user_errors
from data.click_model import ClickModel, click_model, describe
from data.criteo import DENSE, LABEL, MISSING, SCHEMA, SPARSE, SPLITS, CriteoBatches
from data.output import complete_directory
from data.population import CATEGORIES, FULL, SyntheticConfig, draw, hashed_ids

PROBABILITY = "probability"
CHUNK_ROWS = 32_768  # rows drawn from one random stream; part of the data's definition, as the seed is
SAMPLE_ROWS = 200_000
MOST_ROWS = 10**12
# A chunk in the making takes about 60 MB, and a writer keeps up with no more threads than these.
WORKERS = min(os.cpu_count() or 1, 4)


def _chunk(model: ClickModel, seed: int, chunk: int, rows: int) -> pa.Table:
    # A whole chunk is drawn even where fewer rows are wanted: the first rows do not depend on how many follow.
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(chunk,)))
    counts, ranks = draw(model.config, rng, CHUNK_ROWS)
    probability = model.probability(counts, ranks)
    columns = [pa.array((rng.random(CHUNK_ROWS) < probability).astype(np.int8))]
    for values in counts:
        missing = np.isnan(values)
        columns.append(pa.array(np.where(missing, 0, values).astype(np.int64), mask=missing))
    for feature, drawn in zip(CATEGORIES, ranks, strict=True):
        ids = hashed_ids(feature, drawn).astype(np.int64)
        columns.append(pa.array(np.where(drawn == MISSING, MISSING, ids)))
    columns.append(pa.array(probability))
    schema = SCHEMA.append(pa.field(PROBABILITY, pa.float32(), nullable=False))
    return pa.table(columns, schema=schema)[:rows]


def _chunks(rows: int, seed: int, model: ClickModel) -> Iterator[Callable[[], pa.Table]]:
    """Functions that make the tables of ``generate``, one each."""
    for chunk in range(-(-rows // CHUNK_ROWS)):
        yield partial(_chunk, model, seed, chunk, min(CHUNK_ROWS, rows - chunk * CHUNK_ROWS))


def generate(rows: int, seed: int = 0, config: SyntheticConfig | None = None) -> Iterator[pa.Table]:
    """Draw ``rows`` rows as tables of up to ``CHUNK_ROWS``, on ``WORKERS`` threads; few tables exist at any time.

    Columns: labels int8, DENSE_i int64 (null where missing), SPARSE_i int64 (MISSING where missing), probability
    float32. The same seed and configuration give the same rows, and more rows begin with the fewer ones.

    Raises UserError for ``rows`` outside 1 to ``MOST_ROWS`` and for a negative ``seed``.
    """
    _check(rows, seed)
    chunks = _chunks(rows, seed, click_model(config or SyntheticConfig()))
    return in_order(chunks, WORKERS, ahead=WORKERS + 1)


def _check(rows: int, seed: int) -> None:
    if not 1 <= rows <= MOST_ROWS:
        raise UserError(f"rows: expected 1 to {MOST_ROWS}, found {rows}")
    if seed < 0:
        raise UserError(f"seed: expected 0 or more, found {seed}")


class _Tally:
    """Counts labels by true probability, in 2^16 bins: the AUC of any number of rows in constant memory."""

    BINS = 2**16  # two probabilities of one bin count as tied, which moves the AUC by less than 1e-5

    def __init__(self, tallies: Iterable["_Tally"] = ()) -> None:
        self.counts = sum((tally.counts for tally in tallies), np.zeros((2, self.BINS)))

    def add(self, table: pa.Table | pa.RecordBatch) -> None:
        probability, labels = table[PROBABILITY].to_numpy(), table[LABEL].to_numpy().astype(np.int64)
        bins = np.minimum((probability * self.BINS).astype(np.int64), self.BINS - 1)
        self.counts += np.bincount(labels * self.BINS + bins, minlength=2 * self.BINS).reshape(2, -1)

    @property
    def rows(self) -> int:
        return int(self.counts.sum())

    @property
    def click_rate(self) -> float:
        return float(self.counts[1].sum() / self.counts.sum()) if self.rows else math.nan

    @property
    def auc(self) -> float:
        """roc_auc_score of the true probability, NaN where only one of the labels occurs."""
        label, score = np.nonzero(self.counts)
        if len(set(label)) < 2:
            return math.nan
        from sklearn.metrics import roc_auc_score  # a second that those need not wait who draw no rows

        return float(roc_auc_score(label, score, sample_weight=self.counts[label, score]))


def _tallies(source: str | Path | Iterable[pa.Table]) -> dict[str, _Tally]:
    if not isinstance(source, (str, Path)):
        tally = _Tally()
        for table in source:
            tally.add(table)
        return {"all": tally}
    tallies = {}
    for split in SPLITS:
        path, tallies[split] = Path(source) / split, _Tally()
        if not path.is_dir():
            raise UserError(f"{path}: expected a directory of Parquet files, found none")
        files = pa.dataset.dataset(path, format="parquet")
        if PROBABILITY not in files.schema.names:
            raise UserError(f"{path}: expected a column {PROBABILITY!r} (data.synthetic writes it), found none")
        for batch in files.to_batches(columns=[LABEL, PROBABILITY]):
            tallies[split].add(batch)
    return tallies


def best_auc(source: str | Path | Iterable[pa.Table]) -> dict[str, float]:
    """The best ROC AUC that any model can reach: that of the true probability against the labels drawn from it.

    ``source``: a directory that this module wrote, for the keys "train", "validation" and "test", or tables as
    ``generate`` yields them, for the key "all". NaN where only one label occurs.

    Raises UserError if a split or its probability column is not there.
    """
    return {split: tally.auc for split, tally in _tallies(source).items()}


def dense_only_auc(directory: str | Path, rows: int = 1_000_000) -> float:
    """ROC AUC on "test" of a logistic regression on the 13 counts alone, log(1 + max(x, 0)) with 0 where missing.

    Reads no more than the first ``rows`` rows of a split, rounded up to whole chunks. NaN where a split has only one
    label. Raises UserError for a damaged directory.
    """

    def read(split: str) -> tuple[np.ndarray, np.ndarray]:
        labels, dense = [np.empty(0, np.float32)], [np.empty((0, len(DENSE)), np.float32)]
        for clicked, counts, _ in islice(CriteoBatches(Path(directory) / split, CHUNK_ROWS), -(-rows // CHUNK_ROWS)):
            labels.append(clicked.numpy())
            dense.append(counts.numpy())
        return np.concatenate(labels), np.concatenate(dense)

    (labels, dense), (test_labels, test_dense) = read("train"), read("test")
    if min(len(np.unique(labels)), len(np.unique(test_labels))) < 2:
        return math.nan
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    regression = make_pipeline(StandardScaler(), LogisticRegression()).fit(dense, labels)
    return float(roc_auc_score(test_labels, regression.decision_function(test_dense)))


def _hex_column(ids: np.ndarray) -> pa.Array:
    """Eight hex digits for each id (int64 [n]), null where MISSING."""
    text = ids.astype(np.uint32).astype(">u4").tobytes().hex().encode()
    offsets = np.arange(0, len(text) + 1, 8, dtype=np.int32)
    strings = pa.StringArray.from_buffers(len(ids), pa.py_buffer(offsets), pa.py_buffer(text))
    return pa.compute.if_else(pa.array(ids == MISSING), None, strings)


def _write_tsv(tables: Iterable[pa.Table], out: Path) -> _Tally:
    """Write Kaggle's raw format to out/train.txt, complete or not at all."""
    options = pa.csv.WriteOptions(include_header=False, delimiter="\t", quoting_style="none")
    tally = _Tally()
    with complete_directory(out) as directory, (directory / "train.txt").open("wb") as file:
        for table in tables:
            tally.add(table)
            raw = {name: table[name] for name in (LABEL, *DENSE)}
            raw |= {name: _hex_column(table[name].to_numpy()) for name in SPARSE}
            pa.csv.write_csv(pa.table(raw), file, options)
    return tally


def _run(args: argparse.Namespace) -> None:
    _check(args.rows, args.seed)
    if args.check and args.format == "tsv":
        raise UserError("--check: expected --format parquet, found tsv")
    config = SyntheticConfig(FULL if args.full_cardinalities else args.largest_table)
    progress = partial(tqdm, total=-(-args.rows // CHUNK_ROWS), unit="row", unit_scale=CHUNK_ROWS, disable=None)
    if args.format == "tsv":
        total = _write_tsv(progress(generate(args.rows, args.seed, config)), args.out)
        tallies = {"all": total}
    else:
        _write(progress(_chunks(args.rows, args.seed, click_model(config))), args.out)
        tallies = _tallies(args.out)
        total = _Tally(tallies.values())
    print(f"rows {total.rows}, click rate {100 * total.click_rate:.2f} %")
    print("best AUC  " + "  ".join(f"{split} {tally.auc:.4f}" for split, tally in tallies.items()))
    if args.check:
        print(f"AUC of a logistic regression on the dense features alone  test {dense_only_auc(args.out):.4f}")
        print(describe(config))


def _write(chunks: Iterable[Callable[[], pa.Table]], out: Path) -> None:
    # Imported here: rows are drawn, for a profile say, where polars, which writes metadata, is not installed.
    from data.dataset import write_dataset

    write_dataset(chunks, out, workers=WORKERS)


def sample() -> Path:
    """data/sample, the data set of the notebooks: ``SAMPLE_ROWS`` rows of seed 0, made if it is not there."""
    directory = Path(__file__).resolve().parent / "sample"
    if not (directory / "metadata.json").exists():
        _write(_chunks(SAMPLE_ROWS, 0, click_model(SyntheticConfig())), directory)
    return directory


def main(arguments: list[str] | None = None) -> None:
    parser = Parser(prog="python -m data.synthetic", description="Draw rows like Criteo's.")
    parser.add_argument("--rows", type=int, required=True, help="how many rows to draw")
    parser.add_argument("--out", type=Path, required=True, help="directory to make")
    parser.add_argument("--seed", type=int, default=0, help="another seed, other rows of the same population")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--largest-table", type=int, default=SyntheticConfig.largest_table, metavar="IDS",
                      help="ids of the largest table, the others scaled along (default: %(default)s)")
    size.add_argument("--full-cardinalities", action="store_true", help=f"Criteo's own: the largest has {FULL} ids")
    parser.add_argument("--format", choices=("parquet", "tsv"), default="parquet",
                        help="parquet: splits and metadata; tsv: Kaggle's raw train.txt (default: %(default)s)")
    parser.add_argument("--check", action="store_true", help="describe the click model, try dense features alone")
    args = parser.parse_args(arguments)
    with user_errors("data.synthetic"):
        _run(args)
