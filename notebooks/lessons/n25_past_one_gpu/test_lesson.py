"""Lesson 25: functions of a notebook in several processes, how they end, and what the puzzles ask there."""

from __future__ import annotations

import os
import signal
import time

import pytest
import torch
import torch.distributed as dist

from lessons.n25_past_one_gpu import asked, balance, one_rank, puzzles, ranks
from lessons.n25_past_one_gpu.exchange import Exchange, agree, exchange


def on_each_rank(number):
    print(number * "here\n", end="")
    x = torch.tensor([number + dist.get_rank()])
    dist.all_reduce(x)
    if number == 1:
        raise ValueError("one")
    return x, os.getpid()


def one_is_killed(number):
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(number))


def one_sleeps(number):
    if dist.get_rank() == 1:
        time.sleep(number)
    dist.barrier()


for function in (on_each_rank, one_is_killed, one_sleeps):
    function.__module__ = "__main__"  # a cell's: its text goes to the ranks, and no rank imports this file


def is_gone(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    return False


def test_what_each_rank_returns_and_prints(capsys, monkeypatch):
    monkeypatch.setattr(ranks, "LINES", 3)
    results = ranks.run(on_each_rank, 10, world=3)
    assert [x.tolist() for x, _ in results] == [[33]] * 3
    assert len({process for _, process in results}) == 3
    assert all(is_gone(process) for _, process in results)
    said = "".join(f"rank {rank}: here\n" * 3 + f"rank {rank}: …\n" for rank in range(3))
    assert capsys.readouterr().out == said


def test_a_rank_that_fails_is_named():
    with pytest.raises(RuntimeError, match=r"^rank 0: ValueError: one, in `raise Val.*\nrank 1: ValueError: one, in `"):
        ranks.run(on_each_rank, 1)


def test_a_rank_that_is_killed():
    alive, killed = ranks.run(one_is_killed, 3, fails=True)
    assert one_rank.is_left(alive.why), alive
    assert killed == ranks.Failed("killed by SIGKILL")


def test_a_rank_that_hangs_is_waited_for_no_longer_than_was_said():
    (waited, slept), seconds = ranks.timed(one_sleeps, 60, waits=0.5, fails=True, seconds=3)
    assert one_rank.is_waiting(waited.why), waited
    assert slept == ranks.Failed("it does not end")
    assert seconds < 20


def test_what_gloo_says_is_shortened():
    place = "[/__w/pytorch/gloo/transport/tcp/pair.cc:534] "
    for said, words in (
        ("Connection closed by peer [127.0.0.1]:4011", "RuntimeError: Connection closed by peer"),
        ("Read error [127.0.0.1]:4: Connection reset by peer. Advice.", "RuntimeError: Read error: Connection reset"),
        ("Timed out waiting 6000ms for send operation to complete", "RuntimeError: Timed out waiting 6000ms for send"),
    ):
        told = one_rank.in_words(RuntimeError(place + said))
        assert told.startswith(words)
        assert "Advice" not in told


@pytest.mark.parametrize(
    ("answer", "job"), [(exchange, "exchange"), (Exchange, "backward"), (agree, "agree")]
)
def test_the_lectures_answer_is_right_on_each_number_of_ranks(answer, job):
    for world in (1, 4):
        cases = ranks.run(answer, world=world, job=f"{asked.__name__}:hold_{job}")
        assert min(cases) > 2
        assert len({*cases}) == 1


def test_what_was_routed_comes_back_in_place():
    """The exchange, on paper: what each rank sends to each is what that one receives, and nothing is lost."""
    owner, world, rows = (1, 0, 2, 1, 1), 3, 2
    ids = [torch.arange(10).view(rows, 5) + 100 * rank for rank in range(world)]
    routed = [puzzles.route(part, owner, rank, world) for rank, part in enumerate(ids)]
    for rank in range(world):
        assert routed[rank][2] == [send[rank] for _, send, _ in routed]
        arrived = torch.cat([sent.split(send)[rank] for sent, send, _ in routed])
        own = [f for f, to in enumerate(owner) if to == rank]
        assert arrived.tolist() == torch.cat(ids)[:, own].flatten().tolist()


def test_the_balance_is_that_of_the_pieces():
    pieces = [(4, 1.0, 4, 8), (2, 3.0, 4, 8), (2, 0.0, 4, 8)]
    assert balance.loads(pieces, [0, 1, 1], 2) == ([4, 4], [1, 3])
    assert balance.row(pieces, [0, 1, 1], 2).split() == ["0.0", "GB", "1.5", "×", "the", "mean", "12", "24"]
