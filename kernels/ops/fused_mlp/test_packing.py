"""The one buffer of an MLP's weights and biases: what is copied into it, what is kept, what training sees of it."""

from __future__ import annotations

import copy
import itertools
import os
import threading
from unittest import mock

import pytest
import torch
from torch import func
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

from ... import FusedMLP, fused_mlp, pack_mlp, runtime
from ...check.contract import DEVICE
from . import packing
from .eager import fused_mlp as reference

TRITON = runtime.why_not("triton", DEVICE.type)
KERNEL = pytest.param("triton", marks=pytest.mark.skipif(bool(TRITON), reason=TRITON))
BACKENDS = ("auto", "eager", KERNEL)


def by_another_process(tensor):
    """Write to memory that is shared, as Hogwild's trainers share it."""
    if not (child := os.fork()):
        tensor.detach().numpy()[...] *= 2
        os._exit(0)
    os.waitpid(child, 0)


def by_its_storage(tensor):
    torch.empty(0, device=tensor.device).set_(tensor.untyped_storage()).mul_(2)


WRITES = {
    "counted": lambda tensor: tensor.mul_(2),
    ".data": lambda tensor: tensor.data.mul_(2),
    ".data of other strides": lambda tensor: setattr(tensor, "data", 2 * tensor.t().contiguous().t()),
    "detached": lambda tensor: tensor.detach().mul_(2),
    "DLPack": lambda tensor: torch.from_dlpack(tensor.detach()).mul_(2),
    "its storage": by_its_storage,
    "swapped": lambda tensor: torch.utils.swap_tensors(tensor, torch.nn.Parameter(2 * tensor)),
}
if DEVICE.type == "cpu":
    WRITES["NumPy"] = lambda tensor: tensor.detach().numpy().__imul__(2)
    WRITES["another process"] = by_another_process


TRANSFORMS = {
    "grad": lambda f, x, w, b: func.grad(lambda v: f(v).square().sum())(x),
    "grad of weights": lambda f, x, w, b: func.grad(lambda w, b: f(x, w, b).square().sum(), (0, 1))(w, b),
    "vjp": lambda f, x, w, b: func.vjp(f, x)[1](torch.ones_like(f(x))),
    "jvp": lambda f, x, w, b: func.jvp(f, (x,), (x,)),
    "jvp of weights": lambda f, x, w, b: func.jvp(lambda w: f(x, w), (w,), (w,)),
    "jacrev": lambda f, x, w, b: func.jacrev(f)(x),
    "jacfwd": lambda f, x, w, b: func.jacfwd(f)(x),
    "vmap": lambda f, x, w, b: func.vmap(f)(x[:, None]),
    "vmap of rows": lambda f, x, w, b: func.vmap(f)(x),
    "vmap of weights": lambda f, x, w, b: func.vmap(lambda w: f(x, w))(torch.stack([w, -w])),
    "vmap of the biases beside weights": lambda f, x, w, b: func.vmap(lambda b: f(x, w, b))(torch.stack([b, -b])),
    "vmap(grad) of weights": lambda f, x, w, b: func.vmap(
        func.grad(lambda w, v: f(v[None], w).sum()), (None, 0)
    )(w, x),
    "functionalize": lambda f, x, w, b: func.functionalize(f)(x),
}


class TestPacking:
    def parameters(self, *widths):
        linears = [torch.nn.Linear(a, b, device=DEVICE) for a, b in itertools.pairwise(widths)]
        return torch.nn.Sequential(*linears), [m.weight for m in linears], [m.bias for m in linears]

    def kernel(self):
        if TRITON:
            pytest.skip(TRITON)
        return "triton"

    @pytest.mark.parametrize("laid_out", [False, True])
    @pytest.mark.parametrize("backend", BACKENDS)
    @pytest.mark.parametrize("write", WRITES)
    def test_every_write_is_seen(self, write, backend, laid_out):
        """Most of them PyTorch counts as no change."""
        module, weights, biases = self.parameters(8, 16, 3)
        if laid_out:
            pack_mlp(module)
        if write == "another process":
            module.share_memory()
        x = torch.randn(5, 8, device=DEVICE)
        with torch.no_grad():
            before = fused_mlp(x, weights, biases, backend=backend)
            WRITES[write](weights[1])
            WRITES[write](biases[0])
            out, want = fused_mlp(x, weights, biases, backend=backend), reference(x, weights, biases)
            torch.testing.assert_close(out, want)
            assert not torch.allclose(out, before)

    @pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
    def test_a_step_of_a_fused_optimizer_is_seen(self, optimizer):
        _, weights, biases = self.parameters(13, 20, 7)
        steps = optimizer([*weights, *biases], lr=0.1, fused=True)
        with torch.no_grad():
            before, widths = packing.pack(weights, biases)
        for parameter in (*weights, *biases):
            parameter.grad = torch.ones_like(parameter)
        steps.step()
        with torch.no_grad():
            after, _ = packing.pack(weights, biases)
        assert not torch.equal(after, before)
        for (weight, bias), *expected in zip(packing.views(after, widths), weights, biases, strict=True):
            torch.testing.assert_close([weight, bias], [tensor.detach() for tensor in expected], rtol=0, atol=0)

    def test_a_buffer_is_known_by_what_its_views_are(self):
        """One that begins where a layer's parameter does, of the same shape and strides, need not be it."""
        for change in (lambda p: p.view(torch.bfloat16), torch._neg_view, lambda p: p.clone()):
            module, weights, biases = self.parameters(16, 16, 16)
            pack_mlp(module.half())
            assert packing.laid_out(weights, biases)[0].data_ptr() == weights[0].data_ptr()
            weights[1].data = change(weights[1].data)
            assert packing.laid_out(weights, biases) is None

    def test_parameters_side_by_side_by_chance(self):
        """The buffer would reach beyond the first one's memory, which need not be the second one's."""
        weight, bias = torch.randn(16, 16, device=DEVICE), torch.randn(16, device=DEVICE)
        with mock.patch.object(packing, "address", lambda tensor: 4096 + weight.nbytes * (tensor is bias)):
            assert packing.laid_out([weight], [bias]) is None

    def test_the_padding_is_zero(self):
        _, weights, biases = self.parameters(13, 20, 7)
        packed, widths = packing.pack(weights, biases)
        total = sum(t.sum() for t in (*weights, *biases))
        torch.testing.assert_close(packed.sum(), total)
        assert packed.count_nonzero() == sum(t.numel() for t in (*weights, *biases))
        assert all(layer.weight % 16 == layer.bias % 16 == 0 for layer in packing.layers(widths))

    def test_what_is_traced_is_one_expression(self):
        """Inductor makes one kernel of it, and one each of copies into a buffer."""

        def pack(*tensors):
            return packing.pack(tensors[:2], (tensors[2], None))[0]

        weights = torch.randn(20, 13, device=DEVICE), torch.randn(5, 20, device=DEVICE)
        bias = torch.randn(20, device=DEVICE)
        graph = make_fx(pack, tracing_mode="fake")(*weights, bias)
        aten = torch.ops.aten
        assert aten.cat.default in {node.target for node in graph.graph.nodes}
        assert not [node for node in graph.graph.nodes if "copy" in str(node.target)]
        assert torch.equal(graph(*weights, bias), packing.copied(weights, (bias, None)))

    def test_gradients_go_to_each_parameter(self):
        _, weights, biases = self.parameters(13, 20, 7)
        packed, widths = packing.pack(weights, biases)
        upon = torch.randn_like(packed)
        grads = torch.autograd.grad(packed, (*weights, *biases), upon)
        want = list(zip(*packing.views(upon, widths), strict=True))
        for a, b in zip(grads, (*want[0], *want[1]), strict=True):
            assert torch.equal(a, b)

    @pytest.mark.parametrize("laid_out", [False, True])
    def test_gradients_hold_no_more_than_their_own_memory_twice(self, laid_out):
        """Views of one buffer where they fill most of it; where widths are no multiples of 16 each has its own."""
        mlps = (((64, 32, 48), True), ((13, 64, 64, 16), True), ((13, 20, 7), False), ((500, 16), False))
        for widths, shared in mlps:
            module, weights, biases = self.parameters(*widths)
            if laid_out:
                pack_mlp(module)
            packed, _ = packing.pack(weights, biases)
            packed.backward(torch.randn_like(packed))
            gradients = [parameter.grad for parameter in (*weights, *biases)]
            assert all(grad.is_contiguous() for grad in gradients)
            storages = {grad.untyped_storage().data_ptr(): grad.untyped_storage().nbytes() for grad in gradients}
            assert sum(storages.values()) <= 2 * sum(grad.nbytes for grad in gradients)
            assert (len(storages) < len(gradients)) == shared
            assert (biases[0].grad.untyped_storage().nbytes() > biases[0].nbytes) == shared

    def test_a_laid_out_module_is_not_copied(self):
        module, weights, biases = self.parameters(13, 20, 7)
        other = copy.deepcopy(module)
        before = {name: value.clone() for name, value in module.state_dict().items()}
        assert pack_mlp(module) is module
        for name, value in module.state_dict().items():
            assert torch.equal(value, before[name])
        with torch.no_grad():
            packed, widths = packing.pack(weights, biases)
            assert packed.data_ptr() == weights[0].data_ptr()
            weights[1].add_(1)
            assert torch.equal(packing.views(packed, widths)[1][0], weights[1])
        assert packing.pack(weights, biases)[0].data_ptr() == weights[0].data_ptr()
        x = torch.randn(9, 13, device=DEVICE)
        module.load_state_dict(before)
        optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (module, other)]
        for model, optimizer in zip((module, other), optimizers, strict=True):
            linears = list(model)
            fused_mlp(x, [m.weight for m in linears], [m.bias for m in linears]).square().sum().backward()
            optimizer.step()
        for a, b in zip(module.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(a, b)

    @pytest.mark.parametrize("changed", [0, 1])
    def test_a_change_before_the_backward_raises(self, changed):
        """Whichever gradients are asked for: the kernels read all weights by the buffer that they share."""
        module, weights, biases = self.parameters(13, 20, 7)
        pack_mlp(module)
        x = torch.randn(3, 13, device=DEVICE, requires_grad=True)
        for asked in ([x], [biases[1]], [x, *weights, *biases]):
            out = fused_mlp(x, weights, biases, backend=self.kernel())
            with torch.no_grad():
                weights[changed].add_(1)
            with pytest.raises(RuntimeError, match=rf"fused_mlp: weights\[{changed}\] was modified by an inplace"):
                torch.autograd.grad(out.sum(), asked)
            torch.autograd.grad(fused_mlp(x, weights, biases, backend=self.kernel()).sum(), asked)

    def test_a_copy_stays_what_the_forward_saw(self):
        """A change of weights that a kernel has a copy of is no error, nor one of a bias, which no derivative reads.
        Eager has none, and PyTorch refuses the change."""
        module, weights, biases = self.parameters(13, 20, 7)
        x = torch.randn(3, 13, device=DEVICE, requires_grad=True)
        for changed in (weights[1], biases[0]):
            (want,) = torch.autograd.grad(fused_mlp(x, weights, biases, backend=self.kernel()).sum(), x)
            out, by_eager = (fused_mlp(x, weights, biases, backend=backend) for backend in (self.kernel(), "eager"))
            with torch.no_grad():
                changed.mul_(5)
            assert torch.equal(torch.autograd.grad(out.sum(), x)[0], want)
            if changed is weights[1]:
                with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                    torch.autograd.grad(by_eager.sum(), x)
            else:
                torch.testing.assert_close(torch.autograd.grad(by_eager.sum(), x)[0], want)
            pack_mlp(module)

    @pytest.mark.parametrize("backend", BACKENDS)
    @pytest.mark.parametrize("laid_out", [False, True])
    @pytest.mark.filterwarnings("ignore:There is a performance drop")
    def test_under_torch_func(self, laid_out, backend):
        """As PyTorch, whatever was called before; a kernel that cannot says so, and names what can. Tensors there have
        no addresses."""
        module, (w1, w2), (b1, b2) = self.parameters(8, 16, 3)
        if laid_out:
            pack_mlp(module)
        x = torch.randn(5, 8, device=DEVICE)
        modules = FusedMLP(module, backend=backend), module

        def ours(x, w1=w1, b1=b1):
            return fused_mlp(x, [w1, w2], [b1, b2], "identity", backend=backend)

        def plain(x, w1=w1, b1=b1):
            return F.linear(F.linear(x, w1, b1), w2, b2)

        def outcome(transform, *arguments):
            try:
                return transform(*arguments)
            except RuntimeError as error:
                return str(error)

        refused = {}
        for functions in ((ours, plain), modules):
            for name, transform in TRANSFORMS.items():
                if functions is modules and "weight" in name:
                    continue
                actual, want = (outcome(transform, function, x, w1, b1) for function in functions)
                if isinstance(actual, str):
                    refused[name] = actual
                else:
                    torch.testing.assert_close(actual, want)
        assert all('use backend="eager"' in message for message in refused.values()), refused
        assert not {"vmap", "vmap of weights", "functionalize"} & refused.keys()
        assert backend == "triton" or not refused

    @pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad])
    def test_a_fused_optimizer_of_rows_that_do_not_touch(self, optimizer):
        """On a CPU it would compute wrong weights."""
        if optimizer is torch.optim.Adagrad and DEVICE.type == "cuda":
            pytest.skip("PyTorch's fused Adagrad takes no CUDA tensors")
        for widths, refused in (((16, 32, 5), False), ((16, 7, 3), True)):
            modules = [self.parameters(*widths)[0] for _ in range(2)]
            modules[0].load_state_dict(modules[1].state_dict())
            pack_mlp(modules[0])
            for module in modules:
                step = optimizer(module.parameters(), lr=0.1, fused=True).step
                module(torch.ones(2, 16, device=DEVICE)).sum().backward()
                if refused and module is modules[0]:
                    message = rf"{optimizer.__name__} with fused=True does not take a weight of shape \[3, 7\] that"
                    with pytest.raises(RuntimeError, match=message):
                        step()
                    step = optimizer(module.parameters(), lr=0.1, foreach=True).step
                step()
            for a, b in zip(*(module.parameters() for module in modules), strict=True):
                torch.testing.assert_close(a, b)

    def test_vectors_of_parameters(self):
        """In one piece where all rows touch."""
        to_vector, from_vector = torch.nn.utils.parameters_to_vector, torch.nn.utils.vector_to_parameters
        module, weights, biases = self.parameters(16, 32, 5)
        before = to_vector(module.parameters())
        assert torch.equal(to_vector(pack_mlp(module).parameters()), before)
        for widths in ((16, 32, 5), (16, 7, 3)):
            module, weights, biases = self.parameters(*widths)
            pack_mlp(module)
            vector = torch.cat([parameter.detach().flatten() for parameter in module.parameters()])
            from_vector(2 * vector, module.parameters())
            assert torch.equal(to_vector(module.parameters()), 2 * vector)
            assert packing.laid_out(weights, biases) is None or widths == (16, 32, 5)

    def test_what_cannot_be_laid_out(self):
        with pytest.raises(ValueError, match=r"must have nn\.Linear layers"):
            pack_mlp(torch.nn.ReLU())
        with pytest.raises(ValueError, match="must take what the one before it gives"):
            pack_mlp(torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(5, 4)))
        two = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 4))
        two[1].bias.data = two[1].bias.data.double()
        with pytest.raises(TypeError, match=r"pack_mlp: biases\[1\] must have weights\[0\]'s dtype"):
            pack_mlp(two)

    def test_many_threads(self):
        _, weights, biases = self.parameters(13, 20, 7)
        x, results = torch.randn(5, 13, device=DEVICE), []

        def work():
            with torch.no_grad():
                results.extend(fused_mlp(x, weights, biases) for _ in range(20))

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(results) == 160
        assert all(torch.equal(result, results[0]) for result in results)
