"""The parts of model.bench in which everything is fused: MLPs, interaction, look-up, update.

    outer      main with outer, tables of up to 1000 ids: ms of a step of 2048 rows, SGD, tf32; the most memory
    dot        main with dot, Kaggle's cardinalities: ms of a step of 2048 rows in tf32 and of 16384 in fp32, SGD
    inference  the same model's probabilities of 128 and 2048 rows: µs of a CUDA graph's replay, in tf32 and fp32

The limit beside them is the time that a copy of the necessary bytes takes: ids, dense features and looked-up rows read
once, each weight read once, the results written; in training each weight and looked-up row is read once more, and
written.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from timeit import Timer

import torch
from torch import Tensor

import kernels
from data.criteo import CriteoBatches
from data.synthetic import SyntheticConfig
from kernels.measure.clock import Gpu, percentiles
from kernels.measure.judge import is_variant
from kernels.measure.records import README_GPU, RESULTS, load, read, recorded_files, slug
from model.bench.compiled_ways import COMPILED
from model.bench.steps import TOLERANCES, bench_steps
from model.bench.trainer import IMPLEMENTATIONS, no_reference, noting
from model.config import DLRMConfig, Interaction, Precision, TableOptimizer, preset
from model.device import settings
from model.dlrm import DLRM, InteractionArch

PARTS = ("outer", "dot", "inference")
STEPS = ("eager sparse", *COMPILED, "fused", "fused graph")  # the implementations of a step
INFERENCE = ("eager", *COMPILED, "fused")
INFERENCE_ROWS = (128, 2048)
OUTER_ROWS, OUTER_IDS = 2048, 1000
DOT = ((2048, Precision.TF32), (16384, Precision.FP32))  # rows of a step, and what it computes in
REPLAYS, ROUNDS = 20, 15
# What ours must not exceed: (part, rows, precision) → {column: limit}.
LIMITS = {
    ("outer", 2048, "tf32"): {"ms": 5.0, "peak_mb": 1300.0},
    ("dot", 2048, "tf32"): {"ms": 0.41},
    ("dot", 16384, "fp32"): {"ms": 1.58},
    ("inference", 128, "tf32"): {"us": 40.0},
    ("inference", 2048, "tf32"): {"us": 65.0},
}
OURS = {"outer": "fused graph", "dot": "fused graph", "inference": "fused"}
RECORD = "whole_model"  # its file's name
NAME = max(map(len, COMPILED)) + 1  # how wide an implementation's name is printed


def run(
    parts: Iterable[str], config: SyntheticConfig, write_rows: Callable[[Path, int, SyntheticConfig], None],
    folder: Path, device: torch.device, names: Sequence[str],
) -> Iterator[tuple[str, Callable[[], list[dict]]]]:
    """Each cell's name, and what measures its rows.

    Args:
        config: the tables of dot. write_rows: writes rows of a configuration as Parquet. folder: for them.
        names: of the implementations that are wanted.
    """
    shape = replace(preset("main").model, cardinalities=config.cardinalities)
    steps = [name for name in STEPS if name in names and (device.type == "cuda" or "graph" not in name)]
    if "outer" in parts:
        small = SyntheticConfig(min(OUTER_IDS, max(config.cardinalities)))
        outer = replace(shape, interaction=Interaction.OUTER, cardinalities=small.cardinalities)
        write_rows(folder / "small", 2 * OUTER_ROWS, small)
        batches = _batches(folder / "small", OUTER_ROWS, 2, device)
        yield "outer", partial(_steps, "outer", outer, batches, device, steps, tf32_on(device))
    if not {"dot", "inference"} & set(parts):
        return
    count = max(INFERENCE_ROWS) if "dot" not in parts else max(rows for rows, _ in DOT)
    write_rows(folder / "large", 4 * count, config)
    if "dot" in parts:
        for rows, precision in DOT:
            batches = _batches(folder / "large", rows, 4, device)
            precision = tf32_on(device) if precision is Precision.TF32 else precision
            yield f"dot {rows} {precision}", partial(_steps, "dot", shape, batches, device, steps, precision)
    if "inference" in parts:
        for rows in INFERENCE_ROWS:
            ((_, *features),) = _batches(folder / "large", rows, 1, device)
            for precision in dict.fromkeys((tf32_on(device), Precision.FP32)):
                infer = partial(bench_inference, shape, features, device, precision, ["eager", *names])
                yield f"inference {rows} {precision}", infer


def tf32_on(device: torch.device) -> Precision:
    """TF32 where there is one."""
    return Precision.TF32 if device.type == "cuda" else Precision.FP32


def _batches(folder: Path, rows: int, count: int, device: torch.device) -> list[list[Tensor]]:
    return [[tensor.to(device) for tensor in batch] for batch in itertools.islice(CriteoBatches(folder, rows), count)]


def _steps(part: str, shape: DLRMConfig, batches: list, device: torch.device, names: list, precision: Precision):
    torch._dynamo.reset()
    with settings(torch.get_num_threads(), precision):
        rows = bench_steps(TableOptimizer.SGD, shape, batches, device, names, precision, part)
    size = necessary_bytes(shape, len(batches[0][0]), training=True)
    return [row | {"bytes": size} for row in rows]


@torch.no_grad()
def bench_inference(
    shape: DLRMConfig, features: Sequence[Tensor], device: torch.device, precision: Precision, names: Sequence[str]
) -> list[dict]:
    """A row for each of INFERENCE that is named, but for peers whose settings do not help here: its probabilities of
    these rows, by a graph's replay; on a CPU by calls."""
    torch._dynamo.reset()
    rows, calls, expected = {}, {}, None
    with settings(torch.get_num_threads(), precision):
        for name in (name for name in INFERENCE if name in names):
            changes, compiled, _ = IMPLEMENTATIONS["eager sparse" if name == "eager" else name]
            count = len(features[0])
            if compiled and not compiled.may_win(shape, count, precision, training=False):
                continue
            row = rows[name] = {
                "part": "inference", "rows": count, "precision": str(precision), "implementation": name
            }
            if expected is None and name != "eager":
                row["match"] = no_reference(rows["eager"])
                continue
            with noting(row):
                torch.manual_seed(0)
                with torch.device(device):
                    model = DLRM(replace(shape, **changes)).to(device).eval()
                if name == "fused":  # once: a captured call would lay the weights out at every replay
                    kernels.pack_mlp(model.dense_arch)
                    kernels.pack_mlp(model.over_arch)
                call = model.predict
                if compiled:
                    compiled.prepare(model)
                    call = compiled.compile(call)
                calls[name], output = _captured(lambda call=call: call(*features), device)
                calls[name]()
                expected = output.clone() if expected is None else expected
                error = row["error"] = (output - expected).abs().max().item()
                tolerance = TOLERANCES[precision]
                row["match"] = "ok" if error <= tolerance else f"FAILED: a probability differs by {error:.2g}"
        good = {name: call for name, call in calls.items() if rows[name]["match"] == "ok"}
        for name, times in _times(good, device).items():
            low, middle, high = percentiles(times)
            size = necessary_bytes(shape, len(features[0]), training=False)
            rows[name] |= {"us": middle, "us_low": low, "us_high": high, "bytes": size}
    kernels.check_ids()
    return list(rows.values())


def _captured(work: Callable[[], Tensor], device: torch.device) -> tuple[Callable[[], None], Tensor]:
    """(what does the work again, its result, which that overwrites)."""
    if device.type != "cuda":
        output = work()
        return (lambda: output.copy_(work())), output
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for _ in range(3):
            work()
    torch.cuda.current_stream(device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        output = work()
    return partial(_replay, graph, work), output


def _replay(graph: torch.cuda.CUDAGraph, work: Callable[[], Tensor]) -> None:
    """The graph's replay. `work` is kept alive with it: the graph reads the tensors that the work holds."""
    graph.replay()


def _times(calls: Mapping[str, Callable[[], None]], device: torch.device) -> dict[str, list[float]]:
    """µs a call in each round, by turns: of so many in a row that the GPU never waits for the host."""
    samples = {name: [] for name in calls}
    for _ in range(ROUNDS + 1):
        for name, call in calls.items():
            if device.type != "cuda":
                samples[name].append(1e6 * Timer(call).timeit(2) / 2)
                continue
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(1_000_000)  # 0.5 ms, in which the host gets ahead
            start.record()
            for _ in range(REPLAYS):
                call()
            end.record()
            end.synchronize()
            samples[name].append(1e3 * start.elapsed_time(end) / REPLAYS)
    return {name: times[1:] for name, times in samples.items()}


def necessary_bytes(shape: DLRMConfig, rows: int, training: bool) -> int:
    """The bytes that any implementation must move; see above. float32, int64 ids."""
    features, width = len(shape.cardinalities), shape.embedding_dim
    inputs = InteractionArch(shape.interaction, features, width).out_features
    widths = (itertools.pairwise(shape.bottom), itertools.pairwise((inputs, *shape.top)))
    weights = sum((a + 1) * b for pairs in widths for a, b in pairs)
    looked_up = rows * features * width
    times = 3 if training else 1
    numbers = times * (weights + looked_up) + rows * (shape.bottom[0] + 1 + training)
    return 4 * numbers + 8 * rows * features


def copy_tb_per_s(device: torch.device) -> float | None:
    """TB/s of a copy within the GPU's memory, read and written."""
    if device.type != "cuda":
        return None
    row = Gpu().copy(RECORD)
    return 1e-6 * row.bytes / row.us_p50


def verdicts(rows: Iterable[Mapping]) -> list[str]:
    """What the figures must show, and whether they do; of the cells that were measured."""
    lines = []
    for row in rows:
        if row["part"] not in PARTS or row["implementation"] != OURS[row["part"]]:
            continue
        for column, limit in LIMITS.get((row["part"], row["rows"], row["precision"]), {}).items():
            value = row.get(column)
            figure, met = ("not measured", False) if value is None else (f"{value:.3g}", value <= limit)
            where = f"{row['part']} {row['rows']} {row['precision']}"
            lines.append(f"{'met' if met else 'MISSED'}: {where}: {column}: {figure}; limit {limit:g}")
    return lines


def line(row: Mapping) -> str:
    """A row of inference as a line of the printed table."""
    text = f"{row['part']:9} {row['precision']:4} {row['rows']:6}  {row['implementation']:{NAME}}"
    if row.get("us"):
        text += f" {row['us']:8.1f} µs ({row['us_low']:.1f} – {row['us_high']:.1f})"
    return f"{text}  {row['match']}"


# The cells of model/README.md's table: part, rows, precision; and the words for them.
SHOWN = (
    ("inference", 128, "tf32"),
    ("inference", 2048, "tf32"),
    ("dot", 2048, "tf32"),
    ("dot", 16384, "fp32"),
    ("outer", 2048, "tf32"),
)
WORDS = {
    "inference": "inference", "dot": "a training step", "outer": "a training step of `outer`",
    "tf32": "TF32", "fp32": "float32",
}
PEER = "torch.compile"
SERVED = 1, 2048  # rows of a call of an exported model
BEGIN, END = "<!-- begin: python -m model.bench --write -->", "<!-- end -->"


def readme_table(**where) -> str:
    """The table of model/README.md: what was recorded, and – for what was not; torch.compile as it is set best,
    and how. where: of the record."""
    try:
        record = load(RECORD, **where)
    except FileNotFoundError:
        record = {"rows": [], "copy_tb_per_s": None}
    lines = ["| µs | the bytes, at a copy's bandwidth | eager | `torch.compile` | ours |", "|---|---|---|---|---|"]
    for part, rows, precision in SHOWN:
        cell = {row["implementation"]: row for row in record["rows"]
                if (row["part"], row["rows"], row["precision"]) == (part, rows, precision) and row["match"] == "ok"}
        ours = cell.get(OURS[part], {})
        copy = record["copy_tb_per_s"]
        limit = f"{1e-6 * ours['bytes'] / copy:.1f}" if ours and copy else "–"
        eager = cell.get("eager") or cell.get("eager sparse") or {}
        peers = (row for name, row in cell.items() if is_variant(name, PEER))
        peer = min(peers, key=lambda row: row.get("us") or row["ms"], default={})
        how = peer.get("implementation", PEER).removeprefix(PEER).removeprefix(", ")
        times = (_us(eager), _us(peer) + f" ({how})" * bool(how), _us(ours))
        lines.append(f"| {WORDS[part]}, {rows:,} rows, {WORDS[precision]} | {limit} | {' | '.join(times)} |")
    lines += _served(where.get("results", RESULTS))
    wrong = [f"{row['implementation']} ({WORDS[row['part']]}, {row['rows']:,} rows, {WORDS[row['precision']]})"
             for row in record["rows"]
             if (row["part"], row["rows"], row["precision"]) in SHOWN and row["match"] != "ok"]
    lines += ["", f"FAILED, and so without a time: {', '.join(wrong)}."] * bool(wrong)
    if record["rows"]:
        lines += ["", f"Recorded on {record['GPU']}, torch {record['torch']}, triton {record['triton']}, "
                      f"{record['date']}."]
    return "\n".join(lines)


def _served(results: Path) -> list[str]:
    """The lines of an exported model in C++, copies included, on the READMEs' GPU or another one, which is named."""
    files = recorded_files("serving.json", results, README_GPU) or recorded_files("serving.json", results)
    lines = []
    for record in map(read, files[:1]):
        gpu = record["GPU"].removeprefix("NVIDIA ")
        where = "" if slug(gpu) == README_GPU else f", on {gpu}"
        for rows in SERVED:
            cell = {row["implementation"]: row for row in record["rows"]
                    if (row["rows"], row["threads"], row["match"]) == (rows, 1, "ok")}
            peers = (row for name, row in cell.items() if name.partition(",")[0] == PEER)
            peer = min(peers, key=lambda row: row["us"], default={})
            how = peer.get("implementation", PEER).removeprefix(PEER).removeprefix(", ")
            times = _us(cell.get("eager", {})), _us(peer) + f" ({how})" * bool(how), _us(cell.get("run_exported", {}))
            what = f"a call for {rows:,} row{'s' * (rows > 1)}, float32, copies included{where}; ours in C++"
            lines.append(f"| {what} | – | {' | '.join(times)} |")
    return lines


def _us(row: Mapping) -> str:
    value = row.get("us") or 1e3 * row.get("ms", 0)
    return f"{value:,.1f}" if value else "–"


def with_table(text: str, table: str) -> str:
    """A page's text with this table between its marks; ValueError without marks."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"expected {BEGIN} and {END}")
    return f"{before}{begin}\n\n{table}\n\n{end}{after}"
