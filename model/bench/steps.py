"""Steps of all implementations by turns, each judged by a `Shadow`: their ms and the most memory that they take."""

import itertools
import math
from collections.abc import Sequence
from operator import itemgetter

import torch
from torch import Tensor

import kernels
from kernels.measure.clock import percentiles
from model.bench.compiled_ways import COMPILED
from model.bench.shadow import MOST_OF_A_ROW, MOST_OF_A_SPARED, MOST_STRAY, ROW, SPARED, Shadow
from model.bench.trainer import RATES, Trainer, noting
from model.config import DLRMConfig, Precision, TableOptimizer
from model.profiling.recording import step_times

OURS = ("fused", "fused graph")
# How far a loss or a probability may be off. TF32 has 11 bits in each factor, and another order of a sum rounds
# otherwise.
TOLERANCES = {Precision.FP32: 1e-4, Precision.TF32: 2e-3}


def judge(row: dict, steps: Sequence[tuple[Tensor, Tensor, dict[str, float]]], precision: Precision) -> None:
    """Say in the row whether these steps, which a `Shadow` followed, are right."""
    faults, errors, of_tensors = [], [], {}
    for index, (loss, expected, strays) in enumerate(steps):
        error = (abs(loss - expected) / max(1, expected)).item()
        errors.append(error)
        for name, stray in strays.items():
            of_tensors.setdefault(name, []).append(stray)
        if not error <= TOLERANCES[precision]:
            faults.append((index, f"the loss differs from float64's by {error:.2g}"))
    of_rows = of_tensors.pop(ROW)
    for name, strays in of_tensors.items():
        over, far = ([index for index, stray in enumerate(strays) if not stray <= limit]
                     for limit in (MOST_STRAY[precision], MOST_OF_A_SPARED))
        for index in (over if len(over) > SPARED[precision] else far)[:1]:
            faults.append((index, f"{strays[index]:.2g} of the update of {name} is not float64's"))
    faults = [f"step {index}: {fault}" for index, fault in sorted(faults, key=itemgetter(0))]
    ranked = [sorted(strays, key=_rank, reverse=True) for strays in of_tensors.values()]
    row["loss_error"], row["stray_once"] = max(errors, key=_rank), max((own[0] for own in ranked), key=_rank)
    row["stray"] = max((own[min(SPARED[precision], len(own) - 1)] for own in ranked), key=_rank)
    row["row_stray"] = sorted(of_rows, key=_rank)[len(of_rows) // 2]
    if not row["row_stray"] <= MOST_OF_A_ROW[precision]:
        faults.append(f"half of the steps: {row['row_stray']:.2g} of the update of {ROW} is not float64's")
    row["match"] = f"FAILED: {faults[0]}" if faults else "ok"


def _rank(error: float) -> tuple[bool, float]:
    """What errors are put in order by: NaN, which is neither more nor less than any, behind all others."""
    return math.isnan(error), error


def bench_steps(
    rule: TableOptimizer, shape: DLRMConfig, batches: list, device: torch.device, names: Sequence[str],
    precision: Precision = Precision.FP32, part: str = "steps",
) -> list[dict]:
    """A row for each implementation, but for peers whose settings do not help here: its step on these batches, as
    `Shadow` judges it."""
    steps, rows, judged = {}, {}, {}
    with noting(judged, "the judge: "):
        shadow = Shadow(shape, rule, RATES[rule], device, precision)
    count = len(batches[0][0])
    for name in names:
        if name in COMPILED and not COMPILED[name].may_win(shape, count, precision, training=True):
            continue
        row = rows[name] = {
            "part": part, "optimizer": str(rule), "rows": count, "precision": str(precision), "implementation": name,
            **judged,
        }
        if judged:  # there is no judge, only what became of it
            continue
        with noting(row):
            trainer = Trainer(name, rule, shape, count, device, precision)
            turns = itertools.cycle(batches)
            # Where the step is a graph, the last of these steps are replays.
            judge(row, [shadow.follow(trainer, next(turns)) for _ in range(8)], precision)
            steps[name] = lambda step=trainer.step, turns=turns: step(*next(turns))
            row |= {"floor_mb": trainer.floor / 1e6, "peak_mb": trainer.peak.bytes and trainer.peak.bytes / 1e6}
    shadow = None  # its memory
    good = {name: step for name, step in steps.items() if rows[name]["match"] == "ok"}
    times = step_times(good) if good else {}
    for name in good:
        low, middle, high = percentiles(times[name].tolist())
        rows[name] |= {"ms": middle, "ms_low": low, "ms_high": high}
    peers = [rows[name]["ms"] for name in good if name not in OURS]
    for name in good.keys() & OURS if peers else ():
        rows[name]["factor"] = min(peers) / rows[name]["ms"]
    kernels.check_ids()
    return list(rows.values())
