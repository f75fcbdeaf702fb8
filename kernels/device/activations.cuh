// The activations and their derivatives, in float or double. NaN and Inf come out as PyTorch gives them.
//
// In double the functions are CUDA's own. In float they are built from the special function unit's 2^x and 1/x, half
// the instructions or fewer: in bfloat16 an H200 leaves a kernel some forty an element, loads and stores included, before
// arithmetic and not memory sets its time. Errors are at most 5e-7 of the result or of 1, whichever is more:
// test_add_mul_activation.cu holds them against float64.
#pragma once

#include "device/launch.cuh"

#ifndef __CUDACC_RTC__
#include <string.h>
#endif

// The one list of them in C++; kernels/ops and tests go through it. Of pointwise ops, which have a kernel for each, it is
// the first ones.
#define FUSED_POINTWISE_ACTIVATIONS(each) each(relu) each(sigmoid) each(tanh) each(gelu) each(silu) each(identity)
#define FUSED_ACTIVATIONS(each) FUSED_POINTWISE_ACTIVATIONS(each) each(gelu_tanh) each(leaky_relu)

#define FUSED_ACTIVATION(name) name,
enum class Activation { FUSED_ACTIVATIONS(FUSED_ACTIVATION) };
#undef FUSED_ACTIVATION

// What the derivative is computed from: the activation's output, its input z, or nothing.
__host__ __device__ constexpr bool derivative_reads_output(Activation a) {
    return a == Activation::relu || a == Activation::leaky_relu || a == Activation::sigmoid || a == Activation::tanh;
}
// Not of its sign alone, which a rounded output has too.
__host__ __device__ constexpr bool derivative_reads_every_bit(Activation a) {
    return a == Activation::sigmoid || a == Activation::tanh;
}
__host__ __device__ constexpr bool derivative_reads_input(Activation a) {
    return a == Activation::gelu || a == Activation::gelu_tanh || a == Activation::silu;
}

// One instruction of the special function unit each, where __expf and __fdividef spend more on denormal numbers (zero
// here). On the host, the functions that they approximate.
__device__ inline float power_of_two(float x) {
#ifdef __CUDA_ARCH__
    asm("ex2.approx.ftz.f32 %0, %0;" : "+f"(x));
    return x;
#else
    return exp2f(x);
#endif
}
__device__ inline float reciprocal(float x) {
#ifdef __CUDA_ARCH__
    asm("rcp.approx.ftz.f32 %0, %0;" : "+f"(x));
    return x;
#else
    return 1.0f / x;
#endif
}
__device__ inline double reciprocal(double x) { return 1.0 / x; }
__device__ inline float exponential(float z) { return power_of_two(1.44269504f * z); }
__device__ inline double exponential(double z) { return exp(z); }
// e^(-z²/2)
__device__ inline float bell(float z) { return power_of_two(-0.72134752f * z * z); }
__device__ inline double bell(double z) { return exp(-0.5 * z * z); }

__device__ inline double hyperbolic_tangent(double z) { return tanh(z); }
__device__ inline float hyperbolic_tangent(float z) {
    // Near zero, where 1 - e^-2|z| cancels, a polynomial: tanh(z)/z on |z| < 0.6, fitted for the least largest error.
    float s = z * z;
    float p = -5.90587e-3f;
    p = p * s + 2.080538e-2f;
    p = p * s - 5.378668e-2f;
    p = p * s + 1.3331958e-1f;
    p = p * s - 3.3333299e-1f;
    float e = exponential(-2.0f * fabsf(z));
    float large = copysignf((1.0f - e) * reciprocal(1.0f + e), z);
    return s < 0.36f ? z + z * (s * p) : large;  // NaN < 0.36 is false, and large is NaN then
}

// The normal distribution: P(Z < -|z|), from which both tails follow, and its density.
constexpr double one_over_sqrt_2 = 0.70710678118654752440;
constexpr double one_over_sqrt_2_pi = 0.39894228040143267794;
template <class C>
__device__ inline C normal_density(C z) {
    return C(one_over_sqrt_2_pi) * bell(z);
}
__device__ inline double lower_tail(double z) { return 0.5 * erfc(fabs(z) * one_over_sqrt_2); }
__device__ inline float lower_tail(float z) {
    // t p(t) e^(-z²/2) with t = 1 / (1 + 0.30469 |z|): p is fitted for the least largest relative error, 9e-8.
    float t = reciprocal(1.0f + 0.3046891477f * fabsf(z));
    float p = 0.03674989f;
    p = p * t - 0.15370804f;
    p = p * t + 0.18772005f;
    p = p * t - 0.03956143f;
    p = p * t + 0.12179649f;
    p = p * t + 0.10311532f;
    p = p * t + 0.12237389f;
    p = p * t + 0.12151389f;
    return t * p * bell(z);
}
template <class C>
__device__ inline C normal_distribution(C z) {
    C tail = lower_tail(z);
    return z > C(0) ? C(1) - tail : tail;
}

template <class C>
__device__ inline C logistic(C z) {
    return reciprocal(C(1) + exponential(-z));
}

// tanh's form of gelu, with u = √(2/π) (z + 0.044715 z³): z (1 + tanh(u)) / 2 = z logistic(2 u). A number that is added
// or multiplied with takes no register so.
template <class C>
__device__ inline C gelu_by_tanh(C z) {
    return z * logistic(C(0.07135481627260025) * z * (z * z + C(22.363860002236386)));
}

template <Activation A, class C>
__device__ inline C activate(C z) {
    if constexpr (A == Activation::relu) return z < C(0) ? C(0) : z;  // not fmaxf, which returns 0 for NaN
    if constexpr (A == Activation::sigmoid) return logistic(z);
    if constexpr (A == Activation::tanh) return hyperbolic_tangent(z);
    if constexpr (A == Activation::gelu) return z * normal_distribution(z);
    if constexpr (A == Activation::silu) return z * logistic(z);
    if constexpr (A == Activation::gelu_tanh) return gelu_by_tanh(z);
    if constexpr (A == Activation::leaky_relu) return z > C(0) ? z : C(0.01) * z;
    if constexpr (A == Activation::identity) return z;
}

// gradient · act'(z), from `value`: the output where derivative_reads_output, z where derivative_reads_input. Of a
// pointwise op's activations: fused_mlp's backward is Triton's.
template <Activation A, class C>
__device__ inline C input_gradient(C gradient, C value) {
    if constexpr (A == Activation::relu) return value <= C(0) ? C(0) : gradient;  // a product would make Inf · 0 NaN
    if constexpr (A == Activation::sigmoid) return gradient * (C(1) - value) * value;
    if constexpr (A == Activation::tanh) return gradient * (C(1) - value * value);
    if constexpr (A == Activation::gelu) return gradient * (normal_distribution(value) + value * normal_density(value));
    if constexpr (A == Activation::silu) {
        C s = logistic(value);
        return gradient * (s * (C(1) + value * (C(1) - s)));
    }
    if constexpr (A == Activation::identity) return gradient;
}

#ifndef __CUDACC_RTC__
template <Activation A>
struct ActivationConstant {
    static constexpr Activation value = A;
};

// function(ActivationConstant<activation>): from a value at run time to one instance a kernel, of a pointwise op.
template <class Function>
cudaError_t with_activation(Activation activation, Function function) {
    switch (activation) {
#define FUSED_ACTIVATION(name) \
    case Activation::name: return function(ActivationConstant<Activation::name>{});
        FUSED_POINTWISE_ACTIVATIONS(FUSED_ACTIVATION)
#undef FUSED_ACTIVATION
        default: return cudaErrorInvalidValue;
    }
}
struct NamedActivation {
    const char* name;
    Activation activation;
};
#define FUSED_ACTIVATION(name) {#name, Activation::name},
constexpr NamedActivation pointwise_activations[] = {FUSED_POINTWISE_ACTIVATIONS(FUSED_ACTIVATION)};
constexpr NamedActivation named_activations[] = {FUSED_ACTIVATIONS(FUSED_ACTIVATION)};
#undef FUSED_ACTIVATION
inline cudaError_t find_activation(const char* name, Activation& activation) {
    for (const NamedActivation& known : named_activations)
        if (!strcmp(name, known.name)) return activation = known.activation, cudaSuccess;
    return cudaErrorInvalidValue;
}
// with_activation by name.
template <class Function>
cudaError_t with_activation(const char* name, Function function) {
    Activation activation;
    cudaError_t error = find_activation(name, activation);
    return error == cudaSuccess ? with_activation(activation, function) : error;
}
#endif
