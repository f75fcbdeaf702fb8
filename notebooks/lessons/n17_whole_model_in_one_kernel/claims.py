"""17, The whole model in one kernel: 02's step, the H200's L2, the whole model's record."""

from __future__ import annotations

import itertools

from lessons.n17_whole_model_in_one_kernel.mini_kernel import WIDTH
from lessons.shared.claim import claim
from lessons.shared.launches import HOST_BOUND, call_us, step_us
from lessons.shared.records import LEAST, Record, copy_us, sm_gb_per_s, sms, yardstick

BOTTOM, TOP = (13, 512, 256, 64, 16), (367, 512, 256, 1)
WHOLE = Record("whole_model")


def weight_bytes() -> int:
    """Of main's MLPs, float32."""
    return 4 * sum(a * b for widths in (BOTTOM, TOP) for a, b in itertools.pairwise(widths))


def floor_us(blocks: int = 1) -> float:
    """µs in which an SM reads its share of them from the L2."""
    return weight_bytes() / blocks / sm_gb_per_s() / 1e3


def _inference(rows: int, precision: str = "tf32") -> tuple[float, float]:
    """µs of ours, and of the best peer, which is a torch.compile; both as a graph."""
    found = WHOLE.rows("inference", rows=rows, precision=precision).set_index("implementation")["us"]
    peers = found.drop("fused")
    assert peers.idxmin().startswith("torch.compile")
    return found["fused"], peers.min()


def _four_kernels() -> tuple:
    (ours, peer), (ours_small, peer_small) = _inference(2048), _inference(128)
    assert ours < peer
    assert ours_small < peer_small
    assert 2 * floor_us() < min(ours, ours_small)
    return ours_small, peer_small, ours, peer


def _full_float32() -> tuple:
    (ours, peer), (ours_small, peer_small) = _inference(2048, "fp32"), _inference(128, "fp32")
    assert ours < peer
    assert ours_small > peer_small
    return ours_small, peer_small, ours, peer


def _launch() -> tuple:
    """µs of a call; 2048 rows' bytes take a hundredth of them."""
    moved = 2048 * (4 * 13 + 3 * (8 + 4 * WIDTH) + 4)
    assert 80 < call_us()[0] / copy_us(moved) < 120
    return (call_us()[0],)


def _calls() -> tuple:
    """µs of mini's calls, as the table above has them."""
    calls = Record("dlrm").with_part("latency", model="mini").rows("latency", model="mini")
    found = calls.set_index("implementation")["call_us"]
    graph, copied = "cuda, in a graph", "cuda, in a graph, fresh inputs"
    in_graphs = found.index.str.contains("in a graph")
    fresh = found.index.str.endswith("fresh inputs")
    for is_fresh in (fresh, ~fresh):
        assert found[in_graphs & is_fresh].idxmin() in (graph, copied)
        assert found[~in_graphs & is_fresh].idxmin() in ("cuda", "cuda, fresh inputs")
    assert found[copied] > found["cuda, fresh inputs"]
    return tuple(found[who] for who in ("cuda", graph, "fused_kernels backend"))


def _tiles() -> tuple:
    """µs of main's tiles and of the best peer, of the record of mini's calls; tf32, both as a graph. The tiles take
    less than the H200's four kernels."""
    record = Record("dlrm").with_part("latency", model="mini")
    times = []
    for rows in (128, 2048):
        found = record.rows("main", rows=rows, dtype="float32").set_index("implementation")["us_p50"]
        peers = found.drop("cuda")
        assert peers.idxmin().startswith("torch.compile")
        times += [found["cuda"], peers.min()]
    small, small_peer, *large = times
    assert small < small_peer
    assert large[0] < large[1]
    assert small < _inference(128)[0]
    assert large[0] < _inference(2048)[0]
    return tuple(large)


claim("17", "calling one operator cost the host {:.1f} µs", _launch)
claim("17", "at the rate of a copy, {:.2f} TB/s", lambda: (yardstick(),))
claim("17", "the host launches {:.0f} kernels one by one", lambda: (step_us(HOST_BOUND)[1],))
claim("17", "at the {:.0f} GB/s of notebook 14.", lambda: (sm_gb_per_s(),))
claim(
    "17",
    "{:.2f} MB of weights at {:.0f} GB/s take {:.1f} µs",
    lambda: (weight_bytes() / 1e6, sm_gb_per_s(), floor_us()),
)
claim("17", "A batch of 2048 rows makes only 16 blocks of 128, and an H200 has {} SMs.", lambda: (sms(),))
claim("17", "tiles of 16 rows give {} of the {} SMs one each", lambda: (2048 // 16, sms()))
claim(
    "17",
    "| rows | our four kernels | best peer | |---|---|---| | 128 | {:.1f} µs | {:.1f} µs | "
    "| 2048 | {:.1f} µs | {:.1f} µs |",
    _four_kernels,
)
claim("17", "in a cluster of eight, a block would read its eighth of the weights in {:.1f} µs.", lambda: (floor_us(8),))
claim(
    "17",
    "| rows | our parts | `torch.compile` | |---|---|---| | 128 | {:.1f} µs | {:.1f} µs | "
    "| 2048 | {:.1f} µs | {:.1f} µs |",
    _full_float32,
)
claim("17", "or {:.0f} %", lambda: (100 * (LEAST - 1),))
claim(
    "17",
    "a call of our kernel from Python takes {:.1f} µs, and a replay as a graph {:.1f} µs. Each is the fastest of its "
    "kind.",
    lambda: _calls()[:2],
)
claim("17", "Through the backend a call takes {:.1f} µs.", lambda: _calls()[2:])
claim(
    "17",
    "take {:.1f} µs for 2048 rows, and the best peer takes {:.1f} µs. The tiles also win with 128 rows. At both sizes "
    "they beat our four kernels on the H200.",
    _tiles,
)
