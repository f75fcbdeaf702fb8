"""Columns of somebody's own: from a schema in TOML to Parquet, training and predictions; and what is wrong with one."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import random
import threading
import zlib
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from raw import raw_fields, tsv
from train_runs import mini, run

pytest.importorskip("polars")
from data import parse as parsing
from data import raw
from data.cli import UserError
from data.criteo import CriteoBatches
from data.metadata import read_metadata, read_own_schema
from data.preprocess import main as preprocess_command
from data.preprocess import preprocess
from data.schema import SCHEMAS, Kind, read_schema, schema_of
from model import DLRM, Hash, evaluation
from model.evaluation import columns_of, score
from model.export import Exported, export
from model.predict import main as predict_command
from model.predict import predict

SHOP = """
[file]
delimiter = ";"
missing = ["NULL", "n/a"]
skip = 2

[columns]
label = "bought"
count = ["visits", "age"]
integer = ["shop"]
hex = ["hash"]
text = ["town"]
leave_out = ["comment"]

[lists.tags]
kind = "text"
separator = "|"

[lists.seen]
kind = "integer"
separator = " "

[split]
by = "column"
column = "day"
validation = ["2026-01-06"]
test = ["2026-01-07"]
"""
SHOP_FIELDS = ["day", "town", "bought", "visits", "tags", "seen", "age", "comment", "shop", "hash"]
AVAZU_FIELDS = [
    "id", "click", "hour", "C1", "banner_pos", "site_id", "site_domain", "site_category", "app_id", "app_domain",
    "app_category", "device_id", "device_ip", "device_model", "device_type", "device_conn_type",
    *(f"C{i}" for i in range(14, 22)),
]


@dataclass
class DataSet:
    """files: name → content. rows: of each split the values that Parquet should have, parsed by the csv module alone.
    test: the text of the test split alone."""

    schema: str
    files: dict[str, bytes]
    rows: dict[str, list[dict]]
    test: bytes


def as_csv(header, rows, delimiter=",") -> bytes:
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter, lineterminator="\n").writerows([header, *rows])
    return text.getvalue().encode()


def criteo(rows) -> list[dict]:
    names = ["labels", *(f"DENSE_{i}" for i in range(13)), *(f"SPARSE_{i}" for i in range(26))]
    return [
        {
            name: (int(value, 16) if value else -1) if i > 13 else (int(value) if value else None)
            for i, (name, value) in enumerate(zip(names, row, strict=True))
        }
        for row in rows
    ]


def in_order(rows) -> dict[str, list]:
    train, validation = len(rows) * 6 // 7, len(rows) * 13 // 14
    return {"train": rows[:train], "validation": rows[train:validation], "test": rows[validation:]}


def kaggle(rows) -> DataSet:
    return DataSet("kaggle", {"train.txt": tsv(rows)}, in_order(criteo(rows)), tsv(in_order(rows)["test"]))


def terabyte(rows) -> DataSet:
    days = {"day_0": rows[:100], "day_1": rows[100:300], "day_22": rows[300:350], "day_23.gz": rows[350:]}
    files = {name: gzip.compress(tsv(part)) if name.endswith("gz") else tsv(part) for name, part in days.items()}
    split = {"train": rows[:300], "validation": rows[300:350], "test": rows[350:]}
    return DataSet("terabyte", files, {name: criteo(part) for name, part in split.items()}, tsv(rows[350:]))


def torchrec(rows) -> DataSet:
    header = ["label", *(f"int_{i}" for i in range(13)), *(f"cat_{i}" for i in range(26))]
    return DataSet(
        "torchrec", {"day.csv": as_csv(header, rows)}, in_order(criteo(rows)),
        as_csv(header[1:], [row[1:] for row in in_order(rows)["test"]]),
    )


def avazu() -> DataSet:
    draw, rows = random.Random(3), []
    for i in range(400):
        ids = [f"{draw.randrange(20) * 0x01234567:08x}" for _ in range(9)]
        c20 = draw.choice(["-1", "100084", "100148"])
        rows.append([
            f"{10**19 + i}", str(draw.randrange(2)), f"1410{21 + i // 40}{i % 24:02}", "1005", "0", *ids, "1", "0",
            *(str(draw.randrange(1000)) for _ in range(6)), c20, "79",
        ])
    by_split = {"train": [], "validation": [], "test": []}
    hexadecimal = AVAZU_FIELDS[5:14]
    for row in csv.DictReader(as_csv(AVAZU_FIELDS, rows).decode().splitlines()):
        names = [*hexadecimal, "C1", "banner_pos", *AVAZU_FIELDS[14:]]
        values = {name: int(row[name], 16 if name in hexadecimal else 10) for name in names}
        split = {"29": "validation", "30": "test"}.get(row["hour"][4:6], "train")
        by_split[split].append({"labels": int(row["click"]), **values})
    test = [row[:1] + row[2:] for row in rows if row[2].startswith("141030")]  # as Kaggle's test file, without click
    return DataSet("avazu", {"train.csv": as_csv(AVAZU_FIELDS, rows)}, by_split,
                   as_csv([AVAZU_FIELDS[0], *AVAZU_FIELDS[2:]], test))


def shop() -> DataSet:
    draw, rows = random.Random(1), []
    towns = ["Ulm", "Köln; Nord", 'the "Bar"', "A+B", "", "n/a", "NULL", "x y"]
    for i in range(700):
        tags = [draw.choice(["red", "green", "blue", "a+b", "n/a", ""]) for _ in range(draw.choice([0, 0, 1, 2, 5]))]
        seen = [str(draw.randrange(50)) for _ in range(draw.choice([0, 1, 3]))]
        rows.append([
            f"2026-01-0{1 + i // 100}", draw.choice(towns), draw.randrange(2),
            draw.choice(["", "NULL", draw.randrange(-3, 5000)]), "|".join(tags), " ".join(seen),
            draw.choice(["n/a", "30", "40.0"]), "c;" * (i % 7 == 0), draw.choice(["", "7", "12", str(2**32 - 1)]),
            draw.choice(["", "ff", "0badcafe"]),
        ])
    missing, by_split = {"", "NULL", "n/a"}, {"train": [], "validation": [], "test": []}

    def crc(text):
        return zlib.crc32(text.encode())

    for row in csv.DictReader(as_csv(SHOP_FIELDS, rows, ";").decode().splitlines(), delimiter=";"):
        def value(name, of, else_, row=row):
            return else_ if row[name] in missing else of(row[name])

        split = {"2026-01-06": "validation", "2026-01-07": "test"}.get(row["day"], "train")
        by_split[split].append({
            "labels": int(row["bought"]), "visits": value("visits", int, None), "age": value("age", float, None),
            "hash": value("hash", lambda text: int(text, 16), -1), "shop": value("shop", int, -1),
            "town": value("town", crc, -1), "tags": [crc(tag) for tag in row["tags"].split("|") if tag not in missing],
            "seen": [int(one) for one in row["seen"].split(" ") if one not in missing],
        })
    before = b"exported\n\n"
    test = [row for row in rows if row[0] == "2026-01-07"]
    return DataSet("shop.toml", {"shop.csv": before + as_csv(SHOP_FIELDS, rows, ";")}, by_split,
                   before + as_csv(SHOP_FIELDS, test, ";"))


DATA_SETS = {
    "kaggle": lambda: kaggle(raw_fields(420)), "terabyte": lambda: terabyte(raw_fields(420, seed=1)),
    "torchrec": lambda: torchrec(raw_fields(420, seed=2)), "avazu": avazu, "shop": shop,
}


def prepared(folder: Path, data: DataSet, **options):
    """The data set's schema, and where it is preprocessed."""
    (folder / "shop.toml").write_text(SHOP)
    for name, content in data.files.items():
        (folder / name).write_bytes(content)
    schema = read_schema(folder / data.schema if data.schema.endswith("toml") else data.schema)
    preprocess([folder / name for name in data.files], folder / "data", schema=schema, **options)
    return schema, folder / "data"


def parquet(data: Path) -> dict[str, list[dict]]:
    return {split: pq.read_table(data / split).to_pylist() for split in ("train", "validation", "test")}


@pytest.mark.parametrize("name", DATA_SETS)
def test_from_its_schema_to_predictions(tmp_path, name):
    data_set = DATA_SETS[name]()
    schema, data = prepared(tmp_path, data_set)
    assert parquet(data) == data_set.rows
    assert read_own_schema(data).sparse == schema.sparse
    ids = [row[schema.sparse[-1]] for row in data_set.rows["train"]]
    flat = [one for value in ids for one in (value if isinstance(value, list) else [value])]
    assert set(read_metadata(data)[schema.sparse[-1]].tokenizer_values) == set(flat) - {-1}

    config = mini(Hash.SORTED, epochs=1)
    result = run(tmp_path / "run", data, replace(config, model=replace(config.model, cardinalities=())))
    labels = np.array([row["labels"] for row in data_set.rows["test"]])
    (tmp_path / "rows").write_bytes(data_set.test)
    for rows in (data / "test", tmp_path / "rows"):
        predict(tmp_path / "run" / "best.pt", rows, tmp_path / "out.parquet", device="cpu")
        probabilities = pq.read_table(tmp_path / "out.parquet")["probability"].to_numpy()
        assert score(labels, probabilities) == result.metrics["test"]
    loaded = DLRM.from_checkpoint(tmp_path / "run" / "best.pt")
    assert loaded.config.bottom[0] == max(len(schema.dense), 1)
    assert len(loaded.config.cardinalities) == len(schema.sparse)


def test_criteo_by_its_schema_is_what_it_is_without_one(tmp_path):
    _, data = prepared(tmp_path, kaggle(raw_fields(200)))
    preprocess([tmp_path / "train.txt"], tmp_path / "plain")
    for file in (tmp_path / "plain").rglob("*.*"):
        assert (data / file.relative_to(tmp_path / "plain")).read_bytes() == file.read_bytes(), file


def test_blocks_and_single_lines_give_the_same(tmp_path, monkeypatch):
    data_set = shop()
    monkeypatch.setattr(raw, "BLOCK", 3000)
    by_line = []

    def read_line(*arguments):
        by_line.append(arguments[1])
        return raw.read_line(*arguments)

    monkeypatch.setattr(parsing, "read_line", read_line)
    assert parquet(prepared(tmp_path, data_set)[1]) == data_set.rows
    assert not by_line

    def rejected(*_):
        raise parsing._Rejected

    monkeypatch.setattr(parsing, "_parse", rejected)
    (tmp_path / "again").mkdir()
    assert parquet(prepared(tmp_path / "again", data_set)[1]) == data_set.rows
    assert sorted(by_line) == list(range(4, 704))


def test_ids_of_lists_modulo(tmp_path):
    data_set = shop()
    _, data = prepared(tmp_path, data_set, hash_size=5)
    for actual, row in zip(parquet(data)["train"], data_set.rows["train"], strict=True):
        assert actual["tags"] == [one % 5 for one in row["tags"]]
        assert actual["town"] == (row["town"] % 5 if row["town"] >= 0 else -1)


def test_batches_of_lists_are_bags_feature_by_feature(tmp_path):
    data_set = shop()
    schema, data = prepared(tmp_path, data_set)
    batches = CriteoBatches(data / "train", 64, schema=schema, window=100)
    row = 0
    for labels, dense, ids, offsets in batches:
        expected, n = data_set.rows["train"][row : row + len(labels)], len(labels)
        assert dense.shape == (n, 2)
        assert len(offsets) == 5 * n + 1
        for f, name in enumerate(schema.sparse):
            for b, values in enumerate(expected):
                bag = ids[offsets[f * n + b] : offsets[f * n + b + 1]].tolist()
                assert bag == (values[name] if name in schema.lists else [values[name]]), (name, row + b)
        row += n
    assert row == len(data_set.rows["train"]) == batches.num_rows
    shuffled = CriteoBatches(data / "train", 64, schema=schema, window=100, shuffle=True)
    assert sum(int(ids.sum()) for _, _, ids, _ in shuffled) == sum(int(ids.sum()) for _, _, ids, _ in batches)


def test_bags_see_what_their_first_entry_does_not(tmp_path):
    """Clicks depend on all entries of a list: with all of them the AUC is above that with the first alone."""
    draw = np.random.default_rng(0)
    worth = draw.normal(size=30)
    bags = [draw.integers(30, size=draw.integers(1, 7)) for _ in range(3000)]
    chance = 1 / (1 + np.exp(-np.array([worth[bag].sum() for bag in bags])))
    clicks = (draw.random(3000) < chance).astype(int)
    auc = {}
    forms = {"bags": "\n[lists.seen]\nkind = 'integer'\nseparator = ' '\n", "one": "integer = ['seen']"}
    for form, columns in forms.items():
        (tmp_path / f"{form}.toml").write_text(f"[columns]\nlabel = 'click'\n{columns}")
        entries = [bag if form == "bags" else bag[:1] for bag in bags]
        rows = [[click, " ".join(map(str, bag))] for click, bag in zip(clicks, entries, strict=True)]
        (tmp_path / f"{form}.csv").write_bytes(as_csv(["click", "seen"], rows))
        preprocess([tmp_path / f"{form}.csv"], tmp_path / form, schema=read_schema(tmp_path / f"{form}.toml"))
        config = mini(Hash.SORTED, epochs=3, batch_size=64)
        config = replace(config, model=replace(config.model, cardinalities=()))
        auc[form] = run(tmp_path / f"{form}_run", tmp_path / form, config).metrics["test"].auc
    assert auc["bags"] > auc["one"] + 0.05


def test_a_model_of_lists_is_exported_with_bags(tmp_path):
    """Its probabilities, from the folder, are those of the model; what cannot serve lists is refused by name."""
    data_set = shop()
    (tmp_path / "shop.toml").write_text(SHOP)
    (tmp_path / "shop.csv").write_bytes(data_set.files["shop.csv"])
    data, best = tmp_path / "data", tmp_path / "run" / "best.pt"
    preprocess([tmp_path / "shop.csv"], data, schema=read_schema(tmp_path / "shop.toml"))
    config = mini(Hash.SORTED, epochs=1)
    run(tmp_path / "run", data, replace(config, model=replace(config.model, cardinalities=())))
    for options, message in (
        ({"out": tmp_path / "out", "pooling": "none"}, "--pooling none: tags has lists, .* leave --pooling out"),
        ({"out": tmp_path / "out", "pooling": "mean"}, "--pooling mean: tags has lists, and the model was trained on"),
        ({"onnx": tmp_path / "model.onnx"}, "--onnx: tags has lists, and ONNX has no operator"),
    ):
        with pytest.raises(UserError, match=message):
            export(best, **options)
    assert not [*tmp_path.glob("out*"), *tmp_path.glob("*.onnx")]

    export(best, tmp_path / "out")
    columns = json.loads((tmp_path / "out" / "columns.json").read_text())
    assert [column["name"] for column in columns["counts"]] == ["visits", "age"]
    assert columns["ids"] == [
        {"name": "hash", "kind": "hex"}, {"name": "shop", "kind": "integer"}, {"name": "town", "kind": "text"},
        {"name": "tags", "kind": "text", "separator": "|"}, {"name": "seen", "kind": "integer", "separator": " "},
    ]
    model, served = DLRM.from_checkpoint(best), Exported(tmp_path / "out")

    def rows(**options):
        return CriteoBatches(data / "test", 7, schema=columns_of(model), **options)

    expected = [model.predict(*batch) for _, *batch in rows()]
    actual = [served(*batch) for _, *batch in rows(transform=False, fill=float("nan"))]  # counts as the log has them
    torch.testing.assert_close(torch.cat(actual), torch.cat(expected), rtol=0, atol=1e-6)


def test_rows_of_another_form_than_the_models_are_named(tmp_path):
    """Lists for single values, texts for numbers, a column that is not there: the column, what it is and should be."""
    data_set = shop()
    schema, data = prepared(tmp_path, data_set)
    config = mini(Hash.SORTED, epochs=1)
    run(tmp_path / "run", data, replace(config, model=replace(config.model, cardinalities=())))
    best, rows = tmp_path / "run" / "best.pt", tmp_path / "rows"
    rows.write_bytes(data_set.test)

    def with_column(changed, **changes):
        return replace(schema, columns=tuple(replace(c, **changes) if c.name == changed else c for c in schema.columns))

    for form, message in (
        (with_column("tags", separator=None), "column tags: expected lists of texts, .* trained on, found texts$"),
        (with_column("town", separator="|"), "column town: expected texts, .*, found lists of texts$"),
        (with_column("shop", kind=Kind.TEXT), "column shop: expected numbers, .*, found texts$"),
        (with_column("town", name="city"), "expected column town, .*, found none of that name$"),
    ):
        with pytest.raises(UserError, match=f"^--schema: {message}"):
            predict(best, rows, tmp_path / "out.csv", schema=form)
    assert not [*tmp_path.glob("*out.csv*")]
    assert predict(best, rows, tmp_path / "out.csv", schema=with_column("hash", kind=Kind.HEX)) == 100

    metadata = json.loads((data / "metadata.json").read_text())
    metadata["schema"]["columns"]["text"] = []
    metadata["schema"]["columns"]["integer"] += ["town"]
    (data / "metadata.json").write_text(json.dumps(metadata))
    with pytest.raises(UserError, match=r"metadata.json: schema: column town: expected texts, .*, found numbers$"):
        evaluation.main([str(best), str(data)])


@contextmanager
def stdin(content: bytes):
    """Within the block a pipe that gives the content is this process's stdin."""
    read, write = os.pipe()
    before = os.dup(0)
    os.dup2(read, 0)
    writer = threading.Thread(target=lambda: os.fdopen(write, "wb").write(content))
    writer.start()
    try:
        yield
    finally:
        os.dup2(before, 0)
        os.close(before)
        os.close(read)
        writer.join()


def test_rows_through_a_pipe(tmp_path, capsys):
    data_set = shop()
    (tmp_path / "shop.toml").write_text(SHOP)
    data, best = tmp_path / "d", tmp_path / "run" / "best.pt"
    with stdin(data_set.files["shop.csv"]):
        preprocess_command(["-", "--schema", str(tmp_path / "shop.toml"), "--out", str(data)])
    assert parquet(data) == data_set.rows
    config = mini(Hash.SORTED, epochs=1)
    run(tmp_path / "run", data, config)
    with stdin(data_set.test):
        predict_command([str(best), "-", "--out", str(tmp_path / "out.csv"), "--device", "cpu"])
    predict(best, data / "test", tmp_path / "of_parquet.csv", device="cpu")
    assert (tmp_path / "out.csv").read_bytes() == (tmp_path / "of_parquet.csv").read_bytes()
    assert f"{len(data_set.rows['test'])} rows → {tmp_path / 'out.csv'}" in capsys.readouterr().out
    with pytest.raises(UserError, match="-: stdin is named twice"):
        preprocess([Path("-"), Path("/dev/stdin")], tmp_path / "twice")
    assert DLRM.from_checkpoint(best).config.cardinalities == (2, 3, 5)  # mini has three tables: no lists


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('delimiter = ";"', 'delimiter = ";;"', r"\[file\] delimiter: expected one ASCII character, .* found ';;'"),
        ("skip = 2", "skip = -1", r"\[file\] skip: expected a number of lines from 0, found -1"),
        ("skip = 2", "skpi = 2", r"\[file\] skpi: expected one of the keys delimiter, header, .*, found 'skpi'"),
        ("skip = 2", "header = 1", r"\[file\] header: expected true or false, found 1"),
        ("skip = 2", "header = false", r"\[file\] names: expected the names of the columns .* header is false"),
        ("skip = 2", 'names = ["a"]', r"\[file\] names: expected no names, for header is true"),
        ("skip = 2", 'header = false\nnames = ["bought"]', r"\[file\] names: expected 'visits' among them"),
        ("skip = 2", 'written = "criteo"', r"\[file\] written: expected 13 count and 26 hex .*, found 2 count, 1 hex"),
        ("skip = 2", 'written = "avazu"', r"\[file\] written: expected \"criteo\", or no such key, found 'avazu'"),
        ('["NULL", "n/a"]', '"NULL"', r"\[file\] missing: expected a list of texts, found 'NULL'"),
        ('label = "bought"', "", r"\[columns\] label: expected a text, found nothing"),
        ('"age"', '"visits"', r"\[columns\]: expected each column once, found 'visits' twice"),
        ('"age"', '"A1..B3"', r"\[columns\] count: expected a range as I1\.\.I13, found 'A1\.\.B3'"),
        ('"town"', '"a/b"', r"\[columns\] text: expected a name without '/' .* found 'a/b'"),
        ('"town"', '"labels"', r"\[columns\] text: expected a name .* that is not 'labels', found 'labels'"),
        ('text = ["town"]', 'words = ["town"]', r"\[columns\] words: expected one of the keys label, .* found 'words'"),
        ('separator = "|"', "", r"\[lists\.tags\] separator: expected a text, found nothing"),
        ('separator = "|"', 'separator = ";"', r"\[lists\.tags\] separator: expected a text without .* found ';'"),
        ('kind = "text"', 'kind = "count"', r"\[lists\.tags\] kind: expected one of hex, integer, text, found 'count'"),
        ("[lists.tags]", "[list.tags]", r"list: no such table; expected \[file\], \[columns\], \[lists\], \[split\]"),
        ('by = "column"', 'by = "day"', r"\[split\] by: expected one of order, random, column, files, found 'day'"),
        ('by = "column"', 'by = "files"', r"\[split\] column: expected no such key, for by is 'files'"),
        ('column = "day"', "", r"\[split\] column: expected a text, found nothing"),
        ('test = ["2026-01-07"]', "", r"\[split\] test: expected a list of shell patterns, .*, found nothing"),
        ("[columns]", "[columns", r"not TOML: .*line 7"),
    ],
)
def test_a_wrong_schema_names_file_table_and_key(tmp_path, old, new, message):
    assert SHOP.count(old) == 1
    (tmp_path / "s.toml").write_text(SHOP.replace(old, new))
    with pytest.raises(UserError, match=rf"^{tmp_path}/s\.toml: {message}"):
        read_schema(tmp_path / "s.toml")


def test_names_of_schemas():
    with pytest.raises(UserError, match="schema avzu: no such file, and none of avazu, kaggle, nvtabular, terabyte"):
        read_schema("avzu")
    with pytest.raises(UserError, match=r"none\.toml: no such file"):
        read_schema("none.toml")
    for path in SCHEMAS.glob("*.toml"):
        assert read_schema(path.stem).sparse


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1;Ulm;2;;;;;;;", "field bought: expected 0 or 1, found '2'"),
        ("1;Ulm;0;x;;;;;;", "field visits: expected a whole number, found 'x'"),
        ("1;Ulm;0;;;;;;4294967296;", r"field shop: expected a whole number from 0 to 2\^32 - 1 \(kind \"text\""),
        ("1;Ulm;0;;;;;;-5;", "field shop: expected a whole number from 0"),
        ("1;Ulm;0;;;;;;;xy", "field hash: expected hexadecimal digits, found 'xy'"),
        ("1;Ulm;0;;;3 x;;;;", "field seen: expected a whole number from 0 .*, found '3 x'"),
        ("1;Ulm;0;;;;;;", "expected 10 ';'-separated fields, found 9"),
        ('1;"Ulm;0;;;;;;;', "quotes that do not fit: unexpected end of data"),
    ],
)
def test_a_bad_line_names_field_and_line(tmp_path, line, message):
    content = "a\nb\n" + ";".join(SHOP_FIELDS) + "\n1;Ulm;0;;;;;;;\n" + line + "\n"
    with pytest.raises(UserError, match=rf"shop\.csv:5: {message}"):
        prepared(tmp_path, DataSet("shop.toml", {"shop.csv": content.encode()}, {}, b""))


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (SHOP_FIELDS[1:], "shop.csv:3: column day is missing in the header"),
        ([*SHOP_FIELDS[:-1], "x"], "shop.csv:3: column hash is missing in the header"),
        ([*SHOP_FIELDS, "town"], "shop.csv:3: column 'town' stands there twice"),
    ],
)
def test_a_header_that_does_not_fit(tmp_path, header, message):
    with pytest.raises(UserError, match=message):
        prepared(tmp_path, DataSet("shop.toml", {"shop.csv": b"a\nb\n" + ";".join(header).encode()}, {}, b""))


def test_a_split_by_files_needs_a_file_for_each(tmp_path):
    rows = raw_fields(20)
    with pytest.raises(UserError, match=r"\[split\] test: expected a file among the inputs for day_23, day_23\.\*"):
        prepared(tmp_path, DataSet("terabyte", {"day_0": tsv(rows), "day_22": tsv(rows)}, {}, b""))


def test_parquet_with_wrong_lists(tmp_path):
    schema = schema_of({"columns": {"label": "y"}, "lists": {"seen": {"kind": "integer", "separator": " "}}}, "s")
    labels = pa.array([0, 1, 1], pa.int8())
    for seen, message in (
        (pa.array([[1], [], [2, 1 << 32]]), r"row 2, column seen: expected an id in \[-1, 2\^32\), found 4294967296"),
        (pa.array([1, 2, 3]), "column seen: expected lists of an integer type, found int64"),
        (pa.array([[1], None, [2, (1 << 64) - 1]], pa.list_(pa.uint64())), "row 2, .*, found 18446744073709551615$"),
        (pa.array([[], [None, 1 << 63], [2]], pa.large_list(pa.uint64())), "row 1, .*, found 9223372036854775808$"),
        (pa.array([[1], [-2, 1], []], pa.list_(pa.int8())), "row 1, .*, found -2$"),
    ):
        pq.write_table(pa.table({"labels": labels, "seen": seen}), tmp_path / "x.parquet")
        with pytest.raises(UserError, match=message):
            list(CriteoBatches(tmp_path / "x.parquet", 2, schema=schema))
    for kind in (pa.list_(pa.int64()), pa.list_(pa.uint64()), pa.large_list(pa.uint32()), pa.list_(pa.int8())):
        seen = pa.array([[1, None], None, [2]], kind)
        pq.write_table(pa.table({"labels": labels, "seen": seen}), tmp_path / "x.parquet")
        [(_, _, ids, offsets)] = CriteoBatches(tmp_path / "x.parquet", 3, schema=schema)
        assert ids.tolist() == [1, -1, 2]
        assert offsets.tolist() == [0, 2, 2, 3]
