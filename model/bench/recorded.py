"""The record of a command of model.bench: what is saved, and where."""

from collections.abc import Iterable

from kernels import runtime
from kernels.measure import records, sources
from model.profiling.recording import today

VERSIONS = ("GPU", "driver", "torch", "triton", "CUDA", "Python")
# Whose kernels a model runs, in one kernel or in parts, in predictions and in steps.
OPS = (
    "dlrm", "fused_mlp", "lookup_interact", "dot_interaction", "embedding_bags", "embedding_bags_update",
    "embedding_bags_sort",
)  # fmt: skip


# What a record that is measured in several runs must be measured by.
CODE = tuple(records.RESULTS.parents[1] / folder for folder in ("data", "kernels", "model"))


def save(name: str, rows: Iterable[dict], ops: Iterable[str] = OPS, **more) -> str:
    """Write traces/results/<gpu>/<name>.json, with the hashes of these ops' sources; what was done, as `records.save`
    says it. All rows are of ours."""
    versions = runtime.versions()
    heads = {"op": name, **{own: versions[own] for own in VERSIONS}, "date": today()}
    hashes = {op: sources.sha256(op, "sources") for op in ops}
    return records.save({**heads, "sources_sha256": hashes, **more, "rows": list(rows)})
