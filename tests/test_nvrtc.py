"""kernels/dispatch/nvrtc.py: CUDA source → cubin, its cache, and what is said where NVRTC is not as it should be."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kernels import nvrtc_library, runtime
from kernels.dispatch import cubin_files, nvrtc
from kernels.dispatch.cuda_source import Source

ROOT = Path(__file__).resolve().parent.parent
TEXT = """struct Arguments { float* x; long long by; };
extern "C" __global__ void scale(Arguments given) { given.x[threadIdx.x] *= given.by; }
"""
SCALE = nvrtc.Kernel(Source("scale", TEXT, threads=32), 90)
needs_nvrtc = pytest.mark.skipif(nvrtc.why_not() != "", reason=f"no NVRTC: {nvrtc.why_not()}")
COMPILE = """
import sys
from pathlib import Path
from kernels.dispatch import nvrtc
kernel = eval(sys.stdin.read(), {"Source": nvrtc.Source, "Kernel": nvrtc.Kernel})
print(nvrtc.compiled(kernel, Path(sys.argv[1])).path)
"""


def changed(**fields) -> nvrtc.Kernel:
    return replace(SCALE, source=replace(SCALE.source, **fields))


@pytest.fixture
def counted(monkeypatch) -> list[nvrtc.Kernel]:
    """The kernels that were compiled."""
    compiled, compile_to_cubin = [], nvrtc.compile_to_cubin

    def counting(kernel, headers):
        compiled.append(kernel)
        return compile_to_cubin(kernel, headers)

    monkeypatch.setattr(nvrtc, "compile_to_cubin", counting)
    return compiled


@needs_nvrtc
def test_a_source_is_compiled_once_and_then_found(tmp_path, counted):
    first = nvrtc.compiled(SCALE, tmp_path)
    assert nvrtc.compiled(SCALE, tmp_path) == first
    assert counted == [SCALE]
    assert Path(first.path).read_bytes()[:4] == b"\x7fELF"
    assert (first.name, first.threads, first.shared, first.parameters) == ("scale", 32, 0, 1)
    for other in (changed(text=TEXT + " "), changed(threads=64), replace(SCALE, arch=80)):
        nvrtc.compiled(other, tmp_path)
    assert len(counted) == 4


@needs_nvrtc
def test_headers_are_part_of_the_source(tmp_path, counted, monkeypatch):
    kernel = changed(text='#include "device/report.cuh"\n' + TEXT, waits=True)
    assert {"device/report.cuh", "device/launch.cuh"} <= dict(nvrtc.headers_of(kernel.source.text)).keys()
    assert nvrtc.compiled(kernel, tmp_path).kind == cubin_files.EARLY
    assert nvrtc.compiled(replace(kernel, arch=80), tmp_path).kind == cubin_files.PLAIN
    headers = nvrtc.headers_of(kernel.source.text)
    monkeypatch.setattr(nvrtc, "headers_of", lambda text: (*headers[:-1], (headers[-1][0], headers[-1][1] + "//")))
    nvrtc.compiled(kernel, tmp_path)
    assert len(counted) == 3


@needs_nvrtc
def test_a_damaged_entry_is_compiled_again(tmp_path, counted):
    path = Path(nvrtc.compiled(SCALE, tmp_path).path)
    (description,) = tmp_path.glob("*.json")
    image, text = path.read_bytes(), description.read_text()

    def flip():
        path.write_bytes(image[:200] + bytes([image[200] ^ 1]) + image[201:])

    damages = (
        lambda: path.write_bytes(image[:500]), lambda: path.write_bytes(b""), flip, path.unlink,
        lambda: description.write_text(text[:50]), lambda: description.write_text("[]"), description.unlink,
        lambda: description.write_text(json.dumps(json.loads(text) | {"arch": 80})),
    )
    for number, damage in enumerate(damages, 2):
        damage()
        assert Path(nvrtc.compiled(SCALE, tmp_path).path).read_bytes() == image
        assert len(counted) == number


@needs_nvrtc
def test_processes_share_a_cache(tmp_path):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    started = [
        subprocess.Popen([sys.executable, "-c", COMPILE, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                         text=True, env=environment)
        for _ in range(3)
    ]
    printed = [process.communicate(repr(SCALE), timeout=300)[0].strip() for process in started]
    assert set(printed) == {nvrtc.compiled(SCALE, tmp_path).path}
    assert len(list(tmp_path.iterdir())) == 2, "the cubin and its description, and nothing half-written"


@needs_nvrtc
def test_an_error_carries_the_compilers_log(tmp_path):
    message = r'does not compile scale for sm_90(.|\n)*scale.cu\(2\): error: identifier "factor" is undefined'
    with pytest.raises(RuntimeError, match=message):
        nvrtc.compiled(changed(text=TEXT.replace("given.by;", "factor;")), tmp_path)
    with pytest.raises(RuntimeError, match="for sm_1: NVRTC_ERROR_INVALID_OPTION"):
        nvrtc.compiled(replace(SCALE, arch=1), tmp_path)
    assert not list(tmp_path.iterdir())


def library():
    return nvrtc_library.library(runtime.nvcc())


@pytest.fixture
def looked_for_again():
    nvrtc_library.library.cache_clear()
    yield
    nvrtc_library.library.cache_clear()


@needs_nvrtc
def test_another_version_than_torchs_is_refused(monkeypatch, looked_for_again):
    here = nvrtc_library.version_of(library())
    nvrtc_library.library.cache_clear()
    monkeypatch.setattr(torch.version, "cuda", f"{here}9.1")
    with pytest.raises(RuntimeError, match=f"torch is built for CUDA {here}9, and .* is of CUDA {here}: pip install"):
        library()
    monkeypatch.setattr(torch.version, "cuda", here)
    assert nvrtc_library.version_of(library()) == here == nvrtc.version()


def test_where_there_is_none_it_says_how_to_get_it(monkeypatch, looked_for_again):
    monkeypatch.setattr(nvrtc_library, "places", lambda _: iter(["libnvrtc.so.nowhere"]))
    for cuda, package in ((None, "nvidia-cuda-nvrtc"), ("13.0", "nvidia-cuda-nvrtc==13.0.*"),
                          ("12.8", "nvidia-cuda-nvrtc-cu12==12.8.*")):
        monkeypatch.setattr(torch.version, "cuda", cuda)
        assert nvrtc.why_not() == f"NVRTC is missing: pip install '{package}'"


@needs_nvrtc
def test_a_full_cache_needs_no_nvrtc_where_torch_says_its_version(tmp_path, monkeypatch, looked_for_again):
    monkeypatch.setattr(torch.version, "cuda", nvrtc_library.version_of(library()))
    nvrtc.compiled(SCALE, tmp_path)
    nvrtc_library.library.cache_clear()
    monkeypatch.setattr(nvrtc_library, "places", lambda _: iter(()))
    assert nvrtc.compiled(SCALE, tmp_path).name == "scale"
