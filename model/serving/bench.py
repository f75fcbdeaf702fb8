"""What a served model's answer costs on a GPU: python -m model.serving.bench [--save].

`main` with dot, the hash sorted, Kaggle's cardinalities up to 100,000 ids a table, random weights, float32; of packages
also tf32 and bf16, which their rows' names say. Rows come from the CPU and probabilities go back to it: the copies are
in all times, and alone in the row "copies", as a CUDA graph.

run_exported is C++ (model/serving/cpp/CMakeLists.txt, which --programs's folder was built by): by CUDA graphs, as it
runs by default, and without. With several threads each of them calls with the same inputs, and the rates are those of
all together. A row whose probabilities are not eager's, to model.export.MOST_OFF, is FAILED and has no time;
run_exported's are compared with eager's by its --check, and the last one of each thread with a first call's.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import subprocess
import tempfile
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from data.cli import Parser, UserError, user_errors
from data.synthetic import SyntheticConfig
from kernels import runtime
from kernels.measure import records, sources
from kernels.measure.measuring import describe
from model import export
from model.config import Precision, preset
from model.dlrm import DLRM
from model.hashing import Hash
from model.profiling.recording import today
from model.serving.exported import Exported
from model.serving.served import Served

PROG = "python -m model.serving.bench"
NAME = "serving"  # of its file in traces/results/<gpu>/
IDS = 100_000  # of the largest table
ROWS, THREADS = (1, 128, 2048), (1, 2, 4, 8)
ROUNDS, CALLS = 10, 200  # by turns, so many calls in a row of each
CPP, PLAIN = "run_exported", "run_exported, without graphs"
COPIES, FROM_PYTHON = "copies", "Exported, from Python"
TOLD = re.compile(r"p50 ([\d.]+) ms, p99 ([\d.]+) ms, (\d+) calls")

Call = Callable[[], Tensor]


def model(ids: int = IDS) -> Served:
    """The model, on the CPU."""
    torch.manual_seed(0)
    config = replace(preset("main").model, cardinalities=SyntheticConfig(ids).cardinalities, hash=Hash.SORTED)
    known = [torch.arange(count) * 14_983 + 11 for count in config.cardinalities]
    return Served(DLRM(config, known).eval().requires_grad_(False)).eval()


@torch.inference_mode()
def run(folder: Path, served: Served, program: Path) -> list[dict]:
    """The rows. folder: what `model.export.write` wrote of `served`, which is on the GPU, in fp32."""
    measured, device, told = [], served.rows.device, _checked(folder, program)
    with tempfile.TemporaryDirectory() as temporary:
        loaded = _package(folder, served, Path(temporary))
        exported = Exported(folder)
        for rows in ROWS:
            torch._dynamo.reset()
            inputs = [tensor.clone() for tensor in export.sample(served, rows, rows)]
            calls: dict[str, Callable[..., Tensor]] = {
                "eager": served,
                "torch.compile": torch.compile(served, dynamic=False),
                "torch.compile, mode=reduce-overhead": torch.compile(served, dynamic=False, mode="reduce-overhead"),
                "aoti_load_package, from Python": loaded,
            }
            by_name = {name: _with_copies(call, inputs, device) for name, call in calls.items()}
            by_name |= {FROM_PYTHON: partial(exported, *inputs), COPIES: _copies(inputs, device)}
            latencies = _latencies(rows, by_name)
            latencies += _by_program(folder, program, inputs, told)
            print(*map(line, latencies), sep="\n", flush=True)
            measured += latencies
    return measured


@torch.inference_mode()
def run_in(precision: Precision, folder: Path, served: Served, program: Path) -> list[dict]:
    """The rows of a package in another precision, against eager in float32."""
    measured, exported, told = [], Exported(folder), _checked(folder, program)
    print(exported.manifest.exactness)
    for rows in ROWS:
        inputs = [tensor.clone() for tensor in export.sample(served, rows, rows)]
        calls = {"eager": _with_copies(served, inputs, served.rows.device), FROM_PYTHON: partial(exported, *inputs)}
        _, row = _latencies(rows, calls, precision)
        latencies = [row, *_by_program(folder, program, inputs, told)]
        for row in latencies:
            row["implementation"] += f", {precision}"
        print(*map(line, latencies), sep="\n", flush=True)
        measured += latencies
    return measured


def _checked(folder: Path, program: Path) -> str:
    """"ok", or what the program's --check found."""
    done = subprocess.run([program, folder, "--check"], capture_output=True, text=True)
    print(done.stdout, end="")
    return "ok" if done.returncode == 0 else f"FAILED: {(done.stdout + done.stderr)[-300:]}"


def _by_program(folder: Path, program: Path, inputs: Sequence[Tensor], told: str) -> list[dict]:
    """run_exported's rows with these inputs."""
    rows = len(inputs[0])
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "inputs.pt"
        torch.save([*inputs], path)
        command = [program, folder, "--bench", "--inputs", path]
        plain = _cpp(rows, PLAIN, 1, told, [*command, "--plain"])
        return [plain, *(_cpp(rows, CPP, count, told, [*command, "--threads", count]) for count in THREADS)]


def _with_copies(call: Callable[..., Tensor], inputs: Sequence[Tensor], device: torch.device) -> Call:
    """The call, and the copies of its inputs and its answer by way of pinned memory, as run_exported has them."""
    pinned = [tensor.pin_memory() for tensor in inputs]
    answer = torch.empty(len(inputs[0])).pin_memory()

    def whole() -> Tensor:
        for to, tensor in zip(pinned, inputs, strict=True):
            to.copy_(tensor)
        answer.copy_(call(*(tensor.to(device, non_blocking=True) for tensor in pinned)), non_blocking=True)
        torch.cuda.current_stream().synchronize()
        return answer

    return whole


def _package(folder: Path, served: Served, temporary: Path) -> Callable[..., Tensor]:
    """The folder's package by torch's own loader, which takes a zip file."""
    package, source = temporary / "model.pt2", folder / Exported(folder).manifest.package
    with zipfile.ZipFile(package, "w", zipfile.ZIP_STORED) as archive:
        for path in (path for path in sorted(source.rglob("*")) if path.is_file()):
            archive.write(path, Path("model") / path.relative_to(source))
    loaded = torch._inductor.aoti_load_package(str(package))
    own = dict(served.named_parameters()) | dict(served.named_buffers())
    constants = {name: own[name].detach() for name in loaded.get_constant_fqns()}
    loaded.load_constants(constants, check_full_update=True, user_managed=True)
    return loaded


def _copies(inputs: Sequence[Tensor], device: torch.device) -> Call:
    """Inputs to the GPU and as many probabilities back, by a graph, from pinned memory."""
    pinned = [tensor.pin_memory() for tensor in inputs]
    placed = [tensor.to(device) for tensor in inputs]
    answer = torch.zeros(len(inputs[0]), device=device)
    back = answer.cpu().pin_memory()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for to, tensor in zip((*placed, back), (*pinned, answer), strict=True):
            to.copy_(tensor, non_blocking=True)

    def call() -> Tensor:
        graph.replay()
        torch.cuda.current_stream().synchronize()
        return back

    call.kept = pinned, placed, answer  # the graph reads and writes them
    return call


def _latencies(rows: int, calls: Mapping[str, Call], precision: Precision = Precision.FP32) -> list[dict]:
    """A row for each call: its times one after the other, by turns. The first one is in float32, the others in the
    precision."""
    by_name, times, want = {}, {}, None
    for name, call in calls.items():
        row = by_name[name] = {"rows": rows, "implementation": name, "threads": 1, "match": "ok"}
        try:
            for _ in range(5):  # compiles, captures
                answer = call()
        except Exception as error:
            row["match"] = f"FAILED: {describe(error)}"
            continue
        want = answer.clone() if want is None else want
        if name != COPIES:
            row["error"] = (answer - want).abs().max().item()
            if not row["error"] <= export.MOST_OFF["cuda", precision]:
                row["match"] = f"FAILED: a probability differs by {row['error']:.2g}"
        if row["match"] == "ok":
            times[name] = []
    for _ in range(ROUNDS):
        for name, own in times.items():
            for _ in range(CALLS):
                start = time.perf_counter()
                calls[name]()
                own.append(1e6 * (time.perf_counter() - start))
    for name, own in times.items():
        own.sort()
        rate = 1e6 * len(own) / sum(own)
        by_name[name] |= {"us": own[len(own) // 2], "us_p99": own[len(own) * 99 // 100], "calls_per_s": rate}
    return list(by_name.values())


def _cpp(rows: int, name: str, threads: int, match: str, command: Sequence) -> dict:
    row = {"rows": rows, "implementation": name, "threads": threads, "match": match}
    if match != "ok":
        return row
    done = subprocess.run([*map(str, command)], capture_output=True, text=True)
    told = TOLD.search(done.stdout)
    if done.returncode or not told or "failed" in done.stderr:  # a graph that failed would be another implementation
        return row | {"match": f"FAILED: {(done.stdout + done.stderr)[-300:]}"}
    p50, p99, rate = map(float, told.groups())
    return row | {"us": 1e3 * p50, "us_p99": 1e3 * p99, "calls_per_s": rate}


def line(row: Mapping) -> str:
    """The row as a line of the printed table."""
    text = f"{row['rows']:5} rows  {row['implementation']:36} {row['threads']} threads"
    if "us" in row:
        text += f"  p50 {row['us']:8.1f} µs  p99 {row['us_p99']:8.1f} µs"
        text += f"  {row['calls_per_s']:9,.0f} calls and {row['rows'] * row['calls_per_s']:13,.0f} rows a second"
    return f"{text}  {row['match']}"


def record(rows: Sequence[Mapping]) -> dict:
    """What is saved."""
    versions = runtime.versions()
    return {
        "op": NAME,
        **{name: versions[name] for name in ("GPU", "driver", "torch", "triton", "CUDA", "Python")},
        "date": today(),
        "sources_sha256": {"id_table": sources.sha256("id_table", "sources"), "serving": _sha256()},
        "rows": list(rows),
    }


def _sha256() -> str:
    """The SHA-256 of the code that exports and serves, and of how it is measured here."""
    folder, digest = Path(__file__).parent, hashlib.sha256()
    for file in sorted([Path(export.__file__), *folder.glob("*.py"), *folder.glob("cpp/*.*")]):
        digest.update(f"\0{file.relative_to(folder.parent).as_posix()}\0{sources.of_file(file)}".encode())
    return digest.hexdigest()


def show(results: Path = records.RESULTS) -> None:
    """Print the records of all GPUs, labelled as recorded."""
    files = records.recorded_files(f"{NAME}.json", results)
    if not files:
        print(f"nothing is recorded: {PROG} --save, on a GPU")
    for file in files:
        entry = records.read(file)
        print(f"Recorded on {entry['GPU']}, {entry['date']} (torch {entry['torch']}, CUDA {entry['CUDA']}):")
        print(*map(line, entry["rows"]), sep="\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 1 if a row failed."""
    parser = Parser(prog=PROG, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--save", action="store_true", help=f"record in traces/results/<gpu>/{NAME}.json")
    parser.add_argument(
        "--programs",
        type=Path,
        default=Path("build/serving"),
        metavar="DIR",
        help="where run_exported was built (default: %(default)s)",
    )
    args = parser.parse_args(arguments)
    if runtime.device().type != "cuda":
        print("No GPU here: nothing is measured.")
        show()
        return 0
    with user_errors(PROG), tempfile.TemporaryDirectory() as temporary, torch.no_grad():
        program = args.programs.resolve() / "run_exported"
        if not program.exists():
            raise UserError(f"{program}: missing; model/serving/cpp/CMakeLists.txt says how it is built")
        served = model().to(runtime.device())
        rows = []
        for precision in Precision:
            folder = Path(temporary) / precision
            folder.mkdir()
            export.write(served, folder, precision)
            is_first = precision is Precision.FP32
            rows += run(folder, served, program) if is_first else run_in(precision, folder, served, program)
        if args.save:
            print(records.save(record(rows)))
    return int(any(row["match"] != "ok" for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
