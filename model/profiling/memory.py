"""The memory allocated on a GPU over time, from the allocator's own history."""

from collections.abc import Callable

import numpy as np
import pandas as pd
import torch


def memory_snapshot(step: Callable[[], object]) -> pd.DataFrame:
    """The memory allocated on the current GPU while step() runs, as `allocated_over_time` gives it. Needs a GPU.

    RuntimeError if a memory history is recorded already: it would be ended.
    """
    torch.cuda.synchronize()
    if torch._C._cuda_isHistoryEnabled():
        raise RuntimeError("a memory history is recorded already: end it, _record_memory_history(enabled=None), first")
    torch.cuda.memory._record_memory_history(context=None, stacks="python")
    try:
        step()
        torch.cuda.synchronize()
        snapshot = torch.cuda.memory._snapshot()
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
    return allocated_over_time(snapshot, torch.cuda.current_device())


def allocated_over_time(snapshot: dict, device: int = 0) -> pd.DataFrame:
    """A row an allocation or a free of what torch.cuda.memory._snapshot returns, for one GPU.

    Columns: us (since the first), bytes (allocated after it). The form of a snapshot:
    https://docs.pytorch.org/docs/stable/torch_cuda_memory.html#snapshot-api-reference
    """
    signs = {"alloc": 1, "free_requested": -1}
    history = [entry for entry in snapshot["device_traces"][device] if entry["action"] in signs]
    change = np.array([signs[entry["action"]] * entry["size"] for entry in history], np.int64)
    us = np.array([entry["time_us"] for entry in history], np.int64)
    at_end = sum(segment["allocated_size"] for segment in snapshot["segments"] if segment["device"] == device)
    return pd.DataFrame({"us": us - us[:1].sum(), "bytes": at_end - change.sum() + change.cumsum()})
