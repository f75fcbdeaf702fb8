"""The one buffer of an MLP's weights and biases: what is copied into it, what is kept, what training sees of it."""

from __future__ import annotations

import copy
import gc
import io
import itertools
import threading
from types import SimpleNamespace

import pytest
import torch

from ... import fused_mlp, pack_mlp, runtime
from ...check import Case
from ...check.contract import DEVICE
from . import packing
from .spec import draw_mlp

TRITON = runtime.why_not("triton", DEVICE.type)
KERNEL = pytest.param("triton", marks=pytest.mark.skipif(bool(TRITON), reason=TRITON))


class TestPacking:
    def parameters(self, *widths):
        linears = [torch.nn.Linear(a, b, device=DEVICE) for a, b in itertools.pairwise(widths)]
        return torch.nn.Sequential(*linears), [m.weight for m in linears], [m.bias for m in linears]

    @pytest.fixture(autouse=True)
    def _nothing_is_kept(self):
        packing._entries.clear()

    def test_a_copy_is_kept_until_a_weight_changes(self):
        _, weights, biases = self.parameters(13, 20, 7)
        with torch.no_grad():
            first, widths = packing.pack(weights, biases)
            assert widths == "13-20-7"
            assert packing.pack(weights, biases)[0] is first
            weights[1].mul_(2)
            second, _ = packing.pack(weights, biases)
            assert second is not first
            assert torch.equal(packing.views(second, widths)[1][0], weights[1])
            biases[0].data = biases[0].data + 1
            third, _ = packing.pack(weights, biases)
            assert torch.equal(packing.views(third, widths)[0][1], biases[0])
            biases[0].add_(1)
            fourth, _ = packing.pack(weights, biases)
            assert torch.equal(packing.views(fourth, widths)[0][1], biases[0])

    @pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
    def test_a_step_of_a_fused_optimizer_is_a_change(self, optimizer):
        """Which PyTorch does not count."""
        _, weights, biases = self.parameters(13, 20, 7)
        steps = optimizer([*weights, *biases], lr=0.1, fused=True)
        with torch.no_grad():
            before, widths = packing.pack(weights, biases)
        for parameter in (*weights, *biases):
            parameter.grad = torch.ones_like(parameter)
        steps.step()
        with torch.no_grad():
            after, _ = packing.pack(weights, biases)
            assert packing.pack(weights, biases)[0] is after is not before
        for (weight, bias), *expected in zip(packing.views(after, widths), weights, biases, strict=True):
            torch.testing.assert_close([weight, bias], [tensor.detach() for tensor in expected], rtol=0, atol=0)

    def test_a_weight_that_changes_while_it_is_copied_is_packed_anew(self, monkeypatch):
        """As another thread may change it."""
        _, weights, biases = self.parameters(13, 20, 7)
        copied = packing.copied

        def change_behind(widths, tensors):
            packed = copied(widths, tensors)
            weights[0].mul_(2)
            return packed

        with torch.no_grad():
            with monkeypatch.context() as patched:
                patched.setattr(packing, "copied", change_behind)
                packing.pack(weights, biases)
            found, widths = packing.pack(weights, biases)
        assert torch.equal(packing.views(found, widths)[0][0], weights[0])

    def test_a_copy_is_of_one_stream(self, monkeypatch):
        """On another one it might be read before it is written. Without a GPU streams are numbers alone."""
        _, weights, biases = self.parameters(13, 20, 7)
        streams = itertools.cycle([1, 2])
        monkeypatch.setattr(torch.Tensor, "get_device", lambda tensor: 0)
        monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: stream, raising=False)
        with torch.no_grad():
            found = []
            for stream in itertools.islice(streams, 4):  # noqa: B007  # the lambda reads it
                found.append(packing.pack(weights, biases)[0])
        assert found[0] is found[2] is not found[1]
        assert found[1] is found[3]

    def test_a_captured_graph_gets_a_copy_of_its_own(self, monkeypatch):
        """It goes on reading what is kept only until the next change. Here it is only said to be."""
        _, weights, biases = self.parameters(13, 20, 7)
        captures = [True, True, False, True, False]
        monkeypatch.setattr(packing, "_is_capturing", lambda tensor: capture)
        with torch.no_grad():
            found = []
            for capture in captures:  # noqa: B007  # the lambda reads it
                found.append(packing.pack(weights, biases)[0])
        assert len({each.data_ptr() for each in found}) == 4
        assert found[2] is found[4]  # the only one that was kept
        monkeypatch.undo()
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        assert packing._is_capturing(SimpleNamespace(is_cuda=True))

    def test_a_weight_that_looks_otherwise_is_packed_anew(self):
        _, weights, biases = draw_mlp(Case((5, 8)), (8, 8, 8), DEVICE)
        weights = [torch.nn.Parameter(weight) for weight in weights]
        with torch.no_grad():
            packing.pack(weights, biases)
            weights[0].data = weights[0].data.t()  # PyTorch counts no change, and the address is the same
            found, widths = packing.pack(weights, biases)
        assert torch.equal(packing.views(found, widths)[0][0], weights[0])

    def test_a_copy_is_kept_in_inference_mode(self):
        _, weights, biases = draw_mlp(Case((7, 13)), (13, 19, 5), DEVICE)
        with torch.inference_mode():
            first, second = packing.pack(weights, biases)[0], packing.pack(weights, biases)[0]
        assert first is second

    def test_what_is_kept_goes_with_a_weight(self):
        module, weights, biases = self.parameters(13, 20, 7)
        with torch.no_grad():
            packing.pack(weights, biases)
        assert len(packing._entries) == 1
        del module, weights, biases
        gc.collect()
        assert not packing._entries

    def test_weights_that_are_swapped_are_packed_anew(self):
        """As Module.to does it where torch.__future__.set_swap_module_params_on_conversion says so."""
        _, weights, biases = self.parameters(13, 20, 7)
        with torch.no_grad():
            packing.pack(weights, biases)
            new = torch.nn.Parameter(torch.randn(20, 13, device=DEVICE))
            want = new.detach().clone()
            torch.utils.swap_tensors(weights[0], new)
            assert torch.equal(weights[0], want)
            found, widths = packing.pack(weights, biases)
        assert torch.equal(packing.views(found, widths)[0][0], want)

    def test_weights_that_were_packed_are_pickled(self):
        _, weights, biases = self.parameters(13, 7)
        with torch.no_grad():
            packing.pack(weights, biases)
        buffer = io.BytesIO()
        torch.save(weights + biases, buffer)
        buffer.seek(0)
        for a, b in zip(torch.load(buffer, weights_only=True), weights + biases, strict=True):
            assert torch.equal(a, b)

    def test_the_padding_is_zero(self):
        _, weights, biases = self.parameters(13, 20, 7)
        packed, widths = packing.pack(weights, biases)
        total = sum(t.sum() for t in (*weights, *biases))
        torch.testing.assert_close(packed.sum(), total)
        assert packed.count_nonzero() == sum(t.numel() for t in (*weights, *biases))
        assert all(layer.weight % 16 == layer.bias % 16 == 0 for layer in packing.layers(widths))

    def test_gradients_go_to_each_parameter(self):
        _, weights, biases = self.parameters(13, 20, 7)
        packed, widths = packing.pack(weights, biases)
        upon = torch.randn_like(packed)
        found = torch.autograd.grad(packed, (*weights, *biases), upon)
        want = list(zip(*packing.views(upon, widths), strict=True))
        for a, b in zip(found, (*want[0], *want[1]), strict=True):
            assert torch.equal(a, b)

    @pytest.mark.parametrize("laid_out", [False, True])
    def test_gradients_hold_no_more_than_their_own_memory_twice(self, laid_out):
        """Views of one buffer where they fill most of it; where widths are no multiples of 16 each has its own."""
        mlps = (((64, 32, 48), True), ((13, 64, 64, 16), True), ((13, 20, 7), False), ((500, 16), False))
        for widths, shared in mlps:
            module, weights, biases = self.parameters(*widths)
            if laid_out:
                pack_mlp(module)
            fused_mlp(torch.randn(3, widths[0], device=DEVICE), weights, biases).sum().backward()
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
        optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (module, other)]
        for each, optimizer in zip((module, other), optimizers, strict=True):
            linears = list(each)
            fused_mlp(x, [m.weight for m in linears], [m.bias for m in linears]).square().sum().backward()
            optimizer.step()
        for a, b in zip(module.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(a, b)

    @pytest.mark.parametrize("backend", ["eager", KERNEL])
    @pytest.mark.parametrize("changed", [0, 1])
    def test_a_change_before_the_backward_raises(self, backend, changed):
        """Whichever gradients are asked for: the kernels read all weights by the buffer that they share."""
        module, weights, biases = self.parameters(13, 20, 7)
        pack_mlp(module)
        x = torch.randn(3, 13, device=DEVICE, requires_grad=True)
        for asked in ([x], [biases[1]], [x, *weights, *biases]):
            out = fused_mlp(x, weights, biases, backend=backend)
            with torch.no_grad():
                weights[changed].add_(1)
            with pytest.raises(RuntimeError, match=rf"fused_mlp: weights\[{changed}\] was modified by an inplace"):
                torch.autograd.grad(out.sum(), asked)
            torch.autograd.grad(fused_mlp(x, weights, biases, backend=backend).sum(), asked)

    @pytest.mark.parametrize("backend", ["eager", KERNEL])
    def test_a_copy_stays_what_the_forward_saw(self, backend):
        """A change of weights that were copied is no error, nor one of a bias, which no derivative reads."""
        module, weights, biases = self.parameters(13, 20, 7)
        x = torch.randn(3, 13, device=DEVICE, requires_grad=True)
        for changed in (weights[1], biases[0]):
            (want,) = torch.autograd.grad(fused_mlp(x, weights, biases, backend=backend).sum(), x)
            out = fused_mlp(x, weights, biases, backend=backend)
            with torch.no_grad():
                changed.mul_(5)
            assert torch.equal(torch.autograd.grad(out.sum(), x)[0], want)
            pack_mlp(module)

    def test_under_torch_func(self):
        """As the kernels' refusal says: by eager. Tensors there have no addresses."""
        module, weights, biases = self.parameters(16, 20, 7)
        x = torch.randn(3, 16, device=DEVICE)
        want = torch.func.grad(lambda x: module(x).sum())(x)
        for packed in (module, pack_mlp(module)):
            found = torch.func.grad(lambda x: fused_mlp(x, weights, biases, "identity", backend="eager").sum())(x)
            torch.testing.assert_close(found, want, msg=str(packed))

    def test_what_cannot_be_laid_out(self):
        with pytest.raises(ValueError, match=r"must have nn\.Linear layers"):
            pack_mlp(torch.nn.ReLU())
        with pytest.raises(ValueError, match="must take what the one before it gives"):
            pack_mlp(torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(5, 4)))

    def test_many_threads(self):
        _, weights, biases = self.parameters(13, 20, 7)
        x, found = torch.randn(5, 13, device=DEVICE), []

        def work():
            with torch.no_grad():
                found.extend(fused_mlp(x, weights, biases) for _ in range(20))

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(found) == 160
        assert all(torch.equal(each, found[0]) for each in found)
