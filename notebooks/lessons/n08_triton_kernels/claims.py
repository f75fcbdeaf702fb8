"""08, Triton kernels: what `python -m lessons.n08_triton_kernels --save` and the ops' benchmarks recorded."""

from __future__ import annotations

from lessons.n08_triton_kernels import recorded, steps
from lessons.n08_triton_kernels.experiment import VALUES
from lessons.n08_triton_kernels.recorded import POINTWISE, of_op, step
from lessons.shared.claim import claim
from lessons.shared.records import Record, apart

NOTEBOOK = "08"
one = POINTWISE.one
HALF = "bfloat16"


def p50(row) -> float:
    return row["us_p50"]


def same(*rows) -> bool:
    """Within two percent of one another."""
    times = [p50(row) for row in rows]
    return max(times) < 1.02 * min(times)


def _add_relu() -> tuple:
    return (p50(of_op("eager", op="add_relu")),)


def _six(shape: str) -> tuple:
    """At the even size there is no difference; at the odd one each is faster than the one before."""
    names = ("six lines", "torch.compile", "the op")
    six, theirs, ours = found = [one("add_relu", name=name, shape=shape, dtype="float32") for name in names]
    for a, b in ((six, theirs), (theirs, ours), (six, ours)):
        assert apart(a, b) == (shape == "odd")
        assert shape == "even" or p50(a) > p50(b)
    return tuple(map(p50, found))


def _even() -> tuple:
    rows = [step(each.name) for each in steps.STEPS]
    assert max(map(p50, rows)) < 1.01 * min(map(p50, rows))
    assert same(*rows, step("torch.compile"))
    return min(map(p50, rows)), max(map(p50, rows)), p50(step("torch.compile"))


def _short() -> tuple:
    return tuple(int(step(name)["instructions"]) for name in ("short sigmoid", "float32 inside"))


def _copy() -> tuple:
    copy = one("copy", of="step", shape="even", dtype="float32")
    assert all(apart(copy, step(each.name)) for each in steps.STEPS)
    assert p50(copy) > recorded.bytes_us() > max(p50(step(each.name)) for each in steps.STEPS)
    return (p50(copy),)


def _odd() -> tuple:
    before, after, theirs = (step(name, "odd") for name in ("any multiplier", "two ways", "torch.compile"))
    assert apart(before, theirs)
    assert apart(theirs, after)
    assert p50(after) < p50(theirs) < p50(before)
    return p50(before), p50(after), p50(theirs)


def _odd_half() -> tuple:
    """More than by gelu's arithmetic, add_relu's odd size or any size of the grid."""
    ours, theirs = step("the op", "odd", HALF), step("torch.compile", "odd", HALF)
    others = [
        1 / recorded.duels()["times"].min(),
        p50(of_op("torch.compile", "gelu", HALF)) / p50(of_op("triton", "gelu", HALF)),
    ]
    others.append(_six("odd")[1] / _six("odd")[2])
    assert p50(theirs) / p50(ours) > max(others)
    return p50(ours), p50(theirs)


def _wide(shape: str, dtype: str = "float32", name: str = "us_p50") -> tuple:
    before, after = (step(name, shape, dtype) for name in ("16 bytes a lane", "64-bit places"))
    assert apart(before, after) == ((shape, dtype) == ("odd", HALF))
    return before[name], after[name]


def _wide_in_one() -> tuple:
    for shape, dtype in recorded.PANELS:
        found = _wide(shape, dtype)
    return found  # the last panel's, the odd size in bfloat16


def _remainder() -> tuple:
    odd, even = (_wide(shape, HALF, "instructions") for shape in ("odd", "even"))
    return tuple(map(int, (*odd[::-1], *even[::-1])))


def _relu() -> tuple:
    rows = [one("relu", name=name) for name in steps.RELUS]
    assert not any(apart(a, b) for a in rows for b in rows)
    return tuple(map(p50, rows))


def _zeros() -> tuple:
    eager = one("values", name="eager")["values"]
    assert eager[VALUES.index(0.0)] == "0.0"  # the first of the zeros is −0
    return ()


def _gelu(dtype: str, far: bool) -> tuple:
    theirs, ours = (one("gelu", name=name, dtype=dtype) for name in ("torch.compile", "the op"))
    assert (p50(ours) < 0.9 * p50(theirs)) == far
    return p50(theirs), p50(ours)


def _gelu_forms() -> tuple:
    erf, fitted = (one("gelu", name=each.name, dtype=HALF) for each in steps.GELUS)
    assert apart(erf, fitted)
    assert p50(fitted) < p50(erf)
    return p50(erf), p50(fitted)


def _issued() -> tuple:
    """The instructions of erf are issued in nearly the time of the bytes, in bfloat16; in float32 in less than half."""
    erf, fitted = (recorded.a_number(one("gelu", name=each.name, dtype=HALF)) for each in steps.GELUS)
    assert 0.8 < recorded.issue_us(erf) / recorded.bytes_us(HALF) < 1.1
    assert recorded.issue_us(fitted) < 0.75 * recorded.bytes_us(HALF)
    whole = one("gelu", name="gelu by erf", dtype="float32")
    assert recorded.issue_us(recorded.a_number(whole)) < 0.5 * recorded.bytes_us()
    return ()


def _duels() -> tuple:
    found = recorded.duels()
    lost = found[found["lost"]]
    return len(found), len(lost), 100 * (lost["times"].max() - 1)


def _tiny() -> tuple:
    lost = recorded.duels().query("lost")
    assert lost["us"].max() < 1.75
    found = recorded.duels()
    assert not ((found["rows"] * found["columns"] % 16 != 0) & (found["us"] > 10)).any()  # the large ones are multiples
    return (1.75,)


def _won() -> tuple:
    won = recorded.duels().query("won")
    return len(won), 100 * (1 - won["times"].min())


def _lost(op: str, **labels) -> tuple:
    ours, theirs = (Record(op).one(**labels, implementation=name) for name in ("triton", "torch.compile"))
    assert apart(ours, theirs, least=1)
    assert p50(ours) > p50(theirs)
    return p50(ours), p50(theirs)


def _lost_half() -> tuple:
    return _lost("add_relu", part="bandwidth", form="functional", rows=262144, dtype=HALF)


def _lost_backward() -> tuple:
    relu, gelu = (
        _lost("add_mul_activation", part="backward", activation=name, dtype="float32") for name in ("relu", "gelu")
    )
    half = _lost_half()
    assert min(ours / theirs for ours, theirs in (relu, gelu)) > half[0] / half[1]
    return relu


def said(sentence: str, values=tuple) -> None:
    claim(NOTEBOOK, sentence, values)


said("At 65536 × 512 in float32 eager takes {:.1f} µs.", _add_relu)
said(
    "The six lines take {:.1f} µs, what `torch.compile` generates {:.1f} µs, and the library's kernel {:.1f} µs: "
    "no difference.",
    lambda: _six("even"),
)
said("At 65535 × 511 the three take {:.1f} µs, {:.1f} µs and {:.1f} µs.", lambda: _six("odd"))
said("At a copy's rate their bytes take {:.1f} µs.", lambda: (recorded.bytes_us(),))
said("At the even size all steps lie between {:.1f} µs and {:.1f} µs, and `torch.compile` takes {:.1f} µs", _even)
said("*short sigmoid* has {} instructions instead of {}, which no time shows.", _short)
said("(The table's last line, a copy, takes {:.1f} µs: its rate is a yardstick, not a limit.)", _copy)
said(
    "At 65535 × 511 *any multiplier* takes {:.1f} µs, *two ways* {:.1f} µs, "
    "and what `torch.compile` generates {:.1f} µs.",
    _odd,
)
said(
    "In bfloat16 the library's kernel takes {:.1f} µs and `torch.compile` {:.1f} µs: our largest gain here.", _odd_half
)
said("64-bit places cost something in the last panel only: {:.1f} µs become {:.1f} µs.", _wide_in_one)
said(
    "the whole kernel has {} instructions instead of {}, but by 512, a power of two, {} instead of {}.",
    _remainder,
)
said("Their times are the same within the spread: {:.1f} µs, {:.1f} µs and {:.1f} µs.", _relu)
said("PyTorch's relu keeps it on a CPU, and gives +0 on the H200.", _zeros)
said("The bytes take {:.1f} µs.", lambda: (recorded.bytes_us(HALF),))
said("`torch.compile` takes {:.1f} µs in bfloat16 and ours {:.1f} µs", lambda: _gelu(HALF, True))
said("in float32 it is {:.1f} µs and {:.1f} µs.", lambda: _gelu("float32", False))
said("One kernel with `erf` takes {:.1f} µs in bfloat16, and {:.1f} µs with the polynomial in its place.", _gelu_forms)
said("In bfloat16 those of `erf` take nearly as long as the bytes, and then, probably, not all are hidden.", _issued)
said(
    "Of {} sizes `torch.compile` is faster beyond the spread in {}, by {:.1f} % at most:",
    _duels,
)
said(
    "kernels of less than {:.2f} µs, all of them. Ours is faster in {}, by {:.1f} % at most.",
    lambda: (*_tiny(), *_won()),
)
said("`add_relu` at 262144 × 1024 takes {:.1f} µs, and {:.1f} µs by `torch.compile`.", _lost_half)
said("relu's takes {:.1f} µs, and {:.1f} µs by `torch.compile`.", _lost_backward)
