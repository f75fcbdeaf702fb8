"""backend="fused_kernels" and the models of packages that others wrote, each where it is installed: what is replaced in
training and in eval, outputs and gradients as eager's, in as many graphs as any backend's."""

from __future__ import annotations

import copy
from collections import Counter

import pytest
import torch
from compiled import check, recording, results_of
from compiled_strangers import MODELS, missing
from torch import nn

pytestmark = [
    pytest.mark.slow, pytest.mark.usefixtures("one_thread", "as_on_gpu"), pytest.mark.filterwarnings("ignore"),
]  # fmt: skip
LETTERS = {
    "L": "embedding_bags_apart", "M": "fused_mlp", "I": "dot_interaction", "D": "dlrm_forward", "A": "add_relu",
}  # fmt: skip
# The ops in training and in eval, and the models. torchfm's, whose fields share one table, have one look-up, or two of
# different widths. A BatchNorm or a Dropout between the layers leaves an MLP alone in training.
REPLACED = {
    ("", ""): "fm lr tabm",
    ("", "M"): "fnn dcn dfm wd nfm pnn afi afn ncf xdfm rtdl_mlp geometric_mlp tabm_mini",
    ("", "MM"): "rtdl_resnet",
    ("M", "M"): "geometric_mlp_plain",
    ("MM", "MM"): "x_transformers",
    # None has layers that are an MLP of the op's: FM and FFM have none, FTTransformer's are gated, DCN's and
    # ShareBottom's have no activation between them, and MMOE computes its experts in one einsum.
    ("L", "L"): "ffm rtdl_ft_transformer pangu_FM pangu_DCN pangu_ShareBottom pangu_MMOE",
    ("L", "LM"): "fnfm rechub_wide_and_deep rechub_deep_fm rechub_deep_fm_padded rechub_dcn rechub_dcn_v2"
    " rechub_autoint rechub_din pangu_AOANet",
    # Two towers, or a deep part in two; a bottom and two towers; three experts and two towers; five and two.
    ("L", "LMM"): "rechub_edcn rechub_esmm pangu_ESSM",
    ("L", "LMMM"): "rechub_shared_bottom",
    ("L", "LMMMMM"): "rechub_mmoe",
    ("L", "LMMMMMMM"): "rechub_ple",
    ("LM", "LM"): "pangu_DeepFM deepctr_PNN torchrec_deep_fm",
    ("LM", "LMM"): "rechub_fibinet",  # its first MLP has no BatchNorm
    ("LMM", "LMM"): "deepctr_ESMM torchrec_dlrm_dcn",
    ("LMMMM", "LMMMM"): "torchrec_dlrm_projection",
    ("LMMM", "LMMMM"): "pangu_MaskNet",  # with a Dropout in its last MLP
    ("LMMMMMMM", "LMMMMMMM"): "deepctr_MMOE",
    ("L" + 14 * "M", "L" + 14 * "M"): "deepctr_PLE",
    # Look-ups of two widths, or of two shapes of ids.
    ("LL", "LLM"): "rechub_deep_fm_shared deepctr_bn_DeepFM deepctr_AFN pangu_AutoInt pangu_xDeepFM",
    ("LL", "LMM"): "pangu_AFN",  # between its look-ups a BatchNorm writes to its statistics in training
    ("LLM", "LLM"): "deepctr_DeepFM deepctr_WDL deepctr_DCN deepctr_DCNMix deepctr_NFM deepctr_AutoInt"
    " deepctr_xDeepFM deepctr_CCPM deepctr_ONN deepctr_IFM deepctr_DIFM pangu_WDL pangu_NFM",
    ("LLMM", "LLMM"): "deepctr_FiBiNET pangu_FiBiNet pangu_AFM",
    ("LLA", "LLA"): "deepctr_AFM",
    (8 * "L", 8 * "L"): "deepctr_MLR",  # between its eight sums, each of four tables, += writes in place
    ("LIMM", "D"): "torchrec_dlrm",
}
EXPECTED = {name: letters for letters, names in REPLACED.items() for name in names.split()}


def made(name: str, trains: bool) -> tuple:
    """A model and what makes its inputs."""
    if missing(MODELS[name].package):
        pytest.skip(f"{MODELS[name].package} is not installed")
    torch.manual_seed(0)
    model, inputs = MODELS[name].make()
    return model.train(trains), inputs


@pytest.mark.parametrize("name", MODELS)
def test_a_strangers_model(name):
    for trains, letters in zip((True, False), EXPECTED[name], strict=True):
        model, inputs = made(name, trains)
        # Eager runs first: of torchrec's features the offsets are known then, whose computation cuts the graph.
        recorded = check(model, inputs(16), gradients=trains, rtol=1e-3, atol=1e-5)
        assert Counter(recorded.ops) == Counter(LETTERS[letter] for letter in letters)
        assert recorded.graphs == 1


@pytest.mark.parametrize("name", MODELS)
def test_it_is_compiled_as_often_as_by_another_backend(name):
    """In eval, for four batches one after the other."""
    model, inputs = made(name, trains=False)
    batches = [inputs(rows) for rows in (64, 7, 2, 33)]
    backend, recorded = recording("eager")
    others = []

    def other(gm: torch.fx.GraphModule, example_inputs: list):
        others.append(gm)
        return gm.forward

    wanted = [results_of(model, model, copy.deepcopy(batch), gradients=False) for batch in batches]
    for each in (other, backend):
        torch._dynamo.reset()
        compiled = torch.compile(model, backend=each)
        for batch, outputs in zip(copy.deepcopy(batches), wanted, strict=True):
            for one, another in zip(results_of(compiled, model, batch, gradients=False), outputs, strict=True):
                torch.testing.assert_close(one, another, rtol=1e-3, atol=1e-5)
    assert recorded.graphs == len(others)


class UnderAutocast(nn.Module):
    def __init__(self, own: nn.Module):
        super().__init__()
        self.own = own

    def forward(self, *inputs):
        with torch.autocast("cpu", torch.bfloat16):
            return self.own(*inputs)


OF_ALL_KINDS = ["fnfm", "rechub_deep_fm", "deepctr_IFM", "pangu_WDL", "rtdl_mlp", "torchrec_dlrm_dcn"]


@pytest.mark.parametrize("name", OF_ALL_KINDS)
def test_under_autocast_as_much_is_replaced(name):
    model, inputs = made(name, trains=False)
    recorded = check(UnderAutocast(model), inputs(16), gradients=False, rtol=0.05, atol=0.05)
    assert Counter(recorded.ops) == Counter(LETTERS[letter] for letter in EXPECTED[name][1])
