"""The checkout's own environment, .venv: made, filled with what requirements.txt pins, mended where it has moved.

    python3 kernels/environment.py

`make venv` runs it. Standard library only. What is complete is left as it is: .venv/requirements.txt is a copy of the
requirements, written once each of them was found in .venv.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
REQUIREMENTS, STAMP = ROOT / "requirements.txt", VENV / "requirements.txt"
IMPORTED = (".", "notebooks", "kernels/editable")  # folders of the checkout from which its packages are imported
# The settings of pip by which it reaches packages. Others could put them elsewhere, or nowhere, with status 0.
SETTINGS = {
    "index-url", "extra-index-url", "find-links", "no-index", "trusted-host", "constraint", "proxy", "cert",
    "client-cert", "use-feature", "keyring-provider", "timeout", "default-timeout", "retries", "cache-dir",
    "no-cache-dir", "disable-pip-version-check",
}  # fmt: skip
# The first line of a script that pip has written, or, where the path is long or has a space, its first three.
SHEBANG = re.compile(
    rb"""#!(?P<python>[^\n]*/python[\d.]*)\n"""
    rb"""|#!/bin/sh\n'''exec' "?(?P<long>[^"\n]*/python[\d.]*)"? "\$0" "\$@"\n' '''\n"""
)
LONGEST_SHEBANG = 127
VERSIONS = """
import sys
from importlib.metadata import PackageNotFoundError, version
for name in sys.argv[1:]:
    try:
        print(name, version(name))
    except PackageNotFoundError:
        print(name, "missing")
"""


def plain(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without what would send Python or pip elsewhere."""
    return {name: value for name, value in environment.items() if not name.startswith(("PIP_", "PYTHON"))}


def run(*arguments: object, environment: Mapping[str, str] | None = None) -> str:
    """What .venv's Python prints; OSError or CalledProcessError if it cannot be called, or fails."""
    command = [PYTHON, "-I", *map(str, arguments)]
    environment = plain(os.environ) if environment is None else environment
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment).stdout


def works(code: str) -> bool:
    """Whether .venv's Python runs this."""
    command = [PYTHON, "-I", "-c", code]
    try:
        return not subprocess.run(command, stderr=subprocess.DEVNULL, env=plain(os.environ), check=False).returncode
    except OSError:
        return False


def pip_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """What pip is run with: of its files and variables SETTINGS alone, as variables."""
    clean = plain(environment)
    files = {"PIP_CONFIG_FILE": environment["PIP_CONFIG_FILE"]} if "PIP_CONFIG_FILE" in environment else {}
    # -vvv: or a file that says `quiet` makes it print nothing.
    listed = run("-m", "pip", "-vvv", "config", "list", environment=clean | files)
    options: dict[str, str] = {}
    for section in ("global", "install"):  # the second counts more, as it does for pip
        for name, value in re.findall(rf"^{section}\.([\w-]+)=('.*'|\".*\")$", listed, re.MULTILINE):
            options[name.replace("_", "-")] = ast.literal_eval(value)
    for name, value in environment.items():
        if name.startswith("PIP_") and value:  # pip passes over those without a value
            options[name.removeprefix("PIP_").lower().replace("_", "-")] = value
    kept = {f"PIP_{name.upper().replace('-', '_')}": value for name, value in options.items() if name in SETTINGS}
    return clean | kept | {"PIP_CONFIG_FILE": os.devnull}


def required() -> dict[str, str]:
    """The version of each package that requirements.txt names; "" where it pins none."""
    return dict(re.findall(r"^(\w[\w.-]*)(?:==([\w.!+-]+))?", REQUIREMENTS.read_text(), re.MULTILINE))


def not_installed() -> list[str]:
    """What is required and not in .venv: "name==version (what is there)"."""
    wanted = required()
    installed = dict(line.split() for line in run("-c", VERSIONS, *wanted).splitlines())

    def plainly(version: str) -> str:  # 2.13.0+cpu is a build of 2.13
        return re.sub(r"(\.0)+$", "", version.split("+")[0])

    return [
        f"{name}=={version} ({installed[name]})" if version else name for name, version in wanted.items()
        if installed[name] == "missing" or (version and plainly(version) != plainly(installed[name]))
    ]


def install() -> None:
    """pip install -r requirements.txt; of what pip says, what takes long is shown. Ends the process where pip fails."""
    command = [PYTHON, "-I", "-m", "pip", "install", "-r", REQUIREMENTS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=pip_environment(os.environ)) as process:
        for line in process.stdout:
            if re.match(r" *Downloading .* [MG]B\)", line):
                print(f"  {line.strip()}", flush=True)
            elif line.startswith("Installing collected"):
                print("  unpacking", flush=True)
    if process.returncode:
        sys.exit(process.returncode)


def moved() -> Iterator[tuple[Path, re.Match[bytes]]]:
    """The scripts in .venv/bin that call the Python of where the checkout was before."""
    for script in sorted((VENV / "bin").iterdir()):
        if script.is_symlink() or not script.is_file():
            continue
        with script.open("rb") as file:
            shebang = SHEBANG.match(file.read(2048))
        if shebang is None:
            continue
        python = Path(os.fsdecode(shebang["python"] or shebang["long"]))
        if not python.exists() or (python.parent.parent.name == VENV.name and not python.parent.samefile(VENV / "bin")):
            yield script, shebang


def mend(scripts: list[tuple[Path, re.Match[bytes]]]) -> None:
    """Make scripts and `activate` speak of where the checkout is now."""
    line = os.fsencode(f"#!{PYTHON}\n")
    if b" " in line or len(line) > LONGEST_SHEBANG:
        line = b"#!/bin/sh\n'''exec' \"" + os.fsencode(PYTHON) + b"\" \"$0\" \"$@\"\n' '''\n"
    for script, shebang in scripts:
        partial = script.with_name(f".{script.name}.partial")
        partial.write_bytes(line + script.read_bytes()[shebang.end() :])
        partial.chmod(script.stat().st_mode)
        partial.replace(script)
    run("-m", "venv", "--without-pip", VENV)


def write_paths() -> None:
    """Have .venv's Python import the checkout's packages, from anywhere."""
    site = Path(run("-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    text = "".join(f"{os.path.relpath(ROOT / folder, site)}\n" for folder in IMPORTED)
    file = site / "fused_kernels.pth"
    if not file.exists() or file.read_text() != text:
        file.write_text(text)


def main() -> None:
    about, *_ = __doc__.splitlines()
    argparse.ArgumentParser(prog="python -m kernels.environment", description=about).parse_args()
    if works(""):
        if scripts := list(moved()):
            print("The checkout was moved: pointing .venv to where it is now", flush=True)
            mend(scripts)
        write_paths()
        if STAMP.exists() and STAMP.read_bytes() == REQUIREMENTS.read_bytes():
            return
    if not works("import pip, sys; sys.exit(sys.version_info < (3, 11))"):
        print("Making .venv", flush=True)
        done = subprocess.run([sys.executable, "-I", "-m", "venv", "--clear", VENV], env=plain(os.environ), check=False)
        if done.returncode:
            sys.exit(done.returncode)
    write_paths()
    print("Installing requirements.txt into .venv (once)", flush=True)
    install()
    if missing := not_installed():
        sys.exit(f"pip ended well, and .venv lacks {', '.join(missing)}: remove .venv and run make venv again")
    STAMP.write_bytes(REQUIREMENTS.read_bytes())


if __name__ == "__main__":
    main()
