"""What the notebook on the generated Triton says in µs: `python -m model.generated --save`, on a GPU.

    candidate  each configuration that Inductor tries, of each variant (what it knows of the sizes): its own time, ours,
               whether it kept it, what it compiles to
    scalar     those of `literal`, compiled as if nothing were known to be a multiple of 16
    torch.compile  each variant's compiled function itself: what it launches is the kept candidate
    eager      the same by PyTorch's operators, one launch each
    copy       PyTorch's copy of as many bytes as the fused kernel moves

All that is compared was measured by turns. Saved in traces/results/<gpu>/generated.json, with each variant's source as
this torch wrote it, and PTX and SASS of the kept candidate of `literal`.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from kernels.inductor import compile_candidates, fake_gpu, split, triton_source
from kernels.inductor.lower import fresh, without_paths
from kernels.inductor.machine_code import accesses, opcodes, sass
from kernels.inductor.parse import function_of, metadata
from kernels.inductor.run import aligned_arguments, jit
from kernels.measure import records
from kernels.measure.clock import percentiles
from model.generated.variants import COLUMNS, VARIANTS, layer
from model.gpu.record import Clock
from model.recorder import head

NAME = "generated"
ROWS = (65536, 2048)
SMALL = (4,)  # through Triton's interpreter, to see that it runs
EVERYWHERE = ("literal", "rows open", "both open")  # the variants that are measured in small, too


@dataclass
class Found:
    """What torch.compile made of one variant. candidates: (blocks, warps, stages, its own µs or None), kept: which."""

    module: str
    arguments: tuple = ()
    candidates: list[tuple[dict[str, int], int, int, float | None]] = field(default_factory=list)
    kept: int | None = None
    compiled: Callable | None = None
    registers: int | None = None  # of the kept one, as Inductor says

    @property
    def source(self) -> str:
        (kernel,) = split(self.module)
        return kernel.source


def compile_here(variant: str, x: Tensor, y: Tensor, bias: Tensor) -> Found:
    """Compiled and run by torch.compile on this GPU, while its autotuner is looked at."""
    from torch._functorch import config as functorch
    from torch._inductor import config

    tuner = fake_gpu.private("torch._inductor.runtime.triton_heuristics", "CachingAutotuner").CachingAutotuner
    graph = fake_gpu.private("torch._inductor.graph", "GraphLowering").GraphLowering  # 2.11: save_output_code is None
    modules, seen, times = [], [], {}
    run, benchmark = tuner.run, tuner.benchmark_all_configs

    def watched_run(self, *arguments, **named):
        seen.append((self, arguments))
        return run(self, *arguments, **named)

    def watched_benchmark(self, *arguments, **named):
        found = benchmark(self, *arguments, **named)
        times.update({key(launcher.config): 1e3 * ms for launcher, ms in found.items()})
        return found

    with ExitStack() as stack:
        for change in (
            mock.patch.object(graph, "save_output_code", modules.append),
            mock.patch.object(tuner, "run", watched_run),
            mock.patch.object(tuner, "benchmark_all_configs", watched_benchmark),
            config.patch({"fx_graph_cache": False, "force_disable_caches": True}),
            functorch.patch(enable_autograd_cache=False),
        ):
            stack.enter_context(change)
        VARIANTS[variant].mark(x, y, bias)
        compiled = torch.compile(fresh(layer), dynamic=False)  # open is what is marked, and nothing more
        compiled(x, y, bias)
    (module,), (chosen, arguments) = modules, seen[-1]
    (launcher,) = chosen.launchers
    tried = list(times) or [key(launcher.config)]
    found = [(dict(blocks), warps, stages, times.get((blocks, warps, stages))) for blocks, warps, stages in tried]
    kept = tried.index(key(launcher.config))
    registers = getattr(launcher, "n_regs", None)
    return Found(without_paths(module), arguments, found, kept, compiled, registers)


def key(config: Any) -> tuple[tuple, int, int]:
    return tuple(config.kwargs.items()), config.num_warps, config.num_stages


def lower_here(variant: str, x: Tensor, y: Tensor, bias: Tensor) -> Found:
    """The same without a GPU: nothing is timed, and none is kept."""
    VARIANTS[variant].mark(x, y, bias)
    (module,) = triton_source(layer, x, y, bias)
    found = Found(module)
    made = compile_candidates(found.source)
    found.candidates = [(each.blocks, each.num_warps, each.num_stages, None) for each in made]
    names = [name for name, kind in metadata(function_of(found.source), "triton_meta", "signature").items()
             if kind != "constexpr"]  # fmt: skip
    tensors = dict(zip(names, (*pointers(module, x, y, bias), torch.empty_like(x)), strict=False))
    sizes = {"ks0": x.shape[-1], "xnumel": x.numel()}
    found.arguments = tuple(tensors[name] if name in tensors else sizes[name] for name in names)
    return found


def pointers(module: str, x: Tensor, y: Tensor, bias: Tensor) -> list[Tensor]:
    """The inputs in the order in which `call` gives them to the kernel: x and y are told apart by the product."""
    return [x, y, bias] if scaled_pointer(module) == "in_ptr1" else [y, x, bias]


def scaled_pointer(module: str) -> str:
    """The kernel's pointer whose number is multiplied by 0.5."""
    text = module[module.index("@triton.jit") :]
    half = re.search(r"(tmp\d+) = (?:tl\.full\(\[1\], )?0\.5", text)[1]
    product = re.search(rf"tmp\d+ = (tmp\d+) \* {half}\b", text)[1]
    return re.search(rf"{product} = tl\.load\((\w+)", text)[1]


class Recorder:
    """Measures the variants; rows are printed as they come."""

    def __init__(self, device: torch.device, rows: tuple[int, ...]):
        self.device, self.all_rows = device, rows
        self.clock = Clock(device)
        self.rows: list[dict] = []
        self.sources: dict[str, str] = {}
        self.code: dict[str, list[str] | str] = {}
        self.generator = torch.Generator(device).manual_seed(0)

    def inputs(self, variant: str, rows: int) -> tuple[Tensor, ...]:
        shape = VARIANTS[variant].shape(rows)
        draw = lambda *shape: torch.randn(shape, generator=self.generator, device=self.device)  # noqa: E731
        return draw(*shape), draw(*shape), draw(shape[1])

    def add(self, times: list[float] | None, right: bool, **labels) -> None:
        row = labels | {"match": "ok" if right else "FAILED: the result is wrong"}
        if times and right:
            row |= dict(zip(("us_p20", "us_p50", "us_p80"), percentiles(times), strict=True))
        self.rows.append(row)
        print(line(row), flush=True)

    @torch.no_grad()
    def measure(self) -> None:
        for rows in self.all_rows:
            try:
                self.size(rows, VARIANTS if rows == self.all_rows[0] else EVERYWHERE)
            except Exception as error:  # the other size is measured all the same
                traceback.print_exc()
                what = f"{type(error).__name__}: {error}".splitlines()[0]
                self.rows.append({"part": "error", "rows": rows, "match": f"FAILED: {what}"})
            if self.clock.gpu:
                self.clock.gpu.clear()

    def size(self, rows: int, variants) -> None:
        launches, labels = {}, {}
        on_gpu = self.clock.gpu is not None
        for variant in variants:
            x, y, bias = self.inputs(variant, rows)
            expected = layer(x, y, bias)
            found = (compile_here if on_gpu else lower_here)(variant, x, y, bias)
            out = next(each for each in found.arguments if isinstance(each, Tensor) and not_one_of(each, x, y, bias))
            if rows == self.all_rows[0]:
                self.sources[variant] = found.module
            for number, (blocks, warps, stages, own) in enumerate(found.candidates):
                kept = number == (found.kept or 0)
                name = f"{variant} {number}"
                launches[name] = launch(found, number)
                right, facts = self.tried(launches[name], out, expected, found, number)
                labels[name] = {
                    "part": "candidate", "variant": variant, "rows": x.shape[0], "columns": x.shape[1], **blocks,
                    "num_warps": warps, "num_stages": stages, "inductor_us": own,
                    "inductor_registers": found.registers if kept else None, "kept": kept,
                    **facts, "bytes": moved(x, bias), "right": right,
                }  # fmt: skip
            if found.compiled:
                name = f"{variant} by torch.compile"
                launches[name] = partial(found.compiled, x, y, bias)
                labels[name] = {"part": "torch.compile", "variant": variant, "rows": x.shape[0], "columns": x.shape[1],
                                "bytes": moved(x, bias), "right": True}  # fmt: skip
            if variant == "literal":
                self.others(rows, found, (x, y, bias), out, expected, launches, labels)
        for name, times in self.clock.times(launches).items():
            right = labels[name].pop("right")
            self.add(times, right, **labels[name])

    def others(self, rows, found, inputs, out, expected, launches, labels) -> None:
        """Of the literal sizes: without what is known of multiples of 16, by PyTorch's operators, and a copy."""
        x, _, bias = inputs
        size = {"rows": rows, "columns": COLUMNS, "bytes": moved(x, bias)}
        for number in range(len(found.candidates)):
            name = f"scalar {number}"
            launches[name] = launch(found, number, aligned=False)
            right, facts = self.tried(launches[name], out, expected, found, number, aligned=False)
            blocks, warps, *_ = found.candidates[number]
            kept = number == (found.kept or 0)
            labels[name] = {"part": "scalar", **size, **blocks, "num_warps": warps, "kept": kept, **facts,
                            "right": right}  # fmt: skip
        launches["eager"] = lambda: layer(*inputs)
        labels["eager"] = {"part": "eager", **size, "bytes": 9 * x.nbytes + bias.nbytes, "right": True}
        source = torch.ones(3 * x.numel() // 2, device=self.device)
        target = torch.empty_like(source)
        launches["copy"] = lambda: target.copy_(source)
        labels["copy"] = {"part": "copy", **size, "bytes": 2 * source.nbytes, "right": True}

    def tried(self, launch: Callable, out: Tensor, expected: Tensor, found: Found, number: int, aligned: bool = True):
        """(whether its result is right, what it is compiled to)"""
        out.fill_(float("nan"))
        compiled = launch()
        right = bool((out - expected).abs().max() <= 4e-6)
        if self.clock.gpu is None:
            made = compile_candidates(found.source, aligned=aligned)[number]
            ptx, cubin, used, spilled = made.ptx, made.cubin, made.registers, 0
        else:
            ptx, cubin = compiled.asm["ptx"], compiled.asm["cubin"]
            used, spilled = compiled.n_regs, compiled.n_spills
        instructions = sass(cubin)
        facts = {"registers": used, "spills": spilled, "accesses": accesses(ptx),
                 "instructions": len(instructions) if instructions else None,
                 "opcodes": opcodes(instructions) if instructions else None}  # fmt: skip
        first = "literal" in self.sources and len(self.sources) == 1 and "ptx" not in self.code
        if aligned and first and number == (found.kept or 0):
            self.code = {"ptx": ptx, "sass": instructions}
        return right, facts


def not_one_of(tensor: Tensor, *others: Tensor) -> bool:
    return all(tensor.data_ptr() != other.data_ptr() for other in others)


def moved(x: Tensor, bias: Tensor) -> int:
    """Bytes that the fused kernel moves: x and y read, out written, and bias."""
    return 3 * x.nbytes + bias.nbytes


def launch(found: Found, number: int, aligned: bool = True) -> Callable[[], Any]:
    """One of the candidates, launched by Triton: on a GPU it is compiled as Inductor compiles it."""
    blocks, warps, stages, _ = found.candidates[number]
    grid = (-(-found.arguments[-1] // blocks["XBLOCK"]),)
    kernel = jit(found.source, aligned_arguments(found.source) if aligned else ())[grid]
    options = blocks | {"num_warps": warps, "num_stages": stages}
    return lambda: kernel(*found.arguments, **options)


def line(row: dict) -> str:
    """The row as a line of text."""
    names = ("variant", "rows", "columns", "XBLOCK", "num_warps", "registers", "inductor_registers", "instructions",
             "accesses", "inductor_us")  # fmt: skip
    labels = " ".join(f"{name} {row[name]}" for name in names if row.get(name) is not None)
    shown = f"{row['us_p50']:.2f} µs ({row['us_p20']:.2f} to {row['us_p80']:.2f})" if "us_p50" in row else ""
    return f"{row['part']:10} {labels} {'kept ' if row.get('kept') else ''}{shown}  {row['match']}"


def record(device: torch.device, rows: tuple[int, ...]) -> dict:
    """What is saved in traces/results/<gpu>/generated.json."""
    recorder = Recorder(device, rows)
    recorder.measure()
    found = {"sources": recorder.sources, **recorder.code, "rows": recorder.rows}
    return head(NAME, "python -m model.generated") | found


def save(found: dict) -> str:
    return records.save(found)
