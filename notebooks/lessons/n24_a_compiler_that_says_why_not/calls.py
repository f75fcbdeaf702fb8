"""What a call through a backend is compared with: the op called by hand, a graph captured by hand; and its parts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

import kernels
from lessons.shared.measure import Times

# Each is the one before it and one thing more.
RUNGS = ("the op, called", "… by Dynamo, without guards", "… by Dynamo", "fused_kernels")


def direct(model: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
    """dlrm_forward of the model's own tensors, in TF32: (dense, ids) → logits [B]."""
    linears = [layer for part in (model.bottom, model.top) for layer in part if isinstance(layer, nn.Linear)]
    weights, biases, n = [each.weight for each in linears], [each.bias for each in linears], len(model.bottom) // 2
    tables, layers = [table.weight for table in model.tables], (weights[:n], biases[:n], weights[n:], biases[n:])
    return lambda dense, ids: kernels.dlrm_forward(dense, tables, ids, None, *layers, precision="tf32").squeeze(1)


def captured(function: Callable) -> Callable:
    """A CUDA graph of the function, made at the first call; each call copies its inputs to where the graph reads them.
    Without a GPU the function itself."""
    kept: list = []

    def replay(*inputs):
        if not inputs[0].is_cuda:
            return function(*inputs)
        if not kept:
            own, stream = [each.clone() for each in inputs], torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(3):
                    function(*own)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                out = function(*own)
            kept.extend((graph, own, out))
        graph, own, out = kept
        for old, new in zip(own, inputs, strict=True):
            old.copy_(new)
        graph.replay()
        return out

    return replay


def print_rungs(measured: Mapping[str, Times], size: int) -> None:
    """What each of RUNGS adds to the one before it, a line a model."""
    for name, times in measured.items():
        rows = [times.one(rung, size) for rung in RUNGS]
        if None in rows:
            print(f"{name}: not timed yet")
            continue
        op, entered, guarded, whole = (row["us_p50"] for row in rows)
        print(
            f"{name}: the op {op:.1f} µs, to enter its graph {entered - op:.1f} µs more, "
            f"guards {guarded - entered:.1f} µs, wrappers {whole - guarded:.1f} µs"
        )


def print_launches(ways: Mapping[str, Callable], *inputs: Tensor) -> None:
    """What the host asks the GPU for in one call of each way; it needs a GPU."""
    if not inputs[0].is_cuda:
        print("What a call launches is counted on a GPU only.")
        return
    for name, way in ways.items():
        for _ in range(4):  # compiled, and recorded by reduce-overhead
            way(*inputs)
        torch.cuda.synchronize()
        with torch.profiler.profile(acc_events=True) as profile:
            way(*inputs)
            torch.cuda.synchronize()
        events = [event.name for event in profile.events() if "Launch" in event.name or "Memcpy" in event.name]
        print(f"{name}: {', '.join(f'{count} {event}' for event, count in Counter(events).items())}")
