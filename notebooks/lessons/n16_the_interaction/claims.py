"""16: what the prose compares, from what the cells recorded; each number in it stands in an output of the notebook."""

from __future__ import annotations

from lessons.shared.claim import claim, quotes
from lessons.shared.records import LEAST, Record

NOTEBOOK = "16"
CELLS = Record("lecture_16")
quotes(NOTEBOOK)


def median_us(part: str, name: str, size: object = 65536) -> float:
    return CELLS.us(part, name=name, size=size)


def _products() -> tuple:
    loop, tf32, ieee = median_us("row", "1 warp"), median_us("rows", "ROWS 4, tf32"), median_us("rows", "ROWS 4, ieee")
    assert 2 * tf32 < loop < ieee / 2
    return tf32, ieee


def _race() -> tuple:
    size = "65,536 float32"
    loop, best = median_us("race", "yours, a row", size), median_us("race", "max-autotune", size)
    assert loop < best < median_us("race", "torch.compile", size) < median_us("race", "eager", size)
    assert median_us("race", "eager", size) < median_us("race", "compiled as sums", size)
    return loop, best


def _few() -> tuple:
    size = "2,048 float32"
    taken = median_us("race", "max-autotune", size)
    assert taken > median_us("race", "eager", size)
    return (taken,)


def _wins() -> tuple:
    for size in ("2,048 float32", "65,536 float32", "65,536 bfloat16"):
        rows = CELLS.rows("race", size=size)
        assert rows.set_index("name")["us_p50"].idxmin() == "library, CUDA"
    return ()


def _yours() -> tuple:
    for size, name in (("2,048 float32", "a row"), ("65,536 float32", "a row"), ("65,536 bfloat16", "tl.dot")):
        ratio = median_us("race", "library, Triton", size) / median_us("race", f"yours, {name}", size)
        assert 1 / LEAST < ratio < LEAST
    return ()


def _in_one() -> tuple:
    ways = "yours in one", "two, with yours", "lookup_interact"
    one, two, theirs = (median_us("ids", f"{way}, tf32") for way in ways)
    assert theirs < one < two
    return one, two, two / one


def _trained(rows: int, dtype: str, precision: str) -> list[tuple[float, float]]:
    """Of forward and gradients, the µs of two kernels and of one."""
    labels = {"rows": rows, "columns": 16, "dtype": dtype, "precision": precision}
    ways, parts = ("our two kernels", "cuda"), ("bandwidth", "gradients")
    return [tuple(Record("lookup_interact").us(part, implementation=way, **labels) for way in ways) for part in parts]


def _backward() -> tuple:
    for rows in (2048, 65536):
        for dtype, precision, is_faster in (
            ("float32", "tf32", True), ("bfloat16", "ieee", True), ("float32", "ieee", False)
        ):
            (two, one), (two_back, one_back) = _trained(rows, dtype, precision)
            assert one < two
            assert (one + one_back < two + two_back) is is_faster
            assert (one_back < two_back) is (precision == "tf32")
    two, one = _trained(65536, "bfloat16", "ieee")[1]
    return one, two


claim(
    NOTEBOOK, "In tf32 your kernel takes {:.1f} µs, less than half of the loop's time. In full float32 it takes "
    "{:.1f}: there `tl.dot` is far worse than the loop that it replaces.", _products,
)
claim(
    NOTEBOOK, "With 65,536 rows in float32 your loop takes {:.1f} µs, and the best compiled way {:.1f}. The rewrite as "
    "sums, which looked so clever, loses even to eager there.", _race,
)
claim(
    NOTEBOOK, "The library's kernels in Triton are your two: for such vectors the loop in float32, and `tl.dot` in "
    "halves.", _yours,
)
claim(NOTEBOOK, "With 2,048 rows `max-autotune` takes {:.1f} µs, more than eager.", _few)
claim(NOTEBOOK, "The CUDA kernel wins at each size.", _wins)
claim(NOTEBOOK, "In tf32 one kernel takes {:.1f} µs, and two with the same product {:.1f}: {:.2f} ×", _in_one)
claim(
    NOTEBOOK, "In tf32 and in bfloat16 one kernel is faster, although it looks everything up twice. In bfloat16 it "
    "wins by its forward alone: with 65,536 rows its gradients take {:.1f} µs, and those of two kernels {:.1f}. In "
    "full float32 its gradients cost more than its forward saves", _backward,
)
