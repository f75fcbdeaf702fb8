"""What rows like Criteo's hold: how each feature is distributed, when it is missing, and how the counts move together.

The figures are those of Criteo's Display Advertising Challenge. All of its 45,840,617 rows gave the cardinalities and
the counts' means, standard deviations and missing rates; the first 7,200 gave the most frequent ids' shares, the ids'
missing rates and the correlations.

A count is a Weibull variable (with shape < 1: a heavy tail that ends near the file's own maxima), rounded to an
integer. A Gaussian copula joins the 13 counts: the rank correlation (Spearman's, over the rows that hold both) of each
two of them is the real rows', to within 0.05. The strongest are I7 and I11 (0.88), I1 and I10 (0.88), I5 and I10
(-0.82), I1 and I5 (-0.78), I4 and I13 (0.75), I6 and I10 (-0.64), I5 and I6 (0.63), I1 and I6 (-0.62), I8 and I13
(0.60).

An id's rank follows the law of Zipf and Mandelbrot, ``P(rank k) ~ 1 / (k + q)``, where q gives the most frequent id its
share of the real rows; in a table too small for that share all ids are equally frequent.

Not imitated: any dependence between two categories, or between a count and a category; any dependence of a group's
missing values on another group's, or on the values beside them; the shares of all ids but a feature's most frequent
one; any change over time.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq
from scipy.special import gamma, gammainc, ndtr

from data.cli import UserError
from data.schema import MISSING


class Count(NamedTuple):
    """Marginal of an integer feature: mean and standard deviation of the values present, share of rows missing."""

    mean: float
    std: float
    missing: float = 0.0
    group: str = ""  # features of one group go missing in the same rows
    low: float = 0.0  # the smallest value before rounding


class Category(NamedTuple):
    """Marginal of a categorical feature: distinct ids, the shares of all rows that hold its top id, and none."""

    cardinality: int
    top_share: float
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
    "C1": Category(1460, 0.501),
    "C2": Category(583, 0.122),
    "C3": Category(10131227, 0.048, 0.033, "C3 C4 C12 C16 C21 C24"),
    "C4": Category(2202608, 0.076, 0.033, "C3 C4 C12 C16 C21 C24"),
    "C5": Category(305, 0.669),
    "C6": Category(24, 0.456, 0.133),
    "C7": Category(12517, 0.0107),
    "C8": Category(633, 0.596),
    "C9": Category(3, 0.885),
    "C10": Category(93145, 0.277),
    "C11": Category(5683, 0.0203),
    "C12": Category(8351593, 0.048, 0.033, "C3 C4 C12 C16 C21 C24"),
    "C13": Category(3194, 0.0221),
    "C14": Category(27, 0.360),
    "C15": Category(14992, 0.0208),
    "C16": Category(5461306, 0.048, 0.033, "C3 C4 C12 C16 C21 C24"),
    "C17": Category(10, 0.433),
    "C18": Category(5652, 0.052),
    "C19": Category(2173, 0.326, 0.45, "C19 C20 C25 C26"),
    "C20": Category(4, 0.195, 0.45, "C19 C20 C25 C26"),
    "C21": Category(7046547, 0.048, 0.033, "C3 C4 C12 C16 C21 C24"),
    "C22": Category(18, 0.095, 0.82),
    "C23": Category(15, 0.451),
    "C24": Category(286181, 0.078, 0.033, "C3 C4 C12 C16 C21 C24"),
    "C25": Category(105, 0.183, 0.45, "C19 C20 C25 C26"),
    "C26": Category(142572, 0.047, 0.45, "C19 C20 C25 C26"),
}
FULL = max(category.cardinality for category in CATEGORIES.values())
KEPT = 100  # tables up to this size are not scaled

COUNT = {name: i for i, name in enumerate(COUNTS)}
CATEGORY = {name: i for i, name in enumerate(CATEGORIES)}
# Every feature owns one slot for "missing" and one for each id, so a slot is one number below 2^32.
_SLOT = (0, *accumulate(category.cardinality + 1 for category in CATEGORIES.values()))

# Correlations of the standard normals behind I1..I13, one row for each with those before it. They are fitted, so that
# the counts' rank correlations are those of the real rows: ties make these weaker than the normals'.
NORMALS = (
    (),
    (-0.01,),
    (0.09, -0.10),
    (0.11, -0.09, 0.46),
    (-0.84, -0.03, -0.12, -0.18),
    (-0.68, 0.03, 0.12, 0.12, 0.66),
    (0.36, 0.01, 0.04, 0.16, -0.43, -0.25),
    (0.05, 0.05, 0.39, 0.59, -0.22, 0.21, 0.20),
    (-0.23, 0.04, 0.09, 0.31, 0.05, 0.50, 0.45, 0.45),
    (0.95, 0.01, 0.08, 0.09, -0.91, -0.73, 0.25, 0.04, -0.24),
    (0.20, 0.02, 0.03, 0.14, -0.45, -0.25, 0.91, 0.22, 0.51, 0.21),
    (0.24, -0.03, 0.00, 0.03, -0.34, -0.24, 0.12, 0.08, -0.12, 0.25, 0.08),
    (-0.17, -0.07, 0.47, 0.78, 0.07, 0.42, 0.04, 0.63, 0.36, -0.19, 0.05, -0.02),
)
_EXACT = 64  # larger counts are rounded to the nearest integer: their density hardly changes from one to the next


@dataclass(frozen=True)
class SyntheticConfig:
    """What is drawn, apart from the seed.

    ``largest_table``: ids of the largest table, 1 to ``FULL``. Tables of up to ``KEPT`` ids stay as they are; the
    larger ones are scaled by a power law that takes ``FULL`` to ``largest_table``, which keeps their order.
    ``id_std``, ``pair_std``, ``dense_std``: standard deviation of each kind of effects on the click, in logits.
    ``rare_share``: an id that this share of all rows holds keeps 1 / sqrt(2) of the full effect, a rarer one less.

    Raises UserError for a field out of range.
    """

    largest_table: int = 2000
    id_std: float = 0.95
    pair_std: float = 0.7
    dense_std: float = 0.35
    rare_share: float = 2e-3

    def __post_init__(self) -> None:
        if not 1 <= self.largest_table <= FULL:
            raise UserError(f"largest_table: expected 1 to {FULL}, found {self.largest_table}")
        for name in ("id_std", "pair_std", "dense_std", "rare_share"):
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
        category, n = CATEGORIES[feature], self.cardinalities[CATEGORY[feature]]
        q = _offset(category.top_share / (1 - category.missing), n)
        shares = np.log1p(1 / (q + np.maximum(ranks, 0))) / math.log1p(n / q)
        return np.where(np.equal(ranks, MISSING), category.missing, (1 - category.missing) * shares)


@lru_cache(maxsize=256)
def _offset(top: float, n: int) -> float:
    """The q with which the first of n ids has the share ``top`` of the rows that hold one, or 1 / n if that is more.

    An id's rank is x - q, rounded down, where x has the density 1 / x on [q, q + n].
    """
    if top * n < 1.001:
        return 1e6 * n  # all ids are equally frequent
    return math.exp(brentq(lambda log: math.log1p(math.exp(-log)) / math.log1p(n * math.exp(-log)) - top, -500, 50))


def mix(x: np.ndarray) -> np.ndarray:
    """MurmurHash3's 32-bit finaliser, a bijection of uint32."""
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return x ^ (x >> np.uint32(16))


def hashed_ids(feature: str, ranks: np.ndarray) -> np.ndarray:
    """32-bit hashes, uint32 of the same shape, of the ``ranks``-th ids (int64) of ``feature``, e.g. "C3".

    The hash is a bijection of (feature, rank): no two ids of any features share one. It does not depend on the
    configuration or the seed. MISSING has a hash too, for the click model; it is never written.
    """
    slots = np.atleast_1d(np.asarray(ranks)) + (_SLOT[CATEGORY[feature]] + 1)
    return mix(slots.astype(np.uint32) ^ np.uint32(0x5BD1E995))


@lru_cache(maxsize=64)
def _weibull(count: Count) -> tuple[float, float, np.ndarray]:
    """(scale, power, up): value = low + scale * x ** power, x exponential, has the mean and, once rounded, the std.

    Random rounding would round a value of [k, k + 1) up with the probability that its fraction is. We round up the
    largest of them instead, as many as that would be: counts of the same distribution, but in the order of the values.
    These are the values that reach k + 1 when ``up[k - floor(low)]`` is added; the last entry holds for all further k.
    """
    # Random rounding keeps the mean and adds f(1-f) to the variance, 1/6 on average over the fraction f.
    mean = count.mean - count.low
    ratio = 1 + (count.std**2 - 1 / 6) / mean**2
    power = brentq(lambda c: math.log(gamma(1 + 2 * c) / gamma(1 + c) ** 2) - math.log(ratio), 0.01, 10)
    scale = mean / gamma(1 + power)
    # P(rounded > k) is the mean over v in [k, k + 1] of P(value > v) = exp(-((v - low) / scale) ** (1 / power)).
    above = math.floor(count.low) - count.low + np.arange(_EXACT + 1)
    integral = np.minimum(above, 0) + mean * gammainc(power, (np.maximum(above, 0) / scale) ** (1 / power))
    limits = scale * (-np.log(np.maximum(np.diff(integral), 1e-300))) ** power
    return scale, power, np.append(np.clip(above[1:] - limits, 0, 1), 0.5)


@lru_cache(maxsize=1)
def _copula() -> np.ndarray:
    """float64 [13, 13]: times independent standard normals it gives normals with the correlations ``NORMALS``."""
    correlation = np.eye(len(COUNTS))
    correlation[np.tril_indices(len(COUNTS), -1)] = np.concatenate(NORMALS)
    return np.linalg.cholesky(correlation)  # reads the lower triangle only


def draw(config: SyntheticConfig, rng: np.random.Generator, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw (counts float64 [13, rows], NaN where missing; ranks int64 [26, rows], MISSING where missing)."""
    groups: dict[str, np.ndarray] = {}

    def is_missing(name: str, spec: Count | Category) -> np.ndarray:
        group = spec.group or name
        if group not in groups:
            groups[group] = rng.random(rows)
        return groups[group] < spec.missing

    # Not "@": BLAS would start threads of its own beneath those that draw.
    counts = np.einsum("ij,jk->ik", _copula(), rng.standard_normal((len(COUNTS), rows)))
    for row, (name, count) in zip(counts, COUNTS.items(), strict=True):
        scale, power, up = _weibull(count)
        value = count.low + scale * (-np.log(ndtr(row))) ** power
        cell = np.minimum((value - math.floor(count.low)).astype(np.int64), _EXACT)
        row[:] = np.where(is_missing(name, count), np.nan, np.floor(value + up[cell]))
    ranks = np.empty((len(CATEGORIES), rows), np.int64)
    for row, (name, category), n in zip(ranks, CATEGORIES.items(), config.cardinalities, strict=True):
        q = _offset(category.top_share / (1 - category.missing), n)
        drawn = (q * np.expm1(rng.random(rows) * math.log1p(n / q))).astype(np.int64)
        # A uniform next to 1 may be rounded up to n.
        row[:] = np.where(is_missing(name, category), MISSING, np.minimum(drawn, n - 1))
    return counts, ranks
