"""Problems of Triton on the way to add_mul_activation, each with one new thing, and the op itself.

masked     out = relu(x + bias) of n elements, by programs of 16: the mask
edge       out = relu(x + bias), bias [columns]: only the last program has a mask, so the others have wide accesses
capstone   add_mul_activation, by the op's contract
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from unittest import mock

import torch
from torch import Tensor

from kernels import runtime
from kernels.check import FLOAT_DTYPES, Call, Case, Spec, late_accesses, spec_of
from kernels.inductor.machine_code import accesses
from lessons.n08_triton_kernels.pointwise_kernels import launch
from lessons.shared import h200
from lessons.shared.puzzle import InTriton, Judge, look_beside
from lessons.shared.puzzle.shares import SharedOut

BLOCK = 16


def _programs(numbers: int) -> tuple[int]:
    return (-(-numbers // BLOCK),)


# ------------------------------------------------------------------------------------------------------------- masked


def _launch_masked(kernel, x: Tensor, bias: Tensor, out: Tensor) -> None:
    """kernel[programs](x, bias, out, n, BLOCK)."""
    if out.is_cuda and x.numel() == 40:
        look_beside(kernel, _programs(40), *(torch.zeros(40) for _ in range(3)), 40, BLOCK=BLOCK)
    kernel[_programs(x.numel())](x, bias, out, x.numel(), BLOCK=BLOCK)


def masked(x: Tensor, bias: Tensor, out: Tensor) -> None:
    out.copy_(torch.relu(x + bias))


OWN = (
    "Program p stores elements p · BLOCK to p · BLOCK + BLOCK - 1. A lane beyond the last element stores nothing: "
    "its mask is false."
)


def _looked_at(columns: int = 0) -> list[tuple[str, tuple, Tensor, int]]:
    """Launches of masked, or of edge with this many columns: one whose last program has a rest, and one without."""
    launches = []
    for n, programs in ((40, 0), (64, 4)):
        x, bias, out = torch.zeros(n), torch.zeros(columns or n), torch.zeros(n)
        launches.append((f"{n} elements", (x, bias, out), out, programs))
    return launches


def _masked_calls(case: Case, device: torch.device) -> Iterator[Call]:
    n = case.shape[0]
    if n % BLOCK:
        last = f"With {n} elements and {BLOCK} per program, the last program has {n % BLOCK}."
        hint = f"{last} What is the mask for its last element, and what for element {n}?"
    else:
        hint = ("Every index is inside the tensor, so the mask must be true everywhere. Does the kernel store "
                "relu(x + bias)?")
    yield Call(f"{n} elements", tuple(case.tensor(seed, device) for seed in (1, 2, 3)), hint=hint)


# --------------------------------------------------------------------------------------------------------------- edge

EDGE_BLOCK, EDGE_WARPS = 512, 4  # four float32 a lane


def _launch_edge(kernel, x: Tensor, bias: Tensor, out: Tensor) -> None:
    """kernel[programs](x, bias, out, n, COLUMNS, BLOCK)."""
    kernel[_programs(x.numel())](x, bias, out, x.numel(), COLUMNS=len(bias), BLOCK=BLOCK)


def edge(x: Tensor, bias: Tensor, out: Tensor) -> None:
    out.copy_(torch.relu(x + bias))


def _edge_calls(case: Case, device: torch.device) -> Iterator[Call]:
    n, columns = case.shape[0] * case.shape[1], case.shape[1]
    whole = n // BLOCK
    if n % BLOCK == 0:
        hint = (f"With {n} elements and {BLOCK} per program, all {whole} programs are whole. Do they compute "
                "relu(x + bias)?")
    else:
        hint = (f"With {n} elements and {BLOCK} per program, program {whole} is the last and has {n % BLOCK}. The "
                "programs before it are whole. Which branch does each program take, and which branch needs a mask?")
    tensors = [case.tensor(seed, device, s) for seed, s in enumerate((case.shape, (columns,), case.shape), 1)]
    yield Call(f"{n} elements", tuple(tensors), hint=hint)


NO_PROMISE = """the result is right, but with an odd number of elements every store has 16 bytes a lane: the mask cuts \
through one
Hint: An odd number breaks the promise of tl.multiple_of or tl.max_constancy. Give the last program its own branch."""


class Edge(SharedOut):
    """Whole programs must store without a mask, and the compiled kernel must make accesses of 16 bytes where the number
    of elements is odd; the last program's are narrower, as a promise to the compiler would be broken there."""

    def hold(self, name: str, answer: Callable, device: torch.device) -> str:
        text = super().hold(name, answer, device)
        widths = accesses(h200.compiled(answer, EDGE_WARPS, odd=True, COLUMNS=511, BLOCK=EDGE_BLOCK).ptx)
        for kind, what in (("ld", "load"), ("st", "store")):
            if 16 not in widths[kind]:
                widest = max(widths[kind], default=0)
                raise AssertionError(
                    f"{name}: the result is right, but with an odd number of elements the widest {what} has {widest} "
                    f"bytes a lane\nHint: A whole program needs a {what} without any mask, in a branch of its own: "
                    "`if start + BLOCK <= n:`."
                )
        if min(widths["st"]) == 16:
            raise AssertionError(f"{name}: {NO_PROMISE}")
        if runtime.triton_mode() == "interpreted":
            _whole_programs_have_no_mask(name, answer)
        return f"{text}; with an odd number of elements, too, a lane loads and stores 16 bytes at a time"


def _whole_programs_have_no_mask(name: str, kernel: Callable, n: int = 40) -> None:
    """Count each program's accesses with a mask. In the interpreter one without is one with, made by another function.
    """
    from triton.runtime.interpreter import InterpreterBuilder

    masked = Counter()

    def counted(access: Callable, weight: int) -> Callable:
        def made(self, *arguments, **named):
            masked[self.grid_idx[0]] += weight
            return access(self, *arguments, **named)

        return made

    weights = {"create_masked_load": 1, "create_masked_store": 1, "create_load": -1, "create_store": -1}
    patches = {access: counted(getattr(InterpreterBuilder, access), weight) for access, weight in weights.items()}
    with mock.patch.multiple(InterpreterBuilder, **patches):
        _launch_edge(kernel, torch.zeros(n), torch.zeros(8), torch.zeros(n))
    whole = n // BLOCK
    if with_mask := sum(masked[program] > 0 for program in range(whole)):
        raise AssertionError(
            f"{name}: the result is right, but with {n} elements {with_mask} of the {whole} whole programs have a "
            "mask\nHint: Their branch has no mask, neither at a load nor at a store. Test each program, not n alone: "
            "`if start + BLOCK <= n:`."
        )


# ----------------------------------------------------------------------------------------------------------- capstone

ACTIVATIONS = ("relu", "sigmoid", "silu", "gelu", "identity")
LATE = 2**31 // 1024  # the first program whose elements need 64 bits
IN_A_LOOP = (
    "Triton's interpreter makes a loop's number one of Python's. If you add tl.arange to one that needs 64 bits, "
    "convert tl.arange's numbers, too."
)
HINTS = {  # what to think of where ordinary numbers are wrong, by activation
    "relu": "The result is relu(x + multiplier · y + bias), and the bias's index is the column, `i % COLUMNS`.",
    "sigmoid": "The constexpr ACTIVATION names the activation. Here it is sigmoid: `tl.sigmoid`.",
    "silu": "The activation is silu: z · sigmoid(z).",
    "gelu": "The activation is gelu: z · (1 + erf(z / √2)) / 2. Triton has `tl.erf`.",
    "identity": "The activation is identity: z itself.",
}


def _capstone_calls(case: Case, device: torch.device) -> Iterator[Call]:
    """Those of the op's contract, but for tanh."""
    before: set[str] = set()
    for call in spec_of("add_mul_activation").calls(case, device):
        activation = call.options[1]
        if activation in ACTIVATIONS:
            again = activation in before and "The multiplier is an argument, so it is not always the same."
            yield replace(call, hint=again or HINTS[activation])
            before.add(activation)


def _some_cases(names: tuple[str, ...]) -> list[Case]:
    """One case of each kind that the contract has: the interpreter takes a minute for all."""
    cases = [Case(shape) for shape in ((0, 5), (1, 1), (1, 1023), (5, 1023), (2, 3, 5))]
    cases += [Case((17, 24), layout=layout) for layout in ("transposed", "expanded", "misaligned")]
    cases += [Case((13, 40), dtype, values="special") for dtype in FLOAT_DTYPES[1:]]
    with_all = [Case((3, 1025)), Case((13, 40), values="special")]
    return [*with_all, *(replace(case, every_option=False) for case in cases)]


def _all_cases(names: tuple[str, ...]) -> list[Case]:
    """All of the contract's, and first those that the interpreter gets: so most wrong answers fail in the same case on
    a GPU as without one."""
    some = _some_cases(names)
    contract = spec_of("add_mul_activation").cases(names)
    return sorted(contract, key=lambda case: some.index(case) if case in some else len(some))


class Capstone(InTriton):
    """After the contract, one late program of a large tensor: which elements does it load and store?"""

    def hold(self, name: str, answer: Callable, device: torch.device) -> str:
        cases = _all_cases if device.type == "cuda" else _some_cases
        of_device = replace(self, spec=replace(self.spec, cases=cases))
        text = InTriton.hold(of_device, name, answer, device)
        _late_program(name, answer)
        return f"{text}; one of more than 2^31 elements passed, too"


def _late_program(name: str, answer: Callable, columns: int = 512) -> None:
    first = LATE * 1024
    wanted = range(first, first + 1000)
    half = torch.zeros(1024, dtype=torch.bfloat16)
    options = {"COLUMNS": columns, "ACTIVATION": "relu", "WIDE": True, "BLOCK": 1024}
    try:
        made = late_accesses(answer, LATE, half, half[:columns], half, half, 0.5, wanted.stop, **options)
    except RuntimeError as error:
        if "out of range for type int32" not in str(error):
            raise
        raise AssertionError(f"{name}, program {LATE:,} of a large tensor: {error}\nHint: {IN_A_LOOP}") from error

    def offsets(what: str, place: int) -> list[int]:
        """From the tensor that is the argument in this place."""
        tensor = [*dict.fromkeys(access.tensor for access in made)][place]
        chosen = [access for access in made if (access.what, access.tensor) == (what, tensor)]
        return [offset for access in chosen for offset in access.offsets]

    must = f"{name}, case {wanted.stop:,} elements, WIDE: program {LATE:,} must"
    elements = f"elements {wanted[0]:,} to {wanted[-1]:,}"
    stored = offsets("store", 3) if made else []
    if sorted(stored) != [*wanted]:
        got = f"{len(stored):,} elements, beginning with element {stored[0]:,}" if stored else "nothing"
        hint = "program_id has 32 bits. Where WIDE is true, convert it to int64 before you multiply it by BLOCK."
        if not stored:
            hint = "Each program computes BLOCK elements of its own, and the first is program_id · BLOCK."
        elif {*wanted} < {*stored}:
            hint = "A lane beyond the last element stores nothing: its mask is false."
        raise AssertionError(f"{must} store {elements}; it stored {got}\nHint: {hint}")
    for place, of in ((0, f"x's {elements}"), (2, f"y's {elements}"), (1, f"the bias of {elements}")):
        needed = {element % columns for element in wanted} if place == 1 else {*wanted}
        if not needed <= {*offsets("load", place)}:
            hint = "Where WIDE is true, the indices of the loads need 64 bits, too, and so does `i` in `i % COLUMNS`."
            raise AssertionError(f"{must} load {of}; it loads others\nHint: {hint}")


# ---------------------------------------------------------------------------------------------------------------------

_SHAPES = {
    "masked": ((64,), (40,), (33,), (47,), (1,), (200,)),
    "edge": ((4, 16), (5, 8), (3, 7), (1, 1), (1, 17), (1, 31), (9, 33)),  # the rests 0, 1 and 15 among them
}


def _puzzle(reference: Callable, calls: Callable, launch: Callable, kind: type = InTriton, **more) -> InTriton:
    cases = [*map(Case, _SHAPES[reference.__name__])]
    spec = Spec(reference, calls, outputs=(), mutated=("out",), cases=lambda names: cases)
    return kind(spec, launch, __name__, **more)


PUZZLES = {
    "masked": _puzzle(masked, _masked_calls, _launch_masked, kind=SharedOut, looked_at=_looked_at, hint=OWN),
    "edge": _puzzle(edge, _edge_calls, _launch_edge, kind=Edge, looked_at=partial(_looked_at, 8), hint=OWN),
    "capstone": Capstone(replace(spec_of("add_mul_activation"), calls=_capstone_calls), launch, __name__),
}
attempt = Judge(PUZZLES, seconds=90).attempt
