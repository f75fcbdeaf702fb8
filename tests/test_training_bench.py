"""model.bench: rows only of what agrees with its reference, verdicts with their figures, and no partial records."""

import json
import math
from dataclasses import replace
from functools import partial

import pytest
import torch

import kernels
from kernels.measure import records
from kernels.measure.partial_record import PartialRecord
from model.bench import steps, trainer, training, whole_model
from model.config import Kernels, Precision, TableOptimizer, preset
from model.table_update import TableUpdate

SMALL = ["--device", "cpu", "--largest-table", "50", "--without", "torch.compile", "--without", "eager dense"]


@pytest.fixture
def small(monkeypatch):
    """Two rules, few and small batches."""
    small = {"ROWS": (8,), "EPOCH_ROWS": 8, "EPOCH_STEPS": 6, "REPORT": 3, "RULES": training.RULES[1:]}
    for name, value in small.items():
        monkeypatch.setattr(training, name, value)
    monkeypatch.setattr(steps, "step_times", partial(steps.step_times, block=1, rounds=2))
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_both_parts_on_the_cpu(small, capsys):
    assert training.main([*SMALL, "--only", "epoch,steps"]) == 0
    out = capsys.readouterr().out
    assert out.count(" ms (") == 4  # each rule's reference, and fused
    assert out.count(" rows/s, loss ") == 4
    assert "FAILED" not in out
    assert "met: epoch adagrad 8 fp32: fused: losses of 6 steps beside the reference's: " in out


def test_what_does_not_agree_has_no_time(small, capsys, monkeypatch):
    """BROKEN ON PURPOSE here: an update at twice the rate."""
    plain = TableUpdate.__init__

    def twice(self, tables, rule, lr, backend="auto", **named):
        plain(self, tables, rule, lr if backend == "eager" else 2 * lr, backend, **named)

    monkeypatch.setattr(TableUpdate, "__init__", twice)
    assert training.main([*SMALL, "--only", "epoch,steps"]) == 1
    lines = [line for line in capsys.readouterr().out.splitlines() if " fused  " in line]
    assert len(lines) == 4
    for line in lines:
        apart, stray = "FAILED: losses 0.0", "FAILED: step 0: 1 of the update of table 0 is not float64's"
        assert (apart if line.startswith("epoch") else stray) in line
        assert " ms (" not in line
        assert "rows/s" not in line


def test_what_has_no_reference_is_not_judged_by_itself(small, capsys, monkeypatch):
    """BROKEN ON PURPOSE here: the reference of each rule."""
    plain = trainer.make_step

    def raising(model, optimizer, rows, device, precision, cuda_graph, **named):
        if model.config.kernels is Kernels.FUSED and getattr(optimizer.parts["tables"], "backend", "") != "eager":
            return plain(model, optimizer, rows, device, precision, cuda_graph, **named)
        raise RuntimeError("no such step")

    monkeypatch.setattr(trainer, "make_step", raising)
    assert training.main([*SMALL, "--only", "epoch"]) == 1
    out = capsys.readouterr().out
    for rule, reference in (("adagrad", "eager sparse"), ("rowwise_adagrad", "fused, eager update")):
        (of_reference, fused) = (line for line in out.splitlines() if line.startswith(f"epoch  {rule} "))
        assert reference in of_reference
        assert of_reference.endswith("  FAILED: RuntimeError: no such step")
        assert fused.endswith(f"  FAILED: there is no reference: {reference}: RuntimeError: no such step")
    assert "rows/s" not in out


@pytest.mark.parametrize(("method", "whose"), [("__init__", "the judge: "), ("follow", "")])
def test_an_error_of_the_judge_fails_the_rows_and_does_not_end_the_run(small, capsys, monkeypatch, method, whose):
    """BROKEN ON PURPOSE here: the float64 model has no memory."""
    calls = []

    def raising(*arguments, **more):
        calls.append(arguments)
        raise torch.OutOfMemoryError("no memory for float64")

    monkeypatch.setattr(steps.Shadow, method, raising)
    assert training.main([*SMALL, "--only", "steps"]) == 1
    out = capsys.readouterr().out
    lines = [line for line in out.splitlines() if line.startswith("steps ")]
    assert len(lines) == 4  # each rule's reference, and fused
    assert all(line.endswith(f"  FAILED: {whose}OutOfMemoryError: no memory for float64") for line in lines)
    assert " ms (" not in out
    assert len(calls) == (2 if method == "__init__" else 4)  # where it cannot be made, it is not made for each row


def test_what_fails_in_the_first_epoch_says_why(small, capsys, monkeypatch):
    """BROKEN ON PURPOSE here: an implementation that cannot be made, of which there is none for a second epoch."""
    plain = trainer.make_step

    def raising(model, *arguments, **more):
        if model.config.kernels is Kernels.FUSED:
            raise RuntimeError("no such step")
        return plain(model, *arguments, **more)

    monkeypatch.setattr(trainer, "make_step", raising)
    monkeypatch.setattr(training, "RULES", (TableOptimizer.ADAGRAD,))  # whose reference is not fused
    assert training.main([*SMALL, "--only", "epoch"]) == 1
    of_reference, fused = (line for line in capsys.readouterr().out.splitlines() if line.startswith("epoch "))
    assert of_reference.partition("  ok")[1]
    assert fused.endswith("  FAILED: RuntimeError: no such step")


@pytest.fixture
def small_model(monkeypatch):
    """A model whose outer product a CPU holds."""
    model = replace(preset("mini").model, embedding_dim=2, bottom=(13, 8, 2))
    monkeypatch.setattr(whole_model, "preset", lambda name: replace(preset(name), model=model))
    for name, value in {"OUTER_ROWS": 8, "DOT": ((8, Precision.TF32), (16, Precision.FP32)), "ROUNDS": 2}.items():
        monkeypatch.setattr(whole_model, name, value)
    monkeypatch.setattr(whole_model, "INFERENCE_ROWS", (4, 8))
    monkeypatch.setattr(steps, "step_times", partial(steps.step_times, block=1, rounds=2))
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_the_fused_parts_on_the_cpu(small_model, capsys):
    assert training.main([*SMALL, "--only", "inference,outer,dot"]) == 0
    out = capsys.readouterr().out
    assert out.count(" µs (") == 4
    assert out.count(" ms (") == 6
    assert "FAILED" not in out
    assert training.main([*SMALL, "--only", "inference"]) == 0
    assert " ms (" not in capsys.readouterr().out
    with pytest.raises(SystemExit, match="2"):
        training.main(["--only", "inferences"])
    assert "expected some of epoch, steps, outer, dot, inference, joined by commas" in capsys.readouterr().err


def test_a_prediction_that_does_not_agree_has_no_time(small_model, capsys, monkeypatch):
    """BROKEN ON PURPOSE here: the fused model's last bias."""
    plain = kernels.pack_mlp

    def changed(module):
        for linear in module.modules():
            if isinstance(linear, torch.nn.Linear) and linear.out_features == 1:
                linear.bias.data += 0.1
        return plain(module)

    monkeypatch.setattr(kernels, "pack_mlp", changed)
    assert training.main([*SMALL, "--only", "inference"]) == 1
    fused = [line for line in capsys.readouterr().out.splitlines() if " fused " in line]
    assert len(fused) == 2
    assert all("FAILED: a probability differs by 0.0" in line and " µs (" not in line for line in fused)


def test_predictions_without_a_reference_are_not_judged_by_each_other(small_model, capsys, monkeypatch):
    """BROKEN ON PURPOSE here: eager's."""
    plain = whole_model.DLRM

    def raising(shape):
        if shape.kernels is Kernels.EAGER:
            raise RuntimeError("no such model")
        return plain(shape)

    monkeypatch.setattr(whole_model, "DLRM", raising)
    assert training.main([*SMALL, "--only", "inference"]) == 1
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("inference ")]
    why = "RuntimeError: no such model"
    ends = [f"  FAILED: {why}", f"  FAILED: there is no reference: eager: {why}"] * 2
    assert [line.endswith(end) for line, end in zip(lines, ends, strict=True)] == [True] * 4


WHOLE = [
    {"part": "inference", "rows": 128, "precision": "tf32", "implementation": name, "us": us, "us_low": us,
     "us_high": us, "bytes": 4_000_000, "match": "ok"} for name, us in (("eager", 120.0), ("fused", 39.0))
] + [
    {"part": "outer", "optimizer": "sgd", "rows": 2048, "precision": "tf32", "implementation": name, "ms": ms,
     "ms_low": ms, "ms_high": ms, "peak_mb": 1400.0, "floor_mb": 1.0, "bytes": 8, "match": "ok"}
    for name, ms in (("eager sparse", 15.0), ("fused graph", 4.5))
]


def test_the_whole_models_verdicts_and_its_lines_of_the_readme(tmp_path, monkeypatch):
    assert training.verdicts(WHOLE) == [
        "met: inference 128 tf32: us: 39; limit 40",
        "met: outer 2048 tf32: ms: 4.5; limit 5",
        "MISSED: outer 2048 tf32: peak_mb: 1.4e+03; limit 1300",
    ]
    empty = whole_model.readme_table(results=tmp_path)
    assert empty.count("| – | – | – | – |") == len(whole_model.SHOWN)
    versions = training.runtime.versions() | {"GPU": "NVIDIA H200"}
    monkeypatch.setattr(training.runtime, "versions", lambda: versions)
    records.save(training._record("whole_model", WHOLE, copy_tb_per_s=4.0), tmp_path)
    table = whole_model.readme_table(results=tmp_path)
    assert "| inference, 128 rows, TF32 | 1.0 | 120.0 | – | 39.0 |" in table
    assert "| a training step of `outer`, 2,048 rows, TF32 | 0.0 | 15,000.0 | – | 4,500.0 |" in table
    assert "Recorded on NVIDIA H200" in table
    compiled = [WHOLE[0] | {"implementation": name, "us": us} for name, us in (
        ("torch.compile", 60.0), ("torch.compile, padded", 52.0), ("torch.compile, 32 look-ups a kernel", 55.0),
        ("torch.compile, wrong", 1.0),
    )]
    for first, shown in ((0, "52.0 (padded)"), (2, "55.0 (32 look-ups a kernel)")):
        records.save(training._record("whole_model", WHOLE + compiled[first:], copy_tb_per_s=4.0), tmp_path)
        best = whole_model.readme_table(results=tmp_path)
        assert f"| inference, 128 rows, TF32 | 1.0 | 120.0 | {shown} | 39.0 |" in best
    rows = [
        {"rows": 1, "implementation": name, "threads": threads, "match": match, "us": us}
        for name, threads, match, us in (
            ("eager", 1, "ok", 900.0), ("torch.compile", 1, "ok", 600.0), ("torch.compile, mode=x", 1, "ok", 270.0),
            ("torch.compile, mode=y", 1, "FAILED: no", 1.0), ("run_exported", 8, "ok", 90.0),
            ("run_exported", 1, "ok", 66.0),
        )
    ]
    for gpu, where in (("NVIDIA T4", ", on T4"), ("NVIDIA H200", "")):
        records.save({"op": "serving", "GPU": gpu, "date": "2026-01-31", "rows": rows}, tmp_path)
        text = whole_model.readme_table(results=tmp_path)
        shown = "900.0 | 270.0 (mode=x) | 66.0 |"
        assert f"| a call for 1 row, float32, copies included{where}; ours in C++ | – | {shown}" in text
    begin, end = whole_model.BEGIN, whole_model.END
    assert whole_model.with_table(f"a\n{begin}\n{end}\n", table) == f"a\n{begin}\n\n{table}\n\n{end}\n"


def test_necessary_bytes():
    """Counted by hand for two rows."""
    shape = replace(preset("mini").model, cardinalities=(10, 20, 30))  # 13-8-4, 4 + 6 features, 8-1
    weights = 14 * 8 + 9 * 4 + 11 * 8 + 9 * 1
    once = 2 * 3 * 8 + 4 * (2 * 13 + 2 * 3 * 4 + weights + 2)
    assert whole_model.necessary_bytes(shape, 2, training=False) == once
    assert whole_model.necessary_bytes(shape, 2, training=True) == once + 4 * (2 * (2 * 3 * 4 + weights) + 2)


def rows(**changes) -> list[dict]:
    """Rows of a run on a GPU, with known answers."""
    step = {"part": "steps", "optimizer": "sgd", "rows": 2048, "match": "ok", "floor_mb": 100.0, "peak_mb": 110.0}
    times = {"eager sparse": 2.8, "torch.compile": 2.5, "fused": 1.0, "fused graph": 0.5} | changes
    step_rows = [step | {"implementation": name, "ms": ms, "ms_low": ms, "ms_high": ms} for name, ms in times.items()]
    epoch = {"part": "epoch", "optimizer": "sgd", "rows": 2048, "match": "ok", "loss_apart": 2e-4,
             "loss_apart_most": 1e-4, "steps": 500}
    return [*step_rows, epoch | {"implementation": "fused", "rows_per_s": 1e6, "loss_first": 0.7, "loss_last": 0.5}]


def test_verdicts():
    assert training.verdicts(rows()) == [
        "met: steps sgd 2048 fp32: ms as a graph: 0.5; limit 0.8",
        "met: steps sgd 2048 fp32: memory over tables and state: 1.1; limit 1.2",
        "met: steps sgd 2048 fp32: times as fast as the best peer, without a graph: 2.5; limit 2",
        "MISSED: epoch sgd 2048 fp32: fused: losses of 500 steps beside the reference's: 0.0002; limit 0.0001",
    ]
    padded = training.verdicts(rows(**{"torch.compile, padded": 1.5}))
    assert padded[2] == "MISSED: steps sgd 2048 fp32: times as fast as the best peer, without a graph: 1.5; limit 2"
    slower = training.verdicts(rows(**{"fused": 1.3, "fused graph": 0.9}))
    assert [line.split(":")[0] for line in slower[:3]] == ["MISSED", "met", "MISSED"]
    unmeasured = training.verdicts(rows(**{"fused": None, "fused graph": None}))
    assert "MISSED: steps sgd 2048 fp32: ms as a graph: not measured; limit 0.8" in unmeasured
    assert {limit for (_, count, *precision), limit in training.MOST_MS.items() if count == 2048} == {0.8, 0.9, 0.41}
    assert training.MOST_MS[TableOptimizer.ADAGRAD, 16384] == 3.0
    in_tf32 = [row | {"precision": "tf32"} for row in rows() if row["part"] == "steps"]
    assert training.verdicts(in_tf32)[0] == "MISSED: steps sgd 2048 tf32: ms as a graph: 0.5; limit 0.41"


def test_an_epoch_without_a_limit_in_its_record_is_judged_by_what_stands_there():
    """As in records of an older form, and where the epoch raised."""
    epoch = {"part": "epoch", "optimizer": "sgd", "rows": 2048, "steps": 500}
    older = [
        epoch | {"implementation": "fused", "loss_error": 8.5e-05, "match": "ok"},
        epoch | {"implementation": "fused graph", "loss_error": 0.037, "match": "FAILED: a loss differs by 0.037"},
    ]
    where = "epoch sgd 2048 fp32"
    assert training.verdicts(older) == [
        f"met: {where}: fused: losses of 500 steps beside the reference's: ok; no limit recorded",
        f"MISSED: {where}: fused graph: losses of 500 steps beside the reference's: FAILED: a loss differs by 0.037; "
        "no limit recorded",
    ]
    raised = {name: value for name, value in epoch.items() if name != "steps"}
    assert training.verdicts([raised | {"implementation": "fused", "match": "FAILED: RuntimeError: x"}]) == [
        f"MISSED: {where}: fused: losses beside the reference's: FAILED: RuntimeError: x; no limit recorded"
    ]


def test_a_row_says_how_it_compares_with_the_best_peer_and_what_it_was_held_to():
    row = {"part": "steps", "optimizer": "sgd", "rows": 2048, "precision": "tf32", "implementation": "fused", "ms": 1.0,
           "ms_low": 1.0, "ms_high": 1.0, "factor": 2.5, "peak_mb": None, "match": "ok", "loss_error": 1e-7,
           "stray": 0.0}
    assert training.line(row).endswith(
        "1.000 ms (1.000 – 1.000), 2.50 times as fast as the best peer  ok, loss within 1.0e-07, update within 0.0e+00"
    )


def test_losses_are_held_to_what_the_reference_itself_parts_by():
    expected = torch.tensor([0.7, 0.6])
    for losses, match in (
        ([0.7, 0.602], "ok"), ([0.7, 0.604], "FAILED: losses 0.002 from the reference's, limit 0.0015"),
        ([0.7, float("nan")], "FAILED: losses nan from the reference's, limit 0.0015"),
    ):
        row = {}
        training.compare(row, torch.tensor(losses), expected, 0.0015)
        assert row["match"] == match


def test_small_batches_are_measured_in_both_precisions():
    cuda = torch.device("cuda")
    assert training.precisions(2048, cuda) == (Precision.TF32, Precision.FP32)
    assert training.precisions(16384, cuda) == (Precision.FP32,)
    assert training.precisions(2048, torch.device("cpu")) == (Precision.FP32,)


def test_a_record_is_saved_and_shown(tmp_path, capsys, monkeypatch):
    versions = training.runtime.versions() | {"GPU": "NVIDIA H200"}
    monkeypatch.setattr(training.runtime, "versions", lambda: versions)
    assert records.save(training._record("training", rows()), tmp_path).startswith("saved ")
    saved = json.loads((tmp_path / "h200" / "training.json").read_text())
    assert set(saved["sources_sha256"]) == {"embedding_bags", "embedding_bags_update"}
    training.show(tmp_path)
    out = capsys.readouterr().out
    assert out.startswith("Recorded on NVIDIA H200, ")
    assert out.count("\n") == 1 + 5 + 4 + 1
    assert out.endswith("nothing is recorded of outer, dot, inference: python -m model.bench --save, on a GPU\n")
    assert "1,000,000 rows/s, loss 0.7000 to 0.5000" in out


def test_a_row_of_losses_that_are_no_number_is_recorded_and_judged(tmp_path, monkeypatch):
    versions = training.runtime.versions() | {"GPU": "NVIDIA H200"}
    monkeypatch.setattr(training.runtime, "versions", lambda: versions)
    row = {"part": "epoch", "optimizer": "sgd", "rows": 2048, "implementation": "fused", "steps": 2}
    training.compare(row, torch.tensor([0.7, float("nan")]), torch.tensor([0.7, 0.6]), 0.0015)
    records.save(training._record("training", [row]), tmp_path)
    json.loads((tmp_path / "h200" / "training.json").read_text(), parse_constant=pytest.fail)
    (loaded,) = records.load("training", results=tmp_path)["rows"]
    assert training.verdicts([loaded]) == [
        "MISSED: epoch sgd 2048 fp32: fused: losses of 2 steps beside the reference's: nan; limit 0.0015"
    ]


def test_a_fault_is_not_forgotten_by_the_steps_behind_it():
    """The largest error of a step that has none is no number either."""
    row, nan = {}, float("nan")
    good, bad = ({"table 0": stray, steps.ROW: stray} for stray in (0.0, nan))
    followed = [(torch.tensor(loss), torch.tensor(0.5), strays) for loss, strays in ((nan, bad), (0.5, good))]
    steps.judge(row, followed, Precision.FP32)
    assert row["match"] == "FAILED: step 0: the loss differs from float64's by nan"
    assert math.isnan(row["loss_error"])
    assert math.isnan(row["stray"])


def test_a_run_that_is_stopped_goes_on_from_its_cells(small, tmp_path, monkeypatch, capsys):
    (cpu, names), called = (torch.device("cpu"), ["eager sparse", "fused, eager update"]), []

    def noted(name, stops=()):
        plain = getattr(training, name)

        def measure(rule, *arguments):
            called.append(f"{name} {rule}")
            if called[-1] in stops:
                raise KeyboardInterrupt
            return plain(rule, *arguments)

        return measure

    def run(resume):
        called.clear()
        left = PartialRecord("training", [], tmp_path, resume=resume)
        return training.run(cpu, ["epoch", "steps"], names, 50, left), left

    with monkeypatch.context() as patched:
        patched.setattr(training, "bench_epoch", noted("bench_epoch"))
        patched.setattr(training, "bench_steps", noted("bench_steps", stops=["bench_steps rowwise_adagrad"]))
        with pytest.raises(KeyboardInterrupt):
            run(resume=False)
    monkeypatch.setattr(training, "bench_epoch", noted("bench_epoch"))
    monkeypatch.setattr(training, "bench_steps", noted("bench_steps"))
    rows, left = run(resume=True)
    assert called == ["bench_steps rowwise_adagrad"]
    assert [(row["part"], row["optimizer"]) for row in rows] == [
        (part, rule) for part in ("epoch", "steps") for rule in ("adagrad", "rowwise_adagrad")
    ]
    assert [*left.parts] == [
        "epoch adagrad", "epoch rowwise_adagrad", "steps adagrad 8 fp32", "steps rowwise_adagrad 8 fp32"
    ]
    assert "from " in capsys.readouterr().out


def test_a_peers_failure_is_recorded_and_ours_keeps_the_record(tmp_path, monkeypatch, capsys):
    """The command, to its end, whose rows are these."""
    versions = training.runtime.versions() | {"GPU": "NVIDIA H200"}
    monkeypatch.setattr(training.runtime, "versions", lambda: versions)
    monkeypatch.setattr(training.runtime, "device", lambda: torch.device("cuda"))
    monkeypatch.setattr(training, "choose", lambda asked: torch.device("cpu"))
    monkeypatch.setattr(training, "PartialRecord", partial(PartialRecord, results=tmp_path))
    monkeypatch.setattr(training.records, "save", partial(records.save, results=tmp_path))
    before = torch.get_num_threads()
    for fails, said in (
        ("", "saved"), ("eager sparse", "; 1 row of peers FAILED"), ("fused, eager update", "; 1 row of peers FAILED"),
        ("fused", "KEPT"), ("fused graph", "KEPT"),
    ):
        measured = rows(**{"fused, eager update": 3.0})
        for row in measured:
            if row["implementation"] == fails and row["part"] == "steps":
                row |= {"match": "FAILED: step 3: 0.057 of the update"}
                del row["ms"]
        monkeypatch.setattr(training, "run", lambda *arguments, measured=measured: measured)
        assert training.main(["--save", "--only", "epoch,steps"]) == bool(fails)
        assert said in capsys.readouterr().out
        recorded = records.read(tmp_path / "h200" / "training.json")
        last = "fused, eager update" if said == "KEPT" else fails
        assert [row["implementation"] for row in recorded["rows"] if row["match"] != "ok"] == [last] * bool(fails)
    (failed,) = (row for row in records.read(tmp_path / "h200" / "training.failed.json")["rows"] if "ms" not in row
                 and row["part"] == "steps")
    assert failed["implementation"] == "fused graph"
    torch.set_num_threads(before)


@pytest.mark.parametrize("option", [["--only", "steps"], ["--device", "cpu"], ["--without", "fused"]])
def test_a_part_is_not_saved(capsys, option):
    with pytest.raises(SystemExit, match="2"):
        training.main(["--save", *option])
    assert "--save: a part of the cells, or another size, is not saved" in capsys.readouterr().err
