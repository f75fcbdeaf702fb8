"""What the backend replaced in a model's graphs, and what it nearly did: kernels.explain."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import fx

from ..runtime import PACKAGE
from .constants import static_inputs
from .forms import ON_CPU
from .match import Declined
from .replace import Site, rewrite

AS_ON_GPU = f"what it is on a GPU: with {PACKAGE}.compiler.as_on_gpu(): print({PACKAGE}.explain(…))"


class Replaced(NamedTuple):
    """One op in place of some calls: its name, their names in Dynamo's graph, its shape, the form that computes it, its
    place in the program."""

    op: str
    nodes: tuple[str, ...]
    note: str
    form: str
    place: str

    def __str__(self) -> str:
        names = self.nodes[0] if len(self.nodes) == 1 else f"{self.nodes[0]} … {self.nodes[-1]}"
        return f"{self.op}: {self.note}, {self.form} (for {names}{self.place})"


@dataclass
class Explanation:
    """What became of a model. `print` shows it.

    replaced: what was replaced by which op. declined: a sentence for each place that a pattern nearly matched: the op,
    the condition that failed, the node, the line. graphs: how many torch.compile made of the model.
    """

    replaced: list[Replaced] = field(default_factory=list)
    declined: list[str] = field(default_factory=list)
    graphs: int = 0

    def __str__(self) -> str:
        cut = ", between which nothing is matched; TORCH_LOGS=graph_breaks says what cuts it" if self.graphs > 1 else ""
        lines = [f"torch.compile makes {self.graphs or 'no'} graph{'' if self.graphs == 1 else 's'} of it{cut}"]
        lines += ["replaced:" if self.replaced else "nothing is replaced", *(f"  {item}" for item in self.replaced)]
        lines += ["not replaced:", *(f"  {sentence}" for sentence in self.declined)] if self.declined else []
        lines += [AS_ON_GPU] if any(ON_CPU in sentence for sentence in self.declined) else []
        return "\n".join(lines)


def explain_with(run: Callable[[Callable], None]) -> Explanation:
    """What is made of the graphs that `run(backend)` has compiled by a backend."""
    compiled: dict[object, tuple[list[Replaced], list[str]]] = {}

    def backend(gm: fx.GraphModule, example_inputs: list) -> Callable:
        done = rewrite(gm, static_inputs(gm, example_inputs))
        told = [replaced(site) for site in done.sites], [sentence(item) for item in done.declined]
        # Dynamo may start over with a graph: the last one of a compilation is what runs.
        compiled[gm.meta.get("dynamo_compile_id", len(compiled))] = told
        return done.original.forward

    run(backend)
    explanation = Explanation(graphs=len(compiled))
    for replacements, declined in compiled.values():
        explanation.replaced += replacements
        explanation.declined += declined
    return explanation


def replaced(site: Site) -> Replaced:
    found, names = site.found, tuple(call.name for call in site.calls)
    return Replaced(found.op, names, found.note, found.form, place_of(site.calls[-1]))


def sentence(declined: Declined) -> str:
    return f"{declined.op}: {declined.reason} (at {declined.node.name}{place_of(declined.node)})"


def place_of(node: fx.Node) -> str:
    """The module and the line of the program that a node comes from, where they are known: ", top.2, model.py:12"."""
    path = [path for path, _ in node.meta.get("nn_module_stack", {}).values()][-1:]
    module = [name for name in (entry.partition("].")[2] for entry in path) if name]
    lines = re.findall(r'File "(?:.*[/\\])?([^"/\\]+)", line (\d+), in (\S+)', node.meta.get("stack_trace") or "")
    # The last line is that of explain's own call where the model is one of torch's modules.
    line = [f"{file}:{number}" for file, number, function in lines[-1:] if (file, function) != ("lower.py", "call")]
    return "".join(f", {part}" for part in (*module, *line))
