"""DLRM's parts as puzzles in plain PyTorch, each held against the model's own.

    mlp           x [B, widths[0]], weights, biases → [B, widths[-1]]: DenseArch
    look_up       tables, ids [B, F] → [B, F, D]: SparseArch, with the modulus hash
    interaction   dense [B, D], sparse [B, F, D] → [B, D + F (F + 1) / 2]: InteractionArch
    moved         rows, widths, fused → the bytes that an MLP moves, as arithmetic.py counts them

An answer gives the model's values and, of finite numbers, its gradients; what a gradient is where NaN comes in differs
from one right way to another. One that calls what lies in model/ or kernels/ computes nothing
itself, and is turned down. All run on the CPU, where an id beyond a table ends no process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import torch
from torch import Tensor
from torch.func import functional_call

from kernels.check import Call, Case, Spec, Sums, check_gradients
from lessons.n01_dlrm_from_scratch import arithmetic
from lessons.shared.puzzle import InPyTorch, Judge, OfNumbers, gradient_of
from lessons.shared.puzzle.in_pytorch import dense_gradient
from model.config import DLRMConfig, Interaction
from model.dlrm import DenseArch, InteractionArch, SparseArch


def _has_gradients(name: str, function: Callable, call: Call) -> None:
    """AssertionError: which input's gradient is missing, or wrong. A sparse one is right, too."""
    if not all(leaf.isfinite().all() for leaf in call.leaves()):
        return
    spec = PUZZLES[name].spec

    def densely(*arguments):
        return function(*Call("", arguments).map(dense_gradient).arguments())

    needed = [leaf.is_floating_point() for leaf in call.leaves()]
    grad = torch.randn(spec.reference(*call.arguments()).shape, generator=torch.Generator().manual_seed(9))
    leaves = [leaf.clone().requires_grad_(need) for leaf, need in zip(call.leaves(), needed, strict=True)]
    try:
        out = function(*call.with_leaves(leaves).arguments())
        for leaf_name, leaf in zip(spec.leaf_names(call), leaves, strict=True):
            if leaf.requires_grad:
                gradient_of(out, leaf, grad, leaf_name, keep=True)
    except (AssertionError, RuntimeError) as error:  # the latter is autograd's
        raise AssertionError(
            f"the values are right, but training needs the gradients: {error}\n"
            "Hint: every step from the inputs to the result must be one of torch's that autograd follows."
        ) from error
    try:
        check_gradients(name, densely, call, needed, grad, spec=spec)
    except (AssertionError, RuntimeError) as error:
        said = str(error).partition(". ")[0].removeprefix(f"{name}, case {call.name}, ")
        raise AssertionError(
            f"the values are right, but training needs the gradients: {said}\n"
            "Hint: autograd follows one way from this input to the result, and the result has more of them, or a step "
            "on it has another derivative: is a part detached?"
        ) from error


# ------------------------------------------------------------------------------------------------ the model's parts


def mlp(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor]) -> Tensor:
    """DenseArch with these weights [N, K] and biases [N]."""
    arch = DenseArch([x.shape[1], *map(len, biases)])
    state = {f"mlp.{2 * i}.weight": weight for i, weight in enumerate(weights)}
    state |= {f"mlp.{2 * i}.bias": bias for i, bias in enumerate(biases)}
    return functional_call(arch, state, (x,))


def look_up(tables: Sequence[Tensor], ids: Tensor) -> Tensor:
    """SparseArch with these tables [n + 1, D]."""
    width = tables[0].shape[1]
    heights = tuple(len(table) - 1 for table in tables)
    arch = SparseArch(DLRMConfig((13, width), width, cardinalities=heights, sparse_gradients=False))
    return functional_call(arch, {f"tables.{f}.weight": table for f, table in enumerate(tables)}, (ids,))


def interaction(dense: Tensor, sparse: Tensor) -> Tensor:
    """InteractionArch, dot."""
    return InteractionArch(Interaction.DOT, *sparse.shape[1:])(dense, sparse)


# ------------------------------------------------------------------------------------------------ cases and hints


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"


def _mlp_calls(case: Case, device: torch.device) -> Iterator[Call]:
    rows, *widths = case.shape if len(case.shape) > 2 else (1, 1, 1)
    shapes = list(pairwise(widths))
    weights = [case.tensor(10 + i, device, (b, a)) for i, (a, b) in enumerate(shapes)]
    biases = [case.tensor(20 + i, device, (b,)) for i, (_, b) in enumerate(shapes)]
    hint = (
        "a layer is x times the transpose of its weight [outputs, inputs], plus its bias; then relu."
        if len(shapes) == 1
        else "the result of one layer is the x of the next, and each layer has its relu, the last one too."
    )
    x = case.tensor(1, device, (rows, widths[0]))
    name = f"{_many(rows, 'row')} of {'-'.join(map(str, widths))}"
    if case == INFINITE:
        x[1, 0], name = torch.inf, f"{name}, an Inf"
        hint = "relu(-Inf) is 0; a product with a truth value, -Inf · 0, is NaN."
    elif case.values != "normal":
        name = f"{name}, {case.values}"
    yield Call(name, (x, weights, biases), hint=hint)


def _look_up_calls(case: Case, device: torch.device) -> Iterator[Call]:
    rows, width, *heights = case.shape if len(case.shape) > 2 else (1, 1, 1)
    tables = [case.tensor(30 + f, device, (n + 1, width)) for f, n in enumerate(heights)]
    generator = torch.Generator().manual_seed(rows)
    small = rows < 4
    ids = torch.randint(max(min(heights) - 1, 1) if small else 1 << 32, (rows, len(heights)), generator=generator)
    *most, last = map(str, heights)
    sizes = f"{', '.join(most)} and {last}" if most else last
    name = f"{_many(rows, 'row')}, {_many(len(heights), 'table')} of {sizes} ids" + ", hashes" * (not small)
    hint = "an id looks up row (id + 1) mod n; the result is [B, F, D]."
    if small and len(heights) > 1:
        hint = "out[b, f] is the row of table f for ids[b, f]: which dimension is the tables'?"
    if not small:
        hint = "ids are hashes, up to 2^32 - 1, and -1 where a value is missing; a table of n ids has n + 1 rows."
        ids[::3] = -1
    yield Call(name, (tables, ids), hint=hint)


def _interaction_calls(case: Case, device: torch.device) -> Iterator[Call]:
    rows, features, width = case.shape if len(case.shape) == 3 else (1, 1, 1)
    hint = {
        1: "the dense vector's numbers come first, then its product with the only embedding.",
        2: "three vectors make three pairs, none with itself: (1, 0), (2, 0), (2, 1).",
    }.get(features, "row by row below the diagonal: (1, 0), (2, 0), (2, 1), (3, 0), …: which pair is the third?")
    dense, sparse = case.tensor(1, device, (rows, width)), case.tensor(2, device)
    name = f"{_many(rows, 'row')} of {_many(features, 'embedding')}"
    yield Call(name, (dense, sparse), hint=hint)
    if features != 3:
        return
    apart, unknown = sparse.clone(), sparse.clone()
    apart[:, 0, : width // 2] = apart[:, 1, width // 2 :] = 0  # no number of one meets a number of the other
    hint = "a product that is exactly 0 has its place, too: choose pairs by where they lie, not by their value."
    yield Call(f"{name}, a product of 0", (dense, apart), hint=hint)
    unknown[0, 1, 0] = torch.nan
    hint = "NaN must come out, in each pair of the vector that has it: who hides it hides that a model has broken."
    yield Call(f"{name}, a NaN", (dense, unknown), hint=hint)


def _puzzle(reference: Callable, calls: Callable, *cases: tuple[int, ...] | Case) -> InPyTorch:
    """cases: a shape is one of ordinary numbers."""
    chosen = [case if isinstance(case, Case) else Case(case) for case in cases]
    spec = Spec(reference, calls, scale=Sums(k=8), cases=lambda names: chosen)
    return InPyTorch(spec, then=_has_gradients)


INFINITE = Case((3, 3, 2), dtype=torch.float32, every_option=False)
MOVED = (
    (1, (3, 5), True, "x and the result, and the layer's weights and biases; a float32 has 4 bytes."),
    (10, (3, 5), True, "weights and biases are read once, not once a row."),
    (10, (3, 5, 2), True, "what is between two layers stays on the chip."),
    (10, (3, 5), False, "relu is a kernel of its own: it reads what the layer wrote, and writes as much."),
    (10, (3, 5, 2), False, "each layer reads what the relu before it wrote."),
    (2048, (13, 32, 16), False, "each layer reads what the relu before it wrote."),
)
PUZZLES = {
    "mlp": _puzzle(
        mlp, _mlp_calls, (2, 3, 4), (5, 4, 8, 3), (1, 13, 32, 16), (3, 13, 64, 32, 16), INFINITE,
        Case((3, 2, 3), values="special"),
    ),
    "look_up": _puzzle(
        look_up, _look_up_calls, (1, 4, 7), (3, 4, 9, 5), (9, 2, 6, 3, 1), (40, 16, 100, 30, 7, 1000)
    ),
    "interaction": _puzzle(interaction, _interaction_calls, (2, 1, 4), (2, 2, 4), (2, 3, 4), (5, 26, 16)),
    "moved": OfNumbers(
        arithmetic.mlp_bytes,
        [
            (f"{_many(rows, 'row')} of {'-'.join(map(str, widths))}, {'fused' if fused else 'eager'}",
             (rows, widths, fused), hint)
            for rows, widths, fused, hint in MOVED
        ],
        unit="bytes",
    ),
}
JUDGE = Judge(PUZZLES)
SOLVED, attempt = JUDGE.solved, JUDGE.attempt  # solved: the reader's functions that passed, by puzzle
