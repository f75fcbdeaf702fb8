// dlrm_forward in a process without Python: what cuda_launch.py launches, for one model whose weights were laid out before
// and whose tables lie in one tensor. packaged.py writes the file that includes this, and the images of the kernels.
#pragma once

#include "cubin/launcher.h"
#include "library/stable_call.h"

namespace dlrm {

// A model and its kernels. Those whose tiles are a cluster's come first, one for each number of rows that a tile may have,
// fewest first; then the one of pairs of blocks, or, for a model that is none for it, those whose tiles are a block's. Of a
// small model, a row of which is a lane's, there is one alone.
struct Packaged {
    const char* op;
    ScalarType dtype;
    int64_t inputs, outputs, columns, tables, layers;  // K of dense, N of out, D of a vector, F, of both MLPs
    const int64_t *starts, *heights;                   // of each table: its first row in the tensor of all, and its rows
    int64_t all_rows, laid_out;                        // of that tensor; elements of the weights
    const int64_t* places;                             // of a lane's: where weights and then biases begin; null: in tiles
    const char* const* kernels;
    const int64_t *rows_of_kernel, *cluster_of_kernel;  // of a tile: its rows, and the blocks that share it
    const int64_t* weights_of_kernel;                   // where its own begin among what is laid out
    int64_t kernel_count;
};

constexpr int64_t size_of_report = 6;  // dispatch/input_errors.py; every id here has a row, and so nothing is reported

// How many of a kernel's tiles run at once. A GPC's multiprocessors come in pairs, and are no multiple of eight (cluster.py).
inline int64_t at_once(const Packaged& model, int64_t kernel, int64_t multiprocessors) {
    const int64_t cluster = model.cluster_of_kernel[kernel];
    return std::max<int64_t>(0, multiprocessors / cluster - (cluster > 2));
}

inline int64_t tiles_of(const Packaged& model, int64_t kernel, int64_t rows) {
    return (rows + model.rows_of_kernel[kernel] - 1) / model.rows_of_kernel[kernel];
}

// The first kernel all of whose tiles run at once; else the last one (design_of of cuda_launch.py).
inline int64_t kernel_for(const Packaged& model, int64_t rows, int64_t multiprocessors) {
    for (int64_t i = 0; i < model.kernel_count - 1; ++i)
        if (tiles_of(model, i, rows) <= at_once(model, i, multiprocessors)) return i;
    return model.kernel_count - 1;
}

inline int64_t multiprocessors_here() {
    const cubin::Driver& cuda = cubin::driver();
    int device = 0, count = 0;
    constexpr int multiprocessor_count_id = 16;
    cuda.check(cuda.current_device(&device), "cuCtxGetDevice");
    cuda.check(cuda.device_attribute(&count, multiprocessor_count_id, device), "cuDeviceGetAttribute");
    return count;
}

// given: dense, the tables' tensor, rows, what is laid out, out, report.
inline void launch(const Packaged& model, cubin::Program& program, const fused::Argument* given, void* stream) {
    // All at the first call, which no CUDA graph captures: while one is captured nothing can be loaded.
    for (int64_t i = 0; i < model.kernel_count; ++i) {
        cubin::Kernel& kernel = program[model.kernels[i]];
        kernel.function(kernel.description()->shared);
    }
    const fused::Tensor &dense = given[0].tensor, &tables = given[1].tensor, &ids = given[2].tensor;
    const int64_t rows = dense.sizes[0], multiprocessors = multiprocessors_here();
    if (!rows) return;
    std::vector<int64_t> numbers;  // the kernel's one struct, every member of which has eight bytes
    auto pointer = [&](const void* address, int64_t bytes = 0) { numbers.push_back(int64_t(address) + bytes); };
    const int64_t size = model.dtype == ScalarType::Float ? 4 : 2;
    auto features = [&] {
        for (int64_t f = 0; f < model.tables; ++f) pointer(tables.data, model.starts[f] * model.columns * size);
        numbers.insert(numbers.end(), model.heights, model.heights + model.tables);
        for (int64_t f = 0; f < model.tables; ++f) pointer(ids.data, 8 * f);
        numbers.insert(numbers.end(), size_t(model.tables), model.tables);  // from one row's id to the next one's
    };
    const int64_t which = kernel_for(model, rows, multiprocessors), cluster = model.cluster_of_kernel[which];
    int64_t tiles = tiles_of(model, which, rows);
    pointer(dense.data);
    if (model.places) {
        features();
        for (int64_t i = 0; i < 2 * model.layers; ++i) pointer(given[3].tensor.data, model.places[i] * size);
        pointer(given[4].tensor.data), pointer(given[5].tensor.data), numbers.push_back(rows);
    } else {
        tiles = std::min(tiles, at_once(model, which, multiprocessors));  // those behind are taken by turns
        pointer(given[4].tensor.data), pointer(given[3].tensor.data, model.weights_of_kernel[which] * size);
        numbers.insert(numbers.end(), {rows, model.inputs, tiles});
        features();
        numbers.insert(numbers.end(), size_t(2 * model.tables), 0);  // offsets and numbers of ids, of bags alone
        pointer(given[5].tensor.data);
    }
    const cubin::Argument argument{numbers.data(), 8 * numbers.size(), 's'};
    cubin::Launch how({tiles * cluster}, stream);
    if (cluster > 1) how.cluster = {cluster};
    program[model.kernels[which]].launch(how, &argument, 1);
}

// dense [B, K], tables [all rows, D], rows int64 [B, F], laid_out → out [B, N].
inline Tensor forward(const Packaged& model, fused::Entry entry, const Tensor& dense, const Tensor& tables,
                      const Tensor& rows, const Tensor& laid_out) {
    const bool fits = dense.dim() == 2 && dense.size(1) == model.inputs && tables.dim() == 2 &&
                      tables.size(0) == model.all_rows && tables.size(1) == model.columns && rows.dim() == 2 &&
                      rows.size(0) == dense.size(0) && rows.size(1) == model.tables && laid_out.dim() == 1 &&
                      laid_out.size(0) == model.laid_out;
    STD_TORCH_CHECK(fits, model.op, ": made for another model: a shape differs");
    for (const Tensor* each : {&dense, &tables, &laid_out})
        STD_TORCH_CHECK(each->scalar_type() == model.dtype, model.op, ": made for another dtype");
    STD_TORCH_CHECK(rows.scalar_type() == ScalarType::Long, model.op, ": rows must be int64");
    // Kernels read both 16 bytes at a time. What an allocator gives begins at a multiple of 64 or more.
    STD_TORCH_CHECK((uintptr_t(tables.data_ptr()) | uintptr_t(laid_out.data_ptr())) % 16 == 0, model.op,
                    ": tables and weights must begin at multiples of 16 bytes");
    Tensor out = new_empty(dense, {dense.size(0), model.outputs}, model.dtype);
    Tensor report = new_empty(dense, {size_of_report}, ScalarType::Long);
#ifdef USE_CUDA
    // A thread that has called nothing of CUDA's runtime yet has no context, and a launch from it would fail.
    void* context = nullptr;
    if (cubin::driver().current_context(&context) || !context) cubin::use_device(dense.get_device_index());
#endif
    Call call(model.op, entry);
    for (const Tensor* each : {&dense, &tables, &rows, &laid_out}) call.give(*each, Use::read);
    call.give(out, Use::written), call.give(report, Use::written);
    call.run();
    return out;
}

// launch's error as the text that an Entry returns.
template <class Launch>
const char* told(Launch launch) {
    thread_local std::string error;
    try {
        launch();
        return nullptr;
    } catch (const std::exception& what) {
        error = what.what();
        return error.c_str();
    }
}

}  // namespace dlrm
