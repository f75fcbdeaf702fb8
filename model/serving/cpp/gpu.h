// A package for a GPU. Without SERVING_CUDA, which CMake defines where torch has CUDA, it is refused by name.
//
// A call copies its inputs into pinned memory, and then the GPU copies, computes and copies back, on the stream of a lane
// (lanes.h), on which any number of threads take turns. Each lane has a slot of each set of constants: a runner, and a
// CUDA graph for each number of rows that came twice.
#pragma once

#include "running.h"

#ifndef SERVING_CUDA

namespace serving {

struct Gpu {
    Gpu(const std::filesystem::path& folder, const std::string& made_for, int, size_t, bool) {
        fail(folder, ": made for a GPU, ", made_for, ", and this program was built without CUDA");
    }
    Constants placed(const Constants& constants) const { return constants; }
    std::shared_ptr<const Running> run(const std::filesystem::path&, const Constants&,
                                       const std::vector<at::Tensor>&) const {
        return nullptr;
    }
};

}  // namespace serving

#else

#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/csrc/inductor/aoti_runner/model_container_runner_cuda.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <list>

#include "lanes.h"

namespace serving {

constexpr size_t most_lanes = 8;       // more streams do not make one GPU faster
constexpr size_t most_graphs = 16;     // of a slot
constexpr int64_t most_rows = 16384;   // of a graph: with more, launches take no time beside the kernels
constexpr double most_off_gpu = 1e-5;  // a probability from another one's of the same row (model/export.py: MOST_OFF)

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
            pinned_.push_back(at::empty(input.sizes(), input.options().pinned_memory(true)));
            placed_.push_back(at::empty(input.sizes(), input.options().device(device)));
        }
        answer = at::full({inputs[0].size(0)}, NAN, at::TensorOptions(at::kFloat).pinned_memory(true));
    }

    void take(const std::vector<at::Tensor>& inputs) {
        for (size_t i = 0; i < inputs.size(); ++i)
            if (inputs[i].nbytes())
                std::memcpy(pinned_[i].mutable_data_ptr(), inputs[i].const_data_ptr(), inputs[i].nbytes());
    }

    // All that the GPU does, in order; nothing waits.
    void launch(torch::inductor::AOTIModelContainerRunner& runner, cudaStream_t stream) {
        for (size_t i = 0; i < placed_.size(); ++i) copy(placed_[i], pinned_[i], cudaMemcpyHostToDevice, stream);
        const at::Tensor found = runner.run(placed_, stream).at(0);
        if (found.nbytes() != answer.nbytes()) fail("the package gave ", found.sizes(), " for ", answer.sizes());
        copy(answer, found, cudaMemcpyDeviceToHost, stream);
    }

    at::Tensor answer;

private:
    static void copy(const at::Tensor& to, const at::Tensor& from, cudaMemcpyKind kind, cudaStream_t stream) {
        if (!from.nbytes()) return;
        C10_CUDA_CHECK(cudaMemcpyAsync(to.mutable_data_ptr(), from.const_data_ptr(), from.nbytes(), kind, stream));
    }

    std::vector<at::Tensor> pinned_, placed_;
};

// A runner on a lane, for one call at a time.
class Slot {
public:
    Slot(const Lane& lane, const std::string& code, const Constants& constants, bool graphs)
        : graphs_(graphs), stream_(lane.stream),
          // Single-threaded: with threads of its own in mind a runner asks events, which a capture forbids.
          runner_(code, 1, stream_.device().str(), std::filesystem::path(code).parent_path(), true),
          pool_(at::cuda::graph_pool_handle()) {
        lent_.to(runner_, constants);
    }
    ~Slot() {
        const c10::cuda::CUDAGuard guard(stream_.device());
        entries_.clear();
    }

    at::Tensor operator()(Lane& lane, const std::vector<at::Tensor>& inputs) {
        c10::InferenceMode inference;
        const c10::cuda::CUDAStreamGuard guard(stream_);
        const int64_t rows = inputs[0].size(0);
        Entry* entry = graphs_ && rows && rows <= most_rows ? &entry_of(rows) : nullptr;
        if (entry && entry->graph) return replayed(*entry, inputs);
        at::Tensor answer;
        lane.worker([&] { answer = plain(inputs); });
        if (entry && entry->calls == 2) lane.worker([&] { capture(*entry, inputs, answer); });
        return answer;
    }

private:
    struct Entry {
        int64_t rows;
        int calls = 0;
        std::unique_ptr<Buffers> buffers;
        std::unique_ptr<Graph> graph;
    };

    // The one of so many rows. Of those that were used least lately, the ones beyond most_graphs are forgotten.
    Entry& entry_of(int64_t rows) {
        auto found = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& e) { return e.rows == rows; });
        if (found == entries_.end()) found = entries_.emplace(entries_.begin(), Entry{rows, 0, nullptr, nullptr});
        entries_.splice(entries_.begin(), entries_, found);
        if (entries_.size() > most_graphs) entries_.pop_back();
        ++entries_.front().calls;
        return entries_.front();
    }

    at::Tensor plain(const std::vector<at::Tensor>& inputs) {
        c10::InferenceMode inference;
        const c10::cuda::CUDAStreamGuard guard(stream_);
        Buffers buffers(inputs, stream_.device());
        buffers.take(inputs);
        try {
            buffers.launch(runner_, stream_.stream());
        } catch (...) {
            cudaStreamSynchronize(stream_.stream());  // what was launched reads the buffers
            throw;
        }
        stream_.synchronize();
        return buffers.answer.clone();
    }

    at::Tensor replayed(const Entry& entry, const std::vector<at::Tensor>& inputs) const {
        entry.buffers->take(inputs);
        entry.graph->launch(stream_.stream());
        stream_.synchronize();
        return entry.buffers->answer.clone();
    }

    // Where it fails, or gives other answers than the plain call did, these calls stay plain.
    void capture(Entry& entry, const std::vector<at::Tensor>& inputs, const at::Tensor& want) {
        c10::InferenceMode inference;
        const c10::cuda::CUDAStreamGuard guard(stream_);
        try {
            entry.buffers = std::make_unique<Buffers>(inputs, stream_.device());
            entry.graph =
                std::make_unique<Graph>(stream_, pool_, [&] { entry.buffers->launch(runner_, stream_.stream()); });
            if (!at::allclose(replayed(entry, inputs), want, 0, most_off_gpu, true))
                fail("its answers are others than without it");
        } catch (const std::exception& error) {
            entry.graph.reset();
            entry.buffers.reset();
            graphs_ = false;
            static std::once_flag once;
            const std::string why = error.what();
            std::call_once(once, [&] {
                std::fprintf(stderr, "a CUDA graph of %ld rows failed, calls go on without graphs: %s\n",
                             long(entry.rows), why.substr(0, why.find('\n')).c_str());
            });
        }
    }

    bool graphs_;
    c10::cuda::CUDAStream stream_;
    Lent lent_;
    torch::inductor::AOTIModelContainerRunnerCuda runner_;
    c10::MempoolId_t pool_;     // of all graphs: one runs at a time, and what it gave is copied before the next one
    std::list<Entry> entries_;  // the one that was used last is first
};

class OnGpu : public Running {
public:
    OnGpu(std::shared_ptr<Lanes> lanes, std::string code, Constants constants, bool graphs,
          const std::vector<at::Tensor>& no_rows)
        : lanes_(std::move(lanes)), code_(std::move(code)), constants_(std::move(constants)), graphs_(graphs),
          slots_(lanes_->count()) {
        (*this)(no_rows);  // the first call does, alone, what the next ones need not
    }

    at::Tensor operator()(const std::vector<at::Tensor>& inputs) const override {
        at::Tensor answer;
        lanes_->with([&](Lane& lane) {
            std::unique_ptr<Slot>& slot = slots_[lane.number];  // who has the lane has the slot
            try {
                if (!slot) slot = std::make_unique<Slot>(lane, code_, constants_, graphs_);
                answer = (*slot)(lane, inputs);
            } catch (...) {
                slot.reset();  // the next call begins anew
                throw;
            }
        });
        return answer;
    }

private:
    std::shared_ptr<Lanes> lanes_;
    std::string code_;
    Constants constants_;
    bool graphs_;
    mutable std::vector<std::unique_ptr<Slot> > slots_;
};

class Gpu {
public:
    // number: of the GPU; -1: the current one. lanes: how many calls run at a time; others wait.
    Gpu(const std::filesystem::path& folder, const std::string& made_for, int number, size_t lanes, bool graphs)
        : graphs_(graphs) {
        const int count = c10::cuda::device_count();  // 0 without a driver, too
        if (!count) fail(folder, ": made for a GPU, ", made_for, ", and none is here, or no driver for it");
        device_ = c10::DeviceIndex(number < 0 ? c10::cuda::current_device() : number);
        if (device_ >= count) fail(folder, ": is to run on GPU ", number, ", and this machine's are 0 to ", count - 1);
        int major = 0, minor = 0;
        C10_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device_));
        C10_CUDA_CHECK(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device_));
        const std::string own = "sm_" + std::to_string(major) + std::to_string(minor);
        if (own != made_for)
            fail(folder, ": made for a GPU of ", made_for, ", and GPU ", int(device_), " here is ", own);
        lanes_ = std::make_shared<Lanes>(std::min(lanes, most_lanes), device_);
    }

    Constants placed(const Constants& constants) const {
        Constants found;
        for (const auto& [name, tensor] : constants) found[name] = tensor.to(c10::Device(at::kCUDA, device_));
        return found;
    }

    std::shared_ptr<const Running> run(const std::filesystem::path& package, const Constants& constants,
                                       const std::vector<at::Tensor>& no_rows) const {
        // Graphs are of numbers of rows: of bags, whose ids are another number at each call, they would never be used.
        const bool by_rows = no_rows.size() == 2;
        return std::make_shared<OnGpu>(lanes_, code_in(package), constants, graphs_ && by_rows, no_rows);
    }

private:
    bool graphs_;
    c10::DeviceIndex device_;
    std::shared_ptr<Lanes> lanes_;
};

}  // namespace serving

#endif
