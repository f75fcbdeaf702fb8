"""Puzzles on torch.compile, checked on the CPU.

    normalise   x [B, D] → x, scaled so that no row is longer than 1, in one graph, with eager's gradients
    serve       compiled, dense [B, 13], ids [B, F], full → the logits [B], one graph for batches of full rows and fewer
    look_ups    lay_out: tables, once → what look_up gets; look_up: that, ids [B, F] → [B, F, D], in one kernel
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from kernels import inductor
from lessons.n04_torch_compile.dynamo_graphs import Counting, quiet, stops_at
from lessons.n04_torch_compile.experiment import batch_of, small_model
from lessons.shared.puzzle import Judge, Own
from lessons.shared.puzzle.in_pytorch import dense_gradient
from lessons.shared.puzzle.reader import alone

FULL, SIZES = 64, (64, 64, 40, 64, 20, 1, 40)
# Inductor's own, whatever an answer has set.
DEFAULTS = {"max_pointwise_cat_inputs": 8, "max_complex_pointwise_cat_inputs": 8, "force_pointwise_cat": False}
HEIGHTS = tuple(3 + 2 * table for table in range(26))


def _called(what: str, function: Callable, *arguments, hint: str = ""):
    """Its result; an error of its own becomes an AssertionError, with the hint."""
    try:
        return function(*arguments)
    except AssertionError:
        raise
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        after = f"\nHint: {hint}" if hint else ""
        raise AssertionError(f"{what}: {type(error).__name__}: {lines[0][:150]}{after}") from error


def _same(what: str, got: object, expected: Tensor, hint: str) -> None:
    """AssertionError with the first position that differs, what is expected there, and a hint."""
    if not isinstance(got, Tensor):
        raise AssertionError(f"{what}: must return a tensor; got {type(got).__name__}")
    if got.shape != expected.shape:
        raise AssertionError(f"{what}: expected shape {list(expected.shape)}, got {list(got.shape)}\nHint: {hint}")
    wrong = ~torch.isclose(got.detach(), expected, rtol=1e-4, atol=1e-6)
    if wrong.any():
        at = tuple(wrong.nonzero()[0].tolist())
        want, have = expected[at].item(), got.detach()[at].item()
        if torch.allclose(got.detach().to(expected.dtype), expected, rtol=1e-2, atol=1e-3):
            hint = "Every element is nearly right. Does a step round to half precision, or add a small number?"
        raise AssertionError(f"{what}: at {at} expected {want:.6g}, got {have:.6g}\nHint: {hint}")


# ------------------------------------------------------------------------------------------------------------------


def normalised(x: Tensor) -> Tensor:
    """What `normalise` is to do, with a graph break."""
    longest = x.norm(dim=1).max()
    if longest > 1:
        x = x / longest
    return x


def _gradient(what: str, function: Callable, x: Tensor, weights: Tensor, hint: str) -> tuple[Tensor, Tensor]:
    leaf = x.clone().requires_grad_()
    out = _called(what, function, leaf)
    if not isinstance(out, Tensor):
        raise AssertionError(f"{what}: must return a tensor; got {type(out).__name__}")
    if not out.requires_grad:
        raise AssertionError(f"{what}: no gradient reaches x: detach, no_grad or a number cuts it.\nHint: {hint}")
    (gradient,) = torch.autograd.grad((out * weights).sum(), leaf, allow_unused=True)
    return out.detach(), torch.zeros_like(x) if gradient is None else gradient


def _check_normalise(function: Callable) -> str:
    random = torch.Generator().manual_seed(1)
    x, weights = (torch.randn(5, 16, generator=random) for _ in range(2))
    hint = "Divide by the longest row's length if it is above 1, and by 1 otherwise. One operation gives this divisor."
    trap = (
        "This NaN is 0 · inf. `torch.where` computes both sides, and the gradient of x / 0 is infinite. So is the "
        "gradient of sqrt at 0. Make the divisor safe."
    )
    for what, scale in (("long rows", 3.0), ("short rows", 0.01), ("zeros", 0.0)):
        expected, wanted = _gradient(what, normalised, scale * x, weights, hint)
        got, gradient = _gradient(what, alone(function), scale * x, weights, "The divisor has a gradient as well.")
        _same(what, got, expected, hint)
        nan = gradient.isnan().any() and not wanted.isnan().any()
        _same(f"{what}: the gradient", gradient, wanted, trap if nan else "The divisor has a gradient as well.")
    if line := stops_at(function, x):
        raise AssertionError(f"right, but torch.compile(fullgraph=True) stops at {line}\nHint: {hint}")
    try:
        function(x.to("meta"))
    except Exception:
        raise AssertionError(
            "right, but the host reads a value (item, float, tolist, an if, Python's max), and waits for it\n"
            f"Hint: {hint}"
        ) from None
    return "one graph, with eager's values and gradients, and the host reads nothing"


def _check_serve(function: Callable) -> str:
    backend, model = Counting(), small_model(tables=3)
    inside = torch.compile(model, backend=backend)

    def compiled(dense: Tensor, ids: Tensor) -> Tensor:
        return inside(dense, ids)

    for number, rows in enumerate(SIZES):
        dense, ids = batch_of(rows, tables=3)
        what = f"batch {number}, of {rows} rows"
        settings = torch._dynamo.config
        with torch.no_grad(), settings.patch(assume_static_by_default=settings.assume_static_by_default):
            expected = model(dense, ids)
            got = _called(what, alone(function), compiled, dense, ids, FULL, hint=SAME_KIND)
        _same(what, got, expected, "Return the logits of this batch's rows, in their order, and no others.")
        if len(backend.ran) != number + 1:
            raise AssertionError(
                f"{what}: right, but the compiled model was called {len(backend.ran) - number} times for it\n"
                "Hint: Call `compiled` exactly once for each batch."
            )
        if len(backend.rows) > 1:
            one = rows == 1 and "any" in backend.rows
            raise AssertionError(
                f"{what}: right, but compiled again: Dynamo made {backend.in_words()}\n"
                f"Hint: {ONE_ROW if one else ROWS}"
            )
    return f"{len(SIZES)} batches of {len({*SIZES})} sizes, one graph"


def _check_look_ups(lay_out: Callable, look_up: Callable) -> str:
    random = torch.Generator().manual_seed(1)
    tables = [torch.randn(height, 16, generator=random) for height in HEIGHTS]
    ids = torch.stack([torch.randint(height, (40,), generator=random) for height in HEIGHTS], dim=1)
    what = "40 rows, 26 tables"
    hint = "Id k of table f is in row start + k. Here, start is the number of rows in all tables before f."
    expected = torch.stack([table[ids[:, f]] for f, table in enumerate(tables)], dim=1)
    laid = _called("lay_out", lay_out, tables, hint=ONE_TENSOR)
    own = tuple(alone(function) for function in (lay_out, look_up))
    _same(what, _called(what, own[1], _called("lay_out", own[0], tables), ids, hint=hint), expected, hint)

    weights = torch.randn(40, 26, 16, generator=random)
    wanted = [torch.zeros_like(t).index_add_(0, ids[:, f], weights[:, f]) for f, t in enumerate(tables)]
    gradients = _called("the gradients", _gradients, lay_out, look_up, tables, ids, weights)
    for f, gradient in enumerate(gradients):
        _same(f"the gradient of table {f}", gradient, wanted[f], hint)
    if line := stops_at(look_up, laid, ids):
        raise AssertionError(f"right, but torch.compile(fullgraph=True) stops at {line}")
    try:
        launches = inductor.count(_called("compiled", _sources, look_up, laid, ids))
    except AssertionError as error:
        raise AssertionError(f"{error}\nHint: Make every tensor in lay_out, or on the device of ids.") from None
    if launches != {"pointwise": 1}:
        shown = ", ".join(f"{number} {kind}" for kind, number in launches.items())
        raise AssertionError(
            f"right, but the compiler writes {sum(launches.values())} kernels: {shown}\n"
            f"Hint: {SPARSE if 'extern' in launches else ONE_INDEX if _is_one(laid) else ONE_TENSOR}"
        )
    return "26 look-ups, one kernel, without an option"


def _sources(look_up: Callable, laid: object, ids: Tensor) -> list[str]:
    """What Inductor writes for look_up."""
    modules = any(isinstance(part, torch.nn.Module) for part in tree_leaves(laid))
    options = {name: value for name, value in DEFAULTS.items() if inductor.has_option(name)}
    compiled = (_LookUp(look_up, laid), ids) if modules else (look_up, laid, ids)
    return inductor.triton_source(*compiled, options=options)


def written_for(lay_out: Callable, look_up: Callable) -> list[inductor.Kernel]:
    """The kernels that Inductor writes for an answer to look_ups, for 2048 rows."""
    tables = [torch.zeros(height, 16) for height in HEIGHTS]
    with quiet():
        (source,) = _sources(look_up, lay_out(tables), torch.zeros(2048, len(HEIGHTS), dtype=torch.int64))
    return inductor.split(source)


def _gradients(
    lay_out: Callable, look_up: Callable, tables: Sequence[Tensor], ids: Tensor, weights: Tensor
) -> list[Tensor]:
    """Each table's gradient, whether the reader's tensors are made of the tables, or a parameter has copied them."""
    leaves = [table.clone().requires_grad_() for table in tables]
    laid = lay_out(leaves)
    own = [leaf for leaf in _tensors_of(laid) if leaf.is_leaf and leaf.requires_grad]
    parts = tree_map(lambda part: dense_gradient(part) if isinstance(part, Tensor) else part, laid)
    out = look_up(parts, ids)
    if not out.requires_grad:
        raise AssertionError(NO_GRADIENT)
    grads = torch.autograd.grad(out, leaves + own, weights, allow_unused=True)
    grads = [gradient.to_dense() if gradient is not None and gradient.is_sparse else gradient for gradient in grads]
    whole = [grad for grad in grads[len(leaves) :] if grad is not None and grad.shape == (sum(HEIGHTS), 16)]
    grads = whole[0].split(HEIGHTS) if whole else grads[: len(leaves)]
    if any(gradient is None for gradient in grads):
        raise AssertionError(NO_GRADIENT)
    return list(grads)


def _tensors_of(laid: object) -> list[Tensor]:
    """The tensors in what lay_out gave, those of its modules too."""
    return [tensor for part in tree_leaves(laid) for tensor in _state(part).values()]


def _is_one(laid: object) -> bool:
    """Whether one tensor holds all tables, filled up or not."""
    return any(tensor.numel() >= sum(HEIGHTS) * 16 for tensor in _tensors_of(laid))


def _state(part: object) -> dict[str, Tensor]:
    if isinstance(part, torch.nn.Module):
        return dict(part.named_parameters()) | dict(part.named_buffers())
    return {"": part} if isinstance(part, Tensor) else {}


class _LookUp(torch.nn.Module):
    """look_up(laid, ids) as a module, for a laid with modules in it."""

    def __init__(self, look_up: Callable, laid: object):
        super().__init__()
        parts, self.form = tree_flatten(laid)
        self.look_up, self.count = look_up, len(parts)
        for number, part in enumerate(parts):
            if isinstance(part, Tensor):
                self.register_buffer(f"part{number}", part)
            else:
                setattr(self, f"part{number}", part)

    def forward(self, ids: Tensor) -> Tensor:
        return self.look_up(tree_unflatten([getattr(self, f"part{n}") for n in range(self.count)], self.form), ids)


ROWS = "The first graph is guarded by its number of rows. Give it that many, and keep only the logits you need."
SAME_KIND = "`compiled` takes the same inputs as the model: dense [B, 13] in float32, and ids [B, F] in int64."
ONE_ROW = "A size of 1 gets a graph of its own, even if the dimension is dynamic. Fill the batch up to `full` rows."
ONE_TENSOR = "Let lay_out put all tables into one tensor, once, and keep the row at which each table begins."
ONE_INDEX = "All tables are in one tensor, so one look-up serves all columns: index it with the rows of all of ids."
SPARSE = (
    "An extern kernel is PyTorch's own. sparse=True and embedding_bag lead to one. The compiler fuses only a plain, "
    "dense look-up."
)
NO_GRADIENT = "no gradient reaches the tables: detach, .data or no_grad cuts the graph"


def _quietly(check: Callable[..., str]) -> Own:
    def checked(*functions: Callable) -> str:
        torch._dynamo.reset()
        with quiet():
            return check(*functions)

    return Own(checked)


PUZZLES = {
    "normalise": _quietly(_check_normalise), "serve": _quietly(_check_serve), "look_ups": _quietly(_check_look_ups)
}
attempt = Judge(PUZZLES).attempt
