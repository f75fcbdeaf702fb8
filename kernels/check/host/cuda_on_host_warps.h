// What the threads of a warp do together, and atomics, for cuda_on_host.h.
#pragma once

#include <cstring>
#include <type_traits>

#include "check/host/cuda_on_host_fibers.h"
#include "check/host/cuda_on_host_numbers.h"

constexpr int warpSize = 32;

// -------------------------------------------------------------------------------------------------- votes and shuffles

namespace cuda_on_host {

// The lanes of the group whose predicate holds.
CUDA_ON_HOST_UNSEEN inline unsigned vote(const char* where, unsigned mask, bool predicate) {
    wait_for_warp(where, mask, predicate);
    const Fiber* warp = warp_of(*current);
    unsigned holds = 0;
    for (unsigned lane = 0; lane < lanes_of_a_warp; ++lane)
        if (current->group >> lane & 1 && warp[lane].taken) holds |= 1u << lane;
    return holds;
}
CUDA_ON_HOST_UNSEEN inline unsigned group() { return current->group; }
CUDA_ON_HOST_UNSEEN inline int lane() { return int(current->number % lanes_of_a_warp); }

// What lane `source` gave. From a lane that did not take part CUDA gives anything; here bytes 0xFF, NaN in every dtype.
template <class T>
CUDA_ON_HOST_UNSEEN T shuffle(const char* where, unsigned mask, T value, int source, int width) {
    static_assert((std::is_arithmetic_v<T> && sizeof(T) >= 4) || std::is_same_v<T, __half> ||
                  std::is_same_v<T, __nv_bfloat16>);
    if (width < 1 || width > 32 || width & (width - 1)) {
        fail("%s: the width is %d, and must be a power of two up to 32", where, width);
        stop();
    }
    uint64_t given = 0, taken = ~0ull;
    memcpy(&given, &value, sizeof value);
    wait_for_warp(where, mask, given);
    if (current->group >> source & 1) taken = warp_of(*current)[source].taken;
    memcpy(&value, &taken, sizeof value);
    return value;
}

// What lane `lane` lent in the meeting of with_lanes.
CUDA_ON_HOST_UNSEEN inline const void* lent(int lane) {
    return reinterpret_cast<const void*>(warp_of(*current)[lane].taken);
}

// For what the 32 lanes of a warp do with one another's registers: function(of), in which of(lane) is the address that
// this lane gave. All lanes meet before it and after it.
template <class Function>
void with_lanes(const void* own, Function function) {
    wait_for_warp_in_order(0xffffffff, reinterpret_cast<uint64_t>(own));
    function([](int lane) { return lent(lane); });
    wait_for_warp_in_order(0xffffffff);
}

}  // namespace cuda_on_host

inline void __syncwarp(unsigned mask = 0xffffffff) { cuda_on_host::wait_for_warp_in_order(mask); }
inline unsigned __ballot_sync(unsigned mask, int predicate) {
    return cuda_on_host::vote("__ballot_sync", mask, predicate);
}
inline int __any_sync(unsigned mask, int predicate) { return cuda_on_host::vote("__any_sync", mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) {
    return cuda_on_host::vote("__all_sync", mask, predicate) == cuda_on_host::group();
}
// CUDA does not say which lanes are active together; assume only the caller's own.
inline unsigned __activemask() { return 1u << cuda_on_host::lane(); }

// A warp is cut into groups of `width` lanes. A source beyond the own group is the lane itself; __shfl_xor_sync may
// read from groups before its own. Only the lowest 5 bits of a distance count, as PTX says of shfl.sync: 33 is 1.
template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = warpSize) {
    int first = cuda_on_host::lane() & ~(width - 1);
    return cuda_on_host::shuffle("__shfl_sync", mask, value, first + (source & (width - 1)), width);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = warpSize) {
    int lane = cuda_on_host::lane(), place = lane & (width - 1);
    int distance = int(delta & 31), source = distance <= place ? lane - distance : lane;
    return cuda_on_host::shuffle("__shfl_up_sync", mask, value, source, width);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = warpSize) {
    int lane = cuda_on_host::lane(), place = lane & (width - 1);
    int distance = int(delta & 31), source = distance < width - place ? lane + distance : lane;
    return cuda_on_host::shuffle("__shfl_down_sync", mask, value, source, width);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = warpSize) {
    int lane = cuda_on_host::lane(), source = lane ^ (bits & 31);
    return cuda_on_host::shuffle("__shfl_xor_sync", mask, value, source <= (lane | (width - 1)) ? source : lane, width);
}

// ------------------------------------------------------------------------------------------------------------- atomics

// They order nothing, as on a GPU, and do not race with one another; with a plain access beside them they do, and
// ThreadSanitizer says so. Overloads are CUDA's.
namespace cuda_on_host {
template <class T, class... Allowed>
constexpr bool is_one_of = (std::is_same_v<T, Allowed> || ...);

// *address = function(*address); the old value.
template <class T, class Function>
T update(T* address, Function function) {
    T old, value;
    __atomic_load(address, &old, __ATOMIC_RELAXED);
    do value = function(old);
    while (!__atomic_compare_exchange(address, &old, &value, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return old;
}
}  // namespace cuda_on_host

template <class T>
T atomicAdd(T* address, std::type_identity_t<T> value) {
    static_assert(cuda_on_host::is_one_of<T, int, unsigned, unsigned long long, float, double>);
    // Signed numbers wrap round, which in C++ only unsigned ones do.
    if constexpr (std::is_same_v<T, int>)
        return cuda_on_host::update(address, [&](int old) { return int(unsigned(old) + unsigned(value)); });
    else
        return cuda_on_host::update(address, [&](T old) { return old + value; });
}
template <class T>
T atomicMax(T* address, std::type_identity_t<T> value) {
    static_assert(cuda_on_host::is_one_of<T, int, unsigned, long long, unsigned long long>);
    return cuda_on_host::update(address, [&](T old) { return old < value ? value : old; });
}
template <class T>
T atomicMin(T* address, std::type_identity_t<T> value) {
    static_assert(cuda_on_host::is_one_of<T, int, unsigned, long long, unsigned long long>);
    return cuda_on_host::update(address, [&](T old) { return value < old ? value : old; });
}
template <class T>
T atomicExch(T* address, std::type_identity_t<T> value) {
    static_assert(cuda_on_host::is_one_of<T, int, unsigned, unsigned long long, float>);
    return cuda_on_host::update(address, [&](T) { return value; });
}
template <class T>
T atomicCAS(T* address, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
    static_assert(cuda_on_host::is_one_of<T, int, unsigned, unsigned long long, unsigned short>);
    __atomic_compare_exchange(address, &expected, &value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return expected;  // where they differ, the value that was found
}

namespace cuda_on_host {
inline long long fences;
inline void fence() {
    release(&fences);
    acquire(&fences);
}
}  // namespace cuda_on_host
inline void __threadfence() { cuda_on_host::fence(); }
inline void __threadfence_block() { cuda_on_host::fence(); }
