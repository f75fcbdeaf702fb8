"""15, Embeddings: the benchmark's records of the look-ups."""

from __future__ import annotations

from kernels.measure.records import recorded
from lessons.n15_embeddings import arithmetic
from lessons.shared.claim import claim
from lessons.shared.op_times import cell_us, limit_us, look_ups
from lessons.shared.records import SECTOR, Record, device


def _with_combo(rows: int) -> tuple:
    """µs of the bytes, of eager, torch.compile, combo_kernels, and of the one launch, which is the fastest."""
    needed, eager, compiled, ours = look_ups(rows)
    cell = {"rows": rows, "width": 16, "ids": "uniform", "part": "bandwidth", "form": "functional"}
    combo = cell_us("embedding_bags", "torch.compile, combo_kernels", **cell)
    assert ours < combo < compiled < eager
    return needed, eager, compiled, combo, ours


def _small_batch() -> tuple:
    """torch.compile, with as many launches as eager, takes a third of its time at most."""
    _, eager, compiled, _, _ = times = _with_combo(2048)
    assert compiled < eager / 3
    return times


def _side_by_side() -> tuple:
    """µs of eager and of torch.compile, where each feature's ids lie side by side and each table is a tensor: 2048 ids
    and 65536. Few are faster than a column each, and many slower; the compiler's are within a fifth."""
    times = []
    for rows in (2048, 65536):
        cell = {"rows": rows, "width": 16, "ids": "uniform", "part": "bandwidth"}
        eager, compiled = (cell_us("embedding_bags_apart", name, **cell) for name in ("eager", "torch.compile"))
        _, column, compiled_column, _, _ = _with_combo(rows)
        assert (eager < column / 2) if rows == 2048 else (eager > 2 * column)
        assert 0.8 < compiled / compiled_column < 1.03
        times.append((eager, compiled))
    return *(eager for eager, _ in times), *(compiled for _, compiled in times)


def _large_batch() -> tuple:
    small, large = _with_combo(2048), _with_combo(65536)
    assert all(large[i] / large[-1] < small[i] / small[-1] for i in (1, 2, 3)), "a small batch is mostly launches"
    return large


def _equal_bytes() -> tuple:
    """What narrow and wide rows take where outputs are equally large; the needed bytes are within a tenth."""
    times = []
    for rows, width in ((65536, 16), (8192, 128)):
        cell = {"rows": rows, "width": width, "ids": "uniform", "part": "bandwidth", "form": "functional"}
        times += [limit_us("embedding_bags", **cell), cell_us("embedding_bags", "triton", **cell)]
    needed, narrow, needed_wide, wide = times
    assert abs(needed_wide / needed - 1) < 0.1
    shares = 100 * needed / narrow, 100 * needed_wide / wide
    assert shares[0] < shares[1]
    return narrow, wide, *shares


def _narrow_and_wide() -> tuple:
    """Each line of the table: torch.compile where it was measured, one launch, and its per cent of the copy's rate."""
    small, wide, small_share, wide_share = _equal_bytes()
    (_, _, compiled, ours), (needed, _, compiled_wide, ours_wide) = look_ups(65536), look_ups(65536, 128)
    assert ours == small
    assert compiled_wide / ours_wide < compiled / ours
    share = 100 * needed / ours_wide
    assert small_share < share
    return compiled, small, small_share, wide, wide_share, compiled_wide, ours_wide, share


def _gain() -> tuple:
    _, _, compiled, ours = look_ups(65536, 128)
    return (compiled / ours,)


def _wide_tables() -> tuple:
    record = recorded("embedding_bags").query("part == 'bandwidth'")
    assert record.query("width == 16")["tables"].eq("all rows").all()
    assert record.query("width == 128")["tables"].str.startswith("at most").all()
    return ()


def _megabytes() -> tuple:
    drawn = [arithmetic.draw(65536), arithmetic.draw(65536, arithmetic.ZIPF)]
    uniform, zipf = (SECTOR * arithmetic.sectors(arithmetic.rows_of(ids), 64) / 1e6 for ids in drawn)
    assert zipf < uniform < device("L2_cache_size") / 1e6
    return uniform, zipf


def _zipf() -> tuple:
    uniform, zipf = look_ups(65536)[3], look_ups(65536, ids="zipf")[3]
    drawn = arithmetic.draw(65536), arithmetic.draw(65536, arithmetic.ZIPF)
    all_bytes, fewer = (arithmetic.needed_bytes(ids, row_bytes=64) for ids in drawn)
    assert zipf / uniform < 0.95 * fewer / all_bytes
    return zipf, uniform


def _ragged() -> tuple:
    cell = {"rows": 16384, "ids": "zipf", "part": "ragged", "form": "functional"}
    eager, triton, cuda = (cell_us("embedding_bags", name, **cell) for name in ("eager", "triton", "cuda"))
    assert cuda < triton < eager
    return eager, triton, cuda


def _bags_end() -> tuple:
    """µs of eager, of the kernel in CUDA, and of the bytes, which need less than a quarter of the kernel's time."""
    cell = {"rows": 16384, "ids": "zipf", "part": "ragged", "form": "functional"}
    eager, _, cuda = _ragged()
    needed = limit_us("embedding_bags", **cell)
    assert needed < cuda / 4
    return eager, cuda, needed


def _compiled_bags() -> tuple:
    for rows in (2048, 16384):
        cell = {"rows": rows, "ids": "zipf", "part": "ragged", "form": "functional"}
        names = "cuda", "eager", "torch.compile"
        ours, eager, compiled = (cell_us("embedding_bags", name, **cell) for name in names)
        assert ours < eager < compiled
    return ()


def _look_ups_end() -> tuple:
    """Eager, one launch and the bytes of a small batch, and the same of a large one, with its per cent of the copy's
    rate."""
    (needed, eager, *_, ours), (large_needed, large_eager, *_, large) = _with_combo(2048), _with_combo(65536)
    assert needed < ours / 2
    return eager, ours, needed, large_eager, large, 100 * large_needed / large


def _multimodal_end() -> tuple:
    cell = {"lookup": "embedding_lookup_multimodal", "ids": 8192, "part": "bandwidth", "form": "functional"}
    eager, ours = (cell_us("vocabulary", name, **cell) for name in ("eager", "triton"))
    return eager, ours, 100 * limit_us("vocabulary", **cell) / ours


def _one_buffer() -> tuple:
    """Compiled, the look-ups of all tables in one tensor are one launch, as notebook 04's record has it."""
    record = Record("compile_times").with_part("look_ups")
    cell = {"tables": 26, "model": "look-ups", "what": "inference", "setting": "one tensor"}
    assert record.one("look_ups", **cell)["launches"] == 1
    return ()


def _compiled_multimodal() -> tuple:
    """Where it is recorded, torch.compile takes less than a tenth more than one kernel."""
    for ids in (1024, 8192):
        cell = {"lookup": "embedding_lookup_multimodal", "ids": ids, "part": "bandwidth", "form": "functional"}
        compiled, ours = (cell_us("vocabulary", name, **cell) for name in ("torch.compile", "triton"))
        assert compiled < 1.1 * ours
    return ()


def _multimodal() -> tuple:
    cell = {"lookup": "embedding_lookup_multimodal", "ids": 8192, "part": "bandwidth", "form": "functional"}
    eager, compiled, ours = (cell_us("vocabulary", name, **cell) for name in ("eager", "torch.compile", "triton"))
    assert ours < compiled < 1.1 * ours, "the gap to the compiler is small"
    copied = limit_us("vocabulary", **cell)
    assert 1.9 < eager / copied / 7 < 2.1, "eager moves 7 times the bytes, at half the rate"
    return copied, eager / copied


claim(
    "15",
    "| 2048 | {:.1f} | {:.0f} | {:.1f} | {:.1f} | {:.1f} |",
    _small_batch,
)
claim(
    "15",
    "eager takes {:.1f} µs for 2048 ids. For 65536 it is the other way round: then it takes {:,.0f} µs. The compiler's "
    "kernels hardly care: they take {:.1f} and {:.1f} µs.",
    _side_by_side,
)
claim(
    "15",
    "the op that notebook 17's backend takes does it in {:.1f} µs for 2048 ids.",
    lambda: (cell_us("embedding_bags_apart", "cuda", rows=2048, width=16, ids="uniform", part="bandwidth"),),
)
claim(
    "15",
    "| 65536 | {:.1f} | {:.0f} | {:.0f} | {:.1f} | {:.1f} |",
    _large_batch,
)
claim(
    "15",
    "| 65536 | 16 | {:.0f} | {:.1f} | {:.0f} % | | 8192 | 128 | not measured | {:.1f} | {:.0f} % | "
    "| 65536 | 128 | {:.0f} | {:.0f} | {:.0f} % |",
    _narrow_and_wide,
)
claim(
    "15",
    "this record cannot tell them apart: narrow rows need eight times as many addresses for the same bytes, and they "
    "come from larger tables.",
    _wide_tables,
)
claim("15", "`torch.compile` takes only {:.1f} times as long as one launch.", _gain)
claim(
    "15",
    "The distinct rows are {:.0f} MB if ids are uniform, and {:.0f} MB by Zipf's law.",
    _megabytes,
)
claim("15", "The L2, a cache of {:.0f} MiB, could hold either,", lambda: (device("L2_cache_size") / 2**20,))
claim(
    "15",
    "Yet Zipf ids take {:.1f} µs and uniform ids {:.1f} µs: the difference is more than the bytes account for.",
    _zipf,
)
claim(
    "15",
    "| 16384 rows, bags of 5 Zipf ids on average | µs | |---|---| | 26 `nn.EmbeddingBag` | {:.0f} | "
    "| one launch in Triton | {:.0f} | | one launch in CUDA | {:.0f} |",
    _ragged,
)
claim(
    "15",
    "a copy of the bytes takes {:.1f} µs. Eager takes {:.0f} × the copy's time, though it moves only 7 × the bytes:",
    _multimodal,
)
claim(
    "15",
    "| 26 look-ups, 2048 ids per feature | {:.0f} µs | {:.1f} µs | latency: the bytes need {:.1f} µs | "
    "| 26 look-ups, 65536 ids per feature | {:.0f} µs | {:.1f} µs | memory, at {:.0f} % of a copy's rate |",
    _look_ups_end,
)
claim(
    "15",
    "| bags, 16384 rows | {:.0f} µs | {:.0f} µs | not memory: the bytes need {:.0f} µs |",
    _bags_end,
)
claim(
    "15",
    "| text or image, 8192 ids | {:.0f} µs | {:.1f} µs | memory, at {:.0f} % of a copy's rate |",
    _multimodal_end,
)
claim(
    "15",
    "For bags take `embedding_bags`: `torch.compile` does not speed up 26 `nn.EmbeddingBag`.",
    _compiled_bags,
)
claim("15", "For text or image, `torch.compile` is enough.", _compiled_multimodal)
claim("15", "With one id per feature, `torch.compile` then also writes one kernel (notebook 04).", _one_buffer)
