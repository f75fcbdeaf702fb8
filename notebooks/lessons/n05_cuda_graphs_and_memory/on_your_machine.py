"""CUDA graphs on this machine: what the notebook's cells headed "On your machine" print."""

from __future__ import annotations

import torch

from kernels import runtime
from lessons.n05_cuda_graphs_and_memory import experiment


def replays() -> None:
    """µs of chains of kernels, eagerly and as a copy and a replay; without a GPU, what would be."""
    if runtime.device().type != "cuda":
        print("no GPU: the model of a graph runs the same operators one by one, and saves nothing")
        return
    for row in experiment.replay(runtime.device(), 5, sizes=(1 << 12, 1 << 24)):
        us = sorted(row["us"])
        said = f"{row['kernels']:3} kernels, {row['bytes']:>11,} bytes, {row['variant']:<16}"
        print(f"{said} {us[len(us) // 2]:8.1f} µs ({us[0]:.1f} to {us[-1]:.1f})")


def late() -> None:
    """What is found in an output of reduce-overhead that is read after the next run."""
    if not torch.cuda.is_available():
        print("no GPU: reduce-overhead does here what default does, and an output keeps its own numbers")
        return
    for row in experiment.late(runtime.device()):
        print(f"{row['before']} runs before: {row['found']}")
