"""The puzzle whose answer is an op, as load_inline takes it: add_mul_activation in float32, by the op's contract.

On the host it is built by g++, each access looked at (kernels/check/host/inline.py). On a GPU load_inline builds it in
a process of its own, which a wrong access may end.
"""

from __future__ import annotations

import functools
import math
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from kernels import check, runtime
from kernels.check import Call, Case, Spec
from kernels.check.host import inline, programs
from kernels.check.host.programs import DoesNotCompile, Sparse
from kernels.check.isolated import run_apart
from kernels.check.spec import spec_of
from lessons.shared.puzzle.in_cuda import Wrong, explain, not_on_host, pointers
from lessons.shared.puzzle.in_triton import checked

A_THREAD, OF = 256, 2**15  # elements at most, so that one thread does not do the work of all; of so many at most
IDLE = 32  # elements a thread at most, where so many threads are launched that each could have one
GUARD = "Check the guard: some threads of the last block have no element. What must hold before one reads or writes?"
GRID = "Check the grid: the smallest one with a thread for every element has (n + 255) / 256 blocks of 256 threads."
FEW = "A GPU has thousands of threads: each must take a part."
TWICE = (
    "Two threads write the same element. Is the index right in every block, and wide enough? What do the threads do "
    "that have no element?"
)
KEPT = 4096  # numbers that are there at either end of a buffer that is larger than the memory
ENDS = 256  # of which so many at either end are compared
FIRST = 5  # cases that are tried before the largest
SECONDS = 240  # on a GPU: PyTorch's headers take nvcc half a minute

ACTIVATIONS = ("relu", "sigmoid", "gelu")  # forward() gets their numbers
WIDE = 2**32 + 1000
DECLARATION = (
    "torch::Tensor forward(torch::Tensor x, torch::Tensor bias, torch::Tensor y, double multiplier, "
    "int64_t activation);"
)
TAKES = re.compile(r"Tensor\s+\w+,.*Tensor\s+\w+,.*Tensor\s+\w+,\s*double\s+\w+,\s*int64_t\s+\w+\s*$", re.S)
TORCH = re.compile(r"torch|Tensor|at::")
OF_TORCH = (
    "Here g++ compiles the text, with the part of PyTorch that stands around a kernel: guards, streams, checks, "
    "allocations, views, accessors, AT_DISPATCH. None of it computes: your kernel must. The number after kernel: is a "
    "line of your text."
)
SEMICOLON = "The number after kernel: is a line of your text."
WIDE_HINT = (
    "From element 2,147,483,648 on, an index needs 64 bits. So do the product that the index is made of, and the count "
    "that it is compared with."
)
NOT_TRIED = {
    False: "not tried here: none of the threads that were looked at comes to the last elements",
    True: "not tried here: its loops take too long on the host",
}


def _op_calls(case: Case, device: torch.device) -> Iterator[Call]:
    for call in spec_of("add_mul_activation").calls(case, device):
        multiplier, activation = call.options
        if activation not in ACTIVATIONS or isinstance(multiplier, Tensor):
            continue
        n = math.prod(case.shape)
        hint = f"Compute act(x + multiplier · y + bias). Element i lies in column i % {case.shape[-1]}." if n else ""
        yield replace(call, hint=hint)


@functools.cache
def _op_spec() -> Spec:
    spec = spec_of("add_mul_activation")

    def cases(names: tuple[str, ...]) -> list[Case]:
        cases = [case for case in spec.cases(names) if case.dtype == torch.float32]
        return [*cases, Case((16, 33))]  # a multiple of 16 elements, in rows that are none

    return replace(spec, calls=_op_calls, cases=cases)


def _as_op(forward: Callable) -> Callable:
    def function(x: Tensor, bias: Tensor, y: Tensor, multiplier: float = 1.0, activation: str = "relu") -> Tensor:
        return forward(x, bias, y, float(multiplier), ACTIVATIONS.index(activation))

    return function


@dataclass(frozen=True)
class OpPuzzle:
    """seconds: that an answer has on a GPU."""

    seconds: float = SECONDS

    def judge(self, name: str, source: object) -> str:
        if not isinstance(source, str):
            raise Wrong(f"give the text that load_inline gets; got {type(source).__name__}")
        signature = programs.FORWARD.search(source)
        if signature is None or not TAKES.search(signature[1]):
            raise Wrong(
                "forward() is missing, or its parameters differ from the declaration\n"
                f"Hint: It is declared as {DECLARATION}"
            )
        if "<<<" not in source:
            raise Wrong("no kernel is launched\nHint: A launch has the form kernel<<<grid, block, 0, stream>>>(…).")
        try:
            function = inline.Function(source)
        except DoesNotCompile as error:
            own = OF_TORCH if TORCH.search(str(error)) else SEMICOLON
            raise Wrong(f"{error}\nHint: {not_on_host(str(error)) or own}") from None
        count, wide = _hold_on_host(name, function)
        lines = [f"{name}: {count} cases passed on the host", *filter(None, [wide])]
        if runtime.device().type == "cuda" and runtime.nvcc():
            with tempfile.NamedTemporaryFile("w", suffix=".cu") as file:
                file.write(source)
                file.flush()
                lines.append(run_apart(built, f"{__name__}:hold_on_gpu", file.name, seconds=self.seconds).strip())
        return "\n".join(lines)


def _hold_on_host(name: str, function: inline.Function) -> tuple[int, str]:
    """How many cases passed, and what to say of the one that was not tried. First come small ones, as what they find is
    soonest understood, then what finds most."""
    spec, run = _op_spec(), _on_host(function)
    cases = spec.cases(spec.tensors)
    first, (plain, *rest) = cases[:FIRST], cases[FIRST:]
    rest.sort(key=lambda case: (case.values == "normal" and case.layout == "contiguous", bool(case.only)))
    rest.insert(0, plain)  # for the hint that ordinary tensors pass
    count = 0
    for part in (first, rest):
        try:
            report = checked(name, run, replace(spec, cases=lambda names, part=part: part), "cpu")
        except AssertionError as error:
            raise Wrong(_hinted(str(error))) from None
        count += int(re.search(r"(\d+) cases passed", report)[1])
        if part is first:
            wide = _hold_wide(function)
            count += not wide
    return count, wide


def _hinted(text: str) -> str:
    """With the hint that this formula needs, where the general one leads astray."""
    message, _, hint = text.partition("\nHint: ")
    if " gelu: " in message and "digits" in hint:
        hint = "This gelu is the exact one with erf, not the one with tanh: z · P(Z < z). CUDA has normcdff(z)."
    if " sigmoid: " in message and "got nan" in message:
        hint = "Where z is large, e^z overflows, and Inf / Inf is NaN. There, e^-z is 0."
    if re.search(r" case \d+×\d+×\d+ ", message) and hint:
        hint += " The columns are the last dimension of x, also where x has three dimensions."
    return f"{message}\nHint: {hint}" if hint else text


def _on_host(function: inline.Function) -> Callable:
    """The function as the op; what it did wrong is said in words."""

    def forward(*arguments):
        try:
            out = function(*arguments)
        except inline.Refused as refused:
            raise Wrong(_why(refused, function.source)) from None
        hold_shares(function.last, out.numel())
        return out

    return _as_op(forward)


def hold_shares(outcome: programs.Outcome, n: int) -> None:
    """Wrong: the threads that wrote n elements on the host shared them badly."""
    threads = outcome.threads
    few = n >= 512 and 0 < threads * A_THREAD < min(n, OF)
    idle = n >= OF // 2 and outcome.launched >= n > threads * IDLE
    if few or idle or threads > n:
        written = f"{n:,} element{'s are' if n != 1 else ' is'} written by {threads:,}"
        of_all = f" of {outcome.launched:,}" if idle else ""
        hint = TWICE if threads > n else FEW
        raise Wrong(f"{written}{of_all} thread{'s' * (threads != 1)}\nHint: {hint}")


def built(path: str) -> Callable:
    """forward() of a text, by load_inline."""
    from torch.utils.cpp_extension import load_inline

    text = Path(path).read_text()
    return load_inline("my_add_mul_activation", DECLARATION, cuda_sources=text, functions=["forward"]).forward


def hold_on_gpu(build: Callable, path: str, device: str = "cuda", elements: int = 2**31 + 1000) -> None:
    """In the other process: the op's contract, and more elements than 32 bits count, where the GPU has room."""
    function = _as_op(build(path))
    check.check("add_mul_activation", function, spec=_op_spec(), device=device)
    room = torch.cuda.mem_get_info()[0] if device == "cuda" else 20 * elements
    if room < 20 * elements:
        print(f"{elements:,} elements: not run here, because they take {12 * elements / 1e9:.0f} GB")
    else:
        hold_many(function, device, elements)


def hold_many(function: Callable, device: str, elements: int, columns: int = 1000) -> None:
    """x and y are ones, so that each row is the bias and 1.5: a thousand of them are looked at, and the last."""
    x, y = (torch.ones(elements // columns, columns, device=device) for _ in range(2))
    bias = torch.arange(columns, device=device, dtype=torch.float32)
    out = function(x, bias, y, 0.5, "relu")
    some = torch.cat([out[:: max(1, len(out) // 1000)], out[-3:]])
    assert bool((some == bias + 1.5).all()), f"{out.numel():,} elements: wrong\nHint: {WIDE_HINT}"
    print(f"{out.numel():,} elements: right")


def _why(refused: inline.Refused, source: str, hint: str = GUARD) -> str:
    outcome = refused.outcome
    if outcome.status == "changed":
        name, _ = pointers(source)[int(outcome.text)]
        return f"{name} was changed\nHint: The result must be a new tensor: torch::empty_like(x)."
    if outcome.status == "shape":
        return f"{outcome.text}\nHint: Return the tensor that torch::empty_like(x) gives for a contiguous x."
    if outcome.status == "launch" and " 0 blocks" in f" {outcome.text}":
        return f"the launch fails: {outcome.text}\nHint: Here x may be empty, but a grid may not: return early."
    return explain(outcome, source, refused.sizes, lambda name: _of_bias(name, refused.sizes) or hint, GRID)


def _of_bias(name: str, sizes: Sequence[int]) -> str:
    return f"The bias has {sizes[1]:,} elements, one for each column." if name == "bias" else ""


def _hold_wide(function: inline.Function, columns: int = 1000) -> str:
    """More than 2^32 elements, of which the host has the first and the last. What to print: "", or that it was not
    tried."""
    n = WIDE // columns * columns
    x, y = (Case((2 * ENDS,)).tensor(seed) for seed in (1, 2))
    bias = Case((columns,)).tensor(3)
    place = torch.cat([torch.arange(ENDS), torch.arange(n - ENDS, n)])
    parts = []
    for values in (x, y):
        first, last = np.zeros(KEPT, np.float32), np.zeros(KEPT, np.float32)
        first[:ENDS], last[-ENDS:] = values[:ENDS].numpy(), values[ENDS:].numpy()
        parts.append(Sparse(n, {0: first, n - KEPT: last}))
    poison = np.full(KEPT, np.nan, np.float32)
    free = [Sparse(n, {0: poison.copy(), n - KEPT: poison.copy()}) for _ in range(3)]
    shape = [0, 2, n // columns, columns, columns, 1]
    integers = [0, *shape, 1, 0, 1, columns, 1, 2, *shape]
    bits = int(np.float64(0.5).view(np.int64))
    buffers = [parts[0], bias.numpy(), parts[1], free[0]]
    shown = f"{n // columns:,}×{columns:,}"
    case = f"add_mul_activation, case {shown}"
    try:
        number, _ = function.run(buffers, [*integers, bits, 0], 3)
    except inline.Refused as refused:
        raise Wrong(f"{case}: {_why(refused, function.source, _wide_hint(refused.outcome))}") from None
    begin, end = function.last.buffers[number]
    actual = torch.from_numpy(np.concatenate([begin[:ENDS], end[-ENDS:]]))
    expected = torch.relu(x + 0.5 * y + bias[place % columns])
    missing = actual.isnan()
    wrong = ~missing & ~torch.isclose(actual, expected, atol=1e-6)
    if wrong.any():
        at = int(wrong.nonzero()[0])
        text = f"element {int(place[at]):,}: expected {expected[at]:.6g}, got {actual[at]:.6g}"
        raise Wrong(f"{case}: {text}\nHint: {WIDE_HINT}")
    sought = function.last.ends.get("sought", ENDS)
    if not missing[[*range(sought), *range(-sought, 0)]].any():
        return ""
    if why := _never_written(function.last, n, int(place[int(missing.nonzero()[0])])):
        raise Wrong(f"{case}: {why}")
    return f"{shown}: {NOT_TRIED[function.last.ends['exhausted']]}"


def _never_written(outcome: programs.Outcome, n: int, place: int) -> str:
    """Why it is sure that a launch does not write all of n elements, the one in this place not among them, and a hint;
    "" if it is not sure."""
    ends = outcome.ends
    grid = f"Hint: {GRID} Is their number computed in 64 bits?"
    if not ends:
        return f"the launch starts {outcome.launched:,} threads, and element {place:,} is not written\n{grid}"
    if ends["twice"]:
        again, first, second = ends["twice"].split("|")
        both = f"{first} and {second} both write element {int(again):,}"
        return f"element {place:,} is not written, and {both}\nHint: {WIDE_HINT}"
    parts, most = ends["parts"], ends["most"]
    if ends["exhausted"]:
        again = "a thread that has come to the last elements does not end: it goes on with lower ones"
        return f"{again}\nHint: {WIDE_HINT}" if ends["falls"] else ""
    if parts * most < n:
        what = "blocks" if parts < outcome.launched else "threads"
        return f"the launch starts {parts:,} {what}. Each writes {most:,} elements at most, and there are {n:,}\n{grid}"
    if 2 * ends["writes"] * parts < n * ends["sampled"]:
        many = f"{ends['sampled']} parts of the grid that were looked at write {ends['writes']:,} elements together"
        return f"element {place:,} is not written, and {many}\nHint: {WIDE_HINT}"
    return ""


def _wide_hint(outcome: programs.Outcome) -> str:
    """An index that has lost its upper bits is negative or far away; one beside the end has all of them."""
    parts = outcome.text.split("|")
    beside = outcome.status == "outside" and min(abs(int(parts[1])), abs(int(parts[1]) - WIDE)) < 2**24
    return GUARD if beside else WIDE_HINT
