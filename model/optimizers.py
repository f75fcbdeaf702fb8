"""The optimizers of a DLRM: one for its MLPs, one for its embedding tables, and the schedule of both."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Adam
from torch.sparse import check_sparse_tensor_invariants

from kernels.ops.fused_mlp.module import has_step_hooks
from kernels.ops.fused_mlp.packed import PackedMLP, gradients_of, step_by
from model import fused
from model.config import Kernels, Optimizer, Preset, TableOptimizer
from model.dlrm import DLRM
from model.table_update import TableUpdate
from model.tables import FusedTables

MOST_LAUNCHES = 4  # of CapturableSGD, each for a tensor: more take longer than one of all


class Optimizers:
    """Two optimizers that step as one.

    A training step calls `advance`, which is the host's part, then `zero_grad` and `step`, the device's, which may be
    captured in a CUDA graph. In each step the step sizes are what `schedule` makes of their full values.
    """

    def __init__(
        self,
        parts: "Mapping[str, SGD | Adagrad | Adam | PackedOptimizer | TableUpdate]",
        rates: Mapping[str, float],
        schedule: "Schedule",
    ):
        self.parts, self.rates = dict(parts), dict(rates)
        self.current = dict(self.rates)  # what param_groups say, as numbers of the host
        self.schedule = schedule
        self.steps = 0

    def advance(self) -> None:
        """The next step begins: set its rates."""
        self.steps += 1
        if self.steps <= self.schedule.end:
            self._set_rates()

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
        """Go on from that state. How a step is computed (fused, captured, …) and its size are this run's, not the
        state's."""
        self.steps = state["steps"]
        for name, part in self.parts.items():
            (ours,) = (dict(group) for group in part.param_groups)
            part.load_state_dict(state[name])
            part.param_groups[0].update(ours)
        self._set_rates()

    def _set_rates(self) -> None:
        for name, part in self.parts.items():
            self.current[name] = value = self.rates[name] * self.schedule.factor(self.steps)
            (group,) = part.param_groups
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(value)
            else:
                group["lr"] = value


@dataclass(frozen=True)
class Schedule:
    """What part of its full value a step size has: it rises linearly in the first `warmup_steps`; in the `decay_steps`
    after step `decay_start_step` it falls as the square of what is left of them, and stays at the last one's.

    facebookresearch/dlrm, MLPerf's first reference, has the same schedule of the same three numbers.
    """

    warmup_steps: int = 0
    decay_start_step: int = 0
    decay_steps: int = 0

    @property
    def end(self) -> int:
        """The step from which on it is constant."""
        return max(self.warmup_steps, self.decay_steps and self.decay_start_step + self.decay_steps)

    def factor(self, step: int) -> float:
        """In this step, counted from 1; before the first one it is full."""
        if 0 < step < self.warmup_steps:
            return step / self.warmup_steps
        if self.decay_steps and step > self.decay_start_step:
            left = self.decay_start_step + self.decay_steps - step
            return (max(left, 1) / self.decay_steps) ** 2
        return 1.0


class PackedOptimizer:
    """An optimizer of parameters of which some are trained as one tensor a `PackedMLP`; what of torch.optim.Optimizer
    `Optimizers` needs. Its state_dict is that of torch's on the parameters: each loads the other's.

    A step costs the host as much as that of an optimizer of so many tensors as there are MLPs, and updates each element
    by the same operations.

    Args:
        make: makes the optimizer of the tensors it is given, whose rule goes element by element.
        parameters: in the order of the state_dict.
    """

    def __init__(
        self, make: Callable[[list[Tensor]], SGD | Adagrad | Adam], parameters: Sequence[nn.Parameter],
        arches: "Sequence[tuple[fused.Fused, PackedMLP]]",
    ):
        self.parameters, self.arches = tuple(parameters), list(arches)
        self.packed = [packed for _, packed in self.arches]
        position = {id(parameter): i for i, parameter in enumerate(self.parameters)}
        # The positions of the parameters that each trained tensor holds: buffers first, then parameters of their own.
        self.held = [[position.pop(id(parameter)) for parameter in one.parameters] for one in self.packed]
        self.trained = [*(one.buffer for one in self.packed), *(self.parameters[i] for i in position.values())]
        self.held += [[i] for i in position.values()]
        self.optimizer = make(self.trained)
        self.fuses_gradients = False  # `fusing_gradients` sets it
        self._join_sums()

    @property
    def param_groups(self) -> list[dict]:
        return self.optimizer.param_groups

    def zero_grad(self, set_to_none: bool = True) -> None:
        """The gradients are let go of, whatever is asked for. From here to `step` the arches' gradients go to the
        buffers; at other times, as in a loop with another optimizer, to the parameters."""
        for parameter in self.parameters:
            parameter.grad = None
        for arch, packed in self.arches:
            packed.forget_gradients()
            packed.leaves_operands = self.fuses_gradients
            arch.packed = packed

    def _join_sums(self) -> None:
        """Lay Adagrad's sums out as the buffers lie, one behind the other: `step_by` takes them in one launch."""
        states = [self.optimizer.state.get(packed.buffer, {}) for packed in self.packed]
        if states and type(self.optimizer) is CapturableAdagrad and all("sum" in state for state in states):
            sums = torch.cat([state["sum"] for state in states])
            for state, part in zip(states, sums.split([len(state["sum"]) for state in states]), strict=True):
                state["sum"] = part

    @torch.no_grad()
    def step(self) -> None:
        for packed in self.packed:
            packed.take_gradients()
        self._take_operands([packed for packed in self.packed if packed.operands is not None])
        self.optimizer.step()  # of those that have a gradient
        # What autograd saved of a parameter is known by its version to be out of date.
        torch.autograd.graph.increment_version(self.parameters)
        for arch, _ in self.arches:
            arch.packed = None

    def _take_operands(self, leaving: Sequence[PackedMLP]) -> None:
        """Step on the buffers whose backward left operands: by a kernel that knows the rule, if nobody is called at a
        step, who could look at gradients. Else they get their gradients."""
        one, (group,) = self.optimizer, self.param_groups
        is_watched = has_step_hooks(one)
        if type(one) is CapturableSGD and not is_watched:
            step_by("sgd", leaving, group["lr"], group["weight_decay"])
        elif type(one) is CapturableAdagrad and not is_watched:
            states = [one.state.get(packed.buffer, {}) for packed in leaving]
            try:
                sums = [state["sum"] for state in states]
                step_by("adagrad", leaving, group["lr"], group["weight_decay"], group["eps"], sums)
            finally:  # a step that raised can be made again
                pairs = zip(states, leaving, strict=True)
                if counts := [state["step"] for state, packed in pairs if packed.operands is None]:
                    torch._foreach_add_(counts, 1)
        else:
            gradients_of(leaving)

    def state_dict(self) -> dict:
        state = self.optimizer.state_dict()
        (group,) = state["param_groups"]
        states = {}
        for tensor, values in state["state"].items():
            of_each = [values] if tensor >= len(self.packed) else self._split(self.packed[tensor], values)
            states |= dict(zip(self.held[tensor], of_each, strict=True))
        return {
            "state": dict(sorted(states.items())),
            "param_groups": [group | {"params": list(range(len(self.parameters)))}],
        }

    def load_state_dict(self, state: dict) -> None:
        (group,), theirs, states = state["param_groups"], state["state"], {}
        if len(group["params"]) != len(self.parameters):
            count = len(group["params"])
            raise ValueError(
                f"the state is of {count} parameters, and {len(self.parameters)} are trained: it is another model's"
            )
        for tensor, held in enumerate(self.held):
            of_each = [theirs.get(group["params"][i]) for i in held]
            if any(of_each):
                states[tensor] = of_each[0] if tensor >= len(self.packed) else self._join(self.packed[tensor], of_each)
        groups = [group | {"params": list(range(len(self.held)))}]
        self.optimizer.load_state_dict({"state": states, "param_groups": groups})
        self._join_sums()

    @staticmethod
    def _split(packed: PackedMLP, values: Mapping[str, Tensor]) -> list[dict]:
        """The state of each parameter, of the buffer's: of tensors like it what is the parameter's, of others (the
        count of the steps) a copy."""
        of_each = [{} for _ in packed.parameters]
        for name, value in values.items():
            is_like = isinstance(value, Tensor) and value.shape == packed.buffer.shape
            parts = packed.split(value) if is_like else [value] * len(of_each)
            for own, part in zip(of_each, parts, strict=True):
                own[name] = part.clone() if isinstance(part, Tensor) else part
        return of_each

    @staticmethod
    def _join(packed: PackedMLP, of_each: Sequence[Mapping[str, Tensor] | None]) -> dict:
        """The reverse; a parameter without a state, which was frozen, begins with zeros."""
        joined, pairs = {}, list(zip(of_each, packed.parameters, strict=True))
        known, shape = next((own, parameter.shape) for own, parameter in pairs if own)
        for name, value in known.items():
            is_like = isinstance(value, Tensor) and value.shape == shape
            values = [own[name] if own else torch.zeros_like(parameter) for own, parameter in pairs] if is_like else ()
            joined[name] = packed.joined(values) if is_like else value
        return joined


@contextmanager
def fusing_gradients(optimizer: Optimizers) -> Iterator[None]:
    """Within it, between `zero_grad` and `step`, a backward computes no weights' gradients of MLPs that are one tensor
    each: the step does, in two launches for all MLPs. By CapturableSGD and CapturableAdagrad they update the weights
    too, and no gradient is written: parameters then have no .grad after the step either. That is where the kernels run,
    in tf32 (`kernels.ops.fused_mlp.update.runs`); elsewhere all is as ever.

    So it is for a step whose code is known: one call of the model and one backward, and nobody between it and the step
    who clips, scales or looks at gradients. A second backward raises RuntimeError, and so do a .grad that somebody set
    and, where it ends, a backward that no step followed.
    """
    parts = [part for part in optimizer.parts.values() if isinstance(part, PackedOptimizer)]
    for part in parts:
        part.fuses_gradients = True
    try:
        yield
        if any([packed.operands is not None for part in parts for packed in part.packed]):
            raise RuntimeError("fusing_gradients: no step took the gradients of a backward within it")
    finally:
        for part in parts:
            part.fuses_gradients = False
            for packed in part.packed:
                packed.leaves_operands, packed.operands = False, None


class CapturableSGD(SGD):
    """torch.optim.SGD of few large tensors, whose rate is a scalar on the device: an operation a tensor.

    torch's fused kernel gives a block 65,536 numbers: 8 blocks for a DLRM's two MLPs. Without momentum and maximize.
    """

    def __init__(self, parameters: list[nn.Parameter], lr: Tensor, weight_decay: float = 0.0):
        super().__init__(parameters, lr=lr, weight_decay=weight_decay)

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if (gradient := parameter.grad) is None:
                    continue
                if group["weight_decay"]:
                    gradient = gradient.add(parameter, alpha=group["weight_decay"])
                parameter.addcmul_(gradient, group["lr"], value=-1)


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
            # The rate's sign is the last operation's, to the bit the same as a rate that is negated first.
            torch._foreach_addcdiv_(parameters, torch._foreach_mul(gradients, group["lr"]), deviations, value=-1)

    def load_state_dict(self, state_dict: dict) -> None:
        super().load_state_dict(state_dict)
        for parameter, state in self.state.items():
            state["step"] = state["step"].to(parameter.device)


def make_optimizer(model: DLRM, preset: Preset, capturable: bool = False) -> Optimizers:
    """The optimizers that the preset's settings name; weight decay is the MLPs' alone.

    An MLP of fused kernels that is one kernel in such a step (`fused.pack`) is laid out here and trained as one tensor,
    of whose gradient its parameters' .grad are views. Only a whole backward computes that: autograd.grad of the
    parameters raises between `zero_grad` and `step`, and backward(inputs=parameters) gives them none. The model must
    stay on its device.

    capturable: their step can be captured in a CUDA graph: rates are scalars on the device (fused kernels only). Such a
    step may have gradients in its last launches alone (`fusing_gradients`).
    """
    settings = preset.train
    if model.config.sparse_gradients and not check_sparse_tensor_invariants.is_enabled():
        check_sparse_tensor_invariants.disable()  # as it is by default, of which Adagrad's first step else warns
    tables = model.sparse_arch.tables
    of_tables = {id(table) for table in tables.parameters()}
    mlps = [parameter for parameter in model.parameters() if id(parameter) not in of_tables]
    rule, rate = settings.table_optimizer, settings.table_learning_rate
    if isinstance(tables, FusedTables):
        update = TableUpdate(tables, rule, rate, deterministic=settings.deterministic)
    elif capturable:
        raise ValueError("capturable: expected False without fused kernels, got True")
    else:
        update = _optimizer(rule, list(tables.parameters()), sparse=model.config.sparse_gradients, lr=rate)
    own = {"lr": settings.learning_rate, "weight_decay": settings.weight_decay}
    choose = _capturable_optimizer if capturable else _optimizer
    make = partial(choose, settings.optimizer, **own)
    is_fused = model.config.kernels is Kernels.FUSED
    packed = fused.pack(model, settings.batch_size, settings.precision, capturable) if is_fused else []
    parts = {"mlps": PackedOptimizer(make, mlps, packed) if packed else make(mlps), "tables": update}
    schedule = Schedule(settings.warmup_steps, settings.decay_start_step, settings.decay_steps)
    return Optimizers(parts, {"mlps": settings.learning_rate, "tables": rate}, schedule)


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
    rate = torch.tensor(lr, dtype=torch.float32, device=parameters[0].device)  # as kernels read it
    match rule:
        case Optimizer.SGD if len(parameters) <= MOST_LAUNCHES:
            return CapturableSGD(parameters, lr=rate, **settings)
        case Optimizer.SGD:  # its fused kernel reads the rate on the device, the others on the host
            return SGD(parameters, lr=rate, fused=True, **settings)
        case Optimizer.ADAGRAD:
            return CapturableAdagrad(parameters, lr=rate, **settings)
        case Optimizer.ADAM:
            return Adam(parameters, lr=rate, fused=True, capturable=True, **settings)
