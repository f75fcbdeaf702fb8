"""What is measured of the look-ups: `python -m kernels.measure bench vocabulary`.

A prompt of N ids: I of them are an image's and A an audio's where the look-up knows these, in order, the rest is text,
uniform over the table. All calls share the table, which does not fit into the L2; image and audio are each call's own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ...measure.cells import Calls, Cell, FirstCall, calls, implementations
from ...measure.judge import BytesPlus, CallCost, FirstCallWithin, NeverSlower
from .eager import backward_bytes, forward_bytes

OP = "vocabulary"
COLUMNS, TEXTS, IMAGES, AUDIOS = 4096, 32000, 576, 256
COUNTS = (8192, 4096, 1024)
IMAGE_TOKEN, AUDIO_TOKEN = 31998, 31999
DTYPE = torch.float16
# Look-up → (mode, vocab_size, image_token_id, audio_token_id).
LOOKUPS = {
    "embedding_lookup": ("text", 0, 0, 0),
    "embedding_lookup_with_image": ("image", 0, 0, 0),
    "assemble_deepstack_embedding": ("deepstack", TEXTS, 0, 0),
    "embedding_lookup_multimodal": ("multimodal", 0, IMAGE_TOKEN, AUDIO_TOKEN),
}
OURS = ("triton",)
NAMES = ("eager", "torch.compile", *OURS)
SHOWN = {"lookup": "embedding_lookup", "ids": COUNTS[0]}
TARGETS = (
    BytesPlus(2.0, who=OURS),
    NeverSlower("torch.compile", OURS),
    NeverSlower("torch.compile", OURS, "training"),
    CallCost(who=OURS),
    FirstCallWithin(who=OURS),
    NeverSlower("eager", ("auto",), "auto"),
)


def _inputs(mode: str, count: int) -> Callable:
    """ids, table, image, audio and multimodal_indices, as the mode takes them."""

    def inputs(draw: Callable, ids: Callable, table: Tensor) -> tuple[Tensor | None, ...]:
        given = ids(count, below=IMAGE_TOKEN)
        if mode == "text":
            return given, table, None, None, None
        rows = torch.arange(count, device=given.device)
        image = draw(IMAGES, COLUMNS)
        if mode != "multimodal":
            given[:IMAGES] = TEXTS + rows[:IMAGES]
            return given, None if mode == "deepstack" else table, image, None, None
        given[:IMAGES], given[IMAGES : IMAGES + AUDIOS] = IMAGE_TOKEN, AUDIO_TOKEN
        rows[IMAGES:] -= IMAGES
        return given, table, image, draw(AUDIOS, COLUMNS), rows

    return inputs


def _indexed(mode: str) -> Callable:
    """As it is usually written: text alone, which must be in range; and by masks, whose sizes the CPU waits for."""

    def indexed(ids, table, image, audio, indices, mode, vocab_size, image_token, audio_token) -> Tensor:
        some = image if table is None else table
        out = torch.zeros(*ids.shape, COLUMNS, dtype=some.dtype, device=ids.device)
        if mode == "text":
            out[:] = table[ids.long()]
            return out
        is_image = ids == image_token if mode == "multimodal" else ids >= TEXTS
        is_audio = ids == audio_token if mode == "multimodal" else None
        rest = ~is_image if is_audio is None else ~(is_image | is_audio)
        if table is not None:
            out[rest] = table[ids[rest].long()]
        out[is_image] = image[indices[is_image] if mode == "multimodal" else ids[is_image] - TEXTS]
        if is_audio is not None:
            out[is_audio] = audio[indices[is_audio]]
        return out

    return lambda: lambda *tensors: indexed(*tensors, *next(o for o in LOOKUPS.values() if o[0] == mode))


def _cell(part: str, lookup: str, count: int, names: tuple[str, ...], **more) -> Cell:
    options = LOOKUPS[lookup]
    mode = options[0]
    built = implementations(OP, options, [name for name in names if name != "indexed"])
    if "indexed" in names:
        built["indexed"] = _indexed(mode)
    read = IMAGES if mode == "deepstack" else count
    moved = (forward_bytes(count, COLUMNS, DTYPE) + forward_bytes(read, COLUMNS, DTYPE)) // 2
    if part == "training":
        built = {name: functools.partial(_trained, build) for name, build in built.items()}
        moved += backward_bytes(count, COLUMNS, DTYPE, TEXTS)
    return Cell(
        OP, part, "functional", {"lookup": lookup, "ids": count, "columns": COLUMNS, "dtype": "float16"},
        inputs=_inputs(mode, count), implementations=built, options=options, bytes=moved,
        shared=lambda draw: (draw(TEXTS, COLUMNS),),
        smaller=lambda: _cell(part, lookup, count // 2, names, **more) if count > 2 * (IMAGES + AUDIOS) else None,
        **more,
    )


def _trained(build: Callable) -> Callable:
    """The look-up and its backward, so that a sort counts wherever an implementation has it."""
    function = build()

    def step(ids: Tensor, table: Tensor, *others: Tensor | None) -> Tensor:
        leaf = table.detach().requires_grad_()
        with torch.enable_grad():
            out = function(ids, leaf, *others)
        torch.autograd.grad(out, leaf, out.detach())
        return out.detach()

    return step


def cells(quick: bool = False) -> Iterator[Cell | Calls | FirstCall]:
    """Cells by part: each look-up against its bytes, with its gradient, the calls' cost, beside the usual forms."""
    for lookup in LOOKUPS:
        for count in COUNTS[: 1 if quick else None]:
            # Compiling takes most of a run's time: the peer is compiled for the largest and the smallest prompt.
            names = [name for name in NAMES if name != "torch.compile" or count != COUNTS[1]]
            yield _cell("bandwidth", lookup, count, (*names, *["indexed"] * (lookup == "embedding_lookup")))
    yield _cell("training", "embedding_lookup", COUNTS[0], NAMES)
    labels = {"ids": 64, "columns": 64, "dtype": "float16"}
    options = (None, None, None, *LOOKUPS["embedding_lookup"])
    inputs = lambda draw, ids: (ids(64, below=100), draw(100, 64))  # noqa: E731
    yield from calls(OP, labels, inputs, ("ids", "table"), options, ("functional",), OURS)
    for lookup in LOOKUPS:
        yield _cell("auto", lookup, COUNTS[0], ("eager", "indexed", "auto"), waits=True)
