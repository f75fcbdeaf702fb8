"""How far from float64 our kernels are, beside eager in the same precision: anywhere more than 1.5 times its errors?

    python -m model.bench.errors [--models main,mlperf,small,"40 tables"] [--save]

On a GPU. A line is a result, or a gradient, of a kernel on drawn numbers, or of a whole training step: the largest
error and the mean one of all its numbers in DRAWS draws, ours, eager's and the ratio. Float64 computes on the same
inputs. Where nothing is rounded, both errors are zero and the ratio counts as 1. In tf32 eager's products of some
sizes, as of 27 vectors with one another, are off by no more than those in full float32: a kernel that rounds there has
a large ratio by itself. What that comes to in a model, the steps say.

    kernels    dlrm_forward by clusters and by pairs of multiprocessors; dlrm_forward_kept, all that it keeps;
               lookup_interact and its gradients; fused_mlp_chain, fused_mlp_gradients, fused_mlp_step
    steps      a captured step by SGD: the gradients of each layer's weight and bias and of the tables, as what the step
               changes over its rate; and the logits of a forward without gradients

A bias of one number (logit.bias) has so few errors that their ratio says little: in emulated steps two right ways were
2.5 times apart in a fifth of the draws, with the same root of the mean square.
"""

if __name__ == "__main__":
    from data.cli import run

    run("model.bench.errors")

import argparse
import gc
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from multiprocessing import get_context

import torch
import torch.nn.functional as F
from torch import Tensor

import kernels
from data.cli import Parser
from kernels.check.comparison import as_tuple, double
from kernels.ops.dlrm import choice
from kernels.ops.dlrm.eager import dlrm_forward, dlrm_forward_kept
from kernels.ops.dlrm.op import KEPT
from kernels.ops.fused_mlp import eager as mlps
from kernels.ops.fused_mlp import packing, update
from kernels.ops.lookup_interact import choice as looked_up
from kernels.ops.lookup_interact.eager import lookup_interact, lookup_interact_gradients
from model.bench import recorded
from model.bench.models import MODELS, chosen, shape_of
from model.bench.step_memory import drawn
from model.bench.trainer import TABLES, Trainer, noting
from model.config import DLRMConfig, Kernels, Precision, TableOptimizer
from model.device import autocast, settings
from model.dlrm import DLRM, InteractionArch

NAME = "errors"  # of its file in traces/results/<gpu>/
LIMIT = 1.5
DRAWS = 8
ROWS = (128, 2048)  # of dlrm_forward: clusters, and pairs; the others take the last
MOST_ROWS = 10_000  # of a table
RATE = 64.0  # of SGD's steps: what they change is rounded to float32 beside the weight, and that is nobody's error here
RELU = ("relu", "relu", "relu", "identity")


@dataclass
class Errors:
    """Of a result, in all draws: largest, sum and count of ours, largest and sum of eager's."""

    most: float = 0.0
    total: float = 0.0
    eager_most: float = 0.0
    eager_total: float = 0.0
    count: int = 0

    def add(self, ours: Tensor, eager: Tensor, exact: Tensor) -> None:
        for name, value in (("", ours), ("eager_", eager)):
            error = (value.detach().double() - exact).abs()
            most = error.max().item() if error.numel() else 0.0
            setattr(self, f"{name}most", most if math.isnan(most) else max(getattr(self, f"{name}most"), most))
            setattr(self, f"{name}total", getattr(self, f"{name}total") + error.sum().item())
        self.count += exact.numel()

    def row(self) -> dict:
        count = max(self.count, 1)
        means = self.total / count, self.eager_total / count
        ratios = _ratio(self.most, self.eager_most), _ratio(*means)
        row = {"most": self.most, "eager_most": self.eager_most, "mean": means[0], "eager_mean": means[1]}
        return row | {"most_ratio": ratios[0], "mean_ratio": ratios[1], "numbers": self.count, "match": "ok"}


def _ratio(ours: float, eager: float) -> float:
    return 1.0 if ours == eager else ours / eager if eager else math.inf


@dataclass
class Results:
    """The errors of a cell's results, by their names."""

    of: dict[str, Errors] = field(default_factory=dict)

    def add(self, names: Iterable[str], ours, eager, exact) -> None:
        for name, *values in zip(names, *map(as_tuple, (ours, eager, exact)), strict=True):
            self.of.setdefault(name, Errors()).add(*values)


# ------------------------------------------------------------------------------------------------------------ kernels


@dataclass(frozen=True)
class Kernel:
    """A kernel on a model's shapes. draw: (seed) → its arguments; ours, eager: of them."""

    name: str
    rows: int
    precision: Precision
    results: tuple[str, ...]
    draw: Callable[[int], tuple]
    ours: Callable
    eager: Callable

    def errors(self) -> Results:
        results = Results()
        for seed in range(DRAWS):
            arguments = self.draw(seed)
            with settings(0, Precision.FP32):
                exact = self.eager(*_in_double(arguments))
            with settings(0, self.precision):
                results.add(self.results, self.ours(*arguments), self.eager(*arguments), exact)
        return results


def _in_double(value):
    if isinstance(value, Tensor):
        return double(value)
    return type(value)(map(_in_double, value)) if isinstance(value, list | tuple) else value


def kernels_of(shape: DLRMConfig, device: torch.device) -> Iterator[Kernel]:
    """Those that take the model, in tf32 and, where they do, in bfloat16."""
    backend = "cuda" if device.type == "cuda" else "eager"
    features, width = len(shape.cardinalities), shape.embedding_dim
    inputs = InteractionArch(shape.interaction, features, width).out_features
    widths = shape.bottom, (inputs, *shape.top)

    def tensor(seed: int, *size: int, dtype: torch.dtype = torch.float32) -> Tensor:
        generator = torch.Generator(device).manual_seed(seed)
        return torch.randn(*size, device=device, generator=generator).to(dtype)

    def layers(seed: int, dtype: torch.dtype) -> list[list[Tensor]]:
        pairs = [[*itertools.pairwise(of_mlp)] for of_mlp in widths]
        return [
            [tensor(seed + 10 * i + k, b, *(() if kind else (a,)), dtype=dtype) / math.sqrt(a) for k, (a, b) in
             enumerate(of_mlp)]
            for i, of_mlp in enumerate(pairs) for kind in range(2)
        ]

    def looks_up(seed: int, rows: int, dtype: torch.dtype) -> tuple[list[Tensor], list[Tensor]]:
        generator = torch.Generator(device).manual_seed(seed)
        ids = [torch.randint(height, (rows,), device=device, generator=generator) for height in shape.cardinalities]
        return [tensor(seed + f, height, width, dtype=dtype) for f, height in enumerate(shape.cardinalities)], ids

    for precision, dtype in ((Precision.TF32, torch.float32), (Precision.BF16, torch.bfloat16)):
        of_products = "tf32" if precision is Precision.TF32 else "ieee"
        for rows in ROWS:
            def whole(seed: int, rows: int = rows, dtype: torch.dtype = dtype) -> tuple:
                tables, ids = looks_up(1000 * seed, rows, dtype)
                bottom, bottom_biases, top, top_biases = layers(1000 * seed + 200, dtype)
                return (tensor(1000 * seed + 300, rows, shape.bottom[0], dtype=dtype), tables, ids, [], bottom,
                        bottom_biases, top, top_biases, *RELU)

            shapes = [tuple(torch.Size((b, a)) for a, b in itertools.pairwise(of_mlp)) for of_mlp in widths]
            design = choice.design_for(*shapes, features, False, dtype, of_products, device, rows)
            if isinstance(design, str) and device.type == "cuda":
                continue
            how = type(design).__name__.lower()
            yield Kernel(
                f"dlrm_forward ({how})", rows, precision, ("out",), whole,
                lambda *given, of=of_products: kernels.dlrm_forward(*given, of, backend=backend), dlrm_forward,
            )
        rows = ROWS[-1]
        if looked_up.fits(features, width, dtype, of_products, device) or device.type == "cpu":
            heights = torch.tensor([0, *shape.cardinalities], device=device).cumsum(0)
            wide = -(-inputs // 8) * 8

            def vectors(seed: int, dtype: torch.dtype = dtype, heights: Tensor = heights, rows: int = rows) -> tuple:
                tables, ids = looks_up(1000 * seed, rows, dtype)
                return (tensor(1000 * seed + 300, rows, width, dtype=dtype), torch.cat(tables), heights,
                        torch.stack(ids, 1), None)

            def gradients(seed: int, dtype: torch.dtype = dtype, wide: int = wide, of=vectors) -> tuple:
                return (tensor(1000 * seed + 400, ROWS[-1], wide, dtype=dtype), *of(seed))

            yield Kernel(
                "lookup_interact", rows, precision, ("out",), vectors,
                lambda *given, of=of_products: kernels.lookup_interact(*given, 8, of, backend=backend),
                lambda *given, of=of_products: lookup_interact(*given, 8, of),
            )
            yield Kernel(
                "lookup_interact_gradients", rows, precision, ("grad_dense", "grad_sparse"), gradients,
                lambda *given, of=of_products: kernels.lookup_interact_gradients(*given, of, backend=backend),
                lambda *given, of=of_products: lookup_interact_gradients(*given, of),
            )
    of_widths = ["-".join(map(str, of_mlp)) for of_mlp in widths]
    if device.type == "cpu" or not choice.why_not_kept(*of_widths, features, device):
        yield _kept(shape, of_widths, layers, looks_up, tensor, backend)
    yield from _updates(of_widths, tensor, device)


def _kept(shape: DLRMConfig, widths: list[str], layers, looks_up, tensor, backend: str) -> Kernel:
    rows = ROWS[-1]

    def draw(seed: int) -> tuple:
        tables, ids = looks_up(1000 * seed, rows, torch.float32)
        of_layers = layers(1000 * seed + 200, torch.float32)
        buffers = packing.copied(*of_layers[:2]), packing.copied(*of_layers[2:])
        return tensor(1000 * seed + 300, rows, shape.bottom[0]), tables, ids, *buffers, *widths, *RELU

    names = "out", "bottom_values", "vector", "features", "top_values"
    return Kernel(
        KEPT.name, rows, Precision.TF32, names, draw, lambda *given: KEPT.call(backend, *given)[: len(names)],
        dlrm_forward_kept,
    )


def _updates(widths: list[str], tensor: Callable, device: torch.device) -> Iterator[Kernel]:
    """The backward of the MLPs in two halves."""
    rows, own = ROWS[-1], " ".join(widths)
    of_cuda, of_triton = ("cuda", "triton") if device.type == "cuda" else ("eager", "eager")

    def operands(seed: int) -> tuple:
        x, hidden, grads = [], [], []
        for i, of_mlp in enumerate(widths):
            first, *_ = parts = packing.layers(of_mlp)
            x.append(F.pad(tensor(100 * seed + i, rows, first.inputs), (0, -first.inputs % 8)))
            columns = packing.hidden_parts(of_mlp, "relu", "identity")[-1]
            hidden.append(tensor(100 * seed + 10 + i, rows, columns).relu())
            drawn = [tensor(100 * seed + 20 + 10 * i + k, rows, part.outputs) for k, part in enumerate(parts)]
            grads.append(torch.cat([F.pad(one, (0, packing.padded(one.shape[1]) - one.shape[1])) for one in drawn], 1))
        return x, hidden, grads

    def step(*given) -> Tensor:
        packed = torch.zeros(sum(map(packing.elements, widths)), device=device)
        update.STEP.call(of_cuda, packed, packed.new_empty(0), *given, packed.new_ones(()), "sgd", 0.0, 0.0, own)
        return -packed

    yield Kernel("fused_mlp_gradients", rows, Precision.TF32, ("gradient",), operands,
                 lambda *given: update.GRADIENTS.call(of_cuda, *given, own), lambda *given: mlps.gradients(*given, own))
    yield Kernel("fused_mlp_step", rows, Precision.TF32, ("gradient",), operands, step,
                 lambda *given: mlps.gradients(*given, own))
    for name, of_mlp in zip(("bottom", "top"), widths, strict=True):
        parts, columns = packing.layers(of_mlp), packing.hidden_parts(of_mlp, "relu", "relu")[-1]
        options = of_mlp, "relu", "identity", "tf32", -(-parts[0].inputs // 8) * 8

        def chain(seed: int, parts=parts, columns: int = columns) -> tuple:
            pairs = [(part.inputs, part.outputs) for part in parts]
            weights = [tensor(100 * seed + k, b, a) / math.sqrt(a) for k, (a, b) in enumerate(pairs)]
            packed = packing.copied(weights, [tensor(100 * seed + 30 + k, b) for k, (_, b) in enumerate(pairs)])
            return (tensor(100 * seed + 60, rows, parts[-1].outputs), packed,
                    tensor(100 * seed + 61, rows, columns).relu(), tensor(100 * seed + 62, rows, parts[-1].outputs))

        yield Kernel(f"fused_mlp_chain ({name})", rows, Precision.TF32, ("grad_x", "grads"), chain,
                     lambda *given, of=options: update.CHAIN.call(of_triton, *given, *of),
                     lambda *given, of=options: mlps.chain(*given, *of))


# -------------------------------------------------------------------------------------------------------------- steps


def steps_of(shape: DLRMConfig, precision: Precision, device: torch.device) -> Results:
    """Of a captured step's gradients, and of logits."""
    results, rows = Results(), ROWS[-1]
    name = "fused graph" if device.type == "cuda" else "fused"
    plain = replace(shape, kernels=Kernels.EAGER)
    with settings(0, precision):
        trainer = Trainer(name, TableOptimizer.SGD, shape, rows, device, precision, RATE)
        with torch.device(device):
            eager, exact = DLRM(plain).to(device), DLRM(plain).to(device).double()
        random = torch.Generator().manual_seed(0)
        start = {name: value.clone() for name, value in trainer.weights().items()}
        for _ in range(DRAWS):
            batch = drawn(rows, shape.bottom[0], shape.cardinalities, random, device)
            trainer.model.load_state_dict(start)
            before = {name: own[0].clone() for name, own in trainer.state().items()}
            for model in (eager, exact):
                model.load_state_dict(start)
            with torch.no_grad(), autocast(device, precision):
                ours, theirs = (model(*batch[1:]).float() for model in (trainer.model.eval(), eager))
            wanted = _gradients(exact, batch, Precision.FP32, device)
            results.add(["logits"], ours, theirs, wanted.pop("logits"))
            trainer.model.train()
            trainer.step(*batch)
            after = {name: own[0] for name, own in trainer.state().items()}
            rounded = _gradients(eager, batch, precision, device)
            for tensor, gradient in wanted.items():
                own = (before[tensor].double() - after[tensor].double()) / RATE
                results.add([tensor], own, rounded[tensor], gradient)
    return results


def _gradients(model: DLRM, batch: Sequence[Tensor], precision: Precision, device: torch.device) -> dict[str, Tensor]:
    """Of all parameters, and the logits."""
    labels, dense, sparse = batch
    dtype = model.over_arch.logit.weight.dtype
    model.zero_grad()
    with autocast(device, precision), settings(0, precision):
        logits = model(dense.to(dtype), sparse)
        loss = F.binary_cross_entropy_with_logits(logits.to(dtype), labels.to(dtype))
        loss.backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    gradients[TABLES] = gradients[TABLES].to_dense()
    return gradients | {"logits": logits.detach()}


# ------------------------------------------------------------------------------------------------------------ the table


def line(row: Mapping) -> str:
    text = f"{row['model']:9} {row['precision']} {row['rows']:5} {row['what']:32} {row['result']:26}"
    if row["match"] == "ok":
        for kind in ("most", "mean"):
            text += f" {kind} {row[kind]:.2e} eager {row[f'eager_{kind}']:.2e} × {row[f'{kind}_ratio']:4.2f} "
        return text + ("" if is_within(row) else " MORE")
    return f"{text} {row['match']}"


def is_within(row: Mapping) -> bool:
    return row["match"] == "ok" and max(row["most_ratio"], row["mean_ratio"]) <= LIMIT


def verdicts(rows: Sequence[Mapping]) -> list[str]:
    """The worst of each kernel and of the steps; what is beyond the limit has a line above."""
    lines, of = [], {}
    for row in rows:
        of.setdefault(row["what"], []).append(row)
    for what, cells in of.items():
        measured = [row for row in cells if row["match"] == "ok"]
        most, mean = (max((row[kind] for row in measured), default=math.inf) for kind in ("most_ratio", "mean_ratio"))
        met = "met" if all(map(is_within, cells)) else "MISSED"
        beyond = sum(not is_within(row) for row in cells)
        lines.append(f"{met}: {what}: largest errors at most {most:.2f}, mean ones {mean:.2f} times eager's; limit "
                     f"{LIMIT}; {beyond} of {len(cells)} beyond it")
    return lines


def measure(name: str, device: torch.device) -> list[dict]:
    """The rows of a model, each printed as it comes."""
    rows, shape = [], shape_of(name, MOST_ROWS)

    def note(head: dict, found: Callable[[], Results]) -> None:
        failed: dict = {}
        with noting(failed):
            results = found()
            of = [head | {"result": name} | errors.row() for name, errors in results.of.items()]
        for row in of if not failed else [head | {"result": "–"} | failed]:
            rows.append(row)
            print(line(row), flush=True)
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()

    for kernel in kernels_of(shape, device):
        note({"model": name, "precision": str(kernel.precision), "rows": kernel.rows, "what": kernel.name},
             kernel.errors)
    for precision in (Precision.TF32, Precision.BF16):
        note({"model": name, "precision": str(precision), "rows": ROWS[-1], "what": "step"},
             lambda precision=precision: steps_of(shape, precision, device))
    return rows


def main(arguments: list[str] | None = None) -> int:
    """The command; 1 if a row failed."""
    parser = Parser(prog=f"python -m model.bench.{NAME}", description=__doc__,
                    formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=_models, default=MODELS, metavar="MODEL,…", help=", ".join(MODELS))
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"), help="cpu only tries it out")
    parser.add_argument("--save", action="store_true", help=f"record in traces/results/<gpu>/{NAME}.json")
    options = parser.parse_args(arguments)
    if options.save and (options.models != MODELS or options.device != "cuda"):
        parser.error("--save: a part of the models is not saved over the record of all")
    if options.device == "cuda" and not torch.cuda.is_available():
        print(f"model.bench.{NAME}: no CUDA device")
        return 2
    device, rows = torch.device(options.device), []
    # A process each: kernels are compiled meanwhile, and nothing is timed.
    with ProcessPoolExecutor(len(options.models) if device.type == "cuda" else 1, get_context("spawn")) as pool:
        for found in pool.map(measure, options.models, itertools.repeat(device)):
            rows += found
    if options.save:
        print(recorded.save(NAME, rows, draws=DRAWS))
    print(*verdicts(rows), sep="\n")
    return int(any(row["match"] != "ok" for row in rows))


def _models(text: str) -> Sequence[str]:
    try:
        return chosen(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(error) from None
