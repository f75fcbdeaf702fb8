"""04, torch.compile: recorded launches, µs of look-ups, three training steps, seconds and milliseconds by turns."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path

from lessons.n04_torch_compile import recorded
from lessons.shared.claim import claim

NOTEBOOK = Path(__file__).resolve().parents[2] / "04_torch_compile.ipynb"
say = partial(claim, "04")


def _launches(options: str) -> tuple:
    return tuple(recorded.count("2.13", what, options) for what in ("inference", "training"))


def _fewer() -> tuple:
    """By default a kernel a table, and one of all with the limit raised."""
    names = "default", "raised"
    assert [recorded.launches("2.13", "inference", name)["tables_a_launch"] for name in names] == [[1] * 26, [26]]
    return tuple(_launches(name)[0] for name in names)


def _gradients() -> tuple:
    """Kernels of tables' gradients, with the limit raised as by default; only the forward has fewer."""
    rows = [recorded.launches("2.13", "training", name) for name in ("default", "raised")]
    assert [row["look_ups"] for row in rows] == [26, 1]
    assert _launches("default")[1] - _launches("raised")[1] == 25
    (found,) = {row["gradients"] for row in rows}
    return (found,)


def _instructions() -> tuple:
    """How many times the instructions an element costs, by the stored output of the cell that counts them."""
    (cell,) = (cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["id"] == "instructions")
    text = "".join(cell["outputs"][0]["text"])
    default, raised = (int(number) for number in re.findall(r"(\d+) instructions", text))
    return (raised / default,)


def _stay() -> tuple:
    """In a DLRM of so many tables torch 2.11 launches as much by default as by the first option alone."""
    record = recorded.COMPILE_TIMES.with_part("look_ups")
    assert record.head("torch").startswith("2.11")
    for tables in (9, 26):
        labels = {"model": "look-ups", "tables": tables, "what": "inference"}
        found = {record.one("look_ups", setting=name, **labels)["launches"] for name in ("default", "raised")}
        assert found == {tables}
    return 26, 26


def _us(setting: str, what: str = "inference", model: str = "look-ups", tables: int = 26) -> float:
    """µs of the look-ups, of the GPU that has them."""
    record = recorded.COMPILE_TIMES.with_part("look_ups")
    return record.us("look_ups", setting=setting, what=what, model=model, tables=tables)


def _nine() -> tuple:
    record = recorded.COMPILE_TIMES.with_part("look_ups")
    for tables, launched in ((8, 1), (9, 9)):
        labels = {"model": "look-ups", "tables": tables, "what": "inference"}
        for setting in ("default", "raised"):
            assert record.one("look_ups", setting=setting, **labels)["launches"] == launched
    assert round(_us("default", tables=9) / _us("default", tables=8)) == 3
    return ()


def _combo() -> tuple:
    """The whole DLRM in percent of the default's time, in inference and in training: the best setting of both."""
    for what in ("inference", "training"):
        assert round(_us("default", what) / _us("combo_kernels", what)) == 4
        for model in ("look-ups", "DLRM"):
            times = {name: _us(name, what, model) for name in ("default", "raised", "combo_kernels")}
            assert min(times, key=times.get) == "combo_kernels"
    return tuple(100 * _us("combo_kernels", w, "DLRM") / _us("default", w, "DLRM") for w in ("inference", "training"))


def _one_tensor(what: str) -> tuple:
    return tuple(_us(setting, what) for setting in ("default", "combo_kernels", "one tensor"))


def _less_than_half() -> tuple:
    assert all(_us("one tensor", what) < 0.5 * _us("combo_kernels", what) for what in ("inference", "training"))
    return ()


def _step(model: str) -> tuple:
    """ms eager and compiled: apart by more than their spreads."""
    eager, compiled = recorded.pair(model)
    assert compiled.high < eager.low
    return eager.ms, compiled.ms


def _part(part: str) -> tuple:
    """ms of these kernels of main, eager and compiled."""
    return tuple(step.parts[part] for step in recorded.pair("main"))


def _together() -> tuple:
    return tuple(step.busy for step in recorded.pair("main"))


def _main_step() -> tuple:
    """What main's kernels lose, what its step loses, half of it: the host sets the pace, before and after."""
    pair = recorded.pair("main")
    less, saved = pair[0].busy - pair[1].busy, recorded.pays("main").saved
    assert all(step.busy < 0.6 * step.ms for step in pair)
    assert saved < 0.6 * less
    return less, saved


def _main_launches() -> tuple:
    eager, compiled = recorded.pair("main")
    return compiled.launches, eager.launches


def _mostly_gradients() -> tuple:
    """Most of what main's kernels lose."""
    eager, compiled = recorded.pair("main")
    assert eager.parts[recorded.PARTS[1]] - compiled.parts[recorded.PARTS[1]] > 0.75 * (eager.busy - compiled.busy)
    return ()


def _outer() -> tuple:
    """The GPU was busy, and what is neither a GEMM nor a gradient lost most."""
    pair = recorded.pair("outer")
    assert all(step.busy > 0.95 * step.ms for step in pair)
    less = [pair[0].parts[part] - pair[1].parts[part] for part in recorded.PARTS]
    assert less[2] == max(less)
    return ()


def _gemms() -> tuple:
    compiled = recorded.pair("outer")[1]
    return (100 * compiled.parts[recorded.PARTS[0]] / compiled.busy,)


def _pays(model: str) -> tuple:
    found = recorded.pays(model)
    assert found.low > 0, "it is beyond the spread"
    steps = [int(float(f"{found.steps(seconds):.2g}")) for seconds in (found.cold, found.warm)]
    return found.cold, found.warm, found.saved, *steps


def _epoch() -> tuple:
    """More batches than the steps after which main's cold start is paid for."""
    rows = 45_840_617
    batches = rows // 2048
    found = recorded.pays("main")
    assert found.steps(found.cold) < batches
    return (batches,)


say("An inference of DLRM has {} launches by default, and {} with the limit raised.", _fewer)
for name, options in {
    "default": "default", "`combo_kernels`": "combo_kernels", "limit raised": "raised",
}.items():
    say(f"| {name} | {{}} | {{}} |", partial(_launches, options))
say("These {} stay.", _gradients)
say("Each element costs {:.0f} times the instructions.", _instructions)
for name, key in {
    "eager": "eager", "`torch.compile`": "default", "`torch.compile`, `combo_kernels`": "combo_kernels",
    "our one kernel, notebook 15": "ours", "the bytes, at a copy's rate": "bytes",
}.items():
    say(f"| {name} | {{:.1f}} |", lambda key=key: (recorded.tables_us()[key],))
say("So the forward's {} look-ups stay {} kernels, whatever the first option says.", _stay)
say(
    "From 8 tables to 9 the default takes three times as long, for nine launches in place of one. In inference "
    "`raised` launches as many",
    _nine,
)
say(
    "26 look-ups take a quarter of the default's time, and the whole DLRM {:.0f} % of it, in training {:.0f} %.", _combo
)
for what in ("inference", "training"):
    say(f"| {what} | {{:.1f}} | {{:.1f}} | {{:.1f}} |", partial(_one_tensor, what))
say("In one tensor they take less than half of the time of `combo_kernels`.", _less_than_half)
for model in ("main", "outer"):
    say(f"| `{model}` | {{:.1f}} | {{:.1f}} | {{:.2f}} | {{:,}} | {{:,}} |", partial(_pays, model))
for part in recorded.PARTS:
    say(f"| {part} | {{:.2f}} | {{:.2f}} |", partial(_part, part))
say("| together | {:.2f} | {:.2f} |", _together)
say("Compiling takes {:.2f} ms off the kernels of `main`, and only {:.2f} ms off its step.", _main_step)
say("It still launches {} kernels, in eager {}.", _main_launches)
say("Mostly the gradients of the look-ups, and that is not fusion.", _mostly_gradients)
say("In `outer` the GPU was busy, so what its kernels save, the step saves.", _outer)
say("GEMMs are {:.0f} % of the kernels' time that is left.", _gemms)
say("Kaggle's file has {:,} batches of 2,048 rows, so one epoch of `main` pays for its cold start.", _epoch)
for model, limit in {"main": "launches, by the host", "outer": "GEMMs"}.items():
    say(f"| a step of `{model}` | {{:.2f}} ms | {{:.2f}} ms | {limit} |", partial(_step, model))
