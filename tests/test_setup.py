"""The set-up: doctor, the Makefile, the lecture's runner, what importing does, and the repository's shape."""

import ast
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from importlib.metadata import packages_distributions
from pathlib import Path

import nbformat
import psutil
import pytest

from kernels import doctor, runtime

ROOT = Path(__file__).resolve().parent.parent
LINUX = ("Linux", "x86_64")
TOP_LEVEL = {
    "README.md", "requirements.txt", "Makefile", "pyproject.toml", "LICENSE",
    "notebooks", "model", "kernels", "data", "traces", "tests",
}  # fmt: skip


def run(*command, **kwargs):
    return subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=60, check=False, **kwargs)


def files(*patterns):
    """The repository's own files: tracked, or new and not ignored."""
    listed = run("git", "ls-files", "-co", "--exclude-standard", "--", *patterns, cwd=ROOT)
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [name for name in listed.stdout.splitlines() if (ROOT / name).exists()]


def in_fresh_python(code, **env):
    """What `code` prints as JSON in a new process with this environment (None removes a variable)."""
    environ = os.environ | {"PYTHONPATH": str(ROOT)} | {k: v for k, v in env.items() if v is not None}
    for name in [name for name, value in env.items() if value is None]:
        environ.pop(name, None)
    done = run(sys.executable, "-c", f"import json, os, sys\n{code}", env=environ, cwd="/")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def failing(**given):
    """{name: complaint} of the required checks that fail under these conditions."""
    complete = {"version": (3, 12, 1), "system": LINUX, "disk": 100.0, "ensurepip": "pip 24", **given}
    return {c.name: doctor.complaints([c]) for c in doctor.checks(**complete) if c.required and not c.ok}


@pytest.fixture
def no_packages(monkeypatch, tmp_path):
    """A machine on which nothing has been installed yet."""
    monkeypatch.setattr(doctor, "VENV_PYTHON", tmp_path / "python")
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)


@pytest.mark.usefixtures("no_packages")
@pytest.mark.parametrize(
    ("given", "name", "says"),
    [
        ({"version": (3, 10, 4)}, "Python", ["3.10.4, too old", "python3.11", "PYTHON3=python3.11"]),
        ({"version": (3, 9)}, "Python", ["3.9, too old"]),
        ({"ensurepip": ""}, "venv", ["missing", "ensurepip", "apt install python3-venv"]),
        ({"include": "/nowhere"}, "Python headers", ["missing", "torch.compile", "apt install python3-dev"]),
        ({"disk": 1.5}, "free disk", ["1.5 GB", f"{doctor.DISK_CUDA} GB needed", "PIP_EXTRA_INDEX_URL to"]),
        ({"system": ("Darwin", "arm64")}, "platform", ["Darwin arm64", "x86-64", "WSL 2"]),
    ],
)
def test_doctor_names_what_is_missing_what_fails_and_the_package(given, name, says):
    assert failing() == {}
    complaints = failing(**given)
    assert list(complaints) == [name]
    assert all(part in complaints[name] for part in says)


def test_doctor_misses_a_compiler_that_is_not_in_path(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "apt install g++" in failing()["g++"]


def test_doctor_asks_for_less_disk_for_the_cpu_build(no_packages, monkeypatch):
    assert "free disk" in failing(disk=doctor.DISK_CPU + 1)
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "https://index.example/whl/cpu")
    assert failing(disk=doctor.DISK_CPU + 1) == {}


def test_doctor_asks_nothing_of_the_disk_once_the_packages_are_there():
    assert failing(python=sys.executable, disk=0.0, ensurepip="") == {}
    assert "torch" in failing(python="/nowhere/python")


def test_doctor_as_a_script(tmp_path):
    script = ROOT / "kernels" / "doctor.py"
    full = run(sys.executable, script, "--python", sys.executable)
    assert full.returncode == 0, full.stderr
    names = ("Python", "venv", "make", "g++", "torch", "triton", "GPU", "driver", "nvcc", "cmake", "ninja")
    assert all(re.search(rf"^{re.escape(name)} +\S", full.stdout, flags=re.M) for name in names)
    bare = run(sys.executable, script, "--python", sys.executable, "--require", env={"PATH": str(tmp_path)})
    assert bare.returncode == 1
    assert bare.stderr.startswith("g++: missing\n")
    assert bare.stdout == ""


def test_doctor_is_readable_for_an_old_python():
    source = (ROOT / "kernels" / "doctor.py").read_text()
    ast.parse(source, feature_version=(3, 8))
    imported = {name for name, _ in top_level_imports(source)}
    assert imported <= set(sys.stdlib_module_names)


@pytest.mark.parametrize("hidden", ["", "-1"])
def test_a_hidden_gpu_is_no_gpu(monkeypatch, hidden):
    monkeypatch.setattr(doctor, "has_nvidia_device", lambda: True)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert runtime.has_nvidia_driver()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    assert not runtime.has_nvidia_driver()
    assert runtime.device().type == "cpu"


def test_report_says_what_runs_where_and_names_no_host(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    text = runtime.report()
    assert set(runtime.versions()) == {"Python", "torch", "triton", "CUDA", "GPU", "driver", "platform"}
    assert all(value in text for value in runtime.versions().values())
    assert "interpreted" in text
    assert ("on the GPU" in text) == (runtime.device().type == "cuda")
    monkeypatch.delenv("TRITON_INTERPRET")
    assert "compiled" in runtime.report()


LOADED = "print(json.dumps([*({'torch._dynamo', 'triton'} & {*sys.modules}), os.environ.get('TRITON_INTERPRET')]))"


@pytest.mark.parametrize(
    ("driver", "code", "environment", "expected"),
    [
        (False, "", None, "1"),
        (True, "", None, None),
        (False, "", "0", "0"),  # the user's word stands
        (False, "import triton", None, None),
    ],
)
def test_importing_kernels_chooses_the_interpreter_only_without_a_driver(driver, code, environment, expected):
    # `import kernels.doctor` would import kernels first, so the doctor is loaded alone, under its name.
    fake = (
        "import importlib.util as u\n"
        f"spec = u.spec_from_file_location('kernels.doctor', {str(ROOT / 'kernels' / 'doctor.py')!r})\n"
        "d = sys.modules['kernels.doctor'] = u.module_from_spec(spec); spec.loader.exec_module(d)\n"
        f"d.has_nvidia_device = lambda: {driver}\n{code}\n"
    )
    loaded = in_fresh_python(f"{fake}import kernels\n{LOADED}", TRITON_INTERPRET=environment, CUDA_VISIBLE_DEVICES=None)
    assert loaded[-1] == expected
    assert ("triton" in loaded) == bool(code)


def test_importing_is_light_and_makes_no_cuda_call():
    assert not {"torch._dynamo", "triton"} & set(in_fresh_python(f"import kernels, kernels.runtime\n{LOADED}"))
    initialized = "import torch\nprint(json.dumps(torch.cuda.is_initialized()))"
    assert in_fresh_python(f"import data, data.criteo, model, kernels\n{initialized}") is False


def notebook(path, *cells):
    """A notebook of cells; one that starts with '#' and a space is Markdown."""
    v4 = nbformat.v4
    make = [v4.new_markdown_cell(c) if c.startswith("# ") else v4.new_code_cell(c) for c in cells]
    nbformat.write(v4.new_notebook(cells=make), path)


def lecture(folder, *options):
    script = ROOT / "notebooks" / "lecture.py"
    return run(sys.executable, script, "--notebooks", folder, "--out", folder / "out", *options, cwd="/")


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
    done = lecture(tmp_path)
    assert done.returncode == 1, done.stderr
    progress = [line for line in done.stdout.splitlines() if line.startswith("[")]
    assert [re.sub(r"[\d.]+ s", "_ s", line) for line in progress] == [
        "[1/2] 01_bad ...", "[1/2] 01_bad failed, _ s", "[2/2] 02_good ...", "[2/2] 02_good ok, _ s",
    ]  # fmt: skip
    assert "    ZeroDivisionError: division by zero" in done.stdout
    assert re.search(r"^01_bad +\d+\.\d  failed\n02_good +\d+\.\d  ok$", done.stdout, flags=re.M)
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


@pytest.mark.parametrize("when", ["starting", "running"])
def test_ctrl_c_stops_the_lecture_and_its_kernel(tmp_path, when):
    started = tmp_path / "started"
    notebook(tmp_path / "01_slow.ipynb", "# Slow", f"open({str(started)!r}, 'w').close()\nimport time\ntime.sleep(600)")
    script = ROOT / "notebooks" / "lecture.py"
    command = [sys.executable, script, "--notebooks", tmp_path, "--out", tmp_path / "out"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "[1/1] 01_slow ...\n"
        deadline = time.monotonic() + 40
        children = psutil.Process(process.pid).children
        while not (children() if when == "starting" else started.exists()) and time.monotonic() < deadline:
            time.sleep(0.02)
        kernels = children()
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=30)
    assert process.returncode == 130
    assert stderr.strip().endswith("stopped in 01_slow")
    assert kernels
    assert not [kernel for kernel in kernels if kernel.is_running()]


def test_lecture_names_the_notebooks_it_has(tmp_path):
    notebook(tmp_path / "01_good.ipynb", "# Good")
    done = lecture(tmp_path, "07")
    assert done.returncode == 2
    assert "no notebook 07" in done.stderr
    assert "01_good" in done.stderr


def test_make_help_is_the_default_and_lists_the_targets():
    make = shutil.which("make")
    done = run(make, "-C", ROOT, "--no-print-directory")
    assert done.returncode == 0, done.stderr
    assert done.stdout == run(make, "-C", ROOT, "--no-print-directory", "help").stdout
    listed = re.findall(r"^make (\w+) +\S", done.stdout, flags=re.M)
    assert {"help", "lecture", "jupyter", "test", "data", "train", "doctor", "clean"} <= set(listed)


@pytest.mark.parametrize("target", ["jupyter", "tensorboard"])
def test_servers_listen_on_this_machine_only(target):
    plan = run("make", "-C", ROOT, "-n", target).stdout
    server = [line for line in plan.splitlines() if re.search(r"-m (jupyterlab|tensorboard)", line)]
    assert len(server) == 1
    assert re.search(r"--(ip|host)[= ]127\.0\.0\.1\b", server[0])
    assert "0.0.0.0" not in plan


def test_a_python_given_on_the_command_line_makes_no_venv():
    plan = run("make", "-C", ROOT, "-n", "lecture", f"PYTHON={sys.executable}").stdout
    assert "pip install" not in plan
    assert "-m venv" not in plan
    assert f"{sys.executable} notebooks/lecture.py" in plan
    assert "pip install" in run("make", "-C", ROOT, "-n", "lecture", env=os.environ | {"PYTHON": "python3"}).stdout


def test_a_python_given_on_the_command_line_keeps_its_path():
    """Packages may lie where only PYTHONPATH says so."""
    given = ["make", "-C", ROOT, "-np", "lecture", "PYTHON=python3"]
    for plan in (run(*given, env=os.environ | {"PYTHONPATH": "/a:/b"}), run(*given, "PYTHONPATH=/a:/b")):
        assert re.search(f"^(override )?PYTHONPATH := {re.escape(str(ROOT))}:/a:/b$", plan.stdout, re.M)


def test_the_top_level_is_the_fixed_one():
    top = {name.split("/")[0] for name in files()}
    assert {name for name in top if not name.startswith(".")} <= TOP_LEVEL
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def top_level_imports(source):
    """(top-level module, line) of each absolute import."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((alias.name.split(".")[0], node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module.split(".")[0], node.lineno


def test_requirements_are_pinned_explained_and_complete():
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    assert [line for line in lines if not re.fullmatch(r"[\w.-]+==[\w.]+  # \S.*", line)] == []
    listed = {line.split("==")[0].lower() for line in lines}
    known = set(sys.stdlib_module_names) | {"data", "kernels", "model"}
    # What jupyter brings along.
    known |= {"nbclient", "nbconvert", "nbformat", "ipykernel", "jupyter_client", "traitlets", "psutil"}
    distributions = packages_distributions()
    unlisted = [
        f"{name}:{line} {module}"
        for name in files("*.py")
        for module, line in top_level_imports((ROOT / name).read_text())
        if module not in known
        and not (ROOT / name).with_name(f"{module}.py").exists()
        and not {d.lower() for d in distributions.get(module, [module])} & listed
    ]
    assert unlisted == []
