"""10, The whole MLP: the benchmarks' records of the fused MLP, the interaction and the outer product's layer."""

from __future__ import annotations

from claims.claim import claim
from claims.embeddings import us
from kernels.measure.records import recorded
from kernels.ops.fused_mlp import lesson
from kernels.ops.outer_linear.bench import FOLDED

TF32 = {"dtype": "float32", "precision": "tf32"}


def _text(widths: tuple[int, ...]) -> str:
    return "-".join(map(str, widths))


def _mlp(part: str, widths: tuple[int, ...], rows: int, *names: str) -> tuple[float, ...]:
    labels = {"part": part, "widths": _text(widths), "rows": rows, **TF32}
    return tuple(us("fused_mlp", name, **labels) for name in names)


def _small() -> tuple:
    """128 rows: the cluster beats one processor, on both MLPs."""
    found = []
    for part, widths in (("bandwidth", lesson.BOTTOM), ("top 128", lesson.TOP)):
        triton, cuda, compiled = _mlp(part, widths, 128, "triton", "cuda", "torch.compile")
        assert cuda < triton
        found += [triton, cuda, compiled]
    assert found[1] < found[2]
    return tuple(found)


def _large() -> tuple:
    """65536 rows: a kernel a layer wins where the weights are large."""
    found = []
    for widths in (lesson.BOTTOM, lesson.TOP):
        ours = min(_mlp("curve", widths, 65536, "triton", "cuda"))
        found += [ours, *_mlp("curve", widths, 65536, "torch.compile")]
    assert found[2] > found[3]
    assert found[0] / found[1] < found[2] / found[3]
    return tuple(found)


def _interaction() -> tuple:
    labels = {"part": "bandwidth", "form": "functional", "rows": 65536, "columns": 16, "dtype": "float32"}
    eager, compiled, ours = (us("dot_interaction", name, **labels) for name in ("eager", "torch.compile", "cuda"))
    table = recorded("dot_interaction")
    row = table[(table["part"] == "bandwidth") & (table["implementation"] == "cuda")].iloc[0]
    copied = row["bytes"] / (1e6 * table.attrs["copy_tb_per_s"]["limit"])
    assert ours < compiled < eager
    return eager, compiled, ours, copied


def _outer(rows: int) -> tuple[float, ...]:
    labels = {"part": "bandwidth", "form": "functional", "rows": rows, "columns": 432, **TF32}
    names = ("eager", "torch.compile", "triton", FOLDED)
    eager, compiled, ours, folded = (us("outer_linear", name, **labels) for name in names)
    assert folded < ours < min(eager, compiled)
    return eager, compiled, ours, folded


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
