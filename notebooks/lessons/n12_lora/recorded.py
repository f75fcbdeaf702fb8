"""What the record of LoRA says: µs by part and variant, printed; a row that is not recorded yet says so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from lessons.shared.records import Record, copy_us, spread

if TYPE_CHECKING:
    import pandas

LORA = Record("lora")
ROWS, WIDTH = 8192, 4096  # of the layer that the lesson speaks of
VARIANTS = {"the op": "fused, triton"}  # the lesson's name, the record's


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


def show_layer(predicted: Mapping[str, float | None], **labels) -> None:
    """A line a way, and what was predicted."""
    print(f"Recorded, {LORA.head('GPU')}, torch {LORA.head('torch')}, {LORA.head('date')}:")
    for name, guess in predicted.items():
        entry = row("layer", name, **labels)
        if entry is None:
            chosen = _labels("layer", name, labels)
            text = LORA.elsewhere("layer", beside=VARIANTS["the op"], called="the op", **chosen)
        else:
            text = f"{spread(entry, 8)} µs"
        print(f"  {name:28}{text}{'' if guess is None else f', your prediction: {guess}'}")
