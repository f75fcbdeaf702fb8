"""The kernels of steps.cu, and the capstone's solution, as texts of their own."""

from __future__ import annotations

import re
from pathlib import Path

from lessons.shared import answers

HERE = Path(__file__).resolve().parent


def text_of(name: str) -> str:
    """The kernel of steps.cu that is called so."""
    text = (HERE / "steps.cu").read_text()
    begin = text.index(f"__global__ void {name}(")
    return text[begin : text.index("\n}", begin) + 3]


def launching(kernel: str, per_thread: int = 1) -> str:
    """A kernel's text with launch(), which gives each thread so many numbers."""
    name = re.search(r"void (\w+)\(", kernel)[1]
    return f"""{kernel}
void launch(const float* x, const float* bias, float* out, int columns, int n) {{
    {name}<<<(n + {256 * per_thread - 1}) / {256 * per_thread}, 256>>>(x, bias, out, columns, n);
}}
"""


def capstone() -> str:
    """The solution of add_mul_activation, as load_inline gets it."""
    scope: dict[str, str] = {}
    cell = answers.solutions(HERE)["add_mul_activation"].source
    exec(cell[: cell.index("solved = ")], scope)
    return scope["mine"]


def capstone_alone() -> str:
    """Its kernel with a launch that takes addresses."""
    kernel = re.sub(r"^#include.*\n", "", capstone())
    kernel = re.sub(r"^#include.*\n", "", kernel[: kernel.index("torch::Tensor forward")], flags=re.M)
    return kernel + """
extern "C" int launch(const float* x, const float* bias, const float* y, float multiplier, float* out, int activation,
                      int columns, int n, cudaStream_t stream) {
    add_mul_activation<<<(n + 255) / 256, 256, 0, stream>>>(x, bias, y, multiplier, out, activation, columns, n);
    return int(cudaGetLastError());
}
"""
