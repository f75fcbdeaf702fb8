"""Lesson 18: the puzzles' answers are what serving does; what cannot be built or started is said."""

from __future__ import annotations

import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pandas as pd
import pytest
import torch

from lessons.n18_a_model_without_python import clients, commands, puzzles, steps
from lessons.shared.dlrm import DENSE, SPARSE, read
from model.serving.manifest import ExportError, Manifest, Tensors


def test_a_count_is_what_training_saw(tmp_path):
    counts = torch.tensor([[0.0, 1.0, -3.0, torch.nan, 3e9, torch.inf] * 3])[:, : len(DENSE)]
    table = pd.DataFrame(counts.numpy(), columns=DENSE)
    table[[*SPARSE]] = 1
    table["labels"] = 0
    table.to_parquet(tmp_path / "rows.parquet")
    _, dense, _ = read(tmp_path / "rows.parquet")
    torch.testing.assert_close(puzzles.as_trained(counts), dense)


@pytest.mark.parametrize("case", puzzles._SHAPES, ids=lambda case: case[0])
def test_a_shape_fits_where_the_manifest_says_so(case):
    _, declared, shapes, want, _ = case
    assert puzzles.is_declared(declared, shapes) == want
    if declared.keys() != shapes.keys():
        return  # a manifest's inputs have no names when they come
    inputs = tuple(Tensors(name, torch.int64, sizes) for name, sizes in declared.items())
    manifest = Manifest("", "", "", inputs, (), ())
    tensors = [torch.zeros(shapes[name], dtype=torch.int64) for name in declared]
    if want:
        manifest.check(tensors)
    else:
        with pytest.raises(ExportError):
            manifest.check(tensors)


def test_what_cannot_be_built_is_left_out(capsys, tmp_path, monkeypatch):
    (commands.ROOT / commands.FOLDER).mkdir(parents=True, exist_ok=True)
    assert not commands.build_runner("echo 'Could NOT find OpenSSL, try'; exit 1")
    assert capsys.readouterr().out == "Not built, for want of OpenSSL; its part below is left out.\n"
    command = 'printf "serve_exported is left out: cpp-httplib is missing\\n  (Debian: apt install x)\\n\\nbuilt"'
    assert commands.build_runner(command)
    assert "serve_exported is left out: cpp-httplib is missing (Debian: apt install x)\n" in capsys.readouterr().out
    assert not commands.started("build/nowhere/serve_exported DIR")
    assert capsys.readouterr().out == "build/nowhere/serve_exported was not built: what follows of it is left out.\n"
    monkeypatch.setattr(commands, "environment", lambda: {"PATH": str(tmp_path)})
    assert not commands.build_runner("true")
    assert "cmake is not here" in capsys.readouterr().out


def test_a_server_that_does_not_start():
    with pytest.raises(commands.CommandFailed, match="ls ended with status 2"):
        commands.started("ls nowhere")


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


OPERATORS = ("table_lookup", "aoti_torch_cpu_bmm_out", "cpp_fused_index_4", "cpp_fused_add_index", "cpu_addmm_out")


def test_a_steps_time_is_its_shortest():
    names = [(step.package,) for step in steps.STEPS]
    calls = [(1, 2, 3, 4, 5), (2, 1, 9, 9, 1)]
    times = [(operator, time) for call in calls for operator, time in zip(OPERATORS, call, strict=True)]
    assert [*steps.by_step(times, 2, names).values()] == [1, 1, 3, 1, 4]
    with pytest.raises(LookupError, match="10 operators in 3 calls"):
        steps.by_step(times, 3, names)
    with pytest.raises(LookupError, match="no operator of choice of the pairs"):
        steps.by_step([time for time in times if "fused_index" not in time[0]], 2, names)
