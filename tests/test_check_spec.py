"""Specs of the kinds of ops that are not pointwise: sums, ids, several outputs, optional tensors, mutated arguments."""

from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F

from kernels import runtime
from kernels.check import Call, Case, Spec, Sums, check, check_gradients
from lessons.shared.puzzle import InTriton, Judge

DEVICE = runtime.device()
CASES = [Case((1, 7)), Case((5, 24)), Case((17, 24), layout="misaligned"), Case((33, 40), torch.bfloat16)]
ROWS = 50


def rejected(spec: Spec, function, message: str) -> None:
    with pytest.raises(AssertionError, match=re.compile(f"^op, case {message}", re.DOTALL)):
        check("op", function, spec=spec, cases=CASES)


# ------------------------------------------------------------------------------------------------------------------
# A matrix product: an error of the terms' size, whatever they cancel to.


def linear(x, weight, bias=None):
    return F.linear(x, weight, bias)


def linear_calls(case, device, with_bias=(False, True)):
    columns = case.shape[-1]
    weight = Case((13, columns), case.dtype).tensor(2, device)
    for has_bias in with_bias:
        bias = case.tensor(3, device, (13,)) if has_bias else None
        yield Call(f"{case} {'bias' if has_bias else 'no bias'}", (case.tensor(1, device), weight, bias))


LINEAR = Spec(linear, linear_calls, scale=Sums())


def in_float32(x, weight, bias=None):
    """As a kernel computes in half precision: added up in float32, rounded once."""
    return F.linear(x.float(), weight.float(), None if bias is None else bias.float()).to(x.dtype)


def test_a_product_may_be_off_by_its_terms_rounding(capsys):
    check("op", in_float32, spec=LINEAR, cases=CASES)
    assert capsys.readouterr().out == f"op: {2 * len(CASES)} cases passed on {DEVICE.type}\n"


def test_a_product_that_is_wrong_is_rejected():
    rejected(LINEAR, lambda x, weight, bias=None: in_float32(x[:, 1:], weight[:, 1:], bias), "1×7 float32 no bias: ")
    rejected(LINEAR, lambda x, weight, bias=None: in_float32(x, weight), "1×7 float32 bias: ")
    # Added up in bfloat16: wrong by the dtype's rounding of the terms, which float32's would not explain.
    coarse = lambda x, weight, bias=None: sum(  # noqa: E731
        (x[:, i, None] * weight[None, :, i] for i in range(x.shape[1])), start=torch.zeros((), dtype=x.dtype)
    ) + (0 if bias is None else bias)
    rejected(LINEAR, coarse, "33×40 bfloat16 no bias: ")


def test_gradients_of_a_product():
    for call in LINEAR.calls(Case((33, 40)), DEVICE):
        needed = (True,) * len(call.leaves())
        grad = Case((33, 13)).tensor(9, DEVICE)
        check_gradients("op", in_float32, call, needed, grad, spec=LINEAR)
        halved = lambda x, weight, bias=None: in_float32(x, weight + 0.01 * weight.detach(), bias)  # noqa: E731
        with pytest.raises(AssertionError, match=r"^op, case 33×40 float32 .*, the gradient of x: "):
            check_gradients("op", halved, call, needed, grad, spec=LINEAR)


# ------------------------------------------------------------------------------------------------------------------
# Look-ups: ids are integers, and the second output too.


def look_up(table, ids):
    return table[ids], ids.bincount(minlength=len(table))


def look_up_calls(case, device):
    table = case.tensor(1, device, (ROWS, case.shape[-1]))
    yield Call(str(case), (table, case.integers(2, ROWS, device, case.shape[:1])))


LOOK_UP = Spec(look_up, look_up_calls, outputs=("rows", "counts"), scale=Sums())


def test_ids_stay_integers_and_counts_are_exact():
    check("op", look_up, spec=LOOK_UP, cases=CASES)
    rejected(LOOK_UP, lambda table, ids: (table[ids], look_up(table, ids)[1] + 1), "1×7 float32: counts: 50 of 50 ")
    rejected(LOOK_UP, lambda table, ids: (table[ids.flip(0)], look_up(table, ids)[1]), "5×24 float32: rows: ")
    rejected(LOOK_UP, lambda table, ids: table[ids], r"1×7 float32: must return 2 tensors, \('rows', 'counts'\); got 1")


def test_only_the_table_has_a_gradient():
    (call,) = LOOK_UP.calls(Case((33, 40)), DEVICE)
    grad = Case((33, 40)).tensor(9, DEVICE)
    check_gradients("op", look_up, call, (True, False), grad, spec=LOOK_UP)
    wrong = lambda table, ids: (table[ids] + table[ids.flip(0)] - table[ids.flip(0)].detach(), ids)  # noqa: E731
    with pytest.raises(AssertionError, match="the gradient of table: "):
        check_gradients("op", wrong, call, (True, False), grad, spec=LOOK_UP)


# ------------------------------------------------------------------------------------------------------------------
# An optimizer's update: it returns nothing, and writes the table.


def update_(table, ids, grad, rate):
    table.index_add_(0, ids, (-rate * grad).to(table.dtype))


def update_calls(case, device):
    (call,) = look_up_calls(case, device)
    for rate in (0.1, torch.tensor(0.1)):
        yield Call(f"{case} {rate}", (*call.tensors, case.tensor(3, device)), (rate,))


def update_magnitude(table, ids, grad, rate):
    return table.index_add(0, ids, rate * grad)  # of absolute values, where the reference subtracts


UPDATE = Spec(update_, update_calls, outputs=(), mutated=("table",), scale=Sums(magnitude=update_magnitude))
FLOAT32 = CASES[:3]


def test_what_is_mutated_is_compared_and_nothing_else_may_change():
    check("op", update_, spec=UPDATE, cases=FLOAT32)
    rejected(UPDATE, lambda table, ids, grad, rate: None, "1×7 float32 0.1: ")
    rejected(UPDATE, lambda table, ids, grad, rate: update_(table, ids, grad, 1.1 * rate), "1×7 float32 0.1: ")
    rejected(UPDATE, lambda table, ids, grad, rate: (update_(table, ids, grad, rate), ids.zero_())[0],
             "1×7 float32 0.1: ids was changed")
    rejected(UPDATE, lambda table, ids, grad, rate: (update_(table, ids, grad, rate), table)[1],
             r"1×7 float32 0.1: must return 0 tensors")


def test_what_is_not_repeatable_runs_once():
    runs = []

    def counted(*arguments):
        runs.append(arguments)
        return look_up(*arguments)

    spec = Spec(look_up, look_up_calls, outputs=("rows", "counts"), repeatable=False, scale=Sums())
    check("op", counted, spec=spec, cases=CASES)
    assert len(runs) == len(CASES)


@pytest.mark.skipif(runtime.device().type == "cuda", reason="on a GPU a puzzle is checked in a process that imports it")
def test_a_puzzle_takes_a_kernel_and_hints_at_its_own_mistake(capsys, monkeypatch):
    monkeypatch.setattr("lessons.shared.puzzle.compiler_rules.must_compile", lambda *kernel: None)  # one in a function
    triton = pytest.importorskip("triton")
    tl = pytest.importorskip("triton.language")

    @triton.jit
    def plus(x, out, N, much, BLOCK: tl.constexpr):
        i = tl.arange(0, BLOCK)
        tl.store(out + i, tl.load(x + i, i < N) + much, i < N)

    def launch(much):
        def launched(kernel, x):
            out = torch.empty_like(x)
            kernel[(1,)](x, out, len(x), much, BLOCK=8)
            return out

        return launched

    def calls(case, device):
        yield Call(str(case), (case.tensor(1, device),), hint="add one, not two.")

    for much in (1, 2):
        spec = Spec(lambda x: x + 1, calls, cases=lambda names: [Case((5,))])
        attempt = Judge({"plus": InTriton(spec, launch(much), __name__)}).attempt
        assert attempt("plus", plus) == (much == 1)
    assert not attempt("plus", lambda x: x + 1)
    passed, wrong, hint, cheat = capsys.readouterr().out.splitlines()
    assert passed.startswith("plus: 1 cases passed")
    assert "5 of 5 elements are wrong" in wrong
    assert hint == "Hint: add one, not two."
    assert "give the kernel itself" in cheat
