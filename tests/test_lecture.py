"""The lecture's runner: notebooks executed, pages written, outputs stored, and what Ctrl-C leaves behind."""

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

psutil = pytest.importorskip("psutil")
nbformat = pytest.importorskip("nbformat")
for package in ("nbclient", "nbconvert", "ipykernel"):
    pytest.importorskip(package)
import lecture as command  # noqa: E402  of notebooks/

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "notebooks" / "lecture.py"


def notebook(path, *cells):
    """A notebook of cells; one that starts with '#' and a space is Markdown."""
    v4 = nbformat.v4
    make = [v4.new_markdown_cell(c) if c.startswith("# ") else v4.new_code_cell(c) for c in cells]
    nbformat.write(v4.new_notebook(cells=make), path)


def lecture(folder, *options):
    command = [sys.executable, SCRIPT, "--notebooks", folder, "--out", folder / "out", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd="/")


def test_lecture_runs_all_and_fails_if_one_fails(tmp_path, monkeypatch):
    notebook(tmp_path / "01_bad.ipynb", "# Bad & wrong\n\nIt divides\nby `zero`.", "print('before')", "1 / 0")
    notebook(
        tmp_path / "02_good.ipynb",
        "# Good\n\nSee [bad](01_bad.ipynb): $x^2$",
        "import os, sys\nprint(sys.executable, os.path.basename(os.getcwd()))",
    )
    before = [path.read_bytes() for path in sorted(tmp_path.glob("*.ipynb"))]
    # A kernel of another Python in the user's home must not be chosen.
    other = tmp_path / "jupyter" / "kernels" / "python3"
    other.mkdir(parents=True)
    (other / "kernel.json").write_text(
        json.dumps({"argv": ["/nowhere/python", "{connection_file}"], "display_name": "other", "language": "python"})
    )
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    done = lecture(tmp_path, "--at-once", "1")
    assert done.returncode == 1, done.stderr
    progress = [line for line in done.stdout.splitlines() if line.startswith("[")]
    assert sorted(re.sub(r"[\d.]+ s", "_ s", line) for line in progress) == [
        "[1/2] 01_bad ...", "[1/2] 01_bad failed, _ s", "[2/2] 02_good ...", "[2/2] 02_good ok, _ s",
    ]
    assert "    ZeroDivisionError: division by zero" in done.stdout
    assert re.search(r"^01_bad +\d+\.\d  failed\n02_good +\d+\.\d  ok$", done.stdout, flags=re.M)
    if "  no page: " in done.stdout:
        pytest.skip("nbconvert, or a part of it, is not installed")
    out = tmp_path / "out"
    bad, good, index = [(out / f"{name}.html").read_text() for name in ("01_bad", "02_good", "index")]
    assert "ZeroDivisionError" in bad
    assert "before" in bad
    assert sys.executable in good
    assert tmp_path.name in good
    assert 'href="01_bad.html"' in good
    assert re.findall(r"<script[^>]+src=", bad) == []  # readable without the web
    assert len(re.findall(r"<script[^>]+src=", good)) == 1  # MathJax, for the formula
    assert '<a href="01_bad.html">Bad &amp; wrong</a><br>It divides by zero.' in index
    assert '<td class="failed">failed</td>' in index
    assert nbformat.read(out / "02_good.ipynb", as_version=4).cells[1].execution_count == 1
    assert [path.read_bytes() for path in sorted(tmp_path.glob("*.ipynb"))] == before


@pytest.mark.slow
def test_lecture_stores_reproducible_outputs_and_no_path(tmp_path):
    good, leak = tmp_path / "01_good.ipynb", tmp_path / "02_leak.ipynb"
    notebook(good, "# Good", "print(1)\n2")
    notebook(leak, "# Leak", f"print({str(ROOT)!r} + '/data')")
    leaking = leak.read_bytes()
    first = lecture(tmp_path, "--store")
    assert first.returncode == 1, first.stderr
    assert f"not stored: cell 2 shows the path {ROOT}/data" in first.stdout
    assert leak.read_bytes() == leaking
    stored = good.read_bytes()
    assert lecture(tmp_path, "--store", "01").returncode == 0
    assert good.read_bytes() == stored
    written = nbformat.reads(stored.decode(), as_version=4)
    assert [output.output_type for output in written.cells[1].outputs] == ["stream", "execute_result"]
    assert written.metadata.language_info == {"name": "python"}


def test_a_stored_output_does_not_say_that_something_was_built(tmp_path):
    """A run that finds the extension built stores the same."""
    source = (ROOT / "kernels" / "dispatch" / "build.py").read_text()
    for statement in ('print(f"Building the extension {name}, once …", file=sys.stderr', 'print(f"Built {name} in {'):
        assert statement in source
    text = "Building the extension core, once …\nBuilt core in 9.7 s\n"
    of_build = nbformat.v4.new_output("stream", name="stderr", text=text)
    others = [nbformat.v4.new_output("stream", name="stderr", text="Built on sand\n"),
              nbformat.v4.new_output("stream", name="stdout", text="1\n")]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1", outputs=[others[0], of_build, others[1]])])
    path = tmp_path / "01_a.ipynb"
    assert command.store(command.Run("01_a", book, 1.0, ""), path) == ""
    assert nbformat.read(path, as_version=4).cells[0].outputs == others


@pytest.mark.slow
def test_two_run_at_once(tmp_path):
    """Each waits for the other's file."""
    for mine, other in (("01_a", "02_b"), ("02_b", "01_a")):
        code = f"""import time, pathlib
pathlib.Path("{mine}.here").touch()
deadline = time.monotonic() + 300
while not pathlib.Path("{other}.here").exists():
    assert time.monotonic() < deadline
    time.sleep(0.02)"""
        notebook(tmp_path / f"{mine}.ipynb", "# Waits", code)
    done = lecture(tmp_path, "--at-once", "2")
    assert done.returncode == 0, done.stdout
    assert re.search(r"^01_a +\d+\.\d  ok\n02_b +\d+\.\d  ok$", done.stdout, flags=re.M)


@pytest.mark.slow
@pytest.mark.parametrize("when", ["starting", "running"])
def test_ctrl_c_stops_the_lecture_and_its_kernels(tmp_path, when):
    names = ["01_slow", "02_slow"]
    for name in names:
        code = f"open({str(tmp_path / name)!r}, 'w').close()\nimport time\ntime.sleep(600)"
        notebook(tmp_path / f"{name}.ipynb", "# Slow", code)
    command = [sys.executable, SCRIPT, "--notebooks", tmp_path, "--out", tmp_path / "out", "--at-once", "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        lines = {process.stdout.readline(), process.stdout.readline()}
        assert lines == {"[1/2] 01_slow ...\n", "[2/2] 02_slow ...\n"}
        deadline = time.monotonic() + 300
        children = psutil.Process(process.pid).children

        def reached():
            return children() if when == "starting" else all((tmp_path / name).exists() for name in names)

        while not reached() and time.monotonic() < deadline:
            time.sleep(0.02)
        kernels = children()
        process.send_signal(signal.SIGINT)
        try:
            _, stderr = process.communicate(timeout=300)
        finally:
            process.kill()
    assert process.returncode == 130
    assert stderr.strip().endswith("stopped in 01_slow, 02_slow")
    assert kernels
    assert not [kernel for kernel in kernels if kernel.is_running()]


def test_lecture_names_the_notebooks_it_has(tmp_path):
    notebook(tmp_path / "01_good.ipynb", "# Good")
    done = lecture(tmp_path, "07")
    assert done.returncode == 2
    assert "no notebook 07" in done.stderr
    assert "01_good" in done.stderr


def test_a_page_that_cannot_be_made_loses_no_notebook(tmp_path, monkeypatch, capsys):
    def render(run, folder):
        raise ValueError("there is no template")

    monkeypatch.setattr(command, "render", render)
    command.write(command.Run("01_a", nbformat.v4.new_notebook(), 1.0, ""), tmp_path, tmp_path)
    assert (tmp_path / "01_a.ipynb").exists()
    assert capsys.readouterr().out == "  no page: there is no template\n"


def test_what_cells_measured_is_kept_of_a_run_that_ended_well(tmp_path, monkeypatch, capsys):
    from kernels.measure import records

    saved = []
    monkeypatch.setattr(records, "save", lambda record: saved.append(record) or "saved it")
    (tmp_path / "h200").mkdir()
    (tmp_path / "h200" / "lecture_15.json").write_text('{"op": "lecture_15"}')
    runs = [command.Run(name, None, 1.0, error) for name, error in (("15_a", ""), ("15_a", "bad"), ("16_a", ""))]
    assert [command.keep(run, tmp_path) for run in runs] == ["", "it failed", ""]
    assert saved == [{"op": "lecture_15"}]
    assert capsys.readouterr().out == "  saved it\n  measured nothing\n"
    monkeypatch.setattr(command, "HAS_GPU", False)
    notebook(tmp_path / "15_a.ipynb", "# A")
    with pytest.raises(SystemExit, match="2"):
        command.main(["--record", "--notebooks", str(tmp_path), "--out", str(tmp_path / "out")])
    assert "--record: there is no NVIDIA GPU here" in capsys.readouterr().err
