"""LoRA: fine-tuning a frozen linear layer through a product of two thin matrices (Hu et al. 2021,
https://arxiv.org/abs/2106.09685).

    out = act(x Wᵀ + bias + (alpha / rank) · (x A) B)      x [..., in]; W [out, in] and bias [out] frozen;
                                                           A [in, rank] and B [rank, out] trained

Eager, what follows the three GEMMs is a chain of pointwise kernels. Fused, it is one, `kernels.add_mul_activation`, in
the forward and in the backward: with x Wᵀ computed without its bias, out = act(x Wᵀ + multiplier · y + bias), where
y = (x A) B and multiplier = alpha / rank. Merged, W holds the whole sum and nothing follows but the activation.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kernels import add_mul_activation
from kernels.ops.add_mul_activation.eager import FUNCTIONS

_ACTIVATIONS = {nn.ReLU: "relu", nn.Sigmoid: "sigmoid", nn.Tanh: "tanh", nn.GELU: "gelu", nn.SiLU: "silu"}


class LoRALayer(nn.Module):
    """(alpha / rank) · (x A) B: [..., in_features] → [..., out_features].

    A is uniform in ±1/sqrt(in_features), as in the paper's code and in peft (the paper's text says normal); B is zero,
    so that training starts from the model as it was.

    Raises ValueError for a rank below 1 or an alpha that is not finite.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        rank: int,
        alpha: float,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        if not isinstance(rank, int) or rank < 1:
            raise ValueError(f"rank: expected a whole number, 1 or more, got {rank!r}")
        if not math.isfinite(alpha):
            raise ValueError(f"alpha: expected a finite number, got {alpha!r}")
        self.rank, self.alpha = rank, alpha
        self.A = nn.Parameter(torch.empty(in_features, rank, device=device, dtype=dtype))
        self.B = nn.Parameter(torch.empty(rank, out_features, device=device, dtype=dtype))
        self.reset_parameters()

    @property
    def multiplier(self) -> float:
        return float(self.alpha / self.rank)

    def reset_parameters(self, b_std: float = 0.0) -> None:
        """Draw A anew, and B from a normal distribution of this standard deviation: above 0, B is as if trained."""
        bound = 1 / math.sqrt(max(1, self.A.shape[0]))
        nn.init.uniform_(self.A, -bound, bound)
        nn.init.normal_(self.B, std=b_std)

    def unscaled(self, x: Tensor) -> Tensor:
        return (x @ self.A) @ self.B

    def forward(self, x: Tensor) -> Tensor:
        return self.multiplier * self.unscaled(x)

    def extra_repr(self) -> str:
        return f"{self.A.shape[0]}, {self.B.shape[1]}, rank={self.rank}, alpha={self.alpha}"


class LinearWithLoRA(nn.Module):
    """act(linear(x) + lora(x)): [..., in] → [..., out].

    Args:
        linear: gets frozen; its weight's device and dtype are also those of A and B.
        rank, alpha: see `LoRALayer`.
        activation: "relu", "sigmoid", "tanh", "gelu" (the erf form), "silu" or "identity".
        fused: whether what follows the GEMMs runs as one kernel, `kernels.add_mul_activation`.
        backend: that kernel's: "auto", "triton", "cuda" or "eager".

    Raises ValueError for an unknown activation, and what `LoRALayer` raises.

    The state_dict of a merged layer holds the merged weight; `lora_state_dict` is the same either way.
    """

    def __init__(
        self,
        linear: nn.Linear,
        rank: int,
        alpha: float,
        *,
        activation: str = "identity",
        fused: bool = False,
        backend: str = "auto",
    ):
        super().__init__()
        if activation not in FUNCTIONS:
            raise ValueError(f"activation: expected one of {', '.join(FUNCTIONS)}, got {activation!r}")
        weight = linear.weight
        self.linear = linear.requires_grad_(False)
        self.lora = LoRALayer(*weight.shape[::-1], rank, alpha, device=weight.device, dtype=weight.dtype)
        self.activation, self.fused, self.backend = activation, fused, backend
        # Buffers, so that they follow the layer to another device or dtype.
        zeros = None if linear.bias is not None else weight.new_zeros(weight.shape[0])
        self.register_buffer("no_bias", zeros, persistent=False)
        self.register_buffer("unmerged_weight", None, persistent=False)
        self.register_load_state_dict_pre_hook(_refuse_while_merged)
        self.train(linear.training)

    @property
    def merged(self) -> bool:
        return self.unmerged_weight is not None

    def forward(self, x: Tensor) -> Tensor:
        """Raises RuntimeError while merged in training mode with gradients enabled: A and B would get none."""
        activate = FUNCTIONS[self.activation]
        if self.merged:
            if self.training and torch.is_grad_enabled():
                raise RuntimeError("the layer is merged: A and B get no gradient; unmerge() to train, eval() to infer")
            return activate(self.linear(x))
        if not self.fused:
            return activate(self.linear(x) + self.lora(x))
        bias = self.linear.bias if self.no_bias is None else self.no_bias
        return add_mul_activation(
            F.linear(x, self.linear.weight),
            bias,
            self.lora.unscaled(x),
            self.lora.multiplier,
            self.activation,
            backend=self.backend,
        )

    @torch.no_grad()
    def merge(self) -> None:
        """weight += (alpha / rank) · (A B)ᵀ in place, computed in float64 and rounded once.

        A copy of the frozen weight is kept on its device, from which `unmerge` restores it bit for bit. Whoever shares
        the weight sees it merged.

        Raises RuntimeError if the layer is merged already.
        """
        if self.merged:
            raise RuntimeError("the layer is merged already")
        weight = self.linear.weight
        change = self.lora.multiplier * (self.lora.A.double() @ self.lora.B.double()).T
        self.unmerged_weight = weight.clone()
        weight.copy_(weight.double() + change)

    @torch.no_grad()
    def unmerge(self) -> None:
        """Put the frozen weight back, bit for bit. Raises RuntimeError if the layer is not merged."""
        if not self.merged:
            raise RuntimeError("the layer is not merged")
        self.linear.weight.copy_(self.unmerged_weight)
        self.unmerged_weight = None

    def extra_repr(self) -> str:
        return f"activation={self.activation}, fused={self.fused}, backend={self.backend}, merged={self.merged}"


class MLP(nn.Sequential):
    """Linear layers with LoRA and an activation after each but the last: [..., widths[0]] → [..., widths[-1]].

    The keywords are those of `LinearWithLoRA`. Raises ValueError for fewer than two widths, and what it raises.
    """

    def __init__(
        self,
        widths: Sequence[int],
        rank: int,
        alpha: float,
        *,
        activation: str = "relu",
        fused: bool = False,
        backend: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        if len(widths) < 2:
            raise ValueError(f"widths: expected two or more, got {list(widths)}")
        activations = [activation] * (len(widths) - 2) + ["identity"]
        super().__init__(
            *(
                LinearWithLoRA(
                    nn.Linear(*pair, device=device, dtype=dtype),
                    rank,
                    alpha,
                    activation=after,
                    fused=fused,
                    backend=backend,
                )
                for pair, after in zip(pairwise(widths), activations, strict=True)
            )
        )


def apply_lora(
    module: nn.Module,
    rank: int,
    alpha: float,
    targets: str | Iterable[str] = "*",
    *,
    fused: bool = False,
    backend: str = "auto",
) -> list[str]:
    """Replace nn.Linear layers below module by `LinearWithLoRA`, in place, and freeze everything but A and B.

    Args:
        targets: names as in module.named_modules(), `*` standing for anything: "over_arch.*", say. Layers that have
            LoRA already are left as they are, and so are subclasses of nn.Linear.
        fused, backend: see `LinearWithLoRA`. Fused, the activation that follows a layer in an nn.Sequential moves into
            the layer, and leaves an nn.Identity, so that no name changes.

    Returns the names of the replaced layers. An optimizer made before this holds parameters that are now frozen.

    Raises ValueError, before anything is changed, if a target names no nn.Linear, and what `LinearWithLoRA` raises.
    """
    places: dict[nn.Linear, list[tuple[nn.Module, str, str]]] = {}  # several for a layer that is used several times
    for prefix, parent in module.named_modules():
        if isinstance(parent, LinearWithLoRA):
            continue
        for key, child in parent._modules.items():
            if type(child) is nn.Linear:
                places.setdefault(child, []).append((parent, key, f"{prefix}.{key}".lstrip(".")))
    names = [name for uses in places.values() for *_, name in uses]
    patterns = [targets] if isinstance(targets, str) else list(targets)
    unmatched = [pattern for pattern in patterns if not any(fnmatchcase(name, pattern) for name in names)]
    if unmatched or not patterns:
        what = f"{', '.join(unmatched)} names no nn.Linear" if patterns else "expected a name, got none"
        raise ValueError(f"targets: {what}; {type(module).__name__} has below it: {', '.join(names) or 'none'}")

    chosen = {
        linear: uses
        for linear, uses in places.items()
        if any(fnmatchcase(name, pattern) for *_, name in uses for pattern in patterns)
    }
    layers = [LinearWithLoRA(linear, rank, alpha, fused=fused, backend=backend) for linear in chosen]
    for layer, uses in zip(layers, chosen.values(), strict=True):
        for parent, key, _ in uses:
            setattr(parent, key, layer)
        if fused and len(uses) == 1:
            layer.activation = _take_activation(*uses[0][:2])
    module.requires_grad_(False)
    for lora in _layers(module, LoRALayer).values():
        lora.requires_grad_(True)
    return [name for uses in chosen.values() for *_, name in uses]


def lora_state_dict(module: nn.Module) -> dict[str, Tensor]:
    """The A and B of every LoRA layer in module, by their names in its state_dict: all that training changes."""
    names = {f"{name}.{key}".lstrip(".") for name in _layers(module, LoRALayer) for key in "AB"}
    return {name: value for name, value in module.state_dict().items() if name in names}


def load_lora_state_dict(module: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Load what `lora_state_dict` gave.

    Raises ValueError if the names are not exactly those of module's LoRA layers; RuntimeError if a shape differs or a
    layer is merged.
    """
    expected = lora_state_dict(module)
    if state.keys() != expected.keys():
        missing, unexpected = sorted(expected.keys() - state.keys()), sorted(state.keys() - expected.keys())
        raise ValueError(f"state: expected module's A and B; missing: {missing}, unexpected: {unexpected}")
    module.load_state_dict(state, strict=False)


def merge(module: nn.Module) -> None:
    """Merge every `LinearWithLoRA` in module.

    Raises RuntimeError, before any is changed, if one is merged already, or if two share their frozen weight: it can
    hold one change only.
    """
    layers = _layers(module, LinearWithLoRA)
    if merged := [name for name, layer in layers.items() if layer.merged]:
        raise RuntimeError(f"merged already: {', '.join(merged)}")
    names = {}
    for name, layer in layers.items():
        names.setdefault(layer.linear.weight, []).append(name)
    if shared := [", ".join(those) for those in names.values() if len(those) > 1]:
        raise RuntimeError(f"they share one weight, and cannot be merged: {'; '.join(shared)}")
    for layer in layers.values():
        layer.merge()


def unmerge(module: nn.Module) -> None:
    """Unmerge every `LinearWithLoRA` in module. Raises RuntimeError, before any is changed, if one is not merged."""
    layers = _layers(module, LinearWithLoRA)
    if unmerged := [name for name, layer in layers.items() if not layer.merged]:
        raise RuntimeError(f"not merged: {', '.join(unmerged)}")
    for layer in layers.values():
        layer.unmerge()


def _layers(module: nn.Module, kind: type[nn.Module]) -> dict[str, nn.Module]:
    return {name: layer for name, layer in module.named_modules() if isinstance(layer, kind)}


def _take_activation(parent: nn.Module, key: str) -> str:
    """The activation that parent, if it is an nn.Sequential, runs after its child `key`; an nn.Identity replaces it."""
    if type(parent).forward is not nn.Sequential.forward:
        return "identity"
    keys = list(parent._modules)
    for next_key in keys[keys.index(key) + 1 :][:1]:
        following = parent._modules[next_key]
        if type(following) in _ACTIVATIONS and getattr(following, "approximate", "none") == "none":
            setattr(parent, next_key, nn.Identity())
            return _ACTIVATIONS[type(following)]
    return "identity"


def _refuse_while_merged(layer: LinearWithLoRA, state_dict: Mapping[str, Tensor], prefix: str, *_) -> None:
    if layer.merged:
        raise RuntimeError(f"{prefix.rstrip('.') or 'the layer'} is merged: unmerge() before loading")
