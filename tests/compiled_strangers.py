"""Models of packages that others wrote, to compile: small, and with inputs of any number of rows.

    model, inputs = MODELS[name].make()        output = model(*inputs(rows))

MODELS names each package; `missing` says which of them is not installed.
"""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

HEIGHTS, WIDTH, COUNTS = (10, 20, 30, 15), 8, 3  # of the tables; of their vectors; how many numbers a row has beside
HIDDEN = (16, 16)
Made = tuple[nn.Module, Callable[[int], tuple]]


class Model(NamedTuple):
    """A package, and what makes its model."""

    package: str
    make: Callable[[], Made]


class Outputs(nn.Module):
    """A model that returns a dictionary, as one that returns its values."""

    def __init__(self, own: nn.Module, *more):
        super().__init__()
        self.own, self.more = own, more

    def forward(self, *inputs):
        return list(self.own(*inputs, *self.more).values())


def missing(package: str) -> bool:
    return find_spec(package) is None


def ids(rows: int) -> Tensor:
    return torch.stack([torch.randint(0, height, (rows,)) for height in HEIGHTS], 1)


def columns(rows: int) -> dict[str, Tensor]:
    """An input by its name: ids [B] as c0 …, numbers [B] as d0 …, and a history of ids [B, 5] of c0."""
    named = {f"c{k}": column.contiguous() for k, column in enumerate(ids(rows).unbind(1))}
    named |= {f"d{k}": torch.rand(rows) for k in range(COUNTS)}
    return named | {"h0": torch.randint(0, HEIGHTS[0], (rows, 5))}


def torchfm(module: str, model: str, *arguments, **options) -> Callable[[], Made]:
    def make() -> Made:
        if not hasattr(np, "long"):
            np.long = np.int64  # of a NumPy that the package was written for
        package = importlib.import_module(f"torchfm.model.{module}")
        return getattr(package, model)(HEIGHTS, *arguments, **options), lambda rows: (ids(rows),)

    return make


def rechub(model: str, arguments: Callable, folder: str = "ranking", **options) -> Callable[[], Made]:
    """arguments(numbers, sparse, features, mlp): what the model is made of. Options are those of the sparse ones."""

    def make() -> Made:
        features = importlib.import_module("torch_rechub.basic.features")
        models = importlib.import_module(f"torch_rechub.models.{folder}")
        sparse = [features.SparseFeature(f"c{k}", height, WIDTH, **options) for k, height in enumerate(HEIGHTS)]
        numbers = [features.DenseFeature(f"d{k}") for k in range(COUNTS)]
        mlp = {"dims": [32, 16], "dropout": 0.2, "activation": "relu"}
        own = getattr(models, model)(*arguments(numbers, sparse, features, mlp))
        return own, lambda rows: (columns(rows),)

    return make


def with_history(numbers, sparse, features, mlp) -> tuple:
    """DIN's: its own MLP has the activation Dice."""
    history = features.SequenceFeature("h0", HEIGHTS[0], WIDTH, "concat", shared_with="c0")
    return sparse[1:], [history], sparse[:1], {"dims": [32, 16]}, {"dims": [16], "activation": "relu"}


def with_a_shared_table(numbers, sparse, features, mlp) -> tuple:
    """c1 is looked up in c2's table, and so is the history, summed."""
    shared = features.SparseFeature("c1", HEIGHTS[2], WIDTH, shared_with="c2")
    history = features.SequenceFeature("h0", HEIGHTS[2], WIDTH, "sum", shared_with="c2")
    sparse = [sparse[0], shared, *sparse[2:], history]
    return numbers + sparse, sparse, mlp


def deepctr(model: str, folder: str = "", numbers: bool = True, **options) -> Callable[[], Made]:
    """numbers: whether its network takes them too."""

    def make() -> Made:
        inputs = importlib.import_module("deepctr_torch.inputs")
        models = importlib.import_module(f"deepctr_torch.models{folder}")
        features = [inputs.SparseFeat(f"c{k}", height, embedding_dim=WIDTH) for k, height in enumerate(HEIGHTS)]
        both = features + [inputs.DenseFeat(f"d{k}", 1) for k in range(COUNTS)]
        lists = [both] if folder or model in ("PNN", "MLR") else [both, both if numbers else features]
        own = getattr(models, model)(*lists, device="cpu", **options)
        return own, lambda rows: (torch.cat([ids(rows).float(), torch.rand(rows, COUNTS)], 1),)

    return make


def pangu(model: str, folder: str = "ranking", **options) -> Callable[[], Made]:
    def make() -> Made:
        if missing("dgl"):  # which its models of graphs alone ask for
            dgl, function = types.ModuleType("dgl"), types.ModuleType("dgl.function")
            dgl.function, dgl.__spec__ = function, ModuleSpec("dgl", None)
            sys.modules |= {"dgl": dgl, "dgl.function": function}
        models = importlib.import_module(f"rec_pangu.models.{folder}")
        coded = {f"c{k}": {"vocab_size": height - 1} for k, height in enumerate(HEIGHTS)}
        coded |= {f"d{k}": {"min": 0.0, "max": 1.0} for k in range(COUNTS)}
        own = getattr(models, model)(enc_dict=coded, **options)
        return Outputs(own, False), lambda rows: ({k: v for k, v in columns(rows).items() if k != "h0"},)

    return make


def rtdl(model: str, **options) -> Callable[[], Made]:
    def make() -> Made:
        package = importlib.import_module("rtdl_revisiting_models")
        return getattr(package, model)(d_in=12, d_out=1, **options), lambda rows: (torch.randn(rows, 12),)

    return make


def ft_transformer() -> Made:
    package = importlib.import_module("rtdl_revisiting_models")
    options = package.FTTransformer.get_default_kwargs(2) | {"d_block": 16, "attention_n_heads": 2}
    own = package.FTTransformer(n_cont_features=COUNTS, cat_cardinalities=[*HEIGHTS], d_out=1, **options)
    return own, lambda rows: (torch.randn(rows, COUNTS), ids(rows))


def tabm(arch_type: str) -> Callable[[], Made]:
    def make() -> Made:
        package = importlib.import_module("tabm")
        own = package.TabM.make(
            n_num_features=COUNTS, cat_cardinalities=[*HEIGHTS], d_out=1, k=4, n_blocks=2, d_block=16,
            arch_type=arch_type,
        )
        return own, lambda rows: (torch.randn(rows, COUNTS), ids(rows))

    return make


def geometric(**options) -> Callable[[], Made]:
    def make() -> Made:
        package = importlib.import_module("torch_geometric.nn")
        return package.MLP([12, 16, 16, 1], **options), lambda rows: (torch.randn(rows, 12),)

    return make


def x_transformer() -> Made:
    package = importlib.import_module("x_transformers")
    own = package.Encoder(dim=16, depth=2, heads=2, attn_dim_head=8)
    return own, lambda rows: (torch.randn(rows, 6, 16),)


def torchrec(module: str, model: str, interaction: str = "", **options) -> Callable[[], Made]:
    """interaction: of DLRM's kin, how its own is called; else deepfm's."""

    def make() -> Made:
        package = importlib.import_module(f"torchrec.models.{module}")
        configs = importlib.import_module("torchrec.modules.embedding_configs")
        modules = importlib.import_module("torchrec.modules.embedding_modules")
        jagged = importlib.import_module("torchrec.sparse.jagged_tensor")
        names = [f"c{k}" for k in range(len(HEIGHTS))]
        tables = [
            configs.EmbeddingBagConfig(name=f"of_{name}", embedding_dim=WIDTH, num_embeddings=height,
                                       feature_names=[name])
            for name, height in zip(names, HEIGHTS, strict=True)
        ]  # fmt: skip
        bags = modules.EmbeddingBagCollection(tables=tables)

        def inputs(rows: int) -> tuple:
            values = ids(rows).t().reshape(-1)
            return torch.rand(rows, 13), jagged.KeyedJaggedTensor(names, values, lengths=torch.ones_like(values))

        return getattr(package, model)(embedding_bag_collection=bags, **options), inputs

    return make


DROPPED = {"dropout": 0.2}
RESNET = {"n_blocks": 2, "d_block": 32, "d_hidden": None, "d_hidden_multiplier": 2.0, "dropout1": 0.2, "dropout2": 0.0}
DLRM = {"dense_in_features": 13, "dense_arch_layer_sizes": [16, WIDTH], "over_arch_layer_sizes": [16, 8, 1]}
OF_DEEPCTR = ("DeepFM", "WDL", "DCN", "DCNMix", "NFM", "AutoInt", "xDeepFM", "FiBiNET", "PNN", "ONN", "IFM", "DIFM")
TASKS = ["classification", "classification"]

MODELS = {
    "fm": Model("torchfm", torchfm("fm", "FactorizationMachineModel", 16)),
    "ffm": Model("torchfm", torchfm("ffm", "FieldAwareFactorizationMachineModel", 4)),
    "fnfm": Model(
        "torchfm", torchfm("fnfm", "FieldAwareNeuralFactorizationMachineModel", 4, HIDDEN, (0.2, 0.2))
    ),
    "fnn": Model("torchfm", torchfm("fnn", "FactorizationSupportedNeuralNetworkModel", 16, HIDDEN, 0.2)),
    "dcn": Model("torchfm", torchfm("dcn", "DeepCrossNetworkModel", 16, 3, HIDDEN, 0.2)),
    "dfm": Model("torchfm", torchfm("dfm", "DeepFactorizationMachineModel", 16, HIDDEN, 0.2)),
    "wd": Model("torchfm", torchfm("wd", "WideAndDeepModel", 16, HIDDEN, 0.2)),
    "nfm": Model("torchfm", torchfm("nfm", "NeuralFactorizationMachineModel", 16, HIDDEN, (0.2, 0.2))),
    "pnn": Model("torchfm", torchfm("pnn", "ProductNeuralNetworkModel", 16, HIDDEN, 0.2)),
    "afi": Model(
        "torchfm", torchfm("afi", "AutomaticFeatureInteractionModel", 16, 16, 2, 3, HIDDEN, (0.4, 0.4, 0.4))
    ),
    "afn": Model("torchfm", torchfm("afn", "AdaptiveFactorizationNetwork", 16, 20, HIDDEN, (0.2, 0.2))),
    "ncf": Model("torchfm", torchfm("ncf", "NeuralCollaborativeFiltering", [0], [1], 16, HIDDEN, 0.2)),
    "xdfm": Model("torchfm", torchfm("xdfm", "ExtremeDeepFactorizationMachineModel", 16, HIDDEN, 0.2, (8, 8))),
    "lr": Model("torchfm", torchfm("lr", "LogisticRegressionModel")),
    "rechub_wide_and_deep": Model("torch_rechub", rechub("WideDeep", lambda n, s, f, mlp: (n + s, s, mlp))),
    "rechub_deep_fm": Model("torch_rechub", rechub("DeepFM", lambda n, s, f, mlp: (n + s, s, mlp))),
    "rechub_deep_fm_padded": Model(
        "torch_rechub", rechub("DeepFM", lambda n, s, f, mlp: (n + s, s, mlp), padding_idx=0)
    ),
    "rechub_deep_fm_shared": Model("torch_rechub", rechub("DeepFM", with_a_shared_table)),
    "rechub_dcn": Model("torch_rechub", rechub("DCN", lambda n, s, f, mlp: (n + s, 2, mlp))),
    "rechub_dcn_v2": Model("torch_rechub", rechub("DCNv2", lambda n, s, f, mlp: (s, 2, mlp))),
    "rechub_edcn": Model("torch_rechub", rechub("EDCN", lambda n, s, f, mlp: (s, 2, mlp))),
    "rechub_fibinet": Model("torch_rechub", rechub("FiBiNet", lambda n, s, f, mlp: (s, mlp))),
    "rechub_autoint": Model("torch_rechub", rechub("AutoInt", lambda n, s, f, mlp: (s, n, 2, 2, 0.0, mlp))),
    "rechub_din": Model("torch_rechub", rechub("DIN", with_history)),
    "rechub_esmm": Model(
        "torch_rechub", rechub("ESMM", lambda n, s, f, mlp: (s[:2], s[2:], mlp, mlp), "multi_task")
    ),
    "rechub_shared_bottom": Model(
        "torch_rechub",
        rechub("SharedBottom", lambda n, s, f, mlp: (n + s, TASKS, {**mlp}, [{"dims": [8]}] * 2), "multi_task"),
    ),
    "rechub_mmoe": Model(
        "torch_rechub",
        rechub("MMOE", lambda n, s, f, mlp: (n + s, TASKS, 3, mlp, [{"dims": [8]}] * 2), "multi_task"),
    ),
    "rechub_ple": Model(
        "torch_rechub",
        rechub("PLE", lambda n, s, f, mlp: (n + s, TASKS, 1, 2, 1, mlp, [{"dims": [8]}] * 2), "multi_task"),
    ),
    **{f"deepctr_{n}": Model("deepctr_torch", deepctr(n, dnn_hidden_units=(32, 16))) for n in OF_DEEPCTR},
    "deepctr_bn_DeepFM": Model(
        "deepctr_torch", deepctr("DeepFM", dnn_hidden_units=(32, 16), dnn_use_bn=True, dnn_dropout=0.2)
    ),
    "deepctr_AFM": Model("deepctr_torch", deepctr("AFM", numbers=False)),
    "deepctr_AFN": Model(
        "deepctr_torch", deepctr("AFN", ltl_hidden_size=16, afn_dnn_hidden_units=(16, 16))
    ),
    "deepctr_CCPM": Model("deepctr_torch", deepctr("CCPM", numbers=False, dnn_hidden_units=(32, 16))),
    "deepctr_MLR": Model("deepctr_torch", deepctr("MLR")),
    "deepctr_ESMM": Model("deepctr_torch", deepctr("ESMM", ".multitask", tower_dnn_hidden_units=(32, 16))),
    **{
        f"deepctr_{n}": Model(
            "deepctr_torch",
            deepctr(n, ".multitask", expert_dnn_hidden_units=(32, 16), gate_dnn_hidden_units=(16,),
                    tower_dnn_hidden_units=(16,)),
        )
        for n in ("MMOE", "PLE")
    },
    **{f"pangu_{n}": Model("rec_pangu", pangu(n, embedding_dim=WIDTH)) for n in ("FM", "AutoInt", "AOANet", "AFN")},
    **{
        f"pangu_{n}": Model("rec_pangu", pangu(n, embedding_dim=WIDTH, hidden_units=[32, 16]))
        for n in ("DeepFM", "WDL", "DCN", "FiBiNet", "NFM", "MaskNet", "AFM")
    },
    "pangu_xDeepFM": Model("rec_pangu", pangu("xDeepFM", embedding_dim=WIDTH, dnn_hidden_units=[32, 16])),
    "pangu_ShareBottom": Model(
        "rec_pangu", pangu("ShareBottom", "multi_task", embedding_dim=WIDTH, hidden_units=[32, 16])
    ),
    "pangu_ESSM": Model("rec_pangu", pangu("ESSM", "multi_task", embedding_dim=WIDTH, hidden_dim=[32, 16])),
    "pangu_MMOE": Model(
        "rec_pangu", pangu("MMOE", "multi_task", embedding_dim=WIDTH, mmoe_hidden_dim=16, hidden_dim=[32, 16])
    ),
    "rtdl_mlp": Model("rtdl_revisiting_models", rtdl("MLP", n_blocks=3, d_block=32, dropout=0.1)),
    "rtdl_resnet": Model("rtdl_revisiting_models", rtdl("ResNet", **RESNET)),
    "rtdl_ft_transformer": Model("rtdl_revisiting_models", ft_transformer),
    "tabm": Model("tabm", tabm("tabm")),
    "tabm_mini": Model("tabm", tabm("tabm-mini")),
    "geometric_mlp": Model("torch_geometric", geometric(**DROPPED)),
    "geometric_mlp_plain": Model("torch_geometric", geometric(norm=None)),
    "x_transformers": Model("x_transformers", x_transformer),
    "torchrec_dlrm": Model("torchrec", torchrec("dlrm", "DLRM", **DLRM)),
    "torchrec_dlrm_dcn": Model(
        "torchrec", torchrec("dlrm", "DLRM_DCN", dcn_num_layers=2, dcn_low_rank_dim=4, **DLRM)
    ),
    "torchrec_dlrm_projection": Model(
        "torchrec",
        torchrec("dlrm", "DLRM_Projection", interaction_branch1_layer_sizes=[16, 2 * WIDTH],
                 interaction_branch2_layer_sizes=[16, 2 * WIDTH], **DLRM),
    ),
    "torchrec_deep_fm": Model(
        "torchrec",
        torchrec("deepfm", "SimpleDeepFMNN", num_dense_features=13, hidden_layer_size=16, deep_fm_dimension=8),
    ),
}  # fmt: skip
