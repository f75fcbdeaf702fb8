"""A DLRM with fused kernels whose interaction looks the tables up itself, beside one that has the vectors in memory.

Without a GPU the kernel is its host build; tf32 is then a name that the kernel is told.
"""

from __future__ import annotations

import io
import shutil
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from math import inf, nan

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import kernels
from kernels import runtime
from kernels.dispatch import allocation
from kernels.dispatch.core import on_host
from kernels.ops.embedding_bags.choice import cuda_runs
from kernels.ops.fused_mlp import module
from kernels.ops.lookup_interact import choice
from model import DLRM, Interaction, Preset, fused, preset
from model.bench import step_memory, trainer
from model.config import Hash, Kernels, Optimizer, Precision, TableOptimizer
from model.lora import apply_lora
from model.optimizers import make_optimizer
from model.step import train_step
from model.table_update import TableUpdate
from model.tables import FusedTables

DEVICE = runtime.device()
pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.skipif(DEVICE.type == "cpu" and shutil.which("g++") is None, reason="g++ is missing"),
]
F_, D = 4, 16
CONFIG = replace(
    preset("mini").model, kernels=Kernels.FUSED, bottom=(13, D), embedding_dim=D, top=(8, 1),
    cardinalities=(10, 3, 7, 30),
)
SGD, ADAGRAD = TableOptimizer.SGD, TableOptimizer.ADAGRAD
IN_ONE, IN_TWO = "cuda", "auto"  # backends of the interaction: here "auto" has too few rows


@pytest.fixture(autouse=True)
def kernels_on_host():
    with nullcontext() if DEVICE.type == "cuda" else on_host():
        yield


def made(backend: str, **changes) -> DLRM:
    torch.manual_seed(0)
    model = DLRM(replace(CONFIG, **changes)).to(DEVICE)
    model.interaction_arch.backend = backend
    return model


def batch(rows: int, bags: bool = False, seed: int = 1) -> list[torch.Tensor]:
    """labels, dense, ids, and of bags offsets."""
    torch.manual_seed(seed)
    labels, dense = torch.randint(2, (rows,)).float(), torch.randn(rows, 13)
    ids = torch.randint(-1, 40, (rows, F_))
    if not bags:
        return [tensor.to(DEVICE) for tensor in (labels, dense, ids)]
    lengths = torch.cat([torch.zeros(1, dtype=torch.long), torch.randint(4, (F_ * rows,))])
    ids = torch.randint(-1, 40, (int(lengths.sum()),))
    return [tensor.to(DEVICE) for tensor in (labels, dense, ids, lengths.cumsum(0))]


class Seen(TorchDispatchMode):
    """ops: of ours. bytes: of each memory that an operator gave a tensor in, by its address."""

    def __init__(self):
        super().__init__()
        self.ops, self.bytes, self.kept = set(), {}, []

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        out = function(*arguments, **(options or {}))
        self.ops |= {function.name().split("::")[1].split(".")[0]} if "fused_kernels" in str(function) else set()
        for value in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(value, torch.Tensor):
                self.note(value)
        return out

    def note(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        self.bytes[storage.data_ptr()] = storage.nbytes()
        self.kept.append(storage)  # or its address is given out again


# How far off: float32 sums of another order; 10 bits behind the leading one of each factor; 8 of what a layer gives.
CLOSE = {
    Precision.FP32: {"rtol": 1e-4, "atol": 1e-6}, Precision.TF32: {"rtol": 1e-2, "atol": 1e-3},
    Precision.BF16: {"rtol": 2e-2, "atol": 1e-2},
}  # fmt: skip


def steps(backend: str, precision: Precision, rule: TableOptimizer, bags: bool, **changes) -> tuple[list, set[str]]:
    """(losses, parameters and the tables' state after some steps, our ops in them)."""
    rates = {"table_optimizer": rule, "table_learning_rate": 0.1, "optimizer": Optimizer.SGD}
    settings = replace(preset("mini").train, precision=precision, **rates)
    model = made(backend, **changes)
    optimizer = make_optimizer(model, Preset(model.config, settings))
    if rule is ADAGRAD:  # by default the sign of a gradient counts, however small that is
        optimizer.parts["tables"].param_groups[0]["eps"] = 0.1
    with Seen() as seen:
        losses = [
            train_step(model, optimizer, *inputs[:3], precision, *inputs[3:])
            for inputs in (batch(rows, bags, seed) for seed, rows in enumerate((33, 1, 0, 9)))
        ]
    return [torch.stack(losses), model.state_dict(), optimizer.parts["tables"].state_dict()["state"]], seen.ops


@pytest.mark.parametrize("bags", [False, True])
@pytest.mark.parametrize("rule", [SGD, ADAGRAD])
@pytest.mark.parametrize("precision", list(Precision))
def test_steps_are_those_of_vectors_in_memory(monkeypatch, precision, rule, bags):
    monkeypatch.setattr(module, "_has_tf32", lambda x: True)
    monkeypatch.setattr(module.choice, "float32_products", lambda: "tf32" if precision is Precision.TF32 else "ieee")
    results, ops = zip(*(steps(backend, precision, rule, bags) for backend in (IN_TWO, IN_ONE)), strict=True)
    torch.testing.assert_close(results[1], results[0], **CLOSE[precision], equal_nan=True)  # of no rows
    assert {"lookup_interact", "lookup_interact_gradients"} <= ops[1]
    assert not {"embedding_bags", "dot_interaction"} & ops[1]
    assert not {"lookup_interact", "lookup_interact_gradients"} & ops[0]


@pytest.mark.parametrize("bags", [False, True])
@pytest.mark.parametrize("precision", [Precision.FP32, Precision.BF16])
@pytest.mark.parametrize("interaction", [Interaction.FM, Interaction.CAT, Interaction.OUTER])
def test_other_interactions_look_up_too(interaction, precision, bags):
    """Where they are asked to."""
    ways = [steps(way, precision, SGD, bags, interaction=interaction) for way in (IN_TWO, IN_ONE)]
    results, ops = zip(*ways, strict=True)
    torch.testing.assert_close(results[1], results[0], **CLOSE[precision], equal_nan=True)
    assert {"lookup_interact", "lookup_interact_gradients"} <= ops[1]
    assert "embedding_bags" not in ops[1]
    assert not {"lookup_interact", "lookup_interact_gradients"} & ops[0]
    eager = made("eager", interaction=interaction, kernels=Kernels.EAGER)
    ours = made(IN_ONE, interaction=interaction)
    _, *inputs = batch(50, bags)
    assert fused.looks_up(ours, inputs[0], bags)
    torch.testing.assert_close(ours(*inputs), eager(*inputs), **CLOSE[Precision.FP32])


@pytest.mark.parametrize("interaction", [Interaction.FM, Interaction.CAT, Interaction.OUTER])
def test_other_interactions_go_by_what_was_measured(monkeypatch, interaction):
    monkeypatch.setattr(fused.FusedInteractionArch, "fuses", lambda self, x: True)  # as on a GPU
    model, dense = made("auto", interaction=interaction), torch.empty(1 << 16, D, device=DEVICE)
    choice.measured_least.cache_clear()
    assert fused.looks_up(model, dense[:2048], bags=False)  # in full float32, too: model/README.md
    for is_faster in (False, True):
        of = {(kind, True): {D: {2048: ((2.0, 1.0),)}} for kind in ("fm", "flat")} if is_faster else {}
        monkeypatch.setattr(choice, "MEASURED_BY_COLUMNS", of)
        choice.measured_least.cache_clear()
        assert fused.looks_up(model, dense, bags=False) is is_faster
        assert not fused.looks_up(model, dense[:2047], bags=False)
        assert not fused.looks_up(model, dense, bags=True)
    choice.measured_least.cache_clear()


def test_halves():
    """A model whose tables are halves too is no farther from float64 than one with the vectors in memory."""
    results = []
    for backend, dtype in (("eager", torch.float64), (IN_TWO, torch.bfloat16), (IN_ONE, torch.bfloat16)):
        model = made(backend).bfloat16().to(dtype)
        _, dense, ids = batch(99)
        out = model(dense.bfloat16().to(dtype), ids)
        out.square().sum().backward()
        (one,) = model.sparse_arch.tables.looked_up
        results.append([tensor.double() for tensor in (out, one.gradient, model.dense_arch.mlp[0].weight.grad)])
    for exact, theirs, ours in zip(*results, strict=True):
        assert 0 < (ours - exact).norm() <= 1.5 * (theirs - exact).norm()


@pytest.mark.parametrize("bags", [False, True])
def test_the_vectors_are_never_in_memory_and_their_gradient_is_once(bags):
    rows = 100
    vectors, largest = rows * F_ * D * 4, {}
    for backend in (IN_TWO, IN_ONE):
        model, (labels, *inputs) = made(backend, hash=Hash.MODULUS), batch(rows, bags)

        def allocate(size, dtype, device):
            seen.note(tensor := torch.empty(size, dtype=dtype, device=device))
            return tensor

        with Seen() as seen, allocation.replaced(allocate):
            loss = F.binary_cross_entropy_with_logits(model(*inputs), labels)
            forward = [size for size in seen.bytes.values() if size >= vectors]
            loss.backward()
            both = [size for size in seen.bytes.values() if size >= vectors]
        largest[backend] = len(forward), len(both)
        (one,) = model.sparse_arch.tables.looked_up
        assert one.gradient.shape == (rows, F_, D)
        assert one.gradient.untyped_storage().nbytes() == vectors
    assert largest[IN_ONE] == (0, 1)
    assert min(largest[IN_TWO]) >= 1
    assert largest[IN_TWO][1] >= 2


# Where it is so


@pytest.mark.parametrize(
    "changed",
    ["nothing", "triton", "eager", "hook of tables", "hook of an arch", "own class", "float64", "wide", "lora",
     "eager model", "out of range"],
)  # fmt: skip
def test_what_goes_another_way(changed):
    changes = {"eager model": {"kernels": Kernels.EAGER},
               "wide": {"bottom": (13, 256), "embedding_dim": 256}}.get(changed, {})  # fmt: skip
    model = made(changed if changed in ("triton", "eager") else IN_ONE, **changes)
    _, *inputs = batch(3)
    if changed == "hook of tables":
        model.sparse_arch.tables.register_forward_hook(lambda *_: None)
    if changed == "hook of an arch":
        model.interaction_arch.register_forward_hook(lambda *_: None)
    if changed == "own class":
        model.interaction_arch.__class__ = type("Own", (type(model.interaction_arch),), {})
    if changed == "float64":
        model.double()
        inputs[0] = inputs[0].double()
    if changed == "lora":
        apply_lora(model, 2, 4.0)
    if changed == "out of range":
        model.sparse_arch.tables.out_of_range = "zero"
    assert fused.looks_up(model, inputs[0], False) is (changed in ("nothing", "lora"))
    with Seen() as seen:
        model(*inputs)
    assert ("lookup_interact" in seen.ops) is (changed in ("nothing", "lora"))


@pytest.mark.parametrize(
    ("rows", "precision", "bags", "gradients", "expected"),
    [(65536, "tf32", False, True, True), (65536, "ieee", False, True, False), (65536, "ieee", False, False, True),
     (2048, "tf32", False, True, True), (2047, "tf32", False, True, False), (65536, "bf16", False, True, True),
     (65536, "tf32", True, True, False), (65536, "tf32", True, False, True)],
)  # fmt: skip
def test_by_itself_it_is_so_where_it_is_faster(monkeypatch, rows, precision, bags, gradients, expected):
    monkeypatch.setattr(module, "_has_tf32", lambda x: True)
    monkeypatch.setattr(module.choice, "float32_products", lambda: "tf32" if precision == "tf32" else "ieee")
    monkeypatch.setattr(fused.Fused, "fuses", lambda self, x: True)  # as a GPU's
    model, dense = made("auto"), torch.empty(1, 13, device=DEVICE).expand(rows, 13)
    autocast = torch.autocast(DEVICE.type, torch.bfloat16, enabled=precision == "bf16")
    with autocast, torch.set_grad_enabled(gradients):
        assert fused.looks_up(model, dense, bags) is expected


# What a step of FusedTables promises


def interacted(tables: FusedTables, dense: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    return tables.interact(dense, rows, None, 8, "ieee", IN_ONE)


@pytest.fixture
def tables():
    torch.manual_seed(0)
    return FusedTables([11, 4, 8, 31], D).to(DEVICE)


@pytest.fixture
def look_up():
    torch.manual_seed(1)
    dense = torch.randn(6, D, device=DEVICE, requires_grad=True)
    return dense, torch.stack([torch.randint(rows, (6,)) for rows in (11, 4, 8, 31)], 1).to(DEVICE)


def test_a_bad_id_is_told_as_ever(tables, look_up):
    dense, rows = look_up
    rows[2, 1] = 4
    messages = []

    def told(look, *arguments):
        look(*arguments)
        kernels.check_ids(DEVICE, wait=True)

    for look in ((tables, rows), (interacted, tables, dense, rows)):
        with pytest.raises(IndexError) as error:
            told(*look)
        messages.append(str(error.value))
    assert messages[0] == messages[1]
    assert "4" in messages[0]


def test_every_backward_counts_and_what_none_reaches_does_not(tables, look_up):
    out = interacted(tables, *look_up).square().sum()
    torch.autograd.grad(out, look_up[0], retain_graph=True)
    with torch.no_grad():
        interacted(tables, *look_up)
    assert not tables.looked_up
    out.backward(retain_graph=True)
    out.backward()
    first, second = tables.looked_up
    assert torch.equal(first.gradient, second.gradient)
    vectors = tables.weight[look_up[1] + tables.starts].requires_grad_()
    both = torch.cat([look_up[0].detach().unsqueeze(1), vectors], 1)
    i, j = torch.tril_indices(F_ + 1, F_ + 1, -1)
    (both @ both.mT)[:, i, j].square().sum().backward()
    torch.testing.assert_close(first.gradient, vectors.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpointed_look_up_is_updated_once(tables, look_up, reentrant):
    dense, rows = look_up
    checkpoint(lambda dense: interacted(tables, dense, rows), dense, use_reentrant=reentrant).sum().backward()
    assert len(tables.looked_up) == 1


def test_in_eval_a_step_warns(tables, look_up):
    tables.eval()
    interacted(tables, *look_up).sum().backward()
    assert look_up[0].grad.abs().sum() > 0
    with pytest.warns(UserWarning, match=r"looked up in eval\(\)"):
        TableUpdate(tables, SGD, 0.1).step()


@pytest.mark.parametrize("written", ["ids", "weight"])
def test_what_is_written_to_before_the_backward_is_refused(tables, look_up, written):
    out = interacted(tables, *look_up).sum()
    with torch.no_grad():
        {"ids": look_up[1], "weight": tables.weight}[written].zero_()
    with pytest.raises(RuntimeError, match="tables, ids or offsets were written to between their look-up and"):
        out.backward()
    assert not tables.looked_up


def test_a_hook_of_saved_tensors_sees_no_tables(tables, look_up):
    """save_on_cpu would copy them all."""
    seen = []
    with torch.autograd.graph.saved_tensors_hooks(lambda one: seen.append(one) or one, lambda one: one):
        interacted(tables, *look_up).sum().backward()
    assert [one.shape for one in seen] == [look_up[0].shape]


@pytest.mark.parametrize("is_in_one", [False, True])
def test_tables_that_are_to_have_a_gradient_are_refused(tables, look_up, is_in_one):
    """As by model.requires_grad_(): none would come."""
    tables.requires_grad_()
    with pytest.raises(RuntimeError, match=r"weight requires a gradient, .* weight.requires_grad_\(False\)"):
        interacted(tables, *look_up) if is_in_one else tables(look_up[1])


def test_ids_that_were_made_in_inference_mode_and_a_dense_vector_without_a_gradient(tables, look_up):
    with torch.inference_mode():
        rows = look_up[1] * 1
    interacted(tables, look_up[0].detach(), rows).sum().backward()
    assert len(tables.looked_up) == 1


# Compiled and exported


def test_a_compiled_step():
    torch._dynamo.reset()
    settings, results = replace(preset("mini").train, optimizer=Optimizer.SGD), []
    for is_compiled in (False, True):
        model = made(IN_ONE)
        optimizer = make_optimizer(model, Preset(model.config, settings))
        step = torch.compile(model, backend="aot_eager") if is_compiled else model
        losses = [train_step(step, optimizer, *batch(5, seed=seed)) for seed in range(2)]
        results.append([torch.stack(losses), model.state_dict()])
    torch.testing.assert_close(*results)
    torch._dynamo.reset()


def test_compiled_in_one_graph_and_exported():
    model = made(IN_ONE).eval()
    _, *inputs = batch(4)
    any_rows = {0: torch.export.Dim("rows", min=1, max=1 << 20)}
    with torch.no_grad():
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        program = torch.export.export(model, tuple(inputs), dynamic_shapes=(any_rows, any_rows))
        ops = {str(node.target) for node in program.graph.nodes if "fused_kernels" in str(node.target)}
        assert "fused_kernels.lookup_interact.cuda" in ops
        assert not any("embedding_bags" in op or "dot_interaction" in op for op in ops)
        torch.export.save(program, file := io.BytesIO())
        file.seek(0)
        loaded = torch.export.load(file).module()
        for rows in (4, 9):
            _, *inputs = batch(rows)
            want = made(IN_TWO)(*inputs)
            for run in (compiled, loaded):
                torch.testing.assert_close(run(*inputs), want, **CLOSE[Precision.FP32])
    torch._dynamo.reset()


def test_the_bench_of_its_memory(monkeypatch):
    """Both ways, with their losses beside each other; on a CPU there is no peak."""
    monkeypatch.setattr(step_memory, "step_times", partial(step_memory.step_times, block=1, rounds=1))
    rows = step_memory.cell(16, 32, Precision.FP32, "fused", 50, DEVICE)
    assert [row["way"] for row in rows] == [step_memory.IN_TWO, step_memory.IN_ONE]
    assert all(row["match"] == "ok" and row["ms"] > 0 for row in rows), rows
    assert rows[0]["vectors_mb"] == 32 * 26 * 16 * 4e-6
    assert "wide fp32 fused" in step_memory.line(rows[1])
    monkeypatch.setitem(step_memory.CLOSE, Precision.FP32, -1.0)
    rows = step_memory.cell(16, 32, Precision.FP32, "fused", 50, DEVICE)
    assert all(row["match"].startswith("FAILED: losses") and "ms" not in row for row in rows)
    losses = iter([1.0] * (step_memory.STEPS + 1) + [nan] * step_memory.STEPS)  # of the second way all but the first
    monkeypatch.setattr(trainer, "make_step", lambda *_, **__: lambda *batch: torch.tensor(next(losses)))
    monkeypatch.setitem(step_memory.CLOSE, Precision.FP32, inf)
    rows = step_memory.cell(16, 32, Precision.FP32, "fused", 50, DEVICE)
    assert all(row["match"].startswith("FAILED: losses nan") for row in rows)


def test_an_eager_step_does_not_look_for_programs_anew(monkeypatch):
    """Which takes the host some 60 system calls, where PATH is short."""
    asked = []
    cuda_runs.cache_clear()
    monkeypatch.setattr(runtime, "why_not", lambda *names: asked.append(names) or "")
    monkeypatch.setattr(choice, "architecture", lambda device: 90)
    for _ in range(3):
        assert choice.why_in_two(2048, 26, 16, torch.float32, "tf32", False, True, torch.device("cuda")) == ""
    cuda_runs.cache_clear()
    assert asked == [("cuda", "cuda")]
