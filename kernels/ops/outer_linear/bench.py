"""What is measured of outer_linear: `python -m kernels.measure bench outer_linear`.

All in tf32, PyTorch's own products too. The rows of the part "memory" have as their bytes what a call holds at its
peak, its inputs included.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...measure.cells import Cell, Row, implementations, in_precision
from ...measure.judge import AtMost, NeverSlower, Verdict, by_cell, name
from . import eager
from .folding import folded_width
from .op import fold_outer_weight, outer_linear, outer_linear_folded
from .spec import SPEC, Products
from .triton_tiles import Limits

OP = "outer_linear"
COLUMNS, OUTPUTS = 432, 512  # 27 vectors of 16 numbers, and the first layer of the MLP behind them
ROWS = (128, 2048, 16384)
OPTIONS = ("relu", "tf32")
FOLDED, FOLDING = "triton, folded before", "triton, folded in the call"
SHOWN = {"rows": 2048, "columns": COLUMNS}


@dataclass(frozen=True)
class PeakMemory:
    """A call of ours holds at most its inputs, its results, a tenth of them, and a weight that it folds or rounds."""

    more: float = 0.1
    part: str = "memory"

    def judge(self, rows: list[Row], copies: Mapping) -> Verdict:
        figures, misses = [], []
        for row in rows:
            of = row.labels["rows"], row.labels["of"]
            needed, held = necessary_bytes(*of), row.bytes or math.inf
            figures.append(f"{of[1]} of {of[0]} rows {needed / 1e6:.0f} MB {held / needed - 1:+.1%}")
            # Less than nothing beyond what is needed cannot be, and is no measurement.
            if not needed <= held <= (1 + self.more) * needed + made_bytes(*of):
                misses.append(f"{name(row)}: {held / 1e6:.0f} MB")
        return Verdict(self.part, bool(rows) and not misses, f"needed, and beyond it: {', '.join(figures)}", misses)


@dataclass(frozen=True)
class FoldTime:
    """Says what fold_outer_weight takes: it has no limit.

    That is the same for any rows, and is told by the difference of two calls where it is more than both vary: where
    the 20th percentile of those that fold is above the 80th of those that do not. It is less than what another clock
    makes of a product of milliseconds.
    """

    part: str = "bandwidth"

    def judge(self, rows: list[Row], copies: Mapping) -> Verdict:
        figures, not_told = [], []
        for cell in by_cell(rows):
            before, within = (cell.get(who) for who in (FOLDED, FOLDING))
            if before and within and before.us_p50 and within.us_p50:
                count = f"at {before.labels['rows']} rows"
                if within.us_p20 > before.us_p80:
                    figures.append(f"{within.us_p50 - before.us_p50:.0f} µs {count}")
                else:
                    not_told.append(f"{count}: {within.us_p50:.0f} µs with it, {before.us_p50:.0f} without")
        words = [f"folding a weight takes {', '.join(figures)}"] * bool(figures)
        words += [f"what folding takes is not told {each}" for each in not_told]
        return Verdict(self.part, bool(figures), "; ".join(words) or "not measured", [])


PEERS = ("eager", "torch.compile")
TARGETS = (
    *(AtMost(1 / 1.25, peer, "bandwidth", ("triton",)) for peer in PEERS),
    *(AtMost(1 / 2, peer, "bandwidth", (FOLDED,)) for peer in PEERS),
    FoldTime(),
    *(AtMost(1 / 1.2, peer, part, ("triton",)) for part in ("backward", "waits") for peer in PEERS),
    PeakMemory(),
    NeverSlower("eager", ("auto",), "auto"),
)


def necessary_bytes(rows: int, of: str) -> int:
    """Bytes of what a forward, a folded forward or a backward is given and gives."""
    width = folded_width(COLUMNS) if of == "folded" else COLUMNS**2
    forward = eager.forward_bytes(rows, COLUMNS, width, OUTPUTS, torch.float32)
    if of != "backward":
        return forward
    # The gradient that comes in, and those of c, the weight and the bias.
    return forward + 4 * (rows * (OUTPUTS + COLUMNS) + OUTPUTS * (width + 1))


def made_bytes(rows: int, of: str) -> int:
    """Bytes of the weight that a forward of so many rows makes first, folded or rounded."""
    from_row = {"forward": Limits().few_rows + 1, "folded": Limits().round_from}.get(of, math.inf)
    return 4 * OUTPUTS * folded_width(COLUMNS) if rows >= from_row else 0


def _inputs(rows: int, folded: bool, columns: int = COLUMNS, outputs: int = OUTPUTS) -> Callable:
    def inputs(draw: Callable, ids: Callable) -> tuple[Tensor, ...]:
        c, weight, bias = draw(rows, columns), draw(outputs, columns**2), draw(outputs)
        return (c, weight, bias, fold_outer_weight(weight)) if folded else (c, weight, bias)

    return inputs


def _with_folded(c: Tensor, weight: Tensor, bias: Tensor, folded: Tensor, activation: str = "identity",
                 precision: str = "ieee") -> Tensor:
    """The reference, beside which lies a folded weight."""
    return eager.outer_linear(c, weight, bias, activation, precision)


BESIDE = replace(SPEC, reference=_with_folded, scale=Products(reference=_with_folded))


def _forward(rows: int) -> Cell:
    """Each implementation takes of (c, weight, bias, folded weight) what it multiplies by."""

    def as_given(build: Callable) -> Callable:
        def built() -> Callable:
            function = build()
            return lambda c, weight, bias, folded: function(c, weight, bias)

        return built

    builders = implementations(OP, OPTIONS, ("eager", "torch.compile", "triton"))
    builders = {who: as_given(build) for who, build in builders.items()}
    builders[FOLDED] = lambda: lambda c, weight, bias, folded: outer_linear_folded(
        c, folded, bias, *OPTIONS, backend="triton"
    )
    builders[FOLDING] = lambda: lambda c, weight, bias, folded: outer_linear_folded(
        c, fold_outer_weight(weight), bias, *OPTIONS, backend="triton"
    )
    return Cell(
        OP, "bandwidth", "functional", _labels(rows),
        inputs=_inputs(rows, folded=True),
        implementations=builders,
        options=OPTIONS,
        bytes=eager.forward_bytes(rows, COLUMNS, COLUMNS**2, OUTPUTS, torch.float32),
        flops=eager.forward_flops(rows, COLUMNS, OUTPUTS),
        spec=BESIDE,
        smaller=lambda: _forward(rows // 2) if rows > 2048 else None,
    )


def _backward(rows: int, waits: bool) -> Cell:
    """Eager keeps c cᵀ of every set of inputs, 12 GB at 16384 rows: there one set is called and waited for."""
    return Cell(
        OP, "waits" if waits else "backward", "backward", _labels(rows),
        inputs=_inputs(rows, folded=False),
        implementations=implementations(OP, OPTIONS, ("eager", "torch.compile", "triton")),
        options=OPTIONS,
        bytes=eager.backward_bytes(rows, COLUMNS, OUTPUTS, torch.float32),
        flops=2 * eager.forward_flops(rows, COLUMNS, OUTPUTS),
        waits=waits,
        smaller=lambda: _backward(rows // 2, waits) if rows > 2048 else None,
    )


def _labels(rows: int, columns: int = COLUMNS, outputs: int = OUTPUTS) -> dict[str, int | str]:
    return {
        "rows": rows, "columns": columns, "dtype": "float32", "precision": "tf32", "outputs": f"{outputs} outputs",
    }


def _memory(rows: int, of: str) -> Cell:
    """What a call of ours holds at its peak; its time is that of one which is waited for."""

    def call(c: Tensor, weight: Tensor, bias: Tensor, folded: Tensor) -> object:
        if of == "folded":
            return outer_linear_folded(c, folded, bias, *OPTIONS, backend="triton")
        return outer_linear(c, weight, bias, *OPTIONS, backend="triton")

    def peak(*tensors: Tensor) -> int:
        c, weight, bias, folded = tensors
        inputs = (c, folded if of == "folded" else weight, bias)
        with torch.set_grad_enabled(of == "backward"):
            if of == "backward":
                c, weight, bias = (tensor.detach().requires_grad_() for tensor in (c, weight, bias))
                grad = torch.randn(rows, OUTPUTS, device=c.device)
                inputs = (*inputs, grad)
            # What waits for Python's collector, an earlier failure's tensors say, would be freed in between.
            gc.collect()
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            out = call(c, weight, bias, folded)
            gradients = torch.autograd.grad(out, (c, weight, bias), grad) if of == "backward" else None
            torch.cuda.synchronize()
            del out, gradients
            return torch.cuda.max_memory_allocated() - before + sum(tensor.nbytes for tensor in inputs)

    return Cell(
        OP, "memory", "functional", _labels(rows) | {"of": of},
        inputs=_inputs(rows, folded=True),
        implementations={"triton": lambda: call},
        options=OPTIONS,
        bytes=peak,
        waits=True,
        spec=BESIDE,
    )


def _auto(rows: int, columns: int, outputs: int) -> Cell:
    return Cell(
        OP, "auto", "functional", _labels(rows, columns, outputs),
        inputs=_inputs(rows, False, columns, outputs),
        implementations=implementations(OP, OPTIONS, ("eager", "auto")),
        options=OPTIONS,
        bytes=eager.forward_bytes(rows, columns, columns**2, outputs, torch.float32),
        flops=eager.forward_flops(rows, columns, outputs),
        waits=True,
    )


def cells(quick: bool = False) -> Iterator[Cell]:
    """Cells by part: the forward with a weight as given, folded before and in the call; the backward; the memory at its
    peak; and a smaller layer. A cell is measured before the next one is asked for, so all are in tf32."""
    with in_precision("tf32"):
        for rows in ROWS[:2] if quick else ROWS:
            yield _forward(rows)
        for rows in ROWS:
            yield _backward(rows, rows > 2048)
        for rows in ROWS[:2] if quick else ROWS:
            for of in ("forward", "folded", "backward"):
                yield _memory(rows, of)
        for shape in ((64, 16, 16), (2048, 64, 64)):
            yield _auto(*shape)
