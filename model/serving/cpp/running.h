// A package's compiled code with its constants: what runs it on the CPU, and what gpu.h's slots share with that.
#pragma once

#include <torch/csrc/inductor/aoti_runner/model_container_runner_cpu.h>

#include "manifest.h"

namespace serving {

// A package with one set of constants. A reload makes another one, and calls that run keep theirs. Torch can also swap
// the constants of one package, but its swap_constant_buffer waits for a moment without a call: under load, for ever.
struct Running {
    virtual ~Running() = default;
    virtual at::Tensor operator()(const std::vector<at::Tensor>& inputs) const = 0;  // from any number of threads
};

// The compiled code in a package's folder. Torch's package loader finds it too, but before 2.13 in a zip file alone,
// which it unpacks into a temporary folder.
inline std::string code_in(const std::filesystem::path& package) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(package))
        if (entry.path().extension() == ".so") return entry.path();
    fail(package, ": no code is in it");
}

// The constants as a runner reads them: where they lie, nothing is copied. Torch 2.13 never lets go of constants that
// the caller owns: without release_resources their memory would stay. The runner must end before this does.
class Lent {
public:
    void to(torch::inductor::AOTIModelContainerRunner& runner, const Constants& constants) {
        c10::InferenceMode inference;
        for (const auto& [own, name] : runner.getConstantNamesToOriginalFQNs()) {
            const auto found = constants.find(name);
            if (found == constants.end()) fail(name, ": the package has it, and the manifest does not");
            tensors_[own] = at::alias(found->second);
        }
        runner.update_constant_buffer(tensors_, false, true, true);
    }
    ~Lent() {
        for (auto& [name, tensor] : tensors_) tensor.unsafeGetTensorImpl()->release_resources();
    }

private:
    std::unordered_map<std::string, at::Tensor> tensors_;
};

class OnCpu : public Running {
public:
    OnCpu(const std::filesystem::path& package, size_t runners, const Constants& constants,
          const std::vector<at::Tensor>& no_rows)
        : runner_(code_in(package), runners) {
        lent_.to(runner_, constants);
        (*this)(no_rows);  // the first call does, alone, what the next ones need not
    }

    at::Tensor operator()(const std::vector<at::Tensor>& inputs) const override {
        c10::InferenceMode inference;
        return runner_.run(inputs).at(0);
    }

private:
    Lent lent_;
    mutable torch::inductor::AOTIModelContainerRunnerCpu runner_;
};

}  // namespace serving
