// An exported model: serving::Exported(folder, runners)({counts, ids}) → probabilities, from any number of threads.
#pragma once

#include <dlfcn.h>

#include <mutex>
#include <optional>

#include "gpu.h"
#include "table.h"

namespace serving {

class Exported {
public:
    // Everything is verified before anything is loaded. runners: how many calls run at a time; others wait. gpu: which
    // one runs a package for a GPU; -1: the current one. graphs: whether a GPU may replay what it has launched before.
    // ExportError: the folder is not whole, or not for this torch and this CPU or GPU.
    explicit Exported(const std::filesystem::path& folder, size_t runners = 1, int gpu = -1, bool graphs = true)
        : folder_(std::filesystem::absolute(folder)), runners_(runners), manifest_(Manifest::read(folder_)) {
        manifest_.verify(folder_);
        if (manifest_.inputs.empty()) fail(folder_, ": not a model: its manifest has no inputs");
        if (manifest_.gpu.empty() && gpu >= 0) fail(folder_, ": made for the CPU, and is to run on GPU ", gpu);
        if (!manifest_.gpu.empty()) gpu_.emplace(folder_, manifest_.gpu, gpu, runners, graphs);
        const std::string library = folder_ / "libops.so";
        if (!dlopen(library.c_str(), RTLD_NOW)) fail(library, ": cannot be loaded: ", dlerror());
        constants_ = placed(manifest_.mapped(folder_));
        loaded_ = with(constants_);
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
        Constants constants = constants_;
        for (const auto& [name, tensor] : placed(table.constants)) constants[name] = tensor;
        std::shared_ptr<const Running> next = with(constants);
        const std::lock_guard lock(mutex_);
        loaded_.swap(next);
    }

    const Manifest& manifest() const { return manifest_; }

private:
    Constants placed(const Constants& constants) const { return gpu_ ? gpu_->placed(constants) : constants; }
    std::shared_ptr<const Running> with(const Constants& constants) const {
        const std::filesystem::path package = folder_ / manifest_.package();
        if (gpu_) return gpu_->run(package, constants, manifest_.no_rows());
        return std::make_shared<OnCpu>(package, runners_, constants, manifest_.no_rows());
    }
    std::shared_ptr<const Running> loaded() const {
        const std::lock_guard lock(mutex_);
        return loaded_;
    }

    std::filesystem::path folder_;
    size_t runners_;
    Manifest manifest_;
    std::optional<Gpu> gpu_;
    Constants constants_;
    mutable std::mutex mutex_;  // of loaded_
    std::shared_ptr<const Running> loaded_;
};

}  // namespace serving
