// The core of every op: what stands between a dispatcher call and a launch, once for all ops and both backends. Boxed,
// so that one function serves every schema; built by g++ alone, for any torch, with or without CUDA.
//
// Python defines the schemas (op.py), and says by _declare what follows from each (loader.py). A call of Python's public
// functions comes by from_python.h, where that could be compiled, any other by torch.ops. It passes autocast and autograd
// (autograd.h), and is then looked up by its signature: the dtypes, shapes, devices and alignment of its tensors, and its
// other arguments (compute.h). The first call of a signature goes to Python, to the op fused_kernels::_plan_<name>, which
// checks the arguments and says by _return_plan what to allocate and, of Triton's kernels, what to launch. Every later call
// of that signature stays here.
#include <deque>
#include <set>
#include <sstream>

#include "autograd.h"
#if __has_include(<Python.h>)
#include "cubin/from_python.h"
#include "from_python.h"

// For ctypes: core.py, from_python.
extern "C" __attribute__((visibility("default"))) PyObject* fused_kernels_from_python(PyObject* overload, const char* name,
                                                                                      const char* overload_name) {
    return from_python::made(overload, name, overload_name);
}
// The same: kernels/cubin/program.py.
extern "C" __attribute__((visibility("default"))) PyObject* fused_kernels_cubin_program(PyObject* files, const char* device) {
    return cubin_python::program(files, device);
}
extern "C" __attribute__((visibility("default"))) PyObject* fused_kernels_cubin_kernel(PyObject* program, const char* name) {
    return cubin_python::kernel(program, name);
}
#endif

namespace {

using Form = Compute::Form;

#define FUSED_SAME_NUMBER(name, number, torch_name, type) static_assert(number == int(c10::ScalarType::torch_name));
FUSED_DTYPES(FUSED_SAME_NUMBER)
#undef FUSED_SAME_NUMBER

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

// What loader.py says of an op on a backend: a line an entry, its name and its values, with tabs between them.
class Entries {
   public:
    explicit Entries(const std::string& text) {
        std::istringstream lines(text);
        for (std::string line, name, value; std::getline(lines, line);) {
            std::istringstream words(line);
            std::getline(words, name, '\t');
            std::vector<std::string>& values = values_[name];
            while (std::getline(words, value, '\t')) values.push_back(value);
        }
    }

    const std::vector<std::string>& values(const std::string& name) const {
        auto entry = values_.find(name);
        TORCH_CHECK(entry != values_.end(), "fused_kernels: _declare is given no entry ", name);
        return entry->second;
    }
    bool has(const std::string& name) const { return !values(name).empty(); }
    std::string text(const std::string& name) const { return has(name) ? values(name)[0] : ""; }
    Positions positions(const std::string& name) const {
        Positions numbers;
        for (const std::string& value : values(name)) numbers.push_back(std::stoll(value));
        return numbers;
    }
    // The entries "<kind> <key>", by their keys.
    std::map<std::string, Positions> positions_by_key(const std::string& kind) const {
        std::map<std::string, Positions> by_key;
        for (const auto& entry : values_)
            if (const std::string& name = entry.first; name.rfind(kind + " ", 0) == 0)
                by_key[name.substr(kind.size() + 1)] = positions(name);
        return by_key;
    }

   private:
    std::map<std::string, std::vector<std::string>> values_;
};

void declare(const std::string& text) {
    const Entries entries(text);
    static std::deque<Declared> functional, in_place_forms;  // the kernels keep references
    Declared& declared = functional.emplace_back();
    const std::string op = entries.text("op"), backend = entries.text("backend"), library = entries.text("library");
    declared.op = op;
    declared.device = c10::Device(entries.text("device")).type();
    if (!library.empty()) {
        void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
        TORCH_CHECK(handle, "fused_kernels: ", dlerror());
        void* table = dlsym(handle, ("fused_op_" + op).c_str());  // of a folder with several ops
        declared.table = static_cast<fused::Table*>(table ? table : dlsym(handle, "fused_op"));
        TORCH_CHECK(declared.table, "fused_kernels: ", library, " has no FUSED_OP");
    }
    declared.gradients = entries.positions("gradients");
    declared.mutated = entries.positions("mutated");
    declared.elementwise = entries.has("elementwise");
    declared.saves_by = entries.positions("saves_by");
    declared.reports = entries.has("reports");
    declared.undifferentiable = entries.positions("undifferentiable");
    declared.saved = entries.positions("saved");
    declared.others = entries.positions("others");
    declared.saves = entries.positions_by_key("saves");
    for (const auto& [argument, read] : entries.positions_by_key("wanted")) declared.wanted.emplace_back(std::stoll(argument), read);
    declared.shapes = entries.positions("shapes");
    const Positions scalars = entries.positions("scalars"), in_place = entries.positions("in_place");
    const Positions ragged = entries.positions("ragged");

    bool cuda = declared.device == at::kCUDA;
    auto compute = cuda ? c10::DispatchKey::CUDA : c10::DispatchKey::CPU;
    auto autograd_key = cuda ? c10::DispatchKey::AutogradCUDA : c10::DispatchKey::AutogradCPU;
    auto autocast_key = cuda ? c10::DispatchKey::AutocastCUDA : c10::DispatchKey::AutocastCPU;
    auto add = [&](const std::string& name, Form form, const Declared& given, const Positions& scalars,
                   const Positions& ragged) {
        implement<Compute>(name + "." + backend, compute, given, form, find(name, backend).schema(), scalars, ragged,
                           find("_plan_" + name, backend));
    };
    add(op, Form::functional, declared, scalars, ragged);
    implement<autograd::Autocast>(op + "." + backend, autocast_key, declared.device, scalars, declared.mutated);
    if (declared.gradients.empty()) {
        implement<autograd::Refusing>(op + "." + backend, autograd_key, op,
                                      op + " has no gradient: call it under torch.no_grad(), or detach() its arguments");
    } else {
        const std::string backward = entries.text("backward");
        implement<autograd::Functional>(op + "." + backend, autograd_key, declared, find(op + "_backward", backward));
        if (backward == backend) {  // else another backend's
            const std::string computed = entries.text("computed_backward");  // perhaps behind one in Python
            add(computed, Form::backward, declared, entries.positions("backward_scalars"),
                entries.positions("backward_ragged"));
            for (const std::string& name : std::set<std::string>{op + "_backward", computed})
                implement<autograd::Backward>(name + "." + backend, autograd_key, declared);
        }
    }
    if (in_place.empty()) return;
    Declared& written = in_place_forms.emplace_back(declared);
    written.op = op + "_";
    written.mutated = in_place;
    add(op + "_", Form::in_place, written, scalars, ragged);
    implement<autograd::Autocast>(op + "_." + backend, autocast_key, declared.device, scalars, written.mutated);
    implement<autograd::Refusing>(op + "_." + backend, autograd_key, op + "_",
                                  op + "_ has no gradient: call " + op + ", or " + op + "_ under torch.no_grad()");
}

using Lists = std::vector<std::vector<int64_t>>;

// dtypes, shapes: of what to allocate: outputs first, in these groups (plan::Plan), then workspaces. Each launch: function, grid (3),
// threads, shared bytes, driver::Kind, and for each argument its kind and value. programs, conditions: plan::run's; sizes
// and grids below 0 are those of program -1 - size.
void return_plan(const std::vector<at::ScalarType>& dtypes, const Lists& shapes, const Positions& groups, const Lists& launches,
                 const Lists& programs, const Lists& conditions) {
    auto plan = std::make_shared<plan::Plan>();
    plan->programs = programs;
    plan->conditions = conditions;
    plan->groups = groups;
    int64_t outputs = 0;
    for (int64_t group : groups) outputs += group < 0 ? 1 : group;
    for (size_t i = 0; i < dtypes.size(); ++i)
        (int64_t(i) < outputs ? plan->outputs : plan->workspaces).push_back({dtypes[i], shapes.at(i)});
    for (const std::vector<int64_t>& from : launches) {
        constexpr size_t fixed = 7;
        TORCH_CHECK(from.size() >= fixed && from.size() % 2 == fixed % 2, "fused_kernels: a launch is incomplete");
        plan::Launch launch{reinterpret_cast<driver::Function>(from[0]),
                            {from[1], from[2], from[3]},
                            unsigned(from[4]),
                            unsigned(from[5]),
                            driver::Kind(from[6]),
                            {}};
        for (size_t i = fixed; i < from.size(); i += 2)
            launch.arguments.push_back({plan::Argument::Kind(from[i]), from[i + 1]});
        plan->launches.push_back(std::move(launch));
    }
    plan::returned_by_python = std::move(plan);
}

int64_t load_cubin(const std::string& path, const std::string& name, int64_t shared, int64_t parameters) {
    return reinterpret_cast<int64_t>(driver::load(path, name, shared, parameters));
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(fused_kernels, library) {
    library.def("_declare(str entries) -> ()");
    library.def("_return_plan(ScalarType[] dtypes, int[][] shapes, int[] groups, int[][] launches, int[][] programs, "
                "int[][] conditions) -> ()");
    library.def("_load_cubin(str path, str name, int shared, int parameters) -> int");
    library.def("_set_report(Tensor report, Device device) -> ()");
    library.def("_use_driver(str path) -> ()");
    library.def("_replace_allocations(bool replaced) -> ()");
    library.impl("_declare", declare);
    library.impl("_return_plan", return_plan);
    library.impl("_load_cubin", load_cubin);
    library.impl("_set_report", [](const at::Tensor& report, at::Device device) {
        report_of(device) = report;
    });
    library.impl("_use_driver", [](const std::string& path) { cubin::use_driver(path); });
    library.impl("_replace_allocations", [](bool replaced) { plan::allocations_replaced = replaced; });
}
