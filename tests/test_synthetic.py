"""data.synthetic: rows that look like Criteo's, a click model as hard as stated, the same rows for the same seed."""

import re
from collections import Counter
from itertools import combinations

import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet
import pytest
from scipy.stats import chi2_contingency, spearmanr
from sklearn.metrics import roc_auc_score

from data import click_model, synthetic
from data.cli import UserError
from data.click_model import ID_FEATURES, PAIRS
from data.criteo import DENSE, LABEL, MISSING, SCHEMA, SPARSE, SPLITS
from data.metadata import read_metadata
from data.population import CATEGORIES, COUNTS, FULL, KEPT, SyntheticConfig, draw, hashed_ids
from data.synthetic import PROBABILITY

pytest.importorskip("polars")

ROWS = 200_000
DENSE_OF = dict(zip(COUNTS, DENSE, strict=True))
SPARSE_OF = dict(zip(CATEGORIES, SPARSE, strict=True))
# Spearman's correlations of the first 7,200 real rows, over the rows that hold both counts: all from 0.4 on.
STRONGEST = {
    "I7 I11": 0.882, "I1 I10": 0.878, "I5 I10": -0.815, "I1 I5": -0.782, "I4 I13": 0.749, "I6 I10": -0.636,
    "I5 I6": 0.632, "I1 I6": -0.624, "I8 I13": 0.602, "I4 I8": 0.568, "I6 I9": 0.480, "I9 I11": 0.473, "I8 I9": 0.432,
    "I7 I9": 0.416, "I5 I11": -0.413,
}


@pytest.fixture(scope="module")
def table() -> pa.Table:
    return pa.concat_tables(synthetic.generate(ROWS, seed=0))


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    out = tmp_path_factory.mktemp("synthetic") / "data"
    synthetic.main(["--rows", str(ROWS), "--out", str(out), "--seed", "0"])
    return out


def read(directory, columns=None) -> pa.Table:
    splits = [pa.dataset.dataset(directory / split, format="parquet").to_table(columns=columns) for split in SPLITS]
    return pa.concat_tables(splits)


def column(table: pa.Table, feature: str) -> np.ndarray:
    return table[SPARSE_OF[feature]].to_numpy()


def rank_correlations(counts: dict[str, np.ndarray]) -> dict[str, float]:
    """{"a b": Spearman's correlation} of every two counts, over the rows in which neither is missing."""
    coefficients = {}
    for a, b in combinations(counts, 2):
        both = ~np.isnan(counts[a]) & ~np.isnan(counts[b])
        coefficients[f"{a} {b}"] = float(spearmanr(counts[a][both], counts[b][both]).statistic)
    return coefficients


@pytest.fixture(scope="module")
def correlations(table) -> dict[str, float]:
    return rank_correlations({name: table[DENSE_OF[name]].to_numpy() for name in COUNTS})


@pytest.fixture(scope="session")
def real_rows(criteo_tsv) -> list[list[str]]:
    return [line.rstrip("\n").split("\t") for line in criteo_tsv.open()]


def test_schema(table):
    assert table.schema == SCHEMA.append(pa.field(PROBABILITY, pa.float32(), nullable=False))
    assert table.num_rows == ROWS
    assert len(COUNTS) == len(DENSE)
    assert len(CATEGORIES) == len(SPARSE)


@pytest.mark.parametrize("rows", [1, 7, synthetic.CHUNK_ROWS, synthetic.CHUNK_ROWS + 1, 100_000])
def test_fewer_rows_are_the_first_of_more(table, rows):
    assert pa.concat_tables(synthetic.generate(rows, seed=0)).equals(table[:rows])


def test_seeds_differ_but_share_the_population(table):
    other = pa.concat_tables(synthetic.generate(ROWS, seed=1))
    assert not other[DENSE[1]].equals(table[DENSE[1]])
    assert np.isin(np.unique(column(other, "C2")), np.unique(column(table, "C2"))).mean() > 0.99
    model = click_model.click_model(SyntheticConfig())
    assert model is click_model.click_model(SyntheticConfig())


def test_a_reader_that_stops_early_ends_the_threads():
    tables = synthetic.generate(10**12, seed=0)
    assert next(tables).num_rows == synthetic.CHUNK_ROWS
    tables.close()


@pytest.mark.parametrize("name", COUNTS)
def test_counts(table, name):
    spec, values = COUNTS[name], table[DENSE_OF[name]]
    present = values.drop_null().to_numpy()
    assert values.null_count / ROWS == pytest.approx(spec.missing, abs=0.005)
    assert present.mean() == pytest.approx(spec.mean, rel=0.05)
    # The standard deviations of I3 and I12 are those of a few rows in a thousand.
    assert present.std() == pytest.approx(spec.std, rel=0.25 if spec.std > 5 * spec.mean else 0.06)
    assert present.min() == (-2 if name == "I2" else 0)


@pytest.mark.parametrize("name", CATEGORIES)
def test_categories(table, name):
    spec, ids = CATEGORIES[name], column(table, name)
    cardinality = SyntheticConfig().cardinalities[list(CATEGORIES).index(name)]
    assert (ids == MISSING).mean() == pytest.approx(spec.missing, abs=0.005)
    drawn, counts = np.unique(ids[ids != MISSING], return_counts=True)
    assert drawn.min() >= 0
    assert drawn.max() < 2**32
    assert 0.98 * cardinality <= len(drawn) <= cardinality
    # Not only the id drawn most often: where the first ids are about as frequent, that one is the luckiest of them.
    assert (ids == int(hashed_ids(name, 0)[0])).mean() == pytest.approx(spec.top_share, rel=0.07)
    assert counts.max() / ROWS == pytest.approx(spec.top_share, rel=0.1)
    expected = SyntheticConfig().frequency(name, np.arange(cardinality))
    assert expected.sum() + spec.missing == pytest.approx(1)
    assert (np.diff(expected) <= 0).all()
    assert expected[0] == pytest.approx(spec.top_share)
    head = hashed_ids(name, np.arange(min(cardinality, 5)))
    shares = [(ids == value).mean() for value in head.astype(np.int64)]
    assert shares == pytest.approx(expected[: len(head)], abs=0.005)


@pytest.mark.parametrize("name", CATEGORIES)
def test_top_shares_are_the_real_ones(real_rows, name):
    column = 14 + list(CATEGORIES).index(name)
    (_, top), *_ = Counter(row[column] for row in real_rows if row[column]).most_common(1)
    assert CATEGORIES[name].top_share == pytest.approx(top / len(real_rows), rel=0.01)


def test_a_table_too_small_for_its_top_share_is_uniform():
    for config in (SyntheticConfig(1), SyntheticConfig(20)):
        n = config.cardinalities[list(CATEGORIES).index("C7")]
        np.testing.assert_allclose(config.frequency("C7", np.arange(n)), 1 / n, rtol=1e-4)
        assert config.frequency("C1", 0) == pytest.approx(CATEGORIES["C1"].top_share if n > 1 else 1, rel=1e-4)


@pytest.mark.parametrize("name", ["C3", "C10", "C26"])
def test_zipf_tail(name):
    shares = SyntheticConfig(FULL).frequency(name, np.array([99, 999, 9999]))
    np.testing.assert_allclose(shares[:-1] / shares[1:], 10, rtol=0.03)


@pytest.mark.parametrize("pair", STRONGEST)
def test_the_strongest_correlations(correlations, pair):
    assert correlations[pair] == pytest.approx(STRONGEST[pair], abs=0.05)


def test_correlations_are_those_of_the_real_rows(real_rows, correlations):
    values = np.array([[float(value or "nan") for value in row[1:14]] for row in real_rows]).T
    real = rank_correlations(dict(zip(COUNTS, values, strict=True)))
    assert {pair for pair, r in real.items() if abs(r) >= 0.4} == set(STRONGEST)
    assert {pair: real[pair] for pair in STRONGEST} == pytest.approx(STRONGEST, abs=0.001)
    assert correlations == pytest.approx(real, abs=0.05)


def test_features_of_a_group_go_missing_together(table):
    for specs, missing in (
        (COUNTS, lambda name: table[DENSE_OF[name]].is_null().to_numpy()),
        (CATEGORIES, lambda name: column(table, name) == MISSING),
    ):
        for group in {spec.group for spec in specs.values() if spec.group}:
            rates = {name: specs[name].missing for name in group.split()}
            rarest = min(rates, key=rates.get)
            for name, rate in rates.items():
                both = (missing(name) & missing(rarest)).sum()
                assert both == missing(rarest).sum()
                assert missing(name).sum() - both == pytest.approx((rate - rates[rarest]) * ROWS, abs=0.002 * ROWS)
    alone = (table[DENSE_OF["I1"]].is_null().to_numpy(), table[DENSE_OF["I4"]].is_null().to_numpy())
    assert (alone[0] & alone[1]).mean() == pytest.approx(0.454 * 0.217, abs=0.005)


def test_cardinalities():
    full = tuple(category.cardinality for category in CATEGORIES.values())
    assert SyntheticConfig(FULL).cardinalities == full
    small = SyntheticConfig().cardinalities
    assert max(small) == 2000
    assert all(a == b for a, b in zip(small, full, strict=True) if b <= KEPT)
    order = np.argsort(full, kind="stable")
    assert (np.diff(np.array(small)[order]) >= 0).all()
    assert set(SyntheticConfig(1).cardinalities) == {1}


def test_ids_are_unique_over_all_features_at_full_size():
    ids = np.concatenate([hashed_ids(name, np.arange(spec.cardinality)) for name, spec in CATEGORIES.items()])
    assert ids.dtype == np.uint32
    ids.sort()
    assert (ids[1:] != ids[:-1]).all()


def test_an_id_does_not_depend_on_the_configuration(table):
    full = pa.concat_tables(synthetic.generate(1000, 0, SyntheticConfig(FULL)))
    assert (column(full, "C9") == column(table, "C9")[:1000]).all()
    assert len(np.unique(column(full, "C3"))) > 600


def test_click_rate(table):
    probability, labels = table[PROBABILITY].to_numpy(), table[LABEL].to_numpy()
    # Four standard errors at 200,000 rows; the labels' is twice the probabilities'.
    assert probability.mean(dtype=np.float64) == pytest.approx(click_model.CLICK_RATE, abs=0.002)
    assert labels.mean() == pytest.approx(click_model.CLICK_RATE, abs=0.004)
    for low in np.arange(0, 0.8, 0.1):  # labels are drawn with these very probabilities
        chosen = (low <= probability) & (probability < low + 0.1)
        assert labels[chosen].mean() == pytest.approx(probability[chosen].mean(), abs=0.03)


@pytest.mark.parametrize("largest_table", [100, 2000, FULL])
def test_best_auc_in_range_whatever_the_cardinalities(largest_table):
    best = synthetic.best_auc(synthetic.generate(100_000, 0, SyntheticConfig(largest_table)))
    assert 0.72 <= best["all"] <= 0.82


def test_best_auc_is_sklearns(table, directory):
    best = synthetic.best_auc(directory)
    labels, probability = table[LABEL].to_numpy(), table[PROBABILITY].to_numpy()
    bounds = {"train": (0, 6), "validation": (6, 6.5), "test": (6.5, 7)}
    assert best.keys() == bounds.keys()
    for split, (start, end) in bounds.items():
        part = slice(int(ROWS * start / 7), int(ROWS * end / 7))
        assert best[split] == pytest.approx(roc_auc_score(labels[part], probability[part]), abs=2e-5)
        assert 0.72 <= best[split] <= 0.82


def test_dense_features_alone_say_little(directory):
    assert 0.52 < synthetic.dense_only_auc(directory) <= 0.62


def test_ten_features_have_effects_in_the_labels(table):
    labels, with_effect = table[LABEL].to_numpy(), set()
    for name in CATEGORIES:
        present = column(table, name) != MISSING  # which a feature may share with one that has effects
        _, ids, counts = np.unique(column(table, name)[present], return_inverse=True, return_counts=True)
        often = np.argsort(-counts)[: min(50, (counts > 100).sum())]
        seen = np.bincount(2 * ids + labels[present], minlength=2 * len(counts)).reshape(-1, 2)[often]
        if chi2_contingency(seen).pvalue < 1e-6:
            with_effect.add(name)
    assert len(with_effect) >= 10
    assert with_effect == set(ID_FEATURES)


def test_effects_shrink_with_rarity():
    model = click_model.click_model(SyntheticConfig())
    stds = [model.id_effect("C3", np.arange(a, b)).std() for a, b in ((0, 100), (100, 500), (500, 2000))]
    assert stds[0] > 1.3 * stds[1] > 1.3**2 * stds[2]
    for name in ID_FEATURES:
        ranks = np.arange(model.config.cardinalities[list(CATEGORIES).index(name)])
        assert (np.diff(model.effect_std(name, ranks)) < 0).sum() >= len(ranks) - 2  # a top share may tie
    ranks = np.arange(2000)
    assert (model.id_effect("C3", ranks) / model.effect_std("C3", ranks)).std() == pytest.approx(1, abs=0.06)


def test_pairs_interact():
    model = click_model.click_model(SyntheticConfig())
    assert len(PAIRS) >= 2
    for pair, names in enumerate(PAIRS):
        sizes = [model.config.cardinalities[list(CATEGORIES).index(name)] for name in names]
        # All ids and "missing", so that the frequencies add up to one.
        ranks = [np.arange(MISSING, size) for size in sizes]
        weights = [model.config.frequency(name, r) for name, r in zip(names, ranks, strict=True)]
        first, second = np.meshgrid(*ranks, indexing="ij")
        effects = model.pair_effect(pair, first.ravel(), second.ravel()).reshape(first.shape)
        std = np.sqrt((weights[0][:, None] * weights[1] * effects**2).sum())
        # Zero on average given either id, up to the sampling error of the centring: nothing additive is left in it.
        assert np.sqrt(weights[0] @ (effects @ weights[1]) ** 2) < 0.02 * std
        assert np.sqrt((weights[0] @ effects) ** 2 @ weights[1]) < 0.02 * std


def test_interactions_matter():
    config = SyntheticConfig()
    model = click_model.click_model(config)
    counts, ranks = draw(config, np.random.default_rng(3), ROWS)
    labels = np.random.default_rng(4).random(ROWS) < model.probability(counts, ranks)
    effects = (model.effects(counts, ranks) - model.mean) * model.scale
    ids, pairs = len(ID_FEATURES), len(PAIRS)
    auc = {
        "all": roc_auc_score(labels, effects.sum(0)),
        "no pairs": roc_auc_score(labels, np.delete(effects, range(ids, ids + pairs), 0).sum(0)),
        "no ids": roc_auc_score(labels, effects[ids:].sum(0)),
    }
    assert auc["no pairs"] < auc["all"] - 0.03
    assert auc["no ids"] < auc["all"] - 0.06


def test_parquet_holds_the_generated_rows(table, directory):
    assert read(directory).equals(table)
    metadata = read_metadata(directory)
    for name, cardinality in zip(CATEGORIES, SyntheticConfig().cardinalities, strict=True):
        assert 0.98 * cardinality <= metadata[SPARSE_OF[name]].cardinality <= cardinality


def test_printed(tmp_path, capsys):
    synthetic.main(["--rows", "40000", "--out", str(tmp_path / "data"), "--check"])
    out = capsys.readouterr().out
    assert re.search(r"^rows 40000, click rate 2[45]\.\d\d %$", out, re.M)
    assert re.search(r"^best AUC +train 0\.\d{4} +validation 0\.\d{4} +test 0\.\d{4}$", out, re.M)
    assert re.search(r"dense features alone +test 0\.\d{4}$", out, re.M)
    assert "C2 x C14" in out


def test_tsv_preprocessed_is_the_parquet_form(table, tmp_path, capsys):
    pytest.importorskip("loguru")
    from data import preprocess

    rows = 40_000
    synthetic.main(["--rows", str(rows), "--out", str(tmp_path / "raw"), "--format", "tsv"])
    assert f"rows {rows}" in capsys.readouterr().out
    assert [path.name for path in (tmp_path / "raw").iterdir()] == ["train.txt"]
    first = (tmp_path / "raw" / "train.txt").read_text().split("\n", 1)[0].split("\t")
    assert len(first) == 1 + 13 + 26
    assert first[14] == f"{table[SPARSE[0]][0].as_py():08x}"
    preprocess.main([str(tmp_path / "raw" / "train.txt"), "--out", str(tmp_path / "parquet")])
    got = read(tmp_path / "parquet")
    assert got.equals(table.drop_columns(PROBABILITY)[:rows])


def fails(capsys, *arguments: str) -> str:
    with pytest.raises(SystemExit) as error:
        synthetic.main(list(arguments))
    message = capsys.readouterr().err
    assert error.value.code == 2
    assert message.count("\n") == 1
    return message


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--rows", "0"], "rows: expected 1 to 1000000000000, found 0"),
        (["--rows", "-5"], "rows: expected 1 to 1000000000000, found -5"),
        (["--rows", "99999999999999999999"], "rows: expected 1 to 1000000000000, found 99999999999999999999"),
        (["--rows", "1e6"], "--rows: invalid int value: '1e6'"),
        (["--rows", "10", "--seed", "nan"], "--seed: invalid int value: 'nan'"),
        (["--rows", "10", "--seed", "-1"], "seed: expected 0 or more, found -1"),
        (["--rows", "10", "--largest-table", "0"], f"largest_table: expected 1 to {FULL}, found 0"),
        (["--rows", "10", "--largest-table", str(FULL + 1)], f"largest_table: expected 1 to {FULL}, found {FULL + 1}"),
        (["--rows", "10", "--format", "tsv", "--check"], "--check"),
    ],
)
def test_wrong_arguments(tmp_path, capsys, arguments, expected):
    assert expected in fails(capsys, *arguments, "--out", str(tmp_path / "data"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("form", ["parquet", "tsv"])
def test_out_in_use_is_left_alone(tmp_path, capsys, form):
    (tmp_path / "mine").write_text("precious")
    assert str(tmp_path) in fails(capsys, "--rows", "10", "--out", str(tmp_path), "--format", form)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    file = str(tmp_path / "mine")
    assert file in fails(capsys, "--rows", "10", "--out", file, "--format", form)


@pytest.mark.parametrize("form", ["parquet", "tsv"])
def test_a_failure_leaves_nothing(tmp_path, capsys, monkeypatch, form):
    def full_disk(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(synthetic, "_chunk", full_disk)
    out = str(tmp_path / "data")
    assert "No space left" in fails(capsys, "--rows", "10", "--out", out, "--format", form)
    assert not list(tmp_path.iterdir())


def test_library_errors(tmp_path):
    for rows, seed in ((0, 0), (-1, 0), (1, -1)):
        with pytest.raises(UserError):
            synthetic.generate(rows, seed)
    with pytest.raises(UserError, match="id_std"):
        SyntheticConfig(id_std=0)
    with pytest.raises(UserError, match="train"):
        synthetic.best_auc(tmp_path)
    for split in SPLITS:
        (tmp_path / split).mkdir()
        pa.parquet.write_table(SCHEMA.empty_table(), tmp_path / split / "part.parquet")
    with pytest.raises(UserError, match=PROBABILITY):
        synthetic.best_auc(tmp_path)


def test_few_rows(tmp_path, capsys):
    synthetic.main(["--rows", "1", "--out", str(tmp_path / "data")])
    assert "rows 1," in capsys.readouterr().out
    assert np.isnan(list(synthetic.best_auc(tmp_path / "data").values())).all()
    assert np.isnan(synthetic.dense_only_auc(tmp_path / "data"))


def test_any_seed(tmp_path, capsys):
    seed = 99999999999999999999
    synthetic.main(["--rows", "1000", "--seed", str(seed), "--out", str(tmp_path / "data")])
    assert "rows 1000," in capsys.readouterr().out
    drawn = read(tmp_path / "data")
    assert drawn.equals(pa.concat_tables(synthetic.generate(1000, seed)))
    assert not drawn.equals(pa.concat_tables(synthetic.generate(1000, seed % 2**64)))
