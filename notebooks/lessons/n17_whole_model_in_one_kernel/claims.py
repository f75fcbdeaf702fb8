"""17, The whole model in one kernel: 02's step, the H200's L2, the records of the whole model, its op and its sweep."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from kernels.ops.dlrm.cluster import ROWS, resident_clusters
from lessons.n17_whole_model_in_one_kernel import recorded
from lessons.n17_whole_model_in_one_kernel.mini_kernel import WIDTH
from lessons.shared.claim import claim
from lessons.shared.launches import HOST_BOUND, call_us, step_us
from lessons.shared.records import LEAST, Record, apart, copy_us, sm_gb_per_s, sms, yardstick

if TYPE_CHECKING:
    import pandas

BOTTOM, TOP = (13, 512, 256, 64, 16), (367, 512, 256, 1)
WHOLE, DLRM = Record("whole_model"), recorded.RECORD


def weight_bytes() -> int:
    """The bytes of the weights of main's MLPs, float32."""
    return 4 * sum(a * b for widths in (BOTTOM, TOP) for a, b in itertools.pairwise(widths))


def floor_us(blocks: int = 1) -> float:
    """µs in which an SM reads its share of them from the L2."""
    return weight_bytes() / blocks / sm_gb_per_s() / 1e3


def _clusters() -> tuple[int, int]:
    """As many as the op launches at most, and their rows."""
    clusters = resident_clusters(sms())
    return clusters, clusters * ROWS[-1]


def _inference(rows: int, precision: str = "tf32") -> tuple[float, float]:
    """µs of ours, and of the best peer, which is a torch.compile without max-autotune; both as a graph."""
    times = WHOLE.rows("inference", rows=rows, precision=precision).set_index("implementation")["us"]
    peers = times.drop("fused")
    assert not peers.index.str.contains("max-autotune").any()
    assert peers.idxmin().startswith("torch.compile")
    return times["fused"], peers.min()


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
    """µs of a call; moving the bytes of 2048 rows takes less than a hundredth of that."""
    moved = 2048 * (4 * 13 + 3 * (8 + 4 * WIDTH) + 4)
    assert 100 < call_us()[0] / copy_us(moved) < 150
    return (call_us()[0],)


def _calls() -> tuple:
    """µs of mini's calls, as the table above has them."""
    times = DLRM.rows("latency", model="mini").set_index("implementation")["call_us"]
    graph, copied = "cuda, in a graph", "cuda, in a graph, fresh inputs"
    in_graphs = times.index.str.contains("in a graph")
    fresh = times.index.str.endswith("fresh inputs")
    for is_fresh in (fresh, ~fresh):
        assert times[in_graphs & is_fresh].idxmin() in (graph, copied)
        assert times[~in_graphs & is_fresh].idxmin() in ("cuda", "cuda, fresh inputs")
    assert times[copied] > times["cuda, fresh inputs"]
    return tuple(times[who] for who in ("cuda", graph, "fused_kernels backend"))


def _main(rows: int) -> tuple[pandas.Series, pandas.Series]:
    """The rows of main's tiles and of the best peer, in tf32, both as a graph."""
    table = DLRM.rows("main", rows=rows, dtype="float32", precision="tf32").sort_values("us_p50")
    assert not table["implementation"].str.contains("max-autotune").any()
    ours = table["implementation"] == "cuda"
    peer = table[~ours].iloc[0]
    assert peer["implementation"].startswith("torch.compile")
    return table[ours].iloc[0], peer


def _tiles(rows: int) -> tuple:
    """µs of main's tiles and of the best peer. The tiles win, but for 65,536 rows."""
    tiles, peer = (row["us_p50"] for row in _main(rows))
    if rows < 65536:
        assert apart(*_main(rows))
        assert tiles < peer
    return tiles, peer


def _weights_part() -> tuple:
    """µs in which an SM reads all weights, and of the tiles of 2048 rows: a third."""
    tiles = _main(2048)[0]["us_p50"]
    assert abs(3 * floor_us() / tiles - 1) < 0.05
    return floor_us(), tiles


def _top_mlp() -> tuple:
    """µs of the top MLP of 128 rows, filled up, by max-autotune and by torch.compile's default."""
    labels = {"rows": 128, "widths": "367-512-256-1", "dtype": "float32", "precision": "tf32"}
    record, parts = Record("fused_mlp"), ("top 128 autotuned", "top 128")
    ways = "max-autotune, padded", "torch.compile, padded"
    return tuple(record.us(part, implementation=way, **labels) for part, way in zip(parts, ways, strict=True))


def _most_rows() -> tuple:
    """The per cent by which the tiles and the best peer differ less."""
    us = _tiles(65536)
    assert max(us) < LEAST * min(us)
    return (100 * (LEAST - 1),)


def _nearly_every_sm() -> tuple:
    assert 0.95 * sms() < 2048 // 16 <= sms()
    return ()


def _sweep() -> tuple:
    """The most tables, and by how much the best peer is slower, the least and the most; ours wins in every cell."""
    cells = recorded.cells(recorded.SWEEP)
    assert {recorded.winner(cell) for cell in cells.values()} == {recorded.OURS}
    ratios = [cell["us_p50"].iloc[1] / cell["us_p50"].iloc[0] for cell in cells.values()]
    return max(count for count, _ in cells), min(ratios), max(ratios)


claim("17", "calling one operator cost the host {:.1f} µs", _launch)
claim("17", "at the rate of a copy, {:.2f} TB/s", lambda: (yardstick(),))
claim("17", "the host launches {:.0f} kernels one by one", lambda: (step_us(HOST_BOUND)[1],))
claim("17", "at the {:.0f} GB/s of notebook 14.", lambda: (sm_gb_per_s(),))
claim("17", "These {:.1f} µs are the floor of a tile", lambda: (floor_us(),))
claim("17", "A batch of 2048 rows makes only 16 blocks, and an H200 has {} SMs.", lambda: (sms(),))
claim("17", "For 2048 rows, tiles of 16 rows give nearly every SM one.", _nearly_every_sm)
claim(
    "17",
    "| rows | our four kernels | best peer | |---|---|---| | 128 | {:.1f} µs | {:.1f} µs | "
    "| 2048 | {:.1f} µs | {:.1f} µs |",
    _four_kernels,
)
claim(
    "17",
    "on the top MLP alone, with 128 rows, `max-autotune` takes {:.1f} µs where the default takes {:.1f}",
    _top_mlp,
)
claim("17", "reads all weights in {:.1f} µs. That is a third of the {:.1f} µs.", _weights_part)
claim("17", "each block reads an eighth of the weights, in {:.1f} µs.", lambda: (floor_us(8),))
claim("17", "An H200 runs {} such clusters at once, so batches of up to {} rows", _clusters)
claim(
    "17",
    "| rows | our parts | best peer | |---|---|---| | 128 | {:.1f} µs | {:.1f} µs | "
    "| 2048 | {:.1f} µs | {:.1f} µs |",
    _full_float32,
)
claim(
    "17",
    "A call of our kernel from Python takes {:.1f} µs, and a graph's replay {:.1f} µs. Each is the fastest: among "
    "calls, and among replays.",
    lambda: _calls()[:2],
)
claim("17", "Through the backend a call takes {:.1f} µs.", lambda: _calls()[2:])
for _rows, _said in ((128, "128"), (2048, "2048"), (65536, "65,536")):
    claim("17", f"| {_said} | {{:,.1f}} µs | {{:,.1f}} µs |", lambda rows=_rows: _tiles(rows))
claim("17", "With very many rows the difference from the peer is below {:.0f} %, which counts as none:", _most_rows)
claim(
    "17",
    "gives `Mini`'s MLPs up to {} tables. In the picture, green means that our kernel is fastest. All cells are "
    "green. The best peer takes {:.1f} to {:.0f} times as long.",
    _sweep,
)
