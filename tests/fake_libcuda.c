// A CUDA driver that launches nothing and records what it is given, for the tests of kernels/dispatch/ and
// kernels/cubin/. A test sets what it answers, and reads what it was asked, through ctypes. Context n is device n - 1's.
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { most_launches = 64, most_parameters = 32 };

struct launch {
    void* function;
    unsigned grid[3], block[3], shared, kind;  // kind: 0 plain, 1 cooperative, 2 early
    void* stream;
    int64_t parameters[most_parameters];
    unsigned cluster[3];
};

struct launch fake_launches[most_launches];
_Atomic int fake_launch_count, fake_load_count, fake_unload_count;  // several threads launch
int fake_attribute, fake_attribute_value;
int fake_parameter_bytes[most_parameters];  // 0: 8
int fake_context = 1, fake_capability = 90;  // the current context, 0 for none; of every device
int fake_parameters = 0, fake_load_result = 0, fake_function_result = 0, fake_launch_result = 0, fake_attribute_result = 0;
int fake_result_count = -1;  // how often load_result and function_result are given before success; -1: always
int fake_granted = 48 * 1024;  // bytes of dynamic shared memory that a kernel may have unless it asks for more
int fake_generation = 0;       // how often contexts were ended and made anew
int fake_capturing = 0;
int fake_multiprocessors = 132;  // an H200's
char fake_function_name[256];

static size_t bytes_of(size_t i) {
    return i < most_parameters && fake_parameter_bytes[i] ? (size_t)fake_parameter_bytes[i] : 8;
}
static int record(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                  unsigned shared, void* stream, void** parameters, unsigned kind, const unsigned* cluster) {
    if (fake_launch_result) return fake_launch_result;
    struct launch* made = &fake_launches[fake_launch_count++ % most_launches];
    *made = (struct launch){function, {gx, gy, gz}, {bx, by, bz}, shared, kind, stream, {0}, {0}};
    if (cluster) memcpy(made->cluster, cluster, sizeof made->cluster);
    for (int i = 0; i < fake_parameters && i < most_parameters; ++i)
        memcpy(&made->parameters[i], parameters[i], bytes_of(i));
    return 0;
}
int cuLaunchKernel(void* f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                   void* stream, void** parameters, void** extra) {
    return extra ? 1 : record(f, gx, gy, gz, bx, by, bz, shared, stream, parameters, 0, 0);
}
int cuLaunchCooperativeKernel(void* f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                              unsigned shared, void* stream, void** parameters) {
    return record(f, gx, gy, gz, bx, by, bz, shared, stream, parameters, 1, 0);
}
// CUlaunchConfig and CUlaunchAttribute, as cuda.h has them.
struct attribute {
    int id;
    char padding[4];
    union {
        char bytes[64];
        int cooperative, programmatic_stream_serialization_allowed;
        unsigned cluster[3];
        void* pointer;
    } value;
};
struct configuration {
    unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared;
    void* stream;
    struct attribute* attributes;
    unsigned count;
};
int cuLaunchKernelEx(const struct configuration* c, void* f, void** parameters, void** extra) {
    if (extra) return 1;
    const unsigned* cluster = 0;
    unsigned kind = 0;
    for (unsigned i = 0; i < c->count; ++i) {
        const struct attribute* given = &c->attributes[i];
        if (given->id == 4)
            cluster = given->value.cluster;
        else if (given->id == 2 && given->value.cooperative == 1)
            kind = 1;
        else if (given->id == 6 && given->value.programmatic_stream_serialization_allowed == 1)
            kind = 2;
        else
            return 1;
    }
    return record(f, c->grid_x, c->grid_y, c->grid_z, c->block_x, c->block_y, c->block_z, c->shared, c->stream, parameters,
                  kind, cluster);
}
static int counted(int result) {
    if (!result || !fake_result_count) return 0;
    if (fake_result_count > 0) --fake_result_count;
    return result;
}
int cuModuleLoadData(void** module, const void* image) {
    (void)image;
    *module = (void*)(uintptr_t)++fake_load_count;
    return counted(fake_load_result);
}
int cuModuleUnload(void* module) {
    (void)module, ++fake_unload_count;
    return 0;
}
int cuModuleGetFunction(void** function, void* module, const char* name) {
    strncpy(fake_function_name, name, sizeof fake_function_name - 1);
    *function = (void*)((uintptr_t)module + 1000);
    return counted(fake_function_result);
}
int cuFuncGetAttribute(int* value, int attribute, void* function) {
    (void)function, *value = fake_granted;
    return attribute != 8;
}
int cuFuncSetAttribute(void* function, int attribute, int value) {
    (void)function, fake_attribute = attribute, fake_attribute_value = value;
    return fake_attribute_result;
}
#ifndef BEFORE_CUDA_12_4
int cuFuncGetParamInfo(void* function, size_t index, size_t* offset, size_t* bytes) {
    (void)function, *offset = 8 * index, *bytes = bytes_of(index);
    return index < (size_t)fake_parameters ? 0 : 1;
}
#endif
int cuInit(unsigned flags) { return (int)flags; }
int cuCtxGetCurrent(void** context) {
    *context = (void*)(uintptr_t)fake_context;
    return 0;
}
#ifndef BEFORE_CUDA_12_4
int cuCtxGetId(void* context, unsigned long long* id) {
    *id = 1000 * (unsigned long long)fake_generation + (uintptr_t)context;
    return 0;
}
#endif
int cuStreamIsCapturing(void* stream, int* status) {
    (void)stream, *status = fake_capturing;
    return 0;
}
int cuCtxGetDevice(int* device) {
    *device = fake_context - 1;
    return 0;
}
int cuDeviceGetAttribute(int* value, int attribute, int device) {
    *value = attribute == 75 ? fake_capability / 10 : attribute == 76 ? fake_capability % 10 : fake_multiprocessors;
    return device < 0 || (attribute != 75 && attribute != 76 && attribute != 16);
}
int cuDevicePrimaryCtxRetain(void** context, int device) {
    *context = (void*)(uintptr_t)(device + 1);
    return 0;
}
int cuCtxSetCurrent(void* context) {
    fake_context = (int)(uintptr_t)context;
    return !context;
}
int cuCtxPushCurrent_v2(void* context) { return !context; }
int cuCtxPopCurrent_v2(void** context) { return cuCtxGetCurrent(context); }
int cuMemAlloc_v2(void** data, size_t bytes) {
    *data = aligned_alloc(256, (bytes + 255) / 256 * 256);
    return !*data;
}
int cuMemFree_v2(void* data) {
    free(data);
    return 0;
}
int cuMemcpyHtoD_v2(void* to, const void* from, size_t bytes) {
    memcpy(to, from, bytes);
    return 0;
}
int cuMemcpyDtoH_v2(void* to, const void* from, size_t bytes) { return cuMemcpyHtoD_v2(to, from, bytes); }
int cuGetErrorName(int result, const char** name) {
    *name = result == 209   ? "CUDA_ERROR_NO_BINARY_FOR_GPU"
            : result == 200 ? "CUDA_ERROR_INVALID_IMAGE"
            : result == 222 ? "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"
            : result == 500 ? "CUDA_ERROR_NOT_FOUND"
                            : "CUDA_ERROR_FAKE";
    return 0;
}
