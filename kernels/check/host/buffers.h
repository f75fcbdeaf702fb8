// For watch.cpp: the memory that a kernel is given. A buffer may be larger than the memory that there is.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <vector>

struct Segment {
    long long offset, bytes;
    std::vector<unsigned long long> writers;  // of each number, in a search: 1 + the thread of the grid that wrote it
};
struct Buffer {
    char* start;
    long long bytes;
    std::vector<Segment> segments;
    bool taken = false;
    bool is_sparse() const { return segments.size() > 1; }  // larger than the memory
    // Instructions of a warp, and the sectors that they touch: of reads, of writes.
    std::array<unsigned long long, 2> requests{}, sectors{};
};

// Between the segments of a buffer the same few pages come again and again: what is written there is not kept.
inline void share_between(Buffer& buffer, size_t page) {
    size_t piece = 1 << 24;
    int file = memfd_create("between", 0);
    if (file < 0 || ftruncate(file, piece)) _exit(4);
    char* from = buffer.start + (buffer.segments.front().bytes + page - 1) / page * page;
    char* to = buffer.start + buffer.segments.back().offset / page * page;
    for (; from < to; from += piece) {
        size_t bytes = std::min(piece, size_t(to - from));
        if (mmap(from, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) == MAP_FAILED) _exit(4);
    }
    close(file);
}

// Far apart, so that a wrong index meets no other buffer; memory that is never touched is never there.
inline void map(Buffer& buffer) {
    size_t zone = 1ULL << 36, page = 1 << 12, whole = (buffer.bytes + page - 1) / page * page;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    char* memory = (char*)mmap(nullptr, whole + 2 * zone, PROT_NONE, flags, -1, 0);
    if (memory == MAP_FAILED || mprotect(memory + zone, whole, PROT_READ | PROT_WRITE)) _exit(4);
    buffer.start = memory + zone;
    if (buffer.is_sparse()) share_between(buffer, page);
}
