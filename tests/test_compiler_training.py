"""backend="fused_kernels" and a DLRM in training: eager's losses, hooks that are called, and what happens to the model
after it was compiled."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from compiled import check, recording, results_of
from compiled_styles import WIDTH, Facebook
from test_compiler_styles import STYLES
from torch import Tensor, nn

pytestmark = pytest.mark.usefixtures("one_thread", "as_on_gpu")
WHOLE = "dlrm_forward"


@pytest.fixture(autouse=True)
def _fresh_dynamo():
    torch._dynamo.reset()
    torch.manual_seed(0)


def trained(
    call: Callable, optimizer: torch.optim.Optimizer, batches: list[tuple[Tensor, ...]], steps: int
) -> list[float]:
    """The losses of so many steps, each on the next batch."""
    losses = []
    for step in range(steps):
        *inputs, target = batches[step % len(batches)]
        loss = nn.functional.mse_loss(call(*inputs), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9),
    "adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.05),
}
slow = pytest.mark.slow


@pytest.mark.parametrize("optimizer", ["sgd", *(pytest.param(name, marks=slow) for name in ("momentum", "adagrad"))])
@pytest.mark.parametrize("style", ["facebook", *(pytest.param(s, marks=slow) for s in STYLES if s != "facebook")])
def test_two_hundred_steps_are_eagers(style, optimizer):
    make, ops = STYLES[style]
    model, (backend, recorded) = make(), recording()
    other = copy.deepcopy(model)
    batches = [(*model.inputs(16), torch.rand(16, 1)) for _ in range(4)]
    with torch.no_grad():
        batches = [(*inputs, target.reshape(model(*inputs).shape)) for *inputs, target in batches]
    want = trained(model, OPTIMIZERS[optimizer](model.parameters()), batches, 200)
    compiled = torch.compile(other, backend=backend)
    got = trained(compiled, OPTIMIZERS[optimizer](other.parameters()), batches, 200)
    assert sum(want[-4:]) < sum(want[:4])  # it learns, by a little
    torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-6)
    assert {*recorded.ops} == {*ops}


def written_in_place(model: Facebook) -> None:
    with torch.no_grad():
        model.emb_l[1].weight.mul_(2)
        model.top_l[0].bias.add_(1)


def loaded(model: Facebook) -> None:
    model.load_state_dict(Facebook().state_dict())


def loaded_by_assignment(model: Facebook) -> None:
    model.load_state_dict(Facebook().state_dict(), assign=True)


def another_table(model: Facebook) -> None:
    model.emb_l[0] = nn.EmbeddingBag(40, WIDTH, mode="sum")


def mean_of_bags(model: Facebook) -> None:
    model.emb_l[2].mode = "mean"


def padded(model: Facebook) -> None:
    model.emb_l[0].padding_idx = 1


def frozen_tables(model: Facebook) -> None:
    model.emb_l.requires_grad_(False)


def tied_tables(model: Facebook) -> None:
    model.emb_l[0].weight = model.emb_l[2].weight


def another_activation(model: Facebook) -> None:
    model.bot_l[1] = nn.Tanh()


def to_double(model: Facebook) -> None:
    model.double()


def to_bfloat16(model: Facebook) -> None:
    model.to(torch.bfloat16)


CHANGES = [
    written_in_place, loaded, loaded_by_assignment, another_table, mean_of_bags, padded, frozen_tables, tied_tables,
    another_activation, to_double, to_bfloat16,
]  # fmt: skip


@pytest.mark.parametrize("gradients", [False, pytest.param(True, marks=slow)])
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_change_after_compilation_is_seen(change, gradients):
    model, (backend, recorded) = Facebook(), recording("eager")
    other = copy.deepcopy(model)
    compiled, inputs = torch.compile(other, backend=backend), Facebook.inputs(5)
    results_of(compiled, other, inputs, gradients)
    assert (WHOLE in recorded.ops) is not gradients
    for module in (model, other):
        torch.manual_seed(1)
        change(module)
        module.zero_grad()
    inputs = inputs[0].to(model.bot_l[0].weight.dtype), *inputs[1:]
    want, got = (results_of(call, owner, inputs, gradients) for call, owner in ((model, model), (compiled, other)))
    tolerance = {"rtol": 0.02, "atol": 0.02} if change is to_bfloat16 else {}
    torch.testing.assert_close(got, want, **tolerance)


# What is registered before compilation, on a DLRM; it gets a list for what it sees.
def forward_hook(model: Facebook, seen: list) -> None:
    model.bot_l[0].register_forward_hook(lambda module, args, out: out * 2)


def forward_hook_of_a_table(model: Facebook, seen: list) -> None:
    model.emb_l[1].register_forward_hook(lambda module, args, out: out + 1)


def pre_hook(model: Facebook, seen: list) -> None:
    model.top_l[2].register_forward_pre_hook(lambda module, args: (args[0].flip(0),))


def backward_hook(model: Facebook, seen: list) -> None:
    model.top_l[0].register_full_backward_hook(lambda module, into, out: (into[0] * 3,))


def backward_pre_hook(model: Facebook, seen: list) -> None:
    model.bot_l[2].register_full_backward_pre_hook(lambda module, out: (out[0] * 3,))


def hook_of_a_parameter(model: Facebook, seen: list) -> None:
    model.emb_l[0].weight.register_hook(lambda gradient: gradient * 2)
    model.top_l[0].bias.register_hook(seen.append)


def hook_after_accumulation(model: Facebook, seen: list) -> None:
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda parameter: seen.append(parameter.grad.clone()))


HOOKS = [
    forward_hook, forward_hook_of_a_table, pre_hook, backward_hook, backward_pre_hook, hook_of_a_parameter,
    hook_after_accumulation,
]  # fmt: skip


@pytest.mark.parametrize("register", HOOKS, ids=lambda register: register.__name__)
def test_hooks_are_called(register):
    """Each hook sees what eager's sees, and what it makes of it counts; what it does not disturb is still replaced."""
    model, (backend, recorded) = Facebook(), recording()
    plain, other, of_model, of_other = Facebook(), copy.deepcopy(model), [], []
    plain.load_state_dict(model.state_dict())
    inputs = Facebook.inputs(5)
    register(model, of_model)
    register(other, of_other)
    want, got = (results_of(call, owner, inputs, True) for call, owner in (
        (model, model), (torch.compile(other, backend=backend), other)
    ))
    torch.testing.assert_close(got, want)
    # Gradients may be accumulated in another order.
    one, another = (sorted(seen, key=lambda gradient: gradient.shape) for seen in (of_other, of_model))
    torch.testing.assert_close(one, another)
    unhooked = results_of(plain, plain, inputs, True)
    assert of_model or any(not torch.equal(a, b) for a, b in zip(want, unhooked, strict=True))
    assert recorded.ops


class Dropped(Facebook):
    """With dropout in the top MLP, and of what the tables give."""

    def __init__(self):
        super().__init__()
        self.top_l = nn.Sequential(self.top_l[0], self.top_l[1], nn.Dropout(0.5), *self.top_l[2:])

    def interact(self, x: Tensor, ly: list[Tensor]) -> Tensor:
        return super().interact(x, [nn.functional.dropout(v, 0.3, self.training) for v in ly])


def test_dropout():
    """In training it is eager's; in evaluation it is gone, and the model whole."""
    model, inputs = Dropped(), Facebook.inputs(16)
    recorded = check(model, inputs)
    assert {*recorded.ops} == {"fused_mlp", "dot_interaction", "embedding_bags_apart"}
    assert any("aten.dropout.default stands between" in sentence for sentence in recorded.declined)
    assert check(model.eval(), inputs, gradients=False).ops == [WHOLE]


@pytest.fixture
def one_process(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("inside", [False, True])
def test_distributed_data_parallel(one_process, inside):
    """Around the model, or around the compiled model."""
    model, (backend, recorded) = Facebook(), recording()
    other = copy.deepcopy(model)
    wrap = nn.parallel.DistributedDataParallel
    compiled = wrap(torch.compile(other, backend=backend)) if inside else torch.compile(wrap(other), backend=backend)
    batches = [(*Facebook.inputs(8), torch.rand(8, 1)) for _ in range(2)]
    want = trained(model, OPTIMIZERS["sgd"](model.parameters()), batches, 10)
    got = trained(compiled, OPTIMIZERS["sgd"](other.parameters()), batches, 10)
    torch.testing.assert_close(got, want)
    assert {*recorded.ops} == {*STYLES["facebook"][1]}
