// run_exported DIR [--check] [--bench] [--threads N] [--inputs FILE] [--reload TABLE] [--gpu N] [--plain]
//
// Runs what python -m model.export wrote. No Python is in this process.
//
// --check    every sample of DIR/samples.pt, three times: the probabilities must be eager's, to what the manifest allows
//            in the package's precision. On a CPU most are to the last bit; with some numbers of rows or threads the
//            matrix products add up in another order
// --bench    latency and throughput of N threads, each with the sample's inputs, for each sample; or with those of
//            --inputs. Each thread's last answer must be eager's; of --inputs: the first call's
// --inputs   a file of torch.save([counts, ids]), or [counts, ids, offsets]: a probability a line goes to stdout
// --reload   a folder of write_table (model/serving/table.py): ids are looked up in this table. With --bench, it is
//            reloaded again and again while the threads call, and the time of a reload is told
// --threads  of --check and --bench: so many threads make the calls; default 1
// --gpu      a package for a GPU runs on this one; default: the first. --plain: it makes no CUDA graph
//
// Exit status: 0; 1: a probability is another; 2: what is wrong with the folder, the inputs or the command stands on
// stderr.
#include <ATen/Parallel.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include <algorithm>
#include <cmath>
#include <chrono>
#include <cstdio>
#include <future>
#include <optional>
#include <thread>

#include "command.h"
#include "exported.h"

using Clock = std::chrono::steady_clock;

namespace {

double ms_since(Clock::time_point begin) { return std::chrono::duration<double, std::milli>(Clock::now() - begin).count(); }

c10::IValue unpickled(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) serving::fail(path, ": cannot be read");
    std::vector<char> bytes((std::istreambuf_iterator<char>(file)), {});
    try {
        return torch::jit::pickle_load(bytes);
    } catch (const std::exception& error) {
        std::string why = error.what();
        serving::fail(path, ": not a file of torch.save: ", why.substr(0, why.find('\n')));
    }
}

std::vector<at::Tensor> tensors(const std::string& path, const c10::IValue& value) {
    if (!value.isList() && !value.isTuple()) serving::fail(path, ": expected a list of tensors");
    std::vector<at::Tensor> found;
    for (const c10::IValue& each : value.isTuple() ? value.toTupleRef().elements().vec() : value.toListRef().vec()) {
        if (!each.isTensor()) serving::fail(path, ": expected a list of tensors; got ", each.tagKind(), " in it");
        found.push_back(each.toTensor());
    }
    return found;
}

// function() on so many threads at once. What one of them throws is thrown here when all have ended; so it is if there
// cannot be so many.
template <class Function>
void on_threads(int count, Function function) {
    std::vector<std::future<void>> threads;
    for (int i = 0; i < count; ++i)
        threads.push_back(std::async(std::launch::async, [&] {
            at::set_num_threads(1);  // an operation's own threads would fight for the cores with these
            function();
        }));
    for (std::future<void>& thread : threads) thread.get();
}

int check(const serving::Exported& model, const std::vector<std::vector<at::Tensor>>& samples, int threads) {
    const double most = model.manifest().most_off;
    int wrong = 0;
    for (const std::vector<at::Tensor>& sample : samples) {
        const std::vector<at::Tensor> inputs(sample.begin(), sample.end() - 1);
        const at::Tensor& want = sample.back();
        std::mutex mutex;
        double off = 0;
        on_threads(threads, [&] {
            for (int i = 0; i < 3; ++i) {  // a GPU's second call makes a graph, and its third replays it
                const at::Tensor found = model(inputs);
                const double here = found.sizes() != want.sizes() || !at::allclose(found, want, 0, most, true) ? INFINITY
                                    : at::equal(found, want)
                                        ? 0
                                        : (found - want).nan_to_num(0).abs().max().item<double>();
                const std::lock_guard lock(mutex);
                off = std::max(off, here);
            }
        });
        std::printf("batch %5ld: ", long(inputs[0].size(0)));
        if (off == 0) std::printf("equal to eager's\n");
        else if (off <= most) std::printf("eager's, off by %.1e at most\n", off);
        else std::printf("NOT eager's\n"), ++wrong;
    }
    return wrong ? 1 : 0;
}

// How long reloads take while so many threads call, each with the sample's inputs.
void bench_reload(serving::Exported& model, const serving::Table& table,
                  const std::vector<std::vector<at::Tensor>>& samples, int threads) {
    for (const std::vector<at::Tensor>& sample : samples) {
        const std::vector<at::Tensor> inputs(sample.begin(), sample.end() - 1);
        std::vector<double> all;
        std::vector<size_t> used;  // of the GPU's memory
        std::atomic<bool> ends{false};
        std::atomic<long> calls{0};
        struct End {  // whoever ends, by an error too, ends the others
            std::atomic<bool>& ends;
            ~End() { ends = true; }
        };
        std::future<void> reloads = std::async(std::launch::async, [&] {
            const End end{ends};
            for (int i = 0; i < 100 && !ends; ++i) {
                std::this_thread::sleep_for(std::chrono::milliseconds(10));
                const Clock::time_point start = Clock::now();
                model.reload(table);
                all.push_back(ms_since(start));
                used.push_back(model.gpu_bytes_used());
            }
        });
        {
            const End end{ends};
            on_threads(threads, [&] {
                const End end{ends};
                for (; !ends; ++calls) model(inputs);
            });
        }
        reloads.get();
        std::sort(all.begin(), all.end());
        std::printf("batch %5ld, %d threads: 100 reloads in %ld calls: p50 %.3f ms, p99 %.3f ms, max %.3f ms",
                    long(inputs[0].size(0)), threads, calls.load(), all[50], all[98], all[99]);
        if (used[99]) std::printf("; GPU memory after 5 and 50 of them: %zu and %zu MB", used[4] >> 20, used[49] >> 20);
        std::printf("\n");
    }
}

void bench(const serving::Exported& model, const std::vector<std::vector<at::Tensor>>& samples, int threads) {
    for (const std::vector<at::Tensor>& sample : samples) {
        const std::vector<at::Tensor> inputs(sample.begin(), sample.end() - 1);
        const int64_t batch = inputs[0].size(0);
        const bool on_gpu = !model.manifest().gpu.empty();
        const at::Tensor& want = sample.back();
        const double most = model.manifest().most_off;
        const int calls = on_gpu ? 2000 : int(std::clamp<int64_t>(20000 / (batch + 1), 20, 2000));
        on_threads(on_gpu ? threads : 1, [&] {
            for (int i = 0; i < (on_gpu ? 50 : 3); ++i) model(inputs);  // each lane makes its graph
        });
        std::mutex mutex;
        std::vector<double> all;
        const Clock::time_point begin = Clock::now();
        on_threads(threads, [&] {
            std::vector<double> own;
            at::Tensor found;
            for (int i = 0; i < calls; ++i) {
                const Clock::time_point start = Clock::now();
                found = model(inputs);
                own.push_back(ms_since(start));
            }
            if (found.sizes() != want.sizes() || !at::allclose(found, want, 0, most, true))
                serving::fail("batch ", batch, ": a thread's last answer is another one");
            const std::lock_guard lock(mutex);
            all.insert(all.end(), own.begin(), own.end());
        });
        const double seconds = 1e-3 * ms_since(begin);
        std::sort(all.begin(), all.end());
        const auto percentile = [&](size_t p) { return all[all.size() * p / 100]; };
        std::printf("batch %5ld, %d threads: p50 %.4f ms, p99 %.4f ms, %.0f calls and %.0f rows a second; "
                    "p20 %.4f ms, p80 %.4f ms\n",
                    long(batch), threads, percentile(50), percentile(99), double(all.size()) / seconds,
                    double(all.size()) * double(batch) / seconds, percentile(20), percentile(80));
    }
}

int run(int count, char** words) {
    serving::Arguments arguments(
        count, words, "run_exported DIR [--check] [--bench] [--threads N] [--inputs FILE] [--reload TABLE] [--gpu N] [--plain]");
    std::string inputs, table;
    bool checks = false, benches = false, graphs = true;
    int threads = 1, gpu = -1;
    const std::string folder = arguments.each([&](const std::string& option) {
        if (option == "--check") checks = true;
        else if (option == "--bench") benches = true;
        else if (option == "--inputs") inputs = arguments.value();
        else if (option == "--reload") table = arguments.value();
        else if (option == "--plain") graphs = false;
        else if (option == "--gpu") gpu = arguments.number(0, 999);
        else if (option == "--threads") threads = arguments.number(1, 999);
        else return false;
        return true;
    });
    const Clock::time_point begin = Clock::now();
    serving::Exported model(folder, size_t(threads), gpu, graphs);
    std::fprintf(stderr, "ready after %.0f ms, in %s\n", ms_since(begin), model.manifest().precision.c_str());
    std::optional<serving::Table> other;
    if (!table.empty()) model.reload(other.emplace(table));
    std::vector<std::vector<at::Tensor>> own, samples;
    if (!inputs.empty()) {
        own = {tensors(inputs, unpickled(inputs))};
        const at::Tensor found = model(own[0]);
        for (int64_t i = 0; i < found.numel(); ++i) std::printf("%.9g\n", double(found.const_data_ptr<float>()[i]));
        own[0].push_back(found);
    }
    if (!checks && !benches) return 0;
    const std::string path = folder + "/samples.pt";
    const c10::IValue stored = unpickled(path);
    for (const c10::IValue& each : stored.toListRef()) samples.push_back(tensors(path, each));
    const std::vector<std::vector<at::Tensor>>& timed = inputs.empty() ? samples : own;
    if (benches && other) bench_reload(model, *other, timed, threads);
    else if (benches) bench(model, timed, threads);
    return checks ? check(model, samples, threads) : 0;
}

}  // namespace

int main(int count, char** words) {
    return serving::exit_status_of("run_exported", [&] { return run(count, words); });
}
