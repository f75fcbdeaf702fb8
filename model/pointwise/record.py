"""What the notebook on Triton kernels says in µs: `python -m model.pointwise --save`, on a GPU.

    add_relu   relu(x + bias): the six lines, the op's kernel, torch.compile
    step       sigmoid(x + 0.5 y + bias): each step from the generated kernel to the general one, torch.compile
    gelu       the same with gelu, by erf and as the op has it, torch.compile
    relu       relu(x) in three forms; values: what each makes of VALUES
    copy       PyTorch's copy of as many bytes as the kernels beside it move

Shapes are 65536 × 512 ("even") and 65535 × 511 ("odd"). What is of one part, shape and dtype was measured by turns.
Saved in traces/results/<gpu>/pointwise.json.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.check import TOLERANCES
from kernels.inductor.machine_code import accesses, sass
from kernels.measure.clock import percentiles
from kernels.ops.add_mul_activation.triton_launch import forward as add_mul
from kernels.ops.add_relu.triton_launch import forward as add_relu
from kernels.ops.add_relu.triton_puzzles import maximum_as_compiled
from model.gpu.record import Clock, registers, spills
from model.pointwise import kernels, steps
from model.recorder import head

NAME = "pointwise"
PARTS = ("add_relu", "step", "gelu", "relu")
VALUES = (float("nan"), float("inf"), float("-inf"), -1.0, -0.0, 0.0, 2.5)
# Through Triton's interpreter, to see that it runs.
SMALL = {"even": (4, 512), "odd": (3, 511)}
BLOCK = 1024

Launches = Mapping[str, tuple[Callable[[], object], Tensor | None]]  # None: it returns its result


class Recorder:
    """Measures the parts; rows are printed as they come."""

    def __init__(self, device: torch.device, shapes: Mapping[str, tuple[int, int]] = steps.SHAPES):
        self.device, self.shapes, self.clock = device, shapes, Clock(device)
        self.rows: list[dict] = []
        self.generator = torch.Generator(device).manual_seed(0)

    def draw(self, shape: str, dtype: torch.dtype) -> tuple[Tensor, ...]:
        """x, bias, y, out"""
        rows, columns = self.shapes[shape]
        x, bias, y = (torch.randn(size, generator=self.generator, device=self.device).to(dtype)
                      for size in ((rows, columns), (columns,), (rows, columns)))  # fmt: skip
        return x, bias, y, torch.empty_like(x)

    def add(self, times: Sequence[float] | None, right: bool, **labels) -> None:
        """A row; without times if what was computed is wrong."""
        row = labels | {"match": "ok" if right else "FAILED: the result is wrong"}
        if right and times:
            row |= dict(zip(("us_p20", "us_p50", "us_p80"), percentiles(list(times)), strict=True))
        self.rows.append(row)
        print(line(row), flush=True)

    def by_turns(self, part: str, shape: str, dtype: str, launches: Launches, exact: Tensor, moved: int) -> None:
        """Each launch is compared with the exact result, then all are timed, with a copy of as many bytes."""
        labels = {"part": part, "shape": shape, "dtype": dtype, "bytes": moved}
        found, functions = {}, {}
        for name, (function, out) in launches.items():
            try:
                if out is not None:
                    out.fill_(float("nan"))
                result = function()
                right = close(result if out is None else out, exact, steps.DTYPES[dtype])
                found[name] = right, {} if out is None else code(result)
                functions[name] = function
            except Exception as error:  # the others are measured all the same
                traceback.print_exc()
                self.error(error, **labels, name=name)
        source = torch.ones(moved // 8, device=self.device)
        target = torch.empty_like(source)
        functions["copy"] = lambda: target.copy_(source)
        for name, times in self.clock.times(functions).items():
            if name == "copy":
                self.add(times, True, **labels | {"part": "copy", "bytes": 8 * len(source)}, of=part)
            else:
                self.add(times, found[name][0], **labels, name=name, **found[name][1])

    def error(self, error: Exception, **labels) -> None:
        what = f"{type(error).__name__}: {error}".splitlines()[0]
        self.rows.append(labels | {"match": f"FAILED: {what}"})
        print(line(self.rows[-1]), flush=True)

    # ------------------------------------------------------------------------------------------------------ the parts

    def add_relu(self) -> None:
        for shape, dtype in (("even", "float32"), ("odd", "float32"), ("even", "bfloat16")):
            x, bias, _, out = self.draw(shape, steps.DTYPES[dtype])
            grid = (-(-x.numel() // BLOCK),)
            six = partial(kernels.six_lines[grid], x, bias, out, x.numel(), COLUMNS=x.shape[1], BLOCK=BLOCK)
            launches = {"the op": (partial(add_relu, x, bias, out), out)}
            if dtype == "float32" or self.clock.gpu:  # the interpreter adds no bfloat16
                launches = {"six lines": (six, out)} | launches
            launches |= self.compiled(lambda x, bias: torch.relu(x + bias), x, bias)
            exact = torch.relu(x.double() + bias.double())
            self.by_turns("add_relu", shape, dtype, launches, exact, 2 * x.nbytes + bias.nbytes)

    def step(self) -> None:
        for shape in self.shapes:
            for dtype in steps.DTYPES:
                self.formula("step", shape, dtype, steps.STEPS, torch.sigmoid, "sigmoid")

    def gelu(self) -> None:
        for dtype in steps.DTYPES:
            self.formula("gelu", "even", dtype, steps.GELUS, F.gelu, "gelu")

    def formula(self, part: str, shape: str, dtype: str, chosen: Sequence[steps.Step], act: Callable, name: str):
        """act(x + 0.5 y + bias) by each of the steps that are for the dtype, by the op and by torch.compile."""
        x, bias, y, out = self.draw(shape, steps.DTYPES[dtype])
        launches = {each.name: (partial(each.launch, x, bias, y, out), out) for each in chosen
                    if each.in_half or dtype == "float32"}  # fmt: skip
        launches["the op"] = partial(add_mul, x, bias, y, steps.MULTIPLIER, name, out), out
        launches |= self.compiled(lambda x, bias, y: act(x + 0.5 * y + bias), x, bias, y)
        exact = act(x.double() + 0.5 * y.double() + bias.double())
        self.by_turns(part, shape, dtype, launches, exact, 3 * x.nbytes + bias.nbytes)

    def compiled(self, function: Callable, *inputs: Tensor) -> Launches:
        """torch.compile's, on a GPU: on a CPU it is another compiler."""
        if self.clock.gpu is None:
            return {}
        torch.compiler.reset()  # what is compiled of one code counts against a limit
        return {"torch.compile": (partial(torch.compile(function, dynamic=False), *inputs), None)}

    def relu(self) -> None:
        x, _, _, out = self.draw("even", torch.float32)
        special = torch.tensor(VALUES, device=self.device)
        made = torch.empty_like(special)
        grid = (-(-x.numel() // BLOCK),)
        launches, values = {}, {}
        for form in steps.RELUS:
            launches[form] = partial(kernels.relu_forms[grid], x, out, x.numel(), FORM=form, BLOCK=BLOCK), out
            with maximum_as_compiled():
                kernels.relu_forms[(1,)](special, made, len(special), FORM=form, BLOCK=16)
            values[form] = [str(value) for value in made.tolist()]
        self.by_turns("relu", "even", "float32", launches, torch.relu(x.double()), 2 * x.nbytes)
        values["eager"] = [str(value) for value in torch.relu(special).tolist()]
        for name, found in values.items():
            self.rows.append({"part": "values", "name": name, "values": found, "match": "ok"})

    @torch.no_grad()
    def measure(self, parts: Sequence[str] = PARTS) -> list[dict]:
        for part in parts:
            try:
                getattr(self, part)()
            except Exception as error:  # the other parts are measured all the same
                traceback.print_exc()
                self.error(error, part=part)
            if self.clock.gpu:
                self.clock.gpu.clear()
        return self.rows


def close(result: Tensor, exact: Tensor, dtype: torch.dtype) -> bool:
    relative, absolute = TOLERANCES[dtype]
    return bool(((result.double() - exact).abs() <= absolute + relative * exact.abs()).all())


def code(compiled) -> dict:
    """Registers, instructions and accesses of what a launch returned; {} in the interpreter, and of the op's own
    launcher, which returns nothing."""
    found = {"registers": registers(compiled), "spills": spills(compiled)}
    assembly = getattr(compiled, "asm", None)
    if assembly:
        lines = sass(assembly["cubin"])
        found |= {"instructions": len(lines) if lines else None, "accesses": accesses(assembly["ptx"]),
                  "branches": sum("BRA" in each or "CALL" in each for each in lines or ())}  # fmt: skip
    return {name: value for name, value in found.items() if value is not None}


def line(row: dict) -> str:
    """The row as a line of text."""
    names = ("name", "of", "shape", "dtype", "registers", "instructions", "accesses")
    labels = " ".join(f"{name} {row[name]}" if name in names[4:] else str(row[name]) for name in names if name in row)
    shown = f"{row['us_p50']:.2f} µs ({row['us_p20']:.2f} to {row['us_p80']:.2f})" if "us_p50" in row else ""
    return f"{row['part']:9} {labels} {shown}  {row['match']}"


def record(device: torch.device, parts: Sequence[str] = PARTS, shapes: Mapping | None = None) -> dict:
    """What is saved in traces/results/<gpu>/pointwise.json."""
    rows = Recorder(device, shapes or steps.SHAPES).measure(parts)
    return head(NAME, "python -m model.pointwise") | {"rows": rows}
