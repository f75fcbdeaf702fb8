"""The puzzles of 23_serving_a_model.ipynb: what each must give, and attempt(), which judges an answer.

    body         counts [B, 13], ids [B, 26] → the bytes of a request
    look_up      what has a table of ids, a request's ids → their rows
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor

from lessons.shared.puzzle import Judge, Own
from lessons.shared.puzzle.reader import ask, unchanged


def body(counts: Tensor, ids: Tensor) -> bytes:
    """As model/serving/cpp/requests.h reads them."""
    return len(counts).to_bytes(8, "little") + counts.numpy().tobytes() + ids.numpy().tobytes()


def _requests() -> Iterator[tuple[str, Tensor, Tensor, str]]:
    """(case, counts, ids, a hint where the layout gives none)"""
    generator = torch.Generator().manual_seed(1)
    for rows in (1, 3, 0, 257):
        counts = torch.rand(rows, 13, generator=generator)
        ids = torch.randint(1 << 40, (rows, 26), generator=generator)
        yield f"{rows} row{'s' * (rows != 1)}", counts, ids, ""
    counts, ids = torch.full((2, 13), torch.nan), torch.full((2, 26), -1)
    yield "missing counts and ids", counts, ids, (
        "NaN and -1 go over as they are: what a missing one means, the model says. An int64 has a sign."
    )
    counts = torch.full((2, 13), -2.0)
    yield "counts below 0", counts, ids, "counts go over as they are: the model takes those below 0 for 0."
    # The caller's tensors may be views: the bytes of other numbers lie between theirs.
    counts, ids = torch.rand(4, 26, generator=generator)[:, ::2], torch.arange(104).view(26, 4).T
    yield "tensors that are views", counts, ids, "row by row, also where the tensor does not lie so."


def _check_body(answer: Callable) -> str:
    requests = [*_requests()]
    for name, counts, ids, hint in requests:
        told = f"body, case {name}: "
        want, kept = body(counts, ids), (counts.clone(), ids.clone())
        got = ask(told, answer, (counts, ids), hint or _layout(b"", len(counts), counts, ids))
        assert isinstance(got, bytes | bytearray), (
            f"{told}must return bytes; got {type(got).__name__}\n"
            "Hint: tensor.numpy().tobytes() gives the bytes of its numbers, and + puts bytes behind bytes."
        )
        for what, tensor, before in zip(("counts", "ids"), (counts, ids), kept, strict=True):
            unchanged(told, what, tensor, before)
        assert bytes(got) == want, f"{told}{_difference(bytes(got), want, counts, ids, hint)}"
    return f"{len(requests)} cases passed on paper"


def _difference(got: bytes, want: bytes, counts: Tensor, ids: Tensor, hint: str) -> str:
    """The first byte that is another, and what to think of."""
    message = f"expected {len(want)} bytes, got {len(got)}"
    if len(got) == len(want):
        at = next(k for k, (a, b) in enumerate(zip(got, want, strict=True)) if a != b)
        message = f"byte {at}: expected {want[at]}, got {got[at]}"
    return f"{message}\nHint: {hint or _layout(got, len(counts), counts, ids)}"


_LITTLE = "little-endian: the byte of the ones comes first, in each number."


def _layout(got: bytes, rows: int, counts: Tensor, ids: Tensor) -> str:
    parts = counts.numpy().tobytes(), ids.numpy().tobytes()
    both, number = b"".join(parts), rows.to_bytes(8, "little")
    if got == both:
        return "the number of rows comes first, as 8 bytes."
    if got == both + number:
        return "the number of rows comes first, before the counts."
    if got == rows.to_bytes(4, "little") + both:
        return "the number of rows is an int64: 8 bytes."
    if got[8:] == both:
        if got[:8] == number[::-1]:
            return _LITTLE
        return f"the first 8 bytes are the number of rows, here {rows}, as an int64."
    if got[8:] == parts[1] + parts[0]:
        return "the counts come before the ids."
    pairs = zip(counts, ids, strict=True)
    if got[8:] == b"".join(a.numpy().tobytes() + b.numpy().tobytes() for a, b in pairs):
        return "all counts come first, row by row, and then all ids."
    orders = [[a.numpy().tobytes() for a in (tensor, tensor.T.contiguous())] for tensor in (counts, ids)]
    if got[8:] in (a + b for a in orders[0] for b in orders[1]):
        return "row by row: what belongs to one row lies side by side. These go column by column."
    of_counts, of_ids = 13 * rows, 26 * rows
    if len(got) == 8 + 8 * of_counts + 8 * of_ids:
        return "the counts are float32: 4 bytes a number."
    if len(got) == 8 + 4 * of_counts + 4 * of_ids:
        return "the ids are int64: 8 bytes a number."
    if len(got) == 8 + len(both):
        return _by_part(got[8 : 8 + len(parts[0])], got[8 + len(parts[0]) :], counts, ids)
    return (
        f"8 bytes, then 4 · 13 · {rows} bytes of counts, then 8 · 26 · {rows} bytes of ids, with nothing between them."
    )


def _by_part(of_counts: bytes, of_ids: bytes, counts: Tensor, ids: Tensor) -> str:
    """What to think of where each part is as long as it should be."""
    as_counts, as_ids = counts.numpy(), ids.numpy()
    swapped = as_counts.astype(">f4").tobytes(), as_ids.astype(">i8").tobytes()
    if of_counts == swapped[0] or of_ids == swapped[1]:
        return _LITTLE
    if of_counts == as_counts.astype("<i4").tobytes():
        return "the counts are float32, not whole numbers: 4 bytes each, as they are."
    if of_counts != as_counts.tobytes():
        return "the counts go over as they are: each as its float32's 4 bytes, neither rounded nor changed."
    if of_ids == as_ids.astype("<f8").tobytes():
        return "the ids are int64: a double has 8 bytes, too, and they mean something else."
    if np.array_equal(np.frombuffer(of_ids, "<i8"), ids.float().long().numpy().ravel()):
        return "an id has up to 64 bits, of which float32 keeps 24: leave the ids int64."
    return "the ids go over as they are: each as its int64's 8 bytes."


def look_up(state: SimpleNamespace, ids: list[int]) -> list[int]:
    """Each id's row in the table that the state has when the call begins; 0 for an id that it does not know."""
    table = state.table
    return [table.get(one, 0) for one in ids]


OLD, NEW = {5: 1, 9: 2, 11: 3}, {5: 4, 9: 1, 12: 3}


class _State(SimpleNamespace):
    """What has a table. After these reads of it, counted from 1, the other one takes its place, as if another thread
    had come between."""

    def __init__(self, replaced: Collection[int]) -> None:
        old = dict(OLD)
        super().__init__(table=old, put=old, other=dict(NEW), replaced=replaced, reads=0)

    def __getattribute__(self, name: str) -> object:
        value = super().__getattribute__(name)
        if name == "table":
            self.reads += 1
            if self.reads in self.replaced:
                self.replace()
        return value

    def __reduce__(self) -> tuple:
        return SimpleNamespace, (), {"table": self.table}  # what copy and deepcopy make

    def replace(self) -> None:
        self.put, self.other = self.other, self.put
        self.table = self.put

    def is_left_alone(self) -> bool:
        return vars(self)["table"] is self.put and [self.put, self.other] in ([OLD, NEW], [NEW, OLD])


def _look_ups() -> Iterator[tuple[str, list[int], Collection[int], str]]:
    """(case, ids, after which reads of state.table it is another, a hint)"""
    yield "one table all the time", [5, 9, 5], (), "each id's row, in the order of the ids."
    yield "unknown ids", [7, 5, -1, 2**40], (), "an id that the table does not know has row 0."
    yield "no ids", [], (), "no ids have no rows: an empty list."
    hint = "these are rows of two tables. How often do you read state.table? A lock that only you take stops nobody."
    for read in (1, 2, 3):
        yield f"another table after read {read} of state.table", [5, 9, 11, 12, 5], (read,), hint
    yield "another table after each of five reads of state.table", [5, 9, 11, 12, 5], range(1, 6), hint


def _check_look_up(answer: Callable) -> str:
    cases = [*_look_ups()]
    late = "the next request must get the new table: keep none from one call to the next."
    for name, ids, replaced, hint in cases:
        told, state = f"look_up, case {name}", _State(replaced)
        _check_rows(f"{told}: ", answer, state, ids, [OLD, NEW] if replaced else [OLD], hint)
        state.replaced = ()
        if state.put == OLD:
            state.replace()
        _check_rows(f"{told}, and the next request: ", answer, state, ids, [NEW], late)
    return f"{len(cases)} cases passed on paper"


def _check_rows(
    told: str, answer: Callable, state: _State, ids: list[int], tables: list[dict[int, int]], hint: str
) -> None:
    """AssertionError if the answer is not what one of the tables has, or changes what it is given."""
    request, want = [*ids], [[table.get(one, 0) for one in ids] for table in tables]
    got = ask(told, answer, (state, request), hint)
    assert request == ids, f"{told}the ids were changed\nHint: a caller may still need them."
    assert isinstance(got, list | tuple), (
        f"{told}must return a list; got {type(got).__name__}\nHint: the rows of all ids, found before you return."
    )
    assert [*got] in want, f"{told}expected {' or '.join(map(str, want))}, got {str(got)[:200]}\nHint: {hint}"
    assert state.is_left_alone(), (
        f"{told}state.table was changed\nHint: a request only reads the table. What it writes may undo a reload."
    )


PUZZLES = {"body": Own(_check_body), "look_up": Own(_check_look_up)}
JUDGE = Judge(PUZZLES)
attempt, SOLVED = JUDGE.attempt, JUDGE.solved


def passed(name: str) -> Callable:
    """The reader's function, if it passed when it was last tried; else the lecture's."""
    return SOLVED.get(name, {"body": body, "look_up": look_up}[name])
