"""03, Paper cuts: the record of each cut alone, by turns, and the traces of whole steps."""

from __future__ import annotations

import gzip
import json
import re

import numpy as np
import torch

from lessons.n03_paper_cuts import arithmetic, program, recorded
from lessons.n03_paper_cuts.recorded import PAPER_CUTS, STEPS, cut, run
from lessons.shared.claim import NOTEBOOKS, claim, printed
from lessons.shared.records import LEAST, Record, copy_us, yardstick
from model.profiling.operators import Operators
from model.profiling.tables import TRACES

NOTEBOOK = "03"
FIRST, MENDED, FUSED, GRAPHED = STEPS.values()
PROGRAMS = [0.25] * 6, [0.25] * 4 + [6.0] * 2  # the notebook's A and B


def _whole() -> tuple:
    return run(FIRST)["step_ms"], run(MENDED)["step_ms"]


def _setting() -> tuple:
    """torch's version, rows of a batch, cores of the host."""
    rows = run("04_modulus")["config"]["run"]["batch_size"]
    (cores,) = re.findall(r"(\d+) CPU cores", PAPER_CUTS.head("platform"))
    return PAPER_CUTS.head("torch").partition("+")[0], rows, int(cores)


def _saved(name: str, sign: int = 1) -> float:
    """ms that a cut saves, beyond the spread; sign -1: that it costs."""
    effect = cut(name)
    assert not effect.none
    assert sign * effect.middle > 0
    return sign * effect.middle


def _pinning() -> tuple:
    """By the record and by the stored table, ms and their hosts' cores."""
    name = "pinned in the step → before"
    (cores,) = re.findall(r"(\d+) CPU cores", printed(NOTEBOOK, "cell-01", on="NVIDIA H200"))
    (line,) = re.findall(f"^{name} .*", _stored_table("cell-31"), re.M)
    saved, least = re.fullmatch(r".*  ([\d.]+) \(([\d.]+) to [\d.]+\)", line).groups()
    assert float(least) > 0
    return _saved(name), _setting()[2], saved, cores


def _stored_table(cell_id: str) -> str:
    """The growing table as it is stored below this cell."""
    (path,) = NOTEBOOKS.glob(f"{NOTEBOOK}_*.ipynb")
    (cell,) = (cell for cell in json.loads(path.read_text())["cells"] if cell["id"] == cell_id)
    (output,) = cell["outputs"]
    return "".join(output["data"]["text/plain"])


def _conversion() -> tuple:
    """The profiled step 01: µs of a conversion, ns for each id; ms of all lists."""
    conversions = recorded.conversions()
    return *recorded.line_of(conversions["ids"], conversions["all"]), conversions["all"].sum() / 1e3


def _launches() -> tuple:
    """How many operators compute in mod n, and in compare."""
    ids, known, rows = torch.arange(5), torch.arange(3), torch.arange(1, 4, dtype=torch.int32)
    counts = []
    for call in (lambda: (ids + 1) % 3, lambda: program.compare(ids, known, rows)):
        with Operators(least=True) as operators:
            call()
        counts.append(len(operators.seen))
    return tuple(counts)


def _many_ids() -> tuple:
    us = [1e3 * np.median(recorded.times("sizes", name, n=1 << 17)) for name in ("index", "sorted")]
    assert us[0] > 10 * us[1]
    return (1 << 17, *us)


def _stopped() -> tuple:
    """Units by which a wait lengthens a step: for so long the host waits in A, and the GPU is idle in B."""
    longer = [program.step_time(kernels, True) - program.step_time(kernels, False) for kernels in PROGRAMS]
    (begin, end), idle = program.simulate(PROGRAMS[0], True)[1][-1], program.step_time(PROGRAMS[1], True)
    assert longer == [end - begin, idle - sum(PROGRAMS[1])]
    return tuple(longer)


def _reading() -> tuple:
    step = recorded.traced("06_main_outer")
    assert step["idle"] < 0.05 * step["step"]
    return (_saved("loss read → not, longer kernels"),)


def _batch() -> tuple:
    return (2048 * (4 + 13 * 4 + 26 * 8) / 1e6,)


def _copies() -> tuple:
    """Grey: pinned memory."""
    assert cut("ordinary → pinned").none
    return (_saved("to() → non_blocking"),)


def _tables() -> tuple:
    """Ids of small's tables and, in millions, of Kaggle's; GB of these."""
    return sum(arithmetic.SMALL), sum(arithmetic.KAGGLE) / 1e6, arithmetic.table_bytes() / 1e9


def _sweeps() -> tuple:
    """SGD's, with three in its update; Adagrad's, with five operations beside the one that fills; the copy's rate."""
    sgd, adagrad = (arithmetic.sweeps(rule) for rule in ("sgd", "adagrad"))
    assert list(sgd.values()) == [1, 3]
    assert len(adagrad) - 1 == 5
    total = sum(adagrad.values())
    return sum(sgd.values()), total, total - 1, yardstick()


def _apart(gradients: str) -> tuple:
    """With 26 tables: ms of kernels, launches."""
    launches, ms = recorded.counted(f"{gradients}, 26 tensors")
    return ms, launches


def _kept() -> tuple:
    sweeps = sum(arithmetic.KEPT.values())
    gpu = recorded.PAPER_CUTS.with_part("gradients").gpu
    copied = Record("cuda_steps", gpu=gpu).us("copy", bytes=2**31)
    return sweeps, sweeps * arithmetic.table_bytes() / 2**31 * copied / 1e3


def _one_table() -> tuple:
    """ms that one dense tensor saves; the kernels that add up gradients are 26 of one block; ms that kernels lose."""
    grids = _grids()
    assert len(grids) == 26 * run(FIRST)["active_steps"]
    assert {tuple(grid) for grid in grids} == {(1, 1, 1)}
    kernels = [recorded.counted(name)[1] for name in ("dense, 26 tensors", "dense, one tensor")]
    shown = recorded.traced(FIRST)["add up the rows' gradients"]
    assert abs(kernels[0] - kernels[1] - shown) < 0.1 * shown
    return _saved("dense: 26 tables → one"), kernels[0] - kernels[1]


def _events(name: str) -> list[dict]:
    """The traced step's own events: some of their arguments model.profiling leaves out."""
    (path,) = (TRACES / name).glob("*.json.gz")
    return json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]


def _grids() -> list[list[int]]:
    """The blocks of the first step's kernels that add up the gradients of equal rows."""
    pattern = re.compile(recorded.KINDS["add up the rows' gradients"])
    return [e["args"]["grid"] for e in _events(FIRST) if e.get("cat") == "kernel" and pattern.search(e["name"])]


def _waits() -> tuple:
    """The waits in the mended step's one coalescing; the host waits nowhere else in it."""
    events = _events(MENDED)
    calls = [e for e in events if e.get("name") == "aten::_coalesce"]
    waits = [e["ts"] for e in events if e.get("name") == "cudaStreamSynchronize"]
    assert len(calls) == run(MENDED)["active_steps"]
    inside = [sum(call["ts"] <= ts <= call["ts"] + call["dur"] for ts in waits) for call in calls]
    assert sum(inside) == len(waits)
    (count,) = set(inside)
    return (count,)


def _rungs() -> tuple:
    """With Kaggle's tables: ms of the largest cut, of the first step, and of non_blocking. The two largest of small
    are the list and the tables. The loss alone is grey in both."""
    ladders = []
    for _, rows in recorded.PAPER_CUTS.with_part("ladder").rows("ladder").groupby("size", sort=False):
        ms = rows.set_index("variant")["ms"]
        rungs = {name: recorded.effect_of(*pair) for name, *pair in zip(ms.index[1:], ms, ms[1:], strict=False)}
        assert rungs["the loss not read"].none
        ladders.append((np.median(ms.iloc[0]), rungs))
    (_, small), (whole, kaggle) = ladders
    largest = sorted(small, key=lambda name: -small[name].middle)
    assert set(largest[:2]) == {"ids in a buffer", "one table"}
    assert max(kaggle, key=lambda name: kaggle[name].middle) == "a sparse gradient"
    return kaggle["a sparse gradient"].middle, whole, kaggle["non_blocking"].middle


def _one_sparse() -> tuple:
    """ms that a sparse gradient saves of one table; ms of the first step's sweeps, and of their bytes."""
    step, mended = recorded.traced(FIRST), recorded.traced(MENDED)
    swept = step["fill with 0"] + step["update"]
    assert mended["fill with 0"] + mended["update"] < 0.02 * swept
    counted = copy_us(sum(arithmetic.sweeps("adagrad").values()) * arithmetic.table_bytes()) / 1e3
    return _saved("one table: dense → sparse"), swept, counted


def _row(name: str) -> tuple:
    """ms of the step and of its kernels, and its launches."""
    record = run(name)
    return record["step_ms"], record["facts"]["busy_us"] / 1e3, record["facts"]["launches"]


def _host() -> tuple:
    (cores,) = {re.search(r"(\d+) CPU cores", run(name)["platform"])[1] for name in STEPS.values()}
    return (cores,)


def _idle() -> tuple:
    step = recorded.traced(MENDED)
    assert step["idle"] > step["step"] / 2
    return ()


claim(NOTEBOOK, "this shortens a training step on an H200 from {:.2f} ms to {:.2f}.", _whole)
claim(
    NOTEBOOK,
    "of an H200, unless the row names another GPU, with torch {}, {:,} rows and a host of {} cores.",
    _setting,
)
claim(NOTEBOOK, "An effect under {:.0f} % of the step is *none*, too.", lambda: (100 * (LEAST - 1),))
claim(NOTEBOOK, "walks through each of the 26 lists, {:,} numbers in all.", lambda: _tables()[:1])
claim(NOTEBOOK, "With the lists a step takes {:.2f} ms.", lambda: (cut("list → buffer").before,))
claim(NOTEBOOK, "the buffer saves {:.2f} ms.", lambda: (_saved("list → buffer"),))
claim(
    NOTEBOOK,
    "In a recorded trace, each list takes {:.0f} µs, and {:.0f} ns more for each of its ids. All 26 take {:.1f} ms.",
    _conversion,
)
claim(NOTEBOOK, "Mod n saves {:.2f} ms.", lambda: (_saved("compare → mod n"),))
claim(NOTEBOOK, "For each table it launches {} kernels, and `compare` launches {}.", _launches)
claim(NOTEBOOK, "with {:,} ids, one `compare` takes {:,.0f} µs, and a binary search {:.0f} µs.", _many_ids)
claim(NOTEBOOK, "In A the host is slower. It is idle for {:g} units,", lambda: _stopped()[:1])
claim(NOTEBOOK, "In B the GPU is slower. It is idle for {:g} units in all,", lambda: _stopped()[1:])
claim(NOTEBOOK, "On the H200 the step of `small` gets {:.2f} ms shorter.", lambda: (_saved("loss read → not"),))
claim(NOTEBOOK, "keeps the GPU busy nearly all the time, like B, and gets {:.2f} ms shorter.", _reading)
claim(NOTEBOOK, "they come from the host, {:.2f} MB for 2,048 rows.", _batch)
claim(
    NOTEBOOK,
    "`non_blocking` saves {:.2f} ms. With such a small batch, pinned memory saves nothing more: the row is grey.",
    _copies,
)
claim(
    NOTEBOOK,
    "Pinning in the step itself costs {:.2f} ms with the record's host of {} cores, and {} ms with the stored run's of "
    "{}.",
    _pinning,
)
claim(
    NOTEBOOK,
    "So far the tables had {:,} ids. Kaggle's tables, for Criteo's own file, have {:.1f} million, and take "
    "{:.2f} GB.",
    _tables,
)
claim(NOTEBOOK, "## 5 · A gradient of {:.1f} million rows", lambda: _tables()[1:2])
claim(
    NOTEBOOK,
    "SGD needs {} sweeps: one fills the gradient with zeros, and three update the rows. Adagrad needs {}: one "
    "fills, and the five operations of torch.optim's update read and write the tables' rows {} times. **Predict** how "
    "many ms Adagrad's sweeps take at the copy's rate, {:.2f} TB/s.",
    _sweeps,
)
claim(NOTEBOOK, "With dense gradients, the step takes {:.2f} ms.", lambda: (cut("dense: 26 tables → one").before,))
claim(NOTEBOOK, "On the H200 the step gets {:.2f} ms *longer*.", lambda: (_saved("26 tables: dense → sparse", -1),))
for _gradients in ("dense", "sparse"):
    claim(NOTEBOOK, f"| {_gradients} gradients | {{:.1f}} | {{:.0f}} |", lambda kind=_gradients: _apart(kind))
claim(NOTEBOOK, "Each such call makes the host wait {:.0f} times.", _waits)
claim(
    NOTEBOOK,
    "With dense gradients this takes {} more sweeps, whose bytes take {:.1f} ms on the H100 of that row.",
    _kept,
)
claim(
    NOTEBOOK,
    "With dense gradients, one table saves {:.2f} ms. With 26 tables, a kernel for each table adds up the gradients "
    "of each row: the violet part of the picture. Each of these kernels is a single block, so it keeps only one "
    "processor busy. With one table PyTorch uses other kernels, and they take {:.1f} ms less.",
    _one_table,
)
claim(
    NOTEBOOK,
    "The sparse gradient then saves {:.2f} ms. The sweeps, orange and red, are nearly gone. They took {:.1f} ms, "
    "and their bytes need {:.1f}.",
    _one_sparse,
)
claim(NOTEBOOK, "With 26 tables, sparse gradients cost {:.2f} ms.", lambda: (_saved("26 tables: dense → sparse", -1),))
_ROWS = (
    "dense gradients, 26 tables", "a sparse gradient, one table", "our kernels for the table",
    "all of this as a CUDA graph",
)
for _label, _name in zip(_ROWS, STEPS.values(), strict=True):
    claim(NOTEBOOK, f"| {_label} | {{:.2f}} | {{:.2f}} | {{:.0f}} |", lambda name=_name: _row(name))
claim(NOTEBOOK, "each recorded by itself, on a host of {} cores:", _host)
claim(NOTEBOOK, "The second step is host-bound: for most of it no kernel runs.", _idle)
claim(
    NOTEBOOK,
    "With Kaggle's tables it is the dense gradient: {:.2f} of {:.2f} ms. Not reading the loss saves nothing in either "
    "program, because the copies of the next batch still wait. `non_blocking` removes that wait, and saves {:.2f} ms "
    "with Kaggle's tables.",
    _rungs,
)
