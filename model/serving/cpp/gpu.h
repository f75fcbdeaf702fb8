// A package for a GPU. Without SERVING_CUDA, which CMake defines where torch has CUDA, it is refused by name.
//
// A call copies its inputs into pinned memory, and then the GPU copies, computes and copies back, on the stream of a lane
// (lanes.h), on which any number of threads take turns. Each lane has a slot, which lives as long as the model: a runner,
// and a CUDA graph for each power of two of rows that came twice. Constants are data, which a slot is lent.
#pragma once

#include "running.h"

#ifndef SERVING_CUDA

namespace serving {

struct Gpu : Running {
    Gpu(const std::filesystem::path& folder, const std::string& made_for, double, int, size_t, bool) {
        fail(folder, ": made for a GPU, ", made_for, ", and this program was built without CUDA");
    }
    void load(const std::string&, const Constants&, const std::vector<at::Tensor>&) {}
    void use(const Constants&) {}
    std::string fault() const { return ""; }
    size_t bytes_used() const { return 0; }
    at::Tensor operator()(const std::vector<at::Tensor>&) const override { return {}; }
};

}  // namespace serving

#else

#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/csrc/inductor/aoti_runner/model_container_runner_cuda.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "lanes.h"

namespace serving {

constexpr size_t most_lanes = 8;       // more streams do not make one GPU faster
constexpr size_t graphs_of_a_slot = 15;  // for 1, 2, 4 to 16384 rows: with more, launches take no time beside kernels

// What was launched within work(), to be launched again at once.
class Graph {
public:
    template <class Work>
    Graph(c10::cuda::CUDAStream stream, c10::MempoolId_t pool, Work work)
        : device_(stream.device_index()), pool_(pool) {
        static std::mutex one_at_a_time;
        const std::lock_guard lock(one_at_a_time);
        namespace memory = c10::cuda::CUDACachingAllocator;
        const cudaStream_t raw = stream.stream();
        memory::beginAllocateToPool(device_, pool_, [raw](cudaStream_t other) { return other == raw; });
        struct End {  // whatever happens, nothing is captured from here on
            Graph& graph;
            cudaStream_t raw;
            cudaGraph_t captured = nullptr;
            bool whole = false;
            ~End() {
                if (!whole) cudaStreamEndCapture(raw, &captured), cudaGetLastError();
                memory::endAllocateToPool(graph.device_, graph.pool_);
                if (captured) cudaGraphDestroy(captured);
                if (!graph.replayed_) memory::releasePool(graph.device_, graph.pool_);
            }
        } end{*this, raw};
        // Other threads may allocate meanwhile: what they do is none of this capture.
        C10_CUDA_CHECK(cudaStreamBeginCapture(raw, cudaStreamCaptureModeThreadLocal));
        work();
        end.whole = true;
        C10_CUDA_CHECK(cudaStreamEndCapture(raw, &end.captured));
        C10_CUDA_CHECK(cudaGraphInstantiate(&replayed_, end.captured, 0));
    }
    ~Graph() {
        cudaGraphExecDestroy(replayed_);
        c10::cuda::CUDACachingAllocator::releasePool(device_, pool_);
    }
    Graph(const Graph&) = delete;
    Graph& operator=(const Graph&) = delete;

    void launch(cudaStream_t stream) const { C10_CUDA_CHECK(cudaGraphLaunch(replayed_, stream)); }

private:
    c10::DeviceIndex device_;
    c10::MempoolId_t pool_;
    cudaGraphExec_t replayed_ = nullptr;
};

// Inputs and answers of one number of rows, in pinned memory, which the GPU copies by itself, and the inputs' copies.
class Buffers {
public:
    Buffers(const std::vector<at::Tensor>& inputs, c10::Device device) {
        for (const at::Tensor& input : inputs) {
            pinned_.push_back(at::zeros(input.sizes(), input.options().pinned_memory(true)));
            placed_.push_back(at::empty(input.sizes(), input.options().device(device)));
        }
        answer_ = at::empty({inputs[0].size(0)}, at::TensorOptions(at::kFloat).pinned_memory(true));
    }

    // The inputs may have fewer rows. The others stay what they were: no row hangs on another one.
    void take(const std::vector<at::Tensor>& inputs) {
        for (size_t i = 0; i < inputs.size(); ++i)
            if (inputs[i].nbytes())
                std::memcpy(pinned_[i].mutable_data_ptr(), inputs[i].const_data_ptr(), inputs[i].nbytes());
    }

    // All that the GPU does, in order; nothing waits.
    void launch(torch::inductor::AOTIModelContainerRunner& runner, cudaStream_t stream) {
        for (size_t i = 0; i < placed_.size(); ++i) copy(placed_[i], pinned_[i], cudaMemcpyHostToDevice, stream);
        const at::Tensor found = runner.run(placed_, stream).at(0);
        if (found.nbytes() != answer_.nbytes()) fail("the package gave ", found.sizes(), " for ", answer_.sizes());
        copy(answer_, found, cudaMemcpyDeviceToHost, stream);
    }

    // So that an answer which nobody gave is none.
    void forget() { std::fill_n(answer_.mutable_data_ptr<float>(), answer_.numel(), NAN); }
    at::Tensor answer(int64_t rows) const { return answer_.slice(0, 0, rows).clone(); }

private:
    static void copy(const at::Tensor& to, const at::Tensor& from, cudaMemcpyKind kind, cudaStream_t stream) {
        if (!from.nbytes()) return;
        C10_CUDA_CHECK(cudaMemcpyAsync(to.mutable_data_ptr(), from.const_data_ptr(), from.nbytes(), kind, stream));
    }

    std::vector<at::Tensor> pinned_, placed_;
    at::Tensor answer_;
};

// A runner on a lane, for one call at a time. There is one for as long as the model lives: torch 2.11 never unloads a
// runner's kernels, and an allocator's pool is whole as long as somebody holds a count of it.
class Slot {
public:
    // most_off: a probability from another one's of the same row.
    Slot(const Lane& lane, const std::string& code, double most_off, bool graphs)
        : most_off_(most_off), graphs_(graphs), stream_(lane.stream),
          // Single-threaded: with threads of its own in mind a runner asks events, which a capture forbids.
          runner_(code, 1, stream_.device().str(), std::filesystem::path(code).parent_path(), true),
          pool_(at::cuda::graph_pool_handle()) {
        c10::cuda::CUDACachingAllocator::createOrIncrefPool(stream_.device_index(), pool_);
    }
    ~Slot() {
        const c10::cuda::CUDAGuard guard(stream_.device());
        sizes_ = {};
        c10::cuda::CUDACachingAllocator::releasePool(stream_.device_index(), pool_);
    }

    // Calls use these constants from here on. Graphs have the addresses of those before.
    void lend(const std::shared_ptr<const Constants>& constants) {
        if (constants == constants_) return;
        const c10::cuda::CUDAGuard guard(stream_.device());
        sizes_ = {};
        lent_.to(runner_, *constants);
        constants_ = constants;
    }

    at::Tensor operator()(Lane& lane, const std::vector<at::Tensor>& inputs) {
        const int64_t rows = inputs[0].size(0);
        const size_t which = rows > 0 ? size_t(std::bit_width(uint64_t(rows - 1))) : sizes_.size();
        // Graphs are of numbers of rows: of bags, whose ids are another number at each call, they would never be used.
        if (!graphs_ || inputs.size() != 2 || which >= sizes_.size()) {
            at::Tensor answer;
            lane.worker([&] {
                const c10::cuda::CUDAStreamGuard guard(stream_);
                Buffers buffers(inputs, stream_.device());
                answer = plain(buffers, inputs);
            });
            return answer;
        }
        Size& size = sizes_[which];
        if (size.graph) return replayed(size, inputs);
        at::Tensor answer;
        lane.worker([&] {
            const c10::cuda::CUDAStreamGuard guard(stream_);
            if (!size.buffers) size.buffers = std::make_unique<Buffers>(padded(inputs, 1 << which), stream_.device());
            answer = plain(*size.buffers, inputs);
            if (++size.calls == 2) capture(size, inputs, answer);
        });
        return answer;
    }

private:
    // A number of rows, to which calls of fewer are padded.
    struct Size {
        int calls = 0;
        std::unique_ptr<Buffers> buffers;
        std::unique_ptr<Graph> graph;
    };

    // Tensors of the inputs' dtypes and widths, and so many rows. Nothing is read of them.
    static std::vector<at::Tensor> padded(const std::vector<at::Tensor>& inputs, int64_t rows) {
        std::vector<at::Tensor> found;
        for (const at::Tensor& input : inputs) found.push_back(at::empty({rows, input.size(1)}, input.options()));
        return found;
    }

    // It and capture: with the stream as the current one.
    at::Tensor plain(Buffers& buffers, const std::vector<at::Tensor>& inputs) {
        c10::InferenceMode inference;
        buffers.take(inputs);
        try {
            buffers.launch(runner_, stream_.stream());
        } catch (...) {
            cudaStreamSynchronize(stream_.stream());  // what was launched reads the buffers
            throw;
        }
        stream_.synchronize();
        return buffers.answer(inputs[0].size(0));
    }

    at::Tensor replayed(const Size& size, const std::vector<at::Tensor>& inputs) const {
        const c10::cuda::CUDAGuard guard(stream_.device());
        size.buffers->take(inputs);
        size.graph->launch(stream_.stream());
        stream_.synchronize();
        return size.buffers->answer(inputs[0].size(0));
    }

    // Where it fails, or gives other answers than the plain call did, calls stay plain from here on.
    void capture(Size& size, const std::vector<at::Tensor>& inputs, const at::Tensor& want) {
        c10::InferenceMode inference;
        try {
            size.graph =
                std::make_unique<Graph>(stream_, pool_, [&] { size.buffers->launch(runner_, stream_.stream()); });
            size.buffers->forget();
            if (!at::allclose(replayed(size, inputs), want, 0, most_off_, true))
                fail("its answers are others than without it");
        } catch (const std::exception& error) {
            graphs_ = false;
            sizes_ = {};  // what they hold would not be used again
            static std::once_flag once;
            const std::string why = error.what();
            std::call_once(once, [&] {
                std::fprintf(stderr, "a CUDA graph of %ld rows failed, calls go on without graphs: %s\n",
                             long(inputs[0].size(0)), why.substr(0, why.find('\n')).c_str());
            });
        }
    }

    double most_off_;
    bool graphs_;
    c10::cuda::CUDAStream stream_;
    std::shared_ptr<const Constants> constants_;
    Lent lent_;
    torch::inductor::AOTIModelContainerRunnerCuda runner_;
    c10::MempoolId_t pool_;  // of all graphs: one runs at a time, and what it gave is copied before the next one
    std::array<Size, graphs_of_a_slot> sizes_;
};

class Gpu : public Running {
public:
    // number: of the GPU; -1: the current one. lanes: how many calls run at a time; others wait.
    Gpu(const std::filesystem::path& folder, const std::string& made_for, double most_off, int number, size_t lanes,
        bool graphs)
        : most_off_(most_off), graphs_(graphs) {
        const int count = c10::cuda::device_count();  // 0 without a driver, too
        if (!count) fail(folder, ": made for a GPU, ", made_for, ", and none is here, or no driver for it");
        if (number < 0) number = c10::cuda::current_device();
        if (number >= count) fail(folder, ": is to run on GPU ", number, ", and this machine's are 0 to ", count - 1);
        device_ = c10::DeviceIndex(number);
        int major = 0, minor = 0;
        C10_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device_));
        C10_CUDA_CHECK(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device_));
        const std::string own = "sm_" + std::to_string(major) + std::to_string(minor);
        if (own != made_for) fail(folder, ": made for a GPU of ", made_for, ", and GPU ", number, " here is ", own);
        // The ops of libops.so are the process's: of one architecture.
        static std::mutex mutex;
        static std::string first;
        const std::lock_guard lock(mutex);
        if (first.empty()) first = made_for;
        if (first != made_for)
            fail(folder, ": made for a GPU of ", made_for, ", and this process has loaded a package for ", first);
        const c10::cuda::CUDAGuard guard(device_);
        lanes_ = std::make_unique<Lanes>(std::min(lanes, most_lanes), device_);
    }

    // The package's code with these constants. Each lane calls once, so that the calls to come open no file.
    void load(const std::string& code, const Constants& constants, const std::vector<at::Tensor>& one_row) {
        const c10::cuda::CUDAGuard guard(device_);  // torch makes the runner's device the current one
        constants_ = with(constants);
        slots_.resize(lanes_->count());
        lanes_->each([&](Lane& lane) {
            slots_[lane.number] = std::make_unique<Slot>(lane, code, most_off_, graphs_);
            call(lane, one_row);
        });
    }

    // Calls that get a lane from here on have these constants; those before are let go. Its caller sees to it that no
    // two threads are here at a time.
    void use(const Constants& changed) {
        const c10::cuda::CUDAGuard guard(device_);
        const std::shared_ptr<const Constants> next = with(changed);
        {
            const std::lock_guard lock(mutex_);
            constants_ = next;
        }
        lanes_->each([&](Lane& lane) { slots_[lane.number]->lend(next); });
    }

    at::Tensor operator()(const std::vector<at::Tensor>& inputs) const override {
        const c10::cuda::CUDAGuard guard(device_);
        at::Tensor answer;
        lanes_->with([&](Lane& lane) { answer = call(lane, inputs); });
        return answer;
    }

    // What is wrong with the GPU for this process; empty: nothing.
    std::string fault() const {
        try {
            bytes_used();
        } catch (const std::exception& error) {
            const std::string why = error.what();
            return why.substr(0, why.find('\n'));
        }
        return "";
    }

    // The bytes of its memory that all processes use.
    size_t bytes_used() const {
        const c10::cuda::CUDAGuard guard(device_);
        size_t free = 0, total = 0;
        C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
        return total - free;
    }

private:
    at::Tensor call(Lane& lane, const std::vector<at::Tensor>& inputs) const {
        Slot& slot = *slots_[lane.number];  // who has the lane has the slot
        std::shared_ptr<const Constants> constants;
        {
            const std::lock_guard lock(mutex_);
            constants = constants_;
        }
        slot.lend(constants);
        return slot(lane, inputs);
    }

    // The constants, with these instead of those of their names, on the GPU.
    std::shared_ptr<const Constants> with(const Constants& changed) const {
        Constants found = constants_ ? *constants_ : Constants();
        for (const auto& [name, tensor] : changed) found[name] = tensor.to(c10::Device(at::kCUDA, device_));
        return std::make_shared<const Constants>(std::move(found));
    }

    double most_off_;
    bool graphs_;
    c10::DeviceIndex device_;
    std::unique_ptr<Lanes> lanes_;
    std::vector<std::unique_ptr<Slot>> slots_;  // end before their lanes
    mutable std::mutex mutex_;                  // of constants_
    std::shared_ptr<const Constants> constants_;
};

}  // namespace serving

#endif
