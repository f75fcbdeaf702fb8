"""A guess at a failure's cause: from the kind of case that failed, those that passed, and which elements are wrong."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .cases import Case
from .comparison import Mismatch
from .interpreter import OutOfBounds
from .memory import WrittenBeside

FLOAT64 = "dtype: float32 passes. Is something in between computed in float32?"
SAYS = {  # Triton's words
    "invalid operands of type pointer": "a pointer was used as a number: load it.",
    "create_descriptor_reduce": "Triton's interpreter has no atomics through a descriptor: tl.atomic_add and its like "
    "take pointers.",
    "get_bf16": "Triton's interpreter knows no number in bfloat16: convert to float32 after the load.",
    "16-byte aligned": "a descriptor begins at a multiple of 16 bytes, and so does each of its rows and blocks: with "
    "float32 in fours.",
}
VALUES = {
    "special": "NaN and Inf: ordinary numbers pass. A comparison with NaN is false, and 0 · Inf is NaN.",
    "tiny": "small numbers: ordinary ones pass. Is something added, rounded or flushed to 0 that should not be?",
    "large": "large numbers: ordinary ones pass. Does an exponential overflow?",
    "huge": "huge numbers: ordinary ones pass. Does something in between overflow?",
}
LAYOUTS = {
    "transposed": "layout: contiguous tensors pass. Does the kernel use the strides, or a contiguous copy?",
    "strided": "layout: contiguous tensors pass. Does the kernel use the strides, or a contiguous copy?",
    "expanded": "layout: contiguous tensors pass. An expanded tensor has a stride of 0 and less memory than elements.",
    "misaligned": "layout: aligned tensors pass. This one starts one element behind a multiple of 16 bytes.",
}


def hint(error: Exception, case: Case, passed: Sequence[Case], own: str = "") -> str:
    """One sentence or two; "" where there is nothing to say. own: the call's, in place of a guess at the address."""
    if isinstance(error, OutOfBounds | WrittenBeside):
        advice = getattr(error, "hint", OutOfBounds.hint)
        if "mask" in own:
            return own if advice == OutOfBounds.hint else advice
        return f"{own} And the {advice}" if own else advice
    if isinstance(error, NotRepeatable):
        return "race or atomics: programs run in any order, so none may add to or read what another one writes."
    if not isinstance(error, Mismatch):
        return next((text for words, text in SAYS.items() if words in str(error)), own)
    if isinstance(error, Unwritten):
        if own and error.where.all():
            return f"{own} In this case nothing was stored at all."
        if own:
            return f"{own} And the mask: does it let every element through?"
        return "grid or mask: does the grid cover every element, and does the mask let the last ones through?"
    if case.dtype == torch.float64 and any(c.dtype == torch.float32 for c in passed) and error.digits:
        return FLOAT64
    if error.digits and case.dtype.itemsize > 2:
        rounded = f"right to some {error.digits} digits: is something rounded on the way, to float16 or bfloat16?"
        return f"{rounded} Or is a formula approximate? {own}" if own else rounded
    if case.values != "normal" and any(c.values == "normal" and c.dtype == case.dtype for c in passed):
        return VALUES[case.values]
    if case.layout != "contiguous" and any(c.layout == "contiguous" and c.dtype == case.dtype for c in passed):
        return LAYOUTS[case.layout]
    if case.dtype == torch.float64 and any(c.dtype == torch.float32 for c in passed):
        return FLOAT64
    if case.dtype.itemsize == 2 and any(c.dtype == torch.float32 for c in passed):
        return "dtype: float32 passes. Convert to float32 after the load, and back once, before the store."
    return own or place(error.where)


def place(wrong: Tensor) -> str:
    """What a pattern of wrong elements speaks for."""
    columns = wrong.shape[-1] if wrong.dim() else 1
    table = wrong.reshape(-1, columns)
    if len(table) > 1 and (first := _first_of_the_last(table.T)):
        return f"columns: those before column {first} are right. Which column does an element's offset belong to?"
    if first := _first_of_the_last(table):
        return f"rows: those before row {first} are right. Which row and column does an element's offset belong to?"
    if first := _first_of_the_last(wrong.reshape(-1, 1)):
        return f"tail: the elements before number {first} are right. Is the last block cut short, or left out?"
    return ""


def _first_of_the_last(wrong: Tensor) -> int:
    """The first row with a wrong element, if many from there on are wrong (relu's zeros agree by chance); else 0."""
    first = int(wrong.any(1).nonzero()[0])
    return first if wrong[first:].double().mean() > 0.3 else 0


class Unwritten(Mismatch):
    """The elements in `where` still are what the memory was filled with."""


class NotRepeatable(AssertionError):
    """Two runs on the same inputs gave different bits."""
