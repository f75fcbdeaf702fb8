"""The clock: GPU time by replays of CUDA graphs, each with a cold L2, and time per call from Python, both by turns."""

from __future__ import annotations

import timeit
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace

import torch
from torch import Tensor

from .. import runtime
from .cells import Row

REPLAYS = 25
COPY_BYTES = 2**30


class Gpu:
    """Captures work into CUDA graphs and times their replays.

    The graphs share one pool of memory: a replay writes where another one's did, and what it gave must be looked at
    before the next. That is what lets the implementations of a cell be captured side by side.
    """

    def __init__(self) -> None:
        self.device = runtime.device()
        self._stream = torch.cuda.Stream()
        properties = torch.cuda.get_device_properties(self.device)
        self.l2_bytes = properties.L2_cache_size
        self._other = torch.zeros(self.l2_bytes, device=self.device)  # float32: four times the L2
        self._pool = torch.cuda.graph_pool_handle()
        # Made once: where a buffer lies in memory changes what its copy takes.
        size = min(COPY_BYTES, properties.total_memory // 24)
        self._source = torch.ones(size, dtype=torch.uint8, device=self.device)
        self._target = torch.empty_like(self._source)

    def free_bytes(self) -> int:
        """The memory that tensors may still take."""
        unused = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        return torch.cuda.mem_get_info(self.device)[0] + unused

    def on_side_stream(self, work: Callable):
        """work() on the stream that is captured: a backward runs on the stream of its forward."""
        torch.cuda.synchronize()
        with torch.cuda.stream(self._stream):
            result = work()
        torch.cuda.synchronize()
        return result

    def capture(self, work: Callable) -> tuple[Callable[[], None], tuple[Tensor, ...]]:
        """(replay, outputs): work() as one CUDA graph, and the tensors that it returned, which each replay writes."""
        graph = torch.cuda.CUDAGraph()

        def capture():
            graph.capture_begin(pool=self._pool)
            try:
                outputs = work()
            except BaseException:
                with suppress(RuntimeError):  # of a capture that failed; what made it fail says more
                    graph.capture_end()
                raise
            graph.capture_end()
            return outputs

        return graph.replay, self.on_side_stream(capture)

    def times(self, replays: Mapping[str, Callable[[], None]]) -> dict[str, list[float]]:
        """µs of each of REPLAYS replays; another buffer is read before each, to flush the L2."""
        events = {name: [] for name in replays}
        for _ in range(REPLAYS):
            for name, replay in replays.items():
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                torch.cuda._sleep(200_000)  # 0.1 ms: by its end everything up to `end` has been enqueued
                self._other.amax()  # flushes the L2: nothing of the replay's inputs stays in it
                start.record()
                replay()
                end.record()
                events[name].append((start, end))
        torch.cuda.synchronize()
        return {name: [1e3 * a.elapsed_time(b) for a, b in pairs] for name, pairs in events.items()}

    def calls(self, call: Callable[[int], object], count: int) -> list[float]:
        """µs of each of `count` calls, call(0), call(1), …, between two events of the stream, all without waiting: of
        what the GPU does faster than Python asks for it, Python's time."""
        events = [tuple(torch.cuda.Event(enable_timing=True) for _ in range(2)) for _ in range(count)]
        torch.cuda.synchronize()
        for k, (start, end) in enumerate(events):
            start.record()
            call(k)
            end.record()
        torch.cuda.synchronize()
        return [1e3 * start.elapsed_time(end) for start, end in events]

    def synchronize(self) -> None:
        torch.cuda.synchronize()

    def clear(self) -> None:
        """Give back what the last cell took."""
        torch.cuda.synchronize()
        self._pool = torch.cuda.graph_pool_handle()
        torch.cuda.empty_cache()

    def copy(self, op: str) -> Row:
        """A copy from device to device, launched on the stream: as a node of a graph it is slower."""
        for _ in range(3):
            self._target.copy_(self._source)
        times = self.times({"copy": lambda: self._target.copy_(self._source)})["copy"]
        match = "ok" if torch.equal(self._source, self._target) else "FAILED: the copy differs"
        size = self._source.nbytes
        labels = {"rows": 1, "columns": size, "dtype": "uint8"}
        row = Row(op, "copy", "copy", "b.copy_(a)", labels, bytes=2 * size, match=match)
        return row if row.failed else timed(row, times, 1)


def percentiles(values: list[float]) -> tuple[float, float, float]:
    """The 20th, 50th and 80th percentile, interpolated linearly."""
    quantiles = torch.tensor(values, dtype=torch.float64).quantile(torch.tensor([0.2, 0.5, 0.8], dtype=torch.float64))
    return tuple(quantiles.tolist())


def timed(row: Row, times: list[float], calls: int) -> Row:
    """The row with the GPU time of one of the calls in each replay."""
    p20, p50, p80 = (value / calls for value in percentiles(times))
    return replace(row, us_p20=p20, us_p50=p50, us_p80=p80)


def timer(function: Callable) -> Callable[[int], float]:
    """calls → the seconds that so many calls of the function take."""
    return timeit.Timer("function()", globals={"function": function}).timeit


def batches(
    timers: Mapping[str, Callable[[int], float]],
    calls: int,
    count: int,
    synchronize: Callable[[], None],
    *,
    waits: bool = False,
) -> dict[str, list[float]]:
    """µs per call in each of `count` batches of calls, by turns, after one batch that warms up.

    waits: the batch ends when the GPU has done its work, in place of when the last call returns.
    """
    samples = {name: [] for name in timers}
    for _ in range(count + 1):
        for name, seconds_of in timers.items():
            synchronize()
            seconds = seconds_of(calls)
            if waits:
                seconds += timeit.timeit(synchronize, number=1)
            samples[name].append(1e6 * seconds / calls)
    synchronize()
    return {name: times[1:] for name, times in samples.items()}
