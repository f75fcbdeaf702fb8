"""A training step as one CUDA graph: its order of events anywhere, its results on a GPU."""

import json
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from fake_streams import FakeGraph, install

import kernels
from data.criteo import SPARSE
from model import DLRM, Hash, Preset, fused, preset
from model import step as stepping
from model import tables as tables_module
from model.config import Kernels, Optimizer, Precision, TableOptimizer
from model.device import settings
from model.dlrm import hashing_by, modulus_rows
from model.optimizers import PackedOptimizer, make_optimizer
from model.step import WARM_UP, GraphedStep, make_step
from model.table_update import TableUpdate
from model.tables import FusedTables, LookUp, sorting_ahead, versions_of

FUSED = [TableOptimizer.SGD, TableOptimizer.ADAGRAD, TableOptimizer.ROWWISE_ADAGRAD]
on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
ROWS, STEPS = 32, 45


def batches(steps: int = STEPS):
    """Every tenth batch is a smaller one, as an epoch's last is."""
    generator = torch.Generator().manual_seed(1)
    for step in range(steps):
        rows = 24 if step % 10 == 9 else ROWS
        sparse = torch.randint(-1, 40, (rows, 4), generator=generator)
        yield (sparse[:, 0] % 2).float(), torch.randn(rows, 13, generator=generator), sparse


# The order of events, with a graph that calls again what was called while it was captured


@pytest.fixture
def fake_cuda(monkeypatch) -> list[str]:
    """torch.cuda without a GPU; the list says what was done on the captured stream."""
    monkeypatch.setattr(stepping, "pinned", lambda tensor: tensor)
    return install(monkeypatch)


def test_each_batch_is_trained_on_once_and_small_ones_uncaptured(fake_cuda):
    seen, advanced = [], []

    def work(*batch: torch.Tensor) -> torch.Tensor:
        if FakeGraph.capturing:  # nothing is computed
            FakeGraph.capturing.work = lambda: seen.append(tuple(tensor.clone() for tensor in batch))
        else:
            seen.append(batch)
        return batch[0].sum()

    step = GraphedStep(work, lambda: advanced.append(1), 4, torch.device("cpu"))
    label_batches = [torch.full((rows,), float(i)) for i, rows in enumerate((4, 4, 3, 4, 4, 4, 2, 4, 4))]
    trained = []
    for labels in label_batches:
        before = len(seen)
        step(labels, labels.unsqueeze(1), labels.long())
        trained.append([labels[0].item() for labels, _, _ in seen[before:]])
    assert trained == [[0], [1], [2], [3], [4], [5], [6], [7], [8]]
    assert WARM_UP == 3
    assert [len(batch[0]) for batch in seen] == [len(labels) for labels in label_batches]
    assert len(advanced) == len(label_batches)
    captured = fake_cuda.index("capture on side")
    uncaptured = ["side waits for current", "on side", "current waits for side"]
    assert fake_cuda[:captured] == uncaptured * 4  # three of 4 rows, and the one of 3
    assert fake_cuda[captured + 1 :] == uncaptured  # the one of 2
    assert len(step.buffers[0]) == 4


def test_a_batch_lies_in_a_warm_up_as_in_the_capture(fake_cuda, monkeypatch):
    """Where it is a part of a larger tensor on the device, too: what is compiled is not compiled anew."""
    seen = []

    def work(*batch: torch.Tensor) -> torch.Tensor:
        if FakeGraph.capturing:
            FakeGraph.capturing.work = lambda: None
        seen.append([tensor.stride() for tensor in batch])
        return batch[0].sum()

    whole, step = torch.zeros(4, 7), GraphedStep(work, lambda: None, 4, torch.device("cpu"))
    for _ in range(WARM_UP + 1):
        step(whole[:, 0], whole[:, 1:4], whole.t().reshape(7, 4).t()[:, 4:])
    assert seen == [[(1,), (3, 1), (3, 1)]] * (WARM_UP + 1)


def test_a_batch_that_is_not_full_on_all_ranks_runs_uncaptured(fake_cuda, monkeypatch):
    """However many rows of it are here."""
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: fake_cuda.append("synchronize"))
    seen, full = [], iter((True, True, False, True, True, False, True))

    def work(*batch: torch.Tensor) -> torch.Tensor:
        if FakeGraph.capturing:
            FakeGraph.capturing.work = lambda: seen.append("replay")
        else:
            seen.append("uncaptured")
        return batch[0].sum()

    step = GraphedStep(work, lambda: None, 4, torch.device("cpu"), is_full=lambda: next(full), mode="thread_local")
    step.close()  # before there is a graph
    for _ in range(7):
        step(torch.ones(4), torch.ones(4, 1), torch.ones(4).long())
    assert seen == ["uncaptured"] * 4 + ["replay", "uncaptured", "replay"]
    step.close()
    assert step.graph is None
    assert fake_cuda[-1] == "synchronize"


def test_what_a_replay_writes_has_a_new_version(fake_cuda):
    weight = torch.zeros(3, requires_grad=True)

    def work(*batch: torch.Tensor) -> torch.Tensor:
        if FakeGraph.capturing:
            FakeGraph.capturing.work = lambda: weight.data.add_(1)  # as a kernel does, which torch does not see
        return batch[0].sum()

    step = GraphedStep(work, lambda: None, 4, torch.device("cpu"), (weight,))
    versions = []
    for _ in range(6):
        step(torch.ones(4), torch.ones(4, 1), torch.ones(4).long())
        versions.append(weight._version)
    assert versions == [0, 0, 0, 1, 2, 3]


# On a GPU


def trained(
    rule, optimizer=Optimizer.SGD, graph=True, warmup_steps=0, hash=Hash.MODULUS, forward=lambda model: model,
    precision=Precision.FP32,
):
    """(losses of STEPS steps, model, optimizers, step)"""
    shape = replace(preset("mini").model, cardinalities=(10, 20, 30), hash=hash, kernels=Kernels.FUSED)
    settings = replace(
        preset("mini").train, optimizer=optimizer, table_optimizer=rule, warmup_steps=warmup_steps,
        learning_rate=1e-2, table_learning_rate=0.1, precision=precision,
    )
    device = torch.device("cuda")
    torch.manual_seed(0)
    vocabularies = [torch.arange(n) for n in shape.cardinalities]
    model = DLRM(shape, vocabularies).to(device)
    optimizers = make_optimizer(model, Preset(shape, settings), capturable=graph)
    step = make_step(forward(model), optimizers, ROWS, device, precision, cuda_graph=graph)
    losses = [step(*batch).clone() for batch in batches()]
    kernels.check_ids()
    return torch.stack(losses).cpu(), model, optimizers, step


def assert_same_training(ours, theirs) -> None:
    torch.testing.assert_close(ours[0], theirs[0], rtol=0, atol=1e-4)
    torch.testing.assert_close(dict(ours[1].state_dict()), dict(theirs[1].state_dict()), rtol=1e-3, atol=1e-4)
    states = [trained[2].state_dict() for trained in (ours, theirs)]
    assert states[0]["steps"] == states[1]["steps"]
    for part in ("mlps", "tables"):
        assert states[0][part]["param_groups"][0]["lr"] == states[1][part]["param_groups"][0]["lr"]
        for index, state in states[0][part]["state"].items():
            for name, value in state.items():
                expected = states[1][part]["state"][index][name]
                torch.testing.assert_close(value.cpu(), expected.cpu(), rtol=1e-3, atol=1e-4)


@pytest.fixture
def capturing(fake_cuda, monkeypatch) -> list[str]:
    """fake_cuda, where a capture is always on, and tables of a CPU sort as those of a GPU."""
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    monkeypatch.setattr(tables_module, "beside", lambda *_: "eager")
    return fake_cuda


BRANCH = ["event on current", "side waits for the event", "on side"]
JOINED = "current waits for side"


@pytest.mark.parametrize("look_ups", [1, 2])
def test_ids_sorted_on_a_branch_are_waited_for_and_taken(capturing, monkeypatch, look_ups):
    """On a CPU, with the branch begun by hand; two look-ups are joined, and sorted anew."""
    weights, taken = [], []
    update_rows = kernels.embedding_bags_adagrad_

    def noted(*arguments, **named):
        taken.append(named["sorted_ids"])
        return update_rows(*arguments, **named)

    monkeypatch.setattr(kernels, "embedding_bags_adagrad_", noted)
    for ahead in (False, True):
        torch.manual_seed(0)
        tables = FusedTables([5, 7], 4)
        update = TableUpdate(tables, TableOptimizer.ADAGRAD, 0.1)
        for _ in range(look_ups):
            rows = torch.randint(5, (6, 2))
            gradient, sorted_ids = torch.randn(6, 2, 4), tables._sort_ahead(rows, None) if ahead else None
            tables.looked_up.append(LookUp(rows, None, gradient, versions_of(rows, None), sorted_ids))
        update.step()
        assert not tables.branches
        weights.append(tables.weight)
    assert torch.equal(*weights)
    assert taken == [None, sorted_ids if look_ups == 1 else None]
    assert capturing == [*BRANCH * look_ups, *[JOINED] * look_ups]


def test_an_update_in_any_order_has_nothing_sorted():
    tables = FusedTables([5, 7], 4)
    model = torch.nn.ModuleDict({"tables": tables})
    TableUpdate(tables, TableOptimizer.SGD, 0.1, deterministic=False)
    with sorting_ahead(model):
        assert not tables.sorts_ahead
    with pytest.raises(ValueError, match="deterministic: expected True of adagrad, got False"):
        TableUpdate(tables, TableOptimizer.ADAGRAD, 0.1, deterministic=False)


@pytest.mark.parametrize("end", ["zero_grad", "nothing", "an error"])
def test_a_branch_is_joined_however_a_step_ends(capturing, end):
    tables = FusedTables([5, 7], 4)
    update, model = TableUpdate(tables, TableOptimizer.SGD, 0.1), torch.nn.ModuleDict({"tables": tables})
    with suppress(KeyError), sorting_ahead(model):
        assert tables.sorts_ahead
        tables._sort_ahead(torch.randint(5, (6, 2)), None)
        if end == "zero_grad":
            update.zero_grad()
            assert capturing == [*BRANCH, JOINED]
        elif end == "an error":
            raise KeyError
    assert not tables.sorts_ahead
    assert capturing == [*BRANCH, JOINED]


def test_a_capture_that_failed_leaves_nothing_to_the_next(capturing, monkeypatch):
    """A stream outside of it cannot be waited for in a capture, so a branch that stayed would have each one fail."""

    def fails(*_):
        raise RuntimeError("operation failed due to a previous error during capture")

    model = torch.nn.ModuleList([FusedTables([5, 7], 4) for _ in range(2)])

    def step():
        with sorting_ahead(model, updates_beside=True):
            for one in model[0], model[0], model[1]:
                one._sort_ahead(torch.randint(5, (6, 2)), None)

    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda.Stream, "wait_stream", fails)
        with pytest.raises(RuntimeError, match="a previous error"):
            step()
    assert not any(one.sorts_ahead or one.updates_beside for one in model)
    capturing.clear()
    with sorting_ahead(model):
        pass
    assert capturing == []


@pytest.mark.parametrize("look_ups", [1, 2])
@pytest.mark.parametrize("rule", FUSED)
def test_an_update_beside_waits_for_the_last_gradient_alone(capturing, monkeypatch, rule, look_ups):
    """And is waited for at the end of the step, until when nobody else has the memory of what it reads."""
    weights = []
    for beside in (False, True):
        torch.manual_seed(0)
        capturing.clear()
        tables, kept = FusedTables([5, 7], 4), []
        update, model = TableUpdate(tables, rule, 0.1), torch.nn.ModuleDict({"tables": tables})
        with sorting_ahead(model, updates_beside=beside):
            found = [tables(torch.randint(5, (6, 2))) for _ in range(look_ups)]
            sum((one * torch.randn(6, 2, 4)).sum() for one in found).backward()
            kept = list(tables.looked_up)
            if beside:
                capturing.append("what follows the backward")
                update.step()
                ((stream, of_update),) = tables.branches._open
                assert (stream.name, of_update) == ("side", kept)
            else:
                update.step()
        assert (len(tables.branches), tables.gradient_event, tables.updates_beside) == (0, None, False)
        weights.append(tables.weight)
    assert torch.equal(*weights)
    assert capturing == [
        *["event on current"] * look_ups, "what follows the backward", "side waits for the event", "on side", JOINED
    ]


def test_an_update_that_is_refused_leaves_no_branch(capturing):
    tables = FusedTables([5, 7], 4)
    model = torch.nn.ModuleDict({"tables": tables})
    update = TableUpdate(tables, TableOptimizer.SGD, 0.1, backend="fpga")
    with sorting_ahead(model, updates_beside=True):
        tables(torch.randint(5, (6, 2))).sum().backward()
        with pytest.raises(ValueError, match="fpga"):
            update.step()
    assert capturing[-1] == JOINED
    assert not tables.branches


def test_uncaptured_ids_are_sorted_without_a_branch(fake_cuda, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(tables_module, "beside", lambda *_: "eager")
    FusedTables([5, 7], 4)._sort_ahead(torch.randint(5, (6, 2)), None)
    assert fake_cuda == []


@pytest.mark.parametrize("missing", ["", "a compiler"])
def test_a_captured_step_sorts_ahead_and_has_a_full_batch_compiled(fake_cuda, monkeypatch, missing):
    """Loss and hash by rows, and whether the tables sort, and are updated beside what follows, within the work."""
    shape, seen = replace(preset("mini").model, kernels=Kernels.FUSED), []
    model = DLRM(shape)
    monkeypatch.setattr(stepping, "why_not_compiled", lambda: missing)
    monkeypatch.setattr(torch, "compile", lambda function: f"compiled {function.__name__}")

    def work(*batch, of_loss):
        tables = model.sparse_arch.tables
        how = tables.sorts_ahead, tables.updates_beside
        seen.append((len(batch[2]), of_loss, model.sparse_arch.modulus_rows, *how))

    monkeypatch.setattr(stepping, "on_the_device", work)
    step = make_step(model, make_optimizer(model, Preset(shape)), ROWS, torch.device("cpu"), cuda_graph=True)
    for rows in (ROWS, 5):
        step.work(torch.zeros(rows), torch.zeros(rows, 13), torch.zeros(rows, 4))
    eager = stepping.loss_and_gradient, modulus_rows
    compiled = eager if missing else ("compiled loss_and_gradient", "compiled modulus_rows")
    assert seen == [(ROWS, *compiled, True, True), (5, *eager, True, True)]
    assert not model.sparse_arch.tables.sorts_ahead
    with pytest.raises(ZeroDivisionError), hashing_by(model, len):
        raise ZeroDivisionError
    assert "modulus_rows" not in vars(model.sparse_arch)  # what is copied or stored has no function of a step's


@on_gpu
@pytest.mark.parametrize("warmup_steps", [0, 30])
@pytest.mark.parametrize("optimizer", list(Optimizer))
@pytest.mark.parametrize("rule", FUSED)
def test_replays_are_the_uncaptured_steps(rule, optimizer, warmup_steps):
    """With a warm-up too: 45 steps, of which the first 30 have a rate each, most of them replays."""
    ours = trained(rule, optimizer, warmup_steps=warmup_steps)
    assert_same_training(ours, trained(rule, optimizer, graph=False, warmup_steps=warmup_steps))
    assert ours[3].graph is not None
    if warmup_steps:
        constant = trained(rule, optimizer)
        assert (constant[0] - ours[0]).abs().max() > 1e-3  # or a graph that kept its first rate would pass


@on_gpu
@pytest.mark.parametrize("precision", [Precision.TF32, Precision.BF16])
@pytest.mark.parametrize("optimizer", list(Optimizer))
def test_replays_train_mlps_of_one_tensor_each(monkeypatch, optimizer, precision):
    """As uncaptured steps do; and uncaptured ones as those that train each parameter, to the bit."""
    with settings(torch.get_num_threads(), precision):
        ours = trained(FUSED[0], optimizer, precision=precision)
        assert isinstance(ours[2].parts["mlps"], PackedOptimizer)
        uncaptured = trained(FUSED[0], optimizer, graph=False, precision=precision)
        assert_same_training(ours, uncaptured)
        monkeypatch.setattr(fused, "pack", lambda *_: [])
        unpacked = trained(FUSED[0], optimizer, graph=False, precision=precision)
    torch.testing.assert_close(uncaptured[0], unpacked[0], rtol=0, atol=0)
    torch.testing.assert_close(dict(uncaptured[1].state_dict()), dict(unpacked[1].state_dict()), rtol=0, atol=0)


@on_gpu
@pytest.mark.parametrize("optimizer", list(Optimizer))
def test_full_float32_trains_one_tensor_an_mlp_where_the_host_launches_it(optimizer):
    ours, uncaptured = (trained(FUSED[0], optimizer, graph=graph) for graph in (True, False))
    assert not isinstance(ours[2].parts["mlps"], PackedOptimizer)
    assert isinstance(uncaptured[2].parts["mlps"], PackedOptimizer)
    assert_same_training(ours, uncaptured)


@on_gpu
@pytest.mark.parametrize("hash", [Hash.INDEX, Hash.SORTED])
def test_other_hashes_are_captured_too(hash):
    assert_same_training(trained(FUSED[1], hash=hash), trained(FUSED[1], hash=hash, graph=False))


@on_gpu
@pytest.mark.parametrize("rule", FUSED)
def test_look_ups_within_the_interaction_are_captured_too(monkeypatch, rule):
    """And train as uncaptured ones do whose vectors are in memory."""
    theirs = trained(rule, graph=False)
    monkeypatch.setattr(fused.FusedInteractionArch, "backend", "cuda")
    assert_same_training(trained(rule), theirs)


@on_gpu
def test_two_captured_runs_have_the_same_bits():
    ours, again = (trained(FUSED[1], Optimizer.ADAGRAD) for _ in range(2))
    torch.testing.assert_close(ours[0], again[0], rtol=0, atol=0)
    torch.testing.assert_close(dict(ours[1].state_dict()), dict(again[1].state_dict()), rtol=0, atol=0)


@on_gpu
@pytest.mark.parametrize("rule", FUSED)
def test_an_update_of_tables_beside_has_the_same_bits(monkeypatch, rule):
    beside = trained(rule)
    monkeypatch.setattr(stepping, "sorting_ahead", lambda model, **_: sorting_ahead(model))
    behind = trained(rule)
    torch.testing.assert_close(beside[0], behind[0], rtol=0, atol=0)
    torch.testing.assert_close(dict(beside[1].state_dict()), dict(behind[1].state_dict()), rtol=0, atol=0)


@on_gpu
def test_a_compiled_model_is_captured_too():
    torch._dynamo.reset()
    compiled = trained(FUSED[1], Optimizer.ADAGRAD, forward=torch.compile)
    assert_same_training(compiled, trained(FUSED[1], Optimizer.ADAGRAD, graph=False))


@on_gpu
def test_a_replay_does_not_wait_for_the_gpu():
    _, _, _, step = trained(FUSED[1])
    (batch,) = batches(1)
    losses = torch.zeros(5, device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        for index in range(5):
            losses[index] = step(*batch)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert losses.isfinite().all()


@on_gpu
def test_the_host_calls_the_optimizer_only_uncaptured(monkeypatch):
    calls = []
    plain = stepping.Optimizers.step
    monkeypatch.setattr(stepping.Optimizers, "step", lambda self: calls.append(1) or plain(self))
    trained(FUSED[0])
    assert len(calls) == WARM_UP + 1 + STEPS // 10  # the capture, and the small batches


@on_gpu
def test_a_bad_row_in_a_replay_is_named_when_the_loss_is_read():
    _, model, _, step = trained(FUSED[1])
    tables = model.sparse_arch.tables
    row_offsets = tables.row_offsets.clone()
    tables.row_offsets[2] -= 3  # the second table has three rows fewer than its hash gives
    (batch,) = batches(1)
    batch[2][7, 1] = 18  # row 19
    loss = step(*batch)
    assert loss.isfinite()  # waits for the device
    with pytest.raises(IndexError, match=r"id \d+ of feature 1, at position \d+ of indices, is out of range"):
        kernels.check_ids()
    tables.row_offsets.copy_(row_offsets)
    step(*batch)
    torch.cuda.synchronize()
    kernels.check_ids()


@on_gpu
@pytest.mark.parametrize("rule", FUSED)
def test_training_with_a_graph(tmp_path, monkeypatch, rule):
    """model.train: evaluations and checkpoints between replays change nothing, and a run is gone on with."""
    pytest.importorskip("loguru")
    from train_runs import interrupt, mini, run, table

    from model.interrupts import Interrupted

    data = tmp_path / "data"
    for seed, (split, rows) in enumerate({"train": 600, "validation": 50, "test": 50}.items()):
        (data / split).mkdir(parents=True)
        pq.write_table(table(rows, seed), data / split / "part.parquet")
    (data / "metadata.json").write_text(json.dumps({name: {"cardinality": 40} for name in SPARSE}))
    config = mini(Hash.MODULUS, Kernels.FUSED, table_optimizer=rule, warmup_steps=30)
    expected = run(tmp_path / "uncaptured", data, config, "cuda")
    whole = run(tmp_path / "whole", data, config, "cuda", cuda_graph=True)
    np.testing.assert_allclose(whole.losses, expected.losses, rtol=0, atol=1e-4)
    often = replace(config, train=replace(config.train, checkpoint_every=5, eval_every=3))
    result = run(tmp_path / "often", data, often, "cuda", cuda_graph=True)
    np.testing.assert_array_equal(result.losses, whole.losses)
    for begins, ends in ((True, True), (False, True), (True, False)):
        folder = tmp_path / f"{begins}-{ends}"
        with monkeypatch.context() as patch:
            interrupt(patch, *((GraphedStep, "__call__") if begins else (stepping, "train_step")), 26)
            with pytest.raises(Interrupted):
                run(folder, data, config, "cuda", cuda_graph=begins)
        result = run(folder, data, config, "cuda", cuda_graph=ends, resume=True)
        np.testing.assert_allclose(result.losses, expected.losses, rtol=0, atol=1e-4)


@on_gpu
def test_peak_memory_is_tables_and_state():
    """No gradient of a table: beyond tables and state a step takes what its batch takes.

    And cuBLAS' workspace, 32 MiB a stream on a Hopper GPU: the tables are 16 times the two that a captured step has.
    """
    shape = replace(preset("small").model, cardinalities=(4_000_000,) * 4, kernels=Kernels.FUSED)
    model = DLRM(shape).cuda()
    optimizers = make_optimizer(model, Preset(shape), capturable=True)
    held = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step = make_step(model, optimizers, ROWS, torch.device("cuda"), cuda_graph=True)
    for batch in batches(8):
        step(*batch)
    torch.cuda.synchronize()
    table_bytes = model.sparse_arch.tables.weight.nbytes
    assert held >= 2 * table_bytes
    assert torch.cuda.max_memory_allocated() - held < 0.2 * table_bytes
