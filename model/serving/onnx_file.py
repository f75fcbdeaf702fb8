"""A trained DLRM as one ONNX file: raw counts and ids in, click probabilities out, for any batch size.

    counts float32 [batch, 13], ids int64 [batch, F] → probabilities float32 [batch]

The file computes what `model.serving.served.Served` computes, in ONNX's standard operators. An id's row is a Mod of it,
or comes from its feature's LabelEncoder (ai.onnx.ml), which holds the known ids. So every ONNX runtime can serve it, on
a machine that has neither PyTorch nor this repository.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
import torch
from onnxscript import ir
from torch import Tensor
from torch.export import Dim

from data.cli import UserError
from model.dlrm import DLRM
from model.evaluation import input_columns
from model.serving.served import Served

LARGEST = (1 << 31) - (1 << 20)  # bytes of tensors in a file: protobuf ends at 2 GiB, and the graph needs some too
DATA = ".data"  # what the name of the file beside it adds
LABEL_ENCODER, VERSION = "LabelEncoder", 4  # from version 4 on its keys are a tensor
FEATURE = "feature"  # by which a LabelEncoder is known while the file is made: a graph's nodes have no set order
DESCRIPTION = (
    "A DLRM's click probabilities. counts: as the log has them, NaN where one is missing; ids: one a feature, -1 where "
    "it is missing."
)


class EncodedServed(Served):
    """`Served` whose ids a LabelEncoder a feature looks up. For export: in PyTorch each id has row 0."""

    def _add_table(self) -> None:
        """Nothing: see `_encode`."""

    def _known_rows(self, ids: Tensor) -> Tensor:
        operator = f"ai.onnx.ml::{LABEL_ENCODER}"
        rows = [
            torch.onnx.ops.symbolic(
                operator,
                [column],
                dtype=ids.dtype,
                shape=column.shape,
                version=VERSION,
                metadata_props={FEATURE: str(feature)},
            )
            for feature, column in enumerate(ids.split(1, dim=1))
        ]
        return torch.cat(rows, dim=1)


def check(path: Path, pooling: str) -> None:
    """UserError, before any work is done: bags, for which ONNX has no operators; a file that is there already."""
    if pooling != "none":
        raise UserError(
            f"--onnx: --pooling {pooling}: ONNX has no operator that sums the embeddings of bags of ids; "
            "leave --pooling out, or export to a folder (--out)"
        )
    for file in (path, path.with_name(path.name + DATA)):
        if file.exists():
            raise UserError(f"{file}: is there already; name another file, or remove it")


def write(dlrm: DLRM, path: Path) -> None:
    """Write the file and check it. dlrm: as `Served` takes it.

    Weights that do not fit into one file, whose limit is protobuf's 2 GiB, are in a second one beside it, path + DATA.
    Raises UserError for more ids than fit, OSError.
    """
    served = EncodedServed(dlrm).eval()
    known = [] if served.modulus else [ids.numpy() for ids in served.known]
    encoded = 2 * sum(ids.nbytes for ids in known)  # ids and their rows
    if encoded > LARGEST:
        raise UserError(
            f"--onnx: {sum(map(len, known)):,} ids and their rows are {encoded:,} bytes, and an ONNX file, in which a "
            "LabelEncoder has to hold them, ends at 2 GiB; train with --hash modulus, or export to a folder (--out)"
        )
    inputs = (torch.zeros(2, dlrm.config.bottom[0]), torch.zeros(2, served.features, dtype=torch.int64))
    batch = Dim("batch")
    with _quiet():
        program = torch.onnx.export(
            served,
            inputs,
            dynamo=True,
            verbose=False,
            dynamic_shapes=({0: batch}, {0: batch}),
            input_names=["counts", "ids"],
            output_names=["probabilities"],
        )
    _encode(program.model.graph, known)
    _describe(program.model, dlrm)
    weights = sum(value.const_value.nbytes for value in program.model.graph.initializers.values())
    program.save(path, external_data=encoded + weights > LARGEST)
    onnx.checker.check_model(str(path), full_check=True)


def _encode(graph: ir.Graph, known: Sequence[np.ndarray]) -> None:
    """Give each feature's LabelEncoder its ids: the k-th has row k, from 1, and any other id row 0."""
    encoders = {int(node.metadata_props[FEATURE]): node for node in graph if node.op_type == LABEL_ENCODER}
    for feature, ids in enumerate(known):
        node, rows = encoders[feature], np.arange(1, len(ids) + 1)
        for name, tensor in (("keys_tensor", ids), ("values_tensor", rows), ("default_tensor", np.zeros(1, np.int64))):
            node.attributes[name] = ir.AttrTensor(name, ir.tensor(tensor))


def _describe(model: ir.Model, dlrm: DLRM) -> None:
    """Say what goes in, the columns' names as metadata; leave out what the exporter notes of our source, and where it
    lay."""
    model.doc_string = DESCRIPTION
    for name, columns in input_columns(dlrm).items():
        model.metadata_props[name] = json.dumps(columns, ensure_ascii=False)
    model.graph.metadata_props.clear()
    for node in model.graph:
        node.metadata_props.clear()


@contextmanager
def _quiet() -> Iterator[None]:
    """Within the block the exporter says nothing of packages that are not needed, nor of its own future."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
