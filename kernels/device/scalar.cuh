// A number that changes from call to call (a multiplier, a learning rate): its value at the launch, or where on the device
// the kernel reads it, so that a captured graph sees it change.
#pragma once

#include "device/launch.cuh"

struct Scalar {
    double value;
    const void* on_device;
    bool on_device_double;

    __host__ __device__ Scalar(double value, const void* on_device = nullptr, bool on_device_double = false)
        : value(value), on_device(on_device), on_device_double(on_device_double) {}

    template <class C>
    __device__ C get() const {
        if (!on_device) return C(value);
        return on_device_double ? C(*static_cast<const double*>(on_device)) : C(*static_cast<const float*>(on_device));
    }
};
