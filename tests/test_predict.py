"""model.predict: the probabilities that the training's own evaluation sees, whatever holds the rows; and its errors."""

from __future__ import annotations

import contextlib
import gzip
import os
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from exported_models import checkpoint, trained
from raw import raw_fields, tsv
from train_runs import mini, run, status

pytest.importorskip("polars")
from data import raw
from data.cli import UserError
from data.criteo import DENSE, LABEL, SPARSE
from data.preprocess import preprocess
from data.raw import RAW
from model import DLRM, Hash, predict
from model.config import Kernels
from model.evaluation import score

ROWS = raw_fields(1400, ids=40)
TEST = ROWS[1300:]  # data.preprocess splits in the order of the rows


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("predict")
    (folder / "train.txt").write_bytes(tsv(ROWS))
    preprocess([folder / "train.txt"], folder / "data")
    return folder / "data"


@pytest.fixture(scope="module")
def best(tmp_path_factory, data) -> Path:
    """The checkpoint of a model that has seen 1,200 rows."""
    folder = tmp_path_factory.mktemp("best")
    run(folder, data, mini(Hash.SORTED, epochs=1))
    return folder / "best.pt"


@pytest.fixture
def written(best, tmp_path):
    """written(rows, …): the probabilities of rows, which are a path or a file's content."""

    def write(rows, suffix=".parquet", name="rows", checkpoint=best, **options):
        if isinstance(rows, bytes):
            (tmp_path / name).write_bytes(rows)
            rows = tmp_path / name
        out = tmp_path / f"out{suffix}"
        count = predict.predict(checkpoint, rows, out, device="cpu", **options)
        if suffix == ".parquet":
            probabilities = pq.read_table(out)["probability"].to_numpy()
        else:
            header, *lines = out.read_text().splitlines()
            assert header == "probability"
            probabilities = np.array([float(line) for line in lines])
        assert count == len(probabilities)
        return probabilities

    return write


def csv(rows) -> bytes:
    return "".join(",".join(row) + "\n" for row in [list(RAW), *rows]).encode()


@pytest.mark.parametrize("hash_", [*Hash])
def test_it_predicts_what_the_evaluation_saw(data, tmp_path, written, hash_):
    result = run(tmp_path, data, mini(hash_, epochs=1))
    labels = np.array([int(row[0]) for row in TEST])
    for rows in (data / "test", tsv(TEST)):
        probabilities = written(rows, checkpoint=tmp_path / "best.pt")
        assert score(labels, probabilities) == result.metrics["test"]


def test_every_form_of_the_same_rows(data, written):
    expected = written(data / "test")
    assert len(np.unique(expected)) > 20
    without_label = [row[1:] for row in TEST]
    header = csv(TEST).replace(b"label,", b"").split(b"\n")[0]
    unlabelled_csv = header + b"\n" + csv(without_label).partition(b"\n")[2]
    strange = [["" if i % 2 else "maybe", *row[1:]] for i, row in enumerate(TEST)]  # labels, which nobody looks at
    for name, rows in (
        ("a.tsv", tsv(TEST)), ("b.tsv", tsv(without_label)), ("c.tsv", tsv(strange)), ("d", tsv(TEST, "\r\n")),
        ("e.csv", csv(TEST)), ("f.csv", unlabelled_csv), ("g.tsv.gz", gzip.compress(tsv(without_label))),
    ):
        np.testing.assert_array_equal(written(rows, name=name), expected, err_msg=name)
    [part] = (data / "test").iterdir()
    np.testing.assert_array_equal(written(part), expected)
    np.testing.assert_array_equal(written(part.read_bytes(), name="no_suffix"), expected)


def test_parquet_without_labels_and_with_further_columns(data, tmp_path, written):
    [part] = (data / "test").iterdir()
    table = pq.read_table(part)
    pq.write_table(table.drop_columns([LABEL]).append_column("mine", table[LABEL]), tmp_path / "rows.parquet")
    np.testing.assert_array_equal(written(tmp_path / "rows.parquet"), written(part))
    null = pa.array([None] * len(table), pa.int8())
    pq.write_table(table.set_column(0, LABEL, null), tmp_path / "rows.parquet")
    np.testing.assert_array_equal(written(tmp_path / "rows.parquet"), written(part))


@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
def test_text_has_the_same_numbers(data, written, suffix):
    np.testing.assert_array_equal(written(data / "test", suffix), written(data / "test"))


def test_rows_come_in_order_by_any_batch_and_block(data, written, monkeypatch):
    whole = written(tsv(ROWS))
    by_sevens = written(tsv(ROWS), batch_size=7)
    monkeypatch.setattr(raw, "BLOCK", 3000)
    monkeypatch.setattr(predict, "ROW_GROUP", 50)
    np.testing.assert_array_equal(written(tsv(ROWS), batch_size=7), by_sevens)
    close = {"rtol": 1e-5}  # another size of batch, another order of summation in float32
    for batch_size in (1, 64, 5000):
        np.testing.assert_allclose(written(tsv(ROWS), batch_size=batch_size), whole, **close)
    parquet = [written(data / split, batch_size=7) for split in ("train", "validation", "test")]
    np.testing.assert_allclose(np.concatenate(parquet), whole, **close)


def test_ids_modulo_what_the_training_rows_had(tmp_path, written):
    (tmp_path / "train.txt").write_bytes(tsv(ROWS))
    preprocess([tmp_path / "train.txt"], tmp_path / "data", hash_size=37)
    run(tmp_path, tmp_path / "data", mini(Hash.SORTED, epochs=1))
    best = tmp_path / "best.pt"
    assert DLRM.from_checkpoint(best).hash_size == 37
    expected = written(tmp_path / "data" / "test", checkpoint=best)
    np.testing.assert_array_equal(written(tsv(TEST), checkpoint=best), expected)
    assert (written(tsv(TEST), checkpoint=best, hash_size=36) != expected).any()
    state = torch.load(best)
    del state["config"]["hash_size"]  # as checkpoints without it
    torch.save(state, best)
    np.testing.assert_array_equal(written(tsv(TEST), checkpoint=best, hash_size=37), expected)
    assert (written(tsv(TEST), checkpoint=best) != expected).any()


def test_no_rows(data, tmp_path, written):
    [part] = (data / "test").iterdir()
    pq.write_table(pq.read_schema(part).empty_table(), tmp_path / "none.parquet")
    for rows in (b"", gzip.compress(b""), csv([]), tmp_path / "none.parquet"):
        for suffix in (".parquet", ".csv"):
            assert written(rows, suffix).shape == (0,)


def changed(column: int, value: str) -> bytes:
    rows = [list(row) for row in TEST]
    rows[40][column] = value
    return tsv(rows)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (changed(14, "xyz"), "rows:41: field C1: expected hexadecimal digits, found 'xyz'"),
        (changed(39, "123456789"), "rows:41: field C26: expected an id below 2^32 (8 hex digits), found '123456789'"),
        (changed(3, "1.5"), "rows:41: field I3: expected a whole number, found '1.5'"),
        (changed(3, str(2**63)), f"rows:41: field I3: expected a 64-bit number, found '{2**63}'"),
        (tsv([*TEST[:9], TEST[9][1:]]), "rows:10: expected 40 tab-separated fields, found 39"),
        (tsv([*([row[1:] for row in TEST[:9]]), TEST[9]]), "rows:10: expected 39 tab-separated fields, found 40"),
        (tsv([row[2:] for row in TEST]), "rows:1: expected 39 tab-separated fields, or 40 with a label, found 38"),
        (csv(TEST).replace(b"I7,", b"", 1), "rows:1: column I7 is missing"),
        (tsv(TEST).replace(b"\t", b";"), "rows:1: expected tabs between fields or a CSV header"),
        (gzip.compress(tsv(TEST))[:-9], "rows: truncated or damaged gzip file"),
        (b"PK\x03\x04", "rows: a zip archive; unpack it"),
        (b"PAR1" + tsv(TEST), "rows: cannot be read as Parquet"),
    ],
    ids=lambda value: "" if isinstance(value, bytes) else None,  # gzip's bytes tell the time
)
def test_rows_that_are_not_right_leave_what_was_there(tmp_path, best, written, content, message):
    (tmp_path / "out.parquet").write_text("of an earlier run")
    with pytest.raises(UserError) as caught:
        written(content)
    assert message in str(caught.value)
    assert (tmp_path / "out.parquet").read_text() == "of an earlier run"
    assert {path.name for path in tmp_path.iterdir()} == {"rows", "out.parquet"}


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("SPARSE_3", [5, -2], "row 1, column SPARSE_3: expected an id in [-1, 2^32), found -2"),
        ("SPARSE_3", [2**32, 5], "row 0, column SPARSE_3: expected an id in [-1, 2^32), found 4294967296"),
        ("SPARSE_3", ["a", "b"], "column SPARSE_3: expected an integer type, found string"),
        ("DENSE_3", [1.0, np.inf], "row 1, column DENSE_3: expected a finite number, found inf"),
        ("DENSE_3", None, "column DENSE_3 is missing; expected DENSE_0 to SPARSE_25"),
    ],
)
def test_parquet_that_is_not_right(tmp_path, written, column, values, message):
    columns = {name: values if name == column else [1, 2] for name in (*DENSE, *SPARSE)}
    pq.write_table(pa.table({name: cells for name, cells in columns.items() if cells}), tmp_path / "rows.parquet")
    with pytest.raises(UserError) as caught:
        written(tmp_path / "rows.parquet")
    assert str(caught.value).endswith(message)
    assert str(caught.value).startswith(f"{tmp_path / 'rows.parquet'}: ")
    assert {path.name for path in tmp_path.iterdir()} == {"rows.parquet"}


def send(pipe: Path, content: bytes) -> None:
    with contextlib.suppress(BrokenPipeError):  # the reader has seen enough
        pipe.write_bytes(content)


def test_parquet_that_is_no_file(data, tmp_path, best):
    """Parquet's rows are found from its end, which a pipe has not yet."""
    content = next((data / "test").iterdir()).read_bytes()
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=send, args=(tmp_path / "pipe", content))
    writer.start()
    with pytest.raises(UserError, match=r"/pipe: Parquet through a pipe; name the file$"):
        predict.predict(best, tmp_path / "pipe", tmp_path / "out.csv", device="cpu")
    writer.join()
    (tmp_path / "rows.gz").write_bytes(gzip.compress(content))
    with pytest.raises(UserError, match=r"/rows\.gz: Parquet in gzip; unpack it \(gunzip\)$"):
        predict.predict(best, tmp_path / "rows.gz", tmp_path / "out.csv", device="cpu")


def test_what_cannot_be_predicted(tmp_path, best, written):
    with pytest.raises(UserError, match=r"none\.tsv: no such file"):
        written(tmp_path / "none.tsv")
    with pytest.raises(UserError, match=r"--out .*out.txt: expected a name that ends in .parquet, .csv or .tsv"):
        written(tsv(TEST), ".txt")
    with pytest.raises(UserError, match=r"--out .*: this file holds the rows"):
        written(tsv(TEST), ".tsv", name="out.tsv")
    assert (tmp_path / "out.tsv").read_bytes() == tsv(TEST)
    (tmp_path / "out.csv").mkdir()
    with pytest.raises(UserError, match=r"out\.csv: is a directory"):
        written(tsv(TEST), ".csv")
    with pytest.raises(UserError, match="rows: not a checkpoint"):
        written(tsv(TEST), checkpoint=tmp_path / "rows")


def test_a_model_that_predicts_nan(tmp_path, written):
    dlrm = trained(Hash.MODULUS)
    list(dlrm.over_arch.parameters())[-1].fill_(torch.nan)
    with pytest.raises(UserError, match=r"nan\.pt: predicts NaN for row 0 of .*rows: its training has diverged"):
        written(tsv(TEST), checkpoint=checkpoint(tmp_path / "nan.pt", dlrm))
    assert {path.name for path in tmp_path.iterdir()} == {"rows", "nan.pt"}


def test_a_write_that_fails_leaves_what_was_there(tmp_path, written, monkeypatch):
    (tmp_path / "out.parquet").write_text("of an earlier run")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="what was written there is removed"):
        written(tsv(TEST))
    assert {path.name for path in tmp_path.iterdir()} == {"rows", "out.parquet"}
    assert (tmp_path / "out.parquet").read_text() == "of an earlier run"


def test_the_command(tmp_path, best, monkeypatch, capsys):
    monkeypatch.setattr("train_runs.main", predict.main)
    (tmp_path / "rows.tsv").write_bytes(tsv(TEST))
    arguments = [str(best), str(tmp_path / "rows.tsv"), "--out", str(tmp_path / "new" / "out.csv"), "--device", "cpu"]
    assert status(arguments) is None
    assert capsys.readouterr().out == f"100 rows → {tmp_path / 'new' / 'out.csv'}\n"
    for wrong in (["--batch-size", "0"], ["--hash-size", "0"], ["--hash-size", str(2**32 + 1)]):
        assert status([*arguments, *wrong]) == 2
        assert "expected" in capsys.readouterr().err


def test_from_a_checkpoint_a_row_by_hand(best, written):
    row = max(TEST, key=lambda row: row.count(""))
    dense = torch.log1p(torch.tensor([[float(count or 0) for count in row[1:14]]]).clamp(min=0))
    ids = torch.tensor([[int(category, 16) if category else -1 for category in row[14:]]])
    for kernels in Kernels:
        probabilities = DLRM.from_checkpoint(best, kernels).predict(dense, ids)
        np.testing.assert_allclose(probabilities.numpy(), written(tsv([row])), rtol=1e-6)
