"""16, Training tables: the steps of the story in traces/, and what the hashes cost in AUC."""

from __future__ import annotations

import gzip
import json

from kernels.measure.records import recorded
from lessons.n16_training_tables import hash_auc
from lessons.shared.claim import claim
from lessons.shared.op_times import cell_us
from lessons.shared.records import Record, sms, yardstick
from model import profiling
from model.profiling import TRACES

FUSED = "embedding_bags_sort", "embedding_bags_update"  # the kernels' names: the sort and the walk


def run(step: str) -> dict:
    """The run.json of a recorded step, by its number."""
    (path,) = TRACES.glob(f"{step}_*/run.json")
    return json.loads(path.read_text())


def ms(step: str) -> float:
    return run(step)["step_ms"]


def peak_gb(step: str) -> float:
    return run(step)["peak_bytes"] / 1e9


def tables_gb(step: str) -> float:
    """Bytes of the step's tables: a row an id and one more a table, float32."""
    config = run(step)["config"]
    rows = config["ids"] + len(config["model"]["cardinalities"])
    return 4 * rows * config["model"]["embedding_dim"] / 1e9


def kernels_us(step: str, *patterns: str) -> tuple[float, ...]:
    """profiling.kernel_us of a recorded step, by its number."""
    (path,) = TRACES.glob(f"{step}_*")
    return profiling.kernel_us(path, *patterns)


def launches(step: str, pattern: str) -> list[tuple[list[int], list[int]]]:
    """(grid, block) of each launch of the kernels whose names hold the pattern."""
    (path,) = TRACES.glob(f"{step}_*/*.json.gz")
    with gzip.open(path) as file:
        events = json.load(file)["traceEvents"]
    kernels = [event for event in events if pattern in event.get("name", "") and "grid" in event.get("args", {})]
    assert kernels
    return [(kernel["args"]["grid"], kernel["args"]["block"]) for kernel in kernels]


def auc(name: str, share: float) -> float:
    table = hash_auc.recorded()
    (row,) = table[(table["hash"] == name) & (table["share"] == share)].itertuples()
    return row.auc


def _sweeps() -> tuple:
    fill, update, add = (us / 1e3 for us in kernels_us("11", "FillFunctor", "multi_tensor", "embedding_backward"))
    assert all(grid == [1, 1, 1] for grid, _ in launches("11", "embedding_backward"))
    assert add > update
    return 100 * 4 * tables_gb("11") / yardstick() / (fill + update), sms()


def _sparse_step() -> tuple:
    facts = run("12")["facts"]
    assert facts["step_us"] > 1.2e3 * ms("12")  # the profiler slows the host
    assert 1 < peak_gb("12") / tables_gb("12") < 1.1
    return ms("12"), facts["busy_us"] / 1e3, facts["launches"]


def _fewer_kernels() -> tuple:
    """They were three times as many. Those that gather, or compute a row from an id, were a kernel a table; they are
    more than half of the fall."""
    before, after = run("11")["facts"]["kernels"], run("12")["facts"]["kernels"]
    names = "vectorized_gather_kernel", "remainder", "CUDAFunctorOnSelf_add", "direct_copy_kernel"
    fall = sum(len(launches("11", name)) - len(launches("12", name)) for name in names) / run("11")["facts"]["steps"]
    assert fall > (before - after) / 2
    assert 2.9 < before / after < 3.1
    return ()


def _sgd() -> tuple:
    """The update in a step: fused it takes three times as long as by atomics, and the walk twice as long."""
    (atomics,), (sort, walk) = kernels_us("12", "ReduceAdd"), kernels_us("15", *FUSED)
    assert 2.8 < (sort + walk) / atomics < 3.2
    assert 1.9 < walk / atomics < 2.2
    return ()


def _triton_walk() -> tuple:
    """µs of Triton's walk, and of it behind the sort; both are faster than CUDA's, and what the op takes."""
    cell = {"part": "bandwidth", "rule": "sgd", "rows": 2048, "width": 16, "ids": "zipf"}
    walk, both = (cell_us("embedding_bags_update", name, **cell) for name in ("triton, sorted before", "triton"))
    cuda = [cell_us("embedding_bags_update", name, **cell) for name in ("cuda, sorted before", "cuda")]
    assert walk < cuda[0] / 2
    assert both < cuda[1] / 1.5
    return walk, both


def _alone(rule: str, rows: int) -> tuple[float, float]:
    """µs of an update called from Python: eager, and fused in CUDA."""
    cell = {"part": "waits", "rule": rule, "rows": rows, "width": 16, "ids": "zipf", "tables": "all rows"}
    names = "eager", "cuda"
    return tuple(Record("embedding_bags_update").one(implementation=name, **cell)["call_us"] for name in names)


def _adagrad_update() -> tuple:
    """µs of Adagrad's update: what torch takes to add, and all of the fused update."""
    (_, add), ours = _coalesced(), sum(kernels_us("16", *FUSED))
    assert ours < add
    return add, ours


def _coalesced() -> tuple:
    sort, add = kernels_us("14", "DeviceMergeSort", "coalesceValues")
    assert all(block[0] == 32 for _, block in launches("14", "coalesceValues"))  # a warp a row
    assert add > sort
    return sort, add


def _adagrad_dense() -> tuple:
    sizes = peak_gb("13") / tables_gb("13")
    assert abs(sizes - 5) < 0.1
    return (ms("13"),)


def _adagrad_sparse() -> tuple:
    assert abs(peak_gb("14") / tables_gb("14") - 2) < 0.1
    return (ms("14"),)


def _id_table() -> tuple:
    record = recorded("id_table").query("part == 'bandwidth' and batch == 65536 and ids == 'uniform'")
    us = record.set_index("implementation")["us_p50"]
    (size,) = record["size"].unique()
    return size.removesuffix(" B an id"), us["searchsorted"] / us["cuda"]


def _hashes() -> tuple:
    exact, shared = auc("sorted", 1.0), auc("modulus", 1.0)
    assert exact > shared
    return exact, shared, hash_auc.recorded().attrs["best"]


def _busy() -> tuple:
    busy = [run(step)["facts"]["busy_us"] / 1e3 for step in ("15", "18")]
    assert abs(busy[1] / busy[0] - 1) < 0.03
    return ()


def _graphs() -> tuple:
    assert ms("18") < ms("15") < ms("12")
    assert ms("19") < ms("16") < ms("14")
    assert abs(ms("15") - ms("16")) < 0.01
    return ms("15"), ms("18"), ms("19")


def _joined() -> tuple:
    """µs of the interaction's backward in the recorded graph; ms of the fused step as a graph, with all kernels."""
    (backward,) = kernels_us("18", "indexing_backward")
    cell = {"rows": 2048, "precision": "fp32", "implementation": "fused graph"}
    steps = [Record("training").one("steps", optimizer=name, **cell)["ms"] for name in ("sgd", "adagrad")]
    assert steps[0] < ms("18")
    assert steps[1] < ms("19")
    return backward, *steps


claim("16", "copies {:.2f} TB/s", lambda: (yardstick(),))
claim("16", "The table has only {} MB here, so it lies in an H200's L2", lambda: (200_000 * 16 * 4 / 1e6,))
claim(
    "16",
    "it takes {:.1f} µs, and {:.1f} µs with the sort. So the op takes it for small gradients.",
    _triton_walk,
)
for rule, name, rows in (("sgd", "SGD", 16384), ("sgd", "SGD", 65536), ("adagrad", "Adagrad", 16384)):
    line = f"| {name}, {rows:,} rows | {{:,.0f}} | {{:.0f}} |"
    claim("16", line, lambda rule=rule, rows=rows: _alone(rule, rows))
claim(
    "16",
    "With 65,536 rows eager takes {:.0f} times as long.",
    lambda: ((lambda eager, fused: eager / fused)(*_alone("sgd", 65536)),),
)
claim(
    "16",
    "its backward, `indexing_backward`, takes {:.0f} µs of the graph's step. With the interaction and the MLPs of "
    "notebook 14, the same step as one graph takes {:.2f} ms with SGD and {:.2f} ms with Adagrad, in float32.",
    _joined,
)
claim(
    "16",
    "Filling and updating together move the tables' bytes four times, at {:.0f} % of the copy's rate. Adding takes "
    "longer than updating, although it moves next to nothing: each table's kernel is a single block, on one of {} SMs.",
    _sweeps,
)
claim(
    "16",
    "The step takes {:.2f} ms, and its peak memory is {:.2f} GB: the tables twice.",
    lambda: (ms("11"), peak_gb("11")),
)
claim(
    "16",
    "The step takes {:.2f} ms now, and its peak is little more than the tables. The GPU works for {:.2f} ms. For the "
    "rest it waits for a host that launches {:.0f} kernels.",
    _sparse_step,
)
claim(
    "16",
    "**For SGD, at 2048 rows, sorting loses:** the fused update takes three times as long as the atomics, and its walk "
    "alone takes twice as long.",
    _sgd,
)
claim(
    "16",
    "With 2048 rows these additions take {:.0f} µs, and our fused update takes {:.0f} µs in all.",
    _adagrad_update,
)
claim(
    "16",
    "It must store the ids: {} bytes an id, beside the 64 bytes of the id's row. It looks up a large batch in all "
    "tables at once, {:.0f} times as fast as `torch.searchsorted` table by table.",
    _id_table,
)
claim(
    "16",
    "Step 11 launched three times as many, and most of the difference is due to the single buffer.",
    _fewer_kernels,
)
claim("16", "With SGD the GPU is busy for as long as before, so the whole gain is the graph's.", _busy)
claim("16", "Dense Adagrad takes {:.1f} ms a step.", _adagrad_dense)
claim(
    "16",
    "With sparse gradients a step takes {:.2f} ms, and its peak is twice the tables: the tables and the state.",
    _adagrad_sparse,
)
claim(
    "16",
    "The fused step takes {:.2f} ms, with SGD and with Adagrad. As one graph it takes {:.2f} ms with SGD "
    "and {:.2f} ms with Adagrad.",
    _graphs,
)
claim(
    "16",
    "With a row for each id, the model reaches an AUC of {:.3f}. With as many rows by `modulus`, it reaches {:.3f}. "
    "The true probabilities would reach {:.3f}.",
    _hashes,
)
