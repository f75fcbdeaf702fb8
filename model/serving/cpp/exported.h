// An exported model: serving::Exported(folder, runners)({counts, ids}) → probabilities, from any number of threads.
#pragma once

#include <dlfcn.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

#include "manifest.h"

namespace serving {

class Exported {
public:
    // Everything is verified before anything is loaded. runners: how many calls run at a time; others wait.
    // ExportError: the folder is not whole, or not for this torch and this CPU.
    explicit Exported(const std::filesystem::path& folder, size_t runners = 1)
        : manifest_(Manifest::read(folder)), folder_(std::filesystem::absolute(folder)) {
        manifest_.verify(folder_);
        const std::string library = folder_ / "libops.so";
        if (!dlopen(library.c_str(), RTLD_NOW)) fail(library, ": cannot be loaded: ", dlerror());
        loader_ = std::make_unique<torch::inductor::AOTIModelPackageLoader>(folder_ / "package", "model", false, runners);
        for (const Tensors& each : manifest_.constants) constants_[each.name] = mapped(each);
        loader_->load_constants(constants_, false, true, true);  // where they lie: nothing is copied
    }

    // ExportError: inputs that the manifest does not have.
    at::Tensor operator()(const std::vector<at::Tensor>& inputs) const {
        c10::InferenceMode inference;
        manifest_.check(inputs);
        return loader_->run(inputs).at(0);
    }

    const Manifest& manifest() const { return manifest_; }

private:
    // The tensor in a file, whose pages all processes that map it share.
    at::Tensor mapped(const Tensors& constant) const {
        std::vector<int64_t> shape;
        int64_t elements = 1;
        for (const Size& size : constant.shape) shape.push_back(size.more), elements *= size.more;
        if (!elements) return at::empty(shape, constant.dtype);
        return at::from_file((folder_ / "constants" / constant.name).string(), false, elements, constant.dtype).view(shape);
    }

    Manifest manifest_;
    std::filesystem::path folder_;
    std::unordered_map<std::string, at::Tensor> constants_;
    std::unique_ptr<torch::inductor::AOTIModelPackageLoader> loader_;
};

}  // namespace serving
