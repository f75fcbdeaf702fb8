"""model.bench.shadow: a step that is right passes however it rounds, and none that is wrong, whatever the rule."""

import itertools
import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

import kernels
from kernels import runtime
from kernels.ops.embedding_bags_update import eager
from model.bench import shadow, steps, training
from model.bench.compiled_ways import Compiled
from model.bench.shadow import MOST_OF_A_ROW, MOST_OF_A_SPARED, MOST_STRAY, Shadow, _share
from model.bench.trainer import RATES, TABLES, Trainer
from model.config import Precision, TableOptimizer, preset

CPU, DEVICE = torch.device("cpu"), runtime.device()
SGD, ADAGRAD, ROWWISE = training.RULES
SHAPE = replace(preset("mini").model, embedding_dim=4, bottom=(13, 8, 4), cardinalities=(3, 5000, 50))
ROWS = 1024  # enough that gradients are as small as in training, beside Adagrad's eps too
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def batches() -> list:
    generator = torch.Generator().manual_seed(0)
    labels, dense = torch.rand(3, ROWS, generator=generator).round(), torch.randn(3, ROWS, 13, generator=generator)
    ids = [torch.randint(ids, (3, ROWS), generator=generator) for ids in SHAPE.cardinalities]
    return list(zip(labels, dense, torch.stack(ids, dim=2), strict=True))


def judged_row(
    trainer: Trainer, rule: TableOptimizer, batches: list, device: torch.device = CPU,
    precision: Precision = Precision.FP32,
) -> dict:
    turns = itertools.cycle([[tensor.to(device) for tensor in batch] for batch in batches])
    follower, row = Shadow(SHAPE, rule, RATES[rule], device, precision), {}
    steps.judge(row, [follower.follow(trainer, next(turns)) for _ in range(6)], precision)
    strays = row["stray"] <= MOST_STRAY[precision], row["row_stray"] <= MOST_OF_A_ROW[precision]
    strays += (row["stray_once"] <= MOST_OF_A_SPARED,)
    assert (row["match"] == "ok") == (all(strays) and row["loss_error"] <= steps.TOLERANCES[precision])
    return row


def match(*arguments, **named) -> str:
    return judged_row(*arguments, **named)["match"]


@pytest.mark.parametrize(
    ("rule", "name"),
    [(rule, name) for rule in training.RULES for name in training.names_of(rule, DEVICE, training.IMPLEMENTATIONS)
    ],
)
@pytest.mark.parametrize("reordered", [False, True])
def test_what_is_right_passes(rule, name, reordered, batches, monkeypatch):
    """The rows of a batch in another order: every gradient is rounded otherwise. A GPU's last steps are replays. What
    the compiler makes of its peers is tested in test_compiled_ways.py."""
    monkeypatch.setattr(Compiled, "compile", lambda how, model: model)
    trainer = Trainer(name, rule, SHAPE, ROWS, DEVICE)
    if reordered:
        step, order = trainer.step, torch.randperm(ROWS, generator=torch.Generator().manual_seed(1)).to(DEVICE)
        trainer.step = lambda *batch: step(*(tensor[order] for tensor in batch))
    assert match(trainer, rule, batches, DEVICE) == "ok"


def drop_the_update(trainer, monkeypatch):
    trainer.optimizer.parts["tables"].step = lambda: None


def drop_an_mlps_update(trainer, monkeypatch):
    trainer.optimizer.parts["mlps"].step = lambda: None


def drop_a_later_update(trainer, monkeypatch):
    step, calls = trainer.optimizer.parts["tables"].step, itertools.count()
    trainer.optimizer.parts["tables"].step = lambda: step() if next(calls) != 3 else None


def double_the_rate(trainer, monkeypatch):
    trainer.optimizer.parts["tables"].param_groups[0]["lr"] *= 2


def double_the_mlps_rate(trainer, monkeypatch):
    trainer.optimizer.parts["mlps"].param_groups[0]["lr"] *= 2


def take_a_rate_off_by_two_percent(trainer, monkeypatch):
    trainer.optimizer.parts["tables"].param_groups[0]["lr"] *= 1.02


def add(trainer, monkeypatch):
    trainer.optimizer.parts["tables"].param_groups[0]["lr"] *= -1


def forget_a_table(trainer, monkeypatch):
    step, tables = trainer.step, trainer.model.sparse_arch

    def wrong(*batch):
        kept = tables.table(0).clone()
        loss = step(*batch)
        tables.table(0).copy_(kept)
        return loss

    trainer.step = wrong


def forget_the_last_id(trainer, monkeypatch):
    """Undo the update of its row in a table where few other rows of the batch name it: a thousandth of the update."""
    step, tables = trainer.step, trainer.model.sparse_arch

    def wrong(*batch):
        row = batch[2][-1, 1] + 1
        kept = tables.table(1)[row].clone()
        loss = step(*batch)
        tables.table(1)[row] = kept
        return loss

    trainer.step = wrong


def write_a_row_that_is_not_looked_up(trainer, monkeypatch):
    step, tables = trainer.step, trainer.model.sparse_arch

    def wrong(*batch):
        loss = step(*batch)
        missing = set(range(1, 5000)) - set((batch[2][:, 1] + 1).tolist())
        tables.table(1)[min(missing)] += 1e-6
        return loss

    trainer.step = wrong


def train_on_the_batch_before(trainer, monkeypatch):
    step, before = trainer.step, []

    def wrong(*batch):
        before.append(batch)
        return step(*before[max(len(before) - 2, 0)])

    trainer.step = wrong


def update_otherwise(monkeypatch, gradient_and_squares):
    """The tables' update with other gradients and squares [U, D] of the rows than their sums and the sums' squares.

    gradient_and_squares: of (place int64 [B F] of each id's row among the U, gradients [B F, D], sums [U, D])."""

    def update(rule, tables, *arguments, eps=0.0, sorted_ids=None, backend="auto", deterministic=True):
        *state, row_offsets, indices, grad, rate, offsets = arguments
        rows, sums = eager.row_gradients(tables, row_offsets, indices, grad, offsets, "sum", None, None)
        place = torch.searchsorted(rows, (indices + row_offsets[:-1]).flatten())
        step, squares = gradient_and_squares(place, grad.reshape(-1, grad.shape[2]), sums)
        for total in state:
            total[rows] += squares.mean(1) if rule is ROWWISE else squares
            root = total[rows].sqrt() + eps
            step = step / (root[:, None] if rule is ROWWISE else root)
        tables[rows] -= rate * step

    for rule in training.RULES:
        monkeypatch.setattr(kernels, f"embedding_bags_{rule}_", partial(update, rule))


def take_one_of_several_gradients(trainer, monkeypatch):
    """A row that several ids name gets the last one's gradient, not the sum."""

    def last(place, gradients, sums):
        one = sums.index_copy(0, place, gradients)
        return one, one.square()

    update_otherwise(monkeypatch, last)


def sum_the_squares_of_each_gradient(trainer, monkeypatch):
    """The state grows by the squares of a row's gradients, not by the square of their sum."""
    update_otherwise(
        monkeypatch, lambda place, gradients, sums: (sums, torch.zeros_like(sums).index_add(0, place, gradients**2))
    )


def put_eps_under_the_root(trainer, monkeypatch):
    def update(tables, state, rows, gradients, rate, rule, eps=0.0):
        squares = gradients.square()
        state[rows] += squares.mean(1) if rule == "rowwise_adagrad" else squares
        root = (state[rows] + eps).sqrt()
        tables[rows] -= rate * gradients / (root[:, None] if rule == "rowwise_adagrad" else root)
        return tables

    monkeypatch.setattr(eager, "update_", update)


def begin_the_sums_anew(trainer, monkeypatch):
    part = trainer.optimizer.parts["tables"]
    step = part.step

    def wrong():
        part.state["sum"].zero_()
        step()

    part.step = wrong


WRONG = [
    drop_the_update, drop_an_mlps_update, drop_a_later_update, double_the_rate, double_the_mlps_rate,
    take_a_rate_off_by_two_percent, add, forget_a_table, forget_the_last_id, write_a_row_that_is_not_looked_up,
    train_on_the_batch_before, take_one_of_several_gradients,
]
OF_ADAGRAD = [sum_the_squares_of_each_gradient, put_eps_under_the_root, begin_the_sums_anew]


@pytest.mark.parametrize(
    ("rule", "change"),
    [(rule, change) for rule in training.RULES for change in WRONG + (OF_ADAGRAD if rule is not SGD else [])],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_what_is_wrong_fails(rule, change, batches, monkeypatch):
    """BROKEN ON PURPOSE, each of these: the fused step, whose update a CPU does by the op's eager operations."""
    trainer = Trainer("fused", rule, SHAPE, ROWS, CPU)
    change(trainer, monkeypatch)
    assert match(trainer, rule, batches).startswith(("FAILED: step ", "FAILED: half of the steps: "))


@pytest.mark.parametrize("rule", training.RULES)
def test_the_update_that_the_wrong_ones_are_edits_of_passes(rule, batches, monkeypatch):
    trainer = Trainer("fused", rule, SHAPE, ROWS, CPU)
    update_otherwise(monkeypatch, lambda place, gradients, sums: (sums, sums.square()))
    assert match(trainer, rule, batches) == "ok"


class InTF32(torch.autograd.Function):
    """x Wᵀ of factors that are rounded to TF32, and its gradients so too: each a way that eager's are not."""

    @staticmethod
    def rounded(x):
        return (x + x.abs() * 2.0**-12).view(torch.int32).bitwise_and(~0x1FFF).view(torch.float32)

    @staticmethod
    def forward(context, x, weight):
        x, weight = InTF32.rounded(x), InTF32.rounded(weight)
        context.save_for_backward(x, weight)
        return x @ weight.T

    @staticmethod
    def backward(context, grad):
        x, weight = context.saved_tensors
        grad = InTF32.rounded(grad)
        return grad @ weight, grad.T @ x


def compute_in_tf32(trainer: Trainer) -> None:
    for module in trainer.model.modules():
        if isinstance(module, nn.Linear):
            module.forward = lambda x, own=module: InTF32.apply(x, own.weight) + own.bias


@pytest.mark.parametrize("rule", [SGD, ADAGRAD])  # eager has no other
def test_in_tf32_sums_at_relus_zero_may_be_cut_off_or_not(rule, batches, monkeypatch):
    """Other roundings show it, where eager's alone do not."""
    rows = []
    for others in (shadow.OTHERS[Precision.TF32], 0):
        monkeypatch.setitem(shadow.OTHERS, Precision.TF32, others)
        trainer = Trainer("eager sparse", rule, SHAPE, ROWS, CPU)
        compute_in_tf32(trainer)
        rows.append(judged_row(trainer, rule, batches, precision=Precision.TF32))
    beside_others, beside_eager = rows
    assert beside_others["match"] == "ok"
    assert beside_others["stray_once"] < 0.2 * MOST_STRAY[Precision.TF32]
    assert MOST_STRAY[Precision.TF32] < beside_eager["stray_once"]


IN_TF32 = [
    drop_the_update, drop_an_mlps_update, drop_a_later_update, double_the_rate, double_the_mlps_rate, add,
    forget_a_table, write_a_row_that_is_not_looked_up, train_on_the_batch_before, take_one_of_several_gradients,
]
OF_ADAGRAD_IN_TF32 = [sum_the_squares_of_each_gradient, begin_the_sums_anew]  # eps is of float32's size


@pytest.mark.parametrize(
    ("rule", "change"),
    [(rule, change) for rule in training.RULES for change in IN_TF32 + (OF_ADAGRAD_IN_TF32 if rule is not SGD else [])],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_what_is_wrong_fails_in_tf32_too(rule, change, batches, monkeypatch):
    trainer = Trainer("fused", rule, SHAPE, ROWS, CPU)
    compute_in_tf32(trainer)
    change(trainer, monkeypatch)
    assert match(trainer, rule, batches, precision=Precision.TF32).startswith("FAILED: step ")


@pytest.mark.parametrize("rule", training.RULES)
def test_the_step_that_the_wrong_ones_are_edits_of_passes_in_tf32(rule, batches, monkeypatch):
    trainer = Trainer("fused", rule, SHAPE, ROWS, CPU)
    compute_in_tf32(trainer)
    update_otherwise(monkeypatch, lambda place, gradients, sums: (sums, sums.square()))
    assert match(trainer, rule, batches, precision=Precision.TF32) == "ok"


def judged(precision, **strays) -> str:
    """The match of steps whose tensors stray so far, a value a step."""
    loss, row = torch.tensor(0.5), {}
    tensors = {"other": [0.0] * 8, shadow.ROW: [0.0] * 8, **strays}
    of_steps = [dict(zip(tensors, values, strict=True)) for values in zip(*tensors.values(), strict=True)]
    steps.judge(row, [(loss, loss, own) for own in of_steps], precision)
    return row["match"]


def test_in_tf32_a_step_of_a_tensor_may_stray_further_by_chance():
    """A unit of 16 that one row of the batch lights, in one rounding. The second such step is no chance."""
    once, none = [0, 0, 0, 0.057, 0, 0, 0, 0], [0.0] * 8
    assert judged(Precision.TF32, a=once) == "ok"
    assert judged(Precision.TF32, a=once, b=once[::-1]) == "ok"
    assert judged(Precision.FP32, a=once) == "FAILED: step 3: 0.057 of the update of a is not float64's"
    for faults, at in (({1: 0.06, 3: 0.057}, 1), ({6: 0.6}, 6), ({2: math.nan}, 2), ({4: math.inf}, 4), ({7: 1.0}, 7)):
        strays = [faults.get(index, 0.0) for index in range(8)]
        wrong = f"FAILED: step {at}: {faults[at]:.2g} of the update of a is not float64's"
        assert judged(Precision.TF32, b=none, a=strays) == wrong


def test_a_gradient_at_roundings_scale_may_have_either_sign_and_no_other_size():
    """Adagrad's first update of a weight, by a gradient of which rounding leaves not even the sign."""
    judge = Shadow(SHAPE, ADAGRAD, RATES[ADAGRAD], CPU)
    before, exact = [torch.zeros(4), torch.zeros(4)], torch.tensor([1e-3, 2e-3, -1e-3, 1e-9], dtype=torch.float64)
    rounded = exact - torch.tensor([0, 0, 0, 2e-9])
    for last, right in ((-0.01, True), (0.01, True), (0.02, False), (float("nan"), False)):
        after = [torch.tensor([-0.01, -0.01, 0.01, last]), exact.square().float()]
        assert (_share(judge._outside(before, after, exact, [rounded])) <= MOST_STRAY[Precision.FP32]).item() is right
    after[0] = torch.tensor([-0.01, 0.01, 0.01, 0.01])
    assert _share(judge._outside(before, after, exact, [rounded])) > 0.4


def test_a_square_may_be_less_than_those_of_both_ends():
    """It is the square of a gradient between two of opposite signs."""
    judge = Shadow(SHAPE, ADAGRAD, RATES[ADAGRAD], CPU)
    exact, actual = (torch.tensor(values, dtype=torch.float64) for values in ([1e-3, 1e-4], [1e-3, 1e-6]))
    before = [torch.zeros(2), torch.zeros(2)]
    after = [(-RATES[ADAGRAD] * actual / (actual.abs() + 1e-10)).float(), actual.square().float()]
    assert _share(judge._outside(before, after, exact, [exact + torch.tensor([0, 1.5e-4])])) == 0
    assert _share(judge._outside(before, after, exact, [exact + torch.tensor([0, 1e-5])])) > 0


def test_a_state_is_the_same_whatever_the_layout(batches, monkeypatch):
    monkeypatch.setattr(Compiled, "compile", lambda how, model: model)
    states = {}
    for name in ("eager sparse", "eager dense", "torch.compile, 32 look-ups a kernel, padded", "fused"):
        trainer = Trainer(name, ADAGRAD, SHAPE, ROWS, CPU)
        trainer.step(*batches[0])
        states[name] = trainer.state()
    for name, state in states.items():
        assert state.keys() == states["fused"].keys()
        assert [len(tensors) for tensors in state.values()] == [2] * len(state), name
        shapes, expected = ([t.shape for own in tensors.values() for t in own] for tensors in (state, states["fused"]))
        assert shapes == expected, name
        assert state[TABLES][0].shape == state[TABLES][1].shape == (sum(SHAPE.cardinalities) + 3, 4)
