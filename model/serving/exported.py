"""An exported model, in Python."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kernels.runtime import has_nvidia_driver
from model.serving.manifest import LIBRARY, ExportError, Manifest

if TYPE_CHECKING:
    from torch._C._aoti import AOTIModelContainerRunner

    from model.serving.table import Table

_first, _architecture = threading.Lock(), ""  # of the first package for a GPU


class Exported:
    """What `model.export` wrote: Exported(folder)(counts, ids) → probabilities, all of them tensors of the CPU.

    Every file is checked before one is loaded. Neither Dynamo nor Inductor is imported. Threads may call it, and run
    one at a time. A package for a GPU runs on the GPU of this number, by default the current one.

    Raises ExportError, naming the file and what is wrong with it: it is missing, changed, made by another torch or for
    another CPU or GPU.
    """

    def __init__(self, folder: str | Path, gpu: int | None = None) -> None:
        self._folder = Path(folder).resolve()
        self.manifest = Manifest.read(self._folder)
        self.manifest.verify(self._folder)
        if not self.manifest.inputs:
            raise ExportError(f"{self._folder}: not a model: its manifest has no inputs")
        self._device = _device(self._folder, self.manifest.gpu, gpu)
        with current(self._device):
            torch.ops.load_library(str(self._folder / LIBRARY))
            constants = self._placed(self.manifest.mapped(self._folder))
            self._loaded = _Loaded(self._folder / self.manifest.code, constants, self._device)
            self._loaded(self.manifest.one_row())  # the first call does what the next ones need not
        self._reloads = threading.Lock()

    def __call__(self, *inputs: Tensor) -> Tensor:
        """The probabilities, float32 [B]. ExportError: inputs that the manifest does not have."""
        self.manifest.check(inputs)
        return self._loaded(inputs)

    def reload(self, table: Table) -> None:
        """Look ids up in this table from here on, while other threads call: each call has the one table or the other.

        An id whose row was not trained has row 0. ExportError: it is a table for another model; the one before stays.
        """
        table.check(self.manifest.constants)
        with self._reloads:
            self._loaded.constants = self._loaded.constants | self._placed(table.constants)

    def _placed(self, constants: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The constants on the device. The CPU's stay where they are mapped."""
        return {name: tensor.to(self._device) for name, tensor in constants.items()}


class _Loaded:
    """The package, and the constants that calls have from here on. One runner stays for as long as this does: torch
    2.11 never unloads the kernels of one for a GPU. Torch can also swap constants, but waits for a moment without a
    call, which may never come; here a call that has the lock sees that they are others, and takes them."""

    def __init__(self, code: Path, constants: Mapping[str, Tensor], device: torch.device) -> None:
        self.constants = constants
        self._device = device
        # torch waits for its one runner with the GIL held, and the call that has the runner may want the GIL for an op
        # in Python: without a lock that is waited for in Python, both would wait for ever.
        self._one_at_a_time = threading.Lock()
        self._of: Mapping[str, Tensor] = {}  # which constants the runner has, and as which tensors
        self._lent: dict[str, Tensor] = {}
        self._runner = runner_of(code, device)

    def __call__(self, inputs: Sequence[Tensor]) -> Tensor:
        with self._one_at_a_time, current(self._device):
            if self._of is not self.constants:
                self._lend(self.constants)
            return self._runner.run([tensor.to(self._device) for tensor in inputs])[0].cpu()

    def _lend(self, constants: Mapping[str, Tensor]) -> None:
        named = self._runner.get_constant_names_to_original_fqns()
        lent = {own: constants[name].detach() for own, name in named.items()}
        self._runner.update_constant_buffer(lent, False, True, True)  # where they lie: nothing is copied
        before, self._lent, self._of = self._lent, lent, constants
        _let_go(before)

    def __del__(self) -> None:
        self.__dict__.pop("_runner", None)
        _let_go(self.__dict__.get("_lent", {}))


def _let_go(lent: Mapping[str, Tensor]) -> None:
    """torch 2.13 never lets go of constants that the caller owns: without this their memory would stay."""
    for tensor in lent.values():
        tensor.set_()


@contextmanager
def current(device: torch.device) -> Iterator[None]:
    """The device is the current one in here: torch makes it so when it loads a package, and leaves it so. And the
    thread has its context: a launch by the driver's own function needs one, and a thread that has not yet copied a
    number, because its first batch has no rows, has none. torch.cuda.device gives none where the device is the current
    one already, as GPU 0 is of a new thread. A call of CUDA's runtime that needs a context gives one: a query does."""
    if device.type != "cuda":
        yield
        return
    with torch.cuda.device(device):
        torch.cuda.current_stream(device).query()
        yield


def runner_of(code: Path, device: torch.device) -> AOTIModelContainerRunner:
    """What runs a package's code, one call at a time. torch's package loader makes such a one too, but before 2.13 of
    a zip file alone, which it unpacks into a temporary folder."""
    if device.type == "cuda":
        return torch._C._aoti.AOTIModelContainerRunnerCuda(str(code), 1, str(device), str(code.parent))
    return torch._C._aoti.AOTIModelContainerRunnerCpu(str(code), 1)


def _device(folder: Path, made_for: str, gpu: int | None) -> torch.device:
    """Where the package runs. ExportError: it is for another device."""
    if not made_for:
        if gpu is not None:
            raise ExportError(f"{folder}: made for the CPU, and is to run on GPU {gpu}: export it with --device cuda")
        return torch.device("cpu")
    if not has_nvidia_driver() or not torch.cuda.is_available():
        raise ExportError(f"{folder}: made for a GPU, {made_for}, and torch {torch.__version__} finds none here")
    count = torch.cuda.device_count()
    gpu = torch.cuda.current_device() if gpu is None else gpu
    if not 0 <= gpu < count:
        raise ExportError(f"{folder}: is to run on GPU {gpu}, and this machine's are 0 to {count - 1}")
    if architecture(gpu) != made_for:
        raise ExportError(f"{folder}: made for a GPU of {made_for}, and GPU {gpu} here is {architecture(gpu)}")
    global _architecture
    with _first:  # the ops of LIBRARY are the process's: of one architecture
        _architecture = _architecture or made_for
        if _architecture != made_for:
            raise ExportError(
                f"{folder}: made for a GPU of {made_for}, and this process has loaded one for {_architecture}"
            )
    return torch.device("cuda", gpu)


def architecture(gpu: int | torch.device) -> str:
    """sm_90 of an H100, say."""
    major, minor = torch.cuda.get_device_capability(gpu)
    return f"sm_{major}{minor}"
