"""FBGEMM's TBE as a peer: what it is given, by a module that stands in for fbgemm_gpu and computes the same."""

import enum
import importlib.machinery
import sys
from dataclasses import replace
from itertools import pairwise
from types import ModuleType
from typing import ClassVar

import pytest
import torch
import torch.nn.functional as F
from fake_clock import Clock, cell, rows_of

from kernels.measure import bench, fbgemm, measuring, runs
from kernels.measure.cells import Cell
from kernels.ops.embedding_bags import bench as bags
from kernels.ops.embedding_bags_update import bench as update
from kernels.ops.embedding_bags_update.spec import EPS

HEIGHTS = (5, 3, 9)


class Update(torch.autograd.Function):
    """The look-up, whose backward updates the tables and gives no gradient."""

    @staticmethod
    def forward(ctx, placeholder, module, ids, offsets):
        ctx.module, ctx.ids, ctx.offsets = module, ids, offsets
        return module.look_up(ids, offsets)

    @staticmethod
    def backward(ctx, grad):
        ctx.module.update(ctx.ids, ctx.offsets, grad)
        return None, None, None, None


class Codegen(torch.nn.Module):
    made: ClassVar[list] = []
    apart = 0  # numbers between two tables

    def __init__(self, embedding_specs, **options):
        super().__init__()
        self.specs, self.options = embedding_specs, options
        width = embedding_specs[0][1]
        rows = [0]
        for height, *_ in embedding_specs:
            rows.append(rows[-1] + height)
        self.rows, self.width = rows, width
        self.weights_dev = torch.nn.Parameter(torch.full((rows[-1] * width,), torch.nan))
        self.register_buffer("momentum1_dev", torch.zeros(rows[-1]))
        self.placeholder = torch.nn.Parameter(torch.zeros(0))
        Codegen.made.append(self)

    def split_embedding_weights(self):
        flat = self.weights_dev.detach()
        return [flat[a * self.width + self.apart : b * self.width].view(-1, self.width) if not self.apart else
                flat[a * self.width + self.apart :] for a, b in pairwise(self.rows)]

    def split_optimizer_states(self):
        return [(self.momentum1_dev.detach()[a:b],) for a, b in pairwise(self.rows)]

    def forward(self, ids, offsets):
        assert ids.dtype == offsets.dtype == torch.int64
        return Update.apply(self.placeholder, self, ids, offsets)

    def bags(self, ids, offsets):
        count = (len(offsets) - 1) // len(self.specs)
        for f, begin in enumerate(self.rows[:-1]):
            own = offsets[f * count : (f + 1) * count + 1]
            yield begin, ids[own[0] : own[-1]], own - own[0]

    def look_up(self, ids, offsets):
        parts = zip(self.split_embedding_weights(), self.bags(ids, offsets), strict=True)
        return torch.cat([
            F.embedding_bag(own, table, begins, mode="sum", include_last_offset=True)
            for table, (_, own, begins) in parts
        ], dim=1)

    def update(self, ids, offsets, grad):
        weights = self.weights_dev.detach().view(-1, self.width)
        sums = torch.zeros_like(weights, dtype=torch.float64)
        for f, (begin, own, begins) in enumerate(self.bags(ids, offsets)):
            part = grad[:, f * self.width : (f + 1) * self.width].double()
            sums.index_add_(0, begin + own, part.repeat_interleave(begins.diff(), 0))
        rate = self.options["learning_rate"]
        if self.options["optimizer"] is Optimizer.EXACT_ROWWISE_ADAGRAD:
            self.momentum1_dev += sums.square().mean(1)
            sums /= self.momentum1_dev.double().sqrt()[:, None] + self.options["eps"]
        weights -= (rate * sums).float()


class Optimizer(enum.Enum):
    EXACT_SGD = "exact_sgd"
    EXACT_ROWWISE_ADAGRAD = "exact_row_wise_adagrad"


class Place(enum.Enum):
    DEVICE = 0


class Computes(enum.Enum):
    CUDA = 1


class Pooling(enum.Enum):
    SUM = 0


class Bounds(enum.Enum):
    NONE = 3


@pytest.fixture
def installed(monkeypatch):
    """A package fbgemm_gpu; gives the modules that are made."""
    contents = {
        "": {},
        ".split_table_batched_embeddings_ops_training": {
            "SplitTableBatchedEmbeddingBagsCodegen": Codegen, "ComputeDevice": Computes
        },
        ".split_table_batched_embeddings_ops_common": {
            "EmbeddingLocation": Place, "PoolingMode": Pooling, "BoundsCheckMode": Bounds
        },
        ".split_embedding_configs": {"EmbOptimType": Optimizer},
    }
    for name, members in contents.items():
        module = ModuleType(fbgemm.PACKAGE + name)
        module.__spec__ = importlib.machinery.ModuleSpec(module.__name__, None)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(Codegen, "made", [])
    monkeypatch.setattr(runs, "INPUT_BYTES", 5000)
    monkeypatch.setattr(measuring, "BATCH_US", 20)
    return Codegen.made


@pytest.fixture
def missing(monkeypatch):
    monkeypatch.setitem(sys.modules, fbgemm.PACKAGE, None)
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == fbgemm.PACKAGE else find(name))


def measured(timed_cell):
    rows = rows_of(bench.measure(timed_cell, Clock()))
    assert {row.match for row in rows.values()} == {"ok"}
    return rows


@pytest.mark.parametrize("part", ["bandwidth", "ragged"])
def test_a_look_up_is_of_the_cells_own_tables(installed, part):
    timed_cell = bags._cell(part, 7, 4, "zipf", ("eager", fbgemm.NAME), HEIGHTS)
    assert measured(timed_cell)[fbgemm.NAME].us_p50
    (module,) = installed
    assert module.specs == [(height, 4, Place.DEVICE, Computes.CUDA) for height in HEIGHTS]
    assert module.options == {
        "optimizer": Optimizer.EXACT_SGD, "pooling_mode": Pooling.SUM, "bounds_check_mode": Bounds.NONE,
        "stochastic_rounding": False, "device": torch.device("cpu"),
    }


def test_ids_are_in_its_order_before_they_are_timed(installed, monkeypatch):
    """The look-ups of a measurement make none of them, however many sets there are."""
    calls, by_feature = [], fbgemm.by_feature
    monkeypatch.setattr(fbgemm, "by_feature", lambda indices: calls.append(indices) or by_feature(indices))
    timed_cell = bags._cell("bandwidth", 7, 4, "uniform", ("eager", fbgemm.NAME), HEIGHTS)
    sets = runs.Sets(timed_cell, Clock()).all
    assert len(calls) == len(sets) > 3
    function = timed_cell.implementations[fbgemm.NAME]()
    for tensors in sets:
        function(*tensors)
    assert len(calls) == len(sets)
    ids, offsets = by_feature(torch.tensor([[1, 2], [3, 4], [5, 6]]))
    assert ids.tolist() == [1, 3, 5, 2, 4, 6]
    assert offsets.tolist() == [*range(7)]


@pytest.mark.parametrize("rule", ["sgd", "rowwise_adagrad"])
def test_an_update_is_of_the_cells_own_tables_and_state(installed, monkeypatch, rule):
    monkeypatch.setattr(update, "FEATURES", len(HEIGHTS))
    monkeypatch.setattr(update, "SMALL", HEIGHTS)
    monkeypatch.setattr(update, "HEIGHTS", (1, 1, 1))
    timed_cell = update._cell("waits", rule, HEIGHTS, 7, 4, 0.0, ("eager", fbgemm.NAME))
    assert measured(timed_cell)[fbgemm.NAME].call_us
    (module,) = installed
    assert module.options["optimizer"].name == f"EXACT_{rule.upper()}"
    assert module.options["learning_rate"] == update.RATE
    assert module.options.get("eps") == (EPS if rule == "rowwise_adagrad" else None)


def test_tables_that_lie_elsewhere_are_noticed(installed, monkeypatch):
    monkeypatch.setattr(Codegen, "apart", 4)
    tables, row_offsets = torch.randn(17, 4), torch.tensor([0, 5, 8, 17])
    with pytest.raises(RuntimeError, match="fbgemm_gpu lays its tables out otherwise"):
        fbgemm.table_batch(tables, row_offsets)


@pytest.mark.parametrize("module", [bags, update])
def test_it_is_measured_where_it_is_installed_and_nowhere_else(module, missing, monkeypatch):
    cells = [one for one in module.cells() if isinstance(one, Cell) and fbgemm.NAME in one.implementations]
    assert {one.part for one in cells} == ({"bandwidth", "ragged", "uneven bags"} if module is bags else {"waits"})
    assert all(one.missing() == {fbgemm.NAME: fbgemm.PACKAGE} for one in cells)
    skipped = {}
    left = list(bench._installed(cells, skipped))
    assert len(left) == len(cells)
    smaller = [one.smaller() for one in left]  # what is measured where the GPU's memory is too small
    assert any(smaller)
    assert not any(fbgemm.NAME in one.implementations for one in [*left, *filter(None, smaller)])
    assert bench.skips_in_words(skipped) == ["1 peer skipped: fbgemm_gpu is not installed"]


def test_a_run_prints_its_skips_and_records_what_it_did_before(missing, monkeypatch, capsys):
    plain = cell()
    with_peer = replace(
        plain, implementations={**plain.implementations, fbgemm.NAME: None}, needs=fbgemm.NEEDS
    )
    monkeypatch.setattr(runs, "INPUT_BYTES", 5000)
    records = []
    for one in (plain, with_peer):
        monkeypatch.setattr(bench.of("add_relu"), "cells", lambda quick, one=one: [one, one])
        records.append(bench.run("add_relu", Clock()))
        printed = capsys.readouterr().out
        assert ("# add_relu: 1 peer skipped: fbgemm_gpu is not installed\n" in printed) == (one is with_peer)
    assert records[0].keys() == records[1].keys()
    assert [row["implementation"] for row in records[0]["rows"]] == [
        row["implementation"] for row in records[1]["rows"]
    ]
    assert bench.skips_in_words({"a": "x", "b": "x", "c": "y"}) == [
        "2 peers skipped: x is not installed", "1 peer skipped: y is not installed"
    ]
