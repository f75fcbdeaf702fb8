"""The updates against the eager reference, torch.optim and a plain formula; the two ops behind them against specs."""

from __future__ import annotations

import functools
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import hypothesis
import pytest
import torch
from hypothesis import strategies as st
from torch._subclasses import FakeTensorMode
from torch.nn import functional as F

import kernels

from ... import runtime
from ...check import Call, Case, Spec, check
from ...check.comparison import Mismatch
from ...check.contract import DEVICE, GPU, Contract, every_backend, kernel_backend
from ...check.spec import spec_of
from ...dispatch import core, cubin, plan
from ...inductor.machine_code import sass
from ...measure.match import Match
from ..embedding_bags_sort import op as sort_op
from ..embedding_bags_sort.op import embedding_bags_sort
from . import eager, op
from .op import ADD, OP, RULES, _call
from .spec import whole

SLOW_INTERPRETED = (
    "test_adversarial_cases", "test_generated_cases", "test_rows_of_several_warps", "test_opcheck",
    "test_rows_that_fill_any_number_of_chunks[sgd", "test_rows_that_fill_any_number_of_chunks[rowwise",
    "test_ragged_bags[adagrad", "test_ragged_bags[rowwise", "test_one_id_a_feature[dtype2", "test_duplicates[one id",
)
HEIGHTS = (3, 7, 100)
ROW_OFFSETS = (0, 3, 10, 110)
HOSTILE = (-1, 100, 2**31 - 1, -(2**31), 2**32 + 2, 2**63 - 1, -(2**63))


def drawn(batch=64, width=8, dtype=torch.float32, seed=0):
    """tables, the states of the rules, row_offsets, indices [B, 3], grad [B, 3, D]."""
    generator = torch.Generator().manual_seed(seed)
    tables = torch.randn(ROW_OFFSETS[-1], width, generator=generator).to(dtype)
    full = 0.1 + torch.rand(tables.shape, generator=generator)
    ids = torch.stack([torch.randint(h, (batch,), generator=generator) for h in HEIGHTS], 1)
    grad = torch.randn(batch, len(HEIGHTS), width, generator=generator).to(dtype)
    states = {"sgd": torch.empty(0), "adagrad": full, "rowwise_adagrad": full[:, 0].clone()}
    tensors = (tables, torch.tensor(ROW_OFFSETS), ids, grad)
    tables, row_offsets, ids, grad = (tensor.to(DEVICE) for tensor in tensors)
    return tables, {rule: state.to(DEVICE) for rule, state in states.items()}, row_offsets, ids, grad


def ragged(batch=20, longest=6, seed=1):
    """ids [N] of all rows and some beyond, offsets [3 · B + 1] with empty bags."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(longest, (3 * batch,), generator=generator)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    heights = torch.tensor(HEIGHTS).repeat_interleave(batch).repeat_interleave(lengths)
    ids = (torch.rand(len(heights), generator=generator) * (heights + 1)).long()
    return ids.to(DEVICE), offsets.to(DEVICE)


def exact(rule, tables, state, row_offsets, ids, grad, rate, **more):
    """The reference in float64: (tables, state)."""
    tables, state = tables.double(), state.double()
    weights = more.get("per_sample_weights")
    more |= {"per_sample_weights": None if weights is None else weights.double()}
    arguments = (row_offsets, ids, grad.double(), float(rate))
    if rule == "sgd":
        eager.embedding_bags_sgd_(tables, *arguments, **more)
    else:
        getattr(eager, f"embedding_bags_{rule}_")(tables, state, *arguments, **more)
    return tables, state


def updated(backend, rule, tables, state, *arguments, **more):
    """The public function on copies: (tables, state)."""
    tables, state = tables.clone(), state.clone()
    function = getattr(kernels, f"embedding_bags_{rule}_")
    states = () if rule == "sgd" else (state,)
    assert function(tables, *states, *arguments, backend=backend, **more) is tables
    return tables, state


def close(actual, want, dtype=torch.float32):
    """Sums of up to some 60 terms of about 1, and in the state their squares: a few roundings each."""
    for one, other in zip(actual, want, strict=True):
        rtol, atol = (2e-6, 2e-5) if one.dtype == torch.float32 else (torch.finfo(dtype).eps, 1e-5)
        torch.testing.assert_close(one.double(), other, rtol=rtol, atol=atol)


every_rule = pytest.mark.parametrize("rule", RULES)


BOTH = ("embedding_bags_sort", "embedding_bags_update")


class TestWalk(Contract):
    """The op behind the public functions, which takes sorted ids: it returns nothing, and writes tables and state."""

    op = "embedding_bags_update"

    def function(self, backend, in_place=False):
        return functools.partial(OP.call, backend)

    @every_backend
    def test_adversarial_cases(self, backend):
        check(self.op, self.function(backend), cases=self.cases(backend))

    @kernel_backend
    @hypothesis.settings(
        max_examples=8, deadline=None, derandomize=True, database=None,
        suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
    )
    @hypothesis.given(
        shape=st.tuples(st.integers(0, 40), st.integers(0, 40)),
        dtype=st.sampled_from([torch.float32, torch.bfloat16]),
        values=st.sampled_from(["normal", "special"]),
    )
    def test_generated_cases(self, backend, shape, dtype, values):
        check(self.op, self.function(backend), cases=[Case(shape, dtype, values=values, every_option=False)])

    @kernel_backend
    @pytest.mark.parametrize("columns", [1023, 4096, 4097])
    def test_rows_of_several_warps(self, backend, columns):
        if backend == "triton" and columns > 1023 and runtime.triton_mode() == "interpreted":
            pytest.skip("Triton's interpreter takes minutes for a scan of 4096 columns")
        check(self.op, self.function(backend), cases=[Case((12, columns))])

    @kernel_backend
    @pytest.mark.parametrize(
        ("ids", "chunk"),
        [("one", 1), ("one", 2), ("all", 2), ("all", 8), ("long and short", 2), ("long and short", 8), ("two", 1),
         ("up to the last", 4), ("with the last", 4), ("into the last", 4), ("of no row", 4)],
    )
    @every_rule
    def test_rows_that_fill_any_number_of_chunks(self, backend, chunk, ids, rule):
        count = 67  # chunks of 2 leave one id, the second of its row in "all"
        rows = {
            "two": [0, 0, 1], "up to the last": [0] + [1] * 19 + [2], "with the last": [0] + [1] * 20,
            "into the last": [0] + [1] * 20 + [2], "of no row": [3] * 30, "one": [4] * count,
            "all": [*range(count - 1), count - 2],
            "long and short": [0] * 16 + [1] * 17 + [2, 3] + [5] * 32,
        }[ids]
        keys = 2 * torch.tensor([*rows], dtype=torch.int32) + (ids != "of no row")
        tables, grad = Case((count, 5)).tensor(1), Case((len(keys), 5)).tensor(2)
        state = {"sgd": tables.new_empty(0), "adagrad": tables.abs(), "rowwise_adagrad": tables[:, 0].abs()}[rule]
        positions = torch.randperm(len(keys)).int()
        call = Call("", (tables, state, keys, positions, grad, None, None, None), (0.5, rule, 1e-6, chunk))
        spec = Spec(**{**vars(self.spec), "calls": lambda case, device: [call.map(lambda tensor: tensor.to(device))]})
        check(self.op, self.function(backend), spec=spec, cases=[Case((count, 5))])

    @kernel_backend
    def test_opcheck(self, backend):
        for call in self.calls(Case((9, 5))):
            torch.library.opcheck(self.declaration.overload(backend), self.overload_arguments(call))

    @every_backend
    def test_wrong_input(self, backend):
        call = self.call()
        tables, state, keys, positions, grad, bags, lengths, _ = call.tensors
        for name, wrong, error, message in (
            ("tables", None, TypeError, "tables must be a tensor; got NoneType"),
            ("tables", tables.double(), TypeError, "tables must be float32, float16 or bfloat16; got float64"),
            ("tables", tables[0], ValueError, r"tables must have shape \[R, D\]"),
            ("state", state[:-1], ValueError, "state must have shape .*, for tables of shape"),
            ("state", state.half(), TypeError, "state must be float32; got float16"),
            ("row_keys", keys.short(), TypeError, "row_keys must be int32 or int64; got int16"),
            ("id_positions", positions.long(), TypeError, "id_positions must be int32; got int64"),
            ("id_positions", positions[:-1], ValueError, "id_positions must have shape"),
            ("bag_grad", grad.half(), TypeError, "bag_grad must have tables's dtype, float32; got float16"),
            ("bag_grad", grad[:, 1:], ValueError, "bag_grad must have shape"),
            ("bags", bags.to("meta"), ValueError, "bags must be on tables's device"),
            ("lengths", lengths[1:], ValueError, "lengths must have shape"),
        ):
            index = self.spec.arguments.index(name)
            arguments = list(call.arguments())
            arguments[index] = wrong
            with pytest.raises(error, match=f"^{self.op}: {message}"):
                self.function(backend)(*arguments)


@pytest.mark.slow
def test_all_of_tritons_threads_read_a_rows_state_before_one_writes_it(monkeypatch, tmp_path):
    """Of sm_90's instructions, for finish and rows of 16 columns, which its two warps hold several times."""
    images = []

    def function(kernel, device):
        images.append(cubin.compiled(kernel, tmp_path))
        return 0, images[-1]

    monkeypatch.setattr(plan, "_function", function)
    tables, grad, keys = torch.empty(9, 16), torch.empty(99, 16), torch.empty(99, dtype=torch.int32)
    arguments = tables, tables[:, 0].clone(), keys, keys, grad, None, None, None, 0.5, "rowwise_adagrad", 1e-6, 0
    plan.record(OP, "", arguments, OP.allocations("", arguments), arch=90)
    _, finish = images
    if (lines := sass(Path(finish.path).read_bytes())) is None:
        pytest.skip("Triton has no nvdisasm here")
    stored = next(i for i, line in enumerate(lines) if "STG.E" in line)
    loaded = max(i for i, line in enumerate(lines[:stored]) if "LDG.E R" in line)  # of 32 bits; the table's are of 128
    assert any("BAR.SYNC" in line for line in lines[loaded:stored])


no_triton = pytest.mark.parametrize("backend", [every_backend.args[1][0], every_backend.args[1][2]], indirect=True)
additions = pytest.mark.parametrize("backend", kernel_backend.args[1][1:], indirect=True)


class InOneKernel(Contract):
    """Updates that sort nothing beforehand, of which Triton has none."""

    @no_triton
    def test_adversarial_cases(self, backend):
        check(self.op, self.function(backend), cases=self.cases(backend))

    @additions
    def test_opcheck(self, backend):
        for call in self.calls(Case((9, 5))):
            torch.library.opcheck(self.declaration.overload(backend), self.overload_arguments(call))


class TestAdditions(InOneKernel):
    """SGD by atomics: the op, and the public function without deterministic."""

    op = "embedding_bags_add"

    def function(self, backend, in_place=False):
        return functools.partial(ADD.call, backend)

    @no_triton
    def test_wrong_input(self, backend):
        call = self.call()
        tables, _, ids, grad, offsets, weights = call.tensors
        for name, wrong, error, message in (
            ("tables", tables.half(), TypeError, "tables must be float32; got float16"),
            ("row_offsets", None, TypeError, "row_offsets must be a tensor; got NoneType"),
            ("indices", ids.short(), TypeError, "indices must be int32 or int64; got int16"),
            ("bag_grad", grad.half(), TypeError, "bag_grad must have tables's dtype, float32; got float16"),
            ("bag_grad", grad[:, 1:], ValueError, "bag_grad must have shape"),
            ("offsets", offsets[:-2], ValueError, "(offsets|bag_grad) must have shape"),
            ("per_sample_weights", weights[1:], ValueError, "per_sample_weights must have shape"),
            ("pooling", "max", ValueError, "pooling must be one of sum, mean; got 'max'"),
        ):
            arguments = list(call.arguments())
            arguments[self.spec.arguments.index(name)] = wrong
            with pytest.raises(error, match=f"^{self.op}: {message}"):
                self.function(backend)(*arguments)

    @no_triton
    @pytest.mark.parametrize("width", [8, 7, 16])
    def test_as_the_sum_in_order(self, backend, width):
        tables, states, row_offsets, ids, grad = drawn(batch=200, width=width)
        few, offsets = ragged(batch=200)
        weights = torch.randn(few.shape, device=DEVICE)
        for indices, more in (
            (ids, {}), (ids.int(), {"padding_idx": 1}), (torch.full_like(ids, 2), {}), (ids[:0], {}),
            (few, {"offsets": offsets, "mode": "mean", "padding_idx": 0}),
            (few.int(), {"offsets": offsets.int(), "per_sample_weights": weights}),
        ):
            arguments = ("sgd", tables, states["sgd"], row_offsets, indices, grad[: len(indices)], 0.1)
            got, want = updated(backend, *arguments, **more, deterministic=False), exact(*arguments, **more)
            # Up to 200 additions to a row, each of which rounds it.
            torch.testing.assert_close(got[0].double(), want[0], rtol=1e-5, atol=1e-4)

    @no_triton
    @pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
    def test_ids_that_name_no_row_touch_nothing(self, backend, dtype):
        tables, _, row_offsets, *_ = drawn()
        ids = torch.tensor([[i] * 3 for i in HOSTILE if dtype == torch.int64 or -(2**31) <= i < 2**31], dtype=dtype)
        for indices, offsets in ((ids, None), (ids.flatten(), torch.arange(ids.numel() + 1, device=DEVICE))):
            for more in ({}, {"mode": "mean", "padding_idx": 100}):
                grad, got = torch.randn(len(ids), 3, 8, device=DEVICE), tables.clone()
                arguments = (got, row_offsets, indices.to(DEVICE), grad, 0.1, offsets)
                kernels.embedding_bags_sgd_(*arguments, **more, deterministic=False, backend=backend)
                assert torch.equal(got, tables)

    @additions
    def test_offsets_that_fall_touch_no_other_table(self, backend):
        tables, _, row_offsets, *_ = drawn()
        generator = torch.Generator().manual_seed(4)
        before = tables.clone()
        for _ in range(20):
            offsets = torch.randint(-5, 70, (3 * 20 + 1,), generator=generator).to(DEVICE)
            ids, grad = torch.full((60,), 3, device=DEVICE), torch.randn(20, 3, 8, device=DEVICE)
            self.function(backend)(tables, row_offsets, ids, grad, offsets, None, 0.1, "mean", -1)
        rows = (tables != before).any(1).nonzero().flatten().tolist()
        assert set(rows) <= {3 + 3, 10 + 3}  # the first table has no row 3

    @no_triton
    def test_a_learning_rate_on_the_device(self, backend):
        tables, states, row_offsets, ids, grad = drawn()
        rate = torch.tensor(0.0, device=DEVICE)
        for value in (0.5, 0.25):
            rate.fill_(value)
            arguments = ("sgd", tables, states["sgd"], row_offsets, ids, grad)
            got = updated(backend, *arguments, rate, deterministic=False)
            torch.testing.assert_close(got[0].double(), exact(*arguments, value)[0], rtol=1e-5, atol=1e-4)

    @additions
    def test_learning_rates_compile_at_most_twice(self, backend):
        tables, _, row_offsets, ids, grad = drawn()
        compilations = []

        def count(graph, inputs):
            compilations.append(graph)
            return graph

        @torch.compile(fullgraph=True, backend=count)
        def step(tables, rate):
            update = (tables, row_offsets, ids, grad, rate)
            return kernels.embedding_bags_sgd_(*update, deterministic=False, backend=backend) * 2

        for n in range(4):
            one, other = tables.clone(), tables.clone()
            kernels.embedding_bags_sgd_(other, row_offsets, ids, grad, n / 16)
            torch.testing.assert_close(step(one, n / 16), 2 * other, rtol=1e-5, atol=1e-4)
        assert len(compilations) <= 2

    def test_what_has_no_such_form(self):
        tables, states, row_offsets, ids, grad = drawn()
        arguments = row_offsets, ids, grad, 0.1
        sgd = functools.partial(kernels.embedding_bags_sgd_, deterministic=False)
        with pytest.raises(TypeError, match=r"sgd_: tables must be float32 without deterministic, .*; got bfloat16"):
            sgd(tables.bfloat16(), row_offsets, ids, grad.bfloat16(), 0.1)
        with pytest.raises(ValueError, match="sorted_ids must be None without deterministic"):
            sgd(tables, *arguments, sorted_ids=embedding_bags_sort(ids, row_offsets, None, len(tables)))
        with pytest.raises(RuntimeError, match='backend="triton" does not run here: embedding_bags_add has no such'):
            sgd(tables, *arguments, backend="triton")
        with pytest.raises(TypeError, match="deterministic"):
            kernels.embedding_bags_adagrad_(tables, states["adagrad"], *arguments, deterministic=False)
        with pytest.raises(RuntimeError, match="embedding_bags_add has no gradient"):
            sgd(torch.nn.Parameter(tables), *arguments)
        with pytest.raises(TypeError, match="sgd_: deterministic must be True or False; got NoneType"):
            sgd(tables, *arguments, deterministic=None)

    @no_triton
    def test_torch_may_forbid_it(self, backend, request):
        request.addfinalizer(lambda: torch.use_deterministic_algorithms(False))
        tables, _, row_offsets, ids, grad = drawn()
        update = functools.partial(kernels.embedding_bags_sgd_, tables, row_offsets, ids, grad, 0.1, backend=backend)
        torch.use_deterministic_algorithms(True)
        with pytest.raises(RuntimeError, match=r"deterministic must be True under torch.use_deterministic_algorithms"):
            update(deterministic=False)
        update()
        torch.use_deterministic_algorithms(True, warn_only=True)
        update(deterministic=False)

    def test_tensors_without_values(self):
        tables, _, row_offsets, ids, grad = drawn(batch=4)
        inputs = [tensor.to("meta") for tensor in (tables, row_offsets, ids, grad)]
        assert kernels.embedding_bags_sgd_(*inputs, 0.1, deterministic=False) is inputs[0]
        with FakeTensorMode() as mode:
            inputs = [mode.from_tensor(tensor) for tensor in (tables, row_offsets, ids, grad)]
            assert kernels.embedding_bags_sgd_(*inputs, 0.1, deterministic=False) is inputs[0]

    @GPU
    @additions
    def test_a_captured_step_follows_the_learning_rate(self, backend):
        tables, states, row_offsets, ids, grad = drawn(batch=300)
        rate, held = torch.tensor(0.1, device=DEVICE), tables.clone()
        update = functools.partial(kernels.embedding_bags_sgd_, held, row_offsets, ids, grad, rate)
        update(deterministic=False, backend=backend)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            update(deterministic=False, backend=backend)
        held.copy_(tables)
        want = tables.double()
        for value in (0.5, 0.125):
            rate.fill_(value)
            graph.replay()
            want, _ = exact("sgd", want, states["sgd"], row_offsets, ids, grad, value)
        torch.testing.assert_close(held.double(), want, rtol=1e-5, atol=1e-4)

    @GPU
    @pytest.mark.sanitizer
    @additions
    def test_under_the_sanitizer(self, backend):
        check(self.op, self.function(backend), cases=[Case((300, 7)), Case((300, 16)), Case((20, 1025))])


@pytest.mark.parametrize("rate", [0.01, 0.001])
@pytest.mark.parametrize("judge", ["the bench's", "the op's"])
def test_additions_in_any_order_are_right_and_one_that_is_lost_or_doubled_is_not(judge, rate):
    """Rows of 1 to 16384 ids. On a CPU index_add_ adds to a row one by one, in the order of the ids."""
    generator, times = torch.Generator().manual_seed(0), [4**power for power in range(8)]
    rows = torch.arange(len(times)).repeat_interleave(torch.tensor(times))
    rows = rows[torch.randperm(len(rows), generator=generator)]
    before, row_offsets = torch.randn(len(times), 64, generator=generator), torch.tensor([0, len(times)])
    tables, grad = before.clone(), torch.randn(len(rows), 1, 64, generator=generator)
    if judge == "the bench's":
        keys, positions, *_ = embedding_bags_sort(rows[:, None], row_offsets, None, len(times))
        inputs = (tables, torch.empty(0), row_offsets, rows[:, None], grad, keys, positions, None, None), (rate,)
    else:
        inputs = (tables, row_offsets, rows[:, None], grad, None, None), (rate, "sum", -1)
    spec = whole("sgd") if judge == "the bench's" else spec_of("embedding_bags_add")
    matching = Match(SimpleNamespace(spec=spec, options=inputs[1]), inputs[0])

    def add(ids):
        tables.copy_(before).index_add_(0, rows[ids], -rate * grad[ids, 0])
        matching.check(None)

    orders = [torch.randperm(len(rows), generator=generator) for _ in range(4)]
    for order in orders:
        add(order)
    for row in range(len(times)):
        one = (rows == row).nonzero()[:1, 0]
        for ids in (orders[0][orders[0] != one], torch.cat([orders[0], one])):
            with pytest.raises(Mismatch) as fault:
                add(ids)
            assert fault.value.where.any(1).nonzero().flatten().tolist() == [row]
            assert fault.value.where[row].float().mean() > 0.5  # what is less than a typical gradient may not show


class TestUpdates(Contract):
    """The public functions."""

    op = "embedding_bags_update"

    @every_backend
    @every_rule
    @pytest.mark.parametrize(("dtype", "width"), [(torch.float32, 16), (torch.float16, 7), (torch.bfloat16, 16)])
    def test_one_id_a_feature(self, backend, rule, dtype, width):
        tables, states, row_offsets, ids, grad = drawn(30, width, dtype)
        weights = torch.randn(ids.shape, device=DEVICE).to(dtype)
        for more in ({"padding_idx": 1}, {"per_sample_weights": weights}):
            arguments = (rule, tables, states[rule], row_offsets, ids.int(), grad, 0.1)
            close(updated(backend, *arguments, **more), exact(*arguments, **more), dtype)

    @every_backend
    @every_rule
    def test_ragged_bags(self, backend, rule):
        tables, states, row_offsets, _, grad = drawn(batch=20)
        ids, offsets = ragged()
        weights = torch.randn(len(ids), device=DEVICE)
        for more in (
            {}, {"mode": "mean"}, {"mode": "mean", "padding_idx": 0}, {"per_sample_weights": weights},
            {"per_sample_weights": weights, "padding_idx": 2},
        ):
            arguments = (rule, tables, states[rule], row_offsets, ids, grad, 0.1)
            more = {**more, "offsets": offsets.int() if "padding_idx" in more else offsets}
            close(updated(backend, *arguments, **more), exact(*arguments, **more))

    @every_backend
    @pytest.mark.parametrize("rule", ["sgd", "adagrad"])
    @pytest.mark.parametrize("mode", ["sum", "mean"])
    def test_as_torch_optim_does_with_sparse_gradients(self, backend, rule, mode):
        tables, _, row_offsets, _, grad = drawn(batch=20)
        ids, offsets = ragged(longest=4)
        ids = ids % torch.tensor(HEIGHTS, device=DEVICE).repeat_interleave(offsets[20::20].diff(prepend=offsets[:1]))
        parameters = [torch.nn.Parameter(t.double()) for t in tables.split(HEIGHTS)]
        make = {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad}[rule]
        optimizer = make(parameters, lr=0.1)
        state = torch.zeros_like(tables) if rule == "adagrad" else torch.empty(0, device=DEVICE)
        for step in range(3):
            pooled = []
            for f, parameter in enumerate(parameters):
                own = offsets[20 * f : 20 * f + 21]
                pooled.append(F.embedding_bag(ids[own[0] : own[-1]], parameter, own - own[0], mode=mode, sparse=True,
                                              include_last_offset=True))
            optimizer.zero_grad()
            torch.stack(pooled, 1).backward(grad.double() * (step + 1))
            optimizer.step()
            arguments = (row_offsets, ids, grad * (step + 1), 0.1)
            tables, state = updated(backend, rule, tables, state, *arguments, offsets=offsets, mode=mode)
        want = torch.cat([parameter.detach() for parameter in parameters])
        torch.testing.assert_close(tables.double(), want, rtol=1e-5, atol=1e-4)

    @every_backend
    def test_rowwise_adagrad_by_a_plain_loop(self, backend):
        tables, states, row_offsets, ids, grad = drawn(batch=9)
        state = states["rowwise_adagrad"]
        want, total = tables.double(), state.double()
        for row in range(ROW_OFFSETS[-1]):
            hits = [grad[b, f].double() for b in range(9) for f in range(3) if row_offsets[f] + ids[b, f] == row]
            if hits:
                g = torch.stack(hits).sum(0)
                total[row] += (g * g).mean()
                want[row] -= 0.2 * g / (total[row].sqrt() + 1e-3)
        actual = updated(backend, "rowwise_adagrad", tables, state, row_offsets, ids, grad, 0.2, eps=1e-3)
        close(actual, (want, total))

    @every_backend
    @every_rule
    @pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
    def test_ids_that_name_no_row_touch_nothing(self, backend, rule, dtype):
        tables, states, row_offsets, *_ = drawn()
        ids = torch.tensor([[i] * 3 for i in HOSTILE if dtype == torch.int64 or -(2**31) <= i < 2**31], dtype=dtype)
        grad = torch.randn(len(ids), 3, 8, device=DEVICE)
        results = updated(backend, rule, tables, states[rule], row_offsets, ids.to(DEVICE), grad, 0.1)
        assert torch.equal(results[0], tables)
        assert torch.equal(results[1], states[rule])

    @every_backend
    @every_rule
    @pytest.mark.parametrize("ids", ["one id", "an id a table", "all distinct", "no ids"])
    def test_duplicates(self, backend, rule, ids):
        tables, states, row_offsets, indices, grad = drawn(batch={"no ids": 0, "all distinct": 3}.get(ids, 100))
        if ids == "one id":
            indices = torch.full_like(indices, 2).index_fill(1, torch.tensor([0, 1], device=DEVICE), -1)
        elif ids == "an id a table":
            indices = torch.full_like(indices, 1)
        elif ids == "all distinct":
            indices = torch.arange(3, device=DEVICE)[:, None].expand(3, 3)
        arguments = (rule, tables, states[rule], row_offsets, indices, grad, 0.1)
        got, want = updated(backend, *arguments), exact(*arguments)
        for one, other in zip(got, want, strict=True):  # 100 terms that cancel
            torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=2e-4)

    @kernel_backend
    @every_rule
    def test_two_runs_and_both_sorts_give_the_same_bits(self, backend, rule):
        tables, states, row_offsets, ids, grad = drawn(batch=60)
        runs, again = [], not (backend == "triton" and DEVICE.type == "cpu")  # interpreted, every run is the same
        for table_keys in (4096, *[4096] * again, 0):
            one, state = tables.clone(), states[rule].clone()
            _call(backend, rule, one, state, row_offsets, ids, grad, 0.1, None, "sum", None, None, 1e-10, table_keys, 4)
            runs.append((one, state))
        for one, state in runs[1:]:
            assert torch.equal(one, runs[0][0])
            assert torch.equal(state, runs[0][1])

    @kernel_backend
    def test_row_offsets_that_fall_update_no_row_twice(self, backend):
        """Where two tables claim a row, the ids of both count, or of one; and g² is added to its state once."""
        tables, ids = torch.zeros(8, 4, device=DEVICE), torch.tensor([[2, 0, 0]] * 20, device=DEVICE)
        state, grad = torch.zeros_like(tables), torch.ones(20, 3, 4, device=DEVICE)
        row_offsets = torch.tensor([0, 4, 2, 8], device=DEVICE)  # row 2 is of the first table and of the third
        arguments = (tables, state, row_offsets, ids, grad, 0.1)
        call = functools.partial(kernels.embedding_bags_adagrad_, *arguments, backend=backend)
        if backend == "triton" and DEVICE.type == "cpu":  # whose sort is the reference's
            with pytest.raises(ValueError, match="row_offsets must rise from 0 to at most 8 and never fall"):
                call()
            return
        call()
        assert not state[[0, 1, 3, 4, 5, 6, 7]].any()
        assert state[2].unique().item() in (20.0**2, 40.0**2)

    @kernel_backend
    def test_a_row_of_nan_stays_where_it_is(self, backend):
        tables, states, row_offsets, ids, grad = drawn()
        tables[5], grad[7, 2] = torch.nan, torch.nan
        arguments = ("adagrad", tables, states["adagrad"], row_offsets, ids, grad, 0.1)
        got, want = updated(backend, *arguments)[0], exact(*arguments)[0]
        assert torch.equal(got.isnan(), want.isnan())
        assert set(want.isnan().any(1).nonzero().flatten().tolist()) == {5, 10 + int(ids[7, 2])}

    @kernel_backend
    def test_tables_that_are_misaligned(self, backend):
        tables, states, row_offsets, ids, grad = drawn()
        memory = torch.cat([tables.flatten().new_zeros(1), tables.flatten()])
        view = memory[1:].view(tables.shape)
        want, _ = exact("sgd", tables, states["sgd"], row_offsets, ids, grad, 0.1)
        kernels.embedding_bags_sgd_(view, row_offsets, ids, grad, 0.1, backend=backend)
        torch.testing.assert_close(memory[1:].view(tables.shape).double(), want, rtol=1e-6, atol=1e-5)
        assert memory[0] == 0

    @every_backend
    @every_rule
    @pytest.mark.parametrize("bags", [False, True])
    def test_ids_that_were_sorted_before(self, backend, rule, bags):
        """Those of other ids of as many elements: it is their rows that change."""
        tables, states, row_offsets, ids, grad = drawn()
        offsets = torch.arange(ids.numel() + 1, device=DEVICE) if bags else None
        ids, others = (part.t().flatten() if bags else part for part in (ids, ids.flip(0)))
        more = (offsets, "mean") if bags else ()
        sorted_ids = embedding_bags_sort(others, row_offsets, offsets, len(tables), mean=bags)

        def call(indices, **named):
            return updated(backend, rule, tables, states[rule], row_offsets, indices, grad, 0.1, *more, **named)

        # Eager adds up on a GPU in an order of its own each time.
        close = {} if backend == "eager" else {"rtol": 0, "atol": 0}
        torch.testing.assert_close(call(ids, sorted_ids=sorted_ids), call(others), **close)
        for wrong in (tuple(part[:-1] for part in sorted_ids), sorted_ids[:3], (*sorted_ids[:2], ids, ids[:0])):
            with pytest.raises(ValueError, match="sorted_ids must"):
                call(ids, sorted_ids=wrong)

    @every_backend
    def test_one_tensor_holds_a_learning_rate_that_changes(self, backend):
        tables, states, row_offsets, ids, grad = drawn()
        rate = torch.tensor(0.0, device=DEVICE)
        for value in (0.5, 0.25):
            rate.fill_(value)
            actual = updated(backend, "adagrad", tables, states["adagrad"], row_offsets, ids, grad, rate)
            close(actual, exact("adagrad", tables, states["adagrad"], row_offsets, ids, grad, value))

    @every_backend
    @every_rule
    def test_wrong_input(self, backend, rule):
        tables, states, row_offsets, ids, grad = drawn(batch=4)
        state = states[rule]
        op = f"embedding_bags_{rule}_"
        for inputs, more, error, message in (
            ((row_offsets, ids, grad[:, :2]), {}, ValueError, r"grad must have shape \[4, 3, 8\]"),
            ((row_offsets, ids, grad.half()), {}, TypeError, "grad must have tables's dtype, float32; got float16"),
            ((row_offsets, ids, None), {}, TypeError, "grad must be a tensor; got NoneType"),
            ((row_offsets, ids, grad), {"offsets": [0, 1]}, TypeError, "offsets must be a tensor; got list"),
            ((row_offsets, ids, grad), {"padding_idx": "0"}, TypeError, "padding_idx must be an integer; got str"),
            ((row_offsets, ids[0, 0], grad), {}, ValueError, "indices must have shape"),
            ((row_offsets, ids, grad), {"mode": "max"}, ValueError, "mode must be one of sum, mean; got 'max'"),
            ((row_offsets, ids, grad), {"mode": "mean", "per_sample_weights": ids.float()}, ValueError,
             "per_sample_weights go with mode sum"),
            ((row_offsets, ids, grad), {"per_sample_weights": ids}, TypeError, "per_sample_weights must have"),
        ):
            with pytest.raises(error, match=f"^{op}: {message}"):
                updated(backend, rule, tables, state, *inputs, 0.1, **more)
        with pytest.raises(TypeError, match="indices must be int32 or int64; got float32"):
            updated(backend, rule, tables, state, row_offsets, ids.float(), grad, 0.1)
        with pytest.raises(TypeError, match="learning_rate must be a number or a 0-d tensor; got str"):
            updated(backend, rule, tables, state, row_offsets, ids, grad, "0.1")
        for wrong in (-0.1, float("nan")):
            with pytest.raises(ValueError, match=f"^{op}: learning_rate must not be negative or NaN; got {wrong}"):
                updated(backend, rule, tables, state, row_offsets, ids, grad, wrong)
            if rule != "sgd":
                with pytest.raises(ValueError, match=f"^{op}: eps must not be negative or NaN; got {wrong}"):
                    updated(backend, rule, tables, state, row_offsets, ids, grad, 0.1, eps=wrong)
        at_most = torch.tensor(-0.1, device=DEVICE)  # whose value nobody looks at: on a GPU that would wait for it
        updated(backend, rule, tables, state, row_offsets, ids, grad, at_most)

    @every_backend
    @every_rule
    def test_no_rows_no_tables_and_no_columns(self, backend, rule):
        tables, states, row_offsets, ids, grad = drawn(batch=4)
        state, none = states[rule], torch.zeros_like(row_offsets)
        shape = {"sgd": state.shape, "adagrad": (0, 8), "rowwise_adagrad": (0,)}[rule]
        for inputs in (
            (tables[:0], state.new_empty(shape), none, ids, grad),
            (tables, state, row_offsets[:1], ids[:, :0], grad[:, :0]),
            (tables[:, :0], state[:, :0] if rule == "adagrad" else state, row_offsets, ids, grad[..., :0]),
        ):
            results = updated(backend, rule, *inputs, 0.1)
            assert torch.equal(results[0], inputs[0])
            assert rule == "rowwise_adagrad" or torch.equal(results[1], inputs[1])

    @every_rule
    def test_tensors_without_values_are_left_as_they_are(self, rule):
        """On the device meta, and in a FakeTensorMode: of the mode, or of the tensors."""
        tables, states, row_offsets, ids, grad = drawn(batch=4)
        state = () if rule == "sgd" else (states[rule],)
        update = getattr(kernels, f"embedding_bags_{rule}_")
        inputs = [tensor.to("meta") for tensor in (tables, *state, row_offsets, ids, grad)]
        assert update(*inputs, 0.1) is inputs[0]
        with FakeTensorMode() as mode:
            inputs = [mode.from_tensor(tensor) for tensor in (tables, *state, row_offsets, ids, grad)]
            assert update(*inputs, 0.1) is inputs[0]
            offsets = mode.from_tensor(torch.arange(13, device=DEVICE))
            inputs[-2] = inputs[-2].flatten()
            assert update(*inputs, 0.1, offsets, "mean") is inputs[0]

    @every_backend
    def test_gradients_are_refused(self, backend):
        tables, _, row_offsets, ids, grad = drawn()
        parameter = torch.nn.Parameter(tables.clone())
        function = functools.partial(kernels.embedding_bags_sgd_, backend=backend)
        with pytest.raises(RuntimeError, match="embedding_bags_update has no gradient"):
            function(parameter, row_offsets, ids, grad, 0.1)
        with torch.no_grad():
            function(parameter, row_offsets, ids, grad, 0.1)
        assert not torch.equal(parameter, tables)

    @kernel_backend
    def test_learning_rates_compile_at_most_twice(self, backend):
        tables, _, row_offsets, ids, grad = drawn()
        compilations = []

        def count(graph, inputs):
            compilations.append(graph)
            return graph

        @torch.compile(fullgraph=True, backend=count)
        def step(tables, row_offsets, ids, grad, rate):
            return kernels.embedding_bags_sgd_(tables, row_offsets, ids, grad, rate, backend=backend) * 2

        for n in range(4):
            one, other = tables.clone(), tables.clone()
            kernels.embedding_bags_sgd_(other, row_offsets, ids, grad, n / 16, backend=backend)
            assert torch.equal(step(one, row_offsets, ids, grad, n / 16), 2 * other)
            assert torch.equal(one, other)
        assert len(compilations) <= 2

    def test_auto_is_cuda_where_it_and_the_sort_are_built_or_can_be(self, monkeypatch):
        sort, update = BOTH
        for built, missing, expected in (
            ((), (), "cuda"), ((), ("nvcc",), "triton"), ((sort,), ("nvcc",), "cuda"), ((sort,), ("cuda",), "triton"),
            ((update,), ("nvcc",), "triton"), ((update,), ("cuda",), "cuda"), (BOTH, ("nvcc", "cuda"), "cuda"),
        ):
            monkeypatch.setattr(op, "_runs_cuda", None)
            monkeypatch.setattr(sort_op, "_runs", None)
            monkeypatch.setattr(core, "op_is_built", lambda name, by_nvcc=False, built=built: name in built)
            monkeypatch.setattr(runtime, "why_not", lambda what, _, missing=missing: what if what in missing else "")
            assert op.auto() == expected

    def test_auto_is_triton_for_small_gradients(self, monkeypatch):
        monkeypatch.setattr(op, "triton_runs", lambda: True)
        sizes = {
            (65536, 26, 8): True, (16384, 26, 16): True, (65536, 26, 16): False, (8192, 26, 32): True,
            (16384, 26, 32): False, (2048, 26, 64): True, (8192, 26, 64): False, (2048, 26, 128): False,
        }
        for shape, is_faster in sizes.items():
            assert op.is_faster_by_triton(torch.empty(shape, device="meta")) == is_faster
        monkeypatch.setattr(op, "triton_runs", lambda: False)
        assert not op.is_faster_by_triton(torch.empty(2048, 26, 16, device="meta"))

    @every_rule
    @pytest.mark.parametrize(("chosen", "faster", "walk"), [
        ("cuda", True, "triton"), ("cuda", False, "cuda"), ("triton", False, "triton"),
    ])
    def test_auto_walks_by_what_is_faster_behind_the_same_sort(self, monkeypatch, rule, chosen, faster, walk):
        tables, states, row_offsets, ids, grad = drawn()
        sort, asked = embedding_bags_sort(ids, row_offsets, None, len(tables)), []
        call = mock.Mock(side_effect=lambda backend, *_: asked.append(backend))
        call.chosen.return_value = chosen
        monkeypatch.setattr(op.OP, "call", call)
        monkeypatch.setattr(op, "beside", lambda backend, _: backend)
        monkeypatch.setattr(op, "embedding_bags_sort", lambda *_, backend: asked.append(backend) or sort)
        monkeypatch.setattr(op, "is_faster_by_triton", lambda grad: faster)
        updated("auto", rule, tables, states[rule], row_offsets, ids, grad, 0.1)
        assert asked == [chosen, walk]

    @GPU
    @kernel_backend
    @every_rule
    def test_a_captured_step_follows_the_learning_rate(self, backend, rule):
        tables, states, row_offsets, ids, grad = drawn(batch=300)
        rate = torch.tensor(0.1, device=DEVICE)
        held, state = tables.clone(), states[rule].clone()
        more = () if rule == "sgd" else (state,)
        function = getattr(kernels, f"embedding_bags_{rule}_")
        function = functools.partial(function, held, *more, row_offsets, ids, grad, rate)
        function(backend=backend)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            function(backend=backend)
        held.copy_(tables)
        state.copy_(states[rule])
        want, want_state = tables, states[rule]
        for value in (0.5, 0.125):
            rate.fill_(value)
            graph.replay()
            want, want_state = updated("eager", rule, want, want_state, row_offsets, ids, grad, value)
            torch.testing.assert_close(held, want, rtol=1e-5, atol=1e-4)

    @GPU
    @pytest.mark.sanitizer
    @kernel_backend
    @every_rule
    def test_under_the_sanitizer(self, backend, rule):
        for width in (7, 16):
            tables, states, row_offsets, ids, grad = drawn(batch=300, width=width)
            arguments = (rule, tables, states[rule], row_offsets, ids, grad, 0.1)
            for one, other in zip(updated(backend, *arguments), exact(*arguments), strict=True):
                torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=2e-4)
