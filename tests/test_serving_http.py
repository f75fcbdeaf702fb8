"""serve_exported: an exported model over HTTP. Answers are the model's to the last bit, and what is wrong is told."""

import http.client
import json
import re
import signal
import socket
import struct
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from exported_models import trained
from test_serving_table import grown, inputs_and_answers, own_table

from kernels import IdTable
from model.export import sample
from model.serving.exported import Exported
from model.serving.served import Served
from model.serving.table import write_table

JSON, BINARY = "application/json", "application/octet-stream"
NAMES = ("counts", "ids", "offsets")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def program(serving_programs):
    if not (serving_programs / "serve_exported").exists():
        pytest.skip("cpp-httplib's or nlohmann-json's headers are missing: serve_exported was not built")
    return serving_programs / "serve_exported"


@contextmanager
def serving(program, folder, *options):
    """The process, with its port. In the end it must stop by itself, without an error."""
    command = [program, folder, "--port", "0", "--threads", "2", *options]
    with subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            line = process.stdout.readline()
            assert line.startswith(f"serving {folder} in fp32 on http://127.0.0.1:"), process.stderr.read()
            process.port = int(line.rpartition(":")[2])
            yield process
            process.send_signal(signal.SIGTERM)
            assert (process.wait(300), process.stderr.read()) == (0, "")
        finally:
            process.kill()


def ask(connection, body, form=JSON, path="/predict", method="POST"):
    """(status, body) of the answer."""
    connection.request(method, path, body, {"Content-Type": form} if form else {})
    answer = connection.getresponse()
    return answer.status, answer.read()


def connect(process):
    return http.client.HTTPConnection("127.0.0.1", process.port, timeout=300)


def as_json(inputs):
    named = {name: tensor.tolist() for name, tensor in zip(NAMES, inputs, strict=False)}
    named["counts"] = [[None if count != count else count for count in row] for row in named["counts"]]
    return json.dumps(named).encode()


def as_binary(inputs):
    counts, ids, *offsets = inputs
    sizes = struct.pack("<q", len(counts)) + (struct.pack("<q", len(ids)) if offsets else b"")
    return sizes + b"".join(tensor.numpy().tobytes() for tensor in inputs)


def from_json(body):
    return torch.tensor(json.loads(body)["probabilities"], dtype=torch.float32)


def from_binary(body):
    return torch.frombuffer(bytearray(body), dtype=torch.float32) if body else torch.empty(0)


FORMS = {JSON: (as_json, from_json), BINARY: (as_binary, from_binary)}


def wrong_requests(inputs):
    """(status, what the answer must say, body, content type) of requests that are refused."""
    good = json.loads(as_json(inputs))
    binary = as_binary(inputs)
    bags = len(inputs) == 3
    place = "ids[2]" if bags else "ids[2][1]"

    def changed(**values):
        return json.dumps(good | values).encode()

    def with_id(text):
        ids = [*good["ids"][:2], "HERE"] if bags else [*good["ids"][:2], [1, "HERE", 3, 4]]
        return changed(ids=ids).replace(b'"HERE"', text)

    return [
        (400, "not JSON, at byte 1", b"", JSON),
        (400, "not JSON, at byte", b"counts", JSON),
        (400, "not JSON, at byte", as_json(inputs)[:-1], JSON),
        (400, "not JSON, at byte", as_json(inputs) + b"{}", JSON),
        (400, "not JSON, at byte", b'{"\xff": 1}', JSON),
        (400, "not JSON, at byte", changed(counts=[[float("nan")]]), JSON),
        (400, "the body: expected an object; got an array", b"[" * 100_000, JSON),
        (400, "the body: expected an object; got null", b"null", JSON),
        (400, "counts: missing", b"{}", JSON),
        (400, "ids: missing", b'{"counts": []}', JSON),
        (400, "unknown key id; expected counts, ids", changed(id=[]), JSON),
        (400, "ids: given twice", b'{"ids": [], "ids": []}', JSON),
        (400, "counts: expected an array; got a number", changed(counts=1), JSON),
        (400, "counts: expected an array; got an object", changed(counts={}), JSON),
        (400, "counts[0]: expected an array; got a number", changed(counts=[1]), JSON),
        (400, "counts[1]: expected 13 numbers; got 12", changed(counts=[[1] * 13, [1] * 12]), JSON),
        (400, "counts[0][13]: a row has 13 numbers", changed(counts=[[1] * 14]), JSON),
        (400, "counts[0][1]: expected a number or null; got the string", changed(counts=[[1, "2"]]), JSON),
        (400, "counts[0][0]: expected a number or null; got an array", changed(counts=[[[]]]), JSON),
        (400, "counts[0][0]: beyond float32: 1e+39", changed(counts=[[1e39]]), JSON),
        (400, "counts[0][0]: beyond float64", b'{"counts": [[1e999]]}', JSON),
        (400, f"{place}: expected an integer; got 1.5", with_id(b"1.5"), JSON),
        (400, f"{place}: expected an integer; got 1.0", with_id(b"1.0"), JSON),
        (400, f"{place}: expected an integer; got null", with_id(b"null"), JSON),
        (400, f"{place}: expected an integer; got true", with_id(b"true"), JSON),
        (400, f"{place}: beyond int64: 9223372036854775808", with_id(b"9223372036854775808"), JSON),
        (400, f"{place}: beyond int64: -9223372036854775809", with_id(b"-9223372036854775809"), JSON),
        (400, f"{place}: beyond int64", with_id(b"1" + b"0" * 5000), JSON),
        (400, "B = 0", changed(counts=[]), JSON),
        (400, "the body ends before B", b"", BINARY),
        (400, "the body ends before B", binary[:7], BINARY),
        (400, "bytes for B = 8", binary[:-1], BINARY),
        (400, "bytes for B = 8", binary + b"x", BINARY),
        (400, "B is -1, in a body of", struct.pack("<q", -1) + binary[8:], BINARY),
        (400, "B is 4611686018427387904, in a body of", struct.pack("<q", 2**62) + binary[8:], BINARY),
        (400, "bytes for B = 9", struct.pack("<q", 9) + binary[8:], BINARY),
        (413, "the body has more than 16777216 bytes", b" " * (2**24 + 1), JSON),
        (415, "expected application/json or application/octet-stream; got text/plain", as_json(inputs), "text/plain"),
        (415, "got no Content-Type", as_json(inputs), None),
    ]


def offsets_that_are_wrong(inputs):
    good = json.loads(as_json(inputs))
    offsets, ids = good["offsets"], len(good["ids"])
    for wrong, why in (
        (offsets[:-1], "offsets: expected [4*B+1], B = 8"),
        ([*offsets[:5], ids + 1, *offsets[6:]], "offsets[6] is"),
        ([0] * len(offsets), "offsets: expected 0 first and"),
    ):
        yield 400, why, json.dumps(good | {"offsets": wrong}).encode(), JSON


@pytest.fixture
def inputs(exported_folder):
    return sample(Served(trained(), exported_folder.name), 8, 0)


def test_its_probabilities_are_eagers(program, exported_folder):
    with serving(program, exported_folder) as process:
        connection = connect(process)
        for *inputs, want in torch.load(exported_folder / "samples.pt"):
            for form, (written, read) in FORMS.items():
                status, body = ask(connection, written(inputs), form)
                assert (status, torch.equal(read(body), want)) == (200, True), body[:200]
        status, body = ask(connection, as_json(inputs), "application/json; charset=utf-8")
        assert status == 200


def test_what_is_wrong_is_told(program, exported_folder, inputs, one_thread):
    with serving(program, exported_folder) as process:
        connection = connect(process)
        wrong = [*wrong_requests(inputs), *(offsets_that_are_wrong(inputs) if len(inputs) == 3 else ())]
        for status, why, body, form in wrong:
            code, answer = ask(connection, body, form)
            assert code == status, (why, answer)
            assert why in json.loads(answer)["error"], answer
        for status, why, method, path in (
            (404, "/nowhere: not a route", "GET", "/nowhere"),
            (404, "not a route", "POST", "/predict/"),
            (404, "without --table", "POST", "/reload"),
            (405, "/predict: expected POST; got GET", "GET", "/predict"),
            (405, "/predict: expected POST; got PUT", "PUT", "/predict"),
            (405, "/health: expected GET; got POST", "POST", "/health"),
            (400, "not a request of HTTP", "TRACE", "/predict"),
            (414, "not a request of HTTP", "GET", "/" + 9000 * "a"),
        ):
            other = connect(process)
            code, answer = ask(other, b"{}" if method in ("POST", "PUT") else None, JSON, path, method)
            assert (code, why in json.loads(answer)["error"]) == (status, True), answer
        code, answer = ask(connection, None, None, "/health", "GET")
        assert (code, json.loads(answer)["status"]) == (200, "ok")
        code, answer = ask(connection, as_json(inputs))
        assert torch.equal(from_json(answer), Exported(exported_folder)(*inputs))


def test_bytes_that_are_no_request_or_not_all_of_one(program, exported_folder, inputs):
    chunked = b"POST /predict HTTP/1.1\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    begun = b"POST /predict HTTP/1.1\r\nContent-Length: 1000\r\nContent-Type: application/json\r\n\r\n{"
    with serving(program, exported_folder) as process:
        for sent, want in (
            (b"nonsense\r\n\r\n", b"HTTP/1.1 400"),
            (b"\x00\xff" * 100 + b"\r\n\r\n", b"HTTP/1.1 400"),
            (b"POST /predict HTTP/1.1\r\nContent-Type: application/json\r\n\r\n", b"not JSON, at byte 1"),
            (chunked + b"2\r\n{}\r\n0\r\n\r\n", b"counts: missing"),
            (chunked + b"zz\r\n", b"HTTP/1.1 400"),
            (begun, b"HTTP/1.1 400"),
            (b"", b""),
        ):
            with socket.create_connection(("127.0.0.1", process.port), timeout=300) as connection:
                connection.sendall(sent)
                answer = b""
                while want not in answer and (more := connection.recv(65536)):
                    answer += more
                assert want in answer, (sent, answer)
        assert ask(connect(process), as_json(inputs))[0] == 200


def test_more_rows_than_a_request_may_have(program, exported_folder, inputs):
    seven, eight = sample(Served(trained(), exported_folder.name), 7, 0), inputs
    with serving(program, exported_folder, "--rows", "7") as process:
        connection = connect(process)
        for form, why in ((JSON, "the length of counts"), (BINARY, "B is 8")):
            written, read = FORMS[form]
            code, answer = ask(connection, written(eight), form)
            assert (code, json.loads(answer)["error"]) == (413, f"{why}: a request has at most 7")
            code, answer = ask(connection, written(seven), form)
            assert (code, len(read(answer))) == (200, 7)
        if len(inputs) == 3:  # four a bag, of seven rows with four bags each
            body = json.dumps({"counts": [], "ids": [0] * 113, "offsets": []}).encode()
            code, answer = ask(connection, body)
            assert (code, json.loads(answer)["error"]) == (413, "the length of ids: a request has at most 112")


def test_a_body_of_many_small_numbers_takes_little_memory(program, exported_folder):
    bodies = [b'{"counts": [[' + b"0," * 8_000_000, b'{"ids": [' + b"0," * 8_000_000]
    bodies += [b'{"counts": [' + b"[0,0,0,0,0,0,0,0,0,0,0,0,0]," * 580_000]
    with serving(program, exported_folder) as process:
        connection, before = connect(process), resident(process)
        for body in bodies:
            code, answer = ask(connection, body)
            assert code in (400, 413), answer
            peak = int(re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{process.pid}/status").read_text())[1])
            print(f"{len(body)} bytes: {peak - before} kB")
            assert peak < before + 65_536


def listening(port):
    """{address: connections that no thread has yet} of each socket with this port that listens, as Linux lists them."""
    lines = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()]
    queues = {address: waiting for _, address, _, state, waiting, *_ in lines if state == "0A"}
    return {at: int(waiting.partition(":")[2], 16) for at, waiting in queues.items() if at.endswith(f":{port:04X}")}


def resident(process):
    """The memory that it has, in kB."""
    return int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{process.pid}/status").read_text())[1])


@pytest.mark.parametrize("exported_folder", ["sum"], indirect=True)
def test_ten_thousand_requests_of_sixteen_clients(program, exported_folder, inputs, one_thread):
    served = Served(trained(), exported_folder.name)
    large, small = [], []
    for status, why, body, form in wrong_requests(inputs):
        (large if status == 413 else small).append((status, why, body, form))
    right, exported = [], Exported(exported_folder)
    for seed in range(60):
        batch = sample(served, seed, seed)
        want = exported(*batch)  # eager's last bit is another where a batch has rows beyond whole vectors
        torch.testing.assert_close(want, served(*batch), rtol=1e-6, atol=1e-7)
        right += [(want, form, FORMS[form][0](batch)) for form in FORMS]
    memory = []
    with serving(program, exported_folder) as process:

        def client(number):
            tally = {"right": 0, "refused": 0, "wrong": 0}
            connection = connect(process)
            for i in range(625):
                turn = 625 * number + i
                if turn % 5 == 0:
                    status, why, body, form = large[0] if i == 300 else small[turn // 5 % len(small)]
                    code, answer = ask(connection, body, form)
                    tally["refused" if code == status and why in json.loads(answer)["error"] else "wrong"] += 1
                else:
                    want, form, body = right[turn % len(right)]
                    code, answer = ask(connection, body, form)
                    equal = code == 200 and torch.equal(FORMS[form][1](answer), want)
                    tally["right" if equal else "wrong"] += 1
                if number == 0 and i in (125, 624):
                    memory.append(resident(process))
            return tally

        with ThreadPoolExecutor(16) as pool:
            tallies = list(pool.map(client, range(16)))
        assert listening(process.port) == {f"0100007F:{process.port:04X}": 0}  # 127.0.0.1
    total = {key: sum(tally[key] for tally in tallies) for key in tallies[0]}
    assert (sum(total.values()), total["wrong"]) == (10_000, 0), total
    assert total["refused"] > 1000
    early, end = memory  # kB
    print(f"{total}, VmRSS {early} kB after about 2,000 requests, {end} kB at the end")
    assert end < early + 16_384


def test_a_hundred_clients_come_at_once(program, exported_folder):
    """While the process cannot take them: none is sent away, and none has to come again."""
    with serving(program, exported_folder) as process:
        process.send_signal(signal.SIGSTOP)
        connections = [connect(process) for _ in range(100)]
        try:
            for connection in connections:
                connection.request("GET", "/health", headers={"Connection": "close"})
            assert [*listening(process.port).values()] == [100]
        finally:
            process.send_signal(signal.SIGCONT)
        assert {connection.getresponse().status for connection in connections} == {200}


def test_a_reload_under_calls(program, exported_folder, tmp_path):
    tables = {name: tmp_path / name for name in ("own", "grown", "five", "spoilt")}
    for name, table in (("own", own_table()), ("grown", grown()), ("spoilt", own_table())):
        write_table(tables[name], table)
    write_table(tables["five"], IdTable([*Served(trained()).known, torch.arange(3)]))
    (tables["spoilt"] / "constants" / "tags").write_bytes(b"")
    link = tmp_path / "current"
    link.symlink_to(tables["own"])
    batch, before, after = inputs_and_answers(exported_folder.name)
    body, outcomes, ends = as_binary(batch), [], threading.Event()
    with serving(program, exported_folder, "--table", link) as process:

        def client():
            connection = connect(process)
            while not ends.is_set():
                status, answer = ask(connection, body, BINARY)
                answer = from_binary(answer)
                outcomes.append((status, torch.equal(answer, before), torch.equal(answer, after)))

        def reload(name):
            link.unlink()
            link.symlink_to(tables[name])
            return ask(operator, None, None, "/reload")

        operator, clients = connect(process), [threading.Thread(target=client) for _ in range(8)]
        for thread in clients:
            thread.start()
        times = []
        for _ in range(20):
            for name in ("grown", "own"):
                status, answer = reload(name)
                assert status == 200, answer
                times.append(json.loads(answer)["reloaded_ms"])
        ends.set()
        for thread in clients:
            thread.join()
        print(f"{len(outcomes)} calls; {len(times)} reloads of at most {max(times):.2f} ms")
        assert {*outcomes} == {(200, True, False), (200, False, True)}
        for name, why in (("five", "for other features"), ("spoilt", "0 bytes, and the manifest says")):
            status, answer = reload(name)
            assert (status, why in json.loads(answer)["error"]) == (409, True), answer
        assert torch.equal(from_binary(ask(operator, body, BINARY)[1]), before)


def test_it_ends_when_the_requests_are_answered(program, exported_folder):
    served = Served(trained(), exported_folder.name)
    batch = sample(served, 16_000, 0)
    want, body, answers = served(*batch), as_binary(batch), []
    with serving(program, exported_folder) as process:
        connections = [connect(process) for _ in range(4)]
        for connection in connections:  # each has its thread then, which waits for the next request
            connection.request("GET", "/health")
            assert connection.getresponse().read()
        for connection in connections:
            connection.putrequest("POST", "/predict")
            for header in (("Content-Type", BINARY), ("Content-Length", len(body)), ("Expect", "100-continue")):
                connection.putheader(*header)
            connection.putheader("Connection", "close")
            connection.endheaders()
            assert connection.sock.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"  # it has begun to read the request
        process.send_signal(signal.SIGTERM)
        for connection in connections:
            connection.send(body)
        for connection in connections:
            answers.append(from_binary(connection.getresponse().read()))
        assert process.wait(300) == 0
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", process.port))
    assert all(torch.equal(answer, want) for answer in answers)


def test_a_command_that_is_wrong(program, exported_folder, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        for arguments, why in (
            ([], "serve_exported DIR"),
            ([exported_folder, "--other"], "--other: not expected"),
            ([exported_folder, "--port"], "--port: expected a value"),
            ([exported_folder, "--port", "65536"], "--port: expected a number from 0 to 65535; got 65536"),
            ([exported_folder, "--threads", "0"], "--threads: expected a number from 1 to 999; got 0"),
            ([exported_folder, "--port", port], "cannot listen on 127.0.0.1: Address already in use"),
            ([exported_folder, "--port", "0", "--host", "no-such.invalid"], "cannot listen on no-such.invalid: "),
            ([exported_folder, "--port", "0", "--host", "*"], "cannot listen on *: Name or service not known"),
            ([exported_folder, "--port", "0", "--host", ""], "cannot listen on : Name or service not known"),
            ([exported_folder, "--port", "0", "--host", "192.0.2.1"], "192.0.2.1: Cannot assign requested address"),
            ([exported_folder, "--port", "0", "--table", tmp_path], "manifest.tsv"),
            (["/nowhere", "--port", "0"], "cannot be read"),
        ):
            done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, timeout=300)
            assert (done.returncode, done.stdout, why in done.stderr) == (2, "", True), done.stderr


def test_no_python_is_in_it(program):
    listed = subprocess.run(["ldd", program], capture_output=True, text=True).stdout
    assert "libtorch_cpu" in listed
    assert "libpython" not in listed
    assert "libtorch_python" not in listed


def test_a_range_is_left_out_of_account(program, exported_folder, inputs):
    """It may be: and a copy of the answer for each of thousands of ranges would fill the memory."""
    with serving(program, exported_folder) as process:
        connection = connect(process)
        whole = ask(connection, as_json(inputs))
        for ranges in ("bytes=0-5", "bytes=" + ",".join(["0-"] * 1000)):
            connection.request("POST", "/predict", as_json(inputs), {"Content-Type": JSON, "Range": ranges})
            answer = connection.getresponse()
            assert (answer.status, answer.read()) == whole


def test_the_body_of_a_get_is_no_request(program, exported_folder):
    hidden = b"GET /health HTTP/1.1\r\nContent-Length: 31\r\n\r\nPOST /reload HTTP/1.1\r\nHost: a\r\n\r\n"
    with serving(program, exported_folder) as process:
        with socket.create_connection(("127.0.0.1", process.port), timeout=300) as connection:
            connection.sendall(hidden)
            answer = b""
            while more := connection.recv(65536):  # until the server closes the connection
                answer += more
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert answer.count(b"HTTP/1.1") == 1
        assert b"GET takes no body" in answer
