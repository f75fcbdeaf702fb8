// The same program as watch.cpp for a GPU: request and response are its, and launch() runs as it stands. What is written
// beside a buffer is found by the zones around it; a GPU does not say who did it. TIMES in the environment: the launch
// is also timed, by turns with a copy of the first buffer.
#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>

#include <algorithm>
#include <string>
#include <vector>

void call_launch(void** buffers, const long long* integers);

namespace {

const size_t zone = 1 << 20;  // bytes on either side of a buffer
struct Segment {
    long long offset, bytes;
};
struct Buffer {
    char* start = nullptr;
    long long bytes = 0;
    std::vector<Segment> segments;
};
std::vector<Buffer> buffers;
std::string response;

void finish(const std::string& status, const std::string& text, double us = 0, double copy_us = 0) {
    FILE* file = fopen(response.c_str(), "wb");
    fprintf(file, "{\"status\": \"%s\", \"text\": \"%s\", \"us\": %.3f, \"copy_us\": %.3f}\n", status.c_str(),
            text.c_str(), us, copy_us);
    std::vector<char> host;
    if (status == "ok")
        for (const Buffer& buffer : buffers)
            for (const Segment& s : buffer.segments) {
                host.resize(s.bytes);
                cudaMemcpy(host.data(), buffer.start + s.offset, s.bytes, cudaMemcpyDeviceToHost);
                fwrite(host.data(), 1, s.bytes, file);
            }
    fclose(file);
    _Exit(0);
}
void must(cudaError_t error) {
    if (error != cudaSuccess) finish("launch", cudaGetErrorString(error));
}
long long number(FILE* file) {
    long long value = 0;
    if (fread(&value, sizeof value, 1, file) != 1) _Exit(3);
    return value;
}
template <class Function>
double microseconds(Function function) {
    cudaEvent_t begin, end;
    must(cudaEventCreate(&begin));
    must(cudaEventCreate(&end));
    must(cudaEventRecord(begin));
    function();
    must(cudaEventRecord(end));
    must(cudaEventSynchronize(end));
    float ms = 0;
    must(cudaEventElapsedTime(&ms, begin, end));
    return 1e3 * ms;
}

}  // namespace

int main(int, char** arguments) {
    response = arguments[2];
    FILE* file = fopen(arguments[1], "rb");
    number(file), number(file);  // backwards and ends: here all blocks run, in the GPU's order
    buffers.resize(number(file));
    for (Buffer& buffer : buffers) {
        buffer.bytes = number(file);
        buffer.segments.resize(number(file));
        for (Segment& segment : buffer.segments) segment.offset = number(file), segment.bytes = number(file);
        char* memory = nullptr;
        must(cudaMalloc(&memory, buffer.bytes + 2 * zone));
        must(cudaMemset(memory, 0xFF, buffer.bytes + 2 * zone));
        buffer.start = memory + zone;
    }
    std::vector<long long> integers(number(file));
    for (long long& integer : integers) integer = number(file);
    std::vector<void*> pointers;
    std::vector<char> host;
    for (Buffer& buffer : buffers) {
        pointers.push_back(buffer.start);
        for (const Segment& s : buffer.segments) {
            host.resize(s.bytes);
            if (s.bytes && fread(host.data(), 1, s.bytes, file) != size_t(s.bytes)) _Exit(3);
            must(cudaMemcpy(buffer.start + s.offset, host.data(), s.bytes, cudaMemcpyHostToDevice));
        }
    }
    fclose(file);
    call_launch(pointers.data(), integers.data());
    must(cudaGetLastError());
    must(cudaDeviceSynchronize());
    host.resize(zone);
    for (size_t i = 0; i < buffers.size(); ++i)
        for (long long first : {-(long long)zone, buffers[i].bytes}) {
            must(cudaMemcpy(host.data(), buffers[i].start + first, zone, cudaMemcpyDeviceToHost));
            if (std::any_of(host.begin(), host.end(), [](char byte) { return byte != char(0xFF); }))
                finish("beside", std::to_string(i));
        }
    std::vector<double> times, copies;
    if (getenv("TIMES")) {
        char* copy = nullptr;
        must(cudaMalloc(&copy, buffers[0].bytes));
        for (int turn = 0; turn < 20; ++turn) {
            times.push_back(microseconds([&] { call_launch(pointers.data(), integers.data()); }));
            copies.push_back(microseconds([&] {
                must(cudaMemcpyAsync(copy, buffers[0].start, buffers[0].bytes, cudaMemcpyDeviceToDevice));
            }));
        }
        std::sort(times.begin(), times.end());
        std::sort(copies.begin(), copies.end());
        must(cudaGetLastError());
    }
    finish("ok", "", times.empty() ? 0 : times[10], copies.empty() ? 0 : copies[10]);
}
