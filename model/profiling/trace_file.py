"""A profile as a file that can be passed on: it names no machine, no user and no absolute path."""

import gzip
import json
import re
import sys
import sysconfig
import tempfile
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
MAX_BYTES = 2_000_000  # of a trace file in traces/


def export(profiler: torch.profiler.profile, path: str | Path, max_bytes: int | None = None) -> Path:
    """Write a finished profile to path, a .json.gz, without what tells where it was made; returns the path.

    With max_bytes Python's calls are left out if the file would be larger with them; ValueError if it is larger even
    without. A profiler's on_trace_ready may be: lambda profiler: export(profiler, path).
    """
    path = Path(path)
    with tempfile.TemporaryDirectory() as folder:
        profiler.export_chrome_trace(f"{folder}/trace.json")
        trace = json.loads(Path(folder, "trace.json").read_bytes())
    for field in ("host_name", "traceName"):  # traceName is a path
        trace.pop(field, None)
    packed = _pack(trace)
    if max_bytes is not None and len(packed) > max_bytes:
        trace["traceEvents"] = [e for e in trace["traceEvents"] if e.get("cat") != "python_function"]
        packed = _pack(trace)
        if len(packed) > max_bytes:
            size = f"{len(packed):,} bytes, more than {max_bytes:,}"
            raise ValueError(f"{path.name}: {size}: record fewer active steps")
    path.write_bytes(packed)
    return path


def anonymous(text: str) -> str:
    """JSON text with each absolute path made relative to the repository, to Python's libraries, or just a file name."""
    known = {str(ROOT), sys.prefix, sys.base_prefix, str(Path.home()), tempfile.gettempdir()}
    known |= {sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib")}
    paths = [re.escape(json.dumps(path)[1:-1]) for path in sorted(known, key=len, reverse=True) if len(path) > 1]
    letters = r"""(?:[^/\s"'\\:,<>()|]|\\u[\da-f]{4})+"""  # JSON escapes what is not ASCII
    words = rf"{letters}(?: (?!-){letters})*"  # not a command's next option
    # Any other path; elsewhere than in quotes and after /home a space ends it.
    paths += [rf"""(?<=["'])(?:/{words})+""", rf"/(?:home|Users)/{words}(?:/{letters})*", rf"(?:/{letters})+"]
    start = r"(?:(?<![\w./-])|(?<=\\[nrt]))(?:file://[\w.-]*)?"  # \n, as JSON writes a line's end, is no letter
    text = re.sub(rf"{start}(?:{'|'.join(paths)})/", "", text)
    return re.sub(r"torchinductor_[\w.-]+", "torchinductor", text)  # Inductor's folder bears the user's name


def _pack(trace: dict) -> bytes:
    return gzip.compress(anonymous(json.dumps(trace)).encode(), mtime=0)
