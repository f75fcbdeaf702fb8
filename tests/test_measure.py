"""How the ops are measured, without a GPU: everything but the clock."""

import importlib
import json
import math
import re
import subprocess
import sys
import time
import weakref
from dataclasses import replace

import pytest
import torch
from fake_clock import Clock, cell, inputs, rows_of

import kernels
from kernels import dispatch, runtime
from kernels.check import Call, Spec, Sums
from kernels.check import spec as specs
from kernels.check.comparison import double
from kernels.check.tf32 import RoundedProducts
from kernels.measure import bench, first_call, judge, measuring, runs
from kernels.measure.cells import OURS, Calls, Cell, FirstCall, Row, calls, label
from kernels.measure.clock import batches, percentiles
from kernels.runtime import KERNELS
from lessons.shared.prediction import verdict

without_gpu = pytest.mark.skipif(runtime.device().type == "cuda", reason="there is a GPU")


@pytest.fixture(autouse=True)
def _small_sets(monkeypatch):
    monkeypatch.setattr(runs, "INPUT_BYTES", 5000)
    monkeypatch.setattr(measuring, "BATCH_US", 20)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("form", ["functional", "in place", "backward"])
def test_a_match_is_timed_and_divided_by_the_calls(form, dtype):
    timed_cell = cell(form, dtype)
    with torch.set_grad_enabled(form == "backward"):
        sets = len(runs.Sets(timed_cell, Clock()).all)
    assert 4 < sets < 100
    row = rows_of(bench.measure(timed_cell, Clock()))["eager"]
    assert row.match == "ok"
    assert (row.us_p20, row.us_p50, row.us_p80) == pytest.approx([t / sets for t in (14, 20, 26)])
    assert row.call_us > 0
    assert bench.with_rates(row, 1e-4).percent_of_copy == pytest.approx(100 * 256 / row.us_p50 / 1e6 / 1e-4)


WRONG = [
    ("functional", lambda x, bias: torch.relu(x + bias) + 1e-3),
    ("functional", lambda x, bias: torch.relu(x + bias)[:2]),
    ("functional", lambda x, bias: x),
    ("functional", lambda x, bias: x.add_(bias).relu_().clone()),
    ("functional", lambda x, bias: torch.relu(x + bias).bfloat16()),
    ("functional", lambda x, bias: (torch.relu(x + bias), x.clone())),
    ("in place", lambda x, bias: torch.relu(x + bias)),  # not in place
    ("in place", lambda x, bias: x.add_(bias)),
    ("backward", lambda x, bias: torch.relu(x + 1.001 * bias)),
    ("backward", lambda x, bias: torch.relu(x + bias.detach())),
]


@pytest.mark.parametrize(("form", "wrong"), WRONG)
def test_what_does_not_match_gets_no_time(form, wrong):
    good = kernels.add_relu_ if form == "in place" else kernels.add_relu
    rows = rows_of(bench.measure(cell(form, wrong=wrong, later=good), Clock()))
    assert rows["eager"].match == "ok"
    assert rows["later"].match == "ok"  # whatever the one before it did to the inputs
    assert rows["wrong"].match.startswith("FAILED: ")
    assert (rows["wrong"].us_p50, rows["wrong"].call_us) == (None, None)


def test_what_raises_fails_alone_and_shows_no_path():
    def raising(x, bias):
        raise RuntimeError("no such file: /home/someone/secret/kernel.cuh\nmore")

    rows = rows_of(bench.measure(cell(raising=raising), Clock()))
    assert rows["eager"].match == "ok"
    assert rows["raising"].match == "FAILED: RuntimeError: no such file: kernel.cuh more"
    nothing = replace(cell(), inputs=lambda draw, ids: draw(-1))
    assert bench.measure(nothing, Clock())[0].match.startswith("FAILED: RuntimeError")


def test_what_goes_wrong_while_timed_gets_no_time():
    state = {"error": 0.0}
    clock = Clock()
    clock.spoil = lambda: state.update(error=1.0)
    rows = rows_of(bench.measure(cell(later=lambda x, b: torch.relu(x + b) + state["error"]), clock))
    assert rows["eager"].match == "ok"
    assert rows["later"].match.startswith("FAILED: ")
    assert rows["later"].us_p50 is None


def test_eager_in_half_precision_is_held_against_what_rounding_allows():
    def measured(name, function):
        timed_cell = replace(cell(dtype="bfloat16"), implementations={name: lambda: function})
        return bench.measure(timed_cell, Clock())[0].match

    assert measured("eager", lambda x, bias: torch.relu(x + bias + 0.2)).startswith("FAILED")
    assert measured("triton", lambda x, bias: torch.relu(x + bias + 0.02)).startswith("FAILED")


def test_no_call_of_a_graph_writes_to_anothers_output():
    outputs = []

    def function(x, bias):
        outputs.append(weakref.ref(output := torch.relu(x + bias)))
        alive.append(sum(other() is not None for other in outputs))
        return output

    class Watching(Clock):
        def capture(self, work):
            outputs.clear()
            alive.clear()
            captured = super().capture(work)
            assert alive == [*range(1, len(outputs) + 1)]
            return captured

    alive = []
    timed_cell = replace(cell(), implementations={"eager": lambda: function})
    assert bench.measure(timed_cell, Watching())[0].match == "ok"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_eager_relu_gradients_match_at_the_size_that_is_measured(dtype):
    """Among 33 million z near 0 rounding puts some on relu's other side: the inputs must stay away from it."""
    module = importlib.import_module("kernels.ops.add_mul_activation.bench")
    x, bias, y = module._off_the_kink(4096, 512)(*runs.generators(dtype, Clock.device))
    rounded = x + module.MULTIPLIER * y + bias
    assert torch.equal(rounded > 0, x.double() + module.MULTIPLIER * y.double() + bias.double() > 0)
    assert rounded.abs().min() > 0.25


@pytest.mark.parametrize(
    ("value", "unit", "printed"),
    [(2, "graphs", "2 graphs"), (1, "graphs", "1 graph"), (1, "launches", "1 launch"), (1, "bytes", "1 byte"),
     (1, "times", "1 times"), (1.0004, "times as fast", "1.00 times as fast"), (1, "ms", "1 ms"),
     (0.5, "units", "0.5 units"), (11.0, "", "11")],
)
def test_a_verdict_has_its_unit(value, unit, printed, capsys):
    verdict("it", None, value, unit, "Why.", how="counted")
    verdict("it", 1, 1, "graphs", "Why.")
    first, second = capsys.readouterr().out.splitlines()
    assert first == f"it: no prediction, counted {printed}. Why."
    assert second == "it: predicted 1 graph, measured 1 graph: 1 ×. Why."


def test_percentiles():
    assert percentiles([5.0, 1.0, 3.0, 2.0, 4.0, 6.0]) == pytest.approx((2.0, 3.5, 5.0))


# ------------------------------------------------------------------------------------------------------------------
# Other inputs and outputs: ids, tables that are shared or written to, several outputs.


def look_up(ids, table):
    """(the rows' sum [B, D], how many different ids each bag has [B])"""
    rows = table[ids].sum(1)
    return rows, (ids.sort(1).values.diff(dim=1) != 0).sum(1) + 1


def update_(table, ids, lr):
    table.index_add_(0, ids.flatten(), torch.full((ids.numel(), table.shape[1]), -lr, dtype=table.dtype))


def size(table, ids, lr):
    update_(table, ids, -lr)
    return table


@pytest.fixture
def _their_specs(monkeypatch):
    known = {
        "look_up": Spec(look_up, lambda case, device: (), outputs=("rows", "different"), scale=Sums()),
        "update_": Spec(update_, lambda case, device: (), outputs=(), mutated=("table",), scale=Sums(magnitude=size)),
    }
    monkeypatch.setattr(specs, "spec_of", lambda op: known[op])


def a_table(draw):
    return (draw(50, 4),)


@pytest.mark.usefixtures("_their_specs")
def test_ids_shared_weights_and_several_outputs():
    seen = []

    def inputs(draw, ids, table):
        return ids(6, 3, below=50), table

    def good(ids, table):
        seen.append((ids, table))
        return look_up(ids, table)

    timed_cell = Cell(
        "look_up", "bandwidth", "functional", {"batch": 6, "ids": 3, "dtype": "float32", "draw": "uniform"}, inputs,
        {
            "good": lambda: good,
            "one output": lambda: lambda ids, table: look_up(ids, table)[0],
            "one count is off": lambda: lambda ids, table: (look_up(ids, table)[0], look_up(ids, table)[1] + 1),
            "changes the table": lambda: lambda ids, table: look_up(ids, table.mul_(1.0001)),
        },
        bytes=100, shared=a_table,
    )
    rows = rows_of(bench.measure(timed_cell, Clock()))
    assert rows["good"].match == "ok"
    assert rows["good"].note == "all calls share 0.0008 MB, which stay in the L2"
    assert all(rows[name].failed for name in ("one output", "one count is off", "changes the table"))
    assert len({table.data_ptr() for _, table in seen}) == 1
    assert len({ids.data_ptr() for ids, _ in seen}) > 4
    assert label(rows["good"]) == "6×3 float32 uniform"
    assert rows["good"].flat()["draw"] == "uniform"
    assert Row.of(rows["good"].flat()) == rows["good"]


@pytest.mark.usefixtures("_their_specs")
def test_a_table_that_is_written_to_is_compared_and_comes_back():
    timed_cell = Cell(
        "update_", "bandwidth", "functional", {"rows": 50}, lambda draw, ids, table: (table, ids(6, below=50)),
        {
            "good": lambda: lambda table, ids: update_(table, ids, 0.1),
            "wrong": lambda: lambda table, ids: update_(table, ids, 0.2),
            "again": lambda: lambda table, ids: update_(table, ids, 0.1),
        },
        options=(0.1,), shared=a_table,
    )
    rows = rows_of(bench.measure(timed_cell, Clock()))
    assert [rows[name].match.split(":")[0] for name in rows] == ["ok", "FAILED", "ok"]


def test_ids_are_seeded_and_follow_their_distribution():
    def draw(**how):
        return runs.generators(torch.float32, Clock.device)[1](20000, below=1000, **how)

    for how in ({}, {"zipf": 1.0}, {"zipf": 1.2}, {"zipf": 0.7}):
        ids = draw(**how)
        assert torch.equal(ids, draw(**how))
        assert ids.dtype == torch.int64
        assert (ids.min() >= 0) & (ids.max() < 1000)
        counts = ids.bincount(minlength=1000).double()
        # Ids 1 … 9 are together asked for as often as the distribution function says.
        a = how.get("zipf", 0.0)
        density = torch.arange(1, 1002, dtype=torch.float64)
        cdf = density.log() if a == 1 else (density ** (1 - a) - 1) / (1 - a)
        assert counts[1:10].sum() / 20000 == pytest.approx(float((cdf[10] - cdf[1]) / cdf[1000]), abs=0.01)


# ------------------------------------------------------------------------------------------------------------------
# Memory.


def test_fewer_sets_where_memory_is_short_and_the_row_says_so():
    # A set takes 160 bytes of inputs and 128 of outputs: a half of 2000 bytes holds three, where 31 are wanted.
    row = bench.measure(cell(), Clock(free=2000))[0]
    assert row.match == "ok"
    assert row.note == "3 sets of inputs in place of 31, for which the GPU's memory is too small"
    assert row.us_p50 == pytest.approx(20 / 3)


def test_a_smaller_shape_where_no_two_sets_fit_and_the_row_says_so():
    def at(rows):
        return replace(
            cell(), labels={"rows": rows, "columns": 8, "dtype": "float32"},
            inputs=lambda draw, ids: (draw(rows, 8), draw(8)), smaller=lambda: at(rows // 2) if rows > 4 else None,
        )

    clock = Clock(free=2400)
    (row,) = bench.measure(at(64), clock)
    assert row.match == "ok"
    assert row.labels["rows"] == 8  # a half of that holds two sets of 288 and 256 bytes; of 16 rows only one
    assert row.note.startswith("in place of 64×8 float32, for which the GPU's memory is too small; ")
    assert clock.cleared >= 3
    (row,) = bench.measure(at(64), Clock(free=10))
    assert row.match.startswith("FAILED: OutOfMemoryError: two sets of inputs and outputs take")


def test_an_implementation_without_memory_makes_the_cell_smaller():
    def hungry(x, bias):
        if len(x) > 4:
            raise torch.OutOfMemoryError("tried to allocate 20 GiB")
        return torch.relu(x + bias)

    large = replace(
        cell(hungry=hungry), labels={"rows": 8, "columns": 8, "dtype": "float32"},
        inputs=lambda draw, ids: (draw(8, 8), draw(8)), smaller=lambda: cell(hungry=hungry),
    )
    rows = bench.measure(large, Clock())
    assert [(row.match, row.labels["rows"]) for row in rows] == [("ok", 4), ("ok", 4)]
    assert all("in place of 8×8 float32" in row.note for row in rows)


# ------------------------------------------------------------------------------------------------------------------
# Calls.


def test_calls_are_timed_and_held_against_the_op():
    statements = {"x + 1": "x + 1", "eager": "eager(x, bias)", "wrong": "x + bias", "raising": "add_relu(x)"}
    timed_calls = Calls("add_relu", "functional", {"rows": 4}, inputs, ("x", "bias"), "x + 1", statements)
    rows = rows_of(bench.measure_calls(timed_calls, Clock(), batch=3, count=2))
    assert [rows[name].match.split(":")[0] for name in statements] == ["baseline", "ok", "FAILED", "FAILED"]
    assert [rows[name].call_us is not None for name in statements] == [True, True, False, False]
    assert rows["eager"].call_us_low <= rows["eager"].call_us <= rows["eager"].call_us_high


def test_the_usual_calls():
    usual_calls = list(calls("add_relu", {"rows": 4}, inputs, ("x", "bias"), (0.5, "gelu")))
    forms = {c.form: dict(c.statements) for c in usual_calls if isinstance(c, Calls)}
    assert list(forms) == ["functional", "in place", "with a gradient"]
    assert list(forms["in place"]) == ["x.add_(1)", "eager", "auto", "triton", "cuda"]
    assert forms["in place"]["cuda"] == "add_relu_(x, bias, 0.5, 'gelu', backend='cuda')"
    assert list(forms["with a gradient"]) == ["eager", "auto", "triton", "cuda"]
    assert [(c.form, c.op, c.labels) for c in usual_calls if isinstance(c, FirstCall)] == [
        ("functional", "add_relu", {"rows": 4})
    ]


@pytest.mark.parametrize("form", ["functional", "in place", "with a gradient"])
def test_each_form_of_call_is_measured_as_its_user_makes_it(form):
    (timed_calls,) = (
        c for c in calls("add_relu", {"rows": 4}, inputs, ("x", "bias"), forms=[form]) if isinstance(c, Calls)
    )
    seen = []
    statements = {name: text for name, text in timed_calls.statements.items() if name not in OURS}
    statements["eager"] = f"seen(eager({'x, bias'}))"
    timed_calls = replace(timed_calls, statements=statements)
    builtins = importlib.import_module("builtins")
    try:
        builtins.seen = lambda output: (seen.append(output.requires_grad), output)[1]
        rows = bench.measure_calls(timed_calls, Clock(), batch=2, count=1)
    finally:
        del builtins.seen
    assert {row.match for row in rows} <= {"ok", "baseline"}
    assert set(seen) == {form == "with a gradient"}


def test_batches_go_by_turns_and_the_first_warms_up():
    order = []

    def timer(name):
        return lambda calls: order.append(name * calls) or 1e-6 * calls

    times = batches({name: timer(name) for name in "ab"}, 2, 3, lambda: order.append("|"))
    assert "".join(order) == "|aa|bb" * 4 + "|"
    assert times == {name: pytest.approx([1.0] * 3) for name in "ab"}
    seconds = iter([9.0, 1.0, 2.0, 4.0])
    assert batches({"a": lambda calls: next(seconds)}, 2, 3, lambda: None) == {"a": [5e5, 1e6, 2e6]}


def test_a_batch_that_is_waited_for_ends_with_the_gpu():
    (of,) = batches({"a": lambda calls: 1e-3}, 2, 1, lambda: time.sleep(2e-3), waits=True).values()
    assert of[0] > 1000 * (1 + 2) / 2
    timed_cell = replace(cell(auto=kernels.add_relu, wrong=lambda x, b: x), part="auto", waits=True)
    rows = rows_of(bench.measure(timed_cell, Clock()))
    assert rows["wrong"].failed
    auto = rows["auto"]
    assert (auto.match, auto.us_p50) == ("ok", None)
    assert 0 < auto.call_us_low <= auto.call_us <= auto.call_us_high


def first_call_of_a_process():
    usual_calls = calls("add_relu", {}, inputs, ("x", "bias"), forms=["functional"])
    return next(c for c in usual_calls if isinstance(c, FirstCall))


def test_the_first_call_of_a_process(tmp_path):
    answer = {"us": 4e4, "torch_ms": 900.0, "kernels_ms": 30.0, "core_ms": 5.0, "triton": False, "compiled": False}

    def rows(run):
        return rows_of(first_call.measure_first_call(first_call_of_a_process(), built=(tmp_path,), run=run))

    good = rows(lambda *asked: answer)
    assert [(row.call_us, row.match) for row in good.values()] == [(4e4, "ok")] * 2
    assert good["cuda"].note == "loaded before it: torch 900 ms, kernels 30 ms, core 5 ms"
    assert rows(lambda *asked: answer | {"triton": True})["triton"].match == "FAILED: Triton was imported"

    def builds_once(cell, backend):
        built = tmp_path / f"{backend}.so"
        us = 4e4 if built.exists() else 9e9
        built.touch()
        return answer | {"us": us}

    assert [(row.call_us, row.match) for row in rows(builds_once).values()] == [(4e4, "ok")] * 2

    def builds_each_time(cell, backend):
        (tmp_path / f"{backend}{len(list(tmp_path.iterdir()))}.so").touch()
        return answer

    assert re.fullmatch(r"FAILED: compiled cuda\d\.so", rows(builds_each_time)["cuda"].match)

    def dies(cell, backend):
        raise ValueError("exit status 1: RuntimeError: no")

    assert rows(dies)["cuda"].match == "FAILED: ValueError: exit status 1: RuntimeError: no"

    cell = replace(first_call_of_a_process(), compiles=True)
    for compiled, match in ((True, "ok"), (False, "FAILED: compiled nothing")):
        run = lambda asked, backend, compiled=compiled: answer | {"compiled": asked.compiles and compiled}  # noqa: E731
        assert {row.match for row in first_call.measure_first_call(cell, built=(tmp_path,), run=run)} == {match}


@pytest.mark.parametrize("op", bench.ops())
def test_the_process_of_a_first_call_finds_the_one_that_is_asked(op):
    for candidate in bench.of(op).cells():
        if isinstance(candidate, FirstCall):
            labels = json.loads(json.dumps(dict(candidate.labels)))
            assert first_call.asked(candidate.op, labels).labels == candidate.labels


def test_no_compiler_is_imported_for_a_first_call():
    """Where nobody imports Triton, a first call does not wait for it."""
    pairs = ((one.op, json.dumps(dict(one.labels))) for op in bench.ops() for one in bench.of(op).cells()
             if isinstance(one, FirstCall))
    asked = list(dict.fromkeys(pairs))
    assert "dlrm_forward" in dict(asked)
    code = f"""
import json, sys
from kernels.measure import first_call
for op, labels in {asked!r}:
    first_call.asked(op, json.loads(labels))
    assert not {{"torch._dynamo", "triton"}} & sys.modules.keys(), (op, labels)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=KERNELS.parent, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr


@without_gpu
def test_the_process_of_a_first_call_says_why_it_ended():
    rows = first_call.measure_first_call(replace(first_call_of_a_process(), implementations=("cuda",)))
    assert rows[0].match.startswith("FAILED: ValueError: exit status 1: ")


@pytest.mark.parametrize(("off", "right"), [(0.0, True), (0.01, False)])
def test_a_first_calls_result_may_be_off_by_what_its_products_precision_allows(monkeypatch, capsys, off, right):
    """A probability of dlrm's `main` is off by up to 0.0007 with rounded operands, 1000 times as much as in float32."""
    first_calls = (one for one in bench.of("dlrm").cells() if isinstance(one, FirstCall) and not one.compiles)
    (asked,) = (one for one in first_calls if one.labels["model"] == "main")

    def rounding(*arguments, backend):
        with RoundedProducts():
            return first_call.reference(asked.op)(*arguments) + off

    monkeypatch.setattr(first_call, "public", lambda op: rounding)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    arguments = asked.op, "cuda", "finds", json.dumps(dict(asked.labels)), {}
    if right:
        first_call.call(*arguments)
        assert json.loads(capsys.readouterr().out)["us"] > 0
    else:
        with pytest.raises(AssertionError, match="elements are wrong"):
            first_call.call(*arguments)


@pytest.mark.parametrize(("dtype", "most"), [("float32", 0.01), ("bfloat16", 0.1)])
def test_what_dlrms_main_may_be_off_by_is_far_from_any_probability(dtype, most, monkeypatch):
    module = bench.of("dlrm")
    (model,) = (replace(main, heights=(50,) * 26) for main in module.MAINS if main.dtype == dtype)
    draw, ids = runs.generators(getattr(torch, dtype), torch.device("cpu"))
    call = Call("", module._tensors(model, 200, draw, ids))
    spec = module._spec(model)
    exact = spec.reference(*call.map(double).tensors)
    (error,) = spec.scale.errors(spec.reference, call, [exact])
    assert 0 < error.max() < most
    assert ((spec.reference(*call.tensors).double() - exact).abs() <= error).all()


def test_the_process_of_a_first_call_makes_its_cells_without_triton():
    """Whatever they import stands in each first call: an option of Inductor's asked for would bring Triton."""
    code = """
import re
import kernels, sys
from kernels.measure import bench
from kernels.measure.cells import FirstCall
for op in sys.argv[1:]:
    assert any(isinstance(cell, FirstCall) for cell in bench.of(op).cells(True))
    assert "triton" not in sys.modules, op
"""
    ops = [op for op in bench.ops() if any(isinstance(c, FirstCall) for c in bench.of(op).cells(True))]
    command = [sys.executable, "-c", code, *ops]
    run = subprocess.run(command, cwd=KERNELS.parent, capture_output=True, text=True, check=False)
    assert ops
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("op", bench.ops())
@pytest.mark.parametrize("quick", [False, True])
def test_every_op_measures_what_it_is_judged_by(op, quick):
    module = bench.of(op)
    cells = list(module.cells(quick))
    parts = {c.part for c in cells}
    judged = {target.part for target in module.TARGETS}
    slow = {part for part in judged if part == "grid" or part.endswith(" autotuned")}
    assert parts >= judged - (slow if quick else set())
    for c in cells:
        if isinstance(c, Cell):
            ours = {*OURS} & {*dispatch.find(c.op).backends}
            assert (ours if c.part != "auto" else {"eager", "auto"}) <= set(c.implementations)
            # What reads from the GPU, or asks it for its memory, cannot be replayed.
            assert c.waits == (c.part in ("auto", "build", "memory", "waits"))
            assert callable(c.bytes) or c.bytes >= math.prod(c.shape) * c.dtype.itemsize
            smaller = c.smaller()
            half = smaller is not None and math.prod(smaller.shape) == math.prod(c.shape) // 2
            assert smaller is None or (smaller.form == c.form and (half or smaller.labels != c.labels))
        elif isinstance(c, Calls | FirstCall):
            there = {*OURS} & {*dispatch.find(c.op).backends}
            if isinstance(c, Calls):
                assert {"eager", "auto", *there} <= set(c.statements)
            timed = {*OURS} & {*(c.statements if isinstance(c, Calls) else c.implementations)}
            assert timed <= there  # of another backend there would be no time
    if not quick:
        assert any(module.SHOWN.items() <= c.labels.items() for c in cells if c.part in ("bandwidth", "main"))


def test_without_an_implementation_what_is_only_compared_with_it_is_not_measured(monkeypatch):
    cells = [one for one in bench.of("fused_mlp").cells() if one.part in ("auto", "ieee", "bandwidth autotuned")]
    left = list(bench._without(cells, {"max-autotune", "eager"}))
    assert [{*one.implementations} for one in left if one.part != "auto"] == []
    left = list(bench._without(cells, {"max-autotune"}))  # "max-autotune, padded" too
    assert {one.part for one in left} == {"auto", "ieee"}
    assert [one.implementations for one in left] == [one.implementations for one in cells[: len(left)]]
    monkeypatch.setattr(bench.of("add_relu"), "cells", lambda quick: cells)
    measured = []
    monkeypatch.setattr(bench, "measure", lambda one, gpu: measured.append(one) or [])
    assert bench.run("add_relu", Clock(), without=["max-autotune"])["without"] == ["max-autotune"]
    assert len(measured) == len(left)
    cells = [one for one in bench.of("embedding_bags_update").cells() if "cuda, sorted before" in one.implementations]
    for one in bench._without(cells, {"cuda"}):  # with a part of its work done before, it is CUDA's too
        assert not any(name.startswith("cuda") for name in one.implementations)
    (one,) = bench._without(cells[:1], {"cuda, sorted before"})
    assert {*cells[0].implementations} - {*one.implementations} == {"cuda, sorted before"}


def test_auto_is_measured_at_every_size_of_the_grid():
    cells = list(bench.of("add_mul_activation").cells())
    grid, auto = ([c.labels for c in cells if c.part == part] for part in ("grid", "auto"))
    assert len(grid) == 41  # 6 × 7 without 262144 × 4097, more than 2 GiB
    assert grid == auto
    assert all(set(judge.PEERS) <= set(c.implementations) for c in cells if c.part == "grid")
