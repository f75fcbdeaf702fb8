"""A CUDA text with TORCH_LIBRARY as a library for CPU tensors: by g++, over kernels/check/host/cuda_on_host.h.

The text stays as it is but for three things: PyTorch's CUDA headers become on_host.h, a launch by <<<…>>> a loop over
its threads, and CUDA, as the dispatch key or as a device that the text asks for, becomes CPU. A namespace of ops can be
registered once in a process, so it gets the text's hash behind its name: a reader changes the text, and runs the cell
again.
"""

from __future__ import annotations

import hashlib
import io
import re
import signal
from collections.abc import Collection, Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path

import torch

from kernels.check.host.programs import BUILD, LAUNCH, cut_at_commas
from kernels.dispatch.build import load_library
from kernels.runtime import KERNELS

ROOM = Path(__file__).resolve().parent
LIBRARY = re.compile(r"\b(TORCH_LIBRARY(?:_FRAGMENT|_IMPL)?\(\s*)(\w+)")
INCLUDE = re.compile(r"^[ \t]*#include[^\n]*", re.M)
DEVICE = re.compile(r"\b(is_|k|DeviceType::)(?:cuda|CUDA)\b")  # is_cuda(), at::kCUDA, at::DeviceType::CUDA
OF_CUDA = re.compile(r"[<\"](ATen/cuda|c10/cuda|cuda)")
_loaded: set[str] = set()  # hashes of texts


def load(text: str, together: Collection[str] = ()) -> torch._ops._OpNamespace:
    """torch.ops.<the text's namespace and its hash>; RuntimeError: with the compiler's errors.

    together: texts that are built with it, if it is among them: PyTorch's headers take a compiler more than ten
    seconds, whatever stands below them.
    """
    name = _hash(text)
    if name not in _loaded:
        texts = [other for other in sorted(together) if _hash(other) not in _loaded] if text in together else [text]
        BUILD.mkdir(parents=True, exist_ok=True)
        source = BUILD / f"op_{_hash(''.join(texts))}.cpp"
        source.write_text(_whole(texts))
        flags = ("-std=c++20", "-O0", "-w", "-fmax-errors=2")
        with no_alarm(), redirect_stderr(io.StringIO()):  # it says that it builds
            load_library(source.stem, source, cache=BUILD, include=(KERNELS, ROOM), flags=flags)
        _loaded.update(map(_hash, texts))
    return getattr(torch.ops, f"{namespace(text)}_{name}")


def namespace(text: str) -> str:
    """The namespace of the ops that the text defines; what its comments say does not count."""
    return LIBRARY.search(re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.S))[2]


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _whole(texts: Collection[str]) -> str:
    """One file of all texts, each in a C++ namespace of its own."""
    includes = {line.strip() for text in texts for line in INCLUDE.findall(text) if not OF_CUDA.search(line)}
    parts = [*sorted(includes), "#include <torch/library.h>", '#include "on_host.h"']
    for text in texts:
        body = LIBRARY.sub(rf"\g<1>\g<2>_{_hash(text)}", INCLUDE.sub("", text))
        body = re.sub(r"(TORCH_LIBRARY_IMPL\(\s*\w+\s*,\s*)CUDA\b", r"\1CPU", body)
        body = DEVICE.sub(lambda device: device[1] + ("cpu" if device[1] == "is_" else "CPU"), body)
        parts += [f"namespace text_{_hash(text)} {{", '#line 1 "text"', LAUNCH.sub(_launch, body), "}"]
    return "\n".join(parts) + "\n"


def _launch(match: re.Match) -> str:
    """kernel<<<grid, block, shared, stream>>>( as the beginning of a call."""
    if len(configuration := cut_at_commas(match[2])) < 2:
        raise RuntimeError(f"error: a launch is <<<grid, block, …>>>, got <<<{match[2]}>>>")
    grid, block, *_ = configuration
    return f"lecture::launch({match[1]}, dim3({grid}), dim3({block}), "


@contextmanager
def no_alarm() -> Iterator[None]:
    """In here a puzzle's time stands still: a compiler on a busy machine is no endless loop."""
    left, _ = signal.setitimer(signal.ITIMER_REAL, 0)
    try:
        yield
    finally:
        if left:
            signal.setitimer(signal.ITIMER_REAL, left)
