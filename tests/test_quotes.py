"""Fields in quotes: both readers take the same lines and read the same in them, whatever stands beside a line."""

from __future__ import annotations

import csv
import io
import random
import zlib
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("loguru")
pytest.importorskip("polars")
from data import parse as parsing
from data import raw
from data.cli import UserError
from data.schema import Schema, schema_of

TEXTS = ["Ulm", "a+b", "é", " x ", "", "NULL", '"', '""', 'the "Bar"', "1", "-", "\x00", "'", "a\\", "C,D;E\tF|G H"]
MISSING = [[], ["NULL"], ['""'], ['"'], ['the "Bar"', "-1"], ["NULL", "7", "a", ""], ['"NULL"']]
PARTS = ['"', '"', '""', *",;\t| 10-+af\r\x00'\\", ".0", "é", "NULL"]
VALUES = {
    "y": ["0", "1", "1.0", " 0"], "n": ["", "12", "-3", "4.00", " 7 ", "NULL"], "h": ["", "ff", "0badCAFE", "NULL"],
    "i": ["", "7", "4294967295", "NULL", "007"], "t": TEXTS, "comment": TEXTS, "day": ["1", "2", *TEXTS],
    "tags": ["", "x|y", "NULL|z", '"|a', "||", *TEXTS], "seen": ["", "1/2", "3", "NULL/4"], "codes": ["", "a f", "ff"],
}


@dataclass
class File:
    layout: raw.Layout
    lines: list[bytes]  # without their ends
    text: bytes


def drawn_schema(draw: random.Random) -> Schema:
    delimiter = draw.choice([",", ",", ";", "\t", "|"])
    separators = {"tags": "/" if delimiter == "|" else "|", "seen": "/", "codes": " "}
    content = {
        "file": {"delimiter": delimiter, "missing": draw.choice(MISSING), "quotes": draw.random() < 0.9},
        "columns": {"label": "y", "count": ["n"], "hex": ["h"], "integer": ["i"]},
        "lists": {
            name: {"kind": kind, "separator": separators[name]}
            for name, kind in (("tags", "text"), ("seen", "integer"), ("codes", "hex")) if draw.random() < 0.4
        },
    }
    content["columns"]["text"] = ["t"] if draw.random() < 0.7 else []
    if draw.random() < 0.3:
        content["split"] = {"by": "column", "column": "day", "validation": ["1", "*Bar*"], "test": ["[2-9]", '"*']}
    return schema_of(content, "drawn")


def in_quotes(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


def drawn_file(draw: random.Random) -> File:
    """A few lines, most of them right; quotes stand where they may, where they need not, and where they must not."""
    schema = drawn_schema(draw)
    names = [column.field for column in schema.columns] + draw.sample(["comment", "day"], 2)
    draw.shuffle(names)
    wanted = {column.field: column.name for column in schema.columns}
    at = names.index("day") if schema.split.by == "column" else None
    layout = raw.Layout(schema.delimiter, tuple(wanted.get(name) for name in names), True, schema.quotes, schema, at)

    def field(name: str) -> str:
        text = draw.choice(VALUES[name])
        text = "" if text == "NULL" and "NULL" not in schema.missing else text
        if schema.quotes and (draw.random() < 0.3 or '"' in text or schema.delimiter in text):
            return in_quotes(text)
        return text.replace(schema.delimiter, "")

    lines = []
    for _ in range(draw.randint(1, 6)):
        fields = [field(name) for name in names]
        if draw.random() < 0.2:
            at = draw.randrange(len(fields))
            odd = "".join(draw.choices(PARTS, k=draw.randint(1, 5)))
            fields[at] = draw.choice([odd, in_quotes(odd), fields[at] + odd, odd + fields[at], f'"{odd}"'])
        lines.append(schema.delimiter.join(fields).encode())
    ends = draw.choice([[b"\n"], [b"\n"], [b"\r\n"], [b"\n", b"\r\n"]])
    text = b"".join(line + draw.choice(ends) for line in lines)
    return File(layout, lines, text.rstrip(b"\r\n") if draw.random() < 0.3 else text)


def read(line: bytes, layout: raw.Layout) -> dict | str:
    """The line's values, or what is wrong with it."""
    try:
        return raw.read_line(line, 2, layout)
    except raw.BadLine as error:
        return str(error)


def compare(seed: int) -> tuple[int, int, int]:
    """Raise AssertionError where the readers differ in a drawn file; returns how many lines the fast one took by
    themselves, how many are right, and how many there are."""
    file = drawn_file(random.Random(seed))
    lines = file.text.removesuffix(b"\n").split(b"\n")
    parsed = [read(line, file.layout) for line in lines]
    fast = 0
    for line, row in zip(lines, parsed, strict=True):
        try:
            records = parsing._parse(line + b"\n", file.layout).to_dicts()
        except parsing._Rejected:
            continue
        fast += 1
        assert records == [row], (seed, line, file.layout)
    bad: list[raw.LineError] = []
    rows = parsing.parse(raw.Block("f", file.layout, 2, file.text, 0), bad).to_pylist()
    good = [row for row in parsed if isinstance(row, dict)]
    assert rows == good, (seed, file.text, file.layout)
    wrong = [f"f:{number}: {row}" for number, row in enumerate(parsed, 2) if isinstance(row, str)]
    assert [*map(str, bad)] == wrong, (seed, file.text, file.layout)
    return fast, len(good), len(lines)


@pytest.mark.parametrize("piece", [160, parsing.PIECE])
def test_a_line_is_read_the_same_beside_any_other_and_by_either_reader(monkeypatch, piece):
    monkeypatch.setattr(parsing, "PIECE", piece)
    monkeypatch.setattr(parsing, "SMALLEST", 40)  # bytes: a rejected piece is cut into lines, or read line by line
    totals = [sum(counts) for counts in zip(*(compare(seed) for seed in range(piece % 7, 350, 7)), strict=True)]
    fast, good, lines = totals
    assert lines > 140
    assert 0.6 * lines < good < 0.95 * lines, totals
    assert fast > 0.8 * good, totals  # or there is little that is compared


GIFTS = {"columns": {"label": "y", "count": ["n"], "text": ["t"]}}


def crc(text: str) -> int:
    return zlib.crc32(text.encode())


def rows_of(path: Path, content: bytes, schema: dict | None = GIFTS, labelled: bool = True) -> tuple[list[list], list]:
    """The rows of a file with this content, each as its values, and what is wrong with the lines that are left out."""
    path.write_bytes(content)
    bad: list[raw.LineError] = []
    form = schema_of(schema, "schema") if schema else None
    rows = [row for block in raw.blocks(path, labelled, form) for row in parsing.parse(block, bad).to_pylist()]
    return [list(row.values()) for row in rows], [str(error).rpartition("rows.csv:")[2] for error in bad]


AFTER = """',' expected after '"'"""
WITHIN = "'\"' within a field that does not begin with it (quotes = false in a --schema takes them for text)"
OPEN = "unexpected end of data (a field ends on its line)"


LINES = {  # line → its values, or what is wrong with its quotes, or with what is in them
    '0,1,""Deluxe""': AFTER, '0,1,"Yes" or "No"': AFTER, '0,1,"x" ': AFTER, '0,"1"2,x': AFTER, '""0"",1,x': AFTER,
    '0,1,12" pipe': WITHIN, '0,1,5" by 6"': WITHIN, '0,1, "x"': WITHIN, '0,1,x""y': WITHIN, '0,1"",x': WITHIN,
    '0,1,"': OPEN, '0,1,"""': OPEN, '0,1,"x""': OPEN, '0,"1,x': OPEN,
    '0,1,""""': [0, 1, crc('"')], '0,1,"x"""': [0, 1, crc('x"')], '0,1,"""x"" y"': [0, 1, crc('"x" y')],
    '"0","-1.0","x,""y"",z"': [0, -1, crc('x,"y",z')], '"0","",""': [0, None, -1],
    '"0""",1,x': "field y: expected 0 or 1, found '0\"'", '0,"\t1",x': "field n: expected a whole number, found '\\t1'",
}


@pytest.mark.parametrize("beside", ["1,2,pen", '1,2,12" pipe', '1,2,"open', '1,"2","a, ""b"""'])
def test_a_lines_quotes_count_for_that_line(tmp_path, beside):
    """As the first one, and as the last one with and without its end."""
    other, wrong = rows_of(tmp_path / "rows.csv", f"y,n,t\n{beside}\n".encode())
    assert bool(other) != bool(wrong)
    for i, (line, expected) in enumerate(LINES.items()):
        own = [] if isinstance(expected, str) else [expected]
        for lines, end in (([line, beside], ""), ([beside, line], ""), ([beside, line], "\n")):
            text = "\n".join(["y,n,t", *lines]) + end
            rows, bad = rows_of(tmp_path / "rows.csv", (text.replace("\n", "\r\n") if i % 2 else text).encode())
            number = 2 + lines.index(line)
            assert rows == (own + other if number == 2 else other + own), text
            messages = [message for message in bad if message.startswith(f"{number}: ")]
            quotes = "" if expected[:5] == "field" else "quotes that do not fit: "
            assert messages == ([] if own else [f"{number}: {quotes}{expected}"]), text


@pytest.mark.parametrize("delimiter", [",", "|", "]", "^", "\\", "-", " "])
def test_fields_are_those_of_the_csv_module(delimiter):
    """The fields of any text that is taken are the csv module's; and whatever the module writes is taken."""
    draw, count = random.Random(ord(delimiter)), 0
    for _ in range(400):
        fields = ["".join(draw.choices('"ab\'' + delimiter, k=draw.randint(0, 4))) for _ in range(draw.randint(2, 4))]
        text = delimiter.join(fields)
        try:
            parsed = raw._fields(text, delimiter, True)
        except raw.BadLine:
            pass
        else:
            count += '"' in text
            assert parsed == next(csv.reader([text], delimiter=delimiter, strict=True))
        for quoting in (csv.QUOTE_MINIMAL, csv.QUOTE_ALL):
            line = io.StringIO()
            csv.writer(line, delimiter=delimiter, quoting=quoting, lineterminator="").writerow(fields)
            assert raw._fields(line.getvalue(), delimiter, True) == fields
    assert count > 10


@pytest.mark.parametrize("bad", [b"", b"0,1,x\r\r\n"])
def test_a_field_of_any_length_and_a_line_of_a_mebibyte(tmp_path, monkeypatch, bad):
    """Longer than the csv module's limit; and a line that is too long is refused wherever it stands in a block."""
    long = b"ab,c" * 50_000
    rows, messages = rows_of(tmp_path / "rows.csv", b"y,n,t\n" + bad + b'1,2,"' + long + b'"\n' + bad)
    assert rows == [[1, 2, crc(long.decode())]]
    assert messages == [f"{line}: a carriage return within the line" for line in (2, 4) if bad]
    for block in (1 << 24, 1 << 19):
        monkeypatch.setattr(raw, "BLOCK", block)
        for after in (b"", b"\n", b"\n1,2,x\n"):
            content = b"y,n,t\n1,2,x\n1,2," + b"z" * (raw.LONGEST - 3) + after
            with pytest.raises(UserError, match=r"rows.csv:3: no end of line within 1,[0-9,]* bytes; expected rows"):
                rows_of(tmp_path / "rows.csv", content)
    with pytest.raises(UserError, match=r"rows.csv:1: no end of line within 1,048,577 bytes"):
        rows_of(tmp_path / "rows.csv", b"y,n,t" + b"," * raw.LONGEST + b"\n1,2,x\n")


@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize(
    ("head", "message"),
    [
        (b'"y","n","t"', None),
        (b'y,n,t,"a ""comment"", long"', None),
        (b'y,"n"x,t', AFTER),
        (b'y,n"",t', WITHIN),
        (b'y,n,"t', OPEN),
    ],
)
def test_the_header_has_the_same_quotes(tmp_path, bom, head, message):
    row = b'1,2,"x"' + b",z" * (b"comment" in head) + b"\n"
    criteo = head.replace(b"t", b",".join(b"C%d" % i for i in range(1, 27)), 1) if b"comment" not in head else head
    criteo = criteo.replace(b"n", b",".join(b"I%d" % i for i in range(1, 14)), 1).replace(b"y", b"label", 1)
    for content, schema in ((head + b"\n" + row, GIFTS), (criteo + b"\n", None)):
        if message:
            with pytest.raises(UserError) as caught:
                rows_of(tmp_path / "rows.csv", bom + content, schema)
            assert str(caught.value) == f"{tmp_path}/rows.csv:1: quotes that do not fit: {message}"
        elif schema:
            assert rows_of(tmp_path / "rows.csv", bom + content, schema) == ([[1, 2, crc("x")]], [])


def test_without_a_header_the_first_row_may_begin_with_a_bom_and_a_quote(tmp_path):
    schema = {"file": {"header": False, "names": ["y", "n", "t"]}, **GIFTS}
    assert rows_of(tmp_path / "rows.csv", b'\xef\xbb\xbf"1","2","x"', schema) == ([[1, 2, crc("x")]], [])
    _, bad = rows_of(tmp_path / "rows.csv", b'\xef\xbb\xbf"1,2,x\n1,2,x', schema)
    assert bad == [f"1: quotes that do not fit: {OPEN}"]


def test_quotes_of_tab_separated_text(tmp_path):
    """They are text, but where a schema says otherwise, or a header has some."""
    content = b'y\tn\tt\n1\t2\t"x"\n1\t"2"\tx\n'
    tabs = {"file": {"delimiter": "\t"}, **GIFTS}
    rows, bad = rows_of(tmp_path / "rows.csv", content, tabs)
    assert (rows, bad) == ([[1, 2, crc('"x"')]], ["3: field n: expected a whole number, found '\"2\"'"])
    tabs["file"]["quotes"] = True
    assert rows_of(tmp_path / "rows.csv", content, tabs) == ([[1, 2, crc("x")]] * 2, [])

    row = ["1", *map(str, range(13)), *(f"{i:08x}" for i in range(26)), '12" pipe']
    lines = ["\t".join([*raw.RAW, "user"]), "\t".join(row)]
    rows, bad = rows_of(tmp_path / "rows.csv", "\n".join(lines).encode(), None)
    assert (rows, bad) == ([[1, *range(13), *range(26)]], [])
    quoted = ["\t".join(map(in_quotes, line.split("\t"))) for line in lines]
    assert rows_of(tmp_path / "rows.csv", "\n".join(quoted).encode(), None) == (rows, [])
    _, bad = rows_of(tmp_path / "rows.csv", "\n".join([quoted[0], lines[1]]).encode(), None)
    assert bad == [f"2: quotes that do not fit: {WITHIN}"]


def test_a_missing_value_may_hold_quotes(tmp_path):
    """It is compared with the field's text, in which two quotes are one."""
    for missing, field, is_missing in (
        ('"', '""""', True), ('""', '""""', False), ('""', '""""""', True), ("a", '"a"', True), ('"a"', '"a"', False),
        ('"a"', '"""a"""', True), ('a""b', '"a""b"', False), ('a"b', '"a""b"', True),
    ):
        schema = {"file": {"missing": [missing]}, **GIFTS, "lists": {"l": {"kind": "text", "separator": "|"}}}
        for beside in (b"", b'1,2,12" pipe,\n'):
            content = b"y,n,t,l\n" + f"1,,{field},{field}\n".encode() + beside
            [row], _ = rows_of(tmp_path / "rows.csv", content, schema)
            text = field[1:-1].replace('""', '"')
            assert row == [1, None, -1, []] if is_missing else [1, None, crc(text), [crc(text)]]
        counts = rows_of(tmp_path / "rows.csv", b"y,n,t,l\n" + f"1,{field},,\n".encode(), schema)
        assert (counts == ([[1, None, -1, []]], [])) == is_missing
