"""What `python -m model.bench --write` writes: README.md's results, model/README.md's table, kernels/README.md's of the
backend, and traces/step.svg.

README.md shows the picture of a step, and a line for each of a few kernels. The lines are GPU times of one call: many
in a CUDA graph, divided by their number, eager's and torch.compile's too; the peers as they are set best. A kernel that
is no faster than the best peer is no result, and has no line: kernels/README.md has them all.
"""

from collections.abc import Mapping
from pathlib import Path

from kernels.measure import status
from kernels.measure.cells import OURS, Row
from kernels.measure.judge import NEVER_SLOWER, best_set
from kernels.measure.records import README_GPU, RESULTS, slug
from model.bench import backend, step_picture
from model.bench.whole_model import readme_table, with_table

ROOT = RESULTS.parents[1]
FRONT_PAGE, MODELS_PAGE, KERNELS_PAGE = (ROOT / folder / "README.md" for folder in ("", "model", "kernels"))
PEERS = ("eager", "torch.compile")
# Op → what it is, and the notebook in which the reader builds it.
BUILT = {
    "dot_interaction": ("DLRM's interaction of 1 + {features} vectors", "22_the_interaction"),
    "fused_mlp": ("a whole MLP, {widths}", "14_whole_mlp"),
    "dlrm": ("a whole DLRM in one kernel, `{model}`", "23_tile_pair_and_cluster"),
}


def block(results: Path = RESULTS) -> str:
    """What stands between README.md's markers: the picture and the table."""
    picture = step_picture.PICTURE.relative_to(ROOT).as_posix()
    return f"![{step_picture.words(results)}]({picture})\n\n{table(results)}"


def table(results: Path = RESULTS) -> str:
    """The lines of BUILT that are results."""
    gpu = README_GPU.upper()
    lines = [f"| what you build: µs on one {gpu} | eager | compiled | ours |", "|---|---|---|---|"]
    for op, (what, notebook) in BUILT.items():
        rows = first_case(op, results)
        peers = [best_set(rows, way) for name in PEERS for way in (name, *status.OTHER_WAYS[name])]
        best = min((peer.us_p50 for peer in peers if peer), default=None)
        ours = min((rows[name].us_p50 for name in OURS if name in rows), default=None)
        if not ours or not best or NEVER_SLOWER * ours >= best:
            continue
        times = " | ".join(status.fastest_times(rows, PEERS))
        lines.append(f"| {case(what, notebook, next(iter(rows.values())))} | {times} | **{ours:,.1f}** |")
    return "\n".join(lines)


def first_case(op: str, results: Path = RESULTS) -> dict[str, Row]:
    """{implementation: row} of the first case that the READMEs show, if their GPU has a record."""
    records = [record for record in status.for_readmes(op, results) if slug(record["GPU"]) == README_GPU]
    rows = [row for record in records[:1] for row in status.shown(op, record)]
    return {row.implementation: row for row in rows if row.labels == rows[0].labels}


def case(what: str, notebook: str, row: Row) -> str:
    """`what`, formatted with the row's labels and with a link, and these: "[a whole MLP](…), 2,048 rows, TF32"."""
    numbers = "TF32" if row.labels.get("precision") == "tf32" else row.labels.get("dtype", "float32")
    link = f"[{what.format(**row.labels)}](notebooks/{notebook}.ipynb)"
    return f"{link}, {row.labels['rows']:,} rows, {numbers}"


def pages(results: Path = RESULTS) -> Mapping[Path, str]:
    """The files, each with its text of now."""
    blocks = {FRONT_PAGE: block(results), MODELS_PAGE: readme_table(results=results)}
    blocks[KERNELS_PAGE] = backend.table(results)
    texts = {path: with_table(path.read_text(), text) for path, text in blocks.items()}
    return texts | {step_picture.PICTURE: step_picture.svg(results)}


def write() -> None:
    """Bring them up to date."""
    for path, text in pages().items():
        path.write_text(text)
