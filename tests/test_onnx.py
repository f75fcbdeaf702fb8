"""A trained DLRM as an ONNX file: what onnxruntime computes with it, against eager PyTorch."""

import json
import os
from dataclasses import replace

import numpy as np
import pytest
import torch
from exported_models import CARDINALITIES, checkpoint, trained

from data.cli import UserError
from data.criteo import DENSE, SPARSE
from model import export
from model.config import PRESETS, Interaction
from model.dlrm import DLRM
from model.export import sample
from model.hashing import Hash
from model.serving.served import Served

onnx = pytest.importorskip("onnx", reason="the package onnx is missing")
pytest.importorskip("onnxscript", reason="the package onnxscript is missing")
onnxruntime = pytest.importorskip("onnxruntime", reason="the package onnxruntime is missing")

from model.serving import onnx_file  # noqa: E402  it needs these packages

EDGES = (-1, 0, -(2**63), 2**63 - 1, -(2**63) + 1, 2**32, 2**32 - 1, -2)
TOLERANCE = {"rtol": 0, "atol": 1e-6}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """written(dlrm): the model's file."""

    def write(dlrm):
        path = tmp_path_factory.mktemp("onnx") / "model.onnx"
        onnx_file.write(dlrm, path)
        return path

    return write


def session(path, *op_types):
    """An onnxruntime session of the file; what nodes of these types give are outputs of it too."""
    model = onnx.load(path)
    names = [name for node in model.graph.node if node.op_type in op_types for name in node.output]
    model.graph.output.extend(
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.INT64, None) for name in names
    )
    source = model.SerializeToString() if names else path
    return onnxruntime.InferenceSession(source, providers=["CPUExecutionProvider"])


def answers(session, counts, ids):
    """The outputs for these inputs: probabilities first."""
    return [torch.from_numpy(array) for array in session.run(None, {"counts": counts.numpy(), "ids": ids.numpy()})]


def assert_eagers(session, dlrm, batches=(0, 1, 2, 2048)):
    served = Served(dlrm).eval()
    for seed, batch in enumerate(batches):
        inputs = sample(served, batch, seed)
        probabilities, *_ = answers(session, *inputs)
        assert probabilities.shape == (batch,)
        torch.testing.assert_close(probabilities, served(*inputs), **TOLERANCE)


@pytest.mark.parametrize("hash_", [Hash.MODULUS, Hash.TABLE])
def test_its_probabilities_are_eagers(written, hash_):
    dlrm = trained(hash_)
    assert_eagers(session(written(dlrm)), dlrm)


def test_each_encoder_has_its_features_ids_in_any_order_of_the_nodes(written, monkeypatch):
    encode = onnx_file._encode

    def permuted(graph, known):
        encoders = [node for node in graph if node.op_type == "LabelEncoder"]
        assert len(encoders) == len(CARDINALITIES)
        before = encoders[0].predecessors()[0]
        graph.remove(encoders)
        graph.insert_after(before, encoders[::-1])
        encode(graph, known)

    monkeypatch.setattr(onnx_file, "_encode", permuted)
    dlrm = trained(Hash.SORTED)
    assert_eagers(session(written(dlrm)), dlrm)


@pytest.mark.slow
@pytest.mark.parametrize("interaction", [*Interaction])
@pytest.mark.parametrize("hash_", [*Hash])
def test_with_every_hash_and_interaction(written, hash_, interaction):
    dlrm = trained(hash_, interaction=interaction)
    assert_eagers(session(written(dlrm)), dlrm)


@pytest.mark.slow
def test_the_lectures_model(written):
    torch.manual_seed(0)
    config = replace(PRESETS["main"].model, cardinalities=(1000,) * 26, hash=Hash.SORTED)
    dlrm = DLRM(config, [torch.arange(1000) * 4294967 for _ in range(26)]).eval().requires_grad_(False)
    assert_eagers(session(written(dlrm)), dlrm)


def test_a_million_ids_have_the_rows_that_a_table_gives(written):
    sizes = (300_000, 1, 0, 90_000)
    random = np.random.default_rng(0)
    known = [random.choice(2**32, size, replace=False) for size in sizes]
    config = replace(PRESETS["small"].model, cardinalities=sizes, hash=Hash.SORTED)
    dlrm = DLRM(config, known).eval().requires_grad_(False)
    ids = np.empty((250_000, len(sizes)), np.int64)
    for feature, of_feature in enumerate(known):
        near = np.concatenate([of_feature, of_feature + 1, of_feature - 1, of_feature - 2**32, -of_feature, EDGES])
        ids[:, feature] = random.choice(near, len(ids))
    ids = torch.from_numpy(ids)
    rows = Served(dlrm)._known_rows(ids)
    assert (rows == 0).sum() > 300_000
    assert (rows > 0).sum() > 100_000
    _, *embeddings = answers(session(written(dlrm), "LabelEncoder"), torch.zeros(len(ids), 13), ids)
    assert torch.equal(torch.cat(embeddings, 1), rows)


def test_modulo_of_ids_at_the_edges(written):
    dlrm = trained(Hash.MODULUS)
    ids = torch.tensor(EDGES).repeat_interleave(len(CARDINALITIES)).view(-1, len(CARDINALITIES))
    _, rows = answers(session(written(dlrm), "Mod"), torch.zeros(len(ids), 13), ids)
    assert torch.equal(rows, (ids + 1) % torch.tensor([10, 1, 1, 300]))
    assert (rows >= 0).all()


def test_counts_that_are_missing_negative_or_large(written):
    dlrm = trained(Hash.MODULUS)
    values = torch.tensor([torch.nan, -torch.inf, -3, -0.0, 0, 1e-6, 0.5, 2**24 + 2, 3e38, -1, 1, 2, 3])
    counts = torch.stack([values.roll(shift) for shift in range(13)])
    ids = torch.zeros(13, len(CARDINALITIES), dtype=torch.int64)
    torch.testing.assert_close(answers(session(written(dlrm)), counts, ids)[0], Served(dlrm)(counts, ids), **TOLERANCE)


def test_what_the_file_says(written):
    path = written(trained(Hash.SORTED))
    model = onnx.load(path)
    shapes = {
        value.name: [size.dim_param or size.dim_value for size in value.type.tensor_type.shape.dim]
        for value in (*model.graph.input, *model.graph.output)
    }
    assert shapes == {"counts": ["batch", 13], "ids": ["batch", len(CARDINALITIES)], "probabilities": ["batch"]}
    assert "NaN where one is missing" in model.doc_string
    columns = {entry.key: json.loads(entry.value) for entry in model.metadata_props}
    assert columns["counts"] == [{"name": name, "kind": "count"} for name in DENSE]
    assert columns["ids"] == [{"name": name, "kind": "hex"} for name in SPARSE[: len(CARDINALITIES)]]
    assert {opset.domain for opset in model.opset_import} == {"", "ai.onnx.ml"}
    assert os.fsencode(export.__file__) not in path.read_bytes()


def test_inputs_that_it_does_not_take(written):
    runs = session(written(trained(Hash.MODULUS)))
    counts, ids = sample(Served(trained(Hash.MODULUS)), 8, 0)
    for inputs in ((counts.double(), ids), (counts, ids.int()), (counts[:, :12], ids), (counts, ids[:, :3])):
        with pytest.raises(onnxruntime.capi.onnxruntime_pybind11_state.InvalidArgument):
            answers(runs, *inputs)


class TestExport:
    @pytest.fixture
    def best(self, tmp_path):
        return checkpoint(tmp_path / "best.pt", trained(Hash.SORTED))

    def test_a_checkpoint_becomes_a_file(self, best):
        path = best.parent / "new" / "model.onnx"
        export.main(["--checkpoint", str(best), "--onnx", str(path)])
        assert [*path.parent.iterdir()] == [path]
        assert_eagers(session(path), trained(Hash.SORTED))

    def test_ids_modulo_a_hash_size_that_the_checkpoint_does_not_say(self, best):
        path, size = best.parent / "model.onnx", 250 * 14316557
        export.main(["--checkpoint", str(best), "--onnx", str(path), "--hash-size", str(size)])
        counts, ids = sample(Served(trained(Hash.SORTED)), 50, 0)
        ids = ids.clamp(min=0, max=2**40)
        want = Served(trained(Hash.SORTED))(counts, ids % size)
        torch.testing.assert_close(answers(session(path), counts, ids + size)[0], want, **TOLERANCE)

    def test_weights_that_do_not_fit_are_beside_it(self, best, monkeypatch):
        monkeypatch.setattr(onnx_file, "LARGEST", 20_000)
        path = best.parent / "new" / "model.onnx"
        export.export(best, onnx=path)
        assert {file.name for file in path.parent.iterdir()} == {"model.onnx", "model.onnx.data"}
        assert_eagers(session(path), trained(Hash.SORTED))

    def test_ids_that_do_not_fit(self, best, monkeypatch):
        monkeypatch.setattr(onnx_file, "LARGEST", 4_000)
        with pytest.raises(UserError, match="--onnx: 311 ids and their rows are 4,976 bytes, and an ONNX file"):
            export.export(best, onnx=best.parent / "model.onnx")
        assert [*best.parent.iterdir()] == [best]

    @pytest.mark.parametrize("name", ["model.onnx", "model.onnx.data"])
    def test_a_file_that_is_there_is_left_alone(self, best, name):
        (best.parent / name).write_text("mine")
        with pytest.raises(UserError, match=f"{name}: is there already"):
            export.export(best, onnx=best.parent / "model.onnx")
        assert (best.parent / name).read_text() == "mine"

    def test_bags_are_refused(self, best):
        with pytest.raises(UserError, match="--pooling sum: ONNX has no operator that sums the embeddings of bags"):
            export.export(best, pooling="sum", onnx=best.parent / "model.onnx")

    def test_a_file_that_fails_the_check_is_not_written(self, best, monkeypatch):
        def fail(*_, **__):
            raise onnx.checker.ValidationError("not a graph")

        monkeypatch.setattr(onnx.checker, "check_model", fail)
        with pytest.raises(onnx.checker.ValidationError):
            export.export(best, onnx=best.parent / "model.onnx")
        assert [*best.parent.iterdir()] == [best]

    def test_a_folder_that_cannot_be_written(self, best):
        (best.parent / "file").write_text("")
        with pytest.raises(UserError, match=r"file/model.onnx: cannot be written"):
            export.export(best, onnx=best.parent / "file" / "model.onnx")
