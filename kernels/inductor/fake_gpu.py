"""A second process that believes it has a GPU, for Inductor and Triton to generate and compile code in.

What that takes is replaced there and only there. Starting it takes seconds, so it stays until this process ends.
"""

from __future__ import annotations

import functools
import importlib
import multiprocessing
import os
import pickle
import sys
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from .fx_graphs import dumps

# What Inductor asks of a GPU: multiprocessors, threads on each, KiB of shared memory a block; T4, A100, H100 and H200.
ARCHITECTURES = {75: (40, 1024, 64), 80: (108, 2048, 163), 90: (132, 2048, 227)}


def ask(function: Callable, *arguments: Any, arch: int = 90) -> Any:
    """function(*arguments) in the process that believes it has a GPU of this architecture.

    function stands at a module's top; of tensors in the arguments only shape, strides and dtype arrive.

    Raises:
        RuntimeError: torch's version, and the type and text of what was raised there. NotImplementedError: from dumps.
    """
    request = dumps(arguments)
    try:
        return process(arch).submit(_answer, arch, function, request).result()
    except (BrokenExecutor, KeyboardInterrupt):  # it is gone, or busy with what was interrupted
        process.cache_clear()
        raise


@functools.cache
def process(arch: int) -> ProcessPoolExecutor:
    """The process, which the first call starts without waiting for it."""
    pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
    # Started with the user's script as its __main__, it would run that again.
    with mock.patch.dict(sys.modules, {"__main__": ModuleType("__main__")}):
        pool.submit(_become_gpu, arch)
    return pool


def private(module: str, *names: str) -> Any:
    """A module of torch's. Raises RuntimeError if it lacks one of these names."""
    owner = importlib.import_module(module)
    for name in names:
        if functools.reduce(lambda value, part: getattr(value, part, None), name.split("."), owner) is None:
            versions = f"written for torch 2.11 and 2.13, this is {torch.__version__}"
            raise RuntimeError(f"{module} has no {name}: kernels.inductor is {versions}")
    return owner


# ------------------------------------------------------------------------------------------------------------------
# In the second process.


def _answer(arch: int, function: Callable, request: bytes) -> Any:
    try:
        _become_gpu(arch)
        return function(*pickle.loads(request))
    except Exception as error:  # made anew, since not every exception can be sent
        raise RuntimeError(f"torch {torch.__version__}: {type(error).__name__}: {error}") from None


def _end_with(parent: Any) -> None:
    parent.join()
    os._exit(0)


@functools.cache
def _become_gpu(arch: int) -> None:
    """Make this process believe for ever that it has a GPU."""
    os.environ.update(TRITON_INTERPRET="0", CUDA_VISIBLE_DEVICES="")
    threading.Thread(target=_end_with, args=(multiprocessing.parent_process(),), daemon=True).start()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # Inductor's advice to the GPU's owner
    warnings.filterwarnings("error", message=".*autograd kernel was not registered")  # its gradient would be left out
    _patch_passes_and_fake_tensors()
    _patch_tensor()
    _remove_meta_kernels()
    _patch_cuda(arch)


def _patch_passes_and_fake_tensors() -> None:
    joint_graph = private("torch._inductor.fx_passes.joint_graph", "lazy_init")
    fake_tensor = private("torch._subclasses.fake_tensor", "init_gpu_context", "FakeTensorMode.avoid_device_init")
    helpers = private("torch._inductor.runtime.triton_helpers", "set_driver_to_gpu")
    # The graph passes' patterns are traced, on a GPU if there is one. On the CPU they are the same.
    joint_graph.lazy_init()
    joint_graph.lazy_init = fake_tensor.init_gpu_context = helpers.set_driver_to_gpu = lambda *_, **__: None
    fake_tensor.FakeTensorMode.avoid_device_init = True


def _patch_tensor() -> None:
    """Three methods of a tensor ask its device for a guard, which a fake GPU does not have."""
    getitem, copy_ = Tensor.__getitem__, Tensor.copy_
    Tensor.__invert__ = lambda x: torch.bitwise_not(x)
    Tensor.__getitem__ = lambda x, i: torch.select(x, 0, i) if x.is_cuda and type(i) is int else getitem(x, i)
    Tensor.copy_ = lambda x, *source: x if x.is_cuda else copy_(x, *source)  # a fake tensor has nothing to copy


def _remove_meta_kernels() -> None:
    """Leave each operator that is composed of others to its composition.

    Autograd runs here on meta tensors. A composed operator, cross_entropy, say, has no derivative of its own: autograd
    records those that it calls. Where it has a kernel for meta tensors, that kernel runs in place of the composition,
    calls none of them, and so no gradient is recorded.
    """
    for name in torch._C._dispatch_get_all_op_names():
        name, _, overload = name.removeprefix("aten::").partition(".")
        operator = getattr(getattr(torch.ops.aten, name, None), overload or "default", None)
        if operator and operator._can_decompose() and operator.py_kernels.pop(torch._C.DispatchKey.Meta, None):
            operator._dispatch_cache.clear()


def _patch_cuda(arch: int) -> None:
    """torch.cuda, Dynamo's interface to it and Triton's driver answer for a GPU of this architecture."""
    import triton
    from triton.backends.compiler import GPUTarget

    interface = private("torch._dynamo.device_interface", "CudaInterface").CudaInterface
    multiprocessors, threads, shared = ARCHITECTURES[arch]
    capability = (arch // 10, arch % 10)
    properties = SimpleNamespace(
        name=f"fake sm_{arch}", major=capability[0], minor=capability[1], multi_processor_count=multiprocessors,
        max_threads_per_multi_processor=threads, max_threads_per_block=1024, warp_size=32, total_memory=80 << 30,
        regs_per_multiprocessor=65536, shared_memory_per_block=48 << 10, shared_memory_per_block_optin=shared << 10,
    )
    fakes = {
        "is_available": True, "device_count": 1, "current_device": 0, "get_device_properties": properties,
        "get_device_capability": capability, "get_device_name": properties.name, "is_bf16_supported": arch >= 80,
        "get_rng_state": torch.zeros(16, dtype=torch.uint8), "set_rng_state": None, "set_device": None,
        "synchronize": None, "_exchange_device": 0, "_maybe_exchange_device": 0, "_lazy_init": None,
    }
    for name, value in fakes.items():
        original, fake = getattr(torch.cuda, name), functools.partial(lambda value, *_, **__: value, value)
        for attribute, method in list(vars(interface).items()):  # which holds some of them already
            if isinstance(method, staticmethod) and method.__func__ is original:
                setattr(interface, attribute, staticmethod(fake))
        setattr(torch.cuda, name, fake)
    torch.version.cuda = torch.version.cuda or "13.0"
    target = GPUTarget("cuda", arch, 32)
    driver = {"get_current_target": target, "get_current_device": 0, "get_device_interface": torch.cuda}
    driver = {name: functools.partial(lambda value: value, value) for name, value in driver.items()}
    triton.runtime.driver.set_active(SimpleNamespace(**driver))
