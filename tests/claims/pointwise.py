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
    return us(of_op("eager", op="add_relu")), us(of_op("torch.compile", op="add_relu"))


def _six() -> tuple:
    six, ours = (one("add_relu", name=name, shape="even", dtype="float32") for name in ("six lines", "the op"))
    assert same(six, ours)
    return us(six), us(ours)


def _ends() -> tuple:
    found = recorded("add_mul_activation")
    found = found[(found["part"] == "grid") & (found["rows"] == 65536) & (found["columns"] == 512)]
    rows = [found[found["implementation"] == name].iloc[0] for name in ("as generated", "triton", "torch.compile")]
    assert same(*rows)
    assert all(us(row) < 1.01 * facts.bytes_us() for row in rows)
    return tuple(map(us, rows))


def _even() -> tuple:
    rows = [step(each.name) for each in facts.steps.STEPS if each.name != "64-bit places"]
    assert max(map(us, rows)) < 1.05 * min(map(us, rows))
    return min(map(us, rows)), max(map(us, rows))


def _odd() -> tuple:
    before, after = step("any multiplier", "odd"), step("two ways", "odd")
    assert spread_apart(before, after)
    assert us(after) < us(before)
    return us(before), us(after)


def _wide() -> tuple:
    return tuple(us(step(name, shape)) for shape in ("even", "odd") for name in ("16 bytes a lane", "64-bit places"))


def _relu() -> tuple:
    rows = [one("relu", name=name) for name in facts.steps.RELUS]
    assert same(*rows)
    return tuple(map(us, rows))


def _gelu(dtype: str, apart: bool) -> tuple:
    theirs, ours = of_op("torch.compile", "gelu", dtype), of_op("triton", "gelu", dtype)
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
    return erf, facts.issue_us(erf), fitted, facts.issue_us(fitted)


def _duels() -> tuple:
    found = facts.duels()
    lost = found[found["lost"]]
    return len(found), len(lost), 100 * (lost["times"].max() - 1), len(found[found["won"]])


def _tiny() -> tuple:
    lost = facts.duels().query("lost")
    assert lost["us"].max() < 1.75
    return (1.75,)


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
    return _lost("add_mul_activation", part="backward", activation="relu", dtype="float32")


def said(sentence: str, values=tuple) -> None:
    claim(NOTEBOOK, sentence, values)


said("At 65536 × 512 in float32 eager takes {:.1f} µs, and what `torch.compile` generates {:.1f} µs.", _add_relu)
said("The six lines take {:.1f} µs, the library's kernel {:.1f} µs.", _six)
said("Bytes alone take {:.1f} µs.", lambda: (facts.bytes_us(),))
said(
    "the generated kernel takes {:.1f} µs, the library's {:.1f} µs and what `torch.compile` launches {:.1f} µs", _ends
)
said("All steps but the last lie between {:.1f} µs and {:.1f} µs.", _even)
said("There *any multiplier* takes {:.1f} µs, and *two ways* {:.1f} µs.", _odd)
said("With 64-bit places an even size goes from {:.1f} µs to {:.1f} µs, an odd one from {:.1f} µs to {:.1f} µs.", _wide)
said("None of the forms costs more: {:.1f} µs, {:.1f} µs and {:.1f} µs.", _relu)
said("The bytes take {:.1f} µs.", lambda: (facts.bytes_us(HALF),))
said("`torch.compile` takes {:.1f} µs in bfloat16 and ours {:.1f} µs", lambda: _gelu(HALF, True))
said("in float32 it is {:.1f} µs and {:.1f} µs.", lambda: _gelu("float32", False))
said("One kernel with `erf` takes {:.1f} µs in bfloat16, and {:.1f} µs with the polynomial in its place.", _gelu_forms)
said(
    "By `erf` a number takes {:.1f} instructions, issued in {:.1f} µs, by the polynomial {:.1f} and {:.1f} µs.", _issued
)
said("Of {} sizes `torch.compile` is faster beyond the spread in {}, by {:.1f} % at most:", lambda: _duels()[:3])
said("kernels of less than {:.2f} µs, all of them. Ours is faster in {}.", lambda: (*_tiny(), *_duels()[3:]))
said("`add_relu` at 262144 × 1024 takes {:.1f} µs, and {:.1f} µs by `torch.compile`.", _lost_half)
said("relu's takes {:.1f} µs, and {:.1f} µs by `torch.compile`.", _lost_backward)
