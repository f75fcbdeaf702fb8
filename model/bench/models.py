"""The models that model.bench.errors and model.bench.choices hold kernels to: `main`, and others of other sizes."""

from collections.abc import Sequence
from dataclasses import replace

from kernels.ops.embedding_bags.bench import KAGGLE
from model.config import DLRMConfig, Kernels, preset

FORTY = "40 tables"
MODELS = ("main", "mlperf", "small", FORTY)


def shape_of(name: str, most_rows: int) -> DLRMConfig:
    """The fused model: Criteo's cardinalities, each at most most_rows, and where it has more tables them again."""
    tables = 40 if name == FORTY else len(KAGGLE)
    cardinalities = tuple(min(number, most_rows) for number in (*KAGGLE, *KAGGLE)[:tables])
    shape = FORTY_TABLES if name == FORTY else preset(name).model
    return replace(shape, cardinalities=cardinalities, hash="modulus", kernels=Kernels.FUSED)


def chosen(text: str) -> Sequence[str]:
    """Some of MODELS, joined by commas; ValueError."""
    names = text.split(",")
    if not {*names} <= {*MODELS}:
        raise ValueError(f"expected some of {', '.join(MODELS)}, joined by commas, got {text!r}")
    return names


FORTY_TABLES = DLRMConfig(bottom=(13, 512, 256, 32), embedding_dim=32, top=(512, 256, 1))
