"""The package fused_kernels: kernels/ under another name, as pip installs it, and what of it a process notices."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import pytest

import kernels
from kernels import runtime
from kernels.check import fresh
from kernels.dispatch import cubin_files
from kernels.runtime import KERNELS

ROOT = KERNELS.parent
HATCHLING = importlib.util.find_spec("hatchling")
LEFT_OUT = re.compile(r"test_.*|conftest\.py|CMakeLists\.txt|.*\.md|.*\.pyc")

# What an import could change of a process, and what it did.
STATE = """
import os, signal, sys, threading, warnings, torch
def state():
    return [dict(os.environ), [*sys.meta_path], [*sys.path], [*sys.path_hooks], torch.get_num_threads(), sys.excepthook,
            threading.active_count(), [*map(repr, warnings.filters)], os.getcwd(), torch.get_float32_matmul_precision(),
            [signal.getsignal(number) for number in signal.valid_signals()], torch.get_default_dtype(),
            torch.get_rng_state().tolist(), torch.is_grad_enabled(), torch.cuda.is_initialized()]
before = state()
import fused_kernels
print(before == state(), {"triton", "torch._dynamo", "numpy.testing"} & {*sys.modules} or "light")
"""
# The two names of it in one process, in either order.
BOTH = """
import sys
before = [*sys.meta_path]
import {first}
between = [*sys.meta_path]
try:
    import {second}
except ImportError as error:
    print(error, between == sys.meta_path)
"""


def example() -> str:
    """The lines of kernels/README.md for a program elsewhere."""
    (lines,) = re.findall(r"```python\n(import torch\n.*?from fused_kernels import .*?)```",
                          (KERNELS / "README.md").read_text(), re.DOTALL)
    return lines


@pytest.fixture(scope="module")
def copied(tmp_path_factory):
    """A folder in which kernels/ lies as fused_kernels/, as pip puts it."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(KERNELS, folder / "fused_kernels", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def with_copy(code: str, copied: Path) -> list[str]:
    hidden = ("TRITON_INTERPRET", "XDG_CACHE_HOME", "FUSED_KERNELS_CACHE")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    ended = fresh.run(f"import sys; sys.path.insert(0, {str(copied)!r})\n{code}", environment=environment)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()


def test_importing_it_changes_nothing_in_the_process(copied):
    # Not installed, the copy tells importlib.metadata of its backend: the entry point of a wheel is stood in for.
    stand_in = "import importlib.metadata as m\nm.distribution = lambda name: type('D', (), {'entry_points': [" \
        "type('E', (), {'value': 'fused_kernels.compiler:backend'})]})()\n"
    assert with_copy(f"{stand_in}{STATE}", copied) == ["True light"]


def test_its_cache_is_the_users_where_it_is_no_checkout(copied):
    code = "from fused_kernels import runtime; print(runtime.PACKAGE, runtime.CHECKOUT, runtime.CACHE)"
    cache = Path.home() / ".cache" / "fused_kernels"
    assert with_copy(code, copied) == [f"fused_kernels None {cache}"]
    assert runtime.CHECKOUT == ROOT


def test_its_commands_speak_of_where_it_is(copied):
    """The doctor asks the Python that runs it, and no command or file of the repository is named."""
    environment = {"PYTHONPATH": str(copied), "PATH": os.environ["PATH"]}
    doctor = run(sys.executable, "-W", "error", "-m", "fused_kernels.doctor", env=environment, cwd=copied)
    assert re.search(rf"^torch +{re.escape(version('torch'))}$", doctor, flags=re.M)
    assert not re.search("make lecture|requirements.txt|Makefile|CMake|record|are interpreted|pinned", doctor)
    usage = run(sys.executable, "-m", "fused_kernels.cubin", "--help", env=environment, cwd=copied)
    assert usage.startswith("usage: python -m fused_kernels.cubin ")
    assert "python -m kernels" not in usage


def test_the_cache_is_where_a_variable_says(monkeypatch, tmp_path):
    monkeypatch.delenv("FUSED_KERNELS_CACHE", raising=False)
    assert runtime._cache() == ROOT / "build"
    monkeypatch.setattr(runtime, "CHECKOUT", None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert runtime._cache() == tmp_path / "xdg" / "fused_kernels"
    monkeypatch.setenv("FUSED_KERNELS_CACHE", str(tmp_path / "mine"))
    assert runtime._cache() == tmp_path / "mine"


def test_a_cache_that_cannot_be_written_names_the_variable(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RuntimeError, match=r"file/cubins: .* \(Not a directory\): set FUSED_KERNELS_CACHE to another"):
        cubin_files.put(tmp_path / "file" / "cubins" / "a.cubin", b"")


@pytest.mark.parametrize(("first", "second"), [("kernels", "fused_kernels"), ("fused_kernels", "kernels")])
def test_a_process_has_it_once(copied, first, second):
    code = f"sys.path.append({str(ROOT)!r})\n{BOTH.format(first=first, second=second)}"
    message = f"{second} is {first} by another name, and a process can have its ops once: import only one True"
    assert with_copy(code, copied) == [message]


@pytest.mark.parametrize(("first", "second"), [("kernels", "fused_kernels"), ("fused_kernels", "kernels")])
def test_in_a_checkout_both_names_are_one_package(first, second):
    """Whichever comes first, and modules that nobody has imported yet are the same, too."""
    code = f"""
import sys; sys.path[:0] = [{str(ROOT)!r}, {str(KERNELS / "editable")!r}]
import {first} as first
import {second} as second, {second}.compiler.view as view, {second}.cubin
from importlib import import_module
from importlib.util import find_spec
print(first is second, second.add_relu is first.add_relu, import_module("{first}.compiler.view") is view)
print(first.__name__, view.__spec__.name, find_spec("{second}.nowhere"), second.__version__)
print(first.compiler.registration.is_installed() or "the ops are there once", first.runtime.CHECKOUT)
"""
    ended = fresh.run(code)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == [
        "True True True", f"{first} {first}.compiler.view None {kernels.__version__}", f"the ops are there once {ROOT}"
    ]


def test_the_description_leads_nowhere_that_an_index_does_not_have():
    """Nor does it name the package as the repository does."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    text = (ROOT / project["readme"]).read_text()
    links = re.findall(r"\]\(([^)]*)\)|<((?:[\w.-]+/)+[\w.-]*)>|^\[[^]]*\]: *(\S+)", text, re.M)
    assert [link for link in map("".join, links) if not link.startswith("https://")] == []
    assert not re.search(r"\bkernels\.|from kernels|import kernels\b|python -m kernels", text)
    (code,) = re.findall(r"```python\n(.*?)```", text, re.S)
    compile(code, "DESCRIPTION.md", "exec")


def test_another_package_of_the_name_is_no_copy(monkeypatch):
    assert runtime.other_copy() == ""
    monkeypatch.setitem(sys.modules, "other.dispatch.op", ModuleType("op"))
    assert runtime.other_copy() == ""
    monkeypatch.setattr(sys.modules["other.dispatch.op"], "NAMESPACE", "fused_kernels", raising=False)
    assert runtime.other_copy() == "other"


def test_the_example_is_short():
    assert len([line for line in example().splitlines() if line.strip()]) <= 30


# ------------------------------------------------------------------------------------------------------------ the wheel


def run(*command: str | Path, **options) -> str:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(built_once) -> Path:
    def build(folder: Path) -> None:
        folder.mkdir()
        run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", folder, ROOT)

    (path,) = built_once("wheel", build).glob("fused_kernels-*.whl")
    return path


needs_hatchling = pytest.mark.skipif(not HATCHLING, reason="hatchling is missing, which builds the wheel")


@pytest.mark.slow
@needs_hatchling
def test_the_wheel_holds_what_runs_and_no_tests(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    about = "-".join(wheel.name.split("-")[:2])
    assert {name.split("/")[0] for name in names} == {"fused_kernels", f"{about}.dist-info"}
    held = {name.removeprefix("fused_kernels/") for name in names if name.startswith("fused_kernels/")}
    assert not [name for name in held if LEFT_OUT.fullmatch(Path(name).name)]
    files = [path.relative_to(KERNELS).as_posix() for path in KERNELS.rglob("*") if path.is_file()]
    assert {name for name in files if not LEFT_OUT.fullmatch(Path(name).name)} - held == {
        name for name in files
        if re.fullmatch(r"ops/\w+/bench\.py|cubin/bench\w*\.\w+|measure/(?!__)\w+\.py|check/contract/\w+\.py"
                        r"|gpu_run/\w+\.py|environment\.py|editable/fused_kernels/__init__\.py", name)
    }


@pytest.fixture
def venv(tmp_path):
    """(its Python, its folder of packages, pip for it): an environment that has this one's packages and nothing else of
    this repository. What is installed into it has to go again."""
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    others = [path for path in sys.path if "site-packages" in path or "dist-packages" in path]
    (site / "others.pth").write_text("\n".join(dict.fromkeys([*others, sysconfig.get_path("purelib")])))

    def content():
        return {path for path in (tmp_path / "venv").rglob("*") if "__pycache__" not in path.parts}

    before, pip = content(), [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python]
    yield python, site, pip
    run(*pip, "uninstall", "-q", "-y", "fused-kernels")
    assert content() == before


@pytest.fixture
def elsewhere(tmp_path):
    """A folder for a program, with another package of the name kernels."""
    folder = tmp_path / "elsewhere"
    (folder / "kernels").mkdir(parents=True)
    (folder / "kernels" / "__init__.py").write_text("NAME = 'somebody else'\n")
    return folder


@pytest.mark.slow
@needs_hatchling
def test_installed_with_e_it_is_the_checkouts(venv, elsewhere):
    """From any folder, and with another package of the name kernels there."""
    python, _, pip = venv
    tracked = run("git", "-C", ROOT, "status", "--porcelain")
    run(*pip, "install", "-q", "--no-deps", "--no-build-isolation", "-e", ROOT)
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "TRITON_INTERPRET")}
    code = """
import os, torch
lines = torch.compile(torch.nn.Linear(2, 2), backend="fused_kernels")
from torch._dynamo import lookup_backend
print(lookup_backend("fused_kernels").__module__)
import fused_kernels, kernels
from importlib.metadata import version
print(fused_kernels.__file__, version("fused-kernels") == fused_kernels.__version__)
print(os.environ.get("TRITON_INTERPRET"), """
    lines = run(python, "-c", f"{code} kernels.NAME)", cwd=elsewhere, env=environment).splitlines()
    assert lines == ["fused_kernels.compiler", f"{KERNELS / '__init__.py'} True", "None somebody else"]
    lines = run(python, "-c", f"{code} kernels is fused_kernels)", cwd=ROOT, env=environment).splitlines()
    assert lines == ["fused_kernels.compiler", f"{KERNELS / '__init__.py'} True", "None True"]
    doctor = run(python, "-W", "error", "-m", "fused_kernels.doctor", cwd=elsewhere, env=environment)
    assert re.search(rf"^torch +{re.escape(version('torch'))}$", doctor, flags=re.M)
    assert run("git", "-C", ROOT, "status", "--porcelain") == tracked


@pytest.mark.slow
@needs_hatchling
def test_installed_it_runs_elsewhere_and_leaves_no_trace(wheel, venv, elsewhere):
    """In an environment that has this one's packages, and nothing else of this repository."""
    python, site, pip = venv
    run(*pip, "install", "-q", "--no-deps", wheel)
    (elsewhere / "program.py").write_text(example())
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "TRITON_INTERPRET")}
    environment["FUSED_KERNELS_CACHE"] = str(runtime.CACHE)  # what the other tests have built is of the same sources
    there = {"cwd": elsewhere, "env": environment}
    assert float(run(python, "program.py", **there).split()[1]) < 0.1
    every = """
import importlib, importlib.metadata, pkgutil, runpy, kernels
print(kernels.NAME, fused_kernels.__file__)
assert fused_kernels.__version__ == importlib.metadata.version("fused-kernels")
for module in pkgutil.walk_packages(fused_kernels.__path__, "fused_kernels."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
from torch._dynamo import lookup_backend
print(lookup_backend("fused_kernels").__module__)
for command in ("measure", "inductor", "library"):
    try:
        runpy.run_module(f"fused_kernels.{command}", run_name="__main__")
    except SystemExit as end:
        print(end)
"""
    lines = run(python, "-c", f"{STATE}{every}", **there).splitlines()
    first = ["True light", f"somebody else {site / 'fused_kernels' / '__init__.py'}", "fused_kernels.compiler"]
    assert lines[:3] == first
    assert len(lines) == 6
    assert all("in the repository alone" in line for line in lines[3:])
    bench = subprocess.run(
        [str(python), "-m", "fused_kernels.cubin", "bench"], capture_output=True, text=True, check=False, **there
    )
    assert (bench.returncode, bench.stdout) == (1, "")
    assert bench.stderr == "error: python -m fused_kernels.cubin bench: measuring is in the repository alone\n"
    # A checkout that is imported beside it has its own backend.
    code = "import kernels\nfrom torch._dynamo import lookup_backend\nprint(lookup_backend('fused_kernels').__module__)"
    assert run(python, "-c", code, cwd=ROOT, env=environment).strip() == "kernels.compiler"
