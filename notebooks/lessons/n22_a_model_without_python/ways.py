"""What an exported folder computes, as functions of a request: its package in this process, and the C++ program."""

from __future__ import annotations

import re
import subprocess
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from lessons.shared.commands import ROOT, here
from lessons.shared.experiment import failure
from model.serving.exported import Exported
from model.serving.manifest import Manifest

PERCENTILES = re.compile(r"p50 ([\d.]+) ms, .*; p20 ([\d.]+) ms, p80 ([\d.]+) ms")


def package_in(folder: Path) -> Callable[[Tensor, Tensor], Tensor]:
    """The package of a folder as torch's own loader has it: of tensors on its device, to one there. On a GPU it can be
    captured in a CUDA graph: run_single_threaded leaves out the events by which it would tell threads apart."""
    Exported(folder)  # which checks the files, and loads the ops' library
    manifest, archive = Manifest.read(folder), folder.with_suffix(".pt2")
    with zipfile.ZipFile(archive, "w") as file:
        for path in (path for path in (folder / manifest.package).rglob("*") if path.is_file()):
            file.write(path, Path("model") / path.relative_to(folder / manifest.package))
    loaded = torch._inductor.aoti_load_package(str(archive), run_single_threaded=True)
    known, device = manifest.mapped(folder), "cuda" if manifest.gpu else "cpu"
    constants = {name: known[name].to(device) for name in loaded.get_constant_fqns()}
    loaded.load_constants(constants, check_full_update=True, user_managed=True)
    loaded.constants = constants  # it reads them where they lie
    return loaded


def caller(prepared: Callable, make: Callable[[], Callable], graph: bool = False) -> Callable[..., Tensor]:
    """A function from a request to its answer, both of the CPU, by what make() gives, a function of tensors on the GPU.

    prepared(function, request, graph) → (pinned tensors for a request, one for its answer, what launches, the CUDA
    graph or None) is called for each new number of rows.
    """
    ready = {}  # by the number of rows

    @torch.inference_mode()
    def call(*request: Tensor) -> Tensor:
        rows = len(request[0])
        if rows not in ready:
            ready[rows] = prepared(make(), request, graph)
        pinned, answer, launch, captured = ready[rows]
        for to, tensor in zip(pinned, request, strict=True):
            to.copy_(tensor)
        captured.replay() if graph else launch()
        torch.cuda.current_stream().synchronize()
        return answer

    return call


class InCpp:
    """run_exported: a process that answers a request, and then the same one again and again, to be timed.

    A call raises RuntimeError if the process fails, or a CUDA graph in it.
    """

    def __init__(self, folder: Path, *options: str) -> None:
        self._command = [str(ROOT / "build" / "serving" / "run_exported"), str(folder), "--bench", *options]
        self._inputs = folder.with_suffix(".inputs.pt")
        self._us: Sequence[float] = ()

    def __call__(self, *inputs: Tensor) -> Tensor:
        """The probabilities."""
        torch.save([*inputs], self._inputs)
        command = [*self._command, "--inputs", str(self._inputs)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        *answers, told = done.stdout.splitlines() or [""]
        found = PERCENTILES.search(told)
        if done.returncode or "failed" in done.stderr or not found:
            raise RuntimeError(here((done.stdout + done.stderr)[-300:]))
        p50, p20, p80 = (1e3 * float(ms) for ms in found.groups())
        self._us = p20, p50, p80
        return torch.tensor([float(answer) for answer in answers])

    def us(self) -> Sequence[float]:
        """p20, p50 and p80 of its calls of that request."""
        return self._us


@torch.inference_mode()
def count_kernels(make: Callable[[], Callable], request: Sequence[Tensor]) -> int | str:
    """How many kernels a call of what make() gives launches on the GPU; or why it cannot be said."""
    try:
        call, placed = make(), [tensor.cuda() for tensor in request]
        call(*placed)
        with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiler:
            call(*placed)
            torch.cuda.synchronize()
    except Exception as error:
        return failure(error)
    events = [event for event in profiler.key_averages() if event.self_device_time_total]
    return sum(event.count for event in events if not event.key.startswith("Mem"))  # but for copies and fills
