"""The capstone's kernel with a sigmoid, and three forms of it that differ from it in one thing each: what is timed
beside the Triton kernel.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

ONE = """
__device__ float sigmoid(float z) { return 1 / (1 + expf(-z)); }
__global__ void form(const float* x, const float* bias, const float* y, float m, float* out, int columns, long long n) {
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = sigmoid(x[i] + m * y[i] + bias[i % columns]);
}"""
FOUR = ONE[: ONE.index("    if")] + """    if ((i *= 4) >= n) return;
    float4 a = *(const float4*)(x + i), b = *(const float4*)(y + i), c = *(const float4*)(bias + i % columns);
    a.x = sigmoid(a.x + m * b.x + c.x), a.y = sigmoid(a.y + m * b.y + c.y);
    a.z = sigmoid(a.z + m * b.z + c.z), a.w = sigmoid(a.w + m * b.w + c.w);
    *(float4*)(out + i) = a;
}"""
FORMS = {
    "one element": ONE,
    "32-bit index": ONE.replace("long long", "int"),
    "fast functions": ONE.replace("1 / (1 + expf(-z))", "__fdividef(1, 1 + __expf(-z))"),
    "four elements": FOUR,
}


def elements(text: str) -> int:
    """How many a thread takes."""
    return 4 if "float4" in text else 1


def together(texts: Mapping[str, str]) -> str:
    """A text with all forms, number k's kernel as form_k, and launch_form(k, …), which returns the launch's error."""
    parts, cases = [], []
    for k, text in enumerate(texts.values()):
        parts.append(re.sub(r"\b(form|sigmoid)\b", rf"\1_{k}", text))
        a_block = 256 * elements(text)
        cases.append(
            f"    if (k == {k}) form_{k}<<<(n + {a_block - 1}) / {a_block}, 256, 0, stream>>>"
            "(x, bias, y, m, out, columns, n);"
        )
    return "\n".join([*parts, LAUNCH % "\n".join(cases)])


LAUNCH = """
extern "C" int launch_form(int k, const float* x, const float* bias, const float* y, float m, float* out, int columns,
                           int n, cudaStream_t stream) {
%s
    return int(cudaGetLastError());
}
"""
