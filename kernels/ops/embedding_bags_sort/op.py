"""embedding_bags_sort: the declaration, and the public function."""

import torch
from torch import Tensor
from torch.compiler import is_compiling

from ... import runtime
from ...dispatch import checks, core
from ...dispatch.op import Op
from . import eager


def check(
    op: str, indices: Tensor, row_offsets: Tensor, offsets: Tensor | None, rows: int, padding_idx: int, mean: bool,
    table_keys: int,
) -> None:
    """Raise unless the tensors have less than 2^31 elements, and the numbers are not negative."""
    for name, tensor in (("indices", indices), ("offsets", offsets)):
        if tensor is not None and tensor.numel() >= 2**31:
            raise ValueError(f"{op}: {name} must have less than 2^31 elements; got {tensor.numel()}")
    for name, number in (("rows", rows), ("table_keys", table_keys)):
        if number < 0:
            raise ValueError(f"{op}: {name} must not be negative; got {number}")


OP = Op(
    "embedding_bags_sort",
    "(Ragged indices, Tensor row_offsets, Tensor? offsets, int row_count, int padding_idx, bool mean, int table_keys)"
    " -> (Tensor keys, Tensor positions, Tensor bags, Tensor lengths)",
    shapes="row_offsets [F + 1]: int64; indices [B, F] | [N] with offsets: integer; offsets [F · B + 1]: integer",
    eager=lambda *arguments: eager.embedding_bags_sort(*arguments[:-1]),
    check=check,
    outputs={
        "keys": lambda named: ((named["indices"].numel(),), eager.key_dtype(named["row_count"])),
        "positions": lambda named: ((named["indices"].numel(),), torch.int32),
        "bags": lambda named: ((named["indices"].numel() if named["offsets"] is not None else 0,), torch.int32),
        "lengths": lambda named: (
            (named["indices"].numel() if named["offsets"] is not None and named["mean"] else 0,),
            torch.int32,
        ),
    },
    backends=("cuda",),  # Triton sorts within a block; between blocks, CUDA or torch.sort does it
    auto="cuda",
    by_nvcc=True,  # cub's sorts are more than NVRTC compiles: they choose and launch kernels by CUDA's runtime
)


_is_built: bool | None = None
_runs: bool | None = None


def runs() -> bool:
    """Whether CUDA's sort is built, or nvcc is here to build it. The other ops' kernels do without nvcc."""
    global _runs
    if _runs is None:
        _runs = core.op_is_built("embedding_bags_sort", by_nvcc=True) or not runtime.why_not("nvcc", "cuda")
    return _runs


runs._dynamo_marked_constant = True  # torch.compile calls it once, when it traces


def beside(backend: str, tensor: Tensor) -> str:
    """The sort's backend for another op's, whose tensors are like this one: for CUDA on a GPU CUDA where it runs; for
    Triton CUDA too if the library was there at the first call that asked (nobody who asked for Triton waits for nvcc);
    else eager, by torch.sort."""
    global _is_built
    if backend == "cuda":
        return "cuda" if not tensor.is_cuda or runs() else "eager"
    if backend != "triton" or not tensor.is_cuda:
        return "eager"
    if _is_built is None and not is_compiling():
        _is_built = core.op_is_built("embedding_bags_sort", by_nvcc=True)
    return "cuda" if _is_built else "eager"


def embedding_bags_sort(
    indices: Tensor,
    row_offsets: Tensor,
    offsets: Tensor | None,
    rows: int,
    padding_idx: int = -1,
    mean: bool = False,
    table_keys: int = 32768,
    *,
    backend: str = "auto",
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The ids of embedding_bags in the order of the rows that they name: what a gradient or a fused update of the
    tables walks.

    Args:
        indices, row_offsets, offsets: as of embedding_bags: [B, F], or [N] with offsets [F · B + 1]; int32 or int64.
            row_offsets rise from 0 to at most R. On a CPU it is a ValueError if they do not. On a GPU nobody waits to
            see it: keys ascend then too and name rows that there are, but which ids name the rows that several tables
            claim is not said.
        rows: R, of all tables.
        padding_idx: an id that names no row, in every table; negative: none.
        mean: whether the lengths are wanted.
        table_keys: where B is at most so much, and at most 2^30, and there are at most 1024 tables, blocks sort runs of
            each table's ids, which are merged; else all are sorted at once. The result is the same, the order of ids
            that name no row aside, where a table has no rows at all.
        backend: "cuda", "eager" (torch.sort), or "auto": CUDA for CUDA tensors, else eager.

    Returns:
        keys [N] int32 (int64 from 2^30 rows on), ascending: 2 · row + 1, or an even number where there is no row.
        positions [N] int32: where in indices each was; those of equal keys ascend.
        bags [N] int32: of each position the row of the output [B · F, D]; empty without offsets, where it is itself.
        lengths [N] int32: of each position how many ids, padding aside, its bag has; empty unless mean, with offsets.

    Raises TypeError, ValueError: naming the argument. RuntimeError: a backend that this machine lacks.
    """
    rows = checks.integer(OP.name, "rows", rows)
    return OP.call(backend, indices, row_offsets, offsets, rows, padding_idx, mean, table_keys)
