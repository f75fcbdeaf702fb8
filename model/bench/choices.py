"""Whether the fastest of our own ways is taken: the whole model in one kernel, look-ups within the interaction's, or a
kernel a part.

    python -m model.bench.choices [--models main,mlperf,small,"40 tables"] [--rows 2048,16384,65536] [--save]
    python -m model.bench.choices --compiled [--models …] [--rows …]

On a GPU. A cell is a model, a number of rows, a precision, and predictions or a training step by SGD as one CUDA graph;
Criteo's cardinalities, each at most `--most-rows`; uniform ids. Each way that there is for the cell is forced, and
timed by turns with the others; what comes out of it must agree. Printed are their times, the way that the rules choose
(kernels/ops/dlrm/choice.py, kernels/ops/lookup_interact/choice.py), and its time over the fastest way's: where that is
more than SLOWER the rule is wrong. Before there were the other two, all was in parts: a way that is never slower than
the parts is never slower than before. The record has the times alone: whoever shows it asks the rules as they are.
Without a GPU the record is printed, with what they choose on an H200.

--compiled: predictions of the plain model by torch.compile(backend="fused_kernels"), which asks the same rule of the
whole model: in one kernel, and in what the backend makes of the parts. It is not saved.
"""

if __name__ == "__main__":
    from data.cli import run

    run("model.bench.choices")

import argparse
import gc
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from operator import itemgetter
from unittest import mock

import torch
from torch import Tensor

import kernels
from data.cli import Parser
from kernels.compiler import whole
from kernels.measure import records
from kernels.measure.clock import percentiles
from kernels.measure.judge import NEVER_SLOWER as SLOWER
from kernels.measure.partial_record import PartialRecord
from kernels.ops.dlrm import choice as of_whole
from kernels.ops.lookup_interact import choice as of_look_ups
from model import fused
from model.bench import recorded
from model.bench.backend import CLOSE
from model.bench.models import MODELS, chosen, shape_of
from model.bench.step_memory import drawn
from model.bench.trainer import Trainer, noting
from model.bench.whole_model import _captured
from model.config import DLRMConfig, Kernels, Precision, TableOptimizer
from model.device import settings
from model.dlrm import DLRM, InteractionArch

NAME = "choices"  # of its file in traces/results/<gpu>/
ROWS = (2048, 16384, 65536)
ONE, WITHIN, PARTS = "one kernel", "looked up within", "parts"
WAYS = (PARTS, WITHIN, ONE)
BACKEND = "fused_kernels"
BATCHES, STEPS = 2, 5  # of a step, the last ones are replays
ROUNDS, MOST_CALLS, ROUND_MS = 9, 20, 3.0


@contextmanager
def forced(way: str) -> Iterator[dict[str, object]]:
    """Within it fused models go this way where they can; yields the rules' own choice, and what was taken."""
    said: dict[str, object] = {"rule": PARTS}
    rules = fused.is_whole, fused.trains_whole, fused.looks_up

    def whole(rule: Callable, forces: Mapping[str, object]) -> Callable:
        def decide(model: DLRM, dense: Tensor) -> bool:
            if (is_rule := rule(model, dense)) or rule is rules[0]:  # which is asked first, at each forward
                said["rule"] = ONE if is_rule else PARTS
            if way != ONE:
                return False
            with mock.patch.multiple(fused, **forces):
                return rule(model, dense)

        return decide

    def looks_up(model: DLRM, dense: Tensor, bags: bool) -> bool:
        if rules[2](model, dense, bags) and said["rule"] == PARTS:
            said["rule"] = WITHIN
        if way != WITHIN:
            return False
        with mock.patch.object(fused, "why_in_two", _why_no_kernel):
            return rules[2](model, dense, bags)

    def noted(name: str, function: Callable) -> Callable:
        def call(*arguments):
            said["taken"] = name
            return function(*arguments)

        return call

    said["taken"] = PARTS
    decides = {
        "is_whole": whole(rules[0], {"is_faster": of_whole.fits}),
        "trains_whole": whole(rules[1], {"is_faster_kept": lambda *model: not of_whole.why_not_kept(*_without(model))}),
        "looks_up": looks_up,
    }
    names = {"whole": ONE, "train_whole": ONE, "look_up": WITHIN}
    takes = {name: noted(label, getattr(fused, name)) for name, label in names.items()}
    with mock.patch.multiple(fused, **decides, **takes):
        yield said


@contextmanager
def compiled_as(way: str) -> Iterator[dict[str, object]]:
    """Within it the backend has a whole model in one kernel, or in parts; yields what was taken."""
    said: dict[str, object] = {"taken": PARTS}

    def why_not(*_) -> str:
        said["taken"] = way
        return "" if way == ONE else "in parts, as asked"

    torch._dynamo.reset()
    with mock.patch.object(whole, "why_not", why_not):
        yield said


def _without(model: tuple) -> tuple:
    """`is_faster_kept`'s arguments but for the rows."""
    *shape, _, device = model
    return *shape, device


def _why_no_kernel(
    rows: int, features: int, columns: int, dtype: torch.dtype, precision: str, bags: bool, trains: bool, *of_kernel
) -> str:
    return "" if of_look_ups.fits(features, columns, dtype, precision, *of_kernel) else "none"


def cell(
    name: str, shape: DLRMConfig, count: int, precision: Precision, trains: bool, device: torch.device,
    times_it: bool = True, compiled: bool = False,
) -> list[dict]:
    """A row for each way that there is."""
    random = torch.Generator().manual_seed(0)
    batches = [drawn(count, shape.bottom[0], shape.cardinalities, random, device) for _ in range(BATCHES)]
    rows, calls, given = {}, {}, {}
    prepare, force = (_compiled, compiled_as) if compiled else (_trained if trains else _predicted, forced)
    for way in ways(shape, count, precision, trains, device):
        if compiled and way == WITHIN:  # which the backend's parts decide themselves
            continue
        row = {"model": name, "rows": count, "precision": str(precision), "trains": trains, "way": way, "match": "ok"}
        row |= {"compiled": True} if compiled else {}
        with noting(row), settings(0, precision), force(way) as said:
            call, given[way] = prepare(shape, batches, precision, device)
            if said["taken"] != way:
                continue
            calls[way] = call
        rows[way] = row
    for way, row in rows.items():
        if way in given and PARTS in given and row["match"] == "ok":
            error = row["apart"] = _apart(given[way], given[PARTS])
            if not error <= CLOSE[precision]:
                row["match"] = f"FAILED: {error:.2g} from the parts', limit {CLOSE[precision]:g}"
    good = {way: call for way, call in calls.items() if rows[way]["match"] == "ok"}
    with settings(0, precision):
        times = microseconds(good, device) if times_it else {}
    for way, samples in times.items():
        rows[way]["us_low"], rows[way]["us"], rows[way]["us_high"] = percentiles(samples)
    kernels.check_ids()
    return list(rows.values())


def ways(shape: DLRMConfig, count: int, precision: Precision, trains: bool, device: torch.device) -> list[str]:
    """Those that there is a kernel for; on a CPU all are tried."""
    widths, shapes, features, width, dtype, products = _described(shape, precision)
    if trains:
        is_one = not of_whole.why_not_kept(*widths, features, device)
    else:
        is_one = of_whole.fits(*shapes, features, False, dtype, products, device, count)
    there = {PARTS: True, WITHIN: of_look_ups.fits(features, width, dtype, products, device), ONE: is_one}
    return [way for way in WAYS if there[way] or device.type == "cpu"]


def chosen_way(name: str, count: int, precision: Precision, trains: bool, device: torch.device) -> str:
    """The way that the rules choose for a cell on a GPU; where the device is a CPU, on an H200."""
    widths, shapes, features, width, dtype, products = _described(shape_of(name, 1), precision)
    if trains:
        is_one = of_whole.is_faster_kept(*widths, features, count, device)
    else:
        is_one = of_whole.is_faster(*shapes, features, False, dtype, products, device, count)
    if is_one:
        return ONE
    return PARTS if of_look_ups.why_in_two(count, features, width, dtype, products, False, trains, device) else WITHIN


def _described(shape: DLRMConfig, precision: Precision) -> tuple:
    """The MLPs' widths, as "13-512-16", and their weights' shapes; features, their width, the dtype, and what float32
    products are computed in."""
    features, width = len(shape.cardinalities), shape.embedding_dim
    mlps = shape.bottom, (InteractionArch(shape.interaction, features, width).out_features, *shape.top)
    widths = tuple("-".join(map(str, of_mlp)) for of_mlp in mlps)
    shapes = [tuple(torch.Size((b, a)) for a, b in itertools.pairwise(of_mlp)) for of_mlp in mlps]
    dtype = torch.bfloat16 if precision is Precision.BF16 else torch.float32
    return widths, shapes, features, width, dtype, "tf32" if precision is Precision.TF32 else "ieee"


def _apart(ours: Tensor, theirs: Tensor) -> float:
    return ((ours - theirs).abs() / theirs.abs().clamp(min=1.0)).max().item()


def _trained(
    shape: DLRMConfig, batches: Sequence[Sequence[Tensor]], precision: Precision, device: torch.device
) -> tuple[Callable[[], object], Tensor]:
    """(a step on the next batch, the losses of the first ones)"""
    name = "fused graph" if device.type == "cuda" else "fused"
    trainer = Trainer(name, TableOptimizer.SGD, shape, len(batches[0][0]), device, precision)
    turns = itertools.cycle(batches)
    losses = torch.stack([trainer.step(*next(turns)).clone() for _ in range(STEPS)])
    return (lambda: trainer.step(*next(turns))), losses.double()


@torch.no_grad()
def _predicted(
    shape: DLRMConfig, batches: Sequence[Sequence[Tensor]], precision: Precision, device: torch.device
) -> tuple[Callable[[], object], Tensor]:
    """(a prediction of each batch as one graph, the logits)"""
    model = _made(shape, precision, device)
    for arch in (model.dense_arch, model.over_arch):
        kernels.pack_mlp(arch)  # once: a captured call would lay the weights out at every replay
    return _in_a_graph(model, batches, precision, device)


@torch.no_grad()
def _compiled(
    shape: DLRMConfig, batches: Sequence[Sequence[Tensor]], precision: Precision, device: torch.device
) -> tuple[Callable[[], object], Tensor]:
    """The same of the plain model, compiled."""
    model = _made(replace(shape, kernels=Kernels.EAGER), precision, device).requires_grad_(False)
    for arch in (model.dense_arch, model.over_arch):
        kernels.pack_mlp(arch)
    return _in_a_graph(torch.compile(model, backend=BACKEND, dynamic=False), batches, precision, device)


def _made(shape: DLRMConfig, precision: Precision, device: torch.device) -> DLRM:
    torch.manual_seed(0)
    with torch.device(device):
        model = DLRM(shape).to(device).eval()
    return model.to(torch.bfloat16) if precision is Precision.BF16 else model


def _in_a_graph(
    model: Callable[..., Tensor], batches: Sequence[Sequence[Tensor]], precision: Precision, device: torch.device
) -> tuple[Callable[[], object], Tensor]:
    dtype = torch.bfloat16 if precision is Precision.BF16 else torch.float32

    def work() -> Tensor:
        return torch.cat([model(dense.to(dtype), sparse) for _, dense, sparse in batches])

    replay, out = _captured(work, device)
    replay()
    return replay, out.double()


def microseconds(calls: Mapping[str, Callable[[], object]], device: torch.device) -> dict[str, list[float]]:
    """µs a call in each round, by turns; of so many calls in a row that the GPU does not wait for the host."""
    if device.type != "cuda":
        return {name: [math.nan] for name in calls}

    def timed(call: Callable[[], object], count: int) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(2_000_000)  # 1 ms, in which the host gets ahead
        start.record()
        for _ in range(count):
            call()
        end.record()
        end.synchronize()
        return 1e3 * start.elapsed_time(end) / count

    counts = {name: max(2, min(MOST_CALLS, int(1e3 * ROUND_MS / timed(call, 2)))) for name, call in calls.items()}
    samples = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            samples[name].append(timed(call, counts[name]))
    return samples


def cells(names: Sequence[str], rows: Sequence[int]) -> Iterator[tuple[str, int, Precision, bool]]:
    """model, rows, precision, whether it trains: in tf32."""
    for name, count in itertools.product(names, rows):
        yield name, count, Precision.TF32, True
        for precision in (Precision.TF32, Precision.BF16):
            yield name, count, precision, False


def chosen_of(rows: Sequence[Mapping], device: torch.device) -> str:
    first = rows[0]
    way = chosen_way(first["model"], first["rows"], Precision(first["precision"]), first["trains"], device)
    return PARTS if way == WITHIN and first.get("compiled") else way


def over_the_fastest(rows: Sequence[Mapping], device: torch.device) -> float:
    """Of a cell: the time of the way that is chosen over the fastest one's; Inf where one has no time."""
    times = {row["way"]: row.get("us", math.inf) for row in rows}
    ours = times.get(chosen_of(rows, device), math.inf)
    return ours / min(times.values()) if math.isfinite(ours) else math.inf


def line(rows: Sequence[Mapping], device: torch.device) -> str:
    """A cell's rows as a line of the printed table."""
    first, chosen = rows[0], chosen_of(rows, device)
    what = "step" if first["trains"] else f"{BATCHES} predictions"
    text = f"{first['model']:9} {first['rows']:6} {first['precision']} {what:13}"
    for row in rows:
        time = f"{row['us']:8.1f} µs" if "us" in row else row["match"]
        text += f"  {'*' if row['way'] == chosen else ' '}{row['way']} {time}"
    over = over_the_fastest(rows, device)
    is_slower = over > SLOWER and any("us" in row for row in rows)
    return text + is_slower * f"  SLOWER: {over:.3f}"


def verdict(cells_: Sequence[Sequence[Mapping]], device: torch.device) -> str:
    if not any("us" in row for rows in cells_ for row in rows):
        return "Nothing was timed."
    over = [over_the_fastest(rows, device) for rows in cells_]
    worst = max(over, default=math.inf)
    met = "met" if worst <= SLOWER else "MISSED"
    beyond = sum(factor > SLOWER for factor in over)
    figure = f"the chosen way at worst {worst:.3f} times the fastest; limit {SLOWER}"
    return f"{met}: {figure}; {beyond} of {len(over)} cells beyond it"


def recorded_cells() -> list[list[dict]]:
    """Those of the H200's record."""
    rows = records.load(NAME)["rows"]
    return [[*group] for _, group in itertools.groupby(rows, key=itemgetter("model", "rows", "precision", "trains"))]


def main(arguments: list[str] | None = None) -> int:
    """The command; 1 if a way failed."""
    parser = Parser(prog=f"python -m model.bench.{NAME}", description=__doc__,
                    formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=_models, default=MODELS, metavar="MODEL,…", help=", ".join(MODELS))
    parser.add_argument("--rows", type=_rows, default=ROWS, metavar="ROWS,…", help="default: 2048,16384,65536")
    parser.add_argument("--most-rows", type=int, default=200_000, help="of a table (default: %(default)s)")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"), help="cpu only tries it out")
    parser.add_argument("--compiled", action="store_true", help="predictions by the backend of torch.compile")
    parser.add_argument("--untimed", action="store_true", help="compile what is measured, and compare what comes out")
    parser.add_argument("--save", action="store_true", help=f"record in traces/results/<gpu>/{NAME}.json")
    parser.add_argument("--resume", action="store_true", help="with --save: take the cells of a run that was stopped")
    options = parser.parse_args(arguments)
    asked = tuple(options.models), options.rows, options.most_rows, options.device, options.untimed, options.compiled
    if options.save and asked != (MODELS, ROWS, 200_000, "cuda", False, False):
        parser.error("--save: a part of the cells, or another size, is not saved over the record of all")
    if options.resume and not options.save:
        parser.error("--resume: a run without --save leaves nothing, and takes nothing")
    if options.device == "cuda" and not torch.cuda.is_available():
        print(f"model.bench.{NAME}: no CUDA device; recorded on an H200:")
        device, measured = torch.device("cpu"), recorded_cells()
        print(*(line(rows, device) for rows in measured), verdict(measured, device), sep="\n")
        return 2
    device, measured = torch.device(options.device), []
    left = PartialRecord(NAME, recorded.CODE, resume=options.resume) if options.save else None
    for name, count, precision, trains in cells(options.models, options.rows):
        if options.compiled and trains:
            continue
        shape = shape_of(name, options.most_rows)
        measure = partial(cell, name, shape, count, precision, trains, device, not options.untimed, options.compiled)
        rows = left.part(f"{name} {count} {precision} {trains}", measure) if left else measure()
        measured.append(rows)
        print(line(rows, device), flush=True)
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
    rows = [row for of_cell in measured for row in of_cell]
    if options.save:
        print(recorded.save(NAME, rows))
    print(verdict(measured, device))
    return int(any(row["match"] != "ok" for row in rows))


def _models(text: str) -> Sequence[str]:
    try:
        return chosen(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(error) from None


def _rows(text: str) -> tuple[int, ...]:
    counts = text.split(",")
    if not all(count.isdecimal() and int(count) for count in counts):
        raise argparse.ArgumentTypeError(f"numbers of rows, each at least 1, with commas between them; got {text}")
    return tuple(map(int, counts))
