"""The lesson's kernels on this machine, whatever it is: what the cells headed "On your machine" print."""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton
from torch import Tensor

from kernels import runtime
from kernels.check import maximum_as_compiled
from kernels.measure.clock import Gpu, percentiles
from lessons.n08_triton_kernels import compiled, pointwise_kernels, recorded, steps
from lessons.n08_triton_kernels.experiment import VALUES
from lessons.shared.timing import print_times


def relus(device: torch.device | None = None) -> None:
    """What each form of relu makes of the special values; without a GPU by the rules of its instructions."""
    x = torch.tensor(VALUES, device=device or runtime.device())
    print(f"{'x':14}" + "".join(f"{value:>7}" for value in VALUES))
    for form in steps.RELUS:
        out = torch.empty_like(x)
        with maximum_as_compiled():
            pointwise_kernels.relu_forms[(1,)](x, out, len(x), FORM=form, BLOCK=16)
        print(f"{form:14}" + "".join(f"{value:>7}" for value in out.tolist()))
    print(f"{'torch.relu':14}" + "".join(f"{value:>7}" for value in torch.relu(x).tolist()))


def instructions(*names: str) -> None:
    """What chooses between a number and 0 in each form of relu, in PTX, as this Triton compiles it for an H200."""
    print(f"made here, triton {triton.__version__}")
    for each in map(compiled.made, names):
        print(f"  {each.name:14} {', '.join(each.chosen_by)}")


def compiles(dtype: str, *names: str) -> None:
    """Whether the steps compile for a dtype, and why not."""
    for each in (compiled.made(name, dtype) for name in names):
        print(f"  {each.name:14} {each.error.splitlines()[-1] if each.error else 'compiles'}")


def gelus() -> None:
    """Instructions a number of both forms of gelu, as this Triton compiles them for an H200."""
    print(f"made here, triton {triton.__version__}")
    for each in (compiled.made(form.name, dtype) for dtype in steps.DTYPES for form in steps.GELUS):
        if each.instructions:
            count = each.a_number
            print(f"  {each.name:14} {each.dtype:9} {count:5.1f} instructions a number, issued in "
                  f"{recorded.issue_us(count):4.1f} µs; its bytes take {recorded.bytes_us(each.dtype):4.1f}")


def times(rows: int | None = None) -> None:
    """µs of the steps, by turns: on a GPU of the kernels alone, on a CPU of one call through the interpreter."""
    device = runtime.device()
    rows = rows or (65536 if device.type == "cuda" else 4)
    generator = torch.Generator(device).manual_seed(0)
    shapes = (rows, 512), (512,), (rows, 512)
    x, bias, y = (torch.randn(*shape, generator=generator, device=device) for shape in shapes)
    out = torch.empty_like(x)

    def of(each: steps.Step) -> Callable[[], Tensor]:
        return lambda: (each.launch(x, bias, y, out), out)[1]

    functions = {each.name: of(each) for each in steps.STEPS}
    if device.type != "cuda":
        print_times(functions, tolerance=1e-5)
        return
    for function in functions.values():
        function()
    print(f"{torch.cuda.get_device_name()}: µs (20th to 80th percentile)")
    for name, found in Gpu().times(functions).items():
        p20, p50, p80 = percentiles(found)
        print(f"  {name:<18} {p50:8.1f}  ({p20:.1f} to {p80:.1f})")


def rounded(rows: int = 64, columns: int = 512) -> None:
    """How often x + 0.5 y + bias in bfloat16 is not the exact sum's nearest bfloat16: rounded after each operation, as
    eager does, and once at the end."""
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(rows, columns, generator=generator).bfloat16() for _ in range(2))
    bias = torch.randn(columns, generator=generator).bfloat16()
    exact = (x.double() + 0.5 * y.double() + bias.double()).bfloat16()
    each = x + 0.5 * y + bias
    once = (x.float() + 0.5 * y.float() + bias.float()).bfloat16()
    for name, found in (("rounded after each operation", each), ("computed in float32, rounded once", once)):
        wrong = found != exact
        print(f"{name}: {int(wrong.sum()):,} of {wrong.numel():,} are not the nearest bfloat16")


