// The core of every op: what stands between a dispatcher call and a launch, once for all ops and both backends. Boxed,
// so that one function serves every schema; built by g++ alone, for any torch, with or without CUDA.
//
// Python declares the schemas (op.py), and by _declare what follows from each. A call passes autocast and autograd
// (autograd.h), and is then looked up by its signature: the dtypes, shapes, devices and alignment of its tensors, and its
// other arguments (compute.h). The first call of a signature goes to Python, to the op fused_kernels::_plan_<name>, which
// checks the arguments and says by _add_plan what to allocate and, of Triton's kernels, what to launch. Every later call
// of that signature stays here.
#include <deque>

#include "autograd.h"

namespace {

using Strings = std::vector<std::string>;
using Form = Compute::Form;

c10::OperatorHandle find(const std::string& name, const std::string& overload) {
    return c10::Dispatcher::singleton().findSchemaOrThrow(("fused_kernels::" + name).c_str(), overload.c_str());
}

template <class Kernel, class... Arguments>
void implement(const std::string& name, c10::DispatchKey key, Arguments&&... arguments) {
    static std::deque<torch::Library> libraries;  // each keeps its registrations for as long as it lives
    torch::Library& library = libraries.emplace_back(torch::Library::IMPL, "fused_kernels", key, __FILE__, __LINE__);
    library.impl(name.c_str(), torch::CppFunction::makeFromBoxedFunctor<Kernel>(
                                   std::make_unique<Kernel>(std::forward<Arguments>(arguments)...)));
}

// saves: for each of saves_keys, positions, ended by the smallest integer.
void declare(const std::string& op, const std::string& backend, const std::string& device, const std::string& library,
             Positions gradients, Positions mutated, int64_t in_place, bool elementwise, int64_t saves_by,
             Strings saves_keys, Positions saves, Positions saved, Positions others, Positions scalars,
             Positions backward_scalars, bool reports_, Positions undifferentiable, const std::string& backward,
             const std::string& computed_backward) {
    static std::deque<Declared> functional, in_place_forms;  // the kernels keep references
    Declared& declared = functional.emplace_back();
    declared.op = op;
    declared.device = c10::Device(device).type();
    if (!library.empty()) {
        void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
        TORCH_CHECK(handle, "fused_kernels: ", dlerror());
        void* table = dlsym(handle, ("fused_op_" + op).c_str());  // of a folder with several ops
        declared.table = static_cast<fused::Table*>(table ? table : dlsym(handle, "fused_op"));
        TORCH_CHECK(declared.table, "fused_kernels: ", library, " has no FUSED_OP");
    }
    declared.gradients = std::move(gradients);
    declared.mutated = std::move(mutated);
    declared.elementwise = elementwise;
    declared.saves_by = saves_by;
    declared.reports = reports_;
    declared.undifferentiable = std::move(undifferentiable);
    declared.saved = std::move(saved);
    declared.others = std::move(others);
    size_t next = 0;
    for (const std::string& key : saves_keys)
        for (Positions& positions = declared.saves[key]; saves[next++] != INT64_MIN;) positions.push_back(saves[next - 1]);

    bool cuda = declared.device == at::kCUDA;
    auto compute = cuda ? c10::DispatchKey::CUDA : c10::DispatchKey::CPU;
    auto autograd_key = cuda ? c10::DispatchKey::AutogradCUDA : c10::DispatchKey::AutogradCPU;
    auto autocast_key = cuda ? c10::DispatchKey::AutocastCUDA : c10::DispatchKey::AutocastCPU;
    auto add = [&](const std::string& name, Form form, const Declared& given, const Positions& scalars) {
        implement<Compute>(name + "." + backend, compute, given, form, find(name, backend).schema(), scalars,
                           find("_plan_" + name, backend));
    };
    add(op, Form::functional, declared, scalars);
    implement<autograd::Autocast>(op + "." + backend, autocast_key, declared.device, scalars, declared.mutated);
    if (declared.gradients.empty()) {
        implement<autograd::Refusing>(op + "." + backend, autograd_key, op,
                                      op + " has no gradient: call it under torch.no_grad(), or detach() its arguments");
    } else {
        implement<autograd::Functional>(op + "." + backend, autograd_key, declared, find(op + "_backward", backward));
        if (backward == backend) {  // else another backend's
            add(computed_backward, Form::backward, declared, backward_scalars);  // perhaps behind one in Python
            implement<autograd::Backward>(op + "_backward." + backend, autograd_key, declared);
        }
    }
    if (in_place < 0) return;
    Declared& written = in_place_forms.emplace_back(declared);
    written.op = op + "_";
    written.mutated = {in_place};
    add(op + "_", Form::in_place, written, scalars);
    implement<autograd::Autocast>(op + "_." + backend, autocast_key, declared.device, scalars, written.mutated);
    implement<autograd::Refusing>(op + "_." + backend, autograd_key, op + "_",
                                  op + "_ has no gradient: call " + op + ", or " + op + "_ under torch.no_grad()");
}

// Allocations as dtype, dimensions, sizes…; launches as function, grid (3), threads, shared bytes, driver::Kind, number
// of arguments, and for each its kind and value.
void add_plan(at::IntArrayRef outputs, at::IntArrayRef workspaces, at::IntArrayRef launches) {
    auto made = std::make_shared<plan::Plan>();
    auto read = [](at::IntArrayRef from, std::vector<plan::Allocation>& to) {
        for (size_t i = 0; i < from.size(); i += 2 + size_t(from[i + 1]))
            to.push_back({at::ScalarType(from[i]), from.slice(i + 2, size_t(from[i + 1])).vec()});
    };
    read(outputs, made->outputs);
    read(workspaces, made->workspaces);
    for (size_t i = 0; i < launches.size();) {
        auto at = launches.slice(i);
        TORCH_CHECK(at[1] < 1LL << 31 && at[2] < 1 << 16 && at[3] < 1 << 16, "fused_kernels: a grid of ", at[1], "×", at[2],
                    "×", at[3], " blocks is beyond CUDA's limits");
        plan::Launch launch{reinterpret_cast<driver::Function>(at[0]),
                            {unsigned(at[1]), unsigned(at[2]), unsigned(at[3])},
                            unsigned(at[4]),
                            unsigned(at[5]),
                            driver::Kind(at[6]),
                            {}};
        size_t count = size_t(at[7]);
        for (size_t a = 0; a < count; ++a)
            launch.arguments.push_back({plan::Argument::Kind(at[8 + 2 * a]), at[9 + 2 * a]});
        made->launches.push_back(std::move(launch));
        i += 8 + 2 * count;
    }
    plan::added = std::move(made);
}

int64_t load_cubin(const std::string& path, const std::string& name, int64_t shared, int64_t parameters) {
    return reinterpret_cast<int64_t>(driver::load(path, name, shared, parameters));
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(fused_kernels, library) {
    library.def(
        "_declare(str op, str backend, str device, str library, int[] gradients, int[] mutated, int in_place, "
        "bool elementwise, int saves_by, str[] saves_keys, int[] saves, int[] saved, int[] others, int[] scalars, "
        "int[] backward_scalars, bool reports, int[] undifferentiable, str backward, "
        "str computed_backward) -> ()");
    library.def("_add_plan(int[] outputs, int[] workspaces, int[] launches) -> ()");
    library.def("_load_cubin(str path, str name, int shared, int parameters) -> int");
    library.def("_set_report(Tensor report, Device device) -> ()");
    library.def("_use_driver(str path) -> ()");
    library.def("_replace_allocations(bool replaced) -> ()");
    library.impl("_declare", declare);
    library.impl("_add_plan", add_plan);
    library.impl("_load_cubin", load_cubin);
    library.impl("_set_report", [](const at::Tensor& report, at::Device device) {
        report_of(device) = report;
    });
    library.impl("_use_driver", [](const std::string& path) { driver::use(path.c_str()); });
    library.impl("_replace_allocations", [](bool replaced) { plan::allocations_replaced = replaced; });
}
