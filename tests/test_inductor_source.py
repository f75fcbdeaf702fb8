"""Generated Triton: lowered without a GPU, counted, compiled for three architectures, and run against eager."""

import io
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import psutil
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from kernels import inductor_source, runtime
from kernels.ops.add_mul_activation.eager import FUNCTIONS, add_mul_activation
from kernels.inductor import compile_kernel, count, run_kernel, split, table, trace, triton_source
from model import DLRM, PRESETS
from model.lora import MLP

DEVICE = runtime.device()
GPU = DEVICE.type == "cuda"
BATCH = 128
TABLES = 4  # of the 26, in training: each adds kernels that differ in nothing but numbers
# How often a DLRM launches what it launches differently: (in the record, of torch 2.11; in 2.13). A table's gradient is
# still a kernel that fills zeros and one that adds, under one name now; the outer product in the last layer's backward
# was cuBLAS's and is part of a pointwise kernel.
_GRADIENT = "triton_poi_fused_add_embedding_dense_backward_select_slice"
_DLRM = {
    f"{_GRADIENT}_threshold_backward_transpose": (26, 0),
    f"{_GRADIENT}_transpose": (0, 52),
    "triton_poi_fused_embedding_dense_backward": (26, 0),
    "triton_poi_fused_addmm_cat_index_relu_select": (1, 0),
    "triton_poi_fused_index_select": (0, 1),
    "triton_poi_fused_mm_t_threshold_backward_unsqueeze": (0, 1),
}
# torch → case → kernel, without its number → launches.
DIFFERENCES = {
    "2.13": {
        "dlrm_main": _DLRM | {"extern_kernels.mm": (19, 18), "triton_poi_fused_threshold_backward": (5, 4)},
        "dlrm_small": _DLRM | {"extern_kernels.mm": (10, 9), "triton_poi_fused_threshold_backward": (2, 1)},
    }
}
RECORD = Path(__file__).resolve().parent.parent / "traces" / "generated"
without_gpu = pytest.mark.skipif(GPU, reason="there is a GPU: nothing is lowered for a fake one")


def close(actual, expected):
    """float32, but sums of hundreds of products, each library adding in an order of its own."""
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5 * max(1.0, expected.abs().max().item()))


def executable(source, launched=None):
    """`call` of a generated module, its kernels run by run_kernel (reductions, which that refuses, by _run)."""

    def kernel(self, name, text, **_):
        def run(*arguments, stream):
            if launched is not None:
                launched[name] += 1
            run = run_kernel if name.startswith("triton_poi_") else inductor_source._run
            run(text, *arguments)

        return SimpleNamespace(run=run)

    def poisoned(shape, stride, dtype):
        out = torch.empty_strided(shape, stride, dtype=dtype, device=DEVICE)
        return out.fill_(torch.nan) if dtype.is_floating_point else out

    from torch._inductor.async_compile import AsyncCompile  # imports Triton, so not before kernels

    text = re.sub(r"^from torch\._C import _cuda_getCurrentRawStream.*", "get_raw_stream = int", source, flags=re.M)
    namespace = {"__name__": "generated"}
    with mock.patch.multiple(AsyncCompile, triton=kernel, wait=mock.DEFAULT):
        exec(text, namespace)
    namespace["empty_strided_cuda"] = poisoned

    def call(arguments):
        with torch.no_grad(), mock.patch.multiple(torch.cuda, _DeviceGuard=mock.MagicMock(), set_device=mock.DEFAULT):
            return namespace["call"](list(arguments))

    return call


def dlrm_main(tables):
    """DLRM main, with tables of a hundred rows or more, and a batch in which some ids are missing."""
    torch.manual_seed(0)
    model = DLRM(replace(PRESETS["main"].model, cardinalities=tuple(100 + 7 * i for i in range(tables)))).to(DEVICE)
    sparse = torch.randint(-1, 2**32, (BATCH, tables), device=DEVICE)
    sparse[::3] = -1
    return model, torch.randn(BATCH, 13, device=DEVICE), sparse


@pytest.fixture(scope="module")
def dlrm():
    return dlrm_main(26)


@pytest.fixture(scope="module")
def inference(dlrm):
    if not GPU:
        inductor_source._process(75)  # starts meanwhile, for the test of another architecture
    return triton_source(*dlrm)


@pytest.fixture(scope="module")
def small_dlrm():
    return dlrm_main(TABLES)


@pytest.fixture(scope="module")
def training(small_dlrm):
    return triton_source(*small_dlrm, backward=True)


# ------------------------------------------------------------------------------------------------------------------
# DLRM.


def test_dlrm_is_counted_and_26_look_ups_stay_26_kernels(inference, training):
    (forward,) = inference
    kernels = split(forward)
    looks_up = [kernel for kernel in kernels if "aten.embedding" in kernel.fused]
    assert len(looks_up) == 26
    assert {kernel.launches for kernel in looks_up} == {1}
    assert {kernel.kind for kernel in kernels} == {"pointwise", "extern GEMM"}
    assert sum(kernel.launches for kernel in kernels if kernel.kind == "extern GEMM") == 8  # seven layers, the dot
    assert count(inference) == Counter(kernel.kind for kernel in kernels for _ in range(kernel.launches))
    assert len(training) == 2
    assert set(count(training)) == {"pointwise", "reduction", "persistent reduction", "extern GEMM"}
    rows = table(training)
    assert set(rows["graph"]) == {0, 1}
    # A look-up's gradient is scattered: one kernel a table fills it with zeros, one adds.
    assert rows[rows["graph"] == 1]["fused"].str.contains("aten.embedding_dense_backward").sum() == 2 * TABLES


def test_dlrm_generated_equals_eager(dlrm, inference):
    launched = Counter()
    ((_, arguments),) = trace(*dlrm)
    (logits,) = executable(inference[0], launched)(arguments)
    with torch.no_grad():
        close(logits, dlrm[0](*dlrm[1:]))
    assert launched == {kernel.name: kernel.launches for kernel in split(inference[0]) if kernel.source}


def test_dlrm_generated_gradients_equal_eager(small_dlrm, training):
    model, *inputs = small_dlrm
    ((_, arguments),) = trace(model, *inputs, backward=True)
    logits, *saved = executable(training[0])(arguments)
    gradient = torch.randn(BATCH, device=DEVICE)
    found = executable(training[1])([*saved, gradient])
    eager = model(*inputs)
    close(logits, eager.detach())
    wanted = [argument for argument in arguments if argument.requires_grad]
    assert len(wanted) == len(list(model.parameters()))
    computed = [value for value in found if value is not None]
    for actual, expected in zip(computed, torch.autograd.grad(eager, wanted, gradient), strict=True):
        close(actual, expected)


def targets(rows, classes):
    return torch.arange(rows, device=DEVICE) % classes


# Operators made of others, some of which have a kernel of their own on the meta device, where autograd misses it.
@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.cross_entropy(x, targets(8, 10).to(x.device)),
        lambda x: F.cross_entropy(x, x.softmax(1).detach(), label_smoothing=0.1),
        lambda x: torch.where(x > 0, x, 0.0),
        lambda x: x.std(0),
        lambda x: F.prelu(x, x[0, :1].abs()),
        lambda x: x[0] * x.chunk(2)[1],
    ],
    ids=["cross_entropy", "label_smoothing", "where", "std", "prelu", "views"],
)
def test_generated_gradients_equal_eager(function):
    torch.manual_seed(0)
    x = torch.randn(8, 10, device=DEVICE, requires_grad=True)
    eager = function(x)
    gradient = torch.randn_like(eager)
    forward, backward = triton_source(function, x, backward=True)
    ((_, arguments),) = trace(function, x, backward=True)
    out, *saved = executable(forward)(arguments)
    (found,) = (value for value in executable(backward)([*saved, gradient]) if value is not None)
    close(out, eager.detach())
    close(found, torch.autograd.grad(eager, x, gradient)[0])


def test_dlrm_compiles_for_three_architectures(inference, training):
    # In training, one of the kernels that differ in nothing but numbers.
    alike = {re.sub(r"\d+", "", kernel.source): kernel for source in training for kernel in split(source)}
    kernels = [kernel for kernel in (*split(inference[0]), *alike.values()) if kernel.source]
    assert {kernel.kind for kernel in kernels} == {"pointwise", "reduction", "persistent reduction"}
    for kernel in kernels:
        for arch in (75, 80, 90):
            compiled = compile_kernel(kernel.source, arch)
            assert (compiled.name, compiled.arch) == (kernel.name, arch)
            assert re.search(rf"^\.target sm_{arch}", compiled.ptx, flags=re.M)
            assert f".entry {kernel.name}(" in compiled.ptx
            assert compiled.cubin.startswith(b"\x7fELF")


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


def test_sources_name_no_path(inference, training):
    for source in (*inference, *training):
        assert "kernel path" not in source
        assert not re.search(r"""["'\s(]/(tmp|root|home|work|usr)\b""", source)
        assert str(Path.home()) not in source


@without_gpu
def test_nothing_stays_mocked_here(inference):
    before = {name: getattr(torch.cuda, name) for name in dir(torch.cuda)}
    with pytest.raises(RuntimeError, match=re.escape(f"torch {torch.__version__}") + ".*Error"):
        triton_source(lambda x: x + torch.ones(3), torch.randn(3))  # on a GPU x alone would be there
    assert {name: getattr(torch.cuda, name) for name in dir(torch.cuda)} == before
    assert not torch.cuda.is_available()
    assert torch.Tensor.__invert__(torch.tensor([True])).tolist() == [False]
    x = torch.randn(16, requires_grad=True)
    compiled = torch.compile(lambda x: torch.sin(x) * 2)(x)
    torch.testing.assert_close(compiled, torch.sin(x) * 2)
    torch.testing.assert_close(*(torch.autograd.grad(y.sum(), x)[0] for y in (compiled, torch.sin(x) * 2)))
    (source,) = triton_source(torch.sin, torch.randn(3))  # and the second process has survived the error
    assert count([source]) == {"pointwise": 1}


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
def test_another_architecture_is_another_gpu():
    (source,) = triton_source(torch.sin, torch.randn(3), arch=75)
    assert "cc=75" in source


def test_another_torch_is_named(monkeypatch):
    monkeypatch.delattr("torch._inductor.compile_fx.compile_fx_inner")
    with pytest.raises(
        RuntimeError, match=r"torch\._inductor\.compile_fx has no compile_fx_inner.*torch 2\.11 and 2\.13"
    ):
        inductor_source._lower(None, [], False, {})


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
def test_the_second_process_ends_with_a_killed_one():
    script = "import os, torch, multiprocessing; from kernels.inductor import triton_source\n"
    script += "triton_source(torch.sin, torch.randn(3))\n"
    script += "print(*(child.pid for child in multiprocessing.active_children()), flush=True); os.kill(os.getpid(), 9)"
    done = subprocess.run([sys.executable, "-c", script], cwd=RECORD.parents[1], stdout=subprocess.PIPE, check=False)
    children = [psutil.Process(int(pid)) for pid in done.stdout.split() if psutil.pid_exists(int(pid))]
    assert done.returncode == -9
    assert len(done.stdout.split()) == 1
    assert not psutil.wait_procs(children, timeout=20)[1]


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
    file = io.BytesIO()
    inductor_source._Pickler(file).dump((graph, arguments))
    file.seek(0)
    again, (like,) = inductor_source.pickle.load(file)
    assert [(n.op, n.name, n.target) for n in again.graph.nodes] == [
        (n.op, n.name, n.target) for n in graph.graph.nodes
    ]
    assert (like.shape, like.stride, like.dtype) == ((4, 3), (3, 1), torch.float32)
    assert len(file.getvalue()) < 10_000
    ((constant, _),) = trace(lambda x: x + torch.tensor([1.0, 2.0, 3.0], device=x.device), x)
    with pytest.raises(NotImplementedError, match="make that tensor an input"):
        inductor_source._Pickler(file).dump(constant)


# ------------------------------------------------------------------------------------------------------------------
# Records.


def test_main_writes_what_read_reads(tmp_path, capsys):
    assert inductor_source.main(["--out", str(tmp_path)]) == 0
    one = "{'pointwise': 1}"
    assert capsys.readouterr().out == f"add_relu.txt: {one}\nadd_mul_activation.txt: {one}\n"
    header, (source,) = inductor_source.read(tmp_path / "add_mul_activation.txt")
    assert header["torch"] == torch.__version__
    assert header.keys() == {"command", "GPU", "torch", "triton", "date", "launches"}
    (kernel,) = split(source)
    assert kernel.fused == ("aten.mul", "aten.add", "aten.sigmoid")
    assert str(tmp_path) not in (tmp_path / "add_relu.txt").read_text()


def test_modules_written_are_read(tmp_path, training):
    inductor_source.write(tmp_path / "both.txt", training, "a command")
    header, sources = inductor_source.read(tmp_path / "both.txt")
    assert header["command"] == "a command"
    assert [split(source) for source in sources] == [split(source) for source in training]


def test_kernels_are_those_that_a_gpu_recorded():
    """Whole names on the record's torch; on another, without the number that they end in, as DIFFERENCES says."""
    from model import profiling

    cases, here = inductor_source.cases() | profiling.generated_cases(), torch.__version__.rpartition(".")[0]
    assert {file.stem for file in RECORD.glob("*.txt")} == cases.keys()
    for case, (fn, inputs, backward) in cases.items():
        header, sources = inductor_source.read(RECORD / f"{case}.txt")
        assert not header["GPU"].startswith("none")
        same = header["torch"].rpartition(".")[0] == here
        recorded, found = Counter(), Counter()
        for counter, modules in ((recorded, sources), (found, triton_source(fn, *inputs, backward=backward))):
            for kernel in (kernel for source in modules for kernel in split(source)):
                counter[kernel.name if same else re.sub(r"_\d+$", "", kernel.name)] += kernel.launches
        differ = {name: (recorded[name], found[name]) for name in recorded | found if recorded[name] != found[name]}
        assert differ == ({} if same else DIFFERENCES.get(here, {}).get(case, {})), case
