"""What the record of LoRA says: rows by part and labels, and tables of them beside what was predicted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from kernels.measure.verdict import verdict
from lessons.n12_lora.experiment import Sizes
from lessons.shared.records import ADD_MUL_ACTIVATION, Record, copy_us

if TYPE_CHECKING:
    import pandas

LORA = Record("lora")
SHAPES = Sizes().shapes
LARGE = (8192, 4096)  # the layer that is looked at piece by piece


def row(part: str, variant: str, **labels) -> pandas.Series:
    """The row of this variant."""
    return LORA.one(part, variant=variant, **labels)


def gpu_us(part: str, variant: str, **labels) -> float:
    return float(row(part, variant, **labels)["us_p50"])


def call_us(part: str, variant: str, **labels) -> float:
    """µs from one call to the next, when many follow each other and the last is waited for."""
    return float(row(part, variant, **labels)["call_us"])


def host_us(part: str, variant: str, **labels) -> float:
    """µs until a call comes back to Python, whatever the GPU still has to do."""
    return float(row(part, variant, **labels)["host_us"])


def at(shape: tuple[int, int]) -> dict[str, int]:
    return {"rows": shape[0], "width": shape[1]}


def saved_us(rows: int, width: int, passes: int = 4, size: int = 2) -> float:
    """µs that so many readings or writings of [rows, width] numbers of `size` bytes take at a copy's rate."""
    return copy_us(passes * rows * width * size)


def epilogue(implementation: str, form: str = "functional", **labels) -> pandas.Series:
    """add_mul_activation alone, 65536×512, from its own record."""
    wanted = {"rows": 65536, "columns": 512, "dtype": "bfloat16", "activation": "relu"} | labels
    part = "backward" if form == "backward" else "bandwidth"
    return ADD_MUL_ACTIVATION.one(part, form=form, implementation=implementation, **wanted)


def op_call_us(implementation: str, form: str = "functional") -> float:
    """µs of a call of the op on 64×64 numbers."""
    return float(ADD_MUL_ACTIVATION.one("calls", form=form, implementation=implementation)["call_us"])


# -------------------------------------------------------------------------------------------------------- tables


def print_backwards() -> None:
    """The epilogue's backward alone: µs on the GPU by activation, dtype and implementation; the fastest is marked."""
    names = ("eager", "torch.compile", "triton", "cuda")
    print(f"{'':18}" + "".join(f"{name:>15}" for name in names))
    for dtype in ("float32", "bfloat16"):
        for activation in ("relu", "sigmoid", "gelu"):
            us = {
                name: epilogue(name, "backward", dtype=dtype, activation=activation)["us_p50"] for name in names
            }
            least = min(us.values())
            cells = "".join(f"{us[name]:13.1f} {'*' if us[name] == least else ' '}" for name in names)
            print(f"{activation:8} {dtype:9}" + cells)


def judge(
    what: str, predicted: float | None, why: str, part: str, variant: str, kind: str = "us_p50", **labels
) -> None:
    """The verdict on predicted µs."""
    found = float(row(part, variant, **labels)[kind])
    verdict(what, predicted, found, "µs", why, how="recorded")


def judge_saving(predicted: float, shape: tuple[int, int] = LARGE) -> None:
    """The verdict on the µs of GPU time that one epilogue takes off eager's layer."""
    found = gpu_us("layer", "eager", **at(shape)) - gpu_us("layer", "fused, triton", **at(shape))
    verdict("saved", predicted, found, "µs", "Scale and activate are gone, which run below a copy's rate.",
            how="recorded")


def fastest(part: str, names: Sequence[str], **labels) -> list[str]:
    """The variant that is fastest on the GPU, and those that differ from it by no more than the spread."""
    found = {name: row(part, name, **labels) for name in names}
    best = min(found.values(), key=lambda row: row["us_p50"])
    return [name for name, row in found.items() if row["us_p20"] <= best["us_p80"]]


def print_training(predicted: Mapping[tuple[int, int], str] | None = None) -> None:
    """A line a shape: µs of forward and backward on the GPU, and from call to call; the fastest on the GPU, and what
    was said to be it."""
    found = LORA.rows("training")
    names = list(dict.fromkeys(found["variant"]))
    print("µs on the GPU, and from call to call; several are the fastest where they differ by no more than the spread")
    print(f"{'rows×width':>11}" + "".join(f"{name:>16}" for name in names) + "   fastest on the GPU")
    for shape in SHAPES:
        cells = "".join(
            f"{gpu_us('training', name, **at(shape)):9.0f},{call_us('training', name, **at(shape)):6.0f}"
            for name in names
        )
        least = fastest("training", names, **at(shape))
        said = (predicted or {}).get(shape)
        judged = "right" if any(name.startswith(said or "") for name in least) else "wrong"
        verdict = f"; {said}: {judged}" if said else ""
        shown = ", ".join(name.removeprefix("fused, ") for name in least)
        print(f"{shape[0]:>6}×{shape[1]:<4}" + cells + f"   {shown}{verdict}")


def spared_us() -> float:
    """µs that the kernels of a DLRM step take less with LoRA, in eager, than with everything trained."""
    return float(row("model", "all trained")["kernel_us"] - row("model", "LoRA, eager")["kernel_us"])


def print_model() -> None:
    """A line a variant of DLRM's step: µs a step, launches, µs of the kernels."""
    found = LORA.rows("model")
    print(f"{'':24}{'µs a step':>12}{'launches':>10}{'µs of kernels':>15}{'as one CUDA graph':>19}")
    for row in found.itertuples():
        graph = f"{row.us_p50:19.0f}" if row.us_p50 == row.us_p50 else ""
        print(f"{row.variant:24}{row.call_us:12.0f}{row.launches:10.0f}{row.kernel_us:15.0f}{graph}")


def print_adapters() -> None:
    """A line a way: µs on the GPU, and MB at the peak beside inputs and weights."""
    found = LORA.rows("adapters")
    print(f"{'':24}{'µs on the GPU':>15}{'µs a call':>12}{'MB beside':>11}")
    for row in found.itertuples():
        print(f"{row.variant:24}{row.us_p50:15.1f}{row.call_us:12.1f}{row.peak_bytes / 1e6:11.0f}")
