"""09, The backward of a pointwise kernel: `python -m model.backward --save`, and the ops' recorded backwards."""

from __future__ import annotations

from claims.claim import claim
from kernels.measure.records import load
from model.backward import facts
from model.backward.facts import COLUMNS, NUMBERS, ROWS, backward, copy_us, of_add_relu, one

NOTEBOOK = "09"


def apart(fast, slow) -> tuple:
    """µs of both; the first is faster, and not by chance: beyond the spread."""
    assert fast["us_p80"] < slow["us_p20"]
    return fast["us_p50"], slow["us_p50"]


def _bytes() -> tuple:
    return 4 * NUMBERS / 1e6, copy_us(4)


def _slow_steps() -> tuple:
    first, second = (one("step", step=step)["us_p50"] for step in ("sum_rows", "sum_tiles"))
    assert second < first / 2
    return first, second


def _chunked_steps() -> tuple:
    found = [one("step", step=step)["us_p50"] for step in ("sum_atomic", "sum_chunk")]
    assert max(found) < one("step", step="sum_tiles")["us_p50"] / 2
    return tuple(found)


def _chunks() -> tuple:
    few, some, many = (one("chunks", step="sum_chunk", chunks=count) for count in (1, 512, 16384))
    assert apart(some, few)
    assert apart(some, many)
    return few["us_p50"], some["us_p50"], many["us_p50"]


def _different() -> tuple:
    atomics, staged = (one("order", step=step) for step in ("sum_atomic", "sum_chunk"))
    assert atomics["runs"] == staged["runs"] == 50
    assert atomics["columns"] == COLUMNS
    assert atomics["differing"] > 0
    assert staged["differing"] == 0
    return (atomics["differing"],)


def _lost() -> tuple:
    relu = apart(backward("torch.compile", "relu"), backward("triton", "relu"))
    gelu = apart(backward("torch.compile", "gelu"), backward("triton", "gelu"))
    return relu + gelu


def _lost_in_bfloat16() -> tuple:
    pairs = [[backward(name, activation, "bfloat16") for name in ("torch.compile", "triton")]
             for activation in ("relu", "gelu")]  # fmt: skip
    return sum((apart(*pair) for pair in pairs), ())


def _add_relu() -> tuple:
    return apart(of_add_relu("torch.compile"), of_add_relu("triton"))


def _won() -> tuple:
    apart(backward("triton", "sigmoid", "bfloat16"), backward("torch.compile", "sigmoid", "bfloat16"))
    return apart(backward("triton", "sigmoid"), backward("torch.compile", "sigmoid"))


def _rate(name: str, activation: str) -> float:
    """Percent of the copy's rate at which the counted bytes go."""
    size = facts.backward_bytes(name, activation, 4)
    return 100 * copy_us(size) / backward(name, activation)["us_p50"]


def _written(activation: str, kind: str) -> None:
    """The recorded compiler keeps what the lesson says, where it is recorded."""
    if not facts.there():
        return
    head = load(facts.NAME)["generated"][activation]["backward"][0]
    assert ("i1" in head) == (kind == "a mask"), head
    assert facts.COMPILER[activation] == kind


def _relu_bytes() -> tuple:
    _written("relu", "a mask")
    found = [facts.backward_bytes(name, "relu", 4) for name in ("torch.compile", "triton")]
    return (*found, _rate("torch.compile", "relu"), _rate("triton", "relu"))


def _gelu_bytes() -> tuple:
    _written("gelu", "the derivative")
    found = {facts.backward_bytes(name, "gelu", 4) for name in ("torch.compile", "triton")}
    assert len(found) == 1
    return (*found, _rate("torch.compile", "gelu"), _rate("triton", "gelu"))


def _mask() -> tuple:
    more = facts.backward_bytes("torch.compile", "sigmoid", 4) - facts.backward_bytes("torch.compile", "relu", 4)
    slower = backward("torch.compile", "sigmoid")["us_p50"] - backward("torch.compile", "relu")["us_p50"]
    assert 0.8 < slower / copy_us(more) < 1.25
    return more, copy_us(more), slower


def _cuda() -> tuple:
    found = [backward("cuda", activation) for activation in ("relu", "gelu")]
    for row, activation in zip(found, ("relu", "gelu"), strict=True):
        apart(row, backward("triton", activation))
    return tuple(row["us_p50"] for row in found)


def _without_sums() -> tuple:
    """At the chunks that the op takes for this shape."""
    without, with_sums = (one("op", activation="relu", chunks=512, sums=each) for each in (False, True))
    assert without["us_p50"] < 0.97 * with_sums["us_p50"], "the sum costs next to no rate"
    return apart(without, with_sums)


def _in_all() -> tuple:
    """Bytes a number, forward and backward, of the compiler's and of ours: relu, gelu."""
    found = []
    for activation in ("relu", "gelu"):
        for name, kept in (("torch.compile", facts.COMPILER), ("triton", facts.KEPT)):
            forward, _ = facts.traffic(facts.WAYS.index(kept[activation]), 4)
            found.append(forward + facts.backward_bytes(name, activation, 4))
    return tuple(found)


def _kept() -> tuple:
    found = ROWS * COLUMNS / 1e6, 4 * ROWS * COLUMNS / 1e6
    if facts.there():
        for activation, mb in zip(("relu", "gelu"), found, strict=True):
            rows = {name: one("training", what="both", activation=activation, dtype="float32", implementation=name)
                    for name in ("torch.compile", "triton")}  # fmt: skip
            assert abs(rows["torch.compile"]["kept"] / 1e6 - mb) < 0.1
            assert rows["triton"]["kept"] < 1e5
    return found


def _together() -> tuple:
    labels = {"what": "both", "dtype": "float32"}
    return tuple(
        one("training", activation=activation, implementation=name, **labels)["us_p50"]
        for activation in ("relu", "gelu") for name in ("torch.compile", "triton")
    )  # fmt: skip


def _orders() -> tuple:
    assert len(set(facts.orders(1000))) > 2
    return ()


claim(NOTEBOOK, "At the copy's rate its {:.1f} MB take {:.1f} µs.", _bytes)
claim(NOTEBOOK, "A row at a time takes {:.0f} µs, 32 rows at a time {:.0f} µs.", _slow_steps)
claim(NOTEBOOK, "With 512 chunks atomics take {:.1f} µs, and two stages {:.1f} µs.", _chunked_steps)
claim(NOTEBOOK, "with one chunk two stages take {:.0f} µs, with 512 they take {:.1f} µs, with 16384 they take {:.0f} "
      "µs.", _chunks)  # fmt: skip
claim(NOTEBOOK, "in 50 runs of the atomics on the same x, {:.0f} of 512 columns came out in several ways; in 50 runs "
      "of the two stages none did.", _different)  # fmt: skip
claim(NOTEBOOK, "(a + b) + c` and `a + (b + c)` may differ", _orders)
claim(NOTEBOOK, "For relu torch.compile takes {:.1f} µs and our Triton kernel {:.1f} µs, for gelu {:.1f} and {:.1f} "
      "µs:", _lost)  # fmt: skip
claim(NOTEBOOK, "in bfloat16 as well, {:.1f} to {:.1f} µs and {:.1f} to {:.1f} µs.", _lost_in_bfloat16)
claim(NOTEBOOK, "`add_relu` loses by {:.1f} to {:.1f} µs.", _add_relu)
claim(NOTEBOOK, "Only for sigmoid ours is faster, {:.1f} to {:.1f} µs.", _won)
claim(NOTEBOOK, "Eager takes {:.1f} µs for relu.", lambda: (backward("eager", "relu")["us_p50"],))
claim(NOTEBOOK, "for relu it moves {} bytes a number to our {}, and is faster: they go at {:.0f} % of the copy's rate, "
      "ours at {:.0f} %.", _relu_bytes)  # fmt: skip
claim(NOTEBOOK, "but its sum reads one more: {} bytes each, at {:.0f} and {:.0f} %.", _gelu_bytes)
claim(NOTEBOOK, "{} bytes more, which should take {:.1f} µs, and it is {:.1f} µs slower than for relu.", _mask)
claim(NOTEBOOK, "Without `grad_bias` our kernel takes {:.1f} µs for relu, with it {:.1f} µs.", _without_sums)
claim(NOTEBOOK, "Our CUDA kernel moves the same bytes in {:.1f} µs for relu and {:.1f} µs for gelu", _cuda)
claim(NOTEBOOK, "in all it moves {} bytes a number to our {} for relu, {} to {} for gelu.", _in_all)
claim(NOTEBOOK, "it keeps {:.1f} MB for relu and {:.1f} MB for gelu, ours nothing.", _kept)
claim(NOTEBOOK, "Forward and backward together take {:.1f} µs with torch.compile and {:.1f} µs with ours for relu, "
      "{:.1f} µs and {:.1f} µs for gelu.", _together)  # fmt: skip
