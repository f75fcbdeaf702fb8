"""The whole update, put together of the reader's kernels: what it must give, and which of its steps is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from kernels.check import Call, Case, Spec
from kernels.ops.embedding_bags_update.eager import embedding_bags_adagrad_
from lessons.n16_training_tables.update_parts import (
    EPS,
    GIVEN,
    launch_starts,
    launch_sums,
    launch_update,
    starts_of,
    sums_of,
)
from lessons.shared.puzzle import InTriton
from lessons.shared.puzzle.kernels_only import Computes

RULE = "beside your kernels torch may sort, pad and index, and nothing else."
# torch's operators that do just that: they move numbers, and make none.
SORTS = ("sort",)
PADS = ("constant_pad_nd", "cat", "stack", "lift_fresh", "copy_")
INDEXES = (
    "nonzero", "index", "index_select", "gather", "take", "masked_select", "embedding", "flip", "roll", "narrow_copy",
    "_to_copy",  # a mask's bool, an index's int64
)  # fmt: skip


def adagrad(tables: Tensor, state: Tensor, ids: Tensor, grad: Tensor, lr: float) -> None:
    """The reference."""
    bounds = torch.tensor([0, len(tables)], device=tables.device)
    embedding_bags_adagrad_(tables, state, bounds, ids[:, None], grad[:, None], lr, eps=EPS)


def _calls(case: Case, device: torch.device) -> Iterator[Call]:
    count, width = case.shape
    tables, state, grad = (case.tensor(seed, device, (rows, width)) for seed, rows in ((1, 9), (2, 9), (3, count)))
    ids = case.integers(4, 9, device, (count,))
    GIVEN.clear()
    GIVEN["whole"] = ids, grad
    yield Call(f"{count} ids in 9 rows of {width}", (tables, state.abs(), ids, grad), (0.1,))


class Whole(InTriton):
    """A function that launches the reader's kernels."""

    def hold(self, name: str, answer: Callable, device: torch.device) -> str:
        try:
            return super().hold(name, answer, device)
        except AssertionError as error:
            message = str(error).partition("\nHint: ")[0]
            hint = RULE if isinstance(error.__cause__, Computes) else wrong_step()
            raise AssertionError(f"{message}\nHint: {hint}" if hint else message) from error


def wrong_step() -> str:
    """What to think of the first step of the last call that was given, or gave, something else than it should; "" if
    none was."""
    try:
        return next((hint for hint, got, want in _steps() if not _same(got, want)), "")
    except RuntimeError:  # of a GPU after an illegal address
        return ""


def _same(got: Tensor, want: Tensor) -> bool:
    return got.shape == want.shape and torch.allclose(got.double(), want.double(), rtol=1e-4, atol=1e-5)


def _steps() -> Iterator[tuple[str, Tensor, Tensor]]:
    """(a hint, what was given, what should be) of each step that was taken."""
    ids, grad = GIVEN["whole"]
    keys, positions = ids.sort(stable=True)
    starts = starts_of(keys)
    first = starts.nonzero().flatten()
    offsets = torch.nn.functional.pad(first, (0, 1), value=len(keys))
    sums = sums_of(grad, positions, offsets)
    steps = {
        "starts": (
            ("launch_starts takes the keys: the ids in ascending order.", keys),
            ("starts_kernel does not mark each segment's first key: puzzle 1 is not right yet.", starts),
        ),
        "sums": (
            ("the second argument of launch_sums is grad, as it came.", grad),
            ("positions say where each sorted key stood among the ids: sort gives them, too.", positions),
            ("offsets are the places of the segments' first keys, and behind them the number of keys.", offsets),
            ("sums_kernel does not give each segment's sum: puzzle 2 is not right yet.", sums),
        ),
        "update": (
            ("row s of the update is the key of segment s: the keys, at the places where segments begin.", keys[first]),
            ("the last tensor of launch_update is the segments' sums.", sums),
        ),
    }
    for name, wanted in steps.items():
        for (hint, want), got in zip(wanted, GIVEN.get(name, ()), strict=False):
            yield hint, got, want
    if "update" in GIVEN:
        last = "adagrad_kernel is given the right rows and sums: is puzzle 3 right, and the arguments' order?"
        yield last, keys, keys + 1


WHOLE = Whole(
    Spec(adagrad, _calls, (), ("tables", "state"), cases=lambda names: [*map(Case, ((1, 4), (20, 16), (200, 5)))]),
    None, "lessons.n16_training_tables.puzzles", (launch_starts, launch_sums, launch_update),
    operators=(*SORTS, *PADS, *INDEXES),
)  # fmt: skip
