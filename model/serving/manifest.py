"""What an exported folder says of itself, a line a fact, tab-separated, so that C++ reads it too (cpp/manifest.h).

    format        2
    torch         2.13.0
    instructions  x86-64-v3
    input         counts         float32  B      13
    constant      rows           float32  12692  16
    precision     fp32           1e-06
    error         3.96e-07       1.03e-06
    file          constants/rows 812288   sha256

A package for a GPU has a line `gpu  sm_90` more, and its code in package_sm_90/: without the line no code is found.

precision: what the package computes in (model.config.Precision), and how far a probability of it may be from eager's.
error: how far its probabilities were, when it was exported, from those of the same model in float64, on the rows of
samples.pt: the largest absolute error, and the largest relative one. A table of ids (table.py) has neither line.

Format 1 had neither; what it describes is read as fp32, which it is, of an error that nobody has measured.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from model.config import Precision

FORMAT = 2  # one more when a file of the folder or its meaning changes
READ = ("1", "2")  # the formats that are read
WITHOUT_PRECISION = {"": 1e-6, "gpu": 1e-5}  # how far a probability of format 1 may be from eager's: on a CPU, on a GPU
MANIFEST, CONSTANTS, LIBRARY, SAMPLES = "manifest.tsv", "constants", "libops.so", "samples.pt"
COLUMNS = "columns.json"
INSTRUCTIONS = "x86-64-v3"  # every x86-64 CPU with AVX2
_NEEDED = {"avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "abm"}  # as Linux calls what x86-64-v3 adds


class ExportError(ValueError):
    """A folder that is not whole, or for another machine or model; or inputs that the model does not take."""


@dataclass(frozen=True)
class Tensors:
    """The tensors that an input takes, or a constant. A size is a number, or B or N, any number, which is the same
    wherever it stands, or 26*B+1."""

    name: str
    dtype: torch.dtype
    shape: tuple[int | str, ...]

    def sizes(self) -> str:
        return f"[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class File:
    path: str
    size: int
    sha256: str

    @classmethod
    def of(cls, folder: Path, path: Path) -> File:
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        return cls(path.relative_to(folder).as_posix(), path.stat().st_size, sha256)


@dataclass(frozen=True)
class Exactness:
    """How exact a package is. most_off: how far a probability of it may be from eager's. absolute, relative: the
    largest errors of its probabilities that were seen, against float64; None where nobody has measured."""

    precision: Precision
    most_off: float
    absolute: float | None = None
    relative: float | None = None

    def __str__(self) -> str:
        if self.absolute is None:
            return f"{self.precision}, whose error was not measured"
        return f"{self.precision}, off by {self.absolute:.1e} at most, or by {self.relative:.1e} of a probability"


@dataclass(frozen=True)
class Manifest:
    torch: str
    instructions: str
    gpu: str  # its architecture: sm_90, say; empty: for the CPU, or no code at all
    inputs: tuple[Tensors, ...]
    constants: tuple[Tensors, ...]
    files: tuple[File, ...]
    exactness: Exactness | None = None  # None: of a table of ids

    @classmethod
    def of(
        cls, folder: Path, inputs: Sequence[Tensors], constants: Sequence[Tensors], gpu: str = "",
        exactness: Exactness | None = None,
    ) -> Manifest:
        """The manifest of a folder that is complete but for it."""
        paths = sorted(path for path in folder.rglob("*") if path.is_file())
        files = tuple(File.of(folder, path) for path in paths)
        return cls(_release(), INSTRUCTIONS, gpu, tuple(inputs), tuple(constants), files, exactness)

    @property
    def package(self) -> str:
        """The folder of the code, within the model's."""
        return package_of(self.gpu)

    def mapped(self, folder: Path) -> dict[str, Tensor]:
        """The constants, whose pages all processes that map them share."""
        return {constant.name: _mapped(folder / CONSTANTS / constant.name, constant) for constant in self.constants}

    @property
    def code(self) -> str:
        """The compiled code within the model's folder. ExportError: there is none, or more than one file."""
        paths = [file.path for file in self.files if file.path.startswith(f"{self.package}/")]
        paths = [path for path in paths if path.endswith(".so")]
        if not paths:
            raise ExportError(f"{MANIFEST}: not whole: no line of the code in {self.package}/")
        if len(paths) > 1:
            raise ExportError(f"{MANIFEST}: two files of code: {paths[0]} and {paths[1]}")
        return paths[0]

    def one_row(self) -> list[Tensor]:
        """The inputs of a batch of one row, of zeros; of bags: one id each."""
        bags = _number(self.inputs[2].shape[0], {"B": 1}) - 1 if len(self.inputs) == 3 else 0
        tensors = [
            torch.zeros([_number(size, {"B": 1, "N": bags}) for size in spec.shape], dtype=spec.dtype)
            for spec in self.inputs
        ]
        return [*tensors[:2], torch.arange(bags + 1)] if bags else tensors

    def text(self) -> str:
        lines = [("format", FORMAT), ("torch", self.torch), ("instructions", self.instructions)]
        lines += [("gpu", self.gpu)] * bool(self.gpu)
        for kind, every in (("input", self.inputs), ("constant", self.constants)):
            lines += [(kind, t.name, str(t.dtype).removeprefix("torch."), *t.shape) for t in every]
        if exact := self.exactness:
            lines.append(("precision", exact.precision, exact.most_off))
            if exact.absolute is not None:
                lines.append(("error", f"{exact.absolute:.2e}", f"{exact.relative:.2e}"))
        lines += [("file", file.path, file.size, file.sha256) for file in self.files]
        return "".join("\t".join(map(str, line)) + "\n" for line in lines)

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """ExportError: there is none, it is of another version, or not whole."""
        path = folder / MANIFEST
        try:
            lines = [line.split("\t") for line in path.read_text().splitlines()]
        except (OSError, UnicodeDecodeError) as error:
            raise ExportError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
        facts: dict[str, list[list[str]]] = {}
        for kind, *rest in lines:
            facts.setdefault(kind, []).append(rest)
        versions = facts.get("format", [["none"]])
        if versions not in [[[number]] for number in READ]:
            said = ", ".join(" ".join(version) for version in versions)
            raise ExportError(f"{path}: format {said}, this reads {' and '.join(READ)}")
        try:
            [[release]], [[instructions]] = facts["torch"], facts["instructions"]
            [[gpu]] = facts.get("gpu", [[""]])
            inputs, constants = ([_tensors(*rest) for rest in facts.get(kind, [])] for kind in ("input", "constant"))
            files = [File(path, int(size), sha256) for path, size, sha256 in facts["file"]]
            inputs = tuple(inputs)
            exactness = _exactness(facts, versions == [["1"]], gpu) if inputs else None
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ExportError(f"{path}: not whole: {type(error).__name__}: {error}") from None
        return cls(release, instructions, gpu, inputs, tuple(constants), tuple(files), exactness)

    def verify(self, folder: Path) -> None:
        """ExportError: made for another torch or another CPU; a file that is not what it was, or of the package and
        in no line."""
        if self.torch != _release():
            raise ExportError(f"{folder}: made by torch {self.torch}, and this is {_release()}: export it anew")
        if missing := _NEEDED - _instructions():
            lacking = ", ".join(sorted(missing))
            raise ExportError(f"{folder}: made for {self.instructions}, and this CPU lacks {lacking}")
        listed = {file.path for file in self.files}
        needed = [f"{CONSTANTS}/{constant.name}" for constant in self.constants]
        if self.inputs:
            self.code  # noqa: B018
            paths = sorted((folder / self.package).rglob("*"))
            needed += [LIBRARY, SAMPLES, *(path.relative_to(folder).as_posix() for path in paths if not path.is_dir())]
        for path in needed:
            if path not in listed:
                raise ExportError(f"{folder / MANIFEST}: not whole: no line of {path}")
        for file in self.files:
            path = folder / file.path
            try:
                actual = File.of(folder, path)
            except OSError as error:
                raise ExportError(f"{path}: cannot be read: {error.strerror}") from None
            if actual.size != file.size:
                raise ExportError(f"{path}: {actual.size} bytes, and the manifest says {file.size}")
            if actual != file:
                raise ExportError(f"{path}: its bytes are not those that were exported (sha256)")

    def check(self, inputs: Sequence[Tensor]) -> None:
        """ExportError: another number, dtype, shape, layout or device."""
        if len(inputs) != len(self.inputs):
            names = ", ".join(spec.name for spec in self.inputs)
            raise ExportError(f"expected {len(self.inputs)} inputs, {names}; got {len(inputs)}")
        sizes: dict[str, int] = {}
        for spec, tensor in zip(self.inputs, inputs, strict=True):
            if not isinstance(tensor, Tensor):
                raise ExportError(f"{spec.name}: expected a tensor; got {type(tensor).__name__}")
            if tensor.dtype != spec.dtype:
                raise ExportError(f"{spec.name}: expected {spec.dtype}; got {tensor.dtype}")
            if tensor.device.type != "cpu":
                raise ExportError(f"{spec.name}: expected a tensor of the CPU; got one of {tensor.device}")
            fits = len(spec.shape) == tensor.dim() and all(
                _fits(size, number, sizes) for size, number in zip(spec.shape, tensor.shape, strict=True)
            )
            if not fits:
                told = "".join(f", {name} = {number}" for name, number in sizes.items())
                raise ExportError(f"{spec.name}: expected {spec.sizes()}{told}; got {list(tensor.shape)}")
            if not tensor.is_contiguous():
                raise ExportError(f"{spec.name}: expected a contiguous tensor; got strides {tensor.stride()}")
            if spec.name == "offsets":
                _check_offsets(tensor, sizes["N"])


def package_of(gpu: str) -> str:
    return f"package_{gpu}" if gpu else "package"


def write_constants(folder: Path, tensors: Mapping[str, Tensor]) -> list[Tensors]:
    """Write a raw file each, and return what they are."""
    (folder / CONSTANTS).mkdir()
    for name, tensor in tensors.items():
        # As bytes: NumPy has no bfloat16.
        tensor.cpu().contiguous().flatten().view(torch.uint8).numpy().tofile(folder / CONSTANTS / name)
    return [Tensors(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()]


def _mapped(path: Path, constant: Tensors) -> Tensor:
    elements = torch.Size(constant.shape).numel()
    if not elements:  # nothing can be mapped
        return torch.empty(constant.shape, dtype=constant.dtype)
    if elements * constant.dtype.itemsize != path.stat().st_size:
        raise ExportError(f"{path}: {path.stat().st_size} bytes, and {constant.dtype} {constant.sizes()} has others")
    return torch.from_file(str(path), shared=False, size=elements, dtype=constant.dtype).view(constant.shape)


def _check_offsets(offsets: Tensor, ids: int) -> None:
    falls = (offsets.diff() < 0).nonzero()
    if len(falls):
        at = int(falls[0]) + 1
        raise ExportError(f"offsets[{at}] is {int(offsets[at])}, below {int(offsets[at - 1])} before it")
    if int(offsets[0]) != 0 or int(offsets[-1]) != ids:
        first, last = int(offsets[0]), int(offsets[-1])
        raise ExportError(f"offsets: expected 0 first and {ids} (the number of ids) last; got {first} and {last}")


def _exactness(facts: Mapping[str, Sequence[Sequence[str]]], of_format_1: bool, gpu: str) -> Exactness:
    if of_format_1:
        return Exactness(Precision.FP32, WITHOUT_PRECISION["gpu" if gpu else ""])
    [[precision, most_off]], errors = facts["precision"], facts.get("error", [])
    if len(errors) > 1 or (errors and len(errors[0]) != 2):
        raise ValueError("error: expected two numbers")
    if not 0 < float(most_off) < math.inf:
        raise ValueError(f"precision: expected how far it may be off, above 0; got {most_off}")
    return Exactness(Precision(precision), float(most_off), *(float(error) for line in errors for error in line))


def _tensors(name: str, dtype: str, *shape: str) -> Tensors:
    return Tensors(name, getattr(torch, dtype), tuple(int(size) if size.isdigit() else size for size in shape))


def _fits(size: int | str, number: int, known: dict[str, int]) -> bool:
    """Whether a tensor's number is what the size says; a letter that is new is known from here on."""
    if size not in known and isinstance(size, str) and len(size) == 1:
        known[size] = number
    return number == _number(size, known)


def _number(size: int | str, known: dict[str, int]) -> int:
    if isinstance(size, int):
        return size
    factor, letter, more = re.fullmatch(r"(?:(\d+)\*)?([A-Z])(?:\+(\d+))?", size).groups()
    return int(factor or 1) * known[letter] + int(more or 0)


def _release() -> str:
    """2.13.0 of 2.13.0+cpu."""
    return torch.__version__.partition("+")[0]


def _instructions() -> set[str]:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return set()
    flags = re.search(r"^flags\s*:(.*)$", text, re.MULTILINE)
    return set(flags.group(1).split()) if flags else set()
