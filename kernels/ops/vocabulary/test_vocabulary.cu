// The look-ups' CUDA kernels against loops over the ids, so that no libtorch is needed.
#include "kernel.cuh"

#include "check/host/testing.cuh"

namespace op = vocabulary;

// The functions under test. A kernel of tests/broken puts its own in their place.
template <class T>
struct Functions {
    decltype(&op::launch) launch = op::launch;
    decltype(&op::launch_backward<T>) launch_backward = op::launch_backward<T>;
};
using Kernels = Functions<float>;
#ifdef BROKEN_KERNELS
#include BROKEN_KERNELS
#endif

using testing::Buffer;
using testing::Expected;
using testing::Output;
using testing::Shape;

// The tensors, by their bits in Shape::misaligned.
enum { the_table, the_image, the_audio, the_out, the_grad, the_grad_table, the_grad_image, the_grad_audio, tensors };

constexpr long long texts = 11, images = 5, audios = 3, image_token = 4, audio_token = 6;
constexpr const char* modes[] = {"text", "image", "deepstack", "multimodal"};

// Beside every edge; the ends of both types; 2^32 + 5 is no row 5, and a first row added to an end must not overflow.
template <class Id>
std::vector<Id> ids(long long count, unsigned seed) {
    std::vector<long long> hostile = {-1, 0, texts - 1, texts, texts + images - 1, texts + images, image_token};
    for (long long end : {(long long)std::numeric_limits<Id>::min(), (long long)std::numeric_limits<Id>::max()})
        hostile.push_back(end);
    if (sizeof(Id) == 8) hostile.insert(hostile.end(), {(1LL << 32) + 5, 5 - (1LL << 32), 1LL << 31, -(1LL << 31) - 1});
    std::mt19937 bits(seed);
    std::vector<Id> found;
    for (long long i = 0; i < count; ++i)
        found.push_back(Id(i % 2 ? (long long)(bits() % (texts + images + 4)) - 2 : hostile[bits() % hostile.size()]));
    return found;
}

template <class T, class Id>
struct Case {
    std::vector<T> table, image, audio, grad;
    std::vector<Id> id, index;
    std::vector<int> sorted_rows;
    std::vector<long long> order, starts;
    Expected out, gradients[3];

    // The row that every id names, of all rows numbered through; -1 for none.
    long long row_of(const std::string& mode, size_t i) const {
        long long at = id[i], where = index[i];
        auto within = [](long long row, long long rows, long long first) {
            return row >= 0 && row < rows ? first + row : -1;
        };
        if (mode == "multimodal" && at == image_token) return within(where, images, texts);
        if (mode == "multimodal" && at == audio_token) return within(where, audios, texts + images);
        if ((mode == "image" || mode == "deepstack") && at >= texts) return within(at - texts, images, texts);
        return mode == "deepstack" ? -1 : within(at, texts, 0);
    }

    Case(const Shape& shape, const std::string& mode) {
        table = testing::random<T>(texts * shape.columns, 1, shape.special);
        image = testing::random<T>(images * shape.columns, 2, shape.special);
        audio = testing::random<T>(audios * shape.columns, 3, shape.special);
        grad = testing::random<T>(shape.elements(), 4, shape.special);
        id = ids<Id>(shape.rows, 5), index = ids<Id>(shape.rows, 6);
        if (shape.rows) id[0] = Id(audio_token), index[0] = Id(audios - 1);  // no source is left out
        if (shape.large) std::fill(id.begin(), id.end(), Id(3));  // one id in the whole batch
        out.by_slack = true;                                      // copies are exact
        std::vector<T> all = table;
        all.insert(all.end(), image.begin(), image.end());
        all.insert(all.end(), audio.begin(), audio.end());
        constexpr long long rows[] = {texts, images, audios}, total = texts + images + audios;
        std::vector<double> sums(size_t(total * shape.columns)), magnitudes(sums.size());
        std::vector<std::vector<long long>> positions(size_t(total) + 1);
        for (size_t i = 0; i < id.size(); ++i) {
            long long row = row_of(mode, i);
            positions[size_t(row < 0 ? total : row)].push_back((long long)i);
            for (long long column = 0; column < shape.columns; ++column) {
                size_t from = size_t(row * shape.columns + column), at = i * size_t(shape.columns) + size_t(column);
                out.values.push_back(row < 0 ? 0 : testing::to_double(all[from]));
                if (row < 0) continue;
                sums[from] += testing::to_double(grad[at]);
                magnitudes[from] += std::fabs(testing::to_double(grad[at]));
            }
        }
        for (long long row = 0; row <= total; ++row) {
            starts.push_back((long long)order.size());
            for (long long position : positions[size_t(row)]) order.push_back(position), sorted_rows.push_back(int(row));
        }
        for (long long source = 0, first = 0; source < 3; first += rows[source++]) {
            auto part = [&](const std::vector<double>& from) {
                return std::vector<double>(from.begin() + first * shape.columns,
                                           from.begin() + (first + rows[source]) * shape.columns);
            };
            gradients[source].values = part(sums), gradients[source].slack = part(magnitudes);
            gradients[source].by_slack = true;
            for (double& slack : gradients[source].slack) slack *= 8 * testing::Dtype<Accumulator<T>>::epsilon;
        }
    }
};

template <class T, class Id>
void check(testing::Report& report, const Shape& shape, const char* mode_name, const Functions<T>& f) {
    std::string mode = mode_name;
    Case<T, Id> c(shape, mode);
    bool has_table = mode != "deepstack", has_image = mode != "text", by_index = mode == "multimodal";
    Buffer<T> table(c.table, shape.off(the_table)), image(c.image, shape.off(the_image));
    Buffer<T> audio(c.audio, shape.off(the_audio)), out(shape.elements(), shape.off(the_out));
    Buffer<Id> id(c.id), index(c.index);
    auto source = [](Buffer<T>& buffer, long long rows, bool there) {
        return op::Source{there ? buffer.get() : nullptr, there ? rows : 0, there};
    };
    op::Request request = {{id.get(), sizeof(Id) == 8},
                           {by_index ? index.get() : nullptr, sizeof(Id) == 8},
                           source(table, texts, has_table),
                           source(image, images, has_image),
                           source(audio, audios, by_index),
                           texts,
                           image_token,
                           audio_token};
    std::string width = sizeof(Id) == 8 ? "" : ", int32";
    report.check<T>(shape, mode, "forward" + width, 2.0 * double(out.bytes()), {{"out", out, c.out}}, [&] {
        return f.launch(request, out.get(), shape.rows, shape.columns * (long long)sizeof(T), cudaStream_t{});
    });
    if (sizeof(Id) == 4) return;  // the backward sees the order alone

    Buffer<T> grad(c.grad, shape.off(the_grad));
    Buffer<int> sorted_rows(c.sorted_rows);
    Buffer<long long> order(c.order), starts(c.starts);
    op::Grouping grouping = {{sorted_rows.get(), false}, order.get(), starts.get(), shape.rows,
                             texts + images + audios};
    Buffer<T> grad_table(texts * shape.columns, shape.off(the_grad_table));
    Buffer<T> grad_image(images * shape.columns, shape.off(the_grad_image));
    Buffer<T> grad_audio(audios * shape.columns, shape.off(the_grad_audio));
    for (long long piece : {op::piece_size, 4LL, 1LL})
        for (bool image_alone : {false, true}) {
            if (piece != 4 && image_alone) continue;
            Buffer<Accumulator<T>> sums(op::workspace_size(shape.rows, shape.columns, piece));
            op::Gradient<T> gradients[] = {{image_alone ? nullptr : grad_table.get(), texts},
                                           {grad_image.get(), images},
                                           {image_alone ? nullptr : grad_audio.get(), audios}};
            std::vector<Output> outputs;
            if (!image_alone) outputs.push_back({"grad_table", grad_table, c.gradients[0]});
            outputs.push_back({"grad_image", grad_image, c.gradients[1]});
            if (!image_alone) outputs.push_back({"grad_audio", grad_audio, c.gradients[2]});
            std::string name = image_alone ? "backward: image" : "backward, " + std::to_string(piece);
            report.check<T>(shape, mode, name, double(grad.bytes() + grad_table.bytes()), outputs, [&] {
                return f.launch_backward(grad.get(), grouping, gradients, sums.get(), shape.columns, cudaStream_t{},
                                         piece);
            });
        }
}

template <class T>
void check(testing::Report& report, const Shape& shape, const Functions<T>& f = {}) {
    if (!report.wants<T>(shape)) return;
    for (const char* mode : modes) {
        check<T, long long>(report, shape, mode, f);
        if (shape.rows < 100) check<T, int>(report, shape, mode, f);
    }
}

template <class T>
void check_dtype(testing::Report& report, const Functions<T>& f = {}) {
    const Shape shapes[] = {{0, 5}, {5, 0}, {40, 1}, {40, 7}, {40, 8}, {12, 40, Shape::all}, {9, 1023}, {5, 4097},
                            {5, 4096}, {12, 40, 0, true}, {300, 24, 0, false, true}, {700, 6}};
    for (const Shape& shape : shapes)
        if (!testing::few_rows() || shape.elements() < 8000) check<T>(report, shape, f);
}

// Rows beyond 2^31 elements, in a table and in the output.
void check_huge([[maybe_unused]] testing::Report& report) {
#ifdef __CUDACC__
    using T = __half;
    Shape shape = testing::huge_shape();
    if (const char* why = testing::too_large(2.0 * double(shape.elements()) * sizeof(T)))
        return report.skip(shape, "float16", "text", "forward", why);
    Buffer<T> table(shape.elements()), out(shape.elements());
    testing::fill(table, 1);
    std::vector<int> reversed;
    for (long long i = shape.rows; i-- > 0;) reversed.push_back(int(i));
    Buffer<int> id(reversed);
    op::Request request = {{id.get(), false}, {}, {table.get(), shape.rows, true}, {}, {}, shape.rows, 0, 0};
    auto expected = [&](long long i) {
        long long row = shape.rows - 1 - i / shape.columns;
        return double(testing::element(row * shape.columns + i % shape.columns, 1));
    };
    report.check_sampled<T>(
        shape, "text", "forward", {{"out", out, expected}},
        op::launch(request, out.get(), shape.rows, shape.columns * (long long)sizeof(T), cudaStream_t{}));
#endif
}

int main(int count, char** arguments) {
    return testing::run(count, arguments, [](testing::Report& report) {
        Kernels f = testing::kernels_under_test<Kernels>();
        check_dtype<float>(report, f);
        if (testing::quick) return;
        if constexpr (!testing::race_check) {  // a race does not go by the dtype
            check_dtype<double>(report);
            check_dtype<__half>(report);
            check_dtype<__nv_bfloat16>(report);
            for (int tensor = 0; tensor < tensors; ++tensor) check<float>(report, {9, 512, 1u << tensor}, f);
        }
        check_huge(report);
    });
}
