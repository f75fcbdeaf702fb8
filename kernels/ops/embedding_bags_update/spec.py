"""What `kernels.check` takes the walk of sorted ids and the additions through, and how far their results may be off."""

from dataclasses import dataclass, replace

import torch

from ...check import Call, Case, Spec, Sums
from ...check.cases import LAYOUTS, wide_cases
from ..embedding_bags.spec import HEIGHTS, HOSTILE_64, draw_bags, draw_ids
from .eager import embedding_bags_add, embedding_bags_update

LEARNING_RATE, EPS = 0.3, 1e-6
# (rule, whether in bags, whether weighted, chunk): small chunks, so that rows fill several.
VARIANTS = (
    ("adagrad", True, False, 2), ("sgd", False, True, 4), ("rowwise_adagrad", True, True, 2),
    ("sgd", False, False, 0), ("rowwise_adagrad", False, False, 4),
)


def sorted_ids(seed: int, count: int, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """keys and positions [count] of ids of which a third names row 1, and some no row."""
    generator = torch.Generator().manual_seed(seed)
    row = torch.randint(max(rows, 1), (count,), generator=generator)
    row[torch.rand(count, generator=generator) < 0.3] = min(1, max(rows - 1, 0))
    none = torch.rand(count, generator=generator) < 0.1 if rows else torch.ones(count, dtype=torch.bool)
    keys, positions = torch.sort(torch.where(none, 2 * rows, 2 * row + 1).int(), stable=True)
    return keys, positions.int()


def _calls(case, device):
    *leading, columns = case.shape
    count = torch.Size(leading).numel()
    rows = 3 + count // 3
    plain = Case(case.shape, case.dtype)
    drawn = {name: case if case.only in ("", name) else plain for name in ("tables", "grad", "weights")}
    if case.only and case.only not in drawn:
        return
    keys, positions = (tensor.to(device) for tensor in sorted_ids(5, count, rows))
    generator = torch.Generator().manual_seed(6)
    bags = torch.randint(max(count, 1), (count,), generator=generator).int().to(device)
    lengths = torch.randint(1, 5, (count,), generator=generator).int().to(device)
    for rule, in_bags, weighted, chunk in VARIANTS:
        shape = {"sgd": (0,), "adagrad": (rows, columns), "rowwise_adagrad": (rows,)}[rule]
        state = 0.1 + torch.rand(shape, generator=torch.Generator().manual_seed(7)).to(device)
        yield Call(
            f"{case} {rule}{' bags' * in_bags}{' weights' * weighted} chunk {chunk}",
            (
                drawn["tables"].tensor(1, device, (rows, columns)), state, keys, positions,
                drawn["grad"].tensor(2, device, (count, columns)), bags if in_bags else None,
                lengths if in_bags else None,
                drawn["weights"].tensor(3, device, (count,)) if weighted else None,
            ),
            (LEARNING_RATE, rule, EPS, chunk),
        )


@dataclass(frozen=True)
class _Updates(Sums):
    """A row's gradient g is off by δg = k · eps_sum · Σ |terms|. From it, with root = √state + eps:

        sgd               tables by lr · δg
        adagrad           state by 2 |g| δg, tables by lr · δg / root, as |d(g / √(s + g²)) / dg| ≤ 1 / √(s + g²)
        rowwise adagrad   state by mean(2 |g| δg), tables by lr · (δg + |g| · (state's) / root²) / root

    and by k roundings of what goes in. Finite terms alone: what is not finite is compared as it is.
    """

    k: float = 8.0

    def errors(self, reference, call, exact):
        tables, state, keys, positions, grad, bags, lengths, weights = (
            value.double() if value is not None and value.is_floating_point() else value for value in call.tensors
        )
        rate, rule, eps, _ = call.options
        parts = []
        for sign in (lambda value: value, torch.abs):  # g, and Σ |terms|: what SGD of rate -1 adds to zeros
            summed = torch.zeros_like(tables)
            inputs = (sign(grad), bags, lengths, None if weights is None else sign(weights))
            embedding_bags_update(summed, state, keys, positions, *inputs, -1.0, "sgd")
            parts.append(summed.nan_to_num(0, 0, 0))
        g, terms = parts[0].abs(), parts[1]
        size = tables.abs() + float(rate) * terms
        sizes = [size]
        if rule == "sgd":
            sizes += [state]
        else:
            root = exact[1].sqrt().nan_to_num(1.0, 1.0) + eps
            of_state = 2 * g * terms
            if rule == "rowwise_adagrad":
                of_state = of_state.sum(1) / max(tables.shape[1], 1)
                step = (terms + g * (of_state / root.square())[:, None]) / root[:, None]
            else:
                step = terms / root
            sizes = [tables.abs() + float(rate) * (step + g), exact[1].abs() + of_state]
        number, smallest = torch.finfo(call.tensors[0].dtype), torch.finfo(torch.float32)
        return [
            number.eps * result.abs() + self.k * smallest.eps * size.nan_to_num(0, 0, 0) + number.tiny * number.eps
            for result, size in zip(exact, sizes, strict=True)
        ]


def one_by_one(
    before: torch.Tensor, after: torch.Tensor, times: torch.Tensor, squares: torch.Tensor, rate: float
) -> torch.Tensor:
    """What float32 additions to a row in memory may round, in whatever order they come.

    A row w becomes w' by n additions of lr · g. Each rounds the row, as it then is, by up to half an epsilon. Of a sum
    that is ordered by chance |row| ≤ S = max(|w|, |w'|) + 4 · lr · √Σ g². Roundings are as often up as down:

        min(n, 8 √n) · eps / 2 · S

    Up to n = 64 that holds of any numbers in any order, as what goes up and comes down again is at most lr · Σ |g| / 2
    and Σ |g| ≤ √(n Σ g²). Of more it fails by chance once in 10^13 (Hoeffding: 2 exp(-8² / 2)). The worst case,
    n · eps / 2 · (|w| + lr · Σ |g|), is larger than a whole g where n is some thousands, and would let one be lost.

    Args:
        before, after: w and w' [U, D], float64. times: n, [U, D] or [U, 1]. squares: Σ g² [U, D]. rate: lr.
    """
    size = torch.maximum(before.abs(), after.abs()) + 4 * rate * squares.sqrt()
    return torch.minimum(times, 8 * times.sqrt()) * torch.finfo(torch.float32).eps / 2 * size


def whole(rule: str) -> Spec:
    """A whole update, from ids to tables; keys and positions are those of the ids, sorted, and bags too where there are
    offsets. SGD may add to the tables in memory, an id at a time."""

    def reference(
        tables, state, row_offsets, indices, grad, keys, positions, bags=None, offsets=None, learning_rate=0.0
    ):
        update = (tables, state, keys, positions, grad.flatten(0, 1), bags, None, None)
        embedding_bags_update(*update, learning_rate, rule, EPS)

    @dataclass(frozen=True)
    class _Whole(_Updates):
        def errors(self, _, call, exact):
            tables, state, _, _, grad, keys, positions, bags, _ = call.tensors
            walk = (tables, state, keys, positions, grad.flatten(0, 1), bags, None, None)
            errors = super().errors(embedding_bags_update, Call("", walk, (*call.options, rule, EPS, 0)), exact)
            if rule == "sgd":  # of the rows that occur: all of them, in float64, are gigabytes
                found = keys % 2 == 1
                rows, place, times = (keys[found] // 2).unique_consecutive(return_inverse=True, return_counts=True)
                bag, rows, times = positions[found].long(), rows.long(), times[:, None].double()
                bag = bag if bags is None else bags[bag].long()
                values = grad.flatten(0, 1)[bag].double().square()
                squares = values.new_zeros(len(rows), tables.shape[1]).index_add_(0, place, values)
                errors[0][rows] += one_by_one(tables[rows].double(), exact[0][rows], times, squares, *call.options)
            return errors

    return Spec(reference, lambda case, device: (), outputs=(), mutated=("tables", "state"), scale=_Whole())


def _cases(names: tuple[str, ...]) -> list[Case]:
    """[N, D]: N sorted ids, of rows of D. The largest numbers are left out, as their squares overflow."""
    shapes = [(0, 5), (5, 0), (1, 1), (7, 1), (2, 1025), (40, 8), (21, 3), (12, 132)]
    cases = [Case(shape) for shape in shapes]
    for only in ("", "tables", "grad", "weights"):
        cases += [Case((20, 8), layout=layout, only=only) for layout in LAYOUTS[1:]]
        cases += [Case((20, 8), values=values, only=only) for values in ("special", "tiny")]
    for dtype in (torch.float16, torch.bfloat16):
        cases += [Case((30, 16), dtype), Case((30, 7), dtype), Case((20, 8), dtype, "misaligned")]
        cases += [Case((20, 8), dtype, values="special")]
    for_every_option = {Case((40, 8)), Case((21, 3)), Case((20, 8), values="special")}
    for_every_option |= {Case((30, 16), dtype) for dtype in (torch.float16, torch.bfloat16)}
    return [replace(case, every_option=case in for_every_option) for case in cases]


def _wide_cases(names: tuple[str, ...]) -> list[Case]:
    cases = [case for case in wide_cases(names) if case.dtype != torch.float64]
    cases = [case for case in cases if case.only in ("", "tables", "grad", "weights")]
    return [*cases, *(replace(case, shape=(100003, 16)) for case in cases[:3]), Case((3, 32768)), Case((3, 32767))]


def _drawn_by(case):
    """The case that each tensor of numbers is drawn by; none if case.only names another tensor."""
    named = ("tables", "bag_grad", "per_sample_weights")
    if case.only and case.only not in named:
        return {}
    return {name: case if case.only in ("", name) else Case(case.shape, case.dtype) for name in named}


def _additions(case, device):
    """[…, D]: so many rows of HEIGHTS, a table of one row among them, whose ids are all the same."""
    *leading, columns = case.shape
    batch, features = torch.Size(leading).numel(), len(HEIGHTS)
    generator = torch.Generator().manual_seed(sum(case.shape))
    if not (drawn := _drawn_by(case)):
        return
    single = draw_ids(generator, torch.arange(features).expand(batch, features))
    of_ids, offsets = draw_bags(generator, batch, features)
    ragged = draw_ids(generator, of_ids)
    hostile = torch.tensor(HOSTILE_64)[torch.randint(len(HOSTILE_64), ragged.shape, generator=generator)]
    ragged = torch.where(torch.rand(ragged.shape, generator=generator) < 0.2, hostile, ragged)
    tables = drawn["tables"].tensor(1, device, (sum(HEIGHTS), columns))
    row_offsets = torch.tensor([0, *HEIGHTS]).cumsum(0).to(device)
    grad = drawn["bag_grad"].tensor(2, device, (batch, features, columns))
    for name, ids, bounds, mode, weighted, padding in (
        ("bags weighted", ragged, offsets, "sum", True, -1), ("one id", single, None, "sum", False, -1),
        ("one id weighted, padding, int32", single.int(), None, "sum", True, 2),
        ("bags mean", ragged, offsets.int(), "mean", False, -1),
        ("bags mean, padding", ragged, offsets, "mean", False, 0),
    ):
        weights = drawn["per_sample_weights"].tensor(3, device, tuple(ids.shape)) if weighted else None
        bounds = None if bounds is None else bounds.to(device)
        tensors = (tables, row_offsets, ids.to(device), grad, bounds, weights)
        yield Call(f"{case} {name}", tensors, (LEARNING_RATE, mode, padding))


@dataclass(frozen=True)
class _Additions(Sums):
    """Terms are rounded, and each addition to the row; and a GPU's additions to memory flush what is below the smallest
    normal number."""

    k: float = 4.0

    def errors(self, reference, call, exact):
        tables, row_offsets, ids, grad, offsets, weights = call.tensors
        rate, mode, padding = call.options
        size, times, squares = tables.double().abs(), torch.zeros_like(exact[0]), torch.zeros_like(exact[0])
        grad, weights = grad.double().abs(), None if weights is None else weights.double().abs()
        reference(size, row_offsets, ids, grad, offsets, weights, -rate, mode, padding)
        reference(times, row_offsets, ids, torch.ones_like(grad), offsets, None, -1.0, "sum", padding)
        # Of a mean, whose weights are no more than 1, at least the squares.
        squared = grad**2, offsets, None if weights is None else weights**2
        reference(squares, row_offsets, ids, *squared, -1.0, mode, padding)
        number, added = torch.finfo(torch.float32), one_by_one(tables.double(), exact[0], times, squares, rate)
        rounded = self.k * number.eps * size.nan_to_num(0, 0, 0) + added.nan_to_num(0, 0, 0)
        return [rounded + (self.k + times) * number.tiny]


def _addition_cases(names: tuple[str, ...]) -> list[Case]:
    shapes = [(0, 5), (5, 0), (1, 1), (7, 1), (45, 16), (33, 3), (5, 1025), (12, 132), (2, 5, 8)]
    cases = [Case(shape, every_option=shape == (45, 16)) for shape in shapes]
    for only in ("", "tables", "bag_grad", "per_sample_weights"):
        cases += [Case((20, 8), layout=layout, only=only) for layout in LAYOUTS[1:]]
        cases += [Case((20, 8), values=values, only=only) for values in ("special", "tiny")]
    return cases


SPECS = {
    "embedding_bags_update": Spec(
        embedding_bags_update, _calls, outputs=(), mutated=("tables", "state"), scale=_Updates(), cases=_cases,
        wide_cases=_wide_cases,
    ),
    "embedding_bags_add": Spec(
        embedding_bags_add, _additions, outputs=(), mutated=("tables",), scale=_Additions(), cases=_addition_cases,
        wide_cases=lambda names: [Case((4099, 16)), Case((2048, 128)), Case((517, 1023)), Case((3, 32767))],
        repeatable=False,
    ),
}
