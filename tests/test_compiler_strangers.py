"""backend="fused_kernels" and the models of packages that others wrote, each where it is installed: what is replaced in
training and in eval, outputs and gradients as eager's, in as many graphs as any backend's."""

from __future__ import annotations

import importlib
from collections.abc import Callable

import numpy as np
import pytest
import torch
from compiled import check
from torch import Tensor, nn

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread", "as_on_gpu")]
HEIGHTS, ROWS, MLP = (10, 20, 30, 15), 16, (16, 16)
LOOK_UPS, LAYERS = "embedding_bags_apart", "fused_mlp"


def ids() -> Tensor:
    return torch.stack([torch.randint(0, height, (ROWS,)) for height in HEIGHTS], 1)


def torchfm(module: str, model: str, *arguments) -> Callable:
    def make() -> tuple[nn.Module, object]:
        if not hasattr(np, "long"):
            np.long = np.int64  # of a NumPy that the package was written for
        package = importlib.import_module(f"torchfm.model.{module}")
        return getattr(package, model)(HEIGHTS, *arguments), ids()

    return make


def rechub(model: str, *arguments, dense: bool = True) -> Callable:
    def make() -> tuple[nn.Module, object]:
        features = importlib.import_module("torch_rechub.basic.features")
        ranking = importlib.import_module("torch_rechub.models.ranking")
        sparse = [features.SparseFeature(f"c{k}", height, embed_dim=8) for k, height in enumerate(HEIGHTS)]
        counts = [features.DenseFeature(f"d{k}") for k in range(3)]
        lists = (counts + sparse, sparse) if dense else (counts + sparse,)
        mlp = {"dims": [32, 16], "dropout": 0.2, "activation": "relu"}
        columns = {f"c{k}": column.contiguous() for k, column in enumerate(ids().unbind(1))}
        columns |= {f"d{k}": torch.randn(ROWS) for k in range(3)}
        return getattr(ranking, model)(*lists, *arguments, mlp), columns

    return make


def deepctr(model: str) -> Callable:
    def make() -> tuple[nn.Module, object]:
        inputs, models = map(importlib.import_module, ("deepctr_torch.inputs", "deepctr_torch.models"))
        columns = [inputs.SparseFeat(f"c{k}", height, embedding_dim=8) for k, height in enumerate(HEIGHTS)]
        columns += [inputs.DenseFeat(f"d{k}", 1) for k in range(3)]
        lists = (columns,) if model == "PNN" else (columns, columns)
        own = getattr(models, model)(*lists, dnn_hidden_units=(32, 16), device="cpu")
        return own, torch.cat([ids().float(), torch.rand(ROWS, 3)], 1)

    return make


def rtdl(model: str, **options) -> Callable:
    def make() -> tuple[nn.Module, object]:
        package = importlib.import_module("rtdl_revisiting_models")
        return getattr(package, model)(d_in=12, d_out=1, **options), torch.randn(ROWS, 12)

    return make


RESNET = {"n_blocks": 2, "d_block": 32, "d_hidden": None, "d_hidden_multiplier": 2.0, "dropout1": 0.2, "dropout2": 0.0}
# The package, model and inputs, the ops in training and in eval.
MODELS = {
    "fm": ("torchfm", torchfm("fm", "FactorizationMachineModel", 16), set(), set()),
    "ffm": ("torchfm", torchfm("ffm", "FieldAwareFactorizationMachineModel", 4), {LOOK_UPS}, {LOOK_UPS}),
    "fnfm": (
        "torchfm", torchfm("fnfm", "FieldAwareNeuralFactorizationMachineModel", 4, MLP, (0.2, 0.2)), {LOOK_UPS},
        {LOOK_UPS, LAYERS},
    ),
    "fnn": ("torchfm", torchfm("fnn", "FactorizationSupportedNeuralNetworkModel", 16, MLP, 0.2), set(), {LAYERS}),
    "dcn": ("torchfm", torchfm("dcn", "DeepCrossNetworkModel", 16, 3, MLP, 0.2), set(), {LAYERS}),
    "dfm": ("torchfm", torchfm("dfm", "DeepFactorizationMachineModel", 16, MLP, 0.2), set(), {LAYERS}),
    "wd": ("torchfm", torchfm("wd", "WideAndDeepModel", 16, MLP, 0.2), set(), {LAYERS}),
    "nfm": ("torchfm", torchfm("nfm", "NeuralFactorizationMachineModel", 16, MLP, (0.2, 0.2)), set(), {LAYERS}),
    "pnn": ("torchfm", torchfm("pnn", "ProductNeuralNetworkModel", 16, MLP, 0.2), set(), {LAYERS}),
    "afi": (
        "torchfm", torchfm("afi", "AutomaticFeatureInteractionModel", 16, 16, 2, 3, MLP, (0.4, 0.4, 0.4)), set(),
        {LAYERS},
    ),
    "lr": ("torchfm", torchfm("lr", "LogisticRegressionModel"), set(), set()),
    "rechub_wide_and_deep": ("torch_rechub", rechub("WideDeep"), {LOOK_UPS}, {LOOK_UPS, LAYERS}),
    "rechub_deep_fm": ("torch_rechub", rechub("DeepFM"), {LOOK_UPS}, {LOOK_UPS, LAYERS}),
    "rechub_dcn_v2": ("torch_rechub", rechub("DCNv2", 2, dense=False), {LOOK_UPS}, {LOOK_UPS, LAYERS}),
    "rtdl_mlp": ("rtdl_revisiting_models", rtdl("MLP", n_blocks=3, d_block=32, dropout=0.1), set(), {LAYERS}),
    "rtdl_resnet": ("rtdl_revisiting_models", rtdl("ResNet", **RESNET), set(), {LAYERS}),
    **{
        f"deepctr_{name}": ("deepctr_torch", deepctr(name), {LOOK_UPS, LAYERS}, {LOOK_UPS, LAYERS})
        for name in ("DeepFM", "WDL", "DCN", "DCNMix", "NFM", "AutoInt", "xDeepFM", "FiBiNET", "PNN", "ONN", "IFM")
    },
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MODELS)
def test_a_strangers_model(name):
    package, make, in_training, in_eval = MODELS[name]
    pytest.importorskip(package)
    for trains, ops in ((True, in_training), (False, in_eval)):
        torch.manual_seed(0)
        model, inputs = make()
        recorded = check(model.train(trains), (inputs,), gradients=trains, rtol=1e-3, atol=1e-5)
        assert {*recorded.ops} == ops
        assert recorded.graphs == 1
