"""The puzzles of 25_past_one_gpu.ipynb: what each must give, and attempt(), which judges an answer.

    route      ids [b, F], the tables' owners → the ids in the order of their owners, and the exchange's splits
    exchange   in 2 and in 3 processes: each rank's parts to their ranks
    backward   in 2 and in 3 processes: the gradients go back, by 1/W
    agree      in 2 and in 3 processes: mean gradients, mean loss and whether to stop, by one call

exchange.py has the answers to those that need several processes, asked.py what is asked of a reader's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from numbers import Integral

import torch
from torch import Tensor

from kernels.check.isolated import source_of
from lessons.n25_past_one_gpu import asked, ranks
from lessons.n25_past_one_gpu.exchange import Exchange, agree, exchange
from lessons.n25_past_one_gpu.one_rank import is_left, is_waiting
from lessons.shared.puzzle import Judge, Own
from lessons.shared.puzzle.reader import CALLED, ask

# --------------------------------------------------------------------------------------------------------------- route


def route(ids: Tensor, owner: Sequence[int], rank: int, world: int) -> tuple[Tensor, list[int], list[int]]:
    """As a rank sends its ids: those of rank 0's tables first, row by row."""
    features = [[f for f, r in enumerate(owner) if r == to] for to in range(world)]
    sent = torch.cat([ids[:, chosen].flatten() for chosen in features])
    return sent, [len(ids) * len(chosen) for chosen in features], [len(ids) * len(features[rank])] * world


_ROW = "row by row, and within a row in the order of the tables: ids[:, chosen].flatten()."
_ROUTES = (
    ("2 tables, 2 ranks", 3, (0, 1), 0, 2, "the column of each table goes to the table's owner."),
    ("the same, seen from rank 1", 3, (0, 1), 1, 2,
     "every rank sends its ids to all owners, and receives those of its own tables from all ranks."),
    ("4 tables by turns", 2, (0, 1, 0, 1), 0, 2, _ROW),
    ("rank 1's tables first", 2, (1, 1, 0), 0, 2, "rank 0's ids come first, whatever the order of the tables."),
    ("3 ranks", 2, (2, 0, 0, 1, 2, 2), 2, 3,
     "send: for each rank, the rows times its tables. receive: from each rank, the rows times this rank's tables."),
    ("a rank without a table", 4, (0, 0, 2), 1, 3, "a rank may own no table: 0 in the splits, and no ids."),
    ("all tables on the last rank", 2, (1, 1), 0, 2, "a rank may own no table: 0 in the splits, and no ids."),
    ("no rows", 0, (0, 1, 1), 1, 2, "a batch of 0 rows is a batch."),
)


def _routes() -> Iterator[tuple[str, int, tuple[int, ...], int, int, str]]:
    yield from _ROUTES
    for _ in range(10):
        world, tables = (int(torch.randint(1, 6, ())) for _ in range(2))
        owner = tuple(torch.randint(world, (tables,)).tolist())
        rank, rows = int(torch.randint(world, ())), int(torch.randint(4, ()))
        yield f"owners {owner}, rank {rank} of {world}, {rows} rows", rows, owner, rank, world, _ROW


def _check_route(answer: Callable) -> str:
    for case, rows, owner, rank, world, hint in _routes():
        told = f"route, case {case}: "
        ids = torch.arange(rows * len(owner), dtype=torch.int32).view(len(owner), rows).T + 10
        kept, want = ids.clone(), route(ids, owner, rank, world)
        got = ask(told, answer, (ids, list(owner), rank, world), hint)
        triple = isinstance(got, tuple | list) and len(got) == 3
        assert triple, f"{told}must return the ids, what to send and what to receive; got {type(got).__name__}"
        assert torch.equal(ids, kept), f"{told}ids were changed\nHint: the caller still needs them."
        for name, splits, right in zip(("send", "receive"), got[1:], want[1:], strict=True):
            assert isinstance(splits, list | tuple), (
                f"{told}{name} must be a list; got {type(splits).__name__}\nHint: a list of numbers that the host has."
            )
            other = next((size for size in splits if not isinstance(size, Integral)), None)
            assert other is None, f"{told}{name}: a size is an int; got {other!r}"
            if [*splits] != right:
                hint = _of_splits(name, [*splits], want)
                raise AssertionError(f"{told}{name}: expected {right}, got {[*splits]}\nHint: {hint}")
        sent, right = got[0], want[0]
        assert isinstance(sent, Tensor), f"{told}the ids must be a tensor; got {type(sent).__name__}"
        wide = "ids stay integers, and as wide as they came."
        assert sent.dtype == ids.dtype, f"{told}the ids' dtype: expected {ids.dtype}, got {sent.dtype}\nHint: {wide}"
        once = "one dimension, and each id once."
        shapes = f"expected {[*right.shape]}, got {[*sent.shape]}"
        assert sent.shape == right.shape, f"{told}the ids' shape: {shapes}\nHint: {once}"
        if not torch.equal(sent, right):
            hint = _of_ids(sent, ids, owner, world) or hint
            raise AssertionError(f"{told}the ids: expected {right.tolist()}, got {sent.tolist()}\nHint: {hint}")
    return f"{len(_ROUTES)} cases passed on paper"


def _of_splits(name: str, got: list[int], want: tuple) -> str:
    """What to think of."""
    _, send, receive = want
    if got == (receive if name == "send" else send):
        return "this is the other one: send is what goes out to each rank, receive what comes from each."
    if len(got) != len(send):
        return "a number for each rank, this one included."
    whose = "the tables that the rank owns" if name == "send" else "this rank's own tables"
    return f"a number for each rank: the rows times {whose}."


def _of_ids(got: Tensor, ids: Tensor, owner: Sequence[int], world: int) -> str:
    """What to think of, where it is seen from the ids; "" if not."""
    features = [[f for f, r in enumerate(owner) if r == to] for to in range(world)]
    if torch.equal(got, torch.cat([ids[:, chosen].T.flatten() for chosen in features])):
        return f"these go column by column; {_ROW}"
    if torch.equal(got, ids.flatten()):
        return "these are all ids as they lie; each owner's must lie side by side."
    return ""


# ------------------------------------------------------------------------------------------------- in several processes

WAITS = 6  # seconds that a rank waits for another, where a right answer waits for none
SECONDS = 15  # after which a process is ended
_ENDS = {
    "it does not end": "\nHint: Does each loop come to its end?",
    "it ended its process": "\nHint: Return a result: the caller goes on.",
    "killed by SIGABRT": "\nHint: gloo aborts where more arrives than there is room for. Is what one rank sends to "
    "another as large as what that one receives?",
}
OURS = "past_one_gpu"  # in whatever way it is imported


def _in_processes(name: str, job: str) -> Callable[[object], str]:
    """Asks an answer in 2 and in 3 processes."""

    def check(answer: object) -> str:
        if (isinstance(answer, type) or name == "backward") and not hasattr(answer, "apply"):
            raise AssertionError("give the torch.autograd.Function itself")
        if not callable(answer):
            raise AssertionError(f"give the function itself; got {type(answer).__name__}")
        try:
            text = source_of(answer)[1]
        except ValueError as error:
            raise AssertionError(ranks.unknown(error)) from error
        # Of the lecture's functions an answer may use those that stand in for the puzzles before it.
        own = {"backward": ("exchange",)}.get(name, ())
        for line in text.splitlines():
            if OURS in line and line.split()[-1] not in own:
                raise AssertionError(CALLED.format("the lecture's own"))
        for world in (2, 3):
            results = ranks.run(
                answer, world=world, waits=WAITS, fails=True, job=f"{asked.__name__}:{job}", seconds=SECONDS
            )
            if failed := [(rank, r) for rank, r in enumerate(results) if isinstance(r, ranks.Failed)]:
                rank, worst = min(failed, key=lambda entry: _order(entry[1]))
                why = str(worst) if worst.judged else f"rank {rank} of {world}: {worst}"
                why += _ENDS.get(worst.why, "")
                raise AssertionError(why if why.startswith(name) else f"{name}: {why}")
        return f"{results[0]} cases passed on 2 and on 3 ranks"

    return check


def _order(failed: ranks.Failed) -> int:
    """A verdict first; then what happened by itself; then what followed from another rank's end."""
    return (2 if is_waiting(failed.why) else 0) if failed.judged else 3 if is_left(failed.why) else 1


PUZZLES = {
    "route": Own(_check_route, seconds=10),
    "exchange": Own(_in_processes("exchange", "hold_exchange"), seconds=100),
    "backward": Own(_in_processes("backward", "hold_backward"), seconds=100),
    "agree": Own(_in_processes("agree", "hold_agree"), seconds=100),
}
JUDGE = Judge(PUZZLES)
attempt, SOLVED = JUDGE.attempt, JUDGE.solved


def passed(name: str) -> object:
    """The reader's, if it passed when it was last tried; else the lecture's."""
    ours = {"route": route, "exchange": exchange, "backward": Exchange, "agree": agree}
    return SOLVED.get(name, ours[name])
