"""What the notebook on CUDA kernels says in times: `python -m lessons.n10_cuda_kernels --save`, on a GPU with nvcc.

    step  add_relu: an element a thread; 16 after each other; 16 apart; four loads first; four at a time
    op    sigmoid(x + multiplier · y + bias): eager, torch.compile, a Triton kernel, the capstone's solution, the
          library's two
    form  the solution's kernel, and what one change at a time makes of it, beside the Triton kernel
    copy  PyTorch's copy of as many bytes as the kernels beside it move (in step, op and form), and of 1 GiB
    ncu   instructions that warps execute, and sectors, as the GPU counts them

x is 65536 × 512 in float32. What needs no GPU, `python -m lessons.n10_cuda_kernels count` writes to
traces/compiled/cuda_steps.json.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import cached_property, partial
from pathlib import Path

import torch
from torch import Tensor

import kernels
from kernels.check.host import inline, programs
from kernels.dispatch import build, core
from kernels.dispatch.build import load_library
from kernels.runtime import KERNELS
from lessons.n10_cuda_kernels import counting, in_triton, texts
from lessons.n10_cuda_kernels.counting import STEPS
from lessons.n10_cuda_kernels.forms import FORMS, together
from lessons.n10_cuda_kernels.op_puzzles import ACTIVATIONS
from lessons.shared import ncu as nsight
from lessons.shared.experiment import Experiment, Launch, Way

MULTIPLIER = 0.5
METRICS = (
    "smsp__inst_executed.sum",
    "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum",
    "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
    "launch__registers_per_thread",
)
POINTER, NUMBER = ctypes.c_void_p, ctypes.c_int


class Library:
    """steps.cu, or another text, on this GPU, built by load_inline."""

    def __init__(self, name: str = "cuda_steps", file: Path = counting.HERE / "steps.cu") -> None:
        arch = ".".join(map(str, torch.cuda.get_device_capability()))
        built = load_library(
            name, file, cache=build.EXTENSIONS, include=(KERNELS,), flags=core.NVCC_FLAGS,
            environment={"TORCH_CUDA_ARCH_LIST": arch},
        )
        self.library = ctypes.CDLL(str(built))

    @classmethod
    def of_text(cls, name: str, text: str) -> Library:
        """A text that needs a file of its own."""
        file = build.EXTENSIONS / f"{name}.cu"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return cls(name, file)

    def call(self, name: str, *arguments: Tensor | float) -> None:
        """A function of the library, on the current stream; it returns the launch's error."""
        values = [
            POINTER(argument.data_ptr()) if isinstance(argument, Tensor)
            else ctypes.c_float(argument) if isinstance(argument, float) else NUMBER(argument)
            for argument in arguments
        ]
        error = getattr(self.library, name)(*values, POINTER(torch.cuda.current_stream().cuda_stream))
        if error:
            raise RuntimeError(f"{name}: CUDA error {error}")

    def step(self, name: str, x: Tensor, bias: Tensor, out: Tensor) -> None:
        self.call("launch_step", list(STEPS).index(name), STEPS[name], x, bias, out, x.shape[1], x.numel())

    def form(self, number: int, x: Tensor, bias: Tensor, y: Tensor, out: Tensor) -> Tensor:
        """Call a form of a text of forms.together."""
        self.call("launch_form", number, x, bias, y, MULTIPLIER, out, x.shape[1], x.numel())
        return out


class OnHost:
    """In its place without a GPU: the steps through the host build, the forms by PyTorch."""

    def step(self, name: str, x: Tensor, bias: Tensor, out: Tensor) -> None:
        program = programs.build(texts.launching(texts.text_of(name), STEPS[name]))
        buffers = [tensor.numpy() for tensor in (x, bias, out)]
        outcome = programs.run(program, buffers, (x.shape[1], x.numel()))
        out.view(-1).copy_(torch.from_numpy(outcome.buffers[2][0]))

    def form(self, number: int, x: Tensor, bias: Tensor, y: Tensor, out: Tensor) -> Tensor:
        return out.copy_(torch_sigmoid(x, bias, y))


class CudaSteps(Experiment):
    """What cuda_steps.json has; ncu: what it counts in the steps. Sizes: the shape of x."""

    NAME = "cuda_steps"
    PARTS = ("step", "op", "form", "copy", "ncu")
    COMMANDS = ("launch_once", "count")
    FULL, SMALL = (65536, 512), (8, 512)

    @cached_property
    def library(self) -> Library | OnHost:
        return Library() if self.gpu else OnHost()

    def step(self) -> None:
        x, bias, _ = self.inputs()
        expected, out = torch.relu(x + bias), torch.empty_like(x)
        ways = []
        for name in STEPS:
            launch = Launch(partial(self.library.step, name, x, bias, out), out)
            ways.append(Way({"name": name}, [launch], partial(torch.equal, expected)))
        moved = 2 * x.nbytes + bias.nbytes
        self.compare("step", [*ways, self.copied(moved, of="step")], captured=False, bytes=moved)

    def inputs(self) -> tuple[Tensor, Tensor, Tensor]:
        """x, bias, y"""
        x, y = (self.normal(*self.sizes) for _ in range(2))
        return x, self.normal(self.sizes[1]), y

    def op(self) -> None:
        x, bias, y = self.inputs()
        moved = 3 * x.nbytes + bias.nbytes
        calls = {
            "eager": partial(torch_sigmoid, x, bias, y), "triton, by hand": partial(in_triton.launch, x, bias, y),
            "cuda, by hand": self.by_hand(x, bias, y),
        }
        if self.gpu:
            calls["torch.compile"] = partial(torch.compile(torch_sigmoid, fullgraph=True), x, bias, y)
        for backend in ("triton", *["cuda"] * (self.gpu is not None)):
            call = partial(kernels.add_mul_activation, x, bias, y, MULTIPLIER, "sigmoid", backend=backend)
            calls[f"{backend}, the op"] = call
        right = partial(close, x=x, bias=bias, y=y)
        ways = [Way({"name": name}, [call], right) for name, call in calls.items()]
        self.compare("op", [*ways, self.copied(moved, of="op")], captured=False, bytes=moved)

    def by_hand(self, x: Tensor, bias: Tensor, y: Tensor) -> Callable[[], Tensor]:
        """The solution of the capstone; on a GPU its kernel alone, which compiles without PyTorch's headers."""
        sigmoid = ACTIVATIONS.index("sigmoid")
        if not self.gpu:
            return partial(inline.Function(texts.capstone()), x, bias, y, MULTIPLIER, sigmoid)
        library, out = Library.of_text("cuda_capstone", texts.capstone_alone()), torch.empty_like(x)

        def call() -> Tensor:
            library.call("launch", x, bias, y, MULTIPLIER, out, sigmoid, x.shape[1], x.numel())
            return out

        return call

    def form(self) -> None:
        """The copy and the Triton kernel are measured once more: by turns with the forms."""
        x, bias, y = self.inputs()
        moved, out = 3 * x.nbytes + bias.nbytes, torch.empty_like(x)
        library = Library.of_text("cuda_forms", together(FORMS)) if self.gpu else OnHost()
        calls = {name: partial(library.form, number, x, bias, y, out) for number, name in enumerate(FORMS)}
        calls["triton, by hand"] = partial(in_triton.launch, x, bias, y)
        right = partial(close, x=x, bias=bias, y=y)
        ways = [Way({"name": name}, [call], right) for name, call in calls.items()]
        self.compare("form", [*ways, self.copied(moved, of="form")], captured=False, bytes=moved)

    def ncu(self) -> None:
        if self.gpu:
            self.extra["ncu"] = {"command": " ".join(ncu_command()), **nsight.run(ncu_command("ncu", sys.executable))}
            print("ncu      ", len(self.extra["ncu"]["lines"]), "lines", self.extra["ncu"]["why"], flush=True)

    def launch_once(self) -> None:
        """only start each step once: what ncu is given"""
        x, bias, _ = self.inputs()
        out = torch.empty_like(x)
        for name in STEPS:
            self.library.step(name, x, bias, out)
        self.synchronize()

    def count(self) -> None:
        """save what nvcc makes of the steps in traces/compiled/cuda_steps.json: needs no GPU"""
        print("saved", counting.save(counting.count()))


def torch_sigmoid(x: Tensor, bias: Tensor, y: Tensor) -> Tensor:
    return torch.sigmoid(x + MULTIPLIER * y + bias)


def close(out: Tensor, x: Tensor, bias: Tensor, y: Tensor) -> bool:
    """Whether out is the sigmoid, to within what the fast functions are off by."""
    exact = torch.sigmoid(x.double() + MULTIPLIER * y.double() + bias.double())
    return bool((out.double() - exact).abs().max() <= 1e-6)


def ncu_command(ncu: str = "ncu", python: str = "python") -> list[str]:
    chosen = ["--kernel-name-base", "function", "--kernel-name", f"regex:^({'|'.join(STEPS)})$"]
    return [ncu, *chosen, "--metrics", ",".join(METRICS), python, "-m", "lessons.n10_cuda_kernels", "launch_once"]


main = CudaSteps.main
