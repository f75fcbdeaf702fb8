"""What each paper cut costs, one change at a time and by turns: `python -m model.paper_cuts --save`, on a GPU.

By parts, each of which is one process's rounds; a round runs every variant for a block of steps, and waits behind it:

    hash      a step of the story's 04, its hash changed: index_naive, index, sorted, modulus
    waits     a step of the story's 04 and of 06, whose kernels are long: the batch on the device; its loss read in
              every step; the batch copied from ordinary memory, the same with non_blocking, from pinned memory with
              non_blocking, and pinned in the step
    tables    a step of the story's 08 and of 11: tables of 13,428 and of 33.8 million ids; dense or sparse gradients,
              26 tensors or one, SGD and Adagrad; also the launches, and the µs of the kernels
    sizes     the hash alone, of 2048 ids in one table of n known ones

A variant whose loss differs from that of its part's first by more than 1e-4 is FAILED, where they compute the same.
Saved in traces/results/<gpu>/paper_cuts.json; ms: a number a round.
"""

import argparse
import gc
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from data.cli import Parser, UserError, user_errors
from data.synthetic import FULL
from kernels import runtime
from kernels.measure import records
from model.config import Optimizer
from model.device import pinned
from model.dlrm import DLRM
from model.hashing import Hash, make_hash
from model.profiling.recording import WARM_UP, step_times, today
from model.profiling.story import STORY, StoryStep, drawn_batches, make_optimizer, shape_of, training_step
from model.step import on_the_device

PROG = "python -m model.paper_cuts"
NAME = "paper_cuts"
PARTS = ("hash", "waits", "tables", "sizes")
BY_NUMBER = {step.number: step for step in STORY}
HOST_BOUND, GPU_BOUND, SMALL_TABLES, FULL_TABLES = "04", "06", "08", "11"  # of the story
TOLERANCE = 1e-4  # of a loss
LEAST, MOST, MOST_COMPARED = 4, 23, 17  # log2 of n, of the sizes; up to where ids are compared one by one
ON_DEVICE, ITEM = "on the device", "the loss read"
PAGEABLE, PAGEABLE_NON_BLOCKING = "ordinary memory", "ordinary memory, non_blocking"
PINNED, PINNED_IN_STEP = "pinned memory, non_blocking", "pinned in the step"
# (a name of its own, sparse gradients, one tensor)
LAYOUTS = (
    ("dense, 26 tensors", False, False), ("dense, one tensor", False, True),
    ("sparse, 26 tensors", True, False), ("sparse, one tensor", True, True),
)  # fmt: skip


def hashes(chosen: StoryStep, device: torch.device) -> Iterator[tuple[str, Callable, bool]]:
    """(variant, step, whether its loss must be the first one's): ids get other rows from sorted and modulus."""
    for kind in (Hash.INDEX_NAIVE, Hash.INDEX, Hash.SORTED, Hash.MODULUS):
        step, _ = training_step(replace(chosen, hash=kind), device)
        yield str(kind), step, kind in (Hash.INDEX_NAIVE, Hash.INDEX)


def waits(chosen: StoryStep, device: torch.device) -> Iterator[tuple[str, Callable, bool]]:
    """Steps of one model, by how the batch comes and whether the loss is read."""
    cuda = device.type == "cuda"
    torch.manual_seed(0)
    with torch.device(device):
        model = DLRM(shape_of(chosen)).to(device)
    work = partial(on_the_device, model, make_optimizer(model, chosen))
    there = drawn_batches(chosen, device)
    host = [[tensor.cpu() for tensor in batch] for batch in there]
    in_pinned = [[tensor.pin_memory() if cuda else tensor for tensor in batch] for batch in host]

    def step(batches: Sequence[Sequence[Tensor]], prepare: Callable[[Tensor], Tensor], read: bool = False):
        turns = itertools.cycle(batches)

        def run() -> Tensor:
            loss = work(*map(prepare, next(turns)))
            if read:
                loss.item()
            return loss

        return run

    def copied(tensor: Tensor, non_blocking: bool = True) -> Tensor:
        return tensor.to(device, non_blocking=non_blocking)

    yield ON_DEVICE, step(there, lambda tensor: tensor), False
    yield ITEM, step(there, lambda tensor: tensor, read=True), False
    yield PAGEABLE, step(host, partial(copied, non_blocking=False)), False
    yield PAGEABLE_NON_BLOCKING, step(host, copied), False
    yield PINNED, step(in_pinned, copied), False
    yield PINNED_IN_STEP, step(host, lambda tensor: copied(pinned(tensor) if cuda else tensor)), False


def tables(chosen: StoryStep, device: torch.device) -> Iterator[tuple[str, Callable, bool]]:
    """Steps whose tables are one tensor or 26, with dense gradients or sparse ones; the weights are the same."""
    batches, weights = drawn_batches(chosen, device), None
    for name, sparse, one in LAYOUTS:
        torch.manual_seed(0)
        with torch.device(device):
            model = DLRM(replace(shape_of(chosen), sparse_gradients=one)).to(device)
        if weights is None:
            weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        model.load_state_dict(weights)  # a GPU draws others where the tables are one tensor
        found = model.sparse_arch.tables
        if one and not sparse:
            found.forward = partial(_dense_look_up, found)
        elif sparse and not one:
            for table in found:
                table.sparse = True
        work = partial(on_the_device, model, make_optimizer(model, replace(chosen, sparse_gradients=sparse)))
        turns = itertools.cycle(batches)
        yield name, lambda work=work, turns=turns: work(*next(turns)), True


def _dense_look_up(found: torch.nn.Module, rows: Tensor) -> Tensor:
    return F.embedding(rows + found.starts, found.weight)


def measure(
    variants: Iterator[tuple[str, Callable, bool]], device: torch.device, rounds: int, block: int, count: bool = False
) -> list[dict]:
    """A row a variant: variant, ms of each round, match; count: also its launches and the µs of its kernels."""
    rows, steps, expected = [], {}, None
    for name, step, same in variants:
        losses = torch.stack([step().detach() for _ in range(WARM_UP)])
        expected = losses if expected is None else expected
        error = (losses - expected).abs().max().item() if same else 0.0
        match = "not compared" if not same else "ok" if error <= TOLERANCE else f"FAILED: a loss differs by {error:.2g}"
        row = {"variant": name, "match": match}
        if count and device.type == "cuda":
            row |= kernels_of(step)
        rows.append(row)
        steps[name] = step
    ms = step_times(steps, block, rounds)
    return [row if row["match"].startswith("FAILED") else row | {"ms": _rounded(ms[row["variant"]])} for row in rows]


def kernels_of(step: Callable, steps: int = 3) -> dict:
    """launches: kernels, copies and memsets a step; kernel_us: what they take together."""
    activities = [torch.profiler.ProfilerActivity.CUDA]
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=activities) as profiler:
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
    found = [
        event for event in profiler.key_averages()
        if event.device_type == torch.autograd.DeviceType.CUDA and event.self_device_time_total
    ]  # fmt: skip
    return {
        "launches": sum(event.count for event in found) / steps,
        "kernel_us": sum(event.self_device_time_total for event in found) / steps,
    }


def sizes(batch: int, device: torch.device, rounds: int, most: int = MOST) -> list[dict]:
    """A row a hash and n: µs a call, the host included."""
    rows = []
    for log2 in range(LEAST, most + 1):
        n = 1 << log2
        known = torch.randperm(2 * n)[:n]
        ids = known[torch.randint(n, (batch,))].to(device)
        kinds = (Hash.SORTED, Hash.MODULUS)
        if log2 <= MOST_COMPARED:
            kinds = (Hash.INDEX_NAIVE, Hash.INDEX, *kinds)
        modules = {kind: make_hash(kind, n, known).to(device) for kind in kinds}
        ms = step_times({kind: partial(module, ids) for kind, module in modules.items()}, 5, rounds)
        rows += [{"variant": str(kind), "n": n, "match": "not compared", "ms": _rounded(ms[kind])} for kind in kinds]
    return rows


def _rounded(ms) -> list[float]:
    return [float(f"{value:.5g}") for value in ms]


def run(
    device: torch.device, parts: Sequence[str] = PARTS, batch: int = 2048, largest: int = FULL, rounds: int = 10,
    block: int = 5, most: int = MOST,
) -> list[dict]:  # fmt: skip
    """Measure, and print each row as it comes."""
    found = []

    def done(part: str, step: str, rows: list[dict], **labels) -> None:
        for row in rows:
            found.append({"part": part, "step": step, **labels} | row)
            print(line(found[-1]), flush=True)
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()

    def chosen(number: str, **changes) -> StoryStep:
        step = replace(BY_NUMBER[number], batch_size=batch, **changes)
        return replace(step, largest_table=min(step.largest_table, largest))

    if "hash" in parts:
        done("hash", HOST_BOUND, measure(hashes(chosen(HOST_BOUND), device), device, rounds, block))
    if "waits" in parts:
        for number in (HOST_BOUND, GPU_BOUND):
            done("waits", number, measure(waits(chosen(number), device), device, rounds, block))
    if "tables" in parts:
        for number, rule in itertools.product((SMALL_TABLES, FULL_TABLES), (Optimizer.SGD, Optimizer.ADAGRAD)):
            step = chosen(number, optimizer=rule, weight_decay=0.0)
            done("tables", number, measure(tables(step, device), device, rounds, block, count=True), rule=str(rule))
    if "sizes" in parts:
        done("sizes", "", sizes(batch, device, rounds, most))
    return found


def line(row: Mapping) -> str:
    """The row as a line of text."""
    labels = " ".join(str(row[name]) for name in ("part", "step", "rule", "variant", "n") if row.get(name))
    times = sorted(row.get("ms", []))
    shown = f"{times[len(times) // 2]:9.4f} ms ({times[0]:.4f} to {times[-1]:.4f})" if times else ""
    counted = f", {row['launches']:.0f} launches, {row['kernel_us']:,.0f} µs" if "launches" in row else ""
    return f"{labels:42} {shown}{counted}  {row['match']}"


def main(arguments: list[str] | None = None) -> int:
    """The command; 1 if a row failed."""
    parser = Parser(prog=PROG, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--save", action="store_true", help="record in traces/results/<gpu>/")
    parser.add_argument("--only", default=",".join(PARTS), metavar="PART,…", help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--device", help="default: the GPU; cpu only tries it out")
    parser.add_argument("--batch-size", type=int, default=2048, metavar="N", help="rows a step (default: 2048)")
    parser.add_argument("--largest-table", type=int, default=FULL, metavar="IDS", help="smaller tables, to try it out")
    args = parser.parse_args(arguments)
    with user_errors(PROG):
        parts, asked = args.only.split(","), (args.device, args.batch_size, args.largest_table)
        if unknown := sorted(set(parts) - set(PARTS)):
            raise UserError(f"--only {','.join(unknown)}: expected some of {','.join(PARTS)}")
        if args.save and (set(parts) != set(PARTS) or asked != (None, 2048, FULL)):
            raise UserError("--save: a part, or another size, is not saved over the record of all")
        if args.device is None and runtime.device().type != "cuda":
            raise UserError("this is recorded on an NVIDIA GPU, and there is none here (--device cpu tries it out)")
        device = torch.device(args.device or runtime.device())
        if device.type == "cpu":
            torch.set_num_threads(1)  # tiny steps: sharing their operations costs more than it saves
        rows = run(device, parts, args.batch_size, args.largest_table)
        if args.save:
            print(records.save({"op": NAME, **runtime.versions(), "date": today(), "rows": rows}))
        return int(any(row["match"].startswith("FAILED") for row in rows))
