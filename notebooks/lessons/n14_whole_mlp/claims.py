"""14, The whole MLP: the benchmarks' records of the fused MLP, the interaction and the outer product's layer."""

from __future__ import annotations

import itertools

import torch

from kernels.ops.dot_interaction import eager as dot
from kernels.ops.fused_mlp import budget, eager, triton_launch
from kernels.ops.fused_mlp.tiles import MOST_ROWS, tile_of
from kernels.ops.outer_linear.bench import FOLDED
from lessons.n14_whole_mlp import arithmetic
from lessons.shared.claim import claim
from lessons.shared.op_times import cell_us
from lessons.shared.records import Record, apart, copy_us, device, l2_tb_per_s, sm_gb_per_s, yardstick

TF32 = {"dtype": "float32", "precision": "tf32"}
BEST_SET = "max-autotune, padded"


def _text(widths: tuple[int, ...]) -> str:
    return "-".join(map(str, widths))


def _mlp(part: str, widths: tuple[int, ...], rows: int, *names: str) -> tuple[float, ...]:
    labels = {"part": part, "widths": _text(widths), "rows": rows, **TF32}
    return tuple(cell_us("fused_mlp", name, **labels) for name in names)


def _rows(part: str, widths: tuple[int, ...], rows: int, *names: str) -> list:
    labels = {"part": part, "widths": _text(widths), "rows": rows, **TF32}
    return [Record("fused_mlp").one(implementation=name, **labels) for name in names]


def _small() -> tuple:
    """128 rows: a cluster's barriers cost more than the bottom MLP's weights, and less than the top one's. The peer
    that is set best loses with the bottom MLP and wins with the top one."""
    bottom = _mlp("bandwidth", arithmetic.BOTTOM, 128, "triton", "cuda", "torch.compile")
    bottom += _mlp("bandwidth autotuned", arithmetic.BOTTOM, 128, BEST_SET)
    top = _mlp("top 128", arithmetic.TOP, 128, "triton", "cuda", "torch.compile")
    top += _mlp("top 128 autotuned", arithmetic.TOP, 128, BEST_SET)
    assert bottom[0] < min(bottom[1:])
    assert bottom[1] < bottom[2]
    assert top[3] < top[1] < top[2] < top[0]
    return *bottom, *top


def _autotuned() -> tuple:
    """The top MLP, 2048 rows: the peer that is set best, and the faster of ours."""
    best, triton, cuda = _rows("top 2048 autotuned", arithmetic.TOP, 2048, BEST_SET, "triton", "cuda")
    assert apart(best, triton)
    assert best["us_p50"] < triton["us_p50"] < cuda["us_p50"]
    return best["us_p50"], triton["us_p50"]


def _large() -> list[tuple[float, ...]]:
    """65536 rows, µs of one kernel, torch.compile and both peers filled up, for the bottom MLP and for the top one. One
    kernel is faster than two a layer of rows as they come, from 8192 rows on: two kernels a layer cost more than the
    bytes that go out and in again twice."""
    times = []
    for widths in (arithmetic.BOTTOM, arithmetic.TOP):
        for rows in (8192, 65536):
            ours, compiled = _rows("curve", widths, rows, "triton", "torch.compile")
            assert ours["us_p50"] < compiled["us_p50"]
            assert apart(ours, compiled)
        names = "triton", "torch.compile", "torch.compile, padded", "eager, padded"
        times.append(_mlp("curve", widths, 65536, *names))
        assert min(times[-1][1:]) > copy_us(65536 * 4 * 4 * sum(widths[1:-1]))
    return times


def _filled_up() -> tuple:
    """At 65536 rows of the top MLP eager, filled up, is faster than one kernel; the weights over the bottom one's."""
    ours, eager_padded = _rows("curve", arithmetic.TOP, 65536, "triton", "eager, padded")
    assert apart(ours, eager_padded)
    assert eager_padded["us_p50"] < ours["us_p50"]
    return (eager.parameters(arithmetic.TOP) / eager.parameters(arithmetic.BOTTOM),)


def _in_practice() -> tuple:
    """Against every peer, filled up or not, one kernel is the fastest with the bottom MLP at each recorded size, and
    with the top MLP at none."""
    table = Record("fused_mlp").rows(dtype="float32", precision="tf32")
    for widths in (arithmetic.BOTTOM, arithmetic.TOP):
        sizes = table[(table["widths"] == _text(widths)) & (table["part"] != "training")]
        sizes = sizes[sizes["implementation"] != "auto"]
        assert {128, 2048, 8192, 65536} <= set(sizes["rows"])
        for _, rows in sizes.groupby("rows"):
            ours = rows["implementation"].isin(["triton", "cuda"])
            best, peer = (rows[which].sort_values("us_p50").iloc[0] for which in (ours, ~ours))
            wins = apart(best, peer) and best["us_p50"] < peer["us_p50"]
            assert wins == (widths == arithmetic.BOTTOM), (best, peer)
    return ()


def _over_the_prediction() -> tuple:
    """From 8192 rows on, one kernel's time is about twice that of a launch and its reads of weights."""
    for widths in (arithmetic.BOTTOM, arithmetic.TOP):
        for rows in (8192, 65536):
            reads = rows / 64 * 4 * eager.parameters(widths) / (1e6 * l2_tb_per_s())
            assert 1.85 < _mlp("curve", widths, rows, "triton")[0] / (2 + reads) < 2.1
    return ()


def _tiles() -> tuple:
    """Up to how many rows a tile of tf32 has 16, where the prediction of 64 is further off; and from how many on the
    weights are rounded first."""
    heights = {rows: tile_of(rows, torch.float32, "tf32").rows for rows in (128, 2048, *MOST_ROWS[1:3])}
    assert heights == {128: 16, 2048: 16, MOST_ROWS[1]: 16, MOST_ROWS[2]: 32}
    rounded = MOST_ROWS[2] + 1
    assert tile_of(rounded, torch.float32, "tf32").rows == triton_launch.FROM_SHARED_MEMORY
    for part, widths in (("bandwidth", arithmetic.BOTTOM), ("top 2048", arithmetic.TOP)):
        assert eager.parameters(widths) < triton_launch.ROUNDED_BEFORE
        reads = 2048 / 64 * 4 * eager.parameters(widths) / (1e6 * l2_tb_per_s())
        assert _mlp(part, widths, 2048, "triton")[0] / (2 + reads) > 2.3
    return MOST_ROWS[1], rounded


def _halves(widths: tuple[int, ...], rows: int) -> tuple[float, float]:
    """In bfloat16, µs of the faster of our kernels and of the fastest peer, in the part of the record with that peer.
    Ours wins, and only with few rows of the top MLP the two are less than 3 % apart."""
    table = Record("fused_mlp").rows(dtype="bfloat16", widths=_text(widths)).query("rows == @rows")
    table = table[(table["implementation"] != "auto") & (table["part"] != "training")]
    ours = table["implementation"].isin(["triton", "cuda"])
    peer = table[~ours].sort_values("us_p50").iloc[0]
    best = table[ours & (table["part"] == peer["part"])].sort_values("us_p50").iloc[0]
    draw = (widths, rows) == (arithmetic.TOP, 128)
    assert (peer["us_p50"] < 1.03 * best["us_p50"]) == draw
    assert draw or apart(best, peer)
    return best["us_p50"], peer["us_p50"]


def _by_half() -> tuple:
    best, peer = _halves(arithmetic.BOTTOM, 2048)
    assert best < peer / 2
    return ()


def _full() -> tuple:
    """Full float32, 2048 rows: a kernel a layer wins."""
    labels = {"part": "ieee", "widths": _text(arithmetic.TOP), "rows": 2048, "precision": "ieee"}
    triton, cuda, layers = (cell_us("fused_mlp", name, **labels) for name in ("triton", "cuda", "eager"))
    assert layers < cuda < triton
    return layers, cuda


def _interaction() -> tuple:
    labels = {"part": "bandwidth", "form": "functional", "rows": 65536, "columns": 16, "dtype": "float32"}
    names = ("eager", "torch.compile", "triton", "cuda")
    slow, compiled, triton, ours = (cell_us("dot_interaction", name, **labels) for name in names)
    copied = copy_us(Record("dot_interaction").one(implementation="cuda", **labels)["bytes"])
    assert ours < compiled < triton < slow
    return slow, compiled, triton, ours, copied


def _interaction_in_halves() -> tuple:
    """µs of the Triton kernel in bfloat16, a fifth of what it takes in float32."""
    labels = {"form": "functional", "rows": 65536, "columns": 16, "dtype": "bfloat16"}
    halves = cell_us("dot_interaction", "triton", **labels)
    assert 4.7 < _interaction()[2] / halves < 5.3
    return (halves,)


def _bytes_and_rate() -> tuple:
    """Eager's bytes over those that are needed; the CUDA kernel's per cent of a copy's rate."""
    *_, ours, copied = _interaction()
    needed = dot.forward_bytes(65536, 26, 16, torch.float32)
    return sum(arithmetic.moved(65536, 26, 16).values()) / needed, 100 * copied / ours


def _outer() -> list[tuple]:
    """Each way's 2048 rows, and 128, where the weight as given is read as it lies."""
    times = []
    for name in ("eager", "torch.compile", "triton", FOLDED):
        labels = {"part": "bandwidth", "form": "functional", "columns": 432, **TF32}
        times.append(tuple(cell_us("outer_linear", name, rows=rows, **labels) for rows in (2048, 128)))
    for slower, faster in itertools.pairwise(times):
        assert faster < slower
    return times


claim(
    "14",
    "a copy on an H200 moves {:.2f} TB/s, all SMs together read {:.1f} TB/s from the L2",
    lambda: (yardstick(), l2_tb_per_s()),
)
claim(
    "14",
    "From 8192 rows on, one kernel takes about twice the time that we predicted. The prediction leaves the products "
    "out.",
    _over_the_prediction,
)
claim(
    "14",
    "up to {} rows the op takes tiles of 16, and each tile reads all weights. (From {} rows on, \"one kernel\" is two "
    "in tf32. The first rounds the weights.)",
    _tiles,
)
for name, widths, rows in (
    ("bottom", arithmetic.BOTTOM, 128), ("bottom", arithmetic.BOTTOM, 2048), ("bottom", arithmetic.BOTTOM, 16384),
    ("top", arithmetic.TOP, 128), ("top", arithmetic.TOP, 2048),
):  # fmt: skip
    cell = f"| {name}, {rows} rows | {{:.1f}} | {{:.1f}} |"
    claim("14", cell, lambda widths=widths, rows=rows: _halves(widths, rows))
claim("14", "With 2048 rows of the bottom MLP it takes less than half of the peer's time.", _by_half)
claim(
    "14",
    "| registers of an SM | {:.0f} KB |",
    lambda: (4 * device("regs_per_multiprocessor") / 2**10,),
)
claim(
    "14",
    "| shared memory of a block | {:.0f} KB |",
    lambda: (device("shared_memory_per_block_optin") / 2**10,),
)
claim(
    "14",
    "| L2 of all SMs | {:.0f} MiB; our op plans with the {:.0f} MiB of an H100 |",
    lambda: (device("L2_cache_size") / 2**20, budget.L2 / 2**20),
)
claim("14", "one SM gets at most {:.0f} GB/s from the L2.", lambda: (sm_gb_per_s(),))
claim("14", "| bottom | {:.0f} | {:.0f} | {:.0f} | {:.0f} |", lambda: _large()[0])
claim("14", "| top | {:.0f} | {:.0f} | {:.0f} | {:.0f} |", lambda: _large()[1])
claim(
    "14",
    "one kernel loses with the top MLP. The top MLP has {:.1f} times the bottom one's weights, and every tile reads "
    "all of them and multiplies by them.",
    _filled_up,
)
claim(
    "14",
    "With 2048 rows of the top MLP, eager takes {:.0f} µs. The faster of our kernels, in CUDA, takes {:.0f} µs.",
    _full,
)
claim("14", "| bottom | {:.1f} | {:.1f} | {:.1f} | {:.1f} |", lambda: _small()[:4])
claim("14", "| top | {:.1f} | {:.1f} | {:.1f} | {:.1f} |", lambda: _small()[4:])
claim(
    "14",
    "With 2048 rows of the top MLP it wins again: it takes {:.1f} µs, and our Triton kernel {:.1f} µs.",
    _autotuned,
)
claim(
    "14",
    "For the top MLP in tf32, fill up x and take `torch.compile`, with `max-autotune` for few rows: at no recorded "
    "size is one kernel faster.",
    _in_practice,
)
claim("14", "| eager | {:.0f} | | `torch.compile` | {:.0f} |", lambda: _interaction()[:2])
claim("14", "| one kernel in Triton | {:.0f} |", lambda: _interaction()[2:3])
claim("14", "| one kernel in CUDA | {:.1f} |", lambda: _interaction()[3:4])
claim("14", "| a copy of the needed bytes | {:.1f} |", lambda: _interaction()[4:])
claim(
    "14",
    "32 · 32 products per row, where {} are needed.",
    lambda: (len(torch.tril_indices(27, 27, -1)[0]),),
)
claim("14", "in bfloat16 it multiplies the same blocks on tensor cores, and takes {:.1f} µs.", _interaction_in_halves)
claim(
    "14",
    "| {:.1f} times the needed bytes | each vector read once | memory, at {:.0f} % of a copy's rate |",
    _bytes_and_rate,
)
for k, name in enumerate(("eager", "`torch.compile`", "`outer_linear`", "`outer_linear`, the weight folded before")):
    claim("14", f"| {name} | {{:.0f}} | {{:.0f}} |", lambda k=k: _outer()[k])
