"""Presets and their command-line options."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest

from data.cli import Parser, UserError
from data.criteo import SPARSE
from data.metadata import Feature
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


def test_mlperf_is_what_the_reference_trains():
    """The flags of facebookresearch/dlrm's bench/run_and_time.sh, and the defaults of its dlrm_s_pytorch.py."""
    model, settings = PRESETS["mlperf"].model, PRESETS["mlperf"].train
    assert (model.interaction, model.sparse_gradients) == ("dot", True)
    assert settings == TrainConfig(
        "sgd", 1.0, "sgd", 1.0, weight_decay=0, batch_size=2048, epochs=1, eval_batch_size=16384, threads=0
    )


def test_any_field_can_be_overridden():
    got = parse(
        "--preset", "main", "--bottom", "13-64-8", "--embedding-dim", "8", "--top", "4-1", "--interaction", "cat",
        "--hash", "modulus", "--cardinalities", "5-6", "--no-sparse-gradients", "--optimizer", "sgd",
        "--learning-rate", "0.5", "--table-optimizer", "adam", "--table-learning-rate", "0.25", "--weight-decay", "0",
        "--warmup-steps", "100", "--decay-start-step", "200", "--decay-steps", "50", "--precision", "bf16",
        "--batch-size", "7", "--epochs", "3", "--patience", "2",
        "--checkpoint-every", "11", "--eval-every", "12", "--eval-batch-size", "13", "--seed", "9", "--threads", "4",
    )
    assert got.model == DLRMConfig((13, 64, 8), 8, (4, 1), "cat", "modulus", (5, 6), False)
    assert got.train == TrainConfig("sgd", 0.5, "adam", 0.25, 0.0, 100, 200, 50, "bf16", 7, 3, 2, 11, 12, 13, 9, 4)
    assert parse("--preset", "mini") == PRESETS["mini"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--preset", "tiny"], "preset: expected one of small, main, mini, mlperf, got 'tiny'"),
        (["--bottom", "13,8"], "argument --bottom: expected whole numbers joined by '-', as in 13-32-16, got '13,8'"),
        (["--bottom", "13-32"], "bottom: expected to end in embedding_dim, 16, got 13-32"),
        (["--top", "8-2"], "top: expected to end in 1, the logit, got 8-2"),
        (["--hash", "md5"], "argument --hash: expected one of index_naive, index, sorted, table, modulus, got 'md5'"),
        (["--batch-size", "0"], "batch_size: expected a positive number, got 0"),
        (["--learning-rate", "nan"], "learning_rate: expected a finite number, got nan"),
        (["--precision", "fp8"], "argument --precision: expected one of fp32, tf32, bf16, got 'fp8'"),
        (["--eval-every", "-1"], "eval_every: expected a number from 0, got -1"),
        (["--seed", "9" * 20], f"seed: expected a number from 0 to 2^63 - 1, got {'9' * 20}"),
        (
            ["--table-optimizer", "adam"],
            "table_optimizer: adam does not take sparse gradients; use --table-optimizer adagrad or sgd, "
            "or --no-sparse-gradients, which updates every row of every table in every step",
        ),
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
    with pytest.raises(UserError, match="preset: expected one of"):
        preset("large")
    with pytest.raises(UserError, match="embedding_dim: expected a positive width, got 0"):
        replace(DLRMConfig(), embedding_dim=0, bottom=(13, 1))


def test_metadata_gives_the_cardinalities():
    features = {name: Feature(i, np.arange(i, dtype=np.int64)) for i, name in enumerate(SPARSE)}
    full = DLRMConfig().with_metadata(features)
    assert full.cardinalities == tuple(range(26))
    assert [len(ids) for ids in full.vocabularies(features)] == list(range(26))
    own = replace(DLRMConfig(), cardinalities=(10, 1, 1)).with_metadata(features)
    assert own.cardinalities == (0, 1, 1)  # a feature with fewer ids has a smaller table
    assert [ids.tolist() for ids in own.vocabularies(features)] == [[], [0], [0]]
