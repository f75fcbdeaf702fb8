"""Click probabilities for rows of your own, by a trained model.

    python -m model.predict build/checkpoints/NAME/best.pt ROWS --out FILE

ROWS is Parquet as data.preprocess writes it, a file or a folder of them, in the order of the numbers in their names; or
text as it reads it, plain or gzip, a pipe too (-): Criteo's, or what the schema says that the model's rows were
preprocessed by. It may have labels; they are not looked at. FILE, whose suffix says which it is, .parquet, .csv or
.tsv, has one column, probability, and its n-th row is for the n-th row of ROWS.
"""

if __name__ == "__main__":
    from data.cli import run

    run("model.predict")

import argparse
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import torch
from torch import Tensor

from data.cli import Parser, UserError
from data.criteo import IDS, CriteoBatches
from data.formats import begins_as_parquet
from data.output import complete_file
from data.schema import Schema, read_schema, schema_of
from data.text_batches import TextBatches
from model.device import choose
from model.dlrm import DLRM
from model.evaluation import BATCH_SIZE, Batches, check_form, columns_of, logits, probabilities_of, trained

SCHEMA = pa.schema([pa.field("probability", pa.float64(), nullable=False)])
ROW_GROUP = 1 << 20  # rows that are written at a time
DELIMITERS = {".csv": ",", ".tsv": "\t"}


def predict(
    checkpoint: str | Path,
    rows: str | Path,
    out: str | Path,
    *,
    batch_size: int = BATCH_SIZE,
    hash_size: int | None = None,
    device: str | torch.device | None = None,
    schema: Schema | None = None,
) -> int:
    """Write each row's click probability, float64; returns the number of rows.

    Args:
        checkpoint: what `model.train` wrote.
        rows: a Parquet file, a folder of them, or text; streamed, so they may be larger than memory.
        out: .parquet, .csv or .tsv; written completely or not at all, and until then what is there stays.
        batch_size: rows at a time; what memory they take.
        hash_size: take ids modulo this, as data.preprocess --hash-size did for the rows that the model has seen;
            default: what the checkpoint says. It changes nothing for rows that data.preprocess has written so.
        device: default: a GPU if there is one.
        schema: of the text, in another form than that of the rows that the model has seen.

    Raises UserError, naming file, row and column for rows that are not right.
    """
    rows, out = Path("/dev/stdin" if str(rows) == "-" else rows), Path(out)
    if out.suffix != ".parquet" and out.suffix not in DELIMITERS:
        raise UserError(f"--out {out}: expected a name that ends in .parquet, {' or '.join(DELIMITERS)}")
    if out.resolve() == rows.resolve():
        raise UserError(f"--out {out}: this file holds the rows; name another")
    device = choose(device)
    model = trained(checkpoint, device)
    batches = _batches(rows, batch_size, model, schema)
    if hash_size or model.hash_size:
        batches = _Hashed(batches, hash_size or model.hash_size)
    written = 0
    with complete_file(out) as file, _writer(file, out.suffix) as write:
        for part in _collected(logits(model, batches, device, name="predict"), ROW_GROUP):
            if (bad := np.flatnonzero(np.isnan(part))).size:
                row = written + bad[0]
                raise UserError(f"{checkpoint}: predicts NaN for row {row} of {rows}: its training has diverged")
            write(pa.table([part], schema=SCHEMA))
            written += len(part)
    return written


def _batches(rows: Path, batch_size: int, model: DLRM, form: Schema | None) -> Batches:
    columns = columns_of(model)
    if rows.is_dir() or rows.suffix == ".parquet" or _begins_as_parquet(rows):
        return CriteoBatches(rows, batch_size, labelled=False, schema=columns)
    if form is None and model.schema is not None:
        form = schema_of(model.schema, "the checkpoint")
    if form:
        check_form(model, form, "--schema")
    return TextBatches(rows, batch_size, form=form, used=columns)


def _begins_as_parquet(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return begins_as_parquet(file.read(4))


class _Hashed:
    """The batches, with ids modulo hash_size; a missing one stays missing."""

    def __init__(self, batches: Batches, hash_size: int):
        self.batches, self.hash_size, self.num_rows = batches, hash_size, batches.num_rows

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        for labels, dense, sparse, *offsets in self.batches:
            yield labels, dense, torch.where(sparse >= 0, sparse % self.hash_size, sparse), *offsets


def _collected(batches: Iterable[tuple[Tensor, Tensor]], rows: int) -> Iterator[np.ndarray]:
    """The probabilities of the batches' logits, so many rows and up to a batch more at a time."""
    parts, held = [], 0
    for _, of_batch in batches:
        parts.append(probabilities_of(of_batch))
        held += len(of_batch)
        if held >= rows:
            yield np.concatenate(parts)
            parts, held = [], 0
    if parts:
        yield np.concatenate(parts)


@contextmanager
def _writer(file: BinaryIO, suffix: str) -> Iterator[Callable[[pa.Table], None]]:
    """A function that writes a table's rows to the file, after those before."""
    if suffix == ".parquet":
        writer = pq.ParquetWriter(file, SCHEMA)
    else:
        options = pyarrow.csv.WriteOptions(delimiter=DELIMITERS[suffix], quoting_style="none", quoting_header="none")
        writer = pyarrow.csv.CSVWriter(file, SCHEMA, write_options=options)
    with writer:
        yield writer.write_table


def main(arguments: list[str] | None = None) -> None:
    parser = Parser(
        prog="python -m model.predict", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="what model.train wrote")
    parser.add_argument("rows", type=Path, metavar="ROWS", help="Parquet, or text; -: text from stdin")
    parser.add_argument("--schema", metavar="NAME|FILE", help="of text (default: that of the rows it was trained on)")
    parser.add_argument("--out", required=True, type=Path, metavar="FILE", help=".parquet, .csv or .tsv")
    parser.add_argument("--batch-size", type=int, default=BATCH_SIZE, metavar="N", help="default: %(default)s")
    parser.add_argument(
        "--hash-size", type=int, metavar="N", help="ids modulo N (default: as the checkpoint's rows were)"
    )
    parser.add_argument("--device", help="cpu, cuda or cuda:N (default: a GPU if there is one)")
    options = parser.parse_args(arguments)
    for name, most in (("batch_size", None), ("hash_size", IDS)):
        value = getattr(options, name)
        if value is not None and (value < 1 or (most and value > most)):
            expected = f"1 to {most}" if most else "at least 1"
            parser.error(f"argument --{name.replace('_', '-')}: expected {expected}, got {value}")
    schema = read_schema(options.schema) if options.schema else None
    written = predict(**vars(options) | {"schema": schema})
    print(f"{written:,} rows → {options.out}")
