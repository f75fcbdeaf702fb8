"""What the notebook on CUDA kernels says in times: `python -m lessons.n10_cuda_kernels --save`, on a GPU with nvcc.

    step       add_relu in float32: a number a thread; 16 after each other; 16 apart; four loads first; four at a time
    index      sigmoid(x + multiplier · y + bias) with an index of 32 bits, of 64, and by rows without a remainder
    op         the same: eager, torch.compile, the notebook's Triton kernel, the capstone's solution, the library's two
    form       the solution's kernel, and what one change at a time makes of it, beside the Triton kernel
    copy       PyTorch's copy of as many bytes as the kernels beside it move (in step, op and form), and of 1 GiB
    ncu        instructions that warps execute, and sectors, as the GPU counts them
    sanitizer  what compute-sanitizer says of a kernel with a wrong guard, and of one without its barrier

Shapes are 65536 × 512 ("even") and 65535 × 511 ("odd"). What needs no GPU, `python -m lessons.n10_cuda_kernels count`
writes to traces/compiled/cuda_steps.json.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor

import kernels
from kernels.check.host import inline, programs
from kernels.dispatch import build, core
from kernels.dispatch.build import load_library
from kernels.runtime import KERNELS
from lessons.n10_cuda_kernels import counting, in_triton, texts
from lessons.n10_cuda_kernels.counting import STEPS, WAYS
from lessons.n10_cuda_kernels.forms import FORMS, together
from lessons.n10_cuda_kernels.op_puzzles import ACTIVATIONS
from lessons.n10_cuda_kernels.sanitizers import compute_sanitizer
from lessons.shared import ncu as nsight
from lessons.shared.experiment import Experiment, Launch, Way

COLUMNS, MULTIPLIER = 512, 0.5
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
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
AN_SM = 8  # blocks of 256 threads, which fill its places
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

    def index(self, name: str, x: Tensor, bias: Tensor, y: Tensor, out: Tensor) -> None:
        blocks = AN_SM * torch.cuda.get_device_properties(x.device).multi_processor_count
        half, sizes = int(x.dtype == torch.bfloat16), (x.shape[1], x.numel())
        self.call("launch_index", WAYS.index(name), half, blocks, x, bias, y, MULTIPLIER, out, *sizes)

    def form(self, number: int, x: Tensor, bias: Tensor, y: Tensor, out: Tensor) -> Tensor:
        """Call a form of a text of forms.together."""
        self.call("launch_form", number, x, bias, y, MULTIPLIER, out, x.shape[1], x.numel())
        return out


class OnHost:
    """In its place without a GPU: the steps through the host build, the indices by PyTorch."""

    def step(self, name: str, x: Tensor, bias: Tensor, out: Tensor) -> None:
        program = programs.build(texts.launching(texts.text_of(name), STEPS[name]))
        buffers = [tensor.numpy() for tensor in (x, bias, out)]
        outcome = programs.run(program, buffers, (x.shape[1], x.numel()))
        out.view(-1).copy_(torch.from_numpy(outcome.buffers[2][0]))

    def index(self, name: str, x: Tensor, bias: Tensor, y: Tensor, out: Tensor) -> None:
        out.copy_(torch.sigmoid(x.float() + MULTIPLIER * y.float() + bias.float()))

    def form(self, number: int, x: Tensor, bias: Tensor, y: Tensor, out: Tensor) -> Tensor:
        return out.copy_(torch_sigmoid(x, bias, y))


class CudaSteps(Experiment):
    """What cuda_steps.json has; ncu, sanitizer: what these tools say of the kernels. Sizes: the shapes by name."""

    NAME = "cuda_steps"
    PARTS = ("step", "index", "op", "form", "copy", "ncu", "sanitizer")
    COMMANDS = ("launch_once", "count")
    FULL = MappingProxyType({"even": (65536, COLUMNS), "odd": (65535, COLUMNS - 1)})
    SMALL = MappingProxyType({"even": (8, COLUMNS), "odd": (7, COLUMNS - 1)})

    @cached_property
    def library(self) -> Library | OnHost:
        return Library() if self.gpu else OnHost()

    def step(self) -> None:
        x, bias = self.normal(*self.sizes["even"]), self.normal(COLUMNS)
        expected, out = torch.relu(x + bias), torch.empty_like(x)
        ways = []
        for name in STEPS:
            launch = Launch(partial(self.library.step, name, x, bias, out), out)
            ways.append(Way({"name": name}, [launch], partial(torch.equal, expected)))
        moved = 2 * x.nbytes + bias.nbytes
        self.compare("step", [*ways, self.copied(moved, of="step")], captured=False, bytes=moved)

    def inputs(self, shape: str, dtype: str = "float32") -> tuple[Tensor, Tensor, Tensor]:
        """x, bias, y"""
        rows, columns = self.sizes[shape]
        x, y = (self.normal(rows, columns, dtype=DTYPES[dtype]) for _ in range(2))
        return x, self.normal(columns, dtype=DTYPES[dtype]), y

    def index(self) -> None:
        for shape in self.sizes:
            for dtype in DTYPES:
                x, bias, y = self.inputs(shape, dtype)
                out, ways = torch.empty_like(x), []
                for name in WAYS:
                    launch = Launch(partial(self.library.index, name, x, bias, y, out), out)
                    ways.append(Way({"name": name}, [launch], lambda out, x=x, bias=bias, y=y: close(out, x, bias, y)))
                self.compare("index", ways, captured=False, shape=shape, dtype=dtype, bytes=3 * x.nbytes + bias.nbytes)

    def op(self) -> None:
        """float32 alone: the capstone's kernel takes no other."""
        for shape in self.sizes:
            x, bias, y = self.inputs(shape)
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
            self.compare("op", [*ways, self.copied(moved, of="op")], captured=False, shape=shape, bytes=moved)

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
        x, bias, y = self.inputs("even")
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

    def sanitizer(self) -> None:
        if self.gpu:
            numbers = np.ones((5, 200), np.float32)
            row = np.ones(256, np.float32)
            self.extra["sanitizer"] = {
                "memcheck": compute_sanitizer("memcheck", off_by_one(), [numbers, numbers[0], numbers], (200, 1000)),
                "racecheck": compute_sanitizer("racecheck", NO_BARRIER, [row, row], (256,)),
            }
            print("sanitizer", self.extra["sanitizer"], flush=True)

    def launch_once(self) -> None:
        """only start each step once: what ncu is given"""
        x, bias, _ = self.inputs("even")
        out = torch.empty_like(x)
        for name in STEPS:
            self.library.step(name, x, bias, out)
        self.synchronize()

    def count(self) -> None:
        """count instructions by nvcc, and save them in traces/compiled/cuda_steps.json: needs no GPU"""
        print("saved", counting.save(counting.count()))


def torch_sigmoid(x: Tensor, bias: Tensor, y: Tensor) -> Tensor:
    return torch.sigmoid(x + MULTIPLIER * y + bias)


def close(out: Tensor, x: Tensor, bias: Tensor, y: Tensor) -> bool:
    """Whether out is the sigmoid, to within a rounding of its dtype and what the fast functions are off by."""
    exact = torch.sigmoid(x.double() + MULTIPLIER * y.double() + bias.double())
    return bool((out.double() - exact).abs().max() <= (1e-6 if x.dtype == torch.float32 else 2**-8))


# ------------------------------------------------------------------------------------------- what the GPU's tools say


def ncu_command(ncu: str = "ncu", python: str = "python") -> list[str]:
    chosen = ["--kernel-name-base", "function", "--kernel-name", f"regex:^({'|'.join(STEPS)})$"]
    return [ncu, *chosen, "--metrics", ",".join(METRICS), python, "-m", "lessons.n10_cuda_kernels", "launch_once"]


NO_BARRIER = """
__global__ void reversed(const float* x, float* out, int n) {
    __shared__ float part[256];
    part[threadIdx.x] = x[threadIdx.x];
    out[threadIdx.x] = part[255 - threadIdx.x];
}
void launch(const float* x, float* out, int n) { reversed<<<1, 256>>>(x, out, n); }
"""


def off_by_one() -> str:
    """The scalar kernel with a guard that lets one thread too many through."""
    return texts.launching(texts.text_of("scalar")).replace("i < n", "i <= n")


main = CudaSteps.main
