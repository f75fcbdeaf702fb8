// Memory on the GPU by the driver's own functions.
#pragma once

#include "cubin/launcher.h"

struct OnDevice {
    void* data = nullptr;

    explicit OnDevice(const std::vector<float>& values) : bytes_(values.size() * sizeof(float)) {
        cubin::Result (*allocate)(void**, size_t), (*copy)(void*, const void*, size_t);
        cubin::driver().find(allocate, "cuMemAlloc_v2"), cubin::driver().find(copy, "cuMemcpyHtoD_v2");
        cubin::driver().check(allocate(&data, bytes_), "cuMemAlloc");
        cubin::driver().check(copy(data, values.data(), bytes_), "cuMemcpyHtoD");
    }
    OnDevice(const OnDevice&) = delete;
    ~OnDevice() {
        cubin::Result (*release)(void*);
        cubin::driver().find(release, "cuMemFree_v2");
        release(data);
    }
    void copy_to(std::vector<float>& values) const {  // behind every launch in the default stream
        cubin::Result (*copy)(void*, const void*, size_t);
        cubin::driver().find(copy, "cuMemcpyDtoH_v2");
        cubin::driver().check(copy(values.data(), data, bytes_), "cuMemcpyDtoH");
    }

   private:
    size_t bytes_;
};
