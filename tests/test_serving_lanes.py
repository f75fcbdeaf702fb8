"""Lanes, on which calls of a GPU's model take turns (model/serving/cpp/lanes.h), under ThreadSanitizer, with a stub for
CUDA's streams."""

import os
import subprocess
from pathlib import Path

import pytest

from model import export

STREAM = """
#pragma once
#define C10_CUDA_CHECK(call) if (call) throw 2
constexpr unsigned cudaStreamNonBlocking = 1;
using cudaStream_t = int*;
inline int streams = 0;
inline int cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
    ++streams, *stream = new int;
    return flags != cudaStreamNonBlocking;
}
inline int cudaStreamDestroy(cudaStream_t stream) {
    --streams;
    delete stream;
    return 0;
}
namespace c10 {
using DeviceIndex = signed char;
namespace cuda {
struct CUDAStream {
    cudaStream_t own;
    cudaStream_t stream() const { return own; }
};
inline CUDAStream getStreamFromExternal(cudaStream_t stream, DeviceIndex) { return {stream}; }
}
}
"""
PROGRAM = """
#include <atomic>
#include <cstdio>
#include <string>
#include "lanes.h"

// Callers that wait, one after the other, and whom a lane is given to first.
void in_order() {
    serving::Lanes lanes(1, 0);
    std::string order;
    std::atomic<bool> held{false}, released{false};
    std::vector<std::thread> threads;
    threads.emplace_back([&] {
        lanes.with([&](serving::Lane&) {
            held = true;
            while (!released) std::this_thread::yield();
        });
    });
    while (!held) std::this_thread::yield();
    for (char name : {'A', 'B', 'C'}) {
        threads.emplace_back([&, name] { lanes.with([&](serving::Lane&) { order += name; }); });
        while (lanes.waiting() < threads.size() - 1) std::this_thread::yield();
    }
    released = true;
    for (std::thread& thread : threads) thread.join();
    std::printf("in order: %s\\n", order.c_str());
}

// Each lane once, while others call, and from two threads at a time.
void each() {
    serving::Lanes lanes(3, 0);
    std::atomic<bool> ends{false};
    std::atomic<int> wrong{0};
    const auto all = [&] {
        for (int i = 0; i < 200; ++i) {
            int had[3] = {};
            lanes.each([&](serving::Lane& lane) { ++had[lane.number]; });
            if (had[0] != 1 || had[1] != 1 || had[2] != 1) ++wrong;
        }
    };
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t)
        threads.emplace_back([&] { while (!ends) lanes.with([](serving::Lane& lane) { lane.worker([] {}); }); });
    std::thread other(all);
    all();
    other.join();
    ends = true;
    for (std::thread& thread : threads) thread.join();
    int thrown = 0;
    try {
        lanes.each([](serving::Lane& lane) { if (lane.number == 1) throw 1; });
    } catch (int) {
        ++thrown;
    }
    all();  // they were given back
    std::printf("each: %d wrong, %d thrown\\n", wrong.load(), thrown);
}

void calls() {
    serving::Lanes lanes(3, 0);
    std::atomic<int> on_lane[3] = {}, now{0}, most{0}, wrong{0}, thrown{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 32; ++t)
        threads.emplace_back([&] {
            for (int i = 0; i < 500; ++i) {
                try {
                    lanes.with([&](serving::Lane& lane) {
                        if (on_lane[lane.number]++) ++wrong;
                        const int running = ++now;
                        for (int before = most; running > before && !most.compare_exchange_weak(before, running);) {}
                        int found = -1;
                        std::thread::id worker;
                        lane.worker([&] { found = i, worker = std::this_thread::get_id(); });
                        if (found != i || worker == std::this_thread::get_id()) ++wrong;
                        --now, --on_lane[lane.number];
                        if (i % 5 == 0) lane.worker([] { throw 1; });
                    });
                } catch (int) {
                    ++thrown;
                }
            }
        });
    for (std::thread& thread : threads) thread.join();
    std::printf("%d lanes at most, %d wrong, %d thrown\\n", most.load(), wrong.load(), thrown.load());
}

int main() {
    calls();
    in_order();
    each();
    std::printf("%d streams left\\n", streams);
}
"""


def test_any_number_of_threads_takes_turns(tmp_path):
    (tmp_path / "c10" / "cuda").mkdir(parents=True)
    (tmp_path / "c10" / "cuda" / "CUDAStream.h").write_text(STREAM)
    (tmp_path / "c10" / "cuda" / "CUDAException.h").write_text("")
    (tmp_path / "lanes.cpp").write_text(PROGRAM)
    sources = Path(export.__file__).parent / "serving" / "cpp"
    command = [os.environ.get("CXX", "g++"), "-std=c++20", "-O1", "-fsanitize=thread", "-pthread", f"-I{tmp_path}"]
    command += [f"-I{sources}", tmp_path / "lanes.cpp", "-o", tmp_path / "lanes"]
    built = subprocess.run(command, capture_output=True, text=True)
    if built.returncode and "tsan" in built.stderr:
        pytest.skip("the compiler has no ThreadSanitizer")
    assert built.returncode == 0, built.stderr
    done = subprocess.run([tmp_path / "lanes"], capture_output=True, text=True, timeout=300)
    told = ["3 lanes at most, 0 wrong, 3200 thrown", "in order: ABC", "each: 0 wrong, 1 thrown", "0 streams left"]
    assert (done.returncode, done.stdout.splitlines()) == (0, told), done.stderr[-3000:]
