"""model.tables and model.table_update: what a step may look up, whose gradients it has, and the optimizer's state."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import distributed, nn
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.checkpoint import checkpoint

import kernels  # noqa: F401  chooses Triton's interpreter
from model.config import TableOptimizer
from model.table_update import TableUpdate
from model.tables import BatchedTables, FusedTables, separate_tables

ROWS, WIDTH = (5, 1, 8), 4
SGD, ADAGRAD, ROWWISE = TableOptimizer.SGD, TableOptimizer.ADAGRAD, TableOptimizer.ROWWISE_ADAGRAD


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def ids_of(batch: int) -> torch.Tensor:
    return torch.stack([torch.randint(rows, (batch,)) for rows in ROWS], dim=1)


def bags_of(batch: int) -> tuple[list[torch.Tensor], torch.Tensor]:
    lengths = torch.randint(4, (len(ROWS), batch))
    rows = [torch.randint(rows, (int(length.sum()),)) for rows, length in zip(ROWS, lengths, strict=True)]
    return rows, torch.cat([torch.zeros(1, dtype=torch.long), lengths.flatten().cumsum(0)])


def numbers(batch: int) -> torch.Tensor:
    """A gradient of small integers, whose sums are exact in any order."""
    return torch.randint(-3, 4, (batch, len(ROWS), WIDTH)).float()


class Pair:
    """FusedTables and BatchedTables of the same weights, the second trained by torch.optim."""

    def __init__(self, rule: TableOptimizer):
        self.ours, self.theirs = FusedTables(ROWS, WIDTH), BatchedTables(ROWS, WIDTH)
        self.theirs.load_state_dict(self.ours.state_dict())
        self.update = TableUpdate(self.ours, rule, lr=0.25)
        kind = torch.optim.SGD if rule is SGD else torch.optim.Adagrad
        self.plain = kind(self.theirs.parameters(), lr=0.25)

    def step_as_one(self, loss) -> None:
        """A step of each on loss(tables), which calls backward itself; the rows that come out are the same."""
        before = self.ours.weight.clone()
        for tables, optimizer in ((self.ours, self.update), (self.theirs, self.plain)):
            optimizer.zero_grad()
            loss(tables)
            optimizer.step()
        assert not torch.equal(self.ours.weight, before)
        torch.testing.assert_close(self.ours.weight, self.theirs.weight.detach())


@pytest.fixture(params=[SGD, ADAGRAD], ids=str)
def pair(request):
    return Pair(request.param)


# ------------------------------------------------------------------------------------------------ several look-ups


def test_two_look_ups_of_a_step_are_updated_at_once(pair):
    """As two towers have them; Adagrad shows that the squares are those of the sum."""
    def loss(t):
        ((t(first) * ours).sum() + (t(second) * others).sum()).backward()

    for _ in range(2):
        first, second, ours, others = ids_of(6), ids_of(3), numbers(6), numbers(3)
        pair.step_as_one(loss)


def test_look_ups_of_ids_and_of_bags_in_one_step(pair):
    ids, (rows, offsets), (others, more), (none, ends) = ids_of(6), bags_of(5), bags_of(2), bags_of(0)
    of = [numbers(batch) for batch in (6, 5, 2, 0)]

    def loss(t):
        outputs = t(ids), t.pooled(rows, offsets), t.pooled(others, more), t.pooled(none, ends)
        sum((out * grad).sum() for out, grad in zip(outputs, of, strict=True)).backward()

    pair.step_as_one(loss)


def test_only_empty_batches_touch_nothing():
    pair = Pair(ADAGRAD)
    before = pair.ours.weight.clone()
    (pair.ours(ids_of(0)).sum() + pair.ours.pooled(*bags_of(0)).sum()).backward()
    pair.update.step()
    assert torch.equal(pair.ours.weight, before)


def test_gradients_accumulate_over_backwards(pair):
    parts = [(ids_of(4), numbers(4)) for _ in range(3)]

    def loss(t):
        for ids, grad in parts:
            (t(ids) * grad).sum().backward()

    pair.step_as_one(loss)


def test_a_graph_that_is_kept_is_walked_twice(pair):
    ids, grad = ids_of(4), numbers(4)

    def loss(t):
        out = (t(ids) * grad).sum()
        out.backward(retain_graph=True)
        out.backward()

    pair.step_as_one(loss)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpointed_look_up_is_updated_once(pair, reentrant):
    ids, linear = ids_of(4), nn.Linear(WIDTH, 2)
    anchor = torch.ones(1, requires_grad=True)  # without which a reentrant checkpoint has no gradient at all

    def block(anchor, t):
        return linear(t(ids)).square() * anchor

    pair.step_as_one(lambda t: checkpoint(block, anchor, t, use_reentrant=reentrant).sum().backward())


def test_look_ups_without_gradients_do_not_count(pair):
    """Between a backward and its step, of one that no backward reaches, and in evaluation."""
    ids, grad, others = ids_of(4), numbers(4), ids_of(7)

    def loss(t):
        t(others)
        (t(ids) * grad).sum().backward()
        with torch.no_grad():
            t(others)
        with torch.inference_mode():
            t(others)
        t.eval()
        t(others)
        t.train()

    pair.step_as_one(loss)
    assert not pair.ours.looked_up


def test_a_step_on_look_ups_in_eval_alone_warns():
    pair, weight = Pair(ADAGRAD), torch.ones(1, requires_grad=True)
    before = pair.ours.weight.clone()
    pair.ours.eval()
    (weight * pair.ours(ids_of(4))).sum().backward()
    with pytest.warns(UserWarning, match=r"looked up in eval\(\), so the step leaves the tables as they are"):
        pair.update.step()
    assert torch.equal(pair.ours.weight, before)
    pair.update.step()  # on nothing
    with torch.no_grad():
        pair.ours(ids_of(4))
    pair.update.step()
    pair.ours(ids_of(4))
    pair.update.zero_grad()
    pair.ours.train()
    pair.ours(ids_of(4)).sum().backward()
    pair.update.step()
    assert not torch.equal(pair.ours.weight, before)


def test_zero_grad_forgets_and_a_step_without_a_gradient_does_nothing():
    pair = Pair(ADAGRAD)
    before = pair.ours.weight.clone()
    pair.ours(ids_of(4)).sum().backward()
    pair.update.zero_grad()
    pair.update.step()
    pair.ours(ids_of(4))
    pair.update.step()  # as torch.optim's, of parameters whose grad is None
    assert torch.equal(pair.ours.weight, before)
    assert not pair.update.state["step"]


@pytest.mark.slow  # the first graph of a process; tests/test_fused_training.py compiles a model with one look-up
def test_a_compiled_model_has_several_look_ups_too():
    pair = Pair(SGD)
    first, second, grad, others = ids_of(6), ids_of(3), numbers(6), numbers(3)

    def loss(t):
        compiled = torch.compile(lambda a, b: (t(a) * grad).sum() + (t(b) * others).sum(), backend="eager")
        compiled(first, second).backward()

    pair.step_as_one(loss)
    torch._dynamo.reset()


@pytest.mark.parametrize("processes", [1, 2])
def test_several_processes_are_refused(processes):
    """Whose tables would drift apart; a look-up that is not trained on is nobody's concern."""
    tables = FusedTables(ROWS, WIDTH)
    distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=processes)
    try:
        with torch.no_grad():
            tables(ids_of(4))
        if processes == 1:
            tables(ids_of(4))
        else:
            with pytest.raises(RuntimeError, match=r"FusedTables: trains in one process, and torch\.distributed has 2"):
                tables(ids_of(4))
    finally:
        distributed.destroy_process_group()


# -------------------------------------------------------------------------------------------- the optimizer's state


def trained(pair: Pair, steps: int) -> None:
    for _ in range(steps):
        ids, grad = ids_of(6), numbers(6)
        pair.step_as_one(lambda t, ids=ids, grad=grad: (t(ids) * grad).sum().backward())


@pytest.mark.parametrize("ours_first", [True, False])
def test_torchs_optimizers_go_on_with_the_state_and_the_reverse(pair, ours_first):
    trained(pair, 3)
    fresh = Pair(pair.update.rule)
    for optimizer in (fresh.update, fresh.plain):
        optimizer.load_state_dict(deepcopy((pair.update if ours_first else pair.plain).state_dict()))
        assert optimizer.param_groups[0]["lr"] == 0.25
    fresh.ours.load_state_dict(pair.ours.state_dict())
    fresh.theirs.load_state_dict(pair.ours.state_dict())
    trained(fresh, 2)
    assert pair.update.state_dict()["param_groups"][0] == pair.plain.state_dict()["param_groups"][0]


@pytest.mark.parametrize(
    ("rule", "state", "message"),
    [
        (ADAGRAD, ROWWISE, r"sum: expected shape \[4, 4\], got \[4\]"),
        (ROWWISE, ADAGRAD, r"sum: expected shape \[4\], got \[4, 4\]"),
        (ADAGRAD, SGD, "state: expected step, sum of adagrad, got none"),
        (SGD, ADAGRAD, "state: expected none of sgd, got step, sum"),
    ],
)
def test_another_rules_state_is_refused_and_nothing_copied(rule, state, message):
    """The table has as many rows as columns, where one shape would broadcast to the other."""
    update, other = (TableUpdate(FusedTables((1, 3), 4), kind, lr=0.5) for kind in (rule, state))
    with pytest.raises(ValueError, match=message):
        update.load_state_dict(other.state_dict())
    other = TableUpdate(FusedTables((1, 4), 4), rule, lr=0.25)
    if other.state:
        other.state["step"] += 1
        with pytest.raises(ValueError, match=r"sum: expected shape \[4"):
            update.load_state_dict(other.state_dict())
        assert not update.state["step"]
    assert update.param_groups[0]["lr"] == 0.5


def test_a_groups_rate_and_eps_are_used(pair):
    trained(pair, 1)
    for optimizer in (pair.update, pair.plain):
        state = optimizer.state_dict()
        state["param_groups"][0] |= {"lr": 0.125} | ({"eps": 0.5} if pair.update.rule is ADAGRAD else {})
        optimizer.load_state_dict(state)
    trained(pair, 2)
    for optimizer in (pair.update, pair.plain):
        optimizer.param_groups[0]["lr"] = 0.0625
    trained(pair, 2)


@pytest.mark.parametrize(
    ("option", "value"), [("momentum", 0.9), ("weight_decay", 0.1), ("lr_decay", 0.1), ("maximize", True)]
)
def test_what_the_update_does_not_do_is_refused(option, value):
    update = TableUpdate(FusedTables(ROWS, WIDTH), SGD if option == "momentum" else ADAGRAD, lr=0.25)
    state = update.state_dict()
    assert not state["param_groups"][0][option]
    state["param_groups"][0][option] = value
    with pytest.raises(ValueError, match=f"{option}: the update of FusedTables has none; got {value}"):
        update.load_state_dict(state)
    update.param_groups[0][option] = value
    with pytest.raises(ValueError, match=f"{option}: the update of FusedTables has none; got {value}"):
        update.step()


@pytest.mark.parametrize("after", [False, True])
def test_ids_that_are_written_to_before_the_step_are_refused(after):
    tables = FusedTables([10, 7, 5], 4)
    update, rows = TableUpdate(tables, TableOptimizer.SGD, 0.1), torch.zeros(6, 3, dtype=torch.int64)
    out = tables(rows)
    if after:
        out.sum().backward()
    rows.fill_(1)
    if not after:
        out.sum().backward()
    before = tables.weight.clone()
    with pytest.raises(RuntimeError, match="ids or offsets were written to"):
        update.step()
    assert torch.equal(tables.weight, before)


@pytest.mark.parametrize(
    ("option", "value"), [("lr", None), ("lr", torch.ones(2)), ("lr", -1.0), ("eps", float("nan"))]
)
def test_a_rate_that_is_none_is_refused_and_nothing_copied(option, value):
    update = TableUpdate(FusedTables([10, 7, 5], 4), TableOptimizer.ADAGRAD, 0.1)
    state = deepcopy(update.state_dict())
    state["state"][0]["sum"].fill_(3.0)
    state["param_groups"][0][option] = value
    with pytest.raises(ValueError, match=f"{option}: expected a number from 0 on"):
        update.load_state_dict(state)
    assert not update.state["sum"].any()


@pytest.mark.parametrize(
    "device",
    [
        "cpu",
        "meta",
        pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")),
    ],
)
def test_every_layout_draws_the_same_weights_on_the_default_device(device):
    """A device has its own generator: drawn elsewhere, the tables of one layout, and all that is drawn after them,
    would be others than those of the next."""
    drawn = []
    for make in (separate_tables, BatchedTables, FusedTables):
        torch.manual_seed(0)
        with torch.device(device):
            tables = make(ROWS, WIDTH)
            drawn.append((torch.cat([weight.detach() for weight in tables.parameters()]), torch.rand(3)))
    for weights, following in drawn:
        assert weights.device.type == following.device.type == device
        if device != "meta":
            assert torch.equal(weights, drawn[0][0])
            assert torch.equal(following, drawn[0][1])
