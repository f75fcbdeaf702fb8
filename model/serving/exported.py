"""An exported model, in Python."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from model.serving.manifest import CONSTANTS, LIBRARY, PACKAGE, Manifest, Tensors


class Exported:
    """What `model.export` wrote: Exported(folder)(counts, ids) → probabilities.

    Every file is checked before one is loaded. Neither Dynamo nor Inductor is imported.

    Raises ExportError, naming the file and what is wrong with it: it is missing, changed, made by another torch or for
    another CPU.
    """

    def __init__(self, folder: str | Path) -> None:
        folder = Path(folder).resolve()
        self.manifest = Manifest.read(folder)
        self.manifest.verify(folder)
        torch.ops.load_library(str(folder / LIBRARY))
        self._loader = package_loader(folder)
        self._constants = {each.name: _mapped(folder / CONSTANTS, each) for each in self.manifest.constants}
        self._loader.load_constants(self._constants, False, True, True)

    def __call__(self, *inputs: Tensor) -> Tensor:
        """The probabilities, float32 [B]. ExportError: inputs that the manifest does not have."""
        self.manifest.check(inputs)
        return self._loader.run(list(inputs))[0]


def package_loader(folder: Path) -> torch._C._aoti.AOTIModelPackageLoader:
    """Of the folder's package, one that runs one call at a time."""
    return torch._C._aoti.AOTIModelPackageLoader(str(folder / PACKAGE), "model", False, 1, -1)


def _mapped(folder: Path, constant: Tensors) -> Tensor:
    """The tensor in a file, whose pages all processes that map it share."""
    elements = torch.Size(constant.shape).numel()
    if not elements:  # nothing can be mapped
        return torch.empty(constant.shape, dtype=constant.dtype)
    path = str(folder / constant.name)
    return torch.from_file(path, shared=False, size=elements, dtype=constant.dtype).view(constant.shape)
