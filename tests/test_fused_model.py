"""A DLRM with fused kernels beside one without: losses, gradients, state; what is in memory; compiled and exported.

backend "auto" is what a user gets, on a CPU PyTorch's operations; "eager" the kernels' references as the model calls
them; "triton" the kernels, interpreted where there is no GPU.
"""

from __future__ import annotations

import io
import shutil
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import kernels
from kernels import runtime
from kernels.dispatch import allocation
from kernels.dispatch.core import on_host
from kernels.ops.fused_mlp import choice, module
from model import DLRM, Interaction, Preset, fused, preset
from model.bench.models import shape_of
from model.config import Kernels, Optimizer
from model.describe import summarize
from model.fused import Fused
from model.lora import apply_lora
from model.optimizers import make_optimizer
from model.step import train_step
from model.tables import BatchedTables

pytestmark = pytest.mark.usefixtures("one_thread")
DEVICE = runtime.device()
BACKENDS = ("eager", "triton")
INTERACTIONS = list(Interaction)


@pytest.fixture(autouse=True)
def compiled_anew():
    yield
    torch._dynamo.reset()


def needs(backend):
    if backend == "triton" and (why := runtime.why_not("triton", DEVICE.type)):
        pytest.skip(why)


def shape(interaction=Interaction.DOT, **changes):
    return replace(preset("mini").model, interaction=interaction, **changes)


def made(config, backend="auto", seed=0):
    """A model of the config on the device."""
    torch.manual_seed(seed)
    model = DLRM(config).to(DEVICE)
    for part in model.modules():
        if isinstance(part, Fused):
            part.backend = backend
    return model


def pair(config, backend):
    """Eager and fused, of the same weights."""
    return made(config), made(replace(config, kernels=Kernels.FUSED), backend)


def batch(rows, config, seed=1):
    torch.manual_seed(seed)
    sparse = torch.randint(0, 40, (rows, len(config.cardinalities)))
    labels, dense = (sparse[:, 0] % 2).float(), torch.randn(rows, config.bottom[0])
    return [tensor.to(DEVICE) for tensor in (labels, dense, sparse)]


def loss_and_gradients(model, labels, dense, sparse):
    model.zero_grad()
    loss = F.binary_cross_entropy_with_logits(model(dense, sparse), labels)
    loss.backward()
    if isinstance(model.dense_arch, Fused):
        model.sparse_arch.tables.looked_up.clear()  # as an update leaves it
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None and not p.grad.is_sparse}
    return loss.detach(), gradients


# Float32 sums of another order: of a mean over rows, in layers of some hundred numbers.
CLOSE = {"rtol": 1e-4, "atol": 1e-6}


@pytest.mark.parametrize("backend", ["auto", *BACKENDS])
@pytest.mark.parametrize("interaction", INTERACTIONS)
@pytest.mark.parametrize("rows", [1, 33])
def test_loss_and_gradients_are_eagers(backend, interaction, rows):
    needs(backend)
    config = shape(interaction)
    theirs, ours = pair(config, backend)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    inputs = batch(rows, config)
    (want, gradients), (loss, our_gradients) = (loss_and_gradients(model, *inputs) for model in (theirs, ours))
    torch.testing.assert_close(loss, want, **CLOSE)
    assert set(our_gradients) == {name for name in gradients if "tables" not in name}
    for name, gradient in our_gradients.items():
        torch.testing.assert_close(gradient, gradients[name], **CLOSE, msg=lambda m, name=name: f"{name}: {m}")
        assert gradient.abs().sum() > 0, name
    _, *features = inputs
    torch.testing.assert_close(ours.eval().predict(*features), theirs.eval().predict(*features), **CLOSE)
    assert ours(*(tensor[:0] for tensor in features)).shape == (0,)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("interaction", [Interaction.DOT, Interaction.OUTER])
@pytest.mark.parametrize("top", [(1,), (5, 1), (9, 6, 1)])
def test_top_mlps_of_any_depth(backend, interaction, top):
    needs(backend)
    config = shape(interaction, top=top)
    theirs, ours = pair(config, backend)
    _, *features = batch(5, config)
    torch.testing.assert_close(ours.predict(*features), theirs.predict(*features), **CLOSE)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("interaction", [Interaction.DOT, Interaction.OUTER])
def test_training_is_eagers_and_their_checkpoints_are_interchangeable(backend, interaction):
    """Some steps of each; then each goes on from the other's state."""
    needs(backend)
    first, last = (2, 3) if backend == "triton" else (10, 15)  # interpreted
    config = shape(interaction)
    models = pair(config, backend)
    settings = replace(preset("mini").train, optimizer=Optimizer.ADAGRAD)
    optimizers = [make_optimizer(model, Preset(model.config, settings)) for model in models]

    def losses(steps):
        both = list(zip(models, optimizers, strict=True))
        return torch.tensor([[train_step(*one, *batch(16, config, step)) for one in both] for step in steps])

    curves = losses(range(first))
    torch.testing.assert_close(curves[:, 1], curves[:, 0], rtol=0, atol=1e-5)
    states = [torch.load(_bytes([model.state_dict(), optimizer.state_dict()]), weights_only=True)
              for model, optimizer in zip(models, optimizers, strict=True)]
    for model, optimizer, (parameters, state) in zip(models, optimizers, states[::-1], strict=True):
        model.load_state_dict(parameters)
        optimizer.load_state_dict(state)
    curves = losses(range(first, last))
    torch.testing.assert_close(curves[:, 1], curves[:, 0], rtol=0, atol=1e-5)


def _bytes(value):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return file


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("interaction", [Interaction.DOT, Interaction.OUTER])
def test_autocast_reaches_the_kernels(backend, interaction):
    needs(backend)
    config = shape(interaction)
    theirs, ours = pair(config, backend)
    inputs = batch(9, config)
    with torch.autocast(DEVICE.type, torch.bfloat16):
        _, *features = inputs
        assert ours(*features).dtype == theirs(*features).dtype == torch.bfloat16
        (want, _), (loss, gradients) = (loss_and_gradients(model, *inputs) for model in (theirs, ours))
    torch.testing.assert_close(loss, want, rtol=2e-2, atol=2e-2)
    assert all(gradient.dtype == torch.float32 for gradient in gradients.values())


def test_precision_is_pytorchs_own_switch(monkeypatch):
    """The switch is for float32 on a GPU; here only the ops' arguments are looked at, and nothing runs."""
    asked = []
    for place, name in ((module, "fused_mlp"), (kernels, "outer_linear")):
        eager = getattr(kernels, name)

        def note(*arguments, eager=eager, **options):
            asked.append(arguments[-1])
            return eager(*arguments[:-1], "ieee", backend="eager")

        monkeypatch.setattr(place, name, note)
    monkeypatch.setattr(module, "_has_tf32", lambda x: True)
    config = shape(Interaction.OUTER)
    _, ours = pair(config, "eager")
    _, *features = batch(3, config)
    before = torch.get_float32_matmul_precision()
    try:
        for setting, expected in (("highest", "ieee"), ("high", "tf32"), ("medium", "tf32")):
            torch.set_float32_matmul_precision(setting)
            ours.predict(*features)
            assert asked == [expected] * 3
            asked.clear()
    finally:
        torch.set_float32_matmul_precision(before)


# The whole model in one kernel


class Called(TorchDispatchMode):
    """ops: of this package, that were called."""

    def __init__(self):
        super().__init__()
        self.ops = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.ops += [str(func)] if "fused_kernels" in str(func) else []
        return func(*args, **(kwargs or {}))


def ops_of(function) -> set[str]:
    with Called() as called:
        function()
    return {op.split(".")[1] for op in called.ops} - {"_allocate"}


@pytest.mark.skipif(shutil.which("g++") is None or DEVICE.type == "cuda", reason="g++ is missing, or there is a GPU")
@pytest.mark.parametrize("rows", [0, 1, 40])
def test_without_gradients_the_model_is_one_kernel(rows):
    theirs, ours = pair(shape(), "cuda")
    _, *features = batch(rows, shape())
    with on_host():
        torch.testing.assert_close(ours.predict(*features), theirs.predict(*features), **CLOSE)
        assert ops_of(lambda: ours.predict(*features)) == {"dlrm_forward"}


@pytest.mark.parametrize(
    "changed",
    ["nothing", "plain tables", "gradients", "autocast", "hook", "lora", "outer", "float64", "wide", "out of range"],
)
def test_what_one_kernel_does_not_compute_goes_in_parts(changed):
    interaction = Interaction.OUTER if changed == "outer" else Interaction.DOT
    config = shape(interaction, **{"bottom": (13, 4096, 4)} if changed == "wide" else {})
    _, model = pair(config, "cuda")
    _, *features = batch(3, config)
    if changed == "hook":
        model.over_arch.mlp[0].register_forward_hook(lambda *_: None)
    if changed == "lora":
        apply_lora(model, rank=2, alpha=1.0)
    if changed == "float64":
        model.double()
        features[0] = features[0].double()
    if changed == "out of range":
        model.sparse_arch.tables.out_of_range = "zero"
    if changed == "plain tables":
        model.sparse_arch.tables = BatchedTables(model.sparse_arch.tables.rows, config.embedding_dim).to(DEVICE)
    context = torch.autocast(DEVICE.type, torch.bfloat16) if changed == "autocast" else nullcontext()
    with torch.set_grad_enabled(changed == "gradients"), context:
        assert fused.is_whole(model, features[0]) is (changed in ("nothing", "plain tables"))
        assert not fused.is_whole(pair(config, "triton")[1], features[0])
        assert not fused.is_whole(pair(config, "triton")[0], features[0])


class OnAGPU(torch.Tensor):
    """Which says that it is."""

    is_cuda = True
    __torch_function__ = torch._C._disabled_torch_function_impl


@pytest.mark.parametrize("rows", [200, 300, 2048, 65536])
@pytest.mark.parametrize("name", ["small", "mlperf"])
def test_a_capture_goes_the_way_of_the_call_before_it(monkeypatch, name, rows):
    """Which loads the kernels: in a capture none can be."""
    model = made(shape_of(name, 40), "cuda").bfloat16()
    dense = torch.zeros(rows, 13, device=DEVICE, dtype=torch.bfloat16).as_subclass(OnAGPU)
    ways = set()
    for captures in (False, True):
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda captures=captures: captures)
        with torch.no_grad():
            ways.add(fused.is_whole(model, dense))
    assert len(ways) == 1
    assert ways == {rows == 200 or (name, rows) == ("mlperf", 2048)} or DEVICE.type == "cuda"


def test_no_tensor_is_compared_to_find_out(monkeypatch):
    """`None in biases` compares each of them, which takes the host longer than all the rest."""
    model = pair(shape(), "cuda")[1]
    _, *features = batch(3, shape())
    monkeypatch.setattr(torch.Tensor, "__eq__", lambda self, other: pytest.fail("a tensor was compared"))
    with torch.no_grad():
        assert fused.is_whole(model, features[0])


@pytest.mark.skipif(shutil.which("g++") is None or DEVICE.type == "cuda", reason="g++ is missing, or there is a GPU")
@pytest.mark.parametrize("part", ["dense_arch", "sparse_arch", "interaction_arch", "over_arch"])
def test_a_part_of_a_class_of_ones_own_is_called(part):
    theirs, ours = pair(shape(), "cuda")
    _, *features = batch(3, shape())
    for model in (theirs, ours):
        own = getattr(model, part)

        class Scaled(type(own)):
            def forward(self, *inputs):
                return 2 * super().forward(*inputs)

        own.__class__ = Scaled
    with on_host():
        torch.testing.assert_close(ours.predict(*features), theirs.predict(*features), **CLOSE)
        assert "dlrm_forward" not in ops_of(lambda: ours.predict(*features))


# What is in memory


class Largest(TorchDispatchMode):
    """elements: of the largest tensor that any operation gave."""

    elements = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        out = function(*arguments, **(options or {}))
        for value in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(value, torch.Tensor):
                self.elements = max(self.elements, value.numel())
        return out


def largest_in_a_step(model, config, rows):
    """Elements of the largest tensor, a kernel's own workspaces included, of a forward and backward."""
    inputs, inside = batch(rows, config), [0]

    def allocate(size, dtype, device):
        inside.append(torch.Size(size).numel())
        return torch.empty(size, dtype=dtype, device=device)

    with Largest() as seen, allocation.replaced(allocate):
        loss_and_gradients(model, *inputs)
        model.predict(*inputs[1:])
    return max(seen.elements, *inside)


def test_the_outer_product_is_never_in_memory():
    needs("triton")
    config = shape(Interaction.OUTER, top=(2, 1))
    width = (len(config.cardinalities) + 1) * config.embedding_dim  # C
    rows = 100
    theirs, ours = pair(config, "triton")
    product = rows * width**2
    assert largest_in_a_step(theirs, config, rows) >= product
    assert largest_in_a_step(ours, config, rows) < product / 4


# An MLP that does not fit on the chip


@pytest.mark.parametrize("backend", ["eager", "triton"])
@pytest.mark.parametrize("interaction", [Interaction.DOT, Interaction.OUTER])
def test_an_mlp_too_wide_for_the_chip_is_products_with_an_epilogue(monkeypatch, backend, interaction):
    needs(backend)
    config = shape(interaction, top=(9, 6, 1))
    monkeypatch.setattr(choice, "takes", lambda *arguments: False)
    monkeypatch.setattr(module, "fused_mlp", None)
    theirs, ours = pair(config, backend)
    inputs = batch(7, config)
    (want, gradients), (loss, our_gradients) = (loss_and_gradients(model, *inputs) for model in (theirs, ours))
    torch.testing.assert_close(loss, want, **CLOSE)
    for name, gradient in our_gradients.items():
        torch.testing.assert_close(gradient, gradients[name], **CLOSE)
    _, *features = inputs
    torch.testing.assert_close(ours.predict(*features), theirs.predict(*features), **CLOSE)


# Beside what else there is


@pytest.mark.parametrize("interaction", [Interaction.DOT, Interaction.OUTER])
@pytest.mark.parametrize("layers", ["over_arch.*", "over_arch.logit", "dense_arch.mlp.0"])
def test_layers_that_are_more_than_linear_are_left_to_eager(interaction, layers):
    """LoRA's: the arch that has one computes as ever, on what the fused interaction gives."""
    config = shape(interaction)
    models = pair(config, "eager")
    _, *features = batch(5, config)
    predictions = []
    for model in models:
        torch.manual_seed(3)
        apply_lora(model, 2, 4.0, layers)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "lora" in name:
                    parameter.normal_()
        predictions.append(model.predict(*features))
    torch.testing.assert_close(predictions[1], predictions[0], **CLOSE)


def hooked(module):
    module.register_forward_hook(lambda _, __, out: 2 * out)


class Doubled(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x):
        return 2 * self.module(x)


class DoubledSequential(nn.Sequential):
    def forward(self, x):
        return 2 * super().forward(x)


def the_same_layer_twice(arch):
    width = arch.mlp[0].out_features
    layer = nn.Linear(width, width, device=arch.mlp[0].weight.device)
    nn.init.eye_(layer.weight)
    nn.init.ones_(layer.bias)
    arch.mlp.extend([layer, nn.ReLU(), layer, nn.ReLU()])


def no_bias(arch):
    arch.mlp[0].register_parameter("bias", None)


CHANGES = {
    "another Sequential": lambda arch: setattr(arch, "mlp", DoubledSequential(*arch.mlp)),
    "no Sequential": lambda arch: setattr(arch, "mlp", Doubled(arch.mlp)),
    "no bias": no_bias,
    "the same layer twice": the_same_layer_twice,
    "a hook of the Sequential": lambda arch: hooked(arch.mlp),
    "a hook of a ReLU": lambda arch: hooked(arch.mlp[1]),
    "a hook of a layer": lambda arch: hooked(arch.mlp[0]),
    "another activation": lambda arch: setattr(arch.mlp, "1", nn.GELU()),
    "one more module": lambda arch: arch.mlp.append(nn.Tanh()),
    "no ReLU": lambda arch: arch.mlp.pop(1),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("arch", ["dense_arch", "over_arch"])
def test_an_arch_that_is_changed_computes_as_it_is_by_now(arch, change):
    """Trained by one tensor an MLP, too: before and after the optimizers are made."""
    config = shape(bottom=(13, 4), top=(8, 1))
    settings = Preset(config, replace(preset("mini").train, optimizer=Optimizer.SGD))
    for is_late in (False, True)[: 1 if CHANGES[change] is no_bias else 2]:  # the step refuses it then
        results = []
        for model in pair(config, "eager"):
            if not is_late:
                CHANGES[change](getattr(model, arch))
            optimizer = make_optimizer(model, settings)
            if is_late:
                CHANGES[change](getattr(model, arch))
            losses = [train_step(model, optimizer, *batch(5, config)) for _ in range(3)]
            results.append((torch.stack(losses), model.predict(*batch(5, config)[1:])))
        torch.testing.assert_close(results[1], results[0], **CLOSE)


def test_a_layer_of_both_mlps_is_trained():
    config, losses = shape(bottom=(13, 4), top=(4, 1)), []
    for model in pair(config, "eager"):
        torch.manual_seed(0)
        layer = nn.Linear(4, 4, device=DEVICE)
        for arch in (model.dense_arch, model.over_arch):
            arch.mlp.extend([layer, nn.ReLU()])
        optimizer = make_optimizer(model, Preset(config, replace(preset("mini").train, optimizer=Optimizer.SGD)))
        losses.append(torch.stack([train_step(model, optimizer, *batch(5, config)) for _ in range(3)]))
    torch.testing.assert_close(losses[1], losses[0], **CLOSE)


@pytest.mark.parametrize("is_backward", [False, True])
def test_hooks_of_all_modules_are_called(is_backward):
    """On their way forward and back, of layers that are trained as one tensor."""

    def forward(part, _, out):
        return 2 * out if isinstance(part, nn.Linear) else None

    def backward(part, gradients):
        return tuple(2 * gradient for gradient in gradients) if isinstance(part, nn.Linear) else None

    config, losses = shape(bottom=(13, 4), top=(8, 1)), []
    settings = Preset(config, replace(preset("mini").train, optimizer=Optimizer.SGD, learning_rate=1.0))
    for model in pair(config, "eager"):
        optimizer = make_optimizer(model, settings)
        if is_backward:
            hook = nn.modules.module.register_module_full_backward_pre_hook(backward)
        else:
            hook = nn.modules.module.register_module_forward_hook(forward)
        with hook:
            losses.append(torch.stack([train_step(model, optimizer, *batch(5, config)) for _ in range(3)]))
    torch.testing.assert_close(losses[1], losses[0], **CLOSE)


@pytest.mark.parametrize("interaction", INTERACTIONS)
def test_the_summary_is_eagers(interaction):
    theirs, ours = pair(shape(interaction), "auto")
    columns = ["name", "output shape", "parameters", "FLOPs"]
    assert summarize(ours, 8)[columns].equals(summarize(theirs, 8)[columns])


def test_another_precision_compiles_anew(monkeypatch):
    monkeypatch.setattr(module, "_has_tf32", lambda x: True)
    chosen = torch.compile(lambda x: x + (module.precision_of(x) == "tf32"), fullgraph=True, backend="eager")
    before = torch.get_float32_matmul_precision()
    try:
        for setting, expected in (("highest", 0.0), ("high", 1.0), ("highest", 0.0)):
            torch.set_float32_matmul_precision(setting)
            assert chosen(torch.zeros(1)).item() == expected
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("backend", ["triton"])
@pytest.mark.parametrize("interaction", [Interaction.DOT, Interaction.OUTER])
def test_compiled_in_one_graph(backend, interaction):
    needs(backend)
    config = shape(interaction)
    _, ours = pair(config, backend)
    ours.eval()
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
    for rows in (4, 4, 6):
        _, *features = batch(rows, config)
        with torch.no_grad():
            torch.testing.assert_close(compiled(*features), ours(*features), **CLOSE)


@pytest.mark.parametrize("backend", ["triton"])
@pytest.mark.parametrize("interaction", [Interaction.DOT, Interaction.OUTER])
def test_exported_saved_and_loaded(backend, interaction):
    needs(backend)
    config = shape(interaction)
    _, ours = pair(config, backend)
    ours.eval()
    _, *features = batch(4, config)
    rows = torch.export.Dim("rows", min=1, max=1 << 20)
    with torch.no_grad():
        program = torch.export.export(ours, tuple(features), dynamic_shapes=({0: rows}, {0: rows}))
        ops = {str(node.target) for node in program.graph.nodes if "fused_kernels" in str(node.target)}
        own = "dot_interaction" if interaction is Interaction.DOT else "outer_linear"
        assert {f"fused_kernels.{own}.triton", "fused_kernels.fused_mlp.triton"} <= ops
        file = io.BytesIO()
        torch.export.save(program, file)
        file.seek(0)
        loaded = torch.export.load(file).module()
        for count in (4, 9):
            _, *features = batch(count, config)
            torch.testing.assert_close(loaded(*features), ours(*features), **CLOSE)
