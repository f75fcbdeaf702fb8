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
from lessons.n15_embeddings.bag_puzzles import Copies
from lessons.shared.far import FAR, behind, has_room
from lessons.shared.puzzle import InTriton

TABLE_ROWS, IMAGE_ROWS = 11, 5
FEW = (12, 2)  # the shape of the case that also lies FAR in its tables, there in half precision: a GPU has room
TOKENS = (4, -200, 32000)  # an id of the table's, and two that are none


def look_up(
    kernel, ids: Tensor, table: Tensor, indices: Tensor, image: Tensor, token: int, first: int = 0
) -> Tensor:
    """Launch a kernel on ids [N], table [V, H], indices [N], image [I, H] → [N, H]; a program takes an id.

    first: rows that table and image have more in front; ids and indices know of them.
    """
    out = torch.empty(len(ids), table.shape[1], dtype=table.dtype, device=table.device)
    table, image = behind(table, first), behind(image, first)
    kernel[(len(ids),)](ids, table, indices, image, out, len(table), len(image), token, H=table.shape[1])
    return out


def text_or_image(
    ids: Tensor, table: Tensor, indices: Tensor, image: Tensor, token: int, first: int = 0
) -> Tensor:
    """The reference."""
    near = torch.where(ids == token, ids, ids - first)
    return vocabulary(near, table, image, None, indices - first, "multimodal", image_token_id=token)


def _calls(case: Case, device: torch.device) -> Iterator[Call]:
    count, width = case.shape
    for token in TOKENS:
        ids = Case(case.shape).integers(3, TABLE_ROWS + 4, device, (count,)) - 2
        ids[::2] = token
        indices = Case(case.shape).integers(4, IMAGE_ROWS + 4, device, (count,)) - 2
        table, image = case.tensor(1, device, (TABLE_ROWS, width)), case.tensor(2, device, (IMAGE_ROWS, width))
        hint = f"id {token} is the image's: its row is indices[i], of image_rows; every other id is a row of the table."
        yield Call(f"{case} token {token}", (ids, table, indices, image), (token,), hint)
    if case.shape != FEW:
        return
    far = torch.where(ids == token, ids, ids + FAR), table, indices + FAR, image
    hint = "cut to 32 bits it is a row that there is: keep 64."
    yield Call(f"{case}, ids and indices + 2^32", far, (token,), hint)
    if has_room(device, table.half(), image.half()):
        far = far[0], table.half(), far[2], image.half()
        hint = f"table and image have {FAR:,} rows more: a row and its place need all of their 64 bits."
        yield Call(f"{case}, rows beyond 2^32", far, (token, FAR), hint)


def _cases(names: tuple[str, ...]) -> list[Case]:
    shapes = [(1, 4), (9, 8), (40, 4), FEW]
    return [*map(Case, shapes), Case((20, 8), values="special"), Case((20, 8), torch.float16)]


PUZZLES = {"select": InTriton(Spec(text_or_image, _calls, scale=Copies(), cases=_cases), look_up, __name__)}
