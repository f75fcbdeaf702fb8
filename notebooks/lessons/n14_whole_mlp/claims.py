"""14, The whole MLP: the benchmarks' records of the fused MLP, the interaction and the outer product's layer."""

from __future__ import annotations

from kernels.ops.fused_mlp import eager
from kernels.ops.outer_linear.bench import FOLDED
from lessons.n14_whole_mlp import arithmetic
from lessons.shared.claim import claim
from lessons.shared.op_times import cell_us
from lessons.shared.records import Record, copy_us, device, l2_tb_per_s, sm_gb_per_s, yardstick

TF32 = {"dtype": "float32", "precision": "tf32"}


def _text(widths: tuple[int, ...]) -> str:
    return "-".join(map(str, widths))


def _mlp(part: str, widths: tuple[int, ...], rows: int, *names: str) -> tuple[float, ...]:
    labels = {"part": part, "widths": _text(widths), "rows": rows, **TF32}
    return tuple(cell_us("fused_mlp", name, **labels) for name in names)


def _small() -> tuple:
    """128 rows: a cluster's barriers cost more than the bottom MLP's weights, and less than the top one's."""
    bottom = _mlp("bandwidth", arithmetic.BOTTOM, 128, "triton", "cuda", "torch.compile")
    top = _mlp("top 128", arithmetic.TOP, 128, "triton", "cuda", "torch.compile")
    assert bottom[0] < bottom[1] < bottom[2]
    assert top[1] < top[2] < top[0]
    return *bottom, *top


def _large() -> tuple:
    """65536 rows: one kernel wins on both, as from 8192 rows on; two kernels a layer cost more than the bytes that go
    out and in again twice."""
    found = []
    for widths in (arithmetic.BOTTOM, arithmetic.TOP):
        for rows in (8192, 65536):
            ours, compiled = _mlp("curve", widths, rows, "triton", "torch.compile")
            assert ours < compiled
        assert compiled > copy_us(65536 * 4 * 4 * sum(widths[1:-1]))
        found += [ours, compiled]
    return tuple(found)


def _over_the_prediction() -> tuple:
    """From 8192 rows on: one kernel's time over a launch and its reads of weights, the least and the most."""
    ratios = []
    for widths in (arithmetic.BOTTOM, arithmetic.TOP):
        for rows in (8192, 65536):
            reads = rows / 64 * 4 * eager.parameters(widths) / (1e6 * l2_tb_per_s())
            ratios.append(_mlp("curve", widths, rows, "triton")[0] / (2 + reads))
    return min(ratios), max(ratios)


def _shares() -> tuple:
    """At 65536 rows, of torch.compile's time: the top MLP's, in per cent, and the bottom one's."""
    bottom, bottom_compiled, top, top_compiled = _large()
    assert bottom / bottom_compiled < top / top_compiled
    return 100 * top / top_compiled, 100 * bottom / bottom_compiled


def _full() -> tuple:
    """Full float32, 2048 rows: a kernel a layer wins."""
    labels = {"part": "ieee", "widths": _text(arithmetic.TOP), "rows": 2048, "precision": "ieee"}
    triton, cuda, layers = (cell_us("fused_mlp", name, **labels) for name in ("triton", "cuda", "eager"))
    assert layers < cuda < triton
    return triton, cuda, layers


def _interaction() -> tuple:
    labels = {"part": "bandwidth", "form": "functional", "rows": 65536, "columns": 16, "dtype": "float32"}
    names = ("eager", "torch.compile", "triton", "cuda")
    slow, compiled, triton, ours = (cell_us("dot_interaction", name, **labels) for name in names)
    copied = copy_us(Record("dot_interaction").one(implementation="cuda", **labels)["bytes"])
    assert ours < compiled < triton < slow
    return slow, compiled, triton, ours, copied


def _outer() -> tuple:
    """2048 rows, and 128, where the weight as given is read as it lies."""
    found = []
    for rows in (2048, 128):
        labels = {"part": "bandwidth", "form": "functional", "rows": rows, "columns": 432, **TF32}
        names = ("eager", "torch.compile", "triton", FOLDED)
        found.append([cell_us("outer_linear", name, **labels) for name in names])
    (slow, compiled, ours, folded), (_, few_compiled, few, few_folded) = found
    assert folded < ours < compiled < slow
    assert few_folded < few < few_compiled
    return slow, compiled, ours, folded, few, few_compiled, few_folded


claim(
    "14",
    "a copy on an H200 moves {:.2f} TB/s, all processors together read {:.1f} TB/s from the L2",
    lambda: (yardstick(), l2_tb_per_s()),
)
claim(
    "14",
    "From 8192 rows on one kernel takes {:.1f} to {:.1f} times what we predicted: the prediction leaves the products "
    "out.",
    _over_the_prediction,
)
claim(
    "14",
    "a block has {:.0f} KB of shared memory, and a processor {:.0f} KB of registers; all processors share {:.0f} "
    "MiB of L2.",
    lambda: (
        device("shared_memory_per_block_optin") / 2**10, 4 * device("regs_per_multiprocessor") / 2**10,
        device("L2_cache_size") / 2**20,
    ),
)
claim("14", "one processor gets at most {:.0f} GB/s from the L2.", lambda: (sm_gb_per_s(),))
claim(
    "14",
    "With 65536 rows in tf32 the bottom MLP takes {:.0f} µs in one kernel and {:.0f} by `torch.compile`, the top one "
    "{:.0f} and {:.0f}.",
    _large,
)
claim(
    "14",
    "At 65536 the top one takes {:.0f} % of `torch.compile`'s time, the bottom one {:.0f} %: wider weights",
    _shares,
)
claim(
    "14",
    "with 2048 rows the top MLP takes {:.0f} µs in Triton, {:.0f} in CUDA and {:.0f} in eager.",
    _full,
)
claim(
    "14",
    "With 128 rows in tf32 the bottom MLP takes {:.1f} µs in Triton, {:.1f} in CUDA, {:.1f} by `torch.compile`; the "
    "top one {:.1f}, {:.1f} and {:.1f}.",
    _small,
)
claim(
    "14",
    "65536 rows take eager {:.0f} µs, `torch.compile` {:.0f}, one kernel {:.0f} in Triton and {:.1f} in CUDA; a copy "
    "of the needed bytes takes {:.1f}.",
    _interaction,
)
claim(
    "14",
    "With 2048 rows in tf32 eager takes {:.0f} µs, `torch.compile` {:.0f}, `outer_linear`, which folds in every call, "
    "{:.0f}, and {:.0f} with the weight folded before. With 128 rows it does not fold: {:.0f} µs against {:.0f} by "
    "`torch.compile`; folded before, {:.0f}.",
    _outer,
)
