"""What a GPU is asked for a lesson: its parts, each a method; what is compared is checked, and measured by turns.

`python -m lessons.nNN_name`, on a GPU; `--save` writes traces/results/<gpu>/<NAME>.json, `--only PART,…` measures some
parts, `--device cpu` tries all out, in small. A row that fails says so, and the others are measured.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from data.cli import Parser, UserError, user_errors
from kernels import runtime
from kernels.measure import records
from kernels.measure.clock import Gpu, batches, percentiles, timer
from model.profiling.recording import today

VERSIONS = ("GPU", "driver", "torch", "triton", "CUDA", "Python")
PERCENTILES = ("p20", "p50", "p80")
WRONG = "FAILED: the result is wrong"
Outputs = Tensor | Sequence[Tensor]
Judge = Callable[[Outputs], bool | str]
Clock = Callable[[Mapping[int, Callable]], Mapping[int, Sequence[float]]]


@dataclass(frozen=True)
class Way:
    """One of the ways to a result that are compared.

    calls: each returns the tensors that it wrote; they differ in their inputs only, and are timed one after the other.
    right: whether what the first call gave is right, or what is wrong with it ("FAILED: …"). after: labels that are
    known when it has run.
    """

    labels: Mapping[str, object]
    calls: Sequence[Callable[[], Outputs]]
    right: Judge
    after: Callable[[], Mapping] = dict


class Launch:
    """A launch of a Triton kernel as a call that gives what it writes; compiled: what Triton made of it, at last."""

    def __init__(self, launch: Callable[[], object], *outputs: Tensor):
        self.launch, self.outputs, self.compiled = launch, outputs, None

    def __call__(self) -> tuple[Tensor, ...]:
        self.compiled = self.launch()
        return self.outputs

    def code(self) -> dict[str, int]:
        """registers and spills of a thread; {} in the interpreter, which compiles nothing."""
        names = {"registers": "n_regs", "spills": "n_spills"}
        return {name: getattr(self.compiled, own) for name, own in names.items() if hasattr(self.compiled, own)}


class Experiment:
    """The rows of a record, which are printed as they come. A lesson's own has NAME, PARTS, FULL and SMALL, and a
    method for each part.

    device: "cpu" measures SMALL, without a GPU's clock. extra: what stands in the record above its rows.
    """

    NAME: ClassVar[str]  # of the record
    PARTS: ClassVar[tuple[str, ...]]
    FULL: ClassVar[object] = None  # the sizes
    SMALL: ClassVar[object] = None
    COMMANDS: ClassVar[tuple[str, ...]] = ()  # methods that the command line offers beside the parts

    def __init__(self, device: torch.device, sizes: object = None):
        self.device = device
        self.sizes = sizes or (self.SMALL if device.type == "cpu" else self.FULL)
        self.rows: list[dict] = []
        self.extra: dict[str, object] = {}
        self.generator = torch.Generator(device).manual_seed(0)

    @cached_property
    def gpu(self) -> Gpu | None:
        """What times on a GPU; its buffers take memory, so it is made when it is first asked for."""
        return Gpu() if self.device.type == "cuda" else None

    # ------------------------------------------------------------------------------------------------------- operands

    def normal(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Normal numbers, the same on every run."""
        return torch.randn(shape, generator=self.generator, device=self.device).to(dtype)

    def whole(self, *shape: int) -> Tensor:
        """Numbers from -3 to 3 in float32: sums of some millions of them are exact, in any order."""
        return torch.randint(-3, 4, shape, generator=self.generator, device=self.device).float()

    def sets(self, moved: int, most: int = 16) -> int:
        """How many sets of operands of so many bytes make four times the L2, `most` at most; without a GPU one."""
        return 1 if self.gpu is None else min(most, max(1, 4 * self.gpu.l2_bytes // max(1, moved)))

    # ----------------------------------------------------------------------------------------------------------- rows

    def add(self, part: str, times: Iterable[float] | None, right: bool | str, unit: str = "us", **labels) -> None:
        """A row, with percentiles of its times; a wrong one has no time. right: or a sentence that begins with FAILED.
        """
        match = right if isinstance(right, str) else "ok" if right else WRONG
        row = {"part": part, **labels, "match": match}
        if times is not None and not match.startswith("FAILED"):
            row |= {f"{unit}_{name}": us for name, us in zip(PERCENTILES, percentiles(list(times)), strict=True)}
        self.rows.append(row)
        self.show(row)

    def show(self, row: Mapping) -> None:
        """What is printed of a row when it comes."""
        print(line(row), flush=True)

    @contextmanager
    def caught(self, part: str, **labels) -> Iterator[None]:
        """What is raised within becomes a row, so that the others are measured all the same."""
        try:
            yield
        except Exception as error:
            traceback.print_exc()
            self.add(part, None, failure(error), **labels)

    def compare(
        self,
        part: str,
        ways: Iterable[Way],
        *,
        captured: bool = True,
        clock: Clock | None = None,
        also: Callable[[Mapping[int, Callable]], Mapping[int, Mapping]] | None = None,
        **labels,
    ) -> None:
        """A row for each way, judged before it is timed and after, on outputs that were poisoned; timed by turns.

        captured: as one CUDA graph, where there is a GPU; otherwise launched from here. clock: µs of {way: function};
        without it µs on the GPU, the L2 swept before each. also: what else is measured of the right ways' first calls.
        """
        ways = list(ways)
        trials, judged = {}, {}
        for number, way in enumerate(ways):
            try:
                trials[number] = trial = Trial(self.gpu if captured else None, way)
                judged[number] = trial.judge()
            except Exception as error:  # the other ways are measured all the same
                traceback.print_exc()
                judged[number] = failure(error)
        right = {number: trials[number].run for number, match in judged.items() if match == "ok"}
        times = (clock or self.times)(right) if right else {}
        more = also({number: ways[number].calls[0] for number in right}) if also and right else {}
        for number, way in enumerate(ways):
            match, us = judged[number], None
            if number in right:
                try:
                    match = trials[number].judge()
                except Exception as error:
                    traceback.print_exc()
                    match = failure(error)
                us = [value / len(way.calls) for value in times[number]]
            known = dict(way.after()) if number in trials else {}
            row = {"part": part, **labels, **way.labels, **known, **more.get(number, {})}
            self.add(times=us, right=match, **row)
        trials.clear()
        right.clear()
        if self.gpu:
            self.gpu.clear()

    def copied(self, moved: int, **labels) -> Way:
        """PyTorch's copy that reads and writes so many bytes together, among the ways that it is compared with."""
        source = torch.ones(max(1, moved // 8), device=self.device)
        target = torch.empty_like(source)
        labels = {"part": "copy", **labels, "bytes": 2 * source.nbytes}
        return Way(labels, [lambda: target.copy_(source)], lambda _: torch.equal(target, source))

    def copy(self) -> None:
        """The part `copy`: PyTorch's copy of 1 GiB."""
        if self.gpu:
            row = self.gpu.copy(self.NAME)
            times = {f"us_{name}": getattr(row, f"us_{name}") for name in PERCENTILES}
            self.rows.append({"part": "copy", "bytes": row.bytes, "match": row.match} | times)
            self.show(self.rows[-1])

    # ---------------------------------------------------------------------------------------------------------- clocks

    def times(self, functions: Mapping) -> dict:
        """µs of each on the GPU, by turns, the L2 swept before each; without a GPU a single call's."""
        if self.gpu:
            return self.gpu.times(functions)
        return batches({name: timer(function) for name, function in functions.items()}, 1, 1, self.synchronize)

    def call_times(self, functions: Mapping, calls: int, count: int, *, waits: bool = True) -> dict:
        """µs a call, by turns, in each of `count` batches of calls, of which the last one is waited for if `waits`."""
        timers = {name: timer(function) for name, function in functions.items()}
        return batches(timers, calls, count, self.synchronize, waits=waits)

    def synchronize(self) -> None:
        if self.gpu:
            self.gpu.synchronize()

    # --------------------------------------------------------------------------------------------------------- command

    def measure(self, parts: Sequence[str] | None = None) -> list[dict]:
        """All parts, or these; a part that fails is a row that says so."""
        for part in parts or self.PARTS:
            with self.caught(part):
                getattr(self, part)()
            if "torch._dynamo" in sys.modules:
                torch._dynamo.reset()
            if self.__dict__.get("gpu"):
                self.gpu.clear()
        return self.rows

    def record(self, prog: str) -> dict:
        """What is saved: by which command, on which GPU, with which versions, when, what is extra, and the rows."""
        versions = runtime.versions()
        head = {"op": self.NAME, "command": f"{prog} --save", **{name: versions[name] for name in VERSIONS}}
        return head | {"date": today()} | self.extra | {"rows": self.rows}

    @classmethod
    def main(cls, arguments: list[str] | None = None) -> int:
        """The command; 1 if a row failed, 2 for a mistake of the user's."""
        prog = f"python -m {cls.__module__.rpartition('.')[0]}"
        about = sys.modules[cls.__module__].__doc__
        parser = Parser(prog=prog, description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
        if cls.COMMANDS:
            about = "; ".join(f"{name}: {getattr(cls, name).__doc__.splitlines()[0]}" for name in cls.COMMANDS)
            parser.add_argument("command", nargs="?", choices=cls.COMMANDS, help=about)
        parser.add_argument("--save", action="store_true", help=f"record in traces/results/<gpu>/{cls.NAME}.json")
        parser.add_argument("--only", default=",".join(cls.PARTS), metavar="PART,…", help="these parts, not saved")
        parser.add_argument("--device", help="default: the GPU; cpu only tries it out, in small")
        args = parser.parse_args(arguments)
        with user_errors(prog):
            parts = args.only.split(",")
            if unknown := sorted(set(parts) - set(cls.PARTS)):
                raise UserError(f"--only {','.join(unknown)}: expected some of {','.join(cls.PARTS)}")
            if args.save and (set(parts) != set(cls.PARTS) or args.device):
                raise UserError("--save: a part, or another device's times, is not saved over the record of all")
            device = torch.device(args.device or runtime.device())
            if getattr(args, "command", None):
                getattr(cls(device), args.command)()
                return 0
            if args.device is None and device.type != "cuda":
                raise UserError("this is recorded on an NVIDIA GPU, and there is none here (--device cpu tries it out)")
            experiment = cls(device)
            rows = experiment.measure([part for part in cls.PARTS if part in parts])
            if args.save:
                print(records.save(experiment.record(prog)))
            return int(any(row["match"].startswith("FAILED") for row in rows))


class Trial:
    """A way that was run once, so that what it compiles is compiled; with a GPU it is captured as one CUDA graph.

    run: all its calls. outputs: those of its first call.
    """

    def __init__(self, gpu: Gpu | None, way: Way):
        self.way, self.captured = way, gpu is not None
        if gpu is None:
            self.run = way.calls[0] if len(way.calls) == 1 else self._all  # a call from Python is timed bare
            self.outputs = self._all()
            return
        for call in way.calls[:2]:
            gpu.on_side_stream(lambda call=call: [call() for _ in range(2)])
        self.run, self.outputs = gpu.capture(self._all)

    def _all(self) -> tuple[Tensor, ...]:
        """The first call's outputs; no two calls' outputs share their memory."""
        results = [call() for call in self.way.calls]
        return tensors(results[0])

    def judge(self) -> str:
        """ "ok" or what is wrong, after a run over outputs that hold NaN, or the least integer."""
        try:
            poison(self.outputs)
        except RuntimeError:  # a graph of torch.compile's own has written over them: the next call's are as good
            self.outputs = self._all()
            poison(self.outputs)
        if self.captured:
            self.run()
        else:
            self.outputs = ()  # memory that a call allocates is the poisoned one
            self.outputs = tensors(self.way.calls[0]())
        if any(tensor.is_cuda for tensor in self.outputs):
            torch.cuda.synchronize()
        right = self.way.right(self.outputs[0] if len(self.outputs) == 1 else self.outputs)
        return right if isinstance(right, str) else "ok" if right else WRONG


def poison(outputs: Sequence[Tensor]) -> None:
    """Fill them with what no kernel writes: NaN, or the least integer."""
    for tensor in outputs:
        tensor.detach().fill_(float("nan") if tensor.is_floating_point() else torch.iinfo(tensor.dtype).min)


def tensors(outputs: Outputs) -> tuple[Tensor, ...]:
    return (outputs,) if isinstance(outputs, Tensor) else tuple(outputs)


def failure(error: Exception) -> str:
    """The error in a line."""
    return f"FAILED: {type(error).__name__}: {str(error).strip()[:300]}"


def line(row: Mapping) -> str:
    """The row as a line of text: its labels, its time with its spread, its rates."""
    timed = {f"{unit}_{name}": None for unit in ("us", "ns", "ms") for name in PERCENTILES}
    hidden = {"part", "match", "bytes", "flops", *timed}
    labels = " ".join(
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in row.items()
        if name not in hidden and value is not None and not isinstance(value, (list, dict))
    )
    shown = []
    for unit, word in (("us", "µs"), ("ns", "ns"), ("ms", "ms")):
        if f"{unit}_p50" in row:
            low, middle, high = (row[f"{unit}_{name}"] for name in PERCENTILES)
            shown.append(f"{middle:.4g} {word} ({low:.4g} to {high:.4g})")
        elif rounds := sorted(row.get(unit, ())):
            shown.append(f"{rounds[len(rounds) // 2]:.4g} {word} ({rounds[0]:.4g} to {rounds[-1]:.4g})")
    if "us_p50" in row:
        for name, scale, rate in (("bytes", 1e3, "GB/s"), ("flops", 1e6, "TFLOP/s")):
            shown += [f"{row[name] / row['us_p50'] / scale:,.1f} {rate}"] if name in row else []
    return f"{row.get('part', ''):9} {labels:60} {', '.join(shown)}  {row['match']}"


def kernels_of(step: Callable[[], object], steps: int = 3) -> dict[str, float]:
    """launches: kernels, copies and memsets that a step starts on the GPU; kernel_us: what they take together."""
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
    events = [
        event for event in profiler.key_averages()
        if event.device_type == torch.autograd.DeviceType.CUDA and event.self_device_time_total
    ]
    return {
        "launches": sum(event.count for event in events) / steps,
        "kernel_us": sum(event.self_device_time_total for event in events) / steps,
    }
