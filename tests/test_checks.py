"""kernels.dispatch.signature: what a declared shape accepts, and the words of every refusal."""

import pytest
import torch

from kernels.dispatch.signature import Signature

ONES = torch.ones(2, 3, 5)
IDS = torch.zeros(6, dtype=torch.int64)
BAGS = "offsets? [F · B + 1]: integer; indices [B, F] | [N] with offsets: integer"


def accepts(text, *arguments):
    Signature.of("op", text).check(arguments)


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("x [..., N]: floating; bias [N]: x", (ONES, ONES[0, 0])),
        ("x [..., N]: floating; bias [N]: x", (ONES[0, 0], ONES[0, 0])),
        ("c [B, C]: floating; weight [H, C · C]: c", (ONES[0], torch.ones(4, 25))),
        ("row_offsets [F + 1]: int64; " + BAGS, (IDS[:4], None, IDS.view(2, 3))),
        ("row_offsets [F + 1]: int64; " + BAGS, (IDS[:3], IDS[:5], IDS)),
        ("row_offsets [F + 1]: int64; " + BAGS, (IDS[:1], IDS[:1], IDS[:0])),  # no table, no bag
        ("rows; x [rows, 3]: float32; mode: sum | mean; y: None", (2, ONES[0, :2, :3], "mean", None)),
    ],
)
def test_what_fits(text, arguments):
    accepts(text, *arguments)


@pytest.mark.parametrize(
    ("text", "arguments", "error", "message"),
    [
        ("x [N]: floating", (3,), TypeError, "op: x must be a tensor; got int"),
        ("x [N]: floating", (None,), TypeError, "op: x must be a tensor; got NoneType"),
        ("x [N]: float16 | int8", (ONES,), TypeError, "op: x must be float16 or int8; got float32"),
        ("x [N]: floating; y [N]: x", (ONES[0, 0], ONES[0, 0].half()), TypeError,
         "op: y must have x's dtype, float32; got float16"),
        ("x [N]: floating; y [N]: x", (ONES[0, 0], ONES[0, 0].to("meta")), ValueError,
         "op: y must be on x's device, cpu; got meta"),
        ("x [..., N]: floating", (ONES[0, 0, 0],), ValueError, "op: x must have shape [..., N]; got []"),
        ("x [..., N]: floating; y [..., N]: x", (ONES, ONES[0]), ValueError,
         "op: y must have shape [2, 3, 5], for x of shape [2, 3, 5]; got [3, 5]"),
        ("dense [B, D]: floating; sparse [B, F, D]: dense", (ONES[0], ONES), ValueError,
         "op: sparse must have shape [3, F, 5], for dense of shape [3, 5]; got [2, 3, 5]"),
        ("row_offsets [F + 1]: int64; " + BAGS, (IDS[:3], IDS[:4], IDS), ValueError,
         "op: offsets must have shape [2 · B + 1], for row_offsets of shape [3]; got [4]"),
        ("row_offsets [F + 1]: int64; " + BAGS, (IDS[:0], None, IDS), ValueError,
         "op: row_offsets must have shape [F + 1]; got [0]"),
        ("row_offsets [F + 1]: int64; " + BAGS, (IDS[:3], IDS[:5], IDS.view(2, 3)), ValueError,
         "op: indices must have shape [N], since there are offsets; got [2, 3]"),
        ("rows; x [rows]: floating", (2, ONES[0, 0]), ValueError, "op: x must have shape [2], for rows = 2; got [5]"),
        ("mode: sum | mean", ("max",), ValueError, "op: mode must be one of sum, mean; got 'max'"),
        ("y: None", (ONES,), ValueError, "op: y must be None; got Tensor"),
    ],
)
def test_what_does_not_fit_is_named_with_what_was_expected_and_what_came(text, arguments, error, message):
    with pytest.raises(error) as raised:
        accepts(text, *arguments)
    assert str(raised.value) == message


def test_an_entry_that_says_nothing_is_refused():
    for text in ("", "x [N", "x [N]: floating;", "x: y: z [N]"):
        with pytest.raises((ValueError, AttributeError)):
            Signature.of("op", text)
