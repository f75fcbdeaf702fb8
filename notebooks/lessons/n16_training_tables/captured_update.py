"""An update that is repeated as a captured graph repeats it."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch


def captured(update: Callable, *arguments) -> Callable[[], object]:
    """On a GPU a CUDA graph of update(*arguments), to be replayed; on a CPU, which has none, a call with these.

    Both see a tensor as it then is, and a number as it was. A capture computes nothing; before it the update runs once,
    on either device, which compiles what there is to compile.
    """
    call = functools.partial(update, *arguments)
    device = next(value.device for value in arguments if isinstance(value, torch.Tensor))
    if device.type != "cuda":
        call()
        return call
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        call()
    torch.cuda.current_stream(device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        call()
    return graph.replay
