// serve_exported DIR [--host 127.0.0.1] [--port 8080] [--threads N] [--rows 16384] [--table TABLE] [--gpu N]
//
// Serves over HTTP what python -m model.export wrote. No Python is in this process.
//
//     GET /health      {"status": "ok", "inputs": {"counts": "float32 [B, 13]", "ids": "int64 [B, 26]"}}; 503: the GPU
//                      fails every call by now, until another process has it
//     POST /predict    rows as JSON or binary → probabilities in the same form (requests.h)
//     POST /reload     take the table of ids that is in TABLE by now, or where that link leads to; calls go on
//
// --host     where it listens; what is no loopback address opens it to others, without a password: let only a proxy
//            reach it, which limits headers and the time of a request
// --port     0: any free one, which is told on stdout
// --threads  so many calls of the model run at a time; default: one a core
// --rows     so many rows a request may have, which its memory hangs on, and of bags four ids a feature on average
// --table    look ids up in this table, which write_table (model/serving/table.py) wrote
// --gpu      a package for a GPU runs on this one; default: the first
//
// What is wrong with a request is its answer, {"error": "…"}, with a status from 400 to 499. SIGTERM and SIGINT end the
// program when the requests that its threads have are answered; connections that still wait for a thread are closed
// without an answer. Exit status: 0; 2: what is wrong stands on stderr.
//
// This shows that the exported model serves. In production one would take a server that batches requests, counts them
// and knows several models and versions: Triton Inference Server, whose PyTorch backend loads packages of AOTInductor
// and whose ONNX Runtime backend loads ONNX files, behind a proxy that does TLS and authentication.
#include <ATen/Parallel.h>
#include <httplib.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "command.h"
#include "exported.h"
#include "requests.h"

using Clock = std::chrono::steady_clock;
using nlohmann::json;

namespace {

constexpr size_t most_bytes = 16 << 20;  // of a body, decompressed
constexpr size_t most_forgotten = 16 * most_bytes;  // of what is too much; then the connection ends
constexpr size_t most_connections = 64;  // served at a time, a thread each; others wait
constexpr std::chrono::seconds most_time{30};  // for a body to arrive
const std::string too_large = "the body has more than " + std::to_string(most_bytes) + " bytes";
const std::map<std::string, std::string> method_of = {{"/health", "GET"}, {"/predict", "POST"}, {"/reload", "POST"}};

double ms_since(Clock::time_point begin) { return std::chrono::duration<double, std::milli>(Clock::now() - begin).count(); }

class Service {
public:
    Service(const std::string& folder, const std::string& table, size_t threads, int64_t most_rows, int gpu)
        : model_(folder, threads, gpu), table_(table), most_rows_(most_rows) {
        if (!table_.empty()) model_.reload(serving::Table(table_));
    }

    const std::string& precision() const { return model_.manifest().precision; }

    void answer(const httplib::Request& request, httplib::Response& response, const httplib::ContentReader* reader) {
        // A server may leave Range out of account. The library would copy the answer for each range, thousands of times.
        const_cast<httplib::Request&>(request).ranges.clear();
        // The library does not read the body of these: it would be taken for the connection's next request.
        if (!reader && (request.has_header("Transfer-Encoding") || request.get_header_value("Content-Length") > "0"))
            return close(response, 400, request.method + " takes no body");
        std::string body;
        const int status = read(request, response, reader, body);
        if (status == 408) return close(response, 408, "the body did not arrive in time");
        if (status == 0) return close(response, 413, too_large);
        const auto route = method_of.find(request.path);
        if (route == method_of.end())
            return refuse(response, 404, request.path + ": not a route: /health, /predict, /reload");
        if (request.method != route->second && !(request.method == "HEAD" && route->second == "GET")) {
            response.set_header("Allow", route->second);
            return refuse(response, 405, request.path + ": expected " + route->second + "; got " + request.method);
        }
        if (status == 413) return refuse(response, 413, too_large);
        if (status == 400) return refuse(response, 400, "the body ends before its length, or cannot be decompressed");
        if (request.path == "/health") return health(response);
        if (request.path == "/reload") return reload(response);
        predict(request, body, response);
    }

    static void refuse(httplib::Response& response, int status, const std::string& why) {
        response.status = status;
        const json error = {{"error", why.substr(0, 600)}};
        response.set_content(error.dump(-1, ' ', false, json::error_handler_t::replace) + "\n", "application/json");
    }

    // Refuses, and ends the connection: where its next request begins is not known.
    static void close(httplib::Response& response, int status, const std::string& why) {
        response.status = status;
        response.set_header("Connection", "close");
        const std::string text = json{{"error", why}}.dump() + "\n";
        response.set_content_provider(text.size(), "application/json",
                                      [text](size_t, size_t, httplib::DataSink& sink) {
                                          sink.write(text.data(), text.size());
                                          return false;
                                      });
    }

private:
    // 200; 413: it has more bytes than it may; 400: it is not whole. What is too much is read and forgotten, so that the
    // connection's next request is found. A body that does not end leaves none to find: 408: in time; 0: at all.
    static int read(const httplib::Request& request, const httplib::Response& response,
                    const httplib::ContentReader* reader, std::string& body) {
        // Without a length there is no body; the library would wait for the connection's end.
        if (!reader || !(request.has_header("Content-Length") || request.has_header("Transfer-Encoding"))) return 200;
        size_t seen = 0;
        bool fits = true, ends = true;
        const Clock::time_point late = Clock::now() + most_time;
        const auto take = [&](const char* data, size_t size) {
            seen += size;
            fits = fits && seen <= most_bytes;
            if (fits) body.append(data, size);
            return ends = seen <= most_forgotten && Clock::now() < late;
        };
        const auto part = [](const httplib::MultipartFormData&) { return true; };
        const bool whole = request.is_multipart_form_data() ? (*reader)(part, take) : (*reader)(take);
        if (!ends) return seen > most_forgotten ? 0 : 408;
        if (!fits || response.status == 413) return 413;
        return whole ? 200 : 400;
    }

    void health(httplib::Response& response) const {
        if (const std::string fault = model_.fault(); !fault.empty()) return refuse(response, 503, fault);
        json inputs;
        for (const serving::Tensors& taken : model_.manifest().inputs)
            inputs[taken.name] = (taken.dtype == at::kFloat ? "float32 " : "int64 ") + taken.sizes();
        response.set_content(json{{"status", "ok"}, {"inputs", inputs}}.dump() + "\n", "application/json");
    }

    void reload(httplib::Response& response) {
        if (table_.empty()) return refuse(response, 404, "/reload: serve_exported was started without --table");
        const std::unique_lock lock(reloads_, std::try_to_lock);
        if (!lock) return refuse(response, 503, "/reload: another one is under way; ask again");
        const Clock::time_point begin = Clock::now();
        try {
            const serving::Table table(table_);
            const double verified = ms_since(begin);
            model_.reload(table);
            const json told = {{"verified_ms", verified}, {"reloaded_ms", ms_since(begin) - verified}};
            response.set_content(told.dump() + "\n", "application/json");
        } catch (const std::exception& error) {  // of torch and of the file system too: the table before stays
            refuse(response, 409, error.what());
        }
    }

    void predict(const httplib::Request& request, const std::string& body, httplib::Response& response) const {
        const std::string type = request.get_header_value("Content-Type");
        const std::string form = type.substr(0, type.find_first_of("; "));
        if (form != "application/json" && form != "application/octet-stream")
            return refuse(response, 415, "expected application/json or application/octet-stream; got " +
                                             (type.empty() ? "no Content-Type" : type));
        at::set_num_threads(1);  // of this thread: an operation's own would fight for the cores with other calls
        try {
            const bool is_json = form == "application/json";
            const at::Tensor found = model_(is_json ? serving::JsonInputs::read(model_.manifest(), most_rows_, body)
                                                    : serving::binary_inputs(model_.manifest(), most_rows_, body));
            response.set_content(is_json ? serving::json_of(found) + "\n" : serving::binary_of(found), form);
        } catch (const serving::TooManyRows& error) {
            refuse(response, 413, error.what());
        } catch (const serving::ExportError& error) {
            refuse(response, 400, error.what());
        }
    }

    serving::Exported model_;
    std::string table_;
    int64_t most_rows_;
    std::mutex reloads_;
};

int listen_at(httplib::Server& server, const std::string& host, int port) {
    // Without the library's own choice, SO_REUSEPORT, with which two servers could share a port and neither would know.
    socket_t listening = -1;
    server.set_socket_options([&](socket_t socket) {
        const int yes = 1;
        setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
        listening = socket;
    });
    addrinfo* found = nullptr;
    // "*" would be looked up as a name, and found: at this machine's own address.
    const int unknown = host == "*" ? EAI_NONAME : getaddrinfo(host.c_str(), nullptr, nullptr, &found);
    if (unknown) serving::fail("cannot listen on ", host, ": ", gai_strerror(unknown), "; 0.0.0.0 is all of IPv4");
    freeaddrinfo(found);
    errno = 0;
    if (port == 0) port = server.bind_to_any_port(host);
    else if (!server.bind_to_port(host, port)) port = -1;
    const char* why = errno ? std::strerror(errno) : "not an address of this machine";
    // The library lets 5 new connections wait. If more came at once, Linux would answer some with a reset.
    if (port >= 0 && ::listen(listening, SOMAXCONN) != 0) port = -1, why = std::strerror(errno);
    server.set_socket_options([](socket_t) {});
    if (port < 0) serving::fail("cannot listen on ", host, ": ", why);
    return port;
}

int run(int count, char** words) {
    serving::Arguments arguments(
        count, words, "serve_exported DIR [--host HOST] [--port N] [--threads N] [--rows N] [--table TABLE] [--gpu N]");
    std::string host = "127.0.0.1", table;
    int port = 8080, gpu = -1, rows = 16384, threads = int(std::max(1u, std::thread::hardware_concurrency()));
    const std::string folder = arguments.each([&](const std::string& option) {
        if (option == "--host") host = arguments.value();
        else if (option == "--port") port = arguments.number(0, 65535);
        else if (option == "--threads") threads = arguments.number(1, 999);
        else if (option == "--rows") rows = arguments.number(1, 999999);
        else if (option == "--table") table = arguments.value();
        else if (option == "--gpu") gpu = arguments.number(0, 999);
        else return false;
        return true;
    });
    // In every thread, also in those that torch starts: one thread waits for them.
    sigset_t ends;
    sigemptyset(&ends), sigaddset(&ends, SIGTERM), sigaddset(&ends, SIGINT);
    pthread_sigmask(SIG_BLOCK, &ends, nullptr);

    httplib::Server server;
    port = listen_at(server, host, port);
    Service service(folder, table, size_t(threads), rows, gpu);
    server.new_task_queue = [] { return new httplib::ThreadPool(most_connections); };
    server.set_keep_alive_max_count(1000);  // and then another connection may have the thread
    server.set_tcp_nodelay(true);
    server.set_payload_max_length(most_bytes);
    const auto with_body = [&](const auto& request, auto& response, const httplib::ContentReader& reader) {
        service.answer(request, response, &reader);
    };
    const auto without = [&](const auto& request, auto& response) { service.answer(request, response, nullptr); };
    server.Get(".*", without).Options(".*", without);
    server.Post(".*", with_body).Put(".*", with_body).Patch(".*", with_body).Delete(".*", with_body);
    server.set_error_handler([](const httplib::Request&, httplib::Response& response) {
        if (!response.body.empty() || response.content_provider_) return;  // else it is the library that refused
        const char* why = response.status == 413 ? too_large.c_str() : "not a request of HTTP that this server takes";
        Service::refuse(response, response.status, why);
    });
    server.set_exception_handler([](const httplib::Request&, httplib::Response& response, std::exception_ptr error) {
        try {
            std::rethrow_exception(error);
        } catch (const std::exception& what) {
            std::fprintf(stderr, "serve_exported: %.600s\n", what.what());
        }
        Service::refuse(response, 500, "the model failed; the server's stderr says why");
    });
    const std::string in_url = host.find(':') == std::string::npos ? host : "[" + host + "]";  // of IPv6
    std::printf("serving %s in %s on http://%s:%d\n", folder.c_str(), service.precision().c_str(), in_url.c_str(), port);
    std::fflush(stdout);
    std::atomic<bool> ended{false};
    std::thread stopper([&] {
        int signal = 0;
        sigwait(&ends, &signal);
        while (!server.is_running() && !ended) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        server.stop();
    });
    const bool well = server.listen_after_bind();
    ended = true;
    pthread_kill(stopper.native_handle(), SIGTERM);
    stopper.join();
    return well ? 0 : 2;
}

}  // namespace

int main(int count, char** words) {
    return serving::exit_status_of("serve_exported", [&] { return run(count, words); });
}
