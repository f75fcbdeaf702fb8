"""Puzzles on what an op declares, checked with torch.library.opcheck and torch.compile.

schema     the schema of an op that adds scale * x to total
fake       x [R, C] of any strides and dtype → what the op on pairs of columns returns, without its numbers
gradient   (setup_context, backward) of relu(x * w), x [R, C], w [C]
graph      a function that torch.compile must take as one graph, with the notebook's op in it

An op is registered under a new name at each attempt and removed after it; nothing of an answer stays behind.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from kernels import runtime
from lessons.shared.puzzle import Judge, Own

_attempts = itertools.count()


class Wrong(AssertionError):
    """What is wrong with an answer, and the hint that it gets."""

    def __init__(self, what: str, hint: str):
        super().__init__(f"{what}\nHint: {hint}")


@contextmanager
def _op(schema: str, implementation: Callable, fake: Callable | None) -> Iterator[tuple]:
    """(the library, the op) of this schema and implementation, under a name of its own."""
    library = torch.library.Library(f"lecture_puzzle_{next(_attempts)}", "DEF")
    try:
        library.define("op" + schema)
        library.impl("op", implementation, "CompositeExplicitAutograd")
        if fake is not None:
            torch.library.register_fake(f"{library.ns}::op", fake, lib=library)
        yield library, getattr(torch.ops, library.ns).op.default
    finally:
        library._destroy()


def said(error: BaseException) -> str:
    """The sentence of an error that says what happened, in one line."""
    text = re.sub(r"^opcheck\(.*?\): \w+ failed with ", "", str(error)).split("(scroll up")[0]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines)[:200]}" if lines else type(error).__name__


def _opcheck(op, arguments: tuple, what: str, hint: str, tests: tuple[str, ...]) -> None:
    for test in tests:
        try:
            torch.library.opcheck(op, arguments, test_utils=test)
        except Exception as error:
            raise Wrong(f"{what}: opcheck's {test}: {said(error)}", hint) from error


# ------------------------------------------------------------------------------------------------------------ schema

_WRITES = "An argument that is written has the type Tensor(a!): the ! says written, and a is a name for its memory."


def _accumulate(total: Tensor, x: Tensor, scale: float) -> None:
    total.add_(x, alpha=scale)


def _schema(answer: object) -> str:
    if not isinstance(answer, str):
        raise Wrong(f"case a string: expected str, got {type(answer).__name__}", "A schema is text.")
    if (before := answer.partition("(")[0].strip()) and "(" in answer and not before.startswith("Tensor"):
        raise Wrong(f"case the text: it begins with {before}", "The name is there already: begin with the bracket.")
    try:
        parsed = torch._C.parse_schema("op" + answer)
    except RuntimeError as error:
        raise Wrong(f"case the text: {said(error)}", "The form is (type name, type name) -> ().") from error
    given = {each.name: str(each.type) for each in parsed.arguments}
    if given != (wanted := {"total": "Tensor", "x": "Tensor", "scale": "float"}):
        raise Wrong(f"case the arguments: expected {wanted}, got {given}", "Names and types are those of the function.")
    if parsed.returns:
        raise Wrong(
            f"case what it returns: expected (), got {len(parsed.returns)} result",
            "What writes its argument returns nothing: a result that is the argument itself fails opcheck.",
        )
    marked = {each.name: each.alias_info for each in parsed.arguments if each.alias_info is not None}
    if "x" in marked and not marked["x"].is_write:
        raise Wrong(
            "case x: it is said to share its memory, and does not",
            "Letters in brackets name memory that is written or handed on. What is read alone has the type Tensor.",
        )
    if "x" in marked:
        raise Wrong(
            "case x: it is said to be written, and is not",
            "torch.compile would put x back after the op. What is read alone has the type Tensor.",
        )
    with _op(answer, _accumulate, lambda *arguments, **named: None) as (_, op):
        arguments = torch.randn(3), torch.randn(3), 2.0
        total = torch.zeros(3)

        def compiled(total: Tensor, x: Tensor) -> Tensor:
            op(total=total, x=x, scale=2.0)
            return total + 1

        try:
            got = torch.compile(compiled, backend="aot_eager", fullgraph=True)(total, torch.ones(3))
        except Exception as error:
            raise Wrong(f"case total, compiled: {said(error)}", _WRITES) from error
        if total.tolist() != [2.0] * 3 or got.tolist() != [3.0] * 3:
            dropped = f"expected {[2.0] * 3}, got {total.tolist()}: torch.compile left the op out"
            raise Wrong(f"case total, compiled: {dropped}", f"It says that it returns and writes nothing. {_WRITES}")
        if all(not argument.kwarg_only for argument in parsed.arguments):
            _opcheck(op, arguments, "case 3 numbers", _WRITES, ("test_schema", "test_faketensor"))
    return "torch.compile keeps the op, and opcheck finds what is written as it was said"


# -------------------------------------------------------------------------------------------------------------- fake


_answering = [False]  # while a reader's fake runs


def pair_sums(x: Tensor) -> Tensor:
    """x [R, C] → [R, C // 2], float32 and contiguous: the sums of columns 0 and 1, 2 and 3, …; an odd last one is
    left out."""
    if _answering[0]:
        raise Wrong("case the op itself: your fake calls it", "Say what comes out of it, without computing it.")
    pairs = x[:, : x.shape[1] // 2 * 2].float().unflatten(1, (-1, 2))
    return (pairs[..., 0] + pairs[..., 1]).contiguous().clone()


_PROPERTIES = {
    "shape": "Two columns become one, rounded down.",
    "dtype": "The sums are kept in float32, whatever x is.",
    "strides": "The op makes a new contiguous tensor: empty_like keeps the strides of x, torch.empty does not.",
    "device": "The result lies where x does: torch.empty takes device=, x.new_empty knows it.",
}


def _properties(tensor: Tensor) -> dict[str, object]:
    return {"shape": tuple(tensor.shape), "dtype": tensor.dtype, "strides": tensor.stride(), "device": tensor.device}


def _fake_cases() -> Iterator[tuple[str, Tensor]]:
    yield "4×6", torch.randn(4, 6)
    yield "3×7", torch.randn(3, 7)
    yield "4×6 bfloat16", torch.randn(4, 6).bfloat16()
    yield "4×6 transposed", torch.randn(6, 4).T
    yield "every second row of 8×6", torch.randn(8, 6)[::2]


def _fake(answer: object) -> str:
    if not callable(answer):
        raise Wrong(f"case a function: got {type(answer).__name__}", "Give the function itself.")
    with _op("(Tensor x) -> Tensor", pair_sums, answer) as (_, op):
        for what, x in _fake_cases():
            _same_properties(what, answer, x)
        _on_meta(answer)
        for what, x in _fake_cases():
            hint = "A size may be unknown while the graph is made: compute with x.shape, not with int() of it."
            _opcheck(op, (x,), f"case {what}", hint, ("test_faketensor", "test_aot_dispatch_dynamic"))
        _stays_open(op)
    return "your fake and the op agree in shape, dtype, strides and device, for every size"


def _same_properties(what: str, answer: Callable, x: Tensor) -> None:
    mode = FakeTensorMode()
    try:
        with mode:
            _answering[0] = True
            got = answer(mode.from_tensor(x))
    except Wrong:
        raise
    except Exception as error:
        raise Wrong(f"case {what}: {said(error)}", "A fake tensor has a shape and no numbers to read.") from error
    finally:
        _answering[0] = False
    if not isinstance(got, Tensor):
        raise Wrong(f"case {what}: expected a tensor, got {type(got).__name__}", "Return an empty tensor.")
    wanted, given = _properties(pair_sums(x)), _properties(got)
    for name, value in wanted.items():
        if given[name] != value:
            raise Wrong(f"case {what}: {name}: expected {value}, got {given[name]}", _PROPERTIES[name])


def _on_meta(answer: Callable) -> None:
    got = answer(torch.empty(4, 6, device="meta"))
    if got.device.type != "meta":
        raise Wrong(f"case another device: device: expected meta, got {got.device}", _PROPERTIES["device"])


def _stays_open(op) -> None:
    torch._dynamo.reset()
    counted = []

    def backend(graph, inputs):
        counted.append(graph)
        return graph

    function = torch.compile(lambda x: op(x) + 1, backend=backend, dynamic=True, fullgraph=True)
    for rows, columns in ((4, 6), (5, 10), (7, 8)):
        function(torch.randn(rows, columns))
    if len(counted) > 1:
        raise Wrong(
            f"case 4×6, 5×10, 7×8: expected one graph, got {len(counted)}",
            "The fake asked for the number behind a size, so the graph holds for this number alone.",
        )


# ---------------------------------------------------------------------------------------------------------- gradient


def gate(x: Tensor, w: Tensor) -> Tensor:
    """relu(x * w), x [R, C], w [C]."""
    return torch.relu(x * w)


_SUMS = {
    "x": "d out / d x is w where out is above 0, else 0; times grad.",
    "w": "Every row used w: d out / d w is x where out is above 0; times grad, summed over the rows. (autograd happens "
    "to sum what is too large, but backward is to return a gradient of w's shape.)",
}


def _gradient(answer: object) -> str:
    try:
        setup_context, backward = answer
    except (TypeError, ValueError):
        raise Wrong("case two functions: expected (setup_context, backward)", "Give both functions.") from None
    given: list[object] = []

    def watched(ctx, *grads: Tensor) -> object:
        found = backward(ctx, *grads)
        given[:] = found if isinstance(found, tuple | list) else [found]
        return found

    with _op("(Tensor x, Tensor w) -> Tensor", gate, lambda x, w: x.new_empty(x.shape)) as (library, op):
        torch.library.register_autograd(f"{library.ns}::op", watched, setup_context=setup_context, lib=library)
        for what, rows in (("1×3", 1), ("4×3", 4)):
            _same_gradients(what, op, rows, given)
        _sees_changes(op)
        _opcheck(
            op, _operands(4), "case 4×3",
            "What backward did in eager it must do in a graph: compute with tensors only, and write to none, grad "
            "included.",
            ("test_autograd_registration", "test_aot_dispatch_dynamic"),
        )
        _same_where_it_is_special(op)
    return "gradcheck's differences agree, and no tensor that was changed gives a wrong gradient"


def _operands(rows: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(rows)
    x, w = (torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((rows, 3), (3,)))
    x, w = (torch.where(each.abs() < 0.1, 0.5, each) for each in (x, w))  # away from relu's corner
    return x.requires_grad_(), w.requires_grad_()


def _same_gradients(what: str, op, rows: int, given: list[object]) -> None:
    x, w = _operands(rows)
    factor = torch.arange(2.0, 3 * rows + 2, dtype=torch.float64).view(rows, 3)
    wanted = torch.autograd.grad((gate(x, w) * factor).sum(), (x, w))
    try:
        found = torch.autograd.grad((op(x, w) * factor).sum(), (x, w), allow_unused=True)
    except Exception as error:
        hint = (
            "setup_context(ctx, inputs, output) keeps tensors with ctx.save_for_backward(…); backward returns a "
            "gradient for each input."
        )
        raise Wrong(f"case {what}: {said(error)}", hint) from error
    returned = [tuple(each.shape) if isinstance(each, Tensor) else None for each in given]
    for name, a, b, shape in zip("xw", wanted, found, returned, strict=True):
        if b is None:
            raise Wrong(f"case {what}: the gradient of {name}: expected a tensor, got None", _SUMS[name])
        if shape != a.shape:  # of b autograd has seen to it
            shapes = f"expected {list(a.shape)}, got {list(shape)}"
            raise Wrong(f"case {what}: the gradient of {name}: {shapes}", _SUMS[name])
        if not torch.allclose(a, b):
            at = int((a - b).abs().argmax())
            values = f"expected {a.flatten()[at]:.4f}, got {b.flatten()[at]:.4f}"
            place = [int(each) for each in torch.unravel_index(torch.tensor(at), a.shape)]
            raise Wrong(f"case {what}: the gradient of {name}: at {place} {values}", _SUMS[name])
    try:
        torch.autograd.gradcheck(op, (x, w))
    except Exception as error:
        raise Wrong(f"case {what}: gradcheck: {said(error)}", "The gradients must hold for every grad.") from error


def _same_where_it_is_special(op) -> None:
    """0 among w, and an infinite gradient where relu lets none through: gradcheck asks for neither."""
    x, w = (operand.detach().clone() for operand in _operands(4))
    w[1] = 0
    for what, infinite in (("zeros in w", False), ("an infinite gradient", True)):
        grad = torch.ones(4, 3, dtype=torch.float64)
        if infinite:
            w[1] = 1
            grad[gate(x, w) <= 0] = torch.inf
        leaves = [operand.clone().requires_grad_() for operand in (x, w)]
        wanted = torch.autograd.grad(gate(*leaves), leaves, grad)
        found = torch.autograd.grad(op(*leaves), leaves, grad, allow_unused=True)
        for name, a, b in zip("xw", wanted, found, strict=True):
            wrong = ~torch.isclose(a, b, equal_nan=True)
            if wrong.any():
                at = tuple(wrong.nonzero()[0].tolist())
                values = f"expected {a[at]:g}, got {b[at]:g}"
                raise Wrong(f"case 4×3 with {what}: the gradient of {name}: at {list(at)} {values}", _SPECIAL)


_SPECIAL = "0 / 0 and 0 · Inf are NaN: choose with torch.where(out <= 0, 0, …), and divide by nothing that may be 0."


def _sees_changes(op) -> None:
    for n, name in enumerate(("x", "w", "the result")):
        operands = _operands(4)
        wanted = torch.autograd.grad(gate(*operands).sum(), operands)
        out = op(*operands)
        loss = out.sum()
        with torch.no_grad():
            (*operands, out)[n].neg_()
        try:
            found = torch.autograd.grad(loss, operands)
        except RuntimeError:
            continue
        if not all(torch.allclose(a, b) for a, b in zip(wanted, found, strict=True)):
            raise Wrong(
                f"case {name} changed after the forward: expected autograd's error, got a gradient of other numbers",
                "What ctx.save_for_backward keeps, autograd watches; an attribute of ctx it does not. "
                "Save the tensors that the formula reads.",
            )


# ------------------------------------------------------------------------------------------------------------- graph


def scaled(op: Callable, x: Tensor, bias: Tensor) -> Tensor:
    """op(x, bias), divided by its largest number where that is above 1."""
    y = op(x, bias)
    return y / y.max() if y.max() > 1 else y


def _graph(answer: object) -> str:
    if not callable(answer):
        raise Wrong(f"case a function: got {type(answer).__name__}", "Give the function itself.")
    for what, factor in (("a maximum above 1", 3.0), ("a maximum below 1", 0.1)):
        x, bias = _on_the_device(factor)
        wanted = scaled(lambda x, bias: torch.relu(x + bias), x, bias)
        try:
            got = answer(x, bias)
        except Exception as error:
            raise Wrong(f"case {what}, eager: {said(error)}", "First it must run without the compiler.") from error
        if not isinstance(got, Tensor) or got.shape != wanted.shape:
            raise Wrong(f"case {what}: expected a tensor {list(wanted.shape)}", "The result has the shape of x.")
        if not torch.allclose(got, wanted):
            at = int((got - wanted).abs().argmax())
            values = f"at {[at // 6, at % 6]} expected {wanted.flatten()[at]:.4f}, got {got.flatten()[at]:.4f}"
            raise Wrong(f"case {what}: {values}", "Divide by the maximum where it is above 1, else by 1.")
    _in_one_graph(answer)
    return "one graph, with the op as one node of it"


def _on_the_device(factor: float) -> tuple[Tensor, Tensor]:
    """x and bias, where the notebook's kernel runs."""
    generator = torch.Generator().manual_seed(1)
    return factor * torch.rand(4, 6, generator=generator).to(runtime.device()), torch.zeros(6, device=runtime.device())


def _in_one_graph(answer: Callable) -> None:
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    torch._dynamo.reset()
    compiled = torch.compile(answer, backend=backend, fullgraph=True)
    try:
        made = [compiled(*_on_the_device(factor)) for factor in (3.0, 0.1)]
    except Exception as error:
        hint = "A graph holds tensors. Where Python must know a number, for a branch or by .item(), the graph ends."
        raise Wrong(f"case fullgraph=True: {said(error)}", hint) from error
    for what, factor, got in zip(("a maximum above 1", "a maximum below 1"), (3.0, 0.1), made, strict=True):
        wanted = scaled(lambda x, bias: torch.relu(x + bias), *_on_the_device(factor))
        if got.shape != wanted.shape or not torch.allclose(got, wanted):
            at = int((got - wanted).abs().argmax())
            values = f"at {[at // 6, at % 6]} expected {wanted.flatten()[at]:.4f}, got {got.flatten()[at]:.4f}"
            raise Wrong(
                f"case {what}, compiled: {values}", "Compiled and eager are one function: it may not ask which it is."
            )
    called = [node for graph in graphs for node in graph.graph.nodes if node.op == "call_function"]
    targets = [str(node.target) for node in called]
    if not any(str(node.target).startswith("lecture.add_relu") and node.users for node in called):
        raise Wrong(
            f"case the graph: expected lecture.add_relu, its result used, got {', '.join(targets) or 'no call at all'}",
            "Leave y = add_relu(x, bias) as it is: the op was not the reason.",
        )
    values = [node.meta.get("example_value") for graph in graphs for node in graph.graph.nodes]
    if "item" in targets or any(isinstance(value, torch.SymFloat | torch.SymBool) for value in values):
        raise Wrong(
            "case the graph: expected tensors alone, got a number that Python reads",
            "It may fit into a graph, but the host then waits for the GPU. A maximum can stay a tensor.",
        )
    if len(graphs) > 1:
        raise Wrong(
            f"case two inputs of one shape: expected one graph, got {len(graphs)}",
            "The graph was made for one of the numbers, and is compiled again for the next.",
        )


PUZZLES = {"schema": Own(_schema), "fake": Own(_fake), "gradient": Own(_gradient), "graph": Own(_graph)}
attempt = Judge(PUZZLES).attempt
