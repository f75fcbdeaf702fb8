"""What a Triton kernel tells the host about its input: dispatch/input_errors.py has the layout."""

import triton
import triton.language as tl

REPORT_B: tl.constexpr = tl.constexpr(1_000_003)  # of the digest
REPORT_C: tl.constexpr = tl.constexpr(998_244_353)


@triton.jit
def write_report(report_ptr, where, kind, a, b, c):
    """The first lane of `where` to come writes its numbers a, b, c and what kind they are, 1 to 15.
    Once something was reported, no lane makes an atomic operation: a read of the host's memory is much cheaper."""
    zero = tl.zeros_like(where).to(tl.int64)
    where = where & (tl.load(report_ptr + zero, where, other=1, volatile=True) == 0)
    claims = tl.atomic_add(report_ptr + zero, zero + 1, mask=where, sem="relaxed")
    first = where & (claims == 0)
    tl.store(report_ptr + 1 + zero, zero + a, first)
    tl.store(report_ptr + 2 + zero, zero + b, first)
    tl.store(report_ptr + 3 + zero, zero + c, first)
    digest = zero + a + REPORT_B * (zero + b) + REPORT_C * (zero + c)
    tl.store(report_ptr + 4 + zero, digest * 16 + kind, first)


@triton.jit
def count_report(report_ptr, lanes):
    """Adds the sum of the int32 block `lanes`, of one dimension, to the counter: one operation a program, or none."""
    count = tl.sum(lanes, axis=0).to(tl.int64)
    tl.atomic_add(report_ptr + 5, count, mask=count != 0, sem="relaxed")
