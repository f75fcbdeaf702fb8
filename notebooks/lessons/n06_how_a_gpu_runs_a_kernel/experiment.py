"""What the notebook says in numbers: `python -m lessons.n06_how_a_gpu_runs_a_kernel --save`, on a GPU.

    stride     strided_kernel: every stride-th float32 is read; bytes are those that were asked for
    latency    chase_kernel: ns from a read to the next that hangs on it, in a working set of some bytes
    flight     copy_kernel, so many programs an SM, each with a tile of BLOCK elements in flight; 0: one for each tile
    queued     copy_kernel, more programs an SM than it has room for: each loops, and the SMs take them as they get room
    idle       copy_kernel with nothing to copy: programs that begin and end
    reread     reread_kernel: a buffer of some bytes read again and again by all programs, which walk in step; cache:
               the first that is asked
    order      the same past the L1, in step and each program in an order of its own
    product    DLRM's products in fp32 (no tensor cores), tf32 and bf16, the top MLP's first with a column more, and a
               large square
    launch     a kernel with next to nothing to do
    copy       PyTorch's copy of 1 GiB

    ncu        what `ncu` prints of some of these kernels, or why it does not
"""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from kernels import machine
from lessons.n06_how_a_gpu_runs_a_kernel.memory_kernels import chase_kernel, copy_kernel, reread_kernel, strided_kernel
from lessons.shared import ncu as nsight
from lessons.shared.experiment import Experiment, Launch, Way
from model.config import Precision, preset
from model.device import settings

LINE = 128  # bytes of a cache's line
TILE, WARPS, PER_SM = 4096, 8, 4  # of reread_kernel: float32 a tile, warps a program, programs an SM
CACHES = {"L1": "", "L2": ".cg"}  # of reread_kernel: the first that a read asks, and how it is told so
ORDERS = {"in step": False, "own": True}  # of reread_kernel's programs
STRIDES, COPIES = (1, 8, 32), (128, 1024, 8192)  # launch_once
SERVED = tuple(itertools.product((2**21, 2**23), ORDERS))  # … and what the L2 serves of them: bytes, order
LAUNCHED = (  # by launch_once
    *(f"stride {stride}" for stride in STRIDES), *(f"BLOCK {block}" for block in COPIES),
    *(f"{size >> 20} MiB, {order}" for size, order in SERVED),
)
METRICS = (
    "gpu__time_duration.sum",
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "lts__t_sectors_op_read.sum",
    "lts__t_sectors_srcunit_tex_op_read.sum",
    "l1tex__m_xbar2l1tex_read_sectors.sum",
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
    """What is measured; elements are float32, and counts powers of two where nothing else is said.

    reads: of strided_kernel. copied: of copy_kernel; programs: an SM; queued: BLOCK and programs an SM; idle: programs.
    reread: bytes of the buffers, and tiles a program reads of them.
    latency: (bytes of the working set, reads that warm up, reads after them). batches and square: of the products.
    """

    reads: int = 1 << 25
    strides: tuple[int, ...] = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
    strided_block: int = 1024
    copied: int = 1 << 26
    blocks: tuple[int, ...] = (128, 256, 512, 1024, 2048, 4096, 8192, 16384)
    programs: tuple[int, ...] = (0, 1, 2, 4, 8, 16)
    queued: tuple[tuple[int, int], ...] = ((512, 16), (512, 32), (512, 64), (512, 0))
    idle: tuple[int, ...] = (1 << 17, 1 << 18, 1 << 19)
    reread: tuple[int, ...] = tuple(1 << k for k in (16, 17, 18, 20, 21, 22, 23, 24, 25, 26, 27, 28, 30))
    tiles: int = 128
    latency: tuple[tuple[int, int, int], ...] = (
        (1 << 15, 1 << 8, 1 << 14), (1 << 22, 1 << 15, 1 << 16), (1 << 29, 1 << 12, 1 << 14),
    )
    batches: tuple[int, ...] = (2048, 65536)
    square: int = 8192


class Gpu(Experiment):
    """What gpu.json has; device: what the device says of itself, ncu: what `ncu` prints, or why it does not."""

    NAME = "gpu"
    PARTS = ("stride", "latency", "flight", "queued", "idle", "reread", "order", "product", "launch", "copy", "ncu")
    COMMANDS = ("launch_once",)
    FULL = Sizes()
    SMALL = Sizes(
        reads=1 << 10, strides=(1, 8), strided_block=256, copied=1 << 12, blocks=(1024,), programs=(0, 1),
        queued=((1024, 2),), idle=(2,), reread=(1 << 15,), tiles=2, latency=((1 << 12, 4, 8),), batches=(2,), square=16,
    )

    def __init__(self, device: torch.device, sizes: Sizes | None = None):
        super().__init__(device, sizes)
        self.sms = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2
        self.extra["device"] = properties_of(device)

    def empty(self, *shape: int) -> Tensor:
        return torch.empty(shape, device=self.device)

    def stride(self) -> None:
        """Each kernel asks for the same bytes, `reads` numbers."""
        n, block = self.sizes.reads, self.sizes.strided_block
        x, out = self.whole(n * max(self.sizes.strides)), self.empty(n // block)
        ways = []
        for stride in self.sizes.strides:
            launch = Launch(partial(strided_kernel[(n // block,)], x, out, stride, BLOCK=block), out)
            expected = x[::stride][:n].view(-1, block).sum(1)
            ways.append(Way({"stride": stride}, [launch], partial(torch.equal, expected), launch.code))
        self.compare("stride", ways, captured=False, reads=n, bytes=4 * n)

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
            right, runs = True, {}
            for count in (warm_up, warm_up + steps):
                out.fill_(-1)
                runs[count] = partial(chase_kernel[(1,)], following, out, count, num_warps=1)
                runs[count]()
                right &= int(out) == int(order[count % lines]) * apart
            short, long = self.times(runs).values()
            ns = [1e3 * (b - a) / steps for a, b in zip(sorted(short), sorted(long), strict=True)]
            self.add("latency", ns, right, "ns", size=size, steps=steps)

    def flight(self) -> None:
        """Four warps a program: BLOCK / 128 elements a thread."""
        cases = itertools.product(self.sizes.blocks, self.sizes.programs)
        self._copies("flight", cases)

    def queued(self) -> None:
        """By turns with as many programs as there is room for, and with one for each tile."""
        self._copies("queued", self.sizes.queued)

    def idle(self) -> None:
        """Right is what writes nothing: the output stays poisoned."""
        x, out = self.whole(128), self.empty(128)
        ways = []
        for programs in self.sizes.idle:
            launch = Launch(partial(copy_kernel[(programs,)], x, out, 0, BLOCK=128, num_warps=4), out)
            ways.append(Way({"programs": programs}, [launch], lambda out: bool(out.isnan().all())))
        self.compare("idle", ways, captured=False, threads=128)

    def _copies(self, part: str, cases: Iterable[tuple[int, int]]) -> None:
        """cases: (BLOCK, programs an SM)."""
        n = self.sizes.copied
        x, out = self.whole(n), self.empty(n)
        ways = []
        for block, programs in cases:
            grid = (programs * self.sms or -(-n // block),)
            launch = Launch(partial(copy_kernel[grid], x, out, n, BLOCK=block, num_warps=4), out)
            ways.append(Way({"block": block, "programs": programs}, [launch], partial(torch.equal, x), launch.code))
        self.compare(part, ways, captured=False, threads=128, bytes=8 * n)

    def reread(self) -> None:
        """As many programs as are there at once; each reads the same number of tiles."""
        for size, cache in itertools.product(self.sizes.reread, CACHES):
            self._rereads("reread", size, {"in step": {"cache": cache}}, cache)

    def order(self) -> None:
        for size in self.sizes.reread:
            self._rereads("order", size, {order: {"order": order} for order in ORDERS}, "L2")

    def _rereads(self, part: str, size: int, orders: dict[str, dict], cache: str) -> None:
        """A buffer of so many bytes in some orders, each with its labels."""
        programs, count, tiles = PER_SM * self.sms, self.sizes.tiles, size // (4 * TILE)
        x, out = self.whole(tiles * TILE), self.empty(programs)
        program, ways = torch.arange(programs, device=self.device)[:, None], []
        for order, labels in orders.items():
            own = ORDERS[order]
            first, step = (7919 * program, 2 * program + 1) if own else (program * tiles // programs, 1)
            indices = (first + torch.arange(count, device=self.device) * step) % tiles
            expected = x.view(tiles, TILE).sum(1)[indices].sum(1)
            launch = Launch(partial(self._reread, x, out, tiles, own, cache), out)
            ways.append(Way({"size": size} | labels, [launch], partial(torch.equal, expected), launch.code))
        moved = 4 * TILE * count * programs
        self.compare(part, ways, captured=False, programs=programs, threads=32 * WARPS, bytes=moved)

    def _reread(self, x: Tensor, out: Tensor, tiles: int, own: bool, cache: str) -> object:
        options = {"OWN": own, "CACHE": CACHES[cache], "BLOCK": TILE, "num_warps": WARPS}
        return reread_kernel[(len(out),)](x, out, tiles, self.sizes.tiles, **options)

    def product(self) -> None:
        for name, rows, depth, columns in products(self.sizes):
            with self.caught("product", name=name, rows=rows):
                self._product(name, rows, depth, columns)

    def _product(self, name: str, rows: int, depth: int, columns: int) -> None:
        """out [rows, columns] = a [rows, depth] · b [depth, columns]; of the pairs for each of `rows` a product of its
        own, [27, 16] · [16, 27]."""
        pairs = name == "pairs"
        for precision in Precision:
            if precision is Precision.TF32 and self.gpu is None:
                continue
            dtype = torch.bfloat16 if precision is Precision.BF16 else torch.float32
            shape = (rows, 27, 16) if pairs else (rows, depth)
            moved = rows * (27 * 16 + 27 * 27) if pairs else rows * depth + depth * columns + rows * columns
            moved *= dtype.itemsize
            operands = [self.normal(*shape, dtype=dtype) for _ in range(self.sets(moved, most=32))]
            other = self.normal(columns, depth, dtype=dtype)

            def right(out: Tensor, a: Tensor = operands[0], b: Tensor = other) -> bool:
                return close(out, a, b, pairs)

            calls = [partial(torch.bmm, a, a.mT) if pairs else partial(torch.mm, a, other.T) for a in operands]
            with settings(0, precision):
                self.compare(
                    "product", [Way({"precision": str(precision)}, calls, right)], name=name, rows=rows, depth=depth,
                    columns=columns, bytes=moved, flops=2 * rows * (27 * 27 * 16 if pairs else depth * columns),
                )

    def launch(self) -> None:
        x, out = self.whole(128), self.empty(128)
        launch = Launch(partial(copy_kernel[(1,)], x, out, 128, BLOCK=128, num_warps=4), out)
        self.compare("launch", [Way({}, [launch], partial(torch.equal, x))], captured=False, bytes=8 * 128)

    def ncu(self) -> None:
        """command, lines: what it prints, without what names this machine; why: it measured nothing ('' if it did)."""
        shown = " ".join(ncu_command())
        report = nsight.run(ncu_command("ncu", sys.executable)) if self.gpu else {"lines": [], "why": "not run"}
        self.extra["ncu"] = {"command": shown, **report}
        print(f"ncu       {len(report['lines'])} lines {report['why']}", flush=True)

    def launch_once(self) -> None:
        """only start what LAUNCHED says, each once, in its order: what ncu is given"""
        n, block = self.sizes.reads, self.sizes.strided_block
        x = torch.ones(max(n * max(STRIDES), SERVED[-1][0] // 4), device=self.device)
        out = self.empty(n)
        for stride in STRIDES:
            strided_kernel[(n // block,)](x, out, stride, BLOCK=block)
        for grid, block in zip((16 * self.sms, n // COPIES[1], 2 * self.sms), COPIES, strict=True):
            copy_kernel[(grid,)](x, out, n, BLOCK=block, num_warps=4)
        for size, order in SERVED:
            self._reread(x, out[: PER_SM * self.sms], size // (4 * TILE), ORDERS[order], "L2")
        self.synchronize()


def close(out: Tensor, a: Tensor, b: Tensor, pairs: bool, some: int = 64) -> bool:
    """The first rows, to within a hundredth of their largest number: bfloat16's results have 8 bits."""
    first = a[:some].double()
    exact = first @ (first.mT if pairs else b.double().T)
    return bool((out[:some].double() - exact).abs().max() <= 0.01 * exact.abs().max())


def products(sizes: Sizes) -> list[tuple[str, int, int, int]]:
    """(name, rows, depth, columns): the layers of the main preset, its interaction, that of `outer`, and a square."""
    model = preset("main").model
    features = 27 * 26 // 2 + model.embedding_dim  # what the top MLP is given: the pairs and the dense vector
    shapes = []
    for rows in sizes.batches:
        for name, widths in (("bottom", model.bottom), ("top", (features, *model.top))):
            layers = enumerate(itertools.pairwise(widths), 1)
            shapes += [(f"{name} {number}", rows, depth, columns) for number, (depth, columns) in layers]
        shapes.append(("top 1 padded", rows, -(-features // 8) * 8, model.top[0]))
        shapes.append(("pairs", rows, 16, 27))
    shapes.append(("outer", min(sizes.batches), (27 * 16) ** 2 if sizes.square > 1000 else 64, 512))
    return [*shapes, ("square", *3 * (sizes.square,))]


def properties_of(device: torch.device) -> dict:
    """What the device says of itself: SMs, and what each has; bytes of the L2; MHz at most."""
    if device.type != "cuda":
        return {}
    properties = torch.cuda.get_device_properties(device)
    names = (
        "multi_processor_count", "max_threads_per_multi_processor", "regs_per_multiprocessor",
        "shared_memory_per_multiprocessor", "shared_memory_per_block_optin", "L2_cache_size", "total_memory",
        "warp_size",
    )
    clocks = machine.output("nvidia-smi", "--query-gpu=clocks.max.sm,clocks.max.mem", "--format=csv,noheader,nounits")
    values = {name: getattr(properties, name) for name in names if hasattr(properties, name)}
    both = [int(number) for number in re.findall(r"\d+", clocks.splitlines()[0])] if clocks else []
    return values | dict(zip(("max_sm_mhz", "max_memory_mhz"), both, strict=False))


def ncu_command(ncu: str = "ncu", python: str = "python") -> list[str]:
    """The kernels of launch_once measured: some sections in words, and METRICS. The clock stays locked, as ncu does
    it by default, so that two runs of it agree."""
    sections = [word for name in ("SpeedOfLight", "LaunchStats", "Occupancy") for word in ("--section", name)]
    kernels = ["--kernel-name-base", "function", "--kernel-name", "regex:^(strided|copy|reread)_kernel$"]
    program = [python, "-m", "lessons.n06_how_a_gpu_runs_a_kernel", "launch_once"]
    return [ncu, *kernels, *sections, "--metrics", ",".join(METRICS), *program]


main = Gpu.main
