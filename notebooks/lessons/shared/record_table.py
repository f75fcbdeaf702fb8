"""What was recorded of an op on one named GPU, as a table for a notebook."""

from __future__ import annotations

from collections.abc import Mapping

from kernels.measure import records
from kernels.measure.cells import Row

IMPLEMENTATIONS = ("eager", "torch.compile", "torch.compile, combo_kernels", "triton", "cuda")


def show_record(op: str, **labels: object) -> None:
    """Print the record's µs, the median on the GPU: a line for each cell of these labels, a column an implementation.

    They are a CUDA graph's replays, as all of the record's times on the GPU: no Python, no host.

    labels: a value, or a tuple of those that are wanted; `part` and `form` count as labels.
    """
    rows = records.recorded(op)
    about = rows.attrs
    for name, wanted in labels.items():
        rows = rows[rows[name].isin(wanted if isinstance(wanted, tuple) else (wanted,))]
    columns = [name for name in rows if name not in Row.__dataclass_fields__ and rows[name].nunique() > 1]
    times = rows.pivot_table(index=columns or ["form"], columns="implementation", values="us_p50", sort=False)
    shown = times[[name for name in IMPLEMENTATIONS if name in times]]
    print(f"RECORDED, µs of a graph's replay: {about['GPU']}, {about['date']}, {op} {_fixed(labels)}")
    print(shown.round(1).to_string())


def _fixed(labels: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in labels.items() if not isinstance(value, tuple))
