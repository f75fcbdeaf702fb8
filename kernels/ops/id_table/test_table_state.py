"""IdTable as a whole: its state_dict, changes that are broken off, and storage that is replaced."""

from __future__ import annotations

import copy
import itertools
import os
import subprocess
import sys
import threading
import weakref

import pytest
import torch
from torch import nn

from ... import IdTable
from ...check.contract import DEVICE, GPU
from ...runtime import KERNELS
from . import eager, storage
from . import table as table_module
from .conftest import check_against, device_of, every_backend, fast_backend, table, tensor
from .spec import EXTREMES

WRITING = {eager.table_claim_.__code__, eager.table_erase_.__code__}  # the rest of eager.py only reads


@every_backend
def test_state_dict_into_a_table_of_another_capacity(backend):
    first = table([range(300), EXTREMES, []], backend)
    first.erase(tensor([299, 7], backend), tensor([0, 0], backend))
    state = first.state_dict()
    assert {name: tuple(value.shape) for name, value in state.items()} == {
        "ids": (309,), "rows": (309,), "offsets": (4,), "next_rows": (3,)
    }
    dicts = [{i: i + 1 for i in range(299) if i != 7}, {i: row for row, i in enumerate(EXTREMES, 1)}, {}]
    for capacity in ([0, 0, 0], [5000, 0, 100]):
        other = table([[1], [2], [3]], backend, capacity=capacity, seeds=[8, 9, 10])
        other.load_state_dict(state)
        check_against(dicts, other, backend, others=[7, 299])
        assert other.insert(tensor([7], backend), tensor([0], backend)).tolist() == [301]  # no row is given twice
        again = other.state_dict()
        assert again["ids"][:299].tolist() == [*(i for i in range(299) if i != 7), 7]


def test_loading_does_not_look_at_what_is_there(monkeypatch):
    """Which would sort every id."""
    t, state = table([[1, 2]], "eager"), table([[5, 6]], "eager").state_dict()
    with monkeypatch.context() as patch:
        patch.setattr(IdTable, "state", lambda self: pytest.fail("state was called"))
        t.load_state_dict(state)
    check_against([{5: 1, 6: 2}], t, "eager", others=[1, 2])


def test_a_state_dict_that_does_not_fit_is_refused_and_changes_nothing():
    t = table([[5, 6]], "eager")
    state = t.state_dict()
    for wrong, message in (
        ({"offsets": torch.tensor([0, 1, 2])}, "expected 1 tables"),
        ({"offsets": torch.tensor([0, 1])}, "offsets must rise"),
        ({"rows": torch.tensor([0, 1])}, "table 0: id 5 has row 0, which must be from 1 to 2"),
        ({"rows": torch.tensor([1, 3])}, "table 0: id 6 has row 3, which must be from 1 to 2"),
        ({"next_rows": torch.tensor([2])}, "table 0: id 6 has row 2, which must be from 1 to 1"),
        ({"next_rows": torch.tensor([0])}, "table 0: its next row must be above 0; got 0"),
        ({"ids": torch.tensor([6, 6])}, "table 0: id 6 is given twice"),
        ({"ids": torch.tensor([5.0, 6.0])}, "ids must be int32 or int64; got float32"),
    ):
        with pytest.raises(RuntimeError, match=message):
            t.load_state_dict(state | wrong)
        check_against([{5: 1, 6: 2}], t, "eager")
    del state["rows"]
    with pytest.raises(RuntimeError, match=r'Missing key.*"rows"'):
        t.load_state_dict(state)


# ---------------------------------------------------------------------------------------- changes that are broken off


def broken_off(lines: int, change) -> bool:
    """Whether change() is interrupted, as Ctrl-C does it, after so many lines of what changes a table."""

    def trace(frame, event, _):
        nonlocal lines
        if frame.f_code.co_filename not in (table_module.__file__, storage.__file__) and frame.f_code not in WRITING:
            return None
        lines -= event == "line"
        if lines < 0:
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        change()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


@fast_backend
@pytest.mark.parametrize("change", ["insert", "erase", "load"])
def test_a_change_that_is_broken_off_at_any_line(change, backend):
    """What look-ups say is old or new, nothing else. Afterwards, the change made again (every second time) or not, the
    table counts right and takes more ids."""
    first, old = table([range(20), [7]], backend), [{i: i + 1 for i in range(20)}, {7: 1}]
    first.erase(tensor([19], backend), tensor([0], backend))
    del old[0][19]
    other = table([range(100, 160), []], backend)
    keys = tensor([3, *range(30, 60), 30], backend)  # more than the storage takes
    zeros = torch.zeros_like(keys)
    if change == "load":
        arguments, new = (*other.state().values(),), [{i: i - 99 for i in range(100, 160)}, {}]
    elif change == "insert":
        arguments, new = (keys, zeros), [old[0] | {i: i - 9 for i in range(30, 60)}, old[1]]
    else:
        arguments, new = (keys[:2], zeros[:2]), [{i: row for i, row in old[0].items() if i != 3}, old[1]]
    # On a GPU a line of eager's takes a hundred times as long. Some of them do there: the changes are the same.
    for lines in itertools.count(step=7 if backend == "eager" and DEVICE.type == "cuda" else 1):
        t = table([[], []], backend)
        t.load(*first.state().values())
        t.insert(tensor([2], backend), tensor([0], backend))
        broken = broken_off(lines, lambda t=t: getattr(t, change)(*arguments))
        asked = tensor(range(-2, 170), backend)
        for number in range(2):
            found, rows = t(asked, torch.full_like(asked, number), backend=backend)
            for i, there, row in zip(asked.tolist(), found.tolist(), rows.tolist(), strict=True):
                assert row in (old[number].get(i, 0), new[number].get(i, 0))
                assert there == (row > 0)
        if lines % 2:
            getattr(t, change)(*arguments)
            for number, known in enumerate(new):
                ids, rows = t.items(number)
                assert sorted(ids.tolist()) == sorted(known)
                assert all(rows.tolist()[n] == old[number].get(i, known[i]) for n, i in enumerate(ids.tolist()))
        counted = t.sizes, t._filled
        assert counted == tuple(numbers.tolist() for numbers in storage.count(t.storage())[:2])
        more = tensor(range(1000, 1040), backend)
        assigned = t.insert(more, torch.zeros_like(more))
        ids, rows = t.items(0)
        assert len(rows.unique()) == len(ids)
        assert torch.equal(rows[-40:], assigned)
        if not broken:
            break
    assert lines > 10


def test_a_lack_of_memory_while_a_table_grows_leaves_it_as_it_was(monkeypatch):
    t = table([range(20), [7]], "eager")
    before = t.storage()

    def fail(*_):
        raise torch.OutOfMemoryError

    with monkeypatch.context() as patch:
        patch.setattr(storage, "fill", fail)
        with pytest.raises(torch.OutOfMemoryError):
            t.insert(tensor(range(100), "eager"), tensor([0] * 100, "eager"))
        with pytest.raises(torch.OutOfMemoryError):
            t.load(**t.state())
    assert all(now is then for now, then in zip(t.storage(), before, strict=True))
    check_against([{i: i + 1 for i in range(20)}, {7: 1}], t, "eager", others=range(20, 100))


def test_another_dtype_leaves_ids_integers():
    """Module.type, which BatchNorm's counter bears."""
    ids = [2**60 + 1, 16_777_217, 5]
    table = IdTable([ids])
    for dtype in (torch.float32, torch.int64):
        table.type(dtype)
        assert sorted(table.state_dict()["ids"].tolist()) == sorted(ids)


def test_what_is_inserted_in_inference_mode_can_be_changed_outside():
    t = table([[1]], "eager")
    with torch.inference_mode():
        t.insert(tensor(range(100), "eager"))
    t.insert(tensor(range(100, 110), "eager"))
    t.erase(tensor([5], "eager"))
    assert t.sizes == [109]


# ------------------------------------------------------------------------------------------------------- CUDA graphs


@pytest.mark.parametrize("captured", [False, True])
def test_storage_that_a_graph_knows_is_kept(monkeypatch, captured):
    t = table([[1]], "eager")
    monkeypatch.setattr(table_module, "_is_captured", lambda tensor: captured)
    t(tensor([1], "eager"))
    monkeypatch.undo()
    known = [weakref.ref(tensor) for tensor in t.storage()[:3]]
    t.insert(tensor(range(100), "eager"))
    t.load(**t.state())
    assert [ref() is not None for ref in known] == [captured] * 3


def test_storage_without_slots_is_kept_for_each_graph_and_for_no_copy(monkeypatch):
    t = table([[]], "eager")
    monkeypatch.setattr(table_module, "_is_captured", lambda tensor: True)
    known = []
    for _ in range(2):
        t(tensor([1], "eager"))
        known.append(weakref.ref(t.storage()[2]))
        t.load(**t.state())
    assert all(ref() is not None for ref in known)
    assert not copy.deepcopy(t)._captured


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
    # In other storage, which the graph does not know, while new tensors take the memory that is free.
    t.insert(torch.arange(150, 5000, device=DEVICE))
    assert t.slots_of_tables[0] > 2000
    others = [torch.full((size,), -1, dtype=torch.int64, device=DEVICE) for size in range(100, 4000, 100)]
    graph.replay()
    assert torch.equal(found, keys < 150)
    assert torch.equal(rows, torch.where(keys < 150, keys + 1, 0))
    assert all((other == -1).all() for other in others)


# ---------------------------------------------------------------------------------------- look-ups beside a change


class Torn(IdTable):
    """An IdTable that another thread changes right behind the n-th reading of an attribute of its storage."""

    reads, change = -1, None

    def __getattribute__(self, name):
        value = super().__getattribute__(name)
        return self._read(value) if name == "_buffers" else value

    def __getattr__(self, name):
        value = super().__getattr__(name)
        return self._read(value) if name in ("tags", "slots", "bucket_offsets", "seeds") else value

    def _read(self, value):
        if self.change is not None:
            self.reads -= 1
            if self.reads < 0:
                thread, self.change = threading.Thread(target=self.change), None
                thread.start()
                thread.join()
        return value


@every_backend
@pytest.mark.parametrize("change", ["load", "growth"])
def test_a_look_up_reads_one_storage_whenever_another_thread_replaces_it(change, backend):
    """All ids as they were, or all as they are then: the same ids lie elsewhere in the new storage."""
    ids, old = list(range(112)), list(range(1, 113))
    new = old[::-1] if change == "load" else old
    state, more = table([ids[::-1]], backend).state(), tensor(range(1000, 1400), backend)
    keys, zeros = tensor(ids, backend), torch.zeros(112, dtype=torch.int32, device=device_of(backend))
    for reads in itertools.count():
        t = Torn([ids], device=device_of(backend), backend=backend)
        t.reads = reads
        t.change = (lambda t=t: t.load(**state)) if change == "load" else (lambda t=t: t.insert(more))
        found, rows = t(keys, zeros, backend=backend)
        assert found.all()
        assert rows.tolist() in (old, new)
        if t.change is not None:  # the look-up read less often
            break
        found, rows = t(keys, zeros, backend=backend)
        assert rows.tolist() == new
    assert reads > 0


TWO_PROCESSES = """
import sys
import torch
from torch import distributed, nn
from kernels import IdTable

rank, file = int(sys.argv[1]), sys.argv[2]
distributed.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.linear = IdTable([range(4)], backend="eager"), nn.Linear(1, 1)

    def forward(self, ids):
        return self.linear(self.table(ids, backend="eager")[1][:, None].float())

for broadcast in (False, True):
    model = Model()
    wrapped = nn.parallel.DistributedDataParallel(model, broadcast_buffers=broadcast)
    model.table.insert(torch.tensor([10 + rank, 20]))
    for _ in range(2):
        wrapped(torch.arange(4)).sum().backward()
    found, _ = model.table(torch.tensor([10, 11, 20]), backend="eager")
    print(*found.tolist(), model.table.sizes, flush=True)
distributed.barrier()  # else the first one may end while the second one still speaks to it
distributed.destroy_process_group()
"""


@pytest.mark.slow  # two processes that import torch
@pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")
def test_tables_of_two_processes_under_distributed_data_parallel(tmp_path):
    """Each inserts an id of its own. Left alone they have it; by default the second has the first one's instead."""
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", TWO_PROCESSES, str(rank), str(tmp_path / "meet")],
            cwd=KERNELS.parent, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]
    try:
        printed = [process.communicate(timeout=300) for process in processes]
    finally:
        for process in processes:
            process.kill()
    first, second = "True False True [6]\n", "False True True [6]\n"
    assert [out for out, _ in printed] == [first + first, second + first], printed


def _same_table(t, ids=(5, -6, 7)):
    return [result.tolist() for result in t(torch.tensor([*ids]), torch.tensor([0, 0, 1]), backend="eager")]


@pytest.mark.parametrize(
    "how", ["to_empty", "load", "load, to_empty", "assign", "skip_init", "to_empty twice", "to meta"]
)
def test_a_table_is_made_on_the_device_meta_and_becomes_real(how):
    """As a model with a table in it is, which then is filled, or loads its checkpoint."""
    loaded, vocabularies = IdTable([[8, 5], [7]]), [[5, -6], [7]]
    loaded.insert(torch.tensor([-6]), torch.tensor([0]))
    state = {f"table.{name}": tensor for name, tensor in loaded.state_dict().items()}
    with torch.device("meta"):
        if how == "skip_init":
            table = nn.utils.skip_init(IdTable, vocabularies)
            assert _same_table_on_cpu(table) == [[True] * 3, [1, 2, 1]]
            return
        model = nn.ModuleDict({"table": IdTable(vocabularies), "linear": nn.Linear(1, 1)})
        table = model["table"]
        assert table.sizes == [2, 1]
        assert all(tensor.is_meta for tensor in table.storage())
        found, rows = table(torch.empty(4, 2, dtype=torch.int64))
        assert found.is_meta
        assert rows.shape == (4, 2)
        with pytest.raises(RuntimeError, match=r"IdTable: on the device meta no ids come or go: to_empty\(device=…\)"):
            table.insert(torch.empty(1, dtype=torch.int64), torch.empty(1, dtype=torch.int64))
        assert table.items(0)[0].tolist() == [5, -6]
        repr(model)
    state |= {name: tensor for name, tensor in nn.ModuleDict({"linear": nn.Linear(1, 1)}).state_dict().items()}
    want = [[True] * 3, [1, 2, 1]]
    if how == "assign":
        model.load_state_dict(state, assign=True)
        want = _same_table(loaded)
    elif how == "load, to_empty":
        with pytest.warns(UserWarning, match="for linear"):  # PyTorch's, of what this does to a parameter
            model.load_state_dict(state)
        model.to_empty(device="cpu")
        want = _same_table(loaded)
    else:
        model.to_empty(device="cpu")
        if how == "to_empty twice":
            model.to_empty(device="cpu")
        if how == "to meta":
            model.to("meta").to_empty(device="cpu")
        if how == "load":
            model.load_state_dict(state)
            want = _same_table(loaded)
    assert _same_table(table) == want
    new = torch.tensor([1 << 40])
    assert table.insert(new, torch.tensor([0])).tolist() == [4 if "load" in how or how == "assign" else 3]
    assert table(new, torch.tensor([0]))[0].all()


def _same_table_on_cpu(t):
    with torch.device("cpu"):
        return _same_table(t)


@GPU
def test_storage_is_not_handed_out_while_another_stream_reads_it():
    """A look-up that waits on its stream while the table is loaded, and new tensors take the memory that is free."""
    t, count = IdTable([range(100_000)], device=DEVICE), 100_000
    keys, zeros = torch.arange(count, device=DEVICE), torch.zeros(count, dtype=torch.int32, device=DEVICE)
    t(keys, zeros)
    state, sizes = t.state(), [(tensor.shape, tensor.dtype) for tensor in t.storage()[:3]]
    other = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(other):
        torch.cuda._sleep(500_000_000)  # cycles, a quarter of a second: `load` takes less
        found, rows = t(keys, zeros)
    t.load(**state)
    fillers = [torch.full(shape, 77, dtype=dtype, device=DEVICE) for shape, dtype in sizes for _ in range(20)]
    other.synchronize()
    assert found.all()
    assert torch.equal(rows, keys + 1)
    assert all((tensor == 77).all() for tensor in fillers)
