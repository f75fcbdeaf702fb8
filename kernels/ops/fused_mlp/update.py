"""The declarations of a backward that leaves weights' gradients to the optimizer's step.

    fused_mlp_chain        g_l = ∂loss / ∂z_l, z_l what layer l's activation is applied to: of each MLP by itself
    fused_mlp_gradients    g_lᵀ h_(l-1), and the sums of g_l: of all MLPs in two launches
    fused_mlp_step         w -= lr · (gradient + decay · w), or Adagrad's: likewise, and no gradient is written

`packed.PackedMLP` calls the first, `packed.gradients_of` and `packed.step_by` the others.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ...dispatch import checks
from ...dispatch.op import Op
from . import eager, packing, weights_launch

NAMES = " | ".join(eager.ACTIVATIONS)


def check_chain(
    op: str, grad_out: Tensor, packed: Tensor, layer_values: Tensor, out: Tensor, widths: str, activation: str,
    final: str, precision: str, x_columns: int,
) -> None:
    parts = packing.layers(widths)
    *_, columns = packing.hidden_parts(widths, activation, final)
    rows = grad_out.shape[0]
    wanted = (rows, parts[-1].outputs), (packing.elements(widths),), (rows, columns), (rows, parts[-1].outputs)
    tensors = {"grad_out": grad_out, "packed": packed, "layer_values": layer_values, "out": out}
    for (name, tensor), shape in zip(tensors.items(), wanted, strict=True):
        checks.belongs_to(op, name, tensor, "grad_out", grad_out, shape)
    if x_columns and x_columns < parts[0].inputs:
        raise ValueError(f"{op}: x_columns must be 0, or {parts[0].inputs} or more; got {x_columns}")


CHAIN = Op(
    "fused_mlp_chain",
    "(Tensor grad_out, Tensor packed, Tensor layer_values, Tensor out, str widths, str activation,"
    " str final_activation, str precision, int x_columns) -> (Tensor grad_x, Tensor grads)",
    shapes=f"grad_out [B, N]: floating; activation: {NAMES}; final_activation: {NAMES}; precision: ieee | tf32",
    eager=eager.chain,
    check=check_chain,
    outputs={
        "grad_x": lambda given: ((given["grad_out"].shape[0], given["x_columns"]), given["grad_out"].dtype),
        "grads": lambda given: (
            (given["grad_out"].shape[0], packing.columns_of_grads(given["widths"])), given["grad_out"].dtype
        ),
    },
    backends=("triton",),
    launches="chain",
    package=__package__,
)


def check_gradients(
    op: str, x: Sequence[Tensor], layer_values: Sequence[Tensor], layer_grads: Sequence[Tensor], widths: str
) -> None:
    """Raise unless the tensors are, of each MLP, what the forward took and kept and what fused_mlp_chain gave."""
    mlps, first = widths.split(), x[0]
    if not len(x) == len(layer_values) == len(layer_grads) == len(mlps):
        raise ValueError(
            f"{op}: x, layer_values and layer_grads must have a tensor for each MLP of widths, {len(mlps)}; got "
            f"{len(x)}, {len(layer_values)} and {len(layer_grads)}"
        )
    checks.has_dtype(op, "x[0]", first, (torch.float32,))
    for i, of_mlp in enumerate(mlps):
        parts = packing.layers(of_mlp)
        least = {
            "x": parts[0].inputs,
            "layer_values": sum(packing.padded(layer.outputs) for layer in parts[:-1]),
            "layer_grads": packing.columns_of_grads(of_mlp),
        }
        for (name, columns), tensors in zip(least.items(), (x, layer_values, layer_grads), strict=True):
            tensor = tensors[i]
            if tensor.dim() != 2 or len(tensor) != len(first) or tensor.shape[1] < columns:
                rows = len(first) if first.dim() else "B"
                raise ValueError(
                    f"{op}: {name}[{i}] must have shape [{rows}, {columns}] or be wider; got {list(tensor.shape)}"
                )
            checks.belongs_to(op, f"{name}[{i}]", tensor, "x[0]", first, tensor.shape)


def check_step(
    op: str, packed: Tensor, state: Tensor, x: Sequence[Tensor], layer_values: Sequence[Tensor],
    layer_grads: Sequence[Tensor], learning_rate: Tensor, rule: str, weight_decay: float, eps: float, widths: str,
) -> None:
    if not x:
        raise ValueError(f"{op}: x must have one tensor at least; got none")
    checks.is_beside(op, "x[0]", x[0], packed, "packed")
    check_gradients(op, x, layer_values, layer_grads, widths)
    elements = sum(map(packing.elements, widths.split()))
    for name, tensor, wanted in (("packed", packed, elements), ("state", state, elements * (rule == "adagrad"))):
        if len(tensor) != wanted:
            raise ValueError(f"{op}: {name} must have shape [{wanted}]; got {list(tensor.shape)}")


GRADIENTS = Op(
    "fused_mlp_gradients",
    "(Tensor[] x, Tensor[] layer_values, Tensor[] layer_grads, str widths) -> Tensor gradient",
    eager=eager.gradients,
    check=check_gradients,
    outputs={
        "gradient": lambda given: ((sum(map(packing.elements, given["widths"].split())),), given["x"][0].dtype)
    },
    backends=("cuda",),
    auto="cuda",
    generates=True,
    launches="gradients",
    package=__package__,
)
STEP = Op(
    "fused_mlp_step",
    "(Tensor(a!) packed, Tensor(a!) state, Tensor[] x, Tensor[] layer_values, Tensor[] layer_grads,"
    " Tensor learning_rate, str rule, float weight_decay, float eps, str widths) -> ()",
    shapes="packed [E]: float32; state [S]: float32; learning_rate []: float32; rule: sgd | adagrad",
    eager=eager.step,
    check=check_step,
    backends=("cuda",),
    auto="cuda",
    generates=True,
    launches="step",
    package=__package__,
)


def runs(x: Tensor, precision: str) -> bool:
    """Whether these ops have kernels for such rows here."""
    return x.is_cuda and weights_launch.runs(x.dtype, precision, x.device)
