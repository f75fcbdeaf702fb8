"""What tf32.json has, printed."""

from __future__ import annotations

from lessons.shared.records import Record, tflop_per_s

TF32 = Record("tf32")


def show(rows: int | None = None) -> None:
    """Print what was recorded; rows: of the products those of so many rows alone."""
    print(f"RECORDED: {TF32.head('GPU')}, {TF32.head('date')}, torch {TF32.head('torch')}")
    for _, row in TF32.rows("product", **({} if rows is None else {"rows": rows})).iterrows():
        shape = " × ".join(f"{row[name]:.0f}" for name in ("rows", "depth", "columns"))
        times = f"{row['us_p50']:.1f} µs, {tflop_per_s(row):.1f} TFLOP/s"
        print(f"{shape} {row['precision']}: {times}, error {row['error']:.1e}")
    for _, row in TF32.rows("step").iterrows():
        ms = f"{row['ms_p50']:.2f} ms ({row['ms_p20']:.2f} to {row['ms_p80']:.2f})"
        print(f"{row['step']} {row['precision']}: {ms}")


def gains() -> dict[str, float]:
    """step → how many times as long as in TF32 it takes in float32, as recorded."""
    ms = TF32.rows("step").pivot(index="step", columns="precision", values="ms_p50")
    return (ms["fp32"] / ms["tf32"]).to_dict()
