"""The puzzles of 23_serving_a_model.ipynb: what each must give, and attempt(), which judges an answer.

    body         counts [B, 13], ids [B, 26] → the bytes of a request
    serve_batch  requests that wait → one call of the model, and each caller's own rows
    rows_for     what has a table of ids, a request's ids → their rows
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor

from lessons.n23_serving_a_model.clients import Request
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


def serve_batch(
    waiting: queue.Queue, model: Callable, enough: int, patience: float, clock: Callable[[], float]
) -> None:
    """Take requests until they have enough rows, or until patience seconds after the first one; call the model once,
    and give each its rows. If that raises, each is called alone, and an error is its own request's."""
    batch, until = [waiting.get()], clock() + patience
    rows = len(batch[0].counts)
    while rows < enough and (left := until - clock()) > 0:
        try:
            batch.append(waiting.get(timeout=left))
        except queue.Empty:
            break
        rows += len(batch[-1].counts)
    _answer(batch, model)


def _answer(batch: Sequence[Request], model: Callable) -> None:
    try:
        answers = model(torch.cat([one.counts for one in batch]), torch.cat([one.ids for one in batch]))
        parts = answers.split([len(one.counts) for one in batch])
    except Exception as error:
        if len(batch) == 1:
            batch[0].future.set_exception(error)
        else:
            for one in batch:
                _answer([one], model)
    else:
        for one, part in zip(batch, parts, strict=True):
            one.future.set_result(part)


PATIENCE = 0.010  # seconds
READ = 1e-6  # seconds that a look at the clock takes
IN_VAIN = 100  # times that a batch may find the queue empty


class _Line:
    """A queue and its clock. Time passes where the queue is waited for, and by READ where the clock is read.

    coming: (when a request comes, it, how many seconds later than it could the thread that waits goes on), by time.
    """

    def __init__(self, coming: Sequence[tuple[float, Request, float]]) -> None:
        self.coming, self.now, self.complaint = [*coming], 0.0, ""
        self.begin()

    def begin(self) -> None:
        """A batch begins."""
        self.taken, self.began, self.in_vain = [], self.now, 0

    def clock(self) -> float:
        self.now += READ
        return self.now

    def get(self, block: bool = True, timeout: float | None = None) -> Request:
        if block and timeout is not None and timeout < 0:
            raise ValueError("'timeout' must be a non-negative number")  # as queue.Queue has it
        wait = (np.inf if timeout is None else timeout) if block else 0
        if self.coming and self.coming[0][0] <= self.now + wait:
            at, request, late = self.coming.pop(0)
            self.now = max(self.now, at) + late
            self.began = self.began if self.taken else self.now
            self.taken.append(request)
            return request
        if wait == np.inf:
            self.complain("it waits without a limit\nHint: the batch waits with it: get(timeout=…), and then the call.")
        self.now += wait
        self.note_in_vain()
        raise queue.Empty

    def note_in_vain(self) -> None:
        self.in_vain += 1
        if self.in_vain > IN_VAIN and self.now > self.began + 2 * PATIENCE:
            self.complain(f"the time is over, and nothing is called\nHint: {_TIME} Then the batch is sent as it is.")
        if self.in_vain > IN_VAIN:
            self.complain(
                f"the queue was found empty {IN_VAIN} times\n"
                "Hint: a loop that asks all the time takes the processor from the model: get(timeout=…) sleeps."
            )

    def complain(self, why: str) -> None:
        self.complaint = self.complaint or why
        raise AssertionError(why)  # a reader's except may catch it

    def get_nowait(self) -> Request:
        return self.get(block=False)

    def qsize(self) -> int:
        there = sum(at <= self.now for at, *_ in self.coming)
        if not there:
            self.note_in_vain()
        return there

    def empty(self) -> bool:
        return self.qsize() == 0


@dataclass(frozen=True)
class _Wait:
    """A case. coming: (when, in ms; rows, or the request) and, if it is woken late, by how many ms. batches: which
    requests each call is to have, from 1; due: at how many ms each is to be called at the latest."""

    name: str
    coming: Sequence[tuple]
    enough: int
    batches: Sequence[Sequence[int]]
    due: Sequence[float]
    hint: str


_FULL = "count rows, not requests, and wait for no more once there are enough: what is left is for the next batch."
_TIME = (
    "the batch's time begins when its first request is there, and no later one prolongs it. clock() has the time, and "
    "get(timeout=…) waits."
)
_OWN = "an error is its request's alone: call each alone if the call for all raises. torch.cat may raise, too."
_ROWS = "the answers are in the order of the rows that were called, and requests have different numbers of them."
_SAME = "a row's counts and its ids go into the call at the same place: join both in one order of the requests."
_PART = "a part of what the model returned: rows[begin:end], or one of rows.split(…)."
_WHOEVER = "until there are enough rows, whoever comes within the patience belongs to the batch."


def _waits() -> Iterator[_Wait]:
    """The numbers of a request say whose they are: its first row has 100 · its place, from 1."""
    bad, narrow = "an id below 0", "12 counts"
    yield _Wait("one request, and no other comes", [(0, 2)], 8, [[1]], [10], "a batch that is not full is sent, too.")
    yield _Wait("three requests wait", [(0, 1), (0, 3), (0, 2)], 6, [[1, 2, 3]], [0], _WHOEVER)
    yield _Wait("more wait than are enough", [(0, 3), (0, 4), (0, 1)], 6, [[1, 2], [3]], [0, 10], _FULL)
    yield _Wait("enough to the row", [(0, 3), (0, 3), (0, 1)], 6, [[1, 2], [3]], [0, 10], _FULL)
    yield _Wait("the first is enough", [(0, 9), (0, 1)], 8, [[1], [2]], [0, 10], _FULL)
    yield _Wait("they come at 0, 6 and 12 ms", [(0, 1), (6, 2), (12, 1)], 8, [[1, 2], [3]], [10, 22], _TIME)
    yield _Wait("they come after a minute", [(60_000, 1), (60_004, 2)], 8, [[1, 2]], [60_010], _TIME)
    yield _Wait("the last one comes at 4 ms", [(0, 1), (4, 7)], 8, [[1, 2]], [4], _FULL)
    late = "the time may be over when get() comes back: a timeout below 0 is an error. The batch is sent all the same."
    yield _Wait("the second is taken when the time is over", [(0, 1), (4, 1, 11)], 8, [[1, 2]], [15], late)
    yield _Wait("requests of no rows", [(0, 0), (0, 2), (0, 0)], 8, [[1, 2, 3]], [10], "no rows are an answer, too.")
    yield _Wait("one request of no rows", [(0, 0)], 8, [[1]], [10], "it is called, and answered, as any other.")
    yield _Wait("the model refuses one of three", [(0, 1), (0, bad), (0, 2)], 4, [[1, 2, 3]], [0], _OWN)
    yield _Wait("one of three has 12 counts", [(0, 1), (0, narrow), (0, 2)], 4, [[1, 2, 3]], [0], _OWN)
    yield _Wait("the model refuses all", [(0, bad), (0, bad)], 2, [[1, 2]], [0], _OWN)


def _request(place: int, rows: int | str) -> Request:
    """Of so many rows; or of one that the model refuses, and why."""
    count = rows if isinstance(rows, int) else 1
    numbers = 100 * place + torch.arange(count)
    counts = numbers.float()[:, None].repeat(1, 12 if rows == "12 counts" else 13)
    ids = numbers[:, None].repeat(1, 26)
    return Request(counts, -ids if rows == "an id below 0" else ids)


def _row_model(counts: Tensor, ids: Tensor) -> Tensor:
    """A row's answer says which counts and which ids it was made of. ValueError: what a model would refuse."""
    if counts.shape[1] != 13:
        raise ValueError(f"expected 13 counts a row; got {counts.shape[1]}")
    if (ids < 0).any():
        raise ValueError(f"no such id: {ids.min()}")
    return 1000 * counts[:, 0] + ids[:, 0]


def _check_serve_batch(answer: Callable) -> str:
    cases = [*_waits()]
    for case in cases:
        requests = [_request(place, rows) for place, (_, rows, *_) in enumerate(case.coming, 1)]
        line = _Line([
            (at / 1000, request, sum(late) / 1000)
            for (at, _, *late), request in zip(case.coming, requests, strict=True)
        ])  # fmt: skip
        for number, (batch, due) in enumerate(zip(case.batches, case.due, strict=True), 1):
            told = f"serve_batch, case {case.name}{f', batch {number}' * (len(case.batches) > 1)}: "
            _check_batch(told, answer, line, case, requests, [requests[place - 1] for place in batch], due / 1000)
    return f"{len(cases)} cases passed on paper"


def _check_batch(
    told: str,
    answer: Callable,
    line: _Line,
    case: _Wait,
    requests: list[Request],
    batch: list[Request],
    due: float,
) -> None:
    """AssertionError if the batch has others than these, is called later than it is due, or someone's answer is not
    what the model gives for the own rows alone."""
    called: list[float] = []

    def model(counts: Tensor, ids: Tensor) -> Tensor:
        called.append(line.now)
        return _row_model(counts, ids)

    line.begin()
    failed = None
    try:
        ask(told, answer, (line, model, case.enough, PATIENCE, line.clock), case.hint)
    except AssertionError as error:
        failed = error
    if line.complaint:
        raise AssertionError(f"{told}{line.complaint}") from failed
    if failed:
        raise failed
    names = {id(request): f"request {place}" for place, request in enumerate(requests, 1)}
    for request in line.taken:
        name = names[id(request)]
        answered = request.future.done() and not request.future.cancelled()
        assert answered, (
            f"{told}{name} was taken, and has no answer\n"
            "Hint: its caller waits for ever. Whoever is taken from the queue gets a result or an error."
        )
        _check_answer(f"{told}{name}", request)
    taken, want = ([names[id(request)] for request in group] for group in (line.taken, batch))
    assert taken == want, f"{told}expected {', '.join(want)}; got {', '.join(taken) or 'none'}\nHint: {case.hint}"
    refused = any(request.future.exception() for request in batch)
    assert refused or len(called) == 1, (
        f"{told}expected one call of the model, got {len(called)}\nHint: torch.cat puts the rows of all into one call."
    )
    # A reader may look at the clock in steps; a quarter of the patience is for them.
    at = called[0] if called else line.now
    late = _FULL if sum(len(one.counts) for one in batch) >= case.enough else _TIME
    assert at <= due + PATIENCE / 4, (
        f"{told}expected the call of the model at {1e3 * due:.0f} ms; got it at {1e3 * at:.0f}\nHint: {late}"
    )


def _check_answer(told: str, request: Request) -> None:
    """AssertionError if it did not get what the model gives for its rows alone: their numbers, or an error."""
    try:
        want, refused = _row_model(request.counts, request.ids), None
    except ValueError as error:
        want, refused = None, error
    error = request.future.exception()
    if refused:
        assert error, f"{told}: expected an error, got {request.future.result()!r}\nHint: {_OWN}"
        assert str(error) == str(refused), f"{told}: expected the error {str(refused)!r}, got {error}\nHint: {_OWN}"
        return
    assert not error, f"{told}: expected its rows, got {type(error).__name__}: {str(error)[:100]}\nHint: {_OWN}"
    got = request.future.result()
    assert isinstance(got, Tensor), f"{told}: expected a tensor of its rows, got {type(got).__name__}\nHint: {_PART}"
    assert got.shape == want.shape, f"{told}: expected {list(want.shape)}, got {list(got.shape)}\nHint: {_ROWS}"
    hint = _ROWS if (got // 1000 == got % 1000).all() else _SAME
    assert torch.equal(got, want), f"{told}: expected {want.tolist()}, got {got.tolist()}\nHint: {hint}"


def rows_for(state: SimpleNamespace, ids: list[int]) -> list[int]:
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


def _check_rows_for(answer: Callable) -> str:
    cases = [*_look_ups()]
    late = "the next request must get the new table: keep none from one call to the next."
    for name, ids, replaced, hint in cases:
        told, state = f"rows_for, case {name}", _State(replaced)
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


PUZZLES = {
    "body": Own(_check_body),
    "serve_batch": Own(_check_serve_batch, seconds=10),
    "rows_for": Own(_check_rows_for),
}
JUDGE = Judge(PUZZLES)
attempt, SOLVED = JUDGE.attempt, JUDGE.solved


def passed(name: str) -> Callable:
    """The reader's function, if it passed when it was last tried; else the lecture's."""
    return SOLVED.get(name, {"body": body, "serve_batch": serve_batch, "rows_for": rows_for}[name])
