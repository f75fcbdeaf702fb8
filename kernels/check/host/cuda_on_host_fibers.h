// The CUDA threads of cuda_on_host.h. Each is a fiber: a stack of its own, which runs until it waits for others or
// returns. To ThreadSanitizer it is a thread, and only what CUDA defines as a barrier orders what threads do:
// __syncthreads(), __syncwarp(), a grid barrier, a memory fence; not a shuffle, nor a vote.
#pragma once

#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>

#ifndef __x86_64__
#include <ucontext.h>
#endif
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#endif

#include "check/host/vectors.h"

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

inline dim3 blockDim, gridDim;

namespace cuda_on_host {

// Runs the blocks of a grid, and the threads of a block, from the last to the first: a kernel whose result depends on
// their order then gives another one.
inline bool backwards = false;

constexpr unsigned lanes_of_a_warp = 32, most_threads = 1024;

// ThreadSanitizer must not see how fibers are switched and how they exchange values: neither has happened on a GPU.
#define CUDA_ON_HOST_UNSEEN __attribute__((no_sanitize("thread"), noinline))

CUDA_ON_HOST_UNSEEN inline void release([[maybe_unused]] void* address) {
#ifdef __SANITIZE_THREAD__
    __tsan_release(address);
#endif
}
CUDA_ON_HOST_UNSEEN inline void acquire([[maybe_unused]] void* address) {
#ifdef __SANITIZE_THREAD__
    __tsan_acquire(address);
#endif
}

// -------------------------------------------------------------------------------------------------------- the switch

#ifdef __x86_64__
// A stack that does not run is its stack pointer; on it lie the registers that a call preserves, and where to go on.
// swapcontext() does the same and a system call, and AddressSanitizer clears the shadow of the whole stack at each.
struct Context {
    void* stack_pointer = nullptr;

    void start(char* stack, size_t bytes, void (*function)()) {
        uintptr_t top = (reinterpret_cast<uintptr_t>(stack) + bytes) / 16 * 16;
        void** words = reinterpret_cast<void**>(top) - 8;
        memset(words, 0, 8 * sizeof(void*));  // six registers, the function, and no one to return to
        words[6] = reinterpret_cast<void*>(function);
        stack_pointer = words;
    }
};

// void switch_stacks(void** from, void* to)
__attribute__((naked, noinline, no_sanitize("address", "thread", "undefined"))) inline void switch_stacks(void**,
                                                                                                            void*) {
    asm("pushq %rbp\n pushq %rbx\n pushq %r12\n pushq %r13\n pushq %r14\n pushq %r15\n"
        "movq %rsp, (%rdi)\n movq %rsi, %rsp\n"
        "popq %r15\n popq %r14\n popq %r13\n popq %r12\n popq %rbx\n popq %rbp\n"
        "ret");
}
CUDA_ON_HOST_UNSEEN inline void switch_context(Context& from, Context& to) {
    switch_stacks(&from.stack_pointer, to.stack_pointer);
}
#else
struct Context {
    ucontext_t context{};

    void start(char* stack, size_t bytes, void (*function)()) {
        getcontext(&context);
        context.uc_stack.ss_sp = stack;
        context.uc_stack.ss_size = bytes;
        makecontext(&context, function, 0);
    }
};
CUDA_ON_HOST_UNSEEN inline void switch_context(Context& from, Context& to) { swapcontext(&from.context, &to.context); }
#endif

// -------------------------------------------------------------------------------------------------- threads and blocks

enum class State { ready, at_warp, at_block, at_grid, returned };

// Where threads meet. Whoever waits releases one address and acquires the same when let go; the next wait takes the
// other one, because a thread that goes on may come to it before the last has left this one.
struct Meeting {
    long long places[2];
    unsigned round = 0;
    CUDA_ON_HOST_UNSEEN long long* place() { return &places[round % 2]; }
    CUDA_ON_HOST_UNSEEN long long* place_before() { return &places[(round + 1) % 2]; }
};

struct Fiber {
    uint3 index{};        // threadIdx
    unsigned number = 0;  // in its block, x first
    State state = State::returned;
    const char* where = "";  // the function that it waits in
    unsigned mask = 0;       // at_warp: the lanes that it waits for
    unsigned group = 0;      // the lanes that met last
    uint64_t given = 0;      // what it brings to a vote or a shuffle,
    uint64_t taken = 0;      // and what its group may read of it until they meet again
    Meeting meeting;         // of the groups of which this is the lowest lane
    Context context{};
    char* stack = nullptr;  // freed by discard()
    const void* stack_bottom = nullptr;
    size_t stack_bytes = 0;
    void* for_asan = nullptr;
    void* for_tsan = nullptr;
};

struct Block {
    Block() = default;
    Block(const Block&) = delete;
    ~Block() { delete[] fibers; }

    uint3 index{};  // blockIdx
    unsigned threads = 0;
    unsigned agreed = 0;            // threads that came to the last barrier with a predicate that holds
    char* shared_memory = nullptr;  // the dynamic part
    Fiber scheduler;                // whoever runs this block
    Fiber* fibers = new Fiber[most_threads];  // kept from launch to launch: making them costs more than running them
    Meeting meeting;
};

inline Block* block = nullptr;    // that runs now: one at a time, also where many are resident
inline Fiber* current = nullptr;  // its fiber that runs now
inline Fiber* previous = nullptr;
inline const std::function<void()>* kernel = nullptr;
inline Meeting grid_meeting;
inline char failure[400];  // why this launch failed, or ""

CUDA_ON_HOST_UNSEEN inline const uint3& thread_index() { return current->index; }
CUDA_ON_HOST_UNSEEN inline const uint3& block_index() { return block->index; }
CUDA_ON_HOST_UNSEEN inline char* dynamic_shared_memory() { return block->shared_memory; }
CUDA_ON_HOST_UNSEEN inline unsigned agreed() { return block->agreed; }

CUDA_ON_HOST_UNSEEN inline void switch_to(Fiber& to) {
    previous = current;
    current = &to;
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_start_switch_fiber(&previous->for_asan, to.stack_bottom, to.stack_bytes);
#endif
#ifdef __SANITIZE_THREAD__
    __tsan_switch_to_fiber(to.for_tsan, __tsan_switch_to_fiber_no_sync);
#endif
    switch_context(previous->context, to.context);
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(current->for_asan, &previous->stack_bottom, &previous->stack_bytes);
#endif
}

// Gives the turn away until the scheduler has set this fiber to ready again.
CUDA_ON_HOST_UNSEEN inline void wait(State state, const char* where) {
    Fiber& fiber = *current;
    fiber.state = state;
    fiber.where = where;
    switch_to(block->scheduler);
}

// `failure` set: this fiber does not go on.
CUDA_ON_HOST_UNSEEN inline void stop() { wait(State::at_warp, "an error"); }

__attribute__((format(printf, 1, 2))) CUDA_ON_HOST_UNSEEN inline void fail(const char* format, ...) {
    if (failure[0]) return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(failure, sizeof failure, format, arguments);
    va_end(arguments);
    release(failure);
}

CUDA_ON_HOST_UNSEEN inline void begin_kernel() { acquire(block->meeting.place_before()); }
CUDA_ON_HOST_UNSEEN inline void end_kernel() {
    release(block->meeting.place());
    wait(State::returned, "");
}

CUDA_ON_HOST_UNSEEN inline void call_kernels() {
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(nullptr, &previous->stack_bottom, &previous->stack_bytes);
#endif
    for (;;) {
        begin_kernel();
        (*kernel)();
        end_kernel();
    }
}

inline void make(Fiber& fiber) {
    fiber.stack_bytes = 64 * 1024;
    fiber.stack = static_cast<char*>(malloc(fiber.stack_bytes));
    if (!fiber.stack) abort();
    fiber.stack_bottom = fiber.stack;
    fiber.context.start(fiber.stack, fiber.stack_bytes, call_kernels);
#ifdef __SANITIZE_THREAD__
    fiber.for_tsan = __tsan_create_fiber(0);
#endif
}

// Ends the fibers, in the middle of a kernel if the launch failed. All that they did has happened before what follows:
// this is what the switches, there and back, tell ThreadSanitizer.
CUDA_ON_HOST_UNSEEN inline void discard(Block& block) {
    for (unsigned i = 0; i < most_threads; ++i) {
        Fiber& fiber = block.fibers[i];
        if (!fiber.stack_bottom) continue;
#ifdef __SANITIZE_THREAD__
        void* here = __tsan_get_current_fiber();
        __tsan_switch_to_fiber(fiber.for_tsan, __tsan_switch_to_fiber_no_sync);
        __tsan_switch_to_fiber(here, 0);
        __tsan_destroy_fiber(fiber.for_tsan);
#endif
        free(fiber.stack);
        fiber = Fiber{};
    }
}

// ---------------------------------------------------------------------------------------------------------- the waits

CUDA_ON_HOST_UNSEEN inline void wait_for_block(const char* where, bool predicate = false) {
    long long* place = block->meeting.place();
    current->given = predicate;
    release(place);
    wait(State::at_block, where);
    acquire(place);
}

CUDA_ON_HOST_UNSEEN inline Fiber* warp_of(const Fiber& fiber) {
    return &block->fibers[fiber.number / lanes_of_a_warp * lanes_of_a_warp];
}

// Waits for the lanes of `mask`; afterwards their `taken` is what they gave.
CUDA_ON_HOST_UNSEEN inline void wait_for_warp(const char* where, unsigned mask, uint64_t given = 0) {
    unsigned lane = current->number % lanes_of_a_warp;
    if (!(mask >> lane & 1)) {
        fail("%s: lane %u calls it and is not in its mask 0x%08x", where, lane, mask);
        stop();
    }
    current->given = given;
    current->mask = mask;
    wait(State::at_warp, where);
}

// __syncwarp() orders what the lanes did, where a shuffle does not.
CUDA_ON_HOST_UNSEEN inline void wait_for_warp_in_order(unsigned mask, uint64_t given = 0) {
    long long* place = warp_of(*current)[__builtin_ctz(mask | 1u << 31)].meeting.place();
    release(place);
    wait_for_warp("__syncwarp", mask, given);
    acquire(place);
}

CUDA_ON_HOST_UNSEEN inline void wait_for_grid() {
    long long* place = grid_meeting.place();
    release(place);
    wait(State::at_grid, "grid_barrier");
    acquire(place);
}

}  // namespace cuda_on_host
