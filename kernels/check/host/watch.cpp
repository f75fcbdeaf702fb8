// The program around a kernel on the host: it reads a request, runs the kernel's launch() over check/host/cuda_on_host.h with
// an eye on every load and store, and writes what came out.
//
//     watch REQUEST RESPONSE
//
// REQUEST   whole numbers of 64 bits: backwards, ends, buffers, and for each its bytes and segments, and for each of
//           these its offset and bytes; then integers, and each of them; then the segments' bytes
// RESPONSE  a line of JSON; then the segments' bytes, as they are now
//
// backwards: blocks and threads run in the reverse order. ends: a large grid is not run whole, but the threads that come
// to the segments of buffers larger than the memory (ends.h); what is written between the segments is not kept.
#include <stdio.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <functional>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "check/host/buffers.h"
#include "check/host/cuda_on_host.h"
#include "check/host/ends.h"

extern "C" void call_launch(void** buffers, const long long* integers);
extern "C" char __start_shared_memory[] __attribute__((weak));
extern "C" char __stop_shared_memory[] __attribute__((weak));

namespace {

constexpr size_t sector = 32;
constexpr unsigned most_blocks = 1 << 16;
// The processor's time, which others on the machine do not take; programs.py has the same numbers.
constexpr unsigned most_seconds = 3, most_seconds_of_ends = 15;

struct Shared {
    int writer = -1, reader = -1;
    unsigned written = 0, read = 0;  // barriers before it
};

std::vector<Buffer> buffers;
size_t given = 0;  // of the buffers; those behind are what a function may allocate
std::unordered_map<const char*, Shared> shared;
// (thread of the block, place in the code) → how often it was there, and the sectors of (warp, place, how often).
std::unordered_map<unsigned long long, unsigned> visits;
std::unordered_map<unsigned long long, std::tuple<int, int, std::set<long long>>> touched;
std::unordered_set<unsigned long long> writers;
std::vector<unsigned> barriers;
std::string response;
dim3 block_now, grid_now;
uint3 first_block{};
unsigned long long launched = 0;  // threads
unsigned long long shared_accesses = 0;
bool in_kernel = false, of_ends = false;
char* main_stack;

ends::Search search;
bool searches = false, alone = false;  // alone: one thread of several runs
ends::Seen seen_now;
unsigned first_thread = 0, last_thread = ~0u;  // of the block, that run
unsigned long long accesses = 0;
std::string twice;  // what two blocks wrote

[[noreturn]] void finish(const std::string& status, const std::string& text) {
    FILE* file = fopen(response.c_str(), "wb");
    fprintf(file,
            "{\"status\": \"%s\", \"text\": \"%s\", \"threads\": %zu, \"launched\": %llu, \"shared\": %llu, \"counts\": [",
            status.c_str(), text.c_str(), writers.size(), launched, shared_accesses);
    for (size_t i = 0; i < buffers.size(); ++i) {
        const Buffer& b = buffers[i];
        fprintf(file, "%s[%llu, %llu, %llu, %llu]", i ? ", " : "", b.requests[0], b.sectors[0], b.requests[1],
                b.sectors[1]);
    }
    fprintf(file, "]");
    if (searches)
        fprintf(file,
                ", \"ends\": {\"sought\": %u, \"parts\": %llu, \"sampled\": %u, \"writes\": %llu, \"most\": %llu, "
                "\"exhausted\": %s, \"falls\": %s, \"twice\": \"%s\"}",
                search.sought, search.parts(), search.samples, search.writes, search.most,
                search.exhausted ? "true" : "false", search.falls ? "true" : "false", twice.c_str());
    fprintf(file, "}\n");
    for (const Buffer& buffer : buffers)
        for (const Segment& segment : buffer.segments) fwrite(buffer.start + segment.offset, 1, segment.bytes, file);
    fclose(file);
    _exit(0);
}

unsigned thread_number() {
    uint3 at = cuda_on_host::thread_index();
    return (at.z * block_now.y + at.y) * block_now.x + at.x;
}
unsigned long long block_number() {
    uint3 at = cuda_on_host::block_index();
    return first_block.x + at.x +
           1ULL * grid_now.x * (first_block.y + at.y + 1ULL * grid_now.y * (first_block.z + at.z));
}
std::string named(unsigned long long thread) {
    return "thread " + std::to_string(thread & 1023) + " of block " + std::to_string(thread >> 10);
}
std::string here() { return named(block_number() << 10 | thread_number()); }

void next_block() {
    for (auto& [key, value] : touched) {
        auto& [buffer, writes, sectors] = value;
        ++buffers[buffer].requests[writes];
        buffers[buffer].sectors[writes] += sectors.size();
    }
    for (size_t thread = 1; thread < barriers.size(); ++thread)
        if (barriers[thread] != barriers[0])
            finish("unmet", "thread 0 reached " + std::to_string(barriers[0]) + " __syncthreads(), and thread " +
                                std::to_string(thread) + " reached " + std::to_string(barriers[thread]));
    touched.clear();
    visits.clear();
    shared.clear();
    barriers.assign(block_now.x * block_now.y * block_now.z, 0);
}

void look_at_shared(const char* address, bool writes) {
    int thread = int(thread_number());
    unsigned now = barriers[thread];
    Shared& seen = shared[address];
    long place = (address - __start_shared_memory) / 4;
    bool after = seen.writer >= 0 && seen.writer != thread && seen.written == now;
    bool before = writes && seen.reader >= 0 && seen.reader != thread && seen.read == now;
    if (!writes && seen.writer < 0)
        finish("unset", here() + " reads element " + std::to_string(place) +
                            " of shared memory, which no thread has written");
    if (after || before)
        finish("race", "thread " + std::to_string(after ? seen.writer : seen.reader) + (after ? " writes" : " reads") +
                           " element " + std::to_string(place) + " of shared memory and thread " +
                           std::to_string(thread) + (writes ? " writes" : " reads") +
                           " it, with no __syncthreads() in between");
    if (writes)
        seen.writer = thread, seen.written = now;
    else
        seen.reader = thread, seen.read = now;
}

unsigned long long seen_block = ~0ULL;

// Ends the run of a search from inside the kernel.
void give_up() {
    cuda_on_host::fail("not run further");
    cuda_on_host::stop();
}

// Whether the access goes to a segment.
bool look_at_ends(Buffer& buffer, long long offset, size_t bytes, bool writes) {
    if (searches) {
        bool late = ++accesses % 4096 == 0 && clock() > ends::most_seconds * CLOCKS_PER_SEC;
        if (late || accesses > ends::most_accesses) search.exhausted = true, give_up();
        ++seen_now.accesses;
        seen_now.first = std::min(seen_now.first, offset);
        seen_now.last = std::max(seen_now.last, offset);
        if (writes) {
            seen_now.writes += bytes / 4;
            seen_now.falls |= offset < seen_now.written;
            seen_now.written = offset;
        }
    }
    for (Segment& s : buffer.segments) {
        if (offset < s.offset || offset + (long long)bytes > s.offset + s.bytes) continue;
        unsigned long long thread = (block_number() << 10 | thread_number()) + 1;
        for (size_t at = (offset - s.offset) / 4; searches && writes && at < (offset - s.offset + bytes) / 4; ++at) {
            unsigned long long& writer = s.writers[at];
            if (writer && writer != thread && twice.empty())
                twice = std::to_string(s.offset / 4 + at) + "|" + named(std::min(writer, thread) - 1) + "|" +
                        named(std::max(writer, thread) - 1);
            writer = thread;
        }
        return true;
    }
    return false;
}

// Every load and store of the kernel's text comes by here.
void look(char* address, size_t bytes, bool writes, void* code) {
    char local;
    for (size_t number = 0; number < buffers.size(); ++number) {
        Buffer& buffer = buffers[number];
        long long offset = address - buffer.start;
        if (offset < -(1LL << 40) || offset > (1LL << 40)) continue;
        if (offset < 0 || offset + (long long)bytes > buffer.bytes) continue;
        auto place = [&] { return std::to_string(number) + "|" + std::to_string(offset / 4); };
        if (!in_kernel) finish("host", place());
        if (offset % (long long)bytes) finish("misaligned", place() + "|" + here() + "|" + std::to_string(bytes));
        if (buffer.is_sparse() && !look_at_ends(buffer, offset, bytes, writes)) return;
        if (seen_block != block_number()) next_block(), seen_block = block_number();
        unsigned long long thread = thread_number(), at = reinterpret_cast<unsigned long long>(code) & 0xffffffff;
        unsigned visit = visits[thread << 32 | at]++;
        auto& entry = touched[(thread / 32 << 32 | at) * 4096 + visit % 4096];
        std::get<0>(entry) = int(number);
        std::get<1>(entry) = writes;
        // A buffer begins at a multiple of 256, as cudaMalloc's do.
        std::get<2>(entry).insert(offset / (long long)sector);
        if (writes) writers.insert(block_number() << 10 | thread);
        return;
    }
    if (__start_shared_memory && address >= __start_shared_memory && address < __stop_shared_memory) {
        if (seen_block != block_number()) next_block(), seen_block = block_number();
        ++shared_accesses;
        if (alone) search.together = true, give_up();
        for (size_t i = 0; i < bytes; i += 4) look_at_shared(address + i, writes);
        return;
    }
    long long from_stack = address - &local, from_main = address - main_stack;
    if ((from_stack > -(1 << 16) && from_stack < (1 << 16)) || (from_main > -(8 << 20) && from_main < (8 << 20))) return;
    if (!in_kernel) return;
    long long beyond = address - __start_shared_memory, many = __stop_shared_memory - __start_shared_memory;
    if (__start_shared_memory && beyond > -(1 << 16) && beyond < many + (1 << 16))
        finish("shared", here() + (writes ? " writes" : " reads") + " element " +
                             std::to_string((beyond < 0 ? beyond - 3 : beyond) / 4) +
                             " of shared memory, which has " + std::to_string(many / 4));
    // Outside: named by the buffer that is nearest, where one is near.
    size_t nearest = 0;
    auto distance = [&](size_t i) {
        long long offset = address - buffers[i].start;
        return offset < 0 ? -offset : offset - buffers[i].bytes;
    };
    for (size_t i = 1; i < buffers.size(); ++i)
        if (distance(i) < distance(nearest)) nearest = i;
    long long offset = address - buffers[nearest].start;
    if (distance(nearest) > (1LL << 36)) finish("nowhere", here() + (writes ? " writes" : " reads"));
    long long element = offset < 0 ? -((-offset + 3) / 4) : offset / 4;
    finish("outside", std::to_string(nearest) + "|" + std::to_string(element) + "|" + here() + "|" +
                          (writes ? "writes" : "reads"));
}

long long number(FILE* file) {
    long long value = 0;
    if (fread(&value, sizeof value, 1, file) != 1) _exit(3);
    return value;
}

}  // namespace

#define HOOKS(size)                                                                                       \
    extern "C" void __tsan_read##size(void* p) { look((char*)p, size, false, __builtin_return_address(0)); } \
    extern "C" void __tsan_write##size(void* p) { look((char*)p, size, true, __builtin_return_address(0)); } \
    extern "C" void __tsan_unaligned_read##size(void* p) {                                                 \
        look((char*)p, size, false, __builtin_return_address(0));                                          \
    }                                                                                                      \
    extern "C" void __tsan_unaligned_write##size(void* p) {                                                \
        look((char*)p, size, true, __builtin_return_address(0));                                           \
    }
HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)
void look_at_range(void* p, size_t bytes, bool writes, void* code) {  // a struct, word by word
    for (size_t at = 0; at < bytes; at += 4) look((char*)p + at, 4, writes, code);
}
extern "C" void __tsan_read_range(void* p, size_t bytes) { look_at_range(p, bytes, false, __builtin_return_address(0)); }
extern "C" void __tsan_write_range(void* p, size_t bytes) { look_at_range(p, bytes, true, __builtin_return_address(0)); }
extern "C" void __tsan_init() {}

// What the build (-fsanitize=bounds-strict) calls where an index leaves its array: the compiler's struct, and the index.
struct Place {
    const char* file;
    unsigned line, column;
};
struct Type {
    unsigned short kind, info;  // info of an integer: whether it has a sign, then the logarithm of its bits
    char name[1];
};
struct Indexed {
    Place place;
    const Type *array, *index;
};
extern "C" void __ubsan_handle_out_of_bounds(const Indexed* found, long index) {
    unsigned others = 64 - (1u << (found->index->info >> 1));
    if (found->index->info & 1)
        index = long((unsigned long)index << others) >> others;
    else
        index = long((unsigned long)index << others >> others);
    std::string type = found->array->name;
    type.erase(std::remove(type.begin(), type.end(), '\''), type.end());
    finish("array", (in_kernel ? here() : "launch() itself") + "|" + std::to_string(index) + "|" + type + "|" +
                        std::to_string(found->place.line));
}
extern "C" void __tsan_func_entry(void*) {}
extern "C" void __tsan_func_exit() {}

namespace watch {

// The struct of watched.h is this one's first three members.
dim3 thread_index() {
    uint3 at = cuda_on_host::thread_index();
    return dim3(at.x, at.y, at.z);
}
dim3 block_index() {
    uint3 at = cuda_on_host::block_index();
    return dim3(at.x + first_block.x, at.y + first_block.y, at.z + first_block.z);
}
dim3 block_size() { return block_now; }
dim3 grid_size() { return grid_now; }
void stop(const char* status, const char* text) { finish(status, text); }
float* buffer(int number) {
    given = std::max(given, size_t(number) + 1);
    return (float*)buffers[number].start;
}
int number_of(const float* memory) {
    for (size_t i = 0; i < buffers.size(); ++i)
        if ((const char*)memory == buffers[i].start) return int(i);
    return -1;
}
float* allocate(long long numbers) {
    for (size_t i = given; i < buffers.size(); ++i)
        if (!buffers[i].taken && buffers[i].bytes == numbers * (long long)sizeof(float)) {
            buffers[i].taken = true;
            return (float*)buffers[i].start;
        }
    finish("allocates", std::to_string(numbers));
}
// A buffer that is larger than the memory is not cleared: its kernel writes to all of it.
void clear(float* memory, long long numbers) {
    for (const Buffer& buffer : buffers)
        if (buffer.start == (char*)memory && !buffer.is_sparse()) memset(memory, 0, numbers * sizeof(float));
}
void copy_each(float* to, const float* from, int dims, const int64_t* sizes, const int64_t* strides,
               const int64_t* to_strides) {
    if (!dims) {
        *to = *from;
        return;
    }
    for (int64_t k = 0; k < sizes[0]; ++k)
        copy_each(to + k * to_strides[0], from + k * strides[0], dims - 1, sizes + 1, strides + 1, to_strides + 1);
}
// Of a buffer that is larger than the memory, which is contiguous, the parts that are there are copied.
void copy(float* to, const float* from, int dims, const int64_t* sizes, const int64_t* strides,
          const int64_t* to_strides) {
    for (const Buffer& buffer : buffers)
        if (buffer.start == (char*)to && buffer.is_sparse()) {
            for (const Segment& part : buffer.segments)
                memcpy((char*)to + part.offset, (char*)from + part.offset, part.bytes);
            return;
        }
    copy_each(to, from, dims, sizes, strides, to_strides);
}
void barrier() {
    if (alone) search.together = true, give_up();
    if (seen_block != block_number()) next_block(), seen_block = block_number();
    ++barriers[thread_number()];
    cuda_on_host::wait_for_block("__syncthreads");
}

std::string sizes(dim3 d) {
    std::string text = std::to_string(d.x);
    if (d.y > 1 || d.z > 1) text += "×" + std::to_string(d.y);
    if (d.z > 1) text += "×" + std::to_string(d.z);
    return text;
}

void launch(dim3 grid, dim3 block, void (*call)(void*), void* what) {
    if (__stop_shared_memory - __start_shared_memory > 48 * 1024)
        finish("much", std::to_string(__stop_shared_memory - __start_shared_memory));
    std::string shape = sizes(grid) + " blocks of " + sizes(block) + " threads";
    cudaError_t error = cuda_on_host::check(nullptr, grid, block, 0);
    bool too_high = grid.y > 65535 || grid.z > 65535;
    if (error != cudaSuccess)
        finish("launch", shape + ": " + cudaGetErrorString(error) + (too_high ? ", grid.y and grid.z end at 65,535" : ""));
    unsigned long long blocks = 1ULL * grid.x * grid.y * grid.z, threads = 1ULL * block.x * block.y * block.z;
    if (!of_ends && blocks > most_blocks) finish("launch", shape + ", which is far more than there is work");
    launched += blocks * threads;
    grid_now = grid;
    block_now = block;
    auto run = [&](dim3 part) {
        seen_block = ~0ULL;
        in_kernel = true;
        bool ran = cuda_on_host::run(part, block, 0, [&] {
            unsigned thread = thread_number();
            if (first_thread <= thread && thread <= last_thread) call(what);
        });
        in_kernel = false;
        return ran;
    };
    auto whole = [&](dim3 part) {
        if (!run(part) && !search.exhausted) finish("barrier", shape);
        if (!search.exhausted) next_block();
        barriers.clear();
    };
    if (!of_ends) return whole(grid);
    search = {};
    search.sizes = {grid.x, grid.y, grid.z, block.x, block.y, block.z};
    search.covered = [&](bool at_end) {
        return std::any_of(buffers.begin(), buffers.end(), [&](const Buffer& buffer) {
            if (!buffer.is_sparse()) return false;
            auto& writers = (at_end ? buffer.segments.back() : buffer.segments.front()).writers;
            auto first = at_end ? writers.end() - search.sought : writers.begin();
            return std::count(first, first + search.sought, 0) == 0;
        });
    };
    search.run = [&](const ends::Place& at, unsigned first, unsigned last) {
        first_block = {at[0], at[1], at[2]};
        first_thread = first, last_thread = last;
        seen_now = {};
        alone = first == last && threads > 1;
        if (first == 0 && last == threads - 1) {
            whole(dim3(1));
        } else {
            run(dim3(1));
            touched.clear(), visits.clear(), shared.clear(), barriers.clear();
        }
        return seen_now;
    };
    searches = true;
    search.all();
    first_block = {};
    first_thread = 0, last_thread = ~0u, alone = false;
}

}  // namespace watch

int main(int, char** arguments) {
    char local;
    main_stack = &local;
    response = arguments[2];
    FILE* file = fopen(arguments[1], "rb");
    cuda_on_host::backwards = number(file);
    of_ends = number(file);
    rlimit seconds = {of_ends ? most_seconds_of_ends : most_seconds, most_seconds_of_ends + 1};
    setrlimit(RLIMIT_CPU, &seconds);  // SIGXCPU then ends it
    buffers.resize(number(file));
    for (Buffer& buffer : buffers) {
        buffer.bytes = number(file);
        buffer.segments.resize(number(file));
        for (Segment& segment : buffer.segments) {
            segment.offset = number(file), segment.bytes = number(file);
            segment.writers.resize(segment.bytes / 4);
        }
        map(buffer);
    }
    std::vector<long long> integers(number(file));
    for (long long& integer : integers) integer = number(file);
    std::vector<void*> pointers;
    for (Buffer& buffer : buffers) {
        pointers.push_back(buffer.start);
        for (const Segment& s : buffer.segments)
            if (s.bytes && fread(buffer.start + s.offset, 1, s.bytes, file) != size_t(s.bytes)) _exit(3);
    }
    fclose(file);
    call_launch(pointers.data(), integers.data());
    finish("ok", "");
}
