"""Lesson 23: what cannot be built or started is said, a server is asked directly, answers are counted, and the
lecture's own batches are served from a real queue."""

from __future__ import annotations

import queue
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch

from lessons.n23_serving_a_model import clients, puzzles
from lessons.shared import cpp_programs
from lessons.shared.commands import CommandFailed

FOLDER = Path("build/lesson23")


def test_what_cannot_be_built_is_left_out(capsys, tmp_path, monkeypatch):
    assert not cpp_programs.build_runner(FOLDER, "echo 'Could NOT find OpenSSL, try'; exit 1")
    assert capsys.readouterr().out == "Not built, for want of OpenSSL; its part below is left out.\n"
    command = 'printf "serve_exported is left out: cpp-httplib is missing\\n  (Debian: apt install x)\\n\\nbuilt"'
    assert cpp_programs.build_runner(FOLDER, command)
    assert "serve_exported is left out: cpp-httplib is missing (Debian: apt install x)\n" in capsys.readouterr().out
    assert not cpp_programs.started("build/nowhere/serve_exported DIR")
    assert capsys.readouterr().out == "build/nowhere/serve_exported was not built: what follows of it is left out.\n"
    monkeypatch.setattr(cpp_programs, "environment", lambda: {"PATH": str(tmp_path)})
    assert not cpp_programs.build_runner(FOLDER, "true")
    assert "cmake is not here" in capsys.readouterr().out


def test_a_server_that_does_not_start():
    with pytest.raises(CommandFailed, match="ls ended with status 2"):
        cpp_programs.started("ls nowhere")


class Answers(BaseHTTPRequestHandler):
    """What the body asks for: itself, a refusal, half an answer, none."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if body == b"none":
            time.sleep(1)
            return
        self.send_response(400 if body == b"refused" else 200)
        self.send_header("Content-Length", str(len(body) + 5 * (body == b"half")))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def test_the_server_of_this_machine_is_asked_without_a_proxy(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        assert clients.post(address, b"rows", "application/json") == b"rows"
        assert clients.post(address, b"refused", "application/json") == "400 refused"
        with pytest.raises(ConnectionError, match=f"{address} does not answer: .*IncompleteRead"):
            clients.post(address, b"half", "application/json")
        monkeypatch.setattr(clients, "SECONDS", 0.1)
        with pytest.raises(ConnectionError, match=f"{address} does not answer: .*timed out"):
            clients.post(address, b"none", "application/json")
        monkeypatch.undo()
        server.shutdown()
    with pytest.raises(ConnectionError, match=f"{address} does not answer: .*Connection refused"):
        clients.post(address, b"rows", "application/json")


def test_calls_are_counted_by_what_they_gave():
    answers = {"old": torch.zeros(2), "new": torch.ones(2)}
    now = answers["old"]
    with clients.calling(lambda: now, threads=2, seconds=0.05, **answers) as got:
        now = answers["new"]
    assert got.keys() == answers.keys()
    assert min(got.values()) > 0
    with clients.calling(lambda: torch.ones(3), threads=1, seconds=0.01, **answers) as got:
        pass
    assert got.keys() == {"a mixture"}


def test_a_call_that_fails_is_no_answer():
    with pytest.raises(ZeroDivisionError), clients.calling(lambda: 1 / 0, threads=1, seconds=0.01):
        pass


def test_a_batch_from_a_real_queue():
    """Five callers; the model refuses the second, and then the three of its batch are called one by one."""
    waiting, called = queue.Queue(), []
    requests = [clients.Request(torch.full((rows, 13), float(rows)), torch.full((rows, 26), rows)) for rows in range(5)]
    requests[1].ids.neg_()
    for request in requests:
        waiting.put(request)

    def model(counts, ids):
        called.append(len(counts))
        if (ids < 0).any():
            raise ValueError("an id below 0")
        return counts[:, 0] + ids[:, 0]

    puzzles.serve_batch(waiting, model, 3, 60, time.monotonic)
    assert called == [3, 0, 1, 2]
    puzzles.serve_batch(waiting, model, 100, 0.1, time.monotonic)
    assert called == [3, 0, 1, 2, 7]
    with pytest.raises(ValueError, match="an id below 0"):
        requests.pop(1).future.result(timeout=0)
    assert [one.future.result(timeout=0).tolist() for one in requests] == [[2.0 * rows] * rows for rows in (0, 2, 3, 4)]


def test_the_queue_that_judges_is_one():
    """Where it is told that requests come, a queue.Queue would do the same."""
    one, other = (clients.Request(torch.zeros(1, 13), torch.zeros(1, 26)) for _ in range(2))
    line = puzzles._Line([(1, one, 0), (2, other, 5)])
    assert line.empty()
    with pytest.raises(queue.Empty):
        line.get_nowait()
    with pytest.raises(queue.Empty):
        line.get(timeout=0.5)
    assert line.now == 0.5
    with pytest.raises(ValueError, match="non-negative"):
        line.get(timeout=-1)
    assert line.get() is one
    assert (line.now, line.qsize()) == (1, 0)
    assert line.get(True, 1.5) is other
    assert line.now == 7
    with pytest.raises(AssertionError, match="without a limit"):
        line.get()
