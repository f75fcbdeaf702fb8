"""An exported model, in Python."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from model.serving.manifest import LIBRARY, PACKAGE, ExportError, Manifest

if TYPE_CHECKING:
    from model.serving.table import Table


class Exported:
    """What `model.export` wrote: Exported(folder)(counts, ids) → probabilities.

    Every file is checked before one is loaded. Neither Dynamo nor Inductor is imported. Threads may call it, and run
    one at a time.

    Raises ExportError, naming the file and what is wrong with it: it is missing, changed, made by another torch or for
    another CPU.
    """

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder).resolve()
        self.manifest = Manifest.read(self._folder)
        self.manifest.verify(self._folder)
        if not self.manifest.inputs:
            raise ExportError(f"{self._folder}: not a model: its manifest has no inputs")
        torch.ops.load_library(str(self._folder / LIBRARY))
        self._constants = self.manifest.mapped(self._folder)
        self._loaded = self._with(self._constants)

    def __call__(self, *inputs: Tensor) -> Tensor:
        """The probabilities, float32 [B]. ExportError: inputs that the manifest does not have."""
        self.manifest.check(inputs)
        return self._loaded(inputs)

    def reload(self, table: Table) -> None:
        """Look ids up in this table from here on, while other threads call: each call has the one table or the other.

        An id whose row was not trained has row 0. ExportError: it is a table for another model; the one before stays.
        """
        table.check(self.manifest.constants)
        self._loaded = self._with(self._constants | table.constants)

    def _with(self, constants: Mapping[str, Tensor]) -> _Loaded:
        return _Loaded(self._folder / PACKAGE, constants, self.manifest.no_rows())


class _Loaded:
    """The package with one set of constants. A reload makes another one, and calls that run keep theirs: torch can also
    swap the constants of one package, but waits for a moment without a call, which may never come."""

    def __init__(self, package: Path, constants: Mapping[str, Tensor], no_rows: list[Tensor]) -> None:
        self._constants = {name: tensor.detach() for name, tensor in constants.items()}
        # torch waits for its one runner with the GIL held, and the call that has the runner may want the GIL for an op
        # in Python: without a lock that is waited for in Python, both would wait for ever.
        self._one_at_a_time = threading.Lock()
        self._runner = runner_of(package)
        named = self._runner.get_constant_names_to_original_fqns()
        constants = {own: self._constants[name] for own, name in named.items()}
        self._runner.update_constant_buffer(constants, False, True, True)  # where they lie: nothing is copied
        self._runner.run(no_rows)  # the first call does what the next ones need not

    def __call__(self, inputs: tuple[Tensor, ...]) -> Tensor:
        with self._one_at_a_time:
            return self._runner.run(list(inputs))[0]

    def __del__(self) -> None:
        # torch 2.13 never lets go of constants that the caller owns: without this their files would stay mapped.
        self.__dict__.pop("_runner", None)
        for tensor in self._constants.values():
            tensor.set_()


def runner_of(package: Path) -> torch._C._aoti.AOTIModelContainerRunnerCpu:
    """What runs the package's code, one call at a time. torch's package loader makes such a one too, but before 2.13 of
    a zip file alone, which it unpacks into a temporary folder."""
    (code,) = package.rglob("*.so")
    return torch._C._aoti.AOTIModelContainerRunnerCpu(str(code), 1)
