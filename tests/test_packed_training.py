"""Training by one tensor an MLP: the steps, states and checkpoints of training each parameter."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from test_fused_model import BACKENDS, DEVICE, batch, made, needs, shape
from torch import nn
from torch.nn.utils import parametrize, prune
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from kernels.dispatch.core import on_host
from kernels.ops.fused_mlp import update
from model import Interaction, Preset, fused, preset
from model import step as model_step
from model.config import Kernels, Optimizer, Precision
from model.optimizers import PackedOptimizer, _capturable_optimizer, fusing_gradients, make_optimizer
from model.step import make_step, train_step

CONFIG = replace(shape(), bottom=(13, 32, 4), top=(24, 1), kernels=Kernels.FUSED)
# PyTorch's fused Adam rounds otherwise at the end of a tensor on a CPU, where it goes vector by vector.
ERROR = {Optimizer.SGD: 0, Optimizer.ADAGRAD: 0, Optimizer.ADAM: 1e-6}


def training(backend, optimizer, capturable=False):
    model = made(CONFIG, backend)
    settings = replace(preset("mini").train, optimizer=optimizer, weight_decay=0.1, learning_rate=0.1, warmup_steps=2)
    return model, make_optimizer(model, Preset(CONFIG, settings), capturable)


def another_optimizer(model):
    settings = replace(preset("mini").train, optimizer=Optimizer.SGD)
    return make_optimizer(model, Preset(CONFIG, settings))


def loss_of(model, step=0):
    labels, dense, sparse = batch(6, CONFIG, step)
    return F.binary_cross_entropy_with_logits(model(dense, sparse), labels)


def parameters(model):
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def trained(model, optimizer, steps=range(4)):
    """Losses, parameters and the optimizers' state after these steps."""
    losses = [train_step(model, optimizer, *batch(6, CONFIG, step)).clone() for step in steps]
    return torch.stack(losses), dict(model.state_dict()), optimizer.state_dict()


@pytest.fixture
def one_by_one(monkeypatch):
    """→ a function that does what it is given with an optimizer that trains each parameter."""

    def call(function, *arguments):
        with monkeypatch.context() as patch:
            patch.setattr(fused, "pack", lambda *_: [])
            return function(*arguments)

    return call


@pytest.mark.parametrize("capturable", [False, True])
@pytest.mark.parametrize("optimizer", list(Optimizer))
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_steps_are_those_of_each_parameter(one_by_one, backend, optimizer, capturable):
    needs(backend)
    expected = trained(*one_by_one(training, backend, optimizer, capturable))
    model, ours = training(backend, optimizer, capturable)
    assert isinstance(ours.parts["mlps"], PackedOptimizer)
    assert len(ours.parts["mlps"].param_groups[0]["params"]) == 2  # an MLP each
    actual = trained(model, ours)
    # Eager computes with weights as they lie: PyTorch adds up in another order where their rows do not touch.
    # CapturableSGD rounds a product that torch's fused kernel, of many parameters, does not.
    rounds = capturable and optimizer is Optimizer.SGD
    error = {"rtol": 0, "atol": max(ERROR[optimizer], 1e-7 if backend == "eager" or rounds else 0)}
    torch.testing.assert_close(actual[:2], expected[:2], **error)
    states = [state["mlps"] for *_, state in (actual, expected)]
    torch.testing.assert_close(states[0]["state"], states[1]["state"], **error)
    (group,), (theirs,) = (state["param_groups"] for state in states)
    assert group.keys() == theirs.keys()
    assert group["params"] == theirs["params"]
    for packed in ours.parts["mlps"].packed:
        assert torch.equal(packed.joined(packed.parameters), packed.buffer)  # its padding is still zero


@pytest.fixture
def fused_steps(monkeypatch):
    """(op, widths) of each call that takes operands. On a CPU the chain is interpreted, the rest runs on the host."""
    needs("triton")
    steps = []

    def noted(op, call):
        return lambda *arguments: steps.append((op.name, arguments[-1])) or call(*arguments)

    monkeypatch.setattr(update, "runs", lambda *_: True)
    for op in (update.STEP, update.GRADIENTS):
        monkeypatch.setattr(op, "call", noted(op, op.call))
    with on_host() if DEVICE.type == "cpu" else nullcontext():
        yield steps


def before_a_step(optimizer):
    return optimizer.parts["mlps"].optimizer.register_step_pre_hook(lambda *_: None)


def after_a_step(optimizer):
    return optimizer.parts["mlps"].optimizer.register_step_post_hook(lambda *_: None)


def before_every_step(_):
    return register_optimizer_step_pre_hook(lambda *_: None)


def after_every_step(_):
    return register_optimizer_step_post_hook(lambda *_: None)


@pytest.mark.parametrize(
    ("optimizer", "op"),
    [
        (Optimizer.SGD, "fused_mlp_step"), (Optimizer.ADAGRAD, "fused_mlp_step"),
        (Optimizer.ADAM, "fused_mlp_gradients"),
    ],
)
def test_a_fused_step_is_a_step(one_by_one, fused_steps, optimizer, op):
    """Of all MLPs at once; the numbers that tf32 rounds are a thousandth of a gradient."""
    expected = trained(*one_by_one(training, "eager", optimizer, True))
    model, ours = training("triton", optimizer, capturable=True)
    versions = [packed.buffer._version for packed in ours.parts["mlps"].packed]
    with fusing_gradients(ours):
        actual = trained(model, ours)
    assert fused_steps == [(op, "13-32-4 10-24-1")] * 4
    # Adagrad and Adam divide a gradient by its size: of one that is near zero they make a step as long as any.
    error = 1e-4 if optimizer is Optimizer.SGD else 1e-2
    torch.testing.assert_close(actual[:2], expected[:2], rtol=0, atol=error)
    torch.testing.assert_close(actual[2]["mlps"]["state"], expected[2]["mlps"]["state"], rtol=0, atol=1e-4)
    for packed, version in zip(ours.parts["mlps"].packed, versions, strict=True):
        assert packed.buffer._version > version or optimizer is Optimizer.ADAM  # torch's fused Adam counts no change
        assert torch.equal(packed.joined(packed.parameters), packed.buffer)  # its padding is still zero
        assert all((parameter.grad is None) is (op == "fused_mlp_step") for parameter in packed.parameters)
    train_step(model, ours, *batch(6, CONFIG, 4))
    assert len(fused_steps) == 4
    assert all(parameter.grad is not None for parameter in packed.parameters)
    ours.load_state_dict(ours.state_dict())
    with fusing_gradients(ours):
        train_step(model, ours, *batch(6, CONFIG, 5))
    assert fused_steps[4:] == fused_steps[:1]


@pytest.mark.parametrize("hook", [before_a_step, after_a_step, before_every_step, after_every_step])
@pytest.mark.parametrize("optimizer", [Optimizer.SGD, Optimizer.ADAGRAD])
def test_who_is_called_at_a_step_finds_gradients(fused_steps, optimizer, hook):
    model, ours = training("triton", optimizer, capturable=True)
    handle = hook(ours)
    try:
        with fusing_gradients(ours):
            train_step(model, ours, *batch(6, CONFIG, 0))
    finally:
        handle.remove()
    assert fused_steps == [("fused_mlp_gradients", "13-32-4 10-24-1")]


def test_a_captured_step_fuses(monkeypatch, fused_steps):
    monkeypatch.setattr(torch.cuda, "Stream", lambda *_, **__: None)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(model_step, "why_not_compiled", lambda: "not here")
    model, ours = training("triton", Optimizer.SGD, capturable=True)
    make_step(model, ours, 6, DEVICE, cuda_graph=True).work(*batch(6, CONFIG, 0))
    assert fused_steps == [("fused_mlp_step", "13-32-4 10-24-1")]


def test_a_backward_that_no_step_follows_is_told_of(fused_steps):
    """Unless an error is, which ended the step."""
    model, optimizer = training("triton", Optimizer.SGD, capturable=True)

    def backward(then):
        with fusing_gradients(optimizer):
            optimizer.zero_grad()
            loss_of(model).backward()
            then()

    for error, then in ((RuntimeError, lambda: None), (ZeroDivisionError, lambda: 1 / 0)):
        with pytest.raises(error, match=r"no step took the gradients|division by zero"):
            backward(then)
        assert all(packed.operands is None for packed in optimizer.parts["mlps"].packed)


@pytest.mark.parametrize("rule", [Optimizer.SGD, Optimizer.ADAGRAD])
def test_a_fused_step_that_raised_can_be_made_again(monkeypatch, fused_steps, rule):
    results = []
    for raises in (False, True):
        model, optimizer = training("triton", rule, capturable=True)
        with fusing_gradients(optimizer):
            optimizer.zero_grad()
            loss_of(model).backward()
            if raises:
                with monkeypatch.context() as patch:
                    patch.setattr(update.STEP, "call", lambda *_: 1 / 0)
                    with pytest.raises(ZeroDivisionError):
                        optimizer.step()
            optimizer.step()
        results.append((parameters(model), optimizer.state_dict()["mlps"]["state"]))
    torch.testing.assert_close(*results, rtol=0, atol=0)


def test_an_mlp_without_a_state_does_without_in_a_step_of_others(fused_steps):
    """As of a checkpoint that was written while it was frozen."""
    model, optimizer = training("triton", Optimizer.ADAGRAD, capturable=True)
    part = optimizer.parts["mlps"]
    of_bottom, state = part.packed[0].buffer, part.optimizer.state
    del state[of_bottom]
    for context in (nullcontext, fusing_gradients):
        with context(optimizer):
            optimizer.zero_grad()
            model.over_arch(torch.randn(6, model.over_arch.linears()[0].in_features, device=DEVICE)).sum().backward()
            part.step()
    assert fused_steps == [("fused_mlp_step", "10-24-1")]
    assert of_bottom not in state


@pytest.mark.parametrize("rule", list(Optimizer))
def test_a_rate_on_the_device_is_float32_whatever_the_default(rule):
    torch.set_default_dtype(torch.float64)
    try:
        rate = _capturable_optimizer(rule, [nn.Parameter(torch.ones(3))], lr=0.1).param_groups[0]["lr"]
    finally:
        torch.set_default_dtype(torch.float32)
    assert rate.dtype == torch.float32


@pytest.mark.parametrize(("backend", "hooks"), [("triton", True), ("eager", False)])
def test_with_a_parameters_hook_or_no_kernel_it_is_the_step_that_it_was(fused_steps, backend, hooks):
    results = []
    for context in (nullcontext, fusing_gradients):
        model, ours = training(backend, Optimizer.SGD, True)
        for arch in (model.dense_arch, model.over_arch) if hooks else ():
            arch.linears()[0].weight.register_hook(lambda grad: 2 * grad)
        with context(ours):
            results.append(trained(model, ours)[:2])
    torch.testing.assert_close(*results, rtol=0, atol=0)
    assert fused_steps == []


def test_an_mlp_without_a_backward_stays_as_it_is_in_a_fused_step(fused_steps):
    model, optimizer = training("triton", Optimizer.SGD, capturable=True)
    before = parameters(model)
    with fusing_gradients(optimizer):
        optimizer.zero_grad()
        model.dense_arch(batch(6, CONFIG)[1]).sum().backward()
        optimizer.step()
    assert fused_steps == [("fused_mlp_step", "13-32-4")]
    changed = {name for name, value in parameters(model).items() if not torch.equal(value, before[name])}
    assert changed == {name for name in before if name.startswith("dense_arch")}


def twice(model, optimizer):
    (loss_of(model) + loss_of(model)).backward()


def another_backward(model, optimizer):
    for _ in range(2):
        loss_of(model).backward()


def a_gradient_beside(model, optimizer):
    loss_of(model).backward()
    model.over_arch.logit.weight.grad = torch.ones_like(model.over_arch.logit.weight)
    optimizer.step()


def moved(model, optimizer):
    loss_of(model).backward()
    model.double().float()
    optimizer.step()


def hooked_behind(model, optimizer):
    loss = loss_of(model)
    model.over_arch.logit.weight.register_hook(lambda grad: 5 * grad)
    loss.backward()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (twice, "one call of the MLP and one backward"), (another_backward, "one call of the MLP and one backward"),
        (a_gradient_beside, "there is a gradient beside them"), (moved, "was moved or frozen since it was laid out"),
        (hooked_behind, "was given a hook behind the forward"),
    ],
)
def test_what_a_fused_step_cannot_take_is_refused(fused_steps, change, message):
    """And leaves nothing to the next step."""
    model, optimizer = training("triton", Optimizer.SGD, capturable=True)
    with fusing_gradients(optimizer):
        optimizer.zero_grad()
        with pytest.raises(RuntimeError, match=message):
            change(model, optimizer)
        assert fused_steps == []
        optimizer.zero_grad()
    assert all(packed.operands is None for packed in optimizer.parts["mlps"].packed)


@pytest.mark.parametrize("capturable", [False, True])
@pytest.mark.parametrize("optimizer", list(Optimizer))
def test_an_evaluation_reads_what_a_step_wrote(one_by_one, optimizer, capturable):
    """Without one tensor an MLP, too: what kernels.fused_mlp keeps of weights is out of date then."""
    for make in (training, lambda *args: one_by_one(training, *args)):
        model, optimizers = make("eager", optimizer, capturable)
        for step in range(3):
            train_step(model, optimizers, *batch(6, CONFIG, step))
            with torch.no_grad():
                loss = loss_of(model, step)
            torch.testing.assert_close(loss, loss_of(model, step).detach())


@pytest.mark.parametrize("optimizer", list(Optimizer))
def test_each_goes_on_from_the_others_state(one_by_one, optimizer):
    expected = trained(*training("eager", optimizer), range(6))
    for begins, ends in ((training, one_by_one), (one_by_one, training)):
        make = [part if part is training else lambda *args: one_by_one(training, *args) for part in (begins, ends)]
        _, parameters, state = trained(*make[0]("eager", optimizer), range(3))
        model, ours = make[1]("eager", optimizer)
        model.load_state_dict(parameters)
        ours.load_state_dict(state)
        actual = trained(model, ours, range(3, 6))
        torch.testing.assert_close(actual[0], expected[0][3:], rtol=0, atol=max(ERROR[optimizer], 1e-6))
        torch.testing.assert_close(actual[1], expected[1], rtol=0, atol=10 * max(ERROR[optimizer], 1e-7))


def test_steps_that_take_no_kernel_train_too(monkeypatch):
    """As those of a compiled model, or of a batch that no kernel takes: their gradients are the parameters'."""
    expected = trained(*training("eager", Optimizer.ADAGRAD))
    model, optimizer = training("eager", Optimizer.ADAGRAD)
    monkeypatch.setattr(fused.PackedMLP, "takes", lambda *_: False)
    actual = trained(model, optimizer)
    torch.testing.assert_close(actual[:2], expected[:2])


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_compiled_model_trains_too(backend):
    needs(backend)
    torch._dynamo.reset()
    expected = trained(*training("eager", Optimizer.SGD))
    model, optimizer = training(backend, Optimizer.SGD)
    compiled = torch.compile(model, backend="aot_eager")
    losses = [train_step(compiled, optimizer, *batch(6, CONFIG, step)) for step in range(4)]
    torch.testing.assert_close(torch.stack(losses), expected[0])
    torch.testing.assert_close(dict(model.state_dict()), expected[1])


def test_what_is_not_laid_out():
    """A frozen layer stays frozen, a top MLP of outer has a kernel before it, a CPU has no kernel."""
    model = made(CONFIG, "eager")
    model.dense_arch.mlp[0].bias.requires_grad_(False)
    assert [packed.linears for _, packed in fused.pack(model, 8, Precision.TF32, False)] == [model.over_arch.linears()]
    model = made(replace(CONFIG, interaction=Interaction.OUTER), "eager")
    assert [packed.linears for _, packed in fused.pack(model, 8, Precision.TF32, False)] == [model.dense_arch.linears()]
    if not torch.cuda.is_available():
        assert not fused.pack(made(CONFIG), 8, Precision.TF32, False)


def test_a_model_that_is_moved_afterwards_is_refused():
    model, optimizer = training("eager", Optimizer.SGD)
    trained(model, optimizer)
    model.double().float()
    with pytest.raises(RuntimeError, match="was moved or frozen since it was laid out; make the optimizer anew"):
        trained(model, optimizer)


@pytest.mark.parametrize(
    ("precision", "dtype", "products"),
    [
        (Precision.FP32, torch.float32, "ieee"),
        (Precision.TF32, torch.float32, "tf32"),
        (Precision.BF16, torch.bfloat16, "ieee"),
    ],
)
def test_what_is_laid_out_is_asked_for_as_it_is_trained(monkeypatch, precision, dtype, products):
    """A step that becomes a CUDA graph asks as `mlp` chooses, another as PackedMLP does."""
    asked = []
    for name in ("is_packed", "is_chosen"):
        monkeypatch.setattr(fused, name, lambda *args, name=name: asked.append((name, *args)))
    model = made(CONFIG, "eager")
    device = model.over_arch.logit.weight.device
    widths = [fused.widths_of(fused.parameters(arch.linears())[0]) for arch in (model.dense_arch, model.over_arch)]
    chosen = Preset(CONFIG, replace(preset("mini").train, precision=precision, batch_size=7))
    make_optimizer(model, chosen)
    make_optimizer(model, chosen, capturable=True)
    of_steps = [("is_packed", 7, of_mlp, dtype, products, device, "eager") for of_mlp in widths]
    assert asked == of_steps + [("is_chosen", 7, of_mlp, dtype, products, True, device, "eager") for of_mlp in widths]


# ------------------------------------------------------------------------------ what is done to the model beside a step


def with_an_optimizer_of_its_own(model, optimizer):
    own = torch.optim.SGD([parameter for name, parameter in model.named_parameters() if "tables" not in name], lr=0.1)
    for step in range(3):
        own.zero_grad()
        loss_of(model, step).backward()
        own.step()


def with_two_optimizers_by_turns(model, optimizer):
    newer = another_optimizer(model)
    train_step(model, newer, *batch(6, CONFIG, 0))
    train_step(model, optimizer, *batch(6, CONFIG, 1))


def with_the_modules_zero_grad(model, optimizer):
    for step in range(3):
        optimizer.advance()
        model.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()


def stepping(change):
    """A loop of steps; between the backward and the step of each, change(model, its MLPs' parameters, its number)."""

    def loop(model, optimizer):
        mlps = [parameter for name, parameter in model.named_parameters() if "tables" not in name]
        for step in range(3):
            optimizer.advance()
            optimizer.zero_grad()
            loss_of(model, step).backward()
            if change(model, mlps, step) is not False:
                optimizer.step()

    return loop


def scale(parameters, by):
    for parameter in parameters:
        parameter.grad.mul_(by)


def replace_by_twice(model, mlps, step):
    for parameter in mlps:
        parameter.grad = 2 * parameter.grad
    loss_of(model, step + 10).backward()


def replace_memory(model, mlps, step):
    for parameter in mlps:
        parameter.grad.data = 3 * parameter.grad.data


def drop_and_compute_again(model, mlps, step):
    """The first batch's gradient is thrown away, of the tables too, which the module knows nothing of."""
    model.zero_grad()
    model.sparse_arch.tables.looked_up.clear()
    loss_of(model, step + 10).backward()


def without_zero_grad(model, optimizer):
    optimizer.zero_grad()
    for step in range(3):
        optimizer.advance()
        loss_of(model, step).backward()
        optimizer.step()


def twice_a_gradient(model, optimizer):
    optimizer.advance()
    optimizer.zero_grad()
    loss_of(model).backward()
    optimizer.step()
    optimizer.step()


LOOPS = {
    "gradients that are scaled": stepping(lambda _, mlps, __: scale(mlps, 0.5)),
    "gradients that are clipped": stepping(lambda _, mlps, __: nn.utils.clip_grad_norm_(mlps, 1e-2)),
    "values that are clipped": stepping(lambda _, mlps, __: nn.utils.clip_grad_value_(mlps, 1e-3, foreach=False)),
    "steps that are left out": stepping(lambda _, mlps, step: bool(mlps[0].grad.isfinite().all()) and step != 1),
    "gradients that are replaced": stepping(replace_by_twice),
    "gradients of other memory": stepping(replace_memory),
    "gradients that the module dropped": stepping(drop_and_compute_again),
    "gradients of all steps": without_zero_grad,
    "a gradient that is applied twice": twice_a_gradient,
}


@pytest.mark.parametrize("optimizer", list(Optimizer))
@pytest.mark.parametrize("loop", LOOPS)
def test_what_a_loop_does_to_gradients_is_done(one_by_one, loop, optimizer):
    models = [one_by_one(training, "eager", optimizer), training("eager", optimizer)]
    for pair in models:
        LOOPS[loop](*pair)
    error = {"rtol": 1e-5, "atol": max(ERROR[optimizer], 1e-6)}
    torch.testing.assert_close(parameters(models[1][0]), parameters(models[0][0]), **error)


def test_a_loss_of_some_layers_alone_is_refused():
    model, optimizer = training("eager", Optimizer.SGD)
    optimizer.zero_grad()
    model.dense_arch.mlp[0].weight.sum().backward()
    with pytest.raises(RuntimeError, match=r"the parameter of shape .* has no gradient, and others of its MLP"):
        optimizer.step()


def test_a_hook_behind_the_forward_is_refused():
    model, optimizer = training("eager", Optimizer.SGD)
    optimizer.zero_grad()
    loss = loss_of(model)
    model.over_arch.logit.weight.register_hook(lambda grad: 5 * grad)
    with pytest.raises(RuntimeError, match="a parameter was given a hook behind the forward, and nothing calls it"):
        loss.backward()


def test_a_parameter_that_is_gone_is_refused():
    model, optimizer = training("eager", Optimizer.SGD)
    model.dense_arch.mlp[0].register_parameter("bias", None)
    with pytest.raises(RuntimeError, match=r"the parameter of shape \[32\] has no gradient"):
        trained(model, optimizer)


@pytest.mark.parametrize(
    "loop", [with_an_optimizer_of_its_own, with_two_optimizers_by_turns, with_the_modules_zero_grad]
)
def test_any_other_loop_trains_it_too(one_by_one, loop):
    expected, _ = one_by_one(training, "eager", Optimizer.SGD)
    one_by_one(loop, expected, one_by_one(another_optimizer, expected))
    model, _ = training("eager", Optimizer.SGD)
    loop(model, another_optimizer(model))
    torch.testing.assert_close(parameters(model), parameters(expected))


def test_a_step_that_did_not_end_takes_nothing_from_a_later_optimizer(monkeypatch):
    """That trains each parameter; of widths in which the buffer has no padding, so that they stay in it."""
    config = replace(CONFIG, embedding_dim=16, bottom=(16, 32, 16))
    settings = Preset(config, replace(preset("mini").train, optimizer=Optimizer.SGD))

    def step(model):
        optimizer = make_optimizer(model, settings, capturable=True)
        assert not isinstance(optimizer.parts["mlps"], PackedOptimizer)
        train_step(model, optimizer, *batch(6, config, 0))
        return parameters(model)

    model = made(config, "eager")
    make_optimizer(model, settings).zero_grad()
    monkeypatch.setattr(fused, "is_chosen", lambda *_: False)  # as of a graph in full float32
    torch.testing.assert_close(step(model), step(made(config, "eager")))


class Twice(nn.Module):
    def forward(self, x):
        return 2 * x


CHANGES = {
    "pruned": lambda linear: prune.random_unstructured(linear, "weight", amount=0.3),
    "parametrized": lambda linear: parametrize.register_parametrization(linear, "weight", Twice()),
    "with a hook of its gradient": lambda linear: linear.weight.register_hook(lambda grad: grad.clamp(-1e-3, 1e-3)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_layer_that_is_changed_afterwards_trains_as_it_did(one_by_one, change):
    def steps(model, optimizer):
        torch.manual_seed(0)
        train_step(model, optimizer, *batch(6, CONFIG, 0))
        CHANGES[change](model.dense_arch.mlp[0])
        for step in (1, 2):
            train_step(model, optimizer, *batch(6, CONFIG, step))
        return parameters(model)

    expected = steps(*one_by_one(training, "eager", Optimizer.SGD))
    torch.testing.assert_close(steps(*training("eager", Optimizer.SGD)), expected)


def test_a_step_between_a_forward_and_its_backward_is_refused():
    model, optimizer = training("eager", Optimizer.SGD)
    loss = loss_of(model)  # before a zero_grad: by the parameters, whose change must count
    train_step(model, optimizer, *batch(6, CONFIG, 1))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_parameter_without_a_state_begins_with_zeros(one_by_one):
    model, optimizer = one_by_one(training, "eager", Optimizer.ADAM)
    model.dense_arch.mlp[0].bias.requires_grad_(False)
    *_, state = trained(model, optimizer)
    state = copy.deepcopy(state)
    _, ours = training("eager", Optimizer.ADAM)
    ours.load_state_dict(state)
    states = ours.state_dict()["mlps"]["state"]
    assert len(states) == len(state["mlps"]["state"]) + 1
    for position, values in state["mlps"]["state"].items():
        torch.testing.assert_close(states[position], values, rtol=0, atol=0)


def test_a_state_of_another_number_of_parameters_is_refused():
    _, optimizer = training("eager", Optimizer.ADAM)
    state = optimizer.state_dict()
    state["mlps"]["param_groups"][0]["params"].pop()
    with pytest.raises(ValueError, match="the state is of 7 parameters, and 8 are trained"):
        optimizer.load_state_dict(state)


def test_what_is_not_laid_out_again_is_dense():
    """PyTorch's fused optimizers read a parameter as if it had no strides."""

    def step(model):
        model.dense_arch.mlp[0].bias.requires_grad_(False)
        train_step(model, another_optimizer(model), *batch(6, CONFIG, 0))
        return parameters(model)

    laid_out, _ = training("eager", Optimizer.SGD)
    torch.testing.assert_close(step(laid_out), step(made(CONFIG, "eager")))
