// For watch.cpp: of a grid that is too large to run, the threads that come to the ends of buffers larger than memory.
//
// Nothing is assumed of how a kernel deals its elements out, but for the search: along each axis of the grid and of a
// block, the place of a thread's last access rises with the thread's number up to some thread, and beyond it starts
// again from below, or there is none. So it is if a thread takes one element or several, if a block takes rows, and if a loop
// goes on by the stride of the grid. The thread with the last access of all is then found by halving, axis by axis.
// Where it is not so, the ends stay unwritten, and what was looked at says whether that is the kernel's fault.
#pragma once

#include <algorithm>
#include <array>
#include <climits>
#include <cstdlib>
#include <functional>
#include <set>
#include <string>
#include <vector>

namespace ends {

constexpr unsigned long long most_accesses = 1ULL << 25;  // of all runs together
constexpr unsigned long long many_accesses = 1ULL << 20;  // of a block, with which few threads of it are run
constexpr unsigned axes = 6, most_sought = 256, warp = 32;
constexpr double most_seconds = 5;  // of the processor's time, after which the search ends as it is
using Place = std::array<unsigned, axes>;  // block x, y, z; thread x, y, z

// What a run of one thread, or of a block, accessed of the buffers larger than the memory. falls: it wrote once before
// the place that it had written last.
struct Seen {
    unsigned long long accesses = 0, writes = 0;
    long long first = LLONG_MAX, last = -1, written = -1;
    bool falls = false;
};

struct Search {
    Place sizes;
    // Runs the threads of a block whose numbers lie in [first, last].
    std::function<Seen(const Place& block, unsigned first, unsigned last)> run;
    std::function<bool(bool at_end)> covered;  // whether the sought elements of this end are written
    bool together = false;                     // threads of a block wait for each other, so that only blocks are run
    bool exhausted = false;                    // most_accesses were made
    bool falls = false;                        // … and by a run that had begun again from below
    unsigned sought = most_sought, samples = 16;
    // What the samples, blocks or, where few threads are run, threads all over the grid, wrote: together, and at most.
    unsigned long long writes = 0, most = 0;

    bool few() const { return sought < most_sought && !together; }
    unsigned long long blocks() const { return 1ULL * sizes[0] * sizes[1] * sizes[2]; }
    unsigned long long parts() const { return blocks() * (few() ? threads() : 1); }
    unsigned threads() const { return sizes[3] * sizes[4] * sizes[5]; }
    unsigned number(const Place& at) const { return (at[5] * sizes[4] + at[4]) * sizes[3] + at[3]; }

    Seen run_threads(const Place& at, unsigned first, unsigned last) {
        if (exhausted) return {};
        Seen seen = run(at, together ? 0 : first, together ? threads() - 1 : last);
        if (exhausted) falls = seen.falls;
        return seen;
    }
    Seen run_thread(const Place& at) {
        unsigned thread = number(at);
        bool before = together;
        Seen seen = run_threads(at, thread, thread);
        return together == before ? seen : run_threads(at, 0, 0);
    }

    // The thread whose accesses come nearest to the end, or to the beginning.
    Place nearest(bool to_end) {
        Place at{};
        auto value = [&] {
            Seen seen = run_thread(at);
            return !seen.accesses ? LLONG_MIN : to_end ? seen.last : -seen.first;
        };
        for (unsigned axis = 0; axis < (together ? 3 : axes); ++axis) {
            at[axis] = 0;
            if (sizes[axis] == 1) continue;
            long long least = value();
            auto holds = [&](unsigned index) { return at[axis] = index, value() >= least; };
            unsigned low = 0, high = sizes[axis] - 1;
            if (holds(high)) low = high;
            while (high - low > 1 && !exhausted) (holds(low + (high - low) / 2) ? low : high) = low + (high - low) / 2;
            at[axis] = low;
        }
        return at;
    }

    void run_some() {
        for (unsigned k = 0; k < samples; ++k) {
            unsigned long long n = (blocks() - 1) * k / (samples - 1);
            Place at{unsigned(n % sizes[0]), unsigned(n / sizes[0] % sizes[1]), unsigned(n / sizes[0] / sizes[1])};
            unsigned long long wrote = run_threads(at, 0, few() ? 0 : threads() - 1).writes;
            writes += wrote;
            most = std::max(most, wrote);
        }
        for (unsigned corner = 0; corner < 8 && !few(); ++corner) {
            Place at{};
            for (unsigned axis = 0; axis < 3; ++axis) at[axis] = corner >> axis & 1 ? sizes[axis] - 1 : 0;
            run_threads(at, 0, threads() - 1);
        }
    }

    // The blocks around a place, the nearest first, until the end is covered.
    void run_around(const Place& at, bool at_end) {
        unsigned thread = number(at);
        if (few()) {
            unsigned first = at_end ? thread - std::min(thread, warp - 1) : thread;
            run_threads(at, first, std::min(first + warp, threads()) - 1);
            return;
        }
        int reach = int(std::min(most_sought / sizes[3], warp)) + 2;
        std::set<std::pair<int, Place>> blocks;
        for (int x = -reach; x <= reach; ++x)
            for (int y = -reach; y <= reach; ++y)
                for (int z = -reach; z <= reach; ++z) {
                    Place block{};
                    int steps[] = {x, y, z};
                    for (int axis = 0; axis < 3; ++axis) {
                        long long size = sizes[axis];
                        block[axis] = unsigned((at[axis] + steps[axis] + size * warp * 4) % size);
                    }
                    blocks.insert({abs(x) + abs(y) + abs(z), block});
                }
        std::set<Place> ran;
        for (auto& [distance, block] : blocks)
            if (!covered(at_end) && !exhausted && ran.insert(block).second) run_threads(block, 0, threads() - 1);
    }

    void all() {
        Seen seen = run_thread({});
        most = seen.writes;
        if (seen.accesses * threads() > many_accesses) sought = warp, samples = 4;
        run_some();
        run_around({}, false);
        for (bool at_end : {true, false})
            if (!covered(at_end)) run_around(nearest(at_end), at_end);
    }
};

}  // namespace ends
