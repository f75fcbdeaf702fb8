"""LoRA against its formula in float64, fused against eager, and what must stay frozen."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

from kernels.check.contract import DEVICE, every_backend, kernel_backend, running
from model import DLRM, PRESETS
from model.lora import (
    MLP,
    LinearWithLoRA,
    LoRALayer,
    apply_lora,
    load_lora_state_dict,
    lora_state_dict,
    merge,
    unmerge,
)


@pytest.fixture
def backend(request):
    with running(request.param) as name:
        yield name


# Spelled out here, so that a wrong entry in the table of activations is seen.
ACTIVATIONS = {
    "relu": lambda z: z.clamp(min=0),
    "sigmoid": lambda z: 1 / (1 + (-z).exp()),
    "tanh": lambda z: (z.exp() - (-z).exp()) / (z.exp() + (-z).exp()),
    "gelu": lambda z: z * (1 + torch.erf(z / 2**0.5)) / 2,
    "silu": lambda z: z / (1 + (-z).exp()),
    "identity": lambda z: z,
}
TOLERANCE = {torch.float32: {}, torch.bfloat16: {"rtol": 3e-2, "atol": 3e-2}, torch.float64: {}}


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def trained(module: nn.Module) -> nn.Module:
    """The module with B ≠ 0 everywhere, on the device."""
    for layer in module.modules():
        if isinstance(layer, LoRALayer):
            layer.reset_parameters(b_std=0.5)
    return module.to(DEVICE)


def mlp(**keywords) -> MLP:
    return trained(MLP((6, 11, 8, 3), 2, 3.0, **keywords))


def formula(layer: LinearWithLoRA, x: torch.Tensor) -> torch.Tensor:
    """act(x Wᵀ + b + alpha / rank · x A B) with the weight's change written out: one matrix, in float64."""
    weight = layer.linear.weight.double() + layer.lora.alpha / layer.lora.rank * (
        layer.lora.A.double() @ layer.lora.B.double()
    ).T
    bias = 0 if layer.linear.bias is None else layer.linear.bias.double()
    return ACTIVATIONS[layer.activation](x @ weight.T + bias)


def run(module: nn.Module, x: torch.Tensor, grad: torch.Tensor, forward=None) -> list[torch.Tensor]:
    """The output, the gradient of x, and those of the parameters that require one."""
    x = x.detach().requires_grad_()
    out = (forward or module)(x)
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    return [out, *torch.autograd.grad(out, [x, *parameters], grad.to(out.dtype))]


def close(actual: list[torch.Tensor], expected: list[torch.Tensor], **tolerance) -> None:
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b.to(a.dtype), **tolerance)


# --------------------------------------------------------------------------------------------------------------- values


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_eager_is_the_formula(dtype, activation, bias):
    layer = trained(LinearWithLoRA(nn.Linear(6, 8, bias, dtype=dtype), 2, 3.0, activation=activation))
    x, grad = torch.randn(5, 6, device=DEVICE, dtype=dtype), torch.randn(5, 8, device=DEVICE)
    want = run(layer, x.double(), grad, lambda x: formula(layer, x))
    close(run(layer, x, grad), want, **TOLERANCE[dtype])


@every_backend
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_fused_is_the_formula(backend, dtype, activation, bias):
    linear = nn.Linear(6, 8, bias, dtype=dtype)
    layer = trained(LinearWithLoRA(linear, 2, 3.0, activation=activation, fused=True, backend=backend))
    x, grad = torch.randn(5, 6, device=DEVICE, dtype=dtype), torch.randn(5, 8, device=DEVICE)
    want = run(layer, x.double(), grad, lambda x: formula(layer, x))
    close(run(layer, x, grad), want, **TOLERANCE[dtype])


@every_backend
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_mlp_fused_is_eager(backend, activation):
    model = mlp(activation=activation, dtype=torch.float64)
    x, grad = torch.randn(4, 6, device=DEVICE, dtype=torch.float64), torch.randn(4, 3, device=DEVICE)
    fused = copy.deepcopy(model)
    for layer in fused:
        layer.fused, layer.backend = True, backend
    close(run(fused, x, grad), run(model, x, grad))
    assert [layer.activation for layer in model] == [activation, activation, "identity"]


@every_backend
@pytest.mark.parametrize("shape", [(6,), (0, 6), (1, 6), (2, 3, 6)], ids=str)
def test_any_shape(backend, shape):
    model = mlp(fused=True, backend=backend)
    x = torch.randn(shape, device=DEVICE)
    out = model(x)
    assert out.shape == (*shape[:-1], 3)
    for layer in model:
        x = formula(layer, x.double())
    torch.testing.assert_close(out, x.float())


@every_backend
def test_the_fused_forward_calls_the_kernel(backend, monkeypatch):
    from kernels import add_mul_activation

    calls = []

    def counted(x, bias, y, *options, **keywords):
        calls.append((tuple(x.shape), *options, keywords["backend"]))
        return add_mul_activation(x, bias, y, *options, **keywords)

    monkeypatch.setattr("model.lora.add_mul_activation", counted)
    mlp(fused=True, backend=backend)(torch.randn(4, 6, device=DEVICE))
    shapes, options = ((4, 11), (4, 8), (4, 3)), ("relu", "relu", "identity")
    assert calls == [(shape, 1.5, activation, backend) for shape, activation in zip(shapes, options, strict=True)]
    mlp(fused=False)(torch.randn(4, 6, device=DEVICE))
    assert len(calls) == 3


def test_starts_from_the_model_as_it_was():
    linear = nn.Linear(64, 8).to(DEVICE)
    before = copy.deepcopy(linear)
    layer = LinearWithLoRA(linear, 4, 8.0)
    x = torch.randn(5, 64, device=DEVICE)
    assert torch.equal(layer(x), before(x))
    assert not layer.lora.B.any()
    a = layer.lora.A
    assert a.abs().max() <= 1 / 8  # 1 / sqrt(64)
    assert abs(a.std().item() * 8 - 3**-0.5) < 0.1
    assert layer.lora.B.device == linear.weight.device
    assert layer.training
    assert not LinearWithLoRA(before.eval(), 4, 8.0).training
    layer.lora.reset_parameters(b_std=2.0)
    assert 1 < layer.lora.B.std() < 3
    torch.testing.assert_close(layer.lora(x), 2.0 * (x @ layer.lora.A @ layer.lora.B))


@every_backend
def test_autocast(backend):
    model = mlp(fused=True, backend=backend)
    plain = copy.deepcopy(model)
    for layer in plain:
        layer.fused = False
    x, grad = torch.randn(4, 6, device=DEVICE), torch.randn(4, 3, device=DEVICE)
    with torch.autocast(DEVICE.type, torch.bfloat16):
        fused, eager = run(model, x, grad), run(plain, x, grad)
    assert fused[0].dtype == eager[0].dtype == torch.bfloat16
    assert all(gradient.dtype == torch.float32 for gradient in fused[1:])
    close(fused, eager, **TOLERANCE[torch.bfloat16])


# --------------------------------------------------------------------------------------------------------------- frozen


@every_backend
@pytest.mark.parametrize("fused", [False, True])
def test_only_a_and_b_get_gradients_and_change(backend, fused):
    model = mlp(fused=fused, backend=backend)
    before = copy.deepcopy(model.state_dict())
    # Weight decay would move a frozen weight, if the optimizer touched it.
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
    model(torch.randn(4, 6, device=DEVICE)).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert (parameter.grad is not None) == parameter.requires_grad == (".lora." in name)
    optimizer.step()
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == set(lora_state_dict(model)) == {f"{i}.lora.{key}" for i in range(3) for key in "AB"}


@kernel_backend
def test_no_gradient_of_frozen_parameters_is_computed(backend):
    """Neither the sum over the rows, a bias gradient, nor a GEMM for the weight's."""
    model = mlp(fused=True, backend=backend)
    seen = []

    class Record(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if "add_mul_activation_backward" in str(function):
                seen.append(tuple(args[-1]))  # whether the gradients of x, bias and y are needed
            return function(*args, **(kwargs or {}))

    with Record():
        model(torch.randn(4, 6, device=DEVICE)).sum().backward()
    # The first layer's input needs no gradient, so x Wᵀ of it needs none.
    assert seen == [(True, False, True)] * 2 + [(False, False, True)]


def test_training_learns_what_the_frozen_weights_cannot():
    model = MLP((6, 16, 3), 2, 2.0, fused=True).to(DEVICE)
    x, target = torch.randn(64, 6, device=DEVICE), torch.randn(64, 3, device=DEVICE)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.05)
    losses = []
    for _ in range(60):
        loss = (model(x) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]


# ---------------------------------------------------------------------------------------------------------------- merge


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("fused", [False, True])
def test_merge_and_unmerge(fused, dtype):
    model = mlp(fused=fused, dtype=dtype).eval()
    before = copy.deepcopy(model.state_dict())
    x = torch.randn(4, 6, device=DEVICE, dtype=dtype)
    out = model(x)
    merge(model)
    assert all(layer.merged for layer in model)
    torch.testing.assert_close(model(x), out, **TOLERANCE[dtype])
    for i, layer in enumerate(model):
        a, b = (before[f"{i}.lora.{key}"].double() for key in "AB")
        exact = before[f"{i}.linear.weight"].double() + 1.5 * (a @ b).T
        torch.testing.assert_close(layer.linear.weight, exact.to(dtype), rtol=torch.finfo(dtype).eps, atol=0)
    unmerge(model)
    assert torch.equal(model(x), out)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_merged_layer_is_a_linear_layer():
    layer = trained(LinearWithLoRA(nn.Linear(6, 8), 2, 3.0, activation="relu", fused=True)).eval()
    layer.merge()
    x = torch.randn(4, 6, device=DEVICE)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        layer(x)
    top = [event.name for event in profile.events() if event.cpu_parent is None and event.name.startswith("aten::")]
    assert top == ["aten::linear", "aten::relu"]


def test_a_merged_layer_refuses_what_would_go_wrong():
    model = mlp()
    state = model.state_dict()
    state = {name: value.clone() for name, value in state.items()}
    x = torch.randn(4, 6, device=DEVICE)
    with pytest.raises(RuntimeError, match="the layer is not merged"):
        model[0].unmerge()
    model[1].merge()
    merged = model[1].linear.weight.clone()
    with pytest.raises(RuntimeError, match="the layer is merged already"):
        model[1].merge()
    with pytest.raises(RuntimeError, match=r"merged already: 1$"):
        merge(model)
    with pytest.raises(RuntimeError, match=r"not merged: 0, 2$"):
        unmerge(model)
    with pytest.raises(RuntimeError, match="merged: A and B get no gradient"):
        model(x)
    with pytest.raises(RuntimeError, match=r"1 is merged: unmerge\(\) before loading"):
        model.load_state_dict(state)
    with pytest.raises(RuntimeError, match="is merged"):
        load_lora_state_dict(model, lora_state_dict(model))
    assert torch.equal(model[1].linear.weight, merged)
    assert [layer.merged for layer in model] == [False, True, False]
    with torch.no_grad():
        model(x)
    model.eval()(x)


def test_a_shared_weight_cannot_hold_two_changes():
    base = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6))
    base[4].weight = base[0].weight
    apply_lora(base, rank=2, alpha=4)
    before = [layer.linear.weight.clone() for layer in (base[0], base[2])]
    with pytest.raises(RuntimeError, match=r"they share one weight, and cannot be merged: 0, 4$"):
        merge(base)
    assert all(torch.equal(a, layer.linear.weight) for a, layer in zip(before, (base[0], base[2]), strict=True))
    assert not any(base[i].merged for i in (0, 2, 4))


def test_a_merged_layer_can_be_copied_and_cast():
    model = mlp().eval()
    frozen = [layer.linear.weight.clone() for layer in model]
    merge(model)
    other = copy.deepcopy(model).bfloat16()
    unmerge(other)
    assert all(torch.equal(layer.linear.weight, w.bfloat16()) for layer, w in zip(other, frozen, strict=True))
    assert all(layer.merged for layer in model)


# ----------------------------------------------------------------------------------------------------------- apply_lora


def dlrm() -> DLRM:
    config = replace(PRESETS["small"].model, cardinalities=(5,) * 26, hash="modulus")
    return DLRM(config).to(DEVICE)


@every_backend
@pytest.mark.parametrize("fused", [False, True])
def test_apply_to_dlrm(backend, fused):
    model = dlrm()
    dense, sparse = torch.randn(4, 13, device=DEVICE), torch.randint(-1, 99, (4, 26), device=DEVICE)
    out = model(dense, sparse)
    linears = [name for name, layer in model.named_modules() if isinstance(layer, nn.Linear) and ".mlp." in name]
    parameters = sum(parameter.numel() for parameter in model.parameters())
    assert apply_lora(model, 2, 4.0, "*.mlp.*", fused=fused, backend=backend) == linears
    torch.testing.assert_close(model(dense, sparse), out)  # B is zero
    trainable = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert trainable == set(lora_state_dict(model))
    assert sum(p.numel() for p in model.parameters() if not p.requires_grad) == parameters

    trained(model)
    plain = copy.deepcopy(model)
    for layer in plain.modules():
        if isinstance(layer, LinearWithLoRA):
            layer.fused = False
    close(run(model, dense, torch.ones(4, device=DEVICE), lambda dense: model(dense, sparse)),
          run(plain, dense, torch.ones(4, device=DEVICE), lambda dense: plain(dense, sparse)))
    assert not torch.allclose(model(dense, sparse), out)
    assert any(isinstance(layer, nn.ReLU) for layer in model.modules()) != fused


@pytest.mark.parametrize(
    ("module", "activation"),
    [
        (nn.ReLU(), "relu"),
        (nn.Sigmoid(), "sigmoid"),
        (nn.Tanh(), "tanh"),
        (nn.GELU(), "gelu"),
        (nn.SiLU(), "silu"),
        (nn.GELU(approximate="tanh"), "identity"),
        (nn.LeakyReLU(), "identity"),
    ],
    ids=str,
)
def test_fused_takes_the_activation_that_follows(module, activation):
    model = nn.Sequential(nn.Linear(6, 8), module, nn.Linear(8, 3))
    x = torch.randn(4, 6)
    out = model(x)
    assert apply_lora(model, 2, 3.0, fused=True) == ["0", "2"]
    torch.testing.assert_close(model(x), out)
    assert (model[0].activation, model[2].activation) == (activation, "identity")
    assert isinstance(model[1], type(module) if activation == "identity" else nn.Identity)


def test_fused_takes_no_activation_from_elsewhere():
    class Residual(nn.Sequential):
        def forward(self, x):
            return self[1](x + self[0](x))

    shared = nn.Linear(6, 6)
    x = torch.randn(4, 6)
    for model in (Residual(nn.Linear(6, 6), nn.ReLU()), nn.Sequential(shared, nn.ReLU(), shared)):
        out = model(x)
        apply_lora(model, 2, 3.0, fused=True)
        torch.testing.assert_close(model(x), out)
        assert isinstance(model[1], nn.ReLU)
    assert model[0] is model[2]  # a layer used twice stays one layer, with one A and B


def test_targets():
    model = dlrm()
    names = [name for name, layer in model.named_modules() if isinstance(layer, nn.Linear)]
    assert apply_lora(model, 2, 4.0, "over_arch.mlp.0") == ["over_arch.mlp.0"]
    assert apply_lora(model, 2, 4.0, ["dense_arch.*"]) == [name for name in names if name.startswith("dense_arch")]
    trainable = {name.rsplit(".", 2)[0] for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert trainable == {"over_arch.mlp.0", *(name for name in names if name.startswith("dense_arch"))}

    weights = {id(parameter) for parameter in model.parameters() if parameter.requires_grad}
    for targets, message in (
        (["over_arch.logit", "attention"], "attention names no nn.Linear; DLRM has below it: .*over_arch.logit"),
        ("over_arch.mlp.0*", "names no nn.Linear"),  # has LoRA already
        ([], "expected a name, got none"),
    ):
        with pytest.raises(ValueError, match=message):
            apply_lora(model, 2, 4.0, targets)
    with pytest.raises(ValueError, match="rank: expected a whole number, 1 or more, got 0"):
        apply_lora(model, 0, 4.0, "over_arch.logit")
    assert isinstance(model.over_arch.logit, nn.Linear)
    assert weights == {id(parameter) for parameter in model.parameters() if parameter.requires_grad}
    for other in (nn.Linear(3, 3), nn.MultiheadAttention(4, 2)):  # whose subclass of nn.Linear has a use of its own
        with pytest.raises(ValueError, match="has below it: none"):
            apply_lora(other, 2, 4.0)


def test_wrong_arguments():
    for rank in (0, -1, 2.0):
        with pytest.raises(ValueError, match="rank: expected a whole number"):
            LoRALayer(4, 4, rank, 1.0)
    with pytest.raises(ValueError, match="alpha: expected a finite number, got nan"):
        LoRALayer(4, 4, 2, float("nan"))
    with pytest.raises(ValueError, match=r"activation: expected one of relu, .*, got 'swish'"):
        MLP((4, 4, 4), 2, 1.0, activation="swish")
    with pytest.raises(ValueError, match=r"widths: expected two or more, got \[4\]"):
        MLP((4,), 2, 1.0)
    with pytest.raises(ValueError, match="backend must be one of auto"):
        mlp(fused=True, backend="fast")(torch.randn(4, 6, device=DEVICE))


# ----------------------------------------------------------------------------------------------------------- state_dict


def test_state_dict_of_lora_alone(tmp_path):
    model, other = mlp(), mlp()
    load = {name: value.clone() for name, value in model.state_dict().items() if ".lora." not in name}
    other.load_state_dict(load, strict=False)
    torch.save(lora_state_dict(model), tmp_path / "lora.pt")
    x = torch.randn(4, 6, device=DEVICE)
    assert not torch.equal(other(x), model(x))
    load_lora_state_dict(other, torch.load(tmp_path / "lora.pt", weights_only=True))
    assert torch.equal(other(x), model(x))
    assert lora_state_dict(model)["0.lora.A"].shape == (6, 2)
    without_bias = LinearWithLoRA(nn.Linear(3, 3, bias=False), 2, 1.0)
    assert set(without_bias.state_dict()) == {"linear.weight", "lora.A", "lora.B"}
    other.load_state_dict(model.state_dict())

    state = lora_state_dict(model)
    del state["1.lora.B"]
    with pytest.raises(ValueError, match=r"missing: \['1.lora.B'\], unexpected: \['2.A'\]"):
        load_lora_state_dict(other, state | {"2.A": state["2.lora.A"]})
    with pytest.raises(RuntimeError, match="size mismatch"):
        load_lora_state_dict(other, lora_state_dict(trained(MLP((6, 11, 8, 3), 3, 3.0))))


# -------------------------------------------------------------------------------------------------- compile and export


@every_backend
@pytest.mark.parametrize("fused", [False, True])
def test_compiles_into_one_graph(backend, fused):
    model = mlp(fused=fused, backend=backend)
    x, grad = torch.randn(4, 6, device=DEVICE), torch.randn(4, 3, device=DEVICE)
    compiled = torch.compile(model, fullgraph=True, backend="inductor" if DEVICE.type == "cuda" else "aot_eager")
    close(run(model, x, grad, compiled), run(model, x, grad))
    merge(model.eval())
    with torch.no_grad():
        close([compiled(x)], [model(x)])


@every_backend
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("merged", [False, True])
def test_exports(backend, fused, merged):
    model = mlp(fused=fused, backend=backend).eval()
    if merged:
        merge(model)
    batch = torch.export.Dim("batch")
    program = torch.export.export(model, (torch.randn(4, 6, device=DEVICE),), dynamic_shapes=({0: batch},))
    kernels = [node.target for node in program.graph.nodes if "fused_kernels" in str(node.target)]
    assert len(kernels) == (3 if fused and not merged and backend != "eager" else 0)
    x = torch.randn(9, 6, device=DEVICE)
    torch.testing.assert_close(program.module()(x), model(x))
