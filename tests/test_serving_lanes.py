"""Lanes, on which calls of a GPU's model take turns (model/serving/cpp/lanes.h), under ThreadSanitizer, with a stub for
CUDA's streams."""

import os
import subprocess
from pathlib import Path

import pytest

from model import export

STREAM = """
#pragma once
namespace c10 {
using DeviceIndex = signed char;
namespace cuda {
struct CUDAStream {};
inline CUDAStream getStreamFromPool(bool, DeviceIndex) { return {}; }
}
}
"""
PROGRAM = """
#include <atomic>
#include <cstdio>
#include "lanes.h"

int main() {
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
"""


def test_any_number_of_threads_takes_turns(tmp_path):
    (tmp_path / "c10" / "cuda").mkdir(parents=True)
    (tmp_path / "c10" / "cuda" / "CUDAStream.h").write_text(STREAM)
    (tmp_path / "lanes.cpp").write_text(PROGRAM)
    sources = Path(export.__file__).parent / "serving" / "cpp"
    command = [os.environ.get("CXX", "g++"), "-std=c++20", "-O1", "-fsanitize=thread", "-pthread", f"-I{tmp_path}"]
    command += [f"-I{sources}", tmp_path / "lanes.cpp", "-o", tmp_path / "lanes"]
    built = subprocess.run(command, capture_output=True, text=True)
    if built.returncode and "tsan" in built.stderr:
        pytest.skip("the compiler has no ThreadSanitizer")
    assert built.returncode == 0, built.stderr
    done = subprocess.run([tmp_path / "lanes"], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (0, "3 lanes at most, 0 wrong, 3200 thrown\n"), done.stderr[-3000:]
