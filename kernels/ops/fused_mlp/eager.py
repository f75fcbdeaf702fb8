"""out = final(… act(act(x W1ᵀ + b1) W2ᵀ + b2) … WLᵀ + bL), in plain PyTorch: the reference.

Bytes, of B rows and layers K → N1 → … → NL, with elements of `size` bytes. Each layer reads its input, its weight and
its bias and writes its output, and an activation of its own reads and writes that once more:

    product l      reads B N(l-1) + N(l-1) N(l) + N(l), writes B N(l)
    activation l   reads B N(l), writes B N(l)

Needed are x in, out, and every weight once: B K + B NL + Σ N(l-1) N(l) + N(l). FLOPs: 2 B Σ N(l-1) N(l).
"""

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from .packing import by_operators, derivative_reads_input, hidden_parts, layers, padded, views

ACTIVATIONS = {
    "identity": lambda z: z,
    "relu": F.relu,
    "leaky_relu": F.leaky_relu,  # of slope 0.01
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "silu": F.silu,
    "gelu": F.gelu,  # of erf
    "gelu_tanh": lambda z: F.gelu(z, approximate="tanh"),
}


def fused_mlp(
    x: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    activation: str = "relu",
    final_activation: str = "identity",
    precision: str = "ieee",
) -> Tensor:
    """x [B, K'], weights [N1, K], [N2, N1], … with K <= K', biases [N1], [N2], … → [B, NL], contiguous.

    precision is for PyTorch's own switch to say here (torch.backends.cuda.matmul.fp32_precision).
    """
    value = x[:, : weights[0].shape[1]]
    for i, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        last = i == len(weights) - 1
        value = ACTIVATIONS[final_activation if last else activation](F.linear(value, weight, bias))
    return value.contiguous()


def from_packed(
    x: Tensor, packed: Tensor, widths: str, activation: str, final_activation: str, precision: str, keep: bool
) -> tuple[Tensor, Tensor]:
    """The same with weights and biases in one buffer (packing.py); (out, an empty tensor)."""
    weights, biases = zip(*views(packed, widths), strict=True)
    return fused_mlp(x, weights, biases, activation, final_activation, precision), x.new_empty(0)


# act'(z) times a gradient, of act(z), or of z itself where `derivative_reads_input`.
ATEN = torch.ops.aten
INPUT_GRADIENTS = {
    "identity": lambda gradient, _: gradient,
    "relu": lambda gradient, out: ATEN.threshold_backward(gradient, out, 0),
    "leaky_relu": lambda gradient, out: ATEN.leaky_relu_backward(gradient, out, 0.01, True),
    "sigmoid": ATEN.sigmoid_backward,
    "tanh": ATEN.tanh_backward,
    "silu": ATEN.silu_backward,
    "gelu": ATEN.gelu_backward,
    "gelu_tanh": lambda gradient, z: ATEN.gelu_backward(gradient, z, approximate="tanh"),
}


def chain(
    grad_out: Tensor, packed: Tensor, layer_values: Tensor, out: Tensor, widths: str, activation: str,
    final_activation: str, precision: str, x_columns: int,
) -> tuple[Tensor, Tensor]:
    """(grad_x [B, x_columns], grads): grads has the gradient of what each layer's activation is applied to, layer by
    layer, filled up with zeros as packing.py fills outputs up. Without x_columns grad_x is not computed. layer_values:
    the forward's `hidden`."""
    outputs, inputs, _ = hidden_parts(widths, activation, final_activation)
    parts, gradient, of_layers = layers(widths), grad_out, []
    for i, (weight, _) in reversed([*enumerate(views(packed, widths))]):
        act = activation if i + 1 < len(parts) else final_activation
        kept = out
        if derivative_reads_input(act) or i + 1 < len(parts):
            column = inputs[i] if derivative_reads_input(act) else outputs[i]
            kept = layer_values[:, column : column + parts[i].outputs]
        gradient = INPUT_GRADIENTS[act](gradient, kept)
        of_layers.append(F.pad(gradient, (0, padded(parts[i].outputs) - parts[i].outputs)))
        if i or x_columns:
            gradient = gradient @ weight
    grad_x = F.pad(gradient, (0, x_columns - parts[0].inputs)) if x_columns else grad_out.new_empty(len(grad_out), 0)
    return grad_x, torch.cat(of_layers[::-1], dim=1)


def gradients(
    x: Sequence[Tensor], layer_values: Sequence[Tensor], layer_grads: Sequence[Tensor], widths: str
) -> Tensor:
    """Of `chain`'s grads, those of the weights and biases of MLPs, laid out one behind the other; widths: theirs, with
    spaces between."""
    operands = zip(x, layer_values, layer_grads, widths.split(), strict=True)
    return torch.cat([_gradient(*of_mlp) for of_mlp in operands])


def _gradient(x: Tensor, hidden: Tensor, grads: Tensor, widths: str) -> Tensor:
    of_weights, of_biases, column = [], [], 0
    outputs, *_ = hidden_parts(widths, "relu", "identity")  # of every activation alike
    for i, layer in enumerate(layers(widths)):
        g = grads[:, column : column + layer.outputs]
        h = hidden[:, outputs[i - 1] :] if i else x
        of_weights.append(g.t() @ h[:, : layer.inputs])
        of_biases.append(g.sum(0))
        column += padded(layer.outputs)
    return by_operators(of_weights, of_biases)


def step(
    packed: Tensor, state: Tensor, x: Sequence[Tensor], layer_values: Sequence[Tensor], layer_grads: Sequence[Tensor],
    learning_rate: Tensor, rule: str, weight_decay: float, eps: float, widths: str,
) -> None:
    """The rule on MLPs that lie in `packed` one behind the other, with g = gradient + weight_decay · packed:

    sgd: packed -= learning_rate · g. adagrad: state += g², packed -= learning_rate · g / (√state + eps).
    """
    gradient = gradients(x, layer_values, layer_grads, widths)
    if weight_decay:
        gradient = gradient.add(packed, alpha=weight_decay)
    gradient, scaled = gradient * learning_rate, gradient
    if rule == "adagrad":
        state.add_(scaled.square())
        gradient = gradient / (state.sqrt() + eps)
    packed.sub_(gradient)


def forward_bytes(rows: int, widths: Sequence[int], dtype: torch.dtype) -> int:
    """Bytes that a forward must move: x in, out, every weight and bias once."""
    return (rows * (widths[0] + widths[-1]) + parameters(widths)) * dtype.itemsize


def parameters(widths: Sequence[int]) -> int:
    """How many numbers the weights and biases of layers of these widths have."""
    return sum((a + 1) * b for a, b in itertools.pairwise(widths))


def forward_flops(rows: int, widths: Sequence[int]) -> int:
    """Two for each weight and row."""
    return 2 * rows * sum(a * b for a, b in itertools.pairwise(widths))
