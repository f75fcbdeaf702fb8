"""Export a trained DLRM: a folder that a process without Python serves raw rows from, and Python too; or an ONNX file.

    python -m model.export --checkpoint build/checkpoints/NAME/best.pt --out DIR [--pooling sum]
                           [--device cuda [--precision tf32]]
    python -m model.export --checkpoint build/checkpoints/NAME/best.pt --onnx FILE

    DIR/manifest.tsv      what is here: inputs, constants, the sha256 of each file, the torch, CPU and GPU that it is
                          for, the precision, and how far the probabilities were off
    DIR/package/          what AOTInductor compiled of `model.serving.Served`, for any batch size; for a GPU of sm_90
                          package_sm_90/
    DIR/constants/        weights, tables and ids, a raw file each: mapped, and shared by all processes that serve them
    DIR/libops.so         the ops that the package calls (kernels.library), and for a GPU the model's own kernel, where
                          one computes it (model.serving.forms)
    DIR/columns.json      the rows' columns that the inputs hold, in their order, and their kinds (data/README.md): of a
                          text the id is its CRC-32
    DIR/samples.pt        inputs and the probabilities that eager gave for them, for run_exported --check

The precision is fp32 unless another is asked for: so a package's answers are the model's, to what the order of sums
changes. tf32 and bf16 change them by more, which a model may or may not bear: whoever exports decides it, by the
errors that the manifest states.

`model.serving.exported.Exported` runs it in Python, and run_exported in C++ (model/serving/cpp/CMakeLists.txt).
The ONNX file is what `model.serving.onnx_file` describes: each ONNX runtime takes it.
"""

if __name__ == "__main__":
    from data.cli import run

    run("model.export")

import importlib
import json
import shlex
import shutil
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import torch
from loguru import logger
from torch import Tensor
from torch.export import Dim

from data.cli import Parser, UserError
from data.criteo import IDS
from kernels import library, runtime
from kernels.cubin.compile import CubinError
from kernels.dispatch.build import BuildError
from model.checkpoints import first_line
from model.config import Precision
from model.device import choose
from model.dlrm import DLRM
from model.evaluation import columns_of, input_columns
from model.serving import forms
from model.serving.exported import Exported, architecture, current, runner_of
from model.serving.folders import new_file, new_folder
from model.serving.manifest import (
    COLUMNS,
    INSTRUCTIONS,
    LIBRARY,
    MANIFEST,
    SAMPLES,
    Exactness,
    Manifest,
    Tensors,
    package_of,
    write_constants,
)
from model.serving.served import POOLINGS, Served

SAMPLE_BATCHES = (0, 1, 2, 257, 2048, 2049)
# How far a compiled model's probability may be from eager's in float32, by the device and the precision. Float32 sums
# may be added up in another order, and a GPU's products are for most numbers of rows. In TF32 a product's factors have
# 11 bits, in bfloat16 8, and so has what each layer gives: a logit is off by some units in its last place, and the
# sigmoid makes at most a quarter of it.
MOST_OFF = {
    ("cpu", Precision.FP32): 1e-6, ("cuda", Precision.FP32): 1e-5, ("cuda", Precision.TF32): 2e-3,
    ("cuda", Precision.BF16): 2e-2,
}  # fmt: skip
# And from float64's: eager's own error is in it.
MOST_OFF_FLOAT64 = MOST_OFF | {("cpu", Precision.FP32): 1e-5}
# By default AOTInductor compiles for the CPU it runs on, with the weights inside, for batches of two rows and more. It
# writes small constants into the code, where a reload could not replace them.
OPTIONS = {
    "always_keep_tensor_constants": True,
    "aot_inductor.package_constants_in_so": False,
    "aot_inductor.check_lowerbound": False,
    "cpp.simdlen": 256,
}


# -------------------------------------------------------------------------------------------------------------- writing


def export(
    checkpoint: Path, out: Path | None = None, pooling: str | None = None, onnx: Path | None = None,
    hash_size: int | None = None,
    device: str | torch.device = "cpu", precision: Precision = Precision.FP32,
) -> None:
    """Write the folder `out`, the file `onnx`, or both, each completely or not at all.

    pooling: "none" for one id a feature, "sum" or "mean" for bags; default: "none", but for a model that was trained on
    lists "sum", and it takes no other.
    device: what the folder's package is for: the CPU, or GPUs of this one's architecture.
    precision: what the package computes in; for a CPU fp32 alone.
    hash_size: what is exported takes ids modulo this, as data.preprocess --hash-size did for the rows that the model
    has seen; default: what the checkpoint says.

    UserError: one is there already; what cannot be exported; the package is off by more than its precision promises.
    """
    if precision is not Precision.FP32 and out is None:
        raise UserError(f"--precision {precision}: of a folder (--out); an ONNX file is float32")
    if onnx is not None:
        onnx_file = _onnx_file()
        onnx_file.check(onnx, pooling or "none")
    device = choose(device)
    forms.check(device, precision)
    if out is not None:
        if missing := runtime.why_no_build(device.type):
            raise UserError(f"--out: {missing}")
        with new_folder(out) as folder, torch.no_grad():
            model, pooling = _model(checkpoint, pooling, onnx, hash_size)
            (folder / COLUMNS).write_text(json.dumps(input_columns(model), indent=1, ensure_ascii=False) + "\n")
            try:
                write(Served(model, pooling).eval().to(device), folder, precision)
            except (library.LibraryError, CubinError) as error:
                raise UserError(f"the ops' library cannot be built: {first_line(error)}") from None
            except BuildError as error:
                raise UserError(first_line(error)) from None
        _log(out)
    if onnx is not None:
        with new_file(onnx) as folder, torch.no_grad():
            onnx_file.write(_model(checkpoint, pooling, onnx, hash_size)[0], folder / onnx.name)
        _log(onnx)


def _model(checkpoint: Path, pooling: str | None, onnx: Path | None, hash_size: int | None) -> tuple[DLRM, str]:
    """The model and how it pools; UserError for what does not go with a model of lists."""
    model = DLRM.from_checkpoint(checkpoint)
    model.hash_size = hash_size or model.hash_size
    lists = columns_of(model).lists
    if lists and pooling not in (None, "sum"):
        raise UserError(
            f"--pooling {pooling}: {lists[0]} has lists, and the model was trained on their sums; leave --pooling out"
        )
    if lists and onnx is not None:
        raise UserError(
            f"--onnx: {lists[0]} has lists, and ONNX has no operator that sums the embeddings of their ids; export to "
            "a folder (--out)"
        )
    return model, pooling or ("sum" if lists else "none")


def _onnx_file() -> ModuleType:
    """model.serving.onnx_file; UserError, naming it, where a package that it needs is missing."""
    try:
        return importlib.import_module("model.serving.onnx_file")
    except ModuleNotFoundError as error:
        if error.name not in ("onnx", "onnxscript"):
            raise
        raise UserError(f"--onnx: the package {error.name} is missing; requirements.txt has its version") from None


def _log(path: Path) -> None:
    files = path.rglob("*") if path.is_dir() else [path]
    size = sum(file.stat().st_size for file in files if file.is_file())
    logger.info("{}: {:.1f} MB", path, 1e-6 * size)


def write(served: Served, folder: Path, precision: Precision = Precision.FP32) -> None:
    """Write all files, and then the manifest of them. UserError: the package is off by more than the precision
    promises."""
    device = served.rows.device
    gpu = architecture(device) if device.type == "cuda" else ""
    package = folder / package_of(gpu)
    samples = [sample(served, batch, seed) for seed, batch in enumerate(SAMPLE_BATCHES)]
    placed = [[tensor.to(device) for tensor in inputs] for inputs in samples]
    computed = forms.form(served, precision)
    with current(device):
        build_ops(computed, folder / LIBRARY, gpu)
        compile_package(computed, placed[SAMPLE_BATCHES.index(257)], package)
        (code,) = package.rglob("*.so")
        names = sorted(runner_of(code, device).get_constant_names_to_original_fqns().values())
        answers = [served(*inputs).cpu() for inputs in placed]
        exact = [served.exactly(*inputs).cpu() for inputs in placed]
    tensors = dict(computed.named_parameters()) | dict(computed.named_buffers())
    constants = write_constants(folder, {name: tensors[name] for name in names})
    torch.save([[*inputs, answer] for inputs, answer in zip(samples, answers, strict=True)], folder / SAMPLES)
    exactness = Exactness(precision, MOST_OFF[device.type, precision])
    manifest = Manifest.of(folder, inputs_of(served), constants, gpu, exactness)
    (folder / MANIFEST).write_text(manifest.text())
    exactness = measured(Exported(folder, device.index), samples, answers, exact)
    (folder / MANIFEST).write_text(replace(manifest, exactness=exactness).text())


def build_ops(computed: Served, to: Path, gpu: str) -> None:
    """The library of the ops, and the model's own kernel in it where one computes it, which is then loaded."""
    if not isinstance(computed, forms.OneKernel):
        return library.build(to, gpu)
    with tempfile.TemporaryDirectory() as folder:
        op, sources = computed.program.build(Path(folder))
        library.build(to, gpu, sources)
    torch.ops.load_library(str(to))
    return computed.load(op)


def measured(
    exported: Exported, samples: Sequence[Sequence[Tensor]], answers: Sequence[Tensor], exact: Sequence[Tensor]
) -> Exactness:
    """What the package's manifest is to say. answers: eager's probabilities of the samples; exact: those in float64.

    UserError: a probability is not as near to either as the precision promises.
    """
    exactness = exported.manifest.exactness
    predicted = [exported(*inputs) for inputs in samples]
    for probabilities, want in zip(predicted, answers, strict=True):
        if not torch.allclose(probabilities, want, rtol=0, atol=exactness.most_off, equal_nan=True):
            raise UserError(f"{len(want)} rows: the compiled model gives other probabilities than PyTorch's eager mode")
    predicted, exact = torch.cat(predicted).double(), torch.cat([*exact])
    off = (predicted - exact).abs()
    off[predicted.isnan() & exact.isnan()] = 0.0  # a model that predicts NaN does so here too
    relative = torch.where(off > 0, off / exact, 0.0)
    exactness = replace(exactness, absolute=off.max().item(), relative=relative.max().item())
    check_error(exactness, "cuda" if exported.manifest.gpu else "cpu")
    logger.info("{}", exactness)
    return exactness


def check_error(exactness: Exactness, device: str) -> None:
    """UserError: the error against float64 is more than the precision promises on such a device."""
    precision, most = exactness.precision, MOST_OFF_FLOAT64[device, exactness.precision]
    if not exactness.absolute <= most:
        cure = "" if precision is Precision.FP32 else "; export in fp32"
        raise UserError(
            f"--precision {precision}: a probability is {exactness.absolute:.1e} off float64's, and the precision "
            f"promises {most:.0e}{cure}"
        )


def compile_package(served: Served, inputs: Sequence[Tensor], to: Path) -> None:
    batch = Dim("batch")
    sizes = [batch, batch] if served.pooling == "none" else [batch, Dim("ids"), served.features * batch + 1]
    program = torch.export.export(served, tuple(inputs), dynamic_shapes=tuple({0: size} for size in sizes))
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / "model.pt2"
        options = OPTIONS | _instructions(Path(folder))
        torch._inductor.aoti_compile_and_package(program, package_path=str(package), inductor_configs=options)
        with zipfile.ZipFile(package) as archive:  # from a folder nothing is unpacked again, and nothing is left behind
            archive.extractall(folder)
        shutil.move(Path(folder) / "model", to)


def _instructions(folder: Path) -> dict:
    """Options with which Inductor compiles for INSTRUCTIONS. torch 2.11 has none for them and says -march=native: there
    the compiler is a script in the folder, which says another -march behind it, and the last one counts."""
    compiler = runtime.compiler_program()
    if hasattr(torch._inductor.config.cpp, "march"):
        return {"cpp.march": INSTRUCTIONS, "cpp.cxx": (None, compiler)}
    script = folder / Path(compiler).name  # by which Inductor knows what options it takes
    script.write_text(f'#!/bin/sh\nexec {shlex.quote(compiler)} "$@" -march={INSTRUCTIONS}\n')
    script.chmod(0o755)
    return {"cpp.cxx": (None, str(script))}


def inputs_of(served: Served) -> list[Tensors]:
    """What `Served.forward` takes."""
    counts = Tensors("counts", torch.float32, ("B", served.dense_arch.mlp[0].in_features))
    if served.pooling == "none":
        return [counts, Tensors("ids", torch.int64, ("B", served.features))]
    offsets = Tensors("offsets", torch.int64, (f"{served.features}*B+1",))
    return [counts, Tensors("ids", torch.int64, ("N",)), offsets]


def sample(served: Served, batch: int, seed: int) -> list[Tensor]:
    """Inputs of so many rows: counts of which some are missing, ids of which most are known, others at the edges."""
    random = torch.Generator().manual_seed(seed)
    columns = served.dense_arch.mlp[0].in_features
    counts = torch.randint(-2, 1000, (batch, columns), generator=random).float()
    counts[torch.rand(counts.shape, generator=random) < 0.2] = torch.nan
    known = [torch.arange(100)] * served.features if served.modulus else served.known
    lengths = torch.ones(served.features, batch, dtype=torch.int64)
    if served.pooling != "none":
        lengths = torch.randint(0, 4, lengths.shape, generator=random)
    drawn = []
    for ids, of_feature in zip(known, lengths, strict=True):
        ids = torch.cat([ids, torch.tensor([-1, -(2**63), 2**63 - 1, 2**32])])
        drawn.append(ids[torch.randint(len(ids), (int(of_feature.sum()),), generator=random)])
    if served.pooling == "none":
        return [counts, torch.stack(drawn, 1)]
    return [counts, torch.cat(drawn), torch.cat([torch.zeros(1, dtype=torch.int64), lengths.flatten().cumsum(0)])]


# ------------------------------------------------------------------------------------------------------------- command


def parser() -> Parser:
    parser = Parser(prog="python -m model.export", description="Export a trained DLRM, for C++, Python or ONNX.")
    parser.add_argument("--checkpoint", required=True, type=Path, metavar="FILE", help="what model.train wrote")
    parser.add_argument("--out", type=Path, metavar="DIR", help="a new folder, for run_exported and for Python")
    parser.add_argument("--onnx", type=Path, metavar="FILE", help="a new file, for any ONNX runtime")
    parser.add_argument(
        "--pooling", choices=POOLINGS,
        help="none: one id a feature; sum, mean: bags of ids (default: none; sum for a model of lists)",
    )
    parser.add_argument(
        "--hash-size", type=int, metavar="N", help="ids modulo N (default: as the checkpoint's rows were)"
    )
    parser.add_argument("--device", default="cpu", help="what the folder is for: cpu (default), cuda or cuda:N")
    parser.add_argument(
        "--precision", choices=[*map(str, Precision)], default=str(Precision.FP32),
        help="of the folder's products: fp32 (default: the model's own answers), or on a GPU tf32 or bf16, which are "
        "faster, and off by what the manifest says",
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    command = parser()
    options = command.parse_args(arguments)
    if options.out is None and options.onnx is None:
        command.error("name a folder (--out), a file (--onnx) or both")
    if options.hash_size is not None and not 1 <= options.hash_size <= IDS:
        command.error(f"argument --hash-size: expected 1 to {IDS}, got {options.hash_size}")
    export(
        options.checkpoint, options.out, options.pooling, options.onnx, options.hash_size, options.device,
        Precision(options.precision),
    )
