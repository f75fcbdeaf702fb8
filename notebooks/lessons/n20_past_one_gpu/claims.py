"""20, Past one GPU: what is counted in its cells, and torch.distributed's default timeout."""

from __future__ import annotations

import re
from datetime import timedelta

from torch.distributed.constants import default_pg_timeout

from lessons.shared.claim import claim, printed


def busiest(gpus: int) -> float:
    """How many times the mean the busiest GPU reads with whole tables, as the table prints it."""
    (block,) = re.findall(rf"^{gpus} GPUs (?:.*\n)( +whole .*)$", printed("20", "table"), flags=re.M)
    return float(re.search(r"([\d.]+) × the mean", block)[1])


def half_an_hour() -> tuple:
    assert default_pg_timeout == timedelta(minutes=30)
    return ()


def columns_cost_ids_and_rows_vectors() -> tuple:
    rows = re.findall(r"^ +(\w+) +(\d+) .* ([\d,]+) +([\d,]+)$", printed("20", "table"), flags=re.M)
    (_, _, ids, vectors), *cuts = [(way, int(k), *(int(n.replace(",", "")) for n in rest)) for way, k, *rest in rows]
    for way, k, sent_ids, sent_vectors in cuts:
        if way != "whole":
            assert sent_ids == k * ids
            assert sent_vectors == (k if way == "rows" else 1) * vectors
    assert ids < vectors / 10
    return ()


claim("20", "**Predict** how many GPUs of 80 GB are needed to hold the Terabyte's tables")
claim("20", "(By default it is half an hour.)", half_an_hour)
claim(
    "20", "the GPU with the hot feature reads {:.1f} times the mean of 8 GPUs, and {:.1f} times that of 64.",
    lambda: (busiest(8), busiest(64)),
)
claim("20", "They send the ids once for each block, and ids are small.", columns_cost_ids_and_rows_vectors)
