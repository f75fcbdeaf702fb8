"""What the notebook says in µs: `python -m lessons.n07_read_the_generated_triton --save`, on a GPU.

    candidate  each configuration that Inductor tries, of each variant (what it knows of the sizes): its own time, ours,
               whether it kept it, what it compiles to
    scalar     those of `literal`, compiled as if nothing were known to be a multiple of 16
    torch.compile  each variant's compiled function itself: what it launches is the kept candidate
    eager      the same by PyTorch's operators, one launch each
    copy       PyTorch's copy of as many bytes as the fused kernel moves
    sweep      the kernel with Triton's own decorator, by XBLOCK and warps: two, four and eight elements a lane, each in
               programs of few and of many warps; and the same copy
    operators  eager's four kernels, each by itself
    mix        PyTorch's kernels that move as many bytes: reads alone, two reads a write, a copy, writes alone

All that is of one size was measured by turns, and so was all of the sweep, of the operators, and of the mix. Beside
the rows stand each variant's source as this torch wrote it, and PTX and SASS of the kept candidate of `literal`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from kernels.inductor import compile_candidates, fake_gpu, split, triton_source
from kernels.inductor.execute import aligned_arguments, jit
from kernels.inductor.lower import fresh, without_paths
from kernels.inductor.machine_code import accesses, opcodes, sass
from kernels.inductor.parse import function_of, metadata
from lessons.n07_read_the_generated_triton import generated_kernel
from lessons.n07_read_the_generated_triton.layer_variants import COLUMNS, VARIANTS, layer
from lessons.shared.experiment import Experiment, Launch, Way
from lessons.shared.records import LANES


@dataclass(frozen=True)
class Sizes:
    """rows, and which variants are measured with so many. sweep: (XBLOCK, warps) of the large one."""

    large: int = 65536
    small: int = 2048
    large_variants: tuple[str, ...] = tuple(VARIANTS)
    small_variants: tuple[str, ...] = ("literal", "rows open", "both open")
    sweep: tuple[tuple[int, int], ...] = (
        (256, 4), (512, 8), (1024, 16), (256, 2), (512, 4), (1024, 8), (2048, 16), (512, 2), (1024, 4), (2048, 8),
    )


@dataclass
class Generated:
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


def compile_here(variant: str, x: Tensor, y: Tensor, bias: Tensor) -> Generated:
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
        timings = benchmark(self, *arguments, **named)
        times.update({key(launcher.config): 1e3 * ms for launcher, ms in timings.items()})
        return timings

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
    candidates = [(dict(blocks), warps, stages, times.get((blocks, warps, stages))) for blocks, warps, stages in tried]
    kept = tried.index(key(launcher.config))
    registers = getattr(launcher, "n_regs", None)
    return Generated(without_paths(module), arguments, candidates, kept, compiled, registers)


def key(config: Any) -> tuple[tuple, int, int]:
    return tuple(config.kwargs.items()), config.num_warps, config.num_stages


def lower_here(variant: str, x: Tensor, y: Tensor, bias: Tensor) -> Generated:
    """The same without a GPU: nothing is timed, and none is kept."""
    VARIANTS[variant].mark(x, y, bias)
    (module,) = triton_source(layer, x, y, bias)
    generated = Generated(module)
    generated.candidates = [
        (compiled.blocks, compiled.num_warps, compiled.num_stages, None)
        for compiled in compile_candidates(generated.source)
    ]
    names = [name for name, kind in metadata(function_of(generated.source), "triton_meta", "signature").items()
             if kind != "constexpr"]
    tensors = dict(zip(names, (*pointers(module, x, y, bias), torch.empty_like(x)), strict=False))
    sizes = {"ks0": x.shape[-1], "xnumel": x.numel()}
    generated.arguments = tuple(tensors[name] if name in tensors else sizes[name] for name in names)
    return generated


def pointers(module: str, x: Tensor, y: Tensor, bias: Tensor) -> list[Tensor]:
    """The inputs in the order in which `call` gives them to the kernel: x and y are told apart by the product."""
    return [x, y, bias] if scaled_pointer(module) == "in_ptr1" else [y, x, bias]


def scaled_pointer(module: str) -> str:
    """The kernel's pointer whose number is multiplied by 0.5."""
    text = module[module.index("@triton.jit") :]
    half = re.search(r"(tmp\d+) = (?:tl\.full\(\[1\], )?0\.5", text)[1]
    product = re.search(rf"tmp\d+ = (tmp\d+) \* {half}\b", text)[1]
    return re.search(rf"{product} = tl\.load\((\w+)", text)[1]


class Candidates(Experiment):
    """What generated.json has, by size: many rows, and few; by configs; by reads and writes. sources: each variant's;
    ptx, sass: of `literal`."""

    NAME = "generated"
    PARTS = ("large", "small", "sweep", "operators", "mix")
    FULL = Sizes()
    SMALL = Sizes(4, 4, ("literal", "columns open"), ("literal",), ((512, 8), (512, 4)))

    def large(self) -> None:
        self.size(self.sizes.large, self.sizes.large_variants)

    def small(self) -> None:
        self.size(self.sizes.small, self.sizes.small_variants)

    @torch.no_grad()
    def sweep(self) -> None:
        shape = self.sizes.large, COLUMNS
        inputs = self.normal(*shape), self.normal(*shape), self.normal(COLUMNS)
        out, expected = torch.empty_like(inputs[0]), layer(*inputs)

        def right(result: Tensor) -> bool:
            return bool((result - expected).abs().max() <= 4e-6)

        def config(block: int, warps: int) -> Way:
            run = Launch(partial(generated_kernel.launch, *inputs, out, block, warps), out)
            labels = {"name": "fused", "XBLOCK": block, "num_warps": warps, "elements_a_lane": block // LANES // warps}
            return Way(labels | {"bytes": moved(out, inputs[2])}, [run], right, run.code)

        ways = [config(*chosen) for chosen in self.sizes.sweep]
        self.compare("sweep", [*ways, self.copied(3 * out.nbytes, part="sweep", name="copy")], rows=shape[0])

    @torch.no_grad()
    def operators(self) -> None:
        shape = self.sizes.large, COLUMNS
        x, y, bias = self.normal(*shape), self.normal(*shape), self.normal(COLUMNS)
        calls = {  # and how many tensors of x's size each moves; the bias is next to nothing
            "0.5 * y": (lambda: 0.5 * y, 2), "x + y": (lambda: x + y, 3), "x + bias": (lambda: x + bias, 2),
            "sigmoid": (x.sigmoid, 2),
        }
        ways = []
        for name, (call, tensors) in calls.items():
            ways.append(Way({"name": name, "bytes": tensors * x.nbytes}, [call], partial(torch.equal, call())))
        self.compare("operators", ways, captured=False, rows=self.sizes.large)

    @torch.no_grad()
    def mix(self) -> None:
        count = self.sizes.large * COLUMNS * 3  # elements that each reads and writes together
        ones = torch.ones(count, device=self.device)
        half, third = ones[: count // 2], ones[: count // 3]
        out = torch.empty(count, device=self.device)
        out2, out3 = out[: count // 2], out[: count // 3]
        sums_to_count = lambda total: bool((total / count - 1).abs() < 1e-3)  # noqa: E731
        calls = {
            (1, 0): (lambda: ones.sum().reshape(1), sums_to_count),
            (2, 1): (lambda: torch.add(third, ones[-third.numel():], out=out3), lambda sums: bool((sums == 2).all())),
            (1, 1): (lambda: out2.copy_(half), lambda same: bool((same == 1).all())),
            (0, 1): (lambda: out.fill_(3.0), lambda same: bool((same == 3).all())),
        }
        ways = [Way({"reads": of[0], "writes": of[1]}, [call], right) for of, (call, right) in calls.items()]
        self.compare("mix", ways, bytes=ones.nbytes)

    @torch.no_grad()
    def size(self, rows: int, variants: Sequence[str]) -> None:
        ways = []
        for variant in variants:
            with self.caught("candidate", variant=variant, rows=rows):
                ways += self.ways(variant, rows)
        self.compare("candidate", ways, captured=False)

    def ways(self, variant: str, rows: int) -> list[Way]:
        """The variant's candidates and, if it is `literal`, the others that are compared with them."""
        shape = VARIANTS[variant].shape(rows)
        inputs = self.normal(*shape), self.normal(*shape), self.normal(shape[1])
        x, _, bias = inputs
        expected = layer(*inputs)
        generated = (compile_here if self.gpu else lower_here)(variant, *inputs)
        self.extra.setdefault("sources", {}).setdefault(variant, generated.module)
        out = next(tensor for tensor in generated.arguments if isinstance(tensor, Tensor) and none_of(tensor, *inputs))
        size = {"variant": variant, "rows": x.shape[0], "columns": x.shape[1], "bytes": moved(x, bias)}

        def right(result: Tensor) -> bool:
            return bool((result - expected).abs().max() <= 4e-6)

        def candidate(number: int, aligned: bool, **labels) -> Way:
            blocks, warps, stages, own = generated.candidates[number]
            kept = number == (generated.kept or 0)
            run = Launch(launch(generated, number, aligned), out)
            if self.gpu is None:
                run()  # the interpreter reads a kernel's text at its first run, and the next variant has its name
            labels = size | blocks | {"num_warps": warps, "kept": kept} | labels
            if aligned:
                labels |= {"num_stages": stages, "inductor_us": own}
                labels |= {"inductor_registers": generated.registers if kept else None}
            return Way(labels, [run], right, lambda: self.code(run, generated, number, aligned, variant, kept))

        numbers = range(len(generated.candidates))
        ways = [candidate(number, True) for number in numbers]
        if generated.compiled:
            ways.append(Way({"part": "torch.compile", **size}, [partial(generated.compiled, *inputs)], right))
        if variant == "literal":
            ways += [candidate(number, False, part="scalar") for number in numbers]
            eager = {"part": "eager", **size, "bytes": 9 * x.nbytes + bias.nbytes}
            ways.append(Way(eager, [partial(layer, *inputs)], right))
            ways.append(self.copied(3 * x.nbytes, rows=x.shape[0], columns=x.shape[1]))
        return ways

    def code(self, run: Launch, generated: Generated, number: int, aligned: bool, variant: str, kept: bool) -> dict:
        """What a candidate is compiled to."""
        if self.gpu:
            ptx, cubin = run.compiled.asm["ptx"], run.compiled.asm["cubin"]
            counts = run.code()
        else:
            compiled = without_gpu(generated.source, aligned)[number]
            ptx, cubin, counts = compiled.ptx, compiled.cubin, {"registers": compiled.registers, "spills": 0}
        instructions = sass(cubin)
        if variant == "literal" and aligned and kept:
            self.extra.setdefault("ptx", ptx)
            self.extra.setdefault("sass", instructions)
        return counts | {
            "accesses": accesses(ptx), "instructions": len(instructions) if instructions else None,
            "opcodes": opcodes(instructions) if instructions else None,
        }


@functools.cache
def without_gpu(source: str, aligned: bool) -> list:
    """A kernel's candidates, compiled in another process."""
    return compile_candidates(source, aligned=aligned)


def none_of(tensor: Tensor, *others: Tensor) -> bool:
    return all(tensor.data_ptr() != other.data_ptr() for other in others)


def moved(x: Tensor, bias: Tensor) -> int:
    """Bytes that the fused kernel moves: x and y read, out written, and bias."""
    return 3 * x.nbytes + bias.nbytes


def launch(generated: Generated, number: int, aligned: bool = True) -> Callable[[], Any]:
    """One of the candidates, launched by Triton: on a GPU it is compiled as Inductor compiles it."""
    blocks, warps, stages, _ = generated.candidates[number]
    grid = (-(-generated.arguments[-1] // blocks["XBLOCK"]),)
    kernel = jit(generated.source, aligned_arguments(generated.source) if aligned else ())[grid]
    options = blocks | {"num_warps": warps, "num_stages": stages}
    return lambda: kernel(*generated.arguments, **options)


main = Candidates.main
