"""model.adapters: the recorder in small, what is read of a record, the rounding of merged weights, the pictures."""

from __future__ import annotations

import sys

import pandas as pd
import pytest
import torch
from fake_clock import Clock
from torch import nn

from kernels import runtime
from kernels.measure import records
from model.adapters import __main__ as command
from model.adapters import drawing, facts, here, merging, record, ways
from model.lora import LinearWithLoRA
from model.profiling.operators import Operators

CPU = torch.device("cpu")
VARIANTS = {
    "layer": ("eager", "torch.compile", "fused, triton", "fused, cuda", "one product", "merged", "frozen layer"),
    "training": ("eager", "torch.compile", "fused, triton", "fused, cuda"),
}


@pytest.fixture(scope="module")
def rows():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield record.record(CPU, record.PARTS, record.SMALL)["rows"]
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def closed():
    yield
    if plt := sys.modules.get("matplotlib.pyplot"):
        plt.close("all")


def test_everything_is_measured_in_small(rows):
    found = {(row["part"], row["variant"]) for row in rows}
    assert {part for part, _ in found} == set(record.PARTS) - {"copy"}
    assert {row["match"] for row in rows} == {"ok"}
    assert all(row[name] > 0 for row in rows for name in ("us_p50", "host_us", "call_us"))
    assert {("training", "eager"), ("layer", "one product"), ("adapters", "all, masked")} <= found
    for name, why in runtime.backends(CPU).items():
        if name != "eager" and not why:  # Triton, where its interpreter runs
            assert {("training", f"fused, {name}"), ("model", f"LoRA, fused, {name}")} <= found
    assert {"LoRA, eager", "all trained"} <= {variant for part, variant in found if part == "model"}
    (everything,) = (row for row in rows if row["variant"] == "all trained")
    assert all(row["trained"] < everything["trained"] / 2 for row in rows if row["variant"].startswith("LoRA"))


def test_a_record_is_saved_and_read(rows, tmp_path):
    records.save({"op": record.NAME, "GPU": "a GPU", "date": "", "rows": rows}, tmp_path)
    assert len(records.recorded(record.NAME, "a-gpu", tmp_path)) == len(rows)


def test_a_wrong_result_has_no_time_and_a_failing_part_loses_no_other(monkeypatch, capsys):
    monkeypatch.setattr(record.ways.OneProduct, "forward", lambda self, x: torch.zeros(len(x), len(self.bias)))
    monkeypatch.setattr(record.ways, "one_by_one", None)
    recorder = record.Recorder(CPU, record.SMALL)
    recorder.backends = []
    found = recorder.measure(("layer", "adapters", "pieces"))
    by_name = {row.get("variant", row["part"]): row for row in found}
    assert by_name["one product"]["match"].startswith("FAILED: off by")
    assert "us_p50" not in by_name["one product"]
    assert by_name["adapters"]["match"].startswith("FAILED: TypeError")
    assert by_name["add"]["match"] == "ok"
    assert "FAILED" in capsys.readouterr().out


def test_the_gpu_s_way_with_a_clock_that_is_told_what_to_say(monkeypatch):
    """Captured, replayed and judged again; what a replay leaves is looked at."""
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    recorder = record.Recorder(CPU, record.SMALL)
    recorder.clock.gpu, recorder.backends = Clock(times=(30.0, 10.0, 20.0)), []
    found = recorder.measure()
    assert {row["part"] for row in found} == set(record.PARTS)
    assert {row["match"] for row in found} == {"ok"}
    assert all(row["us_p50"] == 20 / row["calls"] for row in found if row["part"] != "copy")
    assert {row["calls"] for row in found if row["part"] == "layer"} == {2}

    recorder = record.Recorder(CPU, record.SMALL)
    recorder.clock.gpu, recorder.backends = Clock(), []
    layer = recorder._layer(4, 16)[0]
    calls = {"eager": lambda k=0: layer.lora.A.detach() * spoiled[0]}
    spoiled = [1.0]
    recorder.clock.gpu.spoil = lambda: spoiled.__setitem__(0, 2.0)
    recorder._rows("layer", calls, {"eager": (layer.lora.A.detach(),)}, 1)
    assert recorder.rows[-1]["match"] == "FAILED: off by 1 of its length"
    assert "us_p50" not in recorder.rows[-1]


@pytest.mark.parametrize(
    "arguments", [["--only", "nothing"], ["--save", "--only", "layer"], ["--save", "--device", "cpu"]]
)
def test_a_mistake_is_named(arguments, capsys):
    with pytest.raises(SystemExit):
        command.main(arguments)
    assert arguments[0] in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------------------------


def test_many_adapters_give_the_same_by_every_way():
    x, A, B = torch.randn(9, 8), torch.randn(3, 8, 2), torch.randn(3, 2, 5)
    adapter = torch.tensor([0, 2, 2, 0, 0, 2, 0, 2, 2])  # one is nobody's
    wanted = torch.stack([x[row] @ A[number] @ B[number] for row, number in enumerate(adapter.tolist())])
    for name, way in ways.MANY.items():
        if name != ways.GROUPED:
            torch.testing.assert_close(way(x, A, B, adapter), wanted)


def test_groups_give_the_same():
    x, A, B = torch.randn(20, 16), torch.randn(3, 16, 16), torch.randn(3, 16, 32)
    adapter = torch.randint(0, 2, (20,)) * 2
    x, A, B = (tensor.bfloat16() for tensor in (x, A, B))
    try:
        found = ways.grouped(x, A, B, adapter)
    except (AttributeError, RuntimeError, NotImplementedError) as error:
        pytest.skip(f"no product of groups here: {error}")
    torch.testing.assert_close(found, ways.one_by_one(x, A, B, adapter), rtol=0.03, atol=0.5)


def test_one_product_is_the_layer():
    layer = LinearWithLoRA(nn.Linear(6, 9), 2, alpha=3, activation="tanh")
    layer.lora.reset_parameters(b_std=0.5)
    x = torch.randn(4, 6)
    torch.testing.assert_close(ways.OneProduct(layer)(x), layer(x))


def test_what_merging_keeps():
    found = [merging.kept_of(std) for std in merging.STDS]
    for way in merging.WAYS:
        assert found[0].error[way] < 1
        assert found[0].projection[way] == pytest.approx(1, abs=1e-3)
        assert found[-1].error[way] > 250
    assert found[-1].projection["merged"] < found[-1].projection["beside"] < 0.5
    assert found[-1].projection["one product"] > 0.95
    assert merging.rounded(torch.tensor([1.001], dtype=torch.float64)).item() == 1


def test_merging_rounds_as_bfloat16_layers_do():
    """The same by PyTorch in bfloat16: a product's float32 sums may round to the neighbour now and then."""
    *drawn, unit = merging.drawn()
    x, W, A, B = (tensor.bfloat16() for tensor in (*drawn, 1e-3 * unit))
    _, _, found = merging.outputs(1e-3)
    layer = x @ W.T + merging.MULTIPLIER * ((x @ A) @ B)
    merged = x @ (W.double() + merging.MULTIPLIER * (A.double() @ B.double()).T).bfloat16().T
    assert (layer.double() == found["beside"]).double().mean() > 0.97
    assert (merged.double() == found["merged"]).double().mean() > 0.97


def test_passes_are_those_of_the_layer():
    layer = LinearWithLoRA(nn.Linear(64, 64), 2, alpha=3, activation="relu")
    x = torch.randn(1024, 64)
    with torch.no_grad(), Operators() as found:
        layer(x)
    assert found.seen == here.operators(layer, x)
    moved = [round((operator.read + operator.written) / x.nbytes) for operator in found.seen]
    assert moved == [2, 1, 1, 2, 3, 2]
    assert sum(moved[3:]) * x.nbytes / facts.copy_tb_per_s() / 1e6 == facts.saved_us(1024, 64, passes=7, size=4)
    drawing.draw_passes({"eager": found.seen}, x.nbytes)


@pytest.mark.parametrize(("fused", "passes"), [(False, {"threshold_backward": 3, "mul": 2}), (True, {})])
def test_passes_of_the_backward(fused, passes):
    """act and scale: 5 E in eager, 4 E in the epilogue's backward; both sum x's two gradients."""
    where = runtime.device()
    layer = LinearWithLoRA(nn.Linear(64, 64, device=where), 2, 3, activation="relu", fused=fused, backend="triton")
    x = torch.randn(1024, 64, device=where, requires_grad=True)
    out = layer(x)
    grad = torch.ones_like(out)
    with Operators() as found:
        torch.autograd.grad(out, (x, layer.lora.A, layer.lora.B), grad)
    moved = {each.name: round((each.read + each.written) / x.nbytes) for each in found.seen if each.name != "mm"}
    assert moved == (passes or {"add_mul_activation_backward": 4}) | {"add": 3}
    assert sum(each.name == "mm" for each in found.seen) == 5


# ------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def recorded(monkeypatch):
    """A record of made-up numbers: each variant is a little slower than the one before; the frozen layer is fast."""
    found = []
    for part, names in VARIANTS.items():
        for shape in facts.SHAPES:
            gpu = shape[0] * shape[1] / 1e5
            for place, name in enumerate(names):
                us = gpu * (2 if name == "eager" else 0.5 if name == "frozen layer" else 1 + place / 100)
                found.append({"part": part, "variant": name, **facts.at(shape), "us_p20": 0.98 * us, "us_p50": us,
                              "us_p80": 1.005 * us, "host_us": 99.0, "call_us": max(us, 99.0)})  # fmt: skip
    found += [{"part": "pieces", "variant": name, "us_p50": 3.0} for name in ("scale", "add", "activate")]
    for place, name in enumerate(("one adapter", "all, masked", "gathered")):
        found.append({"part": "adapters", "variant": name, "us_p50": 10.0 ** place, "call_us": 5.0,
                      "peak_bytes": 10 ** (6 + place)})  # fmt: skip
    for name in ("all trained", "LoRA, eager", "LoRA, fused, triton", "LoRA, torch.compile"):
        found.append({"part": "model", "variant": name, "us_p50": 300.0, "call_us": 2000.0, "launches": 9,
                      "kernel_us": 400.0})  # fmt: skip
    monkeypatch.setattr(facts, "recorded", lambda name: pd.DataFrame(found) if name == record.NAME
                        else records.recorded(name))  # fmt: skip


def test_a_record_is_printed_and_drawn(recorded, capsys):
    facts.print_training({facts.SHAPES[0]: "eager"})
    facts.print_model()
    facts.print_adapters()
    facts.judge_saving(62.7)
    facts.judge("eager, 64 rows", 50, "Why.", "layer", "eager", "host_us", rows=64)
    assert len(drawing.draw_times().axes) == len(drawing.draw_times("training").axes) == 4
    printed = capsys.readouterr().out
    assert "not recorded" not in printed
    assert "torch.compile, triton, cuda; eager: wrong" in printed, "they differ by no more than the spread"
    assert "eager, 64 rows: predicted 50 µs, recorded 99 µs" in printed


def test_without_a_record_it_says_so(monkeypatch, capsys):
    def nothing(name):
        raise FileNotFoundError(name)

    monkeypatch.setattr(facts, "recorded", nothing)
    facts.print_training()
    facts.print_model()
    facts.print_adapters()
    facts.judge_saving(62.7)
    facts.judge("a", 50, "Why.", "layer", "eager")
    assert drawing.draw_times() is None
    assert capsys.readouterr().out.count(facts.MISSING) == 6


def test_pictures_need_no_record():
    drawing.draw_matrices()
    drawing.draw_kept()
    drawing.draw_blocks()


def test_on_your_machine(capsys):
    here.layers(8, 16, 2)
    here.adapters(8, 16, 3, 2)
    assert capsys.readouterr().out.count("µs a call") == 2
