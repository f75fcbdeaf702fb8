"""The puzzles of 01_dlrm_from_scratch.ipynb: what each must give, and attempt(), which judges an answer.

    look_up    tables, sizes, ids → [B, F, D]       as lessons/shared/dlrm.py has it
    interact   x, vectors, pairs → [B, D + P]       ″
    step       one step of training → its loss      ″

Of look_up and interact the gradients must be right, too, where all numbers are finite. What lies in model/, kernels/ or
lessons/ may not be called. All run on the CPU, where an id beyond a table ends no process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kernels.check import Call, Case, Spec, Sums, check_gradients
from lessons.shared import dlrm
from lessons.shared.puzzle import InPyTorch, Judge, Own, gradient_of, reader
from lessons.shared.puzzle.in_pytorch import dense_gradient

# ---------------------------------------------------------------------------------------------- look_up and interact


class _Table(nn.Embedding):
    """An nn.Embedding whose weight is a tensor of others, so that they get its gradient."""

    def __init__(self, weight: Tensor):
        super().__init__(*weight.shape, device="meta")
        del self.weight
        self.weight = weight


def _with_tables(answer: Callable, weights: Sequence[Tensor], ids: Tensor) -> Tensor:
    return answer([_Table(weight) for weight in weights], [len(weight) - 1 for weight in weights], ids)


def _with_pairs(answer: Callable, x: Tensor, vectors: Tensor) -> Tensor:
    count = vectors.shape[1] + 1
    return answer(x, vectors, torch.tril_indices(count, count, offset=-1))


def _look_up(tables: Sequence[Tensor], ids: Tensor) -> Tensor:
    return _with_tables(dlrm.look_up, tables, ids)


def _interact(x: Tensor, vectors: Tensor) -> Tensor:
    return _with_pairs(dlrm.interact, x, vectors)


def _has_gradients(name: str, answer: Callable, call: Call) -> None:
    """AssertionError: which input's gradient is missing, or wrong. A sparse one is right, too."""
    if not all(leaf.isfinite().all() for leaf in call.leaves()):
        return
    spec, run = PUZZLES[name].spec, PUZZLES[name].run

    def densely(*arguments):
        return run(answer, *Call("", arguments).map(dense_gradient).arguments())

    needed = [leaf.is_floating_point() for leaf in call.leaves()]
    grad = torch.randn(spec.reference(*call.arguments()).shape, generator=torch.Generator().manual_seed(9))
    leaves = [leaf.clone().requires_grad_(need) for leaf, need in zip(call.leaves(), needed, strict=True)]
    try:
        out = run(answer, *call.with_leaves(leaves).arguments())
        for leaf_name, leaf in zip(spec.leaf_names(call), leaves, strict=True):
            if leaf.requires_grad:
                gradient_of(out, leaf, grad, leaf_name, keep=True)
    except (AssertionError, RuntimeError) as error:  # the latter is autograd's
        raise AssertionError(
            f"the values are right, but training needs the gradients: {error}\n"
            "Hint: Every step from the inputs to the result must be an operation of torch that autograd follows."
        ) from error
    try:
        check_gradients(name, densely, call, needed, grad, spec=spec)
    except (AssertionError, RuntimeError) as error:
        message = str(error).partition(". ")[0].removeprefix(f"{name}, case {call.name}, ")
        raise AssertionError(
            f"the values are right, but training needs the gradients: {message}\n"
            "Hint: Autograd misses a path from this input to the result, or a step on a path has another derivative. "
            "Is a part detached?"
        ) from error


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"


def _look_up_calls(case: Case, device: torch.device) -> Iterator[Call]:
    rows, width, *heights = case.shape if len(case.shape) > 2 else (1, 1, 1)
    tables = [case.tensor(30 + f, device, (n + 1, width)) for f, n in enumerate(heights)]
    generator = torch.Generator().manual_seed(rows)
    small = rows < 4
    ids = torch.randint(max(min(heights) - 1, 1) if small else 1 << 32, (rows, len(heights)), generator=generator)
    *most, last = map(str, heights)
    sizes = f"{', '.join(most)} and {last}" if most else last
    name = f"{_many(rows, 'row')}, {_many(len(heights), 'table')} of {sizes} ids"
    hint = "An id looks up row (id + 1) mod n. The result has the shape [B, F, D]."
    if small and len(heights) > 1:
        hint = "The vector out[b, f] is the row of table f for ids[b, f]. Which dimension counts the tables?"
    if not small:
        name += ", hashes"
        hint = "Ids are hashes, up to 2^32 - 1. A missing value has the id -1. n is sizes[f]."
        ids[::3] = -1
    yield Call(name, (tables, ids), hint=hint)


def _interact_calls(case: Case, device: torch.device) -> Iterator[Call]:
    rows, features, width = case.shape if len(case.shape) == 3 else (1, 1, 1)
    hint = {
        1: "The elements of the dense vector come first, and then its dot product with the only embedding, as it is. i "
        "and j number the vectors. Together they index the last two dimensions of the products.",
        2: "Three vectors make three pairs: (1, 0), (2, 0), (2, 1). No vector is paired with itself.",
    }.get(features, "The pairs go row by row below the diagonal: (1, 0), (2, 0), (2, 1), (3, 0), … Which one is third?")
    x, vectors = case.tensor(1, device, (rows, width)), case.tensor(2, device)
    name = f"{_many(rows, 'row')} of {_many(features, 'embedding')}"
    yield Call(name, (x, vectors), hint=hint)
    if features != 3:
        return
    apart, unknown = vectors.clone(), vectors.clone()
    apart[:, 0, : width // 2] = apart[:, 1, width // 2 :] = 0  # at no position are both nonzero
    hint = "A product that is exactly 0 has its place, too. Choose pairs by their position, not by their value."
    yield Call(f"{name}, a product of 0", (x, apart), hint=hint)
    unknown[0, 1, 0] = torch.nan
    hint = "NaN must come out in each pair of the vector that has it. Hiding a NaN hides that a model has broken."
    yield Call(f"{name}, a NaN", (x, unknown), hint=hint)


def _puzzle(reference: Callable, run: Callable, calls: Callable, *shapes: tuple[int, ...]) -> InPyTorch:
    chosen = [Case(shape) for shape in shapes]
    spec = Spec(reference, calls, scale=Sums(k=8), cases=lambda names: chosen)
    return InPyTorch(spec, run=run, then=_has_gradients)


# --------------------------------------------------------------------------------------------------------------- step


class _Toy(nn.Module):
    """A model of 13 numbers: a weight for each of 3 counts, one for each of 9 ids, a bias."""

    def __init__(self):
        super().__init__()
        self.linear, self.table = nn.Linear(3, 1), nn.Embedding(9, 1)

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        return (self.linear(dense) + self.table(ids)).squeeze(1)


def _not_zeroed(model, optimizer, labels, dense, ids):
    loss = F.binary_cross_entropy_with_logits(model(dense, ids), labels)
    loss.backward()
    optimizer.step()
    return loss.detach()


def _zeroed_late(model, optimizer, labels, dense, ids):
    loss = F.binary_cross_entropy_with_logits(model(dense, ids), labels)
    loss.backward()
    optimizer.zero_grad(set_to_none=False)
    optimizer.step()
    return loss.detach()


def _nothing(model, optimizer, labels, dense, ids):
    return F.binary_cross_entropy_with_logits(model(dense, ids), labels).detach()


def _loss_afterwards(model, optimizer, labels, dense, ids):
    dlrm.step(model, optimizer, labels, dense, ids)
    return _nothing(model, optimizer, labels, dense, ids)


def _uphill(model, optimizer, labels, dense, ids):
    loss = F.binary_cross_entropy_with_logits(model(dense, ids), labels)
    optimizer.zero_grad()
    (-loss).backward()
    optimizer.step()
    return loss.detach()


def _instead(loss: Callable) -> Callable:
    """A step that minimises this function of (logits, labels)."""

    def step(model, optimizer, labels, dense, ids):
        value = loss(model(dense, ids), labels)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        return value.detach()

    return step


# What an answer may have done, if it gives just what this gives; and what to say of it.
MISTAKES = (
    (_nothing, "No weight has moved. backward() fills the gradients, and optimizer.step() uses them."),
    (_zeroed_late, "A zero_grad() between backward() and step() throws away what backward() has found."),
    (_not_zeroed, "Each backward() adds to the gradients of the step before. optimizer.zero_grad() clears them first."),
    (
        _instead(lambda logits, labels: F.binary_cross_entropy_with_logits(logits.sigmoid(), labels)),
        "The function has “with logits” in its name. It takes the sigmoid itself.",
    ),
    (
        _instead(lambda logits, labels: F.binary_cross_entropy(logits.sigmoid(), labels)),
        "The sigmoid of 200 rounds to 1 in float32, and no log loss can be computed from this 1. Give the logits to "
        "F.binary_cross_entropy_with_logits.",
    ),
    (
        _instead(lambda logits, labels: F.binary_cross_entropy_with_logits(logits, labels, reduction="sum")),
        "The loss is the mean over the rows, not their sum. With a sum, the update grows with the batch.",
    ),
    (
        _instead(lambda logits, labels: F.mse_loss(logits.sigmoid(), labels)),
        "The loss is the log loss, not a squared error.",
    ),
    (
        _instead(lambda logits, labels: F.binary_cross_entropy_with_logits(labels, logits)),
        "F.binary_cross_entropy_with_logits takes the logits first, and then the labels.",
    ),
    (_uphill, "The weights move up the gradient. Call backward() on the loss, not on its negative."),
    (_loss_afterwards, "The weights are right. Return the loss that was differentiated."),
)
OPTIMIZERS = {
    "SGD": lambda weights: torch.optim.SGD(weights, lr=0.5),
    "Adam": lambda weights: torch.optim.Adam(weights, lr=0.1),
}
STEPS = (  # the optimizer, steps, rows, by what the counts are multiplied
    ("SGD", 1, 4, 1), ("SGD", 3, 7, 1), ("Adam", 3, 5, 1), ("SGD", 1, 4, 400),
)


def _run(step: Callable, optimizer: str, steps: int, rows: int, scale: float) -> tuple[list[Tensor], list, list]:
    """The model's weights, the losses and what was returned, after so many steps on random rows."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(rows)
        model = _Toy()
        optim = OPTIMIZERS[optimizer](model.parameters())
        returned = []
        for _ in range(steps):
            labels, dense = torch.randint(2, (rows,)).float(), scale * torch.randn(rows, 3)
            returned.append(step(model, optim, labels, dense, torch.randint(9, (rows,))))
    losses = [loss.detach().clone() if isinstance(loss, Tensor) else loss for loss in returned]
    return [weight.detach() for weight in model.parameters()], losses, returned


NO_GRAPH = "The loss has no graph, because no_grad, detach or item has cut it off from the weights."


def _check_step(answer: Callable) -> str:
    answer = reader.alone(answer)
    for optimizer, steps, rows, scale in STEPS:
        case = f"{optimizer}, {_many(steps, 'step')} of {rows} rows" + ", logits in the hundreds" * (scale > 1)
        weights, losses, _ = _run(dlrm.step, optimizer, steps, rows, scale)
        try:
            got_weights, got_losses, returned = _run(answer, optimizer, steps, rows, scale)
        except RuntimeError as error:
            if "does not require grad" not in str(error):
                raise
            raise AssertionError(f"step, case {case}: {str(error).partition('.')[0]}\nHint: {NO_GRAPH}") from error
        for number, loss in enumerate(returned, 1):
            if not (isinstance(loss, float) or (isinstance(loss, Tensor) and loss.numel() == 1)):
                raise AssertionError(f"step, case {case}: must return the loss, one number; got {type(loss).__name__}")
            if isinstance(loss, Tensor) and loss.requires_grad:
                raise AssertionError(
                    f"step, case {case}: the loss of step {number} still holds its graph\n"
                    "Hint: A list of such losses keeps every step's tensors in memory. Return loss.detach()."
                )
        difference = _difference(losses, got_losses, weights, got_weights)
        if difference:
            hint = "The order is loss, zero_grad(), backward(), step()."
            if optimizer == "Adam":  # with SGD the answer was right
                hint = "The update is step() of the optimizer that you are given. Adam keeps sums from step to step."
            for mistake, words in MISTAKES:
                same, its_losses, _ = _run(mistake, optimizer, steps, rows, scale)
                if not _difference(its_losses, got_losses, same, got_weights):
                    hint = words
                    break
            raise AssertionError(f"step, case {case}: {difference}\nHint: {hint}")
    return f"step: {len(STEPS)} cases passed on the CPU"


def _difference(losses: list, got_losses: list, weights: list[Tensor], got_weights: list[Tensor]) -> str:
    """The first loss, or the first weight, that is not the expected one, in words."""
    for number, (want, got) in enumerate(zip(losses, got_losses, strict=True), 1):
        if not torch.allclose(torch.as_tensor(got).float().reshape(()), want, rtol=1e-4, atol=1e-6, equal_nan=True):
            return f"the loss of step {number}: expected {float(want):.6g}, got {float(got):.6g} (tolerance 0.01 %)"
    for name, want, got in zip(("linear.weight", "linear.bias", "table.weight"), weights, got_weights, strict=True):
        wrong = ~torch.isclose(got, want, rtol=1e-4, atol=1e-6, equal_nan=True)
        if wrong.any():
            place = tuple(wrong.nonzero()[0].tolist())
            index = ", ".join(map(str, place))
            return f"{name}[{index}] afterwards: expected {want[place]:.6g}, got {got[place]:.6g} (tolerance 0.01 %)"
    return ""


PUZZLES = {
    "look_up": _puzzle(
        _look_up, _with_tables, _look_up_calls, (1, 4, 7), (3, 4, 9, 5), (9, 2, 6, 3, 1), (40, 16, 100, 30, 7, 1000)
    ),
    "interact": _puzzle(_interact, _with_pairs, _interact_calls, (2, 1, 4), (2, 2, 4), (2, 3, 4), (5, 26, 16)),
    "step": Own(_check_step),
}
JUDGE = Judge(PUZZLES)
SOLVED, attempt = JUDGE.solved, JUDGE.attempt  # solved: the reader's functions that passed, by puzzle
OURS = {"look_up": dlrm.look_up, "interact": dlrm.interact, "step": dlrm.step}


def passed(name: str) -> Callable:
    """The reader's function, if it passed when it was last tried; else the lecture's."""
    return SOLVED.get(name, OURS[name])
