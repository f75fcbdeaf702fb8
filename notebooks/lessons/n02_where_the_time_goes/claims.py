"""02, Where the time goes: the recorded steps' traces and times, the yardstick calls, and step_time.json."""

from __future__ import annotations

import functools
import gzip
import json
import math
import re
import statistics

import numpy as np
import pandas as pd

from kernels.measure.records import recorded
from lessons.n02_where_the_time_goes.floors import TINY, floors, recorded_operators
from lessons.n02_where_the_time_goes.puzzles import queue
from lessons.n02_where_the_time_goes.recorded import DOT, OUTER, SMALL, STEP_TIME, gain, run
from lessons.shared import launches
from lessons.shared.claim import claim, printed
from lessons.shared.records import FLOAT32, TF32, sms, tflop_per_s, yardstick
from lessons.shared.step_profile import events_of, launches_of
from model.profiling import TRACES
from model.profiling.phases import by_phase, work_by_phase

NOTEBOOK = "02"


def _file(name: str):
    (file,) = (TRACES / name).glob("*.gz")
    return file


def _busy(name: str) -> tuple[float, float, float]:
    """ms of a step without the profiler, ms in which the GPU works, per cent."""
    return run(name)["step_ms"], run(name)["facts"]["busy_us"] / 1e3, launches.busy_percent(name)


def _two_steps() -> tuple:
    dot, outer = _busy(DOT), _busy(OUTER)
    assert 50 < dot[2] < 60 < 95 < outer[2]
    return dot[0], dot[1], outer[2]


def _widths() -> tuple:
    model = run(OUTER)["config"]["model"]
    vectors = len(model["cardinalities"]) + 1
    return vectors, vectors * model["embedding_dim"]


def _spread() -> tuple:
    return run(DOT)["step_ms_low"], run(DOT)["step_ms_high"], run(DOT)["repeats"]


def _profiled() -> tuple:
    while_profiled, without = run(DOT)["facts"]["step_us"] / 1e3, run(DOT)["step_ms"]
    assert while_profiled > 1.5 * without
    return while_profiled, without


def _second(name: str = DOT) -> pd.DataFrame:
    """The launches of the second of three steps."""
    rows = launches_of(events_of(_file(name)))
    count = len(rows) // 3
    assert count == run(name)["facts"]["launches"]
    return rows[count : 2 * count]


def _waits() -> tuple:
    """In the hash a kernel begins as soon as it can, and the queue is then empty; the longest wait is the tables'."""
    second = _second()
    hashes = second.loc[242:245]
    assert (hashes["begins"] + hashes["runs"] < hashes["launched"].shift(-1, fill_value=np.inf)).all()
    longest = second["waits"].idxmax()
    assert second.loc[longest - 2 : longest + 1, "kernel"].str.contains("embedding_backward").sum() == 1
    third = launches_of(events_of(_file(DOT)))[2 * len(second) :]
    assert third["waits"].iloc[20:40].max() < 20  # caught up
    return hashes["waits"].min(), hashes["waits"].max(), second["waits"].max()


def _queue() -> None:
    """queue() and the recorded ends; halved kernels, and halved launches, of dot and of outer."""
    gains = {}
    for name in (DOT, OUTER):
        seen = launches_of(events_of(_file(name)))
        launch, kernel = seen["launched"].diff().fillna(0), seen["runs"]
        end = (seen["begins"] + seen["runs"]).max() - seen["launched"].min()
        whole, kernels, launched = (queue(*pair)[-1] for pair in (
            (launch, kernel), (launch, kernel / 2), (launch / 2, kernel)
        ))
        assert abs(whole / end - 1) < 0.01
        gains[name] = whole / kernels, whole / launched
    assert gains[DOT][0] < 1.01 < 1.8 < gains[DOT][1] < 2
    assert gains[OUTER][1] < 1.05 < 1.8 < gains[OUTER][0] < 2


def _off() -> tuple:
    _queue()
    return ()


def _phases() -> tuple:
    table = by_phase(TRACES / DOT)
    launched, tables = table["launches"], len(_of_tables(work_by_phase(TRACES / DOT)))
    others = launched["hash"] + launched["look-up"]
    assert tables + others > launched["total"] / 2
    return tables, others


def _of_tables(work) -> pd.DataFrame:
    """The kernels of the tables' backward, three a table: a copy, a fill, the gradient."""
    own = work.index[work["name"].str.contains("embedding_backward_feature_kernel")]
    kernels = work.loc[own[0] - 2 : own[-1]]
    kinds = [kernels["name"].str.contains(kind).sum() for kind in ("direct_copy", "FillFunctor", "embedding_backward")]
    assert kinds == [26, 26, 26]
    assert len(kernels) == 78
    return kernels


def _prices() -> tuple:
    """µs: of `x + 1` the least and the most, of a launch of dot; between two kernels, and with a small one."""
    calls, table = launches.call_us(), launches.prices()["µs"]
    return min(calls), max(calls), table[1], table[2], table[4]


def _before_a_profile() -> tuple:
    """Of the stored run's step before the profile: ms, µs of each launch, launches."""
    ms = float(re.search(r"takes ([\d.]+) ms", printed(NOTEBOOK, "cell-14", on="H200"))[1])
    count = int(re.search(r"(\d+) launches", printed(NOTEBOOK, "cell-35"))[1])
    return ms, 1e3 * ms / count, count


def _after_a_profile() -> tuple:
    """µs of each launch after the profile, % more than before. `x + 1` takes longer, in each of its rounds, than in any
    record."""
    after = printed(NOTEBOOK, "cell-35", on="H200")
    assert float(re.search(r"x \+ 1 takes .* \(([\d.]+) to", after)[1]) > max(launches.call_us())
    us, (_, before, _) = float(re.search(r"launches, ([\d.]+) µs", after)[1]), _before_a_profile()
    return us, 100 * (us / before - 1)


def _launch_is_long() -> tuple:
    least, *_, small_kernel = _prices()
    assert least > 2 * small_kernel
    return ()


@functools.cache
def _floors(name: str, peak: float = FLOAT32) -> pd.DataFrame:
    return floors(recorded_operators(name), peak)


def _counted() -> tuple:
    table = _floors(OUTER)
    return table["FLOPs"].sum() / 1e12, table["bytes"].sum() / 1e9


def _ms(table: pd.DataFrame) -> tuple[float, float]:
    """The ms of a step: the kernels and their floor."""
    return table["us"].sum() / 1e3, table["floor_us"].sum() / 1e3


def _products() -> tuple:
    """outer's three large products, in per cent of the peak; its three multiplications are far from a copy's rate."""
    table = _floors(OUTER)
    large = table.nlargest(3, "FLOPs")
    assert set(large["name"]) == {"addmm", "mm"}
    assert set(large["bound"]) == {"compute"}
    assert (large[["us", "floor_us"]].sum() > 0.75 * table[["us", "floor_us"]].sum()).all()
    mul = table[(table["name"] == "mul") & (table["floor_us"] > 100)]
    assert len(mul) == 3
    assert set(mul["bound"]) == {"memory"}
    share = 100 * large["floor_us"] / large["us"]
    return *_ms(table), share.max()


def _sums() -> tuple:
    """One sum alone, among all large operators of outer, is faster than its floor."""
    table = _floors(OUTER)
    faster = table[(table["floor_us"] > table["us"]) & (table["us"] > 100)]
    assert list(faster["name"]) == ["sum"]
    return ()


def _flops() -> tuple:
    table = _floors(OUTER)
    assert table["bytes"].sum() / yardstick() / 1e12 < table["FLOPs"].sum() / FLOAT32 < table["floor_us"].sum() / 1e6
    return (1e3 * table["FLOPs"].sum() / FLOAT32,)


def _dot_floor() -> tuple:
    table = _floors(DOT)
    assert launches.prices()["µs"][2] > TINY == 1
    return *_ms(table), 100 * (table["floor_us"] < TINY).mean()


def _gradients() -> tuple:
    """The tables' gradients: ms, kernels, which are of one block each, and the processors that there are."""
    table = _floors(DOT)
    rows = table[table["name"] == "embedding_dense_backward"]
    events = json.loads(gzip.decompress(_file(DOT).read_bytes()))["traceEvents"]
    grids = {math.prod(e["args"]["grid"]) for e in events if "embedding_backward_feature_kernel" in e.get("name", "")}
    assert grids == {1}
    return rows["us"].sum() / 1e3, len(rows), sms()


def _not_faster() -> tuple:
    """Step 08 with 26 dense gradients and 26 sparse ones: ms of kernels, launches; the step is not shorter."""
    table = recorded("paper_cuts")
    table = table[(table["part"] == "tables") & (table["step"] == "08") & (table["rule"] == "sgd")]
    dense, sparse = (table[table["variant"] == f"{kind}, 26 tensors"].iloc[0] for kind in ("dense", "sparse"))
    assert dense["launches"] == sparse["launches"]
    assert statistics.median(sparse["ms"]) > 0.97 * statistics.median(dense["ms"])
    return sparse["kernel_us"] / 1e3, dense["kernel_us"] / 1e3


def _tf32_product() -> tuple:
    rows = STEP_TIME.rows("product", rows=4096).set_index("precision")
    assert 50 < rows["error"]["tf32"] / rows["error"]["fp32"] < 200
    assert tflop_per_s(rows.loc["tf32"]) < TF32 / 1e12
    return (gain(4096),)


def _tf32_steps() -> tuple:
    """ms of outer in float32 and in TF32, how many times as fast; of dot, within the spread."""
    rows = [STEP_TIME.one("step", step=name, precision=p) for name in (OUTER, DOT) for p in ("fp32", "tf32")]
    before, after, *dot = (row["ms_p50"] for row in rows)
    *_, first, second = rows
    assert max(first["ms_p20"], second["ms_p20"]) <= min(first["ms_p80"], second["ms_p80"])
    return before, after, before / after, *dot


def _tf32_floor() -> tuple:
    before, after = _floors(OUTER), _floors(OUTER, TF32)
    memory = after["bound"] == "memory"
    assert after.loc[memory, "floor_us"].sum() > after.loc[~memory, "floor_us"].sum()
    return _ms(before)[1], _ms(after)[1]


def _end() -> tuple:
    steps, tables = (DOT, OUTER), (_floors(DOT), _floors(OUTER))
    return (
        *(run(name)["step_ms"] for name in steps), *(_ms(table)[0] for table in tables),
        *(_ms(table)[1] for table in tables), run(DOT)["facts"]["launches"],
    )


claim(
    NOTEBOOK,
    "`dot` takes the dot products of {} vectors, as your model does. `outer` takes the products of all pairs of "
    "their {} elements.",
    _widths,
)
claim(
    NOTEBOOK,
    "Without the profiler `dot` takes {:.2f} ms, and the GPU works for {:.2f} ms of it. For nearly half of the step "
    "the queue is empty, and the GPU waits for the host. In `outer` the GPU works for {:.0f} % of the step.",
    _two_steps,
)
claim(
    NOTEBOOK,
    "On an H200, `dot` took {:.2f} to {:.2f} ms in {} processes.",
    _spread,
)
claim(
    NOTEBOOK,
    "On an H200, a step of your model's shape, `small`, took {:.2f} ms. The GPU worked for {:.2f} ms of it.",
    lambda: _busy(SMALL)[:2],
)
claim(
    NOTEBOOK,
    "With the profiler `dot` takes {:.1f} ms instead of {:.2f}, because taking notes costs the host time.",
    _profiled,
)
claim(
    NOTEBOOK,
    "A kernel begins as soon as it can, {:.0f} to {:.0f} µs after its launch, and ends before the next launch, "
    "so the queue is empty once more.",
    lambda: _waits()[:2],
)
claim(
    NOTEBOOK,
    "There a kernel waits for up to {:.0f} µs, because others are ahead of it, while the host goes on launching and "
    "the GPU catches up later.",
    lambda: _waits()[2:],
)
claim(
    NOTEBOOK,
    "`queue` is off by less than 1 %. Halving the kernel times of `dot` gains nothing: the GPU would only wait "
    "longer for the next launch. Halving the launch times nearly halves the profiled step. For `outer` it is the other "
    "way round.",
    _off,
)
claim(
    NOTEBOOK,
    "In the backward, each of the 26 tables takes three launches: a copy, a fill with zeros and the gradient. That "
    "makes {}. Hash and look-up make another {}. So most launches of the step are for tables.",
    _phases,
)
claim(NOTEBOOK, "On an H200, a small kernel takes the host at least twice as long as the GPU:", _launch_is_long)
claim(
    NOTEBOOK,
    "| host | `x + 1` from Python, in four records | {:.1f} to {:.1f} | | host | a step of `dot`, divided by its "
    "launches | {:.1f} | | GPU | full queue: the gap between two kernels | {:.1f} | | GPU | full queue: this gap and "
    "a small kernel | {:.1f} |",
    _prices,
)
claim(
    NOTEBOOK,
    "Before the profile, a step took {:.2f} ms in the stored run (section 2). That is {:.1f} µs for each of its {} "
    "launches.",
    _before_a_profile,
)
claim(
    NOTEBOOK,
    "Now each launch takes {:.1f} µs, {:.0f} % more, and `x + 1` takes longer than in any of the four records.",
    _after_a_profile,
)
claim(
    NOTEBOOK,
    "The copy's rate of an H200 is {:.2f} TB/s, and its [datasheet](https://www.nvidia.com/en-us/data-center/h200/) "
    "gives {:.0f} TFLOP/s in float32.",
    lambda: (yardstick(), FLOAT32 / 1e12),
)
claim(
    NOTEBOOK,
    "The two times are equal at an arithmetic intensity of {:.1f} FLOPs per byte.",
    lambda: (FLOAT32 / (1e12 * yardstick()),),
)
claim(
    NOTEBOOK,
    "Together its kernels do {:.2f} TFLOP and move {:.1f} GB.",
    _counted,
)
claim(
    NOTEBOOK,
    "The kernels of **`outer`** take {:.1f} ms, and their floor is {:.1f} ms. Three matrix products make up most of "
    "both. They are compute-bound, and reach at most {:.0f} % of the peak. The `mul`s are memory-bound.",
    _products,
)
claim(
    NOTEBOOK,
    "The kernels of **`dot`** take {:.2f} ms, and their floor is {:.2f} ms. For {:.0f} % of its operators the floor "
    "is below a µs, less than the GPU's gap between two kernels.",
    _dot_floor,
)
claim(
    NOTEBOOK,
    "`embedding_dense_backward` alone takes {:.2f} ms. Each of its {} kernels is a single *block*, a group of "
    "threads that runs on one of the GPU's {} processors.",
    _gradients,
)
claim(
    NOTEBOOK,
    "the kernels of this step take {:.2f} ms instead of {:.2f}. But the step has as many launches, and is no "
    "shorter.",
    _not_faster,
)
claim(
    NOTEBOOK,
    "On the H200 the product becomes {:.1f} times as fast, and its error grows more than a hundredfold.",
    _tf32_product,
)
claim(
    NOTEBOOK,
    "| `outer` | {:.1f} | {:.1f} | {:.1f} times as fast | | `dot` | {:.2f} | {:.2f} | no difference beyond the "
    "spread |",
    _tf32_steps,
)
claim(NOTEBOOK, "Section 1's {:.2f} ms for `dot` come from another process.", lambda: (run(DOT)["step_ms"],))
claim(
    NOTEBOOK,
    "With TF32 the floor of `outer` falls from {:.1f} to {:.1f} ms, and the bytes now make up most of it.",
    _tf32_floor,
)
claim(
    NOTEBOOK,
    "| a step, ms | {:.2f} | {:.1f} | | its kernels, ms | {:.2f} | {:.1f} | | their floor, ms | {:.2f} | {:.1f} | | "
    "what limits it | the host, with {:.0f} launches |",
    _end,
)
claim(NOTEBOOK, "One `sum` is faster than its floor: it only reads, and the floor assumes the copy's rate.", _sums)

claim(NOTEBOOK, "A prediction of {:.1f} ms counts the FLOPs alone. The memory-bound kernels come on top.", _flops)
