"""From a function to the modules that Inductor writes for it.

On a GPU they come from the real compilation. Without one, Dynamo traces the function here, on the CPU, and the graph
goes to a second process that believes it has a GPU (fake_gpu.py), where Inductor lowers it. Two things differ there.
Inductor times kernels on a GPU to decide whether to pad a matrix; here it pads none. Autograd runs on the meta device,
which chooses another implementation of attention than a GPU does.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from .. import runtime
from . import fake_gpu
from .fx_graphs import NO_AUTOCAST, TensorLike


def triton_source(
    fn: Callable,
    *example_inputs: Any,
    backward: bool = False,
    arch: int = 90,
    options: Mapping[str, Any] | None = None,
) -> list[str]:
    """The modules that Inductor writes for fn(*example_inputs), one a graph: the forwards in order, then the backwards.

    fn, a function or nn.Module, runs once, a module as a copy. On a GPU it and the inputs are moved there, compiled and
    run, backward too. Elsewhere arch names the fake GPU, 75, 80 or 90, and fn runs on the inputs as they are: Python
    code in it that asks for the device finds the CPU, and what it writes to an input is written.

    options: of torch._inductor.config, by name, as torch.compile takes them.

    Raises:
        ValueError: arch; backward, if neither an input nor a parameter of fn requires a gradient; an option that this
            version of torch lacks. RuntimeError: from Inductor, or for a version of torch whose private interfaces
            differ. NotImplementedError: what is not lowered without a GPU: torch.autocast, torch.tensor on a device, a
            function made within another. What Dynamo raises of fn.
    """
    if arch not in fake_gpu.ARCHITECTURES:
        raise ValueError(f"arch: expected one of {', '.join(map(str, fake_gpu.ARCHITECTURES))}, got {arch!r}")
    leaves = [*tree_leaves(example_inputs), *(fn.parameters() if isinstance(fn, nn.Module) else ())]
    if backward and not any(isinstance(leaf, Tensor) and leaf.requires_grad for leaf in leaves):
        raise ValueError("backward: neither an input nor a parameter of fn, an nn.Module, requires a gradient")
    options = dict(options or {})
    if unknown := [name for name in options if not has_option(name)]:
        raise ValueError(f"options: Inductor of torch {torch.__version__} has no {', '.join(unknown)}")
    if runtime.device().type == "cuda":
        sources = _compile_on_gpu(fn, example_inputs, backward, options)
    else:
        fake_gpu.process(arch)  # starts, while this one traces
        fn = copy.deepcopy(fn) if isinstance(fn, nn.Module) else fn
        graphs = trace(fn, *example_inputs, backward=backward)
        lowered = [fake_gpu.ask(lower, *graph, backward, options, arch=arch) for graph in graphs]
        ordered = [*(graph[:1] for graph in lowered), *(graph[1:] for graph in reversed(lowered))]
        sources = [source for graph in ordered for source in graph]
    return [without_paths(source) for source in sources]


def without_paths(source: str) -> str:
    """Without the comments that name files, whose paths hold the user's name, and the number of the compilation."""
    return re.sub(r"^[ \t]*#(?: kernel path:| AOT ID:|.*[\s\"'(]/\w[\w.~-]*/).*\n", "", source, flags=re.MULTILINE)


def has_option(name: str) -> bool:
    """Whether Inductor, in this version of torch, has this option."""
    from torch._inductor import config

    return name in config.get_config_copy()


def together() -> dict[str, dict[str, int]]:
    """The settings with which Inductor writes many tables' look-ups in few kernels: the name of each → its options.

    By default it writes one kernel for up to 8 tables, and a kernel a table beyond them. combo_kernels puts kernels
    that need nothing of each other into one, up to eight of them. torch 2.11 has no option for the limit itself.
    """
    settings = {"combo_kernels": {"combo_kernels": True}}
    limits = "max_pointwise_cat_inputs", "max_complex_pointwise_cat_inputs"
    if all(map(has_option, limits)):
        settings["32 look-ups a kernel"] = dict.fromkeys(limits, 32)
    return settings


def trace(fn: Callable, *inputs: Any, backward: bool = False) -> list[tuple[torch.fx.GraphModule, list[Any]]]:
    """Dynamo's graphs of fn(*inputs), each with the parameters, tensors and numbers that it was called with."""
    if torch.is_autocast_enabled("cuda") or torch.is_autocast_enabled("cpu"):
        raise NotImplementedError(NO_AUTOCAST)
    graphs = []

    def backend(graph, arguments):
        # A size that Dynamo leaves open, because its tensor was marked so, goes on as a number.
        numbers = [value.node.hint if isinstance(value, torch.SymInt) else value for value in arguments]
        graphs.append((graph, numbers))
        return graph.forward

    with torch.set_grad_enabled(backward):
        torch.compile(fresh(fn), backend=backend, dynamic=False)(*inputs)
    return graphs


def fresh(fn: Callable) -> Callable:
    """fn within code of its own, of which Dynamo remembers nothing."""

    def call(*inputs):
        return fn(*inputs)

    call.__code__ = call.__code__.replace()
    return call


def open_dimensions(leaf: Any) -> set[int]:
    """The dimensions that torch._dynamo.mark_dynamic has marked."""
    return getattr(leaf, "_dynamo_dynamic_indices", set())


@contextmanager
def written() -> Iterator[list[str]]:
    """The modules that Inductor writes within it, as they come; its caches of graphs, which would spare it that, are
    left alone."""
    from torch._functorch import config as functorch
    from torch._inductor import config
    from torch._inductor.graph import GraphLowering

    sources: list[str] = []
    with (
        mock.patch.object(GraphLowering, "save_output_code", sources.append),
        config.patch(fx_graph_cache=False),
        functorch.patch(enable_autograd_cache=False),
    ):
        yield sources


def _compile_on_gpu(fn: Callable, inputs: Any, backward: bool, options: dict[str, Any]) -> list[str]:
    from torch._inductor import config

    def moved(leaf):
        if not isinstance(leaf, Tensor):
            return leaf
        on_gpu = leaf.detach().to("cuda").requires_grad_(leaf.requires_grad)
        for dimension in open_dimensions(leaf):
            torch._dynamo.mark_dynamic(on_gpu, dimension)
        return on_gpu

    inputs = tree_map(moved, inputs)
    leaves = [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor)]
    if isinstance(fn, nn.Module):
        fn = copy.deepcopy(fn).to("cuda")
        leaves += fn.parameters()
    with written() as sources, config.patch(options), torch.set_grad_enabled(backward):
        # Sizes that differ from an earlier call's stay constants: only what is marked is open.
        outputs = tree_leaves(torch.compile(fresh(fn), dynamic=False)(*inputs))
        if backward:
            outputs = [output for output in outputs if isinstance(output, Tensor) and output.requires_grad]
            wanted = [leaf for leaf in leaves if leaf.requires_grad]
            torch.autograd.grad(outputs, wanted, [torch.ones_like(output) for output in outputs], allow_unused=True)
    return sources


def lower(graph: torch.fx.GraphModule, inputs: list[Any], backward: bool, options: dict[str, Any]) -> list[str]:
    """In the second process: the source of the graph's forward and, if asked for, of its backward."""
    inductor = fake_gpu.private(
        "torch._inductor.compile_fx", "compile_fx", "compile_fx_inner", "_recursive_joint_graph_passes"
    )
    lowering = fake_gpu.private("torch._inductor.graph", "GraphLowering").GraphLowering
    config, functorch = (fake_gpu.private(f"torch.{name}.config", "patch") for name in ("_inductor", "_functorch"))
    joint_passes, sources = inductor._recursive_joint_graph_passes, []
    cpu, gpu = torch.device("cpu"), torch.device("cuda", 0)
    mode = torch._subclasses.FakeTensorMode(shape_env=torch.fx.experimental.symbolic_shapes.ShapeEnv())

    def on_gpu(value):
        if isinstance(value, Tensor) and value.device.type == "meta":
            with mode:
                return TensorLike(value.shape, value.stride(), value.dtype).on("cuda:0")
        return value

    def with_device(device, *trees):
        return tree_map(lambda value: device if isinstance(value, torch.device) else value, trees)

    def passes(module, *arguments, **keywords):
        # The graph is traced: it moves to the GPU now. Constants stay on the CPU, since these passes fold them, which
        # means that they compute them.
        for node in module.graph.nodes:
            if "val" in node.meta:
                node.meta["val"] = tree_map(on_gpu, node.meta["val"])
            random = torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
            node.args, node.kwargs = with_device(gpu if random else cpu, node.args, node.kwargs)
        arguments, keywords = with_device(gpu, arguments, keywords)
        return joint_passes(module, *arguments, **keywords)

    class Written(BaseException):
        pass

    def written(source):
        sources.append(source)
        raise Written  # it is not to be loaded

    def compile_inner(module, inputs, **keywords):
        for node in module.graph.nodes:
            if getattr(node.meta.get("val"), "device", cpu).type == "cuda":
                node.args, node.kwargs = with_device(gpu, node.args, node.kwargs)
        with suppress(Written):
            inductor.compile_fx_inner(module, [on_gpu(value) for value in inputs], **keywords)
        return inductor.make_boxed_func(module.forward)  # never called

    inputs = _symbolic(mode, inputs)
    with (
        mock.patch.object(inductor, "_recursive_joint_graph_passes", passes),
        mock.patch.object(lowering, "save_output_code", written),
        config.patch(options | {"fx_graph_cache": False, "shape_padding": False}),
        functorch.patch(enable_autograd_cache=False, force_non_lazy_backward_lowering=True),
        torch.set_grad_enabled(backward),
    ):
        inductor.compile_fx(graph, inputs, inner_compile=compile_inner)
    return sources


def _symbolic(mode: Any, inputs: list[Any]) -> list[Any]:
    """Tensors of the meta device. A number among the inputs is a size that Dynamo left open: each dimension of this
    size is the same unknown in all tensors."""
    from torch._dynamo.source import ConstantSource
    from torch.fx.experimental.symbolic_shapes import DimDynamic

    environment, open_sizes = mode.shape_env, {}
    for n, value in enumerate(inputs):
        if isinstance(value, int):
            source = ConstantSource(f"size_{n}")
            symbol = environment.create_symbol(value, source, dynamic_dim=DimDynamic.DYNAMIC)
            open_sizes[value] = environment.create_symintnode(symbol, hint=value, source=source)

    def made(value):
        if isinstance(value, TensorLike):
            shape = tuple(open_sizes.get(size, size) for size in value.shape)
            stride = tuple(open_sizes.get(step, step) for step in value.stride)
            return TensorLike(shape, stride, value.dtype, value.requires_grad).on("meta")
        return open_sizes.get(value, value) if isinstance(value, int) else value

    with mode:
        return [made(value) for value in inputs]
