"""The optimizers of a DLRM: one for its MLPs, one for its embedding tables, and the warm-up of both."""

from torch import nn
from torch.optim import SGD, Adagrad, Adam
from torch.sparse import check_sparse_tensor_invariants

from model.config import Optimizer, Preset
from model.dlrm import DLRM


class Optimizers:
    """Two optimizers that step as one.

    In step n of the first `warmup_steps`, counted from 1, each step size is n / warmup_steps of its full value.
    """

    def __init__(self, mlps: SGD | Adagrad | Adam, tables: SGD | Adagrad | Adam, warmup_steps: int):
        self.parts = {"mlps": mlps, "tables": tables}
        self.rates = {name: part.param_groups[0]["lr"] for name, part in self.parts.items()}
        self.warmup_steps = warmup_steps
        self.steps = 0

    def zero_grad(self, set_to_none: bool = True) -> None:
        for part in self.parts.values():
            part.zero_grad(set_to_none=set_to_none)

    def step(self) -> None:
        if self.steps < self.warmup_steps:
            self.steps += 1
            for name, part in self.parts.items():
                part.param_groups[0]["lr"] = self.rates[name] * (self.steps / self.warmup_steps)
        for part in self.parts.values():
            part.step()

    def state_dict(self) -> dict:
        return {"steps": self.steps, **{name: part.state_dict() for name, part in self.parts.items()}}

    def load_state_dict(self, state: dict) -> None:
        self.steps = state["steps"]
        for name, part in self.parts.items():
            part.load_state_dict(state[name])


def make_optimizer(model: DLRM, preset: Preset) -> Optimizers:
    """The optimizers that the preset's settings name; weight decay is the MLPs' alone."""
    settings = preset.train
    if model.config.sparse_gradients and not check_sparse_tensor_invariants.is_enabled():
        check_sparse_tensor_invariants.disable()  # as it is by default, of which Adagrad's first step else warns
    tables = list(model.sparse_arch.tables.parameters())
    of_tables = {id(table) for table in tables}
    mlps = [parameter for parameter in model.parameters() if id(parameter) not in of_tables]
    return Optimizers(
        _optimizer(settings.optimizer, mlps, lr=settings.learning_rate, weight_decay=settings.weight_decay),
        _optimizer(
            settings.table_optimizer, tables, sparse=model.config.sparse_gradients, lr=settings.table_learning_rate
        ),
        settings.warmup_steps,
    )


def _optimizer(
    rule: Optimizer, parameters: list[nn.Parameter], *, sparse: bool = False, **settings: float
) -> SGD | Adagrad | Adam:
    match rule:
        case Optimizer.SGD:  # fused: one kernel for all parameters, not implemented for sparse gradients
            return SGD(parameters, fused=not sparse, **settings)
        case Optimizer.ADAGRAD:
            return Adagrad(parameters, **settings)
        case Optimizer.ADAM:
            return Adam(parameters, fused=True, **settings)
