"""18, Training tables: the notebook quotes what it prints, and one reason from a trace."""

from __future__ import annotations

import gzip
import json

from lessons.shared.claim import claim, quotes
from lessons.shared.records import LEAST, Record
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


def _by_int32() -> tuple:
    """The compiled Adagrad that sorts int32, beside the reader's."""
    us, ahead = Record("lecture_18").us, {}
    for size in ("Zipf, 2,048", "Zipf, 16,384", "Zipf, 65,536", "uniform, 65,536"):
        compiled, own = (us("adagrad", name=name, size=size) for name in ("sorted int32, torch.compile", "yours"))
        ahead[size] = own / compiled
    first = ahead.pop("Zipf, 2,048")
    assert first > LEAST
    assert max(ahead.values()) < 1 / LEAST
    return (first,)


quotes("18")
claim("18", "By `int32` it is {:.2f} × ahead for 2048 rows, and behind for more.", _by_int32)
claim("18", "`coalesce` moves each gradient several times, and one warp adds up a hot row", _a_warp)
