// A step of SGD on MLPs in one buffer, of gradients in parts (weights.cuh): w -= lr · (Σ of the parts + decay · w).
//
// The parts are added up in their order: every run gives the same bits. A thread takes four numbers.
//
// Bytes of a number: 4 a part, and 8. FLOPs: one a part, and 2 to 4.
#pragma once

#include "device/vector.cuh"

namespace fused_mlp {

constexpr int sgd_numbers = 4;  // of a thread

// Every member has eight bytes. gradient: [parts, elements]; rate: one number on the device, which a captured graph sees
// change.
struct SGDCall {
    float* weights;
    const float *gradient, *rate;
    double decay;
    long long elements, parts;
};

template <int count>
__device__ void sgd_step(const SGDCall& call, long long first) {
    Pack<float, count> sum = load<count>(call.gradient + first);
    const Pack<float, count> weights = load<count>(call.weights + first);
#pragma unroll 4
    for (long long part = 1; part < call.parts; ++part) {
        const Pack<float, count> other = load<count>(call.gradient + part * call.elements + first);
#pragma unroll
        for (int e = 0; e < count; ++e) sum.element[e] += other.element[e];
    }
    const float rate = *call.rate, decay = float(call.decay);
    float updated[count];
#pragma unroll
    for (int e = 0; e < count; ++e) {
        const float weight = weights.element[e];
        // Without decay a weight that is infinite leaves its gradient as it is.
        const float gradient = decay != 0.0f ? sum.element[e] + decay * weight : sum.element[e];
        updated[e] = weight - rate * gradient;
    }
    store<count>(call.weights + first, updated);
}

__device__ inline void sgd(const SGDCall& call) {
    wait_for_predecessor();
    let_successor_begin();
    const long long first = (blockIdx.x * 1LL * blockDim.x + threadIdx.x) * sgd_numbers;
    if (first >= call.elements) return;  // of which there are a multiple of 16, as packing.py lays them out
    if (reinterpret_cast<unsigned long long>(call.weights) % 16 == 0)
        sgd_step<sgd_numbers>(call, first);
    else
        for (int e = 0; e < sgd_numbers; ++e) sgd_step<1>(call, first + e);
}

}  // namespace fused_mlp
