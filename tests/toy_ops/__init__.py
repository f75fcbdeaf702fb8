"""Small ops of every kind that a declaration can say, declared as those of kernels/ops/ are.

gather: integer inputs; a gradient of an argument of which the shape alone is kept. moments: two outputs, and an
optional tensor. sgd_: an argument that is written, a number that changes from call to call, no gradient. cube: a
floating output that has no gradient and is kept for the backward, which one backend computes for both. square: a
backward that needs what another function makes. sums: lists of tensors; a gradient that is a list.

Their kernels stand in cuda.cu, which nvcc takes whole.
"""

import torch
from torch import Tensor

from kernels.dispatch import checks
from kernels.dispatch.op import Kept, KeptShape, KeptShapes, Op, Prepared, like


def _check_gather(op: str, table: Tensor, ids: Tensor) -> None:
    checks.has_dtype(op, "table", table, (torch.float32, torch.float64))
    checks.has_dtype(op, "ids", ids, (torch.int32, torch.int64))
    if ids.device != table.device:
        raise ValueError(f"{op}: ids must be on table's device, {table.device}; got {ids.device}")


GATHER = Op(
    "toy_gather",
    "(Tensor table, Tensor ids) -> Tensor out",
    eager=lambda table, ids: table[ids.long()],
    check=_check_gather,
    outputs={
        "out": lambda arguments: ((arguments["ids"].shape[0], arguments["table"].shape[1]), arguments["table"].dtype),
    },
    saves=("ids",),
    gradients={"table": KeptShape("table", dtype_of="grad_out")},
    by_nvcc=True,
    package="toy_ops.gather",
)


def _check_moments(op: str, x: Tensor, shift: Tensor | None) -> None:
    checks.has_dtype(op, "x", x, (torch.float32, torch.float64))
    if shift is not None:
        checks.belongs_to(op, "shift", shift, "x", x, x.shape)


def _moments(x: Tensor, shift: Tensor | None) -> tuple[Tensor, Tensor]:
    z = x if shift is None else x - shift
    return z * 2, z * z


MOMENTS = Op(
    "toy_moments",
    "(Tensor x, Tensor? shift) -> (Tensor doubled, Tensor squared)",
    eager=_moments,
    check=_check_moments,
    outputs={"doubled": like("x"), "squared": like("x")},
    saves=("x", "shift"),
    gradients={"x": like("grad_doubled")},
    by_nvcc=True,
    package="toy_ops.moments",
)


def _check_sgd(op: str, weights: Tensor, gradient: Tensor, lr: float | Tensor) -> None:
    checks.has_dtype(op, "weights", weights, (torch.float32, torch.float64))
    checks.belongs_to(op, "gradient", gradient, "weights", weights, weights.shape)


SGD = Op(
    "toy_sgd_",
    "(Tensor(a!) weights, Tensor gradient, Number lr) -> ()",
    eager=lambda weights, gradient, lr: weights.sub_(lr * gradient),
    check=_check_sgd,
    by_nvcc=True,
    package="toy_ops.sgd",
)


def _check_cube(op: str, x: Tensor) -> None:
    checks.has_dtype(op, "x", x, (torch.float32, torch.float64))


CUBE = Op(
    "toy_cube",
    "(Tensor x) -> (Tensor out, Tensor slope)",
    eager=lambda x: (x**3, (3 * x**2).detach()),
    check=_check_cube,
    outputs={"out": like("x"), "slope": Kept(like("x"))},
    saves=("slope",),
    gradients={"x": like("slope")},
    backends={"triton": "triton", "cuda": "triton"},
    by_nvcc=True,
    package="toy_ops.cube",
)


def _check_square(op: str, x: Tensor) -> None:
    checks.has_dtype(op, "x", x, (torch.float32, torch.float64))


SQUARE = Op(
    "toy_square",
    "(Tensor x) -> Tensor out",
    eager=lambda x: x**2,
    check=_check_square,
    outputs={"out": like("x")},
    saves=("x",),
    gradients={"x": like("x")},
    prepare=Prepared(("slope",), lambda backend, arguments: (2 * arguments["x"],)),
    by_nvcc=True,
    package="toy_ops.square",
)


def _check_sums(op: str, tables: list[Tensor], ids: list[Tensor], factor: float | Tensor) -> None:
    if len(ids) != len(tables):
        raise ValueError(f"{op}: ids must be as many as tables, {len(tables)}; got {len(ids)}")
    for i, (table, of_table) in enumerate(zip(tables, ids, strict=True)):
        checks.is_beside(op, f"tables[{i}]", table, tables[0], "tables[0]")
        checks.is_beside(op, f"ids[{i}]", of_table, tables[0], "tables[0]")
        checks.has_dtype(op, f"tables[{i}]", table, (torch.float32, torch.float64))
        checks.has_dtype(op, f"ids[{i}]", of_table, (torch.int64,))
        if table.dtype != tables[0].dtype or table.shape[1:] != tables[0].shape[1:] or of_table.dim() != 1:
            raise ValueError(f"{op}: tables must be [R, D] of one D and dtype, ids [N]; see number {i}")


SUMS = Op(
    "toy_sums",
    "(Tensor[] tables, Ragged[] ids, Number factor) -> Tensor out",
    eager=lambda tables, ids, factor: torch.stack([t[i].sum(0) * factor for t, i in zip(tables, ids, strict=True)]),
    check=_check_sums,
    outputs={
        "out": lambda arguments: (
            (len(arguments["tables"]), arguments["tables"][0].shape[1]), arguments["tables"][0].dtype
        ),
    },
    saves=("ids",),
    gradients={"tables": KeptShapes("tables", dtype_of="grad_out")},
    backends=("cuda",),
    auto="cuda",
    by_nvcc=True,
    package="toy_ops.sums",
)
