// Runs the kernel of TILED, a file, once on 40 × 40 × 70 numbers: for the host's sanitizers and for compute-sanitizer.
// Exit status: 0 if the result is right.
#include "device/launch.cuh"
#include TILED

#include <cmath>
#include <cstdio>
#include <vector>

int main() {
    const int M = 40, N = 40, K = 70;
    std::vector<float> x(M * K), weight(N * K), out(M * N);
    for (int i = 0; i < M * K; ++i) x[i] = float(i * 37 % 19) - 9;
    for (int i = 0; i < N * K; ++i) weight[i] = float(i * 53 % 23) - 11;
    float *x_there, *weight_there, *out_there;
    cudaMalloc(&x_there, x.size() * sizeof(float));
    cudaMalloc(&weight_there, weight.size() * sizeof(float));
    cudaMalloc(&out_there, out.size() * sizeof(float));
    cudaMemcpy(x_there, x.data(), x.size() * sizeof(float), cudaMemcpyHostToDevice);
    cudaMemcpy(weight_there, weight.data(), weight.size() * sizeof(float), cudaMemcpyHostToDevice);
    cudaError_t error =
        launch_kernel(tiled, dim3(2, 2), dim3(32, 32), 0, nullptr, x_there, weight_there, out_there, M, N, K);
    if (error == cudaSuccess)
        error = cudaMemcpy(out.data(), out_there, out.size() * sizeof(float), cudaMemcpyDeviceToHost);
    cudaFree(x_there), cudaFree(weight_there), cudaFree(out_there);
    if (error != cudaSuccess) return std::printf("%s\n", cudaGetErrorString(error)), 2;
    int wrong = 0;
    for (int i = 0; i < M * N; ++i) {
        float sum = 0;
        for (int k = 0; k < K; ++k) sum += x[i / N * K + k] * weight[i % N * K + k];
        wrong += !(std::fabs(out[i] - sum) <= 1e-3f);
    }
    std::printf("%d of %d numbers are wrong\n", wrong, M * N);
    return wrong > 0;
}
