// Launches kernels that were compiled before: from bytes in the program or from files, without torch, Triton, CUDA's
// headers or its runtime. C++17; link with -ldl where the C library needs it.
//
//     #include "act_images.h"                                  // from python -m kernels.cubin embed
//     static cubin::Program program(act_images::images);       // or cubin::Program::from_files({"act.cubin"})
//     cubin::use_device(0);                                    // unless CUDA's runtime did so on this thread
//     program["act"](cubin::Launch({blocks}, stream), x, bias, y, out, 0.5f, elements);
//
// A Program has images for several architectures. A kernel's first launch in a thread's context loads its image that
// suits the device there. Any thread may launch. Whatever is wrong is a cubin::Error that names it.
//
// Each argument has the type that the kernel declares: a pointer, or a number of that size. A kernel of Triton's may have
// been compiled for pointers and integers that 16 divides; its description says so, and others are refused. One that was
// compiled for an integer of 1 has no such parameter: it is a constant.
#pragma once

#include <algorithm>
#include <fstream>
#include <iterator>
#include <mutex>

#include "libcuda.h"

namespace cubin {

// A parameter as the compiler was told of it. type: p, a pointer; i, a signed integer; u, an unsigned one; f, a
// floating-point number. multiple: of what its values must be one.
struct Parameter {
    const char* name;
    char type;
    unsigned bytes, multiple;
};

// What an image does not say of a kernel. threads: a block; shared: bytes of dynamic shared memory a block; hidden:
// parameters that Triton adds behind one's own, pointers to scratch memory, which are null where a kernel needs none.
struct Description {
    const char *name, *entry;  // by which it is asked for, and the image's
    unsigned threads, shared;
    Kind kind;
    const Parameter* parameters;
    unsigned count, hidden;
};

// Only the kernel described can be launched from an image with a description.
struct Image {
    const void* bytes;
    size_t size;
    const Description* description = nullptr;
};

struct Size {
    int64_t x = 1, y = 1, z = 1;
};

// How to launch. What is left at 0 or -1 is taken from the kernel's description.
struct Launch {
    Size grid;
    void* stream = nullptr;
    Size block{0};
    int64_t shared = -1;
    int kind = -1;
    Size cluster{0};

    explicit Launch(Size grid, void* stream = nullptr) : grid(grid), stream(stream) {}
    Launch(Size grid, Size block, void* stream = nullptr) : grid(grid), stream(stream), block(block) {}
};

struct Argument {
    const void* value;
    size_t bytes;
    char type;  // a Parameter's; an unsigned integer may be a CUdeviceptr; s: a struct

    template <class T>
    static Argument of(const T& value) {
        static_assert(std::is_trivially_copyable_v<T>, "an argument is a pointer, a number, or a struct of such");
        char type = 's';
        if (std::is_pointer_v<T> || std::is_null_pointer_v<T>) type = 'p';
        if (std::is_floating_point_v<T>) type = 'f';
        if (std::is_integral_v<T> || std::is_enum_v<T>) type = std::is_unsigned_v<T> ? 'u' : 'i';
        return {&value, sizeof value, type};
    }
};

namespace launching {

struct Held {  // an image
    Image image;
    Contents contents;
    std::string where;
    bool has(const std::string& name) const {
        if (image.description) return name == image.description->name;
        return contents.format == Format::fatbin || contents.kernels.count(name);
    }
};

struct Module {
    const Held* held;
    Context context;
    void* module;
    const Driver* cuda;
};

struct State {
    std::list<std::string> texts;  // of files, and of PTX, which must end in a null
    std::list<Held> images;
    std::list<Module> modules;
    std::mutex mutex;

    ~State() {
        for (const Module& each : modules) {  // a context that is gone has taken its modules along
            void* address = each.context.address;
            if (!(each.cuda->context_at(address) == each.context) || each.cuda->push_context(address)) continue;
            void* popped;
            each.cuda->unload_module(each.module), each.cuda->pop_context(&popped);
        }
    }

    void add(Image image, std::string where) {
        Contents contents = contents_of(image.bytes, image.size, where);
        if (contents.format == Format::ptx) {
            const char* text = static_cast<const char*>(image.bytes);
            texts.emplace_back(text, strnlen(text, image.size));
            image.bytes = texts.back().c_str();
        }
        const Description* described = image.description;
        if (described && contents.format != Format::fatbin && !contents.kernels.count(described->entry))
            throw Error(where + " has no kernel " + described->entry + listed(contents.kernels));
        images.push_back({image, std::move(contents), std::move(where)});
    }

    static std::string listed(const std::map<std::string, std::vector<size_t>>& kernels) {
        std::string names;
        for (const auto& kernel : kernels) names += (names.empty() ? ": it has " : ", ") + kernel.first;
        return names;
    }
};

}  // namespace launching

class Kernel {
   public:
    template <class... Arguments>
    void operator()(const Launch& how, const Arguments&... arguments) {
        const Argument given[sizeof...(arguments) + 1] = {Argument::of(arguments)...};
        launch(how, given, sizeof...(arguments));
    }

    // The same, for arguments that are known at run time.
    void launch(const Launch& how, const Argument* given, size_t count) {
        Loaded& here = loaded();
        const Description* described = here.held->image.description;
        check(here, given, count);
        const Shape shape = shape_of(how, described, here);
        if (!shape.grid[0] || !shape.grid[1] || !shape.grid[2]) return;
        if (shape.shared > here.granted.load(std::memory_order_acquire)) grant(here, shape.shared);
        constexpr size_t few = 32;
        void* on_stack[few];
        std::vector<void*> more(here.sizes.size() > few ? here.sizes.size() : 0);
        void** pointers = more.empty() ? on_stack : more.data();
        static void* const null = nullptr;
        for (size_t i = 0; i < here.sizes.size(); ++i)
            pointers[i] = const_cast<void*>(i < count ? given[i].value : static_cast<const void*>(&null));
        try {
            cubin::launch(here.function, shape, pointers);
        } catch (const Error& error) {
            throw Error(name_ + ": " + error.what(), error.code);
        }
    }

    // The kernel on the current context's device, for launches by other means; `shared` bytes are allowed.
    Function function(int64_t shared = 0) {
        Loaded& here = loaded();
        if (shared > int64_t(here.granted.load(std::memory_order_acquire))) grant(here, unsigned(shared));
        return here.function;
    }
    // The same, for arguments of these sizes.
    Function function(const size_t* sizes, size_t count) {
        const Loaded& here = loaded();
        if (count != here.sizes.size() || !std::equal(sizes, sizes + count, here.sizes.begin()))
            throw Error(name_ + ": its parameters have other sizes than what it is launched with; does a macro decide what "
                                "a struct holds?");
        return here.function;
    }
    // The bytes of each parameter of that kernel, hidden ones included.
    const std::vector<size_t>& parameter_sizes() { return loaded().sizes; }
    const Description* description() { return loaded().held->image.description; }

   private:
    friend class Program;

    struct Loaded {
        Context context;
        const Driver* cuda;
        Function function;
        const launching::Held* held;
        std::vector<size_t> sizes;
        int arch;
        std::atomic<unsigned> granted{0};  // dynamic shared memory; more has to be asked for
    };

    Kernel(launching::State& state, std::string name) : state_(state), name_(std::move(name)) {}

    Loaded& loaded() {
        const Driver& cuda = driver();
        void* address = nullptr;
        cuda.check(cuda.current_context(&address), name_ + ": cuCtxGetCurrent");
        if (!address) throw Error(name_ + ": this thread has no CUDA context: call cubin::use_device(0)");
        const Context context = cuda.context_at(address);
        Loaded* last = last_.load(std::memory_order_acquire);
        if (last && last->context == context && last->cuda == &cuda) return *last;
        std::lock_guard<std::mutex> lock(state_.mutex);
        for (Loaded& each : everywhere_)
            if (each.context == context && each.cuda == &cuda) return last_ = &each, each;
        load(cuda, context);
        return last_ = &everywhere_.back(), everywhere_.back();
    }

    void load(const Driver& cuda, const Context& context) {
        int device = 0, major = 0, minor = 0;
        constexpr int major_id = 75, minor_id = 76;
        cuda.check(cuda.current_device(&device), name_ + ": cuCtxGetDevice");
        cuda.check(cuda.device_attribute(&major, major_id, device), name_ + ": cuDeviceGetAttribute");
        cuda.check(cuda.device_attribute(&minor, minor_id, device), name_ + ": cuDeviceGetAttribute");
        const int arch = 10 * major + minor;
        // A cubin before a fatbin before PTX, which the driver compiles; of each format the highest architecture.
        std::multimap<std::pair<Format, int>, const launching::Held*> suitable;
        std::string compiled_for, tried;
        for (const launching::Held& held : state_.images) {
            if (!held.has(name_)) continue;
            const Contents& contents = held.contents;
            if (contents.runs_on(arch)) suitable.emplace(std::make_pair(contents.format, -contents.arch), &held);
            compiled_for += (compiled_for.empty() ? "sm_" : ", sm_") + std::to_string(contents.arch) +
                            (contents.only ? "a" : "");
        }
        if (suitable.empty())
            throw Error(name_ + " was compiled for " + compiled_for + "; this GPU is sm_" + std::to_string(arch));
        Result result = 0;
        for (const auto& [rank, held] : suitable) {
            void* module = nullptr;
            Function function = nullptr;
            const std::string entry = held->image.description ? held->image.description->entry : name_;
            result = module_of(cuda, context, *held, module);
            const bool is_loaded = result == 0;
            if (is_loaded) result = cuda.get_function(&function, module, entry.c_str());
            if (result == 0) return take(cuda, context, *held, function, entry, arch);
            constexpr int not_found = 500;
            if (is_loaded && result != not_found) cuda.check(result, "the kernel " + entry + " of " + held->where);
            tried += (tried.empty() ? "" : "; ") + held->where + (is_loaded ? " has no kernel " + entry : "") + ": " +
                     cuda.name_of(result);
        }
        throw Error(name_ + ": no image of it is for this GPU, sm_" + std::to_string(arch) + ": " + tried, result);
    }

    // 0, or what another image may do better: no code for this GPU, or PTX that this driver does not compile.
    Result module_of(const Driver& cuda, const Context& context, const launching::Held& held, void*& module) {
        for (const launching::Module& each : state_.modules)
            if (each.held == &held && each.context == context && each.cuda == &cuda) return module = each.module, 0;
        const Result result = cuda.load_module(&module, held.image.bytes);
        constexpr int no_binary_for_gpu = 209, no_compiler = 221, unsupported_ptx_version = 222, compiling_disabled = 223;
        if (result == no_binary_for_gpu || result == no_compiler || result == unsupported_ptx_version ||
            result == compiling_disabled)
            return result;
        cuda.check(result, "the driver does not load " + held.where + ": it may be damaged");
        state_.modules.push_back({&held, context, module, &cuda});
        return 0;
    }

    void take(const Driver& cuda, const Context& context, const launching::Held& held, Function function,
              const std::string& entry, int arch) {
        const Description* described = held.image.description;
        std::vector<size_t> sizes;
        const auto in_image = held.contents.kernels.find(entry);
        if (cuda.parameter_info) {
            size_t offset, bytes;
            while (cuda.parameter_info(function, sizes.size(), &offset, &bytes) == 0) sizes.push_back(bytes);
        } else if (held.contents.format == Format::cubin && in_image != held.contents.kernels.end()) {
            sizes = in_image->second;
        } else if (!described) {
            throw Error(name_ + ": a driver before CUDA 12.4 does not say which parameters it takes, nor does " +
                        held.where + ", which is no cubin");
        } else {
            for (unsigned i = 0; i < described->count + described->hidden; ++i)
                sizes.push_back(i < described->count ? described->parameters[i].bytes : sizeof(void*));
        }
        if (described) {
            if (sizes.size() != described->count + described->hidden)
                throw Error(name_ + " takes " + std::to_string(sizes.size()) + " parameters, and is described with " +
                            std::to_string(described->count) + " and " + std::to_string(described->hidden) + " hidden ones");
            for (unsigned i = 0; i < described->count; ++i)
                if (const Parameter& one = described->parameters[i]; sizes[i] != one.bytes)
                    throw Error(name_ + ": the parameter " + one.name + " has " + std::to_string(sizes[i]) +
                                " bytes, and is described with " + std::to_string(one.bytes));
        }
        int granted = 0;  // less than 48 KB, where the kernel has static shared memory
        cuda.check(cuda.get_attribute(&granted, max_dynamic_shared_size_bytes, function), name_ + ": cuFuncGetAttribute");
        everywhere_.emplace_back();
        Loaded& made = everywhere_.back();
        made.context = context, made.cuda = &cuda, made.function = function, made.held = &held, made.arch = arch;
        made.sizes = std::move(sizes), made.granted = unsigned(granted);
    }

    void grant(Loaded& here, unsigned shared) {
        std::lock_guard<std::mutex> lock(state_.mutex);
        if (shared <= here.granted) return;
        if (const Result result = here.cuda->set_attribute(here.function, max_dynamic_shared_size_bytes, int(shared)))
            throw Error("the kernel " + name_ + " needs " + std::to_string(shared) +
                            " bytes of shared memory a block, more than this GPU has (" + here.cuda->name_of(result) + ")",
                        result);
        here.granted = shared;
    }

    void check(const Loaded& here, const Argument* given, size_t count) const {
        const Description* described = here.held->image.description;
        const size_t own = here.sizes.size() - (described ? described->hidden : 0);
        if (count != own) {
            std::string names;
            for (unsigned i = 0; described && i < described->count; ++i)
                names += std::string(i ? ", " : " (") + described->parameters[i].name;
            throw Error(name_ + " takes " + std::to_string(own) + " arguments" + names + (names.empty() ? "" : ")") +
                        ", and is given " + std::to_string(count));
        }
        for (size_t i = 0; i < count; ++i) {
            const Parameter* declared = described ? &described->parameters[i] : nullptr;
            const char type = given[i].type;
            const bool is_signed_otherwise = declared && ((type == 'u' && declared->type == 'i') ||
                                                          (type == 'i' && declared->type == 'u'));
            const bool alike = !declared || type == 's' || type == declared->type || is_signed_otherwise ||
                               (type == 'u' && declared->type == 'p');
            if (given[i].bytes != here.sizes[i] || !alike) {
                const std::string is = declared ? kind_of(declared->type) : "";
                throw Error(name_ + ": argument " + std::to_string(i) + of_name(declared) + " is " + is +
                            std::to_string(here.sizes[i]) + " bytes, and is given " + kind_of(type) +
                            std::to_string(given[i].bytes));
            }
            // The highest bit of the last byte: below zero in the one, beyond the largest in the other.
            if (is_signed_otherwise && static_cast<const signed char*>(given[i].value)[given[i].bytes - 1] < 0)
                throw Error(name_ + ": argument " + std::to_string(i) + of_name(declared) + " is " +
                            kind_of(declared->type) + std::to_string(given[i].bytes) + " bytes, which does not hold it");
            if (declared && declared->multiple > 1) check_multiple(i, *declared, given[i]);
        }
    }
    void check_multiple(size_t i, const Parameter& declared, const Argument& given) const {
        int64_t value = 0;  // little-endian, and the sign does not count for a multiple of a power of two
        std::memcpy(&value, given.value, given.bytes < 8 ? given.bytes : 8);
        if (value % int64_t(declared.multiple) == 0) return;
        throw Error(name_ + ": argument " + std::to_string(i) + of_name(&declared) + " is " +
                    (declared.type == 'p' ? "at an address that " : std::to_string(value) + ", which ") +
                    std::to_string(declared.multiple) + " does not divide; the kernel was compiled for multiples of it");
    }
    static std::string of_name(const Parameter* declared) {
        return declared ? std::string(" (") + declared->name + ")" : "";
    }
    static std::string kind_of(char type) {
        return type == 'p' ? "a pointer of " : type == 'f' ? "a floating-point number of "
               : type == 's' ? "a struct of " : type == 'u' ? "an unsigned integer of " : "an integer of ";
    }

    Shape shape_of(const Launch& how, const Description* described, const Loaded& here) const {
        constexpr int64_t most_blocks[3] = {0x7fffffff, 65535, 65535}, most_threads[3] = {1024, 1024, 64};
        const Size block = how.block.x || !described ? how.block : Size{described->threads};
        const int64_t grids[3] = {how.grid.x, how.grid.y, how.grid.z}, blocks[3] = {block.x, block.y, block.z};
        const int64_t clusters[3] = {how.cluster.x, how.cluster.y, how.cluster.z};
        constexpr int64_t most_in_a_cluster = 8;
        Shape shape;
        for (int axis = 0; axis < 3; ++axis) {
            const std::string along = std::string(" along ") + "xyz"[axis];
            if (grids[axis] < 0 || grids[axis] > most_blocks[axis])
                throw Error(name_ + ": a grid of " + std::to_string(grids[axis]) + " blocks" + along +
                            " is beyond CUDA's limits (0 to " + std::to_string(most_blocks[axis]) + ")");
            if (blocks[axis] < 1 || blocks[axis] > most_threads[axis])
                throw Error(name_ + ": a block of " + std::to_string(blocks[axis]) + " threads" + along +
                            " is beyond CUDA's limits (1 to " + std::to_string(most_threads[axis]) + ")");
            if (how.cluster.x && clusters[axis] > most_in_a_cluster) refuse_cluster(clusters[axis], along);
            if (how.cluster.x && (clusters[axis] < 1 || grids[axis] % clusters[axis]))
                throw Error(name_ + ": a grid of " + std::to_string(grids[axis]) + " blocks" + along +
                            " has no whole number of clusters of " + std::to_string(clusters[axis]));
            shape.grid[axis] = unsigned(grids[axis]), shape.block[axis] = unsigned(blocks[axis]);
            shape.cluster[axis] = how.cluster.x ? unsigned(clusters[axis]) : 0;
        }
        const int64_t threads = block.x * block.y * block.z;
        if (described && described->threads && threads != int64_t(described->threads))
            throw Error(name_ + " was compiled for blocks of " + std::to_string(described->threads) +
                        " threads, and is launched with " + std::to_string(threads));
        if (threads > 1024) throw Error(name_ + ": a block of " + std::to_string(threads) + " threads; 1024 is the most");
        if (const int64_t blocks = clusters[0] * clusters[1] * clusters[2]; how.cluster.x && blocks > most_in_a_cluster)
            refuse_cluster(blocks, "");
        if (how.cluster.x && here.arch < 90)
            throw Error(name_ + ": clusters need sm_90 or later; this GPU is sm_" + std::to_string(here.arch));
        const int64_t shared = how.shared >= 0 ? how.shared : described ? described->shared : 0;
        if (described && shared < int64_t(described->shared))
            throw Error(name_ + " was compiled for " + std::to_string(described->shared) +
                        " bytes of shared memory a block, and is launched with " + std::to_string(shared));
        if (shared > 0x7fffffff) throw Error(name_ + ": " + std::to_string(shared) + " bytes of shared memory a block");
        shape.shared = unsigned(shared);
        shape.kind = how.kind >= 0 ? Kind(how.kind) : described ? described->kind : plain;
        // One that may begin before its predecessor has ended may also begin behind it.
        const bool is_late = described && described->kind == early && shape.kind == plain;
        if (described && shape.kind != described->kind && !is_late)
            throw Error(name_ + " was compiled for " + launch_of(described->kind) + ", and this is " + launch_of(shape.kind));
        shape.stream = how.stream;
        return shape;
    }
    static std::string launch_of(Kind kind) {
        return kind == plain ? "a plain launch" : kind == early ? "an early launch" : "a cooperative launch";
    }
    [[noreturn]] void refuse_cluster(int64_t blocks, const std::string& along) const {
        throw Error(name_ + ": a cluster of " + std::to_string(blocks) + " blocks" + along +
                    "; 8 is the most that every GPU takes");
    }

    static constexpr int max_dynamic_shared_size_bytes = 8;  // CU_FUNC_ATTRIBUTE_…
    launching::State& state_;
    const std::string name_;
    std::list<Loaded> everywhere_;  // on each context
    std::atomic<Loaded*> last_{nullptr};
};

// Owns what it loaded: it can be moved and not copied, and its end unloads. Its kernels live as long as it does, and it
// must live as long as a CUDA graph that has captured one.
class Program {
   public:
    Program() = default;
    template <size_t N>
    explicit Program(const Image (&images)[N]) {
        for (size_t i = 0; i < N; ++i) {
            const Description* described = images[i].description;
            add(images[i], "image " + std::to_string(i) + (described ? std::string(" (") + described->name + ")" : ""));
        }
    }
    // A program of cubins, fatbins and PTX.
    static Program from_files(const std::vector<std::string>& paths) {
        Program program;
        for (const std::string& path : paths) program.add_file(path);
        return program;
    }

    // What is added must live as long as the program. where: what errors call it. To be done before the first launch.
    void add(const Image& image, std::string where) { state_->add(image, std::move(where)); }
    void add_file(const std::string& path, const Description* description = nullptr) {
        std::ifstream file(path, std::ios::binary);
        std::string& bytes = state_->texts.emplace_back((std::istreambuf_iterator<char>(file)),
                                                        std::istreambuf_iterator<char>());
        if (bytes.empty()) throw Error(path + " is missing or empty");
        add({bytes.data(), bytes.size(), description}, path);
    }

    Kernel& operator[](const std::string& name) {
        std::lock_guard<std::mutex> lock(state_->mutex);
        const auto known = kernels_.find(name);
        if (known != kernels_.end()) return *known->second;
        std::map<std::string, std::vector<size_t>> others;
        for (const launching::Held& held : state_->images) {
            if (held.has(name)) return *kernels_.emplace(name, new Kernel(*state_, name)).first->second;
            if (held.image.description) others[held.image.description->name];
            else others.insert(held.contents.kernels.begin(), held.contents.kernels.end());
        }
        throw Error("the program has no kernel " + name + launching::State::listed(others));
    }

   private:
    std::unique_ptr<launching::State> state_ = std::make_unique<launching::State>();
    std::map<std::string, std::unique_ptr<Kernel>> kernels_;
};

}  // namespace cubin
