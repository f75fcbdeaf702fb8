"""The Triton code that torch.compile writes for a function: to read, to count, to compile and to run without a GPU.

    source, = triton_source(f, x)                    # on a GPU from the real compilation, else for a fake GPU
    kernel, = split(source)                          # its kind, what was fused into it, its launches, its source
    compile_kernel(kernel.source, arch=90).ptx       # and .cubin
    run_kernel(kernel.source, x, out, x.numel())     # in Triton's interpreter, where there is no GPU

Without a GPU, Dynamo traces the function here, on the CPU, and the graph goes to a second process that believes it has
a GPU, where Inductor lowers it. What that takes is replaced there and only there. The process stays, since starting it
takes seconds, and ends when this one does. What Inductor decides by timing kernels it decides without, so it pads no
matrix; autograd runs on the meta device, so attention is not the GPU's own. Written for the private interfaces of torch
2.11 and 2.13.

`python -m kernels.inductor --out FOLDER` writes what is generated for the two pointwise ops.
"""

from __future__ import annotations

import argparse
import ast
import copy
import functools
import importlib
import io
import linecache
import multiprocessing
import os
import pickle
import re
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import zip_longest
from pathlib import Path
from types import FunctionType, ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from kernels import runtime

if TYPE_CHECKING:
    import pandas

# What Inductor asks of a GPU: multiprocessors, threads on each, KiB of shared memory a block; T4, A100, H100 and H200.
ARCHITECTURES = {75: (40, 1024, 64), 80: (108, 2048, 163), 90: (132, 2048, 227)}
KINDS = {"poi": "pointwise", "red": "reduction", "per": "persistent reduction", "tem": "template"}
MODULE = "\n\n# ---- a module of its own ----\n\n"
NO_AUTOCAST = "torch.autocast: without a GPU, cast the module and its inputs instead"
GEMMS = {"mm", "addmm", "bmm", "baddbmm"}


@dataclass(frozen=True)
class Kernel:
    """A kernel of a generated module: its own source ('' if it is a library's) and how often `call` launches it.

    kind: pointwise | reduction | persistent reduction | template | extern GEMM | extern.
    fused: the ATen operators that it computes, "aten.add", say.
    """

    name: str
    kind: str
    fused: tuple[str, ...]
    launches: int
    source: str


@dataclass(frozen=True)
class Compiled:
    """A kernel compiled in the first of the configurations that Inductor would try."""

    name: str
    arch: int
    blocks: dict[str, int]
    num_warps: int
    ptx: str
    cubin: bytes


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
    if arch not in ARCHITECTURES:
        raise ValueError(f"arch: expected one of {', '.join(map(str, ARCHITECTURES))}, got {arch!r}")
    leaves = [*tree_leaves(example_inputs), *(fn.parameters() if isinstance(fn, nn.Module) else ())]
    if backward and not any(isinstance(leaf, Tensor) and leaf.requires_grad for leaf in leaves):
        raise ValueError("backward: neither an input nor a parameter of fn, an nn.Module, requires a gradient")
    options = dict(options or {})
    if unknown := [name for name in options if not has_option(name)]:
        raise ValueError(f"options: Inductor of torch {torch.__version__} has no {', '.join(unknown)}")
    if runtime.device().type == "cuda":
        sources = _compile_on_gpu(fn, example_inputs, backward, options)
    else:
        _process(arch)  # starts, while this one traces
        fn = copy.deepcopy(fn) if isinstance(fn, nn.Module) else fn
        graphs = trace(fn, *example_inputs, backward=backward)
        lowered = [_ask(_lower, *graph, backward, options, arch=arch) for graph in graphs]
        ordered = [*(graph[:1] for graph in lowered), *(graph[1:] for graph in reversed(lowered))]
        sources = [source for graph in ordered for source in graph]
    # Without the comments that name files, whose paths hold the user's name, and the number of the compilation.
    path = re.compile(r"^[ \t]*#(?: kernel path:| AOT ID:|.*[\s\"'(]/\w[\w.~-]*/).*\n", re.MULTILINE)
    return [path.sub("", source) for source in sources]


def has_option(name: str) -> bool:
    """Whether Inductor, in this version of torch, has this option."""
    from torch._inductor import config

    return name in config.get_config_copy()


def split(source: str) -> list[Kernel]:
    """The kernels of one generated module: Triton's in order, then those of libraries."""
    lines, module = source.splitlines(), ast.parse(source)
    calls = [node for node in ast.walk(module) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    launches = Counter(ast.unparse(call.func.value) for call in calls if call.func.attr == "run")
    kernels, library = [], {}
    for node in module.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.value).startswith("async_compile.triton("):
            name, text = (argument.value for argument in node.value.args)
            kernels.append(Kernel(name, _kind(name), _fused(lines, node.lineno), launches[name], text))
    for call in sorted(calls, key=lambda call: call.lineno):
        if (name := ast.unparse(call.func)).startswith(("extern_kernels.", "torch.ops.", "aten.")):
            library.setdefault(name, []).append(_fused(lines, call.lineno))
    for name, fused in library.items():
        kind = "extern GEMM" if name.rpartition(".")[2] in GEMMS else "extern"
        kernels.append(Kernel(name, kind, tuple(dict.fromkeys(sum(fused, ()))), len(fused), ""))
    return kernels


def _kind(name: str) -> str:
    short = name.removeprefix("triton_").partition("_")[0]
    return KINDS.get(short, short)


def _fused(lines: list[str], lineno: int) -> tuple[str, ...]:
    """The ATen operators that the comment above line `lineno` names."""
    for line in reversed(lines[: lineno - 1]):
        if found := re.search(r"# Topologically Sorted .*Original ATen: \[(.+)\]", line):
            return tuple(found[1].split(", "))
        if line.strip() and not line.lstrip().startswith("#"):
            break
    return ()


def count(sources: Sequence[str]) -> dict[str, int]:
    """{kind: launches} of one call of each module."""
    found = Counter()
    for kernel in (kernel for source in sources for kernel in split(source)):
        found[kernel.kind] += kernel.launches
    return dict(found)


def table(sources: Sequence[str]) -> pandas.DataFrame:
    """A row for each kernel: graph (the module's index), kernel, kind, launches, fused."""
    import pandas

    found = [(graph, kernel) for graph, source in enumerate(sources) for kernel in split(source)]
    rows = [(graph, k.name, k.kind, k.launches, " ".join(k.fused)) for graph, k in found]
    return pandas.DataFrame(rows, columns=["graph", "kernel", "kind", "launches", "fused"])


def compile_kernel(source: str, arch: int = 90) -> Compiled:
    """PTX and cubin of one kernel's source (`Kernel.source`) for sm_<arch>, without a GPU. Raises Triton's errors."""
    return _ask(_compile, source, arch)


# ------------------------------------------------------------------------------------------------------------------
# Running a kernel.


def run_kernel(source: str, *arguments: Tensor | int) -> None:
    """Run one pointwise kernel on what `call` gives it: tensors, then numbers of elements. On a GPU it is compiled.

    CPU tensors run in Triton's interpreter. It has no libdevice, whose place STAND_INS take, and rounds to halves in
    its own way, so it gets none.

    As on a GPU, a tensor with fewer elements than the kernel writes is written beyond its end.

    Raises:
        TypeError: the arguments' number or types. NotImplementedError: naming the kernel and what does not run: its
            kind, a dtype, its grid, a function of libdevice, what else Triton's interpreter lacks. RuntimeError: that
            is off.
    """
    function = _function(source)
    if (kind := _kind(function.name)) != "pointwise":
        raise NotImplementedError(f"{function.name}: expected a pointwise kernel, got a {kind}")
    expected = [kind for kind in _metadata(function, "triton_meta", "signature").values() if kind != "constexpr"]
    if halves := {"*fp16", "*bf16"}.intersection(expected):
        raise NotImplementedError(f"{function.name}: expected no halves, got {', '.join(sorted(halves))}")
    if (found := [_kind_of(argument, kind) for argument, kind in zip_longest(arguments, expected)]) != expected:
        raise TypeError(f"{function.name}: expected {', '.join(expected)}; got {', '.join(filter(None, found))}")
    _run(source, *arguments)


def _kind_of(argument: Tensor | int | None, expected: str | None) -> str:
    """The type of a kernel's argument as Triton's signatures have it; '' for none."""
    if isinstance(argument, Tensor):
        return _private("torch._inductor.utils", "_type_of")._type_of(argument.dtype)
    if isinstance(argument, int) and expected in ("i32", "i64"):
        return expected
    return "" if argument is None else type(argument).__name__


def _run(source: str, *arguments: Tensor | int) -> None:
    import triton
    from triton.runtime.errors import InterpreterError

    function = _function(source)
    if reason := runtime.why_not("triton", arguments[0].device.type):
        raise RuntimeError(f"{function.name} does not run here: {reason}")
    grid = _metadata(function, "inductor_meta", "grid_type")
    if grid not in ("Grid1D", "Grid2D"):
        raise NotImplementedError(f"{function.name}: expected a Grid1D or Grid2D, got a {grid}")
    names = [argument.arg for argument in function.args.args]
    numbers = dict(zip(names, arguments, strict=False))
    # Inductor leaves out a mask where its largest block divides the number of elements; these are no larger. The
    # interpreter's time goes by the program.
    plain = grid == "Grid1D" and _kind(function.name) == "pointwise"
    sizes = {"XBLOCK": 2048 if plain else 32, "YBLOCK": 32, "R0_BLOCK": 32}
    blocks = {name: size for name, size in sizes.items() if name in names}
    programs = (
        triton.cdiv(numbers[f"{axis}numel"], blocks.get(f"{axis.upper()}BLOCK", 1)) for axis in "xy"[: int(grid[4])]
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the interpreter's NumPy, of every Inf and NaN
        try:
            _jit(source)[tuple(programs)](*arguments, **blocks)
        except InterpreterError as error:
            raise NotImplementedError(f"{function.name}: Triton's interpreter: {error}") from error


@functools.cache
def _jit(source: str) -> Any:
    """The kernel without Inductor's decorator, with stand-ins if it is to be interpreted."""
    import triton
    import triton.language as tl
    from torch._inductor.runtime import triton_helpers as helpers

    function = _function(source)
    libraries = {"libdevice": helpers.libdevice, "tl_math": helpers.math}
    if runtime.triton_mode() == "interpreted":
        attributes = (node for node in ast.walk(function) if isinstance(node, ast.Attribute))
        called = {node.attr for node in attributes if ast.unparse(node.value) in libraries}
        if missing := sorted(called - STAND_INS.keys()):
            raise NotImplementedError(f"{function.name}: no stand-in for libdevice's {', '.join(missing)}")
        libraries = dict.fromkeys(libraries, SimpleNamespace(**STAND_INS))
    function.decorator_list = [ast.Name("jit", ast.Load())]
    text = ast.unparse(function)
    if runtime.triton_mode() == "interpreted":
        # Else the interpreter makes a tensor of the literal, which, in triton 3.6, ends no loop.
        text = re.sub(r"^( +r0_numel) = (\d+)$", r"\1: tl.constexpr = \2", text, flags=re.MULTILINE)
    namespace = {"jit": triton.jit, "tl": tl, "triton_helpers": helpers, **libraries}
    return _execute(text, function.name, namespace)


def _execute(text: str, name: str, namespace: dict[str, Any]) -> Any:
    """What the text, of which Triton asks inspect for the source, defines under this name."""
    file = f"<{name}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    exec(compile(text, file, "exec"), namespace)
    return namespace[name]


def _function(source: str) -> ast.FunctionDef:
    (function,) = (node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef))
    return function


def _metadata(function: ast.FunctionDef, dictionary: str, key: str) -> Any:
    """An entry of one of the dictionaries that Inductor's decorator takes."""
    (decorator,) = (node for node in function.decorator_list if isinstance(node, ast.Call))
    (entries,) = (keyword.value for keyword in decorator.keywords if keyword.arg == dictionary)
    return next(ast.literal_eval(v) for k, v in zip(entries.keys, entries.values, strict=True) if k.value == key)


def _of_triton(name: str) -> Callable:
    def stand_in(*arguments):
        import triton.language as tl

        return getattr(tl, name)(*arguments)  # looked up now: while a kernel runs the interpreter replaces it

    return stand_in


def _signbit(x):
    import triton.language as tl

    return x.to(tl.core.get_int_dtype(x.dtype.primitive_bitwidth, signed=True), bitcast=True) < 0


# libdevice's functions in terms that the interpreter knows; error 1e-7, absolute for the last three.
_SAME = ("abs", "ceil", "cos", "erf", "exp", "exp2", "floor", "log", "log2", "rsqrt", "sin", "sqrt")
STAND_INS: dict[str, Callable] = {name: _of_triton(name) for name in _SAME}
STAND_INS["signbit"] = _signbit
STAND_INS["isnan"] = lambda x: x != x
STAND_INS["tanh"] = lambda x: 1.0 - 2.0 / (STAND_INS["exp"](2.0 * x) + 1.0)
STAND_INS["expm1"] = lambda x: STAND_INS["exp"](x) - 1.0
STAND_INS["log1p"] = lambda x: STAND_INS["log"](x + 1.0)


# ------------------------------------------------------------------------------------------------------------------
# Tracing on the CPU, compiling on a GPU.


def trace(fn: Callable, *inputs: Any, backward: bool = False) -> list[tuple[torch.fx.GraphModule, list[Any]]]:
    """Dynamo's graphs of fn(*inputs), each with the parameters, tensors and numbers that it was called with."""
    if torch.is_autocast_enabled("cuda") or torch.is_autocast_enabled("cpu"):
        raise NotImplementedError(NO_AUTOCAST)
    graphs = []

    def backend(graph, arguments):
        graphs.append((graph, list(arguments)))
        return graph.forward

    with torch.set_grad_enabled(backward):
        torch.compile(_fresh(fn), backend=backend, dynamic=False)(*inputs)
    return graphs


def _fresh(fn: Callable) -> Callable:
    """fn within code of its own, of which Dynamo remembers nothing."""

    def call(*inputs):
        return fn(*inputs)

    call.__code__ = call.__code__.replace()
    return call


def _compile_on_gpu(fn: Callable, inputs: Any, backward: bool, options: dict[str, Any]) -> list[str]:
    from torch._functorch import config as functorch
    from torch._inductor import config
    from torch._inductor.graph import GraphLowering

    def moved(leaf):
        return leaf.detach().to("cuda").requires_grad_(leaf.requires_grad) if isinstance(leaf, Tensor) else leaf

    inputs, sources = tree_map(moved, inputs), []
    leaves = [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor)]
    if isinstance(fn, nn.Module):
        fn = copy.deepcopy(fn).to("cuda")
        leaves += fn.parameters()
    with (
        mock.patch.object(GraphLowering, "save_output_code", sources.append),
        config.patch(options | {"fx_graph_cache": False}),
        functorch.patch(enable_autograd_cache=False),
        torch.set_grad_enabled(backward),
    ):
        outputs = tree_leaves(torch.compile(_fresh(fn), dynamic=False)(*inputs))
        if backward:
            outputs = [output for output in outputs if isinstance(output, Tensor) and output.requires_grad]
            wanted = [leaf for leaf in leaves if leaf.requires_grad]
            torch.autograd.grad(outputs, wanted, [torch.ones_like(output) for output in outputs], allow_unused=True)
    return sources


# ------------------------------------------------------------------------------------------------------------------
# To the second process: a graph node by node (fx's own way traces it again, and loses what has no input), and of a
# tensor no values.


@dataclass(frozen=True)
class _Node:
    name: str


@dataclass(frozen=True)
class _TensorLike:
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool = False

    def on(self, device: str) -> Tensor:
        tensor = torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=device)
        return tensor.requires_grad_(self.requires_grad)


class _Pickler(pickle.Pickler):
    def reducer_override(self, value):
        if isinstance(value, torch.fx.GraphModule):
            return _put_together, _taken_apart(value)
        if isinstance(value, torch._ops.OpOverload):
            return _named, ("torch", "ops", *str(value).split("."))
        if isinstance(value, FunctionType) and "<locals>" in value.__qualname__:  # under which pickle looks for it
            if getattr(sys.modules[value.__module__], value.__name__, None) is not value:
                raise NotImplementedError(f"{value.__qualname__} in fn: without a GPU, define it at a module's top")
            return _named, (value.__module__, value.__name__)
        if isinstance(value, Tensor):
            return _TensorLike, (tuple(value.shape), value.stride(), value.dtype, value.requires_grad)
        return NotImplemented


def _named(module: str, *names: str) -> Any:
    return functools.reduce(getattr, names, importlib.import_module(module))


def _taken_apart(module: torch.fx.GraphModule) -> tuple:
    nodes, attributes = [], {}
    for node in module.graph.nodes:
        if node.target is torch.tensor and node.kwargs.get("device"):
            raise NotImplementedError("torch.tensor(…, device=…) in fn: without a GPU, make that tensor an input")
        if node.target is torch.amp.autocast_mode._enter_autocast:
            raise NotImplementedError(NO_AUTOCAST)
        arguments = torch.fx.node.map_arg((node.args, node.kwargs), lambda other: _Node(other.name))
        static = node.meta.get("tensor_dict", {}).get("_dynamo_static_input_type")
        nodes.append((node.op, node.name, node.target, *arguments, static))
        if node.op in ("get_attr", "call_module"):
            attributes[node.target] = functools.reduce(getattr, node.target.split("."), module)
    return nodes, attributes, {key: value for key, value in module.meta.items() if key.startswith("dynamo_")}


def _put_together(nodes: list[tuple], attributes: dict[str, Any], meta: dict[str, Any]) -> torch.fx.GraphModule:
    graph, made = torch.fx.Graph(), {}

    def argument(value):
        if isinstance(value, torch.device):  # autograd, through which the graph is traced, takes none that is not there
            return torch.device("meta")
        return made[value.name] if isinstance(value, _Node) else value

    for op, name, target, args, kwargs, static in nodes:
        args, kwargs = torch.fx.node.map_aggregate((args, kwargs), argument)
        made[name] = node = graph.create_node(op, target, args, kwargs, name)
        if op == "placeholder":  # from this AOTAutograd knows the parameters
            node._dynamo_source, node.meta["tensor_dict"] = None, {"_dynamo_static_input_type": static}
    module = torch.fx.GraphModule(attributes, graph)
    module.meta, module._param_name_to_source = meta, {}
    return module


def _ask(function: Callable, *arguments: Any, arch: int = 90) -> Any:
    """function(*arguments) in the process that believes it has a GPU of this architecture."""
    request = io.BytesIO()
    _Pickler(request).dump(arguments)
    try:
        return _process(arch).submit(_answer, arch, function, request.getvalue()).result()
    except (BrokenExecutor, KeyboardInterrupt):  # it is gone, or busy with what was interrupted
        _process.cache_clear()
        raise


@functools.cache
def _process(arch: int) -> ProcessPoolExecutor:
    pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
    # It needs nothing of the user's script, which it would run again.
    with mock.patch.dict(sys.modules, {"__main__": ModuleType("__main__")}):
        pool.submit(_become_gpu, arch)
    return pool


# ------------------------------------------------------------------------------------------------------------------
# In the second process.


def _answer(arch: int, function: Callable, request: bytes) -> Any:
    try:
        _become_gpu(arch)
        return function(*pickle.loads(request))
    except Exception as error:  # made anew, since not every exception can be sent
        raise RuntimeError(f"torch {torch.__version__}: {type(error).__name__}: {error}") from None


def _private(module: str, *names: str) -> Any:
    """A module of torch's. Raises RuntimeError if it lacks one of these names."""
    owner = importlib.import_module(module)
    for name in names:
        if functools.reduce(lambda value, part: getattr(value, part, None), name.split("."), owner) is None:
            versions = f"written for torch 2.11 and 2.13, this is {torch.__version__}"
            raise RuntimeError(f"{module} has no {name}: kernels/inductor_source.py is {versions}")
    return owner


def _end_with(parent: Any) -> None:
    parent.join()
    os._exit(0)


@functools.cache
def _become_gpu(arch: int) -> None:
    """Make this process believe for ever that it has a GPU."""
    os.environ.update(TRITON_INTERPRET="0", CUDA_VISIBLE_DEVICES="")
    threading.Thread(target=_end_with, args=(multiprocessing.parent_process(),), daemon=True).start()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # Inductor's advice to the GPU's owner
    warnings.filterwarnings("error", message=".*autograd kernel was not registered")  # its gradient would be left out
    joint_graph = _private("torch._inductor.fx_passes.joint_graph", "lazy_init")
    fake_tensor = _private("torch._subclasses.fake_tensor", "init_gpu_context", "FakeTensorMode.avoid_device_init")
    interface = _private("torch._dynamo.device_interface", "CudaInterface").CudaInterface
    helpers = _private("torch._inductor.runtime.triton_helpers", "set_driver_to_gpu")
    import triton
    from triton.backends.compiler import GPUTarget

    # The graph passes' patterns are traced, on a GPU if there is one; on the CPU they are the same.
    joint_graph.lazy_init()
    joint_graph.lazy_init = fake_tensor.init_gpu_context = helpers.set_driver_to_gpu = lambda *_, **__: None
    fake_tensor.FakeTensorMode.avoid_device_init = True
    # ~x and x[i], unlike these, ask the device for a guard, and so does copy_, for which there is nothing to do.
    Tensor.__invert__, getitem, copy_ = lambda x: torch.bitwise_not(x), Tensor.__getitem__, Tensor.copy_
    Tensor.__getitem__ = lambda x, i: torch.select(x, 0, i) if x.is_cuda and type(i) is int else getitem(x, i)
    Tensor.copy_ = lambda x, *source: x if x.is_cuda else copy_(x, *source)
    # On the meta device an operator made of others gets none of their gradients if it has a kernel of its own there.
    for name in torch._C._dispatch_get_all_op_names():
        name, _, overload = name.removeprefix("aten::").partition(".")
        operator = getattr(getattr(torch.ops.aten, name, None), overload or "default", None)
        if operator and operator._can_decompose() and operator.py_kernels.pop(torch._C.DispatchKey.Meta, None):
            operator._dispatch_cache.clear()

    multiprocessors, threads, shared = ARCHITECTURES[arch]
    capability = (arch // 10, arch % 10)
    properties = SimpleNamespace(
        name=f"fake sm_{arch}", major=capability[0], minor=capability[1], multi_processor_count=multiprocessors,
        max_threads_per_multi_processor=threads, max_threads_per_block=1024, warp_size=32, total_memory=80 << 30,
        regs_per_multiprocessor=65536, shared_memory_per_block=48 << 10, shared_memory_per_block_optin=shared << 10,
    )  # fmt: skip
    fakes = {
        "is_available": True, "device_count": 1, "current_device": 0, "get_device_properties": properties,
        "get_device_capability": capability, "get_device_name": properties.name, "is_bf16_supported": arch >= 80,
        "get_rng_state": torch.zeros(16, dtype=torch.uint8), "set_rng_state": None, "set_device": None,
        "synchronize": None, "_exchange_device": 0, "_maybe_exchange_device": 0, "_lazy_init": None,
    }  # fmt: skip
    for name, value in fakes.items():
        original, fake = getattr(torch.cuda, name), functools.partial(lambda value, *_, **__: value, value)
        for attribute, method in list(vars(interface).items()):  # which holds some of them already
            if isinstance(method, staticmethod) and method.__func__ is original:
                setattr(interface, attribute, staticmethod(fake))
        setattr(torch.cuda, name, fake)
    torch.version.cuda = torch.version.cuda or "13.0"
    target = GPUTarget("cuda", arch, 32)
    driver = {"get_current_target": target, "get_current_device": 0, "get_device_interface": torch.cuda}
    driver = {name: functools.partial(lambda value: value, value) for name, value in driver.items()}
    triton.runtime.driver.set_active(SimpleNamespace(**driver))


def _lower(graph: torch.fx.GraphModule, inputs: list[Any], backward: bool, options: dict[str, Any]) -> list[str]:
    """The source of the graph's forward and, if asked for, of its backward."""
    inductor = _private("torch._inductor.compile_fx", "compile_fx", "compile_fx_inner", "_recursive_joint_graph_passes")
    lowering = _private("torch._inductor.graph", "GraphLowering").GraphLowering
    config, functorch = (_private(f"torch.{name}.config", "patch") for name in ("_inductor", "_functorch"))
    joint_passes, sources = inductor._recursive_joint_graph_passes, []
    cpu, gpu = torch.device("cpu"), torch.device("cuda", 0)
    mode = torch._subclasses.FakeTensorMode(shape_env=torch.fx.experimental.symbolic_shapes.ShapeEnv())

    def on_gpu(value):
        if isinstance(value, Tensor) and value.device.type == "meta":
            with mode:
                return _TensorLike(value.shape, value.stride(), value.dtype).on("cuda:0")
        return value

    def with_device(device, *trees):
        return tree_map(lambda value: device if isinstance(value, torch.device) else value, trees)

    def passes(module, *arguments, **keywords):
        # Traced: to the GPU, but for what constants are made on: they are folded here, by computing them.
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

    with mode:
        inputs = [value.on("meta") if isinstance(value, _TensorLike) else value for value in inputs]
    with (
        mock.patch.object(inductor, "_recursive_joint_graph_passes", passes),
        mock.patch.object(lowering, "save_output_code", written),
        config.patch(options | {"fx_graph_cache": False, "shape_padding": False}),
        functorch.patch(enable_autograd_cache=False, force_non_lazy_backward_lowering=True),
        torch.set_grad_enabled(backward),
    ):
        inductor.compile_fx(graph, inputs, inner_compile=compile_inner)
    return sources


def _compile(source: str, arch: int) -> Compiled:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    name = _function(source).name
    tuner = _execute(source, name, {"__file__": f"<{name}>", "__name__": name})
    config, meta = tuner.configs[0], tuner.triton_meta
    compiled = triton.compile(
        ASTSource(tuner.fn, meta["signature"], {**meta["constants"], **config.kwargs}, meta["configs"][0]),
        target=GPUTarget("cuda", arch, 32),
        options={"num_warps": config.num_warps, "num_stages": config.num_stages},
    )
    return Compiled(name, arch, dict(config.kwargs), config.num_warps, compiled.asm["ptx"], compiled.asm["cubin"])


# ------------------------------------------------------------------------------------------------------------------
# Records.


def write(path: Path, sources: Sequence[str], command: str) -> None:
    """Write generated modules to one text file, headed by where they come from."""
    found = runtime.versions()
    gpu = found["GPU"] if runtime.device().type == "cuda" else "none, lowered for a fake one"
    header = {"command": command, "GPU": gpu, "torch": found["torch"], "triton": found["triton"]}
    header |= {"date": datetime.now(UTC).strftime("%Y-%m-%d"), "launches": count(sources)}
    lines = ["# Generated by PyTorch's Inductor.", *(f"# {name}: {value}" for name, value in header.items())]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(MODULE.join(["\n".join(lines), *(source.strip() for source in sources)]) + "\n")


def read(path: Path) -> tuple[dict[str, str], list[str]]:
    """The header and the modules of such a file."""
    header, *sources = path.read_text().split(MODULE)
    return dict(re.findall(r"^# (\w+): (.*)", header, re.MULTILINE)), sources


def record(cases: Mapping[str, tuple[Callable, tuple, bool]], folder: Path, command: str) -> None:
    """Write a file for each case: name → (fn, its inputs, whether backward too)."""
    for name, (fn, inputs, backward) in cases.items():
        sources = triton_source(fn, *inputs, backward=backward)
        write(folder / f"{name}.txt", sources, command)
        print(f"{name}.txt: {count(sources)}", flush=True)


def cases() -> dict[str, tuple[Callable, tuple, bool]]:
    """The two pointwise ops, as their benchmarks measure them."""
    from kernels.ops.add_mul_activation.eager import add_mul_activation
    from kernels.ops.add_relu.eager import add_relu

    def add_mul_sigmoid(x, bias, y):
        return add_mul_activation(x, bias, y, 0.5, "sigmoid")

    x, bias = torch.zeros(65536, 512), torch.zeros(512)
    return {
        "add_relu": (add_relu, (x, bias), False),
        "add_mul_activation": (add_mul_sigmoid, (x, bias, x.clone()), False),
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m kernels.inductor", description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="for add_relu.txt and the like")
    record(cases(), parser.parse_args(argv).out, "python -m kernels.inductor --out traces/generated")
    return 0


if __name__ == "__main__":
    from kernels import inductor_source  # under its name, by which the second process knows it

    sys.exit(inductor_source.main())
