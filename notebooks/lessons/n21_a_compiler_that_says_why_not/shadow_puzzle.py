"""The puzzle `shadow`: a backend that runs a graph beside what another backend makes of it."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from lessons.n21_a_compiler_that_says_why_not.running import compiled, raised, ran
from lessons.shared.puzzle import reader


@dataclass(frozen=True)
class Watch:
    """A program, a backend to be watched, and the calls: what each is given, and whether it is to be told of."""

    name: str
    program: Callable
    backend: Callable
    calls: Sequence[tuple[list, bool]]
    hint: str


def unchanged(gm, inputs):
    return gm.forward


def other_function(gm, inputs):
    """relu becomes sigmoid, in the graph itself."""
    for node in gm.graph.nodes:
        if node.target is torch.relu:
            node.target = torch.sigmoid
    gm.recompile()
    return gm.forward


def after(change: Callable) -> Callable:
    """The backend whose results are changed: change(results, inputs) → results."""
    return lambda gm, inputs: lambda *inputs: change(list(gm.forward(*inputs)), inputs)


def spoils(results, inputs):
    inputs[0].zero_()
    return results


def in_place(x):
    x.add_(1)
    return x * 2


def two(x):
    return torch.relu(x), x + 1


def noting(backend: Callable, graphs: list) -> Callable:
    """The backend, which also notes each graph that it gets."""

    def both(gm, inputs):
        graphs.append(gm)
        return backend(gm, inputs)

    return both


SPECIAL = [math.nan, math.inf, -math.inf, 0.0, 2.0]
NUMBERS = [-2.0, -0.5, 0.0, 0.5, 3.0]
FIRST = "Keep the graph before `backend` has it: it may change gm, as section 2's does. copy.deepcopy(gm) is one."
WRITES = "A graph may write to its inputs. If both run on the same tensors, the second meets what the first one left."
ONCE = "Compile where Dynamo hands the graph over, and not in every call."
EACH = "Compare all results in every call, not when the graph is compiled."
WATCHES = [
    Watch("a backend that changes nothing", two, unchanged, [(NUMBERS, False)],
          "Note a call only where results differ."),
    Watch("relu becomes sigmoid", two, other_function, [(NUMBERS, True), (NUMBERS, True)], FIRST),
    Watch("NaN and Inf, unchanged", two, unchanged, [(SPECIAL, False)], "NaN is no difference where eager has it, too: "
          "close() knows."),
    Watch("NaN becomes 0", two, after(lambda results, _: [r.nan_to_num(0, torch.inf, -torch.inf) for r in results]),
          [(NUMBERS, False), (SPECIAL, True)], "A NaN that only one of the two has is a difference: close() knows."),
    Watch("rounded otherwise", two, after(lambda results, _: [r * (1 + 1e-6) for r in results]), [(NUMBERS, False)],
          "A last digit is no difference: close() knows."),
    Watch("wrong below 0 only", lambda x: x * 1, after(lambda results, _: [r.abs() for r in results]),
          [([1.0, 2.0], False), ([-1.0, 2.0], True), ([1.0, 2.0], False)], EACH),
    Watch("wrong in the second result", two, after(lambda results, _: [results[0], results[1] + 1]), [(NUMBERS, True)],
          EACH),
    Watch("a program that writes to x", in_place, unchanged, [(NUMBERS, False), (SPECIAL, False)], WRITES),
    Watch("a backend that spoils its inputs", two, after(spoils), [(NUMBERS, False)],
          "The caller must have what the graph itself gives, its inputs included. Who gets the copies?"),
]  # fmt: skip


@torch.enable_grad()  # the notebook's last cells have none
def watched(shadow: Callable) -> str:
    """How many backends a shadow has watched rightly; AssertionError of the first that it does not."""
    if not inspect.isfunction(shadow):
        raise AssertionError(f"shadow: give the function itself; got {type(shadow).__name__}")
    reader.written_by_hand(shadow)
    for watch in WATCHES:
        told, differs, asked, given = f"shadow, case {watch.name}: ", [], [], []
        try:
            backend = shadow(noting(watch.backend, asked), differs)
            if not callable(backend):
                raise AssertionError(f"{told}must return a backend, a function; got {type(backend).__name__}")
            program = compiled(watch.program, noting(backend, given))
            for numbers, tells in watch.calls:
                x, before = torch.tensor(numbers), len(differs)
                right = ran(watch.program, [x])
                if unlike := ran(program, [x]).unlike(right):
                    raise AssertionError(f"{told}the caller gets something else: {unlike}\nHint: {watch.hint}")
                if (len(differs) > before) != tells:
                    noted = "noted, and nothing differs" if not tells else "not noted"
                    raise AssertionError(f"{told}a call with x = {numbers} is {noted}\nHint: {watch.hint}")
            if len(asked) > len(given):
                raise AssertionError(f"{told}`backend` compiled {len(asked)} ×, of {len(given)} graph\nHint: {ONCE}")
        except AssertionError:
            raise
        except Exception as error:
            raise AssertionError(f"{told}{raised(error)}\nHint: {watch.hint}") from error
    return f"{len(WATCHES)} backends watched; the caller always had eager's results"
