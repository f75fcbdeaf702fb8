// The bodies of requests and answers: JSON or binary.
//
//     application/json           {"counts": [[1, null, …], …], "ids": [[5, …], …]}        null: the count is missing
//                                {"counts": …, "ids": [5, …], "offsets": [0, …]}          a model of bags
//                                → {"probabilities": [0.25, …]}                           null: not a number
//     application/octet-stream   int64 B, of bags also int64 N; counts, float32; ids, int64; of bags offsets, int64
//                                → probabilities, float32
//
// Binary numbers are little-endian and in the inputs' order, with nothing between them. Shapes are the manifest's. What a
// request takes in memory hangs on its rows, not on its bytes: two of JSON are a number. So there is a limit of rows, and
// for the ids of bags, as many as that many rows have with four a bag.
#pragma once

#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "manifest.h"

namespace serving {

struct TooManyRows : ExportError {
    using ExportError::ExportError;
};

// The largest B and N of requests of at most so many rows.
inline std::map<char, int64_t> largest(const Manifest& manifest, int64_t rows) {
    constexpr int64_t ids_a_bag = 4;
    const int64_t bags = rows * manifest.inputs.back().shape[0].factor;  // where there are some, offsets are last: F*B+1
    return {{'B', rows}, {'N', ids_a_bag * bags}};
}
[[noreturn]] inline void refuse_rows(const std::string& name, int64_t most) {
    throw TooManyRows(name + ": a request has at most " + std::to_string(most));
}

// Puts the numbers where they belong while the text is read, so that no tree of it is ever in memory.
class JsonInputs : public nlohmann::json_sax<nlohmann::json> {
public:
    JsonInputs(const Manifest& manifest, int64_t most_rows) {
        const std::map<char, int64_t> most = largest(manifest, most_rows);
        for (const Tensors& taken : manifest.inputs) inputs_.push_back(Input{taken, taken.shape[0].number(most), {}, {}});
    }

    // TooManyRows; ExportError: not JSON, or not the inputs.
    static std::vector<at::Tensor> read(const Manifest& manifest, int64_t most_rows, const std::string& body) {
        JsonInputs reader(manifest, most_rows);
        nlohmann::json::sax_parse(body, &reader);
        std::vector<at::Tensor> tensors;
        for (const Input& input : reader.inputs_) {
            if (!input.given) fail(input.taken.name, ": missing");
            std::vector<int64_t> shape{input.rows};
            if (input.rank() == 2) shape.push_back(input.taken.shape[1].more);
            tensors.push_back((input.real() ? at::tensor(input.reals) : at::tensor(input.integers)).view(shape));
        }
        return tensors;
    }

    bool start_object(size_t) override {
        if (object_) fail(where(), ": expected ", wanted(), "; got an object");
        return object_ = true;
    }
    bool key(std::string& name) override {
        std::string names;
        for (Input& each : inputs_) {
            names += (names.empty() ? "" : ", ") + each.taken.name;
            if (each.taken.name == name) input_ = &each;
        }
        if (!input_ || input_->taken.name != name) fail("unknown key ", brief(name), "; expected ", names);
        if (input_->given) fail(name, ": given twice");
        return input_->given = true;
    }
    bool end_object() override { return true; }

    bool start_array(size_t) override {
        if (!input_ || depth_ == input_->rank()) fail(where(), ": expected ", wanted(), "; got an array");
        ++depth_;
        column_ = 0;
        return true;
    }
    bool end_array() override {
        if (depth_ == 2) {
            const int64_t width = input_->taken.shape[1].more;
            --depth_;
            if (column_ != width) fail(where(), ": expected ", width, " numbers; got ", column_);
            count_row();
        } else {
            depth_ = 0;
        }
        return true;
    }

    bool null() override {
        if (!input_ || !input_->real()) return refuse("null");
        return add(std::numeric_limits<double>::quiet_NaN());
    }
    bool boolean(bool value) override { return refuse(value ? "true" : "false"); }
    bool string(std::string& text) override { return refuse("the string \"" + brief(text) + "\""); }
    bool binary(binary_t&) override { return refuse("bytes"); }
    bool number_integer(number_integer_t value) override { return add(value); }
    bool number_unsigned(number_unsigned_t value) override {
        const bool fits = value <= uint64_t(std::numeric_limits<int64_t>::max());
        return fits ? add(int64_t(value)) : number_float(double(value), std::to_string(value));
    }
    bool number_float(double value, const std::string& text) override {
        if (input_ && input_->real()) {
            if (std::abs(value) > std::numeric_limits<float>::max()) fail(where(), ": beyond float32: ", brief(text));
            return add(value);
        }
        if (input_ && text.find_first_not_of("-0123456789") == std::string::npos)
            fail(where(), ": beyond int64: ", brief(text));
        return refuse(brief(text));
    }
    bool parse_error(size_t position, const std::string&, const nlohmann::json::exception& error) override {
        if (dynamic_cast<const nlohmann::json::out_of_range*>(&error))  // a number
            fail(where(), input_ && !input_->real() ? ": beyond int64" : ": beyond float64");
        fail("not JSON, at byte ", position);
    }

private:
    struct Input {
        Tensors taken;
        int64_t most;  // rows
        std::vector<float> reals;
        std::vector<int64_t> integers;
        int64_t rows = 0;
        bool given = false;

        size_t rank() const { return taken.shape.size(); }
        bool real() const { return taken.dtype == at::kFloat; }
    };

    template <class Number>
    bool add(Number value) {
        if (!input_ || depth_ != input_->rank()) return refuse("a number");
        if (depth_ == 2 && column_ == input_->taken.shape[1].more) fail(where(), ": a row has ", column_, " numbers");
        if (input_->real()) input_->reals.push_back(float(value));
        else input_->integers.push_back(int64_t(value));
        if (input_->rank() == 1) count_row();
        ++column_;
        return true;
    }
    void count_row() {
        if (++input_->rows > input_->most) refuse_rows("the length of " + input_->taken.name, input_->most);
    }
    [[noreturn]] bool refuse(const std::string& found) const {
        fail(where(), ": expected ", wanted(), "; got ", found);
    }

    // ids[3][5]: where the next value belongs.
    std::string where() const {
        if (!input_) return "the body";
        std::string text = input_->taken.name;
        if (depth_ > 0) text += "[" + std::to_string(input_->rows) + "]";
        if (depth_ > 1) text += "[" + std::to_string(column_) + "]";
        return text;
    }
    std::string wanted() const {
        if (!input_) return "an object";
        if (depth_ < input_->rank()) return "an array";
        return input_->real() ? "a number or null" : "an integer";
    }
    static std::string brief(const std::string& text) { return text.size() > 40 ? text.substr(0, 40) + "…" : text; }

    std::vector<Input> inputs_;
    Input* input_ = nullptr;  // the one of the last key
    size_t depth_ = 0;        // of arrays
    int64_t column_ = 0;
    bool object_ = false;
};

// TooManyRows; ExportError: another number of bytes than the sizes ask for.
inline std::vector<at::Tensor> binary_inputs(const Manifest& manifest, int64_t most_rows, const std::string& body) {
    size_t read = 0;
    const std::map<char, int64_t> most = largest(manifest, most_rows);
    std::map<char, int64_t> sizes;
    std::string told;
    for (const Tensors& taken : manifest.inputs)
        for (const Size& size : taken.shape) {
            if (!size.is_letter() || sizes.count(size.letter)) continue;
            int64_t& number = sizes[size.letter];
            if (body.size() - read < sizeof number) fail("the body ends before ", size.text);
            std::memcpy(&number, body.data() + read, sizeof number);
            read += sizeof number;
            if (number < 0 || uint64_t(number) > body.size())
                fail(size.text, " is ", number, ", in a body of ", body.size(), " bytes");
            if (number > most.at(size.letter))
                refuse_rows(size.text + " is " + std::to_string(number), most.at(size.letter));
            told += (told.empty() ? "" : ", ") + size.text + " = " + std::to_string(number);
        }
    size_t whole = read;
    std::vector<at::Tensor> tensors;
    for (const Tensors& taken : manifest.inputs)
        whole += size_t(c10::multiply_integers(taken.numbers(sizes))) * at::elementSize(taken.dtype);
    if (whole != body.size()) fail("expected ", whole, " bytes for ", told, "; got ", body.size());
    for (const Tensors& taken : manifest.inputs) {
        tensors.push_back(at::empty(taken.numbers(sizes), taken.dtype));
        if (!tensors.back().nbytes()) continue;
        std::memcpy(tensors.back().mutable_data_ptr(), body.data() + read, tensors.back().nbytes());
        read += tensors.back().nbytes();
    }
    return tensors;
}

inline std::string json_of(const at::Tensor& probabilities) {
    std::string text = "{\"probabilities\": [";
    for (int64_t i = 0; i < probabilities.numel(); ++i) {
        const float value = probabilities.const_data_ptr<float>()[i];
        char number[32] = "null";
        if (std::isfinite(value)) std::snprintf(number, sizeof number, "%.9g", double(value));  // enough for any float
        text += (i ? ", " : "") + std::string(number);
    }
    return text + "]}";
}

inline std::string binary_of(const at::Tensor& probabilities) {
    return {static_cast<const char*>(probabilities.const_data_ptr()), probabilities.nbytes()};
}

}  // namespace serving
