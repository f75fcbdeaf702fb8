"""What TF32 brings, and what it costs in accuracy: `python -m model.bench_tf32`, on a GPU.

    product   a cuBLAS product in float32 and in TF32: µs, and its largest error over the largest number of the result
    step      ms of a training step of the lecture's story in float32 and in TF32, by turns

TF32 rounds the numbers that are multiplied to 10 bits of the fraction, keeps float32's 23 in the sums, and takes the
tensor cores (https://docs.pytorch.org/docs/stable/notes/cuda.html#tf32-on-ampere).
"""

import argparse
import itertools
from collections.abc import Sequence
from dataclasses import replace

import torch

from data.cli import Parser
from kernels import runtime
from kernels.measure import records
from kernels.measure.clock import Gpu, batches, percentiles, timer
from model.config import Precision
from model.device import choose, settings
from model.profiling.recording import WARM_UP, step_times, today
from model.profiling.story import STORY, training_step

PROG = "python -m model.bench_tf32"
RECORD = "tf32"
PRECISIONS = (Precision.FP32, Precision.TF32)
# (rows, depth, columns): products of DLRM's forward with a batch of 2048, `outer`'s the last; then squares.
PRODUCTS = ((2048, 512, 256), (2048, 367, 512), (2048, 186624, 512), (4096, 4096, 4096), (8192, 8192, 8192))
STEPS = ("06_main_outer", "08_main_dot")


def products(device: torch.device, shapes: Sequence[tuple[int, int, int]] = PRODUCTS) -> list[dict]:
    """A row a product and precision."""
    gpu, rows = Gpu() if device.type == "cuda" else None, []
    for shape in shapes:
        count, depth, columns = shape
        torch.manual_seed(0)
        a, b = torch.randn(count, depth, device=device), torch.randn(depth, columns, device=device)
        exact = a.double() @ b.double()
        for precision in PRECISIONS:
            with settings(0, precision):
                error = ((a @ b).double() - exact).abs().max() / exact.abs().max()
                p20, p50, p80 = percentiles(_times(gpu, lambda a=a, b=b: a @ b))
            rows.append({
                "part": "product", "rows": count, "depth": depth, "columns": columns, "precision": str(precision),
                "us_p20": p20, "us_p50": p50, "us_p80": p80, "flops": 2 * count * depth * columns,
                "error": float(error), "match": "ok",
            })  # fmt: skip
            print(_line(rows[-1]), flush=True)
        del a, b, exact
    return rows


def steps(device: torch.device, names: Sequence[str] = STEPS, **smaller) -> list[dict]:
    """A row a step and precision. smaller: fields of the steps that replace the story's, to try it out."""
    rows = []
    for chosen in (replace(step, **smaller) for step in STORY if step.name in names):
        step, _ = training_step(chosen, device)

        def of(precision: Precision, step=step):
            with settings(0, precision):
                return step()

        both = {str(precision): (lambda precision=precision, of=of: of(precision)) for precision in PRECISIONS}
        for function in itertools.islice(itertools.cycle(both.values()), 2 * WARM_UP):
            function()
        for name, ms in step_times(both).items():
            low, middle, high = percentiles(ms.tolist())
            rows.append({
                "part": "step", "step": chosen.name, "precision": name, "ms_p20": low, "ms_p50": middle, "ms_p80": high,
                "match": "ok",
            })  # fmt: skip
            print(_line(rows[-1]), flush=True)
    return rows


def record(rows: list[dict]) -> dict:
    """What is saved in traces/results/<gpu>/tf32.json."""
    versions = runtime.versions()
    names = ("GPU", "driver", "torch", "triton", "CUDA", "Python")
    return {"op": RECORD, **{name: versions[name] for name in names}, "date": today(), "rows": rows}


def show(rows: int | None = None) -> None:
    """Print what was recorded on the GPU of the READMEs' tables; rows: of the products those of so many rows alone."""
    try:
        saved = records.load(RECORD)
    except FileNotFoundError:
        print(f"not recorded yet: {PROG} --save, on a GPU")
        return
    print(f"RECORDED: {saved['GPU']}, {saved['date']}, torch {saved['torch']}")
    shown = [row for row in saved["rows"] if rows is None or row.get("rows") in (None, rows)]
    print(*map(_line, shown), sep="\n")


def gains() -> dict[str, float]:
    """step → how many times as long as in TF32 it takes in float32, as recorded; {} where nothing is."""
    try:
        table = records.recorded(RECORD).query("part == 'step'")
    except FileNotFoundError:
        return {}
    ms = table.pivot(index="step", columns="precision", values="ms_p50")
    return (ms["fp32"] / ms["tf32"]).to_dict()


def _times(gpu: Gpu | None, product, calls: int = 5) -> list[float]:
    """µs of one product, in each of some measurements."""
    if gpu is None:
        return batches({"": timer(product)}, 2, 3, lambda: None)[""]

    def several():
        for _ in range(calls):
            result = product()
        return (result,)

    gpu.clear()  # the pool of graphs that are gone takes no other
    replay, _ = gpu.capture(several)
    return [us / calls for us in gpu.times({"": replay})[""]]


def _line(row: dict) -> str:
    if row["part"] == "step":
        return f"{row['step']} {row['precision']}: {row['ms_p50']:.2f} ms ({row['ms_p20']:.2f} to {row['ms_p80']:.2f})"
    shape = " × ".join(str(row[name]) for name in ("rows", "depth", "columns"))
    rate = 1e-6 * row["flops"] / row["us_p50"]
    return f"{shape} {row['precision']}: {row['us_p50']:.1f} µs, {rate:.1f} TFLOP/s, error {row['error']:.1e}"


def main(arguments: list[str] | None = None) -> int:
    """The command."""
    parser = Parser(prog=PROG, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--save", action="store_true", help=f"record in traces/results/<gpu>/{RECORD}.json")
    args = parser.parse_args(arguments)
    if runtime.device().type != "cuda":
        print("No GPU here: nothing is measured.")
        show()
        return 0
    device = choose(None)
    found = products(device) + steps(device)
    if args.save:
        print(records.save(record(found)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
