"""11, Make it an op: what `python -m lessons.n11_make_it_an_op --save` recorded, and add_relu's record."""

from __future__ import annotations

from lessons.n11_make_it_an_op import recorded
from lessons.n11_make_it_an_op.recorded import times
from lessons.shared.claim import claim
from lessons.shared.records import ADD_RELU

NOTEBOOK = "11"


def _wall() -> tuple:
    formula, op = times("wall", "formula"), times("wall", "op")
    assert op.us > 1.5 * formula.us
    return formula.us, op.us


def _plus() -> tuple:
    return (times("call", "x + 1").us,)


def _calls() -> tuple:
    found = [times("call", name).us for name in ("x + 1", "relu(x + bias)", "triton", "cuda")]
    plus, formula, *ours = found
    assert all(us < 1.1 * plus for us in ours)
    assert all(us < 0.6 * formula for us in ours)
    return tuple(found)


def _gradient() -> tuple:
    formula, ours = (times("gradient", name).us for name in ("relu(x + bias)", "triton"))
    assert ours < 0.6 * formula
    return formula, ours


def _first() -> tuple:
    found = ADD_RELU.rows("first call")
    assert set(found["implementation"]) == {"triton", "cuda"}
    assert found["call_us"].between(1e3, 1e5).all()
    return ()


def _launcher() -> tuple:
    launcher, op = times("call", "launcher"), times("call", "triton")
    given = times("call", "launcher, output given")
    assert launcher.us > given.us > 1.5 * op.us
    return given.us, launcher.us


def _added(to: str, by: str) -> float:
    """µs that a declaration adds; by: "torch.library" around Triton's launcher, or "formula in torch.library"."""
    return times("call", by).us - times("call", to).us


def _library() -> tuple:
    decorated, defined = _added("launcher", "torch.library"), _added("launcher", "torch.library, define")
    assert 0 < defined < decorated
    return times("call", "torch.library").us, decorated, defined


def _library_gradient() -> tuple:
    op = times("gradient", "torch.library")
    assert op.us > 1.2 * times("call", "torch.library").us
    return (op.us,)


def _around() -> tuple:
    decorated = _added("relu(x + bias)", "formula in torch.library")
    defined = _added("relu(x + bias)", "formula in torch.library, define")
    _, decorated_launcher, defined_launcher = _library()
    assert 0 < defined < decorated < decorated_launcher
    assert defined < defined_launcher
    return defined, decorated


def _graph() -> tuple:
    one, each, call_ = (times("call", name).us for name in ("graph of 1", "graph of 20", "triton"))
    assert each < one < call_
    return one, each


def _long() -> tuple:
    labels = {"form": "functional", "implementation": "triton", "rows": 65536, "columns": 512, "dtype": "float32"}
    kernel = ADD_RELU.us("bandwidth", **labels)
    longest = max(recorded.MAKE_OP.rows(part)["us_p50"].max() for part in ("call", "gradient"))
    tens = kernel // 10 * 10
    assert longest < tens
    return (tens,)


def said(sentence: str, values=tuple) -> None:
    claim(NOTEBOOK, sentence, values)


said(
    "Compiled for 65536 rows of 512 numbers, `relu(x + bias) * 2` takes {:.0f} µs as a formula and {:.0f} µs with the "
    "op in it: its result is written to memory and read again.",
    _wall,
)
said("on an H200, where PyTorch's `x + 1` takes {:.0f} µs.", _plus)
said(
    "`x + 1` takes {:.1f} µs, PyTorch's two kernels {:.1f} µs, and our op {:.1f} µs as a cubin and {:.1f} µs in CUDA: "
    "no more than one of PyTorch's own.",
    _calls,
)
said("With a gradient recorded PyTorch takes {:.1f} µs and ours {:.1f} µs.", _gradient)
said("The first call in a process loads the kernel, and takes milliseconds.", _first)
said(
    "Triton's own launcher takes {:.1f} µs, and {:.1f} µs where the output is made too: in Python it finds the kernel "
    "for these arguments, at each call.",
    _launcher,
)
said(
    "The op by torch.library takes {:.1f} µs: `custom_op` adds {:.1f} µs to that launcher, and `define` and `impl` in "
    "its place add {:.1f} µs.",
    _library,
)
said("With a gradient recorded it takes {:.1f} µs, for `setup_context` is Python, too.", _library_gradient)
said(
    "Around PyTorch's formula `define` and `impl` add {:.1f} µs and `custom_op` adds {:.1f} µs, less than around the "
    "launcher.",
    _around,
)
said(
    "The replay of a CUDA graph with one call takes {:.1f} µs, and with twenty {:.1f} µs for each: in a replay "
    "neither Python nor the dispatcher runs.",
    _graph,
)
said(
    "On 65536 rows of 512 numbers our kernel runs for more than {:.0f} µs, longer than each of these calls takes: "
    "then the GPU need not wait for the host.",
    _long,
)
