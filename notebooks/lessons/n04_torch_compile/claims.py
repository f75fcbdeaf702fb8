"""04, torch.compile: recorded launches, µs of look-ups, three training steps, seconds and milliseconds by turns; two
stored outputs."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path

from lessons.n04_torch_compile import recorded
from lessons.shared.claim import claim
from lessons.shared.records import Record, device, sms

NOTEBOOK = Path(__file__).resolve().parents[2] / "04_torch_compile.ipynb"
say = partial(claim, "04")


def _left() -> tuple:
    """Launches of a training step: by default, with force_pointwise_cat."""
    record = recorded.COMPILE_TIMES.with_part("look_ups")
    labels = {"model": "DLRM", "tables": 26, "what": "training"}
    settings = "default", "force_pointwise_cat"
    return tuple(record.one("look_ups", setting=name, **labels)["launches"] for name in settings)


def _kernels() -> tuple:
    """By default a kernel a table, and one of all with force_pointwise_cat."""
    names = "default", "force_pointwise_cat"
    assert [recorded.launches("2.13", "inference", name)["tables_a_launch"] for name in names] == [[1] * 26, [26]]
    return ()


def _gradients() -> tuple:
    """Kernels of tables' gradients, with force_pointwise_cat as by default; only the forward has fewer."""
    rows = [recorded.launches("2.13", "training", name) for name in ("default", "force_pointwise_cat")]
    assert [row["look_ups"] for row in rows] == [26, 1]
    assert recorded.count("2.13", "training") - recorded.count("2.13", "training", "force_pointwise_cat") == 25
    (count,) = {row["gradients"] for row in rows}
    return (count,)


def _stored(name: str) -> str:
    """What the cell of this id printed in the stored run."""
    (cell,) = (cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["id"] == name)
    return "".join(line for output in cell["outputs"] for line in output["text"])


def _instructions() -> tuple:
    """An element costs many times the instructions, by the stored output of the cell that counts them."""
    default, forced = (int(number) for number in re.findall(r"(\d+) instructions", _stored("instructions")))
    assert forced > 5 * default
    return ()


def _forced() -> tuple:
    """µs of 26 look-ups, by the stored output: with force_pointwise_cat's one launch, and with combo_kernels;
    and the launches of combo_kernels, by the record of the same torch."""
    assert "NVIDIA H200" in _stored("cell-01")
    us = {name: float(time) for name, time in re.findall(r"(\w+): ([\d.]+) µs", _stored("forced-time"))}
    assert us["combo_kernels"] < us["force_pointwise_cat"] < us["default"]
    launched = recorded.launches("2.11", "inference", "combo_kernels")["tables_a_launch"]
    return us["force_pointwise_cat"], us["combo_kernels"], len(launched)


def _issued() -> tuple:
    """Elements of 26 look-ups, and the µs to issue force_pointwise_cat's instructions for all, a lane an element."""
    elements, (_, forced) = 2048 * 26 * 16, re.findall(r"(\d+) instructions", _stored("instructions"))
    us = int(forced) * elements / (128 * sms()) / device("max_sm_mhz")
    assert int(forced) == 316
    assert 0.9 < us / _forced()[1] < 1
    return elements, us


def _us(setting: str, what: str = "inference", model: str = "look-ups", tables: int = 26) -> float:
    """µs of the look-ups, of the GPU that has them."""
    record = recorded.COMPILE_TIMES.with_part("look_ups")
    return record.us("look_ups", setting=setting, what=what, model=model, tables=tables)


def _nine() -> tuple:
    record = recorded.COMPILE_TIMES.with_part("look_ups")
    for tables, launched in ((8, 1), (9, 9), (26, 26)):
        labels = {"model": "look-ups", "tables": tables, "what": "inference"}
        assert record.one("look_ups", setting="default", **labels)["launches"] == launched
    assert 2 < _us("default", tables=9) / _us("default", tables=8) < 3
    return ()


def _combo() -> tuple:
    """The whole DLRM in percent of the default's time, in inference and in training: the best setting of both."""
    settings = "default", "force_pointwise_cat", "combo_kernels"
    for what in ("inference", "training"):
        assert round(_us("default", what) / _us("combo_kernels", what)) == 4
        for model, tables in (("look-ups", 9), ("look-ups", 26), ("DLRM", 26)):
            times = {name: _us(name, what, model, tables) for name in settings}
            assert min(times, key=times.get) == "combo_kernels"
    assert _us("combo_kernels", tables=8) > _us("default", tables=8), "then not from 9 tables on alone"
    return tuple(100 * _us("combo_kernels", w, "DLRM") / _us("default", w, "DLRM") for w in ("inference", "training"))


def _one_tensor() -> tuple:
    for what in ("inference", "training"):
        assert 0.4 < _us("one tensor", what) / _us("combo_kernels", what) < 0.55
    return ()


def _without_hash() -> tuple:
    """µs of the 26 look-ups of 2048 rows that 17 times: with combo_kernels, and in one tensor."""
    names = "combo_kernels, side by side", "torch.compile, one tensor"
    return tuple(Record("lecture_17").us("ways", size=2048, name=name) for name in names)


def _eight_in_one() -> tuple:
    """µs of 8 and of 9 tables in inference; in training, and with 9 tables or 26, one tensor is the faster."""
    for tables in (8, 9, 26):
        for what in ("inference", "training"):
            faster = _us("one tensor", what, tables=tables) < _us("default", what, tables=tables)
            assert faster == ((tables, what) != (8, "inference"))
    return _us("one tensor", tables=8), _us("one tensor", tables=9)


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
    """Most of eager's launches are still there."""
    eager, compiled = recorded.pair("main")
    assert compiled.launches > eager.launches / 2
    return eager.launches, compiled.launches


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


def _outer_gemm() -> tuple:
    """More than a third of what outer's step saves is its largest x @ w.T's, another kernel once compiled."""
    kernels = []
    for names in (recorded.EAGER, recorded.COMPILED):
        run = json.loads((recorded.TRACES / names["outer"] / "run.json").read_text())
        gemms = [kernel for kernel in run["key_averages"] if "_tn_n_" in kernel["name"]]
        largest = max(gemms, key=lambda kernel: kernel["us"])
        kernels.append((largest["name"], largest["us"] / 1e3 / run["active_steps"]))
    (before, eager), (after, compiled) = kernels
    assert before != after
    assert eager - compiled > recorded.pays("outer").saved / 3
    return ()


def _eager_ms() -> tuple:
    return tuple(recorded.pair(model)[0].ms for model in ("small", "main", "outer"))


def _pays() -> tuple:
    """Steps of main, cold and warm, in two digits."""
    payoff = recorded.pays("main")
    assert payoff.low > 0, "it is beyond the spread"
    return tuple(int(float(f"{payoff.steps(seconds):.2g}")) for seconds in (payoff.cold, payoff.warm))


def _epoch() -> tuple:
    """More batches than the steps after which main's cold start is paid for."""
    rows = 45_840_617
    batches = rows // 2048
    payoff = recorded.pays("main")
    assert payoff.steps(payoff.cold) < batches
    return (batches,)


say("78 kernels | 26 by default, 1 with `force_pointwise_cat`", _kernels)
say("These {} kernels stay.", _gradients)
say("helps the forward only: of the whole model's {:.0f} launches {:.0f} are left.", _left)
say("With `force_pointwise_cat` an element takes many times as many instructions,", _instructions)
say(
    "In the stored run, on an H200, `force_pointwise_cat` takes {:.1f} µs, and `combo_kernels` {:.1f}. So {} launches "
    "beat one.",
    _forced,
)
say("316 instructions for each of {:,} elements take {:.1f} µs, nearly as long as all of `combo_kernels`:", _issued)
say(
    "In inference, the default takes more than twice as long for 9 tables as for 8, because nine launches replace "
    "one.",
    _nine,
)
say(
    "From 9 tables on, `combo_kernels` is the fastest option. With it, 26 look-ups take a quarter of the default's "
    "time. The whole DLRM takes {:.0f} % of the default's time in inference, and {:.0f} % in training.",
    _combo,
)
say("One tensor takes about half of the time with `combo_kernels` for 26 tables.", _one_tensor)
say("look-ups without the hash take {:.1f} µs with `combo_kernels` and {:.1f} in one tensor.)", _without_hash)
say("8 tables in inference take {:.1f} µs, and 9 take {:.1f}.", _eight_in_one)
say(
    "On an H200, compiling `main` pays off after {:,} steps from a cold start, and after {:,} from a warm one.", _pays
)
for part in recorded.PARTS:
    say(f"| {part}, ms | {{:.2f}} | {{:.2f}} |", partial(_part, part))
say("| together, ms | {:.2f} | {:.2f} |", _together)
say("| launches | {} | {} |", _main_launches)
say("Compiling takes {:.2f} ms off the kernels of `main`, and only {:.2f} ms off its step, because", _main_step)
say("Most of the kernels' saving is in the gradients of the look-ups,", _mostly_gradients)
say("In `outer` the GPU was busy, so the step saves what its kernels save.", _outer)
say("More than a third of that saving is one GEMM.", _outer_gemm)
say("In eager the steps take {:.2f}, {:.2f} and {:.2f} ms.", _eager_ms)
say("One epoch of Kaggle's file, {:,} steps, pays for the cold start.", _epoch)
for model, limit in {"main": "the host's launches", "outer": "GEMMs"}.items():
    say(f"| a step of `{model}` | {{:.2f}} ms | {{:.2f}} ms | {limit} |", partial(_step, model))
