"""DLRMs put together at random of the spellings of compiled_parts.py.

Some are one dlrm_forward, of some an op computes parts, of some nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import torch
from compiled_parts import (
    ACTIVATIONS,
    AROUND,
    BESIDE,
    EVENTS,
    HEIGHT,
    JOINED,
    LINEAR,
    LOOK_UPS,
    ORDERS,
    PAIRS,
    PLACES,
    PRODUCTS,
    STAGES,
    TAKEN,
    Pass,
)
from hypothesis import strategies as st
from torch import Tensor, nn

DENSE, HIDDEN = 5, (3, 6)


@dataclass(frozen=True)
class Recipe:
    """How a model is written, by the names of compiled_parts.py; a layer is (spelling, activation)."""

    width: int
    look_ups: tuple[str, ...]
    tables: tuple[int, ...]  # which table each of these reads
    bottom: tuple[tuple[str, str], ...]
    top: tuple[tuple[str, str], ...]
    joined: str
    order: str
    product: str
    pairs: str
    taken: str
    beside: str
    events: tuple[tuple[str, str], ...]  # (place, event)
    around: tuple[tuple[str, str], ...]  # (stage, what is around it)
    frozen: tuple[str, ...]
    dtype: torch.dtype


class Model(nn.Module):
    """(dense [B, 5], ids [F, 2 B], offsets [F, B]) → (out [B, N], what else is read of it …)."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        self.recipe = recipe
        features, width = len(recipe.look_ups), recipe.width
        self.tables = nn.ParameterList(torch.randn(HEIGHT, width) for _ in range(features))
        vectors = len(ORDERS[recipe.order](0, [*range(features)]))
        self.register_buffer("indices", PAIRS[recipe.pairs](vectors))
        pairs = torch.zeros(1, self.indices.shape[1])
        bags = [torch.zeros(1, width)] * features
        columns = torch.cat(BESIDE[recipe.beside](torch.zeros(1, width), bags, pairs), 1).shape[1]
        self.bottom = self.mlp(DENSE, len(recipe.bottom), width)
        self.top = self.mlp(columns, len(recipe.top), 1)
        self.to(recipe.dtype)
        for name, value in self.named_parameters():
            value.requires_grad_(not name.startswith(recipe.frozen))

    @staticmethod
    def mlp(inputs: int, layers: int, outputs: int) -> nn.ModuleList:
        widths = [inputs, *(HIDDEN[k % 2] for k in range(layers - 1)), outputs]
        return nn.ModuleList(nn.Linear(widths[k], widths[k + 1]) for k in range(layers))

    def forward(self, dense: Tensor, ids: Tensor, offsets: Tensor) -> tuple[Tensor, ...]:
        recipe, run = self.recipe, Pass([], [])

        def stage(name: str, function: Callable, *values):
            for place, around in recipe.around:
                if place == name:
                    function = AROUND[around](function)
            return function(*values)

        vector = stage("bottom", lambda v: self.layers("bottom", "hidden", v, run), self.at("dense", dense, run))
        vector = self.at("vector", vector, run)
        looked_up = stage("look_ups", lambda i, o: self.look_up(i, o, run), ids, offsets)
        joined = stage("interaction", lambda v, *bags: self.interact(v, bags, run), vector, *looked_up)
        out = stage("top", lambda z: self.layers("top", "top_hidden", z, run), self.at("interaction", joined, run))
        return self.at("out", out, run), *run.more

    def at(self, place: str, value: Tensor, run: Pass) -> Tensor:
        while run.later:
            run.later.pop().zero_()
        for where, event in self.recipe.events:
            if where == place:
                value = EVENTS[event](value, run)
        return value

    def layers(self, name: str, place: str, value: Tensor, run: Pass) -> Tensor:
        spelled = zip(getattr(self, name), getattr(self.recipe, name), strict=True)
        for k, (layer, (linear, activation)) in enumerate(spelled):
            value = self.at(place, value, run) if k else value
            if value.dtype != layer.weight.dtype:
                value = value.to(layer.weight.dtype)
            value = ACTIVATIONS[activation](LINEAR[linear](value, layer.weight, layer.bias))
        return value

    def look_up(self, ids: Tensor, offsets: Tensor, run: Pass) -> list[Tensor]:
        looked_up = []
        for k, (name, table) in enumerate(zip(self.recipe.look_ups, self.recipe.tables, strict=True)):
            bag = LOOK_UPS[name](self.tables[table], ids[k], offsets[k])
            looked_up.append(self.at("bag", bag, run) if k == 0 else bag)
        return looked_up

    def interact(self, vector: Tensor, bags: list[Tensor], run: Pass) -> Tensor:
        recipe = self.recipe
        together = JOINED[recipe.joined](ORDERS[recipe.order](vector, list(bags)))
        products = PRODUCTS[recipe.product](together)
        pairs = self.at("products", TAKEN[recipe.taken](products, recipe.pairs, self.indices), run)
        return torch.cat(BESIDE[recipe.beside](vector, list(bags), pairs), 1)


class Two(nn.Module):
    """Two models in one graph, of the same width and dtype: a model twice, or another with the first's tables, or one
    that reads what the first gives. They return the results of both."""

    def __init__(self, first: Recipe, second: Recipe, how: str) -> None:
        super().__init__()
        self.how, self.first = how, Model(first)
        self.second = self.first if how == "twice" else Model(second)
        if how == "tied":
            for k in range(min(map(len, (first.look_ups, second.look_ups)))):
                self.second.tables[k] = self.first.tables[k]

    def forward(self, dense: Tensor, ids: Tensor, offsets: Tensor) -> tuple[Tensor, ...]:
        out, *more = self.first(dense, ids, offsets)
        dense = dense + out.to(dense.dtype) if self.how == "chained" else dense.flip(0)
        return out, *more, *self.second(dense, ids, offsets)


def inputs(recipes: list[Recipe], rows: int, ragged: bool) -> tuple[Tensor, Tensor, Tensor]:
    """dense [rows, 5], ids [F, 2 rows], offsets [F, rows] for the largest F: each bag has two ids, or any number."""
    features = max(len(recipe.look_ups) for recipe in recipes)
    offsets = torch.arange(0, 2 * rows, 2).repeat(features, 1)
    if ragged:
        offsets = torch.randint(2 * rows + 1, (features, rows)).sort(1).values
        offsets[:, :1] = 0
    dense = torch.randn(rows, DENSE, dtype=recipes[0].dtype)
    return dense, torch.randint(HEIGHT, (features, 2 * rows)), offsets


@st.composite
def recipes(draw) -> Recipe:
    """Plain spellings, which an op computes, and deviations from them, of which a model has few or several."""
    odds = draw(st.sampled_from([3, 6, 12, 60]))

    def name(table: dict, plain: int) -> str:
        """One of the first `plain` names, or, about once in `odds`, any."""
        names = list(table)
        return draw(st.sampled_from(names if draw(st.integers(1, odds)) == odds else names[:plain]))

    def layers() -> tuple[tuple[str, str], ...]:
        """Layers of one spelling and one activation, or each of its own."""
        count, alike = draw(st.integers(1, 3)), draw(st.booleans())
        spelled, between, last = name(LINEAR, 4), name(ACTIVATIONS, 5), name(ACTIVATIONS, 4)
        several = [(spelled if alike else name(LINEAR, 4), between if alike else name(ACTIVATIONS, 3))
                   for _ in range(count - 1)]  # fmt: skip
        return (*several, (spelled, last))

    def some(places: tuple[str, ...], table: dict, counts: list[int]) -> tuple[tuple[str, str], ...]:
        count = draw(st.sampled_from(counts))
        return tuple((draw(st.sampled_from(places)), draw(st.sampled_from(list(table)))) for _ in range(count))

    features = draw(st.integers(1, 4))
    alike, look_up, tied = draw(st.integers(0, 4)), name(LOOK_UPS, 4), draw(st.integers(0, 5)) == 5
    return Recipe(
        width=draw(st.sampled_from([1, 4, 8])),
        look_ups=tuple(look_up if alike else name(LOOK_UPS, 5) for _ in range(features)),
        tables=tuple(draw(st.integers(0, features - 1)) if tied else k for k in range(features)),
        bottom=layers(),
        top=layers(),
        joined=name(JOINED, 4),
        order=name(ORDERS, 1),
        product=name(PRODUCTS, 4),
        pairs=name(PAIRS, 5),
        taken=name(TAKEN, 3),
        beside=name(BESIDE, 1),
        events=some(PLACES, EVENTS, [0, 0, 0, 1, 1, 2]),
        around=some(STAGES, AROUND, [0, 0, 0, 0, 0, 0, 0, 1]),
        frozen=draw(st.sampled_from([(), (), (), ("bottom",), ("top",), ("tables",), ("bottom", "top")])),
        dtype=torch.float64 if draw(st.integers(0, 9)) == 9 else torch.float32,
    )


@st.composite
def programs(draw) -> tuple[tuple[Recipe, ...], str]:
    """One model, and sometimes another, with how they go together."""
    first, how = draw(recipes()), draw(st.sampled_from(["one"] * 6 + ["twice", "tied", "chained"]))
    if how in ("one", "twice"):
        return (first,), how
    return (first, dataclasses.replace(draw(recipes()), width=first.width, dtype=first.dtype)), how
