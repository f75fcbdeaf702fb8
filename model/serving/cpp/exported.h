// An exported model: serving::Exported(folder, runners)({counts, ids}) → probabilities, from any number of threads.
#pragma once

#include <dlfcn.h>

#include <memory>
#include <mutex>

#include "gpu.h"
#include "table.h"

namespace serving {

class Exported {
public:
    // Everything is verified before anything is loaded. runners: how many calls run at a time; others wait. gpu: which
    // one runs a package for a GPU; -1: the current one. graphs: whether a GPU may replay what it has launched before.
    // ExportError: the folder is not whole, or not for this torch and this CPU or GPU.
    explicit Exported(const std::filesystem::path& folder, size_t runners = 1, int gpu = -1, bool graphs = true)
        : folder_(std::filesystem::absolute(folder)), runners_(std::max<size_t>(1, runners)),
          manifest_(Manifest::read(folder_)) {
        manifest_.verify(folder_);
        if (manifest_.inputs.empty()) fail(folder_, ": not a model: its manifest has no inputs");
        if (manifest_.gpu.empty() && gpu >= 0) fail(folder_, ": made for the CPU, and is to run on GPU ", gpu);
        if (!manifest_.gpu.empty())
            gpu_ = std::make_shared<Gpu>(folder_, manifest_.gpu, manifest_.most_off, gpu, runners_, graphs);
        const std::string library = folder_ / "libops.so";
        if (!dlopen(library.c_str(), RTLD_NOW)) fail(library, ": cannot be loaded: ", dlerror());
        if (gpu_) {
            gpu_->load(folder_ / manifest_.code(), manifest_.mapped(folder_), manifest_.one_row());
            loaded_ = gpu_;
        } else {
            constants_ = manifest_.mapped(folder_);
            loaded_ = on_cpu(constants_);
        }
    }

    // ExportError: inputs that the manifest does not have.
    at::Tensor operator()(const std::vector<at::Tensor>& inputs) const {
        manifest_.check(inputs);
        return (*loaded())(inputs);
    }

    // Look ids up in this table from here on, while other threads call: each call has the one table or the other.
    // An id whose row was not trained has row 0. ExportError: it is a table for another model; the one before stays.
    void reload(const Table& table) {
        table.check(manifest_.constants);
        const std::lock_guard one_at_a_time(reloads_);
        if (gpu_) return gpu_->use(table.constants);
        Constants constants = constants_;
        for (const auto& [name, tensor] : table.constants) constants[name] = tensor;
        std::shared_ptr<const Running> next = on_cpu(constants);
        constants_ = std::move(constants);
        const std::lock_guard lock(mutex_);
        loaded_.swap(next);
    }

    // What is wrong with the GPU, after which every call fails; empty: nothing.
    std::string fault() const { return gpu_ ? gpu_->fault() : ""; }
    // The bytes of the GPU's memory that all processes use; 0 without a GPU.
    size_t gpu_bytes_used() const { return gpu_ ? gpu_->bytes_used() : 0; }

    const Manifest& manifest() const { return manifest_; }

private:
    std::shared_ptr<const Running> on_cpu(const Constants& constants) const {
        return std::make_shared<OnCpu>(folder_ / manifest_.code(), runners_, constants, manifest_.one_row());
    }
    std::shared_ptr<const Running> loaded() const {
        const std::lock_guard lock(mutex_);
        return loaded_;
    }

    std::filesystem::path folder_;
    size_t runners_;
    Manifest manifest_;
    std::shared_ptr<Gpu> gpu_;
    std::mutex reloads_;
    Constants constants_;  // of the CPU
    mutable std::mutex mutex_;  // of loaded_
    std::shared_ptr<const Running> loaded_;
};

}  // namespace serving
