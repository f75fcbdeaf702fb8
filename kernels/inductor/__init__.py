"""The Triton code that torch.compile writes for a function: to read, to count, to compile and to run without a GPU.

    source, = triton_source(f, x)                    # on a GPU from the real compilation, else for a fake GPU
    kernel, = split(source)                          # its kind, what was fused into it, its launches, its source
    compile_kernel(kernel.source, arch=90).ptx       # and .cubin; compile_candidates: in all of them
    run_kernel(kernel.source, x, out, x.numel())     # in Triton's interpreter, where there is no GPU

`python -m kernels.inductor --out FOLDER` writes what is generated for each op. Written for the private interfaces of
torch 2.11 and 2.13.
"""

from .compile import Compiled, compile_candidates, compile_kernel
from .execute import run_kernel
from .lower import has_option, together, trace, triton_source, written
from .parse import Kernel, count, split, table
from .records import cases, read, record, write

__all__ = [
    "Compiled",
    "Kernel",
    "cases",
    "compile_candidates",
    "compile_kernel",
    "count",
    "has_option",
    "read",
    "record",
    "run_kernel",
    "split",
    "table",
    "together",
    "trace",
    "triton_source",
    "write",
    "written",
]
