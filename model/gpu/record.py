"""What the notebook on a GPU's insides says in numbers: `python -m model.gpu --save`, on a GPU.

    stride     strided_kernel: every stride-th float32 is read; bytes are those that were asked for
    latency    chase_kernel: ns from a read to the next that hangs on it, in a working set of some bytes
    flight     copy_kernel, so many programs an SM, each with a tile of BLOCK numbers in flight; 0: one for each tile
    reread     reread_kernel: a buffer of some bytes read again and again by all programs; cache: the first
               that is asked
    product    DLRM's products in fp32 (no tensor cores), tf32 and bf16, the top MLP's first with a column more, and a
               large square
    launch     a kernel with next to nothing to do
    copy       PyTorch's copy of 1 GiB

Saved in traces/results/<gpu>/gpu.json, with what the device says of itself and what `ncu` prints, or why it does not.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from kernels import doctor
from kernels.measure.clock import Gpu, batches, percentiles, timer
from kernels.runtime import KERNELS
from model.config import Precision, preset
from model.device import settings
from model.gpu.kernels import chase_kernel, copy_kernel, reread_kernel, strided_kernel
from model.recorder import head

NAME = "gpu"
PARTS = ("stride", "latency", "flight", "reread", "product", "launch", "copy", "ncu")
LINE = 128  # bytes of a cache's line
TILE, WARPS, PER_SM = 4096, 8, 4  # of reread_kernel: float32 a tile, warps a program, programs an SM
CACHES = {"L1": "", "L2": ".cg"}  # of reread_kernel: the first that a read asks, and how it is told so
LAUNCHED = ("stride 1", "stride 8", "stride 32", "BLOCK 128", "BLOCK 1024", "BLOCK 8192")  # by launch_once
NCU_SECONDS = 60
METRICS = (
    "gpu__time_duration.sum",
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "lts__t_sectors_op_read.sum",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
    "l1tex__average_t_sectors_per_request_pipe_lsu_mem_global_op_ld.ratio",
    "launch__registers_per_thread",
    "launch__occupancy_limit_registers",
    "sm__warps_active.avg.pct_of_peak_sustained_active",
    "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio",
)


@dataclass(frozen=True)
class Sizes:
    """What is measured; numbers are float32, and powers of two where nothing else is said.

    reads: of strided_kernel. copied: of copy_kernel. reread: bytes of the buffers, and tiles a program reads of them.
    latency: (bytes of the working set, reads that warm up, reads after them). batches and square: of the products.
    """

    reads: int = 1 << 25
    strides: tuple[int, ...] = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
    strided_block: int = 1024
    copied: int = 1 << 26
    blocks: tuple[int, ...] = (128, 256, 512, 1024, 2048, 4096, 8192, 16384)
    programs: tuple[int, ...] = (0, 1, 2, 4, 8, 16)  # an SM
    reread: tuple[int, ...] = tuple(1 << k for k in (16, 17, 18, 20, 21, 22, 23, 24, 25, 26, 27, 28, 30))
    tiles: int = 128
    latency: tuple[tuple[int, int, int], ...] = (
        (1 << 15, 1 << 8, 1 << 14), (1 << 22, 1 << 15, 1 << 16), (1 << 29, 1 << 12, 1 << 14),
    )  # fmt: skip
    batches: tuple[int, ...] = (2048, 65536)
    square: int = 8192


# Through Triton's interpreter, to see that it runs.
SMALL = Sizes(
    reads=1 << 10, strides=(1, 8), strided_block=256, copied=1 << 12, blocks=(1024,), programs=(0, 1),
    reread=(1 << 15,), tiles=2, latency=((1 << 12, 4, 8),), batches=(2,), square=16,
)  # fmt: skip


class Clock:
    """µs of functions, by turns: on a GPU each with a swept L2 (kernels.measure.clock.Gpu)."""

    def __init__(self, device: torch.device):
        self.device, self.gpu = device, Gpu() if device.type == "cuda" else None

    def times(self, functions: Mapping[str, Callable]) -> dict[str, list[float]]:
        if self.gpu is None:
            return batches({name: timer(function) for name, function in functions.items()}, 1, 1, lambda: None)
        for function in functions.values():
            function()
        return self.gpu.times(functions)

    def repeated(self, calls: Sequence[Callable[[], Tensor]]) -> list[float]:
        """µs of one of these calls, captured together."""
        if self.gpu is None:
            return self.times({"": calls[0]})[""]
        for call in calls[:2]:
            self.gpu.on_side_stream(call)
        replay, _ = self.gpu.capture(lambda: tuple(call() for call in calls))
        found = [us / len(calls) for us in self.gpu.times({"": replay})[""]]
        self.gpu.clear()
        return found


class Recorder:
    """Measures the parts; rows are printed as they come."""

    def __init__(self, device: torch.device, sizes: Sizes):
        self.device, self.sizes, self.clock = device, sizes, Clock(device)
        self.rows: list[dict] = []
        self.generator = torch.Generator(device).manual_seed(0)
        self.sms = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2

    def whole(self, *shape: int) -> Tensor:
        """Numbers from -3 to 3: sums of some millions of them are exact in float32, in any order."""
        return torch.randint(-3, 4, shape, generator=self.generator, device=self.device, dtype=torch.float32)

    def empty(self, *shape: int) -> Tensor:
        return torch.full(shape, float("nan"), device=self.device)

    def add(self, part: str, times: Iterable[float] | None, right: bool, **labels) -> None:
        """A row; without times if what was computed is wrong."""
        row = {"part": part, **labels, "match": "ok" if right else "FAILED: the result is wrong"}
        if right and times is not None:
            row |= dict(zip(("us_p20", "us_p50", "us_p80"), percentiles(list(times)), strict=True))
        self.rows.append(row)
        print(line(row), flush=True)

    def stride(self) -> None:
        """Each kernel asks for the same bytes, `reads` numbers."""
        n, block = self.sizes.reads, self.sizes.strided_block
        x, out = self.whole(n * max(self.sizes.strides)), self.empty(n // block)
        launches, right = {}, {}
        for stride in self.sizes.strides:
            launches[stride] = lambda stride=stride: strided_kernel[(n // block,)](x, out, stride, BLOCK=block)
            compiled = launches[stride]()
            expected = x[::stride][:n].view(-1, block).sum(1)
            right[stride] = torch.equal(out, expected), registers(compiled)
            out.fill_(float("nan"))
        for stride, times in self.clock.times(launches).items():
            match, used = right[stride]
            self.add("stride", times, match, stride=stride, reads=n, bytes=4 * n, registers=used)

    def latency(self) -> None:
        """Places are a line apart and in an order without a pattern. Two runs, of which one goes on for longer: the
        difference is free of the launch and, in a set that fits a cache, of the first round through it."""
        for size, warm_up, steps in self.sizes.latency:
            lines, apart = size // LINE, LINE // 4
            order = torch.randperm(lines, generator=self.generator, device=self.device)
            order = order.roll(-int((order == 0).nonzero()))  # the walk begins at place 0
            following = torch.zeros(lines * apart, dtype=torch.int32, device=self.device)
            following[order * apart] = (order.roll(-1) * apart).int()
            out = torch.empty(1, dtype=torch.int32, device=self.device)
            ends, runs = {}, {}
            for count in (warm_up, warm_up + steps):
                runs[count] = partial(chase_kernel[(1,)], following, out, count, num_warps=1)
                runs[count]()
                ends[count] = int(out) == int(order[count % lines]) * apart
            short, long = self.clock.times(runs).values()
            ns = [1e3 * (b - a) / steps for a, b in zip(sorted(short), sorted(long), strict=True)]
            low, middle, high = percentiles(ns)
            self.add(
                "latency", None, all(ends.values()), size=size, steps=steps, ns_p20=low, ns_p50=middle, ns_p80=high
            )

    def flight(self) -> None:
        """Four warps a program: BLOCK / 128 numbers a thread."""
        n = self.sizes.copied
        x, out = self.whole(n), self.empty(n)
        launches, found = {}, {}
        for block in self.sizes.blocks:
            for programs in self.sizes.programs:
                key = block, programs
                grid = (programs * self.sms or -(-n // block),)
                launches[key] = lambda grid=grid, block=block: copy_kernel[grid](x, out, n, BLOCK=block, num_warps=4)
                compiled = launches[key]()
                found[key] = torch.equal(out, x), registers(compiled), spills(compiled)
                out.fill_(float("nan"))
        for (block, programs), times in self.clock.times(launches).items():
            match, used, spilled = found[block, programs]
            self.add(
                "flight", times, match, block=block, programs=programs, threads=128, registers=used, spills=spilled,
                bytes=8 * n,
            )  # fmt: skip

    def reread(self) -> None:
        """As many programs as are there at once; each reads the same number of tiles."""
        programs, count = PER_SM * self.sms, self.sizes.tiles
        out = self.empty(programs)
        for size, (cache, modifier) in itertools.product(self.sizes.reread, CACHES.items()):
            tiles = size // (4 * TILE)
            x = self.whole(tiles * TILE)

            def launch(x=x, tiles=tiles, modifier=modifier):
                return reread_kernel[(programs,)](x, out, tiles, count, BLOCK=TILE, CACHE=modifier, num_warps=WARPS)

            compiled = launch()
            each = torch.arange(programs, device=self.device)[:, None] * tiles // programs
            taken = (each + torch.arange(count, device=self.device)) % tiles
            match = torch.equal(out, x.view(tiles, TILE).sum(1)[taken].sum(1))
            (times,) = self.clock.times({"": launch}).values()
            self.add(
                "reread", times, match, size=size, cache=cache, programs=programs, threads=32 * WARPS,
                bytes=4 * TILE * count * programs, registers=registers(compiled),
            )  # fmt: skip
            out.fill_(float("nan"))

    def product(self) -> None:
        for name, rows, depth, columns in products(self.sizes):
            self._product(name, rows, depth, columns)

    def _product(self, name: str, rows: int, depth: int, columns: int) -> None:
        """out [rows, columns] = a [rows, depth] · b [depth, columns]; of the pairs for each of `rows` a product of its
        own, [27, 16] · [16, 27]."""
        pairs, result = name == "pairs", {}
        for precision in Precision:
            if precision is Precision.TF32 and self.device.type != "cuda":
                continue
            dtype = torch.bfloat16 if precision is Precision.BF16 else torch.float32
            shape = (rows, 27, 16) if pairs else (rows, depth)
            moved = rows * (27 * 16 + 27 * 27) if pairs else rows * depth + depth * columns + rows * columns
            moved *= dtype.itemsize
            sets = 1 if moved > 2**28 else min(32, max(4, 2**28 // moved))  # together more than the L2 holds
            operands = [self._normal(shape, dtype) for _ in range(sets)]
            other = self._normal((columns, depth), dtype)

            def calls(operands=operands, other=other):
                if pairs:
                    return [lambda a=a: torch.bmm(a, a.mT) for a in operands]
                return [lambda a=a: a @ other.T for a in operands]

            with settings(0, precision):
                result = calls()[0]()
                match = self._close(result, operands[0], other, pairs)
                del result
                times = self.clock.repeated(calls())
            self.add(
                "product", times, match, name=name, rows=rows, depth=depth, columns=columns, precision=str(precision),
                bytes=moved, flops=2 * rows * (27 * 27 * 16 if pairs else depth * columns),
            )  # fmt: skip

    def _normal(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        return torch.randn(shape, generator=self.generator, device=self.device, dtype=dtype)

    @staticmethod
    def _close(result: Tensor, a: Tensor, b: Tensor, pairs: bool, some: int = 64) -> bool:
        """The first rows, to within a hundredth of their largest number: bfloat16's results have 8 bits."""
        part = a[:some].double()
        exact = part @ (part.mT if pairs else b.double().T)
        return bool((result[:some].double() - exact).abs().max() <= 0.01 * exact.abs().max())

    def launch(self) -> None:
        x, out = self.whole(128), self.empty(128)
        (times,) = self.clock.times({"": lambda: copy_kernel[(1,)](x, out, 128, BLOCK=128, num_warps=4)}).values()
        self.add("launch", times, torch.equal(x, out), bytes=8 * 128)

    def copy(self) -> None:
        if self.clock.gpu is None:
            return
        row = self.clock.gpu.copy(NAME)
        self.rows.append({"part": "copy", "bytes": row.bytes, "us_p20": row.us_p20, "us_p50": row.us_p50,
                          "us_p80": row.us_p80, "match": row.match})  # fmt: skip
        print(line(self.rows[-1]), flush=True)

    def measure(self, parts: Sequence[str] = PARTS) -> list[dict]:
        for part in parts:
            if part != "ncu":
                getattr(self, part)()
                if self.clock.gpu:
                    self.clock.gpu.clear()
        return self.rows


def products(sizes: Sizes) -> list[tuple[str, int, int, int]]:
    """(name, rows, depth, columns): the layers of the main preset, its interaction, that of `outer`, and a square."""
    model = preset("main").model
    features = 27 * 26 // 2 + model.embedding_dim  # what the top MLP is given: the pairs and the dense vector
    found = []
    for rows in sizes.batches:
        for name, widths in (("bottom", model.bottom), ("top", (features, *model.top))):
            layers = enumerate(itertools.pairwise(widths), 1)
            found += [(f"{name} {number}", rows, depth, columns) for number, (depth, columns) in layers]
        found.append(("top 1 padded", rows, -(-features // 8) * 8, model.top[0]))
        found.append(("pairs", rows, 16, 27))
    found.append(("outer", min(sizes.batches), (27 * 16) ** 2 if sizes.square > 1000 else 64, 512))
    return [*found, ("square", *3 * (sizes.square,))]


def registers(compiled) -> int | None:
    """Of a thread; None in the interpreter, which compiles nothing."""
    return getattr(compiled, "n_regs", None)


def spills(compiled) -> int | None:
    return getattr(compiled, "n_spills", None)


def line(row: Mapping) -> str:
    """The row as a line of text."""
    labels = " ".join(
        f"{name} {row[name]}" for name in
        ("name", "rows", "depth", "columns", "precision", "stride", "size", "cache", "block", "programs", "registers",
         "spills")
        if row.get(name) is not None
    )  # fmt: skip
    shown = f"{row['ns_p50']:.1f} ns" if "ns_p50" in row else ""
    if "us_p50" in row:
        shown = f"{row['us_p50']:.2f} µs ({row['us_p20']:.2f} to {row['us_p80']:.2f})"
        shown += f", {row['bytes'] / row['us_p50'] / 1e3:,.0f} GB/s"
        shown += f", {row['flops'] / row['us_p50'] / 1e6:.1f} TFLOP/s" if "flops" in row else ""
    return f"{row['part']:8} {labels:60} {shown}  {row['match']}"


def device_facts(device: torch.device) -> dict:
    """What the device says of itself: SMs, and what each has; bytes of the L2; MHz at most."""
    if device.type != "cuda":
        return {}
    properties = torch.cuda.get_device_properties(device)
    names = (
        "multi_processor_count", "max_threads_per_multi_processor", "regs_per_multiprocessor",
        "shared_memory_per_multiprocessor", "shared_memory_per_block_optin", "L2_cache_size", "total_memory",
        "warp_size",
    )  # fmt: skip
    clocks = doctor.output("nvidia-smi", "--query-gpu=clocks.max.sm,clocks.max.mem", "--format=csv,noheader,nounits")
    found = {name: getattr(properties, name) for name in names if hasattr(properties, name)}
    both = [int(number) for number in re.findall(r"\d+", clocks.splitlines()[0])] if clocks else []
    return found | dict(zip(("max_sm_mhz", "max_memory_mhz"), both, strict=False))


# ------------------------------------------------------------------------------------------------------------- ncu


def launch_once(device: torch.device, sizes: Sizes) -> None:
    """What LAUNCHED says, each once, strided_kernel and then copy_kernel: what ncu is given."""
    n, block = sizes.reads, sizes.strided_block
    x, out = torch.ones(n * 32, device=device), torch.empty(n, device=device)
    for stride in (1, 8, 32):
        strided_kernel[(n // block,)](x, out, stride, BLOCK=block)
    sms = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2
    for grid, block in ((16 * sms, 128), (n // 1024, 1024), (2 * sms, 8192)):
        copy_kernel[(grid,)](x, out, n, BLOCK=block, num_warps=4)
    if device.type == "cuda":
        torch.cuda.synchronize()


def find_ncu() -> str | None:
    """ncu on PATH or beside nvcc's usual place."""
    return shutil.which("ncu", path=os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/local/cuda/bin")))


def ncu_command(ncu: str = "ncu", python: str = "python") -> list[str]:
    """Six kernels measured: some sections in words, and METRICS."""
    sections = [word for name in ("SpeedOfLight", "LaunchStats", "Occupancy") for word in ("--section", name)]
    kernels = ["--kernel-name-base", "function", "--kernel-name", "regex:^(strided|copy)_kernel$"]
    return [ncu, *kernels, *sections, "--metrics", ",".join(METRICS), python, "-m", "model.gpu", "launch"]


def run_ncu() -> dict:
    """command, lines: what it prints, without what names this machine; why: it measured nothing ('' if it did)."""
    shown = " ".join(ncu_command())
    ncu = find_ncu()
    if ncu is None:
        return {"command": shown, "lines": [], "why": "ncu is neither on PATH nor in /usr/local/cuda/bin"}
    try:
        done = subprocess.run(
            ncu_command(ncu, sys.executable), capture_output=True, text=True, errors="replace", timeout=NCU_SECONDS,
            cwd=KERNELS.parent, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"command": shown, "lines": [], "why": f"ncu did not end: {type(error).__name__}"}
    return {"command": shown, **ncu_lines(done.stdout + done.stderr)}


def ncu_lines(text: str) -> dict:
    """lines and why, of what ncu printed: from the first kernel on, what is measured; before it, what went wrong."""
    lines = [each.rstrip() for each in text.splitlines() if each.strip() and not each.startswith("==PROF==")]
    lines = [re.sub(r"\[\d+\] python\S*@\S+", "python", each) for each in lines]
    errors = [each for each in lines if "ERR" in each]
    measured = any("dram__bytes_read.sum" in each for each in lines)
    return {"lines": lines if measured else [], "why": "" if measured else " ".join(errors)[:500] or "no metric came"}


def record(device: torch.device, parts: Sequence[str] = PARTS, sizes: Sizes | None = None) -> dict:
    """What is saved in traces/results/<gpu>/gpu.json."""
    rows = Recorder(device, sizes or Sizes()).measure(parts)
    ncu = run_ncu() if "ncu" in parts and device.type == "cuda" else {"lines": [], "why": "not run"}
    print(f"ncu      {len(ncu['lines'])} lines {ncu['why']}", flush=True)
    return head(NAME, "python -m model.gpu") | {"device": device_facts(device), "ncu": ncu, "rows": rows}
