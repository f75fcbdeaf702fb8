"""What step_time.json has, printed, and the recorded steps' times."""

from __future__ import annotations

import json

from lessons.shared import launches
from lessons.shared.experiment import PERCENTILES
from lessons.shared.records import Record, tflop_per_s
from model.profiling import TRACES

STEP_TIME = Record("step_time")
DOT, OUTER, SMALL = launches.HOST_BOUND, launches.GPU_BOUND, "04_modulus"
COMMAND = "python -m lessons.n02_where_the_time_goes --save"


def run(name: str) -> dict:
    """run.json of a recorded step."""
    return json.loads((TRACES / name / "run.json").read_text())


def _head(record: Record = STEP_TIME) -> str:
    return f"Recorded, {record.head('GPU')}, torch {record.head('torch')}, {record.head('date')}"


def show(part: str) -> None:
    """Print the rows of `clock` or `launch`, or that there are none."""
    try:
        record = STEP_TIME.with_part(part)
    except LookupError:
        print(f"No record of this yet. On a GPU, `{COMMAND}` makes one.")
        return
    host = f", {record.head('platform')}" if part == "launch" else ""
    print(f"{_head(record)}{host}:")
    for _, row in record.rows(part).iterrows():
        if row["name"][0].isdigit():
            continue  # a step of the recorded traces
        key, unit = ("us", "µs") if row["name"] == "x + 1" else ("ms", "ms")
        low, middle, high = (f"{row[f'{key}_{name}']:.3g}" for name in PERCENTILES)
        per = f", {1e3 * row['ms_p50'] / row['launches']:.1f} µs per launch" if row.get("launches", 0) > 1 else ""
        name = row["name"].replace("the reader's step", "01's step")
        print(f"  {name}: {middle} {unit} ({low} to {high}){per}")


def show_products(rows: int) -> None:
    """Print the products of so many rows."""
    print(f"{_head()}:")
    for _, row in STEP_TIME.rows("product", rows=rows).iterrows():
        shape = f"{rows} × {row['depth']:.0f} × {row['columns']:.0f}, {row['precision']}"
        print(f"  {shape}: {row['us_p50']:,.0f} µs, {tflop_per_s(row):.0f} TFLOP/s, error {row['error']:.0e}")


def gain(rows: int) -> float:
    """How many times as long as in TF32 a product of so many rows takes in float32."""
    us = STEP_TIME.rows("product", rows=rows).set_index("precision")["us_p50"]
    return float(us["fp32"] / us["tf32"])
