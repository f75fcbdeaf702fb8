"""A whole DLRM generated without a GPU: counted, compiled, run against eager, and compared with what a GPU recorded."""

import re
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch
from generated import DEVICE, close, executable

from kernels.inductor import compile_kernel, count, records, split, table, trace, triton_source
from model import DLRM, PRESETS, profiling

GPU = DEVICE.type == "cuda"
BATCH = 128
TABLES = 4  # of the 26, in training: each adds kernels that differ in nothing but numbers
RECORD = Path(__file__).resolve().parent.parent / "traces" / "generated"
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


def dlrm_main(tables):
    """DLRM main, with tables of a hundred rows or more, and a batch in which some ids are missing."""
    torch.manual_seed(0)
    cardinalities = tuple(100 + 7 * i for i in range(tables))
    model = DLRM(replace(PRESETS["main"].model, cardinalities=cardinalities, sparse_gradients=False)).to(DEVICE)
    sparse = torch.randint(-1, 2**32, (BATCH, tables), device=DEVICE)
    sparse[::3] = -1
    return model, torch.randn(BATCH, 13, device=DEVICE), sparse


@pytest.fixture(scope="module")
def dlrm():
    return dlrm_main(26)


@pytest.fixture(scope="module")
def inference(dlrm):
    return triton_source(*dlrm)


@pytest.fixture(scope="module")
def small_dlrm():
    return dlrm_main(TABLES)


@pytest.fixture(scope="module")
def training(small_dlrm):
    return triton_source(*small_dlrm, backward=True)


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
    gradients = executable(training[1])([*saved, gradient])
    eager = model(*inputs)
    close(logits, eager.detach())
    wanted = [argument for argument in arguments if argument.requires_grad]
    assert len(wanted) == len(list(model.parameters()))
    computed = [value for value in gradients if value is not None]
    for actual, expected in zip(computed, torch.autograd.grad(eager, wanted, gradient), strict=True):
        close(actual, expected)


@pytest.mark.parametrize("arch", [90, *(pytest.param(arch, marks=pytest.mark.slow) for arch in (75, 80))])
def test_dlrm_compiles(inference, training, arch):
    # One of the kernels that differ in nothing but numbers.
    every = (kernel for source in (*inference, *training) for kernel in split(source) if kernel.source)
    kernels = {re.sub(r"\d+", "", kernel.source): kernel for kernel in every}.values()
    assert {kernel.kind for kernel in kernels} == {"pointwise", "reduction", "persistent reduction"}
    for kernel in kernels:
        compiled = compile_kernel(kernel.source, arch)
        assert (compiled.name, compiled.arch) == (kernel.name, arch)
        assert re.search(rf"^\.target sm_{arch}", compiled.ptx, flags=re.M)
        assert f".entry {kernel.name}(" in compiled.ptx
        assert compiled.cubin.startswith(b"\x7fELF")


def test_sources_name_no_path(inference, training):
    for source in (*inference, *training):
        assert "kernel path" not in source
        assert not re.search(r"""["'\s(]/(tmp|root|home|work|usr)\b""", source)
        assert str(Path.home()) not in source


def test_modules_written_are_read(tmp_path, training):
    records.write(tmp_path / "both.txt", training, "a command")
    header, sources = records.read(tmp_path / "both.txt")
    assert header["command"] == "a command"
    assert [split(source) for source in sources] == [split(source) for source in training]


def launches(names=str):
    """{case: {kernel: launches}} of what is recorded, as it is generated here; names: what of a kernel's name counts.

    On a GPU Inductor times products to decide whether to pad them, with another answer from time to time; the record
    has none padded.
    """
    counts = {}
    for case, (fn, inputs, backward) in (records.cases() | profiling.generated_cases()).items():
        sources = triton_source(fn, *inputs, backward=backward, options={"shape_padding": False})
        counts[case] = counted(sources, names)
    return counts


def counted(sources, names=str):
    counts = Counter()
    for kernel in (kernel for source in sources for kernel in split(source)):
        counts[names(kernel.name)] += kernel.launches
    return counts


def without_number(name):
    return re.sub(r"_\d+$", "", name)


@pytest.mark.slow
def test_kernels_are_those_that_a_gpu_recorded():
    """Whole names on the record's torch; on another, without the number that they end in, as DIFFERENCES says."""
    recorded = {path.stem: records.read(path) for path in RECORD.glob("*.txt")}
    here = torch.__version__.rpartition(".")[0]
    same = {header["torch"].rpartition(".")[0] == here for header, _ in recorded.values()}
    names = str if same == {True} else without_number
    if GPU:  # compiled in a process of its own, where no earlier test has set anything of torch's
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            counts = pool.submit(launches, names).result()
    else:
        counts = launches(names)
    assert recorded.keys() == counts.keys()
    for case, (header, sources) in recorded.items():
        assert not header["GPU"].startswith("none")
        before = counted(sources, names)
        differ = {name: (before[name], counts[case][name]) for name in before | counts[case]}
        differ = {name: pair for name, pair in differ.items() if pair[0] != pair[1]}
        assert differ == ({} if names is str else DIFFERENCES.get(here, {}).get(case, {})), case
