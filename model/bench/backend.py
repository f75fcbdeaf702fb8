"""torch.compile(backend="fused_kernels") beside Inductor, by replay and by call: is it anywhere slower?

    python -m model.bench.backend [--presets small,main,mlperf] [--rows 1,128,2048,16384,65536] [--save]

On a GPU. A cell is a preset, a number of rows, a precision, and inference or a training step: forward and backward of
the MLPs, whose look-ups are in frozen tables, so that it can be captured. The tables have Criteo's cardinalities, each
at most `--most-rows`; ids are uniform. In bfloat16 the model is cast. Of Inductor there are its defaults, combo_kernels
and, with --autotune, max-autotune without graphs; the fastest is the peer, by replay and by call apart: the same model,
set best. (One that is written otherwise, with tables apart and padded rows, may be faster: compiled_ways.py.) Outputs
and gradients are compared with float64's before: each may be off by CLOSE, or by twice what eager's is. Printed is the
time of each, the ratio to the peer, and what is replaced, with its form. Where no gradient is wanted, calls of up to
MOST_IN_GRAPHS rows are measured by PyTorch's own graphs too, mode="reduce-overhead". It takes some 20 minutes, and half
as long once Inductor's cache has what it compiles.
"""

if __name__ == "__main__":
    from data.cli import run

    run("model.bench.backend")

import argparse
import copy
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

import kernels
from kernels import runtime
from kernels.measure import records
from kernels.measure.clock import percentiles
from kernels.measure.partial_record import PartialRecord
from kernels.ops.embedding_bags.bench import KAGGLE
from model import DLRM, preset
from model.bench import recorded
from model.config import Precision
from model.device import settings
from model.profiling.recording import today

NAME = "backend"  # of its file in traces/results/<gpu>/
PRESETS, ROWS = ("small", "main", "mlperf"), (1, 128, 2048, 16384, 65536)
WAYS = ("replay", "call")
MOST_IN_GRAPHS = 2048
OURS = "fused_kernels"
ROUNDS, CALLS = 15, 20
SLOWER = 1.03  # beyond which a ratio counts
# How far from float64 a result may be; or twice as far as eager's, whose errors are more where numbers nearly cancel.
CLOSE = {Precision.FP32: 1e-4, Precision.TF32: 5e-3, Precision.BF16: 5e-2}


def implementations(autotune: bool) -> dict[str, dict]:
    """What torch.compile is called with."""
    peers = {"inductor": {}, "combo_kernels": {"options": {"combo_kernels": True}}}
    if autotune:
        peers["max-autotune"] = {"mode": "max-autotune-no-cudagraphs"}
    return {**peers, OURS: {"backend": "fused_kernels"}}


def made(name: str, precision: Precision, device: torch.device, most_rows: int) -> DLRM:
    """A preset's model with frozen tables, as `DLRM.from_checkpoint` gives it."""
    torch.manual_seed(0)
    cardinalities = tuple(min(number, most_rows) for number in KAGGLE)
    model = DLRM(replace(preset(name).model, cardinalities=cardinalities, hash="modulus")).eval().to(device)
    model.sparse_arch.tables.weight.requires_grad_(False)
    return model.to(torch.bfloat16) if precision is Precision.BF16 else model


def work(model: Callable, own: DLRM, inputs: Sequence[Tensor], trains: bool) -> Callable[[], list[Tensor]]:
    """A call of the model, or a training step of its MLPs: the output, and the gradients."""
    parameters = [parameter for parameter in own.parameters() if parameter.requires_grad]

    def infer() -> list[Tensor]:
        with torch.no_grad():
            return [model(*inputs)]

    def step() -> list[Tensor]:
        out = model(*inputs)
        loss = out.to(torch.promote_types(out.dtype, torch.float32)).square().mean()
        return [out.detach(), *torch.autograd.grad(loss, parameters)]

    return step if trains else infer


def captured(function: Callable) -> Callable[[], None]:
    """The replay of a CUDA graph of so many calls."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            function()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(CALLS):
            function()
    return graph.replay


def microseconds(function: Callable[[], object], calls: int) -> float:
    """What one call of so many takes, from the first to the end of the GPU's work."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        function()
    torch.cuda.synchronize()
    return 1e6 * (time.perf_counter() - start) / calls


def cell(
    name: str, rows: int, precision: Precision, trains: bool, options: argparse.Namespace, device: torch.device
) -> dict:
    torch._dynamo.reset()
    with settings(0, precision):
        model = made(name, precision, device, options.most_rows)
        dense = torch.randn(rows, 13, device=device, dtype=next(model.over_arch.parameters()).dtype)
        inputs = dense, torch.randint(1 << 31, (rows, len(KAGGLE)), device=device)
        row = {"preset": name, "rows": rows, "precision": str(precision), "trains": trains}
        with torch.set_grad_enabled(trains):
            explained = kernels.explain(model, *inputs)
        row["replaced"] = [f"{match.op}.{match.form}" for match in explained.replaced]
        want = exactly(model, inputs, trains)
        most = [max(CLOSE[precision], 2 * off) for off in errors(work(model, model, inputs, trains)(), want)]
        calls, replays, failures = {}, {}, []
        for implementation, arguments in implementations(options.autotune).items():
            function = work(torch.compile(model, **arguments), model, inputs, trains)
            if failure := too_far(function(), want, most):
                failures.append(f"{implementation} {failure}")
                continue
            calls[implementation], replays[implementation] = function, captured(function)
        row["match"] = f"FAILED: {', '.join(failures)}" if failures else "ok"
        for what, functions, number in (("replay", replays, 1), ("call", calls, CALLS)):
            row[what] = by_turns(functions, number, CALLS if what == "replay" else 1)
        if not trains and rows <= MOST_IN_GRAPHS:
            row["graphs"] = by_graphs(model, inputs, want, most)
    return row


def exactly(model: DLRM, inputs: Sequence[Tensor], trains: bool) -> list[Tensor]:
    """What `work` gives, computed by eager in float64 from the same weights."""
    dense, *others = inputs
    doubled = copy.deepcopy(model).double()
    return work(doubled, doubled, (dense.double(), *others), trains)()


def errors(results: Sequence[Tensor], wanted: Sequence[Tensor]) -> list[float]:
    """How far each result is from what is wanted, relative to that, by the norm."""
    pairs = [(result.double(), want.double()) for result, want in zip(results, wanted, strict=True)]
    least = torch.finfo(torch.float32).tiny  # a gradient of zeros is to be one
    return torch.stack([(result - want).norm() / want.norm().clamp(min=least) for result, want in pairs]).tolist()


def too_far(results: Sequence[Tensor], wanted: Sequence[Tensor], most: Sequence[float]) -> str:
    """Which of the results is farther from what is wanted than it may be; "" if none is."""
    for i, (error, limit) in enumerate(zip(errors(results, wanted), most, strict=True)):
        if not error <= limit:
            return f"is {error:.1e} from float64 in result {i}, and may be {limit:.1e}"
    return ""


def by_turns(functions: dict[str, Callable], calls: int, of_one: int = 1) -> dict[str, list[float]]:
    """The 20th, 50th and 80th percentile of the µs that one call takes, by function. of_one: calls in one of these."""
    times = {name: [] for name in functions}
    for _, (name, function) in itertools.product(range(ROUNDS), functions.items()):
        times[name].append(microseconds(function, calls) / of_one)
    return {name: [round(value, 2) for value in percentiles(values)] for name, values in times.items()}


def by_graphs(
    model: DLRM, inputs: Sequence[Tensor], want: Sequence[Tensor], most: Sequence[float]
) -> dict[str, list[float]]:
    """A call's µs with mode="reduce-overhead", by Inductor and by our backend."""
    compiled = {name: torch.compile(model, mode="reduce-overhead", backend=name) for name in ("inductor", OURS)}
    calls = {name: work(function, model, inputs, trains=False) for name, function in compiled.items()}
    for name, call in calls.items():
        for _ in range(3):  # the second one is captured
            results = call()
        if failure := too_far(results, want, most):
            raise RuntimeError(f"{name} in PyTorch's graphs {failure}")
    return by_turns(calls, CALLS)


def medians(times: dict[str, Sequence[float]]) -> tuple[float, float]:
    """(the fastest peer's, ours) of the 20th, 50th and 80th percentile of each; NaN for one that is not there."""
    peers = {name: median for name, (_, median, _) in times.items()}
    ours = peers.pop(OURS, float("nan"))
    return min(peers.values(), default=float("nan")), ours


def ratio(times: dict[str, Sequence[float]]) -> float:
    """Ours by the fastest peer's."""
    peer, ours = medians(times)
    return ours / peer


def lines(row: dict) -> Iterator[str]:
    where = f"{row['preset']:7}{row['rows']:6} {row['precision']:5}{'step' if row['trains'] else 'inference':10}"
    for what in WAYS:
        slower = ratio(row[what])
        marked = "" if slower <= SLOWER else "  SLOWER"  # a NaN too: one of them failed
        times = "  ".join(f"{name} {median:9.1f}" for name, (_, median, _) in row[what].items())
        yield f"{where}{what:7} µs  {times}  ratio {slower:.2f}{marked}"
    if graphs := row.get("graphs"):
        peer, ours = medians(graphs)
        yield f"{where}by mode=reduce-overhead µs  inductor {peer:9.1f}  fused_kernels {ours:9.1f}"
    failed = f"  {row['match']}" * (row["match"] != "ok")
    yield f"{'':29}replaced: {', '.join(row['replaced']) or 'nothing'}{failed}"


def slower(rows: Iterable[dict], what: str) -> list[dict]:
    """The rows of which ours takes longer than SLOWER times the fastest peer, by "replay" or by "call", or failed."""
    return [row for row in rows if row["match"] != "ok" or not ratio(row[what]) <= SLOWER]


def is_ours(row: dict) -> bool:
    """Whether ours is among what failed in a row, which is of all implementations: it then has no time."""
    return OURS not in row["replay"]


def verdicts(rows: Sequence[dict]) -> list[str]:
    return [f"by {what} {len(slower(rows, what))} of {len(rows)}" for what in WAYS]


def record(rows: list[dict]) -> dict:
    """What is saved."""
    versions = runtime.versions()
    head = {name: versions[name] for name in ("GPU", "driver", "torch", "triton", "CUDA", "Python")}
    return {"op": NAME, **head, "date": today(), "rows": rows}


def table(results: Path = records.RESULTS) -> str:
    """kernels/README.md's table, of the READMEs' GPU."""
    entry = records.load(NAME, results=results)
    lines = ["| µs by replay | " + " | ".join(f"{rows:,} row{'s' * (rows > 1)}" for rows in ROWS) + " |"]
    lines += ["|---" * (1 + len(ROWS)) + "|"]
    cells = {(row["preset"], row["precision"], row["trains"], row["rows"]): row for row in entry["rows"]}
    for name, trains, precision in itertools.product(PRESETS, (False, True), Precision):
        times = (medians(cells[name, precision, trains, rows]["replay"]) for rows in ROWS)
        shown = " | ".join(f"{peer:,.1f} → {ours:,.1f}" for peer, ours in times)
        lines.append(f"| `{name}`, {precision}, {'a step' if trains else 'inference'} | {shown} |")
    parts, whole = (
        [" → ".join(f"{us:,.0f}" for us in medians(cells[name, Precision.TF32, False, 128][what]))
         for what in ("call", "graphs")]
        for name in ("mlperf", "main")
    )  # fmt: skip
    lines += ["", f"""\
A step is the model's forward and the gradients of its MLPs. A call for few rows is the host's time, and
`mode="reduce-overhead"` is for them: 128 rows of `mlperf` in tf32 take {parts[0]} µs, by this mode {parts[1]}. A whole
model in one launch gains nothing by it: `main` takes {whole[0]} and {whole[1]}."""]
    counts = " and ".join(verdicts(entry["rows"]))
    lines += ["", f"Recorded on {entry['GPU']}, torch {entry['torch']}, {entry['date']}. Slower by more than "
                  f"{100 * (SLOWER - 1):.0f} %: {counts} cells."]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m model.bench.backend", description=__doc__.splitlines()[0])
    parser.add_argument("--presets", default=",".join(PRESETS))
    parser.add_argument("--rows", default=",".join(map(str, ROWS)))
    parser.add_argument("--precisions", default=",".join(Precision))
    parser.add_argument("--most-rows", type=int, default=1_000_000, help="of a table (default: %(default)s)")
    parser.add_argument("--autotune", action="store_true", help="max-autotune too, which takes minutes a cell")
    parser.add_argument("--save", action="store_true", help=f"record in traces/results/<gpu>/{NAME}.json")
    parser.add_argument("--resume", action="store_true", help="with --save: take the cells of a run that was stopped")
    options = parser.parse_args(arguments)
    precisions = [*map(Precision, options.precisions.split(","))]
    axes = options.presets.split(","), [*map(int, options.rows.split(","))], precisions
    if options.save and axes != ([*PRESETS], [*ROWS], [*Precision]):
        parser.error("--save: a part of the cells is not saved over the record of all")
    if options.resume and not options.save:
        parser.error("--resume: a run without --save leaves nothing, and takes nothing")
    if not torch.cuda.is_available():
        print("model.bench.backend: no CUDA device")
        return 2
    rows, left = [], None
    if options.save:
        asked = {"autotune": options.autotune, "most_rows": options.most_rows}
        left = PartialRecord(NAME, recorded.CODE, resume=options.resume, **asked)
    for name, number, precision, trains in itertools.product(*axes, (False, True)):
        measure = partial(cell, name, number, precision, trains, options, torch.device("cuda"))
        rows.append(left.part(f"{name} {number} {precision} {trains}", measure) if left else measure())
        print(*lines(rows[-1]), sep="\n", flush=True)
    print(f"slower by more than {100 * (SLOWER - 1):.0f} %: {', '.join(verdicts(rows))}")
    if options.save:
        print(records.save(record(rows), is_ours=is_ours))
    return int(any(slower(rows, what) for what in WAYS))
