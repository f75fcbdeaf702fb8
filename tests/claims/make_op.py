"""11, Make it an op: what `python -m model.make_op --save` recorded, and the calls of add_relu's own record."""

from __future__ import annotations

from claims.claim import claim
from kernels.measure import records
from model.make_op.facts import call, times

NOTEBOOK = "11"


def _wall() -> tuple:
    formula, op = times("wall", "formula"), times("wall", "op")
    assert op.us > 1.5 * formula.us
    return formula.us, op.us


def _calls() -> tuple:
    found = [call(name).us for name in ("x + 1", "eager", "triton", "cuda")]
    plus, eager, *ours = found
    assert all(us < 1.1 * plus for us in ours)
    assert all(us < 0.6 * eager for us in ours)
    return tuple(found)


def _gradient() -> tuple:
    eager, ours = (call(name, "with a gradient").us for name in ("eager", "triton"))
    assert ours < 0.6 * eager
    return eager, ours


def _first() -> tuple:
    rows = [row for row in records.load("add_relu")["rows"] if row["part"] == "first call"]
    found = {row["implementation"]: row["call_us"] / 1e3 for row in rows}
    return found["triton"], found["cuda"]


def _launcher() -> tuple:
    launcher, op = times("call", "launcher"), times("call", "triton")
    assert launcher.us > op.us
    return times("call", "launcher, output given").us, launcher.us


def _library() -> tuple:
    functional, recorded = times("call", "torch.library"), times("gradient", "torch.library")
    assert times("call", "launcher").us < functional.us < recorded.us
    return functional.us, recorded.us


def _around() -> tuple:
    formula, defined, decorated = (
        times("call", name).us
        for name in ("relu(x + bias)", "formula in torch.library, define", "formula in torch.library")
    )
    assert formula < defined < decorated
    return formula, defined - formula, decorated - formula


def _graph() -> tuple:
    one, each, call_ = (times("call", name).us for name in ("graph of 1", "graph of 20", "triton"))
    assert each < one
    assert each < call_
    return one, each


def said(sentence: str, values=tuple) -> None:
    claim(NOTEBOOK, sentence, values)


said(
    "Compiled for 65536 rows of 512 numbers, `relu(x + bias) * 2` takes {:.0f} µs as a formula and {:.0f} µs with the "
    "op in it: its result is written to memory and read again.",
    _wall,
)
said(
    "In add_relu's own record `x + 1` takes {:.1f} µs, eager's two kernels {:.1f} µs, and our op {:.1f} µs as a cubin "
    "and {:.1f} µs in CUDA: no more than one of PyTorch's own.",
    _calls,
)
said("With a gradient recorded eager takes {:.1f} µs and ours {:.1f} µs.", _gradient)
said(
    "The first call in a process loads the kernel, and takes {:.0f} ms for the cubin and {:.0f} ms for CUDA.",
    _first,
)
said(
    "Triton's own launcher takes {:.1f} µs, and {:.1f} µs where the output is made too: in Python it finds the kernel "
    "for these arguments, at each call.",
    _launcher,
)
said(
    "The op by torch.library takes {:.1f} µs, and {:.1f} µs with a gradient recorded: its autograd is Python.",
    _library,
)
said(
    "Around PyTorch's formula, which alone takes {:.1f} µs, `define` and `impl` add {:.1f} µs and `custom_op` adds "
    "{:.1f} µs.",
    _around,
)
said(
    "The replay of a CUDA graph with one call takes {:.1f} µs, and with twenty {:.1f} µs for each.",
    _graph,
)
