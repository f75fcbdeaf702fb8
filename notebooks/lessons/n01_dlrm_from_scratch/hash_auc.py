"""What shared rows cost: the AUC of small models that differ in how an id becomes a row, and in nothing else.

    python -m lessons.n01_dlrm_from_scratch.hash_auc  # trains on this machine's CPU, writes results/hash_auc.json
    python -m lessons.n01_dlrm_from_scratch.hash_auc --show  # prints that file

Data: data.synthetic, whose true click probabilities are known, so that the best AUC any model can reach is known too.
Each model sees the training rows once, in one order, its tables drawn with one bound; what differs is the hash and
the number of rows of its tables:

    sorted     exact: the `rows` most frequent ids of a table have a row each, all others share row 0
    modulus    (id + 1) mod rows: every id has a row, and shares it with others

An AUC does not depend on a device's speed, so that a CPU may record it.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from sklearn.metrics import roc_auc_score
from torch import Tensor

from data.criteo import DENSE, LABEL, SPARSE
from data.synthetic import CATEGORIES, PROBABILITY, SyntheticConfig, generate, hashed_ids
from model.config import PRESETS, Preset
from model.dlrm import DLRM
from model.hashing import Hash
from model.optimizers import make_optimizer
from model.profiling import TRACES

RECORD = TRACES / "results" / "hash_auc.json"
PROG = "python -m lessons.n01_dlrm_from_scratch.hash_auc"


@dataclass(frozen=True)
class Sizes:
    """largest_table: ids of the largest of 26 tables, the others scaled along, as in data.synthetic. shares: the rows
    that a table has, as parts of its ids. seeds: of the initial weights; the rows are those of data.synthetic's seed 0.
    """

    largest_table: int = 20_000
    train_rows: int = 400_000
    test_rows: int = 100_000
    batch_size: int = 512
    shares: tuple[float, ...] = (10.0, 4.0, 1.0, 0.25, 0.1)
    seeds: tuple[int, ...] = (0, 1, 2)


@dataclass(frozen=True)
class Rows:
    """Rows of data.synthetic: labels float32 [N], dense float32 [N, 13], sparse int64 [N, 26], probability [N]."""

    labels: Tensor
    dense: Tensor
    sparse: Tensor
    probability: np.ndarray

    def __getitem__(self, part: slice) -> Rows:
        return Rows(self.labels[part], self.dense[part], self.sparse[part], self.probability[part])

    @property
    def best_auc(self) -> float:
        return float(roc_auc_score(self.labels.numpy(), self.probability))


def draw(rows: int, data: SyntheticConfig) -> Rows:
    """The first rows of seed 0, as data.criteo.CriteoBatches gives them: counts as log(1 + max(x, 0)), 0 if missing."""
    tables = list(generate(rows, 0, data))
    stack = lambda names: np.stack(  # noqa: E731
        [np.concatenate([table[name].to_numpy() for table in tables]) for name in names], axis=1
    )
    counts = np.nan_to_num(stack(DENSE).astype(np.float32))
    return Rows(
        torch.from_numpy(stack([LABEL])[:, 0].astype(np.float32)),
        torch.from_numpy(np.log1p(np.maximum(counts, 0))),
        torch.from_numpy(stack(SPARSE)),
        stack([PROBABILITY])[:, 0],
    )


def settings(kind: Hash, share: float, data: SyntheticConfig, seed: int, batch_size: int) -> Preset:
    """The preset `small` with tables of that share of the ids, at least 1."""
    cardinalities = tuple(max(1, round(share * ids)) for ids in data.cardinalities)
    model = replace(PRESETS["small"].model, hash=kind, cardinalities=cardinalities)
    return Preset(model, replace(PRESETS["small"].train, seed=seed, batch_size=batch_size))


def auc(preset: Preset, data: SyntheticConfig, train: Rows, test: Rows) -> float:
    """Train on the rows once, in order; the AUC on the others."""
    torch.manual_seed(preset.train.seed)
    vocabularies = None
    if preset.model.hash is not Hash.MODULUS:  # a synthetic id's rank is its place by frequency
        known = zip(CATEGORIES, preset.model.cardinalities, strict=True)
        vocabularies = [hashed_ids(name, np.arange(ids)).astype(np.int64) for name, ids in known]
    model = DLRM(preset.model, vocabularies)
    for feature, ids in enumerate(data.cardinalities):  # by the ids, where DLRM goes by the rows: one thing differs
        model.sparse_arch.table(feature).uniform_(-1 / math.sqrt(ids), 1 / math.sqrt(ids))
    optimizer, size = make_optimizer(model, preset), preset.train.batch_size
    for first in range(0, len(train.labels) - size + 1, size):
        rows = train[first : first + size]
        optimizer.advance()
        optimizer.zero_grad()
        F.binary_cross_entropy_with_logits(model(rows.dense, rows.sparse), rows.labels).backward()
        optimizer.step()
    with torch.no_grad():
        parts = range(0, len(test.labels), 8192)
        logits = torch.cat([model(test.dense[i : i + 8192], test.sparse[i : i + 8192]) for i in parts])
    return float(roc_auc_score(test.labels.numpy(), logits.numpy()))


def run(sizes: Sizes) -> Iterator[dict]:
    """A row for each model: hash, share, rows (of all tables), ids, seed, auc."""
    data = SyntheticConfig(sizes.largest_table)
    rows = draw(sizes.train_rows + sizes.test_rows, data)
    train, test = rows[: sizes.train_rows], rows[sizes.train_rows :]
    yield {"hash": "the true probability", "auc": test.best_auc}
    for seed in sizes.seeds:
        for share in sizes.shares:
            for kind in (Hash.SORTED, Hash.MODULUS) if share <= 1 else (Hash.MODULUS,):  # exact needs no more rows
                preset = settings(kind, share, data, seed, sizes.batch_size)
                labels = {"hash": str(kind), "share": share, "rows": sum(preset.model.cardinalities)}
                yield labels | {"seed": seed, "auc": auc(preset, data, train, test)}


def recorded(path: Path = RECORD) -> pd.DataFrame:
    """What was recorded, a line a model: hash, share, rows, and of the seeds' AUCs auc (the mean), lowest, highest.

    attrs: best (the AUC of the true probability), experiment, ids (of all tables).
    """
    record = json.loads(path.read_text())
    groups = pd.DataFrame(record["rows"][1:]).groupby(["hash", "share", "rows"], as_index=False)["auc"]
    table = groups.agg(["mean", "min", "max"]).rename(columns={"mean": "auc", "min": "lowest", "max": "highest"})
    ids = sum(SyntheticConfig(record["experiment"]["largest_table"]).cardinalities)
    table.attrs = {"best": record["rows"][0]["auc"], "experiment": record["experiment"], "ids": ids}
    return table


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog=PROG, description="What shared rows cost in AUC.")
    parser.add_argument("--show", action="store_true", help="print what was recorded, and train nothing")
    parser.add_argument("--out", type=Path, default=RECORD, help="the file to write")
    args = parser.parse_args(arguments)
    if not args.show:
        torch.set_num_threads(1)
        sizes, rows = Sizes(), []
        for row in run(sizes):
            rows.append(row)
            print(row, flush=True)
        head = {"command": PROG, "torch": torch.__version__, "machine": platform.machine()}
        text = json.dumps(head | {"experiment": asdict(sizes), "rows": rows}, indent=1)
        args.out.write_text(text + "\n")
    print(recorded(args.out).to_string())


if __name__ == "__main__":
    main()
