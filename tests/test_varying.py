"""kernels/dispatch/varying.py: one plan serves ragged tensors of every length for which it is right, and no other."""

import itertools
import shutil
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import runtime
from kernels.device.launch import cdiv
from kernels.dispatch.core import load_core, on_host
from kernels.dispatch.op import Op
from kernels.dispatch.varying import Varying
from kernels.ops.embedding_bags.op import OP as BAGS
from kernels.ops.embedding_bags_apart.op import OP as APART
from kernels.ops.embedding_bags_sort.op import OP as SORT
from kernels.ops.embedding_bags_update.op import OP as UPDATE
from kernels.ops.id_table.op import EXPAND, LOOKUP
from kernels.ops.id_table.table import IdTable

pytestmark = [
    pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is missing"),
    pytest.mark.skipif(runtime.device().type == "cuda", reason="for a machine without a GPU"),
]

# What a size is computed with: of N, and of a number of its own.
STEPS = {
    "add": lambda n, k: n + k,
    "from": lambda n, k: k - n,
    "times": lambda n, k: k * n,
    "divide": lambda n, k: n // (k or 1),
    "divided": lambda n, k: k // (n or 1),
    "remainder": lambda n, k: n % (k or 1),
    "remainder of": lambda n, k: k % (n or 1),
    "cdiv": lambda n, k: cdiv(n, k or 1),
    "negative": lambda n, k: -n,
    "at most": lambda n, k: min(n, k),
    "at least": lambda n, k: max(k, n),
    "where": lambda n, k: n + 1 if n < k else k,
    "unless": lambda n, k: k + 1 if n >= k or n == 7 else n,
    "if any": lambda n, k: n if n else k,
    "if not": lambda n, k: n if n != k else 3,
    "more": lambda n, k: n if n > k and n <= 2 * k else n + 2,
    "number": lambda n, k: int(n) + k,
}
programs = st.lists(st.tuples(st.sampled_from(sorted(STEPS)), st.integers(-9, 9)), min_size=1, max_size=6)
computed: dict[int, list[tuple[str, int]]] = {}
cases = itertools.count()


def size(n, steps):
    for name, k in steps:
        n = STEPS[name](n, k)
    return n % 50


@pytest.fixture(scope="module")
def sized():
    """An op whose output has the size that `computed` says, by the case, of the length of its argument."""
    sys.modules["toy_sized.triton_launch"] = SimpleNamespace(forward=lambda *arguments: None)
    load_core()
    op = Op(
        "toy_sized",
        "(Ragged x, int case) -> Tensor out",
        eager=None,
        outputs={"out": lambda arguments: ((size(arguments["x"].numel(), computed[arguments["case"]]),), torch.int8)},
        package="toy_sized",
    )
    op.loader.declare("triton", "cpu", "")
    yield op.overload("triton")
    del sys.modules["toy_sized.triton_launch"]


@settings(max_examples=150, deadline=None, derandomize=True)
@given(programs, st.lists(st.integers(0, 40), min_size=2, max_size=6))
def test_a_size_is_what_python_computes_with_each_length(sized, steps, lengths):
    case = next(cases)
    computed[case] = steps
    for length in lengths:
        out = sized(torch.empty(length, dtype=torch.int8), case)
        assert len(out) == size(length, steps), length


@pytest.mark.parametrize("step", STEPS)
def test_each_step_around_its_bound(sized, step):
    for k, first in itertools.product((-3, 0, 1, 5), range(8)):
        case = next(cases)
        computed[case] = [(step, k)]
        for length in (first, *range(12)):
            assert len(sized(torch.empty(length, dtype=torch.int8), case)) == size(length, computed[case])


def test_a_number_that_is_needed_as_such_holds_for_one_length():
    n = Varying(5)
    assert list(range(n)) == [0, 1, 2, 3, 4]
    assert n.conditions
    with pytest.raises(TypeError):
        hash(n)
    with pytest.raises(TypeError):
        n * 0.5
    with pytest.raises(TypeError):
        n << 1
    with pytest.raises(TypeError):
        n < 2.5  # noqa: B015
    before = len(n.conditions)
    assert f"kernel_{n}" == "kernel_5"
    assert 100 // (n - 4) == 100
    assert len(n.conditions) == before + 3


# ------------------------------------------------------------------------------------------------------------------
# The ops whose ids are ragged.


@pytest.fixture
def planned(monkeypatch):
    """The ops that were planned, one after the other."""
    names = []
    for op in (BAGS, APART, SORT, UPDATE, LOOKUP, EXPAND):
        allocations = op.allocations

        def noted(form, arguments, op=op, allocations=allocations):
            names.append(op.forms[form].name)
            return allocations(form, arguments)

        monkeypatch.setattr(op, "allocations", noted)
    return names


def ragged(count: int, features: int = 3, batch: int = 4):
    random = torch.Generator().manual_seed(count)
    lengths = torch.bincount(torch.randint(features * batch, (count,), generator=random), minlength=features * batch)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    tables, row_offsets = torch.randn(30, 8, generator=random), torch.tensor([0, 5, 12, 30])
    return tables, row_offsets, torch.randint(5, (count,), generator=random), offsets


@pytest.mark.parametrize("weighted", [False, True])
def test_another_number_of_ids_is_no_new_plan(planned, weighted):
    def step(backend, count):
        tables, row_offsets, ids, offsets = ragged(count)
        tables.requires_grad_()
        weights = torch.rand(count, generator=torch.Generator().manual_seed(1)).requires_grad_() if weighted else None
        out = BAGS.call(backend, tables, row_offsets, ids, offsets, "sum" if weighted else "mean", weights, 2, "zero")
        out.square().sum().backward()
        return out.detach(), tables.grad, weights.grad if weighted else None

    with on_host():
        for count in (40, 41, 64, 100, 333):
            for got, expected in zip(step("cuda", count), step("eager", count), strict=True):
                torch.testing.assert_close(got, expected)
            if count == 40:
                first = sorted(planned)
        assert sorted(planned) == first, "a later length was planned"
        step("cuda", 0)
    assert len(planned) > len(first), "no ids at all are another kind of call"


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_other_numbers_of_ids_in_a_list_are_no_new_plan(planned, mode):
    """Whatever each of them is, and what they add up to, which is N of the gradient."""
    tables = [torch.randn(height, 8) for height in (5, 7, 19)]

    def step(backend, counts):
        random = torch.Generator().manual_seed(sum(counts))
        leaves = [table.clone().requires_grad_() for table in tables]
        ids = [torch.randint(5, (count,), generator=random) for count in counts]
        offsets = [torch.tensor([0, count // 3, count // 2, count // 2]) for count in counts]
        out = APART.call(backend, leaves, ids, offsets, mode, False)
        out.square().sum().backward()
        return out.detach(), *(leaf.grad for leaf in leaves)

    with on_host():
        for counts in ((40, 41, 43), (90, 90, 31), (31, 50, 50), (8, 60, 8), (1, 0, 99), (0, 99, 1), (0, 6, 0)):
            for got, expected in zip(step("cuda", counts), step("eager", counts), strict=True):
                torch.testing.assert_close(got, expected)
            if counts == (40, 41, 43):
                first = sorted(planned)
        assert sorted(planned) == first, "later lengths were planned"
        for count in (20, 50, 31):
            step("cuda", (count,) * 3)
        again = planned.count("embedding_bags_apart"), planned.count("embedding_bags_apart_backward_prepared")
        assert again == (2, 1), "only of one length are they another kind of call, of which a check may ask"


def test_lengths_that_do_not_agree_are_refused():
    tables, row_offsets, ids, offsets = ragged(40)
    with on_host():
        BAGS.call("cuda", tables, row_offsets, ids, offsets, "sum", torch.rand(40), -1, "zero")
        with pytest.raises(ValueError, match="per_sample_weights"):
            BAGS.call("cuda", tables, row_offsets, ids, offsets, "sum", torch.rand(41), -1, "zero")


def test_a_check_that_asks_for_n_is_asked_again():
    """Without bags there is a gradient for each id."""
    grad = torch.ones(8, 4)

    def update(count):
        tables, keys = torch.zeros(40, 4), (2 * torch.arange(count) + 1).int()
        positions, rate = torch.arange(count).int(), torch.tensor(1.0)
        with on_host():
            UPDATE.call(
                "cuda", tables, tables.new_empty(0), keys, positions, grad, None, None, None, rate, "sgd", 0.0, 0
            )
        return tables

    assert torch.equal(update(8)[:8], -grad)
    with pytest.raises(ValueError, match=r"bag_grad must have shape \[12, 4\]"):
        update(12)


def test_an_update_by_another_number_of_ids_is_no_new_plan(planned):
    def update(backend, count):
        tables, row_offsets, ids, offsets = ragged(count)
        grad = torch.randn(4, 3, 8, generator=torch.Generator().manual_seed(2))
        keys = SORT.call(backend, ids, row_offsets, offsets, 30, -1, False, 32768) if backend == "cuda" else \
            SORT.eager(ids, row_offsets, offsets, 30, -1, False, 32768)
        UPDATE.call(backend, tables, tables.new_empty(0), keys[0], keys[1], grad.flatten(0, 1), keys[2], None, None,
                    0.5, "sgd", 0.0, 0)
        return tables

    with on_host():
        for count in (40, 41, 64, 100, 333):
            torch.testing.assert_close(update("cuda", count), update("eager", count))
        assert planned.count("embedding_bags_update") == planned.count("embedding_bags_sort") == 1


def test_a_look_up_of_another_number_of_keys_is_no_new_plan(planned):
    table = IdTable([range(0, 90, 3), range(50)], backend="cpp")
    for count in (40, 41, 64, 100, 333):
        keys, tables = torch.arange(count) % 97, torch.arange(count) % 2
        for got, expected in zip(table(keys, tables), table(keys, tables, backend="eager"), strict=True):
            assert torch.equal(got, expected)
        with pytest.raises(ValueError, match="table_ids must have shape"):
            table(keys, tables[1:])
    assert planned.count("table_lookup") == 1


@pytest.mark.parametrize("backend", ["cpp", "cuda"])
def test_tables_of_another_number_of_keys_are_no_new_plan(planned, backend):
    """The number is an argument, and no tensor has it as its length."""

    def expanded(backend, count):
        offsets = torch.linspace(0, count, 7).long()
        return EXPAND.call(backend, offsets, None, 3, 2, count)

    with on_host() if backend == "cuda" else nullcontext():
        for count in (40, 41, 64, 100, 333, 6):
            out = expanded(backend, count)
            assert out.shape == (count,)
            assert torch.equal(out, expanded("eager", count)), count
        assert planned.count("expand_table_ids") == 1
        assert expanded(backend, 0).shape == (0,)
        assert planned.count("expand_table_ids") == 2, "no keys at all are another kind of call"
        with pytest.raises(ValueError, match="num_elements must not be negative; got -1"):
            EXPAND.call(backend, torch.zeros(7, dtype=torch.int64), None, 3, 2, -1)
