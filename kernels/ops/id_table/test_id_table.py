"""The id table against a Python dict and against eager, on every backend that this machine has."""

from __future__ import annotations

import functools
import random
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import kernels
from kernels import IdTable, dispatch, expand_table_ids, get_table_range, runtime, table_lookup
from kernels.check import Case, calls_of, check
from kernels.check.contract import DEVICE, GPU, running
from kernels.check.contract.base import ON_HOST
from kernels.check.contract.dispatch import LOAD
from kernels.dispatch import extension
from kernels.ops.id_table import eager
from kernels.ops.id_table.module import TableEmbedding
from kernels.ops.id_table.spec import EXTREMES
from kernels.runtime import KERNELS

LOOKUPS = ("table_lookup", "expand_table_ids", "get_table_range")


def _parameters(*backends: str) -> list:
    """Without a GPU "cuda" is the host build of the CUDA kernels; "cpp" has CPU tensors wherever it runs."""
    found = []
    for name in backends:
        reason = runtime.why_not("cpp" if name == "cuda" and DEVICE.type == "cpu" else name, _device(name).type)
        shown = ON_HOST if name == "cuda" and DEVICE.type == "cpu" else name
        found.append(pytest.param(shown, marks=pytest.mark.skipif(bool(reason), reason=reason or "it runs here")))
    return found


def _device(backend: str) -> torch.device:
    return torch.device("cpu") if backend == "cpp" else DEVICE


every_backend = pytest.mark.parametrize("backend", _parameters("eager", "cuda", "cpp"), indirect=True)
kernel_backend = pytest.mark.parametrize("backend", _parameters("cuda", "cpp"), indirect=True)
fast_backend = pytest.mark.parametrize(
    "backend", _parameters(*(("eager", "cuda", "cpp") if DEVICE.type == "cuda" else ("eager", "cpp"))), indirect=True
)


@pytest.fixture
def backend(request):
    with running(request.param) as name:
        yield name


@pytest.fixture(autouse=True)
def _dynamo_forgets():
    yield
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()


def table(vocabularies, backend, **options) -> IdTable:
    return IdTable(vocabularies, device=_device(backend), backend=backend, **options)


def tensor(values, backend) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64, device=_device(backend))


def check_against(dicts: list[dict], t: IdTable, backend: str, others=()) -> None:
    """The table holds what the dicts hold, {id: row}, and neither the dicts' ids in other tables nor `others`."""
    for number, known in enumerate(dicts):
        asked = [*known, *(i for d in dicts for i in d), *others]
        keys = tensor(asked, backend)
        found, rows = t(keys, torch.full_like(keys, number), backend=backend)
        assert found.tolist() == [i in known for i in asked]
        assert rows.tolist() == [known.get(i, 0) for i in asked]
    assert t.sizes == [len(d) for d in dicts]


# --------------------------------------------------------------------------------------------------- the ops, as ops


@kernel_backend
@pytest.mark.parametrize("name", LOOKUPS)
def test_equal_to_eager(name, backend):
    """With guard zones around the outputs and poison in them, on every shape and layout, twice."""
    check(name, functools.partial(getattr(kernels, name), backend=backend), device=_device(backend))


@kernel_backend
@pytest.mark.parametrize("name", LOOKUPS)
def test_opcheck(name, backend):
    for call in calls_of(name, Case((5, 24)), _device(backend)):
        torch.library.opcheck(dispatch.find(name).overload(backend), call.arguments())


@kernel_backend
@pytest.mark.parametrize("name", ["table_claim_", "table_erase_"])
def test_opcheck_of_what_writes(name, backend):
    call = calls_of(name, Case((1, 1)), _device(backend))[0]
    torch.library.opcheck(dispatch.find(name).overload(backend), call.arguments())


@kernel_backend
@pytest.mark.parametrize("dynamic", [False, True])
def test_compile_keeps_one_graph(backend, dynamic):
    t = table([range(100), EXTREMES], backend)
    offsets = tensor([0, 3, 4, 8, 9], backend)

    def step(keys, offsets):
        tables = expand_table_ids(offsets, None, 2, 2, len(keys), backend=backend)
        found, rows = t(keys, tables, backend=backend)
        return found, rows + 1, get_table_range(offsets, offsets.new_tensor([0, 1, 2]), backend=backend)

    compiled = torch.compile(step, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for count in (9, 12, 15):
        keys = torch.arange(-4, count - 4, device=offsets.device)
        for got, want in zip(compiled(keys, offsets), step(keys, offsets), strict=True):
            assert torch.equal(got, want)


@kernel_backend
def test_an_exported_program_loads_in_a_fresh_process(backend, tmp_path):
    t = table([range(100), EXTREMES], backend)

    class Module(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table = t

        def forward(self, keys, table_ids):
            return self.table(keys, table_ids, backend=backend)[1]

    arguments = tensor([5, 99, 100, -1, 0], backend), tensor([0, 0, 0, 1, 1], backend)
    program = torch.export.export(Module(), arguments)
    assert any(f"table_lookup.{backend}" in str(node.target) for node in program.graph.nodes)
    torch.export.save(program, tmp_path / "program.pt2")
    torch.save(arguments, tmp_path / "arguments.pt")
    paths = [str(tmp_path / name) for name in ("program.pt2", "arguments.pt", "result.pt")]
    command = [sys.executable, "-c", LOAD, *paths, str(extension.runs_on_host())]
    ended = subprocess.run(command, cwd=KERNELS.parent, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert torch.load(tmp_path / "result.pt").tolist() == [6, 100, 0, 2, 1]


@every_backend
def test_wrong_input_is_named(backend):
    t = table([range(5)], backend)
    keys = tensor([1, 2], backend)
    lookup = t.storage()
    for arguments, error, message in (
        ((*lookup, keys.float(), keys), TypeError, "keys must be int32 or int64; got float32"),
        ((*lookup, keys, keys[:1]), ValueError, r"table_ids must have shape \[2\], like keys; got \[1\]"),
        ((*lookup, keys, keys.to("meta")), ValueError, "table_ids must be on (cpu|cuda:0); got meta"),
        ((lookup[0].int(), *lookup[1:], keys, keys), TypeError, "tags must be uint8; got int32"),
        ((lookup[0][:-1], *lookup[1:], keys, keys), ValueError, r"tags must have shape \[0\], slots in whole buckets"),
        ((*lookup[:2], lookup[2][:1], lookup[3], keys, keys), ValueError, r"bucket_offsets must have shape \[2\]"),
    ):
        with pytest.raises(error, match=f"table_lookup: {message}"):
            table_lookup(*arguments, backend=backend)
    offsets = tensor([0, 1, 2], backend)
    for arguments, error, message in (
        ((offsets.float(), None, 2, 1, 2), TypeError, "offsets must be int32 or int64; got float32"),
        ((offsets, None, 2, 2, 2), ValueError, r"offsets must have shape \[5\], num_tables · batch_size \+ 1"),
        ((offsets, offsets, 3, 1, 2), ValueError, r"table_offsets must have shape \[4\]"),
        ((offsets, None, 2, 1, -2), ValueError, "num_elements must not be negative; got -2"),
    ):
        with pytest.raises(error, match=f"expand_table_ids: {message}"):
            expand_table_ids(*arguments, backend=backend)
    with pytest.raises(ValueError, match="get_table_range: feature_offsets must have one dimension"):
        get_table_range(offsets, offsets[:0], backend=backend)


@kernel_backend
def test_misaligned_storage_is_refused(backend):
    tags, slots, *rest = table([range(40)], backend).storage()
    tags = torch.cat([tags[:1], tags])[1:]
    with pytest.raises((RuntimeError, ValueError), match=r"table_lookup: .*invalid argument"):
        table_lookup(tags, slots, *rest, tensor([1], backend), tensor([0], backend), backend=backend)


@every_backend
def test_hostile_offsets_and_storage_read_nothing_outside(backend):
    for offsets in ([0, 9, 3, -5, 7], [2**62, -(2**62), 5, 5, 5], [-3, -2, -1, 0, 1], [7, 7, 7, 7, 7]):
        given = tensor(offsets, backend)
        for tables in ([0, 1, 2], [0, 2**62, 4], [5, -7, 2], [0, 0, 0]):
            got = expand_table_ids(given, tensor(tables, backend), 2, 2, 12, backend=backend)
            assert got.shape == (12,)
            assert -1 <= int(got.min()) <= int(got.max()) <= 1
            got = get_table_range(given, tensor(tables, backend), backend=backend)
            assert set(got.tolist()) <= set(offsets)
    tags, slots, _, seeds = table([range(40)], backend).storage()
    for bounds in ([0, 4], [-1, 3], [2, 1], [2**62, 2**62 + 1], [-(2**63), 2**63 - 1]):
        found, rows = table_lookup(tags, slots, tensor(bounds, backend), seeds, tensor([1, 2], backend),
                                   tensor([0, 0], backend), backend=backend)  # fmt: skip
        assert not found.any()
        assert not rows.any()


@every_backend
def test_which_table_a_key_belongs_to(backend):
    """Three features of two bags; the first table has two of them, the second none."""
    offsets = torch.tensor([0, 1, 3, 3, 6, 6, 8], dtype=torch.int32, device=_device(backend))
    tables = tensor([0, 2, 2, 3], backend)
    assert expand_table_ids(offsets, tables, 3, 2, 9, backend=backend).tolist() == [0] * 6 + [2] * 2 + [-1]
    assert expand_table_ids(offsets, None, 3, 2, 8, backend=backend).tolist() == [0] * 3 + [1] * 3 + [2] * 2
    assert get_table_range(offsets, tables, backend=backend).tolist() == [0, 6, 6, 8]
    assert expand_table_ids(offsets[:1], tensor([0], backend), 0, 2, 1, backend=backend).tolist() == [-1]


# ---------------------------------------------------------------------------------------------------------- IdTable


@every_backend
def test_the_kth_id_has_row_k_whatever_its_value(backend):
    vocabularies = [list(EXTREMES), [], [3, -1, 2**40], list(range(1000))[::-1]]
    t = table(vocabularies, backend)
    dicts = [{i: row for row, i in enumerate(ids, 1)} for ids in vocabularies]
    check_against(dicts, t, backend, others=[5, 2**62, -7])
    empty = tensor([], backend)
    assert [r.shape for r in t(empty, empty, backend=backend)] == [(0,), (0,)]
    for outside in (-1, 4, 2**31, -(2**31)):
        found, rows = t(tensor([0, -1], backend), tensor([outside] * 2, backend), backend=backend)
        assert not found.any()
        assert not rows.any()


@every_backend
def test_an_id_inserted_twice_keeps_its_first_row(backend):
    t = table([[], [10, 11]], backend)
    ids, tables = tensor([5, 10, 5, 6, 5, 6, 11], backend), tensor([0, 1, 0, 0, 0, 1, 1], backend)
    assert t.insert(ids, tables).tolist() == [1, 1, 1, 2, 1, 3, 2]
    assert t.insert(tensor([6, 7, 5], backend), tensor([0, 0, 0], backend)).tolist() == [2, 3, 1]
    rows = tensor([90, 91, 92, 93], backend)
    assert t.insert(tensor([8, 5, 8, 9], backend), tensor([0] * 4, backend), rows).tolist() == [90, 1, 90, 93]
    assert t.insert(tensor([4], backend), tensor([0], backend)).tolist() == [94]
    check_against([{5: 1, 6: 2, 7: 3, 8: 90, 9: 93, 4: 94}, {10: 1, 11: 2, 6: 3}], t, backend)
    many = tensor(list(range(500)) * 3, backend)
    assert t.insert(many[torch.randperm(1500)], torch.ones_like(many)).unique().numel() == 500


@every_backend
def test_full_tables(backend):
    """No empty slot is left, so that a search for an unknown id sees every bucket, and ends."""
    ids = list(range(0, 64 * 977, 977))
    t = table([ids, ids[:16]], backend, load_limit=1.0)
    assert t.load_factor == 1.0
    dicts = [{i: row for row, i in enumerate(known, 1)} for known in (ids, ids[:16])]
    check_against(dicts, t, backend, others=range(1, 100))
    gone = tensor(ids[10:20], backend)
    assert t.erase(gone, torch.zeros_like(gone)).all()
    for i in ids[10:20]:
        del dicts[0][i]
    check_against(dicts, t, backend, others=range(1, 100))
    assert t.insert(tensor([7], backend), tensor([0], backend)).tolist() == [65]
    check_against([dicts[0] | {7: 65}, dicts[1]], t, backend, others=range(8, 100))


@every_backend
def test_growth_in_mid_use(backend):
    """From nothing, in batches; the other table's ids stay where they are."""
    t, known = table([[], range(-50, 0)], backend), {}
    for start in range(0, 700, 90):
        ids = [i * 31 for i in range(start, start + 100)]  # ten of them again
        t.insert(tensor(ids, backend), tensor([0] * 100, backend))
        for i in ids:
            known.setdefault(i, len(known) + 1)
        check_against([known, {i: i + 51 for i in range(-50, 0)}], t, backend, others=[1, 2])
        assert max(n / s for n, s in zip(t.sizes, t.slots_of_tables, strict=True)) <= t.load_limit


@every_backend
def test_erased_slots_are_used_again(backend):
    """Churn at a constant size does not make the storage grow for ever."""
    t = table([range(200)], backend)
    for batch in range(1, 12):
        t.erase(tensor(range((batch - 1) * 200, batch * 200), backend), None)
        t.insert(tensor(range(batch * 200, batch * 200 + 200), backend), None)
    assert t.slots_of_tables[0] <= 512
    check_against([{i: i + 1 for i in range(2200, 2400)}], t, backend, others=range(0, 2200, 7))


def keys_of_one_bucket(count: int, seed: int) -> list[int]:
    """Ids whose hash's upper 40 bits are zero: their search begins in the first bucket of any table."""
    mask = (1 << 64) - 1
    inverses = [pow(factor, -1, 1 << 64) for factor in (0xC4CEB9FE1A85EC53, 0xFF51AFD7ED558CCD)]
    found = []
    for h in range(count):
        h ^= h >> 33
        for inverse in inverses:
            h = h * inverse & mask
            h ^= h >> 33
        h = (h - seed) & mask
        found.append(h - (1 << 64) if h >> 63 else h)
    return found


@fast_backend
def test_ten_thousand_keys_of_one_bucket(backend):
    ids = keys_of_one_bucket(10000, seed=77)
    t = table([ids], backend, seeds=[77])
    assert (eager.first_bucket(tensor(ids, backend), 77, len(t.tags) // 16) == 0).all()
    check_against([{i: row for row, i in enumerate(ids, 1)}], t, backend, others=keys_of_one_bucket(10010, 77)[10000:])
    even = tensor(ids[::2], backend)
    assert t.erase(even).all()
    check_against([{i: row for row, i in enumerate(ids, 1) if row % 2 == 0}], t, backend)


@every_backend
def test_state_dict_into_a_table_of_another_capacity(backend):
    first = table([range(300), EXTREMES, []], backend)
    first.erase(tensor([299, 7], backend), tensor([0, 0], backend))
    state = first.state_dict()
    assert {name: tuple(value.shape) for name, value in state.items()} == {
        "ids": (309,), "rows": (309,), "offsets": (4,), "next_rows": (3,)
    }  # fmt: skip
    dicts = [{i: i + 1 for i in range(299) if i != 7}, {i: row for row, i in enumerate(EXTREMES, 1)}, {}]
    for capacity in ([0, 0, 0], [5000, 0, 100]):
        other = table([[1], [2], [3]], backend, capacity=capacity, seeds=[8, 9, 10])
        other.load_state_dict(state)
        check_against(dicts, other, backend, others=[7, 299])
        assert other.insert(tensor([7], backend), tensor([0], backend)).tolist() == [301]  # no row is given twice
        again = other.state_dict()
        assert again["ids"][:299].tolist() == [*(i for i in range(299) if i != 7), 7]


def test_a_state_dict_that_does_not_fit_is_refused_and_changes_nothing():
    t = table([[5, 6]], "eager")
    state = t.state_dict()
    for wrong, message in (
        ({"offsets": torch.tensor([0, 1, 2])}, "expected 1 tables"),
        ({"offsets": torch.tensor([0, 1])}, "offsets must rise"),
        ({"rows": torch.tensor([0, 1])}, "rows must be above 0"),
    ):
        with pytest.raises(RuntimeError, match=message):
            t.load_state_dict(state | wrong)
        check_against([{5: 1, 6: 2}], t, "eager")
    del state["rows"]
    with pytest.raises(RuntimeError, match=r'Missing key.*"rows"'):
        t.load_state_dict(state)


def test_errors_of_the_table():
    with pytest.raises(ValueError, match="vocabulary 1: 3 ids, of which only 2 are different"):
        IdTable([[1], [1, 2, 1]])
    with pytest.raises(ValueError, match=r"load_limit must be above 0 and at most 1; got 1\.5"):
        IdTable([[1]], load_limit=1.5)
    with pytest.raises(ValueError, match="seeds must have a number for each of 1 tables; got 2"):
        IdTable([[1]], seeds=[1, 2])
    with pytest.raises(ValueError, match="vocabulary 0 must be int64"):
        IdTable([[1.5]])
    t = IdTable([[1], [2]])
    with pytest.raises(ValueError, match="table_ids must be given: there are 2 tables"):
        t(torch.tensor([1]))
    for outside in (-1, 2):
        with pytest.raises(ValueError, match=f"table_ids must be from 0 to 1; got {outside}"):
            t.insert(torch.tensor([1, 2]), torch.tensor([0, outside]))
    with pytest.raises(ValueError, match="rows must be like ids, and above 0"):
        t.insert(torch.tensor([1]), torch.tensor([0]), torch.tensor([0]))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("iel"), st.lists(st.sampled_from((*EXTREMES, *range(20))), max_size=40))))
def test_any_sequence_of_operations(steps):
    t, known, next_row = table([[]], "eager"), {}, 1
    for what, ids in steps:
        keys = tensor(ids, "eager")
        if what == "i":
            for i in ids:
                if i not in known:
                    known[i], next_row = next_row, next_row + 1
            assert t.insert(keys).tolist() == [known[i] for i in ids]
        elif what == "e":
            assert t.erase(keys).tolist() == [i in known for i in ids]
            for i in ids:
                known.pop(i, None)
        check_against([known], t, "eager", others=ids)


def against_a_dict(operations: int, backend: str) -> None:
    """Random inserts, erases and look-ups, by batches of up to 10^4, of ids that often come again."""
    draw, tables = np.random.default_rng(7), 3
    pick = random.Random(7)
    t = table([[]] * tables, backend)
    dicts, next_rows, done = [{} for _ in range(tables)], [1] * tables, 0
    while done < operations:
        count = pick.randint(1, min(10000, operations - done))
        ids = draw.integers(-operations // 40 - 20, operations // 40 + 20, count) * 0x1234567891
        numbers = draw.integers(0, tables, count)
        keys, owners = (torch.from_numpy(a).to(_device(backend)) for a in (ids, numbers))
        pairs = [*zip(ids.tolist(), numbers.tolist(), strict=True)]
        what = pick.choices(("insert", "erase", "look up"), (4, 3, 3))[0]
        if what == "insert":
            for i, n in pairs:
                if i not in dicts[n]:
                    dicts[n][i], next_rows[n] = next_rows[n], next_rows[n] + 1
            assert t.insert(keys, owners).tolist() == [dicts[n][i] for i, n in pairs]
        elif what == "erase":
            assert t.erase(keys, owners).tolist() == [i in dicts[n] for i, n in pairs]
            for i, n in pairs:
                dicts[n].pop(i, None)
        else:
            found, rows = t(keys, owners, backend=backend)
            assert found.tolist() == [i in dicts[n] for i, n in pairs]
            assert rows.tolist() == [dicts[n].get(i, 0) for i, n in pairs]
        done += count
    assert t.sizes == [len(d) for d in dicts]
    for n, known in enumerate(dicts):
        ids, rows = t.items(n)
        assert dict(zip(ids.tolist(), rows.tolist(), strict=True)) == known


@fast_backend
def test_random_operations_agree_with_a_dict(backend):
    against_a_dict(60_000, backend)


@pytest.mark.slow
@pytest.mark.parametrize("backend", _parameters(*["cuda"] * (DEVICE.type == "cuda"), "cpp"), indirect=True)
def test_ten_million_random_operations_agree_with_a_dict(backend):
    against_a_dict(10_000_000, backend)


@GPU
@pytest.mark.sanitizer
def test_insertion_erasure_and_look_up_under_the_sanitizer():
    against_a_dict(30_000, "cuda")


@GPU
def test_a_captured_look_up_sees_what_is_inserted_later():
    t = IdTable([range(100)], capacity=[1000], device=DEVICE)
    keys, tables = torch.arange(0, 200, device=DEVICE), torch.zeros(200, dtype=torch.int32, device=DEVICE)
    t(keys, tables)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found, rows = t(keys, tables)
    t.insert(torch.arange(100, 150, device=DEVICE))
    graph.replay()
    assert torch.equal(found, keys < 150)
    assert torch.equal(rows, torch.where(keys < 150, keys + 1, 0))


# --------------------------------------------------------------------------------------------------- TableEmbedding


def pooled(ids: list[list[int]], known: dict[int, int], weights: torch.Tensor, mode: str) -> torch.Tensor:
    """The bags' sums or means, one id after the other."""
    out = []
    for bag in ids:
        rows = [weights[known[i]].double() for i in bag if i in known]
        total = sum(rows, torch.zeros(weights.shape[1], dtype=torch.float64, device=weights.device))
        out.append(total / max(1, len(rows)) if mode == "mean" else total)
    return torch.stack(out)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("feature_tables", [[0, 1, 2], [0, 0, 1, 2], [2, 0, 1, 0]], ids=str)
@pytest.mark.parametrize("mode", ["none", "sum", "mean"])
def test_table_embedding(mode, feature_tables, dtype):
    """Features that share a table, in any order; misses, empty bags, and a NaN in the row that stands for no id."""
    vocabularies = [[5, -1, 0], [2**63 - 1, 5], [7]]
    table = IdTable(vocabularies, device=DEVICE)
    weights = [torch.randn(len(v) + 1, 5, device=DEVICE).to(dtype) for v in vocabularies]
    for w in weights:
        w[0] = torch.nan
    table.insert(tensor([123], "eager"), tensor([2], "eager"))  # whose row lies beyond the weights
    module = TableEmbedding(table, weights, feature_tables=feature_tables, mode=mode)
    choice = [0, 5, -1, 7, 123, 2**63 - 1]
    generator, batch = random.Random(3), 4
    lengths = [generator.randint(0, 5) for _ in range(batch * len(feature_tables))]
    bags = [[generator.choice(choice) for _ in range(length)] for length in lengths]
    bags[1] = [99, 99]
    known = [{i: row for row, i in enumerate(v, 1)} for v in vocabularies]
    keys = tensor([i for bag in bags for i in bag], "eager")
    offsets = torch.tensor([0, *np.cumsum([len(bag) for bag in bags])], device=DEVICE)
    for each in (offsets, offsets.int()):
        got = module(keys, each)
        assert got.dtype == dtype
        if mode == "none":
            owners = [feature_tables[n // batch] for n, bag in enumerate(bags) for _ in bag]
            rows = zip(keys.tolist(), owners, strict=True)
            want = torch.cat([pooled([[i]], known[t], weights[t], mode) for i, t in rows])
        else:
            want = torch.stack([pooled(bags[f * batch : (f + 1) * batch], known[t], weights[t], mode)
                                for f, t in enumerate(feature_tables)], dim=1)  # fmt: skip
        torch.testing.assert_close(got, want.to(dtype))
    if mode == "none":
        one = tensor([[generator.choice(choice) for _ in feature_tables] for _ in range(6)], "eager")
        want = torch.stack([pooled([[int(i)] for i in one[:, f]], known[t], weights[t], mode)
                            for f, t in enumerate(feature_tables)], dim=1)  # fmt: skip
        torch.testing.assert_close(module(one), want.to(dtype))


def test_table_embedding_of_nothing():
    module = TableEmbedding(IdTable([[1], []]), [torch.ones(2, 3), torch.ones(1, 3)], mode="mean")
    none = torch.empty(0, dtype=torch.int64)
    assert module(none, torch.tensor([0])).shape == (0, 2, 3)
    assert module(none, torch.zeros(9, dtype=torch.int64)).tolist() == [[[0.0] * 3] * 2] * 4


def test_errors_of_table_embedding():
    table = IdTable([[1], [2]])
    weights = [torch.ones(2, 3)] * 2
    with pytest.raises(ValueError, match="mode must be one of none, sum, mean; got 'max'"):
        TableEmbedding(table, weights, mode="max")
    with pytest.raises(ValueError, match="weights must be 2 tensors, one a table; got 1"):
        TableEmbedding(table, weights[:1])
    with pytest.raises(ValueError, match="feature_tables must be from 0 to 1; got 2"):
        TableEmbedding(table, weights, feature_tables=[0, 2])
    module = TableEmbedding(table, weights, mode="sum")
    keys = torch.tensor([1, 2, 3, 4])
    with pytest.raises(ValueError, match='mode "sum" needs offsets'):
        module(keys.view(2, 2))
    for offsets, message in (
        ([0, 2, 4, 4], r"offsets \[2 · B \+ 1\]; got \[4\] and \[4\]"),
        ([1, 2, 2, 3, 4], r"offsets\[0\] must be 0; got 1"),
        ([0, 3, 2, 3, 4], r"offsets\[2\] = 2 is below offsets\[1\] = 3"),
        ([0, -3, 2, 3, 4], r"offsets\[1\] = -3 is below offsets\[0\] = 0"),
        ([0, 1, 2, 3, 5], r"offsets\[4\] must be the number of keys, 4; got 5"),
    ):
        with pytest.raises(ValueError, match=message):
            module(keys, torch.tensor(offsets))
    with pytest.raises(ValueError, match=r"keys must be \[B, 2\] without offsets; got \[4\]"):
        TableEmbedding(table, weights)(keys)


WHY_NOT_AUTO = runtime.why_not("cuda" if DEVICE.type == "cuda" else "cpp", DEVICE.type)


@pytest.mark.skipif(bool(WHY_NOT_AUTO), reason=WHY_NOT_AUTO or "it runs here")
def test_table_embedding_compiles_and_exports():
    module = TableEmbedding(IdTable([[1, 5], [2]], device=DEVICE), [torch.randn(3, 4), torch.randn(2, 4)], mode="mean")
    keys, offsets = (torch.tensor(values, device=DEVICE) for values in ([1, 9, 5, 2, 2], [0, 2, 3, 4, 5]))
    want = module(keys, offsets)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(keys, offsets), want)
    program = torch.export.export(module, (keys, offsets))
    assert torch.equal(program.module()(keys, offsets), want)
