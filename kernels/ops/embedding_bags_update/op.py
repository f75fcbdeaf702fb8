"""embedding_bags_sgd_, …_adagrad_, …_rowwise_adagrad_: the declaration, and the public functions.

An update is two ops: embedding_bags_sort, which needs the ids alone (and may run before a gradient is there), and
embedding_bags_update here, which walks what was sorted. So a sort of CUDA's serves Triton too, whose kernels sort
within a block only, and each is tested and measured by itself. embedding_bags_add is SGD without a sort, by atomics.
"""

import functools

import torch
from torch import Tensor
from torch.compiler import is_compiling

from ... import runtime
from ...device.launch import interpreted
from ...dispatch import checks, core
from ...dispatch.op import Op
from ...dispatch.signature import Signature
from ..embedding_bags_sort.op import beside, embedding_bags_sort
from ..embedding_bags_sort.op import runs as cuda_sort_runs
from . import eager

RULES = ("sgd", "adagrad", "rowwise_adagrad")
MOST_COLUMNS = 32768  # of a row, whose sum is held in registers
MOST_CHUNK = 256  # whose keys, for each group of a block, fit into shared memory
STATES = {"sgd": "[0]", "adagrad": "[R, D]", "rowwise_adagrad": "[R]"}
TABLES = "tables [R, D]: float32 | float16 | bfloat16"
SORTED = {
    rule: Signature.of(
        "embedding_bags_update",
        f"{TABLES}; state {state}: float32; row_keys [N]: integer; id_positions [N]: int32; bags? [N]: int32; "
        "lengths? [N]: int32; id_weights? [N]: tables; bag_grad [N, D] | [bags, D] with bags: tables",
    )
    for rule, state in STATES.items()
}
ARGUMENTS = {
    rule: Signature.of(
        f"embedding_bags_{rule}_",
        f"{TABLES}; state {state}: float32; row_offsets [F + 1]: int64; offsets? [F · B + 1]: integer; "
        "indices [B, F] | [N] with offsets: integer; grad [B, F, D]: tables; "
        "per_sample_weights? [B, F] | [N] with offsets: tables; mode: sum | mean",
    )
    for rule, state in STATES.items()
}


def check(
    op: str, tables: Tensor, state: Tensor, keys: Tensor, positions: Tensor, grad: Tensor, bags: Tensor | None,
    lengths: Tensor | None, weights: Tensor | None, learning_rate: Tensor, rule: str, eps: float, chunk: int,
) -> None:
    """Raise unless the tensors are what SORTED says: those of the rule, and what embedding_bags_sort gives."""
    checks.is_one_of(op, "rule", rule, RULES)
    SORTED[rule].check((tables, state, keys, positions, bags, lengths, weights, grad))
    _check_columns(op, tables)
    if not 0 <= chunk <= MOST_CHUNK or chunk & (chunk - 1):
        raise ValueError(f"{op}: chunk must be a power of two up to {MOST_CHUNK}, or 0; got {chunk}")


def _check_columns(op: str, tables: Tensor) -> None:
    if tables.shape[1] > MOST_COLUMNS:
        raise ValueError(f"{op}: tables must have shape [R, D], D up to {MOST_COLUMNS}; got {list(tables.shape)}")


# Triton's walk is faster than CUDA's up to so many numbers of a gradient times its columns (16 at least): its programs
# are more, and shorter. µs of SGD on an H200 with the ids sorted before, CUDA / Triton, of 26 features (row-wise
# Adagrad's cross at more rows):
#
#     columns    512 rows       2,048          8,192          16,384         32,768
#     16         19.7 / 5.3     21.1 / 6.9     29.4 / 17.0    51.2 / 39.5    76.9 / 77.6
#     32         18.8 / 7.0     20.7 / 11.4    41.2 / 33.3    69.3 / 67.9    105 / 127
#     64         18.2 / 9.9     25.6 / 24.5    64.1 / 98.1    95.3 / 185     158 / 358
#
# These are of a walk in Triton whose programs read two chunks each. Tiles such as triton_kernel.py's take 93 µs of
# 65536 rows of 16 columns, where CUDA's walk takes 112 (traces/results/h200/lecture_18.json): the limit is careful.
MOST_BY_TRITON = 1 << 28

_runs_cuda: bool | None = None


def auto(*_) -> str:
    """CUDA where it runs and the sort's kernels are built, or nvcc builds them, which the first call waits for; else
    Triton. A compiled call before any other takes Triton."""
    global _runs_cuda
    if _runs_cuda is None and not is_compiling():
        own = core.op_is_built("embedding_bags_update") or not runtime.why_not("cuda", "cuda")
        _runs_cuda = own and cuda_sort_runs()
    return "cuda" if _runs_cuda else "triton"


def is_faster_by_triton(grad: Tensor) -> bool:
    """Whether Triton walks faster than CUDA, and runs; grad: [..., D]."""
    return grad.numel() * max(16, grad.shape[-1]) <= MOST_BY_TRITON and triton_runs()


@functools.cache
def triton_runs() -> bool:
    return not interpreted() and not runtime.why_not("triton", "cuda")


OP = Op(
    "embedding_bags_update",
    "(Tensor(a!) tables, Tensor(a!) state, Ragged row_keys, Ragged id_positions, Tensor bag_grad, Ragged? bags,"
    " Ragged? lengths, Ragged? id_weights, Number learning_rate, str rule, float eps, int chunk) -> ()",
    eager=eager.embedding_bags_update,
    check=check,
    auto=auto,
)


# µs on an H200 (torch 2.11) of 26 features, ids uniform / by Zipf's law with 1.05; beside the sort and the walk:
#
#     rows × columns    by atomics    CUDA         Triton
#     65536 × 16        88 / 71       244 / 222
#     16384 × 16        28 / 25       87 / 81      75 / 71
#     2048 × 16         7.1 / 7.1     34 / 34      20 / 20
#     65536 × 128       512 / 404     589 / 512
#
# Of halves each addition would round a row, which the walk rounds once. pooling is a mode: torch's functionalization
# takes an argument of that name for its own.
ADD = Op(
    "embedding_bags_add",
    "(Tensor(a!) tables, Tensor row_offsets, Ragged indices, Tensor bag_grad, Tensor? offsets,"
    " Ragged? per_sample_weights, Number learning_rate, str pooling, int padding_idx) -> ()",
    shapes="tables [R, D]: float32; row_offsets [F + 1]: int64; offsets [F · B + 1]: integer; "
    "indices [B, F] | [N] with offsets: integer; bag_grad [B, F, D]: tables; "
    "per_sample_weights [B, F] | [N] with offsets: tables; pooling: sum | mean",
    eager=eager.embedding_bags_add,
    backends=("cuda",),
    auto="cuda",
    package=__package__,
)
OPS = OP, ADD


def embedding_bags_sgd_(
    tables: Tensor, row_offsets: Tensor, indices: Tensor, grad: Tensor, learning_rate: float | Tensor,
    offsets: Tensor | None = None, mode: str = "sum", per_sample_weights: Tensor | None = None,
    padding_idx: int | None = None, sorted_ids: tuple[Tensor, ...] | None = None, *, deterministic: bool = True,
    backend: str = "auto",
) -> Tensor:
    """The backward of embedding_bags and SGD's update in one: tables[r] -= lr · (the gradient of row r).

    Args:
        tables: [R, D], float32, float16 or bfloat16, D up to 32768; updated in place, only the rows that occur.
        row_offsets, indices, offsets, mode, per_sample_weights, padding_idx: as embedding_bags was called with; mode
            is sum or mean. Ids that name no row, and padding, touch nothing. If row_offsets do not rise from 0 to
            at most R, by ids of which tables a row is updated is not said; with deterministic it is still updated at
            most once, and "eager" and "triton" raise on a CPU.
        grad: [B, F, D], that of embedding_bags' output, in the tables' dtype.
        learning_rate: a number, not negative; or a 0-d tensor of float32 or float64, on the device where a captured
            graph is to see it change. A tensor's value is not looked at, since that would wait for the device.
        sorted_ids: what embedding_bags_sort gave for these indices, row_offsets, offsets, R rows, padding_idx and
            mean: it needs no gradient, so that it can run before there is one. None: the call sorts. Nothing but their
            numbers of elements is looked at: what was sorted for more rows is written outside of tables.
        deterministic: False: tables of float32 are updated in no fixed order, by atomics, without a sort: the bits do
            not repeat, a row that occurs often is updated, and rounded, many times, a GPU's additions flush subnormal
            numbers, in rows too, to zero, and the other rules, which need a row's sum first, have no such form.
            sorted_ids must be None, backend "cuda" (which "auto" is for CUDA tensors) or "eager".
        backend: "cuda" (which sorts by embedding_bags_sort's CUDA, or where it is not built and there is no nvcc by
            torch.sort), "triton" (by that CUDA if it is built, else by torch.sort),
            "eager", or "auto": CUDA for CUDA tensors where it and the sort are built or can be, but Triton for small
            gradients (`is_faster_by_triton`), behind the same sort; else Triton; eager on a CPU.

    With deterministic, occurrences of a row are summed in float32, chunk by chunk, in an order of the backend's that is
    fixed: every run gives the same bits, and a row is updated once a call. A gradient, or weights, that lie in the
    tables' memory count as they were before the call, and are copied for that. Returns tables.

    Raises:
        TypeError, ValueError: naming the argument. RuntimeError: a backend that this machine lacks; gradients are
        enabled and an argument requires one; deterministic=False under torch.use_deterministic_algorithms(True).
    """
    checks.is_tensor("embedding_bags_sgd_", "tables", tables)
    state = tables.new_empty(0, dtype=torch.float32)
    return _call(
        backend, "sgd", tables, state, row_offsets, indices, grad, learning_rate, offsets, mode, per_sample_weights,
        padding_idx, 0.0, sorted_ids=sorted_ids, deterministic=deterministic,
    )


def embedding_bags_adagrad_(
    tables: Tensor, state: Tensor, row_offsets: Tensor, indices: Tensor, grad: Tensor, learning_rate: float | Tensor,
    offsets: Tensor | None = None, mode: str = "sum", per_sample_weights: Tensor | None = None,
    padding_idx: int | None = None, eps: float = 1e-10, sorted_ids: tuple[Tensor, ...] | None = None, *,
    backend: str = "auto",
) -> Tensor:
    """The same by Adagrad: state[r] += g², tables[r] -= lr · g / (√state[r] + eps), with g the gradient of row r.

    state: [R, D] float32, the sum of squares, updated in place. eps: not negative. The rest is as of
    embedding_bags_sgd_.
    """
    return _call(
        backend, "adagrad", tables, state, row_offsets, indices, grad, learning_rate, offsets, mode,
        per_sample_weights, padding_idx, eps, sorted_ids=sorted_ids,
    )


def embedding_bags_rowwise_adagrad_(
    tables: Tensor, state: Tensor, row_offsets: Tensor, indices: Tensor, grad: Tensor, learning_rate: float | Tensor,
    offsets: Tensor | None = None, mode: str = "sum", per_sample_weights: Tensor | None = None,
    padding_idx: int | None = None, eps: float = 1e-10, sorted_ids: tuple[Tensor, ...] | None = None, *,
    backend: str = "auto",
) -> Tensor:
    """The same by Adagrad with one number of state a row: state[r] += mean of g² over D.

    state: [R] float32, updated in place. The rest is as of embedding_bags_adagrad_.
    """
    return _call(
        backend, "rowwise_adagrad", tables, state, row_offsets, indices, grad, learning_rate, offsets, mode,
        per_sample_weights, padding_idx, eps, sorted_ids=sorted_ids,
    )


def _call(
    backend: str, rule: str, tables: Tensor, state: Tensor, row_offsets: Tensor, indices: Tensor, grad: Tensor,
    learning_rate: float | Tensor, offsets: Tensor | None, mode: str, per_sample_weights: Tensor | None,
    padding_idx: int | None, eps: float, table_keys: int = 32768, chunk: int = 0,
    sorted_ids: tuple[Tensor, ...] | None = None, deterministic: bool = True,
) -> Tensor:
    op = ARGUMENTS[rule].name
    ARGUMENTS[rule].check((tables, state, row_offsets, offsets, indices, grad, per_sample_weights, mode))
    _check_columns(op, tables)
    padding = checks.integer(op, "padding_idx", -1 if padding_idx is None else padding_idx)
    if padding < -1:
        raise ValueError(f"{op}: padding_idx must be an id, or -1 or None for none; got {padding_idx!r}")
    if per_sample_weights is not None and mode != "sum":
        raise ValueError(f"{op}: per_sample_weights go with mode sum; got {mode}")
    checks.are_not_negative(op, learning_rate=learning_rate, eps=(eps := checks.real(op, "eps", eps)))
    if not checks.boolean(op, "deterministic", deterministic):
        if torch.are_deterministic_algorithms_enabled() and not torch.is_deterministic_algorithms_warn_only_enabled():
            raise RuntimeError(f"{op}: deterministic must be True under torch.use_deterministic_algorithms(True)")
        if sorted_ids is not None:
            raise ValueError(f"{op}: sorted_ids must be None without deterministic, which sorts nothing")
        if tables.dtype != torch.float32:
            raise TypeError(
                f"{op}: tables must be float32 without deterministic, as each addition would round them; got "
                f"{str(tables.dtype).removeprefix('torch.')}"
            )
        ADD.call(
            backend, tables, row_offsets, indices, grad, offsets, per_sample_weights, learning_rate, mode, padding
        )
        return tables
    walk = OP.call.chosen(backend, tables)
    if sorted_ids is None:
        sorted_ids = embedding_bags_sort(
            indices, row_offsets, offsets, tables.shape[0], padding, mode == "mean",
            table_keys, backend=beside(walk, tables),
        )
    else:
        _check_sorted(op, sorted_ids, indices, offsets, mode)
    keys, positions, bags, lengths = sorted_ids
    # A compiled call's sizes may be open, and are not to be guarded.
    if backend == "auto" and walk == "cuda" and not is_compiling() and is_faster_by_triton(grad):
        walk = "triton"
    ragged = offsets is not None
    OP.call(
        walk, tables, state, keys, positions, grad.flatten(0, 1), bags if ragged else None,
        lengths if ragged and mode == "mean" else None,
        None if per_sample_weights is None else per_sample_weights.reshape(-1), learning_rate, rule, eps, chunk,
    )
    return tables


def _check_sorted(
    op: str, sorted_ids: tuple[Tensor, ...], indices: Tensor, offsets: Tensor | None, mode: str
) -> None:
    """Raise unless the tensors are as many and as long as embedding_bags_sort's of these ids."""
    if len(sorted_ids) != 4:
        raise ValueError(f"{op}: sorted_ids must be embedding_bags_sort's four tensors; got {len(sorted_ids)}")
    ids = indices.numel()
    with_bags = ids if offsets is not None else 0
    wanted = [ids, ids, with_bags, with_bags if mode == "mean" else 0]
    if (got := [part.numel() for part in sorted_ids]) != wanted:
        raise ValueError(f"{op}: sorted_ids must have {wanted} elements, as these indices have; got {got}")
