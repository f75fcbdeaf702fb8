"""15, Embeddings: the benchmark's records of the look-ups."""

from __future__ import annotations

from kernels.measure.records import recorded
from lessons.n15_embeddings import arithmetic
from lessons.shared.claim import claim
from lessons.shared.op_times import cell_us, limit_us, look_ups
from lessons.shared.records import SECTOR, device


def _with_combo(rows: int) -> tuple:
    """µs of the bytes, of eager, torch.compile, combo_kernels, and of the one launch, which is the fastest."""
    needed, eager, compiled, ours = look_ups(rows)
    cell = {"rows": rows, "width": 16, "ids": "uniform", "part": "bandwidth", "form": "functional"}
    combo = cell_us("embedding_bags", "torch.compile, combo_kernels", **cell)
    assert ours < combo < compiled < eager
    return needed, eager, compiled, combo, ours


def _small_batch() -> tuple:
    """torch.compile, with as many launches as eager, takes a third of its time at most."""
    _, eager, compiled, _, _ = found = _with_combo(2048)
    assert compiled < eager / 3
    return found


def _large_batch() -> tuple:
    small, large = _with_combo(2048), _with_combo(65536)
    assert all(large[i] / large[-1] < small[i] / small[-1] for i in (1, 2, 3)), "a small batch is mostly launches"
    return large


def _equal_bytes() -> tuple:
    """What narrow and wide rows take where outputs are equally large; the needed bytes are within a tenth."""
    found = []
    for rows, width in ((65536, 16), (8192, 128)):
        cell = {"rows": rows, "width": width, "ids": "uniform", "part": "bandwidth", "form": "functional"}
        found += [limit_us("embedding_bags", **cell), cell_us("embedding_bags", "triton", **cell)]
    needed, narrow, needed_wide, wide = found
    assert abs(needed_wide / needed - 1) < 0.1
    shares = 100 * needed / narrow, 100 * needed_wide / wide
    assert shares[0] < shares[1]
    return narrow, wide, *shares


def _wide() -> tuple:
    narrow, (_, eager, compiled, ours) = look_ups(65536), look_ups(65536, 128)
    assert eager / ours < narrow[1] / narrow[3]
    assert compiled / ours < narrow[2] / narrow[3]
    cell = {"rows": 65536, "width": 128, "ids": "uniform", "part": "bandwidth", "form": "functional"}
    return eager, compiled, ours, 100 * limit_us("embedding_bags", **cell) / ours


def _gain() -> tuple:
    _, _, compiled, ours = look_ups(65536, 128)
    return (compiled / ours,)


def _wide_tables() -> tuple:
    record = recorded("embedding_bags").query("part == 'bandwidth'")
    assert record.query("width == 16")["tables"].eq("all rows").all()
    (found,) = record.query("width == 128")["tables"].unique()
    return (found.removesuffix(" a table"),)


def _megabytes() -> tuple:
    drawn = [arithmetic.draw(65536), arithmetic.draw(65536, arithmetic.ZIPF)]
    uniform, zipf = (SECTOR * arithmetic.sectors(arithmetic.rows_of(ids), 64) / 1e6 for ids in drawn)
    assert zipf < uniform < device("L2_cache_size") / 1e6
    return drawn[0].size * 64 / 1e6, uniform, zipf


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


def _multimodal() -> tuple:
    cell = {"lookup": "embedding_lookup_multimodal", "ids": 8192, "part": "bandwidth", "form": "functional"}
    eager, compiled, ours = (cell_us("vocabulary", name, **cell) for name in ("eager", "torch.compile", "triton"))
    assert ours < compiled < 1.5 * ours, "the gap to the compiler is small"
    assert eager > 3 * ours, "to eager it is large"
    assert 1.9 < eager / limit_us("vocabulary", **cell) / 7 < 2.1, "eager moves 7 times the bytes, at half the rate"
    return eager, compiled, ours, limit_us("vocabulary", **cell)


def _multimodal_eager() -> tuple:
    eager, _, _, needed = _multimodal()
    return eager, eager / needed


claim(
    "15",
    "| 2048 | {:.1f} | {:.0f} | {:.1f} | {:.1f} | {:.1f} |",
    _small_batch,
)
claim(
    "15",
    "| 65536 | {:.1f} | {:.0f} | {:.0f} | {:.1f} | {:.1f} |",
    _large_batch,
)
claim(
    "15",
    "With equal bytes, 65536 narrow rows a feature or 8192 wide ones, one launch takes {:.1f} and {:.1f} µs: {:.0f} "
    "and {:.0f} % of the copy's rate.",
    _equal_bytes,
)
claim("15", "In the record they also come from larger tables: the tables of wide rows have {}.", _wide_tables)
claim(
    "15",
    "With 65536 wide rows eager takes {:.0f} µs, `torch.compile` {:.0f}, one launch {:.0f}: {:.0f} % of the copy's "
    "rate.",
    _wide,
)
claim("15", "Where bytes dominate, one launch is worth little over `torch.compile`: {:.1f} ×.", _gain)
claim(
    "15",
    "All reads together ask for {:.0f} MB of rows. The distinct rows are {:.0f} MB if ids are uniform, and {:.0f} MB "
    "by Zipf's law.",
    _megabytes,
)
claim("15", "The L2, a cache of {:.0f} MiB, could hold either,", lambda: (device("L2_cache_size") / 2**20,))
claim(
    "15",
    "Zipf ids take {:.1f} µs where uniform ones take {:.1f}: that saves more than the bytes account for.",
    _zipf,
)
claim(
    "15",
    "with bags of 5 Zipf ids on average, 26 `nn.EmbeddingBag` take {:.0f} µs. One launch takes {:.0f} in Triton and "
    "{:.0f} in CUDA.",
    _ragged,
)
claim(
    "15",
    "For 8192 tokens of 4096 float16 numbers `torch.compile` takes {:.1f} µs and one kernel {:.1f}, where the bytes "
    "need {:.1f}.",
    lambda: _multimodal()[1:],
)
claim("15", "Eager takes {:.0f} µs, {:.0f} × the time of the bytes, though it moves 7 × the bytes:", _multimodal_eager)
