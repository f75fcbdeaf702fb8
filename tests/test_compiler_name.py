"""The string: torch.compile(model, backend="fused_kernels"), with Inductor's mode and options."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from compiled import recording
from torch import nn

from kernels.compiler import backend, registration
from kernels.runtime import KERNELS

ROOT = str(KERNELS.parent)


def in_fresh_python(code: str) -> str:
    environment = os.environ | {"PYTHONPATH": ROOT}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


@pytest.mark.parametrize(
    "first", ["", pytest.param("import torch._dynamo; torch._dynamo.list_backends()", marks=pytest.mark.slow)]
)
def test_the_name_is_known_after_importing_kernels(first):
    """Whether or not torch._dynamo has looked for backends before; and importing kernels does not load it."""
    code = f"""
{first}
import sys, torch
before = "torch._dynamo" in sys.modules
import kernels
assert ("torch._dynamo" in sys.modules) == before
from torch._dynamo import list_backends, lookup_backend
from kernels.compiler import backend
print("fused_kernels" in list_backends(), lookup_backend("fused_kernels") is backend)
"""
    assert in_fresh_python(code) == "True True"


def test_other_packages_are_found_as_before():
    code = """
import importlib
from importlib.metadata import PackageNotFoundError, distributions, version
before = version("torch")
import kernels
importlib.invalidate_caches()
assert version("torch") == before
try:
    version("no-such-package-is-installed")
except PackageNotFoundError:
    print([each.version for each in distributions() if each.metadata["Name"] == "fused-kernels-backend"])
"""
    assert in_fresh_python(code) == "['0']"


def test_registering_twice_is_no_error():
    registration.register(backend)
    registration.register(backend)


def test_mode_and_options_are_inductors(monkeypatch):
    seen = []

    class Inductor:
        def __init__(self, mode, options, dynamic):
            seen.append((mode, options))

        def __call__(self, gm, example_inputs):
            return gm.forward

    monkeypatch.setattr(torch, "_TorchCompileInductorWrapper", Inductor)
    x, options = torch.randn(3, 8), {"max_autotune": True}
    for arguments in ({}, {"mode": "reduce-overhead"}, {"options": options}, {"fullgraph": True, "dynamic": True}):
        torch._dynamo.reset()
        model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
        torch.testing.assert_close(torch.compile(model, backend="fused_kernels", **arguments)(x), model(x))
    assert seen == [(None, None), ("reduce-overhead", None), (None, options), (None, None)]


def test_an_unknown_option_is_refused_as_inductor_does():
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="Unexpected optimization option no_such"):
        torch.compile(nn.Linear(8, 8), backend="fused_kernels", options={"no_such": 1})(torch.randn(3, 8))


@pytest.mark.slow
@pytest.mark.usefixtures("as_on_gpu")
@pytest.mark.parametrize("arguments", [{"mode": "reduce-overhead"}, {"dynamic": True}])
def test_through_inductor_itself(arguments):
    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4), nn.Sigmoid())
    compiled = torch.compile(model, backend="fused_kernels", **arguments)
    for rows in (5, 3):
        x = torch.randn(rows, 8)
        torch.testing.assert_close(compiled(x), model(x))
        want = torch.autograd.grad(model(x).sum(), [*model.parameters()])
        torch.testing.assert_close(torch.autograd.grad(compiled(x).sum(), [*model.parameters()]), want)


@pytest.mark.usefixtures("as_on_gpu")
def test_one_compilation_serves_batches_from_two_on():
    """0 and 1 are Dynamo's own special cases, one more each, as with every other backend."""
    torch._dynamo.reset()
    model, (backend, recorded) = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)), recording()
    compiled = torch.compile(model, backend=backend, dynamic=True)
    for rows in (2, 7, 33, 2048):
        x = torch.randn(rows, 8)
        torch.testing.assert_close(compiled(x), model(x))
    assert recorded.graphs == 1
    for rows in (0, 1):
        x = torch.randn(rows, 8)
        torch.testing.assert_close(compiled(x), model(x))
    assert recorded.graphs <= 3
    assert set(recorded.ops) == {"fused_mlp"}
