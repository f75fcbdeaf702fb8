"""An MLP's layers for a model: in one kernel where they fit on the chip, else in one or two kernels a layer.

A composite: the layers that are not in one kernel take the op add_relu.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling
from torch.nn import functional as F
from torch.optim.optimizer import (
    _global_optimizer_post_hooks,
    _global_optimizer_pre_hooks,
    register_optimizer_step_pre_hook,
)

from ...dispatch.refusals import autocasts
from ...hooks import has_hooks
from ..add_relu.op import add_relu
from . import choice, packing
from .eager import ACTIVATIONS
from .op import fused_mlp, rows_of


class FusedMLP(nn.Sequential):
    """A Sequential of nn.Linear layers and activations, computed by `mlp` in fewer kernels.

        mlp = FusedMLP(nn.Sequential(nn.Linear(13, 512), nn.ReLU(), nn.Linear(512, 16)))     x [..., 13] → [..., 16]

    After each layer but the last stands the same activation, ReLU, LeakyReLU (of slope 0.01), Sigmoid, Tanh, SiLU, GELU
    or none, and any one of them after the last. Layers may be without a bias. An nn.Dropout may stand anywhere: where
    it drops nothing, in eval or with p = 0, it is nothing, and where it does, the Sequential is called.

    It stands in the Sequential's place: it has the same parts under the same names, so that one loads the other's
    state_dict, and is indexed, looped over and changed as that is; a slice of it is a plain Sequential. The Sequential
    that it was made of is `layers`, and what is done to one is done to both. Each call looks at the parts as they are
    then. `layers` is called itself where they are no such MLP any more, where a layer is more than an nn.Linear
    (LoRA's, a quantized or a parametrized one), where one of its modules has hooks (pruning), and for an x that is not
    as wide as the first layer.

    The kernels copy weights and biases at each call, unless `pack_mlp` of the module laid them out, when it is where it
    stays.

    Args:
        layers: the Sequential; its parameters stay its own. backend: as in `mlp`.

    Raises ValueError: of another module, of activations that differ, or another backend.
    """

    def __init__(self, layers: nn.Sequential, *, backend: str = "auto"):
        super().__init__()
        _activations(layers)
        if names := [name for name in layers._modules if name in ("layers", "backend")]:
            raise ValueError(f"FusedMLP: layers must not have a part of the name {names[0]!r}, which is FusedMLP's own")
        if backend not in BACKENDS:
            raise ValueError(f"FusedMLP: backend must be one of {', '.join(BACKENDS)}; got {backend!r}")
        self.layers, self.backend = layers, backend

    @property
    def _modules(self) -> dict[str, nn.Module | None]:
        """Those of `layers`, which has another dict where a part was deleted."""
        self._now()
        return self.__dict__["_modules"]

    @_modules.setter
    def _modules(self, modules: dict[str, nn.Module | None]) -> None:
        self.__dict__["_modules"] = modules

    def __setattr__(self, name: str, value: object) -> None:
        if name == "layers":  # no part of this: its parts are
            self.__dict__["layers"] = value
            self._read_again()
        else:
            self._now()
            super().__setattr__(name, value)

    def __getattr__(self, name: str) -> object:
        self._now()
        return super().__getattr__(name)

    def _now(self) -> None:
        """nn.Module's own code reads the dict itself."""
        if "layers" in self.__dict__:
            self.__dict__["_modules"] = self.__dict__["layers"]._modules

    def __setstate__(self, state: dict) -> None:
        super().__setstate__({"_drops": False} | state)  # of a version without Dropout
        if "layers" not in self.__dict__:  # pickled when `layers` was a part
            self.layers = self._modules["layers"]

    def forward(self, x: Tensor) -> Tensor:
        layers = self.layers
        if [_kind(part) for part in layers] != self._kinds:
            self._read_again()
        linears = [part for part in layers if type(part) is nn.Linear]
        if not isinstance(x, Tensor):  # torch.fx traces, and asks for the parts by their names in this
            return super().forward(x)
        if not self.activation or not all(map(is_plain, (layers, *layers))) or (self._drops and drops(layers)):
            return layers(x)
        weights, biases = [linear.weight for linear in linears], [linear.bias for linear in linears]
        if x.dim() == 0 or x.shape[-1] != weights[0].shape[-1]:
            return layers(x)  # which says what is wrong
        return mlp(x, weights, biases, self.activation, self.final_activation, backend=self.backend)

    def __getitem__(self, index: int | slice) -> nn.Module:
        return self.layers[index]

    def __setitem__(self, index: int, part: nn.Module) -> None:
        self.layers[index] = part

    def __delitem__(self, index: int | slice) -> None:
        del self.layers[index]
        self._read_again()

    def _read_again(self) -> None:
        """Parts were replaced, added, taken away or set otherwise."""
        try:
            self.activation, self.final_activation = _activations(self.layers)
        except ValueError:  # no MLP any more
            self.activation = self.final_activation = ""
        self._kinds = [_kind(part) for part in self.layers]
        self._drops = nn.Dropout in self._kinds

    def _replicate_for_data_parallel(self) -> FusedMLP:
        replica = super()._replicate_for_data_parallel()  # whose parts are set in a dict of its own
        replica.__dict__["layers"] = self.layers._replicate_for_data_parallel()
        replica.layers._modules = replica._modules
        return replica

    def _load_from_state_dict(self, state_dict: dict, prefix: str, *others) -> None:
        """Load a state_dict of an earlier version, too, whose names begin with "layers."."""
        earlier = prefix + "layers."
        for name in [name for name in state_dict if name.startswith(earlier)]:
            state_dict[prefix + name.removeprefix(earlier)] = state_dict.pop(name)
        super()._load_from_state_dict(state_dict, prefix, *others)


PLAIN = (Tensor, nn.Parameter)
BACKENDS = ("auto", "eager", "triton", "cuda")


def is_plain(part: nn.Module) -> bool:
    """Whether a call of the module does what its class does and no more: no hook, no forward of its own, and
    parameters that are their memory (a quantized or a distributed one is of another class)."""
    if has_hooks(part):
        return False
    if type(part) is not nn.Linear or is_compiling():
        return True
    own = part._parameters  # for nn.Module.__getattr__ costs the host more than all the rest
    weight, bias = own.get("weight"), own.get("bias")
    return type(weight) in PLAIN and (bias is None or (type(bias) in PLAIN and bias.shape == weight.shape[:1]))


def drops(layers: nn.Sequential) -> bool:
    """Whether a Dropout among them drops anything."""
    return any([type(part) is nn.Dropout and part.training and part.p > 0 for part in layers])


def _kind(part: nn.Module) -> type | str:
    """What a module computes, as far as its parameters do not say it."""
    if type(part) is nn.GELU:
        return f"gelu {part.approximate}"
    return f"leaky_relu {part.negative_slope}" if type(part) is nn.LeakyReLU else type(part)


NAMES = {
    nn.ReLU: "relu", nn.Sigmoid: "sigmoid", nn.Tanh: "tanh", nn.SiLU: "silu", nn.Identity: "identity",
    "gelu none": "gelu", "gelu tanh": "gelu_tanh", "leaky_relu 0.01": "leaky_relu",
}  # fmt: skip


def _activations(layers: nn.Sequential) -> tuple[str, str]:
    """(activation, final activation) of a Sequential, as `mlp` takes them."""
    if not isinstance(layers, nn.Sequential) or type(layers).forward is not nn.Sequential.forward:
        raise ValueError(f"FusedMLP: layers must be an nn.Sequential; got {type(layers).__name__}")
    activations = []
    for part in layers:
        if type(part) is nn.Dropout:
            continue
        if type(part) is nn.Linear:
            activations.append("identity")
        elif not activations or not (name := NAMES.get(_kind(part))) or activations[-1] != "identity":
            raise ValueError(
                "FusedMLP: layers must be a Sequential of nn.Linear layers, each with one ReLU, LeakyReLU of slope "
                f"0.01, Sigmoid, Tanh, SiLU, GELU, Identity or nothing behind it, and Dropout; got {part}"
            )
        else:
            activations[-1] = name
    if not activations or len({*activations[:-1]}) > 1:
        raise ValueError(
            "FusedMLP: layers must have nn.Linear layers, with the same activation after all but the last; got "
            f"{', '.join(activations) or 'no layer'}"
        )
    return activations[0] if activations[:-1] else "relu", activations[-1]


def mlp(
    x: Tensor,
    weights: Sequence[Tensor],
    biases: packing.Biases,
    activation: str = "relu",
    final_activation: str = "identity",
    *,
    backend: str = "auto",
) -> Tensor:
    """`fused_mlp` where it is the fastest and the layers fit on the chip, else each layer is one or two kernels.

    Float32 products are as exact as PyTorch's own (torch.set_float32_matmul_precision). Under torch.autocast all is
    computed in its dtype, as nn.Linear does it.

    backend: of the kernels. "auto" takes one kernel for CUDA tensors, where products are on tensor cores: full float32
    ones are not, and cuBLAS takes no longer for them than the one kernel does. Under torch.func it is eager.
    """
    if backend == "auto" and packing.is_transformed():
        backend = "eager"
    x = autocast(x)
    precision = precision_of(x)
    if _is_fused(x, weights, biases, precision, backend):
        return fused_mlp(x, weights, biases, activation, final_activation, precision, backend=backend)
    out = _one_by_one(rows_of(x), weights, biases, activation, final_activation, backend)
    return out if x.dim() == 2 else out.view(*x.shape[:-1], out.shape[-1])


def _is_fused(x: Tensor, weights: Sequence[Tensor], biases: packing.Biases, precision: str, backend: str) -> bool:
    if backend == "auto" and (not x.is_cuda or choice.is_full_float32(x.dtype, precision)):
        return False
    widths = packing.widths_of(weights)
    rows, tensors = math.prod(x.shape[:-1]), (x, *weights, *biases)  # numel() makes a number of an open size
    recorded = torch.is_grad_enabled() and any([tensor is not None and tensor.requires_grad for tensor in tensors])
    if is_compiling():  # when the kernel says that it does not take them, it is too late
        if backend == "auto":
            is_eager = choice.why_eager_in_a_graph(widths, x.dtype, precision, x.device)
            return not is_eager and not choice.is_outside(rows, widths, x.dtype, recorded)
        return choice.graph_takes(backend, widths, x.dtype, precision, x.device)
    return is_chosen(rows, widths, x.dtype, precision, recorded, x.device, backend)


def is_chosen(
    rows: int, widths: str, dtype: torch.dtype, precision: str, recorded: bool, device: torch.device, backend: str
) -> bool:
    """Whether `mlp` takes one kernel for so many rows; recorded: with a gradient."""
    if backend != "auto":
        return choice.takes(backend, rows, widths, dtype, precision, recorded, device)
    return device.type == "cuda" and choice.auto_of(rows, widths, dtype, precision, recorded, device) != "eager"


def _one_by_one(
    x: Tensor, weights: Sequence[Tensor], biases: packing.Biases, activation: str, final_activation: str, backend: str
) -> Tensor:
    """A matrix product a layer.

    cuBLAS's own epilogue adds the bias and takes the ReLU before the product is written, where a kernel behind it reads
    and writes the product once more. But it has no derivative: training takes that kernel, whose backward has the
    ReLU's mask and the bias's sum in one pass too.

    The zeros that rows of x are filled up with meet zeros in training: the derivative of x without them would be copied
    into zeros, which took 24 of a step's 1557 µs on an H200, 16384 rows in full float32. (What rows are filled up with
    must be finite: 0 · NaN is NaN.)
    """
    weights = list(weights)
    if (filled := x.shape[1] - weights[0].shape[1]) > 0:
        if torch.is_grad_enabled():
            weights[0] = F.pad(weights[0], (0, filled))
        else:
            x = x[:, :-filled]
    for i, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        applied = final_activation if i == len(weights) - 1 else activation
        if applied != "relu" or bias is None:
            x = ACTIVATIONS[applied](F.linear(x, weight, bias))
        elif torch.is_grad_enabled():
            x = add_relu(x @ weight.t(), bias, backend=backend)
        else:
            # PyTorch has no autocast rule for it on a GPU.
            x = torch._addmm_activation(autocast(bias), x, autocast(weight).t())
    return x


def precision_of(x: Tensor) -> str:
    """What float32 products of x are to be computed in; for other dtypes it says nothing."""
    return choice.float32_products() if _has_tf32(x) else "ieee"


def _has_tf32(x: Tensor) -> bool:
    return x.is_cuda


def autocast(x: Tensor) -> Tensor:
    """x in the dtype of torch.autocast, if that is on: an op of several dtypes then casts the others to it. float64
    stays, as torch.autocast leaves it."""
    return x.to(autocast_dtype(x))


def autocast_dtype(x: Tensor) -> torch.dtype:
    """The dtype of `autocast(x)`."""
    if x.dtype == torch.float64 or not autocasts(x):
        return x.dtype
    return torch.get_autocast_dtype(x.device.type)


def pack_mlp(module: nn.Module) -> nn.Module:
    """Lay the weights and biases of the module's nn.Linear layers, one behind the other, in one buffer; return it.

    The parameters stay the same objects of the same values, and become views of the buffer: the kernels of `fused_mlp`
    then copy nothing, in training and in a captured graph too. Call it after the last `.to(…)`, which lays them out
    anew. A state_dict is loaded into them as into any. Other modules in it (activations) are left alone.

    A copy.deepcopy, `.to(…)`, `.half()`, torch.nn.utils.vector_to_parameters and their like give parameters that each
    have memory of their own again: nothing is wrong then, and the next call copies. torch.save of one parameter writes
    the whole buffer, which its storage is; of a state_dict each storage is written once.

    Where a layer's inputs are no multiple of 16, its weight's rows are filled up with zeros and so do not touch. All
    that PyTorch does element by element is as ever; autograd copies its gradient. What needs a weight in one piece does
    not take it: `weight.view(-1)`, and so torch.nn.utils.parameters_to_vector, raises RuntimeError (`flatten` copies),
    and FSDP2 NotImplementedError; a step of an optimizer with fused=True is refused, for on a CPU it would compute
    wrong weights without a word. foreach=True takes it, and fused=True takes the buffer of a packed.PackedMLP.

    Raises:
        ValueError: no nn.Linear, one without a bias, widths that do not follow from one another.
        TypeError: no module, two dtypes. Later, a RuntimeError: a fused optimizer's step.
    """
    if not isinstance(module, nn.Module):
        raise TypeError(f"pack_mlp: module must be an nn.Module; got {type(module).__name__}")
    linears = [part for part in module.modules() if isinstance(part, nn.Linear)]
    if not linears or any(linear.bias is None for linear in linears):
        raise ValueError("pack_mlp: module must have nn.Linear layers, each with a bias")
    for before, linear in itertools.pairwise(linears):
        if linear.weight.shape[1] != before.weight.shape[0]:
            raise ValueError(f"pack_mlp: each layer must take what the one before it gives; {linear} follows {before}")
    weights, biases = [linear.weight for linear in linears], [linear.bias for linear in linears]
    packing.check_parameters("pack_mlp", weights, biases)
    with torch.no_grad():
        packed, widths = packing.pack(weights, biases)
        for linear, (weight, bias) in zip(linears, packing.views(packed, widths), strict=True):
            linear.weight.data, linear.bias.data = weight, bias
    if not all(weight.is_contiguous() for weight in weights):
        _watch_fused_optimizers()
    return module


@functools.cache
def _watch_fused_optimizers() -> None:
    register_optimizer_step_pre_hook(_refuse_fused_step)


def _refuse_fused_step(optimizer: torch.optim.Optimizer, *_) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"] if group.get("fused") else ():
            if parameter.dim() == 2 and not parameter.is_contiguous() and packing.is_filled_up(parameter):
                raise RuntimeError(
                    f"pack_mlp: {type(optimizer).__name__} with fused=True does not take a weight of shape "
                    f"{list(parameter.shape)} that was laid out, whose rows do not touch, {parameter.shape[1]} being "
                    "no multiple of 16: use foreach=True, or train the buffer of a packed.PackedMLP"
                )


def has_step_hooks(optimizer: torch.optim.Optimizer) -> bool:
    """Whether anybody is called at its step, but for the above, which looks at no gradient."""
    of_all = _global_optimizer_pre_hooks, _global_optimizer_post_hooks
    hooks = optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks, *of_all
    return any([hook is not _refuse_fused_step for of_kind in hooks for hook in of_kind.values()])
