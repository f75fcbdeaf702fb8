"""Training by one tensor an MLP: the steps, states and checkpoints of training each parameter."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from test_fused_model import BACKENDS, batch, made, needs, shape

from model import Interaction, Preset, fused, preset
from model.config import Kernels, Optimizer
from model.optimizers import PackedOptimizer, make_optimizer
from model.step import train_step

CONFIG = replace(shape(), bottom=(13, 32, 4), top=(24, 1), kernels=Kernels.FUSED)
# PyTorch's fused Adam rounds otherwise at the end of a tensor on a CPU, where it goes vector by vector.
ERROR = {Optimizer.SGD: 0, Optimizer.ADAGRAD: 0, Optimizer.ADAM: 1e-6}


def training(backend, optimizer, capturable=False):
    model = made(CONFIG, backend)
    settings = replace(preset("mini").train, optimizer=optimizer, weight_decay=0.1, learning_rate=0.1, warmup_steps=2)
    return model, make_optimizer(model, Preset(CONFIG, settings), capturable)


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
    found = trained(model, ours)
    torch.testing.assert_close(found[:2], expected[:2], rtol=0, atol=ERROR[optimizer])
    states = [state["mlps"] for *_, state in (found, expected)]
    torch.testing.assert_close(states[0]["state"], states[1]["state"], rtol=0, atol=ERROR[optimizer])
    (group,), (theirs,) = (state["param_groups"] for state in states)
    assert group.keys() == theirs.keys()
    assert group["params"] == theirs["params"]
    for packed in ours.parts["mlps"].packed:
        assert torch.equal(packed.joined(packed.parameters), packed.buffer)  # its padding is still zero


@pytest.mark.parametrize("optimizer", list(Optimizer))
def test_each_goes_on_from_the_others_state(one_by_one, optimizer):
    expected = trained(*training("eager", optimizer), range(6))
    for begins, ends in ((training, one_by_one), (one_by_one, training)):
        make = [part if part is training else lambda *given: one_by_one(training, *given) for part in (begins, ends)]
        _, parameters, state = trained(*make[0]("eager", optimizer), range(3))
        model, ours = make[1]("eager", optimizer)
        model.load_state_dict(parameters)
        ours.load_state_dict(state)
        found = trained(model, ours, range(3, 6))
        torch.testing.assert_close(found[0], expected[0][3:], rtol=0, atol=max(ERROR[optimizer], 1e-6))
        torch.testing.assert_close(found[1], expected[1], rtol=0, atol=10 * max(ERROR[optimizer], 1e-7))


def test_steps_that_take_no_kernel_train_too(monkeypatch):
    """As those of a compiled model, or of a batch that no kernel takes: their gradients are the parameters'."""
    expected = trained(*training("eager", Optimizer.ADAGRAD))
    model, optimizer = training("eager", Optimizer.ADAGRAD)
    monkeypatch.setattr(fused.PackedMLP, "takes", lambda *_: False)
    found = trained(model, optimizer)
    torch.testing.assert_close(found[:2], expected[:2])


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
    assert [packed.linears for packed in fused.pack(model, 8, "tf32")] == [model.over_arch.linears()]
    model = made(replace(CONFIG, interaction=Interaction.OUTER), "eager")
    assert [packed.linears for packed in fused.pack(model, 8, "tf32")] == [model.dense_arch.linears()]
    if not torch.cuda.is_available():
        assert not fused.pack(made(CONFIG), 8, "tf32")


def test_a_model_that_is_moved_afterwards_is_refused():
    model, optimizer = training("eager", Optimizer.SGD)
    trained(model, optimizer)
    model.double().float()
    with pytest.raises(RuntimeError, match="was moved or replaced since it was laid out; make the optimizer anew"):
        trained(model, optimizer)
