// The launcher for Python: kernels/cubin/program.py's calls, without torch's dispatcher. A tensor is its address; a number
// gets the type of the parameter, of which a description says which it is, and the kernel itself how many bytes it has.
#pragma once

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <deque>
#include <limits>

#include "dispatch/driver.h"

namespace cubin_python {

struct Program {
    std::deque<std::string> names;
    std::deque<std::vector<cubin::Parameter>> parameters;
    std::deque<cubin::Description> descriptions;
    c10::DeviceType device;
    cubin::Program images;  // the last: it ends first

    const char* kept(const py::handle& name) { return names.emplace_back(py::cast<std::string>(name)).c_str(); }
    const cubin::Description* described(const py::dict& from) {
        std::vector<cubin::Parameter>& own = parameters.emplace_back();
        for (const py::handle& each : from["parameters"])
            own.push_back({kept(each["name"]), py::cast<std::string>(each["type"])[0], py::cast<unsigned>(each["bytes"]),
                           py::cast<unsigned>(each["multiple"])});
        return &descriptions.emplace_back(cubin::Description{
            kept(from["name"]), kept(from["entry"]), py::cast<unsigned>(from["threads"]),
            py::cast<unsigned>(from["shared"]), cubin::Kind(py::cast<int64_t>(from["kind"])), own.data(),
            unsigned(own.size()), py::cast<unsigned>(from["hidden"])});
    }
};

struct Kernel {
    cubin::Kernel* kernel;
    c10::DeviceType device;
    PyObject* program;  // which it needs
    bool is_captured = false;
};

// A graph launches its kernels without asking, when Python may have let go of them, and does not tell of its own end: so
// what one has captured is kept for as long as the process lives.
inline void keep_if_capturing(Kernel& own, void* stream) {
    int status = 0;
    if (own.is_captured || cubin::driver().is_capturing(stream, &status) || !status) return;
    Py_INCREF(own.program);
    own.is_captured = true;
}

inline cubin::Size size_of(PyObject* value, const char* what) {
    int64_t sizes[3] = {1, 1, 1};
    auto number = [&](PyObject* from) {
        const long long read = PyLong_Check(from) ? PyLong_AsLongLong(from) : 0;
        TORCH_CHECK_TYPE(PyLong_Check(from), "the ", what, " is an int or a tuple of up to three; got ", Py_TYPE(from)->tp_name);
        if (PyErr_Occurred()) throw python_error();
        return int64_t(read);
    };
    if (!PyTuple_Check(value)) return {number(value)};
    TORCH_CHECK_TYPE(PyTuple_GET_SIZE(value) >= 1 && PyTuple_GET_SIZE(value) <= 3, "the ", what,
                     " is an int or a tuple of up to three; got ", PyTuple_GET_SIZE(value));
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(value); ++i) sizes[i] = number(PyTuple_GET_ITEM(value, i));
    return {sizes[0], sizes[1], sizes[2]};
}

// Writes the number as the parameter has it. type: p, i, u, f, or 0 where no description says it.
inline cubin::Argument number(PyObject* value, size_t place, size_t bytes, char type, int64_t& into) {
    const bool is_float = PyFloat_Check(value);
    TORCH_CHECK_TYPE(is_float || PyLong_Check(value), "argument ", place, " is a tensor, a number or None; got ",
                     Py_TYPE(value)->tp_name);
    if (is_float || type == 'f') {
        const double real = PyFloat_AsDouble(value);  // of an int, too, which a description says is a float's
        if (real == -1.0 && PyErr_Occurred()) throw python_error();
        TORCH_CHECK_TYPE(type == 0 || type == 'f', "argument ", place, type == 'p' ? " is a pointer" : " is an integer",
                         "; got a float");
        TORCH_CHECK_TYPE(bytes == 4 || bytes == 8, "argument ", place, " has ", bytes, " bytes; got a float");
        const float single = float(real);
        std::memcpy(&into, bytes == 4 ? static_cast<const void*>(&single) : &real, bytes);
        return {&into, bytes, 'f'};
    }
    TORCH_CHECK_TYPE(bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8, "argument ", place, " has ", bytes,
                     " bytes; got an int");
    const bool is_unsigned = type == 'u' || type == 'p';
    bool is_large = false;  // beyond the largest signed one
    int overflow = 0;
    long long whole = PyLong_AsLongLongAndOverflow(value, &overflow);
    if (overflow > 0 && bytes == 8 && is_unsigned) {
        whole = static_cast<long long>(PyLong_AsUnsignedLongLong(value));
        if (PyErr_Occurred()) PyErr_Clear(); else overflow = 0, is_large = true;
    }
    // What no description says is taken for signed, lest a large number become a negative one.
    const int bits = int(8 * bytes);
    const bool fits = !overflow && (bits == 64 ? !is_unsigned || is_large || whole >= 0
                                    : type == 'u' ? whole >> bits == 0 : whole >> (bits - 1) == whole >> 63);
    TORCH_CHECK_VALUE(fits, "argument ", place, " is an integer of ", bits, " bits; got ",
                      py::cast<std::string>(py::str(py::handle(value))));
    into = whole;
    return {&into, bytes, is_unsigned ? 'u' : 'i'};
}

inline PyObject* call(PyObject* self, PyObject* const* values, Py_ssize_t count, PyObject* keywords) {
    HANDLE_TH_ERRORS
    Kernel& own = *static_cast<Kernel*>(PyCapsule_GetPointer(self, nullptr));
    TORCH_CHECK_TYPE(count >= 2, "a kernel is called with a grid, a block, and its arguments");
    cubin::Launch how(size_of(values[0], "grid"));
    if (values[1] != Py_None) how.block = size_of(values[1], "block");
    for (Py_ssize_t i = 0; keywords && i < PyTuple_GET_SIZE(keywords); ++i) {
        const std::string name = py::cast<std::string>(py::handle(PyTuple_GET_ITEM(keywords, i)));
        PyObject* value = values[count + i];
        if (name == "shared") how.shared = size_of(value, "shared").x;
        else if (name == "cluster") how.cluster = size_of(value, "cluster");
        else if (name == "cooperative" && PyObject_IsTrue(value)) how.kind = cubin::cooperative;
        else if (name == "early" && PyObject_IsTrue(value)) how.kind = cubin::early;
        else TORCH_CHECK_TYPE(name == "cooperative" || name == "early", "a launch has no option ", name,
                              ": shared, cluster, cooperative, early");
    }
    values += 2, count -= 2;
    c10::Device device(own.device, -1);
    bool is_known = false;
    for (Py_ssize_t i = 0; i < count; ++i) {
        if (!THPVariable_Check(values[i])) continue;
        const c10::Device its = THPVariable_Unpack(values[i]).device();
        TORCH_CHECK_VALUE(its.type() == own.device, "argument ", i, " is on ", its, "; the kernel runs on ", own.device);
        TORCH_CHECK_VALUE(!is_known || its == device, "argument ", i, " is on ", its, ", others are on ", device);
        device = its, is_known = true;
    }
    c10::OptionalDeviceGuard guard;
    if (own.device == c10::DeviceType::CUDA) {
        if (!is_known) device = c10::impl::VirtualGuardImpl(own.device).getDevice();
        guard.reset_device(device);
        driver::ensure_context(device);
        how.stream = driver::current_stream(device);
    }
    const std::vector<size_t>& sizes = own.kernel->parameter_sizes();
    const cubin::Description* described = own.kernel->description();
    c10::SmallVector<int64_t, 16> numbers(static_cast<size_t>(count));
    c10::SmallVector<cubin::Argument, 16> arguments;
    for (size_t i = 0; i < size_t(count); ++i) {
        PyObject* value = values[i];
        if (THPVariable_Check(value) || value == Py_None) {
            const bool is_tensor = value != Py_None;
            if (is_tensor) {
                const at::Tensor& tensor = THPVariable_Unpack(value);
                TORCH_CHECK_VALUE(!tensor.is_neg() && !tensor.is_conj() && !tensor._is_zerotensor(), "argument ", i,
                                  " is a negative or conjugate view or a zero tensor, which shows other numbers than its "
                                  "memory holds: clone() it");
            }
            numbers[i] = is_tensor ? reinterpret_cast<int64_t>(THPVariable_Unpack(value).data_ptr()) : 0;
            arguments.push_back({&numbers[i], sizeof(void*), 'p'});
        } else {  // one too many is refused by the launch
            const char type = described && i < described->count ? described->parameters[i].type : '\0';
            arguments.push_back(number(value, i, i < sizes.size() ? sizes[i] : 8, type, numbers[i]));
        }
    }
    keep_if_capturing(own, how.stream);
    own.kernel->launch(how, arguments.data(), arguments.size());
    Py_RETURN_NONE;
    END_HANDLE_TH_ERRORS
}

// files: (path, what compile.py's description_of gives for it) of each.
inline PyObject* program(PyObject* files, const char* device) {
    HANDLE_TH_ERRORS
    auto made = std::make_unique<Program>();
    made->device = c10::Device(device).type();
    for (const py::handle& each : py::handle(files)) {
        const py::object path = each[py::int_(0)], description = each[py::int_(1)];
        made->images.add_file(py::cast<std::string>(path), description.is_none() ? nullptr : made->described(description));
    }
    return PyCapsule_New(made.release(), nullptr,
                         [](PyObject* self) { delete static_cast<Program*>(PyCapsule_GetPointer(self, nullptr)); });
    END_HANDLE_TH_ERRORS
}

inline PyObject* kernel(PyObject* program, const char* name) {
    HANDLE_TH_ERRORS
    static PyMethodDef method = {"launch", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(call)),
                                 METH_FASTCALL | METH_KEYWORDS, nullptr};
    auto& from = *static_cast<Program*>(PyCapsule_GetPointer(program, nullptr));
    auto* made = new Kernel{&from.images[name], from.device, program};
    Py_INCREF(program);
    py::object self = py::reinterpret_steal<py::object>(PyCapsule_New(made, nullptr, [](PyObject* self) {
        auto* kernel = static_cast<Kernel*>(PyCapsule_GetPointer(self, nullptr));
        Py_DECREF(kernel->program);
        delete kernel;
    }));
    return PyCFunction_New(&method, self.ptr());
    END_HANDLE_TH_ERRORS
}

}  // namespace cubin_python
