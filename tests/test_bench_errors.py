"""model.bench.errors, .losses and .counters, on a CPU: what they measure, and what they say of it."""

from __future__ import annotations

import pytest
import torch

from model.bench import counters, errors, losses, recorded
from model.bench.models import FORTY, MODELS, shape_of
from model.config import Precision

CPU = torch.device("cpu")


def test_the_models():
    shapes = {name: shape_of(name, 50) for name in MODELS}
    assert shapes["mlperf"].bottom == (13, 512, 256, 128)
    assert (len(shapes[FORTY].cardinalities), shapes[FORTY].embedding_dim) == (40, 32)
    assert max(shapes["main"].cardinalities) == 50


# ------------------------------------------------------------------------------------------------------------- errors


@pytest.fixture
def few(monkeypatch):
    for name, value in (("DRAWS", 1), ("ROWS", (3, 5)), ("MOST_ROWS", 20)):
        monkeypatch.setattr(errors, name, value)


def test_every_kernel_and_a_step_are_measured(few, capsys):
    rows = errors.measure("small", CPU)
    assert {row["match"] for row in rows} == {"ok"}
    assert {row["what"].split()[0] for row in rows} == {
        "dlrm_forward", "dlrm_forward_kept", "lookup_interact", "lookup_interact_gradients", "fused_mlp_gradients",
        "fused_mlp_step", "fused_mlp_chain", "step",
    }  # fmt: skip
    of_kernels = [row for row in rows if row["what"] != "step"]  # here eager's own
    assert {row["most_ratio"] for row in of_kernels} == {1.0}
    assert all(row["most"] > 0 for row in rows if row["result"] in ("out", "logits", "gradient"))
    assert len(capsys.readouterr().out.splitlines()) == len(rows)


def test_an_error_that_is_too_large_is_told():
    exact = torch.tensor([1.0, 2.0], dtype=torch.float64)
    found = errors.Errors()
    found.add(exact + torch.tensor([0.0, 0.4]), exact + torch.tensor([0.1, 0.2]), exact)
    head = {"model": "main", "precision": "tf32", "rows": 2, "what": "step", "result": "logits"}
    row = head | found.row()
    assert (row["most"], row["eager_most"]) == (pytest.approx(0.4), pytest.approx(0.2))
    assert (row["most_ratio"], row["mean_ratio"]) == (pytest.approx(2.0), pytest.approx(0.4 / 0.3))
    assert errors.line(row).endswith("MORE")
    assert errors.verdicts([row])[0].startswith("MISSED: step: largest errors at most 2.00, mean ones 1.33")
    found.add(exact * torch.nan, exact, exact)
    assert not errors.is_within(head | found.row())


# ------------------------------------------------------------------------------------------------------------- losses


def test_curves_begin_alike(few):
    random = torch.Generator().manual_seed(0)
    shape = shape_of("main", 20)
    batches = [errors.drawn(16, 13, shape.cardinalities, random, CPU) for _ in range(3)]
    rows = [*losses.measure(batches, shape.cardinalities, Precision.BF16, CPU)]
    assert [row["implementation"] for row in rows] == [losses.FLOAT32, losses.EAGER, losses.REORDERED, "fused"]
    assert [row["match"] for row in rows[:3]] == ["ok"] * 3
    assert rows[0]["from_float32"]["most"] == rows[1]["from_eager"]["most"] == 0
    assert 0 < rows[1]["from_float32"]["most"] < 1e-2
    assert "limit of the mean" in losses.line(rows[3])


def test_how_far_curves_are_apart():
    one = torch.zeros(250, dtype=torch.float64)
    other = one.clone()
    other[7] = 0.5
    assert losses.apart(other, one) == {"most": 0.5, "at": 7, "mean": 0.002, "smooth": 0.005}


# ----------------------------------------------------------------------------------------------------------- counters

HEAD = (
    "ID", "Kernel Name", "Section Name", "Metric Name", "Metric Unit", "Metric Value", "Rule Name", "Rule Description",
)  # fmt: skip
STALL = (
    "On average, each warp of this kernel spends 23.1 cycles being stalled waiting for a scoreboard dependency on a "
    "L1TEX operation. Find the instruction. This stall type represents about 62.1% of the total average of 37.2 cycles."
)


def test_what_ncu_prints_is_read():
    kernel = "void lookup_interact::rows<float, (int)16>(Call)"
    table = [
        HEAD, ("0", "at::cuda::<unnamed>::spin_kernel(long)", "", "Duration", "us", "2.1", "", ""),
        ("1", kernel, "", "Duration", "ms", "1.5", "", ""),
        ("1", kernel, "", "DRAM Throughput", "%", "1,067.5", "", ""),
        ("1", kernel, "Warp State Statistics", "", "", "", "CPIStall", STALL),
    ]  # fmt: skip
    text = "\n".join(["==PROF== Connected", *(",".join(f'"{word}"' for word in row) for row in table)])
    (row,) = counters.counted(text, ["look-ups"])
    assert row == {
        "case": "look-ups", "kernel": "lookup_interact::rows", "us": 1500.0, "dram_percent": 1067.5,
        "stalls": ["waiting for a scoreboard dependency on a L1TEX operation (23.1 cycles, 62 %)"],
        "match": "ok",
    }  # fmt: skip
    assert "62 %" in counters.line(row)
    assert counters.counted("==ERROR== ERR_NVGPUCTRPERM", ["look-ups"]) == []


# ------------------------------------------------------------------------------------------------------------ records


def test_a_record_says_of_what_it_is(monkeypatch):
    monkeypatch.setattr(recorded.records, "save", lambda record: record)
    record = recorded.save("errors", iter([{"match": "ok"}]), draws=8)
    assert [*record] == ["op", *recorded.VERSIONS, "date", "sources_sha256", "draws", "rows"]
    assert (record["op"], record["draws"], record["rows"]) == ("errors", 8, [{"match": "ok"}])
    assert [*record["sources_sha256"]] == [*recorded.OPS]
    assert len({*record["sources_sha256"].values()}) == len(recorded.OPS)
