"""Compiling on this machine, whatever it is: what the notebook's cells headed "On your machine" print."""

from __future__ import annotations

import time
import warnings

import torch

from kernels import runtime
from lessons.n04_torch_compile.dynamo_graphs import batch_of, small_model
from model.profiling.recording import step_times


def first_call(rows: int = 2048, tables: int = 1) -> None:
    """Print the seconds of the first call of a small DLRM's forward, cold and warm, and ms of a call by turns."""
    from torch._inductor.utils import fresh_cache

    device = runtime.device()
    model, batch = small_model(tables).to(device), [tensor.to(device) for tensor in batch_of(rows, tables)]
    with fresh_cache(), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # Inductor's advice on TF32, which names a path of this machine
        for name in ("cold", "warm"):
            torch._dynamo.reset()
            compiled, start = torch.compile(model), time.perf_counter()
            compiled(*batch)
            if device.type == "cuda":
                torch.cuda.synchronize()
            print(f"first call, {name}: {time.perf_counter() - start:.1f} s")
        ms = step_times({"eager": lambda: model(*batch), "compiled": lambda: compiled(*batch)})
    print(f"{device.type}: ms a call: 20th, 50th, 80th percentile")
    print(ms.quantile([0.2, 0.5, 0.8]).round(3).T.to_string(header=False))
    torch._dynamo.reset()
