"""The C++ programs of model/serving: built where what they need is here, and started."""

from __future__ import annotations

import atexit
import re
import shutil
import subprocess
from pathlib import Path

from lessons.shared.commands import ROOT, CommandFailed, environment, here, shell

BUILD = (
    "cmake -S model/serving/cpp -B build/serving -G Ninja "
    '-DCMAKE_PREFIX_PATH=$(python -c "import torch; print(torch.utils.cmake_prefix_path)") '
    "&& cmake --build build/serving"
)


def build_runner(folder: Path, command: str = BUILD) -> bool:
    """Whether the command built run_exported; its log goes to the folder, below ROOT. Where something for it or for
    serve_exported is missing, it says what."""
    for program in ("cmake", "ninja", "g++"):
        if not shutil.which(program, path=environment()["PATH"]):
            print(f"{program} is not here: the C++ programs are not built, and what follows of them is left out.")
            return False
    (ROOT / folder).mkdir(parents=True, exist_ok=True)
    log = ROOT / folder / "build.log"
    try:
        shell(f"({command}) > {folder}/build.log 2>&1")
    except CommandFailed:
        missing = re.findall(r"Could NOT find (\w+)", log.read_text())
        print(f"Not built, for want of {', '.join(missing) or 'what build.log says'}; its part below is left out.")
        return False
    print("built")
    if left_out := re.search(r"\w+ is left out: [^)]*\)?", log.read_text()):
        print(" ".join(left_out[0].split()))
    return True


def started(command: str) -> str:
    """Start a server that ends with this process; its address, once it says that it listens. "": it was not built."""
    program = command.split()[0]
    if "/" in program and not (ROOT / program).exists():
        print(f"{program} was not built: what follows of it is left out.")
        return ""
    server = subprocess.Popen(
        command.split(), cwd=ROOT, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    atexit.register(server.terminate)
    output = ""
    for line in server.stdout:
        output += line
        if address := re.search(r"http://[\w.:]+", line):
            return address[0]
    raise CommandFailed(f"{program} ended with status {server.wait()}: {here(output)}")
