"""The program of notebook 02: a clock, a step whose phases have names, and its trace, read launch by launch.

One import gives it to who starts later: `from lessons.shared.step_profile import clock, events_of, launches_of`. Each
function is the text of its cell, or of the answer to its puzzle; a test compares them.
"""

import gzip
import json

import pandas as pd
from torch.nn import functional as F
from torch.profiler import record_function


def clock(call, wait, now, times):  # -> µs per call
    call()
    wait()
    start = now()
    for _ in range(times):
        call()
    wait()
    return (now() - start) / times


def marked_step(model, optimizer, labels, dense, ids):  # 01's step, with names for its four phases
    with record_function("forward"):
        logits = model(dense, ids)
    with record_function("loss"):
        loss = F.binary_cross_entropy_with_logits(logits, labels)
    with record_function("backward"):
        optimizer.zero_grad()
        loss.backward()
    with record_function("optimizer"):
        optimizer.step()
    return loss.detach()


def events_of(path):  # a trace -> a row per event: cat, name, tid, ts and dur in µs, correlation
    with gzip.open(path) as file:
        events = pd.DataFrame(e for e in json.load(file)["traceEvents"] if e["ph"] == "X")
    events["correlation"] = events["args"].str.get("correlation").astype(float)
    begin = events.loc[events["name"].str.startswith("ProfilerStep"), "ts"].min()
    return events.assign(ts=events["ts"] - begin)


def launches_of(events):  # a row per kernel, copy or fill of the GPU, in µs
    calls = events[events["cat"].isin(["cuda_runtime", "cuda_driver"])]
    work = events[events["cat"].isin(["kernel", "gpu_memcpy", "gpu_memset"])]
    table = work.merge(calls, on="correlation", suffixes=("", "_call")).sort_values("ts", ignore_index=True)
    table["waits"] = table["ts"] - table["ts_call"]
    columns = ["launched", "begins", "waits", "runs", "kernel"]
    return table[["ts_call", "ts", "waits", "dur", "name"]].set_axis(columns, axis=1)
