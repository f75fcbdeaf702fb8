// out[i] = the row that ids[i] names, or zeros           out [count, H]; rows of table, image and audio, as in eager.py
//
// Bytes: count rows read, count rows written. No arithmetic: a row is copied as its bits, in units of up to 16 bytes, so
// that one kernel serves every dtype, and a NaN stays what it is and where it is. Every thread has four loads of 16 bytes
// in flight, and waits for one id before them.
//
// The backward writes each row of a dense gradient once: the sum, in the order of their positions, of the gradients of
// the ids that name it. It reads count rows, and a long run of duplicates twice (see Pieces).
#pragma once

#include "device/integers.cuh"
#include "device/vector.cuh"

namespace vocabulary {

// [rows, H]. One that is not there is never named; one without rows can be, and what names it is a miss.
struct Source {
    const void* data;
    long long rows;
    bool there;
};

struct Request {
    Integers ids, indices;  // indices.data: null unless multimodal
    Source table, image, audio;
    long long vocab_size, image_token, audio_token;
};

// Where the row that id i names begins, or null. `units`: how many of them a row has.
template <class Unit>
__device__ inline const Unit* row_of(const Request& request, long long i, int units) {
    long long id = request.ids[i], row = id, rows = request.table.rows;
    const void* data = request.table.data;
    if (request.indices.data) {
        long long index = request.indices[i];  // before the id is looked at, so that both loads are under way
        if (request.image.there && id == request.image_token)
            data = request.image.data, rows = request.image.rows, row = index;
        else if (request.audio.there && id == request.audio_token)
            data = request.audio.data, rows = request.audio.rows, row = index;
    } else if (request.image.there && id >= request.vocab_size) {
        data = request.image.data, rows = request.image.rows, row = id - request.vocab_size;
    }
    return row >= 0 && row < rows ? static_cast<const Unit*>(data) + row * units : nullptr;
}

// A block takes a few whole rows, or a part of one: 2^shift threads along a row, `a_thread` units each.
constexpr int threads = 128, a_thread = 4;

// The row of a thread, and the first of its units there; unit u lies u << shift behind. Within a row 32 bits count: a
// grid is at most 65535 blocks high, so that a row of 2^31 units is an error of the launch.
struct Place {
    long long row;
    int first;
    __device__ explicit Place(int shift)
        : row((long long)blockIdx.x * (threads >> shift) + (threadIdx.x >> shift)),
          first(int((blockIdx.y * a_thread << shift) + (threadIdx.x & ((1u << shift) - 1)))) {}
};

template <class Unit>
__global__ void __launch_bounds__(threads)
    forward_kernel(Request request, Unit* __restrict__ out, long long count, int units, int shift) {
    Place place(shift);
    if (place.row >= count) return;
    const Unit* from = row_of<Unit>(request, place.row, units);
    Unit found[a_thread] = {};
#pragma unroll
    for (int u = 0; u < a_thread; ++u) {
        int k = place.first + (u << shift);
        if (from && k < units) found[u] = from[k];
    }
    Unit* to = out + place.row * units;
#pragma unroll
    for (int u = 0; u < a_thread; ++u) {
        int k = place.first + (u << shift);
        if (k < units) to[k] = found[u];
    }
}

// ----------------------------------------------------------------------------------------------------------- backward

// eager.by_row: the positions of the ids in the order of the rows that they name.
struct Grouping {
    Integers sorted_rows;
    const long long *positions, *starts;
    long long count, rows;
};

// The sums of `width` columns in each of a thread's units.
template <class T, int width>
struct Sums {
    Accumulator<T> value[a_thread][width] = {};

    __device__ void add(const T* row, int first, int columns, int shift) {
#pragma unroll
        for (int u = 0; u < a_thread; ++u) {
            int column = (first + (u << shift)) * width;
            if (column >= columns) continue;
            Pack<T, width> pack = load<width>(row + column);
#pragma unroll
            for (int e = 0; e < width; ++e) value[u][e] += widen(pack.element[e]);
        }
    }
    // Calls function(column, sum) for each column.
    template <class Function>
    __device__ void each(int first, int columns, int shift, Function function) {
#pragma unroll
        for (int u = 0; u < a_thread; ++u) {
            int column = (first + (u << shift)) * width;
            if (column >= columns) continue;
            function(column, value[u]);
        }
    }
};

// A row that many ids name (padding, an image's token) would be one block's work, term after term. So the positions are
// cut into pieces of `size`, a power of two: a piece that belongs to one row as a whole is summed by a block of its own,
// into a row of `sums`. What is added in which order hangs on the ids alone.
template <class A>
struct Pieces {
    A* sums;  // [count / size, columns]
    long long size;
};

template <class T, int width>
__global__ void __launch_bounds__(threads)
    piece_kernel(const T* __restrict__ grad, Grouping grouping, Pieces<Accumulator<T>> pieces, int columns,
                 int shift) {
    Place place(shift);
    long long start = place.row * pieces.size, end = start + pieces.size;
    if (end > grouping.count) return;
    long long row = grouping.sorted_rows[start];
    if (row != grouping.sorted_rows[end - 1] || row == grouping.rows) return;
    Sums<T, width> sums;
#pragma unroll 2
    for (long long k = start; k < end; ++k)
        sums.add(grad + grouping.positions[k] * columns, place.first, columns, shift);
    Accumulator<T>* to = pieces.sums + place.row * columns;
    sums.each(place.first, columns, shift, [&](int column, auto& values) {
#pragma unroll
        for (int e = 0; e < width; ++e) to[column + e] = values[e];
    });
}

// The gradient of one source, whose first row is number `first_row` of all.
template <class T, int width>
__global__ void __launch_bounds__(threads)
    backward_kernel(const T* __restrict__ grad, Grouping grouping, Pieces<Accumulator<T>> pieces,
                    T* __restrict__ grad_source, long long first_row, long long rows, int columns, int shift) {
    Place place(shift);
    if (place.row >= rows) return;
    const long long* starts = grouping.starts + first_row + place.row;
    long long k = starts[0], end = starts[1];
    Sums<T, width> sums;
    while (k < end) {
        long long next = (k | (pieces.size - 1)) + 1;
        if (next - k == pieces.size && next <= end) {
            const Accumulator<T>* from = pieces.sums + k / pieces.size * columns;
            sums.each(place.first, columns, shift, [&](int column, auto& values) {
#pragma unroll
                for (int e = 0; e < width; ++e) values[e] += from[column + e];
            });
            k = next;
            continue;
        }
        next = next < end ? next : end;
#pragma unroll 2
        for (; k < next; ++k) sums.add(grad + grouping.positions[k] * columns, place.first, columns, shift);
    }
    T* to = grad_source + place.row * columns;
    sums.each(place.first, columns, shift,
              [&](int column, auto& values) { store<width>(to + column, values); });
}

#ifndef __CUDACC_RTC__
// How rows of so many units are spread over threads.
struct Tiling {
    int shift = 0;
    dim3 grid;

    Tiling(long long rows, long long units) {
        // A warp to a row while it has 32 units; more threads when each has its four.
        long long lanes = units <= 32 ? units : units <= 32 * a_thread ? 32 : (units + a_thread - 1) / a_thread;
        while ((1LL << shift) < lanes && (1 << shift) < threads) ++shift;
        long long rows_a_block = threads >> shift, units_a_block = (long long)a_thread << shift;
        grid = dim3(unsigned((rows + rows_a_block - 1) / rows_a_block),
                    unsigned((units + units_a_block - 1) / units_a_block));
    }
};

template <class Unit>
cudaError_t launch_units(const Request& request, void* out, long long count, long long row_bytes,
                         cudaStream_t stream) {
    long long units = row_bytes / (long long)sizeof(Unit);
    Tiling tiling(count, units);
    return launch_kernel(forward_kernel<Unit>, tiling.grid, dim3(threads), 0, stream, request, static_cast<Unit*>(out),
                         count, int(units), tiling.shift);
}

// By the widest unit that rows are made of and all tensors are aligned to. An error is the launch's own.
inline cudaError_t launch(const Request& request, void* out, long long count, long long row_bytes,
                          cudaStream_t stream) {
    if (count == 0 || row_bytes == 0) return cudaSuccess;
    unsigned long long bits = (unsigned long long)row_bytes;
    for (const void* data : {(const void*)out, request.table.data, request.image.data, request.audio.data})
        bits |= reinterpret_cast<unsigned long long>(data);
    auto go = launch_units<Pack<unsigned short, 1>>;
    if (bits % 4 == 0) go = launch_units<Pack<unsigned, 1>>;
    if (bits % 8 == 0) go = launch_units<Pack<unsigned, 2>>;
    if (bits % 16 == 0) go = launch_units<Pack<unsigned, 4>>;
    return go(request, out, count, row_bytes, stream);
}

constexpr long long piece_size = 64;

inline long long workspace_size(long long count, long long columns, long long size = piece_size) {
    return count / size * columns;
}

// A gradient that is not needed: data null.
template <class T>
struct Gradient {
    T* data;
    long long rows;
};

// The sources in the order in which their rows are numbered; pieces.sums: workspace_size elements.
template <class T, int width>
cudaError_t launch_gradients(const T* grad, const Grouping& grouping, const Gradient<T> (&gradients)[3],
                             Pieces<Accumulator<T>> pieces, long long columns, cudaStream_t stream) {
    long long units = columns / width;
    cudaError_t error = cudaSuccess;
    if (long long count = grouping.count / pieces.size) {
        Tiling tiling(count, units);
        error = launch_kernel(piece_kernel<T, width>, tiling.grid, dim3(threads), 0, stream, grad, grouping, pieces,
                              int(columns), tiling.shift);
    }
    long long first_row = 0;
    for (const Gradient<T>& gradient : gradients) {
        if (gradient.data && gradient.rows && error == cudaSuccess) {
            Tiling tiling(gradient.rows, units);
            error = launch_kernel(backward_kernel<T, width>, tiling.grid, dim3(threads), 0, stream, grad, grouping,
                                  pieces, gradient.data, first_row, gradient.rows, int(columns), tiling.shift);
        }
        first_row += gradient.rows;
    }
    return error;
}

template <class T>
cudaError_t launch_backward(const T* grad, const Grouping& grouping, const Gradient<T> (&gradients)[3],
                            Accumulator<T>* sums, long long columns, cudaStream_t stream,
                            long long size = piece_size) {
    if (columns == 0) return cudaSuccess;
    bool whole = columns % widest<T> == 0 && aligned(grad, gradients[0].data, gradients[1].data, gradients[2].data);
    auto go = whole ? launch_gradients<T, widest<T>> : launch_gradients<T, 1>;
    return go(grad, grouping, gradients, {sums, size}, columns, stream);
}
#endif

}  // namespace vocabulary
