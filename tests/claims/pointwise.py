"""08, Triton kernels: what `python -m model.pointwise --save` and the ops' benchmarks recorded."""

from __future__ import annotations

from claims.claim import claim
from kernels.measure.records import recorded
from model.pointwise import facts
from model.pointwise.facts import of_op, one, spread_apart, step

NOTEBOOK = "08"
HALF = "bfloat16"


def us(row) -> float:
    return row["us_p50"]


def same(*rows) -> bool:
    """Within two percent of one another."""
    times = [us(row) for row in rows]
    return max(times) < 1.02 * min(times)


def _add_relu() -> tuple:
    return (us(of_op("eager", op="add_relu")),)


def _six(shape: str) -> tuple:
    """At the even size there is no difference; at the odd one each is faster than the one before."""
    names = ("six lines", "torch.compile", "the op")
    six, theirs, ours = found = [one("add_relu", name=name, shape=shape, dtype="float32") for name in names]
    for a, b in ((six, theirs), (theirs, ours), (six, ours)):
        assert spread_apart(a, b) == (shape == "odd")
        assert shape == "even" or us(a) > us(b)
    return tuple(map(us, found))


def _even() -> tuple:
    rows = [step(each.name) for each in facts.steps.STEPS]
    assert max(map(us, rows)) < 1.01 * min(map(us, rows))
    assert same(*rows, step("torch.compile"))
    return min(map(us, rows)), max(map(us, rows)), us(step("torch.compile"))


def _short() -> tuple:
    return tuple(int(step(name)["instructions"]) for name in ("short sigmoid", "float32 inside"))


def _copy() -> tuple:
    copy = one("copy", of="step", shape="even", dtype="float32")
    assert all(spread_apart(copy, step(each.name)) for each in facts.steps.STEPS)
    assert us(copy) > facts.bytes_us() > max(us(step(each.name)) for each in facts.steps.STEPS)
    return (us(copy),)


def _odd() -> tuple:
    before, after, theirs = (step(name, "odd") for name in ("any multiplier", "two ways", "torch.compile"))
    assert spread_apart(before, theirs)
    assert spread_apart(theirs, after)
    assert us(after) < us(theirs) < us(before)
    return us(before), us(after), us(theirs)


def _odd_half() -> tuple:
    """More than by gelu's arithmetic, add_relu's odd size or any size of the grid."""
    ours, theirs = step("the op", "odd", HALF), step("torch.compile", "odd", HALF)
    others = [
        1 / facts.duels()["times"].min(),
        us(of_op("torch.compile", "gelu", HALF)) / us(of_op("triton", "gelu", HALF)),
    ]
    others.append(_six("odd")[1] / _six("odd")[2])
    assert us(theirs) / us(ours) > max(others)
    return us(ours), us(theirs)


def _wide(shape: str, dtype: str = "float32", name: str = "us_p50") -> tuple:
    before, after = (step(name, shape, dtype) for name in ("16 bytes a lane", "64-bit places"))
    assert spread_apart(before, after) == ((shape, dtype) == ("odd", HALF))
    return before[name], after[name]


def _wide_in_one() -> tuple:
    for shape, dtype in facts.PANELS:
        found = _wide(shape, dtype)
    return found  # the last panel's, the odd size in bfloat16


def _remainder() -> tuple:
    odd, even = (_wide(shape, HALF, "instructions") for shape in ("odd", "even"))
    return tuple(map(int, (*odd[::-1], *even[::-1])))


def _relu() -> tuple:
    rows = [one("relu", name=name) for name in facts.steps.RELUS]
    assert not any(spread_apart(a, b) for a in rows for b in rows)
    return tuple(map(us, rows))


def _zeros() -> tuple:
    eager = one("values", name="eager")["values"]
    assert eager[facts.VALUES.index(0.0)] == "0.0"  # the first of the zeros is −0
    return ()


def _gelu(dtype: str, apart: bool) -> tuple:
    theirs, ours = (one("gelu", name=name, dtype=dtype) for name in ("torch.compile", "the op"))
    assert (us(ours) < 0.9 * us(theirs)) == apart
    return us(theirs), us(ours)


def _gelu_forms() -> tuple:
    erf, fitted = (one("gelu", name=each.name, dtype=HALF) for each in facts.steps.GELUS)
    assert spread_apart(erf, fitted)
    assert us(fitted) < us(erf)
    return us(erf), us(fitted)


def _issued() -> tuple:
    """The instructions of erf are issued in nearly the time of the bytes, in bfloat16; in float32 in less than half."""
    erf, fitted = (facts.a_number(one("gelu", name=each.name, dtype=HALF)) for each in facts.steps.GELUS)
    assert 0.8 < facts.issue_us(erf) / facts.bytes_us(HALF) < 1.1
    assert facts.issue_us(fitted) < 0.75 * facts.bytes_us(HALF)
    assert facts.issue_us(facts.a_number(one("gelu", name="gelu by erf", dtype="float32"))) < 0.5 * facts.bytes_us()
    return ()


def _duels() -> tuple:
    found = facts.duels()
    lost = found[found["lost"]]
    return len(found), len(lost), 100 * (lost["times"].max() - 1)


def _tiny() -> tuple:
    lost = facts.duels().query("lost")
    assert lost["us"].max() < 1.75
    found = facts.duels()
    assert not ((found["rows"] * found["columns"] % 16 != 0) & (found["us"] > 10)).any()  # the large ones are multiples
    return (1.75,)


def _won() -> tuple:
    won = facts.duels().query("won")
    return len(won), 100 * (1 - won["times"].min())


def _lost(op: str, **labels) -> tuple:
    found = recorded(op)
    for name, value in labels.items():
        found = found[found[name] == value]
    ours, theirs = (found[found["implementation"] == name].iloc[0] for name in ("triton", "torch.compile"))
    assert spread_apart(ours, theirs)
    assert us(ours) > us(theirs)
    return us(ours), us(theirs)


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
said("At a copy's rate their bytes take {:.1f} µs.", lambda: (facts.bytes_us(),))
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
said("The bytes take {:.1f} µs.", lambda: (facts.bytes_us(HALF),))
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
