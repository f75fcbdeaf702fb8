"""18, Training tables: the notebook quotes what it prints, and one reason from a trace."""

from __future__ import annotations

import gzip
import json

from lessons.shared.claim import claim, quotes
from model.profiling import TRACES


def _a_warp() -> tuple:
    """In the trace of Adagrad's step with a sparse gradient, each row's gradients are added up by 32 threads."""
    (path,) = TRACES.glob("14_*/*.json.gz")
    with gzip.open(path) as file:
        events = json.load(file)["traceEvents"]
    adds = [event["args"] for event in events if "coalesceValues" in event.get("name", "")]
    blocks = [arguments["block"] for arguments in adds if "block" in arguments]
    assert blocks
    assert all(block[0] == 32 for block in blocks)
    return ()


quotes("18")
claim("18", "`coalesce` moves each gradient several times, and one warp adds up a hot row", _a_warp)
