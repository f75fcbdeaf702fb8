"""The puzzles of 21_a_compiler_that_says_why_not.ipynb.

fool      two programs that the naive rewrite gets wrong: one gives another number, the other fails
rewrite   graph → None: relu(x + bias) becomes kernels.add_relu where that is right, and nowhere else
shadow    (backend, differs) → a backend that runs the graph and what `backend` made of it, and notes where they differ
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, fx
from torch.nn import functional as F

import kernels
from lessons.n21_a_compiler_that_says_why_not import patterns
from lessons.n21_a_compiler_that_says_why_not.patterns import ADDS, by, naive
from lessons.n21_a_compiler_that_says_why_not.running import compiled, copies, raised, ran
from lessons.n21_a_compiler_that_says_why_not.shadow_puzzle import watched
from lessons.shared.puzzle import Judge, Own, reader

# ---------------------------------------------------------------------------------------------------- to fool a rewrite


def operands() -> list[Tensor]:
    """x [4, 8] and bias [8]."""
    torch.manual_seed(1)
    return [torch.randn(4, 8), torch.randn(8)]


UNSEEN = "The rewrite looks at two targets. What else may a node have, or what may happen between the two calls?"


@torch.enable_grad()  # the notebook's last cells have none
def fooled(silent: Callable, loud: Callable) -> str:
    """What becomes of both programs by the naive rewrite; AssertionError where one does not fool it."""
    said = []
    for name, program in (("silent", silent), ("loud", loud)):
        if not callable(program):
            raise AssertionError(f"{name}: give the function itself; got {type(program).__name__}")
        inputs = operands()
        try:
            right = ran(program, inputs)
        except Exception as error:
            raise AssertionError(f"{name}: eager fails already: {raised(error)}") from error
        if not right.results:
            raise AssertionError(f"{name}: must return a tensor")
        as_it_is = compiled(program, lambda gm, _: gm.forward)
        if again := ran(program, inputs).unlike(right) or ran(as_it_is, inputs).unlike(right):
            raise AssertionError(
                f"{name}: without any rewrite, too, {again}\nHint: It must give the same whenever it is called, and "
                "whoever compiles it."
            )
        try:
            unlike = ran(compiled(program, by(naive)), inputs).unlike(right)
        except Exception as error:
            if name == "silent":
                raise AssertionError(
                    f"silent: the rewrite makes it fail: {raised(error)}\nHint: That is loud. Here nobody may notice."
                ) from error
            said.append(f"loud fails: {raised(error)}")
            continue
        if name == "loud":
            fate = f"no error: {unlike}" if unlike else "it is as eager"
            raise AssertionError(
                f"loud: {fate}\nHint: add_relu(x, bias) takes x [..., N] and bias [N] of one floating dtype. relu(x + "
                "bias) takes more."
            )
        if not unlike:
            raise AssertionError(f"silent: it is as eager\nHint: {UNSEEN}")
        said.append(f"silent is wrong: {unlike}")
    return "; ".join(said)


# -------------------------------------------------------------------------------------------------- a rewrite that asks


@dataclass(frozen=True)
class Case:
    """A program of relu(x + bias); how often it may be replaced, and what to think of where it is otherwise."""

    name: str
    program: Callable
    counts: set[int]
    hint: str
    shape: tuple[int, ...] = (4, 8)
    bias: tuple[int, ...] = (8,)
    dtypes: tuple[torch.dtype, torch.dtype] = (torch.float32, torch.float32)
    gradient: bool = False
    dynamic: bool = False

    def inputs(self) -> list[Tensor]:
        torch.manual_seed(2)
        tensors = [
            torch.randn(shape).mul(8 if not dtype.is_floating_point else 1).to(dtype).requires_grad_(self.gradient)
            for shape, dtype in zip((self.shape, self.bias), self.dtypes, strict=True)
        ]
        if self.dynamic:
            torch._dynamo.mark_dynamic(tensors[0], 0)
        return tensors


def layer(x, bias):
    return torch.relu(x + bias)


def twice(x, bias):
    return F.relu(torch.add(bias, torch.relu(x + bias)))


def read_by_others(x, bias):
    total = x + bias
    return torch.relu(total), total * 2


def written(x, bias):
    total = x + bias
    total.mul_(-1)
    return torch.relu(total)


def written_by_a_view(x, bias):
    total = x + bias
    total.view(-1)[3:9] = 5.0
    return torch.relu(total)


def operand_written(x, bias):
    total = x + bias
    bias.mul_(-1)
    return torch.relu(total)


def operand_written_by_a_view(x, bias):
    total = x + bias
    x[1:].fill_(7.0)
    return torch.relu(total)


def operand_written_by_an_index(x, bias):  # operator.setitem: a function, and no method
    total = x + bias
    x[1:] = 7.0
    return torch.relu(total)


HALF, INTEGERS = torch.float16, (torch.int64, torch.int64)
ROW = "add_relu(x, bias) adds a row: bias is [N], where x and the result are [..., N]. A node's meta has the shapes."
DTYPE = "add_relu takes x and bias of one floating dtype. A sum of two dtypes is promoted; one of integers is integers."
ORDER = "bias + x is the same sum: try both orders of the operands."
WRITTEN = "Between the sum and relu something is written to. Who are total.users?"
PLACE = (
    "An operand is written to after the sum. Where does your call stand: does it read the operands before that, as the "
    "sum did?"
)
ONCE = "Replace relu(x + bias): relu in RELUS, the sum in ADDS. Erase both nodes, relu first."
LEFT = "There is no relu(x + bias) here that add_relu can compute."
CASES = [
    Case("relu(x + bias)", layer, {1}, ONCE),
    Case("two layers, the second as relu(add(bias, y))", twice, {2}, f"{ORDER} And a node that you add has no meta of "
         "its own: relu's fits."),
    Case("x [2, 4, 8]", layer, {1}, "x may have any number of dimensions.", shape=(2, 4, 8)),
    Case("float16", layer, {1}, DTYPE, dtypes=(HALF, HALF)),
    Case("with gradients", layer, {1}, "add_relu has a gradient of its own.", gradient=True),
    Case("any number of rows", layer, {1}, "A size may be a symbol.", shape=(6, 8), dynamic=True),
    Case("the sum is read by others", read_by_others, {0}, "The sum is needed anyway, so nothing is saved: who are "
         "total.users?"),
    Case("the sum is written to", written, {0}, WRITTEN),
    Case("the sum is written to by a view", written_by_a_view, {0}, WRITTEN),
    Case("add(x, bias, alpha=2)", lambda x, bias: torch.relu(torch.add(x, bias, alpha=2)), {0},
         "A call has keyword arguments, too: node.kwargs."),
    Case("x + 1.0", lambda x, bias: torch.relu(x + 1.0), {0}, "An operand may be a number, which is no node."),
    Case("relu of an input", lambda x, bias: torch.relu(x) + bias, {0}, LEFT),
    Case("relu(input=x + bias)", lambda x, bias: F.relu(input=x + bias), {0, 1},
         "A call may have all its arguments by name: then node.args is empty."),
    Case("relu in place", lambda x, bias: F.relu(x + bias, inplace=True), {0, 1}, ONCE),
    Case("a method: (x + bias).relu()", lambda x, bias: (x + bias).relu(), {0, 1}, "Leave what you do not know."),
    Case("relu(x - bias)", lambda x, bias: torch.relu(x - bias), {0}, LEFT),
    Case("dropout between", lambda x, bias: torch.relu(F.dropout(x + bias, 0.5, training=True)), {0}, LEFT),
    Case("float16 + float32", layer, {0}, DTYPE, dtypes=(HALF, torch.float32)),
    Case("float32 + float64", layer, {0}, DTYPE, dtypes=(torch.float32, torch.float64)),
    Case("integers", layer, {0}, DTYPE, dtypes=INTEGERS),
    Case("bias [4, 8]", layer, {0}, ROW, bias=(4, 8)),
    Case("bias [1]", layer, {0}, ROW, bias=(1,)),
    Case("bias [1, 8]", layer, {0}, ROW, bias=(1, 8)),
    Case("bias [], a tensor of no dimension", layer, {0}, ROW, bias=()),
    Case("x [4, 1], whose row is spread over 8", layer, {0}, ROW, shape=(4, 1)),
    Case("x [8], the row, and bias [4, 8]", layer, {1}, ORDER, shape=(8,), bias=(4, 8)),
    Case("bias [2, 4, 8] beside x [4, 8]", layer, {0}, ROW, bias=(2, 4, 8)),
    Case("x transposed", lambda x, bias: torch.relu(x.t() + bias), {0},
         "add_relu's result is contiguous. Is eager's? Its strides are in its meta, too.", shape=(8, 4)),
    Case("bias is written to before relu", operand_written, {0, 1}, PLACE),
    Case("x is written to, by a view, before relu", operand_written_by_a_view, {0, 1}, PLACE),
    Case("x is written to, by an index, before relu", operand_written_by_an_index, {0, 1}, PLACE),
]  # fmt: skip


def graph_of(case: Case) -> tuple[fx.GraphModule, list]:
    """Dynamo's graph of a case, and what it is called with."""
    found = []

    def keep(gm, inputs):
        found.append((gm, copies(inputs)))
        return gm.forward

    compiled(case.program, keep)(*case.inputs())
    ((gm, inputs),) = found
    return gm, inputs


@torch.enable_grad()  # the notebook's last cells have none
def asked(answer: Callable) -> str:
    """How many cases a rewrite gets right; AssertionError of the first that it does not."""
    answer = reader.alone(answer)
    for case in CASES:
        told = f"rewrite, case {case.name}: "
        gm, inputs = graph_of(case)
        right = ran(copy.deepcopy(gm).forward, inputs)
        known = {node.target for node in gm.graph.nodes} | {kernels.add_relu}
        try:
            answer(gm.graph)
            gm.graph.lint()
            gm.recompile()
        except Exception as error:
            if reader.WRITE_IT in str(error):
                raise AssertionError(f"{told}{error}") from error
            raise AssertionError(f"{told}{raised(error)}{reader.line_of(error, reader.files_of([answer]))}\n"
                                 f"Hint: {case.hint}") from error  # fmt: skip
        nodes = list(gm.graph.nodes)
        if strangers := [node for node in nodes if node.target not in known]:
            raise AssertionError(f"{told}{strangers[0].target} is new in it\nHint: Put kernels.add_relu there itself.")
        try:
            unlike = ran(gm.forward, inputs).unlike(right)
        except Exception as error:
            raise AssertionError(f"{told}what you made of it fails: {raised(error)}\nHint: {case.hint}") from error
        if unlike:
            raise AssertionError(f"{told}{unlike}\nHint: {case.hint}")
        count = sum(node.target is kernels.add_relu for node in nodes)
        if count not in case.counts:
            raise AssertionError(f"{told}add_relu is there {count} ×, not {max(case.counts)} ×\nHint: {case.hint}")
        if any(node.target in ADDS and not node.users for node in nodes):
            raise AssertionError(f"{told}a sum is computed that nobody reads\nHint: Erase its node, after relu's.")
    return f"as eager in {len(CASES)} cases, and replaced where it should be"


PUZZLES = {"fool": Own(fooled), "rewrite": Own(asked), "shadow": Own(watched)}
JUDGE = Judge(PUZZLES)
attempt = JUDGE.attempt


def solution(name: str) -> Callable:
    """The reader's answer, once it is right; until then the lesson's."""
    return JUDGE.solved.get(name, getattr(patterns, name))
