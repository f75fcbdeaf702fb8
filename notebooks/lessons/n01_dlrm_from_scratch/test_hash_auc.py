"""What shared rows cost in AUC: the experiment on few rows, and the record that the notebook shows."""

from __future__ import annotations

import json

import pytest

from data.synthetic import SyntheticConfig
from lessons.n01_dlrm_from_scratch import hash_auc
from lessons.n01_dlrm_from_scratch.hash_auc import Sizes
from model.hashing import Hash


def test_the_tables_have_their_share_of_the_ids():
    data = SyntheticConfig(100)
    whole, tenth = (hash_auc.settings(Hash.SORTED, share, data, 0, 64).model.cardinalities for share in (1, 0.1))
    assert whole == data.cardinalities
    assert all(few == max(1, round(many / 10)) for few, many in zip(tenth, whole, strict=True))


def test_an_experiment_on_few_rows():
    experiment = Sizes(100, train_rows=4096, test_rows=2048, batch_size=256, shares=(2.0, 1.0), seeds=(0,))
    best, *rows = hash_auc.run(experiment)
    assert [(row["hash"], row["share"]) for row in rows] == [("modulus", 2.0), ("sorted", 1.0), ("modulus", 1.0)]
    assert 0.7 < best["auc"] < 0.85
    assert all(0.4 < row["auc"] < best["auc"] for row in rows)


def test_the_record_is_of_the_experiment_as_it_stands():
    record = json.loads(hash_auc.RECORD.read_text())
    assert Sizes(**{name: _tuple(value) for name, value in record["experiment"].items()}) == Sizes()
    table = hash_auc.recorded()
    assert (table["lowest"] <= table["auc"]).all()
    assert (table["auc"] <= table["highest"]).all()
    assert table["auc"].max() < table.attrs["best"]


def test_the_seeds_of_a_model_become_one_line(tmp_path):
    rows = [{"hash": "modulus", "share": 1.0, "rows": 9, "auc": auc} for auc in (0.5, 0.7)]
    record = {"experiment": {"largest_table": 100}, "rows": [{"hash": "the true probability", "auc": 0.8}, *rows]}
    (tmp_path / "record.json").write_text(json.dumps(record))
    (line,) = hash_auc.recorded(tmp_path / "record.json").itertuples()
    assert (line.auc, line.lowest, line.highest) == (pytest.approx(0.6), 0.5, 0.7)


def _tuple(value):
    return tuple(value) if isinstance(value, list) else value
