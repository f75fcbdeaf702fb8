"""Times on this machine, whatever it is: what the cells headed "On your machine" print."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from kernels import runtime
from kernels.measure.clock import batches, percentiles, timer


def times_here(functions: Mapping[str, Callable[[], object]], batches_of_calls: int = 9, calls: int = 5) -> None:
    """Print each function's µs a call, taken by turns: the 20th, 50th and 80th percentile of the batches.

    The work on a GPU is waited for at the end of a batch, so the time is a call's with its launches and its bytes.
    """
    gpu = runtime.device().type == "cuda"
    synchronize = torch.cuda.synchronize if gpu else lambda: None
    timers = {name: timer(function) for name, function in functions.items()}
    found = batches(timers, calls, batches_of_calls, synchronize, waits=True)
    print(f"{torch.cuda.get_device_name() if gpu else 'CPU'}: µs a call (20th, 50th, 80th percentile)")
    for name, times in found.items():
        p20, p50, p80 = percentiles(times)
        print(f"  {name:<32} {p50:10.1f}  ({p20:.1f} to {p80:.1f})")
