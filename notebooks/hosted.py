"""Make a hosted notebook's machine, Colab's say, ready for a notebook of the lecture. A cell above its first one runs

    !git clone -q --depth 1 https://github.com/OWNER/NAME /content/lecture
    %run /content/lecture/notebooks/hosted.py

Such a machine has Jupyter and much of what the lecture imports, and the checkout's packages are not on its path. This
installs torch and triton as requirements.txt pins them, torch for a CPU where there is no GPU, and what else of
PACKAGES is not there; another version of those stays. Then it does what .venv does elsewhere: `kernels` and `lessons`
can be imported, by child processes too.
"""

import os
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

NOTEBOOKS = Path(__file__).resolve().parent
ROOT = NOTEBOOKS.parent
PINNED = ("torch", "triton")
PACKAGES = (*PINNED, "numpy", "pandas", "pyarrow", "scipy", "matplotlib", "loguru", "tqdm", "scikit-learn", "ninja")
CPU_BUILDS = "https://download.pytorch.org/whl/cpu"


def missing() -> list[str]:
    """What to install, as requirements.txt pins it. In a version such as 2.13.0+cpu, what follows the + is left out."""
    pins = dict(re.findall(r"^([\w-]+)==(\S+)", (ROOT / "requirements.txt").read_text(encoding="utf-8"), re.M))
    lacking = []
    for name in PACKAGES:
        try:
            enough = version(name).partition("+")[0] == pins[name] or name not in PINNED
        except PackageNotFoundError:
            enough = False
        lacking += [] if enough else [f"{name}=={pins[name]}"]
    return lacking


def prepare() -> None:
    pins = missing()
    if pins:
        index = [] if os.path.exists("/dev/nvidiactl") else ["--extra-index-url", CPU_BUILDS]
        print("Installing", *pins)
        subprocess.run([sys.executable, "-m", "pip", "install", "-q", *index, *pins], check=True)
        if {pin.partition("==")[0] for pin in pins} & sys.modules.keys():
            print("Some of these were imported before: restart the session, and run this cell again.")
    folders = [str(ROOT), str(NOTEBOOKS)]
    sys.path[:0] = folders  # %run takes the folder of this file off the path again, once
    os.environ["PYTHONPATH"] = os.pathsep.join([*folders, *filter(None, [os.environ.get("PYTHONPATH")])])
    os.chdir(NOTEBOOKS)


if __name__ == "__main__":
    prepare()
