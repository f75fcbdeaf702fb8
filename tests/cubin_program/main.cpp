// Launches add_mul_activation's and fused_mlp's Triton kernels, and compares what they give.
//
//     cubin_program                        1, 16, 17 and 1,000,003 elements on GPU 0
//     cubin_program --mlp FOLDER           a batch: x, packed and out in FOLDER are raw float32
//     cubin_program --record DRIVER …      with another library in the driver's place: launches, and compares nothing
#include <cmath>
#include <cstdio>
#include <cstring>

#include "act_images.h"
#include "memory.h"

int run_mlp(const std::string& folder, bool compares);  // mlp.cpp

static int run_act(cubin::Program& program, int elements, bool compares) {
    constexpr int columns = 512, block = 1024;
    std::vector<float> x(elements), y(elements), bias(columns), out(elements);
    for (int i = 0; i < elements; ++i) x[i] = float(i % 13) / 13 - 0.5f, y[i] = float(i % 7) / 7;
    for (int i = 0; i < columns; ++i) bias[i] = float(i % 5) / 5 - 0.3f;
    OnDevice on_x(x), on_y(y), on_bias(bias), on_out(out);
    program["act"](cubin::Launch({(elements + block - 1) / block}), on_x.data, on_bias.data, on_y.data, on_out.data, 0.5f,
                   elements);
    on_out.copy_to(out);
    float worst = 0;
    for (int i = 0; i < elements; ++i)
        worst = std::fmax(worst, std::fabs(out[i] - 1 / (1 + std::exp(-(x[i] + 0.5f * y[i] + bias[i % columns])))));
    std::printf("act: %d elements", elements);
    if (compares) std::printf(", off by %.1e", double(worst));
    std::printf("\n");
    return compares && !(worst < 1e-6f);
}

int main(int count, char** words) try {
    std::string folder, driver;
    for (int i = 1; i + 1 < count; i += 2) (std::strcmp(words[i], "--mlp") == 0 ? folder : driver) = words[i + 1];
    if (!driver.empty()) cubin::use_driver(driver);
    const bool compares = driver.empty();
    cubin::use_device(0);
    int wrong = 0;
    {
        cubin::Program program(act_images::images);
        for (int elements : {1, 16, 17, 1'000'003}) wrong += run_act(program, elements, compares);
    }
    if (!folder.empty()) wrong += run_mlp(folder, compares);
    return wrong != 0;
} catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
}
