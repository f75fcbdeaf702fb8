// An exported model: serving::Exported(folder, runners)({counts, ids}) → probabilities, from any number of threads.
#pragma once

#include <dlfcn.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

#include <mutex>

#include "table.h"

namespace serving {

// The package with one set of constants. A reload makes another one, and calls that run keep theirs. Torch can also swap
// the constants of one package, but its swap_constant_buffer waits for a moment without a call: under load, for ever.
class Loaded {
public:
    Loaded(const std::filesystem::path& package, size_t runners, const Constants& constants,
           const std::vector<at::Tensor>& no_rows)
        : loader_(std::make_unique<torch::inductor::AOTIModelPackageLoader>(package, "model", false, runners)) {
        c10::InferenceMode inference;
        for (const auto& [name, tensor] : constants) constants_[name] = at::alias(tensor);
        loader_->load_constants(constants_, false, true, true);  // where they lie: nothing is copied
        loader_->run(no_rows);  // the first call does, alone, what the next ones need not
    }

    // Torch 2.13 never lets go of constants that the caller owns: without this their files would stay mapped.
    ~Loaded() {
        loader_.reset();
        for (auto& [name, tensor] : constants_) tensor.unsafeGetTensorImpl()->release_resources();
    }
    Loaded(const Loaded&) = delete;
    Loaded& operator=(const Loaded&) = delete;

    at::Tensor operator()(const std::vector<at::Tensor>& inputs) const {
        c10::InferenceMode inference;
        return loader_->run(inputs).at(0);
    }

private:
    std::unique_ptr<torch::inductor::AOTIModelPackageLoader> loader_;
    std::unordered_map<std::string, at::Tensor> constants_;
};

class Exported {
public:
    // Everything is verified before anything is loaded. runners: how many calls run at a time; others wait.
    // ExportError: the folder is not whole, or not for this torch and this CPU.
    explicit Exported(const std::filesystem::path& folder, size_t runners = 1)
        : folder_(std::filesystem::absolute(folder)), runners_(runners), manifest_(Manifest::read(folder_)) {
        manifest_.verify(folder_);
        if (manifest_.inputs.empty()) fail(folder_, ": not a model: its manifest has no inputs");
        const std::string library = folder_ / "libops.so";
        if (!dlopen(library.c_str(), RTLD_NOW)) fail(library, ": cannot be loaded: ", dlerror());
        constants_ = manifest_.mapped(folder_);
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
        for (const auto& [name, tensor] : table.constants) constants[name] = tensor;
        std::shared_ptr<const Loaded> next = with(constants);
        const std::lock_guard lock(mutex_);
        loaded_.swap(next);
    }

    const Manifest& manifest() const { return manifest_; }

private:
    std::shared_ptr<const Loaded> with(const Constants& constants) const {
        return std::make_shared<const Loaded>(folder_ / "package", runners_, constants, manifest_.no_rows());
    }
    std::shared_ptr<const Loaded> loaded() const {
        const std::lock_guard lock(mutex_);
        return loaded_;
    }

    std::filesystem::path folder_;
    size_t runners_;
    Manifest manifest_;
    Constants constants_;
    mutable std::mutex mutex_;  // of loaded_
    std::shared_ptr<const Loaded> loaded_;
};

}  // namespace serving
