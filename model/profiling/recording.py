"""Recording a step: its time without the profiler, then a trace of a few steps."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd
import torch

from data.output import locked
from kernels import runtime
from model.profiling import trace_file
from model.profiling.facts import step_facts
from model.profiling.trace import GPU, Trace, read

WARM_UP = 10  # steps before anything is measured: compilation, caches, the allocator


def record(
    step: Callable[[], object],
    out_dir: str | Path,
    *,
    command: str = "",
    config: Mapping | None = None,
    device: str | torch.device | None = None,
    active: int = 3,
    timed: int = 5,
    stacks: bool = True,
) -> dict:
    """Time `step`, then profile `active` steps of it; both go into a folder that TensorBoard shows as a run.

    out_dir/NAME.1.pt.trace.json.gz (NAME: the folder's) is the trace, with shapes and memory. stacks: with Python's
    calls too, which slow the host down; they are left out if the file would exceed MAX_BYTES.
    out_dir/run.json is what is returned: command, config, versions, date; step_ms, without the profiler
    (the median of ten blocks of `timed` steps, each block waited for); peak_bytes, torch.cuda.max_memory_allocated
    meanwhile (None on the CPU); facts, the trace's StepFacts; key_averages, the profiler's own totals over the active
    steps, count and µs by name: of kernels and copies on a GPU, on the CPU of operators without what they call.
    No file names the machine, the user or an absolute path.

    The GPU is idle when the first active step begins: all work recorded is that of the active steps.
    """
    device, out = torch.device(device or runtime.device()), Path(out_dir).resolve()
    cuda = device.type == "cuda"
    for _ in range(WARM_UP):
        step()
    if cuda:
        torch.cuda.reset_peak_memory_stats(device)
    step_ms = float(step_times({"step": step}, timed)["step"].median())
    peak_bytes = torch.cuda.max_memory_allocated(device) if cuda else None

    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA][: 1 + cuda]
    schedule = torch.profiler.schedule(wait=1, warmup=2, active=active, repeat=1)
    # acc_events: or torch warns that it drops the events of earlier cycles, of which there are none.
    options = {"record_shapes": True, "profile_memory": True, "with_stack": stacks, "acc_events": True}
    with torch.profiler.profile(activities=activities, schedule=schedule, **options) as profiler:
        for done in range(1, 3 + active + 1):
            step()
            if done == 3 and cuda:
                torch.cuda.synchronize(device)
            profiler.step()
    with locked(out):  # the trace and the figures are of one run
        trace = read(trace_file.export(profiler, out / f"{out.name}.1.pt.trace.json.gz", trace_file.MAX_BYTES))
        run = {
            "name": out.name,
            "command": command,
            **versions(device),
            "date": today(),
            "config": dict(config or {}),
            "step_ms": step_ms,
            "active_steps": active,
            "peak_bytes": peak_bytes,
            "facts": asdict(step_facts(trace)),
            "key_averages": _totals(profiler, trace, cuda),
        }
        text = trace_file.anonymous(json.dumps(run, indent=1))
        (out / "run.json").write_text(text + "\n")
    return json.loads(text)


def step_times(steps: Mapping[str, Callable[[], object]], block: int = 5, rounds: int = 10) -> pd.DataFrame:
    """ms a step, without a profiler: a column a step, a row a round, in which each runs a block of `block` steps.

    A block is waited for. Since the steps take turns, what slows the machine down for a while slows all of them:
    compare within a row.
    """
    from torch.utils.benchmark import Timer  # a CUDA build of torch warns of a missing driver when this is imported

    threads = torch.get_num_threads()
    timers = {name: Timer("step()", globals={"step": step}, num_threads=threads) for name, step in steps.items()}
    # Timer waits for the GPU, and runs a step twice before it times a block.
    return 1e3 * pd.DataFrame([{n: timer.timeit(block).mean for n, timer in timers.items()} for _ in range(rounds)])


def versions(device: torch.device) -> dict[str, str]:
    """What a recording says of where it was made; a CPU's does not name the GPU that it did not use."""
    return runtime.versions() | ({} if device.type == "cuda" else {"GPU": "none", "driver": "none"})


def today() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d")


def _totals(profiler: torch.profiler.profile, trace: Trace, cuda: bool) -> list[dict]:
    names = set(trace.events.loc[trace.events["cat"].isin(GPU if cuda else ("cpu_op",)), "name"])
    on_device = torch.autograd.DeviceType.CUDA if cuda else torch.autograd.DeviceType.CPU
    wanted = [total for total in profiler.key_averages() if total.key in names and total.device_type == on_device]
    us = [total.self_device_time_total if cuda else total.self_cpu_time_total for total in wanted]
    return [{"name": w.key, "count": w.count, "us": round(t, 3)} for w, t in zip(wanted, us, strict=True)]
