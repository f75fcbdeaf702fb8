// How cuda_on_host.h runs a grid. A CUDA thread is a fiber: a stack of its own, which runs until it waits for others or
// returns. A block's fibers take turns, warp by warp, so that every run is the same. What waits is let go when those
// that it waits for have come or returned; if none can be let go, the launch fails and says who waits for whom.
//
// To ThreadSanitizer each fiber is a thread, and only the waits that CUDA defines as barriers order what threads do:
// __syncthreads(), __syncwarp(), a grid barrier, a memory fence; not a shuffle, nor a vote.
#pragma once

#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#ifndef __x86_64__
#include <ucontext.h>
#endif
#ifdef CUDA_ON_HOST_RESIDENT_BLOCKS
#include <semaphore>
#include <thread>
#endif
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#endif

struct uint3 {
    unsigned x, y, z;
};
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

// --------------------------------------------------------------------------------------------------- threads and blocks

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
    std::unique_ptr<char[]> stack;
    const void* stack_bottom = nullptr;
    size_t stack_bytes = 0;
    void* for_asan = nullptr;
    void* for_tsan = nullptr;
};

struct Block {
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
    fiber.stack = std::make_unique_for_overwrite<char[]>(fiber.stack_bytes);
    fiber.stack_bottom = fiber.stack.get();
    fiber.context.start(fiber.stack.get(), fiber.stack_bytes, call_kernels);
#ifdef __SANITIZE_THREAD__
    fiber.for_tsan = __tsan_create_fiber(0);
#endif
}

// What a launch that failed left in the middle of a kernel. All that it did has happened before what follows: so much
// do these switches, there and back, tell ThreadSanitizer.
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
CUDA_ON_HOST_UNSEEN inline void wait_for_warp_in_order(unsigned mask) {
    long long* place = warp_of(*current)[__builtin_ctz(mask | 1u << 31)].meeting.place();
    release(place);
    wait_for_warp("__syncwarp", mask);
    acquire(place);
}

CUDA_ON_HOST_UNSEEN inline void wait_for_grid() {
    long long* place = grid_meeting.place();
    release(place);
    wait(State::at_grid, "grid_barrier");
    acquire(place);
}

// ------------------------------------------------------------------------------------------------------ the scheduler

// What `fiber` waits for and will not come, in words.
CUDA_ON_HOST_UNSEEN inline void explain(const Fiber& fiber) {
    const Fiber* warp = warp_of(fiber);
    for (unsigned lane = 0; lane < lanes_of_a_warp; ++lane) {
        const Fiber& other = warp[lane];
        if (!(fiber.mask >> lane & 1) || other.state == State::returned) continue;
        bool in_warp = other.state == State::at_warp;
        if (in_warp && other.mask == fiber.mask && !strcmp(other.where, fiber.where)) continue;
        char mask[24] = "";
        if (in_warp) snprintf(mask, sizeof mask, "(0x%08x)", other.mask);
        fail("block (%u, %u, %u): thread (%u, %u, %u) waits in %s(0x%08x) for thread (%u, %u, %u), which waits in %s%s",
             block->index.x, block->index.y, block->index.z, fiber.index.x, fiber.index.y, fiber.index.z, fiber.where,
             fiber.mask, other.index.x, other.index.y, other.index.z, other.where, mask);
        return;
    }
}

// Lets the groups of lanes go that are complete; whether there was one. A lane that has returned is not waited for.
CUDA_ON_HOST_UNSEEN inline bool let_groups_go(Fiber* warp, unsigned lanes) {
    unsigned alive = 0, waiting = 0;
    for (unsigned lane = 0; lane < lanes; ++lane) {
        alive |= unsigned(warp[lane].state != State::returned) << lane;
        waiting |= unsigned(warp[lane].state == State::at_warp) << lane;
    }
    bool any = false;
    while (waiting) {
        const Fiber& first = warp[__builtin_ctz(waiting)];
        unsigned group = 0, wanted = first.mask & alive;
        for (unsigned lane = 0; lane < lanes; ++lane)
            if (waiting >> lane & 1 && warp[lane].mask == first.mask && !strcmp(warp[lane].where, first.where))
                group |= 1u << lane;
        waiting &= ~group;
        if (group != wanted) continue;
        any = true;
        ++warp[__builtin_ctz(first.mask)].meeting.round;
        for (unsigned lane = 0; lane < lanes; ++lane) {
            if (!(group >> lane & 1)) continue;
            warp[lane].taken = warp[lane].given;
            warp[lane].group = group;
            warp[lane].state = State::ready;
        }
    }
    return any;
}

// Runs the threads of a warp until all wait for other warps, or returned.
CUDA_ON_HOST_UNSEEN inline void run_warp(Fiber* warp, unsigned lanes) {
    do {
        for (unsigned i = 0; i < lanes; ++i) {
            Fiber& fiber = warp[backwards ? lanes - 1 - i : i];
            if (fiber.state == State::ready) switch_to(fiber);
            if (failure[0]) return;
        }
    } while (let_groups_go(warp, lanes));
}

// The scheduler takes part in every round: what it did is seen by the threads, and what they did by it.
CUDA_ON_HOST_UNSEEN inline void next_round() {
    release(block->meeting.place());
    ++block->meeting.round;
    acquire(block->meeting.place_before());
}

CUDA_ON_HOST_UNSEEN inline void begin_block() {
    for (unsigned i = 0; i < block->threads; ++i) {
        Fiber& fiber = block->fibers[i];
        if (!fiber.stack_bottom) make(fiber);
        fiber.state = State::ready;
        fiber.number = i;
        fiber.index = {i % blockDim.x, i / blockDim.x % blockDim.y, i / blockDim.x / blockDim.y};
    }
    current = &block->scheduler;
#ifdef __SANITIZE_THREAD__
    current->for_tsan = __tsan_get_current_fiber();
#endif
    next_round();
}

// Runs the block until all its threads have returned (true), or wait for the grid, or cannot go on, which is a failure.
CUDA_ON_HOST_UNSEEN inline bool run_block() {
    unsigned warps = (block->threads + lanes_of_a_warp - 1) / lanes_of_a_warp;
    current = &block->scheduler;
    for (;;) {
        for (unsigned i = 0; i < warps && !failure[0]; ++i) {
            unsigned first = (backwards ? warps - 1 - i : i) * lanes_of_a_warp;
            run_warp(&block->fibers[first],
                     block->threads - first < lanes_of_a_warp ? block->threads - first : lanes_of_a_warp);
        }
        unsigned returned = 0, at_block = 0, at_grid = 0;
        for (unsigned i = 0; i < block->threads && !failure[0]; ++i) {
            State state = block->fibers[i].state;
            returned += state == State::returned;
            at_block += state == State::at_block;
            at_grid += state == State::at_grid;
            if (state == State::at_warp) explain(block->fibers[i]);
        }
        if (at_grid && at_grid < block->threads)
            fail("block (%u, %u, %u): %u of its %u threads wait in grid_barrier", block->index.x, block->index.y,
                 block->index.z, at_grid, block->threads);
        acquire(failure);
        if (failure[0]) return false;
        if (!at_block) {
            next_round();
            return returned == block->threads;
        }
        block->agreed = 0;
        for (unsigned i = 0; i < block->threads; ++i) {
            if (block->fibers[i].state != State::at_block) continue;
            block->agreed += block->fibers[i].given != 0;
            block->fibers[i].state = State::ready;
        }
        next_round();
    }
}

// ----------------------------------------------------------------------------------------------------------- the grids

// The dynamic shared memory of one block, exactly so large that AddressSanitizer sees its ends. Its bytes are 0xFF at
// first, which are NaN in every dtype.
class SharedMemory {
public:
    explicit SharedMemory(size_t bytes) : bytes_(bytes) {
        if (bytes && posix_memalign(&memory_, 128, bytes)) abort();
    }
    ~SharedMemory() { free(memory_); }
    SharedMemory(const SharedMemory&) = delete;
    char* fresh() {
        if (bytes_) memset(memory_, 0xFF, bytes_);
        return static_cast<char*>(memory_);
    }

private:
    void* memory_ = nullptr;
    size_t bytes_;
};

inline uint3 nth_block(unsigned long long n, dim3 grid) {
    return {unsigned(n % grid.x), unsigned(n / grid.x % grid.y), unsigned(n / grid.x / grid.y)};
}

inline void begin_grid(dim3 grid, dim3 threads, const std::function<void()>& call) {
    kernel = &call;
    gridDim = grid;
    blockDim = threads;
    failure[0] = 0;
}

// Whether the launch succeeded; why not is printed.
inline bool end_grid() {
    if (failure[0]) fprintf(stderr, "cuda_on_host: %s\n", failure);
    return !failure[0];
}

inline std::mutex launching;  // one launch at a time

// The blocks one after the other. Calls the kernel once for each CUDA thread, with the built-in variables set.
inline bool run(dim3 grid, dim3 threads, size_t shared_bytes, const std::function<void()>& call) {
    std::lock_guard lock(launching);
    static Block& the_block = *new Block;
    begin_grid(grid, threads, call);
    SharedMemory shared(shared_bytes);
    unsigned long long blocks = 1ULL * grid.x * grid.y * grid.z;
    for (unsigned long long n = 0; n < blocks && !failure[0]; ++n) {
        block = &the_block;
        block->index = nth_block(backwards ? blocks - 1 - n : n, grid);
        block->threads = threads.x * threads.y * threads.z;
        block->shared_memory = shared.fresh();
        begin_block();
        if (!run_block()) fail("grid_barrier in a kernel that was not launched cooperatively");
    }
    if (failure[0]) discard(the_block);
    return end_grid();
}

#ifdef CUDA_ON_HOST_RESIDENT_BLOCKS
// All blocks are resident: each has a thread of the operating system, and so its own copy of what is thread_local, as
// __shared__ is then. They run one at a time, each until it has returned or all its threads wait for the grid.
struct Resident {
    std::unique_ptr<Block> block = std::make_unique<Block>();
    std::unique_ptr<SharedMemory> shared;
    std::binary_semaphore turn{0};
    bool returned = false;
    std::thread thread;
};

inline bool run_resident(dim3 grid, dim3 threads, size_t shared_bytes, const std::function<void()>& call) {
    std::lock_guard lock(launching);
    static std::vector<std::unique_ptr<Resident>>& residents = *new std::vector<std::unique_ptr<Resident>>;
    begin_grid(grid, threads, call);
    std::binary_semaphore back{0};
    unsigned blocks = grid.x * grid.y * grid.z;
    while (residents.size() < blocks) residents.push_back(std::make_unique<Resident>());
    for (unsigned n = 0; n < blocks; ++n) {
        Resident& resident = *residents[n];
        resident.shared = std::make_unique<SharedMemory>(shared_bytes);
        resident.returned = false;
        resident.block->index = nth_block(n, grid);
        resident.block->threads = threads.x * threads.y * threads.z;
        resident.block->shared_memory = resident.shared->fresh();
        resident.thread = std::thread([&resident, &back] {
            for (bool first = true; !resident.returned; first = false) {
                resident.turn.acquire();
                if (failure[0]) break;
                block = resident.block.get();
                if (first) begin_block();
                resident.returned = run_block();
                if (!resident.returned && !failure[0])
                    for (unsigned i = 0; i < block->threads; ++i) block->fibers[i].state = State::ready;
                back.release();
            }
        });
    }
    for (unsigned returned = 0; returned < blocks && !failure[0];) {
        returned = 0;
        for (unsigned i = 0; i < blocks && !failure[0]; ++i) {
            Resident& resident = *residents[backwards ? blocks - 1 - i : i];
            resident.turn.release();
            back.acquire();
            returned += resident.returned;
        }
        if (returned && returned < blocks && !failure[0])
            fail("%u of %u blocks wait in grid_barrier, the others have returned", blocks - returned, blocks);
        ++grid_meeting.round;
    }
    for (unsigned n = 0; n < blocks; ++n) {
        residents[n]->turn.release();
        residents[n]->thread.join();
        (void)residents[n]->turn.try_acquire();  // a turn that no one took is not left for the next launch
        if (failure[0]) discard(*residents[n]->block);
    }
    return end_grid();
}
#endif

}  // namespace cuda_on_host
