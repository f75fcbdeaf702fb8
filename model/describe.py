"""A DLRM block by block, read off the model itself: `summarize` as a table, `draw` as a picture."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pandas as pd
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.flop_counter import FlopCounterMode

from model.dlrm import DLRM

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class _Call:
    """What went into a module and what came out of it."""

    inputs: tuple[Tensor, ...]
    output: Tensor
    flops: int


def summarize(model: DLRM, batch_size: int) -> pd.DataFrame:
    """One row a block, in the order of the forward pass.

    Columns: name (of the module), kind, output shape, parameters (number), FLOPs (of the matrix products, as
    torch.utils.flop_counter counts them: a multiply-add is two; pointwise work and the comparisons of a hash are not
    counted), bytes read and bytes written (the least that the block must move: inputs, parameters and buffers once,
    outputs once; of an embedding table only the rows looked up). A linear layer's row includes its ReLU.

    Nothing is computed: the model runs on the meta device, so any batch size will do.
    """
    calls = _trace(model, batch_size)
    rows = []
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            rows.append(_row(name, _linear_kind(model, name), module, calls[name]))
        elif name == "interaction_arch":
            rows.append(_row(name, f"Interaction ({module.interaction})", module, calls[name]))
        elif name == "sparse_arch":
            rows.extend(_table_row(model, f, batch_size) for f in range(len(module.tables)))
    return pd.DataFrame(rows)


def draw(model: DLRM, ax: "Axes | None" = None) -> "Axes":
    """The architecture as a picture, data flowing upwards; shapes and parameter counts are the model's own.

    With more than four embedding tables only the first three and the last are drawn. Without `ax` a figure of a fitting
    size is made; it is `draw(model).figure`.
    """
    import matplotlib.pyplot as plt  # here, so that a table needs no drawing library

    calls = _trace(model, 1)
    bottom, top = (
        [name for name, module in model.named_modules() if isinstance(module, nn.Linear) and name.startswith(arch)]
        for arch in ("dense_arch", "over_arch")
    )
    tables = len(model.sparse_arch.tables)
    body = max(len(bottom), 2) * _STEP  # the dense path, and beside it hash and table
    meeting = _STEP + body + 0.3  # the lower edge of the interaction
    over = meeting + _STEP + 0.3  # that of the top MLP
    end = over + len(top) * _STEP
    if ax is None:
        ax = plt.subplots(figsize=(0.92 * _WIDTH, 0.92 * (end + 0.5)), layout="constrained")[1]
    ax.set(xlim=(0, _WIDTH), ylim=(0, end + 0.5), aspect="equal")
    ax.axis("off")

    # The dense path.
    x = 2.05
    _panel(ax, 0.1, _STEP, 3.4, body, "DenseArch", model.dense_arch, "dense")
    _label(ax, x, 0.3, f"dense  {_shape(calls['dense_arch'].inputs[0])}")
    _arrow(ax, x, 0.5, _STEP)
    _tower(ax, model, calls, bottom, x, _STEP, "dense")
    _arrow(ax, x, _STEP + len(bottom) * _STEP - _GAP, meeting)
    _label(ax, x + 0.1, meeting - 0.23, _shape(calls["dense_arch"].output), small=True)

    # The sparse path.
    left, right = 3.7, _WIDTH - 0.1
    shown = {f: f for f in range(tables)} if tables <= 4 else {0: 0, 1: 1, 2: 2, 4: tables - 1}  # slot → table
    pitch = (right - left - 0.65) / (max(shown) + 1)
    slots = [left + 0.55 + (slot + 0.5) * pitch for slot in range(max(shown) + 1)]
    floor = _STEP + (body - 2 * _STEP) / 2
    _panel(ax, left, _STEP, right - left, body, "SparseArch", model.sparse_arch, "sparse")
    _label(ax, sum(slots) / len(slots), 0.3, f"sparse  [B, {tables}]  int64 ids")
    for slot, x in enumerate(slots):
        if slot not in shown:
            for y in (floor, floor + _STEP):
                ax.text(x, y + _BOX / 2, "…", ha="center", va="center", fontsize=18, color=_INK)
            continue
        rows, embedding_dim = model.sparse_arch.table(shown[slot]).shape
        hash_ = model.sparse_arch.hashes[shown[slot]]
        width = min(pitch - 0.14, 1.6)
        _arrow(ax, x, 0.5, floor)
        _box(ax, x, floor, width, type(hash_).__name__.removesuffix("Hash"), "id → row", "hash")
        _arrow(ax, x, floor + _BOX, floor + _STEP)
        size = f"{rows:,} × {embedding_dim}"
        _box(ax, x, floor + _STEP, width, f"table {shown[slot]}", size, "sparse")
        _arrow(ax, x, floor + _STEP + _BOX, meeting)
    x = slots[-2 if len(slots) > 1 else 0] + 0.1
    _label(ax, x, meeting - 0.23, _shape(calls["sparse_arch"].output), small=True)

    # Where they meet, and the top MLP.
    x = _WIDTH / 2
    arch = model.interaction_arch
    detail = f"{tables + 1} vectors of {arch.embedding_dim} → {arch.out_features:,} features"
    _box(ax, x, meeting, _WIDTH - 0.2, f"InteractionArch: {arch.interaction}", detail, "meet")
    _arrow(ax, x, meeting + _BOX, over)
    _label(ax, x + 0.1, meeting + _BOX + 0.2, _shape(calls["interaction_arch"].output), small=True)
    _panel(ax, x - 1.95, over, 3.4, len(top) * _STEP, "OverArch", model.over_arch, "over")
    _tower(ax, model, calls, top, x, over, "over")
    _arrow(ax, x, end - _GAP, end + 0.1)
    _label(ax, x, end + 0.28, f"logit  {_shape(calls[''].output)}")
    ax.text(_WIDTH - 0.1, end + 0.28, f"{_count(model)} in all", ha="right", va="center", fontsize=10, color=_INK)
    return ax


_WIDTH, _STEP, _BOX = 11.0, 1.0, 0.62  # in units of the picture: its width, one floor, the box on it
_GAP = _STEP - _BOX
_INK = "#1f2933"
_FILL = {"dense": "#9cc3e6", "hash": "#fbe3c4", "sparse": "#f6bf7e", "meet": "#a9d8b0", "over": "#c9b3e6"}


def _tower(ax, model: DLRM, calls: dict[str, _Call], layers: list[str], x: float, y: float, fill: str) -> None:
    """Linear layers from the bottom up, each arrow between them labelled with what passes along it."""
    for name in layers:
        linear = model.get_submodule(name)
        _box(ax, x, y, 2.5, _linear_kind(model, name), f"{linear.in_features:,} → {linear.out_features:,}", fill)
        if name != layers[0]:
            _arrow(ax, x, y - _GAP, y)
            _label(ax, x + 0.1, y - _GAP / 2, _shape(calls[name].inputs[0]), small=True)
        y += _STEP


def _box(ax, x: float, y: float, width: float, title: str, detail: str, fill: str) -> None:
    _rectangle(ax, x - width / 2, y, width, _BOX, fc=_FILL[fill], ec=_INK, lw=0.8, zorder=3)
    centred = {"ha": "center", "va": "center", "color": _INK, "zorder": 4}
    ax.text(x, y + _BOX * 0.68, title, fontsize=9, fontweight="bold", **centred)
    ax.text(x, y + _BOX * 0.3, detail, fontsize=8.5, **centred)


def _panel(ax, x: float, y: float, width: float, floors: float, name: str, arch: nn.Module, fill: str) -> None:
    """A tinted ground under the boxes of one arch, its name and size along the left edge."""
    _rectangle(ax, x, y - 0.15, width, floors - _GAP + 0.3, fc=_FILL[fill], ec="none", alpha=0.25, zorder=0)
    middle = y + (floors - _GAP) / 2
    ax.text(
        x + 0.3, middle, f"{name}\n{_count(arch)}", rotation=90, ha="center", va="center", fontsize=8, color=_INK,
        linespacing=1.3,
    )


def _rectangle(ax, x: float, y: float, width: float, height: float, **style) -> None:
    from matplotlib.patches import FancyBboxPatch

    ax.add_patch(FancyBboxPatch((x, y), width, height, boxstyle="round,pad=0,rounding_size=0.1", **style))


def _arrow(ax, x: float, y: float, end: float) -> None:
    arrow = {"arrowstyle": "-|>", "color": _INK, "lw": 1.0, "shrinkA": 0, "shrinkB": 0}
    ax.annotate("", (x, end), (x, y), arrowprops=arrow, zorder=2)


def _label(ax, x: float, y: float, text: str, small: bool = False) -> None:
    """What enters or leaves the model, centred on x; or, small, what passes along the arrow at x."""
    ax.text(x, y, text, ha="left" if small else "center", va="center", fontsize=8 if small else 10, color=_INK)


def _shape(tensor: Tensor) -> str:
    return f"[{', '.join(['B', *(f'{size:,}' for size in tensor.shape[1:])])}]"


def _count(module: nn.Module) -> str:
    return f"{_parameters(module):,} parameters"


def _trace(model: DLRM, batch_size: int) -> dict[str, _Call]:
    """Run the model's forward on the meta device and note every module's inputs, output and FLOPs."""
    seen: dict[str, tuple[tuple[Tensor, ...], Tensor]] = {}

    def note(name: str):
        def hook(_module, inputs, output):
            seen[name] = (tuple(x for x in inputs if isinstance(x, Tensor)), output)

        return hook

    handles = [module.register_forward_hook(note(name)) for name, module in model.named_modules()]
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    meta = {name: torch.empty_like(tensor, device="meta") for name, tensor in state.items()}
    dtype = model.over_arch.logit.weight.dtype
    dense = torch.empty(batch_size, model.config.bottom[0], dtype=dtype, device="meta")
    sparse = torch.empty(batch_size, len(model.config.cardinalities), dtype=torch.int64, device="meta")
    try:
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            functional_call(model, meta, (dense, sparse))
    finally:
        for handle in handles:
            handle.remove()
    counts = counter.get_flop_counts()
    root = type(model).__name__
    return {
        name: _Call(inputs, output, sum(counts.get(f"{root}.{name}" if name else root, {}).values()))
        for name, (inputs, output) in seen.items()
    }


def _row(name: str, kind: str, module: nn.Module, call: _Call) -> dict:
    stored = [*module.parameters(), *module.buffers()]
    return {
        "name": name,
        "kind": kind,
        "output shape": tuple(call.output.shape),
        "parameters": _parameters(module),
        "FLOPs": call.flops,
        "bytes read": sum(tensor.nbytes for tensor in (*stored, *call.inputs)),
        "bytes written": call.output.nbytes,
    }


def _table_row(model: DLRM, feature: int, batch_size: int) -> dict:
    """An id, its row of the table, and what the hash has to know."""
    hash_, table = model.sparse_arch.hashes[feature], model.sparse_arch.table(feature)
    looked_up = batch_size * table[0].nbytes
    known = sum(buffer.nbytes for buffer in hash_.state_dict().values())
    return {
        "name": f"sparse_arch.tables.{feature}",
        "kind": f"{type(hash_).__name__} + Embedding",
        "output shape": (batch_size, table.shape[1]),
        "parameters": table.numel(),
        "FLOPs": 0,
        "bytes read": batch_size * torch.int64.itemsize + known + looked_up,
        "bytes written": looked_up,
    }


def _linear_kind(model: DLRM, name: str) -> str:
    return "Linear" if model.get_submodule(name) is model.over_arch.logit else "Linear + ReLU"


def _parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
