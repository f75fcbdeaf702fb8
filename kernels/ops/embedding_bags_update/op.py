"""embedding_bags_sgd_, …_adagrad_, …_rowwise_adagrad_: the declaration, and the public functions.

An update is two ops: embedding_bags_sort, which needs the ids alone (and may run before a gradient is there), and the
declared one here, which walks what was sorted. So a sort of PyTorch's serves Triton, whose kernels sort within a block
only, and one of CUDA's serves CUDA, and each is tested and measured by itself.
"""

import torch
from torch import Tensor
from torch.compiler import is_compiling

from kernels.dispatch import checks, extension
from kernels.dispatch.op import Op
from kernels.ops.embedding_bags_sort.op import embedding_bags_sort
from kernels.ops.embedding_bags_update import eager

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
RULES = ("sgd", "adagrad", "rowwise_adagrad")
MOST_COLUMNS = 32768  # of a row, whose sum is held in registers
MOST_CHUNK = 256  # whose keys, for each group of a block, fit into shared memory


def check(
    op: str, tables: Tensor, state: Tensor, keys: Tensor, positions: Tensor, grad: Tensor, bags: Tensor | None,
    lengths: Tensor | None, weights: Tensor | None, learning_rate: Tensor, rule: str, eps: float, chunk: int,
) -> None:  # fmt: skip
    """Raise unless tables are [R, D], state as the rule wants it, and the others as embedding_bags_sort gives them."""
    check_tables(op, tables, state, rule)
    checks.has_dtype(op, "row_keys", keys, (torch.int32, torch.int64))
    for name, tensor, shape, dtypes in (
        ("row_keys", keys, None, None),
        ("id_positions", positions, keys.shape, (torch.int32,)),
        ("bag_grad", grad, None, (tables.dtype,)),
        ("bags", bags, keys.shape, (torch.int32,)),
        ("lengths", lengths, keys.shape, (torch.int32,)),
        ("id_weights", weights, keys.shape, (tables.dtype,)),
    ):
        if tensor is None:
            continue
        if tensor.device != tables.device:
            raise ValueError(f"{op}: {name} must be on tables's device, {tables.device}; got {tensor.device}")
        if dtypes:
            checks.has_dtype(op, name, tensor, dtypes)
        if shape is not None and tensor.shape != shape:
            raise ValueError(f"{op}: {name} must have shape {list(shape)}, that of row_keys; got {list(tensor.shape)}")
    if keys.dim() != 1:
        raise ValueError(f"{op}: row_keys must have shape [N]; got {list(keys.shape)}")
    bags_known = "bags, D" if bags is not None else f"{keys.numel()}, D"
    if grad.dim() != 2 or grad.shape[1] != tables.shape[1] or (bags is None and grad.shape[0] != keys.numel()):
        raise ValueError(
            f"{op}: bag_grad must have shape [{bags_known}], with D = {tables.shape[1]}; got {list(grad.shape)}"
        )
    if not 0 <= chunk <= MOST_CHUNK or chunk & (chunk - 1):
        raise ValueError(f"{op}: chunk must be a power of two up to {MOST_CHUNK}, or 0; got {chunk}")


def check_tables(op: str, tables: Tensor, state: Tensor | None, rule: str) -> None:
    """Raise unless tables are [R, D] and state [R, D], [R] or nothing, as the rule wants it."""
    checks.is_one_of(op, "rule", rule, RULES)
    checks.has_dtype(op, "tables", tables, DTYPES)
    if tables.dim() != 2 or tables.shape[1] > MOST_COLUMNS:
        raise ValueError(f"{op}: tables must have shape [R, D], D up to {MOST_COLUMNS}; got {list(tables.shape)}")
    checks.has_dtype(op, "state", state, (torch.float32,))
    if state.device != tables.device:
        raise ValueError(f"{op}: state must be on tables's device, {tables.device}; got {state.device}")
    shape = {"sgd": (0,), "adagrad": tables.shape, "rowwise_adagrad": tables.shape[:1]}[rule]
    if state.shape != torch.Size(shape):
        raise ValueError(
            f"{op}: state must have shape {list(shape)}, for {rule} of tables {list(tables.shape)}; got "
            f"{list(state.shape)}"
        )


OP = Op(
    "embedding_bags_update",
    "(Tensor(a!) tables, Tensor(a!) state, Tensor row_keys, Tensor id_positions, Tensor bag_grad, Tensor? bags,"
    " Tensor? lengths, Tensor? id_weights, Tensor learning_rate, str rule, float eps, int chunk) -> ()",
    eager=eager.embedding_bags_update,
    check=check,
    scalars=("learning_rate",),
)


def embedding_bags_sgd_(
    tables: Tensor, row_offsets: Tensor, indices: Tensor, grad: Tensor, learning_rate: float | Tensor,
    offsets: Tensor | None = None, mode: str = "sum", per_sample_weights: Tensor | None = None,
    padding_idx: int | None = None, *, backend: str = "auto",
) -> Tensor:  # fmt: skip
    """The backward of embedding_bags and SGD's update in one: tables[r] -= lr · (the gradient of row r).

    Args:
        tables: [R, D], float32, float16 or bfloat16, D up to 32768; updated in place, only the rows that occur.
        row_offsets, indices, offsets, mode, per_sample_weights, padding_idx: as embedding_bags was called with; mode
            is sum or mean. Ids that name no row, and padding, touch nothing. Of row_offsets that do not rise from 0 to
            at most R a row is still updated at most once, and by ids of which tables is not said; "eager" and "triton"
            raise on a CPU.
        grad: [B, F, D], that of embedding_bags' output, in the tables' dtype.
        learning_rate: a number, or a 0-d tensor of float32 or float64, on the device where a captured graph is to see
            it change.
        backend: "cuda", "triton" (which sorts by torch.sort), "eager", or "auto": CUDA for CUDA tensors where it is
            built, else Triton; eager on a CPU.

    Occurrences of a row are summed in float32, in ascending position, chunk by chunk: every run gives the same bits. A
    row is updated once a call. Returns tables.

    Raises:
        TypeError, ValueError: naming the argument. RuntimeError: a backend that this machine lacks; gradients are
        enabled and an argument requires one.
    """
    state = tables.new_empty(0, dtype=torch.float32)
    return _call(
        backend, "sgd", tables, state, row_offsets, indices, grad, learning_rate, offsets, mode, per_sample_weights,
        padding_idx, 0.0,
    )  # fmt: skip


def embedding_bags_adagrad_(
    tables: Tensor, state: Tensor, row_offsets: Tensor, indices: Tensor, grad: Tensor, learning_rate: float | Tensor,
    offsets: Tensor | None = None, mode: str = "sum", per_sample_weights: Tensor | None = None,
    padding_idx: int | None = None, eps: float = 1e-10, *, backend: str = "auto",
) -> Tensor:  # fmt: skip
    """The same by Adagrad: state[r] += g², tables[r] -= lr · g / (√state[r] + eps), with g the gradient of row r.

    state: [R, D] float32, the sum of squares, updated in place. The rest is as of embedding_bags_sgd_.
    """
    return _call(
        backend, "adagrad", tables, state, row_offsets, indices, grad, learning_rate, offsets, mode,
        per_sample_weights, padding_idx, eps,
    )  # fmt: skip


def embedding_bags_rowwise_adagrad_(
    tables: Tensor, state: Tensor, row_offsets: Tensor, indices: Tensor, grad: Tensor, learning_rate: float | Tensor,
    offsets: Tensor | None = None, mode: str = "sum", per_sample_weights: Tensor | None = None,
    padding_idx: int | None = None, eps: float = 1e-10, *, backend: str = "auto",
) -> Tensor:  # fmt: skip
    """The same by Adagrad with one number of state a row: state[r] += mean of g² over D.

    state: [R] float32, updated in place. The rest is as of embedding_bags_adagrad_.
    """
    return _call(
        backend, "rowwise_adagrad", tables, state, row_offsets, indices, grad, learning_rate, offsets, mode,
        per_sample_weights, padding_idx, eps,
    )  # fmt: skip


def _call(
    backend: str, rule: str, tables: Tensor, state: Tensor, row_offsets: Tensor, indices: Tensor, grad: Tensor,
    learning_rate: float | Tensor, offsets: Tensor | None, mode: str, per_sample_weights: Tensor | None,
    padding_idx: int | None, eps: float, table_keys: int = 32768, chunk: int = 0,
) -> Tensor:  # fmt: skip
    op = f"embedding_bags_{rule}_"
    _check(op, rule, tables, state, row_offsets, indices, grad, offsets, mode, per_sample_weights, padding_idx)
    if backend == "auto":
        backend = ("cuda" if _is_built() else "triton") if tables.is_cuda else "eager"
    sorted_by = "cuda" if backend == "cuda" else "eager"
    padding = -1 if padding_idx is None else padding_idx
    keys, positions, bags, lengths = embedding_bags_sort(
        indices, row_offsets, offsets, tables.shape[0], padding, mode == "mean", table_keys, backend=sorted_by
    )
    ragged = offsets is not None
    OP.call(
        backend, tables, state, keys, positions, grad.flatten(0, 1), bags if ragged else None,
        lengths if ragged and mode == "mean" else None,
        None if per_sample_weights is None else per_sample_weights.reshape(-1), learning_rate, rule, eps, chunk,
    )  # fmt: skip
    return tables


def _check(op, rule, tables, state, row_offsets, indices, grad, offsets, mode, weights, padding_idx) -> None:
    """Raise for what neither of the two ops' own checks can say in the words of the public function."""
    for name, tensor in (
        ("tables", tables), ("state", state), ("row_offsets", row_offsets), ("indices", indices), ("grad", grad),
        ("offsets", offsets), ("per_sample_weights", weights),
    ):  # fmt: skip
        if tensor is None and name in ("offsets", "per_sample_weights"):
            continue
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{op}: {name} must be a tensor; got {type(tensor).__name__}")
        if tensor.device != tables.device:
            raise ValueError(f"{op}: {name} must be on tables's device, {tables.device}; got {tensor.device}")
    checks.is_one_of(op, "mode", mode, ("sum", "mean"))
    if not (padding_idx is None or isinstance(padding_idx, int)):
        raise ValueError(f"{op}: padding_idx must be an id, or None for none; got {padding_idx!r}")
    check_tables(op, tables, state, rule)
    features = row_offsets.numel() - 1
    batch = indices.shape[:1].numel() if offsets is None else (offsets.numel() - 1) // max(features, 1)
    checks.belongs_to(op, "grad", grad, "tables", tables, (batch, features, tables.shape[1]))
    if weights is not None:
        if mode != "sum":
            raise ValueError(f"{op}: per_sample_weights go with mode sum; got {mode}")
        checks.belongs_to(op, "per_sample_weights", weights, "tables", tables, indices.shape)


_built: bool | None = None


def _is_built() -> bool:
    """Whether both libraries were there at the first call that asked; a compiled call before it takes Triton."""
    global _built
    if _built is None and not is_compiling():
        _built = extension.op_is_built("embedding_bags_sort") and extension.op_is_built("embedding_bags_update")
    return bool(_built)
