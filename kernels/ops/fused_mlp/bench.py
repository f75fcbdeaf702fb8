"""What is measured of fused_mlp: `python -m kernels.measure bench fused_mlp`.

All implementations get the same weights: ours in one buffer, as `pack_mlp` lays them out, the others as nn.Linear has
them. (The part "calls, weights apart" shows what the copy of others costs.) Weights are shared by all calls, as in a
model, and stay in the L2 cache. Everybody's float32 products are tf32, the part "ieee" aside.

cuBLAS is slow on rows that are no multiple of 16 bytes, as those of 367 and of 13 columns are. So each peer is also
measured "padded": its first weight has 368 or 16 columns, filled up once, before, with zeros, as a packed MLP's is. The
rows of x are that wide too, and filling them up is not timed: whoever writes x writes them so, as `dot_interaction`
does when it is asked to, and ours get the same rows of 368. "padded in the call" is for the caller whose rows come with
367: there torch.compile fills them up in each call. Ours take the bottom MLP's 13 columns as they are.

The part "tiles" is the bottom MLP of many rows, whose layers stay on the chip, beside the same op with what is between
the layers in a workspace: tiles.py chooses by the number of rows.

The part "bandwidth" is the bottom MLP, whose times stand in the READMEs. The parts "… autotuned" come last:
max-autotune takes minutes to choose. `--without max-autotune` leaves them out.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ...check import Call, Spec
from ...measure.cells import OURS, Calls, Cell, in_precision
from ...measure.judge import AtMost, CallWithin, NeverSlower
from . import eager, packing, tiles, triton_launch
from .op import fused_mlp
from .spec import Layers

OP = "fused_mlp"
BOTTOM, TOP = (13, 512, 256, 64, 16), (367, 512, 256, 1)
ROWS = (128, 2048, 16384)
MANY = (4352, 8448, 16384, 65536)  # around the numbers of rows from which on layers stay on the chip
CURVE = (8192, 65536)  # with ROWS the curve on which products of their own overtake
PADDED, IN_THE_CALL = ", padded", ", padded in the call"  # behind a peer's name: how its rows are filled up
NAMES = ("eager", "eager, padded", "torch.compile", "torch.compile, padded", "triton", "cuda")
AUTOTUNED = ("max-autotune", "max-autotune, padded", "triton", "cuda")
FUSED = ("triton", "cuda", "auto")
ON_CHIP, WORKSPACE = "on the chip", "through a workspace"  # which tile Triton's kernel takes, whatever the rows
SHOWN = {"widths": "13-512-256-64-16", "rows": 2048}
PROCESSOR = 112e9  # bytes a second from the L2 cache to one processor: 64 a cycle of 1.755 GHz
# Shares of torch.compile's time, padded or not, whichever is less; "autotuned" compares with max-autotune alike.
TARGETS = (
    *(
        AtMost(limit, peer, part + suffix, (who,))
        for peer, suffix in (("torch.compile", ""), ("max-autotune", " autotuned"))
        for part, limit, who in (("bandwidth", 0.6, "triton"), ("top 2048", 0.75, "triton"), ("top 128", 1.03, "auto"))
    ),
    NeverSlower("eager", ("auto",), "auto"),
    CallWithin(12.0),
)


def floor_us(widths: Sequence[int], dtype: torch.dtype, processors: int = 1) -> float:
    """Microseconds for the weights to reach a processor, or a cluster of so many that share them."""
    return 1e6 * eager.parameters(widths) * dtype.itemsize / (PROCESSOR * processors)


def _from_buffer(x: Tensor, narrow: Tensor, packed: Tensor, widths: str, *options) -> Tensor:
    return eager.fused_mlp(x, *zip(*packing.views(packed, widths), strict=True), *options)


class _OfBuffer(Layers):
    """As the op's own, of a call that has weights and biases in one buffer."""

    def errors(self, reference, call, exact):
        (x, _, packed), (widths, *options) = call.tensors, call.options
        weights, biases = zip(*packing.views(packed, widths), strict=True)
        return super().errors(reference, Call("", (x, weights, biases), tuple(options)), exact)


SPEC = Spec(_from_buffer, lambda case, device: iter(()), scale=_OfBuffer())


def _draw_buffer(widths: Sequence[int], draw: Callable) -> tuple[Tensor]:
    parts = []
    for inputs, outputs in itertools.pairwise(widths):
        parts.append((draw(outputs, inputs) / math.sqrt(inputs), draw(outputs)))
    return (packing.pack(*zip(*parts, strict=True))[0].clone(),)


def _text(widths: Sequence[int]) -> str:
    return "-".join(map(str, widths))


def given(name: str, widths: str) -> bool:
    """Whether the implementation is given rows of x that are filled up."""
    return name.endswith(PADDED) or (name in FUSED and widths != _text(BOTTOM))


def _built(name: str, widths: str, options: tuple, trained: bool = False) -> Callable:
    """A builder of f(x, narrow, packed): the same rows, padded or not; weights as this implementation takes them are
    made at its first call."""
    peer = name.partition(", ")[0]
    columns = packing.padded(int(widths.partition("-")[0]))

    def filled_up(x: Tensor, *arguments) -> Tensor:
        return eager.fused_mlp(F.pad(x, (0, columns - x.shape[1])), *arguments)

    def build() -> Callable:
        if name in FUSED:
            function = functools.partial(fused_mlp, backend=name)
        else:
            function = filled_up if name.endswith(IN_THE_CALL) else eager.fused_mlp
            if peer != "eager":
                mode = "max-autotune-no-cudagraphs" if peer == "max-autotune" else None
                function = torch.compile(function, dynamic=False, mode=mode)
            function = in_precision(options[-1])(function)
        parameters = []

        def run(x: Tensor, narrow: Tensor, packed: Tensor) -> Tensor:
            if not parameters:
                weights, biases = zip(*packing.views(packed, widths), strict=True)
                if name not in FUSED:
                    weights = tuple(weight.clone(memory_format=torch.contiguous_format) for weight in weights)
                if name.endswith((PADDED, IN_THE_CALL)):
                    weights = (F.pad(weights[0], (0, columns - weights[0].shape[1])), *weights[1:])
                parameters.extend((weights, biases))
            x = x if given(name, widths) else narrow
            if not trained:
                return function(x, *parameters, *options)
            leaves = [[each.detach().requires_grad_() for each in part] for part in parameters]
            with torch.enable_grad():
                out = function(x, *leaves, *options)
            torch.autograd.grad(out, [*leaves[0], *leaves[1]], out.detach())
            return out.detach()

        return run

    return build


def _of_tile(name: str, widths: str, options: tuple) -> Callable:
    """`_built` of Triton's kernel with one of the two kinds of tile."""

    def run(x: Tensor, narrow: Tensor, packed: Tensor) -> Tensor:
        rows, outputs = len(narrow), packing.layers(widths)[-1].outputs
        dtype = narrow.dtype
        tile = tiles.on_chip_tile(dtype) if name == ON_CHIP else tiles.tile_of(rows, dtype, options[-1])
        out = narrow.new_empty(rows, outputs)
        triton_launch.forward(narrow, packed, widths, *options, False, out, narrow.new_empty(0), tile=tile)
        return out

    return lambda: run


def _cell(
    part: str, widths: Sequence[int], rows: int, dtype: str, names: Sequence[str], precision: str = "tf32", **more
) -> Cell:
    text = _text(widths)
    options = ("relu", "relu" if widths == BOTTOM else "sigmoid", precision)

    def inputs(draw: Callable, ids: Callable, packed: Tensor) -> tuple[Tensor, ...]:
        x = draw(rows, packing.padded(widths[0]))
        return x, x[:, : widths[0]].contiguous(), packed

    element = getattr(torch, dtype)
    floor = f"{floor_us(widths, element):.1f}"
    return Cell(
        OP, part, "functional",
        {"widths": text, "rows": rows, "dtype": dtype, "precision": precision, "floor": f"floor {floor} µs"},
        inputs=inputs,
        implementations={
            name: _of_tile(name, text, options) if name in (ON_CHIP, WORKSPACE)
            else _built(name, text, options, part == "training")
            for name in names
        },
        options=(text, *options),
        shared=functools.partial(_draw_buffer, widths),
        bytes=eager.forward_bytes(rows, widths, element),
        flops=eager.forward_flops(rows, widths),
        spec=SPEC,
        **more,
    )


def _parts(suffix: str, names: Sequence[str], quick: bool) -> Iterator[Cell]:
    for dtype in ("float32",) if quick else ("float32", "bfloat16"):
        for rows in ROWS[1:2] if quick else ROWS:
            yield _cell("bandwidth" + suffix, BOTTOM, rows, dtype, names)
        yield _cell("top 128" + suffix, TOP, 128, dtype, (*names, "auto"))
        yield _cell("top 2048" + suffix, TOP, 2048, dtype, names if suffix else (*names, "torch.compile" + IN_THE_CALL))


def _calls(apart: bool = False) -> Calls:
    """What a call costs from Python: of layers so small that the GPU is done before the next call comes.

    apart: of weights that each have memory of their own, as those of a module that nobody laid out: the kernels' calls
    copy them. A CPU's calls are eager's, and copy nothing.
    """
    widths, options = (16, 16, 16), ("relu", "identity", "tf32")

    def inputs(draw: Callable, ids: Callable) -> tuple:
        (packed,) = _draw_buffer(widths, draw)
        weights, biases = zip(*packing.views(packed, _text(widths)), strict=True)
        return draw(64, widths[0]), tuple(weight.clone() for weight in weights) if apart else weights, biases

    call = f"{OP}(x, weights, biases, {', '.join(map(repr, options))}, backend="
    statements = {"x + 1": "x + 1"} | {name: f"{call}'{name}')" for name in ("eager", "auto", *OURS)}
    labels = {"rows": 64, "widths": "16-16-16", "dtype": "float32"}
    part = "calls, weights apart" if apart else "calls"
    return Calls(OP, "functional", labels, inputs, ("x", "weights", "biases"), "x + 1", statements, options, part)


def cells(quick: bool = False) -> Iterator[Cell | Calls]:
    """Cells by part: both MLPs against torch.compile, a call from Python and as its user sees it, full float32, a
    training step, the curve; last those with max-autotune."""
    yield from _parts("", NAMES, quick)
    yield _calls()
    yield _cell("auto", BOTTOM, 128, "float32", ("eager", "auto"), waits=True)
    if quick:
        return
    yield _calls(apart=True)
    for widths in (BOTTOM, TOP):
        yield _cell("ieee", widths, 2048, "float32", ("eager", "eager, padded", "triton", "cuda"), "ieee")
        yield _cell("training", widths, 2048, "float32", NAMES)
    for dtype, rows in itertools.product(("float32", "bfloat16"), MANY):
        yield _cell("tiles", BOTTOM, rows, dtype, ("eager", "eager, padded", "triton", "cuda", ON_CHIP, WORKSPACE))
    for rows in CURVE:
        for widths in (BOTTOM, TOP):
            yield _cell("curve", widths, rows, "float32", NAMES)
    yield from _parts(" autotuned", AUTOTUNED, quick)
