// What the launcher does and refuses, over the driver of tests/fake_libcuda.c: a line a case, with the error or what the
// driver was given. tests/test_cubin_launcher.py has what each must say.
//
//     cases DRIVER OLD_DRIVER FOLDER       drivers with and without cuFuncGetParamInfo; FOLDER: images, right and damaged
#include <cstdio>
#include <functional>
#include <thread>

#include "act_images.h"

struct Launched {  // fake_libcuda.c's struct launch
    void* function;
    unsigned grid[3], block[3], shared, kind;
    void* stream;
    int64_t parameters[32];
    unsigned cluster[3];
};

static void* library;
template <class T = int>
static T& fake(const char* name) {
    return *static_cast<T*>(dlsym(library, (std::string("fake_") + name).c_str()));
}
static void use(const char* driver) {
    library = dlopen(driver, RTLD_NOW);
    cubin::use_driver(driver);
    // of act, for the record of an old driver, too: pointers, the multiplier, the elements, Triton's two
    fake("parameters") = 8;
    fake<int[32]>("parameter_bytes")[4] = fake<int[32]>("parameter_bytes")[5] = 4;
}
static void show() {
    const int count = fake("launch_count");
    if (!count) return void(std::printf("nothing launched"));
    const Launched& last = fake<Launched[64]>("launches")[(count - 1) % 64];
    std::printf("%d launched, %ux%ux%u blocks of %u, shared %u, kind %u, cluster %u, parameters", count, last.grid[0],
                last.grid[1], last.grid[2], last.block[0], last.shared, last.kind, last.cluster[0]);
    for (int i = 0; i < fake("parameters"); ++i) std::printf(" %lld", static_cast<long long>(last.parameters[i]));
}
static void run(const char* name, const std::function<void()>& body) {
    fake("launch_count") = fake("load_count") = fake("unload_count") = 0;
    std::printf("%s: ", name);
    try {
        body();
        show();
        std::printf(", %d loaded, %d unloaded\n", fake("load_count"), fake("unload_count"));
    } catch (const cubin::Error& error) {
        std::printf("error %d: %s\n", error.code, error.what());
    }
    fake("context") = 1, fake("capability") = 90, fake("load_result") = fake("launch_result") = 0;
    fake("function_result") = fake("attribute_result") = 0, fake("result_count") = -1, fake("granted") = 48 * 1024;
}

int main(int, char** words) {
    const std::string folder = std::string(words[3]) + "/";
    void *x = reinterpret_cast<void*>(0x1000), *odd = reinterpret_cast<void*>(0x1004);
    const cubin::Launch one({1});
    auto act = [&](int64_t elements) {
        cubin::Program program(act_images::images);
        program["act"](cubin::Launch({(elements + 1023) / 1024}), x, x, x, x, 0.0f, int(elements));
    };
    auto with = [&](const cubin::Launch& how) {
        cubin::Program program(act_images::images);
        program["act"](how, x, x, x, x, 0.0f, 16);
    };
    auto file = [&](const std::string& name, const char* kernel = "general") {
        cubin::Program program = cubin::Program::from_files({folder + name});
        program[kernel](cubin::Launch({1}, {128}), x, x, x, x, 0.0f, 16, nullptr, nullptr);
    };
    auto bare = [&](auto change) {  // a kernel without a description
        return [&, change] {
            cubin::Launch how({6}, {128});
            change(how);
            cubin::Program program = cubin::Program::from_files({folder + "act.sm_90.cubin"});
            program["general"](how, x, x, x, x, 0.0f, 16, nullptr, nullptr);
        };
    };
    auto described = [&](cubin::Kind kind, auto change) {  // as one that was compiled for this
        return [&, kind, change] {
            cubin::Description description = *act_images::images[1].description;
            description.kind = kind, description.shared = 1000;
            cubin::Program program;
            program.add({act_images::images[1].bytes, act_images::images[1].size, &description}, "the image");
            cubin::Launch how({6});
            change(how);
            program["act"](how, x, x, x, x, 0.0f, 16);
        };
    };
    auto two = [&](const char* first, const char* second) {
        return [&, first, second] {
            cubin::Program program = cubin::Program::from_files({folder + first, folder + second});
            program["general"](cubin::Launch({1}, {128}), x, x, x, x, 0.0f, 16, nullptr, nullptr);
        };
    };
    for (int old = 0; old < 2; ++old) {
        use(words[1 + old]);
        std::printf("== %s\n", old ? "old" : "new");
        for (int64_t n : {0, 1, 16, 17}) run(("act of " + std::to_string(n)).c_str(), [&] { act(n); });
        run("fewer arguments", [&] { cubin::Program(act_images::images)["act"](one, x, x, x, x, 0.0f); });
        run("more arguments", [&] { cubin::Program(act_images::images)["act"](one, x, x, x, x, 0.0f, 16, x); });
        run("hidden ones given", [&] { cubin::Program(act_images::images)["act"](one, x, x, x, x, 0.0f, 16, x, x); });
        run("a double", [&] { cubin::Program(act_images::images)["act"](one, x, x, x, x, 0.0, 16); });
        run("an int for a float", [&] { cubin::Program(act_images::images)["act"](one, x, x, x, x, 1, 16); });
        run("64 bits for 32", [&] { cubin::Program(act_images::images)["act"](one, x, x, x, x, 0.0f, int64_t(16)); });
        run("an unsigned", [&] { cubin::Program(act_images::images)["act"](one, x, x, x, x, 0.0f, 16u); });
        run("an unsigned that is too large", [&] { cubin::Program(act_images::images)["act"](one, x, x, x, x, 0.0f, 1u << 31); });
        run("a number for a pointer", [&] { cubin::Program(act_images::images)["act"](one, x, x, x, int64_t(64), 0.0f, 16); });
        run("a device pointer", [&] {
            unsigned long long address = 0x1000;
            cubin::Program(act_images::images)["act"](one, address, x, x, x, 0.0f, 16);
        });
        run("misaligned", [&] { cubin::Program(act_images::images)["act"](one, x, x, odd, x, 0.0f, 16); });
    }
    run("wide", [&] {
        const int64_t elements = (int64_t(1) << 31) + 17;
        fake<int[32]>("parameter_bytes")[5] = 8;
        cubin::Program(act_images::images)["act_wide"](cubin::Launch({(elements + 1023) / 1024}), x, x, x, x, 0.0f, elements);
        show(), std::printf("; ");
        fake<int[32]>("parameter_bytes")[5] = 4;
    });
    run("32 bits for 64", [&] { cubin::Program(act_images::images)["act_wide"](one, x, x, x, x, 0.0f, 16); });
    run("a multiple of 16", [&] { cubin::Program(act_images::images)["act_by_16"](one, x, x, x, x, 0.0f, -32); });
    run("no multiple of 16", [&] { cubin::Program(act_images::images)["act_by_16"](one, x, x, x, x, 0.0f, 17); });
    fake("parameters") = 7;
    run("one as a constant", [&] { cubin::Program(act_images::images)["act_of_1"](one, x, x, x, x, 0.0f); });
    run("one as a constant and given", [&] { cubin::Program(act_images::images)["act_of_1"](one, x, x, x, x, 0.0f, 1); });
    run("PTX and an old driver", [&] { file("act.ptx"); });
    use(words[1]);
    run("a grid too large", [&] { with(cubin::Launch({int64_t(1) << 31})); });
    run("a grid too high", [&] { with(cubin::Launch({1, 65536})); });
    run("a negative grid", [&] { with(cubin::Launch({-1})); });
    run("another block", [&] { with(cubin::Launch({1}, {256})); });
    run("a block too large", [&] {
        cubin::Program program = cubin::Program::from_files({folder + "act.sm_90.cubin"});
        program["general"](cubin::Launch({1}, {64, 32}), x, x, x, x, 0.0f, 16, nullptr, nullptr);
    });
    run("no block", [&] {
        cubin::Program program = cubin::Program::from_files({folder + "act.sm_90.cubin"});
        program["general"](cubin::Launch({1}), x, x, x, x, 0.0f, 16, nullptr, nullptr);
    });
    auto changed = [&](auto change) {
        return [&, change] {
            cubin::Launch how({6});
            change(how);
            with(how);
        };
    };
    run("a cluster", changed([](auto& how) { how.cluster = {2}; }));
    run("half a cluster", changed([](auto& how) { how.cluster = {4}; }));
    run("a cluster too large", changed([](auto& how) { how.grid = {16}, how.cluster = {16}; }));
    run("a cluster too large in all", changed([](auto& how) { how.grid = {4, 4}, how.cluster = {4, 4}; }));
    run("a cluster beyond numbers", changed([](auto& how) {
            how.grid = {0, 0}, how.cluster = {int64_t(1) << 40, int64_t(1) << 40};
        }));
    run("a block beyond numbers", changed([](auto& how) { how.block = {int64_t(1) << 40, int64_t(1) << 40}; }));
    run("a cluster on sm_80", changed([](auto& how) { fake("capability") = 80, how.cluster = {2}; }));
    run("cooperative", bare([](auto& how) { how.kind = cubin::cooperative; }));
    run("a cooperative cluster", bare([](auto& how) { how.kind = cubin::cooperative, how.cluster = {2}; }));
    run("early", bare([](auto& how) { how.kind = cubin::early; }));
    run("cooperative, of a plain one", changed([](auto& how) { how.kind = cubin::cooperative; }));
    run("early, of a plain one", changed([](auto& how) { how.kind = cubin::early; }));
    run("plain, of a cooperative one", described(cubin::cooperative, [](auto& how) { how.kind = cubin::plain; }));
    run("as described", described(cubin::early, [](auto&) {}));
    run("plain, of an early one", described(cubin::early, [](auto& how) { how.kind = cubin::plain; }));
    run("less shared memory", described(cubin::plain, [](auto& how) { how.shared = 999; }));
    run("shared memory beside static", changed([](auto& how) { fake("granted") = 1000, how.shared = 1001; }));
    std::printf("its attribute: %d %d\n", fake("attribute"), fake("attribute_value"));
    run("shared memory that fits", changed([](auto& how) { fake("attribute_value") = 0, how.shared = 48 * 1024; }));
    std::printf("no attribute: %d\n", fake("attribute_value"));
    run("more shared memory", changed([](auto& how) { fake("attribute") = 0, how.shared = 100'000; }));
    std::printf("attribute: %d %d\n", fake("attribute"), fake("attribute_value"));
    run("too much shared memory", changed([](auto& how) { fake("attribute_result") = 1, how.shared = 300'000; }));
    run("a launch that fails", changed([](auto&) { fake("launch_result") = 719; }));
    run("no context", changed([](auto&) { fake("context") = 0; }));
    run("another architecture", changed([](auto&) { fake("capability") = 75; }));
    run("a later minor version", changed([](auto&) { fake("capability") = 86; }));
    run("the driver's refusal", changed([](auto&) { fake("load_result") = 209; }));
    run("damaged for the driver", changed([](auto&) { fake("load_result") = 200; }));
    run("not in the image", changed([](auto&) { fake("function_result") = 500; }));
    run("the driver's error", changed([](auto&) { fake("function_result") = 999; }));
    run("in the second fatbin", [&] { fake("function_result") = 500, fake("result_count") = 1, two("one.fatbin", "two.fatbin")(); });
    run("in no fatbin", [&] { fake("function_result") = 500, two("one.fatbin", "two.fatbin")(); });
    for (int result : {209, 221, 222, 223})
        run(("by the next image " + std::to_string(result)).c_str(), [&] { fake("load_result") = result, fake("result_count") = 1, two("act.sm_90.cubin", "act.ptx")(); });
    run("by no image", [&] { fake("load_result") = 222, two("act.sm_90.cubin", "act.ptx")(); });
    run("another number of parameters", changed([](auto&) { fake("parameters") = 9; }));
    fake("parameters") = 8;
    run("no such kernel", [&] { cubin::Program(act_images::images)["nothing"]; });
    run("no driver", [&] { cubin::use_driver("/nowhere/libcuda.so.1"); });
    for (const char* name : {"act.sm_90.cubin", "missing", "empty", "few", "text", "elf", "truncated", "half"})
        run(name, [&] { file(name); });
    run("another name", [&] { file("act.sm_90.cubin", "act"); });
    run("act.ptx", [&] { file("act.ptx"); });
    run("half.ptx", [&] { file("half.ptx"); });
    run("target.ptx", [&] { file("target.ptx"); });
    run("PTX for a later GPU", [&] { fake("capability") = 80, file("act.ptx"); });
    run("several devices", [&] {
        cubin::Program program(act_images::images);
        cubin::Kernel& kernel = program["act"];
        for (int device : {0, 1, 0, 1, 1}) {
            cubin::use_device(device);
            kernel(one, x, x, x, x, 0.0f, 16);
        }
        cubin::Program moved = std::move(program);
        kernel(one, x, x, x, x, 0.0f, 16);
        std::printf("%d unloaded before the end; ", fake("unload_count"));
    });
    run("a context made anew", [&] {
        cubin::Program program(act_images::images);
        for (int generation : {1, 1, 2, 2}) {
            fake("generation") = generation;
            program["act"](one, x, x, x, x, 0.0f, 16);
        }
    });
    run("threads", [&] {
        cubin::Program program(act_images::images);
        std::vector<std::thread> threads;
        // The recording driver is for one thread: so no grid has a block.
        for (int i = 0; i < 8; ++i)
            threads.emplace_back([&] { for (int n = 0; n < 100; ++n) program["act"](cubin::Launch({0}), x, x, x, x, 0.0f, 16); });
        for (std::thread& each : threads) each.join();
    });
    static_assert(!std::is_copy_constructible_v<cubin::Program> && std::is_move_constructible_v<cubin::Program>);
}
