"""The peers of fused_mlp's benchmark: what each of them multiplies by."""

import pytest
import torch
import torch.nn.functional as F

from ... import runtime
from ...measure import judge
from . import bench, packing
from .bench import IN_THE_CALL, PADDED

WIDTHS = "19-5-3"
COLUMNS = packing.padded(19)


@pytest.fixture
def columns(monkeypatch):
    """How many columns x and the weight of each product had; nothing is compiled."""
    counts = []
    linear = F.linear

    def noted(x, weight, bias):
        counts.append((x.shape[1], weight.shape[1]))
        return linear(x, weight, bias)

    monkeypatch.setattr(F, "linear", noted)
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    return counts


@pytest.mark.parametrize("peer", ["eager", "torch.compile", "max-autotune"])
@pytest.mark.parametrize(("suffix", "wide"), [("", 19), (PADDED, COLUMNS), (IN_THE_CALL, COLUMNS)])
def test_a_padded_peer_multiplies_rows_that_are_filled_up(columns, peer, suffix, wide):
    torch.manual_seed(0)
    (packed,) = bench._draw_buffer((19, 5, 3), torch.randn)
    x = torch.randn(4, COLUMNS)  # what lies behind the 19 columns must not count
    run = bench._built(peer + suffix, WIDTHS, ("relu", "identity", "ieee"))()
    expected = bench._from_buffer(x, x[:, :19], packed, WIDTHS, "relu", "identity")
    columns.clear()
    torch.testing.assert_close(run(x, x[:, :19].contiguous(), packed), expected)
    assert columns == [(wide, wide), (5, 5)]


def test_each_peer_of_a_product_of_odd_columns_is_padded_too():
    for cell in bench.cells():
        if isinstance(cell, bench.Cell) and not cell.waits:
            for name in {"eager", "torch.compile", "max-autotune"} & {*cell.implementations}:
                assert name + PADDED in cell.implementations, (cell.part, cell.labels)


def test_only_what_pads_within_the_call_is_given_rows_of_odd_columns_to_pad():
    """Who is given x that is filled up, and who the narrow one."""
    is_wide = {}
    for name in (*bench.NAMES, "torch.compile" + IN_THE_CALL, "auto"):
        for widths in (bench.BOTTOM, bench.TOP):
            text = "-".join(map(str, widths))
            is_wide[name, widths] = bench.given(name, text)
    assert {name for (name, widths), wide in is_wide.items() if wide and widths == bench.BOTTOM} == {
        "eager" + PADDED, "torch.compile" + PADDED
    }
    assert {name for (name, widths), wide in is_wide.items() if wide and widths == bench.TOP} == {
        "eager" + PADDED, "torch.compile" + PADDED, "triton", "cuda", "auto"
    }


@pytest.mark.parametrize("name", [bench.ON_CHIP, bench.WORKSPACE])
def test_both_kinds_of_tile_compute_the_same(name):
    if runtime.why_not("triton", "cpu"):
        pytest.skip("Triton does not interpret here")
    (packed,) = bench._draw_buffer((5, 20, 33, 3), torch.randn)
    x = torch.randn(37, 5)
    options = "relu", "sigmoid", "tf32"
    run = bench._of_tile(name, "5-20-33-3", options)()
    expected = bench._from_buffer(x, x, packed, "5-20-33-3", *options)
    torch.testing.assert_close(run(x, x, packed), expected, rtol=0, atol=4e-3)


def test_the_verdicts_compare_with_the_padded_peer():
    labels = {"widths": "367-512-256-1", "rows": 2048, "dtype": "float32"}
    rows = [
        judge.Row("fused_mlp", "top 2048", "functional", name, labels, us_p50=us)
        for name, us in (("torch.compile", 33.5), ("torch.compile" + PADDED, 23.9), ("triton", 26.6), ("cuda", 30.0))
    ]
    target = next(candidate for candidate in bench.TARGETS if candidate.part == "top 2048")
    verdict = target.judge(rows, {})
    assert not verdict.met
    assert verdict.figure.startswith("triton at worst 1.113 of 1 × torch.compile, as it is set best; ")
    assert verdict.misses == [f"{judge.name(rows[2])}: 1.113 of torch.compile, padded"]
