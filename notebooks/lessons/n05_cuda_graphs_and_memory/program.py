"""The program of notebook 05, as its cells have it: a capture, a step as a graph, late reads, what memory is held.

Each is the text of its cell, or of the answer to its puzzle; a test compares them. It takes a GPU.
"""

import time

import torch

from lessons.shared.dlrm import mlp, step

device = torch.device("cuda")


def capture(function, *static):  # -> the graph, and the result that every replay overwrites
    stream = torch.cuda.Stream()  # the default stream cannot be captured
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):  # warm-up: work that happens only once, such as loading a library, cannot be captured
            function(*static)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):  # CUDA notes each launch and runs none
        out = function(*static)
    return graph, out


def call(graph, buffers, out, inputs):
    for buffer, tensor in zip(buffers, inputs, strict=True):
        buffer.copy_(tensor)
    graph.replay()
    return out.clone()


def graphed(model, optimizer, batch):  # -> 01's step as a graph: a function that takes a batch and returns its loss
    before = {name: value.clone() for name, value in model.state_dict().items()}
    buffers = [part.clone() for part in batch]
    graph, loss = capture(lambda *parts: step(model, optimizer, *parts), *buffers)
    model.load_state_dict(before)  # the warm-up has trained three times; this copies to the same addresses
    return lambda *parts: call(graph, buffers, loss, parts)


def late(runs):  # -> whose numbers a result holds after the next call; runs: the number of earlier calls
    torch._dynamo.reset()
    double = torch.compile(lambda x: 2 * x, mode="reduce-overhead")
    for _ in range(runs):
        double(torch.ones(4, device=device))
    first = double(torch.ones(4, device=device))
    double(torch.full((4,), 5.0, device=device))
    try:
        return {2.0: "its own", 10.0: "the next call's"}[first[0].item()]
    except RuntimeError as error:
        return type(error).__name__


def last_forward(marked=False, gradients=True):  # -> ms of the last of 8 forwards; no backward runs
    torch._dynamo.reset()
    compiled = torch.compile(mlp(367, 512, 256, 1)[:-1].to(device), mode="reduce-overhead")
    x = torch.randn(2048, 367, device=device)
    with torch.set_grad_enabled(gradients):
        for _ in range(8):
            if marked:
                torch.compiler.cudagraph_mark_step_begin()
            torch.cuda.synchronize()
            start = time.perf_counter()
            out = compiled(x)  # kept until the next call is done
            torch.cuda.synchronize()
    del out
    return 1e3 * (time.perf_counter() - start)


def held():  # -> [MB reserved, MB allocated] in PyTorch's cache, and in the graphs' pools
    mb = {"cache": [0.0, 0.0], "pools": [0.0, 0.0]}
    for segment in torch.cuda.memory_snapshot():
        place = mb["pools" if any(segment["segment_pool_id"]) else "cache"]
        place[0] += segment["total_size"] / 1e6
        place[1] += segment["allocated_size"] / 1e6
    return mb
