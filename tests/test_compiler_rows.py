"""backend="fused_kernels": how many rows of a model are one kernel. `model.fused` asks the same table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from compiled import recording
from test_fused_model import made

from kernels.compiler import explain, whole
from kernels.compiler.exported import replace_in
from kernels.ops.dlrm.choice import CAPTURED
from kernels.ops.fused_mlp import module
from model.bench.models import shape_of
from model.config import Kernels, Precision
from model.device import settings
from model.fused import is_whole

pytestmark = pytest.mark.usefixtures("one_thread", "as_on_gpu")
ONE_KERNEL = {("main", "tf32"): 2048, ("main", "bf16"): 2048, ("small", "tf32"): 240, ("small", "bf16"): 240}


@pytest.mark.parametrize("precision", Precision)
@pytest.mark.parametrize("name", ["main", "mlperf", "small"])
def test_the_backend_and_the_model_go_the_same_way(monkeypatch, name, precision):
    monkeypatch.setattr(module, "_has_tf32", lambda x: True)
    decide, reasons = whole.why_not, []
    monkeypatch.setattr(whole, "why_not", lambda dense, why: reasons.append(why) or "")
    config, dtype = shape_of(name, 10), torch.bfloat16 if precision is Precision.BF16 else torch.float32
    plain, ours = (made(replace(config, kernels=kind), "cuda").eval().to(dtype) for kind in Kernels)
    with settings(1, precision), torch.no_grad():
        explain(plain, torch.zeros(3, 13, dtype=dtype), torch.zeros(3, 26, dtype=torch.int64))
        for rows in (1, 240, 241, 2048, 2049, 16384, 65536):
            dense = torch.zeros(rows, 13, dtype=dtype)
            by_backend = bool(reasons) and not decide(dense, reasons[0])
            is_one = rows <= ONE_KERNEL.get((name, str(precision)), 0)
            if (name, precision) == ("mlperf", Precision.BF16):
                is_one = rows in (1, 240, 2048)
            assert [by_backend, is_whole(ours, dense)] == [is_one, is_one], rows


def test_a_sentence_has_the_rows_and_the_times():
    model = made(replace(shape_of("small", 10), kernels=Kernels.EAGER)).eval().bfloat16()
    why = "dlrm_forward: {} rows: its parts are faster: 2,048 rows took {} µs in parts on an H200, and {} in one kernel"
    times = CAPTURED["Tiles"][32_960][2048]
    torch._dynamo.reset()
    for rows, which in ((241, "241"), (240, ""), (242, "more than 240")):  # the second and the third are open
        with torch.no_grad():
            told = str(explain(model, torch.zeros(rows, 13).bfloat16(), torch.zeros(rows, 26, dtype=torch.int64)))
        assert (why.format(which, *times) if which else "dlrm_forward: 26 tables") in told


def ops_by_rows(model: torch.nn.Module, counts: Sequence[int], **of_range) -> list[tuple[bool, int]]:
    """(whether dlrm_forward was compiled last, graphs so far) after a call of each number of rows, which is open."""
    torch._dynamo.reset()
    backend, recorded = recording("eager")
    function, told = torch.compile(model, backend=backend, fullgraph=True), []
    for rows in counts:
        dense, ids = torch.zeros(rows, 13).bfloat16(), torch.zeros(rows, 26, dtype=torch.int64)
        for tensor in (dense, ids):
            torch._dynamo.mark_dynamic(tensor, 0, **of_range)
        with torch.no_grad():
            function(dense, ids)
        told.append(("dlrm_forward" in recorded.ops[-1:], recorded.graphs))
    return told


def test_open_rows_are_one_kernel_as_far_as_each_number_is():
    model = made(replace(shape_of("small", 10), kernels=Kernels.EAGER)).eval().bfloat16()
    assert ops_by_rows(model, (100, 240, 241, 3000, 7)) == [(True, 1), (True, 1), (False, 2), (False, 2), (False, 2)]
    assert ops_by_rows(model, (300, 240)) == [(False, 1), (True, 2)]
    # No guard may leave a part of a range out: it is taken for few rows, unless it has none.
    assert ops_by_rows(model, (300, 2), min=2, max=4096) == [(True, 1), (True, 1)]
    assert ops_by_rows(model, (300, 241), min=241, max=4096) == [(False, 1), (False, 1)]


@pytest.mark.parametrize(("least", "is_one"), [(2, True), (240, True), (241, False)])
def test_an_exported_program_is_for_few_rows_unless_it_has_none(least, is_one):
    model = made(replace(shape_of("small", 10), kernels=Kernels.EAGER)).eval().bfloat16()
    inputs = torch.zeros(300, 13).bfloat16(), torch.zeros(300, 26, dtype=torch.int64)
    batch_ = torch.export.Dim("batch", min=least, max=65536)
    with torch.no_grad():
        program = torch.export.export(model, inputs, dynamic_shapes=({0: batch_}, {0: batch_}))
        done = replace_in(program)
    assert ({found.op for found in done.replaced} == {"dlrm_forward"}) == is_one
    assert is_one or any("more than 240 rows: its parts are faster" in sentence for sentence in done.declined)
