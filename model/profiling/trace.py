"""Reading a trace of torch.profiler: its events and steps as tables, with one sentence for a file that is none."""

import functools
import gzip
import json
import math
import zlib
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from data.cli import UserError

# Categories of events: what Python and PyTorch do on the host, the host's calls into CUDA, the GPU's work.
HOST = ("cpu_op", "user_annotation", "python_function")
CUDA_CALLS = ("cuda_runtime", "cuda_driver")
GPU = ("kernel", "gpu_memcpy", "gpu_memset")


@dataclass(frozen=True)
class Trace:
    """What a trace holds; times in µs since the first recorded step began.

    steps: a row a ProfilerStep# of the host: ts, end.
    events: a row an event: cat, name, thread, ts, dur, end, correlation (a launch and what it started have the same),
        bytes (NaN: not known), external (an operator, its launches and its kernels have the same; -1: none), shapes
        and types (lists, of an operator's inputs; None: not recorded), step. The host's events belong to the step that
        they begin in; the GPU's, which run later, to the one that launched them. -1: to none.
    peaks: most bytes allocated, by device type (0 CPU, 1 CUDA).
    """

    name: str
    steps: pd.DataFrame
    events: pd.DataFrame
    peaks: dict[int, int]

    def of(self, *categories: str) -> pd.DataFrame:
        """The events of these categories that belong to a step."""
        return self.events[self.events["cat"].isin(categories) & (self.events["step"] >= 0)]


def read(trace: Trace | str | Path) -> Trace:
    """Read a trace of torch.profiler: a .json or .json.gz file, or a folder that holds one.

    UserError if it is truncated, empty, not a trace, or has no step markers, or a GPU's work but no launch in a step.
    """
    if isinstance(trace, Trace):
        return trace
    path = Path(trace)
    if path.is_dir():
        files = sorted(path.glob("*.pt.trace.json*"))
        if len(files) != 1:
            raise UserError(f"{path}: expected one file *.pt.trace.json or .json.gz, found {len(files)}")
        path = files[0]
    file = path.stat()
    kept = _read(path, (file.st_ino, file.st_mtime_ns, file.st_size))
    return replace(kept, steps=kept.steps.copy(), events=kept.events.copy(), peaks=dict(kept.peaks))


@functools.lru_cache(maxsize=8)
def _read(path: Path, version: tuple) -> Trace:
    """The trace in this file. version: another one for a file that is written anew, or of another folder."""
    rows, peaks = [], {}
    for number, event in enumerate(_load(path)):
        try:
            if _field(event, "ph", str) == "X":
                rows.append(_row(event))
            elif _field(event, "name", str) == "[memory]":
                more = _field(event, "args", dict)
                device, allocated = _field(more, "Device Type", int), _field(more, "Total Allocated", int)
                peaks[device] = max(peaks.get(device, 0), allocated)
        except _Unexpected as error:
            name = event.get("name") if isinstance(event, dict) else None
            which = f"event {number}" + (f", {name[:60]!r}" if isinstance(name, str) else "")
            raise UserError(f"{path}: not a trace of torch.profiler: {which}: {error}") from None
    events = pd.DataFrame(rows, columns=_COLUMNS)
    is_step = (events["cat"] == "user_annotation") & events["name"].str.startswith("ProfilerStep#")
    if not is_step.any():
        raise UserError(f"{path}: no step markers (ProfilerStep#): record with a schedule and profiler.step()")
    events["ts"] -= events.loc[is_step, "ts"].min()  # before dur is added: the clock's floats are too coarse for it
    events["end"] = events["ts"] + events["dur"]
    steps = events.loc[is_step, ["ts", "end"]].sort_values("ts", ignore_index=True)

    calls = events[events["cat"].isin(CUDA_CALLS) & (events["correlation"] >= 0)].drop_duplicates("correlation")
    launched = events["correlation"].map(calls.set_index("correlation")["ts"])
    on_gpu = events["cat"].isin(GPU)
    begun = events["ts"].where(~on_gpu, launched).to_numpy()
    step = steps["ts"].searchsorted(np.nan_to_num(begun, nan=-1.0), side="right") - 1
    events["step"] = np.where(begun < steps["end"].to_numpy()[step], step, -1)
    if on_gpu.any() and (events.loc[on_gpu, "step"] < 0).all():
        raise UserError(f"{path}: GPU work, but no launch of it in the steps")
    return Trace(path.name.partition(".")[0], steps, events, peaks)


class _Unexpected(Exception):
    """What is wrong with an event: its field, what was expected, what was found."""


_COLUMNS = ["cat", "name", "thread", "ts", "dur", "correlation", "bytes", "external", "shapes", "types"]  # of an event
_KINDS = {str: "a string", int: "a whole number", float: "a finite number", dict: "an object", list: "a list"}
_LARGEST = 1 << 63  # of any number: times are 64-bit numbers of ns, before they are written in µs


def _row(event: dict) -> tuple:
    more = _field(event, "args", dict, {})
    dur = _field(event, "dur", float)
    if dur < 0:
        raise _Unexpected(f"dur: expected µs from 0, found {dur:g}")
    thread = f"{_field(event, 'pid')} {_field(event, 'tid')}"
    return (
        _field(event, "cat", str, ""), _printable(_field(event, "name", str)), thread, _field(event, "ts", float), dur,
        _field(more, "correlation", float, -1.0), _field(more, "bytes", float, math.nan),
        _field(more, "External id", float, -1.0), *(_list(more, name) for name in ("Input Dims", "Input type")),
    )


def _field(event: dict, name: str, kind: type | None = None, default=None):
    """The field, of this kind; where there is none the default. _Unexpected if it is missing or of another kind."""
    if not isinstance(event, dict):
        raise _Unexpected(f"expected an object, found {_short(event)}")
    if name not in event:
        if default is None:
            raise _Unexpected(f"{name}: expected {_KINDS.get(kind, 'a value')}, found no such field")
        return default
    value = event[name]
    if kind is None:
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float) if kind is float else kind):
        raise _Unexpected(f"{name}: expected {_KINDS[kind]}, found {_short(value)}")
    if kind in (int, float) and not abs(value) < _LARGEST:  # so is no NaN
        raise _Unexpected(f"{name}: expected a number below 2^63, found {_short(value)}")
    return float(value) if kind is float else value


def _list(event: dict, name: str) -> list | None:
    return _field(event, name, list) if name in event else None


def _printable(name: str) -> str:
    """On one line, and without what no terminal can show: a lone surrogate, a control character."""
    return (
        name
        if name.isprintable()
        else "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in name)
    )


def _short(value) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:39] + "…"


def _load(path: Path) -> list:
    data = path.read_bytes()
    try:
        data = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    except (EOFError, OSError, zlib.error) as error:
        raise UserError(f"{path}: truncated or damaged: {error}") from None
    if not data.strip():
        raise UserError(f"{path}: the file is empty")
    try:
        raw = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: truncated, or not JSON: {error}") from None
    if not isinstance(raw, dict) or not isinstance(raw.get("traceEvents"), list):
        raise UserError(f"{path}: not a trace of torch.profiler: it has no list traceEvents")
    return raw["traceEvents"]
