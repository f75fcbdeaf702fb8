"""What the notebook says in µs: `python -m lessons.n07_read_the_generated_triton --save`, on a GPU.

    candidate  each configuration that Inductor tries, of each variant (what it knows of the sizes): its time, whether
               Inductor kept it, what it compiles to
    scalar     those of `literal` and of the odd size, compiled as if nothing were known to be a multiple of 16: then
               neighbouring lanes read neighbouring elements, also under a mask
    torch.compile  each variant's compiled function itself: what it launches is the kept candidate
    eager      the same by PyTorch's operators, one launch each
    copy       PyTorch's copy of as many bytes as the fused kernel moves

All was measured by turns. Beside the rows stands each variant's source as this torch wrote it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
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
from kernels.inductor.machine_code import accesses, sass
from kernels.inductor.parse import function_of, metadata
from lessons.n07_read_the_generated_triton.layer_variants import VARIANTS, layer
from lessons.shared.experiment import Experiment, Launch, Way


@dataclass(frozen=True)
class Sizes:
    """rows, and which variants are measured with so many."""

    rows: int = 65536
    variants: tuple[str, ...] = tuple(VARIANTS)


@dataclass
class Generated:
    """What torch.compile made of one variant. candidates: (blocks, warps, stages), kept: which."""

    module: str
    arguments: tuple = ()
    candidates: list[tuple[dict[str, int], int, int]] = field(default_factory=list)
    kept: int | None = None
    compiled: Callable | None = None

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
    modules, seen, tried = [], [], {}
    run, benchmark = tuner.run, tuner.benchmark_all_configs

    def watched_run(self, *arguments, **named):
        seen.append((self, arguments))
        return run(self, *arguments, **named)

    def watched_benchmark(self, *arguments, **named):
        timings = benchmark(self, *arguments, **named)
        tried.update(dict.fromkeys(key(launcher.config) for launcher in timings))
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
    configs = list(tried) or [key(launcher.config)]
    candidates = [(dict(blocks), warps, stages) for blocks, warps, stages in configs]
    return Generated(without_paths(module), arguments, candidates, configs.index(key(launcher.config)), compiled)


def key(config: Any) -> tuple[tuple, int, int]:
    return tuple(config.kwargs.items()), config.num_warps, config.num_stages


def lower_here(variant: str, x: Tensor, y: Tensor, bias: Tensor) -> Generated:
    """The same without a GPU: nothing is timed, and none is kept."""
    VARIANTS[variant].mark(x, y, bias)
    (module,) = triton_source(layer, x, y, bias)
    generated = Generated(module)
    generated.candidates = [
        (compiled.blocks, compiled.num_warps, compiled.num_stages)
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
    """What generated.json has. sources: each variant's."""

    NAME = "generated"
    PARTS = ("candidates",)
    FULL = Sizes()
    SMALL = Sizes(4, ("literal", "columns open"))

    @torch.no_grad()
    def candidates(self) -> None:
        ways = []
        for variant in self.sizes.variants:
            with self.caught("candidate", variant=variant, rows=self.sizes.rows):
                ways += self.ways(variant)
        self.compare("candidate", ways, captured=False)

    def ways(self, variant: str) -> list[Way]:
        """The variant's candidates and, if it is `literal`, the others that are compared with them."""
        shape = VARIANTS[variant].shape(self.sizes.rows)
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
            blocks, warps, _ = generated.candidates[number]
            kept = number == (generated.kept or 0)
            run = Launch(launch(generated, number, aligned), out)
            if self.gpu is None:
                run()  # the interpreter reads a kernel's text at its first run, and the next variant has its name
            labels = size | blocks | {"num_warps": warps, "kept": kept} | labels
            return Way(labels, [run], right, lambda: self.code(run, generated, number, aligned))

        numbers = range(len(generated.candidates))
        ways = [candidate(number, True) for number in numbers]
        if generated.compiled:
            ways.append(Way({"part": "torch.compile", **size}, [partial(generated.compiled, *inputs)], right))
        if variant in ("literal", "an odd size"):
            ways += [candidate(number, False, part="scalar") for number in numbers]
        if variant == "literal":
            eager = {"part": "eager", **size, "bytes": 9 * x.nbytes + bias.nbytes}
            ways.append(Way(eager, [partial(layer, *inputs)], right))
            ways.append(self.copied(3 * x.nbytes, rows=x.shape[0], columns=x.shape[1]))
        return ways

    def code(self, run: Launch, generated: Generated, number: int, aligned: bool) -> dict:
        """What a candidate is compiled to."""
        if self.gpu:
            ptx, cubin = run.compiled.asm["ptx"], run.compiled.asm["cubin"]
        else:
            compiled = without_gpu(generated.source, aligned)[number]
            ptx, cubin = compiled.ptx, compiled.cubin
        instructions = sass(cubin)
        return {"accesses": accesses(ptx), "instructions": len(instructions) if instructions else None}


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
    blocks, warps, stages = generated.candidates[number]
    grid = (-(-generated.arguments[-1] // blocks["XBLOCK"]),)
    kernel = jit(generated.source, aligned_arguments(generated.source) if aligned else ())[grid]
    options = blocks | {"num_warps": warps, "num_stages": stages}
    return lambda: kernel(*generated.arguments, **options)


main = Candidates.main
