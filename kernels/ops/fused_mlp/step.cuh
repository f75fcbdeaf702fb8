// An optimizer's step on MLPs in one buffer, of gradients in parts (weights.cuh):
//
//     g = Σ of the parts + decay · w        SGD: w -= lr · g        Adagrad: state += g², w -= lr · g / (√state + eps)
//
// The parts are added up in their order: every run gives the same bits. A thread takes four numbers.
//
// Bytes of a number: 4 a part, and 8, and as many for a state. FLOPs: one a part, and 2 to 10.
#pragma once

#include "device/vector.cuh"

namespace fused_mlp {

constexpr int step_numbers = 4;  // of a thread

// Every member has eight bytes. gradient: [parts, elements]; rate: one number on the device, which a captured graph sees
// change.
struct StepCall {
    float *weights, *state;
    const float *gradient, *rate;
    double decay, eps;
    long long elements, parts;
};

template <bool adagrad, int count>
__device__ void step(const StepCall& call, long long first) {
    Pack<float, count> sum = load<count>(call.gradient + first);
    const Pack<float, count> weights = load<count>(call.weights + first);
#pragma unroll 4
    for (long long part = 1; part < call.parts; ++part) {
        const Pack<float, count> other = load<count>(call.gradient + part * call.elements + first);
#pragma unroll
        for (int e = 0; e < count; ++e) sum.element[e] += other.element[e];
    }
    const float rate = *call.rate, decay = float(call.decay);
    float step[count];
#pragma unroll
    for (int e = 0; e < count; ++e)
        // Without decay a weight that is infinite leaves its gradient as it is.
        step[e] = decay != 0.0f ? sum.element[e] + decay * weights.element[e] : sum.element[e];
    if constexpr (adagrad) {
        const Pack<float, count> before = load<count>(call.state + first);
        float state[count];
#pragma unroll
        for (int e = 0; e < count; ++e) {
            state[e] = before.element[e] + step[e] * step[e];
            step[e] = rate * step[e] / (sqrtf(state[e]) + float(call.eps));
        }
        store<count>(call.state + first, state);
    }
    float updated[count];
#pragma unroll
    for (int e = 0; e < count; ++e) updated[e] = weights.element[e] - (adagrad ? step[e] : rate * step[e]);
    store<count>(call.weights + first, updated);
}

template <bool adagrad>
__device__ void run_step(const StepCall& call) {
    wait_for_predecessor();
    let_successor_begin();
    const long long first = (blockIdx.x * 1LL * blockDim.x + threadIdx.x) * step_numbers;
    if (first >= call.elements) return;  // of which there are a multiple of 16, as packing.py lays them out
    if ((reinterpret_cast<unsigned long long>(call.weights) | reinterpret_cast<unsigned long long>(call.state)) % 16 == 0)
        step<adagrad, step_numbers>(call, first);
    else
        for (int e = 0; e < step_numbers; ++e) step<adagrad, 1>(call, first + e);
}

}  // namespace fused_mlp
