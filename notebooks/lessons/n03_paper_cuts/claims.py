"""03, Paper cuts: the story's traces, and the record of each change alone, by turns."""

from __future__ import annotations

import json

import numpy as np

from lessons.n03_paper_cuts import arithmetic, recorded, two_queues
from lessons.n03_paper_cuts.recorded import effect, times
from lessons.shared.claim import claim
from lessons.shared.records import copy_us, yardstick
from model.profiling.tables import TRACES

NOTEBOOK = "03"


def _walks() -> tuple:
    """The profiled step 01: µs of a conversion, ns for each id, how many of these for the walk; ms of all."""
    found = recorded.conversions()
    fixed, slope = recorded.line_of(found["ids"], found["all"])
    return fixed, slope, recorded.line_of(found["ids"], found["walk"])[1], found["all"].sum() / 1e3


def _medians(part: str, *variants: str, **labels) -> tuple[float, ...]:
    return tuple(float(np.median(times(part, variant, **labels))) for variant in variants)


def _buffer() -> tuple:
    found = effect("hash", "index_naive", "index", step="04")
    assert found.high < 0, "it is beyond the spread"
    return found.before, found.after, -found.middle


def _kernels() -> tuple:
    """µs of the four kernels of the smallest and of the largest table."""
    found = recorded.hash_kernels().set_index("ids")[list(recorded.INDEX_KERNELS)].sum(axis=1)
    assert found.loc[2000] == found.max()
    return found.loc[3], found.loc[2000]


def _nothing() -> tuple:
    """µs of each of the four kernels for no id: the least and the most."""
    found = recorded.hash_kernels()
    fixed = [recorded.line_of(found["ids"], found[name])[0] for name in recorded.INDEX_KERNELS]
    return min(fixed), max(fixed)


def _outer() -> tuple:
    step = recorded.story_step("06_main_outer")
    assert step["idle"] < 0.05 * step["step"]
    return (step["step"] - step["idle"],)


def _fixed() -> tuple:
    """All 26 tables' hashes: µs, µs of kernels of no id, µs that grow; times their bytes' time of ==, * and sum."""
    found = recorded.hash_kernels()
    fixed = sum(recorded.line_of(found["ids"], found[name])[0] for name in recorded.INDEX_KERNELS) * recorded.LAST_TABLE
    whole = found[list(recorded.INDEX_KERNELS)].to_numpy().sum()
    assert fixed > whole / 2
    times_bytes = [
        recorded.line_of(found["ids"], found[name])[1] / copy_us(1000 * 2048 * recorded.COMPARED[name])
        for name in ("eq", "mul", "sum")
    ]
    assert times_bytes[0] > 2 * times_bytes[1] > 2 * times_bytes[2]
    return whole, fixed, whole - fixed, *times_bytes


def _sizes() -> tuple:
    sizes = {name: _medians("sizes", name, n=1 << 17)[0] for name in ("index", "sorted", "modulus")}
    assert sizes["index"] > sizes["sorted"] > sizes["modulus"]
    small = _medians("sizes", "index", "sorted", n=1 << 11)
    return 1e3 * sizes["index"], 1e3 * sizes["sorted"], 1e3 * sizes["modulus"], *(1e3 * ms for ms in small)


def _exact() -> tuple:
    """ms of a step with index, sorted and modulus."""
    return _medians("hash", "index", "sorted", "modulus", step="04")


def _reading() -> tuple:
    """ms with the loss read and without, and what that is: of the launch-bound step, of the GPU-bound one."""
    small, large = (effect("waits", "the loss read", "on the device", step=step) for step in ("04", "06"))
    assert large.high < 0
    assert abs(large.middle) > abs(small.middle)
    return small.before, small.after, _words(small), large.before, large.after, _words(large)


def _words(found: recorded.Effect) -> str:
    if found.none:
        return "below the spread, so none"
    return f"{abs(found.middle):.2f} ms {'less' if found.middle < 0 else 'more'}"


def _copies() -> tuple:
    """ms by which copies lengthen step 06, from ordinary memory, the same with non_blocking, and from pinned memory."""
    found = [
        effect("waits", "on the device", name, step="06")
        for name in ("ordinary memory", "ordinary memory, non_blocking", "pinned memory, non_blocking")
    ]
    assert not found[0].none
    assert found[1].none
    assert found[2].none
    return tuple(one.middle for one in found)


def _pinning() -> tuple:
    """ms by which to pin a batch in the step lengthens steps 04 and 06."""
    for step in ("04", "06"):
        assert effect("waits", "ordinary memory, non_blocking", "pinned memory, non_blocking", step=step).none
        assert not effect("waits", "ordinary memory", "ordinary memory, non_blocking", step=step).none
    return tuple(effect("waits", "on the device", "pinned in the step", step=step).middle for step in ("04", "06"))


def _sweeps() -> tuple:
    """ms at a copy's rate, and recorded, of SGD's and of Adagrad's sweeps."""
    swept = [sum(arithmetic.sweeps(rule).values()) * arithmetic.table_bytes() for rule in ("sgd", "adagrad")]
    counted = [copy_us(moved) / 1e3 for moved in swept]
    steps = [recorded.story_step(name) for name in ("11_full_sgd_dense", "13_full_adagrad_dense")]
    found = [step["fill with 0"] + step["update"] for step in steps]
    assert all(1 < b / a < 1.25 for a, b in zip(counted, found, strict=True))
    return *counted, *found


def _busy() -> tuple:
    """ms of kernels and of the step: small tables, SGD, Adagrad, all dense."""
    found = [recorded.story_step(name) for name in ("08_main_dot", "11_full_sgd_dense", "13_full_adagrad_dense")]
    busy = [step["step"] - step["idle"] for step in found]
    assert busy[0] < 0.6 * found[0]["step"]
    assert busy[2] > 0.85 * found[2]["step"]
    assert recorded.story_step("13_full_adagrad_dense")["update"] > busy[2] / 2
    return busy[0], found[0]["step"], busy[1], found[1]["step"], busy[2], found[2]["step"]


def _one_block() -> tuple:
    found = [recorded.story_step(name)["add up the rows' gradients"] for name in ("08_main_dot", "11_full_sgd_dense")]
    assert found[1] < 1.2 * found[0], "it hardly grows with the tables"
    return *found, sum(arithmetic.KAGGLE) / sum(arithmetic.SMALL)


def _sparse() -> tuple:
    names = ("12_full_sgd_sparse", "14_full_adagrad_sparse")
    steps = [recorded.story_step(name) for name in names]
    busy = [step["step"] - step["idle"] for step in steps]
    assert all(b < step["step"] / 2 for b, step in zip(busy, steps, strict=True))
    return steps[0]["step"], steps[1]["step"], busy[0], busy[1]


def _peaks() -> tuple:
    peaks = [
        json.loads((TRACES / name / "run.json").read_text())["peak_bytes"] / 1e9
        for name in ("13_full_adagrad_dense", "14_full_adagrad_sparse")
    ]
    assert peaks[0] > 2 * peaks[1]
    return tuple(peaks)


def _one_tensor() -> tuple:
    """ms that one dense tensor in place of 26 takes off SGD's step and off Adagrad's."""
    found = [effect("tables", "dense, 26 tensors", "dense, one tensor", step="11", rule=r) for r in ("sgd", "adagrad")]
    assert all(one.high < 0 for one in found)
    assert -found[0].middle > _bytes_alone()[-1], "with SGD it brings more than sparse gradients do"
    return tuple(-one.middle for one in found)


def _bytes_alone() -> tuple:
    """26 sparse gradients in place of dense ones: SGD's ms of kernels, of the sweeps, of the one-block kernels, and by
    how many ms its step is shorter; Adagrad's is longer."""
    names = ("dense, 26 tensors", "sparse, 26 tensors")
    kernels = [recorded.counted(name, step="11", rule="sgd")[1] / 1e3 for name in names]
    sparse, adagrad = (effect("tables", *names, step="11", rule=rule) for rule in ("sgd", "adagrad"))
    step = recorded.story_step("11_full_sgd_dense")
    swept, one_block = step["fill with 0"] + step["update"], step["add up the rows' gradients"]
    assert sparse.high < 0 < adagrad.low
    assert abs(kernels[0] - kernels[1] - swept - one_block) < 0.2
    return *kernels, swept, one_block, -sparse.middle


def _rate() -> tuple:
    return (yardstick(),)


def _sweep() -> tuple:
    return arithmetic.table_bytes() / 1e9, sum(arithmetic.sweeps("sgd").values())


def _adagrad() -> tuple:
    """Sweeps, and operations but for the one that fills the gradient."""
    found = arithmetic.sweeps("adagrad")
    assert len(found) == 6
    return sum(found.values()), "five"


def _stopped() -> tuple:
    """Units by which a wait lengthens a step: for so long the host waits in A, and the GPU is idle in B."""
    programs = two_queues.LAUNCH_BOUND, two_queues.GPU_BOUND
    free = [two_queues.simulate(kernels, waits=False).step for kernels in programs]
    a, b = (two_queues.simulate(kernels, waits=True) for kernels in programs)
    (begin, end), idle = a.waits[-1], b.step - sum(two_queues.GPU_BOUND)
    assert (a.step - free[0], b.step - free[1]) == (end - begin, idle)
    return end - begin, idle


claim(
    NOTEBOOK,
    "In the recorded trace a conversion takes {:.0f} µs and {:.0f} ns for each id, {:.0f} of them for the walk: "
    "{:.2f} ms a step.",
    _walks,
)
claim(NOTEBOOK, "By turns, a step takes {:.2f} ms with the list and {:.2f} with the buffer, {:.2f} ms less", _buffer)
claim(NOTEBOOK, "With 3 known ids the four kernels take {:.1f} µs, with 2000 {:.1f}.", _kernels)
claim(NOTEBOOK, "A part is fixed: for next to no ids each of the four takes {:.0f} to {:.0f} µs on the GPU.", _nothing)
claim(NOTEBOOK, "Step 06 keeps the GPU busy for {:.0f} ms, and is like B.", _outer)
claim(
    NOTEBOOK,
    "Of the {:.0f} µs of all tables' hashes {:.0f} are this, and {:.0f} grow with the ids: `==` takes {:.0f} × what a "
    "copy would take for its bytes, `*` {:.1f} ×, the sum {:.1f} ×.",
    _fixed,
)
claim(
    NOTEBOOK,
    "With 131,072 known ids `index` takes {:.0f} µs a call, `sorted` {:.0f}, `modulus` {:.0f}; with 2048, `index` "
    "{:.0f} and `sorted` {:.0f}.",
    _sizes,
)
claim(NOTEBOOK, "By turns, a step takes {:.2f} ms with `index`, {:.2f} with `sorted`, {:.2f} with `modulus`.", _exact)
claim(
    NOTEBOOK,
    "Step 04 takes {:.2f} ms with the loss read and {:.2f} without: {}. Step 06 takes {:.1f} and {:.1f}: {}.",
    _reading,
)
claim(NOTEBOOK, "0.54 MB")
claim(
    NOTEBOOK,
    "Copies from ordinary memory make step 06 longer by {:.2f} ms. With `non_blocking` it is {:.2f} ms, from pinned "
    "memory {:.2f}, both below the spread.",
    _copies,
)
claim(
    NOTEBOOK,
    "To pin a batch in the step itself makes step 04 longer by {:.2f} ms and step 06 by {:.2f}, both against a batch "
    "on the device.",
    _pinning,
)
claim(
    NOTEBOOK,
    "At a copy's rate these sweeps need {:.1f} ms with SGD and {:.1f} with Adagrad; recorded, orange and red, are "
    "{:.1f} and {:.1f}.",
    _sweeps,
)
claim(NOTEBOOK, "reads or writes each row of all tables once: {:.2f} GB. SGD needs {}:", _sweep)
claim(NOTEBOOK, "Adagrad needs {}, for torch.optim computes its rule in {} operations, each over all rows.", _adagrad)
claim(NOTEBOOK, "at a copy's {:.2f} TB/s, which counts bytes read and written.", _rate)
claim(NOTEBOOK, "it stands still for {:g} units, until the last kernel is done.", lambda: (_stopped()[0],))
claim(NOTEBOOK, "and the GPU idles for {:g} units, while the host launches", lambda: (_stopped()[1],))
claim(
    NOTEBOOK,
    "Kernels run for {:.1f} of step 08's {:.1f} ms, which is launch-bound, for {:.1f} of {:.1f} in 11, and for "
    "{:.1f} of {:.1f} in 13, which is memory-bound.",
    _busy,
)
claim(
    NOTEBOOK,
    "Violet is no sweep: it takes {:.2f} ms in step 08 and {:.2f} in 11, with {:.0f} times as many rows.",
    _one_block,
)
claim(
    NOTEBOOK,
    "They take {:.1f} ms with SGD and {:.1f} with Adagrad, of which kernels run for {:.1f} and {:.1f}: launch-bound "
    "again.",
    _sparse,
)
claim(NOTEBOOK, "At its peak Adagrad holds {:.1f} GB with dense gradients and {:.1f} with sparse ones.", _peaks)
claim(
    NOTEBOOK,
    "One dense tensor in place of 26 takes {:.1f} ms off SGD's step and {:.1f} off Adagrad's.",
    _one_tensor,
)
claim(
    NOTEBOOK,
    "26 sparse gradients take SGD's kernels from {:.1f} to {:.1f} ms, of which {:.1f} were the sweeps and {:.1f} the "
    "violet kernels; but its step is only {:.2f} ms shorter: what is left is launches.",
    _bytes_alone,
)
