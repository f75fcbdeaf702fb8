// A call of an overload from Python, at a part of what torch.ops costs: its way through pybind asks several questions of
// every tensor, in lists too, which a model's parameters make dearer than all that comes after it. Behind the arguments
// nothing differs: the call goes through the dispatcher.
#pragma once

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace from_python {

enum class Type { tensor, optional_tensor, tensors, text, integer, real, boolean, other };

inline Type type_of(const c10::Type& type) {
    auto of_element = [](const auto& outer) { return outer.getElementType()->kind() == c10::TypeKind::TensorType; };
    switch (type.kind()) {
        case c10::TypeKind::TensorType: return Type::tensor;
        case c10::TypeKind::OptionalType:
            return of_element(*type.castRaw<c10::OptionalType>()) ? Type::optional_tensor : Type::other;
        case c10::TypeKind::ListType: return of_element(*type.castRaw<c10::ListType>()) ? Type::tensors : Type::other;
        case c10::TypeKind::StringType: return Type::text;
        case c10::TypeKind::IntType:
        case c10::TypeKind::SymIntType: return Type::integer;
        case c10::TypeKind::FloatType: return Type::real;
        case c10::TypeKind::BoolType: return Type::boolean;
        default: return Type::other;
    }
}

// Pushes the value as this type; false for what only torch.ops knows how to take, or to refuse: subclasses of Tensor,
// numbers of other types, lists of anything else.
inline bool push(torch::jit::Stack& stack, PyObject* value, Type type) {
    switch (type) {
        case Type::optional_tensor:
            if (value == Py_None) return stack.emplace_back(), true;
            [[fallthrough]];
        case Type::tensor:
            if (!THPVariable_CheckExact(value)) return false;
            return stack.emplace_back(THPVariable_Unpack(value)), true;
        case Type::tensors: {
            if (!PyList_CheckExact(value) && !PyTuple_CheckExact(value)) return false;
            PyObject** each = PySequence_Fast_ITEMS(value);
            size_t count = size_t(PySequence_Fast_GET_SIZE(value));
            c10::List<at::Tensor> list;
            list.reserve(count);
            for (size_t i = 0; i < count; ++i) {
                if (!THPVariable_CheckExact(each[i])) return false;
                list.push_back(THPVariable_Unpack(each[i]));
            }
            return stack.emplace_back(std::move(list)), true;
        }
        case Type::text: {
            Py_ssize_t bytes = 0;
            const char* text = PyUnicode_CheckExact(value) ? PyUnicode_AsUTF8AndSize(value, &bytes) : nullptr;
            if (!text) return PyErr_Clear(), false;
            return stack.emplace_back(std::string(text, size_t(bytes))), true;
        }
        case Type::integer: {
            int overflow = 1;
            long long number = PyLong_CheckExact(value) ? PyLong_AsLongLongAndOverflow(value, &overflow) : 0;
            return overflow ? false : (stack.emplace_back(int64_t(number)), true);
        }
        case Type::real:
            return PyFloat_CheckExact(value) ? (stack.emplace_back(PyFloat_AS_DOUBLE(value)), true) : false;
        case Type::boolean:
            return PyBool_Check(value) ? (stack.emplace_back(value == Py_True), true) : false;
        default: return false;
    }
}

struct Overload {
    c10::OperatorHandle op;
    std::vector<Type> types;
    PyObject* of_torch_ops;  // for what `push` does not take
};

// What the call gives; null without an error if the arguments are not all of types that `push` takes.
inline PyObject* dispatched(const Overload& overload, PyObject* const* arguments, size_t count) {
    HANDLE_TH_ERRORS
    if (count != overload.types.size() || at::impl::torch_function_mode_enabled()) return nullptr;
    torch::jit::Stack stack;
    stack.reserve(count);
    for (size_t i = 0; i < count; ++i)
        if (!push(stack, arguments[i], overload.types[i])) return nullptr;
    // Whoever gives back the last reference but Python's takes the lock of the interpreter for each tensor: so it is done
    // here, behind the call, where it is held.
    const torch::jit::Stack kept = stack;
    {
        pybind11::gil_scoped_release released;
        overload.op.callBoxed(stack);
    }
    if (stack.empty()) Py_RETURN_NONE;
    if (stack.size() == 1) return THPVariable_Wrap(stack[0].toTensor());
    py::tuple outputs(stack.size());
    for (size_t i = 0; i < stack.size(); ++i)
        outputs[i] = py::reinterpret_steal<py::object>(THPVariable_Wrap(stack[i].toTensor()));
    return outputs.release().ptr();
    END_HANDLE_TH_ERRORS
}

inline PyObject* call(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
    const auto& overload = *static_cast<const Overload*>(PyCapsule_GetPointer(self, nullptr));
    PyObject* returned = dispatched(overload, arguments, size_t(count));
    if (returned || PyErr_Occurred()) return returned;
    // Outside of HANDLE_TH_ERRORS, which keeps warnings until its end: Python cannot be given them beside an error.
    return PyObject_Vectorcall(overload.of_torch_ops, arguments, size_t(count), nullptr);
}

// What Python calls in the place of an overload of torch.ops that returns tensors alone.
inline PyObject* made(PyObject* of_torch_ops, const char* name, const char* overload_name) {
    HANDLE_TH_ERRORS
    static PyMethodDef method = {"call", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(call)), METH_FASTCALL,
                                 nullptr};
    c10::OperatorHandle op = c10::Dispatcher::singleton().findSchemaOrThrow(name, overload_name);
    auto overload = new Overload{op, {}, Py_NewRef(of_torch_ops)};  // for good: there are as many as overloads
    for (const c10::Argument& argument : op.schema().arguments()) overload->types.push_back(type_of(*argument.type()));
    py::object self = py::reinterpret_steal<py::object>(PyCapsule_New(overload, nullptr, nullptr));
    return PyCFunction_New(&method, self.ptr());
    END_HANDLE_TH_ERRORS
}

}  // namespace from_python
