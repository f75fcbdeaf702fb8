"""What kernels/README.md says of torch.compile beside each op: the launches that it makes of the op's reference."""

import importlib
import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.inductor import count, triton_source
from kernels.measure.sources import ops
from kernels.ops.add_mul_activation.eager import add_mul_activation
from kernels.ops.add_relu.eager import add_relu
from kernels.ops.dot_interaction import eager as dot
from kernels.ops.embedding_bags_sort.eager import embedding_bags_sort
from kernels.ops.fused_mlp.eager import fused_mlp
from kernels.ops.outer_linear.eager import outer_linear
from kernels.ops.softmax.eager import softmax
from kernels.ops.vocabulary.eager import vocabulary

ROWS, TABLES, WIDTHS = 1024, 26, (13, 32, 16, 8)


def look_ups(ids: Tensor, *tables: Tensor) -> Tensor:
    return torch.stack([F.embedding(ids[:, f], table) for f, table in enumerate(tables)], dim=1)


def an_mlp(x: Tensor, *parameters: Tensor) -> Tensor:
    return fused_mlp(x, parameters[::2], parameters[1::2])


def layers() -> list[Tensor]:
    return [torch.empty(*shape) for k, n in itertools.pairwise(WIDTHS) for shape in ((n, k), (n,))]


x, ids = torch.empty(ROWS, 512), torch.zeros(ROWS, TABLES, dtype=torch.int64)
tables = [torch.empty(10, 16) for _ in range(TABLES)]
offsets = torch.arange(TABLES + 1) * 10
COUNTS = {  # what the compiler takes, and the launches that it makes of it
    "add_mul_activation": (add_mul_activation, (x, x[0], x), {"pointwise": 1}),
    "add_relu": (add_relu, (x, x[0]), {"pointwise": 1}),
    "softmax": (softmax, (x,), {"persistent reduction": 1}),
    "vocabulary": (
        lambda i, t: vocabulary(i, t, None, None, None, "text"), (ids[:, 0], tables[0]), {"pointwise": 1},
    ),
    "dot_interaction": (
        lambda d, s: dot.interact(d, s, dot.pairs(26, d.device)), (torch.empty(ROWS, 16), torch.empty(ROWS, 26, 16)),
        {"extern GEMM": 1},
    ),
    "outer_linear": (
        outer_linear, (torch.empty(ROWS, 32), torch.empty(512, 1024), torch.empty(512)),
        {"pointwise": 1, "extern GEMM": 1},
    ),
    "embedding_bags": (look_ups, (ids, *tables), {"pointwise": TABLES}),
    "embedding_bags_sort": (lambda i, o: embedding_bags_sort(i, o, None, TABLES * 10), (ids, offsets), {"extern": 1}),
    "fused_mlp": (an_mlp, (torch.empty(ROWS, 13), *layers()), {"extern GEMM": len(WIDTHS) - 1}),
}


@pytest.mark.parametrize("op", sorted(COUNTS))
def test_launches(op):
    function, inputs, expected = COUNTS[op]
    counts = count(triton_source(function, *inputs))
    assert {kind: counts.get(kind) for kind in expected} == expected
    if importlib.import_module(f"kernels.ops.{op}").STOPS.startswith("nowhere"):
        assert sum(counts.values()) == 1


def test_each_op_says_it():
    assert all(importlib.import_module(f"kernels.ops.{op}").STOPS for op in ops())
