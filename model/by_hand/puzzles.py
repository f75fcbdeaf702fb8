"""DLRM's parts as puzzles in plain PyTorch, each held against the model's own.

    mlp           x [B, widths[0]], weights, biases → [B, widths[-1]]: DenseArch
    look_up       tables, ids [B, F] → [B, F, D]: SparseArch, with the modulus hash
    interaction   dense [B, D], sparse [B, F, D] → [B, D + F (F + 1) / 2]: InteractionArch
    moved         rows, widths, fused → the bytes that an MLP moves, as model.by_hand.costs counts them

An answer gives the model's values and, of finite numbers, its gradients; what a gradient is where NaN comes in differs
from one right way to another. One that calls what lies in model/ or kernels/ computes nothing
itself, and is turned down. All run on the CPU, where an id beyond a table ends no process.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stdout
from io import StringIO
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor
from torch.func import functional_call

from kernels.check import Call, Case, Spec, Sums, check, check_gradients, gradient_of
from model.by_hand import costs
from model.config import DLRMConfig, Interaction
from model.dlrm import DenseArch, InteractionArch, SparseArch

ROOT = Path(__file__).resolve().parents[2]
CALLED = "{} was called: this is what you are to write"
SOLVED: dict[str, Callable] = {}  # the reader's functions that passed, by puzzle


def attempt(puzzle: str, function: Callable) -> bool:
    """A puzzle's last line: print whether the function is right, or else the first case that fails, and a hint."""
    SOLVED.pop(puzzle, None)
    try:
        text = _counted(_alone(function)) if puzzle == "moved" else _computed(puzzle, _alone(function))
    except AssertionError as error:
        print(f"not yet: {error}")
        return False
    print(text)
    SOLVED[puzzle] = function
    return True


def _computed(puzzle: str, function: Callable) -> str:
    """Hold it against the model's part, then its gradients; what is to be printed. AssertionError: what is wrong."""
    spec, printed = SPECS[puzzle], StringIO()
    calls = [call for case in spec.cases(()) for call in spec.calls(case, torch.device("cpu"))]
    try:
        with redirect_stdout(printed):
            check(puzzle, function, device="cpu", spec=spec)
    except AssertionError as error:
        hints = [call.hint for call in calls if f"case {call.name}: " in str(error) and "Hint: " not in str(error)]
        raise AssertionError("\nHint: ".join([str(error), *hints])) from error
    for call in calls:
        if all(leaf.isfinite().all() for leaf in call.leaves()):
            _has_gradients(puzzle, function, call)
    return printed.getvalue().rstrip()


def _has_gradients(puzzle: str, function: Callable, call: Call) -> None:
    """AssertionError: which input's gradient is missing, or wrong. A sparse one is right, too."""
    spec = SPECS[puzzle]

    def densely(*arguments):
        return function(*Call("", arguments).map(dense_gradient).arguments())

    needed = [leaf.is_floating_point() for leaf in call.leaves()]
    grad = torch.randn(spec.reference(*call.arguments()).shape, generator=torch.Generator().manual_seed(9))
    leaves = [leaf.clone().requires_grad_(need) for leaf, need in zip(call.leaves(), needed, strict=True)]
    try:
        out = function(*call.with_leaves(leaves).arguments())
        for name, leaf in zip(spec.leaf_names(call), leaves, strict=True):
            if leaf.requires_grad:
                gradient_of(out, leaf, grad, name, keep=True)
    except (AssertionError, RuntimeError) as error:  # the latter is autograd's
        raise AssertionError(
            f"{puzzle}: the values are right, but training needs the gradients: {error}\n"
            "Hint: every step from the inputs to the result must be one of torch's that autograd follows."
        ) from error
    try:
        check_gradients(puzzle, densely, call, needed, grad, spec=spec)
    except (AssertionError, RuntimeError) as error:
        raise AssertionError(
            f"{puzzle}: the values are right, but training needs the gradients: {str(error).partition('. ')[0]}\n"
            "Hint: autograd follows one way from this input to the result, and the result has more of them, or a step "
            "on it has another derivative: is a part detached?"
        ) from error


class _Densely(torch.autograd.Function):
    """What comes in; its gradient is made dense."""

    @staticmethod
    def forward(context, tensor: Tensor) -> Tensor:
        return tensor.view_as(tensor)

    @staticmethod
    def backward(context, grad: Tensor) -> Tensor:
        return grad.to_dense() if grad.is_sparse else grad


def dense_gradient(tensor: Tensor) -> Tensor:
    """The tensor; where its gradient is sparse, as F.embedding's can be, it arrives dense: Adam takes no sparse one."""
    return _Densely.apply(tensor) if tensor.requires_grad else tensor


def _counted(function: Callable) -> str:
    for rows, widths, fused, hint in MOVED:
        case = f"{_many(rows, 'row')} of {'-'.join(map(str, widths))}, {'fused' if fused else 'eager'}"
        want = costs.mlp_bytes(rows, widths, fused)
        try:
            got = function(rows, widths, fused)
        except AssertionError as error:
            raise AssertionError(f"moved, case {case}: {error}") from error
        except Exception as error:
            raise AssertionError(f"moved, case {case}: {type(error).__name__}: {error}\nHint: {hint}") from error
        if got != want:
            raise AssertionError(f"moved, case {case}: expected {want:,} bytes, got {got!r}\nHint: {hint}")
    return f"moved: {len(MOVED)} cases passed on paper"


def _alone(function: Callable) -> Callable:
    """The function, which may not call what it is to be: AssertionError if a line of model/ or kernels/ was run."""

    def alone(*arguments):
        called = []

        def note(frame, event, _) -> None:
            if event == "call" and (place := _in_the_repository(frame.f_code.co_filename)):
                called.append(f"{place}: {frame.f_code.co_name}")

        before = sys.getprofile()
        sys.setprofile(note)
        try:
            out = function(*arguments)
        except Exception as error:
            if not called:
                raise
            raise AssertionError(CALLED.format(called[0])) from error
        finally:
            sys.setprofile(before)
        if called:
            raise AssertionError(CALLED.format(called[0]))
        if isinstance(out, list | tuple):
            raise AssertionError(f"must return a tensor; got {type(out).__name__}")
        return out.contiguous() if isinstance(out, Tensor) else out

    return alone


def _in_the_repository(file: str) -> str:
    """The place of a file of model/ or kernels/; "" of another. kernels/check stands in for torch's allocations."""
    path = Path(file)
    place = path.relative_to(ROOT).parts if path.is_relative_to(ROOT) else ()
    return "/".join(place) if place[:1] in {("model",), ("kernels",)} and place[:2] != ("kernels", "check") else ""


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
    tensors = case.tensor(1, device, (rows, widths[0])), weights, biases
    name = f"{_many(rows, 'row')} of {'-'.join(map(str, widths))}" + f", {case.values}" * (case.values != "normal")
    yield Call(name, tensors, hint=hint)


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


def _spec(
    reference: Callable, calls: Callable, shapes: Sequence[tuple[int, ...]], special: tuple[int, ...] = ()
) -> Spec:
    """shapes: of cases of ordinary numbers; special: of one with NaN and Inf among them."""
    chosen = [Case(shape) for shape in shapes] + [Case(special, values="special")] * bool(special)
    return Spec(
        reference,
        calls,
        scale=Sums(k=8),
        cases=lambda names: chosen,
        wide_cases=lambda names: [],
    )


SPECS = {
    "mlp": _spec(mlp, _mlp_calls, ((2, 3, 4), (5, 4, 8, 3), (1, 13, 32, 16), (3, 13, 64, 32, 16)), (3, 2, 3)),
    "look_up": _spec(look_up, _look_up_calls, ((1, 4, 7), (3, 4, 9, 5), (9, 2, 6, 3, 1), (40, 16, 100, 30, 7, 1000))),
    "interaction": _spec(interaction, _interaction_calls, ((2, 1, 4), (2, 2, 4), (2, 3, 4), (5, 26, 16))),
}

MOVED = (
    (1, (3, 5), True, "x and the result, and the layer's weights and biases; a float32 has 4 bytes."),
    (10, (3, 5), True, "weights and biases are read once, not once a row."),
    (10, (3, 5, 2), True, "what is between two layers stays on the chip."),
    (10, (3, 5), False, "relu is a kernel of its own: it reads what the layer wrote, and writes as much."),
    (10, (3, 5, 2), False, "each layer reads what the relu before it wrote."),
    (2048, (13, 32, 16), False, "each layer reads what the relu before it wrote."),
)
