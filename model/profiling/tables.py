"""Tables: of the recorded steps, for traces/README.md; of a trace's kernels, for a terminal."""

import json
import re
from pathlib import Path

import pandas as pd

from data.cli import UserError
from model.profiling.facts import StepFacts
from model.profiling.trace_file import ROOT

TRACES = ROOT / "traces"
BEGIN, END = "<!-- begin: python -m model.profiling table -->", "<!-- end -->"
COLUMNS = [
    "command", "GPU", "step ms", "lowest", "highest", "repeats", "launches", "kernels", "busy ms", "GPU busy %",
    "peak MB",
]
SHORTEST_NAME = 20  # columns that a name has in a terminal, however narrow


def recorded_steps(traces: str | Path = TRACES) -> pd.DataFrame:
    """A row a recorded step, from its run.json, in the order of their names; NaN or None is what it does not say.

    Columns: command, GPU, "step ms", "lowest" and "highest" (ms: the median of all repeats and what they lie between),
    repeats, launches, kernels, "busy ms" and "GPU busy %" (of the profiled step, which is longer), "peak MB".
    """
    names, rows = [], []
    for path in sorted(Path(traces).glob("*/run.json")):
        run = json.loads(path.read_text())
        facts, peak = run["facts"], run["peak_bytes"]
        busy = facts.get("busy_us")
        names.append(path.parent.name)
        rows.append((
            run["command"], run["GPU"], run["step_ms"], run.get("step_ms_low"), run.get("step_ms_high"),
            run.get("repeats", 1), facts["launches"], facts["kernels"], busy and busy / 1e3, facts["busy_percent"],
            peak and peak / 1e6,
        ))
    table = pd.DataFrame(rows, index=names, columns=COLUMNS)
    return table.astype({name: float for name in COLUMNS if name not in ("command", "GPU", "repeats")})


def readme_table(traces: Path = TRACES) -> str:
    """The table of the recorded steps in Markdown."""
    table = recorded_steps(traces)
    if table.empty:
        return "None is recorded yet: `python -m model.profiling story`, on a GPU."
    names = ["step", "command", "GPU", "step, ms", "lowest to highest", "launches", "kernels", "GPU busy %", "peak, MB"]
    lines = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    for name, row in table.iterrows():
        spread = f"{row['lowest']:.3g} to {row['highest']:.3g}" if pd.notna(row["lowest"]) else "–"
        counts = [_whole(row[column]) for column in ("launches", "kernels", "GPU busy %", "peak MB")]
        cells = [f"[{name}]({name}/)", f"`{row['command']}`", row["GPU"], f"{row['step ms']:.3g}", spread, *counts]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def write_table(traces: Path = TRACES) -> None:
    """Put the table between its markers in traces/README.md; UserError if they are not there."""
    readme = traces / "README.md"
    before, begin, rest = readme.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise UserError(f"{readme} must have the lines {BEGIN} and {END}")
    readme.write_text(f"{before}{begin}\n\n{readme_table(traces)}\n\n{end}{after}")


def facts_line(name: str, facts: StepFacts) -> str:
    """What a trace is of, in one line; its times are those of the profiled steps."""
    text = f"{name}: {facts.steps} steps, {facts.step_us / 1e3:.2f} ms each while profiled"
    if facts.device == "cuda":
        text += f"; {facts.launches:.0f} launches, {facts.kernels:.0f} kernels, GPU busy {facts.busy_percent:.0f} %"
    return text + ("" if facts.peak_bytes is None else f"; peak {facts.peak_bytes / 1e6:,.0f} MB")


def as_text(table: pd.DataFrame, width: int | None = None) -> str:
    """A table of `summarize` or `compare` as text, every row and column of it, the names last.

    width: of the terminal; names are then cut to fit, and the last line says how many. None: whole names, however wide.
    """
    formats = {"share": "{:.1%}", "bytes": "{:,.0f}"}
    shown = table.apply(lambda column: [_cell(value, formats.get(column.name, "{:,.1f}")) for value in column])
    lines = shown.to_string(index=False).splitlines()
    names = list(table.index)
    if width is None:
        return "\n".join(f"{line}  {name}" for line, name in zip(lines, ["name", *names], strict=True))
    names = [re.sub(r"^void |at::native::|\(anonymous namespace\)::", "", name) for name in names]
    room = max(SHORTEST_NAME, width - len(lines[0]) - 2)
    cut = sum(len(name) > room for name in names)
    names = [name if len(name) <= room else name[: room - 1] + "…" for name in names]
    text = "\n".join(f"{line}  {name}" for line, name in zip(lines, ["name", *names], strict=True))
    note = f"\nnames that are cut, at …: {cut} (--names whole, or a pipe, shows all of each)"
    return text + (note if cut else "")


def _cell(value, form: str) -> str:
    return value if isinstance(value, str) else "–" if pd.isna(value) else form.format(value)


def _whole(value: float) -> str:
    return "–" if pd.isna(value) else f"{value:,.0f}"
