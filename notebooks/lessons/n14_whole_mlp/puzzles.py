"""The puzzles of 14_whole_mlp.ipynb, and the answers that its cells use."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import triton
import triton.language as tl

from kernels.device.launch import cdiv
from kernels.inductor.compile import define
from lessons.shared import answers, layer_puzzles
from lessons.shared.puzzle import Judge, OfNumbers

A_WAVE = "a wave is a tile for each of the SMs; the last one counts whole."
# rows, rows of a tile, SMs, µs of all weights, µs of a row's products → what it is called, and a hint
LEAST = {
    (16, 16, 132, 4.0, 0.125): ("one tile", "a tile takes weights + ROWS · product."),
    (2112, 16, 132, 4.0, 0.125): ("132 tiles", "all of them run at once."),
    (2113, 16, 132, 4.0, 0.125): ("a row more", A_WAVE),
    (2113, 32, 132, 4.0, 0.125): ("a row more, of 32 a tile", "a tile of 32 has twice the products of one of 16."),
    (5, 128, 132, 4.0, 0.125): ("five rows", "a tile is multiplied whole, whatever rows it has."),
    (65536, 64, 132, 2.25, 0.0625): ("65,536 rows", A_WAVE),
    (1000, 16, 60, 2.25, 0.0625): ("60 SMs", "how many SMs there are is an argument."),
}  # fmt: skip


def least(rows: int, height: int, sms: int, weights: float, product: float) -> float:
    """µs of the SM that has most tiles of so many rows, one after the other."""
    return cdiv(cdiv(rows, height), sms) * (weights + height * product)


PUZZLES = {name: layer_puzzles.PUZZLES[name] for name in ("chained", "mlp")}
PUZZLES["least"] = OfNumbers(least, [(what, case, hint) for case, (what, hint) in LEAST.items()], unit="µs")
JUDGE = Judge(PUZZLES)
attempt = JUDGE.attempt


def solution(name: str) -> Callable:
    """The reader's answer to this puzzle if it has passed, or else the lesson's."""
    if name in JUDGE.solved:
        return JUDGE.solved[name]
    text = re.sub(r"^(solved = )?puzzles\..*", "", answers.solutions(Path(__file__).parent)[name].source, flags=re.M)
    answer = re.search(r"^def (\w+)", text, re.M)[1]
    return define(text, answer, {"triton": triton, "tl": tl, "__name__": answer})
