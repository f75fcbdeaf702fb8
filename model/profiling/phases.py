"""The phases of a training step in a trace: when the host is in each, and what the GPU does for it."""

from pathlib import Path

import pandas as pd

from data.cli import UserError
from model.profiling.trace import GPU, HOST, Trace, read

PHASES = ("hash", "look-up", "forward", "loss", "backward", "optimizer")
# The outermost operator or annotation with which the host enters a phase, in this order; the last is the end of "loss".
_BEGINS = {
    "look-up": r"aten::embedding$", "forward": r"aten::linear$", "loss": r"aten::binary_cross_entropy_with_logits$",
    "backward": r"aten::(ones_like|sigmoid)$", "optimizer": r"Optimizer\.step",
}


def phases(trace: Trace | str | Path, step: int = 1) -> pd.DataFrame:
    """A row a phase of one recorded step of an eager DLRM with a table a feature: begin, end (of the host, µs).

    zero_grad, which takes the old gradients away, and what Python does before the first id, belong to the hash.
    UserError as for `read`, and if a phase is not in the trace: a compiled step has others.
    """
    trace = read(trace)
    host = trace.of(*HOST).query("step == @step")
    begins, after = {"hash": trace.steps.loc[step, "ts"]}, trace.steps.loc[step, "ts"]
    for phase, name in _BEGINS.items():
        events = host[host["name"].str.match(name) & (host["ts"] > after)]
        if events.empty:
            raise UserError(f"{trace.name}: step {step} has no {name.rstrip('$')}: phases are those of an eager DLRM")
        begins[phase] = after = events["ts"].min()
    begin = pd.Series(begins).loc[list(PHASES)]
    return pd.DataFrame({"begin": begin, "end": begin.shift(-1, fill_value=trace.steps.loc[step, "end"])})


def work_by_phase(trace: Trace | str | Path, step: int = 1) -> pd.DataFrame:
    """The GPU's work that the host launched in a step: the rows of trace.events, with phase and launched (µs)."""
    trace = read(trace)
    calls = trace.events[trace.events["cat"].str.startswith("cuda_") & (trace.events["correlation"] >= 0)]
    launched = calls.drop_duplicates("correlation").set_index("correlation")["ts"]
    work = trace.of(*GPU).query("step == @step")
    work = work.assign(launched=work["correlation"].map(launched)).sort_values("ts", ignore_index=True)
    begins = phases(trace, step)["begin"]
    return work.assign(phase=[PHASES[i - 1] for i in begins.searchsorted(work["launched"], side="right")])


def by_phase(trace: Trace | str | Path, step: int = 1) -> pd.DataFrame:
    """A row a phase and the total: "host µs" (while profiled), launches, "kernels µs" (their durations' sum)."""
    spans, work = phases(trace, step), work_by_phase(trace, step)
    groups = work.groupby("phase")
    table = pd.DataFrame({
        "host µs": spans["end"] - spans["begin"],
        "launches": groups["correlation"].nunique(),
        "kernels µs": groups["dur"].sum(),
    }).reindex(PHASES).fillna(0.0)
    table.loc["total"] = table.sum()
    return table.astype({"launches": int})
