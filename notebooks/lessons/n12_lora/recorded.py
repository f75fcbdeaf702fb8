"""What the record of LoRA says: µs by part and variant, printed; a row that is not recorded yet says so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from lessons.n12_lora.experiment import GROUPED, MASKED
from lessons.shared.records import NO_RECORD, Record, copy_us, spread

if TYPE_CHECKING:
    import pandas

LORA = Record("lora")
ROWS, WIDTH = 8192, 4096  # of the layer that the lesson speaks of
VARIANTS = {"the op": "fused, triton", "masked": MASKED, "grouped": GROUPED}  # the lesson's names, the record's


def row(part: str, variant: str, **labels) -> pandas.Series | None:
    """The row of this variant, of the lesson's layer unless labels say another; None: there is none yet."""
    try:
        return LORA.one(part, **_labels(part, variant, labels))
    except LookupError:
        return None


def _labels(part: str, variant: str, labels: Mapping) -> dict:
    layer = {"rows": ROWS, "width": WIDTH} if part in ("layer", "training") else {}
    return layer | labels | {"variant": VARIANTS.get(variant, variant)}


def time_us(part: str, variant: str, kind: str = "us_p50", **labels) -> float:
    """µs of that row on the GPU. kind: host_us, until a call is back in Python; call_us, from call to call."""
    entry = row(part, variant, **labels)
    if entry is None:
        raise LookupError(f"lora.json: no {variant} in {part}")
    return float(entry[kind])


def e_us(passes: float) -> float:
    """µs in which a copy moves so many bfloat16 tensors of [ROWS, WIDTH]: E is one of them, read or written."""
    return copy_us(passes * ROWS * WIDTH * 2)


def _head(record: Record = LORA) -> str:
    return f"Recorded, {record.head('GPU')}, torch {record.head('torch')}, {record.head('date')}:"


def _line(what: str, part: str, variant: str, more: str = "", **labels) -> None:
    entry = row(part, variant, **labels)
    if entry is None:
        chosen = _labels(part, variant, labels)
        text = LORA.elsewhere(part, beside=VARIANTS["the op"], called="the op", **chosen)
    else:
        text = f"{spread(entry, 8)} µs"
    print(f"  {what:28}{text}{more}")


def show_layer(predicted: Mapping[str, float | None], **labels) -> None:
    """A line a way, and what was predicted."""
    print(_head())
    for name, guess in predicted.items():
        _line(name, "layer", name, "" if guess is None else f", your prediction: {guess}", **labels)


def show_crossing() -> None:
    """The mask and the groups, by the number of adapters; or that there is no record."""
    try:
        record = LORA.with_part("crossing")
    except LookupError:
        print(NO_RECORD)
        return
    print(_head(record))
    for count, rows in record.rows("crossing").groupby("adapters"):
        us = dict(zip(rows["variant"], rows["us_p50"], strict=True))
        print(f"  {count:4.0f} adapters: masked {us[MASKED]:.0f} µs, grouped {us[GROUPED]:.0f} µs")


def show_adapters(predicted: str | None) -> None:
    """A line a way: µs, and the most memory beside inputs and weights."""
    print(_head())
    for name in ("gathered", "masked", "grouped"):
        entry, mark = row("adapters", name), ", your prediction" if name == predicted else ""
        _line(name, "adapters", name, f", {entry['peak_bytes'] / 1e6:.0f} MB{mark}")
