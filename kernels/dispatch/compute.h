// Below autograd: from a boxed call to the launch, for every op and both backends.
#pragma once

#include <ATen/core/stack.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <array>
#include <map>
#include <shared_mutex>
#include <string>
#include <unordered_map>

#include "call.h"
#include "plan.h"

using Positions = std::vector<int64_t>;  // among a schema's arguments

// One op on one backend, as Python declared it.
struct Declared {
    std::string op;
    c10::DeviceType device;
    fused::Table* table = nullptr;  // of the op's cuda.cu; null for Triton
    Positions gradients;            // the arguments that have one
    Positions mutated;              // what the schema writes; of the in-place form, what replaces the output
    bool elementwise = false;       // every element is read before it is written, so the argument written may be another too
    // What the backward reads: arguments by their positions, outputs as -1 - n; by the value of the string argument at
    // `saves_by`, or, if that is empty, by "".
    Positions saves_by;
    std::map<std::string, Positions> saves;
    std::vector<std::pair<int64_t, Positions>> wanted;  // and besides, where the gradient of this argument is wanted
    Positions saved;   // all that any of them saves: the backward takes these, after the gradients of the outputs,
    Positions shapes;  // then the shapes of these arguments,
    Positions others;  // then these as they are
    Positions undifferentiable;  // floating outputs that have no gradient, of which the backward takes none
    bool reports = false;  // the forward gets the device's report, behind the outputs
};

// f(each tensor of an argument): of a list all that are in it, of other types none.
template <class Function>
void for_each_tensor(const c10::IValue& value, Function f) {
    if (value.isTensor()) {
        if (value.toTensor().defined()) f(value.toTensor());
    } else if (value.isTensorList()) {
        for (const c10::IValue& element : value.toListRef()) f(element.toTensor());
    }
}

inline bool contains(const Positions& positions, size_t position) {
    return std::find(positions.begin(), positions.end(), int64_t(position)) != positions.end();
}

// A device's report (input_errors.py): Python sets it before it makes the first plan.
inline at::Tensor& report_of(at::Device device) {
    static std::array<at::Tensor, 129> reports;
    return reports.at(device.is_cuda() ? size_t(device.index() + 1) : 0);
}

class Compute : public c10::OperatorKernel {
   public:
    enum class Form { functional, in_place, backward };

    // scalars: the positions of 0-d tensors that are numbers. ragged: of those whose length is N, and of N itself.
    // planner: the op in Python that makes plans.
    Compute(const Declared& declared, Form form, const c10::FunctionSchema& schema, Positions scalars, Positions ragged,
            c10::OperatorHandle planner)
        : declared_(declared), form_(form), planner_(planner) {
        if (declared.table) entry_ = form == Form::backward ? declared.table->backward : declared.table->forward;
        TORCH_CHECK(!declared.table || entry_.run, declared.op, ": cuda.cu has no function for ", schema.name());
        for (size_t i = 0; i < schema.arguments().size(); ++i) {
            const c10::Type& type = *schema.arguments()[i].type();
            bool tensor = type.kind() == c10::TypeKind::TensorType ||
                          (type.kind() == c10::TypeKind::OptionalType &&
                           type.castRaw<c10::OptionalType>()->getElementType()->kind() == c10::TypeKind::TensorType);
            bool list = type.kind() == c10::TypeKind::ListType &&
                        type.castRaw<c10::ListType>()->getElementType()->kind() == c10::TypeKind::TensorType;
            roles_.push_back({tensor, list, contains(scalars, i), contains(ragged, i),
                              form != Form::backward && contains(declared.mutated, i)});
            if (roles_.back().mutated) written_.push_back(int64_t(i));
        }
    }

    void operator()(const c10::OperatorHandle&, c10::DispatchKeySet, torch::jit::Stack* stack) {
        size_t count = roles_.size();
        auto arguments = torch::jit::last(*stack, count);
        plan::Signature signature;
        at::Device device(declared_.device);
        const int64_t n = length_of(arguments);
        size_t listed = 0;
        auto take_device = [&](const at::Tensor& tensor) {
            if (!device.has_index() && tensor.device().type() == declared_.device) device = tensor.device();
        };
        for (size_t i = 0; i < count; ++i) {
            if (roles_[i].list) {
                auto list = arguments[i].toListRef();
                listed += list.size();
                signature.push_back(int64_t(list.size()));
                if (roles_[i].ragged) plan::describe_ragged(signature, list, n);
                for (const c10::IValue& element : list) {
                    if (!roles_[i].ragged) plan::describe(signature, element.toTensor());
                    take_device(element.toTensor());
                }
                continue;
            }
            if (roles_[i].ragged && arguments[i].isInt())
                signature.push_back(arguments[i].toInt() == n && plan::varies(n) ? -1 : arguments[i].toInt());
            else if (roles_[i].ragged)
                plan::describe_ragged(signature, arguments[i].isTensor() ? arguments[i].toTensor() : none(), n);
            else
                plan::describe(signature, arguments[i]);
            if (roles_[i].tensor && arguments[i].isTensor() && arguments[i].toTensor().defined())
                take_device(arguments[i].toTensor());
        }
        for (size_t i = 0; plan::varies(n) && i < count; ++i)  // a check may ask whether another tensor has N rows
            if (!roles_[i].ragged && (roles_[i].tensor || roles_[i].list))
                for_each_tensor(arguments[i], [&](const at::Tensor& tensor) {
                    if (tensor.dim()) signature.push_back(tensor.size(0) == n);
                });
        std::shared_ptr<plan::Plan> plan = find(signature, n, arguments);
        for (size_t i = 0; i < count; ++i) {
            if (!roles_[i].mutated) continue;
            TORCH_CHECK(!arguments[i].toTensor().is_inference() || c10::InferenceMode::is_enabled(), declared_.op,
                        ": an inference tensor is written to outside of torch.inference_mode()");
            if (may_be_written(arguments, i)) continue;
            ask_python(arguments);  // which raises, and says why
            TORCH_CHECK(false, declared_.op, ": what is written overlaps what else is written");
        }
        c10::OptionalDeviceGuard guard;
        if (device.is_cuda() && c10::impl::VirtualGuardImpl(device.type()).getDevice() != device) guard.reset_device(device);

        c10::SmallVector<at::Tensor, 12> made;  // contiguous copies, outputs, workspaces: never more than reserved
        made.reserve(count + listed + plan->outputs.size() + plan->workspaces.size());
        Slots slots;
        size_t slot_of_mutated = 0;
        c10::SmallVector<std::pair<const at::Tensor*, const at::Tensor*>, 2> copied_back;
        auto take = [&](size_t i, const at::Tensor& tensor, bool strided) {  // the tensor, or a copy of it
            bool apart = roles_[i].mutated || !is_written_where_it_lies(arguments, tensor);
            if (!tensor.defined() || (apart && (strided || tensor.is_contiguous()))) return slots.push_back(&tensor);
            made.push_back(tensor.is_contiguous() ? tensor.clone() : tensor.contiguous());
            slots.push_back(&made.back());
        };
        for (size_t i = 0; i < count; ++i) {
            if (roles_[i].list)
                for_each_tensor(arguments[i], [&](const at::Tensor& tensor) { take(i, tensor, roles_[i].ragged); });
            if (!roles_[i].tensor) continue;
            if (roles_[i].mutated) slot_of_mutated = slots.size();
            const at::Tensor& tensor = arguments[i].isTensor() ? arguments[i].toTensor() : none();
            take(i, tensor, false);
            if (!roles_[i].mutated) continue;
            if (slots.back() != &tensor) copied_back.emplace_back(&tensor, slots.back());
            if (!tensor.is_inference()) torch::autograd::impl::bump_version(tensor);
        }
        size_t first_output = made.size();
        for (const plan::Allocation& output : plan->outputs) made.push_back(plan->allocate(output, n, device));
        for (size_t i = 0; i < plan->outputs.size(); ++i)
            slots.push_back(wanted(arguments, i) ? &made[first_output + i] : &none());
        if (form_ == Form::in_place) slots.push_back(slots[slot_of_mutated]);
        if (declared_.reports && form_ != Form::backward) slots.push_back(&report_of(device));

        if (entry_.run)
            call(*plan, arguments, slots, device);
        else
            launch(*plan, n, slots, made, device);

        for (auto [target, source] : copied_back) target->copy_(*source);
        torch::jit::drop(*stack, count);
        at::Tensor* next = made.data() + first_output;
        for (int64_t group : plan->groups) {
            if (group < 0) {
                stack->emplace_back(std::move(*next++));
                continue;
            }
            c10::List<at::Tensor> list;
            list.reserve(size_t(group));
            for (int64_t i = 0; i < group; ++i) list.push_back(std::move(*next++));
            stack->emplace_back(std::move(list));
        }
    }

   private:
    struct Role {
        bool tensor, list, scalar, ragged, mutated;
    };
    using Slots = c10::SmallVector<const at::Tensor*, 16>;  // the tensor arguments, outputs, the report, workspaces

    static const at::Tensor& none() {
        static const at::Tensor tensor;
        return tensor;
    }

    // N: the length of the first ragged tensor that is in no list, or of a number that stands for one; else that of the
    // first list whose tensors are all of one length; else -1 (plan.py decides alike).
    int64_t length_of(c10::ArrayRef<c10::IValue> arguments) const {
        int64_t of_a_list = -1;
        for (size_t i = 0; i < roles_.size(); ++i) {
            if (!roles_[i].ragged) continue;
            if (arguments[i].isInt()) return arguments[i].toInt();
            if (arguments[i].isTensor() && arguments[i].toTensor().dim() == 1) return arguments[i].toTensor().size(0);
            if (roles_[i].list && of_a_list < 0) of_a_list = plan::common_length(arguments[i].toListRef());
        }
        return of_a_list;
    }

    // The backward writes only the gradients that its last argument asks for.
    bool wanted(c10::ArrayRef<c10::IValue> arguments, size_t output) const {
        return form_ != Form::backward || arguments.back().toListRef()[output].toBool();
    }

    struct Extent {  // in bytes: from the first to behind the last element
        const char *begin, *end;
        bool overlaps(const Extent& other) const { return begin < other.end && other.begin < end; }
    };
    static Extent extent(const at::Tensor& tensor) {
        if (!tensor.defined() || tensor.numel() == 0) return {nullptr, nullptr};
        int64_t last = 0;
        for (int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
        auto begin = static_cast<const char*>(tensor.const_data_ptr());
        return {begin, begin + (last + 1) * int64_t(tensor.itemsize())};
    }

    // False for what a kernel would corrupt: several elements at one address, or memory that is written to twice. Tensors
    // that are not contiguous are copied before anything is written, so only contiguous ones can be in the way.
    bool may_be_written(c10::ArrayRef<c10::IValue> arguments, size_t position) const {
        const at::Tensor& tensor = arguments[position].toTensor();
        if (tensor.numel() == 0) return true;
        for (int64_t d = 0; d < tensor.dim(); ++d)
            if (tensor.stride(d) == 0 && tensor.size(d) > 1) return false;
        if (!tensor.is_contiguous()) return true;
        for (size_t i = 0; i < position; ++i) {
            if (!roles_[i].mutated) continue;
            const at::Tensor& other = arguments[i].toTensor();
            if (other.is_contiguous() && extent(other).overlaps(extent(tensor))) return false;
        }
        return true;
    }

    // Whether a tensor that is read must be copied first (signature.py, as_before).
    bool is_written_where_it_lies(c10::ArrayRef<c10::IValue> arguments, const at::Tensor& tensor) const {
        for (int64_t position : written_) {
            const at::Tensor& written = arguments[size_t(position)].toTensor();
            if (!written.is_contiguous() || !extent(written).overlaps(extent(tensor))) continue;
            bool itself = tensor.is_contiguous() && tensor.numel() == written.numel() &&
                          tensor.const_data_ptr() == written.const_data_ptr();
            if (!(itself && declared_.elementwise)) return true;
        }
        return false;
    }

    std::shared_ptr<plan::Plan> find(const plan::Signature& signature, int64_t n,
                                     c10::ArrayRef<c10::IValue> arguments) {
        {
            std::shared_lock lock(mutex_);
            auto [plan, end] = plans_.equal_range(signature);
            for (; plan != end; ++plan)
                if (plan->second->holds_for(n)) return plan->second;
        }
        ask_python(arguments);
        std::shared_ptr<plan::Plan> made = std::move(plan::returned_by_python);
        TORCH_CHECK(made, declared_.op, ": Python made no plan");
        std::unique_lock lock(mutex_);
        if (plans_.size() >= most_plans) plans_.clear();
        plans_.emplace(signature, made);
        return made;
    }

    void ask_python(c10::ArrayRef<c10::IValue> arguments) const {
        torch::jit::Stack copy(arguments.begin(), arguments.end());
        planner_.callBoxed(&copy);
    }

    // Through cuda.cu.
    void call(const plan::Plan& plan, c10::ArrayRef<c10::IValue> arguments, const Slots& slots, at::Device device) const {
        c10::SmallVector<fused::Argument, 12> given(arguments.size() + slots.size());
        size_t slot = 0, n = 0;
        c10::SmallVector<std::vector<int64_t>, 2> shapes;
        c10::SmallVector<std::vector<fused::Tensor>, 2> lists;  // a vector that is moved keeps its elements' addresses
        auto take_list = [&](size_t count, bool ragged) {
            std::vector<fused::Tensor>& list = lists.emplace_back();
            for (size_t end = slot + count; slot < end; ++slot) {
                list.push_back(view(*slots[slot]));
                if (ragged) list.back().stride = slots[slot]->stride(0);
            }
            given[n].tensors = {list.data(), int64_t(count)};
        };
        for (size_t i = 0; i < arguments.size() - (form_ == Form::backward); ++i, ++n) {
            const c10::IValue& value = arguments[i];
            if (roles_[i].tensor) {
                const at::Tensor& tensor = *slots[slot++];
                given[n].tensor = view(tensor);
                if (roles_[i].scalar) given[n].number = number(tensor);
            } else if (roles_[i].list) {
                take_list(value.toListRef().size(), roles_[i].ragged);
            } else if (value.isString()) {
                given[n].string = {value.toStringRef().c_str()};
            } else if (value.isDouble()) {
                given[n].real = value.toDouble();
            } else if (value.isList()) {
                const auto& sizes = shapes.emplace_back(value.toIntVector());
                given[n].tensor = {nullptr, sizes.data(), c10::multiply_integers(sizes), int32_t(sizes.size()), {}};
            } else {
                given[n].integer = value.isBool() ? value.toBool() : value.toInt();
            }
        }
        for (int64_t group : plan.groups) {
            if (group < 0)
                given[n].tensor = view(*slots[slot++]);
            else
                take_list(size_t(group), false);
            ++n;
        }
        for (; slot < slots.size(); ++slot, ++n) given[n].tensor = view(*slots[slot]);  // what is written, the report
        TORCH_CHECK(int64_t(n) == entry_.arguments, declared_.op, ": the function in cuda.cu takes ", entry_.arguments,
                    " arguments, the declaration gives it ", n);
        struct Owner {
            std::vector<at::Tensor> made;
            at::Device device;
        } owner{{}, device};
        driver::ensure_context(device);
        fused::Context context{driver::current_stream(device), &owner, [](void* given, uint64_t bytes) {
                                   auto& owner = *static_cast<Owner*>(given);
                                   owner.made.push_back(plan::allocate({int64_t(bytes)}, at::kByte, owner.device));
                                   return owner.made.back().data_ptr();
                               }};
        const char* error = entry_.run(given.data(), &context);
        TORCH_CHECK(!error, declared_.op, ": the launch failed: ", error);
    }

    static fused::Tensor view(const at::Tensor& tensor) {
        if (!tensor.defined()) return {};
        return {tensor.numel() ? tensor.data_ptr() : nullptr, tensor.sizes().data(), tensor.numel(),
                int32_t(tensor.dim()), fused::Dtype(int32_t(tensor.scalar_type()))};
    }
    static double value_of(const at::Tensor& scalar) {
        return scalar.scalar_type() == at::kDouble ? *scalar.const_data_ptr<double>() : *scalar.const_data_ptr<float>();
    }
    static fused::Number number(const at::Tensor& scalar) {
        auto dtype = fused::Dtype(int32_t(scalar.scalar_type()));
        if (scalar.is_cpu()) return {value_of(scalar), nullptr, dtype};
        return {0, scalar.const_data_ptr(), dtype};
    }

    // Kernels whose launches Python has planned.
    void launch(const plan::Plan& plan, int64_t n, Slots& slots, c10::SmallVectorImpl<at::Tensor>& made,
                at::Device device) const {
        for (const plan::Allocation& workspace : plan.workspaces) {
            made.push_back(plan.allocate(workspace, n, device));
            slots.push_back(&made.back());
        }
        if (!plan.launches.empty()) driver::ensure_context(device);
        void* stream = driver::current_stream(device);
        for (const plan::Launch& kernel : plan.launches) {
            c10::SmallVector<int64_t, 16> values(kernel.arguments.size());
            c10::SmallVector<void*, 16> pointers(kernel.arguments.size());
            for (size_t i = 0; i < values.size(); ++i) {
                const plan::Argument& argument = kernel.arguments[i];
                pointers[i] = &values[i];
                if (argument.kind == plan::Argument::literal) {
                    values[i] = argument.value;
                } else if (argument.kind == plan::Argument::computed) {
                    values[i] = plan::run(plan.programs[size_t(argument.value)], n);
                } else if (argument.kind == plan::Argument::tensor) {
                    values[i] = reinterpret_cast<int64_t>(slots[argument.value]->data_ptr());
                } else if (argument.kind == plan::Argument::elements) {
                    values[i] = slots[argument.value]->numel();
                } else if (argument.kind == plan::Argument::stride) {
                    values[i] = slots[argument.value]->stride(0);
                } else if (argument.kind == plan::Argument::scalar_double) {
                    double value = value_of(*slots[argument.value]);
                    std::memcpy(&values[i], &value, sizeof value);
                } else {
                    float value = float(value_of(*slots[argument.value]));
                    std::memcpy(&values[i], &value, sizeof value);
                }
            }
            unsigned grid[3];
            for (int axis = 0; axis < 3; ++axis) {
                int64_t blocks = plan.size(kernel.grid[axis], n);
                TORCH_CHECK(blocks < int64_t(1) << (axis ? 16 : 31), declared_.op, ": a grid of ", blocks,
                            " blocks along axis ", axis, " is beyond CUDA's limits");
                grid[axis] = unsigned(blocks);
            }
            driver::launch(kernel.function, grid, kernel.threads, kernel.shared, kernel.kind, stream, pointers.data());
        }
    }

    static constexpr size_t most_plans = 8192;
    const Declared& declared_;
    Form form_;
    c10::OperatorHandle planner_;
    fused::Entry entry_{};
    std::vector<Role> roles_;
    Positions written_;
    std::shared_mutex mutex_;
    // One signature has several plans where their conditions on N differ.
    std::unordered_multimap<plan::Signature, std::shared_ptr<plan::Plan>, plan::SignatureHash> plans_;
};
