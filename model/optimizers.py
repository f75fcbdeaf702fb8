"""The optimizers of a DLRM: one for its MLPs, one for its embedding tables, and the warm-up of both."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Adam
from torch.sparse import check_sparse_tensor_invariants

from model.config import Optimizer, Preset, TableOptimizer
from model.dlrm import DLRM
from model.table_update import TableUpdate
from model.tables import FusedTables


class Optimizers:
    """Two optimizers that step as one.

    A training step calls `advance`, which is the host's part, then `zero_grad` and `step`, the device's, which may be
    captured in a CUDA graph. In step n of the first `warmup_steps`, counted from 1, each step size is n / warmup_steps
    of its full value.
    """

    def __init__(
        self,
        parts: Mapping[str, SGD | Adagrad | Adam | TableUpdate],
        rates: Mapping[str, float],
        warmup_steps: int,
    ):
        self.parts, self.rates = dict(parts), dict(rates)
        self.current = dict(self.rates)  # what param_groups say, as numbers of the host
        self.warmup_steps = warmup_steps
        self.steps = 0

    def advance(self) -> None:
        """The next step begins: set its rates."""
        if self.steps < self.warmup_steps:
            self.steps += 1
            for name in self.parts:
                self._set_rate(name, self.rates[name] * (self.steps / self.warmup_steps))

    def zero_grad(self, set_to_none: bool = True) -> None:
        for part in self.parts.values():
            part.zero_grad(set_to_none=set_to_none)

    def step(self) -> None:
        for part in self.parts.values():
            part.step()

    def state_dict(self) -> dict:
        """Rates are numbers, whether they are tensors on the device or not."""
        state = {"steps": self.steps}
        for name, part in self.parts.items():
            own = part.state_dict()
            state[name] = own | {"param_groups": [group | {"lr": self.current[name]} for group in own["param_groups"]]}
        return state

    def load_state_dict(self, state: dict) -> None:
        """Go on from that state. How a step is computed (fused, captured, …) is this run's, not the state's."""
        self.steps = state["steps"]
        for name, part in self.parts.items():
            (ours,) = (dict(group) for group in part.param_groups)
            part.load_state_dict(state[name])
            part.param_groups[0].update(ours)
            self._set_rate(name, state[name]["param_groups"][0]["lr"])

    def _set_rate(self, name: str, value: float) -> None:
        self.current[name] = value
        (group,) = self.parts[name].param_groups
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(value)
        else:
            group["lr"] = value


class CapturableAdagrad(Adagrad):
    """torch.optim.Adagrad for dense gradients, whose step a CUDA graph can hold; torch 2.11 has none.

    The learning rate is a scalar on the device and so is the count of the steps; the operations are those of torch's
    foreach=True. Without lr_decay and maximize.
    """

    def __init__(self, parameters: list[nn.Parameter], lr: Tensor, weight_decay: float = 0.0):
        super().__init__(parameters, lr=lr, weight_decay=weight_decay)
        for parameter, state in self.state.items():
            state["step"] = state["step"].to(parameter.device)

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if not parameters:
                continue
            gradients = [parameter.grad for parameter in parameters]
            sums, steps = ([self.state[parameter][name] for parameter in parameters] for name in ("sum", "step"))
            torch._foreach_add_(steps, 1)
            if group["weight_decay"]:
                gradients = torch._foreach_add(gradients, parameters, alpha=group["weight_decay"])
            torch._foreach_addcmul_(sums, gradients, gradients, value=1)
            deviations = torch._foreach_sqrt(sums)
            torch._foreach_add_(deviations, group["eps"])
            torch._foreach_addcdiv_(parameters, torch._foreach_mul(gradients, -group["lr"]), deviations)

    def load_state_dict(self, state_dict: dict) -> None:
        super().load_state_dict(state_dict)
        for parameter, state in self.state.items():
            state["step"] = state["step"].to(parameter.device)


def make_optimizer(model: DLRM, preset: Preset, capturable: bool = False) -> Optimizers:
    """The optimizers that the preset's settings name; weight decay is the MLPs' alone.

    capturable: their step can be captured in a CUDA graph: rates are scalars on the device (fused kernels only).
    """
    settings = preset.train
    if model.config.sparse_gradients and not check_sparse_tensor_invariants.is_enabled():
        check_sparse_tensor_invariants.disable()  # as it is by default, of which Adagrad's first step else warns
    tables = model.sparse_arch.tables
    of_tables = {id(table) for table in tables.parameters()}
    mlps = [parameter for parameter in model.parameters() if id(parameter) not in of_tables]
    rule, rate = settings.table_optimizer, settings.table_learning_rate
    if isinstance(tables, FusedTables):
        update = TableUpdate(tables, rule, rate)
    elif capturable:
        raise ValueError("capturable: expected False without fused kernels, got True")
    else:
        update = _optimizer(rule, list(tables.parameters()), sparse=model.config.sparse_gradients, lr=rate)
    own = {"lr": settings.learning_rate, "weight_decay": settings.weight_decay}
    make = _capturable_optimizer if capturable else _optimizer
    parts = {"mlps": make(settings.optimizer, mlps, **own), "tables": update}
    return Optimizers(parts, {"mlps": settings.learning_rate, "tables": rate}, settings.warmup_steps)


def _optimizer(
    rule: Optimizer | TableOptimizer, parameters: list[nn.Parameter], *, sparse: bool = False, **settings: float
) -> SGD | Adagrad | Adam:
    match rule:
        case Optimizer.SGD:  # fused: one kernel for all parameters, not implemented for sparse gradients
            return SGD(parameters, fused=not sparse, **settings)
        case Optimizer.ADAGRAD:
            return Adagrad(parameters, **settings)
        case Optimizer.ADAM:
            return Adam(parameters, fused=True, **settings)
    raise ValueError(f"rule: expected sgd, adagrad or adam without fused kernels, got {rule}")


def _capturable_optimizer(
    rule: Optimizer, parameters: list[nn.Parameter], *, lr: float, **settings: float
) -> SGD | CapturableAdagrad | Adam:
    rate = torch.tensor(lr, device=parameters[0].device)
    match rule:
        case Optimizer.SGD:  # its fused kernel reads the rate on the device, the others on the host
            return SGD(parameters, lr=rate, fused=True, **settings)
        case Optimizer.ADAGRAD:
            return CapturableAdagrad(parameters, lr=rate, **settings)
        case Optimizer.ADAM:
            return Adam(parameters, lr=rate, fused=True, capturable=True, **settings)
