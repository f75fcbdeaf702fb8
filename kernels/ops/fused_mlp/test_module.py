"""FusedMLP and its `mlp`: eager's results whichever way is taken, and which way that is."""

from __future__ import annotations

import copy
import io
import pickle
from collections import OrderedDict
from itertools import pairwise
from unittest import mock

import pytest
import torch
from torch import nn
from torch.nn.utils import prune
from torch.utils._python_dispatch import TorchDispatchMode

import kernels

from ... import FusedMLP, runtime
from ...check.contract import DEVICE
from ...check.contract.base import GPU
from . import choice, module

TRITON = runtime.why_not("triton", DEVICE.type)
KERNEL = pytest.param("triton", marks=pytest.mark.skipif(bool(TRITON), reason=TRITON))
BACKENDS = ("auto", "eager", KERNEL)
# Float32 sums of another order.
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


@pytest.fixture(autouse=True)
def _dynamo_forgets():
    yield
    torch._dynamo.reset()


@pytest.fixture(params=[False, True], ids=["in one kernel", "too wide"])
def too_wide(request, monkeypatch):
    if request.param:
        monkeypatch.setattr(choice, "takes", lambda *arguments: False)
        choice.takes_any_rows.cache_clear()
        yield True
        choice.takes_any_rows.cache_clear()
    else:
        yield False


def sequential(*widths, activation=nn.ReLU, final=None, bias=True):
    torch.manual_seed(0)
    parts = [part for a, b in pairwise(widths) for part in (nn.Linear(a, b, bias=bias), activation())][:-1]
    return nn.Sequential(*parts, *([final()] if final else [])).to(DEVICE)


class Operators(TorchDispatchMode):
    """names: of the operators that were called."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        self.names.add(function.name())
        return function(*arguments, **(options or {}))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "make",
    [
        lambda: sequential(13, 20, 7, 5),
        lambda: sequential(13, 20, 5, final=nn.ReLU, bias=False),
        lambda: sequential(13, 20, 7, 5, activation=nn.GELU, final=nn.Sigmoid),
        lambda: sequential(13, 20, 5, activation=nn.Tanh, final=nn.SiLU),
        lambda: sequential(13, 20, 5, activation=lambda: nn.GELU("tanh"), final=nn.LeakyReLU),
        lambda: sequential(13, 5, activation=nn.Identity),
        lambda: nn.Sequential(nn.Linear(13, 8), nn.Linear(8, 5, bias=False)).to(DEVICE),
    ],
    ids=["relu", "no bias", "gelu", "tanh", "gelu by tanh", "one layer", "no activation"],
)
def test_results_and_gradients_are_the_sequentials(backend, make, too_wide):
    plain = make()
    fused = FusedMLP(plain, backend=backend)
    for shape in ((6, 13), (2, 3, 13), (13,), (0, 13)):
        x = torch.randn(*shape, device=DEVICE, requires_grad=True)
        results = [run(x) for run in (fused, plain)]
        assert results[0].shape == results[1].shape
        torch.testing.assert_close(*results, **CLOSE)
        upon = torch.randn_like(results[0])
        for a, b in zip(*(torch.autograd.grad(out, (x, *plain.parameters()), upon) for out in results), strict=True):
            torch.testing.assert_close(a, b, **CLOSE)
        with torch.no_grad():
            torch.testing.assert_close(fused(x), plain(x), **CLOSE)


def test_dropout_is_nothing_where_it_drops_nothing():
    plain = sequential(13, 20, 5)
    plain.insert(2, nn.Dropout(0.5))
    plain.insert(0, nn.Dropout(0.5))
    fused, x, asked = FusedMLP(plain), torch.randn(6, 13, device=DEVICE), []

    def results() -> list[torch.Tensor]:
        """Of both by the same random numbers; asked: whether `mlp` computed it."""
        asked.clear()
        outputs = []
        for run in (fused, plain):
            torch.manual_seed(0)
            outputs.append(run(x))
        return outputs

    def mlp(*arguments, original=module.mlp, **options):
        asked.append(1)
        return original(*arguments, **options)

    with mock.patch.object(module, "mlp", mlp):
        for change, computes in (
            (fused.train, False), (fused.eval, True), (plain.train, False),
            (lambda: [setattr(part, "p", 0.0) for part in plain if type(part) is nn.Dropout], True),
            (lambda: plain.__setitem__(3, nn.Dropout(0.9).train()), False), (lambda: plain.pop(3), True),
        ):  # fmt: skip
            change()
            torch.testing.assert_close(*results(), **CLOSE)
            assert bool(asked) is computes
    assert "0" not in fused.state_dict()
    torch.testing.assert_close(pickle.loads(pickle.dumps(fused))(x), fused(x))


def test_which_way_is_taken(monkeypatch):
    """One kernel; too wide for it, products with an epilogue, in training with a kernel that has a derivative."""
    if TRITON:
        pytest.skip(TRITON)
    fused, x = FusedMLP(sequential(13, 20, 5), backend="triton"), torch.randn(6, 13, device=DEVICE)
    filled = torch.nn.functional.pad(x, (0, 3))  # as an interaction fills its rows up
    parts = [[getattr(fused.layers[i], name) for i in (0, 2)] for name in ("weight", "bias")]

    def operators(x):
        with Operators() as seen:
            module.mlp(x, *parts, backend="triton")
        return {name.partition(".")[0].partition("::")[2] for name in seen.names}

    assert "fused_mlp" in operators(x)
    monkeypatch.setattr(choice, "takes", lambda *arguments: False)
    with torch.no_grad():
        assert not {"_addmm_activation", "slice"} - (names := operators(filled))
        assert not {"add_relu", "fused_mlp", "constant_pad_nd"} & names
    assert not {"add_relu", "constant_pad_nd"} - (names := operators(filled))
    assert not {"_addmm_activation", "fused_mlp", "slice"} & names


def test_weights_that_really_do_not_fit():
    """67 MB of them: the kernel refuses, and the module goes on, also after its layers are others."""
    if TRITON:
        pytest.skip(TRITON)
    fused = FusedMLP(sequential(16, 4096, 4096, 8), backend="triton")
    x = torch.randn(3, 16, device=DEVICE)
    with torch.no_grad():
        linears = [*fused.layers][::2]
        with pytest.raises(kernels.FusedMLPError, match="16-4096-4096-8 does not fit"):
            kernels.fused_mlp(x, [m.weight for m in linears], [m.bias for m in linears], backend="triton")
        torch.testing.assert_close(fused(x), fused.layers(x), **CLOSE)
        fused.layers = sequential(16, 20, 8)
        with Operators() as seen:
            fused(x)
        assert "fused_kernels::fused_mlp.triton" in seen.names


@pytest.mark.filterwarnings("ignore:Warning only once for all operators")
def test_products_with_an_epilogue_take_autocasts_dtype(monkeypatch):
    """Under autocast as a GPU has it: PyTorch has no rule for the epilogue there, and the CPU's is put aside here."""
    monkeypatch.setattr(choice, "takes", lambda *arguments: False)
    x = torch.randn(7, 16, device=DEVICE)
    with torch.library._scoped_library("aten", "IMPL") as library, torch.no_grad():
        if DEVICE.type == "cpu":
            library.impl("_addmm_activation", torch.library.fallthrough_kernel, "AutocastCPU", allow_override=True)
        with torch.autocast(DEVICE.type, torch.bfloat16):
            for final in (None, nn.ReLU):
                fused = FusedMLP(sequential(16, 9, 6, 1, final=final), backend="eager")
                out, want = fused(x), fused.layers(x)
                assert out.dtype == want.dtype == torch.bfloat16
                torch.testing.assert_close(out, want, rtol=2e-2, atol=2e-2)


@GPU
def test_a_wide_mlp_in_half_precision_is_evaluated():
    """The top MLP of the preset mlperf, too wide for one kernel at these rows, as model.evaluation calls it."""
    fused = FusedMLP(sequential(479, 1024, 1024, 512, 256, 1))
    x = torch.randn(16384, 479, device=DEVICE)
    with torch.no_grad(), torch.autocast(DEVICE.type, torch.bfloat16), Operators() as seen:
        out, want = fused(x), fused.layers(x)
    assert "aten::_addmm_activation" in seen.names
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out, want, rtol=5e-2, atol=2e-2)


@pytest.mark.parametrize("backend", BACKENDS)
def test_compiled_with_a_batch_that_changes(backend, too_wide):
    """One graph for every batch size, forward and backward."""
    fused, graphs = FusedMLP(sequential(13, 20, 5), backend=backend), []

    def count(graph, inputs):
        graphs.append(graph)
        return graph

    compiled = torch.compile(fused, fullgraph=True, dynamic=True, backend=count)
    for rows in (4, 7, 9):
        x = torch.randn(rows, 13, device=DEVICE)
        grads, want = (torch.autograd.grad(run(x).sum(), [*fused.parameters()]) for run in (compiled, fused.layers))
        for a, b in zip(grads, want, strict=True):
            torch.testing.assert_close(a, b, **CLOSE)
    assert len(graphs) == 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_exported_with_any_number_of_rows(backend, too_wide):
    fused = FusedMLP(sequential(13, 20, 5), backend=backend)
    rows = torch.export.Dim("rows", min=1, max=1 << 20)
    with torch.no_grad():
        program = torch.export.export(fused, (torch.randn(4, 13, device=DEVICE),), dynamic_shapes=({0: rows},))
        is_fused = any("fused_kernels.fused_mlp" in str(node.target) for node in program.graph.nodes)
        assert is_fused is (backend == "triton" and not too_wide)
        torch.export.save(program, file := io.BytesIO())
        file.seek(0)
        loaded = torch.export.load(file).module()
        for count in (1, 9):
            x = torch.randn(count, 13, device=DEVICE)
            torch.testing.assert_close(loaded(x), fused.layers(x), **CLOSE)


def test_layers_that_are_more_than_linear_are_called_themselves():
    fused, x = FusedMLP(sequential(13, 20, 5), backend="eager"), torch.randn(6, 13, device=DEVICE)
    prune.l1_unstructured(fused.layers[0], "weight", amount=0.5)  # by a hook, which makes the weight anew
    with torch.no_grad():
        fused.layers[0].weight_orig.mul_(3)
        assert torch.equal(fused(x), fused.layers(x))
    torch.nn.utils.parametrizations.weight_norm(fused.layers[2])
    assert torch.equal(fused(x), fused.layers(x))
    fused.layers[2] = nn.Bilinear(20, 20, 3, device=DEVICE)
    with pytest.raises(TypeError, match="input2"):
        fused(x)


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        (nn.Sequential(), "got no layer"),
        (nn.Sequential(nn.ReLU(), nn.Linear(3, 2)), r"got ReLU\(\)"),
        (nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.ReLU()), r"got ReLU\(\)"),
        (nn.Sequential(nn.Linear(3, 2), nn.AlphaDropout()), r"got AlphaDropout\(p=0.5"),
        (nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)), r"got BatchNorm1d\("),
        (nn.Sequential(nn.Linear(3, 2), nn.LeakyReLU(0.1)), r"got LeakyReLU\(negative_slope=0.1\)"),
        (
            nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 2), nn.Sigmoid(), nn.Linear(2, 2)),
            "got relu, sigmoid, identity",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_no_mlp(layers, message):
    with pytest.raises(ValueError, match=f"FusedMLP: .*{message}"):
        FusedMLP(layers)


def _replaced(layers):
    layers[1] = nn.Sigmoid()


def _with_another_weight(layers):
    class Zeros(torch.Tensor):
        """What computes something else than its memory says, as a quantized weight does."""

        @classmethod
        def __torch_function__(cls, function, types, arguments=(), named=None):
            out = super().__torch_function__(function, types, arguments, named or {})
            return out.as_subclass(torch.Tensor) * 0 if function is nn.functional.linear else out

    layers[0].weight = nn.Parameter(layers[0].weight.detach().as_subclass(Zeros), requires_grad=False)


def _with_a_forward(layers):
    layers[0].forward = lambda x: nn.Linear.forward(layers[0], x) + 1


def _narrower(layers):
    layers[0].weight = nn.Parameter(layers[0].weight.detach()[:, :4])


CHANGES = {
    "replaced": _replaced,
    "GELU.approximate": lambda layers: setattr(layers[1], "approximate", "tanh"),
    "inplace": lambda layers: setattr(layers[-1], "inplace", True),
    "in_features": lambda layers: setattr(layers[0], "in_features", 4),
    "another weight": lambda layers: setattr(layers[0], "weight", nn.Parameter(2 * layers[0].weight.detach())),
    "a weight of other shape": _narrower,
    "no bias": lambda layers: setattr(layers[0], "bias", None),
    "a bias that is broadcast": lambda layers: setattr(layers[2], "bias", nn.Parameter(torch.ones(1, device=DEVICE))),
    "appended": lambda layers: layers.append(nn.ReLU()),
    "removed": lambda layers: layers.pop(3),
    "a hook of an activation": lambda layers: layers[1].register_forward_hook(lambda module, x, out: out + 1),
    "a hook of the whole": lambda layers: layers.register_forward_pre_hook(lambda module, x: (x[0] + 1,)),
    "a forward of its own": _with_a_forward,
    "a weight of its own": _with_another_weight,
}


@pytest.mark.parametrize("by", ["layers", "index"])
@pytest.mark.parametrize("change", CHANGES)
def test_what_is_done_to_the_sequential_later_counts(change, by):
    layers = sequential(5, 8, 3, activation=nn.GELU if change == "GELU.approximate" else nn.ReLU, final=nn.ReLU)
    fused = kernels.FusedMLP(layers, backend="eager")
    x = torch.randn(4, 5, device=DEVICE)
    before = fused(x)
    CHANGES[change](layers if by == "layers" or change in ("a hook of the whole", "a forward of its own") else fused)
    if change == "a weight of other shape":
        with pytest.raises(RuntimeError, match=r"cannot be multiplied|size mismatch"):
            fused(x)
        return
    out = fused(x)
    assert torch.equal(out, layers(x))
    assert not torch.equal(out, before) or change in ("appended", "inplace", "in_features")
    assert list(fused) == list(layers)
    assert list(fused.state_dict()) == list(layers.state_dict())


def test_a_gelu_of_another_class_is_no_gelu():
    class Halved(nn.GELU):
        def forward(self, x):
            return super().forward(x) / 2

    with pytest.raises(ValueError, match=r"got Halved\("):
        FusedMLP(nn.Sequential(nn.Linear(3, 2), Halved()))


class TestInASequentialsPlace:
    """len, indices, loops and names are the Sequential's."""

    def model(self, make):
        model = nn.Module()
        model.mlp, model.named = make(sequential(5, 8, 3)), make(
            nn.Sequential(OrderedDict(one=nn.Linear(3, 2), act=nn.ReLU(), two=nn.Linear(2, 2))).to(DEVICE)
        )
        return model

    def test_indices_and_loops(self):
        layers = sequential(5, 8, 3)
        fused = FusedMLP(layers)
        assert len(fused) == 3
        assert fused[0] is fused[-3] is layers[0]
        assert [*fused] == [*layers]
        assert [*fused[1:]] == [*layers[1:]]
        assert type(fused[:2]) is nn.Sequential
        weights = [part.weight for part in fused if isinstance(part, nn.Linear)]
        assert all(a is b for a, b in zip(weights, (layers[0].weight, layers[2].weight), strict=True))
        assert fused.get_submodule("2") is layers[2]

    def test_checkpoints_go_both_ways(self):
        plain, fused = self.model(lambda layers: layers), self.model(FusedMLP)
        names = [*plain.state_dict()]
        assert names == [*fused.state_dict()] == [name for name, _ in fused.named_parameters()]
        earlier = {name.replace("mlp.", "mlp.layers.").replace("named.", "named.layers."): tensor + 1
                   for name, tensor in plain.state_dict().items()}  # as FusedMLP once named them
        for saved in (plain.state_dict(), earlier):
            for assign in (False, True):
                fused = self.model(FusedMLP)
                fused.load_state_dict(saved, assign=assign)
                assert all(map(torch.equal, fused.state_dict().values(), saved.values()))
        plain.load_state_dict(fused.state_dict())
        assert all(map(torch.equal, plain.state_dict().values(), earlier.values()))
        earlier["mlp.layers.3.weight"] = earlier.pop("mlp.layers.2.weight")
        with pytest.raises(RuntimeError, match=r'(?s)Missing.*"mlp\.2\.weight".*Unexpected.*"mlp\.3\.weight"'):
            fused.load_state_dict(earlier)

    @pytest.mark.parametrize("copied", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))])
    def test_copies_are_whole(self, copied):
        fused, x = FusedMLP(sequential(5, 8, 3)), torch.randn(4, 5, device=DEVICE)
        other = copied(fused)
        assert torch.equal(other(x), fused(x))
        assert other[0] is other.layers[0] is not fused[0]
        other[1] = nn.Sigmoid()
        del other.layers[2]
        assert torch.equal(other(x), torch.sigmoid(fused[0](x)))
        assert [*other.state_dict()] == ["0.weight", "0.bias"]
        assert len(fused) == 3

    @pytest.mark.parametrize("first", ["called", "compiled", "not called"])
    def test_what_is_done_to_layers_is_done_to_it(self, first):
        """A part that is deleted leaves `layers` with another dict of parts."""
        fused, x = FusedMLP(sequential(5, 8, 3)), torch.randn(4, 5, device=DEVICE)
        call = torch.compile(fused, backend="eager") if first == "compiled" else fused
        if first != "not called":
            call(x)
        fused.layers.pop(-1)
        fused.layers.append(nn.Linear(8, 4).to(DEVICE))
        assert fused[2] is fused.get_submodule("2") is getattr(fused, "2") is fused.layers[2]
        del fused.layers[1]
        if first != "not called":
            call(x)
        assert [*fused.state_dict()] == [*fused.layers.state_dict()] == ["0.weight", "0.bias", "1.weight", "1.bias"]
        assert [*fused.parameters()][-1] is fused.layers[1].bias
        setattr(fused, "1", nn.Linear(8, 6).to(DEVICE))
        assert fused(x).shape == call(x).shape == (4, 6)
        assert torch.equal(fused(x), fused.layers(x))
        assert all(tensor.dtype == torch.float64 for tensor in fused.double().layers.state_dict().values())

    def test_torch_fx_traces_it(self):
        fused, x = FusedMLP(sequential(5, 8, 3)), torch.randn(4, 5, device=DEVICE)
        assert torch.equal(torch.fx.symbolic_trace(nn.Sequential(fused))(x), fused.layers(x))

    def test_a_replica_of_data_parallel_has_its_own_parts(self):
        fused, x = FusedMLP(sequential(5, 8, 3)), torch.randn(4, 5, device=DEVICE)
        replica = fused._replicate_for_data_parallel()
        for name, part in sequential(5, 8, 3).double().named_children():
            setattr(replica, name, part)  # as nn.DataParallel's replicate does
        assert replica(x.double()).dtype == torch.float64
        assert fused(x).dtype == torch.float32

    def test_one_that_was_pickled_with_a_part_of_the_name_layers(self):
        layers, x = sequential(5, 8, 3), torch.randn(4, 5, device=DEVICE)
        old = nn.Module()
        old.layers, old.backend, old.activation, old._kinds = layers, "auto", "relu", [*map(type, layers)]
        fused = FusedMLP.__new__(FusedMLP)
        fused.__setstate__(old.__dict__)
        assert torch.equal(fused(x), layers(x))
        assert [*fused.state_dict()] == [*layers.state_dict()]

    def test_names_that_are_its_own(self):
        for name in ("layers", "backend"):
            with pytest.raises(ValueError, match=f"layers must not have a part of the name '{name}'"):
                FusedMLP(nn.Sequential(OrderedDict({name: nn.Linear(3, 2)})))
        with pytest.raises(ValueError, match="backend must be one of auto, eager, triton, cuda; got 'cpu'"):
            FusedMLP(sequential(3, 2), backend="cpu")
        with pytest.raises(TypeError, match=r"argument 'input'.* must be Tensor, not list"):
            FusedMLP(sequential(3, 2))([[1.0, 2.0, 3.0]])
        with pytest.raises(TypeError, match=r"pack_mlp: module must be an nn\.Module; got list"):
            kernels.pack_mlp([])


def test_an_x_of_another_width_is_the_sequentials_error_and_meta_has_its_shape():
    layers = sequential(5, 8, 3)
    for x in (torch.randn(4, 6, device=DEVICE), torch.randn((), device=DEVICE)):
        with pytest.raises(RuntimeError, match=r"mat1 and mat2|linear|size mismatch|dim"):
            kernels.FusedMLP(layers)(x)
    on_meta = kernels.FusedMLP(layers.to("meta"))
    assert on_meta(torch.empty(4, 5, device="meta")).shape == (4, 3)
    for wrong in (nn.Linear(3, 4), nn.ModuleList([nn.Linear(3, 4)])):
        with pytest.raises(ValueError, match=r"layers must be an nn\.Sequential"):
            kernels.FusedMLP(wrong)
