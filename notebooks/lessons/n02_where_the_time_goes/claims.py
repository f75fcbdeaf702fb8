"""02, Where the time goes: the recorded steps' traces and times, the yardstick calls, and TF32's record."""

from __future__ import annotations

import gzip
import json
import math
import statistics

import pandas as pd

from kernels.measure.records import recorded
from lessons.n02_where_the_time_goes.floors import copy_rate, recorded_floors
from lessons.n02_where_the_time_goes.pictures import one_call
from lessons.shared import launches
from lessons.shared.claim import claim
from lessons.shared.records import FLOAT32, TF32, device
from model.profiling import TRACES
from model.profiling.phases import by_phase, work_by_phase
from model.profiling.trace import GPU, read

NOTEBOOK = "02"
DOT, OUTER = launches.HOST_BOUND, launches.GPU_BOUND


def _run(name: str) -> dict:
    return json.loads((TRACES / name / "run.json").read_text())


def _busy(name: str) -> tuple[float, float, float]:
    """ms of a step without the profiler, ms in which the GPU works, per cent."""
    run = _run(name)
    return run["step_ms"], run["facts"]["busy_us"] / 1e3, launches.busy_percent(name)


def _two_steps() -> tuple:
    dot, outer = _busy(DOT), _busy(OUTER)
    assert dot[2] < 60 < 95 < outer[2]
    return *dot, *outer


def _spread() -> tuple:
    run = _run(DOT)
    return run["repeats"], run["step_ms_low"], run["step_ms_high"]


def _behind() -> tuple:
    """When host and GPU are done with the third recorded step of 06, ms."""
    trace = read(TRACES / OUTER)
    host, gpu = trace.steps["end"].iloc[2] / 1e3, trace.of(*GPU)["end"].max() / 1e3
    assert gpu > 3 * host
    return host, gpu


def _profiled() -> tuple:
    while_profiled, without = _run(DOT)["facts"]["step_us"] / 1e3, _run(DOT)["step_ms"]
    assert while_profiled > 1.5 * without
    return while_profiled, without


def _phases() -> tuple:
    table = by_phase(TRACES / DOT)
    launched, tables = table["launches"], len(_of_tables(work_by_phase(TRACES / DOT)))
    assert launched["backward"] == launched[:-1].max()
    return *(launched[phase] for phase in ("total", "backward", "hash", "look-up")), tables


def _tables() -> tuple:
    """The backward of the embeddings: its part of the GPU's time, µs of one, its floor, and its blocks."""
    table = recorded_floors(DOT)
    rows = table[table["name"] == "embedding_dense_backward"]
    assert len(rows) == 26
    (file,) = (TRACES / DOT).glob("*.gz")
    events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    grids = {math.prod(e["args"]["grid"]) for e in events if "embedding_backward_feature_kernel" in e.get("name", "")}
    assert grids == {1}
    return rows["us"].sum() / 1e3, table["us"].sum() / 1e3, rows["us"].mean(), rows["floor_us"].mean()


def _pace() -> tuple:
    """From a launch to its kernel in the hash, and in the tables' backward; ms that the GPU takes for the latter."""
    work = work_by_phase(TRACES / DOT)
    waits = work["ts"] - work["launched"]
    hashes, tables = waits[work["phase"] == "hash"], _of_tables(work)
    assert waits[tables.index].max() == waits.max() > 10 * hashes.median()
    return hashes.median(), waits.max(), (tables["end"].max() - tables["ts"].min()) / 1e3


def _of_tables(work) -> pd.DataFrame:
    """The kernels of the tables' backward, three a table: a copy, a fill, the gradient."""
    own = work.index[work["name"].str.contains("embedding_backward_feature_kernel")]
    found = work.loc[own[0] - 2 : own[-1]]
    kinds = [found["name"].str.contains(kind).sum() for kind in ("direct_copy", "FillFunctor", "embedding_backward")]
    assert kinds == [26, 26, 26]
    assert len(found) == 78
    return found


def _leads() -> list:
    """ms from the host's beginning of the second and third step 06 to the GPU's."""
    trace = read(TRACES / OUTER)
    begins = trace.of(*GPU).groupby("step")["ts"].min()
    leads = [(begins[step] - trace.steps["ts"][step]) / 1e3 for step in (0, 1, 2)]
    assert leads[0] < 1 < leads[1] < leads[2]
    return leads[1:]


def _small() -> tuple:
    return (100 * (recorded_floors(DOT)["floor_us"] < 1).mean(),)


def _not_faster() -> tuple:
    """Step 08 with 26 dense gradients and 26 sparse ones: ms of kernels, launches; the step is not shorter."""
    table = recorded("paper_cuts")
    table = table[(table["part"] == "tables") & (table["step"] == "08") & (table["rule"] == "sgd")]
    dense, sparse = (table[table["variant"] == f"{kind}, 26 tensors"].iloc[0] for kind in ("dense", "sparse"))
    assert dense["launches"] == sparse["launches"]
    assert statistics.median(sparse["ms"]) > 0.97 * statistics.median(dense["ms"])
    return dense["kernel_us"] / 1e3, sparse["kernel_us"] / 1e3, dense["launches"]


def _pairs() -> tuple:
    table = recorded_floors(DOT)
    row = table[table["name"] == "_index_put_impl_"].nlargest(1, "us").iloc[0]
    return row["us"], row["floor_us"]


def _look_up() -> tuple:
    events = one_call(TRACES / DOT, "aten::embedding", 10)
    (call,), (launch,), (kernel,) = (events.loc[events["depth"] == depth, "dur"] for depth in (0, -1, -2))
    names = events["name"].tolist()
    assert names.index("aten::index_select") < names.index("aten::empty") < names.index("aten::gather")
    return call, launch, kernel


def _look_ups() -> tuple:
    trace = read(TRACES / DOT)
    calls = trace.of("cpu_op").query("name == 'aten::embedding' and step == 1").sort_values("ts")["dur"]
    assert len(calls) == 26
    assert calls.iloc[10] < calls.median()
    return (calls.median(),)


def _prices() -> tuple:
    calls = launches.call_us()
    each = launches.prices()["µs"].tolist()
    return calls[0], min(calls), max(calls), each[1], _busy(DOT)[0], by_phase(TRACES / DOT).loc["total", "launches"]


def _gpu_prices() -> tuple:
    *_, between, graph, both = launches.prices()["µs"]
    assert 2 < both < 3
    return between, graph, both - between, both


def _counted() -> tuple:
    table = recorded_floors(OUTER)
    return table["FLOPs"].sum() / 1e12, table["bytes"].sum() / 1e9


def _floor() -> tuple:
    table = recorded_floors(OUTER)
    floor, kernels = table["floor_us"].sum() / 1e3, table["us"].sum() / 1e3
    wrong = max(table["memory_us"].sum(), table["compute_us"].sum()) / 1e3
    assert wrong < floor < kernels
    return floor, wrong, kernels, kernels / floor


def _products() -> tuple:
    """06's three large products: ms, of all kernels' ms; TFLOP/s, from lowest to highest."""
    table = recorded_floors(OUTER)
    rows = table.nlargest(3, "FLOPs")
    assert set(rows["name"]) == {"addmm", "mm"}
    rate = rows["FLOPs"] / rows["us"] / 1e6
    return rows["us"].sum() / 1e3, table["us"].sum() / 1e3, rate.min(), rate.max()


def _memory() -> tuple:
    """06's large memory-bound operators, SGD's update among them: ms, TB/s from lowest to highest; then `mul`'s."""
    table = recorded_floors(OUTER)
    rows = table[(table["bound"] == "memory") & (table["floor_us"] > 100)]
    assert sorted(rows["name"]) == ["_fused_sgd_", *["mul"] * 3, *["sum"] * 2]
    rate, slow = rows["bytes"] / rows["us"] / 1e6, rows["name"] == "mul"
    assert rate[slow].max() < 0.65 * copy_rate() / 1e12 < 0.7 * copy_rate() / 1e12 < rate[~slow].min()
    ms, floor = rows["us"] / 1e3, rows["floor_us"] / 1e3
    of_mul = ms[slow].sum(), floor[slow].sum(), rate[slow].min(), rate[slow].max()
    return ms[~slow].sum(), rate[~slow].min(), rate[~slow].max(), *of_mul


def _dot_floor() -> tuple:
    table = recorded_floors(DOT)
    floor, kernels = table["floor_us"].sum() / 1e3, table["us"].sum() / 1e3
    return floor, kernels, kernels / floor


def _below() -> tuple:
    """Below the line: MB of relu's gradient, and of the L2; else only the `sum` that reads."""
    tables = [table[table["floor_us"] > 0] for table in map(recorded_floors, (DOT, OUTER))]
    below = pd.concat([table[table["us"] < table["floor_us"]] for table in tables])
    relu = below[below["name"] == "threshold_backward"]
    assert sorted(set(below["name"])) == ["sum", "threshold_backward"]
    assert (below["name"] == "sum").sum() == 1
    assert relu["bytes"].min() == relu["bytes"].max()
    size = device("L2_cache_size")
    return relu["bytes"].max() / 1e6, size / 1e6


def _tf32_floor() -> tuple:
    before, after = (recorded_floors(OUTER, peak) for peak in (FLOAT32, TF32))
    bound = after["bound"] == "memory"
    assert after.loc[bound, "floor_us"].sum() > after.loc[~bound, "floor_us"].sum()
    return before["floor_us"].sum() / 1e3, after["floor_us"].sum() / 1e3


def _tf32(part: str, **labels) -> dict:
    table = recorded("tf32")
    table = table[(table["part"] == part) & (table[list(labels)] == list(labels.values())).all(axis=1)]
    return table.set_index("precision").to_dict("index")


def _tf32_step() -> tuple:
    step = _tf32("step", step=OUTER)
    before, after = (step[name]["ms_p50"] for name in ("fp32", "tf32"))
    assert before > after
    return before, after, before / after


def _tf32_product() -> tuple:
    product = _tf32("product", rows=2048, depth=186624, columns=512)
    rate = [product[name]["flops"] / product[name]["us_p50"] / 1e6 for name in ("fp32", "tf32")]
    error = [product[name]["error"] for name in ("fp32", "tf32")]
    assert rate[1] > rate[0]
    assert error[1] > error[0]
    return rate[0], _products()[2], rate[1], *error


def _tf32_dot() -> tuple:
    step = _tf32("step", step=DOT)
    before, after = step["fp32"], step["tf32"]
    assert max(before["ms_p20"], after["ms_p20"]) <= min(before["ms_p80"], after["ms_p80"])  # none, within the spread
    return before["ms_p50"], after["ms_p50"]


claim(
    NOTEBOOK,
    "Without the profiler step 08 takes {:.2f} ms; its GPU works for {:.2f} of them, {:.0f} %. Step 06 takes {:.1f} "
    "ms, and its GPU works for {:.1f}, {:.0f} %.",
    _two_steps,
)
claim(NOTEBOOK, "in {} processes step 08 took {:.2f} to {:.2f} ms.", _spread)
claim(NOTEBOOK, "The host has issued all three after {:.0f} ms, the GPU is done after {:.0f}.", _behind)
claim(NOTEBOOK, "step 08 takes {:.1f} ms with the profiler and {:.1f} without", _profiled)
claim(
    NOTEBOOK,
    "Of its {:.0f} launches the backward makes {:.0f}, the hash {:.0f} and the look-up {:.0f}. Of the backward's, "
    "{:.0f} are the 26 tables': a copy, a fill with zeros and the gradient itself each.",
    _phases,
)
claim(
    NOTEBOOK,
    "In step 08's hash a kernel runs {:.0f} µs after its launch began: nothing else is in the queue. In the tables' "
    "backward, the long green block, kernels wait for up to {:.0f} µs: for {:.1f} ms the GPU falls behind.",
    _pace,
)
claim(
    NOTEBOOK,
    "In step 06 the GPU begins the second of the three {:.0f} ms after the host, and the third {:.0f} ms: the host "
    "gets further ahead, until the queue is full.",
    _leads,
)
claim(NOTEBOOK, "{:.0f} % of its operators have a floor of less than a µs", _small)
claim(
    NOTEBOOK,
    "While profiled, the host spends {:.1f} µs, {:.1f} of them in the call into CUDA, for a kernel of {:.1f} µs.",
    _look_up,
)
claim(NOTEBOOK, "Half of the 26 calls take more than {:.1f}", _look_ups)
claim(
    NOTEBOOK,
    "The host pays {:.1f} µs for `x + 1` (between {:.1f} and {:.1f} in four records): Python, PyTorch's dispatcher, an "
    "allocation, the call into CUDA. In step 08 it is {:.0f} µs: {:.2f} ms over {:.0f} launches.",
    _prices,
)
claim(
    NOTEBOOK,
    "The GPU pays {:.2f} µs between two kernels of a full queue ({:.2f} in a CUDA graph). A small kernel, of the hash, "
    "runs for {:.1f}: {:.1f} µs from one to the next.",
    _gpu_prices,
)
claim(
    NOTEBOOK,
    "a launch costs the host {:.1f} µs, and the GPU, with a small kernel, two to three",
    lambda: (launches.call_us()[0], *_gpu_prices())[:1],
)
claim(NOTEBOOK, "the rate of a copy, {:.2f} TB/s", lambda: (copy_rate() / 1e12,))
claim(NOTEBOOK, "67 TFLOP/s in float32")
claim(NOTEBOOK, "Its operators multiply and add {:.2f} TFLOP and move at least {:.1f} GB.", _counted)
claim(
    NOTEBOOK,
    "The sum of the floors of step 06 is {:.1f} ms. The larger of all bytes' and all FLOPs' time would be {:.1f}, "
    "which these kernels, one after the other, cannot reach. The kernels take {:.1f} ms, {:.1f} times the floor.",
    _floor,
)
claim(
    NOTEBOOK,
    "Three matrix products take {:.1f} of the {:.1f} ms, at {:.0f} to {:.0f} TFLOP/s: compute-bound.",
    _products,
)
claim(
    NOTEBOOK,
    "Two sums of the outer product and the optimizer's update take {:.1f} ms, at {:.1f} to {:.1f} TB/s: memory-bound. "
    "Three multiplications of it (`mul`) take {:.1f} ms, with a floor of {:.1f} by their bytes; at "
    "{:.1f} to {:.1f} TB/s they are not memory-bound",
    _memory,
)
claim(
    NOTEBOOK,
    "The floor of step 08 is {:.2f} ms, its kernels take {:.2f}, {:.0f} times as much.",
    _dot_floor,
)
claim(
    NOTEBOOK,
    "`embedding_dense_backward`, the tables' gradients, takes {:.2f} of the {:.2f} ms: {:.0f} µs a table, with a "
    "floor of {:.2f} µs to read what it needs.",
    _tables,
)
claim(
    NOTEBOOK,
    "`_index_put_impl_`, the gradient of picking the interaction's pairs, takes {:.0f} µs with a floor of {:.1f}.",
    _pairs,
)
claim(
    NOTEBOOK,
    "Notebook 03 takes the kernels of this step from {:.2f} to {:.2f} ms, with {:.0f} launches before and after, and "
    "the step is no shorter.",
    _not_faster,
)
claim(NOTEBOOK, "{:.1f} TFLOP/s by the datasheet", lambda: (TF32 / 1e12,))
claim(NOTEBOOK, "whose {:.1f} MB may still lie in the chip's L2 cache ({:.0f} MB by CUDA)", _below)
claim(
    NOTEBOOK,
    "With it the floor of step 06 falls from {:.1f} to {:.1f} ms, most of which is memory's.",
    _tf32_floor,
)
claim(NOTEBOOK, "Step 06 takes {:.1f} ms in float32 and {:.1f} in TF32, {:.1f} times less.", _tf32_step)
claim(
    NOTEBOOK,
    "A product of its forward's shape, alone, runs at {:.0f} TFLOP/s in float32 (in the step above at {:.0f}) and at "
    "{:.0f} in TF32; its largest error grows from {:.0e} to {:.0e} of the largest result.",
    _tf32_product,
)
claim(NOTEBOOK, "Step 08 takes {:.2f} ms and {:.2f}: no difference beyond the spread.", _tf32_dot)
