"""The puzzles of 20_tile_pair_and_cluster.ipynb.

ring    the text of a kernel that reads weights by bulk copies, through a ring of panels on chip
cuts    how each of main's seven layers is cut among the blocks of a cluster
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import torch

from kernels.ops.dlrm.cluster import layers_of
from lessons.n20_tile_pair_and_cluster import designs, ring
from lessons.shared import answers
from lessons.shared.puzzle import Judge
from lessons.shared.puzzle.judge import Own

ROOM = Path(__file__).resolve().parent
CASES = ((2, 3, 1), (2, 1, 1), (2, 2, 2), (2, 7, 1), (3, 8, 2))  # stages, panels, blocks
OVERWRITTEN = (
    "NaN is what a slot has while a copy into it is under way. Wait for panel p with loads[p % STAGES].wait(p / STAGES "
    "% 2), and let all threads meet between the last read of a slot and the next copy into it."
)
HINTS = {
    "not all threads have begun": (
        "Wait only for a panel that was asked for: at the start, ask for the first STAGES. And nobody may run ahead: "
        "all meet between the last read of a slot and the next copy into it."
    ),
    "more threads begin": (
        "One thread asks for a panel, if (thread == 0), when the copy before it into this slot has been waited for."
    ),
    "bytes are not those": "begin() is told the bytes of the copy: 16 * PANEL.",
    "multiples of 16": "A panel begins at ring + slot * PANEL and at given.weights + p * PANEL, in float4s.",
    "outside": "A panel begins at ring + slot * PANEL and at given.weights + p * PANEL. Is p below panels?",
    "endless": "Does each loop come to its end, and does each thread come to each __syncthreads()?",
}
# A lambda with its body, as far as braces are nested twice in it.
LAMBDA = re.compile(r"auto\s+(\w+)\s*=\s*\[[^\]]*\][^{;]*\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\}")


def _from_init_to_wait(code: str) -> str:
    """The text between init() and the first wait(); one in a lambda is where that is called."""
    lambdas = [found for found in LAMBDA.finditer(code) if ".wait(" in found[0]]
    for found in lambdas:
        code = code.replace(found[0], "")
    waits = "|".join([r"\.wait\(", *(rf"\b{found[1]}\(" for found in lambdas)])
    return re.split(waits, code.partition(".init(")[2], maxsplit=1)[0]


def _ring(kernel: object) -> str:
    if not isinstance(kernel, str):
        raise AssertionError(f"give the kernel's text; got {type(kernel).__name__}")
    code = re.sub(r"//[^\n]*|/\*.*?\*/", " ", kernel, flags=re.S)
    try:
        _run(kernel, backwards=False)
    except AssertionError as error:
        try:
            _run(kernel, backwards=True)  # the thread that asks may be the last: on the host it must run first
        except AssertionError:
            raise error from None
    if ".wait(" in code and "__syncthreads" not in _from_init_to_wait(code):
        raise AssertionError(
            "right on the host, which has one order of threads\nHint: Between init() by one thread and a wait() "
            "by another, all must meet in __syncthreads()."
        )
    if ".copy(" not in code or ".wait(" not in code:
        raise AssertionError("right, but nothing goes through the ring\nHint: Ask for panels by copy(), and wait().")
    return f"{len(CASES)} cases passed on the host"


def _run(kernel: str, backwards: bool) -> None:
    for stages, panels, blocks in CASES:
        case = f"{panels} panels, a ring of {stages}"
        weights = torch.randn(panels * ring.PANEL * 4, generator=torch.Generator().manual_seed(panels))
        try:
            out, wrong = ring.on_host(kernel, stages, weights, blocks, backwards)
        except RuntimeError as error:
            said = [line.partition("error: ")[2] for line in str(error).splitlines() if "error: " in line]
            raise AssertionError(f"the compiler says: {said[0] if said else error}") from None
        if wrong:
            hint = next((hint for what, hint in HINTS.items() if what in wrong), "")
            raise AssertionError(f"{case}: {wrong}" + f"\nHint: {hint}" * bool(hint))
        for got in out.view(blocks, -1):
            _hold(case, ring.sums(weights), got)


def _hold(case: str, right: torch.Tensor, got: torch.Tensor) -> None:
    if torch.allclose(got, right, rtol=1e-4, atol=1e-4):
        return
    thread = int((~torch.isclose(got, right, rtol=1e-4, atol=1e-4)).nonzero()[0])
    hint = "Thread t adds up all four numbers of the float4 t, t + 512, … of every panel."
    if torch.isclose(got.sum(), right.sum(), rtol=1e-3, atol=1e-2):
        hint = "All is added up, but by other threads: thread t has the float4 t, t + 512, … of every panel."
    if got.isnan().any():
        hint = OVERWRITTEN
    raise AssertionError(f"{case}: thread {thread} has {got[thread]:g}, expected {right[thread]:g}\nHint: {hint}")


def _cuts(cuts: object) -> str:
    layers = len(designs.MAIN.layers)
    if not isinstance(cuts, Sequence) or isinstance(cuts, str) or len(cuts) != layers:
        raise AssertionError(f"give {layers} cuts, one a layer; got {cuts!r}")
    try:
        cycles = sum(step.cycles for step in designs.steps(list(cuts)))
    except ValueError as error:
        raise AssertionError(f"{error}\nHint: See the table: what a layer reads, and what it gives.") from None
    best = sum(step.cycles for step in designs.steps([of.cut for of in layers_of(designs.MAIN, torch.float32, 16)]))
    if cycles > best:
        costly = max(enumerate(designs.steps(list(cuts))), key=lambda pair: pair[1].cycles)
        step = costly[1]
        raise AssertionError(
            f"{cycles:,.0f} cycles, and {best:,.0f} can be had\nHint: Layer {costly[0]} is the longest: it reads "
            f"{step.weights:,} bytes of weights and sends {step.given:,}. A layer cut by outputs leaves columns, and a "
            "layer cut by inputs takes them as they are."
        )
    return f"{cycles:,.0f} cycles by the estimate, as the library's"


PUZZLES = {"ring": Own(_ring), "cuts": Own(_cuts)}
JUDGE = Judge(PUZZLES, seconds=150)
attempt = JUDGE.attempt


def solution(name: str) -> object:
    """The reader's answer to this puzzle if it has passed, or else the lesson's."""
    if name in JUDGE.solved:
        return JUDGE.solved[name]
    source = answers.solutions(ROOM)[name].source
    if name == "ring":
        return source.split('"""')[1]
    return re.findall(r'"(\w+)"', source.partition("]")[0])
