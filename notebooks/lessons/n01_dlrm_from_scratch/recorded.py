"""What an H200 took, by the records, for a prediction, the interaction and the look-ups; and the roof of each."""

from __future__ import annotations

from functools import cache

from kernels.measure.records import load
from kernels.ops.dot_interaction import eager as dot
from lessons.n01_dlrm_from_scratch.counting import needed
from lessons.shared.op_times import cell_us, look_ups
from lessons.shared.records import FLOAT32, TF32, Record, copy_us

ROWS = 2048
SMALL = (13, 32, 16), 26, (367, 32, 1)  # bottom MLP, tables, top MLP: the preset small
MAIN = (13, 512, 256, 64, 16), 26, (367, 512, 256, 1)  # the preset main
WIDE = {"rows": 65536, "features": 26, "columns": 16}  # the recorded interaction
LOOK_UPS = {"rows": ROWS, "width": 16, "ids": "uniform", "part": "bandwidth", "form": "functional"}
ORDER = "the roof", "ours", "torch.compile", "eager"


def roof_us(flops: float, moved: float, peak: float) -> float:
    """The longer of two times: of the FLOPs at the peak, FLOPs a second, and of the bytes at a copy's rate."""
    return max(flops / peak * 1e6, copy_us(moved))


def bytes_us() -> float:
    """µs of the bytes of a prediction of main, at the copy's rate."""
    return copy_us(needed(ROWS, *MAIN)[1])


@cache
def prediction() -> dict[str, float]:
    """µs of a prediction of main for 2048 rows, in TF32, in ORDER; the compiler's with its best setting."""
    labels = {"part": "inference", "rows": ROWS, "precision": "tf32", "match": "ok"}
    us = {row["implementation"]: row["us"] for row in load("whole_model")["rows"] if labels.items() <= row.items()}
    compiled = min(us[name] for name in us if name.startswith("torch.compile"))
    return dict(zip(ORDER, (roof_us(*needed(ROWS, *MAIN), TF32), us["fused"], compiled, us["eager"]), strict=True))


@cache
def interaction() -> dict[str, float]:
    """µs of the interaction of 65536 rows, float32, ours in CUDA; and in Triton."""
    labels = {"form": "functional", "dtype": "float32", "rows": WIDE["rows"], "columns": WIDE["columns"]}
    cells = {
        name: Record("dot_interaction").one("bandwidth", implementation=name, **labels)
        for name in ("cuda", "torch.compile", "eager", "triton")
    }
    roof = roof_us(dot.forward_flops(**WIDE), cells["cuda"]["bytes"], FLOAT32)
    return {"the roof": roof, "ours": cells["cuda"]["us_p50"]} | {
        name: cells[name]["us_p50"] for name in ("torch.compile", "eager", "triton")
    }


@cache
def tables() -> dict[str, float]:
    """µs of 26 look-ups for 2048 rows, ours one launch; the compiler's with its best setting."""
    needs, eager, compiled, ours = look_ups(ROWS)
    combo = cell_us("embedding_bags", "torch.compile, combo_kernels", **LOOK_UPS)
    return dict(zip(ORDER, (needs, ours, min(compiled, combo), eager), strict=True))
