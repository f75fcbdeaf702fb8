// How a warp brings the vectors of a row on chip: t_0, a row of dense, and of each feature the sum of the rows that its
// bag names. What is looked up, and where, is embedding_bags': its tables, its bags, its reports.
//
// Lane v knows where vector v begins, and all lanes copy: neighbouring ones neighbouring 16 bytes, by cp.async, which
// takes no register and goes on while the warp does something else. Bags of several ids are added up in registers.
#pragma once

#include "device/async_copy.cuh"
#include "ops/embedding_bags/kernel.cuh"

namespace lookup_interact {

using embedding_bags::Bags;
using embedding_bags::Place;
using embedding_bags::Range;
using embedding_bags::Tables;

constexpr int warps = 4, threads = 32 * warps;  // of a block
constexpr int most_vectors = 32;                // of a row: a lane each

__host__ __device__ inline int triangle(int i) { return i * (i - 1) / 2; }  // the place of pair (i, 0)

// What is looked up: rows [tables.rows, columns], dense [bags.batch, columns].
template <class T>
struct Call {
    Tables tables;
    Bags bags;
    const T *rows, *dense;
    long long columns, width;  // width: of a row of out, or of its gradient

    // A bag whose offsets are bad is clamped to what can be read, and told of by one thread.
    __device__ Bags::Bag bag(long long row, long long feature, bool tells) const {
        if (!bags.offsets) return {0, feature, row * bags.features + feature, row * bags.features + feature + 1};
        const long long i = feature * bags.batch + row;
        Bags::Bag bag = {0, feature, bags.offsets[i], bags.offsets[i + 1]};
        bags.check(bag, i, tables.report, tells);
        return bag;
    }
};

// Adds up `width` columns of the rows that ids begin … end - 1 name. The thread that has column 0 tells of ids that are
// out of range, if any does.
template <int width, class T, class Index>
__device__ inline void add_bag(const Call<T>& call, Accumulator<T> (&sums)[width], int feature, Index column,
                               Index columns, long long begin, long long end, bool tells) {
    const Range of = call.tables.of(feature);
    for (long long p = begin; p < end; ++p) {
        const long long id = call.bags.indices[p];
        const Place place = call.tables.find(id, of);
        if (!place.inside) {
            if (column == 0 && tells) call.tables.tell(id, feature, p);
            continue;
        }
        const Pack<T, width> pack = load<width>(call.rows + place.row * columns + column);
#pragma unroll
        for (int e = 0; e < width; ++e) sums[e] += widen(pack.element[e]);
    }
}

// How many vectors have a place on chip. Those that a row has not are zeros there, so that nobody asks which these are.
__host__ __device__ inline int places_of(int vectors) { return vectors > 16 ? 32 : 16; }

// Elements from vector to vector. Operands of tensor cores are read 8 lanes at a time, 64 bytes of two vectors: these
// begin an odd number of 64 bytes apart. Others are read 16 bytes of seven vectors at a time: an odd number of 16.
template <class T>
__host__ __device__ constexpr int stride_of(int columns, bool tensor_cores) {
    const int bytes = columns * int(sizeof(T));
    return (bytes + (tensor_cores ? (bytes % 128 ? 0 : 64) : (bytes % 32 ? 0 : 16))) / int(sizeof(T));
}

// Where a warp's memory lies on chip, in elements of T, behind the vectors' places.
struct Layout {
    int elements;             // how much all is; 0: the shape does not fit
    bool whole;               // rows of out, or of its gradient, are whole 16 bytes, aligned
    Columns<unsigned> parts;  // divides by the 16 bytes of a vector
};

// fixed: a vector's columns, 0 if that is known at the launch only. has_bags: bags of several ids, not one id each.
template <class T, bool tensor_cores, int fixed, bool has_bags>
struct Row {
    using Element = T;
    static constexpr int width = widest<T>, of_columns = fixed;

    const Call<T>& call;
    const Layout& layout;
    const int lane, features, columns, stride;
    T *const vectors, *const staged;  // on chip: the row's vectors; a row of out, or of its gradient
    AsyncCopies copies;
    Range table;

    __device__ Row(const Call<T>& call, const Layout& layout)
        : call(call), layout(layout), lane(int(threadIdx.x) % 32), features(int(call.bags.features)),
          columns(fixed ? fixed : int(call.columns)), stride(stride_of<T>(columns, tensor_cores)),
          vectors(dynamic_shared<T>() + int(threadIdx.x) / 32 * layout.elements),
          staged(vectors + places_of(features + 1) * stride),
          table(is_looked_up() ? call.tables.of(lane - 1) : Range{}) {}

    __device__ bool is_looked_up() const { return lane > 0 && lane <= features; }
    __device__ const T* vector(int v) const { return vectors + v * stride; }

    // The lane's id of a row, which is asked for a row ahead: the copies wait for it.
    __device__ long long id(long long row) const {
        if (has_bags || !is_looked_up() || row >= call.bags.batch) return 0;
        return call.bags.indices[row * features + lane - 1];
    }
    // Begins to bring the row's vectors. They are there behind a wait() of the warp, which has read the last row's.
    __device__ void begin(long long row, long long id) {
        if (row >= call.bags.batch) return;
        if constexpr (has_bags)
            pool(row);
        else
            look_up(row, id);
    }
    __device__ void wait() {
        copies.wait(0);
        __syncwarp();
    }

private:
    // give(v, column, is_there) for each 16 bytes of the vectors' places; all lanes come together, and those that have
    // none with is_there false.
    template <class Give>
    __device__ void each_part(Give give) const {
        if constexpr (fixed != 0) {
            constexpr int parts = fixed / width;  // 2 or 4: the lanes' parts are of 32 / parts vectors
#pragma unroll
            for (int i = 0; i < parts; ++i)
                if (i < parts / 2 || features >= 16) give(i * (32 / parts) + lane / parts, lane % parts * width, true);
        } else {
            const int parts = int(layout.parts.divisor), all = places_of(features + 1) * parts;
            for (int part = lane; part - lane < all; part += 32) {
                const int v = int(layout.parts.quotient(unsigned(part)));
                give(v, (part - v * parts) * width, part < all);
            }
        }
    }

    __device__ void look_up(long long row, long long id) {
        const T* from = lane ? nullptr : call.dense + row * columns;
        bool is_missing = false;
        if (is_looked_up()) {
            const Place place = call.tables.find(id, table);
            is_missing = !place.inside;
            if (place.inside) from = call.rows + place.row * columns;
        }
        each_part([&](int v, int column, bool is_there) {
            const auto begins = __shfl_sync(~0u, reinterpret_cast<unsigned long long>(from), v % 32);
            // Of a row that is not there nothing is read, and zeros are written.
            const T* own = reinterpret_cast<const T*>(begins);
            if (is_there)
                copies.copy_through_l1(vectors + v * stride + column, own ? own + column : call.dense, own != nullptr);
        });
        copies.commit();
        // After the copies, which would else wait for an atomic operation.
        if (is_missing) call.tables.tell(id, lane - 1, row * features + lane - 1);
    }

    __device__ void pool(long long row) {
        Bags::Bag bag = {};
        if (is_looked_up()) bag = call.bag(row, lane - 1, true);
        each_part([&](int v, int column, bool is_there) {
            const long long begin = __shfl_sync(~0u, bag.begin, v % 32), end = __shfl_sync(~0u, bag.end, v % 32);
            if (!is_there) return;
            T* const to = vectors + v * stride + column;
            if (v == 0) {
                *reinterpret_cast<Pack<T, width>*>(to) = load<width>(call.dense + row * columns + column);
                return;
            }
            float sums[width] = {};
            if (begin < end) add_bag<width>(call, sums, v - 1, column, columns, begin, end, true);
            store<width>(to, sums);
        });
    }
};

#ifndef __CUDACC_RTC__
// How a launch is cut, which a test may change.
struct Limits {
    int blocks = 0;      // at most; 0: as many as keep the GPU busy
    bool plain = false;  // the plain kernels alone
};

// Blocks of a multiprocessor. More than run at once, so that a multiprocessor that is done early takes another.
constexpr int blocks_of_multiprocessor = 16;

struct Device {
    int multiprocessors = 0, shared = 0;  // shared: bytes of a block, at most
    bool tensor_cores = true;             // of tf32, bfloat16 and half in one layout
};
inline cudaError_t this_device(Device& device) {
#ifdef __CUDACC__
    int number = 0, major = 0;
    cudaError_t error = cudaGetDevice(&number);
    auto ask = [&](int& value, cudaDeviceAttr attribute) {
        if (error == cudaSuccess) error = cudaDeviceGetAttribute(&value, attribute, number);
    };
    ask(device.multiprocessors, cudaDevAttrMultiProcessorCount);
    ask(device.shared, cudaDevAttrMaxSharedMemoryPerBlockOptin);
    ask(major, cudaDevAttrComputeCapabilityMajor);
    device.tensor_cores = major >= 8;
    return error;
#else
    device = {int(cuda_on_host::multiprocessors), int(cuda_on_host::shared_bytes_of_a_block), true};
    return cudaSuccess;
#endif
}

// A warp for each row, or for several; of_multiprocessor: blocks, at most.
inline dim3 grid_of_rows(long long rows, int of_multiprocessor, const Device& device, const Limits& limits) {
    const long long all = (rows + warps - 1) / warps;
    const long long most = limits.blocks ? limits.blocks : 1LL * of_multiprocessor * device.multiprocessors;
    return dim3(unsigned(all < most ? all : most));
}

// The layout for vectors that a warp can hold; staged: elements of a row of out, or of its gradient, and whatever else.
template <class T>
Layout layout_of(const Call<T>& call, bool tensor_cores, long long staged, bool whole, const Device& device) {
    constexpr int width = widest<T>;
    const long long bytes = call.columns * (long long)sizeof(T), vectors = call.bags.features + 1;
    const Layout none = {0, false, Columns<unsigned>(1)};
    // By FFMA a lane has 4 × 4 pairs: those of 28 vectors are 28 lanes'.
    const long long most = tensor_cores ? most_vectors : 28;
    if (vectors < 2 || vectors > most || bytes == 0 || bytes % 16 || bytes > 1 << 16 || staged > 1 << 16 ||
        !aligned(call.rows, call.dense) || (tensor_cores && !device.tensor_cores))
        return none;
    const int of_vectors = places_of(int(vectors)) * stride_of<T>(int(call.columns), tensor_cores);
    const int elements = (of_vectors + int(staged) + width - 1) / width * width;
    if (warps * elements * (long long)sizeof(T) > device.shared) return none;
    return {elements, whole && call.width % width == 0, Columns<unsigned>(call.columns / width)};
}

// The kernel with the layout for as many rows as there are.
template <class T, class... Parameters, class... Arguments>
cudaError_t launch_rows(void (*kernel)(Parameters...), const Call<T>& call, const Layout& layout, const Device& device,
                        const Limits& limits, cudaStream_t stream, Arguments... arguments) {
    const size_t shared = size_t(warps) * layout.elements * sizeof(T);
    if (shared > 48 * 1024)
        if (cudaError_t error = set_shared_memory_limit(kernel, shared); error != cudaSuccess) return error;
    const dim3 grid = grid_of_rows(call.bags.batch, blocks_of_multiprocessor, device, limits);
    return launch_kernel_early(kernel, grid, dim3(threads), shared, stream, call, layout, arguments...);
}
#endif

}  // namespace lookup_interact
