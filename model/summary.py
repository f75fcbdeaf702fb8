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
        elif isinstance(module, nn.Embedding):
            feature = name.rpartition(".")[2]
            rows.append(_embedding_row(name, module, calls[name], calls[f"sparse_arch.hashes.{feature}"], model))
    return pd.DataFrame(rows)


def draw(model: DLRM, ax: "Axes | None" = None) -> "Axes":
    """The architecture as a picture, data flowing upwards; shapes and parameter counts are the model's own.

    Of more than four embedding tables only the first three and the last are drawn. Without `ax` a figure of a fitting
    size is made; it is `draw(model).figure`.
    """
    import matplotlib.pyplot as plt  # here, so that a table needs no drawing library

    calls = _trace(model, 1)
    bottom, top = ([n for n, m in arch.named_modules() if isinstance(m, nn.Linear)] for arch in _mlps(model))
    bottom_height, top_height = len(bottom) * _STEP, len(top) * _STEP
    body = max(bottom_height, 2 * _STEP)  # the dense path, and beside it hash and table
    interaction_y = _STEP + body + 0.5
    height = interaction_y + 2 * _STEP + top_height + 0.35
    if ax is None:
        ax = plt.subplots(figsize=(0.92 * _WIDTH, 0.92 * height), layout="constrained")[1]
    ax.set(xlim=(0, _WIDTH), ylim=(-0.1, height), aspect="equal")
    ax.axis("off")

    # The dense path.
    _panel(ax, 0.1, _STEP - 0.2, 3.3, body + 0.35, f"DenseArch: {_count(model.dense_arch)}", "dense")
    _label(ax, 1.75, 0.3, f"dense  {_shape(calls['dense_arch'].inputs[0])}")
    _tower(ax, model, calls, "dense_arch", bottom, 1.75, _STEP, "dense")
    _arrow(ax, 1.75, 0.5, _STEP)
    _arrow(ax, 1.75, _STEP + bottom_height - _GAP, interaction_y, _shape(calls["dense_arch"].output))

    # The sparse path.
    tables = len(model.sparse_arch.tables)
    shown = list(range(tables)) if tables <= 4 else [0, 1, 2, tables - 1]
    left, right = 3.6, _WIDTH - 0.1
    middle = (left + right) / 2
    _panel(ax, left, _STEP - 0.2, right - left, body + 0.35, f"SparseArch: {_count(model.sparse_arch)}", "sparse")
    _label(ax, middle, 0.3, f"sparse  [B, {tables}]  int64 ids")
    slots = len(shown) + (tables > len(shown))
    pitch = (right - left - 0.2) / slots
    for place, feature in enumerate(shown):
        slot = slots - 1 if feature == tables - 1 else place
        x = left + 0.1 + (slot + 0.5) * pitch
        table, hash_ = model.sparse_arch.tables[feature], model.sparse_arch.hashes[feature]
        width = min(pitch - 0.16, 1.5)
        _box(ax, x, _STEP, width, type(hash_).__name__, "", "hash")
        size = f"{table.num_embeddings:,} × {table.embedding_dim}"
        _box(ax, x, 2 * _STEP, width, f"table {feature}", size, "sparse")
        _arrow(ax, x, 0.5, _STEP)
        _arrow(ax, x, 2 * _STEP - _GAP, 2 * _STEP)
        _arrow(ax, x, 3 * _STEP - _GAP, interaction_y)
    if tables > len(shown):
        for y in (_STEP, 2 * _STEP):
            ax.text(left + 0.1 + 3.5 * pitch, y + _BOX / 2, "…", ha="center", va="center", fontsize=18, color=_INK)
    _label(ax, middle, interaction_y - 0.24, _shape(calls["sparse_arch"].output), background=True)

    # Where they meet, and the top MLP.
    interaction = model.interaction_arch
    centre = _WIDTH / 2
    title = f"InteractionArch: {interaction.interaction}"
    _box(ax, centre, interaction_y, _WIDTH - 0.2, title, f"{tables + 1} vectors of {interaction.embedding_dim}", "meet")
    start = interaction_y + _STEP + 0.2
    _panel(ax, centre - 1.9, start - 0.2, 3.8, top_height + 0.35, f"OverArch: {_count(model.over_arch)}", "over")
    _arrow(ax, centre, interaction_y + _BOX, start, _shape(calls["interaction_arch"].output))
    _tower(ax, model, calls, "over_arch", top, centre, start, "over")
    end = start + top_height
    _arrow(ax, centre, end - _GAP, end + 0.3)
    _label(ax, centre, end + 0.48, f"logit  {_shape(calls[''].output)}")
    ax.text(_WIDTH - 0.1, end + 0.48, f"{_count(model)} in all", ha="right", va="center", fontsize=10, color=_INK)
    return ax


_WIDTH, _STEP, _BOX = 11.0, 1.0, 0.62  # in units of the picture: its width, one floor, the box on it
_GAP = _STEP - _BOX
_INK = "#1f2933"
_FILL = {"dense": "#9cc3e6", "hash": "#fbe3c4", "sparse": "#f6bf7e", "meet": "#a9d8b0", "over": "#c9b3e6"}


def _mlps(model: DLRM) -> tuple[nn.Module, nn.Module]:
    return model.dense_arch, model.over_arch


def _tower(ax, model: DLRM, calls: dict[str, _Call], arch: str, layers: list[str], x: float, y: float, fill: str) -> None:
    """The linear layers of one arch, from the bottom up, each arrow labelled with what passes along it."""
    for floor, layer in enumerate(layers):
        name = f"{arch}.{layer}"
        linear = model.get_submodule(name)
        sizes = f"{linear.in_features:,} → {linear.out_features:,}"
        _box(ax, x, y + floor * _STEP, 2.5, _linear_kind(model, name), sizes, fill)
        if floor:
            _arrow(ax, x, y + floor * _STEP - _GAP, y + floor * _STEP, _shape(calls[name].inputs[0]))


def _box(ax, x: float, y: float, width: float, title: str, detail: str, fill: str) -> None:
    from matplotlib.patches import FancyBboxPatch

    style = "round,pad=0,rounding_size=0.1"
    ax.add_patch(
        FancyBboxPatch((x - width / 2, y), width, _BOX, boxstyle=style, fc=_FILL[fill], ec=_INK, lw=0.8, zorder=3)
    )
    titled = {"ha": "center", "va": "center", "color": _INK, "zorder": 4}
    ax.text(x, y + _BOX * (0.68 if detail else 0.5), title, fontsize=9.5, fontweight="medium", **titled)
    ax.text(x, y + _BOX * 0.3, detail, fontsize=8.5, **titled)


def _panel(ax, x: float, y: float, width: float, height: float, title: str, fill: str) -> None:
    from matplotlib.patches import FancyBboxPatch

    style = "round,pad=0,rounding_size=0.15"
    ax.add_patch(
        FancyBboxPatch((x, y), width, height, boxstyle=style, fc=_FILL[fill], ec="none", alpha=0.25, zorder=0)
    )
    ax.text(x + 0.1, y + height - 0.04, title, ha="left", va="top", fontsize=8.5, color=_INK, zorder=4)


def _arrow(ax, x: float, y: float, end: float, label: str = "") -> None:
    arrow = {"arrowstyle": "-|>", "color": _INK, "lw": 1.0, "shrinkA": 0, "shrinkB": 0}
    ax.annotate("", (x, end), (x, y), arrowprops=arrow, zorder=2)
    ax.text(x + 0.1, (y + end) / 2, label, ha="left", va="center", fontsize=8, color=_INK, zorder=4)


def _label(ax, x: float, y: float, text: str, background: bool = False) -> None:
    box = {"fc": "white", "ec": "none", "pad": 1.5} if background else None
    ax.text(x, y, text, ha="center", va="center", fontsize=8 if background else 10, color=_INK, zorder=5, bbox=box)


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


def _embedding_row(name: str, table: nn.Embedding, call: _Call, hashed: _Call, model: DLRM) -> dict:
    hash_ = model.get_submodule(name.replace("tables", "hashes"))
    known = sum(buffer.nbytes for buffer in hash_.state_dict().values())
    return _row(name, f"{type(hash_).__name__} + Embedding", table, call) | {
        "bytes read": hashed.inputs[0].nbytes + known + call.output.nbytes,
    }


def _linear_kind(model: DLRM, name: str) -> str:
    return "Linear" if model.get_submodule(name) is model.over_arch.logit else "Linear + ReLU"


def _parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
