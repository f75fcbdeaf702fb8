// A package's compiled code with its constants: what runs it on the CPU, and what gpu.h's slots share with that.
#pragma once

#include <torch/csrc/inductor/aoti_runner/model_container_runner_cpu.h>

#include "manifest.h"

namespace serving {

// What runs a package, from any number of threads.
struct Running {
    virtual ~Running() = default;
    virtual at::Tensor operator()(const std::vector<at::Tensor>& inputs) const = 0;
};

// The constants as a runner reads them: where they lie, nothing is copied. Torch 2.13 never lets go of constants that
// the caller owns: without release_resources their memory would stay. The runner must end before this does.
class Lent {
public:
    // Instead of those before, which no call has.
    void to(torch::inductor::AOTIModelContainerRunner& runner, const Constants& constants) {
        c10::InferenceMode inference;
        std::unordered_map<std::string, at::Tensor> next;
        for (const auto& [own, name] : runner.getConstantNamesToOriginalFQNs()) {
            const auto found = constants.find(name);
            if (found == constants.end()) fail(name, ": the package has it, and the manifest does not");
            next[own] = at::alias(found->second);
        }
        runner.update_constant_buffer(next, false, true, true);
        tensors_.swap(next);  // the runner may have the tensors' own addresses
        release(next);
    }
    ~Lent() { release(tensors_); }

private:
    static void release(std::unordered_map<std::string, at::Tensor>& tensors) {
        for (auto& [name, tensor] : tensors) tensor.unsafeGetTensorImpl()->release_resources();
    }

    std::unordered_map<std::string, at::Tensor> tensors_;
};

// A package with one set of constants. A reload makes another one, and calls that run keep theirs. Torch can also swap
// the constants of one package, but its swap_constant_buffer waits for a moment without a call: under load, for ever.
class OnCpu : public Running {
public:
    OnCpu(const std::string& code, size_t runners, const Constants& constants, const std::vector<at::Tensor>& one_row)
        : runner_(code, runners) {
        lent_.to(runner_, constants);
        (*this)(one_row);  // the first call does, alone, what the next ones need not
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
