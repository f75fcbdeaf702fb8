"""Paper cuts on this machine, whatever it is: what the notebook's cells headed "On your machine" print."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch

from kernels import runtime
from lessons.n03_paper_cuts import experiment
from lessons.shared.timing import print_times
from model.hashing import Hash, make_hash


def hashes(batch: int = 2048, known: int = 2000) -> None:
    """Print the times of the three hashes that give the same rows."""
    device = runtime.device()
    vocabulary = torch.randperm(10 * known)[:known].sort().values
    ids = vocabulary[torch.randint(known, (batch,))].to(device)
    kinds = (Hash.INDEX_NAIVE, Hash.INDEX, Hash.SORTED)
    modules = {str(kind): make_hash(kind, known, vocabulary).to(device) for kind in kinds}
    print_times({name: partial(module, ids) for name, module in modules.items()})


def waits() -> None:
    """Print ms of a step of the story's 04, by how its batch comes and whether its loss is read."""
    _show(experiment.waits(_step(experiment.HOST_BOUND), runtime.device()))


def tables(largest: int = 200_000) -> None:
    """Print ms of a step of `main`, by the layout of its tables and their gradients."""
    _show(experiment.tables(_step(experiment.SMALL_TABLES, largest_table=largest, weight_decay=0.0), runtime.device()))


def _step(number: str, **changes):
    rows = 2048 if runtime.device().type == "cuda" else 64
    return replace(experiment.BY_NUMBER[number], batch_size=rows, **changes)


def _show(variants: Iterator) -> None:
    device, threads = runtime.device(), torch.get_num_threads()
    if device.type == "cpu":
        torch.set_num_threads(1)  # at these sizes sharing an operation costs more than it saves
    rows = experiment.measure(variants, device, rounds=5, block=2)
    torch.set_num_threads(threads)
    print(f"{torch.cuda.get_device_name() if device.type == 'cuda' else 'CPU'}: ms a step (lowest to highest)")
    for row in rows:
        ms = sorted(row["ms"])
        print(f"  {row['variant']:<30} {ms[len(ms) // 2]:8.2f}  ({ms[0]:.2f} to {ms[-1]:.2f})")
