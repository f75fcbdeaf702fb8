"""16, Training tables: the steps of the story in traces/, and what the hashes cost in AUC."""

from __future__ import annotations

import gzip
import json

from kernels.measure.records import recorded
from lessons.n16_training_tables import hash_auc
from lessons.shared.claim import claim
from lessons.shared.records import yardstick
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
    found = [each for each in events if pattern in each.get("name", "") and "grid" in each.get("args", {})]
    assert found
    return [(each["args"]["grid"], each["args"]["block"]) for each in found]


def auc(name: str, share: float) -> float:
    table = hash_auc.recorded()
    (row,) = table[(table["hash"] == name) & (table["share"] == share)].itertuples()
    return row.auc


def _sweeps() -> tuple:
    fill, update, add = (us / 1e3 for us in kernels_us("11", "FillFunctor", "multi_tensor", "embedding_backward"))
    assert all(grid == [1, 1, 1] for grid, _ in launches("11", "embedding_backward"))
    return fill, update, 100 * 4 * tables_gb("11") / yardstick() / (fill + update), add


def _sparse_step() -> tuple:
    facts = run("12")["facts"]
    assert facts["step_us"] > 1.2e3 * ms("12")  # the profiler slows the host
    return ms("12"), peak_gb("12"), facts["busy_us"] / 1e3, facts["launches"]


def _fewer_kernels() -> tuple:
    """Those that gather, or compute a row from an id, were a kernel a table; they are more than half of the fall."""
    before, after = run("11")["facts"]["kernels"], run("12")["facts"]["kernels"]
    names = "vectorized_gather_kernel", "remainder", "CUDAFunctorOnSelf_add", "direct_copy_kernel"
    fall = sum(len(launches("11", name)) - len(launches("12", name)) for name in names) / run("11")["facts"]["steps"]
    assert fall > (before - after) / 2
    return (before,)


def _sgd() -> tuple:
    """µs of the update in a step: by atomics, fused, and of that sorting and walking."""
    (atomics,), (sort, walk) = kernels_us("12", "ReduceAdd"), kernels_us("15", *FUSED)
    assert atomics < sort + walk
    return atomics, sort + walk, sort, walk


def _adagrad_update() -> tuple:
    """The same of Adagrad: what torch sorts and adds, and all of the fused update."""
    (sort, add), ours = _coalesced(), sum(kernels_us("16", *FUSED))
    assert ours < sort + add
    return sort, add, ours


def _coalesced() -> tuple:
    sort, add = kernels_us("14", "DeviceMergeSort", "coalesceValues")
    assert all(block[0] == 32 for _, block in launches("14", "coalesceValues"))  # a warp a row
    assert add > sort
    return sort, add


def _adagrad_dense() -> tuple:
    sizes = peak_gb("13") / tables_gb("13")
    assert abs(sizes - 5) < 0.1
    return ms("13"), peak_gb("13")


def _adagrad_sparse() -> tuple:
    assert abs(peak_gb("14") / tables_gb("14") - 2) < 0.1
    return ms("14"), peak_gb("14")


def _id_table() -> tuple:
    record = recorded("id_table").query("part == 'bandwidth' and batch == 65536 and ids == 'uniform'")
    us = record.set_index("implementation")["us_p50"]
    assert us["cuda"] < us["searchsorted"]
    assert record["size"].eq("19.4 B an id").all()
    return us["cuda"], us["searchsorted"]


def _hashes() -> tuple:
    exact, shared = auc("sorted", 1.0), auc("modulus", 1.0)
    assert exact > shared
    return exact, shared, hash_auc.recorded().attrs["best"]


def _busy() -> tuple:
    busy = [run(step)["facts"]["busy_us"] / 1e3 for step in ("15", "18")]
    assert abs(busy[1] / busy[0] - 1) < 0.03
    return tuple(busy)


def _graphs() -> tuple:
    assert ms("18") < ms("15") < ms("12")
    assert ms("19") < ms("16") < ms("14")
    return ms("15"), ms("16"), ms("18"), ms("19")


claim("16", "copies {:.2f} TB/s", lambda: (yardstick(),))
claim(
    "16",
    "Filling takes {:.2f} ms and updating {:.2f}: together they move the tables' bytes 1 + 3 = 4 times, at {:.0f} % of "
    "the copy's rate. Adding takes {:.2f} ms",
    _sweeps,
)
claim("16", "The step takes {:.2f} ms, and its peak is {:.2f} GB: the tables twice.", lambda: (ms("11"), peak_gb("11")))
claim(
    "16",
    "The step takes {:.2f} ms now, at a peak of {:.2f} GB. The GPU works {:.2f} ms of it; the rest is a host that "
    "launches {:.0f} kernels.",
    _sparse_step,
)
claim(
    "16",
    "**For SGD, at 2048 rows, sorting loses:** atomics took {:.0f} µs, the fused update {:.0f}, {:.0f} to sort and "
    "{:.0f} to walk.",
    _sgd,
)
claim("16", "`torch` sorts for {:.0f} µs and adds for {:.0f}; the fused update takes {:.0f} in all.", _adagrad_update)
claim(
    "16",
    "To look up a batch of 65,536 in all 26 tables takes {:.0f} µs, and {:.0f} µs by `torch.searchsorted`, table by "
    "table.",
    _id_table,
)
claim("16", "They were {:.0f}; most of the fall is the buffer's.", _fewer_kernels)
claim("16", "For SGD all of that is the graph's: the GPU was busy {:.2f} ms, and is {:.2f}.", _busy)
claim("16", "Dense Adagrad takes {:.1f} ms a step and {:.1f} GB", _adagrad_dense)
claim("16", "With sparse gradients it takes {:.2f} ms and {:.2f} GB: tables and state.", _adagrad_sparse)
claim("16", "The fused step takes {:.2f} ms with SGD and {:.2f} with Adagrad; as one graph {:.2f} and {:.2f}.", _graphs)
claim(
    "16",
    "Exact rows reach an AUC of {:.3f}, and as many rows by `modulus` reach {:.3f}. The true probabilities would reach "
    "{:.3f}.",
    _hashes,
)
