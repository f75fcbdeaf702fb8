"""Times on this machine, whatever it is: what the notebooks' cells headed "On your machine" print."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from kernels import runtime
from kernels.measure.clock import batches, percentiles, timer


@torch.no_grad()
def print_times(functions: Mapping[str, Callable[[], torch.Tensor]], tolerance: float = 0.0) -> None:
    """µs a call, by turns, after all were seen to give the same, to within this part of the largest number. The GPU's
    work is waited for at the end of a batch."""
    first, *others = [function() for function in functions.values()]
    if any((first - other).abs().max() > tolerance * first.abs().max() for other in others):
        raise AssertionError(f"{', '.join(functions)}: different results")
    gpu = runtime.device().type == "cuda"
    synchronize = torch.cuda.synchronize if gpu else lambda: None
    timers = {name: timer(function) for name, function in functions.items()}
    samples = batches(timers, 50 if gpu else 2, 7, synchronize, waits=True)
    print(f"{torch.cuda.get_device_name() if gpu else 'CPU'}: µs a call (20th to 80th percentile)")
    for name, times in samples.items():
        p20, p50, p80 = percentiles(times)
        print(f"  {name:<32} {p50:10.1f}  ({p20:.1f} to {p80:.1f})")
