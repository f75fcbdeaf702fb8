"""Generated Triton of small functions: lowered without a GPU, run against eager, and what is refused."""

import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from generated import DEVICE, close, executable
from torch import nn

from kernels.inductor import count, fx_graphs, lower, records, run_kernel, split, trace, triton_source
from kernels.inductor.__main__ import main
from kernels.ops.add_mul_activation.eager import FUNCTIONS, add_mul_activation
from model.lora import MLP

ROOT = Path(__file__).resolve().parent.parent
without_gpu = pytest.mark.skipif(DEVICE.type == "cuda", reason="there is a GPU: nothing is lowered for a fake one")


def targets(rows, classes):
    return torch.arange(rows, device=DEVICE) % classes


# Operators that are composed of others. Some also have a kernel for meta tensors: see fake_gpu._remove_meta_kernels.
@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.cross_entropy(x, targets(8, 10).to(x.device)),
        lambda x: F.cross_entropy(x, x.softmax(1).detach(), label_smoothing=0.1),
        lambda x: torch.where(x > 0, x, 0.0),
        lambda x: x.std(0),
        lambda x: F.prelu(x, x[0, :1].abs()),
        lambda x: x[0] * x.chunk(2)[1],
        lambda x: torch.ops.aten.embedding(x, targets(8, 10).to(x.device) % 8),
    ],
    ids=["cross_entropy", "label_smoothing", "where", "std", "prelu", "views", "packet of overloads"],
)
def test_generated_gradients_equal_eager(function):
    torch.manual_seed(0)
    x = torch.randn(8, 10, device=DEVICE, requires_grad=True)
    eager = function(x)
    gradient = torch.randn_like(eager)
    forward, backward = triton_source(function, x, backward=True)
    ((_, arguments),) = trace(function, x, backward=True)
    out, *saved = executable(forward)(arguments)
    (actual,) = (value for value in executable(backward)([*saved, gradient]) if value is not None)
    close(out, eager.detach())
    close(actual, torch.autograd.grad(eager, x, gradient)[0])


# ------------------------------------------------------------------------------------------------------------------
# Kernels in the interpreter.


@pytest.mark.parametrize("activation", FUNCTIONS)
def test_generated_activations_equal_eager(activation):
    def function(x, bias, y):
        return add_mul_activation(x, bias, y, 0.5, activation)

    torch.manual_seed(0)
    x, bias, y = (torch.randn(shape, device=DEVICE) for shape in ((33, 129), (129,), (33, 129)))
    x[0], x[1, ::2] = 40 * x[0], torch.inf
    x[2, ::2], x[3, ::2] = -torch.inf, torch.nan
    (source,) = triton_source(function, x, bias, y)
    (kernel,) = split(source)
    assert kernel.kind == "pointwise"
    ((_, arguments),) = trace(function, x, bias, y)
    (out,) = executable(source)(arguments)
    # In float64: oneDNN's float32 gelu gives NaN for +Inf on some CPUs (pytorch/pytorch#185770).
    expected = function(x.double(), bias.double(), y.double()).float()
    torch.testing.assert_close(out, expected, equal_nan=True)


def test_run_kernel_writes_what_it_is_given():
    x, bias = torch.randn(7, 5, device=DEVICE), torch.randn(5, device=DEVICE)
    (kernel,) = split(triton_source(lambda x, bias: torch.relu(x + bias), x, bias)[0])
    assert kernel.fused == ("aten.add", "aten.relu")
    out = torch.full_like(x, torch.nan)
    run_kernel(kernel.source, x, bias, out, 35)
    assert torch.equal(out, torch.relu(x + bias))
    # It must be able to be wrong.
    run_kernel(kernel.source.replace("tmp0 + tmp1", "tmp0 - tmp1"), x, bias, out, 35)
    assert torch.equal(out, torch.relu(x - bias))


def test_run_kernel_checks_its_arguments():
    x, bias = torch.randn(7, 5, device=DEVICE), torch.randn(5, device=DEVICE)
    (kernel,) = split(triton_source(lambda x, bias: torch.relu(x + bias), x, bias)[0])
    with pytest.raises(TypeError, match=r"expected \*fp32, \*fp32, \*fp32, i32; got \*fp32, \*fp32, \*fp32$"):
        run_kernel(kernel.source, x, bias, x)
    with pytest.raises(TypeError, match=r"expected \*fp32.*; got \*fp64, \*fp32, \*fp32, i32"):
        run_kernel(kernel.source, x.double(), bias, x, 35)


@pytest.mark.parametrize(
    ("function", "dtype", "says"),
    [
        (lambda x: x.softmax(1), torch.float32, "triton_per_fused.*expected a pointwise kernel, got a persistent red"),
        (lambda x: x + 1, torch.bfloat16, r"triton_poi_fused.*expected no halves, got \*bf16"),
        pytest.param(
            torch.lgamma,
            torch.float32,
            "triton_poi_fused_lgamma.*no stand-in for libdevice's lgamma",
            marks=without_gpu,
        ),
        pytest.param(torch.atan, torch.float32, "triton_poi_fused_atan", marks=without_gpu),
    ],
)
def test_run_kernel_refuses_by_name(function, dtype, says):
    x = torch.randn(8, 64, dtype=dtype, device=DEVICE)
    kernel = split(triton_source(function, x)[0])[0]
    with pytest.raises(NotImplementedError, match=says):
        run_kernel(kernel.source, x, torch.empty_like(x), x.numel())


# ------------------------------------------------------------------------------------------------------------------
# What it leaves behind, and what it raises.


@without_gpu
def test_nothing_stays_mocked_here():
    before = {name: getattr(torch.cuda, name) for name in dir(torch.cuda)}
    with pytest.raises(RuntimeError, match=re.escape(f"torch {torch.__version__}") + ".*Error"):
        triton_source(lambda x: x + torch.ones(3), torch.randn(3))  # on a GPU x alone would be there
    assert {name: getattr(torch.cuda, name) for name in dir(torch.cuda)} == before
    assert not torch.cuda.is_available()
    assert torch.Tensor.__invert__(torch.tensor([True])).tolist() == [False]
    (source,) = triton_source(torch.sin, torch.randn(3))  # and the second process has survived the error
    assert count([source]) == {"pointwise": 1}


@without_gpu
@pytest.mark.slow
def test_inductor_still_compiles_for_this_cpu():
    triton_source(torch.sin, torch.randn(3))
    x = torch.randn(16, requires_grad=True)
    compiled = torch.compile(lambda x: torch.sin(x) * 2)(x)
    torch.testing.assert_close(compiled, torch.sin(x) * 2)
    torch.testing.assert_close(*(torch.autograd.grad(y.sum(), x)[0] for y in (compiled, torch.sin(x) * 2)))


def test_wrong_arguments_raise():
    x = torch.randn(3)
    with pytest.raises(ValueError, match="arch: expected one of 75, 80, 90, got 70"):
        triton_source(torch.sin, x, arch=70)
    with pytest.raises(ValueError, match="backward: neither an input nor a parameter"):
        triton_source(torch.sin, x, backward=True)


def test_options():
    def unrelated(x, y):
        return x + 1, y * 2

    inputs = torch.randn(64, 64), torch.randn(64, 64)
    assert count(triton_source(unrelated, *inputs)) == {"pointwise": 2}
    assert count(triton_source(unrelated, *inputs, options={"combo_kernels": True})) == {"pointwise": 1}
    assert count(triton_source(unrelated, *inputs)) == {"pointwise": 2}  # for that call only
    with pytest.raises(ValueError, match="has no no_such_option"):
        triton_source(unrelated, *inputs, options={"combo_kernels": True, "no_such_option": 1})


@without_gpu
@pytest.mark.slow
def test_another_architecture_is_another_gpu():
    (source,) = triton_source(torch.sin, torch.randn(3), arch=75)
    assert "cc=75" in source


def test_another_torch_is_named(monkeypatch):
    monkeypatch.delattr("torch._inductor.compile_fx.compile_fx_inner")
    with pytest.raises(
        RuntimeError, match=r"torch\._inductor\.compile_fx has no compile_fx_inner.*torch 2\.11 and 2\.13"
    ):
        lower.lower(None, [], False, {})


@pytest.mark.slow
def test_layers_of_other_models():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    pooled = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
    for model, x in ((layer, torch.randn(2, 16, 64)), (pooled, torch.randn(2, 3, 16, 16))):
        before = {name: value.clone() for name, value in model.state_dict().items()}
        forward, backward = triton_source(model, x, backward=True)
        assert all(kernel.source or "extern" in kernel.kind for kernel in (*split(forward), *split(backward)))
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@without_gpu
def test_autocast_is_refused():
    def function(x):
        with torch.autocast(x.device.type, torch.bfloat16):
            return torch.relu(x @ x)

    with pytest.raises(NotImplementedError, match=r"torch\.autocast: without a GPU"):
        triton_source(function, torch.randn(8, 8))
    with torch.autocast("cpu"), pytest.raises(NotImplementedError, match=r"torch\.autocast: without a GPU"):
        triton_source(torch.relu, torch.randn(8, 8))


@without_gpu
@pytest.mark.slow
def test_the_second_process_ends_with_a_killed_one():
    psutil = pytest.importorskip("psutil")
    script = "import os, torch, multiprocessing; from kernels.inductor import triton_source\n"
    script += "triton_source(torch.sin, torch.randn(3))\n"
    script += "print(*(child.pid for child in multiprocessing.active_children()), flush=True); os.kill(os.getpid(), 9)"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, check=False)
    children = [psutil.Process(int(pid)) for pid in done.stdout.split() if psutil.pid_exists(int(pid))]
    assert done.returncode == -9
    assert len(done.stdout.split()) == 1
    assert not psutil.wait_procs(children, timeout=300)[1]


@without_gpu
def test_graphs_keep_their_order():
    def broken(x):
        y = torch.sin(x)
        torch._dynamo.graph_break()
        return torch.cos(y).sum()

    x = torch.randn(8, requires_grad=True)
    fused = [
        [op for kernel in split(source) for op in kernel.fused] for source in triton_source(broken, x, backward=True)
    ]
    assert [ops[0] for ops in fused[:2]] == ["aten.sin", "aten.cos"]
    assert "aten.cos" in fused[3]  # sin's derivative comes last
    assert len(fused) == 4


def test_a_module_and_the_callers_gradients_are_left_alone():
    mlp = MLP((16, 32, 16), rank=4, alpha=8.0).to(DEVICE)
    x = torch.randn(64, 16, device=DEVICE)
    forward, backward = triton_source(mlp, x, backward=True)
    assert all(parameter.grad is None for parameter in mlp.parameters())
    assert count([forward])["extern GEMM"] == 6  # three a layer
    assert "aten.threshold_backward" in {op for kernel in split(backward) for op in kernel.fused}
    assert all(isinstance(module, nn.Module) for module in mlp)


def test_graphs_travel_whole():
    def function(x):
        with torch.no_grad():
            mask = torch.tensor([1.0, 0.0, 2.0])
        return (x.to(torch.float64) * mask)[:, 1:], torch.ones(3, dtype=torch.int64, device=x.device) + x.long()

    x = torch.randn(4, 3)
    ((graph, arguments),) = trace(function, x)
    sent = fx_graphs.dumps((graph, arguments))
    again, (like,) = pickle.loads(sent)
    assert [(n.op, n.name, n.target) for n in again.graph.nodes] == [
        (n.op, n.name, n.target) for n in graph.graph.nodes
    ]
    assert (like.shape, like.stride, like.dtype) == ((4, 3), (3, 1), torch.float32)
    assert len(sent) < 10_000
    ((constant, _),) = trace(lambda x: x + torch.tensor([1.0, 2.0, 3.0], device=x.device), x)
    with pytest.raises(NotImplementedError, match="make that tensor an input"):
        fx_graphs.dumps(constant)


def test_main_writes_what_read_reads(tmp_path, capsys):
    assert main(["--out", str(tmp_path)]) == 0
    assert {path.stem for path in tmp_path.iterdir()} == records.cases().keys()
    one = "{'pointwise': 1}"
    assert {f"add_relu.txt: {one}", f"add_mul_activation.txt: {one}"} <= set(capsys.readouterr().out.splitlines())
    header, (source,) = records.read(tmp_path / "add_mul_activation.txt")
    assert header["torch"] == torch.__version__
    assert header.keys() == {"command", "GPU", "torch", "triton", "date", "launches"}
    (kernel,) = split(source)
    assert kernel.fused == ("aten.mul", "aten.add", "aten.sigmoid")
    assert str(tmp_path) not in (tmp_path / "add_relu.txt").read_text()


def test_a_marked_size_stays_open_on_a_gpu(monkeypatch):
    """Its device pretended: what torch.compile is given there."""
    seen = {}

    def compiled(function, dynamic):
        def call(*inputs):
            seen["open"] = dynamic, [lower.open_dimensions(tensor) for tensor in inputs]
            return torch.ones(1)

        return call

    monkeypatch.setattr(torch, "compile", compiled)
    monkeypatch.setattr(torch.Tensor, "to", lambda self, device: self.clone())
    x, y = torch.randn(4, 5), torch.randn(4, 5)
    lower._compile_on_gpu(torch.add, (x, y), False, {})
    assert seen["open"] == (False, [set(), set()])
    torch._dynamo.mark_dynamic(x, 0)
    lower._compile_on_gpu(torch.add, (x, y), False, {})
    assert seen["open"] == (False, [{0}, set()])
