"""The CUDA texts of the notebook's cells once more: the lecture's op add_relu, and the kernel that the reader wraps.

test_lesson.py holds them to the cells.
"""

KERNEL = r"""
#include <ATen/core/Tensor.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/library.h>

__global__ void add_relu_kernel(const float* x, const float* bias, float* out, int columns, long long n) {
    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i >= n) return;
    float z = x[i] + bias[i % columns];
    out[i] = z < 0 ? 0 : z;
}
"""
OP = r"""
at::Tensor add_relu(const at::Tensor& x, const at::Tensor& bias) {
    TORCH_CHECK(x.scalar_type() == at::kFloat && bias.scalar_type() == at::kFloat, "x, bias: expected float32");
    TORCH_CHECK(bias.dim() == 1 && x.dim() > 0 && bias.size(0) == x.size(-1), "bias ", bias.sizes(), ", x ", x.sizes());
    TORCH_CHECK(bias.device() == x.device(), "bias is on ", bias.device(), ", x on ", x.device());
    c10::cuda::CUDAGuard guard(x.device());
    at::Tensor rows = x.contiguous(), row = bias.contiguous(), out = at::empty(x.sizes(), x.options());
    if (long long n = x.numel()) {  // a grid of 0 blocks is an error
        add_relu_kernel<<<(n + 255) / 256, 256, 0, at::cuda::getCurrentCUDAStream()>>>(
            rows.const_data_ptr<float>(), row.const_data_ptr<float>(), out.mutable_data_ptr<float>(), row.numel(), n);
        C10_CUDA_KERNEL_LAUNCH_CHECK();
    }
    return out;
}

TORCH_LIBRARY(lecture_cpp, m) { m.def("add_relu(Tensor x, Tensor bias) -> Tensor"); }
TORCH_LIBRARY_IMPL(lecture_cpp, CUDA, m) { m.impl("add_relu", &add_relu); }
"""
OF_10 = r"""
__global__ void add_mul_relu_kernel(const float* x, const float* bias, const float* y, float multiplier, float* out,
                                    int columns, long long n) {
    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i >= n) return;
    float z = x[i] + multiplier * y[i] + bias[i % columns];
    out[i] = z < 0 ? 0 : z;
}
"""
KERNEL_10 = KERNEL + OF_10
