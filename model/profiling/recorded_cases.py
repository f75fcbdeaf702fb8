"""The modules whose generated Triton is recorded in traces/generated/, beside the pointwise ops."""

from collections.abc import Callable
from dataclasses import replace

import torch

from data.synthetic import SyntheticConfig
from model import lora
from model.config import preset
from model.dlrm import DLRM


def generated_cases() -> dict[str, tuple[Callable, tuple, bool]]:
    """Recorded beside the two pointwise ops: name → (module, its inputs, backward too), at the traced steps' sizes."""
    torch.manual_seed(0)
    cases = {"lora_mlp": (lora.MLP((512, 1024, 512), rank=16, alpha=24.0), (torch.randn(2048, 512),), True)}
    for name in ("small", "main"):
        cardinalities = SyntheticConfig().cardinalities
        shape = replace(preset(name).model, cardinalities=cardinalities, sparse_gradients=False)
        sparse = torch.randint(2**32, (2048, len(cardinalities)))
        cases[f"dlrm_{name}"] = (DLRM(shape), (torch.randn(2048, 13), sparse), True)
    return cases
