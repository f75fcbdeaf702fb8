"""Part IV's one table: parts of a step of `main`, as the cells of notebooks 13 to 18 recorded them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from kernels.measure import records
from lessons.shared.measure import FOLDER

COLUMNS = "eager", "torch.compile", "yours"
# By notebook: the part, the size, and for each column the measurement and the way in it.
PARTS = {
    "13": ("top MLP, first layer, bfloat16", 2048, ("layer", "cuBLAS"), None, ("layer", "small tiles")),
    "14": ("its product, float32", 2048, ("layer", "cuBLAS"), None, ("layer", "4×4 a thread")),
    "15": ("bottom MLP, tf32", "tf32, 2,048", ("sizes", "eager"), ("sizes", "torch.compile"), ("sizes", "yours")),
    "16": ("interaction, float32", "2,048 float32",
           ("race", "eager"), ("race", "torch.compile"), ("race", "yours, a row")),
    "17": ("look-ups, tables in one tensor", 2048,
           ("ways", "eager, one tensor"), ("ways", "torch.compile, one tensor"), ("price", "trusting")),
    "18": ("Adagrad of all tables", "Zipf, 2,048",
           ("adagrad", "dense gradient"), ("adagrad", "sorted, torch.compile"), ("adagrad", "yours")),
}  # fmt: skip


def show(notebook: str) -> None:
    """Print the rows up to this notebook's: µs on the GPU for 2,048 rows, the medians; – where nothing is recorded."""
    heads, lines = {}, []
    for number, (part, size, *ways) in PARTS.items():
        if number <= notebook:
            head, us = _recorded(number)
            about = ", ".join([head["GPU"], *(f"{name} {head[name]}" for name in ("torch", "triton", "CUDA"))])
            heads[about] = None
            cells = (f"{us[way, size]:,.1f}" if (way, size) in us else "–" for way in ways)
            lines.append(f"{number}  {part:32}" + "".join(f"{cell:>15}" for cell in cells))
    print(f"RECORDED on: {'; '.join(heads)}. µs on the GPU, 2,048 rows of `main`")
    print(f"{'':36}" + "".join(f"{column:>15}" for column in COLUMNS), *lines, sep="\n")


def _recorded(number: str) -> tuple[Mapping, dict]:
    """Head and {((measurement, way), size): µs} of a notebook's record: of the run that is being recorded, if it is."""
    path = Path(records.README_GPU) / f"lecture_{number}.json"
    record = records.read(records.RESULTS / path)
    if FOLDER in os.environ:
        with suppress(FileNotFoundError):
            record = records.read(os.environ[FOLDER] / path)
    timed = [row for row in record["rows"] if "us_p50" in row]
    return record, {((row["part"], row["name"]), row["size"]): row["us_p50"] for row in timed}
