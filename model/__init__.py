"""DLRM: what gets fused."""

from data.cli import command_imports

with command_imports(__name__):
    import kernels  # noqa: F401  first: it may have to set up Triton's interpreter before torch imports Triton
    from model.arches import MLP, DenseArch, InteractionArch, OverArch
    from model.config import PRESETS, DLRMConfig, Interaction, Preset, TrainConfig, preset
    from model.dlrm import DLRM, SparseArch
    from model.hashing import Hash

__all__ = [
    "DLRM",
    "MLP",
    "PRESETS",
    "DLRMConfig",
    "DenseArch",
    "Hash",
    "Interaction",
    "InteractionArch",
    "OverArch",
    "Preset",
    "SparseArch",
    "TrainConfig",
    "preset",
]
