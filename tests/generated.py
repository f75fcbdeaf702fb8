"""What the tests of generated modules share: `call` of a module, run kernel by kernel, and what is close to eager."""

from __future__ import annotations

import re
from types import SimpleNamespace
from unittest import mock

import torch

from kernels import runtime
from kernels.inductor import execute, run_kernel

DEVICE = runtime.device()


def close(actual, expected):
    """float32, but sums of hundreds of products, each library adding in an order of its own."""
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5 * max(1.0, expected.abs().max().item()))


def executable(source, launched=None):
    """`call` of a generated module, its kernels run by run_kernel, reductions, which it refuses, by execute.launch."""

    def kernel(self, name, text, **_):
        def start(*arguments, stream):
            if launched is not None:
                launched[name] += 1
            runs = run_kernel if name.startswith("triton_poi_") else execute.launch
            runs(text, *arguments)

        return SimpleNamespace(run=start)

    def poisoned(shape, stride, dtype):
        out = torch.empty_strided(shape, stride, dtype=dtype, device=DEVICE)
        return out.fill_(torch.nan) if dtype.is_floating_point else out

    from torch._inductor.async_compile import AsyncCompile  # imports Triton, so not before kernels

    text = re.sub(r"^from torch\._C import _cuda_getCurrentRawStream.*", "get_raw_stream = int", source, flags=re.M)
    namespace = {"__name__": "generated"}
    with mock.patch.multiple(AsyncCompile, triton=kernel, wait=mock.DEFAULT):
        exec(text, namespace)
    namespace["empty_strided_cuda"] = poisoned

    def call(arguments):
        with torch.no_grad(), mock.patch.multiple(torch.cuda, _DeviceGuard=mock.MagicMock(), set_device=mock.DEFAULT):
            return namespace["call"](list(arguments))

    return call
