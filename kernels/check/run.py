"""check() and check_gradients(): a function held against an op's eager reference."""

from __future__ import annotations

import itertools
import pickle
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import runtime
from ..dispatch.address import overlap
from .cases import Call, Case
from .comparison import Mismatch, as_tuple, compare, gradients
from .edges import cases_of
from .hints import NotRepeatable, Unwritten, hint
from .interpreter import watched
from .isolated import Ended, run_apart
from .memory import Guard, guarded, memory
from .spec import Spec, eager_results, exact_results, spec_of

_RUNNING = threading.RLock()  # a guard and a watch are of all threads
MOST_KEPT = 1 << 24  # elements of a call's result, while the op is called again
SECONDS = 600  # of check(isolated=True), for all cases of an op


def check(
    op: str,
    function: Callable,
    *,
    device: torch.device | str | None = None,
    cases: Iterable[Case] | None = None,
    spec: Spec | None = None,
    isolated: bool = False,
) -> None:
    """Hold `function` against the op's eager reference in float64 on all adversarial cases; print how many passed.

    Args:
        op: "add_relu", say, or "add_relu_" for an in-place function, which must return its first argument.
        function: called with the public op's positional arguments.
        device: default: the GPU if there is one. cases: default: those of the op.
        spec: default: the op's.
        isolated: whether to run in a process of its own, which a wrong kernel may end: for a function with a name, that
            uses no variables of a function around it. It does not go with a spec. All cases together, and the start,
            have ten minutes.

    A call must give eager's values within the spec's scale, with NaN and Inf where eager has them, in eager's shape and
    dtype, on the inputs' device, contiguous; write every element; leave its inputs and the memory beside all tensors as
    they are; and give the same bits again. In Triton's interpreter no load or store may leave its tensor, and the
    second run takes the programs in the reverse order.

    Raises:
        AssertionError: naming the first case that fails, how, and a guess at the cause. ValueError: an unknown op; no
        case.
    """
    device = torch.device(device or runtime.device())
    own, spec = spec, spec or spec_of(op)
    if isolated:
        _check_apart(op, function, device, cases)
        return
    if cases is None:
        cases = spec.cases(spec.tensors) if own else cases_of(op, device)
    passed, count = [], 0
    for case in cases:
        for call in itertools.islice(spec.calls(case, device), None if case.every_option else 1):
            if any(_overlaps_itself(value) for name, value in _named(spec, call) if name in spec.mutated):
                continue  # an expanded tensor cannot be written to
            try:
                _check_call(spec, function, call)
            except Exception as error:
                message = f"{op}, case {call.name}: {_describe(error)}"
                guess = "" if "\nHint: " in message else hint(error, case, passed, call.hint)
                raise AssertionError(f"{message}\nHint: {guess}" if guess else message) from error
            count += 1
        passed.append(case)
    if not count:
        raise ValueError("no case was given")
    print(f"{op}: {count} cases passed on {device.type}")


def _check_apart(op: str, function: Callable, device: torch.device, cases: Sequence[Case] | None) -> None:
    """check() in a child process.

    Raises:
        AssertionError: check's own; or that the process ended, and how. ValueError: a function that cannot be carried.
    """
    with tempfile.NamedTemporaryFile() as file:
        file.write(pickle.dumps(None if cases is None else list(cases)))
        file.flush()
        job = f"{__name__}:{check_of_file.__name__}"
        try:
            print(run_apart(function, job, op, str(device), file.name, seconds=SECONDS), end="")
        except Ended as ended:
            raise AssertionError(f"{op}: {ended}") from None


def check_of_file(function: Callable, op: str, device: str, cases: str) -> None:
    """check() with the cases that a file has, pickled: what `_check_apart` runs in the child."""
    check(op, function, device=device, cases=pickle.loads(Path(cases).read_bytes()))


def _check_call(spec: Spec, function: Callable, call: Call) -> None:
    exact, eager = exact_results(spec, call), eager_results(spec, call)
    numbers = [name for name in exact if exact[name].is_floating_point()]
    reference = lambda *arguments: tuple(spec.results(spec.reference, Call("", arguments)).values())  # noqa: E731
    errors = spec.scale.errors(reference, call, [exact[name] for name in numbers]) if numbers else []
    errors = dict(zip(numbers, errors, strict=True))
    expected = {name: result.to(eager[name].dtype) for name, result in exact.items()}

    arguments = dict(zip(spec.arguments, call.arguments(), strict=False))
    before = {name: arguments[name] for name in spec.mutated}

    def judge(results: dict[str, Tensor], guarded_call: Call, guard: Guard) -> list[Tensor]:
        for name, result in results.items():
            if name not in spec.mutated:
                guard.named(result, name)
                if not result.is_contiguous():
                    raise AssertionError(f"the output must be contiguous; its strides are {result.stride()}")
        guard.verify()
        for name, result in results.items():
            try:
                _compare(name if len(results) > 1 else "", result, expected[name], eager[name], errors.get(name), guard)
            except Mismatch as wrong:
                if name in before and _same_bits(result, before[name]):
                    raise Unwritten(f"{wrong}. Nothing was stored there", torch.ones_like(wrong.where)) from wrong
                raise
        copies = [result.clone() for result in results.values()]
        _check_arguments(spec, call, guarded_call, guard)
        return copies

    _twice(spec, call, lambda guarded_call: spec.results(function, guarded_call), judge)


def check_gradients(
    op: str,
    function: Callable,
    call: Call,
    needed: Sequence[bool],
    grad: Tensor | Sequence[Tensor],
    *,
    rounds: bool = False,
    spec: Spec | None = None,
) -> None:
    """Hold function's gradients against float64 eager's.

    Args:
        op, function, spec: as for `check`. call: what the function is called with.
        needed: one for each of the call's tensors: whether its gradient is asked for.
        grad: what comes in; of several outputs, one for each that is of floating point.
        rounds: whether the function rounds what is in between to its dtype, as eager PyTorch does.

    What a gradient may be off by is the formula of the spec's scale (kernels/check/comparison.py). As in `check`, the
    memory is guarded and a second run must give the same bits.

    Raises AssertionError, naming the tensor whose gradient is wrong.
    """
    spec = spec or spec_of(op)
    where = f"{op}, case {call.name}" if call.name else op
    allowed = spec.scale.gradients(spec.reference, call, needed, as_tuple(grad), rounds)

    def judge(grads: list[Tensor | None], guarded_call: Call, guard: Guard) -> list[Tensor]:
        guard.verify()
        for name, leaf, got, want in zip(spec.leaf_names(call), call.leaves(), grads, allowed, strict=True):
            if want is None:
                continue
            exact, error = want
            try:
                _compare("", got, exact.to(leaf.dtype), None, error, guard)
            except AssertionError as wrong:
                raise AssertionError(f"{where}, the gradient of {name}: {wrong}") from wrong
        _check_arguments(spec, call, guarded_call, guard)
        return [gradient for gradient in grads if gradient is not None]

    try:
        _twice(spec, call, lambda guarded_call: gradients(function, guarded_call, needed, grad), judge)
    except AssertionError as error:
        if str(error).startswith(where):
            raise
        raise AssertionError(f"{where}, the gradients: {error}") from error


def _twice(spec: Spec, call: Call, run: Callable[[Call], Any], judge: Callable[[Any, Call, Guard], list]) -> None:
    """judge(run(a copy of the call), the copy, its guard), run in guarded memory, twice: the same bits must come out.

    The interpreter runs one program after the other. It is deterministic, so a second run of one program says nothing;
    of several programs it says something if they run in another order.
    """
    before, earlier = None, []
    for again in (False, True):
        guard = Guard()
        guarded_call = call.map(lambda tensor, guard=guard: guard.like(tensor, written=True))
        for name, leaf in zip(spec.leaf_names(guarded_call), guarded_call.leaves(), strict=True):
            guard.named(leaf, name)
        with _RUNNING, guarded(guard), watched(guard, backwards=again) as watch, _numpy_quiet():
            try:
                results = run(guarded_call)
            except Exception:
                if watch.error is not None:
                    raise watch.error from None
                raise
        copies = judge(results, guarded_call, guard)
        values = results.values() if isinstance(results, dict) else [result for result in results if result is not None]
        values = [result for result in values if result.numel() < MOST_KEPT]
        if any(overlap(a, b) for a in earlier for b in values):
            raise AssertionError("its result lies in the memory of an earlier call's, which the caller still has")
        if not spec.repeatable or watch.programs == 1:
            return
        if before is not None and not all(map(_same_bits, before, copies)):
            raise NotRepeatable("two runs gave different bits")
        before, earlier = copies, values


def _compare(
    name: str, result: Tensor, expected: Tensor, eager: Tensor | None, error: Tensor | None, guard: Guard
) -> None:
    """compare(), naming the result, and what was never written."""
    alike = eager is not None and all(getattr(result, x) == getattr(eager, x) for x in ("shape", "dtype", "device"))
    # NaN where eager gives NaN in this very dtype is right too: PyTorch's vectorised gelu on the CPU makes NaN of Inf,
    # its scalar one, float64's and the GPU's do not.
    actual = torch.where(result.isnan() & eager.isnan(), expected, result) if alike else result
    try:
        compare(actual, expected, error=error)
    except AssertionError as wrong:
        text = f"{name}: {wrong}" if name else str(wrong)
        if not isinstance(wrong, Mismatch):
            raise AssertionError(text) from wrong
        unwritten = guard.unwritten(result)
        if unwritten is not None and (unwritten & wrong.where).any():
            where = unwritten & wrong.where
            count, first = int(where.sum()), [int(i[0]) for i in where.nonzero(as_tuple=True)]
            verb = "elements were" if count > 1 else "element was"
            raise Unwritten(f"{text}. {count} {verb} never written, the first at {first}", where) from wrong
        raise Mismatch(text, wrong.where, wrong.digits) from wrong


def _check_arguments(spec: Spec, call: Call, guarded_call: Call, guard: Guard) -> None:
    """Raise AssertionError if the arguments' memory changed, but for the elements of those that are mutated."""
    pairs = zip(spec.leaf_names(call), call.leaves(), guarded_call.leaves(), strict=True)
    for name, before, after in pairs:
        mutated = name.partition("[")[0] in spec.mutated
        if mutated:
            with torch.no_grad():
                after.copy_(before)  # what is left to find is a write beside it
        if not torch.equal(memory(before), guard.data(after)):
            raise AssertionError(f"{'the memory beside ' * mutated}{name} was changed")


def _named(spec: Spec, call: Call) -> list[tuple[str, Tensor]]:
    return [(name.partition("[")[0], leaf) for name, leaf in zip(spec.leaf_names(call), call.leaves(), strict=True)]


def _overlaps_itself(tensor: Tensor) -> bool:
    return any(stride == 0 and size > 1 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def _same_bits(a: Tensor, b: Tensor) -> bool:
    a, b = (tensor.detach().clone(memory_format=torch.contiguous_format) for tensor in (a, b))
    return torch.equal(memory(a), memory(b))


@contextmanager
def _numpy_quiet() -> Iterator[None]:
    """Triton's interpreter computes in NumPy, which warns of every Inf and NaN."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        yield


def _describe(error: Exception) -> str:
    if type(error).__name__ == "InterpreterError" and isinstance(error.__cause__, Exception):  # Triton's, around any
        error = error.__cause__
    text = str(error).strip()
    return text if isinstance(error, AssertionError) and text else f"{type(error).__name__}: {text[:500]}"
