"""What a rank measures: torchrun starts it for model.bench.scale.measuring, which says what and where.

Steps are the trainer's own, `make_step` and `ShardedStep`, on batches that `ShardedBatches` read and that lie on the
device; exchanges are those of model.sharding.exchange, with the splits that the case's pieces make.
"""

if __name__ == "__main__":
    from data.cli import run

    run("model.bench.scale.rank")

import gc
import itertools
import json
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import cache, cached_property
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

import kernels
from data.cli import Parser, user_errors
from kernels.measure.clock import percentiles
from model.bench.scale import exchanges
from model.bench.scale.cells import CASE, Cell, Sizes
from model.bench.scale.exchanges import traffic
from model.bench.trainer import RATES, noting
from model.config import DLRMConfig, Kernels, Optimizer, Preset, TableOptimizer, TrainConfig, preset
from model.device import settings
from model.dlrm import DLRM, SparseArch
from model.optimizers import make_optimizer
from model.profiling.recording import record, step_times
from model.sharding.batches import ShardedBatches, Step
from model.sharding.exchange import Exchange
from model.sharding.pieces import Sharding
from model.sharding.ranks import Ranks, SharedSignals, of_rank
from model.sharding.sparse_arch import ShardedSparseArch
from model.sharding.step import ShardedStep
from model.step import make_step

PROG = "python -m model.bench scale"
BATCHES = 4  # of a cell, by turns
JUDGED = 20  # steps whose losses are compared; the last ones are replays
REORDERED = 2  # times that the reference goes through the same batches with their rows in another order
TIMEOUT = 120  # seconds that a rank waits for another
UNTOUCHED = 100_000  # rows of which none may change


def main(arguments: list[str] | None = None) -> int:
    parser = Parser(prog="python -m model.bench.scale.rank", description=__doc__.partition("\n")[0])
    parser.add_argument("todo", type=Path, help="what to do")
    parser.add_argument("done", type=Path, help="where a line of JSON says whenever a cell is done")
    args = parser.parse_args(arguments)
    todo = json.loads(args.todo.read_text())
    with user_errors(PROG):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # at once, also of a rank that waits in a collective
        ranks = Ranks(of_rank(todo["device"]), TIMEOUT, PROG)
        if ranks.device.type == "cpu":
            torch.set_num_threads(1)  # tiny steps: sharing their operations costs more than it saves
        with ranks.one_message(), args.done.open("a") as lines:
            rank = Rank(
                ranks, Path(todo["data"]), tuple(todo["cardinalities"]), Sizes(**todo["sizes"]), Path(todo["traces"])
            )
            for cell in map(Cell.read, todo["cells"]):
                rows = rank.measure(cell)
                if ranks.is_first:
                    print(json.dumps(rows), file=lines, flush=True)
    return 0


class Rank:
    """This rank, with the tables that its cells share. cardinalities: of the case's. traces: the folder for them."""

    def __init__(self, ranks: Ranks, data: Path, cardinalities: tuple[int, ...], sizes: Sizes, traces: Path):
        self.traces = traces
        self.ranks, self.data, self.sizes, self.device = ranks, data, sizes, ranks.device
        self.shape = replace(preset(CASE).model, cardinalities=cardinalities, kernels=Kernels.FUSED)
        self.signals = SharedSignals(ranks)  # not entered: a signal ends the process

    def measure(self, cell: Cell) -> list[dict]:
        """The cell's rows; the same on all ranks."""
        self.ranks.doing = f"in the cell {cell}"
        torch._dynamo.reset()
        with settings(torch.get_num_threads(), cell.precision):
            own = {"step": self._step, "reference": self._reference, "trace": self._trace, "large": self._large}
            rows = exchanges.measure(self, cell) if cell.part == "exchange" else own[cell.part](cell)
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        return rows

    # The case's model and its batches.

    @cached_property
    def arch(self) -> ShardedSparseArch:
        """This rank's tables, which all cells train."""
        exchange = Exchange(self.ranks.rank, self.ranks.world)
        arch = ShardedSparseArch(
            self.shape, sharding=Sharding(), exchange=exchange, seed=0, device=self.device
        )
        return arch.to(self.device)

    @cached_property
    def drawn(self) -> Tensor:
        """The weights with which each of them begins."""
        return self.arch.tables.weight.detach().clone()

    @cached_property
    def whole(self) -> SparseArch:
        """The tables of one process, without ranks. Of one rank they have the weights, which lie in the same order."""
        with torch.device(self.device):
            arch = SparseArch(self.shape)
        return arch.to(self.device)

    @cached_property
    def dense(self) -> int:
        """Parameters beside the tables."""
        return sum(one.numel() for one in self.model(self.arch).parameters()) - self.drawn.numel()

    def model(self, arch: SparseArch, shape: DLRMConfig | None = None) -> DLRM:
        """A model at its beginning."""
        drawn, weight = self.drawn if shape is None else None, arch.tables.weight.detach()
        torch.manual_seed(0)
        model = DLRM(shape or self.shape, None, lambda *_: arch).to(self.device)
        if drawn is not None:
            weight.copy_(drawn)
        return model

    def optimizer(self, model: DLRM, cell: Cell, rows: int):
        rule = cell.optimizer
        mlps = Optimizer.SGD if rule is TableOptimizer.SGD else Optimizer.ADAGRAD
        train = TrainConfig(
            mlps, RATES[rule], rule, RATES[rule], weight_decay=0.0, precision=cell.precision, batch_size=rows
        )
        return make_optimizer(model, Preset(model.config, train), capturable=cell.graph)

    @cache  # noqa: B019  there is one rank a process
    def batches(self, gpus: int, rows: int, order: int | None = None) -> list[Step]:
        """The first rows of each GPU's part of the file, on the device; order: a seed of another order of the rows."""
        read = ShardedBatches(self.data, gpus * rows, shards=gpus, rank=self.ranks.rank, world=self.ranks.world)
        generator = None if order is None else torch.Generator().manual_seed(order)
        steps = []
        for counts, batch in itertools.islice(read, BATCHES):
            if generator:
                rows = torch.randperm(len(batch[0]), generator=generator)
                batch = [tensor[rows] for tensor in batch]
            steps.append(Step(counts, tuple(tensor.to(self.device) for tensor in batch)))
        return steps

    # Steps.

    def _reference(self, cell: Cell) -> list[dict]:
        """Losses of one process on all GPUs' rows, and how far those are, at most, that another order of rows gives."""
        losses = [self._of_one_process(cell, order) for order in [None, *range(REORDERED)]]
        return [{"losses": losses[0], "reordered": losses[1:]}]

    def _of_one_process(self, cell: Cell, order: int | None) -> list[float]:
        model, rows = self.model(self.whole), cell.gpus * cell.rows
        step = make_step(model, self.optimizer(model, cell, rows), rows, self.device, cell.precision)
        turns = itertools.cycle(self.batches(cell.gpus, cell.rows, order))
        return [step(*next(turns).batch).item() for _ in range(JUDGED)]

    def _step(self, cell: Cell) -> list[dict]:
        """A row of the ranks' step; on one GPU also one of a step without ranks, by turns with it."""
        rows, steps, batches = {}, {}, self.batches(cell.gpus, cell.rows)
        for is_sharded in (True, False)[: 2 if cell.gpus == 1 else 1]:
            row = rows[is_sharded] = cell.row() | {"sharded": is_sharded}
            # An error of one rank among several leaves the others waiting: it ends them all.
            with noting(row) if cell.gpus == 1 else _plainly():
                made = self._sharded(cell, batches) if is_sharded else self._unsharded(cell, batches)
                with traffic(self.ranks) as sent:
                    row["losses"] = [made().item()]
                row["losses"] += [made().item() for _ in range(JUDGED - 1)]
                row["bytes"] = sent.busiest()
                steps[is_sharded] = made
        if steps:
            self._time(cell, rows, steps)
        for made in steps.values():
            made.close()
        kernels.check_ids()
        return list(rows.values())

    def _trace(self, cell: Cell) -> list[dict]:
        """No row: a folder of traces/, each rank's own."""
        made = self._sharded(cell, self.batches(cell.gpus, cell.rows))
        for _ in range(JUDGED):
            made()
        name = f"{21 + self.ranks.rank}_full_{cell.optimizer}_{'graph' if cell.graph else 'eager'}_{cell.precision}"
        config = {"run": cell.row(), "model": asdict(self.shape), "ids": sum(self.shape.cardinalities)}
        record(made, self.traces / f"{name}_rank{self.ranks.rank}", command=f"{PROG} --measure --save", config=config,
               device=self.device)
        made.close()
        return []

    def _sharded(self, cell: Cell, batches: Sequence[Step]) -> "Turns":
        self.arch.exchange = Exchange(self.ranks.rank, self.ranks.world, cell.exchange)
        model = self.model(self.arch)
        optimizer = self.optimizer(model, cell, cell.rows)
        step = ShardedStep(model, optimizer, self.signals, [cell.rows] * cell.gpus, cell.precision, cell.graph)
        return Turns(step, batches, step.close)

    def _unsharded(self, cell: Cell, batches: Sequence[Step]) -> "Turns":
        model = self.model(self.whole)
        step = make_step(
            model, self.optimizer(model, cell, cell.rows), cell.rows, self.device, cell.precision, cell.graph
        )
        return Turns(lambda _counts, batch: step(*batch), batches)

    def _time(self, cell: Cell, rows: dict[bool, dict], steps: dict[bool, "Turns"]) -> None:
        dist.barrier(group=self.ranks.host)
        before = self.nvlink(cell)
        times = step_times({str(key): step for key, step in steps.items()}, self.sizes.block, self.sizes.rounds)
        after = self.nvlink(cell)
        for is_sharded in steps:
            of_ranks = self.ranks.of_all(times[str(is_sharded)].tolist())
            low, middle, high = percentiles([max(of_round) for of_round in zip(*of_ranks, strict=True)])
            rows[is_sharded] |= {
                "ms": middle, "ms_low": low, "ms_high": high, "rows_per_s": 1e3 * cell.gpus * cell.rows / middle
            }
        if before is not None and after is not None:
            count = self.sizes.rounds * (self.sizes.block + 2)  # the timer warms each round up
            rows[True]["nvlink_bytes"] = (after - before) / count

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def nvlink(self, cell: Cell) -> int | None:
        """Bytes that this GPU has sent over its NVLinks so far, as the driver counts them; None: it does not say, or is
        not asked for this cell."""
        if not cell.is_counted:
            return None
        self.wait()
        command = ["nvidia-smi", "nvlink", "-gt", "d", "-i", str(self.device.index)]
        try:
            said = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False).stdout
        except (OSError, subprocess.TimeoutExpired):
            said = ""
        counts = re.findall(r"Data Tx: *(\d+) KiB", said)
        total = 1024 * sum(map(int, counts)) if counts else None
        dist.barrier(group=self.ranks.host)
        return total

    # Tables that no GPU holds.

    def _large(self, cell: Cell) -> list[dict]:
        memory = torch.cuda.get_device_properties(self.device).total_memory if self.device.type == "cuda" else 2**30
        width = self.sizes.width
        rows = int(self.sizes.share * min(self.ranks.of_all(memory)) / (4 * width))
        shape = replace(
            self.shape, bottom=(*self.shape.bottom[:-1], width), embedding_dim=width,
            cardinalities=(rows - 1,) * cell.gpus,
        )
        for name in ("arch", "drawn", "whole"):  # room
            self.__dict__.pop(name, None)
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.device)
        began = time.perf_counter()
        exchange = Exchange(self.ranks.rank, self.ranks.world)
        arch = ShardedSparseArch(shape, sharding=Sharding(), exchange=exchange, seed=0, device=self.device)
        arch = arch.to(self.device)
        seconds = time.perf_counter() - began
        model = self.model(arch, shape)
        optimizer = self.optimizer(model, cell, cell.rows)
        batches = list(self._drawn_batches(cell, len(shape.cardinalities)))
        looked_up = torch.cat([arch.rows(batch[2])[:, arch.tables.pieces[0].table] for _, batch in batches])
        others = self._rows_of_others(arch, batches)
        weight, looked_up = arch.tables.weight.detach(), torch.cat([looked_up, others]).unique()
        at_random = torch.randint(rows, (UNTOUCHED,), device=self.device)
        at_random = at_random[~torch.isin(at_random, looked_up)]
        before, kept = weight[looked_up].clone(), weight[at_random].clone()
        step = ShardedStep(model, optimizer, self.signals, [cell.rows] * cell.gpus, cell.precision, cell.graph)
        turns = Turns(step, batches, step.close)
        losses = [turns().item() for _ in range(JUDGED)]
        changed = (weight[looked_up] != before).any(1).float().mean().item()
        stray = (weight[at_random] != kept).any(1).sum().item()
        row = cell.row() | {"case": "large", "sharded": True, "losses": losses}
        self._time(cell, {True: row}, {True: turns})
        turns.close()
        peak = torch.cuda.max_memory_allocated(self.device) if self.device.type == "cuda" else 0
        of_ranks = self.ranks.of_all((changed, stray, peak))
        faults = [
            f"rank {rank}: {changed:.2%} of the rows that were looked up changed, and {stray} others"
            for rank, (changed, stray, _) in enumerate(of_ranks) if changed < 0.99 or stray
        ]
        if not all(map(torch.isfinite, torch.tensor(losses))):
            faults.append("a loss is not finite")
        row |= {
            "table_bytes": 4 * width * rows * cell.gpus, "memory": memory, "peak": [peak for *_, peak in of_ranks],
            "drawn_s": seconds, "match": f"FAILED: {faults[0]}" if faults else "ok",
        }
        return [row]

    def _drawn_batches(self, cell: Cell, tables: int) -> Iterator[Step]:
        generator = torch.Generator().manual_seed(self.ranks.rank)
        for _ in range(BATCHES):
            labels = torch.randint(2, (cell.rows,), generator=generator).float()
            dense = torch.randn(cell.rows, self.shape.bottom[0], generator=generator)
            ids = torch.randint(1 << 32, (cell.rows, tables), generator=generator)
            yield Step([cell.rows] * cell.gpus, tuple(one.to(self.device) for one in (labels, dense, ids)))

    def _rows_of_others(self, arch: ShardedSparseArch, batches: Sequence[Step]) -> Tensor:
        """The rows of this rank's table that the other ranks' batches look up."""
        of_ranks = self.ranks.of_all(torch.cat([arch.rows(batch[2]) for _, batch in batches]).cpu())
        table = arch.tables.pieces[0].table
        others = [rows[:, table] for rank, rows in enumerate(of_ranks) if rank != self.ranks.rank]
        return torch.cat([torch.empty(0, dtype=torch.int64), *others]).to(self.device)


class Turns:
    """A step on one of the batches after another. close: what ends it."""

    def __init__(self, step: Callable[..., Tensor], batches: Sequence[Step], close: Callable[[], None] = lambda: None):
        self.step, self.turns, self.close = step, itertools.cycle(batches), close

    def __call__(self) -> Tensor:
        return self.step(*next(self.turns))


@contextmanager
def _plainly() -> Iterator[None]:
    yield
