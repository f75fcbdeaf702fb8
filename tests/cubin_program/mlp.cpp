// fused_mlp's kernel, from a second bundle. kernels/ops/fused_mlp/packing.py says how the weights lie in `packed`.
#include <cmath>
#include <cstdio>

#include "memory.h"
#include "mlp_images.h"

static std::vector<float> read(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    if (bytes.empty()) throw cubin::Error(path + " is missing or empty");
    std::vector<float> values(bytes.size() / sizeof(float));
    std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
    return values;
}

int run_mlp(const std::string& folder, bool compares) {
    constexpr int columns = 32, tile = 16, kept = 80;  // WIDTHS' first, ROWS, and the columns of the layers between
    const std::vector<float> x = read(folder + "/x"), packed = read(folder + "/packed"), expected = read(folder + "/out");
    const int rows = int(expected.size()), tiles = (rows + tile - 1) / tile, blocks = tiles < 132 ? tiles : 132;
    std::vector<float> out(expected.size()), hidden(size_t(blocks) * tile * kept);
    OnDevice on_x(x), on_packed(packed), on_hidden(hidden), on_out(out);
    cubin::Program program(mlp_images::images);
    program["mlp"](cubin::Launch({blocks}), on_x.data, on_packed.data, on_hidden.data, on_out.data, rows, columns, tiles);
    on_out.copy_to(out);
    float worst = 0;
    for (int i = 0; i < rows; ++i) worst = std::fmax(worst, std::fabs(out[i] - expected[i]));
    std::printf("mlp: %d rows", rows);
    if (compares) std::printf(", off by %.1e", double(worst));
    std::printf("\n");
    return compares && !(worst < 1e-3f);
}
