"""The set-up: doctor, the Makefile, what importing does, and the repository's shape."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from kernels import doctor, machine, runtime
from kernels.check import fresh

ROOT = Path(__file__).resolve().parent.parent
LINUX = ("Linux", "x86_64")
TOP_LEVEL = {
    "README.md", "requirements.txt", "Makefile", "pyproject.toml", "LICENSE", "CITATION.cff", "CONTRIBUTING.md",
    "notebooks", "model", "kernels", "data", "traces", "tests",
}


@pytest.fixture(autouse=True)
def outside_of_make(monkeypatch):
    """make hands its flags and what was given on its command line on to the tests that it runs, and they to theirs."""
    for name in ("MAKEFLAGS", "MFLAGS", "MAKEOVERRIDES", "MAKELEVEL", "PYTHON"):
        monkeypatch.delenv(name, raising=False)


def run(*command, timeout=300, **kwargs):
    return subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=timeout, check=False, **kwargs)


def files(*patterns):
    """The repository's own files: tracked, or new and not ignored."""
    listed = run("git", "ls-files", "-co", "--exclude-standard", "--", *patterns, cwd=ROOT)
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [name for name in listed.stdout.splitlines() if (ROOT / name).exists()]


def in_fresh_python(code, **env):
    """What `code` prints as JSON in a process that has imported torch, with this environment (None: no variable)."""
    environment = {name: value for name, value in (os.environ | env).items() if value is not None}
    done = fresh.run(f"import json, os, sys\nos.chdir('/')\n{code}", environment=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def failing(**conditions):
    """{name: complaint} of the required checks that fail under these conditions."""
    complete = {"version": (3, 12, 1), "system": LINUX, "disk": 100.0, "ensurepip": "pip 24", **conditions}
    return {c.name: doctor.complaints([c]) for c in doctor.checks(**complete) if c.required and not c.ok}


@pytest.fixture
def no_packages(monkeypatch, tmp_path):
    """A machine on which nothing has been installed yet."""
    monkeypatch.setattr(doctor, "VENV_PYTHON", tmp_path / "python")
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)


@pytest.mark.usefixtures("no_packages")
@pytest.mark.parametrize(
    ("conditions", "name", "says"),
    [
        ({"version": (3, 10, 4)}, "Python", ["3.10.4, too old", "python3.11", "PYTHON3=python3.11"]),
        ({"version": (3, 9)}, "Python", ["3.9, too old"]),
        ({"ensurepip": ""}, "venv", ["missing", "ensurepip", "apt install python3-venv"]),
        ({"include": "/nowhere"}, "Python headers", ["missing", "torch.compile", "apt install python3-dev"]),
        ({"disk": 1.5}, "free disk", ["1.5 GB", f"{doctor.DISK_CUDA} GB needed", "PIP_EXTRA_INDEX_URL to"]),
        ({"system": ("Darwin", "arm64")}, "platform", ["Darwin arm64", "x86-64", "WSL 2"]),
    ],
)
def test_doctor_names_what_is_missing_what_fails_and_the_package(conditions, name, says):
    assert failing() == {}
    complaints = failing(**conditions)
    assert list(complaints) == [name]
    assert all(part in complaints[name] for part in says)


def test_doctor_misses_a_compiler_that_is_not_in_path(monkeypatch, tmp_path):
    monkeypatch.delenv("CXX", raising=False)
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


def test_what_an_old_python_runs_is_readable_for_it():
    for name in ("doctor.py", "machine.py", "environment.py"):
        source = (ROOT / "kernels" / name).read_text()
        ast.parse(source, feature_version=(3, 8))
        imported = {name for name, _ in top_level_imports(source)}
        assert imported <= {*sys.stdlib_module_names, "machine"}


@pytest.mark.parametrize("hidden", ["", "-1"])
def test_a_hidden_gpu_is_no_gpu(monkeypatch, hidden):
    monkeypatch.setattr(machine, "has_nvidia_device", lambda: True)
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
    # `import kernels.machine` would import kernels first, so it is loaded alone, under its name.
    fake = (
        "import importlib.util as u\n"
        f"spec = u.spec_from_file_location('kernels.machine', {str(ROOT / 'kernels' / 'machine.py')!r})\n"
        "d = sys.modules['kernels.machine'] = u.module_from_spec(spec); spec.loader.exec_module(d)\n"
        f"d.has_nvidia_device = lambda: {driver}\n{code}\n"
    )
    loaded = in_fresh_python(f"{fake}import kernels\n{LOADED}", TRITON_INTERPRET=environment, CUDA_VISIBLE_DEVICES=None)
    assert loaded[-1] == expected
    assert ("triton" in loaded) == bool(code)


def test_importing_is_light_and_makes_no_cuda_call():
    assert not {"torch._dynamo", "triton"} & set(in_fresh_python(f"import kernels, kernels.runtime\n{LOADED}"))
    initialized = "import torch\nprint(json.dumps(torch.cuda.is_initialized()))"
    assert in_fresh_python(f"import data, data.criteo, model, kernels\n{initialized}") is False


# .venv


def write_wheel(folder, name, version):
    """A package of one module and one command, with nothing to download."""
    about = f"{name}-{version}.dist-info"
    parts = {
        f"{name}.py": "def main():\n    print('it runs')\n",
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: a test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{about}/entry_points.txt": f"[console_scripts]\n{name} = {name}:main\n",
        f"{about}/RECORD": "",
    }
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for path, text in parts.items():
            archive.writestr(path, text)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A folder with what `make venv` needs, and an index of one package, which its requirements.txt pins."""
    folder = tmp_path_factory.mktemp("a folder") / "checkout"
    (folder / "kernels").mkdir(parents=True)
    for name in ("kernels/environment.py", "kernels/doctor.py", "kernels/machine.py", "Makefile"):
        shutil.copy(ROOT / name, folder / name)
    (folder / "wheels").mkdir()
    write_wheel(folder / "wheels", "tiny", "1.0")
    (folder / "requirements.txt").write_text("tiny==1.0.0  # the tests\n")
    return folder


def make_venv(checkout, **variables):
    """(exit status, what it said) of environment.py, which pip finds the package for by a variable of its own."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHON"))}
    ours |= {"PIP_FIND_LINKS": "wheels", "PIP_NO_INDEX": "1", **variables}
    done = run(sys.executable, "kernels/environment.py", cwd=checkout, env=ours, timeout=600)
    return done.returncode, done.stdout + done.stderr


def tiny_runs(checkout):
    assert run(checkout / ".venv" / "bin" / "tiny").stdout == "it runs\n"
    (path,) = (checkout / ".venv").glob("lib/*/site-packages/tiny.py")
    return path


@pytest.mark.slow
def test_pips_own_settings_neither_send_the_packages_elsewhere_nor_keep_them_away(checkout, tmp_path):
    """Those that lead to packages count: a folder of wheels and no index here, of which one is said in a file."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    shutil.copy(checkout / "wheels" / "tiny-1.0-py3-none-any.whl", elsewhere / "tiny.zip")
    with zipfile.ZipFile(elsewhere / "tiny.zip") as archive:
        archive.extractall(elsewhere)  # a package that PYTHONPATH shows is "already satisfied"
    lines = "[global]\nuser = true\nquiet = 3\nno-index = true\n[install]\ntarget = /nowhere\nfind-links = wheels\n"
    (tmp_path / "pip.conf").write_text(lines)
    hostile = {
        "PIP_CONFIG_FILE": tmp_path / "pip.conf", "PIP_NO_INDEX": "", "PIP_FIND_LINKS": "wheels", "PIP_USER": "1",
        "PIP_TARGET": elsewhere, "PIP_PREFIX": elsewhere, "PIP_ROOT": elsewhere, "PIP_DRY_RUN": "1", "PIP_NO_DEPS": "1",
        "PIP_REQUIRE_VIRTUALENV": "1", "PIP_PYTHON": sys.executable, "PIP_VERSION": "1", "PIP_QUIET": "3",
        "PIP_REQUIREMENT": "none.txt", "PIP_ONLY_BINARY": ":none:", "PYTHONUSERBASE": elsewhere,
        "PYTHONPATH": elsewhere,
    }
    status, output = make_venv(checkout, **{name: str(value) for name, value in hostile.items()})
    assert status == 0, output
    assert "unpacking" in output
    tiny_runs(checkout)
    stamp = checkout / ".venv" / "requirements.txt"
    assert stamp.read_text() == (checkout / "requirements.txt").read_text()
    assert make_venv(checkout) == (0, "")  # it is complete

    # What pip does not bring is not taken for installed, whatever it says.
    never = "; python_version < '3'\n"
    (checkout / "requirements.txt").write_text(f"tiny==1.0\nsmall==2.0{never}none{never}")
    status, output = make_venv(checkout)
    assert status == 1
    assert "and .venv lacks small==2.0 (missing), none: remove" in output
    assert stamp.read_text() == "tiny==1.0.0  # the tests\n"
    (checkout / "requirements.txt").write_text("tiny==1.0.0  # the tests\n")


@pytest.mark.slow
@pytest.mark.parametrize("place", ["moved", "a place" + "/very" * 30 + "/far away", "moved back"])
def test_a_checkout_that_was_moved_is_mended(checkout, place):
    assert make_venv(checkout)[0] == 0
    there = checkout.parent / place
    there.parent.mkdir(parents=True, exist_ok=True)
    checkout.rename(there)
    try:
        assert run("sh", "-c", ".venv/bin/tiny", cwd=there).returncode
        assert make_venv(there) == (0, "The checkout was moved: pointing .venv to where it is now\n")
        tiny_runs(there)
        active = run("bash", "-c", ". .venv/bin/activate; command -v tiny", cwd=there).stdout.strip()
        assert active == str(there / ".venv" / "bin" / "tiny")
        assert make_venv(there) == (0, "")
    finally:
        there.rename(checkout)


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
    assert "environment.py" not in plan
    assert f"{sys.executable} notebooks/lecture.py" in plan
    plan = run("make", "-C", ROOT, "-n", "lecture", env=os.environ | {"PYTHON": "python3"}).stdout
    assert "kernels/environment.py" in plan


def test_a_python_given_on_the_command_line_keeps_its_path():
    """Packages may lie where only PYTHONPATH says so."""
    command = ["make", "-C", ROOT, "-np", "lecture", "PYTHON=python3"]
    path = re.escape(f"{ROOT}:{ROOT}/notebooks:{ROOT}/kernels/editable:/a:/b")
    for plan in (run(*command, env=os.environ | {"PYTHONPATH": "/a:/b"}), run(*command, "PYTHONPATH=/a:/b")):
        assert re.search(f"^(override )?PYTHONPATH := {path}$", plan.stdout, re.M)


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
    # What lies in the folders of pyproject.toml's pythonpath.
    known |= {path.stem for folder in ("tests", "notebooks") for path in (ROOT / folder).iterdir()}
    # What jupyter brings along.
    known |= {"nbclient", "nbconvert", "nbformat", "ipykernel", "jupyter_client", "traitlets", "psutil"}
    known |= {"jinja2", "mistune", "pygments"}
    distributions = packages_distributions()
    unlisted = [
        f"{name}:{line} {module}"
        for name in files("*.py")
        for module, line in top_level_imports((ROOT / name).read_text())
        if module not in known
        # A test that skips itself without a package does not require it.
        and f'pytest.importorskip("{module}")' not in (ROOT / name).read_text()
        and not any((ROOT / name).with_name(file).exists() for file in (f"{module}.py", module))
        and not {d.lower() for d in distributions.get(module, [module])} & listed
    ]
    assert unlisted == []
