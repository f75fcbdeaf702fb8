"""embedding_bags_sort against its reference: hostile ids and offsets, both ways of sorting, the op among torch's."""

from __future__ import annotations

import contextlib
import functools
from types import SimpleNamespace

import pytest
import torch
from torch._subclasses import FakeTensorMode

import kernels

from ... import runtime
from ...check import Case, check
from ...check.contract import DEVICE, GPU, Contract, every_backend
from ...dispatch import core
from . import op

HOSTILE = (-1, 5, 2**31 - 1, -(2**31), 2**32 + 2, 2**63 - 1, -(2**63))
no_triton = pytest.mark.parametrize("backend", [every_backend.args[1][0], every_backend.args[1][2]], indirect=True)


class TestEmbeddingBagsSort(Contract):
    op = "embedding_bags_sort"

    @no_triton
    def test_adversarial_cases(self, backend):
        check(self.op, self.function(backend), cases=self.cases(backend))

    @pytest.mark.parametrize("fake", [False, True])
    def test_tensors_without_values_have_shapes(self, fake):
        for call in self.calls(Case((7, 3))):
            with FakeTensorMode() if fake else contextlib.nullcontext() as mode:
                tensors = [
                    tensor if tensor is None else mode.from_tensor(tensor) if fake else tensor.to("meta")
                    for tensor in call.tensors
                ]
                outputs = self.function("auto")(*tensors, *call.options)
            want = self.function("eager")(*call.arguments())
            assert [(one.shape, one.dtype) for one in outputs] == [(one.shape, one.dtype) for one in want]

    @no_triton
    def test_all_ids_at_once_and_a_block_a_table_give_the_same(self, backend):
        call = self.call(Case((2048, 5)))
        function = self.function(backend)
        for one, other in zip(function(*call.arguments(), 32768), function(*call.arguments(), 0), strict=True):
            assert torch.equal(one, other)

    @no_triton
    @pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
    @pytest.mark.parametrize("table_keys", [0, 4096])
    def test_an_id_that_names_no_row_is_no_row(self, backend, dtype, table_keys):
        ids = [i for i in HOSTILE if -(2**31) <= i < 2**31 or dtype == torch.int64]
        ids = torch.tensor([[2, 0], *([i, i] for i in ids)], dtype=dtype, device=DEVICE)
        row_offsets = torch.tensor([0, 5, 8], device=DEVICE)
        keys, positions, *_ = self.function(backend)(ids, row_offsets, None, 8, -1, False, table_keys)
        assert keys[keys % 2 == 1].tolist() == [5, 11]
        assert positions[keys % 2 == 1].tolist() == [0, 1]
        assert set(keys[keys % 2 == 0].tolist()) == {10, 16}

    @no_triton
    @pytest.mark.parametrize("offsets", [[0, 9, 2, -4, 10], [7, 8, 8, 9, 10], [0, 1, 1, 2, 2**40], [-3, -2, -1, 0, 0]])
    def test_wrong_offsets_name_rows_of_the_tables_or_none(self, backend, offsets):
        ids, row_offsets = torch.zeros(10, dtype=torch.int64, device=DEVICE), torch.tensor([0, 3, 6], device=DEVICE)
        offsets = torch.tensor(offsets, device=DEVICE)
        keys, positions, bags, _ = self.function(backend)(ids, row_offsets, offsets, 6, -1, True)
        assert set(keys.tolist()) <= {1, 6, 7, 12}
        assert positions.sort().values.tolist() == list(range(10))
        assert bags.min() >= 0
        assert bags.max() < 4

    @no_triton
    @pytest.mark.parametrize("table_keys", [0, 4096])
    @pytest.mark.parametrize("row_offsets", [[0, 4, 2**40, 2**41], [0, 4, 6, 7], [-5, 4, 6, 6],
                                             [0, 4, 2, 6], [6, 0, 3, 3]])
    def test_row_offsets_that_do_not_rise(self, backend, table_keys, row_offsets):
        """On a CPU the reference raises. Keys ascend whatever they are, so that an update meets every row once."""
        ids = torch.arange(-2, 10, device=DEVICE)[:, None].expand(-1, 3).contiguous()
        row_offsets = torch.tensor(row_offsets, device=DEVICE)
        call = functools.partial(self.function(backend), ids, row_offsets, None, 6, -1, False)
        if backend == "eager" and DEVICE.type == "cpu":
            with pytest.raises(ValueError, match="row_offsets must rise from 0 to at most 6 and never fall; row_off"):
                call(table_keys)
            return
        keys, positions, *_ = call(table_keys)
        assert torch.equal(keys, keys.sort().values)
        assert keys.min() >= 0
        assert keys.max() <= 12
        assert positions.sort().values.tolist() == list(range(36))

    @no_triton
    @pytest.mark.parametrize("features", [1024, 1025, 70000])
    def test_any_number_of_tables(self, backend, features):
        """A grid is at most 65535 blocks high."""
        row_offsets = torch.arange(features + 1, device=DEVICE)
        ids = torch.tensor([[0], [1]], device=DEVICE).expand(-1, features).contiguous()
        keys, positions, *_ = self.function(backend)(ids, row_offsets, None, features)
        expected = torch.arange(features, device=DEVICE)
        assert torch.equal(positions[keys % 2 == 1].long(), expected)
        assert torch.equal(keys[keys % 2 == 1].long(), 2 * expected + 1)

    @no_triton
    def test_wrong_input(self, backend):
        ids, row_offsets = torch.zeros(4, 2, dtype=torch.int64, device=DEVICE), torch.tensor([0, 3, 6], device=DEVICE)
        flat, offsets = ids.reshape(-1), torch.arange(9, device=DEVICE)
        for arguments, error, message in (
            ((ids.float(), row_offsets, None, 6), TypeError, "indices must be int32 or int64; got float32"),
            ((ids, row_offsets.int(), None, 6), TypeError, "row_offsets must be int64; got int32"),
            ((ids, row_offsets[:2], None, 6), ValueError, r"indices must have shape \[B, 1\], for row_offsets.*2\]"),
            ((flat, row_offsets, None, 6), ValueError, r"indices must have shape \[B, 2\]"),
            ((ids, row_offsets, offsets, 6), ValueError, r"indices must have shape \[N\], since there are offsets"),
            ((flat, row_offsets, offsets[:4], 6), ValueError, r"offsets must have shape \[2 · B \+ 1\]"),
            ((flat, row_offsets, offsets.float(), 6), TypeError, "offsets must be int32 or int64; got float32"),
            ((flat, row_offsets, offsets.to("meta"), 6), ValueError, "offsets must be on"),
            ((ids, row_offsets, None, -1), ValueError, "rows must not be negative; got -1"),
            ((ids, row_offsets, None, 6, -1, False, -1), ValueError, "table_keys must not be negative; got -1"),
            ((flat, row_offsets, [0, 8], 6), TypeError, "offsets must be a tensor; got list"),
            ((None, row_offsets, None, 6), TypeError, "indices must be a tensor; got NoneType"),
        ):
            with pytest.raises(error, match=f"^{self.op}: {message}"):
                self.function(backend)(*arguments)

    @no_triton
    def test_opcheck_and_compile(self, backend):
        overload = self.declaration.overload("cuda")
        for call in self.calls(Case((9, 3)))[: 1 if backend == "eager" else None]:
            arguments = (*call.arguments(), 4096)
            if backend == "cuda":
                torch.library.opcheck(overload, arguments)
            compiler = "inductor" if DEVICE.type == "cuda" else "aot_eager"
            compiled = torch.compile(self.function(backend), fullgraph=True, backend=compiler)
            for one, other in zip(compiled(*arguments), self.function(backend)(*arguments), strict=True):
                assert torch.equal(one, other)

    def test_triton_takes_cudas_sort_where_it_is_built(self, monkeypatch):
        on_gpu, on_cpu = SimpleNamespace(is_cuda=True), torch.empty(0, device="cpu")
        for built in (False, True):
            monkeypatch.setattr(op, "_is_built", None)
            monkeypatch.setattr(core, "op_is_built", lambda name, by_nvcc, built=built: built)
            assert op.beside("triton", on_gpu) == ("cuda" if built else "eager")
            assert op.beside("triton", on_cpu) == op.beside("eager", on_gpu) == "eager"
            assert op.beside("cuda", on_cpu) == "cuda"  # on the host, in tests

    def test_without_nvcc_cudas_other_ops_sort_by_torch(self, monkeypatch):
        on_gpu = SimpleNamespace(is_cuda=True)
        for built, missing, chosen in (False, "", "cuda"), (True, "nvcc", "cuda"), (False, "nvcc", "eager"):
            monkeypatch.setattr(op, "_runs", None)
            monkeypatch.setattr(core, "op_is_built", lambda name, by_nvcc, built=built: built)
            monkeypatch.setattr(runtime, "why_not", lambda what, _, missing=missing: missing if what == "nvcc" else "")
            assert op.beside("cuda", on_gpu) == chosen

    @GPU
    @pytest.mark.parametrize("batch", [300, 5000])
    def test_capture_in_a_cuda_graph(self, batch):
        calls = self.calls(Case((batch, 5)))
        for call in calls:
            function = functools.partial(kernels.embedding_bags_sort, *call.arguments(), backend="cuda")
            function()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                captured = function()
            call.tensors[0].copy_(call.tensors[0].flip(0))
            graph.replay()
            assert all(torch.equal(one, other) for one, other in zip(captured, function(), strict=True))

    @GPU
    def test_more_rows_than_32_bits_hold(self):
        rows = 2**33
        ids = torch.randint(rows, (1000, 1), device=DEVICE)
        row_offsets = torch.tensor([0, rows], device=DEVICE)
        arguments = ids, row_offsets, None, rows
        for one, other in zip(self.function("cuda")(*arguments), self.function("eager")(*arguments), strict=True):
            assert torch.equal(one, other)
