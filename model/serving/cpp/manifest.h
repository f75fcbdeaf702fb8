// What model/serving/manifest.py writes, read, verified and mapped; and whether inputs are what it says.
#pragma once

#include <ATen/ATen.h>
#include <openssl/evp.h>
#include <torch/version.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

namespace serving {

constexpr const char *format = "2", *format_before = "1";  // read too: it says nothing of the precision

struct ExportError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

template <class... Parts>
[[noreturn]] inline void fail(const Parts&... parts) {
    std::ostringstream text;
    (text << ... << parts);
    throw ExportError(text.str());
}

inline const std::map<std::string, at::ScalarType>& dtypes() {
    static const std::map<std::string, at::ScalarType> known = {
        {"float32", at::kFloat}, {"float64", at::kDouble}, {"int32", at::kInt}, {"int64", at::kLong},
        {"uint8", at::kByte},    {"bool", at::kBool},     {"bfloat16", at::kBFloat16},
    };
    return known;
}

// A size is a number, or B or N, any number, which is the same wherever it stands, or 26*B+1: factor · letter + more.
struct Size {
    std::string text;
    int64_t factor = 1, more = 0;
    char letter = 0;

    explicit Size(const std::string& text) : text(text) {
        std::istringstream in(text);
        if (in.peek() >= '0' && in.peek() <= '9') {
            in >> factor;
            if (in.peek() != '*') {  // a number
                more = factor, factor = 0;
                return;
            }
            in.get();
        }
        letter = char(in.get());
        if (in.peek() == '+') in.get(), in >> more;
    }

    bool is_letter() const { return text.size() == 1 && letter; }

    // The number, where letters stand for these.
    int64_t number(const std::map<char, int64_t>& known) const {
        return (letter ? factor * known.at(letter) : 0) + more;
    }
};

using Constants = std::map<std::string, at::Tensor>;

struct Tensors {
    std::string name;
    at::ScalarType dtype;
    std::vector<Size> shape;

    std::string sizes() const {
        std::string text;
        for (const Size& size : shape) text += (text.empty() ? "" : ", ") + size.text;
        return "[" + text + "]";
    }

    std::vector<int64_t> numbers(const std::map<char, int64_t>& known = {}) const {
        std::vector<int64_t> found;
        for (const Size& size : shape) found.push_back(size.number(known));
        return found;
    }
};

struct File {
    std::string path, sha256;
    uintmax_t size;
};

struct Manifest {
    std::string torch, gpu;  // gpu: its architecture, sm_90, say; empty: for the CPU
    std::string precision;   // fp32, tf32 or bf16; empty: of a table of ids
    double most_off = 0;     // a probability from eager's
    std::vector<Tensors> inputs, constants;
    std::vector<File> files;

    static Manifest read(const std::filesystem::path& folder) {
        const std::filesystem::path path = folder / "manifest.tsv";
        std::ifstream file(path);
        if (!file) fail(path, ": cannot be read");
        Manifest manifest;
        std::string line, found = "none";
        auto whole = [&](bool holds) {
            if (!holds) fail(path, ": not whole: ", line);
        };
        while (std::getline(file, line)) {
            std::vector<std::string> words;
            std::istringstream in(line);
            for (std::string word; std::getline(in, word, '\t');) words.push_back(word);
            whole(words.size() >= 2);
            const std::string& kind = words[0];
            if (kind == "format") {
                found = found == "none" ? words[1] : found + ", " + words[1];
            } else if (kind == "torch") {
                manifest.torch = words[1];
            } else if (kind == "gpu") {
                manifest.gpu = words[1];
            } else if (kind == "precision") {
                whole(words.size() == 3 && (words[1] == "fp32" || words[1] == "tf32" || words[1] == "bf16"));
                manifest.precision = words[1];
                const char* end = words[2].data() + words[2].size();  // strtod would go by the process's locale
                const auto [read, error] = std::from_chars(words[2].data(), end, manifest.most_off);
                whole(error == std::errc() && read == end && std::isfinite(manifest.most_off) && manifest.most_off > 0);
            } else if (kind == "input" || kind == "constant") {
                whole(words.size() >= 3 && dtypes().count(words[2]));
                Tensors tensors{words[1], dtypes().at(words[2]), {}};
                for (size_t i = 3; i < words.size(); ++i) tensors.shape.emplace_back(words[i]);
                (kind == "input" ? manifest.inputs : manifest.constants).push_back(tensors);
            } else if (kind == "file") {
                whole(words.size() == 4);
                manifest.files.push_back({words[1], words[3], std::stoull(words[2])});
            }
        }
        if (found != format && found != format_before)
            fail(path, ": format ", found, ", this reads ", format_before, " and ", format);
        if (found == format_before) manifest.precision = "fp32", manifest.most_off = manifest.gpu.empty() ? 1e-6 : 1e-5;
        line = "a line is missing";
        whole(!manifest.torch.empty() && !manifest.constants.empty() && !manifest.files.empty());
        whole(manifest.inputs.empty() || !manifest.precision.empty());
        return manifest;
    }

    // The folder of the code.
    std::string package() const { return gpu.empty() ? "package" : "package_" + gpu; }

    // The compiled code within the model's folder. Torch's package loader finds it too, but before 2.13 in a zip file
    // alone, which it unpacks into a temporary folder.
    std::string code() const {
        std::vector<std::string> found;
        for (const File& file : files)
            if (file.path.rfind(package() + "/", 0) == 0 && std::filesystem::path(file.path).extension() == ".so")
                found.push_back(file.path);
        if (found.empty()) fail("manifest.tsv: not whole: no line of the code in ", package(), "/");
        if (found.size() > 1) fail("manifest.tsv: two files of code: ", found[0], " and ", found[1]);
        return found[0];
    }

    // Made for this torch and this CPU, every file is what it was, and the package has no others.
    void verify(const std::filesystem::path& folder) const {
        const std::string version = TORCH_VERSION;
        if (torch != version.substr(0, version.find('+')))
            fail(folder, ": made by torch ", torch, ", and this is ", version, ": export it anew");
        __builtin_cpu_init();
        for (auto [has, name] : {std::pair{__builtin_cpu_supports("avx2"), "avx2"}, {__builtin_cpu_supports("fma"), "fma"},
                                 {__builtin_cpu_supports("bmi2"), "bmi2"}})
            if (!has) fail(folder, ": made for x86-64-v3, and this CPU lacks ", name);
        std::error_code none_there;  // then the lines of its files say so
        const auto listed = [&](const std::string& path) {
            for (const File& file : files)
                if (file.path == path) return;
            fail(folder / "manifest.tsv", ": not whole: no line of ", path);
        };
        for (const Tensors& constant : constants) listed("constants/" + constant.name);
        if (!inputs.empty()) {
            listed("libops.so"), listed("samples.pt");
            code();
            for (const auto& entry : std::filesystem::recursive_directory_iterator(folder / package(), none_there)) {
                const std::filesystem::path path = entry.path();
                if (!entry.is_directory()) listed(path.lexically_relative(folder));
            }
        }
        for (const File& file : files) {
            const std::filesystem::path path = folder / file.path;
            std::error_code error;
            const uintmax_t size = std::filesystem::file_size(path, error);
            if (error) fail(path, ": cannot be read: ", error.message());
            if (size != file.size) fail(path, ": ", size, " bytes, and the manifest says ", file.size);
            if (sha256(path) != file.sha256) fail(path, ": its bytes are not those that were exported (sha256)");
        }
    }

    // The constants, whose pages all processes that map them share.
    Constants mapped(const std::filesystem::path& folder) const {
        Constants found;
        for (const Tensors& constant : constants) {
            const std::vector<int64_t> shape = constant.numbers();
            const int64_t elements = c10::multiply_integers(shape);
            const std::filesystem::path path = folder / "constants" / constant.name;
            if (elements && uint64_t(elements) * at::elementSize(constant.dtype) != std::filesystem::file_size(path))
                fail(path, ": its size is not that of ", constant.dtype, " ", constant.sizes());
            found[constant.name] = elements ? at::from_file(path.string(), false, elements, constant.dtype).view(shape)
                                            : at::empty(shape, constant.dtype);  // nothing can be mapped
        }
        return found;
    }

    // The inputs of a batch of one row, of zeros; of bags: one id each.
    std::vector<at::Tensor> one_row() const {
        const int64_t bags = inputs.size() == 3 ? inputs[2].shape[0].number({{'B', 1}}) - 1 : 0;
        std::vector<at::Tensor> found;
        for (const Tensors& taken : inputs)
            found.push_back(at::zeros(taken.numbers({{'B', 1}, {'N', bags}}), taken.dtype));
        if (bags) found[2] = at::arange(bags + 1);
        return found;
    }

    void check(const std::vector<at::Tensor>& given) const {
        if (given.size() != inputs.size()) fail("expected ", inputs.size(), " inputs; got ", given.size());
        std::map<char, int64_t> known;
        for (size_t i = 0; i < given.size(); ++i) {
            const Tensors& taken = inputs[i];
            const at::Tensor& tensor = given[i];
            if (!tensor.defined()) fail(taken.name, ": expected a tensor");
            if (tensor.scalar_type() != taken.dtype)
                fail(taken.name, ": expected ", taken.dtype, "; got ", tensor.scalar_type());
            if (!tensor.is_cpu()) fail(taken.name, ": expected a tensor of the CPU; got one of ", tensor.device());
            bool fits = size_t(tensor.dim()) == taken.shape.size();
            for (size_t d = 0; fits && d < taken.shape.size(); ++d) {
                const Size& size = taken.shape[d];
                if (size.is_letter()) known.try_emplace(size.letter, tensor.size(int64_t(d)));
                fits = tensor.size(int64_t(d)) == size.number(known);
            }
            if (!fits) {
                std::ostringstream told;
                for (auto [letter, number] : known) told << ", " << letter << " = " << number;
                fail(taken.name, ": expected ", taken.sizes(), told.str(), "; got ", tensor.sizes());
            }
            if (!tensor.is_contiguous()) fail(taken.name, ": expected a contiguous tensor; got strides ", tensor.strides());
            if (taken.name == "offsets") check_offsets(tensor, known['N']);
        }
    }

private:
    static void check_offsets(const at::Tensor& offsets, int64_t ids) {
        const int64_t* begin = offsets.const_data_ptr<int64_t>();
        const int64_t count = offsets.numel();
        for (int64_t i = 1; i < count; ++i)
            if (begin[i] < begin[i - 1])
                fail("offsets[", i, "] is ", begin[i], ", below ", begin[i - 1], " before it");
        if (begin[0] != 0 || begin[count - 1] != ids)
            fail("offsets: expected 0 first and ", ids, " (the number of ids) last; got ", begin[0], " and ", begin[count - 1]);
    }
    static std::string sha256(const std::filesystem::path& path) {
        std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(), EVP_MD_CTX_free);
        EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr);
        std::ifstream file(path, std::ios::binary);
        std::vector<char> bytes(1 << 20);
        while (file.read(bytes.data(), std::streamsize(bytes.size())), file.gcount())
            EVP_DigestUpdate(context.get(), bytes.data(), size_t(file.gcount()));
        unsigned char digest[EVP_MAX_MD_SIZE];
        unsigned length = 0;
        EVP_DigestFinal_ex(context.get(), digest, &length);
        std::string text;
        for (unsigned i = 0; i < length; ++i) {
            constexpr char digits[] = "0123456789abcdef";
            text += digits[digest[i] >> 4], text += digits[digest[i] & 15];
        }
        return text;
    }
};

}  // namespace serving
