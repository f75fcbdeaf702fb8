"""The kernels of steps.cu as texts of their own."""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).resolve().parent


def text_of(name: str) -> str:
    """The kernel of steps.cu that is called so."""
    text = (HERE / "steps.cu").read_text()
    begin = text.index(f"__global__ void {name}(")
    return text[begin : text.index("\n}", begin) + 3]


def launching(name: str, each: int = 1) -> str:
    """The kernel of steps.cu with its launch(), which gives each thread so many numbers."""
    grid = f"(n + {256 * each - 1}) / {256 * each}"
    parameters = "const float* x, const float* bias, float* out, int columns, int n"
    return f"""{text_of(name)}
void launch({parameters}) {{
    {name}<<<{grid}, 256>>>(x, bias, out, columns, n);
}}
"""
