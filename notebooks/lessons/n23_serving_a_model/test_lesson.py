"""Lesson 23: what cannot be built or started is said, a server is asked directly, and answers are counted."""

from __future__ import annotations

import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch

from lessons.n23_serving_a_model import clients
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
