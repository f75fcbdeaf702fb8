"""Export a trained DLRM: a folder that a process without Python serves raw rows from, and Python too.

    python -m model.export --checkpoint build/checkpoints/NAME/best.pt --out DIR [--pooling sum]

    DIR/manifest.tsv      what is here: inputs, constants, the sha256 of each file, the torch and the CPU it is for
    DIR/package/          what AOTInductor compiled of `model.serving.Served`, for any batch size
    DIR/constants/        weights, tables and ids, a raw file each: mapped, and shared by all processes that serve them
    DIR/libops.so         the ops that the package calls (kernels.library)
    DIR/samples.pt        inputs and the probabilities that eager gave for them, for run_exported --check

`model.serving.exported.Exported` runs it in Python, and run_exported in C++ (model/serving/cpp/CMakeLists.txt).
"""

if __name__ == "__main__":
    from data.cli import run

    run("model.export")

import os
import shutil
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

import torch
from loguru import logger
from torch import Tensor
from torch.export import Dim

from data.cli import Parser, UserError
from kernels import library
from model.checkpoints import first_line
from model.dlrm import DLRM
from model.serving.exported import package_loader
from model.serving.manifest import CONSTANTS, INSTRUCTIONS, LIBRARY, MANIFEST, PACKAGE, SAMPLES, Manifest, Tensors
from model.serving.served import POOLINGS, Served

SAMPLE_BATCHES = (0, 1, 2, 257, 2048, 2049)
# AOTInductor compiles for the CPU it runs on, with the weights inside, for batches of two rows and more.
OPTIONS = {
    "aot_inductor.package_constants_in_so": False,
    "aot_inductor.check_lowerbound": False,
    "cpp.march": INSTRUCTIONS,
    "cpp.simdlen": 256,
}


# -------------------------------------------------------------------------------------------------------------- writing


def export(checkpoint: Path, out: Path, pooling: str = "none") -> None:
    """Write the folder `out`, completely or not at all. UserError: it is there already; what cannot be exported."""
    if out.exists():
        raise UserError(f"{out}: is there already; name another folder, or remove it")
    served = Served(DLRM.from_checkpoint(checkpoint), pooling).eval()
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        partial.chmod(0o755)
        with torch.no_grad():
            write(served, partial)
        os.replace(partial, out)
    except OSError as error:
        raise UserError(f"{out}: cannot be written: {error.strerror or error}") from None
    except library.LibraryError as error:
        raise UserError(f"the ops' library cannot be built: {first_line(error)}") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def write(served: Served, folder: Path) -> None:
    """Write all files, and then the manifest of them."""
    samples = [sample(served, batch, seed) for seed, batch in enumerate(SAMPLE_BATCHES)]
    compile_package(served, samples[SAMPLE_BATCHES.index(257)], folder / PACKAGE)
    library.build(folder / LIBRARY)
    tensors = dict(served.named_parameters()) | dict(served.named_buffers())
    names = sorted(package_loader(folder).get_constant_fqns())
    (folder / CONSTANTS).mkdir()
    for name in names:
        tensors[name].contiguous().numpy().tofile(folder / CONSTANTS / name)
    torch.save([[*inputs, served(*inputs)] for inputs in samples], folder / SAMPLES)
    constants = [Tensors(name, tensors[name].dtype, tuple(tensors[name].shape)) for name in names]
    (folder / MANIFEST).write_text(Manifest.of(folder, inputs_of(served), constants).text())


def compile_package(served: Served, inputs: Sequence[Tensor], to: Path) -> None:
    batch = Dim("batch")
    sizes = [batch, batch] if served.pooling == "none" else [batch, Dim("ids"), served.features * batch + 1]
    program = torch.export.export(served, tuple(inputs), dynamic_shapes=tuple({0: size} for size in sizes))
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / "model.pt2"
        torch._inductor.aoti_compile_and_package(program, package_path=str(package), inductor_configs=OPTIONS)
        with zipfile.ZipFile(package) as archive:  # from a folder nothing is unpacked again, and nothing is left behind
            archive.extractall(folder)
        shutil.move(Path(folder) / "model", to)


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
    parser = Parser(prog="python -m model.export", description="Export a trained DLRM, for Python and for C++.")
    parser.add_argument("--checkpoint", required=True, type=Path, metavar="FILE", help="what model.train wrote")
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="a new folder")
    parser.add_argument(
        "--pooling", default="none", choices=POOLINGS, help="none: one id a feature; sum, mean: bags of ids"
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    options = parser().parse_args(arguments)
    export(options.checkpoint, options.out, options.pooling)
    size = sum(path.stat().st_size for path in options.out.rglob("*") if path.is_file())
    logger.info("{}: {:.1f} MB", options.out, 1e-6 * size)
