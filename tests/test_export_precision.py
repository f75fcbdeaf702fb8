"""An export's precision: by what a package computes, what its manifest says of it, and what is refused.

By which kernel, and with what arguments, is seen here over a driver that records (packaged_launches.py); what comes of
it on a GPU is seen in test_export_cuda.py.
"""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import fake_driver
import pytest
import torch
from exported_models import CARDINALITIES, trained
from packaged_launches import CALLS, MODELS, build

from data.cli import UserError
from kernels import runtime
from kernels.ops.dlrm.cluster import Clusters
from kernels.ops.dlrm.packaged import Program, name_of
from kernels.ops.dlrm.pair import Pairs
from kernels.ops.dlrm.shape import Shape
from kernels.ops.dlrm.tile import Tiles
from model import export
from model.config import Interaction, Precision
from model.dlrm import DLRM
from model.export import MOST_OFF, MOST_OFF_FLOAT64, sample
from model.hashing import Hash
from model.serving import forms
from model.serving.exported import Exported
from model.serving.forms import InHalf, InSlices, OneKernel
from model.serving.manifest import CONSTANTS, MANIFEST, Exactness, ExportError, Manifest, Tensors, write_constants
from model.serving.served import Served

FP32, TF32, BF16 = Precision
H200 = 90, 227 * 1024  # its architecture, and bytes of shared memory a block
WIDE = {"bottom": (13, 512, 16), "top": (256, 1)}  # more than a lane has registers for
MAIN = {"bottom": (13, 512, 256, 64, 16), "top": (512, 256, 1)}
TESTS = Path(__file__).resolve().parent


@pytest.fixture
def on_h200(monkeypatch):
    """A package for an H200 is planned here."""
    for name, value in zip(("architecture", "shared_memory"), H200, strict=True):
        monkeypatch.setattr(forms, name, lambda device, value=value: value)
    monkeypatch.setattr(forms, "check_precision", lambda device, precision: None)
    return torch.device("cuda")


# ------------------------------------------------------------------------------------------------------------- by what


@pytest.mark.parametrize(
    ("changes", "precision", "designs"),
    [
        ({}, FP32, [Shape]),
        ({}, TF32, [Shape]),  # in full float32, which is as fast there
        ({}, BF16, [Clusters] * 2 + [Tiles] * 3),
        (WIDE, TF32, [Clusters] * 2 + [Tiles] * 3),
        (WIDE, BF16, [Clusters] * 2 + [Tiles] * 3),
        (MAIN, TF32, [Clusters] * 2 + [Pairs]),
        (MAIN, BF16, [Clusters] * 2 + [Pairs]),
    ],
)
def test_one_kernel(on_h200, changes, precision, designs):
    served = Served(trained(**changes))
    form = forms.form(served, precision, on_h200)
    assert isinstance(form, OneKernel)
    assert [*map(type, form.program.designs)] == designs
    assert form.rows.dtype == form.laid_out.dtype == (torch.bfloat16 if precision is BF16 else torch.float32)
    assert form.laid_out.shape == (form.program.elements,)
    names = {name for name, _ in served.named_buffers(recurse=False)}
    assert {name for name, _ in form.named_buffers()} == {*names, "laid_out"}, "what a table's reload replaces, too"


def test_what_one_kernel_does_not_take(on_h200):
    wide = Served(trained(**WIDE))
    assert forms.form(wide, FP32, on_h200) is wide
    with_bags = Served(trained(), "sum")
    assert forms.form(with_bags, FP32, on_h200) is with_bags
    assert isinstance(forms.form(with_bags, BF16, on_h200), InHalf)
    for served, why in (
        (with_bags, "bags of ids are not looked up by the one kernel"),
        (Served(trained(interaction=Interaction.CAT)), "has the interaction dot, and the model's is cat"),
        (Served(trained(bottom=(13, 10), embedding_dim=10, top=(300, 1))), "vectors of 40 bytes, and a tile takes"),
        (Served(trained(top=(60000, 1))), "dlrm_forward: the model does not fit into one kernel"),
    ):
        with pytest.raises(UserError, match=rf"--precision tf32: .*{why}.*; export in bf16 or fp32"):
            forms.form(served, TF32, on_h200)


@pytest.mark.parametrize("pooling", ["none", "sum"])
def test_the_cpus_pairs_are_slices(pooling):
    served = Served(trained(), pooling).eval()
    form = forms.form(served, FP32)
    assert isinstance(form, InSlices)
    inputs = export.sample(served, 33, 0)
    assert torch.equal(form(*inputs), served(*inputs))
    cat = Served(trained(interaction=Interaction.CAT))
    assert forms.form(cat, FP32) is cat
    served.interaction_arch.register_forward_hook(lambda *_: None)
    assert forms.form(served, FP32) is served


def test_layers_that_are_others_are_not_taken(on_h200):
    served = Served(trained())
    served.dense_arch.mlp[1] = torch.nn.GELU()
    assert forms.form(served, FP32, on_h200) is served
    served = Served(trained())
    served.over_arch.logit = torch.nn.Linear(32, 1, bias=False)
    assert forms.form(served, FP32, on_h200) is served


@pytest.mark.parametrize("precision", [TF32, BF16])
def test_a_package_for_the_cpu_is_fp32(tmp_path, precision):
    served = Served(trained())
    with pytest.raises(UserError, match=rf"--precision {precision}: of a package for a GPU \(--device cuda\)"):
        forms.form(served, precision)
    # Before anything is read or written.
    with pytest.raises(UserError, match=f"--precision {precision}: of a package for a GPU"):
        export.export(tmp_path / "none.pt", tmp_path / "out", precision=precision)
    assert [*tmp_path.iterdir()] == []


def test_a_precision_is_of_a_folder(tmp_path):
    with pytest.raises(UserError, match=r"--precision bf16: of a folder \(--out\); an ONNX file is float32"):
        export.export(tmp_path / "none.pt", onnx=tmp_path / "model.onnx", precision=BF16)


def test_a_precision_that_there_is_not(capsys):
    with pytest.raises(SystemExit, match="2"):
        export.main(["--checkpoint", "a.pt", "--out", "out", "--precision", "fp16"])
    error = capsys.readouterr().err
    assert "argument --precision: invalid choice: 'fp16'" in error
    assert all(precision in error for precision in Precision)


# ------------------------------------------------------------------------------------------------------------ how exact


@pytest.mark.parametrize("pooling", ["none", "sum", "mean"])
@pytest.mark.parametrize("hash_", [Hash.SORTED, Hash.MODULUS])
def test_exactly_is_the_model_in_float64(pooling, hash_):
    served = Served(trained(hash_), pooling)
    inputs = sample(served, 57, 1)
    exact = served.exactly(*inputs)
    assert exact.dtype == torch.float64
    torch.testing.assert_close(served(*inputs), exact.float(), rtol=1e-5, atol=1e-6)
    double = Served(trained(hash_), pooling).double()
    torch.testing.assert_close(double(inputs[0].double(), *inputs[1:]), exact, rtol=1e-12, atol=1e-12)
    assert served.exactly(*sample(served, 0, 1)).shape == (0,)


@pytest.mark.parametrize("pooling", ["none", "sum"])
def test_in_half_is_as_exact_as_it_promises(pooling):
    served = Served(trained(), pooling)
    half = InHalf(served)
    inputs = sample(served, 300, 2)
    off = (half(*inputs).double() - served.exactly(*inputs)).abs().max()
    assert MOST_OFF["cuda", FP32] < off < MOST_OFF["cuda", BF16]
    assert half(*inputs).dtype == torch.float32
    assert next(served.over_arch.parameters()).dtype == torch.float32, "the model stays what it is"


def package(precision, off, gpu="sm_90"):
    """What `measured` asks of a package whose probabilities are all off by so much."""

    def call(counts, ids):
        return torch.full((len(counts),), 0.25 + off)

    call.manifest = SimpleNamespace(
        gpu=gpu, exactness=Exactness(precision, MOST_OFF["cuda" if gpu else "cpu", precision])
    )
    return call


def check(package):
    samples = [[torch.zeros(rows, 13), torch.zeros(rows, 4, dtype=torch.int64)] for rows in (0, 3)]
    answers = [torch.full((rows,), 0.25) for rows in (0, 3)]
    return export.measured(package, samples, answers, [answer.double() for answer in answers])


def test_the_errors_are_measured():
    exactness = check(package(BF16, 2**-8))
    assert exactness == Exactness(BF16, MOST_OFF["cuda", BF16], 2**-8, 2**-6)
    assert str(exactness) == "bf16, off by 3.9e-03 at most, or by 1.6e-02 of a probability"
    assert check(package(FP32, 0.0, gpu="")).absolute == 0


@pytest.mark.parametrize(("precision", "gpu"), [(FP32, ""), (FP32, "sm_90"), (TF32, "sm_90"), (BF16, "sm_90")])
def test_an_export_that_is_less_exact_than_it_promises(precision, gpu):
    most = MOST_OFF["cuda" if gpu else "cpu", precision]
    check(package(precision, 0.9 * most - 3e-8, gpu))
    with pytest.raises(UserError, match="3 rows: the compiled model gives other probabilities than PyTorch's eager"):
        check(package(precision, 1.1 * most + 3e-8, gpu))


def test_an_error_that_eager_has_too():
    """Of a model whose sums cancel, eager's float32 is off as well: then the package is near eager, and not exact."""
    exactness = Exactness(TF32, 1.0, 0.0031, 0.1)
    with pytest.raises(UserError) as refused:
        export.check_error(exactness, "cuda")
    assert str(refused.value) == (
        "--precision tf32: a probability is 3.1e-03 off float64's, and the precision promises 2e-03; export in fp32"
    )
    with pytest.raises(UserError, match=r"promises 1e-05$"):
        export.check_error(Exactness(FP32, 1.0, 0.0031, 0.1), "cpu")
    with pytest.raises(UserError, match="a probability is nan off"):
        export.check_error(Exactness(BF16, 1.0, torch.nan, torch.nan), "cuda")
    for (device, precision), most in MOST_OFF_FLOAT64.items():
        export.check_error(Exactness(precision, 1.0, most, 0.1), device)


# ------------------------------------------------------------------------------------------------------------- manifest


@pytest.fixture
def folder(tmp_path):
    """A manifest, and constants: no package that runs."""
    tensors = {"rows": torch.randn(5, 4).bfloat16(), "laid_out": torch.randn(9), "none": torch.zeros(0, 3)}
    constants = write_constants(tmp_path, tensors)
    exactness = Exactness(TF32, 2e-3, 4.8e-4, 1.25e-3)
    manifest = Manifest.of(tmp_path, [Tensors("counts", torch.float32, ("B", 13))], constants, "sm_90", exactness)
    (tmp_path / MANIFEST).write_text(manifest.text())
    return SimpleNamespace(path=tmp_path, manifest=manifest, tensors=tensors)


def test_a_manifest_says_precision_and_errors(folder):
    lines = (folder.path / MANIFEST).read_text().splitlines()
    assert lines[0] == "format\t2"
    at = lines.index("precision\ttf32\t0.002")
    assert lines[at + 1] == "error\t4.80e-04\t1.25e-03"
    assert lines[at + 2].startswith("file\t")
    assert Manifest.read(folder.path) == folder.manifest
    mapped = folder.manifest.mapped(folder.path)
    assert all(torch.equal(mapped[name], tensor) for name, tensor in folder.tensors.items())
    assert (folder.path / CONSTANTS / "rows").stat().st_size == 2 * 5 * 4


@pytest.mark.parametrize(("gpu", "most"), [("sm_90", 1e-5), ("", 1e-6)])
def test_a_manifest_of_the_format_before(folder, gpu, most):
    kept = [
        line for line in replace(folder.manifest, gpu=gpu).text().splitlines(keepends=True)
        if not line.startswith(("precision", "error"))
    ]  # fmt: skip
    (folder.path / MANIFEST).write_text("".join(kept).replace("format\t2", "format\t1"))
    exactness = Manifest.read(folder.path).exactness
    assert exactness == Exactness(FP32, most)
    assert str(exactness) == "fp32, whose error was not measured"


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("format\t2", "format\t3", "format 3, this reads 1 and 2"),
        ("format\t2", "format\t2\t1", "format 2 1, this reads 1 and 2"),
        ("format\t2\n", "", "format none, this reads 1 and 2"),
        ("precision\ttf32\t0.002\n", "", "not whole: KeyError: 'precision'"),
        ("tf32", "fp8", "not whole: ValueError: 'fp8' is not a valid Precision"),
        ("tf32\t0.002", "tf32", "not whole: ValueError"),
        ("tf32\t0.002", "tf32\tmuch", "not whole: ValueError: .*'much'"),
        *(
            ("tf32\t0.002", f"tf32\t{number}", f"not whole: ValueError: precision: .*above 0; got {number}")
            for number in ("nan", "-1", "0", "inf")
        ),
        ("format\t2\n", "format\t1\nformat\t2\n", "format 1, 2, this reads 1 and 2"),
        ("error\t4.80e-04", "error", "not whole: ValueError: error: expected two numbers"),
    ],
)
def test_a_manifest_that_is_not_right(folder, old, new, why):
    path = folder.path / MANIFEST
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(ExportError, match=why):
        Manifest.read(folder.path)


@pytest.mark.slow
@pytest.mark.parametrize("exported_folder", ["none"], indirect=True)
def test_a_folder_of_the_format_before_runs(exported_folder, serving_programs, tmp_path):
    manifest = Exported(exported_folder).manifest
    assert manifest.exactness.precision is FP32
    assert 0 < manifest.exactness.absolute < MOST_OFF_FLOAT64["cpu", FP32]
    for file in manifest.files:
        (tmp_path / file.path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file.path).symlink_to(exported_folder / file.path)
    lines = (exported_folder / MANIFEST).read_text().splitlines(keepends=True)
    before = "".join(line for line in lines if not line.startswith(("precision", "error")))
    for text, status, told in (
        (before.replace("format\t2", "format\t1"), 0, "in fp32"),
        (before, 2, "not whole: a line is missing"),
        (before.replace("format\t2", "format\t3"), 2, "format 3, this reads 1 and 2"),
        ("".join(lines).replace("\tfp32", "\tfp8"), 2, "not whole: precision\tfp8"),
        *(
            ("".join(lines).replace("fp32\t1e-06", f"fp32\t{number}"), 2, f"not whole: precision\tfp32\t{number}")
            for number in ("few", "1e-06s", "nan", "inf", "0", "-1")
        ),
        ("format\t1\n" + "".join(lines), 2, "format 1, 2, this reads 1 and 2"),
    ):
        (tmp_path / MANIFEST).write_text(text)
        command = [serving_programs / "run_exported", tmp_path, "--check"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert (done.returncode, told in done.stderr) == (status, True), done.stderr


# ----------------------------------------------------------------------------------------------------------- the kernel


def test_a_program_is_of_the_ops_own_rule():
    def names(*given):
        designs = Program.of(*given).designs
        assert all(design.laid_out for design in designs if isinstance(design, Clusters | Pairs))
        return " ".join(map(name_of, designs))

    main = (13, 512, 256, 64, 16), (367, 512, 256, 1), [7] * 26
    clusters, tiles = "clusters_8 clusters_16 ", "tiles_8 tiles_16 tiles_32"
    assert names(*main, torch.float32, "tf32", *H200) == clusters + "pairs"
    assert names((13, 512, 256, 16), *main[1:], torch.float32, "tf32", *H200) == clusters + tiles, "three layers"
    for other in (80, 89, 100, 120):
        assert names(*main, torch.float32, "tf32", other, 227 * 1024) == tiles, "clusters and pairs are of sm_90"
    mlperf = (13, 512, 256, 128), (479, 1024, 1024, 512, 256, 1), [7] * 26
    assert names(*mlperf, torch.float32, "tf32", *H200) == "clusters_8 tiles_8"
    assert names(*mlperf, torch.bfloat16, "ieee", *H200) == clusters + "tiles_8 tiles_16"
    assert "is too large for one kernel" in Program.of(*main, torch.float32, "ieee", *H200)
    assert "sm_80 or later; this is sm_75" in Program.of(*main, torch.bfloat16, "ieee", 75, 64 * 1024)
    odd = (13, 8, 3), (9, 8, 1)  # whose tables' rows have 12 bytes
    for heights, is_aligned in (((4, 9, 3), False), ((4, 8, 3), True)):
        assert Program.of(*odd, heights, torch.float32, "ieee", *H200).shape.aligned is is_aligned


def test_a_small_models_weights_are_laid_out():
    program = Program.of((13, 8, 4), (10, 8, 1), [5, 1, 2], torch.float32, "ieee", *H200)
    weights = [torch.randn(outputs, inputs) for inputs, outputs in program.shape.layers]
    biases = [torch.randn(len(weight)) for weight in weights]
    laid_out = program.lay_out(weights, biases)
    assert len(laid_out) == program.elements == program.places[-1]
    for begin, tensor in zip(program.places, (*weights, *biases), strict=False):
        assert begin % 4 == 0
        assert torch.equal(laid_out[begin : begin + tensor.numel()], tensor.flatten())


@pytest.mark.slow
@pytest.mark.skipif(runtime.device().type == "cuda", reason="for a machine without a GPU")
@pytest.mark.skipif(runtime.nvcc() is None, reason="nvcc is missing")
def test_the_launches_are_the_ops_own(tmp_path):
    """What a package's op gives to a driver, and what the kernels of a host make of it: packaged_launches.py."""
    ops = build(tmp_path)
    # Named by what they do, so that a process may have several models'.
    assert len({*ops.values()}) == 3
    assert all(re.fullmatch(r"dlrm_forward_laid_out\.m[0-9a-f]{16}", op) for op in ops.values())
    driver = fake_driver.build(tmp_path / "libcuda.so.1", "-Wl,-soname,libcuda.so.1")
    command = [sys.executable, TESTS / "packaged_launches.py", tmp_path, driver, json.dumps(ops)]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert [*told] == [*MODELS]
    tiles, pairs, lanes = told.values()
    # The kernel, blocks, a cluster's, and the kind of launch: plain, as tiles read x before they wait; else early. The
    # first kernel all of whose tiles run at once, and then a block a multiprocessor.
    assert tiles["launches"] == [
        # 132 multiprocessors
        ["clusters_8", 8, 8, 2], ["clusters_8", 120, 8, 2], ["clusters_16", 64, 8, 2], ["clusters_16", 120, 8, 2],
        ["tiles_8", 31, 0, 0],
        # 2
        ["tiles_8", 1, 0, 0], ["tiles_8", 1, 0, 0], ["tiles_8", 2, 0, 0], ["tiles_16", 2, 0, 0],
        ["tiles_32", 2, 0, 0], ["tiles_32", 2, 0, 0],
        # 16
        ["clusters_8", 8, 8, 2], ["clusters_16", 8, 8, 2], ["clusters_16", 8, 8, 2], ["tiles_8", 3, 0, 0],
        ["tiles_32", 9, 0, 0],
    ]  # fmt: skip
    assert [launch for launch in pairs["launches"] if launch[0] != "pairs"] == [
        launch for launch in tiles["launches"] if launch[0] in ("clusters_8", "clusters_16")
    ]
    # Two blocks for each 32 rows, and no more than there are multiprocessors.
    assert [launch[1:] for launch in pairs["launches"] if launch[0] == "pairs"] == [
        [16, 2, 2], [2, 2, 2], [2, 2, 2], [2, 2, 2], [2, 2, 2], [2, 2, 2], [2, 2, 2], [2, 2, 2], [16, 2, 2],
    ]  # fmt: skip
    assert lanes["launches"] == [["lanes", -(-rows // 32), 0, 2] for rows, _ in CALLS]
    assert tiles["off"] < MOST_OFF["cuda", TF32]
    assert 0 < pairs["off"] < MOST_OFF["cuda", BF16]
    assert lanes["off"] < MOST_OFF["cuda", FP32]
    assert all(told[name]["nodes"] == ["dlrm_forward_laid_out"] for name in MODELS)
    assert "made for another model: a shape differs" in tiles["wrong"][0]
    assert "made for another dtype" in tiles["wrong"][1]
    assert "rows must be int64" in tiles["wrong"][2]


def test_a_checkpoints_model_has_the_heights_of_its_tables():
    assert Served(trained()).heights_of_tables == tuple(count + 1 for count in CARDINALITIES)
    assert isinstance(trained(), DLRM)
