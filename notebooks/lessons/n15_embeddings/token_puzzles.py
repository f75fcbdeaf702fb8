"""One problem on the way to the look-ups, a kernel with a hole: its launch, and what it must give.

    select   out[i] = image[indices[i]] where ids[i] is the image's token, else table[ids[i]]; zeros where there is no
             such row

The width H is a power of two.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from kernels.check import Call, Case, Spec
from kernels.ops.vocabulary.eager import vocabulary
from lessons.shared.puzzle import InTriton

TABLE_ROWS, IMAGE_ROWS = 11, 5
TOKENS = (4, -200, 32000)  # an id of the table's, and two that are none


def look_up(kernel, ids: Tensor, table: Tensor, indices: Tensor, image: Tensor, token: int) -> Tensor:
    """Launch a kernel on ids [N], table [V, H], indices [N], image [I, H] → [N, H]; a program takes an id."""
    out = torch.empty(len(ids), table.shape[1], dtype=table.dtype, device=table.device)
    kernel[(len(ids),)](ids, table, indices, image, out, len(table), len(image), token, H=table.shape[1])
    return out


def text_or_image(ids: Tensor, table: Tensor, indices: Tensor, image: Tensor, token: int) -> Tensor:
    """The reference."""
    return vocabulary(ids, table, image, None, indices, "multimodal", image_token_id=token)


def _calls(case: Case, device: torch.device) -> Iterator[Call]:
    count, width = case.shape
    for token in TOKENS:
        ids = Case(case.shape).integers(3, TABLE_ROWS + 4, device, (count,)) - 2
        ids[::2] = token
        indices = Case(case.shape).integers(4, IMAGE_ROWS + 4, device, (count,)) - 2
        table, image = case.tensor(1, device, (TABLE_ROWS, width)), case.tensor(2, device, (IMAGE_ROWS, width))
        hint = f"id {token} is the image's: its row is indices[i], of image_rows; every other id is a row of the table."
        yield Call(f"{case} token {token}", (ids, table, indices, image), (token,), hint)


def _cases(names: tuple[str, ...]) -> list[Case]:
    return [Case((1, 4)), Case((9, 8)), Case((40, 4)), Case((20, 8), values="special"), Case((20, 8), torch.float16)]


PUZZLES = {"select": InTriton(Spec(text_or_image, _calls, cases=_cases), look_up, __name__)}
