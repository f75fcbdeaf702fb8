"""A table of ids in a folder, for a model that is being served: `Exported.reload` takes it, in Python and in C++.

served = Served(DLRM.from_checkpoint(checkpoint))
table = IdTable(served.known)                               # the exported model's own
table.insert(ids, features, rows)                           # new ids, which share rows that were trained
write_table("tables/2", table)
exported.reload(Table("tables/2"))

manifest.tsv    as an exported model's (manifest.py), without inputs
constants/      tags, slots, bucket_offsets and seeds: an IdTable's storage
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kernels import IdTable
from kernels.ops.id_table.eager import BUCKET_SLOTS
from model.serving.folders import new_folder
from model.serving.manifest import MANIFEST, ExportError, Manifest, Tensors, write_constants
from model.serving.served import STORAGE


def write_table(folder: str | Path, table: IdTable) -> None:
    """Write the folder, completely or not at all. UserError: it is there already, or cannot be written."""
    with new_folder(Path(folder)) as partial:
        constants = write_constants(partial, dict(zip(STORAGE, table.storage(), strict=True)))
        (partial / MANIFEST).write_text(Manifest.of(partial, (), constants).text())


class Table:
    """What `write_table` wrote, verified and mapped: its files must not be changed while it is served.

    Raises ExportError, naming the folder or the file and what is wrong with it.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder).resolve()  # a link may lead to another folder soon
        manifest = Manifest.read(self.folder)
        manifest.verify(self.folder)
        self.constants = manifest.mapped(self.folder)
        if set(self.constants) != {*STORAGE}:
            names = ", ".join(self.constants) or "no constants"
            raise ExportError(f"{self.folder}: not a table of ids: it has {names}")
        tags, slots, offsets, _ = (self.constants[name] for name in STORAGE)
        whole = tags.dim() == 1 and slots.shape == (len(tags), 2) and offsets.dim() == 1 and len(offsets) > 0
        buckets = offsets.tolist() if whole else []
        if not whole or buckets[0] != 0 or buckets != sorted(buckets) or buckets[-1] * BUCKET_SLOTS != len(tags):
            raise ExportError(f"{self.folder}: bucket_offsets, tags and slots are not of one table")

    def check(self, constants: Sequence[Tensors]) -> None:
        """ExportError: it cannot take the place of the table among these constants of a model."""
        known = {constant.name: constant for constant in constants}
        for name, tensor in self.constants.items():
            if name not in known:
                raise ExportError(f"{self.folder}: the model has no {name}: its ids are not in a table")
            old, new = known[name], Tensors(name, tensor.dtype, tuple(tensor.shape))
            free = 1 if name in ("tags", "slots") else 0  # a table of the same features has any number of slots
            if (new.dtype, new.shape[free:]) != (old.dtype, old.shape[free:]):
                raise ExportError(
                    f"{self.folder}: for other features than the model's: {name} is {new.dtype} {new.sizes()}, "
                    f"and the model's {old.dtype} {old.sizes()}"
                )
