"""model.bench_tf32: a row for each product and step in both precisions, and what is saved of them."""

import torch

from kernels.measure import records
from model import bench_tf32


def test_products_and_steps_on_the_cpu(tmp_path, capsys):
    rows = bench_tf32.products(torch.device("cpu"), [(4, 5, 6)])
    rows += bench_tf32.steps(torch.device("cpu"), ["08_main_dot"], batch_size=2, batches=1, largest_table=10)
    precisions = [row["precision"] for row in rows]
    assert [row["part"] for row in rows] == ["product", "product", "step", "step"]
    assert precisions == ["fp32", "tf32"] * 2
    assert rows[0]["flops"] == 2 * 4 * 5 * 6
    assert 0 <= rows[0]["error"] < 1e-6
    assert all(0 < row["ms_p20"] <= row["ms_p50"] <= row["ms_p80"] for row in rows[2:])
    assert torch.get_float32_matmul_precision() == "highest"
    out = capsys.readouterr().out
    assert out.count(" TFLOP/s, error ") == 2
    assert out.count("08_main_dot") == 2

    records.save(bench_tf32.record(rows) | {"GPU": "a GPU"}, tmp_path)
    saved = records.recorded(bench_tf32.RECORD, records.slug("a GPU"), tmp_path)
    assert list(saved["precision"]) == ["fp32", "tf32"] * 2


def test_without_a_gpu_nothing_is_measured(capsys, monkeypatch):
    monkeypatch.setattr(bench_tf32.runtime, "device", lambda: torch.device("cpu"))
    assert bench_tf32.main([]) == 0
    assert capsys.readouterr().out.startswith("No GPU here: nothing is measured.\n")
