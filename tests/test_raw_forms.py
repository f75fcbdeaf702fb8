"""Criteo's rows as others write them: other names of the columns, further columns, through a pipe."""

from __future__ import annotations

import gzip
import os
import threading

import pytest
from raw import raw_fields, tsv

pytest.importorskip("loguru")
pytest.importorskip("polars")
from loguru import logger
from test_preprocess import as_csv, everything, plain, run

from data.cli import UserError
from data.preprocess import preprocess
from data.text_batches import TextBatches

ROWS = raw_fields(60)
NAMES = {
    "torchrec": ["label", *(f"int_{i}" for i in range(13)), *(f"cat_{i}" for i in range(26))],
    "tfx": [
        "clicked",
        *(f"integer_feature_{i}" for i in range(1, 14)),
        *(f"categorical_feature_{i}" for i in range(1, 27)),
    ],
    "click": ["click", *(f"I{i}" for i in range(1, 14)), *(f"C{i}" for i in range(1, 27))],
}


@pytest.mark.parametrize("names", NAMES)
@pytest.mark.parametrize("delimiter", [b",", b"\t"])
def test_names_that_others_give_the_columns(tmp_path, names, delimiter):
    content = as_csv(NAMES[names], ROWS).replace(b",", delimiter)
    assert everything(run(tmp_path, content)) == plain(ROWS)


def test_further_columns_are_left_out_and_named(tmp_path):
    messages = []
    handler = logger.add(messages.append, format="{level}: {message}")
    try:
        header = ["day", *NAMES["torchrec"], "user"]
        out = run(tmp_path, as_csv(header, [["3", *row, "some, one"[:4]] for row in ROWS]))
    finally:
        logger.remove(handler)
    assert everything(out) == plain(ROWS)
    (line,) = messages
    assert line.strip() == f"WARNING: {tmp_path / 'train.txt'}: columns that are left out: day, user"


def test_two_names_of_one_column(tmp_path):
    with pytest.raises(UserError, match="column 'i1' stands there twice"):
        run(tmp_path, as_csv([*NAMES["torchrec"], "I1"], [[*row, "1"] for row in ROWS]))


def test_a_tab_at_the_end_of_each_line(tmp_path):
    assert everything(run(tmp_path, tsv([[*row, ""] for row in ROWS]))) == plain(ROWS)
    with pytest.raises(UserError, match=r"train\.txt:60: expected 41 tab-separated fields, found 40"):
        preprocess_text(tmp_path, tsv([*([*row, ""] for row in ROWS[:-1]), ROWS[-1]]))


def preprocess_text(tmp_path, content):
    (tmp_path / "train.txt").write_bytes(content)
    return preprocess([tmp_path / "train.txt"], tmp_path / "other")


@pytest.mark.parametrize("end", [b"   ", b"   \n", b"\n  \n\n ", b" \r\n"])
def test_spaces_after_the_last_line_are_no_row(tmp_path, end):
    assert everything(run(tmp_path, tsv(ROWS) + end)) == plain(ROWS)


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_pipe_is_read_as_a_file(tmp_path, pack):
    pipe, content = tmp_path / "pipe", pack(tsv(ROWS))
    os.mkfifo(pipe)
    for read in (lambda: preprocess([pipe], tmp_path / "out"), lambda: list(TextBatches(pipe, 7))):
        writer = threading.Thread(target=pipe.write_bytes, args=(content,))
        writer.start()
        result = read()
        writer.join()
    assert everything(tmp_path / "out") == plain(ROWS)
    assert sum(len(labels) for labels, *_ in result) == len(ROWS)
