"""What a launch cost, by the record of kernels.cubin's bench, on the GPU that it names."""

from __future__ import annotations

from lessons.shared.measure import Times
from lessons.shared.records import Record

LAUNCHES, NUMBERS = Record("launches"), 1024


def launches() -> Times:
    """A row for each way to launch a kernel; its spread is the least and the greatest."""
    record = LAUNCHES.with_part("launch")
    rows = [
        {"name": row["name"], "size": NUMBERS, "us_p20": row["low"], "us_p50": row["us"], "us_p80": row["high"]}
        for _, row in record.rows("launch").iterrows()
    ]
    gpu, date, torch, triton = map(record.head, ("GPU", "date", "torch", "triton"))
    about = f"RECORDED on: {gpu}, {date}, torch {torch}, triton {triton}. µs a launch, with the least and the greatest"
    return Times(rows, about, "numbers")
