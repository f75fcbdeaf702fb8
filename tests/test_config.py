"""Presets and their command-line options."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest

from data.cli import Parser
from data.criteo import SPARSE, Feature
from model.config import PRESETS, DLRMConfig, Preset, TrainConfig, add_arguments, from_arguments, preset


def parse(*arguments: str) -> Preset:
    parser = Parser(prog="test")
    add_arguments(parser)
    return from_arguments(parser.parse_args(arguments), parser)


def test_presets_have_the_stated_shapes():
    shapes = {name: (p.model.bottom, p.model.embedding_dim, p.model.top) for name, p in PRESETS.items()}
    assert shapes == {
        "small": ((13, 32, 16), 16, (32, 1)),
        "main": ((13, 512, 256, 64, 16), 16, (512, 256, 1)),
        "mini": ((13, 8, 4), 4, (8, 1)),
        "mlperf": ((13, 512, 256, 128), 128, (1024, 1024, 512, 256, 1)),
    }
    assert PRESETS["mini"].model.cardinalities == (10, 20, 30)


def test_any_field_can_be_overridden():
    got = parse(
        "--preset", "main", "--bottom", "13-64-8", "--embedding-dim", "8", "--top", "4-1", "--interaction", "cat",
        "--hash", "modulus", "--cardinalities", "5-6", "--sparse-gradients", "--optimizer", "sgd",
        "--weight-decay", "0", "--learning-rate", "0.5", "--batch-size", "7", "--epochs", "3", "--patience", "2",
        "--seed", "9", "--threads", "4",
    )  # fmt: skip
    assert got.model == DLRMConfig((13, 64, 8), 8, (4, 1), "cat", "modulus", (5, 6), True)
    assert got.train == TrainConfig("sgd", 0.5, 0.0, 7, 3, 2, 9, 4)
    assert parse("--preset", "mini") == PRESETS["mini"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--preset", "tiny"], "preset: expected one of small, main, mini, mlperf, got 'tiny'"),
        (["--bottom", "13,8"], "argument --bottom: expected whole numbers joined by '-', as in 13-32-16, got '13,8'"),
        (["--bottom", "13-32"], "bottom: expected to end in embedding_dim, 16, got 13-32"),
        (["--top", "8-2"], "top: expected to end in 1, the logit, got 8-2"),
        (["--hash", "md5"], "argument --hash: expected one of index_naive, index, modulus, got 'md5'"),
        (["--batch-size", "0"], "batch_size: expected a positive number, got 0"),
        (["--learning-rate", "nan"], "learning_rate: expected a finite number, got nan"),
        (["--sparse-gradients"], "sparse_gradients: expected optimizer sgd or adagrad, got adam"),
    ],
)
def test_mistakes_are_one_line(capsys, arguments, message):
    with pytest.raises(SystemExit) as stop:
        parse(*arguments)
    assert stop.value.code == 2
    assert capsys.readouterr().err == f"test: error: {message}\n"


def test_frozen_and_checked():
    with pytest.raises(FrozenInstanceError):
        PRESETS["small"].model.top = (1,)
    with pytest.raises(ValueError, match="preset: expected one of"):
        preset("large")
    with pytest.raises(ValueError, match="embedding_dim: expected a positive width, got 0"):
        replace(DLRMConfig(), embedding_dim=0, bottom=(13, 1))


def test_metadata_gives_the_cardinalities():
    features = {name: Feature(i, np.arange(i, dtype=np.int64)) for i, name in enumerate(SPARSE)}
    full = DLRMConfig().with_metadata(features)
    assert full.cardinalities == tuple(range(26))
    assert [len(ids) for ids in full.vocabularies(features)] == list(range(26))
    own = replace(DLRMConfig(), cardinalities=(10, 1, 1)).with_metadata(features)
    assert own.cardinalities == (0, 1, 1)  # a feature with fewer ids has a smaller table
    assert [ids.tolist() for ids in own.vocabularies(features)] == [[], [0], [0]]
