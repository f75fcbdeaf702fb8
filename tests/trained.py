"""Models for the tests of what serves them, and checkpoints of them."""

from dataclasses import replace

import torch

from model.checkpoints import plain, save_checkpoint
from model.config import PRESETS
from model.dlrm import DLRM
from model.hashing import Hash

CARDINALITIES = (10, 1, 0, 300)


def trained(hash_=Hash.SORTED, **changes):
    """Not trained, but with weights of its own, and ids at both ends of what there is."""
    torch.manual_seed(0)
    config = replace(PRESETS["small"].model, cardinalities=CARDINALITIES, hash=hash_, **changes)
    known = [torch.arange(n).flip(0) * 14316557 for n in CARDINALITIES]
    return DLRM(config, known).eval().requires_grad_(False)


def checkpoint(path, dlrm):
    fields = ("optimizer", "random", "epoch", "step", "stale", "best", "history", "losses")
    state = {"format": 1, "config": {"model": plain(dlrm.config), "train": {}}, "parameters": dlrm.state_dict()}
    save_checkpoint(path, state | dict.fromkeys(fields))
    return path
