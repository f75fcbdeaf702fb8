"""The puzzles that need several processes: what each rank asks of a reader's answer.

Every rank draws the inputs of all ranks, so it knows what must arrive without being told.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from lessons.n25_past_one_gpu.one_rank import in_words, is_left, is_waiting

POISON = 99  # what a new tensor holds; no input has it
SLOW = 0.1  # seconds by which one rank comes later than the others
WAITS = (
    "this rank waits for what another does not do. Each isend needs an irecv at the other rank. send and recv wait "
    "themselves: if every rank begins with send, none comes to receive. Start all with isend and irecv, then wait()."
)
GLOO = {  # what it says, and what to think of
    "Pair is not connected": "gloo has no connection from a rank to itself. The part for this rank is copied.",
    "ProcessGroupGloo::alltoall: invalid tensor size": "gloo's all_to_all takes parts of one size only; "
    "all_to_all_single takes any.",
}


def _call(told: str, hint: str, answer: Callable, *arguments: object) -> object:
    """What an answer returns. AssertionError, by the case's name: what it raised, in which line, and a hint."""
    try:
        return answer(*arguments)
    except AssertionError as error:
        if str(error).startswith(told):
            raise
        failure = error
    except Exception as error:
        failure = error
    words = in_words(failure)
    if is_left(words):  # the other rank says why
        raise failure
    if isinstance(failure, NameError | AttributeError | TypeError):  # the line says all
        raise AssertionError(f"{told}{words}") from failure
    hint = WAITS if is_waiting(words) else next((GLOO[said] for said in GLOO if said in words), hint)
    raise AssertionError(f"{told}{words}\nHint: {hint}") from failure


@contextmanager
def _started() -> Iterator[list[list]]:
    """[what was started, whether it was waited for] of each isend and irecv in here."""
    started: list[list] = []

    def noted(function: Callable, what: str) -> Callable:
        def start(tensor, *arguments, **named):
            work = function(tensor, *arguments, **named)
            other = next(iter([*arguments, *(named[name] for name in ("src", "dst") if name in named)]), "?")
            entry = [f"{what} {other}", False]
            started.append(entry)
            return _Work(work, entry)

        return start

    instead = {"isend": noted(dist.isend, "isend to rank"), "irecv": noted(dist.irecv, "irecv from rank")}
    # batch_isend_irecv compares with those of its own module.
    with mock.patch.multiple(dist, **instead), mock.patch.multiple(dist.distributed_c10d, **instead):
        yield started


class _Work:
    """What isend and irecv return, and a note of whether the caller waited."""

    def __init__(self, work: dist.Work, entry: list):
        self._work, self._entry = work, entry

    def wait(self, *arguments) -> bool:
        self._entry[1] = True
        return self._work.wait(*arguments)

    def is_completed(self) -> bool:
        self._entry[1] |= (done := self._work.is_completed())
        return done

    def __getattr__(self, name: str):
        return getattr(self._work, name)


@contextmanager
def _poisoned() -> Iterator[None]:
    """In here no new tensor happens to hold what should have arrived in it."""

    def filled(function: Callable) -> Callable:
        return lambda *arguments, **named: function(*arguments, **named).fill_(POISON)

    with ExitStack() as stack:
        for owner, name in ((Tensor, "new_empty"), (torch, "empty"), (torch, "empty_like")):
            stack.enter_context(mock.patch.object(owner, name, filled(getattr(owner, name))))
        yield


class _Calls(TorchDispatchMode):
    """names: the operators of torch.distributed that are called in here, by whichever function."""

    def __init__(self):
        super().__init__()
        self.names: list[str] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # the skip would import Dynamo, in each rank anew

    def __torch_dispatch__(self, op, types, arguments=(), named=None):
        name = op.name().partition("::")[2]
        if "c10d" in op.namespace and name not in ("wait_tensor", "_wrap_tensor_autograd"):
            self.names.append(name.partition(".")[0].strip("_"))
        return op(*arguments, **named or {})


def _first(got: Tensor, want: Tensor) -> str:
    """The first row, of equal shapes, that is not as it should be."""
    wrong = ~torch.isclose(got.float(), want.float(), rtol=1e-5, atol=1e-6)
    row = int(wrong.flatten(1).any(1).nonzero()[0]) if wrong.dim() > 1 else int(wrong.nonzero()[0])
    return f"[{row}]: expected {_numbers(want[row])}, got {_numbers(got[row])}"


def _numbers(x: Tensor) -> str:
    values = [f"{value:.4g}" for value in x.flatten()[:6].tolist()]
    return f"[{', '.join(values)}{', …' if x.numel() > 6 else ''}]" if x.dim() else values[0]


# exchange -------------------------------------------------------------------------------------------------------------


_LIKE_X = "what arrives has x's dtype, and all its dimensions but the first"


def _matrices(world: int) -> Iterator[tuple[str, list[list[int]], tuple[int, ...], torch.dtype, str]]:
    """(case, how many go from s to r as [s][r], the shape of one, dtype, hint)"""
    order = "the first send[0] of x go to rank 0, the next send[1] to rank 1; what arrives lies in the same order."
    yield "one vector to each rank", [[1] * world] * world, (4,), torch.float32, order
    yield "ids", [[3] * world] * world, (), torch.int32, f"{_LIKE_X}: x.new_empty(number, *x.shape[1:])."
    uneven = [[1 + (s + 2 * r) % 3 for r in range(world)] for s in range(world)]
    yield "as many as the splits say", uneven, (2,), torch.float32, (
        "send has the sizes of x's parts, and receive those of the result's."
    )
    nothing = [[0 if r == world - 1 else 2 for r in range(world)] for s in range(world)]
    yield "nothing for the last rank", nothing, (3,), torch.float32, "a part may be empty."
    yield "no rows at all", [[0] * world] * world, (4,), torch.float32, "a part may be empty, and so may all."
    own = [[2 if r == s else 0 for r in range(world)] for s in range(world)]
    yield "each to itself alone", own, (2,), torch.float32, "the part for this rank is copied: it need not travel."
    yield "blocks of a matrix", [[2] * world] * world, (2, 3), torch.bfloat16, f"{_LIKE_X}."
    yield "a view", uneven, (5,), torch.float32, (
        "x may be a view, whose numbers do not lie side by side: x.contiguous()."
    )
    yield "a rank that comes late", [[2] * world] * world, (2,), torch.float32, (
        "irecv returns before anything has arrived: wait() for what it returns."
    )


def hold_exchange(answer: Callable) -> int:
    """The number of cases. AssertionError: what is wrong at this rank."""
    rank, world, cases = dist.get_rank(), dist.get_world_size(), [*_matrices(dist.get_world_size())]
    for case, sizes, shape, dtype, hint in cases:
        generator = torch.Generator().manual_seed(1)
        inputs = [
            torch.randint(1, POISON, (sum(row), *shape), generator=generator).to(dtype) for row in sizes
        ]
        if case == "a view":
            inputs = [torch.stack([x, -x], dim=-1)[..., 0] for x in inputs]
        send, receive = sizes[rank], [row[rank] for row in sizes]
        parts = [x.split(row) for x, row in zip(inputs, sizes, strict=True)]
        want = torch.cat([part[rank] for part in parts])
        told = f"exchange, case {case}: rank {rank} of {world}: "
        x, kept = inputs[rank], inputs[rank].clone()
        if case == "a rank that comes late" and rank == 0:
            time.sleep(SLOW)
        with _poisoned(), _started() as started:
            got = _call(told, hint, answer, x, [*send], [*receive])
        assert isinstance(got, Tensor), f"{told}must return a tensor; got {type(got).__name__}"
        assert got.shape == want.shape, f"{told}shape: expected {[*want.shape]}, got {[*got.shape]}\nHint: {hint}"
        assert got.dtype == want.dtype, f"{told}dtype: expected {want.dtype}, got {got.dtype}\nHint: {_LIKE_X}."
        assert torch.equal(x, kept), f"{told}x was changed\nHint: what arrives goes to a tensor of its own."
        if not torch.equal(got, want):
            hint = _mistake(got, [[*part] for part in parts], rank, receive) or hint
            raise AssertionError(f"{told}{_first(got, want)}\nHint: {hint}")
        if left := next((what for what, waited in started if not waited), ""):
            raise AssertionError(
                f"{told}nobody waits for the {left}\nHint: until wait() returns, the tensor must neither be read nor "
                "changed, and the caller does not know that."
            )
    return len(cases)


def _mistake(got: Tensor, parts: list[list[Tensor]], rank: int, receive: list[int]) -> str:
    """What to think of, where it is seen from what was computed; "" if not."""
    arrived = got.split(receive)
    right = [torch.equal(a, part[rank]) for a, part in zip(arrived, parts, strict=True)]
    if not right[rank] and all(right[:rank] + right[rank + 1 :]):
        return "the part for this rank itself does not travel, but it belongs to the result: copy it."
    if any((a == POISON).all() for a in arrived if a.numel()):
        return f"{POISON} stands where nothing has arrived: an irecv into each other rank's place, and a wait() for it."
    if torch.equal(got, torch.cat([part[rank] for part in reversed(parts)])):
        return "what arrives lies in the order of the ranks that it comes from, rank 0 first."
    if right[rank] and not any(right[:rank] + right[rank + 1 :]):
        return "part r of x goes to rank r, and part r of the result comes from rank r."
    return ""


# backward -------------------------------------------------------------------------------------------------------------


def hold_backward(answer: type) -> int:
    """The number of cases. AssertionError: what is wrong at this rank."""
    rank, world = dist.get_rank(), dist.get_world_size()
    cases = (
        ("one vector to each rank", [[1] * world] * world),
        ("as many as the splits say", [[1 + (s + 2 * r) % 3 for r in range(world)] for s in range(world)]),
        ("nothing for the last rank", [[2 * (r < world - 1) for r in range(world)]] * world),
    )
    for case, sizes in cases:
        generator = torch.Generator().manual_seed(2)
        inputs = [torch.rand(sum(row), 3, generator=generator) for row in sizes]
        arrived = [sum(row[r] for row in sizes) for r in range(world)]
        grads = [torch.rand(number, 3, generator=generator) for number in arrived]
        send, receive = sizes[rank], [row[rank] for row in sizes]
        sent = torch.cat([x.split(row)[rank] for x, row in zip(inputs, sizes, strict=True)])
        # What rank r received from s is part s of its grads: so part `rank` of each rank's comes back here.
        back = torch.cat([g.split([row[r] for row in sizes])[rank] for r, g in enumerate(grads)])
        told = f"backward, case {case}: rank {rank} of {world}: "
        x = inputs[rank].requires_grad_()
        hint = "the gradient of what was sent comes from where it was sent: exchange(grad, receive, send)."
        out = _call(told, "forward stays as it is.", answer.apply, x, [*send], [*receive])
        assert torch.equal(out, sent), f"{told}forward gives something else than exchange\nHint: it stays as it is."
        kept = grads[rank].clone()

        def differentiate(out=out, x=x, grad=grads[rank]):
            return torch.autograd.grad(out, x, grad)[0]

        got = _call(told, hint, differentiate)
        assert got.shape == x.shape, f"{told}shape: expected {[*x.shape]}, got {[*got.shape]}\nHint: {hint}"
        assert torch.equal(grads[rank], kept), (
            f"{told}grad was changed\nHint: autograd may still need it: divide into a tensor of its own."
        )
        want = back / world
        if not torch.allclose(got, want, rtol=1e-5, atol=1e-7):
            if (scale := got.sum() / want.sum()) and torch.allclose(got, want * scale, rtol=1e-5, atol=1e-7):
                hint = f"the right gradients arrived, but times {scale:.4g}: divide by W, and by nothing else."
            for factor, words in (
                (world, f"a rank's loss is the mean of its own rows. All rows are {world} times as many: "
                        "each gradient counts for 1/W."),
                (1 / world, "1/W once is enough."),
                (world**2, "each gradient counts for 1/W, and not for W."),
            ):
                if torch.allclose(got, want * factor, rtol=1e-5, atol=1e-7):
                    hint = words
            own = grads[rank]
            if own.shape == got.shape and any(torch.allclose(got, own * f) for f in (1, 1 / world)):
                hint = "these are the gradients of what arrived here, and its owner needs them: they must travel."
            raise AssertionError(f"{told}{_first(got, want)}\nHint: {hint}")
    return len(cases)


# agree ----------------------------------------------------------------------------------------------------------------


def _situations(world: int) -> Iterator[tuple[str, list[float], list[bool], str]]:
    """(case, the losses by rank, who was told to stop, hint)"""
    losses, nobody = [0.5 + rank for rank in range(world)], [False] * world
    last = [rank == world - 1 for rank in range(world)]
    nan, inf = float("nan"), float("inf")
    yield "nobody was told to stop", losses, nobody, "the sum over all ranks by their number is the mean."
    yield "rank 0 was told to stop", losses, last[::-1], "one rank that was told to stop is enough for all."
    yield "the last rank was told to stop", losses, last, (
        "all must stop in this step, so each must learn of it: send the flag along with the numbers."
    )
    yield "all were told to stop", losses, [True] * world, "the flags add up: more than 0 means stop."
    finite = "a sum with NaN or Inf in it is not finite, on any rank: math.isfinite of the mean tells all the same."
    yield "NaN on the last rank", [*losses[:-1], nan], nobody, finite
    yield "Inf on rank 0", [inf, *losses[1:]], nobody, finite
    if world > 1:
        yield "Inf on rank 0, and -Inf on the last", [inf, *losses[1:-1], -inf], nobody, finite
    yield "negative losses", [-loss for loss in losses], nobody, "a loss below 0 is finite."


def hold_agree(answer: Callable) -> int:
    """The number of cases. AssertionError: what is wrong at this rank."""
    rank, world, cases = dist.get_rank(), dist.get_world_size(), [*_situations(dist.get_world_size())]
    shapes = (3, 4), (5,), (1, 2)
    for number, (case, losses, stops, hint) in enumerate(cases):
        generator = torch.Generator().manual_seed(number)
        grads = [[torch.rand(shape, generator=generator) - 0.3 for shape in shapes] for _ in range(world)]
        parameters = [torch.zeros(shape, requires_grad=True) for shape in shapes]
        for p, grad in zip(parameters, grads[rank], strict=True):
            p.grad = grad.clone()
        told = f"agree, case {case}: rank {rank} of {world}: "
        loss = torch.tensor(losses[rank], requires_grad=True) * 1
        with _Calls() as called:
            got = _call(told, hint, answer, parameters, loss, stops[rank])
        assert called.names, (
            f"{told}this rank calls no other\nHint: all ranks make the same call in each step, also one that was told "
            "to stop: the others wait for it."
        )
        pair = isinstance(got, tuple | list) and len(got) == 2
        assert pair, f"{told}must return the mean loss and whether to stop; got {type(got).__name__}"
        mean, stop = (value.item() if hasattr(value, "item") else value for value in got)
        want = sum(losses) / world
        assert isinstance(mean, float), f"{told}the mean loss must be a number; got {type(mean).__name__}"
        assert isinstance(stop, bool), f"{told}stop must be True or False; got {type(stop).__name__}"
        to_stop = any(stops) or not abs(want) < float("inf")
        assert stop == to_stop, f"{told}stop: expected {to_stop}, got {stop}\nHint: {hint}"
        # With an Inf on one rank and a -Inf on another their mean is NaN.
        same = mean == want or (mean != mean and want != want) or abs(mean - want) < 1e-5
        means = "each rank must return the mean over all ranks: their sum, by their number."
        assert same, f"{told}the mean loss: expected {want:g}, got {mean:g}\nHint: {means}"
        for i, (p, *parts) in enumerate(zip(parameters, *grads, strict=True)):
            _hold_gradient(f"{told}parameters[{i}].grad: ", p, parts, rank)
        assert loss.item() == losses[rank] or loss.isnan(), (
            f"{told}loss was changed\nHint: all_reduce writes into its tensor: give it one of your own."
        )
        assert len(called.names) == 1, (
            f"{told}right, but by {len(called.names)} calls: {', '.join(called.names)}\n"
            "Hint: each call waits for all ranks. Put everything into one flat tensor: torch.cat."
        )
    return len(cases)


def _hold_gradient(told: str, p: Tensor, parts: Sequence[Tensor], rank: int) -> None:
    want, world = sum(parts) / len(parts), len(parts)
    assert isinstance(p.grad, Tensor), f"{told}it is gone\nHint: the optimizer's step needs the mean gradient there."
    assert p.grad.shape == p.shape, f"{told}shape: expected {[*p.shape]}, got {[*p.grad.shape]}"
    if torch.allclose(p.grad, want, rtol=1e-5, atol=1e-6):
        return
    hint = "the mean over the ranks, in the place and the shape of each parameter's own."
    if torch.allclose(p.grad, parts[rank]):
        hint = "it is still this rank's own: the mean must be written back into p.grad."
    elif torch.allclose(p.grad, want * world, rtol=1e-5, atol=1e-6):
        hint = "this is the sum over the ranks; the mean loss has the mean gradient."
    raise AssertionError(f"{told}{_first(p.grad, want)}\nHint: {hint}")
