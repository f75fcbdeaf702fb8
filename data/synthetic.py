"""Synthetic Criteo: any number of rows that look like the Kaggle file, with clicks whose true probabilities are known.

    python -m data.synthetic --rows 1000000 --out DIR --seed 0 --check

What it imitates (Criteo's Display Advertising Challenge, 45,840,617 rows): cardinalities, missing values and the
groups in which they go missing together, mean and standard deviation of the counts, the share of the most frequent
ids, 25.6 % clicks. A count is a Weibull variable (with shape < 1: a heavy tail that ends near the file's own maxima),
randomly rounded to an integer. An id's rank follows Zipf's law, ``P(rank k) ~ 1 / (k + 1)``.

The click model behind the labels is a logistic regression on effects that are independent of each other:

* ``ids``: a normal effect for each id of twelve features, with a standard deviation that shrinks as the id gets rarer;
* ``pairs``: in three pairs of features, the dot product of two latent vectors, one for each id; they are centred, so
  given either id alone the effect is zero on average: no sum of per-id effects can express it;
* ``dense``: four counts act linearly on the log scale, four through the distance from their mean.

Their standard deviations on the logit scale are the fields of ``SyntheticConfig``. The model is the same for every
seed: two seeds give two samples of one population.
"""

import argparse
import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import accumulate, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.csv
import pyarrow.dataset
from scipy.optimize import brentq
from scipy.special import expit, gamma, ndtri
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from tqdm import tqdm

from data.cli import Parser, UserError, user_errors
from data.criteo import DENSE, LABEL, MISSING, SCHEMA, SPARSE, CriteoBatches
from data.dataset import SPLITS, complete_directory, write_dataset

PROBABILITY = "probability"
CLICK_RATE = 0.25622
CHUNK_ROWS = 32_768  # rows drawn from one random stream; part of the data's definition, as the seed is
SAMPLE_ROWS = 200_000
LATENT = 2  # length of the latent vectors behind a pair's effect


class Count(NamedTuple):
    """Marginal of an integer feature: mean and standard deviation of the values present, share of rows missing."""

    mean: float
    std: float
    missing: float = 0.0
    group: str = ""  # features of one group go missing in the same rows
    low: float = 0.0  # the smallest value before rounding


class Category(NamedTuple):
    """Marginal of a categorical feature: distinct ids, the top id's share (None: Zipf's), share of rows missing."""

    cardinality: int
    top: float | None = None
    missing: float = 0.0
    group: str = ""


COUNTS = {
    "I1": Count(3.50, 9.43, 0.454, "I1 I10"),
    "I2": Count(105.8, 391, low=-1.02),  # a little under -1, so that rounding gives many -1 and a few -2
    "I3": Count(26.9, 398, 0.211),
    "I4": Count(7.32, 8.79, 0.217, "I4 I13"),
    "I5": Count(18539, 69395, 0.025),
    "I6": Count(116.1, 383, 0.223),
    "I7": Count(16.3, 66.0, 0.046, "I7 I9 I11"),
    "I8": Count(12.5, 16.7, 0.001),
    "I9": Count(106.1, 220, 0.044, "I7 I9 I11"),
    "I10": Count(0.618, 0.684, 0.454, "I1 I10"),
    "I11": Count(2.73, 5.20, 0.044, "I7 I9 I11"),
    "I12": Count(0.991, 5.60, 0.766),
    "I13": Count(8.22, 16.2, 0.217, "I4 I13"),
}
CATEGORIES = {
    "C1": Category(1460, 0.50),
    "C2": Category(583),
    "C3": Category(10131227, None, 0.033, "C3 C4 C12 C16 C21 C24"),
    "C4": Category(2202608, None, 0.033, "C3 C4 C12 C16 C21 C24"),
    "C5": Category(305, 0.67),
    "C6": Category(24, None, 0.133),
    "C7": Category(12517),
    "C8": Category(633, 0.60),
    "C9": Category(3, 0.89),
    "C10": Category(93145),
    "C11": Category(5683),
    "C12": Category(8351593, None, 0.033, "C3 C4 C12 C16 C21 C24"),
    "C13": Category(3194),
    "C14": Category(27, 0.36),
    "C15": Category(14992),
    "C16": Category(5461306, None, 0.033, "C3 C4 C12 C16 C21 C24"),
    "C17": Category(10, 0.43),
    "C18": Category(5652),
    "C19": Category(2173, None, 0.45, "C19 C20 C25 C26"),
    "C20": Category(4, None, 0.45, "C19 C20 C25 C26"),
    "C21": Category(7046547, None, 0.033, "C3 C4 C12 C16 C21 C24"),
    "C22": Category(18, None, 0.82),
    "C23": Category(15, 0.45),
    "C24": Category(286181, None, 0.033, "C3 C4 C12 C16 C21 C24"),
    "C25": Category(105, None, 0.45, "C19 C20 C25 C26"),
    "C26": Category(142572, None, 0.45, "C19 C20 C25 C26"),
}
FULL = max(category.cardinality for category in CATEGORIES.values())
KEPT = 100  # tables up to this size are not scaled

# Which features the click model reads.
ID_FEATURES = ("C1", "C3", "C6", "C7", "C8", "C10", "C13", "C14", "C15", "C18", "C23", "C26")
PAIRS = (("C2", "C14"), ("C11", "C17"), ("C13", "C24"))
LINEAR = ("I2", "I6", "I7", "I11")
CURVED = ("I4", "I5", "I8", "I9")

_COUNT = {name: i for i, name in enumerate(COUNTS)}
_CATEGORY = {name: i for i, name in enumerate(CATEGORIES)}
# Every feature owns one slot for "missing" and one for each id, so a slot is one number below 2^32.
_SLOT = (0, *accumulate(category.cardinality + 1 for category in CATEGORIES.values()))


@dataclass(frozen=True)
class SyntheticConfig:
    """What is drawn, apart from the seed.

    ``largest_table``: ids of the largest table, 1 to ``FULL``. Tables of up to ``KEPT`` ids stay as they are; the
    larger ones are scaled by a power law that takes ``FULL`` to ``largest_table``, which keeps their order.
    ``id_std``, ``pair_std``, ``dense_std``: standard deviation of each part of the click model, in logits.
    ``rare``: an id that has this share of all rows keeps 1 / sqrt(2) of the full effect, a rarer one less.

    Raises UserError for a field out of range.
    """

    largest_table: int = 2000
    id_std: float = 0.95
    pair_std: float = 0.7
    dense_std: float = 0.35
    rare: float = 2e-3

    def __post_init__(self) -> None:
        if not 1 <= self.largest_table <= FULL:
            raise UserError(f"largest_table: expected 1 to {FULL}, found {self.largest_table}")
        for name in ("id_std", "pair_std", "dense_std", "rare"):
            if not 0 < getattr(self, name) < math.inf:
                raise UserError(f"{name}: expected a positive number, found {getattr(self, name)}")

    @property
    def cardinalities(self) -> tuple[int, ...]:
        """Ids of C1..C26."""
        kept = min(KEPT, self.largest_table)
        power = math.log(self.largest_table / kept) / math.log(FULL / kept)
        sizes = (category.cardinality for category in CATEGORIES.values())
        return tuple(n if n <= kept else round(kept * (n / kept) ** power) for n in sizes)

    def frequency(self, feature: str, ranks: np.ndarray) -> np.ndarray:
        """Share of all rows that hold the ``ranks``-th ids (int64, MISSING for none) of ``feature``, e.g. "C3"."""
        category, n = CATEGORIES[feature], self.cardinalities[_CATEGORY[feature]]
        ranks = np.asarray(ranks)
        if category.top is None or n == 1:
            share = _zipf(ranks, n)
        else:
            share = np.where(ranks == 0, category.top, (1 - category.top) * _zipf(ranks - 1, n - 1))
        return np.where(ranks == MISSING, category.missing, (1 - category.missing) * share)


def _zipf(ranks: np.ndarray, n: int) -> np.ndarray:
    """P(rank) of the distribution that ``_zipf_ranks`` draws from."""
    ranks = np.maximum(ranks, 0)
    return np.log1p(2 / (2 * ranks + 1)) / math.log(2 * n + 1)


def _zipf_ranks(uniform: np.ndarray, n: int) -> np.ndarray:
    """Zipf ranks 0..n-1 from uniforms in [0, 1): the density 1/x on [1/2, n + 1/2), rounded.

    Its inverse is a formula, so a table of ten million ids needs no memory and no search.
    """
    ranks = np.floor(0.5 * (2.0 * n + 1) ** uniform + 0.5).astype(np.int64) - 1
    return np.minimum(ranks, n - 1)  # a uniform next to 1 may be rounded up


def _mix(x: np.ndarray) -> np.ndarray:
    """MurmurHash3's 32-bit finaliser, a bijection of uint32."""
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return x ^ (x >> np.uint32(16))


def hashed_ids(feature: str, ranks: np.ndarray) -> np.ndarray:
    """32-bit hashes, uint32 of the same shape, of the ``ranks``-th ids (int64) of ``feature``, e.g. "C3".

    The hash is a bijection of (feature, rank): no two ids of any features share one. It does not depend on the
    configuration or the seed. MISSING has a hash too, for the click model; it is never written.
    """
    slots = np.atleast_1d(np.asarray(ranks)) + (_SLOT[_CATEGORY[feature]] + 1)
    return _mix(slots.astype(np.uint32) ^ np.uint32(0x5BD1E995))


def _normals(hashes: np.ndarray, stream: int) -> np.ndarray:
    """One standard normal for each hash, float64; another for each stream."""
    mixed = _mix(hashes + np.uint32((stream + 1) * 0x9E3779B9 % 2**32))
    return ndtri((mixed + 0.5) / 2**32)


@lru_cache(maxsize=64)
def _weibull(mean: float, std: float) -> tuple[float, float]:
    """(scale, power): scale * Exponential(1) ** power, randomly rounded, has this mean and standard deviation."""
    # Random rounding keeps the mean and adds f(1-f) to the variance, 1/6 on average over the fraction f.
    ratio = 1 + (std**2 - 1 / 6) / mean**2
    power = brentq(lambda c: math.log(gamma(1 + 2 * c) / gamma(1 + c) ** 2) - math.log(ratio), 0.01, 10)
    return mean / gamma(1 + power), power


def _features(config: SyntheticConfig, rng: np.random.Generator, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw (counts float64 [13, rows], NaN where missing; ranks int64 [26, rows], MISSING where missing)."""
    groups: dict[str, np.ndarray] = {}

    def is_missing(name: str, spec: Count | Category) -> np.ndarray:
        group = spec.group or name
        if group not in groups:
            groups[group] = rng.random(rows)
        return groups[group] < spec.missing

    counts = np.empty((len(COUNTS), rows))
    for row, (name, count) in zip(counts, COUNTS.items(), strict=True):
        scale, power = _weibull(count.mean - count.low, count.std)
        exact = count.low + scale * rng.standard_exponential(rows) ** power
        row[:] = np.where(is_missing(name, count), np.nan, np.floor(exact + rng.random(rows)))
    ranks = np.empty((len(CATEGORIES), rows), np.int64)
    for row, (name, category), n in zip(ranks, CATEGORIES.items(), config.cardinalities, strict=True):
        uniform = rng.random(rows)
        if category.top is None or n == 1:
            drawn = _zipf_ranks(uniform, n)
        else:
            rest = np.maximum(uniform - category.top, 0) / (1 - category.top)
            drawn = np.where(uniform < category.top, 0, 1 + _zipf_ranks(rest, n - 1))
        row[:] = np.where(is_missing(name, category), MISSING, drawn)
    return counts, ranks


@dataclass(frozen=True)
class ClickModel:
    """logit P(click) = intercept + the sum of the effects, each with mean 0 and its share of the part's variance.

    Use ``click_model(config)``, which fills in the constants.
    """

    config: SyntheticConfig
    log_mean: np.ndarray  # [13], of log(1 + max(count, 0))
    log_std: np.ndarray  # [13]
    latent_mean: np.ndarray  # [pairs, 2, LATENT]
    mean: np.ndarray  # [effects, 1], before scaling
    scale: np.ndarray  # [effects, 1]
    intercept: float = 0.0

    def id_effect(self, feature: str, ranks: np.ndarray) -> np.ndarray:
        """Unscaled effects, float64 [n], of the ``ranks``-th ids of ``feature``."""
        return self.shrink(feature, ranks) * _normals(hashed_ids(feature, ranks), 0)

    def shrink(self, feature: str, ranks: np.ndarray) -> np.ndarray:
        """Standard deviation, before scaling, of the effects of these ids: sqrt(p / (p + rare)) at frequency p."""
        p = self.config.frequency(feature, ranks)
        return np.sqrt(p / (p + self.config.rare))

    def latent(self, feature: str, ranks: np.ndarray) -> np.ndarray:
        """Latent vectors, float64 [LATENT, n], not yet centred."""
        hashes = hashed_ids(feature, ranks)
        return self.shrink(feature, ranks) * np.stack([_normals(hashes, 1 + i) for i in range(LATENT)])

    def pair_effect(self, pair: int, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Unscaled effects, float64 [n], of ids (ranks int64 [n]) of the two features of ``PAIRS[pair]``."""
        latents = [self.latent(feature, ranks) for feature, ranks in zip(PAIRS[pair], (first, second), strict=True)]
        a, b = (x - mean[:, None] for x, mean in zip(latents, self.latent_mean[pair], strict=True))
        return (a * b).sum(0)

    def effects(self, counts: np.ndarray, ranks: np.ndarray) -> np.ndarray:
        """Unscaled effects, float64 [ids + pairs + dense, rows], of what ``_features`` draws."""
        z = (_log(counts) - self.log_mean[:, None]) / self.log_std[:, None]
        z = np.nan_to_num(z)  # a missing count counts as an average one
        return np.stack(
            [self.id_effect(name, ranks[_CATEGORY[name]]) for name in ID_FEATURES]
            + [self.pair_effect(i, *(ranks[_CATEGORY[name]] for name in pair)) for i, pair in enumerate(PAIRS)]
            + [z[_COUNT[name]] for name in LINEAR]
            + [np.abs(z[_COUNT[name]]) for name in CURVED]
        )

    def probability(self, counts: np.ndarray, ranks: np.ndarray) -> np.ndarray:
        """P(click), float32 [rows]."""
        logits = ((self.effects(counts, ranks) - self.mean) * self.scale).sum(0) + self.intercept
        return expit(logits).astype(np.float32)


def _log(counts: np.ndarray) -> np.ndarray:
    return np.log1p(np.maximum(counts, 0))


@lru_cache(maxsize=8)
def click_model(config: SyntheticConfig) -> ClickModel:
    """The click model of ``config``, its constants taken from 2^18 rows of features that belong to no seed.

    The intercept makes the mean probability ``CLICK_RATE`` there; no label is looked at.
    """
    rng = np.random.default_rng(np.random.SeedSequence(0, spawn_key=(0, 1)))  # generate() uses keys of length one
    counts, ranks = _features(config, rng, 2**18)
    logs = _log(counts)
    model = ClickModel(
        config,
        log_mean=np.nanmean(logs, 1),
        log_std=np.nanstd(logs, 1),
        latent_mean=np.zeros((len(PAIRS), 2, LATENT)),
        mean=np.zeros(1),
        scale=np.ones(1),
    )
    latent_mean = [[model.latent(name, ranks[_CATEGORY[name]]).mean(1) for name in pair] for pair in PAIRS]
    model = replace(model, latent_mean=np.array(latent_mean))
    effects = model.effects(counts, ranks)
    parts = ((config.id_std, ID_FEATURES), (config.pair_std, PAIRS), (config.dense_std, LINEAR + CURVED))
    wanted = np.concatenate([np.full(len(names), std / math.sqrt(len(names))) for std, names in parts])
    mean, std = effects.mean(1, keepdims=True), effects.std(1, keepdims=True)
    # A table of one id has no effect; its scale is then of no matter.
    model = replace(model, mean=mean, scale=wanted[:, None] / np.where(std > 0, std, 1))
    logits = ((effects - model.mean) * model.scale).sum(0)
    return replace(model, intercept=float(brentq(lambda b: expit(logits + b).mean() - CLICK_RATE, -10, 10)))


def _chunk(model: ClickModel, seed: int, chunk: int, rows: int) -> pa.Table:
    # A whole chunk is drawn even where fewer rows are wanted: the first rows do not depend on how many follow.
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(chunk,)))
    counts, ranks = _features(model.config, rng, CHUNK_ROWS)
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
    """Draw ``rows`` rows as tables of up to ``CHUNK_ROWS``, on all cores; only a few tables exist at any time.

    Columns: labels int8, DENSE_i int64 (null where missing), SPARSE_i int64 (MISSING where missing), probability
    float32. The same seed and configuration give the same rows, and more rows begin with the fewer ones.

    Raises UserError if ``rows`` < 1 or ``seed`` < 0.
    """
    _check(rows, seed)
    return _generate(rows, seed, click_model(config or SyntheticConfig()))


def _check(rows: int, seed: int) -> None:
    if rows < 1:
        raise UserError(f"rows: expected at least 1, found {rows}")
    if seed < 0:
        raise UserError(f"seed: expected 0 or more, found {seed}")


def _generate(rows: int, seed: int, model: ClickModel) -> Iterator[pa.Table]:
    workers = min(os.cpu_count() or 1, 16)  # a chunk in the making takes about 60 MB, and one reader uses no more
    chunks = _chunks(rows, seed, model)
    with ThreadPoolExecutor(workers) as pool:
        pending = deque(pool.submit(chunk) for chunk in islice(chunks, workers + 1))
        while pending:
            table = pending.popleft().result()
            pending.extend(pool.submit(chunk) for chunk in islice(chunks, 1))
            yield table


class _Tally:
    """Counts labels by true probability, in 2^16 bins: the AUC of any number of rows in constant memory."""

    BINS = 2**16  # two probabilities of one bin count as tied, which moves the AUC by less than 1e-5

    def __init__(self) -> None:
        self.counts = np.zeros((2, self.BINS))

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
    tallies["held out"] = _Tally()
    tallies["held out"].counts = tallies["validation"].counts + tallies["test"].counts
    return tallies


def best_auc(source: str | Path | Iterable[pa.Table]) -> dict[str, float]:
    """The best ROC AUC that any model can reach: that of the true probability against the labels drawn from it.

    ``source``: a directory that this module wrote, for the keys "train", "validation", "test" and "held out" (the
    last two together), or tables as ``generate`` yields them, for the key "all". NaN where only one label occurs.

    Raises UserError if a split or its probability column is not there.
    """
    return {split: tally.auc for split, tally in _tallies(source).items()}


def dense_only_auc(directory: str | Path, rows: int = 1_000_000) -> float:
    """Held-out ROC AUC of a logistic regression on the 13 counts alone, log(1 + max(x, 0)) with 0 where missing.

    Reads no more than the first ``rows`` rows of each split, rounded up to whole chunks. NaN where training or held-out
    rows have only one label. Raises UserError for a damaged directory.
    """

    def read(*splits: str) -> tuple[np.ndarray, np.ndarray]:
        labels, dense = [np.empty(0, np.float32)], [np.empty((0, len(DENSE)), np.float32)]
        for split in splits:
            batches = CriteoBatches(Path(directory) / split, CHUNK_ROWS)
            for clicked, counts, _ in islice(batches, -(-rows // CHUNK_ROWS)):
                labels.append(clicked.numpy())
                dense.append(counts.numpy())
        return np.concatenate(labels), np.concatenate(dense)

    (labels, dense), (held_labels, held_dense) = read("train"), read("validation", "test")
    if min(len(np.unique(labels)), len(np.unique(held_labels))) < 2:
        return math.nan
    regression = make_pipeline(StandardScaler(), LogisticRegression()).fit(dense, labels)
    return float(roc_auc_score(held_labels, regression.decision_function(held_dense)))


def describe(config: SyntheticConfig) -> str:
    """The click model in a few lines: its parts, their strength, and how the effects shrink with rarity."""
    model = click_model(config)
    lines = [
        f"logit P(click) = {model.intercept:.3f} + ids + pairs + dense",
        f"  ids    std {config.id_std}: one effect per id of {', '.join(ID_FEATURES)}",
        f"  pairs  std {config.pair_std}: latent dot products of {', '.join(' x '.join(pair) for pair in PAIRS)}",
        f"  dense  std {config.dense_std}: linear {', '.join(LINEAR)}; distance from the mean {', '.join(CURVED)}",
    ]
    n = config.cardinalities[_CATEGORY["C3"]]
    ranks = np.array([10**i for i in range(8) if 10**i < n] + [n]) - 1
    stds = model.scale[ID_FEATURES.index("C3"), 0] * model.shrink("C3", ranks)
    by_rank = ", ".join(f"{rank + 1}: {std:.3f}" for rank, std in zip(ranks, stds, strict=True))
    return "\n".join([*lines, f"  std of an effect of C3's most frequent id (1) to its rarest: {by_rank}"])


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
        write_dataset(progress(_chunks(args.rows, args.seed, click_model(config))), args.out)
        tallies = _tallies(args.out)
        total = _Tally()
        total.counts = tallies["train"].counts + tallies["held out"].counts
    print(f"rows {total.rows}, click rate {100 * total.click_rate:.2f} %")
    print("best AUC  " + "  ".join(f"{split} {tally.auc:.4f}" for split, tally in tallies.items()))
    if args.check:
        print(f"AUC of a logistic regression on the dense features alone  held out {dense_only_auc(args.out):.4f}")
        print(describe(config))


def sample() -> Path:
    """data/sample, the data set of the notebooks: ``SAMPLE_ROWS`` rows of seed 0, made if it is not there."""
    directory = Path(__file__).resolve().parent / "sample"
    if not (directory / "metadata.json").exists():
        write_dataset(_chunks(SAMPLE_ROWS, 0, click_model(SyntheticConfig())), directory)
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


if __name__ == "__main__":
    main()
