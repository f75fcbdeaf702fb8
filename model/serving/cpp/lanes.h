// What bounds the calls that run on a GPU at a time: lanes, a stream with a thread of its own each.
#pragma once

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <mutex>
#include <thread>
#include <vector>

namespace serving {

// Does one thing after the other, in a thread of its own. cuBLAS has a workspace for each pair of a thread and a stream,
// 32 MB on an H100: so a stream's products are launched by one thread.
class Worker {
public:
    Worker() : thread_([this] { work(); }) {}
    ~Worker() {
        {
            const std::lock_guard lock(mutex_);
            ends_ = true;
        }
        changed_.notify_one();
        thread_.join();
    }

    // Waits for it, and throws what it throws. One call at a time.
    void operator()(std::function<void()> function) {
        std::packaged_task<void()> task(std::move(function));
        std::future<void> done = task.get_future();
        {
            const std::lock_guard lock(mutex_);
            task_ = std::move(task);
        }
        changed_.notify_one();
        done.get();
    }

private:
    void work() {
        for (std::unique_lock lock(mutex_);;) {
            changed_.wait(lock, [&] { return ends_ || task_.valid(); });
            if (!task_.valid()) return;
            std::packaged_task<void()> task = std::move(task_);
            task_ = {};
            lock.unlock();
            task();
            lock.lock();
        }
    }

    std::mutex mutex_;
    std::condition_variable changed_;
    std::packaged_task<void()> task_;
    bool ends_ = false;
    std::thread thread_;
};

// Its stream is its own: those of torch's pool others have, too.
struct Lane {
    size_t number;
    c10::cuda::CUDAStream stream;
    Worker worker;

    Lane(size_t number, c10::DeviceIndex device)
        : number(number), stream(c10::cuda::getStreamFromExternal(made(), device)) {}
    ~Lane() { cudaStreamDestroy(stream.stream()); }

private:
    static cudaStream_t made() {
        cudaStream_t stream = nullptr;
        C10_CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        return stream;
    }
};

// They outlive reloads, and so do cuBLAS's workspaces.
class Lanes {
public:
    // device: the current one.
    Lanes(size_t count, c10::DeviceIndex device) {
        for (size_t i = 0; i < count; ++i) idle_.push_back(&all_.emplace_back(i, device));
    }

    // function(lane), as soon as one is idle; who waits longest is first.
    template <class Function>
    void with(Function function) {
        Lane* lane = taken();
        struct End {
            Lanes& lanes;
            Lane* lane;
            ~End() { lanes.give(lane); }
        } end{*this, lane};
        function(*lane);
    }

    // function(lane) with each lane, once.
    template <class Function>
    void each(Function function) {
        const std::lock_guard lock(each_);  // two that hold some lanes would wait for each other's
        struct End {
            Lanes& lanes;
            std::vector<Lane*> had;
            ~End() {
                for (Lane* lane : had) lanes.give(lane);
            }
        } end{*this, {}};
        end.had.reserve(count());
        while (end.had.size() < count()) {
            end.had.push_back(taken());
            function(*end.had.back());
        }
    }

    size_t count() const { return all_.size(); }
    size_t waiting() {
        const std::lock_guard lock(mutex_);
        return waiting_.size();
    }

private:
    struct Waiting {
        Lane* lane = nullptr;
        std::condition_variable given;
    };

    Lane* taken() {
        std::unique_lock lock(mutex_);
        if (!idle_.empty()) {
            Lane* lane = idle_.back();
            idle_.pop_back();
            return lane;
        }
        Waiting own;
        waiting_.push_back(&own);
        own.given.wait(lock, [&] { return own.lane; });
        return own.lane;
    }
    void give(Lane* lane) {
        const std::lock_guard lock(mutex_);
        if (waiting_.empty()) return idle_.push_back(lane);
        // Into its hands: a thread that calls again and again would be faster than one that is woken.
        Waiting* first = waiting_.front();
        waiting_.pop_front();
        first->lane = lane;
        first->given.notify_one();
    }

    std::deque<Lane> all_;
    std::mutex each_;
    std::mutex mutex_;  // of the others
    std::vector<Lane*> idle_;
    std::deque<Waiting*> waiting_;
};

}  // namespace serving
