"""What the id table's tests share: the backends that this machine has, tables on them, and a dict to compare with."""

from __future__ import annotations

import sys

import pytest
import torch

from ... import IdTable, runtime
from ...check.contract import DEVICE, running
from ...check.contract.base import ON_HOST


def parameters(*backends: str) -> list:
    """Without a GPU "cuda" is the host build of the CUDA kernels; "cpp" has CPU tensors wherever it runs."""
    params = []
    for name in backends:
        reason = runtime.why_not("cpp" if name == "cuda" and DEVICE.type == "cpu" else name, device_of(name).type)
        shown = ON_HOST if name == "cuda" and DEVICE.type == "cpu" else name
        params.append(pytest.param(shown, marks=pytest.mark.skipif(bool(reason), reason=reason or "it runs here")))
    return params


def device_of(backend: str) -> torch.device:
    return torch.device("cpu") if backend == "cpp" else DEVICE


every_backend = pytest.mark.parametrize("backend", parameters("eager", "cuda", "cpp"), indirect=True)
kernel_backend = pytest.mark.parametrize("backend", parameters("cuda", "cpp"), indirect=True)
fast_backend = pytest.mark.parametrize(
    "backend", parameters(*(("eager", "cuda", "cpp") if DEVICE.type == "cuda" else ("eager", "cpp"))), indirect=True
)


@pytest.fixture
def backend(request):
    with running(request.param) as name:
        yield name


@pytest.fixture(autouse=True)
def _dynamo_forgets():
    yield
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()


def table(vocabularies, backend, **options) -> IdTable:
    return IdTable(vocabularies, device=device_of(backend), backend=backend, **options)


def tensor(values, backend) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64, device=device_of(backend))


def check_against(dicts: list[dict], t: IdTable, backend: str, others=()) -> None:
    """The table holds what the dicts hold, {id: row}, and neither the dicts' ids in other tables nor `others`."""
    for number, known in enumerate(dicts):
        asked = [*known, *(i for d in dicts for i in d), *others]
        keys = tensor(asked, backend)
        found, rows = t(keys, torch.full_like(keys, number), backend=backend)
        assert found.tolist() == [i in known for i in asked]
        assert rows.tolist() == [known.get(i, 0) for i in asked]
    assert t.sizes == [len(d) for d in dicts]
