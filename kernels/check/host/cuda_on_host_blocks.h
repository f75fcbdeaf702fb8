// How cuda_on_host.h runs a grid. A block's threads take turns, warp by warp, so that every run is the same. What waits
// is let go when those that it waits for have come or returned; if none can be let go, the launch fails and says who
// waits for whom.
#pragma once

#include <pthread.h>

#include <functional>  // what <memory>, <mutex> or <atomic> includes takes longer to read than a kernel to compile

#ifdef CUDA_ON_HOST_RESIDENT_BLOCKS
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <memory>
#include <thread>
#include <vector>
#endif

#include "check/host/cuda_on_host_fibers.h"

namespace cuda_on_host {

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

inline void (*tell_launch)(const unsigned* sizes) = nullptr;  // of each grid and then of its blocks, x, y, z

inline void begin_grid(dim3 grid, dim3 threads, const std::function<void()>& call) {
    unsigned sizes[] = {grid.x, grid.y, grid.z, threads.x, threads.y, threads.z};
    if (tell_launch) tell_launch(sizes);
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

// One launch at a time.
struct Launching {
    Launching() { pthread_mutex_lock(&mutex); }
    ~Launching() { pthread_mutex_unlock(&mutex); }
    Launching(const Launching&) = delete;
    static inline pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
};

// The blocks one after the other. Calls the kernel once for each CUDA thread, with the built-in variables set.
inline bool run(dim3 grid, dim3 threads, size_t shared_bytes, const std::function<void()>& call) {
    Launching lock;
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
// Passed from one thread of the operating system to another. It orders nothing on a GPU, so ThreadSanitizer must not
// see it, as it would see a semaphore of the library.
class Turn {
public:
    CUDA_ON_HOST_UNSEEN void give() {
        __atomic_store_n(&given_, 1, __ATOMIC_RELEASE);
        syscall(SYS_futex, &given_, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
    }
    CUDA_ON_HOST_UNSEEN void take() {
        while (!__atomic_exchange_n(&given_, 0, __ATOMIC_ACQUIRE))
            syscall(SYS_futex, &given_, FUTEX_WAIT_PRIVATE, 0, nullptr, nullptr, 0);
    }

private:
    int given_ = 0;
};

// All blocks are resident: each has a thread of the operating system, and so its own copy of what is thread_local, as
// __shared__ is then. They run one at a time, each until it has returned or all its threads wait for the grid.
struct Resident {
    Block* block = nullptr;
    Turn turn;
    bool returned = false, ended = false;  // the block; its thread, which ends without it after a failure
    std::unique_ptr<SharedMemory> shared;
    std::thread thread;
};
inline Turn the_launchers_turn;

CUDA_ON_HOST_UNSEEN inline void run_resident_block(Resident* resident) {
    resident->turn.take();
    block = resident->block;
    if (!failure[0]) begin_block();
    while (!failure[0]) {
        block = resident->block;
        resident->returned = run_block();
        if (resident->returned) break;
        for (unsigned i = 0; i < block->threads; ++i) block->fibers[i].state = State::ready;
        the_launchers_turn.give();
        resident->turn.take();
    }
    resident->ended = true;
    the_launchers_turn.give();
}

CUDA_ON_HOST_UNSEEN inline void give_turn(Resident& resident) {
    if (resident.ended) return;
    resident.turn.give();
    the_launchers_turn.take();
}

CUDA_ON_HOST_UNSEEN inline void take_turns(Resident* residents, unsigned blocks) {
    for (unsigned returned = 0; returned < blocks && !failure[0];) {
        returned = 0;
        for (unsigned i = 0; i < blocks && !failure[0]; ++i) {
            Resident& resident = residents[backwards ? blocks - 1 - i : i];
            give_turn(resident);
            returned += resident.returned;
        }
        if (returned && returned < blocks)
            fail("%u of %u blocks wait in grid_barrier, the others have returned", blocks - returned, blocks);
        ++grid_meeting.round;
    }
    for (unsigned i = 0; i < blocks; ++i) give_turn(residents[i]);
}

inline bool run_resident(dim3 grid, dim3 threads, size_t shared_bytes, const std::function<void()>& call) {
    Launching lock;
    begin_grid(grid, threads, call);
    unsigned blocks = grid.x * grid.y * grid.z;
    static std::vector<Block*>& kept = *new std::vector<Block*>;  // from launch to launch, for their fibers
    while (kept.size() < blocks) kept.push_back(new Block);
    std::vector<Resident> residents(blocks);
    for (unsigned n = 0; n < blocks; ++n) {
        Resident& resident = residents[n];
        resident.shared = std::make_unique<SharedMemory>(shared_bytes);
        resident.block = kept[n];
        resident.block->index = nth_block(n, grid);
        resident.block->threads = threads.x * threads.y * threads.z;
        resident.block->shared_memory = resident.shared->fresh();
        resident.thread = std::thread(run_resident_block, &resident);
    }
    take_turns(residents.data(), blocks);
    for (Resident& resident : residents) resident.thread.join();
    acquire(failure);
    if (failure[0])
        for (Resident& resident : residents) discard(*resident.block);
    return end_grid();
}
#endif

}  // namespace cuda_on_host
