"""10, The whole MLP: the benchmarks' records of the fused MLP, the interaction and the outer product's layer."""

from __future__ import annotations

from claims.claim import claim
from claims.embeddings import us
from kernels.measure.records import recorded
from kernels.ops.fused_mlp import eager, lesson
from kernels.ops.outer_linear.bench import FOLDED

TF32 = {"dtype": "float32", "precision": "tf32"}


def _text(widths: tuple[int, ...]) -> str:
    return "-".join(map(str, widths))


def _mlp(part: str, widths: tuple[int, ...], rows: int, *names: str) -> tuple[float, ...]:
    labels = {"part": part, "widths": _text(widths), "rows": rows, **TF32}
    return tuple(us("fused_mlp", name, **labels) for name in names)


def _small() -> tuple:
    """128 rows: a cluster's barriers cost more than the bottom MLP's weights, and less than the top one's."""
    bottom = _mlp("bandwidth", lesson.BOTTOM, 128, "triton", "cuda", "torch.compile")
    top = _mlp("top 128", lesson.TOP, 128, "triton", "cuda", "torch.compile")
    assert bottom[0] < bottom[1] < bottom[2]
    assert top[1] < top[2] < top[0]
    return *bottom, *top


def _large() -> tuple:
    """65536 rows: one kernel wins on both, on the top MLP by less. It costs what its weights take to be read, a kernel
    a layer more than twice what the layers' bytes take."""
    found = []
    for widths in (lesson.BOTTOM, lesson.TOP):
        ours, compiled = _mlp("curve", widths, 65536, "triton", "torch.compile")
        weights, between = 4 * eager.parameters(widths), 2 * 4 * sum(widths[1:-1])
        assert 0.7 < ours / (65536 / 64 * weights / 5.5e6) < 1.4
        assert compiled > 2 * 65536 * between / 4.28e6
        found += [ours, compiled]
    assert found[0] / found[1] < found[2] / found[3] < 1
    return tuple(found)


def _shrinking() -> tuple:
    """The top MLP's part of torch.compile's time, in per cent, at 8192 and at 65536 rows."""
    times = [_mlp("curve", lesson.TOP, rows, "triton", "torch.compile") for rows in (8192, 65536)]
    shares = [100 * ours / compiled for ours, compiled in times]
    assert shares[0] < shares[1]
    return tuple(shares)


def _full() -> tuple:
    """Full float32, 2048 rows: a kernel a layer wins."""
    labels = {"part": "ieee", "widths": _text(lesson.TOP), "rows": 2048, "precision": "ieee"}
    triton, cuda, layers = (us("fused_mlp", name, **labels) for name in ("triton", "cuda", "eager"))
    assert layers < cuda < triton
    return triton, cuda, layers


def _interaction() -> tuple:
    labels = {"part": "bandwidth", "form": "functional", "rows": 65536, "columns": 16, "dtype": "float32"}
    slow, compiled, ours = (us("dot_interaction", name, **labels) for name in ("eager", "torch.compile", "cuda"))
    table = recorded("dot_interaction")
    row = table[(table["part"] == "bandwidth") & (table["implementation"] == "cuda")].iloc[0]
    copied = row["bytes"] / (1e6 * table.attrs["copy_tb_per_s"]["limit"])
    assert ours < compiled < slow
    return slow, compiled, ours, copied


def _outer(rows: int) -> tuple[float, ...]:
    labels = {"part": "bandwidth", "form": "functional", "rows": rows, "columns": 432, **TF32}
    names = ("eager", "torch.compile", "triton", FOLDED)
    slow, compiled, ours, folded = (us("outer_linear", name, **labels) for name in names)
    assert folded < ours < min(slow, compiled)
    return slow, compiled, ours, folded


claim("10", "a copy on an H200 moves 4.28 TB/s, reads from the L2 some 5.5 TB/s")
claim(
    "10", "a block has 227 KB of shared memory, and a processor 256 KB of registers; all processors share 50 MB of L2."
)
claim("10", "64 bytes a clock, some 112 GB/s.")
claim(
    "10",
    "With 65536 rows in tf32 the bottom MLP takes {:.0f} µs in one kernel and {:.0f} by `torch.compile`, the top one "
    "{:.0f} and {:.0f}.",
    _large,
)
claim(
    "10",
    "for the top MLP it takes {:.0f} % of the time of `torch.compile` at 8192 rows, and {:.0f} % at 65536.",
    _shrinking,
)
claim(
    "10",
    "with 2048 rows the top MLP takes {:.0f} µs in Triton, {:.0f} in CUDA and {:.0f} in eager.",
    _full,
)
claim(
    "10",
    "With 128 rows in tf32 the bottom MLP takes {:.1f} µs in Triton, {:.1f} in CUDA, {:.1f} by `torch.compile`; the "
    "top one {:.1f}, {:.1f} and {:.1f}.",
    _small,
)
claim(
    "10",
    "65536 rows take eager {:.0f} µs, `torch.compile` {:.0f}, one CUDA kernel {:.1f}; a copy of the needed bytes takes "
    "{:.1f}.",
    _interaction,
)
claim(
    "10",
    "With 2048 rows in tf32 eager takes {:.0f} µs, `torch.compile` {:.0f}, `outer_linear` {:.0f}, and {:.0f} with the "
    "weight folded before.",
    lambda: _outer(2048),
)
