"""The click model behind the synthetic rows: a logistic regression whose true probabilities are known.

Its effects are of three kinds:

* ``ids``: a normal effect for each id of twelve features, with a standard deviation that shrinks as the id gets rarer;
* ``pairs``: in three pairs of features, the dot product of two latent vectors, one for each id; they are centred, so
  given either id alone the effect is zero on average: no sum of per-id effects can express it;
* ``dense``: four counts act linearly on the log scale, four through the distance from their mean.

Within a kind every effect has the same standard deviation, and the kinds do not depend on each other; counts do. The
standard deviations of the kinds, on the logit scale, are the fields of ``SyntheticConfig``. The model is the same for
every seed: two seeds give two samples of one population.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit, ndtri

from data.population import CATEGORY, COUNT, SyntheticConfig, draw, hashed_ids, mix
from data.schema import MISSING

CLICK_RATE = 0.25622
LATENT = 2  # length of the latent vectors behind a pair's effect

# Which features the click model reads.
ID_FEATURES = ("C1", "C3", "C6", "C7", "C8", "C10", "C13", "C14", "C15", "C18", "C23", "C26")
PAIRS = (("C2", "C14"), ("C17", "C24"), ("C4", "C23"))
LINEAR = ("I2", "I6", "I7", "I11")
CURVED = ("I4", "I5", "I8", "I9")


@dataclass(frozen=True)
class ClickModel:
    """logit P(click) = intercept + the sum over the effects of (effect - mean) * scale.

    Use ``click_model(config)``, which fills in the constants.
    """

    config: SyntheticConfig
    log_mean: np.ndarray  # [linear + curved, 1], of log(1 + max(count, 0))
    log_std: np.ndarray  # [linear + curved, 1]
    latent_mean: np.ndarray  # [pairs, 2, LATENT]
    mean: np.ndarray  # [effects, 1]
    scale: np.ndarray  # [effects, 1]
    intercept: float = 0.0

    def id_effect(self, feature: str, ranks: np.ndarray) -> np.ndarray:
        """Unscaled effects, float64 [n], of the ``ranks``-th ids (int64 [n]) of ``feature``."""
        return self._normals(feature, ranks, 0)

    def latent(self, feature: str, ranks: np.ndarray) -> np.ndarray:
        """Latent vectors, float64 [LATENT, n], of these ids, not yet centred."""
        return np.stack([self._normals(feature, ranks, 1 + i) for i in range(LATENT)])

    def effect_std(self, feature: str, ranks: np.ndarray) -> np.ndarray:
        """Standard deviation of these ids' unscaled effects: sqrt(p / (p + rare_share)) at frequency p."""
        p = self.config.frequency(feature, ranks)
        return np.sqrt(p / (p + self.config.rare_share))

    def _normals(self, feature: str, ranks: np.ndarray, stream: int) -> np.ndarray:
        """One normal with standard deviation ``effect_std`` for each id; another for each stream."""
        n = self.config.cardinalities[CATEGORY[feature]]
        if n + 1 < len(ranks):  # once for each id is less work; MISSING, which is -1, finds the last one
            return self._normals(feature, np.append(np.arange(n), MISSING), stream)[ranks]
        mixed = mix(hashed_ids(feature, ranks) + np.uint32((stream + 1) * 0x9E3779B9 % 2**32))
        return self.effect_std(feature, ranks) * ndtri((mixed + 0.5) / 2**32)

    def pair_effect(self, pair: int, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Unscaled effects, float64 [n], of ids (ranks int64 [n]) of the two features of ``PAIRS[pair]``."""
        latents = [self.latent(feature, ranks) for feature, ranks in zip(PAIRS[pair], (first, second), strict=True)]
        a, b = (x - mean[:, None] for x, mean in zip(latents, self.latent_mean[pair], strict=True))
        return (a * b).sum(0)

    def effects(self, counts: np.ndarray, ranks: np.ndarray) -> np.ndarray:
        """Unscaled effects, float64 [ids + pairs + dense, rows], of what ``data.population.draw`` draws."""
        z = np.nan_to_num((_logs(counts) - self.log_mean) / self.log_std)  # a missing count counts as an average one
        return np.stack(
            [self.id_effect(name, ranks[CATEGORY[name]]) for name in ID_FEATURES]
            + [self.pair_effect(i, *(ranks[CATEGORY[name]] for name in pair)) for i, pair in enumerate(PAIRS)]
            + [*z[: len(LINEAR)], *np.abs(z[len(LINEAR) :])]
        )

    def probability(self, counts: np.ndarray, ranks: np.ndarray) -> np.ndarray:
        """P(click), float32 [rows]."""
        # Not "@": see data.population.draw.
        logits = np.einsum("ij,ik->k", self.scale, self.effects(counts, ranks)) + self.intercept
        return expit(logits - (self.mean * self.scale).sum()).astype(np.float32)


def _logs(counts: np.ndarray) -> np.ndarray:
    """log(1 + max(count, 0)), float64 [linear + curved, rows], of counts [13, rows]."""
    return np.log1p(np.maximum(counts[[COUNT[name] for name in LINEAR + CURVED]], 0))


@lru_cache(maxsize=8)
def click_model(config: SyntheticConfig) -> ClickModel:
    """The click model of ``config``, its constants taken from 2^18 rows of features that belong to no seed.

    The intercept makes the mean probability ``CLICK_RATE`` there; no label is looked at.
    """
    rng = np.random.default_rng(np.random.SeedSequence(0, spawn_key=(0, 1)))  # generate() uses keys of length one
    counts, ranks = draw(config, rng, 2**18)
    logs = _logs(counts)
    model = ClickModel(
        config,
        log_mean=np.nanmean(logs, 1, keepdims=True),
        log_std=np.nanstd(logs, 1, keepdims=True),
        latent_mean=np.zeros((len(PAIRS), 2, LATENT)),
        mean=np.zeros(1),
        scale=np.ones(1),
    )
    latent_mean = [[model.latent(name, ranks[CATEGORY[name]]).mean(1) for name in pair] for pair in PAIRS]
    model = replace(model, latent_mean=np.array(latent_mean))
    effects = model.effects(counts, ranks)
    mean, std = effects.mean(1, keepdims=True), effects.std(1, keepdims=True)
    # A table of one id has no effect; its scale is then of no matter.
    scale = 1 / np.where(std > 0, std, 1)
    ids, dense = len(ID_FEATURES), len(ID_FEATURES) + len(PAIRS)
    kinds = (slice(0, ids), slice(ids, dense), slice(dense, None))
    for kind, wanted in zip(kinds, (config.id_std, config.pair_std, config.dense_std), strict=True):
        actual = ((effects[kind] - mean[kind]) * scale[kind]).sum(0).std()
        scale[kind] *= wanted / actual if actual > 0 else 1
    model = replace(model, mean=mean, scale=scale)
    logits = ((effects - mean) * scale).sum(0)
    return replace(model, intercept=float(brentq(lambda b: expit(logits + b).mean() - CLICK_RATE, -10, 10)))


def describe(config: SyntheticConfig) -> str:
    """The click model in a few lines: its kinds of effects, their strength, and how the effects shrink with rarity."""
    model = click_model(config)
    lines = [
        f"logit P(click) = {model.intercept:.3f} + ids + pairs + dense",
        f"  ids    std {config.id_std}: one effect per id of {', '.join(ID_FEATURES)}",
        f"  pairs  std {config.pair_std}: latent dot products of {', '.join(' x '.join(pair) for pair in PAIRS)}",
        f"  dense  std {config.dense_std}: linear {', '.join(LINEAR)}; distance from the mean {', '.join(CURVED)}",
    ]
    n = config.cardinalities[CATEGORY["C3"]]
    ranks = np.array([10**i for i in range(8) if 10**i < n] + [n]) - 1
    stds = model.scale[ID_FEATURES.index("C3"), 0] * model.effect_std("C3", ranks)
    by_rank = ", ".join(f"{rank + 1}: {std:.3f}" for rank, std in zip(ranks, stds, strict=True))
    return "\n".join([*lines, f"  std of an effect of C3's most frequent id (1) to its rarest: {by_rank}"])
